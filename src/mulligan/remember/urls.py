"""From a URL to a Store."""

from __future__ import annotations

import os
from pathlib import Path

from mulligan.failure import MissingExtra, SettingsError, StoreError
from mulligan.remember.store import Progress, Store
from mulligan.remember.store import journals_of as journals_of

SCHEMES = "memory:, sqlite:///PATH, a path, postgresql://HOST/DATABASE, or the http(s) address of a server"


def is_remote(url: str) -> bool:
    """Whether the store is behind a server."""
    return url.lower().startswith(("http://", "https://"))


def is_postgres(url: str) -> bool:
    """Whether the store is a database of PostgreSQL."""
    return url.lower().startswith(("postgresql://", "postgres://"))


def is_elsewhere(url: str) -> bool:
    """Whether the store is no file of this machine, and may be away."""
    return is_remote(url) or is_postgres(url)


def is_begun(url: str) -> bool:
    """Whether anything may ever have been kept there; what is not here is taken to be so."""
    return is_elsewhere(url) or sqlite_path(url).exists()


def shown(url: str) -> str:
    """The URL for people: without a password."""
    if not is_elsewhere(url):
        return url
    scheme, _, rest = url.partition("://")
    address, _, _ = rest.partition("?")
    authority, slash, path = address.partition("/")
    user, at, host = authority.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{at}{host}{slash}{path}"


def place_of(url: str, home: Path) -> Path:
    """The file of a store; of one that is elsewhere the name beside which its journals wait."""
    if not is_elsewhere(url):
        return sqlite_path(url)
    from hashlib import blake2b  # those who have a server come here

    if is_postgres(url):
        need_psycopg()
    sort, name = ("postgres", shown(url)) if is_postgres(url) else ("server", url)
    return home / f"{sort}-{blake2b(name.rstrip('/').encode('utf-8', 'replace'), digest_size=6).hexdigest()}"


def need_psycopg() -> None:
    """Says what to install, before an import would say what is missing."""
    from importlib.util import find_spec  # those who have a database of PostgreSQL come here

    if find_spec("psycopg") is None:
        raise MissingExtra("PostgreSQL storage needs psycopg: pip install 'mulligan[postgres]'")


def open_store(
    url: str, fsync: bool = False, token: str = "", spool: Path | None = None, progress: Progress | None = None
) -> Store:
    """The store at this URL; with `fsync`, what it keeps survives the machine.

    `token` is for a store behind a server, `spool`, the folder of the journals that wait, for any that is elsewhere.
    `progress` is told how far a store of an earlier version is brought up to date.

    Each is imported when it is named, so that nobody pays for the others.
    """
    if url in ("memory:", "memory://"):
        from mulligan.remember.memory import MemoryStore

        return MemoryStore()
    if is_remote(url):
        from mulligan.remember.remote import RemoteStore

        return RemoteStore(url, token, spool)
    if is_postgres(url):
        need_psycopg()
        from mulligan.remember.postgres.store import PostgresStore

        return PostgresStore(url, fsync=fsync, journals=spool)
    from mulligan.remember.sqlite import SqliteStore

    return SqliteStore(sqlite_path(url), fsync=fsync, progress=progress)


def sqlite_path(url: str) -> Path:
    scheme, separator, rest = url.partition("://")
    if not separator:
        path = url.removeprefix("sqlite:")
    elif is_remote(url):
        raise SettingsError(f"{url} is a server, and this needs the file of a store. Do it where the server runs.")
    elif is_postgres(url):
        raise SettingsError(f"{shown(url)} is a database of PostgreSQL, and this needs the file of a store.")
    elif scheme == "sqlite":
        path = rest.removeprefix("/") if rest.startswith("//") else rest
    else:
        raise SettingsError(f"there is no store of the sort {scheme!r}. Known are {SCHEMES}.")
    if not path.strip("/") or path == ":memory:":  # the latter would be another database for each connection
        raise SettingsError(f"the store {url!r} names no file. Known are {SCHEMES}.")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise SettingsError(f"the store {url!r} is in the home of a user who has none. Known are {SCHEMES}.") from None


def refuge() -> Path:
    """A file of our own in the temporary folder, for when the real store cannot be used."""
    import tempfile  # hooks come by here at every failure, and it brings half a dozen modules

    folder = Path(tempfile.gettempdir()) / f"mulligan-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    # The temporary folder belongs to everybody: a folder or link laid there by another user is not ours to write to.
    if folder.is_symlink() or (hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o077)):
        raise StoreError(f"{folder} belongs to somebody else. Set MULLIGAN_HOME to a folder you can write to.")
    return folder / "mulligan.db"
