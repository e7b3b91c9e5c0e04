"""The search index of an SQLite store: a file beside it, with the words of each run (FTS5).

The file can be deleted at any time: it is built from the store again. A run enters it once, when it has ended. If
records are deleted from the store, the whole index is cleared, so that no deleted word stays in the file.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mulligan.contract.search_terms import SearchTerm, split_words
from mulligan.contract.store import Progress
from mulligan.store import queries, run_texts
from mulligan.store.connection import Connection

SUFFIX = ".search"
SCHEMA = "search_index"
"""The name of the index's database in a connection to the store."""
VERSION = 1
BUSY_SECONDS = 5.0
MAX_UNFINISHED_RUNS = 1000
"""Runs that are looked at again in an update, the newest."""
_TABLES = (
    "CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='ascii')",
    # Runs that had not ended when they were read: by their row in the store.
    "CREATE TABLE unfinished (run INTEGER PRIMARY KEY)",
    # `position` is the last row of the store that was read; `runs`, the number of rows up to there.
    "CREATE TABLE progress (position INTEGER NOT NULL, runs INTEGER NOT NULL, erasures INTEGER NOT NULL)",
    "INSERT INTO progress VALUES (0, 0, 0)",
    f"PRAGMA user_version={VERSION}",
)
_SELECT_RUNS = "SELECT rowid, tenant, id, body, stored_at FROM runs WHERE"
_COUNT_ERASURES = "SELECT coalesce(sum(CAST(value AS INTEGER)), 0) FROM meta WHERE key = 'erasures'"


def index_path(store: Path) -> Path:
    return store.with_name(store.name + SUFFIX)


def attach(connection: sqlite3.Connection, store: Path) -> bool:
    """Make the index readable by a connection to the store. Return False if there is none."""
    if any(name == SCHEMA for _, name, _ in connection.execute("PRAGMA database_list")):
        return True
    path = index_path(store)
    if not path.exists():
        return False
    try:
        connection.execute(f"ATTACH ? AS {SCHEMA}", (str(path),))
        (version,) = connection.execute(f"PRAGMA {SCHEMA}.user_version").fetchone()
    except sqlite3.DatabaseError:  # damaged: the next update builds it again
        return False
    if version != VERSION:
        connection.execute(f"DETACH {SCHEMA}")
    return bool(version == VERSION)


def propose_runs(terms: Sequence[SearchTerm]) -> queries.Condition:
    """Return the condition of runs `r` that may contain these terms: by the index, or not indexed yet."""
    query = " AND ".join(f'"{" ".join(term.words)}"{"" if term.is_phrase else "*"}' for term in terms)
    condition = (
        f"(r.rowid IN (SELECT rowid FROM {SCHEMA}.words WHERE words MATCH ?) "
        f"OR r.rowid > (SELECT position FROM {SCHEMA}.progress) "
        f"OR r.rowid IN (SELECT run FROM {SCHEMA}.unfinished))"
    )
    return condition, (query,)


class SearchIndex:
    """Writer of an index. Of several processes, one writes at a time."""

    def __init__(self, store: Path) -> None:
        self.path = index_path(store)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            self.path.chmod(0o600)
            connection.execute("PRAGMA secure_delete=ON")
            connection.execute("BEGIN IMMEDIATE")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != VERSION:
                _drop_tables(connection)
                for statement in _TABLES:
                    connection.execute(statement)
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def update(self, store: Connection, now: int, progress: Progress | None = None) -> int:
        """Index the runs that ended since the last update. Return their number."""
        try:
            self._clear_if_outdated(store)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked, read-only, a full disk
                raise
            self.path.unlink()  # damaged
        (total,) = store.execute("SELECT coalesce(max(rowid), 0) FROM runs").fetchone()
        indexed_count = 0
        while True:
            with self._writing() as writer:
                position, count = self._index_batch(writer, store, now)
            indexed_count += count
            if progress is not None:
                progress(position, max(total, position))
            if not count:
                return indexed_count

    def _index_batch(self, writer: sqlite3.Connection, store: Connection, now: int) -> tuple[int, int]:
        """Index some runs: new ones, then those that have ended since. Return the position and the number."""
        (position,) = writer.execute("SELECT position FROM progress").fetchone()
        sql = f"{_SELECT_RUNS} rowid > ? AND stored_at <= ? ORDER BY rowid LIMIT ?"
        new_rows = store.execute(
            sql, (position, now - run_texts.SETTLE_MILLISECONDS, run_texts.INDEX_BATCH_RUNS)
        ).fetchall()
        if not new_rows:
            self._index_ended_runs(writer, store, now)
            return position, 0
        unfinished = self._index_rows(writer, store, new_rows, now)
        writer.executemany("INSERT INTO unfinished VALUES (?)", unfinished)
        position = new_rows[-1][0]
        writer.execute("UPDATE progress SET position = ?, runs = runs + ?", (position, len(new_rows)))
        return position, len(new_rows)

    def _index_ended_runs(self, writer: sqlite3.Connection, store: Connection, now: int) -> None:
        """Index the runs that had not ended when they were read, and have now."""
        sql = "SELECT run FROM unfinished ORDER BY run DESC LIMIT ?"
        rowids = writer.execute(sql, (MAX_UNFINISHED_RUNS,)).fetchall()
        rows = store.execute(
            f"{_SELECT_RUNS} rowid IN ({', '.join('?' * len(rowids))})", [rowid for (rowid,) in rowids]
        ).fetchall()
        unfinished = self._index_rows(writer, store, rows, now)
        writer.executemany("DELETE FROM unfinished WHERE run = ?", set(rowids) - set(unfinished))

    def _index_rows(
        self, writer: sqlite3.Connection, store: Connection, rows: Sequence[tuple[Any, ...]], now: int
    ) -> list[tuple[int]]:
        """Index those of the runs that have ended. Return the row ids of the others."""
        bodies: dict[str, dict[str, bytes]] = {}
        rowids, unfinished = {}, []
        for rowid, tenant, run, body, stored_at in rows:
            if run_texts.is_complete(body, stored_at, now):
                bodies.setdefault(tenant, {})[run] = body
                rowids[tenant, run] = rowid
            else:
                unfinished.append((rowid,))
        for tenant in bodies:
            for run, text in run_texts.read_texts(store, tenant, bodies[tenant]).items():
                words = text.lower() if text.isascii() else " ".join(split_words(text))
                writer.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (rowids[tenant, run], words))
        return unfinished

    def _clear_if_outdated(self, store: Connection) -> None:
        """Clear the index if records were deleted or changed since it was built."""
        with self._writing() as writer:
            position, run_count, erasures = writer.execute("SELECT position, runs, erasures FROM progress").fetchone()
        (stored_count,) = store.execute("SELECT count(*) FROM runs WHERE rowid <= ?", (position,)).fetchone()
        (stored_erasures,) = store.execute(_COUNT_ERASURES).fetchone()
        if (stored_count, stored_erasures) != (run_count, erasures):
            self.clear(stored_erasures)

    def clear(self, erasures: int = 0) -> None:
        """Remove all words, also from the file's free space."""
        if not self.path.exists():
            return
        with self._writing() as writer:
            _drop_tables(writer)
            for statement in _TABLES:
                writer.execute(statement)
            writer.execute("UPDATE progress SET erasures = ?", (erasures,))
        with contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as connection:
            connection.execute("VACUUM")


def _drop_tables(connection: sqlite3.Connection) -> None:
    for name in ("words", "unfinished", "progress"):
        connection.execute(f"DROP TABLE IF EXISTS {name}")
