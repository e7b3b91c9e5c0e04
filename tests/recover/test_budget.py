"""Budgets and circuits: plain state, and a time that comes in as an argument."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.recover.budget import (
    CIRCUIT_OPEN_SECONDS,
    MAX_CIRCUIT_OPEN_SECONDS,
    MAX_TRACKED_TARGETS,
    MAX_TRACKED_TOOLS,
    MAX_WINDOW_ENTRIES,
    PROCESS_BUDGET_EXHAUSTED,
    RetryBudget,
    TokenBucket,
    ToolLimits,
    is_infrastructure,
    target_of,
)
from mulligan.recover.policy import Policy

EVENTS = st.lists(st.tuples(st.sampled_from(["first", "retry"]), st.integers(0, 2)), max_size=120)


@settings(max_examples=50)
@given(EVENTS, st.integers(0, 12), st.floats(0, 1))
def test_in_any_window_retries_are_at_most_the_burst_and_a_share_of_the_first_attempts(events, burst, ratio):
    policy = Policy(retry_budget_burst=burst, retry_budget_ratio=ratio)
    budget = RetryBudget(policy)
    made: list[tuple[str, int]] = []
    for what, tool in events:
        guard = budget.limits_for(f"tool {tool}", policy)
        if what == "first":
            guard.first_attempts += 1
            made.append((what, tool))
        elif not budget.take_retry(guard):
            made.append((what, tool))
    for only in (None, 0, 1, 2):  # the process, and each tool
        those = [what for what, tool in made if only is None or tool == only]
        for start in range(len(those)):
            window = those[start:]
            firsts = [window[:end].count("first") for end in range(len(window) + 1)]
            retries = [window[:end].count("retry") for end in range(len(window) + 1)]
            assert all(r <= burst + ratio * f + 1e-6 for f, r in zip(firsts, retries, strict=True))


def test_what_is_not_used_is_saved_up_only_as_far_as_the_burst():
    bucket = TokenBucket(burst=2, ratio=0.5)
    taken = 0
    while bucket.has_token(1000):
        bucket.take()
        taken += 1
    assert taken == 2


def test_in_any_number_of_threads_no_more_is_taken_than_there_is():
    policy = Policy(retry_budget_burst=10, retry_budget_ratio=0.1)
    budget, taken = RetryBudget(policy), []
    guard = budget.limits_for("tool", policy)
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for _ in range(500):
            guard.first_attempts += 1
            if not budget.take_retry(guard):
                taken.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 10 <= len(taken) <= 10 + 0.1 * 8 * 500


def test_what_many_tools_retry_together_is_bounded_by_the_process_and_the_reason_says_so():
    policy = Policy(retry_budget_burst=3, retry_budget_ratio=0.5)
    budget = RetryBudget(policy)
    guards = [budget.limits_for(f"tool {number}", policy) for number in range(10)]
    why = [budget.take_retry(guard) for guard in guards]
    assert why == [""] * 3 + [PROCESS_BUDGET_EXHAUSTED] * 7
    for guard in guards[:2]:  # two first attempts earn one retry, whoever made them
        guard.first_attempts += 1
    assert [budget.take_retry(guard) for guard in guards[5:7]] == [
        "",
        PROCESS_BUDGET_EXHAUSTED,
    ]


def test_tools_beyond_those_that_are_counted_share_one_guard():
    budget = RetryBudget()
    guards = [budget.limits_for(f"tool {number}", Policy()) for number in range(MAX_TRACKED_TOOLS + 50)]
    assert len(set(guards)) == MAX_TRACKED_TOOLS + 1
    assert [guard.has_circuit_breaker for guard in guards[-51:]] == [
        True,
        *[False] * 50,
    ]  # one that is down would block others


# Circuits


class Played:
    """A tool at a time that we set; every call is a first attempt."""

    def __init__(self, **policy: Any) -> None:
        self.guard = ToolLimits(Policy(**policy))
        self.now = 100.0

    def call(self, is_bad: bool, target: str = "") -> bool:
        """Makes a call, if it may be made; whether it was."""
        seconds, is_probe = self.guard.admit(target, self.now)
        if seconds:
            return False
        self.guard.count_first_attempt()
        self.guard.record_result(target, is_bad, self.now, is_probe=is_probe)
        return True

    def is_open(self, target: str = "") -> bool:
        circuit = self.guard.circuits.get(target)
        return circuit is not None and circuit.until is not None


def test_a_circuit_opens_when_half_of_at_least_five_results_failed():
    played = Played()
    for is_bad in (True, False, True, False):
        played.call(is_bad)
    assert not played.is_open()
    played.call(True)
    assert played.is_open()
    assert not played.call(False)


def test_many_successes_before_keep_it_closed():
    played = Played()
    for _ in range(100):
        played.call(False)
        played.now += 0.1
    for _ in range(60):
        played.call(True)
    assert not played.is_open()
    for _ in range(60):
        played.call(True)
    assert played.is_open()


def test_successes_that_no_failure_made_us_look_at_are_counted_too():
    """As the first attempt counts them: a number, and once a second a note of it."""
    played = Played()
    for _ in range(100):
        played.now += 0.1
        played.guard.count_success(played.now)
    for _ in range(9):
        played.call(True)
    assert not played.is_open()


def test_circuit_stays_closed_at_three_failures_of_seven_results_after_idle_time():
    played = Played()
    played.guard.count_success(played.now)
    played.now += 60.0
    for _ in range(4):
        played.now += 0.1
        played.guard.count_success(played.now)
    for _ in range(3):
        played.now += 0.1
        played.call(True)
    assert not played.is_open()
    played.call(True)
    assert played.is_open()  # four of eight


def is_failing(results: list[tuple[float, bool]], now: float) -> bool:
    """Apply the documented rule to a list of all results: time, and whether it is an infrastructure failure."""
    window = [is_bad for time, is_bad in results if time >= now - 30.0]
    return len(window) >= 5 and sum(window) >= 0.5 * len(window)


GRID = st.integers(0, 40).map(lambda number: number * 0.05)
OFFSETS = GRID | st.floats(0, 2) | st.floats(0, 30) | st.sampled_from([0.0, 0.001, 0.016, 0.249, 0.999, 1.0, 1.001])
"""Seconds after the beginning of a window: what matters is which results lie just before it and just after."""


def schedule(offsets: Any, *about: Any) -> Any:
    """Events in order: a time in one of four windows, what happens then, and how often."""
    at = st.tuples(st.integers(0, 3), offsets).map(lambda place: 30.0 * place[0] + place[1])
    return st.lists(st.tuples(at, *about, st.integers(1, 8)), max_size=40).map(
        lambda events: sorted(events, key=lambda event: event[0])
    )


class CheckedBreaker:
    """A guard beside the list of all its results. Every opening is held against the list."""

    def __init__(self, has_targets: bool) -> None:
        self.guard = ToolLimits(Policy())
        self.guard.has_targets = has_targets
        self.now = 100.0
        self.results: dict[str, list[tuple[float, bool]]] = {}

    def is_open(self, target: str) -> bool:
        circuit = self.guard.circuits.get(target)
        return circuit is not None and circuit.until is not None

    def count_by_number(self, target: str) -> None:
        """A success as most are counted: nobody looks where it went."""
        self.guard.count_success(self.now)
        if not self.is_open(target):
            self.results.setdefault(target, []).append((self.now, False))

    def add_result(self, target: str, is_bad: bool, *, is_let_through: bool = False) -> None:
        """A result that is counted one by one."""
        was_open = self.is_open(target)
        seconds, is_probe = self.guard.admit(target, self.now)
        self.guard.record_result(
            target, is_bad, self.now, is_probe=is_probe, is_let_through=is_let_through and bool(seconds)
        )
        results = self.results.setdefault(target, [])
        if was_open:
            assert self.is_open(target) is (is_bad or not (is_probe or is_let_through))
        else:
            results.append((self.now, is_bad))
            if self.is_open(target):
                assert is_bad
                assert is_failing(results, self.now)
        if self.is_open(target) is not was_open:
            results.clear()


RESULTS = st.sampled_from(["number", "good", "bad", "bad"])
TARGET_NAMES = st.sampled_from(["", "a.example", "b.example"])


@settings(max_examples=500)
@given(schedule(OFFSETS, RESULTS, st.booleans()))
@example([(0.1, "number", False, 1), (0.9, "number", False, 6), (30.5, "bad", False, 5)])  # which are in the window?
@example([(0.1, "number", False, 1), (1.05, "number", False, 6), (30.95, "bad", False, 5)])
@example([(0.0, "bad", False, 4), (0.01, "good", False, 1), (30.005, "bad", False, 1)])
@example([(0.0, "good", False, 1), (0.01, "good", False, 6), (30.005, "bad", False, 5)])
@example([(0.0, "number", False, 2), (0.0, "bad", False, 3), (6.0, "good", False, 1), (6.0, "bad", False, 3)])
def test_circuit_opens_only_where_the_exact_rule_opens_it(events):
    breaker = CheckedBreaker(has_targets=False)
    for at, result, is_let_through, count in events:
        breaker.now = 100.0 + at
        for _ in range(count):
            if result == "number":
                breaker.count_by_number("")
            else:
                breaker.add_result("", result == "bad", is_let_through=is_let_through)


@settings(max_examples=500)
@given(schedule(OFFSETS, RESULTS, TARGET_NAMES))
def test_circuit_of_a_target_opens_only_where_the_exact_rule_opens_it(events):
    breaker = CheckedBreaker(has_targets=True)
    for at, result, target, count in events:
        breaker.now = 100.0 + at
        for _ in range(count):
            if result == "number":
                breaker.count_by_number(target)
            else:
                breaker.add_result(target, result == "bad")


@settings(max_examples=500)
@given(schedule(GRID, st.booleans(), TARGET_NAMES))
def test_circuit_opens_wherever_the_exact_rule_opens_it_if_results_come_one_by_one(events):
    breaker = CheckedBreaker(has_targets=True)
    for at, is_bad, target, count in events:
        breaker.now = 100.0 + at
        for _ in range(count):
            was_open = breaker.is_open(target)
            results = [*breaker.results.get(target, ()), (breaker.now, is_bad)]
            breaker.add_result(target, is_bad)
            if not was_open and is_bad:
                assert breaker.is_open(target) is is_failing(results, breaker.now)


def test_circuit_opens_by_successes_that_are_only_a_number_where_nobody_can_doubt_it():
    """Both bounds are narrow: what lies more than a second inside or outside of the window counts exactly."""
    played = Played()
    for seconds, count in ((0.0, 50), (40.0, 5)):
        played.now = 100.0 + seconds
        for _ in range(count):
            played.guard.count_success(played.now)
    for _ in range(4):
        played.call(True)
    assert not played.is_open()
    played.call(True)
    assert played.is_open()  # five of ten: the fifty are over


def test_tally_is_bounded_at_any_load_and_still_opens_the_circuit():
    played = Played()
    for is_bad, count in ((False, 20_000), (True, 20_000)):
        for _ in range(count):
            played.now += 0.0005
            if not played.call(is_bad):
                break
        circuit = played.guard.circuits[""]
        assert len(circuit.entries) <= MAX_WINDOW_ENTRIES
    assert played.is_open()


def test_successes_at_a_target_that_was_dropped_for_others_still_count():
    played = Played()
    for _ in range(20):
        played.call(False, "a.example")
    for number in range(MAX_TRACKED_TARGETS):
        played.call(False, f"{number}.example")
    assert len(played.guard.circuits) == MAX_TRACKED_TARGETS
    for _ in range(9):
        played.call(True, "a.example")
    assert not played.is_open("a.example")


def test_success_let_through_an_open_circuit_closes_it_and_a_failure_does_not():
    played = Played()
    for _ in range(5):
        played.call(True)
    played.guard.record_result("", True, played.now, is_let_through=True)
    assert played.is_open()
    played.guard.record_result("", False, played.now)  # it was begun before the circuit opened
    assert played.is_open()
    played.guard.record_result("", False, played.now, is_let_through=True)
    assert not played.is_open()
    assert not played.guard.needs_admission_check


def test_probe_of_a_circuit_that_was_closed_meanwhile_is_a_result_like_others():
    played = Played()
    for _ in range(5):
        played.call(True)
    played.now += CIRCUIT_OPEN_SECONDS
    assert played.guard.admit("", played.now) == (0.0, True)
    played.guard.record_result("", False, played.now, is_let_through=True)
    played.guard.record_result("", True, played.now, is_probe=True)
    assert not played.is_open()


def test_what_is_older_than_the_window_does_not_count():
    played = Played()
    for _ in range(4):
        played.call(True)
    played.now += 31
    for _ in range(4):
        played.call(True)
    assert not played.is_open()


def test_an_open_circuit_lets_one_call_through_after_five_seconds_and_closes_if_it_works():
    played = Played()
    for _ in range(5):
        played.call(True)
    played.now += CIRCUIT_OPEN_SECONDS - 0.1
    assert not played.call(False)
    played.now += 0.2
    assert played.guard.admit("", played.now) == (0.0, True)
    assert played.guard.admit("", played.now)[0] > 0  # only one
    played.guard.record_result("", False, played.now, is_probe=True)
    assert not played.is_open()
    assert not played.guard.needs_admission_check


def test_a_probe_that_fails_opens_it_again_for_longer_up_to_a_cap():
    played = Played()
    for _ in range(5):
        played.call(True)
    for expected in (2 * CIRCUIT_OPEN_SECONDS, MAX_CIRCUIT_OPEN_SECONDS, MAX_CIRCUIT_OPEN_SECONDS):
        played.now += MAX_CIRCUIT_OPEN_SECONDS + 0.1
        assert played.call(True)
        seconds, _ = played.guard.admit("", played.now)
        assert seconds == pytest.approx(expected)


def test_a_probe_that_was_cancelled_or_never_heard_of_again_keeps_nobody_out():
    played = Played()
    for _ in range(5):
        played.call(True)
    played.now += CIRCUIT_OPEN_SECONDS
    assert played.guard.admit("", played.now) == (0.0, True)
    played.guard.release_probe("")
    assert played.guard.admit("", played.now) == (0.0, True)
    played.now += MAX_CIRCUIT_OPEN_SECONDS
    assert played.guard.admit("", played.now) == (0.0, True)


def test_each_target_has_a_circuit_of_its_own():
    played = Played()
    for _ in range(6):
        played.call(True, "a.example")
        played.call(False, "b.example")
    assert played.is_open("a.example")
    assert not played.is_open("b.example")
    assert played.call(False, "b.example")


def test_recovered_failures_are_removed_from_the_window_of_their_target_only():
    played = Played()
    for target in ("a.example", "b.example"):
        for _ in range(4):
            played.call(True, target)
            played.now += 0.1
    failed_at = [entry.first_at for entry in played.guard.circuits["a.example"].entries]
    played.guard.record_result("a.example", False, played.now, recovered_failures=failed_at)
    played.call(True, "a.example")
    played.call(True, "b.example")
    assert not played.is_open("a.example")
    assert played.is_open("b.example")


def test_however_many_targets_there_are_memory_is_bounded():
    played = Played()
    for number in range(5 * MAX_TRACKED_TARGETS):
        played.call(True, f"{number}.example")
    assert len(played.guard.circuits) <= MAX_TRACKED_TARGETS


def test_without_a_breaker_nothing_is_kept_out():
    played = Played(circuit_breaker=False)
    assert all(played.call(True) for _ in range(50))


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 20)), max_size=60))
def test_a_circuit_never_stays_open_longer_than_its_cap_without_a_probe(events):
    played = Played()
    for is_bad, pause in events:
        played.call(is_bad)
        played.now += pause
    played.now += MAX_CIRCUIT_OPEN_SECONDS
    assert played.call(False)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Kind("tool", "timeout", Remedy.RETRY), True),
        (Kind("tool", "unavailable", Remedy.RETRY), True),
        (Kind("tool", "rate_limit", Remedy.RETRY), False),
        (Kind("tool", "invalid_arguments", Remedy.REPAIR), False),
        (Kind("tool", "not_found", Remedy.REPLAN), False),
        (Kind("none", "cancelled", Remedy.RETRY), False),
    ],
)
def test_only_what_the_other_side_did_counts_against_it(kind, expected):
    assert is_infrastructure(Failure.of(kind)) is expected
    assert not is_infrastructure(None)


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        ({"url": "https://user:pw@API.example:8080/v1?x=1"}, "api.example:8080"),
        ({"host": "db.internal", "query": "x"}, "db.internal"),
        ({"query": "x"}, ""),
        ({"url": 7}, ""),
        ({"url": "https://"}, "https:"),
    ],
)
def test_a_target_is_read_from_the_arguments(arguments, target):
    assert target_of(arguments) == target


def test_successes_just_before_a_circuit_opened_do_not_keep_it_closed_later():
    guard = ToolLimits(Policy())
    for _ in range(100):
        guard.count_success(1000.0)
    for _ in range(100):
        guard.record_result("", True, 1000.5)
    assert guard.is_open("", 1000.6)
    guard.record_result("", False, 1000.6, is_let_through=True)
    assert not guard.is_open("", 1000.7)
    for _ in range(5):
        guard.record_result("", True, 1000.7)
    assert guard.is_open("", 1000.8)
