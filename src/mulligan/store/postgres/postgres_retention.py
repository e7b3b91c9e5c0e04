"""Retention in PostgreSQL by day: a few statements per day, and replacing the day's partition of steps.

The result is the same as run by run: rollups, patterns and fixes keep their counts; imported, younger and longer
retained runs remain. A day without remaining steps is dropped. If little remains, it is copied to a new partition and
the old one is dropped, because free space in a past day would never be reused. If most remains, or a long read holds
the table, rows are deleted. Days with compressed steps are copied for the same reason.
"""

from __future__ import annotations

from typing import Any, Protocol

import psycopg

from mulligan.core.failure import StoreError
from mulligan.store import pruning
from mulligan.store.base import DAY, Progress
from mulligan.store.connection import Connection
from mulligan.store.postgres import partitions

MAX_RUNS_PER_TRANSACTION = 100_000
"""Limit of runs per transaction, for a few seconds of work: other writers of the tenant wait meanwhile."""
MIN_RUNS_PER_DAY_BATCH = 100
"""With fewer expired runs, a day that does not expire as a whole is pruned run by run, which is faster."""
NO_CUTOFF_MS = -(2**62)
_CONTENTION_ERRORS = (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable)
_IS_EXPIRED_SQL = "imported <= ? AND stored_at < CASE WHEN status = 'success' THEN ? ELSE ? END"
_RUN_TABLES = ("links", "orphaned_runs", "provisional_runs")
"""Tables that refer to a run by a column `run` alone."""


class PartitionSpaceMeter(pruning.SpaceMeter, Protocol):
    def add_freed_bytes(self, size: int) -> None:
        """Count bytes that were deleted and will become free."""


class PartitionPruneRound(pruning.PruneRound):
    """One execution of a retention policy, day by day first."""

    _space: PartitionSpaceMeter

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._shrunk_days: set[int] = set()
        """Days whose steps were compressed or sampled: their partitions contain free space."""

    def _by_age(self, progress: Progress | None) -> None:
        for day in self._days():
            try:
                while self._prune_day(day):
                    pass
            except StoreError as error:
                # A timeout, a lock or a concurrent change: continue run by run in small transactions.
                if not isinstance(error.__cause__, _CONTENTION_ERRORS):
                    raise
        super()._by_age(progress)
        for day in sorted(self._shrunk_days):
            try:
                # Without the tenant's write turn: others can write to all other days while this one is copied.
                with self._reading() as connection:
                    if day in partitions.list_partition_days(_raw_connection(connection)):
                        partitions.shrink_partition(_raw_connection(connection), day, self._tenant)
            except StoreError as error:
                if not isinstance(error.__cause__, _CONTENTION_ERRORS):
                    raise

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
            parts = set(partitions.list_partition_days(_raw_connection(connection)))
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
                f"FROM {partitions.partition_name(day)} p JOIN going g ON g.run = p.run WHERE p.tenant = ?",
                (tenant,),
            ).fetchone()
            self._note_until(writer, max(latest, latest if last is None else last))
            for table in ("run_failures", "run_callees"):
                writer.execute(
                    f"DELETE FROM {table} t USING going g WHERE t.tenant = ? AND t.started_at = g.started_at "
                    "AND t.run = g.run",
                    (tenant,),
                )
            for table in _RUN_TABLES:
                writer.execute(f"DELETE FROM {table} t USING going g WHERE t.tenant = ? AND t.run = g.run", (tenant,))
            writer.execute(
                "DELETE FROM compactions t USING going g WHERE t.tenant = ? AND t.owner_type = 'run' "
                "AND t.owner = g.run",
                (tenant,),
            )
            writer.execute("DELETE FROM runs t USING going g WHERE t.tenant = ? AND t.id = g.run", (tenant,))
            if not partitions.remove_runs(_raw_connection(writer), day, tenant, "going"):
                writer.execute(
                    f"DELETE FROM {partitions.partition_name(day)} p USING going g "
                    "WHERE p.tenant = ? AND p.run = g.run",
                    (tenant,),
                )
                self._space.add_freed_bytes(300 * steps + size)
        self._space.add_freed_bytes(600 * runs)
        self.runs, self.steps = self.runs + runs, self.steps + steps
        return bool(runs == MAX_RUNS_PER_TRANSACTION)


def _raw_connection(connection: Any) -> psycopg.Connection[Any]:
    raw_connection: psycopg.Connection[Any] = connection.raw_connection
    return raw_connection
