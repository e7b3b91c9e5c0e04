"""POST /v1/recall and /v1/outcomes for agents, and /v1/store/*, the protocol of the HTTP store."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute

from mulligan.core.records import Fix, History, Precedent, Record, encode
from mulligan.server import request_bodies
from mulligan.server.access import Caller, protected_route
from mulligan.server.app import Server
from mulligan.server.errors import ApiError, invalid, not_found
from mulligan.server.payloads import YEAR_9999
from mulligan.server.responses import json_response
from mulligan.store import wire_protocol
from mulligan.store.base import DEFAULT_TENANT, Health, PruneResult, TrialReport

JSON = "application/json"
MAX_RECALL_RESULTS = 200
"""Limit of precedents and of fixes in one response."""
EXPORT_BATCH_RUNS = 20
"""Runs read from the store per chunk of an export."""


class ExportRequest(Record, frozen=True):
    since: int = 0


def build_routes(server: Server) -> Iterable[BaseRoute]:
    memory_routes = MemoryRoutes(server)
    return [
        protected_route(server, "/v1/recall", memory_routes.recall, "ingest", "POST"),
        protected_route(server, "/v1/outcomes", memory_routes.outcomes, "ingest", "POST"),
        protected_route(server, "/v1/export", memory_routes.export, "read", "POST"),
        *(
            protected_route(
                server,
                f"/v1/store/{name}",
                memory_routes.store_method_endpoint(name, method),
                method.required_role,
                "POST",
            )
            for name, method in wire_protocol.METHODS.items()
        ),
    ]


class MemoryRoutes:
    """Endpoints for mulligan's own clients."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def recall(self, request: Request) -> Response:
        recall_request = request_bodies.parse_json(
            await request_bodies.read_body(request, JSON), wire_protocol.RecallRequest
        )
        caller: Caller = request.state.caller
        return json_response(await self._server.run_in_reader(self._recall, caller.tenant, recall_request))

    def _recall(self, tenant: str, recall_request: wire_protocol.RecallRequest) -> wire_protocol.RecallResponse:
        store, question, query = self._server.store, recall_request.question, recall_request.fixes
        precedents: tuple[Precedent, ...] = ()
        fixes: tuple[Fix, ...] = ()
        if question is not None:
            question = msgspec.structs.replace(question, limit=min(question.limit, MAX_RECALL_RESULTS))
            precedents = tuple(store.recall(tenant, question))
        if query is not None:
            now = query.now if 0 < query.now <= YEAR_9999 else self._server.clock()
            fixes = tuple(
                store.fixes(tenant, msgspec.structs.replace(query, now=now, limit=min(query.limit, MAX_RECALL_RESULTS)))
            )
        return wire_protocol.RecallResponse(precedents=precedents, fixes=fixes)

    async def outcomes(self, request: Request) -> Response:
        outcome_report = request_bodies.parse_json(
            await request_bodies.read_body(request, JSON), wire_protocol.OutcomeReport
        )
        if not 0 <= outcome_report.at <= YEAR_9999:
            raise invalid(f"Invalid time {outcome_report.at}. Use UTC milliseconds.", "at")
        if not 0 < len(outcome_report.run) <= 200:
            raise invalid("Invalid run id. Use 1 to 200 characters.", "run")
        caller: Caller = request.state.caller
        trial_report = TrialReport(
            run=outcome_report.run,
            principal=caller.principal,
            agent=outcome_report.agent[:200],
            at=outcome_report.at or self._server.clock(),
            successful=outcome_report.successful,
            automatic=outcome_report.automatic,
        )
        if not await self._server.run_in_reader(
            self._server.store.record_outcome, caller.tenant, outcome_report.fix_id, trial_report
        ):
            raise not_found("No fix with this id.")
        return json_response({"stored": True})

    async def export(self, request: Request) -> Response:
        since = request_bodies.parse_json(await request_bodies.read_body(request, JSON), ExportRequest).since
        caller: Caller = request.state.caller
        histories_iterator = iter(self._server.store.export(caller.tenant, max(0, min(since, YEAR_9999))))

        def read_next_runs() -> list[History]:
            return list(itertools.islice(histories_iterator, EXPORT_BATCH_RUNS))

        async def lines() -> AsyncIterator[bytes]:
            while histories := await self._server.run_in_reader(read_next_runs):
                yield b"".join(encode(history) + b"\n" for history in histories)

        return StreamingResponse(lines(), media_type="application/x-ndjson", headers={"Cache-Control": "no-store"})

    def store_method_endpoint(self, name: str, method: wire_protocol.StoreMethod) -> Callable[[Request], Any]:
        """Build the endpoint for one method of the HTTP store. The tenant is always the caller's."""

        async def call_store(request: Request) -> Response:
            data = await request_bodies.read_body(request, wire_protocol.CONTENT_TYPE)
            try:
                args = wire_protocol.decode_arguments(name, data)
            except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
                raise invalid(f"Invalid arguments for {name}: {error}.") from None
            caller: Caller = request.state.caller
            args = _check_arguments(name, args)
            result = await self._server.run_in_reader(getattr(self._server.store, name), caller.tenant, *args)
            if name == "journals":
                result = [journal for journal in result if journal.startswith(wire_protocol.REMOTE_JOURNAL_PREFIX)]
            if caller.tenant != DEFAULT_TENANT:
                result = _hide_operator_fields(result)
            return Response(wire_protocol.encode_value(result), media_type=wire_protocol.CONTENT_TYPE)

        return call_store


def _hide_operator_fields(result: Any) -> Any:
    """Remove fields that only the operator may see: the store's location and its total size."""
    if isinstance(result, Health):
        return msgspec.structs.replace(result, where="")
    if isinstance(result, PruneResult):
        return msgspec.structs.replace(result, bytes_before=0, bytes_after=0)
    return result


def _check_arguments(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if name in ("get", "put", "compare_and_set", "keys") and args[0] in wire_protocol.SERVER_ONLY_KINDS:
        raise ApiError(403, "forbidden", f"Entries of kind {args[0]!r} are reserved for the server.")
    if name in ("offset", "release"):
        for journal in args[0] if name == "release" else args:
            if not journal.startswith(wire_protocol.REMOTE_JOURNAL_PREFIX):
                raise ApiError(403, "forbidden", f"Journal {journal[:80]!r} is reserved for the server.")
    if name in ("runs", "lessons"):
        return (msgspec.structs.replace(args[0], limit=min(args[0].limit, 10_000)),)
    return args
