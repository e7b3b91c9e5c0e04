"""POST /v1/batch, /v1/runs, /v1/steps and /v1/failures: validate records and acknowledge them after the commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan.events import AnyEvent, StepEnded
from mulligan.records import StepType
from mulligan.remember.store import Batch
from mulligan.serve.api import bodies
from mulligan.serve.api.answers import answer
from mulligan.serve.api.app import Server
from mulligan.serve.api.doors import Caller, route
from mulligan.serve.api.errors import invalid
from mulligan.serve.api.intake import check
from mulligan.serve.api.sent import SentBatch, SentFailure, SentFailures, SentRun, SentRuns, SentStep, SentSteps

T = TypeVar("T")
JSON = "application/json"


def group(server: Server) -> Iterable[BaseRoute]:
    ingest = Ingest(server)
    return [
        route(server, "/v1/batch", ingest.batch, "ingest", "POST"),
        route(server, "/v1/runs", ingest.runs, "ingest", "POST"),
        route(server, "/v1/steps", ingest.steps, "ingest", "POST"),
        route(server, "/v1/failures", ingest.failures, "ingest", "POST"),
    ]


class Ingest:
    """Ingest endpoints: each reads, validates and stores."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._intake = server.intake

    async def _sent(self, request: Request, type: Any) -> tuple[Any, int]:
        data = await bodies.read(request, JSON)
        if len(data) > bodies.LARGE:
            return await self._server.ask(bodies.parsed, data, type), len(data)
        return bodies.parsed(data, type), len(data)

    async def _keep(self, who: Caller, events: Sequence[AnyEvent], size: int) -> int:
        if not events:
            return 0
        prepared = partial(self._intake.kept, who.tenant, who.principal, events)
        return await self._server.keep(who, prepared, len(events), size)

    async def batch(self, request: Request) -> Response:
        sent: SentBatch
        sent, size = await self._sent(request, SentBatch)
        check(sent.events)
        who: Caller = request.state.caller

        def prepared() -> Batch:
            return self._intake.batch(who.tenant, who.principal, sent)

        new = await self._server.keep(who, prepared, len(sent.events), size)
        return answer({"new": new, "offset": sent.offset})

    async def runs(self, request: Request) -> Response:
        sent, size = await self._sent(request, SentRuns)
        events: list[AnyEvent] = []
        ids: list[str] = []
        now = self._server.clock()
        for place, each in _each(sent, SentRun):
            id, made = self._intake.run(each, now, place)
            ids.append(id)
            events += made
        new = await self._keep(request.state.caller, events, size)
        return answer({"new": new, "runs": ids})

    async def steps(self, request: Request) -> Response:
        sent, size = await self._sent(request, SentSteps)
        now = self._server.clock()
        events = [self._intake.step(each, now, place) for place, each in _each(sent, SentStep)]
        new = await self._keep(request.state.caller, events, size)
        return answer({"new": new})

    async def failures(self, request: Request) -> Response:
        sent, size = await self._sent(request, SentFailures)
        who: Caller = request.state.caller
        events: list[AnyEvent] = []
        for place, each in _each(sent, SentFailure):
            if each.run is None:
                raise invalid("which run it belongs to is missing.", f"{place}run")
            about = await self._server.ask(self._about, who.tenant, each.run, each.step)
            events.append(StepEnded(self._intake.aside(each, each.run, about, self._server.clock())))
        new = await self._keep(who, events, size)
        return answer({"new": new})

    def _about(self, tenant: str, run: str, seq: int | None) -> tuple[StepType, str]:
        """Return the step type and name that a failure belongs to, or `run` and the agent without a step number."""
        known = self._server.store.run(tenant, run)
        if seq is None:
            return "run", known.run.agent if known is not None else ""
        for step in known.steps if known is not None else ():
            if step.seq == seq:
                return step.type, step.name
        return "tool", ""


def _each(sent: Any, type: type[T]) -> Iterable[tuple[str, T]]:
    """Return one payload or the payloads of a list, each with the path prefix for error messages."""
    if isinstance(sent, type):
        return [("", sent)]
    return [(f"[{number}].", each) for number, each in enumerate(sent)]
