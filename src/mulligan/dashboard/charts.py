"""Charts as inline SVG, with title, description and, except for small ones, a table of the values.

Color never carries meaning alone: recovered parts are hatched, attempts have marks, and each bar has its value in a
title. The style sheet defines the colors, so that light, dark and print themes differ in one place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from mulligan.dashboard import formatting

CHART_WIDTH, PLOT_HEIGHT, LEFT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN = 700, 220, 54, 8, 22
MAX_BAR_WIDTH = 56
"""Width limit of one bar."""
MAX_BARS = 62
"""Limit of bars in a chart. More hours or days are merged into wider buckets."""
MAX_AXIS_LABELS = 8
RECOVERED = "recovered"


class ChartSeries(NamedTuple):
    """One series of a chart."""

    name: str
    label: str
    css_class: str
    """Class in the style sheet. The class `won` is hatched."""


STATUSES = (
    ChartSeries("success", "success", "ok"),
    ChartSeries(RECOVERED, "recovered", "won"),
    ChartSeries("partial", "partial", "half"),
    ChartSeries("failure", "failure", "lost"),
)
OUTCOMES = (
    ChartSeries("first_try", "first try", "ok"),
    ChartSeries(RECOVERED, "recovered", "won"),
    ChartSeries("unrecovered", "unrecovered", "lost"),
)


class Bucket(NamedTuple):
    """Values of one bar: an hour, a day or several of them."""

    label: str
    full_label: str
    """Full label for the title and the table."""
    values: Sequence[float | None]


def group_buckets(starts: range) -> Iterator[range]:
    """Split start times into at most MAX_BARS groups."""
    chunk_size = -(-len(starts) // MAX_BARS)
    for start in range(0, len(starts), chunk_size):
        yield starts[start : start + chunk_size]


def render_stacked_bars(
    id: str, title: str, buckets: Sequence[Bucket], parts: Sequence[ChartSeries], noun: str
) -> Markup:
    """Render stacked bars with a legend and a table."""
    totals = [sum(int(bucket.values[index] or 0) for bucket in buckets) for index in range(len(parts))]
    legend = [
        _legend_item(_rect(0, 0, 12, 12, part.css_class), part.label, Markup(" <b>{}</b>").format(f"{total:,}"))
        for part, total in zip(parts, totals, strict=True)
    ]
    top, ticks = choose_scale(max((sum(value or 0 for value in bucket.values) for bucket in buckets), default=0))
    summary = ", ".join(f"{total:,} {part.label}" for part, total in zip(parts, totals, strict=True))
    body = [*_grid(ticks, top, lambda value: f"{value:,.0f}"), *_labels(buckets)]
    slot_width = _slot_width(buckets)
    bar_width = min(slot_width * 0.72, MAX_BAR_WIDTH)
    for index, bucket in enumerate(buckets):
        x, y = LEFT_MARGIN + slot_width * index + (slot_width - bar_width) / 2, float(PLOT_HEIGHT + TOP_MARGIN)
        values = [(part, value) for part, value in zip(parts, bucket.values, strict=True) if value]
        if values:
            description = ", ".join(f"{value:,.0f} {part.label}" for part, value in values)
            body.append(Markup("<g><title>{}: {}</title>").format(bucket.full_label, description))
            for part, value in values:
                height = PLOT_HEIGHT * value / top
                y -= height
                body.append(_rect(x, y, bar_width, height, part.css_class))
            body.append(Markup("</g>"))
    svg = _svg(id, title, f"{summary} {noun}.", body)
    return _figure(legend, svg, render_table(buckets, parts, lambda value: f"{value or 0:,.0f}"))


def render_lines(id: str, title: str, buckets: Sequence[Bucket], parts: Sequence[ChartSeries]) -> Markup:
    """Render durations over time, one line per series. A line is interrupted where a bucket has too few values."""
    legend = [
        _legend_item(Markup('<path class="line {}" d="M0 6H12"/>').format(part.css_class), part.label) for part in parts
    ]
    values = [value for bucket in buckets for value in bucket.values if value is not None]
    top, ticks = choose_scale(max(values, default=0.0), unit=1e-6)
    body = [*_grid(ticks, top, lambda value: str(formatting.seconds(value)) if value else "0"), *_labels(buckets)]
    slot_width = _slot_width(buckets)
    for index, part in enumerate(parts):
        points = [
            None
            if (value := bucket.values[index]) is None
            else (
                _format_coordinate(LEFT_MARGIN + slot_width * (number + 0.5)),
                _format_coordinate(TOP_MARGIN + PLOT_HEIGHT - PLOT_HEIGHT * value / top),
            )
            for number, bucket in enumerate(buckets)
        ]
        for has_values, segment in itertools.groupby(points, lambda point: point is not None):
            if has_values:
                path = "L".join(f"{x} {y}" for x, y in filter(None, segment))
                body.append(Markup('<path class="line {}" d="M{}"/>').format(part.css_class, path))
        for point, bucket in zip(points, buckets, strict=True):
            if point is not None:
                label = f"{bucket.full_label}: {part.label} {formatting.seconds(bucket.values[index])}"
                dot = Markup('<circle class="dot {}" cx="{}" cy="{}" r="2.5"><title>{}</title></circle>')
                body.append(dot.format(part.css_class, *point, label))
    nonempty_buckets = [bucket for bucket in buckets if any(value is not None for value in bucket.values)]
    svg = _svg(id, title, "Duration of successful attempts in seconds.", body)
    return _figure(legend, svg, render_table(nonempty_buckets, parts, formatting.seconds))


def _legend_item(mark: Markup, label: str, detail: Markup | str = "") -> Markup:
    swatch = Markup('<svg class="swatch" viewBox="0 0 12 12" aria-hidden="true">{}</svg>').format(mark)
    return Markup("<li>{}{}{}</li>").format(swatch, label, detail)


def _figure(legend: Iterable[Markup], svg: Markup, table: Markup) -> Markup:
    return Markup('<ul class="legend">{}</ul>{}{}').format(Markup("").join(legend), svg, table)


def render_table(
    buckets: Iterable[Bucket], parts: Sequence[ChartSeries], format_value: Callable[[float | None], str]
) -> Markup:
    """Render the values of a chart as a table."""
    rows = Markup("").join(
        Markup('<tr><th scope="row">{}</th>{}</tr>').format(
            bucket.full_label,
            Markup("").join(Markup('<td class="n">{}</td>').format(format_value(value)) for value in bucket.values),
        )
        for bucket in buckets
    )
    names = Markup("").join(Markup('<th class="n" scope="col">{}</th>').format(part.label) for part in parts)
    return Markup(
        '<details class="behind"><summary>Show as table</summary><table><thead><tr><th scope="col">Time (UTC)</th>{}'
        "</tr></thead><tbody>{}</tbody></table></details>"
    ).format(names, rows)


def render_sparkline(counts: Sequence[int], label: str) -> Markup:
    """Render daily counts as small bars."""
    highest_count = max(counts, default=0)
    if not highest_count:
        return formatting.NONE
    slot_width = 96 / max(len(counts), 1)
    heights = [24 * count / highest_count for count in counts]
    bars = Markup("").join(
        _rect(index * slot_width, 24 - height, max(slot_width - 1.2, 0.8), height, "ok")
        for index, height in enumerate(heights)
        if height
    )
    description = f"{label}: {', '.join(f'{count:,}' for count in counts)}"
    return Markup('<svg class="spark" viewBox="0 0 96 24" role="img" aria-label="{}"><title>{}</title>{}</svg>').format(
        description, description, bars
    )


def render_bar(share: float) -> Markup:
    """Render a share of the largest value as a bar. The number beside it carries the same information."""
    return Markup(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">{}{}</svg>'
    ).format(_rect(0, 0, 100, 8, "track"), _rect(0, 0, max(100 * share, 1.0), 8, "ok"))


def render_rate(first: int, recovered: int, finished: int) -> Markup:
    """Render a success rate as a bar and a number. The recovered part is hatched."""
    if not finished:
        return formatting.NONE
    at = 100 * first / finished
    won = _rect(at, 0, 100 * recovered / finished, 8, "won") if recovered else Markup("")
    return Markup(
        '<span class="share"><svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        "{}{}{}</svg><span>{}</span></span>"
    ).format(
        _rect(0, 0, 100, 8, "track"), _rect(0, 0, at, 8, "ok"), won, formatting.percent(first + recovered, finished)
    )


def choose_scale(highest: float, unit: float = 1.0) -> tuple[float, list[float]]:
    """Return the end of the axis and its tick values, at most four intervals."""
    step = unit
    for size in (1, 2, 5):
        if size * unit * 4 >= highest:
            step = size * unit
            break
    else:
        return choose_scale(highest, unit * 10)
    top = step * max(1, -(-highest // step))
    return top, [step * number for number in range(round(top / step) + 1)]


def _svg(id: str, title: str, description: str, body: Iterable[Markup]) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-labelledby="{}-t {}-d"><title id="{}-t">{}</title>'
        '<desc id="{}-d">{}</desc>{}</svg>'
    ).format(
        CHART_WIDTH, PLOT_HEIGHT + TOP_MARGIN + BOTTOM_MARGIN, id, id, id, title, id, description, Markup("").join(body)
    )


def _grid(ticks: Sequence[float], top: float, format_value: Callable[[float], str]) -> Iterator[Markup]:
    for value in ticks:
        y = _format_coordinate(TOP_MARGIN + PLOT_HEIGHT - PLOT_HEIGHT * value / top)
        label = format_value(value)
        yield Markup('<path class="grid" d="M{} {}H{}"/><text class="tick end" x="{}" y="{}" dy="4">{}</text>').format(
            LEFT_MARGIN, y, CHART_WIDTH, LEFT_MARGIN - 6, y, label
        )


def _slot_width(buckets: Sequence[Bucket]) -> float:
    return (CHART_WIDTH - LEFT_MARGIN) / max(1, len(buckets))


def _labels(buckets: Sequence[Bucket]) -> Iterator[Markup]:
    label_interval = max(1, -(-len(buckets) // MAX_AXIS_LABELS))
    for index in range(0, len(buckets), label_interval):
        x = _format_coordinate(LEFT_MARGIN + _slot_width(buckets) * (index + 0.5))
        text = Markup('<text class="tick mid" x="{}" y="{}">{}</text>')
        yield text.format(x, PLOT_HEIGHT + TOP_MARGIN + 16, buckets[index].label)


def _rect(x: float, y: float, width: float, height: float, css_class: str) -> Markup:
    # The hatch pattern is defined once per page. It needs the fill attribute, because a class cannot refer to it.
    fill = 'fill="url(#hatch)"' if css_class == "won" else f'class="{escape(css_class)}"'
    return Markup(
        f'<rect {fill} x="{_format_coordinate(x)}" y="{_format_coordinate(y)}" '
        f'width="{_format_coordinate(width)}" height="{_format_coordinate(height)}"/>'
    )


def _format_coordinate(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
