"""A store of an earlier version is brought up to date: what that takes, and how far it is."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable

from mulligan.core.failure import StoreError
from mulligan.core.records import Record
from mulligan.store import sqlite
from mulligan.store.base import Progress
from mulligan.store.tables import MIGRATIONS, RECOUNTED_AT, REPACKED_AT
from mulligan.store.urls import is_postgres, open_store, redact_password, require_psycopg, sqlite_path


class Plan(Record, frozen=True):
    """What there is to do to a store."""

    where: str
    schema: int
    """How many migrations it has had; 0 of one that is not there yet, or empty."""
    newest: int = len(MIGRATIONS)
    statements: int = 0
    """That change its tables."""
    sums: int = 0
    """Sums that are packed in another way."""
    runs: int = 0
    """Runs that are counted anew."""

    @property
    def is_due(self) -> bool:
        return self.schema < self.newest


def plan(url: str) -> Plan:
    """What would be done, with nothing changed; refuses what is newer than this version, or not ours."""
    if is_postgres(url):
        require_psycopg()
        from mulligan.store.postgres.postgres_diagnostics import read_schema_version_at  # the extra

        return _plan(redact_password(url), read_schema_version_at(url))
    path = sqlite_path(url)
    if not path.exists():
        return _plan(str(path), 0)
    with (
        sqlite.translate_errors(path),
        contextlib.closing(sqlite3.connect(path, timeout=sqlite.BUSY_MS / 1000)) as connection,
    ):
        connection.execute("PRAGMA query_only=ON")
        version = sqlite.read_schema_version(connection, path)
        return _plan(str(path), version, lambda table: _count(connection, table))


def _plan(where: str, version: int, count: Callable[[str], int] = lambda table: 0) -> Plan:
    return Plan(
        where=where,
        schema=version,
        statements=sum(len(statements) for statements in MIGRATIONS[version:]),
        sums=count("rollups") if 1 < version < REPACKED_AT else 0,
        runs=count("runs") if 0 < version < RECOUNTED_AT else 0,
    )


def _count(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def migrate(url: str, progress: Progress | None = None) -> Plan:
    """Brings a store up to date, or makes it; what it was before."""
    before = plan(url)
    open_store(url, progress=progress).close()
    after = plan(url)
    if after.is_due:
        raise StoreError(f"{after.where} has still schema {after.schema}, and not {after.newest}.")
    return before
