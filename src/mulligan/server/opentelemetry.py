"""POST /v1/traces, /v1/logs and /v1/metrics: OTLP over HTTP as protobuf or JSON, acknowledged after the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan.server import request_bodies
from mulligan.server.access import Caller, protected_route
from mulligan.server.app import Server
from mulligan.server.errors import ApiError, invalid
from mulligan.server.otlp import otlp_logs, protobuf
from mulligan.server.otlp.otlp_traces import Traces
from mulligan.server.responses import json_response
from mulligan.store.base import Batch
from mulligan.transcripts import otlp
from mulligan.transcripts.otlp import Span

T = TypeVar("T")
PROTOBUF, JSON = "application/x-protobuf", "application/json"
REJECTED = "Invalid span: it needs a trace id of 16 bytes and a span id of 8 bytes."
METRICS = "Metrics are not stored. mulligan derives its metrics from runs."


def build_routes(server: Server) -> Iterable[BaseRoute]:
    otlp_routes = OtlpRoutes(server)
    return [
        protected_route(server, "/v1/traces", otlp_routes.traces, "ingest", "POST"),
        protected_route(server, "/v1/logs", otlp_routes.logs, "ingest", "POST"),
        protected_route(server, "/v1/metrics", otlp_routes.metrics, "ingest", "POST"),
    ]


class OtlpRoutes:
    """OTLP endpoints."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._traces = Traces(server.store, server.converter.classify)

    async def traces(self, request: Request) -> Response:
        data = await self._read(request)
        is_json = request_bodies.content_type(request) == JSON
        try:
            spans, rejected = await self._decode(request, _from_json if is_json else protobuf.parse_spans, data)
            await self._store_spans(request.state.caller, spans, len(data))
        except ApiError as error:
            return _error_response(error, is_json)
        return _success_response(is_json, "rejectedSpans", rejected, REJECTED if rejected else "")

    async def logs(self, request: Request) -> Response:
        data = await self._read(request)
        is_json = request_bodies.content_type(request) == JSON
        try:
            records = await self._decode(request, otlp_logs.parse_log_records if is_json else protobuf.parse_logs, data)
            await self._store_spans(request.state.caller, otlp_logs.to_spans(records), len(data))
        except ApiError as error:
            return _error_response(error, is_json)
        return _success_response(is_json, "rejectedLogRecords", 0, "")

    async def metrics(self, request: Request) -> Response:
        await self._read(request)  # An unread body would block reuse of the connection.
        return _success_response(request_bodies.content_type(request) == JSON, "rejectedDataPoints", 0, METRICS)

    async def _read(self, request: Request) -> bytes:
        return await request_bodies.read_body(request, PROTOBUF, JSON)

    async def _decode(self, request: Request, decode: Callable[[bytes], T], data: bytes) -> T:
        if request_bodies.content_type(request) == JSON and request_bodies.is_too_deep(data):
            raise invalid(f"The JSON is nested deeper than {request_bodies.MAX_JSON_DEPTH} levels.")
        try:
            return (
                await self._server.run_in_reader(decode, data)
                if len(data) > request_bodies.MIN_THREADED_DECODE_BYTES
                else decode(data)
            )
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise invalid(f"Invalid OTLP payload: {error}.") from None

    async def _store_spans(self, caller: Caller, spans: list[Span], size: int) -> None:
        if not spans:
            return

        def build_batch() -> Batch:
            return self._server.converter.build_event_batch(
                caller.tenant, caller.principal, self._traces.events(caller.tenant, spans)
            )

        try:
            await self._server.store_batch(caller, build_batch, len(spans), size)
        except BaseException:
            self._server.committer.run_before_next_commit(lambda: self._traces.forget(caller.tenant, spans))
            raise


def _from_json(data: bytes) -> tuple[list[Span], int]:
    spans = otlp.spans(data)
    valid_spans = [span for span in spans if _is_id(span.trace, 32) and _is_id(span.id, 16)]
    return valid_spans, len(spans) - len(valid_spans)


def _is_id(text: str, length: int) -> bool:
    return len(text) == length and text.strip("0") != "" and not text.strip("0123456789abcdefABCDEF")


def _success_response(is_json: bool, name: str, rejected: int, message: str) -> Response:
    if is_json:
        return json_response(
            {"partialSuccess": {name: str(rejected), "errorMessage": message}} if rejected or message else {}
        )
    return Response(protobuf.encode_response(rejected, message), media_type=PROTOBUF)


def _error_response(error: ApiError, is_json: bool) -> Response:
    if is_json:
        return json_response({**error.facts, "code": 3}, error.status, error.headers)
    return Response(protobuf.encode_status(error.message), error.status, error.headers, media_type=PROTOBUF)
