"""Queue of records that are not stored yet: in memory, and in the journal before the call returns.

Callers append to both. The recorder thread reads from memory, and from the journal what no longer fits into memory.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepStarted
from mulligan.core.fast_path import CallTemplate, SuccessRecord
from mulligan.record import journal_import
from mulligan.record.journal import Journal, event_frame, success_frame
from mulligan.record.journal_import import Backlog, DropCounter, import_batch
from mulligan.store.base import Store

MAX_QUEUED_RECORDS = 50_000
"""Records held in memory while the store is unavailable. Further records are in the journal only."""
CALLER_SPILL_RATIO = 1.5
"""Multiple of `MAX_QUEUED_RECORDS` above which callers spill: a busy program may starve the recorder thread."""
JOURNAL_ROTATE_BYTES = 4 * 1024 * 1024
"""Journal size above which it is rotated as soon as nearly all of its records are stored."""
MAX_ROTATED_RECORDS = 2000
"""Records copied to a new journal while callers are blocked, about a millisecond."""


# Wake-up signals between threads. A signal handler or finalizer may record at any point and then needs the queue lock.
# Its holder must not wait for a lock that the interrupted code holds, as in `Event` and `Condition`, or both deadlock.


class WakeSignal:
    """One-shot wake-up signal that is safe to set from a signal handler.

    `threading.Event.set` takes a non-reentrant lock, so a handler interrupting `set` would deadlock.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # already set
            self._unset.release()

    def wait(self, timeout: float = -1) -> bool:
        return self._unset.acquire(timeout=timeout)


class ProgressSignal:
    """Condition variable without a lock: wakes all waiting threads to check their predicates again."""

    def __init__(self) -> None:
        self._waiting_signals: deque[WakeSignal] = deque()

    def notify_all(self) -> None:
        """Wake all waiting threads. Call it after a change that may satisfy a predicate."""
        with contextlib.suppress(IndexError):
            while True:
                self._waiting_signals.popleft().set()

    def wait_until(self, predicate: Callable[[], bool], deadline: float) -> bool:
        """Block until the predicate holds or the deadline passes. Return whether it holds.

        The deadline is a time of the monotonic clock.
        """
        while not predicate():
            signal = WakeSignal()
            self._waiting_signals.append(signal)
            try:
                # Check again after registering: a notification between check and registration would be missed.
                if not predicate() and not signal.wait(
                    min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
                ):
                    return predicate()
            finally:
                with contextlib.suppress(ValueError):  # already removed by notify_all
                    self._waiting_signals.remove(signal)
        return True


QueuedRecord = tuple[int, AnyEvent | SuccessRecord]
"""Journal end offset (0 if not in a journal) and record. A plain tuple: creating one is part of every call."""


