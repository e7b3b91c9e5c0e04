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

from mulligan.calls import changes
from mulligan.capture.transcripts.gathering import Gathering, Reading, bounded
from mulligan.capture.transcripts.lines import Lines, decoded, leniently
from mulligan.failure import Failure, Remedy
from mulligan.records import History, Recovery, Step, StepType, digest

NAME = "otlp"
OPEN = 50_000
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
_AGENTS = ("invoke_agent", "invoke_workflow", "create_agent", "AGENT", "CHAIN")


WANTED = frozenset(
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
    whole: Any = msgspec.field(default=None, name="intValue")
    number: Any = msgspec.field(default=None, name="doubleValue")
    items: Any = msgspec.field(default=None, name="arrayValue")
    fields: Any = msgspec.field(default=None, name="kvlistValue")


class _Attribute(msgspec.Struct, gc=False):
    key: str = ""
    value: _Value | None = None


class _Event(msgspec.Struct, gc=False):
    name: str = ""
    attributes: list[_Attribute] = []


class _Status(msgspec.Struct, gc=False):
    code: Any = 0
    message: str = ""


class _Span(msgspec.Struct, gc=False):
    trace: str = msgspec.field(default="", name="traceId")
    id: str = msgspec.field(default="", name="spanId")
    parent: str | None = msgspec.field(default=None, name="parentSpanId")
    name: str = ""
    start: Any = msgspec.field(default=0, name="startTimeUnixNano")
    end: Any = msgspec.field(default=0, name="endTimeUnixNano")
    attributes: list[_Attribute] = []
    events: list[_Event] = []
    status: _Status | None = None


class _Scope(msgspec.Struct, gc=False):
    spans: list[_Span] = []


class _Resource(msgspec.Struct, gc=False):
    attributes: list[_Attribute] = []


class _ResourceSpans(msgspec.Struct, gc=False):
    resource: _Resource | None = None
    scopes: list[_Scope] = msgspec.field(default_factory=list, name="scopeSpans")


class _Export(msgspec.Struct, gc=False):
    spans: list[_ResourceSpans] = msgspec.field(name="resourceSpans")

    def __iter__(self) -> Iterator[Span]:
        for group in self.spans:
            resource = _attributes(group.resource.attributes) if group.resource else {}
            for scope in group.scopes:
                for span in scope.spans:
                    yield _span(span, resource)


def _span(span: _Span, resource: dict[str, Any]) -> Span:
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


_decoder = msgspec.json.Decoder(_Export)


def spans(data: bytes) -> list[Span]:
    """Decode the spans of one JSON export. Raises MsgspecError if it is invalid."""
    return list(leniently(data, _decoder.decode))


def recognises(head: bytes) -> bool:
    return b'"resourceSpans"' in head[:4096]


def read(lines: Lines, reading: Reading) -> Iterator[History]:
    traces: dict[str, list[Span]] = {}
    held = 0
    for export in _exports(lines, reading):
        for span in export:
            traces.setdefault(span.trace, []).append(span)
            held += 1
        while held > OPEN and len(traces) > 1:
            trace = next(iter(traces))
            met = traces.pop(trace)
            held -= len(met)
            yield from _run(trace, met, reading)
    for trace, met in traces.items():
        yield from _run(trace, met, reading)


def _exports(lines: Lines, reading: Reading) -> Iterator[_Export]:
    """Yield one export per line, or one document that spans several lines."""
    for number, line in enumerate(lines):
        reading.lines += 1
        export = decoded(line, _decoder)
        if export is not None:
            yield export
            continue
        if number == 0:
            data = lines.whole()
            export = decoded(data, _decoder) if data else None
            if export is not None:
                yield export
                return
            lines.head(0)
            next(iter(lines), None)
        reading.unknown += 1


def _run(trace: str, met: list[Span], reading: Reading) -> Iterator[History]:
    run = Trace(reading, trace)
    for span in in_order(met):
        run.add(span)
    history = run.gathering.history()
    if history is not None:
        yield history


def in_order(met: list[Span]) -> list[Span]:
    return sorted(met, key=lambda span: (span.start, span.end))


class Trace:
    """Builds a run from the spans of a trace, added in order of their start."""

    def __init__(self, reading: Reading, trace: str, holds_steps: bool = True) -> None:
        self._reading = reading
        self._holds_steps = holds_steps
        self.gathering = Gathering(reading, NAME, trace)
        self.last: dict[str, Step] = {}
        """The latest attempt per call key."""
        self.seq = 0
        self.has_ended = False
        """Whether the root span was read."""

    def add(self, span: Span, marks: Callable[[str, str], dict[str, Any]] | None = None) -> Step | None:
        """Add a span. Return its step, or None if it describes the run or is unknown.

        `marks` builds the metadata of the step from its call key and its model.
        """
        run, facts = self.gathering, span.facts
        started, ended = span.start // 1_000_000, span.end // 1_000_000
        run.at(started)
        run.at(ended)
        operation = _first(facts, "gen_ai.operation.name", "mcp.method.name", "openinference.span.kind") or ""
        type = _TYPES.get(operation) or _TYPES.get(span.name.partition(" ")[0])
        if type is None:
            if operation in _AGENTS or not span.parent:
                _about(span, run)
                self.has_ended = True
            return None
        self.seq += 1
        name = _name(span, type)
        if type == "model":
            run.model = name
        key = _key(span, type, name)
        arguments, failure = _given(span, type, name, self._reading)
        before = self.last.get(key)
        call, attempt, led = self.seq, 1, None
        if before is not None and before.has_failed and before.name == name:
            changed = changes(before.arguments, arguments)
            waited = max(0.0, (started - before.started) / 1000 - before.seconds)
            led = Recovery(remedy=Remedy.REPAIR if changed else Remedy.WAIT, seconds=waited, changes=changed)
            call, attempt = before.call, before.attempt + 1
        result = None
        if self._reading.keeps_results and failure is None and type != "model":
            result = bounded(_read(_first(facts, "gen_ai.tool.call.result", "output.value")))
        step = Step(
            run=run.id,
            seq=self.seq,
            call=call,
            attempt=attempt,
            type=type,
            name=name,
            server=_first(facts, "mcp.server.name", "server.address"),
            arguments=arguments,
            outcome="success" if failure is None else "failure" if failure.counts else "cancelled",
            result=result,
            started=started,
            seconds=max(0, span.end - span.start) / 1e9,
            failure=failure,
            after=led,
            tokens=_tokens(facts) if type == "model" else None,
            metadata=marks(key, name if type == "model" else "") if marks is not None else None,
        )
        self.last[key] = step
        if self._holds_steps:
            run.step(step, ended)
        return step


def _key(span: Span, type: str, name: str) -> str:
    """Return a short key that the attempts of one call share."""
    facts = span.facts
    for mark in _MARKS:
        if mark in facts and isinstance(id := facts[mark], str):
            return _short(f"{mark}\n{id}")
    return _of_parent(span.parent, type, name)


_MARKS = ("mulligan.operation.id", "gen_ai.tool.call.id", "tool.id")


@lru_cache(maxsize=1024)
def _of_parent(parent: str, type: str, name: str) -> str:
    return _short(f"parent\n{parent}\n{type}\n{name}")


def _short(said: str) -> str:
    return digest(said.encode("utf-8", "surrogatepass"), 8).hex(" ", 2).encode().translate(_LETTERS).decode()


_LETTERS = bytes.maketrans(b"0123456789", b"ghijklmnop")


def written(id: str) -> str:
    """Encode an id in groups of four letters: redaction would otherwise examine every id with digits as a secret."""
    told = id.encode("utf-8", "replace").translate(_LETTERS).decode()
    return f"{told[:4]} {told[4:8]} {told[8:12]} {told[12:]}"


def _about(span: Span, run: Gathering) -> None:
    facts, resource = span.facts, span.resource
    agent = _first(facts, "gen_ai.agent.name", "agent.name", "gen_ai.workflow.name")
    if not span.parent or run.agent == NAME:
        run.agent = agent or _first(resource, "service.name") or run.agent
        run.version = _first(facts, "gen_ai.agent.version") or _first(resource, "service.version")
        run.environment = _first(resource, "deployment.environment.name", "deployment.environment")
        run.session = _first(facts, "gen_ai.conversation.id", "session.id", "mcp.session.id") or run.session
        run.says(_first(facts, "input.value") or "")
    if not span.parent and span.has_failed:
        run.has_raised = True


def _name(span: Span, type: StepType) -> str:
    facts = span.facts
    if type == "model":
        return _first(facts, "gen_ai.request.model", "gen_ai.response.model", "llm.model_name") or "model"
    return _first(facts, "gen_ai.tool.name", "tool.name", "mcp.tool.name") or span.name.partition(" ")[2] or span.name


def _given(span: Span, type: StepType, name: str, reading: Reading) -> tuple[Any, Failure | None]:
    """Return the shortened arguments of a call and its failure."""
    facts = span.facts
    arguments = _read(_first(facts, "gen_ai.tool.call.arguments", "input.value")) if type != "model" else None
    if not span.has_failed:
        return bounded(arguments), None
    said, kind = _said(span)
    failure = reading.classify(
        text=said,
        tool=name,
        source=type,
        is_error=True,
        arguments=arguments if isinstance(arguments, dict) else None,
        exception=kind,
        status=_status(facts),
    )
    return bounded(arguments), failure


def _said(span: Span) -> tuple[str, str | None]:
    """Return the error text of a failed span and the class of its exception."""
    facts, text = span.facts, span.message
    kind = _first(facts, "error.type", "exception.type")
    for name, about in span.events:
        if name == "exception":
            text = _first(about, "exception.message") or text
            kind = _first(about, "exception.type") or kind
    if not text:
        text = _first(facts, "exception.message", "gen_ai.tool.call.result", "output.value") or kind or ""
    is_class = bool(kind) and ("." in str(kind) or (str(kind).isidentifier() and str(kind)[:1].isupper()))
    return text[:16_384], kind if is_class else None


def _status(facts: dict[str, Any]) -> int | None:
    found = facts.get("http.response.status_code", facts.get("error.type"))
    found = int(found) if isinstance(found, str) and found.isdigit() and len(found) == 3 else found
    return found if isinstance(found, int) and 400 <= found < 600 else None


def _tokens(facts: dict[str, Any]) -> dict[str, int] | None:
    found = {}
    for name, said, other in _COUNTED:
        count = facts.get(said)
        if type(count) is not int:
            count = facts.get(other)
        if type(count) is int and 0 < count < 2**40:
            found[name] = count
    return found or None


_COUNTED = (
    ("input", "gen_ai.usage.input_tokens", "llm.token_count.prompt"),
    ("output", "gen_ai.usage.output_tokens", "llm.token_count.completion"),
)


def _read(given: Any) -> Any:
    if isinstance(given, str) and given[:1] in ("{", "["):
        value = decoded(given.encode("utf-8", "replace"), _any)
        return value if value is not None else given
    return given


_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def _first(facts: dict[str, Any], *names: str) -> str | None:
    for name in names:
        if name in facts and (value := facts[name]) and isinstance(value, str):
            return value
    return None


def _nanoseconds(value: Any) -> int:
    try:
        return max(0, min(int(value), 2**63 - 1))
    except (TypeError, ValueError, OverflowError):
        return 0


def _attributes(given: list[_Attribute]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for each in given:
        value = each.value
        if value is None:
            continue
        if value.text is not None:
            facts[each.key] = value.text
        elif value.flag is not None:
            facts[each.key] = value.flag
        elif value.whole is not None:
            facts[each.key] = _nanoseconds(value.whole)
        elif value.number is not None:
            facts[each.key] = value.number
        else:
            facts[each.key] = value.items if value.items is not None else value.fields
    return facts
