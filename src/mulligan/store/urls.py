"""Store URLs: parsing them, opening their stores, and the location of a process's records."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mulligan.contract.store import Progress, Store
from mulligan.contract.store import journals_of as journals_of
from mulligan.core.failure import (
    INSTALL_EXTRA,
    MissingExtraError,
    NewerStoreError,
    SettingsError,
    StoreError,
    StoreLockedError,
)
from mulligan.core.log import get_logger
from mulligan.redaction.regex import LazyRegex

if TYPE_CHECKING:
    from mulligan.store.copy import Endpoint

log = get_logger(__name__)

_ADDRESS_WITHOUT_SCHEME = LazyRegex(
    # An address with a port, or one that starts with the name of a host.
    r"(?:[\w.-]{2,}|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}(?:/.*)?"
    r"|(?:localhost|[0-9]{1,3}(?:\.[0-9]{1,3}){3}|(?:[\w-]+\.)+(?:com|org|net|io|dev|ai|cloud|internal))(?:/.*)?"
)
SCHEMES = "memory:, sqlite:///PATH, a path, postgresql://HOST/DATABASE, or the http(s) address of a server"


def is_remote(url: str) -> bool:
    """Return whether the store is behind a mulligan server."""
    return url.lower().startswith(("http://", "https://"))


def is_postgres(url: str) -> bool:
    """Return whether the store is a PostgreSQL database."""
    return url.lower().startswith(("postgresql://", "postgres://"))


def is_networked(url: str) -> bool:
    """Return whether the store is reached over the network and may be unavailable."""
    return is_remote(url) or is_postgres(url)


def may_have_records(url: str) -> bool:
    """Return whether the store may contain records. A networked store is assumed to."""
    return is_networked(url) or sqlite_path(url).exists()


def redact_password(url: str) -> str:
    """Return the URL without password and parameters, for display."""
    if not is_networked(url):
        return url
    scheme, _, after_scheme = url.partition("://")
    address, _, _ = after_scheme.partition("?")
    authority, slash, path = address.partition("/")
    user, at, host = authority.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{at}{host}{slash}{path}"


def local_path(url: str, home: Path) -> Path:
    """Return the file of a store; for a networked store, the local path next to which its journals are stored."""
    if not is_networked(url):
        return sqlite_path(url)
    from hashlib import blake2b  # only for networked stores

    if is_postgres(url):
        require_psycopg()
    store_type, name = ("postgres", redact_password(url)) if is_postgres(url) else ("server", url)
    return home / f"{store_type}-{blake2b(name.rstrip('/').encode('utf-8', 'replace'), digest_size=6).hexdigest()}"


def require_psycopg() -> None:
    """Raise an error that names the package to install, if psycopg is missing."""
    from importlib.util import find_spec  # only for PostgreSQL

    if find_spec("psycopg") is None:
        raise MissingExtraError(f"PostgreSQL storage needs psycopg. {INSTALL_EXTRA.format('postgres')}")


def open_store(
    url: str, fsync: bool = False, token: str = "", spool: Path | None = None, progress: Progress | None = None
) -> Store:
    """Open the store of a URL. With `fsync`, commits survive a crash of the machine.

    `token` authenticates at a mulligan server. `spool` is the folder of the journals of a networked store. `progress`
    is called while a store of an earlier version is migrated.

    Each implementation is imported on demand, to keep the start fast.
    """
    if url in ("memory:", "memory://"):
        from mulligan.store.sqlite import MemoryStore

        return MemoryStore()
    if is_remote(url):
        from mulligan.store.remote import RemoteStore

        return RemoteStore(url, token, spool)
    if is_postgres(url):
        require_psycopg()
        from mulligan.store.postgres.postgres_store import PostgresStore

        return PostgresStore(url, fsync=fsync, journals=spool)
    from mulligan.store.sqlite import SqliteStore

    return SqliteStore(sqlite_path(url), fsync=fsync, progress=progress)


def open_endpoint(url: str, is_source: bool) -> Endpoint:
    """Open the database of a store for a copy."""
    if is_postgres(url):
        require_psycopg()
        from mulligan.store.postgres.postgres_copy import PostgresEndpoint

        return PostgresEndpoint(url, is_source)
    from mulligan.store.copy import SqliteEndpoint

    return SqliteEndpoint(sqlite_path(url), is_source)


def sqlite_path(url: str) -> Path:
    scheme, separator, after_scheme = url.partition("://")
    if not separator:
        path = url.removeprefix("sqlite:")
        if path == url and _ADDRESS_WITHOUT_SCHEME.fullmatch(url):
            # As a file name it would be valid, and the records would never reach the server.
            raise SettingsError(
                f"The store {url!r} looks like the address of a server. Did you mean http://{url}? For a file of that "
                f"name: ./{url}"
            )
    elif is_remote(url):
        raise SettingsError(f"{url} is a server, and this command needs a store file. Run it on the server.")
    elif is_postgres(url):
        raise SettingsError(f"{redact_password(url)} is a PostgreSQL database, and this command needs a store file.")
    elif scheme == "sqlite":
        path = after_scheme.removeprefix("/") if after_scheme.startswith("//") else after_scheme
    else:
        raise SettingsError(f"Unknown store type {scheme!r}. Use {SCHEMES}.")
    if not path.strip("/") or path == ":memory:":  # :memory: would be a separate database per connection
        raise SettingsError(f"The store {url!r} names no file. Use {SCHEMES}.")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise SettingsError(f"The store {url!r} is in the home folder of an unknown user. Use {SCHEMES}.") from None


def fallback_path() -> Path:
    """Return a private file in the temporary folder, for when the configured store cannot be used."""
    import tempfile  # slow to import, and every failing hook gets here

    folder = Path(tempfile.gettempdir()) / f"mulligan-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    # The temporary folder is shared: never write to a folder or link that another user created there.
    if folder.is_symlink() or (hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o077)):
        raise StoreError(f"{folder} belongs to another user. Set MULLIGAN_HOME to a writable folder.")
    return folder / "mulligan.db"


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
        try:
            return self._path is not None and self._path.exists()
        except OSError:  # no permission to search the folder
            return False

    def open(self) -> Store:
        return open_store(self.url, self._fsync, self._token, self.journals() if self.is_networked else None)

    def open_or_fallback(self) -> Store:
        """Open the store; if a file store cannot be used, open one in the temporary folder instead.

        Raise if another process migrates the file or a newer version did: the journal holds the records until then.
        """
        try:
            return self.open()
        except StoreError as error:
            if is_postgres(self.url) or isinstance(error, StoreLockedError | NewerStoreError):
                raise  # the journal holds the records until the store is usable
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
