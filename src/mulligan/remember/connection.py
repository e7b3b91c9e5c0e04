"""What is asked of a connection to a database, and how a row is put: the same words for SQLite and for PostgreSQL.

SQL here is what both understand: `?` for a value, `ON CONFLICT` where a row may be there, and text in the order of its
bytes. What only one of them can is in `sqlite.py` or `postgres.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from mulligan.records import Step

TOGETHER = 50
"""Rows that are kept by one statement."""


class Insert(msgspec.Struct, frozen=True):
    """A row into a table, unless there is one of its key; and many of them in one statement."""

    table: str
    columns: tuple[str, ...]
    one: str
    many: str

    @classmethod
    def of(cls, table: str, columns: str) -> Insert:
        names = tuple(columns.split())
        start, row = f"INSERT INTO {table} ({', '.join(names)}) VALUES ", f"({', '.join('?' * len(names))})"
        end = " ON CONFLICT DO NOTHING"
        return cls(table, names, start + row + end, start + ", ".join([row] * TOGETHER) + end)


def upsert(table: str, keys: str, values: str) -> str:
    """A row into a table, in the place of the one of its key."""
    names = [*keys.split(), *values.split()]
    new = ", ".join(f"{name} = excluded.{name}" for name in values.split())
    return (
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "
        f"ON CONFLICT ({', '.join(keys.split())}) DO UPDATE SET {new}"
    )


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

    def put_plain(self, tenant: str, steps: Sequence[Step]) -> int:
        """The same for steps of calls that worked at once."""
