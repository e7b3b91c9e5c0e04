"""A Store in a file. One writer, on the recorder's thread; one reader a thread."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mulligan import calls, figures
from mulligan.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.failure import StoreError
from mulligan.figures import Stats, StatsQuery
from mulligan.records import History, Link, Pattern, Precedent, Run, Step, decode, encode
from mulligan.remember import forgetting, patterns, retention
from mulligan.remember.memory import is_forgotten, is_history_asked
from mulligan.remember.patterns import Decision, Tally
from mulligan.remember.store import (
    LOCAL,
    Command,
    Forget,
    Forgotten,
    Health,
    PatternQuery,
    Progress,
    Pruned,
    Question,
    Retention,
    RunQuery,
)
from mulligan.remember.tables import APPLICATION, MIGRATIONS

BUSY_MS = 5000
TOGETHER = 50
"""Rows that are kept by one statement."""
SEEN = 10_000
"""Runs that are remembered, to tell a run that begins from one whose steps come in disorder."""


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

    def __init__(self, path: Path) -> None:
        self.path = path
        self._threads = threading.local()
        self._writer = _Connection(self._connect, "PRAGMA synchronous=NORMAL")
        self._readers: list[_Connection] = []
        self._quiet: set[tuple[str, str]] = set()
        """Runs under way in which nothing has failed."""
        self._seen: set[tuple[str, str]] = set()
        self._is_closed = False
        with _told(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Arguments of calls are in it: readable by its owner alone, from the first byte.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            _refuse(path)
            with self._writer as writer:
                _prepare(writer, path)
        _stores.add(self)

    def _connect(self) -> sqlite3.Connection:
        if self._is_closed:
            raise sqlite3.ProgrammingError("it was closed")
        return sqlite3.connect(self.path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False)

    def _read(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        reader: _Connection | None = getattr(self._threads, "reader", None)
        if reader is None:
            reader = self._threads.reader = _Connection(self._connect, "PRAGMA query_only=ON")
            self._readers.append(reader)
        with _told(self.path), reader as connection:
            return list(connection.execute(sql, tuple(values)))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with _told(self.path), self._writer as writer:
            writer.execute("BEGIN IMMEDIATE")
            try:
                yield writer
                writer.execute("COMMIT")
            except BaseException:
                if writer.in_transaction:  # a full disk may have ended it already
                    writer.execute("ROLLBACK")
                raise

    def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int) -> int:
        with self._writing() as writer:
            place = (tenant, journal)
            known = writer.execute("SELECT upto FROM journals WHERE tenant = ? AND journal = ?", place).fetchone()
            if offset <= (known[0] if known else 0):
                return 0
            writer.execute("INSERT OR REPLACE INTO journals VALUES (?, ?, ?)", (*place, offset))
            before = writer.total_changes
            told = [event for event in batch if isinstance(event, RunStarted | RunEnded)]
            for kind, events in itertools.groupby(told, key=type):  # in their order
                _put(writer, _RUN_PUT[kind], [_run_row(tenant, event.run) for event in events])
            runs = writer.total_changes - before
            steps = [event.step for event in batch if isinstance(event, StepEnded)]
            _put(writer, _STEP, [_row(tenant, step) for step in steps])
            kept = writer.total_changes - before
            ended = {event.run.id for event in told if isinstance(event, RunEnded)}
            for run in self._to_link(tenant, steps, ended, are_new=kept - runs == len(steps)):
                self._relink(writer, tenant, run)
            return kept

    def _to_link(self, tenant: str, steps: list[Step], ended: set[str], are_new: bool) -> set[str]:
        """The runs in which something may have been overcome just now.

        All of them, but for those whose every step we have seen since the first, and none failed: as in most.
        """
        if len(self._seen) > SEEN:
            self._seen.clear()
        touched = {(tenant, run) for run in {step.run for step in steps}}
        if are_new:
            begun = {(tenant, step.run) for step in steps if step.seq == 1}
            self._quiet |= begun - self._seen  # not if a later step came before the first
        self._seen |= touched
        self._quiet.difference_update([(tenant, step.run) for step in steps if step.failure is not None])
        loud = {run for _, run in touched - self._quiet}
        self._quiet.difference_update([(tenant, run) for run in ended])
        return loud

    def _relink(self, writer: sqlite3.Connection, tenant: str, run: str) -> None:
        """Links made where the success is kept, so that a crash cannot separate the two."""
        # Anew: a step that comes late may show that what seemed to overcome a failure did not.
        writer.execute("DELETE FROM links WHERE tenant = ? AND run = ?", (tenant, run))
        failed = writer.execute(
            "SELECT 1 FROM steps WHERE tenant = ? AND run = ? AND fingerprint IS NOT NULL LIMIT 1", (tenant, run)
        ).fetchone()
        if failed is None:
            return
        rows = writer.execute("SELECT body FROM steps WHERE tenant = ? AND run = ? ORDER BY seq", (tenant, run))
        steps = [decode(body, Step) for (body,) in rows]
        failures = {call.id: call for call in calls.joined(steps) if call.has_failed}
        for link in calls.overcame(steps):
            call = failures[link.failed]
            fingerprint = call.failure.fingerprint if call.failure else ""
            writer.execute(
                "INSERT INTO links VALUES (?, ?, ?, ?, ?, ?)",
                (tenant, run, link.failed, call.name, fingerprint, encode(link)),
            )

    def offset(self, tenant: str, journal: str) -> int:
        rows = self._read("SELECT upto FROM journals WHERE tenant = ? AND journal = ?", (tenant, journal))
        return int(rows[0][0]) if rows else 0

    def runs(self, tenant: str, query: RunQuery) -> list[History]:
        known = self.pattern(tenant, query.pattern) if query.pattern is not None else None
        asked = {known.id, *known.merged} if known is not None else set()
        histories = (self._history(tenant, run) for run in self._found(tenant, query))
        found = (history for history in histories if is_history_asked(history, query, asked))
        return list(itertools.islice(found, max(query.limit, 0)))

    def _found(self, tenant: str, query: RunQuery, limit: int = -1) -> list[Run]:
        conditions: dict[str, tuple[Any, ...]] = {
            "agent = ?": (query.agent,),
            "session = ?": (query.session,),
            "started >= ?": (query.since,),
            "started < ?": (query.until,),
            "(started, id) < (?, ?)": query.before or (None, None),
        }
        given = {condition: values for condition, values in conditions.items() if values[0] is not None}
        where = " AND ".join(["tenant = ?", *given])
        rows = self._read(
            f"SELECT body FROM runs WHERE {where} ORDER BY started DESC, id DESC LIMIT ?",
            (tenant, *(value for values in given.values() for value in values), limit),
        )
        runs = (decode(body, Run) for (body,) in rows)
        return [
            run
            for run in runs
            if (query.environment is None or run.environment == query.environment)
            and (query.version is None or run.version == query.version)
        ]

    def run(self, tenant: str, id: str) -> History | None:
        rows = self._read("SELECT body FROM runs WHERE tenant = ? AND id = ?", (tenant, id))
        return self._history(tenant, decode(rows[0][0], Run)) if rows else None

    def _history(self, tenant: str, run: Run) -> History:
        steps = self._read("SELECT body FROM steps WHERE tenant = ? AND run = ? ORDER BY seq", (tenant, run.id))
        links = self._read("SELECT body FROM links WHERE tenant = ? AND run = ? ORDER BY failed", (tenant, run.id))
        return History(
            run=run,
            steps=tuple(decode(body, Step) for (body,) in steps),
            links=tuple(decode(body, Link) for (body,) in links),
        )

    def find(self, tenant: str, prefix: str, limit: int = 5) -> list[Run]:
        rows = self._read(
            "SELECT body FROM runs WHERE tenant = ? AND substr(id, 1, ?) = ? ORDER BY started DESC, id DESC LIMIT ?",
            (tenant, len(prefix), prefix, max(limit, 0)),
        )
        return [decode(body, Run) for (body,) in rows]

    def export(self, tenant: str, since: int = 0) -> Iterator[History]:
        for run in reversed(self._found(tenant, RunQuery(since=since))):
            yield self._history(tenant, run)

    def prune(
        self, tenant: str, policy: Retention, now: int, dry_run: bool = False, progress: Progress | None = None
    ) -> Pruned:
        runs = steps = 0
        for history in self.export(tenant):
            status = calls.status(history.run, history.steps, history.links)
            if retention.is_expired(status, history.run.ended or history.run.started, policy, now):
                runs, steps = runs + 1, steps + len(history.steps)
                if not dry_run:
                    with self._writing() as writer:
                        self._remove(writer, tenant, history.run.id)
        return Pruned(runs=runs, steps=steps)

    def forget(self, tenant: str, what: Forget) -> Forgotten:
        forgetting.check(what)
        before = set(self._tallies(tenant))
        runs = steps = 0
        with self._writing() as writer:
            writer.execute("PRAGMA secure_delete=ON")
            for (id,) in writer.execute(
                "SELECT DISTINCT run FROM steps WHERE tenant = ?1 UNION SELECT id FROM runs WHERE tenant = ?1",
                (tenant,),
            ).fetchall():
                gone, touched = self._forget_in(writer, tenant, id, what)
                runs, steps = runs + gone, steps + touched
            shelf = [
                (tenant, kind, key)
                for kind, key, value in writer.execute("SELECT kind, key, value FROM shelf WHERE tenant = ?", (tenant,))
                if is_forgotten(kind, key, value, what)
            ]
            writer.executemany("DELETE FROM shelf WHERE tenant = ? AND kind = ? AND key = ?", shelf)
        lost = before - set(self._tallies(tenant))
        left = {
            id: decision
            for id, decision in self._decisions(tenant).items()
            if id not in lost and decision.into not in lost
        }
        self.put(tenant, "patterns", "decisions", encode(left))
        return Forgotten(runs=runs, steps=steps, patterns=len(lost), shelf=len(shelf))

    def _forget_in(self, writer: sqlite3.Connection, tenant: str, id: str, what: Forget) -> tuple[int, int]:
        """How many runs (none or one) and steps were removed or changed."""
        place = (tenant, id)
        known = writer.execute("SELECT body FROM runs WHERE tenant = ? AND id = ?", place).fetchone()
        run = decode(known[0], Run) if known else None
        is_text_in_id = what.text is not None and what.text in id
        if what.run == id or is_text_in_id or (what.session is not None and run and run.session == what.session):
            return self._remove(writer, tenant, id)
        rows = writer.execute("SELECT body FROM steps WHERE tenant = ? AND run = ? ORDER BY seq", place).fetchall()
        steps = [decode(body, Step) for (body,) in rows]
        changed = steps
        if what.tool is not None:
            changed = [step for step in steps if step.name != what.tool]
            if steps and not changed:
                return self._remove(writer, tenant, id)
        elif what.text is not None:
            changed = [forgetting.without(step, what.text) for step in steps]
        touched = len(steps) - sum(step in changed for step in steps)
        if touched:
            writer.execute("DELETE FROM steps WHERE tenant = ? AND run = ?", place)
            _put(writer, _STEP, [_row(tenant, step) for step in changed])
            self._relink(writer, tenant, id)
        cleaned = forgetting.without(run, what.text) if run is not None and what.text is not None else run
        if cleaned is not None and cleaned != run:
            _put(writer, _RUN_PUT[RunEnded], [_run_row(tenant, cleaned)])
            return 1, touched
        return 0, touched

    def _remove(self, writer: sqlite3.Connection, tenant: str, run: str) -> tuple[int, int]:
        place = (tenant, run)
        writer.execute("DELETE FROM links WHERE tenant = ? AND run = ?", place)
        steps = writer.execute("DELETE FROM steps WHERE tenant = ? AND run = ?", place).rowcount
        return writer.execute("DELETE FROM runs WHERE tenant = ? AND id = ?", place).rowcount, steps

    def backup(self, to: Path, progress: Progress | None = None) -> Health:
        with _told(to), self._writer as writer, contextlib.closing(sqlite3.connect(to)) as copy:
            writer.backup(copy)
        copied = SqliteStore(to)
        try:
            return copied.health(LOCAL)
        finally:
            copied.close()

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

    def before_fork(self) -> None:
        """Lets go of the file, so that no child inherits a connection: SQLite's locks do not survive a fork."""
        self._held = (self._writer, *self._readers)
        for connection in self._held:
            connection.lock.acquire()
            connection.close()

    def after_fork(self) -> None:
        for connection in self._held:
            connection.lock.release()

    def recall(self, tenant: str, question: Question) -> list[Precedent]:
        asked = (tenant, question.tool, question.fingerprint)
        rows = self._read(
            "SELECT body FROM links WHERE tenant = ? AND name = ? AND fingerprint = ? ORDER BY rowid DESC LIMIT 200",
            asked,
        )
        links = [decode(body, Link) for (body,) in rows]
        if not links:
            return []
        ((others,),) = self._read(
            "SELECT count(DISTINCT run) FROM steps WHERE tenant = ? AND name = ? AND fingerprint = ? AND run <> ?",
            (*asked, question.run),
        )
        seen = others + any(link.run == question.run for link in links)
        return calls.precedents(links, seen)[: max(question.limit, 0)]

    def patterns(self, tenant: str, query: PatternQuery) -> list[Pattern]:
        parts = [tally.pattern(query.since) for tally in self._tallies(tenant).values()]
        whole = patterns.shown(parts, self._decisions(tenant))
        found = patterns.in_order((each for each in whole if patterns.is_asked(each, query)), query)
        return [patterns.told(pattern) for pattern in found]

    def _tallies(self, tenant: str) -> dict[str, Tally]:
        found: dict[str, Tally] = {}
        for history in self.export(tenant):
            for sighting in patterns.sightings(history):
                found.setdefault(sighting.pattern, Tally(sighting)).add(sighting)
        return found

    def _decisions(self, tenant: str) -> dict[str, Decision]:
        return decode(self.get(tenant, "patterns", "decisions") or b"{}", dict[str, Decision])

    def pattern(self, tenant: str, id: str) -> Pattern | None:
        tallies = self._tallies(tenant)
        exact = patterns.whole_id(id, tallies)
        whole = patterns.shown([tally.pattern() for tally in tallies.values()], self._decisions(tenant))
        found = next((each for each in whole if exact in (each.id, *each.merged)), None)
        return None if found is None else patterns.told(found, with_examples=True)

    def change(self, tenant: str, command: Command) -> Pattern | None:
        decisions = self._decisions(tenant)
        found = patterns.named(command, self._tallies(tenant), decisions)
        if found is None:
            return None
        command, changed = found
        current = self.pattern(tenant, changed)
        assert current is not None
        decisions[changed] = patterns.decided(command, decisions.get(changed, Decision()), current)
        self.put(tenant, "patterns", "decisions", encode(decisions))
        return self.pattern(tenant, changed)

    def stats(self, tenant: str, query: StatsQuery) -> Stats:
        return figures.stats(self.export(tenant), query)

    def get(self, tenant: str, kind: str, key: str) -> bytes | None:
        rows = self._read("SELECT value FROM shelf WHERE tenant = ? AND kind = ? AND key = ?", (tenant, kind, key))
        return bytes(rows[0][0]) if rows else None

    def put(self, tenant: str, kind: str, key: str, value: bytes) -> None:
        with self._writing() as writer:
            writer.execute("INSERT OR REPLACE INTO shelf VALUES (?, ?, ?, ?)", (tenant, kind, key, value))


