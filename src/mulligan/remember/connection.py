"""What is asked of a connection to a database, and how a row is put: the same words for SQLite and for PostgreSQL.

SQL here is what both understand: `?` for a value, `ON CONFLICT` where a row may be there, and text in the order of its
bytes. What only one of them can is in `sqlite.py` or `postgres.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from mulligan.remember.bodies import PlainRow


class Insert(msgspec.Struct, frozen=True):
    """A row into a table, and what becomes of it where there is one of its key."""

    table: str
    columns: tuple[str, ...]
    conflict: str

    @classmethod
    def of(cls, table: str, columns: str, conflict: str = "ON CONFLICT DO NOTHING") -> Insert:
        """Unless it is said what to do with it, a row that is there stays."""
        return cls(table, tuple(columns.split()), conflict)

    @property
    def one(self) -> str:
        return self.many(1)

    def many(self, count: int) -> str:
        """A statement for so many of them."""
        row = f"({', '.join('?' * len(self.columns))})"
        return f"INSERT INTO {self.table} ({', '.join(self.columns)}) VALUES {', '.join([row] * count)} {self.conflict}"

    @classmethod
    def instead(cls, table: str, keys: str, values: str) -> Insert:
        """In the place of the one of its key. Of rows that are put together, no two have the same key."""
        new = ", ".join(f"{name} = excluded.{name}" for name in values.split())
        conflict = f"ON CONFLICT ({', '.join(keys.split())}) DO UPDATE SET {new}"
        return cls.of(table, f"{keys} {values}", conflict)


def upsert(table: str, keys: str, values: str) -> str:
    """A row into a table, in the place of the one of its key."""
    return Insert.instead(table, keys, values).one


class Lookup(msgspec.Struct, frozen=True):
    """Rows of a table by their key, or by the beginning of it, with these columns; of one, or of many at once."""

    table: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    one: str

    @classmethod
    def of(cls, table: str, keys: str, columns: str) -> Lookup:
        """The name of a key with `>=` behind it stands for all from that value on."""
        names, wanted = tuple(keys.split()), tuple(columns.split())
        return cls(table, names, wanted, f"SELECT {', '.join(wanted)} FROM {table} WHERE {cls.where(names)}")

    @staticmethod
    def where(keys: tuple[str, ...], values: Sequence[str] | None = None) -> str:
        """That these keys have these values, or those that are given with the statement."""
        each = zip(keys, values or "?" * len(keys), strict=True)
        return " AND ".join(f"{key} {value}" if key.endswith(">=") else f"{key} = {value}" for key, value in each)


class Rows(Protocol):
    """What a statement answered."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """One conversation with a database, of one thread at a time."""

    def execute(self, sql: str, values: Sequence[Any] = ..., /) -> Rows: ...

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> object: ...

    def stream(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        """The rows of an answer of any length, a few at a time."""

    def put(self, insert: Insert, rows: Sequence[tuple[Any, ...]]) -> int:
        """Many rows at once; how many were not there yet."""

    def look_up(self, lookup: Lookup, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """The rows of many keys at once, each behind its key."""

    def put_plain(self, tenant: str, rows: Iterable[PlainRow]) -> int:
        """The same for calls that worked at once."""
