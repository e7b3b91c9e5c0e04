"""Sign-in and sign-out pages, for people who cannot open the one-time URL that the server prints."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mulligan.serve.api.app import Server
from mulligan.serve.api.doors import cookie_name, own_place, told
from mulligan.serve.api.errors import Refused
from mulligan.serve.api.signing import HOURS
from mulligan.serve.api.tokens import MAY
from mulligan.serve.dashboard.forms import form

Page = Callable[[Request, str, int], Response]
PATH, OUT = "/sign-in", "/sign-out"


class Signing:
    """Sign-in and sign-out endpoints. `page` renders the sign-in form with an optional error message."""

    def __init__(self, server: Server, page: Page) -> None:
        self._server = server
        self._page = page

    async def show(self, request: Request) -> Response:
        return self._page(request, "", 200)

    async def sign_in(self, request: Request) -> Response:
        """Exchange a valid token for a cookie. Cross-site requests are rejected to prevent login CSRF."""
        server = self._server
        _own(request)
        address = request.client.host if request.client else ""
        try:
            server.tries.check(address)
        except Refused as refused:
            answer = self._page(request, refused.message, refused.status)
            answer.headers.update(refused.headers)
            return answer
        secret = (await form(request)).get("token", "").strip()
        if server.is_stale:
            await server.ask(server.refresh)
        token = server.tokens.find(secret)
        now = server.clock()
        if token is None or token.state(now) != "active":
            server.tries.wrong(address)
            return self._page(request, "There is no such token, or it is not good any more.", 401)
        if "read" not in MAY[token.role]:
            return self._page(request, f"This token has the role {token.role}; to look needs read or admin.", 403)
        answer = RedirectResponse(own_place(request.query_params.get("next", "/")), 303)
        answer.set_cookie(
            server.sessions.name, server.sessions.make(token, now), max_age=HOURS * 3600, path="/", httponly=True,
            samesite="strict", secure=_is_safe(request),
        )  # fmt: skip
        return answer

    async def sign_out(self, request: Request) -> Response:
        """Invalidate the cookie on the server and delete it from the browser. A copy of it stops working too."""
        _own(request)
        server = self._server
        answer: Response = RedirectResponse(PATH, 303)
        server.browsers.forget(request.cookies.get(cookie_name(request), ""))
        try:
            if server.is_stale:
                await server.ask(server.refresh)
            if cookie := request.cookies.get(server.sessions.name):
                await server.ask(server.sessions.end, cookie, server.clock())
        except Refused as refused:  # Report the unavailable store, and delete the browser's cookie anyway.
            answer = told(request, refused)
        for name in (server.sessions.name, cookie_name(request)):
            answer.delete_cookie(name, path="/", httponly=True, samesite="strict")
        return answer


def _own(request: Request) -> None:
    """Raise `ApiError` unless the request comes from a page of this server, as the browser's headers show."""
    if request.headers.get("origin") is None and request.headers.get("sec-fetch-site") != "same-origin":
        raise Refused(403, "foreign_origin", "this is for the form on this page. Programs send a token: Authorization.")


def _is_safe(request: Request) -> bool:
    """Return whether the browser used TLS, to this server or to a reverse proxy."""
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", ""))
