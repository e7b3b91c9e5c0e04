"""The location of a process's records: the configured store, its journals, and a fallback in the temporary folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from mulligan.failure import StoreError
from mulligan.remember.store import Store
from mulligan.remember.urls import is_elsewhere, is_postgres, journals_of, open_store, place_of, refuge

log = logging.getLogger("mulligan")


class Place:
    """A store given by URL. The constructor validates the URL; the store is opened on request."""

    def __init__(self, url: str, home: Callable[[], Path], *, fsync: bool = False, token: str = "") -> None:
        self.url = url
        self._fsync, self._token = fsync, token
        self.is_lasting = not url.startswith("memory:")
        """Whether the store outlives the process. Opening an in-memory store twice creates two stores."""
        self.is_elsewhere = is_elsewhere(url)
        self._path = place_of(url, home()) if self.is_lasting else None

    def is_there(self) -> bool:
        """Return whether the file of the store exists."""
        try:
            return self._path is not None and self._path.exists()
        except OSError:  # no permission to search the folder
            return False

    def opened(self) -> Store:
        return open_store(self.url, self._fsync, self._token, self.journals() if self.is_elsewhere else None)

    def opened_somewhere(self) -> Store:
        """Open the store; if a file store cannot be used, open one in the temporary folder instead."""
        try:
            return self.opened()
        except StoreError as error:
            if is_postgres(self.url):
                raise  # the journal holds the records until the database is reachable
            place = refuge()
            log.warning("%s (Until then, records are kept in %s.)", error, place)
            return open_store(str(place), self._fsync)

    def journals(self) -> Path:
        """Return the folder of this store's journals; a folder in the temporary folder if it cannot be created."""
        assert self._path is not None, "what is in memory has no journals"
        folder = journals_of(self._path)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.mkdir(exist_ok=True, mode=0o700)
        except OSError:
            folder = journals_of(refuge())
        return folder
