"""Database connection interface and statement builders, shared by SQLite and PostgreSQL.

SQL here uses the common subset: `?` placeholders, `ON CONFLICT` for existing rows, and text ordered by bytes.
Statements for one engine are in `sqlite.py` or `postgres/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from mulligan.remember.bodies import PlainRow


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
    def one(self) -> str:
        """SQL that inserts one row."""
        return self.many(1)

    def many(self, count: int) -> str:
        """Return the SQL that inserts this many rows."""
        row = f"({', '.join('?' * len(self.columns))})"
        return f"INSERT INTO {self.table} ({', '.join(self.columns)}) VALUES {', '.join([row] * count)} {self.conflict}"

    @classmethod
    def instead(cls, table: str, keys: str, values: str) -> Insert:
        """Build an upsert. Rows passed to one statement must have distinct keys."""
        new = ", ".join(f"{name} = excluded.{name}" for name in values.split())
        conflict = f"ON CONFLICT ({', '.join(keys.split())}) DO UPDATE SET {new}"
        return cls.of(table, f"{keys} {values}", conflict)


def upsert(table: str, keys: str, values: str) -> str:
    """Return the SQL that inserts one row or updates the row with its key."""
    return Insert.instead(table, keys, values).one


class Lookup(msgspec.Struct, frozen=True):
    """SELECT of columns by a key or a key prefix, for one key or for many at once."""

    table: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    one: str

    @classmethod
    def of(cls, table: str, keys: str, columns: str) -> Lookup:
        """Build from space-separated names. A key name followed by `>=` matches that value and all greater ones."""
        names, wanted = tuple(keys.split()), tuple(columns.split())
        return cls(table, names, wanted, f"SELECT {', '.join(wanted)} FROM {table} WHERE {cls.where(names)}")

    @staticmethod
    def where(keys: tuple[str, ...], values: Sequence[str] | None = None) -> str:
        """Return the condition that compares the keys with these SQL values, by default with placeholders."""
        each = zip(keys, values or "?" * len(keys), strict=True)
        return " AND ".join(f"{key} {value}" if key.endswith(">=") else f"{key} = {value}" for key, value in each)


class Rows(Protocol):
    """Result of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """Database connection. One thread may use it at a time."""

    def execute(self, sql: str, values: Sequence[Any] = ..., /) -> Rows: ...

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> object: ...

    def stream(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        """Yield result rows without loading all of them into memory."""

    def put(self, insert: Insert, rows: Sequence[tuple[Any, ...]]) -> int:
        """Insert many rows. Return how many were new."""

    def look_up(self, lookup: Lookup, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the rows for many keys. Each row starts with its key values."""

    def put_plain(self, tenant: str, rows: Iterable[PlainRow]) -> int:
        """Insert calls that succeeded at their first attempt. Return how many were new."""
