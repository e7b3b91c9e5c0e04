"""The retries of one call: the generator is driven by hand, and nothing waits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Recovery
from mulligan.recover.policy import Policy
from mulligan.recover.retry_schedule import ON_EVENT_LOOP, BackoffMove, RetryQueries, RetrySchedule, WaitMove
from mulligan.recover.target_state import NO_TOKENS, RetryTurn

RESET = Failure.of(Kind("tool", "connection_error", Remedy.RETRY))
LIMITED = Failure.of(Kind("tool", "rate_limit", Remedy.RETRY))
RETRY = Recovery(remedy=Remedy.RETRY)


def make_schedule(policy: Policy | None = None, turns: Iterable[RetryTurn] = (), **queries: Any) -> RetrySchedule:
    policy, remaining = policy or Policy(), iter(turns)
    limits = queries.pop("limits", None) or policy.limit_retries()
    queries.setdefault("describe_target", lambda: "db-a")
    take_turn = lambda *attempt, **options: next(remaining, RetryTurn())  # noqa: E731 - an answer for each question
    return RetrySchedule(policy, RetryQueries(limits=limits, take_turn=take_turn, **queries))


def play(schedule: RetrySchedule, recovery: Recovery = RETRY) -> tuple[list[Any], Recovery, str]:
    """Return the moves of one retry, its recovery, and why it is not made."""
    moves, steps = [], schedule.await_turn(RESET, recovery)
    while True:
        try:
            moves.append(next(steps))
        except StopIteration as stop:
            return moves, *stop.value


def stated(seconds: float) -> Failure:
    return Failure.of(LIMITED.kind, retry_after=seconds)


def test_retries_end_after_eight_attempts() -> None:
    schedule = make_schedule()
    backoffs = []
    while not isinstance(seconds := schedule.plan_retry(RESET), str):
        backoffs.append(seconds)
        play(schedule, Recovery(remedy=Remedy.RETRY, backoff_seconds=seconds))
    assert backoffs == [0.5, 1, 2, 4, 8, 8, 8]
    assert seconds == "the limit of 8 attempts is reached"


def test_no_retry_starts_after_the_seconds_of_the_caller() -> None:
    model = Policy().limit_retries(answers_model=True)
    assert make_schedule(elapsed=lambda: 44.8).plan_retry(RESET) == "the limit of 45 s for retries is reached"
    assert make_schedule(elapsed=lambda: 44.4).plan_retry(RESET) == 0.5
    assert (
        make_schedule(limits=model, elapsed=lambda: 9.8).plan_retry(RESET) == "the limit of 10 s for retries is reached"
    )


def test_the_last_retry_starts_at_the_limit_if_half_of_its_backoff_remains() -> None:
    assert make_schedule(elapsed=lambda: 44.7).plan_retry(RESET) == pytest.approx(0.3)
    assert make_schedule(elapsed=lambda: 45.0).plan_retry(RESET) == "the limit of 45 s for retries is reached"


def test_attempts_at_an_unreliable_target_do_not_count_and_their_backoff_grows() -> None:
    schedule = make_schedule(turns=[RetryTurn(is_target_unreliable=True)] * 20)
    for expected in (0.5, 1, 2, 4, 8, 8, 8, 8, 8, 8):
        assert schedule.plan_retry(RESET) == expected
        play(schedule)
    assert schedule.attempt_count == 1


def test_attempts_that_were_set_also_limit_those_at_an_unreliable_target() -> None:
    schedule = make_schedule(Policy(attempts=2), turns=[RetryTurn(is_target_unreliable=True)])
    play(schedule)
    assert schedule.plan_retry(RESET) == "the limit of 2 attempts is reached"


QUOTA = Kind("tool", "quota_exceeded", Remedy.STOP)


def test_a_quota_that_clears_in_time_is_waited_for() -> None:
    quota = Failure.of(QUOTA, clears_after=20.0)
    schedule = make_schedule(elapsed=lambda: 5.0)
    assert schedule.can_await_quota(quota)
    assert schedule.plan_retry(quota) == 20.0


@pytest.mark.parametrize("quota", [Failure.of(QUOTA), Failure.of(QUOTA, clears_after=26.0)])
def test_a_quota_without_a_time_or_with_a_late_one_is_not_waited_for(quota: Failure) -> None:
    assert not make_schedule(elapsed=lambda: 5.0).can_await_quota(quota)


def test_retries_of_a_client_are_made_however_long_its_attempts_take() -> None:
    schedule = make_schedule(limits=Policy().limit_retries(client_retries=2), elapsed=lambda: 600.0)
    for _ in range(2):
        seconds = schedule.plan_retry(RESET)
        assert isinstance(seconds, float)
        assert play(schedule, Recovery(remedy=Remedy.RETRY, backoff_seconds=seconds))[2] == ""
    assert isinstance(schedule.plan_retry(RESET), str)


def test_a_stated_delay_of_a_rate_limit_has_a_limit_of_its_own() -> None:
    model = Policy().limit_retries(answers_model=True)
    assert make_schedule(limits=model, elapsed=lambda: 9.0).plan_retry(stated(20)) == 20
    assert make_schedule(elapsed=lambda: 9.0).plan_retry(stated(22)) == (
        "Retry-After is 22 s, more than what remains of 30 s"
    )
    schedule = make_schedule()
    schedule.attempt_count = 8
    assert schedule.plan_retry(stated(1)) == 1
    assert schedule.plan_retry(LIMITED) == "the limit of 8 attempts is reached"


def test_explicit_attempts_limit_stated_delays_and_probes_too() -> None:
    schedule = make_schedule(Policy(attempts=2), [RetryTurn(is_probe=True)])
    play(schedule)
    assert schedule.plan_retry(stated(1)) == "the limit of 2 attempts is reached"


def test_attempts_limit_stated_delays_too_where_a_model_waits() -> None:
    schedule = make_schedule(limits=Policy().limit_retries(answers_model=True))
    for _ in range(2):
        seconds = schedule.plan_retry(stated(1.0))
        assert isinstance(seconds, float)
        play(schedule, Recovery(remedy=Remedy.RETRY, backoff_seconds=seconds))
    assert schedule.plan_retry(stated(1.0)) == "the limit of 3 attempts is reached"


def test_no_retry_is_planned_without_a_token_except_after_a_rate_limit() -> None:
    schedule = make_schedule(has_token=lambda: False)
    assert schedule.plan_retry(RESET) == NO_TOKENS
    assert isinstance(schedule.plan_retry(stated(1.0)), float)


def test_a_probe_is_no_attempt() -> None:
    schedule = make_schedule(turns=[RetryTurn(is_probe=True), RetryTurn()])
    play(schedule)
    assert schedule.attempt_count == 1
    play(schedule)
    assert schedule.attempt_count == 2


def test_a_call_that_waits_for_its_target_says_so_once_and_adds_its_waits_up() -> None:
    turns = [RetryTurn(1.0, probe_seconds=1.5), RetryTurn(0.5, probe_seconds=0.5), RetryTurn(is_probe=True)]
    schedule = make_schedule(turns=turns, is_target_down=lambda *attempt: True)
    assert schedule.plan_retry(RESET) == 0
    moves, recovery, reason = play(schedule)
    assert moves == [BackoffMove(RETRY, 1.0, "db-a", 1.5), WaitMove(0.5)]
    assert (recovery.backoff_seconds, reason) == (1.5, "")


def test_a_refused_turn_is_no_attempt() -> None:
    schedule = make_schedule(turns=[RetryTurn(reason="no")])
    assert play(schedule)[2] == "no"
    assert schedule.attempt_count == 1


def test_a_call_that_may_not_wait_is_retried_once_at_once() -> None:
    schedule = make_schedule(can_wait=lambda: False)
    assert schedule.plan_retry(RESET) == 0
    play(schedule)
    assert schedule.plan_retry(RESET) == ON_EVENT_LOOP
    assert make_schedule(can_wait=lambda: False).plan_retry(LIMITED) == ON_EVENT_LOOP


@pytest.mark.parametrize(("remaining", "expected"), [(0.4, str), (0.6, float)])
def test_no_backoff_passes_the_deadline(remaining: float, expected: type) -> None:
    assert isinstance(make_schedule(seconds_left=lambda: remaining).plan_retry(RESET), expected)


def test_a_stated_delay_of_an_outage_counts_within_the_limits() -> None:
    busy = Failure.of(Kind("tool", "unavailable", Remedy.RETRY), status=503, retry_after=20.0)
    assert make_schedule().plan_retry(busy) == 20
    assert make_schedule(elapsed=lambda: 30.0).plan_retry(busy) == "the limit of 45 s for retries is reached"
    assert make_schedule(Policy(max_backoff=10)).plan_retry(busy) == (
        "Retry-After is 20 s, above the maximum backoff of 10 s"
    )
