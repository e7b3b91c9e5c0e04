"""A Store in a file. One writer, on the recorder's thread; one reader a thread."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mulligan import calls, forks
from mulligan.events import AnyEvent
from mulligan.failure import StoreError
from mulligan.figures import Stats, StatsQuery
from mulligan.records import (
    Fix,
    History,
    Lesson,
    LessonSource,
    LessonVerdict,
    Link,
    Pattern,
    Precedent,
    Run,
    encode,
    pattern_id,
)
from mulligan.remember import bodies, fixes, forgetting, found, learning, patterns, rollups, rows
from mulligan.remember.ledger import Ledger
from mulligan.remember.network import remote
from mulligan.remember.patterns import Decision
from mulligan.remember.store import (
    IMPORTED,
    LOCAL,
    Batch,
    Command,
    Consolidated,
    Evidence,
    FixQuery,
    Forget,
    Forgotten,
    Health,
    LessonQuery,
    PatternQuery,
    Progress,
    Pruned,
    Question,
    Retention,
    Revocation,
    Revoked,
    RunQuery,
    journals_of,
    now,
)
from mulligan.remember.tables import APPLICATION, HALF, MIGRATIONS, REPACKED_AT

BUSY_MS = 5000
MAPPED = 256 * 1024 * 1024
"""Bytes of the file that readers see in memory."""
EXPORTED = 500
"""Runs that are read at a time."""


class _Connection:
    """A connection that is made when it is needed, and used by one thread at a time."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], *setup: str) -> None:
        self.lock = threading.Lock()
        self._connect = connect
        self._setup = setup
        self._made: sqlite3.Connection | None = None

    def __enter__(self) -> sqlite3.Connection:
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


