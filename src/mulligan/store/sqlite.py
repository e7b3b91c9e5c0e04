"""SQLite stores: in a file, with one writer and one read connection per thread; or in memory, with one connection."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import re
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mulligan.contract.store import DEFAULT_TENANT, Health, Progress, journals_of, now
from mulligan.core import fork_safety
from mulligan.core.failure import StoreError, StoreLockedError
from mulligan.redaction.lazy_property import lazy_property
from mulligan.store import queries
from mulligan.store.connection import ConcurrentAppendError, Insert, Lookup
from mulligan.store.sql import DatabaseStore
from mulligan.store.tables import APPLICATION, HALF, MIGRATIONS, OTHER_TABLES, PRE_RELEASE, check_version

if TYPE_CHECKING:
    from mulligan.contract.search_terms import SearchTerm
    from mulligan.store.retention import PruneRound

T = TypeVar("T")

BUSY_MS = 5000
WAL_RETRY_DELAY_MS = 10
MMAP_BYTES = 2**31 - 2**16
"""Limit of the memory-mapped part of the file for readers, the maximum of SQLite. Copying pages is ten times slower."""

MOUNT_TABLE_PATH = Path("/proc/self/mountinfo")
"""The mount table of Linux. On other systems the file does not exist, and every path counts as local."""
NETWORK_FILESYSTEMS = frozenset(
    "afs beegfs ceph cifs coda fuse.ceph fuse.glusterfs fuse.rclone fuse.s3fs fuse.sshfs glusterfs gpfs lustre "
    "ncpfs nfs nfs4 orangefs smb2 smb3 smbfs".split()
)


class SqliteConnection(sqlite3.Connection):
    is_exclusive = True

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self.in_transaction:  # a full disk may have ended it
                self.execute("ROLLBACK")
            raise

    if (3, 12) <= sys.version_info < (3, 13):

        def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
            """Execute a statement. Early releases of 3.12 take `?1` for a name, and warn about values without one."""
            if "?1" in sql and not isinstance(parameters, dict):
                parameters = {str(number): value for number, value in enumerate(parameters, 1)}
            return super().execute(sql, parameters)

    def select_tenant(self, tenant: str) -> None:
        """Do nothing: a connection reads and writes rows of all tenants."""

    def lock(self, tenant: str, subject: str) -> None:
        """Do nothing: a write transaction is exclusive."""

    def try_lock(self, tenant: str, subject: str) -> bool:
        return True

    def stream(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        return self.execute(sql, values)

    def put(self, insert: Insert, rows: Iterable[tuple[Any, ...]]) -> int:
        before = self.total_changes
        following = iter(rows)
        while chunk := list(itertools.islice(following, BATCH_SIZES[1])):  # bounds memory: large bodies are copied
            for portion in self._portions(chunk, len(insert.columns)):
                shared_columns, values = _share_values(portion)
                self.execute(_batch_insert_sql(insert, len(portion), shared_columns), values)
        return self.total_changes - before

    def queue(self, insert: Insert, rows: Sequence[tuple[Any, ...]], must_be_new: bool = False) -> None:
        if self.put(insert, rows) != len(rows) and must_be_new:
            raise ConcurrentAppendError

    def look_up(self, lookup: Lookup, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Look up keys one by one, which is as fast for a few; in batches if they differ in the last column only."""
        # With fewer keys, each is looked up separately.
        if len(keys) < 10 or lookup.keys[-1].endswith(">=") or len({key[:-1] for key in keys}) > 1:
            return [(*key, *row) for key in keys for row in self.execute(lookup.single_key_sql, key)]
        rows: list[tuple[Any, ...]] = []
        same = keys[0][:-1]
        for portion in self._portions([key[-1] for key in keys], 1):
            rows += [(*same, *row) for row in self.execute(_batch_lookup_sql(lookup, len(portion)), (*same, *portion))]
        return rows

    def execute_by_key(
        self, sql: str, keys: Sequence[str], values: Sequence[Any], max_rows: int | None = None
    ) -> Iterator[tuple[Any, ...]]:
        # Read key by key, as needed. All rows of a key at once: an unfinished statement would hold a read transaction.
        rows = ((key, *row) for key in keys for row in self.execute(sql, (key, *values)).fetchall())
        return itertools.islice(rows, max_rows)

    def unindex_runs(self, tenant: str, runs: Sequence[str]) -> None:
        """Note which runs changed, for the search index, which is another file. Without one, do nothing."""
        from mulligan.store import sqlite_search  # lazy: few runs change after their end

        path = self.execute("PRAGMA database_list").fetchone()[2]
        if path and sqlite_search.index_path(Path(path)).exists():
            self.executemany(sqlite_search.NOTE_LATE_RUN, [(tenant, run) for run in runs])

    def remember_runs(self, tenant: str, stored_at: Mapping[str, int]) -> None:
        """Do nothing: steps are found by their run alone."""

    def _portions(self, rows: Sequence[T], values: int) -> Iterator[Sequence[T]]:
        """Split rows into the largest possible batches. Few batch sizes keep the statements in the statement cache."""
        start = 0
        while start < len(rows):
            remaining = len(rows) - start
            size = next(
                size for size in BATCH_SIZES if size <= remaining and (size == 1 or size * values <= self._max_values)
            )
            yield rows[start : start + size]
            start += size

    @lazy_property
    def _max_values(self) -> int:
        """The maximum number of values in a statement, with a small reserve."""
        return self.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) - 10


