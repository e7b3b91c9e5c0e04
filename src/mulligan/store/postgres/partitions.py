"""Daily partitions of `steps`, and retention by day.

A step is in the partition of the day on which the first record of its run arrived. So the steps of a run are together,
no step is in two partitions, and an expired day is dropped as a whole. Partitions are created ahead; steps without one
go to `steps_default`.

Retention has the same result as run by run: rollups, patterns and fixes keep their counts; imported, younger and longer
retained runs remain. A day of which nothing remains is dropped. From other days rows are deleted, and a day that has
lost most of its size is vacuumed in full, because free space in a past day would never be reused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg

from mulligan.contract.store import DAY, Progress
from mulligan.core.failure import StoreError
from mulligan.core.records import History, encode
from mulligan.store.connection import Connection
from mulligan.store.postgres import postgres_tables
from mulligan.store.postgres.postgres_tables import SCHEMA_LOCK_ID
from mulligan.store.postgres.value_encoding import TextColumn
from mulligan.store.retention import PruneRound

PARTITIONS_AHEAD_DAYS = 7
"""Days for which partitions are created ahead."""
DEFAULT_LOCK_TIMEOUT = "15s"
SHORT_LOCK_TIMEOUT = "500ms"
"""Shorter than PostgreSQL's deadlock detection, so that in a deadlock this statement gives up."""
COMPACT_LOCK_TIMEOUT = "3s"
"""Longer than PostgreSQL's deadlock detection, after which autovacuum gives up its lock."""
STEP_OVERHEAD_BYTES = 200
"""Estimated size of a step in a partition and its indexes, without its body."""


MAX_RUNS_PER_TRANSACTION = 100_000
"""Limit of runs per transaction, for a few seconds of work: other writers of the tenant wait meanwhile."""
MIN_RUNS_PER_DAY_BATCH = 100
"""With fewer expired runs, a day that does not expire as a whole is pruned run by run, which is faster."""
NO_CUTOFF_MS = -(2**62)
_CONTENTION_ERRORS = (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable)
_IS_EXPIRED_SQL = "imported <= ? AND stored_at < CASE WHEN status = 'success' THEN ? ELSE ? END"
_RUN_COLUMNS = {
    **dict.fromkeys(
        "run_failures run_callees run_facts links orphaned_runs provisional_runs run_messages".split(), "run"
    ),
    "compactions": "owner_type = 'run' AND owner",
    "runs": "id",
}
_UNUSED_MESSAGES_SQL = (
    "FROM messages WHERE tenant = ?1 AND digest IN (SELECT digest FROM run_messages WHERE tenant = ?1 "
    "AND run = ANY (?2)) AND NOT EXISTS (SELECT 1 FROM run_messages r WHERE r.tenant = ?1 "
    "AND r.digest = messages.digest AND r.run <> ALL (?2))"
)
"""The messages that these runs have and no others."""


def partition_name(day: int) -> str:
    return f"steps_{day}"


def create_partitions(connection: psycopg.Connection[Any], days: Iterable[int], today: int) -> None:
    """Create the missing partitions of these days. Steps that are already in `steps_default` remain there."""
    for day in days:
        if connection.execute("SELECT to_regclass(%s)", (partition_name(day),)).fetchone() != (None,):
            continue
        try:
            with connection.transaction():
                # Future partitions are not urgent: do not wait while a backup reads the table.
                connection.execute(
                    f"SET LOCAL lock_timeout = '{SHORT_LOCK_TIMEOUT if day > today else DEFAULT_LOCK_TIMEOUT}'"
                )
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK_ID,))
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {partition_name(day)} "
                    f"PARTITION OF steps FOR VALUES FROM ({day}) TO ({day + 1})"
                )
                postgres_tables.enable_row_security(connection, partition_name(day))
        except (psycopg.errors.CheckViolation, psycopg.OperationalError):
            continue  # a lock, a timeout, a worker away: retried later; until then steps_default takes the steps


