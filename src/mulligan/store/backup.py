"""Backup of an SQLite store: a snapshot taken while others write, which gets its name only when it is complete.

Until then it has a temporary name and a lock that its process holds. The next backup removes what a killed one left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mulligan.contract.store import Progress
from mulligan.core.failure import StoreError
from mulligan.journal import try_lock

PARTIAL_INFIX = ".mulligan-part-"
"""Part of the name of an incomplete backup."""
MIN_STALE_SECONDS = 5.0
"""An incomplete backup that was changed more recently may not be locked yet."""
_FILE_SUFFIXES = ("", "-journal", "-wal", "-shm")


def back_up(connection: sqlite3.Connection, to: Path, progress: Progress | None, replaces: bool = False) -> None:
    """Copy the database to a file, check the copy, and give it its name."""
    if to.exists() and not replaces:
        raise StoreError(f"{to} already exists. Choose another file, or move it away.")
    to = to.resolve()  # a symbolic link stays a link
    if to.exists() and not to.is_file():
        raise StoreError(f"{to} is not a regular file. Choose another file.")
    (_, _, source) = connection.execute("PRAGMA database_list").fetchone()
    if to.exists() and to.samefile(source):
        raise StoreError(f"{to} is the store itself. Choose another file.")
    to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _remove_stale_files(to.parent)

    def report(status: int, remaining: int, total: int) -> None:
        if progress is not None:
            progress(total - remaining, total)

    with _partial_file(to) as partial, contextlib.ExitStack() as stack:
        # One read transaction: without it, every write by another process would restart the copy.
        connection.execute("BEGIN")
        stack.callback(connection.execute, "ROLLBACK")
        contents = _summarize(connection)
        with contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as copy:
            connection.backup(copy, pages=2000, progress=report, sleep=0.01)
            (mode,) = copy.execute("PRAGMA journal_mode=DELETE").fetchone()  # one file, complete by itself
            (check_result,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
            if check_result == "ok" and (mode != "delete" or _summarize(copy) != contents):
                check_result = "records are missing"
            if check_result != "ok":
                raise StoreError(
                    f"The copy is damaged ({check_result}) and was removed. Check the store: mulligan doctor"
                )
        for suffix in _FILE_SUFFIXES[1:]:  # they belong to the replaced database
            to.with_name(to.name + suffix).unlink(missing_ok=True)
        os.replace(partial, to)


@contextlib.contextmanager
def _partial_file(to: Path) -> Iterator[Path]:
    """Create a temporary file, locked while this process lives, and remove it at the end."""
    partial = to.with_name(f"{to.name}{PARTIAL_INFIX}{os.getpid()}-{secrets.token_hex(3)}")
    lock = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        try_lock(lock)
        yield partial
    finally:
        os.close(lock)
        _remove(partial)


def _summarize(connection: sqlite3.Connection) -> tuple[Any, ...]:
    """Return facts that a complete copy shares with its source: schema version, runs and last step."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (runs,) = connection.execute("SELECT count(*) FROM runs").fetchone()
    (last,) = connection.execute("SELECT max(rowid) FROM steps").fetchone()
    return version, runs, last


def _remove_stale_files(folder: Path) -> None:
    """Remove incomplete backups of processes that were killed."""
    for partial in folder.glob(f"*{PARTIAL_INFIX}*"):
        with contextlib.suppress(OSError):
            is_new = time.time() - partial.stat().st_mtime < MIN_STALE_SECONDS
            if is_new or partial.name.endswith(_FILE_SUFFIXES[1:]):
                continue
            lock = os.open(partial, os.O_RDWR)
            try:
                if try_lock(lock):
                    _remove(partial)
            finally:
                os.close(lock)


def _remove(partial: Path) -> None:
    for suffix in _FILE_SUFFIXES:
        partial.with_name(partial.name + suffix).unlink(missing_ok=True)
