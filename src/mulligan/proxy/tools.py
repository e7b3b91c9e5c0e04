"""Tools of the server: definitions, pins, and the options of their calls."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.capture.context import Kit
from mulligan.capture.result_checks import Judge
from mulligan.capture.wrap import ToolOptions, WrappedFunction
from mulligan.classify.kinds import TOOL_UNKNOWN_TOOL
from mulligan.core.failure import Failure, TookEffect
from mulligan.proxy import description_lessons, pins
from mulligan.proxy.messages import decode_items, decode_members, encode
from mulligan.proxy.pins import Pins, ToolListFinding
from mulligan.proxy.proxy_rules import ProxyOptions, build_tool_options, tool_timeout
from mulligan.recover.schema import compile_schema
from mulligan.recover.schema_repair import unknown_arguments

MAX_TOOL_NAMES = 1000
"""Limit of tools that are tracked by name: models invent names without end."""
OTHER_TOOL_NAME = "?"
"""Name under which all further tools are recorded."""
_DEFINITION = msgspec.json.Decoder(dict[str, Any])


class UnlistedResultChecker(Judge):
    """Result checker for a tool name that the server did not list: an unknown tool error means that nothing executed.

    For a listed tool the same text proves nothing: it may forward calls to another tool.
    """

    __slots__ = ()

    def failure(
        self, kit: Kit, result: Any, arguments: Mapping[str, Any], rejects: Collection[int] = ()
    ) -> Failure | None:
        failure = super().failure(kit, result, arguments, rejects)
        if failure is not None and failure.kind == TOOL_UNKNOWN_TOOL:
            return msgspec.structs.replace(failure, took_effect=TookEffect.NO)
        return failure


class RemoteTool(WrappedFunction):
    """Tool of the server with the interface that recovery expects. Its schema comes from the server."""

    definition: Mapping[str, Any] = {}

    def mark_unlisted(self) -> None:
        """Mark a tool that is missing in the server's list."""
        self._judge = UnlistedResultChecker(
            self.options.type, self.name, self.options.detect_errors, self.options.empty_result
        )

    def schema(self) -> Mapping[str, Any] | None:
        schema = self.definition.get("inputSchema")
        return schema if isinstance(schema, dict) else None


class ServerTool:
    """One tool of the server."""

    __slots__ = ("arguments", "definition", "is_blocked", "name", "timeout", "wrapped")

    def __init__(self, name: str, wrapped: RemoteTool, timeout: float, definition: Mapping[str, Any] | None) -> None:
        self.name = name
        self.wrapped = wrapped
        self.timeout = timeout
        self.definition = definition
        """None until the server has listed the tool."""
        properties = (wrapped.schema() or {}).get("properties")
        self.arguments: frozenset[str] | None = frozenset(properties) if isinstance(properties, dict) else None
        """Argument names in the schema. None if it lists none."""
        self.is_blocked = False
        """Whether calls are blocked until a person accepts the tool."""