def _row(tenant: str, step: Step) -> tuple[Any, ...]:
    failure = step.failure
    if failure is not None and not step.has_failed:
        failure = None
    return (
        tenant,
        step.run,
        step.seq,
        step.call,
        step.name,
        step.outcome,
        None if failure is None else str(failure.kind),
        None if failure is None else failure.fingerprint,
        step.started,
        encode(step),
    )


def _run_row(tenant: str, run: Run) -> tuple[Any, ...]:
    return (tenant, run.id, run.agent, run.session, run.started, encode(run))


class _Insert(NamedTuple):
    """A row into a table, and many of them in one statement."""

    one: str
    many: str

    @classmethod
    def of(cls, start: str, columns: int, end: str = "") -> _Insert:
        row = f"({', '.join('?' * columns)})"
        return cls(f"{start} VALUES {row} {end}", f"{start} VALUES {', '.join([row] * TOGETHER)} {end}")


_STEP = _Insert.of("INSERT OR IGNORE INTO steps", 10)
_RUN_PUT: dict[type[AnyEvent], _Insert] = {
    RunStarted: _Insert.of("INSERT INTO runs", 6, "ON CONFLICT (tenant, id) DO NOTHING"),
    RunEnded: _Insert.of(
        "INSERT INTO runs",
        6,
        """
        ON CONFLICT (tenant, id) DO UPDATE
        SET agent = excluded.agent, session = excluded.session, started = excluded.started, body = excluded.body
        WHERE body <> excluded.body
        """,
    ),
}


