"""Access control: Host and Origin checks, tokens and cookies, and security headers on every response."""

from __future__ import annotations

import base64
import functools
import ipaddress
import logging
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from html import escape
from typing import Literal, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.server.bodies import ApiError
from mulligan.server.tenants import SECRET_PREFIX, Token, Tokens

log = logging.getLogger(__name__)

RequiredRole = Literal["nothing", "lookup", "ingest", "read", "admin"]
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"cross-origin-opener-policy", b"same-origin"),
)
"""Added to every response. Headers that an endpoint sets itself take precedence. Over plain HTTP beyond loopback the
last one is left out: browsers ignore it there, with a warning."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
ENTRY_PATH = "/enter"
REJECTION_REASONS = {
    401: "401 no valid token", 403: "403 role or origin not sufficient", 421: "421 host name not allowed",
    429: "429 too many requests",
}  # fmt: skip
"""Statuses of requests that an operator wants to know about."""
TLS_REASON = "TLS on the plain HTTP port"


class Caller(NamedTuple):
    """Authenticated caller. Tenant and principal come from the credential, never from the request's content."""

    tenant: str = DEFAULT_TENANT
    principal: str = ""
    role: str = "admin"
    token: str = ""
    """Id of the token that was sent or that the cookie refers to."""
    name: str = ""


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
        name, is_loopback = _parse_host(host_header)
        if is_loopback is None:
            return name.rstrip(".").lower() in self.hosts
        return is_loopback or not self.is_local


@functools.lru_cache(maxsize=1000)
def _parse_host(host_header: str) -> tuple[str, bool | None]:
    """Return the name in a Host header, and for an IP address whether it is loopback. Cached: few names are sent."""
    name = host_header
    if host_header.startswith("["):
        name = host_header[1:].partition("]")[0]
    elif host_header.count(":") == 1:
        name = host_header.rpartition(":")[0]
    try:
        return name, ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name, None


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
        cookie = secrets.token_urlsafe(32)
        self._callers[cookie] = Caller(role="admin")
        return cookie

    def find(self, cookie: str) -> Caller | None:
        return self._callers.get(cookie)

    def end_session(self, cookie: str) -> None:
        self._callers.pop(cookie, None)


def _is_trustworthy(request: Request) -> bool:
    """Return whether a browser trusts the connection: TLS, here or at a reverse proxy, or loopback."""
    if "https" in (request.scope.get("scheme"), request.headers.get("x-forwarded-proto")):
        return True
    name, is_loopback_address = _parse_host(request.headers.get("host", ""))
    return bool(is_loopback_address) or name.lower() == "localhost"


def _printable(text: str) -> str:
    """Return a text of a client for a log line: one word of bounded length."""
    return "".join(letter if letter.isprintable() and letter not in " \"'" else "?" for letter in text[:200])


def cookie_name(request: Request) -> str:
    """Return the cookie name for this port. Browsers separate cookies by host but not by port."""
    return f"mulligan_{(request.scope.get('server') or ('', 0))[1]}"


def convert_basic(authorization: str, needs_token: bool) -> str | None:
    """Convert the credentials of Langfuse's SDK, which sends its secret key as the password of `Basic`.

    Return them as `Bearer`. A server that needs no token to send records ignores keys that are not its own.
    """
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        secret = base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:  # not base64, or not UTF-8
        secret = ""
    return f"Bearer {secret}" if needs_token or secret.startswith(SECRET_PREFIX) else None


def authenticate_token(authorization: str, tokens: Tokens, now: int) -> Caller:
    """Return the caller of an Authorization header. Raise `ApiError` unless its token is active."""
    scheme, _, secret = authorization.partition(" ")
    token = tokens.find_by_secret(secret.strip()) if scheme.lower() == "bearer" else None
    if token is None:
        raise unauthorized("Unknown token. Send it as: Authorization: Bearer TOKEN")
    state = token.state(now)
    if state != "active":
        raise unauthorized(f"This token is {state}. Create a new one: mulligan token create")
    return caller_for_token(token)


def caller_for_token(token: Token) -> Caller:
    return Caller(token.tenant, token.writer, token.role, token.id, token.principal or token.name or token.id)


def unauthorized(message: str) -> ApiError:
    return ApiError(401, "unauthorized", message, headers={"WWW-Authenticate": 'Bearer realm="mulligan"'})


