"""PostgreSQL store for teams: one writer per process, and one process at a time per tenant.

A batch is one transaction. Each write takes the tenant's turn, a counter that shows whether another process has written
since; then caches are dropped. If the answer to a COMMIT is lost, the recorder retries, and the journal offset shows
whether the first attempt succeeded.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from mulligan import forks
from mulligan.failure import StoreError
from mulligan.records import History, Pattern, encode
from mulligan.remember import audit, candidates, forgetting, found, learning
from mulligan.remember.connection import Connection
from mulligan.remember.database import DatabaseStore
from mulligan.remember.postgres import asking, days, tables
from mulligan.remember.postgres.connection import PostgresConnection
from mulligan.remember.postgres.pool import Pool, leave_behind, parts_of, shown, told
from mulligan.remember.store import (
    DAY,
    Forget,
    Forgotten,
    Health,
    PatternQuery,
    Progress,
    Pruned,
    Retention,
    now,
)

_Where = Callable[[str], contextlib.AbstractContextManager[PostgresConnection]]
_TURN = (
    "INSERT INTO turns (tenant, turn) VALUES (?, 1) ON CONFLICT (tenant) DO UPDATE SET turn = turns.turn + 1 "
    "RETURNING turn"
)


class PostgresStore(DatabaseStore):
    """Store in one PostgreSQL database, whose tables are created if missing.

    `?replica=URL` names a replica for queries that may be slightly outdated. `?pool=N` sets the number of read
    connections of a process. `?pooler=session` states that a pooler in between assigns whole sessions.
    """

    _is_far = True

    def __init__(
        self, url: str, clock: Callable[[], int] = now, fsync: bool = False, journals: Path | None = None
    ) -> None:
        """Open the store.

        `journals` is the folder of local journals, from which erased records are removed, too. With `fsync` a commit
        waits for the disk, even if the server is configured otherwise.
        """
        super().__init__(clock)
        plain, replica, most = parts_of(url)
        self.where = shown(url)
        self._journals = journals
        self._fsync = fsync
        self._pool = Pool(plain, most)
        self._replica = Pool(parts_of(replica)[0], most) if replica else None
        self._writer: PostgresConnection | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._turns: dict[str, int] = {}
        self._version = 0
        self._made = -1
        self._finds_alike = False
        try:
            with told(self.where), self._pool.using() as connection:
                tables.prepare(connection.made, self.where)
                self._finds_alike = tables.has_alike(connection.made)
        except BaseException:
            self.close()
            raise
        _stores.add(self)

    # Connections

    @contextlib.contextmanager
    def _reading(self, tenant: str) -> Iterator[PostgresConnection]:
        with told(self.where), self._pool.using() as connection, connection.asking(tenant):
            yield connection

    @contextlib.contextmanager
    def _asking(self, tenant: str) -> Iterator[PostgresConnection]:
        """Yield a connection for queries that may be slightly outdated: the replica, or the primary as a fallback."""
        if self._replica is not None:
            try:
                used = self._replica.using()
                connection = used.__enter__()
            except (psycopg.Error, StoreError):
                pass
            else:
                try:
                    with told(self._replica.where), connection.asking(tenant):
                        yield connection
                finally:
                    used.__exit__(None, None, None)
                return
        with self._reading(tenant) as connection:
            yield connection

    def _read(self, tenant: str, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        return self._answered(self._asking, tenant, sql, tuple(values))

    def _read_own(self, tenant: str, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        """Query the primary, which contains the process's own writes."""
        return self._answered(self._reading, tenant, sql, tuple(values))

    def _answered(self, where: _Where, tenant: str, sql: str, values: tuple[Any, ...]) -> list[Any]:
        """Execute a query; retry once if the server had closed the connection."""
        try:
            with where(tenant) as connection:
                return connection.execute(sql, values).fetchall()
        except StoreError as error:
            if not isinstance(error.__cause__, psycopg.OperationalError) or error.__cause__.sqlstate == "57014":
                raise
        with where(tenant) as connection:
            return connection.execute(sql, values).fetchall()

    @contextlib.contextmanager
    def _writing(self, *tenants: str) -> Iterator[PostgresConnection]:
        with self._lock, told(self.where):
            writer = self._begun(tenants)
            try:
                yield writer
                writer.made.execute("COMMIT")
            except BaseException:
                self._undo()
                raise

    def _begun(self, tenants: tuple[str, ...]) -> PostgresConnection:
        """Begin a transaction with these tenants' turns; retry once if the server had closed the connection.

        After a restart, a connection fails at its first use. Nothing was executed on it yet.
        """
        had = self._writer
        try:
            return self._begun_once(tenants)
        except psycopg.OperationalError:
            if had is None or not had.made.closed:
                raise
        self._pool.drop_idle()  # they were closed by the same restart
        return self._begun_once(tenants)

    def _begun_once(self, tenants: tuple[str, ...]) -> PostgresConnection:
        try:
            writer = self._ours()
            writer.begin(*tenants)
            self._take_turns(writer, tenants)
        except BaseException:
            self._undo()
            raise
        return writer

    def _undo(self) -> None:
        self._ledger.let_go()
        self._turns.clear()
        if self._writer is not None:
            self._roll_back(self._writer)

    def _ours(self) -> PostgresConnection:
        if self._pid != os.getpid():
            leave_behind(self._writer)
            self._writer, self._pid = None, os.getpid()
        if self._writer is not None and (self._writer.made.closed or self._writer.made.broken):
            self._writer.close()
            self._writer = None
        if self._writer is None:
            self._writer = self._pool.connect()
            if self._fsync:
                self._writer.set("synchronous_commit", "on")
        self._make_parts(self._writer)
        return self._writer

    def _make_parts(self, writer: PostgresConnection) -> None:
        """Create partitions for the coming days, at most once a day."""
        today = self._clock() // DAY
        if today > self._made:
            days.make_parts(writer.made, today)
            self._made = today

    def _take_turns(self, writer: PostgresConnection, tenants: Iterable[str]) -> None:
        """Wait until no other process writes for these tenants. Sorted, so that no two processes deadlock."""
        turns = {tenant: writer.execute(_TURN, (tenant,)).fetchone()[0] for tenant in sorted({"", *tenants} - {""})}
        if any(turn != self._turns.get(tenant, -1) + 1 for tenant, turn in turns.items()):
            self._version += 1
        self._turns.update(turns)
        self._ledger.begin(writer, self._version)

    def _roll_back(self, writer: PostgresConnection) -> None:
        try:
            if not writer.made.closed:
                writer.made.execute("ROLLBACK")
        except psycopg.Error:  # the connection is lost, and the transaction with it
            writer.close()
            self._pool.drop_idle()

    # Operations specific to PostgreSQL

    def offset(self, tenant: str, journal: str) -> int:
        rows = self._read_own(tenant, "SELECT upto FROM journals WHERE tenant = ? AND journal = ?", (tenant, journal))
        return int(rows[0][0]) if rows else 0

    def journals(self, tenant: str) -> list[str]:
        return [
            journal for (journal,) in self._read_own(tenant, "SELECT journal FROM journals WHERE tenant = ?", (tenant,))
        ]

    def get(self, tenant: str, kind: str, key: str) -> bytes | None:
        rows = self._read_own(
            tenant, "SELECT value FROM shelf WHERE tenant = ? AND kind = ? AND key = ?", (tenant, kind, key)
        )
        return bytes(rows[0][0]) if rows else None

    def keys(self, tenant: str, kind: str) -> list[str]:
        rows = self._read_own(
            tenant, "SELECT key FROM shelf WHERE tenant = ? AND kind = ? ORDER BY key", (tenant, kind)
        )
        return [key for (key,) in rows]

    def patterns(self, tenant: str, query: PatternQuery) -> list[Pattern]:
        return found.found(self._reader(tenant), tenant, query, folds=False)

    def _ways(self) -> learning.Ways:
        return learning.Ways(self._near, asking.latest, asking.fixes_of, asking.samples)

    def _near(self, read: learning.Read, tenant: str, tool: str, text: str, stamp: int) -> list[tuple[float, str]]:
        """Compare all patterns of a tool; if there are very many, only candidates from the similarity index."""
        known = self._candidates.of(read, tenant, tool, stamp)
        if len(known) < candidates.MOST or not self._finds_alike:
            return known.nearest(text)
        return asking.near(read, tenant, tool, text)

    def prune(
        self, tenant: str, policy: Retention, now: int, dry_run: bool = False, progress: Progress | None = None
    ) -> Pruned:
        from mulligan.remember.postgres.retention import DayPruning  # rarely needed

        round = DayPruning(self._writing, partial(self._reading, tenant), _Space(), tenant, policy, now)
        if dry_run:
            return round.rehearse(progress)
        pruned = round.perform(progress)
        with self._writing(tenant) as writer:  # pruning itself uses many transactions
            if pruned.runs or pruned.sampled:
                told_of = audit.counted(runs=pruned.runs, steps=pruned.steps + pruned.sampled)
                self._note(writer, tenant, "prune", told=told_of)
            self._ledger.let_go()
        with told(self.where), self._pool.using() as connection:
            days.drop_empty(connection.made, now // DAY)
        return pruned

    def forget(self, tenant: str, what: Forget) -> Forgotten:
        from mulligan.remember import upkeep  # rarely needed
        from mulligan.remember.recording.scrubbing import scrub

        forgetting.check(what)
        with self._writing(tenant) as writer:
            # Erasing scans all tables, without a time limit.
            writer.made.execute("SET LOCAL statement_timeout = 0")
            work = upkeep.Forgetting(writer, self._ledger, tenant, what)
            forgotten = work.perform()
            self._note(writer, tenant, f"forget.{forgetting.sort(what)}", told=upkeep.told(forgotten))
        if self._journals is not None:
            scrub(self._journals, what, work.gone)
        return forgotten

    def erase(self, tenant: str) -> int:
        with self._writing(tenant) as writer:
            self._ledger.let_go()
            named = writer.execute(
                "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant' "
                "WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') "
                "AND NOT c.relispartition AND c.relname NOT IN ('turns', 'audit')"
            ).fetchall()
            gone = [writer.execute(f"DELETE FROM {table} WHERE tenant = ?", (tenant,)) for (table,) in named]
            erased = sum(rows.rowcount for rows in gone)
            if erased:
                self._note(writer, tenant, "tenant.erase", told=audit.counted(rows=erased))
            return erased

    def backup(self, to: Path, progress: Progress | None = None, replaces: bool = False) -> Health:
        raise StoreError(
            f"a copy of {self.where} is made by PostgreSQL itself: pg_dump --format=custom --file={to} URL. "
            "Into a file that mulligan can open: mulligan copy URL PATH"
        )

    def health(self, tenant: str) -> Health:
        try:
            ((runs,),) = self._read_own(tenant, "SELECT count(*) FROM runs WHERE tenant = ?", (tenant,))
            ((steps,),) = self._read_own(tenant, "SELECT count(*) FROM steps WHERE tenant = ?", (tenant,))
        except StoreError as error:
            return Health(where=self.where, sound=False, note=str(error))
        return Health(where=self.where, sound=True, runs=runs, steps=steps)

    def close(self) -> None:
        with self._lock:
            if self._writer is not None and self._pid == os.getpid():
                self._writer.close()
            self._writer = None
        self._pool.close()
        if self._replica is not None:
            self._replica.close()


class _Space:
    """Size of the database minus deleted bytes: PostgreSQL frees space only when it vacuums."""

    def __init__(self) -> None:
        self._removed = 0

    def size(self, connection: Connection) -> int:
        (size,) = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        return int(size)

    def used(self, connection: Connection) -> int:
        return max(self.size(connection) - self._removed, 0)

    def removed(self, history: History) -> None:
        # Estimated size of the rows and their index entries.
        self.freed(600 + sum(300 + len(encode(step)) for step in history.steps))

    def freed(self, size: int) -> None:
        self._removed += size


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()
forks.hold(lambda: [store._lock for store in tuple(_stores)])
