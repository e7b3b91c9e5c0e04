"""Retention in PostgreSQL: a day of which nothing is to stay goes at once, and its part of the steps is dropped.

What it comes to is the same as run by run: sums, patterns and fixes stay as they were counted, and so does every run
that is imported, younger or kept longer; a day that has one of these is gone through run by run, as everywhere. Where
other tenants have steps of that day, or somebody reads them just then, ours are deleted by one statement instead.
"""

from __future__ import annotations

from typing import Any, Protocol

import psycopg

from mulligan.failure import StoreError
from mulligan.remember import pruning
from mulligan.remember.postgres import tables
from mulligan.remember.store import DAY, Progress

AT_ONCE = 300_000
"""Runs of a day that are taken out in one transaction; of more, others of the tenant would wait too long."""
NEVER = -(2**62)
_GOES = "imported <= ? AND kept < CASE WHEN status = 'success' THEN ? ELSE ? END"
_OTHERS = ("links", "orphans")
"""Tables with rows of runs, beside those that name them in another way."""


class Space(pruning.Space, Protocol):
    def freed(self, size: int) -> None:
        """So many bytes were taken out, and will be free."""


class DayPruning(pruning.Pruning):
    """One round of retention, whole days first."""

    _space: Space

    def _by_age(self, progress: Progress | None) -> None:
        for day in self._whole_days():
            try:
                self._take_day(day)
            except StoreError as error:
                # It takes too long, or others are in the way: then run by run, a little at a time.
                if not isinstance(error.__cause__, psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable):
                    raise
        super()._by_age(progress)

    def _bounds(self) -> tuple[int, int, int]:
        """Whether what was imported goes, and before when what worked and what failed must have come to go."""
        ages = (self._policy.successes, self._policy.failures)
        worked, failed = (NEVER if age is None else self._now - age for age in ages)
        return int(self._policy.imports), worked, failed

    def _whole_days(self) -> list[int]:
        """Days that have a part, and no run that is to stay."""
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT kept / {DAY} FROM runs WHERE tenant = ? GROUP BY 1 "
                f"HAVING count(*) = count(CASE WHEN {_GOES} THEN 1 END) AND count(*) <= ? ORDER BY 1",
                (self._tenant, *self._bounds(), AT_ONCE),
            ).fetchall()
            parts = set(tables.parts(_made(connection)))
        return [day for (day,) in rows if day in parts]

    def _take_day(self, day: int) -> None:
        """All runs of a day with their steps, unless by now something of it is to stay."""
        part, tenant = tables.part(day), self._tenant
        with self._writing(tenant) as writer:
            writer.execute('CREATE TEMP TABLE going (run TEXT COLLATE "C", started BIGINT) ON COMMIT DROP')
            writer.execute(
                f"INSERT INTO going SELECT id, started FROM runs WHERE tenant = ? AND kept / {DAY} = ? AND {_GOES}",
                (tenant, day, *self._bounds()),
            )
            writer.execute("ANALYZE going")
            (staying,) = writer.execute(
                f"SELECT count(*) FROM runs WHERE tenant = ? AND kept / {DAY} = ? AND NOT ({_GOES})",
                (tenant, day, *self._bounds()),
            ).fetchone()
            runs, latest = writer.execute("SELECT count(*), max(started) FROM going").fetchone()
            steps, of_runs, last, size = writer.execute(
                "SELECT count(*), count(g.run), max(p.started), coalesce(sum(length(p.body)), 0) "
                f"FROM {part} p LEFT JOIN going g ON g.run = p.run WHERE p.tenant = ?",
                (tenant,),
            ).fetchone()
            if staying or not runs or of_runs != steps:  # also steps of a run that has not begun yet
                return
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
            if not tables.drop_if_own(_made(writer), day, tenant):
                writer.execute(f"DELETE FROM {part} WHERE tenant = ?", (tenant,))
                self._space.freed(300 * steps + size)
        self._space.freed(600 * runs)
        self.runs, self.steps = self.runs + runs, self.steps + steps


def _made(connection: Any) -> psycopg.Connection[Any]:
    made: psycopg.Connection[Any] = connection.made
    return made
