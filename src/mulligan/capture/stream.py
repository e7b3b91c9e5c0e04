"""Streams: of a generator function, or of a model's tokens. Recovered until the first item, recorded until the last.

After the first item nothing is attempted again: a second stream appended to the first would repeat what was said.
Events of a model before its first token, such as the start of a message, are buffered until then.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from mulligan.capture.call import STREAM, CallExecution, prepare_call
from mulligan.capture.player import aexecute_plan, execute_plan
from mulligan.capture.run import ActiveRun, CurrentRun, Raised, current_run
from mulligan.capture.wrapped_function import WrappedFunction
from mulligan.core.conversation import get_field

_START_EVENTS = frozenset(
    {
        "message_start", "ping", "content_block_start", "response.created", "response.in_progress", "response.queued",
        "response.output_item.added", "response.content_part.added",
    }
)  # fmt: skip
"""Events without content."""
_CONTENT_FIELDS = ("content", "tool_calls", "function_call", "reasoning_content", "refusal")
MAX_BUFFERED_EVENTS = 200
"""Events that are buffered at most before the first token."""


def is_token(event: Any) -> bool:
    """Return whether an event has content. In doubt it has: then nothing is said twice."""
    kind = get_field(event, "type")
    if isinstance(kind, str):
        return kind not in _START_EVENTS
    choices = get_field(event, "choices")
    if isinstance(choices, list | tuple):
        if not choices:
            return False
        delta = get_field(choices[0], "delta")
        return any(get_field(delta, name) for name in _CONTENT_FIELDS) or bool(get_field(choices[0], "finish_reason"))
    return True


class StreamEventError(Exception):
    """An event that says that the answer failed, where a client passes it on and raises nothing."""

    def __init__(self, event: Any) -> None:
        error = get_field(get_field(event, "response"), "error") or event
        super().__init__(str(get_field(error, "message") or "The answer failed."))
        self.code = get_field(error, "code")


def _check_event(event: Any) -> bool:
    """Return whether an event is a token. Raises `StreamEventError` for OpenAI's events of a failed response."""
    kind = get_field(event, "type")
    if kind == "response.failed" or (kind == "error" and isinstance(get_field(event, "message"), str)):
        raise StreamEventError(event)
    return is_token(event)


