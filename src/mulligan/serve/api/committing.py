"""Group commit: store the batches of several callers in one transaction, then answer them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mulligan.events import AnyEvent, LessonLearned
from mulligan.failure import StoreError
from mulligan.remember.lessons.learner import Learner
from mulligan.remember.store import Batch, Store
from mulligan.serve.api.errors import Refused, away, busy

log = logging.getLogger("mulligan")

WAITING = 64 * 1024 * 1024
"""Limit of request bytes waiting to be stored. Above it callers receive 429."""
TOGETHER = 5000
"""Limit of events in one transaction."""
REFUSED = 15.0
"""How long the store counts as not writable after a failed write."""


class _Waiting(NamedTuple):
    prepared: Callable[[], Batch]
    events: int
    size: int
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[int]


class Committer:
    """Writer thread. Batches that arrive during a commit are committed together in the next transaction."""

    def __init__(self, store: Store, heard: Callable[[str, Sequence[AnyEvent]], None] | None = None) -> None:
        self._store = store
        self._heard = heard
        """Called on the writer thread with the tenant and the stored events."""
        self._waiting: deque[_Waiting] = deque()
        self._acts: list[Callable[[], None]] = []
        self._size = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self._learner = Learner()
        self._thread = threading.Thread(target=self._run, name="mulligan-committer", daemon=True)
        self._thread.start()
        self.events = 0
        """New records stored since the start."""
        self.transactions = 0
        self._refused = float("-inf")
        """Monotonic time of the last failed write; -inf after a successful one."""

    @property
    def is_refused(self) -> bool:
        """Return whether a write failed recently.

        The state expires, because the store may be writable again while no caller sends a batch.
        """
        return time.monotonic() - self._refused < REFUSED

    @property
    def waiting(self) -> int:
        """Request bytes that are not stored yet."""
        return self._size

    async def keep(self, prepared: Callable[[], Batch], events: int, size: int) -> int:
        """Store a batch and return the number of new records.

        `build_batch` runs on the writer thread, because redaction would block the event loop.
        """
        loop = asyncio.get_running_loop()
        one = _Waiting(prepared, events, size, loop, loop.create_future())
        with self._changed:
            if self._is_closing:
                raise away("the server is stopping.")
            if self._size and self._size + size > WAITING:
                raise busy()
            self._size += size
            self._waiting.append(one)
            self._changed.notify()
        return await one.done

    def later(self, act: Callable[[], None]) -> None:
        """Run a callback on the writer thread before the next commit."""
        with self._changed:
            self._acts.append(act)

    def close(self) -> None:
        """Store all pending batches and stop the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                acts, self._acts = self._acts, []
                group: list[_Waiting] = []
                events = 0
                while self._waiting and (not group or events + self._waiting[0].events <= TOGETHER):
                    group.append(self._waiting.popleft())
                    events += group[-1].events
            try:
                for act in acts:
                    act()
                self._commit(group)
            finally:
                with self._changed:
                    self._size -= sum(each.size for each in group)
            self._learn()

    def _commit(self, group: list[_Waiting]) -> None:
        ready: list[tuple[_Waiting, Batch]] = []
        for each in group:
            try:
                ready.append((each, each.prepared()))
            except Exception as error:  # noqa: BLE001 - one caller's error must not fail the other batches
                _answer(each, _told(error))
        if not ready:
            return
        try:
            kept: Sequence[int | Refused] = self._store.append_all([batch for _, batch in ready])
            self.transactions += 1
        except Exception as error:  # noqa: BLE001 - one batch may be the cause: commit each on its own
            kept = [self._alone(batch) for _, batch in ready] if len(ready) > 1 else [_told(error)]
        for (each, batch), new in zip(ready, kept, strict=True):
            # Update the state before the caller is answered: a readiness check right after must agree with the answer.
            if isinstance(new, Refused) and new.status == 503:
                self._refused = time.monotonic()
            if isinstance(new, int):
                self._refused = float("-inf")
                self._learner.heard(batch.tenant)
                self.events += new
            _answer(each, new)
            if isinstance(new, int) and new and self._heard is not None:
                self._tell(batch.tenant, batch.events)

    def _alone(self, batch: Batch) -> int | Refused:
        try:
            self.transactions += 1
            return self._store.append_all([batch])[0]
        except Exception as error:  # noqa: BLE001 - returned to the sender
            return _told(error)

    def _learn(self) -> None:
        """Consolidate lessons of changed tenants while no batch is pending."""
        if self._waiting:
            return
        try:
            for tenant, lesson in self._learner.turn(self._store):
                self._tell(tenant, [LessonLearned(lesson)])
        except Exception:
            log.exception("lessons wait")

    def _tell(self, tenant: str, events: Sequence[AnyEvent]) -> None:
        try:
            if self._heard is not None:
                self._heard(tenant, events)
        except Exception:
            log.exception("a listener of the server failed")


def _told(error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    if isinstance(error, StoreError):
        log.warning("%s", error)
        return away("the store cannot be written just now; nothing of this was kept.")
    log.error("a batch could not be kept", exc_info=error)
    return Refused(500, "fault", "this could not be kept, because of a fault of the server; its log says more.")


def _answer(each: _Waiting, answer: int | Refused) -> None:
    def tell() -> None:
        if each.done.cancelled():
            return  # The caller disconnected.
        if isinstance(answer, int):
            each.done.set_result(answer)
        else:
            each.done.set_exception(answer)

    try:
        each.loop.call_soon_threadsafe(tell)
    except RuntimeError:
        log.warning("a caller was not told, because the server has stopped")
