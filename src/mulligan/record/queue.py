"""Queue of records that are not stored yet: in memory, and in the journal before the call returns.

Callers append to both. The recorder thread reads from memory, and from the journal what no longer fits into memory.
A large journal is rotated: records go to a new one, and the old one is removed when all of its records are stored. A
position is the offset of a record plus the first position of its journal, so positions grow from journal to journal.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from mulligan.contract.store import Store
from mulligan.core.events import AnyEvent, EventStream, RecoveryPlanned, RunEnded, RunStarted, StepStarted
from mulligan.core.fast_path import SuccessRecord, redact_records
from mulligan.core.log import get_logger
from mulligan.journal import Journal, event_frame, success_frame
from mulligan.record import journal_import

log = get_logger(__name__)

MAX_QUEUED_RECORDS = 50_000
"""Records held in memory while the store is unavailable. Further records are in the journal only."""
JOURNAL_ROTATE_BYTES = 4 * 1024 * 1024
"""Journal size above which the journal is rotated while the store keeps up."""
JOURNALS_PER_LIMIT = 4
"""Journals that share `MAX_JOURNAL_BYTES` while the store is unavailable. The oldest is reduced first."""
JOURNAL_SPAN = 2**40
"""Distance between the first positions of two journals; larger than any journal."""
WARNING_INTERVAL_SECONDS = 60.0


class WakeSignal:
    """One-shot wake-up signal that is safe to set from a signal handler.

    `threading.Event.set` takes a non-reentrant lock, so a handler interrupting `set` would deadlock.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        try:  # noqa: SIM105 - `suppress` would add three calls to a user's call that wakes the recorder
            self._unset.release()
        except RuntimeError:  # already set
            pass

    def wait(self, timeout: float = -1) -> bool:
        return self._unset.acquire(timeout=timeout)


QueuedRecord = tuple[int, AnyEvent | SuccessRecord]
"""End position (0 if not in a journal) and record. A plain tuple: creating one is part of every call."""


_UNSTORED_EVENTS = (StepStarted, RecoveryPlanned)
"""Events for listeners only. No journal needs them."""


