"""How many attempts, how long to wait, how sure to be."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mulligan.core.failure import SettingsError
from mulligan.recover.policy import Policy

CHANCE = st.floats(0, 1)
ATTEMPTS = st.integers(2, 10)


def test_backoffs_double_to_eight_seconds_and_are_spread_over_the_upper_half():
    policy = Policy(initial_backoff=1)
    assert [policy.compute_backoff(attempt, None, 0.0) for attempt in range(2, 8)] == [1, 2, 4, 8, 8, 8]
    assert policy.compute_backoff(4, None, 1.0) == 2
    assert policy.compute_backoff(4, None, 0.5) == 3


@given(ATTEMPTS, CHANCE, st.floats(0, 100), st.floats(0, 100))
def test_no_wait_is_longer_than_the_longest(attempt, chance, first, longest):
    seconds = Policy(initial_backoff=first, max_backoff=longest).compute_backoff(attempt, None, chance)
    assert 0 <= seconds <= longest


@given(ATTEMPTS, CHANCE, st.floats(0, 30))
def test_a_stated_delay_is_spread_over_as_long_again_within_the_maximum(attempt, chance, asked):
    waited = Policy(max_backoff=30).compute_backoff(attempt, asked, chance)
    assert asked <= waited <= min(asked + max(asked, 8), 30)


def test_a_stated_delay_may_take_what_remains_of_the_maximum():
    assert Policy(max_backoff=30).compute_backoff(2, 10, 1.0, elapsed=15) == 15
    assert Policy(max_backoff=30).compute_backoff(2, 10, 1.0, elapsed=21) is None


def test_a_model_waits_for_three_attempts_and_a_program_for_eight():
    program, model = Policy().limit_retries(), Policy().limit_retries(answers_model=True)
    assert (program.attempts, program.retry_seconds, program.outage_seconds) == (8, 45, 45)
    assert (model.attempts, model.retry_seconds, model.outage_seconds) == (3, 10, 20)


@pytest.mark.parametrize("answers_model", [False, True])
def test_limits_that_were_set_replace_those_of_the_caller(answers_model):
    assert Policy(attempts=5).limit_retries(answers_model=answers_model).attempts == 5
    assert Policy(attempts=5).limit_retries(answers_model=answers_model).retry_seconds == 45
    assert Policy(retry_seconds=7).limit_retries(answers_model=answers_model).outage_seconds == 7
    assert Policy().limit_retries(answers_model=answers_model, has_timeout=True).retry_seconds == float("inf")


def test_a_client_keeps_at_least_its_own_retries():
    assert Policy().limit_retries(client_retries=2).attempts == 8
    assert Policy().limit_retries(client_retries=9).attempts == 10
    assert Policy(attempts=2).limit_retries(client_retries=9).attempts == 2


@pytest.mark.parametrize(
    ("field", "value", "replacement"),
    [
        ("retry_budget_burst", 10, "retry_tokens"),
        ("retry_budget_ratio", 0.1, "retry_tokens"),
        ("circuit_breaker", False, "down_after = 0"),
    ],
)
def test_a_limit_of_0_1_0_that_is_gone_names_its_replacement(field, value, replacement):
    with pytest.raises(SettingsError, match=f"{field} was removed.*{replacement}"):
        Policy(**{field: value})


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
        ("retry_seconds", -1),
        ("retry_tokens", 1.5),
        ("down_after", None),
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
