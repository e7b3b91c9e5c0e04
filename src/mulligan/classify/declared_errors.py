"""AgentError and InfraError: exceptions with which the author of a tool declares the failure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from mulligan.classify.kinds import KINDS, TOOL_INVALID_ARGUMENTS, TOOL_UNAVAILABLE, find_declared_kind
from mulligan.core.failure import INFRA_ERROR, Failure, Kind, Remedy, TookEffect, to_code


class AgentError(Exception):
    """Raise it in a tool, before any side effect, when the model should act differently.

    It promises that nothing has executed yet, so even a tool with side effects may be called again. A `code` that names
    a kind (`timeout`, `tool/timeout`) decides the kind. It can be a string or a member of an enum.
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
    code = to_code(error.code)
    declared_kind = find_declared_kind(code, source, kinds)
    if isinstance(error, InfraError):
        kind = declared_kind or TOOL_UNAVAILABLE
        kind = Kind(kind.type, kind.code, Remedy.STOP, kind.took_effect, kind.hint)
        return Failure.of(kind, message, evidence=(INFRA_ERROR,), recoverable=False, code=code, **facts)
    kind = declared_kind or TOOL_INVALID_ARGUMENTS
    # `AgentError` promises that the call did not execute, so a repair is safe unless the author rules it out.
    remedy = Remedy.REPLAN if not error.recoverable else kind.remedy if declared_kind else Remedy.REPAIR
    # The promise does not cover code that caught and wrapped the error.
    took_effect = TookEffect.UNKNOWN if is_wrapped else TookEffect.NO
    kind = Kind(kind.type, kind.code, remedy, took_effect, kind.hint)
    hint = error.hint or kind.hint
    return Failure.of(
        kind, message, hint=hint, evidence=("AgentError",), recoverable=error.recoverable, code=code, **facts
    )
