"""Functions that answer item by item: recovered until the first item, recorded until the last.

After the first item nothing is tried again: a second stream spliced onto the first would say things twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mulligan.capture.call_execution import STREAM, Attempts
from mulligan.capture.player import aexecute_plan, execute_plan
from mulligan.capture.run import ActiveRun, CurrentRun, Raised

if TYPE_CHECKING:
    from mulligan.capture.wrap import WrappedFunction


class Flow:
    """A stream while it is read: where it stands, and the call it is the answer to.

    Its run is the current one only while the stream is working: what the reader does between two items is not part
    of it. Where everything passes through there is no run and no call, and the items come all the same.
    """

    def __init__(self, wrapped: WrappedFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.kit = wrapped.source()
        self.source: Any = None
        self.manager: Any = None
        """What was entered to have it, and must be left."""
        self.item: Any = None
        self.value: Any = None
        self.is_open = True
        self._wrapped = wrapped
        self._args = args
        self._kwargs = kwargs
        self._items = 0
        self._call: Attempts | None = None
        self._run = self.kit.current() if self.kit is not None else None
        self._own: ActiveRun | None = None

    def __enter__(self) -> Self:
        if self.kit is not None and self._run is None:
            rules = self._wrapped.rules(self.kit, None)
            self._run = self._own = ActiveRun(rules.kit, limits=rules.limits).start()
        return self

    def call(self, first: Callable[[Any], Any]) -> Attempts | None:
        """The call that ends with the first item; None where the function is to be called as it is."""
        if self.kit is not None and self._run is not None:
            self._call = self._wrapped.prepare_call(self.kit, self._run, self._args, self._kwargs, open_stream=first)
        return self._call

    def plainly(self) -> Any:
        return self._wrapped.function(*self._args, **self._kwargs)

    def inside(self) -> contextlib.nullcontext[None] | CurrentRun:
        return contextlib.nullcontext() if self._run is None else self._run.as_current()

    def next(self) -> Any:
        self._items += 1
        return self.item

    def instead(self, answer: Any) -> list[Any]:
        """The items of what answered in the stream's place: of a text, or of one thing, that is all there is."""
        self.is_open = False
        return list(answer) if isinstance(answer, list | tuple | Iterator) else [answer]

    def counted(self, item: Any) -> Any:
        self._items += 1
        return item

    def done(self, stop: StopIteration | StopAsyncIteration) -> None:
        self.is_open = False
        self.value = getattr(stop, "value", None)

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        call = self._call
        if call is not None and call.is_streaming:
            if error is None:
                call.streamed(self._items)
            elif isinstance(error, Exception):
                call.broke_off(error)
            else:
                call.cancelled()
        if self._own is not None:
            self._own.finish(error if isinstance(error, Exception) else None)  # else its step says what happened


def streaming(wrapped: WrappedFunction) -> Callable[..., Generator[Any, Any, Any]]:
    """A generator function whose items are those of the wrapped one, as one call."""

    def stream(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        def first(source: Any) -> object:
            flow.source = source
            try:
                flow.item = next(source)
            except StopIteration as stop:
                flow.done(stop)
            return STREAM

        items: list[Any] = []
        with Flow(wrapped, args, kwargs) as flow:
            with flow.inside():
                call = flow.call(first)
                if call is None:
                    first(flow.plainly())
                elif (answer := execute_plan(call)) is not STREAM:
                    items = flow.instead(answer)
            for item in items:  # noqa: UP028 - as its twin, which cannot
                yield item
            while flow.is_open:
                try:
                    try:
                        sent = yield flow.next()
                    except GeneratorExit:
                        with flow.inside():
                            flow.source.close()
                        raise
                    except BaseException as thrown:  # noqa: BLE001 - thrown at the stream: it is the stream's to answer
                        with flow.inside():
                            flow.item = flow.source.throw(thrown)
                    else:
                        with flow.inside():
                            flow.item = flow.source.send(sent)
                except StopIteration as stop:
                    flow.done(stop)
        return flow.value

    return stream


def astreaming(wrapped: WrappedFunction) -> Callable[..., AsyncGenerator[Any, Any]]:
    """An async generator function whose items are those of the wrapped one, as one call."""

    async def stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        async def first(source: Any) -> object:
            flow.source = source
            try:
                flow.item = await anext(source)
            except StopAsyncIteration as stop:
                flow.done(stop)
            return STREAM

        items: list[Any] = []
        with Flow(wrapped, args, kwargs) as flow:
            with flow.inside():
                call = flow.call(first)
                if call is None:
                    await first(flow.plainly())
                elif (answer := await aexecute_plan(call)) is not STREAM:
                    items = flow.instead(answer)
            for item in items:
                yield item
            while flow.is_open:
                try:
                    try:
                        sent = yield flow.next()
                    except GeneratorExit:
                        with flow.inside():
                            await flow.source.aclose()
                        raise
                    except BaseException as thrown:  # noqa: BLE001 - thrown at the stream: it is the stream's to answer
                        with flow.inside():
                            flow.item = await flow.source.athrow(thrown)
                    else:
                        with flow.inside():
                            flow.item = await flow.source.asend(sent)
                except StopAsyncIteration as stop:
                    flow.done(stop)

    return stream
