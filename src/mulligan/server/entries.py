"""Entries of the server in the key-value store: shared by its processes and changed with compare-and-set."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from mulligan.core.failure import SettingsError
from mulligan.core.records import decode, encode
from mulligan.store.base import AuditNote, KeyValueStore

T = TypeVar("T")

SERVER_TENANT = ""
"""Tenant of entries that belong to the server itself."""
SERVER_ENTRY_KIND = "server"
REFRESH_INTERVAL_SECONDS = 1.0
"""Time until entries are read again. A revoked token stops working within it."""
MAX_UPDATE_ATTEMPTS = 1000


def update_entry(
    key_value_store: KeyValueStore,
    tenant: str,
    key: str,
    update: Callable[[bytes | None], bytes | None],
    build_note: Callable[[], AuditNote | None] = lambda: None,
) -> bool:
    """Change an entry, again if another process was faster. Return whether it succeeded.

    `update` returns the new value, or `None` to leave the entry as it is.
    """
    for _ in range(MAX_UPDATE_ATTEMPTS):
        stored_value = key_value_store.get(tenant, SERVER_ENTRY_KIND, key)
        value = update(stored_value)
        if value is None or key_value_store.compare_and_set(
            tenant, SERVER_ENTRY_KIND, key, stored_value, value, build_note()
        ):
            return True
    return False


def load_or_create_key(key_value_store: KeyValueStore, tenant: str, kind: str, key: str) -> bytes:
    """Return a random secret of a tenant, the same for all processes."""
    secret = key_value_store.get(tenant, kind, key)
    if secret is None:
        new_secret = os.urandom(32)
        is_first = key_value_store.compare_and_set(tenant, kind, key, None, new_secret)
        secret = new_secret if is_first else key_value_store.get(tenant, kind, key) or new_secret
    return secret


class CachedRecords(Generic[T]):
    """Records in one entry of the server, cached for a second because every request needs them."""

    def __init__(self, key_value_store: KeyValueStore, key: str, type: Any) -> None:
        self._key_value_store = key_value_store
        self._key, self._type = key, type
        self._read_at = float("-inf")

    def load_all(self) -> list[T]:
        """Read all records from the store."""
        return self._decode(self._key_value_store.get(SERVER_TENANT, SERVER_ENTRY_KIND, self._key))

    def _decode(self, stored_value: bytes | None) -> list[T]:
        return decode(stored_value, list[self._type]) if stored_value else []  # type: ignore[name-defined]

    def _change(self, update: Callable[[list[T]], list[T]], build_note: Callable[[], AuditNote]) -> None:
        is_changed = update_entry(
            self._key_value_store,
            SERVER_TENANT,
            self._key,
            lambda stored_value: encode(update(self._decode(stored_value))),
            build_note,
        )
        if not is_changed:
            raise SettingsError(f"The {self._key} were not changed: too many concurrent changes. Try again.")

    @property
    def is_stale(self) -> bool:
        return time.monotonic() - self._read_at > REFRESH_INTERVAL_SECONDS

    def refresh(self) -> None:
        """Read the records again."""
        read_at = time.monotonic()
        self._cache(self.load_all())
        self._read_at = read_at

    def _cache(self, records: Sequence[T]) -> None:
        raise NotImplementedError
