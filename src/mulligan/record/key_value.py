"""Key-value access through the recorder's store, which also works before the recorder has opened it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from mulligan.record.recorder import Recorder
from mulligan.store.base import AuditNote, KeyValueStore, Store

FLUSH_TIMEOUT_SECONDS = 0.25
"""Seconds to wait for a recorder with queued records to open its store."""


class RecorderKeyValueStore:
    """Key-value store that uses the recorder's store, or opens one temporarily if there is none yet.

    `open_store` is None where opening the store again would create a different one: in memory and in the test sandbox.
    """

    def __init__(self, recorder: Recorder, open_store: Callable[[], Store] | None) -> None:
        self._recorder = recorder
        self._open_store = open_store

    def get(self, tenant: str, kind: str, key: str) -> bytes | None:
        with self._borrow_store() as store:
            return store.get(tenant, kind, key) if store is not None else None

    def put(self, tenant: str, kind: str, key: str, value: bytes) -> None:
        with self._borrow_store() as store:
            if store is not None:
                store.put(tenant, kind, key, value)

    def compare_and_set(
        self,
        tenant: str,
        kind: str,
        key: str,
        expected: bytes | None,
        value: bytes,
        audit_note: AuditNote | None = None,
    ) -> bool:
        with self._borrow_store() as store:
            return store is None or store.compare_and_set(tenant, kind, key, expected, value, audit_note)

    def keys(self, tenant: str, kind: str) -> list[str]:
        with self._borrow_store() as store:
            return store.keys(tenant, kind) if store is not None else []

    @contextmanager
    def _borrow_store(self) -> Iterator[KeyValueStore | None]:
        if self._recorder.store is None:
            self._recorder.flush(FLUSH_TIMEOUT_SECONDS)
        store = self._recorder.store
        if store is not None or self._open_store is None:
            yield store
            return
        with closing(self._open_store()) as temporary_store:
            yield temporary_store
