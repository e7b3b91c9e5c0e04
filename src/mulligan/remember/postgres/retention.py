"""Retention in PostgreSQL by day: a few statements per day, and replacing the day's partition of steps.

The result is the same as run by run: rollups, patterns and fixes keep their counts; imported, younger and longer
retained runs remain. A day without remaining steps is dropped. If little remains, it is copied to a new partition and
the old one is dropped, because free space in a past day would never be reused. If most remains, or a long read holds
the table, rows are deleted. Days with compressed steps are copied for the same reason.
"""

from __future__ import annotations

from typing import Any, Protocol

import psycopg

from mulligan.failure import StoreError
from mulligan.remember import pruning
from mulligan.remember.connection import Connection
from mulligan.remember.postgres import days
from mulligan.remember.store import DAY, Progress

AT_ONCE = 100_000
"""Limit of runs per transaction, for a few seconds of work: other writers of the tenant wait meanwhile."""
FEW = 100
"""With fewer expired runs, a day that does not expire as a whole is pruned run by run, which is faster."""
NEVER = -(2**62)
_IN_THE_WAY = (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable)
_GOES = "imported <= ? AND kept < CASE WHEN status = 'success' THEN ? ELSE ? END"
_OTHERS = ("links", "orphans", "provisional")
"""Tables that refer to a run by a column `run` alone."""


class Space(pruning.Space, Protocol):
    def freed(self, size: int) -> None:
        """Count bytes that were deleted and will become free."""


class DayPruning(pruning.Pruning):
    """One execution of a retention policy, day by day first."""

    _space: Space

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._packed: set[int] = set()
        """Days whose steps were compressed or sampled: their partitions contain free space."""

    def _by_age(self, progress: Progress | None) -> None:
        for day in self._days():
            try:
                while self._take_day(day):
                    pass
            except StoreError as error:
                # A timeout, a lock or a concurrent change: continue run by run in small transactions.
                if not isinstance(error.__cause__, _IN_THE_WAY):
                    raise
        super()._by_age(progress)
        for day in sorted(self._packed):
            try:
                # Without the tenant's write turn: others can write to all other days while this one is copied.
                with self._reading() as connection:
                    if day in days.parts(_made(connection)):
                        days.tighten(_made(connection), day, self._tenant)
            except StoreError as error:
                if not isinstance(error.__cause__, _IN_THE_WAY):
                    raise

    def _tidy(self, writer: Connection, row: Any) -> int:
        before = self.compressed + self.sampled
        rows = super()._tidy(writer, row)
        if self.compressed + self.sampled > before:
            self._packed.add(row[3] // DAY)
        return rows

    def _bounds(self) -> tuple[int, int, int]:
        """Return whether imported runs expire, and the times before which successful and failed runs expire."""
        ages = (self._policy.successes, self._policy.failures)
        worked, failed = (NEVER if age is None else self._now - age for age in ages)
        return int(self._policy.imports), worked, failed

    def _days(self) -> list[int]:
        """Return the days with a partition that have many expired runs, or only expired ones."""
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT kept / {DAY} FROM runs WHERE tenant = ? GROUP BY 1 "
                f"HAVING count(CASE WHEN {_GOES} THEN 1 END) >= least(count(*), ?) ORDER BY 1",
                (self._tenant, *self._bounds(), FEW),
            ).fetchall()
            parts = set(days.parts(_made(connection)))
        return [day for (day,) in rows if day in parts]

    def _take_day(self, day: int) -> bool:
        """Delete expired runs of a day with all their rows. Return whether there may be more."""
        tenant = self._tenant
        with self._writing(tenant) as writer:
            writer.execute('CREATE TEMP TABLE going (run TEXT COLLATE "C", started BIGINT) ON COMMIT DROP')
            writer.execute(
                f"INSERT INTO going SELECT id, started FROM runs WHERE tenant = ? AND kept / {DAY} = ? AND {_GOES} "
                "LIMIT ?",
                (tenant, day, *self._bounds(), AT_ONCE),
            )
            writer.execute("ANALYZE going")
            runs, latest = writer.execute("SELECT count(*), max(started) FROM going").fetchone()
            if not runs:
                return False
            steps, last, size = writer.execute(
                "SELECT count(*), max(p.started), coalesce(sum(length(p.body)), 0) "
                f"FROM {days.part(day)} p JOIN going g ON g.run = p.run WHERE p.tenant = ?",
                (tenant,),
            ).fetchone()
            self._note_until(writer, max(latest, latest if last is None else last))
            for table in ("met", "used"):
                writer.execute(
                    f"DELETE FROM {table} t USING going g WHERE t.tenant = ? AND t.started = g.started "
                    "AND t.run = g.run",
                    (tenant,),
                )
            for table in _OTHERS:
                writer.execute(f"DELETE FROM {table} t USING going g WHERE t.tenant = ? AND t.run = g.run", (tenant,))
            writer.execute(
                "DELETE FROM compactions t USING going g WHERE t.tenant = ? AND t.sort = 'run' AND t.owner = g.run",
                (tenant,),
            )
            writer.execute("DELETE FROM runs t USING going g WHERE t.tenant = ? AND t.id = g.run", (tenant,))
            if not days.without(_made(writer), day, tenant, "going"):
                writer.execute(
                    f"DELETE FROM {days.part(day)} p USING going g WHERE p.tenant = ? AND p.run = g.run", (tenant,)
                )
                self._space.freed(300 * steps + size)
        self._space.freed(600 * runs)
        self.runs, self.steps = self.runs + runs, self.steps + steps
        return bool(runs == AT_ONCE)


def _made(connection: Any) -> psycopg.Connection[Any]:
    made: psycopg.Connection[Any] = connection.made
    return made
