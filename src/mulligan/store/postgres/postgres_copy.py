"""PostgreSQL as source or destination of a copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg

from mulligan.contract.store import DAY
from mulligan.core.failure import StoreError
from mulligan.store.copy import ROW_NUMBER, Endpoint, load_tables
from mulligan.store.postgres import partitions
from mulligan.store.postgres.pool import is_own_session, parse_url, translate_errors
from mulligan.store.postgres.postgres_connection import PostgresConnection
from mulligan.store.postgres.postgres_store import PostgresStore
from mulligan.store.postgres.postgres_tables import POSTGRES_TABLES, set_all_tenants
from mulligan.store.tables import MIGRATIONS, ORDERED

OPTIONS = (
    "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0 -c lock_timeout=30s -c timezone=UTC "
    "-c citus.propagate_set_commands=local"
)
"""A copy has no time limit."""


class PostgresEndpoint(Endpoint):
    """One PostgreSQL database. It is created, refused or migrated like every store, unless it is an incomplete copy."""

    reader: PostgresConnection
    writer: PostgresConnection

    def __init__(self, url: str, is_source: bool) -> None:
        self._url = parse_url(url)
        self.where = self._url.where
        self._is_source = is_source
        self._open_connections: list[PostgresConnection] = []
        try:
            with translate_errors(self.where):
                self.reader, self.writer = self._connect(), self._connect()
                if self._read_setting("SELECT to_regclass('schema_version')") is None or not self.is_incomplete():
                    PostgresStore(url).close()
                if self._read_setting("SELECT version FROM schema_version") != len(MIGRATIONS):
                    raise StoreError(
                        f"{self.where} is an incomplete copy by another mulligan version. Empty it and copy again."
                    )
                if is_source:
                    raw = self.reader.raw_connection
                    raw.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                    raw.read_only = True
                    raw.autocommit = False
                    set_all_tenants(raw)
                    raw.execute("LOCK TABLE steps IN ACCESS SHARE MODE")  # no partition is dropped meanwhile
                    raw.execute("SELECT 1")  # begins the snapshot
        except BaseException:
            self.close()
            raise

    def _connect(self) -> PostgresConnection:
        raw_connection: psycopg.Connection[Any] = psycopg.connect(
            self._url.database_url, autocommit=True, client_encoding="UTF8", application_name="mulligan copy",
            options=OPTIONS,
        )  # fmt: skip
        connection = PostgresConnection(raw_connection)
        self._open_connections.append(connection)
        if self._url.pooler != "session" and not is_own_session(raw_connection):
            raise StoreError(
                f"{self.where} is behind a connection pooler, and a copy needs one session until it ends. "
                "Use the address of PostgreSQL, or a session pooler: ?pooler=session"
            )
        return connection

    def table_names(self) -> set[str]:
        rows = self.reader.execute(
            "SELECT relname::text FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition "
            "AND relnamespace = current_schema()::regnamespace"
        )
        return {name for (name,) in rows} - set(POSTGRES_TABLES)

    def _read_setting(self, sql: str) -> Any:
        """Read a value that is not of a tenant."""
        row = self.reader.raw_connection.execute(sql).fetchone()
        return row[0] if row else None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        transaction = contextlib.nullcontext() if self._is_source else self.reader.transaction_of_all()
        with translate_errors(self.where), transaction:
            yield

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with translate_errors(self.where), self.writer.transaction_of_all():
            yield

    def prepare_steps(self) -> None:
        """Create partitions for the days of all runs."""
        with self.transaction():
            rows = self.writer.execute(
                f"SELECT stored_at / {DAY} FROM runs UNION SELECT stored_at / {DAY} FROM orphaned_runs ORDER BY 1 DESC"
            ).fetchall()
        with translate_errors(self.where):
            # Days that get a partition of their own, the newest first. Older ones share the default partition.
            days = [day for (day,) in rows if day > 0][:400]
            partitions.create_partitions(self.writer.raw_connection, days, today=max(days, default=0))

    def is_incomplete(self) -> bool:
        return bool(self._read_setting("SELECT state FROM schema_version") != "whole")

    def mark_incomplete(self) -> None:
        self._set_state("copying")

    def mark_complete(self) -> None:
        with translate_errors(self.where):
            for name in ORDERED:  # the next row gets the next number
                last_number = self.read_value(f"SELECT max({ROW_NUMBER}) FROM {name}") or 0
                sequence = f"pg_get_serial_sequence('{name}', '{ROW_NUMBER}')"
                self.writer.execute(f"SELECT setval({sequence}, ?, false)", (last_number + 1,))
            for name in load_tables():
                self.writer.execute(f"ANALYZE {name}")
        self._set_state("whole")

    def _set_state(self, state: str) -> None:
        with translate_errors(self.where):
            self.writer.execute("UPDATE schema_version SET state = ?", (state,))

    def close(self) -> None:
        for connection in self._open_connections:
            connection.close()
