"""Metrics shown by several pages: outcomes over time, by kind and by tool, and trends against the preceding period."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup

from mulligan.dashboard import charts, formatting
from mulligan.dashboard.charts import Bucket, ChartSeries
from mulligan.dashboard.page_query import PageQuery
from mulligan.report import stats as stats_report
from mulligan.store.counters import Cell, Stats, merge, percentile

Card = dict[str, Any]
LATENCY = (ChartSeries("p50", "p50", "ok"), ChartSeries("p95", "p95", "lost"))


def counters_over_time(page_query: PageQuery, series: Stats) -> list[tuple[Bucket, Cell]]:
    """Return the counters of every hour or day of the period, merged where there are too many for one chart."""
    parts = {int(start): cell for start, cell in series.parts.items()}
    labeled_counters = []
    for chunk in charts.group_buckets(page_query.buckets):
        cell = Cell()
        for start in chunk:
            if start in parts:
                merge(cell, parts[start])
        labeled_counters.append((_label_chunk(page_query, chunk), cell))
    return labeled_counters


def _label_chunk(page_query: PageQuery, chunk: range) -> Bucket:
    first = chunk[0]
    if page_query.grain == "hour":
        full_label = f"{formatting.date(first)} {formatting.hour(first)}"
        return Bucket(str(formatting.hour(first)), full_label, ())
    full_label = formatting.date(first)
    if len(chunk) > 1:
        full_label += f" to {formatting.date(chunk[-1])}"
    return Bucket(str(formatting.day(first)), full_label, ())


def outcomes(page_query: PageQuery, series: Stats) -> Markup:
    """Render runs by status over time, or calls by outcome if a filter selects only some calls of a run."""
    labeled_counters = counters_over_time(page_query, series)
    grain_name = "hour" if page_query.grain == "hour" else "day"
    if has_runs(page_query):
        buckets = [
            bucket._replace(values=[cell.runs.get(part.name, 0) for part in charts.STATUSES])
            for bucket, cell in labeled_counters
        ]
        return charts.render_stacked_bars(
            "outcomes", f"Runs by status and {grain_name}", buckets, charts.STATUSES, "runs"
        )
    buckets = [
        bucket._replace(values=[cell.first_try, cell.recovered, cell.given_up]) for bucket, cell in labeled_counters
    ]
    return charts.render_stacked_bars(
        "outcomes", f"Calls by outcome and {grain_name}", buckets, charts.OUTCOMES, "calls"
    )


def latency(page_query: PageQuery, series: Stats) -> Markup | None:
    buckets = [
        bucket._replace(values=[percentile(cell.seconds, 0.5), percentile(cell.seconds, 0.95)])
        for bucket, cell in counters_over_time(page_query, series)
    ]
    if all(value is None for bucket in buckets for value in bucket.values):
        return None
    return charts.render_lines("latency", "Latency of successful attempts", buckets, LATENCY)


def has_runs(page_query: PageQuery) -> bool:
    """Return whether the metrics cover full runs. Tool, kind and model filters select single calls."""
    return not any(page_query.filters.get(name) for name in ("tool", "kind", "model"))


def cards(page_query: PageQuery, cell: Cell, before: Cell) -> list[Card]:
    """Build the metric cards, each with its trend against the preceding period of equal length."""
    runs, failed = sum(cell.runs.values()), stats_report.failed_calls(cell)
    finished, succeeded = stats_report.finished_calls(cell), cell.first_try + cell.recovered
    runs_before = sum(before.runs.values())
    failed_runs, failed_runs_before = cell.runs.get("failure", 0), before.runs.get("failure", 0)
    median = percentile(cell.to_repair, 0.5)
    partial = cell.runs.get("partial", 0)
    card_list: list[Card] = []
    if has_runs(page_query):
        card_list += [
            card(
                "Failed runs", formatting.number(failed_runs),
                f"{formatting.percent(failed_runs, runs)} of runs" if runs else "", "bad" if failed_runs else "",
                compare_rates(failed_runs, runs, failed_runs_before, runs_before, False),
            ),
            card(
                "Recovered runs", formatting.number(cell.runs.get("recovered", 0)),
                "all failed calls recovered" + (f"; {partial:,} partial" if partial else ""), "good",
                compare_rates(
                    cell.runs.get("recovered", 0), runs, before.runs.get("recovered", 0), runs_before, None
                ),
            ),
        ]  # fmt: skip
    else:
        card_list += [
            card(
                "Unrecovered calls", formatting.number(cell.given_up),
                f"{formatting.percent(cell.given_up, finished)} of calls",
                "bad" if cell.given_up else "",
                compare_rates(cell.given_up, finished, before.given_up, stats_report.finished_calls(before), False),
            ),
            card(
                "Recovered calls", formatting.number(cell.recovered), "failed first, succeeded later", "good",
                compare_rates(cell.recovered, finished, before.recovered, stats_report.finished_calls(before), None),
            ),
        ]  # fmt: skip
    median_before = percentile(before.to_repair, 0.5)
    card_list += [
        card(
            "Recovered calls" if has_runs(page_query) else "Recovery rate", formatting.percent(cell.recovered, failed),
            f"{cell.recovered:,} of {failed:,} failed calls; {cell.repaired:,} repaired", "",
            compare_rates(cell.recovered, failed, before.recovered, stats_report.failed_calls(before), True),
        ),
        card(
            "Time to recovery, p50", formatting.seconds(median),
            "from the first attempt to the success" if median is not None
            else f"too few samples ({len(cell.to_repair)})",
            "", _compare_medians(median, median_before),
        ),
        card(
            "First-try success", formatting.percent(cell.first_try, finished),
            f"{formatting.percent(succeeded, finished)} final success", "",
            compare_rates(cell.first_try, finished, before.first_try, stats_report.finished_calls(before), True),
        ),
    ]  # fmt: skip
    return card_list


def card(title: str, value: Markup, detail: str, css_class: str = "", trend: Mapping[str, str] | None = None) -> Card:
    return {"title": Markup(title), "value": value, "detail": Markup(detail), "look": css_class, "trend": trend}


def compare_rates(
    count: int, total: int, previous_count: int, previous_total: int, more_is_better: bool | None
) -> dict[str, str] | None:
    """Compare a rate with the preceding period, in percentage points. The text also says whether it is better."""
    if not total or not previous_total:
        return None
    points = 100 * count / total - 100 * previous_count / previous_total
    description = f"was {formatting.percent(previous_count, previous_total)}"
    if abs(points) < 0.05:
        return {"look": "same", "mark": "=", "text": Markup(f"{description}, unchanged")}
    verdict = "" if more_is_better is None else ", better" if (points > 0) is more_is_better else ", worse"
    mark = "▲" if points > 0 else "▼"
    return {
        "look": verdict[2:] or "same",
        "mark": mark,
        "text": Markup(f"{abs(points):.1f} points; {description}{verdict}"),
    }


def _compare_medians(median: float | None, previous_median: float | None) -> dict[str, str] | None:
    if median is None or previous_median is None:
        return None
    description = f"was {formatting.seconds(previous_median)}"
    if abs(median - previous_median) < 0.05 * previous_median:
        return {"look": "same", "mark": "=", "text": Markup(f"{description}, about the same")}
    is_better = median < previous_median
    return {
        "look": "better" if is_better else "worse",
        "mark": "▼" if is_better else "▲",
        "text": Markup(f"{description}, {'faster' if is_better else 'slower'}"),
    }


def kinds(cell: Cell) -> list[dict[str, Any]]:
    """Group failures by type and code, most frequent first."""
    types: dict[str, list[tuple[str, Any]]] = {}
    for kind, counters in stats_report.rank_kinds(cell):
        types.setdefault(kind.partition("/")[0], []).append((kind, counters))
    highest_count = max((counters.failures for counters in cell.kinds.values()), default=1) or 1
    groups = [
        {
            "type": type,
            "failures": sum(counters.failures for _, counters in codes),
            "codes": [
                {
                    "kind": kind,
                    "code": kind.partition("/")[2],
                    "failures": counters.failures,
                    "unrecovered": counters.given_up,
                    "bar": charts.render_bar(counters.failures / highest_count),
                }
                for kind, counters in codes
            ],
        }
        for type, codes in types.items()
    ]
    return sorted(groups, key=lambda group: (-group["failures"], group["type"]))


def recovery_methods(cell: Cell) -> list[dict[str, Any]]:
    """Return the recovery methods with their calls, most frequent first."""
    total = sum(cell.overcome.values())
    highest_count = max(cell.overcome.values(), default=1)
    return [
        {
            "name": stats_report.RECOVERY_METHODS.get(name, name),
            "calls": calls,
            "share": formatting.percent(calls, total),
            "bar": charts.render_bar(calls / highest_count),
        }
        for name, calls in sorted(cell.overcome.items(), key=lambda item: (-item[1], item[0]))
    ]


def metric_rows(parts: Iterable[tuple[str, Cell]], limit: int | None = None) -> list[dict[str, Any]]:
    """Build a row per tool, agent, model or version, most unrecovered calls first."""
    order = sorted(parts, key=lambda part: (-part[1].given_up, -part[1].recovered, -part[1].calls, part[0]))
    return [
        {
            "name": name,
            "cell": cell,
            "calls": cell.calls,
            "settled": stats_report.finished_calls(cell),
            "first_try": charts.render_rate(cell.first_try, 0, stats_report.finished_calls(cell)),
            "final": charts.render_rate(cell.first_try, cell.recovered, stats_report.finished_calls(cell)),
            "recovered": cell.recovered,
            "repaired": cell.repaired,
            "unrecovered": cell.given_up,
            "p50": percentile(cell.seconds, 0.5),
            "p95": percentile(cell.seconds, 0.95),
            "backoff_seconds": cell.waited / 1e6,
            "runs": sum(cell.runs.values()),
        }
        for name, cell in order[:limit]
    ]


def costs(cell: Cell) -> list[tuple[str, Markup, str]]:
    """Return the cost of recovery as rows of name, value and detail."""
    entries = [
        ("Backoff", formatting.seconds(cell.waited / 1e6), ""),
        ("Retry time", formatting.seconds(cell.retrying / 1e6), ""),
    ]
    if cell.tokens:
        detail = f"{formatting.percent(cell.recovery_tokens, cell.tokens)} of {cell.tokens:,} tokens"
        entries.append(("Tokens in retries", formatting.number(cell.recovery_tokens), detail))
    if cell.suggested:
        detail = f"{formatting.percent(cell.hits, cell.suggested)} of {cell.suggested:,} attempted"
        entries.append(("Successful repairs", formatting.number(cell.hits), detail))
    entries.append(
        ("Repeats after compaction", formatting.number(cell.repeats), "occurred before it and again after it")
    )
    return entries
