"""Resources: the filters, columns and descriptions of everything that mulligan lists, declared once.

Command options, API parameters, OpenAPI, CSV, tables and the filter forms of the dashboard are derived from here. A
filter is one line: its name is a field of the resource's query.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from mulligan.contract import counters
from mulligan.contract.counters import By, StatsQuery
from mulligan.contract.run_facts import RUN_FACTS, RUN_ORDERS
from mulligan.contract.search_terms import TYPOGRAPHIC_QUOTES, SearchTextError
from mulligan.contract.store import (
    AuditQuery,
    FixQuery,
    LessonQuery,
    PatternQuery,
    RunQuery,
    SessionQuery,
    Store,
)
from mulligan.core.failure import SettingsError
from mulligan.core.records import (
    SHOWN_ONLY_TO,
    STEP_TYPES,
    Fix,
    FixState,
    History,
    Lesson,
    LessonSource,
    LessonState,
    Pattern,
    PatternStatus,
    Status,
)
from mulligan.report import memory_text, overview, run_text
from mulligan.report.stats import CSV_COLUMNS
from mulligan.report.tables import (
    ACCEPTED_FORMATS,
    SHOWN_ID_CHARS,
    Fact,
    TableColumn,
    format_age,
    format_count,
    format_dollars,
    format_share,
    format_timestamp,
    parse_time,
    render_table,
    to_facts,
    to_line,
)
from mulligan.report.tail_reader import StepQuery

ParameterType = Literal["text", "choice", "kind", "moment", "flag", "count", "amount", "clock", "cursor"]
MAX_COUNT = 999_999_999
MAX_TIMESTAMP_MS = 253_402_300_799_999


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a query: a command option, a parameter of the API, and a form field of the dashboard."""

    name: str
    description: str
    type: ParameterType = "text"
    choices: tuple[str, ...] = ()
    default: Any = None
    maximum: int = 1000

    @property
    def label(self) -> str:
        """Name in a form."""
        return {"by": "user"}.get(self.name, self.name).replace("_", " ")

    def parse(self, text: str, now: int) -> Any:
        """Parse the text of a parameter. Raise `ValueError` with the accepted values."""
        match self.type:
            case "choice":
                if text not in self.choices:
                    raise ValueError(f"one of: {', '.join(self.choices)}")
            case "count":
                if not 1 <= _to_number(text, 9) <= self.maximum:
                    raise ValueError(f"a whole number from 1 to {self.maximum:,}")
                return int(text)
            case "amount":
                if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text, re.ASCII):
                    raise ValueError("a number such as 5 or 0.25")
                return float(text)
            case "clock":
                if not 0 <= _to_number(text, 15) <= MAX_TIMESTAMP_MS:
                    raise ValueError("a time in UTC milliseconds")
                return int(text)
            case "flag":
                if text not in ("true", "false"):
                    raise ValueError("true or false")
                return text == "true"
            case "kind":
                if not text.strip("/"):
                    raise ValueError("a kind such as tool/timeout or a type such as tool")
                return text.rstrip("/")
            case "moment":
                if len(text) >= 12 and 0 <= _to_number(text, 15) <= MAX_TIMESTAMP_MS:
                    return int(text)
                try:
                    return parse_time(text, now)
                except ValueError:
                    raise ValueError(f"{ACCEPTED_FORMATS}, or UTC milliseconds") from None
        return text


