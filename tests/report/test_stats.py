"""What figures come to, and what may be said on their evidence."""

from __future__ import annotations

import pytest

from mulligan.contract.counters import Cell, Histogram, KindCell
from mulligan.report import stats


def took(seconds: float, times: int) -> Histogram:
    return Histogram.of(*[round(seconds * 1e6)] * times)


def test_rates_are_of_what_came_to_an_end():
    facts = stats.to_facts(
        Cell(
            runs={"success": 6, "recovered": 2, "partial": 1, "failure": 1},
            calls=110,  # ten of them were cancelled
            first_try=80,
            recovered=15,
            repaired=5,
            unrecovered=5,
            repair_attempts=8,
            repair_successes=6,
        )
    )
    assert (facts["total_runs"], facts["total_failures"]) == (10, 1)
    assert (facts["unrecovered_runs"], facts["success_rate"]) == (2, 80.0)  # partial runs are unrecovered too
    assert (facts["first_try_rate"], facts["final_success_rate"]) == (80.0, 95.0)
    assert (facts["recovered_rate"], facts["repaired_rate"], facts["repair_success_rate"]) == (75.0, 25.0, 75.0)


def test_a_rate_of_nothing_is_not_known():
    facts = stats.to_facts(Cell())
    assert {facts[name] for name in facts if name.endswith("_rate")} == {None}
    assert facts["latency_seconds"] == {"sample_size": 0, "mean": None, "p50": None, "p95": None, "p99": None}


def test_percentiles_of_too_few_say_of_how_many():
    times = stats.percentile_summary(took(1, 50))
    assert times["p50"] == pytest.approx(1, rel=0.13)
    assert times["p99"] is None
    assert stats.format_time(times["p99"], times["sample_size"]) == "too few (50)"


def test_the_outside_names_are_all_there():
    facts = stats.to_facts(Cell())
    for name in stats.CSV_COLUMNS:
        first, _, second = name.partition(".")
        assert first in facts
        assert not second or second in facts[first]


# Two beside each other


def verdicts(one: Cell, other: Cell) -> dict[str, str]:
    return {each.name: each.verdict for each in stats.compare_stats(one, other)}


def test_a_difference_is_told_only_if_chance_would_seldom_make_it():
    old = Cell(calls=1000, first_try=800, unrecovered=200)
    new = Cell(calls=1000, first_try=900, unrecovered=100)
    assert verdicts(old, new)["first-try success"] == "better"
    assert verdicts(new, old)["first-try success"] == "worse"
    near = Cell(calls=1000, first_try=810, unrecovered=190)
    assert verdicts(old, near)["first-try success"] == "no significant difference"
    few = Cell(calls=5, first_try=5)
    assert verdicts(old, few)["first-try success"] == "too few samples"


def test_fewer_failures_of_a_kind_are_better():
    old = Cell(calls=1000, kinds={"tool/timeout": KindCell(failures=100, calls=100)})
    new = Cell(calls=1000, kinds={"tool/timeout": KindCell(failures=10, calls=10)})
    assert verdicts(old, new)["calls with tool/timeout"] == "better"


# Advice


def told(total: Cell | None = None, tools: dict[str, Cell] | None = None, agents: dict[str, Cell] | None = None) -> str:
    return "\n".join(stats.build_advice(total or Cell(), tools or {}, agents or {}))


def timeouts(after: float, usual: float, times: int = 20) -> dict[str, Cell]:
    kind = KindCell(failures=times, calls=times, seconds=took(after, times), micros=round(after * times * 1e6))
    return {"search": Cell(seconds=took(usual, 100), kinds={"tool/timeout": kind})}


def test_a_timeout_that_cuts_off_what_is_only_slow():
    assert "search: 20 timeouts after 5.0 s" in told(tools=timeouts(5, 4))
    assert "Raise the timeout" in told(tools=timeouts(5, 4))


def test_a_timeout_that_waits_for_what_never_comes():
    assert "Lower the timeout: 10 min were spent waiting for it." in told(tools=timeouts(30, 0.2))


def test_a_timeout_that_is_well_set_or_seldom_met_is_left_alone():
    assert told(tools=timeouts(10, 2)) == ""
    assert told(tools=timeouts(0.004, 0.05)) == "", "what ends sooner than most successes was not ended by a limit"
    assert told(tools=timeouts(30, 0.2, times=4)) == ""


def test_an_argument_that_is_often_wrong_should_be_described():
    tools = {"search": Cell(changed_arguments={"k clamp": 12, "q substitute": 50, "z drop": 2})}
    assert told(tools=tools) == (
        "search: k was corrected in 12 calls (out of bounds). Document it in the tool's description."
    )


def test_attempts_that_never_help_are_too_many():
    total = Cell(later_attempts={1: 100, 2: 40, 3: 30}, later_successes={1: 60, 2: 20, 3: 1})
    assert told(total) == "Attempt 3 succeeded 1 of 30 times: allow fewer attempts (Policy.attempts)."


def test_an_agent_that_leans_on_repairs():
    assert "x relies on repairs: 20 of 100 successful calls" in told(
        agents={"x": Cell(first_try=80, recovered=20, repaired=20), "y": Cell(first_try=990, recovered=10, repaired=10)}
    )
    assert told(agents={"y": Cell(first_try=990, recovered=10, repaired=10)}) == ""


def test_limits_that_are_met_often():
    kinds = {
        "model/rate_limit": KindCell(failures=30, calls=30, recovered_by={"retry": 28}),
        "model/context_length_exceeded": KindCell(failures=6, calls=6),
    }
    advice = told(Cell(calls=300, kinds=kinds))
    assert "30 of 300 calls failed with model/rate_limit; retries recovered 28." in advice
    assert "6 calls exceeded the context window: compact the conversation earlier." in advice


def test_repairs_that_seldom_work_and_failures_that_come_back_after_a_compaction():
    advice = told(Cell(repair_attempts=20, repair_successes=4, repeats=7))
    assert "Only 4 of 20 attempted repairs succeeded" in advice
    assert "7 failures repeated after a compaction" in advice


def test_nothing_is_advised_when_nothing_is_wrong():
    assert told(Cell(calls=100, first_try=100)) == ""
