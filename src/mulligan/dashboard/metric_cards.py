"""Metrics shown by several pages: outcomes over time, by kind and by tool, and trends against the preceding period."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from markupsafe import Markup
from msgspec.structs import replace

from mulligan.contract.counters import Cell, Stats, merge, percentile
from mulligan.contract.store import DAY, RunQuery, Store
from mulligan.dashboard import charts, formatting
from mulligan.dashboard.charts import Bucket, ChartSeries
from mulligan.dashboard.page_query import PageQuery
from mulligan.report import stats as stats_report

Card = dict[str, Any]
Trend = dict[str, str]
CountFunction = Callable[[Cell], int]
ROWS_PER_PAGE = 50
LATENCY = (ChartSeries("p50", "p50", "ok"), ChartSeries("p95", "p95", "lost"))


def counters_over_time(page_query: PageQuery, series: Stats) -> list[tuple[Bucket, Cell]]:
    """Return the counters of every hour or day of the period, merged where there are too many for one chart."""
    parts = {int(start): cell for start, cell in series.parts.items()}
    buckets, labeled_counters = page_query.buckets, []
    if page_query.period == "all" and parts:
        buckets = range(min(parts), buckets.stop, buckets.step)
    is_this_year = formatting.date(buckets.start)[:4] == formatting.date(page_query.now)[:4]
    for chunk in charts.group_buckets(buckets):
        cell = Cell()
        for start in chunk:
            if start in parts:
                merge(cell, parts[start])
        date = formatting.date(chunk[0])
        label = str(formatting.day(chunk[0])) if is_this_year else date
        if page_query.grain == "hour":
            label = str(formatting.hour(chunk[0]))
            date = f"{date} {label}"
        elif len(chunk) > 1:
            date = f"{date} to {formatting.date(chunk[-1])}"
        labeled_counters.append((Bucket(label, date, ()), cell))
    return labeled_counters


def outcomes(page_query: PageQuery, series: Stats) -> Markup:
    """Render runs by status over time, or calls by outcome if a filter selects only some calls of a run."""
    title, parts, noun = "Calls by outcome", charts.OUTCOMES, "calls"
    if has_runs(page_query):
        title, parts, noun = "Runs by status", charts.STATUSES, "runs"
    buckets = [
        bucket._replace(
            values=[cell.runs.get(part.name, 0) if noun == "runs" else getattr(cell, part.name) for part in parts]
        )
        for bucket, cell in counters_over_time(page_query, series)
    ]
    return charts.render_stacked_bars("outcomes", f"{title} and {page_query.grain}", buckets, parts, noun)


def latency(page_query: PageQuery, series: Stats) -> Markup | None:
    buckets = [
        bucket._replace(values=[percentile(cell.seconds, 0.5), percentile(cell.seconds, 0.95)])
        for bucket, cell in counters_over_time(page_query, series)
    ]
    if all(value is None for bucket in buckets for value in bucket.values):
        return None
    texts = "latency", "Latency of successful attempts", "Duration of successful attempts in seconds."
    return charts.render_lines(*texts, buckets, LATENCY)


def has_runs(page_query: PageQuery) -> bool:
    """Return whether the metrics cover full runs. Tool, kind, model and type filters select single calls."""
    return not any(page_query.filters.get(name) for name in ("tool", "kind", "model", "type"))


def cards(
    page_query: PageQuery, cell: Cell, before: Cell, differences: Iterable[stats_report.StatDifference]
) -> list[Card]:
    """Build the metric cards, each with its trend against the preceding period of equal length.

    A trend is better or worse only if the comparison of both periods, `differences`, says so.
    """
    verdicts = {difference.name: difference.verdict for difference in differences}
    finished, failed = stats_report.finished_calls(cell), stats_report.failed_calls(cell)
    covers_runs = has_runs(page_query)
    count_failed: CountFunction = attrgetter("unrecovered")
    count_recovered: CountFunction = attrgetter("recovered")
    count_all: CountFunction = stats_report.finished_calls
    titles, detail = ("Unrecovered calls", "Recovered calls", "Recovery rate"), "failed first, succeeded later"
    if covers_runs:
        count_failed, count_all = stats_report.unrecovered_runs, stats_report.ended_runs
        count_recovered = _count_recovered_runs
        titles, detail = ("Unrecovered runs", "Recovered runs", "Recovered calls"), "all failed calls recovered"
    failures, total = count_failed(cell), count_all(cell)
    failed_share = f"{formatting.percent(failures, total)} of {'ended runs' if covers_runs else 'calls'}"
    if covers_runs and not total:
        failed_share = ""
    elif covers_runs and failures:
        failed_share += f": {cell.runs.get('partial', 0):,} partial, {cell.runs.get('failure', 0):,} failed"
    rate_detail = f"{cell.recovered:,} of {failed:,} failed calls; {cell.repaired:,} repaired"
    final = f"{formatting.percent(cell.first_try + cell.recovered, finished)} final success"
    median, median_before = percentile(cell.to_repair, 0.5), percentile(before.to_repair, 0.5)
    sample = (
        "from the first attempt to the success" if median is not None else f"too few samples ({len(cell.to_repair)})"
    )

    def trend(count: CountFunction, total: CountFunction, name: str = "") -> Trend | None:
        return describe_trend(count(cell), total(cell), count(before), total(before), verdicts.get(name))

    failed_trend = trend(count_failed, count_all, "unrecovered runs" if covers_runs else "final success")
    recovered_trend = trend(count_recovered, count_all)
    rate_trend = trend(attrgetter("recovered"), stats_report.failed_calls, "recovered calls")
    first_trend = trend(attrgetter("first_try"), stats_report.finished_calls, "first-try success")
    rows = [
        (titles[0], formatting.number(failures), failed_share, failed_trend, "bad" if failures else ""),
        (titles[1], formatting.number(count_recovered(cell)), detail, recovered_trend, "good"),
        (titles[2], formatting.percent(cell.recovered, failed), rate_detail, rate_trend, ""),
        ("Time to recovery, p50", formatting.seconds(median), sample, _compare_medians(median, median_before), ""),
        ("First-try success", formatting.percent(cell.first_try, finished), final, first_trend, ""),
    ]
    return [
        {"title": Markup(title), "value": value, "detail": Markup(detail), "look": look, "trend": trend}
        for title, value, detail, trend, look in rows
    ]


def _count_recovered_runs(cell: Cell) -> int:
    return cell.runs.get("recovered", 0)


def describe_trend(
    count: int, total: int, previous_count: int, previous_total: int, verdict: str | None = None
) -> Trend | None:
    """Describe a rate against the preceding period, in percentage points, with the verdict of their comparison."""
    if not total or not previous_total:
        return None
    points = 100 * count / total - 100 * previous_count / previous_total
    description = f"was {formatting.percent(previous_count, previous_total)}"
    if abs(points) < 0.05:
        return {"look": "same", "mark": "=", "text": Markup(f"{description}, unchanged")}
    is_clear = verdict in ("better", "worse")
    judgment = "" if verdict is None else f", {verdict if is_clear else 'not significant'}"
    text = Markup(f"{abs(points):.1f} points; {description}{judgment}")
    return {"look": verdict or "" if is_clear else "same", "mark": "▲" if points > 0 else "▼", "text": text}


def _compare_medians(median: float | None, previous: float | None) -> Trend | None:
    """Describe a median against that of the preceding period. No interval says whether chance explains it."""
    if median is None or previous is None:
        return None
    mark = "=" if abs(median - previous) < 0.05 * previous else "▼" if median < previous else "▲"
    return {"look": "same", "mark": mark, "text": Markup(f"was {formatting.seconds(previous)}")}


def kinds(cell: Cell) -> list[dict[str, Any]]:
    """Group failures by type and code, most frequent first."""
    groups: dict[str, dict[str, Any]] = {}
    highest_count = max((counters.failures for counters in cell.kinds.values()), default=1) or 1
    for kind, counters in stats_report.rank_kinds(cell):
        type, _, code = kind.partition("/")
        group = groups.setdefault(type, {"type": type, "failures": 0, "codes": []})
        group["failures"] += counters.failures
        bar = charts.render_bar(counters.failures / highest_count)
        unrecovered = counters.unrecovered
        group["codes"].append(
            {"kind": kind, "code": code, "failures": counters.failures, "unrecovered": unrecovered, "bar": bar}
        )
    return sorted(groups.values(), key=lambda group: (-group["failures"], group["type"]))


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


def metric_rows(stats: Stats, limit: int | None = None) -> list[dict[str, Any]]:
    """Build a row per tool, agent, model or version, most unrecovered calls first."""
    order = sorted(
        stats.parts.items(), key=lambda part: (-part[1].unrecovered, -part[1].recovered, -part[1].calls, part[0])
    )
    return [
        {
            "name": name,
            "cell": cell,
            "first_try": charts.render_rate(cell.first_try, 0, stats_report.finished_calls(cell)),
            "final": charts.render_rate(cell.first_try, cell.recovered, stats_report.finished_calls(cell)),
            "p50": stats_report.format_time(percentile(cell.seconds, 0.5), len(cell.seconds)),
            "p95": stats_report.format_time(percentile(cell.seconds, 0.95), len(cell.seconds)),
            "runs": stats_report.started_runs(cell),
            "cost": format_cost(cell),
        }
        for name, cell in order[:limit]
    ]


def metric_page(store: Store, tenant: str, page_query: PageQuery, stats: Stats) -> dict[str, Any]:
    """Return one page of the rows of a list, of those whose name contains the searched text, or why it is empty."""
    text = page_query.other_parameters.get("q", "").casefold()
    matches = {name: cell for name, cell in stats.parts.items() if text in name.casefold()}
    start = page_query.page_index * ROWS_PER_PAGE
    return {
        "empty": empty_state(store, tenant, page_query) if not stats.parts else None,
        "rows": metric_rows(replace(stats, parts=matches), start + ROWS_PER_PAGE)[start:],
        "matches": len(matches),
        "page_number": page_query.page_index + 1,
        "page_count": -(-len(matches) // ROWS_PER_PAGE),
    }


def format_cost(cell: Cell) -> Markup:
    """Return the cost of the tokens, unknown without a price."""
    if cell.priced_attempts:
        dollars = formatting.dollars(cell.cost_nanos)
        return Markup("at least {}").format(dollars) if cell.unpriced_attempts else dollars
    return Markup("unknown") if cell.unpriced_attempts else formatting.NONE


def costs(cell: Cell) -> list[tuple[str, Markup, str]]:
    """Return the cost of recovery, and what it avoided, as rows of name, value and detail."""
    token_share = f"{formatting.percent(cell.recovery_tokens, cell.tokens)} of {cell.tokens:,} tokens"
    repair_share = (
        f"{formatting.percent(cell.repair_successes, cell.repair_attempts)} of {cell.repair_attempts:,} attempted"
    )
    has_costs = cell.priced_attempts or cell.unpriced_attempts
    cost_share = f"of {stats_report.format_cost(cell)}" if cell.priced_attempts else "the model has no price"
    recovery_nanos = stats_report.recovery_cost_nanos(cell)
    recovery_cost = Markup("unknown") if recovery_nanos is None else formatting.dollars(recovery_nanos)
    avoided = formatting.dollars(cell.avoided_cost_nanos) if cell.avoided_cost_nanos else Markup("unknown")
    avoided_share = f"{'at least; ' if cell.avoided_cost_nanos else ''}{stats_report.format_avoided_turns(cell)}"
    entries = [
        (True, "Backoff", formatting.seconds(cell.backoff_micros / 1e6), ""),
        (True, "Retry time", formatting.seconds(cell.retry_micros / 1e6), ""),
        (cell.tokens, "Tokens", formatting.number(cell.recovery_tokens), token_share),
        (has_costs, "Cost", recovery_cost, cost_share),
        (cell.avoided_turns, "Cost avoided", avoided, avoided_share),
        (cell.repair_attempts, "Successful repairs", formatting.number(cell.repair_successes), repair_share),
        (cell.suspected, "Suspected failures", formatting.number(cell.suspected), "counted as successes"),
        (True, "Repeats after compaction", formatting.number(cell.repeats), "failures that had occurred before it"),
    ]
    return [(name, value, detail) for is_shown, name, value, detail in entries if is_shown]


def metric_context(store: Store, tenant: str, page_query: PageQuery, series: Stats) -> dict[str, Any]:
    """Return what the pages of all, of one tool and of one agent show: cards, charts, kinds and recovery methods."""
    earlier_query, query = page_query.previous_stats_query(), page_query.stats_query()
    cell, before = series.total, store.stats(tenant, earlier_query).total
    differences = stats_report.compare_periods(store, tenant, (before, cell), (earlier_query, query))
    return {
        "cell": cell,
        "cards": cards(page_query, cell, before, differences),
        "worse": [difference.name for difference in differences if difference.verdict == "worse"],
        "chart": outcomes(page_query, series),
        "latency": latency(page_query, series),
        "kinds": kinds(cell),
        "failures": sum(counters.failures for counters in cell.kinds.values()),
        "means": recovery_methods(cell),
    }


def find_older_runs(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any] | None:
    """Count the runs before the period, without filters, with a link to all of them."""
    count = stats_report.count_older_runs(store, tenant, page_query.now, page_query.since)
    if not count:
        return None
    before = formatting.date(page_query.since)
    if page_query.grain == "hour":
        before += f" {formatting.hour(page_query.since)} UTC"
    return {"runs": count, "before": before, "link": page_query.link(range="all")}


def empty_state(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    """Describe why a page is empty: no runs at all, or none for this period and these filters."""
    newest = store.runs(tenant, RunQuery(limit=1))
    if not newest:
        return {"is_new": True}
    newest_start = newest[0].run.started_at
    return {
        "is_new": False,
        "older": find_older_runs(store, tenant, page_query),
        "newest": newest_start,
        "newest_week": page_query.link_with_dates(newest_start - 6 * DAY, newest_start),
        "is_narrow": bool(page_query.filters),
    }
