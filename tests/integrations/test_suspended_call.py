"""A framework makes the first attempt of a call, and mulligan all others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import mulligan
from mulligan.integrations.framework_agent import AgentRun, FrameworkAgent
from mulligan.integrations.framework_tools import ToolDefinition
from mulligan.integrations.suspended_call import SuspendedCall, SuspendedCalls, Suspension
from mulligan.testing import Sandbox

SCHEMA = {"type": "object", "properties": {"count": {"type": "integer", "maximum": 10}}}
TOOLS = {"fetch": ToolDefinition("fetch", SCHEMA)}


@pytest.fixture
def run(played: Sandbox) -> AgentRun:
    agent = FrameworkAgent(agent="tester", tools={"*": {"effects": "none"}})
    return agent.start_run("key", ends_on_error=True)


def suspend(run: AgentRun, arguments: dict[str, Any], repeated: list[Any]) -> SuspendedCall:
    async def repeat(name: str, arguments: dict[str, Any]) -> str:
        await asyncio.sleep(0)
        repeated.append((name, arguments))
        return "repeated"

    return SuspendedCall(lambda attempt: run.acall(TOOLS, "fetch", arguments, attempt), repeat)


def outcomes(played: Sandbox) -> list[str]:
    return [step.outcome for step in played.steps]


def test_the_framework_makes_the_first_attempt_with_repaired_arguments(played: Sandbox, run: AgentRun) -> None:
    repeated: list[Any] = []

    async def play() -> Any:
        call = suspend(run, {"count": 50}, repeated)
        assert isinstance(await call.start(), Suspension)
        assert call.request == ("fetch", {"count": 10})
        return await call.finish("ten")

    outcome = asyncio.run(play())
    assert outcome.value == "ten"
    assert "50 -> 10" in outcome.notes[0]
    assert repeated == []
    assert outcomes(played) == ["failure", "success"]


def test_later_attempts_are_repeated(played: Sandbox, run: AgentRun) -> None:
    repeated: list[Any] = []

    async def play() -> Any:
        call = suspend(run, {"count": 5}, repeated)
        await call.start()
        return await call.finish(error=ConnectionRefusedError("The service is down."))

    assert asyncio.run(play()).value == "repeated"
    assert repeated == [("fetch", {"count": 5})]
    assert outcomes(played) == ["failure", "success"]


def test_a_call_that_is_not_made_ends_at_its_start(played: Sandbox, run: AgentRun) -> None:
    async def play() -> Any:
        return await suspend(run, {"count": "many"}, []).start()

    outcome = asyncio.run(play())
    assert not isinstance(outcome, Suspension)
    assert str(outcome.failure.kind) == "tool/invalid_arguments"


def test_the_run_is_the_current_one_until_the_call_ends(played: Sandbox, run: AgentRun) -> None:
    @mulligan.tool
    def nested() -> str:
        return "inner"

    async def play() -> None:
        call = suspend(run, {"count": 5}, [])
        await call.start()
        nested()
        await call.finish("done")

    asyncio.run(play())
    run.end()
    (history,) = played.runs
    assert sorted(step.name for step in history.steps) == ["fetch", "nested"]


def test_a_paused_call_is_cancelled_and_the_run_continues(played: Sandbox, run: AgentRun) -> None:
    async def play() -> None:
        call = suspend(run, {"count": 5}, [])
        await call.start()
        call.close()

    asyncio.run(play())
    assert outcomes(played) == ["cancelled"]
    assert run.run.is_open


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_call_ends_with_its_task(played: Sandbox, run: AgentRun, is_cancelled: bool) -> None:
    calls = SuspendedCalls()

    async def work() -> None:
        call = suspend(run, {"count": 5}, [])
        await call.start()
        calls.add("key", call)
        if is_cancelled:
            await asyncio.sleep(3600)

    async def play() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        if is_cancelled:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)

    asyncio.run(play())
    assert calls == {}
    assert outcomes(played) == ["cancelled"]
    assert run.run.is_open is not is_cancelled
