"""Text rendering of stats: a summary sentence, tables, then advice."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, get_args

from mulligan.contract.counters import Cell, Stats
from mulligan.core.records import Status
from mulligan.report import recovery_costs
from mulligan.report import stats as stats_report
from mulligan.report.stats import CHANGE_REASONS
from mulligan.report.tables import (
    Fact,
    TableColumn,
    format_count,
    format_dollars,
    format_duration,
    format_share,
    render_columns,
    render_pairs,
    render_table,
    style_heading,
    to_line,
    wrap_text,
)

MAX_KINDS = 8
MAX_BAR_CHARS = 24
MAX_BARS = 14
"""Maximum number of hours or days shown as bars."""


def format_timestamp(millis: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(millis / 1000))


def format_period(stats: Stats) -> str:
    if stats.since is None and stats.until is None:
        return "over all time"
    since = f"since {format_timestamp(stats.since)}" if stats.since is not None else ""
    until = f"until {format_timestamp(stats.until)}" if stats.until is not None else ""
    return f"{since} {until}".strip()


def render_headline(stats: Stats, kind: str | None = None) -> Iterator[str]:
    """Render the summary sentences. With `kind`, summarize only the calls with that kind of failure."""
    counters, period = stats.total, format_period(stats)
    if kind is not None:
        unrecovered = sum(kind.unrecovered for kind in counters.kinds.values())
        outcomes = f"; {counters.recovered:,} of these recovered, {unrecovered:,} unrecovered"
        failures = f"{format_count(counters.attempts, 'failure')} of {kind} in {format_count(counters.calls, 'call')}"
        yield f"{failures} {period}{outcomes if counters.calls else ''}."
        return
    runs = stats_report.started_runs(counters)
    if runs:
        yield f"{format_count(runs, 'run')} {period}: {format_statuses(counters)}."
    if counters.calls:
        finished, failed = stats_report.finished_calls(counters), stats_report.failed_calls(counters)
        yield (
            f"{format_count(counters.calls, 'call')}{'' if runs else f' {period}'}: "
            f"{format_share(counters.first_try, finished)} first-try success, "
            f"{format_share(counters.first_try + counters.recovered, finished)} final success; "
            f"{counters.recovered:,} of {format_count(failed, 'failed call')} recovered."
        )
    if not runs and not counters.calls:
        yield f"No runs or calls {period}."


def format_statuses(counters: Cell) -> str:
    """Format the runs by status, those that have not ended, and how many ended unrecovered if two statuses say so."""
    counts = [(status, counters.runs.get(status)) for status in get_args(Status)]
    parts = [f"{count:,} {name}" for name, count in (*counts, ("running", counters.running)) if count]
    has_both = counters.runs.get("partial") and counters.runs.get("failure")
    unrecovered = f"; {stats_report.unrecovered_runs(counters):,} unrecovered runs" if has_both else ""
    return f"{', '.join(parts)}{unrecovered}"


def render_overview(
    stats: Stats,
    tools: Stats,
    agents: Stats,
    series: Stats,
    width: int | None,
    model_recovery: Fact = MappingProxyType({}),
) -> Iterator[str]:
    """Render the full stats page. `model_recovery` has the facts of `recovery_costs`."""
    cell = stats.total
    yield from (part for sentence in render_headline(stats) for part in wrap_text(sentence, width, ""))
    if not cell.calls and not cell.kinds:
        return
    yield ""
    open_kinds = [row for row in model_recovery.get("by_kind", ()) if row["recovered_by_model"] + row["unrecovered"]]
    summary = recovery_costs.render_summary(model_recovery) if open_kinds else ()
    yield from render_pairs((*_metric_rows(cell), *summary), width)
    failing = {name: part for name, part in tools.parts.items() if stats_report.failed_calls(part)}
    tool_lines = render_by_dimension(failing, "tool", 5, width, more="mulligan stats --by tool")
    corrected = rank_corrected_arguments(tools.parts)[:5]
    attempts = stats_report.count_by_attempt(cell)
    advice = stats_report.build_advice(cell, tools.parts, agents.parts)
    sections: tuple[tuple[str, object, Iterable[str]], ...] = (
        ("Failures by kind", cell.kinds, render_kinds(cell, width)),
        ("Recovery methods", cell.recovered_by, render_columns(_recovery_rows(cell), right=(1, 2), width=width)),
        ("Success by attempt", cell.later_attempts, render_table(ATTEMPT_COLUMNS, attempts, width)),
        ("Fixed by the model", open_kinds, render_table(recovery_costs.KIND_COLUMNS, open_kinds[:MAX_KINDS], width)),
        ("Failures by tool", failing, tool_lines),
        ("Corrected arguments", corrected, render_table(CORRECTED_ARGUMENT_COLUMNS, corrected, width)),
        (f"Failed calls by {series.grain}", len(series.parts) > 1, render_over_time(series, width)),
        ("Recommendations", advice, (part for sentence in advice for part in _render_item(sentence, width))),
    )
    for title, content, lines in sections:
        if content:
            yield ""
            yield style_heading(title, width)
            yield from lines


def _render_item(text: str, width: int | None) -> Iterator[str]:
    for index, part in enumerate(wrap_text(text, width, "    ")):
        yield part if index else f"  - {part.strip()}"


def _metric_rows(cell: Cell) -> Iterator[tuple[str, str]]:
    failed = stats_report.failed_calls(cell)
    for name, part, total, noun in (
        ("recovered calls", cell.recovered, failed, "failed"),
        ("repaired calls", cell.repaired, failed, "failed"),
        ("successful repairs", cell.repair_successes, cell.repair_attempts, "attempted"),
    ):
        if total:
            yield name, f"{format_share(part, total)} ({part:,} of {total:,} {noun})"
    repair = stats_report.percentile_summary(cell.to_repair)
    if repair["sample_size"]:
        yield "time to recovery", _format_percentiles(repair)
    if cell.seconds:
        yield "latency", _format_percentiles(stats_report.percentile_summary(cell.seconds))
    if cell.tokens or cell.priced_attempts:
        yield "cost of model calls", f"{stats_report.format_cost(cell)} ({format_count(cell.tokens, 'token')})"
    if cell.backoff_micros or cell.retry_micros or cell.recovery_tokens:
        backoff, retries = (format_duration(micros / 1e6) for micros in (cell.backoff_micros, cell.retry_micros))
        usage = stats_report.format_recovery_usage(cell)
        yield "cost of recovery", f"backoff {backoff}, retries {retries}{usage}"
    if cell.avoided_turns:
        yield "cost avoided", stats_report.format_avoided(cell)
    if cell.reflections:
        yield "reflections", stats_report.format_reflections(cell)
    if cell.suspected:
        yield "suspected failures", f"{cell.suspected:,} (counted as successes)"
    if cell.repeats:
        yield "repeats after compaction", f"{cell.repeats:,}"


def _format_percentiles(times: Mapping[str, Any]) -> str:
    if times["p50"] is None:
        return f"too few samples ({times['sample_size']:,})"
    names = [name for name in ("p50", "p95", "p99") if times[name] is not None]
    return ", ".join(f"{name} {format_duration(times[name])}" for name in names)


def render_kinds(cell: Cell, width: int | None) -> Iterator[str]:
    rows = [stats_report.to_kind_facts(counters) | {"kind": kind} for kind, counters in stats_report.rank_kinds(cell)]
    yield from render_table(KIND_COLUMNS, rows[:MAX_KINDS], width)
    if len(rows) > MAX_KINDS:
        yield f"  and {format_count(len(rows) - MAX_KINDS, 'kind')} more: mulligan stats --by kind"


def _main_recovery_method(fact: Fact) -> str:
    return stats_report.RECOVERY_METHODS.get(next(iter(fact["recovered_by"]), ""), "-")


def _format_time_before(fact: Fact) -> str:
    times = fact["seconds_before"]
    return format_duration(times["mean"]) if times["mean"] is not None else "-"


FAILURES_COLUMN = TableColumn("failures", lambda fact: f"{fact['attempts']:,}", True, 9)
KIND_COLUMNS = (
    TableColumn("kind", lambda fact: to_line(fact["kind"], 60), priority=9),
    TableColumn("failures", lambda fact: f"{fact['failures']:,}", True, 9),
    TableColumn("calls", lambda fact: f"{fact['calls']:,}", True, 4),
    TableColumn("recovered", lambda fact: f"{fact['recovered']:,}", True, 8),
    TableColumn("unrecovered", lambda fact: f"{fact['unrecovered']:,}", True, 7),
    TableColumn("mean duration", _format_time_before, True, 3),
    TableColumn("main recovery method", _main_recovery_method, priority=5),
)


def _recovery_rows(cell: Cell) -> Iterator[tuple[str, ...]]:
    total = sum(cell.recovered_by.values())
    for method, number in sorted(cell.recovered_by.items(), key=lambda item: (-item[1], item[0])):
        yield stats_report.RECOVERY_METHODS.get(method, method), f"{number:,}", format_share(number, total)


def format_attempt(number: int) -> str:
    names = {1: "first", 2: "second", 3: "third", 10: "tenth and later"}
    return names.get(number, f"{number}th")


def rank_corrected_arguments(tools: Mapping[str, Cell]) -> list[dict[str, Any]]:
    """Return the corrected arguments of all tools, most frequent first."""
    corrections = [
        {"tool": name, "argument": path, "operation": operation, "calls": calls}
        for name, cell in tools.items()
        for path, operation, calls in stats_report.list_corrected_arguments(cell)
    ]
    return sorted(corrections, key=lambda fact: (-fact["calls"], fact["tool"], fact["argument"], fact["operation"]))


CORRECTED_ARGUMENT_COLUMNS = (
    TableColumn("tool", lambda fact: to_line(fact["tool"], 40), priority=9),
    TableColumn("argument", lambda fact: to_line(fact["argument"], 40), priority=9),
    TableColumn("calls", lambda fact: f"{fact['calls']:,}", True, 9),
    TableColumn("problem", lambda fact: str(CHANGE_REASONS.get(fact["operation"], fact["operation"])), priority=8),
)


def render_over_time(series: Stats, width: int | None) -> Iterator[str]:
    """Render one bar per hour or day. Its length is the failure rate relative to the highest one."""
    parts = sorted((int(start), cell) for start, cell in series.parts.items())
    latest = parts[-MAX_BARS:]
    shares = [(start, stats_report.failed_calls(cell), stats_report.finished_calls(cell)) for start, cell in latest]
    max_failure_rate = max((failed / finished for _, failed, finished in shares if finished), default=0)
    max_bar_length = MAX_BAR_CHARS if width is None else min(MAX_BAR_CHARS, width - 45)
    time_format = "%Y-%m-%d %H:%M" if series.grain == "hour" else "%Y-%m-%d"
    rows = [("", "calls", "failed", "", "")]
    for start, failed, finished in shares:
        length = round(max_bar_length * failed / finished / max_failure_rate) if finished and max_failure_rate else 0
        bar = "#" * max(length, int(failed > 0 and max_bar_length > 0))
        when = time.strftime(time_format, time.gmtime(start / 1000))
        rows.append((when, f"{finished:,}", f"{failed:,}", format_share(failed, finished), bar))
    yield from render_columns(rows, right=(1, 2, 3), width=width)
    if len(parts) > len(latest):
        yield f"  and {len(parts) - len(latest):,} earlier: mulligan stats --by time"


def render_by_dimension(
    parts: Mapping[str, Cell],
    dimension: str,
    limit: int,
    width: int | None,
    when: str = "%Y-%m-%d",
    is_single_kind: bool = False,
    more: str = "",
    caused: Mapping[str, int] | None = None,
) -> Iterator[str]:
    """Render one row per value of a dimension, most unrecovered calls first. `caused` has tool failures by model."""
    rows = rank_parts(parts, dimension)
    if caused is not None:
        rows = add_caused_failures(rows, caused)
    if is_single_kind:
        rows = [fact for fact in rows if fact["attempts"]]
    columns = columns_for_dimension(dimension, when, is_single_kind)
    if caused:
        columns = (*columns, CAUSED_COLUMN)
    if any(fact["tokens"] or fact["cost_usd"] is not None or fact["avoided_turns"] for fact in rows):
        columns = (*columns, *COST_COLUMNS)
    yield from render_table(columns, limit_rows(rows, dimension, limit), width)
    if len(rows) > limit:
        remainder_label = "earlier" if dimension == "time" else "more"
        yield f"  and {len(rows) - limit:,} {remainder_label}: {more or f'--limit {len(rows)}'}"


CAUSED_COLUMN = TableColumn("tool failures", lambda fact: f"{fact['tool_failures']:,}", True, 8)
"""Failed tool calls that a model requested."""


def add_caused_failures(rows: list[dict[str, Any]], caused: Mapping[str, int]) -> list[dict[str, Any]]:
    """Add to each model the failed tool calls that it requested, also to those without a call of their own."""
    names = {fact["model"] for fact in rows}
    rows = rows + [{"model": name} | stats_report.to_facts(Cell()) for name in caused if name not in names]
    return [fact | {"tool_failures": caused.get(fact["model"], 0)} for fact in rows]


def limit_rows(rows: list[dict[str, Any]], dimension: str, limit: int | None) -> list[dict[str, Any]]:
    """Return the first `limit` ranked rows. For times, return the latest ones, in order."""
    if limit is None:
        return rows
    return rows[-limit:] if dimension == "time" else rows[:limit]


def rank_parts(parts: Mapping[str, Cell], dimension: str) -> list[dict[str, Any]]:
    """Return the facts of each part, most unrecovered calls first. Times and attempts stay in order."""
    rows = [{dimension: name} | stats_report.to_facts(cell) for name, cell in parts.items()]
    if dimension == "attempt":
        rows = [fact | fact["by_attempt"][0] for fact in rows]
    if dimension in ("time", "attempt"):
        return sorted(rows, key=lambda fact: int(fact[dimension]))
    if dimension == "kind":
        rows = [fact | fact["kinds"][fact["kind"]] for fact in rows]
        return sorted(rows, key=lambda fact: (-fact["failures"], fact["kind"]))
    return sorted(rows, key=lambda fact: part_position(fact, dimension))


def part_position(fact: Mapping[str, Any], dimension: str) -> tuple[int, int, int, str]:
    """Return the sort key of a part: most unrecovered calls first."""
    return -fact["unrecovered"], -fact["recovered"], -fact["calls"], fact[dimension]


def build_answer(stats: Stats, limit: int | None = None, caused: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Build the JSON answer: period, totals, and the parts (at most `limit`) if the query has a dimension.

    `caused` has failed tool calls by the model that requested them.
    """
    facts: dict[str, Any] = {name: getattr(stats, name) for name in ("since", "until", "grain")}
    facts["total"] = stats_report.to_facts(stats.total)
    if stats.by is not None:
        rows = rank_parts(stats.parts, stats.by)
        rows = rows if caused is None else add_caused_failures(rows, caused)
        facts |= {"by": stats.by, "parts": limit_rows(rows, stats.by, limit)}
    return facts


