"""Copies of stores: every row of every table from one database to another, compared at the end.

Both stores have the same schema version, so equal rows give equal answers. Existing rows are compared and not written
again: a copy that was interrupted continues, and a repeated copy adds what is new.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import NamedTuple

import msgspec

from mulligan.core.failure import StoreError
from mulligan.core.records import Record, decode, encode
from mulligan.store.base import Progress
from mulligan.store.copy_endpoints import NOTE_KEY, Endpoint, Row, SqliteEndpoint, Table, encode_row, load_tables
from mulligan.store.rows import read_meta, write_meta
from mulligan.store.tables import ORDERED
from mulligan.store.urls import is_postgres, require_psycopg, sqlite_path

BATCH_ROWS = 2000
"""Rows that are read at a time and written in one transaction."""
MAX_NAMED_ROWS = 5
"""Rows that a difference names."""
DIGEST_BYTES = 16


def open_endpoint(url: str, is_source: bool) -> Endpoint:
    """Open the database of a store for a copy."""
    if is_postgres(url):
        require_psycopg()
        from mulligan.store.postgres.postgres_copy import PostgresEndpoint  # the extra

        return PostgresEndpoint(url, is_source)
    return SqliteEndpoint(sqlite_path(url), is_source)


def _pack_row(row: Row) -> bytes:
    try:
        return encode_row(row)
    except UnicodeEncodeError:  # a lone surrogate, which PostgreSQL can store
        return encode_row(
            [value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value for value in row]
        )


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
    """The result of a copy or a comparison."""

    source: str
    to: str
    tenants: tuple[str, ...] = ()
    rows: int = 0
    """Rows in the destination."""
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
        if tenant is not None and tenant not in self._source_tenants:
            names = ", ".join(filter(None, self._source_tenants)) or "none"
            raise StoreError(f"No tenant {tenant!r} in {source.where}. Tenants: {names}.")
        # Row numbers count all tenants. For a single one, only the order of its rows is copied.
        self._tables = [
            table if tenant is None or table.name not in ORDERED else table._replace(columns=table.columns[:-1])
            for table in tables.values()
        ]

    def copy(self) -> CopyResult:
        """Make the destination equal to the source, and return the differences if that failed."""
        parts = self._start(source_reads=2)
        copied_sums = self._sum_destination(parts)
        self._check_destination(copied_sums)
        self._write_note("")
        if self._tenant is None:
            self._destination.mark_incomplete()
        source_sums = self._sum_source(part for part in parts if copied_sums[part].count)
        differing = [part for part in parts if source_sums.get(part) != copied_sums[part]]
        removed = sum(self._remove_differing(part) for part in reversed(differing) if copied_sums[part].count)
        put = 0
        for part in differing:
            source_sums[part], put_count = self._add_missing(part)
            put += put_count
        result = self._compare(source_sums, copied_sums | self._sum_destination(differing))
        if not result.differences:
            self._write_note(result.digest)
            if self._tenant is None:
                self._destination.mark_complete()
        return msgspec.structs.replace(result, put=put, removed=removed)

    def compare(self) -> CopyResult:
        """Compare the two stores and change nothing."""
        parts = self._start(source_reads=1)
        return self._compare(self._sum_source(parts), self._sum_destination(parts))

    def _start(self, source_reads: int) -> list[_TenantRows]:
        """Return the rows to compare, by table and tenant, and set the total of the progress."""
        if self._tenant is not None:
            parts = [_TenantRows(table, self._tenant, self._renamed) for table in self._tables]
        else:
            tenants = sorted({*self._source_tenants, *self._destination.tenants()})
            parts = [_TenantRows(table, tenant, tenant) for table in self._tables for tenant in tenants]
        self._total = sum(
            self._destination.count(table, renamed) + source_reads * self._source.count(table, tenant)
            for table, tenant, renamed in parts
        )
        return parts

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

    def _sum_source(self, parts: Iterable[_TenantRows]) -> _Sums:
        return {part: self._sum(part.table, self._source_rows(part)) for part in parts}

    def _sum_destination(self, parts: Iterable[_TenantRows]) -> _Sums:
        return {part: self._sum(part.table, self._destination_rows(part)) for part in parts}

    def _sum(self, table: Table, rows: Iterator[Row]) -> RowSum:
        row_sum = RowSum(table.columns)
        for batch in self._batches(rows):
            row_sum.add(batch)
        return row_sum

    # Copy

    def _check_destination(self, copied_sums: _Sums) -> None:
        """Raise StoreError if a copy would replace records that someone else wrote."""
        source, destination = self._source.where, self._destination.where
        if self._source.is_incomplete():
            raise StoreError(f"{source} is an incomplete copy. Finish it first with the same mulligan copy command.")
        stored_note = read_meta(self._destination.reader, self._renamed, NOTE_KEY)
        note = decode(stored_note.encode(), CopyNote) if stored_note else None
        if note is not None and (note.source, note.tenant) == (source, self._tenant):
            if note.digest and note.digest != _digest(copied_sums):
                raise StoreError(
                    f"{destination} was changed after it was copied from {source}. Another copy would "
                    "overwrite that. Copy to another store."
                )
            return
        if note is not None and not note.digest:
            raise StoreError(
                f"{destination} is an incomplete copy of {note.source}. Finish that copy, or choose another store."
            )
        if any(row_sum.count for row_sum in copied_sums.values()):
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
            return self._destination.delete_all(table, part.renamed)
        removed = 0
        for rows in self._find_differing(part):
            self._destination.delete(table, [row[: table.key_size] for _, row in rows])
            removed += len(rows)
        return removed

    def _add_missing(self, part: _TenantRows) -> tuple[RowSum, int]:
        """Insert the rows that the destination lacks. Return the sum of all source rows, and how many were new."""
        if part.table.name == "steps":
            self._destination.prepare_steps()
        row_sum, put_count = RowSum(part.table.columns), 0
        for batch in self._batches(self._source_rows(part)):
            row_sum.add(batch)
            put_count += self._destination.put(part.table, batch)
        return row_sum, put_count

    # Comparison

    def _find_differing(self, part: _TenantRows) -> Iterator[list[tuple[str, Row]]]:
        """Yield, in batches, the rows of the destination that are extra or changed."""
        size = part.table.key_size
        for batch in self._batches(self._destination_rows(part)):
            keys = [(part.tenant, *row[1:size]) for row in batch]
            source_rows = self._source.look_up(part.table, keys)
            differing = []
            for key, row in zip(keys, batch, strict=True):
                source_row = source_rows.get(key)
                if source_row is None or source_row[1:] != row[1:]:
                    differing.append(("extra" if source_row is None else "changed", row))
            yield differing

    def _find_missing(self, part: _TenantRows) -> Iterator[list[tuple[str, Row]]]:
        size = part.table.key_size
        for batch in self._batches(self._source_rows(part)):
            existing = self._destination.look_up(part.table, [row[:size] for row in batch])
            yield [("missing", row) for row in batch if row[:size] not in existing]

    def _find_changes(self, part: _TenantRows) -> Iterator[tuple[str, Row]]:
        """Yield every row that differs, with `missing`, `extra` or `changed`."""
        if part.table.key_size:
            yield from itertools.chain.from_iterable(self._find_missing(part))
            yield from itertools.chain.from_iterable(self._find_differing(part))
            return
        source_rows, copied_rows = Counter(self._source_rows(part)), Counter(self._destination_rows(part))
        for change, rows in (("missing", source_rows - copied_rows), ("extra", copied_rows - source_rows)):
            yield from ((change, row) for row in rows.elements())

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
            if len(named_rows) < MAX_NAMED_ROWS:
                end = table.key_size or len(row)
                fields = (
                    f"{name} {value!r}"[:100] for name, value in zip(table.columns[1:end], row[1:end], strict=True)
                )
                named_rows.append(f"{change}: {', '.join(fields)}")
        return Difference(
            tenant=part.renamed,
            table=table.name,
            missing=counts["missing"],
            extra=counts["extra"],
            altered=counts["changed"],
            rows=tuple(named_rows),
        )


def _digest(sums: _Sums) -> str:
    """Return the digest of all rows. It does not depend on tenants without rows."""
    entries = sorted(
        (part.table.name, part.renamed, row_sum.count, row_sum.total) for part, row_sum in sums.items() if row_sum.count
    )
    return blake2b(repr(entries).encode(), digest_size=DIGEST_BYTES).hexdigest()
