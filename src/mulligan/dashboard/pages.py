"""Dashboard routes: parse the URL, query the store on a thread, render a template."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jinja2
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute

from mulligan.core.failure import SettingsError
from mulligan.dashboard import formatting, live, memory_pages, overview_pages, run_pages, sign_in_pages, tool_pages
from mulligan.dashboard.page_query import RANGES, PageQuery
from mulligan.dashboard.sign_in_pages import read_form
from mulligan.report.resources import STATS_SPEC
from mulligan.server.access import Caller, sign_in_url
from mulligan.server.app import Endpoint, Server
from mulligan.server.tokens import COOKIE_HOURS
from mulligan.store.base import DEFAULT_TENANT, Store
from mulligan.store.counters import By

View = Callable[[Store, str, PageQuery], dict[str, Any]]
DetailView = Callable[[Store, str, PageQuery, str], dict[str, Any] | None]
MAX_FILTER_CHOICES = 200
"""Limit of values offered by a filter."""
FOLDER = Path(__file__).parent / "static"
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
MIN_COMPRESSED_BYTES = 600
"""Smaller responses do not gain from compression."""
NAV = (
    ("/", "Overview", "o"), ("/patterns", "Patterns", "p"), ("/runs", "Runs", "r"), ("/tools", "Tools", "t"),
    ("/agents", "Agents", "a"), ("/lessons", "Lessons", "e"), ("/fixes", "Fixes", "f"), ("/compare", "Compare", "c"),
    ("/live", "Live", "l"), ("/health", "Health", "h"),
)  # fmt: skip


def build_routes(server: Server) -> Iterable[BaseRoute]:
    """Build the dashboard routes for `mulligan.server.app.build_app`."""
    return list(Dashboard(server).routes())


class Asset(NamedTuple):
    type: str
    content: bytes
    gzipped: bytes
    digest: str


def load_assets(folder: Path = FOLDER) -> dict[str, Asset]:
    assets_by_name = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in TYPES:
            data = path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()[:12]
            assets_by_name[path.name] = Asset(TYPES[path.suffix], data, gzip.compress(data, 9, mtime=0), digest)
    return assets_by_name


def compress_if_accepted(data: bytes, accepted: str) -> tuple[bytes, dict[str, str]]:
    """Compress a response body if the browser accepts gzip and the body is large enough. Return it with its headers."""
    if len(data) < MIN_COMPRESSED_BYTES or "gzip" not in accepted:
        return data, {"Vary": "Accept-Encoding"}
    return gzip.compress(data, 4, mtime=0), {"Vary": "Accept-Encoding", "Content-Encoding": "gzip"}


class Templates:
    """Jinja environment that sanitizes every value that is not `Markup`."""

    def __init__(self) -> None:
        self.assets = load_assets()
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
        route = self._server.route
        sections: dict[str, tuple[View, str, DetailView]] = {
            "runs": (run_pages.runs, "run", run_pages.run),
            "patterns": (memory_pages.patterns, "pattern", memory_pages.pattern),
            "tools": (tool_pages.tools, "tool", tool_pages.tool),
            "agents": (tool_pages.agents, "agent", tool_pages.agent),
            "lessons": (memory_pages.lessons, "lesson", memory_pages.lesson),
            "fixes": (memory_pages.fixes, "fix", memory_pages.fix),
        }
        pages: dict[str, View] = {
            "compare": overview_pages.compare,
            "search": overview_pages.search,
            "live": lambda store, tenant, page_query: {},
            "choices": choices,
            "health": self._health,
        }
        decisions = {
            "patterns": memory_pages.apply_command,
            "fixes": memory_pages.decide_fix,
            "lessons": memory_pages.decide_lesson,
        }
        yield route("/", self._page("overview", overview_pages.overview), "read")
        yield route("/audit", self._page("audit", overview_pages.audit), "admin")
        yield route("/live/events", self._live, "read")
        for name, view in pages.items():
            yield route(f"/{name}", self._page(name, view), "read")
        for section, change in decisions.items():
            yield route(f"/{section}/{{name}}", self._decide(change, section), "admin", "POST")
        for section, (view, detail_template, detail_view) in sections.items():
            page = self._page(section, view, detail_template, detail_view)
            yield route(f"/{section}", page, "read")
            yield route(f"/{section}/{{name:path}}", page, "read")
        yield route("/static/{name}", self._asset, "nothing")
        sign_in = sign_in_pages.SignInPages(self._server, self._sign_in)
        yield route(sign_in_pages.SIGN_IN_PATH, sign_in.show, "nothing")
        yield route(sign_in_pages.SIGN_IN_PATH, sign_in.sign_in, "nothing", "POST")
        yield route(sign_in_pages.SIGN_OUT_PATH, sign_in.sign_out, "nothing", "POST")

    # Pages

    def _page(self, template: str, view: View, detail_template: str = "", detail: DetailView | None = None) -> Endpoint:
        """Build a page. A name selects a detail page: in the path, or as a parameter if it is not safe in a path."""

        async def page(request: Request) -> Response:
            name = request.path_params.get("name", request.query_params.get("name"))
            if detail is None or name is None:
                return await self._render_response(request, template, view)

            def detail_view(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
                context = detail(store, tenant, page_query, name)
                if context is None:
                    raise _NotFoundError(detail_template, name)
                return context

            return await self._render_response(request, detail_template, detail_view)

        return page

    def _health(self, store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
        return overview_pages.health(store, tenant, self._server.tenants.settings_for(tenant).retention)

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
        data, headers = compress_if_accepted(body, request.headers.get("accept-encoding", ""))
        # Not no-referrer: browsers would send our forms with the origin "null", which is rejected.
        headers |= {"Cache-Control": "no-store", "Referrer-Policy": "same-origin"}
        return Response(data, status, headers, "text/html; charset=utf-8")

    # Decisions

    def _decide(self, change: Callable[[Store, str, int, str, dict[str, str]], Any], section: str) -> Endpoint:
        async def decide(request: Request) -> Response:
            form = await read_form(request)
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
                message = "It no longer exists. Reload the list."
                body, status = self._render_error(request.url.path, now, "Not found", message, 404)
                return self._response(request, body, status)
            target_section, target_name = ("patterns", form["back"]) if form.get("back") else (section, name)
            target = formatting.detail_path(target_section, target_name)
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
        headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(asset.content, 200, headers, asset.type)
        return Response(asset.gzipped, 200, headers | {"Content-Encoding": "gzip"}, asset.type)


class _NotFoundError(Exception):
    def __init__(self, item_type: str, name: str) -> None:
        super().__init__(name)
        self.item_type, self.name = item_type, name


def choices(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    """Return the values of each filter. Browsers request them when the filters are opened."""
    values_by_filter: dict[str, list[str]] = {}
    for name in (parameter.name for parameter in STATS_SPEC.filters if parameter.name in get_args(By)):
        parts = store.stats(tenant, page_query._replace(filters={}).stats_query(by=name)).parts
        values = {label.rpartition(" ")[2] if name == "version" else label for label in parts}
        values_by_filter[name] = sorted(value for value in values if value and formatting.is_display_safe(value))[
            :MAX_FILTER_CHOICES
        ]
    return {"choices": values_by_filter}
