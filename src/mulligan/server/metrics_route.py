"""GET /metrics: the tenant's and the server's metrics in Prometheus format."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan.report import prometheus
from mulligan.server.access import Caller, protected_route
from mulligan.server.app import Server
from mulligan.server.tenant_queries import TenantQueries
from mulligan.store.base import DEFAULT_TENANT
from mulligan.store.counters import StatsQuery

TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build_routes(server: Server) -> Iterable[BaseRoute]:
    def render_metrics(queries: TenantQueries, is_default_tenant: bool) -> str:
        query = StatsQuery(now=queries.now)
        tools = queries.stats(StatsQuery(now=queries.now, by="tool"))
        lines = [*prometheus.render_metrics(queries.stats(query).total, tools)]
        server_metrics = (
            ("mulligan_server_records", "Records stored since the server started.", server.committer.stored_records),
            (
                "mulligan_server_transactions",
                "Store transactions since the server started.",
                server.committer.transactions,
            ),
            (
                "mulligan_server_waiting_bytes",
                "Request bytes received and not stored yet.",
                server.committer.pending_bytes,
            ),
        )
        if is_default_tenant:  # These count all tenants, so only the operator may see them.
            lines += prometheus.render_gauges(server_metrics)
        return "\n".join(lines) + "\n"

    async def metrics(request: Request) -> Response:
        caller: Caller = request.state.caller
        text = await server.run_in_reader(render_metrics, server.queries_for(caller), caller.tenant == DEFAULT_TENANT)
        return Response(text, media_type=TYPE, headers={"Cache-Control": "no-store"})

    return [protected_route(server, "/metrics", metrics, "read")]
