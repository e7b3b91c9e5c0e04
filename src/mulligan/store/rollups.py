"""Rollups: counters per hour and per day, one packed row each, so that the cost of a query does not grow with the data.

`mulligan.store.counters` defines what is counted and which rollups a query reads. This module stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from mulligan.store import counters as counters_module
from mulligan.store.connection import Connection, Insert, Lookup
from mulligan.store.counters import DAY, Cell, Cells, Reading, Row, Stats, StatsQuery

Key = tuple[str, str, str, int, str]
"""Tenant, grain, slice, bucket and value: the primary key of a rollup."""
MAX_CACHED_ROLLUPS = 5_000
"""Limit of rollups that the writer caches between batches."""

_KEYS = "tenant grain slice bucket value"
ROLLUP_INSERT = Insert.or_update("rollups", _KEYS, "summary details")
_ROLLUP_LOOKUP = Lookup.of("rollups", _KEYS, "summary details")
_WHERE = "WHERE tenant = ? AND grain = ? AND slice = ? AND bucket = ? AND value = ?"
_EMPTY_CELL = Cell()


class _CachedRollup:
    """A cached rollup, and its stored details (all but the summary): most batches change only the summary."""

    __slots__ = ("cell", "details")

    def __init__(self, cell: Cell, details: bytes | None) -> None:
        self.cell = cell
        self.details = details


class Rollups:
    """The rollups of a store, updated by its only writer."""

    def __init__(self) -> None:
        self._cache: dict[Key, _CachedRollup] = {}

    def drop_cache(self) -> None:
        """Clear the cache after a rollback, or after another process has written."""
        self._cache.clear()

    def add(self, writer: Connection, tenant: str, counters: Cells, grains: tuple[str, ...] = ("hour", "day")) -> None:
        """Add counters, which may be negative, to every rollup that contains them."""
        if len(self._cache) > MAX_CACHED_ROLLUPS:
            self._cache.clear()
        rows: list[tuple[Any, ...]] = []
        empty_keys: list[Key] = []
        sums = {key: more for key, more in _rollup_changes(tenant, counters).items() if key[1] in grains}
        self._load(writer, [key for key in sums if key not in self._cache])
        for key, more in sums.items():
            cached = self._cache[key]
            cell = cached.cell
            counters_module.merge(cell, more)
            if counters_module.has_rest(more):
                cached.details = counters_module.pack_rest(cell)
            if cell.calls <= 0 and not cell.runs and cell == _EMPTY_CELL:
                empty_keys.append(key)
            else:
                rows.append((*key, counters_module.pack_outline(cell), cached.details))
        writer.put(ROLLUP_INSERT, rows)
        if empty_keys:
            writer.executemany(f"DELETE FROM rollups {_WHERE}", empty_keys)

    def _load(self, writer: Connection, keys: list[Key]) -> None:
        """Read rollups into the cache with one lookup. A missing rollup starts empty."""
        for key in keys:
            self._cache[key] = _CachedRollup(Cell(), None)
        for *key_columns, cell, details in writer.look_up(_ROLLUP_LOOKUP, keys):
            self._cache[tuple(key_columns)] = _CachedRollup(counters_module.unpack(cell, details), details)

    def move(self, writer: Connection, key: Key, value: str, cell: Cell) -> None:
        """Move a rollup to another value and merge it with the rollup stored there."""
        self._cache.clear()
        writer.execute(f"DELETE FROM rollups {_WHERE}", key)
        other = (*key[:4], value)
        for *_, stored_cell, details in writer.look_up(_ROLLUP_LOOKUP, [other]):
            counters_module.merge(cell, counters_module.unpack(stored_cell, details))
        writer.put(ROLLUP_INSERT, [(*other, *counters_module.pack(cell))])


def _rollup_changes(tenant: str, counters: Cells) -> dict[Key, Cell]:
    """Return the changes to rollups. Most rollups get one set of counters, which is then passed on without a copy."""
    hours = _merge_by_key(
        ((tenant, "hour", slice, counter_key.hour, value), cell)
        for counter_key, cell in counters.items()
        for slice, value in counters_module.slices(counter_key)
    )
    # Most batches fall into one hour, so the changes of the day are those of the hour.
    days = _merge_by_key(
        ((tenant, "day", slice, hour // DAY * DAY, value), cell) for (_, _, slice, hour, value), cell in hours.items()
    )
    return hours | days


def _merge_by_key(parts: Iterable[tuple[Key, Cell]]) -> dict[Key, Cell]:
    sums: dict[Key, Cell] = {}
    copied_keys: set[Key] = set()
    for key, cell in parts:
        total = sums.get(key)
        if total is None:
            sums[key] = cell
            continue
        if key not in copied_keys:
            copied_keys.add(key)
            first, total = total, Cell()
            counters_module.merge(total, first)
            sums[key] = total
        counters_module.merge(total, cell)
    return sums


Read = Callable[[str, Iterable[Any]], list[Any]]


def stats(read: Read, tenant: str, query: StatsQuery) -> Stats:
    main_reading, remaining_reading = counters_module.readings(query)
    return counters_module.answer(
        query, _rows(read, tenant, main_reading), _rows(read, tenant, remaining_reading) if remaining_reading else ()
    )


def _rows(read: Read, tenant: str, reading: Reading) -> Iterator[Row]:
    base_where = "tenant = ? AND slice = ?"
    values: list[Any] = [tenant, reading.slice]
    if reading.values is not None:
        base_where += f" AND value IN ({', '.join('?' * len(reading.values))})"
        values += reading.values
    packed: dict[tuple[str, Literal[1, -1]], list[bytes]] = {}
    for span in reading.spans:
        where, bounds = f"{base_where} AND grain = ?", [*values, span.grain]
        for condition, bound in (("bucket >= ?", span.since), ("bucket < ?", span.until)):
            if bound is not None:
                where, bounds = f"{where} AND {condition}", [*bounds, bound]
        if reading.outline:
            for value, cell in read(f"SELECT value, summary FROM rollups WHERE {where}", bounds):
                packed.setdefault((value, span.sign), []).append(cell)
        else:
            for bucket, value, cell, details in read(
                f"SELECT bucket, value, summary, details FROM rollups WHERE {where}", bounds
            ):
                yield Row(bucket, value, counters_module.unpack(cell, details), span.sign)
    for (value, sign), cells in packed.items():
        yield Row(0, value, counters_module.outline(cells), sign)
