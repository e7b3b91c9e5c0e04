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
from mulligan.transcripts.log_lines import LogLines, decode_leniently, decode_line
from mulligan.transcripts.run_builder import ReaderState, RunBuilder, bound_arguments

NAME = "otlp"
MAX_HELD_SPANS = 50_000
"""Spans in memory at the same time. Beyond that, the oldest trace is considered complete."""
_TYPES: dict[str, StepType] = {
    "execute_tool": "tool",
    "tools/call": "tool",
    "TOOL": "tool",
    "chat": "model",
    "text_completion": "model",
    "generate_content": "model",
    "embeddings": "model",
    "LLM": "model",
    "EMBEDDING": "model",
    "retrieval": "retrieval",
    "RETRIEVER": "retrieval",
    "plan": "plan",
}
_AGENT_OPERATIONS = ("invoke_agent", "invoke_workflow", "create_agent", "AGENT", "CHAIN")


READ_ATTRIBUTES = frozenset(
    """
    gen_ai.operation.name mcp.method.name openinference.span.kind gen_ai.agent.name agent.name gen_ai.workflow.name
    gen_ai.agent.version gen_ai.conversation.id session.id mcp.session.id input.value output.value gen_ai.request.model
    gen_ai.response.model llm.model_name gen_ai.tool.name tool.name mcp.tool.name gen_ai.tool.call.arguments
    gen_ai.tool.call.result mcp.server.name server.address error.type exception.type exception.message
    http.response.status_code mulligan.operation.id gen_ai.tool.call.id tool.id service.name service.version
    deployment.environment.name deployment.environment gen_ai.usage.input_tokens gen_ai.usage.output_tokens
    llm.token_count.prompt llm.token_count.completion
    """.split()
)
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


class _Value(msgspec.Struct, gc=False):
    text: str | None = msgspec.field(default=None, name="stringValue")
    flag: bool | None = msgspec.field(default=None, name="boolValue")
    integer: Any = msgspec.field(default=None, name="intValue")
    number: Any = msgspec.field(default=None, name="doubleValue")
    items: Any = msgspec.field(default=None, name="arrayValue")
    fields: Any = msgspec.field(default=None, name="kvlistValue")


class _Attribute(msgspec.Struct, gc=False):
    key: str = ""
    value: _Value | None = None


class _SpanEvent(msgspec.Struct, gc=False):
    name: str = ""
    attributes: list[_Attribute] = []


class _Status(msgspec.Struct, gc=False):
    code: Any = 0
    message: str = ""


class _JsonSpan(msgspec.Struct, gc=False):
    trace: str = msgspec.field(default="", name="traceId")
    id: str = msgspec.field(default="", name="spanId")
    parent: str | None = msgspec.field(default=None, name="parentSpanId")
    name: str = ""
    start: Any = msgspec.field(default=0, name="startTimeUnixNano")
    end: Any = msgspec.field(default=0, name="endTimeUnixNano")
    attributes: list[_Attribute] = []
    events: list[_SpanEvent] = []
    status: _Status | None = None


class _ScopeSpans(msgspec.Struct, gc=False):
    spans: list[_JsonSpan] = []


class _Resource(msgspec.Struct, gc=False):
    attributes: list[_Attribute] = []


class _ResourceSpans(msgspec.Struct, gc=False):
    resource: _Resource | None = None
    scopes: list[_ScopeSpans] = msgspec.field(default_factory=list, name="scopeSpans")


class _TraceExport(msgspec.Struct, gc=False):
    spans: list[_ResourceSpans] = msgspec.field(name="resourceSpans")

    def __iter__(self) -> Iterator[Span]:
        for group in self.spans:
            resource = _attributes(group.resource.attributes) if group.resource else {}
            for scope in group.scopes:
                for span in scope.spans:
                    yield _span(span, resource)


def _span(span: _JsonSpan, resource: dict[str, Any]) -> Span:
    status = span.status
    return Span(
        span.trace,
        span.id,
        span.parent or "",
        span.name,
        _nanoseconds(span.start),
        _nanoseconds(span.end),
        _attributes(span.attributes),
        status is not None and status.code in (2, "2", "STATUS_CODE_ERROR"),
        status.message if status is not None else "",
        [(event.name, _attributes(event.attributes)) for event in span.events],
        resource,
    )


_decoder = msgspec.json.Decoder(_TraceExport)


