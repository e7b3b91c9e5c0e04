"""Tool, model and agent pages: success, latency, corrected arguments and recommendations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from mulligan.contract.counters import Cell, Stats, percentile
from mulligan.contract.store import FixQuery, LessonQuery, Store
from mulligan.core.calls import TOOL_NAME_PATH
from mulligan.core.records import HIDDEN_VALUE, LAST_PATH_SEGMENT, REQUOTED, RUN_SPECIFIC, Fix, Pattern
from mulligan.dashboard import formatting, memory_pages, metric_cards, run_pages
from mulligan.dashboard.memory_pages import build_pattern_rows
from mulligan.dashboard.page_query import PageQuery
from mulligan.report import recovery_costs
from mulligan.report import stats as stats_report
from mulligan.report.memory_text import allow_command
from mulligan.report.resources import PATTERN_SPEC, RUN_SPEC
from mulligan.report.tables import format_count

MAX_SHOWN_PATTERNS = 10
MAX_RECENT_RUNS = 10
MAX_WRONG_ARGUMENTS = 8
VAGUE_MESSAGE = re.compile(
    r"(?:an? )?(?:unknown|unexpected|internal|generic|general|invalid|bad)? ?"
    r"(?:server )?(?:error|failure|exception|request|input|argument|parameter|value|operation)s?"
    r"(?: (?:occurred|failed|happened|encountered))?[.!]*"
    r"|(?:something|it) (?:went wrong|failed)[.!]*|failed[.!]*|false|null|none|-?[0-9]+",
    re.IGNORECASE,
)
"""Messages that report a failure without naming its cause."""
ARGUMENT_SENTENCES = {
    "cast": ("State the type of `{path}`.", "`{path}` has type {value}."),
    "rename": ("State the exact name of the argument that is often called `{path}`.",
               "The argument is named `{value}`, not `{path}`."),
    "drop": ("There is no argument `{path}`.", "There is no argument `{path}`."),
    "clamp": ("State the minimum and maximum of `{path}`.",
              "`{path}` has bounds; the nearest accepted value was {value}."),
    "enum": ("List the allowed values of `{path}` exactly.",
             "`{path}` accepts only listed values, for example `{value}`."),
    "trim": ("`{path}` takes the bare value without surrounding text.",
             "`{path}` takes the bare value without surrounding text."),
    "parse": ("`{path}` is structured data, not a JSON string.", "`{path}` is structured data, not a JSON string."),
    "wrap": ("`{path}` is a list, even for one item.", "`{path}` is a list, even for one item."),
    "default": ("`{path}` is required.", "`{path}` is required, for example {value}."),
    "substitute": ("", "Use `{path}={value}`: it succeeded where other values failed."),
}  # fmt: skip
"""Sentences about an argument by change operation: without and with the value that succeeded."""
MAX_SHOWN_LESSONS = 10
MAX_FIXES = 50


def tools(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    tool_stats = store.stats(tenant, page_query.stats_query(by="tool"))
    return {
        **metric_cards.metric_page(store, tenant, page_query, tool_stats),
        "wrong": _most_corrected_arguments(store, tenant, page_query, tool_stats),
    }


def agents(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    agent_stats = store.stats(tenant, page_query.stats_query(by="agent"))
    return {
        **metric_cards.metric_page(store, tenant, page_query, agent_stats),
        "advice": list(stats_report.build_advice(Cell(), {}, agent_stats.parts)),
    }


def models(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    """List models with their own calls, and the failed tool calls that each requested."""
    model_stats = store.stats(tenant, page_query.stats_query(by="model", type="model"))
    failed_runs = recovery_costs.read_failed_runs(store, tenant, page_query.stats_query())
    caused = recovery_costs.count_caused_failures(failed_runs.histories)
    parts = {**{name: Cell() for name in caused}, **model_stats.parts}  # a session log may name a model and no call
    return {
        **metric_cards.metric_page(store, tenant, page_query, msgspec.structs.replace(model_stats, parts=parts)),
        "caused": caused,
        "sample": 0 if failed_runs.is_complete else len(failed_runs.histories),
    }


def _corrected_arguments(cell: Cell) -> list[dict[str, Any]]:
    return [
        {
            "path": path,
            "argument": "(tool name)" if path == TOOL_NAME_PATH else path,
            "change": operation,
            "operation": stats_report.CHANGE_REASONS.get(operation, operation),
            "calls": calls,
        }
        for path, operation, calls in stats_report.list_corrected_arguments(cell)[:MAX_WRONG_ARGUMENTS]
    ]


def _most_corrected_arguments(
    store: Store, tenant: str, page_query: PageQuery, tool_stats: Stats
) -> list[dict[str, Any]]:
    """Return the most frequently corrected arguments of all tools, with a sentence for the tool's description."""
    rows = metric_cards.metric_rows(tool_stats)
    names = [row["name"] for row in sorted(rows, key=lambda row: -row["cell"].recovered) if row["cell"].recovered]
    arguments: list[dict[str, Any]] = []
    for tool in names[:8]:  # tools with the most recovered calls whose arguments are examined
        if wrong := _corrected_arguments(store.stats(tenant, page_query.narrow(tool=tool).stats_query()).total):
            fixes = store.fixes(tenant, FixQuery(tool=tool, now=page_query.now, limit=MAX_FIXES))
            values = _working_values(fixes)
            hidden = {change.path for fix in fixes for change in fix.changes if change.after == HIDDEN_VALUE}
            for argument in wrong:
                sentence = formatting.text(_suggest_sentence(tool, argument["path"], argument["change"], values), 400)
                allow = formatting.text(allow_command(argument["path"], tenant)) if argument["path"] in hidden else ""
                arguments.append(argument | {"tool": tool, "sentence": sentence, "allow": allow})
    arguments.sort(key=lambda argument: (-argument["calls"], argument["tool"], argument["argument"]))
    return arguments[:MAX_WRONG_ARGUMENTS]


