"""Every Store there is, for the suites that all of them pass. A new one is one more line in `STORES`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mulligan.remember.memory import MemoryStore
from mulligan.remember.sqlite import SqliteStore
from mulligan.remember.store import Store


def behind_a_server(folder: Path) -> Store:
    from tenants import Tenants  # skips where the server's extra is not installed

    return Tenants(folder)


def in_postgres(folder: Path) -> Store:
    import postgres

    postgres.had()
    from mulligan.remember.postgres.store import PostgresStore

    return PostgresStore(postgres.emptied())


STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda folder: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "mulligan.db"),
    "postgres": in_postgres,
    "remote": behind_a_server,
}
