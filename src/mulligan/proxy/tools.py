"""Tools of the server: the options of their calls, and tool lists on their way to the client.

A tool list is compared with the pins, blocked tools are removed, and lessons are added to descriptions (F7).
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, TypeVar, cast

import msgspec

from mulligan.build import Components
from mulligan.capture.context import MODES, CaptureContext, strictest
from mulligan.capture.result_checks import ResultChecker
from mulligan.capture.wrap import build_wrapper
from mulligan.capture.wrapped_function import ToolOptions, WrappedFunction
from mulligan.classify.tool_category import find_category
from mulligan.contract.store import DEFAULT_TENANT, FixQuery, LessonQuery, Store
from mulligan.core.failure import Failure, TookEffect
from mulligan.core.records import Effects
from mulligan.prompt import Prompt, estimate_prompt_tokens
from mulligan.proxy import messages, pins
from mulligan.proxy.messages import Envelope, decode_items, decode_members
from mulligan.proxy.pins import Pins, ToolListFinding
from mulligan.proxy.relay import ProxyOptions, Relay
from mulligan.recover.policy import Mode
from mulligan.recover.schema import compile_schema
from mulligan.recover.schema_repair import unknown_arguments
from mulligan.store.urls import may_have_records, open_store

T = TypeVar("T")
MAX_TOOL_NAMES = 1000
"""Limit of tools that are tracked by name: models invent names without end."""
OTHER_TOOL_NAME = "?"
"""Name under which all further tools are recorded."""
MAX_STORE_DELAY_SECONDS = 0.1
"""Time that a tool list waits for the store otherwise, and a failed call too."""
SAVE_SECONDS = 0.5
"""Time for pending pins to be stored at the end."""
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
    "shadows": "has tool names of another server",
}
decode_definition = msgspec.json.Decoder(dict[str, Any]).decode


def build_tool_options(
    options: ProxyOptions,
    tool: str,
    annotations: Mapping[str, Any],
    *,
    is_pinned: bool,
    arguments: Collection[str] = (),
) -> ToolOptions:
    """Build the options of one tool. Nothing is repaired while its definition differs from the pin."""
    effects: Effects = "once"
    if options.should_trust_annotations:
        is_idempotent = annotations.get("idempotentHint") is True
        effects = "none" if annotations.get("readOnlyHint") is True else "idempotent" if is_idempotent else "once"
    rule = options.merge_rules(tool)
    mode: Mode = rule.get("mode", options.mode)
    return ToolOptions(
        name=f"{options.name}.{tool}",
        server=options.name,
        effects=rule.get("effects") or effects,
        mode=mode if is_pinned else strictest(MODES, mode, "suggest"),
        record=rule.get("record"),
        learn=rule.get("learn"),
        # The name of the server says nothing about one tool. Annotations need no trust here: what they make content is
        # neither retried nor blocked.
        category=rule.get("category") or find_category(tool, arguments, annotations),
        returns=rule.get("returns"),
        detect_errors=rule.get("detect_errors", True),
        privileged=rule.get("privileged", ()),
        unprivileged=rule.get("unprivileged", ()),
        clamp=rule.get("clamp", ()),
        # Trusted without a flag: this hint can only restrict repairs.
        destructive=rule.get("destructive", annotations.get("destructiveHint") is True),
    )


class UnlistedResultChecker(ResultChecker):
    """Result checker for a tool name that the server did not list: an unknown tool error means that nothing executed.

    For a listed tool the same text proves nothing: it may forward calls to another tool.
    """

    __slots__ = ()

    def failure(
        self, capture: CaptureContext, result: Any, arguments: Mapping[str, Any], rejects: Collection[int] = ()
    ) -> Failure | None:
        failure = super().failure(capture, result, arguments, rejects)
        if failure is not None and failure.kind.is_about_tool_name:
            return msgspec.structs.replace(failure, took_effect=TookEffect.NO)
        return failure


class RemoteTool(WrappedFunction):
    """Tool of the server with the interface that recovery expects. Its schema comes from the server."""

    tool_name: str = ""
    """Name without the server."""
    definition: Mapping[str, Any] | None = None
    """None until the server has listed the tool."""
    timeout = 0.0
    is_blocked = False
    """Whether calls are blocked until a person accepts the tool."""
    argument_names: frozenset[str] | None = None
    """Argument names in the schema. None if it lists none."""

    def define(self, definition: Mapping[str, Any] | None) -> None:
        """Set the definition from the server's list."""
        self.definition = definition
        self.is_listed = definition is not None
        properties = (self.schema() or {}).get("properties")
        self.argument_names = frozenset(properties) if isinstance(properties, dict) else None

    def schema(self) -> Mapping[str, Any] | None:
        schema = (self.definition or {}).get("inputSchema")
        return schema if isinstance(schema, dict) else None