def accepts_page(request: Request) -> bool:
    """Return whether a browser asks for a page."""
    return "text/html" in request.headers.get("accept", "") and request.method in SAFE_METHODS


def error_response(request: Request, error: ApiError) -> Response:
    """Build the response for an error: a page for browsers, else JSON."""
    if not accepts_page(request):
        return JSONResponse(error.facts, error.status, error.headers)
    link_html = "<p><a href=/>Go to the overview</a></p>" if error.status == 404 else ""
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        "<title>mulligan</title><link rel=stylesheet href=/docs.css>"
        f"<main><h1>mulligan</h1><p>{escape(error.message, quote=False)}</p>{link_html}</main>"
    )
    return HTMLResponse(page, error.status, error.headers)


def requested_path(request: Request) -> str:
    """Return the path and the query of a request, as they were sent."""
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


class Rejections:
    """Requests that this process rejected since it started, by reason, and log lines about them.

    An address gets one line per reason at once and at most one a minute after that, with the count of what it sent.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        self._monotonic = monotonic
        self._addresses: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        """When a line was logged last, and the requests since then."""

    def add(self, reason: str, address: str, request: str = "") -> None:
        self.counts[reason] += 1
        logged_at, count = self._addresses.pop((address, reason), (float("-inf"), 0))
        count += 1
        if (now := self._monotonic()) - logged_at >= 60.0:
            number = "request" if count == 1 else f"{count:,} requests"
            log.warning("Rejected %s from %s: %s%s", number, address, reason, f" ({request})" if request else "")
            logged_at, count = now, 0
        self._addresses[address, reason] = logged_at, count
        while len(self._addresses) > 1000:  # addresses and reasons for which the last log line is remembered
            self._addresses.popitem(last=False)


class AccessMiddleware:
    """ASGI middleware that checks Host and Origin, adds headers for security and shutdown, logs requests and counts
    rejected ones.
    """

    def __init__(
        self,
        app: ASGIApp,
        rules: AccessRules,
        log_request: Callable[[str], None] | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        rejections: Rejections | None = None,
    ) -> None:
        self._app, self._rules, self._log_request, self._is_stopping = app, rules, log_request, is_stopping
        self._rejections = rejections or Rejections()

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
                    *(header for header in security_headers if header[0] not in endpoint_headers),
                ]
                if self._is_stopping():  # The client's next request goes to another server.
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        request = Request(scope)
        security_headers = SECURITY_HEADERS if _is_trustworthy(request) else SECURITY_HEADERS[:-1]
        try:
            error = self._find_rejection(request)
            if error is not None:
                await error_response(request, error)(scope, receive, send_with_headers)
            else:
                await self._app(scope, receive, send_with_headers)
        finally:
            if self._log_request is not None or status in REJECTION_REASONS:
                self._report(scope, status, time.perf_counter() - start_time)

    def _report(self, scope: Scope, status: int, seconds: float) -> None:
        path = _printable(scope["path"])
        address = _printable((scope.get("client") or ("unknown",))[0])
        request = Request(scope)
        # A person who opens a page without a cookie gets the form to sign in.
        is_signed_out = status == 401 and accepts_page(request) and "authorization" not in request.headers
        if (reason := REJECTION_REASONS.get(status)) and not is_signed_out:
            self._rejections.add(reason, address, f"{scope['method']} {path}")
        if self._log_request is not None:
            caller: Caller | None = scope.get("state", {}).get("caller")
            token = f" token={_printable(caller.name)}" if caller is not None and caller.token else ""
            self._log_request(
                f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} request method={scope['method']} path={path} "
                f"status={status} ms={seconds * 1000:.1f} client={address}{token}"
            )

    def _find_rejection(self, request: Request) -> ApiError | None:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self._rules.accepts_host(hosts[0]):
            return ApiError(421, "wrong_host", "Host name not allowed. Allow it: mulligan serve --allow-host NAME")
        origin = request.headers.get("origin")
        if origin is not None and request.method not in SAFE_METHODS:
            scheme, _, authority = origin.partition("://")
            if scheme not in ("http", "https") or authority.lower() != hosts[0].lower():
                message = "Cross-site request rejected. Send it from a page of this server."
                return ApiError(403, "foreign_origin", message)
        return None
