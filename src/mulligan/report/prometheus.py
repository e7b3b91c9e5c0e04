"""Metrics in the Prometheus text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mulligan.figures import Cell, Stats
from mulligan.figures.histogram import bounds

TOOLS = 100
"""Maximum number of tool labels: each is a time series, and a model can invent any tool name."""


def text(total: Cell, tools: Stats) -> Iterator[str]:
    """Yield the lines of all metrics, each metric with its HELP and TYPE lines."""
    yield from _counter("mulligan_runs_total", "Runs by how they ended.", _by("status", total.runs))
    yield from _gauge("mulligan_runs_under_way", "Runs that have not ended.", total.running)
    yield from _counter("mulligan_calls_total", "Calls by what came of them.", _by("outcome", _outcomes(total)))
    yield from _counter("mulligan_attempts_total", "Attempts at calls.", [((), total.attempts)])
    yield from _counter("mulligan_repaired_total", "Recovered calls with changed arguments.", [((), total.repaired)])
    failures = {kind: cell.failures for kind, cell in total.kinds.items()}
    given_up = {kind: cell.given_up for kind, cell in total.kinds.items()}
    yield from _counter(
        "mulligan_failures_total",
        "Attempts that failed, by kind.",
        _by("kind", failures),
    )
    yield from _counter("mulligan_given_up_total", "Calls given up, by kind.", _by("kind", given_up))
    yield from _counter("mulligan_overcome_total", "Recovered calls, by what overcame them.", _by("by", total.overcome))
    yield from _counter("mulligan_waited_seconds_total", "Waited between attempts.", [((), total.waited / 1e6)])
    yield from _counter("mulligan_tokens_total", "Tokens of model calls.", [((), total.tokens)])
    yield from _histogram("mulligan_attempt_seconds", "How long attempts took that succeeded.", total)
    most = sorted(tools.parts.items(), key=lambda item: (-item[1].calls, item[0]))[:TOOLS]
    rows = [
        ((("tool", name), ("outcome", outcome)), count)
        for name, cell in sorted(most)
        for outcome, count in _outcomes(cell).items()
    ]
    yield from _counter("mulligan_tool_calls_total", f"Calls of the {TOOLS} tools called most.", rows)


def _outcomes(cell: Cell) -> dict[str, int]:
    other = cell.calls - cell.first_try - cell.recovered - cell.given_up
    return {"first_try": cell.first_try, "recovered": cell.recovered, "given_up": cell.given_up, "unsettled": other}


Labels = tuple[tuple[str, str], ...]


def _by(label: str, counts: Mapping[str, int]) -> list[tuple[Labels, float]]:
    return [(((label, name),), count) for name, count in sorted(counts.items())]


def _counter(name: str, told: str, rows: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    yield f"# HELP {name} {told}"
    yield f"# TYPE {name} counter"
    for labels, value in rows:
        yield f"{name}{_labelled(labels)} {value:.17g}"


def _gauge(name: str, told: str, value: float) -> Iterator[str]:
    yield f"# HELP {name} {told}"
    yield f"# TYPE {name} gauge"
    yield f"{name} {value:.17g}"


def gauges(rows: Iterable[tuple[str, str, float]]) -> Iterator[str]:
    for name, told, value in rows:
        yield from _gauge(name, told, value)


def _histogram(name: str, told: str, cell: Cell) -> Iterator[str]:
    yield f"# HELP {name} {told}"
    yield f"# TYPE {name} histogram"
    below = 0
    for index, count in cell.seconds.counts().items():
        below += count
        yield f'{name}_bucket{{le="{bounds(index)[1] / 1e6:.9g}"}} {below}'
    yield f'{name}_bucket{{le="+Inf"}} {below}'
    yield f"{name}_sum {cell.micros / 1e6:.17g}"
    yield f"{name}_count {below}"


def _labelled(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
