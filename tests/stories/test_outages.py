"""Calls of programs and models in outages, on a simulated clock: what holds whatever happens when."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Literal, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_time import SimulatedTime

Caller = Literal["program", "turn", "timeout", "effects"]
LIMIT_SECONDS: dict[Caller, float] = {"program": 45.0, "turn": 20.0, "timeout": 7.0, "effects": 45.0}
"""After which no attempt begins."""


class Request(NamedTuple):
    """A call that begins at a time."""

    at: float
    caller: Caller
    tenant: str


class Service:
    """Databases of tenants that fail in outages, and what every call made of them."""

    def __init__(self, time: SimulatedTime, outages: list[tuple[float, float]], durations: list[float]) -> None:
        self.time, self.outages, self.durations = time, outages, durations
        self.targets = time.sandbox.components.capture.targets
        self.attempts: dict[int, list[float]] = {}
        """When the attempts of each call began."""
        self.payments: Counter[int] = Counter()
        self.probes: Counter[str] = Counter()
        """Retries that run now, of a target that was down when they began."""
        mulligan = time.sandbox.mulligan
        query, wait_at_most = self.query, LIMIT_SECONDS["timeout"]
        self.tools = {
            "program": mulligan.tool(name="query", effects="none")(query),
            "turn": mulligan.tool(name="query", effects="none")(query),  # has the targets of the first one
            "timeout": mulligan.tool(name="query", effects="none", timeout=wait_at_most)(query),
            "effects": mulligan.tool(name="checkout", effects="none")(self.checkout),
        }
        self.pay = mulligan.tool(name="pay")(self.charge)

    def is_down(self, tenant: str) -> bool:
        assert all(state.tokens >= 0 for state in self.targets.states.values())
        return self.targets.is_down((self.tools["program"].__mulligan__.key, tenant))

    async def query(self, tenant: str, number: int) -> str:
        """Answer a call, unless an outage is there. Two retries never probe the target together."""
        attempts = self.attempts.setdefault(number, [])
        is_probe = bool(attempts) and self.is_down(tenant)
        attempts.append(self.time.now)
        self.probes[tenant] += is_probe
        assert self.probes[tenant] <= 1, "two probes at a time"
        try:
            await asyncio.sleep(self.durations[(number + len(attempts)) % len(self.durations)])
            if any(start <= self.time.now < end for start, end in self.outages):
                raise ConnectionResetError("reset")
            return "rows"
        finally:
            self.probes[tenant] -= is_probe

    async def charge(self, number: int) -> None:
        self.payments[number] += 1

    async def checkout(self, tenant: str, number: int) -> str:
        await self.pay(number)
        return await self.query(tenant, number)

    async def call(self, number: int, request: Request) -> None:
        await asyncio.sleep(request.at)
        arguments: dict[str, Any] = {"tenant": request.tenant, "number": number}
        try:
            if request.caller == "turn":
                turn = next(iter(self.time.sandbox.mulligan.turns()))
                await turn.acall({"query": self.tools["turn"]}, "query", arguments)
            else:
                await self.tools[request.caller](**arguments)
        except (ConnectionResetError, TimeoutError):  # a limit may end an attempt that is under way
            pass
        duration = max(self.durations) + 0.01
        assert self.time.now <= request.at + LIMIT_SECONDS[request.caller] + duration, "waited beyond its limit"


TENANTS = st.sampled_from(["a", "b"])
CALLERS: st.SearchStrategy[Caller] = st.sampled_from(["program", "turn", "timeout", "effects"])
REQUESTS = st.lists(st.builds(Request, st.floats(0, 60), CALLERS, TENANTS), min_size=1, max_size=40)
OUTAGES = st.lists(st.tuples(st.floats(0, 60), st.floats(0.1, 60)).map(lambda pair: (pair[0], sum(pair))), max_size=4)
DURATIONS = st.lists(st.floats(0.01, 0.4), min_size=1, max_size=5)
"""Attempts are short: one probe that takes a second and more counts as an answer, so another may follow it."""


@settings(max_examples=200, deadline=None)
@given(REQUESTS, OUTAGES, DURATIONS)
def test_in_any_outage_one_call_probes_none_waits_too_long_first_attempts_are_made_and_no_effect_is_repeated(
    requests: list[Request], outages: list[tuple[float, float]], durations: list[float]
) -> None:
    time = SimulatedTime(max_identical_failures=0)
    service = Service(time, outages, durations)

    async def call_all() -> None:
        await asyncio.gather(*(service.call(number, request) for number, request in enumerate(requests)))

    time.run(call_all())
    for number, request in enumerate(requests):
        first, *retries = service.attempts[number]
        assert abs(first - request.at) < 0.001, "a first attempt waited"
        assert all(retry <= request.at + LIMIT_SECONDS[request.caller] + 0.001 for retry in retries)
        assert service.payments[number] == (request.caller == "effects")
        if request.caller == "effects":
            assert not retries
