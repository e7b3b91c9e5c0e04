"""Application assembly: the store, the writer, authentication and the routes of every module."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from mulligan.events import AnyEvent
from mulligan.failure import StoreError, Unanswerable
from mulligan.remember.store import Batch, Store
from mulligan.serve.api import doors
from mulligan.serve.api.committing import Committer
from mulligan.serve.api.doors import Browsers, Caller, Doors, Rules
from mulligan.serve.api.errors import Refused, away, invalid
from mulligan.serve.api.intake import Intake
from mulligan.serve.api.pruning import Pruner
from mulligan.serve.api.questions import Questions
from mulligan.serve.api.quotas import Quotas
from mulligan.serve.api.rates import Rates
from mulligan.serve.api.signing import Sessions, Tries
from mulligan.serve.api.tenants import MEASURES
from mulligan.serve.api.tokens import Tokens

log = logging.getLogger("mulligan")

P = ParamSpec("P")
T = TypeVar("T")

MINUTE = 60.0
"""Minimum seconds between two log warnings about an unavailable store."""
THREADS = 4
"""Reader threads. Each holds its own store connection, and more threads would only wait for each other."""


class Server:
    """State shared by all routes. One instance per process."""

    def __init__(
        self,
        store: Store,
        intake: Intake,
        *,
        rules: Rules | None = None,
        rates: Rates | None = None,
        announce: Callable[[str], None] = lambda ticket: None,
        heard: Callable[[str, Sequence[AnyEvent]], None] | None = None,
        pruner: Pruner | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.store = store
        self.intake = intake
        self.rules = rules or Rules()
        self.tokens = Tokens(store)
        self.tenants = intake.tenants
        self.sessions = Sessions(store, self.tokens)
        self.tries = Tries()
        self.quotas = Quotas(store)
        self.browsers = Browsers(announce)
        self.committer = Committer(store, heard)
        self.pruner = pruner
        self.rates = rates or Rates()
        self.clock = clock
        self.is_stopping = False
        self._told_away = float("-inf")
        self._readers = ThreadPoolExecutor(THREADS, thread_name_prefix="mulligan-reader")

    @property
    def is_stale(self) -> bool:
        return self.tokens.is_stale or self.tenants.is_stale

    def refresh(self) -> None:
        """Reload tokens, tenants and signed-out sessions from the store."""
        self.tokens.refresh()
        self.tenants.refresh()
        self.sessions.load()

    def questions(self, who: Caller) -> Questions:
        """Return the queries of the caller's tenant, used by the API and the dashboard."""
        return Questions(self.store, who.tenant, self.clock())

    async def ask(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a blocking function on a reader thread, so that the event loop stays free.

        Store errors become `ApiError`: 400 for an unsupported operation, 503 for an unavailable store.
        """
        try:
            here = contextvars.copy_context()  # The copied context carries the audit actor to the thread.
            asked: Callable[[], T] = partial(here.run, partial(question, *args, **kwargs))
            return await asyncio.get_running_loop().run_in_executor(self._readers, asked)
        except Unanswerable as error:
            raise invalid(str(error)) from None
        except StoreError as error:
            raise self._away(error) from None

    def _away(self, error: StoreError) -> Refused:
        """Build the 503 error.

        The error text contains the store's address and user, so only a local server returns it. Other servers write it
        to their log.
        """
        if self.rules.is_local:
            return away(str(error))
        now = time.monotonic()
        if now - self._told_away > MINUTE:
            self._told_away = now
            log.warning("%s", error)
        return away("the store does not answer just now. Whoever runs this server finds the reason in its log.")

    async def keep(self, who: Caller, prepared: Callable[[], Batch], records: int, size: int) -> int:
        """Store a batch once rate limit and quotas allow it. Return the number of new records."""
        self.rates.take(who.tenant, who.principal, records)
        await self.spend(who, records=records, bytes=size)
        return await self.committer.keep(prepared, records, size)

    async def spend(self, who: Caller, **asked: int) -> None:
        """Charge the amounts to the tenant's quotas. Raise `ApiError` if a quota is exhausted."""
        tenant, now = self.tenants.of(who.tenant), self.clock()
        counted = {name: asked[name] for name in MEASURES if name in asked}
        if not self.quotas.spend(tenant, counted, now):
            await self.ask(self.quotas.take, tenant, counted, now)

    def stop(self) -> None:
        """Stop background work. Requests in progress are still answered."""
        self.is_stopping = True
        if self.pruner is not None:
            self.pruner.stop()

    def close(self) -> None:
        self.stop()
        self.committer.close()
        try:
            self.quotas.close()
        except StoreError as error:
            log.warning("what was left of quotas was not given back: %s", error)
        self._readers.shutdown()
        if self.pruner is not None:
            self.pruner.close()
        self.store.close()


Group = Callable[[Server], Iterable[BaseRoute]]
"""Function that builds related routes: ingest, queries, dashboard pages."""


def possible(request: Request) -> set[str]:
    """Return the methods of all routes that match the request's path. Several routes can share one path."""
    routes = request.app.routes
    return {
        method
        for each in routes
        if isinstance(each, Route) and each.matches(request.scope)[0] is not Match.NONE
        for method in each.methods or ()
    }


def app(server: Server, groups: Sequence[Group], says: Callable[[str], None] | None = None) -> Starlette:
    """Build the Starlette application from groups of routes. `log_request` receives one line per request."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        yield
        server.close()

    async def missed(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 405:
            refused = Refused(405, "wrong_method", f"{request.method} is not possible here.")
            refused.headers = {"Allow": ", ".join(sorted(possible(request)))}
        else:
            refused = Refused(status, "not_found", "there is nothing here. See /docs for what there is.")
        return doors.told(request, refused)

    async def fault(request: Request, error: Exception) -> Response:
        return doors.told(request, Refused(500, "fault", "a fault of the server; its log says more."))

    return Starlette(
        routes=[*doors.entry(server), *(each for group in groups for each in group(server))],
        middleware=[Middleware(Doors, rules=server.rules, says=says)],
        exception_handlers={HTTPException: missed, Exception: fault},
        lifespan=lifespan,
    )
