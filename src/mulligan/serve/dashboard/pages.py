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

from mulligan.failure import SettingsError
from mulligan.remember.store import LOCAL, Store
from mulligan.serve.api.app import Server
from mulligan.serve.api.doors import Caller, route, signing_in
from mulligan.serve.api.signing import HOURS
from mulligan.serve.dashboard import (
    assets,
    audit,
    compare,
    fixes,
    health,
    lessons,
    live,
    overview,
    patterns,
    runs,
    search,
    shown,
    signing,
    tools,
)
from mulligan.serve.dashboard.asked import FILTERS, RANGES, Asked
from mulligan.serve.dashboard.forms import form as form_of

Endpoint = Callable[[Request], Awaitable[Response]]
View = Callable[[Store, str, Asked], dict[str, Any]]
One = Callable[[Store, str, Asked, str], dict[str, Any] | None]
CHOICES = 200
"""Limit of values offered by a filter."""
NAV = (
    ("/", "Overview", "o"), ("/patterns", "Patterns", "p"), ("/runs", "Runs", "r"), ("/tools", "Tools", "t"),
    ("/agents", "Agents", "a"), ("/lessons", "Lessons", "e"), ("/fixes", "Fixes", "f"), ("/compare", "Compare", "c"),
    ("/live", "Live", "l"), ("/health", "Health", "h"),
)  # fmt: skip


def group(server: Server) -> Iterable[BaseRoute]:
    """Build the dashboard routes for the server."""
    return list(Dashboard(server).routes())


class Templates:
    """Jinja environment that sanitizes every value that is not `Markup`."""

    def __init__(self) -> None:
        self.assets = assets.load()
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            finalize=shown.foreign,
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
            **{name: getattr(shown, name) for name in (
                "text", "line", "data", "brief", "number", "count", "percent", "sure", "seconds", "ago", "moment",
                "size", "date", "place",
            )},
        }  # fmt: skip

    def render(self, page: str, asked: Asked, context: Mapping[str, Any]) -> bytes:
        template = self._environment.get_template(f"{page}.html")
        return template.render({"who": None, **context, "asked": asked, "page": page}).encode("utf-8", "replace")


