"""Charts are plain text: what they say can be read without a browser."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

pytest.importorskip("jinja2", reason="needs the extra: pip install 'mulligan[server]'")

from hypothesis import given
from hypothesis import strategies as st

from mulligan.dashboard import charts
from mulligan.dashboard.charts import Bucket, ChartSeries

counts = st.lists(st.integers(0, 10**9), min_size=4, max_size=4)


def drawn(markup: str) -> ET.Element:
    return ET.fromstring(f"<div>{markup}</div>")


@given(st.lists(counts, min_size=1, max_size=40))
def test_every_bar_is_within_the_chart_and_the_table_has_its_figures(rows):
    buckets = [Bucket(str(number), f"day {number}", values) for number, values in enumerate(rows)]
    found = drawn(charts.render_stacked_bars("c", "Runs", buckets, charts.STATUSES, "runs"))
    svg = found.find("svg")
    assert svg is not None
    assert svg.find("title") is not None
    assert svg.find("desc") is not None
    for bar in svg.iter("rect"):
        x, y, wide, high = (float(bar.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= -0.1
        assert x + wide <= charts.CHART_WIDTH + 0.1
        assert y + high <= charts.TOP_MARGIN + charts.PLOT_HEIGHT + 0.2
    told = [[int((cell.text or "").replace(",", "")) for cell in row.iter("td")] for row in found.iter("tr")][1:]
    assert told == rows


def test_what_was_recovered_is_hatched_and_not_only_coloured():
    found = charts.render_stacked_bars("c", "Runs", [Bucket("a", "a", [1, 2, 0, 0])], charts.STATUSES, "runs")
    assert found.count('fill="url(#hatch)"') == 2  # in the legend and in the bar
    assert "a: 1 success, 2 recovered" in found


def test_labels_are_text():
    found = charts.render_stacked_bars("c", "<b>", [Bucket("<i>", "<u>", [1])], [ChartSeries("x", "<s>", "ok")], "runs")
    assert "<b>" not in found.replace(" <b>1</b>", "")
    assert "<i>" not in found
    assert "<u>" not in found
    assert "<s>" not in found


def test_a_line_is_broken_where_nothing_is_known():
    values: list[list[float | None]] = [[1.0], [2.0], [None], [3.0]]
    buckets = [Bucket(str(number), str(number), value) for number, value in enumerate(values)]
    found = charts.render_lines("l", "Seconds", "Of runs.", buckets, [ChartSeries("p50", "half", "ok")])
    assert found.count('class="line ok" d="M') == 3  # the legend's, and two pieces
    assert found.count("<circle") == 3


def test_a_share_is_drawn_from_0_to_100_percent():
    buckets = [Bucket(str(number), f"day {number}", [share]) for number, share in enumerate((0.5, None, 1.0))]
    markup = charts.render_shares("s", "Recovered", "By day.", buckets, ChartSeries("recovered", "recovered", "ok"))
    svg = drawn(markup).find("svg")
    assert svg is not None
    heights = [float(dot.attrib["cy"]) for dot in svg.iter("circle")]
    assert heights == [charts.TOP_MARGIN + charts.PLOT_HEIGHT / 2, charts.TOP_MARGIN]
    assert "day 0: recovered 50\N{NO-BREAK SPACE}%" in markup
    assert "day 1" not in markup


@given(st.floats(0, 1e12), st.sampled_from([1.0, 1e-6]))
def test_an_axis_has_few_round_values_and_reaches_the_top(most, least):
    top, ticks = charts.choose_scale(most, least)
    assert top >= most or top == pytest.approx(most)
    assert 2 <= len(ticks) <= 6
    assert ticks[0] == 0
    assert ticks[-1] == pytest.approx(top)


def test_many_days_are_put_together_and_none_is_lost():
    starts = range(0, 1000 * 5, 5)
    found = list(charts.group_buckets(starts))
    assert len(found) <= charts.MAX_BARS
    assert [start for chunk in found for start in chunk] == list(starts)
