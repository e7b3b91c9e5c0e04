"""A stream that a model's call answers with: recovered until its first token, recorded until its last.

After the first token nothing is tried again: a second stream spliced onto the first would say things twice. What comes
before it, such as an event that says that a message begins, is held back until then.
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mulligan.capture.drive import STREAM, aplay, play
from mulligan.capture.stream import Flow
from mulligan.conversation import field

if TYPE_CHECKING:
    from mulligan.capture.wrap import Wrapped

_TELLING = ("content", "tool_calls", "function_call", "reasoning_content", "refusal")
HELD = 200
"""Events that are held back at most while no token has come."""


def is_asked_for(kwargs: Mapping[str, Any]) -> bool:
    return kwargs.get("stream") is True


def is_token(event: Any) -> bool:
    """Whether somebody who reads this event has been told something. In doubt yes: then nothing is said twice."""
    sort = field(event, "type")
    if isinstance(sort, str):
        if sort in ("message_start", "ping", "content_block_start") or sort.startswith("response.created"):
            return False
        return not (sort.endswith((".in_progress", ".queued")) or sort == "response.output_item.added")
    choices = field(event, "choices")
    if isinstance(choices, list | tuple):
        if not choices:
            return False
        delta = field(choices[0], "delta")
        told = any(
            field(delta, name) for name in ("content", "tool_calls", "function_call", "reasoning_content", "refusal")
        )
        return told or bool(field(choices[0], "finish_reason"))
    return True


class Tokens:
    """The stream as the caller reads it: the same items, and whatever else the client's own stream can do.

    One class for both ways to iterate: it does nothing but pass on.
    """

    def __init__(self, flow: Flow, held: deque[Any]) -> None:
        self._flow = flow
        self._held = held
        self._is_over = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._held:
            return self._take()
        if self._is_over:
            raise StopIteration
        try:
            with self._flow.inside():
                item = next(self._flow.source)
        except BaseException as error:
            self._end(None if isinstance(error, StopIteration) else error)
            raise
        return self._flow.counted(item)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self._held:
            return self._take()
        if self._is_over:
            raise StopAsyncIteration
        try:
            with self._flow.inside():
                item = await anext(self._flow.source)
        except BaseException as error:
            self._end(None if isinstance(error, StopAsyncIteration) else error)
            raise
        return self._flow.counted(item)

    def _take(self) -> Any:
        return self._flow.counted(self._held.popleft())

    def _end(self, error: BaseException | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._flow.__exit__(None if error is None else type(error), error, None)

    def close(self) -> Any:
        """Ends the stream, whether it was read or not; what the client's own answers is passed on."""
        self._end(None)
        closing = field(self._flow.source, "close")
        return closing() if callable(closing) else None

    async def aclose(self) -> None:
        self._end(None)
        closing = field(self._flow.source, "aclose") or field(self._flow.source, "close")
        if callable(closing) and inspect.isawaitable(done := closing()):
            await done

    def __enter__(self) -> Tokens:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def __aenter__(self) -> Tokens:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flow.source, name)


def _opened(flow: Flow, held: deque[Any]) -> Callable[[Any], Any]:
    def first(source: Any) -> Any:
        held.clear()
        if not hasattr(source, "__next__") and not hasattr(source, "__iter__"):
            return source  # no stream after all
        flow.source = source if hasattr(source, "__next__") else iter(source)
        if isinstance(source, str | list | tuple | dict):
            return source
        for item in flow.source:
            held.append(item)
            if is_token(item) or len(held) >= HELD:
                break
        return STREAM

    return first


def _aopened(flow: Flow, held: deque[Any]) -> Callable[[Any], Any]:
    async def first(answer: Any) -> Any:
        source = await answer
        held.clear()
        if not hasattr(source, "__anext__") and not hasattr(source, "__aiter__"):
            return source  # no stream after all
        flow.source = source if hasattr(source, "__anext__") else aiter(source)
        async for item in flow.source:
            held.append(item)
            if is_token(item) or len(held) >= HELD:
                break
        return STREAM

    return first


def opened(wrapped: Wrapped, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Makes a call that answers with a stream, and gives the stream once its first token is there."""
    flow, held = Flow(wrapped, args, kwargs), deque[Any]()
    flow.__enter__()
    try:
        with flow.inside():
            call = flow.call(_opened(flow, held))
            result = flow.plainly() if call is None else play(call)
    except BaseException:
        flow.__exit__(*sys.exc_info())
        raise
    return _given(flow, held, result)


async def aopened(wrapped: Wrapped, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The same for an async function."""
    flow, held = Flow(wrapped, args, kwargs), deque[Any]()
    flow.__enter__()
    try:
        with flow.inside():
            call = flow.call(_aopened(flow, held))
            result = await (flow.plainly() if call is None else aplay(call))
    except BaseException:
        flow.__exit__(*sys.exc_info())
        raise
    return _given(flow, held, result)


def _given(flow: Flow, held: deque[Any], result: Any) -> Any:
    if result is STREAM:
        return Tokens(flow, held)
    flow.__exit__(None, None, None)
    return result