def spans(data: bytes) -> list[Span]:
    """Decode the spans of one JSON export. Raises MsgspecError if it is invalid."""
    return list(decode_leniently(data, _decoder.decode))


def recognizes(head: bytes) -> bool:
    return b'"resourceSpans"' in head[:4096]


def read(lines: LogLines, state: ReaderState) -> Iterator[History]:
    traces: dict[str, list[Span]] = {}
    span_count = 0
    for export in _exports(lines, state):
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


def _exports(lines: LogLines, state: ReaderState) -> Iterator[_TraceExport]:
    """Yield one export per line, or one document that spans several lines."""
    for number, line in enumerate(lines):
        state.line_count += 1
        export = decode_line(line, _decoder)
        if export is not None:
            yield export
            continue
        if number == 0:
            data = lines.read_all()
            export = decode_line(data, _decoder) if data else None
            if export is not None:
                yield export
                return
            lines.head(0)
            next(iter(lines), None)
        state.unrecognized_lines += 1


def _build_histories(trace: str, trace_spans: list[Span], state: ReaderState) -> Iterator[History]:
    run = Trace(state, trace)
    for span in sort_spans(trace_spans):
        run.add(span)
    history = run.builder.build_history()
    if history is not None:
        yield history


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
        operation = _first_text(facts, "gen_ai.operation.name", "mcp.method.name", "openinference.span.kind") or ""
        type = _TYPES.get(operation) or _TYPES.get(span.name.partition(" ")[0])
        if type is None:
            if operation in _AGENT_OPERATIONS or not span.parent:
                _apply_run_span(span, run)
                self.has_ended = True
            return None
        self.seq += 1
        name = _name(span, type)
        if type == "model":
            run.model = name
        key = _call_key(span, type, name)
        arguments, failure = _arguments_and_failure(span, type, name, self._state)
        before = self.last.get(key)
        call, attempt, recovery = self.seq, 1, None
        if before is not None and before.has_failed and before.name == name:
            argument_changes = diff_arguments(before.arguments, arguments)
            backoff_seconds = max(0.0, (started - before.started_at) / 1000 - before.duration_seconds)
            recovery = Recovery(
                remedy=Remedy.REPAIR if argument_changes else Remedy.RETRY,
                backoff_seconds=backoff_seconds,
                changes=argument_changes,
            )
            call, attempt = before.call, before.attempt + 1
        result = None
        if self._state.keeps_results and failure is None and type != "model":
            result = bound_arguments(_parse_json(_first_text(facts, "gen_ai.tool.call.result", "output.value")))
        step = Step(
            run=run.id,
            seq=self.seq,
            call=call,
            attempt=attempt,
            type=type,
            name=name,
            server=_first_text(facts, "mcp.server.name", "server.address"),
            arguments=arguments,
            outcome="success" if failure is None else "failure" if failure.is_failure else "cancelled",
            result=result,
            started_at=started,
            duration_seconds=max(0, span.end - span.start) / 1e9,
            failure=failure,
            recovery=recovery,
            tokens=_tokens(facts) if type == "model" else None,
            metadata=marks(key, name if type == "model" else "") if marks is not None else None,
        )
        self.last[key] = step
        if self._holds_steps:
            run.add_step(step, ended)
        return step


def _call_key(span: Span, type: str, name: str) -> str:
    """Return a short key that the attempts of one call share."""
    facts = span.facts
    for mark in _CALL_ID_ATTRIBUTES:
        if mark in facts and isinstance(id := facts[mark], str):
            return _hash_key(f"{mark}\n{id}")
    return _parent_key(span.parent, type, name)


_CALL_ID_ATTRIBUTES = ("mulligan.operation.id", "gen_ai.tool.call.id", "tool.id")


@lru_cache(maxsize=1024)
def _parent_key(parent: str, type: str, name: str) -> str:
    return _hash_key(f"parent\n{parent}\n{type}\n{name}")


def _hash_key(text: str) -> str:
    return digest(text.encode("utf-8", "surrogatepass"), 8).hex(" ", 2).encode().translate(_LETTERS).decode()


_LETTERS = bytes.maketrans(b"0123456789", b"ghijklmnop")


def encode_id(id: str) -> str:
    """Encode an id in groups of four letters: redaction would otherwise examine every id with digits as a secret."""
    letters = id.encode("utf-8", "replace").translate(_LETTERS).decode()
    return f"{letters[:4]} {letters[4:8]} {letters[8:12]} {letters[12:]}"


