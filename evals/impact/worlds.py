"""Simulated agents with a known true effect: whether `mulligan impact` and Compare say what is true.

    python evals/impact/worlds.py [WORLDS]

A world has sessions with several failures each. Sessions differ in how often failures are recovered, and a fix adds its
true effect. Each case is held out by chance. Prints a table, and exits 1 if a target is missed.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from typing import NamedTuple

from mulligan.contract.counters import Cell, merge
from mulligan.report.differences import Rate, compare_amounts, compare_rates, design_effects
from mulligan.report.impact import ImpactCase, ImpactRow, analyze
from mulligan.report.stats import compare_stats

DEFAULT_WORLDS = 1000
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
    World("no effect, frequent failures", (0.0,) * 5, 400, 0.1),
    World("no effect, rare failures", (0.0,) * 3, 60, 0.1, (1, 2)),
    World("no effect, 20 fixes", (0.0,) * 20, 600, 0.05, (2, 10)),
    World("small effect, 5 points", (0.05,) * 3, 400, 0.1),
    World("large effect, 20 points", (0.2,), 500, 0.09, (2, 7)),
    World("one fix of ten harms by 30 points", (*(0.1,) * 9, -0.3), 1300, 0.05, (2, 8)),
    World("no effect, looked at on 14 days", (0.0,) * 3, 400, 0.1, (1, 8), 14),
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


def true_rate(world: World, effect: float) -> float:
    """Return the mean recovery rate of cases with an effect, by the distribution of sessions."""
    chance, total, count = random.Random(3), 0.0, 40_000
    for _ in range(count):
        session_rate = min(max(chance.gauss(BASE_RATE, SESSION_SPREAD), 0.05), 0.95)
        total += min(max(session_rate + effect, 0.0), 1.0)
    return total / count


def true_difference(world: World) -> float:
    """Return the true difference of the summary's rate: the mean over fixes."""
    return sum(true_rate(world, effect) - true_rate(world, 0.0) for effect in world.effects) / len(world.effects)


def single_interval(cases: list[ImpactCase]) -> tuple[float, float]:
    """Return the 95 % interval of the recovery rate alone, without other comparisons."""
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


class Tally(NamedTuple):
    """Shares of worlds."""

    covered: float
    amounts_covered: float
    called: float
    """Pages with any verdict."""
    effect_called: float
    """Pages whose first row is called in the right direction."""
    harmful_first: float
    ever_called: float
    """Worlds in which any of the looks calls anything."""


def run(world: World, count: int, seed: int = 1) -> Tally:
    truth = true_difference(world)
    covered = amounts = called = effect_called = first = ever = pages = 0
    for number in range(count):
        cases = play(world, random.Random(f"{seed} {world.name} {number}"))
        low, high = single_interval(cases)
        covered += low <= truth <= high
        low, high = amount_interval(cases)
        amounts += low <= 0 <= high
        is_ever_called = False
        for look in range(1, world.looks + 1):
            summary, contributions, _ = analyze(cases[: len(cases) * look // world.looks])
            pages += 1
            is_page_called = is_called([*summary, *contributions])
            called += is_page_called
            is_ever_called |= is_page_called
        ever += is_ever_called
        effect_called += bool(summary) and summary[0].verdict == ("better" if truth > 0 else "worse")
        first += bool(contributions) and contributions[0].subject == f"fix_{len(world.effects) - 1}"
    return Tally(covered / count, amounts / count, called / pages, effect_called / count, first / count, ever / count)


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


def count_compared(count: int, failure_rate: float, sessions: int = 200) -> float:
    """Return the share of pages that call a version with this failure rate better or worse than one with 15 %."""
    called = 0
    for number in range(count):
        chance = random.Random(f"compare {number}")
        groups = build_group(chance, sessions, 0.15), build_group(chance, sessions, failure_rate)
        rows = compare_stats(sum_cells(groups[0]), sum_cells(groups[1]), clusters=groups)
        called += any(row.verdict in ("better", "worse") for row in rows)
    return called / count


def measure(count: int) -> Iterator[tuple[str, float, str, bool]]:
    """Yield name, measured share, target, and whether the target is met."""
    for world in WORLDS:
        tally = run(world, count)
        yield f"{world.name}: 95 % interval covers the truth", tally.covered, ">= 93 %", tally.covered >= 0.93
        yield f"{world.name}: the same of amounts", tally.amounts_covered, ">= 93 %", tally.amounts_covered >= 0.93
        if not any(world.effects):
            yield f"{world.name}: pages with a false verdict", tally.called, "<= 5 %", tally.called <= 0.05
        if world.looks > 1:
            yield f"{world.name}: worlds ever called", tally.ever_called, "(warned)", True
        if world.effects == (0.2,):
            yield f"{world.name}: called", tally.effect_called, ">= 80 %", tally.effect_called >= 0.8
        if min(world.effects) <= -HARMFUL:
            yield f"{world.name}: ranked first", tally.harmful_first, ">= 90 %", tally.harmful_first >= 0.9
    yield (
        "Compare, equal versions: pages with a verdict",
        (share := count_compared(count, 0.15)),
        "<= 5 %",
        share <= 0.05,
    )
    yield "Compare, 25 % instead of 15 % failures", (share := count_compared(count, 0.25)), ">= 80 %", share >= 0.8


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_WORLDS
    has_missed = False
    for name, share, target, is_met in measure(count):
        has_missed |= not is_met
        print(f"{'  ' if is_met else '! '}{name:<62} {share:7.1%}  {target}", flush=True)
    return int(has_missed)


if __name__ == "__main__":
    sys.exit(main())
