"""What successful calls had in common: which facts a profile has, and when one of them is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.contract.store import (
    DEFAULT_TENANT,
    ITEMS_KIND,
    SCHEMA_KIND,
    ForgetRequest,
    Revocation,
    Store,
    update_schema,
)  # fmt: skip
from mulligan.core.events import RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Run, Step, ValueProfile
from mulligan.learn.profiles import MIN_FACT_CALLS, MIN_FACT_RUNS, build_value_profiles, select_facts
from mulligan.prompt import Prompt
from mulligan.store.sqlite import MemoryStore

REJECTED = Kind("tool", "invalid_arguments", Remedy.REPAIR)


def tell(
    values: list[Any], failed: dict[str, Any], error: str = "Bad days.", name: str = "days", runs: int = 5
) -> list[str]:
    """Return the sentences after a failure, where earlier calls had these values in so many runs."""
    calls = [(at % runs, {name: value}) for at, value in enumerate(values)]
    facts = select_facts(build_value_profiles(calls), Failure.of(REJECTED, error), failed)
    return Prompt().facts(facts)


def test_number_outside_the_range_of_successes_is_told() -> None:
    assert tell([1, 7, 3, 3] * 5, {"days": 9}) == ["In 20 successful calls, days was between 1 and 7."]
    assert tell([0.5] * 20, {"days": 9}) == ["In 20 successful calls, days was always 0.5."]


def test_number_inside_the_range_tells_nothing() -> None:
    assert tell([1, 7, 3, 3] * 5, {"days": 4}) == []


def test_few_calls_or_few_runs_tell_nothing() -> None:
    assert tell([1, 7] * (MIN_FACT_CALLS // 2 - 1), {"days": 9}) == []
    assert tell([1, 7] * MIN_FACT_CALLS, {"days": 9}, runs=MIN_FACT_RUNS - 1) == []


def test_error_about_another_argument_tells_nothing() -> None:
    assert tell([1, 7] * 10, {"days": 9, "city": "Bonn"}, error="Unknown city.") == []


def test_error_that_names_no_argument_tells_the_only_value_outside() -> None:
    assert tell([1, 7] * 10, {"days": 9}, error="Bad request.") == ["In 20 successful calls, days was between 1 and 7."]
    calls = [(at % 5, {"days": 3, "hours": 3}) for at in range(20)]
    rejected = Failure.of(REJECTED, "Bad request.")
    assert select_facts(build_value_profiles(calls), rejected, {"days": 9, "hours": 9}) == []


def test_argument_in_a_note_of_mulligan_tells_nothing() -> None:
    assert (
        tell([1, 7] * 10, {"days": 9, "city": "Bonn"}, error="Unknown city.\nmulligan: In earlier runs: days=7.") == []
    )


def test_failure_that_rejects_no_value_tells_nothing() -> None:
    profiles = build_value_profiles([(at % 5, {"days": 3}) for at in range(20)])

    assert select_facts(profiles, Failure.of(Kind("tool", "timeout", Remedy.RETRY), "days"), {"days": 9}) == []


def test_numbers_that_are_all_different_have_no_range() -> None:
    assert tell(list(range(1000, 1040)), {"days": 5}) == []  # like the numbers of orders


def test_words_that_repeat_are_told_and_others_are_not() -> None:
    units = ["metric", "imperial"] * 10

    assert tell(units, {"unit": "kelvin"}, "Unknown unit.", "unit") == [
        "In 20 successful calls, unit was imperial or metric."
    ]
    assert tell([*units, "si"], {"unit": "kelvin"}, "Unknown unit.", "unit") == []  # of one run only
    assert tell([f"w{at}" for at in range(20)], {"unit": "kelvin"}, "Unknown unit.", "unit") == []


@pytest.mark.parametrize("value", ["Ida", "ida@example.com", "two words", "x" * 30, "A-1047", "G12"])
def test_texts_that_may_belong_to_a_person_or_a_run_are_not_told(value: str) -> None:
    assert tell([value] * 20, {"unit": "kelvin"}, "Unknown unit.", "unit") == []


@pytest.mark.parametrize("name", ["author", "user", "account_id", "path", "amount", "token"])
def test_arguments_that_may_name_somebody_or_are_privileged_are_not_told(name: str) -> None:
    assert tell(["alpha"] * 20, {name: "beta"}, f"Bad {name}.", name) == []


def test_other_type_and_missing_argument_are_told() -> None:
    assert tell([1, 7] * 10, {"days": "many"}) == ["In 20 successful calls, days was an integer."]
    assert tell([1, 7] * 10, {}) == ["In 20 successful calls, days was always given, as an integer."]


def test_other_format_is_told() -> None:
    dates = [f"2026-03-{day:02}" for day in range(1, 25)]

    assert tell(dates, {"day": "tomorrow"}, "Bad day.", "day") == [
        "In 24 successful calls, day was a date (YYYY-MM-DD)."
    ]
    assert tell(dates, {"day": "2027-01-01"}, "Bad day.", "day") == []


def test_member_of_a_nested_object_is_told_by_its_path() -> None:
    calls = [(at % 5, {"request": {"days": 3}}) for at in range(20)]
    facts = select_facts(build_value_profiles(calls), Failure.of(REJECTED, "Bad days."), {"request": {"days": 9}})

    assert Prompt().facts(facts) == ["In 20 successful calls, request.days was always 3."]


@pytest.mark.parametrize("value", ["[redacted password]", "[str 5 chars #0123456789ab]", {"$str": 5}, "[int]"])
def test_redacted_values_have_no_profile(value: Any) -> None:
    profiles = build_value_profiles([(at % 5, {"unit": value}) for at in range(20)])

    assert [profile for profile in profiles if profile.argument == "unit"] == []


@given(
    st.lists(st.dictionaries(st.text(max_size=8), st.text(min_size=21, max_size=40) | st.lists(st.text()), max_size=4))
)
def test_profile_contains_no_long_text_of_a_call(calls: list[dict[str, Any]]) -> None:
    for profile in build_value_profiles(list(enumerate(calls))):
        assert profile.values == ()


# From a store


@pytest.fixture
def store() -> Iterator[Store]:
    opened = MemoryStore(lambda: 9)
    yield opened
    opened.close()


def record_successes(store: Store, count: int, start: int = 0, **arguments: Any) -> None:
    for number in range(start, start + count):
        id = f"run_{number:04}"
        step = Step(run=id, seq=1, call=1, name="forecast", arguments=arguments)
        store.append(DEFAULT_TENANT, [RunStarted(Run(id=id, started_at=number)), StepEnded(step)], f"journal_{id}", 1)


def profiles_of(store: Store) -> dict[str, ValueProfile]:
    return {profile.argument: profile for profile in store.value_profiles(DEFAULT_TENANT, "forecast")}


def test_store_profiles_its_latest_successes(store: Store) -> None:
    record_successes(store, 30, days=3)
    record_successes(store, 80, start=30, days=5)
    profile = profiles_of(store)["days"]

    assert (profile.minimum, profile.maximum) == (5, 5)  # earlier calls do not count any more
    assert profile.calls == profile.runs == 64


def test_calls_before_a_change_of_the_schema_do_not_count(store: Store) -> None:
    record_successes(store, 20, days=3)
    for digest, at in (("a", 5), ("b", 10)):
        entry = update_schema(store.get(DEFAULT_TENANT, SCHEMA_KIND, "forecast"), digest, at)
        assert entry is not None
        store.put(DEFAULT_TENANT, SCHEMA_KIND, "forecast", entry)

    assert profiles_of(store)["days"].calls == 10


def test_items_forgotten_and_revoked_calls_have_no_profile(store: Store) -> None:
    record_successes(store, 20, days=3, month=1)
    store.put(DEFAULT_TENANT, ITEMS_KIND, "forecast", b'["month"]')
    assert set(profiles_of(store)) == {"days"}

    store.revoke(DEFAULT_TENANT, Revocation(tool="forecast", until=15))
    assert profiles_of(store)["days"].calls == 5
    store.forget(DEFAULT_TENANT, ForgetRequest(learned=100))
    assert profiles_of(store) == {}
