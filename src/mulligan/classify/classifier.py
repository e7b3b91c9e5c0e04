"""An error in, a Failure out: tries the evidence in order, first match wins, never raises."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from mulligan.classify import taxonomy as kinds
from mulligan.classify.evidence import Evidence, gather, plain
from mulligan.classify.fingerprint import fingerprint
from mulligan.classify.python import CLASSES, STATUSES
from mulligan.classify.rules import Rule, matching
from mulligan.failure import AgentError, Failure, InfraError, Kind, Ran, Remedy

_TEXT = (
    Rule("refused connection", kinds.TOOL_CONNECTION_ERROR, ("connection refused", "econnrefused"), ran=Ran.NO),
    Rule("timed out", kinds.TOOL_TIMEOUT, ("timed out", "timeout", "deadline exceeded")),
    Rule("rate limit", kinds.TOOL_RATE_LIMIT, ("rate limit", "too many requests")),
    Rule("unknown tool", kinds.TOOL_UNKNOWN_TOOL, ("unknown tool", "no such tool")),
    Rule("missing file", kinds.TOOL_FILE_NOT_FOUND, ("no such file or directory",)),
    Rule("missing command", kinds.TOOL_COMMAND_NOT_FOUND, ("command not found",)),
    Rule("arguments", kinds.TOOL_INVALID_ARGUMENTS, ("missing required", "invalid argument", "unexpected keyword")),
    Rule("missing", kinds.TOOL_NOT_FOUND, ("not found", "does not exist")),
)


def classify(
    error: object = None,
    *,
    source: str | None = None,
    tool: str | None = None,
    status: int | None = None,
    text: str | None = None,
    is_error: bool | None = None,
    arguments: Mapping[str, Any] | None = None,
    exception: str | None = None,
    rejects: Collection[int] = (),
) -> Failure:
    """What went wrong, by the built-in table alone."""
    if isinstance(error, Failure):
        return error
    evidence = Evidence(source=source, tool=tool or "", is_error=is_error, arguments=arguments)
    try:
        evidence.add_status(status)
        if exception:
            evidence.names.append(exception.rpartition(".")[2])
        evidence.add_text(text)
        gather(error, evidence)
        failure = _decided(error, evidence)
        if rejects and failure.status in rejects:
            failure = _with(failure, ran=Ran.NO, evidence=(*failure.evidence, f"rejects {failure.status}"))
    except Exception as fault:  # noqa: BLE001 - a fault of ours must not hide the user's error
        failure = Failure.of(
            kinds.KINDS.get(f"{source}/unknown", kinds.TOOL_UNKNOWN),
            plain(evidence.text)[:500],
            evidence=(f"classification failed: {type(fault).__name__}",),
            confidence=0.0,
        )
    return _with(failure, fingerprint=fingerprint(failure.kind, tool, failure.message, arguments))


def _decided(error: object, evidence: Evidence) -> Failure:
    message = (evidence.text.splitlines() or [""])[0][:500]
    fields: dict[str, Any] = {"status": evidence.status, "detail": evidence.text[:4000], "code": ""}
    if isinstance(error, AgentError):
        kind = kinds.KINDS.get(error.code) or kinds.KINDS.get(f"tool/{error.code}") or kinds.TOOL_INVALID_ARGUMENTS
        remedy = Remedy.REPAIR if error.recoverable else Remedy.TELL
        kind = Kind(kind.type, kind.code, remedy, Ran.NO, kind.hint)
        fields |= {"code": error.code, "recoverable": error.recoverable, "evidence": ("AgentError",)}
        return Failure.of(kind, message, hint=error.hint or kind.hint, **fields)
    if isinstance(error, InfraError):
        kind = kinds.KINDS.get(error.code) or kinds.KINDS.get(f"tool/{error.code}") or kinds.TOOL_UNAVAILABLE
        kind = Kind(kind.type, kind.code, Remedy.STOP, kind.ran, kind.hint)
        return Failure.of(
            kind, message, **fields | {"code": error.code, "evidence": ("InfraError",), "recoverable": False}
        )
    if evidence.rpc in (-32601, -32602):
        kind = kinds.TOOL_UNKNOWN_TOOL if evidence.rpc == -32601 else kinds.TOOL_INVALID_ARGUMENTS
        return Failure.of(kind, message, ran=Ran.NO, **fields | {"evidence": (f"JSON-RPC {evidence.rpc}",)})
    allowed: tuple[Kind, ...] = ()
    why: list[str] = []
    for name in evidence.names:
        if name in ("CancelledError", "KeyboardInterrupt"):
            return Failure.of(kinds.NONE_CANCELLED, message, **fields | {"evidence": (f"class {name}",)})
        if name in CLASSES:
            allowed, why = CLASSES[name], [f"class {name}"]
            break
    if not allowed and evidence.status in STATUSES:
        allowed, why = STATUSES[evidence.status], [f"status {evidence.status}"]
    for rule in matching(_TEXT, evidence.text, evidence.tool):
        if not allowed or rule.kind in allowed:
            ran = rule.ran
            return Failure.of(rule.kind, message, ran=ran, **fields | {"evidence": (f"text: {rule.name}", *why)})
    if allowed:
        return Failure.of(allowed[0], message, **fields | {"evidence": tuple(why), "confidence": 0.8})
    return Failure.of(kinds.TOOL_EXECUTION_FAILED, message, **fields | {"evidence": (), "confidence": 0.3})


def _with(failure: Failure, **changes: Any) -> Failure:
    import msgspec  # loaded by failure.py already

    return msgspec.structs.replace(failure, **changes)


class Classifier:
    """A table of kinds and rules, and the answer they give."""

    def classify(self, error: object = None, **evidence: Any) -> Failure:
        return classify(error, **evidence)


__all__ = ["Classifier", "classify", "dataclasses"]
