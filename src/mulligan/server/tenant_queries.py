"""Store queries for one tenant at one time, shared by the API and the dashboard."""

from __future__ import annotations

from typing import Any

import msgspec

from mulligan.core.records import Fix, History, Lesson, LessonVerdict, Pattern, Precedent
from mulligan.report import overview
from mulligan.report import stats as stats_report
from mulligan.store.base import (
    AuditEntry,
    AuditQuery,
    FixQuery,
    LessonQuery,
    PatternQuery,
    RecallQuery,
    RunQuery,
    Store,
    TrialReport,
)
from mulligan.store.counters import Stats, StatsQuery


class TenantQueries:
    """Queries of one tenant. They block like the store: call them with `Server.run_in_reader`."""

    def __init__(self, store: Store, tenant: str, now: int) -> None:
        self._store = store
        self._tenant = tenant
        self.now = now

    def runs(self, query: RunQuery) -> list[History]:
        return self._store.runs(self._tenant, query)

    def run(self, id: str) -> History | None:
        """Return a run by its id or an unambiguous prefix of it."""
        history = self._store.run(self._tenant, id)
        if history is not None:
            return history
        matches = self._store.find(self._tenant, id, limit=2)
        return self._store.run(self._tenant, matches[0].id) if len(matches) == 1 else None

    def stats(self, query: StatsQuery) -> Stats:
        return self._store.stats(self._tenant, query)

    def advice(self, query: StatsQuery) -> list[str]:
        """Return recommendations derived from the metrics."""
        total_query = msgspec.structs.replace(query, by=None)
        tools = self.stats(msgspec.structs.replace(query, by="tool", detail=True))
        agents = self.stats(msgspec.structs.replace(query, by="agent"))
        return stats_report.build_advice(self.stats(total_query).total, tools.parts, agents.parts)

    def patterns(self, query: PatternQuery) -> list[Pattern]:
        return self._store.patterns(self._tenant, query)

    def pattern(self, id: str) -> Pattern | None:
        return self._store.pattern(self._tenant, id)

    def precedents(self, pattern: Pattern) -> list[Precedent]:
        """Return what recovered a pattern in earlier runs."""
        return self._store.recall(self._tenant, RecallQuery(tool=pattern.tool, fingerprint=pattern.fingerprint))

    def fixes(self, query: FixQuery) -> list[Fix]:
        return self._store.fixes(self._tenant, query)

    def evidence(self, fix: str) -> list[TrialReport]:
        return self._store.evidence(self._tenant, fix)

    def lessons(self, query: LessonQuery) -> list[Lesson]:
        return self._store.lessons(self._tenant, query)

    def lesson(self, id: str) -> Lesson | None:
        return self._store.lesson(self._tenant, id, self.now)

    def decide_lesson(self, id: str, verdict: LessonVerdict) -> Lesson | None:
        """Apply an operator's decision and return the changed lesson."""
        return self._store.decide_lesson(self._tenant, id, verdict, self.now)

    def audit(self, query: AuditQuery) -> list[AuditEntry]:
        return self._store.audit(self._tenant, query)

    def parts(self, query: StatsQuery) -> list[dict[str, Any]]:
        """Return the metrics by tool, agent or another dimension, most unrecovered calls first."""
        return overview.rank_parts(self.stats(query).parts, query.by or "")

    def failing_steps(self, query: StatsQuery) -> list[dict[str, Any]]:
        """Return steps with failed calls, most unrecovered calls first."""
        rows = self.parts(msgspec.structs.replace(query, by="step"))
        return [
            {name: row[name] for name in ("step", "calls", "recovered", "unrecovered")}
            for row in rows
            if row["recovered"] or row["unrecovered"]
        ]
