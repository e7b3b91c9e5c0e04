"""Fixes that models follow are not told in a few runs, so that people see what they are worth."""

from __future__ import annotations

import json
from typing import Any

import pytest

import mulligan
from mulligan.capture.call_memory import MIN_FOLLOWED_RUNS, is_held_out
from mulligan.core.records import Precedent

RUNS = 60


@pytest.fixture
def play():
    """Return a function that plays runs in which a model says "fast" for "slow", and follows what it reads."""

    def play_runs(holdout: float, count: int = RUNS) -> list[tuple[str, list[str]]]:
        memory = mulligan.Mulligan(holdout=holdout)

        @memory.tool(effects="none")
        def start(job: str, queue: str) -> Any:
            if queue != "slow":
                raise ValueError(f"Unknown queue {queue}.")
            return queue

        runs = []
        for number in range(count):
            arguments = {"job": f"job {number}", "queue": "fast"}
            with memory.run("planner") as run:
                [failed, _] = [
                    turn.call([start], "start", {**arguments, "queue": queue})
                    for turn, queue in zip(memory.turns(limit=2), ("fast", "slow"), strict=True)
                ]
            memory.flush()
            runs.append((run.id, failed.notes))
        return runs

    return play_runs


def test_fix_that_is_followed_is_not_told_in_a_share_of_runs(play, types):
    runs = play(holdout=0.5)
    untold = [id for id, notes in runs[MIN_FOLLOWED_RUNS + 2 :] if not notes]
    assert 0.2 * RUNS < len(untold) < 0.8 * RUNS
    [fix] = json.loads(types("fixes", "--json")[1])
    assert (fix["successes"], fix["showable"], fix["passed_over"]) == (RUNS, True, 0)
    assert fix["followed"] == sum(bool(notes) for _, notes in runs)

    untold_run = json.loads(types("show", untold[-1], "--json")[1])["run"]
    assert untold_run["advice"] == [{"call": 1, "fix": fix["id"], "held_out": True}]
    told_run = next(id for id, notes in reversed(runs) if notes)
    assert f"> not told, to measure its effect: queue=slow ({fix['id']})" in types("show", untold[-1])[1]
    assert f"> told: queue=slow ({fix['id']})" in types("show", told_run)[1]
    counts = f"followed in {fix['followed']} runs, passed over in 0; succeeded without it in {RUNS - fix['followed']}"
    assert f"advice   {counts}" in types("fixes", "show", fix["id"])[1]


def test_without_a_share_no_run_is_held_out(play, types):
    runs = play(holdout=0, count=20)
    assert sum(bool(notes) for _, notes in runs) > 10  # a lookup may take too long
    assert [id for id, _ in runs if '"held_out": true' in types("show", id, "--json")[1]] == []


@pytest.mark.parametrize(
    "precedent",
    [
        Precedent(method="agent", fix="fix_1", followed=MIN_FOLLOWED_RUNS - 1),
        Precedent(method="agent", fix="fix_1", followed=99, forms=(("unit", "upper"),)),
        Precedent(method="agent", followed=99),
    ],
    ids=["rarely followed", "form", "no learned fix"],
)
def test_what_models_rarely_followed_and_forms_are_always_told(precedent):
    assert not any(is_held_out(precedent, f"run_{number}", 0.5) for number in range(200))


def test_share_of_runs_is_the_one_that_was_set():
    precedent = Precedent(method="agent", fix="fix_1", followed=99)
    held_out = [is_held_out(precedent, f"run_{number}", 0.05) for number in range(4000)]
    assert 120 < sum(held_out) < 280
    assert held_out == [is_held_out(precedent, f"run_{number}", 0.05) for number in range(4000)]