class StreamState:
    """A stream while it is read, and the call that returned it.

    Its run is the current one only while the stream works: what the reader does between two items is not part of it.
    While mulligan is off there is no run and no call, and the items pass through.
    """

    def __init__(
        self,
        wrapped: WrappedFunction,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        is_first: Callable[[Any], bool] = lambda item: True,
    ) -> None:
        self.source: Any = None
        """The function's own stream."""
        self.manager: Any = None
        """The context manager that returned it, if any."""
        self.buffer: deque[Any] = deque()
        self.value: Any = None
        """What a generator returned."""
        self.is_open = True
        self._is_first = is_first
        """Whether an item is the first with content."""
        self._wrapped, self._args, self._kwargs = wrapped, args, kwargs
        self._items = 0
        self._has_exited = False
        self._call: CallExecution | None = None
        self._capture = wrapped.get_capture()
        self._run = current_run(self._capture) if self._capture is not None else None
        self._own_run: ActiveRun | None = None
        if self._capture is not None and self._run is None:
            rules = wrapped.rules(self._capture, None)
            self._run = self._own_run = ActiveRun(rules.capture, options=rules.run_options).start()

    def run_scope(self) -> contextlib.nullcontext[None] | CurrentRun:
        return contextlib.nullcontext() if self._run is None else self._run.as_current()

    # Until the first item

    def open(self) -> Any:
        """Call the function. Return `STREAM` when its first item is buffered, or an answer that is no stream."""
        with self.run_scope():
            call = self._prepare(self._begin)
            return self._begin(self._call_plainly()) if call is None else execute_plan(call)

    async def aopen(self) -> Any:
        with self.run_scope():
            call = self._prepare(self._abegin)
            return await (self._abegin(self._call_plainly()) if call is None else aexecute_plan(call))

    def _prepare(self, open_stream: Callable[[Any], Any]) -> CallExecution | None:
        if self._capture is not None and self._run is not None:
            self._call = prepare_call(
                self._wrapped, self._capture, self._run, self._args, self._kwargs, open_stream=open_stream
            )
        return self._call

    def _call_plainly(self) -> Any:
        return self._wrapped.function(*self._args, **self._kwargs)

    def _begin(self, source: Any) -> Any:
        if hasattr(source, "__iter__") or not hasattr(source, "__enter__"):
            return self._fill(source)
        self.manager, entered = source, source.__enter__()
        try:
            return self._fill(entered)
        except BaseException:
            source.__exit__(*sys.exc_info())
            raise

    async def _abegin(self, answer: Any) -> Any:
        source = await answer if inspect.isawaitable(answer) else answer
        if hasattr(source, "__aiter__") or not hasattr(source, "__aenter__"):
            return await self._afill(source)
        self.manager, entered = source, await source.__aenter__()
        try:
            return await self._afill(entered)
        except BaseException:
            await source.__aexit__(*sys.exc_info())
            raise

    def _fill(self, source: Any) -> Any:
        self.buffer.clear()
        if not hasattr(source, "__iter__") or isinstance(source, str | list | tuple | dict):
            return source  # no stream after all
        self.source = source if hasattr(source, "__next__") else iter(source)
        try:
            while len(self.buffer) < MAX_BUFFERED_EVENTS:  # one by one: leaving a loop would close some streams
                self.buffer.append(next(self.source))
                if self._is_first(self.buffer[-1]):
                    break
        except StopIteration as stop:
            self.end_source(stop)
        return STREAM

    async def _afill(self, source: Any) -> Any:
        self.buffer.clear()
        if not hasattr(source, "__aiter__"):
            return source  # no stream after all
        self.source = source if hasattr(source, "__anext__") else aiter(source)
        try:
            while len(self.buffer) < MAX_BUFFERED_EVENTS:
                self.buffer.append(await anext(self.source))
                if self._is_first(self.buffer[-1]):
                    break
        except StopAsyncIteration as stop:
            self.end_source(stop)
        return STREAM

    # From the first item to the last

    def items_of(self, answer: Any) -> list[Any]:
        """Return the items of an answer that is no stream: those of a list, or else the answer as one item."""
        self.is_open = False
        return list(answer) if isinstance(answer, list | tuple | Iterator) else [answer]

    def take(self) -> Any:
        """Return the next buffered item."""
        self._items += 1
        return self.buffer.popleft()

    def end_source(self, stop: StopIteration | StopAsyncIteration) -> None:
        self.is_open = False
        self.value = getattr(stop, "value", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None = None) -> None:
        """Record the end of the stream, once."""
        if self._has_exited:
            return
        self._has_exited = True
        if self._call is not None and self._call.is_streaming:
            self._call.end_stream(self._items, error)
        if self._own_run is not None:
            # The attempt records an interruption.
            self._own_run.finish(error if isinstance(error, Exception) else None)


