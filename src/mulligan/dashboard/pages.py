"""Dashboard routes: parse the URL, query the store on a thread, render a template."""

from __future__ import annotations

import gzip
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jinja2
from markupsafe import escape
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from mulligan.contract.counters import By
from mulligan.contract.run_facts import RUN_FACTS
from mulligan.contract.store import DEFAULT_TENANT, Store
from mulligan.core.failure import SettingsError
from mulligan.dashboard import alert_pages, charts, formatting, memory_pages, overview_pages, run_pages, tool_pages
from mulligan.dashboard.page_query import RANGES, PageQuery
from mulligan.report import conversation_text
from mulligan.report.resources import STATS_SPEC
from mulligan.server.access import (
    accepts_page,
    cookie_name,
    error_response,
    requested_path,
    safe_redirect_path,
    sign_in_url,
)
from mulligan.server.app import Endpoint, Server
from mulligan.server.bodies import ApiError, read_form
from mulligan.server.tenants import COOKIE_HOURS, ROLE_PERMISSIONS

View = Callable[[Store, str, PageQuery], dict[str, Any]]
DetailView = Callable[[Store, str, PageQuery, str], dict[str, Any] | None]
DecisionFunction = Callable[[Store, str, int, str, dict[str, str]], Any]
"""Applies a form to the item with this name. The result is falsy if the item does not exist."""
ERROR_TITLES = {403: "Not allowed", 404: "Not found", 429: "Too many requests", 503: "Store unavailable"}
FOLDER = Path(__file__).parent / "static"
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
MIN_COMPRESSED_BYTES = 600
"""Smaller responses do not gain from compression."""
NAV_GROUPS = (
    (("/", "Overview", "o"), ("/patterns", "Patterns", "p"), ("/runs", "Runs", "r"), ("/compare", "Compare", "c")),
    (("/tools", "Tools", "t"), ("/agents", "Agents", "a"), ("/models", "Models", "m")),
    (("/sessions", "Sessions", "s"), ("/learned", "Learned", "e"), ("/live", "Live", "l")),
)
NAV_MENU = (
    ("/impact", "Impact", "i"),
    ("/health", "Health", "h"), ("/alerts", "Alerts", "n"), ("/audit", "Audit", "u"), ("/settings", "Settings", ","),
)  # fmt: skip
ADMIN_PAGES = ("/alerts", "/audit", "/settings")
SECTIONS = {"lessons": "/learned", "fixes": "/learned"}
"""Entries of the navigation for pages whose path does not name them."""


def build_routes(server: Server) -> Iterable[BaseRoute]:
    """Build the dashboard routes for `mulligan.server.app.build_app`."""
    return list(Dashboard(server).routes())


class Asset(NamedTuple):
    """Static file, compressed once."""

    type: str
    content: bytes
    gzipped: bytes
    digest: str


def load_assets() -> dict[str, Asset]:
    contents = {path: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES}
    return {
        path.name: Asset(
            TYPES[path.suffix], data, gzip.compress(data, 9, mtime=0), hashlib.sha256(data).hexdigest()[:12]
        )
        for path, data in contents.items()
    }


