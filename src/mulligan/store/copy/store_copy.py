"""A store moves house: every row of every table, from any database to any other, held against each other at the end.

Both sides have had the same migrations, so what is equal row by row is equal in everything that can be asked. What is
there already is compared and not written again: a copy that was killed goes on, and a second one brings what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from mulligan.core.failure import StoreError
from mulligan.core.records import Record, decode, encode
from mulligan.store.base import Progress
from mulligan.store.copy.endpoints import NUMBER, Row, Side, Table
from mulligan.store.urls import is_postgres, require_psycopg, sqlite_path

CHUNK = 10_000
"""Rows that are written in one transaction, and at most lost with a process that is killed."""
LAST = "steps"
"""Where PostgreSQL keeps a step follows from its run, which must be there."""
NAMED = 5
"""Rows that are named of those that differ."""
SIZE = 16
_ROUND = 1 << (8 * SIZE)
_encode = msgspec.msgpack.Encoder().encode


def _packed(row: Row) -> bytes:
    try:
        return _encode(row)
    except UnicodeEncodeError:  # half of a pair of surrogates, which only some databases have room for
        return _encode([each.encode("utf-8", "surrogatepass") if isinstance(each, str) else each for each in row])


def _hash(row: Row) -> bytes:
    return blake2b(_packed(row), digest_size=SIZE).digest()


class _Unordered(Exception):
    """A database has rows in another order than we do: some texts stand in it for others."""


class Difference(Record, frozen=True):
    """In what a table of one tenant is not the same on both sides."""

    tenant: str
    table: str
    missing: int = 0
    """Rows that the copy does not have."""
    extra: int = 0
    """Rows that only the copy has."""
    changed: int = 0
    rows: tuple[str, ...] = ()
    """The keys of the first of them."""


class Copied(Record, frozen=True):
    """What a copy came to."""

    source: str
    to: str
    tenants: tuple[str, ...] = ()
    rows: int = 0
    """How many there are, on both sides."""
    put: int = 0
    removed: int = 0
    """Rows that were there of an earlier copy, and are no longer in the source, or not so."""
    digest: str = ""
    differences: tuple[Difference, ...] = ()


class Note(Record, frozen=True):
    """What a store says about the copy it is."""

    source: str
    tenant: str | None = None
    """Of the source, where not all of them were copied."""
    digest: str = ""
    """Digest of the complete copy. A different digest now means that the copy was written to since."""


class RowSum:
    """How many rows, and a digest of them that does not depend on their order."""

    def __init__(self) -> None:
        self.count = self.total = 0

    def add(self, row: Row) -> None:
        self.count += 1
        self.total = (self.total + int.from_bytes(_hash(row), "little")) % _ROUND

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowSum) and (self.count, self.total) == (other.count, other.total)

    __hash__ = None  # type: ignore[assignment]


class _Part(NamedTuple):
    """One table of one tenant, which may have another name in the copy."""

    table: Table
    tenant: str
    renamed: str


def opened(url: str, is_source: bool) -> Side:
    """The database of a store."""
    if is_postgres(url):
        require_psycopg()
        from mulligan.store.copy.postgres_endpoint import PostgresSide  # the extra

        return PostgresSide(url, is_source)
    from mulligan.store.copy.sqlite_endpoint import SqliteSide

    return SqliteSide(sqlite_path(url), is_source)


class Move:
    """One copy of a database into another: of all tenants, or of one of them, there perhaps by another name."""

    def __init__(
        self, source: Side, to: Side, tenant: str | None = None, renamed: str | None = None,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        self._source, self._to, self._only = source, to, tenant
        self._renamed = tenant if renamed is None else renamed
        self._progress = progress or (lambda done, of: None)
        self._done = self._all = self._put = self._removed = 0
        self._tables = self._shared()
        self._tenants = source.tenants() if tenant is None else [tenant]
        if tenant is not None and tenant not in source.tenants():
            known = ", ".join(filter(None, source.tenants())) or "none"
            raise StoreError(f"No tenant {tenant!r} in {source.where}. Tenants: {known}.")

    def _shared(self) -> list[Table]:
        """The tables, which both sides have: what one has alone would be lost, or be taken for a difference."""
        here, there = self._source.tables(), self._to.tables()
        if here != there:
            odd = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
            raise StoreError(
                f"{self._source.where} and {self._to.where} have different tables ({', '.join(odd)}). "
                "Migrate both: mulligan migrate"
            )
        # Numbers are of a whole store: those of one tenant may be others' in the copy, where only their order counts.
        tables = [table if self._only is None else table.unnumbered() for table in here.values()]
        return sorted(tables, key=lambda table: table.name == LAST)

    def copy(self) -> Copied:
        """Makes both sides equal, and says in what they are not if that fails."""
        self._check()
        self._shut()
        sums = {}
        self._count(self._parts(), twice=True)
        for part in self._parts():
            sums[part] = self._copy(part)
        for part in self._surplus():  # tenants that are gone from the source since an earlier copy
            self._clear(part)
        copied = self._compared(sums)
        if not copied.differences:
            self._note(copied.digest)
            if self._only is None:
                self._to.release()
        return copied

    def compare(self) -> Copied:
        """Only says in what the two sides differ."""
        self._count(self._parts(), twice=True)
        sums = {}
        for part in self._parts():
            sums[part] = found = RowSum()
            for row in self._wanted(part):
                found.add(row)
                self._tell()
        return self._compared(sums)

    # Whether there may be a copy

    def _check(self) -> None:
        """A copy makes the other side equal: it must not be one on which anybody else has written."""
        if self._source.is_shut():
            raise StoreError(
                f"{self._source.where} is an incomplete copy. Finish it first with the same mulligan copy command."
            )
        noted = self._to.note(self._renamed or "")
        note = decode(noted.encode(), Note) if noted is not None else None
        is_ours = note is not None and note.source == self._source.where and note.tenant == self._only
        if is_ours and note is not None and (not note.digest or note.digest == self._present()):
            return
        if is_ours:
            raise StoreError(
                f"{self._to.where} was changed after it was copied from {self._source.where}. Another copy would "
                "overwrite that. Copy to another store."
            )
        if note is not None and not note.digest:
            raise StoreError(
                f"{self._to.where} is an incomplete copy of {note.source}. Finish that copy, or choose another store."
            )
        if any(self._to.count(table, tenant) for table in self._tables for tenant in self._there()):
            whose = f" of the tenant {self._renamed!r}" if self._only is not None else ""
            raise StoreError(
                f"{self._to.where} already contains records{whose}, and a copy would replace them. Copy to an empty "
                "store, or add runs with mulligan export and mulligan import"
            )

    def _there(self) -> list[str]:
        """The tenants of the copy that are made equal."""
        return self._to.tenants() if self._only is None else [str(self._renamed)]

    def _present(self) -> str:
        """The digest of what the copy holds now."""
        sums = []
        for table in self._tables:
            for tenant in self._there():
                found = RowSum()
                for row in self._to.rows(table, tenant, ()):
                    found.add(row)
                sums.append((table.name, tenant, found))
        return _digest(sums)

    def _shut(self) -> None:
        self._note("")
        if self._only is None:
            self._to.shut()

    def _note(self, digest: str) -> None:
        note = Note(source=self._source.where, tenant=self._only, digest=digest)
        self._to.set_note(self._renamed or "", encode(note).decode())

    # What is copied

    def _parts(self) -> Iterator[_Part]:
        for table in self._tables:
            for tenant in self._tenants:
                yield _Part(table, tenant, tenant if self._only is None else str(self._renamed))

    def _surplus(self) -> Iterator[_Part]:
        for table in self._tables:
            for tenant in self._there():
                if self._only is None and tenant not in self._tenants:
                    yield _Part(table, tenant, tenant)

    def _count(self, parts: Iterator[_Part], twice: bool) -> None:
        """For the progress: each row is read here once, and once in the copy."""
        self._all = sum(self._source.count(part.table, part.tenant) for part in parts) * (2 if twice else 1)

    def _tell(self, rows: int = 1) -> None:
        before, self._done = self._done, self._done + rows
        if before // 1000 != self._done // 1000 or self._done == self._all:
            self._progress(min(self._done, self._all), self._all)

    def _wanted(self, part: _Part, order: Sequence[str] = ()) -> Iterator[Row]:
        """The rows of the source as they are to be in the copy."""
        rows = self._source.rows(part.table, part.tenant, order)
        if part.tenant == part.renamed:
            return rows
        place = part.table.columns.index("tenant")
        return ((*row[:place], part.renamed, *row[place + 1 :]) for row in rows)

    def _copy(self, part: _Part) -> RowSum:
        """Makes one part equal; the sum of what it is to be."""
        table, found = part.table, RowSum()

        def summed(rows: Iterator[Row]) -> Iterator[Row]:
            for row in rows:
                found.add(row)
                self._tell()
                yield row

        if not self._to.count(table, part.renamed):
            if self._only is not None and table.is_ordered:
                self._write(table, summed(self._wanted(part, (NUMBER,))))  # all or nothing, or the order would be lost
            else:
                rows = summed(self._wanted(part, table.key))
                while some := list(islice(rows, CHUNK)):
                    self._write(table, some)
            return found
        rows = summed(self._wanted(part, table.key))
        if not table.key:
            there, wanted = list(self._to.rows(table, part.renamed, ())), list(rows)
            if sorted(map(_packed, there)) != sorted(map(_packed, wanted)):
                self._write(table, wanted, there)
            return found
        try:
            self._merge(part, _differing(table, rows, self._to.rows(table, part.renamed, table.key)))
        except _Unordered:
            for _ in rows:  # all of it counts
                pass
            self._merge(part, self._looked_up(part))
        return found

    def _merge(self, part: _Part, differing: Iterator[tuple[Row | None, Row | None]]) -> None:
        chunks = _chunks(differing)
        if self._only is not None and part.table.is_ordered:
            self._append(part, list(chunks))
        else:
            for put, gone in chunks:
                self._write(part.table, put, gone)

    def _looked_up(self, part: _Part) -> Iterator[tuple[Row | None, Row | None]]:
        """What differs, found without any order: takes a key and a digest of each row of the copy into memory."""
        key_of = _keys(part.table)
        there = {key_of(row): _hash(row) for row in self._to.rows(part.table, part.renamed, ())}
        for row in self._wanted(part):
            other = there.pop(key_of(row), None)
            if other != _hash(row):
                yield row, None if other is None else key_of(row)
        for key in there:
            yield None, key

    def _append(self, part: _Part, chunks: list[tuple[list[Row], list[Row]]]) -> None:
        """What is new of a table in which the order of rows counts and their numbers are not those of the source."""
        key_of = _keys(part.table)
        new = {key_of(row) for rows, _ in chunks for row in rows}
        if gone := [key for _, keys in chunks for key in keys] or new:
            rows = (row for row in self._wanted(part, (NUMBER,)) if key_of(row) in new)
            self._write(part.table, rows, list(gone))

    def _clear(self, part: _Part) -> None:
        keys = _keys(part.table)
        rows = map(keys, self._to.rows(part.table, part.renamed, part.table.key))
        while some := list(islice(rows, CHUNK)):
            self._write(part.table, (), some)

    def _write(self, table: Table, rows: Any, gone: Sequence[Row] = ()) -> None:
        counted = 0

        def each() -> Iterator[Row]:
            nonlocal counted
            for row in rows:
                counted += 1
                yield row

        self._to.put(table, each(), gone)
        self._put += counted
        self._removed += len(gone)

    # Whether it is equal

    def _compared(self, sums: dict[_Part, RowSum]) -> Copied:
        differences, rows = [], 0
        for part in (*sums, *self._surplus()):
            wanted, there = sums.get(part, RowSum()), RowSum()
            for row in self._to.rows(part.table, part.renamed, ()):
                there.add(row)
                self._tell()
            rows += there.count
            if there != wanted:
                differences.append(self._difference(part))
        self._progress(self._all, self._all)
        digest = _digest([(part.table.name, part.renamed, found) for part, found in sums.items()])
        return Copied(
            source=self._source.where, to=self._to.where, tenants=tuple(self._tenants), rows=rows, put=self._put,
            removed=self._removed, digest=digest, differences=tuple(differences),
        )  # fmt: skip

    def _difference(self, part: _Part) -> Difference:
        """Which rows they are, found by going through both sides once more."""
        counts = {"missing": 0, "extra": 0, "changed": 0}
        named: list[str] = []
        for row, key in self._differing(part):
            how = "extra" if row is None else "missing" if key is None else "changed"
            counts[how] += 1
            if len(named) < NAMED:
                named.append(f"{how}: {_spoken(part.table, key or _keys(part.table)(row or ()))}")
        return Difference(tenant=part.renamed, table=part.table.name, rows=tuple(named), **counts)

    def _differing(self, part: _Part) -> Iterator[tuple[Row | None, Row | None]]:
        table = part.table
        if not table.key:
            wanted, there = self._wanted(part), self._to.rows(table, part.renamed, ())
            yield from _differing(table, iter(sorted(wanted, key=_packed)), iter(sorted(there, key=_packed)))
            return
        try:
            yield from list(
                _differing(table, self._wanted(part, table.key), self._to.rows(table, part.renamed, table.key))
            )
        except _Unordered:
            yield from self._looked_up(part)


def _digest(sums: Sequence[tuple[str, str, RowSum]]) -> str:
    """Of all of it, the same whatever tenants have nothing."""
    parts = sorted((name, tenant, found.count, found.total) for name, tenant, found in sums if found.count)
    return blake2b(repr(parts).encode(), digest_size=SIZE).hexdigest()


def _keys(table: Table) -> Callable[[Row], Row]:
    places = [table.columns.index(name) for name in table.key or table.columns]
    return lambda row: tuple([row[place] for place in places])


def _pairs(table: Table, rows: Iterator[Row], others: Iterator[Row]) -> Iterator[tuple[Row | None, Row | None]]:
    """Two sides that are in the order of their keys, row by row; None where one has no such row."""
    key_of: Callable[[Row], Any] = _keys(table) if table.key else _packed

    def keyed(side: Iterator[Row]) -> Iterator[tuple[Any, Row | None]]:
        before = None
        for row in side:
            key = key_of(row)
            if before is not None and key < before:
                raise _Unordered
            before = key
            yield key, row

    end: tuple[Any, Row | None] = (None, None)
    ours, theirs = keyed(rows), keyed(others)
    (key, row), (name, other) = next(ours, end), next(theirs, end)
    while row is not None or other is not None:
        if other is None or (row is not None and key < name):
            yield row, None
            key, row = next(ours, end)
        elif row is None or name < key:
            yield None, other
            name, other = next(theirs, end)
        else:
            yield row, other
            (key, row), (name, other) = next(ours, end), next(theirs, end)


def _differing(table: Table, rows: Iterator[Row], others: Iterator[Row]) -> Iterator[tuple[Row | None, Row | None]]:
    """What is to be put, and the key of what is to go, of each row that is not the same on both sides."""
    key_of = _keys(table)
    for row, other in _pairs(table, rows, others):
        if row != other:
            yield row, None if other is None else key_of(other)


def _chunks(found: Iterator[tuple[Row | None, Row | None]]) -> Iterator[tuple[list[Row], list[Row]]]:
    while some := list(islice(found, CHUNK)):
        yield [row for row, _ in some if row is not None], [key for _, key in some if key is not None]


def _spoken(table: Table, key: Row) -> str:
    """A row by its key, without the tenant; where it has none, by all of it."""
    named = zip(table.key or table.columns, key, strict=True)
    return ", ".join(f"{name} {value!r}"[:100] for name, value in named if name != "tenant")
