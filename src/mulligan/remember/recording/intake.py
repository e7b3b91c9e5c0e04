"""What was recorded and is not in the store yet: in the journal before the caller goes on, and in memory.

The caller appends to both; the recorder's thread takes from memory, and turns to the journal for what memory let go.
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
"""Records kept in memory while the store cannot be written. What is beyond it waits in the journal alone."""
EXCESS = 1.5
"""How many times as many there are when a caller sees to it himself: a host that is busy lets no other thread do so."""
JOURNAL_LONG = 4 * 1024 * 1024
"""Bytes. A journal longer than this is begun anew as soon as everything in it is kept."""
FEW = 2000
"""Records that are moved from a long journal to a new one while callers wait: about a millisecond."""


Waiting = tuple[int, AnyEvent | Success]
"""A record on its way, and where in the journal it ends; 0 where it is in none. A plain tuple: one is made a call."""


class Intake:
    """Takes records from any thread and never blocks it; gives them to one thread, which says when they are kept."""

    def __init__(
        self, journals: Callable[[], Path] | None, known: Callable[[Form], object], fsync: bool = False
    ) -> None:
        self._journals = journals
        self._fsync = fsync
        """Whether a record survives the machine before the caller goes on, and not the process alone."""
        self._known = known
        """Works out what may be told of a form."""
        self.rouse: Callable[[], object] = lambda: None
        """Wakes whoever keeps what is taken."""
        self.reset()

    def reset(self) -> None:
        """As at the beginning. A child has nothing of its parent's, who keeps what it has itself."""
        self.losses = Losses()
        self.journal: Journal | None = None
        self._next_journal = 0.0
        """When to try again to have one, by the monotonic clock."""
        self.waiting: deque[Waiting] = deque()
        self._in_hand: list[Waiting] = []
        """The oldest, on their way into the store. They wait no longer, and are not kept yet."""
        self._is_making_room = False
        self._spilled = 0
        """Where the records end that were let go from memory, and wait in the journal alone."""
        self._kept_upto = 0
        """Where the records of the journal end that are in the store."""
        self.backlog = Backlog(self.complain)
        self._next_aside = 0.0
        self._open_runs: dict[str, RunStarted] = {}
        self.kept = 0
        # One that a thread may take twice: a signal handler, or a finaliser, may record in the middle of a record.
        self._lock = threading.RLock()
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self.is_unheard = True
        """Whether a record must wake somebody to be kept."""
        self.progress = Progress()

    def abandon(self) -> None:
        """Begins anew in a forked child: the files are the parent's."""
        held = [self.journal, *self.backlog.journals]
        self.reset()
        for journal in filter(None, held):
            journal.abandon()

    def complain(self, what: str, told: str) -> None:
        self.losses.complain(what, told, len(self._in_hand) + len(self.waiting))

    # In the caller

    def take(self, event: AnyEvent) -> None:
        if isinstance(event, RunStarted):
            self._open_runs[event.run.id] = event
        elif isinstance(event, RunEnded):
            self._open_runs.pop(event.run.id, None)
        frame = None
        if self._journals is not None and not isinstance(event, StepStarted):
            try:
                frame = event_frame(event)
            except Exception as error:  # noqa: BLE001 - whether it can ever be kept is for the recorder's thread to say
                self.complain("frame", f"a record cannot be written down ({error})")
        self._take(frame, event)

    def keep(self, success: Success, told: Sequence[Any] | None = None) -> None:
        """`told` is what `success.telling` makes of it, where that was done."""
        try:
            frame = success_frame(success, told)
        except Exception:  # noqa: BLE001 - its form is not known yet; anything else happens again there, and is told
            self._take(self._frame(success, told), success)
            return
        # The same as `_take` and `Journal.write` where all is well, as at almost every call: in one piece, because a
        # call takes time.
        size = len(frame)
        is_kept = False
        acquire, release = self._acquire, self._release  # what is held, and not a method, is called faster so
        acquire()
        try:
            journal = self.journal
            if journal is not None:
                start = journal.offset
                end = start + size
                if end <= journal.free:
                    journal.offset = end  # taken with no call between, as there
                    journal.memory[start:end] = frame  # type: ignore[index] # where it is free there is memory
                    self.waiting.append((end, success))
                    is_kept = True
        finally:
            release()
        if not is_kept:
            self._take(frame, success)
        elif self.is_unheard:  # asked after it waits there: whoever goes to sleep now has seen it
            self.rouse()

    def _frame(self, success: Success, told: Sequence[Any] | None) -> bytes | None:
        """The frame of a success, where there is a journal to be and it can be written down."""
        if self._journals is None:
            return None
        try:
            self._known(success.form)
            return success_frame(success, told)
        except Exception as error:  # noqa: BLE001 - whether it can ever be kept is for the recorder's thread to say
            self.complain("frame", f"a record cannot be written down ({error})")
            return None

    def _take(self, frame: bytes | None, record: AnyEvent | Success) -> None:
        # The frame is made before: nobody waits for the lock while somebody else encodes.
        offset = 0
        journal = None
        self._acquire()  # by hand: `with` takes twice as long, at every call
        try:
            if frame is not None:
                journal = self.journal or self._begin_journal()
                if journal is not None:
                    if journal.offset > backlog.JOURNAL_FULL and not self._has_room(journal, record):
                        self.losses.dropped += 1
                        return
                    try:
                        offset = journal.write(frame)
                    except Exception as error:  # noqa: BLE001 - memory must do
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
        # Without the lock: others write meanwhile, and are served by one of us together.
        try:
            journal.sync(upto)
        except Exception as error:  # noqa: BLE001 - it waits in memory all the same, and goes into the store
            self.complain("fsync", f"the journal does not survive the machine ({error})")

    def _has_room(self, journal: Journal, record: AnyEvent | Success) -> bool:
        # The last resort: the recorder's thread, which would have made room, hangs in the store.
        self.complain("full", f"{journal.path} is full; successes are dropped until the store can be written")
        return not isinstance(record, Success) and journal.offset <= 2 * backlog.JOURNAL_FULL

    def _begin_journal(self) -> Journal | None:
        """A journal of our own, or None for a while if there can be none: then memory must do."""
        now = time.monotonic()
        if self._journals is None or now < self._next_journal:
            return None
        self._next_journal = now + 10  # before it is made: nobody makes a second one in the middle of it
        try:
            self.journal = self._new_journal(self._journals())
            self._next_journal = 0.0
        except Exception as error:  # noqa: BLE001 - memory must do
            self.complain("journal", f"there can be no journal ({error}); a killed process would lose records")
        return self.journal

    def _new_journal(self, folder: Path) -> Journal:
        return Journal(folder, self._fsync, backlog.JOURNAL_FULL)

    # For whoever waits

    @property
    def taken(self) -> int:
        with self._lock:  # nothing is counted twice, or not at all, on its way from one to the other
            return self.kept + len(self._in_hand) + len(self.waiting)

    @property
    def is_behind(self) -> bool:
        """Whether records wait in a journal alone."""
        return bool(self._spilled or self.backlog.journals)

    @property
    def has_more(self) -> bool:
        return bool(self.waiting or self._in_hand) or self.is_behind

    def has_come_to(self, aim: int) -> bool:
        return self.kept >= aim and not self.is_behind

    # On the recorder's thread

    def next_batch(self) -> tuple[list[Waiting], str | None, int]:
        """The oldest records, and the journal they are in, if any, with the place where the last of them ends.

        There are none while older ones wait in a journal alone.
        """
        with self._lock:  # nobody is between the journal and the queue
            if self.is_behind:
                return [], None, 0
            next = self.waiting.popleft
            batch = self._in_hand = [next() for _ in range(min(backlog.BATCH, len(self.waiting)))]
            upto = max(map(itemgetter(0), batch), default=0)
            if upto <= self._kept_upto:  # the journal has brought them in with later ones: known by their ids
                upto = 0
            # What a signal handler recorded in the middle of a record comes before it here, and after it in the
            # journal. The two are kept together, since the offset speaks for both.
            while self.waiting and 0 < self.waiting[0][0] < upto:
                batch.append(next())
            return batch, self.journal.name if self.journal is not None and upto else None, upto

    def done(self, upto: int = 0) -> None:
        """The records in hand are kept, and the journal up to this place."""
        with self._lock:
            self._kept_upto = upto or self._kept_upto
            self.kept += len(self._in_hand)
            self._in_hand = []
            self.progress.tell()

    def drop(self, sound: Collection[Waiting]) -> None:
        """Of the records in hand only these can ever be kept; the others are counted."""
        with self._lock:
            lost = len(self._in_hand) - len(sound)
            self._in_hand = list(sound)
            self.losses.dropped += lost
            self.kept += lost
            self.progress.tell()

    def catch_up(self, store: Store, tenant: str) -> None:
        """Brings in a portion of what waits in journals alone: those laid aside, then what memory let go of our own."""
        if self.backlog.journals:
            self.backlog.bring_in(store, tenant, self._lose)
        elif self.journal is not None:
            self._kept_upto = bring_in(store, tenant, self.journal, self._spilled, self._lose)
        with self._lock:
            if self._kept_upto >= self._spilled:  # else callers have been faster
                self._spilled = 0
            self.progress.tell()

    def make_room(self, is_store_open: bool) -> None:
        """Takes back what was in hand and is not kept, and lets go of what is too much in memory and in the journal."""
        if self._in_hand:
            self._take_back()
        if len(self.waiting) > CAPACITY:
            self._spill()
        journal = self.journal
        if journal is None or journal.offset <= backlog.JOURNAL_FULL // backlog.PARTS:
            return
        if is_store_open and self._kept_upto + JOURNAL_LONG > journal.offset:
            return  # the store keeps up: it is begun anew instead
        if time.monotonic() >= self._next_aside:
            self._lay_aside(journal)

    def _take_back(self) -> None:
        with self._lock:
            batch, self._in_hand = self._in_hand, []
            # Where memory has let go of later ones, the journal brings these in with them.
            left = [each for each in batch if not 0 < each[0] <= self._spilled]
            self.waiting.extendleft(reversed(left))
            self.kept += len(batch) - len(left)

    def _spill(self) -> None:
        """Lets go from memory what a journal has too; of what is in none, the oldest successes go first, counted."""
        with self._lock:
            if self._is_making_room:  # a signal handler, or a finaliser, has recorded in the middle of this
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
                if excess > 0:  # there is no journal, or there was none
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
        """Begins a new journal where the store is away, or slower than callers, and this one has grown long."""
        if self._journals is None:
            return
        try:
            new = self._new_journal(self._journals())
            with self._lock:
                try:
                    for started in tuple(self._open_runs.values()):
                        new.write(event_frame(started))
                except BaseException:
                    self.backlog.remove(new)  # or whoever adopts it would take its runs for abandoned
                    raise
                left = deque(each for each in self.waiting if not each[0])
                self.backlog.lay_aside(journal, self._kept_upto)  # first: who waits sees that they are not kept yet
                self.kept += len(self.waiting) - len(left)
                self.waiting = left
                self.journal, self._kept_upto, self._spilled = new, 0, 0
                self.progress.tell()
            self.backlog.thin(self._lose)
        except Exception as error:  # noqa: BLE001 - the one there is does
            self._next_aside = time.monotonic() + 1.0
            self.complain("journal", f"the journal cannot be begun anew ({error})")

    def _lose(self, count: int) -> None:
        with self._lock:
            self.losses.dropped += count

    def begin_anew(self) -> None:
        """A journal that has grown long makes way for a new one, with the little of it that is not kept yet."""
        old = self.journal
        if old is None or old.offset < JOURNAL_LONG or self._journals is None or not self._is_nearly_empty():
            return
        try:
            new = self._new_journal(self._journals())
        except Exception as error:  # noqa: BLE001 - the old one does
            self.complain("journal", f"the journal cannot be begun anew ({error})")
            return
        with self._lock:
            end = old.offset
            try:
                if not self._is_nearly_empty():  # there are more by now
                    self.backlog.remove(new)
                    return
                for started in tuple(self._open_runs.values()):
                    new.write(event_frame(started))  # so that whoever adopts it knows that the run was still open
                moved = new.offset - self._kept_upto
                new.write(old.since(self._kept_upto))
                if self._fsync:
                    new.sync(new.offset)  # those who still wait for the old one have their records here
                waiting = deque((offset and offset + moved, record) for offset, record in self.waiting)
            except Exception as error:  # noqa: BLE001 - the old one does
                self.complain("journal", f"the journal cannot be begun anew ({error})")
                self.backlog.remove(new)
                return
            is_done = old.offset == end and len(waiting) == len(self.waiting)
            if is_done:  # else a finaliser has recorded in the middle of this
                self.journal, self.waiting, self._kept_upto = new, waiting, 0
        self.backlog.remove(old if is_done else new)

    def _is_nearly_empty(self) -> bool:
        """Whether so little waits that it is copied while callers wait, and nothing is on its way out of it."""
        return not self._spilled and not self._in_hand and len(self.waiting) <= FEW

    def let_go(self) -> bool:
        """Lets go of the journal, where nothing in it is needed any more; whether all is kept."""
        with self._lock:
            journal = None
            is_kept = not self.has_more
            # Otherwise it stays ours: others may have it when this process is gone.
            if is_kept and not self._open_runs:
                journal, self.journal, self._kept_upto = self.journal, None, 0
        if journal is not None:
            self.backlog.remove(journal)
        return is_kept
