"""What is counted: by hand where it can be checked by eye, and as properties where it cannot."""

from __future__ import annotations

import copy
import math
from collections import Counter
from typing import Any, get_args

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from strict_decoding import run_leniently

from mulligan.contract import counters
from mulligan.contract.counters import DAY, HOUR, Cell, CounterKey, Histogram, KindCell, StatsQuery
from mulligan.contract.counters.counters import DETAILS, OUTLINE_NUMBERS
from mulligan.core.calls import group_attempts
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import AvoidedTurn, Change, Compaction, History, Recovery, Run, Step, failure_identity
from mulligan.core.run_links import link_recoveries

TIMEOUT = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow", fingerprint="f-timeout")
REJECTED = Failure.of(Kind("tool", "invalid_arguments", Remedy.REPAIR), "k is 10 at most", fingerprint="f-k")
CLAMPED = Change(path="k", operation="clamp", before=50, after=10)


def step(seq: int, call: int | None = None, attempt: int = 1, *, failure: Failure | None = None, **fields: Any) -> Step:
    defaults: dict[str, Any] = {"run": "r", "name": "search", "outcome": "failure" if failure else "success"}
    return Step(**{**defaults, "seq": seq, "call": call or seq, "attempt": attempt, "failure": failure, **fields})


def history(*steps: Step, compactions: tuple[Compaction, ...] = (), **about: Any) -> History:
    run = Run(**{"id": "r", "agent": "x", "end_reason": "finished", **about})
    return History(run=run, steps=steps, links=tuple(link_recoveries(steps)), compactions=compactions)


def total(*histories: History) -> Cell:
    return counters.stats(histories).total


# What is counted


def test_a_call_that_works_at_once():
    cell = total(history(step(1, duration_seconds=0.5, tokens={"input": 3, "output": 4})))
    assert (cell.calls, cell.attempts, cell.first_try, cell.recovered, cell.unrecovered) == (1, 1, 1, 0, 0)
    assert list(counters.attempts(cell)) == [(1, 1, 1)]
    assert (cell.micros, len(cell.seconds), cell.tokens) == (500_000, 1, 7)
    assert cell.runs == {"success": 1}


def test_a_call_that_is_made_again_after_a_wait():
    waited = Recovery(remedy=Remedy.RETRY, backoff_seconds=2.0)
    cell = total(
        history(
            step(1, failure=TIMEOUT, duration_seconds=30),
            step(2, 1, 2, recovery=waited, duration_seconds=1, started_at=32_000),
        )
    )
    assert (cell.calls, cell.attempts, cell.first_try, cell.recovered, cell.repaired) == (1, 2, 0, 1, 0)
    assert list(counters.attempts(cell)) == [(1, 1, 0), (2, 1, 1)]
    assert cell.recovered_by == {"retry": 1}
    assert (cell.backoff_micros, cell.retry_micros) == (2_000_000, 1_000_000)
    assert cell.to_repair == Histogram.of(33_000_000)
    assert cell.runs == {"recovered": 1}
    timeout = cell.kinds["tool/timeout"]
    assert (timeout.failures, timeout.calls, timeout.recovered, timeout.recovered_by) == (1, 1, 1, {"retry": 1})
    assert (timeout.micros, timeout.seconds) == (30_000_000, Histogram.of(30_000_000))


@pytest.mark.parametrize("source", ["schema", "run", "memory", "rule"])
def test_a_call_whose_arguments_are_repaired_says_from_where(source):
    mended = Recovery(remedy=Remedy.REPAIR, changes=(CLAMPED,), source=source)
    cell = total(history(step(1, failure=REJECTED), step(2, 1, 2, recovery=mended)))
    assert (cell.recovered, cell.repaired, cell.repair_attempts, cell.repair_successes) == (1, 1, 1, 1)
    assert cell.recovered_by == {source: 1}
    assert cell.changed_arguments == {"k clamp": 1}


