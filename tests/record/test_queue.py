"""What was recorded and is not kept yet: bounded in memory by whoever records, and whole, however late the store is."""

from __future__ import annotations

import errno
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import stored_seqs, success_record

from mulligan import journal as journals
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import AnyEvent, EventStream, RecoveryPlanned, RunStarted, StepEnded, StepStarted
from mulligan.core.failure import Failure, Kind, Remedy, StoreError
from mulligan.core.records import Recovery, Run, Step
from mulligan.record import journal_import, queue
from mulligan.record.journal_import import recover_journals
from mulligan.record.recorder import Recorder
from mulligan.redaction import Redactor
from mulligan.store.sqlite import MemoryStore

CAPACITY = 20


class Slow(MemoryStore):
    """Something may happen while it keeps a batch, and then it may fail: before it has kept it, or after."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile = 0
        self.fails = ""
        self.poison = ""
        """A run that it can never keep."""
        self.calls = lambda count: None

    def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int, principal: str = "") -> int:
        self.calls(self.meanwhile)
        self.meanwhile = 0
        if self.fails == "before":
            raise StoreError("away")
        if any(isinstance(event, StepEnded) and event.step.run == self.poison for event in batch):
            raise OverflowError("too large for a column")
        kept = super().append(tenant, batch, journal, offset, principal)
        if self.fails == "after":
            raise StoreError("the answer did not come")
        return kept


class Host:
    """A process whose recorder takes its turns when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Slow()
        self.store.calls = self.work
        stream = EventStream(Redactor())
        self.recorder = Recorder(lambda: self.store, stream, journal_folder=lambda: folder)
        self.recorder.start_thread = lambda: None  # type: ignore[method-assign]
        stream.set_sink(self.recorder)
        self.made: list[str] = []
        self.unwritten: list[str] = []

    def work(self, count: int) -> None:
        for _ in range(count):
            run = f"run_{len(self.made):05}"
            self.made.append(run)
            about = Run(id=run, started_at=1000)
            self.recorder.put_success(success_record(run, 1, {"n": 1}, about))

    def fail(self, is_written: bool) -> None:
        run = f"run_{len(self.made):05}"
        self.made.append(run)
        if not is_written:
            self.unwritten.append(run)
        failure = Failure.of(Kind("tool", "timeout"), "late")
        name = "search" if is_written else "unwritable"
        self.recorder(StepEnded(Step(run=run, seq=1, call=1, name=name, outcome="failure", failure=failure)))

    def turn(self, meanwhile: int, fails: str) -> None:
        self.store.meanwhile, self.store.fails = meanwhile, fails
        self.recorder.next_write_at = 0.0
        self.recorder.run_round()
        self.store.meanwhile, self.store.fails = 0, ""

    def settle(self) -> None:
        for _ in range(10_000):
            if not self.recorder.queue.has_more:
                return
            self.turn(0, "")
        raise AssertionError("it never comes to an end")

    def kept(self) -> list[str]:
        return [run for run in self.made if stored_seqs(self.store, run) == [1]]


@pytest.fixture(scope="module", autouse=True)
def small():
    """Everything is small, so that little happens often."""
    written = journals.event_frame

    def writing(event: AnyEvent) -> bytes:
        if isinstance(event, StepEnded) and event.step.name == "unwritable":
            raise ValueError("it cannot be written down")
        return written(event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "MAX_QUEUED_RECORDS", CAPACITY)
        patch.setattr(queue, "JOURNAL_ROTATE_BYTES", 1500)
        patch.setattr(queue, "event_frame", writing)
        patch.setattr(journal_import, "BATCH_RECORDS", 7)
        patch.setattr(journal_import, "MAX_IMPORTED_BATCHES", 2)
        patch.setattr(journal_import, "MAX_JOURNAL_BYTES", 30_000)
        patch.setattr(journals, "PREALLOCATED_BYTES", 1000)
        yield


happenings = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.integers(1, 60)),
        st.tuples(st.just("fail"), st.booleans()),
        st.tuples(st.just("turn"), st.integers(0, 60), st.sampled_from(["", "", "before", "after"])),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(happenings, st.booleans())
