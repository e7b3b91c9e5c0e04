"""POST /v1/traces, /v1/logs and /v1/metrics: OTLP over HTTP as protobuf or JSON, acknowledged after the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan.capture.transcripts import otlp
from mulligan.capture.transcripts.otlp import Span
from mulligan.remember.store import Batch
from mulligan.serve.api import bodies
from mulligan.serve.api.answers import answer
from mulligan.serve.api.app import Server
from mulligan.serve.api.doors import Caller, route
from mulligan.serve.api.errors import Refused, invalid
from mulligan.serve.otlp import logs, protobuf
from mulligan.serve.otlp.traces import Traces

T = TypeVar("T")
PROTOBUF, JSON = "application/x-protobuf", "application/json"
REJECTED = "a span needs a trace id of 16 bytes and an id of 8."
METRICS = "metrics are not kept here; runs tell the same."


def group(server: Server) -> Iterable[BaseRoute]:
    otel = OpenTelemetry(server)
    return [
        route(server, "/v1/traces", otel.traces, "ingest", "POST"),
        route(server, "/v1/logs", otel.logs, "ingest", "POST"),
        route(server, "/v1/metrics", otel.metrics, "ingest", "POST"),
    ]


class OpenTelemetry:
    """OTLP endpoints."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._traces = Traces(server.store, server.intake.classify)

    async def traces(self, request: Request) -> Response:
        data = await self._read(request)
        is_json = bodies.content_type(request) == JSON
        try:
            spans, rejected = await self._decoded(request, _from_json if is_json else protobuf.spans, data)
            await self._keep(request.state.caller, spans, len(data))
        except Refused as refused:
            return _refused(refused, is_json)
        return _answered(is_json, "rejectedSpans", rejected, REJECTED if rejected else "")

    async def logs(self, request: Request) -> Response:
        data = await self._read(request)
        is_json = bodies.content_type(request) == JSON
        try:
            records = await self._decoded(request, logs.records if is_json else protobuf.logs, data)
            await self._keep(request.state.caller, logs.spans(records), len(data))
        except Refused as refused:
            return _refused(refused, is_json)
        return _answered(is_json, "rejectedLogRecords", 0, "")

    async def metrics(self, request: Request) -> Response:
        await self._read(request)  # An unread body would block reuse of the connection.
        return _answered(bodies.content_type(request) == JSON, "rejectedDataPoints", 0, METRICS)

    async def _read(self, request: Request) -> bytes:
        return await bodies.read(request, PROTOBUF, JSON)

    async def _decoded(self, request: Request, decode: Callable[[bytes], T], data: bytes) -> T:
        if bodies.content_type(request) == JSON and bodies.too_deep(data):
            raise invalid(f"it is nested deeper than {bodies.DEPTH}.")
        try:
            return await self._server.ask(decode, data) if len(data) > bodies.LARGE else decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise invalid(f"this is no OTLP: {error}.") from None

    async def _keep(self, who: Caller, spans: list[Span], size: int) -> None:
        if not spans:
            return

        def prepared() -> Batch:
            return self._server.intake.kept(who.tenant, who.principal, self._traces.events(who.tenant, spans))

        try:
            await self._server.keep(who, prepared, len(spans), size)
        except BaseException:
            self._server.committer.later(lambda: self._traces.forget(who.tenant, spans))
            raise


def _from_json(data: bytes) -> tuple[list[Span], int]:
    found = otlp.spans(data)
    sound = [each for each in found if _is_id(each.trace, 32) and _is_id(each.id, 16)]
    return sound, len(found) - len(sound)


def _is_id(text: str, length: int) -> bool:
    return len(text) == length and text.strip("0") != "" and not text.strip("0123456789abcdefABCDEF")


def _answered(is_json: bool, name: str, rejected: int, why: str) -> Response:
    if is_json:
        return answer({"partialSuccess": {name: str(rejected), "errorMessage": why}} if rejected or why else {})
    return Response(protobuf.answered(rejected, why), media_type=PROTOBUF)


def _refused(refused: Refused, is_json: bool) -> Response:
    if is_json:
        return answer({**refused.facts, "code": 3}, refused.status, refused.headers)
    return Response(protobuf.status(refused.message), refused.status, refused.headers, media_type=PROTOBUF)
