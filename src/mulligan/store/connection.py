"""Database connection interface and statement builders, shared by SQLite and PostgreSQL.

SQL here uses the common subset: `?` placeholders, `ON CONFLICT` for existing rows, and text ordered by bytes.
Statements for one engine are in `sqlite.py` or `postgres/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec


class Insert(msgspec.Struct, frozen=True):
    """INSERT statement with a conflict clause for existing keys."""

    table: str
    columns: tuple[str, ...]
    conflict: str

    @classmethod
    def of(cls, table: str, columns: str, conflict: str = "ON CONFLICT DO NOTHING") -> Insert:
        """Build from space-separated column names. By default an existing row stays unchanged."""
        return cls(table, tuple(columns.split()), conflict)

    @property
    def single_row_sql(self) -> str:
        marks = ", ".join("?" * len(self.columns))
        return f"INSERT INTO {self.table} ({', '.join(self.columns)}) VALUES ({marks}) {self.conflict}"

    @classmethod
    def or_update(cls, table: str, keys: str, values: str) -> Insert:
        """Build an upsert. Rows passed to one statement must have distinct keys."""
        new = ", ".join(f"{name} = excluded.{name}" for name in values.split())
        conflict = f"ON CONFLICT ({', '.join(keys.split())}) DO UPDATE SET {new}"
        return cls.of(table, f"{keys} {values}", conflict)


def upsert(table: str, keys: str, values: str) -> str:
    """Return the SQL that inserts one row or updates the row with its key."""
    return Insert.or_update(table, keys, values).single_row_sql


class Lookup(msgspec.Struct, frozen=True):
    """SELECT of columns by a key or a key prefix, for one key or for many at once."""

    table: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    single_key_sql: str
    is_locking: bool
    """Whether the rows are locked against other writers, which only matters where writers are concurrent."""

    @classmethod
    def of(cls, table: str, keys: str, columns: str, is_locking: bool = False) -> Lookup:
        """Build from space-separated names. A key name followed by `>=` matches that value and all greater ones."""
        key_names, column_names = tuple(keys.split()), tuple(columns.split())
        return cls(
            table,
            key_names,
            column_names,
            f"SELECT {', '.join(column_names)} FROM {table} WHERE {cls.where(key_names)}",
            is_locking,
        )

    @staticmethod
    def where(keys: Sequence[str], values: Sequence[str] | None = None) -> str:
        """Return the condition that compares the keys with these SQL values, by default with placeholders."""
        pairs = zip(keys, values or "?" * len(keys), strict=True)
        return " AND ".join(f"{key} {value}" if key.endswith(">=") else f"{key} = {value}" for key, value in pairs)


class ConcurrentAppendError(Exception):
    """A batch that cannot be applied beside other writers of its tenant. Repeat it in an exclusive transaction."""


class Rows(Protocol):
    """Result of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """Database connection. One thread may use it at a time."""

    is_exclusive: bool
    """Whether no other process writes for the tenants of the current transaction."""

    def select_tenant(self, tenant: str) -> None:
        """Continue a transaction of several tenants with this one. It begins with the first by name."""

    def lock(self, tenant: str, subject: str) -> None:
        """Wait for other writers that have locked this subject of a tenant. The lock ends with the transaction."""

    def try_lock(self, tenant: str, subject: str) -> bool:
        """Lock a subject if no other writer has locked it. Return whether that succeeded."""

    def execute(self, sql: str, values: Sequence[Any] = ..., /) -> Rows: ...

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Execute a statement for each of the rows, of which there may be none."""

    def stream(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        """Yield result rows without loading all of them into memory."""

    def put(self, insert: Insert, rows: Iterable[tuple[Any, ...]]) -> int:
        """Insert many rows. Return how many were new."""

    def queue(self, insert: Insert, rows: Sequence[tuple[Any, ...]], must_be_new: bool = False) -> None:
        """Insert many rows, without waiting for the result where that saves a round trip.

        With `must_be_new`, an existing row raises `ConcurrentAppendError`, at the latest at the commit.
        """

    def look_up(self, lookup: Lookup, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the rows for many keys. Each row starts with its key values."""

    def execute_by_key(
        self, sql: str, keys: Sequence[str], values: Sequence[Any], max_rows: int | None = None
    ) -> Iterable[tuple[Any, ...]]:
        """Execute a query for each key, which is its parameter ?1. Each row starts with its key.

        With `max_rows`, return only so many rows, those of the first keys.
        """

    def unindex_runs(self, tenant: str, runs: Sequence[str]) -> None:
        """Note that runs changed after they may have been indexed for searches: they are indexed again."""

    def remember_runs(self, tenant: str, stored_at: Mapping[str, int]) -> None:
        """Remember when these runs were stored until the transaction ends. This may save statements about steps."""


class RowReader:
    """Reads rows through a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __call__(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        return self._connection.execute(sql, tuple(values)).fetchall()

    def by_key(
        self, sql: str, keys: Sequence[str], values: Sequence[Any], max_rows: int | None = None
    ) -> Iterable[Any]:
        return self._connection.execute_by_key(sql, keys, values, max_rows) if keys else ()

    def remember_runs(self, tenant: str, stored_at: Mapping[str, int]) -> None:
        self._connection.remember_runs(tenant, stored_at)
