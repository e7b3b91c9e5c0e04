"""The location of a process's records: the configured store, its journals, and a fallback in the temporary folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from mulligan.core.failure import StoreError
from mulligan.store.base import Store
from mulligan.store.urls import fallback_path, is_networked, is_postgres, journals_of, local_path, open_store

log = logging.getLogger("mulligan")


class StoreLocation:
    """A store given by URL. The constructor validates the URL; the store is opened on request."""

    def __init__(self, url: str, home: Callable[[], Path], *, fsync: bool = False, token: str = "") -> None:
        self.url = url
        self._fsync, self._token = fsync, token
        self.is_persistent = not url.startswith("memory:")
        """Whether the store outlives the process. Opening an in-memory store twice creates two stores."""
        self.is_networked = is_networked(url)
        self._path = local_path(url, home()) if self.is_persistent else None

    def exists(self) -> bool:
        """Return whether the file of the store exists."""
        try:
            return self._path is not None and self._path.exists()
        except OSError:  # no permission to search the folder
            return False

    def open(self) -> Store:
        return open_store(self.url, self._fsync, self._token, self.journals() if self.is_networked else None)

    def open_or_fallback(self) -> Store:
        """Open the store; if a file store cannot be used, open one in the temporary folder instead."""
        try:
            return self.open()
        except StoreError as error:
            if is_postgres(self.url):
                raise  # the journal holds the records until the database is reachable
            fallback_file = fallback_path()
            log.warning("%s Until then, records go to the fallback store %s.", error, fallback_file)
            return open_store(str(fallback_file), self._fsync)

    def journals(self) -> Path:
        """Return the folder of this store's journals; a folder in the temporary folder if it cannot be created."""
        assert self._path is not None, "a store in memory has no journals"
        folder = journals_of(self._path)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.mkdir(exist_ok=True, mode=0o700)
        except OSError:
            folder = journals_of(fallback_path())
        return folder
