"""Removing deleted bytes from the files of PostgreSQL, and searching these files for a text.

A deleted row stays in its page until another one takes its place, and a plain VACUUM only marks the space as free. So
the tables are rewritten with their indexes (`VACUUM FULL`). Statistics have values of columns, so they are computed
again and their table is rewritten, too. The write-ahead log has all rows that were written; a segment that is no longer
needed is renamed and used again with its old content, so these segments are overwritten.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from mulligan.contract.store import FileRewrite, FileSearch, Progress
from mulligan.core.failure import StoreError
from mulligan.store.postgres.pool import Pool, translate_errors
from mulligan.store.postgres.workers import has_workers

READ_CHUNK_BYTES = 8 * 1024 * 1024
"""Bytes of a file that one statement reads."""
REWRITE_WORKERS = (
    "Nothing was rewritten: the rows are on the workers of Citus. Run on each of them, as a superuser: "
    "VACUUM (FULL, ANALYZE); CHECKPOINT; SELECT pg_switch_wal()"
)
UNSEARCHABLE = (
    "archives of the write-ahead log", "backups", "files of replicas", "logs of the server", "free blocks of the disk"
)  # fmt: skip
"""Places that a client of PostgreSQL can neither search nor overwrite."""
_TABLES_SQL = (
    "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant' AND NOT "
    "a.attisdropped WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = %s ORDER BY 1"
)
_FOLDERS_SQL = (
    "SELECT 'base/' || oid FROM pg_database WHERE datname = current_database() UNION ALL "
    "SELECT 'pg_tblspc/' || s || '/' || v || '/' || d.oid FROM pg_database d, pg_ls_dir('pg_tblspc') s, "
    "pg_ls_dir('pg_tblspc/' || s) v WHERE d.datname = current_database() UNION ALL "
    "VALUES ('base/pgsql_tmp'), ('pg_wal'), ('pg_stat'), ('pg_stat_tmp')"
)
_FILES_SQL = (
    "SELECT %(folder)s || '/' || f, s.size FROM pg_ls_dir(%(folder)s, true, false) f, "
    "pg_stat_file(%(folder)s || '/' || f, true) s WHERE NOT s.isdir AND s.size > 0 ORDER BY 1"
)
_LAST_SEGMENT_SQL = "SELECT max(name) FROM pg_ls_waldir() WHERE name ~ '^[0-9A-F]{24}$'"


@contextlib.contextmanager
def _connect(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Yield a session without a time limit for statements."""
    pool = Pool(url, 1)
    try:
        with translate_errors(pool.where), pool.using() as connection:
            if connection.is_pooled:
                raise StoreError(
                    f"{pool.where} is behind a connection pooler, and this needs a session. "
                    "Use the address of PostgreSQL in --store."
                )
            connection.set("statement_timeout", "0")
            yield connection.raw_connection
    finally:
        pool.close()


# Rewriting


def rewrite_files(url: str, progress: Progress | None = None) -> FileRewrite:
    """Remove the bytes of deleted rows from the files of the database, as far as the role may.

    Each table is locked while it is rewritten.
    """
    with _connect(url) as connection:
        if has_workers(connection):
            return FileRewrite(0, False, False, (REWRITE_WORKERS,))
        names = [name for (name,) in connection.execute(_TABLES_SQL, ("r",)).fetchall()]
        is_cleared = _clear_statistics(connection)
        skipped, visible = [], []
        for number, name in enumerate(names):
            if progress is not None:
                progress(number, len(names))
            is_rewritten, dead_count = _rewrite_table(connection, f'"{name}"')
            skipped += [] if is_rewritten else [name]
            visible += [name] if dead_count else []
        for (name,) in connection.execute(_TABLES_SQL, ("p",)).fetchall():
            connection.execute(f'ANALYZE "{name}"')  # it has statistics of its own, about all its partitions
        has_statistics = _rewrite_table(connection, "pg_statistic")[0] and is_cleared
        has_log = _overwrite_log(connection)
        remaining = []
        if skipped:
            remaining.append(
                f"Not rewritten, because they are in use or belong to another role: {', '.join(skipped)}. "
                "Run the same command again, as the owner of the tables."
            )
        if visible:
            remaining.append(
                f"An older transaction still sees deleted rows of: {', '.join(visible)}. End it (pg_stat_activity, "
                "pg_prepared_xacts, pg_replication_slots), and run the same command again."
            )
        if not has_statistics:
            remaining.append("Column statistics were not rewritten. Run the same command with a superuser in --store.")
        if not has_log:
            remaining.append(
                "The write-ahead log was not overwritten. Run the same command with a superuser in --store."
            )
        return FileRewrite(len(names) - len(skipped), has_statistics, has_log, tuple(remaining))


