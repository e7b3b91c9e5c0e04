"""What runs are filtered and sorted by stays what their stored attempts say, whatever happens to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from stores import Writer

from mulligan.contract.run_facts import RUN_FACTS, compute_facts
from mulligan.contract.store import DAY, DEFAULT_TENANT, ForgetRequest, Retention, RunQuery, Store, now
from mulligan.core.events import FailureRecorded, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Run, Step

SLOW = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow for zebra-4711", fingerprint="f-slow")
TOKENS = {"input": 5}


def fill(write: Writer) -> None:
    """An ended run: a model and a tool that fails work, another tool fails twice."""
    outcomes = (("gpt", "model", None), ("fetch", "tool", None), ("search", "tool", SLOW), ("fetch", "tool", SLOW))
    steps = [
        Step(
            run="run_a", seq=seq, call=seq, name=name, type=type, failure=failure, started_at=seq,
            outcome="failure" if failure else "success", tokens=TOKENS, cost_nanos=10**9,
        )
        for seq, (name, type, failure) in enumerate(outcomes, start=1)
    ]  # fmt: skip
    started = Run(id="run_a", agent="zebra-4711", started_at=1000)
    ended = Run(id="run_a", agent="zebra-4711", started_at=1000, ended_at=3000, end_reason="finished")
    write(RunStarted(started), *map(StepEnded, steps), RunEnded(ended))


def find(store: Store, **query: Any) -> list[str]:
    return [history.run.id for history in store.runs(DEFAULT_TENANT, RunQuery(**query))]


def check_facts(store: Store) -> dict[str, int]:
    """Ask for each fact with its value, and with one more."""
    history = store.run(DEFAULT_TENANT, "run_a")
    assert history is not None
    facts = compute_facts(history)
    for name, value in facts.items():
        scale = RUN_FACTS[name].scale
        assert find(store, order=name, min_facts={name: value / scale}) == ["run_a"], name
        assert find(store, order=name, min_facts={name: (value + 1) / scale}) == [], name
    return facts


CHANGES: dict[str, tuple[Callable[[Store, Writer], Any], dict[str, int]]] = {
    "none": (lambda store, write: None, {"attempts": 4, "tool_failures": 2, "cost": 4 * 10**9, "duration": 2000}),
    "a tool is erased": (
        lambda store, write: store.forget(DEFAULT_TENANT, ForgetRequest(tool="fetch")),
        {"attempts": 2, "tool_failures": 1, "tokens": 10},
    ),
    "a text is erased, and with it the agent": (
        lambda store, write: store.forget(DEFAULT_TENANT, ForgetRequest(text="zebra-4711")),
        {"attempts": 4, "tool_failures": 2},
    ),
    "successes are sampled": (
        lambda store, write: store.prune(DEFAULT_TENANT, Retention(sample=1e-9), now() + 10 * DAY),
        {"attempts": 2, "tool_failures": 2, "cost": 2 * 10**9},
    ),
    "a success is replaced by a failure": (
        lambda store, write: write(FailureRecorded("run_a", 2, SLOW)),
        {"attempts": 4, "tool_failures": 3, "tokens": 20},
    ),
    "the run has another agent": (
        lambda store, write: write(
            RunEnded(Run(id="run_a", agent="x", started_at=1000, ended_at=4000, end_reason="finished"))
        ),
        {"attempts": 4, "tool_failures": 2, "duration": 3000},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_facts_follow_the_attempts_of_a_run(store, write, name):
    change, expected = CHANGES[name]
    fill(write)
    change(store, write)
    assert check_facts(store).items() >= expected.items()


def test_facts_of_a_run_are_gone_with_it(store, write):
    fill(write)
    store.forget(DEFAULT_TENANT, ForgetRequest(run="run_a"))
    assert find(store, order="attempts") == []
    fill(Writer(store, journal="later"))
    assert check_facts(store)["attempts"] == 4


@pytest.mark.parametrize("query", [{"order": "agent"}, {"min_facts": {"agent": 1}}], ids=str)
def test_a_question_for_another_fact_is_refused(query):
    with pytest.raises(ValueError, match="tool_failures"):
        RunQuery(**query)