class ServerTools:
    """Tools of one server, and its tool lists. A thread accesses the store, so that nothing else waits for it."""

    def __init__(self, relay: Relay, components: Components, remote: Callable[[str], Callable[..., Any]]) -> None:
        self._relay = relay
        self._options = relay.options
        self._components = components
        self._capture = components.capture
        self._remote = remote
        """Builds the function that calls a tool."""
        self._pins = Pins()
        self._has_loaded_pins = False
        """Whether the stored pins are loaded. Nothing is repaired before."""
        self._tools_by_name: dict[tuple[str, bool], RemoteTool] = {}
        self._listed_definitions: dict[str, dict[str, Any]] = {}
        self._reported: set[ToolListFinding] = set()
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        # Loaded while the server starts, so that the pins are ready for its first tool list.
        self._pins_task = run_in_thread(relay.loop, self._load_pins)
        if self._options.should_inject_lessons:
            run_in_thread(relay.loop, lambda: self._load_lessons({}))  # imports what the first list needs

    def get_tool(self, name: str, *, is_verbatim: bool = False) -> RemoteTool:
        """Return a tool by name, listed or not.

        `is_verbatim` selects a version whose calls must not be changed.
        """
        tool = self._tools_by_name.get((name, is_verbatim))
        if tool is None:
            if len(self._tools_by_name) >= MAX_TOOL_NAMES and name not in self._listed_definitions:
                name = OTHER_TOOL_NAME
            tool = self._tools_by_name[name, is_verbatim] = self._build_tool(name, is_verbatim)
        return tool

    def find_unknown_arguments(self, tool: RemoteTool, arguments: Mapping[str, Any]) -> list[str]:
        """Return arguments that the schema does not list, unless it allows additional ones."""
        schema = tool.schema()
        return unknown_arguments(arguments, compile_schema(schema)) if schema else []

    def find_schema(self, name: str) -> Any:
        """Return the schema of a listed tool, or None."""
        return self._listed_definitions.get(name, {}).get("inputSchema")

    @property
    def names(self) -> list[str]:
        """Names of the listed tools that are not blocked."""
        return [name for name in self._listed_definitions if not self.is_blocked(name)]

    def recovering_functions(self) -> dict[str, Callable[..., Any]]:
        return {name: build_wrapper(self.get_tool(name)) for name in self.names}

    def _build_tool(self, name: str, is_verbatim: bool) -> RemoteTool:
        definition = self._listed_definitions.get(name)
        annotations = (definition or {}).get("annotations")
        schema = (definition or {}).get("inputSchema")
        properties = schema.get("properties") if isinstance(schema, dict) else None
        is_settled = self._has_loaded_pins and name not in self._pins.waiting
        options = build_tool_options(
            self._options,
            name,
            annotations if isinstance(annotations, dict) else {},
            is_pinned=is_settled,
            arguments=properties if isinstance(properties, dict) else (),
        )
        if is_verbatim:
            options = msgspec.structs.replace(options, mode="observe")
        tool = RemoteTool(self._remote(name), lambda: self._capture, options)
        tool.define(definition)
        tool.tool_name = name
        tool.timeout = float(self._options.merge_rules(name).get("timeout", self._options.timeout))
        tool.is_blocked = self.is_blocked(name)
        if definition is None and self._listed_definitions:
            tool.result_checker = tool.build_result_checker(UnlistedResultChecker)
        return tool

    def is_blocked(self, name: str) -> bool:
        return self._options.should_pin and name in self._pins.waiting

    def _set_pins(self, stored_pins: Pins) -> None:
        """Replace the pins by the stored ones, at the start or after a person accepted tools."""
        self._pins = stored_pins
        self._has_loaded_pins = True
        self._tools_by_name.clear()

    # Tool lists

    def build_answer_handler(self, params: msgspec.Raw) -> Callable[[Envelope, bytes], None]:
        """Return the handler for the answer to this request."""
        is_first_page = not messages.decode_params(params).cursor
        return lambda envelope, line: self._start(self._handle_answer(envelope, line, is_first_page))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._relay.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait until pending pins are stored."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=SAVE_SECONDS)

    async def _handle_answer(self, envelope: Envelope, line: bytes, is_first_page: bool) -> None:
        with self._capture.guard("reading a tool list"):  # An unreadable list is forwarded to the client.
            client_result = None
            if envelope.error == messages.EMPTY_RAW:
                client_result = await self._process_list(envelope.result, is_first_page)
            if client_result is not None:
                line = messages.build_message(id=envelope.id, result=client_result)
        self._relay.client.write(line)

    async def _process_list(self, result: msgspec.Raw, is_first_page: bool) -> dict[str, Any] | None:
        """Return the tool list for the client, or None if it is unchanged."""
        members: dict[str, Any] = dict(decode_members(result))
        raw_tools = decode_items(members["tools"])
        async with self._lock:
            if not self._has_loaded_pins:
                # Time that a tool list waits for the store if unknown tools must be blocked
                seconds = 2.0 if self._options.should_pin else MAX_STORE_DELAY_SECONDS
                await asyncio.wait((self._pins_task,), timeout=seconds)
                if self._pins_task.done():
                    self._set_pins(self._pins_task.result())
                else:
                    self._pins_task.add_done_callback(lambda _: self._start(self._apply_late_pins()))
            self._add_definitions(raw_tools, is_first_page and not members.get("nextCursor"))
        lessons: Mapping[str, Sequence[str]] = {}
        if self._options.should_inject_lessons:
            shareable_values = {name: self.get_tool(name).shareable_texts() for name in self.names}
            lessons_task = run_in_thread(self._relay.loop, lambda: self._load_lessons(shareable_values))
            await asyncio.wait((lessons_task,), timeout=MAX_STORE_DELAY_SECONDS)
            lessons = lessons_task.result() if lessons_task.done() else {}
        client_tools: list[Any] = []
        budget = DescriptionBudget(self._capture.prompt)
        names: set[str] = set()
        for raw in raw_tools:
            name = str(decode_definition(raw).get("name"))
            is_duplicate = self._options.should_pin and name in names
            names.add(name)
            if not is_duplicate and not self.is_blocked(name):
                client_tools.append(budget.add_lessons(decode_members(raw), lessons.get(name, ())) or raw)
        return {**members, "tools": client_tools} if client_tools != raw_tools else None

    async def _apply_late_pins(self) -> None:
        """Compare the listed tools with pins that were loaded after the client got the list."""
        async with self._lock:
            if not self._has_loaded_pins:
                self._set_pins(self._pins_task.result())
                self._compare_pins(self._listed_definitions.values(), is_complete=False)

    def _add_definitions(self, raw_tools: Sequence[msgspec.Raw], is_complete: bool) -> None:
        """Take the definitions of a list and compare them with the pins."""
        definitions = [decode_definition(raw) for raw in raw_tools]
        definitions = [definition for definition in definitions if isinstance(definition.get("name"), str)]
        if is_complete:
            self._listed_definitions = {}
        for definition in definitions:
            self._listed_definitions.setdefault(definition["name"], definition)
        self._compare_pins(definitions, is_complete=is_complete)

    def _compare_pins(self, definitions: Iterable[Mapping[str, Any]], *, is_complete: bool) -> None:
        """Pin new definitions and report those that differ from their pin."""
        before = self._pins
        self._pins, findings = pins.compare_pins(before, definitions, self._capture.now(), is_complete=is_complete)
        self._tools_by_name.clear()
        if self._pins != before and self._has_loaded_pins:
            self._start(self._save_pins(self._pins))
        new_findings = [finding for finding in findings if finding not in self._reported]
        self._reported.update(new_findings[:MAX_TOOL_NAMES])
        report_findings(self._options, new_findings)

    async def refresh(self) -> None:
        """Load the pins again: a person may have accepted a tool in another terminal."""
        async with self._lock:
            stored_pins = await run_in_thread(self._relay.loop, self._load_pins)
            if stored_pins != self._pins:
                self._set_pins(stored_pins)

    def _load_pins(self) -> Pins:
        components = self._components
        with self._capture.guard("reading tool definitions"):
            url = components.settings.store_url
            # A read must not create files.
            if components.settings.record != "off" and (url.startswith("memory:") or may_have_records(url)):
                stored_value = components.key_value_store.get(DEFAULT_TENANT, pins.PINS_KIND, self._options.name)
                return pins.decode_pins(stored_value)
        return Pins()

    async def _save_pins(self, server_pins: Pins) -> None:
        """Store the pins in the background. Without stored pins the next list is accepted as the first."""
        async with self._lock:
            with self._capture.guard("storing tool definitions"):
                key_value_store = self._components.key_value_store
                findings = await run_in_thread(
                    self._relay.loop, lambda: pins.save_pins(key_value_store, self._options.name, server_pins)
                )
                report_findings(self._options, findings)

    def _load_lessons(self, tools: Mapping[str, Collection[str]]) -> Mapping[str, Sequence[str]]:
        settings, capture, store = self._components.settings, self._capture, self._components.recorder.store
        with capture.guard("reading lessons about tools"):
            if store is not None:
                return self._collect_lessons(store, tools)
            if not settings.store_url.startswith("memory:") and may_have_records(settings.store_url):
                # A connection of its own: the recorder opens a file only when it has records.
                with closing(open_store(settings.store_url, token=settings.token)) as store:
                    return self._collect_lessons(store, tools)
        return {}

    def _collect_lessons(self, store: Store, tools: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
        """Return sentences about each tool: active lessons, then promoted and approved fixes.

        Each tool comes with the shareable values of its schema.
        """
        prompt, recall, now = self._capture.prompt, self._components.recall, self._capture.now()
        sentences_by_tool: dict[str, list[str]] = {}
        for name, shareable_values in tools.items():
            tool = f"{self._options.name}.{name}"
            query = LessonQuery(tool=tool, state="active", now=now, limit=MAX_FIXES_PER_TOOL)
            active_lessons = [lesson for lesson in store.lessons(DEFAULT_TENANT, query) if lesson.is_trusted]
            sentences = [prompt.lesson_sentence(lesson).removesuffix(".") for lesson in active_lessons]
            covered_fixes = {lesson.fix_id for lesson in active_lessons}
            fixes = [
                fix
                for fix in store.fixes(DEFAULT_TENANT, FixQuery(tool=tool, now=now, limit=MAX_FIXES_PER_TOOL))
                if fix.state in ("promoted", "approved") and fix.id not in covered_fixes
            ]
            sentences += [prompt.fix_sentence(fix, shareable_values) for fix in fixes]
            if unique_sentences := list(dict.fromkeys(filter(None, sentences))):
                sentences_by_tool[name] = unique_sentences
                recall.note_lessons(active_lessons)
                recall.note_prompt_fixes(tool, [fix.id for fix in fixes])
        return sentences_by_tool


def run_in_thread(loop: asyncio.AbstractEventLoop, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run work on a daemon thread: unlike one of a pool, it does not delay the exit while the store is locked."""
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if outcome.cancelled():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(cast(T, result))

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:  # noqa: BLE001 - raised where the result is awaited
            error = raised
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="mulligan-proxy-store", daemon=True).start()
    return outcome


def report_findings(options: ProxyOptions, findings: Sequence[ToolListFinding]) -> None:
    """Print findings on standard error, which MCP clients show or log."""
    from mulligan.report.tables import to_line  # only needed for findings

    for finding in findings:
        more = f" ({to_line(finding.detail, 200)})" if finding.detail else ""
        is_blocked = options.should_pin and finding.type in ("new", "changed")
        blocked_note = f"; blocked. Review and accept it: mulligan proxy accept {options.name}" if is_blocked else ""
        message = f"{FINDING_SENTENCES[finding.type]}: {to_line(finding.tool, 200)}{more}{blocked_note}"
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
