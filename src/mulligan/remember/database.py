"""Base class of the database stores: queries and changes in SQL that SQLite and PostgreSQL share.

Connections, migrations and cleanup are in `sqlite.py` and `postgres/`.
"""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from mulligan.events import AnyEvent
from mulligan.figures import Stats, StatsQuery
from mulligan.records import (
    Fix,
    History,
    Lesson,
    LessonSource,
    LessonVerdict,
    Pattern,
    Precedent,
    Run,
    encode,
)
from mulligan.remember import audit, bodies, fixes, found, learning, patterns, rollups, rows
from mulligan.remember.candidates import Candidates
from mulligan.remember.connection import Connection, upsert
from mulligan.remember.ledger import Ledger
from mulligan.remember.patterns import Decision
from mulligan.remember.store import (
    IMPORTED,
    Act,
    AuditQuery,
    Batch,
    Command,
    Consolidated,
    Evidence,
    FixQuery,
    LessonQuery,
    Noted,
    PatternQuery,
    Progress,
    Question,
    Revocation,
    Revoked,
    RunQuery,
)

EXPORTED = 500
"""Runs that one statement reads."""

_JOURNAL = upsert("journals", "tenant journal", "upto")
_DECISION = upsert("decisions", "tenant id", "body")
_SHELVED = upsert("shelf", "tenant kind key", "value")


