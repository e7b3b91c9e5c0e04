"""Daily retention in the background: remove records that are older than their tenant's limits.

One of the processes that share a store runs each round. It claims the round with a compare-and-set of a key-value
entry, so only one of two concurrent claims succeeds. It then renews the entry as a heartbeat. Another process takes
over a round whose process was killed. Imported runs are not pruned.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from msgspec.structs import replace

from mulligan.failure import StoreError
from mulligan.records import Record, decode, encode, new_id
from mulligan.remember.audit import Actor, act_as
from mulligan.remember.store import DAY, Pruned, Store
from mulligan.serve.api.tenants import Tenants
from mulligan.serve.api.tokens import KIND, OF_THE_SERVER

log = logging.getLogger("mulligan")

KEY = "pruning"
FIRST = 600.0
"""Delay of the first check, so that a server started for a short look removes nothing."""
AGAIN = 600.0
"""Delay between two checks."""
EVERY = DAY
"""Time from the start of one round to the start of the next."""
SILENT = 3_600_000
"""A round without a heartbeat for this long counts as abandoned: its process was killed."""
HEARD = 60_000
"""Interval of the heartbeat of a running round."""
REST = 4
"""Idle time after each transaction, as a multiple of its duration, so that other queries come first."""


class Turn(Record, frozen=True):
    """State of the latest prune round: its process and its times."""

    by: str
    began: int
    heard: int
    ended: int | None = None

    def is_free(self, by: str, now: int) -> bool:
        """Return whether this process may start a new round."""
        if self.ended is not None:
            return now - self.began >= EVERY
        return self.by == by or now - self.heard >= SILENT


class _Over(Exception):
    """The server is stopping, or another process took over the round."""


class Pruner:
    """Background thread that runs retention. `log_line` receives one line per tenant with removed records."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        says: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._store, self._tenants = store, Tenants(store)
        self._clock, self._says = clock, says
        self._by = new_id("")
        self._kept: bytes | None = None
        """The round's entry as this process wrote it last."""
        self._over = threading.Event()
        self._since = 0.0
        self._thread = threading.Thread(target=self._run, name="mulligan-pruner", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current transaction."""
        self._over.set()

    def close(self) -> None:
        self.stop()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        act_as(Actor("mulligan serve", "command"))
        pause = FIRST
        while not self._over.wait(pause):
            pause = AGAIN
            try:
                self.turn()
            except StoreError as error:
                log.warning("what is old was not removed, and is another time: %s", error)
            except Exception:
                log.exception("what is old was not removed, and is another time")

    def turn(self) -> bool:
        """Run a round if one is due. Return whether it ran to its end."""
        if not self._take():
            return False
        try:
            for tenant in self._tenants.everybody():
                began = self._since = time.monotonic()
                done = self._store.prune(tenant.name, tenant.retention, self._clock(), progress=self._rest)
                self._tell(tenant.name, done, time.monotonic() - began)
                self._go_on()
        except _Over:
            return False
        self._write(ended=self._clock())
        return True

    def _take(self) -> bool:
        known, now = self._store.get(OF_THE_SERVER, KIND, KEY), self._clock()
        if known is not None and not decode(known, Turn).is_free(self._by, now):
            return False
        self._kept = known
        return self._put(Turn(self._by, now, now))

    def _put(self, turn: Turn) -> bool:
        value = encode(turn)
        is_ours = self._store.swap(OF_THE_SERVER, KIND, KEY, self._kept, value)
        self._kept = value if is_ours else None
        return is_ours

    def _write(self, ended: int | None = None) -> None:
        if self._kept is None or not self._put(replace(decode(self._kept, Turn), heard=self._clock(), ended=ended)):
            raise _Over

    def _go_on(self) -> None:
        """Raise `_PruneStoppedError` if the server is stopping or another process took over.

        Renew the heartbeat when due.
        """
        if self._over.is_set():
            raise _Over
        if self._kept is not None and self._clock() - decode(self._kept, Turn).heard >= HEARD:
            self._write()

    def _rest(self, done: int, total: int) -> None:
        """Pause between two transactions."""
        self._go_on()
        self._over.wait(REST * (time.monotonic() - self._since))
        self._since = time.monotonic()

    def _tell(self, tenant: str, done: Pruned, seconds: float) -> None:
        if done.runs or done.steps or done.sampled:
            self._says(
                f"pruned tenant={tenant} runs={done.runs} steps={done.steps} sampled={done.sampled} "
                f"seconds={seconds:.1f}"
            )
