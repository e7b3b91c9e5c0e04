"""A call that had been missing is made first with learn = "repair"; nowhere else, and never blindly."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from mulligan import AgentError, settings
from mulligan.contract.store import DAY, DEFAULT_TENANT, FixQuery
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import SettingsError
from mulligan.core.records import Run, Step
from mulligan.testing import Sandbox

NOW = 1_700_000_000_000


class Car:
    """Starts only while the brake is pressed."""

    def __init__(self, played: Sandbox, **options: Any) -> None:
        self.pressed = 0.0
        self.started: list[str] = []
        self.is_stuck = False
        tool = played.mulligan.tool
        self.press = tool(name="press", effects="idempotent", **options)(self._press)
        self.start = tool(name="start", effects="idempotent")(self._start)

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


def taught(played: Sandbox, car: Car, runs: int = 9, first: dict[str, Any] | None = None) -> None:
    """Runs in which the same call worked after another one. Each run starts in another mode: one vote each."""
    failure = played.components.classify(
        AgentError("The brake must be pressed first.", code="precondition"), source="tool", tool="start"
    )
    for number in range(runs):
        at = NOW - 3 * DAY + (number % 3) * DAY
        run = Run(id=f"run_{number}", started_at=at)
        shared: dict[str, Any] = {"run": run.id, "started_at": at}
        start = {"name": "start", "key": car.start.__mulligan__.key, "arguments": {"mode": f"mode {number}"}}
        steps = [
            Step(seq=1, call=1, outcome="failure", failure=failure, **start, **shared),
            Step(seq=2, call=2, name="press", arguments=first or {"level": 1.0}, **shared),
            Step(seq=3, call=3, **start, **shared),
        ]
        ended = msgspec.structs.replace(run, ended_at=at + 1000, end_reason="finished")
        events = [RunStarted(run), *map(StepEnded, steps), RunEnded(ended)]
        played.store.append(DEFAULT_TENANT, events, f"taught_{number}", 1)
    with played.mulligan.run("warm"):  # so that the recorder has opened its store
        pass
    played.mulligan.flush(30)


def outcomes(played: Sandbox) -> list[tuple[str, str]]:
    return [(step.name, step.outcome) for step in played.steps if step.type == "tool"]


def test_a_missing_call_that_pauses_for_a_person_pauses_the_call_that_needs_it():
    class Pause(Exception):
        pass

    played = Sandbox(learn="repair", control_flow=[Pause])
    car = Car(played)
    taught(played, car)
    raised = Pause("ask the driver")

    def press(level: float) -> str:
        raise raised

    car.press.__mulligan__.function = press
    with pytest.raises(Pause) as left, played.mulligan.run("driver"):
        car.start("sport")
    assert left.value is raised
    assert car.started == []
    assert outcomes(played) == [("start", "failure"), ("press", "cancelled"), ("start", "cancelled")]


def test_with_learn_repair_the_missing_call_is_made_and_announced():
    played = Sandbox(learn="repair")
    car = Car(played)
    taught(played, car)
    with played.mulligan.run("driver") as run:
        assert car.start("sport") == "running"
        (note,) = run.drain_notes()
    assert outcomes(played) == [("start", "failure"), ("press", "success"), ("start", "success")]
    assert note == "mulligan: start was retried after its missing prerequisite press(level=1.0)."
    last = played.steps[-2] if played.steps[-1].type == "run" else played.steps[-1]
    assert last.recovery is not None
    assert (last.recovery.source, last.recovery.prerequisites) == ("memory", ("press",))
    played.mulligan.flush(30)
    (fix,) = played.store.fixes(DEFAULT_TENANT, FixQuery(tool="start", now=NOW + DAY))
    # Its own success proves nothing: the nine runs in which somebody else did it do.
    assert (fix.type, fix.state, fix.trials, fix.successes) == ("prerequisite", "promoted", 9, 9)
    assert played.store.evidence(DEFAULT_TENANT, fix.id)[0].automatic


@pytest.mark.parametrize(("learn", "is_told"), [("tell", True), ("off", False)])
def test_with_any_other_learn_it_is_told_or_not_used_at_all(learn, is_told):
    played = Sandbox(learn=learn)
    car = Car(played)
    taught(played, car)
    with played.mulligan.run("driver"), pytest.raises(AgentError) as raised:
        car.start("sport")
    assert outcomes(played) == [("start", "failure")]
    assert any("after press(level=1.0)" in note for note in raised.value.__notes__) is is_told


def test_a_program_allows_it_for_one_run_or_one_tool_and_the_more_cautious_of_both_holds():
    played = Sandbox()
    car = Car(played)
    taught(played, car)
    with played.mulligan.run("driver", learn="repair"):
        assert car.start("sport") == "running"
    car.pressed = 0.0
    car.start = played.mulligan.tool(name="start", effects="idempotent", learn="repair")(car._start)
    with played.mulligan.run("driver"):
        assert car.start("sport") == "running"
    car.pressed = 0.0
    for about in ({"learn": "tell"}, {"learn": "off"}, {"mode": "suggest"}, {"mode": "observe"}):
        with played.mulligan.run("driver", **about), pytest.raises(AgentError):
            car.start("sport")
    assert car.started == ["sport", "sport"]


def test_what_is_not_proven_is_not_carried_out():
    played = Sandbox(learn="repair")
    car = Car(played)
    taught(played, car, runs=3)
    with played.mulligan.run("driver"), pytest.raises(AgentError):
        car.start("sport")
    assert outcomes(played) == [("start", "failure")]


@pytest.mark.parametrize("first", [{"level": "everybody"}, {"amount": 5}])
def test_a_text_of_another_run_and_what_is_privileged_are_never_handed_on(first):
    played = Sandbox(learn="repair")
    car = Car(played)
    taught(played, car, first=first)
    with played.mulligan.run("driver"), pytest.raises(AgentError):
        car.start("sport")
    assert outcomes(played) == [("start", "failure")]


def test_a_destructive_tool_is_not_called_without_asking():
    played = Sandbox(learn="repair")
    car = Car(played, destructive=True)
    taught(played, car)
    with played.mulligan.run("driver"), pytest.raises(AgentError) as raised:
        car.start("sport")
    assert any("so it is not called automatically" in note for note in raised.value.__notes__)


def test_where_the_missing_call_fails_the_other_is_given_up_and_both_are_recorded():
    played = Sandbox(learn="repair")
    car = Car(played)
    taught(played, car)
    car.is_stuck = True
    with played.mulligan.run("driver"), pytest.raises(AgentError, match="brake must be pressed") as raised:
        car.start("sport")
    assert [each for each in outcomes(played) if each[1] != "cancelled"] == [("start", "failure"), ("press", "failure")]
    assert any("the prerequisite press failed" in note for note in raised.value.__notes__)
    assert car.started == []


def test_a_tool_that_is_not_in_this_process_cannot_be_called():
    played = Sandbox(learn="repair")
    car = Car(played)
    taught(played, car)
    del car.press
    with played.mulligan.run("driver"), pytest.raises(AgentError) as raised:
        car.start("sport")
    assert any("is not a tool of this process" in note for note in raised.value.__notes__)


def test_two_tools_that_need_each_other_do_not_go_round_in_circles():
    played = Sandbox(learn="repair")
    car = Car(played)
    taught(played, car)
    car.is_stuck = True
    with played.mulligan.run("driver"), pytest.raises(AgentError):
        car.start("sport")
    assert len([each for each in outcomes(played) if each[0] == "press"]) == 1


@pytest.mark.parametrize("is_press_async", [True, False])
def test_an_awaited_call_makes_it_as_well(is_press_async):
    played = Sandbox(learn="repair")
    car = Car(played)
    if is_press_async:

        async def press(level: float) -> str:
            return car._press(level)

        car.press = played.mulligan.tool(name="press", effects="idempotent")(press)

    async def start(mode: str) -> str:
        return car._start(mode)

    car.start = played.mulligan.tool(name="start", effects="idempotent")(start)
    taught(played, car)

    async def drive() -> str:
        with played.mulligan.run("driver"):
            return str(await car.start("sport"))

    assert asyncio.run(drive()) == "running"
    assert outcomes(played) == [("start", "failure"), ("press", "success"), ("start", "success")]


def test_a_project_cannot_allow_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project, user = tmp_path / "mulligan.toml", tmp_path / "user.toml"
    project.write_text('learn = "repair"\n')
    with pytest.raises(SettingsError, match="a project file cannot set"):
        settings.load_settings(user_file=user)
    project.write_text('[tools.start]\nlearn = "repair"\n')
    with pytest.raises(SettingsError, match="a project file cannot set"):
        settings.load_settings(user_file=user)
    project.write_text('learn = "tell"\n')
    user.write_text('learn = "off"\n')
    with pytest.raises(SettingsError, match="a project file cannot loosen learn"):
        settings.load_settings(user_file=user)
    user.write_text('learn = "repair"\n')
    assert settings.load_settings(user_file=user).learn == "tell"
