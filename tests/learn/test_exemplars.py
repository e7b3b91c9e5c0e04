"""Where nothing like a failure was ever overcome, calls that worked say what they look like, and nothing they held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.contract.store import DEFAULT_TENANT, FixQuery, ForgetRequest, Revocation, Store, argument_types
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Change, Fix, Run, Step, encode
from mulligan.learn import profiles
from mulligan.store.sqlite import MemoryStore

WRONG = Failure.of(Kind("tool", "invalid_arguments", Remedy.REPAIR), "unknown argument", fingerprint="f-new")


@pytest.fixture
def store() -> Iterator[Store]:
    made = MemoryStore(lambda: 9)
    yield made
    made.close()


def works(store: Store, *calls: dict[str, Any], who: str = "", tenant: str = DEFAULT_TENANT, **about: Any) -> None:
    for number, arguments in enumerate(calls):
        id = f"run_{who}{number}"
        events: list[AnyEvent] = [
            RunStarted(Run(id=id, started_at=number)),
            StepEnded(Step(run=id, seq=1, call=1, name="search", arguments=arguments, **about)),
        ]
        store.append(tenant, events, f"journal_{id}", 1, who)


def asked(store: Store, arguments: dict[str, Any], tenant: str = DEFAULT_TENANT) -> list[Fix]:
    return store.fixes(tenant, FixQuery.for_failure("search", WRONG, arguments, now=10))


CALLS = tuple({"q": f"cats {number}", "k": number} for number in range(6))


def test_an_argument_that_no_such_call_has_is_the_one_that_all_of_them_have(store):
    works(store, *CALLS)
    (fix,) = asked(store, {"q": "dogs", "topK": 5})
    assert fix.changes == (Change(path="topK", operation="rename", after="k"),)
    assert (fix.type, fix.exemplars, fix.state) == ("exemplar", 6, "proposed")


def test_a_text_where_all_of_them_have_a_number_is_a_number(store):
    works(store, *CALLS)
    (fix,) = asked(store, {"q": "dogs", "k": "5"})
    assert fix.changes == (Change(path="k", operation="cast", after="integer"),)


@pytest.mark.parametrize(
    "arguments",
    [
        {"q": "dogs", "k": 5},  # it is as they are
        {"q": "dogs", "k": 5.5},  # a number is a number
        {"q": "dogs"},  # what is missing, nobody else's call supplies
        {"q": "dogs", "a": 1, "b": 2},  # which of them was meant?
        {"q": "dogs", "limit": "5"},  # of another type
        {},
    ],
)
def test_nothing_is_a_good_answer(store, arguments):
    works(store, *CALLS)
    assert asked(store, arguments) == []


def test_a_few_calls_say_nothing(store):
    works(store, *CALLS[:4])
    assert asked(store, {"q": "dogs", "topK": 5}) == []


def test_what_overcame_the_failure_itself_comes_first_and_alone(store):
    works(store, *CALLS)
    step = {"run": "run_x", "name": "search", "started_at": 5}
    failed = Step(seq=1, call=1, arguments={"q": "a", "topK": 50}, outcome="failure", failure=WRONG, **step)
    then = Step(seq=2, call=2, arguments={"q": "a", "topK": 10}, **step)
    ended = RunEnded(Run(id="run_x", started_at=5, ended_at=6, end_reason="finished"))
    store.append(
        DEFAULT_TENANT, [RunStarted(Run(id="run_x", started_at=5)), StepEnded(failed), StepEnded(then), ended], "x", 1
    )
    assert [fix.type for fix in asked(store, {"q": "dogs", "topK": 50})] == ["change"]


def test_tenants_never_meet_and_who_is_revoked_or_forgotten_is_no_example(store):
    works(store, *CALLS, who="mallory")
    assert asked(store, {"q": "dogs", "topK": 5}, tenant="theirs") == []
    assert len(asked(store, {"q": "dogs", "topK": 5})) == 1
    store.revoke(DEFAULT_TENANT, Revocation(principal="mallory"))
    assert asked(store, {"q": "dogs", "topK": 5}) == []
    works(store, *CALLS, who="ann")
    assert len(asked(store, {"q": "dogs", "topK": 5})) == 1
    store.forget(DEFAULT_TENANT, ForgetRequest(tool="search"))
    assert asked(store, {"q": "dogs", "topK": 5}) == []


def test_a_very_large_answer_is_not_read_for_its_names(store):
    works(store, *CALLS, result="x" * 100_000)
    assert asked(store, {"q": "dogs", "topK": 5}) == []


def test_the_latest_are_kept_a_few_of_each_shape():
    one, other = argument_types({"a": 1}), argument_types({"b": 1})
    assert (
        profiles.sample_by_shape([one] * 50 + [other] * 50)
        == [one] * profiles.MAX_EXEMPLARS_PER_SHAPE + [other] * profiles.MAX_EXEMPLARS_PER_SHAPE
    )


TEXTS = st.text(alphabet="xyz019 ", min_size=1, max_size=8).map(lambda text: f"secret {text}")
VALUES = st.one_of(TEXTS, st.integers(), st.booleans(), st.lists(TEXTS, max_size=2), st.none())


@given(
    worked=st.lists(st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4), max_size=12),
    failed=st.dictionaries(st.sampled_from("abcde"), VALUES, max_size=4),
)
def test_no_value_of_another_run_is_in_what_is_drawn(worked, failed):
    query = FixQuery.for_failure("search", WRONG, failed, now=10)
    found = profiles.suggest_from_exemplars(query, profiles.sample_by_shape(map(argument_types, worked)))
    assert b"secret" not in encode(found)
    assert all(change.operation in ("rename", "cast", "wrap") for fix in found for change in fix.changes)
