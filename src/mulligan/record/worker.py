"""Recorder thread: when it sleeps, flushes and stops."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable

from mulligan.record import backlog
from mulligan.record.queue import RecordQueue
from mulligan.record.signals import WakeSignal

BATCH_DELAY_SECONDS = 0.05
"""Delay between batches, so that many records share one transaction."""


class Worker:
    """Daemon thread that runs rounds while records are queued. The first record starts it."""

    def __init__(self, queue: RecordQueue, run_round: Callable[[], bool]) -> None:
        self._queue = queue
        self._run_round = run_round
        """Store one batch. Return whether there was progress."""
        self.reset()

    def reset(self) -> None:
        """Return to the initial state. A forked child has only the thread that called fork."""
        self.thread: threading.Thread | None = None
        self._start_lock = threading.RLock()
        self._wake_signal = WakeSignal()
        self._flush_signal = WakeSignal()
        self._flush_waiters: set[object] = set()
        """One object per pending `flush` call."""
        self._is_stopping = False

    def wake_worker(self) -> None:
        if self.thread is None:
            self.start()
        self._wake_signal.set()

    def start(self) -> None:
        if sys.is_finalizing():
            # A thread started now never runs, and start() would block. The journal has the records.
            return
        with self._start_lock:
            thread = threading.Thread(target=self._run, name="mulligan-recorder", daemon=True)
            if self.thread is not None:  # checked last: a signal handler may have started one meanwhile
                return
            self.thread = thread
            try:
                thread.start()
            except RuntimeError as error:  # interpreter shutdown, or too many threads
                self.thread = None
                self._queue.warn_rate_limited("thread", f"Recorder not running, records stay in the journal: {error}")

    def flush(self, timeout: float) -> bool:
        """Block until all queued records are stored or the timeout expires. Return whether all were stored."""
        queue = self._queue
        target_count = queue.total_queued
        deadline = time.monotonic() + timeout
        waiter = object()
        self._flush_waiters.add(waiter)
        try:
            return self._wait_until_stored(target_count, deadline)
        finally:
            self._flush_waiters.discard(waiter)

    def _wait_until_stored(self, target_count: int, deadline: float) -> bool:
        queue = self._queue
        while not queue.has_stored(target_count):
            if self.thread is None:
                self.start()
            thread = self.thread
            if thread is None or thread is threading.current_thread():
                break  # a listener on this thread would wait for itself
            self._flush_signal.set()
            self._wake_signal.set()
            if not queue.progress.wait_until(
                functools.partial(self._is_stored_or_stopped, target_count, thread), deadline
            ):
                break
        return queue.has_stored(target_count)

    def _is_stored_or_stopped(self, target_count: int, thread: threading.Thread) -> bool:
        return self._queue.has_stored(target_count) or self.thread is not thread

    def stop(self, deadline: float) -> bool:
        """Stop the thread by the deadline. Return whether it has ended.

        A thread that is blocked in the store continues when it can.
        """
        with self._start_lock:  # a thread cannot be joined before it is started
            thread = self.thread
        if thread is None:
            return True
        self._is_stopping = True
        self._flush_signal.set()
        self._wake_signal.set()
        thread.join(max(0.0, deadline - time.monotonic()))
        self._is_stopping = False
        return not thread.is_alive()

    def _run(self) -> None:
        queue = self._queue
        try:
            while not self._is_stopping:
                queue.is_worker_idle = True
                # Check after setting the idle flag: a record queued in between then wakes this thread.
                if not queue.has_more:
                    self._wake_signal.wait()
                queue.is_worker_idle = False
                if not self._flush_waiters and not self._is_stopping:
                    self._flush_signal.wait(0)  # clear the signal of a finished flush: new records may wait for a batch
                while queue.has_more and not self._is_stopping:
                    if len(queue.queued) < backlog.BATCH_RECORDS and not queue.is_behind and not self._flush_waiters:
                        self._flush_signal.wait(BATCH_DELAY_SECONDS)
                    if not self._run_round() and not self._is_stopping:
                        self._flush_signal.wait(BATCH_DELAY_SECONDS)
        finally:
            self.thread, queue.is_worker_idle = None, True
            queue.progress.notify_all()
