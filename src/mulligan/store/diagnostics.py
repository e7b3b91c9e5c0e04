"""Database diagnostics: engine version, schema version, table sizes and problems."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from mulligan.core.records import Record
from mulligan.store.sqlite import BUSY_MS, read_schema_version, translate_errors
from mulligan.store.tables import MIGRATIONS


class TableSize(Record, frozen=True):
    """Size of one table, including its indices."""

    name: str
    bytes: int
    rows: int | None = None
    """None if counting would take long. An estimate if the database only estimates."""


class Diagnostics(Record, frozen=True):
    engine: str
    """Name and version of the database."""
    schema: int
    newest: int
    bytes: int
    tables: tuple[TableSize, ...] = ()
    """Ordered by size, largest first."""
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    """Details specific to this engine, in display order."""
    problems: tuple[str, ...] = ()


def diagnose_sqlite(path: Path) -> Diagnostics:
    """Diagnose a SQLite store. Opens it read-only, so an older schema is not migrated."""
    with translate_errors(path), contextlib.closing(sqlite3.connect(path, timeout=BUSY_MS / 1000)) as connection:
        connection.execute("PRAGMA query_only=ON")
        schema = read_schema_version(connection, path)
        log = path.with_name(path.name + "-wal")
        page = _fetch_value(connection, "PRAGMA page_size")
        counts = connection.execute("SELECT tenant, count(*) FROM runs GROUP BY tenant ORDER BY tenant")
        facts = {
            "tenants": [{"name": tenant, "runs": count} for tenant, count in counts],
            "mode": _fetch_value(connection, "PRAGMA journal_mode"),
            "log_bytes": log.stat().st_size if log.exists() else 0,
            "free_bytes": _fetch_value(connection, "PRAGMA freelist_count") * page,
        }
        return Diagnostics(
            engine=f"SQLite {sqlite3.sqlite_version}",
            schema=schema,
            newest=len(MIGRATIONS),
            bytes=_fetch_value(connection, "PRAGMA page_count") * page,  # counts pages that are still in the WAL only
            tables=_measure_tables(connection),
            facts=facts,
            problems=find_pending_migration(schema),
        )


def find_pending_migration(schema: int) -> tuple[str, ...]:
    """Return the problem "schema is outdated" if a migration is pending."""
    if schema >= len(MIGRATIONS):
        return ()
    return (f"The store has schema {schema}; the latest is {len(MIGRATIONS)}. Migrate it: mulligan migrate",)


def _fetch_value(connection: sqlite3.Connection, sql: str) -> Any:
    return connection.execute(sql).fetchone()[0]


def _measure_tables(connection: sqlite3.Connection) -> tuple[TableSize, ...]:
    owners = dict(connection.execute("SELECT name, tbl_name FROM sqlite_schema WHERE type IN ('table', 'index')"))
    bytes_by_table: dict[str, int] = {}
    try:
        pages = connection.execute("SELECT name, pgsize FROM dbstat WHERE aggregate = TRUE").fetchall()
    except sqlite3.OperationalError:  # dbstat is a compile-time option of SQLite
        return ()
    for name, size in pages:
        owner = owners.get(name, name)
        bytes_by_table[owner] = bytes_by_table.get(owner, 0) + size
    bytes_by_table.pop("sqlite_schema", None)
    sizes = [
        TableSize(name, size, _fetch_value(connection, f"SELECT count(*) FROM {name}"))
        for name, size in bytes_by_table.items()
    ]
    return tuple(sorted(sizes, key=lambda table: (-table.bytes, table.name)))