def list_partition_days(connection: psycopg.Connection[Any]) -> list[int]:
    """Return the days that have a partition, the oldest first."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = to_regclass('steps')"
    ).fetchall()
    return sorted(int(name[6:]) for (name,) in rows if name[6:].isdigit())


def drop_empty_partitions(connection: psycopg.Connection[Any], until: int) -> int:
    """Drop the empty partitions of days before this one. Return their number."""
    dropped = 0
    for day in list_partition_days(connection):
        if day >= until:
            break
        try:
            with connection.transaction():
                postgres_tables.set_all_tenants(connection)  # rows hidden by row security count
                connection.execute(f"SET LOCAL lock_timeout = '{SHORT_LOCK_TIMEOUT}'")
                if not _has_steps(connection, day):
                    connection.execute(f"LOCK TABLE ONLY steps, ONLY {partition_name(day)} IN ACCESS EXCLUSIVE MODE")
                    if not _has_steps(connection, day):  # check again under the lock
                        connection.execute(f"DROP TABLE {partition_name(day)}")
                        dropped += 1
        except psycopg.errors.UndefinedTable:
            continue  # another process dropped it
        except psycopg.errors.LockNotAvailable:
            break  # a long read holds the table: retried later
    return dropped


def _has_steps(connection: psycopg.Connection[Any], day: int) -> bool:
    return connection.execute(f"SELECT 1 FROM {partition_name(day)} LIMIT 1").fetchone() is not None


def compact_partitions(connection: psycopg.Connection[Any], days: Iterable[int]) -> None:
    """Return the free space of these days to the system, if it is most of their size and they are not in use."""
    existing = set(list_partition_days(connection))
    try:
        connection.execute(f"SET lock_timeout = '{COMPACT_LOCK_TIMEOUT}'")
        connection.execute("SET statement_timeout = 0")
        for day in days:
            with contextlib.suppress(*_CONTENTION_ERRORS):
                if day in existing and _has_much_free_space(connection, day):
                    connection.execute(f"VACUUM (FULL, ANALYZE) {partition_name(day)}")
    finally:
        connection.execute("RESET lock_timeout")
        connection.execute("RESET statement_timeout")


def _has_much_free_space(connection: psycopg.Connection[Any], day: int) -> bool:
    with connection.transaction():
        postgres_tables.set_all_tenants(connection)  # rows hidden by row security count
        (row_bytes,) = connection.execute(
            f"SELECT count(*) * {STEP_OVERHEAD_BYTES} + coalesce(sum(pg_column_size(body)), 0) "
            f"FROM {partition_name(day)}"
        ).fetchone() or (0,)
        return bool(row_bytes < postgres_tables.measure_table(connection, partition_name(day)) / 2)


# Retention


class PartitionPruneRound(PruneRound):
    """One execution of a retention policy, day by day first."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.shrunk_days: set[int] = set()
        """Days with steps that were compressed or deleted: their partitions contain free space."""
        self._freed_bytes = 0
        """Deleted bytes: PostgreSQL frees space only when it vacuums."""

    def total_bytes(self, connection: Connection) -> int:
        return postgres_tables.measure_database(_raw_connection(connection))

    def used_bytes(self, connection: Connection) -> int:
        return max(self.total_bytes(connection) - self._freed_bytes, 0)

    def on_run_removed(self, history: History, message_bytes: int) -> None:
        # Estimated size of the rows and their index entries.
        self._freed_bytes += 600 + message_bytes + sum(300 + len(encode(step)) for step in history.steps)

    def _by_age(self, progress: Progress | None) -> None:
        for day in self._days():
            with _ignore_contention():  # what remains is pruned run by run, in small transactions
                while self._prune_day(day):
                    pass
        super()._by_age(progress)

    def _tidy(self, writer: Connection, row: Any) -> int:
        before = self.compressed + self.sampled
        rows = super()._tidy(writer, row)
        if self.compressed + self.sampled > before:
            self.shrunk_days.add(row[3] // DAY)
        return rows

    def _bounds(self) -> tuple[int, int, int]:
        """Return whether imported runs expire, and the times before which successful and failed runs expire."""
        ages = (self._policy.keep_successes, self._policy.keep_failures)
        success_cutoff, failure_cutoff = (NO_CUTOFF_MS if age is None else self._now - age for age in ages)
        return int(self._policy.include_imported), success_cutoff, failure_cutoff

    def _days(self) -> list[int]:
        """Return the days with a partition that have many expired runs, or only expired ones."""
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT stored_at / {DAY} FROM runs WHERE tenant = ? GROUP BY 1 "
                f"HAVING count(CASE WHEN {_IS_EXPIRED_SQL} THEN 1 END) >= least(count(*), ?) ORDER BY 1",
                (self._tenant, *self._bounds(), MIN_RUNS_PER_DAY_BATCH),
            ).fetchall()
            parts = set(list_partition_days(_raw_connection(connection)))
        return [day for (day,) in rows if day in parts]

    def _prune_day(self, day: int) -> bool:
        """Delete expired runs of a day with all their rows. Return whether there may be more."""
        tenant = self._tenant
        with self._writing(tenant) as writer:
            rows = writer.execute(
                "SELECT id, started_at FROM runs "
                f"WHERE tenant = ? AND stored_at / {DAY} = ? AND {_IS_EXPIRED_SQL} LIMIT ?",
                (tenant, day, *self._bounds(), MAX_RUNS_PER_TRANSACTION),
            ).fetchall()
            if not rows:
                return False
            runs = TextColumn([id for id, _ in rows])
            where = f"FROM {partition_name(day)} WHERE tenant = ? AND run = ANY (?)"
            steps, last, size = writer.execute(
                f"SELECT count(*), max(started_at), coalesce(sum(length(body)), 0) {where}", (tenant, runs)
            ).fetchone()
            self._note_until(writer, max([last or 0, *(started_at for _, started_at in rows)]))
            sql = f"SELECT coalesce(sum(length(body)), 0) {_UNUSED_MESSAGES_SQL}"
            (message_bytes,) = writer.execute(sql, (tenant, runs)).fetchone()
            if message_bytes:
                writer.execute(f"DELETE {_UNUSED_MESSAGES_SQL}", (tenant, runs))
            for table, column in _RUN_COLUMNS.items():
                writer.execute(f"DELETE FROM {table} WHERE tenant = ? AND {column} = ANY (?)", (tenant, runs))
            if not _drop_partition(writer, day, tenant, runs):
                writer.execute(f"DELETE {where}", (tenant, runs))
                self.shrunk_days.add(day)
                self._freed_bytes += 300 * steps + size
        self._freed_bytes += 600 * len(rows) + message_bytes
        self.runs, self.steps = self.runs + len(rows), self.steps + steps
        return len(rows) == MAX_RUNS_PER_TRANSACTION