def test_however_callers_and_the_store_come_between_each_other_all_is_kept_once(happened, is_killed):
    with tempfile.TemporaryDirectory() as folder:
        host = Host(Path(folder))
        for what, *about in happened:
            getattr(host, what)(*about)
        recorder = host.recorder
        if is_killed:
            for journal in filter(None, (recorder.queue.journal, *recorder.queue.full_journals)):
                journal.abandon()
            known = set(host.kept())
            recover_journals(host.store, DEFAULT_TENANT, Path(folder))
            lost = set(host.made) - set(host.kept())
            assert lost <= set(host.unwritten) - known or recorder.dropped
        else:
            host.settle()
            # Only what is counted is missing. What a store has kept without saying so may be counted too.
            assert len(host.made) - len(host.kept()) <= recorder.dropped
            assert recorder.close(5.0)
            assert list(Path(folder).iterdir()) == []


def test_a_host_that_never_lets_the_recorder_work_holds_no_more_than_half_as_much_again(tmp_path):
    host = Host(tmp_path)
    for _ in range(20):
        host.work(10)
        assert len(host.recorder.queue.queued) <= 1.5 * CAPACITY + 10  # a thousand bytes are ten calls
    host.settle()
    assert host.kept() == host.made


def test_what_is_in_hand_is_not_let_go_while_it_is_on_its_way(tmp_path):
    host = Host(tmp_path)
    host.work(10)
    host.turn(meanwhile=100, fails="")
    assert host.kept() == host.made[:7]
    host.settle()
    assert host.kept() == host.made


def test_a_batch_that_failed_while_later_calls_were_let_go_is_brought_in_with_them(tmp_path):
    host = Host(tmp_path)
    host.work(10)
    host.turn(meanwhile=100, fails="before")
    assert host.kept() == []
    host.settle()
    assert host.kept() == host.made


def test_events_for_listeners_alone_are_not_journaled(tmp_path):
    recorder = Host(tmp_path).recorder
    step = Step(run="r", seq=1, call=1, name="fetch")
    recorder(StepEnded(step))
    journal = recorder.queue.journal
    assert journal is not None
    journaled_bytes = journal.offset
    recorder(StepStarted(step))
    recorder(RecoveryPlanned(step, Recovery(remedy=Remedy.RETRY)))
    assert journal.offset == journaled_bytes > 0
    assert len(recorder.queue.queued) == 3  # listeners on the recorder's thread get them


def test_what_is_in_no_journal_is_kept_although_later_calls_were_let_go(tmp_path):
    host = Host(tmp_path)
    host.work(3)
    host.fail(is_written=False)
    host.turn(meanwhile=100, fails="before")
    host.work(200)
    host.settle()
    assert host.kept() == host.made


