"""GET /v1/runs, stats, patterns, lessons, fixes, tools, agents and audit: stored records as JSON or CSV."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan.core.records import STEP_TYPES, FixState, LessonSource, LessonState, PatternState, Status, to_builtins
from mulligan.report import audit_report, fix_report, lesson_report, overview, pattern_report, run_text
from mulligan.report import stats as stats_report
from mulligan.server.access import RequiredRole, protected_route
from mulligan.server.app import Server
from mulligan.server.errors import invalid, not_found
from mulligan.server.parameters import Parameter, check_kind, decode_cursor, encode_cursor, read_parameters, wants_csv
from mulligan.server.responses import csv_response, json_response
from mulligan.server.tenant_queries import TenantQueries
from mulligan.store.base import AuditQuery, FixQuery, LessonQuery, PatternQuery, RunQuery
from mulligan.store.counters import By, StatsQuery

SINCE = Parameter("since", "moment", "Start of the period: an age (24h, 7d), a date, UTC milliseconds, or all.")
UNTIL = Parameter("until", "moment", "End of the period, in the same formats.")
NOW = Parameter("now", "clock", "Reference time of ages, in UTC milliseconds. Default: the server's clock.")
AGENT = Parameter("agent", "text", "Only this agent.")
TOOL = Parameter("tool", "text", "Only this tool.")
KIND = Parameter("kind", "text", "Only failures of this kind (tool/timeout) or type (tool).")
MODEL = Parameter("model", "text", "Only this model.")
VERSION = Parameter("version", "text", "Only this version of the agent.")
ENVIRONMENT = Parameter("environment", "text", "Only this environment.")
FORMAT = Parameter("format", "choice", "Response format.", ("json", "csv"))
CURSOR = Parameter("cursor", "cursor", "Start of the next page: the value of next in the previous response.")
LIMIT = Parameter("limit", "count", "Maximum number of rows.", default=50)
LESSON_COLUMNS = (
    "id", "tool", "kind", "state", "source", "mistake", "correction", "trials", "successes", "occurrences",
    "helped_runs", "unhelped_runs", "last_tried_at", "reason",
)  # fmt: skip
FIX_COLUMNS = (
    "id",
    "tool",
    "type",
    "state",
    "trials",
    "successes",
    "principals",
    "days",
    "last_tried_at",
    "action",
    "reason",
)


class QueryEndpoint(NamedTuple):
    """Declaration of one query endpoint: path, parameters, handler and response schema."""

    path: str
    summary: str
    parameters: tuple[Parameter, ...]
    handler: str
    response_schema: str
    """Name of the response schema."""
    has_csv: bool = False
    """Whether the response is also available as CSV."""
    required_role: RequiredRole = "read"


QUERY_ENDPOINTS = (
    QueryEndpoint(
        "/v1/runs",
        "List runs, newest first.",
        (
            AGENT, Parameter("status", "choice", "Only runs with this status.", get_args(Status)), TOOL, KIND,
            Parameter("pattern", "text", "Only runs with a failure of this pattern."), MODEL, VERSION, ENVIRONMENT,
            Parameter("session", "text", "Only this session."), SINCE, UNTIL, NOW, LIMIT, CURSOR, FORMAT,
        ),
        "runs", "Runs", True,
    ),
    QueryEndpoint("/v1/runs/{id}", "Return one run with all attempts of all calls.", (), "run", "Run"),
    QueryEndpoint(
        "/v1/stats",
        "Return failures, recoveries, costs and recommendations.",
        (
            Parameter("by", "choice", "Dimension that splits the metrics.", get_args(By)),
            SINCE._replace(default="7d"), UNTIL, NOW, AGENT, TOOL, KIND, MODEL, VERSION, ENVIRONMENT,
            Parameter("type", "choice", "Only steps of this type.", STEP_TYPES), FORMAT,
        ),
        "stats", "Stats", True,
    ),
    QueryEndpoint(
        "/v1/patterns",
        "List failure patterns.",
        (
            Parameter("state", "choice", "Only patterns in this state. Default: all except muted.",
                      get_args(PatternState)),
            TOOL, KIND, AGENT, Parameter("text", "text", "Text in the tool name, kind or message."), SINCE,
            Parameter("new_since", "moment", "Only patterns first seen since this time."), NOW,
            Parameter("order", "choice", "Sort field, highest first.",
                      ("occurrences", "unrecovered", "last_seen", "first_seen"), "occurrences"),
            LIMIT, CURSOR, FORMAT,
        ),
        "patterns", "Patterns", True,
    ),
    QueryEndpoint("/v1/patterns/{id}", "Return one pattern and its earlier recoveries.", (), "pattern", "Pattern"),
    QueryEndpoint(
        "/v1/fixes",
        "List fixes.",
        (
            TOOL, Parameter("state", "choice", "Only fixes in this state.", get_args(FixState)), NOW, LIMIT, CURSOR,
            FORMAT,
        ),
        "fixes", "Fixes", True,
    ),
    QueryEndpoint(
        "/v1/lessons",
        "List lessons, highest confidence first.",
        (
            TOOL, KIND, Parameter("agent", "text", "Agent whose own lessons are listed first."),
            Parameter("text", "text", "Text in the tool, kind or lesson, or a similar error message."),
            Parameter("state", "choice", "Only lessons in this state.", get_args(LessonState)),
            Parameter("source", "choice", "Only lessons of this source.",
                      get_args(LessonSource)),
            NOW, LIMIT, CURSOR, FORMAT,
        ),
        "lessons", "Lessons", True,
    ),
    QueryEndpoint("/v1/lessons/{id}", "Return one lesson with its evidence.", (), "lesson", "Lesson"),
    QueryEndpoint(
        "/v1/tools", "List metrics by tool, most unrecovered calls first.",
        (SINCE._replace(default="7d"), UNTIL, NOW, AGENT, VERSION, ENVIRONMENT, LIMIT, CURSOR, FORMAT),
        "tools", "Parts", True,
    ),
    QueryEndpoint(
        "/v1/agents", "List metrics by agent, most unrecovered calls first.",
        (SINCE._replace(default="7d"), UNTIL, NOW, TOOL, VERSION, ENVIRONMENT, LIMIT, CURSOR, FORMAT),
        "agents", "Parts", True,
    ),
    QueryEndpoint(
        "/v1/audit", "List the audit log, newest first.",
        (
            Parameter("by", "text", "Only changes by this user."),
            Parameter("action", "text", "Only this action (fix.approve) or all with this prefix (fix)."),
            SINCE, UNTIL, NOW, LIMIT, CURSOR, FORMAT,
        ),
        "audit", "Audit", True, "admin",
    ),
)  # fmt: skip


def build_routes(server: Server) -> Iterable[BaseRoute]:
    query_routes = QueryRoutes(server)
    return [
        protected_route(server, query.path, query_routes.endpoint(query), query.required_role)
        for query in QUERY_ENDPOINTS
    ]


class QueryRoutes:
    """Query endpoints: parse the parameters, query the store, build the response."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def endpoint(self, query: QueryEndpoint) -> Callable[[Request], Awaitable[Response]]:
        handler: Callable[[TenantQueries, dict[str, Any], Request], Response] = getattr(self, f"_{query.handler}")

        async def answer_query(request: Request) -> Response:
            values = read_parameters(request, query.parameters, self._server.clock())
            queries = self._server.queries_for(request.state.caller)
            if "kind" in values:
                values["kind"] = check_kind(values["kind"], "" if query.handler == "stats" else "/")
            return await self._server.run_in_reader(handler, queries, values, request)

        return answer_query

    def _runs(self, queries: TenantQueries, values: dict[str, Any], request: Request) -> Response:
        before, limit = None, values["limit"]
        if values["cursor"]:
            started, id = decode_cursor(values["cursor"], 2)
            before = (int(started), id)
        fields = ("agent", "status", "tool", "kind", "pattern", "model", "version", "environment", "session", "since")
        histories = queries.runs(
            RunQuery(**{name: values[name] for name in (*fields, "until")}, limit=limit + 1, before=before)
        )
        page_histories = histories[:limit]
        rows = [run_text.to_facts(history) for history in page_histories]
        next_cursor = (
            encode_cursor(page_histories[-1].run.started_at, page_histories[-1].run.id)
            if len(histories) > limit
            else None
        )
        return _rows_response("runs", rows, run_text.CSV_COLUMNS, next_cursor, values, request)

    def _run(self, queries: TenantQueries, values: dict[str, Any], request: Request) -> Response:
        history = queries.run(request.path_params["id"])
        if history is None:
            raise not_found("No run with this id, or several ids start with it. Use the full id.")
        return json_response(run_text.to_summary(history) | to_builtins(history))

    def _stats(self, queries: TenantQueries, values: dict[str, Any], request: Request) -> Response:
        fields = ("since", "until", "by", "agent", "tool", "kind", "model", "version", "environment", "type")
        query = StatsQuery(now=values["now"], **{name: values[name] for name in fields})
        stats = queries.stats(query)
        if wants_csv(request, values):
            if query.by is None:
                raise invalid("CSV needs a dimension. Add by, for example by=tool.", "by")
            return csv_response(overview.rank_parts(stats.parts, query.by), [query.by, *stats_report.CSV_COLUMNS])
        facts = overview.build_answer(stats)
        total = facts["total"]
        response: dict[str, Any] = {
            "now": query.now,
            **{name: total[name] for name in ("total_runs", "total_failures", "success_rate")},
            "failure_breakdown": {kind: counts["failures"] for kind, counts in total["kinds"].items()},
            "unrecovered_breakdown": {
                kind: counts["unrecovered"] for kind, counts in total["kinds"].items() if counts["unrecovered"]
            },
            **facts,
        }
        if query.by is None and query.kind is None:
            response["series"] = queries.parts(_replace_fields(query, by="time"))
            response["most_failing_step"] = next(iter(queries.failing_steps(query)), None)
            response["advice"] = queries.advice(query)
        return json_response(response)

    def _patterns(self, queries: TenantQueries, values: dict[str, Any], request: Request) -> Response:
        fields = ("state", "tool", "kind", "agent", "text", "since", "new_since", "order")
        query = PatternQuery(**{name: values[name] for name in fields})

        def read_rows(row_limit: int) -> list[dict[str, Any]]:
            return [
                pattern_report.to_facts(pattern)
                for pattern in queries.patterns(_replace_fields(query, limit=row_limit))
            ]

        return self._list_response(read_rows, "patterns", pattern_report.CSV_COLUMNS, values, request)

    def _pattern(self, queries: TenantQueries, values: dict[str, Any], request: Request) -> Response:
        pattern = queries.pattern(request.path_params["id"])
        if pattern is None:
            raise not_found("No pattern with this id, or several ids start with it. Use the full id.")
        return json_response(
            pattern_report.to_facts(pattern) | {"precedents": to_builtins(queries.precedents(pattern))}
        )

    def _fixes(self, queries: TenantQueries, values: dict[str, Any], request: Request) -> Response:
        query = FixQuery(tool=values["tool"], state=values["state"], now=values["now"])

        def read_rows(row_limit: int) -> list[dict[str, Any]]:
            return [fix_report.to_facts(fix) for fix in queries.fixes(_replace_fields(query, limit=row_limit))]

        return self._list_response(read_rows, "fixes", FIX_COLUMNS, values, request)

    def _lessons(self, queries: TenantQueries, values: dict[str, Any], request: Request) -> Response:
        query = LessonQuery(
            **{name: values[name] for name in ("tool", "kind", "state", "source", "now")},
            agent=values["agent"] or "",
            text=values["text"] or "",
        )

        def read_rows(row_limit: int) -> list[dict[str, Any]]:
            return [
                lesson_report.to_facts(lesson) for lesson in queries.lessons(_replace_fields(query, limit=row_limit))
            ]

        return self._list_response(read_rows, "lessons", LESSON_COLUMNS, values, request)

    def _lesson(self, queries: TenantQueries, values: dict[str, Any], request: Request) -> Response:
        lesson = queries.lesson(request.path_params["id"])
        if lesson is None:
            raise not_found("No lesson with this id, or several ids start with it. Use the full id.")
        evidence = queries.evidence(lesson.fix_id) if lesson.fix_id else []
        return json_response(lesson_report.to_facts(lesson) | {"evidence": to_builtins(evidence)})

    def _tools(self, queries: TenantQueries, values: dict[str, Any], request: Request) -> Response:
        return self._parts("tool", queries, values, request)

    def _agents(self, queries: TenantQueries, values: dict[str, Any], request: Request) -> Response:
        return self._parts("agent", queries, values, request)

    def _audit(self, queries: TenantQueries, values: dict[str, Any], request: Request) -> Response:
        before, limit = None, values["limit"]
        if values["cursor"]:
            at, id = decode_cursor(values["cursor"], 2)
            before = (int(at), id)
        fields = {name: values[name] for name in ("by", "action", "since", "until")}
        entries = queries.audit(AuditQuery(**fields, before=before, limit=limit + 1))
        page_entries = entries[:limit]
        rows = [audit_report.to_facts(entry) for entry in page_entries]
        next_cursor = encode_cursor(page_entries[-1].at, page_entries[-1].id) if len(entries) > limit else None
        return _rows_response("audit", rows, audit_report.CSV_COLUMNS, next_cursor, values, request)

    def _parts(self, by: By, queries: TenantQueries, values: dict[str, Any], request: Request) -> Response:
        fields = ("since", "until", "agent", "tool", "version", "environment")
        query = StatsQuery(now=values["now"], by=by, **{name: values[name] for name in fields if name in values})
        names = (by, *stats_report.CSV_COLUMNS)
        return self._list_response(lambda row_limit: queries.parts(query), f"{by}s", names, values, request)

    def _list_response(
        self, rows: Callable[[int], list[dict[str, Any]]], name: str, columns: Sequence[str], values: dict[str, Any],
        request: Request,
    ) -> Response:  # fmt: skip
        """Build a response with one page of rows and the cursor of the next page."""
        start, limit = 0, values["limit"]
        if values["cursor"]:
            start = min(int(decode_cursor(values["cursor"], 1)[0]), 100_000)
        all_rows = rows(start + limit + 1)
        page_rows = all_rows[start : start + limit]
        next_cursor = encode_cursor(start + limit) if len(all_rows) > start + limit else None
        return _rows_response(name, page_rows, columns, next_cursor, values, request)


def _rows_response(
    name: str, rows: list[dict[str, Any]], columns: Sequence[str], next_cursor: str | None, values: dict[str, Any],
    request: Request,
) -> Response:  # fmt: skip
    """Build a response with one page of a list. The next cursor is a JSON field, or a Link header for CSV."""
    if not wants_csv(request, values):
        return json_response({name: rows, "next": next_cursor, "now": values["now"]})
    next_url = request.url.include_query_params(cursor=next_cursor)
    return csv_response(
        rows, columns, {"Link": f'<{next_url.path}?{next_url.query}>; rel="next"'} if next_cursor else None
    )


def _replace_fields(query: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(query, **fields)