BATCH_SIZES = (500, 150, 25, 8, 3, 1)
"""Rows per statement. Each statement releases the GIL, and a CPU-bound host returns it only after five milliseconds."""


def _share_values(rows: Sequence[tuple[Any, ...]]) -> tuple[tuple[int, ...], list[Any]]:
    """Return the columns in which all rows have the same value, and the values: first these, then those of each row.

    To pass the same value with every row would take half of the time of an insert.
    """
    if len(rows) < 25:  # with fewer rows, each value is passed for itself, so that there are few different statements
        return (), list(itertools.chain.from_iterable(rows))
    columns = list(zip(*rows, strict=True))
    shared_columns = tuple(
        index
        for index, values in enumerate(columns)
        if values[0] == values[-1] and values.count(values[0]) == len(rows)
    )
    shared_values = [columns.pop(index)[0] for index in reversed(shared_columns)]
    return shared_columns, [*reversed(shared_values), *itertools.chain.from_iterable(zip(*columns, strict=True))]


@functools.lru_cache(maxsize=1000)
def _batch_insert_sql(insert: Insert, count: int, shared_columns: Sequence[int]) -> str:
    """Return the SQL that inserts this many rows, with one parameter for each shared column."""
    shared_numbers = {column: number for number, column in enumerate(shared_columns, start=1)}
    numbers = itertools.count(len(shared_columns) + 1)
    columns = range(len(insert.columns))
    rows = (
        f"({', '.join(f'?{shared_numbers.get(column) or next(numbers)}' for column in columns)})" for _ in range(count)
    )
    return f"INSERT INTO {insert.table} ({', '.join(insert.columns)}) VALUES {', '.join(rows)} {insert.conflict}"


@functools.cache
def _batch_lookup_sql(lookup: Lookup, count: int) -> str:
    columns = ", ".join((lookup.keys[-1], *lookup.columns))
    where = " AND ".join(f"{key} = ?" for key in lookup.keys[:-1])
    return f"SELECT {columns} FROM {lookup.table} WHERE {where} AND {lookup.keys[-1]} IN ({', '.join('?' * count)})"


class _LazyConnection:
    """A lazily opened connection that one thread uses at a time."""

    def __init__(self, connect: Callable[[], SqliteConnection], *setup: str) -> None:
        self.lock = threading.RLock()
        self._connect = connect
        self._setup = setup
        self._connection: SqliteConnection | None = None

    def __enter__(self) -> SqliteConnection:
        self.lock.acquire()
        try:
            if self._connection is None:
                self._connection = self._connect()
                for statement in self._setup:
                    self._connection.execute(statement)
            return self._connection
        except BaseException:
            self.close()
            self.lock.release()
            raise

    def __exit__(self, *raised: object) -> None:
        self.lock.release()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __del__(self) -> None:
        self.close()


CHECK_SECONDS = 600.0
"""Between two checks of the whole file by one store."""


