"""Metrics in the Prometheus text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mulligan.store.counters import Cell, Stats, bounds

MAX_TOOLS = 100
"""Maximum number of tool labels: each is a time series, and a model can invent any tool name."""


def render_metrics(total: Cell, tools: Stats) -> Iterator[str]:
    """Yield the lines of all metrics, each metric with its HELP and TYPE lines."""
    failures = {kind: cell.failures for kind, cell in total.kinds.items()}
    unrecovered = {kind: cell.unrecovered for kind, cell in total.kinds.items()}
    busiest_tools = sorted(tools.parts.items(), key=lambda item: (-item[1].calls, item[0]))[:MAX_TOOLS]
    tool_rows = [
        ((("tool", name), ("outcome", outcome)), count)
        for name, cell in sorted(busiest_tools)
        for outcome, count in _count_outcomes(cell).items()
    ]
    yield from _render("runs_total", "Runs by status.", _label_counts("status", total.runs))
    yield from render_gauges([("mulligan_runs_under_way", "Runs in progress.", total.running)])
    yield from _render("calls_total", "Calls by outcome.", _label_counts("outcome", _count_outcomes(total)))
    yield from _render("attempts_total", "Attempts of calls.", [((), total.attempts)])
    yield from _render("repaired_total", "Recovered calls with changed arguments.", [((), total.repaired)])
    yield from _render("failures_total", "Failed attempts by kind.", _label_counts("kind", failures))
    yield from _render("unrecovered_total", "Unrecovered calls by kind.", _label_counts("kind", unrecovered))
    yield from _render(
        "recovered_total", "Recovered calls by recovery method.", _label_counts("method", total.recovered_by)
    )
    backoff = [((), total.backoff_micros / 1e6)]
    yield from _render("backoff_seconds_total", "Backoff before attempts, in seconds.", backoff)
    yield from _render("tokens_total", "Tokens of model calls.", [((), total.tokens)])
    yield from _render_histogram("mulligan_attempt_seconds", "Duration of successful attempts, in seconds.", total)
    help_text = f"Calls by tool and outcome, for the {MAX_TOOLS} most called tools."
    yield from _render("tool_calls_total", help_text, tool_rows)


def _count_outcomes(cell: Cell) -> dict[str, int]:
    other = cell.calls - cell.first_try - cell.recovered - cell.unrecovered
    return {"first_try": cell.first_try, "recovered": cell.recovered, "unrecovered": cell.unrecovered, "other": other}


Labels = tuple[tuple[str, str], ...]


def _label_counts(label: str, counts: Mapping[str, int]) -> list[tuple[Labels, float]]:
    return [(((label, name),), count) for name, count in sorted(counts.items())]


def _render(name: str, help_text: str, rows: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    """Yield the lines of a counter."""
    yield f"# HELP mulligan_{name} {help_text}"
    yield f"# TYPE mulligan_{name} counter"
    for labels, value in rows:
        yield f"mulligan_{name}{_format_labels(labels)} {value:.17g}"


def render_gauges(rows: Iterable[tuple[str, str, float]]) -> Iterator[str]:
    """Yield the lines of gauges, each given as name, description and value."""
    for name, help_text, value in rows:
        yield f"# HELP {name} {help_text}"
        yield f"# TYPE {name} gauge"
        yield f"{name} {value:.17g}"


def _render_histogram(name: str, help_text: str, cell: Cell) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} histogram"
    cumulative_count = 0
    for index, count in cell.seconds.counts().items():
        cumulative_count += count
        yield f'{name}_bucket{{le="{bounds(index)[1] / 1e6:.9g}"}} {cumulative_count}'
    yield f'{name}_bucket{{le="+Inf"}} {cumulative_count}'
    yield f"{name}_sum {cell.micros / 1e6:.17g}"
    yield f"{name}_count {cumulative_count}"


def _format_labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape_label(value)}"' for name, value in labels) + "}"


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
