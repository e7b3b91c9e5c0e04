"""Retention in PostgreSQL, by the day: what is to go of a day goes by a few statements, and its part of the steps goes
with it or is made anew of what stays.

What it comes to is the same as run by run: sums, patterns and fixes stay as they were counted, and so does every run
that is imported, younger or kept longer. A day of which nothing stays is dropped. Of one that has little left, that is
put into a new part, and the old one is dropped: nobody writes to a day that is over, so room that is only made free in
it would be of no use to anybody. Where most stays, or somebody reads steps for long just then, ours are deleted. A
day whose steps were compressed is put anew for the same reason.
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
"""Runs that are taken out in one transaction, in a few seconds: for more, others of the tenant would wait too long."""
FEW = 100
"""Runs of a day that is not over, of which so few go, go one by one: to look through the day would take longer."""
NEVER = -(2**62)
_IN_THE_WAY = (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable)
_GOES = "imported <= ? AND kept < CASE WHEN status = 'success' THEN ? ELSE ? END"
_OTHERS = ("links", "orphans", "provisional")
"""Tables with rows of runs, beside those that name them in another way."""


class Space(pruning.Space, Protocol):
    def freed(self, size: int) -> None:
        """So many bytes were taken out, and will be free."""


class DayPruning(pruning.Pruning):
    """One round of retention, whole days first."""

    _space: Space

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._packed: set[int] = set()
        """Days whose steps were compressed or sampled: what they were before takes room that nobody needs."""

    def _by_age(self, progress: Progress | None) -> None:
        for day in self._days():
            try:
                while self._take_day(day):
                    pass
            except StoreError as error:
                # It takes too long, others are in the way or were first: then run by run, a little at a time.
                if not isinstance(error.__cause__, _IN_THE_WAY):
                    raise
        super()._by_age(progress)
        for day in sorted(self._packed):
            try:
                # Not as the tenant's turn: others keep on writing while it is put anew, only not to that day.
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
        """Whether what was imported goes, and before when what worked and what failed must have come to go."""
        ages = (self._policy.successes, self._policy.failures)
        worked, failed = (NEVER if age is None else self._now - age for age in ages)
        return int(self._policy.imports), worked, failed

    def _days(self) -> list[int]:
        """Days that have a part, and many runs that are to go, or none that is to stay."""
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT kept / {DAY} FROM runs WHERE tenant = ? GROUP BY 1 "
                f"HAVING count(CASE WHEN {_GOES} THEN 1 END) >= least(count(*), ?) ORDER BY 1",
                (self._tenant, *self._bounds(), FEW),
            ).fetchall()
            parts = set(days.parts(_made(connection)))
        return [day for (day,) in rows if day in parts]

    def _take_day(self, day: int) -> bool:
        """Runs of a day that are to go by now, with all that is theirs; whether there may be more of them."""
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
