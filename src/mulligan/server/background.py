"""Background threads of the server: conversion of large bodies, group commit of batches, and daily retention."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from mulligan.contract.audit import Actor, set_actor
from mulligan.contract.store import DAY, Batch, Store
from mulligan.core.events import AnyEvent, LessonLearned
from mulligan.core.failure import RecordConflictError, StoreError, WorkerUnavailableError
from mulligan.core.records import Record, decode, encode, new_id
from mulligan.learn.lessons import ConsolidationScheduler
from mulligan.server.access import Caller
from mulligan.server.bodies import ApiError, internal_error, rate_limited, store_unavailable, worker_unavailable
from mulligan.server.tenants import SERVER_ENTRY_KIND, SERVER_TENANT, Tenants
from mulligan.store.sql import DatabaseStore

log = logging.getLogger(__name__)

T = TypeVar("T")
SlicedWork = Generator[None, None, T]
"""Long work in short steps: it yields between them and returns its result."""
Listener = Callable[[str, Sequence[AnyEvent]], None]
"""Called on the writer thread with the tenant and the stored events."""
MAX_PENDING_BYTES = 64 * 1024 * 1024
"""Limit of request bytes waiting to be stored. Above it callers receive 429."""
FAILURE_WEIGHT = 40
"""Weight of a failure: what it costs to classify, redact and count it, compared with a success."""
WRITE_FAILURE_SECONDS = 15.0
"""How long the store counts as not writable after a failed write."""
PRUNING_KEY = "pruning"
FIRST_CHECK_SECONDS = 600.0
"""Delay of the first check, so that a server started for a short look removes nothing."""
CHECK_INTERVAL_SECONDS = 600.0
"""Delay between two checks."""
ROUND_TIMEOUT_MS = 3_600_000
"""A round without a heartbeat for this long counts as abandoned: its process was killed."""


class FairQueue(Generic[T]):
    """Queue that takes turns: first between tenants, then between the callers of a tenant."""

    def __init__(self) -> None:
        self._tenants: dict[str, dict[str, deque[T]]] = {}

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def push(self, caller: Caller, item: T) -> None:
        callers = self._tenants.setdefault(caller.tenant, {})
        callers.setdefault(caller.principal, deque()).append(item)

    def pop(self) -> T:
        """Remove and return the first item of the next caller. A caller with more items waits behind the others."""
        tenant = next(iter(self._tenants))
        callers = self._tenants.pop(tenant)
        principal = next(iter(callers))
        items = callers.pop(principal)
        item = items.popleft()
        if items:
            callers[principal] = items
        if callers:
            self._tenants[tenant] = callers
        return item


class QueueWorker(Generic[T]):
    """Thread that takes the work of callers in turns, until it is closed and nothing is pending."""

    thread_name: str

    def __init__(self) -> None:
        self._pending: FairQueue[T] = FairQueue()
        self._condition = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=self.thread_name, daemon=True)
        self._thread.start()

    def _check_open(self) -> None:
        if self._is_closing:
            raise store_unavailable("The server is shutting down. Retry later.")

    def close(self) -> None:
        """Finish the pending work and stop the thread."""
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
            self._work()

    def _work(self) -> None:
        """Do the next pending work."""
        raise NotImplementedError


# Conversion of large bodies


class _PendingWork(NamedTuple):
    caller: Caller
    work: SlicedWork[Any]
    result: asyncio.Future[Any]


class SliceWorker(QueueWorker[_PendingWork]):
    """Thread that classifies and redacts large bodies in short slices, in turns, with a pause after each slice.

    Python runs one thread at a time. So the event loop and the writer thread wait for one slice at most.
    """

    thread_name = "mulligan-converter"

    async def run(self, caller: Caller, work: SlicedWork[T]) -> T:
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._condition:
            self._check_open()
            self._pending.push(caller, _PendingWork(caller, work, result))
            self._condition.notify()
        return await result

    def _work(self) -> None:
        with self._condition:
            pending_work = self._pending.pop()
        started_at = time.monotonic()
        # How long one piece of work runs before the next caller's turn.
        if not pending_work.result.cancelled() and not self._run_slice(pending_work, started_at + 0.004):
            with self._condition:
                self._pending.push(pending_work.caller, pending_work)
        if not self._is_closing:
            # Pause after a slice as a multiple of its duration. A shorter pause doubles the latency of the other
            # writers, because they wait for the interpreter lock.
            time.sleep(2.0 * (time.monotonic() - started_at))

    def _run_slice(self, pending_work: _PendingWork, until: float) -> bool:
        """Work until this time. Return whether the work has ended."""
        try:
            while True:
                next(pending_work.work)
                if time.monotonic() >= until:
                    return False
        except StopIteration as end:
            _resolve([(pending_work.result, end.value)])
        except Exception as error:  # noqa: BLE001 - returned to the sender
            _resolve([(pending_work.result, _to_api_error(error))])
        return True


def complete(work: SlicedWork[T]) -> T:
    """Do the work at once and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


