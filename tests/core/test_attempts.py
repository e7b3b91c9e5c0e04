"""Attempts that a program recorded as steps of their own are one call, if they say so."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.core.attempts import AttemptTracker, join_attempts, mark_attempt, parse_attempt_name
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Step

TIMEOUT = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "no answer")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("fetch_attempt_1", ("fetch", 1)),
        ("fetch-attempt-2", ("fetch", 2)),
        ("fetch_attempt_0", ("fetch", 0)),
        ("fetch-retry-1", ("fetch", 2)),
        ("fetch page (retry 2)", ("fetch page", 3)),
        ("fetch (Attempt #3)", ("fetch", 3)),
        ("fetch [attempt 12]", ("fetch", 12)),
        ("fetch retry1", ("fetch", 2)),
        ("fetch_retry_3", ("fetch", 4)),
        ("entry3", None),
        ("sentry_3", None),
        ("attempt_3", None),
        ("retry", None),
        ("fetch_attempt", None),
        ("fetch_attempt_2_b", None),
        ("fetch_attempt_1234", None),
        ("_attempt_1", None),
        ("x" * 10_000_000 + "_attempt_2", ("x" * 10_000_000, 2)),
        ("\ud800 (retry 1)", ("\ud800", 2)),
    ],
)
def test_end_of_a_name_numbers_an_attempt(name: str, parts: tuple[str, int] | None) -> None:
    parsed = parse_attempt_name(name)
    assert (parsed and tuple(parsed)) == parts


def step(seq: int, name: str = "fetch", **fields: Any) -> Step:
    fields = {"call": seq, "started_at": seq * 10_000, "duration_seconds": 1.0, **fields}
    return mark_attempt(Step(run="r", seq=seq, name=name, **fields))


def failed(seq: int, name: str = "fetch", **fields: Any) -> Step:
    return step(seq, name, outcome="failure", failure=TIMEOUT, **fields)


def calls_of(*steps: Step) -> list[tuple[str, int, int]]:
    return [(step.name, step.call, step.attempt) for step in join_attempts(steps)]


@pytest.mark.parametrize(
    "names",
    [
        ("fetch_attempt_1", "fetch_attempt_2", "fetch_attempt_3"),
        ("fetch_attempt_0", "fetch_attempt_1", "fetch_attempt_2"),
        ("fetch", "fetch-retry-1", "fetch-retry-2"),
        ("fetch", "fetch (retry 1)", "fetch (retry 2)"),
        ("fetch", "fetch_attempt_2", "fetch_attempt_5"),
    ],
)
def test_steps_whose_names_number_attempts_are_one_call(names: tuple[str, ...]) -> None:
    steps = [failed(seq, name) for seq, name in enumerate(names, start=1)]
    joined = join_attempts(steps)
    assert [(step.name, step.call) for step in joined] == [("fetch", 1)] * 3
    assert [step.attempt for step in joined][:2] == [1, 2]
    assert [step.attempt for step in joined] == sorted({step.attempt for step in joined})


def test_equal_names_without_a_number_are_calls_of_their_own() -> None:
    assert calls_of(failed(1), failed(2), step(3)) == [("fetch", 1, 1), ("fetch", 2, 1), ("fetch", 3, 1)]


def test_first_attempt_begins_another_call() -> None:
    names = ["fetch_attempt_1", "fetch_attempt_2", "fetch_attempt_1", "fetch_attempt_2"]
    steps = [failed(seq, name) for seq, name in enumerate(names, start=1)]
    assert [step.call for step in join_attempts(steps)] == [1, 1, 3, 3]


def test_attempts_of_another_parent_or_tool_are_other_calls() -> None:
    steps = [failed(1, "fetch_attempt_1"), failed(2, "send_attempt_2"), failed(3, "fetch_attempt_2", parent=2)]
    assert [step.call for step in join_attempts(steps)] == [1, 2, 3]


def test_attempt_number_continues_the_latest_call_of_the_tool() -> None:
    steps = [failed(1), failed(2, attempt=2), step(3, "send"), step(4, attempt=3)]
    assert calls_of(*steps) == [("fetch", 1, 1), ("fetch", 1, 2), ("send", 3, 1), ("fetch", 1, 3)]


def test_step_that_names_its_call_is_the_next_attempt_of_it() -> None:
    steps = [failed(1), failed(2), failed(3, call=1, attempt=2), step(4, call=1, attempt=2)]
    assert calls_of(*steps) == [("fetch", 1, 1), ("fetch", 2, 1), ("fetch", 1, 2), ("fetch", 1, 3)]


def test_later_attempt_tells_backoff_and_what_it_changed() -> None:
    first, retry, repair = join_attempts(
        [
            failed(1, "fetch_attempt_1", arguments={"top": 20}),
            failed(2, "fetch_attempt_2", arguments={"top": 20}),
            step(3, "fetch_attempt_3", arguments={"top": 10}),
        ]
    )
    assert first.recovery is None
    assert retry.recovery is not None
    assert (retry.recovery.remedy, retry.recovery.backoff_seconds) == (Remedy.RETRY, 9.0)
    assert repair.recovery is not None
    assert (repair.recovery.remedy, repair.recovery.changes[0].after) == (Remedy.REPAIR, 10)


def test_number_that_a_program_counts_from_0_continues_a_call() -> None:
    tracker = AttemptTracker(max_calls=2)
    joined = [tracker.add(failed(seq), rank=seq - 1) for seq in (1, 2, 3)]
    assert [(step.call, step.attempt) for step in joined] == [(1, 1), (1, 2), (1, 3)]


def test_tracker_remembers_a_limited_number_of_calls() -> None:
    tracker = AttemptTracker(max_calls=2)
    for seq in range(1, 10):
        tracker.add(failed(seq, f"tool {seq}"))
    assert tracker.add(step(10, "tool 1", attempt=2)).call == 10
    assert tracker.add(step(11, "tool 9", attempt=2)).call == 9
