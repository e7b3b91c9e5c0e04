"""Reader for OTLP as JSON, from the file exporter of the OpenTelemetry collector.

A file holds one export per line, or one document. Supports the semantic conventions for generative AI and MCP, and
the attributes of OpenInference, Langfuse, Traceloop and Vercel's AI SDK. A trace is a run. A span is a later attempt
of a call if its attempt number or its name says so, or if a failed span has the same operation id or call id. Spans of
one tool without either are calls of their own: a model may have asked for both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from mulligan.classify.recorded_kinds import find_fingerprint
from mulligan.classify.result_verdict import MAX_REPORT_CHARS, suspect_recorded_result
from mulligan.core.attempts import SENT_NAME, AttemptName, continue_call, find_rank
from mulligan.core.failure import Failure, Remedy
from mulligan.core.records import History, Recovery, Step, StepType, digest
from mulligan.redaction.plain_data import truncate_text
from mulligan.transcripts.log_lines import LogLines, decode_leniently, parse_json
from mulligan.transcripts.run_builder import MAX_LABEL_CHARS, ReaderState, RunBuilder, bound_arguments, derive_run_id
from mulligan.transcripts.span_attributes import (
    ATTRIBUTES,
    OPERATION_ID,
    UNNAMED_SERVICE_PREFIX,
    Role,
    find_agent,
    find_attempt,
    find_model,
    find_named_kind,
    find_role,
    find_session,
    find_status,
    find_tags,
    find_task,
    find_text,
    has_error,
    read_cost_nanos,
    read_evaluations,
    read_prompt,
    read_tokens,
    unwrap_call,
)

T = TypeVar("T")

NAME = "otlp"
NAMED_BY_TRACE = -1
"""In place of the start of the agent's span: an attribute of the trace names the run."""


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
    scope: str = ""
    """Name of the library that made the span."""
    links: list[str] = []
    """Ids of the traces that the span links to."""
    format: str = NAME
    """Where the span was read: OTLP, or the export of a product."""


class Attribute(msgspec.Struct, gc=False):
    """Attribute of a span, event, log record or resource in a JSON export."""

    key: str = ""
    value: dict[str, Any] | None = None
    """The value by its type, such as `intValue`."""


class _SpanEvent(msgspec.Struct, gc=False):
    name: str = ""
    attributes: list[Attribute] = []


class _SpanLink(msgspec.Struct, gc=False, rename="camel"):
    trace_id: str = ""


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
    links: list[_SpanLink] = []
    status: _Status | None = None

    def to_span(self, resource: dict[str, Any], scope: str) -> Span:
        status, facts = self.status or _Status(), read_attributes(self.attributes)
        events = [(event.name, read_attributes(event.attributes)) for event in self.events]
        return Span(
            trace=self.trace_id,
            id=self.span_id,
            parent=self.parent_span_id or "",
            name=self.name,
            start=parse_integer(self.start_time_unix_nano),
            end=parse_integer(self.end_time_unix_nano),
            facts=facts,
            has_failed=status.code in (2, "2", "STATUS_CODE_ERROR") or has_error(facts, events),
            message=status.message,
            events=events,
            resource=resource,
            scope=scope,
            links=[link.trace_id for link in self.links],
        )


class _Scope(msgspec.Struct, gc=False):
    name: str = ""


class _ScopeSpans(msgspec.Struct, Generic[T], gc=False):
    scope: _Scope | None = None
    spans: list[T] = []


class Resource(msgspec.Struct, gc=False):
    """Source of spans or log records in a JSON export."""

    attributes: list[Attribute] = []


class _ResourceSpans(msgspec.Struct, Generic[T], gc=False, rename="camel"):
    resource: Resource | None = None
    scope_spans: list[_ScopeSpans[T]] = []


class _TraceExport(msgspec.Struct, Generic[T], gc=False, rename="camel"):
    resource_spans: list[_ResourceSpans[T]]

    def __iter__(self) -> Iterator[tuple[T, dict[str, Any], str]]:
        """Yield each span with the attributes of its resource and its scope."""
        for group in self.resource_spans:
            resource = read_attributes(group.resource.attributes) if group.resource else {}
            for scope_spans in group.scope_spans:
                scope = scope_spans.scope.name if scope_spans.scope else ""
                for span in scope_spans.spans:
                    yield span, resource, scope