# Group commit


class _PendingBatch(NamedTuple):
    build_batch: Callable[[], Batch]
    weight: int
    byte_count: int
    result: asyncio.Future[int]


class Committer(QueueWorker[_PendingBatch]):
    """Writer thread. Batches that arrive during a commit are committed together in the next transaction."""

    thread_name = "mulligan-committer"

    def __init__(self, store: Store, on_stored: Listener) -> None:
        self._store = store
        self._on_stored = on_stored
        self._callbacks: list[Callable[[], None]] = []
        self.pending_bytes = 0
        """Request bytes that are not stored yet."""
        self._learner = ConsolidationScheduler()
        self.stored_records = 0
        """New records stored since the start."""
        self.transactions = 0
        self.write_failed_at = float("-inf")
        """Monotonic time of the last failed write; -inf after a successful one."""
        super().__init__()

    @property
    def has_recent_write_failure(self) -> bool:
        """Return whether a write failed recently.

        The state expires, because the store may be writable again while no caller sends a batch.
        """
        return time.monotonic() - self.write_failed_at < WRITE_FAILURE_SECONDS

    async def store_batch(self, caller: Caller, build_batch: Callable[[], Batch], weight: int, byte_count: int) -> int:
        """Store a batch and return the number of new records.

        `build_batch` runs on the writer thread, because redaction would block the event loop.
        """
        result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        pending_batch = _PendingBatch(build_batch, weight, byte_count, result)
        with self._condition:
            self._reserve(byte_count)
            self._pending.push(caller, pending_batch)
            self._condition.notify()
        return await result

    @contextlib.contextmanager
    def holding(self, byte_count: int) -> Iterator[None]:
        """Count the bytes of a large body as pending until all of it is stored."""
        with self._condition:
            self._reserve(byte_count)
        try:
            yield
        finally:
            with self._condition:
                self.pending_bytes -= byte_count

    def _reserve(self, byte_count: int) -> None:
        """Add to the pending bytes, or raise `ApiError`. Call it with the lock."""
        self._check_open()
        if self.pending_bytes and self.pending_bytes + byte_count > MAX_PENDING_BYTES:
            raise rate_limited()
        self.pending_bytes += byte_count

    def run_before_next_commit(self, callback: Callable[[], None]) -> None:
        """Run a callback on the writer thread before the next commit."""
        with self._condition:
            self._callbacks.append(callback)

    def _work(self) -> None:
        with self._condition:
            callbacks, self._callbacks = self._callbacks, []
            group: list[_PendingBatch] = []
            weight = 0
            # Batches join a transaction until it has this weight. A success weighs 1, a failure `FAILURE_WEIGHT`.
            while self._pending and weight < 2000:
                group.append(self._pending.pop())
                weight += group[-1].weight
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
                resolve_batches([(pending_batch, _to_api_error(error))])
        results = self._append_by_worker([batch for _, batch in ready])
        # Update the state before the callers are answered: a readiness check right after must agree with the answer.
        for (_, batch), result in zip(ready, results, strict=True):
            if isinstance(result, ApiError) and result.error == "store_unavailable":
                self.write_failed_at = time.monotonic()
            if isinstance(result, int):
                self.write_failed_at = float("-inf")
                self._learner.mark_changed(batch.tenant)
                self.stored_records += result
        resolve_batches([(pending_batch, result) for (pending_batch, _), result in zip(ready, results, strict=True)])
        for (_, batch), result in zip(ready, results, strict=True):
            if isinstance(result, int) and result:
                self._notify_listener(batch.tenant, batch.stored_events)

    def _append_by_worker(self, batches: list[Batch]) -> list[int | ApiError]:
        """Store the batches of each worker of a distributed store in one transaction.

        One over several workers would be a two-phase commit. If a worker is lost in it, its tenants stay locked until
        the database completes it, and all other batches wait behind theirs.
        """
        indices_by_worker: dict[str | None, list[int]] = {}
        for index, batch in enumerate(batches):
            indices_by_worker.setdefault(self._find_worker(batch.tenant), []).append(index)
        results: dict[int, int | ApiError] = {}
        for indices in indices_by_worker.values():
            results.update(zip(indices, self._append([batches[index] for index in indices]), strict=True))
        return [results[index] for index in range(len(batches))]

    def _find_worker(self, tenant: str) -> str | None:
        try:
            return self._store.find_worker(tenant) if isinstance(self._store, DatabaseStore) else None
        except StoreError:
            return None  # the attempt to store the batch finds the same error

    def _append(self, batches: list[Batch]) -> Sequence[int | ApiError]:
        """Store the batches in one transaction. If it fails, store each on its own: one may be the cause."""
        try:
            results = self._store.append_all(batches)
        except Exception as error:  # noqa: BLE001 - returned to the sender
            if len(batches) > 1:
                return [result for batch in batches for result in self._append([batch])]
            return [_to_api_error(error)]
        self.transactions += 1
        return results

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
            self._on_stored(tenant, events)
        except Exception:
            log.exception("Listener failed")


