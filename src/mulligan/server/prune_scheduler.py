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

from mulligan.core.failure import StoreError
from mulligan.core.records import Record, decode, encode, new_id
from mulligan.server.entries import SERVER_ENTRY_KIND, SERVER_TENANT
from mulligan.server.tenants import Tenants
from mulligan.store.audit import Actor, set_actor
from mulligan.store.base import DAY, PruneResult, Store

log = logging.getLogger("mulligan")

PRUNING_KEY = "pruning"
FIRST_CHECK_SECONDS = 600.0
"""Delay of the first check, so that a server started for a short look removes nothing."""
CHECK_INTERVAL_SECONDS = 600.0
"""Delay between two checks."""
ROUND_INTERVAL_MS = DAY
"""Time from the start of one round to the start of the next."""
ROUND_TIMEOUT_MS = 3_600_000
"""A round without a heartbeat for this long counts as abandoned: its process was killed."""
HEARTBEAT_INTERVAL_MS = 60_000
"""Interval of the heartbeat of a running round."""
IDLE_TIME_FACTOR = 4
"""Idle time after each transaction, as a multiple of its duration, so that other queries come first."""


class PruneLease(Record, frozen=True):
    """State of the latest prune round: its process and its times."""

    owner: str
    started_at: int
    heartbeat_at: int
    ended_at: int | None = None

    def can_start(self, owner: str, now: int) -> bool:
        """Return whether this process may start a new round."""
        if self.ended_at is not None:
            return now - self.started_at >= ROUND_INTERVAL_MS
        return self.owner == owner or now - self.heartbeat_at >= ROUND_TIMEOUT_MS


class _PruneStoppedError(Exception):
    """The server is stopping, or another process took over the round."""


class Pruner:
    """Background thread that runs retention. `log_line` receives one line per tenant with removed records."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        log_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._store, self._tenants = store, Tenants(store)
        self._clock, self._log_line = clock, log_line
        self._owner = new_id("")
        self._stored_round: bytes | None = None
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
                self._log_result(tenant.name, result, time.monotonic() - start_time)
                self._check_not_stopped()
        except _PruneStoppedError:
            return False
        self._update_round(ended_at=self._clock())
        return True

    def _claim_round(self) -> bool:
        stored_value, now = self._store.get(SERVER_TENANT, SERVER_ENTRY_KIND, PRUNING_KEY), self._clock()
        if stored_value is not None and not decode(stored_value, PruneLease).can_start(self._owner, now):
            return False
        self._stored_round = stored_value
        return self._store_round(PruneLease(self._owner, now, now))

    def _store_round(self, lease: PruneLease) -> bool:
        value = encode(lease)
        is_stored = self._store.compare_and_set(
            SERVER_TENANT, SERVER_ENTRY_KIND, PRUNING_KEY, self._stored_round, value
        )
        self._stored_round = value if is_stored else None
        return is_stored

    def _update_round(self, ended_at: int | None = None) -> None:
        if self._stored_round is None or not self._store_round(
            replace(decode(self._stored_round, PruneLease), heartbeat_at=self._clock(), ended_at=ended_at)
        ):
            raise _PruneStoppedError

    def _check_not_stopped(self) -> None:
        """Raise `_PruneStoppedError` if the server is stopping or another process took over.

        Renew the heartbeat when due.
        """
        if self._stop_event.is_set():
            raise _PruneStoppedError
        if (
            self._stored_round is not None
            and self._clock() - decode(self._stored_round, PruneLease).heartbeat_at >= HEARTBEAT_INTERVAL_MS
        ):
            self._update_round()

    def _throttle(self, completed: int, total: int) -> None:
        """Pause between two transactions."""
        self._check_not_stopped()
        self._stop_event.wait(IDLE_TIME_FACTOR * (time.monotonic() - self._work_started))
        self._work_started = time.monotonic()

    def _log_result(self, tenant: str, result: PruneResult, seconds: float) -> None:
        if result.runs or result.steps or result.sampled:
            self._log_line(
                f"pruned tenant={tenant} runs={result.runs} steps={result.steps} sampled={result.sampled} "
                f"seconds={seconds:.1f}"
            )
