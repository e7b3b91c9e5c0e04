"""Access control: Host and Origin checks, tokens and cookies, and security headers on every response."""

from __future__ import annotations

import ipaddress
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal, NamedTuple, Protocol
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mulligan.server.errors import ApiError
from mulligan.server.sign_in import SignInSessions
from mulligan.server.tokens import ROLE_PERMISSIONS, Token, Tokens
from mulligan.store import audit
from mulligan.store.base import DEFAULT_TENANT

log = logging.getLogger("mulligan")

RequiredRole = Literal["nothing", "ingest", "read", "admin"]
Endpoint = Callable[[Request], Awaitable[Response]]
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
)
"""Added to every response. Headers that an endpoint sets itself take precedence."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
ENTRY_PATH = "/enter"


class Caller(NamedTuple):
    """Authenticated caller. Tenant and principal come from the credential, never from the request's content."""

    tenant: str = DEFAULT_TENANT
    principal: str = ""
    role: str = "admin"
    token: str = ""
    """Id of the token that was sent or that the cookie refers to."""
    name: str = ""
    """Display name of the caller."""


class AccessRules(NamedTuple):
    """Access policy of this server."""

    hosts: frozenset[str] = frozenset({"localhost"})
    """Host names that the server accepts. IP addresses are checked separately."""
    is_local: bool = True
    """Whether the server listens only on loopback. Ingest then needs no token."""
    is_open: bool = False
    """Whether authentication is off (`--no-auth`)."""

    def accepts_host(self, host_header: str) -> bool:
        """Return whether a Host header addresses this server. Rejecting other names prevents DNS rebinding."""
        name = parse_host_name(host_header)
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name.rstrip(".").lower() in self.hosts
        return address.is_loopback or not self.is_local


def parse_host_name(host_header: str) -> str:
    """Return the host name of a Host header, without port and brackets."""
    if host_header.startswith("["):
        return host_header[1:].partition("]")[0]
    return host_header.rpartition(":")[0] if host_header.count(":") == 1 else host_header


class BrowserSessions:
    """Browsers that entered by a one-time URL. Their cookies are valid until the server stops."""

    def __init__(self, announce: Callable[[str], None] = lambda ticket: None) -> None:
        self._callers: dict[str, Caller] = {}
        self._announce = announce
        self.ticket = secrets.token_urlsafe(24)

    def redeem_ticket(self, ticket: str) -> str | None:
        """Exchange a ticket for a cookie and issue a new ticket. Return `None` if the ticket is invalid."""
        if not secrets.compare_digest(ticket.encode(), self.ticket.encode()):
            return None
        self.ticket = secrets.token_urlsafe(24)
        self._announce(self.ticket)
        return self.start_session(Caller(role="admin"))

    def start_session(self, caller: Caller) -> str:
        cookie = secrets.token_urlsafe(32)
        self._callers[cookie] = caller
        return cookie

    def find(self, cookie: str) -> Caller | None:
        return self._callers.get(cookie)

    def end_session(self, cookie: str) -> None:
        self._callers.pop(cookie, None)


def cookie_name(request: Request) -> str:
    """Return the cookie name for this port. Browsers separate cookies by host but not by port."""
    return f"mulligan_{(request.scope.get('server') or ('', 0))[1]}"


class AccessState(Protocol):
    """Part of the server that decides who may call it: rules, credentials and quotas."""

    rules: AccessRules
    tokens: Tokens
    sessions: SignInSessions
    browser_sessions: BrowserSessions
    clock: Callable[[], int]

    @property
    def is_stale(self) -> bool:
        """Return whether tokens or tenants must be reloaded."""

    def refresh(self) -> None:
        """Reload tokens, tenants and signed-out sessions from the store."""

    async def run_in_reader(self, function: Callable[[], None]) -> None:
        """Call a blocking function on a reader thread."""

    async def charge_quotas(self, caller: Caller, **amounts: int) -> None:
        """Charge the amounts to the tenant's quotas. Raise `ApiError` if a quota is exhausted."""


