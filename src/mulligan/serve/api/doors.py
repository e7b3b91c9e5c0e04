"""Access control: Host and Origin checks, tokens and cookies, and security headers on every response."""

from __future__ import annotations

import ipaddress
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mulligan.remember import audit
from mulligan.remember.store import LOCAL
from mulligan.serve.api.errors import Refused
from mulligan.serve.api.tokens import MAY, Token, Tokens

if TYPE_CHECKING:
    from mulligan.serve.api.app import Server

log = logging.getLogger("mulligan")

Needs = Literal["nothing", "ingest", "read", "admin"]
Endpoint = Callable[[Request], Awaitable[Response]]
HEADERS = (
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
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
ENTRY = "/enter"


class Caller(NamedTuple):
    """Authenticated caller. Tenant and principal come from the credential, never from the request's content."""

    tenant: str = LOCAL
    principal: str = ""
    role: str = "admin"
    token: str = ""
    """Id of the token that was sent or that the cookie refers to."""
    name: str = ""
    """Display name of the caller."""


class Rules(NamedTuple):
    """Access policy of this server."""

    hosts: frozenset[str] = frozenset({"localhost"})
    """Host names that the server accepts. IP addresses are checked separately."""
    is_local: bool = True
    """Whether the server listens only on loopback. Ingest then needs no token."""
    is_open: bool = False
    """Whether authentication is off (`--no-auth`)."""

    def knows_host(self, given: str) -> bool:
        """Return whether a Host header addresses this server. Rejecting other names prevents DNS rebinding."""
        name = host_name(given)
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name.rstrip(".").lower() in self.hosts
        return address.is_loopback or not self.is_local


def host_name(given: str) -> str:
    """Return the host name of a Host header, without port and brackets."""
    if given.startswith("["):
        return given[1:].partition("]")[0]
    return given.rpartition(":")[0] if given.count(":") == 1 else given


class Browsers:
    """Browsers that entered by a one-time URL. Their cookies are valid until the server stops."""

    def __init__(self, announce: Callable[[str], None] = lambda ticket: None) -> None:
        self._known: dict[str, Caller] = {}
        self._announce = announce
        self.ticket = secrets.token_urlsafe(24)

    def admit(self, ticket: str) -> str | None:
        """Exchange a ticket for a cookie and issue a new ticket. Return `None` if the ticket is invalid."""
        if not secrets.compare_digest(ticket.encode(), self.ticket.encode()):
            return None
        self.ticket = secrets.token_urlsafe(24)
        self._announce(self.ticket)
        return self.remember(Caller(role="admin"))

    def remember(self, caller: Caller) -> str:
        cookie = secrets.token_urlsafe(32)
        self._known[cookie] = caller
        return cookie

    def find(self, cookie: str) -> Caller | None:
        return self._known.get(cookie)

    def forget(self, cookie: str) -> None:
        self._known.pop(cookie, None)


def cookie_name(request: Request) -> str:
    """Return the cookie name for this port. Browsers separate cookies by host but not by port."""
    return f"mulligan_{(request.scope.get('server') or ('', 0))[1]}"


def caller(request: Request, needs: Needs, server: Server) -> Caller:
    """Authenticate the request and check its role. Raise `ApiError` with the missing credential or role."""
    rules, now = server.rules, server.clock()
    given = request.headers.get("authorization")
    if given is not None:
        found = _by_token(given, server.tokens, now)
    elif (cookie := request.cookies.get(server.sessions.name)) and (token := server.sessions.find(cookie, now)):
        found = _holding(token)
    elif (cookie := request.cookies.get(cookie_name(request))) and (known := server.browsers.find(cookie)):
        found = known
    elif rules.is_open or (needs == "ingest" and rules.is_local):
        found = Caller()
    else:
        raise _unauthorised(
            "open the address that `mulligan serve` printed, or send a token: Authorization: Bearer TOKEN "
            "(mulligan token create)."
        )
    if needs not in MAY[found.role]:
        raise Refused(403, "forbidden", f"this needs the role {needs}, and yours is {found.role}.")
    return found


def _by_token(given: str, tokens: Tokens, now: int) -> Caller:
    scheme, _, secret = given.partition(" ")
    token = tokens.find(secret.strip()) if scheme.lower() == "bearer" else None
    if token is None:
        raise _unauthorised("there is no such token. Send it as: Authorization: Bearer TOKEN")
    state = token.state(now)
    if state != "active":
        raise _unauthorised(f"this token is {state}. Make another: mulligan token create")
    return _holding(token)


def _holding(token: Token) -> Caller:
    return Caller(token.tenant, token.writer, token.role, token.id, token.principal or token.name or token.id)


def _unauthorised(message: str) -> Refused:
    return Refused(401, "unauthorised", message, headers={"WWW-Authenticate": 'Bearer realm="mulligan"'})


def route(server: Server, path: str, endpoint: Endpoint, needs: Needs, *methods: str) -> Route:
    """Build a route that authenticates first. The endpoint reads `request.state.caller`."""

    async def guarded(request: Request) -> Response:
        try:
            if needs != "nothing":
                if server.is_stale:
                    await server.ask(server.refresh)
                request.state.caller = who = caller(request, needs, server)
                await server.spend(who, requests=1)
                audit.act_as(audit.Actor(who.name or "the dashboard", "api" if "/v1/" in path else "page", who.token))
            return await endpoint(request)
        except Refused as refused:
            return told(request, refused)
        except Exception:
            log.exception("a fault at %s %s", request.method, path)
            return told(request, Refused(500, "fault", "a fault of the server; its log says more."))

    # An id may contain slashes, and escaped slashes arrive here decoded.
    whole = path.replace("{id}", "{id:path}")
    return Route(whole, guarded, methods=list(methods or ("GET",)), name=f"{(methods or ('GET',))[0]} {path}")


def told(request: Request, refused: Refused) -> Response:
    if "text/html" in request.headers.get("accept", "") and request.method in SAFE:
        way, again = {404: _HOME}.get(refused.status, ""), ""
        if refused.status == 401:
            way = _WAY.format(next=signing_in(_wanted(request)))
            again = _AGAIN if _is_from_a_link(request) else ""
        page = _PAGE.format(message=_escaped(refused.message), way=way, again=again)
        return HTMLResponse(page, refused.status, refused.headers)
    return JSONResponse(refused.facts, refused.status, refused.headers)


_PAGE = (
    "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    "<title>mulligan</title>{again}<link rel=stylesheet href=/docs.css>"
    "<main><h1>mulligan</h1><p>{message}</p>{way}</main>"
)
_WAY = "<p><a href={next}>Sign in with a token</a></p>"
_AGAIN = "<meta http-equiv=refresh content=0>"
"""Makes the browser request the page again.

Browsers withhold a strict cookie on a cross-site navigation, for example from a link in an alert. They send it when our
own page reloads.
"""
_HOME = "<p><a href=/>To the overview</a></p>"


def _is_from_a_link(request: Request) -> bool:
    said = request.headers
    return said.get("sec-fetch-site") == "cross-site" and said.get("sec-fetch-mode") == "navigate"


def _wanted(request: Request) -> str:
    path, query = request.scope.get("raw_path") or b"/", request.scope.get("query_string") or b""
    return (path + b"?" + query if query else path).decode("latin-1")


def signing_in(wanted: str) -> str:
    """Return the URL of the sign-in page that redirects to this path afterwards."""
    wanted = own_place(wanted)
    return f"/sign-in?next={quote(wanted, safe='/')}" if wanted != "/" else "/sign-in"


def own_place(given: str) -> str:
    """Return the path if it stays on this server and is safe in a header, else `/`. This prevents open redirects."""
    is_ours = given.startswith("/") and not given.startswith("//") and "\\" not in given and given.isprintable()
    return quote(given, safe="/?&=%+:;,@!$'()*~") if is_ours and len(given) < 2000 else "/"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def entry(server: Server) -> Iterable[Route]:
    """Build the route of the one-time URL."""

    async def enter(request: Request) -> Response:
        cookie = server.browsers.admit(request.path_params["ticket"])
        if cookie is None:
            told = "this address was used before, or is another server's. `mulligan serve` has printed a new one."
            raise Refused(403, "used", told)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(cookie_name(request), cookie, httponly=True, samesite="strict", path="/")
        return answer

    return [route(server, f"{ENTRY}/{{ticket}}", enter, "nothing")]


class Doors:
    """ASGI middleware that checks Host and Origin, adds security headers and logs requests."""

    def __init__(self, app: ASGIApp, rules: Rules, says: Callable[[str], None] | None = None) -> None:
        self._app = app
        self._rules = rules
        self._says = says
        """Receives one line per request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(each for each in HEADERS if each[0] not in own)]
            await send(message)

        request = Request(scope)
        try:
            refused = self._refusal(request)
            if refused is not None:
                await told(request, refused)(scope, receive, answer)
            else:
                await self._app(scope, receive, answer)
        finally:
            if self._says is not None:
                path = "".join(each if each.isprintable() and each not in " \"'" else "?" for each in scope["path"])
                took = (time.perf_counter() - begun) * 1000
                self._says(f"request method={scope['method']} path={path[:200]} status={status} ms={took:.1f}")

    def _refusal(self, request: Request) -> Refused | None:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self._rules.knows_host(hosts[0]):
            return Refused(
                421, "wrong_host", "this server does not go by that name. Name it: mulligan serve --allow-host NAME"
            )
        origin = request.headers.get("origin")
        if origin is not None and request.method not in SAFE:
            scheme, _, place = origin.partition("://")
            if scheme not in ("http", "https") or place.lower() != hosts[0].lower():
                return Refused(403, "foreign_origin", "a page of another site may not write here.")
        return None
