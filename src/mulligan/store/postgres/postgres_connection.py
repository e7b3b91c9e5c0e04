"""PostgreSQL connection that accepts the SQL of `connection.Connection`.

Statements are translated once and cached. Many rows or keys go into one statement, so that a batch does not cost a
round trip per row. Each statement names its tenant as one value, so that a distributed database sends it to one worker.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from psycopg import Connection, OperationalError, Pipeline, RawCursor, RawServerCursor
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.sql import quote

from mulligan.contract.store import DAY
from mulligan.store.connection import ConcurrentAppendError, Insert, Lookup, Rows
from mulligan.store.postgres import postgres_tables
from mulligan.store.postgres.value_encoding import (
    COLUMN_TYPES,
    VALUE_TYPES,
    Column,
    ColumnValue,
    IntegerColumn,
    TextColumn,
    register_adapters,
)
from mulligan.store.tables import ORDERED

MAX_ARRAY_ROWS = 1024
"""Rows that one statement inserts from arrays, which bounds their size."""
CHUNK_ROWS = (256, 128, 64, 32, 16)
"""Rows that one statement inserts by a parameter per value, as many as possible. The rest, fewer than the last of them,
is inserted by one more: so there are few different statements, each of which the server plans once."""

_JSON_EACH = re.compile(r"json_each\((\$\d+)\)(?: (?!CROSS|WHERE|ON|JOIN)(\w+))?")
_NUMBER = re.compile(r"CAST\(((?:each_[ij]\.)?value) AS BIGINT\)")
_FORCED = re.compile(r"CROSS JOIN (\w+ \w+) ON\b")
_OF_RUN = re.compile(r"\bsteps WHERE tenant = \$(\d+) AND run = (?:\$(\d+)|n\.key)")
_OF_STEP = re.compile(r"(\bs\.run = (?:r\.id|u\.run))\b")
_LOCK_ID = "hashtextextended(CAST(? AS text), hashtext(CAST(? AS text)))"
_DAYS_SQL = (
    "SELECT id, stored_at FROM runs WHERE tenant = ? AND id = ANY (?) "
    "UNION ALL SELECT run, stored_at FROM orphaned_runs WHERE tenant = ? AND run = ANY (?)"
)


class Statement(NamedTuple):
    """A statement for PostgreSQL. Its parameters are $1, $2 and so on."""

    sql: str
    steps_of: tuple[tuple[int, int], ...] = ()
    """The runs whose steps it reads or deletes, by the numbers of the parameters with the tenant and the run. The days
    of these runs are further parameters."""


@functools.lru_cache(maxsize=2000)
def translate_sql(sql: str) -> Statement:
    numbers = itertools.count(1)
    sql = re.sub(r"\?(\d*)", lambda mark: f"${mark[1] or next(numbers)}", sql)
    parameter_count = max((int(number) for number in re.findall(r"\$(\d+)", sql)), default=0)
    sql = re.sub(r"\b([ij])\.value\b", r"each_\1.value", _JSON_EACH.sub(partial(_render_members, sql), sql))
    sql = _NUMBER.sub(r"\1", sql)
    sql = _FORCED.sub(r"JOIN \1 ON", sql)
    # Steps are partitioned by the day of their run: with a condition on the day, only that partition is planned.
    steps_of: list[tuple[int, int]] = []

    def add_day(match: re.Match[str]) -> str:
        # In `Statement.steps_of`: the runs are the keys of `execute_by_key`
        key = int(match[1]), int(match[2] or 0)
        if key not in steps_of:
            steps_of.append(key)
        return f"{match[0]} AND day = ${parameter_count + 1 + steps_of.index(key)}"

    sql = _OF_STEP.sub(rf"\1 AND s.day = r.stored_at / {DAY}", _OF_RUN.sub(add_day, sql))
    return Statement(sql, tuple(steps_of))


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

    Behind a pooler, each transaction may use another session. So each transaction begins with the settings that a
    direct session gets once.
    """

    def __init__(self, raw_connection: Connection[Any], settings: Mapping[str, Any] | None = None) -> None:
        """`settings` is given behind a pooler."""
        register_adapters(raw_connection)
        raw_connection.prepared_max = 400
        self.raw_connection = raw_connection
        self._settings = None if settings is None else dict(settings)
        self._streams = itertools.count()
        self._current_tenant: str | None = None
        self._days: dict[tuple[str, str], int] = {}
        """Days of the runs that the current transaction has read or written, by tenant and run."""
        self._use_count, self._planned_use_count = 0, 0
        self.is_exclusive = False
        self._pipeline: Pipeline | None = None
        """Set while statements are sent without waiting for the results of those before them."""
        self._pipeline_exit = contextlib.ExitStack()
        self._queued_inserts: list[tuple[int, list[RawCursor[Any]]]] = []
        """Inserts of rows that must be new, with their number, whose results have not been read yet."""

    def replan_if_due(self) -> None:
        """Discard cached plans at growing intervals: a plan for an empty table does not suit a full one.

        PostgreSQL itself replans only after it has analyzed a table, minutes or hours later.
        """
        self._use_count += 1
        # Plans are discarded each time the use count has grown by this factor.
        if self._use_count >= 4 * self._planned_use_count:
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
        """Begin a transaction for these tenants, and select the first of them.

        Unless `is_exclusive` is None, lock them until its end: batches share them, all other writes have them alone.
        """
        if self._settings is None:
            self.replan_if_due()
        self._days.clear()
        tenants = tuple(sorted(tenants))  # sorted, so that no two processes deadlock
        settings = [f"SET LOCAL {name} = '{value}'" for name, value in (self._settings or {}).items()]
        settings += [postgres_tables.build_tenant_setting(tenant, self.raw_connection) for tenant in tenants[:1]]
        if is_exclusive is False:
            # A plan for an empty table would read all of it, also when it is full. Batches read by key.
            settings.append("SET LOCAL enable_seqscan = off")
        self._current_tenant = tenants[0] if tenants else None
        locks: list[str] = []
        if is_exclusive is not None:
            self.is_exclusive = is_exclusive
            function = "pg_advisory_xact_lock" if is_exclusive else "pg_advisory_xact_lock_shared"
            names = [quote(tenant, self.raw_connection) for tenant in tenants]
            locks = [f"SELECT {function}(hashtextextended({name}, hashtext('tenant')))" for name in names]
        # Settings alone: Citus sends all of a command with SET LOCAL to the workers.
        if self._settings is not None:
            self.send_commands("BEGIN", "; ".join(settings), "; ".join(locks))
            return
        self.send_commands("; ".join(["BEGIN", *locks]))  # at once: it shows whether the connection is still alive
        if is_exclusive is False:
            self._pipeline = self._pipeline_exit.enter_context(self.raw_connection.pipeline())
            self.send_commands(*settings)
        else:
            self.send_commands("; ".join(settings))

    def commit(self) -> None:
        """Commit the transaction. Raise `ConcurrentAppendError` if a queued row that must be new exists already."""
        if self._pipeline is None:
            self.send_commands("COMMIT")
            return
        self._pipeline.sync()
        if any(sum(cursor.rowcount for cursor in cursors) != count for count, cursors in self._queued_inserts):
            raise ConcurrentAppendError
        cursor = self._execute("COMMIT", ())
        self.end_pipeline()
        if cursor.statusmessage != "COMMIT":
            raise OperationalError(f"The transaction ended with {cursor.statusmessage}, not with COMMIT.")

    def end_pipeline(self) -> None:
        """Wait for the results of all statements that were sent."""
        self._queued_inserts.clear()
        self._pipeline = None
        self._pipeline_exit.close()

    def send_commands(self, *commands: str) -> None:
        """Execute commands without parameters and results. The `execute` of psycopg takes three times the CPU time."""
        if self._pipeline is not None:
            for command in commands:
                self._execute(command, ())
            return
        for command in filter(None, commands):
            result = self.raw_connection.pgconn.exec_(command.encode())
            if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
                if self.raw_connection.closed:
                    raise OperationalError(result.error_message.decode("utf-8", "replace").strip())
                raise error_from_result(result, "utf-8")

    def select_tenant(self, tenant: str) -> None:
        if tenant != self._current_tenant:
            self.send_commands(postgres_tables.build_tenant_setting(tenant, self.raw_connection))
            self._current_tenant = tenant

    def lock(self, tenant: str, subject: str) -> None:
        if not self.is_exclusive:
            self.execute(f"SELECT pg_advisory_xact_lock({_LOCK_ID})", (tenant, subject))

    def try_lock(self, tenant: str, subject: str) -> bool:
        if self.is_exclusive:
            return True
        return bool(self.execute(f"SELECT pg_try_advisory_xact_lock({_LOCK_ID})", (tenant, subject)).fetchone()[0])

    @contextlib.contextmanager
    def transaction(self, *tenants: str) -> Iterator[PostgresConnection]:
        """Query for a tenant within one transaction."""
        self.begin(*tenants)
        yield self
        self.send_commands("COMMIT")  # after an error the pool rolls back instead

    @contextlib.contextmanager
    def transaction_of_all(self) -> Iterator[PostgresConnection]:
        """Work on the rows of all tenants within one transaction."""
        self._days.clear()
        with self.raw_connection.transaction():
            postgres_tables.set_all_tenants(self.raw_connection)
            yield self

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        statement = translate_sql(sql)
        return self._execute(statement.sql, self._add_days(statement, values))

    def _execute(self, sql: str, values: Sequence[Any]) -> RawCursor[Any]:
        return RawCursor(self.raw_connection).execute(sql, values, binary=True)

    def _add_days(self, statement: Statement, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values with the days of the runs whose steps the statement is about."""
        if not statement.steps_of:
            return values
        return (
            *values,
            *(
                self._find_days(values[tenant - 1], (values[run - 1],))[values[run - 1]]
                for tenant, run in statement.steps_of
            ),
        )

    def execute_by_key(
        self, sql: str, keys: Sequence[str], values: Sequence[Any], max_rows: int | None = None
    ) -> list[tuple[Any, ...]]:
        """Execute one statement for all keys, with a LATERAL join. A UNION would check row security for each part."""
        if len(keys) == 1:  # Citus plans a statement about one table faster
            return [(keys[0], *row) for row in self.execute(sql, (keys[0], *values))][:max_rows]
        query = re.sub(r"\?1\b", "n.key", sql)
        order = "" if max_rows is None else f" ORDER BY n.number LIMIT {max_rows:d}"
        statement = translate_sql(
            "SELECT n.key, f.* FROM unnest(CAST(?1 AS text[])) WITH ORDINALITY AS n (key, number) "
            f"CROSS JOIN LATERAL ({query}) f{order}"
        )
        if not statement.steps_of:
            return self._execute(statement.sql, (TextColumn(keys), *values)).fetchall()
        ((tenant, _),) = statement.steps_of
        days = sorted(set(self._find_days(values[tenant - 2], keys).values()))  # the keys are parameter 1
        if len(days) == 1:
            return self._execute(statement.sql, (TextColumn(keys), *values, *days)).fetchall()
        # One statement for all days costs less than one for each, but the steps of each run are then sorted.
        parameter = f"${len(values) + 2}"
        sql = statement.sql.replace(f"day = {parameter}", f"day = ANY ({parameter})")
        return self._execute(sql, (TextColumn(keys), *values, IntegerColumn(days))).fetchall()

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        """Execute a statement for many rows in pipelined round trips."""
        statement = translate_sql(sql)
        parameter_rows = list(rows)
        if not parameter_rows:
            return 0
        for tenant, run in statement.steps_of:
            self._find_days(parameter_rows[0][tenant - 1], {row[run - 1] for row in parameter_rows})
        with RawCursor(self.raw_connection) as cursor:
            cursor.executemany(statement.sql, [self._add_days(statement, row) for row in parameter_rows])
            return max(cursor.rowcount, 0)

    def stream(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        """Stream a result, within a transaction only."""
        with RawServerCursor(self.raw_connection, f"stream_{next(self._streams)}") as cursor:
            cursor.itersize = 2000  # rows of a streamed result that are read at a time
            cursor.execute(translate_sql(sql).sql, values, binary=True)
            yield from cursor

    # Many rows

    def put(self, insert: Insert, rows: Iterable[tuple[Any, ...]]) -> int:
        cursors = self._insert(insert, list(rows))
        if cursors and self._pipeline is not None:
            self._pipeline.sync()
        return sum(cursor.rowcount for cursor in cursors)

    def queue(self, insert: Insert, rows: Sequence[tuple[Any, ...]], must_be_new: bool = False) -> None:
        cursors = self._insert(insert, rows)
        if must_be_new and self._pipeline is not None:
            self._queued_inserts.append((len(rows), cursors))
        elif must_be_new and sum(cursor.rowcount for cursor in cursors) != len(rows):
            raise ConcurrentAppendError

    def _insert(self, insert: Insert, rows: Sequence[tuple[Any, ...]]) -> list[RawCursor[Any]]:
        if not rows:
            return []
        tenant = _find_tenant(rows)
        columns = insert.columns
        if insert.table == "steps":
            run = columns.index("run")
            days = self._find_days(tenant, {row[run] for row in rows})
            columns, rows = (*columns, "day"), [(*row, days[row[run]]) for row in rows]
        if insert.table == "runs":
            self._remember_days(tenant, columns, rows)
        if insert.table in ORDERED:
            return self._insert_values(insert, rows)
        sql = _insert_sql(insert.table, columns, insert.conflict)
        type_ids = postgres_tables.column_type_ids()[insert.table]
        column_types = [COLUMN_TYPES[type_ids[name]] for name in columns[1:]]
        cursors: list[RawCursor[Any]] = []
        for start in range(0, len(rows), MAX_ARRAY_ROWS):
            _, *value_columns = zip(*rows[start : start + MAX_ARRAY_ROWS], strict=True)
            arrays = [type(values) for type, values in zip(column_types, value_columns, strict=True)]
            cursors.append(self._execute(sql, [tenant, *arrays]))
        return cursors

    def _insert_values(self, insert: Insert, rows: Sequence[tuple[Any, ...]]) -> list[RawCursor[Any]]:
        """Insert rows with one parameter per value: of arrays, Citus would give all rows the same row number."""
        (packed_tenant, *_), *packed_columns = [
            value_type.pack_all(values)
            for value_type, values in zip(_value_types(insert), zip(*rows, strict=True), strict=True)
        ]
        packed_rows = list(zip(*packed_columns, strict=True))
        cursors: list[RawCursor[Any]] = []
        start = 0
        while start < len(rows):
            remaining = len(rows) - start
            size = next((size for size in CHUNK_ROWS if size <= remaining), remaining)
            values = [packed_tenant, *itertools.chain.from_iterable(packed_rows[start : start + size])]
            cursors.append(self._execute(_insert_rows_sql(insert, size), values))
            start += size
        return cursors

    def look_up(self, lookup: Lookup, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if not keys:
            return []
        tenant = _find_tenant(keys)
        if lookup.table == "steps" and len(keys) > 1:
            days = self._find_days(tenant, {key[1] for key in keys})
            keys_by_day: dict[int, list[tuple[Any, ...]]] = {}
            for key in keys:
                keys_by_day.setdefault(days[key[1]], []).append(key)
            return [row for day, day_keys in keys_by_day.items() for row in self._look_up(lookup, day_keys, day)]
        rows = self._look_up(lookup, keys)
        if lookup.table == "runs" and "stored_at" in lookup.columns:
            self._remember_days(tenant, (*lookup.keys, *lookup.columns), rows)
        return rows

    def _look_up(self, lookup: Lookup, keys: Sequence[tuple[Any, ...]], *day: int) -> list[tuple[Any, ...]]:
        if len(keys) == 1:  # Citus plans a statement about one table faster
            sql = lookup.single_key_sql + _render_lock(lookup)
            return [(*keys[0], *row) for row in self.execute(sql, keys[0])]
        sql, types = _lookup_sql(lookup)
        (tenant, *_), *columns = zip(*keys, strict=True)
        values = [tenant, *(type(column) for type, column in zip(types, columns, strict=True)), *day]
        return [(*keys[number - 1], *row) for number, *row in self._execute(sql, values)]

    # Days of runs

    def _find_days(self, tenant: str, runs: Iterable[str]) -> dict[str, int]:
        """Return the days on which the first records of these runs arrived; 0 for those without records."""
        days = {run: self._days.get((tenant, run)) for run in runs}
        if missing := TextColumn([run for run, day in days.items() if day is None]).values:
            rows = self.execute(_DAYS_SQL, (tenant, TextColumn(missing), tenant, TextColumn(missing))).fetchall()
            self._remember_days(tenant, ("id", "stored_at"), rows)
            days |= {run: stored_at // DAY for run, stored_at in rows}
        return {run: day or 0 for run, day in days.items()}

    def unindex_runs(self, tenant: str, runs: Sequence[str]) -> None:
        sql = "UPDATE runs SET words = NULL WHERE tenant = ? AND id = ? AND words IS NOT NULL"
        self.executemany(sql, [(tenant, run) for run in runs])

    def remember_runs(self, tenant: str, stored_at: Mapping[str, int]) -> None:
        self._remember_days(tenant, ("id", "stored_at"), stored_at.items())

    def _remember_days(self, tenant: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Remember the days of runs until the transaction ends. Within it, the day of a run does not change."""
        if len(self._days) > 100_000:  # runs whose day a transaction remembers
            self._days.clear()
        id, stored_at = columns.index("id"), columns.index("stored_at")
        self._days |= {(tenant, row[id]): row[stored_at] // DAY for row in rows}

    def close(self) -> None:
        self.raw_connection.close()


def _find_tenant(rows: Sequence[tuple[Any, ...]]) -> str:
    """Return the tenant of rows or keys, which is their first column and the same in all of them."""
    (tenant,) = {row[0] for row in rows}
    return str(tenant)


def _value_types(insert: Insert) -> list[type[ColumnValue]]:
    type_ids = postgres_tables.column_type_ids()[insert.table]
    types = {value_type.type_id: value_type for value_type in VALUE_TYPES}
    return [types[type_ids[name]] for name in insert.columns]


@functools.lru_cache(maxsize=1000)
def _insert_sql(table: str, columns: tuple[str, ...], conflict: str) -> str:
    """Return the SQL that inserts rows, with one parameter for the tenant of all and one array per column.

    One parameter per value would take twice the CPU time on Citus: a worker would parse and plan them as texts.
    """
    arrays = ", ".join(f"unnest(${number})" for number in range(2, len(columns) + 1))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ($1, {arrays}) {conflict}"


@functools.lru_cache(maxsize=1000)
def _insert_rows_sql(insert: Insert, count: int) -> str:
    """Return the SQL that inserts this many rows, with one parameter for the tenant of all and one per value."""
    numbers = itertools.count(2)
    rows = ", ".join(f"($1, {', '.join(f'${next(numbers)}' for _ in insert.columns[1:])})" for _ in range(count))
    return f"INSERT INTO {insert.table} ({', '.join(insert.columns)}) VALUES {rows} {insert.conflict}"


@functools.lru_cache(maxsize=1000)
def _lookup_sql(lookup: Lookup) -> tuple[str, list[type[Column]]]:
    """Return the SQL of a lookup of the keys `n`, and the types of its array parameters.

    Each key is read by index. The plan is made once, without knowing the number of keys.
    """
    names = [key.removesuffix(">=") for key in lookup.keys[1:]]
    type_ids = postgres_tables.column_type_ids()[lookup.table]
    types = [COLUMN_TYPES[type_ids[name]] for name in names]
    arrays = ", ".join(f"CAST(${number} AS {type.sql_type}[])" for number, type in enumerate(types, start=2))
    where = lookup.where([f"t.{key}" for key in lookup.keys], ["$1", *(f"n.{name}" for name in names)])
    if lookup.table == "steps":
        where += f" AND t.day = ${len(names) + 2}"
    sql = (
        f"SELECT n.row_number, f.* FROM unnest({arrays}) WITH ORDINALITY AS n ({', '.join(names)}, row_number) "
        f"CROSS JOIN LATERAL (SELECT {', '.join(lookup.columns)} FROM {lookup.table} t WHERE {where} OFFSET 0"
        f"{_render_lock(lookup)}) f"
    )
    return sql, types


def _render_lock(lookup: Lookup) -> str:
    return " FOR NO KEY UPDATE" if lookup.is_locking else ""
