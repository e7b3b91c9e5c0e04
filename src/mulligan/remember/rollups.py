"""Sums by the hour and by the day, packed into a row each, so that a question costs the same at any size.

What is counted, and of which sums a question is made, is in `mulligan.figures`; here they are kept.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from mulligan import figures
from mulligan.figures import DAY, Cell, Cells, Reading, Row, Stats, StatsQuery

Key = tuple[str, str, str, int, str]
"""Tenant, grain, slice, bucket and value: where a sum is kept."""
IN_HAND = 5_000
"""Sums the writer remembers, so as not to read them again for the next batch."""
TOGETHER = 50

_ROW = "(?, ?, ?, ?, ?, ?)"
_PUT = "INSERT OR REPLACE INTO rollups VALUES "
_WHERE = "WHERE tenant = ? AND grain = ? AND slice = ? AND bucket = ? AND value = ?"
_NOTHING = Cell()


class Rollups:
    """The sums of a store, as its one writer adds to them."""

    def __init__(self) -> None:
        self._known: dict[Key, Cell] = {}

    def let_go(self) -> None:
        """Another process has written, or what was added was taken back: what is in hand may not be what is kept."""
        self._known.clear()

    def add(
        self, writer: sqlite3.Connection, tenant: str, counted: Cells, grains: tuple[str, ...] = ("hour", "day")
    ) -> None:
        """Adds what was counted, which may be less than nothing, to every sum it is part of."""
        if len(self._known) > IN_HAND:
            self._known.clear()
        rows: list[Any] = []
        gone: list[Key] = []
        for key, more in _sums(tenant, counted).items():
            if key[1] not in grains:
                continue
            cell = self._known.get(key)
            if cell is None:
                found = writer.execute(f"SELECT cell FROM rollups {_WHERE}", key).fetchone()
                cell = self._known[key] = figures.unpack(found[0]) if found else Cell()
            figures.merge(cell, more)
            if cell.calls <= 0 and not cell.runs and cell == _NOTHING:
                gone.append(key)
            else:
                rows += (*key, figures.pack(cell))
        put(writer, rows)
        writer.executemany(f"DELETE FROM rollups {_WHERE}", gone)

    def move(self, writer: sqlite3.Connection, key: Key, value: str, cell: Cell) -> None:
        """Keeps a sum under another value, together with what is there."""
        self._known.clear()
        writer.execute(f"DELETE FROM rollups {_WHERE}", key)
        other = (*key[:4], value)
        found = writer.execute(f"SELECT cell FROM rollups {_WHERE}", other).fetchone()
        if found:
            figures.merge(cell, figures.unpack(found[0]))
        put(writer, [*other, figures.pack(cell)])


def put(writer: sqlite3.Connection, rows: list[Any]) -> None:
    """Six values a row, many rows a statement: each statement lets go of the interpreter's lock."""
    size = 6 * TOGETHER
    whole = len(rows) - len(rows) % size
    many = _PUT + ", ".join([_ROW] * TOGETHER)
    for start in range(0, whole, size):
        writer.execute(many, rows[start : start + size])
    if left := rows[whole:]:
        writer.execute(_PUT + ", ".join([_ROW] * (len(left) // 6)), left)


def _sums(tenant: str, counted: Cells) -> dict[Key, Cell]:
    """The sums these counters are part of. Mostly a sum gets one of them, and is not built but passed on."""
    hours = _added(
        ((tenant, "hour", slice, place.hour, value), cell)
        for place, cell in counted.items()
        for slice, value in figures.slices(place)
    )
    # A batch is mostly of one hour, and what it adds to the day is what it adds to the hour.
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
        rows = read(f"SELECT bucket, value, cell FROM rollups WHERE {where}", bounds)
        if reading.outline:
            for _, value, cell in rows:
                packed.setdefault((value, span.sign), []).append(cell)
        else:
            for bucket, value, cell in rows:
                yield Row(bucket, value, figures.unpack(cell), span.sign)
    for (value, sign), cells in packed.items():
        yield Row(0, value, figures.outline(cells), sign)
