"""OpenTelemetry spans and metrics (extra `otel`): one span per attempt, as a child of the span of its run.

Names and attributes follow the semantic conventions for generative AI and MCP; other attributes are `mulligan.*`. The
user configures the SDK and its exporters.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from mulligan.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.failure import MissingExtra
from mulligan.records import Run, Step, encode

try:
    from opentelemetry import metrics, trace
    from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
except ImportError:
    raise MissingExtra("OpenTelemetry needs its API: pip install 'mulligan[otel]'") from None

NAME = "mulligan"
OPEN = 10_000
"""Maximum number of open run spans. Above it the oldest span is ended."""
MESSAGE = 1000
_ENDS = {"raised": "an exception left the run", "abandoned": "the run was abandoned"}


class Otel:
    """Listener that converts events to spans and metrics.

        mulligan.add_listener(Otel())

    With `content=True` spans also contain the redacted arguments and results.
    """

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None, *, content: bool = False) -> None:
        self._tracer = trace.get_tracer(NAME, tracer_provider=tracer_provider)
        meter = metrics.get_meter(NAME, meter_provider=meter_provider)
        self._content = content
        self._open: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._durations = meter.create_histogram("mulligan.attempt.duration", "s", "How long attempts took.")
        self._models = meter.create_histogram("gen_ai.client.operation.duration", "s", "How long model calls took.")
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}", "Tokens of model calls.")
        self._recovered = meter.create_counter("mulligan.calls.recovered", "{call}", "Failed first and worked then.")
        self._given_up = meter.create_counter("mulligan.calls.given_up", "{call}", "Failed, and recovery had no more.")

    def __call__(self, event: AnyEvent) -> None:
        with self._lock:
            if isinstance(event, RunStarted):
                self._of(event.run, event.run.started)
            elif isinstance(event, StepEnded):
                self._step(event.step)
            elif isinstance(event, RunEnded):
                self._end(event.run)

    def _of(self, run: Run, started: int) -> Any:
        """Return the span of a run. Start it at the first event of the run."""
        span = self._open.get(run.id)
        if span is None:
            span = self._open[run.id] = self._tracer.start_span(
                f"invoke_agent {run.agent}".strip(), self._around(run), SpanKind.INTERNAL, start_time=_nanos(started),
                attributes={"gen_ai.operation.name": "invoke_agent", "mulligan.run.id": run.id},
            )  # fmt: skip
            if len(self._open) > OPEN:
                _, oldest = self._open.popitem(last=False)
                oldest.end()
        return span

    def _around(self, run: Run) -> Any:
        """Return the parent context of a run: a remote span, the span of the parent run, or the current context."""
        if run.traceparent is not None:
            _, trace_id, span_id, flags = run.traceparent.split("-")
            there = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)))
            return trace.set_span_in_context(NonRecordingSpan(there))
        outer = self._open.get(run.parent) if run.parent is not None else None
        return trace.set_span_in_context(outer) if outer is not None else None

    def _end(self, run: Run) -> None:
        span = self._of(run, run.started)
        del self._open[run.id]
        span.update_name(f"invoke_agent {run.agent}".strip())
        about = {
            "gen_ai.agent.name": run.agent, "gen_ai.agent.version": run.version, "gen_ai.conversation.id": run.session,
            "deployment.environment.name": run.environment, "mulligan.run.parent": run.parent, "mulligan.end": run.end,
        }  # fmt: skip
        span.set_attributes(_known(about))
        if run.end != "finished":
            span.set_status(Status(StatusCode.ERROR, _ENDS.get(run.end or "", "the run has not ended")))
        span.end(_nanos(run.ended if run.ended is not None else run.started))

    def _step(self, step: Step) -> None:
        if step.type == "run":
            self._run_failed(step)
            return
        parent = trace.set_span_in_context(self._of(Run(id=step.run), step.started))
        name, about = _described(step)
        span = self._tracer.start_span(
            name,
            parent,
            kind=SpanKind.CLIENT if step.server is not None or step.type == "model" else SpanKind.INTERNAL,
            start_time=_nanos(step.started),
            attributes=_known(about | (_content(step) if self._content else {})),
        )
        if step.has_failed and step.failure is not None:
            _fail(span, step)
        span.end(_nanos(step.started) + int(step.seconds * 1e9))
        self._count(step, about)

    def _run_failed(self, step: Step) -> None:
        if step.failure is not None:
            _fail(self._of(Run(id=step.run), step.started), step)

    def _count(self, step: Step, about: dict[str, Any]) -> None:
        names = ("gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.request.model", "error.type", "mulligan.outcome")
        labels = _known({name: about.get(name) for name in names})
        self._durations.record(step.seconds, labels)
        if step.type == "model":
            self._models.record(step.seconds, labels)
            for sort, count in (step.tokens or {}).items():
                self._tokens.record(count, labels | {"gen_ai.token.type": sort})
        if step.attempt > 1 and step.outcome == "success":
            self._recovered.add(1, labels)
        if step.ending is not None and step.has_failed:
            self._given_up.add(1, labels)


def _described(step: Step) -> tuple[str, dict[str, Any]]:
    """Return the span name and attributes of an attempt."""
    failure, led = step.failure, step.after
    about: dict[str, Any] = {
        "mulligan.run.id": step.run,
        "mulligan.operation.id": f"{step.run}/{step.call}",
        "mulligan.attempt": step.attempt,
        "mulligan.outcome": step.outcome,
        "mulligan.repair.strategy": (led.source or led.remedy.value) if led is not None else None,
        "mulligan.waited": led.seconds if led is not None and led.seconds else None,
    }
    if failure is not None and step.has_failed:
        about |= {
            "error.type": str(failure.kind), "mulligan.remedy": failure.remedy.value, "mulligan.ran": failure.ran.value,
            "mulligan.fingerprint": failure.fingerprint or None, "http.response.status_code": failure.status,
        }  # fmt: skip
    if step.type == "model":
        about |= {"gen_ai.operation.name": "chat", "gen_ai.request.model": step.name}
        for sort, count in (step.tokens or {}).items():
            about[f"gen_ai.usage.{sort}_tokens"] = count
        return f"chat {step.name}", about
    if step.server is not None:
        method = {"mcp.method.name": "tools/call", "mcp.server.name": step.server, "gen_ai.tool.name": step.name}
        return f"tools/call {step.name}", about | method
    if step.type in ("tool", "retrieval"):
        operation = "execute_tool" if step.type == "tool" else "retrieval"
        return f"{operation} {step.name}", about | {"gen_ai.operation.name": operation, "gen_ai.tool.name": step.name}
    return step.name or step.type, about | {"mulligan.step.type": step.type}


def _content(step: Step) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if step.arguments is not None:
        told["gen_ai.tool.call.arguments"] = encode(step.arguments).decode()
    if step.result is not None:
        told["gen_ai.tool.call.result"] = encode(step.result).decode()
    return told


def _fail(span: Any, step: Step) -> None:
    failure = step.failure
    assert failure is not None
    message = failure.message[:MESSAGE]
    span.set_status(Status(StatusCode.ERROR, message))
    at = _nanos(step.started) + int(step.seconds * 1e9)
    span.add_event("exception", {"exception.type": str(failure.kind), "exception.message": message}, at)


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None and value != ""}


def _nanos(millis: int) -> int:
    return millis * 1_000_000
