"""Simulated agents with a known true effect, and what the impact page and Compare say of them.

A world has sessions with several failures each. Sessions differ in how often failures are recovered, and a fix adds its
true effect. Each case is held out by chance.
"""

from __future__ import annotations

import math
import random
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

from mulligan.contract.counters import Cell, merge
from mulligan.report.differences import Rate, compare_amounts, compare_rates, design_effects
from mulligan.report.impact import ImpactRow, analyze
from mulligan.report.impact_cases import ImpactCase
from mulligan.report.stats import compare_stats

BASE_RATE = 0.55
SESSION_SPREAD = 0.25
"""Standard deviation of the rate between sessions, as a share of its range."""


class World(NamedTuple):
    """One simulated store: fixes with their true effects, and how cases come about."""

    name: str
    effects: tuple[float, ...]
    sessions: int
    share: float
    cases_per_session: tuple[int, int] = (1, 8)
    looks: int = 1


WORLDS = (
    World("no effect, frequent failures", (0.0,) * 5, 300, 0.15),
    World("no effect, rare failures", (0.0,) * 3, 60, 0.25, (1, 2)),
    World("no effect, 20 fixes", (0.0,) * 20, 300, 0.1, (2, 10)),
    World("small effect, 5 points", (0.05,) * 3, 300, 0.1),
    World("large effect, 20 points", (0.2,), 490, 0.09, (2, 7)),
    World("one fix of ten harms by 30 points", (*(0.1,) * 9, -0.3), 650, 0.1, (2, 8)),
    World("no effect, looked at on 14 days", (0.0,) * 3, 200, 0.2, (1, 8), 14),
)
HARMFUL = 0.3


def play(world: World, chance: random.Random) -> list[ImpactCase]:
    """Return the cases of one world, in the order of time."""
    cases = []
    for number in range(world.sessions):
        session_rate = min(max(chance.gauss(BASE_RATE, SESSION_SPREAD), 0.05), 0.95)
        pace = chance.lognormvariate(0, 0.7)
        for _ in range(chance.randint(*world.cases_per_session)):
            fix = chance.randrange(len(world.effects))
            has_help = chance.random() >= world.share
            rate = min(max(session_rate + world.effects[fix] * has_help, 0.0), 1.0)
            is_recovered = chance.random() < rate
            cases.append(
                ImpactCase(
                    "fix",
                    f"fix_{fix}",
                    has_help,
                    f"s{number}",
                    number,
                    chance.random() < rate,
                    is_recovered,
                    1 + (chance.random() < 0.3),
                    pace * chance.lognormvariate(1, 1),
                    round(pace * 1000),
                    None,
                )
            )
    return cases


def true_rate(effect: float, points: int = 2000) -> float:
    """Return the mean recovery rate of cases with an effect, by the distribution of sessions."""
    session_rates = NormalDist(BASE_RATE, SESSION_SPREAD)
    rates = (min(max(session_rates.inv_cdf((point + 0.5) / points), 0.05), 0.95) for point in range(points))
    return sum(min(max(rate + effect, 0.0), 1.0) for rate in rates) / points


@cache
def true_difference(world: World) -> float:
    """Return the true difference of the summary's rate: the mean over fixes."""
    return sum(true_rate(effect) - true_rate(0.0) for effect in world.effects) / len(world.effects)


def single_interval(cases: list[ImpactCase]) -> tuple[float, float]:
    """Return the 95 % interval of the recovery rate alone, at one look and without other comparisons."""
    groups: list[dict[str, list[bool]]] = [{}, {}]
    for case in cases:
        groups[case.has_help].setdefault(case.cluster, []).append(case.is_recovered)
    counts = [[(sum(values), len(values)) for values in group.values()] for group in groups]
    effects = design_effects(counts[0], counts[1])
    rates = [
        Rate(sum(part for part, _ in group), sum(total for _, total in group), effect)
        for group, effect in zip(counts, effects, strict=True)
    ]
    return compare_rates(rates[0], rates[1])[1:]


def amount_interval(cases: list[ImpactCase]) -> tuple[float, float]:
    groups: list[dict[str, list[float]]] = [{}, {}]
    for case in cases:
        groups[case.has_help].setdefault(case.cluster, []).append(case.seconds)
    difference = compare_amounts([*groups[0].values()], [*groups[1].values()], 1e-9)
    assert difference is not None
    return difference[1:]


def is_called(rows: list[ImpactRow]) -> bool:
    return any(row.verdict in ("better", "worse") for row in rows)


class WorldResult(NamedTuple):
    """What was true of one world; means of them are shares of worlds."""

    is_covered: bool
    """Whether the 95 % interval has the true difference of rates."""
    are_amounts_covered: bool
    is_page_covered: bool
    """Whether the interval on the page has it too, at the last look."""
    is_called: bool
    """Whether the last page has a verdict."""
    is_effect_called: bool
    """Whether the first row of the last page is called in the right direction."""
    is_last_fix_first: bool
    """Whether the last fix, which harms in some worlds, is the first of what contributed."""
    is_ever_called: bool
    """Whether any look has a verdict."""


def measure_world(world: World, number: int) -> WorldResult:
    truth = true_difference(world)
    cases = play(world, random.Random(f"{world.name} {number}"))
    low, high = single_interval(cases)
    low_amount, high_amount = amount_interval(cases)
    looks = [analyze(cases[: len(cases) * look // world.looks]) for look in range(1, world.looks + 1)]
    summary, contributions, _ = looks[-1]
    row = summary[0]
    assert row.low is not None
    assert row.high is not None
    return WorldResult(
        low <= truth <= high,
        low_amount <= 0 <= high_amount,
        row.low <= 100 * truth <= row.high,
        is_called([*summary, *contributions]),
        row.verdict == ("better" if truth > 0 else "worse"),
        contributions[0].subject == f"fix_{len(world.effects) - 1}",
        any(is_called([*rows, *subjects]) for rows, subjects, _ in looks),
    )


# Compare


def build_group(chance: random.Random, sessions: int, failure_rate: float) -> list[Cell]:
    """Return the counters of sessions, whose calls fail together."""
    cells = []
    for _ in range(sessions):
        rate = min(failure_rate * math.exp(chance.gauss(-0.32, 0.8)), 0.9)
        cell = Cell(runs={})
        for _ in range(chance.randint(1, 12)):
            failed = chance.random() < rate
            recovered = failed and chance.random() < 0.7
            cell.calls += 1
            cell.first_try += not failed
            cell.recovered += recovered
            cell.repaired += recovered and chance.random() < 0.5
            cell.unrecovered += failed and not recovered
        cell.runs = {"partial" if cell.unrecovered else "success": 1}
        cells.append(cell)
    return cells


def sum_cells(cells: list[Cell]) -> Cell:
    total = Cell(runs={})
    for cell in cells:
        merge(total, cell)
    return total


def is_compared_different(failure_rate: float, sessions: int, looks: int, number: int) -> bool:
    """Return whether any look calls a version with this failure rate better or worse than one with 15 %."""
    chance = random.Random(f"compare {number}")
    groups = build_group(chance, sessions, 0.15), build_group(chance, sessions, failure_rate)
    for look in range(1, looks + 1):
        first, second = (group[: sessions * look // looks] for group in groups)
        rows = compare_stats(sum_cells(first), sum_cells(second), clusters=(first, second))
        if any(row.verdict in ("better", "worse") for row in rows):
            return True
    return False
