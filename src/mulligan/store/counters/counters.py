"""Counters: whole numbers, so that they add up to the same in any order, and can be taken back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from mulligan.store.counters.histogram import Histogram

HOUR = 3_600_000
DAY = 24 * HOUR
"""Milliseconds."""


class Outline(msgspec.Struct, omit_defaults=True):
    """The counters that every table shows, and that are quickly read."""

    runs: dict[str, int] = {}
    """By status."""
    running: int = 0
    """Those of them that have not ended."""
    calls: int = 0
    first_try: int = 0
    recovered: int = 0
    """Failed first and worked in the end, by recovery or by a later call."""
    repaired: int = 0
    """Those of them whose arguments recovery changed on the way."""
    given_up: int = 0
    attempts: int = 0
    suggested: int = 0
    """Attempts made with changed arguments."""
    hits: int = 0
    """Those of them that succeeded."""
    seconds: Histogram = msgspec.field(default_factory=Histogram)
    """How long the attempts took that succeeded."""
    micros: int = 0
    """The same, added up: millionths of a second."""
    waited: int = 0
    """Millionths of a second between attempts."""
    retrying: int = 0
    """Millionths of a second in attempts after the first."""
    tokens: int = 0
    recovery_tokens: int = 0
    """Those of them spent in attempts after the first."""
    repeats: int = 0
    """Failures that had been met, in the same run or session, before the conversation was compacted."""


class KindCell(msgspec.Struct, omit_defaults=True):
    """Counters of one kind of failure."""

    failures: int = 0
    """Attempts that failed so."""
    calls: int = 0
    """Calls that met it, once or more."""
    recovered: int = 0
    repaired: int = 0
    given_up: int = 0
    overcome: dict[str, int] = {}
    seconds: Histogram = msgspec.field(default_factory=Histogram)
    """How long the attempts took before they failed."""
    micros: int = 0


class Cell(Outline, omit_defaults=True):
    """Counters of one place, or the sum of many. A run's own failure is in `kinds`, and is no call."""

    made: dict[int, int] = {}
    """Attempts after the first, by their number. Of first ones there are as many as calls."""
    worked: dict[int, int] = {}
    """Those of them that succeeded; of first ones `first_try` did."""
    overcome: dict[str, int] = {}
    """Recovered calls, by what overcame them."""
    to_repair: Histogram = msgspec.field(default_factory=Histogram)
    """From the beginning of a recovered call to the end of what overcame it."""
    wrong: dict[str, int] = {}
    """Arguments that had to change before it worked: `path how`, by calls."""
    kinds: dict[str, KindCell] = {}


class Place(NamedTuple):
    """What a counter belongs to. Empty where it is not known; a run's own counters have no type and no name."""

    hour: int
    agent: str
    version: str
    environment: str
    model: str
    type: str
    name: str


Cells = dict[Place, Cell]


# Adding up

K = TypeVar("K")


def add(into: dict[K, Cell], other: Mapping[K, Outline], sign: Literal[1, -1] = 1) -> None:
    """Adds counters, or takes them back. A place of which nothing is left is gone."""
    for place, cell in other.items():
        known = into.get(place)
        if known is None:
            known = into[place] = Cell()
        merge(known, cell, sign)
        if sign < 0 and known == NOTHING:
            del into[place]


NOTHING = Cell()
_NO_KIND = KindCell()


def merge(into: Cell, other: Outline, sign: Literal[1, -1] = 1) -> None:
    # Field by field, and what is mostly zero only if it is not: a question comes here thousands of times.
    into.calls += sign * other.calls
    into.attempts += sign * other.attempts
    into.first_try += sign * other.first_try
    into.micros += sign * other.micros
    into.seconds.lanes += sign * other.seconds.lanes
    if other.recovered:
        into.recovered += sign * other.recovered
    if other.repaired:
        into.repaired += sign * other.repaired
    if other.given_up:
        into.given_up += sign * other.given_up
    if other.suggested or other.hits:
        into.suggested += sign * other.suggested
        into.hits += sign * other.hits
    if other.waited:
        into.waited += sign * other.waited
    if other.retrying:
        into.retrying += sign * other.retrying
    if other.tokens or other.recovery_tokens:
        into.tokens += sign * other.tokens
        into.recovery_tokens += sign * other.recovery_tokens
    if other.repeats:
        into.repeats += sign * other.repeats
    if other.runs:
        merge_counts(into.runs, other.runs, sign)
    if other.running:
        into.running += sign * other.running
    if not isinstance(other, Cell):
        return
    if other.made:
        merge_counts(into.made, other.made, sign)
    if other.worked:
        merge_counts(into.worked, other.worked, sign)
    if other.overcome:
        merge_counts(into.overcome, other.overcome, sign)
    if other.wrong:
        merge_counts(into.wrong, other.wrong, sign)
    if other.to_repair.lanes:
        into.to_repair.lanes += sign * other.to_repair.lanes
    if not other.kinds:
        return
    for name, kind in other.kinds.items():
        known = into.kinds.get(name)
        if known is None:
            known = into.kinds[name] = KindCell()
        known.failures += sign * kind.failures
        known.calls += sign * kind.calls
        known.recovered += sign * kind.recovered
        known.repaired += sign * kind.repaired
        known.given_up += sign * kind.given_up
        known.micros += sign * kind.micros
        known.seconds.lanes += sign * kind.seconds.lanes
        merge_counts(known.overcome, kind.overcome, sign)
        if known == _NO_KIND:
            del into.kinds[name]


def merge_counts(into: dict[Any, int], other: Mapping[Any, int], sign: int) -> None:
    for key, count in other.items():
        left = into.get(key, 0) + sign * count
        if left:
            into[key] = left
        else:
            into.pop(key, None)


def attempts(cell: Cell) -> Iterator[tuple[int, int, int]]:
    """The number of an attempt, how many were made, and how many of those worked."""
    if cell.calls:
        yield 1, cell.calls, cell.first_try
    for number, made in sorted(cell.made.items()):
        yield number, made, cell.worked.get(number, 0)


def only(cell: Outline, kind: str) -> Cell:
    """What is known of one kind, or of all kinds of a type: the calls that met it, and what came of them.

    Attempts are then those that failed so. A call that met two kinds of a type is counted in both.
    """
    found = Cell()
    for name, known in cell.kinds.items() if isinstance(cell, Cell) else ():
        if name == kind or name.partition("/")[0] == kind:
            one = Cell(
                calls=known.calls,
                recovered=known.recovered,
                repaired=known.repaired,
                given_up=known.given_up,
                attempts=known.failures,
                overcome=known.overcome,
                kinds={name: known},
            )
            merge(found, one)
    return found
