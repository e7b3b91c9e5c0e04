"""The judge of `evals/learning`: what is wrong is counted as wrong, and programs play in all three modes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EVALS = str(Path(__file__).parent.parent / "evals")


@pytest.fixture(autouse=True)
def _evals_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(EVALS)
    yield
    for name in [name for name in sys.modules if name == "learning" or name.startswith("learning.")]:
        del sys.modules[name]


def make_entry(before: dict[str, Any], after: dict[str, Any] | None = None, **facts: Any) -> Any:
    """Make a call with `before` that succeeded with `after`; without that, one that failed."""
    from learning.stage import Entry, Execution

    executions = [Execution("fetch", before, has_failed=after != before)]
    if after not in (None, before):
        executions.append(Execution("fetch", after or {}))
    return Entry("fetch", before, 0, executions=executions, has_failed=after is None, **facts)


def make_play(*entries: Any, status: str = "success") -> Any:
    from learning.stage import Play, RunEntry

    return Play(0, 0.0, [RunEntry("agent", list(entries), status)], list(entries))


def make_cure(**facts: Any) -> Any:
    from learning.truth import Cure

    return Cure(name="cure", **facts)


def make_sentence(text: str, *arguments: str) -> Any:
    from learning.advice import read_sentence

    return read_sentence(text, "fetch", arguments, ("fetch", "login"))


def judge_sentence(text: str, arguments: dict[str, Any], cure: Any) -> str:
    from learning import advice

    verdict: str = advice.judge_sentence(make_sentence(text, *arguments), arguments, cure)
    return verdict


def judge_plays(full: Any, empty: Any = None, off: Any = None) -> Any:
    from learning import judge

    return judge.judge_plays({"full": [full], "empty": [empty or full], "off": [off or full]})


def test_judge_counts_the_result_of_another_item_as_wrong() -> None:
    assert judge_plays(make_play(make_entry({"month": "2025-03"}, {"month": "2025-04"}))).wrong_results == 1


def test_judge_counts_the_result_of_a_real_repair_as_right() -> None:
    entry = make_entry({"days": 30}, {"days": 7}, cure=make_cure(changes={"days": 7}))

    assert judge_plays(make_play(entry, status="recovered")).wrong_results == 0


def test_judge_counts_a_privileged_repair_as_wrong() -> None:
    entry = make_entry({"amount": 900}, {"amount": 500}, cure=make_cure(changes={"amount": 500}, rule="privileged"))

    assert judge_plays(make_play(entry, status="recovered")).wrong_results == 1


def test_judge_counts_a_lost_item_in_a_recovered_run() -> None:
    verdicts = judge_plays(make_play(make_entry({"month": "2025-03"}), status="recovered"))

    assert (verdicts.false_recovered, verdicts.runs_with_loss) == (1, 1)
    assert "false_recovered" in verdicts.list_missed_goals()


def test_judge_counts_a_repair_that_only_an_empty_memory_makes() -> None:
    verdicts = judge_plays(make_play(make_entry({"days": 30})), empty=make_play(make_entry({"days": 30}, {"days": 7})))

    assert (verdicts.regressions, verdicts.harm) == (1, 0)


def test_judge_counts_a_call_that_fails_only_with_mulligan() -> None:
    success = make_play(make_entry({"days": 3}, {"days": 3}))

    assert judge_plays(make_play(make_entry({"days": 3})), off=success).harm == 1


def test_judge_counts_a_refused_call_of_a_program_but_not_of_a_model() -> None:
    refusal, failure = make_entry({"days": 3}), make_entry({"days": 3})
    refusal.executions.clear()
    play = make_play(refusal)

    assert judge_plays(play, off=make_play(failure)).harm == 1
    refusal.is_answered = True
    assert judge_plays(play, off=make_play(failure)).harm == 0
    assert judge_plays(play, empty=make_play(failure)).harm == 1


def test_judge_counts_corrections_from_the_third_run_on() -> None:
    from learning import judge

    cure = make_cure(changes={"days": 7})
    plays = [make_play(make_entry({"days": 30}, is_settled=True, cure=cure)) for _ in range(4)]
    plays[3].entries[0].sentences.append(
        make_sentence("In earlier runs this recovered the call: days=7 (3 of 3 runs).", "days")
    )
    verdicts = judge.judge_plays({"full": plays, "empty": plays, "off": plays})

    assert (verdicts.corrections, verdicts.corrections_met) == (2, 1)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("In earlier runs this recovered the call: days=7 (2 of 3 runs).", "right"),
        ("Change days from 30 to 7 (from the error text).", "right"),
        ("In earlier runs this recovered the call: days=9 (1 run).", "wrong"),
        ("In earlier runs this recovered the call: a different month; days=7 (1 run).", "wrong"),
        ("In earlier runs this recovered the call: a different days (1 run).", "neutral"),
        ("In earlier runs the same call succeeded after login(user=...) (1 run).", "wrong"),
        ("In earlier runs the same call succeeded after fetch (1 run).", "wrong"),
        ("In earlier runs this recovered the call: call login first, then use its days (3 of 3 runs).", "wrong"),
        ("In earlier runs a later retry of the same call succeeded (1 run).", "neutral"),
        (
            "mulligan: tool/timeout after 1 attempt (0.0 s). Not retried: the model must act. Details: mulligan show 1",
            "neutral",
        ),
        ("Something nobody has thought of.", "unread"),
    ],
)
def test_advice_is_held_against_the_truth(text: str, verdict: str) -> None:
    assert judge_sentence(text, {"month": "2025-03", "days": 30}, make_cure(changes={"days": 7})) == verdict


def test_advice_about_an_item_is_wrong() -> None:
    sentence = make_sentence("In earlier runs this recovered the call: month=2025-04 (1 run).", "month")
    entry = make_entry({"month": "2025-03"}, sentences=[sentence])

    assert judge_plays(make_play(entry, status="partial")).wrong_advice == 1


def test_advice_of_memory_about_a_privileged_argument_is_wrong() -> None:
    cure = make_cure(changes={"account": "A2"}, rule="privileged")

    assert (
        judge_sentence("In earlier runs this recovered the call: account=A2 (1 run).", {"account": "A1"}, cure)
        == "wrong"
    )
    assert judge_sentence("Change account from A1 to A2.", {"account": "A1"}, cure) == "right"


def test_clock_moves_days_without_waiting() -> None:
    import time

    from learning.stage import DAY, START, Clock

    clock = Clock()
    with clock.replace_time():
        clock.move_to(START + 3 * DAY)
        assert int((time.time() - START) // DAY) == 3
    assert abs(time.time() - time.time_ns() / 1e9) < 1


def test_programs_play_in_all_modes() -> None:
    import learning.programs  # noqa: F401 - fills the list
    from learning.player import PROGRAMS, play_program

    assert len(PROGRAMS) >= 60
    verdicts = play_program("months_with_random_gaps", runs=3)
    assert verdicts.runs == 3
    assert all(weeks[0].calls + weeks[1].calls == 36 for weeks in verdicts.weeks.values())
    assert play_program("range_that_nobody_states", runs=3).runs_recovered == 3
    assert play_program("tasks_in_a_group", runs=3).warnings == 0


def test_programs_raise_nothing_unexpected_without_mulligan() -> None:
    import learning.programs  # noqa: F401 - fills the list
    from learning.player import PROGRAMS, play_runs

    errors = {name: play.error for name in PROGRAMS for play in play_runs(name, "off", "", 2, 14.0, 0) if play.error}

    assert set(errors) == {"raises_at_last"}