class DatabaseStore(abc.ABC):
    """Store with one write connection and several read connections."""

    _is_far = False
    """Whether a round trip costs more than a larger statement."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._ledger = Ledger()
        self._candidates = Candidates()

    @abc.abstractmethod
    def _writing(self, *tenants: str) -> contextlib.AbstractContextManager[Connection]:
        """Open a write transaction, exclusive for these tenants.

        Implementations call `BatchWriter.begin` first, so that its caches match the database.
        """

    @abc.abstractmethod
    def _reading(self, tenant: str) -> contextlib.AbstractContextManager[Connection]:
        """Borrow a read connection for this tenant."""

    def _asking(self, tenant: str) -> contextlib.AbstractContextManager[Connection]:
        """Borrow a read connection for queries that tolerate slightly stale data."""
        return self._reading(tenant)

    def _read(self, tenant: str, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        with self._reading(tenant) as connection:
            return connection.execute(sql, tuple(values)).fetchall()

    def _reader(self, tenant: str) -> learning.Read:
        """Return a read function for several queries about one tenant."""
        return partial(self._read, tenant)

    def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int, principal: str = "") -> int:
        with self._writing(tenant) as writer:
            return self._append(writer, tenant, batch, journal, offset, principal)

    def append_all(self, batches: Sequence[Batch]) -> list[int]:
        with self._writing(*{each.tenant for each in batches}) as writer:
            return [self._append(writer, *each) for each in batches]

    def _append(
        self, writer: Connection, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int,
        principal: str,
    ) -> int:  # fmt: skip
        place = (tenant, journal)
        known = writer.execute("SELECT upto FROM journals WHERE tenant = ? AND journal = ?", place).fetchone()
        if offset <= (known[0] if known else 0):
            return 0
        writer.execute(_JOURNAL, (*place, offset))
        is_imported = journal.startswith(IMPORTED)
        return self._ledger.append(writer, tenant, batch, self._clock(), is_imported, principal)

    def offset(self, tenant: str, journal: str) -> int:
        rows = self._read(tenant, "SELECT upto FROM journals WHERE tenant = ? AND journal = ?", (tenant, journal))
        return int(rows[0][0]) if rows else 0

    def journals(self, tenant: str) -> list[str]:
        return [
            journal for (journal,) in self._read(tenant, "SELECT journal FROM journals WHERE tenant = ?", (tenant,))
        ]

    def release(self, tenant: str, journals: Sequence[str]) -> None:
        with self._writing(tenant) as writer:
            writer.executemany(
                "DELETE FROM journals WHERE tenant = ? AND journal = ?", [(tenant, journal) for journal in journals]
            )

    def runs(self, tenant: str, query: RunQuery) -> list[History]:
        if query.limit <= 0:
            return []
        return [self._history(tenant, run) for run in self._found(tenant, query, query.limit)]

    def _found(self, tenant: str, query: RunQuery, limit: int) -> list[Run]:
        asked: set[str] = set()
        if query.pattern is not None:
            known = self.pattern(tenant, query.pattern)
            if known is None:
                return []
            asked = {known.id, *known.merged}
        return found.runs(self._reader(tenant), tenant, query, asked, limit)

    def run(self, tenant: str, id: str) -> History | None:
        known = self._read(tenant, "SELECT body FROM runs WHERE tenant = ? AND id = ?", (tenant, id))
        return self._history(tenant, bodies.read(known[0][0], Run)) if known else None

    def known(self, tenant: str, ids: Sequence[str]) -> set[str]:
        return {id for (id,) in self._of_runs(tenant, "id", ids)}

    def ended(self, tenant: str, ids: Sequence[str]) -> set[str]:
        runs = [bodies.read(body, Run) for (body,) in self._of_runs(tenant, "body", ids)]
        return {run.id for run in runs if run.end is not None}

    def _of_runs(self, tenant: str, column: str, ids: Sequence[str]) -> Iterator[Sequence[Any]]:
        for start in range(0, len(ids), EXPORTED):
            some = ids[start : start + EXPORTED]
            sql = f"SELECT {column} FROM runs WHERE tenant = ? AND id IN ({', '.join('?' * len(some))})"
            yield from self._read(tenant, sql, (tenant, *some))

    def _history(self, tenant: str, run: Run) -> History:
        with self._asking(tenant) as connection:
            return rows.history_of(connection, tenant, run)

    def find(self, tenant: str, prefix: str, limit: int = 5) -> list[Run]:
        return found.beginning(self._reader(tenant), tenant, prefix, max(limit, 0))

    def export(self, tenant: str, since: int = 0) -> Iterator[History]:
        after: tuple[int, str] = (since, "")
        while True:
            some = self._read(
                tenant,
                "SELECT body FROM runs WHERE tenant = ? AND (started, id) > (?, ?) ORDER BY started, id LIMIT ?",
                (tenant, *after, EXPORTED),
            )
            for (body,) in some:
                run = bodies.read(body, Run)
                after = (run.started, run.id)
                yield self._history(tenant, run)
            if len(some) < EXPORTED:
                return

    def rebuild(self, tenant: str) -> None:
        """Recompute links, patterns and rollups from the stored rows."""
        from mulligan.remember import upkeep  # lazy import: write-only processes start faster

        with self._writing(tenant) as writer:
            self._ledger.let_go()
            upkeep.rebuild(writer, tenant)

    def recall(self, tenant: str, question: Question) -> list[Precedent]:
        from mulligan.remember import precedents  # lazy import: write-only processes start faster

        return precedents.answer(self._reader(tenant), tenant, question, at_once=self._is_far)

    def fixes(self, tenant: str, query: FixQuery) -> list[Fix]:
        with self._asking(tenant) as connection:  # one connection for all of its short queries

            def read(sql: str, values: Iterable[Any] = ()) -> list[Any]:
                return connection.execute(sql, tuple(values)).fetchall()

            return learning.answer(read, tenant, query, time.monotonic, self._ways())

    def _ways(self) -> learning.Ways:
        return learning.Ways(self._near, learning.latest, learning.fixes_of, learning.samples)

    def _near(self, read: learning.Read, tenant: str, tool: str, text: str, stamp: int) -> list[tuple[float, str]]:
        return self._candidates.of(read, tenant, tool, stamp).nearest(text)

    def evidence(self, tenant: str, fix: str, limit: int = 100) -> list[Evidence]:
        return learning.evidence(self._reader(tenant), tenant, fix, max(limit, 0))

    def outcome(self, tenant: str, fix: str, report: Evidence) -> bool:
        with self._writing(tenant) as writer:
            learning.note_principal(
                writer, tenant, report.principal, self._clock()
            )  # a reporting principal counts as active
            return learning.report(writer, tenant, fix, fixes.Vote.reported(report))

    def decide(self, tenant: str, fix: str, approved: bool, at: int) -> bool:
        with self._writing(tenant) as writer:
            is_known = learning.decide(writer, tenant, fix, approved, at)
            if is_known:
                self._note(writer, tenant, "fix.approve" if approved else "fix.revoke", fix)
            return is_known

    def revoke(self, tenant: str, what: Revocation) -> Revoked:
        with self._writing(tenant) as writer:
            revoked = learning.revoke(writer, tenant, what)
            told = audit.named(principal=what.principal, tool=what.tool, since=what.since)
            self._note(writer, tenant, "memory.revoke", told=told)
            return revoked

    def lessons(self, tenant: str, query: LessonQuery) -> list[Lesson]:
        from mulligan.remember.lessons import rows as lesson_rows  # lazy import: write-only processes start faster

        return lesson_rows.answer(self._reader(tenant), tenant, query)

    def lesson(self, tenant: str, id: str, now: int = 0) -> Lesson | None:
        from mulligan.remember.lessons import rows as lesson_rows  # lazy import: write-only processes start faster

        return lesson_rows.find(self._reader(tenant), tenant, id, now or self._clock())

    def keep_lesson(self, tenant: str, lesson: Lesson) -> bool:
        return self.keep_lessons(tenant, [lesson])[0]

    def keep_lessons(self, tenant: str, lessons: Sequence[Lesson]) -> list[bool]:
        from mulligan.remember.lessons import (
            rows as lesson_rows,  # lazy import: write-only processes start faster
        )

        with self._writing(tenant) as writer:
            are_new = [lesson_rows.keep(writer, tenant, each, self._clock()) for each in lessons]
            if noted := audit.written(lessons, are_new):
                self._note(writer, tenant, "lesson.write", *noted)
            return are_new

    def remove_lessons(self, tenant: str, source: LessonSource) -> int:
        from mulligan.remember.lessons import (
            rows as lesson_rows,  # lazy import: write-only processes start faster
        )

        with self._writing(tenant) as writer:
            removed = lesson_rows.remove(writer, tenant, source)
            if removed:
                self._note(writer, tenant, "lesson.remove", source, audit.counted(lessons=removed))
            return removed

    def decide_lesson(self, tenant: str, id: str, verdict: LessonVerdict, at: int) -> Lesson | None:
        from mulligan.remember.lessons import (
            rows as lesson_rows,  # lazy import: write-only processes start faster
        )

        with self._writing(tenant) as writer:
            known = lesson_rows.decide(writer, tenant, id, verdict, at)
            if known is not None:
                self._note(writer, tenant, f"lesson.{verdict}", known)
        return self.lesson(tenant, known, at) if known is not None else None

    def consolidate(
        self, tenant: str, now: int, progress: Progress | None = None, most: int | None = None
    ) -> Consolidated:
        from mulligan.remember.lessons import (
            rows as lesson_rows,  # lazy import: write-only processes start faster
        )

        return lesson_rows.consolidate(self._reader(tenant), self._writing, tenant, now, progress, most)

    def patterns(self, tenant: str, query: PatternQuery) -> list[Pattern]:
        return found.found(self._reader(tenant), tenant, query)

    def pattern(self, tenant: str, id: str) -> Pattern | None:
        return found.pattern(self._reader(tenant), tenant, id)

    def change(self, tenant: str, command: Command) -> Pattern | None:
        names = [command.pattern, *((command.into,) if command.into is not None else ())]
        known = [id for name in names if (id := found.whole_id(self._reader(tenant), tenant, name)) is not None]
        with self._writing(tenant) as writer:
            decisions = found.decisions_of(lambda sql, values: list(writer.execute(sql, tuple(values))), tenant)
            meant = patterns.named(command, known, decisions)
            if meant is None:
                return None
            command, changed = meant
            current = self.pattern(tenant, changed)
            if current is None:  # deleted concurrently
                return None
            decision = patterns.decided(command, decisions.get(changed, Decision()), current)
            writer.execute(_DECISION, (tenant, changed, encode(decision)))
            self._note(writer, tenant, f"pattern.{command.do}", changed, audit.named(into=command.into))
        return self.pattern(tenant, changed)

    def stats(self, tenant: str, query: StatsQuery) -> Stats:
        return rollups.stats(self._reader(tenant), tenant, query)

    def get(self, tenant: str, kind: str, key: str) -> bytes | None:
        rows = self._read(
            tenant, "SELECT value FROM shelf WHERE tenant = ? AND kind = ? AND key = ?", (tenant, kind, key)
        )
        return bytes(rows[0][0]) if rows else None

    def put(self, tenant: str, kind: str, key: str, value: bytes) -> None:
        with self._writing(tenant) as writer:
            writer.execute(_SHELVED, (tenant, kind, key, value))

    def swap(
        self, tenant: str, kind: str, key: str, known: bytes | None, value: bytes, noted: Noted | None = None
    ) -> bool:
        tenants = {tenant} if noted is None else {tenant, noted.tenant}
        with self._writing(*sorted(tenants)) as writer:
            desk = Desk(writer, self._ledger, tenant, self._clock())
            is_known = desk.get(kind, key) == known
            if is_known:
                desk.put(kind, key, value)
                if noted is not None:
                    audit.note(writer, noted.tenant, noted.act)
            return is_known

    def keys(self, tenant: str, kind: str) -> list[str]:
        rows = self._read(tenant, "SELECT key FROM shelf WHERE tenant = ? AND kind = ? ORDER BY key", (tenant, kind))
        return [key for (key,) in rows]

    def audit(self, tenant: str, query: AuditQuery) -> list[Act]:
        return audit.found(self._reader(tenant), tenant, query)

    def _note(self, writer: Connection, tenant: str, do: str, about: str = "", told: str = "") -> None:
        """Add an audit entry for a change by a person to this transaction."""
        audit.note(writer, tenant, audit.entry(do, self._clock(), about, told))

    @contextlib.contextmanager
    def transaction(self, tenant: str) -> Iterator[Desk]:
        """Open an atomic transaction, serialized with writers of other processes."""
        with self._writing(tenant) as writer:
            yield Desk(writer, self._ledger, tenant, self._clock())


class Desk:
    """Operations within one transaction: key-value entries, and records appended without a journal."""

    def __init__(self, writer: Connection, ledger: Ledger, tenant: str, now: int) -> None:
        self._writer, self._ledger = writer, ledger
        self._tenant, self._now = tenant, now

    def get(self, kind: str, key: str) -> bytes | None:
        row = self._writer.execute(
            "SELECT value FROM shelf WHERE tenant = ? AND kind = ? AND key = ?", (self._tenant, kind, key)
        ).fetchone()
        return bytes(row[0]) if row else None

    def put(self, kind: str, key: str, value: bytes) -> None:
        self._writer.execute(_SHELVED, (self._tenant, kind, key, value))

    def run(self, id: str) -> Run | None:
        row = self._writer.execute("SELECT body FROM runs WHERE tenant = ? AND id = ?", (self._tenant, id)).fetchone()
        return bodies.read(row[0], Run) if row else None

    def append(self, batch: Sequence[AnyEvent]) -> int:
        """Store a batch. Return how many of its records were new."""
        return self._ledger.append(self._writer, self._tenant, batch, self._now, is_imported=False)
