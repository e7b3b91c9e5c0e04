"""Moves events into the store in batches: nothing lost, nothing doubled, nobody blocked.

Waiting here is on a condition with a bound, never on a clock.
"""

from __future__ import annotations

import errno
import gc
import itertools
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from stores import stored_seqs, success_record

from mulligan import journal as journals
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import AnyEvent, EventStream, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, StoreDeniedError, StoreError
from mulligan.core.fast_path import SuccessRecord
from mulligan.core.records import Run, Step, encode
from mulligan.journal import decode_events, read_frames
from mulligan.record import journal_import, queue
from mulligan.record import recorder as recording
from mulligan.record.journal_import import count_dropped, recover_journals
from mulligan.record.recorder import Recorder
from mulligan.redaction import Redactor
from mulligan.store import sqlite
from mulligan.store.sqlite import MemoryStore, SqliteConnection, SqliteStore

PATIENCE = 30.0
"""Seconds until a wait that should have ended counts as a failed test."""


def step(seq: int, **fields: Any) -> StepEnded:
    return StepEnded(Step(run="run_a", seq=seq, call=seq, **fields))


def recorder_to(store: Any, stream: EventStream | None = None) -> Recorder:
    return Recorder(lambda: store, stream or EventStream(Redactor()))


class Balky(MemoryStore):
    """Fails until it is mended, or on some events only."""

    def __init__(self, error: Exception | None = None, poison: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.error = error
        self.poison = poison
        self.asked = threading.Semaphore(0)

    def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int) -> int:
        self.asked.release()
        if self.error is not None:
            raise self.error
        for event in batch:
            encode(event)
            if isinstance(event, StepEnded) and event.step.seq in self.poison:
                raise OverflowError("too large for a column")
        return super().append(tenant, batch, journal, offset)

    def wait_until_asked(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.asked.acquire(timeout=PATIENCE)


def kept(store: MemoryStore) -> int:
    return store.health(DEFAULT_TENANT).steps


def test_after_a_flush_everything_published_is_in_the_store():
    store = MemoryStore()
    recorder = recorder_to(store)
    for n in range(1, 1201):
        recorder(step(n))
    assert recorder.flush(PATIENCE)
    assert kept(store) == 1200


def test_flushing_what_was_never_used_is_done_at_once():
    recorder = recorder_to(MemoryStore())
    assert recorder.flush(0)
    assert recorder.close(0)
    assert recorder.store is None  # and nothing was opened


def test_many_threads_lose_nothing():
    store = MemoryStore()
    recorder = recorder_to(store)
    threads = [
        threading.Thread(target=lambda base=base: [recorder(step(base + n)) for n in range(250)])
        for base in range(0, 2000, 250)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.flush(PATIENCE)
    assert kept(store) == 2000


def test_closing_keeps_what_is_left_tells_the_listeners_and_lets_go_of_the_store(tmp_path):
    stream = EventStream(Redactor())
    heard: list[AnyEvent] = []
    stream.add_listener(heard.append)
    recorder = Recorder(lambda: SqliteStore(tmp_path / "a.db"), stream)
    recorder(step(1))
    opened = recorder

    assert opened.close(PATIENCE)

    assert recorder.store is None
    assert len(heard) == 1
    store = SqliteStore(tmp_path / "a.db")
    assert store.health(DEFAULT_TENANT).steps == 1
    store.close()


def test_an_event_after_the_close_opens_the_store_again(tmp_path):
    recorder = Recorder(lambda: SqliteStore(tmp_path / "a.db"), EventStream(Redactor()))
    recorder(step(1))
    recorder.close(PATIENCE)
    recorder(step(2))
    assert recorder.close(PATIENCE)
    store = SqliteStore(tmp_path / "a.db")
    assert store.health(DEFAULT_TENANT).steps == 2
    store.close()


@pytest.mark.parametrize("error", [StoreError("no room left"), ConnectionError("away")])
def test_a_store_that_fails_for_a_while_loses_nothing_and_catches_up(error):
    store = Balky(error)
    recorder = recorder_to(store)
    for n in range(1, 51):
        recorder(step(n))
    store.wait_until_asked(3)
    assert kept(store) == 0

    store.error = None

    assert recorder.flush(PATIENCE)
    assert (kept(store), recorder.dropped) == (50, 0)


def test_a_store_that_cannot_be_opened_at_first_is_opened_later():
    store = MemoryStore()
    answers: list[Any] = [StoreError("unwritable"), ValueError("odd"), store]

    def opening() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    recorder = Recorder(opening, EventStream(Redactor()))
    recorder(step(1))
    assert recorder.flush(PATIENCE)
    assert kept(store) == 1


def test_a_broken_store_is_told_once_and_not_with_every_try(caplog):
    store = Balky(StoreError("no room left for it"))
    recorder = recorder_to(store)
    with caplog.at_level(logging.WARNING, logger="mulligan"):
        recorder(step(1))
        store.wait_until_asked(4)
    assert len([each for each in caplog.records if "no room left for it" in each.getMessage()]) == 1
    store.error = None
    recorder.close(PATIENCE)


def test_an_event_that_can_never_be_encoded_is_dropped_counted_and_holds_up_nothing():
    store = Balky()
    recorder = recorder_to(store)
    for n in range(1, 11):
        recorder(step(n, name="lone \udcff surrogate") if n == 5 else step(n))
    assert recorder.flush(PATIENCE)
    assert (kept(store), recorder.dropped) == (9, 1)


def test_an_event_that_the_store_alone_cannot_take_is_dropped_counted_and_holds_up_nothing():
    store = Balky(poison=frozenset({3, 7}))
    recorder = recorder_to(store)
    for n in range(1, 11):
        recorder(step(n))
    assert recorder.flush(PATIENCE)
    assert kept(store) + recorder.dropped == 10
    assert recorder.dropped == 2


def test_a_store_that_goes_away_while_records_are_tried_one_by_one_loses_none():
    class Leaving(Balky):
        """Refuses batches, takes three records by themselves, and is then away for a while."""

        taken = 0
        left_for = 20

        def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int) -> int:
            if self.left_for and len(batch) > 1:
                raise ValueError("this is refused")
            if self.taken >= 3 and self.left_for:
                self.left_for -= 1
                raise StoreError("it is away")
            self.taken += 1
            return super().append(tenant, batch, journal, offset)

    store = Leaving()
    recorder = recorder_to(store)
    for n in range(1, 11):
        recorder(step(n))
    assert recorder.flush(PATIENCE)
    assert (kept(store), recorder.dropped) == (10, 0)


def test_nobody_waits_for_a_store_that_refuses_this_process():
    store = Balky(StoreDeniedError("Unknown token."))
    recorder = recorder_to(store)
    recorder(step(1))

    assert not recorder.flush(10 * PATIENCE)  # longer than a test may take

    store.error = None
    assert recorder.flush(PATIENCE)
    assert recorder.close(PATIENCE)


def test_a_store_that_is_back_is_told_once_and_only_if_it_was_said_to_be_away(caplog):
    store = Balky(StoreError("away"))
    recorder = recorder_to(store)
    recorder(step(1))
    store.wait_until_asked()
    store.error = None
    assert recorder.flush(PATIENCE)
    recorder(step(2))
    assert recorder.close(PATIENCE)

    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "Store unavailable", "Store available again",
    ]  # fmt: skip


