"""Differences of two groups have the intervals of the cited papers, and hold for clustered cases."""

import random

import pytest
from stores import Writer

from mulligan.contract.counters import DAY, Cell, StatsQuery, merge
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import RunStarted, StepEnded
from mulligan.core.records import Run, Step
from mulligan.report import stats
from mulligan.report.differences import (
    Rate,
    cases_for_power,
    compare_amounts,
    compare_rates,
    design_effects,
    error_of_look,
    t_quantile,
)
from mulligan.store.sqlite import MemoryStore

RUNS, WORLDS = 150, 200
RANDOM_WALKS = 200


def test_interval_of_two_rates_is_newcombes():
    """Newcombe 1998, table II, example (a), method 10: 56/70 and 48/80."""
    difference = compare_rates(Rate(48, 80), Rate(56, 70))
    assert difference == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
    assert difference.is_clear
    low, high = compare_rates(Rate(0, 10), Rate(10, 10))[1:]
    assert 0.6 < low < high == pytest.approx(1.0), "no rate is beyond 0 and 1"


def test_interval_is_wider_with_more_comparisons_and_with_clusters():
    plain = compare_rates(Rate(40, 100), Rate(60, 100))
    page = compare_rates(Rate(40, 100), Rate(60, 100), error=0.005)
    clustered = compare_rates(Rate(40, 100, 3.0), Rate(60, 100, 3.0))
    assert max(page.low, clustered.low) < plain.low < plain.high < min(page.high, clustered.high)
    assert plain.is_clear
    assert not clustered.is_clear


@pytest.mark.parametrize(("df", "expected"), [(1, 12.706), (2, 4.303), (3, 3.182), (10, 2.228), (30, 2.042)])
def test_t_quantiles_are_those_of_the_table(df, expected):
    assert t_quantile(0.975, df) == pytest.approx(expected, rel=0.002)


def test_design_effect_is_the_cluster_size_if_cases_of_a_cluster_are_equal():
    clusters = [(10 * (number % 2), 10) for number in range(400)]
    assert design_effects(clusters, clusters)[0] == pytest.approx(10, rel=0.05)
    independent = [(number % 2, 1) for number in range(400)]
    assert design_effects(independent, independent)[0] == pytest.approx(1, rel=0.05)


def test_amounts_are_compared_without_regard_to_one_outlier():
    usual = [[10.0, 11.0, 9.0]] * 50
    halved = [[5.0, 5.5, 4.5]] * 49 + [[100_000.0]]
    difference = compare_amounts(usual, halved, unit=0.001)
    assert difference is not None
    assert difference.estimate == pytest.approx(-0.5, abs=0.06)
    assert difference.high < -0.3
    assert compare_amounts(usual, [[5.0]], unit=0.001) is None, "one cluster has no variance"


def test_cases_for_power_are_those_of_the_formula():
    # 60 % against 40 % with equal groups: 95 of each by the usual table without continuity correction
    # for one look; the intervals of a page hold at all looks, and are wider
    assert cases_for_power(0.4, 0.2, share=0.5, design_effect=1, error=0.05) == pytest.approx(
        190 * (3.05 + 0.84) ** 2 / (1.96 + 0.84) ** 2, rel=0.03
    )


def test_intervals_hold_at_all_looks_together():
    """Two groups without a difference grow to 600 cases each, and someone looks after every 20."""
    missed_once = missed_at_last = 0
    for seed in range(RANDOM_WALKS):
        chance, parts, is_clear = random.Random(seed), [0, 0], []
        for cases in range(1, 601):
            parts = [part + (chance.random() < 0.4) for part in parts]
            if cases % 20 == 0:
                rates = [Rate(part, cases) for part in parts]
                is_clear.append(compare_rates(*rates, error_of_look(0.05, cases, cases)).is_clear)
                missed_at_last += cases == 600 and compare_rates(*rates, 0.05).is_clear
        missed_once += any(is_clear)
    assert missed_once <= 0.05 * RANDOM_WALKS
    assert missed_at_last > 0, "without the correction even the last look alone misses some"


def build_session(chance: random.Random, failure_rate: float = 0.15) -> Cell:
    """A session of 2 to 8 calls, whose failures come together."""
    bad_day = chance.random() < 0.3
    rate = failure_rate * (2.6 if bad_day else 0.3)
    cell = Cell(runs={})
    for _ in range(chance.randint(2, 8)):
        failed = chance.random() < rate
        recovered = failed and chance.random() < (0.4 if bad_day else 0.9)
        cell.calls += 1
        cell.first_try += not failed
        cell.recovered += recovered
        cell.unrecovered += failed and not recovered
    cell.runs = {"partial" if cell.unrecovered else "success": 1}
    return cell


def sum_cells(cells: list[Cell]) -> Cell:
    total = Cell(runs={})
    for cell in cells:
        merge(total, cell)
    return total


def count_pages(failure_rate: float) -> int:
    """Return how many pages about two groups call anything better or worse."""
    chance, count = random.Random(7), 0
    for _ in range(WORLDS):
        groups = [[build_session(chance, rate) for _ in range(RUNS)] for rate in (0.15, failure_rate)]
        rows = stats.compare_stats(*map(sum_cells, groups), clusters=(groups[0], groups[1]))
        count += any(row.verdict in ("better", "worse") for row in rows)
    return count


def test_equal_versions_with_clustered_failures_are_rarely_called_different():
    assert count_pages(0.15) <= 0.05 * WORLDS


def test_a_version_that_fails_twice_as_often_is_called_worse():
    assert count_pages(0.3) >= 0.8 * WORLDS


@pytest.mark.parametrize("days", [(5, 2), (2, 2)])
def test_the_older_version_is_the_baseline_whichever_is_named_first_or_has_more_calls(days):
    append = Writer(MemoryStore())
    for version, day, count in (("2.0", days[0], 40), ("1.9", days[1], 12)):
        for number in range(count):
            run = Run(id=f"{version}-{number}", agent="a", version=version, started_at=day * DAY + number)
            step = Step(run=run.id, seq=1, call=1, name="search", started_at=run.started_at)
            append(RunStarted(run), StepEnded(step))
    queries = StatsQuery(now=9 * DAY, version="2.0"), StatsQuery(now=9 * DAY, version="1.9")
    comparison = stats.compare_groups(append.store, DEFAULT_TENANT, ("2.0", "1.9"), queries)
    assert comparison.names == ("1.9", "2.0")
    assert [side.total.calls for side in comparison.stats] == [12, 40]
    assert comparison.conclusion == "2.0: no clear difference."
