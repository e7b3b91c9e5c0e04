"""Recorder: writes each record to the journal before the call returns, and later, in batches, to the store.

The journal survives a process crash; the store answers queries. The recorder thread moves records from one to the other
and redacts successes on the way. A caller never waits for the store.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mulligan.core import fork_safety
from mulligan.core.events import AnyEvent, EventStream, LessonLearned
from mulligan.core.failure import MulliganError
from mulligan.core.records import encode, new_id
from mulligan.record import journal_import
from mulligan.record.journal_import import find_unstorable, forget_removed_journals, recover_journals
from mulligan.record.queue import QueuedRecord, RecordQueue, WakeSignal
from mulligan.store.base import DEFAULT_TENANT, Store

if TYPE_CHECKING:
    from mulligan.learn.lessons import ConsolidationScheduler

BATCH_DELAY_SECONDS = 0.05
"""Delay between batches, so that many records share one transaction."""
EXIT_FLUSH_SECONDS = 2.0
"""Maximum delay of process exit caused by the recorder."""
MIN_STORE_RETRY_SECONDS, STORE_RETRY_FACTOR = 0.5, 5
"""Delay before the next write to a store that rejected every record: this minimum, or this factor times the duration
of the last attempt."""
JOURNAL_RECOVERY_INTERVAL_SECONDS = 30.0
"""Delay before the next attempt to recover orphaned journals after a failed one."""


FIRST_CONSOLIDATION_SECONDS = 1.0
"""Delay of the first consolidation: most processes that record one call end sooner."""


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
                    if (
                        len(queue.queued) < journal_import.BATCH_RECORDS
                        and not queue.is_behind
                        and not self._flush_waiters
                    ):
                        self._flush_signal.wait(BATCH_DELAY_SECONDS)
                    if not self._run_round() and not self._is_stopping:
                        self._flush_signal.wait(BATCH_DELAY_SECONDS)
        finally:
            self.thread, queue.is_worker_idle = None, True
            queue.progress.notify_all()


class Recorder:
    """Event sink that buffers events until they are stored, then delivers each to the listeners of the stream."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        stream: EventStream,
        tenant: str = DEFAULT_TENANT,
        journal_folder: Callable[[], Path] | None = None,
        fsync: bool = False,
        should_consolidate: bool = False,
    ) -> None:
        self._open_store = open_store
        self._journal_folder = journal_folder
        self._stream = stream
        self._tenant = tenant
        self._should_consolidate = should_consolidate
        """Whether the idle recorder thread consolidates lessons. A server consolidates its own."""
        self.queue = RecordQueue(journal_folder, stream.prepare_template, fsync)
        self.worker = Worker(self.queue, self.run_round)
        self.queue.wake_worker = self.worker.wake_worker
        self.put_success: Callable[..., None] = self.queue.put_success  # bound: one call less on the hot path
        """Queue a call that succeeded at the first attempt."""
        self._reset()
        recorders.add(self)

    def _reset(self) -> None:
        self.store: Store | None = None
        self.next_write_at = 0.0
        """Monotonic time of the next write after a store rejected every record."""
        self._next_recovery_at = float("inf")
        """Monotonic time of the next attempt to recover orphaned journals."""
        self._scheduler: ConsolidationScheduler | None = None
        self._first_consolidation_at = time.monotonic() + FIRST_CONSOLIDATION_SECONDS
        self._close_lock = threading.RLock()
        self._open_lock = threading.Lock()
        """Held while a store is imported and opened: a child forked meanwhile would deadlock on the import lock."""

    def reset_in_child(self) -> None:
        """Reset after fork: the parent stores its own records, the child starts empty."""
        self._reset()
        self.worker.reset()
        self.queue.abandon()

    def __call__(self, event: AnyEvent) -> None:
        self.queue.put_event(event)

    @property
    def dropped(self) -> int:
        """Number of dropped records."""
        return self.queue.drop_counter.dropped

    def flush(self, timeout: float = EXIT_FLUSH_SECONDS) -> bool:
        """Block until all published events are stored or the timeout expires. Return whether all were stored."""
        return self.worker.flush(timeout)

    def close(self, timeout: float = EXIT_FLUSH_SECONDS) -> bool:
        """Store and deliver the queued events, then close the store. Return whether all events were stored.

        Other events stay in the journal for the next process. A later event opens the store again.
        """
        queue, worker = self.queue, self.worker
        if worker.thread is threading.current_thread():
            return not queue.has_more  # called by a listener on the recorder thread, which cannot join itself
        deadline = time.monotonic() + timeout
        with self._close_lock:
            while True:
                is_flushed = worker.flush(0.75 * (deadline - time.monotonic()))
                if not worker.stop(deadline):
                    return is_flushed
                # Repeat if a caller recorded while the thread was stopping.
                if not (is_flushed and queue.has_more) or time.monotonic() >= deadline:
                    return self._release() and is_flushed

    def _release(self) -> bool:
        """Close the store and remove the journal if it is no longer needed. Return whether all records are stored."""
        store, self.store = self.store, None
        is_all_stored = self.queue.release_journal()
        if store is not None:
            store.close()
        return is_all_stored

    # Called by the recorder thread

    def run_round(self) -> bool:
        """Write one batch, then do the maintenance that is due. Return whether there was progress."""
        try:
            if not self._write_batch():
                return False
            self.queue.rotate_journal()
            if self.store is not None and time.monotonic() >= self._next_recovery_at:
                self._recover_journals(self.store)
            self._consolidate()
        except Exception as error:  # noqa: BLE001 - the recorder thread must not die
            self.queue.warn_rate_limited(
                "fault", f"Store unavailable, recording queued: {type(error).__name__}: {error}"
            )
            return False
        return True

    def _write_batch(self) -> bool:
        """Write one batch to the store. Records stay in memory or in the journal until they are stored."""
        queue = self.queue
        queue.enforce_limits(self.store is not None)
        if time.monotonic() < self.next_write_at:
            return False
        batch: list[QueuedRecord] = []
        try:
            store = self._ensure_store()
            if queue.is_behind:
                queue.import_backlog(store, self._tenant)
            batch, journal, end_offset = queue.next_batch()
            events = self._to_events(batch)
            if batch:
                store.append(self._tenant, events, journal or new_id("journal"), end_offset or 1)
        except MulliganError as error:
            queue.warn_rate_limited("store", f"Store unavailable, recording queued: {error}")
            return False
        except Exception as error:  # noqa: BLE001 - a broken store must not fail the user's call
            queue.warn_rate_limited("store", f"Store unavailable, recording queued: {type(error).__name__}: {error}")
            return self._drop_unstorable(batch)
        self._store_drop_count(store)
        queue.mark_stored(end_offset)
        if self._stream.listeners:
            for event in events:
                self._stream.deliver(event)
        return True

    def _consolidate(self) -> None:
        """Consolidate lessons if the queue is empty."""
        if not self._should_consolidate or self.store is None or self.queue.has_more:
            return
        if self._scheduler is None:
            if time.monotonic() < self._first_consolidation_at:
                return  # a short process never imports the rules of consolidation
            with self._open_lock:
                from mulligan.learn.lessons import ConsolidationScheduler
            self._scheduler = ConsolidationScheduler(first_delay_seconds=0.0)
        self._scheduler.mark_changed(self._tenant)
        try:
            for _, lesson in self._scheduler.run_if_due(self.store):
                self._stream.publish(LessonLearned(lesson))
        except Exception as error:  # noqa: BLE001 - consolidation must not block recording
            self.queue.warn_rate_limited("lessons", f"Consolidation of lessons postponed: {error}")

    def _ensure_store(self) -> Store:
        """Return the store. Open it and recover orphaned journals first if needed, so that no caller waits for that."""
        if self.store is None:
            with self._open_lock:
                store = self._open_store()
            self._recover_journals(store)
            self.store = store
        return self.store

    def _recover_journals(self, store: Store) -> None:
        """Recover orphaned journals. Schedule another attempt if that fails."""
        if self._journal_folder is None:
            return
        self._next_recovery_at = float("inf")
        try:
            recover_journals(store, self._tenant, self._journal_folder())
            forget_removed_journals(store, self._tenant, self._journal_folder())
        except Exception as error:  # noqa: BLE001 - recovery must not block recording
            self._next_recovery_at = time.monotonic() + JOURNAL_RECOVERY_INTERVAL_SECONDS
            self.queue.warn_rate_limited("adoption", f"Recovery of orphaned journals postponed: {error}")

    def _to_events(self, batch: Sequence[QueuedRecord]) -> Sequence[AnyEvent]:
        """Return a batch as events, in order. Redacts the successes; events were redacted when they were published."""
        return self._stream.redact_batch([record for _, record in batch])

    def _store_drop_count(self, store: Store) -> None:
        try:
            self.queue.drop_counter.store_count(store, self._tenant)
        except Exception as error:  # noqa: BLE001 - the batch is stored; the next one retries the count
            self.queue.warn_rate_limited("dropped", f"Dropped records not counted yet: {error}")

    def _drop_unstorable(self, batch: list[QueuedRecord]) -> bool:
        """Drop unstorable records, so that they do not block the others. Return whether any was dropped.

        If all records can be encoded, each is written on its own to find those that the store rejects.
        """
        storable = [queued_record for queued_record in batch if self._is_encodable(queued_record)]
        if len(storable) == len(batch):
            if self.store is None:
                return False
            started_at = time.monotonic()
            try:
                unstorable = find_unstorable(
                    self.store, self._tenant, [self._to_events([queued_record]) for queued_record in batch]
                )
            except MulliganError:
                return False  # the store became unavailable, which says nothing about a record
            if unstorable is None:
                now = time.monotonic()
                self.next_write_at = now + max(MIN_STORE_RETRY_SECONDS, STORE_RETRY_FACTOR * (now - started_at))
                return False  # the store rejects everything: the store is broken, not a record
            storable = [queued_record for index, queued_record in enumerate(batch) if index not in unstorable]
        if len(storable) == len(batch):
            return False
        self.queue.drop_unstorable(storable)
        return True

    def _is_encodable(self, queued_record: QueuedRecord) -> bool:
        try:
            encode(list(self._to_events([queued_record])))
        except Exception:  # noqa: BLE001 - any error means it cannot be encoded
            return False
        return True


recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _reset_in_child() -> None:
    for recorder in tuple(recorders):
        recorder.reset_in_child()
    multiprocessing_util = sys.modules.get("multiprocessing.util")
    if multiprocessing_util is not None:
        multiprocessing_util.register_after_fork(recorders, _register_worker_exit)


def _register_worker_exit(_: object) -> None:
    # multiprocessing children skip atexit handlers and clear finalizers registered before the fork.
    sys.modules["multiprocessing.util"].Finalize(None, close_recorders, exitpriority=0)


def close_recorders() -> None:
    deadline = time.monotonic() + EXIT_FLUSH_SECONDS
    for recorder in tuple(recorders):
        recorder.close(max(0.0, deadline - time.monotonic()))


atexit.register(close_recorders)
fork_safety.hold_locks(lambda: [recorder._open_lock for recorder in tuple(recorders)])
fork_safety.run_in_child(_reset_in_child)
