"""Rollups: counters per hour and per day, one packed row each, so that the cost of a query does not grow with the data.

`mulligan.figures` defines what is counted and which rollups a query reads. This module stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from mulligan import figures
from mulligan.figures import DAY, Cell, Cells, Reading, Row, Stats, StatsQuery
from mulligan.remember.connection import Connection, Insert, Lookup

Key = tuple[str, str, str, int, str]
"""Tenant, grain, slice, bucket and value: the primary key of a rollup."""
IN_HAND = 5_000
"""Limit of rollups that the writer caches between batches."""
REPACKED = 10_000
"""Rollups that are read at a time to be repacked."""

_KEYS = "tenant grain slice bucket value"
SUM = Insert.instead("rollups", _KEYS, "cell rest")
_KEPT = Lookup.of("rollups", _KEYS, "cell rest")
_WHERE = "WHERE tenant = ? AND grain = ? AND slice = ? AND bucket = ? AND value = ?"
_NOTHING = Cell()


class _Sum:
    """A cached rollup, and its stored details (all but the summary): most batches change only the summary."""

    __slots__ = ("cell", "rest")

    def __init__(self, cell: Cell, rest: bytes | None) -> None:
        self.cell = cell
        self.rest = rest


class Rollups:
    """The rollups of a store, updated by its only writer."""

    def __init__(self) -> None:
        self._known: dict[Key, _Sum] = {}

    def let_go(self) -> None:
        """Clear the cache after a rollback, or after another process has written."""
        self._known.clear()

    def add(self, writer: Connection, tenant: str, counted: Cells, grains: tuple[str, ...] = ("hour", "day")) -> None:
        """Add counters, which may be negative, to every rollup that contains them."""
        if len(self._known) > IN_HAND:
            self._known.clear()
        rows: list[tuple[Any, ...]] = []
        gone: list[Key] = []
        sums = {key: more for key, more in _sums(tenant, counted).items() if key[1] in grains}
        self._take_in_hand(writer, [key for key in sums if key not in self._known])
        for key, more in sums.items():
            known = self._known[key]
            cell = known.cell
            figures.merge(cell, more)
            if figures.has_rest(more):
                known.rest = figures.pack_rest(cell)
            if cell.calls <= 0 and not cell.runs and cell == _NOTHING:
                gone.append(key)
            else:
                rows.append((*key, figures.pack_outline(cell), known.rest))
        writer.put(SUM, rows)
        if gone:
            writer.executemany(f"DELETE FROM rollups {_WHERE}", gone)

    def _take_in_hand(self, writer: Connection, keys: list[Key]) -> None:
        """Read rollups into the cache with one lookup. A missing rollup starts empty."""
        for key in keys:
            self._known[key] = _Sum(Cell(), None)
        for *place, cell, rest in writer.look_up(_KEPT, keys):
            self._known[tuple(place)] = _Sum(figures.unpack(cell, rest), rest)

    def move(self, writer: Connection, key: Key, value: str, cell: Cell) -> None:
        """Move a rollup to another value and merge it with the rollup stored there."""
        self._known.clear()
        writer.execute(f"DELETE FROM rollups {_WHERE}", key)
        other = (*key[:4], value)
        for *_, kept, rest in writer.look_up(_KEPT, [other]):
            figures.merge(cell, figures.unpack(kept, rest))
        writer.put(SUM, [(*other, *figures.pack(cell))])


def repack(writer: Connection, done: Callable[[int], None] = lambda sums: None) -> None:
    """Split each rollup of an older store into summary and details: see `tables.REPACKED_AT`."""
    keys = ", ".join(_KEYS.split())
    after: tuple[Any, ...] = ("", "", "", -(2**63), "")
    while some := writer.execute(
        f"SELECT {keys}, cell FROM rollups WHERE ({keys}) > (?, ?, ?, ?, ?) ORDER BY {keys} LIMIT ?", (*after, REPACKED)
    ).fetchall():
        writer.put(SUM, [(*key, *figures.pack(figures.unpack_named(cell))) for *key, cell in some])
        after = some[-1][:5]
        done(len(some))


def _sums(tenant: str, counted: Cells) -> dict[Key, Cell]:
    """Return the changes to rollups. Most rollups get one set of counters, which is then passed on without a copy."""
    hours = _added(
        ((tenant, "hour", slice, place.hour, value), cell)
        for place, cell in counted.items()
        for slice, value in figures.slices(place)
    )
    # Most batches fall into one hour, so the changes of the day are those of the hour.
    days = _added(
        ((tenant, "day", slice, hour // DAY * DAY, value), cell) for (_, _, slice, hour, value), cell in hours.items()
    )
    return hours | days


def _added(parts: Iterable[tuple[Key, Cell]]) -> dict[Key, Cell]:
    sums: dict[Key, Cell] = {}
    own: set[Key] = set()
    for key, cell in parts:
        known = sums.get(key)
        if known is None:
            sums[key] = cell
            continue
        if key not in own:
            own.add(key)
            first, known = known, Cell()
            figures.merge(known, first)
            sums[key] = known
        figures.merge(known, cell)
    return sums


Read = Callable[[str, Iterable[Any]], list[Any]]


def stats(read: Read, tenant: str, query: StatsQuery) -> Stats:
    whole, parts = figures.readings(query)
    return figures.answer(query, _rows(read, tenant, whole), _rows(read, tenant, parts) if parts else ())


def _rows(read: Read, tenant: str, reading: Reading) -> Iterator[Row]:
    asked = "tenant = ? AND slice = ?"
    values: list[Any] = [tenant, reading.slice]
    if reading.values is not None:
        asked += f" AND value IN ({', '.join('?' * len(reading.values))})"
        values += reading.values
    packed: dict[tuple[str, Literal[1, -1]], list[bytes]] = {}
    for span in reading.spans:
        where, bounds = f"{asked} AND grain = ?", [*values, span.grain]
        for condition, bound in (("bucket >= ?", span.since), ("bucket < ?", span.until)):
            if bound is not None:
                where, bounds = f"{where} AND {condition}", [*bounds, bound]
        if reading.outline:
            for value, cell in read(f"SELECT value, cell FROM rollups WHERE {where}", bounds):
                packed.setdefault((value, span.sign), []).append(cell)
        else:
            for bucket, value, cell, rest in read(
                f"SELECT bucket, value, cell, rest FROM rollups WHERE {where}", bounds
            ):
                yield Row(bucket, value, figures.unpack(cell, rest), span.sign)
    for (value, sign), cells in packed.items():
        yield Row(0, value, figures.outline(cells), sign)
