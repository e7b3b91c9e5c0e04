"""What memory answers a call at hand, whether or not the recorder has opened its store."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from mulligan.contract.store import DEFAULT_TENANT, SCHEMA_KIND
from mulligan.core.events import EventStream, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Run, Step
from mulligan.prompt import Prompt
from mulligan.record import memory_lookup as memory
from mulligan.record.memory_lookup import MemoryLookup
from mulligan.record.recorder import Recorder
from mulligan.redaction import Redactor
from mulligan.store.urls import StoreLocation

NOW = 1_700_000_000_000
TOO_MANY = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "k must be at most 10, got 50", fingerprint="f-k"
)


@pytest.fixture
def place(tmp_path: Path) -> StoreLocation:
    return StoreLocation(str(tmp_path / "kept.db"), lambda: tmp_path)


@pytest.fixture
def recorder(place: StoreLocation) -> Iterator[Recorder]:
    recorder = Recorder(place.open_or_fallback, EventStream(Redactor()), journal_folder=place.journals)
    yield recorder
    recorder.close()


@pytest.fixture
def recall(recorder: Recorder, place: StoreLocation) -> MemoryLookup:
    return MemoryLookup(recorder, place, now=lambda: NOW, agent=lambda: "helper")


KEY = "tools:search"


def fill(place: StoreLocation, runs: int = 1, key: str = KEY, after: int = 10, before: int = 50) -> None:
    """Runs of another process, in which a value of k was rejected and another one worked."""
    shared = {"name": "search", "key": key, "started_at": NOW - 900}
    with closing(place.open()) as store:
        for number in range(runs):
            id = f"run_{key}_{before}_{number}"
            run = Run(id=id, agent="helper", started_at=NOW - 1000)
            arguments = {"k": before, "q": f"cats {number}"}
            calls = [
                Step(run=id, seq=1, call=1, outcome="failure", arguments=arguments, failure=TOO_MANY, **shared),
                Step(run=id, seq=2, call=2, arguments={**arguments, "k": after}, **shared),
            ]
            ended = Run(id=id, agent="helper", started_at=NOW - 1000, ended_at=NOW - 500, end_reason="finished")
            store.append(DEFAULT_TENANT, [RunStarted(run), *map(StepEnded, calls), RunEnded(ended)], f"journal_{id}", 4)


def test_what_another_process_kept_is_known_before_this_one_has_recorded_anything(recall, recorder, place):
    fill(place)
    (fix,) = recall.read_fixes("search", KEY, TOO_MANY, {"k": 60}, "")
    assert [change.after for change in fix.changes] == [10]
    assert recorder.store is None


def test_whoever_only_asks_makes_no_file(recall, place):
    assert recall.read_fixes("search", KEY, TOO_MANY, {"k": 60}, "") == ()
    assert recall.fixes("search", KEY, TOO_MANY, {"k": 60}, "s1") == ()
    assert not recall.precedents("search", KEY, TOO_MANY, {"k": 60})
    assert recall.item_arguments(KEY) == ()
    assert "mulligan records the tool calls" in recall.render_lessons(Prompt(), ["search"], 800)
    assert not place.exists()


@pytest.fixture
def database(recall, recorder, place, monkeypatch):
    """A store that is told to be a database elsewhere, and can hang."""
    fill(place)
    store = place.open()
    let_go, hangs = threading.Event(), threading.Event()
    asked = store.fixes

    def fixes(*args):
        if hangs.is_set():
            let_go.wait(20)
        return asked(*args)

    monkeypatch.setattr(store, "fixes", fixes)
    monkeypatch.setattr(recorder, "store", store)
    monkeypatch.setattr(place, "is_networked", True)
    yield hangs
    let_go.set()
    if recall.last_overdue is not None:
        recall.last_overdue.wait(20)
    store.close()


def test_a_database_that_hangs_keeps_no_failed_call_waiting_and_is_not_asked_twice(recall, database, monkeypatch):
    said = contextvars.ContextVar("said", default="nobody")
    said.set("helper")
    monkeypatch.setattr(recall, "_agent", said.get)
    monkeypatch.setattr(memory, "DATABASE_TIMEOUT_SECONDS", 20.0)  # however busy the machine is
    others = set(threading.enumerate())
    (fix,) = recall.fixes("search", KEY, TOO_MANY, {"k": 60}, "")
    assert [change.after for change in fix.changes] == [10]
    monkeypatch.setattr(memory, "DATABASE_TIMEOUT_SECONDS", 0.05)
    database.set()
    begun = time.monotonic()
    for _ in range(20):
        assert recall.fixes("search", KEY, TOO_MANY, {"k": 60}, "") == ()
    assert time.monotonic() - begun < 5
    assert sum(each.name == "mulligan-memory" for each in set(threading.enumerate()) - others) == 1


def test_calls_that_fail_at_the_same_time_all_get_an_answer_of_the_database(recall, recorder, database, monkeypatch):
    monkeypatch.setattr(memory, "DATABASE_TIMEOUT_SECONDS", 20.0)  # however busy the machine is
    is_asked, let_go, thread_names = threading.Event(), threading.Event(), []
    ask = recorder.store.fixes

    def fixes(*args):
        is_asked.set()
        let_go.wait(20)
        return ask(*args)

    class SlowThread(threading.Thread):
        """A thread that takes a while to start."""

        def start(self) -> None:
            thread_names.append(self.name)
            if self.name == "mulligan-memory":
                time.sleep(0.05)
            super().start()

    monkeypatch.setattr(recorder.store, "fixes", fixes)
    monkeypatch.setattr(memory.threading, "Thread", SlowThread)
    with ThreadPoolExecutor(4) as callers:
        first_calls = [callers.submit(recall.fixes, "search", KEY, TOO_MANY, {"k": 60}, "") for _ in range(2)]
        assert is_asked.wait(20)
        timer = threading.Timer(0.1, let_go.set)
        timer.start()
        calls = [*first_calls, callers.submit(recall.fixes, "search", KEY, TOO_MANY, {"k": 60}, "")]
    assert [[change.after for fix in call.result() for change in fix.changes] for call in calls] == [[10]] * 3
    assert thread_names.count("mulligan-memory") == 1


def test_calls_that_waited_for_a_hanging_database_in_vain_do_not_load_it_later(recall, recorder, database, monkeypatch):
    monkeypatch.setattr(memory, "DATABASE_TIMEOUT_SECONDS", 0.05)
    let_go, asked = threading.Event(), []

    def fixes(*args):
        asked.append(args)
        let_go.wait(20)
        return []

    monkeypatch.setattr(recorder.store, "fixes", fixes)
    with ThreadPoolExecutor(4) as callers:
        calls = [callers.submit(recall.fixes, "search", KEY, TOO_MANY, {"k": 60}, "") for _ in range(4)]
    assert [call.result() for call in calls] == [()] * 4
    let_go.set()
    assert recall.last_overdue.wait(20)
    assert len(asked) == 1


def test_what_is_no_failure_of_a_known_form_is_not_asked_about(recall, place):
    fill(place)
    assert recall.read_fixes("search", KEY, Failure.of(TOO_MANY.kind, "k is 10 at most"), {"k": 60}, "") == ()


def test_what_was_proven_under_another_schema_is_taken_back_by_a_call_and_not_by_a_question(recall, place):
    fill(place)
    recall.read_fixes("search", KEY, TOO_MANY, {"k": 60}, "before")
    with closing(place.open()) as store:
        assert store.keys(DEFAULT_TENANT, SCHEMA_KIND) == []
    recall.fixes("search", KEY, TOO_MANY, {"k": 60}, "before")
    with closing(place.open()) as store:
        assert store.keys(DEFAULT_TENANT, SCHEMA_KIND) == ["search"]


def test_precedents_are_those_of_the_store_that_the_recorder_writes_to(recall, recorder, place, monkeypatch):
    monkeypatch.setattr(memory, "LOCK_TIMEOUT_SECONDS", 20.0)  # however busy the machine is
    assert not recall.precedents("search", KEY, TOO_MANY, {"k": 60})
    fill(place, runs=2)
    recorder.put_success(RunStarted(Run(id="run_now", started_at=NOW)))
    (known,) = recall.precedents("search", KEY, TOO_MANY, {"k": 50})
    assert (known.successes, known.occurrences, known.shareable) == (2, 2, True)
    assert [change.after for change in known.changes] == [10]
    assert recorder.store is not None


def test_correction_of_a_single_run_is_shown_to_people_and_told_to_no_model(recall, place):
    fill(place, runs=1)
    (fix,) = recall.read_fixes("search", KEY, TOO_MANY, {"k": 60}, "")
    assert (fix.showable, fix.successes) == (False, 1)
    assert recall.precedents("search", KEY, TOO_MANY, {"k": 60}) == []


def test_call_that_failed_with_the_remembered_value_is_not_told_that_value(recall, place):
    fill(place, runs=2)
    assert [precedent.changes[0].after for precedent in recall.precedents("search", KEY, TOO_MANY, {"k": 50})] == [10]
    assert recall.precedents("search", KEY, TOO_MANY, {"k": 10}) == []


def test_value_is_told_for_the_old_values_that_it_replaced_and_for_others_beyond_a_bound(recall, place):
    fill(place, runs=2)
    assert recall.precedents("search", KEY, TOO_MANY, {"k": 60}) == []
    fill(place, runs=2, before=70)
    for k, after in ((65, [10]), (5, [])):
        precedents = recall.precedents("search", KEY, TOO_MANY, {"k": k})
        assert [precedent.changes[0].after for precedent in precedents] == after


def test_tool_of_the_same_name_in_another_module_has_its_own_memory(recall, place):
    fill(place, runs=2)
    fill(place, runs=2, key="other:search", after=7)
    for key, after in ((KEY, 10), ("other:search", 7)):
        (known,) = recall.precedents("search", key, TOO_MANY, {"k": 50})
        assert [change.after for change in known.changes] == [after]
    assert recall.precedents("search", "third:search", TOO_MANY, {"k": 50}) == []


@pytest.mark.parametrize("value", [10**5000, "a" * 20_000, float("nan"), "\ud800", object()], ids=range(5))
def test_call_with_an_extreme_value_gets_its_answer(recall, place, value):
    fill(place, runs=2)
    (known,) = recall.precedents("search", KEY, TOO_MANY, {"k": 50, "q": value})
    assert [change.after for change in known.changes] == [10]
    assert len(recall.precedents("search", KEY, TOO_MANY, {"k": value})) <= 1


def test_arguments_that_named_items_in_earlier_runs_are_known(recall, place):
    ended = Run(id="run_a", started_at=NOW, ended_at=NOW, end_reason="finished", items={KEY: ("order",)})
    with closing(place.open()) as store:
        store.append(DEFAULT_TENANT, [RunStarted(Run(id="run_a", started_at=NOW)), RunEnded(ended)], "journal_a", 2)
    assert recall.item_arguments(KEY) == ("order",)
    assert recall.item_arguments("other:search") == ()


def test_calls_that_fail_at_the_same_time_note_their_schemas_without_an_error(recall, place, monkeypatch):
    fill(place)
    both_built = threading.Barrier(2, timeout=10)

    class SlowThread(threading.Thread):
        """A thread that starts only after the other call has built its own."""

        def start(self) -> None:
            if self.name == "mulligan-schema" and both_built.wait():  # the last to arrive
                time.sleep(0.02)
            super().start()

    monkeypatch.setattr(memory.threading, "Thread", SlowThread)
    with ThreadPoolExecutor(2) as callers:
        calls = [
            callers.submit(recall.fixes, tool, f"tools:{tool}", TOO_MANY, {"k": 50}, "schema-1")
            for tool in ("search", "find")
        ]
    for call in calls:
        call.result()  # raises what the call raised
    with closing(place.open()) as store:
        assert all(store.get(DEFAULT_TENANT, SCHEMA_KIND, tool) is not None for tool in ("search", "find"))
