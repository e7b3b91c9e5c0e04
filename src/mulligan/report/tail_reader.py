"""Polling of a store for new events, for `mulligan tail`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec

from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.records import History, Step
from mulligan.store.base import DEFAULT_TENANT, RunQuery, Store

START_LOOKBACK_MS = 3_600_000
"""Lookback of the first poll: runs that started earlier are not reported."""
RUNS_PER_POLL = 200
"""Runs read per page of a poll."""
MAX_NEW_RUNS_PER_POLL = 1000
"""Maximum number of runs read per poll if many are new."""
MAX_OPEN_RUNS = 50
"""Maximum number of open runs that are polled although they are no longer among the newest."""


class TailReader:
    """Reader that reports each attempt and each end of a run once, ordered by end time."""

    def __init__(
        self,
        query: RunQuery,
        tool: str | None = None,
        kind: str | None = None,
        is_failures_only: bool = False,
        tenant: str = DEFAULT_TENANT,
    ) -> None:
        self._query = query
        self._tool, self._kind, self._is_failures_only = tool, kind, is_failures_only
        self._tenant = tenant
        self._reported_steps: dict[str, set[int]] = {}
        """Reported step numbers by run id; 0 stands for the end of the run."""
        self._open_runs: dict[str, None] = {}
        """Ids of open runs, the most recently active last."""

    def poll(self, store: Store) -> list[tuple[StepEnded | RunEnded, str]]:
        new_events: list[tuple[int, int, StepEnded | RunEnded, str]] = []
        histories = {history.run.id: history for history in self._read_newest(store)}
        for id in [run_id for run_id in self._open_runs if run_id not in histories]:
            history = store.run(self._tenant, id)
            if history is not None:
                histories[id] = history
            else:
                del self._open_runs[id]
        for id, history in sorted(histories.items(), key=lambda item: item[1].run.started_at):
            reported = self._reported_steps.setdefault(id, set())
            before = len(reported)
            for timestamp, event in self._events(history):
                key = event.step.seq if isinstance(event, StepEnded) else 0
                if key not in reported:
                    reported.add(key)
                    new_events.append((timestamp, key or sys.maxsize, event, history.run.agent))
            self._track_open_run(history, has_new_events=len(reported) > before)
        return [(event, agent) for _, _, event, agent in sorted(new_events, key=lambda entry: entry[:2])]

    def _read_newest(self, store: Store) -> Iterator[History]:
        """Yield the newest runs, and older pages until a known run or the limit."""
        query, read_count = self._query, 0
        while read_count < MAX_NEW_RUNS_PER_POLL:
            page = store.runs(self._tenant, query)
            yield from page
            read_count += len(page)
            if len(page) < query.limit or page[-1].run.id in self._reported_steps:
                return
            query = msgspec.structs.replace(query, before=(page[-1].run.started_at, page[-1].run.id))

    def _track_open_run(self, history: History, has_new_events: bool) -> None:
        """Track a run while it is open. Evict the least recently active run above the limit."""
        id = history.run.id
        if history.run.end_reason is not None:
            self._open_runs.pop(id, None)
        elif has_new_events or id not in self._open_runs:
            self._open_runs.pop(id, None)
            self._open_runs[id] = None
            if len(self._open_runs) > MAX_OPEN_RUNS:
                del self._open_runs[next(iter(self._open_runs))]

    def _events(self, history: History) -> Iterator[tuple[int, StepEnded | RunEnded]]:
        for step in history.steps:
            if self._matches_filters(step):
                yield step.started_at + int(step.duration_seconds * 1000), StepEnded(step)
        run = history.run
        if run.end_reason is not None and not (self._is_failures_only or self._tool or self._kind):
            yield run.ended_at or run.started_at, RunEnded(run)

    def _matches_filters(self, step: Step) -> bool:
        if self._is_failures_only and not step.has_failed:
            return False
        if self._tool is not None and step.name != self._tool:
            return False
        if self._kind is None:
            return True
        failure_kind = str(step.failure.kind) if step.failure is not None else ""
        return failure_kind.startswith(self._kind) if self._kind.endswith("/") else failure_kind == self._kind
