"""Sums by the hour and by the day, packed into a row each, so that a question costs the same at any size.

What is counted, and of which sums a question is made, is in `mulligan.figures`; here they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from mulligan import figures
from mulligan.figures import DAY, Cell, Cells, Reading, Row, Stats, StatsQuery
from mulligan.remember.connection import Connection, Insert, Lookup

Key = tuple[str, str, str, int, str]
"""Tenant, grain, slice, bucket and value: where a sum is kept."""
IN_HAND = 5_000
"""Sums the writer remembers, so as not to read them again for the next batch."""
REPACKED = 10_000
"""Sums that are read at a time to be kept in another form."""

_KEYS = "tenant grain slice bucket value"
SUM = Insert.instead("rollups", _KEYS, "cell rest")
_KEPT = Lookup.of("rollups", _KEYS, "cell rest")
_WHERE = "WHERE tenant = ? AND grain = ? AND slice = ? AND bucket = ? AND value = ?"
_NOTHING = Cell()


class _Sum:
    """A sum in hand, and all of it but the outline as it is kept: most batches change the outline alone."""

    __slots__ = ("cell", "rest")

    def __init__(self, cell: Cell, rest: bytes | None) -> None:
        self.cell = cell
        self.rest = rest


class Rollups:
    """The sums of a store, as its one writer adds to them."""

    def __init__(self) -> None:
        self._known: dict[Key, _Sum] = {}

    def let_go(self) -> None:
        """Another process has written, or what was added was taken back: what is in hand may not be what is kept."""
        self._known.clear()

    def add(self, writer: Connection, tenant: str, counted: Cells, grains: tuple[str, ...] = ("hour", "day")) -> None:
        """Adds what was counted, which may be less than nothing, to every sum it is part of."""
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
        """Reads sums, all at once; what is not kept yet is nothing so far."""
        for key in keys:
            self._known[key] = _Sum(Cell(), None)
        for *place, cell, rest in writer.look_up(_KEPT, keys):
            self._known[tuple(place)] = _Sum(figures.unpack(cell, rest), rest)

    def move(self, writer: Connection, key: Key, value: str, cell: Cell) -> None:
        """Keeps a sum under another value, together with what is there."""
        self._known.clear()
        writer.execute(f"DELETE FROM rollups {_WHERE}", key)
        other = (*key[:4], value)
        for *_, kept, rest in writer.look_up(_KEPT, [other]):
            figures.merge(cell, figures.unpack(kept, rest))
        writer.put(SUM, [(*other, *figures.pack(cell))])


def repack(writer: Connection, done: Callable[[int], None] = lambda sums: None) -> None:
    """Takes the outline out of each sum of a store that was kept as a whole: `tables.REPACKED_AT`."""
    keys = ", ".join(_KEYS.split())
    after: tuple[Any, ...] = ("", "", "", -(2**63), "")
    while some := writer.execute(
        f"SELECT {keys}, cell FROM rollups WHERE ({keys}) > (?, ?, ?, ?, ?) ORDER BY {keys} LIMIT ?", (*after, REPACKED)
    ).fetchall():
        writer.put(SUM, [(*key, *figures.pack(figures.unpack_named(cell))) for *key, cell in some])
        after = some[-1][:5]
        done(len(some))


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
