"""Polling of a store for new events, for `mulligan tail`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec

from mulligan.contract.store import DEFAULT_TENANT, RunQuery, Store
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.records import History, Record, Step

START_LOOKBACK_MS = 3_600_000
"""Lookback of the first poll: runs that started earlier are not reported."""
MAX_OPEN_RUNS = 50
"""Maximum number of open runs that are polled although they are no longer among the newest."""


class StepQuery(Record, frozen=True):
    """Filters for attempts as they end: of their run, and of the attempt itself."""

    agent: str | None = None
    session: str | None = None
    environment: str | None = None
    version: str | None = None
    model: str | None = None
    tool: str | None = None
    kind: str | None = None
    """`tool/timeout`, or `tool/` for all kinds of a type."""
    failures: bool = False

    def matches(self, step: Step) -> bool:
        """Return whether an attempt of a matching run matches."""
        if (self.failures and not step.has_failed) or (self.tool is not None and step.name != self.tool):
            return False
        if self.kind is None:
            return True
        failure_kind = str(step.failure.kind) if step.failure is not None else ""
        return failure_kind.startswith(self.kind) if self.kind.endswith("/") else failure_kind == self.kind


class TailReader:
    """Reader that reports each attempt and each end of a run once, ordered by end time."""

    # Runs read per page of a poll
    def __init__(self, query: StepQuery, since: int, limit: int = 200, tenant: str = DEFAULT_TENANT) -> None:
        self._query = query
        self._run_query = RunQuery(
            agent=query.agent, session=query.session, environment=query.environment, version=query.version,
            model=query.model, since=since, limit=limit,
        )  # fmt: skip
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
        query, read_count = self._run_query, 0
        # Maximum number of runs read per poll if many are new
        while read_count < 1000:
            page = store.runs(self._tenant, query)
            yield from page
            read_count += len(page)
            if len(page) < query.limit or page[-1].run.id in self._reported_steps:
                return
            query = msgspec.structs.replace(query, before=(page[-1].run.started_at, page[-1].run.id))

    def _track_open_run(self, history: History, has_new_events: bool) -> None:
        """Track a run while it is open. Evict the least recently active run above the limit."""
        id = history.run.id
        if history.run.end_reason is not None or has_new_events:
            self._open_runs.pop(id, None)
        if history.run.end_reason is None:
            self._open_runs.setdefault(id)
            if len(self._open_runs) > MAX_OPEN_RUNS:
                del self._open_runs[next(iter(self._open_runs))]

    def _events(self, history: History) -> Iterator[tuple[int, StepEnded | RunEnded]]:
        for step in history.steps:
            if self._query.matches(step):
                yield step.started_at + int(step.duration_seconds * 1000), StepEnded(step)
        run = history.run
        if run.end_reason is not None and not (self._query.failures or self._query.tool or self._query.kind):
            yield run.ended_at or run.started_at, RunEnded(run)
