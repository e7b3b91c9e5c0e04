"""Tool lists on their way to the client: compare with pins, remove blocked tools, add lessons."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec

from mulligan.parts import Parts
from mulligan.remember.store import LOCAL
from mulligan.remember.urls import is_begun, open_store
from mulligan.serve.proxy import messages, pins, teach, tools
from mulligan.serve.proxy.messages import Envelope
from mulligan.serve.proxy.pins import Finding, Pins
from mulligan.serve.proxy.pump import Pump
from mulligan.serve.proxy.tools import Tools

PATIENCE = 2.0
"""Time that a tool list waits for the store."""


class Listing:
    """Processing of tool lists. A thread accesses the store, so that nothing else waits for it."""

    def __init__(self, pump: Pump, parts: Parts, known: Tools) -> None:
        self._pump = pump
        self._parts = parts
        self._tools = known
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        # Loaded while the server starts, so that the pins are ready for its first tool list.
        self._pinned = pump.loop.create_task(asyncio.to_thread(self._kept))

    def asked(self, params: msgspec.Raw) -> Callable[[Envelope, bytes], None]:
        """Return the handler for the answer to this request."""
        is_first_page = not messages.read(dict, params).get("cursor") if params != messages.NOTHING else True

        def answered(said: Envelope, line: bytes) -> None:
            self._start(self._answered(said, line, is_first_page))

        return answered

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._pump.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait until pending pins are stored."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=PATIENCE)

    async def _answered(self, said: Envelope, line: bytes, is_first_page: bool) -> None:
        shown = None
        if said.error == messages.NOTHING:
            try:
                shown = await self._taken_in(said.result, is_first_page)
            except Exception:  # noqa: BLE001 - an unreadable list is forwarded to the client
                self._parts.kit.fault("reading a list of tools")
        id = None if said.id is msgspec.UNSET else said.id
        self._pump.client.write(line if shown is None else messages.answer(id, shown))

    async def _taken_in(self, result: msgspec.Raw, is_first_page: bool) -> dict[str, object] | None:
        known = self._tools
        async with self._lock:
            if not known.is_settled:
                await asyncio.wait((self._pinned,), timeout=PATIENCE)
                if self._pinned.done():
                    known.settle(self._pinned.result())
            is_whole = is_first_page and not messages.members(result).get("nextCursor")
            before = known.pins
            found = known.listed(result, self._parts.kit.now(), is_whole=is_whole)
            if known.pins != before and known.is_settled:
                self._start(self._keep_later(known.pins))
        tools.report(known.options, found)
        lessons: Mapping[str, Sequence[str]] = {}
        if known.options.teaches:
            closed = {name: known.named(name).wrapped.closed() for name in known.names}
            lessons = await asyncio.to_thread(self._lessons, closed)
        return known.shown(result, lessons)

    async def _keep_later(self, known: Pins) -> None:
        """Store the pins in the background."""
        async with self._lock:
            try:
                tools.report(self._tools.options, await asyncio.to_thread(self._keep, known))
            except Exception:  # noqa: BLE001 - without stored pins the next list is accepted as the first
                self._parts.kit.fault("keeping the definitions of tools")

    async def refresh(self) -> None:
        """Load the pins again: a person may have accepted a tool in another terminal."""
        async with self._lock:
            known = self._tools
            kept = await asyncio.to_thread(self._kept)
            if kept != known.pins:
                known.settle(kept)

    def _kept(self) -> Pins:
        try:
            url = self._parts.settings.store_url
            if self._parts.settings.record == "off" or not (url.startswith("memory:") or is_begun(url)):
                return Pins()  # a read must not create files
            return pins.unpacked(self._parts.shelf.get(LOCAL, pins.SHELF, self._tools.options.name))
        except Exception:  # noqa: BLE001 - an unavailable store must not break the connection
            self._parts.kit.fault("reading the definitions of tools")
            return Pins()

    def _keep(self, known: Pins) -> list[Finding]:
        return pins.keep(self._parts.shelf, self._tools.options.name, known)

    def _lessons(self, tools: Mapping[str, Collection[str]]) -> Mapping[str, Sequence[str]]:
        parts, url = self._parts, self._parts.settings.store_url
        try:
            if url.startswith("memory:") or not is_begun(url):
                return {}
            # A connection of its own: the recorder opens the store only when it has records.
            with closing(open_store(url, token=parts.settings.token)) as store:
                return teach.lessons(store, parts.kit.prompt, self._tools.options.name, tools, parts.kit.now())
        except Exception:  # noqa: BLE001 - an unavailable store costs the lessons, not the list
            parts.kit.fault("reading what is known of tools")
            return {}