class Dashboard:
    """Pages of one server. The template engine sanitizes every value that is not `Markup`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        server.error_response = self._error_response
        self._assets = load_assets()
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(charts.TEMPLATES),
            autoescape=True,
            finalize=formatting.untrusted,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals |= {
            "nav_groups": NAV_GROUPS,
            "nav_menu": NAV_MENU,
            "admin_pages": ADMIN_PAGES,
            "sections": SECTIONS,
            "ranges": RANGES,
            "asset": lambda name: f"/static/{name}?v={self._assets[name].digest}",
            **{name: getattr(formatting, name) for name in (
                "text", "line", "data", "brief", "number", "count", "percent", "seconds", "dollars", "ago", "size",
                "date", "format_confidence", "format_fact", "format_timestamp", "detail_path", "stack_trace",
            )},
            "run_facts": tuple(RUN_FACTS.values()),
            "describe_part": conversation_text.describe_part,
        }  # fmt: skip

    def routes(self) -> Iterable[BaseRoute]:
        """Yield all routes.

        Reading requires the role `read`, decisions `admin`; static files and sign-in are public.
        """
        route = self._server.route
        sections: dict[str, tuple[View, str, DetailView]] = {
            "runs": (run_pages.runs, "run", run_pages.run),
            "patterns": (memory_pages.patterns, "pattern", memory_pages.pattern),
            "tools": (tool_pages.tools, "tool", tool_pages.tool),
            "agents": (tool_pages.agents, "agent", tool_pages.agent),
            "models": (tool_pages.models, "model", tool_pages.model),
            "sessions": (run_pages.sessions, "session", run_pages.session),
        }
        learned: dict[str, tuple[DetailView, DecisionFunction]] = {
            "lesson": (memory_pages.lesson, memory_pages.decide_lesson),
            "fix": (memory_pages.fix, memory_pages.decide_fix),
        }
        pages: dict[str, View] = {
            "learned": memory_pages.learned,
            "compare": overview_pages.compare,
            "impact": overview_pages.impact,
            "search": overview_pages.search,
            "live": lambda store, tenant, page_query: {},
            "choices": choices,
            "health": self._health,
        }
        yield route("/", self._page("overview", overview_pages.overview), "read")
        yield route("/audit", self._page("audit", overview_pages.audit), "admin")
        yield route("/settings", self._show_settings, "admin")
        yield route("/alerts", self._show_alerts, "admin")
        yield route("/alerts", self._change_alerts, "admin", "POST")
        yield route("/live/events", self._live, "read")
        for name, view in pages.items():
            yield route(f"/{name}", self._page(name, view), "read")
        for section, (view, detail_template, detail_view) in sections.items():
            page = self._page(section, view, detail_template, detail_view)
            yield route(f"/{section}", page, "read")
            yield route(f"/{section}/{{name:path}}", page, "read")
        yield route("/search", self._decide(overview_pages.save_search, "search"), "admin", "POST")
        yield route("/patterns", self._decide(memory_pages.apply_to_chosen, "patterns"), "admin", "POST")
        yield route("/patterns/{name}", self._decide(memory_pages.apply_command, "patterns"), "admin", "POST")
        for template, (detail_view, change) in learned.items():
            section = {"lesson": "lessons", "fix": "fixes"}[template]
            page = self._page("learned", memory_pages.learned, template, detail_view)
            yield route(f"/{section}/{{name:path}}", page, "read")
            yield route(f"/{section}/{{name}}", self._decide(change, section), "admin", "POST")
        yield route("/static/{name}", self._asset, "nothing")
        yield route("/favicon.ico", self._icon, "nothing")
        yield route("/sign-in", self._show_sign_in, "nothing")
        yield route("/sign-in", self._sign_in, "nothing", "POST")
        yield route("/sign-out", self._sign_out, "nothing", "POST")

    # Pages

    def _page(self, template: str, view: View, detail_template: str = "", detail: DetailView | None = None) -> Endpoint:
        """Build a page. A name selects a detail page: in the path, or as a parameter if it is not safe in a path."""

        async def page(request: Request) -> Response:
            name = request.path_params.get("name", request.query_params.get("name"))
            if detail is None or name is None:
                return await self._server.run_in_reader(self._render_page, request, template, view)
            detail_view = partial(_find_detail, detail, detail_template, name)
            return await self._server.run_in_reader(self._render_page, request, detail_template, detail_view)

        return page

    def _render_page(self, request: Request, template: str, view: View) -> Response:
        """Query the store and render the template. Runs on a reader thread."""
        server, caller = self._server, request.state.caller
        try:
            parameters = dict(request.query_params)
            if "columns" in parameters:  # a form sends a parameter for each box
                parameters["columns"] = ",".join(request.query_params.getlist("columns"))
            page_query = PageQuery.parse(request.url.path, parameters, server.clock())
            context = view(server.store, caller.tenant, page_query)
        except SettingsError as error:
            return self._render_error(request, "Invalid request", str(error), 400)
        except _NotFoundError as error:
            return self._render_error(request, "Not found", str(error), 404)
        needs_token = not server.rules.is_local or caller.tenant != DEFAULT_TENANT
        home = escape(f"{request.url.scheme}://{request.url.netloc}")
        page_context = {
            **context,
            "home": home,
            "needs_token": needs_token,
            "who": caller,
            "unrecognized_spans": sorted(
                server.unrecognized_spans.get(caller.tenant, {}).items(), key=lambda item: (-item[1], item[0])
            ),
        }
        return self._render(request, template, page_query, page_context)

    def _health(self, store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
        page = overview_pages.health(store, tenant, self._server.tenants.settings_for(tenant).retention)
        # Rejected requests belong to no tenant, so only the operator sees them.
        return page | {"rejections": self._server.rejections.counts.most_common() if page["is_own"] else []}

    async def _show_settings(self, request: Request) -> Response:
        # The operator opened the printed address. A token sees its own tenant only, also that of the tenant `local`.
        view = partial(self._settings, is_operator=not request.state.caller.token)
        return await self._server.run_in_reader(self._render_page, request, "settings", view)

    def _settings(self, store: Store, tenant: str, page_query: PageQuery, *, is_operator: bool) -> dict[str, Any]:
        server = self._server
        page = overview_pages.settings(
            server.tenants, server.tokens, server.alert_targets, tenant, page_query.now, is_operator=is_operator
        )
        for row in page["tenants"]:
            name = row["tenant"].name
            row["alerts"] = [target.label for target in server.alerts.find_targets(name)] or row["alerts"]
        return page

    async def _show_alerts(self, request: Request) -> Response:
        view = partial(alert_pages.alerts, self._server.alerts)
        return await self._server.run_in_reader(self._render_page, request, "alerts", view)

    async def _change_alerts(self, request: Request) -> Response:
        caller = request.state.caller
        # Without a token it is the person who opened the printed address, or anybody if access is open to all.
        is_operator = not caller.token and not self._server.rules.is_open
        change = partial(alert_pages.apply_form, self._server.alerts, caller, is_operator)
        return await self._decide(change, "alerts")(request)

    def _error_response(self, request: Request, error: ApiError) -> Response:
        """Build the response for an error: for browsers a page with the navigation, if they are signed in."""
        if not accepts_page(request):
            return error_response(request, error)
        if error.status == 401:
            message = error.message if "authorization" in request.headers else ""
            response = self._render_sign_in(request, message, 401, requested_path(request))
            response.headers.update(error.headers or {})
            return response
        response = self._render_error(request, ERROR_TITLES.get(error.status, "Error"), error.message, error.status)
        response.headers.update(error.headers or {})
        return response

    def _render_error(self, request: Request, title: str, message: str, status: int) -> Response:
        empty_query = PageQuery.parse(request.url.path, {}, self._server.clock())
        caller = getattr(request.state, "caller", None)
        context = {"title": title, "message": message, "who": caller}
        return self._render(request, "refused", empty_query, context, status)

    def _render(
        self, request: Request, page: str, page_query: PageQuery, context: Mapping[str, Any], status: int = 200
    ) -> Response:
        template = self._environment.get_template(f"{page}.html")
        text = template.render({"who": None, **context, "query": page_query, "page": page})
        body = text.encode("utf-8", "replace")
        # Not no-referrer: browsers would send our forms with the origin "null", which is rejected.
        headers = {"Vary": "Accept-Encoding", "Cache-Control": "no-store", "Referrer-Policy": "same-origin"}
        if len(body) >= MIN_COMPRESSED_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
            body = gzip.compress(body, 4, mtime=0)
            headers["Content-Encoding"] = "gzip"
        return Response(body, status, headers, "text/html; charset=utf-8")

    # Decisions

    def _decide(self, change: DecisionFunction, section: str) -> Endpoint:
        async def decide(request: Request) -> Response:
            server, tenant, name = self._server, request.state.caller.tenant, request.path_params.get("name", "")
            form = await read_form(request)
            try:
                result = await server.run_in_reader(change, server.store, tenant, server.clock(), name, form)
            except SettingsError as error:
                return self._render_error(request, "Invalid decision", str(error), 400)
            if not result:
                return self._render_error(request, "Not found", "It no longer exists. Reload the list.", 404)
            target, query = formatting.detail_path(section, name) if name else f"/{section}", request.url.query
            return RedirectResponse(f"{target}?{query}" if query and "?" not in target else target, 303)

        return decide

    # Sign-in, for people who cannot open the one-time URL that the server prints

    def _render_sign_in(self, request: Request, message: str, status: int, target_path: str = "") -> Response:
        action = sign_in_url(target_path or request.query_params.get("next", "/"))
        headers = request.headers
        # Browsers withhold a strict cookie on a cross-site navigation, for example from a link in an alert. They send
        # it when our own page reloads.
        is_from_elsewhere = (
            headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") == "navigate"
        )
        context = {
            "message": message, "hours": COOKIE_HOURS, "action": action, "is_local": self._server.rules.is_local,
            "reloads": bool(target_path) and is_from_elsewhere,
        }  # fmt: skip
        page_query = PageQuery.parse("/sign-in", {}, self._server.clock())
        return self._render(request, "sign_in", page_query, context, status)

    async def _show_sign_in(self, request: Request) -> Response:
        return self._render_sign_in(request, "", 200)

    async def _sign_in(self, request: Request) -> Response:
        """Exchange a valid token for a cookie. Cross-site requests are rejected to prevent login CSRF."""
        server = self._server
        _require_same_origin(request)
        secret = (await read_form(request)).get("token", "").strip()
        received_at, now = time.monotonic(), server.clock()
        await server.refresh_if_stale()
        token = server.tokens.find_by_secret(secret)
        if token is None:  # It may be new: created a moment ago, or by another process.
            await server.refresh_since(received_at)
            token = server.tokens.find_by_secret(secret)
        if token is None or token.state(now) != "active":
            try:
                # The address of the client, also behind a proxy: the server trusts only the proxies it was told.
                server.sign_in_limiter.record_failure(request.client.host if request.client else "")
            except ApiError as error:
                refusal = self._render_sign_in(request, error.message, error.status)
                refusal.headers.update(error.headers)
                return refusal
            message = "Unknown, expired or revoked token. Ask the server's operator for a new one."
            return self._render_sign_in(request, message, 401)
        if "read" not in ROLE_PERMISSIONS[token.role]:
            message = f"This token has the role {token.role}. The dashboard needs the role read or admin."
            return self._render_sign_in(request, message, 403)
        answer = RedirectResponse(safe_redirect_path(request.query_params.get("next", "/")), 303)
        # TLS ends at this server or at a reverse proxy.
        is_secure = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", ""))
        answer.set_cookie(
            server.sessions.cookie_name, server.sessions.create_cookie(token, now), max_age=COOKIE_HOURS * 3600,
            path="/", httponly=True, samesite="strict", secure=is_secure,
        )  # fmt: skip
        return answer

    async def _sign_out(self, request: Request) -> Response:
        """Invalidate the cookie on the server and delete it from the browser. A copy of it stops working too."""
        _require_same_origin(request)
        server = self._server
        answer: Response = RedirectResponse("/sign-in", 303)
        server.browser_sessions.end_session(request.cookies.get(cookie_name(request), ""))
        try:
            await server.refresh_since(time.monotonic())  # The cookie's token may be from another process.
            if cookie := request.cookies.get(server.sessions.cookie_name):
                await server.run_in_reader(server.sessions.sign_out, cookie, server.clock())
        except ApiError as error:  # Report the unavailable store, and delete the browser's cookie anyway.
            answer = error_response(request, error)
        for name in (server.sessions.cookie_name, cookie_name(request)):
            answer.delete_cookie(name, path="/", httponly=True, samesite="strict")
        return answer

    # Streams and static files

    async def _live(self, request: Request) -> Response:
        try:
            page_query = PageQuery.parse("/live", dict(request.query_params), self._server.clock())
        except SettingsError as error:
            return Response(str(error), 400, media_type="text/plain")
        caller = request.state.caller
        tail_reader = overview_pages.build_tail_reader(caller.tenant, page_query)
        stream = overview_pages.stream_events(
            lambda: self._server.run_in_reader(tail_reader.poll, self._server.store), lambda: self._server.is_stopping
        )
        stream_owner = (caller.tenant, caller.token)
        self._server.stream_limiter.open(stream_owner)
        on_end = partial(self._server.stream_limiter.close, stream_owner)
        return _LiveEventsResponse(stream, on_end)

    async def _icon(self, request: Request) -> Response:
        """Serve the icon to pages that name none."""
        icon = self._assets["icon.svg"]
        return Response(icon.content, 200, {"Cache-Control": "public, max-age=86400"}, icon.type)

    async def _asset(self, request: Request) -> Response:
        asset = self._assets.get(request.path_params["name"])
        if asset is None:
            return Response("File not found.", 404, media_type="text/plain")
        headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(asset.content, 200, headers, asset.type)
        return Response(asset.gzipped, 200, headers | {"Content-Encoding": "gzip"}, asset.type)


def _require_same_origin(request: Request) -> None:
    """Raise `ApiError` unless the request comes from a page of this server, as the browser's headers show."""
    if request.headers.get("origin") is None and request.headers.get("sec-fetch-site") != "same-origin":
        message = (
            "Cross-site sign-in rejected. Use the form on this page, or send a token: Authorization: Bearer TOKEN."
        )
        raise ApiError(403, "foreign_origin", message)


class _LiveEventsResponse(StreamingResponse):
    """Stream of server-sent events, with a function to call when it ends, however it ends."""

    def __init__(self, stream: AsyncIterator[bytes | str], on_end: Callable[[], None]) -> None:
        # Without the second header, nginx would collect events before it sends them.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(stream, 200, headers, "text/event-stream")
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


class _NotFoundError(Exception):
    """No item with the requested name."""


def _find_detail(
    detail: DetailView, item_type: str, name: str, store: Store, tenant: str, page_query: PageQuery
) -> dict[str, Any]:
    context = detail(store, tenant, page_query, name)
    if context is None:
        shown_name = formatting.plain_line(name, 80)
        raise _NotFoundError(f"No {item_type} {shown_name!r}, or several ids start with it. Use the full id.")
    return context


def choices(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    """Return the values of each filter. Browsers request them when the filters are opened."""
    names = [parameter.name for parameter in STATS_SPEC.filters if parameter.name in get_args(By)]
    all_query = page_query._replace(filters={})
    parts = {name: store.stats(tenant, all_query.stats_query(by=name)).parts for name in names}
    return {
        # Limit of values offered by a filter.
        "choices": {name: sorted(overview_pages.count_calls(name, parts[name]))[:200] for name in names}
    }
