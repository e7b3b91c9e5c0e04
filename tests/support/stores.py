"""Every Store there is, for the suites that all of them pass. A new one is one more line in `STORES`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mulligan.contract.store import DEFAULT_TENANT, Store
from mulligan.core.events import AnyEvent
from mulligan.core.fast_path import CallTemplate, StandaloneRun, SuccessRecord
from mulligan.core.records import Run
from mulligan.core.value_snapshots import IMMUTABLE_TYPES
from mulligan.store.sqlite import MemoryStore, SqliteStore


def behind_a_server(folder: Path) -> Store:
    from tenants import Tenants  # skips where the server's extra is not installed

    return Tenants(folder)


def in_postgres(folder: Path) -> Store:
    import postgres

    postgres.had()
    from mulligan.store.postgres.postgres_store import PostgresStore

    return PostgresStore(postgres.pooled(postgres.emptied()))


STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda folder: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "mulligan.db"),
    "postgres": in_postgres,
    "remote": behind_a_server,
}


def stored_seqs(store: SqliteStore, run: str) -> list[int]:
    """The numbers of a run's steps, also where the run itself has not arrived."""
    rows = store.read_rows(
        DEFAULT_TENANT, "SELECT seq FROM steps WHERE tenant = ? AND run = ? ORDER BY seq", (DEFAULT_TENANT, run)
    )
    return [seq for (seq,) in rows]


class Writer:
    """Appends batches as a recorder does: one journal, and an offset that grows."""

    def __init__(self, store: Store, tenant: str = DEFAULT_TENANT, journal: str = "journal_a") -> None:
        self.store, self.tenant, self.journal, self.offset = store, tenant, journal, 0

    def __call__(self, *batch: AnyEvent) -> int:
        self.offset += len(batch)
        return self.store.append(self.tenant, batch, self.journal, self.offset)


def success_record(run: str, seq: int, arguments: dict[str, Any], standalone_run: Run | None) -> SuccessRecord:
    """A call of `search` that succeeded, as a caller hands it to the recorder."""
    template = CallTemplate("tool", "search", recordable_names=frozenset(arguments))
    shared = None if standalone_run is None else StandaloneRun.from_run(standalone_run)
    is_immutable = IMMUTABLE_TYPES.issuperset(map(type, arguments.values()))
    return SuccessRecord(template, run, seq, None, 1.0, (), arguments, shared, is_immutable, 0.25, "a result")
