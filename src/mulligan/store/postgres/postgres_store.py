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

from mulligan.core import fork_safety
from mulligan.core.failure import StoreError
from mulligan.core.records import History, Pattern, encode
from mulligan.store import audit, fix_queries, queries, similarity_index, text_erasure
from mulligan.store.base import (
    DAY,
    ForgetRequest,
    ForgetResult,
    Health,
    PatternQuery,
    Progress,
    PruneResult,
    Retention,
    now,
)
from mulligan.store.connection import Connection
from mulligan.store.postgres import fix_lookup, partitions, postgres_tables
from mulligan.store.postgres.pool import Pool, parse_url, redact_password, retain_after_fork, translate_errors
from mulligan.store.postgres.postgres_connection import PostgresConnection
from mulligan.store.sql import DatabaseStore

_ConnectionSource = Callable[[str], contextlib.AbstractContextManager[PostgresConnection]]
_TAKE_TURN_SQL = (
    "INSERT INTO turns (tenant, turn) VALUES (?, 1) ON CONFLICT (tenant) DO UPDATE SET turn = turns.turn + 1 "
    "RETURNING turn"
)


class PostgresStore(DatabaseStore):
    """Store in one PostgreSQL database, whose tables are created if missing.

    `?replica=URL` names a replica for queries that may be slightly outdated. `?pool=N` sets the number of read
    connections of a process. `?pooler=session` states that a pooler in between assigns whole sessions.
    """

    _is_remote = True

    def __init__(
        self, url: str, clock: Callable[[], int] = now, fsync: bool = False, journals: Path | None = None
    ) -> None:
        """Open the store.

        `journals` is the folder of local journals, from which erased records are removed, too. With `fsync` a commit
        waits for the disk, even if the server is configured otherwise.
        """
        super().__init__(clock)
        database_url, replica, pool_size = parse_url(url)
        self.where = redact_password(url)
        self._journals = journals
        self._fsync = fsync
        self._pool = Pool(database_url, pool_size)
        self._replica = Pool(parse_url(replica)[0], pool_size) if replica else None
        self.writer: PostgresConnection | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._turns: dict[str, int] = {}
        self._version = 0
        self._partitions_day = -1
        self._has_similarity_index = False
        try:
            with translate_errors(self.where), self._pool.using() as connection:
                postgres_tables.prepare_schema(connection.raw_connection, self.where)
                self._has_similarity_index = postgres_tables.has_similarity_index(connection.raw_connection)
        except BaseException:
            self.close()
            raise
        _stores.add(self)

    # Connections

    @contextlib.contextmanager
    def read_connection(self, tenant: str) -> Iterator[PostgresConnection]:
        with translate_errors(self.where), self._pool.using() as connection, connection.for_tenants(tenant):
            yield connection

    @contextlib.contextmanager
    def _reading_stale(self, tenant: str) -> Iterator[PostgresConnection]:
        """Yield a connection for queries that may be slightly outdated: the replica, or the primary as a fallback."""
        if self._replica is not None:
            try:
                lease = self._replica.using()
                connection = lease.__enter__()
            except (psycopg.Error, StoreError):
                pass
            else:
                try:
                    with translate_errors(self._replica.where), connection.for_tenants(tenant):
                        yield connection
                finally:
                    lease.__exit__(None, None, None)
                return
        with self.read_connection(tenant) as connection:
            yield connection

    def read_rows(self, tenant: str, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        return self._query_with_retry(self._reading_stale, tenant, sql, tuple(values))

    def _read_own(self, tenant: str, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        """Query the primary, which contains the process's own writes."""
        return self._query_with_retry(self.read_connection, tenant, sql, tuple(values))

    def _query_with_retry(self, where: _ConnectionSource, tenant: str, sql: str, values: tuple[Any, ...]) -> list[Any]:
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
    def write_transaction(self, *tenants: str) -> Iterator[PostgresConnection]:
        with self._lock, translate_errors(self.where):
            writer = self._begin(tenants)
            try:
                yield writer
                writer.raw_connection.execute("COMMIT")
            except BaseException:
                self._undo()
                raise

    def _begin(self, tenants: tuple[str, ...]) -> PostgresConnection:
        """Begin a transaction with these tenants' turns; retry once if the server had closed the connection.

        After a restart, a connection fails at its first use. Nothing was executed on it yet.
        """
        previous_writer = self.writer
        try:
            return self._begin_once(tenants)
        except psycopg.OperationalError:
            if previous_writer is None or not previous_writer.raw_connection.closed:
                raise
        self._pool.drop_idle()  # they were closed by the same restart
        return self._begin_once(tenants)

    def _begin_once(self, tenants: tuple[str, ...]) -> PostgresConnection:
        try:
            writer = self.open_writer()
            writer.begin(*tenants)
            self._take_turns(writer, tenants)
        except BaseException:
            self._undo()
            raise
        return writer

    def _undo(self) -> None:
        self._batch_writer.drop_cache()
        self._turns.clear()
        if self.writer is not None:
            self._roll_back(self.writer)

    def open_writer(self) -> PostgresConnection:
        if self._pid != os.getpid():
            retain_after_fork(self.writer)
            self.writer, self._pid = None, os.getpid()
        if self.writer is not None and (self.writer.raw_connection.closed or self.writer.raw_connection.broken):
            self.writer.close()
            self.writer = None
        if self.writer is None:
            self.writer = self._pool.connect()
            if self._fsync:
                self.writer.set("synchronous_commit", "on")
        self._create_partitions(self.writer)
        return self.writer

    def _create_partitions(self, writer: PostgresConnection) -> None:
        """Create partitions for the coming days, at most once a day."""
        today = self._clock() // DAY
        if today > self._partitions_day:
            partitions.create_partitions(writer.raw_connection, today)
            self._partitions_day = today

    def _take_turns(self, writer: PostgresConnection, tenants: Iterable[str]) -> None:
        """Wait until no other process writes for these tenants. Sorted, so that no two processes deadlock."""
        turns = {
            tenant: writer.execute(_TAKE_TURN_SQL, (tenant,)).fetchone()[0] for tenant in sorted({"", *tenants} - {""})
        }
        if any(turn != self._turns.get(tenant, -1) + 1 for tenant, turn in turns.items()):
            self._version += 1
        self._turns.update(turns)
        self._batch_writer.begin(writer, self._version)

    def _roll_back(self, writer: PostgresConnection) -> None:
        try:
            if not writer.raw_connection.closed:
                writer.raw_connection.execute("ROLLBACK")
        except psycopg.Error:  # the connection is lost, and the transaction with it
            writer.close()
            self._pool.drop_idle()

    # Operations specific to PostgreSQL

    def offset(self, tenant: str, journal: str) -> int:
        rows = self._read_own(
            tenant, "SELECT position FROM journals WHERE tenant = ? AND journal = ?", (tenant, journal)
        )
        return int(rows[0][0]) if rows else 0

    def journals(self, tenant: str) -> list[str]:
        return [
            journal for (journal,) in self._read_own(tenant, "SELECT journal FROM journals WHERE tenant = ?", (tenant,))
        ]

    def get(self, tenant: str, kind: str, key: str) -> bytes | None:
        rows = self._read_own(
            tenant, "SELECT value FROM key_values WHERE tenant = ? AND kind = ? AND key = ?", (tenant, kind, key)
        )
        return bytes(rows[0][0]) if rows else None

    def keys(self, tenant: str, kind: str) -> list[str]:
        rows = self._read_own(
            tenant, "SELECT key FROM key_values WHERE tenant = ? AND kind = ? ORDER BY key", (tenant, kind)
        )
        return [key for (key,) in rows]

    def patterns(self, tenant: str, query: PatternQuery) -> list[Pattern]:
        return queries.find_patterns(self.row_reader(tenant), tenant, query, can_fold_case=False)

    def _fix_lookups(self) -> fix_queries.FixLookups:
        return fix_queries.FixLookups(
            self._find_similar_patterns,
            fix_lookup.find_recent_runs,
            fix_lookup.find_pattern_fixes,
            fix_lookup.find_successful_votes,
        )

    def _find_similar_patterns(
        self, read: fix_queries.Read, tenant: str, tool: str, text: str, stamp: int
    ) -> list[tuple[float, str]]:
        """Compare all patterns of a tool; if there are very many, only candidates from the similarity index."""
        sketches = self._sketch_cache.get_sketches(read, tenant, tool, stamp)
        if len(sketches) < similarity_index.MAX_PATTERNS_PER_TOOL or not self._has_similarity_index:
            return sketches.nearest(text)
        return fix_lookup.find_similar_patterns(read, tenant, tool, text)

    def prune(
        self, tenant: str, policy: Retention, now: int, dry_run: bool = False, progress: Progress | None = None
    ) -> PruneResult:
        from mulligan.store.postgres.postgres_retention import PartitionPruneRound  # rarely needed

        pruner = PartitionPruneRound(
            self.write_transaction, partial(self.read_connection, tenant), _DatabaseSpaceMeter(), tenant, policy, now
        )
        if dry_run:
            return pruner.preview(progress)
        pruned = pruner.perform(progress)
        with self.write_transaction(tenant) as writer:  # pruning itself uses many transactions
            if pruned.runs or pruned.sampled:
                summary = audit.format_counts(runs=pruned.runs, steps=pruned.steps + pruned.sampled)
                self._insert_audit_entry(writer, tenant, "prune", detail=summary)
            self._batch_writer.drop_cache()
        with translate_errors(self.where), self._pool.using() as connection:
            partitions.drop_empty_partitions(connection.raw_connection, now // DAY)
        return pruned

    def forget(self, tenant: str, request: ForgetRequest) -> ForgetResult:
        from mulligan.store import maintenance  # rarely needed
        from mulligan.store.journal_scrubbing import scrub_journals

        text_erasure.validate_request(request)
        with self.write_transaction(tenant) as writer:
            # Erasing scans all tables, without a time limit.
            writer.raw_connection.execute("SET LOCAL statement_timeout = 0")
            eraser = maintenance.Eraser(writer, self._batch_writer, tenant, request)
            forgotten = eraser.perform()
            self._insert_audit_entry(
                writer,
                tenant,
                f"forget.{text_erasure.get_criterion(request)}",
                detail=maintenance.summarize_result(forgotten),
            )
        if self._journals is not None:
            scrub_journals(self._journals, request, eraser.removed_run_ids)
        return forgotten

    def erase(self, tenant: str) -> int:
        with self.write_transaction(tenant) as writer:
            self._batch_writer.drop_cache()
            table_rows = writer.execute(
                "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant' "
                "WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') "
                "AND NOT c.relispartition AND c.relname NOT IN ('turns', 'audit')"
            ).fetchall()
            deletions = [writer.execute(f"DELETE FROM {table} WHERE tenant = ?", (tenant,)) for (table,) in table_rows]
            erased = sum(rows.rowcount for rows in deletions)
            if erased:
                self._insert_audit_entry(writer, tenant, "tenant.erase", detail=audit.format_counts(rows=erased))
            return erased

    def backup(self, to: Path, progress: Progress | None = None, replaces: bool = False) -> Health:
        raise StoreError(
            f"Back up {self.where} with PostgreSQL: pg_dump --format=custom --file={to} URL. "
            "For a file that mulligan can open: mulligan copy URL PATH"
        )

    def health(self, tenant: str) -> Health:
        try:
            ((runs,),) = self._read_own(tenant, "SELECT count(*) FROM runs WHERE tenant = ?", (tenant,))
            ((steps,),) = self._read_own(tenant, "SELECT count(*) FROM steps WHERE tenant = ?", (tenant,))
        except StoreError as error:
            return Health(where=self.where, healthy=False, detail=str(error))
        return Health(where=self.where, healthy=True, runs=runs, steps=steps)

    def close(self) -> None:
        with self._lock:
            if self.writer is not None and self._pid == os.getpid():
                self.writer.close()
            self.writer = None
        self._pool.close()
        if self._replica is not None:
            self._replica.close()


class _DatabaseSpaceMeter:
    """Size of the database minus deleted bytes: PostgreSQL frees space only when it vacuums."""

    def __init__(self) -> None:
        self._removed = 0

    def total_bytes(self, connection: Connection) -> int:
        (size,) = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        return int(size)

    def used_bytes(self, connection: Connection) -> int:
        return max(self.total_bytes(connection) - self._removed, 0)

    def on_run_removed(self, history: History) -> None:
        # Estimated size of the rows and their index entries.
        self.add_freed_bytes(600 + sum(300 + len(encode(step)) for step in history.steps))

    def add_freed_bytes(self, size: int) -> None:
        self._removed += size


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()
fork_safety.hold_locks(lambda: [store._lock for store in tuple(_stores)])
