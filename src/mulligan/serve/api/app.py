"""The server, put together: the store, who writes, who may ask, and the routes that every part brings along."""

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
"""Seconds before it is logged again that the store is away."""
THREADS = 4
"""That read. Each has a connection of its own; more would only wait for each other."""


class Server:
    """What all routes share. One a process."""

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
        """Who may come in, and what holds for them, as the store has it now."""
        self.tokens.refresh()
        self.tenants.refresh()
        self.sessions.load()

    def questions(self, who: Caller) -> Questions:
        """What may be asked, for the API and for pages alike; the tenant is the caller's."""
        return Questions(self.store, who.tenant, self.clock())

    async def ask(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """An answer of the store, on a thread of its own, so that others are served meanwhile."""
        try:
            here = contextvars.copy_context()  # who acts is known on the thread, too
            asked: Callable[[], T] = partial(here.run, partial(question, *args, **kwargs))
            return await asyncio.get_running_loop().run_in_executor(self._readers, asked)
        except Unanswerable as error:
            raise invalid(str(error)) from None
        except StoreError as error:
            raise self._away(error) from None

    def _away(self, error: StoreError) -> Refused:
        """Where the store is, and as whom it is asked, is told on this machine alone, and in the log."""
        if self.rules.is_local:
            return away(str(error))
        now = time.monotonic()
        if now - self._told_away > MINUTE:
            self._told_away = now
            log.warning("%s", error)
        return away("the store does not answer just now. Whoever runs this server finds the reason in its log.")

    async def keep(self, who: Caller, prepared: Callable[[], Batch], records: int, size: int) -> int:
        """Waits until what somebody sent is in the store, if it is not too much; how much of it was new."""
        self.rates.take(who.tenant, who.principal, records)
        await self.spend(who, records=records, bytes=size)
        return await self.committer.keep(prepared, records, size)

    async def spend(self, who: Caller, **asked: int) -> None:
        """Counts against the quotas of whoever asks, if there are any; refuses what is beyond them."""
        tenant, now = self.tenants.of(who.tenant), self.clock()
        counted = {name: asked[name] for name in MEASURES if name in asked}
        if not self.quotas.spend(tenant, counted, now):
            await self.ask(self.quotas.take, tenant, counted, now)

    def stop(self) -> None:
        """Whatever goes on by itself comes to an end; what was asked is still answered."""
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
"""Routes that belong together: `/v1/*` of ingest, of queries, the pages of the dashboard."""


def possible(request: Request) -> set[str]:
    """The methods of a path, of all the routes that have it: a question and what is sent may have one path."""
    routes = request.app.routes
    return {
        method
        for each in routes
        if isinstance(each, Route) and each.matches(request.scope)[0] is not Match.NONE
        for method in each.methods or ()
    }


def app(server: Server, groups: Sequence[Group], says: Callable[[str], None] | None = None) -> Starlette:
    """The application of these groups of routes. `says` is told one line a request."""

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