def _apply_run_span(span: Span, run: RunBuilder) -> None:
    facts, resource = span.facts, span.resource
    agent = _first_text(facts, "gen_ai.agent.name", "agent.name", "gen_ai.workflow.name")
    if not span.parent or run.agent == NAME:
        run.agent = agent or _first_text(resource, "service.name") or run.agent
        run.version = _first_text(facts, "gen_ai.agent.version") or _first_text(resource, "service.version")
        run.environment = _first_text(resource, "deployment.environment.name", "deployment.environment")
        run.session = _first_text(facts, "gen_ai.conversation.id", "session.id", "mcp.session.id") or run.session
        run.set_context(_first_text(facts, "input.value") or "")
    if not span.parent and span.has_failed:
        run.has_raised = True


def _name(span: Span, type: StepType) -> str:
    facts = span.facts
    if type == "model":
        return _first_text(facts, "gen_ai.request.model", "gen_ai.response.model", "llm.model_name") or "model"
    return (
        _first_text(facts, "gen_ai.tool.name", "tool.name", "mcp.tool.name") or span.name.partition(" ")[2] or span.name
    )


def _arguments_and_failure(span: Span, type: StepType, name: str, state: ReaderState) -> tuple[Any, Failure | None]:
    """Return the shortened arguments of a call and its failure."""
    facts = span.facts
    arguments = (
        _parse_json(_first_text(facts, "gen_ai.tool.call.arguments", "input.value")) if type != "model" else None
    )
    if not span.has_failed:
        return bound_arguments(arguments), None
    message, kind = _error_text_and_class(span)
    failure = state.classify(
        text=message,
        tool=name,
        source=type,
        is_error=True,
        arguments=arguments if isinstance(arguments, dict) else None,
        exception=kind,
        status=_status(facts),
    )
    return bound_arguments(arguments), failure


def _error_text_and_class(span: Span) -> tuple[str, str | None]:
    """Return the error text of a failed span and the class of its exception."""
    facts, text = span.facts, span.message
    kind = _first_text(facts, "error.type", "exception.type")
    for name, attributes in span.events:
        if name == "exception":
            text = _first_text(attributes, "exception.message") or text
            kind = _first_text(attributes, "exception.type") or kind
    if not text:
        text = _first_text(facts, "exception.message", "gen_ai.tool.call.result", "output.value") or kind or ""
    is_class = bool(kind) and ("." in str(kind) or (str(kind).isidentifier() and str(kind)[:1].isupper()))
    return text[:16_384], kind if is_class else None


def _status(facts: dict[str, Any]) -> int | None:
    status = facts.get("http.response.status_code", facts.get("error.type"))
    status = int(status) if isinstance(status, str) and status.isdigit() and len(status) == 3 else status
    return status if isinstance(status, int) and 400 <= status < 600 else None


def _tokens(facts: dict[str, Any]) -> dict[str, int] | None:
    counts = {}
    for name, attribute, fallback_attribute in _TOKEN_ATTRIBUTES:
        count = facts.get(attribute)
        if type(count) is not int:
            count = facts.get(fallback_attribute)
        if type(count) is int and 0 < count < 2**40:
            counts[name] = count
    return counts or None


_TOKEN_ATTRIBUTES = (
    ("input", "gen_ai.usage.input_tokens", "llm.token_count.prompt"),
    ("output", "gen_ai.usage.output_tokens", "llm.token_count.completion"),
)


def _parse_json(raw: Any) -> Any:
    if isinstance(raw, str) and raw[:1] in ("{", "["):
        value = decode_line(raw.encode("utf-8", "replace"), _any)
        return value if value is not None else raw
    return raw


_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def _first_text(facts: dict[str, Any], *names: str) -> str | None:
    for name in names:
        if name in facts and (value := facts[name]) and isinstance(value, str):
            return value
    return None


def _nanoseconds(value: Any) -> int:
    try:
        return max(0, min(int(value), 2**63 - 1))
    except (TypeError, ValueError, OverflowError):
        return 0


def _attributes(attributes: list[_Attribute]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for attribute in attributes:
        value = attribute.value
        if value is None:
            continue
        if value.text is not None:
            facts[attribute.key] = value.text
        elif value.flag is not None:
            facts[attribute.key] = value.flag
        elif value.integer is not None:
            facts[attribute.key] = _nanoseconds(value.integer)
        elif value.number is not None:
            facts[attribute.key] = value.number
        else:
            facts[attribute.key] = value.items if value.items is not None else value.fields
    return facts
