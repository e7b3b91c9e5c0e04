"""PostgreSQL store for teams: one writer per process. Processes append batches of one tenant at the same time.

A batch is one transaction, with a lock on the tenant that batches share. All other writes wait for the running batches
and have the tenant alone. If the answer to a COMMIT is lost, the recorder retries, and the journal offset shows whether
the first attempt succeeded.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from mulligan.contract.search_terms import SearchTerm, split_words
from mulligan.contract.store import (
    DAY,
    Health,
    Progress,
    Worker,
    now,
)
from mulligan.core import fork_safety
from mulligan.core.failure import StoreError
from mulligan.core.records import digest
from mulligan.learn import patterns
from mulligan.store import fix_votes, queries, run_texts
from mulligan.store.connection import ConcurrentAppendError, Connection, RowReader
from mulligan.store.postgres import partitions, postgres_tables, workers
from mulligan.store.postgres.pool import Pool, inherited_connections, translate_errors
from mulligan.store.postgres.postgres_connection import PostgresConnection
from mulligan.store.retention import PruneRound
from mulligan.store.sql import DatabaseStore, T

MAX_WORD_CHARS = 200
"""Longer words are indexed by their beginning."""
MAX_WORDS_BYTES = 1_000_000
"""Of all words of a run. A TSVECTOR holds a little more, with the word of the tenant."""
MAX_COMPARED_PATTERNS = 64
"""Limit of candidates from the similarity index. They are then compared by sketch, as in other stores."""


class PostgresStore(DatabaseStore):
    """Store in one PostgreSQL database, whose tables are created if missing.

    `?replica=URL` names a replica for queries that may be slightly outdated. `?pool=N` sets the number of read
    connections of a process. `?pooler=session` states that a pooler in between assigns whole sessions.
    """

    _can_fold_case = False

    def __init__(
        self, url: str, clock: Callable[[], int] = now, fsync: bool = False, journals: Path | None = None
    ) -> None:
        """Open the store.

        `journals` is the folder of local journals, from which erased records are removed, too. With `fsync` a commit
        waits for the disk, even if the server is configured otherwise.
        """
        super().__init__(clock, journals)
        self._fsync = fsync
        self._pool = Pool(url)
        self.where, replica = self._pool.where, self._pool.url.replica
        self._replica = Pool(replica, self._pool.url.pool_size) if replica else None
        self._outages = workers.WorkerOutages(self._read_worker)
        self.writer: PostgresConnection | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._partitions_day = -1
        self._has_similarity_index = self._has_workers = False
        try:
            with translate_errors(self.where), self._pool.using() as connection:
                postgres_tables.prepare_schema(connection.raw_connection, self.where)
                self._has_similarity_index = postgres_tables.has_similarity_index(connection.raw_connection)
                self._has_workers = workers.has_workers(connection.raw_connection)
        except BaseException:
            self.close()
            raise
        _stores.add(self)

    # Connections

    @contextlib.contextmanager
    def read_connection(self, tenant: str) -> Iterator[PostgresConnection]:
        with (
            self._outages.watch((tenant,)),
            translate_errors(self.where),
            self._pool.using() as connection,
            connection.transaction(tenant),
        ):
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
                    with translate_errors(self._replica.where), connection.transaction(tenant):
                        yield connection
                finally:
                    lease.__exit__(None, None, None)
                return
        with self.read_connection(tenant) as connection:
            yield connection

    def ask(self, tenant: str, question: Callable[[Connection], T], is_own: bool = False) -> T:
        """Answer a question; retry once if the server had closed the connection."""
        return _retry_once(partial(super().ask, tenant, question, is_own))

    @contextlib.contextmanager
    def write_transaction(self, *tenants: str) -> Iterator[PostgresConnection]:
        with self._transaction(tenants, is_exclusive=True) as writer:
            yield writer

    @contextlib.contextmanager
    def append_transaction(self, *tenants: str) -> Iterator[PostgresConnection]:
        try:
            with self._transaction(tenants, is_exclusive=False) as writer:
                yield writer
        except StoreError as error:
            if isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
                raise ConcurrentAppendError from error
            raise

    @contextlib.contextmanager
    def _transaction(self, tenants: tuple[str, ...], is_exclusive: bool) -> Iterator[PostgresConnection]:
        with self._outages.watch(tenants), self._lock, translate_errors(self.where):
            writer = self._begin(tenants, is_exclusive)
            try:
                yield writer
                writer.commit()
            except BaseException:
                self._undo(is_exclusive)
                raise

    def _begin(self, tenants: tuple[str, ...], is_exclusive: bool) -> PostgresConnection:
        """Begin a transaction that locks these tenants; retry once if the server had closed the connection.

        After a restart, a connection fails at its first use. Nothing was executed on it yet.
        """
        previous_writer = self.writer
        try:
            return self._begin_once(tenants, is_exclusive)
        except psycopg.OperationalError:
            if previous_writer is None or not previous_writer.raw_connection.closed:
                raise
        self._pool.drop_idle()  # they were closed by the same restart
        return self._begin_once(tenants, is_exclusive)

    def _begin_once(self, tenants: tuple[str, ...], is_exclusive: bool) -> PostgresConnection:
        try:
            writer = self.open_writer()
            writer.begin(*tenants, is_exclusive=is_exclusive)
        except BaseException:
            self._undo(is_exclusive)
            raise
        return writer

    def _undo(self, is_exclusive: bool) -> None:
        if is_exclusive:
            self.batch_writer.drop_cache()
        else:
            self.batch_writer.drop_trails()
        if self.writer is not None:
            self._roll_back(self.writer)

    def open_writer(self) -> PostgresConnection:
        if self._pid != os.getpid():
            inherited_connections.append(self.writer)
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
            days = range(today, today + partitions.PARTITIONS_AHEAD_DAYS + 1)
            partitions.create_partitions(writer.raw_connection, days, today)
            self._partitions_day = today

    def _roll_back(self, writer: PostgresConnection) -> None:
        try:
            if not writer.raw_connection.closed:
                with contextlib.suppress(psycopg.Error):  # the error that the transaction ends with
                    writer.end_pipeline()
                writer.raw_connection.execute("ROLLBACK")
        except psycopg.Error:  # the connection is lost, and the transaction with it
            writer.close()
            self._pool.drop_idle()

    # Operations specific to PostgreSQL

    def _find_similar_patterns(
        self, read: RowReader, tenant: str, tool: str, text: str, stamp: int
    ) -> list[tuple[float, str]]:
        """Compare all patterns of a tool; if there are very many, only candidates from the similarity index."""
        sketches = self._sketch_cache.get_sketches(read, tenant, tool, stamp)
        if len(sketches) < fix_votes.MAX_PATTERNS_PER_TOOL or not self._has_similarity_index:
            return sketches.nearest(text)
        rows = read(
            "SELECT pattern, sketch FROM pattern_sketches WHERE tenant = ? AND tool = ? ORDER BY text <-> ? LIMIT ?",
            (tenant, tool, text, MAX_COMPARED_PATTERNS),
        )
        return patterns.nearest(text, [(pattern, patterns.unpack(bits)) for pattern, bits in rows])

    def _propose_runs(self, connection: Connection, tenant: str, terms: Sequence[SearchTerm]) -> queries.ProposedRuns:
        text = " & ".join((_tenant_word(tenant), *map(_build_words_query, terms)))
        ((new_count,),) = connection.execute(_COUNT_UNINDEXED, (tenant, queries.MAX_READ_RUNS)).fetchall()
        return queries.ProposedRuns(
            "(r.words @@ CAST(? AS tsquery) OR r.words IS NULL)",
            (text,),
            max_runs=min(run_texts.MAX_MISSED_RUNS + new_count, queries.MAX_READ_RUNS),
        )

    def update_search(self, tenant: str, progress: Progress | None = None) -> int:
        settled_at = self._clock() - run_texts.SETTLE_MILLISECONDS
        indexed_count, position = 0, 0
        while True:
            rows = self.read_rows(tenant, _UNINDEXED, (tenant, position, settled_at, run_texts.INDEX_BATCH_RUNS), True)
            if not rows:
                return indexed_count
            with self.append_transaction(tenant) as writer:
                writer.select_tenant(tenant)
                writer.remember_runs(tenant, {run: stored_at for _, run, _, stored_at in rows})
                bodies = {run: body for _, run, body, at in rows if run_texts.is_complete(body, at, self._clock())}
                texts = run_texts.read_texts(writer, tenant, bodies)
                words = ([_tenant_word(tenant), *_list_words(text)] for text in texts.values())
                sql = "UPDATE runs SET words = array_to_tsvector(CAST(? AS text[])) WHERE tenant = ? AND id = ?"
                writer.executemany(sql, [(row, tenant, run) for run, row in zip(texts, words, strict=True)])
            position, indexed_count = rows[-1][0], indexed_count + len(texts)
            if progress is not None:
                progress(position, position)

    def clear_search(self, tenant: str) -> None:
        with self.append_transaction(tenant) as writer:
            writer.execute("UPDATE runs SET words = NULL WHERE tenant = ? AND words IS NOT NULL", (tenant,))

    def _prune_round_type(self) -> type[partitions.PartitionPruneRound]:
        return partitions.PartitionPruneRound

    def _release_space(self, pruner: PruneRound, now: int) -> None:
        assert isinstance(pruner, partitions.PartitionPruneRound)
        with translate_errors(self.where), self._pool.using() as connection:
            partitions.drop_empty_partitions(connection.raw_connection, now // DAY)
            if not connection.is_pooled:  # needs settings of a session
                partitions.compact_partitions(connection.raw_connection, sorted(pruner.shrunk_days))

    def _lift_time_limit(self, writer: Connection) -> None:
        writer.execute("SET LOCAL statement_timeout = 0")

    def backup(self, to: Path, progress: Progress | None = None, replaces: bool = False) -> Health:
        raise StoreError(
            f"Back up {self.where} with PostgreSQL: pg_dump --format=custom --file={to} URL. "
            "For a file that mulligan can open: mulligan copy URL PATH"
        )

    def workers(self) -> list[Worker]:
        return _retry_once(partial(self._ask_coordinator, workers.read_workers))

    def _ask_coordinator(self, question: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Answer a question about the database itself, whichever workers answer."""
        with translate_errors(self.where), self._pool.using() as connection:
            return question(connection.raw_connection)

    def unavailable_workers(self) -> list[str]:
        return self._outages.list_workers()

    def find_worker(self, tenant: str) -> str | None:
        return self._outages.find_worker(tenant) if self._has_workers else None

    def _read_worker(self, tenant: str) -> str | None:
        return _retry_once(partial(self._ask_coordinator, partial(workers.find_worker, tenant=tenant)))

    def health(self, tenant: str) -> Health:
        try:
            runs, steps = self._count_records(tenant)
            return Health(where=self.where, healthy=True, runs=runs, steps=steps)
        except StoreError as error:
            return Health(where=self.where, healthy=False, detail=str(error))

    def close(self) -> None:
        with self._lock:
            if self.writer is not None and self._pid == os.getpid():
                self.writer.close()
            self.writer = None
        self._pool.close()
        if self._replica is not None:
            self._replica.close()