def _put(writer: sqlite3.Connection, insert: _Insert, rows: list[tuple[Any, ...]]) -> None:
    """Many rows a statement: each statement lets go of the interpreter's lock, and a busy host gives it back late."""
    whole = len(rows) - len(rows) % TOGETHER
    for start in range(0, whole, TOGETHER):
        writer.execute(insert.many, list(itertools.chain.from_iterable(rows[start : start + TOGETHER])))
    writer.executemany(insert.one, rows[whole:])


def _refuse(path: Path) -> None:
    """Refuses a file that is not ours to write to, before anything about it is changed."""
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None)) as connection:
        connection.execute("PRAGMA query_only=ON")
        connection.execute("BEGIN")  # one moment: another process may be making it just now
        _version(connection, path)


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """How many migrations it has had, if it is ours and we know them all."""
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if owner != APPLICATION and (owner or version or tables):
        raise StoreError(f"{path} is a database of another program. Name another file: --store sqlite:///PATH")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path} was written by a newer mulligan (schema {version}; this one knows {len(MIGRATIONS)}). "
            "It was left as it is. Upgrade: pip install -U mulligan"
        )
    return int(version)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Pragmas and migrations. Several processes may come here at once, so migrating happens under one lock."""
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # before WAL, or it stays off for the life of the file
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection, path)
        for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={number}")
        connection.execute(f"PRAGMA application_id={APPLICATION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
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
_forking: list[SqliteStore] = []
_one_fork = threading.RLock()
"""Two threads that fork at once would otherwise let go of each other's stores."""
_is_forking = False


def _before_fork() -> None:
    global _is_forking
    _one_fork.acquire()
    _is_forking = True
    _forking[:] = _stores
    for store in _forking:
        store.before_fork()


def _after_fork() -> None:
    global _is_forking
    if not _is_forking:
        return  # this file was imported by one thread while another was in the middle of a fork
    for store in _forking:
        store.after_fork()
    _forking.clear()
    _is_forking = False
    _one_fork.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