def test_a_store_that_refuses_everything_is_not_asked_without_end(monkeypatch):
    monkeypatch.setattr(recording, "MIN_STORE_RETRY_SECONDS", 60.0)
    store = Balky(ValueError("this is refused"))
    recorder = recorder_to(store)
    for n in range(1, 11):
        recorder(step(n))
    store.wait_until_asked(1 + 1)  # for a batch, and for one of it
    assert not recorder.flush(0.5)
    assert store.asked._value <= 10


def test_beyond_its_capacity_the_oldest_are_dropped_and_counted(monkeypatch):
    monkeypatch.setattr(queue, "MAX_QUEUED_RECORDS", 100)
    store = Balky(StoreError("full"))
    recorder = recorder_to(store)
    for n in range(1, 151):
        recorder(step(n))
    until(lambda: recorder.dropped == 50)  # a look that came after the last of them has made room
    store.error = None

    assert recorder.flush(PATIENCE)
    assert recorder.dropped == 50
    assert stored_seqs(store, "run_a") == list(range(51, 151))


def test_listeners_are_told_of_what_was_kept_and_their_faults_are_logged_once(caplog):
    stream = EventStream(Redactor())
    heard: list[AnyEvent] = []

    def broken(event: AnyEvent) -> None:
        raise ValueError("broken")

    stream.add_listener(broken)
    stream.add_listener(heard.append)
    recorder = recorder_to(MemoryStore(), stream)
    stream.set_sink(recorder)
    for n in range(1, 6):
        stream.publish(step(n))
    recorder.close(PATIENCE)

    assert [event.step.seq for event in heard] == [1, 2, 3, 4, 5]
    assert len([each for each in caplog.records if "A listener failed" in each.getMessage()]) == 1


def test_recording_does_not_wait_for_the_store():
    entered, released = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def append(self, *args: Any) -> int:
            entered.set()
            released.wait(PATIENCE)
            return super().append(*args)

    store = Slow()
    recorder = recorder_to(store)
    recorder(step(1))
    assert entered.wait(PATIENCE)
    for n in range(2, 1000):
        recorder(step(n))  # would hang here
    assert recorder.flush(0) is False
    assert recorder.close(0) is False
    released.set()


# With a journal


def success(run: str, seq: int = 1, alone: bool = True, **arguments: Any) -> SuccessRecord:
    about = Run(id=run, started_at=1000) if alone else None
    return success_record(run, seq, arguments, about)


