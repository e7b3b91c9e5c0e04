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
from typing import TYPE_CHECKING, Any, Self

from mulligan.capture.attempt import CallForm
from mulligan.capture.attempt_judge import STREAM
from mulligan.capture.call import prepare_call
from mulligan.capture.call_execution import CallExecution
from mulligan.capture.call_scope import ContextValue, Raised
from mulligan.capture.player import aexecute_plan, execute_plan, run_sync
from mulligan.capture.propagation import lost_run_watch
from mulligan.capture.run import ActiveRun, current_run
from mulligan.capture.wrapped_function import WrappedFunction
from mulligan.core.conversation import get_field
from mulligan.core.token_usage import StreamUsage

if TYPE_CHECKING:
    from mulligan.capture.message_recording import StreamAnswer

_START_EVENTS = frozenset(
    {
        "message_start", "ping", "content_block_start", "response.created", "response.in_progress", "response.queued",
        "response.output_item.added", "response.content_part.added",
    }
)  # fmt: skip
"""Events without content."""
_CONTENT_FIELDS = ("content", "tool_calls", "function_call", "reasoning_content", "refusal")


class StreamEventError(Exception):
    """An event that says that the answer failed, where a client passes it on and raises nothing."""

    def __init__(self, event: Any) -> None:
        error = get_field(get_field(event, "response"), "error") or event
        super().__init__(str(get_field(error, "message") or "The answer failed."))
        self.code = get_field(error, "code")


def _check_event(event: Any) -> bool:
    """Return whether an event has content. Unknown events count as content: a retry must not repeat any text.

    Raises `StreamEventError` for OpenAI's events of a failed response.
    """
    kind, choices = get_field(event, "type"), get_field(event, "choices")
    if kind == "response.failed" or (kind == "error" and isinstance(get_field(event, "message"), str)):
        raise StreamEventError(event)
    if isinstance(kind, str):
        return kind not in _START_EVENTS
    if not isinstance(choices, list | tuple):
        return True
    return any(
        get_field(get_field(choices[0], "delta"), name) or get_field(choices[0], "finish_reason")
        for name in (_CONTENT_FIELDS if choices else ())
    )


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
        self._is_async = wrapped.is_async
        self._items = 0
        self._usage = StreamUsage() if wrapped.options.type == "model" else None
        self._answer: StreamAnswer | None = None
        self._has_exited = False
        self._call: CallExecution | None = None
        self._capture = wrapped.get_capture()
        self._run = current_run(self._capture) if self._capture is not None else None
        self._own_run: ActiveRun | None = None
        if self._capture is not None and self._run is None:
            if lost_run_watch.is_active and self._capture.current_scope.get() is None:
                lost_run_watch.check(wrapped.name)
            rules = wrapped.rules(self._capture, None)
            self._run = self._own_run = ActiveRun(rules.capture, options=rules.run_options).start()

    def run_scope(self) -> contextlib.nullcontext[None] | ContextValue:
        return contextlib.nullcontext() if self._run is None else self._run.as_current()

    # Until the first item

    def open(self) -> Any:
        return run_sync(self.aopen())

    async def aopen(self) -> Any:
        """Call the function. Return `STREAM` when its first item is buffered, or an answer that is no stream."""
        with self.run_scope():
            if self._capture is None or self._run is None:
                return await self._begin(self._wrapped.function(*self._args, **self._kwargs))
            self._call = call = prepare_call(
                self._wrapped,
                self._capture,
                self._run,
                self._args,
                self._kwargs,
                CallForm(open_stream=self._begin if self._is_async else lambda source: run_sync(self._begin(source))),
            )
            self._answer = call.record.model.collect_stream()
            return await aexecute_plan(call) if self._is_async else execute_plan(call)

    async def _begin(self, answer: Any) -> Any:
        source = await self._settle(answer)
        enter, leave, iterate = (
            ("__aenter__", "__aexit__", "__aiter__") if self._is_async else ("__enter__", "__exit__", "__iter__")
        )
        if hasattr(source, iterate) or not hasattr(source, enter):
            return await self._fill(source, iterate)
        self.manager, entered = source, await self._settle(getattr(source, enter)())
        try:
            return await self._fill(entered, iterate)
        except BaseException:
            await self._settle(getattr(source, leave)(*sys.exc_info()))
            raise

    async def _settle(self, answer: Any) -> Any:
        return await answer if self._is_async and inspect.isawaitable(answer) else answer

    async def _fill(self, source: Any, iterate: str) -> Any:
        self.buffer.clear()
        if not hasattr(source, iterate) or isinstance(source, str | list | tuple | dict):
            return source  # no stream after all
        is_iterator = hasattr(source, "__anext__" if self._is_async else "__next__")
        self.source = source if is_iterator else getattr(source, iterate)()
        with contextlib.suppress(StopAsyncIteration):
            # Events that are buffered at most before the first token.
            while len(self.buffer) < 200:  # one by one: leaving a loop would close some streams
                self.buffer.append(await self.next_item())
                if self._is_first(self.buffer[-1]):
                    break
        return STREAM

    async def next_item(self) -> Any:
        """Return the next item of the source. Raises `StopAsyncIteration` at the end, in a sync stream too."""
        try:
            return await anext(self.source) if self._is_async else next(self.source)
        except (StopIteration, StopAsyncIteration) as stop:
            self.end_source(stop)
        raise StopAsyncIteration

    # From the first item to the last

    def items_of(self, answer: Any) -> list[Any]:
        """Return the items of an answer that is no stream: those of a list, or else the answer as one item."""
        self.is_open = False
        return list(answer) if isinstance(answer, list | tuple | Iterator) else [answer]

    def take(self) -> Any:
        """Return the next buffered item."""
        self._items += 1
        item = self.buffer.popleft()
        if self._usage is not None and self._capture is not None:
            with self._capture.guard("Reading the events of a stream"):
                self._usage.add(item)
                if self._answer is not None:
                    self._answer.add(item)
        return item

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
            self._call.record.model.stream_usage = None if self._usage is None else self._usage.usage
            self._call.record.model.stream_answer = self._answer
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
        try:
            return run_sync(self._next())
        except StopAsyncIteration:
            value, self._state.value = self._state.value, None
        raise StopIteration(value) if value is not None else StopIteration

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return await self._next()

    async def _next(self) -> Any:
        state = self._state
        if state.buffer:
            return state.take()
        if not state.is_open:
            self._end(None)
            raise StopAsyncIteration
        try:
            with state.run_scope():
                state.buffer.append(await state.next_item())
        except BaseException as error:
            self._end(None if isinstance(error, StopAsyncIteration) else error)
            raise
        try:
            _check_event(state.buffer[-1])
        except StreamEventError as error:
            self._record_end(error)  # the event itself reaches the caller
        return state.take()

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
    return run_sync(aopen_model_stream(wrapped, args, kwargs))


async def aopen_model_stream(wrapped: WrappedFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make a model call that returns a stream. Return the stream once its first token has arrived."""
    if wrapped.get_capture() is None:
        answer = wrapped.function(*args, **kwargs)
        return await answer if wrapped.is_async else answer
    state = StreamState(wrapped, args, kwargs, _check_event)
    try:
        answer = await state.aopen() if wrapped.is_async else state.open()
    except BaseException as error:
        state.__exit__(type(error), error)
        if isinstance(error, StreamEventError):
            return ModelStream(state)  # the caller reads the failure event from the stream, as without mulligan
        raise
    if answer is STREAM:
        return ModelStream(state)
    state.__exit__(None, None)
    return answer


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
