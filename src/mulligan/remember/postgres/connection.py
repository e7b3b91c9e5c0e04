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

from mulligan.records import encode
from mulligan.remember.bodies import PlainRow
from mulligan.remember.connection import Insert, Lookup, Rows
from mulligan.remember.postgres import security
from mulligan.remember.postgres.values import COLUMNS, Column, adapted
from mulligan.remember.rows import STEP
from mulligan.remember.store import DAY

GROWTH = 4
"""Plans are discarded each time the use count has grown by this factor."""
FETCHED = 2000
"""Rows of a streamed result that are read at a time."""

_EACH = re.compile(r"json_each\((\$\d+)\)(?: (?!CROSS|WHERE|ON|JOIN)(\w+))?")
_NUMBER = re.compile(r"CAST\(((?:each_[ij]\.)?value) AS BIGINT\)")
_FORCED = re.compile(r"CROSS JOIN (\w+ \w+) ON\b")
_OF_RUN = re.compile(r"(\bsteps WHERE tenant = (\$\d+) AND run = (\$\d+))")
_OF_STEP = re.compile(r"(\bs\.run = (?:r\.id|u\.run))\b")
_DAY = (
    "coalesce((SELECT kept FROM runs r WHERE r.tenant = n.tenant AND r.id = n.run), "
    f"(SELECT kept FROM orphans o WHERE o.tenant = n.tenant AND o.run = n.run), 0) / {DAY}"
)
"""Equals `run_day` for many rows: a join is faster than a function call per row."""


@functools.lru_cache(maxsize=2000)
def translated(sql: str) -> str:
    """Translate a statement to PostgreSQL. Its parameters become $1, $2 and so on."""
    numbers = itertools.count(1)
    if sql == STEP.one:
        marks = ", ".join(f"${place}" for place in range(1, len(STEP.columns) + 1))
        named = ", ".join(STEP.columns)
        return f"INSERT INTO steps ({named}, day) VALUES ({marks}, run_day($1, $2)) {STEP.conflict}"
    sql = re.sub(r"\?", lambda _: f"${next(numbers)}", sql)
    sql = re.sub(r"\b([ij])\.value\b", r"each_\1.value", _EACH.sub(partial(_members, sql), sql))
    sql = _NUMBER.sub(r"\1", sql)
    sql = _FORCED.sub(r"JOIN \1 ON", sql)
    # Steps are partitioned by the day of their run: a condition on the day skips all other partitions.
    sql = _OF_RUN.sub(r"\1 AND day = run_day(\2, \3)", sql)
    return _OF_STEP.sub(rf"\1 AND s.day = r.kept / {DAY}", sql)


def _members(sql: str, each: re.Match[str]) -> str:
    """Render the members of a JSON list as texts, or as numbers if the statement casts them.

    With row security, PostgreSQL uses no index for a value that is converted per row: a failing conversion could reveal
    a hidden row.
    """
    given, name = each[1], each[2] or ""
    kind = "BIGINT" if f"CAST({name}{'.' if name else ''}value AS BIGINT)" in sql else "TEXT"
    members = f"SELECT CAST(member AS {kind}) FROM jsonb_array_elements_text(CAST({given} AS jsonb)) member"
    return f"unnest(ARRAY({members})) AS each_{name} (value)"


class _Many:
    """A statement about many rows, with one array parameter per column."""

    def __init__(self, kinds: Sequence[tuple[type[Column], str]], names: Sequence[str], sql: str) -> None:
        """`{}` in `sql` stands for the rows, named `n` with these columns."""
        self._kinds = [kind for kind, _ in kinds]
        columns = ", ".join(f"CAST(${place} AS {named}[])" for place, (_, named) in enumerate(kinds, start=1))
        self.sql = sql.format(f"unnest({columns}) AS n ({', '.join(names)})")

    def values(self, rows: Sequence[Sequence[Any]]) -> list[Column]:
        return [kind(values) for kind, values in zip(self._kinds, zip(*rows, strict=True), strict=True)]


