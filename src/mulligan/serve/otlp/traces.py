"""Conversion of incoming spans to events. The spans of one trace may arrive in many exports.

Each step is stored on arrival, and attempts are grouped. The state of a trace is held in memory and can be restored
from the store, so that a restarted server continues where it stopped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from mulligan.capture.transcripts.gathering import Reading
from mulligan.capture.transcripts.otlp import NAME, Span, Trace, in_order, written
from mulligan.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.failure import Failure
from mulligan.records import Run
from mulligan.remember.store import Store

HELD = 2000
"""Traces in memory. An evicted one is read from the store when more of its spans arrive."""
SPAN, OF = "span", "of"
"""Keys in a step's metadata: its span id, and what its attempts have in common."""


class _Live:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.spans: set[str] = set()
        """Ids of spans that have a step."""
        self.told: Run | None = None
        """The run as last published."""


class Traces:
    """Converter of spans to events. Not thread-safe: used by the writer thread only."""

    def __init__(self, store: Store, classify: Callable[..., Failure]) -> None:
        self._store = store
        self._reading = Reading(classify, keeps_results=True)
        self._live: OrderedDict[tuple[str, str], _Live] = OrderedDict()

    def events(self, tenant: str, spans: Iterable[Span]) -> list[AnyEvent]:
        """Return the events that these spans add."""
        by_trace: dict[str, list[Span]] = {}
        for span in spans:
            met = by_trace.get(span.trace)
            if met is None:
                by_trace[span.trace] = [span]
            else:
                met.append(span)
        live = self._found(tenant, by_trace)
        events: list[AnyEvent] = []
        for id, met in by_trace.items():
            events += self._of(live[id], in_order(met))
        return events

    def forget(self, tenant: str, spans: Iterable[Span]) -> None:
        """Drop the state of these traces after a failed write. The client sends the spans again."""
        for span in spans:
            self._live.pop((tenant, span.trace), None)

    def _of(self, live: _Live, spans: list[Span]) -> list[AnyEvent]:
        events: list[AnyEvent] = []
        trace = live.trace
        id = ""

        def marks(key: str, model: str) -> dict[str, Any]:
            """Return the metadata with which a later process can continue the trace."""
            return {SPAN: id, OF: key, "model": model} if model else {SPAN: id, OF: key}

        for span in spans:
            id = written(span.id)
            if id in live.spans:
                continue  # sent again
            if trace.gathering.agent == NAME and isinstance(service := span.resource.get("service.name"), str):
                # Provisional, until the span arrives that names the agent.
                trace.gathering.agent = service
                version = span.resource.get("service.version")
                trace.gathering.version = version if isinstance(version, str) else None
            step = trace.add(span, marks)
            if step is not None:
                live.spans.add(id)
                events.append(StepEnded(step))
        if not trace.seq:
            return []  # no relevant span yet
        run = self._run(trace)
        if run != live.told:
            events.insert(0, RunStarted(run) if run.end is None else RunEnded(run))
            live.told = run
        return events

    def _run(self, trace: Trace) -> Run:
        run = trace.gathering.run()
        return run if trace.has_ended else msgspec.structs.replace(run, ended=None, end=None)

    def _found(self, tenant: str, ids: Iterable[str]) -> dict[str, _Live]:
        """Return the state of these traces, from memory or the store."""
        found: dict[str, _Live] = {}
        new: dict[str, _Live] = {}
        for id in ids:
            known = self._live.get((tenant, id))
            if known is None:
                known = new[id] = self._live[tenant, id] = _Live(Trace(self._reading, id, holds_steps=False))
            else:
                self._live.move_to_end((tenant, id))
            found[id] = known
        try:
            # Most traces are new: one query finds the stored ones.
            kept = self._store.known(tenant, [live.trace.gathering.id for live in new.values()]) if new else set()
            for live in new.values():
                if live.trace.gathering.id in kept:
                    self._resume(tenant, live)
        except BaseException:
            for id in new:
                self._live.pop((tenant, id), None)
            raise
        while len(self._live) > HELD:
            self._live.popitem(last=False)
        return found

    def _resume(self, tenant: str, live: _Live) -> None:
        """Restore the state of a trace from the store: spans with a step, and attempts that may continue."""
        trace = live.trace
        kept = self._store.run(tenant, trace.gathering.id)
        if kept is None:
            return
        run, gathering = kept.run, trace.gathering
        gathering.agent, gathering.version, gathering.environment = run.agent, run.version, run.environment
        gathering.session, gathering.context = run.session, run.context or ""
        gathering.model = str((run.metadata or {}).get("model", ""))
        gathering.has_raised = run.end == "raised"
        trace.has_ended = run.end is not None
        gathering.at(run.started)
        gathering.at(run.ended or 0)
        for step in kept.steps:
            about = step.metadata or {}
            trace.seq = max(trace.seq, step.seq)
            gathering.at(step.started + int(step.seconds * 1000))
            if isinstance(about.get(SPAN), str):
                live.spans.add(about[SPAN])
            if isinstance(about.get(OF), str):
                trace.last[about[OF]] = step
        live.told = run