def failed(run: str, seq: int) -> StepEnded:
    failure = Failure.of(Kind("tool", "timeout"), "late")
    return StepEnded(Step(run=run, seq=seq, call=seq, name="search", outcome="failure", failure=failure))


class Place:
    """A folder with a store and its journals, and whoever records there."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "a.db"
        self.journals = folder / "a.db.journals"

    def recorder(self, opening: Callable[[], Any] | None = None, fsync: bool = False) -> Recorder:
        stream = EventStream(Redactor())
        opening = opening or (lambda: SqliteStore(self.store, fsync=fsync))
        made = Recorder(opening, stream, journal_folder=lambda: self.journals, fsync=fsync)
        stream.set_sink(made)
        return made

    def left(self) -> list[Path]:
        return sorted(self.journals.glob("*"))

    def kept(self) -> dict[str, list[int]]:
        """What is in the store once the next process has opened it, run by run."""
        store = SqliteStore(self.store)
        recover_journals(store, DEFAULT_TENANT, self.journals)
        found = {each.run.id: [step.seq for step in each.steps] for each in store.export(DEFAULT_TENANT)}
        assert store.read_rows(DEFAULT_TENANT, "PRAGMA integrity_check") == [("ok",)]
        store.close()
        return found

    def ends(self) -> dict[str, str | None]:
        store = SqliteStore(self.store)
        found = {each.run.id: each.run.end_reason for each in store.export(DEFAULT_TENANT)}
        store.close()
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_record_is_in_the_journal_before_the_call_goes_on(place):
    store = Balky(StoreError("away"))
    recorder = place.recorder(lambda: store)
    recorder.put_success(success("run_a", query="x"))
    recorder(failed("run_b", 1))
    (path,) = place.left()
    assert [event for _, event in decode_events(read_frames(path))][-1] == failed("run_b", 1)
    assert len(list(read_frames(path))) == 2
    store.error = None
    assert recorder.close(PATIENCE)


def test_closing_removes_the_journal_when_all_of_it_is_kept(place):
    recorder = place.recorder()
    for n in range(10):
        recorder.put_success(success(f"run_{n}"))
    assert recorder.close(PATIENCE)
    assert place.left() == []
    assert len(place.kept()) == 10


def test_closing_leaves_the_journal_when_the_store_is_away_and_the_next_process_adopts_it(place):
    recorder = place.recorder(lambda: Balky(StoreError("away")))
    for n in range(10):
        recorder.put_success(success(f"run_{n}"))
    assert not recorder.close(0.5)
    assert len(place.left()) == 1
    assert place.kept() == {}  # it is still ours
    recorder.queue.journal.abandon()  # as the end of the process does
    assert len(place.kept()) == 10
    assert place.left() == []


def test_what_a_dead_process_left_is_kept_when_a_store_is_back_that_was_away_at_the_start(place, monkeypatch):
    monkeypatch.setattr(recording, "JOURNAL_RECOVERY_INTERVAL_SECONDS", 0.0)
    dead = place.recorder(lambda: Balky(StoreError("away")))
    dead(failed("run_dead", 1))
    assert not dead.close(0.2)
    dead.queue.journal.abandon()  # as the end of the process does
    store = Balky(StoreError("away"))
    recorder = place.recorder(lambda: store)
    recorder(failed("run_a", 1))
    store.wait_until_asked(2)
    store.error = None
    recorder(failed("run_b", 1))
    assert recorder.close(PATIENCE)
    assert kept(store) == 3
    assert place.left() == []


def test_what_waits_when_it_is_closed_is_kept_as_soon_as_the_store_is_back(place):
    stores: list[Any] = [Balky(StoreError("away"))]
    recorder = place.recorder(lambda: stores[-1])
    recorder.put_success(success("run_a", query="x"))
    stores[-1].wait_until_asked()
    # A thread that does not end in time, on a busy machine, keeps its store: closed until it was let go.
    until(lambda: not recorder.close(0.1) and recorder.store is None)
    stores.append(SqliteStore(place.store))
    for n in range(20):
        recorder.put_success(success(f"run_{n}"))
    assert recorder.close(PATIENCE)
    assert len(place.kept()) == 21
    assert place.left() == []


def test_an_event_after_the_close_has_a_journal_again(place):
    recorder = place.recorder()
    recorder.put_success(success("run_a"))
    assert recorder.close(PATIENCE)
    assert recorder.flush(0)  # nothing waits
    recorder.put_success(success("run_b"))
    assert len(place.left()) == 1
    assert recorder.close(PATIENCE)
    assert place.kept() == {"run_a": [1], "run_b": [1]}


def test_a_run_that_is_open_when_its_process_leaves_is_abandoned(place):
    recorder = place.recorder()
    recorder(RunStarted(Run(id="run_a", started_at=5)))
    assert recorder.close(PATIENCE)
    assert len(place.left()) == 1
    del recorder
    gc.collect()
    place.kept()
    assert place.ends() == {"run_a": "abandoned"}


def test_a_run_that_is_open_when_it_is_closed_may_go_on_and_end(place):
    recorder = place.recorder()
    recorder(RunStarted(Run(id="run_a", started_at=5)))
    assert recorder.close(PATIENCE)
    recorder.put_success(success("run_a", alone=False))
    recorder(RunEnded(Run(id="run_a", started_at=5, ended_at=9, end_reason="finished")))
    assert recorder.close(PATIENCE)
    assert place.left() == []
    assert place.ends() == {"run_a": "finished"}


def test_beyond_its_capacity_memory_spills_into_the_journal_and_is_caught_up(place, monkeypatch):
    monkeypatch.setattr(queue, "MAX_QUEUED_RECORDS", 100)
    monkeypatch.setattr(journal_import, "BATCH_RECORDS", 30)
    store = Balky(StoreError("away"))
    recorder = place.recorder(lambda: store)
    recorder(RunStarted(Run(id="run_a", started_at=5)))
    for n in range(1, 1001):
        recorder.put_success(success("run_a", n, alone=False, query="x"))
    until(lambda: len(recorder.queue.queued) == 100)
    store.error = None
    recorder.put_success(success("run_a", 1001, alone=False))
    assert recorder.flush(PATIENCE)
    assert stored_seqs(store, "run_a") == list(range(1, 1002))
    assert recorder.dropped == 0
    recorder(RunEnded(Run(id="run_a", started_at=5, ended_at=9, end_reason="finished")))
    assert recorder.close(PATIENCE)
    assert place.left() == []


def size(path: Path) -> int:
    """0 where it is gone by now: the recorder's thread goes on laying journals aside while somebody counts them."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def kept_of(store: Any, runs: list[str]) -> list[str]:
    return [run for run in runs if stored_seqs(store, run)]


