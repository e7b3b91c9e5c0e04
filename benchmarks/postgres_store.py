"""A filled SQLite store as one in PostgreSQL, for the benchmarks: every row by COPY, indices afterwards.

`server()` is the PostgreSQL of the tests, durable and gone with the process, or the one whose URL is given.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import psycopg

from mulligan.figures import DAY
from mulligan.remember.postgres.store import PostgresStore
from mulligan.remember.tables import ORDERED


@contextlib.contextmanager
def server(given: str) -> Iterator[str]:
    """`given` is a URL, or just `postgresql`: then one is started."""
    if "://" in given:
        yield given
        return
    import postgres  # type: ignore[import-not-found]  # of the tests

    with postgres.Server(durable=True, shared_buffers="512MB", maintenance_work_mem="256MB", max_wal_size="4GB") as own:
        yield own.url


def copied(path: Path, url: str, now: int, show: Callable[[str], None] = lambda text: None) -> PostgresStore:
    """All of the file, in a database that is empty; the store to ask."""
    PostgresStore(url, clock=lambda: now).close()
    with contextlib.closing(sqlite3.connect(path)) as source, psycopg.connect(url, autocommit=True) as made:
        made.execute("SET statement_timeout = 0")
        indices = made.execute(
            "SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) FROM pg_index i JOIN pg_class c "
            "ON c.oid = i.indexrelid WHERE c.relnamespace = current_schema()::regnamespace AND NOT i.indisprimary "
            "AND NOT c.relispartition"
        ).fetchall()
        for name, _ in indices:
            made.execute(f"DROP INDEX {name}")
        for (day,) in source.execute(f"SELECT DISTINCT kept / {DAY} FROM runs"):
            made.execute(
                f"CREATE TABLE IF NOT EXISTS steps_{day} PARTITION OF steps FOR VALUES FROM ({day}) TO ({day + 1})"
            )
        tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"
        for (table,) in source.execute(tables).fetchall():
            show(f"  {table} to PostgreSQL")
            _copy(source, made, table)
        for table in ORDERED:
            made.execute(
                f"SELECT setval(pg_get_serial_sequence('{table}', 'rowid'), (SELECT max(rowid) + 1 FROM {table}))"
            )
        show("  indices of PostgreSQL")
        for _, definition in indices:
            made.execute(definition.replace(" ON ONLY ", " ON "))
        made.execute("VACUUM ANALYZE")
    return PostgresStore(url, clock=lambda: now)


def _copy(source: sqlite3.Connection, made: psycopg.Connection, table: str) -> None:
    names = [name for _, name, *_ in source.execute(f"PRAGMA table_info({table})")]
    names += ["rowid"] if table in ORDERED else []
    sql = f"SELECT {', '.join(names)} FROM {table}"
    if table == "steps":
        columns = ", ".join(f"s.{name}" for name in names)
        sql = f"SELECT {columns}, r.kept / {DAY} FROM steps s JOIN runs r ON r.tenant = s.tenant AND r.id = s.run"
        names.append("day")
    described = made.execute(f"SELECT {', '.join(names)} FROM {table} LIMIT 0").description or ()
    with (
        made.cursor() as cursor,
        cursor.copy(f"COPY {table} ({', '.join(names)}) FROM STDIN (FORMAT BINARY)") as copy,
    ):
        copy.set_types([column.type_code for column in described])
        for row in source.execute(sql):
            copy.write_row(row)
