"""A call that had been missing is made first where the tool's operator allows it; nowhere else, and never blindly."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mulligan import AgentError, settings
from mulligan.events import RunStarted, StepEnded
from mulligan.failure import SettingsError
from mulligan.records import Run, Step
from mulligan.remember.store import DAY, LOCAL, FixQuery
from mulligan.testing import Rehearsal

NOW = 1_700_000_000_000


class Car:
    """Starts only while the brake is pressed."""

    def __init__(self, played: Rehearsal, **options: Any) -> None:
        self.pressed = 0.0
        self.started: list[str] = []
        self.is_stuck = False
        tool = played.mulligan.tool
        self.press = tool(name="press", effects="repeatable", **options)(self._press)
        self.start = tool(name="start", effects="repeatable")(self._start)

    def _press(self, level: float) -> str:
        if self.is_stuck:
            raise AgentError("The pedal is stuck.", recoverable=False)
        self.pressed = level
        return "pressed"

    def _start(self, mode: str) -> str:
        if self.pressed < 1:
            raise AgentError("The brake must be pressed first.", code="precondition")
        self.started.append(mode)
        return "running"


def taught(played: Rehearsal, car: Car, runs: int = 9, first: dict[str, Any] | None = None) -> None:
    """Runs in which the same call worked after another one."""
    failure = played.parts.classify(
        AgentError("The brake must be pressed first.", code="precondition"), source="tool", tool="start"
    )
    for number in range(runs):
        at = NOW - 3 * DAY + (number % 3) * DAY
        shared: dict[str, Any] = {"run": f"run_{number}", "started": at}
        steps = [
            Step(seq=1, call=1, name="start", arguments={"mode": "on"}, outcome="failure", failure=failure, **shared),
            Step(seq=2, call=2, name="press", arguments=first or {"level": 1.0}, **shared),
            Step(seq=3, call=3, name="start", arguments={"mode": "on"}, **shared),
        ]
        events = [RunStarted(Run(id=f"run_{number}", started=at)), *map(StepEnded, steps)]
        played.store.append(LOCAL, events, f"taught_{number}", 1)
    with played.mulligan.run("warm"):  # so that the recorder has opened its store
        pass
    played.mulligan.flush(30)


def outcomes(played: Rehearsal) -> list[tuple[str, str]]:
    return [(step.name, step.outcome) for step in played.steps if step.type == "tool"]


def test_where_the_operator_allows_it_the_missing_call_is_made_and_announced():
    played = Rehearsal(recipes=["start"])
    car = Car(played)
    taught(played, car)
    with played.mulligan.run("driver") as run:
        assert car.start("sport") == "running"
        (note,) = run.notes()
    assert outcomes(played) == [("start", "failure"), ("press", "success"), ("start", "success")]
    assert note == "mulligan: start was called again after press(level=1.0), which had been missing."
    last = played.steps[-2] if played.steps[-1].type == "run" else played.steps[-1]
    assert last.after is not None
    assert (last.after.source, last.after.first) == ("memory", ("press",))
    played.mulligan.flush(30)
    (fix,) = played.store.fixes(LOCAL, FixQuery(tool="start", now=NOW + DAY))
    assert (fix.sort, fix.tried, fix.worked) == ("recipe", 10, 10)
    assert played.store.evidence(LOCAL, fix.id)[0].automatic


def test_where_nobody_allowed_it_it_is_only_told():
    played = Rehearsal()
    car = Car(played)
    taught(played, car)
    with played.mulligan.run("driver"), pytest.raises(AgentError) as raised:
        car.start("sport")
    assert outcomes(played) == [("start", "failure")]
    assert any("after press(level=1.0)" in note for note in raised.value.__notes__)


def test_what_is_not_proven_is_not_carried_out():
    played = Rehearsal(recipes=["start"])
    car = Car(played)
    taught(played, car, runs=3)
    with played.mulligan.run("driver"), pytest.raises(AgentError):
        car.start("sport")
    assert outcomes(played) == [("start", "failure")]


@pytest.mark.parametrize("first", [{"level": "everybody"}, {"amount": 5}])
def test_a_text_of_another_run_and_what_is_privileged_are_never_handed_on(first):
    played = Rehearsal(recipes=["start"])
    car = Car(played)
    taught(played, car, first=first)
    with played.mulligan.run("driver"), pytest.raises(AgentError):
        car.start("sport")
    assert outcomes(played) == [("start", "failure")]


def test_a_destructive_tool_is_not_called_without_asking():
    played = Rehearsal(recipes=["start"])
    car = Car(played, destructive=True)
    taught(played, car)
    with played.mulligan.run("driver"), pytest.raises(AgentError) as raised:
        car.start("sport")
    assert any("is not called without asking" in note for note in raised.value.__notes__)


def test_where_the_missing_call_fails_the_other_is_given_up_and_both_are_recorded():
    played = Rehearsal(recipes=["start"])
    car = Car(played)
    taught(played, car)
    car.is_stuck = True
    with played.mulligan.run("driver"), pytest.raises(AgentError, match="brake must be pressed") as raised:
        car.start("sport")
    assert [each for each in outcomes(played) if each[1] != "cancelled"] == [("start", "failure"), ("press", "failure")]
    assert any("press failed, which must come first" in note for note in raised.value.__notes__)
    assert car.started == []


def test_a_tool_that_is_not_in_this_process_cannot_be_called():
    played = Rehearsal(recipes=["start"])
    car = Car(played)
    taught(played, car)
    del car.press
    with played.mulligan.run("driver"), pytest.raises(AgentError) as raised:
        car.start("sport")
    assert any("is not a tool of this process" in note for note in raised.value.__notes__)


def test_two_tools_that_need_each_other_do_not_go_round_in_circles():
    played = Rehearsal(recipes=["start", "press"])
    car = Car(played)
    taught(played, car)
    car.is_stuck = True
    with played.mulligan.run("driver"), pytest.raises(AgentError):
        car.start("sport")
    assert len([each for each in outcomes(played) if each[0] == "press"]) == 1


@pytest.mark.parametrize("is_press_async", [True, False])
def test_an_awaited_call_makes_it_as_well(is_press_async):
    played = Rehearsal(recipes=["start"])
    car = Car(played)
    if is_press_async:

        async def press(level: float) -> str:
            return car._press(level)

        car.press = played.mulligan.tool(name="press", effects="repeatable")(press)

    async def start(mode: str) -> str:
        return car._start(mode)

    car.start = played.mulligan.tool(name="start", effects="repeatable")(start)
    taught(played, car)

    async def drive() -> str:
        with played.mulligan.run("driver"):
            return str(await car.start("sport"))

    assert asyncio.run(drive()) == "running"
    assert outcomes(played) == [("start", "failure"), ("press", "success"), ("start", "success")]


def test_a_project_cannot_allow_it(tmp_path, monkeypatch):
    (tmp_path / "mulligan.toml").write_text('recipes = ["start"]\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="a project cannot set it"):
        settings.read()