class RecordQueue:
    """Record queue with many producers that never wait for the store and one consumer that confirms stored records."""

    def __init__(
        self,
        journal_folder: Callable[[], Path] | None,
        stream: EventStream,
        fsync: bool = False,
    ) -> None:
        self._journal_folder = journal_folder
        self._fsync = fsync
        """Whether a record must survive a machine crash, not only a process crash, before the call returns."""
        self._stream = stream
        self._caller_listeners = stream.caller_listeners
        self.wake_worker: Callable[[], object] = lambda: None
        """Wake the recorder thread. Set by the recorder."""
        self.reset()

    def reset(self) -> None:
        """Return to the initial state. A forked child starts empty: the parent stores its own records."""
        self.dropped = 0
        self._reported_dropped = 0
        """Number of dropped records that were added to the count in the store."""
        self._last_warned_at: dict[str, float] = {}
        self.journal: Journal | None = None
        self.full_journals: list[Journal] = []
        """Rotated journals, the oldest first. Some of their records are not stored yet."""
        self._last_position = 0
        """First position of the last journal."""
        self._next_journal_at = 0.0
        """Monotonic time of the next attempt to create a journal."""
        self.queued: deque[QueuedRecord] = deque()
        self._in_flight: list[QueuedRecord] = []
        """The oldest records: removed from the queue for writing, not stored yet."""
        self._is_spilling = False
        self._spilled_position = 0
        """Position up to which records were removed from memory and are in a journal only."""
        self._stored_position = 0
        """Position up to which journaled records are stored."""
        self._open_runs: dict[str, RunStarted] = {}
        self.stored_count = 0
        # Reentrant: a signal handler or finalizer may record while this thread is recording.
        self._lock = threading.RLock()
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self.is_worker_idle = True
        """Whether the recorder thread must be woken for a new record."""

    def abandon(self) -> None:
        """Reset in a forked child and close the file handles. The journal files belong to the parent."""
        journals = [*self.full_journals, self.journal]
        self.reset()
        for journal in filter(None, journals):
            journal.abandon()

    def warn_rate_limited(self, topic: str, message: str) -> None:
        now = time.monotonic()
        if now - self._last_warned_at.get(topic, -WARNING_INTERVAL_SECONDS) >= WARNING_INTERVAL_SECONDS:
            self._last_warned_at[topic] = now
            queued_count = len(self._in_flight) + len(self.queued)
            log.warning("%s (queued=%d dropped=%d)", message, queued_count, self.dropped)

    def note_available(self) -> None:
        """Log that the store is available again, if it was reported as unavailable."""
        if self._last_warned_at.pop("store", None) is not None:
            log.warning("Store available again, queued records are being stored.")

    @contextlib.contextmanager
    def guard(self, topic: str, consequence: str) -> Iterator[None]:
        """Log an error of the recorder thread and continue."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the recorder thread must not die
            self.warn_rate_limited(topic, f"{consequence}: {error}")

    # Called by producers

    def put_event(self, event: AnyEvent) -> None:
        if isinstance(event, RunStarted):
            self._open_runs[event.run.id] = event
        elif isinstance(event, RunEnded):
            self._open_runs.pop(event.run.id, None)
        frame = None
        if self._journal_folder is not None and not isinstance(event, _UNSTORED_EVENTS):
            try:
                frame = event_frame(event)
            except Exception as error:  # noqa: BLE001 - the recorder thread decides whether it is storable
                self.warn_rate_limited("frame", f"Cannot encode a record ({error})")
        self._put(frame, event)

    def put_success(self, success: SuccessRecord, journal_form: Sequence[Any] | None = None) -> None:
        """Queue a success, or publish it if it has listeners in this thread. `journal_form`: see `success_frame`."""
        if self._caller_listeners:
            for event in success.to_events():
                self._stream.publish(event)
            return
        frame = None
        try:
            if success.template.journal_prefixes is None:
                success.template.prepare(self._stream.record_redactor)
            if self._journal_folder is not None:
                frame = success_frame(success, journal_form)
        except Exception as error:  # noqa: BLE001 - the recorder thread decides whether it is storable
            self.warn_rate_limited("frame", f"Cannot encode a record ({error})")
        self._put(frame, success)

    def _put(self, frame: bytes | None, record: AnyEvent | SuccessRecord) -> None:
        # The frame is encoded before the lock is taken, to keep the critical section short.
        position = 0
        journal = None
        self._acquire()  # explicit acquire/release: a with block doubles the cost of this hot path
        try:
            if frame is not None:
                journal = self.journal or self._begin_journal()
                if journal is not None:
                    if journal.offset > journal_import.MAX_JOURNAL_BYTES and not self._has_room(journal, record):
                        self.dropped += 1
                        return
                    try:
                        position = journal.first_position + journal.write(frame)
                    except Exception as error:  # noqa: BLE001 - the record is still queued in memory
                        self.warn_rate_limited("journal", f"Cannot write the journal ({error})")
            self.queued.append((position, record))
        finally:
            self._release()
        # Multiple of `MAX_QUEUED_RECORDS` above which callers spill: a busy program may starve the recorder thread.
        if len(self.queued) > 1.5 * MAX_QUEUED_RECORDS:
            self._spill()
        if self.is_worker_idle:
            self.wake_worker()
        if self._fsync and position and journal is not None:
            try:  # without the lock: other threads write meanwhile, and one fsync covers all of them
                journal.sync(position - journal.first_position)
            except Exception as error:  # noqa: BLE001 - the record is still queued in memory
                self.warn_rate_limited("fsync", f"Cannot sync the journal to disk ({error})")

    def _has_room(self, journal: Journal, record: AnyEvent | SuccessRecord) -> bool:
        # Last resort: the recorder thread, which enforces the limits, is blocked in the store.
        self.warn_rate_limited(
            "full", f"Journal {journal.path} is full, dropping successes until the store is writable"
        )
        return not isinstance(record, SuccessRecord) and journal.offset <= 2 * journal_import.MAX_JOURNAL_BYTES

    def _begin_journal(self) -> Journal | None:
        """Create the first journal of this process. Return `None` if that fails, and retry after a delay."""
        now = time.monotonic()
        if self._journal_folder is None or now < self._next_journal_at:
            return None
        self._next_journal_at = now + 10  # set first: a reentrant call must not create another
        try:
            self.journal = self._create_journal(self._journal_folder())
            self._next_journal_at = 0.0
        except Exception as error:  # noqa: BLE001 - the record is still queued in memory
            self.warn_rate_limited("journal", f"Cannot create a journal ({error}); a killed process would lose records")
        return self.journal

    def _create_journal(self, folder: Path) -> Journal:
        journal = self.new_journal(folder)
        self._last_position += JOURNAL_SPAN
        journal.first_position = self._last_position
        return journal

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
        return self._spilled_position > self._stored_position

    @property
    def has_more(self) -> bool:
        return bool(self.queued or self._in_flight) or self.is_behind

    def has_stored(self, target_count: int) -> bool:
        return self.stored_count >= target_count and not self.is_behind

    # Called by the recorder thread

    def next_batch(self) -> tuple[list[QueuedRecord], Journal | None, int]:
        """Return the oldest records, the journal of the last one if any, and its end position.

        Records of several journals share a batch, because an unstorable record alone looks like a broken store. The
        batch is empty while older records are in a journal only, to keep the order.
        """
        with self._lock:  # no producer is between its journal write and its queue append
            if self.is_behind:
                return [], None, 0
            pop_oldest = self.queued.popleft
            batch = self._in_flight = [pop_oldest() for _ in range(min(journal_import.BATCH_RECORDS, len(self.queued)))]
            end = max(map(itemgetter(0), batch), default=0)
            # Already imported from the journal with later records: ids prevent duplicates.
            if end <= self._stored_position:
                return batch, None, 0
            # A record from a signal handler precedes the interrupted record in the queue and follows it in the
            # journal. Both go into one batch, because the offset covers both.
            while self.queued and 0 < self.queued[0][0] < end:
                batch.append(pop_oldest())
            return batch, self._find_journal(end), end

    def to_events(self, batch: Sequence[QueuedRecord]) -> list[AnyEvent]:
        """Return queued records as redacted events. From here on, all steps have one form."""
        return redact_records([record for _, record in batch], self._stream.record_redactor)

    def _find_journal(self, position: int) -> Journal | None:
        first_position = position - position % JOURNAL_SPAN
        journals = filter(None, (self.journal, *self.full_journals))
        return next((journal for journal in journals if journal.first_position == first_position), None)

    def mark_stored(self, position: int = 0) -> None:
        """Confirm that the in-flight records, and the journals up to this position, are stored."""
        with self._lock:
            self._stored_position = max(position, self._stored_position)
            self.stored_count += len(self._in_flight)
            self._in_flight = []
        self._remove_stored_journals()

    def drop_unstorable(self, storable: Collection[QueuedRecord]) -> None:
        """Reduce the in-flight records to the storable ones. The others are dropped and counted."""
        with self._lock:
            dropped_count = len(self._in_flight) - len(storable)
            self._in_flight = list(storable)
            self.dropped += dropped_count
            self.stored_count += dropped_count

    def import_spilled(self, store: Store, tenant: str, add_costs: journal_import.AddCosts) -> None:
        """Import some batches of records that are only in journals, the oldest first."""
        journals = [
            journal
            for journal in filter(None, (*self.full_journals, self.journal))
            if journal.end_position > self._stored_position
        ]
        self._stored_position = journal_import.import_batches(
            store, tenant, journals, self._spilled_position, self._count_dropped, add_costs
        )
        self._remove_stored_journals()

    def report_dropped(self, store: Store, tenant: str) -> None:
        """Add new drops to the count in the store, which `mulligan doctor` reports."""
        count = self.dropped
        if count > self._reported_dropped:
            journal_import.add_dropped(store, tenant, count - self._reported_dropped)
            self._reported_dropped = count

    def enforce_limits(self) -> None:
        """Requeue unconfirmed records, then apply the limits of memory and journal size."""
        with self._lock:
            batch, self._in_flight = self._in_flight, []
            # Records up to the spilled position are imported from the journal.
            requeued = [record for record in batch if not 0 < record[0] <= self._spilled_position]
            self.queued.extendleft(reversed(requeued))
            self.stored_count += len(batch) - len(requeued)
        if len(self.queued) > MAX_QUEUED_RECORDS:
            self._spill()
        self.rotate_journal(journal_import.MAX_JOURNAL_BYTES // JOURNALS_PER_LIMIT)

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
                        self._spilled_position = max(self._spilled_position, queued_record[0])
                        excess -= 1
                    else:
                        unwritten.append(queued_record)
                if excess > 0:  # these were recorded without a journal
                    ranked = sorted(
                        range(len(unwritten)), key=lambda index: not isinstance(unwritten[index][1], SuccessRecord)
                    )
                    dropped_indexes = frozenset(ranked[:excess])
                    unwritten = [record for index, record in enumerate(unwritten) if index not in dropped_indexes]
                    self.dropped += len(dropped_indexes)
                    excess -= len(dropped_indexes)
                self.queued.extendleft(reversed(unwritten))
                self.stored_count += before - excess
            finally:
                self._is_spilling = False

    def _count_dropped(self, count: int) -> None:
        with self._lock:
            self.dropped += count

    # Journals

    def rotate_journal(self, min_bytes: int | None = None) -> None:
        """Begin a new journal if the current one has at least this size, by default `JOURNAL_ROTATE_BYTES`."""
        old, now = self.journal, time.monotonic()
        if old is None or self._journal_folder is None or now < self._next_journal_at:
            return
        if old.offset < (min_bytes or JOURNAL_ROTATE_BYTES):
            return
        new = None
        try:
            new = self._create_journal(self._journal_folder())
            with self._lock:
                if self.journal is old:  # otherwise it was released meanwhile
                    for started in tuple(self._open_runs.values()):
                        new.write(event_frame(started))  # journal recovery must know the open runs
                    self.full_journals.append(old)
                    self.journal, new = new, None
            self._remove_stored_journals()
            self._reduce_journals()
        except Exception as error:  # noqa: BLE001 - the old journal stays in use
            self._next_journal_at = now + 1.0
            self.warn_rate_limited("journal", f"Cannot rotate the journal ({error})")
        if new is not None:
            self._remove(new)  # journal recovery would report its runs as abandoned

    def _remove_stored_journals(self) -> None:
        while self.full_journals and self.full_journals[0].end_position <= self._stored_position:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        oldest = self.full_journals.pop(0)
        with self._lock:  # mark the whole journal as stored, so that no import reads it
            self._stored_position = max(self._stored_position, oldest.first_position + JOURNAL_SPAN - 1)
        self._remove(oldest)

    def _reduce_journals(self) -> None:
        """Drop the successes of the oldest journals, then whole journals, until the size limit holds."""
        limit = journal_import.MAX_JOURNAL_BYTES
        while (size := sum(journal.offset for journal in self.full_journals)) > limit:
            index = next((index for index, journal in enumerate(self.full_journals) if journal.has_successes), None)
            if index is not None:
                old = self.full_journals[index]
                self._forget_queued(old.end_position)
                self.warn_rate_limited(
                    "full", f"Journal {old.path} is full, dropping its successes: the store is unavailable or too slow"
                )
                new, dropped_count = journal_import.copy_without_successes(
                    old, max(0, self._stored_position - old.first_position)
                )
                self._stored_position = min(self._stored_position, new.first_position)
                self.full_journals[index] = new
                self._remove(old)
                self._remove_stored_journals()  # a journal with only successes is empty now
            elif size > 2 * limit:
                old = self.full_journals[0]
                self._forget_queued(old.end_position)
                self.warn_rate_limited("full", f"Dropping journal {old.path}: the store is unavailable or too slow")
                dropped_count = sum(1 for _ in old.frames(max(0, self._stored_position - old.first_position)))
                self._remove_oldest()
            else:
                return
            self._count_dropped(dropped_count)

    def _forget_queued(self, position: int) -> None:
        """Remove the records up to this position from memory. They are imported from their journals."""
        with self._lock:
            # Set this before `stored_count`: otherwise a flush could see the records as stored.
            self._spilled_position = max(self._spilled_position, position)
            unwritten: list[QueuedRecord] = []
            while self.queued and self.queued[0][0] <= position:  # in place: a finalizer may record meanwhile
                queued_record = self.queued.popleft()
                if queued_record[0]:
                    self.stored_count += 1
                else:
                    unwritten.append(queued_record)
            self.queued.extendleft(reversed(unwritten))

    def release_journals(self) -> bool:
        """Remove the journals if all records are stored and no run is open. Return whether all are stored."""
        journals: list[Journal] = []
        with self._lock:
            is_all_stored = not self.has_more
            # Otherwise keep them: other processes recover them after this process ends.
            if is_all_stored and not self._open_runs and self.journal is not None:
                journals = [*self.full_journals, self.journal]
                self.full_journals, self.journal = [], None
        for journal in journals:
            self._remove(journal)
        return is_all_stored

    def _remove(self, journal: Journal) -> None:
        try:
            journal.close(remove=True)
        except OSError as error:  # harmless: the stored offset prevents duplicates
            self.warn_rate_limited("journal", f"Cannot remove journal {journal.path} ({error})")
