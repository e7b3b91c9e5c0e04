"""Tables: aligned, cut to the terminal and to nothing else, and harmless to a spreadsheet."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.report import tables
from mulligan.report.tables import (
    TableColumn,
    display_width,
    format_duration,
    format_share,
    render_csv,
    render_pairs,
    render_table,
    truncate,
    wrap_text,
)

COLUMNS = (
    TableColumn("tool", lambda fact: fact["tool"], priority=9),
    TableColumn("calls", lambda fact: str(fact["calls"]), True, 8),
    TableColumn("note", lambda fact: fact["note"], priority=1),
)
FACTS = [
    {"tool": "search", "calls": 1200, "note": "a long remark about this tool"},
    {"tool": "a_tool_whose_name_is_rather_long", "calls": 7, "note": "-"},
]


def test_a_table_is_aligned_numbers_to_the_right():
    assert list(render_table(COLUMNS, FACTS)) == [
        "  tool                              calls  note",
        "  search                             1200  a long remark about this tool",
        "  a_tool_whose_name_is_rather_long      7  -",
    ]


def test_a_narrow_terminal_cuts_texts_and_then_leaves_out_what_matters_least():
    plain = [line.removeprefix("\x1b[2m").removesuffix("\x1b[0m") for line in render_table(COLUMNS, FACTS, 50)]
    assert max(map(len, plain)) <= 50
    assert "1200  a long" in plain[1]
    narrow = [line.removeprefix("\x1b[2m").removesuffix("\x1b[0m") for line in render_table(COLUMNS, FACTS, 32)]
    assert [line.split()[-1] for line in narrow] == ["calls", "1200", "7"]
    assert narrow[2].startswith("  a_tool_whose_name")
    assert "..." in narrow[2]


def test_columns_get_the_space_of_a_column_that_was_left_out():
    columns = (
        TableColumn("tool", lambda fact: fact["tool"], priority=9),
        TableColumn("recent calls", lambda fact: "1", True, 1),
    )
    *_, line = render_table(columns, [{"tool": "a_tool_with_thirty_characters"}], 33)
    assert line == "  a_tool_with_thirty_characters"


@given(st.text(alphabet="ab \u65e5\u0301", max_size=120), st.integers(12, 60))
def test_wrapped_text_fits_the_width_and_keeps_every_character(text, width):
    lines = list(wrap_text(text, width, "  "))
    assert all(display_width(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(st.lists(st.tuples(st.text(max_size=40), st.integers(), st.text(max_size=80)), max_size=5), st.integers(30, 200))
def test_no_line_is_longer_than_the_terminal(rows, width):
    columns = (
        TableColumn("a", lambda fact: fact["a"], priority=9),
        TableColumn("n", lambda fact: str(fact["n"])[:8], True, 5),
        TableColumn("b", lambda fact: fact["b"], priority=5),
    )
    facts = [{"a": "".join(a.split()), "n": n, "b": "".join(b.split())} for a, n, b in rows]
    for line in render_table(columns, facts, width):
        assert display_width(line.removeprefix("\x1b[2m").removesuffix("\x1b[0m")) <= width


def test_a_wide_letter_takes_two_columns():
    assert display_width("\u65e5\u672c") == 4
    assert display_width("e\u0301") == 1
    assert truncate("\u65e5\u672c\u8a9e\u65e5\u672c\u8a9e", 8) == "\u65e5\u672c..."


def test_what_is_said_of_a_name_goes_on_below_it():
    assert list(render_pairs([("a", "one two three four five six seven")], 26)) == [
        "  a  one two three four",
        "     five six seven",
    ]


@pytest.mark.parametrize(
    ("part", "whole", "told"),
    [(1, 3, "33.3 %"), (0, 3, "0 %"), (3, 3, "100 %"), (0, 0, "-"), (1, 10_000, "<0.1 %"), (9_999, 10_000, ">99.9 %")],
)
def test_a_share_is_all_or_nothing_only_if_it_is(part, whole, told):
    assert format_share(part, whole) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0 ms"), (0.000012, "12 us"), (0.25, "250 ms"), (5, "5.0 s"), (300, "5 min"), (9000, "2.5 h")],
)
def test_a_duration_has_one_unit(seconds, told):
    assert format_duration(seconds) == told


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "'=1", "\uff1d1+1", " =1"])
def test_a_spreadsheet_is_given_no_formula(text):
    (_, line) = render_csv([{"tool": text}], ["tool"])
    ((cell,),) = csv.reader([line])
    assert cell.startswith("'")


def test_csv_holds_numbers_as_numbers_and_what_is_inside_by_its_path():
    lines = list(render_csv([{"a": -1.5, "b": {"c": 3}, "d": None, "e": 'x,"y'}], ["a", "b.c", "d", "e", "b.z"]))
    assert lines[0] == "a,b.c,d,e,b.z"
    assert next(csv.reader(lines[1:])) == ["-1.5", "3", "", 'x,"y', ""]


@given(st.text())
def test_every_text_is_one_line_of_csv(text):
    lines = list(render_csv([{"a": text}], ["a"]))
    assert len(lines) == 2
    assert "\n" not in lines[1]


def test_what_may_be_copied_is_not_broken_at_its_hyphens():
    told = "Find it with git rev-parse --show-toplevel"
    for width in range(20, 45):
        assert " ".join(" ".join(tables.wrap_text(told, width)).split()) == told