def columns_for_dimension(dimension: str, when: str, is_single_kind: bool = False) -> Sequence[TableColumn]:
    if dimension == "kind":
        return KIND_COLUMNS
    if dimension == "attempt":
        return ATTEMPT_COLUMNS
    name = TableColumn(dimension, lambda fact: _format_name(fact[dimension], dimension, when), priority=9)
    return (name, FAILURES_COLUMN, *KIND_COLUMNS[2:5]) if is_single_kind else (name, *METRIC_COLUMNS)


METRIC_COLUMNS = (
    TableColumn("calls", lambda fact: f"{fact['calls']:,}", True, 8),
    TableColumn("first try", lambda fact: _format_rate(fact["first_try_rate"]), True, 6),
    TableColumn("final success", lambda fact: _format_rate(fact["final_success_rate"]), True, 7),
    TableColumn("recovered", lambda fact: f"{fact['recovered']:,}", True, 5),
    TableColumn("repaired", lambda fact: f"{fact['repaired']:,}", True, 3),
    TableColumn("unrecovered", lambda fact: f"{fact['unrecovered']:,}", True, 8),
    TableColumn("p50", lambda fact: _format_percentile(fact["latency_seconds"], "p50"), True, 2),
    TableColumn("p95", lambda fact: _format_percentile(fact["latency_seconds"], "p95"), True, 4),
    TableColumn("backoff", lambda fact: _format_backoff(fact["backoff_seconds"]), True, 1),
)
COST_COLUMNS = (
    TableColumn("tokens", lambda fact: f"{fact['tokens']:,}", True, 4),
    TableColumn("cost", lambda fact: _format_dollars(fact, "cost_usd"), True, 6),
    TableColumn("cost of recovery", lambda fact: _format_dollars(fact, "recovery_cost_usd"), True, 5),
    TableColumn("cost avoided", lambda fact: _format_dollars(fact, "avoided_cost_usd"), True, 5),
)
"""Columns of model calls, shown if there are any."""
ATTEMPT_COLUMNS = (
    TableColumn("attempt", lambda fact: format_attempt(int(fact["attempt"])), priority=9),
    TableColumn("count", lambda fact: f"{fact['attempts']:,}", True, 9),
    TableColumn("succeeded", lambda fact: f"{fact['successes']:,}", True, 9),
    TableColumn("success rate", lambda fact: format_share(fact["successes"], fact["attempts"]), True, 8),
)


