"""SQLite store: one writer, on the recorder's thread, and one read connection per thread."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mulligan import forks
from mulligan.failure import StoreError
from mulligan.records import History, encode_into
from mulligan.remember import audit, candidates
from mulligan.remember.bodies import PlainRow
from mulligan.remember.connection import Insert, Lookup
from mulligan.remember.database import DatabaseStore
from mulligan.remember.network import remote
from mulligan.remember.store import LOCAL, Forget, Forgotten, Health, Progress, Pruned, Retention, journals_of, now
from mulligan.remember.tables import APPLICATION, HALF, MIGRATIONS, PACKED_AT, REPACKED_AT

T = TypeVar("T")

BUSY_MS = 5000
WAIT_MS = 10
MAPPED = 2**31 - 2**16
"""Limit of the memory-mapped part of the file for readers, the maximum of SQLite. Copying pages is ten times slower."""
PAGES = 2000
"""Free pages that are released at a time."""
PATIENCE = 5.0
"""Seconds to wait until no reader uses the write-ahead log."""


class SqliteConnection(sqlite3.Connection):
    """SQLite connection that implements `connection.Connection`."""

    def stream(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        return self.execute(sql, values)

    def put(self, insert: Insert, rows: Sequence[tuple[Any, ...]]) -> int:
        before = self.total_changes
        for some in self._portions(rows, len(insert.columns)):
            self.execute(_many(insert, len(some)), [value for row in some for value in row])
        return self.total_changes - before

    def look_up(self, lookup: Lookup, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Look up keys one by one, which is as fast for a few; in batches if they differ in the last column only."""
        if len(keys) < FEW or lookup.keys[-1].endswith(">=") or len({key[:-1] for key in keys}) > 1:
            return [(*key, *row) for key in keys for row in self.execute(lookup.one, key)]
        found: list[tuple[Any, ...]] = []
        same = keys[0][:-1]
        for some in self._portions([key[-1] for key in keys], 1):
            found += [(*same, *row) for row in self.execute(_together(lookup, len(some)), (*same, *some))]
        return found

    def put_plain(self, tenant: str, rows: Iterable[PlainRow]) -> int:
        """Insert successful steps. Run and name are passed once per statement if all its rows share them."""
        before = self.total_changes
        body = bytearray()
        following = iter(rows)
        while left := list(itertools.islice(following, SIZES[1])):  # bounds memory: large bodies are copied
            for some in self._portions(left, 5):
                is_alike = len({row[0] for row in some}) == len({row[2] for row in some}) == 1
                given: list[Any] = [tenant]
                # Pass a bytearray: for bytes, the driver first searches for an adapter.
                if is_alike:
                    given += (some[0][0], some[0][2])
                    for _, seq, _, started, rest in some:
                        encode_into(rest, body)
                        given += (seq, started, body[:])
                else:
                    for run, seq, name, started, rest in some:
                        encode_into(rest, body)
                        given += (run, seq, name, started, body[:])
                self.execute(_plain(len(some), is_alike), given)
        return self.total_changes - before

    def _portions(self, rows: Sequence[T], values: int) -> Iterator[Sequence[T]]:
        """Split rows into the largest possible batches. Few batch sizes keep the statements in the statement cache."""
        start = 0
        while start < len(rows):
            left = len(rows) - start
            size = next(size for size in SIZES if size <= left and (size == 1 or size * values <= self._most_values))
            yield rows[start : start + size]
            start += size

    @functools.cached_property
    def _most_values(self) -> int:
        """The maximum number of values in a statement, with a small reserve."""
        return self.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) - 10


SIZES = (500, 150, 25, 8, 3, 1)
"""Rows per statement. Each statement releases the GIL, and a CPU-bound host returns it only after five milliseconds."""
FEW = 10
"""With fewer keys, each is looked up separately."""


@functools.cache
def _many(insert: Insert, count: int) -> str:
    return insert.many(count)


@functools.cache
def _plain(size: int, is_alike: bool) -> str:
    """Build the statement that inserts successful steps; `is_uniform` if all share one run and one name."""
    first, own = (4, 3) if is_alike else (2, 5)
    rows = []
    for at in range(first, first + own * size, own):
        run, seq, name, rest = ("?2", at, "?3", at + 1) if is_alike else (f"?{at}", at + 1, f"?{at + 2}", at + 3)
        rows.append(f"(?1, {run}, ?{seq}, ?{seq}, {name}, 'success', NULL, NULL, ?{rest}, ?{rest + 1})")
    return f"INSERT OR IGNORE INTO steps VALUES {', '.join(rows)}"