class SqliteStore(DatabaseStore):
    """Store in one SQLite file, which is created with its folder if missing."""

    _checked_until = 0.0
    """Until this time of the monotonic clock, `health` does not check the whole file again."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], int] = now,
        fsync: bool = False,
        progress: Progress | None = None,
        busy_ms: int = BUSY_MS,
    ) -> None:
        """`progress` is called while a store of an earlier version is migrated.

        `busy_ms` is the longest wait for a locked store.
        """
        super().__init__(clock, journals_of(path))
        self.path = path
        self._busy_ms = busy_ms
        self._threads = threading.local()
        # A commit survives a crash of the process. With `fsync` it also survives a crash of the machine, but waits for
        # the disk.
        lasting = ("PRAGMA synchronous=FULL", "PRAGMA fullfsync=ON") if fsync else ("PRAGMA synchronous=NORMAL",)
        self.writer = _LazyConnection(self._connect, *lasting, "PRAGMA secure_delete=ON")
        self._readers: weakref.WeakSet[_LazyConnection] = weakref.WeakSet()
        """The read connections. Each ends with its thread: a program may make every call in a new one."""
        self._adding = threading.Lock()
        """Held while a reader is added, and during a fork."""
        self._is_closed = False
        _stores.add(self)  # before a connection exists that a forked child could inherit
        with translate_errors(path):
            self._create_file()
            with self.writer as writer:
                prepare_database(writer, path, progress)

    def _create_file(self) -> None:
        """Create the file if it is missing. Raise StoreError if it cannot hold a store."""
        if filesystem_type := detect_network_filesystem(self.path):
            raise StoreError(
                f"{self.path} is on a network file system ({filesystem_type}), "
                "where unreliable locks can damage a store. Set MULLIGAN_HOME to a local folder."
            )
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _create_file(self.path)
        with self.writer.lock:
            read_schema_version_at(self.path, self._busy_ms)

    def _connect(self) -> SqliteConnection:
        if self._is_closed:
            raise sqlite3.ProgrammingError("the store is closed")
        return _connect(self.path, self._busy_ms)

    @contextlib.contextmanager
    def read_connection(self, tenant: str) -> Iterator[SqliteConnection]:
        reader: _LazyConnection | None = getattr(self._threads, "reader", None)
        if reader is None:
            reader = self._threads.reader = _LazyConnection(
                self._connect, "PRAGMA query_only=ON", f"PRAGMA mmap_size={MMAP_BYTES}"
            )
            with self._adding:
                self._readers.add(reader)
        with translate_errors(self.path), reader as connection:
            yield connection

    @contextlib.contextmanager
    def write_transaction(self, *tenants: str) -> Iterator[SqliteConnection]:
        with translate_errors(self.path), self.writer as writer:
            try:
                with writer.transaction():
                    yield writer
            except BaseException:
                self.batch_writer.drop_cache()
                raise

    def _release_space(self, pruner: PruneRound, now: int) -> None:
        """Return free pages to the file system in batches, outside of a transaction."""
        if pruner.runs or pruner.sampled:
            self.clear_search("")
        with translate_errors(self.path), self.writer as writer:
            (free_pages,) = writer.execute("PRAGMA freelist_count").fetchone()
            while free_pages:
                before = free_pages
                # Use executescript: execute() would free a single page.
                writer.executescript("PRAGMA incremental_vacuum(2000)")  # free pages that are released at a time
                (free_pages,) = writer.execute("PRAGMA freelist_count").fetchone()
                if free_pages >= before:
                    return

    def _propose_runs(self, connection: Any, tenant: str, terms: Sequence[SearchTerm]) -> queries.ProposedRuns:
        from mulligan.store import sqlite_search  # lazy: for searches only

        is_attached = sqlite_search.attach(connection, self.path)
        return sqlite_search.propose_runs(connection, terms) if is_attached else queries.ALL_RUNS

    def update_search(self, tenant: str, progress: Progress | None = None) -> int:
        from mulligan.store import sqlite_search  # lazy: for searches only

        index = sqlite_search.SearchIndex(self.path)
        with self.read_connection(tenant) as connection:
            indexed_count = index.update(connection, self._clock(), progress)
            notes = index.index_late_runs(connection)
        if notes:
            with self.write_transaction(tenant) as writer:
                writer.executemany(sqlite_search.FORGET_LATE_RUN, notes)
        return indexed_count

    def clear_search(self, tenant: str) -> None:
        from mulligan.store.sqlite_search import SearchIndex  # lazy: most stores have none

        with translate_errors(self.path):
            SearchIndex(self.path).clear()

    def _overwrite_erased(self) -> None:
        """Copy the write-ahead log into the file and truncate it, as soon as no reader uses it."""
        self.clear_search("")
        deadline = time.monotonic() + 5.0  # seconds to wait until no reader uses the write-ahead log
        with translate_errors(self.path), self.writer as writer:
            while True:
                busy, _, _ = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if not busy or time.monotonic() > deadline:
                    return
                time.sleep(0.05)

    def backup(self, to: Path, progress: Progress | None = None, replaces: bool = False) -> Health:
        with translate_errors(to), self.read_connection(DEFAULT_TENANT) as connection:
            from mulligan.store.backup import back_up  # rarely needed, and hooks must start fast

            back_up(connection, to, progress, replaces)
        copy = SqliteStore(to)
        try:
            return copy.health(DEFAULT_TENANT)
        finally:
            copy.close()

    def health(self, tenant: str) -> Health:
        """Check the file and count its records. A file without a fault is not checked again for some minutes."""
        check_result = "ok"
        if time.monotonic() >= self._checked_until:
            ((check_result,),) = self.read_rows(tenant, "PRAGMA quick_check(1)")  # reads the whole file
            if check_result == "ok":
                self._checked_until = time.monotonic() + CHECK_SECONDS
        is_healthy = check_result == "ok"
        return Health(str(self.path), is_healthy, *self._count_records(tenant), "" if is_healthy else check_result)

    def close(self) -> None:
        self._is_closed = True
        with self._adding:
            readers = tuple(self._readers)
        for connection in (self.writer, *readers):
            with connection.lock:
                connection.close()

    def close_for_fork(self) -> list[Any]:
        """Close all connections before a fork and return the held locks: SQLite's file locks do not survive a fork."""
        # The writer first: a thread that writes may also read, and then adds a reader.
        locks: list[Any] = [self.writer.lock, self._adding]
        for lock in locks:
            lock.acquire()
        self.writer.close()
        for reader in tuple(self._readers):
            reader.lock.acquire()
            locks.append(reader.lock)
            reader.close()
        return locks


