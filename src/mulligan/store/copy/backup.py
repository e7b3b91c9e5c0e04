"""A copy of a database as it is at one moment, while others write: under its name only when it is whole.

Until then it has another name, and a lock that goes with its process. What a killed one left is removed by the next.
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

from mulligan.core.failure import StoreError
from mulligan.record.journal import try_lock
from mulligan.store.base import Progress

PART = ".mulligan-part-"
"""In the name of a copy that is not whole."""
STALE = 5.0
"""Seconds: a part that was touched since may be one that is just begun and not locked yet."""
PAGES = 2000
"""Pages that are copied at a time."""
_BESIDE = ("", "-journal", "-wal", "-shm")


def copy(connection: sqlite3.Connection, to: Path, progress: Progress | None, replaces: bool = False) -> None:
    """Copies the database, holds the copy against it, and puts it in its place."""
    if to.exists() and not replaces:
        raise StoreError(f"{to} already exists. Choose another file, or move it away.")
    (_, _, source) = connection.execute("PRAGMA database_list").fetchone()
    if to.exists() and to.samefile(source):
        raise StoreError(f"{to} is the store itself. Choose another file.")
    to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _sweep(to.parent)
    with _part(to) as part, _one_moment(connection):
        held = _held(connection)
        with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as made:
            connection.backup(made, pages=PAGES, progress=build_page_callback(progress), sleep=0.01)
            (mode,) = made.execute("PRAGMA journal_mode=DELETE").fetchone()  # one file, complete by itself
            (verdict,) = made.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict == "ok" and (mode != "delete" or _held(made) != held):
                verdict = "records are missing"
            if verdict != "ok":
                raise StoreError(f"The copy is damaged ({verdict}) and was removed. Check the store: mulligan doctor")
        for end in _BESIDE[1:]:  # what belonged to another database under this name
            to.with_name(to.name + end).unlink(missing_ok=True)
        os.replace(part, to)


@contextlib.contextmanager
def _part(to: Path) -> Iterator[Path]:
    """A file that is locked as long as this process lives, and gone when it is not needed."""
    part = to.with_name(f"{to.name}{PART}{os.getpid()}-{secrets.token_hex(3)}")
    lock = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        try_lock(lock)
        yield part
    finally:
        os.close(lock)
        _remove(part)


@contextlib.contextmanager
def _one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold one read transaction: without it, every write by another process would restart the copy."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def _held(connection: sqlite3.Connection) -> tuple[Any, ...]:
    """What a whole copy has in common with what it is of: its schema, and how much is in it."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (runs,) = connection.execute("SELECT count(*) FROM runs").fetchone()
    (last,) = connection.execute("SELECT max(rowid) FROM steps").fetchone()
    return version, runs, last


def _sweep(folder: Path) -> None:
    """Removes what processes left that were killed while they copied."""
    for part in folder.glob(f"*{PART}*"):
        with contextlib.suppress(OSError):
            if part.name.endswith(_BESIDE[1:]) or time.time() - part.stat().st_mtime < STALE:
                continue
            lock = os.open(part, os.O_RDWR)
            try:
                if try_lock(lock):
                    _remove(part)
            finally:
                os.close(lock)


def _remove(part: Path) -> None:
    for end in _BESIDE:
        part.with_name(part.name + end).unlink(missing_ok=True)


def build_page_callback(told: Progress | None) -> Any:
    def tell(status: int, left: int, total: int) -> None:
        if told is not None:
            told(total - left, total)

    return tell
