"""PostgreSQL as either side of a copy. Rows come in by COPY, steps into the part of their day."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import psycopg

from mulligan.core.failure import StoreError
from mulligan.store.base import DAY
from mulligan.store.copy.endpoints import NUMBER, OWN, Row, Table, tenants_of, where_of
from mulligan.store.postgres import row_security
from mulligan.store.postgres.partitions import partition_name
from mulligan.store.postgres.pool import (
    is_own_session,
    parse_url,
    redact_password,
    split_pooler_type,
    translate_errors,
)
from mulligan.store.postgres.postgres_connection import PostgresConnection
from mulligan.store.postgres.postgres_store import PostgresStore
from mulligan.store.postgres.postgres_tables import POSTGRES_COLUMNS, POSTGRES_TABLES
from mulligan.store.tables import MIGRATIONS, ORDERED

FETCHED = 5000
"""Rows that are read at a time, and steps whose days are asked for together."""
PARTS = 400
"""Days that get a part of their own; what is older shares one."""
OPTIONS = (
    "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0 -c lock_timeout=30s -c timezone=UTC "
    "-c mulligan.tenants=*"
)
"""A copy may take as long as it takes, and means everybody."""


class PostgresSide:
    """One database. As a source it is read as it is at one moment, while others write."""

    def __init__(self, url: str, is_source: bool) -> None:
        plain, _, _ = parse_url(url)
        self.where = redact_password(plain)
        self._cursors = 0
        self._known_types: dict[tuple[str, int], list[int]] = {}
        self._open: list[psycopg.Connection[Any]] = []
        try:
            with translate_errors(self.where):
                reader, self._writer = self._connect(plain), self._connect(plain)
                self._reader = reader
                if not self._is_half():  # made, refused or brought up to date as for everybody
                    PostgresStore(url).close()
                if self._one("SELECT version FROM schema_version") != len(MIGRATIONS):
                    raise StoreError(
                        f"{self.where} is an incomplete copy by another mulligan version. Empty it and copy again."
                    )
                self._is_source = is_source
                if is_source:
                    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                    reader.read_only = True
                    reader.autocommit = False
                    reader.execute("LOCK TABLE steps IN ACCESS SHARE MODE")  # no day is dropped meanwhile
                    self._one("SELECT 1")  # the moment is now
        except BaseException:
            self.close()
            raise

    def _connect(self, url: str) -> psycopg.Connection[Any]:
        plain, sort = split_pooler_type(url)
        made = psycopg.connect(
            plain, autocommit=True, client_encoding="UTF8", application_name="mulligan copy", options=OPTIONS
        )
        self._open.append(made)
        if sort != "session" and not is_own_session(made):
            raise StoreError(
                f"{self.where} is behind a connection pooler, and a copy needs one session until it ends. "
                "Use the address of PostgreSQL, or a session pooler: ?pooler=session"
            )
        return PostgresConnection(
            made
        ).raw_connection  # texts that PostgreSQL has no room for are read and kept as everywhere

    def _is_half(self) -> bool:
        return self._one("SELECT to_regclass('schema_version')") is not None and self.is_shut()

    def _one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        row = self._reader.execute(sql, values).fetchone()
        return row[0] if row else None

    def tables(self) -> dict[str, Table]:
        rows = self._reader.execute(
            "SELECT c.relname, a.attname, coalesce(array_position(i.indkey::int2[], a.attnum), -1) "
            "FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            "LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary "
            "WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = current_schema()::regnamespace"
        ).fetchall()
        found: dict[str, list[tuple[str, int]]] = {}
        for table, column, place in rows:
            if table not in POSTGRES_TABLES and column not in POSTGRES_COLUMNS.get(table, ()):
                found.setdefault(table, []).append((column, place))
        return {name: _table(name, columns) for name, columns in sorted(found.items())}

    def tenants(self) -> list[str]:
        return tenants_of(self.tables(), self._one, "%s")

    def count(self, table: Table, tenant: str) -> int:
        return int(self._one(f"SELECT count(*) FROM {table.name} WHERE {_where(table)}", (tenant,)))

    def rows(self, table: Table, tenant: str, order: Sequence[str]) -> Iterator[Row]:
        by = f" ORDER BY {', '.join(order)}" if order else ""
        columns = ", ".join(table.columns)
        self._cursors += 1
        with translate_errors(self.where), contextlib.ExitStack() as closed:
            if not self._is_source:
                closed.enter_context(self._reader.transaction())
            cursor = closed.enter_context(self._reader.cursor(name=f"copy_{self._cursors}", binary=True))
            cursor.itersize = FETCHED
            cursor.execute(f"SELECT {columns} FROM {table.name} WHERE {_where(table)}{by}", (tenant,))
            yield from cursor

    def put(self, table: Table, rows: Iterable[Row], gone: Sequence[Row] = ()) -> None:
        known = " AND ".join(f"{name} IS NOT DISTINCT FROM %s" if not table.key else f"{name} = %s"
                             for name in table.key or table.columns)  # fmt: skip
        with translate_errors(self.where), self._writer.transaction(), self._writer.cursor() as cursor:
            if gone:
                cursor.executemany(f"DELETE FROM {table.name} WHERE {known}", gone)
            if table.name == "steps":
                self._put_steps(cursor, table, iter(rows))
            else:
                self._copy(cursor, table.name, table.columns, rows)

    def _copy(self, cursor: Any, name: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Where rows are guarded by their tenant, PostgreSQL takes none by COPY: they go by way of a table of ours."""
        named, into, types = ", ".join(columns), name, self._types(cursor, name, columns)
        if cursor.execute("SELECT row_security_active(%s)", (name,)).fetchone()[0]:
            into = f"copied_{name}"
            cursor.execute(f"CREATE TEMP TABLE IF NOT EXISTS {into} AS SELECT {named} FROM {name} WITH NO DATA")
        with cursor.copy(f"COPY {into} ({named}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)
        if into != name:
            cursor.execute(f"INSERT INTO {name} ({named}) SELECT {named} FROM {into}")
            cursor.execute(f"TRUNCATE {into}")

    def _types(self, cursor: Any, name: str, columns: Sequence[str]) -> list[int]:
        if (name, len(columns)) not in self._known_types:
            described = cursor.execute(f"SELECT {', '.join(columns)} FROM {name} LIMIT 0").description
            self._known_types[name, len(columns)] = [column.type_code for column in described or ()]
        return self._known_types[name, len(columns)]

    def _put_steps(self, cursor: Any, table: Table, rows: Iterator[Row]) -> None:
        """A step is in the part of the day of its run, which is there before it."""
        tenant, run = (table.columns.index(name) for name in ("tenant", "run"))
        while some := list(islice(rows, FETCHED)):
            days = self._days(cursor, some[0][tenant], list({row[run] for row in some}))
            for day in set(days.values()):
                self._make_part(cursor, day)
            self._copy(cursor, "steps", (*table.columns, "day"), ((*row, days.get(row[run], 0)) for row in some))

    def _days(self, cursor: Any, tenant: str, runs: list[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for asked in ("SELECT run, stored_at FROM orphaned_runs WHERE tenant = %s AND run = ANY(%s)",
                      "SELECT id, stored_at FROM runs WHERE tenant = %s AND id = ANY(%s)"):  # fmt: skip
            found |= {run: kept // DAY for run, kept in cursor.execute(asked, (tenant, runs)).fetchall()}
        return found

    def _make_part(self, cursor: Any, day: int) -> None:
        """Where there is room for one, and no step of that day is with the rest already."""
        if cursor.execute("SELECT to_regclass(%s)", (partition_name(day),)).fetchone() != (None,):
            return
        counted = cursor.execute("SELECT count(*) FROM pg_inherits WHERE inhparent = 'steps'::regclass").fetchone()[0]
        taken = cursor.execute("SELECT 1 FROM steps_default WHERE day = %s LIMIT 1", (day,)).fetchone()
        if counted < PARTS and taken is None and day > 0:
            cursor.execute(
                f"CREATE TABLE {partition_name(day)} PARTITION OF steps FOR VALUES FROM ({day}) TO ({day + 1})"
            )
            row_security.enable_row_security(cursor.connection, partition_name(day))

    def note(self, tenant: str) -> str | None:
        found = self._one("SELECT value FROM meta WHERE tenant = %s AND key = %s", (tenant, OWN))
        return None if found is None else str(found)

    def set_note(self, tenant: str, note: str) -> None:
        with translate_errors(self.where):
            self._writer.execute(
                "INSERT INTO meta (tenant, key, value) VALUES (%s, %s, %s) "
                "ON CONFLICT (tenant, key) DO UPDATE SET value = excluded.value",
                (tenant, OWN, note),
            )

    def shut(self) -> None:
        with translate_errors(self.where):
            self._writer.execute("UPDATE schema_version SET state = 'copying'")

    def is_shut(self) -> bool:
        return bool(self._one("SELECT state FROM schema_version") != "whole")

    def release(self) -> None:
        with translate_errors(self.where):
            for name in ORDERED:  # what comes next has the next number
                numbers = f"pg_get_serial_sequence('{name}', '{NUMBER}')"
                self._writer.execute(f"SELECT setval({numbers}, coalesce(max({NUMBER}), 0) + 1, false) FROM {name}")
            for name in self.tables():
                self._writer.execute(f"ANALYZE {name}")
            self._writer.execute("UPDATE schema_version SET state = 'whole'")

    def close(self) -> None:
        for made in self._open:
            made.close()


def _table(name: str, columns: list[tuple[str, int]]) -> Table:
    key = [column for column, place in sorted(columns, key=lambda each: each[1]) if place >= 0]
    return Table(name, tuple(sorted(column for column, _ in columns)), tuple(key))


def _where(table: Table) -> str:
    return where_of(table).replace("?", "%s")
