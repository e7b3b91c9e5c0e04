"""GET /metrics: the tenant's and the server's metrics in Prometheus format."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan.figures import StatsQuery
from mulligan.remember.store import LOCAL
from mulligan.report import prometheus
from mulligan.serve.api.app import Server
from mulligan.serve.api.doors import Caller, route
from mulligan.serve.api.questions import Questions

TYPE = "text/plain; version=0.0.4; charset=utf-8"


def group(server: Server) -> Iterable[BaseRoute]:
    def told(questions: Questions, is_own: bool) -> str:
        query = StatsQuery(now=questions.now)
        tools = questions.stats(StatsQuery(now=questions.now, by="tool"))
        lines = [*prometheus.text(questions.stats(query).total, tools)]
        own = (
            ("mulligan_server_records", "Records kept since the server began.", server.committer.events),
            ("mulligan_server_transactions", "Transactions they took.", server.committer.transactions),
            ("mulligan_server_waiting_bytes", "Bytes that were sent and are not kept yet.", server.committer.waiting),
        )
        if is_own:  # These count all tenants, so only the operator may see them.
            lines += prometheus.gauges(own)
        return "\n".join(lines) + "\n"

    async def metrics(request: Request) -> Response:
        who: Caller = request.state.caller
        text = await server.ask(told, server.questions(who), who.tenant == LOCAL)
        return Response(text, media_type=TYPE, headers={"Cache-Control": "no-store"})

    return [route(server, "/metrics", metrics, "read")]
