"""The search index of an SQLite store: a file beside it, with the words of each run (FTS5).

The file can be deleted at any time: it is built from the store again. A run enters it once, when it has ended. If
records are deleted from the store, the whole index is cleared, so that no deleted word stays in the file.
"""

from __future__ import annotations

import contextlib
import json
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
VERSION = 4
BUSY_SECONDS = 5.0
MAX_UNFINISHED_RUNS = 1000
"""Runs that are looked at again in an update, the newest."""
BATCHES = 10
"""Batches of runs in one transaction. At its end, FTS5 writes a part of the index: few large ones are merged faster."""
BUFFER_BYTES = 16 << 20
"""Memory in which FTS5 collects the words of a transaction."""
FIRST_COPY = 1 << 40
"""Row ids from here are those of runs that were indexed again, because attempts arrived after their end."""
MAX_LISTED_RUNS = 20_000
"""Indexed runs that are listed once for a search. If more have its words, each page reads them from the index."""
MAX_SELECTED_RUNS = 2000
"""Runs that are looked up by row. If there are more, the runs are read in time order, which finds some soon."""
_TABLES = (
    "CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='ascii')",
    f"INSERT INTO words (words, rank) VALUES ('hashsize', {BUFFER_BYTES})",
    "CREATE TABLE copies (id INTEGER PRIMARY KEY, run INTEGER NOT NULL)",
    # Runs that had not ended when they were read: by their row in the store.
    "CREATE TABLE unfinished (run INTEGER PRIMARY KEY)",
    # `position` is the last row of the store that was read; `runs`, the number of rows up to there.
    "CREATE TABLE progress (position INTEGER NOT NULL, runs INTEGER NOT NULL, erasures INTEGER NOT NULL)",
    "INSERT INTO progress VALUES (0, 0, 0)",
    f"PRAGMA user_version={VERSION}",
)
_SELECT_RUNS = "SELECT rowid, tenant, id, body, stored_at FROM runs WHERE"
_INDEXED_RUNS = (
    f"SELECT CASE WHEN w.rowid < {FIRST_COPY} THEN w.rowid "
    f"ELSE (SELECT c.run FROM {SCHEMA}.copies c WHERE c.id = w.rowid) END FROM {SCHEMA}.words w WHERE words MATCH ?"
)
_IS_LATE = "key >= 'late_run:' AND key < 'late_run;'"
_NEW_RUNS = (
    f"SELECT rowid FROM runs WHERE rowid > (SELECT position FROM {SCHEMA}.progress) "
    f"UNION ALL SELECT run FROM {SCHEMA}.unfinished "
    f"UNION ALL SELECT CAST(substr(key, 10) AS INTEGER) FROM meta WHERE {_IS_LATE}"
)
_LATE_RUNS = f"SELECT tenant, key, value, CAST(substr(key, 10) AS INTEGER) FROM meta WHERE {_IS_LATE} LIMIT ?"
NOTE_LATE_RUN = (
    "INSERT INTO meta (tenant, key, value) SELECT tenant, 'late_run:' || rowid, '1' FROM runs "
    "WHERE tenant = ? AND id = ? ON CONFLICT (tenant, key) DO UPDATE SET value = CAST(value AS INTEGER) + 1"
)
"""Note in the store that a run changed after it was indexed."""
FORGET_LATE_RUN = "DELETE FROM meta WHERE tenant = ? AND key = ? AND value = ?"
"""Remove the note, unless the run has changed again."""
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


