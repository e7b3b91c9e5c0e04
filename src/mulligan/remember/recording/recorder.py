"""Recorder: writes each record to the journal before the call returns, and later, in batches, to the store.

The journal survives a process crash; the store answers queries. The recorder thread moves records from one to the other
and redacts successes on the way. It never blocks a caller.
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
"""Maximum delay of process exit caused by the recorder."""
AGAIN, SHARE = 0.5, 5
"""Delay before the next write to a store that rejected every record: this minimum, or this factor times the duration
of the last attempt."""
ADOPTION = 30.0
"""Delay before the next attempt to recover orphaned journals after a failed one."""


class Recorder:
    """Event sink that buffers events until they are stored, then delivers each to the listeners of the stream."""

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
        """Whether the idle recorder thread consolidates lessons. A server consolidates its own."""
        self._intake = Intake(journals, stream.known, fsync)
        self._worker = Worker(self._intake, self._turn)
        self._intake.rouse = self._worker.rouse
        self.keep: Callable[..., None] = self._intake.keep  # bound: one call less on the hot path
        """Queue a call that succeeded at the first attempt."""
        self._reset()
        _recorders.add(self)

    def _reset(self) -> None:
        self.store: Store | None = None
        self._not_before = 0.0
        """Monotonic time of the next write after a store rejected every record."""
        self._next_adoption = float("inf")
        """Monotonic time of the next attempt to recover orphaned journals."""
        self._learner = Learner()
        self._closing = threading.RLock()
        self._arriving = threading.Lock()
        """Held while a store is imported and opened: a child forked meanwhile would deadlock on the import lock."""

    def begin_in_child(self) -> None:
        """Reset after fork: the parent stores its own records, the child starts empty."""
        self._reset()
        self._worker.reset()
        self._intake.abandon()

    def __call__(self, event: AnyEvent) -> None:
        self._intake.take(event)

    @property
    def dropped(self) -> int:
        """Number of dropped records."""
        return self._intake.losses.dropped

    def flush(self, timeout: float = EXIT) -> bool:
        """Block until all published events are stored or the timeout expires. Return whether all were stored."""
        return self._worker.flush(timeout)

    def close(self, timeout: float = EXIT) -> bool:
        """Store and deliver the queued events, then close the store. Return whether all events were stored.

        Other events stay in the journal for the next process. A later event opens the store again.
        """
        intake, worker = self._intake, self._worker
        if worker.thread is threading.current_thread():
            return not intake.has_more  # called by a listener on the recorder thread, which cannot join itself
        deadline = time.monotonic() + timeout
        with self._closing:
            while True:
                done = worker.flush(0.75 * (deadline - time.monotonic()))
                if not worker.end(deadline):
                    return done
                # Repeat if a caller recorded while the thread was stopping.
                if not (done and intake.has_more) or time.monotonic() >= deadline:
                    return self._let_go() and done

    def _let_go(self) -> bool:
        """Close the store and remove the journal if it is no longer needed. Return whether all records are stored."""
        store, self.store = self.store, None
        is_kept = self._intake.let_go()
        if store is not None:
            store.close()
        return is_kept

    # Called by the recorder thread

    def _turn(self) -> bool:
        """Write one batch, then do the maintenance that is due. Return whether there was progress."""
        try:
            if not self._write():
                return False
            self._intake.begin_anew()
            if self.store is not None and time.monotonic() >= self._next_adoption:
                self._adopt(self.store)
            self._learn()
        except Exception as error:  # noqa: BLE001 - the recorder thread must not die
            self._intake.complain("fault", f"recording waits: {type(error).__name__}: {error}")
            return False
        return True

    def _write(self) -> bool:
        """Write one batch to the store. Records stay in memory or in the journal until they are stored."""
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
        except Exception as error:  # noqa: BLE001 - a broken store must not fail the user's call
            intake.complain("store", f"recording waits: {type(error).__name__}: {error}")
            return self._set_aside(batch)
        self._tell_dropped(store)
        intake.done(upto)
        if self._stream.watchers:
            for event in events:
                self._stream.deliver(event)
        return True

    def _learn(self) -> None:
        """Consolidate lessons if the queue is empty."""
        if not self._learns or self.store is None or self._intake.has_more:
            return
        self._learner.heard(self._tenant)
        try:
            for _, lesson in self._learner.turn(self.store):
                self._stream.publish(LessonLearned(lesson))
        except Exception as error:  # noqa: BLE001 - consolidation must not block recording
            self._intake.complain("lessons", f"lessons wait: {error}")

    def _opened(self) -> Store:
        """Return the store. Open it and recover orphaned journals first if needed, so that no caller waits for that."""
        if self.store is None:
            with self._arriving:
                store = self._opening()
            self._adopt(store)
            self.store = store
        return self.store

    def _adopt(self, store: Store) -> None:
        """Recover orphaned journals. Schedule another attempt if that fails."""
        if self._journals is None:
            return
        self._next_adoption = float("inf")
        try:
            adopt(store, self._tenant, self._journals())
            release(store, self._tenant, self._journals())
        except Exception as error:  # noqa: BLE001 - recovery must not block recording
            self._next_adoption = time.monotonic() + ADOPTION
            self._intake.complain("adoption", f"journals of earlier processes wait: {error}")

    def _events(self, batch: Sequence[Waiting]) -> Sequence[AnyEvent]:
        """Return the redacted events of a batch, in order."""
        return self._stream.kept([record for _, record in batch])

    def _tell_dropped(self, store: Store) -> None:
        try:
            self._intake.losses.tell(store, self._tenant)
        except Exception as error:  # noqa: BLE001 - the batch is stored; the next one retries the count
            self._intake.complain("dropped", f"what was dropped is not counted yet: {error}")

    def _set_aside(self, batch: list[Waiting]) -> bool:
        """Drop unstorable records, so that they do not block the others. Return whether any was dropped.

        If all records can be encoded, each is written on its own to find those that the store rejects.
        """
        sound = [each for each in batch if self._is_encodable(each)]
        if len(sound) == len(batch):
            if self.store is None:
                return False
            begun = time.monotonic()
            try:
                bad = refused(self.store, self._tenant, [self._events([each]) for each in batch])
            except MulliganError:
                return False  # the store became unavailable, which says nothing about a record
            if bad is None:
                now = time.monotonic()
                self._not_before = now + max(AGAIN, SHARE * (now - begun))
                return False  # the store rejects everything: the store is broken, not a record
            sound = [each for place, each in enumerate(batch) if place not in bad]
        if len(sound) == len(batch):
            return False
        self._intake.drop(sound)
        return True

    def _is_encodable(self, waiting: Waiting) -> bool:
        try:
            encode(list(self._events([waiting])))
        except Exception:  # noqa: BLE001 - any error means it cannot be encoded
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
    # multiprocessing children skip atexit handlers and clear finalizers registered before the fork.
    sys.modules["multiprocessing.util"].Finalize(None, _at_exit, exitpriority=0)


def _at_exit() -> None:
    deadline = time.monotonic() + EXIT
    for recorder in tuple(_recorders):
        recorder.close(max(0.0, deadline - time.monotonic()))


atexit.register(_at_exit)
forks.hold(lambda: [each._arriving for each in tuple(_recorders)])
forks.renew(_begin_in_child)
