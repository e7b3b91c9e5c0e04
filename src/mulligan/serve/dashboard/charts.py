"""Charts as inline SVG, with title, description and, except for small ones, a table of the values.

Color never carries meaning alone: recovered parts are hatched, attempts have marks, and each bar has its value in a
title. The style sheet defines the colors, so that light, dark and print themes differ in one place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from mulligan.serve.dashboard import shown

WIDE, HIGH, LEFT, TOP, FOOT = 700, 220, 54, 8, 22
WIDEST = 56
"""Width limit of one bar."""
MOST = 62
"""Limit of bars in a chart. More hours or days are merged into wider buckets."""
LABELS = 8
RECOVERED = "recovered"


class Part(NamedTuple):
    """One series of a chart."""

    name: str
    label: str
    look: str
    """Class in the style sheet. The class `won` is hatched."""


STATUSES = (
    Part("success", "success", "ok"),
    Part(RECOVERED, "recovered", "won"),
    Part("partial", "partial", "half"),
    Part("failure", "failure", "lost"),
)
OUTCOMES = (
    Part("first_try", "first try", "ok"),
    Part(RECOVERED, "recovered", "won"),
    Part("given_up", "given up", "lost"),
)


class Bucket(NamedTuple):
    """Values of one bar: an hour, a day or several of them."""

    label: str
    whole: str
    """Full label for the title and the table."""
    values: Sequence[float | None]


def chunks(starts: range) -> Iterator[range]:
    """Split start times into at most MAX_BARS groups."""
    each = -(-len(starts) // MOST)
    for place in range(0, len(starts), each):
        yield starts[place : place + each]


def stacked(id: str, title: str, buckets: Sequence[Bucket], parts: Sequence[Part], noun: str) -> Markup:
    """Render stacked bars with a legend and a table."""
    totals = [sum(bucket.values[place] or 0 for bucket in buckets) for place in range(len(parts))]
    legend = Markup("").join(
        Markup('<li><svg class="swatch" viewBox="0 0 12 12" aria-hidden="true">{}</svg>{} <b>{}</b></li>').format(
            _rect(0, 0, 12, 12, part.look), part.label, shown.number(int(total))
        )
        for part, total in zip(parts, totals, strict=True)
    )
    most = max((sum(value or 0 for value in bucket.values) for bucket in buckets), default=0)
    top, ticks = scale(most)
    told = ", ".join(f"{int(total):,} {part.label}" for part, total in zip(parts, totals, strict=True))
    body = [*_grid(ticks, top, lambda value: f"{value:,.0f}"), *_labels(buckets)]
    room = (WIDE - LEFT) / max(1, len(buckets))
    thick = min(room * 0.72, WIDEST)
    for place, bucket in enumerate(buckets):
        x, y = LEFT + room * place + (room - thick) / 2, float(HIGH + TOP)
        said = ", ".join(
            f"{value:,.0f} {part.label}" for part, value in zip(parts, bucket.values, strict=True) if value
        )
        if not said:
            continue
        body.append(Markup("<g><title>{}: {}</title>").format(bucket.whole, said))
        for part, value in zip(parts, bucket.values, strict=True):
            if value:
                height = HIGH * value / top
                y -= height
                body.append(_rect(x, y, thick, height, part.look))
        body.append(Markup("</g>"))
    head = [part.label for part in parts]
    return Markup('<ul class="legend">{}</ul>{}{}').format(
        legend, _svg(id, title, f"{told} {noun}.", body), table(buckets, head, "{:,.0f}")
    )


def lines(id: str, title: str, buckets: Sequence[Bucket], parts: Sequence[Part]) -> Markup:
    """Render durations over time, one line per series. A line is interrupted where a bucket has too few values."""
    values = [value for bucket in buckets for value in bucket.values if value is not None]
    legend = Markup("").join(
        Markup(
            '<li><svg class="swatch" viewBox="0 0 12 12" aria-hidden="true"><path class="line {}" d="M0 6H12"/></svg>{}'
            "</li>"
        ).format(part.look, part.label)
        for part in parts
    )
    top, ticks = scale(max(values, default=0.0), least=1e-6)
    body = [*_grid(ticks, top, lambda value: str(shown.seconds(value)) if value else "0"), *_labels(buckets)]
    room = (WIDE - LEFT) / max(1, len(buckets))
    for place, part in enumerate(parts):
        points = [
            None if value is None else (LEFT + room * (number + 0.5), TOP + HIGH - HIGH * value / top)
            for number, value in enumerate(bucket.values[place] for bucket in buckets)
        ]
        for known, run in itertools.groupby(points, lambda point: point is not None):
            if known:
                path = "L".join(f"{_f(x)} {_f(y)}" for x, y in filter(None, run))
                body.append(Markup('<path class="line {}" d="M{}"/>').format(part.look, path))
        for point, bucket in zip(points, buckets, strict=True):
            if point is not None:
                value = shown.seconds(bucket.values[place])
                body.append(
                    Markup('<circle class="dot {}" cx="{}" cy="{}" r="2.5"><title>{}: {} {}</title></circle>').format(
                        part.look, _f(point[0]), _f(point[1]), bucket.whole, part.label, value
                    )
                )
    told = [Bucket(each.label, each.whole, each.values) for each in buckets if any(v is not None for v in each.values)]
    return Markup('<ul class="legend">{}</ul>{}{}').format(
        legend,
        _svg(id, title, "Seconds that successful attempts took.", body),
        table(told, [part.label for part in parts], None),
    )


def table(buckets: Iterable[Bucket], head: Sequence[str], form: str | None) -> Markup:
    """Render the values of a chart as a table."""
    rows = Markup("").join(
        Markup('<tr><th scope="row">{}</th>{}</tr>').format(
            bucket.whole,
            Markup("").join(
                Markup('<td class="n">{}</td>').format(
                    shown.seconds(value) if form is None else form.format(value or 0)
                )
                for value in bucket.values
            ),
        )
        for bucket in buckets
    )
    names = Markup("").join(Markup('<th class="n" scope="col">{}</th>').format(name) for name in head)
    return Markup(
        '<details class="behind"><summary>Show as table</summary><table><thead><tr><th scope="col">When (UTC)</th>{}'
        "</tr></thead><tbody>{}</tbody></table></details>"
    ).format(names, rows)


def spark(counts: Sequence[int], what: str) -> Markup:
    """Render daily counts as small bars."""
    most = max(counts, default=0)
    if not most:
        return shown.NONE
    wide = 96 / max(len(counts), 1)
    bars = Markup("").join(
        _rect(place * wide, 24 - 24 * count / most, max(wide - 1.2, 0.8), 24 * count / most, "ok")
        for place, count in enumerate(counts)
        if count
    )
    told = f"{what}: {', '.join(f'{count:,}' for count in counts)}"
    return Markup('<svg class="spark" viewBox="0 0 96 24" role="img" aria-label="{}"><title>{}</title>{}</svg>').format(
        told, told, bars
    )


def bar(share: float) -> Markup:
    """Render a share of the largest value as a bar. The number beside it carries the same information."""
    return Markup(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">{}{}</svg>'
    ).format(_rect(0, 0, 100, 8, "track"), _rect(0, 0, max(100 * share, 1.0), 8, "ok"))


def rate(first: int, recovered: int, settled: int) -> Markup:
    """Render a success rate as a bar and a number. The recovered part is hatched."""
    if not settled:
        return shown.NONE
    at = 100 * first / settled
    won = _rect(at, 0, 100 * recovered / settled, 8, "won") if recovered else Markup("")
    return Markup(
        '<span class="share"><svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        "{}{}{}</svg><span>{}</span></span>"
    ).format(_rect(0, 0, 100, 8, "track"), _rect(0, 0, at, 8, "ok"), won, shown.percent(first + recovered, settled))


def scale(most: float, least: float = 1.0) -> tuple[float, list[float]]:
    """Return the end of the axis and its tick values, at most four intervals."""
    step = least
    for size in (1, 2, 5):
        if size * least * 4 >= most:
            step = size * least
            break
    else:
        return scale(most, least * 10)
    top = step * max(1, -(-most // step))
    return top, [step * number for number in range(round(top / step) + 1)]


def _svg(id: str, title: str, told: str, body: Iterable[Markup]) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-labelledby="{}-t {}-d"><title id="{}-t">{}</title>'
        '<desc id="{}-d">{}</desc>{}</svg>'
    ).format(WIDE, HIGH + TOP + FOOT, id, id, id, title, id, told, Markup("").join(body))


def _grid(ticks: Sequence[float], top: float, form: Callable[[float], str]) -> Iterator[Markup]:
    for value in ticks:
        y = _f(TOP + HIGH - HIGH * value / top)
        said = form(value)
        yield Markup('<path class="grid" d="M{} {}H{}"/><text class="tick end" x="{}" y="{}" dy="4">{}</text>').format(
            LEFT, y, WIDE, LEFT - 6, y, said
        )


def _labels(buckets: Sequence[Bucket]) -> Iterator[Markup]:
    room = (WIDE - LEFT) / max(1, len(buckets))
    every = max(1, -(-len(buckets) // LABELS))
    for place, bucket in enumerate(buckets):
        if place % every == 0:
            yield Markup('<text class="tick mid" x="{}" y="{}">{}</text>').format(
                _f(LEFT + room * (place + 0.5)), HIGH + TOP + 16, bucket.label
            )


def _rect(x: float, y: float, wide: float, high: float, look: str) -> Markup:
    # The hatch pattern is defined once per page. It needs the fill attribute, because a class cannot refer to it.
    fill = 'fill="url(#hatch)"' if look == "won" else f'class="{escape(look)}"'
    return Markup(f'<rect {fill} x="{_f(x)}" y="{_f(y)}" width="{_f(wide)}" height="{_f(high)}"/>')


def _f(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
