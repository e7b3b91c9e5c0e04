"""Targets: plain state, and a time that comes in as an argument."""

from __future__ import annotations

import heapq
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.failure import INFRA_ERROR, Failure, Kind, Remedy
from mulligan.recover.policy import Policy
from mulligan.recover.target_state import (
    MAX_IDLE_SECONDS,
    MAX_TARGETS,
    NO_PROBE_IN_TIME,
    NO_TOKENS,
    OUTAGE_LIMIT,
    RetryTurn,
    TargetCall,
    Targets,
    is_without_answer,
    target_of,
)

POLICY = Policy()
RESET = Failure.of(Kind("tool", "connection_error", Remedy.RETRY))
TIMEOUT = Failure.of(Kind("tool", "timeout", Remedy.RETRY))
RATE_LIMIT = Failure.of(Kind("tool", "rate_limit", Remedy.RETRY))
REJECTED = Failure.of(Kind("tool", "invalid_arguments", Remedy.REPAIR), status=400)


class Clock:
    """Targets with a clock that goes only where it is told to."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.targets, self.policy, self.now = Targets(), policy, 0.0

    def record(self, call: TargetCall, failure: Failure | None, *, is_retry: bool = False, target: str = "db") -> None:
        self.targets.record(target, call, failure, self.now, policy=self.policy, random=lambda: 0.5, is_retry=is_retry)

    def take_turn(self, call: TargetCall, **options: Any) -> RetryTurn:
        return self.targets.take_turn("db", call, self.now, policy=self.policy, random=lambda: 0.5, **options)

    def call(self, seconds: float = 45.0) -> TargetCall:
        return TargetCall(self.now, self.now + seconds)

    def fail(self, count: int) -> list[TargetCall]:
        calls = [self.call() for _ in range(count)]
        for call in calls:
            self.record(call, RESET)
        return calls

    @property
    def tokens(self) -> int:
        state = self.targets.states.get("db")
        return self.policy.retry_tokens if state is None else state.tokens


def test_a_target_is_down_after_five_failures_in_a_row_without_an_answer() -> None:
    clock = Clock()
    clock.fail(4)
    assert not clock.targets.is_down("db")
    clock.fail(1)
    assert clock.targets.is_down("db")


@pytest.mark.parametrize("answer", [None, RATE_LIMIT, REJECTED])
def test_any_answer_between_failures_begins_anew(answer: Failure | None) -> None:
    clock = Clock()
    clock.fail(4)
    clock.record(clock.call(), answer)
    clock.fail(4)
    assert not clock.targets.is_down("db")


def test_the_oldest_waiting_call_probes_while_the_others_wait() -> None:
    clock = Clock()
    first, second = clock.fail(5)[:2]
    assert clock.take_turn(first) == RetryTurn(0.5, probe_seconds=0.5)
    assert clock.take_turn(second) == RetryTurn(0.5, probe_seconds=0.5)

    clock.now = 0.5
    assert clock.take_turn(second).probe_seconds is None or clock.take_turn(second).seconds
    assert clock.take_turn(first) == RetryTurn(is_probe=True)
    assert clock.take_turn(second).probe_seconds == 0


def test_each_probe_that_fails_is_followed_by_one_after_half_the_time_the_target_was_down() -> None:
    clock = Clock()
    call, *_ = clock.fail(5)
    delays = []
    while (turn := clock.take_turn(call)).reason == "":
        if turn.is_probe:
            clock.record(call, RESET, is_retry=True)
            delays.append(round(clock.targets.states["db"].next_probe - clock.now, 3))
        clock.now += turn.seconds
    assert delays[:2] == [0.5, 0.5]
    assert delays[2:] == sorted(delays[2:])
    assert turn.reason == NO_PROBE_IN_TIME
    assert clock.now < 45


def test_an_answer_releases_the_waiting_calls_oldest_first_over_as_long_as_the_oldest_has_waited() -> None:
    clock = Clock()
    clock.fail(4)
    calls = []
    for _ in range(5):
        clock.now += 0.1
        calls += clock.fail(1)
        clock.take_turn(calls[-1])
    clock.record(clock.call(), None)

    delays = [clock.take_turn(call).seconds for call in calls]
    assert delays == sorted(delays)
    assert 0 <= delays[0] < delays[-1] <= 0.4
    clock.now = 1.0
    assert all(clock.take_turn(call) == RetryTurn() for call in calls)


def test_a_released_call_goes_within_its_own_limit() -> None:
    clock = Clock()
    oldest = clock.fail(5)[0]
    clock.take_turn(oldest)
    clock.now = 20.0
    late = clock.call(seconds=3)
    clock.record(late, RESET)
    clock.targets.states["db"].next_probe = 22.0
    assert clock.take_turn(late).seconds
    clock.now = 21.0
    clock.record(clock.call(), None)
    assert clock.take_turn(late).seconds <= 2


def test_a_probe_that_runs_longer_than_the_failures_took_releases_the_others() -> None:
    clock = Clock()
    first, second = clock.fail(5)[:2]
    clock.take_turn(first)
    clock.take_turn(second)
    clock.now = 0.5
    assert clock.take_turn(first).is_probe
    clock.now = 1.4
    assert clock.take_turn(second).seconds
    clock.now = 3.0
    clock.take_turn(second)
    clock.now = 6.0
    assert clock.take_turn(second) == RetryTurn()


def test_another_call_probes_if_the_oldest_is_cancelled_or_late() -> None:
    clock = Clock()
    first, second, third = clock.fail(5)[:3]
    for call in (first, second, third):
        clock.take_turn(call)
    clock.targets.leave("db", first)
    clock.now = 0.5
    assert clock.take_turn(second).is_probe
    clock.targets.leave("db", second)
    clock.now = 3.0
    assert clock.take_turn(third).is_probe


def test_a_call_fails_at_once_if_no_probe_is_due_in_its_time() -> None:
    clock = Clock()
    clock.fail(5)
    assert clock.take_turn(clock.call(seconds=0.4)).reason == NO_PROBE_IN_TIME


def test_a_call_that_has_waited_as_long_as_it_may_stops() -> None:
    clock = Clock()
    probing, waiting = clock.fail(5)[:2]
    clock.now = 0.5
    assert clock.take_turn(probing).is_probe
    waiting.limit = 0.5
    assert clock.take_turn(waiting).reason == OUTAGE_LIMIT


# Tokens


def test_a_failed_retry_costs_a_token_a_timeout_three_and_a_success_returns_three() -> None:
    clock = Clock()
    clock.record(clock.call(), RESET)
    assert clock.tokens == 20
    clock.record(clock.call(), RESET, is_retry=True)
    assert clock.tokens == 19
    clock.record(clock.call(), TIMEOUT, is_retry=True)
    assert clock.tokens == 16
    clock.record(clock.call(), None)
    assert clock.tokens == 19
    clock.record(clock.call(), None)
    assert clock.tokens == 20


def test_rate_limits_cost_no_token_and_mark_no_target_as_down() -> None:
    clock = Clock()
    for _ in range(50):
        clock.record(clock.call(), RATE_LIMIT, is_retry=True)
    assert not clock.targets.states


def test_without_a_token_nothing_is_retried_but_rate_limits() -> None:
    clock = Clock(Policy(retry_tokens=2))
    for _ in range(2):
        clock.record(clock.call(), RESET, is_retry=True)
    assert clock.take_turn(clock.call()).reason == NO_TOKENS
    assert clock.take_turn(clock.call(), needs_token=False) == RetryTurn()


def test_a_target_that_works_again_is_forgotten() -> None:
    clock = Clock()
    clock.record(clock.call(), RESET)
    clock.record(clock.call(), RESET, is_retry=True)
    for _ in range(20):
        clock.record(clock.call(), None)
    assert not clock.targets.states


def make_unreliable(clock: Clock) -> None:
    """Let four of five attempts fail, until the failure ratio says so."""
    for _ in range(20):
        clock.record(clock.call(), None)
        clock.fail(4)
    clock.record(clock.call(), None)


def test_where_most_attempts_fail_twenty_failures_in_a_row_take_the_target_down() -> None:
    clock = Clock()
    make_unreliable(clock)
    clock.fail(19)
    assert not clock.targets.is_down("db")
    assert clock.take_turn(clock.call()).is_target_unreliable
    clock.fail(1)
    assert clock.targets.is_down("db")


def test_an_outage_does_not_make_a_target_unreliable() -> None:
    clock = Clock()
    clock.fail(300)
    clock.record(clock.call(), None)
    assert not clock.take_turn(clock.call()).is_target_unreliable


# Bounds


def test_targets_are_bounded_in_number_and_age() -> None:
    clock = Clock()
    for number in range(MAX_TARGETS + 50):
        clock.record(clock.call(), RESET, target=str(number))
    assert len(clock.targets.states) == MAX_TARGETS
    assert "0" not in clock.targets.states
    clock.now = MAX_IDLE_SECONDS + 1
    clock.record(clock.call(), RESET, target="new")
    assert list(clock.targets.states) == ["new"]


def test_first_attempts_that_may_be_refused_are_made_as_probes_only() -> None:
    clock = Clock()
    clock.fail(5)
    first, second = clock.call(), clock.call()
    assert clock.targets.admit_first("db", first, 0.1) == 0.5
    assert clock.targets.admit_first("db", first, 0.6) == 0
    assert clock.targets.admit_first("db", second, 0.6) > 0
    clock.now = 0.7
    clock.record(first, None)
    assert clock.targets.admit_first("db", second, 0.8) == 0


RESULTS = st.lists(st.sampled_from([None, RESET, RESET, RESET, TIMEOUT, RATE_LIMIT, REJECTED]), max_size=60)
ARRIVALS = st.lists(st.floats(0, 60), min_size=1, max_size=25)


@given(RESULTS, ARRIVALS, st.lists(st.floats(0.01, 30), min_size=1, max_size=8), st.floats(0.5, 60), st.randoms())
def test_on_any_schedule_tokens_probes_and_waits_stay_within_their_limits(
    results, arrivals, durations, seconds, random
) -> None:
    targets, outcomes, count = Targets(), iter(results), 0
    probing: set[TargetCall] = set()
    queue: list[tuple[float, int, str, TargetCall, bool]] = []

    def push(at: float, move: str, call: TargetCall, is_retry: bool) -> None:
        nonlocal count
        count += 1
        heapq.heappush(queue, (at, count, move, call, is_retry))

    for arrival in arrivals:
        push(arrival + random.choice(durations), "end", TargetCall(arrival, arrival + seconds), False)
    while queue and count < 5000:
        now, _, move, call, is_retry = heapq.heappop(queue)
        state = targets.states.get("db")
        if move == "end":
            failure = next(outcomes, None)
            targets.record("db", call, failure, now, policy=POLICY, random=random.random, is_retry=is_retry)
            probing.discard(call)
            if failure is not None and failure is not REJECTED:
                push(now, "turn", call, True)
        else:
            turn = targets.take_turn("db", call, now, policy=POLICY, random=random.random)
            if turn.seconds:
                assert now + turn.seconds <= max(call.limit, now) + 0.01
                push(now + turn.seconds, "turn", call, True)
            elif not turn.reason:
                if turn.is_probe:
                    state = targets.states["db"]
                    assert not probing, "two probes at a time"
                    probing.add(call)
                    assert now <= call.limit
                push(now + random.choice(durations), "end", call, True)
        state = targets.states.get("db")
        if state is None or not state.is_down:
            probing.clear()  # released by an answer, or by a probe that runs long
        if state is not None:
            assert state.tokens >= 0
            assert len(state.waiting) == len({id(waiting) for waiting in state.waiting}) <= len(arrivals)


def run_at_once(count: int, work: Callable[[int], object]) -> None:
    """Run a function in so many threads that start together and interrupt one another as often as possible."""
    barrier, interval = threading.Barrier(count), sys.getswitchinterval()

    def begin(number: int) -> None:
        barrier.wait()
        work(number)

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(begin, range(count)))
    finally:
        sys.setswitchinterval(interval)


def test_of_any_number_of_threads_one_probes() -> None:
    for _ in range(30):
        clock = Clock()
        calls = clock.fail(8)
        for call in calls:
            clock.take_turn(call)
        clock.now = 10.0  # so late that each of the waiting calls may probe
        turns: list[RetryTurn] = []

        def ask(
            number: int, clock: Clock = clock, calls: list[TargetCall] = calls, turns: list[RetryTurn] = turns
        ) -> None:
            turns.append(clock.take_turn(calls[number]))

        run_at_once(8, ask)
        assert [turn.is_probe for turn in turns].count(True) == 1


def test_threads_take_every_token_once_and_none_that_is_not_there() -> None:
    for tokens in (15, 1000):
        clock = Clock(Policy(retry_tokens=tokens, down_after=0))

        def fail(number: int, clock: Clock = clock) -> None:
            for _ in range(100):
                clock.record(clock.call(), RESET, is_retry=True)
                assert clock.tokens >= 0

        run_at_once(8, fail)
        assert clock.tokens == max(0, tokens - 800)


# What an answer is, and which target a call has


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (None, False),
        (RESET, True),
        (TIMEOUT, True),
        (Failure.of(Kind("tool", "unavailable", Remedy.RETRY), status=503), True),
        (Failure.of(Kind("tool", "api_error", Remedy.RETRY), status=500), True),
        (Failure.of(Kind("model", "unavailable", Remedy.RETRY), status=529), True),
        (Failure.of(Kind("tool", "wrong_approach", Remedy.REPLAN), evidence=(INFRA_ERROR,)), True),
        (RATE_LIMIT, False),
        (Failure.of(Kind("tool", "quota_exceeded", Remedy.STOP), status=503), False),
        (Failure.of(Kind("tool", "conflict", Remedy.RETRY), status=409), False),
        (Failure.of(Kind("tool", "invalid_response", Remedy.RETRY)), False),
        (Failure.of(Kind("none", "cancelled", Remedy.RETRY)), False),
    ],
)
def test_no_answer_is_a_connection_a_timeout_or_a_server_error(failure, expected) -> None:
    assert is_without_answer(failure) is expected


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        ({"url": "https://user:pw@API.example:8080/v1?x=1"}, "api.example:8080"),
        ({"host": "db.internal", "query": "x"}, "db.internal"),
        ({"query": "x"}, ""),
        ({"url": 7}, ""),
        ({"url": "https://"}, "https:"),
        ({"tenant": "a", "sql": "select 1"}, "a"),
        ({"project_id": 12, "query": "x"}, "12"),
        ({"bucket_name": "logs", "region": "eu-1", "key": "k"}, "eu-1 logs"),
        ({"dsn": "postgresql://me:secret@db:5432/orders?sslmode=off"}, "db:5432/orders"),
        ({"tenant": None, "database": True}, ""),
    ],
)
def test_a_target_is_read_from_the_arguments(arguments, target) -> None:
    assert target_of(arguments) == target


def test_declared_arguments_name_the_target_instead() -> None:
    assert target_of({"shard": "s1", "url": "https://a"}, ("shard",)) == "s1"
