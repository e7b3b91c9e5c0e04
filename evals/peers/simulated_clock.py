"""A clock that moves only when somebody sleeps, in place of the clock of this process.

Importing this module installs it. That must precede the import of contenders: libraries that bind `time.sleep` or
`asyncio.sleep` get these. Locks and sockets wait in real time: they bound the real clock earlier.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import queue
import threading
import time
from typing import Any

START = 1_790_000_000.0
TICK_SECONDS = 1e-6
"""How far the clock moves at each look, so that no two readings are equal."""


class SimulatedClock:
    """Counts the seconds that programs slept, apart from those that tools and models took."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks = itertools.count()
        self.elapsed = 0.0
        self.slept = 0.0

    def now(self) -> float:
        return START + self.elapsed + next(self._looks) * TICK_SECONDS

    def advance(self, seconds: float) -> None:
        """Let time pass that is not waiting: a tool works, a model writes, a night passes."""
        with self._lock:
            self.elapsed += seconds

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.elapsed += max(0.0, seconds)
            self.slept += max(0.0, seconds)

    def install(self) -> None:
        sleep_really = asyncio.sleep

        async def sleep(delay: float, result: Any = None) -> Any:
            self.sleep(delay)
            await sleep_really(0)
            return result

        time.sleep = self.sleep
        asyncio.sleep = asyncio.tasks.sleep = sleep  # type: ignore[assignment]
        time.time = time.monotonic = time.perf_counter = self.now
        time.time_ns = time.monotonic_ns = time.perf_counter_ns = lambda: int(self.now() * 1e9)


BOUND_EARLIER = (concurrent.futures, queue, threading)
"""Modules that must have bound the real clock: imported here, and before it is replaced."""
read_real_clock = time.perf_counter
clock = SimulatedClock()
clock.install()