def test_when_too_much_waits_the_oldest_successes_are_dropped_and_counted_and_failures_stay(place, monkeypatch, caplog):
    monkeypatch.setattr(journal_import, "MAX_JOURNAL_BYTES", 8000)
    monkeypatch.setattr(queue, "JOURNAL_ROTATE_BYTES", 500)
    monkeypatch.setattr(queue, "MAX_QUEUED_RECORDS", 10)
    monkeypatch.setattr(recording, "BATCH_DELAY_SECONDS", 0.001)
    store = Balky(StoreError("away"))
    recorder = place.recorder(lambda: store)
    for n in range(20):
        recorder(failed(f"run_f{n}", 1))
        for each in range(20):
            recorder.put_success(success(f"run_{n:02}_{each:02}", query="x"))
        until(lambda: recorder.queue.journal.offset <= 2000)
    assert len(list(filter(size, place.left()))) >= 3
    assert caplog.text.count("is full") == 1  # one warning a minute
    store.error = None
    assert recorder.flush(PATIENCE)
    dropped = recorder.dropped
    assert 0 < dropped < 400
    everything = [f"run_{n:02}_{each:02}" for n in range(20) for each in range(20)]
    assert kept_of(store, everything) == everything[dropped:]  # the newest
    assert len(kept_of(store, [f"run_f{n}" for n in range(20)])) == 20
    assert recorder.close(PATIENCE)
    assert place.left() == []


def test_when_even_failures_are_too_many_the_oldest_go(place, monkeypatch):
    monkeypatch.setattr(journal_import, "MAX_JOURNAL_BYTES", 8000)
    monkeypatch.setattr(queue, "JOURNAL_ROTATE_BYTES", 500)
    monkeypatch.setattr(recording, "BATCH_DELAY_SECONDS", 0.001)
    store = Balky(StoreError("away"))
    recorder = place.recorder(lambda: store)
    for n in range(200):
        recorder(failed(f"run_{n:03}", 1))
        until(lambda: recorder.queue.journal.offset <= 2500)
    store.error = None
    assert recorder.flush(PATIENCE)
    everything = [f"run_{n:03}" for n in range(200)]
    assert 0 < recorder.dropped < 200
    assert kept_of(store, everything) == everything[recorder.dropped :]
    recorder.close(PATIENCE)


def test_without_a_journal_memory_too_drops_the_oldest_successes_first(monkeypatch):
    monkeypatch.setattr(queue, "MAX_QUEUED_RECORDS", 100)
    store = Balky(StoreError("away"))
    stream = EventStream(Redactor())
    recorder = Recorder(lambda: store, stream)
    for n in range(50):
        recorder(failed(f"run_f{n}", 1))
    for n in range(150):
        recorder.put_success(success(f"run_{n:03}"))
    until(lambda: recorder.dropped == 100)
    store.error = None
    assert recorder.flush(PATIENCE)
    everything = [f"run_{n:03}" for n in range(150)]
    assert kept_of(store, everything) == everything[100:]
    assert len(kept_of(store, [f"run_f{n}" for n in range(50)])) == 50
    recorder.close(PATIENCE)


