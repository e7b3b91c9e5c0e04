"""Moves events into the store in batches: nothing lost, nothing doubled, nobody blocked.

Waiting here is on a condition with a bound, never on a clock.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mulligan.events import AnyEvent, StepEnded, Stream
from mulligan.failure import StoreError
from mulligan.records import Step, encode
from mulligan.redaction import Redactor
from mulligan.remember import recorder as recording
from mulligan.remember.memory import MemoryStore
from mulligan.remember.recorder import Recorder
from mulligan.remember.sqlite import SqliteStore
from mulligan.remember.store import LOCAL

PATIENCE = 30.0
"""Seconds until a wait that should have ended counts as a failed test."""


def step(seq: int, **fields: Any) -> StepEnded:
    return StepEnded(Step(run="run_a", seq=seq, call=seq, **fields))


def recorder_to(store: Any, stream: Stream | None = None) -> Recorder:
    return Recorder(lambda: store, stream or Stream(Redactor()))


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
    return store.health(LOCAL).steps


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
    stream = Stream(Redactor())
    heard: list[AnyEvent] = []
    stream.listen(heard.append)
    recorder = Recorder(lambda: SqliteStore(tmp_path / "a.db"), stream)
    recorder(step(1))
    opened = recorder

    assert opened.close(PATIENCE)

    assert recorder.store is None
    assert len(heard) == 1
    store = SqliteStore(tmp_path / "a.db")
    assert store.health(LOCAL).steps == 1
    store.close()


def test_an_event_after_the_close_opens_the_store_again(tmp_path):
    recorder = Recorder(lambda: SqliteStore(tmp_path / "a.db"), Stream(Redactor()))
    recorder(step(1))
    recorder.close(PATIENCE)
    recorder(step(2))
    assert recorder.close(PATIENCE)
    store = SqliteStore(tmp_path / "a.db")
    assert store.health(LOCAL).steps == 2
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

    recorder = Recorder(opening, Stream(Redactor()))
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


def test_beyond_its_capacity_the_oldest_are_dropped_and_counted(monkeypatch):
    monkeypatch.setattr(recording, "CAPACITY", 100)
    store = Balky(StoreError("full"))
    recorder = recorder_to(store)
    for n in range(1, 151):
        recorder(step(n))
    store.wait_until_asked(3)  # the second look, at the latest, has made room
    store.error = None

    assert recorder.flush(PATIENCE)
    assert recorder.dropped == 50
    assert [each.seq for each in store._steps_of(LOCAL, "run_a")] == list(range(51, 151))


def test_listeners_are_told_of_what_was_kept_and_their_faults_are_logged_once(caplog):
    stream = Stream(Redactor())
    heard: list[AnyEvent] = []

    def broken(event: AnyEvent) -> None:
        raise ValueError("broken")

    stream.listen(broken)
    stream.listen(heard.append)
    recorder = recorder_to(MemoryStore(), stream)
    stream.carry(recorder)
    for n in range(1, 6):
        stream.publish(step(n))
    recorder.close(PATIENCE)

    assert [event.step.seq for event in heard] == [1, 2, 3, 4, 5]
    assert len([each for each in caplog.records if "a listener failed" in each.getMessage()]) == 1


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


# Real processes

PREAMBLE = """
    import os, sys
    from pathlib import Path
    from mulligan.events import RunStarted, StepEnded, Stream
    from mulligan.records import Run, Step
    from mulligan.redaction import Redactor
    from mulligan.remember.recorder import Recorder
    from mulligan.remember.sqlite import SqliteStore

    path = Path(sys.argv[1])
    stream = Stream(Redactor())
    heard = []
    stream.listen(heard.append)
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
    found = {history.run.id: len(history.steps) for history in store.export(LOCAL)}
    store.close()
    return found


def test_nothing_is_lost_when_the_process_ends(tmp_path):
    done = process(tmp_path, 'record("run_a", 3000)')
    assert (done.returncode, done.stderr) == (0, "")
    assert steps_in(tmp_path) == {"run_a": 3000}


def test_nothing_is_lost_when_an_exception_ends_the_process(tmp_path):
    done = process(tmp_path, 'record("run_a", 300)\nraise SystemExit(3)')
    assert done.returncode == 3
    assert steps_in(tmp_path) == {"run_a": 300}


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
            recorder.close()
            os._exit(0 if len(heard) == 301 and recorder.dropped == 0 else 1)
        record("run_after", 200)
        _, status = os.waitpid(child, 0)
        recorder.flush()
        recorder.store.health("local").sound or sys.exit("damaged")
        sys.exit(os.waitstatus_to_exitcode(status))
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert steps_in(tmp_path) == {"run_before": 500, "run_child": 300, "run_after": 200}


def test_a_store_that_hangs_does_not_keep_the_process_from_leaving(tmp_path):
    done = process(
        tmp_path,
        """
        import threading
        from mulligan.remember import recorder as recording
        from mulligan.remember.memory import MemoryStore

        class Hanging(MemoryStore):
            def append(self, *args):
                threading.Event().wait()

        recording.EXIT = 0.1
        hanging = Recorder(Hanging, Stream(Redactor()))
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

    monkeypatch.setattr(recording, "_recorders", [Hanging(), Hanging(), Hanging()])
    monkeypatch.setattr(recording.time, "monotonic", lambda: now[0])
    recording._at_exit()

    assert given == [recording.EXIT, 0.0, 0.0]
