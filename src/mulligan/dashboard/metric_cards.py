"""Metrics shown by several pages: outcomes over time, by kind and by tool, and trends against the preceding period."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from markupsafe import Markup

from mulligan.dashboard import charts, formatting
from mulligan.dashboard.charts import Bucket, ChartSeries
from mulligan.dashboard.page_query import PageQuery
from mulligan.report import stats as stats_report
from mulligan.store.base import DAY, RunQuery, Store
from mulligan.store.counters import Cell, Stats, merge, percentile

Card = dict[str, Any]
Trend = dict[str, str]
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
        bucket._replace(values=[cell.first_try, cell.recovered, cell.unrecovered]) for bucket, cell in labeled_counters
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
    """Return whether the metrics cover full runs. Tool, kind, model and type filters select single calls."""
    return not any(page_query.filters.get(name) for name in ("tool", "kind", "model", "type"))


def cards(page_query: PageQuery, cell: Cell, before: Cell) -> list[Card]:
    """Build the metric cards, each with its trend against the preceding period of equal length."""
    finished, failed = stats_report.finished_calls(cell), stats_report.failed_calls(cell)
    failed_runs, recovered_runs, partial_runs = (
        cell.runs.get(status, 0) for status in ("failure", "recovered", "partial")
    )

    def trend(count: Callable[[Cell], int], total: Callable[[Cell], int], more_is_better: bool | None) -> Trend | None:
        return compare_rates(count(cell), total(cell), count(before), total(before), more_is_better)

    def count_runs(status: str = "") -> Callable[[Cell], int]:
        return lambda counters: counters.runs.get(status, 0) if status else sum(counters.runs.values())

    rate_trend = trend(attrgetter("recovered"), stats_report.failed_calls, True)
    if has_runs(page_query):
        runs = sum(cell.runs.values())
        detail = f"{formatting.percent(failed_runs, runs)} of runs" if runs else ""
        partly = f"; {partial_runs:,} partial" if partial_runs else ""
        failed_trend = trend(count_runs("failure"), count_runs(), False)
        recovered_trend = trend(count_runs("recovered"), count_runs(), None)
        first_cards = [
            _card("Failed runs", failed_runs, detail, failed_trend, "bad" if failed_runs else ""),
            _card("Recovered runs", recovered_runs, f"all failed calls recovered{partly}", recovered_trend, "good"),
        ]
        rate_title = "Recovered calls"
    else:
        detail = f"{formatting.percent(cell.unrecovered, finished)} of calls"
        failed_trend = trend(attrgetter("unrecovered"), stats_report.finished_calls, False)
        recovered_trend = trend(attrgetter("recovered"), stats_report.finished_calls, None)
        first_cards = [
            _card("Unrecovered calls", cell.unrecovered, detail, failed_trend, "bad" if cell.unrecovered else ""),
            _card("Recovered calls", cell.recovered, "failed first, succeeded later", recovered_trend, "good"),
        ]
        rate_title = "Recovery rate"
    counts = f"{cell.recovered:,} of {failed:,} failed calls; {cell.repaired:,} repaired"
    median, median_before = percentile(cell.to_repair, 0.5), percentile(before.to_repair, 0.5)
    sample = (
        "from the first attempt to the success" if median is not None else f"too few samples ({len(cell.to_repair)})"
    )
    final = f"{formatting.percent(cell.first_try + cell.recovered, finished)} final success"
    first_trend = trend(attrgetter("first_try"), stats_report.finished_calls, True)
    return [
        *first_cards,
        _card(rate_title, formatting.percent(cell.recovered, failed), counts, rate_trend),
        _card("Time to recovery, p50", formatting.seconds(median), sample, _compare_medians(median, median_before)),
        _card("First-try success", formatting.percent(cell.first_try, finished), final, first_trend),
    ]


def _card(title: str, value: int | Markup, detail: str, trend: Trend | None, look: str = "") -> Card:
    text = value if isinstance(value, Markup) else formatting.number(value)
    return {"title": Markup(title), "value": text, "detail": Markup(detail), "look": look, "trend": trend}


def compare_rates(
    count: int, total: int, previous_count: int, previous_total: int, more_is_better: bool | None
) -> Trend | None:
    """Compare a rate with the preceding period, in percentage points. The text also says whether it is better."""
    if not total or not previous_total:
        return None
    points = 100 * count / total - 100 * previous_count / previous_total
    description = f"was {formatting.percent(previous_count, previous_total)}"
    if abs(points) < 0.05:
        return {"look": "same", "mark": "=", "text": Markup(f"{description}, unchanged")}
    verdict = "" if more_is_better is None else ", better" if (points > 0) is more_is_better else ", worse"
    text = Markup(f"{abs(points):.1f} points; {description}{verdict}")
    return {"look": verdict[2:] or "same", "mark": "▲" if points > 0 else "▼", "text": text}


def _compare_medians(median: float | None, previous_median: float | None) -> Trend | None:
    if median is None or previous_median is None:
        return None
    description = f"was {formatting.seconds(previous_median)}"
    if abs(median - previous_median) < 0.05 * previous_median:
        return {"look": "same", "mark": "=", "text": Markup(f"{description}, about the same")}
    look, mark, verdict = ("better", "▼", "faster") if median < previous_median else ("worse", "▲", "slower")
    return {"look": look, "mark": mark, "text": Markup(f"{description}, {verdict}")}


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
                    "unrecovered": counters.unrecovered,
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
    total = sum(cell.recovered_by.values())
    highest_count = max(cell.recovered_by.values(), default=1)
    return [
        {
            "name": stats_report.RECOVERY_METHODS.get(name, name),
            "calls": calls,
            "share": formatting.percent(calls, total),
            "bar": charts.render_bar(calls / highest_count),
        }
        for name, calls in sorted(cell.recovered_by.items(), key=lambda item: (-item[1], item[0]))
    ]


def metric_rows(parts: Iterable[tuple[str, Cell]], limit: int | None = None) -> list[dict[str, Any]]:
    """Build a row per tool, agent, model or version, most unrecovered calls first."""
    order = sorted(parts, key=lambda part: (-part[1].unrecovered, -part[1].recovered, -part[1].calls, part[0]))
    return [
        {
            "name": name,
            "cell": cell,
            "calls": cell.calls,
            "first_try": charts.render_rate(cell.first_try, 0, stats_report.finished_calls(cell)),
            "final": charts.render_rate(cell.first_try, cell.recovered, stats_report.finished_calls(cell)),
            "recovered": cell.recovered,
            "repaired": cell.repaired,
            "unrecovered": cell.unrecovered,
            "p50": percentile(cell.seconds, 0.5),
            "p95": percentile(cell.seconds, 0.95),
            "runs": sum(cell.runs.values()),
        }
        for name, cell in order[:limit]
    ]


def costs(cell: Cell) -> list[tuple[str, Markup, str]]:
    """Return the cost of recovery as rows of name, value and detail."""
    entries = [
        ("Backoff", formatting.seconds(cell.backoff_micros / 1e6), ""),
        ("Retry time", formatting.seconds(cell.retry_micros / 1e6), ""),
    ]
    if cell.tokens:
        detail = f"{formatting.percent(cell.recovery_tokens, cell.tokens)} of {cell.tokens:,} tokens"
        entries.append(("Tokens in retries", formatting.number(cell.recovery_tokens), detail))
    if cell.repair_attempts:
        share = formatting.percent(cell.repair_successes, cell.repair_attempts)
        detail = f"{share} of {cell.repair_attempts:,} attempted"
        entries.append(("Successful repairs", formatting.number(cell.repair_successes), detail))
    entries.append(
        ("Repeats after compaction", formatting.number(cell.repeats), "occurred before it and again after it")
    )
    return entries


def metric_context(page_query: PageQuery, series: Stats, before: Cell) -> dict[str, Any]:
    """Return what the pages of all, of one tool and of one agent show: cards, charts, kinds and recovery methods."""
    cell = series.total
    return {
        "cell": cell,
        "cards": cards(page_query, cell, before),
        "chart": outcomes(page_query, series),
        "latency": latency(page_query, series),
        "kinds": kinds(cell),
        "failures": sum(counters.failures for counters in cell.kinds.values()),
        "means": recovery_methods(cell),
    }


def empty_state(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    """Describe why a page is empty: no runs at all, or none for this period and these filters."""
    newest = store.runs(tenant, RunQuery(limit=1))
    if not newest:
        return {"is_new": True}
    newest_start = newest[0].run.started_at
    return {
        "is_new": False,
        "newest": newest_start,
        "newest_week": page_query.link_with_dates(newest_start - 6 * DAY, newest_start),
        "is_narrow": bool(page_query.filters),
    }
