"""Database diagnostics: engine version, schema version, table sizes and problems."""

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
    """Size of one table, including its indices."""

    name: str
    bytes: int
    rows: int | None = None
    """None if counting would take long. An estimate if the database only estimates."""


class Checkup(Record, frozen=True):
    """Diagnostics of one database."""

    engine: str
    """Name and version of the database."""
    schema: int
    newest: int
    bytes: int
    tables: tuple[Size, ...] = ()
    """Ordered by size, largest first."""
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    """Details specific to this engine, in display order."""
    ills: tuple[str, ...] = ()


def of_sqlite(path: Path) -> Checkup:
    """Diagnose a SQLite store. Opens it read-only, so an older schema is not migrated."""
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
            bytes=_one(connection, "PRAGMA page_count") * page,  # counts pages that are still in the WAL only
            tables=_sizes(connection),
            facts=facts,
            ills=due(schema),
        )


def due(schema: int) -> tuple[str, ...]:
    """Return the problem "schema is outdated" if a migration is pending."""
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
    except sqlite3.OperationalError:  # dbstat is a compile-time option of SQLite
        return ()
    for name, size in pages:
        owner = owners.get(name, name)
        found[owner] = found.get(owner, 0) + size
    found.pop("sqlite_schema", None)
    sizes = [Size(name, size, _one(connection, f"SELECT count(*) FROM {name}")) for name, size in found.items()]
    return tuple(sorted(sizes, key=lambda each: (-each.bytes, each.name)))
