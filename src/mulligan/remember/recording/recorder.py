"""Keeps every event twice: in the journal before the caller goes on, and then, in batches, in the store.

The journal survives the process; the store answers questions. The recorder's thread moves one into the other, redacts
what worked on the way, and never blocks the caller.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from mulligan import forks
from mulligan.events import AnyEvent, LessonLearned, Stream
from mulligan.failure import MulliganError
from mulligan.records import encode, new_id
from mulligan.remember.lessons.learner import Learner
from mulligan.remember.recording.adoption import adopt, release
from mulligan.remember.recording.intake import Intake, Waiting
from mulligan.remember.recording.refusal import refused
from mulligan.remember.recording.worker import Worker
from mulligan.remember.store import LOCAL, Store

EXIT = 2.0
"""Seconds. Leaving the process never takes longer than this because of us."""
AGAIN, SHARE = 0.5, 5
"""A store that has refused every record by itself is offered them again after so many seconds, or after so many times
as long as that took."""
ADOPTION = 30.0
"""Seconds after which journals of dead processes that could not be kept are tried again."""


class Recorder:
    """Keeps events for as long as the store cannot, and hands each to the stream's listeners once it is kept."""

    def __init__(
        self,
        opening: Callable[[], Store],
        stream: Stream,
        tenant: str = LOCAL,
        journals: Callable[[], Path] | None = None,
        fsync: bool = False,
        learns: bool = False,
    ) -> None:
        self._opening = opening
        self._journals = journals
        self._stream = stream
        self._tenant = tenant
        self._learns = learns
        """Whether lessons are made here, in the time that is left: a server makes its own."""
        self._intake = Intake(journals, stream.known, fsync)
        self._worker = Worker(self._intake, self._turn)
        self._intake.rouse = self._worker.rouse
        self.keep: Callable[..., None] = self._intake.keep  # not by way of another call: it is made at every call
        """Keeps a call that worked at once."""
        self._reset()
        _recorders.add(self)

    def _reset(self) -> None:
        self.store: Store | None = None
        self._not_before = 0.0
        """When a store that takes no record at all is tried again."""
        self._next_adoption = float("inf")
        """When what dead processes left is tried again: a store may have been away when it was opened."""
        self._learner = Learner()
        self._closing = threading.RLock()
        self._arriving = threading.Lock()
        """Held while a store is opened and imported: a child forked meanwhile would wait for that import for ever."""

    def begin_in_child(self) -> None:
        """The parent writes what it has; a child starts with nothing, its own journal and its own connection."""
        self._reset()
        self._worker.reset()
        self._intake.abandon()

    def __call__(self, event: AnyEvent) -> None:
        self._intake.take(event)

    @property
    def dropped(self) -> int:
        """Records that could not be kept."""
        return self._intake.losses.dropped

    def flush(self, timeout: float = EXIT) -> bool:
        """Waits until everything published so far is in the store; whether it is."""
        return self._worker.flush(timeout)

    def close(self, timeout: float = EXIT) -> bool:
        """Keeps what is left, tells the listeners of it and lets go of the store; whether everything was kept.

        What was not kept stays in the journal, for the next process. An event that comes later opens it all again.
        """
        intake, worker = self._intake, self._worker
        if worker.thread is threading.current_thread():
            return not intake.has_more  # a listener's wish: the one who listens cannot wait for its own end
        deadline = time.monotonic() + timeout
        with self._closing:
            while True:
                done = worker.flush(0.75 * (deadline - time.monotonic()))
                if not worker.end(deadline):
                    return done
                # Somebody may have recorded while the thread was ending: then once more.
                if not (done and intake.has_more) or time.monotonic() >= deadline:
                    return self._let_go() and done

    def _let_go(self) -> bool:
        """Lets go of the store, and of the journal where nothing in it is needed any more; whether all is kept."""
        store, self.store = self.store, None
        is_kept = self._intake.let_go()
        if store is not None:
            store.close()
        return is_kept

    # On the recorder's thread

    def _turn(self) -> bool:
        """One batch, and a new journal where it is time for one; whether there was any progress."""
        try:
            if not self._write():
                return False
            self._intake.begin_anew()
            if self.store is not None and time.monotonic() >= self._next_adoption:
                self._adopt(self.store)
            self._learn()
        except Exception as error:  # noqa: BLE001 - without this thread nothing would be kept any more
            self._intake.complain("fault", f"recording waits: {type(error).__name__}: {error}")
            return False
        return True

    def _write(self) -> bool:
        """One batch into the store; it stays in memory, or in the journal, until it is there."""
        intake = self._intake
        intake.make_room(self.store is not None)
        if time.monotonic() < self._not_before:
            return False
        batch: list[Waiting] = []
        try:
            store = self._opened()
            if intake.is_behind:
                intake.catch_up(store, self._tenant)
            batch, journal, upto = intake.next_batch()
            events = self._events(batch)
            if batch:
                store.append(self._tenant, events, journal or new_id("journal"), upto or 1)
        except MulliganError as error:
            intake.complain("store", f"recording waits: {error}")
            return False
        except Exception as error:  # noqa: BLE001 - a broken store costs memory, never the user's call
            intake.complain("store", f"recording waits: {type(error).__name__}: {error}")
            return self._set_aside(batch)
        self._tell_dropped(store)
        intake.done(upto)
        if self._stream.watchers:
            for event in events:
                self._stream.deliver(event)
        return True

    def _learn(self) -> None:
        """Lessons of what was kept, when there is nothing else to do."""
        if not self._learns or self.store is None or self._intake.has_more:
            return
        self._learner.heard(self._tenant)
        try:
            for _, lesson in self._learner.turn(self.store):
                self._stream.publish(LessonLearned(lesson))
        except Exception as error:  # noqa: BLE001 - what is recorded does not wait for what is learned
            self._intake.complain("lessons", f"lessons wait: {error}")

    def _opened(self) -> Store:
        """The store, with what dead processes left for it; opened here, so that no caller waits for it."""
        if self.store is None:
            with self._arriving:
                store = self._opening()
            self._adopt(store)
            self.store = store
        return self.store

    def _adopt(self, store: Store) -> None:
        """What dead processes left; where it cannot be kept now, once more after a while."""
        if self._journals is None:
            return
        self._next_adoption = float("inf")
        try:
            adopt(store, self._tenant, self._journals())
            release(store, self._tenant, self._journals())
        except Exception as error:  # noqa: BLE001 - what is recorded now need not wait for it
            self._next_adoption = time.monotonic() + ADOPTION
            self._intake.complain("adoption", f"journals of earlier processes wait: {error}")

    def _events(self, batch: Sequence[Waiting]) -> Sequence[AnyEvent]:
        """The events of a batch, in its order, as they may be kept."""
        return self._stream.kept([record for _, record in batch])

    def _tell_dropped(self, store: Store) -> None:
        try:
            self._intake.losses.tell(store, self._tenant)
        except Exception as error:  # noqa: BLE001 - the batch itself is kept; the count is told with the next
            self._intake.complain("dropped", f"what was dropped is not counted yet: {error}")

    def _set_aside(self, batch: list[Waiting]) -> bool:
        """Drops what can never be kept, lest one such record holds up all that follow it; whether there was any.

        Where every record can be written down, a store that takes some of them alone and not the others has told which.
        """
        sound = [each for each in batch if self._is_encodable(each)]
        if len(sound) == len(batch):
            if self.store is None:
                return False
            begun = time.monotonic()
            try:
                bad = refused(self.store, self._tenant, [self._events([each]) for each in batch])
            except MulliganError:
                return False  # it went away in the middle, which says nothing of a record
            if bad is None:
                now = time.monotonic()
                self._not_before = now + max(AGAIN, SHARE * (now - begun))
                return False  # it takes nothing at all: it is the store that is broken
            sound = [each for place, each in enumerate(batch) if place not in bad]
        if len(sound) == len(batch):
            return False
        self._intake.drop(sound)
        return True

    def _is_encodable(self, waiting: Waiting) -> bool:
        try:
            encode(list(self._events([waiting])))
        except Exception:  # noqa: BLE001 - whatever it is, it cannot be written down
            return False
        return True


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _begin_in_child() -> None:
    for recorder in tuple(_recorders):
        recorder.begin_in_child()
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
forks.hold(lambda: [each._arriving for each in tuple(_recorders)])
forks.renew(_begin_in_child)
