"""POST /v1/traces, /v1/logs and /v1/metrics: OTLP over HTTP as protobuf or JSON, acknowledged after the commit.

Traces may also come to the path that Langfuse's SDK uses.

The spans of one trace may arrive in many exports. Each step is stored on arrival, and attempts are grouped. The state
of a trace is held in memory and can be restored from the store, so that another or a restarted server continues it.
Agents such as Claude Code report their calls as logs, which are converted to spans.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan.contract.store import Batch, Store
from mulligan.core.events import AnyEvent, FailureRecorded, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind
from mulligan.core.kinds import KINDS
from mulligan.core.records import Run, Step
from mulligan.report.tables import to_line
from mulligan.server import bodies, protobuf
from mulligan.server.access import Caller
from mulligan.server.app import Endpoint, Server
from mulligan.server.background import FAILURE_WEIGHT, SlicedWork, complete
from mulligan.server.bodies import JSON, ApiError, invalid, json_response, store_unavailable
from mulligan.server.payloads import MAX_PART_WEIGHT
from mulligan.server.protobuf import LogRecord
from mulligan.transcripts import otlp
from mulligan.transcripts.log_lines import decode_leniently, decode_line
from mulligan.transcripts.otlp import (
    NAME,
    Attribute,
    Resource,
    Span,
    Trace,
    classify_span,
    encode_id,
    parse_integer,
    read_attributes,
    sort_spans,
)
from mulligan.transcripts.run_builder import ReaderState

T = TypeVar("T")
Decoder = Callable[[bytes], Iterable[Span | None]]
"""Function that decodes the spans of a body one at a time: None for an invalid one, or for a log of something else."""
PROTOBUF = "application/x-protobuf"
REJECTED_SPANS = "rejectedSpans"
REJECTED = "Invalid span: it needs a trace id of 16 bytes and a span id of 8 bytes."
METRICS = "Metrics are not stored. mulligan derives its metrics from runs."
LANGFUSE_PATH = "/api/public/otel/v1/traces"
SPAN_DEPTH = 6
"""Levels of JSON around a span or log record."""
OTHER_SCOPES, UNNAMED_SCOPE = "(other scopes)", "(no scope)"
MAX_FAILED_SPANS = 10_000
"""Limit of failed spans in one export."""
SPAN_KEY, ATTEMPT_GROUP_KEY = "span", "of"
"""Keys in a step's metadata: its span id, and what its attempts have in common."""
TOOL_EVENT, ERROR_EVENT, MODEL_EVENT = "tool_result", "api_error", "api_request"


