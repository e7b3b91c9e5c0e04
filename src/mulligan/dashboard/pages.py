"""Dashboard routes: parse the URL, query the store on a thread, render a template."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute

from mulligan.core.failure import SettingsError
from mulligan.dashboard import (
    assets,
    audit_page,
    compare_page,
    fix_pages,
    formatting,
    health_page,
    lesson_pages,
    live,
    overview_page,
    pattern_pages,
    run_pages,
    search_page,
    sign_in_pages,
    tool_pages,
)
from mulligan.dashboard.forms import read_form as form_of
from mulligan.dashboard.page_query import FILTERS, RANGES, PageQuery
from mulligan.server.access import Caller, protected_route, sign_in_url
from mulligan.server.app import Server
from mulligan.server.sign_in import COOKIE_HOURS
from mulligan.store.base import DEFAULT_TENANT, Store

Endpoint = Callable[[Request], Awaitable[Response]]
View = Callable[[Store, str, PageQuery], dict[str, Any]]
DetailView = Callable[[Store, str, PageQuery, str], dict[str, Any] | None]
MAX_FILTER_CHOICES = 200
"""Limit of values offered by a filter."""
NAV = (
    ("/", "Overview", "o"), ("/patterns", "Patterns", "p"), ("/runs", "Runs", "r"), ("/tools", "Tools", "t"),
    ("/agents", "Agents", "a"), ("/lessons", "Lessons", "e"), ("/fixes", "Fixes", "f"), ("/compare", "Compare", "c"),
    ("/live", "Live", "l"), ("/health", "Health", "h"),
)  # fmt: skip


def build_routes(server: Server) -> Iterable[BaseRoute]:
    """Build the dashboard routes for `mulligan.server.app.build_app`."""
    return list(Dashboard(server).routes())


class Templates:
    """Jinja environment that sanitizes every value that is not `Markup`."""

    def __init__(self) -> None:
        self.assets = assets.load_assets()
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            finalize=formatting.untrusted,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals |= {
            "nav": NAV,
            "ranges": RANGES,
            "filters": FILTERS,
            "asset": lambda name: f"/static/{name}?v={self.assets[name].digest}",
            **{name: getattr(formatting, name) for name in (
                "text", "line", "data", "brief", "number", "count", "percent", "seconds", "ago", "size", "date",
                "format_confidence", "format_timestamp", "detail_path",
            )},
        }  # fmt: skip

    def render(self, page: str, page_query: PageQuery, context: Mapping[str, Any]) -> bytes:
        template = self._environment.get_template(f"{page}.html")
        return template.render({"who": None, **context, "query": page_query, "page": page}).encode("utf-8", "replace")


class Dashboard:
    """Pages of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._templates = Templates()

    def routes(self) -> Iterable[BaseRoute]:
        """Yield all routes.

        Reading requires the role `read`, decisions `admin`; static files and sign-in are public.
        """
        guard = functools.partial(protected_route, self._server)
        lists: dict[str, tuple[str, View, str, DetailView]] = {
            "runs": ("runs", run_pages.runs, "run", run_pages.run),
            "patterns": ("patterns", pattern_pages.patterns, "pattern", pattern_pages.pattern),
            "tools": ("tools", tool_pages.tools, "tool", tool_pages.tool),
            "agents": ("agents", tool_pages.agents, "agent", tool_pages.agent),
            "lessons": ("lessons", lesson_pages.lessons, "lesson", lesson_pages.lesson),
            "fixes": ("fixes", fix_pages.fixes, "fix", fix_pages.fix),
        }
        yield guard("/", self._page("overview", overview_page.overview), "read", "GET")
        for section, (list_template, view, detail_template, detail_view) in lists.items():
            yield guard(f"/{section}", self._list(list_template, view, detail_template, detail_view), "read", "GET")
            yield guard(f"/{section}/{{name:path}}", self._detail(detail_template, detail_view), "read", "GET")
        yield guard("/compare", self._page("compare", compare_page.compare), "read", "GET")
        yield guard("/search", self._page("search", search_page.search), "read", "GET")
        yield guard("/live", self._page("live", lambda store, tenant, page_query: {}), "read", "GET")
        yield guard("/live/events", self._live, "read", "GET")
        yield guard("/choices", self._page("choices", choices), "read", "GET")
        yield guard("/health", self._page("health", self._health), "read", "GET")
        yield guard("/audit", self._page("audit", audit_page.audit), "admin", "GET")
        yield guard("/patterns/{name}", self._decide(pattern_pages.apply_command, "patterns"), "admin", "POST")
        yield guard("/fixes/{name}", self._decide(fix_pages.decide, "fixes"), "admin", "POST")
        yield guard("/lessons/{name}", self._decide(lesson_pages.decide, "lessons"), "admin", "POST")
        yield guard("/static/{name}", self._asset, "nothing", "GET")
        sign = sign_in_pages.SignInPages(self._server, self._sign_in)
        yield guard(sign_in_pages.SIGN_IN_PATH, sign.show, "nothing", "GET")
        yield guard(sign_in_pages.SIGN_IN_PATH, sign.sign_in, "nothing", "POST")
        yield guard(sign_in_pages.SIGN_OUT_PATH, sign.sign_out, "nothing", "POST")

    # Pages

    def _page(self, template: str, view: View) -> Endpoint:
        async def page(request: Request) -> Response:
            return await self._render_response(request, template, view)

        return page

    def _health(self, store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
        return health_page.health(store, tenant, page_query, self._server.tenants.settings_for(tenant).retention)

    def _list(self, list_template: str, view: View, detail_template: str, detail_view: DetailView) -> Endpoint:
        """Build a list page. A `name` parameter selects a detail page, for names that are not safe in a path."""

        async def page(request: Request) -> Response:
            if "name" in request.query_params:
                return await self._render_response(
                    request,
                    detail_template,
                    self._bind_view(detail_template, detail_view, request.query_params["name"]),
                )
            return await self._render_response(request, list_template, view)

        return page

    def _detail(self, template: str, detail_view: DetailView) -> Endpoint:
        async def page(request: Request) -> Response:
            return await self._render_response(
                request, template, self._bind_view(template, detail_view, request.path_params["name"])
            )

        return page

    def _bind_view(self, item_type: str, detail_view: DetailView, name: str) -> View:
        def view(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
            context = detail_view(store, tenant, page_query, name)
            if context is None:
                raise _NotFoundError(item_type, name)
            return context

        return view

    async def _render_response(self, request: Request, template: str, view: View) -> Response:
        home = escape(f"{request.url.scheme}://{request.url.netloc}")
        query = dict(request.query_params)
        body, status = await self._server.run_in_reader(
            self._render_page, request.url.path, query, request.state.caller, template, view, home
        )
        return self._response(request, body, status)

    def _render_page(
        self, path: str, query: Mapping[str, str], caller: Caller, template: str, view: View, home: Markup
    ) -> tuple[bytes, int]:
        """Query the store and render the template. Runs on a reader thread."""
        now = self._server.clock()
        try:
            page_query = PageQuery.parse(path, query, now)
            context = view(self._server.store, caller.tenant, page_query)
        except SettingsError as error:
            return self._render_error(path, now, "Invalid request", str(error), 400)
        except _NotFoundError as error:
            name = formatting.line(error.name, 80).unescape()
            message = f"No {error.item_type} {name!r}, or several ids start with it. Use the full id."
            return self._render_error(path, now, "Not found", message, 404)
        page_context = {"home": home, "needs_token": not self._server.rules.is_local or caller.tenant != DEFAULT_TENANT}
        return self._templates.render(template, page_query, {**context, **page_context, "who": caller}), 200

    def _render_error(self, path: str, now: int, title: str, message: str, status: int) -> tuple[bytes, int]:
        empty_query = PageQuery.parse(path, {}, now)
        return self._templates.render("refused", empty_query, {"title": title, "message": message}), status

    def _sign_in(self, request: Request, message: str, status: int) -> Response:
        action = sign_in_url(request.query_params.get("next", "/"))
        context = {"message": message, "hours": COOKIE_HOURS, "action": action}
        body = self._templates.render("sign_in", PageQuery.parse("/sign-in", {}, self._server.clock()), context)
        return self._response(request, body, status)

    def _response(self, request: Request, body: bytes, status: int) -> Response:
        data, headers = assets.compress_if_accepted(body, request.headers.get("accept-encoding", ""))
        # Not no-referrer: browsers would send our forms with the origin "null", which is rejected.
        headers |= {"Cache-Control": "no-store", "Referrer-Policy": "same-origin"}
        return Response(data, status, headers, "text/html; charset=utf-8")

    # Decisions

    def _decide(self, change: Callable[[Store, str, int, str, dict[str, str]], Any], section: str) -> Endpoint:
        async def decide(request: Request) -> Response:
            form = await form_of(request)
            name = request.path_params["name"]
            now = self._server.clock()
            try:
                result = await self._server.run_in_reader(
                    change, self._server.store, request.state.caller.tenant, now, name, form
                )
            except SettingsError as error:
                body, status = self._render_error(request.url.path, now, "Invalid decision", str(error), 400)
                return self._response(request, body, status)
            if not result:
                body, status = self._render_error(
                    request.url.path, now, "Not found", "It no longer exists. Reload the list.", 404
                )
                return self._response(request, body, status)
            target = (
                formatting.detail_path("patterns", form["back"])
                if form.get("back")
                else formatting.detail_path(section, name)
            )
            query = request.url.query
            return RedirectResponse(f"{target}?{query}" if query and "?" not in target else target, 303)

        return decide

    # Streams and static files

    async def _live(self, request: Request) -> Response:
        try:
            page_query = PageQuery.parse("/live", dict(request.query_params), self._server.clock())
        except SettingsError as error:
            return Response(str(error), 400, media_type="text/plain")
        tail_reader = live.build_tail_reader(request.state.caller.tenant, page_query)
        stream = live.stream_events(
            lambda: self._server.run_in_reader(tail_reader.poll, self._server.store), lambda: self._server.is_stopping
        )
        return StreamingResponse(stream, 200, {"Cache-Control": "no-store"}, "text/event-stream")

    async def _asset(self, request: Request) -> Response:
        asset = self._templates.assets.get(request.path_params["name"])
        if asset is None:
            return Response("File not found.", 404, media_type="text/plain")
        accepts_gzip = "gzip" in request.headers.get("accept-encoding", "")
        headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
        if accepts_gzip:
            headers["Content-Encoding"] = "gzip"
        return Response(asset.gzipped if accepts_gzip else asset.content, 200, headers, asset.type)


class _NotFoundError(Exception):
    def __init__(self, item_type: str, name: str) -> None:
        super().__init__(name)
        self.item_type, self.name = item_type, name


def choices(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    """Return the values of each filter. Browsers request them when the filters are opened."""
    values_by_filter: dict[str, list[str]] = {}
    for name in ("agent", "tool", "kind", "model", "environment", "version"):
        unfiltered_query = page_query._replace(filters={})
        parts = store.stats(tenant, unfiltered_query.stats_query(by=name)).parts
        values = {label.rpartition(" ")[2] if name == "version" else label for label in parts}
        values_by_filter[name] = sorted(value for value in values if value and formatting.is_display_safe(value))[
            :MAX_FILTER_CHOICES
        ]
    return {"choices": values_by_filter}