class RecordQueue:
    """Record queue with many producers that never wait for the store and one consumer that confirms stored records."""

    def __init__(
        self,
        journal_folder: Callable[[], Path] | None,
        prepare_template: Callable[[CallTemplate], object],
        fsync: bool = False,
    ) -> None:
        self._journal_folder = journal_folder
        self._fsync = fsync
        """Whether a record must survive a machine crash, not only a process crash, before the call returns."""
        self._prepare_template = prepare_template
        """Compute which parts of a call template may be recorded."""
        self.wake_worker: Callable[[], object] = lambda: None
        """Wake the recorder thread. Set by the recorder."""
        self.reset()

    def reset(self) -> None:
        """Return to the initial state. A forked child starts empty: the parent stores its own records."""
        self.drop_counter = DropCounter()
        self.journal: Journal | None = None
        self._next_journal_at = 0.0
        """Monotonic time of the next attempt to create a journal."""
        self.queued: deque[QueuedRecord] = deque()
        self._in_flight: list[QueuedRecord] = []
        """The oldest records: removed from the queue for writing, not stored yet."""
        self._is_spilling = False
        self._spilled_offset = 0
        """Journal offset up to which records were removed from memory and are in the journal only."""
        self._stored_offset = 0
        """Journal offset up to which records are stored."""
        self.backlog = Backlog(self.warn_rate_limited)
        self._next_handover_at = 0.0
        self._open_runs: dict[str, RunStarted] = {}
        self.stored_count = 0
        # Reentrant: a signal handler or finalizer may record while this thread is recording.
        self._lock = threading.RLock()
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self.is_worker_idle = True
        """Whether the recorder thread must be woken for a new record."""
        self.progress = ProgressSignal()

    def abandon(self) -> None:
        """Reset in a forked child and close the file handles. The journal files belong to the parent."""
        journals = [self.journal, *self.backlog.journals]
        self.reset()
        for journal in filter(None, journals):
            journal.abandon()

    def warn_rate_limited(self, topic: str, message: str) -> None:
        self.drop_counter.warn_rate_limited(topic, message, len(self._in_flight) + len(self.queued))

    # Called by producers

    def put_event(self, event: AnyEvent) -> None:
        if isinstance(event, RunStarted):
            self._open_runs[event.run.id] = event
        elif isinstance(event, RunEnded):
            self._open_runs.pop(event.run.id, None)
        frame = None
        if self._journal_folder is not None and not isinstance(event, StepStarted):
            try:
                frame = event_frame(event)
            except Exception as error:  # noqa: BLE001 - the recorder thread decides whether it is storable
                self.warn_rate_limited("frame", f"Cannot encode a record ({error})")
        self._put(frame, event)

    def put_success(self, success: SuccessRecord, journal_form: Sequence[Any] | None = None) -> None:
        """Queue a success. `journal_form` is the result of `journal_values` if it is already computed."""
        frame = None
        if self._journal_folder is not None:
            try:
                if success.template.journal_prefixes is None:
                    self._prepare_template(success.template)
                frame = success_frame(success, journal_form)
            except Exception as error:  # noqa: BLE001 - the recorder thread decides whether it is storable
                self.warn_rate_limited("frame", f"Cannot encode a record ({error})")
        self._put(frame, success)

    def _put(self, frame: bytes | None, record: AnyEvent | SuccessRecord) -> None:
        # The frame is encoded before the lock is taken, to keep the critical section short.
        offset = 0
        journal = None
        self._acquire()  # explicit acquire/release: a with block doubles the cost of this hot path
        try:
            if frame is not None:
                journal = self.journal or self._begin_journal()
                if journal is not None:
                    if journal.offset > journal_import.MAX_JOURNAL_BYTES and not self._has_room(journal, record):
                        self.drop_counter.dropped += 1
                        return
                    try:
                        offset = journal.write(frame)
                    except Exception as error:  # noqa: BLE001 - the record is still queued in memory
                        self.warn_rate_limited("journal", f"Cannot write the journal ({error})")
            self.queued.append((offset, record))
        finally:
            self._release()
        if len(self.queued) > CALLER_SPILL_RATIO * MAX_QUEUED_RECORDS:
            self._spill()
        if self.is_worker_idle:
            self.wake_worker()
        if self._fsync and offset and journal is not None:
            self._sync(journal, offset)

    def _sync(self, journal: Journal, offset: int) -> None:
        # Without the lock: other threads write meanwhile, and one fsync covers all of them.
        try:
            journal.sync(offset)
        except Exception as error:  # noqa: BLE001 - the record is still queued in memory
            self.warn_rate_limited("fsync", f"Cannot sync the journal to disk ({error})")

    def _has_room(self, journal: Journal, record: AnyEvent | SuccessRecord) -> bool:
        # Last resort: the recorder thread, which enforces the limits, is blocked in the store.
        self.warn_rate_limited(
            "full", f"Journal {journal.path} is full, dropping successes until the store is writable"
        )
        return not isinstance(record, SuccessRecord) and journal.offset <= 2 * journal_import.MAX_JOURNAL_BYTES

    def _begin_journal(self) -> Journal | None:
        """Create the journal of this process. Return `None` if that fails, and retry after a delay."""
        now = time.monotonic()
        if self._journal_folder is None or now < self._next_journal_at:
            return None
        self._next_journal_at = now + 10  # set first: a reentrant call must not create another
        try:
            self.journal = self.new_journal(self._journal_folder())
            self._next_journal_at = 0.0
        except Exception as error:  # noqa: BLE001 - the record is still queued in memory
            self.warn_rate_limited("journal", f"Cannot create a journal ({error}); a killed process would lose records")
        return self.journal

    def new_journal(self, folder: Path) -> Journal:
        return Journal(folder, self._fsync)

    # Called by waiting threads

    @property
    def total_queued(self) -> int:
        with self._lock:  # records move between these three, and must be counted once
            return self.stored_count + len(self._in_flight) + len(self.queued)

    @property
    def is_behind(self) -> bool:
        """Return whether some unstored records are in a journal only."""
        return bool(self._spilled_offset or self.backlog.journals)

    @property
    def has_more(self) -> bool:
        return bool(self.queued or self._in_flight) or self.is_behind

    def has_stored(self, target_count: int) -> bool:
        return self.stored_count >= target_count and not self.is_behind

    # Called by the recorder thread

    def next_batch(self) -> tuple[list[QueuedRecord], str | None, int]:
        """Return the oldest records, the name of their journal if any, and the end offset of the last record.

        The batch is empty while older records are in a journal only, to keep the order.
        """
        with self._lock:  # no producer is between its journal write and its queue append
            if self.is_behind:
                return [], None, 0
            pop_oldest = self.queued.popleft
            batch = self._in_flight = [pop_oldest() for _ in range(min(journal_import.BATCH_RECORDS, len(self.queued)))]
            end_offset = max(map(itemgetter(0), batch), default=0)
            # Already imported from the journal with later records: ids prevent duplicates.
            if end_offset <= self._stored_offset:
                end_offset = 0
            # A record from a signal handler precedes the interrupted record in the queue and follows it in the
            # journal. Both go into one batch, because the offset covers both.
            while self.queued and 0 < self.queued[0][0] < end_offset:
                batch.append(pop_oldest())
            return batch, self.journal.name if self.journal is not None and end_offset else None, end_offset

    def mark_stored(self, stored_offset: int = 0) -> None:
        """Confirm that the in-flight records, and the journal up to this offset, are stored."""
        with self._lock:
            self._stored_offset = stored_offset or self._stored_offset
            self.stored_count += len(self._in_flight)
            self._in_flight = []
            self.progress.notify_all()

    def drop_unstorable(self, storable: Collection[QueuedRecord]) -> None:
        """Reduce the in-flight records to the storable ones. The others are dropped and counted."""
        with self._lock:
            dropped_count = len(self._in_flight) - len(storable)
            self._in_flight = list(storable)
            self.drop_counter.dropped += dropped_count
            self.stored_count += dropped_count
            self.progress.notify_all()

    def import_backlog(self, store: Store, tenant: str) -> None:
        """Import some records that are in journals only: first from the backlog, then from the current journal."""
        if self.backlog.journals:
            self.backlog.import_batch(store, tenant, self._count_dropped)
        elif self.journal is not None:
            self._stored_offset = import_batch(store, tenant, self.journal, self._spilled_offset, self._count_dropped)
        with self._lock:
            if self._stored_offset >= self._spilled_offset:  # otherwise callers spilled more meanwhile
                self._spilled_offset = 0
            self.progress.notify_all()

    def enforce_limits(self, is_store_open: bool) -> None:
        """Requeue unconfirmed records, then apply the limits of memory and journal size."""
        if self._in_flight:
            self._requeue_in_flight()
        if len(self.queued) > MAX_QUEUED_RECORDS:
            self._spill()
        journal = self.journal
        if journal is None or journal.offset <= journal_import.MAX_JOURNAL_BYTES // journal_import.JOURNALS_PER_LIMIT:
            return
        if is_store_open and self._stored_offset + JOURNAL_ROTATE_BYTES > journal.offset:
            return  # the store keeps up: rotation will replace the journal
        if time.monotonic() >= self._next_handover_at:
            self._hand_over_journal(journal)

    def _requeue_in_flight(self) -> None:
        with self._lock:
            batch, self._in_flight = self._in_flight, []
            # Records up to the spilled offset are imported from the journal.
            requeued = [queued_record for queued_record in batch if not 0 < queued_record[0] <= self._spilled_offset]
            self.queued.extendleft(reversed(requeued))
            self.stored_count += len(batch) - len(requeued)

    def _spill(self) -> None:
        """Remove journaled records from memory. Of the others, drop and count the oldest, successes first."""
        with self._lock:
            if self._is_spilling:  # reentrant call from a signal handler or finalizer
                return
            self._is_spilling = True
            try:
                before = excess = len(self.queued) - MAX_QUEUED_RECORDS
                unwritten: list[QueuedRecord] = []
                for _ in range(len(self.queued)):
                    if excess <= 0:
                        break
                    queued_record = self.queued.popleft()
                    if queued_record[0]:
                        self._spilled_offset = max(self._spilled_offset, queued_record[0])
                        excess -= 1
                    else:
                        unwritten.append(queued_record)
                if excess > 0:  # these were recorded without a journal
                    ranked = sorted(
                        range(len(unwritten)), key=lambda index: not isinstance(unwritten[index][1], SuccessRecord)
                    )
                    dropped_indexes = frozenset(ranked[:excess])
                    unwritten = [
                        queued_record for index, queued_record in enumerate(unwritten) if index not in dropped_indexes
                    ]
                    self.drop_counter.dropped += len(dropped_indexes)
                    excess -= len(dropped_indexes)
                self.queued.extendleft(reversed(unwritten))
                self.stored_count += before - excess
                self.progress.notify_all()
            finally:
                self._is_spilling = False

    def _hand_over_journal(self, journal: Journal) -> None:
        """Move a large journal to the backlog and start a new one: the store is unavailable or too slow."""
        if self._journal_folder is None:
            return
        try:
            new = self.new_journal(self._journal_folder())
            with self._lock:
                try:
                    for started in tuple(self._open_runs.values()):
                        new.write(event_frame(started))
                except BaseException:
                    self.backlog.remove(new)  # journal recovery would report its runs as abandoned
                    raise
                remaining = deque(queued_record for queued_record in self.queued if not queued_record[0])
                # First: otherwise a flush could see the records as stored.
                self.backlog.add_journal(journal, self._stored_offset)
                self.stored_count += len(self.queued) - len(remaining)
                self.queued = remaining
                self.journal, self._stored_offset, self._spilled_offset = new, 0, 0
                self.progress.notify_all()
            self.backlog.drop_oldest(self._count_dropped)
        except Exception as error:  # noqa: BLE001 - the current journal stays in use
            self._next_handover_at = time.monotonic() + 1.0
            self.warn_rate_limited("journal", f"Cannot rotate the journal ({error})")

    def _count_dropped(self, count: int) -> None:
        with self._lock:
            self.drop_counter.dropped += count

    def rotate_journal(self) -> None:
        """Replace a large journal by a new one that has only the few records not stored yet."""
        old = self.journal
        if (
            old is None
            or old.offset < JOURNAL_ROTATE_BYTES
            or self._journal_folder is None
            or not self._is_nearly_empty()
        ):
            return
        try:
            new = self.new_journal(self._journal_folder())
        except Exception as error:  # noqa: BLE001 - the old journal stays in use
            self.warn_rate_limited("journal", f"Cannot rotate the journal ({error})")
            return
        with self._lock:
            end = old.offset
            try:
                if not self._is_nearly_empty():  # producers were faster
                    self.backlog.remove(new)
                    return
                for started in tuple(self._open_runs.values()):
                    new.write(event_frame(started))  # journal recovery must know the open runs
                offset_shift = new.offset - self._stored_offset
                new.write(old.read_from(self._stored_offset))
                if self._fsync:
                    new.sync(new.offset)  # callers waiting to sync the old journal rely on this
                moved_records = deque((offset and offset + offset_shift, record) for offset, record in self.queued)
            except Exception as error:  # noqa: BLE001 - the old journal stays in use
                self.warn_rate_limited("journal", f"Cannot rotate the journal ({error})")
                self.backlog.remove(new)
                return
            is_unchanged = old.offset == end and len(moved_records) == len(self.queued)
            if is_unchanged:  # otherwise a finalizer recorded meanwhile
                self.journal, self.queued, self._stored_offset = new, moved_records, 0
        self.backlog.remove(old if is_unchanged else new)

    def _is_nearly_empty(self) -> bool:
        """Return whether few records are queued and none is in flight or spilled: copying them is short."""
        return not self._spilled_offset and not self._in_flight and len(self.queued) <= MAX_ROTATED_RECORDS

    def release_journal(self) -> bool:
        """Remove the journal if all records are stored and no run is open. Return whether all are stored."""
        with self._lock:
            journal = None
            is_all_stored = not self.has_more
            # Otherwise keep it: other processes recover it after this process ends.
            if is_all_stored and not self._open_runs:
                journal, self.journal, self._stored_offset = self.journal, None, 0
        if journal is not None:
            self.backlog.remove(journal)
        return is_all_stored
