"""GET /healthz and /readyz: whether the process responds, and whether its store can be read and written.

They need no token and return no recorded data.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan import __version__
from mulligan.remember.store import LOCAL
from mulligan.serve.api.answers import answer
from mulligan.serve.api.app import Server
from mulligan.serve.api.doors import route
from mulligan.serve.api.errors import away


def group(server: Server) -> Iterable[BaseRoute]:
    async def healthz(request: Request) -> Response:
        return answer({"status": "ok", "version": __version__})

    async def readyz(request: Request) -> Response:
        if server.is_stopping:
            raise away("the server is stopping.")
        await server.ask(server.store.get, LOCAL, "server", "ready")
        if server.committer.is_refused:
            raise away("the store cannot be written just now; the server's log says why.")
        return answer({"status": "ok", "waiting_bytes": server.committer.waiting})

    return [route(server, "/healthz", healthz, "nothing"), route(server, "/readyz", readyz, "nothing")]
