"""Lessons are made in the background: when there is time, of a little at a time, and never in anybody's way."""

from __future__ import annotations

import logging

import pytest

from mulligan.contract.store import DEFAULT_TENANT, ConsolidationResult, LessonQuery
from mulligan.core.events import EventStream, LessonLearned, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, StoreError, TookEffect
from mulligan.core.records import Lesson, Run, Step
from mulligan.learn import lessons
from mulligan.learn.lessons import ConsolidationScheduler
from mulligan.record.recorder import Recorder
from mulligan.redaction import Redactor
from mulligan.store.sqlite import MemoryStore, SqliteStore

REJECTED = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "k is 10 at most", fingerprint="f-k"
)


class Counting(MemoryStore):
    def __init__(self, left: int = 0) -> None:
        super().__init__()
        self.asked: list[tuple[str, int | None]] = []
        self.left = left

    def consolidate(self, tenant, now, progress=None, max_patterns=None):
        self.asked.append((tenant, max_patterns))
        lesson = Lesson(id="les_0123456789ab", tool=tenant, mistake="m", correction="c")
        return ConsolidationResult(remaining=self.left, lessons=(lesson,))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_nothing_is_learned_before_it_is_time_nor_of_what_nobody_kept():
    clock, store = Clock(), Counting()
    one = ConsolidationScheduler(clock)
    clock.now += lessons.FIRST_ROUND_DELAY_SECONDS
    assert one.run_if_due(store) == []
    one.mark_changed("a")
    clock.now -= 0.5
    assert one.run_if_due(store) == []
    assert store.asked == []


def test_each_round_is_one_tenants_and_small_and_they_take_turns():
    clock, store = Clock(), Counting(left=5)
    one = ConsolidationScheduler(clock)
    one.mark_changed("a")
    one.mark_changed("b")
    for _ in range(4):
        clock.now += lessons.ROUND_INTERVAL_SECONDS
        one.run_if_due(store)
        one.run_if_due(store)
    assert store.asked == [(name, lessons.MAX_PATTERNS_PER_ROUND) for name in "abab"]


def test_who_has_nothing_more_is_not_asked_again_until_something_is_kept():
    clock, store = Clock(), Counting()
    one = ConsolidationScheduler(clock)
    one.mark_changed("a")
    clock.now += lessons.ROUND_INTERVAL_SECONDS
    assert [tenant for tenant, _ in one.run_if_due(store)] == ["a"]
    clock.now += lessons.ROUND_INTERVAL_SECONDS
    assert one.run_if_due(store) == []


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(lessons, "FIRST_ROUND_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(lessons, "ROUND_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr("mulligan.record.recorder.FIRST_CONSOLIDATION_SECONDS", 0.0)


def publish_a_mistake(stream: EventStream, id: str, at: int) -> None:
    run = Run(id=id, started_at=at)
    stream.publish(RunStarted(run))
    shared = {"run": id, "name": "search", "started_at": at}
    before = {"k": 50, "q": id}
    stream.publish(StepEnded(Step(seq=1, call=1, arguments=before, outcome="failure", failure=REJECTED, **shared)))
    stream.publish(StepEnded(Step(seq=2, call=2, arguments={**before, "k": 10}, **shared)))
    stream.publish(RunEnded(Run(id=id, started_at=at, ended_at=at + 1, end_reason="finished")))


def test_what_agents_do_becomes_a_lesson_and_listeners_hear_of_it(tmp_path, at_once):
    stream = EventStream(Redactor())
    heard = []
    stream.add_listener(heard.append)
    recorder = Recorder(lambda: SqliteStore(tmp_path / "a.db"), stream, should_consolidate=True)
    stream.set_sink(recorder)

    for number in range(3):
        publish_a_mistake(stream, f"run_{number}", 1_700_000_000_000 + number)
        assert recorder.flush(30)
    recorder.close(30)

    (event,) = [each for each in heard if isinstance(each, LessonLearned)]
    assert event.lesson.correction == "Use k=10."
    store = SqliteStore(tmp_path / "a.db")
    assert [each.id for each in store.lessons(DEFAULT_TENANT, LessonQuery(now=1_700_000_000_000))] == [event.lesson.id]
    store.close()


def test_who_does_not_learn_makes_no_lessons(at_once):
    store = Counting()
    stream = EventStream(Redactor())
    recorder = Recorder(lambda: store, stream)
    stream.set_sink(recorder)
    publish_a_mistake(stream, "run_a", 1)
    assert recorder.flush(30)
    recorder.close(30)
    assert store.asked == []


def test_a_store_that_cannot_learn_keeps_records_all_the_same(at_once, caplog):
    class Broken(MemoryStore):
        def consolidate(self, tenant, now, progress=None, max_patterns=None):
            raise StoreError("no room to learn")

    store = Broken()
    stream = EventStream(Redactor())
    recorder = Recorder(lambda: store, stream, should_consolidate=True)
    stream.set_sink(recorder)
    with caplog.at_level(logging.WARNING):
        publish_a_mistake(stream, "run_a", 1)
        assert recorder.flush(30)
        recorder.close(30)
    assert store.run(DEFAULT_TENANT, "run_a") is not None
    assert "Consolidation of lessons postponed: no room to learn" in caplog.text
