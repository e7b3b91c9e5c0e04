"""GET /healthz and /readyz: whether the process responds, and whether its store can be read and written.

They need no token and return no recorded data.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan import __version__
from mulligan.remember.store import DEFAULT_TENANT
from mulligan.serve.api.answers import json_response
from mulligan.serve.api.app import Server
from mulligan.serve.api.doors import protected_route
from mulligan.serve.api.errors import store_unavailable


def build_routes(server: Server) -> Iterable[BaseRoute]:
    async def healthz(request: Request) -> Response:
        return json_response({"status": "ok", "version": __version__})

    async def readyz(request: Request) -> Response:
        if server.is_stopping:
            raise store_unavailable("the server is stopping.")
        await server.run_in_reader(server.store.get, DEFAULT_TENANT, "server", "ready")
        if server.committer.has_recent_write_failure:
            raise store_unavailable("the store cannot be written just now; the server's log says why.")
        return json_response({"status": "ok", "waiting_bytes": server.committer.pending_bytes})

    return [
        protected_route(server, "/healthz", healthz, "nothing"),
        protected_route(server, "/readyz", readyz, "nothing"),
    ]
