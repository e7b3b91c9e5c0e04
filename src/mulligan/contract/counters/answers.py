"""Queries on counters: which rollups a store has, which of them a query reads, and their sum.

A store has rollups by hour and by day. `stats` counts run histories instead, and must return the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Literal

import msgspec

from mulligan.contract.counters.counters import (
    DAY,
    HOUR,
    Cell,
    Cells,
    CounterKey,
    PackedCell,
    add,
    attempts,
    filter_by_kind,
    merge,
    sum_by_key,
    to_cell,
    to_packed_cells,
    without_details,
)
from mulligan.contract.counters.counting import cells
from mulligan.core.records import History, Record, StepType

HOURS = 3 * DAY
"""How far back a query may have the grain of an hour. Hourly counters are needed a day longer than that."""
Grain = Literal["hour", "day"]
By = Literal["agent", "tool", "step", "kind", "model", "version", "environment", "attempt", "time"]
Slice = Literal["all", "agent", "version", "environment", "model", "step", "place"]
"""Dimension of a rollup: the sum of everything, of one value of one dimension, and of each counter key."""
TOOLS = ("tool", "retrieval")
"""The types of steps that are tools."""
_SEPARATOR = "\x1f"
_SLICE_OF: dict[str, Slice] = {
    "agent": "agent",
    "version": "version",
    "environment": "environment",
    "model": "model",
    "tool": "step",
    "step": "step",
}


def slices(key: CounterKey) -> Mapping[Slice, str]:
    """Return the rollups that contain a counter key: its value in each slice that it belongs to."""
    return _slices(*key[1:])


@lru_cache(maxsize=10_000)
def _slices(agent: str, version: str, environment: str, model: str, type: str, name: str) -> Mapping[Slice, str]:
    values: dict[Slice, str] = {
        "all": "", "agent": agent, "place": _join(agent, version, environment, model, type, name)
    }  # fmt: skip
    if version:
        values["version"] = _join(agent, version)
    if environment:
        values["environment"] = environment
    if model:
        values["model"] = model
    if type:
        values["step"] = f"{type} {name}"
    return values


def _join(*parts: str) -> str:
    value = _SEPARATOR.join(parts)
    if value.count(_SEPARATOR) >= len(parts):
        value = _SEPARATOR.join(part.replace(_SEPARATOR, " ") for part in parts)
    return value


class StatsQuery(Record, frozen=True):
    """Query on counters. Times are UTC milliseconds, by the clock of the caller.

    The answer covers whole hours, or whole days (UTC) if it goes back more than three. It says which.
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
    """Whether the parts by agent, tool and so on have all counters, not only the outline."""


class Stats(Record, frozen=True):
    """Answer to a query: the total, and its parts if the query has a dimension."""

    total: Cell
    parts: dict[str, Cell] = msgspec.field(default_factory=dict)
    by: By | None = None
    grain: Grain = "day"
    since: int | None = None
    until: int | None = None


BucketRange = tuple[Grain, int | None, int | None]
"""The buckets of one grain since a time and until a time."""


class Reading(msgspec.Struct, frozen=True):
    """The rollups that a query reads: a range of buckets of one grain, a slice, and some of its values or all."""

    grain: Grain
    since: int | None
    until: int | None
    slice: Slice
    values: tuple[str, ...] | None
    outline: bool = False
    """Whether the outlines are enough."""
    spans: tuple[BucketRange, ...] = ()
    """The ranges to read, with few rollups."""


def readings(query: StatsQuery) -> tuple[Reading, Reading | None]:
    """Return what to read for the total, and for the parts if these are other rollups."""
    span = _find_range(query)
    filters = [name for name in ("agent", "tool", "model", "version", "environment", "type") if getattr(query, name)]
    if query.agent == "":
        filters.append("agent")
    slice, values = _narrowest_slice(query, filters)
    by = _SLICE_OF.get(query.by or "")
    main = Reading(*span, slice, values, spans=_split_range(query, *span))
    if by is None:
        return main, None
    outline = not (query.detail or query.kind)
    if filters or query.by == "model":  # the rollups by model do not say which of its calls are a tool's
        unfiltered = msgspec.structs.replace(main, slice="place", values=None)
        # Details are in few rollups then: those of the total. Of all places, outlines are enough.
        is_total_elsewhere = outline and main.slice != "place"
        return (main, msgspec.structs.replace(unfiltered, outline=True)) if is_total_elsewhere else (unfiltered, None)
    return msgspec.structs.replace(main, slice="all", values=("",)), Reading(*span, by, None, outline, main.spans)


