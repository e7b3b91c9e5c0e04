"""A text, shorter: within its limit, saying so, and still recognisable as what it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.recover.shorten import MIN_SHORTENED_CHARS, is_shortened, shorten_text


@given(st.text(max_size=3000), st.integers(MIN_SHORTENED_CHARS, 3000))
@settings(max_examples=150)
def test_what_is_shortened_is_no_longer_than_asked_for_and_says_so(text, limit):
    short = shorten_text(text, limit)
    assert len(short) <= max(limit, MIN_SHORTENED_CHARS)
    assert short == text if len(text) <= limit else is_shortened(short)


def test_a_text_that_is_short_enough_is_the_same_object():
    text = "x" * 100
    assert shorten_text(text, 100) is text


def test_json_keeps_its_keys_its_first_members_and_how_many_there_were():
    rows = [{"id": number, "name": f"order {number}"} for number in range(500)]
    short = shorten_text(json.dumps({"orders": rows, "total": 500}), 600)
    assert '"total":500' in short
    assert '"name":"order 0"' in short
    assert "more with id, name" in short
    assert is_shortened(short)


def test_repeated_lines_of_a_log_are_folded_and_the_odd_one_stays():
    lines = [f"12:00:{number % 60:02} INFO worker ready in {number} ms" for number in range(400)]
    lines[200] = "12:03:07 ERROR disk is full"
    short = shorten_text("\n".join(lines), 1000)
    assert "ERROR disk is full" in short
    assert "similar lines" in short
    assert is_shortened(short)
    assert len(short) < 600


def test_a_table_keeps_its_head_and_whole_rows():
    rows = ["id,city,amount"] + [
        f"{number},{'Oslo' if number % 3 else 'Bergen'},{number * 7}x" for number in range(900)
    ]
    short = shorten_text("\n".join(rows), 2000)
    assert short.startswith("id,city,amount\n")
    assert set(short.splitlines()[:20]) <= set(rows)
    assert short.splitlines()[-1] == rows[-1]


def test_both_ends_of_a_long_text_stay():
    short = shorten_text("first words " + "x" * 9000 + " last words", 500)
    assert short.startswith("first words")
    assert short.endswith("last words")
    assert "9,023 characters" in short


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a": ' * 5000, "\ud800" * 9000, "\n" * 9000, '{"a": NaN, "b": [' + "1," * 5000]
)
def test_hostile_texts_are_shortened_all_the_same(text):
    assert len(shorten_text(text, 300)) <= 300
