"""The patterns of a tool that a new failure is compared with: packed into one row, and in hand once they were read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import STORES

from mulligan.contract.store import DEFAULT_TENANT, FixQuery, ForgetRequest, Store
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Run, Step, pattern_id
from mulligan.learn import patterns
from mulligan.learn.prerequisites import MAX_SIMILAR_PATTERNS
from mulligan.store import fix_votes
from mulligan.store.sqlite import MemoryStore, SqliteStore

REJECTED = Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO)
LIMIT = "the limit must be at most ten"
WORDS = ("limit", "door", "mode", "of", "the", "is", "unknown", "such", "at", "most", "ten")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "a.db", lambda: 1000)
    yield made
    made.close()


def overcome(run: str, message: str, tool: str = "search") -> list[AnyEvent]:
    """A run in which a call failed in this way, and worked with another argument."""
    failure = Failure.of(REJECTED, message, fingerprint=f"1:{message}")
    shared: dict[str, Any] = {"run": run, "name": tool, "started_at": 5}
    failed = Step(seq=1, call=1, arguments={"k": 50, "q": "a"}, outcome="failure", failure=failure, **shared)
    worked = Step(seq=2, call=2, arguments={"k": 10, "q": "a"}, **shared)
    about = Run(id=run, started_at=5)
    ended = Run(id=run, started_at=5, ended_at=6, end_reason="finished")
    return [RunStarted(about), StepEnded(failed), StepEnded(worked), RunEnded(ended)]


def teach(store: Store, messages: list[str], times: int = 2, tool: str = "search") -> None:
    for message in messages:
        for time in range(times):
            run = f"run_{tool}_{message}_{time}"
            store.append(DEFAULT_TENANT, overcome(run, message, tool), f"journal of {run}", 1)


def asked(store: Store, text: str, tool: str = "search") -> list[tuple[str, float]]:
    """What is known of failures like one that was never met, by their fingerprints and how alike they are."""
    query = FixQuery(tool=tool, fingerprint="1:new", text=text, now=1000)
    return [(fix.fingerprint, fix.similarity) for fix in store.fixes(DEFAULT_TENANT, query)]


def row(store: SqliteStore, tool: str = "search") -> bytes | None:
    rows = store.read_rows(
        DEFAULT_TENANT, "SELECT body FROM tool_sketches WHERE tenant = ? AND tool = ?", (DEFAULT_TENANT, tool)
    )
    return rows[0][0] if rows else None


def packed(*messages: str, tool: str = "search") -> bytes:
    entries = {pattern_id(tool, f"1:{each}").encode() + patterns.pack(patterns.sketch(each)) for each in messages}
    return b"".join(sorted(entries))


def test_those_of_a_tool_are_in_one_row_in_whichever_order_they_came(store):
    teach(store, [LIMIT, "the door is unknown", "no such mode"], times=1)
    assert row(store) == packed("no such mode", LIMIT, "the door is unknown")
    teach(store, ["no such mode"], times=1, tool="lookup")
    assert row(store, "lookup") == packed("no such mode", tool="lookup")


def test_what_is_forgotten_is_not_compared_any_more(store):
    teach(store, [LIMIT, "the door is unknown"])
    assert asked(store, "the limit must be at most 20") == [(f"1:{LIMIT}", pytest.approx(0.9, abs=0.1))]

    for time in range(2):
        store.forget(DEFAULT_TENANT, ForgetRequest(run=f"run_search_{LIMIT}_{time}"))
    assert asked(store, "the limit must be at most 20") == []
    assert row(store) == packed("the door is unknown")

    store.forget(DEFAULT_TENANT, ForgetRequest(tool="search"))
    assert row(store) is None
    assert asked(store, "the door was unknown") == []


def test_what_another_process_learned_is_found_at_once(store, tmp_path):
    teach(store, ["the door is unknown"])
    assert asked(store, "the limit must be at most 20") == []
    other = SqliteStore(tmp_path / "a.db", lambda: 1000)
    teach(other, [LIMIT])
    other.close()
    assert [name for name, _ in asked(store, "the limit must be at most 20")] == [f"1:{LIMIT}"]


def test_a_row_is_read_once_as_long_as_it_stays_the_same(store):
    teach(store, ["the door is unknown"])
    rows: list[Any] = []

    def read(sql: str, values: tuple[Any, ...]) -> list[Any]:
        rows.append(store.read_rows(DEFAULT_TENANT, sql, values))
        return rows[-1]

    ((stamp,),) = store.read_rows(DEFAULT_TENANT, "SELECT stamp FROM tool_sketches")
    in_hand = fix_votes.SketchCache()
    first, second = (in_hand.get_sketches(read, DEFAULT_TENANT, "search", stamp) for _ in range(2))
    assert first is second
    assert len(rows) == 1

    third = in_hand.get_sketches(read, DEFAULT_TENANT, "search", stamp + 1)  # somebody wrote meanwhile
    assert (len(rows), len(third)) == (2, 1)


def test_no_more_are_in_hand_than_there_is_room_for(store, monkeypatch):
    monkeypatch.setattr(fix_votes, "MAX_CACHED_PATTERNS", 3)
    tools = [f"tool_{number}" for number in range(5)]
    for tool in tools:
        teach(store, [LIMIT, "the door is unknown"], tool=tool)
    for tool in (*tools, *tools):
        assert [name for name, _ in asked(store, "the limit must be at most 20", tool)] == [f"1:{LIMIT}"]
    assert len(store._sketch_cache._sketches_by_tool) == 1


def test_of_very_many_no_more_are_compared_than_that(store, monkeypatch):
    monkeypatch.setattr(fix_votes, "MAX_PATTERNS_PER_TOOL", 2)
    messages = [LIMIT, "the door is unknown", "no such mode", "paper is not supported"]
    teach(store, messages, times=1)
    kept = row(store)
    assert kept == packed(*messages)[: 2 * (16 + patterns.SKETCH_BITS // 8)]
    with store.write_transaction(DEFAULT_TENANT) as writer:
        fix_votes.pack_sketches(writer, DEFAULT_TENANT, {"search"})
    assert row(store) == kept


sentences = st.lists(st.sampled_from(WORDS), min_size=2, max_size=7).map(
    lambda words: " ".join([*words, "unsupported"])
)


@settings(max_examples=25, deadline=None)
@given(st.lists(sentences, min_size=1, max_size=14, unique=True), st.lists(sentences, min_size=1, max_size=5))
def test_the_answer_is_that_of_comparing_all_of_them(messages, texts):
    store = MemoryStore(lambda: 1000)
    half = len(messages) // 2
    for taught in (messages[:half], messages):
        teach(store, taught)
        fingerprints = {pattern_id("search", f"1:{message}"): f"1:{message}" for message in taught}
        sketches = [(id, patterns.sketch(fingerprint[2:])) for id, fingerprint in fingerprints.items()]
        for text in texts:
            nearest = patterns.nearest(text, sketches)[:MAX_SIMILAR_PATTERNS]
            assert sorted(asked(store, text)) == sorted((fingerprints[id], similarity) for similarity, id in nearest)
    store.close()


@pytest.mark.parametrize("tool", ["se\x00arch", "zoë \x1f"])
@pytest.mark.parametrize("sort", ["memory", "sqlite", "postgres"])
def test_a_tool_of_any_name_has_its_own(sort, tool, tmp_path):
    store = STORES[sort](tmp_path)
    teach(store, [LIMIT], tool=tool)
    teach(store, ["the door is unknown"], tool=tool)
    assert [known for known, _ in asked(store, "the limit must be at most 20", tool)] == [f"1:{LIMIT}"]
    assert [known for known, _ in asked(store, "the door was unknown", tool)] == ["1:the door is unknown"]
    store.close()
