"""GET /v1/runs, stats, patterns, lessons, fixes, tools, agents and audit: stored records as JSON or CSV."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan.figures import By, StatsQuery
from mulligan.records import STEP_TYPES, FixState, LessonSource, LessonState, PatternState, Status, builtins
from mulligan.remember.store import AuditQuery, FixQuery, LessonQuery, PatternQuery, RunQuery
from mulligan.report import audit as audit_told
from mulligan.report import fixes as fixes_told
from mulligan.report import lessons as lessons_told
from mulligan.report import overview, terminal
from mulligan.report import patterns as patterns_told
from mulligan.report import stats as figures_told
from mulligan.serve.api.answers import answer, csv
from mulligan.serve.api.app import Server
from mulligan.serve.api.doors import Needs, route
from mulligan.serve.api.errors import invalid, unknown
from mulligan.serve.api.parameters import Parameter, check_kind, cursor, cursor_read, read, wants_csv
from mulligan.serve.api.questions import Questions

SINCE = Parameter("since", "moment", "From then on: so long ago (24h, 7d), a date, UTC milliseconds, or all.")
UNTIL = Parameter("until", "moment", "Up to then.")
NOW = Parameter("now", "clock", "The clock that ages are counted from, in UTC milliseconds; without it the server's.")
AGENT = Parameter("agent", "text", "Only this agent's.")
TOOL = Parameter("tool", "text", "Only this tool's.")
KIND = Parameter("kind", "text", "Only failures of this kind (tool/timeout), or of all kinds of a type (tool).")
MODEL = Parameter("model", "text", "Only this model's.")
VERSION = Parameter("version", "text", "Only this version of the agent.")
ENVIRONMENT = Parameter("environment", "text", "Only this environment's.")
FORMAT = Parameter("format", "choice", "JSON, or the rows as CSV.", ("json", "csv"))
CURSOR = Parameter("cursor", "cursor", "Where to go on: what an answer before said under next.")
LIMIT = Parameter("limit", "count", "How many at most.", default=50)
LESSONS = (
    "id", "tool", "kind", "state", "source", "mistake", "correction", "tried", "worked", "seen", "helped", "unhelped",
    "last", "why",
)  # fmt: skip
FIXES = ("id", "tool", "sort", "state", "tried", "worked", "principals", "days", "last", "does", "why")


class Query(NamedTuple):
    """Declaration of one query endpoint: path, parameters, handler and response schema."""

    path: str
    told: str
    parameters: tuple[Parameter, ...]
    handler: str
    answers: str
    """Name of the response schema."""
    rows: bool = False
    """Whether the response is also available as CSV."""
    needs: Needs = "read"


QUERIES = (
    Query(
        "/v1/runs",
        "The newest runs and what came of them.",
        (
            AGENT, Parameter("status", "choice", "Only those that came to this.", get_args(Status)), TOOL, KIND,
            Parameter("pattern", "text", "Only those with a failure of this pattern."), MODEL, VERSION, ENVIRONMENT,
            Parameter("session", "text", "Only of this session."), SINCE, UNTIL, NOW, LIMIT, CURSOR, FORMAT,
        ),
        "runs", "Runs", True,
    ),
    Query("/v1/runs/{id}", "One run: every attempt at every call.", (), "run", "Run"),
    Query(
        "/v1/stats",
        "What failed, what overcame it, what it cost, and what that suggests.",
        (
            Parameter("by", "choice", "Divide the figures by this.", get_args(By)),
            SINCE._replace(default="7d"), UNTIL, NOW, AGENT, TOOL, KIND, MODEL, VERSION, ENVIRONMENT,
            Parameter("type", "choice", "Only steps of this type.", STEP_TYPES), FORMAT,
        ),
        "stats", "Stats", True,
    ),
    Query(
        "/v1/patterns",
        "What goes wrong again and again.",
        (
            Parameter("state", "choice", "Only those in this state; without it all but the muted.",
                      get_args(PatternState)),
            TOOL, KIND, AGENT, Parameter("text", "text", "In the tool's name, the kind or the message."), SINCE,
            Parameter("new_since", "moment", "Seen for the first time since then."), NOW,
            Parameter("order", "choice", "The highest first.", ("count", "given_up", "last", "first"), "count"),
            LIMIT, CURSOR, FORMAT,
        ),
        "patterns", "Patterns", True,
    ),
    Query("/v1/patterns/{id}", "One pattern, and what overcame it before.", (), "pattern", "Pattern"),
    Query(
        "/v1/fixes",
        "What turned failures into successes.",
        (
            TOOL, Parameter("state", "choice", "Only those in this state.", get_args(FixState)), NOW, LIMIT, CURSOR,
            FORMAT,
        ),
        "fixes", "Fixes", True,
    ),
    Query(
        "/v1/lessons",
        "What overcomes patterns, in words, the best proven first.",
        (
            TOOL, KIND, Parameter("agent", "text", "Who asks: what helped the same agent comes first."),
            Parameter("text", "text", "In its tool, its kind or its words, or a message like the one it is about."),
            Parameter("state", "choice", "Only those in this state.", get_args(LessonState)),
            Parameter("source", "choice", "Only those learned here, written by people, or brought along as seeds.",
                      get_args(LessonSource)),
            NOW, LIMIT, CURSOR, FORMAT,
        ),
        "lessons", "Lessons", True,
    ),
    Query("/v1/lessons/{id}", "One lesson, with the runs it rests on.", (), "lesson", "Lesson"),
    Query(
        "/v1/tools", "The figures of each tool, what was given up most first.",
        (SINCE._replace(default="7d"), UNTIL, NOW, AGENT, VERSION, ENVIRONMENT, LIMIT, CURSOR, FORMAT),
        "tools", "Parts", True,
    ),
    Query(
        "/v1/agents", "The figures of each agent, what was given up most first.",
        (SINCE._replace(default="7d"), UNTIL, NOW, TOOL, VERSION, ENVIRONMENT, LIMIT, CURSOR, FORMAT),
        "agents", "Parts", True,
    ),
    Query(
        "/v1/audit", "What people changed, who and when.",
        (
            Parameter("by", "text", "Only what this one changed."),
            Parameter("do", "text", "Only this, such as fix.approve, or all that begin so, such as fix."),
            SINCE, UNTIL, NOW, LIMIT, CURSOR, FORMAT,
        ),
        "audit", "Audit", True, "admin",
    ),
)  # fmt: skip


def group(server: Server) -> Iterable[BaseRoute]:
    asked = Queries(server)
    return [route(server, each.path, asked.endpoint(each), each.needs) for each in QUERIES]


class Queries:
    """Query endpoints: parse the parameters, query the store, build the response."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def endpoint(self, query: Query) -> Callable[[Request], Awaitable[Response]]:
        handler: Callable[[Questions, dict[str, Any], Request], Response] = getattr(self, f"_{query.handler}")

        async def ask(request: Request) -> Response:
            found = read(request, query.parameters, self._server.clock())
            questions = self._server.questions(request.state.caller)
            if "kind" in found:
                found["kind"] = check_kind(found["kind"], "" if query.handler == "stats" else "/")
            return await self._server.ask(handler, questions, found, request)

        return ask

    def _runs(self, questions: Questions, found: dict[str, Any], request: Request) -> Response:
        before, limit = None, found["limit"]
        if found["cursor"]:
            started, id = cursor_read(found["cursor"], 2)
            before = (int(started), id)
        fields = ("agent", "status", "tool", "kind", "pattern", "model", "version", "environment", "session", "since")
        histories = questions.runs(
            RunQuery(**{name: found[name] for name in (*fields, "until")}, limit=limit + 1, before=before)
        )
        shown = histories[:limit]
        rows = [terminal.facts(history) for history in shown]
        more = cursor(shown[-1].run.started, shown[-1].run.id) if len(histories) > limit else None
        return _rows("runs", rows, terminal.CSV, more, found, request)

    def _run(self, questions: Questions, found: dict[str, Any], request: Request) -> Response:
        history = questions.run(request.path_params["id"])
        if history is None:
            raise unknown("there is no such run, or several begin so.")
        return answer(terminal.summary(history) | builtins(history))

    def _stats(self, questions: Questions, found: dict[str, Any], request: Request) -> Response:
        fields = ("since", "until", "by", "agent", "tool", "kind", "model", "version", "environment", "type")
        query = StatsQuery(now=found["now"], **{name: found[name] for name in fields})
        stats = questions.stats(query)
        if wants_csv(request, found):
            if query.by is None:
                raise invalid("CSV needs rows: say by what, such as by=tool.", "by")
            return csv(overview.ranked(stats.parts, query.by), [query.by, *figures_told.OUTSIDE])
        facts = overview.answered(stats)
        total = facts["total"]
        told: dict[str, Any] = {
            "now": query.now,
            **{name: total[name] for name in ("total_runs", "total_failures", "success_rate")},
            "failure_breakdown": {kind: each["failures"] for kind, each in total["kinds"].items()},
            "given_up_breakdown": {kind: each["given_up"] for kind, each in total["kinds"].items() if each["given_up"]},
            **facts,
        }
        if query.by is None and query.kind is None:
            told["series"] = questions.parts(_with(query, by="time"))
            told["most_failing_step"] = next(iter(questions.failing_steps(query)), None)
            told["advice"] = questions.advice(query)
        return answer(told)

    def _patterns(self, questions: Questions, found: dict[str, Any], request: Request) -> Response:
        fields = ("state", "tool", "kind", "agent", "text", "since", "new_since", "order")
        query = PatternQuery(**{name: found[name] for name in fields})
        return self._listed(
            lambda most: [patterns_told.facts(each) for each in questions.patterns(_with(query, limit=most))],
            "patterns", patterns_told.CSV, found, request,
        )  # fmt: skip

    def _pattern(self, questions: Questions, found: dict[str, Any], request: Request) -> Response:
        pattern = questions.pattern(request.path_params["id"])
        if pattern is None:
            raise unknown("there is no such pattern, or several begin so.")
        return answer(patterns_told.facts(pattern) | {"overcome_before": builtins(questions.overcome(pattern))})

    def _fixes(self, questions: Questions, found: dict[str, Any], request: Request) -> Response:
        query = FixQuery(tool=found["tool"], state=found["state"], now=found["now"])
        return self._listed(
            lambda most: [fixes_told.facts(each) for each in questions.fixes(_with(query, limit=most))],
            "fixes", FIXES, found, request,
        )  # fmt: skip

    def _lessons(self, questions: Questions, found: dict[str, Any], request: Request) -> Response:
        query = LessonQuery(
            **{name: found[name] for name in ("tool", "kind", "state", "source", "now")},
            agent=found["agent"] or "",
            text=found["text"] or "",
        )
        return self._listed(
            lambda most: [lessons_told.facts(each) for each in questions.lessons(_with(query, limit=most))],
            "lessons", LESSONS, found, request,
        )  # fmt: skip

    def _lesson(self, questions: Questions, found: dict[str, Any], request: Request) -> Response:
        lesson = questions.lesson(request.path_params["id"])
        if lesson is None:
            raise unknown("there is no such lesson, or several begin so.")
        evidence = questions.evidence(lesson.fix) if lesson.fix else []
        return answer(lessons_told.facts(lesson) | {"evidence": builtins(evidence)})

    def _tools(self, questions: Questions, found: dict[str, Any], request: Request) -> Response:
        return self._parts("tool", questions, found, request)

    def _agents(self, questions: Questions, found: dict[str, Any], request: Request) -> Response:
        return self._parts("agent", questions, found, request)

    def _audit(self, questions: Questions, found: dict[str, Any], request: Request) -> Response:
        before, limit = None, found["limit"]
        if found["cursor"]:
            at, id = cursor_read(found["cursor"], 2)
            before = (int(at), id)
        fields = {name: found[name] for name in ("by", "do", "since", "until")}
        acts = questions.audit(AuditQuery(**fields, before=before, limit=limit + 1))
        shown = acts[:limit]
        rows = [audit_told.facts(each) for each in shown]
        more = cursor(shown[-1].at, shown[-1].id) if len(acts) > limit else None
        return _rows("audit", rows, audit_told.CSV, more, found, request)

    def _parts(self, by: By, questions: Questions, found: dict[str, Any], request: Request) -> Response:
        fields = ("since", "until", "agent", "tool", "version", "environment")
        query = StatsQuery(now=found["now"], by=by, **{name: found[name] for name in fields if name in found})
        names = (by, *figures_told.OUTSIDE)
        return self._listed(lambda most: questions.parts(query), f"{by}s", names, found, request)

    def _listed(
        self, rows: Callable[[int], list[dict[str, Any]]], name: str, columns: Sequence[str], found: dict[str, Any],
        request: Request,
    ) -> Response:  # fmt: skip
        """Build a response with one page of rows and the cursor of the next page."""
        start, limit = 0, found["limit"]
        if found["cursor"]:
            start = min(int(cursor_read(found["cursor"], 1)[0]), 100_000)
        every = rows(start + limit + 1)
        shown = every[start : start + limit]
        more = cursor(start + limit) if len(every) > start + limit else None
        return _rows(name, shown, columns, more, found, request)


def _rows(
    name: str, rows: list[dict[str, Any]], columns: Sequence[str], more: str | None, found: dict[str, Any],
    request: Request,
) -> Response:  # fmt: skip
    """Build a response with one page of a list. The next cursor is a JSON field, or a Link header for CSV."""
    if not wants_csv(request, found):
        return answer({name: rows, "next": more, "now": found["now"]})
    there = request.url.include_query_params(cursor=more)
    return csv(rows, columns, {"Link": f'<{there.path}?{there.query}>; rel="next"'} if more else None)


def _with(query: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(query, **fields)