_decoder = msgspec.json.Decoder(_TraceExport[_JsonSpan])
_split = msgspec.json.Decoder(_TraceExport[msgspec.Raw]).decode
_decode_span = msgspec.json.Decoder(_JsonSpan).decode


def split_export(data: bytes) -> Iterator[tuple[bytes, dict[str, Any], str]]:
    """Yield the arguments of `decode_span` for each span of a JSON export. Raises MsgspecError if it is invalid."""
    for span, resource, scope in decode_leniently(data, _split):
        yield bytes(span), resource, scope


def decode_span(data: bytes, resource: dict[str, Any], scope: str) -> Span:
    """Decode one span of a JSON export. Raises MsgspecError if it is invalid."""
    return decode_leniently(data, _decode_span).to_span(resource, scope)


def recognizes(head: bytes) -> bool:
    return b'"resourceSpans"' in head[:4096]


def read(lines: LogLines, state: ReaderState) -> Iterator[History]:
    exports = state.decode_document(lines, _decoder)
    spans = (span.to_span(resource, scope) for export in exports for span, resource, scope in export)
    return read_spans(spans, state)


MAX_HELD_SPANS = 50_000
"""Spans in memory at the same time. Beyond that, the oldest trace is considered complete."""


def read_spans(spans: Iterable[Span], state: ReaderState) -> Iterator[History]:
    """Yield a run for each trace."""
    traces: dict[str, list[Span]] = {}
    span_count = 0
    for span in spans:
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
    run = Trace(state, trace, format=trace_spans[0].format)
    for span in sort_spans(_drop_copies(trace_spans)):
        run.add(span)
    yield from run.builder.build_histories()


def _drop_copies(trace_spans: list[Span]) -> list[Span]:
    """Return each span once. Of two with one id, it is the one that ended later: the first was sent unfinished."""
    spans_by_id: dict[str, Span] = {}
    for span in trace_spans:
        previous = spans_by_id.get(span.id)
        if previous is None or span.end >= previous.end:
            spans_by_id[span.id] = span
    unnamed_spans = [span for span in trace_spans if not span.id]
    spans_by_id.pop("", None)
    return [*unnamed_spans, *spans_by_id.values()]


def sort_spans(trace_spans: list[Span]) -> list[Span]:
    return sorted(trace_spans, key=lambda span: (span.start, span.end))


