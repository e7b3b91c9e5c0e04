"""Charts as inline SVG, with title, description and, except for small ones, a table of the values.

This module computes positions and texts. `templates/charts.html` has the markup.

Color never carries meaning alone: recovered parts are hatched, attempts have marks, and each bar has its value in a
title. The style sheet defines the colors, so that light, dark and print themes differ in one place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from mulligan.dashboard import formatting

CHART_WIDTH, PLOT_HEIGHT, LEFT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN = 700, 220, 54, 8, 22
MAX_BARS = 62
"""Limit of bars in a chart. More hours or days are merged into wider buckets."""
TEMPLATES = Path(__file__).parent / "templates"
Box = tuple[float, float, float, float, str]
"""Left, top, width, height and class of a rectangle."""


class ChartSeries(NamedTuple):
    name: str
    label: str
    css_class: str
    """Class in the style sheet. The class `won` is hatched."""


STATUSES: tuple[ChartSeries, ...] = (
    ChartSeries("success", "success", "ok"),
    ChartSeries("recovered", "recovered", "won"),
    ChartSeries("partial", "partial", "half"),
    ChartSeries("failure", "failure", "lost"),
)
OUTCOMES: tuple[ChartSeries, ...] = (
    ChartSeries("first_try", "first try", "ok"),
    ChartSeries("recovered", "recovered", "won"),
    ChartSeries("unrecovered", "unrecovered", "lost"),
)


class Bucket(NamedTuple):
    """Values of one bar: an hour, a day or several of them."""

    label: str
    full_label: str
    """Full label for the title and the table."""
    values: Sequence[float | None]


def format_coordinate(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


_environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True)
_environment.filters["coordinate"] = format_coordinate


def macro(name: str, *values: object) -> Markup:
    """Render a macro of `templates/charts.html`."""
    rendered: Markup = getattr(_environment.get_template("charts.html").module, name)(*values)
    return rendered


def group_buckets(starts: range) -> Iterator[range]:
    """Split start times into at most MAX_BARS groups."""
    chunk_size = -(-len(starts) // MAX_BARS)
    for start in range(0, len(starts), chunk_size):
        yield starts[start : start + chunk_size]


def render_stacked_bars(
    id: str, title: str, buckets: Sequence[Bucket], parts: Sequence[ChartSeries], noun: str
) -> Markup:
    """Render stacked bars with a legend and a table."""
    totals = [f"{sum(int(bucket.values[index] or 0) for bucket in buckets):,}" for index in range(len(parts))]
    top, ticks = choose_scale(max((sum(value or 0 for value in bucket.values) for bucket in buckets), default=0))
    slot_width = _slot_width(buckets)
    bar_width = min(slot_width * 0.72, 56)  # width limit of one bar
    bars = []
    for index, bucket in enumerate(buckets):
        x, y = LEFT_MARGIN + slot_width * index + (slot_width - bar_width) / 2, float(PLOT_HEIGHT + TOP_MARGIN)
        values = [(part, value) for part, value in zip(parts, bucket.values, strict=True) if value]
        boxes: list[Box] = []
        for part, value in values:
            height = PLOT_HEIGHT * value / top
            y -= height
            boxes.append((x, y, bar_width, height, part.css_class))
        if boxes:
            counts = ", ".join(f"{value:,.0f} {part.label}" for part, value in values)
            bars.append((f"{bucket.full_label}: {counts}", boxes))
    summary = ", ".join(f"{total} {part.label}" for part, total in zip(parts, totals, strict=True))
    chart = {
        "id": id,
        "title": title,
        "description": f"{summary} {noun}.",
        "legend": list(zip(parts, totals, strict=True)),
        "ticks": [(_height(tick, top), f"{tick:,.0f}") for tick in ticks],
        "bars": bars,
        "rows": [(bucket.full_label, [f"{value or 0:,.0f}" for value in bucket.values]) for bucket in buckets],
    }
    return _render_figure(chart, buckets)


def render_lines(
    id: str, title: str, description: str, buckets: Sequence[Bucket], parts: Sequence[ChartSeries]
) -> Markup:
    """Render durations over time, one line per series. A line is interrupted where a bucket has too few values."""
    highest = max((value or 0.0 for bucket in buckets for value in bucket.values), default=0.0)
    return _render_lines((id, title, description), buckets, parts, choose_scale(highest, 1e-6), formatting.seconds)


def render_shares(id: str, title: str, description: str, buckets: Sequence[Bucket], part: ChartSeries) -> Markup:
    """Render shares from 0 to 1 over time as a line."""
    return _render_lines((id, title, description), buckets, (part,), (1.0, [0.0, 0.25, 0.5, 0.75, 1.0]), _format_share)


def _format_share(value: float | None) -> Markup:
    return formatting.NONE if value is None else Markup(f"{round(100 * value)}\N{NO-BREAK SPACE}%")


def _render_lines(
    texts: tuple[str, str, str],
    buckets: Sequence[Bucket],
    parts: Sequence[ChartSeries],
    scale: tuple[float, list[float]],
    format_value: Callable[[float | None], Markup],
) -> Markup:
    """Render lines. `texts` are id, title and description."""
    top, ticks = scale
    lines = []
    for index, part in enumerate(parts):
        dots = [
            (
                format_coordinate(_center(buckets, number)),
                format_coordinate(_height(value, top)),
                f"{bucket.full_label}: {part.label} {format_value(value)}",
            )
            if (value := bucket.values[index]) is not None
            else None
            for number, bucket in enumerate(buckets)
        ]
        segments = [list(segment) for has_dots, segment in itertools.groupby(dots, bool) if has_dots]
        paths = ["L".join(f"{dot[0]} {dot[1]}" for dot in segment if dot) for segment in segments]
        lines.append((part.css_class, paths, list(filter(None, dots))))
    chart = {
        **dict(zip(("id", "title", "description"), texts, strict=True)),
        "legend": [(part, None) for part in parts],
        "ticks": [(_height(tick, top), format_value(tick) if tick else "0") for tick in ticks],
        "lines": lines,
        "rows": [
            (bucket.full_label, list(map(format_value, bucket.values)))
            for bucket in buckets
            if any(value is not None for value in bucket.values)
        ],
    }
    return _render_figure(chart, buckets)


def _render_figure(chart: dict[str, Any], buckets: Sequence[Bucket]) -> Markup:
    indexes = range(0, len(buckets), max(1, -(-len(buckets) // 8)))
    bottom = PLOT_HEIGHT + TOP_MARGIN
    frame = {"width": CHART_WIDTH, "height": bottom + BOTTOM_MARGIN, "left": LEFT_MARGIN, "bottom": bottom}
    labels = [(_center(buckets, index), buckets[index].label) for index in indexes]
    return macro("figure", {"bars": (), "lines": (), **frame, **chart, "labels": labels})


def render_sparkline(counts: Sequence[int], label: str) -> Markup:
    """Render daily counts as small bars."""
    highest = max(counts, default=0)
    if not highest:
        return formatting.NONE
    slot_width = 96 / len(counts)
    boxes = [
        (index * slot_width, 24 - 24 * count / highest, max(slot_width - 1.2, 0.8), 24 * count / highest, "ok")
        for index, count in enumerate(counts)
        if count
    ]
    return macro("sparkline", boxes, f"{label}: {', '.join(f'{count:,}' for count in counts)}")


def render_bar(share: float) -> Markup:
    """Render a share of the largest value as a bar. The number beside it carries the same information."""
    return macro("bar", [(0, 0, max(100 * share, 1.0), 8, "ok")])


def render_rate(first: int, recovered: int, finished: int) -> Markup:
    """Render a success rate as a bar and a number. The recovered part is hatched."""
    if not finished:
        return formatting.NONE
    at = 100 * first / finished
    boxes: list[Box] = [(0, 0, at, 8, "ok")]
    if recovered:
        boxes.append((at, 0, 100 * recovered / finished, 8, "won"))
    return macro("rate", boxes, formatting.percent(first + recovered, finished))


def choose_scale(highest: float, unit: float = 1.0) -> tuple[float, list[float]]:
    """Return the end of the axis and its tick values, at most four intervals."""
    step = next((size * unit for size in (1, 2, 5) if size * unit * 4 >= highest), None)
    if step is None:
        return choose_scale(highest, unit * 10)
    top = step * max(1, -(-highest // step))
    return top, [step * number for number in range(round(top / step) + 1)]


def _height(value: float, top: float) -> float:
    return TOP_MARGIN + PLOT_HEIGHT - PLOT_HEIGHT * value / top


def _slot_width(buckets: Sequence[Bucket]) -> float:
    return (CHART_WIDTH - LEFT_MARGIN) / max(1, len(buckets))


def _center(buckets: Sequence[Bucket], index: int) -> float:
    return LEFT_MARGIN + _slot_width(buckets) * (index + 0.5)