def authorize(request: Request, required_role: RequiredRole, server: AccessState) -> Caller:
    """Authenticate the request and check its role. Raise `ApiError` with the missing credential or role."""
    rules, now = server.rules, server.clock()
    authorization = request.headers.get("authorization")
    if authorization is not None:
        identified_caller = _authenticate_token(authorization, server.tokens, now)
    elif (cookie := request.cookies.get(server.sessions.cookie_name)) and (
        token := server.sessions.find_token(cookie, now)
    ):
        identified_caller = _caller_for_token(token)
    elif (cookie := request.cookies.get(cookie_name(request))) and (
        browser_caller := server.browser_sessions.find(cookie)
    ):
        identified_caller = browser_caller
    elif rules.is_open or (required_role == "ingest" and rules.is_local):
        identified_caller = Caller()
    else:
        raise _unauthorized(
            "No credentials. Open the URL that `mulligan serve` printed, or send a token: "
            "Authorization: Bearer TOKEN (create one: mulligan token create)."
        )
    if required_role not in ROLE_PERMISSIONS[identified_caller.role]:
        raise ApiError(
            403,
            "forbidden",
            f"The role {identified_caller.role} is not sufficient. Use a token with the role {required_role}.",
        )
    return identified_caller


def _authenticate_token(authorization: str, tokens: Tokens, now: int) -> Caller:
    scheme, _, secret = authorization.partition(" ")
    token = tokens.find_by_secret(secret.strip()) if scheme.lower() == "bearer" else None
    if token is None:
        raise _unauthorized("Unknown token. Send it as: Authorization: Bearer TOKEN")
    state = token.state(now)
    if state != "active":
        raise _unauthorized(f"This token is {state}. Create a new one: mulligan token create")
    return _caller_for_token(token)


def _caller_for_token(token: Token) -> Caller:
    return Caller(token.tenant, token.writer, token.role, token.id, token.principal or token.name or token.id)


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, "unauthorised", message, headers={"WWW-Authenticate": 'Bearer realm="mulligan"'})


def protected_route(
    server: AccessState, path: str, endpoint: Endpoint, required_role: RequiredRole, *methods: str
) -> Route:
    """Build a route that authenticates first. The endpoint reads `request.state.caller`."""

    async def guarded(request: Request) -> Response:
        try:
            if required_role != "nothing":
                if server.is_stale:
                    await server.run_in_reader(server.refresh)
                request.state.caller = current_caller = authorize(request, required_role, server)
                await server.charge_quotas(current_caller, requests=1)
                audit.set_actor(
                    audit.Actor(
                        current_caller.name or "dashboard",
                        "api" if "/v1/" in path else "page",
                        current_caller.token,
                    )
                )
            return await endpoint(request)
        except ApiError as error:
            return error_response(request, error)
        except Exception:
            log.exception("Internal error at %s %s", request.method, path)
            return error_response(request, ApiError(500, "fault", "Internal server error. See the server's log."))

    # An id may contain slashes, and escaped slashes arrive here decoded.
    full_path = path.replace("{id}", "{id:path}")
    return Route(full_path, guarded, methods=list(methods or ("GET",)), name=f"{(methods or ('GET',))[0]} {path}")


def error_response(request: Request, error: ApiError) -> Response:
    if "text/html" in request.headers.get("accept", "") and request.method in SAFE_METHODS:
        link_html, refresh_html = {404: _HOME_LINK}.get(error.status, ""), ""
        if error.status == 401:
            link_html = _SIGN_IN_LINK.format(next=sign_in_url(_requested_path(request)))
            refresh_html = _REFRESH_META if _is_cross_site_navigation(request) else ""
        page = _ERROR_PAGE.format(message=_escape_html(error.message), way=link_html, again=refresh_html)
        return HTMLResponse(page, error.status, error.headers)
    return JSONResponse(error.facts, error.status, error.headers)


