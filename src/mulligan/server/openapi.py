"""The API description for /openapi.json and /docs, derived from the types and parameters that the routes use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, Literal, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mulligan import __version__
from mulligan.contract.store import Store
from mulligan.core.events import AnyEvent
from mulligan.core.failure import Kind
from mulligan.report.resources import MAX_COUNT, MAX_TIMESTAMP_MS, Parameter
from mulligan.server import alert_routes, decisions, payloads
from mulligan.store import wire_protocol

Answer = Callable[[Store, str, dict[str, Any], Request], Response]
"""Function that answers a query for a tenant with the values of its parameters."""


class QueryEndpoint(NamedTuple):
    path: str
    summary: str
    parameters: tuple[Parameter, ...]
    answer: Answer
    response_schema: str
    has_csv: bool = False
    """Whether the response is also available as CSV."""
    role: Literal["read", "admin"] = "read"


SCHEMA_REFERENCE = "#/components/schemas/{name}"
STATUSES = {
    400: "Invalid request. errors has all causes; field and message name the first.",
    401: "Missing, unknown, expired or revoked token.",
    403: "Insufficient role, or a cross-site request.",
    404: "Not found, or it belongs to another tenant.",
    408: "The body was not received within a minute.",
    409: "A conflict with stored records, or several ids start with this prefix. message names them.",
    413: "Body above 5 MB, above 20 MB decompressed, or with more than 2,000 failures.",
    415: "Unsupported content type or encoding.",
    421: "Host name not allowed.",
    429: "Rate limit or quota exceeded. Retry after Retry-After.",
    503: "Store unavailable. Retry after Retry-After.",
}
ALL_STATUSES = (401, 403, 421, 429, 503)
BODY_STATUSES = (400, 408, 413, 415)
RECALL_SUMMARY = "Return what recovered the same failure in earlier runs"
OUTCOME_SUMMARY = "Report the outcome of a fix whose calls are not stored here"
PATTERN_SUMMARY = "Decide about a pattern: its state, owner, issue and comments; merge or split it"
PATTERNS_SUMMARY = "Decide about several patterns"
ALERT_TEST_SUMMARY = "Send a test message to every target of alerts; GET /v1/alerts has the result a moment later"
REVOCATION_SUMMARY = "Exclude all trials of a principal, of a tool or since a time from learning"
FORGET_SUMMARY = "Delete a run, tool, session or text permanently, or all that was learned; a preview unless confirmed"
REQUESTS: tuple[tuple[str, str, Any, str, tuple[int, ...]], ...] = (
    ("/v1/runs", "Send runs with their steps and failures", payloads.RunPayloads, "Stored", (409,)),
    ("/v1/steps", "Send steps of runs", payloads.StepPayloads, "Stored", (409,)),
    ("/v1/failures", "Send failures of steps or runs", payloads.FailurePayloads, "Stored", (409,)),
    ("/v1/batch", "Send events in the format of mulligan's journal", payloads.BatchPayload, "Stored", (409,)),
    ("/v1/recall", RECALL_SUMMARY, wire_protocol.RecallRequest, "RecallResponse", ()),
    ("/v1/outcomes", OUTCOME_SUMMARY, wire_protocol.OutcomeReport, "Outcome", (404,)),
    ("/v1/fixes/{id}", "Approve or revoke a fix", decisions.FixDecisionPayload, "FixSummary", (404, 409)),
    ("/v1/lessons/{id}", "Approve, disable or revoke a lesson", decisions.LessonDecisionPayload, "Lesson", (404, 409)),
    ("/v1/patterns/{id}", PATTERN_SUMMARY, decisions.PatternDecisionPayload, "Pattern", (404, 409)),
    ("/v1/patterns", PATTERNS_SUMMARY, decisions.PatternDecisionsPayload, "DecidedPatterns", (404, 409)),
    ("/v1/alerts", "Change the rules and targets of alerts", alert_routes.AlertRulesPayload, "AlertRules", ()),
    ("/v1/alerts/test", ALERT_TEST_SUMMARY, alert_routes.AlertTestPayload, "Alert", ()),
    ("/v1/revocations", REVOCATION_SUMMARY, decisions.RevocationPayload, "Revoked", ()),
    ("/v1/forget", FORGET_SUMMARY, decisions.ForgetPayload, "Deleted", (404, 409)),
    ("/v1/prune", "Delete expired runs; a preview unless confirmed", decisions.PrunePayload, "Deleted", ()),
)
"""Path, summary, type of the body, schema of the response and further statuses of each POST endpoint."""
DOCUMENTED_PAYLOADS = (
    payloads.RunPayload, payloads.StepPayload, payloads.FailurePayload, payloads.BatchPayload,
    wire_protocol.RecallRequest, wire_protocol.OutcomeReport, decisions.FixDecisionPayload,
    decisions.LessonDecisionPayload, decisions.PatternDecisionPayload, decisions.PatternDecisionsPayload,
    alert_routes.AlertRulesPayload, alert_routes.AlertTestPayload,
    decisions.RevocationPayload, decisions.ForgetPayload, decisions.PrunePayload,
)  # fmt: skip
TAGS = {
    "Send": "Send records. Needs the role ingest or admin, a lookup any role; on loopback, no token.",
    "OpenTelemetry": "Send records with an OpenTelemetry exporter.",
    "Query": "Query records and metrics. Needs the role read or admin.",
    "Decide": "Decide about fixes, lessons, patterns and alerts. Needs the role admin.",
    "Delete": "Delete records. Needs the role admin.",
    "Operate": "Health of the server. Public, except for metrics.",
}
TAG_OF_PATH = {
    **dict.fromkeys(("/v1/forget", "/v1/prune"), "Delete"),
    **dict.fromkeys(("/v1/revocations", "/v1/alerts", "/v1/alerts/test"), "Decide"),
    **dict.fromkeys(("/metrics", "/healthz", "/readyz"), "Operate"),
    **dict.fromkeys(("/v1/traces", "/v1/logs", "/v1/metrics"), "OpenTelemetry"),
}
RUN_EXAMPLE = {
    "id": "job-17", "agent": "nightly", "started_at": 1794700000000,
    "steps": [
        {"name": "fetch", "duration_seconds": 3, "failure": {"message": "Read timed out after 3 s"}},
        {"name": "fetch", "call": 1, "duration_seconds": 0.5},
    ],
}  # fmt: skip
EXAMPLES: dict[str, Any] = {
    "/v1/runs": {"run": RUN_EXAMPLE, "end": {"id": "job-17", "end_reason": "finished"}},
    "/v1/steps": {"numbered": {"run": "job-17", "seq": 3, "name": "send"}, "next": {"run": "job-17", "name": "log"}},
    "/v1/failures": {"failure": {"run": "job-17", "step": 3, "code": "timeout", "message": "No answer after 10 s"}},
    "/v1/batch": {"empty": {"client": "client_a", "journal": "1-a", "offset": 1, "events": []}},
    "/v1/recall": {"tool": {"fixes": {"tool": "fetch"}}},
    "/v1/outcomes": {"success": {"fix_id": "fix_8f2c", "run": "job-17", "successful": True}},
    "/v1/fixes/{id}": {"approve": {"verdict": "approve"}, "revoke": {"verdict": "revoke"}},
    "/v1/lessons/{id}": {"approve": {"verdict": "approve"}},
    "/v1/patterns/{id}": {"mute": {"action": "mute"}, "merge": {"action": "merge", "into": "pat_11aa"}},
    "/v1/patterns": {"assign": {"ids": ["pat_11aa"], "action": "assign", "text": "search-team"}},
    "/v1/alerts": {"rules": {"types": ["new_pattern", "person_needed"], "quiet_hours": "22:00-07:00 Europe/Berlin"}},
    "/v1/alerts/test": {"test": {}},
    "/v1/revocations": {"principal": {"principal": "ann"}},
    "/v1/forget": {"preview": {"run": "job-17"}, "delete": {"run": "job-17", "confirm": True}},
    "/v1/prune": {"preview": {"keep_successes": 14}, "delete": {"keep_successes": 14, "confirm": True}},
}
"""Bodies by path. A test sends each of them."""
OTLP = (
    ("/v1/traces", "Send OpenTelemetry traces", "resourceSpans"),
    ("/api/public/otel/v1/traces", "Send OpenTelemetry traces with Langfuse's SDK", "resourceSpans"),
    ("/v1/logs", "Send OpenTelemetry logs with calls", "resourceLogs"),
    ("/v1/metrics", "Accept OpenTelemetry metrics without storing them", "resourceMetrics"),
)
LIST_SCHEMAS = {
    "runs": "Runs", "patterns": "Patterns", "fixes": "Fixes", "lessons": "Lessons", "tools": "Parts",
    "agents": "Parts", "audit": "Audit",
}  # fmt: skip
"""Response schemas of the lists, by resource."""
REQUIRED_FIELDS: dict[str, tuple[str, ...]] = {
    **{schema: (name, "next", "now") for name, schema in LIST_SCHEMAS.items()},
    "Parts": ("next", "now"),
    "Lesson": ("id", "tool", "state", "source"),
    "FixSummary": ("id", "tool", "state", "action"),
    "Alerts": ("alerts", "rules", "now"),
    "AlertRules": ("rules",),
    "Alert": ("id", "type", "state", "deliveries"),
    "Revoked": ("runs", "votes", "fixes"),
    "Deleted": ("dry_run", "runs", "steps"),
    "Run": ("id", "status", "calls", "run"),
    "Pattern": ("id", "kind", "occurrences"),
    "DecidedPatterns": ("patterns",),
    "RunGroups": ("groups", "runs", "is_cut"),
    "SearchHits": ("hits",),
    "Impact": ("conclusion", "summary", "contributions", "incomparable"),
    "Comparison": ("values", "stats", "differences", "conclusion"),
    "Stats": ("total", "total_runs", "total_failures", "success_rate", "failure_breakdown"),
    "Outcome": ("stored",),
    "Health": ("status",),
}
SCHEMAS: dict[str, Any] = {
    "Stored": {
        "type": "object",
        "required": ["new"],
        "properties": {
            "new": {"type": "integer", "minimum": 0, "description": "Number of new records."},
            "offset": {"type": "integer"},
            "runs": {"type": "array", "items": {"type": "string"}, "description": "Ids of the runs."},
            "seqs": {
                "type": "array",
                "items": {"type": "integer"},
                "description": "Numbers of the steps, if some were sent without one.",
            },
        },
    },
    "Error": {
        "type": "object",
        "required": ["error", "message"],
        "properties": {
            "error": {"type": "string", "description": "Error code for programs."},
            "message": {"type": "string", "description": "Message for people."},
            "field": {"type": "string", "description": "Path of the invalid field in the request."},
            "pointer": {"type": "string", "description": "The same as a JSON pointer. Empty for the whole body."},
            "errors": {
                "type": "array",
                "description": "All faults of the request, the first one included.",
                "items": {
                    "type": "object",
                    "required": ["pointer", "field", "message"],
                    "properties": {
                        "pointer": {"type": "string"},
                        "field": {"type": "string"},
                        "message": {"type": "string", "minLength": 1},
                    },
                },
            },
            "code": {"type": "integer"},
        },
        "if": {"properties": {"error": {"const": "invalid"}}},
        "then": {"required": ["pointer", "errors"]},
    },
    "Exported": {"type": "object", "properties": {"partialSuccess": {"type": "object"}}},
    **{name: {"type": "object", "required": list(fields)} for name, fields in REQUIRED_FIELDS.items()},
}
INVALID_TIME = (
    "Invalid started_at 1794700000: it is in seconds (2026-11-14 23:46:40). Use UTC milliseconds: 1794700000000."
)
ERROR_EXAMPLES = {
    400: {
        "error": "invalid",
        "field": "started_at",
        "pointer": "/started_at",
        "message": INVALID_TIME,
        "errors": [{"pointer": "/started_at", "field": "started_at", "message": INVALID_TIME}],
    },
    404: {"error": "not_found", "message": "No run with the id 'job-1', and none that starts with it."},
    409: {
        "error": "ambiguous",
        "message": "Several runs start with 'job-': job-16, job-17. Use more of the id.",
    },
    429: {"error": "busy", "message": "Too many records. Retry after the time in Retry-After."},
}
ID_PARAMETER = {
    "name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1},
    "description": "The id, or an unambiguous prefix of it.", "example": "run_8f2c",
}  # fmt: skip
BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
TEXT: dict[str, Any] = {"schema": {"type": "string"}}


def _schema_hook(type: type) -> dict[str, Any]:
    if type is Kind:
        return {"type": "string", "examples": ["tool/timeout"]}
    raise NotImplementedError(str(type))


def parameter_schema(parameter: Parameter) -> dict[str, Any]:
    schemas: dict[str, dict[str, Any]] = {
        "choice": {"type": "string", "enum": list(parameter.choices)},
        "count": {"type": "integer", "minimum": 1, "maximum": parameter.maximum},
        "amount": {"type": "number", "minimum": 0, "maximum": MAX_COUNT},
        "clock": {"type": "integer", "minimum": 0, "maximum": MAX_TIMESTAMP_MS},
        "flag": {"type": "boolean"},
        "moment": {"type": "string", "examples": ["24h", "7d", "2026-01-31"], "maxLength": 1000},
    }
    schema = schemas.get(parameter.type, {"type": "string", "maxLength": 1000})
    return schema | ({"default": parameter.default} if parameter.default is not None else {})


def build_document(endpoints: Iterable[QueryEndpoint]) -> dict[str, Any]:
    types = [payload_type for _, _, payload_type, *_ in REQUESTS]
    types += [
        payloads.RunPayload,
        payloads.StepPayload,
        payloads.FailurePayload,
        AnyEvent,
        wire_protocol.RecallResponse,
    ]
    bodies, schemas = msgspec.json.schema_components(types, schema_hook=_schema_hook, ref_template=SCHEMA_REFERENCE)
    paths: dict[str, Any] = {}
    for (path, summary, _, schema, further_statuses), body in zip(REQUESTS, bodies, strict=False):
        statuses = (*BODY_STATUSES, *further_statuses)
        examples = {name: {"value": value} for name, value in EXAMPLES[path].items()}
        content = {"application/json": {"schema": body, "examples": examples}}
        paths.setdefault(path, {})["post"] = _operation(summary, path, "post", schema, statuses, content)
    for path, summary, field in OTLP:
        export = {"type": "object", "required": [field], "properties": {field: {"type": "array"}}}
        content = {"application/json": {"schema": export}, "application/x-protobuf": BINARY}
        operation = _operation(summary, path, "post", "Exported", BODY_STATUSES, content)
        for status in ("200", "400", "429", "503"):
            operation["responses"][status]["content"]["application/x-protobuf"] = BINARY
        paths[path] = {"post": operation}
    for endpoint in endpoints:
        missing = [404, 409] if "{" in endpoint.path else []
        operation = _operation(endpoint.summary, endpoint.path, "get", endpoint.response_schema, [400, *missing])
        operation["parameters"] = [
            {"name": item.name, "in": "query", "description": item.description, "schema": parameter_schema(item)}
            for item in endpoint.parameters
        ] + operation.get("parameters", [])
        if endpoint.has_csv:
            operation["responses"]["200"]["content"]["text/csv"] = TEXT
        paths.setdefault(endpoint.path, {})["get"] = operation
    paths["/metrics"] = {"get": _operation("Metrics for Prometheus", "/metrics", "get", "Stats")}
    paths["/metrics"]["get"]["responses"]["200"] = {"description": "Prometheus text.", "content": {"text/plain": TEXT}}
    for path, summary in (("/healthz", "Liveness of the process"), ("/readyz", "Readiness of the store")):
        paths[path] = {"get": _operation(summary, path, "get", "Health") | {"security": []}}
        del paths[path]["get"]["responses"]["429"]  # they need no quota
    description = "API for sending and querying runs, failures, fixes and lessons."
    tokens = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "mulligan", "version": __version__, "description": description},
        "servers": [{"url": "/", "description": "This server"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {"schemas": {**schemas, **SCHEMAS}, "securitySchemes": tokens},
    }


def _operation(
    summary: str, path: str, method: str, schema: str, statuses: Sequence[int] = (), content: Any = None
) -> dict[str, Any]:
    reference = {"schema": {"$ref": SCHEMA_REFERENCE.format(name=schema)}}
    description = "Stored." if method == "post" else "Response."
    responses: dict[str, Any] = {"200": {"description": description, "content": {"application/json": reference}}}
    for status in sorted({*statuses, *ALL_STATUSES}):
        error: dict[str, Any] = {"schema": {"$ref": SCHEMA_REFERENCE.format(name="Error")}}
        if status in ERROR_EXAMPLES:
            error["example"] = ERROR_EXAMPLES[status]
        responses[str(status)] = {"description": STATUSES[status], "content": {"application/json": error}}
        if status in (429, 503):
            responses[str(status)]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    name = path.strip("/").translate(str.maketrans("/.", "__", "{}"))
    operation: dict[str, Any] = {
        "summary": summary.rstrip("."), "operationId": f"{method}_{name}", "responses": responses,
        "tags": [_tag(path, method)],
    }  # fmt: skip
    if "{id}" in path:
        operation["parameters"] = [ID_PARAMETER]
    return operation | ({"requestBody": {"required": True, "content": content}} if content else {})


def _tag(path: str, method: str) -> str:
    if path in TAG_OF_PATH:
        return TAG_OF_PATH[path]
    if method == "get":
        return "Query"
    return "Decide" if "{id}" in path else "Send"


CSS = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
h2 { margin: 2rem 0 .3rem; font-size: 1.1rem; } code { font-size: .95em; } table { border-collapse: collapse; }
p, td { overflow-wrap: anywhere; } td:first-child { overflow-wrap: normal; } div { overflow-x: auto; }
th, td { text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top; }
@media (prefers-color-scheme: dark) { body { background: #151515; color: #e8e8e8; } a { color: #8ab4f8; } }
"""