@functools.cache
def _together(lookup: Lookup, count: int) -> str:
    columns = ", ".join((lookup.keys[-1], *lookup.columns))
    where = " AND ".join(f"{key} = ?" for key in lookup.keys[:-1])
    return f"SELECT {columns} FROM {lookup.table} WHERE {where} AND {lookup.keys[-1]} IN ({', '.join('?' * count)})"


class _Connection:
    """A lazily opened connection that one thread uses at a time."""

    def __init__(self, connect: Callable[[], SqliteConnection], *setup: str) -> None:
        self.lock = threading.Lock()
        self._connect = connect
        self._setup = setup
        self._made: SqliteConnection | None = None

    def __enter__(self) -> SqliteConnection:
        self.lock.acquire()
        try:
            if self._made is None:
                self._made = self._connect()
                for statement in self._setup:
                    self._made.execute(statement)
            return self._made
        except BaseException:
            self.close()
            self.lock.release()
            raise

    def __exit__(self, *raised: object) -> None:
        self.lock.release()

    def close(self) -> None:
        if self._made is not None:
            self._made.close()
            self._made = None


class SqliteStore(DatabaseStore):
    """Store in one SQLite file, which is created with its folder if missing."""

    def __init__(
        self, path: Path, clock: Callable[[], int] = now, fsync: bool = False, progress: Progress | None = None
    ) -> None:
        """`progress` is called while a store of an earlier version is migrated."""
        super().__init__(clock)
        self.path = path
        self._threads = threading.local()
        # A commit survives a crash of the process. With `fsync` it also survives a crash of the machine, but waits for
        # the disk.
        lasting = ("PRAGMA synchronous=FULL", "PRAGMA fullfsync=ON") if fsync else ("PRAGMA synchronous=NORMAL",)
        self._writer = _Connection(self._connect, *lasting, "PRAGMA secure_delete=ON")
        self._readers: list[_Connection] = []
        self._adding = threading.Lock()
        """Held while a reader is added, and during a fork."""
        self._is_closed = False
        if sort := remote(path):
            raise StoreError(
                f"{path} is on a network file system ({sort}), where locks may not hold and a store would be damaged. "
                "Set MULLIGAN_HOME to a folder of this machine."
            )
        _stores.add(self)  # before a connection exists that a forked child could inherit
        with told(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make(path)
            with self._writer.lock:
                _refuse(path)
            with self._writer as writer:
                _prepare(writer, path, progress)

    def _connect(self) -> SqliteConnection:
        if self._is_closed:
            raise sqlite3.ProgrammingError("it was closed")
        connection = sqlite3.connect(
            self.path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False, factory=SqliteConnection
        )
        connection.create_function("folded", 1, str.casefold, deterministic=True)
        return connection

    @contextlib.contextmanager
    def _reading(self, tenant: str) -> Iterator[SqliteConnection]:
        reader: _Connection | None = getattr(self._threads, "reader", None)
        if reader is None:
            reader = self._threads.reader = _Connection(
                self._connect, "PRAGMA query_only=ON", f"PRAGMA mmap_size={MAPPED}"
            )
            with self._adding:
                self._readers.append(reader)
        with told(self.path), reader as connection:
            yield connection

    @contextlib.contextmanager
    def _writing(self, *tenants: str) -> Iterator[SqliteConnection]:
        with told(self.path), self._writer as writer:
            writer.execute("BEGIN IMMEDIATE")
            try:
                (version,) = writer.execute("PRAGMA data_version").fetchone()
                self._ledger.begin(writer, version)
                yield writer
                writer.execute("COMMIT")
            except BaseException:
                self._ledger.let_go()
                if writer.in_transaction:  # a full disk may have ended the transaction
                    writer.execute("ROLLBACK")
                raise

    def prune(
        self, tenant: str, policy: Retention, now: int, dry_run: bool = False, progress: Progress | None = None
    ) -> Pruned:
        from mulligan.remember import pruning  # rarely needed, and hooks must start fast

        round = pruning.Pruning(self._writing, functools.partial(self._reading, tenant), _Space(), tenant, policy, now)
        if dry_run:
            return round.rehearse(progress)
        pruned = round.perform(progress)
        with self._writing(tenant) as writer:  # pruning itself uses many transactions
            if pruned.runs or pruned.sampled:
                told_of = audit.counted(runs=pruned.runs, steps=pruned.steps + pruned.sampled)
                self._note(writer, tenant, "prune", told=told_of)
        with told(self.path), self._writer as writer:
            self._ledger.let_go()
            _give_back(writer)
        return pruned

    def forget(self, tenant: str, what: Forget) -> Forgotten:
        from mulligan.remember import forgetting, upkeep  # rarely needed, and hooks must start fast
        from mulligan.remember.recording.scrubbing import scrub

        forgetting.check(what)
        with self._writing(tenant) as writer:
            work = upkeep.Forgetting(writer, self._ledger, tenant, what)
            forgotten = work.perform()
            self._note(writer, tenant, f"forget.{forgetting.sort(what)}", told=upkeep.told(forgotten))
        with told(self.path), self._writer as writer:
            _wipe(writer)
        scrub(journals_of(self.path), what, work.gone)
        return forgotten

    def erase(self, tenant: str) -> int:
        with self._writing(tenant) as writer:
            self._ledger.let_go()
            erased = _erase(writer, tenant)
            if erased:
                self._note(writer, tenant, "tenant.erase", told=audit.counted(rows=erased))
        with told(self.path), self._writer as writer:
            _wipe(writer)
        return erased

    def backup(self, to: Path, progress: Progress | None = None, replaces: bool = False) -> Health:
        with told(to), self._reading(LOCAL) as connection:
            from mulligan.remember.moving import copying  # rarely needed, and hooks must start fast

            copying.copy(connection, to, progress, replaces)
        copy = SqliteStore(to)
        try:
            return copy.health(LOCAL)
        finally:
            copy.close()

    def health(self, tenant: str) -> Health:
        (verdict,) = self._read(tenant, "PRAGMA quick_check(1)")[0]
        ((runs,),) = self._read(tenant, "SELECT count(*) FROM runs WHERE tenant = ?", (tenant,))
        ((steps,),) = self._read(tenant, "SELECT count(*) FROM steps WHERE tenant = ?", (tenant,))
        sound = verdict == "ok"
        return Health(where=str(self.path), sound=sound, runs=runs, steps=steps, note="" if sound else str(verdict))

    def close(self) -> None:
        self._is_closed = True
        for connection in (self._writer, *self._readers):
            with connection.lock:
                connection.close()

    def let_go(self) -> list[threading.Lock]:
        """Close all connections before a fork and return the held locks: SQLite's file locks do not survive a fork."""
        # The writer first: a thread that writes may also read, and then adds a reader.
        held = [self._writer.lock, self._adding]
        for lock in held:
            lock.acquire()
        self._writer.close()
        for reader in self._readers:
            reader.lock.acquire()
            held.append(reader.lock)
            reader.close()
        return held


def _erase(writer: sqlite3.Connection, tenant: str) -> int:
    """Delete all rows of a tenant from every table except the audit log. Return their number."""
    tables = writer.execute(
        "SELECT t.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c ON c.name = 'tenant' "
        "WHERE t.type = 'table' AND t.name <> 'audit'"
    ).fetchall()
    return sum(writer.execute(f'DELETE FROM "{table}" WHERE tenant = ?', (tenant,)).rowcount for (table,) in tables)


def _wipe(writer: sqlite3.Connection) -> bool:
    """Copy the write-ahead log into the file and truncate it. Return whether no reader prevented that."""
    deadline = time.monotonic() + PATIENCE
    while True:
        busy, _, _ = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if not busy or time.monotonic() > deadline:
            return not busy
        time.sleep(0.05)


def _give_back(writer: sqlite3.Connection) -> None:
    """Return free pages to the file system in batches, outside of a transaction."""
    (left,) = writer.execute("PRAGMA freelist_count").fetchone()
    while left:
        before = left
        # Use executescript: execute() would free a single page.
        writer.executescript(f"PRAGMA incremental_vacuum({PAGES})")
        (left,) = writer.execute("PRAGMA freelist_count").fetchone()
        if left >= before:
            return


class _Space:
    """Size of an SQLite file, from its page counts."""

    def size(self, connection: sqlite3.Connection) -> int:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        return int(pages) * _page(connection)

    def used(self, connection: sqlite3.Connection) -> int:
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        return self.size(connection) - int(free) * _page(connection)

    def removed(self, history: History) -> None:
        """Do nothing: the page counts show it."""


def _page(connection: sqlite3.Connection) -> int:
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    return int(size)


def _refuse(path: Path) -> None:
    """Raise StoreError for a file that is not a mulligan store, before anything is written to it."""
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None)) as connection:
        connection.execute("PRAGMA query_only=ON")
        connection.execute("BEGIN")  # one snapshot: another process may be creating the store
        schema_of(connection, path)


