"""Databases as source or destination of a copy: tables of rows, whatever they contain."""

from __future__ import annotations

import abc
import contextlib
import functools
import itertools
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mulligan.core.failure import StoreError
from mulligan.store.connection import Connection, Insert, Lookup
from mulligan.store.sqlite import BUSY_MS, SqliteConnection, SqliteStore, translate_errors
from mulligan.store.tables import APPLICATION, HALF, MIGRATIONS, ORDERED

ROW_NUMBER = "rowid"
"""The column that orders the rows of `tables.ORDERED` by arrival."""
NOTE_KEY = "copy"
"""Key of the `meta` row in which a store notes that it is a copy. The row itself is not copied."""

Row = tuple[Any, ...]
encode_row = msgspec.msgpack.Encoder().encode


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
        """Open the scope in which the reader can stream rows."""

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
        """Return the rows with these keys, by key."""
        key, others = table.columns[: table.key_size], table.columns[table.key_size :]
        lookup = Lookup.of(table.name, " ".join(key), " ".join(others or key[:1]))
        rows = (tuple(row[: len(table.columns)]) for row in self.reader.look_up(lookup, keys))
        return {row[: table.key_size]: row for row in rows}

    def put(self, table: Table, rows: Sequence[Row]) -> int:
        """Insert rows in one transaction and skip existing keys. Return how many were new."""
        with self.transaction():
            return self.writer.put(Insert.of(table.name, " ".join(table.columns)), rows)

    def delete(self, table: Table, keys: Sequence[Row]) -> None:
        with self.transaction():
            condition = " AND ".join(f"{name} = ?" for name in table.columns[: table.key_size])
            self.writer.executemany(f"DELETE FROM {table.name} WHERE {condition}", keys)

    def delete_all(self, table: Table, tenant: str) -> int:
        with self.transaction():
            return self.writer.execute(f"DELETE FROM {table.name} WHERE tenant = ?", (tenant,)).rowcount


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
        with translate_errors(self._path):
            self.writer.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.writer.execute("COMMIT")
            except BaseException as error:
                if self.writer.in_transaction:  # a full disk may have ended it
                    self.writer.execute("ROLLBACK")
                if isinstance(error, UnicodeEncodeError):
                    raise StoreError(f"SQLite cannot store the text {error.object[:40]!a}.") from None
                raise

    def look_up(self, table: Table, keys: Sequence[Row]) -> dict[Row, Row]:
        return super().look_up(table, [key for key in keys if _is_storable(key)])

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


def _is_storable(key: Row) -> bool:
    """Return whether SQLite can store these texts: PostgreSQL, as we use it, also stores lone surrogates."""
    try:
        encode_row(key)
    except UnicodeEncodeError:
        return False
    return True


def _is_incomplete_file(path: Path) -> bool:
    if not path.is_file() or not os.access(path, os.R_OK):
        return False
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_MS / 1000)) as connection:
            return bool(connection.execute("PRAGMA application_id").fetchone()[0] == HALF)
    except sqlite3.Error:  # opening the store reports what is wrong
        return False
