"""The judge of `evals/learning`: what is wrong is counted as wrong, and programs play in all three modes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EVALS = str(Path(__file__).parent.parent / "evals")


@pytest.fixture(autouse=True)
def _evals_on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(EVALS)
    yield
    for name in [name for name in sys.modules if name == "learning" or name.startswith("learning.")]:
        del sys.modules[name]


def make_play(*entries: Any, status: str = "success") -> Any:
    from learning.stage import Play, RunEntry

    run = RunEntry("agent", list(entries), status)
    return Play(0, 0.0, [run], list(entries))


def make_entry(given: dict[str, Any], made: dict[str, Any] | None = None, **facts: Any) -> Any:
    """Make a call that succeeded with `made`; without it, one that failed."""
    from learning.stage import Entry, Execution

    first = Execution("fetch", given, has_failed=made != given)
    executions = [first] if made in (None, given) else [first, Execution("fetch", made)]
    return Entry("fetch", given, 0, executions=executions, has_failed=made is None, **facts)


def judge(full: Any, empty: Any = None, off: Any = None) -> Any:
    from learning.judge import judge_plays

    return judge_plays({"full": [full], "empty": [empty or full], "off": [off or full]})


def make_sentence(text: str, arguments: tuple[str, ...] = ("month", "days"), tools: tuple[str, ...] = ()) -> Any:
    from learning.advice import read_sentence

    return read_sentence(text, "fetch", arguments, ("fetch", *tools))


def test_judge_counts_the_result_of_another_item_as_wrong() -> None:
    assert judge(make_play(make_entry({"month": "2025-03"}, {"month": "2025-04"}))).wrong_results == 1


def test_judge_counts_the_result_of_a_real_repair_as_right() -> None:
    from learning.truth import Cure

    repaired = make_entry({"days": 30}, {"days": 7}, cure=Cure(name="days", changes={"days": 7}))

    assert judge(make_play(repaired, status="recovered")).wrong_results == 0


def test_judge_counts_a_lost_item_in_a_recovered_run() -> None:
    verdicts = judge(make_play(make_entry({"month": "2025-03"}), status="recovered"))

    assert (verdicts.false_recovered, verdicts.runs_with_loss) == (1, 1)
    assert "false_recovered" in verdicts.missed_goals()


def test_judge_counts_a_repair_that_only_an_empty_memory_makes() -> None:
    verdicts = judge(make_play(make_entry({"days": 30})), empty=make_play(make_entry({"days": 30}, {"days": 7})))

    assert (verdicts.regressions, verdicts.harm) == (1, 0)


def test_judge_counts_a_call_that_fails_only_with_mulligan() -> None:
    failed, made = make_entry({"days": 3}), make_entry({"days": 3}, {"days": 3})

    assert judge(make_play(failed), off=make_play(made)).harm == 1


def test_judge_counts_a_refused_call_of_a_program() -> None:
    refused, made = make_entry({"days": 3}), make_entry({"days": 3})
    refused.executions.clear()

    assert judge(make_play(refused), empty=make_play(refused), off=make_play(made)).harm == 1


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("This worked before, in 2 of 3 runs: days=7.", "right"),
        ("This may work: days 30 -> 7, by what the error says.", "right"),
        ("This worked before, once: days=9.", "wrong"),
        ("This worked before, once: another month; days=7.", "wrong"),
        ("This worked before, once: another days.", "neutral"),
        ("The same call worked before, once, after login(user=...).", "wrong"),
        ("The same call worked before, once, when it was made again later.", "neutral"),
        ("mulligan: tool/timeout, 1 attempt in 0.0 s; only the model can help. Details: mulligan show 1", "neutral"),
        ("Something nobody has thought of.", "unread"),
    ],
)
def test_advice_is_held_against_the_truth(text: str, verdict: str) -> None:
    from learning.advice import judge
    from learning.truth import Cure

    cure = Cure(name="days", changes={"days": 7})

    assert judge(make_sentence(text, tools=("login",)), {"month": "2025-03", "days": 30}, cure) == verdict


def test_advice_about_an_item_is_always_wrong() -> None:
    entry = make_entry({"month": "2025-03"}, sentences=[make_sentence("This worked before, once: month=2025-04.")])

    assert judge(make_play(entry, status="partial")).wrong_advice == 1


def test_right_advice_of_a_privileged_argument_is_wrong() -> None:
    from learning.advice import judge
    from learning.truth import Cure

    cure = Cure(name="account", changes={"account": "A2"}, rule="privileged")

    assert (
        judge(make_sentence("This worked before, once: account=A2.", ("account",)), {"account": "A1"}, cure) == "wrong"
    )


def test_programs_play_in_all_modes() -> None:
    import learning.programs  # noqa: F401 - fills the list
    from learning.player import PROGRAMS, play_program

    assert len(PROGRAMS) >= 60
    verdicts = play_program("months_with_random_gaps", runs=3)
    assert verdicts.runs == 3
    assert all(weeks[0].calls + weeks[1].calls == 36 for weeks in verdicts.weeks.values())
    assert play_program("range_that_nobody_states", runs=3).runs_recovered == 3
    assert play_program("tasks_in_a_group", runs=3).warnings == 0
