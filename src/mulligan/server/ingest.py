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
from mulligan.server.access import Caller
from mulligan.server.app import Server
from mulligan.server.payloads import (
    BatchPayload,
    FailurePayload,
    FailurePayloads,
    RunPayload,
    RunPayloads,
    StepPayload,
    StepPayloads,
    check_events,
)
from mulligan.server.responses import invalid, json_response

T = TypeVar("T")


def build_routes(server: Server) -> Iterable[BaseRoute]:
    converter = server.converter

    async def read_payload(request: Request, type: Any) -> tuple[Any, int]:
        data = await request_bodies.read_body(request, request_bodies.JSON)
        if len(data) > request_bodies.MIN_THREADED_DECODE_BYTES:
            return await server.run_in_reader(request_bodies.parse_json, data, type), len(data)
        return request_bodies.parse_json(data, type), len(data)

    async def store_events(caller: Caller, events: Sequence[AnyEvent], size: int) -> int:
        if not events:
            return 0
        build_batch = partial(converter.build_event_batch, caller.tenant, caller.principal, events)
        return await server.store_batch(caller, build_batch, len(events), size)

    async def batch(request: Request) -> Response:
        payload: BatchPayload
        payload, size = await read_payload(request, BatchPayload)
        check_events(payload.events)
        caller: Caller = request.state.caller
        build_batch = partial(converter.build_journal_batch, caller.tenant, caller.principal, payload)
        new = await server.store_batch(caller, build_batch, len(payload.events), size)
        return json_response({"new": new, "offset": payload.offset})

    async def runs(request: Request) -> Response:
        payloads, size = await read_payload(request, RunPayloads)
        events: list[AnyEvent] = []
        ids: list[str] = []
        now = server.clock()
        for path_prefix, run_payload in _with_path_prefixes(payloads, RunPayload):
            id, run_events = converter.convert_run(run_payload, now, path_prefix)
            ids.append(id)
            events += run_events
        new = await store_events(request.state.caller, events, size)
        return json_response({"new": new, "runs": ids})

    async def steps(request: Request) -> Response:
        payloads, size = await read_payload(request, StepPayloads)
        now = server.clock()
        events = [
            converter.convert_step(step_payload, now, path_prefix)
            for path_prefix, step_payload in _with_path_prefixes(payloads, StepPayload)
        ]
        return json_response({"new": await store_events(request.state.caller, events, size)})

    async def failures(request: Request) -> Response:
        payloads, size = await read_payload(request, FailurePayloads)
        caller: Caller = request.state.caller
        events: list[AnyEvent] = []
        for path_prefix, failure in _with_path_prefixes(payloads, FailurePayload):
            if failure.run is None:
                raise invalid("Missing run: the id of the run that the failure belongs to.", f"{path_prefix}run")
            failed_step = await server.run_in_reader(find_failed_step, caller.tenant, failure.run, failure.step)
            step = converter.build_failure_step(failure, failure.run, failed_step, server.clock())
            events.append(StepEnded(step))
        return json_response({"new": await store_events(caller, events, size)})

    def find_failed_step(tenant: str, run: str, seq: int | None) -> tuple[StepType, str]:
        """Return the step type and name that a failure belongs to, or `run` and the agent without a step number."""
        history = server.store.run(tenant, run)
        if seq is None:
            return "run", history.run.agent if history is not None else ""
        steps_of_run = history.steps if history is not None else ()
        return next(((step.type, step.name) for step in steps_of_run if step.seq == seq), ("tool", ""))

    endpoints = {"/v1/batch": batch, "/v1/runs": runs, "/v1/steps": steps, "/v1/failures": failures}
    return [server.route(path, endpoint, "ingest", "POST") for path, endpoint in endpoints.items()]


def _with_path_prefixes(payloads: Any, type: type[T]) -> Iterable[tuple[str, T]]:
    """Return one payload or the payloads of a list, each with the path prefix for error messages."""
    if isinstance(payloads, type):
        return [("", payloads)]
    return [(f"[{number}].", payload) for number, payload in enumerate(payloads)]
