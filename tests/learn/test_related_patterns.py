"""Patterns that look like one, of whichever tool; by their pieces, or by a model that is asked once for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from list_store import ListStore

from mulligan.core.events import RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, StoreError
from mulligan.core.records import Pattern, Run, Step, pattern_id
from mulligan.learn import similar
from mulligan.store.base import DEFAULT_TENANT, Store
from mulligan.store.sqlite import SqliteStore

TEXTS = {
    "search": "the session has expired, sign in again",
    "fetch": "your session has expired; sign in again",
    "draw": "no such colour",
}


@pytest.fixture(params=["lists", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = ListStore() if request.param == "lists" else SqliteStore(tmp_path / "a.db")
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
    found = similar.find_related(store, DEFAULT_TENANT, of(store, "search"))
    assert [each.tool for _, each in found] == ["fetch"]
    assert similar.find_related(store, DEFAULT_TENANT, of(store, "draw")) == []


def test_a_model_is_asked_once_for_each_pattern(store):
    asked: list[str] = []

    def embed(text: str) -> list[float]:
        asked.append(text)
        return [1.0, 0.0] if "session" in text else [0.2, 1.0]

    found = similar.find_related(store, DEFAULT_TENANT, of(store, "search"), embed=embed, name="toy")
    assert [(round(likeness, 2), each.tool) for likeness, each in found] == [(1.0, "fetch"), (0.2, "draw")]
    assert len(asked) == 3
    similar.find_related(store, DEFAULT_TENANT, of(store, "draw"), embed=embed, name="toy")
    assert len(asked) == 3
    similar.find_related(store, DEFAULT_TENANT, of(store, "draw"), embed=embed, name="another")
    assert len(asked) == 6


@pytest.mark.parametrize("broken", [lambda text: 1 / 0, lambda text: [], lambda text: [float("nan")]])
def test_a_model_that_fails_is_named(store, broken):
    with pytest.raises(StoreError, match="The embedder mine"):
        similar.find_related(store, DEFAULT_TENANT, of(store, "search"), embed=broken, name="mine:broken")
