"""Where a process keeps what it records: the store of its settings, its journals, and a refuge from both."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from mulligan.failure import StoreError
from mulligan.remember.store import Store
from mulligan.remember.urls import is_elsewhere, is_postgres, journals_of, open_store, place_of, refuge

log = logging.getLogger("mulligan")


class Place:
    """A store by its URL, understood or refused at once, and opened when it is asked for."""

    def __init__(self, url: str, home: Callable[[], Path], *, fsync: bool = False, token: str = "") -> None:
        self.url = url
        self._fsync, self._token = fsync, token
        self.is_lasting = not url.startswith("memory:")
        """Whether it outlives the process. One in memory does not, and to open it twice gives two."""
        self.is_elsewhere = is_elsewhere(url)
        self._path = place_of(url, home()) if self.is_lasting else None

    def is_there(self) -> bool:
        """Whether a file was ever begun there."""
        try:
            return self._path is not None and self._path.exists()
        except OSError:  # a folder that may not be looked into
            return False

    def opened(self) -> Store:
        return open_store(self.url, self._fsync, self._token, self.journals() if self.is_elsewhere else None)

    def opened_somewhere(self) -> Store:
        """The same, or, where that cannot be used, a store in the temporary folder."""
        try:
            return self.opened()
        except StoreError as error:
            if is_postgres(self.url):
                raise  # what is recorded waits in the journal until the database is there
            place = refuge()
            log.warning("%s (Until then, records are kept in %s.)", error, place)
            return open_store(str(place), self._fsync)

    def journals(self) -> Path:
        """The folder of this store's journals; in the temporary folder, where it cannot be beside it."""
        assert self._path is not None, "what is in memory has no journals"
        folder = journals_of(self._path)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.mkdir(exist_ok=True, mode=0o700)
        except OSError:
            folder = journals_of(refuge())
        return folder