@pytest.mark.parametrize("place", range(21, 28))
def test_a_record_that_can_never_be_kept_costs_itself_alone_where_the_journal_has_grown_long(tmp_path, place):
    host = Host(tmp_path)
    host.store.poison = f"run_{place:05}"
    for _ in range(10):
        host.work(7)
        host.turn(0, "")
    host.settle()
    assert host.kept() == [run for run in host.made if run != host.store.poison]
    assert host.recorder.dropped == 1
    assert host.recorder.close(5.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", [0, 16, 40, 99])
def test_a_record_that_can_never_be_kept_holds_up_nothing_where_it_waits_in_a_journal_alone(tmp_path, place):
    host = Host(tmp_path)
    host.store.poison = f"run_{place:05}"
    host.work(100)
    host.settle()
    assert host.kept() == [run for run in host.made if run != host.store.poison]
    assert host.recorder.dropped == 1
    assert host.recorder.close(5.0)


@pytest.mark.parametrize("later", [5, 100])
def test_a_record_that_can_never_be_kept_holds_up_nothing_where_a_journal_has_no_other(tmp_path, later):
    host = Host(tmp_path)
    host.store.poison = "run_00000"
    host.work(1)
    host.recorder.queue.rotate_journal(1)
    host.work(later)
    host.settle()
    assert host.kept() == host.made[1:]
    assert host.recorder.dropped == 1
    assert host.recorder.close(5.0)
    assert list(tmp_path.iterdir()) == []


def test_a_journal_that_is_released_while_another_is_begun_takes_nothing_with_it(tmp_path, monkeypatch):
    """Somebody closes the recorder, and somebody else records, while the recorder thread begins a journal."""
    host = Host(tmp_path)
    taken = host.recorder.queue
    host.work(3)
    host.settle()
    begin = taken.new_journal

    def begin_late(folder: Path) -> journals.Journal:
        monkeypatch.setattr(taken, "new_journal", begin)
        new = begin(folder)
        assert taken.release_journals()
        host.work(3)
        return new

    monkeypatch.setattr(taken, "new_journal", begin_late)
    taken.rotate_journal(1)
    host.settle()
    host.work(60)
    host.settle()
    assert host.kept() == host.made
    assert host.recorder.close(5.0)
    assert list(tmp_path.iterdir()) == []


def test_a_journal_that_cannot_be_begun_leaves_no_open_run_behind_for_others_to_end(tmp_path, monkeypatch):
    def on_a_full_disk(folder: Path) -> journals.Journal:
        journal = journals.Journal(folder)
        journal.write(journals.event_frame(RunStarted(Run(id="run_open", started_at=1))))
        monkeypatch.setattr(journal, "write", fails)
        made.append(journal.path)
        return journal

    def fails(frame: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    made: list[Path] = []
    host = Host(tmp_path)
    host.recorder(RunStarted(Run(id="run_open", started_at=1)))
    host.work(1)
    monkeypatch.setattr(host.recorder.queue, "new_journal", on_a_full_disk)
    host.work(200)
    host.turn(0, "before")
    assert made
    assert not any(path.exists() for path in made)
    host.settle()
    assert host.kept() == host.made


def test_a_signal_handler_may_record_anywhere_in_a_flush_whatever_the_recorder_does_meanwhile(tmp_path):
    host = Host(tmp_path)
    taken = host.recorder.queue
    host.recorder.thread = threading.Thread()  # which comes to nothing
    places, stuck = [], []

    def interrupt(frame: FrameType, event: str, arg: object) -> object:
        """Between any two lines, the recorder's thread takes a batch and a signal comes."""
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {event}"
        if "mulligan" not in frame.f_code.co_filename and "threading" not in frame.f_code.co_filename:
            return None
        other = threading.Thread(target=taken.next_batch, daemon=True)
        other.start()
        other.join(0.05)  # else it waits for a lock that is held here
        places.append(place)
        if taken._lock.acquire(timeout=0.2):  # as a record does
            taken._lock.release()
        else:
            stuck.append(place)
            return None
        return interrupt

    host.work(3)
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        host.recorder.flush(0.01)
    finally:
        sys.settrace(before)
        host.recorder.thread = None
    assert len(places) > 20
    assert stuck == []


def test_what_the_journal_has_brought_in_already_takes_nothing_with_it_that_is_in_none(tmp_path):
    """A signal handler's record is in the queue before the one it interrupted, and in the journal after it."""
    host = Host(tmp_path)
    host.work(5)
    early = host.recorder.queue.queued[0]
    host.turn(meanwhile=0, fails="")
    host.recorder.queue.queued.append(early)
    host.fail(is_written=False)
    host.settle()
    assert host.kept() == host.made


def test_what_waits_in_a_journal_alone_is_kept_although_somebody_has_removed_the_file(tmp_path):
    host = Host(tmp_path)
    host.work(200)
    for path in tmp_path.glob("*.journal"):
        path.unlink()
    host.settle()
    assert host.kept() == host.made


@pytest.mark.durability
def test_a_host_that_does_nothing_but_call_does_not_starve_the_recorder(tmp_path):
    """Through the real boundary: a process whose only thread but ours never waits for anything."""
    script = """
        import mulligan, sys
        from mulligan.store.sqlite import SqliteStore

        kept = []
        append = SqliteStore.append

        def counted(store, *given):
            kept.append(append(store, *given))

        SqliteStore.append = counted

        @mulligan.tool
        def double(number):
            return 2 * number

        calls = 0
        while calls < 1_000_000:
            for _ in range(1000):
                double(calls)
                calls += 1
            if kept:
                break
        else:
            sys.exit(f"nothing is in the store after {calls} calls")
        intake = mulligan.api.default._components.recorder.queue
        assert len(intake.queued) < 100_000, len(intake.queued)
        """
    environment = {"MULLIGAN_HOME": str(tmp_path), "PATH": "", "PYTHONPATH": ":".join(filter(None, sys.path))}
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=environment, timeout=120, check=False)
    assert child.returncode == 0
