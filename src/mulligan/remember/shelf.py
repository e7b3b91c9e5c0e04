"""Key-value access through the recorder's store, which also works before the recorder has opened it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from mulligan.remember.recording.recorder import Recorder
from mulligan.remember.store import Noted, Shelf, Store

SETTLE = 0.25
"""Seconds to wait for a recorder with queued records to open its store."""


class RecorderShelf:
    """Key-value store that uses the recorder's store, or opens one temporarily if there is none yet.

    `open_store` is None where opening the store again would create a different one: in memory and in the test sandbox.
    """

    def __init__(self, recorder: Recorder, opening: Callable[[], Store] | None) -> None:
        self._recorder = recorder
        self._opening = opening

    def get(self, tenant: str, kind: str, key: str) -> bytes | None:
        with self._opened() as shelf:
            return shelf.get(tenant, kind, key) if shelf is not None else None

    def put(self, tenant: str, kind: str, key: str, value: bytes) -> None:
        with self._opened() as shelf:
            if shelf is not None:
                shelf.put(tenant, kind, key, value)

    def swap(
        self, tenant: str, kind: str, key: str, known: bytes | None, value: bytes, noted: Noted | None = None
    ) -> bool:
        with self._opened() as shelf:
            return shelf is None or shelf.swap(tenant, kind, key, known, value, noted)

    def keys(self, tenant: str, kind: str) -> list[str]:
        with self._opened() as shelf:
            return shelf.keys(tenant, kind) if shelf is not None else []

    @contextmanager
    def _opened(self) -> Iterator[Shelf | None]:
        if self._recorder.store is None:
            self._recorder.flush(SETTLE)
        store = self._recorder.store
        if store is not None or self._opening is None:
            yield store
            return
        with closing(self._opening()) as own:
            yield own
