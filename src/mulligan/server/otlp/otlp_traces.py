"""Conversion of incoming spans to events. The spans of one trace may arrive in many exports.

Each step is stored on arrival, and attempts are grouped. The state of a trace is held in memory and can be restored
from the store, so that a restarted server continues where it stopped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure
from mulligan.core.records import Run
from mulligan.store.base import Store
from mulligan.transcripts.otlp import NAME, Span, Trace, encode_id, sort_spans
from mulligan.transcripts.run_builder import ReaderState

MAX_OPEN_TRACES = 2000
"""Traces in memory. An evicted one is read from the store when more of its spans arrive."""
SPAN_KEY, ATTEMPT_GROUP_KEY = "span", "of"
"""Keys in a step's metadata: its span id, and what its attempts have in common."""


class _OpenTrace:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.spans: set[str] = set()
        """Ids of spans that have a step."""
        self.last_run: Run | None = None
        """The run as last published."""


class Traces:
    """Converter of spans to events. Not thread-safe: used by the writer thread only."""

    def __init__(self, store: Store, classify: Callable[..., Failure]) -> None:
        self._store = store
        self._reading = ReaderState(classify, keeps_results=True)
        self._open_traces: OrderedDict[tuple[str, str], _OpenTrace] = OrderedDict()

    def events(self, tenant: str, spans: Iterable[Span]) -> list[AnyEvent]:
        """Return the events that these spans add."""
        by_trace: dict[str, list[Span]] = {}
        for span in spans:
            trace_spans = by_trace.get(span.trace)
            if trace_spans is None:
                by_trace[span.trace] = [span]
            else:
                trace_spans.append(span)
        traces_by_id = self._load_traces(tenant, by_trace)
        events: list[AnyEvent] = []
        for id, trace_spans in by_trace.items():
            events += self._build_events(traces_by_id[id], sort_spans(trace_spans))
        return events

    def forget(self, tenant: str, spans: Iterable[Span]) -> None:
        """Drop the state of these traces after a failed write. The client sends the spans again."""
        for span in spans:
            self._open_traces.pop((tenant, span.trace), None)

    def _build_events(self, open_trace: _OpenTrace, spans: list[Span]) -> list[AnyEvent]:
        events: list[AnyEvent] = []
        trace = open_trace.trace
        id = ""

        def build_metadata(key: str, model: str) -> dict[str, Any]:
            """Return the metadata with which a later process can continue the trace."""
            return (
                {SPAN_KEY: id, ATTEMPT_GROUP_KEY: key, "model": model}
                if model
                else {SPAN_KEY: id, ATTEMPT_GROUP_KEY: key}
            )

        for span in spans:
            id = encode_id(span.id)
            if id in open_trace.spans:
                continue  # sent again
            if trace.builder.agent == NAME and isinstance(service := span.resource.get("service.name"), str):
                # Provisional, until the span arrives that names the agent.
                trace.builder.agent = service
                version = span.resource.get("service.version")
                trace.builder.version = version if isinstance(version, str) else None
            step = trace.add(span, build_metadata)
            if step is not None:
                open_trace.spans.add(id)
                events.append(StepEnded(step))
        if not trace.seq:
            return []  # no relevant span yet
        run = self._current_run(trace)
        if run != open_trace.last_run:
            events.insert(0, RunStarted(run) if run.end_reason is None else RunEnded(run))
            open_trace.last_run = run
        return events

    def _current_run(self, trace: Trace) -> Run:
        run = trace.builder.build_run()
        return run if trace.has_ended else msgspec.structs.replace(run, ended_at=None, end_reason=None)

    def _load_traces(self, tenant: str, ids: Iterable[str]) -> dict[str, _OpenTrace]:
        """Return the state of these traces, from memory or the store."""
        traces: dict[str, _OpenTrace] = {}
        new: dict[str, _OpenTrace] = {}
        for id in ids:
            open_trace = self._open_traces.get((tenant, id))
            if open_trace is None:
                open_trace = new[id] = self._open_traces[tenant, id] = _OpenTrace(
                    Trace(self._reading, id, holds_steps=False)
                )
            else:
                self._open_traces.move_to_end((tenant, id))
            traces[id] = open_trace
        try:
            # Most traces are new: one query finds the stored ones.
            stored_ids = (
                self._store.existing_runs(tenant, [unsaved_trace.trace.builder.id for unsaved_trace in new.values()])
                if new
                else set()
            )
            for new_trace in new.values():
                if new_trace.trace.builder.id in stored_ids:
                    self._resume(tenant, new_trace)
        except BaseException:
            for id in new:
                self._open_traces.pop((tenant, id), None)
            raise
        while len(self._open_traces) > MAX_OPEN_TRACES:
            self._open_traces.popitem(last=False)
        return traces

    def _resume(self, tenant: str, open_trace: _OpenTrace) -> None:
        """Restore the state of a trace from the store: spans with a step, and attempts that may continue."""
        trace = open_trace.trace
        stored_history = self._store.run(tenant, trace.builder.id)
        if stored_history is None:
            return
        run, gathering = stored_history.run, trace.builder
        gathering.agent, gathering.version, gathering.environment = run.agent, run.version, run.environment
        gathering.session, gathering.context = run.session, run.context or ""
        gathering.model = str((run.metadata or {}).get("model", ""))
        gathering.has_raised = run.end_reason == "raised"
        trace.has_ended = run.end_reason is not None
        gathering.note_time(run.started_at)
        gathering.note_time(run.ended_at or 0)
        for step in stored_history.steps:
            metadata = step.metadata or {}
            trace.seq = max(trace.seq, step.seq)
            gathering.note_time(step.started_at + int(step.duration_seconds * 1000))
            if isinstance(metadata.get(SPAN_KEY), str):
                open_trace.spans.add(metadata[SPAN_KEY])
            if isinstance(metadata.get(ATTEMPT_GROUP_KEY), str):
                trace.last[metadata[ATTEMPT_GROUP_KEY]] = step
        open_trace.last_run = run