class Dashboard:
    """Pages of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._templates = Templates()

    def routes(self) -> Iterable[BaseRoute]:
        """Yield all routes.

        Reading requires the role `read`, decisions `admin`; static files and sign-in are public.
        """
        guard = functools.partial(route, self._server)
        lists: dict[str, tuple[str, View, str, One]] = {
            "runs": ("runs", runs.runs, "run", runs.run),
            "patterns": ("patterns", patterns.patterns, "pattern", patterns.pattern),
            "tools": ("tools", tools.tools, "tool", tools.tool),
            "agents": ("agents", tools.agents, "agent", tools.agent),
            "lessons": ("lessons", lessons.lessons, "lesson", lessons.lesson),
            "fixes": ("fixes", fixes.fixes, "fix", fixes.fix),
        }
        yield guard("/", self._page("overview", overview.overview), "read", "GET")
        for section, (many, view, one, found) in lists.items():
            yield guard(f"/{section}", self._list(many, view, one, found), "read", "GET")
            yield guard(f"/{section}/{{name:path}}", self._one(one, found), "read", "GET")
        yield guard("/compare", self._page("compare", compare.compare), "read", "GET")
        yield guard("/search", self._page("search", search.search), "read", "GET")
        yield guard("/live", self._page("live", lambda store, tenant, asked: {}), "read", "GET")
        yield guard("/live/events", self._live, "read", "GET")
        yield guard("/choices", self._page("choices", choices), "read", "GET")
        yield guard("/health", self._page("health", self._health), "read", "GET")
        yield guard("/audit", self._page("audit", audit.audit), "admin", "GET")
        yield guard("/patterns/{name}", self._decide(patterns.change, "patterns"), "admin", "POST")
        yield guard("/fixes/{name}", self._decide(fixes.decide, "fixes"), "admin", "POST")
        yield guard("/lessons/{name}", self._decide(lessons.decide, "lessons"), "admin", "POST")
        yield guard("/static/{name}", self._asset, "nothing", "GET")
        sign = signing.Signing(self._server, self._sign_in)
        yield guard(signing.PATH, sign.show, "nothing", "GET")
        yield guard(signing.PATH, sign.sign_in, "nothing", "POST")
        yield guard(signing.OUT, sign.sign_out, "nothing", "POST")

    # Pages

    def _page(self, template: str, view: View) -> Endpoint:
        async def page(request: Request) -> Response:
            return await self._answered(request, template, view)

        return page

    def _health(self, store: Store, tenant: str, asked: Asked) -> dict[str, Any]:
        return health.health(store, tenant, asked, self._server.tenants.of(tenant).retention)

    def _list(self, many: str, view: View, one: str, found: One) -> Endpoint:
        """Build a list page. A `name` parameter selects a detail page, for names that are not safe in a path."""

        async def page(request: Request) -> Response:
            if "name" in request.query_params:
                return await self._answered(request, one, self._found(one, found, request.query_params["name"]))
            return await self._answered(request, many, view)

        return page

    def _one(self, template: str, found: One) -> Endpoint:
        async def page(request: Request) -> Response:
            return await self._answered(request, template, self._found(template, found, request.path_params["name"]))

        return page

    def _found(self, what: str, found: One, name: str) -> View:
        def view(store: Store, tenant: str, asked: Asked) -> dict[str, Any]:
            context = found(store, tenant, asked, name)
            if context is None:
                raise _NotFoundError(what, name)
            return context

        return view

    async def _answered(self, request: Request, template: str, view: View) -> Response:
        home = escape(f"{request.url.scheme}://{request.url.netloc}")
        query = dict(request.query_params)
        body, status = await self._server.ask(
            self._filled, request.url.path, query, request.state.caller, template, view, home
        )
        return self._response(request, body, status)

    def _filled(
        self, path: str, query: Mapping[str, str], who: Caller, template: str, view: View, home: Markup
    ) -> tuple[bytes, int]:
        """Query the store and render the template. Runs on a reader thread."""
        now = self._server.clock()
        try:
            asked = Asked.of(path, query, now)
            context = view(self._server.store, who.tenant, asked)
        except SettingsError as error:
            return self._refused(path, now, "This cannot be asked", str(error), 400)
        except _NotFoundError as error:
            told = (
                f"There is no {error.what} {shown.line(error.name, 80).unescape()!r} here, or more than one begins so."
            )
            return self._refused(path, now, "Not found", told, 404)
        here = {"home": home, "needs_token": not self._server.rules.is_local or who.tenant != LOCAL}
        return self._templates.render(template, asked, {**context, **here, "who": who}), 200

    def _refused(self, path: str, now: int, title: str, told: str, status: int) -> tuple[bytes, int]:
        plain = Asked.of(path, {}, now)
        return self._templates.render("refused", plain, {"title": title, "told": told}), status

    def _sign_in(self, request: Request, told: str, status: int) -> Response:
        action = signing_in(request.query_params.get("next", "/"))
        context = {"told": told, "hours": HOURS, "action": action}
        body = self._templates.render("sign_in", Asked.of("/sign-in", {}, self._server.clock()), context)
        return self._response(request, body, status)

    def _response(self, request: Request, body: bytes, status: int) -> Response:
        data, headers = assets.packed(body, request.headers.get("accept-encoding", ""))
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
                done = await self._server.ask(change, self._server.store, request.state.caller.tenant, now, name, form)
            except SettingsError as error:
                body, status = self._refused(request.url.path, now, "This cannot be done", str(error), 400)
                return self._response(request, body, status)
            if not done:
                body, status = self._refused(request.url.path, now, "Not found", "It is not there any more.", 404)
                return self._response(request, body, status)
            there = shown.place("patterns", form["back"]) if form.get("back") else shown.place(section, name)
            query = request.url.query
            return RedirectResponse(f"{there}?{query}" if query and "?" not in there else there, 303)

        return decide

    # Streams and static files

    async def _live(self, request: Request) -> Response:
        try:
            asked = Asked.of("/live", dict(request.query_params), self._server.clock())
        except SettingsError as error:
            return Response(str(error), 400, media_type="text/plain")
        watching = live.watch(request.state.caller.tenant, asked)
        stream = live.events(
            lambda: self._server.ask(watching.look, self._server.store), lambda: self._server.is_stopping
        )
        return StreamingResponse(stream, 200, {"Cache-Control": "no-store"}, "text/event-stream")

    async def _asset(self, request: Request) -> Response:
        asset = self._templates.assets.get(request.path_params["name"])
        if asset is None:
            return Response("there is no such file.", 404, media_type="text/plain")
        takes = "gzip" in request.headers.get("accept-encoding", "")
        headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
        if takes:
            headers["Content-Encoding"] = "gzip"
        return Response(asset.packed if takes else asset.plain, 200, headers, asset.type)


class _NotFoundError(Exception):
    def __init__(self, what: str, name: str) -> None:
        super().__init__(name)
        self.what, self.name = what, name


def choices(store: Store, tenant: str, asked: Asked) -> dict[str, Any]:
    """Return the values of each filter. Browsers request them when the filters are opened."""
    found: dict[str, list[str]] = {}
    for name in ("agent", "tool", "kind", "model", "environment", "version"):
        plain = asked._replace(filters={})
        parts = store.stats(tenant, plain.stats(by=name)).parts
        values = {each.rpartition(" ")[2] if name == "version" else each for each in parts}
        found[name] = sorted(value for value in values if value and shown.is_plain(value))[:CHOICES]
    return {"choices": found}
