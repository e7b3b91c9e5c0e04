"""Errors of calls that were answered before the function was called."""

from __future__ import annotations

import msgspec

from mulligan.classify.declared_errors import AgentError
from mulligan.core.failure import Failure


class CallBlockedError(AgentError):
    """A call that was answered without being made, with the failure that says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, failure.kind.code, failure.hint, recoverable=failure.recoverable)
        self.failure = failure


class Violation(msgspec.Struct, frozen=True):
    """One argument, or part of one, that a schema or a type rejects."""

    path: tuple[str | int, ...]
    message: str
    error: Exception | None = None
    """What a validator or constructor of the type raised."""


class SchemaMismatchError(AgentError):
    """Arguments that our own check rejected before the function was called."""

    causes: tuple[Exception, ...] = ()
    """What validators and constructors of the annotated types raised."""
