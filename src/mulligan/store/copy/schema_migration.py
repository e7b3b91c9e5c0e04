"""Migration of a store to the newest schema: the plan, and its execution."""

from __future__ import annotations

import contextlib
import sqlite3

from mulligan.core.failure import StoreError
from mulligan.core.records import Record
from mulligan.store import sqlite
from mulligan.store.base import Progress
from mulligan.store.tables import MIGRATIONS
from mulligan.store.urls import is_postgres, open_store, redact_password, require_psycopg, sqlite_path


class Plan(Record, frozen=True):
    """What a migration of one store would do."""

    where: str
    schema: int
    """The schema version of the store; 0 if it is empty or does not exist."""
    newest: int
    statements: int
    """Number of SQL statements that the migration executes."""

    @property
    def is_due(self) -> bool:
        return self.schema < self.newest


def plan(url: str) -> Plan:
    """Return the plan for a store and change nothing. Raise StoreError if it is newer than this version, or "
    "not ours."""
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
        return _plan(str(path), sqlite.read_schema_version(connection, path))


def _plan(where: str, version: int) -> Plan:
    return Plan(where=where, schema=version, newest=len(MIGRATIONS), statements=sum(map(len, MIGRATIONS[version:])))


def migrate(url: str, progress: Progress | None = None) -> Plan:
    """Migrate a store to the newest schema, or create it. Return the plan that was executed."""
    executed_plan = plan(url)
    open_store(url, progress=progress).close()
    after = plan(url)
    if after.is_due:
        raise StoreError(f"{after.where} still has schema {after.schema} instead of {after.newest}.")
    return executed_plan