def render_page(document: dict[str, Any]) -> str:
    """Render the OpenAPI document as an HTML page without scripts."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        "<title>mulligan API</title><link rel=stylesheet href=/docs.css><main><h1>mulligan API</h1>",
        f"<p>{escape(document['info']['description'])} As <a href=/openapi.json>OpenAPI 3.1</a>.</p>",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}.</p>")
            if body := operation.get("requestBody"):
                links = [_media_type_link(kind, media_type["schema"]) for kind, media_type in body["content"].items()]
                parts.append(f"<p>Send {' or '.join(links)}.</p>")
            if parameters := operation.get("parameters"):
                rows = [(item["name"], item["schema"], item.get("description", "")) for item in parameters]
                parts.append(_render_rows(rows, "<tr><th>Parameter<th>Type<th>Description"))
            parts.append(f"<p>Responses: {', '.join(operation['responses'])}.</p>")
    parts.append("<h1>Request bodies</h1>")
    for name in (payload_type.__name__ for payload_type in DOCUMENTED_PAYLOADS):
        schema = document["components"]["schemas"][name]
        rows = [(field, value, value.get("description", "")) for field, value in schema["properties"].items()]
        parts.append(f"<h2 id={name}>{name}</h2><p>{escape(schema.get('description', ''))}</p>{_render_rows(rows)}")
    return "".join([*parts, "</main>"])


def _render_rows(rows: Iterable[tuple[str, dict[str, Any], str]], head: str = "") -> str:
    cells = (
        f"<tr><td><code>{escape(name)}</code><td>{escape(_describe_type(schema))}<td>{escape(description)}"
        for name, schema, description in rows
    )
    return f"<div><table>{head}{''.join(cells)}</table></div>"


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
