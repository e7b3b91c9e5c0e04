"""A filled SQLite store as one in PostgreSQL, for the benchmarks: every row by COPY, indices afterwards.

`server()` is the PostgreSQL of the tests, durable and gone with the process, or the one whose URL is given; with a
folder its data stays there. Stores are a plain user's, as they should be: row-level security holds. `Clock` counts the
CPU of both sides.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import psycopg

from mulligan.contract.counters import DAY
from mulligan.store.postgres import postgres_tables
from mulligan.store.postgres.postgres_store import PostgresStore
from mulligan.store.sqlite import SqliteStore
from mulligan.store.tables import ORDERED

LARGE = {"shared_buffers": "512MB", "maintenance_work_mem": "256MB", "max_wal_size": "4GB"}


@contextlib.contextmanager
def server(given: str, folder: Path | None = None) -> Iterator[str]:
    """`given` is a URL, or just `postgresql`: then one is started. In a folder that is named its data stays."""
    if "://" in given:
        yield given
        return
    import postgres  # type: ignore[import-not-found]  # of the tests

    with postgres.Server(durable=True, folder=folder, **LARGE) as own:
        yield own.url


@contextlib.contextmanager
def filled(
    where: str, folder: Path | None, path: Path, now: int, show: Callable[[str], None] = lambda text: None
) -> Iterator[PostgresStore]:
    """The store to ask, with all of this file: in a database of its own. With a folder it stays, and is found again."""
    import postgres

    name = f"mulligan_{path.stem}"
    with server(where, folder / "postgresql" if folder else None) as given:
        with psycopg.connect(given, autocommit=True) as made:
            is_there = made.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
            made.execute(f'DROP DATABASE IF EXISTS "{name}_part" WITH (FORCE)')
        url = postgres.named(postgres.plain(given), name)
        if is_there is None:
            part = postgres.make_database(given, f"{name}_part")
            copy(path, part, postgres.named(given, f"{name}_part"), now, show)
            with psycopg.connect(given, autocommit=True) as made:
                made.execute(f'ALTER DATABASE "{name}_part" RENAME TO "{name}"')
        with contextlib.closing(PostgresStore(url, clock=lambda: now)) as store:
            yield store
        if folder is None:
            with psycopg.connect(given, autocommit=True) as made:
                made.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def copy(path: Path, url: str, owner: str, now: int, show: Callable[[str], None]) -> None:
    """All of the file, into a database that is empty. `owner` is its URL for one whom row-level security lets COPY."""
    SqliteStore(path).close()  # brought up to date, where an earlier version made it
    PostgresStore(url, clock=lambda: now).close()
    with contextlib.closing(sqlite3.connect(path)) as source, psycopg.connect(owner, autocommit=True) as made:
        made.execute("SET statement_timeout = 0")
        indices = made.execute(
            "SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) FROM pg_index i JOIN pg_class c "
            "ON c.oid = i.indexrelid WHERE c.relnamespace = current_schema()::regnamespace AND NOT i.indisprimary "
            "AND NOT c.relispartition"
        ).fetchall()
        for name, _ in indices:
            made.execute(f"DROP INDEX {name}")
        made.execute(f"SET ROLE {urlsplit(url).username}")
        for (day,) in source.execute(f"SELECT DISTINCT stored_at / {DAY} FROM runs").fetchall():
            made.execute(
                f"CREATE TABLE IF NOT EXISTS steps_{day} PARTITION OF steps FOR VALUES FROM ({day}) TO ({day + 1})"
            )
        postgres_tables.enable_row_security(made)
        made.execute("RESET ROLE")
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
        made.execute("CHECKPOINT")  # what is still to be written is not written while others are measured


def _copy(source: sqlite3.Connection, made: psycopg.Connection, table: str) -> None:
    names = [name for _, name, *_ in source.execute(f"PRAGMA table_info({table})")]
    names += ["rowid"] if table in ORDERED else []
    sql = f"SELECT {', '.join(names)} FROM {table}"
    if table == "steps":
        columns = ", ".join(f"s.{name}" for name in names)
        sql = f"SELECT {columns}, r.stored_at / {DAY} FROM steps s JOIN runs r ON r.tenant = s.tenant AND r.id = s.run"
        names.append("day")
    described = made.execute(f"SELECT {', '.join(names)} FROM {table} LIMIT 0").description or ()
    with (
        made.cursor() as cursor,
        cursor.copy(f"COPY {table} ({', '.join(names)}) FROM STDIN (FORMAT BINARY)") as copy,
    ):
        copy.set_types([column.type_code for column in described])
        for row in source.execute(sql):
            copy.write_row(row)


class Clock:
    """Seconds of CPU: of this thread, and of the processes of the server that work for this store."""

    def __init__(self, store: PostgresStore) -> None:
        with psycopg.connect(store._pool.url.database_url) as made:
            rows = made.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
                "AND backend_type = 'client backend'"
            ).fetchall()
        self._spent = [open(f"/proc/{pid}/schedstat", "rb", buffering=0) for (pid,) in rows]  # noqa: SIM115
        if not self._spent:
            raise SystemExit("error: the server was asked nothing yet, or is elsewhere: its CPU is not known.")

    def __call__(self) -> float:
        spent = 0
        for file in self._spent:
            spent += int(os.pread(file.fileno(), 64, 0).split()[0])
        return time.thread_time() + spent / 1e9
