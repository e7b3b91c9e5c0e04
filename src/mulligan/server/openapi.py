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
from mulligan.core.events import AnyEvent
from mulligan.core.failure import Kind
from mulligan.server import lesson_routes
from mulligan.server.access import protected_route
from mulligan.server.app import Server
from mulligan.server.lesson_routes import LessonDecisionPayload
from mulligan.server.payloads import (
    BatchPayload,
    FailurePayload,
    FailurePayloads,
    RunPayload,
    RunPayloads,
    StepPayload,
    StepPayloads,
)
from mulligan.server.queries import QUERY_ENDPOINTS
from mulligan.server.responses import json_response
from mulligan.store import wire_protocol

SCHEMA_REFERENCE = "#/components/schemas/{name}"
STORED_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["new"],
    "properties": {
        "new": {"type": "integer", "minimum": 0, "description": "Number of new records."},
        "offset": {"type": "integer"},
        "runs": {"type": "array", "items": {"type": "string"}},
    },
}
ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error", "message"],
    "properties": {
        "error": {"type": "string", "description": "Error code for programs."},
        "message": {"type": "string", "description": "Message for people."},
        "field": {"type": "string", "description": "Path of the invalid field in the request."},
        "code": {"type": "integer"},
    },
}
STATUSES = {
    400: "Invalid request. field and message name the cause.",
    401: "Missing, unknown, expired or revoked token.",
    403: "Insufficient role, or a cross-site request.",
    404: "Not found, or it belongs to another tenant.",
    408: "The body was not received within a minute.",
    413: "Body above 5 MB, or above 20 MB decompressed.",
    415: "Unsupported content type or encoding.",
    421: "Host name not allowed.",
    429: "Rate limit or quota exceeded. Retry after Retry-After.",
    503: "Store unavailable. Retry after Retry-After.",
}
REQUESTS: tuple[tuple[str, str, Any, Any], ...] = (
    ("/v1/runs", "Send runs with their steps and failures", RunPayloads, "Stored"),
    ("/v1/steps", "Send steps of runs", StepPayloads, "Stored"),
    ("/v1/failures", "Send failures of steps or runs", FailurePayloads, "Stored"),
    ("/v1/batch", "Send events in the format of mulligan's journal", BatchPayload, "Stored"),
    (
        "/v1/recall",
        "Return what recovered the same failure in earlier runs",
        wire_protocol.RecallRequest,
        "RecallResponse",
    ),
    (
        "/v1/outcomes",
        "Report the outcome of a fix whose calls are not stored here",
        wire_protocol.OutcomeReport,
        "Outcome",
    ),
    (
        lesson_routes.PATH,
        "Approve, disable or revoke a lesson",
        LessonDecisionPayload,
        "Lesson",
    ),
)
OTLP = (
    ("/v1/traces", "Send OpenTelemetry traces", "resourceSpans"),
    ("/v1/logs", "Send OpenTelemetry logs with calls", "resourceLogs"),
    ("/v1/metrics", "Accept OpenTelemetry metrics without storing them", "resourceMetrics"),
)
REQUIRED_FIELDS = {"Audit": ("audit", "next", "now"),
         "Runs": ("runs", "next", "now"), "Patterns": ("patterns", "next", "now"), "Fixes": ("fixes", "next", "now"),
         "Lessons": ("lessons", "next", "now"), "Lesson": ("id", "tool", "state", "source"),
         "Parts": ("next", "now"), "Run": ("id", "status", "calls", "run"), "Pattern": ("id", "kind", "occurrences"),
         "Stats": ("total", "total_runs", "total_failures", "success_rate", "failure_breakdown")}  # fmt: skip


ID_PARAMETER: dict[str, Any] = {
    "name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1},
}  # fmt: skip


