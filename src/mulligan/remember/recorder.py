"""Keeps every event twice: in the journal before the caller goes on, and then, in batches, in the store.

The journal survives the process; the store answers questions. The recorder's thread moves one into the other, redacts
what worked on the way, and never blocks the caller.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from mulligan.events import AnyEvent, RunEnded, RunStarted, StepStarted, Stream
from mulligan.failure import MulliganError
from mulligan.records import encode, new_id
from mulligan.remember.adoption import adopt, event_frame, events_of, release, success_frame, thinned
from mulligan.remember.journal import Journal, frames
from mulligan.remember.losses import add_dropped
from mulligan.remember.store import LOCAL, Store
from mulligan.success import Success

log = logging.getLogger("mulligan")

BATCH = 500
PAUSE = 0.05
"""Seconds between batches, so that many events share one transaction."""
CAPACITY = 50_000
"""Records kept in memory while the store cannot be written. What is beyond it waits in the journal alone."""
JOURNAL_FULL = 256 * 1024 * 1024
"""Bytes that may wait in journals while the store is away. Beyond it the oldest successes are dropped and counted,
beyond twice as much, the oldest of everything."""
PARTS = 4
"""Journals in which so much waits: one that is a part of it is laid aside, and the oldest of these is thinned first."""
JOURNAL_LONG = 4 * 1024 * 1024
"""Bytes. A journal longer than this is begun anew as soon as everything in it is kept."""
FEW = 2000
"""Records that are moved from a long journal to a new one while callers wait: about a millisecond."""
EXIT = 2.0
"""Seconds. Leaving the process never takes longer than this because of us."""


Waiting = tuple[int, AnyEvent | Success]
"""A record on its way, and where in the journal it ends; 0 where it is in none. A plain tuple: one is made a call."""


class Bell:
    """Wakes the one who waits for it, once however often it was rung.

    Not an Event: that one takes a lock to be set, and a signal handler that sets it meanwhile would wait for ever.
    """

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was rung, and nobody has heard it yet
            self._silence.release()

    def wait(self, timeout: float = -1) -> bool:
        return self._silence.acquire(timeout=timeout)


class Recorder:
    """Keeps events for as long as the store cannot, and hands each to the stream's listeners once it is kept."""

    def __init__(
        self,
        opening: Callable[[], Store],
        stream: Stream,
        tenant: str = LOCAL,
        journals: Callable[[], Path] | None = None,
    ) -> None:
        self._opening = opening
        self._journals = journals
        self._stream = stream
        self._tenant = tenant
        self.dropped = 0
        self._told_dropped = 0
        self._reset()
        _recorders.add(self)

    def _reset(self) -> None:
        self.store: Store | None = None
        self._journal: Journal | None = None
        self._next_journal = 0.0
        """When to try again to have one, by the monotonic clock."""
        self._waiting: deque[Waiting] = deque()
        self._spilled = 0
        """Where the records end that were let go from memory, and wait in the journal alone."""
        self._kept_upto = 0
        """Where the records of the journal end that are in the store."""
        self._older: list[Journal] = []
        """Journals that were laid aside while the store was away, the oldest first; nothing of them is in memory."""
        self._thinned: set[str] = set()
        self._next_aside = 0.0
        self._open_runs: dict[str, RunStarted] = {}
        self._kept = 0
        # One that a thread may take twice: a signal handler, or a finaliser, may record in the middle of a record.
        self._lock = threading.RLock()
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._closing = threading.RLock()
        self._arriving = threading.Lock()
        """Held while a store is opened and imported: a child forked meanwhile would wait for that import for ever."""
        self._wake = Bell()
        self._hurry = Bell()
        self._urgent = 0
        """How many wait for a flush."""
        self._is_asleep = True
        self._progress = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._warned: dict[str, float] = {}

    # In the caller

    def __call__(self, event: AnyEvent) -> None:
        if isinstance(event, RunStarted):
            self._open_runs[event.run.id] = event
        elif isinstance(event, RunEnded):
            self._open_runs.pop(event.run.id, None)
        frame = None
        if self._journals is not None and not isinstance(event, StepStarted):
            try:
                frame = event_frame(event)
            except Exception as error:  # noqa: BLE001 - whether it can ever be kept is for the recorder's thread to say
                self._complain("frame", f"a record cannot be written down ({error})")
        self._take(frame, event)

    def keep(self, success: Success) -> None:
        frame = None
        if self._journals is not None:
            try:
                if success.form.prefix is None:
                    self._stream.known(success.form)
                frame = success_frame(success)
            except Exception as error:  # noqa: BLE001 - as above
                self._complain("frame", f"a record cannot be written down ({error})")
        journal = self._journal
        if frame is None or journal is None or journal.offset > JOURNAL_FULL:
            self._take(frame, success)
            return
        offset = 0
        # The same as `_take` where all is well, as at almost every call: in one piece, because a call takes time.
        self._acquire()
        try:
            journal = self._journal
            if journal is not None and (offset := journal.put(frame)):
                self._waiting.append((offset, success))
        finally:
            self._release()
        if not offset:
            self._take(frame, success)
        elif self._is_asleep:  # asked after it waits there: whoever goes to sleep now has seen it
            self._rouse()

    def _take(self, frame: bytes | None, record: AnyEvent | Success) -> None:
        # The frame is made before: nobody waits for the lock while somebody else encodes.
        offset = 0
        self._acquire()  # by hand: `with` takes twice as long, at every call
        try:
            if frame is not None:
                journal = self._journal or self._begin_journal()
                if journal is not None:
                    if journal.offset > JOURNAL_FULL and not self._has_room(journal, record):
                        self.dropped += 1
                        return
                    try:
                        offset = journal.write(frame)
                    except Exception as error:  # noqa: BLE001 - memory must do
                        self._complain("journal", f"the journal cannot be written ({error})")
            self._waiting.append((offset, record))
        finally:
            self._release()
        if self._is_asleep:
            self._rouse()

    def _rouse(self) -> None:
        if self._thread is None:
            self._start()
        self._wake.ring()

    def _has_room(self, journal: Journal, record: AnyEvent | Success) -> bool:
        # The last resort: the recorder's thread, which would have made room, hangs in the store.
        self._complain("full", f"{journal.path} is full; successes are dropped until the store can be written")
        return not isinstance(record, Success) and journal.offset <= 2 * JOURNAL_FULL

    def _begin_journal(self) -> Journal | None:
        """A journal of our own, or None for a while if there can be none: then memory must do."""
        now = time.monotonic()
        if self._journals is None or now < self._next_journal:
            return None
        self._next_journal = now + 10  # before it is made: nobody makes a second one in the middle of it
        try:
            self._journal = Journal(self._journals())
            self._next_journal = 0.0
        except Exception as error:  # noqa: BLE001 - memory must do
            self._complain("journal", f"there can be no journal ({error}); a killed process would lose records")
        return self._journal

    def _start(self) -> None:
        if sys.is_finalizing():
            return  # a thread that is started now never runs, and starting it would wait for that: the journal has it
        with self._lock:
            thread = threading.Thread(target=self._run, name="mulligan-recorder", daemon=True)
            if self._thread is not None:  # asked last: a signal handler may have started one in the middle of this
                return
            self._thread = thread
            try:
                thread.start()
            except RuntimeError as error:  # the interpreter is leaving, or there are too many threads
                self._thread = None
                self._complain("thread", f"records wait in the journal: {error}")

    @property
    def _taken(self) -> int:
        with self._progress:  # nothing is counted twice, or not at all, on its way from one to the other
            return self._kept + len(self._waiting)

    def flush(self, timeout: float = EXIT) -> bool:
        """Waits until everything published so far is in the store; whether it is."""
        aim = self._taken
        deadline = time.monotonic() + timeout
        with self._progress:
            self._urgent += 1
        try:
            return self._comes_to(aim, deadline)
        finally:
            with self._progress:
                self._urgent -= 1

    def _comes_to(self, aim: int, deadline: float) -> bool:
        while self._kept < aim or self._is_behind:
            if self._thread is None:
                self._start()
            thread = self._thread
            if thread is None or thread is threading.current_thread():
                break  # a listener that waited for its own thread would wait in vain
            with self._progress:
                self._hurry.ring()
                self._wake.ring()
                left = deadline - time.monotonic()
                if not self._progress.wait_for(functools.partial(self._has_come_to, aim, thread), left):
                    break
        return self._kept >= aim and not self._is_behind

    def _has_come_to(self, aim: int, thread: threading.Thread) -> bool:
        return (self._kept >= aim and not self._is_behind) or self._thread is not thread

    @property
    def _is_behind(self) -> bool:
        """Whether records wait in a journal alone."""
        return bool(self._spilled or self._older)

    def close(self, timeout: float = EXIT) -> bool:
        """Keeps what is left, tells the listeners of it and lets go of the store; whether everything was kept.

        What was not kept stays in the journal, for the next process. An event that comes later opens it all again.
        """
        if self._thread is threading.current_thread():
            return self._kept >= self._taken  # a listener's wish: the one who listens cannot wait for its own end
        deadline = time.monotonic() + timeout
        with self._closing:
            while True:
                done = self.flush(0.75 * (deadline - time.monotonic()))
                if not self._end_thread(deadline):
                    return done
                # Somebody may have recorded while the thread was ending: then once more.
                if not (done and self._waiting) or time.monotonic() >= deadline:
                    return self._let_go() and done

    def _end_thread(self, deadline: float) -> bool:
        """Ends the recorder's thread in time; one that hangs in its store goes on when it can."""
        with self._lock:  # one that is being started cannot be waited for yet
            thread = self._thread
        if thread is None:
            return True
        self._is_closing = True
        self._hurry.ring()
        self._wake.ring()
        thread.join(max(0.0, deadline - time.monotonic()))
        self._is_closing = False
        return not thread.is_alive()

    def _let_go(self) -> bool:
        """Lets go of the store, and of the journal where nothing in it is needed any more; whether all is kept."""
        with self._lock:
            store, self.store = self.store, None
            journal = None
            is_kept = not self._waiting and not self._is_behind
            # Otherwise it stays ours: others may have it when this process is gone.
            if is_kept and not self._open_runs:
                journal, self._journal, self._kept_upto = self._journal, None, 0
        if journal is not None:
            self._remove(journal)
        if store is not None:
            store.close()
        return is_kept

    # On the recorder's thread

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._is_asleep = True
                if (
                    not self._waiting and not self._is_behind
                ):  # looked at after saying that we sleep, so that no record goes unheard
                    self._wake.wait()
                self._is_asleep = False
                if not self._urgent and not self._is_closing:
                    self._hurry.wait(0)  # rung for a flush that is over: what comes now may wait for more
                while (self._waiting or self._is_behind) and not self._is_closing:
                    if len(self._waiting) < BATCH:
                        self._hurry.wait(PAUSE)
                    if not self._turn() and not self._is_closing:
                        self._hurry.wait(PAUSE)
        finally:
            with self._progress:
                self._thread, self._is_asleep = None, True
                self._progress.notify_all()

    def _turn(self) -> bool:
        """One batch, and a new journal where it is time for one; whether there was any progress."""
        try:
            if not self._write():
                return False
            self._begin_anew()
        except Exception as error:  # noqa: BLE001 - without this thread nothing would be kept any more
            self._complain("fault", f"recording waits: {type(error).__name__}: {error}")
            return False
        return True

    def _write(self) -> bool:
        """One batch into the store; it stays in memory, or in the journal, until it is there."""
        self._make_room()
        batch, upto = self._next_batch()
        try:
            store = self._opened()
            if self._is_behind:
                self._catch_up(store)
            if not batch:
                self._tell_dropped(store)
                self._done(0)
                return True
            events = self._events(batch)
            journal = self._journal.name if self._journal is not None and upto else new_id("journal")
            store.append(self._tenant, events, journal, upto or 1)
        except MulliganError as error:
            self._complain("store", f"recording waits: {error}")
            return False
        except Exception as error:  # noqa: BLE001 - a broken store costs memory, never the user's call
            self._complain("store", f"recording waits: {type(error).__name__}: {error}")
            return self._set_aside(batch)
        self._kept_upto = upto or self._kept_upto
        self._tell_dropped(store)
        self._done(len(batch))
        if self._stream.watchers:
            for event in events:
                self._stream.deliver(event)
        return True

    def _next_batch(self) -> tuple[list[Waiting], int]:
        """The oldest records, and where in the journal the last of them ends."""
        with self._lock:  # nobody is between the journal and the queue
            batch = list(itertools.islice(self._waiting, BATCH))
            upto = max((offset for offset, _ in batch), default=0)
            # What a signal handler recorded in the middle of a record comes before it here, and after it in the
            # journal. The two are kept together, since the offset speaks for both.
            for each in itertools.islice(self._waiting, len(batch), None):
                if not 0 < each[0] < upto:
                    break
                batch.append(each)
            return batch, upto

    def _opened(self) -> Store:
        """The store, with what dead processes left for it; opened here, so that no caller waits for it."""
        if self.store is None:
            with self._arriving:
                store = self._opening()
            if self._journals is not None:
                try:
                    adopt(store, self._tenant, self._journals())
                    release(store, self._tenant, self._journals())
                except Exception as error:  # noqa: BLE001 - what is recorded now need not wait for it
                    self._complain("adoption", f"journals of earlier processes wait: {error}")
            self.store = store
        return self.store

    def _events(self, batch: Sequence[Waiting]) -> list[AnyEvent]:
        """The events of a batch, in its order, as they may be kept."""
        worked = self._stream.successes([record for _, record in batch if isinstance(record, Success)])
        events: list[AnyEvent] = []
        for _, record in batch:
            if isinstance(record, Success):
                events += next(worked)
            else:
                events.append(record)
        return events

    def _done(self, count: int) -> None:
        with self._progress:
            for _ in range(count):
                self._waiting.popleft()
            self._kept += count
            self._progress.notify_all()

    def _tell_dropped(self, store: Store) -> None:
        """Counts what was dropped where `mulligan doctor` sees it, once the store can be written again."""
        count = self.dropped
        if count > self._told_dropped:
            try:
                add_dropped(store, self._tenant, count - self._told_dropped)
            except Exception as error:  # noqa: BLE001 - the batch itself is kept; the count is told with the next
                self._complain("dropped", f"what was dropped is not counted yet: {error}")
            else:
                self._told_dropped = count

    def _make_room(self) -> None:
        """Lets go from memory what a journal has too; of what is in none, the oldest successes go first, counted."""
        excess = len(self._waiting) - CAPACITY
        if excess > 0:
            with self._lock, self._progress:
                left: list[Waiting] = []
                for each in self._waiting:
                    if excess > 0 and each[0]:
                        self._spilled = max(self._spilled, each[0])
                        excess -= 1
                    else:
                        left.append(each)
                if excess > 0:  # there is no journal, or there was none
                    lost = sorted(range(len(left)), key=lambda place: not isinstance(left[place][1], Success))[:excess]
                    self.dropped += len(lost)
                    gone = frozenset(lost)
                    left = [each for place, each in enumerate(left) if place not in gone]
                self._kept += len(self._waiting) - len(left)
                self._waiting = deque(left)
                self._progress.notify_all()
        journal = self._journal
        if journal is not None and journal.offset > JOURNAL_FULL // PARTS and time.monotonic() >= self._next_aside:
            self._lay_aside(journal)

    def _lay_aside(self, journal: Journal) -> None:
        """Begins a new journal where the store is away and this one has grown long."""
        if self._journals is None or (self.store is not None and self._kept_upto + JOURNAL_LONG > journal.offset):
            return  # the store keeps up: it is begun anew instead
        try:
            new = Journal(self._journals())
            with self._lock, self._progress:
                for started in tuple(self._open_runs.values()):
                    new.write(event_frame(started))
                left = deque(each for each in self._waiting if not each[0])
                self._kept += len(self._waiting) - len(left)
                self._waiting = left
                self._journal, self._kept_upto, self._spilled = new, 0, 0
                self._older.append(journal)
                self._progress.notify_all()
            self._thin()
        except Exception as error:  # noqa: BLE001 - the one there is does
            self._next_aside = time.monotonic() + 1.0
            self._complain("journal", f"the journal cannot be begun anew ({error})")

    def _thin(self) -> None:
        """Drops the oldest successes of journals that were laid aside, and then the oldest of everything."""
        while self._older and sum(each.offset for each in self._older) > JOURNAL_FULL:
            old = next((each for each in self._older if each.name not in self._thinned), None)
            if old is not None:
                self._complain("full", f"{old.path} is full; its successes are dropped: the store is away")
                new, lost = thinned(old)
                self._older[self._older.index(old)] = new
                self._thinned.add(new.name)
            elif sum(each.offset for each in self._older) > 2 * JOURNAL_FULL:
                old = self._older.pop(0)
                self._complain("full", f"{old.path} is dropped: the store is away")
                lost = sum(1 for _ in frames(old.path))
            else:
                return
            with self._lock:
                self.dropped += lost
            self._remove(old)

    def _catch_up(self, store: Store) -> None:
        """Brings in what waits in journals alone: in those laid aside, and in our own what memory let go."""
        while self._older:
            self._bring_in(store, self._older[0], self._older[0].offset)
            self._remove(self._older.pop(0))
        self._thinned.clear()
        if self._spilled and self._journal is not None:
            self._bring_in(store, self._journal, self._spilled)
            self._kept_upto = self._spilled
        self._spilled = 0

    def _bring_in(self, store: Store, journal: Journal, end: int) -> None:
        batch: list[AnyEvent] = []
        upto = 0
        for offset, event in events_of(frames(journal.path, store.offset(self._tenant, journal.name))):
            if offset > end:
                break
            if len(batch) >= BATCH and offset != upto:
                store.append(self._tenant, batch, journal.name, upto)
                batch = []
            batch.append(event)
            upto = offset
        if batch:
            store.append(self._tenant, batch, journal.name, upto)

    def _set_aside(self, batch: list[Waiting]) -> bool:
        """Drops what can never be kept, lest one such record holds up all that follow it; whether there was any.

        Where every record can be written down, a store that takes some of them alone and not the others has told which.
        """
        sound = [each for each in batch if self._is_encodable(each)]
        if len(sound) == len(batch):
            refused = [each for each in batch if not self._is_kept_alone(each)]
            if len(refused) == len(batch):
                return False  # it takes nothing at all: it is the store that is broken
            # Once more, now that it has taken something: it may have come back in the middle of the first round.
            bad = {id(each) for each in refused if not self._is_kept_alone(each)}
            sound = [each for each in batch if id(each) not in bad]
        if len(sound) == len(batch):
            return False
        with self._lock, self._progress:
            for _ in batch:
                self._waiting.popleft()
            self._waiting.extendleft(reversed(sound))
            self.dropped += len(batch) - len(sound)
            self._kept += len(batch) - len(sound)
            self._progress.notify_all()
        return True

    def _is_encodable(self, waiting: Waiting) -> bool:
        try:
            encode(self._events([waiting]))
        except Exception:  # noqa: BLE001 - whatever it is, it cannot be written down
            return False
        return True

    def _is_kept_alone(self, waiting: Waiting) -> bool:
        if self.store is None:
            return False
        try:
            # Under a journal of its own: the batch it belongs to comes again, and what it holds is known by its ids.
            self.store.append(self._tenant, self._events([waiting]), new_id("journal"), 1)
        except Exception:  # noqa: BLE001 - whatever it is, it is this record's
            return False
        return True

    def _begin_anew(self) -> None:
        """A journal that has grown long makes way for a new one, with the little of it that is not kept yet."""
        old = self._journal
        if old is None or old.offset < JOURNAL_LONG or self._spilled or self._journals is None:
            return
        if len(self._waiting) > FEW:
            return  # callers would wait while they are copied
        try:
            new = Journal(self._journals())
        except Exception as error:  # noqa: BLE001 - the old one does
            self._complain("journal", f"the journal cannot be begun anew ({error})")
            return
        with self._lock:
            end = old.offset
            try:
                for started in tuple(self._open_runs.values()):
                    new.write(event_frame(started))  # so that whoever adopts it knows that the run was still open
                moved = new.offset - self._kept_upto
                new.write(old.since(self._kept_upto))
                waiting = deque((offset and offset + moved, record) for offset, record in self._waiting)
            except Exception as error:  # noqa: BLE001 - the old one does
                self._complain("journal", f"the journal cannot be begun anew ({error})")
                self._remove(new)
                return
            is_done = old.offset == end and len(waiting) == len(self._waiting)
            if is_done:  # else a finaliser has recorded in the middle of this
                self._journal, self._waiting, self._kept_upto = new, waiting, 0
        self._remove(old if is_done else new)

    def _remove(self, journal: Journal) -> None:
        try:
            journal.close(remove=True)
        except OSError as error:  # kept, and known by its offset: nothing in it is doubled
            self._complain("journal", f"{journal.path} cannot be removed ({error})")

    def _complain(self, what: str, told: str) -> None:
        now = time.monotonic()
        if now - self._warned.get(what, -60.0) >= 60:
            self._warned[what] = now
            log.warning("%s (%d records in memory, %d dropped)", told, len(self._waiting), self.dropped)


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


_held: list[threading.Lock] = []


def _before_fork() -> None:
    _held[:] = [lock for lock in (each._arriving for each in tuple(_recorders)) if lock.acquire(timeout=EXIT)]


def _after_fork_in_parent() -> None:
    for lock in _held:
        lock.release()
    _held.clear()


def _after_fork() -> None:
    # The parent writes what it has; a child starts with nothing, its own journal and its own connection.
    for recorder in tuple(_recorders):
        held = [recorder._journal, *recorder._older]
        recorder._reset()
        for journal in filter(None, held):
            journal.abandon()
    processes = sys.modules.get("multiprocessing.util")
    if processes is not None:
        processes.register_after_fork(_recorders, _at_exit_of_a_worker)


def _at_exit_of_a_worker(_: object) -> None:
    # Children of multiprocessing leave without the interpreter's own farewell, and forget what was arranged before.
    sys.modules["multiprocessing.util"].Finalize(None, _at_exit, exitpriority=0)


def _at_exit() -> None:
    deadline = time.monotonic() + EXIT
    for recorder in tuple(_recorders):
        recorder.close(max(0.0, deadline - time.monotonic()))


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)
