"""The sums of patterns in a database."""

from __future__ import annotations

import sqlite3

import hypothesis.strategies as st
from hypothesis import given

from mulligan.store.pattern_counts import size_class, size_class_sql

COUNTS = st.integers(min_value=0, max_value=10**12)


@given(COUNTS)
def test_a_database_says_how_large_a_number_is_as_we_do(count):
    connection = sqlite3.connect(":memory:")
    assert connection.execute(f"SELECT {size_class_sql('count')} FROM (SELECT ? AS count)", (count,)).fetchone() == (
        size_class(count),
    )
    connection.close()


@given(COUNTS, COUNTS)
def test_a_larger_number_is_never_said_to_be_smaller(one, other):
    assert (size_class(one) <= size_class(other)) or one > other
