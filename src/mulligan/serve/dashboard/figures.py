"""Metrics shown by several pages: outcomes over time, by kind and by tool, and trends against the preceding period."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup

from mulligan.figures import Cell, Stats, merge, percentile
from mulligan.report import stats as questions
from mulligan.serve.dashboard import charts, shown
from mulligan.serve.dashboard.asked import Asked
from mulligan.serve.dashboard.charts import Bucket, Part

Card = dict[str, Any]
LATENCY = (Part("p50", "half take less than", "ok"), Part("p95", "95 % take less than", "lost"))


def over_time(asked: Asked, series: Stats) -> list[tuple[Bucket, Cell]]:
    """Return the counters of every hour or day of the period, merged where there are too many for one chart."""
    parts = {int(start): cell for start, cell in series.parts.items()}
    found = []
    for chunk in charts.chunks(asked.buckets):
        cell = Cell()
        for start in chunk:
            if start in parts:
                merge(cell, parts[start])
        found.append((_named(asked, chunk), cell))
    return found


def _named(asked: Asked, chunk: range) -> Bucket:
    first = chunk[0]
    if asked.grain == "hour":
        whole = f"{shown.date(first)} {shown.hour(first)}"
        return Bucket(str(shown.hour(first)), whole, ())
    whole = shown.date(first)
    if len(chunk) > 1:
        whole += f" to {shown.date(chunk[-1])}"
    return Bucket(str(shown.day(first)), whole, ())


def outcomes(asked: Asked, series: Stats) -> Markup:
    """Render runs by status over time, or calls by outcome if a filter selects only some calls of a run."""
    found = over_time(asked, series)
    each = "hour" if asked.grain == "hour" else "day"
    if has_runs(asked):
        buckets = [
            bucket._replace(values=[cell.runs.get(part.name, 0) for part in charts.STATUSES]) for bucket, cell in found
        ]
        return charts.stacked("outcomes", f"Runs by status, by the {each}", buckets, charts.STATUSES, "runs")
    buckets = [bucket._replace(values=[cell.first_try, cell.recovered, cell.given_up]) for bucket, cell in found]
    return charts.stacked("outcomes", f"Calls by outcome, by the {each}", buckets, charts.OUTCOMES, "calls")


def latency(asked: Asked, series: Stats) -> Markup | None:
    buckets = [
        bucket._replace(values=[percentile(cell.seconds, 0.5), percentile(cell.seconds, 0.95)])
        for bucket, cell in over_time(asked, series)
    ]
    if all(value is None for bucket in buckets for value in bucket.values):
        return None
    return charts.lines("latency", "Seconds a success takes", buckets, LATENCY)


def has_runs(asked: Asked) -> bool:
    """Return whether the metrics cover full runs. Tool, kind and model filters select single calls."""
    return not any(asked.filters.get(name) for name in ("tool", "kind", "model"))


def cards(asked: Asked, cell: Cell, before: Cell) -> list[Card]:
    """Build the metric cards, each with its trend against the preceding period of equal length."""
    runs, failed = sum(cell.runs.values()), questions.failed(cell)
    settled, worked = questions.settled(cell), cell.first_try + cell.recovered
    runs_before = sum(before.runs.values())
    lost, lost_before = cell.runs.get("failure", 0), before.runs.get("failure", 0)
    half = percentile(cell.to_repair, 0.5)
    partial = cell.runs.get("partial", 0)
    found: list[Card] = []
    if has_runs(asked):
        found += [
            card(
                "Runs that failed", shown.number(lost), f"{shown.percent(lost, runs)} of runs" if runs else "",
                "bad" if lost else "", against(lost, runs, lost_before, runs_before, False),
            ),
            card(
                "Runs recovered", shown.number(cell.runs.get("recovered", 0)),
                "every failed call overcome" + (f"; {partial:,} more partial" if partial else ""), "good",
                against(
                    cell.runs.get("recovered", 0), runs, before.runs.get("recovered", 0), runs_before, None
                ),
            ),
        ]  # fmt: skip
    else:
        found += [
            card(
                "Calls given up", shown.number(cell.given_up), f"{shown.percent(cell.given_up, settled)} of calls",
                "bad" if cell.given_up else "",
                against(cell.given_up, settled, before.given_up, questions.settled(before), False),
            ),
            card(
                "Calls recovered", shown.number(cell.recovered), "failed first, and worked in the end", "good",
                against(cell.recovered, settled, before.recovered, questions.settled(before), None),
            ),
        ]  # fmt: skip
    half_before = percentile(before.to_repair, 0.5)
    found += [
        card(
            "Failed calls overcome", shown.percent(cell.recovered, failed),
            f"{cell.recovered:,} of {failed:,}; {cell.repaired:,} by changed arguments", "",
            against(cell.recovered, failed, before.recovered, questions.failed(before), True),
        ),
        card(
            "Median time to recover", shown.seconds(half),
            "from the first attempt to the success" if half is not None else f"too few to say ({len(cell.to_repair)})",
            "", _times(half, half_before),
        ),
        card(
            "First-try success", shown.percent(cell.first_try, settled),
            f"{shown.percent(worked, settled)} in the end", "",
            against(cell.first_try, settled, before.first_try, questions.settled(before), True),
        ),
    ]  # fmt: skip
    return found


def card(title: str, figure: Markup, about: str, look: str = "", trend: Mapping[str, str] | None = None) -> Card:
    return {"title": Markup(title), "figure": figure, "about": Markup(about), "look": look, "trend": trend}


def against(part: int, whole: int, was: int, was_whole: int, more_is_better: bool | None) -> dict[str, str] | None:
    """Compare a rate with the preceding period, in percentage points. The text also says whether it is better."""
    if not whole or not was_whole:
        return None
    points = 100 * part / whole - 100 * was / was_whole
    told = f"was {shown.percent(was, was_whole)}"
    if abs(points) < 0.05:
        return {"look": "same", "mark": "=", "told": Markup(f"{told}, as before")}
    verdict = "" if more_is_better is None else ", better" if (points > 0) is more_is_better else ", worse"
    mark = "▲" if points > 0 else "▼"
    return {"look": verdict[2:] or "same", "mark": mark, "told": Markup(f"{abs(points):.1f} points; {told}{verdict}")}


def _times(half: float | None, before: float | None) -> dict[str, str] | None:
    if half is None or before is None:
        return None
    told = f"was {shown.seconds(before)}"
    if abs(half - before) < 0.05 * before:
        return {"look": "same", "mark": "=", "told": Markup(f"{told}, about as before")}
    better = half < before
    return {
        "look": "better" if better else "worse",
        "mark": "▼" if better else "▲",
        "told": Markup(f"{told}, {'faster' if better else 'slower'}"),
    }


def kinds(cell: Cell) -> list[dict[str, Any]]:
    """Group failures by type and code, most frequent first."""
    types: dict[str, list[tuple[str, Any]]] = {}
    for kind, known in questions.by_failures(cell):
        types.setdefault(kind.partition("/")[0], []).append((kind, known))
    most = max((known.failures for known in cell.kinds.values()), default=1) or 1
    found = [
        {
            "type": type,
            "failures": sum(known.failures for _, known in codes),
            "codes": [
                {
                    "kind": kind,
                    "code": kind.partition("/")[2],
                    "failures": known.failures,
                    "given_up": known.given_up,
                    "bar": charts.bar(known.failures / most),
                }
                for kind, known in codes
            ],
        }
        for type, codes in types.items()
    ]
    return sorted(found, key=lambda each: (-each["failures"], each["type"]))


def means(cell: Cell) -> list[dict[str, Any]]:
    """Return the recovery methods with their calls, most frequent first."""
    whole = sum(cell.overcome.values())
    most = max(cell.overcome.values(), default=1)
    return [
        {
            "name": questions.MEANS.get(name, name),
            "calls": calls,
            "share": shown.percent(calls, whole),
            "bar": charts.bar(calls / most),
        }
        for name, calls in sorted(cell.overcome.items(), key=lambda item: (-item[1], item[0]))
    ]


def rows(parts: Iterable[tuple[str, Cell]], limit: int | None = None) -> list[dict[str, Any]]:
    """Build a row per tool, agent, model or version, most unrecovered calls first."""
    order = sorted(parts, key=lambda part: (-part[1].given_up, -part[1].recovered, -part[1].calls, part[0]))
    return [
        {
            "name": name,
            "cell": cell,
            "calls": cell.calls,
            "settled": questions.settled(cell),
            "first": charts.rate(cell.first_try, 0, questions.settled(cell)),
            "final": charts.rate(cell.first_try, cell.recovered, questions.settled(cell)),
            "recovered": cell.recovered,
            "repaired": cell.repaired,
            "given_up": cell.given_up,
            "p50": percentile(cell.seconds, 0.5),
            "p95": percentile(cell.seconds, 0.95),
            "waited": cell.waited / 1e6,
            "runs": sum(cell.runs.values()),
        }
        for name, cell in order[:limit]
    ]


def costs(cell: Cell) -> list[tuple[str, Markup, str]]:
    """Return the cost of recovery as rows of name, value and detail."""
    found = [
        ("Waited between attempts", shown.seconds(cell.waited / 1e6), ""),
        ("Spent in further attempts", shown.seconds(cell.retrying / 1e6), ""),
    ]
    if cell.tokens:
        of = f"{shown.percent(cell.recovery_tokens, cell.tokens)} of {cell.tokens:,} tokens"
        found.append(("Tokens in further attempts", shown.number(cell.recovery_tokens), of))
    if cell.suggested:
        of = f"{shown.percent(cell.hits, cell.suggested)} of {cell.suggested:,} tried"
        found.append(("Repairs that worked", shown.number(cell.hits), of))
    found.append(("Repeats after a compaction", shown.number(cell.repeats), "met before it, and once more after it"))
    return found