def build_routes(server: Server) -> Iterable[BaseRoute]:
    traces = Traces(server.store, server.converter.classify, server.converter.kinds)

    async def store_spans(caller: Caller, spans: list[Span], size: int) -> Counter[str]:
        """Store the spans. Return how many were not recognized, by scope."""
        unrecognized: dict[int, Counter[str]] = {}

        def build_batch(number: int, part: list[Span]) -> Batch:
            unrecognized[number] = counts = Counter[str]()
            events = traces.events(caller.tenant, part, counts)
            return server.converter.build_event_batch(caller.tenant, caller.principal, events, numbered_events=[])

        failures = sum(span.has_failed for span in spans)
        if failures > MAX_FAILED_SPANS:
            message = f"{failures:,} failed spans in one export. The limit is {MAX_FAILED_SPANS:,}. Send less at once."
            raise ApiError(413, "too_large", message)
        await server.admit(caller, len(spans), size)
        numbered_parts = enumerate(split_spans(spans))
        parts = [(partial(build_batch, number, part), weight) for number, (part, weight) in numbered_parts]
        # How often spans are stored again because another server had stored spans of their traces in between
        for _ in range(10):
            try:
                await server.store_in_parts(caller, parts)
                return sum(unrecognized.values(), Counter[str]())
            except BaseException as error:
                server.committer.run_before_next_commit(lambda: traces.forget(caller.tenant, spans))
                if not isinstance(error, ApiError) or error.status != 409:
                    raise
                # Another server has stored spans of these traces: build the events again, from what is stored now.
        raise store_unavailable("Other servers are storing spans of the same traces. Retry later.")

    def endpoint(rejected_name: str, from_json: Decoder, from_protobuf: Decoder, note: str = "") -> Endpoint:
        async def receive(request: Request) -> Response:
            limits = {"max_bytes": bodies.MAX_OTLP_BODY_BYTES, "max_inflated_bytes": bodies.MAX_OTLP_INFLATED_BYTES}
            data = await bodies.read_body(request, PROTOBUF, JSON, **limits)
            is_json, caller = bodies.content_type(request) == JSON, request.state.caller
            unrecognized: Counter[str] = Counter()
            try:
                # Held before decoding: spans need more memory than the bytes they come from.
                with server.committer.holding(len(data)):
                    work = _collect_spans((from_json if is_json else from_protobuf)(data))
                    is_small = len(data) <= bodies.MAX_INLINE_BYTES
                    spans, others = complete(work) if is_small else await server.worker.run(caller, work)
                    rejected = others if rejected_name == REJECTED_SPANS else 0
                    if spans:
                        unrecognized = await store_spans(caller, spans, len(data))
            except ApiError as error:
                if is_json:
                    return json_response({**error.facts, "code": 3}, error.status, error.headers)
                body = protobuf.encode_status(error.message)
                return Response(body, error.status, error.headers, media_type=PROTOBUF)
            count_unrecognized(server, caller.tenant, unrecognized)
            notes = (REJECTED if rejected else "", describe_unrecognized(unrecognized), note)
            message = " ".join(filter(None, notes))
            if not is_json:
                return Response(protobuf.encode_response(rejected, message), media_type=PROTOBUF)
            partial_success = {"partialSuccess": {rejected_name: str(rejected), "errorMessage": message}}
            return json_response(partial_success if message else {})

        return receive

    receive_traces = endpoint(REJECTED_SPANS, _from_json, protobuf.parse_spans)
    endpoints = {
        "/v1/traces": receive_traces,
        LANGFUSE_PATH: receive_traces,
        "/v1/logs": endpoint(
            "rejectedLogRecords",
            lambda data: map(to_span, parse_log_records(data)),
            lambda data: map(to_span, protobuf.parse_logs(data)),
        ),
        "/v1/metrics": endpoint("rejectedDataPoints", lambda data: (), lambda data: (), METRICS),
    }
    return [server.route(path, receive, "ingest", "POST") for path, receive in endpoints.items()]


def count_unrecognized(server: Server, tenant: str, counts: Counter[str]) -> None:
    """Add to the tenant's counts since the server started, for the dashboard and the metrics."""
    totals = server.unrecognized_spans.setdefault(tenant, Counter())
    for scope, count in counts.items():
        # Scopes of unrecognized spans that are counted separately for a tenant.
        totals[scope if scope in totals or len(totals) < 50 else OTHER_SCOPES] += count


def describe_unrecognized(counts: Counter[str]) -> str:
    """Say which spans were not stored because they describe no call. The sender need not send them again."""
    if not counts:
        return ""
    scopes = ", ".join(f"{scope} {count:,}" for scope, count in counts.most_common(5))
    more = f" and {len(counts) - 5} more scopes" if len(counts) > 5 else ""
    return f"{counts.total():,} spans were not stored: they describe no agent, model or tool. By scope: {scopes}{more}."


def split_spans(spans: list[Span]) -> Iterator[tuple[list[Span], int]]:
    """Yield the spans in parts that are quick to store, with the weight of each. Only a large trace is divided."""
    by_trace: dict[str, list[Span]] = {}
    for span in spans:
        by_trace.setdefault(span.trace, []).append(span)
    part: list[Span] = []
    weight = 0
    for trace_spans in by_trace.values():
        if part and weight + sum(map(_weigh_span, trace_spans)) > MAX_PART_WEIGHT:
            yield part, weight
            part, weight = [], 0
        for span in sort_spans(trace_spans):
            part.append(span)
            weight += _weigh_span(span)
            if weight >= MAX_PART_WEIGHT:
                yield part, weight
                part, weight = [], 0
    if part:
        yield part, weight


def _weigh_span(span: Span) -> int:
    return FAILURE_WEIGHT if span.has_failed else 1


