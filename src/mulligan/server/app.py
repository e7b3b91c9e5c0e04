"""Application assembly: the store, the writer, authentication and the routes of every module."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mulligan.contract import audit
from mulligan.contract.store import DEFAULT_TENANT, Batch, Store
from mulligan.core.failure import StoreError, UnsupportedOperationError, WorkerUnavailableError
from mulligan.server import access
from mulligan.server.access import AccessMiddleware, AccessRules, BrowserSessions, Caller, Rejections, RequiredRole
from mulligan.server.background import BackgroundWork, Committer, Listener, SliceWorker
from mulligan.server.bodies import (
    ApiError,
    BodyMemory,
    internal_error,
    invalid,
    store_unavailable,
    worker_unavailable,
)
from mulligan.server.limits import Quotas, RateLimiter, SignInLimiter, StreamLimiter
from mulligan.server.payloads import PayloadConverter
from mulligan.server.tenant_alerts import TenantAlerts
from mulligan.server.tenants import MEASURES, ROLE_PERMISSIONS, SignInSessions, Tokens

log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]
P = ParamSpec("P")
T = TypeVar("T")

WARNING_INTERVAL_SECONDS = 60.0
"""Minimum seconds between two log warnings about an unavailable store."""
PARTLY_STORED = "A part of this request is stored. Send all of it again: each record is stored once."


class _GuardedEndpoint:
    """Endpoint as an ASGI application, for Starlette a layer less than a function. It handles its own errors."""

    def __init__(self, answer: Endpoint) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive, send))
        await response(scope, receive, send)


class _DirectRoutes:
    """Middleware that finds endpoints by their whole path. Starlette's own search costs more than small requests do."""

    def __init__(self, app: ASGIApp, routes: Iterable[Route]) -> None:
        self._app = app
        self._endpoints = {(method, route.path): route.app for route in routes for method in route.methods or ()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get((scope.get("method"), scope.get("path")), self._app)
        await endpoint(scope, receive, send)


class Server:
    """State shared by all routes. One instance per process."""

    def __init__(
        self,
        store: Store,
        converter: PayloadConverter,
        *,
        rules: AccessRules | None = None,
        rate_limiter: RateLimiter | None = None,
        announce: Callable[[str], None] = lambda ticket: None,
        on_stored: Listener = lambda tenant, events: None,
        background_work: Sequence[BackgroundWork] = (),
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.store = store
        self.converter = converter
        self.rules = rules or AccessRules()
        self.tokens = Tokens(store)
        self.tenants = converter.tenants
        self.sessions = SignInSessions(store, self.tokens)
        self.sign_in_limiter = SignInLimiter()
        self.stream_limiter = StreamLimiter()
        self.quotas = Quotas(store)
        self.browser_sessions = BrowserSessions(announce)
        self.rejections = Rejections()
        self.body_memory = BodyMemory()
        self.committer = Committer(store, on_stored)
        self.worker = SliceWorker()
        self.background_work = background_work
        self.alert_targets: Mapping[str, str] = {}
        """Alert targets of the server's own settings, for the settings page."""
        self.alerts = TenantAlerts(store, self.tenants)
        self.on_quota_exhausted: Callable[[str, str], None] = lambda tenant, message: None
        self.rate_limiter = rate_limiter or RateLimiter()
        self.clock = clock
        self.is_stopping = False
        self.unrecognized_spans: dict[str, Counter[str]] = {}
        """OpenTelemetry spans that describe no call, since the server started: by tenant, then by scope."""
        self.error_response: Callable[[Request, ApiError], Response] = access.error_response
        """Builds the response for an error. The dashboard replaces it by one with its navigation."""
        self._warned_at = self._refreshed_at = float("-inf")
        self._refresh_lock = asyncio.Lock()
        self._reload: asyncio.Task[None] | None = None
        self._rate_report: asyncio.Task[None] | None = None
        # Reader threads. Each holds its own store connection, and more threads would only wait for each other.
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="mulligan-reader")

    def refresh(self) -> None:
        """Reload tokens, tenants and signed-out sessions from the store."""
        self.tokens.refresh()
        self.tenants.refresh()
        self.sessions.load()

    def refresh_if_possible(self) -> None:
        """Reload them, or use those of the last time while the worker of the store that has them is away.

        Meanwhile they cannot change. Otherwise requests of all tenants would fail with it.
        """
        try:
            self.refresh()
        except WorkerUnavailableError:
            if not (self.tokens.is_loaded and self.tenants.is_loaded):
                raise
            self.tokens.postpone_refresh()
            self.tenants.postpone_refresh()

    async def refresh_if_stale(self) -> None:
        """Reload tokens and tenants if they are stale. All requests that arrive meanwhile wait for one reload."""
        if self.tokens.is_stale or self.tenants.is_stale:
            if self._reload is None or self._reload.done():
                self._reload = asyncio.create_task(self.run_in_reader(self.refresh_if_possible))
            await asyncio.shield(self._reload)  # the others still need it if this client disconnects

    async def refresh_since(self, since: float) -> None:
        """Reload tokens and tenants, unless that began after this monotonic time. Requests wait for one reload."""
        async with self._refresh_lock:
            if self._refreshed_at < since:
                self._refreshed_at = time.monotonic()
                await self.run_in_reader(self.refresh)

    def route(self, path: str, endpoint: Endpoint, required_role: RequiredRole, *methods: str) -> Route:
        """Build a route that authenticates first. The endpoint reads `request.state.caller`."""

        async def answer(request: Request) -> Response:
            request.state.body_memory, request.state.alerts = self.body_memory, self.alerts
            try:
                if required_role != "nothing":
                    request.state.caller = caller = await self._find_caller(request, required_role)
                    await self.charge_quotas(caller, requests=1)
                    via: audit.Via = "api" if "/v1/" in path else "page"
                    audit.set_actor(audit.Actor(caller.name or "dashboard", via, caller.token))
                return await endpoint(request)
            except ApiError as error:
                return self.error_response(request, error)
            except Exception:
                log.exception("Internal error at %s %s", request.method, path)
                return self.error_response(request, internal_error())

        # An id may contain slashes, and escaped slashes arrive here decoded.
        full_path, used_methods = path.replace("{id}", "{id:path}"), methods or ("GET",)
        return Route(full_path, _GuardedEndpoint(answer), methods=list(used_methods), name=f"{used_methods[0]} {path}")

    async def _find_caller(self, request: Request, required_role: RequiredRole) -> Caller:
        """Authenticate the request. Tokens are cached for a second, but a new one works at once."""
        received_at = time.monotonic()
        await self.refresh_if_stale()
        try:
            return self._authorize(request, required_role)
        except ApiError as error:
            has_credentials = "authorization" in request.headers or self.sessions.cookie_name in request.cookies
            if error.status != 401 or not has_credentials:
                raise
        await self.refresh_since(received_at)
        return self._authorize(request, required_role)

    def _authorize(self, request: Request, required_role: RequiredRole) -> Caller:
        """Authenticate the request and check its role. Raise `ApiError` with the missing credential or role."""
        now = self.clock()
        cookies = request.cookies if "cookie" in request.headers else {}
        authorization = request.headers.get("authorization")
        if required_role == "ingest" and authorization is not None:
            authorization = access.convert_basic(
                authorization, needs_token=not (self.rules.is_local or self.rules.is_open)
            )
        if authorization is not None:
            caller = access.authenticate_token(authorization, self.tokens, now)
        elif cookies and (token := self.sessions.find_token(cookies.get(self.sessions.cookie_name, ""), now)):
            caller = access.caller_for_token(token)
        elif cookies and (browser_caller := self.browser_sessions.find(cookies.get(access.cookie_name(request), ""))):
            caller = browser_caller
        elif self.rules.is_open or (required_role in ("ingest", "lookup") and self.rules.is_local):
            caller = Caller()
        else:
            raise access.unauthorized(
                "No credentials. Open the URL that `mulligan serve` printed, or send a token: "
                "Authorization: Bearer TOKEN (create one: mulligan token create)."
            )
        if required_role not in ROLE_PERMISSIONS[caller.role]:
            message = f"The role {caller.role} is not sufficient. Use a token with the role {required_role}."
            raise ApiError(403, "forbidden", message)
        return caller

    async def enter(self, request: Request) -> Response:
        """Exchange the ticket of a one-time URL for a cookie."""
        cookie = self.browser_sessions.redeem_ticket(request.path_params["ticket"])
        if cookie is None:
            message = "This one-time URL is used or not from this server. Open the latest URL of `mulligan serve`."
            raise ApiError(403, "used", message)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(access.cookie_name(request), cookie, httponly=True, samesite="strict", path="/")
        return answer

    async def run_in_reader(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a blocking function on a reader thread, so that the event loop stays free.

        Store errors become `ApiError`: 400 for an unsupported operation, 503 for an unavailable store.
        """
        try:
            context = contextvars.copy_context()  # The copied context carries the audit actor to the thread.
            bound_call: Callable[[], T] = partial(context.run, partial(function, *args, **kwargs))
            return await asyncio.get_running_loop().run_in_executor(self._readers, bound_call)
        except UnsupportedOperationError as error:
            raise invalid(str(error)) from None
        except StoreError as error:
            raise self._store_unavailable(error) from None

    def _store_unavailable(self, error: StoreError) -> ApiError:
        """Build the 503 error. Only a local server returns its text, which contains the store's address and user."""
        if isinstance(error, WorkerUnavailableError):
            return worker_unavailable(error.worker if self.rules.is_local else "")
        if self.rules.is_local:
            return store_unavailable(str(error))
        now = time.monotonic()
        if now - self._warned_at > WARNING_INTERVAL_SECONDS:
            self._warned_at = now
            log.warning("%s", error)
        return store_unavailable(
            "The store is unavailable. Retry later. The operator finds the reason in the server's log."
        )

    async def store_batch(
        self, caller: Caller, build_batch: Callable[[], Batch], record_count: int, byte_count: int, weight: int = 0
    ) -> int:
        """Store a batch once rate limit and quotas allow it. Return the number of new records."""
        await self.admit(caller, record_count, byte_count)
        return await self.committer.store_batch(caller, build_batch, weight or record_count, byte_count)

    async def store_in_parts(self, caller: Caller, parts: Sequence[tuple[Callable[[], Batch], int]]) -> int:
        """Store the batches of a large body one after the other, so that other callers get their turn in between.

        Each comes with its weight. Return the number of new records.
        """
        new = 0
        for number, (build_batch, weight) in enumerate(parts):
            try:
                new += await self.committer.store_batch(caller, build_batch, weight, 0)
            except ApiError as error:
                if number:
                    error.message = f"{PARTLY_STORED} {error.message}"
                raise
        return new

    async def admit(self, caller: Caller, record_count: int, byte_count: int) -> None:
        """Check the rate limit and charge the quotas. Raise `ApiError` if one of them is exhausted."""
        self.rate_limiter.take(caller.tenant, caller.principal, record_count)
        if self.rate_limiter.is_report_due and (self._rate_report is None or self._rate_report.done()):
            self._rate_report = asyncio.create_task(
                self.run_in_reader(self.rate_limiter.report, self.store, self.clock())
            )  # the request does not wait for it
        await self.charge_quotas(caller, records=record_count, bytes=byte_count)

    async def charge_quotas(self, caller: Caller, **amounts: int) -> None:
        """Charge the amounts to the tenant's quotas. Raise `ApiError` if a quota is exhausted."""
        tenant, now = self.tenants.settings_for(caller.tenant), self.clock()
        if not tenant.quotas:
            return
        measured_amounts = {name: amounts[name] for name in MEASURES if name in amounts}
        if not self.quotas.spend_reserved(tenant, measured_amounts, now):
            try:
                await self.run_in_reader(self.quotas.reserve_and_spend, tenant, measured_amounts, now)
            except ApiError as error:
                if error.error == "quota":
                    self.on_quota_exhausted(caller.tenant, error.message)
                raise

    def find_problem(self) -> str:
        """Describe why the server is unhealthy. Empty if it is not."""
        try:
            self.store.get(DEFAULT_TENANT, "server", "ready")
        except StoreError:
            return "the store is unavailable"
        return "the store is not writable" if self.committer.has_recent_write_failure else ""

    def stop(self) -> None:
        """Stop background work. Requests in progress are still answered."""
        self.is_stopping = True
        for work in self.background_work:
            work.stop()

    def close(self) -> None:
        self.stop()
        self.worker.close()
        self.committer.close()
        try:
            self.quotas.close()
        except StoreError as error:
            log.warning("Unspent quota reserves were not returned: %s", error)
        self._readers.shutdown()
        for work in self.background_work:
            work.close()
        self.store.close()


RouteGroup = Callable[[Server], Iterable[BaseRoute]]
"""Function that builds related routes: ingest, queries, dashboard pages."""


def allowed_methods(request: Request) -> list[str]:
    """Return the methods of all routes that match the request's path. Several routes can share one path."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in routes for method in getattr(route, "methods", None) or ()})


def build_app(
    server: Server, groups: Sequence[RouteGroup], log_request: Callable[[str], None] | None = None
) -> Starlette:
    """Build the Starlette application from groups of routes. `log_request` receives one line per request."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        yield
        server.close()

    async def handle_http_error(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 405:
            headers = {"Allow": ", ".join(allowed_methods(request))}
            api_error = ApiError(405, "wrong_method", f"Method {request.method} not allowed.", headers=headers)
        else:
            api_error = ApiError(status, "not_found", "Page not found. See /docs for the API.")
        return server.error_response(request, api_error)

    async def handle_internal_error(request: Request, error: Exception) -> Response:
        return access.error_response(request, internal_error())

    entry_route = server.route(f"{access.ENTRY_PATH}/{{ticket}}", server.enter, "nothing")
    routes = [*(route for group in groups for route in group(server)), entry_route]
    # Those of agents come first. A later one could have the path of an earlier one with parameters.
    direct_routes = itertools.takewhile(lambda route: isinstance(route, Route) and not route.param_convertors, routes)
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(
                AccessMiddleware,
                rules=server.rules,
                log_request=log_request,
                is_stopping=lambda: server.is_stopping,
                rejections=server.rejections,
            ),
            Middleware(_DirectRoutes, routes=list(direct_routes)),
        ],
        exception_handlers={HTTPException: handle_http_error, Exception: handle_internal_error},
        lifespan=lifespan,
    )
