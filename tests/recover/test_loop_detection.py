"""The same call once too often, and a strategy that fails in ever other words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.recover import loop_detection
from mulligan.recover.loop_detection import MAX_POLLS, LoopDetector, are_siblings, call_key, extract_words

MISSING = Failure.of(Kind("tool", "not_found", Remedy.REPLAN), "no such file", fingerprint="a")
OTHER = Failure.of(Kind("tool", "not_found", Remedy.REPLAN), "no such line", fingerprint="b")
BUSY = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "no answer", fingerprint="c")


def given_up(repeats: LoopDetector, failure: Failure = MISSING, now: float = 0.0, **arguments: Any) -> None:
    repeats.record_unrecovered("read", call_key(arguments), failure, now)


def is_blocked(repeats: LoopDetector, now: float = 0.0, limit: int = 2, **arguments: Any) -> bool:
    return repeats.find_blocking_failure("read", call_key(arguments), now, limit) is not None


def test_the_third_call_is_blocked_and_every_one_after_it():
    repeats = LoopDetector()
    given_up(repeats, path="a")
    assert not is_blocked(repeats, path="a")
    given_up(repeats, path="a")
    assert is_blocked(repeats, path="a")
    assert is_blocked(repeats, path="a")


def test_other_arguments_begin_anew():
    repeats = LoopDetector()
    given_up(repeats, path="a")
    given_up(repeats, path="a")
    assert not is_blocked(repeats, path="b")
    assert not is_blocked(repeats, path="a")


def test_another_fingerprint_begins_anew():
    repeats = LoopDetector()
    given_up(repeats, path="a")
    given_up(repeats, OTHER, path="a")
    assert not is_blocked(repeats, path="a")
    given_up(repeats, OTHER, path="a")
    assert is_blocked(repeats, path="a")


def test_a_success_begins_anew():
    repeats = LoopDetector()
    given_up(repeats, path="a")
    given_up(repeats, path="a")
    repeats.record_success()
    assert not is_blocked(repeats, path="a")


@pytest.mark.parametrize("failure", [BUSY, MISSING])
def test_calls_that_are_thirty_seconds_apart_are_no_loop(failure):
    repeats = LoopDetector()
    given_up(repeats, failure, now=0, path="a")
    given_up(repeats, failure, now=5, path="a")
    assert is_blocked(repeats, now=34.9, path="a")
    assert not is_blocked(repeats, now=35.0, path="a")
    for minute in range(50):
        given_up(repeats, failure, now=60.0 * minute, path="a")
        assert not is_blocked(repeats, now=60.0 * (minute + 1), path="a")


def polled(texts: list[str], seconds: float = 5.0) -> int | None:
    """Return the number of the call that is blocked, or None."""
    repeats = LoopDetector()
    for number, text in enumerate(texts, 1):
        if is_blocked(repeats, now=number * seconds, job="j"):
            return number
        failure = Failure.of(Kind("tool", "unknown", Remedy.REPLAN), text, fingerprint="same template")
        given_up(repeats, failure, now=number * seconds, job="j")
    return None


@pytest.mark.parametrize(
    ("texts", "blocked"),
    [
        ([f"Export at {number} percent" for number in range(10, 90, 10)], None),
        ([f"{number} jobs are ahead of yours" for number in range(9, 1, -1)], None),
        ([f"Position {number} in the queue" for number in (8, 7, 7, 7, 6)], None),
        (["column foo does not exist"] * 8, 3),
        ([f"bad request (id 8f3a2c{number:02x}d1)" for number in range(8)], 3),
        ([f"query failed after {number}.{number}2 s" for number in range(1, 9)], 3),
        ([f"wrong password (attempt {number})" for number in range(1, 31)], 21),
    ],
)
def test_failures_that_differ_in_their_numbers_are_a_poller_until_the_twentieth(texts, blocked):
    assert polled(texts) == blocked


@pytest.mark.parametrize(
    ("message", "is_waiting"),
    [
        ("The report is not ready yet.", True),
        ("Job 17 is still running", True),
        ("The export has not been completed.", True),
        ("Your file is being prepared.", True),
        ("export in progress", True),
        ("The report does not exist.", False),
        ("The oven is not plugged in.", False),
    ],
)
def test_call_that_waits_for_a_result_is_blocked_later(message, is_waiting):
    repeats = LoopDetector()
    failure = Failure.of(Kind("orchestration", "precondition", Remedy.REPLAN), message, fingerprint="a")
    for _ in range(3):
        given_up(repeats, failure, job="j")
    assert is_blocked(repeats, job="j") is not is_waiting
    for _ in range(MAX_POLLS):
        given_up(repeats, failure, job="j")
    assert is_blocked(repeats, job="j")


def test_the_limit_can_be_set_and_taken_away():
    repeats = LoopDetector()
    for _ in range(3):
        given_up(repeats, path="a")
    assert is_blocked(repeats, limit=3, path="a")
    assert not is_blocked(repeats, limit=4, path="a")
    assert not is_blocked(repeats, limit=0, path="a")


class Client:
    """Nobody can say whether it is the same as before."""


def test_what_is_not_plain_data_is_never_blocked():
    assert call_key({"client": Client()}) is None
    repeats = LoopDetector()
    for _ in range(5):
        given_up(repeats, client=Client())
    assert not is_blocked(repeats, client=Client())


def test_two_objects_with_the_same_method_are_two_calls():
    one, other = Client(), Client()
    assert call_key({"a": 1}, one) != call_key({"a": 1}, other)
    assert call_key({"a": 1}, one) == call_key({"a": 1}, one)


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats() | st.text()))
def test_the_key_of_a_call_does_not_depend_on_the_order_of_its_arguments(arguments):
    assert call_key(arguments) == call_key(dict(reversed(arguments.items())))


def test_one_and_true_are_two_calls():
    assert len({call_key({"a": value}) for value in (1, 1.0, True, "1")}) == 4


# Spirals


def fails(repeats: LoopDetector, tool: str, **arguments: Any) -> Any:
    return repeats.record_strategy_failure(tool, arguments, MISSING)


def test_the_same_strategy_over_sibling_tools_and_in_varying_words_is_a_spiral():
    repeats = LoopDetector()
    assert fails(repeats, "search_docs", query="refund policy 2024") is None
    assert fails(repeats, "search_web", query="policy refund") is None
    repeats.record_success()  # something in between that worked changes nothing
    assert fails(repeats, "search_docs", query="Refund Policy", page=2) is None
    spiral = fails(repeats, "search_mail", query="the refund policy")
    assert spiral.count == 4
    assert spiral.tools == ("search_docs", "search_web", "search_mail")
    assert spiral.kind == "tool/not_found"


def test_other_words_other_tools_and_other_reasons_are_no_spiral():
    repeats = LoopDetector()
    for query in ("refund policy", "opening hours", "annual report", "list of staff", "menu of today"):
        assert fails(repeats, "search", query=query) is None
    for tool in ("read", "list", "fetch", "grep", "count"):
        assert fails(repeats, tool, query="refund policy") is None
    for number in range(6):
        failure = Failure.of(Kind("tool", f"kind {number}", Remedy.REPLAN))
        assert repeats.record_strategy_failure("move", {"query": "refund policy"}, failure) is None


def test_an_outage_is_nobodys_strategy():
    repeats = LoopDetector()
    for _ in range(9):
        assert repeats.record_strategy_failure("search", {"query": "refund policy"}, BUSY) is None


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside)
    )
)
def test_the_words_of_any_arguments_can_be_read(value):
    assert len(extract_words({"a": value})) <= 40


def test_values_that_hold_each_other_and_no_word_come_to_an_end():
    around: dict[str, Any] = {"number": 1}
    around["a"] = around["b"] = [around, around]
    assert extract_words(around) == frozenset()


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("search_web", "webSearch", True),
        ("read_file", "read_file", True),
        ("get_user", "get_order", True),
        ("read", "write", False),
        ("ls", "ls_all", False),
    ],
)
def test_siblings_have_a_word_in_common(one, other, expected):
    assert are_siblings(one, other) is expected


def test_calls_of_other_threads_may_end_meanwhile(monkeypatch):
    detector = LoopDetector()
    for number in range(4):
        detector.record_strategy_failure("read", {"path": f"notes {number}"}, MISSING)

    def fail_meanwhile(one: str, other: str) -> bool:
        if other == "read":
            detector.record_strategy_failure("write", {"path": "notes"}, MISSING)
        return are_siblings(one, other)

    monkeypatch.setattr(loop_detection, "are_siblings", fail_meanwhile)
    spiral = detector.find_spiral("read", {"path": "notes 5"})
    assert spiral is not None
    assert spiral.count == 4

    class SlowKey:
        """A key during whose comparison another call succeeds."""

        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            detector.record_success()
            return False

    detector.record_unrecovered("read", SlowKey(), MISSING, 0.0)
    assert detector.find_blocking_failure("read", "other", 0.0, 2) is None