@pytest.mark.parametrize(
    ("after", "means"),
    [
        (Recovery(remedy=Remedy.COMPRESS), "compression"),
        (Recovery(remedy=Remedy.STOP, source="fallback"), "fallback"),
        (Recovery(remedy=Remedy.RETRY, source="verify"), "check"),
        (None, "model"),
    ],
)
def test_what_else_can_overcome_a_failure(after, means):
    assert total(history(step(1, failure=TIMEOUT), step(2, 1, 2, recovery=after))).recovered_by == {means: 1}


def test_a_repair_that_did_not_help_is_no_hit():
    mended = Recovery(remedy=Remedy.REPAIR, changes=(CLAMPED,), source="schema")
    cell = total(history(step(1, failure=REJECTED), step(2, 1, 2, failure=REJECTED, recovery=mended)))
    assert (cell.unrecovered, cell.repair_attempts, cell.repair_successes) == (1, 1, 0)
    assert (cell.recovered_by, cell.changed_arguments) == ({}, {})
    assert cell.runs == {"failure": 1}  # no call succeeded


@pytest.mark.parametrize(("metadata", "means"), [(None, "model"), ({"by": "person"}, "person")])
def test_a_later_call_that_works_was_made_by_the_model_unless_it_says_otherwise(metadata, means):
    cell = total(
        history(
            step(1, failure=REJECTED, arguments={"k": 50, "q": "a"}),
            step(2, arguments={"k": 10, "q": "a"}, metadata=metadata),
        )
    )
    assert (cell.calls, cell.recovered, cell.first_try, cell.unrecovered, cell.repaired) == (2, 1, 1, 0, 0)
    assert cell.recovered_by == {means: 1}
    assert cell.changed_arguments == {"k substitute": 1}


def test_what_was_cancelled_is_a_call_and_neither_a_success_nor_a_failure():
    cell = total(history(step(1, outcome="cancelled")))
    assert (cell.calls, cell.first_try, cell.recovered, cell.unrecovered, cell.kinds) == (1, 0, 0, 0, {})


def test_a_runs_own_failure_is_of_its_kind_and_no_call():
    cell = total(history(step(1, type="run", name="", failure=TIMEOUT)))
    assert (cell.calls, cell.attempts, cell.runs) == (0, 0, {"failure": 1})
    assert cell.kinds == {"tool/timeout": KindCell(failures=1, unrecovered=1)}


def test_a_run_that_has_not_ended_has_no_status_yet():
    cell = total(history(step(1), end_reason=None))
    assert (cell.runs, cell.running) == ({}, 1)


def test_a_failure_met_again_after_a_compaction_is_a_repeat():
    met = [step(n, failure=TIMEOUT, started_at=n * 10) for n in (1, 2, 3)]
    assert total(history(*met)).repeats == 0
    assert total(history(*met, compactions=(Compaction(at=15),))).repeats == 2
    assert total(history(*met, compactions=(Compaction(at=5),))).repeats == 0
    assert (
        total(history(met[0], step(2, failure=REJECTED, started_at=20), compactions=(Compaction(at=15),))).repeats == 0
    )


def test_failure_with_another_file_or_program_after_a_compaction_is_no_repeat():
    def repeats(before: dict[str, str], after: dict[str, str]) -> int:
        met = [
            step(number, failure=REJECTED, started_at=number * 10, arguments=arguments)
            for number, arguments in ((1, before), (2, after))
        ]
        known = Compaction(session="s", at=15, known_failures=(failure_identity(met[0]),))
        return total(history(*met, compactions=(known,), session="s")).repeats

    assert repeats({"file_path": "a.py", "old_string": "foo"}, {"file_path": "zzz.py", "old_string": "qux"}) == 0
    assert repeats({"file_path": "a.py", "old_string": "foo"}, {"file_path": "a.py", "old_string": "qux"}) == 1
    assert repeats({"command": "mak test"}, {"command": "pyton x.py"}) == 0
    assert repeats({"command": "cd src && mak test"}, {"command": "mak test"}) == 1


