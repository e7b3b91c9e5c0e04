"""Copies of stores: every row of every table from one database to another, compared at the end.

Both stores have the same schema version, so equal rows give equal answers. Existing rows are compared and not written
again: a copy that was interrupted continues, and a repeated copy adds what is new.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import itertools
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mulligan.contract.store import Progress
from mulligan.core.failure import StoreError
from mulligan.core.records import Record, decode, encode
from mulligan.store.connection import Connection, Insert, Lookup
from mulligan.store.rows import read_meta, write_meta
from mulligan.store.sqlite import BUSY_MS, SqliteConnection, SqliteStore, translate_errors
from mulligan.store.tables import APPLICATION, HALF, MIGRATIONS, ORDERED

BATCH_ROWS = 2000
"""Rows that are read at a time and written in one transaction."""
DIGEST_BYTES = 16
ROW_NUMBER = "rowid"
"""The column that orders the rows of `tables.ORDERED` by arrival."""
NOTE_KEY = "copy"
"""Key of the `meta` row in which a store notes that it is a copy. The row itself is not copied."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Lone surrogates. The PostgreSQL store escapes them; SQLite cannot store them."""

Row = tuple[Any, ...]


class Table(NamedTuple):
    """A table with its columns: first the tenant, then the rest of the primary key, then all others."""

    name: str
    columns: tuple[str, ...]
    key_size: int
    """Number of key columns; 0 for a table without a key. Such a table is small and compared as a whole."""


@functools.cache
def load_tables() -> dict[str, Table]:
    """Return the tables of the current schema. `steps` comes last: PostgreSQL stores a step by the day of its run."""
    tables = {}
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for statement in itertools.chain(*MIGRATIONS):
            connection.execute(statement)
        for name in sorted(_read_table_names(connection), key=lambda name: (name == "steps", name)):
            columns = connection.execute("SELECT name, pk FROM pragma_table_info(?)", (name,)).fetchall()
            key = [column for position, column in sorted((pk, column) for column, pk in columns) if position]
            others = [column for column, position in columns if not position]
            tables[name] = Table(name, (*key, *others, *([ROW_NUMBER] if name in ORDERED else [])), len(key))
    return tables


def _read_table_names(connection: sqlite3.Connection) -> set[str]:
    rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, 7) <> 'sqlite_'")
    return {name for (name,) in rows}


# The two databases of a copy