def build_routes(server: Server) -> Iterable[BaseRoute]:
    async def openapi(request: Request) -> Response:
        return json_response(build_document())

    async def docs(request: Request) -> Response:
        return HTMLResponse(render_page())

    async def style(request: Request) -> Response:
        return Response(CSS, media_type="text/css")

    return [
        protected_route(server, "/openapi.json", openapi, "nothing"),
        protected_route(server, "/docs", docs, "nothing"),
        protected_route(server, "/docs.css", style, "nothing"),
    ]


def _schema_hook(type: type) -> dict[str, Any]:
    if type is Kind:
        return {"type": "string", "examples": ["tool/timeout"]}
    raise NotImplementedError(str(type))


@cache
def build_document() -> dict[str, Any]:
    """Build the OpenAPI 3.1 document."""
    types = [payload_type for _, _, payload_type, _ in REQUESTS]
    types += [RunPayload, StepPayload, FailurePayload, AnyEvent, wire_protocol.RecallResponse]
    request_schemas, schemas = msgspec.json.schema_components(
        types, schema_hook=_schema_hook, ref_template=SCHEMA_REFERENCE
    )
    schemas = dict(schemas)
    schemas_by_path = {path: schema for (path, *_), schema in zip(REQUESTS, request_schemas, strict=False)}
    schemas |= {"Stored": STORED_SCHEMA, "Error": ERROR_SCHEMA, "Outcome": {"type": "object", "required": ["stored"]}}
    schemas |= {
        name: {"type": "object", "required": list(required_fields)} for name, required_fields in REQUIRED_FIELDS.items()
    }
    paths: dict[str, Any] = {}
    for path, summary, _, response_schema in REQUESTS:
        missing = (404,) if path == "/v1/outcomes" or "{" in path else ()
        body = {"required": True, "content": {"application/json": {"schema": schemas_by_path[path]}}}
        paths[path] = {
            "post": _operation(summary, path, "post", response_schema, (400, 408, 413, 415, 429, *missing))
            | {"requestBody": body}
        }
        if "{id}" in path:
            paths[path]["post"]["parameters"] = [ID_PARAMETER]
    for path, summary, field in OTLP:
        types_of = {
            "application/json": {
                "schema": {"type": "object", "required": [field], "properties": {field: {"type": "array"}}}
            },
            "application/x-protobuf": {"schema": {"type": "string", "format": "binary"}},
        }
        operation = _operation(summary, path, "post", "Exported", (400, 408, 413, 415, 429))
        for status in ("200", "400", "429", "503"):
            binary_content = {"schema": {"type": "string", "format": "binary"}}
            operation["responses"].get(status, {}).setdefault("content", {})["application/x-protobuf"] = binary_content
        paths[path] = {"post": operation | {"requestBody": {"required": True, "content": types_of}}}
    schemas["Exported"] = {"type": "object", "properties": {"partialSuccess": {"type": "object"}}}
    for query in QUERY_ENDPOINTS:
        missing = (404,) if "{" in query.path else ()
        operation = _operation(query.summary, query.path, "get", query.response_schema, (400, *missing))
        operation["parameters"] = [
            {"name": parameter.name, "in": "query", "description": parameter.description, "schema": parameter.schema}
            for parameter in query.parameters
        ]
        if "{id}" in query.path:
            operation["parameters"].append(ID_PARAMETER)
        if query.has_csv:
            operation["responses"]["200"]["content"]["text/csv"] = {"schema": {"type": "string"}}
        paths.setdefault(query.path, {})["get"] = operation
    prometheus_response = {
        "200": {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    }
    paths["/metrics"] = {"get": _operation("Metrics for Prometheus", "/metrics", "get", "Stats", ())}
    paths["/metrics"]["get"]["responses"] |= prometheus_response
    for path, summary in (("/healthz", "Liveness of the process"), ("/readyz", "Readiness of the store")):
        paths[path] = {"get": _operation(summary, path, "get", "Health", ()) | {"security": []}}
    schemas["Health"] = {"type": "object", "required": ["status"]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mulligan",
            "version": __version__,
            "description": "API for sending and querying runs, failures, fixes and lessons.",
        },
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(summary: str, path: str, method: str, response_schema: str, statuses: tuple[int, ...]) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": SCHEMA_REFERENCE.format(name="Error")}}}
    responses: dict[str, Any] = {
        "200": {
            "description": "Stored." if method == "post" else "Response.",
            "content": {"application/json": {"schema": {"$ref": SCHEMA_REFERENCE.format(name=response_schema)}}},
        }
    }
    for status in sorted({*statuses, 401, 403, 421, 503}):
        responses[str(status)] = {"description": STATUSES[status], "content": dict(error)}
        if status in (429, 503):
            responses[str(status)]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    name = path.strip("/").replace("/", "_").replace("{", "").replace("}", "").replace(".", "_")
    return {"summary": summary.rstrip("."), "operationId": f"{method}_{name}", "responses": responses}


CSS = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
h2 { margin: 2rem 0 .3rem; font-size: 1.1rem; } code { font-size: .95em; } table { border-collapse: collapse; }
p, td { overflow-wrap: anywhere; } div { overflow-x: auto; }
th, td { text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top; }
@media (prefers-color-scheme: dark) { body { background: #151515; color: #e8e8e8; } a { color: #8ab4f8; } }
"""


@cache
def render_page() -> str:
    """Render the OpenAPI document as an HTML page without scripts."""
    api_document = build_document()
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        "<title>mulligan API</title><link rel=stylesheet href=/docs.css><main><h1>mulligan API</h1>",
        f"<p>{escape(api_document['info']['description'])} As <a href=/openapi.json>OpenAPI 3.1</a>.</p>",
    ]
    for path, methods in api_document["paths"].items():
        for method, definition in methods.items():
            parts.append(
                f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(definition['summary'])}.</p>"
            )
            if body := definition.get("requestBody"):
                content_links = [
                    _media_type_link(kind, media_type["schema"]) for kind, media_type in body["content"].items()
                ]
                parts.append(f"<p>Send {' or '.join(content_links)}.</p>")
            if parameters := definition.get("parameters"):
                rows = "".join(
                    f"<tr><td><code>{escape(parameter['name'])}</code><td>{escape(_describe_type(parameter['schema']))}"
                    f"<td>{escape(parameter.get('description', ''))}"
                    for parameter in parameters
                )
                parts.append(f"<div><table><tr><th>Parameter<th>Type<th>Description{rows}</table></div>")
            parts.append(f"<p>Responses: {', '.join(definition['responses'])}.</p>")
    parts.append("<h1>Request bodies</h1>")
    for payload_type in (
        RunPayload, StepPayload, FailurePayload, BatchPayload, wire_protocol.RecallRequest, wire_protocol.OutcomeReport,
        LessonDecisionPayload,
    ):  # fmt: skip
        schema_name = payload_type.__name__
        definition = api_document["components"]["schemas"][schema_name]
        rows = "".join(
            f"<tr><td><code>{escape(name)}</code><td>{escape(_describe_type(property_schema))}"
            f"<td>{escape(property_schema.get('description', ''))}"
            for name, property_schema in definition["properties"].items()
        )
        parts.append(f"<h2 id={schema_name}>{schema_name}</h2><p>{escape(definition.get('description', ''))}</p>")
        parts.append(f"<div><table>{rows}</table></div>")
    return "".join([*parts, "</main>"])


def _media_type_link(kind: str, schema: dict[str, Any]) -> str:
    refs = [subschema["$ref"] for subschema in (schema, *schema.get("anyOf", ())) if "$ref" in subschema]
    links = "".join(f" (<a href='#{ref.rpartition('/')[2]}'>{ref.rpartition('/')[2]}</a>)" for ref in refs)
    return f"<code>{escape(kind)}</code>{links}"


def _describe_type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(filter(None, map(_describe_type, schema["anyOf"])))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    bounds = [f"{schema[name]}" if name in schema else "" for name in ("minimum", "maximum")]
    return str(schema.get("type", "any")) + (f" {bounds[0]}..{bounds[1]}" if any(bounds) else "")