def _collect_spans(spans: Iterable[Span | None]) -> SlicedWork[tuple[list[Span], int]]:
    """Return the spans, and how many others were None."""
    valid_spans: list[Span] = []
    others = 0
    try:
        for span in spans:
            if span is None:
                others += 1
            else:
                valid_spans.append(span)
            yield
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise invalid(f"Invalid OTLP payload: {error}.") from None
    return valid_spans, others


def _from_json(data: bytes) -> Iterator[Span | None]:
    for span_data, resource, scope in otlp.split_export(data):
        bodies.check_depth(span_data, bodies.MAX_JSON_DEPTH - SPAN_DEPTH)
        span = otlp.decode_span(span_data, resource, scope)
        yield span if _TRACE_ID.fullmatch(span.trace) and _SPAN_ID.fullmatch(span.id) else None


_TRACE_ID, _SPAN_ID = (re.compile(f"(?!0+$)[0-9a-fA-F]{{{length}}}") for length in (32, 16))


# Traces


@dataclass
class _OpenTrace:
    trace: Trace
    spans: dict[str, Step | None] = field(default_factory=dict)
    """By id of a span: its step, or None if that has failed."""
    last_run: Run | None = None
    """The run as last published."""
    stored_run: Run | None = None
    """The run as last read from the store."""


class Traces:
    """Converter of spans to events. Not thread-safe: used by the writer thread only."""

    def __init__(self, store: Store, classify: Callable[..., Failure], kinds: Mapping[str, Kind] = KINDS) -> None:
        self._store = store
        self._reading = ReaderState(classify, kinds, keeps_results=True)
        self._open_traces: OrderedDict[tuple[str, str], _OpenTrace] = OrderedDict()

    def events(self, tenant: str, spans: Iterable[Span], unrecognized: Counter[str]) -> list[AnyEvent]:
        """Return the events that these spans add. Count the unrecognized spans by scope."""
        by_trace: dict[str, list[Span]] = {}
        for span in spans:
            by_trace.setdefault(span.trace, []).append(span)
        traces = self._load_traces(tenant, by_trace)
        events = [event for id in by_trace for event in self._build_events(traces[id], sort_spans(by_trace[id]))]
        for id in by_trace:
            for scope, count in traces[id].trace.take_unrecognized().items():
                unrecognized[to_line(scope, 80) or UNNAMED_SCOPE] += count
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
            return {SPAN_KEY: id, ATTEMPT_GROUP_KEY: key} | ({"model": model} if model else {})

        for span in spans:
            id = encode_id(span.id)
            if id in open_trace.spans:
                # Sent again. Some senders report at the end of their work that an earlier call was a failure.
                step = open_trace.spans[id]
                if step is not None and span.has_failed:
                    failure = classify_span(span, step.type, step.name, step.arguments, self._reading)
                    assert failure is not None
                    events.append(FailureRecorded(step.run, step.seq, failure))
                    open_trace.spans[id] = None
                continue
            if trace.builder.agent == NAME and isinstance(service := span.resource.get("service.name"), str):
                # Provisional, until the span arrives that names the agent.
                trace.builder.agent = service
                version = span.resource.get("service.version")
                trace.builder.version = version if isinstance(version, str) else None
            step = trace.add(span, build_metadata)
            if step is not None:
                open_trace.spans[id] = None if step.has_failed else _without_values(step)
                events.append(StepEnded(step))
        if not trace.seq:
            return []  # no relevant span yet
        run = trace.builder.build_run()
        if not trace.has_ended:
            run = msgspec.structs.replace(run, ended_at=None, end_reason=None)
        if run != open_trace.last_run:
            events.insert(0, RunStarted(run) if run.end_reason is None else RunEnded(run))
            open_trace.last_run = run
        return events

    def _load_traces(self, tenant: str, ids: Iterable[str]) -> dict[str, _OpenTrace]:
        """Return the state of these traces, from memory or the store."""
        traces_by_id = {id: self._open_traces.pop((tenant, id), None) for id in ids}
        new = {
            id: _OpenTrace(Trace(self._reading, id, holds_steps=False))
            for id, trace in traces_by_id.items()
            if not trace
        }
        traces = {id: trace or new[id] for id, trace in traces_by_id.items()}
        open_traces = {open_trace.trace.builder.id: open_trace for open_trace in traces.values()}
        # One query finds those that this or another server has stored.
        for run_id, run in self._store.runs_by_id(tenant, list(open_traces)).items():
            open_trace = open_traces[run_id]
            if open_trace.last_run is None:
                self._resume(tenant, open_trace)
            elif run != open_trace.stored_run:
                _restore_run(open_trace, run)
        self._open_traces.update({(tenant, id): trace for id, trace in traces.items()})
        # Traces in memory. An evicted one is read from the store when more of its spans arrive.
        while len(self._open_traces) > 2000:
            self._open_traces.popitem(last=False)
        return traces

    def _resume(self, tenant: str, open_trace: _OpenTrace) -> None:
        """Restore the state of a trace from the store: spans with a step, and attempts that may continue."""
        trace = open_trace.trace
        stored_history = self._store.run(tenant, trace.builder.id)
        if stored_history is None:
            return
        _restore_run(open_trace, stored_history.run)
        for step in stored_history.steps:
            metadata = step.metadata or {}
            trace.seq = max(trace.seq, step.seq)
            trace.builder.note_time(step.started_at + int(step.duration_seconds * 1000))
            if isinstance(metadata.get(SPAN_KEY), str):
                open_trace.spans[metadata[SPAN_KEY]] = None if step.has_failed else _without_values(step)
            if isinstance(metadata.get(ATTEMPT_GROUP_KEY), str):
                trace.last[metadata[ATTEMPT_GROUP_KEY]] = step