class PostgresConnection:
    """One session that implements `connection.Connection`.

    Behind a pooler, each transaction may use another session. So all queries run in a transaction, which begins with
    the settings that a direct session gets once.
    """

    def __init__(self, made: Connection[Any], settings: Mapping[str, Any] | None = None) -> None:
        """`settings` is given behind a pooler."""
        adapted(made)
        self.made = made
        self._settings = None if settings is None else dict(settings)
        self._many: dict[Insert | Lookup, _Many] = {}
        self._streams = itertools.count()
        self._meant: tuple[str, ...] | None = None
        self._uses, self._planned = 0, 0

    def plan_anew(self) -> None:
        """Discard cached plans at growing intervals: a plan for an empty table does not suit a full one.

        PostgreSQL itself replans only after it has analyzed a table, minutes or hours later.
        """
        self._uses += 1
        if self._uses >= GROWTH * self._planned:
            self._planned = self._uses
            self.made.execute("DISCARD PLANS")

    @property
    def is_pooled(self) -> bool:
        return self._settings is not None

    def set(self, name: str, value: str) -> None:
        """Set a parameter for the lifetime of the connection."""
        if self._settings is None:
            self.made.execute(f"SET {name} = {value}")
        else:
            self._settings[name] = value

    def begin(self, *tenants: str) -> None:
        """Begin a transaction for these tenants."""
        if self._settings is None:
            self.plan_anew()
            self.made.execute("BEGIN")
        else:
            local = "".join(f"; SET LOCAL {name} = '{value}'" for name, value in self._settings.items())
            self.made.execute(f"BEGIN{local}")  # one round trip
        security.mean(self.made, tenants, is_local=True)

    @contextlib.contextmanager
    def asking(self, *tenants: str) -> Iterator[PostgresConnection]:
        """Query for these tenants. Set them only if they differ from the last ones of the session."""
        if self._settings is not None:
            self.begin(*tenants)
            yield self
            self.made.execute("COMMIT")  # after an error the pool rolls back instead
            return
        self.plan_anew()
        if tenants != self._meant:
            self._meant = None
            security.mean(self.made, tenants, is_local=False)
            self._meant = tenants
        yield self

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        return RawCursor(self.made).execute(translated(sql), values, binary=True)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        """Execute a statement for many rows in pipelined round trips."""
        given = list(rows)
        if not given:
            return 0
        with RawCursor(self.made) as cursor:
            cursor.executemany(translated(sql), given)
            return max(cursor.rowcount, 0)

    def stream(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        """Stream a result, within a transaction only."""
        with RawServerCursor(self.made, f"stream_{next(self._streams)}") as cursor:
            cursor.itersize = FETCHED
            cursor.execute(translated(sql), values, binary=True)
            yield from cursor

    def put(self, insert: Insert, rows: Sequence[tuple[Any, ...]]) -> int:
        if not rows:
            return 0
        many = self._many.get(insert) or self._inserting(insert)
        return RawCursor(self.made).execute(many.sql, many.values(rows)).rowcount

    def _inserting(self, insert: Insert) -> _Many:
        into, chosen = ", ".join(insert.columns), ", ".join(f"n.{name}" for name in insert.columns)
        if insert.table == STEP.table:
            into, chosen = f"{into}, day", f"{chosen}, {_DAY}"
        sql = f"INSERT INTO {insert.table} ({into}) SELECT {chosen} FROM {{}} {insert.conflict}"
        made = self._many[insert] = _Many(self._kinds(insert.table, insert.columns), insert.columns, sql)
        return made

    def put_plain(self, tenant: str, rows: Iterable[PlainRow]) -> int:
        return self.put(
            STEP,
            [
                (tenant, run, seq, seq, name, "success", None, None, started, encode(rest))
                for run, seq, name, started, rest in rows
            ],
        )

    def look_up(self, lookup: Lookup, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if not keys:
            return []
        many = self._many.get(lookup) or self._looking(lookup)
        return RawCursor(self.made).execute(many.sql, many.values(keys), binary=True).fetchall()

    def _looking(self, lookup: Lookup) -> _Many:
        """Build a lookup that reads each key by index.

        The plan is made once, without knowing the number of keys.
        """
        names = [key.removesuffix(">=") for key in lookup.keys]
        wanted, where = ", ".join(lookup.columns), lookup.where(lookup.keys, [f"n.{name}" for name in names])
        where = " AND ".join(f"t.{each}" for each in where.split(" AND "))
        if lookup.table == STEP.table:
            where += f" AND t.day = {_DAY}"
        sql = (
            f"SELECT n.*, f.* FROM {{}} CROSS JOIN LATERAL (SELECT {wanted} FROM {lookup.table} t WHERE {where} "
            "OFFSET 0) f"
        )
        made = self._many[lookup] = _Many(self._kinds(lookup.table, names), names, sql)
        return made

    def _kinds(self, table: str, columns: Sequence[str]) -> list[tuple[type[Column], str]]:
        described = self.made.execute(f"SELECT {', '.join(columns)} FROM {table} LIMIT 0").description or ()
        return [COLUMNS[column.type_code] for column in described]

    def close(self) -> None:
        self.made.close()
