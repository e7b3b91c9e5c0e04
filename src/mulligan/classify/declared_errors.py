"""AgentError and InfraError: exceptions with which the author of a tool declares the failure."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any

from mulligan.core import fork_safety
from mulligan.core.failure import INFRA_ERROR, Failure, Kind, Remedy, TookEffect, to_code
from mulligan.core.kinds import (
    KINDS,
    TOOL_EXECUTION_FAILED,
    TOOL_INVALID_ARGUMENTS,
    TOOL_UNAVAILABLE,
    TOOL_UNKNOWN,
    find_declared_kind,
    find_kinds_of_status,
)

MAX_CODE_CHARS = 80
UNKNOWN_CODE = "unknown code"
"""The evidence of a code that means no kind."""


class AgentError(Exception):
    """Raise it in a tool, before any side effect, when the model should act differently.

    Without a `code` it promises that nothing has executed yet, so even a tool with side effects may be called again.
    A `code` that means a kind (`timeout`, `tool/timeout`, `AUTH_FAILED`) decides the kind, and whether the call may
    have executed: `tool_execution_failed` says that something ran. Of an unknown code that is assumed too, and a
    warning is logged. It can be a string or a member of an enum.
    """

    __module__ = "mulligan"  # the public name, for tracebacks

    def __init__(self, message: str, code: str | enum.Enum = "", hint: str = "", recoverable: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.recoverable = recoverable

    def to_tool_response(self, tool: str = "") -> dict[str, Any]:
        """Return the failure as a tool result that a model can act on: see `Failure.to_tool_response`."""
        return _to_failure(self).to_tool_response(tool)


class UndeliveredError(AgentError):
    """A request that never reached its server, whatever its code says."""


class InfraError(Exception):
    """Raise it in a tool when only a person can help. It is not retried and ends the agent loop."""

    __module__ = "mulligan"

    def __init__(self, message: str, code: str | enum.Enum = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code

    def to_tool_response(self, tool: str = "") -> dict[str, Any]:
        """Return a tool result that hides the message: it is for people and may name internals."""
        return _to_failure(self).to_tool_response(tool)


def _to_failure(error: AgentError | InfraError) -> Failure:
    return build_declared_failure(error, " ".join(str(error).split()))


def build_declared_failure(
    error: AgentError | InfraError,
    message: str,
    *,
    source: str | None = None,
    kinds: Mapping[str, Kind] = KINDS,
    is_wrapped: bool = False,
    **facts: Any,
) -> Failure:
    """Build the failure that the author declared. No rule is applied. `facts` are further fields of `Failure`."""
    code = to_code(error.code) or (str(error.code) if isinstance(error.code, int) else "")
    declared_kind = _find_meaning(code, source, kinds) if code else None
    if declared_kind is None and isinstance(error.code, enum.Enum):
        declared_kind = _find_meaning(error.code.name, source, kinds)
    if isinstance(error, InfraError):
        kind = declared_kind or TOOL_UNAVAILABLE
        kind = kind.with_remedy(Remedy.STOP)
        return Failure.of(kind, message, evidence=(INFRA_ERROR,), recoverable=False, code=code, **facts)
    evidence = ("AgentError", UNKNOWN_CODE) if code and declared_kind is None else ("AgentError",)
    kind = declared_kind or (TOOL_UNKNOWN if code else TOOL_INVALID_ARGUMENTS)
    remedy = kind.remedy if error.recoverable or kind.remedy is Remedy.STOP else Remedy.REPLAN
    # Without a code, `AgentError` promises that the call did not execute. The promise does not cover code that caught
    # and wrapped the error.
    took_effect = kind.took_effect
    if is_wrapped:
        took_effect = TookEffect.UNKNOWN
    elif isinstance(error, UndeliveredError) or (kind in KINDS and kind.rejects_if_declared):
        took_effect = TookEffect.NO
    kind = Kind(kind.type, kind.code, remedy, took_effect, kind.hint)
    is_recoverable = error.recoverable and remedy is not Remedy.STOP
    return Failure.of(
        kind, message, hint=error.hint or kind.hint, evidence=evidence, recoverable=is_recoverable, code=code, **facts
    )


def _find_meaning(code: str, source: str | None, kinds: Mapping[str, Kind]) -> Kind | None:
    """Return the kind of a code as people write it: in any case, with any separators, prefixes and endings."""
    with fork_safety.import_lock:
        from mulligan.classify.rules import python as rules  # lazy: few errors have a code
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", code[:MAX_CODE_CHARS])]
    names = [code]
    for start in range(len(words)):
        names.append("_".join(words[start:]))
        for end in range(len(words) - 1, start, -1):
            if words[end] not in rules.CODE_ENDINGS:
                break
            names.append("_".join(words[start:end]))
        if words[start] not in rules.CODE_PREFIXES:
            break
    for name in names:
        kind = find_declared_kind(name, source, kinds)
        if kind is not None and (kind.type != "model" or source == "model" or "/" in name):
            return kind
        allowed = rules.DECLARED_CODES.get(name) or rules.CODES.get(name) or rules.CODES.get(name.replace("_", ""))
        allowed = allowed or next((rules.CODE_FAMILIES[end] for end in rules.CODE_FAMILIES if name.endswith(end)), ())
        if allowed:
            return find_declared_kind(allowed[0].code, source, kinds) or allowed[0]
        if kind is not None:
            return kind
    if any(word.startswith("partial") for word in words):
        return TOOL_EXECUTION_FAILED
    if words[:-1] in ([], ["http"]) and re.fullmatch("[45][0-9][0-9]", "".join(words[-1:])):
        return find_declared_kind(find_kinds_of_status(int(words[-1]))[0].code, source, kinds)
    return None
