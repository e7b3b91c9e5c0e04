"""GET /openapi.json and /docs: the API description, derived from the types and parameters that the routes use."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from html import escape
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from mulligan import __version__
from mulligan.events import AnyEvent
from mulligan.failure import Kind
from mulligan.remember import wire
from mulligan.serve.api import deciding
from mulligan.serve.api.answers import answer
from mulligan.serve.api.app import Server
from mulligan.serve.api.deciding import SentVerdict
from mulligan.serve.api.doors import route
from mulligan.serve.api.queries import QUERIES
from mulligan.serve.api.sent import SentBatch, SentFailure, SentFailures, SentRun, SentRuns, SentStep, SentSteps

REFS = "#/components/schemas/{name}"
KEPT: dict[str, Any] = {
    "type": "object",
    "required": ["new"],
    "properties": {
        "new": {"type": "integer", "minimum": 0, "description": "Records that were not kept before."},
        "offset": {"type": "integer"},
        "runs": {"type": "array", "items": {"type": "string"}},
    },
}
ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error", "message"],
    "properties": {
        "error": {"type": "string", "description": "A word for programs."},
        "message": {"type": "string", "description": "A sentence for people."},
        "field": {"type": "string", "description": "Where in what was sent."},
        "code": {"type": "integer"},
    },
}
STATUSES = {
    400: "It cannot be meant: field and message say where and why.",
    401: "No token, or none that is known.",
    403: "A token that may not, or a page of another site.",
    404: "There is none, or it is another tenant's.",
    408: "The body did not come within a minute.",
    413: "More than 5 MB, or more than 20 MB when inflated.",
    415: "Another content type or encoding than those listed.",
    421: "A Host that is not ours.",
    429: "More than can be kept just now: again after Retry-After.",
    503: "The store cannot be used just now: again after Retry-After.",
}
SENT: tuple[tuple[str, str, Any, Any], ...] = (
    ("/v1/runs", "Runs, with their steps and failures", SentRuns, "Kept"),
    ("/v1/steps", "Steps of runs", SentSteps, "Kept"),
    ("/v1/failures", "Failures by hand, of a step or of the run itself", SentFailures, "Kept"),
    ("/v1/batch", "Events as mulligan's own journal has them", SentBatch, "Kept"),
    ("/v1/recall", "What overcame a failure before?", wire.Asked, "Known"),
    ("/v1/outcomes", "Whether a fix worked, where the calls are not kept here", wire.Report, "Outcome"),
    (deciding.PATH, "What is to become of a lesson: in force, switched off, or taken back", SentVerdict, "Lesson"),
)
OTLP = (
    ("/v1/traces", "Traces of OpenTelemetry", "resourceSpans"),
    ("/v1/logs", "Logs of OpenTelemetry that tell of calls", "resourceLogs"),
    ("/v1/metrics", "Metrics of OpenTelemetry, answered and not kept", "resourceMetrics"),
)
LISTS = {"Audit": ("audit", "next", "now"),
         "Runs": ("runs", "next", "now"), "Patterns": ("patterns", "next", "now"), "Fixes": ("fixes", "next", "now"),
         "Lessons": ("lessons", "next", "now"), "Lesson": ("id", "tool", "state", "source"),
         "Parts": ("next", "now"), "Run": ("id", "status", "calls", "run"), "Pattern": ("id", "kind", "count"),
         "Stats": ("total", "total_runs", "total_failures", "success_rate", "failure_breakdown")}  # fmt: skip


ID: dict[str, Any] = {
    "name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1},
}  # fmt: skip


def group(server: Server) -> Iterable[BaseRoute]:
    async def openapi(request: Request) -> Response:
        return answer(document())

    async def docs(request: Request) -> Response:
        return HTMLResponse(page())

    async def style(request: Request) -> Response:
        return Response(CSS, media_type="text/css")

    return [
        route(server, "/openapi.json", openapi, "nothing"),
        route(server, "/docs", docs, "nothing"),
        route(server, "/docs.css", style, "nothing"),
    ]


def _hook(type: type) -> dict[str, Any]:
    if type is Kind:
        return {"type": "string", "examples": ["tool/timeout"]}
    raise NotImplementedError(str(type))


@cache
def document() -> dict[str, Any]:
    """Build the OpenAPI 3.1 document."""
    types = [each for _, _, each, _ in SENT]
    types += [SentRun, SentStep, SentFailure, AnyEvent, wire.Known]
    found, schemas = msgspec.json.schema_components(types, schema_hook=_hook, ref_template=REFS)
    schemas = dict(schemas)
    sent = {path: schema for (path, *_), schema in zip(SENT, found, strict=False)}
    schemas |= {"Kept": KEPT, "Error": ERROR, "Outcome": {"type": "object", "required": ["kept"]}}
    schemas |= {name: {"type": "object", "required": list(needed)} for name, needed in LISTS.items()}
    paths: dict[str, Any] = {}
    for path, told, _, answers in SENT:
        missing = (404,) if path == "/v1/outcomes" or "{" in path else ()
        body = {"required": True, "content": {"application/json": {"schema": sent[path]}}}
        paths[path] = {
            "post": _operation(told, path, "post", answers, (400, 408, 413, 415, 429, *missing)) | {"requestBody": body}
        }
        if "{id}" in path:
            paths[path]["post"]["parameters"] = [ID]
    for path, told, field in OTLP:
        types_of = {
            "application/json": {
                "schema": {"type": "object", "required": [field], "properties": {field: {"type": "array"}}}
            },
            "application/x-protobuf": {"schema": {"type": "string", "format": "binary"}},
        }
        operation = _operation(told, path, "post", "Exported", (400, 408, 413, 415, 429))
        for status in ("200", "400", "429", "503"):
            held = {"schema": {"type": "string", "format": "binary"}}
            operation["responses"].get(status, {}).setdefault("content", {})["application/x-protobuf"] = held
        paths[path] = {"post": operation | {"requestBody": {"required": True, "content": types_of}}}
    schemas["Exported"] = {"type": "object", "properties": {"partialSuccess": {"type": "object"}}}
    for query in QUERIES:
        missing = (404,) if "{" in query.path else ()
        operation = _operation(query.told, query.path, "get", query.answers, (400, *missing))
        operation["parameters"] = [
            {"name": each.name, "in": "query", "description": each.told, "schema": each.schema}
            for each in query.parameters
        ]
        if "{id}" in query.path:
            operation["parameters"].append(ID)
        if query.rows:
            operation["responses"]["200"]["content"]["text/csv"] = {"schema": {"type": "string"}}
        paths.setdefault(query.path, {})["get"] = operation
    plain = {"200": {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}}
    paths["/metrics"] = {"get": _operation("The figures for Prometheus", "/metrics", "get", "Stats", ())}
    paths["/metrics"]["get"]["responses"] |= plain
    for path, told in (("/healthz", "Whether the process answers"), ("/readyz", "Whether its store does")):
        paths[path] = {"get": _operation(told, path, "get", "Health", ()) | {"security": []}}
    schemas["Health"] = {"type": "object", "required": ["status"]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mulligan",
            "version": __version__,
            "description": "Takes in what agents send, and answers questions about it.",
        },
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(told: str, path: str, method: str, answers: str, statuses: tuple[int, ...]) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": REFS.format(name="Error")}}}
    found: dict[str, Any] = {
        "200": {
            "description": "Kept." if method == "post" else "The answer.",
            "content": {"application/json": {"schema": {"$ref": REFS.format(name=answers)}}},
        }
    }
    for status in sorted({*statuses, 401, 403, 421, 503}):
        found[str(status)] = {"description": STATUSES[status], "content": dict(error)}
        if status in (429, 503):
            found[str(status)]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    name = path.strip("/").replace("/", "_").replace("{", "").replace("}", "").replace(".", "_")
    return {"summary": told.rstrip("."), "operationId": f"{method}_{name}", "responses": found}


CSS = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
h2 { margin: 2rem 0 .3rem; font-size: 1.1rem; } code { font-size: .95em; } table { border-collapse: collapse; }
p, td { overflow-wrap: anywhere; } div { overflow-x: auto; }
th, td { text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top; }
@media (prefers-color-scheme: dark) { body { background: #151515; color: #e8e8e8; } a { color: #8ab4f8; } }
"""


