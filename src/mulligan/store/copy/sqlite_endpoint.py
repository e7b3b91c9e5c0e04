"""SQLite as either side of a copy."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mulligan.core.failure import StoreError
from mulligan.store.copy.endpoints import NUMBER, OWN, Row, Table, tenants_of, where_of
from mulligan.store.sqlite import BUSY_MS, SqliteStore, translate_errors
from mulligan.store.tables import APPLICATION, HALF, MIGRATIONS, ORDERED


class SqliteSide:
    """One file. As a source it is read as it is at one moment, while others write."""

    def __init__(self, path: Path, is_source: bool) -> None:
        self.where = os.path.realpath(path)
        self._path = path
        if not _is_half(path):  # made, refused or brought up to date as for everybody
            SqliteStore(path).close()
        with translate_errors(path):
            # What is written while rows are read must not be met by who reads.
            self._reader, self._writer = self._connect(), self._connect()
            self._reader.execute("PRAGMA query_only=ON")
            if is_source:
                self._reader.execute("BEGIN")
                self._one("SELECT count(*) FROM sqlite_schema")  # the moment is now
            if self._one("PRAGMA user_version") != len(MIGRATIONS):
                raise StoreError(
                    f"{path} is an incomplete copy by another mulligan version. Remove it and copy again: rm '{path}'"
                )

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=BUSY_MS / 1000, isolation_level=None)

    def _one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        return self._reader.execute(sql, values).fetchone()[0]

    def tables(self) -> dict[str, Table]:
        names = self._reader.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        )
        return {name: self._table(name) for (name,) in sorted(names)}

    def _table(self, name: str) -> Table:
        columns = self._reader.execute("SELECT name, pk FROM pragma_table_info(?)", (name,)).fetchall()
        key = [column for column, _ in sorted((each for each in columns if each[1]), key=lambda each: int(each[1]))]
        numbers = [NUMBER] if name in ORDERED else []
        return Table(name, tuple(sorted([*numbers, *(column for column, _ in columns)])), tuple(key))

    def tenants(self) -> list[str]:
        return tenants_of(self.tables(), self._one, "?")

    def count(self, table: Table, tenant: str) -> int:
        return int(self._one(f"SELECT count(*) FROM {table.name} WHERE {where_of(table)}", (tenant,)))

    def rows(self, table: Table, tenant: str, order: Sequence[str]) -> Iterator[Row]:
        by = f" ORDER BY {', '.join(order)}" if order else ""
        with translate_errors(self._path):
            yield from self._reader.execute(
                f"SELECT {', '.join(table.columns)} FROM {table.name} WHERE {where_of(table)}{by}", (tenant,)
            )

    def put(self, table: Table, rows: Iterable[Row], gone: Sequence[Row] = ()) -> None:
        columns = ", ".join(table.columns)
        known = " AND ".join(f"{name} IS ?" for name in table.key or table.columns)
        with self._writing() as connection:
            connection.executemany(f"DELETE FROM {table.name} WHERE {known}", gone)
            connection.executemany(
                # Where a number is now another row's, the one that had it is gone, or comes again with a new one.
                f"INSERT OR REPLACE INTO {table.name} ({columns}) VALUES ({', '.join('?' * len(table.columns))})",
                rows,
            )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with translate_errors(self._path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except UnicodeEncodeError as error:
                self._writer.execute("ROLLBACK")
                raise StoreError(f"SQLite cannot store the text {error.object[:40]!a}.") from None
            except BaseException:
                if self._writer.in_transaction:  # a full disk may have ended it already
                    self._writer.execute("ROLLBACK")
                raise

    def note(self, tenant: str) -> str | None:
        row = self._reader.execute("SELECT value FROM meta WHERE tenant = ? AND key = ?", (tenant, OWN)).fetchone()
        return str(row[0]) if row else None

    def set_note(self, tenant: str, note: str) -> None:
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO meta (tenant, key, value) VALUES (?, ?, ?)", (tenant, OWN, note))

    def shut(self) -> None:
        self._writer.execute(f"PRAGMA application_id={HALF}")

    def is_shut(self) -> bool:
        return bool(self._one("PRAGMA application_id") == HALF)

    def release(self) -> None:
        self._writer.execute(f"PRAGMA application_id={APPLICATION}")
        self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


def _is_half(path: Path) -> bool:
    if not path.is_file() or not os.access(path, os.R_OK):
        return False
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_MS / 1000)) as connection:
            return bool(connection.execute("PRAGMA application_id").fetchone()[0] == HALF)
    except sqlite3.Error:  # the store says what is wrong with it
        return False
