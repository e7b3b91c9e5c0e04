"""A connection to PostgreSQL that understands the SQL of `connection.Connection`, and characters it has no room for.

Statements are translated once and kept. Rows that come in many go in by COPY, into a table of this session alone, and
from there to where they belong unless they are there already.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from psycopg import Connection
from psycopg.types.numeric import NumericBinaryLoader, NumericLoader
from psycopg.types.string import StrBinaryDumper, StrDumper, TextBinaryLoader, TextLoader

from mulligan.records import Step
from mulligan.remember.connection import Insert, Rows
from mulligan.remember.postgres import security
from mulligan.remember.rows import STEP, step_row
from mulligan.remember.store import DAY

MANY = 20
"""Rows from which on COPY is worth its three statements."""
FETCHED = 2000
"""Rows of a long answer that are read at a time."""

# PostgreSQL keeps no NUL in a text and no half of a surrogate pair. Each has a stand-in at the end of what Unicode
# leaves to private use; what is written so is read back as it was.
_NUL, _LOW, _HIGH = 0x10F000, 0xD800, 0xDFFF
_SHIFT = 0x10F800 - _LOW
_OUT = {0: _NUL, **{code: code + _SHIFT for code in range(_LOW, _HIGH + 1)}}
_BACK = {there: here for here, there in _OUT.items()}
_STRANGE = re.compile("[\x00\ud800-\udfff]")
_STANDING_IN = re.compile(f"[{chr(_NUL)}{chr(_LOW + _SHIFT)}-{chr(_HIGH + _SHIFT)}]")


def kept(text: str) -> str:
    """The text as PostgreSQL can keep it."""
    return text.translate(_OUT) if _STRANGE.search(text) else text


def read(text: str) -> str:
    """The text as it was."""
    return text.translate(_BACK) if _STANDING_IN.search(text) else text


class _Dumper(StrDumper):
    def dump(self, obj: str) -> Any:
        return super().dump(kept(obj))


class _BinaryDumper(StrBinaryDumper):
    def dump(self, obj: str) -> Any:
        return super().dump(kept(obj))


class _Loader(TextLoader):
    def load(self, data: Any) -> Any:
        return read(super().load(data))


class _BinaryLoader(TextBinaryLoader):
    def load(self, data: Any) -> Any:
        return read(super().load(data))


class _WholeLoader(NumericLoader):
    """Sums are numerics to PostgreSQL; ours are of whole numbers."""

    def load(self, data: Any) -> Any:
        return int(super().load(data))


class _WholeBinaryLoader(NumericBinaryLoader):
    def load(self, data: Any) -> Any:
        return int(super().load(data))


def adapted(made: Connection[Any]) -> None:
    """Has texts go out and come in as they are, and sums as whole numbers."""
    made.adapters.register_dumper(str, _Dumper)
    made.adapters.register_dumper(str, _BinaryDumper)
    made.adapters.register_loader("text", _Loader)
    made.adapters.register_loader("text", _BinaryLoader)
    made.adapters.register_loader("numeric", _WholeLoader)
    made.adapters.register_loader("numeric", _WholeBinaryLoader)


_EACH = re.compile(r"json_each\((%\(p\d+\)s)\)(?: (?!CROSS|WHERE|ON|JOIN)(\w+))?")
_FORCED = re.compile(r"CROSS JOIN (\w+ \w+) ON\b")
_OF_RUN = re.compile(r"(\bsteps WHERE tenant = (%\(p\d+\)s) AND run = (%\(p\d+\)s))")
_OF_STEP = re.compile(r"(\bs\.run = (?:r\.id|u\.run))\b")


@functools.lru_cache(maxsize=2000)
def translated(sql: str) -> str:
    """A statement of ours in PostgreSQL's words. Its values are p0, p1 and so on."""
    numbers = itertools.count()
    sql = re.sub(r"\?", lambda _: f"%(p{next(numbers)})s", sql.replace("%", "%%"))
    sql = _EACH.sub(r"jsonb_array_elements_text(CAST(\1 AS jsonb)) AS each_\2 (value)", sql)
    sql = re.sub(r"\b([ij])\.value\b", r"each_\1.value", sql)
    sql = _FORCED.sub(r"JOIN \1 ON", sql)
    # Steps are kept by the day of their run: who names the run is spared the other days.
    sql = _OF_RUN.sub(r"\1 AND day = run_day(\2, \3)", sql)
    return _OF_STEP.sub(rf"\1 AND s.day = r.kept / {DAY}", sql)


