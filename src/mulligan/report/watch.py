"""Polling of a store for new events, for `mulligan tail`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec

from mulligan.events import RunEnded, StepEnded
from mulligan.records import History, Step
from mulligan.remember.store import LOCAL, RunQuery, Store

BEGUN = 3_600_000
"""Lookback of the first poll: runs that started earlier are not reported."""
RUNS = 200
"""Runs read per page of a poll."""
MOST = 1000
"""Maximum number of runs read per poll if many are new."""
OPEN = 50
"""Maximum number of open runs that are polled although they are no longer among the newest."""


class Watch:
    """Reader that reports each attempt and each end of a run once, ordered by end time."""

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
        self._told: dict[str, set[int]] = {}
        """Reported step numbers by run id; 0 stands for the end of the run."""
        self._open: dict[str, None] = {}
        """Ids of open runs, the most recently active last."""

    def look(self, kept: Store) -> list[tuple[StepEnded | RunEnded, str]]:
        fresh: list[tuple[int, int, StepEnded | RunEnded, str]] = []
        found = {history.run.id: history for history in self._newest(kept)}
        for id in [each for each in self._open if each not in found]:
            history = kept.run(self._tenant, id)
            if history is not None:
                found[id] = history
            else:
                del self._open[id]
        for id, history in sorted(found.items(), key=lambda each: each[1].run.started):
            told = self._told.setdefault(id, set())
            before = len(told)
            for at, event in self._events(history):
                key = event.step.seq if isinstance(event, StepEnded) else 0
                if key not in told:
                    told.add(key)
                    fresh.append((at, key or sys.maxsize, event, history.run.agent))
            self._follow(history, is_fresh=len(told) > before)
        return [(event, agent) for _, _, event, agent in sorted(fresh, key=lambda each: each[:2])]

    def _newest(self, kept: Store) -> Iterator[History]:
        """Yield the newest runs, and older pages until a known run or the limit."""
        query, seen = self._query, 0
        while seen < MOST:
            page = kept.runs(self._tenant, query)
            yield from page
            seen += len(page)
            if len(page) < query.limit or page[-1].run.id in self._told:
                return
            query = msgspec.structs.replace(query, before=(page[-1].run.started, page[-1].run.id))

    def _follow(self, history: History, is_fresh: bool) -> None:
        """Track a run while it is open. Evict the least recently active run above the limit."""
        id = history.run.id
        if history.run.end is not None:
            self._open.pop(id, None)
        elif is_fresh or id not in self._open:
            self._open.pop(id, None)
            self._open[id] = None
            if len(self._open) > OPEN:
                del self._open[next(iter(self._open))]

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
