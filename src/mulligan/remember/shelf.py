"""The shelf of the store that the recorder writes to, also while the recorder has not opened it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from mulligan.remember.recording.recorder import Recorder
from mulligan.remember.store import Noted, Shelf, Store

SETTLE = 0.25
"""Seconds that a recorder which has something to keep is given to open its store."""


class RecorderShelf:
    """Gets and puts through the recorder's store; where it has none yet, through one opened for the moment.

    `opening` is None where two openings would not be the same store: in memory, and in rehearsals.
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