class MemoryStore(SqliteStore):
    """Store in the memory of the process, for tests and for recovery without a file. A fork copies it.

    All threads take turns with one connection, because another one would be another database.
    """

    def __init__(self, clock: Callable[[], int] = now) -> None:
        super().__init__(Path(":memory:"), clock)
        self._journals = None

    def _create_file(self) -> None:
        """Do nothing: there is no file."""

    def _connect(self) -> SqliteConnection:
        connection = super()._connect()
        weakref.finalize(self, connection.close).atexit = False
        if hasattr(connection, "deserialize"):  # some builds of SQLite lack it: the tables are created then
            with contextlib.closing(sqlite3.connect(self.path)) as template:
                template.deserialize(_build_empty_database())
                template.backup(connection)
        return connection

    @contextlib.contextmanager
    def read_connection(self, tenant: str) -> Iterator[SqliteConnection]:
        with translate_errors(self.path), self.writer as connection:
            yield connection

    def update_search(self, tenant: str, progress: Progress | None = None) -> int:
        return 0

    def clear_search(self, tenant: str) -> None:
        """Do nothing: searches read the runs."""

    def backup(self, to: Path, progress: Progress | None = None, replaces: bool = False) -> Health:
        raise StoreError("A store in memory cannot be backed up. Use a file: --store sqlite:///PATH")

    def close(self) -> None:
        """Do nothing: the records live as long as the object."""

    def close_for_fork(self) -> list[Any]:
        """Hold the connection during a fork: the child gets a copy that is in no transaction."""
        self.writer.lock.acquire()
        return [self.writer.lock]


def _connect(path: Path, busy_ms: int = BUSY_MS) -> SqliteConnection:
    connection = sqlite3.connect(
        path, timeout=busy_ms / 1000, isolation_level=None, check_same_thread=False, factory=SqliteConnection
    )
    connection.create_function("folded", 1, str.casefold, deterministic=True)
    return connection


@functools.cache
def _build_empty_database() -> bytes:
    """Return a database with all tables and no rows. A copy takes an eighth of the time that creating them takes."""
    with contextlib.closing(_connect(Path(":memory:"))) as connection:
        prepare_database(connection, Path(":memory:"))
        return connection.serialize()


def detect_network_filesystem(path: Path) -> str:
    """Return the type of network file system that holds a path, or would hold it; empty if it is local or unknown."""
    try:
        lines = MOUNT_TABLE_PATH.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    real_path = os.path.realpath(path)
    best_mount_point, filesystem_type = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        mount_point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
        is_inside_mount = real_path == mount_point or real_path.startswith(mount_point.rstrip("/") + "/")
        # A later mount at the same point hides the earlier one.
        if is_inside_mount and len(mount_point) >= len(best_mount_point):
            best_mount_point, filesystem_type = mount_point, after.split(" ")[0]
    return filesystem_type if filesystem_type in NETWORK_FILESYSTEMS else ""


