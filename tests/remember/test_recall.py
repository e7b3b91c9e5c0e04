"""What memory answers a call at hand, whether or not the recorder has opened its store."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mulligan.events import RunEnded, RunStarted, StepEnded, Stream
from mulligan.failure import Failure, Kind, Ran, Remedy
from mulligan.prompt import Prompt
from mulligan.records import Run, Step
from mulligan.redaction import Redactor
from mulligan.remember import recall as memory
from mulligan.remember import schemas
from mulligan.remember.place import Place
from mulligan.remember.recall import Recall
from mulligan.remember.recording.recorder import Recorder
from mulligan.remember.store import LOCAL

NOW = 1_700_000_000_000
TOO_MANY = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, Ran.NO), "k is 10 at most, got 50", fingerprint="f-k"
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(str(tmp_path / "kept.db"), lambda: tmp_path)


@pytest.fixture
def recorder(place: Place) -> Iterator[Recorder]:
    recorder = Recorder(place.opened_somewhere, Stream(Redactor()), journals=place.journals)
    yield recorder
    recorder.close()


@pytest.fixture
def recall(recorder: Recorder, place: Place) -> Recall:
    return Recall(recorder, place, now=lambda: NOW, agent=lambda: "helper")


def fill(place: Place) -> None:
    """A run of another process, in which k=50 was rejected and 10 worked."""
    run = Run(id="run_a", agent="helper", started=NOW - 1000)
    calls = [
        Step(run="run_a", seq=1, call=1, name="search", outcome="failure", arguments={"k": 50}, failure=TOO_MANY),
        Step(run="run_a", seq=2, call=2, name="search", arguments={"k": 10}),
    ]
    with closing(place.opened()) as store:
        store.append(LOCAL, [RunStarted(run), *map(StepEnded, calls), RunEnded(run)], "journal_a", 4)


def test_what_another_process_kept_is_known_before_this_one_has_recorded_anything(recall, recorder, place):
    fill(place)
    (fix,) = recall.advice("search", TOO_MANY, {"k": 60}, "")
    assert [change.after for change in fix.changes] == [10]
    assert recorder.store is None


def test_whoever_only_asks_makes_no_file(recall, place):
    assert recall.advice("search", TOO_MANY, {"k": 60}, "") == ()
    assert recall.fixes("search", TOO_MANY, {"k": 60}, "s1") == ()
    assert "mulligan records the tool calls" in recall.pitfalls(Prompt(), ["search"], 800)
    assert not place.is_there()


@pytest.fixture
def database(recall, recorder, place, monkeypatch):
    """A store that is told to be a database elsewhere, and can hang."""
    fill(place)
    store = place.opened()
    let_go, hangs = threading.Event(), threading.Event()
    asked = store.fixes

    def fixes(*args):
        if hangs.is_set():
            let_go.wait(20)
        return asked(*args)

    monkeypatch.setattr(store, "fixes", fixes)
    monkeypatch.setattr(recorder, "store", store)
    monkeypatch.setattr(place, "is_elsewhere", True)
    yield hangs
    let_go.set()
    if recall._late is not None:
        recall._late.join(20)
    store.close()


def test_a_database_that_hangs_keeps_no_failed_call_waiting_and_is_not_asked_twice(recall, database, monkeypatch):
    said = contextvars.ContextVar("said", default="nobody")
    said.set("helper")
    monkeypatch.setattr(recall, "_agent", said.get)
    monkeypatch.setattr(memory, "PATIENCE", 20.0)  # however busy the machine is
    others = set(threading.enumerate())
    (fix,) = recall.fixes("search", TOO_MANY, {"k": 60}, "")
    assert [change.after for change in fix.changes] == [10]
    monkeypatch.setattr(memory, "PATIENCE", 0.05)
    database.set()
    begun = time.monotonic()
    for _ in range(20):
        assert recall.fixes("search", TOO_MANY, {"k": 60}, "") == ()
    assert time.monotonic() - begun < 5
    assert sum(each.name == "mulligan-memory" for each in set(threading.enumerate()) - others) == 1


def test_what_is_no_failure_of_a_known_form_is_not_asked_about(recall, place):
    fill(place)
    assert recall.advice("search", Failure.of(TOO_MANY.kind, "k is 10 at most"), {"k": 60}, "") == ()


def test_what_was_proven_under_another_schema_is_taken_back_by_a_call_and_not_by_a_question(recall, place):
    fill(place)
    recall.advice("search", TOO_MANY, {"k": 60}, "before")
    with closing(place.opened()) as store:
        assert store.keys(LOCAL, schemas.KIND) == []
    recall.fixes("search", TOO_MANY, {"k": 60}, "before")
    with closing(place.opened()) as store:
        assert store.keys(LOCAL, schemas.KIND) == ["search"]


def test_precedents_are_those_of_the_store_that_the_recorder_writes_to(recall, recorder, place, monkeypatch):
    monkeypatch.setattr(memory, "SETTLE", 20.0)  # however busy the machine is
    assert recall.precedents("search", TOO_MANY, "run_now") == ()
    fill(place)
    recorder.keep(RunStarted(Run(id="run_now", started=NOW)))
    (known,) = recall.precedents("search", TOO_MANY, "run_now")
    assert (known.worked, known.seen) == (1, 1)
    assert recorder.store is not None