def _format_name(value: str, dimension: str, when: str) -> str:
    if dimension == "time":
        return time.strftime(when, time.gmtime(int(value) / 1000))
    return to_line(value, 60) or "(no name)"


def _format_rate(percent: float | None) -> str:
    return format_share(round(percent * 100), 10_000) if percent is not None else "-"


def _format_dollars(fact: Fact, name: str) -> str:
    if fact[name] is not None:
        return format_dollars(round(fact[name] * 1e9))
    tokens = fact[name.replace("cost_usd", "tokens")]  # of all attempts, of recovery, or avoided
    return "unknown" if tokens and (fact["unpriced_attempts"] or name == "avoided_cost_usd") else "-"


def _format_backoff(seconds: float) -> str:
    return format_duration(seconds) if seconds else "-"


def _format_percentile(times: Mapping[str, Any], name: str) -> str:
    return stats_report.format_time(times[name], times["sample_size"])


COMPARABLE_DIMENSIONS = ("agent", "tool", "model", "version", "environment")
"""Dimensions whose values can be compared with each other."""


def render_comparison(comparison: stats_report.StatComparison, width: int | None) -> Iterator[str]:
    """Render two stats side by side and mark the significant differences."""
    names, baseline = comparison.names, comparison.stats[0]
    yield f"{to_line(names[1], 40)} compared with {to_line(names[0], 40)}, {format_period(baseline)}."
    yield comparison.conclusion
    yield ""
    rows: list[tuple[str, ...]] = [("", to_line(names[0], 20), to_line(names[1], 20), "", "difference")]
    rows += [difference[:5] for difference in comparison.differences]
    yield from render_columns(rows, right=(1, 2), width=width)
    yield ""
    yield stats_report.COMPARISON_NOTE


def comparison_facts(comparison: stats_report.StatComparison) -> Fact:
    """Return two stats side by side, and their differences."""
    return {
        "values": comparison.names,
        "stats": [build_answer(stats) for stats in comparison.stats],
        "differences": [difference._asdict() for difference in comparison.differences],
        "conclusion": comparison.conclusion,
        "note": stats_report.COMPARISON_NOTE,
    }
