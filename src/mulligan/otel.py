"""OpenTelemetry spans and metrics (extra `otel`): one span per attempt, as a child of the span of its run.

Names and attributes follow the semantic conventions for generative AI and MCP; other attributes are `mulligan.*`. The
user configures the SDK and its exporters.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import INSTALL_EXTRA, MissingExtraError
from mulligan.core.records import TOKEN_PARTS, Run, Step, encode

try:
    from opentelemetry import metrics, trace
    from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
except ImportError:
    raise MissingExtraError(f"OpenTelemetry needs its API. {INSTALL_EXTRA.format('otel')}") from None

INSTRUMENTATION_NAME = "mulligan"
MAX_OPEN_RUNS = 10_000
"""Maximum number of open run spans. Above it the oldest span is ended."""
MAX_MESSAGE_CHARS = 1000
_TOKEN_ATTRIBUTES = {
    "cached_input": "gen_ai.usage.cache_read.input_tokens",
    "cache_write": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning": "gen_ai.usage.reasoning.output_tokens",
}
"""Attributes of token counts whose names the conventions define differently."""
_END_DESCRIPTIONS = {"raised": "the run raised an exception", "abandoned": "the run was abandoned"}


class Otel:
    """Listener that converts events to spans and metrics.

        mulligan.add_listener(Otel())

    With `content=True` spans also contain the redacted arguments and results.
    """

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None, *, content: bool = False) -> None:
        self._tracer = trace.get_tracer(INSTRUMENTATION_NAME, tracer_provider=tracer_provider)
        meter = metrics.get_meter(INSTRUMENTATION_NAME, meter_provider=meter_provider)
        self._content = content
        self._open_spans: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._durations = meter.create_histogram("mulligan.attempt.duration", "s", "Duration of attempts.")
        self._model_durations = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "Duration of model calls."
        )
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}", "Tokens used by model calls.")
        self._cost = meter.create_counter("mulligan.cost", "{USD}", "Cost of model calls, in US dollars.")
        self._recovered = meter.create_counter(
            "mulligan.calls.recovered", "{call}", "Calls that a later attempt recovered."
        )
        self._unrecovered = meter.create_counter(
            "mulligan.calls.unrecovered", "{call}", "Calls whose last attempt failed. A later call may recover them."
        )

    def __call__(self, event: AnyEvent) -> None:
        with self._lock:
            if isinstance(event, RunStarted):
                self._ensure_run_span(event.run, event.run.started_at)
            elif isinstance(event, StepEnded):
                self._record_step(event.step)
            elif isinstance(event, RunEnded):
                self._end_run(event.run)

    def _ensure_run_span(self, run: Run, started: int) -> Any:
        """Return the span of a run. Start it at the first event of the run."""
        span = self._open_spans.get(run.id)
        if span is None:
            span = self._open_spans[run.id] = self._tracer.start_span(
                f"invoke_agent {run.agent}".strip(),
                self._parent_context(run),
                SpanKind.INTERNAL,
                start_time=_to_nanos(started),
                attributes={"gen_ai.operation.name": "invoke_agent", "mulligan.run.id": run.id},
            )
            if len(self._open_spans) > MAX_OPEN_RUNS:
                _, oldest = self._open_spans.popitem(last=False)
                oldest.end()
        return span

    def _parent_context(self, run: Run) -> Any:
        """Return the parent context of a run: a remote span, the span of the parent run, or the current context."""
        if run.traceparent is not None:
            _, trace_id, span_id, flags = run.traceparent.split("-")
            remote_span = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)))
            return trace.set_span_in_context(NonRecordingSpan(remote_span))
        outer = self._open_spans.get(run.parent) if run.parent is not None else None
        return trace.set_span_in_context(outer) if outer is not None else None

    def _end_run(self, run: Run) -> None:
        span = self._ensure_run_span(run, run.started_at)
        del self._open_spans[run.id]
        span.update_name(f"invoke_agent {run.agent}".strip())
        attributes = {
            "gen_ai.agent.name": run.agent, "gen_ai.agent.version": run.version, "gen_ai.conversation.id": run.session,
            "deployment.environment.name": run.environment, "mulligan.run.parent": run.parent,
            "mulligan.end_reason": run.end_reason,
        }  # fmt: skip
        span.set_attributes(_drop_empty(attributes))
        if run.end_reason != "finished":
            span.set_status(
                Status(StatusCode.ERROR, _END_DESCRIPTIONS.get(run.end_reason or "", "the run has not ended"))
            )
        span.end(_to_nanos(run.ended_at if run.ended_at is not None else run.started_at))

    def _record_step(self, step: Step) -> None:
        if step.type == "run":
            self._record_run_failure(step)
            return
        parent = trace.set_span_in_context(self._ensure_run_span(Run(id=step.run), step.started_at))
        name, attributes = _describe_step(step)
        span = self._tracer.start_span(
            name,
            parent,
            kind=SpanKind.CLIENT if step.server is not None or step.type == "model" else SpanKind.INTERNAL,
            start_time=_to_nanos(step.started_at),
            attributes=_drop_empty(attributes | (_content_attributes(step) if self._content else {})),
        )
        if step.has_failed and step.failure is not None:
            _set_failure(span, step)
        span.end(_to_nanos(step.started_at) + int(step.duration_seconds * 1e9))
        self._record_metrics(step, attributes)

    def _record_run_failure(self, step: Step) -> None:
        if step.failure is not None:
            _set_failure(self._ensure_run_span(Run(id=step.run), step.started_at), step)

    def _record_metrics(self, step: Step, attributes: dict[str, Any]) -> None:
        names = ("gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.request.model", "error.type", "mulligan.outcome")
        labels = _drop_empty({name: attributes.get(name) for name in names})
        self._durations.record(step.duration_seconds, labels)
        if step.type == "model":
            self._model_durations.record(step.duration_seconds, labels)
            for token_type, count in (step.tokens or {}).items():
                if token_type not in TOKEN_PARTS:  # the conventions count input and output only
                    self._tokens.record(count, labels | {"gen_ai.token.type": token_type})
            if step.cost_nanos is not None:
                self._cost.add(step.cost_nanos / 1e9, labels)
        if step.attempt > 1 and step.outcome == "success":
            self._recovered.add(1, labels)
        if step.stop is not None and step.has_failed:
            self._unrecovered.add(1, labels)


def _describe_step(step: Step) -> tuple[str, dict[str, Any]]:
    """Return the span name and attributes of an attempt."""
    failure, recovery = step.failure, step.recovery
    attributes: dict[str, Any] = {
        "mulligan.run.id": step.run,
        "mulligan.operation.id": f"{step.run}/{step.call}",
        "mulligan.attempt": step.attempt,
        "mulligan.outcome": step.outcome,
        "mulligan.repair.strategy": (recovery.source or recovery.remedy.value) if recovery is not None else None,
        "mulligan.backoff_seconds": (recovery.backoff_seconds or None) if recovery is not None else None,
    }
    if failure is not None and step.has_failed:
        attributes |= {
            "error.type": str(failure.kind), "mulligan.remedy": failure.remedy.value,
            "mulligan.took_effect": failure.took_effect.value, "mulligan.fingerprint": failure.fingerprint or None,
            "http.response.status_code": failure.status,
        }  # fmt: skip
    if step.type == "model":
        attributes |= {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": step.model,
            "mulligan.step.name": step.name,
            "mulligan.cost_usd": None if step.cost_nanos is None else step.cost_nanos / 1e9,
        }
        for token_type, count in (step.tokens or {}).items():
            attributes[_TOKEN_ATTRIBUTES.get(token_type, f"gen_ai.usage.{token_type}_tokens")] = count
        return f"chat {step.model or step.name}", attributes
    if step.server is not None:
        method = {"mcp.method.name": "tools/call", "mcp.server.name": step.server, "gen_ai.tool.name": step.name}
        return f"tools/call {step.name}", attributes | method
    if step.type in ("tool", "retrieval"):
        operation = "execute_tool" if step.type == "tool" else "retrieval"
        return f"{operation} {step.name}", attributes | {
            "gen_ai.operation.name": operation,
            "gen_ai.tool.name": step.name,
        }
    return step.name or step.type, attributes | {"mulligan.step.type": step.type}


def _content_attributes(step: Step) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if step.arguments is not None:
        attributes["gen_ai.tool.call.arguments"] = encode(step.arguments).decode()
    if step.result is not None:
        attributes["gen_ai.tool.call.result"] = encode(step.result).decode()
    return attributes


def _set_failure(span: Any, step: Step) -> None:
    failure = step.failure
    assert failure is not None
    message = failure.message[:MAX_MESSAGE_CHARS]
    span.set_status(Status(StatusCode.ERROR, message))
    timestamp = _to_nanos(step.started_at) + int(step.duration_seconds * 1e9)
    span.add_event("exception", {"exception.type": str(failure.kind), "exception.message": message}, timestamp)


def _drop_empty(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None and value != ""}


def _to_nanos(millis: int) -> int:
    return millis * 1_000_000