_STEP_ROW = ", ".join(f"%(p{place})s" for place in range(len(STEP.columns)))
_STEP_ONE = (
    f"INSERT INTO steps ({', '.join(STEP.columns)}, day) VALUES ({_STEP_ROW}, run_day(%(p0)s, %(p1)s)) "
    "ON CONFLICT DO NOTHING"
)


def _named(values: Sequence[Any]) -> dict[str, Any]:
    return {f"p{place}": value for place, value in enumerate(values)}


class PostgresConnection:
    """One session, with what `connection.Connection` asks of every one."""

    def __init__(self, made: Connection[Any]) -> None:
        adapted(made)
        self.made = made
        self._staged: dict[str, list[int]] = {}
        """Tables of this session that rows are copied into, with the types of their columns."""
        self._streams = itertools.count()
        self._meant: str | None = None

    def mean(self, tenant: str) -> None:
        """Asks for this tenant from now on; where it did so before, nothing has to be said."""
        if tenant != self._meant:
            self._meant = None
            security.mean(self.made, (tenant,), is_local=False)
            self._meant = tenant

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        statement = _STEP_ONE if sql == STEP.one else translated(sql)
        return self.made.execute(statement, _named(values), binary=True)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        """As many round trips as fit into one."""
        given = [_named(row) for row in rows]
        if not given:
            return 0
        statement = _STEP_ONE if sql == STEP.one else translated(sql)
        with self.made.cursor() as cursor:
            cursor.executemany(statement, given)
            return max(cursor.rowcount, 0)

    def stream(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        """Within a transaction only."""
        with self.made.cursor(name=f"stream_{next(self._streams)}", binary=True) as cursor:
            cursor.itersize = FETCHED
            cursor.execute(translated(sql), _named(values))
            yield from cursor

    def put(self, insert: Insert, rows: Sequence[tuple[Any, ...]]) -> int:
        if len(rows) < MANY:
            return self.executemany(insert.one, rows)
        staging = self._staging(insert)
        columns = ", ".join(insert.columns)
        with self.made.cursor() as cursor:
            with cursor.copy(f"COPY {staging} ({columns}) FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(self._staged[insert.table])
                for row in rows:
                    copy.write_row(row)
            into, chosen = columns, columns
            if insert.table == "steps":
                into, chosen = f"{columns}, day", f"{columns}, run_day(tenant, run)"
            cursor.execute(f"INSERT INTO {insert.table} ({into}) SELECT {chosen} FROM {staging} ON CONFLICT DO NOTHING")
            kept = cursor.rowcount
            cursor.execute(f"TRUNCATE {staging}")
        return int(kept)

    def put_plain(self, tenant: str, steps: Sequence[Step]) -> int:
        return self.put(STEP, [step_row(tenant, step) for step in steps])

    def _staging(self, insert: Insert) -> str:
        name = f"coming_{insert.table}"
        if insert.table not in self._staged:
            columns = ", ".join(insert.columns)
            self.made.execute(
                f"CREATE TEMP TABLE IF NOT EXISTS {name} AS SELECT {columns} FROM {insert.table} WITH NO DATA"
            )
            described = self.made.execute(f"SELECT {columns} FROM {name}").description or ()
            self._staged[insert.table] = [column.type_code for column in described]
        return name

    def close(self) -> None:
        self.made.close()