def _to_number(text: str, max_digits: int) -> int:
    """Return the number that a text of digits states, or -1."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= max_digits else -1


class ResourceSpec(msgspec.Struct):
    """One kind of thing that is listed."""

    name: str
    summary: str
    query: type[msgspec.Struct]
    filters: tuple[Parameter, ...]
    csv_columns: tuple[str, ...] = ()
    """Facts in CSV, in order. A dotted name selects a nested one."""
    columns: tuple[TableColumn, ...] = ()
    """Columns in a terminal. The rows have the time of the query as `now`."""
    to_facts: Callable[[Any], dict[str, Any]] = dict
    """Return one record as a row of JSON and CSV."""
    summarize: Callable[[Sequence[Any]], str] = lambda records: ""
    """Return the first line of a list in a terminal."""
    options: tuple[Parameter, ...] = ()
    """Parameters that select nothing: the order, the dimension."""
    role: Literal["read", "admin"] = "read"

    def build_query(self, values: Mapping[str, Any], **overrides: Any) -> Any:
        """Build the query for parsed values by parameter name. `None` means no filter; other names are ignored."""
        fields = {name: value for name, value in values.items() if value is not None} | overrides
        if self.query is RunQuery and fields.get("text"):
            words, filters = split_filters(fields["text"], fields.get("now") or int(time.time() * 1000))
            fields |= {**filters, "text": words or None}
        fields["min_facts"] = {name: fields[f"min_{name}"] for name in RUN_FACTS if f"min_{name}" in fields}
        since, until, kind = (fields.get(name) for name in ("since", "until", "kind"))
        if since is not None and until is not None and since >= until:
            raise SettingsError("Invalid period: since is not before until. Change one of them.")
        if kind and "/" not in kind and self.query is not StatsQuery:
            fields["kind"] = f"{kind}/"  # The type of a kind: metrics take it without a slash.
        return self.query(**{name: fields[name] for name in self.query.__struct_fields__ if name in fields})

    def choose_columns(self, text: str) -> tuple[str, ...]:
        """Return the columns that a text names, separated by commas. Raise `ValueError` if one does not exist."""
        fields = {fact.name: fact.field for fact in RUN_FACTS.values() if fact.field in self.csv_columns}
        names = tuple(dict.fromkeys(fields.get(name, name) for part in text.split(",") if (name := part.strip())))
        if not names or not set(names) <= set(self.csv_columns):
            raise ValueError(f"Invalid columns. Use some of: {', '.join(self.csv_columns)}.")
        return names

    def read(self, store: Store, tenant: str, query: Any) -> list[Any]:
        """Return the records that match a query."""
        if isinstance(query, StatsQuery):
            by: Any = self.name.removesuffix("s")
            return overview.rank_parts(store.stats(tenant, msgspec.structs.replace(query, by=by)).parts, by)
        return list(getattr(store, self.name)(tenant, query))

    @property
    def position_type(self) -> Any:
        """Type of a position in this list: the sort key of its rows, which is unique."""
        query: Any = self.query
        return get_type_hints(query.position_of)["return"] if self._position_field else tuple[int, int, int, str]

    @property
    def _position_field(self) -> str:
        return next((name for name in ("before", "after") if name in self.query.__struct_fields__), "")

    def read_page(
        self, store: Store, tenant: str, values: Mapping[str, Any], limit: int, position: tuple[Any, ...] | None
    ) -> tuple[list[Any], tuple[Any, ...] | None]:
        """Return the records after a position, and the position of the last one if there are more."""
        field = self._position_field
        query = self.build_query(values, limit=limit + 1, **({field: position} if field else {}))
        records = self.read(store, tenant, query)

        def position_of(record: Any) -> tuple[Any, ...]:
            result: tuple[Any, ...]
            result = query.position_of(record) if field else overview.part_position(record, self.name.removesuffix("s"))
            return result

        if not field and position is not None:
            records = [record for record in records if position_of(record) > position]
        page = records[:limit]
        return page, position_of(page[-1]) if len(records) > limit else None

    def render_list(self, records: Sequence[Any], now: int, width: int | None, total: int = 0) -> Iterator[str]:
        """Render a summary and one row per record for a terminal. `total` counts those that are not listed too."""
        if headline := self.summarize(records):
            yield f"{headline} Listed: the latest {len(records):,} of {total:,}." if total > len(records) else headline
            yield ""
        yield from render_table(self.columns, [self.to_facts(record) | {"now": now} for record in records], width)


# Parameters

AGENT = Parameter("agent", "Only this agent.")
TOOL = Parameter("tool", "Only this tool.")
KIND = Parameter("kind", "Only failures of this kind (tool/timeout) or type (tool).", "kind")
MODEL = Parameter("model", "Only this model.")
VERSION = Parameter("version", "Only this version of the agent.")
ENVIRONMENT = Parameter("environment", "Only this environment.")
SESSION = Parameter("session", "Only this session.")
SINCE = Parameter("since", "Start of the period: an age (24h, 7d), a date, UTC milliseconds, or all.", "moment")
UNTIL = Parameter("until", "End of the period, in the same formats.", "moment")
PERIOD = (SINCE, UNTIL)
WEEK = msgspec.structs.replace(SINCE, default="7d")
RUN_FILTERS = (MODEL, VERSION, ENVIRONMENT, SESSION)
METRIC_FILTERS = (
    WEEK, UNTIL, AGENT, TOOL, KIND, MODEL, VERSION, ENVIRONMENT,
    Parameter("type", "Only steps of this type.", "choice", STEP_TYPES),
)  # fmt: skip
PATTERN_ORDERS = ("occurrences", "unrecovered", "last_seen", "first_seen")


def _without(name: str) -> tuple[Parameter, ...]:
    """Return the filters of metrics without the one that the rows are about."""
    return tuple(parameter for parameter in METRIC_FILTERS if parameter.name != name)


# Cells of terminal tables


def _text(name: str, limit: int, missing: str = "") -> Callable[[Fact], str]:
    return lambda row: to_line(row.get(name) or missing, limit)


def _number(name: str) -> Callable[[Fact], str]:
    return lambda row: f"{row[name]:,}"


def _age(name: str) -> Callable[[Fact], str]:
    return lambda row: format_age(row.get(name, 0), row["now"])


def _cost(row: Fact) -> str:
    return "-" if row["cost_usd"] is None else format_dollars(round(row["cost_usd"] * 1e9))


def _id(row: Fact) -> str:
    return str(row["id"][:SHOWN_ID_CHARS])


def _lesson_successes(row: Fact) -> str:
    if not row["trials"]:
        return "seed" if row["source"] == "seed" else "-"
    return f"{row['successes']:,} of {row['trials']:,}"


def _helped_runs(row: Fact) -> str:
    affected_runs = row["helped_runs"] + row["unhelped_runs"]
    return f"{row['helped_runs']:,} of {affected_runs:,}" if affected_runs else "-"


# First lines of lists


def _summarize_runs(histories: Sequence[History]) -> str:
    totals = counters.stats(histories).total
    failed = totals.recovered + totals.unrecovered
    recovered = f" {totals.recovered} of {format_count(failed, 'failed call')} recovered." if failed else ""
    return f"{format_count(len(histories), 'run')}: {overview.format_statuses(totals)}.{recovered}"


def _summarize_patterns(patterns: Sequence[Pattern]) -> str:
    failures = sum(pattern.occurrences for pattern in patterns)
    recovered = format_share(sum(pattern.recovered for pattern in patterns), failures)
    return f"{format_count(len(patterns), 'pattern')}, {format_count(failures, 'failure')}, {recovered} recovered."


def _describe_audience(row: Mapping[str, Any]) -> str:
    is_partly_shown = str(row.get("hidden_reason", "")).startswith(SHOWN_ONLY_TO)
    return "yes" if row.get("showable") else "some" if is_partly_shown else "no"


def _summarize_fixes(fixes: Sequence[Fix]) -> str:
    showable, automatic = sum(fix.showable for fix in fixes), sum(map(memory_text.is_automatic, fixes))
    partly = sum(fix.is_partly_shown for fix in fixes)
    audience = f"{showable} shown to models{f', {partly} to some agents' if partly else ''}"
    return f"{format_count(len(fixes), 'fix')}: {audience}, {automatic} applied automatically."


def _summarize_lessons(lessons: Sequence[Lesson]) -> str:
    return f"{format_count(len(lessons), 'lesson')}, {sum(lesson.state == 'active' for lesson in lessons)} active."


# Resources

RUN_SPEC = ResourceSpec(
    "runs",
    "List runs, newest first.",
    RunQuery,
    (
        AGENT,
        Parameter("status", "Only runs with this status.", "choice", get_args(Status)),
        TOOL,
        KIND,
        Parameter("pattern", "Only runs with a failure of this pattern."),
        Parameter("text", 'Only runs that contain these words: word "a phrase" name:value -excluded.'),
        *RUN_FILTERS,
        *PERIOD,
        *(
            Parameter(f"min_{name}", fact.description, "amount" if fact.unit else "count", maximum=MAX_COUNT)
            for name, fact in RUN_FACTS.items()
        ),
    ),
    (
        *"id status running agent version environment calls attempts started_at worst suspected tokens".split(),
        "cost_usd",
        *(fact.field for name, fact in RUN_FACTS.items() if name not in ("attempts", "tokens", "cost")),
        "models",
    ),
    (
        TableColumn("run", _id, priority=9, needs_full_width=True),
        TableColumn("status", lambda row: run_text.format_status(row["status"], row["end_reason"]), priority=8),
        TableColumn("calls", _number("calls"), True, 4),
        TableColumn("attempts", _number("attempts"), True, 2),
        TableColumn("cost", _cost, True, 3),
        TableColumn("when", _age("started_at"), priority=6),
        TableColumn("agent", _text("agent", 24, "-"), priority=5),
        TableColumn("worst failure", _text("worst", 60, "-"), priority=7),
    ),
    run_text.to_facts,
    _summarize_runs,
    (
        Parameter("order", "Sort field, highest first.", "choice", tuple(RUN_ORDERS), "started"),
        Parameter("columns", "Only these columns, separated by commas, such as id,agent,cost_usd."),
    ),
)
STEP_SPEC = ResourceSpec(
    "steps",
    "Print attempts as they end.",
    StepQuery,
    (AGENT, TOOL, KIND, *RUN_FILTERS, Parameter("failures", "Only failed attempts.", "flag")),
)
PATTERN_SPEC = ResourceSpec(
    "patterns",
    "List failure patterns.",
    PatternQuery,
    (
        Parameter(
            "state", "Only patterns in this state. Default: all except muted.", "choice", get_args(PatternStatus)
        ),
        TOOL,
        KIND,
        AGENT,
        Parameter("text", "Text in the tool name, kind or message."),
        SINCE,
        Parameter("new_since", "Only patterns first seen since this time.", "moment"),
        Parameter("owner", "Only patterns of this person or team; me for yourself."),
    ),
    tuple(
        "id tool kind state occurrences recovered unrecovered runs first_seen_at last_seen_at message template "
        "status owner".split()
    ),
    (
        TableColumn("pattern", _id, priority=9, needs_full_width=True),
        TableColumn("occurrences", _number("occurrences"), True, 9),
        TableColumn("unrecovered", _number("unrecovered"), True, 6),
        TableColumn("last seen", _age("last_seen_at"), True, 4),
        TableColumn("state", lambda row: row["status"] + (" (reopened)" if row["reopened"] else ""), False, 3, True),
        TableColumn("owner", _text("owner", 20, "-"), priority=2),
        TableColumn("tool", _text("tool", 40, "-"), priority=7),
        TableColumn("kind", _text("kind", 60), priority=5),
        TableColumn("message", _text("message", 80, "-"), priority=8),
    ),
    memory_text.pattern_facts,
    _summarize_patterns,
    (Parameter("order", "Sort field, highest first.", "choice", PATTERN_ORDERS, PATTERN_ORDERS[0]),),
)
FIX_SPEC = ResourceSpec(
    "fixes",
    "List fixes.",
    FixQuery,
    (TOOL, Parameter("state", "Only fixes in this state.", "choice", get_args(FixState))),
    tuple("id tool type state trials successes principals days last_tried_at action reason".split()),
    (
        TableColumn("fix", lambda row: row["id"], priority=9, needs_full_width=True),
        TableColumn("state", lambda row: row["state"], priority=6, needs_full_width=True),
        TableColumn("shown", _describe_audience, priority=3),
        TableColumn("successes", lambda row: f"{row['successes']} of {row['trials']}", False, 5, True),
        TableColumn("last trial", _age("last_tried_at"), priority=4),
        TableColumn("tool", _text("tool", 30), priority=7),
        TableColumn("action", lambda row: row["action"], priority=9),
    ),
    memory_text.fix_facts,
    _summarize_fixes,
)
LESSON_SPEC = ResourceSpec(
    "lessons",
    "List lessons, highest confidence first.",
    LessonQuery,
    (
        TOOL,
        KIND,
        Parameter("agent", "Agent whose own lessons are listed first."),
        Parameter("text", "Text in the tool, kind or lesson, or a similar error message."),
        Parameter("state", "Only lessons in this state.", "choice", get_args(LessonState)),
        Parameter("source", "Only lessons of this source.", "choice", get_args(LessonSource)),
    ),
    (
        *"id tool kind state source mistake correction trials successes occurrences".split(),
        *"helped_runs unhelped_runs last_tried_at reason".split(),
    ),
    (
        TableColumn("lesson", _id, priority=9, needs_full_width=True),
        TableColumn("state", lambda row: row["state"] + (" (stale)" if row["stale"] else ""), False, 8, True),
        TableColumn("successes", _lesson_successes, priority=6, needs_full_width=True),
        TableColumn("occurrences", _number("occurrences"), True, 4),
        TableColumn("helped", _helped_runs, priority=3, needs_full_width=True),
        TableColumn("last trial", _age("last_tried_at"), True, 2),
        TableColumn("tool", _text("tool", 30, "any"), priority=7),
        TableColumn("correction", _text("correction", 160), priority=9),
    ),
    memory_text.lesson_facts,
    _summarize_lessons,
)
STATS_SPEC = ResourceSpec(
    "stats",
    "Return failures, recoveries, costs and recommendations.",
    StatsQuery,
    METRIC_FILTERS,
    CSV_COLUMNS,
    options=(Parameter("by", "Dimension that splits the metrics.", "choice", get_args(By)),),
)
IMPACT_SPEC = ResourceSpec(
    "impact",
    "Compare failures with mulligan's help with those without it.",
    RunQuery,
    (msgspec.structs.replace(SINCE, default="30d"), UNTIL, AGENT, VERSION, ENVIRONMENT),
)
TOOL_SPEC = ResourceSpec(
    "tools", "List metrics by tool, most unrecovered calls first.", StatsQuery, _without("tool"), ("tool", *CSV_COLUMNS)
)
AGENT_SPEC = ResourceSpec(
    "agents",
    "List metrics by agent, most unrecovered calls first.",
    StatsQuery,
    _without("agent"),
    ("agent", *CSV_COLUMNS),
)
MODEL_SPEC = ResourceSpec(
    "models", "List metrics by model, most unrecovered calls first.", StatsQuery, _without("model")
)
SESSION_SPEC = ResourceSpec(
    "sessions",
    "List sessions, the one with the newest run first.",
    SessionQuery,
    (AGENT, Parameter("text", "Part of the session's id."), *PERIOD),
)
AUDIT_COLUMNS = ("at", "by", "via", "token", "action", "target", "detail", "id")
AUDIT_SPEC = ResourceSpec(
    "audit",
    "List the audit log, newest first.",
    AuditQuery,
    (
        Parameter("by", "Only changes by this user."),
        Parameter("action", "Only this action (fix.approve), or all with this prefix (fix.)."),
        *PERIOD,
    ),
    AUDIT_COLUMNS,
    (
        TableColumn("time (UTC)", lambda row: format_timestamp(row["at"]), priority=9, needs_full_width=True),
        TableColumn("user", _text("by", 30), priority=8),
        TableColumn("via", _text("via", 20), priority=3),
        TableColumn("action", _text("action", 40), priority=9),
        TableColumn("subject", _text("target", 40), priority=7),
        TableColumn("detail", _text("detail", 80), priority=5),
    ),
    lambda entry: to_facts(entry, *AUDIT_COLUMNS),
    role="admin",
)
_FILTER = re.compile(r'(?<!\S)([a-z_]+):(?:"([^"]*)"|(\S+))')
_RUN_FILTERS = {parameter.name: parameter for parameter in RUN_SPEC.filters if parameter.type != "text"}
"""Names that are filters in a search text. All others name a place of the word."""


def split_filters(text: str, now: int) -> tuple[str, dict[str, Any]]:
    """Return the words of a search text, and the filters in it: `status:failure`, `since:2d`, `min_cost:0.5`."""
    values: dict[str, Any] = {}

    def take(filter_text: re.Match[str]) -> str:
        parameter = _RUN_FILTERS.get(filter_text[1])
        if parameter is None:
            return filter_text[0]
        try:
            values[parameter.name] = parameter.parse(value := filter_text[2] or filter_text[3] or "", now)
        except ValueError as error:
            raise SearchTextError(f"Invalid {parameter.name} {value[:40]!r}. Use {error}.") from None
        return ""

    return _FILTER.sub(take, text.translate(TYPOGRAPHIC_QUOTES)).strip(), values


_SPECS = (RUN_SPEC, STEP_SPEC, STATS_SPEC, PATTERN_SPEC, FIX_SPEC, LESSON_SPEC, TOOL_SPEC, AGENT_SPEC, AUDIT_SPEC)
RESOURCES = {resource.name: resource for resource in _SPECS}
