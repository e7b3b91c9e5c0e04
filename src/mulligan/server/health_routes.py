"""GET /healthz and /readyz: whether the process responds, and whether its store can be read and written.

They need no token and return no recorded data.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan import __version__
from mulligan.server.access import protected_route
from mulligan.server.app import Server
from mulligan.server.errors import store_unavailable
from mulligan.server.responses import json_response
from mulligan.store.base import DEFAULT_TENANT


def build_routes(server: Server) -> Iterable[BaseRoute]:
    async def healthz(request: Request) -> Response:
        return json_response({"status": "ok", "version": __version__})

    async def readyz(request: Request) -> Response:
        if server.is_stopping:
            raise store_unavailable("The server is shutting down.")
        await server.run_in_reader(server.store.get, DEFAULT_TENANT, "server", "ready")
        if server.committer.has_recent_write_failure:
            raise store_unavailable("The store is not writable. See the server's log.")
        return json_response({"status": "ok", "waiting_bytes": server.committer.pending_bytes})

    return [
        protected_route(server, "/healthz", healthz, "nothing"),
        protected_route(server, "/readyz", readyz, "nothing"),
    ]