def _drop_partition(writer: Connection, day: int, tenant: str, runs: TextColumn) -> bool:
    """Drop a partition that has only steps of these runs, unless it is in use. Return whether it was dropped."""
    connection = _raw_connection(writer)
    others = f"SELECT 1 FROM {partition_name(day)} WHERE NOT (tenant = ? AND run = ANY (?)) LIMIT 1"
    try:
        with connection.transaction():
            postgres_tables.set_all_tenants(connection)  # rows hidden by row security count
            is_unshared = writer.execute(others, (tenant, runs)).fetchone() is None
            if is_unshared:
                connection.execute(f"SET LOCAL lock_timeout = '{SHORT_LOCK_TIMEOUT}'")
                connection.execute(f"LOCK TABLE ONLY steps, ONLY {partition_name(day)} IN ACCESS EXCLUSIVE MODE")
                is_unshared = writer.execute(others, (tenant, runs)).fetchone() is None  # again under the lock
            if is_unshared:
                connection.execute(f"DROP TABLE {partition_name(day)}")
            connection.execute(postgres_tables.build_tenant_setting(tenant, connection))
            return is_unshared
    except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
        return False  # in use, or the role is not its owner


@contextlib.contextmanager
def _ignore_contention() -> Iterator[None]:
    """Ignore a timeout, a lock or a concurrent change."""
    try:
        yield
    except StoreError as error:
        if not isinstance(error.__cause__, _CONTENTION_ERRORS):
            raise


def _raw_connection(connection: Any) -> psycopg.Connection[Any]:
    raw_connection: psycopg.Connection[Any] = connection.raw_connection
    return raw_connection
