"""How alike two failures are, and which patterns look like one; by their pieces, or by a model asked once for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.contract.store import DEFAULT_TENANT, Store
from mulligan.core.events import RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, StoreError
from mulligan.core.records import Pattern, Run, Step, pattern_id
from mulligan.learn import patterns
from mulligan.store.sqlite import MemoryStore

TEXTS = {
    "search": "the session has expired, sign in again",
    "fetch": "your session has expired; sign in again",
    "draw": "no such colour",
}


@pytest.fixture
def store() -> Iterator[Store]:
    made = MemoryStore()
    for tool, text in TEXTS.items():
        failure = Failure.of(Kind("tool", "auth_error"), text, fingerprint=f"f-{tool}")
        step = Step(run=f"run_{tool}", seq=1, call=1, name=tool, outcome="failure", failure=failure)
        made.append(DEFAULT_TENANT, [RunStarted(Run(id=f"run_{tool}")), StepEnded(step)], tool, 1)
    yield made
    made.close()


def of(store: Store, tool: str) -> Pattern:
    found = store.pattern(DEFAULT_TENANT, pattern_id(tool, f"f-{tool}"))
    assert found is not None
    return found


def test_the_same_words_at_another_tool_are_alike_and_others_are_not(store):
    found = patterns.find_related(store, DEFAULT_TENANT, of(store, "search"))
    assert [each.tool for _, each in found] == ["fetch"]
    assert patterns.find_related(store, DEFAULT_TENANT, of(store, "draw")) == []


def test_a_model_is_asked_once_for_each_pattern(store):
    asked: list[str] = []

    def embed(text: str) -> list[float]:
        asked.append(text)
        return [1.0, 0.0] if "session" in text else [0.2, 1.0]

    found = patterns.find_related(store, DEFAULT_TENANT, of(store, "search"), embed=embed, name="toy")
    assert [(round(likeness, 2), each.tool) for likeness, each in found] == [(1.0, "fetch"), (0.2, "draw")]
    assert len(asked) == 3
    patterns.find_related(store, DEFAULT_TENANT, of(store, "draw"), embed=embed, name="toy")
    assert len(asked) == 3
    patterns.find_related(store, DEFAULT_TENANT, of(store, "draw"), embed=embed, name="another")
    assert len(asked) == 6


@pytest.mark.parametrize("broken", [lambda text: 1 / 0, lambda text: [], lambda text: [float("nan")]])
def test_a_model_that_fails_is_named(store, broken):
    with pytest.raises(StoreError, match="The embedder mine"):
        patterns.find_related(store, DEFAULT_TENANT, of(store, "search"), embed=broken, name="mine:broken")


KNOWN = [
    ("bound", patterns.sketch("top_k must be <number> or less, got <number>.")),
    ("file", patterns.sketch("no such file or directory: <path>")),
    ("login", patterns.sketch("user is not logged in. Please log in first.")),
]


def test_another_wording_of_the_same_failure_is_the_nearest():
    assert [name for _, name in patterns.nearest("top_k must be <number> or fewer, got <number>", KNOWN)] == ["bound"]
    assert [name for _, name in patterns.nearest("No such file or directory <path>", KNOWN)] == ["file"]


def test_nothing_is_a_good_answer():
    assert patterns.nearest("the weather is nice today", KNOWN) == []
    assert patterns.nearest("", KNOWN) == []


@given(st.text(max_size=600), st.text(max_size=600))
def test_likeness_is_a_share_and_the_same_both_ways(one, other):
    bits = patterns.sketch(one), patterns.sketch(other)
    assert 0 <= patterns.sketch_similarity(*bits) <= 1.0000001
    assert patterns.sketch_similarity(*bits) == patterns.sketch_similarity(*reversed(bits))
    assert patterns.unpack(patterns.pack(bits[0])) == bits[0]


@given(st.text("abc xyz", max_size=40), st.lists(st.text("abc xyz", max_size=40), max_size=8))
def test_the_nearest_are_all_that_are_alike_enough(text, others):
    known = [(str(place), patterns.sketch(each)) for place, each in enumerate(others)]
    alike = {
        name
        for name, bits in known
        if patterns.sketch_similarity(patterns.sketch(text), bits) >= patterns.MIN_SIMILARITY
    }
    assert {name for _, name in patterns.nearest(text, known)} == alike


@given(st.text("abc xyz", max_size=40), st.lists(st.text("abc xyz", max_size=40), max_size=40), st.integers(1, 9))
def test_of_many_those_are_told_that_comparing_each_would_tell(text, others, limit):
    known = [(str(place), patterns.sketch(each)) for place, each in enumerate(others)]
    asked = patterns.sketch(text)
    every = sorted((-patterns.sketch_similarity(asked, bits), name) for name, bits in known)
    alike = [(-less, name) for less, name in every if -less >= patterns.MIN_SIMILARITY]
    assert patterns.Sketches(known).nearest(text, limit) == alike[:limit]
