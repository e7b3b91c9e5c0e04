"""An event loop in which time passes only while everybody sleeps, and a mulligan that lives in it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

from msgspec.structs import force_setattr

from mulligan import Policy
from mulligan.testing import Sandbox


class Skipping(selectors.DefaultSelector):
    """Waits for nothing, and says how long it would have waited."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.skipped += timeout or 0.0
        return super().select(0)


class SimulatedTime:
    """Runs a coroutine on a clock that skips every sleep. `sandbox` is the mulligan with that clock."""

    def __init__(self, **policy: Any) -> None:
        self._selector = Skipping()
        self.loop = asyncio.SelectorEventLoop(self._selector)
        self.loop.time = lambda: self._selector.skipped  # type: ignore[method-assign]
        self.sandbox = Sandbox(policy=Policy(**policy), record="off")
        capture = self.sandbox.components.capture
        force_setattr(capture, "timer", lambda: self._selector.skipped)
        force_setattr(capture, "async_sleep", asyncio.sleep)

    @property
    def now(self) -> float:
        return self._selector.skipped

    def run(self, main: Any) -> None:
        async def at_once(function: Callable[..., Any], *args: Any) -> Any:
            return function(*args)

        before, asyncio.to_thread = asyncio.to_thread, at_once  # a thread would live on another clock
        try:
            self.loop.run_until_complete(main)
        finally:
            asyncio.to_thread = before
            self.loop.close()