class ServerTools:
    """Tools of one server."""

    def __init__(self, options: ProxyOptions, kit: Kit, remote: Callable[[str], Callable[..., Any]]) -> None:
        self.options = options
        self.pins = Pins()
        self.has_loaded_pins = False
        """Whether the stored pins are loaded. Nothing is repaired before."""
        self._kit = kit
        self._remote = remote
        """Builds the function that calls a tool."""
        self._tools_by_name: dict[tuple[str, bool], ServerTool] = {}
        self._listed_definitions: dict[str, dict[str, Any]] = {}
        self._reported: set[ToolListFinding] = set()

    def get_tool(self, name: str, *, is_verbatim: bool = False) -> ServerTool:
        """Return a tool by name, listed or not.

        `is_verbatim` selects a version whose calls must not be changed.
        """
        tool = self._tools_by_name.get((name, is_verbatim))
        if tool is None:
            if len(self._tools_by_name) >= MAX_TOOL_NAMES and name not in self._listed_definitions:
                name = OTHER_TOOL_NAME
            tool = self._tools_by_name[name, is_verbatim] = self._build_tool(
                name, self._listed_definitions.get(name), is_verbatim
            )
        return tool

    def find_unknown_arguments(self, tool: ServerTool, arguments: Mapping[str, Any]) -> list[str]:
        """Return arguments that the schema does not list, unless it allows additional ones."""
        schema = tool.wrapped.schema()
        return unknown_arguments(arguments, compile_schema(schema)) if schema else []

    @property
    def names(self) -> list[str]:
        """Names of the listed tools that are not blocked."""
        return [name for name in self._listed_definitions if not self._is_blocked(name)]

    def recovering_functions(self) -> dict[str, Callable[..., Any]]:
        """Return the listed tools as functions with recovery."""
        return {name: self.get_tool(name).wrapped.build_wrapper() for name in self.names}

    def _build_tool(self, name: str, definition: dict[str, Any] | None, is_verbatim: bool) -> ServerTool:
        annotations = (definition or {}).get("annotations")
        is_settled = self.has_loaded_pins and name not in self.pins.waiting
        call_options = build_tool_options(
            self.options, name, annotations if isinstance(annotations, dict) else {}, is_pinned=is_settled
        )
        if is_verbatim:
            call_options = dataclasses.replace(call_options, mode="observe")
        wrapped = self._wrap_tool(name, call_options, definition or {})
        if definition is None and self._listed_definitions:
            wrapped.mark_unlisted()
        tool = ServerTool(name, wrapped, tool_timeout(self.options, name), definition)
        tool.is_blocked = self._is_blocked(name)
        return tool

    def _wrap_tool(self, name: str, call_options: ToolOptions, definition: Mapping[str, Any]) -> RemoteTool:
        remote_tool = RemoteTool(self._remote(name), lambda: self._kit, call_options)
        remote_tool.definition = definition
        return remote_tool

    def _is_blocked(self, name: str) -> bool:
        return self.options.should_pin and name in self.pins.waiting

    def set_pins(self, stored_pins: Pins) -> None:
        """Replace the pins by the stored ones, at the start or after a person accepted tools."""
        self.pins = stored_pins
        self.has_loaded_pins = True
        self._tools_by_name.clear()

    def process_list(self, result: msgspec.Raw, now: int, *, is_complete: bool) -> list[ToolListFinding]:
        """Process a tool list and return the new findings about it."""
        definitions = self._decode_definitions(result)
        if is_complete:
            self._listed_definitions = {}
        for definition in definitions:
            self._listed_definitions.setdefault(definition["name"], definition)
        self.pins, findings = pins.compare_pins(self.pins, definitions, now, is_complete=is_complete)
        self._tools_by_name.clear()
        new_findings = [finding for finding in findings if finding not in self._reported]
        self._reported.update(new_findings[:MAX_TOOL_NAMES])
        return new_findings

    @staticmethod
    def _decode_definitions(result: msgspec.Raw) -> list[dict[str, Any]]:
        definitions = []
        for raw in decode_items(decode_members(result)["tools"]):
            definition = _DEFINITION.decode(raw)
            if isinstance(definition.get("name"), str):
                definitions.append(definition)
        return definitions

    def build_client_list(self, result: msgspec.Raw, lessons: Mapping[str, Sequence[str]]) -> dict[str, Any] | None:
        """Return the tool list for the client, or None if it is unchanged."""
        result_members: dict[str, Any] = dict(decode_members(result))
        client_tools: list[Any] = []
        budget = description_lessons.DescriptionBudget(self._kit.prompt)
        is_changed = False
        names: set[str] = set()
        for raw in decode_items(result_members["tools"]):
            name = _DEFINITION.decode(raw).get("name")
            is_duplicate = self.options.should_pin and name in names
            names.add(str(name))
            if is_duplicate or self._is_blocked(str(name)):
                is_changed = True
                continue
            new_definition = budget.add_lessons(decode_members(raw), lessons.get(str(name), ()))
            is_changed = is_changed or new_definition is not None
            client_tools.append(raw if new_definition is None else new_definition)
        return {**result_members, "tools": client_tools} if is_changed else None


def report_findings(options: ProxyOptions, findings: Sequence[ToolListFinding]) -> None:
    """Print findings on standard error, which MCP clients show or log."""
    from mulligan.report.run_text import to_line  # only needed for findings

    sentences = {
        "new": "has a new tool",
        "changed": "changed the definition of a tool",
        "removed": "removed a tool",
        "twice": "lists a tool name twice, the first one is used",
        "shadows": "has a tool with the same name as another server",
    }
    for finding in findings:
        more = f" ({to_line(finding.detail, 200)})" if finding.detail else ""
        waits = options.should_pin and finding.type in ("new", "changed")
        blocked_note = f"; blocked. Review and accept it: mulligan proxy accept {options.name}" if waits else ""
        message = (
            f"{to_line(options.name, 80)} {sentences[finding.type]}: {to_line(finding.tool, 80)}{more}{blocked_note}"
        )
        print(f"mulligan: {message}.", file=sys.stderr, flush=True)


def encode_list(list_result: dict[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(encode(list_result))