class SqliteStore:
    """Keeps everything in one SQLite file, made with its folder when it is not there."""

    def __init__(
        self, path: Path, clock: Callable[[], int] = now, fsync: bool = False, progress: Progress | None = None
    ) -> None:
        """`progress` is told how far it is brought up to date, where an earlier version made it."""
        self.path = path
        self._clock = clock
        self._ledger = Ledger()
        self._threads = threading.local()
        # A commit survives the process; where it is asked for, the machine too: then each waits for the disk.
        lasting = ("PRAGMA synchronous=FULL", "PRAGMA fullfsync=ON") if fsync else ("PRAGMA synchronous=NORMAL",)
        self._writer = _Connection(self._connect, *lasting, "PRAGMA secure_delete=ON")
        self._readers: list[_Connection] = []
        self._is_closed = False
        if sort := remote(path):
            raise StoreError(
                f"{path} is on a network file system ({sort}), where locks may not hold and a store would be damaged. "
                "Set MULLIGAN_HOME to a folder of this machine."
            )
        with told(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make(path)
            _refuse(path)
            with self._writer as writer:
                _prepare(writer, path, progress)
        _stores.add(self)

    def _connect(self) -> sqlite3.Connection:
        if self._is_closed:
            raise sqlite3.ProgrammingError("it was closed")
        connection = sqlite3.connect(self.path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False)
        connection.create_function("folded", 1, str.casefold, deterministic=True)
        return connection

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        reader: _Connection | None = getattr(self._threads, "reader", None)
        if reader is None:
            reader = self._threads.reader = _Connection(
                self._connect, "PRAGMA query_only=ON", f"PRAGMA mmap_size={MAPPED}"
            )
            self._readers.append(reader)
        with told(self.path), reader as connection:
            yield connection

    def _read(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        with self._reading() as connection:
            return list(connection.execute(sql, tuple(values)))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with told(self.path), self._writer as writer:
            writer.execute("BEGIN IMMEDIATE")
            try:
                self._ledger.begin(writer)
                yield writer
                writer.execute("COMMIT")
            except BaseException:
                self._ledger.let_go()
                if writer.in_transaction:  # a full disk may have ended it already
                    writer.execute("ROLLBACK")
                raise

    def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int, principal: str = "") -> int:
        with self._writing() as writer:
            return self._append(writer, tenant, batch, journal, offset, principal)

    def append_all(self, batches: Sequence[Batch]) -> list[int]:
        with self._writing() as writer:
            return [self._append(writer, *each) for each in batches]

    def _append(
        self, writer: sqlite3.Connection, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int,
        principal: str,
    ) -> int:  # fmt: skip
        place = (tenant, journal)
        known = writer.execute("SELECT upto FROM journals WHERE tenant = ? AND journal = ?", place).fetchone()
        if offset <= (known[0] if known else 0):
            return 0
        writer.execute("INSERT OR REPLACE INTO journals VALUES (?, ?, ?)", (*place, offset))
        is_imported = journal.startswith(IMPORTED)
        return self._ledger.append(writer, tenant, batch, self._clock(), is_imported, principal)

    def offset(self, tenant: str, journal: str) -> int:
        rows = self._read("SELECT upto FROM journals WHERE tenant = ? AND journal = ?", (tenant, journal))
        return int(rows[0][0]) if rows else 0

    def journals(self, tenant: str) -> list[str]:
        return [journal for (journal,) in self._read("SELECT journal FROM journals WHERE tenant = ?", (tenant,))]

    def release(self, tenant: str, journals: Sequence[str]) -> None:
        with self._writing() as writer:
            writer.executemany(
                "DELETE FROM journals WHERE tenant = ? AND journal = ?", [(tenant, journal) for journal in journals]
            )

    def runs(self, tenant: str, query: RunQuery) -> list[History]:
        if query.limit <= 0:
            return []
        return [self._history(tenant, run) for run in self._found(tenant, query, query.limit)]

    def _found(self, tenant: str, query: RunQuery, limit: int) -> list[Run]:
        asked: set[str] = set()
        if query.pattern is not None:
            known = self.pattern(tenant, query.pattern)
            if known is None:
                return []
            asked = {known.id, *known.merged}
        return found.runs(self._read, tenant, query, asked, limit)

    def run(self, tenant: str, id: str) -> History | None:
        known = self._read("SELECT body FROM runs WHERE tenant = ? AND id = ?", (tenant, id))
        return self._history(tenant, bodies.read(known[0][0], Run)) if known else None

    def _history(self, tenant: str, run: Run) -> History:
        with self._reading() as connection:
            connection.execute("BEGIN")  # of one moment
            try:
                return rows.history_of(connection, tenant, run)
            finally:
                connection.execute("ROLLBACK")

    def find(self, tenant: str, prefix: str, limit: int = 5) -> list[Run]:
        return found.beginning(self._read, tenant, prefix, max(limit, 0))

    def export(self, tenant: str, since: int = 0) -> Iterator[History]:
        after: tuple[int, str] = (since, "")
        while True:
            some = self._read(
                "SELECT body FROM runs WHERE tenant = ? AND (started, id) > (?, ?) ORDER BY started, id LIMIT ?",
                (tenant, *after, EXPORTED),
            )
            for (body,) in some:
                run = bodies.read(body, Run)
                after = (run.started, run.id)
                yield self._history(tenant, run)
            if len(some) < EXPORTED:
                return

    def prune(
        self, tenant: str, policy: Retention, now: int, dry_run: bool = False, progress: Progress | None = None
    ) -> Pruned:
        from mulligan.remember import pruning  # once in a while; not for those who only write, as hooks do

        round = pruning.Pruning(self._writing, self._reading, tenant, policy, now)
        if dry_run:
            return round.rehearse(progress)
        pruned = round.perform(progress)
        with told(self.path), self._writer as writer:
            self._ledger.let_go()
            pruning.give_back(writer)
        return pruned

    def forget(self, tenant: str, what: Forget) -> Forgotten:
        from mulligan.remember import upkeep  # once in a while; not for those who only write, as hooks do
        from mulligan.remember.scrubbing import scrub

        forgetting.check(what)
        with self._writing() as writer:
            work = upkeep.Forgetting(writer, self._ledger, tenant, what)
            forgotten = work.perform()
        with told(self.path), self._writer as writer:
            upkeep.wipe(writer)
        scrub(journals_of(self.path), what, work.gone)
        return forgotten

    def erase(self, tenant: str) -> int:
        from mulligan.remember import upkeep  # once in a while; not for those who only write, as hooks do

        with self._writing() as writer:
            self._ledger.let_go()
            erased = upkeep.erase(writer, tenant)
        with told(self.path), self._writer as writer:
            upkeep.wipe(writer)
        return erased

    def rebuild(self, tenant: str) -> None:
        """Counts links, patterns and sums anew, from the rows."""
        from mulligan.remember import upkeep  # once in a while; not for those who only write, as hooks do

        with self._writing() as writer:
            self._ledger.let_go()
            upkeep.rebuild(writer, tenant)

    def backup(self, to: Path, progress: Progress | None = None, replaces: bool = False) -> Health:
        with told(to), self._reading() as connection:
            from mulligan.remember import copying  # once in a while; not for those who only write, as hooks do

            copying.copy(connection, to, progress, replaces)
        copy = SqliteStore(to)
        try:
            return copy.health(LOCAL)
        finally:
            copy.close()

    def health(self, tenant: str) -> Health:
        (verdict,) = self._read("PRAGMA quick_check(1)")[0]
        ((runs,),) = self._read("SELECT count(*) FROM runs WHERE tenant = ?", (tenant,))
        ((steps,),) = self._read("SELECT count(*) FROM steps WHERE tenant = ?", (tenant,))
        sound = verdict == "ok"
        return Health(where=str(self.path), sound=sound, runs=runs, steps=steps, note="" if sound else str(verdict))

    def close(self) -> None:
        self._is_closed = True
        for connection in (self._writer, *self._readers):
            with connection.lock:
                connection.close()

    def let_go(self) -> list[threading.Lock]:
        """Lets go of the file, so that no child inherits a connection: SQLite's locks do not survive a fork."""
        held = []
        for connection in (self._writer, *self._readers):
            connection.lock.acquire()
            held.append(connection.lock)
            connection.close()
        return held

    def recall(self, tenant: str, question: Question) -> list[Precedent]:
        asked = (tenant, question.tool, question.fingerprint)
        rows = self._read(
            "SELECT body FROM links WHERE tenant = ? AND name = ? AND fingerprint = ? ORDER BY rowid DESC LIMIT 200",
            asked,
        )
        links = [bodies.read(body, Link) for (body,) in rows]
        if not links:
            return []
        pattern = pattern_id(question.tool, question.fingerprint)
        if revoked := self._revoked(tenant, question.tool, pattern):
            links = [link for link in links if link.run not in revoked]
        counted = self._read("SELECT runs FROM patterns WHERE tenant = ? AND id = ?", (tenant, pattern))
        own = self._read(
            "SELECT 1 FROM runs r CROSS JOIN met m ON m.tenant = r.tenant AND m.pattern = ? AND m.started = r.started "
            "AND m.run = r.id WHERE r.tenant = ? AND r.id = ? LIMIT 1",
            (pattern, tenant, question.run),
        )
        is_own_revoked = question.run in revoked
        others = (counted[0][0] if counted else 0) - len(revoked) - (0 if is_own_revoked else len(own))
        seen = others + any(link.run == question.run for link in links)
        return calls.precedents(links, seen)[: max(question.limit, 0)]

    def _revoked(self, tenant: str, tool: str, pattern: str) -> set[str]:
        """The runs that met a pattern and that memory must not rest on."""
        revoked = learning.revocations(self._read, tenant)
        if not revoked:
            return set()
        met = self._read(
            "SELECT DISTINCT r.id, r.principal, r.started FROM met m JOIN runs r "
            "ON r.tenant = m.tenant AND r.id = m.run WHERE m.tenant = ? AND m.pattern = ?",
            (tenant, pattern),
        )
        return {
            run
            for run, principal, started in met
            if any(fixes.is_revoked(each, principal, tool, started) for each in revoked)
        }

    def fixes(self, tenant: str, query: FixQuery) -> list[Fix]:
        with self._reading() as connection:  # once, for the few short questions that it comes to

            def read(sql: str, values: Iterable[Any] = ()) -> list[Any]:
                return connection.execute(sql, tuple(values)).fetchall()

            return learning.answer(read, tenant, query, time.monotonic)

    def evidence(self, tenant: str, fix: str, limit: int = 100) -> list[Evidence]:
        return learning.evidence(self._read, tenant, fix, max(limit, 0))

    def outcome(self, tenant: str, fix: str, report: Evidence) -> bool:
        with self._writing() as writer:
            learning.note_principal(
                writer, tenant, report.principal, self._clock()
            )  # who reports is one of those active
            return learning.report(writer, tenant, fix, fixes.Vote.reported(report))

    def decide(self, tenant: str, fix: str, approved: bool, at: int) -> bool:
        with self._writing() as writer:
            return learning.decide(writer, tenant, fix, approved, at)

    def revoke(self, tenant: str, what: Revocation) -> Revoked:
        with self._writing() as writer:
            return learning.revoke(writer, tenant, what)

    def lessons(self, tenant: str, query: LessonQuery) -> list[Lesson]:
        from mulligan.remember import lesson_rows  # not for those who only write, as hooks do

        return lesson_rows.answer(self._read, tenant, query)

    def lesson(self, tenant: str, id: str, now: int = 0) -> Lesson | None:
        from mulligan.remember import lesson_rows  # not for those who only write, as hooks do

        return lesson_rows.find(self._read, tenant, id, now or self._clock())

    def keep_lesson(self, tenant: str, lesson: Lesson) -> bool:
        from mulligan.remember import lesson_rows  # once in a while; not for those who only write, as hooks do

        with self._writing() as writer:
            return lesson_rows.keep(writer, tenant, lesson, self._clock())

    def remove_lessons(self, tenant: str, source: LessonSource) -> int:
        from mulligan.remember import lesson_rows  # once in a while; not for those who only write, as hooks do

        with self._writing() as writer:
            return lesson_rows.remove(writer, tenant, source)

    def decide_lesson(self, tenant: str, id: str, verdict: LessonVerdict, at: int) -> Lesson | None:
        from mulligan.remember import lesson_rows  # once in a while; not for those who only write, as hooks do

        with self._writing() as writer:
            known = lesson_rows.decide(writer, tenant, id, verdict, at)
        return self.lesson(tenant, known, at) if known is not None else None

    def consolidate(
        self, tenant: str, now: int, progress: Progress | None = None, most: int | None = None
    ) -> Consolidated:
        from mulligan.remember import lesson_rows  # once in a while; not for those who only write, as hooks do

        return lesson_rows.consolidate(self._read, self._writing, tenant, now, progress, most)

    def patterns(self, tenant: str, query: PatternQuery) -> list[Pattern]:
        return found.found(self._read, tenant, query)

    def pattern(self, tenant: str, id: str) -> Pattern | None:
        return found.pattern(self._read, tenant, id)

    def change(self, tenant: str, command: Command) -> Pattern | None:
        names = [command.pattern, *((command.into,) if command.into is not None else ())]
        known = [id for name in names if (id := found.whole_id(self._read, tenant, name)) is not None]
        with self._writing() as writer:
            decisions = found.decisions_of(lambda sql, values: list(writer.execute(sql, tuple(values))), tenant)
            meant = patterns.named(command, known, decisions)
            if meant is None:
                return None
            command, changed = meant
            current = self.pattern(tenant, changed)
            if current is None:  # it was forgotten just now
                return None
            decision = patterns.decided(command, decisions.get(changed, Decision()), current)
            writer.execute("INSERT OR REPLACE INTO decisions VALUES (?, ?, ?)", (tenant, changed, encode(decision)))
        return self.pattern(tenant, changed)

    def stats(self, tenant: str, query: StatsQuery) -> Stats:
        return rollups.stats(self._read, tenant, query)

    def get(self, tenant: str, kind: str, key: str) -> bytes | None:
        rows = self._read("SELECT value FROM shelf WHERE tenant = ? AND kind = ? AND key = ?", (tenant, kind, key))
        return bytes(rows[0][0]) if rows else None

    def put(self, tenant: str, kind: str, key: str, value: bytes) -> None:
        with self._writing() as writer:
            writer.execute("INSERT OR REPLACE INTO shelf VALUES (?, ?, ?, ?)", (tenant, kind, key, value))

    def swap(self, tenant: str, kind: str, key: str, known: bytes | None, value: bytes) -> bool:
        with self.transaction(tenant) as desk:
            is_known = desk.get(kind, key) == known
            if is_known:
                desk.put(kind, key, value)
            return is_known

    def keys(self, tenant: str, kind: str) -> list[str]:
        rows = self._read("SELECT key FROM shelf WHERE tenant = ? AND kind = ? ORDER BY key", (tenant, kind))
        return [key for (key,) in rows]

    @contextlib.contextmanager
    def transaction(self, tenant: str) -> Iterator[Desk]:
        """What is read, put and kept within it is so together, or not at all; other processes come before or after."""
        with self._writing() as writer:
            yield Desk(writer, self._ledger, tenant, self._clock())


class Desk:
    """A store within one transaction: its shelf, and records that come straight into it, with no journal."""

    def __init__(self, writer: sqlite3.Connection, ledger: Ledger, tenant: str, now: int) -> None:
        self._writer, self._ledger = writer, ledger
        self._tenant, self._now = tenant, now

    def get(self, kind: str, key: str) -> bytes | None:
        row = self._writer.execute(
            "SELECT value FROM shelf WHERE tenant = ? AND kind = ? AND key = ?", (self._tenant, kind, key)
        ).fetchone()
        return bytes(row[0]) if row else None

    def put(self, kind: str, key: str, value: bytes) -> None:
        self._writer.execute("INSERT OR REPLACE INTO shelf VALUES (?, ?, ?, ?)", (self._tenant, kind, key, value))

    def run(self, id: str) -> Run | None:
        row = self._writer.execute("SELECT body FROM runs WHERE tenant = ? AND id = ?", (self._tenant, id)).fetchone()
        return bodies.read(row[0], Run) if row else None

    def append(self, batch: Sequence[AnyEvent]) -> int:
        """Keeps a batch; how many of its records were new."""
        return self._ledger.append(self._writer, self._tenant, batch, self._now, is_imported=False)


def _refuse(path: Path) -> None:
    """Refuses a file that is not ours to write to, before anything about it is changed."""
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None)) as connection:
        connection.execute("PRAGMA query_only=ON")
        connection.execute("BEGIN")  # one moment: another process may be making it just now
        schema_of(connection, path)


