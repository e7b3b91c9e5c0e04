"""Background thread that indexes ended runs for searches."""

from __future__ import annotations

import logging
import threading
import time

from mulligan.core.failure import StoreError
from mulligan.server.tenants import Tenants
from mulligan.store.sql import DatabaseStore

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 10.0
"""Between two updates. Searches read the runs that ended in between."""
IDLE_TIME_FACTOR = 4
"""Idle time after each transaction, as a multiple of its duration, so that requests come first."""


class _StoppedError(Exception):
    """The server is stopping."""


class SearchIndexer:
    """Updates the search index of all tenants while the server runs."""

    def __init__(self, store: DatabaseStore, tenants: Tenants) -> None:
        self._store, self._tenants = store, tenants
        self._stop_event = threading.Event()
        self._work_started = 0.0
        self._thread = threading.Thread(target=self._run, name="mulligan-search-indexer", daemon=True)

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
        while not self._stop_event.wait(INTERVAL_SECONDS):
            try:
                self.update()
            except _StoppedError:
                return
            except StoreError as error:
                log.warning("The search index was not updated, retrying later: %s", error)
            except Exception:
                log.exception("The search index was not updated, retrying later")

    def update(self) -> int:
        """Index the runs that ended since the last update. Return their number."""
        self._work_started = time.monotonic()
        tenants = self._tenants.load_all_with_default()
        return sum(self._store.update_search(tenant.name, self._throttle) for tenant in tenants)

    def _throttle(self, completed: int, total: int) -> None:
        """Pause between two transactions."""
        if self._stop_event.wait(IDLE_TIME_FACTOR * (time.monotonic() - self._work_started)):
            raise _StoppedError
        self._work_started = time.monotonic()