def read_schema_version_at(path: Path, busy_ms: int = BUSY_MS) -> int:
    """Return the schema version of a file and write nothing. Raise StoreError if it is not a store or is newer."""
    with (
        translate_errors(path),
        contextlib.closing(sqlite3.connect(path, timeout=busy_ms / 1000, isolation_level=None)) as connection,
    ):
        connection.execute("PRAGMA query_only=ON")
        connection.execute("BEGIN")  # one snapshot: another process may be creating the store
        return read_schema_version(connection, path)


def _create_file(path: Path) -> None:
    """Create an empty file if there is none. It will contain call arguments, so only its owner may read it."""
    # Only SQLite opens an existing file. Closing any other handle would release all locks of this process on it
    # (POSIX); another process could then take itself for the last user and delete the log in use.
    with _making:
        real_path = os.path.realpath(path)
        try:
            os.close(os.open(real_path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            if os.path.isdir(real_path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from None
            if not os.access(real_path, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from None


def read_schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema version. Raise StoreError if the file is not a store, or is from a newer version."""
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if owner == HALF:
        raise StoreError(f"{path} is an incomplete copy. Finish it with the same command: mulligan copy FROM '{path}'")
    if owner in PRE_RELEASE:
        # Their journals have other fields too: a new store must not recover them.
        paths = [path, journals_of(path)]
        moves = " && ".join(f"mv '{name}' '{name}.old'" for name in paths if name.exists())
        raise StoreError(f"{path} was written by a pre-release version; start a new store: {moves}")
    if owner != APPLICATION and (owner or version or tables):
        raise StoreError(f"{path} is a database of another program. Use another file: --store sqlite:///PATH")
    return check_version(version, path)


def prepare_database(connection: SqliteConnection, path: Path, progress: Progress | None = None) -> None:
    """Set pragmas and migrate under one lock, because several processes may start at once."""
    if _is_ready(connection, path):
        return
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # before WAL: it cannot be enabled later
    _enable_wal(connection)
    with connection.transaction():
        version = read_schema_version(connection, path)
        statements = [statement for migration in MIGRATIONS[version:] for statement in migration]
        for number, statement in enumerate(statements, start=1):
            connection.execute(statement)
            if version and progress is not None:  # a new store is ready at once
                progress(number, len(statements))
        connection.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
        connection.execute(f"PRAGMA application_id={APPLICATION}")


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Enable the write-ahead log, so that readers and a writer work concurrently.

    If two processes do this to a new file at once, SQLite fails one of them regardless of its busy timeout, to avoid a
    deadlock.
    """
    for attempts_left in range(BUSY_MS // WAL_RETRY_DELAY_MS, -1, -1):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or not attempts_left:
                raise
            time.sleep(WAL_RETRY_DELAY_MS / 1000)


def _is_ready(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the store is ready without a write, so that read-only processes need not wait for writers."""
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    return bool(owner == APPLICATION and mode == "wal" and read_schema_version(connection, path) == len(MIGRATIONS))


@contextlib.contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Convert errors of SQLite and the file system into a StoreError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        if "not a database" in text or "malformed" in text:
            raise StoreError(
                f"{path} is not a mulligan store or is damaged ({text}). It was not changed. Choose another store with "
                f"--store or MULLIGAN_STORE, or move the file away to start a new one: mv '{path}' '{path}.damaged'"
            ) from error
        if "full" in text:
            raise StoreError(
                f"No disk space left for {path} ({text}). Free some space, or set MULLIGAN_HOME."
            ) from error
        if "locked" in text:
            raise StoreLockedError(f"{path} is locked by another process ({text}). Try again later.") from error
        if re.search(r"no such (?:table|column)|no column named|NOT NULL constraint", text):
            raise StoreError(OTHER_TABLES.format(where=path, text=text)) from error
        raise StoreError(f"Cannot use {path} ({text}). Check its permissions, or set MULLIGAN_HOME.") from error
    except IsADirectoryError as error:
        raise StoreError(f"{path} is a folder. Use a file in it, for example {path / 'mulligan.db'}.") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(f"Cannot create {path} ({reason}). Set MULLIGAN_HOME to a writable folder.") from error


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_making = threading.Lock()
"""Held while a file is created: no other thread may open it before its handle is closed."""


def before_fork() -> Callable[[], None]:
    locks = [lock for store in tuple(_stores) for lock in store.close_for_fork()]

    def after() -> None:
        for lock in locks:
            lock.release()

    return after


fork_safety.hold_locks(lambda: [_making])
fork_safety.register(before_fork)
