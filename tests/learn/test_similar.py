"""How alike two failures are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mulligan.learn import similar

KNOWN = [
    ("bound", similar.sketch("top_k must be <number> or less, got <number>.")),
    ("file", similar.sketch("no such file or directory: <path>")),
    ("login", similar.sketch("user is not logged in. Please log in first.")),
]


def test_another_wording_of_the_same_failure_is_the_nearest():
    assert [name for _, name in similar.nearest("top_k must be <number> or fewer, got <number>", KNOWN)] == ["bound"]
    assert [name for _, name in similar.nearest("No such file or directory <path>", KNOWN)] == ["file"]


def test_nothing_is_a_good_answer():
    assert similar.nearest("the weather is nice today", KNOWN) == []
    assert similar.nearest("", KNOWN) == []


@given(st.text(max_size=600), st.text(max_size=600))
def test_likeness_is_a_share_and_the_same_both_ways(one, other):
    bits = similar.sketch(one), similar.sketch(other)
    assert 0 <= similar.sketch_similarity(*bits) <= 1.0000001
    assert similar.sketch_similarity(*bits) == similar.sketch_similarity(*reversed(bits))
    assert similar.unpack(similar.pack(bits[0])) == bits[0]


@given(st.text("abc xyz", max_size=40), st.lists(st.text("abc xyz", max_size=40), max_size=8))
def test_the_nearest_are_all_that_are_alike_enough(text, others):
    known = [(str(place), similar.sketch(each)) for place, each in enumerate(others)]
    alike = {
        name for name, bits in known if similar.sketch_similarity(similar.sketch(text), bits) >= similar.MIN_SIMILARITY
    }
    assert {name for _, name in similar.nearest(text, known)} == alike


@given(st.text("abc xyz", max_size=40), st.lists(st.text("abc xyz", max_size=40), max_size=40), st.integers(1, 9))
def test_of_many_those_are_told_that_comparing_each_would_tell(text, others, limit):
    known = [(str(place), similar.sketch(each)) for place, each in enumerate(others)]
    asked = similar.sketch(text)
    every = sorted((-similar.sketch_similarity(asked, bits), name) for name, bits in known)
    alike = [(-less, name) for less, name in every if -less >= similar.MIN_SIMILARITY]
    assert similar.Sketches(known).nearest(text, limit) == alike[:limit]