def _to_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RecordConflictError):
        return ApiError(409, "conflict", str(error))
    if isinstance(error, WorkerUnavailableError):
        return worker_unavailable()  # logged once per outage, by the store
    if isinstance(error, StoreError):
        log.warning("%s", error)
        return store_unavailable("The store is not writable. No record of this request was stored. Retry later.")
    log.error("Batch not stored", exc_info=error)
    return internal_error("Not stored: internal server error. See the server's log.")


def resolve_batches(results: list[tuple[_PendingBatch, int | ApiError]]) -> None:
    """Answer the callers of a transaction. One call wakes the event loop for all of them."""
    if results:
        _resolve([(pending_batch.result, result) for pending_batch, result in results])


def _resolve(results: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    """Give requests their results. An `ApiError` is raised there."""

    def set_results() -> None:
        for future, result in results:
            if future.cancelled():
                continue  # The caller disconnected.
            if isinstance(result, ApiError):
                future.set_exception(result)
            else:
                future.set_result(result)

    try:
        results[0][0].get_loop().call_soon_threadsafe(set_results)
    except RuntimeError:
        log.warning("Response not sent: the server has stopped")


class BackgroundWork(Protocol):
    """A thread that works while the server runs."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """Stop after the current transaction."""

    def close(self) -> None:
        """Stop, and wait until it has."""


# Retention


class PruneLease(Record, frozen=True):
    """State of the latest prune round: its process and its times."""

    owner: str
    started_at: int
    heartbeat_at: int
    ended_at: int | None = None

    def can_start(self, owner: str, now: int) -> bool:
        """Return whether this process may start a new round."""
        if self.ended_at is not None:
            return now - self.started_at >= DAY
        return self.owner == owner or now - self.heartbeat_at >= ROUND_TIMEOUT_MS


class _PruneStoppedError(Exception):
    """The server is stopping, or another process took over the round."""


class Pruner:
    """Daily retention: remove records that are older than their tenant's limits. Imported runs are not pruned.

    One of the processes that share a store runs each round. It claims the round with a compare-and-set of a key-value
    entry, so only one of two concurrent claims succeeds. It then renews the entry as a heartbeat. Another process takes
    over a round whose process was killed, or at once if it was stopped. `log_line` receives one line per tenant with
    removed records.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        log_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._store, self._tenants = store, Tenants(store)
        self._clock, self._log_line = clock, log_line
        self._owner = new_id("")
        self._lease = PruneLease(self._owner, 0, 0)
        """The round's entry as this process wrote it last."""
        self._stop_event = threading.Event()
        self._work_started = 0.0
        self._thread = threading.Thread(target=self._run, name="mulligan-pruner", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current transaction."""
        self._stop_event.set()

    def close(self) -> None:
        self.stop()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        set_actor(Actor("mulligan serve", "command"))
        delay = FIRST_CHECK_SECONDS
        while not self._stop_event.wait(delay):
            delay = CHECK_INTERVAL_SECONDS
            try:
                self.run_round()
            except StoreError as error:
                log.warning("Prune failed, retrying later: %s", error)
            except Exception:
                log.exception("Prune failed, retrying later")

    def run_round(self) -> bool:
        """Run a round if one is due. Return whether it ran to its end."""
        if not self._claim_round():
            return False
        try:
            for tenant in self._tenants.load_all_with_default():
                start_time = self._work_started = time.monotonic()
                result = self._store.prune(tenant.name, tenant.retention, self._clock(), progress=self._throttle)
                if result.runs or result.steps or result.sampled:
                    self._log_line(
                        f"pruned tenant={tenant.name} runs={result.runs} steps={result.steps} "
                        f"sampled={result.sampled} seconds={time.monotonic() - start_time:.1f}"
                    )
                self._check_not_stopped()
        except _PruneStoppedError:
            if self._stop_event.is_set():  # Another process need not wait for the timeout.
                stored_value = encode(self._lease)
                self._lease = replace(self._lease, heartbeat_at=0)
                self._replace_lease(stored_value)
            return False
        self._renew_lease(ended_at=self._clock())
        return True

    def _claim_round(self) -> bool:
        stored_value, now = self._store.get(SERVER_TENANT, SERVER_ENTRY_KIND, PRUNING_KEY), self._clock()
        if stored_value is not None and not decode(stored_value, PruneLease).can_start(self._owner, now):
            return False
        self._lease = PruneLease(self._owner, now, now)
        return self._replace_lease(stored_value)

    def _replace_lease(self, stored_value: bytes | None) -> bool:
        value = encode(self._lease)
        return self._store.compare_and_set(SERVER_TENANT, SERVER_ENTRY_KIND, PRUNING_KEY, stored_value, value)

    def _renew_lease(self, ended_at: int | None = None) -> None:
        stored_value = encode(self._lease)
        self._lease = replace(self._lease, heartbeat_at=self._clock(), ended_at=ended_at)
        if not self._replace_lease(stored_value):
            raise _PruneStoppedError

    def _check_not_stopped(self) -> None:
        """Raise `_PruneStoppedError` if the server stops or another process took over. Renew a due heartbeat."""
        if self._stop_event.is_set():
            raise _PruneStoppedError
        if self._clock() - self._lease.heartbeat_at >= 60_000:  # interval of the heartbeat of a running round
            self._renew_lease()

    def _throttle(self, completed: int, total: int) -> None:
        """Pause between two transactions."""
        self._check_not_stopped()
        # Idle time after each transaction, as a multiple of its duration, so that other queries come first.
        self._stop_event.wait(4 * (time.monotonic() - self._work_started))
        self._work_started = time.monotonic()