def tool(store: Store, tenant: str, page_query: PageQuery, name: str) -> dict[str, Any] | None:
    narrowed = page_query.narrow(tool=name)
    series = store.stats(tenant, narrowed.stats_query(by="time"))
    cell, patterns = series.total, _find_patterns(store, tenant, narrowed)
    lesson_rows = memory_pages.lesson_rows(
        store, tenant, LessonQuery(tool=name, now=page_query.now, limit=MAX_SHOWN_LESSONS)
    )
    # A lesson can exist for a tool that was never called here.
    if not (cell.calls or patterns or lesson_rows or _has_runs(store, tenant, narrowed)):
        return None
    wrong = _corrected_arguments(cell)
    fixes = store.fixes(tenant, FixQuery(tool=name, now=page_query.now, limit=MAX_FIXES)) if wrong else []
    return {
        "name": name,
        **metric_cards.metric_context(store, tenant, narrowed, series),
        "patterns": build_pattern_rows(store, tenant, page_query, patterns),
        "agents": metric_cards.metric_rows(store.stats(tenant, narrowed.stats_query(by="agent", detail=True))),
        "wrong": wrong,
        "lessons": lesson_rows,
        "sentence": formatting.text(" ".join(suggest_sentences(name, cell, fixes)), 2000) if wrong else None,
        "vague": [pattern for pattern in patterns if is_vague(pattern.message)],
        "timeouts": list(_timeouts(cell)),
        "advice": list(map(formatting.text, stats_report.build_advice(Cell(), {name: cell}, {}))),
        "attempts": stats_report.count_by_attempt(cell),
    }


def agent(store: Store, tenant: str, page_query: PageQuery, name: str) -> dict[str, Any] | None:
    display_name = name or "(no name)"
    narrowed = page_query.narrow(agent=display_name)
    series = store.stats(tenant, narrowed.stats_query(by="time"))
    cell, recent = series.total, store.runs(tenant, narrowed.query(RUN_SPEC, limit=MAX_RECENT_RUNS))
    if not (recent or cell.calls or _has_runs(store, tenant, narrowed)):
        return None
    tool_stats = store.stats(tenant, narrowed.stats_query(by="tool", detail=True))
    versions = metric_cards.metric_rows(store.stats(tenant, narrowed.stats_query(by="version")))
    succeeded = cell.first_try + cell.recovered
    return {
        "name": display_name,
        **metric_cards.metric_context(store, tenant, narrowed, series),
        "patterns": build_pattern_rows(store, tenant, page_query, _find_patterns(store, tenant, narrowed)),
        "tools": metric_cards.metric_rows(tool_stats),
        # A label of the stats has the form `agent version`.
        "versions": [row | {"version": row["name"].removeprefix(f"{name} ").strip()} for row in versions],
        "costs": metric_cards.costs(cell),
        "recent": list(map(run_pages.build_run_row, recent)),
        "advice": list(map(formatting.text, stats_report.build_advice(Cell(), tool_stats.parts, {name: cell}))),
        "repaired_share": f"{formatting.percent(cell.repaired, succeeded)} of "
        f"{format_count(succeeded, 'successful call')}",
        "narrowed": narrowed,
    }


