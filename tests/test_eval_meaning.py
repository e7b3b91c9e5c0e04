"""The judge of `evals/meaning`: an execution with another meaning is wrong, and doors record what was executed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

MODULES = ("mistakes", "judge", "doors", "batch_sample")
NOTE = "mulligan: set_power was called with value 50 -> 10; the original arguments were rejected."
ASKED = {"value": 50, "unit": "W"}
OTHER = {"value": 50, "unit": "kW"}
FEWER = {"value": 10, "unit": "W"}
BATCH = """
from mistakes import Batch
from mulligan import AgentError

batch = Batch()


@batch.add("type", "form", effects="once", asked={"city": "Rome", "days": "3"}, earlier=[{"city": "Oslo", "days": 1}],
           same=[{"city": "Rome", "days": 3}], reason="the text is the number")
@batch.add("name", "meaning", effects="once", asked={"city": "Rome", "weeks": 3}, reason="weeks are no days")
def forecast(city: str, days: int) -> str:
    if days == 99:
        raise AgentError("days must be at most 16.")
    return "sunny"
"""


@pytest.fixture(autouse=True)
def _eval_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "evals" / "meaning"))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def set_power(value: Any, unit: Literal["W", "kW"] = "W") -> str:
    return f"{value} {unit}"


def make_play(*executed: Any, door: str = "turn", note: str = NOTE, error: str = "", **facts: Any) -> Any:
    """Make a call of `set_power` that executed its body with these arguments."""
    from judge import Execution, Play
    from mistakes import Batch

    batch = Batch()
    facts = {"topic": "unit", "kind": "meaning", "effects": "none", "asked": ASKED, "reason": "", **facts}
    batch.add(**facts)(set_power)
    executions = [Execution(arguments, error) for arguments in executed]
    return Play("batch", door, batch.mistakes[0], executions, note=note)


def judge_play(*executed: Any, **facts: Any) -> str:
    from judge import judge

    return judge(make_play(*executed, **facts))


def test_judge_finds_an_execution_with_another_meaning() -> None:
    assert judge_play(OTHER) == "wrong"
    assert judge_play(OTHER, kind="form", same=[FEWER]) == "wrong"
    assert judge_play(FEWER, OTHER, less=[FEWER]) == "wrong"
    assert judge_play(FEWER, kind="form", same=[FEWER]) == "same"
    assert judge_play(ASKED) == "as asked"


def test_judge_accepts_less_only_without_effects_for_a_model_that_reads_about_it() -> None:
    assert judge_play(FEWER, less=[FEWER]) == "less"
    assert judge_play(FEWER, less=[FEWER], door="program") == "wrong"
    assert judge_play(FEWER, less=[FEWER], effects="idempotent") == "wrong"
    assert judge_play(FEWER, less=[FEWER], note="") == "wrong"
    assert judge_play(FEWER, less=[FEWER], note="mulligan: set_power was called with unit w -> W.") == "wrong"


def test_judge_finds_a_repeated_execution_of_a_tool_with_effects() -> None:
    facts = {"kind": "form", "same": [FEWER]}
    assert judge_play(FEWER, FEWER, **facts, effects="once") == "wrong"
    assert judge_play(FEWER, FEWER, **facts, effects="idempotent") == "same"


def test_judge_counts_what_was_not_executed_by_the_kind_of_the_mistake() -> None:
    assert judge_play() == judge_play(OTHER, error="AgentError") == "not executed"
    facts = {"kind": "form", "same": [FEWER]}
    assert judge_play(**facts) == judge_play(ASKED, error="AgentError", **facts) == "missed"
    assert judge_play(ASKED, error="TypeError", **facts) == "as asked"  # its body began: the door accepted the call


@pytest.mark.parametrize(
    ("value", "verdict"), [(1.0, "same"), (True, "wrong"), ("1", "wrong"), ((1,), "wrong"), (None, "wrong")]
)
def test_judge_compares_values_of_json(value: Any, verdict: str) -> None:
    assert judge_play({"value": value, "unit": "W"}, kind="form", same=[{"value": 1}]) == verdict


def test_counts_leave_calls_that_were_accepted_as_asked_out_of_the_share() -> None:
    from judge import count_verdicts

    form = {"kind": "form", "same": [FEWER], "effects": "once"}
    plays = [make_play(FEWER, **form), make_play(**form), make_play(ASKED, **form), make_play(OTHER)]
    counts = count_verdicts(plays)
    assert (counts["calls"], counts["with_effects"], counts["wrong"]) == (4, 3, 1)
    assert (counts["form_repaired"], counts["form_missed"], counts["form_as_asked"]) == (1, 1, 1)
    assert counts["repaired_share"] == 0.5


@pytest.mark.parametrize(
    ("door", "verdicts"), [("program", ["not executed", "as asked"]), ("turn", ["not executed", "same"])]
)
def test_doors_record_what_a_call_executed_after_earlier_calls(door: str, verdicts: list[str], tmp_path: Path) -> None:
    from doors import play_in_sandbox
    from judge import judge

    path = tmp_path / "batch_sample.py"
    path.write_text(BATCH)
    plays = list(play_in_sandbox(path, door))
    assert [execution.arguments["city"] for execution in plays[1].executions] == ["Oslo", "Rome"]
    for play in plays:
        play.drop_earlier()
        assert not play.problem
    assert [judge(play) for play in plays] == verdicts
    assert "weeks" in plays[0].answer
    assert plays[0].stop_reason


def test_earlier_call_that_was_not_executed_leaves_the_mistake_out() -> None:
    play = make_play(OTHER, earlier=[FEWER])
    play.drop_earlier()
    assert play.problem


def test_recorded_tool_rejects_calls_like_the_original() -> None:
    from doors import record_executions

    executions: list[Any] = []
    tool = record_executions(set_power, executions)
    with pytest.raises(TypeError, match=r"set_power\(\) got an unexpected keyword argument 'volt'") as raised:
        tool(value=1, volt=2)
    assert raised.traceback[-1].name == "test_recorded_tool_rejects_calls_like_the_original"
    assert (tool(1), tool.__annotations__) == ("1 W", set_power.__annotations__)
    assert executions == [({"value": 1, "unit": "W"}, "")]
