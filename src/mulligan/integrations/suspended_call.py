"""Calls whose first attempt is made by a framework, between two of its callbacks."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from mulligan.integrations.framework_tools import Attempt


class Suspension:
    """What a call yields while the framework makes its first attempt."""

    def __await__(self) -> Generator[Suspension, Any, Any]:
        return (yield self)


class SuspendedCall:
    """A call that waits for a framework. Between `start` and `finish`, the framework makes the first attempt.

    The call stays in the caller's task and context, so whatever the tool calls belongs to it. `make_call` gets the
    attempt that the call must use, and `repeat` makes each attempt after the first.
    """

    def __init__(self, make_call: Callable[[Attempt], Coroutine[Any, Any, Any]], repeat: Attempt) -> None:
        self._coroutine = make_call(self._attempt)
        self._repeat = repeat
        self.request: tuple[Any, ...] = ()
        """The arguments of the first attempt. Empty if the call ended without one."""

    async def _attempt(self, *request: Any) -> Any:
        if not self.request:
            self.request = request
            return await Suspension()
        return await self._repeat(*request)

    async def start(self) -> Any:
        """Return a `Suspension` before the first attempt, or the result of a call that ended without one."""
        return await self._advance(self._coroutine.send, None)

    async def finish(self, result: Any = None, error: BaseException | None = None) -> Any:
        """Report the first attempt, make all others, and return the result of the call."""
        if error is not None:
            return await self._advance(self._coroutine.throw, error)
        return await self._advance(self._coroutine.send, result)

    def close(self, error: BaseException | None = None) -> None:
        """End a call whose first attempt has no result: it was paused or cancelled. Never raises."""
        try:
            self._coroutine.throw(error or GeneratorExit())
        except BaseException:  # noqa: BLE001 - the same exception
            self._coroutine.close()

    @types.coroutine
    def _advance(self, step: Callable[[Any], Any], value: Any) -> Generator[Any, Any, Any]:
        while True:
            try:
                awaited = step(value)
            except StopIteration as stop:
                return stop.value
            if isinstance(awaited, Suspension):
                return awaited
            try:
                step, value = self._coroutine.send, (yield awaited)
            except BaseException as error:  # noqa: BLE001 - a cancellation reaches the call
                step, value = self._coroutine.throw, error


class SuspendedCalls(dict[Any, SuspendedCall]):
    """The calls that wait for a framework."""

    def add(self, key: Any, call: SuspendedCall, on_cancelled: Callable[[BaseException], None] | None = None) -> None:
        """Add a call. It is closed with the current task if the framework reports nothing more."""
        if (unanswered_call := self.pop(key, None)) is not None:
            unanswered_call.close()  # the framework has made no attempt
        self[key] = call

        def close(task: asyncio.Task[Any]) -> None:
            if self.get(key) is call:
                del self[key]
                cancellation = asyncio.CancelledError() if task.cancelled() else None
                call.close(cancellation)
                if cancellation is not None and on_cancelled is not None:
                    on_cancelled(cancellation)

        if (task := asyncio.current_task()) is not None:
            task.add_done_callback(close)
