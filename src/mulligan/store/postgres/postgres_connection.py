"""PostgreSQL connection that accepts the SQL of `connection.Connection`.

Statements are translated once and cached. Many rows or keys go into one statement, so that a batch does not cost a
round trip per row.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from psycopg import Connection, RawCursor, RawServerCursor
from psycopg.sql import quote

from mulligan.core.records import encode
from mulligan.store.base import DAY
from mulligan.store.connection import Insert, Lookup, Rows, SuccessRow
from mulligan.store.postgres import postgres_tables
from mulligan.store.postgres.value_encoding import COLUMN_TYPES, Column, TextColumn, register_adapters
from mulligan.store.rows import STEP

REPLAN_GROWTH_FACTOR = 4
"""Plans are discarded each time the use count has grown by this factor."""
FETCH_BATCH_ROWS = 2000
"""Rows of a streamed result that are read at a time."""

_JSON_EACH = re.compile(r"json_each\((\$\d+)\)(?: (?!CROSS|WHERE|ON|JOIN)(\w+))?")
_NUMBER = re.compile(r"CAST\(((?:each_[ij]\.)?value) AS BIGINT\)")
_FORCED = re.compile(r"CROSS JOIN (\w+ \w+) ON\b")
_OF_RUN = re.compile(r"(\bsteps WHERE tenant = (\$\d+) AND run = (\$\d+|n\.key))")
_OF_STEP = re.compile(r"(\bs\.run = (?:r\.id|u\.run))\b")
_LOCK_ID = "hashtextextended(CAST(? AS text), hashtext(CAST(? AS text)))"
_DAY = (
    "coalesce((SELECT stored_at FROM runs r WHERE r.tenant = n.tenant AND r.id = n.run), "
    f"(SELECT stored_at FROM orphaned_runs o WHERE o.tenant = n.tenant AND o.run = n.run), 0) / {DAY}"
)
"""Equals `run_day` for many rows: a join is faster than a function call per row."""


@functools.lru_cache(maxsize=2000)
def translate_sql(sql: str) -> str:
    """Translate a statement to PostgreSQL. Its parameters become $1, $2 and so on."""
    numbers = itertools.count(1)
    if sql == STEP.single_row_sql:
        marks = ", ".join(f"${number}" for number in range(1, len(STEP.columns) + 1))
        column_names = ", ".join(STEP.columns)
        return f"INSERT INTO steps ({column_names}, day) VALUES ({marks}, run_day($1, $2)) {STEP.conflict}"
    sql = re.sub(r"\?(\d*)", lambda mark: f"${mark[1] or next(numbers)}", sql)
    sql = re.sub(r"\b([ij])\.value\b", r"each_\1.value", _JSON_EACH.sub(partial(_render_members, sql), sql))
    sql = _NUMBER.sub(r"\1", sql)
    sql = _FORCED.sub(r"JOIN \1 ON", sql)
    # Steps are partitioned by the day of their run: a condition on the day skips all other partitions.
    sql = _OF_RUN.sub(r"\1 AND day = run_day(\2, \3)", sql)
    return _OF_STEP.sub(rf"\1 AND s.day = r.stored_at / {DAY}", sql)


def _render_members(sql: str, match: re.Match[str]) -> str:
    """Render the members of a JSON list as texts, or as numbers if the statement casts them.

    With row security, PostgreSQL uses no index for a value that is converted per row: a failing conversion could reveal
    a hidden row.
    """
    parameter, name = match[1], match[2] or ""
    kind = "BIGINT" if f"CAST({name}{'.' if name else ''}value AS BIGINT)" in sql else "TEXT"
    members = f"SELECT CAST(member AS {kind}) FROM jsonb_array_elements_text(CAST({parameter} AS jsonb)) member"
    return f"unnest(ARRAY({members})) AS each_{name} (value)"


class PostgresConnection:
    """One session that implements `connection.Connection`.

    Behind a pooler, each transaction may use another session. So all queries run in a transaction, which begins with
    the settings that a direct session gets once.
    """

    def __init__(self, raw_connection: Connection[Any], settings: Mapping[str, Any] | None = None) -> None:
        """`settings` is given behind a pooler."""
        register_adapters(raw_connection)
        self.raw_connection = raw_connection
        self._settings = None if settings is None else dict(settings)
        self._batch_statements: dict[Insert | Lookup, tuple[str, list[type[Column]]]] = {}
        self._streams = itertools.count()
        self._current_tenants: tuple[str, ...] | None = None
        self._use_count, self._planned_use_count = 0, 0
        self.is_exclusive = False

    def replan_if_due(self) -> None:
        """Discard cached plans at growing intervals: a plan for an empty table does not suit a full one.

        PostgreSQL itself replans only after it has analyzed a table, minutes or hours later.
        """
        self._use_count += 1
        if self._use_count >= REPLAN_GROWTH_FACTOR * self._planned_use_count:
            self._planned_use_count = self._use_count
            self.raw_connection.execute("DISCARD PLANS")

    @property
    def is_pooled(self) -> bool:
        return self._settings is not None

    def set(self, name: str, value: str) -> None:
        """Set a parameter for the lifetime of the connection."""
        if self._settings is None:
            self.raw_connection.execute(f"SET {name} = {value}")
        else:
            self._settings[name] = value

    def begin(self, *tenants: str, is_exclusive: bool | None = None) -> None:
        """Begin a transaction for these tenants, in one round trip.

        Unless `is_exclusive` is None, lock them until its end: batches share them, all other writes have them alone.
        """
        statements = ["BEGIN"]
        if self._settings is None:
            self.replan_if_due()
        else:
            statements += [f"SET LOCAL {name} = '{value}'" for name, value in self._settings.items()]
        joined_tenants = quote(postgres_tables.join_tenants(tenants), self.raw_connection)
        statements.append(f"SELECT set_config('{postgres_tables.SETTING}', {joined_tenants}, true)")
        if is_exclusive is not None:
            function = "pg_advisory_xact_lock" if is_exclusive else "pg_advisory_xact_lock_shared"
            for tenant in sorted(tenants):  # sorted, so that no two processes deadlock
                name = quote(tenant, self.raw_connection)
                statements.append(f"SELECT {function}(hashtextextended({name}, hashtext('tenant')))")
            self.is_exclusive = is_exclusive
        if is_exclusive is False:
            # A plan for an empty table would read all of it, also when it is full. Batches read by key.
            statements.append("SET LOCAL enable_seqscan = off")
        self.raw_connection.execute("; ".join(statements), prepare=False)

    def lock(self, tenant: str, subject: str) -> None:
        if not self.is_exclusive:
            self.execute(f"SELECT pg_advisory_xact_lock({_LOCK_ID})", (tenant, subject))

    def try_lock(self, tenant: str, subject: str) -> bool:
        if self.is_exclusive:
            return True
        return bool(self.execute(f"SELECT pg_try_advisory_xact_lock({_LOCK_ID})", (tenant, subject)).fetchone()[0])

    @contextlib.contextmanager
    def for_tenants(self, *tenants: str) -> Iterator[PostgresConnection]:
        """Query for these tenants. Set them only if they differ from the last ones of the session."""
        if self._settings is not None:
            self.begin(*tenants)
            yield self
            self.raw_connection.execute("COMMIT")  # after an error the pool rolls back instead
            return
        self.replan_if_due()
        if tenants != self._current_tenants:
            self._current_tenants = None
            postgres_tables.set_tenants(self.raw_connection, tenants, is_local=False)
            self._current_tenants = tenants
        yield self

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        return RawCursor(self.raw_connection).execute(translate_sql(sql), values, binary=True)

    def execute_by_key(self, sql: str, keys: Sequence[str], values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Execute one statement for all keys, with a LATERAL join. A UNION would check row security for each part."""
        query = re.sub(r"\?1\b", "n.key", sql)
        lateral = f"SELECT n.key, f.* FROM unnest(CAST(?1 AS text[])) AS n (key) CROSS JOIN LATERAL ({query}) f"
        return self.execute(lateral, (TextColumn(keys), *values)).fetchall()

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        """Execute a statement for many rows in pipelined round trips."""
        parameter_rows = list(rows)
        if not parameter_rows:
            return 0
        with RawCursor(self.raw_connection) as cursor:
            cursor.executemany(translate_sql(sql), parameter_rows)
            return max(cursor.rowcount, 0)

    def stream(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        """Stream a result, within a transaction only."""
        with RawServerCursor(self.raw_connection, f"stream_{next(self._streams)}") as cursor:
            cursor.itersize = FETCH_BATCH_ROWS
            cursor.execute(translate_sql(sql), values, binary=True)
            yield from cursor

    def put(self, insert: Insert, rows: Sequence[tuple[Any, ...]]) -> int:
        return self._execute_batch(insert, rows).rowcount if rows else 0

    def put_successes(self, tenant: str, rows: Iterable[SuccessRow]) -> int:
        return self.put(
            STEP,
            [
                (tenant, run, seq, seq, name, "success", None, None, started, encode(compact_step))
                for run, seq, name, started, compact_step in rows
            ],
        )

    def look_up(self, lookup: Lookup, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return [(*keys[number - 1], *row) for number, *row in self._execute_batch(lookup, keys)] if keys else []

    def _execute_batch(self, statement: Insert | Lookup, rows: Sequence[tuple[Any, ...]]) -> RawCursor[Any]:
        """Execute a statement about many rows, with one array parameter per column."""
        if statement not in self._batch_statements:
            self._batch_statements[statement] = self._build_batch(statement)
        sql, types = self._batch_statements[statement]
        values = [type(column) for type, column in zip(types, zip(*rows, strict=True), strict=True)]
        return RawCursor(self.raw_connection).execute(sql, values, binary=True)

    def _build_batch(self, statement: Insert | Lookup) -> tuple[str, list[type[Column]]]:
        """Return the SQL of a statement about the rows `n`, and the types of its parameters."""
        table = statement.table
        day = _DAY if table == STEP.table else ""
        if isinstance(statement, Insert):
            names: Sequence[str] = statement.columns
            into, selected = ", ".join(names), ", ".join(f"n.{name}" for name in names)
            if day:
                into, selected = f"{into}, day", f"{selected}, {day}"
            sql = f"INSERT INTO {table} ({into}) SELECT {selected} FROM {{}} {statement.conflict}"
        else:
            # Each key is read by index. The plan is made once, without knowing the number of keys.
            names = [key.removesuffix(">=") for key in statement.keys]
            where = statement.where([f"t.{key}" for key in statement.keys], [f"n.{name}" for name in names])
            where += f" AND t.day = {day}" if day else ""
            lock = " FOR NO KEY UPDATE" if statement.is_locking else ""
            sql = (
                f"SELECT n.row_number, f.* FROM {{}} CROSS JOIN LATERAL (SELECT {', '.join(statement.columns)} "
                f"FROM {table} t WHERE {where} OFFSET 0{lock}) f"
            )
        described = self.raw_connection.execute(f"SELECT {', '.join(names)} FROM {table} LIMIT 0").description or ()
        types = [COLUMN_TYPES[column.type_code] for column in described]
        arrays = ", ".join(f"CAST(${number} AS {type.sql_type}[])" for number, type in enumerate(types, start=1))
        return sql.format(f"unnest({arrays}) WITH ORDINALITY AS n ({', '.join(names)}, row_number)"), types

    def close(self) -> None:
        self.raw_connection.close()