def _make(path: Path) -> None:
    """Makes an empty file, unless there is one. Arguments of calls will be in it: it is its owner's from the start."""
    # A file that is there is never opened but by SQLite: to close any handle on it gives up every lock that this
    # process holds on it, and the next process to leave takes the log from under us, believing to be the last.
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
    """How many migrations it has had, if it is ours and we know them all."""
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


def _prepare(connection: sqlite3.Connection, path: Path, progress: Progress | None = None) -> None:
    """Pragmas and migrations. Several processes may come here at once, so migrating happens under one lock."""
    if _is_ready(connection, path):
        return
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # before WAL, or it stays off for the life of the file
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = schema_of(connection, path)
        for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={number}")
        if 0 < version < REPACKED_AT:
            from mulligan.remember import upkeep  # a store of an earlier version, once

            upkeep.count_anew(connection, version, progress)
        connection.execute(f"PRAGMA application_id={APPLICATION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _is_ready(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether nothing has to be written before it can be used: who only reads need not wait for those who write."""
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    return bool(owner == APPLICATION and mode == "wal" and schema_of(connection, path) == len(MIGRATIONS))


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """Turns what SQLite and the file system say into a sentence that says what to do."""
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
"""No other thread may open a file that one has just made and not let go of."""


def _before_fork() -> Callable[[], None]:
    held = [lock for store in tuple(_stores) for lock in store.let_go()]

    def after() -> None:
        for lock in held:
            lock.release()

    return after


forks.hold(lambda: [_making])
forks.around(_before_fork)
