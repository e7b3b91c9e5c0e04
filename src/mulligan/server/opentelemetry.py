"""POST /v1/traces, /v1/logs and /v1/metrics: OTLP over HTTP as protobuf or JSON, acknowledged after the commit.

The spans of one trace may arrive in many exports. Each step is stored on arrival, and attempts are grouped. The state
of a trace is held in memory and can be restored from the store, so that a restarted server continues where it stopped.
Agents such as Claude Code report their calls as logs, which are converted to spans.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure
from mulligan.core.records import Run
from mulligan.server import protobuf, request_bodies
from mulligan.server.access import Caller
from mulligan.server.app import Endpoint, Server
from mulligan.server.protobuf import LogRecord
from mulligan.server.responses import ApiError, invalid, json_response
from mulligan.store.base import Batch, Store
from mulligan.transcripts import otlp
from mulligan.transcripts.log_lines import decode_leniently, decode_line
from mulligan.transcripts.otlp import NAME, Span, Trace, encode_id, sort_spans
from mulligan.transcripts.run_builder import ReaderState

T = TypeVar("T")
Decoder = Callable[[bytes], tuple[list[Span], int]]
PROTOBUF, JSON = "application/x-protobuf", "application/json"
REJECTED = "Invalid span: it needs a trace id of 16 bytes and a span id of 8 bytes."
METRICS = "Metrics are not stored. mulligan derives its metrics from runs."
MAX_OPEN_TRACES = 2000
"""Traces in memory. An evicted one is read from the store when more of its spans arrive."""
SPAN_KEY, ATTEMPT_GROUP_KEY = "span", "of"
"""Keys in a step's metadata: its span id, and what its attempts have in common."""
TOOL_EVENT, ERROR_EVENT, MODEL_EVENT = "tool_result", "api_error", "api_request"
MCP_TOOL_NAME = "mcp_tool"
"""Generic tool name that Claude Code reports for tools of MCP servers."""


