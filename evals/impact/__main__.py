"""Do `mulligan impact` and Compare say what is true? Simulated agents with a known effect.

    python evals/impact             1,000 worlds of each type, on 2 processes
    python evals/impact 100         fewer worlds
    python evals/impact --stored    5 worlds of each type through a store: the page has the same figures as the cases

Prints a table, and exits 1 if a target is missed. The README beside has the figures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from stored_worlds import is_stored_alike
from worlds import HARMFUL, WORLDS, World, WorldResult, is_compared_different, measure_world

DEFAULT_WORLDS = 1000
STORED_WORLDS = 5
PROCESSES = 2
Row = tuple[str, float, float, bool]
"""Name, measured share of worlds, goal, and whether the goal is a minimum."""
COMPARISONS = (
    ("Compare, equal versions", 0.15, 200, 1, 0.05, False),
    ("Compare, equal versions, any of 14 days", 0.15, 200, 14, 1.0, False),
    ("Compare, 25 % instead of 15 % failures", 0.25, 200, 1, 0.8, True),
)
"""Name, failure rate, sessions, looks, goal, and whether it is a minimum. Compare warns of looking every day."""


def list_rows(world: World, results: list[WorldResult]) -> Iterator[Row]:
    def share(has_property: Callable[[WorldResult], bool]) -> float:
        return sum(map(has_property, results)) / len(results)

    yield "95 % interval of a rate covers the truth", share(lambda result: result.is_covered), 0.93, True
    yield "95 % interval of an amount covers it", share(lambda result: result.are_amounts_covered), 0.93, True
    yield "interval on the page covers it", share(lambda result: result.is_page_covered), 0.93, True
    if not any(world.effects):
        yield "page with a verdict", share(lambda result: result.is_called), 0.05, False
    if world.looks > 1:
        yield f"verdict on any of {world.looks} days", share(lambda result: result.is_ever_called), 0.05, False
    if world.effects == (0.2,):
        yield "called better", share(lambda result: result.is_effect_called), 0.8, True
    if min(world.effects) <= -HARMFUL:
        yield "harmful fix ranked first", share(lambda result: result.is_last_fix_first), 0.9, True


def measure(count: int, is_stored: bool) -> Iterator[Row]:
    with ProcessPoolExecutor(PROCESSES) as executor:
        for world in WORLDS:
            if is_stored:
                equal = list(executor.map(partial(is_stored_alike, world), range(count)))
                yield f"{world.name}: same page through a store", sum(equal) / count, 1.0, True
                continue
            results = list(executor.map(partial(measure_world, world), range(count), chunksize=5))
            yield from ((f"{world.name}: {name}", *rest) for name, *rest in list_rows(world, results))
        for name, failure_rate, sessions, looks, goal, is_minimum in () if is_stored else COMPARISONS:
            is_different = partial(is_compared_different, failure_rate, sessions, looks)
            called = list(executor.map(is_different, range(count), chunksize=5))
            yield f"{name}: called different", sum(called) / count, goal, is_minimum


def main() -> int:
    arguments = sys.argv[1:]
    if {"-h", "--help"}.intersection(arguments):
        print(__doc__)
        return 0
    is_stored = "--stored" in arguments
    counts = [int(argument) for argument in arguments if argument.isdigit()]
    has_missed = False
    for name, share, goal, is_minimum in measure(
        *counts or [STORED_WORLDS if is_stored else DEFAULT_WORLDS], is_stored
    ):
        is_met = share >= goal if is_minimum else share <= goal
        has_missed |= not is_met
        print(
            f"{'  ' if is_met else '! '}{name:<76} {share:7.1%}  {'>=' if is_minimum else '<='} {goal:.0%}", flush=True
        )
    return int(has_missed)


if __name__ == "__main__":
    sys.exit(main())