def streaming(wrapped: WrappedFunction) -> Callable[..., Generator[Any, Any, Any]]:
    """Return a generator function whose items are those of the wrapped one, as one call."""

    def stream(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with StreamState(wrapped, args, kwargs) as state:
            answer = state.open()
            for item in () if answer is STREAM else state.items_of(answer):  # noqa: UP028 - as in its async twin
                yield item
            while state.is_open:
                try:
                    try:
                        value = yield state.take()
                    except GeneratorExit:
                        with state.run_scope():
                            state.source.close()
                        raise
                    except BaseException as thrown:  # noqa: BLE001 - thrown into the stream, which may handle it
                        with state.run_scope():
                            state.buffer.append(state.source.throw(thrown))
                    else:
                        with state.run_scope():
                            state.buffer.append(state.source.send(value))
                except StopIteration as stop:
                    state.end_source(stop)
        return state.value

    return stream


def astreaming(wrapped: WrappedFunction) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Return an async generator function whose items are those of the wrapped one, as one call."""

    async def stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        with StreamState(wrapped, args, kwargs) as state:
            answer = await state.aopen()
            for item in () if answer is STREAM else state.items_of(answer):
                yield item
            while state.is_open:
                try:
                    try:
                        value = yield state.take()
                    except GeneratorExit:
                        with state.run_scope():
                            await state.source.aclose()
                        raise
                    except BaseException as thrown:  # noqa: BLE001 - thrown into the stream, which may handle it
                        with state.run_scope():
                            state.buffer.append(await state.source.athrow(thrown))
                    else:
                        with state.run_scope():
                            state.buffer.append(await state.source.asend(value))
                except StopAsyncIteration as stop:
                    state.end_source(stop)

    return stream


class ModelStream:
    """The stream that the caller of a model reads: the same events, and all other attributes of the client's stream."""

    def __init__(self, state: StreamState) -> None:
        self._state = state

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        state = self._state
        if state.buffer:
            return state.take()
        if not state.is_open:
            self._end(None)
            raise StopIteration
        try:
            with state.run_scope():
                state.buffer.append(next(state.source))
        except BaseException as error:
            self._end(None if isinstance(error, StopIteration) else error)
            raise
        return self._pass_on()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        state = self._state
        if state.buffer:
            return state.take()
        if not state.is_open:
            self._end(None)
            raise StopAsyncIteration
        try:
            with state.run_scope():
                state.buffer.append(await anext(state.source))
        except BaseException as error:
            self._end(None if isinstance(error, StopAsyncIteration) else error)
            raise
        return self._pass_on()

    def _pass_on(self) -> Any:
        try:
            _check_event(self._state.buffer[-1])
        except StreamEventError as error:
            self._record_end(error)  # the event itself reaches the caller
        return self._state.take()

    def _end(self, error: BaseException | None) -> None:
        self._state.is_open = False
        self._record_end(error)

    def _record_end(self, error: BaseException | None) -> None:
        self._state.__exit__(None if error is None else type(error), error)

    def close(self) -> Any:
        """End the stream, read or not. Return what the client's own `close` returns."""
        self._end(None)
        close = get_field(self._state.source, "close")
        return close() if callable(close) else None

    async def aclose(self) -> None:
        self._end(None)
        close = get_field(self._state.source, "aclose") or get_field(self._state.source, "close")
        if callable(close) and inspect.isawaitable(answer := close()):
            await answer

    def __enter__(self) -> ModelStream:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def __aenter__(self) -> ModelStream:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        """Record a stream that was discarded before its end as closed."""
        with contextlib.suppress(Exception):  # at the end of the process there may be no recorder
            self._record_end(None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state.source, name)


def open_model_stream(wrapped: WrappedFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make a model call that returns a stream. Return the stream once its first token is there."""
    if wrapped.get_capture() is None:
        return wrapped.function(*args, **kwargs)
    state = StreamState(wrapped, args, kwargs, _check_event)
    try:
        return _to_model_stream(state, state.open())
    except BaseException as error:  # noqa: BLE001 - recorded, and mostly raised again
        return _end_unopened(state, error)


async def aopen_model_stream(wrapped: WrappedFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if wrapped.get_capture() is None:
        return await wrapped.function(*args, **kwargs)
    state = StreamState(wrapped, args, kwargs, _check_event)
    try:
        return _to_model_stream(state, await state.aopen())
    except BaseException as error:  # noqa: BLE001 - recorded, and mostly raised again
        return _end_unopened(state, error)


def _to_model_stream(state: StreamState, answer: Any) -> Any:
    if answer is STREAM:
        return ModelStream(state)
    state.__exit__(None, None)
    return answer


def _end_unopened(state: StreamState, error: BaseException) -> ModelStream:
    """Raise the error again; but a stream that itself says that it failed is returned, as without us."""
    state.__exit__(type(error), error)
    if isinstance(error, StreamEventError):
        return ModelStream(state)
    raise error


class StreamOpener:
    """A call that opens its stream on entry: `with client.messages.stream(...) as stream`.

    The reader gets the client's own stream, which reads its events from ours.
    """

    def __init__(self, wrapped: WrappedFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._call = wrapped, args, kwargs
        self._stream: ModelStream | None = None

    def __enter__(self) -> Any:
        return self._enter(open_model_stream(*self._call))

    async def __aenter__(self) -> Any:
        return self._enter(await aopen_model_stream(*self._call))

    def _enter(self, stream: Any) -> Any:
        if not isinstance(stream, ModelStream):
            return stream  # another answer
        self._stream, state = stream, stream._state
        client_stream = state.source
        events = get_field(client_stream, "_iterator")
        if events is None:
            return stream
        # Everything the client's stream can do, from its texts to its final message, reads this iterator.
        state.source, client_stream._iterator = events, stream
        return client_stream

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._stream is not None:
            self._leave(self._stream, error)
            self._stream._state.manager.__exit__(kind, error, trace)

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._stream is not None:
            self._leave(self._stream, error)
            await self._stream._state.manager.__aexit__(kind, error, trace)

    def _leave(self, stream: ModelStream, error: BaseException | None) -> None:
        """End the stream. An error in the reader's own code is not the stream's failure."""
        stream._end(None if isinstance(error, Exception) else error)