def propose_runs(connection: Connection, terms: Sequence[SearchTerm]) -> queries.ProposedRuns:
    """Return the runs that may contain these terms: by the index, or not indexed yet."""
    query = " AND ".join(
        f'("{" ".join(term.words)}"{"" if term.is_phrase else "*"}'
        + (f' OR "{term.value_hash}")' if term.value_hash else ")")
        for term in terms
    )
    indexed, values = _INDEXED_RUNS, (query,)
    rowids = [rowid for (rowid,) in connection.execute(f"{_INDEXED_RUNS} LIMIT ?", (query, MAX_LISTED_RUNS + 1))]
    if len(rowids) <= MAX_LISTED_RUNS:  # the index is asked once, not for each page
        indexed, values = "SELECT value FROM json_each(?)", (json.dumps(rowids),)
    (new_count,) = connection.execute(
        f"SELECT count(*) FROM ({_NEW_RUNS} LIMIT ?)", (queries.MAX_READ_RUNS,)
    ).fetchone()
    return queries.ProposedRuns(
        f"r.rowid IN ({indexed} UNION ALL {_NEW_RUNS})",
        values,
        is_selective=len(rowids) + new_count <= MAX_SELECTED_RUNS,
        max_runs=min(run_texts.MAX_MISSED_RUNS + new_count, queries.MAX_READ_RUNS),
    )


class SearchIndex:
    """Writer of an index. Of several processes, one writes at a time."""

    def __init__(self, store: Path) -> None:
        self.path = index_path(store)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            self.path.chmod(0o600)
            connection.execute("PRAGMA secure_delete=ON")
            connection.execute("PRAGMA cache_spill=OFF")  # writing before the end would block searches
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
                position, count = self._index_new_runs(writer, store, now)
                if not count:
                    self._index_ended_runs(writer, store, now)
            indexed_count += count
            if progress is not None:
                progress(position, max(total, position))
            if not count:
                return indexed_count

    def _index_new_runs(self, writer: sqlite3.Connection, store: Connection, now: int) -> tuple[int, int]:
        """Index some runs that were stored since the last time. Return the position and their number."""
        (position,) = writer.execute("SELECT position FROM progress").fetchone()
        sql = f"{_SELECT_RUNS} rowid > ? AND stored_at <= ? ORDER BY rowid LIMIT ?"
        count, unfinished = 0, []
        settled_at = now - run_texts.SETTLE_MILLISECONDS
        for _ in range(BATCHES):
            rows = store.execute(sql, (position, settled_at, run_texts.INDEX_BATCH_RUNS)).fetchall()
            if not rows:
                break
            unfinished += self._index_rows(writer, store, rows, now)
            position, count = rows[-1][0], count + len(rows)
        # Last: at other statements FTS5 writes what it has collected.
        writer.executemany("INSERT INTO unfinished VALUES (?)", unfinished)
        if count:
            writer.execute("UPDATE progress SET position = ?, runs = runs + ?", (position, count))
        return position, count

    def index_late_runs(self, store: Connection) -> list[tuple[str, str, str]]:
        """Index runs again of which attempts arrived after they were indexed. Return their notes, to be removed."""
        notes = store.execute(_LATE_RUNS, (MAX_UNFINISHED_RUNS,)).fetchall()
        if notes:
            with self._writing() as writer:
                (first,) = writer.execute("SELECT coalesce(max(id) + 1, ?) FROM copies", (FIRST_COPY,)).fetchone()
                copies = [(id, note[3]) for id, note in enumerate(notes, first)]
                for id, rowid in copies:
                    for _, tenant, run, body, _ in store.execute(f"{_SELECT_RUNS} rowid = ?", (rowid,)).fetchall():
                        _insert_words(writer, id, run_texts.read_texts(store, tenant, {run: body})[run])
                writer.executemany("INSERT INTO copies VALUES (?, ?)", copies)
        return [note[:3] for note in notes]

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
                _insert_words(writer, rowids[tenant, run], text)
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


def _insert_words(writer: sqlite3.Connection, rowid: int | None, text: str) -> None:
    text = run_texts.remove_unsearched(text)
    words = text.lower() if text.isascii() else " ".join(split_words(text))
    writer.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (rowid, words))


def _drop_tables(connection: sqlite3.Connection) -> None:
    for name in ("words", "copies", "unfinished", "progress"):
        connection.execute(f"DROP TABLE IF EXISTS {name}")
