"""Recorder: writes each record to the journal before the call returns, and later, in batches, to the store.

The journal survives a process crash; the store answers queries. The recorder thread moves records from one to the other
and redacts successes on the way. A caller never waits for the store.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mulligan.contract.store import DEFAULT_TENANT, Store
from mulligan.core import fork_safety
from mulligan.core.events import AnyEvent, EventStream, LessonLearned, StepEnded
from mulligan.core.failure import MulliganError, StoreDeniedError, StoreError
from mulligan.core.records import encode, new_id
from mulligan.record import journal_import
from mulligan.record.journal_import import find_unstorable, forget_removed_journals, recover_journals
from mulligan.record.queue import QueuedRecord, RecordQueue, WakeSignal

if TYPE_CHECKING:
    from mulligan.core.prices import PriceTable
    from mulligan.learn.lessons import ConsolidationScheduler

BATCH_DELAY_SECONDS = 0.05
"""Delay between batches, so that many records share one transaction."""
FLUSH_POLL_SECONDS = 0.001
"""Delay between two checks of `flush`."""
EXIT_FLUSH_SECONDS = 2.0
"""Maximum delay of process exit caused by the recorder."""
MIN_STORE_RETRY_SECONDS, STORE_RETRY_FACTOR = 0.5, 5
"""Delay before the next write to a store that rejected every record: this minimum, or this factor times the duration
of the last attempt."""
JOURNAL_RECOVERY_INTERVAL_SECONDS = 30.0
"""Delay before the next attempt to recover orphaned journals after a failed one."""
FIRST_CONSOLIDATION_SECONDS = 1.0
"""Delay of the first consolidation: most processes that record one call end sooner."""


class Recorder:
    """Event sink that buffers events until they are stored, then delivers each to the listeners of the stream.

    A daemon thread, which the first record starts, stores them in batches.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        stream: EventStream,
        tenant: str = DEFAULT_TENANT,
        journal_folder: Callable[[], Path] | None = None,
        fsync: bool = False,
        should_consolidate: bool = False,
        prices: Mapping[str, Any] | None = None,
    ) -> None:
        self._open_store = open_store
        self._journal_folder = journal_folder
        self._stream = stream
        self._tenant = tenant
        self._prices = prices or {}
        """The user's prices."""
        self._price_table: PriceTable | None = None
        self._should_consolidate = should_consolidate
        """Whether the idle recorder thread consolidates lessons. A server consolidates its own."""
        self.queue = RecordQueue(journal_folder, stream, fsync)
        self.queue.wake_worker = self._wake_thread
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
        self.thread: threading.Thread | None = None
        self._start_lock = threading.RLock()
        self._wake_signal = WakeSignal()
        self._flush_signal = WakeSignal()
        self._flush_waiters: set[object] = set()
        """One object per pending `flush` call."""
        self._is_stopping = False
        self._is_opened_early = False
        self._denial_count = 0
        """Batches that the store refused to take from this process."""

    def reset_in_child(self) -> None:
        """Reset after fork: the parent stores its own records, the child starts empty, with the forking thread only."""
        self._reset()
        self.queue.abandon()

    def __call__(self, event: AnyEvent) -> None:
        self.queue.put_event(event)

    @property
    def dropped(self) -> int:
        return self.queue.dropped

    def flush(self, timeout: float = EXIT_FLUSH_SECONDS) -> bool:
        """Block until all published events are stored or the timeout expires. Return whether all were stored."""
        queue = self.queue
        target_count = queue.total_queued
        deadline = time.monotonic() + timeout
        denial_count = self._denial_count
        waiter = object()
        self._flush_waiters.add(waiter)
        try:
            woken_thread = None
            poll_signal = WakeSignal()  # never set; unlike time.sleep, a program's tests do not replace it
            remaining_polls = timeout / FLUSH_POLL_SECONDS  # counted, because tests may also freeze the clock
            while not queue.has_stored(target_count):
                if self.thread is None:
                    self.start_thread()
                thread = self.thread
                if thread is None or thread is threading.current_thread():
                    break  # a listener on this thread would wait for itself
                if thread is not woken_thread:  # once: while the store is unavailable, each signal is an attempt
                    self._flush_signal.set()
                    self._wake_signal.set()
                    woken_thread = thread
                is_denied = self._denial_count > denial_count  # waiting does not change that
                if is_denied or remaining_polls <= 0 or time.monotonic() >= deadline:
                    break
                # Poll: a signal handler that records may interrupt this thread while it holds the lock of an event.
                poll_signal.wait(FLUSH_POLL_SECONDS)
                remaining_polls -= 1
        finally:
            self._flush_waiters.discard(waiter)
        return queue.has_stored(target_count)

    def close(self, timeout: float = EXIT_FLUSH_SECONDS) -> bool:
        """Store and deliver the queued events, then close the store. Return whether all events were stored.

        Other events stay in the journal for the next process. A later event opens the store again.
        """
        if self.thread is threading.current_thread():
            return not self.queue.has_more  # called by a listener on the recorder thread, which cannot join itself
        deadline = time.monotonic() + timeout
        with self._close_lock:
            while True:
                is_flushed = self.flush(0.75 * (deadline - time.monotonic()))
                if not self.stop_thread(deadline):
                    return is_flushed
                # Repeat if a caller recorded while the thread was stopping.
                if not (is_flushed and self.queue.has_more) or time.monotonic() >= deadline:
                    break
            store, self.store = self.store, None
            is_all_stored = self.queue.release_journals()
            if store is not None:
                store.close()
            return is_all_stored and is_flushed

    # Thread

    def _wake_thread(self) -> None:
        if self.thread is None:
            self.start_thread()
        self._wake_signal.set()

    def open_early(self) -> None:
        """Open the store on the recorder thread before the first record, so that no call has to wait for it."""
        self._is_opened_early = True
        self._wake_thread()

    def start_thread(self) -> None:
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
                self.queue.warn_rate_limited("thread", f"Recorder not running, records stay in the journal: {error}")

    def stop_thread(self, deadline: float) -> bool:
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
        queue = self.queue
        try:
            if self._is_opened_early and self.store is None:
                with queue.guard("store", "Store unavailable"):
                    self._ensure_store()
            while not self._is_stopping:
                queue.is_worker_idle = True
                # Check after setting the idle flag: a record queued in between then wakes this thread.
                if not queue.has_more:
                    self._wake_signal.wait()
                queue.is_worker_idle = False
                if not self._flush_waiters and not self._is_stopping:
                    self._flush_signal.wait(0)  # clear the signal of a finished flush: new records may wait for a batch
                while queue.has_more and not self._is_stopping:
                    has_full_batch = queue.is_behind or len(queue.queued) >= journal_import.BATCH_RECORDS
                    if not has_full_batch and not self._flush_waiters:
                        self._flush_signal.wait(BATCH_DELAY_SECONDS)
                    if not self.run_round() and not self._is_stopping:
                        self._flush_signal.wait(BATCH_DELAY_SECONDS)
        finally:
            self.thread, queue.is_worker_idle = None, True

    # Called by the recorder thread

    def run_round(self) -> bool:
        """Write one batch, then do the maintenance that is due. Return whether there was progress."""
        try:
            if not self._write_batch():
                return False
            if not self.queue.is_behind:  # if it is, journals grow to their share of the limit, so that few exist
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
        queue.enforce_limits()
        if time.monotonic() < self.next_write_at:
            return False
        batch: list[QueuedRecord] = []
        try:
            store = self._ensure_store()
            if queue.is_behind:
                queue.import_spilled(store, self._tenant, self._add_costs)
            batch, journal, position = queue.next_batch()
            events = self._to_events(batch)
            if journal is not None:
                store.append(self._tenant, events, journal.name, position - journal.first_position)
            elif batch:
                store.append(self._tenant, events, new_id("journal"), 1)
        except Exception as error:  # noqa: BLE001 - a broken store must not fail the user's call
            is_store_error = isinstance(error, MulliganError)
            reason = str(error) if is_store_error else f"{type(error).__name__}: {error}"
            queue.warn_rate_limited("store", f"Store unavailable, recording queued: {reason}")
            self._denial_count += isinstance(error, StoreDeniedError)
            return not is_store_error and self._drop_unstorable(batch)
        queue.note_available()
        with queue.guard("dropped", "Dropped records not counted yet"):  # the next batch retries the count
            queue.report_dropped(store, self._tenant)
        queue.mark_stored(position)
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
        with self.queue.guard("lessons", "Consolidation of lessons postponed"):
            for _, lesson in self._scheduler.run_if_due(self.store):
                self._stream.publish(LessonLearned(lesson))

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
        self._next_recovery_at = time.monotonic() + JOURNAL_RECOVERY_INTERVAL_SECONDS
        with (
            self.queue.guard("adoption", "Recovery of orphaned journals postponed"),
            contextlib.suppress(StoreError),  # unavailable: the next batch reports it
        ):
            recover_journals(store, self._tenant, self._journal_folder(), self._add_costs)
            forget_removed_journals(store, self._tenant, self._journal_folder())
            self._next_recovery_at = float("inf")

    def _to_events(self, batch: Sequence[QueuedRecord]) -> Sequence[AnyEvent]:
        """Return a batch as redacted events with costs."""
        return self._add_costs(self.queue.to_events(batch))

    def _add_costs(self, events: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
        if self._price_table is None:
            if not any(isinstance(event, StepEnded) and event.step.may_have_cost for event in events):
                return events  # the prices are loaded only if a step needs them
            with self._open_lock:
                from mulligan.core.prices import PriceTable
            self._price_table = PriceTable(self._prices)
        return self._price_table.add_costs(events)

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
