"""Reader for OTLP as JSON, from the file exporter of the OpenTelemetry collector.

A file holds one export per line, or one document. Supports the semantic conventions for generative AI and MCP, and
OpenInference. A trace is a run. Attempts are grouped by mulligan's operation id, else by call id, else by a failed
predecessor with the same tool and parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from mulligan.core.calls import diff_arguments
from mulligan.core.failure import Failure, Remedy
from mulligan.core.records import History, Recovery, Step, StepType, digest
from mulligan.redaction.plain_data import truncate_text
from mulligan.transcripts.log_lines import LogLines, decode_leniently, parse_json
from mulligan.transcripts.run_builder import ReaderState, RunBuilder, bound_arguments

NAME = "otlp"
MAX_COST = 1e6
"""Dollars. A larger cost of one span is an error."""
MAX_HELD_SPANS = 50_000
"""Spans in memory at the same time. Beyond that, the oldest trace is considered complete."""
_OPERATIONS: dict[StepType, tuple[str, ...]] = {
    "tool": ("execute_tool", "tools/call", "TOOL"),
    "model": ("chat", "text_completion", "generate_content", "embeddings", "LLM", "EMBEDDING"),
    "retrieval": ("retrieval", "RETRIEVER"),
    "plan": ("plan",),
}
_TYPES = {operation: type for type, operations in _OPERATIONS.items() for operation in operations}
_AGENT_OPERATIONS = ("invoke_agent", "invoke_workflow", "create_agent", "AGENT", "CHAIN")


_ATTRIBUTES = {
    "operation": ("gen_ai.operation.name", "mcp.method.name", "openinference.span.kind"),
    "agent": ("gen_ai.agent.name", "agent.name", "gen_ai.workflow.name"),
    "agent_version": ("gen_ai.agent.version",),
    "session": ("gen_ai.conversation.id", "session.id", "mcp.session.id"),
    "context": ("input.value",),
    "model": ("gen_ai.request.model", "gen_ai.response.model", "llm.model_name"),
    "tool": ("gen_ai.tool.name", "tool.name", "mcp.tool.name"),
    "server": ("mcp.server.name", "server.address"),
    "call_id": ("mulligan.operation.id", "gen_ai.tool.call.id", "tool.id"),
    "arguments": ("gen_ai.tool.call.arguments", "input.value"),
    "result": ("gen_ai.tool.call.result", "output.value"),
    "error": ("exception.message", "gen_ai.tool.call.result", "output.value"),
    "error_class": ("error.type", "exception.type"),
    "error_trace": ("exception.stacktrace",),
    "status": ("http.response.status_code", "error.type"),
    "step_name": ("mulligan.step.name",),
    "cost": ("mulligan.cost_usd",),
    "input": ("gen_ai.usage.input_tokens", "llm.token_count.prompt"),
    "output": ("gen_ai.usage.output_tokens", "llm.token_count.completion"),
    "cached_input": ("gen_ai.usage.cache_read.input_tokens", "llm.token_count.prompt_details.cache_read"),
    "cache_write": ("gen_ai.usage.cache_creation.input_tokens", "llm.token_count.prompt_details.cache_write"),
    "reasoning": ("gen_ai.usage.reasoning.output_tokens", "llm.token_count.completion_details.reasoning"),
    "service": ("service.name",),
    "service_version": ("service.version",),
    "environment": ("deployment.environment.name", "deployment.environment"),
}
"""Attributes of spans, exceptions and resources by their meaning, the preferred name first."""
READ_ATTRIBUTES = frozenset(name for names in _ATTRIBUTES.values() for name in names)
"""The attributes that are read. Other readers may skip all others."""


class Span(msgspec.Struct, gc=False):
    """A span in any encoding. Times are nanoseconds."""

    trace: str
    id: str = ""
    parent: str = ""
    name: str = ""
    start: int = 0
    end: int = 0
    facts: dict[str, Any] = {}
    has_failed: bool = False
    message: str = ""
    events: list[tuple[str, dict[str, Any]]] = []
    resource: dict[str, Any] = {}


class Attribute(msgspec.Struct, gc=False):
    """Attribute of a span, event, log record or resource in a JSON export."""

    key: str = ""
    value: dict[str, Any] | None = None
    """The value by its type, such as `intValue`."""


class _SpanEvent(msgspec.Struct, gc=False):
    name: str = ""
    attributes: list[Attribute] = []


class _Status(msgspec.Struct, gc=False):
    code: Any = 0
    message: str = ""


class _JsonSpan(msgspec.Struct, gc=False, rename="camel"):
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str | None = None
    name: str = ""
    start_time_unix_nano: Any = 0
    end_time_unix_nano: Any = 0
    attributes: list[Attribute] = []
    events: list[_SpanEvent] = []
    status: _Status | None = None

    def to_span(self, resource: dict[str, Any]) -> Span:
        status = self.status or _Status()
        return Span(
            trace=self.trace_id,
            id=self.span_id,
            parent=self.parent_span_id or "",
            name=self.name,
            start=parse_integer(self.start_time_unix_nano),
            end=parse_integer(self.end_time_unix_nano),
            facts=read_attributes(self.attributes),
            has_failed=status.code in (2, "2", "STATUS_CODE_ERROR"),
            message=status.message,
            events=[(event.name, read_attributes(event.attributes)) for event in self.events],
            resource=resource,
        )


class _ScopeSpans(msgspec.Struct, gc=False):
    spans: list[_JsonSpan] = []


class Resource(msgspec.Struct, gc=False):
    """Source of spans or log records in a JSON export."""

    attributes: list[Attribute] = []


class _ResourceSpans(msgspec.Struct, gc=False, rename="camel"):
    resource: Resource | None = None
    scope_spans: list[_ScopeSpans] = []


class _TraceExport(msgspec.Struct, gc=False, rename="camel"):
    resource_spans: list[_ResourceSpans]

    def __iter__(self) -> Iterator[Span]:
        for group in self.resource_spans:
            resource = read_attributes(group.resource.attributes) if group.resource else {}
            for scope in group.scope_spans:
                for span in scope.spans:
                    yield span.to_span(resource)


_decoder = msgspec.json.Decoder(_TraceExport)


def spans(data: bytes) -> list[Span]:
    """Decode the spans of one JSON export. Raises MsgspecError if it is invalid."""
    return list(decode_leniently(data, _decoder.decode))


def recognizes(head: bytes) -> bool:
    return b'"resourceSpans"' in head[:4096]


def read(lines: LogLines, state: ReaderState) -> Iterator[History]:
    traces: dict[str, list[Span]] = {}
    span_count = 0
    for export in state.decode_document(lines, _decoder):
        for span in export:
            traces.setdefault(span.trace, []).append(span)
            span_count += 1
        while span_count > MAX_HELD_SPANS and len(traces) > 1:
            trace = next(iter(traces))
            trace_spans = traces.pop(trace)
            span_count -= len(trace_spans)
            yield from _build_histories(trace, trace_spans, state)
    for trace, trace_spans in traces.items():
        yield from _build_histories(trace, trace_spans, state)


def _build_histories(trace: str, trace_spans: list[Span], state: ReaderState) -> Iterator[History]:
    run = Trace(state, trace)
    for span in sort_spans(trace_spans):
        run.add(span)
    yield from run.builder.build_histories()


def sort_spans(trace_spans: list[Span]) -> list[Span]:
    return sorted(trace_spans, key=lambda span: (span.start, span.end))


class Trace:
    """Builds a run from the spans of a trace, added in order of their start."""

    def __init__(self, state: ReaderState, trace: str, holds_steps: bool = True) -> None:
        self._state = state
        self._holds_steps = holds_steps
        self.builder = RunBuilder(state, NAME, trace)
        self.last: dict[str, Step] = {}
        """The latest attempt per call key."""
        self.seq = 0
        self.has_ended = False
        """Whether the root span was read."""

    def add(self, span: Span, marks: Callable[[str, str], dict[str, Any]] | None = None) -> Step | None:
        """Add a span. Return its step, or None if it describes the run or is unknown.

        `marks` builds the metadata of the step from its call key and its model.
        """
        run, facts = self.builder, span.facts
        started, ended = span.start // 1_000_000, span.end // 1_000_000
        run.note_time(started)
        run.note_time(ended)
        operation = _find_text(facts, "operation") or ""
        type = _TYPES.get(operation) or _TYPES.get(span.name.partition(" ")[0])
        if type is None:
            if operation in _AGENT_OPERATIONS or not span.parent:
                _apply_run_span(span, run)
                self.has_ended = True
            return None
        self.seq += 1
        name = _name(span, type)
        model = (_find_text(facts, "model") or "") if type == "model" else ""
        run.model = model or run.model
        key = _call_key(span, type, name)
        arguments: Any = None
        if type != "model":
            arguments = parse_json(_find_text(facts, "arguments"))
        failure = _classify(span, type, name, arguments, self._state)
        arguments = bound_arguments(arguments)
        before = self.last.get(key)
        call, attempt, recovery = self.seq, 1, None
        if before is not None and before.has_failed and before.name == name:
            argument_changes = diff_arguments(before.arguments, arguments)
            backoff_seconds = max(0.0, (started - before.started_at) / 1000 - before.duration_seconds)
            remedy = Remedy.REPAIR if argument_changes else Remedy.RETRY
            recovery = Recovery(remedy=remedy, backoff_seconds=backoff_seconds, changes=argument_changes)
            call, attempt = before.call, before.attempt + 1
        result = None
        if self._state.keeps_results and failure is None and type != "model":
            result = bound_arguments(parse_json(_find_text(facts, "result")))
        step = Step(
            run=run.id,
            seq=self.seq,
            call=call,
            attempt=attempt,
            type=type,
            name=name,
            server=_find_text(facts, "server"),
            arguments=arguments,
            outcome="success" if failure is None else "failure" if failure.is_failure else "cancelled",
            result=result,
            started_at=started,
            duration_seconds=max(0, span.end - span.start) / 1e9,
            failure=failure,
            recovery=recovery,
            tokens=_tokens(facts) if type == "model" else None,
            metadata=marks(key, model) if marks is not None else {"model": model} if model else None,
            cost_nanos=_cost_nanos(facts),
        )
        self.last[key] = step
        if self._holds_steps:
            run.add_step(step, ended)
        return step


def _call_key(span: Span, type: str, name: str) -> str:
    """Return a short key that the attempts of one call share."""
    for mark in _ATTRIBUTES["call_id"]:
        if mark in span.facts and isinstance(id := span.facts[mark], str):
            return _hash_key(mark, id)
    return _hash_key("parent", span.parent, type, name)


@lru_cache(maxsize=1024)
def _hash_key(*parts: str) -> str:
    hash = digest("\n".join(parts).encode("utf-8", "surrogatepass"), 8)
    return hash.hex(" ", 2).encode().translate(_LETTERS).decode()


_LETTERS = bytes.maketrans(b"0123456789", b"ghijklmnop")


def encode_id(id: str) -> str:
    """Encode an id in groups of four letters: redaction would otherwise examine every id with digits as a secret."""
    letters = id.encode("utf-8", "replace").translate(_LETTERS).decode()
    return f"{letters[:4]} {letters[4:8]} {letters[8:12]} {letters[12:]}"


def _apply_run_span(span: Span, run: RunBuilder) -> None:
    facts, resource = span.facts, span.resource
    if not span.parent or run.agent == NAME:
        run.agent = _find_text(facts, "agent") or _find_text(resource, "service") or run.agent
        run.version = _find_text(facts, "agent_version") or _find_text(resource, "service_version")
        run.environment = _find_text(resource, "environment")
        run.session = _find_text(facts, "session") or run.session
        run.set_context(_find_text(facts, "context") or "")
    if not span.parent and span.has_failed:
        run.has_raised = True


def _name(span: Span, type: StepType) -> str:
    if type == "model":
        return _find_text(span.facts, "step_name") or _find_text(span.facts, "model") or "model"
    return _find_text(span.facts, "tool") or span.name.partition(" ")[2] or span.name


def _classify(span: Span, type: StepType, name: str, arguments: Any, state: ReaderState) -> Failure | None:
    if not span.has_failed:
        return None
    text, exception = _error_text_and_class(span)
    failure = state.classify(
        text=text,
        tool=name,
        source=type,
        is_error=True,
        arguments=arguments if isinstance(arguments, dict) else None,
        exception=exception,
        status=_status(span.facts),
    )
    events = (attributes for name, attributes in span.events if name == "exception")
    trace = next((trace for attributes in events if (trace := _find_text(attributes, "error_trace"))), "")
    return msgspec.structs.replace(failure, exception=exception or "", trace=truncate_text(trace))


def _error_text_and_class(span: Span) -> tuple[str, str | None]:
    """Return the error text of a failed span and the class of its exception."""
    text, kind = span.message, _find_text(span.facts, "error_class")
    for name, attributes in span.events:
        if name == "exception":
            text = _find_text(attributes, "error") or text
            kind = _find_text(attributes, "error_class") or kind
    text = text or _find_text(span.facts, "error") or kind or ""
    is_class = bool(kind) and ("." in str(kind) or (str(kind).isidentifier() and str(kind)[:1].isupper()))
    return text[:16_384], kind if is_class else None


def _status(facts: dict[str, Any]) -> int | None:
    status = next((facts[name] for name in _ATTRIBUTES["status"] if name in facts), None)
    status = int(status) if isinstance(status, str) and status.isdigit() and len(status) == 3 else status
    return status if isinstance(status, int) and 400 <= status < 600 else None


def _tokens(facts: dict[str, Any]) -> dict[str, int] | None:
    counts = {}
    for name in ("input", "output", "cached_input", "cache_write", "reasoning"):
        candidates = (facts.get(attribute) for attribute in _ATTRIBUTES[name])
        count = next((candidate for candidate in candidates if type(candidate) is int), 0)
        if 0 < count < 2**40:
            counts[name] = count
    return counts or None


def _cost_nanos(facts: dict[str, Any]) -> int | None:
    """Return the cost that the sender computed, in billionths of a dollar."""
    dollars = next((facts[name] for name in _ATTRIBUTES["cost"] if name in facts), None)
    return round(dollars * 1e9) if isinstance(dollars, int | float) and 0 <= dollars <= MAX_COST else None


def _find_text(facts: dict[str, Any], meaning: str) -> str | None:
    for name in _ATTRIBUTES[meaning]:
        if name in facts and (value := facts[name]) and isinstance(value, str):
            return value
    return None


def parse_integer(value: Any) -> int:
    """Parse an integer of 63 bits, which JSON exports write as a string. Return 0 for anything else."""
    try:
        return max(0, min(int(value), 2**63 - 1))
    except (TypeError, ValueError, OverflowError):
        return 0


def read_attributes(attributes: list[Attribute]) -> dict[str, Any]:
    """Return the values of attributes by name."""
    facts: dict[str, Any] = {}
    for attribute in attributes:
        for type, value in (attribute.value or {}).items():
            facts[attribute.key] = parse_integer(value) if type == "intValue" else value
    return facts
