"""Attempts grouped into calls, what changed between two calls, and precedents."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from mulligan.core import calls
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import VERIFY, Change, Link, Recovery, RecoveryStop, Step

TIMEOUT = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow", fingerprint="f-timeout")
REJECTED = Failure.of(Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "no", fingerprint="f-rejected")


def step(seq: int, call: int | None = None, attempt: int = 1, *, failure: Failure | None = None, **fields: Any) -> Step:
    outcome = fields.pop("outcome", "success" if failure is None else "failure")
    return Step(
        run="run_a",
        seq=seq,
        call=call if call is not None else seq,
        attempt=attempt,
        name=fields.pop("name", "search"),
        outcome=outcome,
        failure=failure,
        **fields,
    )


# Attempts


def test_attempts_at_one_thing_are_one_call_in_the_order_they_were_made():
    steps = [step(3, 1, 2), step(2, name="other"), step(1, failure=TIMEOUT)]

    joined = calls.group_attempts(steps)

    assert [[each.seq for each in call.steps] for call in joined] == [[1, 3], [2]]
    assert [call.name for call in joined] == ["search", "other"]


def test_a_call_says_how_it_ended():
    waited = step(2, 1, 2, recovery=Recovery(remedy=Remedy.RETRY, backoff_seconds=1.5))
    changed = step(2, 1, 2, recovery=Recovery(remedy=Remedy.REPAIR, changes=(Change(path="k", operation="clamp"),)))
    later = msgspec.structs.replace(changed, seq=3, attempt=3)

    def ending(*steps: Step) -> str:
        return calls.group_attempts(steps)[0].outcome_label

    assert ending(step(1)) == "first attempt"
    assert ending(step(1, failure=TIMEOUT)) == "unrecovered"
    assert ending(step(1, failure=TIMEOUT), waited) == "recovered by retry"
    assert ending(step(1, failure=REJECTED), changed) == "repaired"
    assert ending(step(1, failure=REJECTED), step(2, 1, 2, failure=REJECTED), later) == "repaired on a later attempt"
    again = msgspec.structs.replace(changed, outcome="failure", failure=REJECTED)
    assert ending(step(1, failure=REJECTED), again, later) == "repaired by the second repair"
    offered = RecoveryStop(reason='the mode is "suggest"', suggestions=(Recovery(remedy=Remedy.REPAIR),))
    assert ending(step(1, failure=REJECTED, stop=offered)) == "unrecovered, with suggestions"
    checked = step(2, 1, 2, recovery=Recovery(remedy=Remedy.RETRY, source="verify"))
    assert ending(step(1, failure=TIMEOUT), checked) == "confirmed by verify"
    assert ending(step(1, outcome="cancelled")) == "cancelled"
    assert calls.group_attempts([step(1, failure=TIMEOUT), waited])[0].backoff_seconds == 1.5


def test_a_call_says_what_its_recovery_took():
    first = step(1, failure=TIMEOUT, duration_seconds=3.0, tokens={"input": 5, "output": 2})
    second = step(
        2, 1, 2, duration_seconds=0.5, tokens={"input": 7}, recovery=Recovery(remedy=Remedy.RETRY, backoff_seconds=1.5)
    )
    (call,) = calls.group_attempts([first, second])
    assert call.recovery_seconds == 2.0


def test_time_between_attempts_that_is_no_backoff_is_part_of_the_recovery():
    first = step(1, failure=TIMEOUT, started_at=1000, duration_seconds=0.1)
    recovery = Recovery(remedy=Remedy.RETRY, backoff_seconds=0.3)
    (call,) = calls.group_attempts([first, step(2, 1, 2, started_at=1600, duration_seconds=0.05, recovery=recovery)])
    assert call.planning_seconds == pytest.approx(0.2)
    assert call.recovery_seconds == pytest.approx(0.55)


@pytest.mark.parametrize(
    ("recovery", "is_retry"),
    [
        (None, True),
        (Recovery(remedy=Remedy.RETRY, backoff_seconds=2.0), True),
        (Recovery(remedy=Remedy.RETRY, source=VERIFY), False),
        (Recovery(remedy=Remedy.REPAIR, changes=(Change(path="k", operation="clamp", after=5),)), False),
        (Recovery(remedy=Remedy.REPAIR, prerequisites=("login",)), False),
        (Recovery(remedy=Remedy.COMPRESS, source="structure"), False),
        (Recovery(remedy=Remedy.REPLAN, source="fallback"), False),
    ],
)
def test_attempt_is_retry_only_where_it_repeats_the_same_call(recovery, is_retry):
    assert calls.is_retry(recovery) is is_retry


# What changed


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 1.5]) | st.text("ab 1[]", max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


def applied(before: Any, changes: tuple[Change, ...]) -> Any:
    """Does to the arguments what the changes say."""
    if len(changes) == 1 and changes[0].path == "":
        return changes[0].after
    after = msgspec.json.decode(msgspec.json.encode(before))
    for change in changes:
        *above, name = change.path.split(".")
        place = after
        for key in above:
            place = place[key]
        if change.operation == "drop":
            del place[name]
        elif change.operation == "rename":
            place[change.after] = place.pop(name)
        else:
            place[name] = change.after
    return after


@given(CALLS | JSON, CALLS | JSON)
def test_changes_applied_to_the_first_arguments_give_the_second(before, after):
    changes = calls.diff_arguments(before, after)
    assert calls.is_same_json(applied(before, changes), after)
    assert bool(changes) is not calls.is_same_json(before, after)


@pytest.mark.parametrize(
    ("arguments", "operation", "path", "after", "is_there"),
    [
        ({"hours": 48}, "substitute", "hours", 48, True),
        ({"hours": 72}, "substitute", "hours", 48, False),
        ({"flag": 1}, "substitute", "flag", True, False),
        ({}, "default", "hours", 48, False),
        ({"filter": {"year": 2026}}, "substitute", "filter.year", 2026, True),
        ({"filter.year": 2026}, "substitute", "filter.year", 2026, True),
        ({"filter": None}, "substitute", "filter.year", 2026, False),
        ({"limit": 5}, "rename", "amount", "limit", True),
        ({"amount": 5}, "rename", "amount", "limit", False),
        ({}, "drop", "note", None, True),
        ({"note": ""}, "drop", "note", None, False),
        ({"k": 5}, "cast", "k", "integer", False),
    ],
)
def test_changes_that_a_call_already_has_would_not_change_it(arguments, operation, path, after, is_there):
    assert calls.has_changes(arguments, [Change(path=path, operation=operation, after=after)]) is is_there
    other = Change(path="q", operation="substitute", after="tea")
    assert not calls.has_changes(arguments, [Change(path=path, operation=operation, after=after), other])
    assert not calls.has_changes(arguments, [])


@pytest.mark.parametrize(
    ("call", "is_it"),
    [
        ({"harbor": "Dakar", "hours": 48}, True),
        ({"harbor": "Dakar", "hours": 72}, False),
        ({"harbor": "Lagos", "hours": 48}, False),
        ({"hours": 48}, False),
    ],
)
def test_changed_call_has_the_changes_and_otherwise_the_same_arguments(call, is_it):
    change = Change(path="hours", operation="substitute", after=48)
    assert calls.is_changed_call(call, {"harbor": "Dakar", "hours": 96}, [change]) is is_it


@pytest.mark.parametrize(
    ("before", "after", "how"),
    [
        ("5", 5, "cast"),
        (5, "5", "cast"),
        (5.0, 5, "cast"),
        ("true", True, "cast"),
        (1, True, "cast"),
        (" x ", "x", "trim"),
        ("METRIC", "metric", "enum"),
        ('{"a": 1}', {"a": 1}, "parse"),
        ("x", ["x"], "wrap"),
        ("x", "y", "substitute"),
        (50, 10, "substitute"),
    ],
)
def test_a_change_is_called_what_it_is(before, after, how):
    assert calls.diff_arguments({"x": before}, {"x": after}) == (
        Change(path="x", operation=how, before=before, after=after),
    )


class Odd:
    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_objects_that_cannot_be_compared_are_not_the_same():
    odd = Odd()
    assert not calls.is_same_json({"x": odd}, {"x": Odd()})
    assert [change.operation for change in calls.diff_arguments({"x": odd}, {"x": Odd()})] == ["substitute"]


@pytest.mark.parametrize(("left", "right"), [(1, True), (1, 1.0), (0, False), ("1", 1), ([1], [True])])
def test_values_that_only_python_finds_equal_are_not_the_same(left, right):
    assert not calls.is_same_json({"x": left}, {"x": right})
    assert calls.is_same_json({"x": left, "y": 2}, {"y": 2, "x": left})


# Precedents


def link(run: str, how: str = "agent", after: Any = 5, between: tuple[str, ...] = ()) -> Link:
    changes = (Change(path="k", operation="substitute", before=50, after=after),) if how == "agent" else ()
    return Link(run=run, failed_call=1, recovering_call=2, method=how, changes=changes, intermediate_tools=between)  # type: ignore[arg-type]


@given(st.permutations([(1, link("a", after=7)), (3, link("b")), (1, link("d", "retry")), (2, link("e", after=8))]))
def test_the_most_frequent_precedent_comes_first_in_whatever_order_links_come(links):
    found = calls.rank_precedents(links, run_count=9)

    assert [(each.method, each.successes, each.occurrences) for each in found] == [
        ("agent", 3, 9), ("agent", 2, 9), ("agent", 1, 9), ("retry", 1, 9)]  # fmt: skip
    assert found[0].changes[0].after == 5


def test_the_same_change_in_another_run_is_the_same_precedent():
    assert calls.precedent_key(link("a")) == calls.precedent_key(link("b"))
    assert calls.precedent_key(link("a")) != calls.precedent_key(link("a", after=7))
    assert calls.precedent_key(link("a", after=1)) != calls.precedent_key(link("a", after=True))


# How alike two texts are


@given(st.text("ab c", max_size=40), st.text("ab c", max_size=40))
@settings(max_examples=200)
def test_texts_are_as_alike_as_difflib_says_only_faster(one, other):
    from difflib import SequenceMatcher

    assert calls.similarity(one, other) == SequenceMatcher(None, one, other, autojunk=False).ratio()


def test_long_texts_are_compared_by_their_beginnings():
    assert calls.similarity("a" * 200 + "b" * 10**7, "a" * 200 + "c" * 10**7) == 1.0
    assert calls.similarity("", "") == 1.0
    assert calls.similarity("STRASSE", "straße") == 1.0
