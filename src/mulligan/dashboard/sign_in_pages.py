"""Sign-in and sign-out pages, for people who cannot open the one-time URL that the server prints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mulligan.server.access import cookie_name, error_response, safe_redirect_path
from mulligan.server.app import Server
from mulligan.server.request_bodies import BODY_TIMEOUT_SECONDS
from mulligan.server.responses import ApiError, body_timeout
from mulligan.server.tokens import COOKIE_HOURS, ROLE_PERMISSIONS

RenderSignIn = Callable[[Request, str, int], Response]
MAX_FORM_BYTES = 64 * 1024
"""Limit of a form body."""
SIGN_IN_PATH, SIGN_OUT_PATH = "/sign-in", "/sign-out"


class SignInPages:
    """Sign-in and sign-out endpoints. `page` renders the sign-in form with an optional error message."""

    def __init__(self, server: Server, page: RenderSignIn) -> None:
        self._server = server
        self._page = page

    async def show(self, request: Request) -> Response:
        return self._page(request, "", 200)

    async def sign_in(self, request: Request) -> Response:
        """Exchange a valid token for a cookie. Cross-site requests are rejected to prevent login CSRF."""
        server = self._server
        _require_same_origin(request)
        address = request.client.host if request.client else ""
        try:
            server.sign_in_limiter.check(address)
        except ApiError as error:
            answer = self._page(request, error.message, error.status)
            answer.headers.update(error.headers)
            return answer
        secret = (await read_form(request)).get("token", "").strip()
        if server.is_stale:
            await server.run_in_reader(server.refresh)
        token = server.tokens.find_by_secret(secret)
        now = server.clock()
        if token is None or token.state(now) != "active":
            server.sign_in_limiter.record_failure(address)
            return self._page(
                request, "Unknown, expired or revoked token. Ask the server's operator for a new one.", 401
            )
        if "read" not in ROLE_PERMISSIONS[token.role]:
            return self._page(
                request, f"This token has the role {token.role}. The dashboard needs the role read or admin.", 403
            )
        answer = RedirectResponse(safe_redirect_path(request.query_params.get("next", "/")), 303)
        answer.set_cookie(
            server.sessions.cookie_name, server.sessions.create_cookie(token, now), max_age=COOKIE_HOURS * 3600,
            path="/", httponly=True, samesite="strict", secure=_is_https(request),
        )  # fmt: skip
        return answer

    async def sign_out(self, request: Request) -> Response:
        """Invalidate the cookie on the server and delete it from the browser. A copy of it stops working too."""
        _require_same_origin(request)
        server = self._server
        answer: Response = RedirectResponse(SIGN_IN_PATH, 303)
        server.browser_sessions.end_session(request.cookies.get(cookie_name(request), ""))
        try:
            if server.is_stale:
                await server.run_in_reader(server.refresh)
            if cookie := request.cookies.get(server.sessions.cookie_name):
                await server.run_in_reader(server.sessions.sign_out, cookie, server.clock())
        except ApiError as error:  # Report the unavailable store, and delete the browser's cookie anyway.
            answer = error_response(request, error)
        for name in (server.sessions.cookie_name, cookie_name(request)):
            answer.delete_cookie(name, path="/", httponly=True, samesite="strict")
        return answer


def _require_same_origin(request: Request) -> None:
    """Raise `ApiError` unless the request comes from a page of this server, as the browser's headers show."""
    if request.headers.get("origin") is None and request.headers.get("sec-fetch-site") != "same-origin":
        raise ApiError(
            403,
            "foreign_origin",
            "Cross-site sign-in rejected. Use the form on this page, or send a token: Authorization: Bearer TOKEN.",
        )


def _is_https(request: Request) -> bool:
    """Return whether the browser used TLS, to this server or to a reverse proxy."""
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", ""))


async def read_form(request: Request) -> dict[str, str]:
    """Read the fields of a URL-encoded form. Return no fields if it is too large or malformed."""
    body = b""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_FORM_BYTES:
                    return {}
    except TimeoutError:
        raise body_timeout(BODY_TIMEOUT_SECONDS) from None
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return {}
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=50))
    except ValueError:  # More fields than any of our forms has.
        return {}
