"""How many attempts, how long to wait, how sure to be."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mulligan.core.failure import SettingsError
from mulligan.recover.policy import Policy

CHANCE = st.floats(0, 1)
ATTEMPTS = st.integers(2, 10)


def test_waits_grow_and_are_spread_over_the_whole_range():
    policy = Policy(initial_backoff=1, max_backoff=30)
    assert [policy.compute_backoff(attempt, None, 0.0) for attempt in (2, 3, 4)] == [1, 2, 4]
    assert policy.compute_backoff(4, None, 1.0) == 0
    assert policy.compute_backoff(4, None, 0.5) == 2


@given(ATTEMPTS, CHANCE, st.floats(0, 100), st.floats(0, 100))
def test_no_wait_is_longer_than_the_longest(attempt, chance, first, longest):
    seconds = Policy(initial_backoff=first, max_backoff=longest).compute_backoff(attempt, None, chance)
    assert 0 <= seconds <= longest


@given(ATTEMPTS, CHANCE, st.floats(0, 30))
def test_what_the_other_side_asks_for_is_waited_for_and_hardly_longer(attempt, chance, asked):
    waited = Policy(max_backoff=30).compute_backoff(attempt, asked, chance)
    assert asked <= waited <= min(asked * 1.1, 30)


@pytest.mark.parametrize("asked", [30.01, 3600, float("inf")])
def test_more_than_the_longest_wait_is_not_waited_for(asked):
    assert Policy(max_backoff=30).compute_backoff(2, asked, 0.0) is None


@pytest.mark.parametrize("asked", [-1, float("-inf"), float("nan")])
def test_a_time_that_cannot_be_waited_for_is_taken_for_none(asked):
    assert Policy(initial_backoff=1).compute_backoff(2, asked, 0.0) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempts", 0),
        ("attempts", 11),
        ("attempts", 2.5),
        ("attempts", True),
        ("attempts", "3"),
        ("initial_backoff", -1),
        ("initial_backoff", "1"),
        ("initial_backoff", float("nan")),
        ("max_backoff", float("inf")),
        ("max_backoff", None),
        ("min_confidence", 1.1),
        ("min_confidence", -0.1),
        ("min_confidence", "high"),
        ("min_confidence", float("nan")),
    ],
)
def test_a_policy_in_hand_is_a_valid_policy(field, value):
    with pytest.raises(SettingsError, match=field):
        Policy(**{field: value})


def test_too_few_attempts_are_told_with_what_to_pass_instead():
    with pytest.raises(SettingsError, match="attempts=1 turns recovery off"):
        Policy(attempts=0)