class Trace:
    """Builds a run from the spans of a trace, added in order of their start."""

    def __init__(self, state: ReaderState, trace: str, holds_steps: bool = True, format: str = NAME) -> None:
        self._state = state
        self._holds_steps = holds_steps
        self.builder = RunBuilder(state, format, trace)
        self.builder.id = derive_run_id(NAME, trace)  # however the trace arrives, it is the same run
        self.builder.session = None  # a trace is a run; only an attribute names a session
        self.last: dict[str, Step] = {}
        """The latest attempt per call key."""
        self.seq = 0
        self.has_ended = False
        """Whether the root span was read."""
        self.has_failed_root = False
        """Whether a root span failed that is no call."""
        self._agent_start: int | None = None
        """Start of the span that named the agent. An earlier one is further out."""
        self._unrecognized: Counter[str] = Counter()
        self._unrecognized_root: str | None = None

    def add(self, span: Span, marks: Callable[[str, str], dict[str, Any]] | None = None) -> Step | None:
        """Add a span. Return its step, or None if it describes the run or is unknown.

        `marks` builds the metadata of the step from its call key and its model.
        """
        run, facts = self.builder, span.facts
        started, ended = span.start // 1_000_000, span.end // 1_000_000
        run.note_time(started)
        run.note_time(ended)
        role = find_role(facts)
        if not span.parent or role == "agent":
            self._apply_run_span(span, role)
            self.has_ended = True
        elif run.session is None:
            run.session = find_session(facts)
        self._apply_run_facts(span)
        if role is None and span.parent:
            self._unrecognized[span.scope] += 1
        elif role is None:
            self._unrecognized_root = span.scope
        if role is None or role == "agent" or role == "structure":
            return None
        return self._add_step(span, role, started, ended, marks)

    def take_unrecognized(self) -> Counter[str]:
        """Return how many spans were not recognized since the last call, by scope. The root of a run is not counted."""
        counts, self._unrecognized = self._unrecognized, Counter()
        if self._unrecognized_root is not None and not self.seq:
            counts[self._unrecognized_root] += 1
        self._unrecognized_root = None
        return counts

    def _apply_run_facts(self, span: Span) -> None:
        """Take what any span may say about the whole run: Langfuse and others repeat it on every span."""
        run, facts = self.builder, span.facts
        if name := find_text(facts, "trace_name"):
            run.agent, self._agent_start = name, NAMED_BY_TRACE
        run.user = run.user or find_text(facts, "user")
        run.tags = run.tags or find_tags(facts)
        linked_trace = next((trace for trace in span.links if trace and trace != span.trace), None)
        if linked_trace is not None and run.parent is None and not span.parent:
            run.parent = derive_run_id(NAME, linked_trace)  # the trace that asked this agent

    def _apply_run_span(self, span: Span, role: Role | None) -> None:
        """Take agent, session and task from the root span, or from the outermost agent if the root has none."""
        run, facts, resource = self.builder, span.facts, span.resource
        agent = find_agent(facts, span.name)
        is_call = role not in (None, "agent", "structure")
        is_outermost = not span.parent or self._agent_start is None or span.start < self._agent_start
        is_outermost = is_outermost and self._agent_start != NAMED_BY_TRACE
        if agent and is_outermost:
            run.agent, self._agent_start = agent, span.start if span.parent else 0
            run.version = find_text(facts, "agent_version") or find_text(resource, "service_version")
        elif run.agent in (run.format, service := find_text(resource, "service") or run.format):
            # The span of a call has the name of a tool or a method.
            run.agent = span.name if service.startswith(UNNAMED_SERVICE_PREFIX) and not is_call else service
            run.version = find_text(resource, "service_version")
        run.environment = find_text(resource, "environment") or run.environment
        session = find_session(facts) or (find_text(facts, "mcp_session") if not span.parent else None)
        if session and (not span.parent or run.session is None):
            run.session = session
        run.set_context(find_task(facts))
        if not span.parent:
            # A failed call at the root is a failed run only if it is the whole run.
            self.has_failed_root = self.has_failed_root or (span.has_failed and not is_call)
            run.has_raised = self.has_failed_root or (span.has_failed and not self.has_ended)

    def _add_step(
        self,
        span: Span,
        type: StepType,
        started: int,
        ended: int,
        marks: Callable[[str, str], dict[str, Any]] | None,
    ) -> Step:
        run, facts = self.builder, span.facts
        self.seq += 1
        sent_name = _name(span, type)
        attempt_name = find_attempt(span.facts, sent_name)
        name = sent_name if attempt_name is None else attempt_name.name
        model = find_model(facts)[:MAX_LABEL_CHARS] if type == "model" else ""
        run.model = model or run.model
        call_id = _find_call_id(facts)
        key = _hash_key(*call_id) if call_id is not None else _hash_key("parent", span.parent, type, name)
        arguments: Any = None
        if type != "model":
            arguments = unwrap_call(parse_json(find_text(facts, "arguments")))
        failure = classify_span(span, type, name, arguments, self._state)
        arguments = bound_arguments(arguments)
        metadata: dict[str, Any] = marks(key, model) if marks is not None else {"model": model} if model else {}
        if type == "model":
            metadata |= read_prompt(facts)
        if span.events and (evaluations := read_evaluations(span.events)):
            metadata["evaluations"] = evaluations
        if name != sent_name:
            metadata[SENT_NAME] = sent_name
        result = None
        if self._state.keeps_results and failure is None and type != "model":
            result = bound_arguments(parse_json(find_text(facts, "result")))
        suspected = None
        if failure is None and (text := find_text(facts, "result")):
            result_value = parse_json(text) if len(text) <= MAX_REPORT_CHARS else text
            suspected = suspect_recorded_result(
                result_value, self._state.classify, type=type, tool=name, arguments=arguments
            )
        step = Step(
            run=run.id,
            seq=self.seq,
            call=self.seq,
            attempt=1 if attempt_name is None else attempt_name.number,
            type=type,
            name=name,
            server=find_text(facts, "server"),
            arguments=arguments,
            outcome="success" if failure is None else "failure" if failure.is_failure else "cancelled",
            result=result,
            started_at=started,
            duration_seconds=max(0, span.end - span.start) / 1e9,
            failure=failure,
            suspected=suspected,
            tokens=read_tokens(facts) if type == "model" else None,
            metadata=metadata or None,
            cost_nanos=read_cost_nanos(facts),
        )
        before = self.last.get(key)
        if before is not None and before.name == name and _is_next_attempt(attempt_name, before, call_id):
            step = continue_call(step, before)
            assert step.recovery is not None
            if call_id is not None and call_id[0] == OPERATION_ID:
                step = msgspec.structs.replace(step, recovery=_name_strategy(step.recovery, facts))
        self.last[key] = step
        if self._holds_steps:
            run.add_step(step, ended)
        return step


