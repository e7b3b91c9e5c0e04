"""What a database says about itself: its version and schema, how large which table is, what is not as it should be."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from mulligan.records import Record
from mulligan.remember.sqlite import BUSY_MS, schema_of, told
from mulligan.remember.tables import MIGRATIONS


class Size(Record, frozen=True):
    """What a table takes, its indices included."""

    name: str
    bytes: int
    rows: int | None = None
    """Not known where counting would take long; roughly, where the database only guesses."""


class Checkup(Record, frozen=True):
    engine: str
    """The database and its version."""
    schema: int
    newest: int
    bytes: int
    tables: tuple[Size, ...] = ()
    """The largest first."""
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    """What only this sort of database has, in the order in which it is told."""
    ills: tuple[str, ...] = ()


def of_sqlite(path: Path) -> Checkup:
    """Opens nothing for writing, and changes nothing: a store of an earlier version stays one."""
    with told(path), contextlib.closing(sqlite3.connect(path, timeout=BUSY_MS / 1000)) as connection:
        connection.execute("PRAGMA query_only=ON")
        schema = schema_of(connection, path)
        log = path.with_name(path.name + "-wal")
        page = _one(connection, "PRAGMA page_size")
        facts = {
            "mode": _one(connection, "PRAGMA journal_mode"),
            "log_bytes": log.stat().st_size if log.exists() else 0,
            "free_bytes": _one(connection, "PRAGMA freelist_count") * page,
        }
        return Checkup(
            engine=f"SQLite {sqlite3.sqlite_version}",
            schema=schema,
            newest=len(MIGRATIONS),
            bytes=_one(connection, "PRAGMA page_count") * page,  # what is in the log only belongs to it too
            tables=_sizes(connection),
            facts=facts,
            ills=due(schema),
        )


def due(schema: int) -> tuple[str, ...]:
    if schema >= len(MIGRATIONS):
        return ()
    return (f"The store has schema {schema}, and {len(MIGRATIONS)} is the newest: mulligan migrate",)


def _one(connection: sqlite3.Connection, sql: str) -> Any:
    return connection.execute(sql).fetchone()[0]


def _sizes(connection: sqlite3.Connection) -> tuple[Size, ...]:
    owners = dict(connection.execute("SELECT name, tbl_name FROM sqlite_schema WHERE type IN ('table', 'index')"))
    found: dict[str, int] = {}
    try:
        pages = connection.execute("SELECT name, pgsize FROM dbstat WHERE aggregate = TRUE").fetchall()
    except sqlite3.OperationalError:  # not every SQLite was built to tell
        return ()
    for name, size in pages:
        owner = owners.get(name, name)
        found[owner] = found.get(owner, 0) + size
    found.pop("sqlite_schema", None)
    sizes = [Size(name, size, _one(connection, f"SELECT count(*) FROM {name}")) for name, size in found.items()]
    return tuple(sorted(sizes, key=lambda each: (-each.bytes, each.name)))