_UNINDEXED = (
    "SELECT rowid, id, body, stored_at FROM runs WHERE tenant = ? AND words IS NULL AND rowid > ? AND stored_at <= ? "
    "ORDER BY rowid LIMIT ?"
)


_COUNT_UNINDEXED = "SELECT count(*) FROM (SELECT 1 FROM runs WHERE tenant = ? AND words IS NULL LIMIT ?) AS unindexed"


def _list_words(text: str) -> list[str]:
    """Return the words of a run, each once, as far as one value of PostgreSQL holds them."""
    words = dict.fromkeys(word[:MAX_WORD_CHARS] for word in split_words(run_texts.remove_unsearched(text)))
    ends = itertools.accumulate(len(word.encode()) for word in words)
    return [word for word, end in zip(words, ends, strict=True) if end <= MAX_WORDS_BYTES]


def _list_lexemes(term: SearchTerm) -> list[str]:
    """Return the words that a run with this term has, in the syntax of `tsquery`. Their order is not indexed."""
    lexemes = [word[:MAX_WORD_CHARS] + (":*" if len(word) > MAX_WORD_CHARS else "") for word in term.words]
    if not term.is_phrase:
        lexemes[-1] = f"{lexemes[-1].removesuffix(':*')}:*"
    return lexemes


def _build_words_query(term: SearchTerm) -> str:
    words = " & ".join(_list_lexemes(term))
    return f"({words} | {term.value_hash})" if term.value_hash else f"({words})"


def _tenant_word(tenant: str) -> str:
    """Return a word that only runs of this tenant have: the index holds those of all tenants."""
    return f"tenant{digest(tenant.encode(), 8).hex()}"


def _retry_once(query: Callable[[], T]) -> T:
    """Execute a query, and once more if the server had closed the connection, which then is no longer in the pool."""
    try:
        return query()
    except StoreError as error:
        if not isinstance(error.__cause__, psycopg.OperationalError) or error.__cause__.sqlstate == "57014":
            raise
    return query()


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()
fork_safety.hold_locks(lambda: [store._lock for store in tuple(_stores)])
