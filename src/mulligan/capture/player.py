"""Player that executes the moves of a call, sync and async."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from inspect import iscoroutinefunction
from typing import Any, NamedTuple, Protocol, TypeVar

from mulligan.capture.context import CaptureContext
from mulligan.recover.plan import QueryMove
from mulligan.recover.retry_schedule import BackoffMove, WaitMove

T = TypeVar("T")


class Invocation(NamedTuple):
    """Move that makes an attempt: call this function."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


Reply = tuple[Any, Exception | None]
"""The result of a move and None, or None and its exception."""
CallMoves = Generator[Invocation | BackoffMove | WaitMove | QueryMove | None, Reply | None, None]
"""The moves of a call, then None. Each receives its reply."""


class PlannedCall(Protocol):
    """A call as the player sees it."""

    @property
    def capture(self) -> CaptureContext: ...

    is_played_async: bool
    """Whether the call waits without blocking its thread. Set by the player."""

    def moves(self) -> CallMoves: ...

    def end_cancelled(self, error: BaseException) -> None:
        """Record that the call was interrupted."""

    def end(self) -> Any:
        """Return the result of the call, or raise its exception."""


def execute_plan(call: PlannedCall) -> Any:
    """Make a call, and recover it if it fails, in this thread."""
    run_sync(_play(call, is_async=False))
    return call.end()


async def aexecute_plan(call: PlannedCall) -> Any:
    """Make a call, and recover it if it fails, in this task."""
    await _play(call, is_async=True)
    return call.end()


async def _play(call: PlannedCall, *, is_async: bool) -> None:
    call.is_played_async = is_async
    capture, moves = call.capture, call.moves()
    reply: Reply | None = None
    try:
        while (move := moves.send(reply)) is not None:
            try:
                match move:
                    case Invocation(function, args, kwargs):
                        result = function(*args, **kwargs)
                        reply = await result if is_async else result, None
                    case BackoffMove() | WaitMove():
                        reply = None
                        seconds = move.sleep_seconds if isinstance(move, BackoffMove) else move.seconds
                        if is_async:
                            if seconds:
                                await capture.async_sleep(seconds)
                            await _let_tasks_start()
                        elif seconds:
                            capture.sleep(seconds)
                    case QueryMove(query, arguments):
                        if is_async and not iscoroutinefunction(query):
                            reply = await run_in_thread(query, *arguments), None
                        else:
                            answer = query(*arguments)
                            reply = await answer if is_async else answer, None
            except Exception as error:
                # An iterator that ends inside a query ends no iteration of the caller.
                is_query_error = isinstance(move, QueryMove) and isinstance(error, StopIteration | StopAsyncIteration)
                if capture.is_control_flow(error) and not is_query_error:
                    raise
                reply = None, error
    except BaseException as error:
        call.end_cancelled(error)
        raise


@types.coroutine
def _let_tasks_start() -> Generator[None, None, None]:
    """Let tasks begin that the attempt has scheduled, also without a backoff: what they call may forbid another one."""
    yield


def is_on_event_loop() -> bool:
    """Return whether an asyncio event loop runs in this thread."""
    asyncio = sys.modules.get("asyncio")  # a program that runs a loop has imported it
    return asyncio is not None and asyncio._get_running_loop() is not None


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, in this thread. It holds code that sync and async callers share."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except RuntimeError as error:
        original = _find_stop_iteration(error)
        if original is None:
            raise
    else:
        raise RuntimeError("sync code must not wait")
    try:
        raise original  # outside the handler, so that its context stays as it was
    finally:
        del original  # an exception whose frames hold it would live too long


async def run_in_thread(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call a sync function in a thread, so that it does not block the event loop."""
    import asyncio  # lazy: async callers have loaded it

    def call() -> T:
        try:
            return function(*args, **kwargs)
        except StopIteration as error:  # no future accepts it: the caller would wait forever
            raise RuntimeError("function raised StopIteration") from error

    return await asyncio.to_thread(call)


def _find_stop_iteration(error: RuntimeError) -> StopIteration | None:
    """Return the exception in whose place Python raised this one: a coroutine of ours cannot raise `StopIteration`."""
    cause, last = error.__cause__, error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if not isinstance(cause, StopIteration) or str(error) != "coroutine raised StopIteration" or last is None:
        return None
    return cause if str(last.tb_frame.f_globals.get("__name__")).startswith("mulligan.capture.") else None