def model(store: Store, tenant: str, page_query: PageQuery, name: str) -> dict[str, Any] | None:
    """Return the page of one model: the calls of the model itself, not those of the tools that it requested."""
    narrowed = page_query.narrow(model=name, type="model")
    series = store.stats(tenant, narrowed.stats_query(by="time"))
    recent = store.runs(tenant, narrowed.query(RUN_SPEC, limit=MAX_RECENT_RUNS))
    if not (recent or series.total.calls or _has_runs(store, tenant, narrowed)):
        return None
    pattern_query = page_query.narrow(tool=name, kind="model")
    failed_runs = recovery_costs.read_failed_runs(store, tenant, narrowed.stats_query())
    return {
        "name": name,
        **metric_cards.metric_context(store, tenant, narrowed, series),
        "costs": metric_cards.costs(series.total),
        "cost": metric_cards.format_cost(series.total),
        "caused": recovery_costs.count_caused_failures(failed_runs.histories).get(name, 0),
        "agents": metric_cards.metric_rows(store.stats(tenant, narrowed.stats_query(by="agent"))),
        "patterns": build_pattern_rows(store, tenant, page_query, _find_patterns(store, tenant, pattern_query)),
        "recent": list(map(run_pages.build_run_row, recent)),
    }


def _find_patterns(store: Store, tenant: str, narrowed: PageQuery) -> Sequence[Pattern]:
    return store.patterns(tenant, narrowed.query(PATTERN_SPEC, order="unrecovered", limit=MAX_SHOWN_PATTERNS))


def _has_runs(store: Store, tenant: str, narrowed: PageQuery) -> bool:
    return bool(store.runs(tenant, narrowed.query(RUN_SPEC, limit=1, since=None, until=None)))


def suggest_sentences(name: str, cell: Cell, fixes: Sequence[Fix] = ()) -> Iterator[str]:
    """Yield sentences for the tool's description that would prevent frequent mistakes.

    They contain only shareable values that succeeded: bounds, names, types, enum members (`Fix.changes`).
    """
    working_values = _working_values(fixes)
    sentence_count = 0
    for path, operation, _ in stats_report.list_corrected_arguments(cell):
        suggested_sentence = _suggest_sentence(name, path, operation, working_values)
        if suggested_sentence and (path == TOOL_NAME_PATH or sentence_count < 4):
            sentence_count += path != TOOL_NAME_PATH
            yield suggested_sentence


def _working_values(fixes: Sequence[Fix]) -> dict[tuple[str, str], Any]:
    """Map argument and change operation to the value that succeeded."""
    return {
        (change.path, change.operation): change.after
        for fix in sorted(fixes, key=lambda fix: fix.successes)
        for change in fix.changes
        if change.after not in (None, RUN_SPECIFIC, HIDDEN_VALUE, LAST_PATH_SEGMENT, REQUOTED)
        and not change.form
        and (change.operation != "substitute" or fix.showable)
    }


def _suggest_sentence(tool: str, path: str, operation: str, working_values: dict[tuple[str, str], Any]) -> str:
    """Return a sentence about one argument, or an empty string where no description can help."""
    if path == TOOL_NAME_PATH:
        return f"The tool's name is exactly `{tool}`."
    if operation not in ARGUMENT_SENTENCES:
        return ""
    value = working_values.get((path, operation))
    generic_template, exact_template = ARGUMENT_SENTENCES[operation]
    return exact_template.format(path=path, value=value) if value is not None else generic_template.format(path=path)


def is_vague(message: str) -> bool:
    """Return whether an error message contains nothing that a model could act on."""
    text = " ".join(message.split())
    # Shorter messages can hardly name a remedy.
    return not text or VAGUE_MESSAGE.fullmatch(text) is not None or len(text) < 12


def _timeouts(cell: Cell) -> Iterator[dict[str, Any]]:
    """Yield the durations of timed-out attempts beside those of successful ones."""
    for kind, counters in stats_report.rank_kinds(cell):
        if kind.endswith("/timeout"):
            yield {
                "kind": kind,
                "failures": counters.failures,
                "before": percentile(counters.seconds, 0.5) or (counters.micros / counters.failures / 1e6),
                "p50": percentile(cell.seconds, 0.5),
                "p95": percentile(cell.seconds, 0.95),
            }
