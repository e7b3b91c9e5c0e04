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

from mulligan.capture.call_execution import STREAM
from mulligan.capture.player import aexecute_plan, execute_plan
from mulligan.capture.stream import Flow
from mulligan.core.conversation import get_field

if TYPE_CHECKING:
    from mulligan.capture.wrap import WrappedFunction

_BEFORE = frozenset(
    {
        "message_start", "ping", "content_block_start", "response.created", "response.in_progress", "response.queued",
        "response.output_item.added", "response.content_part.added",
    }
)  # fmt: skip
"""Events that say that something begins, and nothing of what it says."""
_TELLING = ("content", "tool_calls", "function_call", "reasoning_content", "refusal")
HELD = 200
"""Events that are held back at most while no token has come."""


def is_asked_for(kwargs: Mapping[str, Any]) -> bool:
    return kwargs.get("stream") is True


def is_token(event: Any) -> bool:
    """Whether somebody who reads this event has been told something. In doubt yes: then nothing is said twice."""
    sort = get_field(event, "type")
    if isinstance(sort, str):
        return sort not in _BEFORE
    choices = get_field(event, "choices")
    if isinstance(choices, list | tuple):
        if not choices:
            return False
        delta = get_field(choices[0], "delta")
        return any(get_field(delta, name) for name in _TELLING) or bool(get_field(choices[0], "finish_reason"))
    return True


class SaidError(Exception):
    """An event of a stream that says that the answer has failed, where a client passes it on and raises nothing."""

    def __init__(self, event: Any) -> None:
        said = get_field(get_field(event, "response"), "error") or event
        super().__init__(str(get_field(said, "message") or "The answer failed."))
        self.code = get_field(said, "code")


def _refuse_failed(event: Any) -> None:
    """Raises where an event of OpenAI's responses says that there will be no answer."""
    if get_field(event, "type") == "response.failed" or (
        get_field(event, "type") == "error" and isinstance(get_field(event, "message"), str)
    ):
        raise SaidError(event)


class ModelStream:
    """The stream as the caller reads it: the same items, and whatever else the client's own stream can do.

    One class for both ways to iterate: it does nothing but pass on.
    """

    def __init__(self, flow: Flow, held: deque[Any]) -> None:
        self._flow = flow
        self._held = held
        self._is_over = self._is_told = False

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
        return self._passed(item)

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
        return self._passed(item)

    def _take(self) -> Any:
        return self._flow.counted(self._held.popleft())

    def _passed(self, item: Any) -> Any:
        try:
            _refuse_failed(item)
        except SaidError as error:
            self._tell(error)  # the event itself is the caller's, as without us
        return self._flow.counted(item)

    def _end(self, error: BaseException | None) -> None:
        self._is_over = True
        self._tell(error)

    def _tell(self, error: BaseException | None) -> None:
        if not self._is_told:
            self._is_told = True
            self._flow.__exit__(None if error is None else type(error), error, None)

    @property
    def source(self) -> Any:
        """The client's own stream, or what it reads itself."""
        return self._flow.source

    @source.setter
    def source(self, source: Any) -> None:
        self._flow.source = source

    @property
    def manager(self) -> Any:
        return self._flow.manager

    def left(self, error: BaseException | None) -> None:
        """The reader is done with it: what went wrong in the reader's own code is not the stream's failure."""
        self._end(None if isinstance(error, Exception) else error)

    def close(self) -> Any:
        """Ends the stream, whether it was read or not; what the client's own answers is passed on."""
        self._end(None)
        closing = get_field(self._flow.source, "close")
        return closing() if callable(closing) else None

    async def aclose(self) -> None:
        self._end(None)
        closing = get_field(self._flow.source, "aclose") or get_field(self._flow.source, "close")
        if callable(closing) and inspect.isawaitable(done := closing()):
            await done

    def __enter__(self) -> ModelStream:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def __aenter__(self) -> ModelStream:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        """Thrown away before its end, as by a loop that was left, it is as good as closed."""
        try:
            self._tell(None)
        except Exception:  # noqa: BLE001 - at the end of the process there may be nobody left to tell
            return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flow.source, name)


