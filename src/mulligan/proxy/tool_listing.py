"""Tool lists on their way to the client: compare with pins, remove blocked tools, add lessons."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec

from mulligan.build import Components
from mulligan.proxy import description_lessons, messages, pins, tools
from mulligan.proxy.messages import Envelope
from mulligan.proxy.pins import Pins, ToolListFinding
from mulligan.proxy.relay import Relay
from mulligan.proxy.tools import ServerTools
from mulligan.store.base import DEFAULT_TENANT
from mulligan.store.urls import may_have_records, open_store

STORE_TIMEOUT_SECONDS = 2.0
"""Time that a tool list waits for the store."""


class ToolListing:
    """Processing of tool lists. A thread accesses the store, so that nothing else waits for it."""

    def __init__(self, relay: Relay, components: Components, server_tools: ServerTools) -> None:
        self._relay = relay
        self._components = components
        self._tools = server_tools
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        # Loaded while the server starts, so that the pins are ready for its first tool list.
        self._pins_task = relay.loop.create_task(asyncio.to_thread(self._load_pins))

    def build_answer_handler(self, params: msgspec.Raw) -> Callable[[Envelope, bytes], None]:
        """Return the handler for the answer to this request."""
        is_first_page = (
            not messages.decode_or_default(dict, params).get("cursor") if params != messages.EMPTY_RAW else True
        )

        def handle_answer(envelope: Envelope, line: bytes) -> None:
            self._start(self._handle_answer(envelope, line, is_first_page))

        return handle_answer

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._relay.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait until pending pins are stored."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=STORE_TIMEOUT_SECONDS)

    async def _handle_answer(self, envelope: Envelope, line: bytes, is_first_page: bool) -> None:
        client_result = None
        if envelope.error == messages.EMPTY_RAW:
            try:
                client_result = await self._process_list(envelope.result, is_first_page)
            except Exception:  # noqa: BLE001 - an unreadable list is forwarded to the client
                self._components.kit.fault("reading a tool list")
        id = None if envelope.id is msgspec.UNSET else envelope.id
        self._relay.client.write(line if client_result is None else messages.build_answer(id, client_result))

    async def _process_list(self, result: msgspec.Raw, is_first_page: bool) -> dict[str, object] | None:
        server_tools = self._tools
        async with self._lock:
            if not server_tools.has_loaded_pins:
                await asyncio.wait((self._pins_task,), timeout=STORE_TIMEOUT_SECONDS)
                if self._pins_task.done():
                    server_tools.set_pins(self._pins_task.result())
            is_complete = is_first_page and not messages.decode_members(result).get("nextCursor")
            before = server_tools.pins
            findings = server_tools.process_list(result, self._components.kit.now(), is_complete=is_complete)
            if server_tools.pins != before and server_tools.has_loaded_pins:
                self._start(self._save_pins_later(server_tools.pins))
        tools.report_findings(server_tools.options, findings)
        lessons: Mapping[str, Sequence[str]] = {}
        if server_tools.options.should_inject_lessons:
            shareable_values = {
                name: server_tools.get_tool(name).wrapped.shareable_texts() for name in server_tools.names
            }
            lessons = await asyncio.to_thread(self._load_lessons, shareable_values)
        return server_tools.build_client_list(result, lessons)

    async def _save_pins_later(self, server_pins: Pins) -> None:
        """Store the pins in the background."""
        async with self._lock:
            try:
                tools.report_findings(self._tools.options, await asyncio.to_thread(self._save_pins, server_pins))
            except Exception:  # noqa: BLE001 - without stored pins the next list is accepted as the first
                self._components.kit.fault("storing tool definitions")

    async def refresh(self) -> None:
        """Load the pins again: a person may have accepted a tool in another terminal."""
        async with self._lock:
            server_tools = self._tools
            stored_pins = await asyncio.to_thread(self._load_pins)
            if stored_pins != server_tools.pins:
                server_tools.set_pins(stored_pins)

    def _load_pins(self) -> Pins:
        try:
            url = self._components.settings.store_url
            if self._components.settings.record == "off" or not (url.startswith("memory:") or may_have_records(url)):
                return Pins()  # a read must not create files
            return pins.decode_pins(
                self._components.key_value_store.get(DEFAULT_TENANT, pins.PINS_KIND, self._tools.options.name)
            )
        except Exception:  # noqa: BLE001 - an unavailable store must not break the connection
            self._components.kit.fault("reading tool definitions")
            return Pins()

    def _save_pins(self, server_pins: Pins) -> list[ToolListFinding]:
        return pins.save_pins(self._components.key_value_store, self._tools.options.name, server_pins)

    def _load_lessons(self, tools: Mapping[str, Collection[str]]) -> Mapping[str, Sequence[str]]:
        components, url = self._components, self._components.settings.store_url
        try:
            if url.startswith("memory:") or not may_have_records(url):
                return {}
            # A connection of its own: the recorder opens the store only when it has records.
            with closing(open_store(url, token=components.settings.token)) as store:
                return description_lessons.collect_lessons(
                    store, components.kit.prompt, self._tools.options.name, tools, components.kit.now()
                )
        except Exception:  # noqa: BLE001 - an unavailable store costs the lessons, not the list
            components.kit.fault("reading lessons about tools")
            return {}
