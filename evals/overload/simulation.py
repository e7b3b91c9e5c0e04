"""Servers and workloads on a clock that goes only while everybody sleeps. Mulligan's own code runs on it."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from clients import Call, Client, ErrorResponse, Hang, Reset


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop that skips every sleep. Its clock stands still while a thread works for it."""

    def __init__(self) -> None:
        self._selector_of_loop = SkippingSelector()
        super().__init__(self._selector_of_loop)

    def time(self) -> float:
        return self._selector_of_loop.skipped_seconds

    def run_in_executor(self, executor: Any, function: Any, *args: Any) -> Any:
        future = super().run_in_executor(executor, function, *args)
        self._selector_of_loop.busy_threads += 1
        future.add_done_callback(self._end_thread)
        return future

    def _end_thread(self, future: Any) -> None:
        self._selector_of_loop.busy_threads -= 1


class SkippingSelector(selectors.DefaultSelector):
    """Waits for nothing but threads, and counts how long it would have waited."""

    skipped_seconds = 0.0
    busy_threads = 0

    def select(self, timeout: float | None = None) -> Any:
        if self.busy_threads:
            return super().select(timeout)
        self.skipped_seconds += timeout or 0.0
        return super().select(0)


@dataclass(frozen=True)
class Outage:
    """A time in which the server does not answer some calls."""

    start: float
    end: float
    error: Callable[[], Exception] = lambda: Reset("connection reset by peer")
    seconds: float = 0.01
    affects: Callable[[Call], bool] = lambda call: True


@dataclass
class Server:
    """A server with outages, random errors, a rate limit or a capacity. It counts what arrives, by the second."""

    loop: asyncio.AbstractEventLoop
    seed: int = 0
    latency: float = 0.2
    outages: tuple[Outage, ...] = ()
    error_rate: float = 0.0
    error: Callable[[], Exception] = lambda: ErrorResponse(503, "503 Service Unavailable")
    error_seconds: float = 0.02
    rate_limit: float = 0.0
    """Requests a second."""
    retry_after: float | None = None
    capacity: float = 0.0
    """Requests a second; more of them wait in a queue, up to `timeout`."""
    timeout: float = 5.0
    arrivals: list[tuple[float, Call]] = field(default_factory=list)
    _permits: float = 0.0
    _refilled_at: float = 0.0
    _busy_until: float = 0.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._permits = self.rate_limit

    async def request(self, call: Call) -> str:
        now = self.loop.time()
        call.attempts += 1
        self.arrivals.append((now, call))
        for outage in self.outages:
            if outage.start <= now < outage.end and outage.affects(call):
                await asyncio.sleep(outage.seconds)
                raise outage.error()
        if call.faults:
            call.faults -= 1
            await asyncio.sleep(self.error_seconds)
            raise self.error()
        if self.error_rate and self.random.random() < self.error_rate:
            await asyncio.sleep(self.error_seconds)
            raise self.error()
        if self.rate_limit:
            self._permits = min(self.rate_limit, self._permits + self.rate_limit * (now - self._refilled_at))
            self._refilled_at = now
            if self._permits < 1:
                await asyncio.sleep(0.02)
                raise ErrorResponse(429, "429 Too Many Requests", self.retry_after)
            self._permits -= 1
        if self.capacity:
            queued = max(0.0, self._busy_until - now)
            self._busy_until = max(now, self._busy_until) + 1 / self.capacity
            if queued > self.timeout:
                await asyncio.sleep(self.timeout)
                raise Hang("timed out")
            await asyncio.sleep(queued + 1 / self.capacity)
        await asyncio.sleep(self.latency * (0.8 + 0.4 * self.random.random()))
        return "ok"


Send = Callable[[Call], Any]


async def run_parallel(send: Send, calls: list[Call]) -> None:
    await asyncio.gather(*(send(call) for call in calls))


async def run_workers(send: Send, calls: list[Call], workers: int) -> None:
    remaining = iter(calls)

    async def work() -> None:
        for call in remaining:
            await send(call)

    await asyncio.gather(*(work() for _ in range(workers)))