def test_a_journal_that_was_laid_aside_is_adopted_when_its_process_is_killed(place, monkeypatch):
    monkeypatch.setattr(journal_import, "MAX_JOURNAL_BYTES", 100_000)
    monkeypatch.setattr(queue, "JOURNAL_ROTATE_BYTES", 500)
    monkeypatch.setattr(queue, "JOURNALS_PER_LIMIT", 50)
    monkeypatch.setattr(recording, "BATCH_DELAY_SECONDS", 0.001)
    recorder = place.recorder(lambda: Balky(StoreError("away")))
    for n in range(200):
        recorder.put_success(success(f"run_{n}"))
        until(lambda: recorder.queue.journal.offset <= 2500)
    assert len(place.left()) > 2
    for journal in (recorder.queue.journal, *recorder.queue.full_journals):
        journal.abandon()  # as the end of the process does
    recorder.queue.full_journals.clear()
    assert len(place.kept()) == 200


def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE * 1000)):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never came")


def test_a_long_journal_is_begun_anew_and_open_runs_stay_known(place, monkeypatch):
    monkeypatch.setattr(queue, "JOURNAL_ROTATE_BYTES", 500)
    all_taken = threading.Event()

    def opening() -> SqliteStore:
        assert all_taken.wait(PATIENCE)  # else a busy machine begins one anew in the middle, and has the rest in that
        return SqliteStore(place.store)

    recorder = place.recorder(opening)
    recorder(RunStarted(Run(id="run_a", started_at=5)))
    first = place.left()
    for n in range(1, 51):
        recorder.put_success(success("run_a", n, alone=False))
    all_taken.set()
    assert recorder.flush(PATIENCE)
    until(lambda: place.left() != first and len(place.left()) == 1)
    assert [event.name for _, event in decode_events(read_frames(place.left()[0]))] == ["run.started"]
    recorder.queue.journal.abandon()  # killed here
    assert place.kept() == {"run_a": list(range(1, 51))}
    assert place.ends() == {"run_a": "abandoned"}


def test_a_journal_is_begun_anew_also_where_records_never_stop_coming(place, monkeypatch):
    monkeypatch.setattr(queue, "JOURNAL_ROTATE_BYTES", 2000)
    recorder = place.recorder()
    names = set()

    class Listening:
        count = 0

        def __call__(self, event: AnyEvent) -> None:  # there is always one more waiting
            if self.count < 2000:
                self.count += 1
                recorder.put_success(success(f"run_{self.count}", query="x"))
                names.add(recorder.queue.journal.name)

    recorder._stream.add_listener(Listening())
    recorder.put_success(success("run_0"))
    until(lambda: not recorder.queue.queued)
    assert recorder.close(PATIENCE)
    assert len(names) > 3
    assert len(place.kept()) == 2001
    assert recorder.dropped == 0


def test_records_of_many_threads_survive_that_journals_are_begun_anew_beneath_them(place, monkeypatch):
    monkeypatch.setattr(queue, "JOURNAL_ROTATE_BYTES", 1500)
    monkeypatch.setattr(journal_import, "BATCH_RECORDS", 20)
    monkeypatch.setattr(recording, "BATCH_DELAY_SECONDS", 0.001)
    recorder = place.recorder()
    together(6, lambda worker: [recorder.put_success(success(f"run_{worker}_{n}")) for n in range(300)])
    assert recorder.close(PATIENCE)
    assert len(place.kept()) == 1800
    assert (recorder.dropped, place.left()) == (0, [])


def together(workers: int, work: Callable[[int], object]) -> None:
    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_closing_again_and_again_while_others_record_loses_nothing(place):
    recorder = place.recorder()
    is_over = threading.Event()

    def closing() -> None:
        while not is_over.is_set():
            recorder.close(PATIENCE)

    closers = [threading.Thread(target=closing) for _ in range(2)]
    for each in closers:
        each.start()
    together(4, lambda worker: [recorder.put_success(success(f"run_{worker}_{n}")) for n in range(200)])
    is_over.set()
    for each in closers:
        each.join(PATIENCE)
    assert recorder.close(PATIENCE)
    assert len(place.kept()) == 800
    assert (recorder.dropped, place.left()) == (0, [])


def test_every_thread_that_flushes_finds_its_own_record_kept(place):
    recorder = place.recorder()
    found: list[bool] = []

    def work(worker: int) -> None:
        for n in range(10):
            recorder.put_success(success(f"run_{worker}_{n}"))
            is_done = recorder.flush(PATIENCE)
            store = recorder.store
            found.append(is_done and store is not None and store.run(DEFAULT_TENANT, f"run_{worker}_{n}") is not None)

    together(6, work)
    assert found == [True] * 60
    recorder.close(PATIENCE)


