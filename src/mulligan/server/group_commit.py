"""Group commit: store the batches of several callers in one transaction, then answer them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mulligan.core.events import AnyEvent, LessonLearned
from mulligan.core.failure import StoreError
from mulligan.learn.lessons import ConsolidationScheduler
from mulligan.server.responses import ApiError, internal_error, rate_limited, store_unavailable
from mulligan.store.base import Batch, Store

log = logging.getLogger("mulligan")

MAX_PENDING_BYTES = 64 * 1024 * 1024
"""Limit of request bytes waiting to be stored. Above it callers receive 429."""
MAX_COMMIT_RECORDS = 5000
"""Limit of events in one transaction."""
WRITE_FAILURE_SECONDS = 15.0
"""How long the store counts as not writable after a failed write."""


class _PendingBatch(NamedTuple):
    build_batch: Callable[[], Batch]
    event_count: int
    byte_count: int
    loop: asyncio.AbstractEventLoop
    result: asyncio.Future[int]


class Committer:
    """Writer thread. Batches that arrive during a commit are committed together in the next transaction."""

    def __init__(self, store: Store, on_stored: Callable[[str, Sequence[AnyEvent]], None] | None = None) -> None:
        self._store = store
        self._on_stored = on_stored
        """Called on the writer thread with the tenant and the stored events."""
        self._pending: deque[_PendingBatch] = deque()
        self._callbacks: list[Callable[[], None]] = []
        self.pending_bytes = 0
        """Request bytes that are not stored yet."""
        self._condition = threading.Condition()
        self._is_closing = False
        self._learner = ConsolidationScheduler()
        self._thread = threading.Thread(target=self._run, name="mulligan-committer", daemon=True)
        self._thread.start()
        self.stored_records = 0
        """New records stored since the start."""
        self.transactions = 0
        self.write_failed_at = float("-inf")
        """Monotonic time of the last failed write; -inf after a successful one."""

    @property
    def has_recent_write_failure(self) -> bool:
        """Return whether a write failed recently.

        The state expires, because the store may be writable again while no caller sends a batch.
        """
        return time.monotonic() - self.write_failed_at < WRITE_FAILURE_SECONDS

    async def store_batch(self, build_batch: Callable[[], Batch], event_count: int, byte_count: int) -> int:
        """Store a batch and return the number of new records.

        `build_batch` runs on the writer thread, because redaction would block the event loop.
        """
        loop = asyncio.get_running_loop()
        pending_batch = _PendingBatch(build_batch, event_count, byte_count, loop, loop.create_future())
        with self._condition:
            if self._is_closing:
                raise store_unavailable("The server is shutting down. Retry later.")
            if self.pending_bytes and self.pending_bytes + byte_count > MAX_PENDING_BYTES:
                raise rate_limited()
            self.pending_bytes += byte_count
            self._pending.append(pending_batch)
            self._condition.notify()
        return await pending_batch.result

    def run_before_next_commit(self, callback: Callable[[], None]) -> None:
        """Run a callback on the writer thread before the next commit."""
        with self._condition:
            self._callbacks.append(callback)

    def close(self) -> None:
        """Store all pending batches and stop the thread."""
        with self._condition:
            self._is_closing = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._pending and not self._is_closing:
                    self._condition.wait()
                if not self._pending:
                    return
                callbacks, self._callbacks = self._callbacks, []
                group: list[_PendingBatch] = []
                event_count = 0
                while self._pending and (not group or event_count + self._pending[0].event_count <= MAX_COMMIT_RECORDS):
                    group.append(self._pending.popleft())
                    event_count += group[-1].event_count
            try:
                for callback in callbacks:
                    callback()
                self._commit(group)
            finally:
                with self._condition:
                    self.pending_bytes -= sum(pending_batch.byte_count for pending_batch in group)
            self._consolidate_lessons()

    def _commit(self, group: list[_PendingBatch]) -> None:
        ready: list[tuple[_PendingBatch, Batch]] = []
        for pending_batch in group:
            try:
                ready.append((pending_batch, pending_batch.build_batch()))
            except Exception as error:  # noqa: BLE001 - one caller's error must not fail the other batches
                resolve_batch(pending_batch, _to_api_error(error))
        if not ready:
            return
        try:
            results: Sequence[int | ApiError] = self._store.append_all([batch for _, batch in ready])
            self.transactions += 1
        except Exception as error:  # noqa: BLE001 - one batch may be the cause: commit each on its own
            results = [self._commit_single(batch) for _, batch in ready] if len(ready) > 1 else [_to_api_error(error)]
        for (pending_batch, batch), result in zip(ready, results, strict=True):
            # Update the state before the caller is answered: a readiness check right after must agree with the answer.
            if isinstance(result, ApiError) and result.status == 503:
                self.write_failed_at = time.monotonic()
            if isinstance(result, int):
                self.write_failed_at = float("-inf")
                self._learner.mark_changed(batch.tenant)
                self.stored_records += result
            resolve_batch(pending_batch, result)
            if isinstance(result, int) and result and self._on_stored is not None:
                self._notify_listener(batch.tenant, batch.events)

    def _commit_single(self, batch: Batch) -> int | ApiError:
        try:
            self.transactions += 1
            return self._store.append_all([batch])[0]
        except Exception as error:  # noqa: BLE001 - returned to the sender
            return _to_api_error(error)

    def _consolidate_lessons(self) -> None:
        """Consolidate lessons of changed tenants while no batch is pending."""
        if self._pending:
            return
        try:
            for tenant, lesson in self._learner.run_if_due(self._store):
                self._notify_listener(tenant, [LessonLearned(lesson)])
        except Exception:
            log.exception("Consolidation of lessons failed")

    def _notify_listener(self, tenant: str, events: Sequence[AnyEvent]) -> None:
        try:
            if self._on_stored is not None:
                self._on_stored(tenant, events)
        except Exception:
            log.exception("Listener failed")


def _to_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, StoreError):
        log.warning("%s", error)
        return store_unavailable("The store is not writable. No record of this request was stored. Retry later.")
    log.error("Batch not stored", exc_info=error)
    return internal_error("Not stored: internal server error. See the server's log.")


def resolve_batch(pending_batch: _PendingBatch, result: int | ApiError) -> None:
    def set_result() -> None:
        if pending_batch.result.cancelled():
            return  # The caller disconnected.
        if isinstance(result, int):
            pending_batch.result.set_result(result)
        else:
            pending_batch.result.set_exception(result)

    try:
        pending_batch.loop.call_soon_threadsafe(set_result)
    except RuntimeError:
        log.warning("Response not sent: the server has stopped")
