"""Queue of records that are not stored yet: in memory, and in the journal before the call returns.

Callers append to both. The recorder thread reads from memory, and from the journal what no longer fits into memory.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from mulligan.events import AnyEvent, RunEnded, RunStarted, StepStarted
from mulligan.remember.recording import backlog
from mulligan.remember.recording.backlog import Backlog, bring_in
from mulligan.remember.recording.bells import Progress
from mulligan.remember.recording.framing import event_frame, success_frame
from mulligan.remember.recording.journal import Journal
from mulligan.remember.recording.losses import Losses
from mulligan.remember.store import Store
from mulligan.success import Form, Success

CAPACITY = 50_000
"""Records held in memory while the store is unavailable. Further records are in the journal only."""
EXCESS = 1.5
"""Multiple of `MAX_QUEUED_RECORDS` above which callers spill: a busy program may starve the recorder thread."""
JOURNAL_LONG = 4 * 1024 * 1024
"""Journal size above which it is rotated as soon as nearly all of its records are stored."""
FEW = 2000
"""Records copied to a new journal while callers are blocked, about a millisecond."""


Waiting = tuple[int, AnyEvent | Success]
"""Journal end offset (0 if not in a journal) and record. A plain tuple: creating one is part of every call."""


class Intake:
    """Record queue with many producers that never block and one consumer that confirms stored records."""

    def __init__(
        self, journals: Callable[[], Path] | None, known: Callable[[Form], object], fsync: bool = False
    ) -> None:
        self._journals = journals
        self._fsync = fsync
        """Whether a record must survive a machine crash, not only a process crash, before the call returns."""
        self._known = known
        """Compute which parts of a call template may be recorded."""
        self.rouse: Callable[[], object] = lambda: None
        """Wake the recorder thread. Set by the recorder."""
        self.reset()

    def reset(self) -> None:
        """Return to the initial state. A forked child starts empty: the parent stores its own records."""
        self.losses = Losses()
        self.journal: Journal | None = None
        self._next_journal = 0.0
        """Monotonic time of the next attempt to create a journal."""
        self.waiting: deque[Waiting] = deque()
        self._in_hand: list[Waiting] = []
        """The oldest records: removed from the queue for writing, not stored yet."""
        self._is_making_room = False
        self._spilled = 0
        """Journal offset up to which records were removed from memory and are in the journal only."""
        self._kept_upto = 0
        """Journal offset up to which records are stored."""
        self.backlog = Backlog(self.complain)
        self._next_aside = 0.0
        self._open_runs: dict[str, RunStarted] = {}
        self.kept = 0
        # Reentrant: a signal handler or finalizer may record while this thread is recording.
        self._lock = threading.RLock()
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self.is_unheard = True
        """Whether the recorder thread must be woken for a new record."""
        self.progress = Progress()

    def abandon(self) -> None:
        """Reset in a forked child and close the file handles. The journal files belong to the parent."""
        held = [self.journal, *self.backlog.journals]
        self.reset()
        for journal in filter(None, held):
            journal.abandon()

    def complain(self, what: str, told: str) -> None:
        self.losses.complain(what, told, len(self._in_hand) + len(self.waiting))

    # Called by producers

    def take(self, event: AnyEvent) -> None:
        if isinstance(event, RunStarted):
            self._open_runs[event.run.id] = event
        elif isinstance(event, RunEnded):
            self._open_runs.pop(event.run.id, None)
        frame = None
        if self._journals is not None and not isinstance(event, StepStarted):
            try:
                frame = event_frame(event)
            except Exception as error:  # noqa: BLE001 - the recorder thread decides whether it is storable
                self.complain("frame", f"a record cannot be written down ({error})")
        self._take(frame, event)

    def keep(self, success: Success, told: Sequence[Any] | None = None) -> None:
        """Queue a success. `journal_form` is the result of `journal_values` if it is already computed."""
        try:
            frame = success_frame(success, told)
        except Exception:  # noqa: BLE001 - template not prepared yet; other errors recur in _build_frame
            self._take(self._frame(success, told), success)
            return
        # Inlined fast path of `_put` and `Journal.write`: function calls are a measurable part of this hot path.
        size = len(frame)
        is_kept = False
        acquire, release = self._acquire, self._release  # locals are faster than attributes
        acquire()
        try:
            journal = self.journal
            if journal is not None:
                start = journal.offset
                end = start + size
                if end <= journal.free:
                    journal.offset = end  # reserved first, as in Journal.write
                    journal.memory[start:end] = frame  # type: ignore[index] # free > 0 implies a mapping
                    self.waiting.append((end, success))
                    is_kept = True
        finally:
            release()
        if not is_kept:
            self._take(frame, success)
        # Checked after queueing: a worker that becomes idle from now on sees the record.
        elif self.is_unheard:
            self.rouse()

    def _frame(self, success: Success, told: Sequence[Any] | None) -> bytes | None:
        """Build the frame of a success. Return `None` without a journal or if it cannot be encoded."""
        if self._journals is None:
            return None
        try:
            self._known(success.form)
            return success_frame(success, told)
        except Exception as error:  # noqa: BLE001 - the recorder thread decides whether it is storable
            self.complain("frame", f"a record cannot be written down ({error})")
            return None

    def _take(self, frame: bytes | None, record: AnyEvent | Success) -> None:
        # The frame is encoded before the lock is taken, to keep the critical section short.
        offset = 0
        journal = None
        self._acquire()  # explicit acquire/release: a with block doubles the cost of this hot path
        try:
            if frame is not None:
                journal = self.journal or self._begin_journal()
                if journal is not None:
                    if journal.offset > backlog.JOURNAL_FULL and not self._has_room(journal, record):
                        self.losses.dropped += 1
                        return
                    try:
                        offset = journal.write(frame)
                    except Exception as error:  # noqa: BLE001 - the record is still queued in memory
                        self.complain("journal", f"the journal cannot be written ({error})")
            self.waiting.append((offset, record))
        finally:
            self._release()
        if len(self.waiting) > EXCESS * CAPACITY:
            self._spill()
        if self.is_unheard:
            self.rouse()
        if self._fsync and offset and journal is not None:
            self._sync(journal, offset)

    def _sync(self, journal: Journal, upto: int) -> None:
        # Without the lock: other threads write meanwhile, and one fsync covers all of them.
        try:
            journal.sync(upto)
        except Exception as error:  # noqa: BLE001 - the record is still queued in memory
            self.complain("fsync", f"the journal does not survive the machine ({error})")

    def _has_room(self, journal: Journal, record: AnyEvent | Success) -> bool:
        # Last resort: the recorder thread, which enforces the limits, is blocked in the store.
        self.complain("full", f"{journal.path} is full; successes are dropped until the store can be written")
        return not isinstance(record, Success) and journal.offset <= 2 * backlog.JOURNAL_FULL

    def _begin_journal(self) -> Journal | None:
        """Create the journal of this process. Return `None` if that fails, and retry after a delay."""
        now = time.monotonic()
        if self._journals is None or now < self._next_journal:
            return None
        self._next_journal = now + 10  # set first: a reentrant call must not create another
        try:
            self.journal = self._new_journal(self._journals())
            self._next_journal = 0.0
        except Exception as error:  # noqa: BLE001 - the record is still queued in memory
            self.complain("journal", f"there can be no journal ({error}); a killed process would lose records")
        return self.journal

    def _new_journal(self, folder: Path) -> Journal:
        return Journal(folder, self._fsync, backlog.JOURNAL_FULL)

    # Called by waiting threads

    @property
    def taken(self) -> int:
        with self._lock:  # records move between these three, and must be counted once
            return self.kept + len(self._in_hand) + len(self.waiting)

    @property
    def is_behind(self) -> bool:
        """Return whether some unstored records are in a journal only."""
        return bool(self._spilled or self.backlog.journals)

    @property
    def has_more(self) -> bool:
        return bool(self.waiting or self._in_hand) or self.is_behind

    def has_come_to(self, aim: int) -> bool:
        return self.kept >= aim and not self.is_behind

    # Called by the recorder thread

    def next_batch(self) -> tuple[list[Waiting], str | None, int]:
        """Return the oldest records, the name of their journal if any, and the end offset of the last record.

        The batch is empty while older records are in a journal only, to keep the order.
        """
        with self._lock:  # no producer is between its journal write and its queue append
            if self.is_behind:
                return [], None, 0
            next = self.waiting.popleft
            batch = self._in_hand = [next() for _ in range(min(backlog.BATCH, len(self.waiting)))]
            upto = max(map(itemgetter(0), batch), default=0)
            # Already imported from the journal with later records: ids prevent duplicates.
            if upto <= self._kept_upto:
                upto = 0
            # A record from a signal handler precedes the interrupted record in the queue and follows it in the
            # journal. Both go into one batch, because the offset covers both.
            while self.waiting and 0 < self.waiting[0][0] < upto:
                batch.append(next())
            return batch, self.journal.name if self.journal is not None and upto else None, upto

    def done(self, upto: int = 0) -> None:
        """Confirm that the in-flight records, and the journal up to this offset, are stored."""
        with self._lock:
            self._kept_upto = upto or self._kept_upto
            self.kept += len(self._in_hand)
            self._in_hand = []
            self.progress.tell()

    def drop(self, sound: Collection[Waiting]) -> None:
        """Reduce the in-flight records to the storable ones. The others are dropped and counted."""
        with self._lock:
            lost = len(self._in_hand) - len(sound)
            self._in_hand = list(sound)
            self.losses.dropped += lost
            self.kept += lost
            self.progress.tell()

    def catch_up(self, store: Store, tenant: str) -> None:
        """Import some records that are in journals only: first from the backlog, then from the current journal."""
        if self.backlog.journals:
            self.backlog.bring_in(store, tenant, self._lose)
        elif self.journal is not None:
            self._kept_upto = bring_in(store, tenant, self.journal, self._spilled, self._lose)
        with self._lock:
            if self._kept_upto >= self._spilled:  # otherwise callers spilled more meanwhile
                self._spilled = 0
            self.progress.tell()

    def make_room(self, is_store_open: bool) -> None:
        """Requeue unconfirmed records, then apply the limits of memory and journal size."""
        if self._in_hand:
            self._take_back()
        if len(self.waiting) > CAPACITY:
            self._spill()
        journal = self.journal
        if journal is None or journal.offset <= backlog.JOURNAL_FULL // backlog.PARTS:
            return
        if is_store_open and self._kept_upto + JOURNAL_LONG > journal.offset:
            return  # the store keeps up: rotation will replace the journal
        if time.monotonic() >= self._next_aside:
            self._lay_aside(journal)

    def _take_back(self) -> None:
        with self._lock:
            batch, self._in_hand = self._in_hand, []
            # Records up to the spilled offset are imported from the journal.
            left = [each for each in batch if not 0 < each[0] <= self._spilled]
            self.waiting.extendleft(reversed(left))
            self.kept += len(batch) - len(left)

    def _spill(self) -> None:
        """Remove journaled records from memory. Of the others, drop and count the oldest, successes first."""
        with self._lock:
            if self._is_making_room:  # reentrant call from a signal handler or finalizer
                return
            self._is_making_room = True
            try:
                before = excess = len(self.waiting) - CAPACITY
                unwritten: list[Waiting] = []
                for _ in range(len(self.waiting)):
                    if excess <= 0:
                        break
                    each = self.waiting.popleft()
                    if each[0]:
                        self._spilled = max(self._spilled, each[0])
                        excess -= 1
                    else:
                        unwritten.append(each)
                if excess > 0:  # these were recorded without a journal
                    ranked = sorted(range(len(unwritten)), key=lambda at: not isinstance(unwritten[at][1], Success))
                    gone = frozenset(ranked[:excess])
                    unwritten = [each for at, each in enumerate(unwritten) if at not in gone]
                    self.losses.dropped += len(gone)
                    excess -= len(gone)
                self.waiting.extendleft(reversed(unwritten))
                self.kept += before - excess
                self.progress.tell()
            finally:
                self._is_making_room = False

    def _lay_aside(self, journal: Journal) -> None:
        """Move a large journal to the backlog and start a new one: the store is unavailable or too slow."""
        if self._journals is None:
            return
        try:
            new = self._new_journal(self._journals())
            with self._lock:
                try:
                    for started in tuple(self._open_runs.values()):
                        new.write(event_frame(started))
                except BaseException:
                    self.backlog.remove(new)  # journal recovery would report its runs as abandoned
                    raise
                left = deque(each for each in self.waiting if not each[0])
                # First: otherwise a flush could see the records as stored.
                self.backlog.lay_aside(journal, self._kept_upto)
                self.kept += len(self.waiting) - len(left)
                self.waiting = left
                self.journal, self._kept_upto, self._spilled = new, 0, 0
                self.progress.tell()
            self.backlog.thin(self._lose)
        except Exception as error:  # noqa: BLE001 - the current journal stays in use
            self._next_aside = time.monotonic() + 1.0
            self.complain("journal", f"the journal cannot be begun anew ({error})")

    def _lose(self, count: int) -> None:
        with self._lock:
            self.losses.dropped += count

    def begin_anew(self) -> None:
        """Replace a large journal by a new one that has only the few records not stored yet."""
        old = self.journal
        if old is None or old.offset < JOURNAL_LONG or self._journals is None or not self._is_nearly_empty():
            return
        try:
            new = self._new_journal(self._journals())
        except Exception as error:  # noqa: BLE001 - the old journal stays in use
            self.complain("journal", f"the journal cannot be begun anew ({error})")
            return
        with self._lock:
            end = old.offset
            try:
                if not self._is_nearly_empty():  # producers were faster
                    self.backlog.remove(new)
                    return
                for started in tuple(self._open_runs.values()):
                    new.write(event_frame(started))  # journal recovery must know the open runs
                moved = new.offset - self._kept_upto
                new.write(old.since(self._kept_upto))
                if self._fsync:
                    new.sync(new.offset)  # callers waiting to sync the old journal rely on this
                waiting = deque((offset and offset + moved, record) for offset, record in self.waiting)
            except Exception as error:  # noqa: BLE001 - the old journal stays in use
                self.complain("journal", f"the journal cannot be begun anew ({error})")
                self.backlog.remove(new)
                return
            is_done = old.offset == end and len(waiting) == len(self.waiting)
            if is_done:  # otherwise a finalizer recorded meanwhile
                self.journal, self.waiting, self._kept_upto = new, waiting, 0
        self.backlog.remove(old if is_done else new)

    def _is_nearly_empty(self) -> bool:
        """Return whether few records are queued and none is in flight or spilled: copying them is short."""
        return not self._spilled and not self._in_hand and len(self.waiting) <= FEW

    def let_go(self) -> bool:
        """Remove the journal if all records are stored and no run is open. Return whether all are stored."""
        with self._lock:
            journal = None
            is_kept = not self.has_more
            # Otherwise keep it: other processes recover it after this process ends.
            if is_kept and not self._open_runs:
                journal, self.journal, self._kept_upto = self.journal, None, 0
        if journal is not None:
            self.backlog.remove(journal)
        return is_kept
