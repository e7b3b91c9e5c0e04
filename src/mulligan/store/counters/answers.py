"""Queries on counters: which rollups a store has, which of them a query reads, and their sum.

A store has rollups by hour and by day. `stats` counts run histories instead, and must return the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from mulligan.core.records import History, Record, StepType
from mulligan.store.counters.counters import (
    DAY,
    HOUR,
    NOTHING,
    Cell,
    Cells,
    Outline,
    Place,
    add,
    attempts,
    merge,
    only,
)
from mulligan.store.counters.counting import cells
from mulligan.store.counters.histogram import Histogram

HOURS = 3 * DAY
"""How far back a question may be asked by the hour. Counters by the hour are needed a day longer than that."""
Grain = Literal["hour", "day"]
By = Literal["agent", "tool", "step", "kind", "model", "version", "environment", "attempt", "time"]
Slice = Literal["all", "agent", "version", "environment", "model", "step", "place"]
"""How a store keeps sums: of everything, of one value of one dimension, and of each place by itself."""

# Slices: in which sums a place is kept, and which sums answer a question

_BETWEEN = "\x1f"


def slices(place: Place) -> Iterator[tuple[Slice, str]]:
    """The sums a place is part of, each by the slice and the value in it."""
    yield "all", ""
    yield "agent", place.agent
    if place.version:
        yield "version", _key(place.agent, place.version)
    if place.environment:
        yield "environment", place.environment
    if place.model:
        yield "model", place.model
    if place.type:
        yield "step", f"{place.type} {place.name}"
    yield "place", _key(*place[1:])


def _key(*parts: str) -> str:
    return _BETWEEN.join(part.replace(_BETWEEN, " ") for part in parts)


class StatsQuery(Record, frozen=True):
    """What is asked. Times are UTC milliseconds, and the clock is the asker's.

    The answer covers whole hours, or whole days (UTC) if it goes back more than three, and says which.
    """

    now: int
    since: int | None = None
    until: int | None = None
    by: By | None = None
    agent: str | None = None
    tool: str | None = None
    kind: str | None = None
    """`tool/timeout`, or `tool` for all kinds of that type."""
    model: str | None = None
    version: str | None = None
    environment: str | None = None
    type: StepType | None = None
    detail: bool = False
    """Whether the parts by agent, tool and the like are wanted with all that is in them, and not in outline."""


class Stats(Record, frozen=True):
    """The answer: everything asked for in sum, and in parts if it was asked by something."""

    total: Cell
    parts: dict[str, Cell] = msgspec.field(default_factory=dict)
    by: By | None = None
    grain: Grain = "day"
    since: int | None = None
    until: int | None = None


class BucketRange(msgspec.Struct, frozen=True):
    """Buckets of one grain whose sums are read, and added or subtracted."""

    grain: Grain
    since: int | None
    until: int | None
    sign: Literal[1, -1] = 1


class Reading(msgspec.Struct, frozen=True):
    """Which sums are needed: of the grain, from and until a bucket, of a slice, of these values or of all."""

    grain: Grain
    since: int | None
    until: int | None
    slice: Slice
    values: tuple[str, ...] | None
    outline: bool = False
    """Whether the outline of each sum is enough."""
    spans: tuple[BucketRange, ...] = ()
    """How to come by it with few sums."""


def readings(query: StatsQuery) -> tuple[Reading, Reading | None]:
    """What is to be read for the total, and for the parts where those are other sums."""
    span = _span(query)
    asked = [name for name in ("agent", "tool", "model", "version", "environment", "type") if getattr(query, name)]
    if query.agent == "":
        asked.append("agent")
    slice, values = _narrowest(query, asked)
    by = _SLICE_OF.get(query.by or "")
    whole = Reading(*span, slice, values, spans=_spans(query, *span))
    if by is None:
        return whole, None
    if asked:
        return msgspec.structs.replace(whole, slice="place", values=None), None
    outline = not (query.detail or query.kind)
    # Of a tool every counter is of a call. Elsewhere an outline may be empty, and what is left of a day seem nothing.
    spans = _spans(query, *span, takes=query.by == "tool" or not outline)
    return msgspec.structs.replace(whole, slice="all", values=("",)), Reading(*span, by, None, outline, spans)


def _spans(
    query: StatsQuery, grain: Grain, since: int | None, until: int | None, takes: bool = True
) -> tuple[BucketRange, ...]:
    """Hours, as far as possible by the sums of days; also of a day begun, if the hours before may be taken away.

    Not if it is asked by time; and nothing is taken if a kind is asked for, which may be at zero in all that is there.
    """
    if grain == "day" or since is None or query.by == "time":
        return (BucketRange(grain, since, until),)
    first = -(-since // DAY) * DAY
    last = None if until is None else until // DAY * DAY
    takes = takes and not query.kind
    if until is not None and last is not None:
        if last < first:  # all of it within a day
            return tuple(_hours(since, until, takes))
        edges = [*_hours(since, first, takes), *_hours(last, until, takes)]
    else:
        edges = _hours(since, first, takes)
    days = [BucketRange("day", first, last)] if last is None or first < last else []
    return tuple(sorted((*days, *edges), key=lambda span: -span.sign))  # nothing is taken before it was added


def _hours(since: int, until: int, takes: bool) -> list[BucketRange]:
    """Hours of one day: themselves, or the day without the others if those are fewer."""
    day = since // DAY * DAY
    if not takes or until - since <= DAY // 2:
        return [BucketRange("hour", since, until)] if since < until else []
    others = (BucketRange("hour", start, end, -1) for start, end in ((day, since), (until, day + DAY)) if start < end)
    return [BucketRange("day", day, day + DAY), *others]


_SLICE_OF: dict[str, Slice] = {
    "agent": "agent",
    "version": "version",
    "environment": "environment",
    "model": "model",
    "tool": "step",
    "step": "step",
}
TOOLS = ("tool", "retrieval")
"""The types of steps that are tools."""


def _narrowest(query: StatsQuery, asked: list[str]) -> tuple[Slice, tuple[str, ...] | None]:
    match asked:
        case []:
            return "all", ("",)
        case ["agent"]:
            return "agent", (query.agent or "",)
        case ["model"]:
            return "model", (query.model or "",)
        case ["environment"]:
            return "environment", (query.environment or "",)
        case ["tool"]:
            return "step", tuple(f"{type} {query.tool}" for type in TOOLS)
        case ["agent", "version"]:
            return "version", (_key(query.agent or "", query.version or ""),)
        case _:
            return "place", None


def _span(query: StatsQuery) -> tuple[Grain, int | None, int | None]:
    by_hour = query.since is not None and query.since >= query.now - HOURS
    length = HOUR if by_hour else DAY
    since = None if query.since is None else query.since // length * length
    until = None if query.until is None else -(-query.until // length) * length
    return "hour" if by_hour else "day", since, until


class Row(msgspec.Struct, frozen=True):
    """A sum as it is kept: the bucket is the hour or day it is of, in UTC milliseconds."""

    bucket: int
    value: str
    cell: Outline
    sign: Literal[1, -1] = 1
    """Whether it is added or, because it is part of a larger sum and not asked for, taken away."""


def answer(query: StatsQuery, whole: Iterable[Row], parts: Iterable[Row] = ()) -> Stats:
    """The answer, from the sums that `readings` asked for."""
    reading, separate = readings(query)
    total, divided, taken = Cell(), dict[str, Cell](), set[str]()
    for row in whole:
        place = Place(0, *row.value.split(_BETWEEN)) if reading.slice == "place" else None
        if place is not None and not _is_asked(query, place):
            continue
        cell = only(row.cell, query.kind) if query.kind else row.cell
        merge(total, cell, row.sign)
        if separate is None and query.by is not None:
            if query.by in ("kind", "attempt"):
                add(divided, _inside(query.by, cell), row.sign)
            elif (label := str(row.bucket) if query.by == "time" else _label(query.by, place)) is not None:
                merge(divided.setdefault(label, Cell()), cell, row.sign)
                if row.sign < 0:
                    taken.add(label)
    for row in parts if separate is not None else ():
        label = _labelled(query.by, row.value)
        if label is not None:
            known = divided.get(label)
            if known is None:
                known = divided[label] = Cell()
            merge(known, only(row.cell, query.kind) if query.kind else row.cell, row.sign)
            if row.sign < 0:
                taken.add(label)
    for label in taken:
        if divided[label] == NOTHING:
            del divided[label]
    if query.by in _SLICE_OF and not (query.detail or query.kind):
        divided = {label: _outlined(cell) for label, cell in divided.items()}
    return Stats(total=total, parts=divided, by=query.by, grain=reading.grain, since=reading.since, until=reading.until)


def _outlined(cell: Cell) -> Cell:
    cell.kinds, cell.made, cell.worked, cell.overcome, cell.wrong, cell.to_repair = {}, {}, {}, {}, {}, Histogram()
    return cell


def _is_asked(query: StatsQuery, place: Place) -> bool:
    return (
        (query.agent is None or place.agent == query.agent)
        and (not query.version or place.version == query.version)
        and (not query.environment or place.environment == query.environment)
        and (not query.model or place.model == query.model)
        and (not query.type or place.type == query.type)
        and (not query.tool or (place.name == query.tool and place.type in TOOLS))
    )


def _label(by: By, place: Place | None) -> str | None:
    """The part a place belongs to; None if it belongs to none, or to several that are inside its counters."""
    if place is None or by not in _SLICE_OF:
        return None
    for slice, value in slices(place):
        if slice == _SLICE_OF[by]:
            return _labelled(by, value)
    return None


def _labelled(by: By | None, value: str) -> str | None:
    if by == "tool":
        type, _, name = value.partition(" ")
        return name if type in TOOLS else None
    return value.replace(_BETWEEN, " ") if by == "version" else value


def _inside(by: By, cell: Outline) -> dict[str, Cell]:
    """Counters divided by what is inside them: a part for each kind, or for each number of an attempt."""
    if not isinstance(cell, Cell):
        return {}
    if by == "kind":
        return {kind: only(cell, kind) for kind in cell.kinds}
    if by == "attempt":
        return {
            str(number): Cell(attempts=made, made={number: made}, worked={number: worked} if worked else {})
            for number, made, worked in attempts(cell)
        }
    return {}


def rows(places: Mapping[Place, Cell], reading: Reading) -> Iterator[Row]:
    """The sums a store would keep of these places, as far as a reading asks for them."""
    length = HOUR if reading.grain == "hour" else DAY
    for place, cell in places.items():
        start = place.hour // length * length
        if (reading.since is None or start >= reading.since) and (reading.until is None or start < reading.until):
            for slice, value in slices(place):
                if slice == reading.slice and (reading.values is None or value in reading.values):
                    yield Row(start, value, cell)


def stats(histories: Iterable[History], query: StatsQuery | None = None) -> Stats:
    """The answer from the histories themselves; of all of them, if nothing is asked in particular."""
    found: Cells = {}
    for history in histories:
        add(found, cells(history))
    query = query or StatsQuery(now=0)
    whole, parts = readings(query)
    return answer(query, rows(found, whole), rows(found, parts) if parts else ())
