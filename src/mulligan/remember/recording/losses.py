"""Counter of dropped records that all processes share, and rate-limited warnings."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import NamedTuple

from mulligan.remember.store import Store

log = logging.getLogger("mulligan")

SHELF, KEY = "recorder", "dropped"
MINUTE = 60.0


class Losses:
    """Dropped records of one process, and how many of them the store already counts."""

    def __init__(self) -> None:
        self.dropped = 0
        self._told = 0
        self._warned: dict[str, float] = {}

    def complain(self, what: str, told: str, waiting: int) -> None:
        now = time.monotonic()
        if now - self._warned.get(what, -MINUTE) >= MINUTE:
            self._warned[what] = now
            log.warning("%s (%d records in memory, %d dropped)", told, waiting, self.dropped)

    def tell(self, store: Store, tenant: str) -> None:
        """Add new drops to the count in the store, which `mulligan doctor` reports."""
        count = self.dropped
        if count > self._told:
            add_dropped(store, tenant, count - self._told)
            self._told = count


def dropped(store: Store, tenant: str) -> int:
    """Return the number of dropped records of all processes that have reported theirs."""
    kept = store.get(tenant, SHELF, KEY)
    return int(kept) if kept is not None and kept.isdigit() else 0


def add_dropped(store: Store, tenant: str, count: int) -> None:
    store.put(tenant, SHELF, KEY, str(dropped(store, tenant) + count).encode())


class Faults(NamedTuple):
    """Number of hook errors and the last one. Hooks fail silently, so that they never disturb the coding agent."""

    number: int = 0
    last: str = ""
    at: int = 0


def hook_faults(folder: Path) -> Faults:
    """Read the error log files that hooks write to their folder."""
    lines = [line for name in ("faults.old", "faults") for line in _lines(folder / name)]
    if not lines:
        return Faults()
    moment, _, what = lines[-1].partition(" ")
    return Faults(len(lines), what, int(moment) if moment.isdigit() else 0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("ascii", "replace").splitlines()
    except OSError:
        return []
