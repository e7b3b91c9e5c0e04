"""What happens now: each attempt and each end of a run, told once, for whoever watches a store."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from mulligan.events import RunEnded, StepEnded
from mulligan.records import History, Step
from mulligan.remember.store import LOCAL, RunQuery, Store

BEGUN = 3_600_000
"""Milliseconds before the first look: a run that has gone on longer than that is not heard of."""
RUNS = 200
"""Runs looked at each time."""


class Watch:
    """Tells each attempt and each end of a run once, in the order in which they ended."""

    def __init__(
        self,
        query: RunQuery,
        tool: str | None = None,
        kind: str | None = None,
        failures: bool = False,
        tenant: str = LOCAL,
    ) -> None:
        self._query = query
        self._tool, self._kind, self._failures = tool, kind, failures
        self._tenant = tenant
        self._told: set[tuple[str, int]] = set()

    def look(self, kept: Store) -> list[tuple[StepEnded | RunEnded, str]]:
        fresh: list[tuple[int, int, StepEnded | RunEnded, str]] = []
        for history in kept.runs(self._tenant, self._query):
            for at, event in self._events(history):
                key = (history.run.id, event.step.seq if isinstance(event, StepEnded) else 0)
                if key not in self._told:
                    self._told.add(key)
                    fresh.append((at, key[1] or sys.maxsize, event, history.run.agent))
        return [(event, agent) for _, _, event, agent in sorted(fresh, key=lambda each: each[:2])]

    def _events(self, history: History) -> Iterator[tuple[int, StepEnded | RunEnded]]:
        for step in history.steps:
            if self._is_asked(step):
                yield step.started + int(step.seconds * 1000), StepEnded(step)
        run = history.run
        if run.end is not None and not (self._failures or self._tool or self._kind):
            yield run.ended or run.started, RunEnded(run)

    def _is_asked(self, step: Step) -> bool:
        if self._failures and not step.has_failed:
            return False
        if self._tool is not None and step.name != self._tool:
            return False
        if self._kind is None:
            return True
        met = str(step.failure.kind) if step.failure is not None else ""
        return met.startswith(self._kind) if self._kind.endswith("/") else met == self._kind