def build_routes(server: Server) -> Iterable[BaseRoute]:
    traces = Traces(server.store, server.converter.classify)

    async def decode(data: bytes, is_json: bool, decoder: Callable[[bytes], T]) -> T:
        if is_json and request_bodies.is_too_deep(data):
            raise invalid(f"The JSON is nested deeper than {request_bodies.MAX_JSON_DEPTH} levels.")
        try:
            if len(data) > request_bodies.MIN_THREADED_DECODE_BYTES:
                return await server.run_in_reader(decoder, data)
            return decoder(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise invalid(f"Invalid OTLP payload: {error}.") from None

    async def store_spans(caller: Caller, spans: list[Span], size: int) -> None:
        def build_batch() -> Batch:
            events = traces.events(caller.tenant, spans)
            return server.converter.build_event_batch(caller.tenant, caller.principal, events)

        try:
            await server.store_batch(caller, build_batch, len(spans), size)
        except BaseException:
            server.committer.run_before_next_commit(lambda: traces.forget(caller.tenant, spans))
            raise

    def endpoint(rejected_name: str, from_json: Decoder, from_protobuf: Decoder, note: str = "") -> Endpoint:
        """Build the endpoint of one signal. The decoders return its spans and the number of invalid ones."""

        async def receive(request: Request) -> Response:
            data = await request_bodies.read_body(request, PROTOBUF, JSON)
            is_json = request_bodies.content_type(request) == JSON
            try:
                spans, rejected = await decode(data, is_json, from_json if is_json else from_protobuf)
                if spans:
                    await store_spans(request.state.caller, spans, len(data))
            except ApiError as error:
                if is_json:
                    return json_response({**error.facts, "code": 3}, error.status, error.headers)
                body = protobuf.encode_status(error.message)
                return Response(body, error.status, error.headers, media_type=PROTOBUF)
            message = REJECTED if rejected else note
            if not is_json:
                return Response(protobuf.encode_response(rejected, message), media_type=PROTOBUF)
            partial = {"partialSuccess": {rejected_name: str(rejected), "errorMessage": message}}
            return json_response(partial if message else {})

        return receive

    def ignore(data: bytes) -> tuple[list[Span], int]:
        return [], 0

    def parse_json_logs(data: bytes) -> tuple[list[Span], int]:
        return to_spans(parse_log_records(data)), 0

    def parse_protobuf_logs(data: bytes) -> tuple[list[Span], int]:
        return to_spans(protobuf.parse_logs(data)), 0

    endpoints = {
        "/v1/traces": endpoint("rejectedSpans", _from_json, protobuf.parse_spans),
        "/v1/logs": endpoint("rejectedLogRecords", parse_json_logs, parse_protobuf_logs),
        "/v1/metrics": endpoint("rejectedDataPoints", ignore, ignore, METRICS),
    }
    return [server.route(path, receive, "ingest", "POST") for path, receive in endpoints.items()]


def _from_json(data: bytes) -> tuple[list[Span], int]:
    spans = otlp.spans(data)
    valid_spans = [span for span in spans if _is_id(span.trace, 32) and _is_id(span.id, 16)]
    return valid_spans, len(spans) - len(valid_spans)


def _is_id(text: str, length: int) -> bool:
    return len(text) == length and text.strip("0") != "" and not text.strip("0123456789abcdefABCDEF")


# Traces


class _OpenTrace:
    def __init__(self, reading: ReaderState, id: str) -> None:
        self.trace = Trace(reading, id, holds_steps=False)
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
            by_trace.setdefault(span.trace, []).append(span)
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
            return {SPAN_KEY: id, ATTEMPT_GROUP_KEY: key} | ({"model": model} if model else {})

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
        run = trace.builder.build_run()
        if not trace.has_ended:
            run = msgspec.structs.replace(run, ended_at=None, end_reason=None)
        if run != open_trace.last_run:
            events.insert(0, RunStarted(run) if run.end_reason is None else RunEnded(run))
            open_trace.last_run = run
        return events

    def _load_traces(self, tenant: str, ids: Iterable[str]) -> dict[str, _OpenTrace]:
        """Return the state of these traces, from memory or the store."""
        traces = {id: self._open_traces.get((tenant, id)) or _OpenTrace(self._reading, id) for id in ids}
        new = [trace for id, trace in traces.items() if (tenant, id) not in self._open_traces]
        # Most traces are new: one query finds the stored ones.
        stored_ids = (
            self._store.existing_runs(tenant, [new_trace.trace.builder.id for new_trace in new]) if new else set()
        )
        for new_trace in new:
            if new_trace.trace.builder.id in stored_ids:
                self._resume(tenant, new_trace)
        for id, trace in traces.items():
            self._open_traces[tenant, id] = trace
            self._open_traces.move_to_end((tenant, id))
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


# Logs


class _JsonLogRecord(msgspec.Struct, gc=False):
    name: str = msgspec.field(default="", name="eventName")
    time: Any = msgspec.field(default=0, name="timeUnixNano")
    observed: Any = msgspec.field(default=0, name="observedTimeUnixNano")
    attributes: list[Any] = []
    body: Any = None


class _ScopeLogs(msgspec.Struct, gc=False):
    logs: list[_JsonLogRecord] = msgspec.field(default_factory=list, name="logRecords")


class _ResourceLogs(msgspec.Struct, gc=False):
    resource: Any = None
    scopes: list[_ScopeLogs] = msgspec.field(default_factory=list, name="scopeLogs")


class _LogExport(msgspec.Struct, gc=False):
    groups: list[_ResourceLogs] = msgspec.field(name="resourceLogs")


class _Parameters(msgspec.Struct, gc=False):
    server: str = msgspec.field(default="", name="mcp_server_name")
    tool: str = msgspec.field(default="", name="mcp_tool_name")


_decoder = msgspec.json.Decoder(_LogExport)
_parameters = msgspec.json.Decoder(_Parameters)


def parse_log_records(data: bytes) -> list[LogRecord]:
    """Parse the log records of a JSON export. Raise MsgspecError if it is invalid."""
    log_records = []
    for group in decode_leniently(data, _decoder.decode).groups:
        resource = _read_attributes(group.resource.get("attributes") if isinstance(group.resource, dict) else None)
        for scope in group.scopes:
            for log in scope.logs:
                body = log.body.get("stringValue", "") if isinstance(log.body, dict) else ""
                timestamp = _to_integer(log.time) or _to_integer(log.observed)
                log_records.append(
                    LogRecord(log.name, timestamp, _read_attributes(log.attributes), resource, str(body))
                )
    return log_records


def _read_attributes(attributes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for attribute in attributes if isinstance(attributes, list) else ():
        if (
            isinstance(attribute, dict)
            and isinstance(attribute.get("key"), str)
            and isinstance(attribute.get("value"), dict)
        ):
            facts[attribute["key"]] = next(iter(attribute["value"].values()), None)
    return facts


def _to_integer(value: Any) -> int:
    try:
        return max(0, min(int(value), 2**63 - 1))
    except (TypeError, ValueError, OverflowError):
        return 0


def to_spans(logs: Iterable[LogRecord]) -> list[Span]:
    """Convert log records of calls to spans. A session becomes a run."""
    return [span for log in logs if (span := _to_span(log)) is not None]


def _to_span(log: LogRecord) -> Span | None:
    facts = log.facts
    event = (str(facts.get("event.name") or "") or log.name or log.body).rpartition(".")[2]
    session = facts.get("session.id") or log.resource.get("session.id")
    if event not in (TOOL_EVENT, ERROR_EVENT, MODEL_EVENT) or not isinstance(session, str) or not session:
        return None
    took = _to_integer(float(str(facts.get("duration_ms") or 0)) * 1e6) if _is_number(facts.get("duration_ms")) else 0
    has_failed = event == ERROR_EVENT or (event == TOOL_EVENT and str(facts.get("success", "true")).lower() == "false")
    attributes: dict[str, Any] = {"session.id": session}
    if event == TOOL_EVENT:
        attributes |= _tool_attributes(facts)
    else:
        attributes |= {"gen_ai.operation.name": "chat", "gen_ai.request.model": str(facts.get("model") or "model")}
        if _is_number(facts.get("status_code")):
            attributes["http.response.status_code"] = int(float(str(facts["status_code"])))
        for name, key in (("input", "input_tokens"), ("output", "output_tokens")):
            if _is_number(facts.get(key)):
                attributes[f"gen_ai.usage.{name}_tokens"] = int(float(str(facts[key])))
    key = f"{session}\n{log.time}\n{event}\n{sorted((name, str(value)) for name, value in facts.items())}"
    id = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    kind = facts.get("error_type") if has_failed else None
    if isinstance(kind, str) and kind:
        attributes["error.type"] = kind
    message = str(facts.get("error") or facts.get("error_message") or "") if has_failed else ""
    resource = {"service.name": "claude-code", **log.resource}
    return Span(
        session, id, "session", event, max(0, log.time - took), log.time, attributes, has_failed, message, [], resource
    )


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
    if attributes["gen_ai.tool.name"] == MCP_TOOL_NAME and isinstance(parameters, str):
        decoded_parameters = decode_line(parameters.encode("utf-8", "replace"), _parameters)
        if decoded_parameters is not None and decoded_parameters.tool:
            attributes |= {"gen_ai.tool.name": decoded_parameters.tool} | (
                {"mcp.server.name": decoded_parameters.server} if decoded_parameters.server else {}
            )
    return attributes


def _is_number(value: Any) -> bool:
    try:
        return 0 <= float(str(value)) < 1e15
    except ValueError:
        return False