def _clear_statistics(connection: psycopg.Connection[Any]) -> bool:
    """Delete the statistics of all columns, which ANALYZE does not replace if the table is empty.

    Return whether the role may do that.
    """
    columns = (
        "FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid WHERE a.attnum > 0 AND NOT a.attisdropped "
        "AND c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')"
    )
    try:
        connection.execute(
            f"DELETE FROM pg_statistic WHERE (starelid, staattnum) IN (SELECT a.attrelid, a.attnum {columns})"
        )
    except psycopg.errors.InsufficientPrivilege:
        # Version of PostgreSQL in which the owner of a table can delete its statistics; before, only a superuser can.
        if connection.info.server_version < 180_000:
            return False
        try:
            connection.execute(
                "SELECT pg_clear_attribute_stats(current_schema(), c.relname, a.attname, i.inherited) "
                f"{columns.replace('WHERE', 'CROSS JOIN (VALUES (true), (false)) AS i (inherited) WHERE', 1)}"
            )
        except psycopg.errors.InsufficientPrivilege:
            return False
    return True


def _rewrite_table(connection: psycopg.Connection[Any], name: str) -> tuple[bool, int]:
    """Rewrite a table with its indexes and statistics.

    Return whether it was rewritten, and how many dead rows were copied, because an older transaction still sees them.
    """
    details: list[str] = []

    def note(notice: psycopg.errors.Diagnostic) -> None:
        details.append(notice.message_detail or "")

    before = _read_file_number(connection, name)
    connection.add_notice_handler(note)
    try:
        # Without the right to, PostgreSQL skips the table with a warning.
        connection.execute(f"VACUUM (FULL, ANALYZE, VERBOSE) {name}")
    except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
        return False, 0
    finally:
        connection.remove_notice_handler(note)
    # "N dead row versions cannot be removed yet", perhaps in another language.
    counts = [int(match[0]) for detail in details if (match := re.search(r"\d+", detail))]
    return _read_file_number(connection, name) != before, max(counts, default=0)


def _read_file_number(connection: psycopg.Connection[Any], name: str) -> Any:
    return connection.execute("SELECT pg_relation_filenode(to_regclass(%s))", (name,)).fetchone()


def _overwrite_log(connection: psycopg.Connection[Any]) -> bool:
    """Overwrite all segments of the write-ahead log that were written so far. Return whether the role may do that."""
    try:
        # The second checkpoint needs no segment before the switch, and renames them to be used again.
        for sql in ("CHECKPOINT", "SELECT pg_switch_wal()", "CHECKPOINT"):
            connection.execute(sql)
        (last,) = connection.execute(_LAST_SEGMENT_SQL).fetchone() or ("",)
        while connection.execute("SELECT pg_walfile_name(pg_current_wal_lsn()) <= %s", (last,)).fetchone() == (True,):
            # A switch fills the rest of a segment with zeros, but only after a record in it.
            connection.execute("SELECT pg_logical_emit_message(true, 'mulligan', '')")
            connection.execute("SELECT pg_switch_wal()")
        connection.execute("CHECKPOINT")
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


# Searching


def search_files(url: str, needles: Sequence[bytes]) -> FileSearch:
    """Search all files of the database and of the write-ahead log for these bytes. Needs a superuser."""
    with _connect(url) as connection:
        try:
            connection.execute("CHECKPOINT")  # writes all changed pages to their files
            folders = [folder for (folder,) in connection.execute(_FOLDERS_SQL).fetchall()]
            files = [row for folder in folders for row in connection.execute(_FILES_SQL, {"folder": folder}).fetchall()]
            paths = [path for path, size in files if _contains(connection, path, size, needles)]
            matches = [_describe_file(connection, path) for path in paths]
        except psycopg.errors.InsufficientPrivilege:
            reason = "files of PostgreSQL: only a superuser may read them. Run the same command with one in --store"
            return FileSearch(unsearched=(reason, *UNSEARCHABLE))
        workers = ("files of the Citus workers",) if has_workers(connection) else ()
        return FileSearch(len(files), sum(size for _, size in files), tuple(matches), (*workers, *UNSEARCHABLE))


def _contains(connection: psycopg.Connection[Any], path: str, size: int, needles: Sequence[bytes]) -> bool:
    overlap = max(map(len, needles)) - 1
    for offset in range(0, size, READ_CHUNK_BYTES):
        row = connection.execute(
            "SELECT pg_read_binary_file(%s, %s, %s, true)", (path, offset, READ_CHUNK_BYTES + overlap), binary=True
        ).fetchone()
        if row and row[0] and any(needle in row[0] for needle in needles):  # None if the file is gone
            return True
    return False


def _describe_file(connection: psycopg.Connection[Any], path: str) -> str:
    """Return the path of a file, with the table or index whose it is."""
    number = re.fullmatch(r"base/\d+/(\d+)(?:[._]\w+)?", path)
    if number is None:
        return path
    row = connection.execute("SELECT CAST(pg_filenode_relation(0, %s) AS text)", (int(number[1]),)).fetchone()
    return f"{path} ({row[0]})" if row and row[0] else path