class Endpoint(abc.ABC):
    """A database as source or destination of one copy, used by one thread. A source is read as of its opening."""

    where: str
    """The address for display, without password."""
    reader: Connection
    writer: Connection

    @abc.abstractmethod
    def table_names(self) -> set[str]:
        """Return the names of the tables in the database."""

    @abc.abstractmethod
    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Open the scope in which the reader can read rows."""

    @abc.abstractmethod
    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Open a write transaction."""

    @abc.abstractmethod
    def is_incomplete(self) -> bool:
        """Return whether the store is an incomplete copy."""

    @abc.abstractmethod
    def mark_incomplete(self) -> None:
        """Mark the store as an incomplete copy, which only another copy opens."""

    @abc.abstractmethod
    def mark_complete(self) -> None: ...

    @abc.abstractmethod
    def close(self) -> None: ...

    def prepare_steps(self) -> None:  # noqa: B027 - only a partitioned table needs it
        """Prepare for the steps of runs that were copied."""

    def read_value(self, sql: str, *values: Any) -> Any:
        with self.reading():
            row = self.reader.execute(sql, values).fetchone()
        return row[0] if row else None

    def tenants(self) -> list[str]:
        """Return the tenants that have rows; "" has those of the store as a whole."""
        tenants: set[str] = set()
        for name in load_tables():
            # One index lookup per tenant instead of one per row.
            tenant = self.read_value(f"SELECT min(tenant) FROM {name}")
            while tenant is not None:
                tenants.add(tenant)
                tenant = self.read_value(f"SELECT min(tenant) FROM {name} WHERE tenant > ?", tenant)
        return sorted(tenants)

    def count(self, table: Table, tenant: str) -> int:
        return int(self.read_value(f"SELECT count(*) FROM {table.name} WHERE {_where(table)}", tenant))

    def rows(self, table: Table, tenant: str) -> Iterator[Row]:
        """Yield the rows of a tenant, in the order of their arrival where that matters."""
        order = f" ORDER BY {ROW_NUMBER}" if table.name in ORDERED else ""
        with self.reading():
            sql = f"SELECT {', '.join(table.columns)} FROM {table.name} WHERE {_where(table)}{order}"
            yield from self.reader.stream(sql, (tenant,))

    def look_up(self, table: Table, keys: Sequence[Row]) -> dict[Row, Row]:
        key, others = table.columns[: table.key_size], table.columns[table.key_size :]
        lookup = Lookup.of(table.name, " ".join(key), " ".join(others or key[:1]))
        with self.reading():
            rows = [tuple(row[: len(table.columns)]) for row in self.reader.look_up(lookup, keys)]
        return {row[: table.key_size]: row for row in rows}

    def put(self, table: Table, rows: Sequence[Row]) -> int:
        """Insert rows in one transaction and skip existing keys. Return how many were new."""
        with self.transaction():
            return self.writer.put(Insert.of(table.name, " ".join(table.columns)), rows)

    def delete(self, table: Table, keys: Sequence[Row]) -> int:
        """Delete the rows with these keys or prefixes of a key, all of the same length. Return the number of keys."""
        with self.transaction():
            condition = " AND ".join(f"{name} = ?" for name in table.columns[: len(keys[0])])
            self.writer.executemany(f"DELETE FROM {table.name} WHERE {condition}", keys)
        return len(keys)


def _where(table: Table) -> str:
    return f"tenant = ? AND key <> '{NOTE_KEY}'" if table.name == "meta" else "tenant = ?"


class SqliteEndpoint(Endpoint):
    """One SQLite file. It is created, refused or migrated like every store, unless it is an incomplete copy."""

    reader: SqliteConnection
    writer: SqliteConnection

    def __init__(self, path: Path, is_source: bool) -> None:
        self.where = os.path.realpath(path)
        self._path = path
        if not _is_incomplete_file(path):
            SqliteStore(path).close()
        with translate_errors(path):
            self.reader, self.writer = (
                sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None, factory=SqliteConnection)
                for _ in range(2)
            )
            self.reader.execute("PRAGMA query_only=ON")
            if is_source:
                self.reader.execute("BEGIN")  # the snapshot begins with the first read
            if self.read_value("PRAGMA user_version") != len(MIGRATIONS):
                self.close()
                raise StoreError(
                    f"{path} is an incomplete copy by another mulligan version. Remove it and copy again: rm '{path}'"
                )

    def table_names(self) -> set[str]:
        return _read_table_names(self.reader)

    def reading(self) -> contextlib.AbstractContextManager[None]:
        return translate_errors(self._path)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            with translate_errors(self._path), self.writer.transaction():
                yield
        except UnicodeEncodeError as error:
            raise StoreError(f"SQLite cannot store the text {error.object[:40]!a}.") from None

    def look_up(self, table: Table, keys: Sequence[Row]) -> dict[Row, Row]:
        return super().look_up(table, [key for key in keys if not _SURROGATE.search("".join(map(str, key)))])

    def is_incomplete(self) -> bool:
        return bool(self.read_value("PRAGMA application_id") == HALF)

    def mark_incomplete(self) -> None:
        self.writer.execute(f"PRAGMA application_id={HALF}")

    def mark_complete(self) -> None:
        self.writer.execute(f"PRAGMA application_id={APPLICATION}")
        self.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self.reader.close()
        self.writer.close()


