"""Tool lists on their way to the client: compare with pins, remove blocked tools, add lessons to descriptions (F7)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec

from mulligan.build import Components
from mulligan.prompt import Prompt, estimate_prompt_tokens
from mulligan.proxy import messages, pins
from mulligan.proxy.messages import Envelope
from mulligan.proxy.pins import Pins, ToolListFinding
from mulligan.proxy.relay import Relay
from mulligan.proxy.tools import ProxyOptions, ServerTools, decode_definition
from mulligan.store.base import DEFAULT_TENANT, FixQuery, LessonQuery, Store
from mulligan.store.urls import may_have_records, open_store

STORE_TIMEOUT_SECONDS = 2.0
"""Time that a tool list waits for the store."""
MAX_TOOL_TOKENS = 120
"""Limit for one description: a model reads all of them with every request."""
MAX_SERVER_TOKENS = 1500
"""Limit for all descriptions of a server."""
MAX_FIXES_PER_TOOL = 50
"""Limit of lessons and fixes that are read for a tool."""
FINDING_SENTENCES = {
    "new": "has a new tool",
    "changed": "changed the definition of a tool",
    "removed": "removed a tool",
    "twice": "lists a tool name twice, the first one is used",
    "shadows": "has a tool with the same name as another server",
}


class ToolListing:
    """Processing of tool lists. A thread accesses the store, so that nothing else waits for it."""

    def __init__(self, relay: Relay, components: Components, server_tools: ServerTools) -> None:
        self._relay = relay
        self._components = components
        self._capture = components.capture
        self._tools = server_tools
        self._options = server_tools.options
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        # Loaded while the server starts, so that the pins are ready for its first tool list.
        self._pins_task = relay.loop.create_task(asyncio.to_thread(self._load_pins))

    def build_answer_handler(self, params: msgspec.Raw) -> Callable[[Envelope, bytes], None]:
        """Return the handler for the answer to this request."""
        is_first_page = not messages.decode_params(params).cursor

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
                self._capture.log_internal_error("reading a tool list")
        if client_result is not None:
            line = messages.build_message(id=envelope.id, result=client_result)
        self._relay.client.write(line)

    async def _process_list(self, result: msgspec.Raw, is_first_page: bool) -> dict[str, object] | None:
        tools = self._tools
        async with self._lock:
            if not tools.has_loaded_pins:
                await asyncio.wait((self._pins_task,), timeout=STORE_TIMEOUT_SECONDS)
                if self._pins_task.done():
                    tools.set_pins(self._pins_task.result())
            is_complete = is_first_page and not messages.decode_members(result).get("nextCursor")
            before = tools.pins
            findings = tools.process_list(result, self._capture.now(), is_complete=is_complete)
            if tools.pins != before and tools.has_loaded_pins:
                self._start(self._save_pins(tools.pins))
        report_findings(self._options, findings)
        lessons: Mapping[str, Sequence[str]] = {}
        if self._options.should_inject_lessons:
            shareable_values = {name: tools.get_tool(name).wrapped.shareable_texts() for name in tools.names}
            lessons = await asyncio.to_thread(self._load_lessons, shareable_values)
        return self._build_client_list(result, lessons)

    def _build_client_list(self, result: msgspec.Raw, lessons: Mapping[str, Sequence[str]]) -> dict[str, Any] | None:
        """Return the tool list for the client, or None if it is unchanged."""
        members: dict[str, Any] = dict(messages.decode_members(result))
        client_tools: list[Any] = []
        budget = DescriptionBudget(self._capture.prompt)
        is_changed = False
        names: set[str] = set()
        for raw in messages.decode_items(members["tools"]):
            name = str(decode_definition(raw).get("name"))
            is_duplicate = self._options.should_pin and name in names
            names.add(name)
            if is_duplicate or self._tools.is_blocked(name):
                is_changed = True
                continue
            new_definition = budget.add_lessons(messages.decode_members(raw), lessons.get(name, ()))
            is_changed = is_changed or new_definition is not None
            client_tools.append(raw if new_definition is None else new_definition)
        return {**members, "tools": client_tools} if is_changed else None

    async def refresh(self) -> None:
        """Load the pins again: a person may have accepted a tool in another terminal."""
        async with self._lock:
            stored_pins = await asyncio.to_thread(self._load_pins)
            if stored_pins != self._tools.pins:
                self._tools.set_pins(stored_pins)

    def _load_pins(self) -> Pins:
        components = self._components
        try:
            url = components.settings.store_url
            if components.settings.record == "off" or not (url.startswith("memory:") or may_have_records(url)):
                return Pins()  # a read must not create files
            return pins.decode_pins(components.key_value_store.get(DEFAULT_TENANT, pins.PINS_KIND, self._options.name))
        except Exception:  # noqa: BLE001 - an unavailable store must not break the connection
            self._capture.log_internal_error("reading tool definitions")
            return Pins()

    async def _save_pins(self, server_pins: Pins) -> None:
        """Store the pins in the background."""
        async with self._lock:
            try:
                key_value_store = self._components.key_value_store
                findings = await asyncio.to_thread(pins.save_pins, key_value_store, self._options.name, server_pins)
                report_findings(self._options, findings)
            except Exception:  # noqa: BLE001 - without stored pins the next list is accepted as the first
                self._capture.log_internal_error("storing tool definitions")

    def _load_lessons(self, tools: Mapping[str, Collection[str]]) -> Mapping[str, Sequence[str]]:
        settings = self._components.settings
        try:
            if settings.store_url.startswith("memory:") or not may_have_records(settings.store_url):
                return {}
            # A connection of its own: the recorder opens the store only when it has records.
            with closing(open_store(settings.store_url, token=settings.token)) as store:
                return collect_lessons(store, self._capture.prompt, self._options.name, tools, self._capture.now())
        except Exception:  # noqa: BLE001 - an unavailable store costs the lessons, not the list
            self._capture.log_internal_error("reading lessons about tools")
            return {}


def report_findings(options: ProxyOptions, findings: Sequence[ToolListFinding]) -> None:
    """Print findings on standard error, which MCP clients show or log."""
    from mulligan.report.tables import to_line  # only needed for findings

    for finding in findings:
        more = f" ({to_line(finding.detail, 200)})" if finding.detail else ""
        is_blocked = options.should_pin and finding.type in ("new", "changed")
        blocked_note = f"; blocked. Review and accept it: mulligan proxy accept {options.name}" if is_blocked else ""
        message = f"{FINDING_SENTENCES[finding.type]}: {to_line(finding.tool, 80)}{more}{blocked_note}"
        print(f"mulligan: {to_line(options.name, 80)} {message}.", file=sys.stderr, flush=True)


class DescriptionBudget:
    """Token budget for lessons in the descriptions of one tool list."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._remaining_tokens = MAX_SERVER_TOKENS

    def add_lessons(self, definition: Mapping[str, msgspec.Raw], lessons: Sequence[str]) -> dict[str, Any] | None:
        """Return the tool definition with its lessons, or None if there are none or none fits."""
        fitting_lessons: list[str] = []
        remaining_tokens = min(MAX_TOOL_TOKENS, self._remaining_tokens)
        for lesson in lessons:
            cost = estimate_prompt_tokens(lesson)
            if cost <= remaining_tokens:
                fitting_lessons.append(lesson)
                remaining_tokens -= cost
                self._remaining_tokens -= cost
        if not fitting_lessons:
            return None
        try:
            before = msgspec.json.decode(definition.get("description", b'""'), type=str | None) or ""
        except msgspec.DecodeError:
            return None
        paragraphs = filter(None, (before.rstrip(), self._prompt.description_suffix(fitting_lessons)))
        return {**definition, "description": "\n\n".join(paragraphs)}


