"""Where code runs: in which run, inside which step, and under which attempts. Each context has one scope."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec

from mulligan.capture.context import CaptureContext, reset
from mulligan.core import fork_safety

Raised = type[BaseException] | None

MAX_EXECUTED_CALLS = 100
"""Executed calls that an attempt remembers. Beyond, it surely contains one that executed, and forgets none."""


class ScopedRun(Protocol):
    """A run as its scopes use it."""

    is_open: bool
    is_inherited: bool
    entered_tokens: list[Token[Any]]


RunT = TypeVar("RunT", bound=ScopedRun)


class AsyncScope:
    """A context manager that does the same in `with` and `async with`."""

    __slots__ = ()

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)


class EnclosingAttempts(msgspec.Struct, Generic[RunT], kw_only=True, eq=False):
    """The attempts around a scope, and what happened inside the attempt of the scope itself."""

    enclosing: CallScope[RunT] | None = None
    """The scope of the enclosing attempt, whether that retries or not."""
    is_in_progress: bool = True
    """Whether this is the scope of an attempt whose call has not ended."""
    executed_calls: tuple[str, ...] = ()
    """Names of calls with effects="once" inside the attempt that executed or may have: it must not be repeated."""
    retried_call: str = ""
    """Name of a call inside the attempt that was retried, while this attempt did not hold the scope that retries."""
    key_counts: dict[bytes, int] | None = None
    """How many equal calls inside the attempt have asked for an idempotency key."""


class CallScope(EnclosingAttempts[RunT], eq=False):
    """Where code runs: in which run, inside which step, and under which scope that retries.

    Only one scope retries, while its call is in progress: a task that outlives the call is on its own. A call that must
    not be repeated holds no such scope, so that the calls inside it recover themselves.
    """

    known_run: RunT | None
    """None if the run is created on request."""
    number: int | None
    """The number of the enclosing step."""
    outer: CallScope[RunT] | None
    """The enclosing scope that retries."""
    is_retrying: bool
    """Whether the call of this scope is retried, and in progress. `executed_calls` suspend that."""

    @property
    def run(self) -> RunT:
        assert self.known_run is not None
        return self.known_run

    @property
    def retrying_scope(self) -> CallScope[RunT] | None:
        """The scope that retries here: this one or an enclosing one, while its call may be repeated."""
        scope = self if self.is_retrying else self.outer
        return scope if scope is not None and scope.is_retrying and not scope.executed_calls else None

    @property
    def attempt(self) -> CallScope[RunT] | None:
        """The nearest scope of an attempt whose call has not ended: this one or an enclosing one."""
        scope: CallScope[RunT] | None = self
        while scope is not None and not scope.is_in_progress:
            scope = scope.enclosing
        return scope

    def enclosing_attempts(self) -> Iterator[CallScope[RunT]]:
        scope = self.enclosing
        while scope is not None:
            yield scope
            scope = scope.enclosing

    def inner_scope(self, run: RunT, number: int | None) -> CallScope[RunT]:
        """Return a scope inside this one that makes no attempt: that of a run or of a marked step."""
        outer = self if self.is_retrying else self.outer
        return CallScope(run, number, outer, False, enclosing=self.attempt, is_in_progress=False)

    def add_executed_call(self, name: str) -> None:
        """Note in all enclosing attempts that a call with effects="once" inside them is about to execute."""
        scope = self.enclosing
        with _lock:
            while scope is not None:  # not `enclosing_attempts`, which takes a third longer: nested calls run this
                if len(scope.executed_calls) < MAX_EXECUTED_CALLS:
                    scope.executed_calls += (name,)
                scope = scope.enclosing

    def remove_executed_call(self, name: str) -> None:
        """Withdraw `add_executed_call`: the call did not execute."""
        with _lock:
            for scope in self.enclosing_attempts():
                names = list(scope.executed_calls)
                if len(names) < MAX_EXECUTED_CALLS and name in names:
                    names.remove(name)
                    scope.executed_calls = tuple(names)

    def add_retried_call(self, name: str) -> None:
        """Note in the enclosing attempts that a call inside them is retried: one layer at a time does that."""
        for scope in self.enclosing_attempts():
            if not scope.is_retrying or scope.executed_calls:
                scope.retried_call = name


class RecoveryScope(CallScope[RunT], eq=False):
    """The scope of an attempt that serves recovery: a later attempt of a call, or a summary for a compression."""


def current_step(capture: CaptureContext, run: object) -> int | None:
    """Return the number of the enclosing step of this run."""
    call_scope: CallScope[Any] | None = capture.current_scope.get()
    return call_scope.number if call_scope is not None and call_scope.run is run else None


def retrying_scope(capture: CaptureContext) -> CallScope[Any] | None:
    """Return the enclosing scope that retries, if any: inner calls are then only recorded."""
    call_scope: CallScope[Any] | None = capture.current_scope.get()
    return call_scope.retrying_scope if call_scope is not None else None


def inner_scope(capture: CaptureContext, run: RunT, number: int | None = None) -> CallScope[RunT]:
    """Return a scope of a run or of a marked step inside the current scope."""
    call_scope: CallScope[RunT] | None = capture.current_scope.get()
    if call_scope is None:
        return CallScope(run, number, None, is_retrying=False, is_in_progress=False)
    return call_scope.inner_scope(run, number)


_lock = threading.RLock()
"""Guards the state of all runs. One lock is enough: it is held only briefly. A forked child gets a new one."""


def lock() -> threading.RLock:
    """Return the current lock. A forked child has its own."""
    return _lock


def _reset_in_child() -> None:
    """In a forked child: renew the lock, whose holder no longer exists, and mark the enclosing runs as inherited."""
    global _lock
    _lock = threading.RLock()
    pending: list[object] = list(contextvars.copy_context().values())
    while pending:
        scope = pending.pop()
        if isinstance(scope, CallScope) and not scope.run.is_inherited:
            # Both processes would otherwise assign the same step numbers. Wrapped calls in the child become runs of
            # their own with this run as parent.
            scope.run.is_inherited, scope.run.is_open = True, False
            pending += [scope.outer, scope.enclosing, *(token.old_value for token in scope.run.entered_tokens)]


fork_safety.run_in_child(_reset_in_child)


class ContextValue(AsyncScope):
    """Context manager that sets a context variable to a value computed on entry, and resets it on exit.

    Not a `contextlib.contextmanager`: that modifies exceptions, and some are frozen.
    """

    __slots__ = ("_compute", "_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[Any], compute: Callable[[], Any]) -> None:
        self._variable = variable
        self._compute = compute

    def __enter__(self) -> Any:
        value = self._value = self._compute()
        self._token = self._variable.set(value)
        return value.run if isinstance(value, CallScope) else self

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._variable.get() is self._value:  # otherwise a generator is closed late: another value is current
            reset(self._variable, self._token)
