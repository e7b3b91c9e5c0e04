"""Errors and successes of Python web frameworks: each serves the same small shop, and its bodies are the rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from response_corpus.rows import STATUS_KINDS, Row

STATUSES = (400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 429, 500, 501, 502, 503, 504)
REASONS = {
    400: "The field 'quantity' must be a positive number",
    401: "Log in to see your orders",
    403: "Your role may not delete orders",
    404: "No order has the number 4711",
    409: "The order was shipped already",
    422: "The postal code does not fit the country",
    429: "At most 60 requests per minute",
    500: "The price service crashed",
    503: "The warehouse is closed for maintenance",
}
GOOD: list[tuple[str, Any]] = [
    ("order", {"number": 4712, "state": "shipped", "items": [{"sku": "A-1", "quantity": 2}]}),
    ("order that failed", {"number": 4713, "status": "failed", "reason": "card expired", "attempts": 2}),
    ("empty page", {"items": [], "total": 0, "errors": []}),
    ("no error", {"error": None, "result": {"number": 4712}}),
    ("created", {"status": 201, "message": "Created"}),
    ("accepted", {"detail": "Your password was changed."}),
    ("health", {"status": "degraded", "checks": {"database": "ok", "mail": "error: timeout"}}),
]


def read_body(source: str, case: str, status: int, body: str) -> Iterator[Row]:
    """Yield the row of a body as text and, if it is an object, as a value too."""
    is_error = status >= 400
    kinds = STATUS_KINDS.get(status, "") if is_error else ""
    if body.strip():
        yield Row(source, case, is_error, body, kinds)
    try:
        value = json.loads(body)
    except ValueError:
        return
    if isinstance(value, dict):
        yield Row(source, case, is_error, value, kinds)


def serve_starlette() -> Iterator[Row]:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse
    from starlette.routing import Route
    from starlette.testclient import TestClient

    async def fail(request: Any) -> Any:
        status = int(request.path_params["status"])
        raise HTTPException(status, None if request.query_params.get("plain") else REASONS.get(status))

    async def crash(request: Any) -> Any:
        raise RuntimeError("price table is empty")

    async def good(request: Any) -> Any:
        return JSONResponse(GOOD[int(request.path_params["number"])][1])

    routes = [Route("/fail/{status}", fail), Route("/crash", crash), Route("/good/{number}", good)]
    client = TestClient(Starlette(routes=routes), raise_server_exceptions=False)
    for status in STATUSES:
        for suffix in ("", "?plain=1"):
            yield from read_body("starlette", f"{status}{suffix}", status, client.get(f"/fail/{status}{suffix}").text)
    yield from read_body("starlette", "crash", 500, client.get("/crash").text)
    yield from read_body("starlette", "unknown route", 404, client.get("/nothing").text)
    yield from read_body("starlette", "method", 405, client.post("/crash").text)
    for number, (name, _) in enumerate(GOOD):
        yield from read_body("starlette", name, 200, client.get(f"/good/{number}").text)


def serve_fastapi() -> Iterator[Row]:
    from fastapi import Body, FastAPI, HTTPException
    from fastapi.security import HTTPBearer
    from fastapi.testclient import TestClient

    app = FastAPI()

    @app.get("/fail/{status}")
    def fail(status: int, form: str = "text") -> None:
        reason = REASONS.get(status, "Something did not work")
        details: dict[str, Any] = {
            "text": reason,
            "object": {"code": f"E{status}", "message": reason},
            "none": None,
        }
        raise HTTPException(status, details[form])

    @app.post("/orders")
    def create(quantity: int = Body(gt=0, le=10), sku: str = Body(pattern="^A-")) -> dict[str, Any]:
        return {"quantity": quantity, "sku": sku}

    @app.get("/good/{number}")
    def good(number: int) -> Any:
        return GOOD[number][1]

    from fastapi import Depends

    @app.get("/secret", dependencies=[Depends(HTTPBearer())])
    def secret() -> str:
        return "x"

    client = TestClient(app, raise_server_exceptions=False)
    for status in STATUSES:
        for form in ("text", "object", "none"):
            body = client.get(f"/fail/{status}?form={form}").text
            yield from read_body("fastapi", f"{status} {form}", status, body)
    for name, content in (("text", "many"), ("negative", -1), ("large", 99), ("missing", None)):
        body = client.post("/orders", json={"quantity": content, "sku": "A-1"}).text
        yield from read_body("fastapi", f"validation {name}", 422, body)
    yield from read_body("fastapi", "validation empty", 422, client.post("/orders").text)
    yield from read_body("fastapi", "validation path", 422, client.get("/good/first").text)
    yield from read_body("fastapi", "unknown route", 404, client.get("/nothing").text)
    yield from read_body("fastapi", "method", 405, client.delete("/orders").text)
    yield from read_body("fastapi", "no token", 401, client.get("/secret").text)
    for number, (name, _) in enumerate(GOOD):
        yield from read_body("fastapi", name, 200, client.get(f"/good/{number}").text)


def serve_flask() -> Iterator[Row]:
    from flask import Flask, abort, jsonify
    from werkzeug.exceptions import HTTPException

    app = Flask("shop")

    @app.route("/fail/<int:status>")
    def fail(status: int) -> Any:
        abort(status, REASONS.get(status))

    @app.route("/plain/<int:status>")
    def plain(status: int) -> Any:
        abort(status)

    @app.route("/crash")
    def crash() -> Any:
        raise RuntimeError("price table is empty")

    @app.route("/good/<int:number>")
    def good(number: int) -> Any:
        return jsonify(GOOD[number][1])

    supported = [status for status in STATUSES if status not in (402,)]
    for form in ("html", "json"):
        if form == "json":
            app = Flask("shop")
            for rule, view in (("/fail/<int:status>", fail), ("/plain/<int:status>", plain), ("/crash", crash)):
                app.add_url_rule(rule, rule, view)

            @app.errorhandler(HTTPException)
            def to_json(error: HTTPException) -> Any:
                return jsonify(code=error.code, name=error.name, description=error.description), error.code

        client = app.test_client()
        for status in supported:
            for path in ("fail", "plain"):
                response = client.get(f"/{path}/{status}")
                if response.status_code == status:
                    yield from read_body(f"flask {form}", f"{status} {path}", status, response.text)
        yield from read_body(f"flask {form}", "crash", 500, client.get("/crash").text)
        yield from read_body(f"flask {form}", "unknown route", 404, client.get("/nothing").text)
        yield from read_body(f"flask {form}", "method", 405, client.post("/crash").text)
        if form == "html":
            for number, (name, _) in enumerate(GOOD):
                yield from read_body("flask", name, 200, client.get(f"/good/{number}").text)


def serve_django() -> Iterator[Row]:
    import django
    from django.conf import settings

    settings.configure(
        DEBUG=False,
        SECRET_KEY="corpus",
        ROOT_URLCONF=__name__ + "_urls",
        ALLOWED_HOSTS=["*"],
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "rest_framework"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        LOGGING_CONFIG=None,
        REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
    )
    django.setup()
    import sys
    import types

    from django.core.exceptions import PermissionDenied, SuspiciousOperation
    from django.http import Http404, JsonResponse
    from django.test import Client
    from django.urls import path
    from rest_framework import exceptions, serializers
    from rest_framework.decorators import api_view
    from rest_framework.response import Response

    raised: dict[str, tuple[int, BaseException]] = {
        "not found": (404, Http404("no such order")),
        "denied": (403, PermissionDenied("no")),
        "suspicious": (400, SuspiciousOperation("odd")),
        "crash": (500, RuntimeError("price table is empty")),
    }
    declared: dict[str, tuple[int, BaseException]] = {
        "parse": (400, exceptions.ParseError()),
        "login": (401, exceptions.AuthenticationFailed()),
        "anonymous": (401, exceptions.NotAuthenticated()),
        "denied": (403, exceptions.PermissionDenied()),
        "denied with reason": (403, exceptions.PermissionDenied(REASONS[403])),
        "missing": (404, exceptions.NotFound()),
        "missing with reason": (404, exceptions.NotFound(REASONS[404])),
        "method": (405, exceptions.MethodNotAllowed("PUT")),
        "accept": (406, exceptions.NotAcceptable()),
        "media": (415, exceptions.UnsupportedMediaType("text/csv")),
        "throttled": (429, exceptions.Throttled(wait=30)),
        "server": (500, exceptions.APIException()),
        "validation text": (400, exceptions.ValidationError({"detail": REASONS[422]})),
    }

    class OrderSerializer(serializers.Serializer):  # type: ignore[misc]
        quantity = serializers.IntegerField(min_value=1)

    def plain(request: Any, name: str) -> Any:
        raise raised[name][1]

    @api_view(["GET"])
    def api(request: Any, name: str) -> Any:
        raise declared[name][1]

    @api_view(["POST"])
    def create(request: Any) -> Any:
        OrderSerializer(data=request.data).is_valid(raise_exception=True)
        return Response({"ok": True})

    def good(request: Any, number: int) -> Any:
        return JsonResponse(GOOD[number][1])

    urls = types.ModuleType(__name__ + "_urls")
    urls.urlpatterns = [  # type: ignore[attr-defined]
        path("plain/<str:name>", plain),
        path("api/<str:name>", api),
        path("orders", create),
        path("good/<int:number>", good),
    ]
    sys.modules[urls.__name__] = urls
    client = Client(raise_request_exception=False)
    for name, (status, _) in raised.items():
        yield from read_body("django", name, status, client.get(f"/plain/{name}").content.decode())
    for name, (status, _) in declared.items():
        yield from read_body("django rest", name, status, client.get(f"/api/{name}").content.decode())
    yield from read_body("django", "unknown route", 404, client.get("/nothing").content.decode())
    yield from read_body("django rest", "wrong method", 405, client.post("/api/parse").content.decode())
    broken = client.post("/orders", "{", content_type="application/json").content.decode()
    yield from read_body("django rest", "broken body", 400, broken)
    for number, (name, _) in enumerate(GOOD):
        yield from read_body("django", name, 200, client.get(f"/good/{number}").content.decode())


def serve_aiohttp() -> Iterator[Row]:
    from aiohttp import web
    from aiohttp.test_utils import TestClient, TestServer

    classes = {
        cls.status_code: cls
        for cls in vars(web).values()
        if isinstance(cls, type) and issubclass(cls, web.HTTPError) and cls.status_code in STATUSES
    }

    async def fail(request: Any) -> Any:
        status = int(request.match_info["status"])
        kwargs: dict[str, Any] = {"method": "GET", "allowed_methods": ["POST"]} if status == 405 else {}
        if status == 413:
            kwargs = {"max_size": 10, "actual_size": 20}
        raise classes[status](**kwargs)

    async def collect() -> list[tuple[int, str]]:
        app = web.Application()
        app.router.add_get("/fail/{status}", fail)
        rows = []
        async with TestClient(TestServer(app)) as client:
            for status in sorted(classes):
                response = await client.get(f"/fail/{status}")
                rows.append((response.status, await response.text()))
        return rows

    for status, body in asyncio.run(collect()):
        yield from read_body("aiohttp", str(status), status, body)


def serve_falcon() -> Iterator[Row]:
    import falcon
    from falcon import testing

    class Fail:
        def on_get(self, request: Any, response: Any, status: int) -> None:
            title = REASONS.get(status)
            raise falcon.HTTPError(falcon.code_to_http_status(status), description=title)

    app = falcon.App()
    app.add_route("/fail/{status:int}", Fail())
    client = testing.TestClient(app)
    for status in STATUSES:
        yield from read_body("falcon", str(status), status, client.simulate_get(f"/fail/{status}").text)
    yield from read_body("falcon", "unknown route", 404, client.simulate_get("/nothing").text)


def serve_bottle() -> Iterator[Row]:
    import bottle

    app = bottle.Bottle()

    @app.route("/fail/<status:int>")
    def fail(status: int) -> None:
        bottle.abort(status, REASONS.get(status, "It did not work"))

    def get(path: str) -> tuple[int, str]:
        started: list[str] = []
        environ = {"PATH_INFO": path, "REQUEST_METHOD": "GET", "wsgi.url_scheme": "http", "HTTP_HOST": "shop.example"}
        body = app(environ, lambda line, headers, info=None: started.append(line))
        return int(started[0][:3]), b"".join(body).decode()

    for status in STATUSES:
        yield from read_body("bottle", str(status), *get(f"/fail/{status}"))
    yield from read_body("bottle", "unknown route", *get("/nothing"))


def serve_tornado() -> Iterator[Row]:
    import tornado.testing
    import tornado.web

    class Fail(tornado.web.RequestHandler):
        def get(self, status: str) -> None:
            raise tornado.web.HTTPError(int(status))

    class Fetch(tornado.testing.AsyncHTTPTestCase):
        def get_app(self) -> Any:
            return tornado.web.Application([(r"/fail/(\d+)", Fail)], log_function=lambda handler: None)

        def runTest(self) -> None:  # noqa: N802 - unittest's name
            self.bodies = [(status, self.fetch(f"/fail/{status}").body.decode()) for status in STATUSES]

    case = Fetch()
    case.setUp()
    case.runTest()
    case.tearDown()
    for status, body in case.bodies:
        yield from read_body("tornado", str(status), status, body)


def serve_litestar() -> Iterator[Row]:
    from litestar import Litestar, get
    from litestar.exceptions import HTTPException
    from litestar.testing import TestClient

    @get("/fail/{status:int}")
    async def fail(status: int) -> None:
        raise HTTPException(status_code=status, detail=REASONS.get(status, ""))

    @get("/good")
    async def good(count: int) -> dict[str, int]:
        return {"count": count}

    with TestClient(Litestar([fail, good], logging_config=None)) as client:
        for status in STATUSES:
            yield from read_body("litestar", str(status), status, client.get(f"/fail/{status}").text)
        yield from read_body("litestar", "unknown route", 404, client.get("/nothing").text)
        yield from read_body("litestar", "validation", 400, client.get("/good?count=many").text)
        yield from read_body("litestar", "good", 200, client.get("/good?count=3").text)


def serve_graphql() -> Iterator[Row]:
    from graphql import GraphQLError, build_schema, graphql_sync

    schema = build_schema(
        "type Order { id: ID!, total: Float, note: String } type Query { order(id: ID!): Order, orders: [Order!]! }"
        " type Mutation { cancel(id: ID!): Order! }"
    )

    def refuse(*_: Any, **__: Any) -> None:
        raise GraphQLError(REASONS[403], extensions={"code": "FORBIDDEN"})

    def crash(*_: Any, **__: Any) -> None:
        raise RuntimeError("price table is empty")

    good = {"id": "1", "total": 12.5, "note": "Error: gift wrap missing"}
    values: dict[str, tuple[str, Any, bool, str]] = {
        "unknown field": ("{ order(id: 1) { price } }", {}, True, "invalid_arguments|invalid_query|not_found"),
        "syntax": ("{ order(id: 1 { id } }", {}, True, "invalid_arguments|invalid_query|build_failure"),
        "missing argument": ("{ order { id } }", {}, True, "invalid_arguments"),
        "unknown argument": ("{ order(nr: 1) { id } }", {}, True, "invalid_arguments"),
        "unknown mutation": ("mutation { drop(id: 1) { id } }", {}, True, "invalid_arguments|not_found|invalid_query"),
        "forbidden mutation": ("mutation { cancel(id: 1) { id } }", {"cancel": refuse}, True, "permission_denied"),
        "crash of a list": ("{ orders { id } }", {"orders": crash}, True, ""),
        "null for a list": ("{ orders { id } }", {"orders": None}, True, ""),
        "good": ("{ order(id: 1) { id total note } }", {"order": good}, False, ""),
        "nothing": ("{ order(id: 9) { id } }", {"order": None}, False, ""),
        "list": ("{ orders { id note } }", {"orders": [good]}, False, ""),
        "schema": ('{ __type(name: "Order") { name fields { name } } }', {}, False, ""),
    }
    for name, (query, root, is_error, kinds) in values.items():
        value = graphql_sync(schema, query, root).formatted
        yield Row("graphql", name, is_error, value, kinds)
        yield Row("graphql", name, is_error, json.dumps(value), kinds)
    partial = graphql_sync(schema, "{ order(id: 1) { id total } }", {"order": {"id": "1", "total": crash}}).formatted
    yield Row("graphql", "partial", False, partial)


SERVERS = (
    serve_starlette, serve_fastapi, serve_flask, serve_django, serve_aiohttp, serve_falcon, serve_bottle, serve_tornado,
    serve_litestar, serve_graphql,
)  # fmt: skip
