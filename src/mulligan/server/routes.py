"""Routes of the API: GET /v1/... as JSON or CSV, decisions about lessons, metrics, health and documentation."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from mulligan import __version__
from mulligan.contract.counters import StatsQuery
from mulligan.contract.search_terms import SearchTextError
from mulligan.contract.store import DEFAULT_TENANT, HASH_KEY, RecallQuery, Store
from mulligan.core.failure import SettingsError, WorkerUnavailableError
from mulligan.core.records import to_builtins
from mulligan.report import impact, memory_text, overview, recovery_costs, run_text
from mulligan.report import stats as stats_report
from mulligan.report.resources import IMPACT_SPEC, RESOURCES, RUN_SPEC, STATS_SPEC, Parameter, ResourceSpec
from mulligan.report.run_search import SEARCH_SPEC, search_runs, to_search_facts
from mulligan.report.run_table import MAX_GROUPED_RUNS, RUN_GROUPS, compare_runs, group_runs
from mulligan.server import alert_routes, decisions, ingest, openapi, opentelemetry
from mulligan.server.app import Endpoint, RouteGroup, Server
from mulligan.server.bodies import ApiError, csv_response, invalid, json_response, store_unavailable
from mulligan.server.decisions import find_fix, find_id, unknown
from mulligan.server.openapi import QueryEndpoint
from mulligan.store.sql import DatabaseStore

MAX_PARAMETER_CHARS = 1000
NOW = Parameter("now", "Reference time of ages, in UTC milliseconds. Default: the server's clock.", "clock")
FORMAT = Parameter("format", "Response format.", "choice", ("json", "csv"))
CURSOR = Parameter("cursor", "Start of the next page: the value of next in the previous response.", "cursor")
LIMIT = Parameter("limit", "Maximum number of rows.", "count", default=50)
COMPARE_SUMMARY = "Compare two versions, agents, models, environments or tools; the older one is the baseline."
COMPARED_GROUPS = (
    Parameter("by", "Dimension of the two values.", "choice", overview.COMPARABLE_DIMENSIONS, default="version"),
    Parameter("a", "One value of the dimension."),
    Parameter("b", "The other value."),
)
COMPARED_RUN = Parameter("with", "Id of another run, to compare the two side by side in the field `comparison`.")
GROUPED_BY = Parameter("by", "What the runs of a group have in common.", "choice", RUN_GROUPS, default="agent")
ORDER = next(parameter for parameter in RUN_SPEC.options if parameter.name == "order")
GROUPS_SUMMARY = (
    f"Group the first runs of a query, at most {MAX_GROUPED_RUNS}, with their number, failures, tokens and cost."
)
SEARCH_SUMMARY = "Find runs by the words in them, with the places of the words."
SEARCH_TEXT = Parameter("q", 'The words: word "a phrase" name:value -excluded, and filters such as status:failure.')
PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


# Endpoints


def query_endpoints() -> list[QueryEndpoint]:
    """Return the query endpoints: a list of each resource, its details, and the metrics."""
    endpoints = []
    for name, schema in openapi.LIST_SCHEMAS.items():
        spec = RESOURCES[name]
        parameters = (*spec.options, *spec.filters, NOW, LIMIT, CURSOR, FORMAT)
        endpoints.append(
            QueryEndpoint(f"/v1/{name}", spec.summary, parameters, _list_answer(spec), schema, True, spec.role)
        )
    parameters = (*STATS_SPEC.options, *STATS_SPEC.filters, NOW, FORMAT)
    endpoints.append(QueryEndpoint("/v1/stats", STATS_SPEC.summary, parameters, answer_stats, "Stats", has_csv=True))
    parameters = (*COMPARED_GROUPS, *STATS_SPEC.filters, NOW)
    endpoints.append(QueryEndpoint("/v1/compare", COMPARE_SUMMARY, parameters, answer_comparison, "Comparison"))
    parameters = (*IMPACT_SPEC.filters, NOW)
    endpoints.append(QueryEndpoint("/v1/impact", IMPACT_SPEC.summary, parameters, answer_impact, "Impact"))
    parameters = (SEARCH_TEXT, *SEARCH_SPEC.filters, NOW, LIMIT, CURSOR)
    endpoints.append(QueryEndpoint("/v1/search", SEARCH_SUMMARY, parameters, answer_search, "SearchHits"))
    summary = "List the latest alerts, newest first, with their deliveries, and the rules and targets of alerts."
    endpoints.append(
        QueryEndpoint("/v1/alerts", summary, (NOW, LIMIT), alert_routes.answer_alerts, "Alerts", role="admin")
    )
    parameters = (GROUPED_BY, ORDER, *RUN_SPEC.filters, NOW, FORMAT)
    endpoints.append(QueryEndpoint("/v1/run-groups", GROUPS_SUMMARY, parameters, answer_groups, "RunGroups", True))
    summary = "Return one run with all attempts of all calls, or compared with another."
    endpoints.append(QueryEndpoint("/v1/runs/{id}", summary, (COMPARED_RUN,), answer_run, "Run"))
    for path, summary, answer, schema in (
        ("/v1/patterns/{id}", "Return one pattern and its earlier recoveries.", answer_pattern, "Pattern"),
        ("/v1/fixes/{id}", "Return one fix with its trials.", answer_fix, "FixSummary"),
        ("/v1/lessons/{id}", "Return one lesson with its evidence.", answer_lesson, "Lesson"),
    ):
        endpoints.append(QueryEndpoint(path, summary, (), answer, schema))
    return endpoints


def build_routes(server: Server) -> Iterable[BaseRoute]:
    routes = [
        server.route(endpoint.path, _query_route(server, endpoint), endpoint.role) for endpoint in query_endpoints()
    ]

    async def metrics(request: Request) -> Response:
        text = await server.run_in_reader(_render_metrics, server, request.state.caller.tenant)
        return Response(text, media_type=PROMETHEUS_TYPE, headers={"Cache-Control": "no-store"})

    async def healthz(request: Request) -> Response:
        return json_response({"status": "ok", "version": __version__})

    async def readyz(request: Request) -> Response:
        if server.is_stopping:
            raise store_unavailable("The server is shutting down.")
        try:
            await server.run_in_reader(server.store.get, DEFAULT_TENANT, "server", "ready")
        except ApiError as error:
            if error.error != "worker_unavailable":  # which concerns some tenants; the others are served
                raise
        if server.committer.has_recent_write_failure:
            raise store_unavailable("The store is not writable. See the server's log.")
        workers = server.store.unavailable_workers() if isinstance(server.store, DatabaseStore) else ()
        facts: dict[str, Any] = {"status": "degraded" if workers else "ok"}
        if workers and server.rules.is_local:
            facts["unavailable_workers"] = workers
        return json_response({**facts, "waiting_bytes": server.committer.pending_bytes})

    async def document(request: Request) -> Response:
        return json_response(api_document())

    async def docs(request: Request) -> Response:
        return HTMLResponse(openapi.render_page(api_document()))

    async def style(request: Request) -> Response:
        return Response(openapi.CSS, media_type="text/css")

    public = {"healthz": healthz, "readyz": readyz, "openapi.json": document, "docs": docs, "docs.css": style}
    return [
        *routes,
        server.route("/metrics", metrics, "read"),
        *(server.route(f"/{name}", endpoint, "nothing") for name, endpoint in public.items()),
    ]


ROUTE_GROUPS: tuple[RouteGroup, ...] = (
    ingest.build_routes,
    opentelemetry.build_routes,
    build_routes,
    decisions.build_routes,
    alert_routes.build_routes,
)
"""Route groups of the API, the busiest routes first. The `serve` command adds the dashboard."""


@cache
def api_document() -> dict[str, Any]:
    return openapi.build_document(query_endpoints())


def _query_route(server: Server, endpoint: QueryEndpoint) -> Endpoint:
    async def answer_query(request: Request) -> Response:
        values, tenant = read_parameters(request, endpoint.parameters, server.clock()), request.state.caller.tenant
        try:
            return await server.run_in_reader(endpoint.answer, server.store, tenant, values, request)
        except SearchTextError as error:
            raise invalid(str(error), "q" if "q" in values else "text") from None
        except SettingsError as error:
            raise invalid(str(error), "since") from None

    return answer_query


def _list_answer(resource: ResourceSpec) -> openapi.Answer:
    """Build the function that answers with one page of a list. Its cursor is the sort key of the last row."""

    def answer(store: Store, tenant: str, values: dict[str, Any], request: Request) -> Response:
        position = decode_cursor(values["cursor"], resource.position_type) if values["cursor"] else None
        records, next_position = resource.read_page(store, tenant, values, values["limit"], position)
        rows, names = list(map(resource.to_facts, records)), resource.csv_columns
        if values.get("columns"):
            try:
                names = resource.choose_columns(values["columns"])
            except ValueError as error:
                raise invalid(str(error), "columns") from None
            rows = [{name: row.get(name) for name in names} for row in rows]
        next_cursor = encode_cursor(next_position) if next_position is not None else None
        if not wants_csv(request, values):
            return json_response({resource.name: rows, "next": next_cursor, "now": values["now"]})
        next_url = request.url.include_query_params(cursor=next_cursor)
        link = {"Link": f'<{next_url.path}?{next_url.query}>; rel="next"'} if next_cursor else None
        return csv_response(rows, names, link)

    return answer


def answer_run(store: Store, tenant: str, values: dict[str, Any], request: Request) -> Response:
    """Answer with a run by its id or an unambiguous prefix of it."""
    id = find_id(store, tenant, "runs", request.path_params["id"])
    history = store.run(tenant, id)
    if history is None:
        raise unknown("run", id)
    facts = run_text.to_summary(history) | to_builtins(history)
    if values["with"]:
        other_id = find_id(store, tenant, "runs", values["with"])
        other = store.run(tenant, other_id)
        if other is None:
            raise unknown("run", other_id)
        facts["comparison"] = compare_runs(history, other).to_facts()
    return json_response(facts)


def answer_groups(store: Store, tenant: str, values: dict[str, Any], request: Request) -> Response:
    by = values.pop("by")
    groups = group_runs(store, tenant, RUN_SPEC.build_query(values), by)
    if wants_csv(request, values):
        return csv_response(groups.rows, list(groups.rows[0]) if groups.rows else [by])
    return json_response({"now": values["now"], **groups.to_facts()})


def answer_pattern(store: Store, tenant: str, values: dict[str, Any], request: Request) -> Response:
    id = find_id(store, tenant, "patterns", request.path_params["id"])
    pattern = store.pattern(tenant, id)
    if pattern is None:
        raise unknown("pattern", id)
    precedents = store.recall(tenant, RecallQuery(tool=pattern.tool, fingerprint=pattern.fingerprint))
    return json_response(memory_text.pattern_facts(pattern) | {"precedents": to_builtins(precedents)})


def answer_lesson(store: Store, tenant: str, values: dict[str, Any], request: Request) -> Response:
    id = find_id(store, tenant, "lessons", request.path_params["id"])
    lesson = store.lesson(tenant, id, values["now"])
    if lesson is None:
        raise unknown("lesson", id)
    evidence = store.evidence(tenant, lesson.fix_id) if lesson.fix_id else []
    return json_response(memory_text.lesson_facts(lesson) | {"evidence": to_builtins(evidence)})


def answer_fix(store: Store, tenant: str, values: dict[str, Any], request: Request) -> Response:
    fix = find_fix(store, tenant, request.path_params["id"], values["now"])
    return json_response(memory_text.fix_facts(fix) | {"evidence": to_builtins(store.evidence(tenant, fix.id))})


def answer_stats(store: Store, tenant: str, values: dict[str, Any], request: Request) -> Response:
    query = STATS_SPEC.build_query(values)
    stats = store.stats(tenant, query)
    if wants_csv(request, values):
        if query.by is None:
            raise invalid("CSV needs a dimension. Add by, for example by=tool.", "by")
        return csv_response(overview.rank_parts(stats.parts, query.by), [query.by, *STATS_SPEC.csv_columns])
    caused = None
    if query.by == "model":
        runs = recovery_costs.read_failed_runs(store, tenant, query)
        caused = recovery_costs.count_caused_failures(runs.histories)
    facts = overview.build_answer(stats, caused=caused)
    total = facts["total"]
    response: dict[str, Any] = {
        "now": query.now,
        **{name: total[name] for name in ("total_runs", "total_failures", "unrecovered_runs", "success_rate")},
        "failure_breakdown": {kind: counts["failures"] for kind, counts in total["kinds"].items()},
        "unrecovered_breakdown": {
            kind: counts["unrecovered"] for kind, counts in total["kinds"].items() if counts["unrecovered"]
        },
        **facts,
    }
    if query.by is None and query.kind is None:

        def read_parts(by: str, **fields: Any) -> Any:
            return store.stats(tenant, msgspec.structs.replace(query, by=by, **fields)).parts

        response["series"] = overview.rank_parts(read_parts("time"), "time")
        response["most_failing_step"] = _most_failing_step(overview.rank_parts(read_parts("step"), "step"))
        tools, agents = read_parts("tool", detail=True), read_parts("agent")
        response["older_runs"] = stats_report.count_older_runs(store, tenant, query.now, query.since)
        recovery_costs.add_facts(response, recovery_costs.read_failed_runs(store, tenant, query))
        response["advice"] = stats_report.build_advice(stats.total, tools, agents)
    return json_response(response)


def answer_impact(store: Store, tenant: str, values: dict[str, Any], request: Request) -> Response:
    report = impact.build_report(store, tenant, IMPACT_SPEC.build_query(values), values["now"])
    return json_response({"now": values["now"], **impact.to_facts(report)})


def answer_search(store: Store, tenant: str, values: dict[str, Any], request: Request) -> Response:
    position = decode_cursor(values["cursor"], SEARCH_SPEC.position_type) if values["cursor"] else None
    key = store.get(tenant, *HASH_KEY)
    answer = search_runs(store, tenant, values["q"] or "", values["now"], values["limit"], values, position, key)
    next_cursor = encode_cursor(answer.next_position) if answer.next_position is not None else None
    counts = {"facets": answer.facets, "runs": answer.run_count, "is_complete": answer.is_complete}
    hits = list(map(to_search_facts, answer.hits))
    return json_response({"hits": hits, **counts, "notes": answer.notes, "next": next_cursor, "now": values["now"]})


def answer_comparison(store: Store, tenant: str, values: dict[str, Any], request: Request) -> Response:
    by, sides = values.pop("by"), (values.pop("a"), values.pop("b"))
    for name, side in zip("ab", sides, strict=True):
        if not side:
            raise invalid(f"A comparison needs two values. Add {name}, for example {name}=1.0.", name)
    query = STATS_SPEC.build_query(values)
    first, second = (msgspec.structs.replace(query, **{by: side}) for side in sides)
    comparison = stats_report.compare_groups(store, tenant, sides, (first, second))
    return json_response({"now": query.now, "by": by, **overview.comparison_facts(comparison)})


def _most_failing_step(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    failing = (row for row in rows if row["recovered"] or row["unrecovered"])
    return next(({name: row[name] for name in ("step", "calls", "recovered", "unrecovered")} for row in failing), None)


def _render_metrics(server: Server, tenant: str) -> str:
    query = StatsQuery(now=server.clock())
    lines: list[str] = []
    try:
        tools = server.store.stats(tenant, msgspec.structs.replace(query, by="tool"))
        lines += stats_report.render_metrics(server.store.stats(tenant, query).total, tools)
    except WorkerUnavailableError:
        if tenant != DEFAULT_TENANT:
            raise
        # The operator still gets the metrics of the server and of the workers.
    lines += stats_report.render_unrecognized_spans(server.unrecognized_spans.get(tenant, {}))
    if tenant == DEFAULT_TENANT:  # the operator of the server: rejected requests belong to no tenant
        lines += stats_report.render_rejected_requests(server.rejections.counts)
        committer = server.committer  # it counts all tenants, so only the operator may see this
        for name, description, value in (
            ("records", "Records stored since the server started.", committer.stored_records),
            ("transactions", "Store transactions since the server started.", committer.transactions),
            ("waiting_bytes", "Request bytes received and not stored yet.", committer.pending_bytes),
        ):
            lines += stats_report.render_metric(f"mulligan_server_{name}", "gauge", description, {"": value})
        if isinstance(server.store, DatabaseStore):
            lines += stats_report.render_workers(server.store.workers())
    return "\n".join(lines) + "\n"


# Parameters


def read_parameters(request: Request, parameters: Iterable[Parameter], clock: int) -> dict[str, Any]:
    """Parse the query parameters of a request by name. Raise `ApiError` for unknown, repeated or invalid ones."""
    by_name = {parameter.name: parameter for parameter in parameters}
    texts: dict[str, str] = {}
    for name, text in request.query_params.multi_items():
        if name not in by_name:
            raise invalid(f"Unknown parameter {name[:80]!r}. Use: {', '.join(by_name)}.", name[:80])
        if name in texts:
            raise invalid(f"Duplicate parameter {name}. Send it once.", name)
        if len(text) > MAX_PARAMETER_CHARS:
            raise invalid(f"Parameter {name} exceeds {MAX_PARAMETER_CHARS:,} characters.", name)
        texts[name] = text
    values: dict[str, Any] = {name: parameter.default for name, parameter in by_name.items()} | {"now": clock}
    periods = {name: values[name] for name in by_name if by_name[name].type == "moment" and values[name] is not None}
    # Parse `now` first, because relative times depend on it.
    for name, text in sorted({**periods, **texts}.items(), key=lambda item: item[0] != "now"):
        try:
            values[name] = by_name[name].parse(text, values["now"])
        except ValueError as error:
            raise invalid(f"Invalid {name} {text[:80]!r}. Use {error}.", name) from None
    return values


def encode_cursor(position: tuple[Any, ...]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def decode_cursor(text: str, type: Any) -> tuple[Any, ...]:
    """Return the position of this type that a cursor encodes."""
    try:
        position: tuple[Any, ...] = msgspec.json.decode(
            base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=type
        )
        # Limit of the numbers in a cursor: those that a database can compare.
        if all("\0" not in part if isinstance(part, str) else abs(part) <= 2**62 for part in position):
            return position
    except (binascii.Error, ValueError):
        pass
    advice = "Use the value of next from the previous response, or omit it to start from the beginning."
    raise invalid(f"Invalid cursor. {advice}", "cursor")


def wants_csv(request: Request, values: Mapping[str, Any]) -> bool:
    """Return whether the response should be CSV: by the `format` parameter, else by the Accept header."""
    if values.get("format"):
        return bool(values["format"] == "csv")
    accepted = request.headers.get("accept", "")
    return "text/csv" in accepted and "json" not in accepted