def _find_range(query: StatsQuery) -> BucketRange:
    is_hourly = query.since is not None and query.since >= query.now - HOURS
    length = HOUR if is_hourly else DAY
    since = None if query.since is None else query.since // length * length
    until = None if query.until is None else -(-query.until // length) * length
    return "hour" if is_hourly else "day", since, until


def _narrowest_slice(query: StatsQuery, filters: list[str]) -> tuple[Slice, tuple[str, ...] | None]:
    match filters:
        case []:
            return "all", ("",)
        case ["agent" | "model" | "environment" as name]:
            return _SLICE_OF[name], (getattr(query, name) or "",)
        case ["tool"]:
            return "step", tuple(f"{type} {query.tool}" for type in TOOLS)
        case ["agent", "version"]:
            return "version", (_join(query.agent or "", query.version or ""),)
        case ["version"]:  # of all agents: far fewer rollups than there are places
            return "version", None
        case _:
            return "place", None


def _split_range(query: StatsQuery, grain: Grain, since: int | None, until: int | None) -> tuple[BucketRange, ...]:
    """Split hours into whole days as far as possible. Not for a query by time."""
    if grain == "day" or since is None or query.by == "time":
        return ((grain, since, until),)
    first, last = -(-since // DAY) * DAY, None if until is None else until // DAY * DAY
    if last is None:
        return ("hour", since, first), ("day", first, None)
    if last <= first:
        return (("hour", since, until),)
    return ("hour", since, first), ("day", first, last), ("hour", last, until)


class Row(msgspec.Struct, frozen=True):
    """A stored rollup. The bucket is its hour or day, in UTC milliseconds."""

    bucket: int
    value: str
    cell: Cell


def answer(query: StatsQuery, main_rows: Iterable[Row], part_rows: Iterable[Row] = ()) -> Stats:
    """Answer a query from the rollups that `readings` selects."""
    reading, parts_reading = readings(query)
    total = Cell()
    parts: dict[str, Cell] = {}

    def add_part(label: str | None, cell: Cell) -> None:
        if label is not None:
            merge(parts.get(label) or parts.setdefault(label, Cell()), cell)

    for row in main_rows:
        key = CounterKey(0, *row.value.split(_SEPARATOR)) if reading.slice == "place" else None
        if key is not None and not _matches(query, key):
            continue
        is_any_version = reading.slice == "version" and reading.values is None
        if is_any_version and row.value.rpartition(_SEPARATOR)[2] != query.version:
            continue
        cell = filter_by_kind(row.cell, query.kind) if query.kind else row.cell
        merge(total, cell)
        if parts_reading is not None or query.by is None:
            continue
        if query.by in ("kind", "attempt"):
            add(parts, _split_cell(query.by, cell))
        elif query.by == "time":
            add_part(str(row.bucket), cell)
        elif part := _part_of_model(query, key, cell) if query.by == "model" else cell:
            add_part(_find_label(query.by, key), part)
    for row in part_rows if parts_reading is not None else ():
        if query.by is not None and parts_reading is not None and parts_reading.slice == "place":
            key = CounterKey(0, *row.value.split(_SEPARATOR))
            part = _part_of_model(query, key, row.cell) if query.by == "model" else row.cell
            if part is not None and _matches(query, key):
                add_part(_find_label(query.by, key), part)
            continue
        add_part(_label(query.by, row.value), filter_by_kind(row.cell, query.kind) if query.kind else row.cell)
    if query.by in _SLICE_OF and not (query.detail or query.kind):
        parts = {label: without_details(cell) for label, cell in parts.items()}
    return Stats(total=total, parts=parts, by=query.by, grain=reading.grain, since=reading.since, until=reading.until)


def _matches(query: StatsQuery, key: CounterKey) -> bool:
    return (
        (query.agent is None or key.agent == query.agent)
        and (not query.version or key.version == query.version)
        and (not query.environment or key.environment == query.environment)
        and (not query.model or key.model == query.model)
        and (not query.type or key.type == query.type)
        and (not query.tool or (key.name == query.tool and key.type in TOOLS))
    )


def _part_of_model(query: StatsQuery, key: CounterKey | None, cell: Cell) -> Cell | None:
    """Return the counters that belong to a model: its calls, and the turns that its run avoided by a recovered tool.

    A tool's calls are not the model's, unless the query is about tools or a kind.
    """
    if key is None or key.type == "model" or query.type or query.tool or query.kind:
        return cell
    if not cell.avoided_turns:
        return None
    return Cell(
        avoided_turns=cell.avoided_turns,
        avoided_tokens=cell.avoided_tokens,
        avoided_cost_nanos=cell.avoided_cost_nanos,
    )


def _find_label(by: By, key: CounterKey | None) -> str | None:
    """Return the part of a counter key; None if it has none."""
    value = slices(key).get(_SLICE_OF[by]) if key is not None and by in _SLICE_OF else None
    return None if value is None else _label(by, value)


def _label(by: By | None, value: str) -> str | None:
    if by == "tool":
        type, _, name = value.partition(" ")
        return name if type in TOOLS else None
    return value.replace(_SEPARATOR, " ") if by == "version" else value


def _split_cell(by: By, cell: Cell) -> dict[str, Cell]:
    """Split counters by kind or by the number of an attempt."""
    if by == "kind":
        return {kind: filter_by_kind(cell, kind) for kind in cell.kinds}
    return {
        str(number): Cell(
            attempts=count, later_attempts={number: count}, later_successes={number: successes} if successes else {}
        )
        for number, count, successes in attempts(cell)
    }


def rows(cells: Iterable[PackedCell], reading: Reading) -> Iterator[Row]:
    """Yield the rollups of these counters that a reading selects."""
    for (start, value), cell in sum_by_key(_select(cells, reading)).items():
        yield Row(start, value, to_cell(cell))


def _select(cells: Iterable[PackedCell], reading: Reading) -> Iterator[tuple[tuple[int, str], PackedCell]]:
    length = HOUR if reading.grain == "hour" else DAY
    for cell in cells:
        start = cell.key.hour // length * length
        if (reading.since is None or start >= reading.since) and (reading.until is None or start < reading.until):
            value = slices(cell.key).get(reading.slice)
            if value is not None and (reading.values is None or value in reading.values):
                yield (start, value), cell


def stats(histories: Iterable[History], query: StatsQuery | None = None) -> Stats:
    """Answer a query from run histories; without a query, count all of them."""
    total: Cells = {}
    for history in histories:
        add(total, cells(history))
    packed = to_packed_cells(total)
    query = query or StatsQuery(now=0)
    main_reading, parts_reading = readings(query)
    return answer(query, rows(packed, main_reading), rows(packed, parts_reading) if parts_reading else ())
