"""Group commit: what several callers sent goes into the store in one transaction, and only then are they told."""

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
"""Bytes, as they were sent, that may wait to be kept. Beyond it callers are asked to come again."""
TOGETHER = 5000
"""Events in one transaction."""
REFUSED = 15.0
"""Seconds for which a store is taken for one that cannot be written, when it could not."""


class _Waiting(NamedTuple):
    prepared: Callable[[], Batch]
    events: int
    size: int
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[int]


class Committer:
    """One thread that writes. Whoever comes while it does is served together with the others who came."""

    def __init__(self, store: Store, heard: Callable[[str, Sequence[AnyEvent]], None] | None = None) -> None:
        self._store = store
        self._heard = heard
        """Told of what was kept, with its tenant, on the writer's thread."""
        self._waiting: deque[_Waiting] = deque()
        self._acts: list[Callable[[], None]] = []
        self._size = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self._learner = Learner()
        self._thread = threading.Thread(target=self._run, name="mulligan-committer", daemon=True)
        self._thread.start()
        self.events = 0
        """Kept and new."""
        self.transactions = 0
        self._refused = float("-inf")
        """When the store last could not be written; -inf once it could again."""

    @property
    def is_refused(self) -> bool:
        """Whether what was sent of late could not be kept. Not for long: it may be well again, and nobody tries."""
        return time.monotonic() - self._refused < REFUSED

    @property
    def waiting(self) -> int:
        """Bytes that are not kept yet."""
        return self._size

    async def keep(self, prepared: Callable[[], Batch], events: int, size: int) -> int:
        """Waits until a batch is in the store; how many of its records were new.

        `prepared` makes it, redacted, on the writer's thread, so that others are heard meanwhile.
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
        """Does something on the writer's thread, before what is sent from now on."""
        with self._changed:
            self._acts.append(act)

    def close(self) -> None:
        """Keeps what waits, and ends."""
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
            except Exception as error:  # noqa: BLE001 - it is this caller's, and no reason to fail the others
                _answer(each, _told(error))
        if not ready:
            return
        try:
            kept: Sequence[int | Refused] = self._store.append_all([batch for _, batch in ready])
            self.transactions += 1
        except Exception as error:  # noqa: BLE001 - one of them may be the cause: then it fails alone
            kept = [self._alone(batch) for _, batch in ready] if len(ready) > 1 else [_told(error)]
        for (each, batch), new in zip(ready, kept, strict=True):
            # Before anybody is answered: whoever asks next whether we are ready finds what they were told to be so.
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
        except Exception as error:  # noqa: BLE001 - told to the one who sent it
            return _told(error)

    def _learn(self) -> None:
        """Lessons of what was kept, while nobody waits."""
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
            return  # the caller has left
        if isinstance(answer, int):
            each.done.set_result(answer)
        else:
            each.done.set_exception(answer)

    try:
        each.loop.call_soon_threadsafe(tell)
    except RuntimeError:
        log.warning("a caller was not told, because the server has stopped")