@cache
def page() -> str:
    """Render the OpenAPI document as an HTML page without scripts."""
    whole = document()
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        "<title>mulligan: the API</title><link rel=stylesheet href=/docs.css><main><h1>mulligan: the API</h1>",
        f"<p>{escape(whole['info']['description'])} The same as <a href=/openapi.json>OpenAPI 3.1</a>.</p>",
    ]
    for path, methods in whole["paths"].items():
        for method, about in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(about['summary'])}.</p>")
            if body := about.get("requestBody"):
                named = [_named(kind, each["schema"]) for kind, each in body["content"].items()]
                parts.append(f"<p>Send {' or '.join(named)}.</p>")
            if given := about.get("parameters"):
                rows = "".join(
                    f"<tr><td><code>{escape(each['name'])}</code><td>{escape(_takes(each['schema']))}"
                    f"<td>{escape(each.get('description', ''))}"
                    for each in given
                )
                parts.append(f"<div><table><tr><th>parameter<th>takes<th>means{rows}</table></div>")
            parts.append(f"<p>Answers {', '.join(about['responses'])}.</p>")
    parts.append("<h1>What is sent</h1>")
    for sent in ("SentRun", "SentStep", "SentFailure", "SentBatch", "Asked", "Report", "SentVerdict"):
        about = whole["components"]["schemas"][sent]
        rows = "".join(
            f"<tr><td><code>{escape(name)}</code><td>{escape(_takes(each))}<td>{escape(each.get('description', ''))}"
            for name, each in about["properties"].items()
        )
        parts.append(f"<h2 id={sent}>{sent}</h2><p>{escape(about.get('description', ''))}</p>")
        parts.append(f"<div><table>{rows}</table></div>")
    return "".join([*parts, "</main>"])


def _named(kind: str, schema: dict[str, Any]) -> str:
    refs = [each["$ref"] for each in (schema, *schema.get("anyOf", ())) if "$ref" in each]
    told = "".join(f" (<a href='#{ref.rpartition('/')[2]}'>{ref.rpartition('/')[2]}</a>)" for ref in refs)
    return f"<code>{escape(kind)}</code>{told}"


def _takes(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(filter(None, map(_takes, schema["anyOf"])))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    bounds = [f"{schema[name]}" if name in schema else "" for name in ("minimum", "maximum")]
    return str(schema.get("type", "anything")) + (f" {bounds[0]}..{bounds[1]}" if any(bounds) else "")