def test_no_wake_up_is_lost_however_records_and_sleep_meet(place, monkeypatch):
    monkeypatch.setattr(recording, "BATCH_DELAY_SECONDS", 0.0)
    recorder = recorder_to(MemoryStore())
    for n in range(1, 1501):
        recorder(step(n))
        if n % 3 == 0:
            until(lambda: not recorder.queue.queued)  # without a flush, which would wake it
    assert recorder.close(PATIENCE)
    assert recorder.queue.stored_count == 1500


def test_a_listener_that_flushes_or_closes_does_not_wait_for_itself():
    stream = EventStream(Redactor())
    recorder = recorder_to(MemoryStore(), stream)
    stream.add_listener(lambda event: (recorder.flush(PATIENCE), recorder.close(PATIENCE)))
    recorder(step(1))
    assert recorder.close(PATIENCE)


def test_a_record_that_cannot_be_written_down_is_counted_and_the_caller_goes_on(place):
    recorder = place.recorder()
    recorder(step(1, name="lone \udcff surrogate"))
    recorder.put_success(success("run_b", huge=10**30))
    assert recorder.close(PATIENCE)
    assert recorder.dropped == 1
    assert place.kept() == {"run_b": [1]}


def test_a_clock_that_jumps_backwards_does_not_matter(place, monkeypatch):
    recorder = place.recorder()
    for n in range(50):
        monkeypatch.setattr(recording.time, "time", lambda n=n: 1_000_000 - 1000.0 * n)
        recorder.put_success(success(f"run_{n}"))
    assert recorder.close(PATIENCE)
    assert len(place.kept()) == 50


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_a_signal_handler_may_record_in_the_middle_of_a_record(place, monkeypatch):
    monkeypatch.setattr(journal_import, "BATCH_RECORDS", 7)
    recorder = place.recorder()
    handled: list[int] = []
    numbers = itertools.count()

    def handler(*_: object) -> None:
        number = next(numbers)  # its own, also where another signal comes in the middle of this
        handled.append(number)
        recorder.put_success(success(f"run_handled_{number}"))

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for n in range(4000):
            recorder.put_success(success(f"run_{n}"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert recorder.close(PATIENCE)
    assert len(place.kept()) == 4000 + len(handled)
    assert handled


# Every write fails once


class Faults:
    """Counts the calls of one sort, and fails the k-th of them."""

    def __init__(self) -> None:
        self.count = 0
        self.fails_at = 0
        self._lock = threading.Lock()

    def __call__(self, error: Exception) -> None:
        with self._lock:
            self.count += 1
            if self.count == self.fails_at:
                raise error

    def around(self, function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        def faulty(*args: Any, **kwargs: Any) -> Any:
            self(error)
            return function(*args, **kwargs)

        return faulty


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


def in_the_system(name: str, error: Exception) -> Callable[[pytest.MonkeyPatch, Faults], None]:
    return lambda patch, faults: patch.setattr(os, name, faults.around(getattr(os, name), error))


def in_plain_writes(patch: pytest.MonkeyPatch, faults: Faults) -> None:
    def cannot(*args: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    patch.setattr(os, "posix_fallocate", cannot)
    patch.setattr(journals, "write_at", faults.around(journals.write_at, FULL))


def in_the_disk(patch: pytest.MonkeyPatch, faults: Faults) -> None:
    patch.setattr(journals, "sync_to_disk", faults.around(journals.sync_to_disk, BROKEN))


def in_the_store(error: Exception, is_kept: bool = False) -> Callable[[pytest.MonkeyPatch, Faults], None]:
    def install(patch: pytest.MonkeyPatch, faults: Faults) -> None:
        really = SqliteStore.append

        def append(store: SqliteStore, *args: Any) -> int:
            if not is_kept:
                faults(error)
            kept = really(store, *args)
            if is_kept:
                faults(error)
            return kept

        patch.setattr(SqliteStore, "append", append)

    return install


def in_sqlite(said: str, *statements: str) -> Callable[[pytest.MonkeyPatch, Faults], None]:
    """At statements that begin so, and wherever many rows are put at once."""
    error = sqlite3.OperationalError(said)

    def install(patch: pytest.MonkeyPatch, faults: Faults) -> None:
        class Connection(SqliteConnection):
            def execute(self, sql: str, *args: Any) -> Any:
                if sql.startswith(statements):
                    faults(error)
                return super().execute(sql, *args)

            def executemany(self, *args: Any) -> Any:
                faults(error)
                return super().executemany(*args)

        really = sqlite3.connect
        patch.setattr(sqlite3, "connect", lambda *args, **more: really(*args, **{**more, "factory": Connection}))

    return install


@pytest.mark.durability
@pytest.mark.parametrize(
    "install",
    [
        pytest.param(in_the_system("open", BROKEN), id="opening a file"),
        pytest.param(in_the_system("posix_fallocate", FULL), id="room for the journal"),
        pytest.param(in_the_system("rename", BROKEN), id="naming the journal"),
        pytest.param(in_the_system("unlink", BROKEN), id="removing the journal"),
        pytest.param(in_plain_writes, id="writing the journal"),
        pytest.param(in_the_disk, id="having the disk keep it"),
        pytest.param(in_the_store(StoreError("no room")), id="the store, in its own words"),
        pytest.param(in_the_store(RuntimeError("odd")), id="the store, in other words"),
        pytest.param(in_the_store(StoreError("not heard"), is_kept=True), id="the store, after all was kept"),
        pytest.param(
            in_sqlite("disk I/O error", "BEGIN IMMEDIATE", "COMMIT"),
            id="a beginning, a statement or a commit of sqlite",
        ),
    ],
)
def test_whichever_write_fails_no_caller_is_harmed_nothing_uncounted_is_missing_and_recording_goes_on(
    tmp_path, monkeypatch, install
):
    monkeypatch.setattr(recording, "BATCH_DELAY_SECONDS", 0.001)
    monkeypatch.setattr(journal_import, "BATCH_RECORDS", 6)
    monkeypatch.setattr(queue, "JOURNAL_ROTATE_BYTES", 900)
    monkeypatch.setattr(journals, "PREALLOCATED_BYTES", 600)
    k = 0
    while True:
        place = Place(tmp_path / str(k))
        faults = Faults()
        faults.fails_at = k
        with monkeypatch.context() as patch:
            install(patch, faults)
            recorder = place.recorder(fsync=install is in_the_disk)
            recorder(RunStarted(Run(id="run_a", started_at=5)))
            for n in range(1, 16):
                recorder.put_success(success("run_a", n, alone=False, query="x"))
                if n % 5 == 0:
                    recorder(failed(f"run_f{n}", 1))
                    recorder.flush(PATIENCE)
            recorder(RunEnded(Run(id="run_a", started_at=5, ended_at=9, end_reason="finished")))
            assert recorder.close(PATIENCE), k
        recorder.put_success(success("run_later"))
        assert recorder.close(PATIENCE)
        found = place.kept()
        missing = 15 - len(found["run_a"])
        assert missing <= recorder.dropped, (k, found, recorder.dropped)
        assert recorder.dropped == 0, k
        assert found["run_later"] == [1]
        assert place.ends()["run_a"] == "finished"
        assert faults.count > 0
        if k > faults.count:  # it was not reached: each of them has failed once
            return
        k += 1


@pytest.mark.durability
def test_whichever_statement_of_a_large_batch_fails_all_of_it_is_kept_in_the_end_and_once(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "BATCH_DELAY_SECONDS", 0.001)
    SqliteStore(tmp_path / "empty.db").close()
    count = sqlite.BATCH_SIZES[0] + sqlite.BATCH_SIZES[1] + 1
    k = 0
    while True:
        place = Place(tmp_path / str(k))
        place.store.parent.mkdir()
        shutil.copy(tmp_path / "empty.db", place.store)
        faults = Faults()
        all_taken = threading.Event()

        def opening(place=place, all_taken=all_taken):
            assert all_taken.wait(PATIENCE)
            return SqliteStore(place.store)

        with monkeypatch.context() as patch:
            statements = ("INSERT", "UPDATE", "DELETE", "SAVEPOINT", "RELEASE", "COMMIT")
            in_sqlite("database or disk is full", *statements)(patch, faults)
            recorder = place.recorder(opening)
            for n in range(count):
                recorder.put_success(success(f"run_{n}", query="x"))
            faults.fails_at = k and faults.count + k
            all_taken.set()
            assert recorder.close(PATIENCE), k
            assert recorder.dropped == 0
        assert place.kept() == {f"run_{n}": [1] for n in range(count)}, k
        if k > faults.count:
            assert k > 8  # runs, steps, what was used, sums, a commit ...
            return
        k += 1


def test_a_record_is_on_the_disk_before_the_call_goes_on_where_that_is_asked_for(place, monkeypatch):
    synced: list[int] = []
    really = journals.sync_to_disk

    def settle(file: int) -> None:
        really(file)
        synced.append(os.fstat(file).st_size)

    monkeypatch.setattr(journals, "sync_to_disk", settle)
    store = Balky(StoreError("away"))
    recorder = place.recorder(lambda: store, fsync=True)
    for n in range(5):
        recorder.put_success(success(f"run_{n}", query="x"))
        recorder(failed(f"run_f{n}", 1))
        assert synced[-1] == recorder.queue.journal.offset  # the file is as long as what was written
    assert len(synced) == 1 + 10  # the folder's, too: a file is gone that has no name
    store.error = None
    assert recorder.close(PATIENCE)


def test_threads_that_wait_for_the_disk_wait_together(place, monkeypatch):
    calls: list[int] = []
    gate = threading.Event()
    really = journals.sync_to_disk

    def settle(file: int) -> None:
        calls.append(file)
        if len(calls) == 2:  # the first is the folder's; the first of the journal's waits for all others
            assert gate.wait(PATIENCE)
        really(file)

    monkeypatch.setattr(journals, "sync_to_disk", settle)
    store = Balky(StoreError("away"))
    recorder = place.recorder(lambda: store, fsync=True)
    threads = [threading.Thread(target=recorder.put_success, args=(success(f"run_{n}"),)) for n in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: recorder.queue.total_queued == 8)
    assert any(thread.is_alive() for thread in threads)
    gate.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(calls) <= 3
    store.error = None
    assert recorder.close(PATIENCE)
    assert len(kept_of(store, [f"run_{n}" for n in range(8)])) == 8


def test_a_store_that_survives_the_machine_commits_to_the_disk(place):
    for fsync, synchronous in ((False, 1), (True, 2)):
        store = SqliteStore(place.store, fsync=fsync)
        with store.writer as writer:
            assert writer.execute("PRAGMA synchronous").fetchone() == (synchronous,)
        store.close()


# Real processes

PREAMBLE = """
    import os, sys
    from pathlib import Path
    from mulligan.core.events import EventStream, RunStarted, StepEnded
    from mulligan.core.records import Run, Step
    from mulligan.redaction import Redactor
    from mulligan.record import recorder as recording
    from mulligan.record.recorder import Recorder
    from mulligan.store.sqlite import SqliteStore

    recording.EXIT_FLUSH_SECONDS = 60.0  # however busy the machine is
    path = Path(sys.argv[1])
    stream = EventStream(Redactor())
    heard = []
    stream.add_listener(heard.append)
    recorder = Recorder(lambda: SqliteStore(path), stream)

    def record(run, count):
        recorder(RunStarted(Run(id=run)))
        for n in range(1, count + 1):
            recorder(StepEnded(Step(run=run, seq=n, call=n)))
"""


def process(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PREAMBLE) + textwrap.dedent(code), str(tmp_path / "a.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def steps_in(tmp_path: Path) -> dict[str, int]:
    store = SqliteStore(tmp_path / "a.db")
    found = {history.run.id: len(history.steps) for history in store.export(DEFAULT_TENANT)}
    store.close()
    return found


@pytest.mark.durability
def test_nothing_is_lost_when_the_process_ends(tmp_path):
    done = process(tmp_path, 'record("run_a", 3000)')
    assert (done.returncode, done.stderr) == (0, "")
    assert steps_in(tmp_path) == {"run_a": 3000}


@pytest.mark.durability
def test_nothing_is_lost_when_an_exception_ends_the_process(tmp_path):
    done = process(tmp_path, 'record("run_a", 300)\nraise SystemExit(3)')
    assert done.returncode == 3
    assert steps_in(tmp_path) == {"run_a": 300}


@pytest.mark.durability
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_records_too_and_the_parents_records_are_not_doubled(tmp_path):
    done = process(
        tmp_path,
        """
        record("run_before", 500)
        child = os.fork()
        if child == 0:
            heard.clear()
            record("run_child", 300)
            recorder.close(30)
            os._exit(0 if len(heard) == 301 and recorder.dropped == 0 else 1)
        record("run_after", 200)
        _, status = os.waitpid(child, 0)
        recorder.flush(30)
        recorder.store.health("local").healthy or sys.exit("damaged")
        sys.exit(os.waitstatus_to_exitcode(status))
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert steps_in(tmp_path) == {"run_before": 500, "run_child": 300, "run_after": 200}


@pytest.mark.durability
def test_a_store_that_hangs_does_not_keep_the_process_from_leaving(tmp_path):
    done = process(
        tmp_path,
        """
        import threading
        from mulligan.store.sqlite import MemoryStore

        class Hanging(MemoryStore):
            def append(self, *args):
                threading.Event().wait()

        recording.EXIT_FLUSH_SECONDS = 0.1
        hanging = Recorder(Hanging, EventStream(Redactor()))
        hanging(RunStarted(Run(id="run_a")))
        """,
    )
    assert done.returncode == 0, done.stderr


def test_all_recorders_together_may_take_what_one_may(monkeypatch):
    now = [100.0]
    given: list[float] = []

    class Hanging:
        def close(self, timeout: float) -> bool:
            given.append(timeout)
            now[0] += timeout
            return False

    monkeypatch.setattr(recording, "recorders", [Hanging(), Hanging(), Hanging()])
    monkeypatch.setattr(recording.time, "monotonic", lambda: now[0])
    recording.close_recorders()

    assert given == [recording.EXIT_FLUSH_SECONDS, 0.0, 0.0]


def test_what_was_dropped_is_counted_in_the_store():
    store = Balky(poison=frozenset({2}))
    recorder = recorder_to(store)
    for n in (1, 2, 3):
        recorder(step(n))
    assert recorder.flush(PATIENCE)
    recorder(step(4))
    assert recorder.flush(PATIENCE)
    assert (recorder.dropped, count_dropped(store, DEFAULT_TENANT)) == (1, 1)
