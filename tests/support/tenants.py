"""A store behind a real server, for the suite that every store passes: each tenant comes with a token of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from servers import served

from mulligan.server.access import AccessRules
from mulligan.store.remote import RemoteStore


class Tenants:
    """Whoever is asked for is asked with the token of its tenant: a tenant cannot be named, only proven."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held = served(folder, AccessRules(is_local=False))
        self._running = self._held.__enter__()
        self._known: dict[str, RemoteStore] = {}

    def of(self, tenant: str) -> RemoteStore:
        if tenant not in self._known:
            # Votes of a local principal count on the days in the records, which these tests choose.
            _, secret = self._running.server.tokens.create("admin", 0, tenant=tenant, principal="local")
            self._running.server.tokens.refresh()
            url = f"http://127.0.0.1:{self._running.port}"
            self._known[tenant] = RemoteStore(url, secret, self._folder / f"spool-{len(self._known)}")
        return self._known[tenant]

    def append_all(self, batches: Any) -> list[int]:
        return [self.of(each.tenant).append(*each[:5]) for each in batches]

    def close(self) -> None:
        for each in self._known.values():
            each.close()
        self._held.__exit__(None, None, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(RemoteStore, name):
            raise AttributeError(name)
        return lambda tenant, *args, **more: getattr(self.of(tenant), name)(tenant, *args, **more)
