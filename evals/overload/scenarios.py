"""The simulated scenarios. Times are in seconds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from clients import Call, ErrorResponse, Hang
from simulation import Outage, Scenario, Send, Server, run_closed, run_open, run_parallel, run_workers


def server(**options: Any) -> Callable[[asyncio.AbstractEventLoop, int], Server]:
    return lambda loop, seed: Server(loop, seed, **options)


def sporadic(send: Send, calls: list[Call], rng: random.Random) -> Any:
    return run_workers(send, [Call(faults=int(index % 4 == 0)) for index in range(120)], 1)


def parallel(count: int) -> Any:
    return lambda send, calls, rng: run_parallel(send, [Call() for _ in range(count)])


def batch(count: int, workers: int = 10) -> Any:
    return lambda send, calls, rng: run_workers(send, [Call() for _ in range(count)], workers)


def closed(workers: int, think: float, until: float, processes: int = 1) -> Any:
    def play(send: Send, calls: list[Call], rng: random.Random) -> Any:
        return run_closed(send, lambda: Call(rng.randrange(processes)), workers, think, until, rng)

    return play


def fleet(processes: int, rate: float, until: float) -> Any:
    """Processes that each call at this rate, whatever becomes of earlier calls."""

    def play(send: Send, calls: list[Call], rng: random.Random) -> Any:
        return run_open(send, lambda: Call(rng.randrange(processes)), lambda now: processes * rate, until, rng)

    return play


def agents(processes: int, until: float) -> Any:
    """One agent in each process: it calls, thinks for two seconds, and calls again."""

    async def play(send: Send, calls: list[Call], rng: random.Random) -> None:
        await asyncio.gather(
            *(
                run_closed(send, lambda process=process: Call(process), 1, 2.0, until, rng)
                for process in range(processes)
            )
        )

    return play


def brown_out(factor: float) -> Any:
    def play(send: Send, calls: list[Call], rng: random.Random) -> Any:
        def rate(now: float) -> float:
            return (factor if 30 <= now < 60 else 0.7) * 15

        return run_open(send, lambda: Call(rng.randrange(8)), rate, 170, rng)

    return play


def dead_tenant(send: Send, calls: list[Call], rng: random.Random) -> Any:
    def make() -> Call:
        tenant = f"t{rng.randrange(10)}"
        call = Call(tenant=tenant)
        call.is_innocent = tenant != "t0"
        call.faults = int(call.is_innocent and rng.random() < 0.05)
        return call

    return run_closed(send, make, 20, 0.5, 120, rng)


def dead_tool(send: Send, calls: list[Call], rng: random.Random) -> Any:
    def make() -> Call:
        call = Call(tool=f"tool_{rng.randrange(5)}")
        call.is_innocent = call.tool != "tool_0"
        call.faults = int(call.is_innocent and rng.random() < 0.05)
        return call

    return run_closed(send, make, 10, 0.5, 120, rng)


async def starved_tool(send: Send, calls: list[Call], rng: random.Random) -> None:
    await run_workers(send, [Call(tool="limited") for _ in range(12)], 1)
    innocent = [Call(tool="other", faults=1) for _ in range(30)]
    for call in innocent:
        call.is_innocent = True
    await run_workers(send, innocent, 1)


def poison(send: Send, calls: list[Call], rng: random.Random) -> Any:
    """Two percent of the inputs always break the server."""

    def make() -> Call:
        is_poisoned = rng.random() < 0.02
        call = Call(faults=10**6 if is_poisoned else int(rng.random() < 0.05))
        call.is_innocent = not is_poisoned
        return call

    return run_workers(send, [make() for _ in range(500)], 10)


def unavailable() -> Exception:
    return ErrorResponse(503, "503 Service Unavailable")


def limited() -> Exception:
    return ErrorResponse(429, "429 Too Many Requests")


def reset_outage(lasting: float, start: float = 0.0, **options: Any) -> tuple[Outage, ...]:
    return (Outage(start, start + lasting, **options),)


RESTARTING = {"latency": 1.0, "outages": (Outage(30, 60, unavailable, 0.02),)}
"""A model that answers in a second, except for 30 s."""
DOWN = {"latency": 1.0, "outages": (Outage(30, 630, unavailable, 0.02),)}
LONG_RESET = reset_outage(30, 10)
STATED_OUTAGE = (Outage(10, 20, lambda: ErrorResponse(503, "503 Service Unavailable", 3.0)),)
LONG_STATED_OUTAGE = (Outage(10, 40, lambda: ErrorResponse(503, "503 Service Unavailable", 20.0)),)
HANGING = (Outage(0, 3, lambda: Hang("timed out"), 2.0),)
DEAD_TENANT = (Outage(0, 1e9, affects=lambda call: call.tenant == "t0"),)
DEAD_TOOL = (Outage(0, 1e9, affects=lambda call: call.tool == "tool_0"),)
LIMITED_TOOL = (Outage(0, 1e9, limited, affects=lambda call: call.tool == "limited"),)
LOAD_LIMITS = {"30 s, agents": 1.2, "10 min, agents": 1.2, "30 s, 1 call/s": 1.4, "10 min, 1 call/s": 1.4,
               "10 min, 1 call/min": 2.4, "30 s, 1 call/min": 2.4, "outage 60 s": 1.2, "outage 120 s": 1.2,
               "30 s, a fallback": 1.2, "30 s, deadline 5 s": 1.2}  # fmt: skip
"""Load in an outage, compared with clients that do not retry."""
CONTRADICTIONS = {
    "30 s, 1 call/min": "4 retries within 6 s precede the waiting, and 2.4 allows one: see the rare calls below",
    "30 s, deadline 5 s": "a call fails at once if its target is down and no probe is due before its deadline",
    "30 s, 10 calls in 5 s": "a call fails at once if its target is down and no probe is due before its deadline",
}
"""Scenarios in which the rule itself excludes a goal, with the reason. They do not fail the evaluation."""
LASTING_ERRORS = ("50 % errors", "60 % errors", "70 % errors")
"""Success may be 0.5 points lower."""

SCENARIOS = (
    Scenario("25 % one 429", server(latency=0.5, error=limited), sporadic),
    Scenario("limit 10/s, 50 at once", server(latency=1.0, rate_limit=10), parallel(50)),
    Scenario("the same, stated 2 s", server(latency=1.0, rate_limit=10, retry_after=2.0), parallel(50)),
    Scenario("10 at once, reset 0.3 s", server(latency=0.05, outages=reset_outage(0.3)), parallel(10), seeds=10),
    Scenario("50 at once, reset 0.3 s", server(latency=0.05, outages=reset_outage(0.3)), parallel(50)),
    Scenario("50 slow, reset 0.3 s", server(latency=20.0, outages=reset_outage(0.3)), parallel(50)),
    Scenario("10 at once, reset 3 s", server(latency=0.05, outages=reset_outage(3)), parallel(10), seeds=10),
    Scenario("50 at once, hang 3 s", server(outages=HANGING), parallel(50)),
    Scenario("restart 3 s", server(outages=reset_outage(3, 10)), closed(10, 0.5, 40), (10, 13)),
    Scenario("outage 12 s", server(outages=reset_outage(12, 10)), closed(5, 0.5, 60), (10, 22)),
    Scenario("outage 40 s", server(outages=reset_outage(40, 10)), closed(5, 0.5, 110), (10, 50), 2),
    Scenario("outage 60 s", server(outages=reset_outage(60, 10)), closed(5, 0.5, 130), (10, 70), 2),
    Scenario("outage 120 s", server(outages=reset_outage(120, 10)), closed(5, 0.5, 190), (10, 130), 2),
    Scenario("3 s, deadline 8 s", server(outages=reset_outage(3, 10)), closed(10, 0.5, 40), (10, 13), deadline=8),
    Scenario("30 s, deadline 5 s", server(**RESTARTING), agents(20, 120), (30, 60), 1, deadline=5),
    Scenario("30 s, 10 calls in 5 s", server(outages=LONG_RESET), closed(10, 0.5, 80), (10, 40), 2, deadline=5),
    Scenario("30 s, a fallback", server(**RESTARTING), agents(20, 120), (30, 60), 1, has_fallback=True),
    Scenario("503 stating 3 s, 10 s", server(outages=STATED_OUTAGE), closed(10, 0.5, 60), (10, 20)),
    Scenario("30 s, agents", server(**RESTARTING), agents(40, 120), (30, 60), 1),
    Scenario("30 s, 1 call/s", server(**RESTARTING), fleet(12, 1.0, 110), (30, 60), 1),
    Scenario("30 s, 1 call/min", server(**RESTARTING), fleet(120, 1 / 60, 150), (30, 60), 1),
    Scenario("503 stating 20 s, 30 s", server(outages=LONG_STATED_OUTAGE), closed(10, 0.5, 80), (10, 40)),
    Scenario("10 min, agents", server(**DOWN), agents(10, 700), (30, 630), 1),
    Scenario("10 min, 1 call/s", server(**DOWN), fleet(2, 1.0, 680), (30, 630), 1),
    Scenario("10 min, 1 call/min", server(**DOWN), fleet(60, 1 / 60, 700), (30, 630), 1),
    Scenario("brown-out 120 %", server(capacity=15.0), brown_out(1.2), (30, 60), 1),
    Scenario("brown-out 200 %", server(capacity=15.0), brown_out(2.0), (30, 60), 1),
    Scenario("one tenant dead", server(outages=DEAD_TENANT), dead_tenant, seeds=1),
    Scenario("one tool dead", server(outages=DEAD_TOOL), dead_tool, seeds=1),
    Scenario("one tool limited", server(outages=LIMITED_TOOL), starved_tool),
    Scenario("2 % poisoned inputs", server(), poison, seeds=1),
    Scenario("10 % hang 5 s", server(error_rate=0.1, error=lambda: Hang("timed out"), error_seconds=5.0), batch(400)),
    Scenario("25 % errors", server(error_rate=0.25), batch(1000), seeds=2),
    Scenario("50 % errors", server(error_rate=0.5), batch(1000), seeds=1),
    Scenario("60 % errors", server(error_rate=0.6), batch(1000), seeds=1),
    Scenario("70 % errors", server(error_rate=0.7), batch(1000), seeds=1),
)  # fmt: skip

RARE_CALLS = (
    Scenario("restart 3 s, 1 call/min", server(outages=reset_outage(3, 30)), fleet(600, 1 / 60, 60), (30, 33), 2),
    Scenario("10 s, 1 call/min", server(outages=reset_outage(10, 30)), fleet(200, 1 / 60, 80), (30, 40), 2),
    Scenario("30 s, 1 call/min", server(outages=reset_outage(30, 30)), fleet(60, 1 / 60, 110), (30, 60), 2),
)
"""Processes that call so rarely that each call meets an outage as if it were the first."""
OVER_SOCKETS = (
    "25 % one 429", "limit 10/s, 50 at once", "the same, stated 2 s", "10 at once, reset 0.3 s",
    "50 at once, reset 0.3 s", "10 at once, reset 3 s", "restart 3 s", "outage 12 s", "503 stating 3 s, 10 s",
    "one tenant dead", "25 % errors", "50 % errors",
)  # fmt: skip
"""Scenarios that are also played over real sockets, in a similar size."""