def _is_incomplete_file(path: Path) -> bool:
    if not path.is_file() or not os.access(path, os.R_OK):
        return False
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_MS / 1000)) as connection:
            return bool(connection.execute("PRAGMA application_id").fetchone()[0] == HALF)
    except sqlite3.Error:  # opening the store reports what is wrong
        return False


# The copy


def _pack_row(row: Row) -> bytes:
    try:
        return msgspec.msgpack.encode(row)
    except UnicodeEncodeError:
        values = (value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value for value in row)
        return msgspec.msgpack.encode(list(values))


class RowSum:
    """The number of rows and a digest of them that depends neither on their order nor on that of the columns."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.count = self.total = 0
        self._in_name_order = itemgetter(*sorted(range(len(columns)), key=columns.__getitem__))

    def add(self, rows: Iterable[Row]) -> None:
        for row in map(self._in_name_order, rows):
            self.count += 1
            self.total += int.from_bytes(blake2b(_pack_row(row), digest_size=DIGEST_BYTES).digest(), "little")
        self.total %= 1 << (8 * DIGEST_BYTES)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowSum) and (self.count, self.total) == (other.count, other.total)

    __hash__ = None  # type: ignore[assignment]


class Difference(Record, frozen=True, omit_defaults=False):
    """How the rows of a tenant in one table differ between the two stores."""

    tenant: str
    table: str
    missing: int = 0
    """Rows that the copy does not have."""
    extra: int = 0
    """Rows that only the copy has."""
    altered: int = msgspec.field(name="changed", default=0)
    rows: tuple[str, ...] = ()
    """Keys of the first of them."""


class CopyResult(Record, frozen=True, omit_defaults=False):
    source: str
    to: str
    tenants: tuple[str, ...] = ()
    rows: int = 0
    put: int = 0
    removed: int = 0
    """Rows of an earlier copy that the source no longer has in this form."""
    digest: str = ""
    differences: tuple[Difference, ...] = ()


class CopyNote(Record, frozen=True):
    """What a store notes about the copy that it is."""

    source: str
    tenant: str | None = None
    """The tenant of the source, if only one was copied."""
    digest: str = ""
    """Digest of the complete copy; empty until it is complete. A copy with another digest was written to since."""


class _TenantRows(NamedTuple):
    """The rows of one table that one tenant has in the source, and that the same or another has in the destination."""

    table: Table
    tenant: str
    renamed: str


_Sums = dict[_TenantRows, RowSum]


class StoreCopy:
    """One copy of a database to another: of all tenants, or of one, whose name may change."""

    def __init__(
        self, source: Endpoint, destination: Endpoint, tenant: str | None = None, renamed: str | None = None,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        self._source, self._destination, self._tenant = source, destination, tenant
        self._renamed = renamed if renamed is not None else tenant or ""
        self._progress = progress or (lambda completed, total: None)
        self._completed = self._total = 0
        tables = load_tables()
        if unknown := {name for endpoint in (source, destination) for name in endpoint.table_names() ^ tables.keys()}:
            raise StoreError(
                f"{source.where} and {destination.where} have different tables ({', '.join(sorted(unknown))}). "
                "Migrate both: mulligan migrate"
            )
        self._source_tenants = source.tenants()
        if tenant is None:
            tenants = sorted({*self._source_tenants, *destination.tenants()})
            self._parts = [_TenantRows(table, name, name) for table in tables.values() for name in tenants]
        elif tenant in self._source_tenants:
            # Row numbers count all tenants. For a single one, only the order of its rows is copied.
            self._parts = [
                _TenantRows(
                    table._replace(columns=tuple(column for column in table.columns if column != ROW_NUMBER)),
                    tenant,
                    self._renamed,
                )
                for table in tables.values()
            ]
        else:
            names = ", ".join(filter(None, self._source_tenants)) or "none"
            raise StoreError(f"No tenant {tenant!r} in {source.where}. Tenants: {names}.")

    def copy(self) -> CopyResult:
        """Make the destination equal to the source, and return the differences if that failed."""
        self._count_rows(source_reads=2)
        copied_sums = self._sum(self._parts, self._destination_rows)
        self._check_destination(copied_sums)
        self._write_note("")
        if self._tenant is None:
            self._destination.mark_incomplete()
        source_sums = self._sum((part for part in self._parts if copied_sums[part].count), self._source_rows)
        differing = [part for part in self._parts if source_sums.get(part) != copied_sums[part]]
        removed = sum(self._remove_differing(part) for part in reversed(differing) if copied_sums[part].count)
        put = 0
        for part in differing:
            if part.table.name == "steps":
                self._destination.prepare_steps()
            source_sums[part] = RowSum(part.table.columns)
            for batch in self._batches(self._source_rows(part)):
                source_sums[part].add(batch)
                put += self._destination.put(part.table, batch)
        result = self._compare(source_sums, copied_sums | self._sum(differing, self._destination_rows))
        if not result.differences:
            self._write_note(result.digest)
            if self._tenant is None:
                self._destination.mark_complete()
        return msgspec.structs.replace(result, put=put, removed=removed)

    def compare(self) -> CopyResult:
        """Compare the two stores and change nothing."""
        self._count_rows(source_reads=1)
        return self._compare(self._sum(self._parts, self._source_rows), self._sum(self._parts, self._destination_rows))

    def _count_rows(self, source_reads: int) -> None:
        """Set the total of the progress."""
        self._total = sum(
            self._destination.count(table, renamed) + source_reads * self._source.count(table, tenant)
            for table, tenant, renamed in self._parts
        )

    # Rows

    def _source_rows(self, part: _TenantRows) -> Iterator[Row]:
        """Yield the rows of the source as the copy will have them."""
        rows = self._source.rows(part.table, part.tenant)
        return rows if part.tenant == part.renamed else ((part.renamed, *row[1:]) for row in rows)

    def _destination_rows(self, part: _TenantRows) -> Iterator[Row]:
        return self._destination.rows(part.table, part.renamed)

    def _batches(self, rows: Iterator[Row]) -> Iterator[list[Row]]:
        """Yield rows in batches, and report the progress after each."""
        while batch := list(itertools.islice(rows, BATCH_ROWS)):
            yield batch
            self._completed += len(batch)
            self._progress(min(self._completed, self._total), self._total)

    def _sum(self, parts: Iterable[_TenantRows], read: Callable[[_TenantRows], Iterator[Row]]) -> _Sums:
        sums = {}
        for part in parts:
            sums[part] = RowSum(part.table.columns)
            for batch in self._batches(read(part)):
                sums[part].add(batch)
        return sums

    # Copy

    def _check_destination(self, copied_sums: _Sums) -> None:
        """Raise StoreError if a copy would replace records that someone else wrote."""
        source, destination = self._source.where, self._destination.where
        if self._source.is_incomplete():
            raise StoreError(f"{source} is an incomplete copy. Finish it first with the same mulligan copy command.")
        with self._destination.reading():
            stored_note = read_meta(self._destination.reader, self._renamed, NOTE_KEY)
        note = decode(stored_note.encode(), CopyNote) if stored_note else None
        if note is not None and (note.source, note.tenant) == (source, self._tenant):
            if note.digest and note.digest != _digest(copied_sums):
                raise StoreError(
                    f"{destination} was changed after it was copied from {source}. Another copy would "
                    "overwrite that. Copy to another store."
                )
        elif note is not None and not note.digest:
            raise StoreError(
                f"{destination} is an incomplete copy of {note.source}. Finish that copy, or choose another store."
            )
        elif any(row_sum.count for row_sum in copied_sums.values()):
            owner = f" of the tenant {self._renamed!r}" if self._tenant is not None else ""
            raise StoreError(
                f"{destination} already contains records{owner}, and a copy would replace them. Copy to an empty "
                "store, or add runs with mulligan export and mulligan import"
            )

    def _write_note(self, digest: str) -> None:
        note = CopyNote(source=self._source.where, tenant=self._tenant, digest=digest)
        with self._destination.transaction():
            write_meta(self._destination.writer, self._renamed, NOTE_KEY, encode(note).decode())

    def _remove_differing(self, part: _TenantRows) -> int:
        """Delete the rows of an earlier copy that the source does not have in this form. Return their number."""
        table = part.table
        if not table.key_size:
            removed = self._destination.count(table, part.renamed)
            self._destination.delete(table, [(part.renamed,)])
            return removed
        keys = (row[: table.key_size] for _, row in self._find_differing(part))
        removed = 0
        while batch := list(itertools.islice(keys, BATCH_ROWS)):
            removed += self._destination.delete(table, batch)
        return removed

    # Comparison

    def _find_differing(self, part: _TenantRows) -> Iterator[tuple[str, Row]]:
        """Yield the rows of the destination that are `extra` or `changed`."""
        for batch in self._batches(self._destination_rows(part)):
            keys = [(part.tenant, *row[1 : part.table.key_size]) for row in batch]
            source_rows = self._source.look_up(part.table, keys)
            for key, row in zip(keys, batch, strict=True):
                source_row = source_rows.get(key)
                if source_row is None or source_row[1:] != row[1:]:
                    yield "extra" if source_row is None else "changed", row

    def _find_changes(self, part: _TenantRows) -> Iterator[tuple[str, Row]]:
        """Yield every row that differs, with `missing`, `extra` or `changed`."""
        size = part.table.key_size
        if not size:
            source_rows, copied_rows = Counter(self._source_rows(part)), Counter(self._destination_rows(part))
            for change, rows in (("missing", source_rows - copied_rows), ("extra", copied_rows - source_rows)):
                yield from ((change, row) for row in rows.elements())
            return
        for batch in self._batches(self._source_rows(part)):
            existing = self._destination.look_up(part.table, [row[:size] for row in batch])
            yield from (("missing", row) for row in batch if row[:size] not in existing)
        yield from self._find_differing(part)

    def _compare(self, source_sums: _Sums, copied_sums: _Sums) -> CopyResult:
        differing = [part for part, copied_sum in copied_sums.items() if source_sums[part] != copied_sum]
        differences = tuple(map(self._describe_difference, differing))
        self._progress(self._total, self._total)
        return CopyResult(
            source=self._source.where,
            to=self._destination.where,
            tenants=tuple(self._source_tenants) if self._tenant is None else (self._tenant,),
            rows=sum(copied_sum.count for copied_sum in copied_sums.values()),
            digest=_digest(source_sums),
            differences=differences,
        )

    def _describe_difference(self, part: _TenantRows) -> Difference:
        """Read both stores once more to find the rows that differ."""
        table = part.table
        counts: Counter[str] = Counter()
        named_rows: list[str] = []
        for change, row in self._find_changes(part):
            counts[change] += 1
            if len(named_rows) < 5:  # rows that a difference names
                named_values = list(zip(table.columns, row, strict=True))[1 : table.key_size or None]
                fields = ", ".join(f"{name} {value!r}"[:100] for name, value in named_values)
                named_rows.append(f"{change}: {fields}")
        return Difference(
            part.renamed, table.name, counts["missing"], counts["extra"], counts["changed"], tuple(named_rows)
        )


def _digest(sums: _Sums) -> str:
    """Return the digest of all rows. It does not depend on tenants without rows."""
    entries = sorted(
        (part.table.name, part.renamed, row_sum.count, row_sum.total) for part, row_sum in sums.items() if row_sum.count
    )
    return blake2b(repr(entries).encode(), digest_size=DIGEST_BYTES).hexdigest()
