"""Traces while they come: spans of one arrive in many exports, each is kept when it comes, and attempts are joined.

What is known of a trace is in memory, and in what was kept of it: a server that was killed goes on where it was.
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
"""Traces in memory. One that was let go is read from the store when more of it comes."""
SPAN, OF = "span", "of"
"""In a step's metadata: the span it was, and what its attempts have in common."""


class _Live:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.spans: set[str] = set()
        """Of which there is a step."""
        self.told: Run | None = None
        """What was last said of the run."""


class Traces:
    """From spans to events. Used by one thread, the one that writes."""

    def __init__(self, store: Store, classify: Callable[..., Failure]) -> None:
        self._store = store
        self._reading = Reading(classify, keeps_results=True)
        self._live: OrderedDict[tuple[str, str], _Live] = OrderedDict()

    def events(self, tenant: str, spans: Iterable[Span]) -> list[AnyEvent]:
        """What these spans tell that was not told before."""
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
        """What was told of these was not kept: they will come again."""
        for span in spans:
            self._live.pop((tenant, span.trace), None)

    def _of(self, live: _Live, spans: list[Span]) -> list[AnyEvent]:
        events: list[AnyEvent] = []
        trace = live.trace
        id = ""

        def marks(key: str, model: str) -> dict[str, Any]:
            """What a step says of where it comes from, for whoever goes on with its trace."""
            return {SPAN: id, OF: key, "model": model} if model else {SPAN: id, OF: key}

        for span in spans:
            id = written(span.id)
            if id in live.spans:
                continue  # sent again
            if trace.gathering.agent == NAME and isinstance(service := span.resource.get("service.name"), str):
                # Until the span comes that says whose work it is.
                trace.gathering.agent = service
                version = span.resource.get("service.version")
                trace.gathering.version = version if isinstance(version, str) else None
            step = trace.add(span, marks)
            if step is not None:
                live.spans.add(id)
                events.append(StepEnded(step))
        if not trace.seq:
            return []  # nothing of it is anything we know
        run = self._run(trace)
        if run != live.told:
            events.insert(0, RunStarted(run) if run.end is None else RunEnded(run))
            live.told = run
        return events

    def _run(self, trace: Trace) -> Run:
        run = trace.gathering.run()
        return run if trace.has_ended else msgspec.structs.replace(run, ended=None, end=None)

    def _found(self, tenant: str, ids: Iterable[str]) -> dict[str, _Live]:
        """These traces as they were left."""
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
            # Most are new: that none of them is kept takes one question.
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
        """Takes up what was kept of a trace: of which spans there are steps, and which attempts may go on."""
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
