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
from mulligan.server.access import Caller
from mulligan.server.app import Server
from mulligan.server.payloads import YEAR_9999
from mulligan.server.request_bodies import read_body, read_json
from mulligan.server.responses import ApiError, invalid, json_response, not_found
from mulligan.store import wire_protocol
from mulligan.store.base import DEFAULT_TENANT, Health, PruneResult, TrialReport

MAX_RECALL_RESULTS = 200
"""Limit of precedents and of fixes in one response."""
EXPORT_BATCH_RUNS = 20
"""Runs read from the store per chunk of an export."""


class ExportRequest(Record, frozen=True):
    since: int = 0


def build_routes(server: Server) -> Iterable[BaseRoute]:
    def find_memories(tenant: str, request: wire_protocol.RecallRequest) -> wire_protocol.RecallResponse:
        question, query = request.question, request.fixes
        precedents: tuple[Precedent, ...] = ()
        fixes: tuple[Fix, ...] = ()
        if question is not None:
            question = msgspec.structs.replace(question, limit=min(question.limit, MAX_RECALL_RESULTS))
            precedents = tuple(server.store.recall(tenant, question))
        if query is not None:
            now = query.now if 0 < query.now <= YEAR_9999 else server.clock()
            query = msgspec.structs.replace(query, now=now, limit=min(query.limit, MAX_RECALL_RESULTS))
            fixes = tuple(server.store.fixes(tenant, query))
        return wire_protocol.RecallResponse(precedents=precedents, fixes=fixes)

    async def recall(request: Request) -> Response:
        recall_request = await read_json(request, wire_protocol.RecallRequest)
        return json_response(await server.run_in_reader(find_memories, request.state.caller.tenant, recall_request))

    async def outcomes(request: Request) -> Response:
        report = await read_json(request, wire_protocol.OutcomeReport)
        if not 0 <= report.at <= YEAR_9999:
            raise invalid(f"Invalid time {report.at}. Use UTC milliseconds.", "at")
        if not 0 < len(report.run) <= 200:
            raise invalid("Invalid run id. Use 1 to 200 characters.", "run")
        caller: Caller = request.state.caller
        trial = TrialReport(
            run=report.run,
            principal=caller.principal,
            agent=report.agent[:200],
            at=report.at or server.clock(),
            successful=report.successful,
            automatic=report.automatic,
        )
        if not await server.run_in_reader(server.store.record_outcome, caller.tenant, report.fix_id, trial):
            raise not_found("No fix with this id.")
        return json_response({"stored": True})

    async def export(request: Request) -> Response:
        since = (await read_json(request, ExportRequest)).since
        histories = iter(server.store.export(request.state.caller.tenant, max(0, min(since, YEAR_9999))))

        def read_next_runs() -> list[History]:
            return list(itertools.islice(histories, EXPORT_BATCH_RUNS))

        async def lines() -> AsyncIterator[bytes]:
            while batch := await server.run_in_reader(read_next_runs):
                yield b"".join(encode(history) + b"\n" for history in batch)

        return StreamingResponse(lines(), media_type="application/x-ndjson", headers={"Cache-Control": "no-store"})

    return [
        server.route("/v1/recall", recall, "ingest", "POST"),
        server.route("/v1/outcomes", outcomes, "ingest", "POST"),
        server.route("/v1/export", export, "read", "POST"),
        *(
            server.route(f"/v1/store/{name}", _store_method_endpoint(server, name), method.required_role, "POST")
            for name, method in wire_protocol.METHODS.items()
        ),
    ]


def _store_method_endpoint(server: Server, name: str) -> Callable[[Request], Any]:
    """Build the endpoint for one method of the HTTP store. The tenant is always the caller's."""

    async def call_store(request: Request) -> Response:
        data = await read_body(request, wire_protocol.CONTENT_TYPE)
        try:
            args = wire_protocol.decode_arguments(name, data)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise invalid(f"Invalid arguments for {name}: {error}.") from None
        tenant, args = request.state.caller.tenant, _check_arguments(name, args)
        result = await server.run_in_reader(getattr(server.store, name), tenant, *args)
        if name == "journals":
            result = [journal for journal in result if journal.startswith(wire_protocol.REMOTE_JOURNAL_PREFIX)]
        if tenant != DEFAULT_TENANT:
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
