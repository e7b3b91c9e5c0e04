"""POST /v1/recall and /v1/outcomes for agents, and /v1/store/*, the protocol of the HTTP store."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute

from mulligan.records import Fix, History, Precedent, Record, encode
from mulligan.remember import wire
from mulligan.remember.store import LOCAL, Evidence, Health, Pruned
from mulligan.serve.api import bodies
from mulligan.serve.api.answers import answer
from mulligan.serve.api.app import Server
from mulligan.serve.api.doors import Caller, route
from mulligan.serve.api.errors import Refused, invalid, unknown
from mulligan.serve.api.sent import YEAR_9999

JSON = "application/json"
MOST = 200
"""Limit of precedents and of fixes in one response."""
EXPORTED = 20
"""Runs read from the store per chunk of an export."""


class Since(Record, frozen=True):
    since: int = 0


def group(server: Server) -> Iterable[BaseRoute]:
    asking = Asking(server)
    return [
        route(server, "/v1/recall", asking.recall, "ingest", "POST"),
        route(server, "/v1/outcomes", asking.outcomes, "ingest", "POST"),
        route(server, "/v1/export", asking.export, "read", "POST"),
        *(
            route(server, f"/v1/store/{name}", asking.method(name, about), about.needs, "POST")
            for name, about in wire.METHODS.items()
        ),
    ]


class Asking:
    """Endpoints for mulligan's own clients."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def recall(self, request: Request) -> Response:
        asked = bodies.parsed(await bodies.read(request, JSON), wire.Asked)
        who: Caller = request.state.caller
        return answer(await self._server.ask(self._known, who.tenant, asked))

    def _known(self, tenant: str, asked: wire.Asked) -> wire.Known:
        store, question, query = self._server.store, asked.question, asked.fixes
        precedents: tuple[Precedent, ...] = ()
        fixes: tuple[Fix, ...] = ()
        if question is not None:
            question = msgspec.structs.replace(question, limit=min(question.limit, MOST))
            precedents = tuple(store.recall(tenant, question))
        if query is not None:
            now = query.now if 0 < query.now <= YEAR_9999 else self._server.clock()
            fixes = tuple(store.fixes(tenant, msgspec.structs.replace(query, now=now, limit=min(query.limit, MOST))))
        return wire.Known(precedents=precedents, fixes=fixes)

    async def outcomes(self, request: Request) -> Response:
        told = bodies.parsed(await bodies.read(request, JSON), wire.Report)
        if not 0 <= told.at <= YEAR_9999:
            raise invalid("this is no time.", "at")
        if not 0 < len(told.run) <= 200:
            raise invalid("an id has 1 to 200 characters.", "run")
        who: Caller = request.state.caller
        report = Evidence(
            run=told.run, principal=who.principal, agent=told.agent[:200], at=told.at or self._server.clock(),
            worked=told.worked, automatic=told.automatic,
        )  # fmt: skip
        if not await self._server.ask(self._server.store.outcome, who.tenant, told.fix, report):
            raise unknown("there is no such fix.")
        return answer({"kept": True})

    async def export(self, request: Request) -> Response:
        since = bodies.parsed(await bodies.read(request, JSON), Since).since
        who: Caller = request.state.caller
        found = iter(self._server.store.export(who.tenant, max(0, min(since, YEAR_9999))))

        def some() -> list[History]:
            return list(itertools.islice(found, EXPORTED))

        async def lines() -> AsyncIterator[bytes]:
            while histories := await self._server.ask(some):
                yield b"".join(encode(each) + b"\n" for each in histories)

        return StreamingResponse(lines(), media_type="application/x-ndjson", headers={"Cache-Control": "no-store"})

    def method(self, name: str, about: wire.Method) -> Callable[[Request], Any]:
        """Build the endpoint for one method of the HTTP store. The tenant is always the caller's."""

        async def ask(request: Request) -> Response:
            data = await bodies.read(request, wire.TYPE)
            try:
                args = wire.arguments(name, data)
            except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
                raise invalid(f"{name} does not take this: {error}.") from None
            who: Caller = request.state.caller
            args = _checked(name, args)
            found = await self._server.ask(getattr(self._server.store, name), who.tenant, *args)
            if name == "journals":
                found = [each for each in found if each.startswith(wire.REMOTE)]
            if who.tenant != LOCAL:
                found = _own(found)
            return Response(wire.packed(found), media_type=wire.TYPE)

        return ask


def _own(found: Any) -> Any:
    """Remove fields that only the operator may see: the store's location and its total size."""
    if isinstance(found, Health):
        return msgspec.structs.replace(found, where="")
    if isinstance(found, Pruned):
        return msgspec.structs.replace(found, before=0, after=0)
    return found


def _checked(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if name in ("get", "put", "swap", "keys") and args[0] in wire.KEPT_BACK:
        raise Refused(403, "forbidden", "that is the server's own.")
    if name in ("offset", "release"):
        for journal in args[0] if name == "release" else args:
            if not journal.startswith(wire.REMOTE):
                raise Refused(403, "forbidden", "that journal is the server's own.")
    if name in ("runs", "lessons"):
        return (msgspec.structs.replace(args[0], limit=min(args[0].limit, 10_000)),)
    return args