def collect_lessons(
    store: Store, prompt: Prompt, server: str, tools: Mapping[str, Collection[str]], now: int
) -> dict[str, list[str]]:
    """Return sentences about each tool: active lessons, then promoted and approved fixes.

    Each tool comes with the shareable values of its schema.
    """
    sentences_by_tool: dict[str, list[str]] = {}
    for name, shareable_values in tools.items():
        tool = f"{server}.{name}"
        query = LessonQuery(tool=tool, state="active", now=now, limit=MAX_FIXES_PER_TOOL)
        active_lessons = [lesson for lesson in store.lessons(DEFAULT_TENANT, query) if lesson.is_trusted]
        sentences = [prompt.lesson_sentence(lesson).removesuffix(".") for lesson in active_lessons]
        covered_fixes = {lesson.fix_id for lesson in active_lessons}
        sentences += [
            prompt.fix_sentence(fix, shareable_values)
            for fix in store.fixes(DEFAULT_TENANT, FixQuery(tool=tool, now=now, limit=MAX_FIXES_PER_TOOL))
            if fix.state in ("promoted", "approved") and fix.id not in covered_fixes
        ]
        if unique_sentences := list(dict.fromkeys(filter(None, sentences))):
            sentences_by_tool[name] = unique_sentences
    return sentences_by_tool
