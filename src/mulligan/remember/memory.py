"""A Store in a list: for tests, and for those who want recovery and no file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import RLock

from mulligan import calls, figures
from mulligan.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.figures import Stats, StatsQuery
from mulligan.records import History, Link, Precedent, Run, Step
from mulligan.remember.store import Health, Question, RunQuery


class MemoryStore:
    """Keeps everything for as long as the process lives."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._runs: dict[tuple[str, str], Run] = {}
        self._steps: dict[tuple[str, str], dict[int, Step]] = {}
        self._offsets: dict[tuple[str, str], int] = {}
        self._shelf: dict[tuple[str, str, str], bytes] = {}

    def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int) -> int:
        with self._lock:
            if offset <= self._offsets.get((tenant, journal), 0):
                return 0
            self._offsets[tenant, journal] = offset
            return sum(self._keep(tenant, event) for event in batch)

    def _keep(self, tenant: str, event: AnyEvent) -> bool:
        match event:
            case RunStarted(run):
                is_new = (tenant, run.id) not in self._runs
                self._runs.setdefault((tenant, run.id), run)
                return is_new
            case RunEnded(run):
                is_new = self._runs.get((tenant, run.id)) != run
                self._runs[tenant, run.id] = run
                return is_new
            case StepEnded(step):
                steps = self._steps.setdefault((tenant, step.run), {})
                is_new = step.seq not in steps
                steps.setdefault(step.seq, step)
                return is_new
            case _:
                return False

    def offset(self, tenant: str, journal: str) -> int:
        return self._offsets.get((tenant, journal), 0)

    def runs(self, tenant: str, query: RunQuery) -> list[History]:
        return [self._history(tenant, run) for run in self._found(tenant, query)[: max(query.limit, 0)]]

    def _found(self, tenant: str, query: RunQuery) -> list[Run]:
        with self._lock:
            found = [
                run
                for (owner, _), run in self._runs.items()
                if owner == tenant
                and (query.agent is None or run.agent == query.agent)
                and (query.session is None or run.session == query.session)
                and (query.since is None or run.started >= query.since)
                and (query.until is None or run.started < query.until)
            ]
        return sorted(found, key=lambda run: (run.started, run.id), reverse=True)

    def run(self, tenant: str, id: str) -> History | None:
        with self._lock:
            run = self._runs.get((tenant, id))
        return None if run is None else self._history(tenant, run)

    def _history(self, tenant: str, run: Run) -> History:
        steps = self._steps_of(tenant, run.id)
        return History(run=run, steps=tuple(steps), links=tuple(calls.overcame(steps)))

    def _steps_of(self, tenant: str, run: str) -> list[Step]:
        with self._lock:
            return sorted(self._steps.get((tenant, run), {}).values(), key=lambda step: step.seq)

    def find(self, tenant: str, prefix: str, limit: int = 5) -> list[Run]:
        return [run for run in self._found(tenant, RunQuery()) if run.id.startswith(prefix)][: max(limit, 0)]

    def export(self, tenant: str, since: int = 0) -> Iterator[History]:
        for run in reversed(self._found(tenant, RunQuery(since=since))):
            yield self._history(tenant, run)

    def forget(self, tenant: str, run: str) -> bool:
        with self._lock:
            steps = self._steps.pop((tenant, run), None)
            return self._runs.pop((tenant, run), None) is not None or steps is not None

    def health(self, tenant: str) -> Health:
        with self._lock:
            runs = sum(owner == tenant for owner, _ in self._runs)
            steps = sum(len(steps) for (owner, _), steps in self._steps.items() if owner == tenant)
        return Health(where="memory", sound=True, runs=runs, steps=steps)

    def close(self) -> None:
        """Nothing to let go of: what is kept goes with the object."""

    def recall(self, tenant: str, question: Question) -> list[Precedent]:
        with self._lock:
            runs = [run for owner, run in self._steps if owner == tenant]
        links: list[Link] = []
        seen: set[str] = set()
        for run in runs:
            steps = self._steps_of(tenant, run)
            asked = {call.id for call in calls.joined(steps) if is_asked(call, question)}
            known = [link for link in calls.overcame(steps) if link.failed in asked]
            links += known
            if known or (run != question.run and any(has_met(step, question) for step in steps)):
                seen.add(run)
        return calls.precedents(links, len(seen))[: max(question.limit, 0)]

    def stats(self, tenant: str, query: StatsQuery) -> Stats:
        return figures.stats(self.export(tenant), query)

    def get(self, tenant: str, kind: str, key: str) -> bytes | None:
        return self._shelf.get((tenant, kind, key))

    def put(self, tenant: str, kind: str, key: str, value: bytes) -> None:
        self._shelf[tenant, kind, key] = value


def is_asked(call: calls.Call, question: Question) -> bool:
    """Whether what went wrong last with this call is what the question is about."""
    failure = call.failure
    return call.name == question.tool and failure is not None and failure.fingerprint == question.fingerprint


def has_met(step: Step, question: Question) -> bool:
    failure = step.failure if step.has_failed else None
    return step.name == question.tool and failure is not None and failure.fingerprint == question.fingerprint
