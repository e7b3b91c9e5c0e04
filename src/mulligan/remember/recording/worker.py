"""Recorder thread: when it sleeps, flushes and stops."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable

from mulligan.remember.recording import backlog
from mulligan.remember.recording.bells import Bell
from mulligan.remember.recording.intake import Intake

PAUSE = 0.05
"""Delay between batches, so that many records share one transaction."""


class Worker:
    """Daemon thread that runs rounds while records are queued. The first record starts it."""

    def __init__(self, intake: Intake, turn: Callable[[], bool]) -> None:
        self._intake = intake
        self._turn = turn
        """Store one batch. Return whether there was progress."""
        self.reset()

    def reset(self) -> None:
        """Return to the initial state. A forked child has only the thread that called fork."""
        self.thread: threading.Thread | None = None
        self._starting = threading.RLock()
        self._wake = Bell()
        self._hurry = Bell()
        self._urgent: set[object] = set()
        """One object per pending `flush` call."""
        self._is_ending = False

    def rouse(self) -> None:
        if self.thread is None:
            self.start()
        self._wake.ring()

    def start(self) -> None:
        if sys.is_finalizing():
            # A thread started now never runs, and start() would block. The journal has the records.
            return
        with self._starting:
            thread = threading.Thread(target=self._run, name="mulligan-recorder", daemon=True)
            if self.thread is not None:  # checked last: a signal handler may have started one meanwhile
                return
            self.thread = thread
            try:
                thread.start()
            except RuntimeError as error:  # interpreter shutdown, or too many threads
                self.thread = None
                self._intake.complain("thread", f"records wait in the journal: {error}")

    def flush(self, timeout: float) -> bool:
        """Block until all queued records are stored or the timeout expires. Return whether all were stored."""
        intake = self._intake
        aim = intake.taken
        deadline = time.monotonic() + timeout
        waiter = object()
        self._urgent.add(waiter)
        try:
            return self._comes_to(aim, deadline)
        finally:
            self._urgent.discard(waiter)

    def _comes_to(self, aim: int, deadline: float) -> bool:
        intake = self._intake
        while not intake.has_come_to(aim):
            if self.thread is None:
                self.start()
            thread = self.thread
            if thread is None or thread is threading.current_thread():
                break  # a listener on this thread would wait for itself
            self._hurry.ring()
            self._wake.ring()
            if not intake.progress.wait_until(functools.partial(self._has_come_to, aim, thread), deadline):
                break
        return intake.has_come_to(aim)

    def _has_come_to(self, aim: int, thread: threading.Thread) -> bool:
        return self._intake.has_come_to(aim) or self.thread is not thread

    def end(self, deadline: float) -> bool:
        """Stop the thread by the deadline. Return whether it has ended.

        A thread that is blocked in the store continues when it can.
        """
        with self._starting:  # a thread cannot be joined before it is started
            thread = self.thread
        if thread is None:
            return True
        self._is_ending = True
        self._hurry.ring()
        self._wake.ring()
        thread.join(max(0.0, deadline - time.monotonic()))
        self._is_ending = False
        return not thread.is_alive()

    def _run(self) -> None:
        intake = self._intake
        try:
            while not self._is_ending:
                intake.is_unheard = True
                # Check after setting the idle flag: a record queued in between then wakes this thread.
                if not intake.has_more:
                    self._wake.wait()
                intake.is_unheard = False
                if not self._urgent and not self._is_ending:
                    self._hurry.wait(0)  # clear the signal of a finished flush: new records may wait for a batch
                while intake.has_more and not self._is_ending:
                    if len(intake.waiting) < backlog.BATCH and not intake.is_behind and not self._urgent:
                        self._hurry.wait(PAUSE)
                    if not self._turn() and not self._is_ending:
                        self._hurry.wait(PAUSE)
        finally:
            self.thread, intake.is_unheard = None, True
            intake.progress.tell()
