"""The recorder's thread: when it sleeps, when it hurries, and how it ends."""

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
"""Seconds between batches, so that many events share one transaction."""


class Worker:
    """A daemon thread that takes turns for as long as something waits; started by the first record."""

    def __init__(self, intake: Intake, turn: Callable[[], bool]) -> None:
        self._intake = intake
        self._turn = turn
        """One batch; whether there was any progress."""
        self.reset()

    def reset(self) -> None:
        """As at the beginning: a forked child has no thread but the one that forked."""
        self.thread: threading.Thread | None = None
        self._starting = threading.RLock()
        self._wake = Bell()
        self._hurry = Bell()
        self._urgent: set[object] = set()
        """Those who wait for a flush."""
        self._is_ending = False

    def rouse(self) -> None:
        if self.thread is None:
            self.start()
        self._wake.ring()

    def start(self) -> None:
        if sys.is_finalizing():
            return  # a thread that is started now never runs, and starting it would wait for that: the journal has it
        with self._starting:
            thread = threading.Thread(target=self._run, name="mulligan-recorder", daemon=True)
            if self.thread is not None:  # asked last: a signal handler may have started one in the middle of this
                return
            self.thread = thread
            try:
                thread.start()
            except RuntimeError as error:  # the interpreter is leaving, or there are too many threads
                self.thread = None
                self._intake.complain("thread", f"records wait in the journal: {error}")

    def flush(self, timeout: float) -> bool:
        """Waits until everything that was taken so far is kept; whether it is."""
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
                break  # a listener that waited for its own thread would wait in vain
            self._hurry.ring()
            self._wake.ring()
            if not intake.progress.wait_until(functools.partial(self._has_come_to, aim, thread), deadline):
                break
        return intake.has_come_to(aim)

    def _has_come_to(self, aim: int, thread: threading.Thread) -> bool:
        return self._intake.has_come_to(aim) or self.thread is not thread

    def end(self, deadline: float) -> bool:
        """Ends the thread in time; one that hangs in its store goes on when it can. Whether it has ended."""
        with self._starting:  # one that is being started cannot be waited for yet
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
                if not intake.has_more:  # looked at after saying that we sleep, so that no record goes unheard
                    self._wake.wait()
                intake.is_unheard = False
                if not self._urgent and not self._is_ending:
                    self._hurry.wait(0)  # rung for a flush that is over: what comes now may wait for more
                while intake.has_more and not self._is_ending:
                    if len(intake.waiting) < backlog.BATCH and not intake.is_behind and not self._urgent:
                        self._hurry.wait(PAUSE)
                    if not self._turn() and not self._is_ending:
                        self._hurry.wait(PAUSE)
        finally:
            self.thread, intake.is_unheard = None, True
            intake.progress.tell()
