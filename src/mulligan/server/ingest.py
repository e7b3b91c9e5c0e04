"""POST /v1/batch, /v1/runs, /v1/steps and /v1/failures: validate records and acknowledge them after the commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan.core.events import AnyEvent, StepEnded
from mulligan.core.records import StepType
from mulligan.server import request_bodies
from mulligan.server.access import Caller, protected_route
from mulligan.server.app import Server
from mulligan.server.errors import invalid
from mulligan.server.payload_conversion import check_events
from mulligan.server.payloads import (
    BatchPayload,
    FailurePayload,
    FailurePayloads,
    RunPayload,
    RunPayloads,
    StepPayload,
    StepPayloads,
)
from mulligan.server.responses import json_response
from mulligan.store.base import Batch

T = TypeVar("T")
JSON = "application/json"


def build_routes(server: Server) -> Iterable[BaseRoute]:
    ingest = IngestRoutes(server)
    return [
        protected_route(server, "/v1/batch", ingest.batch, "ingest", "POST"),
        protected_route(server, "/v1/runs", ingest.runs, "ingest", "POST"),
        protected_route(server, "/v1/steps", ingest.steps, "ingest", "POST"),
        protected_route(server, "/v1/failures", ingest.failures, "ingest", "POST"),
    ]


class IngestRoutes:
    """Ingest endpoints: each reads, validates and stores."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._converter = server.converter

    async def _read_payload(self, request: Request, type: Any) -> tuple[Any, int]:
        data = await request_bodies.read_body(request, JSON)
        if len(data) > request_bodies.MIN_THREADED_DECODE_BYTES:
            return await self._server.run_in_reader(request_bodies.parse_json, data, type), len(data)
        return request_bodies.parse_json(data, type), len(data)

    async def _store_events(self, caller: Caller, events: Sequence[AnyEvent], size: int) -> int:
        if not events:
            return 0
        build_batch = partial(self._converter.build_event_batch, caller.tenant, caller.principal, events)
        return await self._server.store_batch(caller, build_batch, len(events), size)

    async def batch(self, request: Request) -> Response:
        payload: BatchPayload
        payload, size = await self._read_payload(request, BatchPayload)
        check_events(payload.events)
        caller: Caller = request.state.caller

        def build_batch() -> Batch:
            return self._converter.build_journal_batch(caller.tenant, caller.principal, payload)

        new = await self._server.store_batch(caller, build_batch, len(payload.events), size)
        return json_response({"new": new, "offset": payload.offset})

    async def runs(self, request: Request) -> Response:
        payloads, size = await self._read_payload(request, RunPayloads)
        events: list[AnyEvent] = []
        ids: list[str] = []
        now = self._server.clock()
        for path_prefix, run_payload in _with_path_prefixes(payloads, RunPayload):
            id, run_events = self._converter.convert_run(run_payload, now, path_prefix)
            ids.append(id)
            events += run_events
        new = await self._store_events(request.state.caller, events, size)
        return json_response({"new": new, "runs": ids})

    async def steps(self, request: Request) -> Response:
        payloads, size = await self._read_payload(request, StepPayloads)
        now = self._server.clock()
        events = [
            self._converter.convert_step(step_payload, now, path_prefix)
            for path_prefix, step_payload in _with_path_prefixes(payloads, StepPayload)
        ]
        new = await self._store_events(request.state.caller, events, size)
        return json_response({"new": new})

    async def failures(self, request: Request) -> Response:
        payloads, size = await self._read_payload(request, FailurePayloads)
        caller: Caller = request.state.caller
        events: list[AnyEvent] = []
        for path_prefix, failure_payload in _with_path_prefixes(payloads, FailurePayload):
            if failure_payload.run is None:
                raise invalid("Missing run: the id of the run that the failure belongs to.", f"{path_prefix}run")
            failed_step = await self._server.run_in_reader(
                self._find_failed_step, caller.tenant, failure_payload.run, failure_payload.step
            )
            events.append(
                StepEnded(
                    self._converter.build_failure_step(
                        failure_payload, failure_payload.run, failed_step, self._server.clock()
                    )
                )
            )
        new = await self._store_events(caller, events, size)
        return json_response({"new": new})

    def _find_failed_step(self, tenant: str, run: str, seq: int | None) -> tuple[StepType, str]:
        """Return the step type and name that a failure belongs to, or `run` and the agent without a step number."""
        history = self._server.store.run(tenant, run)
        if seq is None:
            return "run", history.run.agent if history is not None else ""
        for step in history.steps if history is not None else ():
            if step.seq == seq:
                return step.type, step.name
        return "tool", ""


def _with_path_prefixes(payloads: Any, type: type[T]) -> Iterable[tuple[str, T]]:
    """Return one payload or the payloads of a list, each with the path prefix for error messages."""
    if isinstance(payloads, type):
        return [("", payloads)]
    return [(f"[{number}].", payload) for number, payload in enumerate(payloads)]
