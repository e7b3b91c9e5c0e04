"""Daily partitions of `steps`, and retention by day.

A step is in the partition of the day on which the first record of its run arrived. So the steps of a run are together,
no step is in two partitions, and an expired day is dropped as a whole. Partitions are created ahead; steps without one
go to `steps_default`.

Retention has the same result as run by run: rollups, patterns and fixes keep their counts; imported, younger and longer
retained runs remain. If little remains of a day, it is copied to a new partition and the old one is dropped, because
free space in a past day would never be reused. If most remains, or a long read holds the table, rows are deleted. Days
with compressed steps are copied for the same reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg

from mulligan.core.failure import StoreError
from mulligan.core.records import History, encode
from mulligan.store.base import DAY, Progress
from mulligan.store.connection import Connection
from mulligan.store.postgres import postgres_tables
from mulligan.store.postgres.postgres_tables import SCHEMA_LOCK_ID
from mulligan.store.retention import PruneRound

PARTITIONS_AHEAD_DAYS = 7
"""Days for which partitions are created ahead."""
DEFAULT_LOCK_TIMEOUT = "15s"
"""The lock timeout of all sessions."""
SHORT_LOCK_TIMEOUT = "500ms"
"""Shorter than PostgreSQL's deadlock detection, so that in a deadlock this statement gives up."""
REWRITE_LOCK_TIMEOUT = "3s"
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
_EXPIRED_ROWS = {
    **dict.fromkeys(("run_failures", "run_callees"), "t.started_at = g.started_at AND t.run = g.run"),
    **dict.fromkeys(("links", "orphaned_runs", "provisional_runs"), "t.run = g.run"),
    "run_messages": "t.run = g.run",
    "compactions": "t.owner_type = 'run' AND t.owner = g.run",
    "runs": "t.id = g.run",
}
"""The rows of the runs `g`, by table."""


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
        except (psycopg.errors.CheckViolation, psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
            continue  # retried later; until then steps_default takes the steps


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


def _rewrite_partition(
    connection: psycopg.Connection[Any], day: int, tenant: str, where: str = "", values: tuple[str, ...] = ()
) -> bool:
    """Replace a partition by a copy of its rows `p` that match, also of other tenants, within a transaction.

    Return False, with nothing changed, if most of its size remains or it is in use. Other sessions wait briefly and
    never see an intermediate state.
    """
    old, new = partition_name(day), f"{partition_name(day)}_anew"
    remaining_rows_sql = f"FROM {old} p {where}"
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{REWRITE_LOCK_TIMEOUT}'")
            # Of all tenants: rows hidden by row security count, too.
            postgres_tables.set_all_tenants(connection)
            connection.execute(f"LOCK TABLE ONLY {old} IN SHARE ROW EXCLUSIVE MODE")  # readers only
            size, max_bytes = connection.execute(
                f"SELECT count(*) * {STEP_OVERHEAD_BYTES} + coalesce(sum(pg_column_size(p.body)), 0), "
                f"(SELECT pg_total_relation_size('{old}')) / 2 {remaining_rows_sql}",
                values,
            ).fetchone() or (0, 0)
            is_worth_it = bool(size < max_bytes)
            if is_worth_it:
                connection.execute(f"CREATE TABLE {new} (LIKE {old} INCLUDING ALL)")
                connection.execute(f"INSERT INTO {new} SELECT p.* {remaining_rows_sql}", values)
                # Saves the scan of the table when it is attached.
                connection.execute(f"ALTER TABLE {new} ADD CONSTRAINT of_day CHECK (day >= {day} AND day < {day + 1})")
                connection.execute(f"ANALYZE {new}")
                connection.execute(f"SET LOCAL lock_timeout = '{SHORT_LOCK_TIMEOUT}'")
                connection.execute(f"LOCK TABLE ONLY steps, ONLY {old} IN ACCESS EXCLUSIVE MODE")
                connection.execute(f"DROP TABLE {old}")
                connection.execute(f"ALTER TABLE {new} RENAME TO {old}")
                connection.execute(f"ALTER TABLE steps ATTACH PARTITION {old} FOR VALUES FROM ({day}) TO ({day + 1})")
                connection.execute(f"ALTER TABLE {old} DROP CONSTRAINT of_day")
                postgres_tables.enable_row_security(connection, old)
            postgres_tables.set_tenants(connection, (tenant,), is_local=True)
            return is_worth_it
    except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
        return False  # in use, or the role is not its owner


# Retention


class PartitionPruneRound(PruneRound):
    """One execution of a retention policy, day by day first."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._shrunk_days: set[int] = set()
        """Days whose steps were compressed or sampled: their partitions contain free space."""
        self._freed_bytes = 0
        """Deleted bytes: PostgreSQL frees space only when it vacuums."""

    def total_bytes(self, connection: Connection) -> int:
        (size,) = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        return int(size)

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
        for day in sorted(self._shrunk_days):
            # Without the tenant's write turn: others can write to all other days while this one is copied.
            with _ignore_contention(), self._reading() as connection:
                if day in list_partition_days(_raw_connection(connection)):
                    _rewrite_partition(_raw_connection(connection), day, self._tenant)

    def _tidy(self, writer: Connection, row: Any) -> int:
        before = self.compressed + self.sampled
        rows = super()._tidy(writer, row)
        if self.compressed + self.sampled > before:
            self._shrunk_days.add(row[3] // DAY)
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
            writer.execute('CREATE TEMP TABLE going (run TEXT COLLATE "C", started_at BIGINT) ON COMMIT DROP')
            writer.execute(
                "INSERT INTO going SELECT id, started_at FROM runs "
                f"WHERE tenant = ? AND stored_at / {DAY} = ? AND {_IS_EXPIRED_SQL} LIMIT ?",
                (tenant, day, *self._bounds(), MAX_RUNS_PER_TRANSACTION),
            )
            writer.execute("ANALYZE going")
            runs, latest = writer.execute("SELECT count(*), max(started_at) FROM going").fetchone()
            if not runs:
                return False
            steps, last, size = writer.execute(
                "SELECT count(*), max(p.started_at), coalesce(sum(length(p.body)), 0) "
                f"FROM {partition_name(day)} p JOIN going g ON g.run = p.run WHERE p.tenant = ?",
                (tenant,),
            ).fetchone()
            self._note_until(writer, max(latest, latest if last is None else last))
            self._freed_bytes += self._remove_expired_messages(writer)
            for table, condition in _EXPIRED_ROWS.items():
                writer.execute(f"DELETE FROM {table} t USING going g WHERE t.tenant = ? AND {condition}", (tenant,))
            remaining = "WHERE NOT (p.tenant = %s AND EXISTS (SELECT 1 FROM going g WHERE g.run = p.run))"
            if not _rewrite_partition(_raw_connection(writer), day, tenant, remaining, (tenant,)):
                writer.execute(
                    f"DELETE FROM {partition_name(day)} p USING going g WHERE p.tenant = ? AND p.run = g.run",
                    (tenant,),
                )
                self._freed_bytes += 300 * steps + size
        self._freed_bytes += 600 * runs
        self.runs, self.steps = self.runs + runs, self.steps + steps
        return bool(runs == MAX_RUNS_PER_TRANSACTION)

    def _remove_expired_messages(self, writer: Connection) -> int:
        """Delete the messages that only the runs `going` have, before these go. Return their size."""
        (size,) = writer.execute(
            "WITH removed AS (DELETE FROM messages m WHERE m.tenant = ? "
            "AND EXISTS (SELECT 1 FROM run_messages r JOIN going g ON g.run = r.run "
            "WHERE r.tenant = ? AND r.digest = m.digest) "
            "AND NOT EXISTS (SELECT 1 FROM run_messages r WHERE r.tenant = ? AND r.digest = m.digest "
            "AND NOT EXISTS (SELECT 1 FROM going g WHERE g.run = r.run)) RETURNING length(m.body) AS size) "
            "SELECT coalesce(sum(size), 0) FROM removed",
            (self._tenant,) * 3,
        ).fetchone()
        return int(size)


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