async def run_closed(
    send: Send, make: Callable[[], Call], workers: int, think: float, until: float, rng: random.Random
) -> None:
    """Let workers call, think and call again until a time."""
    loop = asyncio.get_running_loop()

    async def work() -> None:
        await asyncio.sleep(rng.random() * think)
        while loop.time() < until:
            await send(make())
            await asyncio.sleep(think * (0.5 + rng.random()))

    await asyncio.gather(*(work() for _ in range(workers)))


async def run_open(
    send: Send, make: Callable[[], Call], rate: Callable[[float], float], until: float, rng: random.Random
) -> None:
    """Let calls arrive at random, whatever becomes of earlier ones."""
    loop, tasks = asyncio.get_running_loop(), []
    while (now := loop.time()) < until:
        await asyncio.sleep(rng.expovariate(rate(now)))
        tasks.append(asyncio.ensure_future(send(make())))
    await asyncio.gather(*tasks)


@dataclass(frozen=True)
class Result:
    """What one contender achieved in one scenario."""

    success: float
    """Percent of the calls."""
    load: float | None
    """Attempts that arrived in the outage, per call that a client without retries would make then."""
    innocent: float | None
    """Percent of the innocent calls that succeeded."""
    recovery: float | None
    """Seconds after the trouble until the last call failed that began after it."""
    longest: float
    """Seconds that the longest call took."""
    delay: float
    """Seconds from the end of the outage to the answer, on average over the calls that began in it and succeeded."""


MAX_SHORT_SECONDS = 45.0
"""Outages up to so many seconds must not cost more calls than with what mulligan replaces."""


@dataclass(frozen=True)
class Scenario:
    """A server and a workload. `window` is the time of the trouble, in which calls and load count."""

    name: str
    build: Callable[[asyncio.AbstractEventLoop, int], Server]
    play: Callable[[Send, list[Call], random.Random], Any]
    window: tuple[float, float] | None = None
    seeds: int = 3
    deadline: float | None = None
    """Seconds that a call may take."""
    has_fallback: bool = False
    """Whether another server answers the calls that this one does not."""

    @property
    def is_short(self) -> bool:
        """Return whether the trouble ends while calls are still retried."""
        return self.window is None or self.window[1] - self.window[0] <= MAX_SHORT_SECONDS

    def run(self, contender: type[Client]) -> Result:
        """Play the scenario with one contender, once for each seed."""
        calls: list[Call] = []
        arrived, ends = 0, []
        for seed in range(self.seeds):
            loop = SimulatedLoop()
            server = self.build(loop, seed)
            fallback = Server(loop, seed).request if self.has_fallback else None
            client = contender(server.request, loop, seed, self.deadline, fallback)
            played: list[Call] = []

            async def send(call: Call, client: Client = client, played: list[Call] = played) -> None:
                played.append(call)
                await client.call(call)

            try:
                loop.run_until_complete(self.play(send, played, random.Random(seed)))
            finally:
                client.close()
                loop.close()
            calls += played
            if self.window is not None:
                start, end = self.window
                arrived += sum(start <= at < end for at, _ in server.arrivals)
                ends.append(
                    max(
                        (call.began - end for call in played if call.began >= end and not call.has_succeeded), default=0
                    )
                )
        start, end = self.window or (0.0, float("inf"))
        counted = [call for call in calls if start <= call.began < end and not call.is_innocent]
        innocent = [call for call in calls if call.is_innocent]
        delays = [call.ended - end for call in counted if call.has_succeeded]
        return Result(
            success=_percent(counted),
            load=arrived / self.seeds if self.window else None,
            innocent=_percent(innocent) if innocent else None,
            recovery=max(ends) if ends else None,
            longest=max(call.ended - call.began for call in calls),
            delay=sum(delays) / max(1, len(delays)),
        )


def _percent(calls: list[Call]) -> float:
    return 100 * sum(bool(call.has_succeeded) for call in calls) / max(1, len(calls))