def _make(path: Path) -> None:
    """Create an empty file if there is none. It will contain call arguments, so only its owner may read it."""
    # Only SQLite opens an existing file. Closing any other handle would release all locks of this process on it
    # (POSIX); another process could then take itself for the last user and delete the log in use.
    with _making:
        place = os.path.realpath(path)
        try:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            if os.path.isdir(place):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from None
            if not os.access(place, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from None


def schema_of(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema version. Raise StoreError if the file is not a store, or is from a newer version."""
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if owner == HALF:
        raise StoreError(
            f"{path} is half of a copy that was not ended. End it with the same command: mulligan copy FROM '{path}'"
        )
    if owner != APPLICATION and (owner or version or tables):
        raise StoreError(f"{path} is a database of another program. Name another file: --store sqlite:///PATH")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path} was written by a newer mulligan (schema {version}; this one knows {len(MIGRATIONS)}). "
            "It was left as it is. Upgrade: pip install -U mulligan"
        )
    return int(version)


def _prepare(connection: SqliteConnection, path: Path, progress: Progress | None = None) -> None:
    """Set pragmas and migrate under one lock, because several processes may start at once."""
    if _is_ready(connection, path):
        return
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # before WAL: it cannot be enabled later
    _share(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = schema_of(connection, path)
        for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={number}")
        if 0 < version < REPACKED_AT:
            from mulligan.remember import upkeep  # only for stores of an earlier version

            upkeep.count_anew(connection, version, progress)
        if 0 < version < PACKED_AT:
            candidates.pack_all(connection)
        connection.execute(f"PRAGMA application_id={APPLICATION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _share(connection: sqlite3.Connection) -> None:
    """Enable the write-ahead log, so that readers and a writer work concurrently.

    If two processes do this to a new file at once, SQLite fails one of them regardless of its busy timeout, to avoid a
    deadlock.
    """
    for left in range(BUSY_MS // WAIT_MS, -1, -1):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or not left:
                raise
            time.sleep(WAIT_MS / 1000)


def _is_ready(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the store is ready without a write, so that read-only processes need not wait for writers."""
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    return bool(owner == APPLICATION and mode == "wal" and schema_of(connection, path) == len(MIGRATIONS))


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """Convert errors of SQLite and the file system into a StoreError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        if "not a database" in text or "malformed" in text:
            raise StoreError(
                f"{path} is not a mulligan store, or is damaged ({text}). It was left as it is. Name another one with "
                f"--store or MULLIGAN_STORE; if it was yours, move it away, and a new one is made: "
                f"mv '{path}' '{path}.damaged'"
            ) from error
        if "full" in text:
            raise StoreError(f"there is no room left for {path} ({text}). Free some, or set MULLIGAN_HOME.") from error
        if "locked" in text:
            raise StoreError(f"{path} is held by another process ({text}). Try again in a moment.") from error
        raise StoreError(f"{path} cannot be used ({text}). Check its rights, or set MULLIGAN_HOME.") from error
    except IsADirectoryError as error:
        raise StoreError(f"{path} is a folder. Name a file in it, such as {path / 'mulligan.db'}.") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(
            f"{path} cannot be made ({reason}). Set MULLIGAN_HOME to a folder you can write to."
        ) from error


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_making = threading.Lock()
"""Held while a file is created: no other thread may open it before its handle is closed."""


def _before_fork() -> Callable[[], None]:
    held = [lock for store in tuple(_stores) for lock in store.let_go()]

    def after() -> None:
        for lock in held:
            lock.release()

    return after


forks.hold(lambda: [_making])
forks.around(_before_fork)
