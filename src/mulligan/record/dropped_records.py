"""Counter of dropped records that all processes share, and rate-limited warnings."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import NamedTuple

from mulligan.store.base import Store

log = logging.getLogger("mulligan")

KEY_VALUE_KIND, DROPPED_KEY = "recorder", "dropped"
WARNING_INTERVAL_SECONDS = 60.0


class DropCounter:
    """Dropped records of one process, and how many of them the store already counts."""

    def __init__(self) -> None:
        self.dropped = 0
        self._stored_count = 0
        self._last_warned_at: dict[str, float] = {}

    def warn_rate_limited(self, topic: str, message: str, queued_count: int) -> None:
        now = time.monotonic()
        if now - self._last_warned_at.get(topic, -WARNING_INTERVAL_SECONDS) >= WARNING_INTERVAL_SECONDS:
            self._last_warned_at[topic] = now
            log.warning("%s (queued=%d dropped=%d)", message, queued_count, self.dropped)

    def store_count(self, store: Store, tenant: str) -> None:
        """Add new drops to the count in the store, which `mulligan doctor` reports."""
        count = self.dropped
        if count > self._stored_count:
            add_dropped(store, tenant, count - self._stored_count)
            self._stored_count = count


def count_dropped(store: Store, tenant: str) -> int:
    """Return the number of dropped records of all processes that have reported theirs."""
    stored_count = store.get(tenant, KEY_VALUE_KIND, DROPPED_KEY)
    return int(stored_count) if stored_count is not None and stored_count.isdigit() else 0


def add_dropped(store: Store, tenant: str, count: int) -> None:
    store.put(tenant, KEY_VALUE_KIND, DROPPED_KEY, str(count_dropped(store, tenant) + count).encode())


class HookErrors(NamedTuple):
    """Number of hook errors and the last one. Hooks fail silently, so that they never disturb the coding agent."""

    error_count: int = 0
    last_error: str = ""
    at: int = 0


def read_hook_errors(folder: Path) -> HookErrors:
    """Read the error log files that hooks write to their folder."""
    lines = [line for name in ("faults.old", "faults") for line in _read_lines(folder / name)]
    if not lines:
        return HookErrors()
    timestamp, _, error = lines[-1].partition(" ")
    return HookErrors(len(lines), error, int(timestamp) if timestamp.isdigit() else 0)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("ascii", "replace").splitlines()
    except OSError:
        return []