def _without_values(step: Step) -> Step:
    """Return a step without its values, to hold it in memory."""
    return Step(run=step.run, seq=step.seq, call=step.call, type=step.type, name=step.name)


def _restore_run(open_trace: _OpenTrace, run: Run) -> None:
    open_trace.stored_run = open_trace.last_run = run
    open_trace.trace.has_ended = run.end_reason is not None
    gathering = open_trace.trace.builder
    gathering.agent, gathering.version, gathering.environment = run.agent, run.version, run.environment
    gathering.session, gathering.context = run.session, run.context or ""
    gathering.model = str((run.metadata or {}).get("model", ""))
    gathering.user, gathering.tags = (run.metadata or {}).get("user"), (run.metadata or {}).get("tags") or []
    gathering.parent = run.parent
    gathering.has_raised = open_trace.trace.has_failed_root = run.end_reason == "raised"
    gathering.note_time(run.started_at)
    gathering.note_time(run.ended_at or 0)


# Logs


class _LogBody(msgspec.Struct, gc=False):
    text: Any = msgspec.field(default="", name="stringValue")


class _JsonLogRecord(msgspec.Struct, gc=False):
    name: str = msgspec.field(default="", name="eventName")
    time: Any = msgspec.field(default=0, name="timeUnixNano")
    observed: Any = msgspec.field(default=0, name="observedTimeUnixNano")
    attributes: list[Attribute] = []
    body: _LogBody | None = None


class _ScopeLogs(msgspec.Struct, gc=False):
    logs: list[msgspec.Raw] = msgspec.field(default_factory=list, name="logRecords")
    """Not decoded: each is a `_JsonLogRecord`."""


class _ResourceLogs(msgspec.Struct, gc=False):
    resource: Resource | None = None
    scopes: list[_ScopeLogs] = msgspec.field(default_factory=list, name="scopeLogs")


class _LogExport(msgspec.Struct, gc=False):
    groups: list[_ResourceLogs] = msgspec.field(name="resourceLogs")


class _Parameters(msgspec.Struct, gc=False):
    server: str = msgspec.field(default="", name="mcp_server_name")
    tool: str = msgspec.field(default="", name="mcp_tool_name")


_decode_export = msgspec.json.Decoder(_LogExport).decode
_decode_log = msgspec.json.Decoder(_JsonLogRecord).decode
_parameters = msgspec.json.Decoder(_Parameters)


