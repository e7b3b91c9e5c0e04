"""Moves events into the store in batches, on a thread of its own, and never blocks the caller."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from mulligan.events import AnyEvent, Stream
from mulligan.failure import MulliganError
from mulligan.records import encode, new_id
from mulligan.remember.store import LOCAL, Store

log = logging.getLogger("mulligan")

BATCH = 500
PAUSE = 0.05
"""Seconds between batches, so that many events share one transaction."""
CAPACITY = 50_000
"""Events kept in memory while the store cannot be written; beyond it the oldest are dropped, and counted."""
EXIT = 2.0
"""Seconds. Leaving the process never takes longer than this because of us."""


class Recorder:
    """Keeps events for as long as the store cannot, and hands each to the stream's listeners once it is kept."""

    def __init__(self, opening: Callable[[], Store], stream: Stream, tenant: str = LOCAL) -> None:
        self._opening = opening
        self._stream = stream
        self._tenant = tenant
        self.dropped = 0
        self._reset()
        _recorders.add(self)

    def _reset(self) -> None:
        self.store: Store | None = None
        self.journal = new_id("journal")
        self._waiting: deque[AnyEvent] = deque()
        self._taken = 0
        self._kept = 0
        self._counting = threading.Lock()
        self._wake = threading.Event()
        self._progress = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._warned = float("-inf")

    def __call__(self, event: AnyEvent) -> None:
        with self._counting:
            self._waiting.append(event)
            self._taken += 1
        if self._thread is None:
            self._start()
        self._wake.set()

    def _start(self) -> None:
        with self._progress:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mulligan-recorder", daemon=True)
                self._thread.start()

    def flush(self, timeout: float = EXIT) -> bool:
        """Waits until everything published so far is in the store; whether it is."""
        aim = self._taken
        if self._thread is None:
            return aim == 0
        with self._progress:
            self._wake.set()
            return self._progress.wait_for(lambda: self._kept >= aim, timeout)

    def close(self, timeout: float = EXIT) -> bool:
        """Keeps what is left, tells the listeners of it and lets go of the store; whether everything was kept.

        An event that comes later opens it again.
        """
        deadline = time.monotonic() + timeout
        done = self.flush(timeout)
        thread = self._thread
        self._is_closing = True
        self._wake.set()
        if thread is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                return done
        if self.store is not None:
            self.store.close()
            self.store = None
        self._thread, self._is_closing = None, False
        return done

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait()
            self._wake.clear()
            while self._waiting and not self._is_closing:
                if self._write():
                    time.sleep(0 if len(self._waiting) >= BATCH else PAUSE / 10)
                else:
                    time.sleep(PAUSE)

    def _write(self) -> bool:
        """One batch into the store; it stays in memory until it is there."""
        self._make_room()
        batch = [self._waiting[place] for place in range(min(BATCH, len(self._waiting)))]
        try:
            if self.store is None:
                self.store = self._opening()
            self.store.append(self._tenant, batch, self.journal, self._kept + len(batch))
        except MulliganError as error:
            self._complain(error)
            return False
        except Exception as error:  # noqa: BLE001 - a broken store costs memory, never the user's call
            self._complain(error)
            return self._set_aside(batch)
        for _ in batch:
            self._waiting.popleft()
        with self._progress:
            self._kept += len(batch)
            self._progress.notify_all()
        for event in batch:
            self._stream.deliver(event)
        return True

    def _set_aside(self, batch: list[AnyEvent]) -> bool:
        """Drops what can never be kept, lest one such event holds up all that follow it; whether there was any.

        Where every event can be written down, a store that takes some of them alone and not the others has told which.
        """
        sound = [event for event in batch if _is_encodable(event)]
        if len(sound) == len(batch):
            sound = [event for event in batch if self._is_kept_alone(event)]
            if not sound:
                return False  # it takes nothing at all: it is the store that is broken
        if len(sound) == len(batch):
            return False
        for _ in batch:
            self._waiting.popleft()
        self._waiting.extendleft(reversed(sound))
        self._drop(len(batch) - len(sound))
        return True

    def _is_kept_alone(self, event: AnyEvent) -> bool:
        if self.store is None:
            return False
        try:
            # Under a journal of its own: the batch it belongs to comes again, and what it holds is known by its ids.
            self.store.append(self._tenant, [event], new_id("journal"), 1)
        except Exception:  # noqa: BLE001 - whatever it is, it is this event's
            return False
        return True

    def _drop(self, count: int) -> None:
        self.dropped += count
        with self._progress:
            self._kept += count
            self._progress.notify_all()

    def _complain(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._warned >= 60:
            self._warned = now
            told = str(error) if isinstance(error, MulliganError) else f"{type(error).__name__}: {error}"
            log.warning("recording waits: %s (%d events in memory, %d dropped)", told, len(self._waiting), self.dropped)

    def _make_room(self) -> None:
        while len(self._waiting) > CAPACITY:
            self._waiting.popleft()
            self._drop(1)


def _is_encodable(event: AnyEvent) -> bool:
    try:
        encode(event)
    except Exception:  # noqa: BLE001 - whatever it is, it cannot be written down
        return False
    return True


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _after_fork() -> None:
    # The parent writes what it has; a child starts with nothing, its own journal and its own connection.
    for recorder in tuple(_recorders):
        recorder._reset()


def _at_exit() -> None:
    deadline = time.monotonic() + EXIT
    for recorder in tuple(_recorders):
        recorder.close(max(0.0, deadline - time.monotonic()))


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