def _opened(flow: Flow, held: deque[Any]) -> Callable[[Any], Any]:
    def first(source: Any) -> Any:
        held.clear()
        if hasattr(source, "__iter__") or not hasattr(source, "__enter__"):
            return begun(source)
        flow.manager, entered = source, source.__enter__()
        try:
            return begun(entered)
        except BaseException:
            source.__exit__(*sys.exc_info())
            raise

    def begun(source: Any) -> Any:
        if not hasattr(source, "__next__") and not hasattr(source, "__iter__"):
            return source  # no stream after all
        flow.source = source if hasattr(source, "__next__") else iter(source)
        if isinstance(source, str | list | tuple | dict):
            return source
        # One by one, and not by a loop that is left: that would close some streams.
        while len(held) < HELD and (item := next(flow.source, STREAM)) is not STREAM:
            held.append(item)
            _refuse_failed(item)
            if is_token(item):
                break
        return STREAM

    return first


def _aopened(flow: Flow, held: deque[Any]) -> Callable[[Any], Any]:
    async def first(answer: Any) -> Any:
        source = await answer
        held.clear()
        if hasattr(source, "__aiter__") or not hasattr(source, "__aenter__"):
            return await begun(source)
        flow.manager, entered = source, await source.__aenter__()
        try:
            return await begun(entered)
        except BaseException:
            await source.__aexit__(*sys.exc_info())
            raise

    async def begun(source: Any) -> Any:
        if not hasattr(source, "__anext__") and not hasattr(source, "__aiter__"):
            return source  # no stream after all
        flow.source = source if hasattr(source, "__anext__") else aiter(source)
        while len(held) < HELD and (item := await anext(flow.source, STREAM)) is not STREAM:
            held.append(item)
            _refuse_failed(item)
            if is_token(item):
                break
        return STREAM

    return first


def opened(wrapped: WrappedFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Makes a call that answers with a stream, and gives the stream once its first token is there."""
    flow, held = Flow(wrapped, args, kwargs), deque[Any]()
    flow.__enter__()
    try:
        with flow.inside():
            call = flow.call(_opened(flow, held))
            result = flow.plainly() if call is None else execute_plan(call)
    except SaidError as error:
        return _ended(flow, held, error)
    except BaseException:
        flow.__exit__(*sys.exc_info())
        raise
    return _given(flow, held, result)


async def aopened(wrapped: WrappedFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The same for an async function."""
    flow, held = Flow(wrapped, args, kwargs), deque[Any]()
    flow.__enter__()
    try:
        with flow.inside():
            call = flow.call(_aopened(flow, held))
            result = await (flow.plainly() if call is None else aexecute_plan(call))
    except SaidError as error:
        return _ended(flow, held, error)
    except BaseException:
        flow.__exit__(*sys.exc_info())
        raise
    return _given(flow, held, result)


def _given(flow: Flow, held: deque[Any], result: Any) -> Any:
    if result is STREAM:
        return ModelStream(flow, held)
    flow.__exit__(None, None, None)
    return result


def _ended(flow: Flow, held: deque[Any], error: SaidError) -> ModelStream:
    """The stream that says itself that it failed, as without us: nothing was raised, so nothing is."""
    tokens = ModelStream(flow, held)
    tokens._tell(error)
    return tokens


class Opening:
    """A call that answers with a stream where it is entered: `with client.messages.stream(...) as stream`.

    What it gives is the client's own stream, with all that one can do; only where its events come from is ours.
    """

    def __init__(self, wrapped: WrappedFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._given = wrapped, args, kwargs
        self._tokens: Any = None

    def __enter__(self) -> Any:
        return self._entered(opened(*self._given))

    async def __aenter__(self) -> Any:
        return self._entered(await aopened(*self._given))

    def _entered(self, tokens: Any) -> Any:
        if not isinstance(tokens, ModelStream):
            return tokens  # what answered in its place
        self._tokens = tokens
        stream = tokens.source
        inside = get_field(stream, "_iterator")
        if inside is None:
            return tokens
        # Everything the stream can do, from its texts to its final message, reads what it reads itself from here.
        tokens.source, stream._iterator = inside, tokens
        return stream

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._tokens is not None:
            self._tokens.left(error)
            self._tokens.manager.__exit__(kind, error, trace)

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._tokens is not None:
            self._tokens.left(error)
            await self._tokens.manager.__aexit__(kind, error, trace)