def parse_log_records(data: bytes) -> Iterator[LogRecord]:
    """Yield the log records of a JSON export. Raise MsgspecError if it is invalid."""
    for group in decode_leniently(data, _decode_export).groups:
        resource = read_attributes(group.resource.attributes) if group.resource else {}
        for record in (record for scope in group.scopes for record in scope.logs):
            bodies.check_depth(bytes(record), bodies.MAX_JSON_DEPTH - SPAN_DEPTH)
            log = decode_leniently(bytes(record), _decode_log)
            time = parse_integer(log.time) or parse_integer(log.observed)
            text = str(log.body.text) if log.body else ""
            yield LogRecord(log.name, time, read_attributes(log.attributes), resource, text)


def to_span(log: LogRecord) -> Span | None:
    """Convert the log record of a call to a span. A session becomes a run."""
    facts = log.facts
    event = (str(facts.get("event.name") or "") or log.name or log.body).rpartition(".")[2]
    session = facts.get("session.id") or log.resource.get("session.id")
    if event not in (TOOL_EVENT, ERROR_EVENT, MODEL_EVENT) or not isinstance(session, str) or not session:
        return None
    has_failed = event == ERROR_EVENT or (event == TOOL_EVENT and str(facts.get("success", "true")).lower() == "false")
    attributes: dict[str, Any] = {"session.id": session}
    if event == TOOL_EVENT:
        attributes |= _tool_attributes(facts)
    else:
        attributes |= {"gen_ai.operation.name": "chat", "gen_ai.request.model": str(facts.get("model") or "")}
        for name, keys in _NUMBERS.items():
            if numbers := [number for key in keys if (number := _parse_number(facts.get(key))) is not None]:
                attributes[name] = int(sum(numbers))
        if (cost := _parse_number(facts.get("cost_usd"))) is not None:
            attributes["mulligan.cost_usd"] = cost
    key = f"{session}\n{log.time}\n{event}\n{sorted((name, str(value)) for name, value in facts.items())}"
    id = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    message = ""
    if has_failed:
        message = str(facts.get("error") or facts.get("error_message") or "")
        if isinstance(facts.get("error_type"), str) and facts["error_type"]:
            attributes["error.type"] = facts["error_type"]
    start = max(0, log.time - int((_parse_number(facts.get("duration_ms")) or 0) * 1e6))
    resource = {"service.name": "claude-code", **log.resource}
    return Span(session, id, "session", event, start, log.time, attributes, has_failed, message, [], resource)


_NUMBERS = {
    "http.response.status_code": ("status_code",),
    "gen_ai.usage.input_tokens": ("input_tokens", "cache_read_tokens", "cache_creation_tokens"),
    "gen_ai.usage.output_tokens": ("output_tokens",),
    "gen_ai.usage.cache_read.input_tokens": ("cache_read_tokens",),
    "gen_ai.usage.cache_creation.input_tokens": ("cache_creation_tokens",),
}
"""Numeric attributes of a model call, with the names in log records whose sum they are. The logged input excludes the
cache."""


def _tool_attributes(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the span attributes of a tool call.

    `tool_input` (the arguments) and `tool_parameters` (a description, with the tool's server and name) are present only
    if `OTEL_LOG_TOOL_DETAILS` is set.
    """
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": str(facts.get("tool_name") or "tool")}
    parameters = facts.get("tool_parameters")
    tool_input = facts.get("tool_input") or parameters
    if isinstance(tool_input, str):
        attributes["gen_ai.tool.call.arguments"] = tool_input
    if isinstance(facts.get("tool_use_id"), str):
        attributes["gen_ai.tool.call.id"] = facts["tool_use_id"]
    # Generic tool name that Claude Code reports for tools of MCP servers.
    if attributes["gen_ai.tool.name"] == "mcp_tool" and isinstance(parameters, str):
        decoded_parameters = decode_line(parameters.encode("utf-8", "replace"), _parameters)
        if decoded_parameters is not None and decoded_parameters.tool:
            attributes["gen_ai.tool.name"] = decoded_parameters.tool
            if decoded_parameters.server:
                attributes["mcp.server.name"] = decoded_parameters.server
    return attributes


def _parse_number(value: Any) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if 0 <= number < 1e15 else None