def test_a_failure_that_its_session_knew_before_a_compaction_is_a_repeat_in_another_run():
    """As where every call is a run of its own."""
    again = step(1, failure=TIMEOUT, started_at=20)
    known = Compaction(session="s", at=15, known_failures=(failure_identity(again),))
    assert total(history(again, compactions=(known,), session="s", started_at=20)).repeats == 1
    assert total(history(step(1, failure=REJECTED, started_at=20), compactions=(known,), started_at=20)).repeats == 0
    assert total(history(step(1, failure=TIMEOUT, started_at=14), compactions=(known,), started_at=14)).repeats == 0
    nameless = msgspec.structs.replace(TIMEOUT, fingerprint="")
    other = step(1, failure=nameless, started_at=20)
    by_kind = Compaction(session="s", at=15, known_failures=(failure_identity(other),))
    assert total(history(other, compactions=(by_kind,), started_at=20)).repeats == 1


def test_steps_named_by_number_are_one_step():
    stats = counters.stats(
        [history(step(1, type="custom", name="page 17"), step(2, type="custom", name="page 4"))],
        StatsQuery(now=0, by="step"),
    )
    assert stats.parts["custom page #"].calls == 2


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -5.0, 0.0])
def test_a_time_that_cannot_be_is_not_known(seconds):
    cell = total(history(step(1, duration_seconds=seconds), step(2, failure=TIMEOUT, duration_seconds=seconds)))
    assert (cell.micros, cell.seconds, cell.kinds["tool/timeout"].seconds) == (0, Histogram(), Histogram())


# Who did what


def test_the_model_is_the_one_a_step_names_else_that_of_its_run():
    run = Run(id="r", metadata={"model": "big-1"})
    assert counters.model_of(run, step(1)) == "big-1"
    assert counters.model_of(run, step(1, metadata={"model": "small-1"})) == "small-1"
    assert counters.model_of(run, step(1, type="model", arguments={"model": "small-1"})) == "small-1"
    assert counters.model_of(run, step(1, type="tool", arguments={"model": "T"})) == "big-1"
    assert counters.model_of(Run(id="r", metadata={"model": 5}), step(1)) == ""


def parts(by: str, **query: Any) -> dict[str, int]:
    runs = [
        history(step(1), step(2, name="fetch", type="retrieval"), version="1", environment="live"),
        history(
            step(1, started_at=2 * DAY), step(2, name="chat", type="model"), version="2", started_at=2 * DAY, agent="y"
        ),
        history(step(1, failure=TIMEOUT), step(2, failure=REJECTED, name="plan it", type="plan"), agent="y"),
    ]
    stats = counters.stats(runs, StatsQuery(now=30 * DAY, by=by, **query))  # type: ignore[arg-type]
    return {label: cell.calls or cell.attempts for label, cell in stats.parts.items()}


def test_figures_are_divided_by_who_did_what():
    assert parts("agent") == {"x": 2, "y": 4}
    assert parts("tool") == {"search": 3, "fetch": 1}
    assert parts("step") == {"tool search": 3, "retrieval fetch": 1, "model chat": 1, "plan plan it": 1}
    assert parts("version") == {"x 1": 2, "y 2": 2}
    assert parts("environment") == {"live": 2}
    assert parts("kind") == {"tool/timeout": 1, "tool/invalid_arguments": 1}
    assert parts("attempt") == {"1": 6}
    assert parts("time") == {"0": 5, str(2 * DAY): 1}


def test_a_version_of_all_agents_is_read_from_the_few_rollups_of_versions():
    assert counters.readings(StatsQuery(now=30 * DAY, version="1"))[0].slice == "version"
    assert parts("time", version="1") == {"0": 2}
    assert parts("time", version="2") == {"0": 1, str(2 * DAY): 1}
    assert parts("attempt", version="none") == {}


def test_a_question_may_be_narrowed_and_divided():
    assert parts("tool", agent="y") == {"search": 2}
    assert parts("agent", tool="search") == {"x": 1, "y": 2}
    assert parts("agent", kind="tool/timeout") == {"x": 0, "y": 1}
    assert parts("version", environment="live") == {"x 1": 2}
    assert parts("kind", kind="tool/timeout") == {"tool/timeout": 1}
    assert parts("step", type="plan") == {"plan plan it": 1}