_ERROR_PAGE = (
    "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    "<title>mulligan</title>{again}<link rel=stylesheet href=/docs.css>"
    "<main><h1>mulligan</h1><p>{message}</p>{way}</main>"
)
_SIGN_IN_LINK = "<p><a href={next}>Sign in with a token</a></p>"
_REFRESH_META = "<meta http-equiv=refresh content=0>"
"""Makes the browser request the page again.

Browsers withhold a strict cookie on a cross-site navigation, for example from a link in an alert. They send it when our
own page reloads.
"""
_HOME_LINK = "<p><a href=/>Go to the overview</a></p>"


def _is_cross_site_navigation(request: Request) -> bool:
    headers = request.headers
    return headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") == "navigate"


def _requested_path(request: Request) -> str:
    path, query = request.scope.get("raw_path") or b"/", request.scope.get("query_string") or b""
    return (path + b"?" + query if query else path).decode("latin-1")


def sign_in_url(target_path: str) -> str:
    """Return the URL of the sign-in page that redirects to this path afterwards."""
    target_path = safe_redirect_path(target_path)
    return f"/sign-in?next={quote(target_path, safe='/')}" if target_path != "/" else "/sign-in"


def safe_redirect_path(target_path: str) -> str:
    """Return the path if it stays on this server and is safe in a header, else `/`. This prevents open redirects."""
    is_safe_path = (
        target_path.startswith("/")
        and not target_path.startswith("//")
        and "\\" not in target_path
        and target_path.isprintable()
    )
    return quote(target_path, safe="/?&=%+:;,@!$'()*~") if is_safe_path and len(target_path) < 2000 else "/"


def _escape_html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def entry_routes(server: AccessState) -> Iterable[Route]:
    """Build the route of the one-time URL."""

    async def enter(request: Request) -> Response:
        cookie = server.browser_sessions.redeem_ticket(request.path_params["ticket"])
        if cookie is None:
            message = "This one-time URL is used or not from this server. Open the latest URL of `mulligan serve`."
            raise ApiError(403, "used", message)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(cookie_name(request), cookie, httponly=True, samesite="strict", path="/")
        return answer

    return [protected_route(server, f"{ENTRY_PATH}/{{ticket}}", enter, "nothing")]


class AccessMiddleware:
    """ASGI middleware that checks Host and Origin, adds security headers and logs requests."""

    def __init__(self, app: ASGIApp, rules: AccessRules, log_request: Callable[[str], None] | None = None) -> None:
        self._app = app
        self._rules = rules
        self._log_request = log_request
        """Receives one line per request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_time = time.perf_counter()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                endpoint_headers = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(header for header in SECURITY_HEADERS if header[0] not in endpoint_headers),
                ]
            await send(message)

        request = Request(scope)
        try:
            error = self._find_rejection(request)
            if error is not None:
                await error_response(request, error)(scope, receive, send_with_headers)
            else:
                await self._app(scope, receive, send_with_headers)
        finally:
            if self._log_request is not None:
                path = "".join(
                    character if character.isprintable() and character not in " \"'" else "?"
                    for character in scope["path"]
                )
                duration_ms = (time.perf_counter() - start_time) * 1000
                self._log_request(
                    f"request method={scope['method']} path={path[:200]} status={status} ms={duration_ms:.1f}"
                )

    def _find_rejection(self, request: Request) -> ApiError | None:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self._rules.accepts_host(hosts[0]):
            return ApiError(421, "wrong_host", "Host name not allowed. Allow it: mulligan serve --allow-host NAME")
        origin = request.headers.get("origin")
        if origin is not None and request.method not in SAFE_METHODS:
            scheme, _, authority = origin.partition("://")
            if scheme not in ("http", "https") or authority.lower() != hosts[0].lower():
                return ApiError(
                    403,
                    "foreign_origin",
                    "Cross-site request rejected. Send it from a page of this server.",
                )
        return None