def _is_next_attempt(attempt_name: AttemptName | None, before: Step, call_id: tuple[str, str] | None) -> bool:
    """Return whether a span continues the call of an earlier one.

    Without a number, it does only if both have the same id and the earlier one failed. A second call of the tool
    that follows is not evidence: a model that read the error asked for it.
    """
    if attempt_name is None:
        return call_id is not None and before.has_failed
    before_rank = find_rank(before)
    return attempt_name.rank > (before.attempt if before_rank is None else before_rank)


def _find_call_id(facts: dict[str, Any]) -> tuple[str, str] | None:
    """Return the attribute that identifies the call of a span, and its value. Some SDKs send an empty one."""
    return next(((name, id) for name in ATTRIBUTES["call_id"] if isinstance(id := facts.get(name), str) and id), None)


def _name_strategy(recovery: Recovery, facts: dict[str, Any]) -> Recovery:
    """Return the recovery before an attempt that mulligan itself made, with the strategy that its span names."""
    strategy = find_text(facts, "strategy") or ""
    if strategy in _REMEDIES:
        return msgspec.structs.replace(recovery, remedy=Remedy(strategy), source="")
    return msgspec.structs.replace(recovery, source=strategy)


_REMEDIES = frozenset(remedy.value for remedy in Remedy)


@lru_cache(maxsize=1024)
def _hash_key(*parts: str) -> str:
    hash = digest("\n".join(parts).encode("utf-8", "surrogatepass"), 8)
    return hash.hex(" ", 2).encode().translate(_LETTERS).decode()


_LETTERS = bytes.maketrans(b"0123456789", b"ghijklmnop")


def encode_id(id: str) -> str:
    """Encode an id in groups of four letters: redaction would otherwise examine every id with digits as a secret."""
    letters = id.encode("utf-8", "replace").translate(_LETTERS).decode()
    return f"{letters[:4]} {letters[4:8]} {letters[8:12]} {letters[12:]}"


def _name(span: Span, type: StepType) -> str:
    facts = span.facts
    if type == "model":
        return (find_text(facts, "step_name") or find_model(facts))[:MAX_LABEL_CHARS] or "model"
    operation = facts.get("gen_ai.operation.name") or facts.get("mcp.method.name") or ""
    name = find_text(facts, "tool") or find_text(facts, "entity") or span.name.removeprefix(f"{operation} ")
    return name[:MAX_LABEL_CHARS]


def classify_span(span: Span, type: StepType, name: str, arguments: Any, state: ReaderState) -> Failure | None:
    """Return the failure of a span, or None if it has not failed."""
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
        status=find_status(span.facts),
    )
    if kind := find_named_kind(span.facts, state.kinds):
        fingerprint = find_fingerprint(kind, failure, name, arguments)
        failure = Failure.of(
            kind, failure.message, detail=failure.detail, status=failure.status, fingerprint=fingerprint
        )
    events = (attributes for name, attributes in span.events if name == "exception")
    trace = next((trace for attributes in events if (trace := find_text(attributes, "error_trace"))), "")
    return msgspec.structs.replace(failure, exception=exception or "", trace=truncate_text(trace))


def _error_text_and_class(span: Span) -> tuple[str, str | None]:
    """Return the error text of a failed span and the class of its exception."""
    text, kind = span.message, find_text(span.facts, "error_class")
    for name, attributes in span.events:
        if name == "exception":
            text = find_text(attributes, "error") or text
            kind = find_text(attributes, "error_class") or kind
    text = text or find_text(span.facts, "error") or kind or ""
    is_class = bool(kind) and ("." in str(kind) or (str(kind).isidentifier() and str(kind)[:1].isupper()))
    return text[:16_384], kind if is_class else None


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
            facts[attribute.key] = _read_value(type, value)
    return facts


def _read_value(type: str, value: Any) -> Any:
    if type == "intValue":
        return parse_integer(value)
    if type == "arrayValue" and isinstance(value, dict) and isinstance(items := value.get("values"), list):
        pairs = (pair for item in items if isinstance(item, dict) for pair in item.items())
        return [_read_value(*pair) for pair in pairs]
    return value