# Time ranges


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (10 * DAY - 1, 10 * DAY + 1, ("hour", 10 * DAY - HOUR, 10 * DAY + HOUR)),
        (9 * DAY + 5, None, ("hour", 9 * DAY, None)),
        (7 * DAY - 1, 8 * DAY, ("day", 6 * DAY, 8 * DAY)),
        (None, None, ("day", None, None)),
    ],
)
def test_an_answer_covers_whole_hours_or_whole_days_and_says_which(since, until, expected):
    stats = counters.stats([], StatsQuery(now=10 * DAY, since=since, until=until))
    assert (stats.grain, stats.since, stats.until) == expected


@given(
    st.integers(0, 4 * 24 - 1),
    st.none() | st.integers(0, 5 * 24),
    st.sampled_from([None, *get_args(counters.By)]),
    st.sampled_from([{}, {"detail": True}, {"kind": "tool"}, {"agent": "x"}]),
)
def test_hours_put_together_of_days_are_each_counted_once(since, until, by, narrowed):
    end = None if until is None else until * HOUR
    query = StatsQuery(now=4 * DAY, since=since * HOUR, until=end, by=by, **narrowed)
    for reading in filter(None, counters.readings(query)):
        counted: Counter[int] = Counter()
        for grain, start, stop in reading.spans:
            length = DAY if grain == "day" else HOUR
            assert (start or 0) % length == (stop or 0) % length == 0
            counted.update(hour // HOUR for hour in range(start or 0, 6 * DAY if stop is None else stop, HOUR))
        asked = range(since, 6 * 24 if until is None else until)
        if reading.grain == "hour":
            assert counted == Counter(asked)
            if by != "time":  # less than a day at each end
                hours = [range(start or 0, stop or 0, HOUR) for grain, start, stop in reading.spans if grain == "hour"]
                assert sum(map(len, hours)) < 48


def test_a_call_belongs_to_the_hour_in_which_it_began():
    run = history(step(1, started_at=HOUR - 1, failure=TIMEOUT), step(2, 1, 2, started_at=HOUR), started_at=0)
    first = counters.stats([run], StatsQuery(now=DAY, since=0, until=HOUR)).total
    second = counters.stats([run], StatsQuery(now=DAY, since=HOUR)).total
    assert (first.calls, first.attempts, first.runs) == (1, 2, {"recovered": 1})
    assert second == Cell()


# Histograms


@given(st.integers(-10, 2**40))
def test_every_time_falls_into_one_bucket(micros):
    index = counters.bucket(micros)
    low, high = counters.bounds(index)
    assert 0 <= index < counters.BUCKETS
    assert low <= max(micros, 0)
    assert micros < high or index == counters.BUCKETS - 1
    assert high - low <= max(1, low // 4)


def test_buckets_follow_each_other_without_a_gap():
    for index in range(counters.BUCKETS - 1):
        assert counters.bounds(index)[1] == counters.bounds(index + 1)[0]


@given(st.lists(st.floats(0.0001, 3600), min_size=100, max_size=300), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_is_right_to_within_its_bucket(seconds, share):
    histogram = Histogram.of(*(round(each * 1e6) for each in seconds))
    told = counters.percentile(histogram, share)
    ordered = sorted(seconds)
    assert told is not None
    near = ordered[max(0, int(share * len(ordered)) - 2)], ordered[min(len(ordered) - 1, int(share * len(ordered)) + 1)]
    assert near[0] / 1.26 <= told <= near[1] * 1.26


@pytest.mark.parametrize(("share", "needed"), [(0.5, 10), (0.9, 10), (0.95, 20), (0.99, 100)])
def test_a_percentile_of_too_few_is_none(share, needed):
    assert counters.percentile(Histogram.of(*[5] * (needed - 1)), share) is None
    assert counters.percentile(Histogram.of(*[5] * needed), share) is not None


# Adding up

HISTOGRAMS = st.lists(st.integers(0, 2**34), max_size=4).map(lambda micros: Histogram.of(*micros))
CELLS = st.builds(
    Cell,
    runs=st.dictionaries(st.sampled_from(["success", "failure"]), st.integers(1, 9), max_size=2),
    calls=st.integers(0, 9),
    micros=st.integers(0, 10**12),
    later_attempts=st.dictionaries(st.integers(1, 3), st.integers(1, 9), max_size=2),
    seconds=HISTOGRAMS,
    changed_arguments=st.dictionaries(st.sampled_from(["k cast", "q drop"]), st.integers(1, 5), max_size=2),
    kinds=st.dictionaries(
        st.sampled_from(["tool/timeout", "model/rate_limit"]),
        st.builds(
            KindCell,
            failures=st.integers(1, 9),
            recovered_by=st.dictionaries(st.sampled_from(["retry", "model"]), st.integers(1, 9), max_size=2),
            seconds=HISTOGRAMS,
        ),
        max_size=2,
    ),
)
PLACES = st.builds(CounterKey, st.just(0), st.sampled_from("xy"), *(st.just("") for _ in range(5)))
MANY = st.dictionaries(PLACES, CELLS, max_size=2)


@given(MANY, MANY)
def test_what_was_added_can_be_taken_back(some, others):
    before = copy.deepcopy(some)
    counters.add(some, others)
    counters.add(some, others, -1)
    assert {place: cell for place, cell in some.items() if cell != Cell()} == {
        place: cell for place, cell in before.items() if cell != Cell()
    }


@given(st.lists(MANY, max_size=4), st.randoms())
def test_the_order_of_adding_does_not_matter(many, chance):
    first: dict[CounterKey, Cell] = {}
    second: dict[CounterKey, Cell] = {}
    for each in many:
        counters.add(first, each)
    chance.shuffle(many)
    for each in many:
        counters.add(second, each)
    assert first == second


@given(CELLS)
def test_counters_come_back_from_their_bytes(cell):
    assert counters.unpack(*counters.pack(cell)) == cell


@given(CELLS, CELLS)
def test_what_is_to_be_taken_away_can_wait_as_bytes(some, others):
    owed: dict[str, Cell] = {"": Cell()}
    counters.merge(owed[""], others, -1)
    counters.merge(some, others)
    before = copy.deepcopy(some)
    counters.merge(before, others, -1)
    counters.merge(some, counters.unpack(*counters.pack(owed[""])))
    assert some == before


@given(st.lists(CELLS, min_size=1, max_size=4))
def test_the_outline_of_many_is_that_of_their_sum(cells):
    outline, total = counters.sum_outlines(counters.pack(cell)[0] for cell in cells), Cell()
    for cell in cells:
        counters.merge(total, cell)
    assert outline == msgspec.structs.replace(total, **{name: getattr(Cell(), name) for name in DETAILS})


def test_parts_are_told_in_outline_unless_everything_is_wanted():
    run = history(step(1, failure=TIMEOUT))
    assert counters.stats([run], StatsQuery(now=0, by="tool")).parts["search"].kinds == {}
    assert "tool/timeout" in counters.stats([run], StatsQuery(now=0, by="tool", detail=True)).parts["search"].kinds


def test_costs_are_counted_for_all_attempts_and_for_those_of_recovery():
    tokens = {"input": 100, "cached_input": 60, "output": 10, "reasoning": 4}
    cell = total(
        history(
            step(1, failure=TIMEOUT, tokens=tokens, cost_nanos=40),
            step(2, 1, 2, tokens=tokens, cost_nanos=50),
            step(3, tokens=tokens),
            step(4, cost_nanos=0),
        )
    )
    assert (cell.tokens, cell.recovery_tokens) == (330, 110)
    assert (cell.cost_nanos, cell.recovery_cost_nanos) == (90, 50)
    assert (cell.priced_attempts, cell.unpriced_attempts) == (3, 1)


def test_avoided_turns_are_counted_with_what_they_would_have_cost():
    avoided = AvoidedTurn(model="m", input_tokens=100, cost_nanos=30)
    unpriced = AvoidedTurn(input_tokens=50)
    cell = total(
        history(
            step(1, failure=TIMEOUT),
            step(2, 1, 2, avoided=avoided),
            step(3, failure=TIMEOUT),
            step(4, 3, 2, avoided=unpriced),
        )
    )
    assert (cell.avoided_turns, cell.avoided_tokens, cell.avoided_cost_nanos) == (2, 150, 30)


def test_counters_of_a_newer_version_are_read_without_its_numbers():
    cell = Cell(calls=3, running=1)
    outline = msgspec.msgpack.encode([*msgspec.msgpack.decode(counters.pack(cell)[0]), 7])
    assert counters.unpack(outline) == cell
    assert counters.sum_outlines([outline, counters.pack(Cell(calls=4))[0]]).calls == 7


@pytest.mark.slow
def test_counters_of_a_newer_version_are_read_without_its_fields_outside_of_tests():
    outline = counters.pack(Cell(calls=3))[0]
    remainder = msgspec.msgpack.encode({"changed_arguments": {"k clamp": 1}, "not_yet_known": {"a": 1}})
    unpacked = f"counters.unpack({outline!r}, {remainder!r})"
    code = f"from mulligan.contract import counters; print({unpacked}.changed_arguments)"
    assert run_leniently(code) == "{'k clamp': 1}\n"


def test_counters_of_an_earlier_version_had_fewer_numbers():
    seconds, runs, calls, *_ = msgspec.msgpack.decode(counters.pack(Cell(calls=3))[0])
    outline = msgspec.msgpack.encode([seconds, runs, calls])
    assert counters.unpack(outline) == Cell(calls=3)
    assert counters.sum_outlines([outline, counters.pack(Cell(calls=4, tokens=2))[0]]) == Cell(calls=7, tokens=2)


def test_every_number_of_an_outline_is_packed():
    numbers = {field.name for field in msgspec.structs.fields(Cell) if field.type is int}
    assert sorted(OUTLINE_NUMBERS) == sorted(numbers)


def test_an_outline_is_as_long_for_a_thousand_times_as_many_calls():
    few, many = (total(history(step(1, duration_seconds=0.5), step(2, failure=TIMEOUT))) for _ in range(2))
    for _ in range(10):
        counters.merge(many, copy.deepcopy(many))
    assert len(counters.pack(many)[0]) <= len(counters.pack(few)[0]) + 20


def test_counters_at_zero_take_no_room():
    outline, rest = counters.pack(Cell())
    assert (len(outline) < 30, rest) == (True, None)
    outline, rest = counters.pack(total(history(step(1, duration_seconds=0.5))))
    assert (len(outline) < 60, rest) == (True, None)


def test_the_quick_way_counts_a_success_as_the_long_way_does():
    one = step(1, duration_seconds=0.25, tokens={"input": 5}, cost_nanos=3)
    run = Run(id="r", agent="x", version="1", end_reason="finished")
    quick = counters.of_run(run, "success")
    successes = counters.SuccessCounter()
    successes.add(run, [one], quick)
    successes.count(quick)
    assert quick == counters.cells(History(run=run, steps=(one,)))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["search", "page 12", "page 13"]),
            st.sampled_from(["tool", "model", "custom"]),
            st.sampled_from([0, HOUR - 1, HOUR]),
            st.floats(min_value=0, max_value=1e6) | st.sampled_from([0.0, 1e-6, 2.5e-6, math.nan, -1.0]),
            st.none() | st.just({"input": 5}),
            st.none() | st.just({"model": "m"}),
        ),
        max_size=12,
    )
)
def test_many_successes_count_together_as_each_by_itself(given_):
    steps = [
        step(
            number, name=name, type=type, started_at=started, duration_seconds=seconds, tokens=tokens, metadata=metadata
        )
        for number, (name, type, started, seconds, tokens, metadata) in enumerate(given_, 1)
    ]
    runs = [
        Run(id="r", agent="x", end_reason="finished"),
        Run(id="s", agent="x", end_reason="finished", metadata={"model": "n"}),
        Run(id="t", agent="x", version="2"),
    ]
    together, apart = {}, {}
    successes = counters.SuccessCounter()
    for number, run in enumerate(runs):
        successes.add(run, steps[number::2], together)
        for each in steps[number::2]:
            counters.add(apart, counters.of_call(run, *group_attempts([each]), None, None))
    successes.count(together)
    assert together == apart
    successes.count(together)  # nothing is left to be counted
    assert together == apart
