"""Plays the moves of a call, sync and async."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from inspect import iscoroutinefunction
from typing import Any, NamedTuple, Protocol

from mulligan.capture.context import CaptureContext
from mulligan.recover.plan import BackoffMove, QueryMove


class Invocation(NamedTuple):
    """Move that makes an attempt: call this function."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


Reply = tuple[Any, Exception | None]
"""What a move returned, and what it raised."""
CallMoves = Generator[Invocation | BackoffMove | QueryMove | None, Reply | None, None]
"""The moves of a call, then None. Each receives its reply."""


class PlannedCall(Protocol):
    """A call as the players see it."""

    @property
    def capture(self) -> CaptureContext: ...

    def moves(self) -> CallMoves: ...

    def end_cancelled(self) -> None:
        """Record that the call was interrupted."""

    def end(self) -> Any:
        """Return the result of the call, or raise its exception."""


def execute_plan(call: PlannedCall) -> Any:
    """Make a call, and recover it if it fails, in this thread."""
    moves = call.moves()
    reply: Reply | None = None
    try:
        while (move := moves.send(reply)) is not None:
            try:
                match move:
                    case Invocation(function, args, kwargs):
                        reply = function(*args, **kwargs), None
                    case BackoffMove():
                        call.capture.sleep(move.recovery.backoff_seconds)
                        reply = None
                    case QueryMove():
                        reply = _answer_query(move), None
            except Exception as error:  # noqa: BLE001 - any error of the call is classified and recovered
                reply = None, error
    except BaseException:
        call.end_cancelled()
        raise
    return call.end()


async def aexecute_plan(call: PlannedCall) -> Any:
    """Make a call, and recover it if it fails, in this task."""
    moves = call.moves()
    reply: Reply | None = None
    try:
        while (move := moves.send(reply)) is not None:
            try:
                match move:
                    case Invocation(function, args, kwargs):
                        reply = await function(*args, **kwargs), None
                    case BackoffMove():
                        await call.capture.async_sleep(move.recovery.backoff_seconds)
                        reply = None
                    case QueryMove():
                        reply = await _aanswer_query(move), None
            except Exception as error:  # noqa: BLE001 - any error of the call is classified and recovered
                reply = None, error
    except BaseException:
        call.end_cancelled()
        raise
    return call.end()


def _answer_query(move: QueryMove) -> Any:
    return move.query(*move.arguments)


async def _aanswer_query(move: QueryMove) -> Any:
    if iscoroutinefunction(move.query):
        return await move.query(*move.arguments)
    import asyncio  # lazy: async callers have loaded it

    return await asyncio.to_thread(move.query, *move.arguments)
