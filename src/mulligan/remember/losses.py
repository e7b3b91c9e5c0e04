"""What could not be kept, counted where everybody can see it."""

from __future__ import annotations

from mulligan.remember.store import Store

SHELF, KEY = "recorder", "dropped"


def dropped(store: Store, tenant: str) -> int:
    """How many records were dropped, by all processes that have kept anything since."""
    kept = store.get(tenant, SHELF, KEY)
    return int(kept) if kept is not None and kept.isdigit() else 0


def add_dropped(store: Store, tenant: str, count: int) -> None:
    store.put(tenant, SHELF, KEY, str(dropped(store, tenant) + count).encode())
