"""What could not be kept, counted where everybody can see it, and what is wrong, told once a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Sized

from mulligan.remember.store import Store

log = logging.getLogger("mulligan")

SHELF, KEY = "recorder", "dropped"
MINUTE = 60.0


class Losses:
    """What one process has dropped, and has told of it."""

    def __init__(self) -> None:
        self.dropped = 0
        self._told = 0
        self._warned: dict[str, float] = {}

    def complain(self, what: str, told: str, waiting: Sized) -> None:
        now = time.monotonic()
        if now - self._warned.get(what, -MINUTE) >= MINUTE:
            self._warned[what] = now
            log.warning("%s (%d records in memory, %d dropped)", told, len(waiting), self.dropped)

    def tell(self, store: Store, tenant: str) -> None:
        """Counts what was dropped where `mulligan doctor` sees it, once the store can be written again."""
        count = self.dropped
        if count > self._told:
            add_dropped(store, tenant, count - self._told)
            self._told = count


def dropped(store: Store, tenant: str) -> int:
    """How many records were dropped, by all processes that have kept anything since."""
    kept = store.get(tenant, SHELF, KEY)
    return int(kept) if kept is not None and kept.isdigit() else 0


def add_dropped(store: Store, tenant: str, count: int) -> None:
    store.put(tenant, SHELF, KEY, str(dropped(store, tenant) + count).encode())
