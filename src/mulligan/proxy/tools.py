"""Tools of the server: definitions, pins, and the options of their calls from the user's settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from mulligan.capture.context import MODES, CaptureContext, strictest
from mulligan.capture.result_checks import ResultChecker
from mulligan.capture.wrap import build_wrapper
from mulligan.capture.wrapped_function import ToolOptions, WrappedFunction
from mulligan.classify.kinds import TOOL_UNKNOWN_TOOL
from mulligan.core.failure import Failure, TookEffect
from mulligan.core.records import Effects
from mulligan.proxy import pins
from mulligan.proxy.messages import decode_items, decode_members
from mulligan.proxy.pins import Pins, ToolListFinding
from mulligan.recover.policy import Mode
from mulligan.recover.schema import compile_schema
from mulligan.recover.schema_repair import unknown_arguments

DEFAULT_TIMEOUT_SECONDS = 300.0
"""Default time limit of a call without an answer or progress."""
MAX_TOOL_NAMES = 1000
"""Limit of tools that are tracked by name: models invent names without end."""
OTHER_TOOL_NAME = "?"
"""Name under which all further tools are recorded."""
decode_definition = msgspec.json.Decoder(dict[str, Any]).decode


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOptions:
    """Options of one proxy."""

    name: str
    """Name of the server in records."""
    mode: Mode = "suggest"
    should_trust_annotations: bool = False
    should_pin: bool = False
    should_inject_lessons: bool = False
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    """Seconds. 0 means no limit."""
    start_timeout: float = 120.0
    """Seconds for the answer to the first message. 0 means no limit."""
    should_restart: bool = True
    session: str | None = None
    rules: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Rules of the user's settings, by `server.tool`, `server.*` or `*`."""

    def merge_rules(self, tool: str) -> dict[str, Any]:
        """Merge the rules for a tool. The most specific rule wins."""
        merged_rule: dict[str, Any] = {}
        for key in ("*", f"{self.name}.*", f"{self.name}.{tool}"):
            merged_rule.update(self.rules.get(key, {}))
        return merged_rule


def build_tool_options(
    options: ProxyOptions, tool: str, annotations: Mapping[str, Any], *, is_pinned: bool
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
        privileged=rule.get("privileged", ()),
        unprivileged=rule.get("unprivileged", ()),
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
        if failure is not None and failure.kind == TOOL_UNKNOWN_TOOL:
            return msgspec.structs.replace(failure, took_effect=TookEffect.NO)
        return failure


class RemoteTool(WrappedFunction):
    """Tool of the server with the interface that recovery expects. Its schema comes from the server."""

    definition: Mapping[str, Any] = {}

    def mark_unlisted(self) -> None:
        """Mark a tool that is missing in the server's list."""
        self.result_checker = UnlistedResultChecker(
            self.options.type, self.name, self.options.detect_errors, self.options.empty_result
        )

    def schema(self) -> Mapping[str, Any] | None:
        schema = self.definition.get("inputSchema")
        return schema if isinstance(schema, dict) else None


class ServerTool:
    """One tool of the server."""

    __slots__ = ("arguments", "definition", "is_blocked", "name", "timeout", "wrapped")

    def __init__(
        self,
        name: str,
        wrapped: RemoteTool,
        timeout: float,
        definition: Mapping[str, Any] | None,
        *,
        is_blocked: bool,
    ) -> None:
        self.name = name
        self.wrapped = wrapped
        self.timeout = timeout
        self.definition = definition
        """None until the server has listed the tool."""
        properties = (wrapped.schema() or {}).get("properties")
        self.arguments: frozenset[str] | None = frozenset(properties) if isinstance(properties, dict) else None
        """Argument names in the schema. None if it lists none."""
        self.is_blocked = is_blocked
        """Whether calls are blocked until a person accepts the tool."""


class ServerTools:
    """Tools of one server."""

    def __init__(
        self, options: ProxyOptions, capture: CaptureContext, remote: Callable[[str], Callable[..., Any]]
    ) -> None:
        self.options = options
        self.pins = Pins()
        self.has_loaded_pins = False
        """Whether the stored pins are loaded. Nothing is repaired before."""
        self._capture = capture
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
        return [name for name in self._listed_definitions if not self.is_blocked(name)]

    def recovering_functions(self) -> dict[str, Callable[..., Any]]:
        """Return the listed tools as functions with recovery."""
        return {name: build_wrapper(self.get_tool(name).wrapped) for name in self.names}

    def _build_tool(self, name: str, definition: dict[str, Any] | None, is_verbatim: bool) -> ServerTool:
        annotations = (definition or {}).get("annotations")
        is_settled = self.has_loaded_pins and name not in self.pins.waiting
        call_options = build_tool_options(
            self.options, name, annotations if isinstance(annotations, dict) else {}, is_pinned=is_settled
        )
        if is_verbatim:
            call_options = msgspec.structs.replace(call_options, mode="observe")
        wrapped = RemoteTool(self._remote(name), lambda: self._capture, call_options)
        wrapped.definition = definition or {}
        if definition is None and self._listed_definitions:
            wrapped.mark_unlisted()
        timeout = float(self.options.merge_rules(name).get("timeout", self.options.timeout))
        return ServerTool(name, wrapped, timeout, definition, is_blocked=self.is_blocked(name))

    def is_blocked(self, name: str) -> bool:
        return self.options.should_pin and name in self.pins.waiting

    def set_pins(self, stored_pins: Pins) -> None:
        """Replace the pins by the stored ones, at the start or after a person accepted tools."""
        self.pins = stored_pins
        self.has_loaded_pins = True
        self._tools_by_name.clear()

    def process_list(self, result: msgspec.Raw, now: int, *, is_complete: bool) -> list[ToolListFinding]:
        """Process a tool list and return the new findings about it."""
        definitions = [decode_definition(raw) for raw in decode_items(decode_members(result)["tools"])]
        definitions = [definition for definition in definitions if isinstance(definition.get("name"), str)]
        if is_complete:
            self._listed_definitions = {}
        for definition in definitions:
            self._listed_definitions.setdefault(definition["name"], definition)
        self.pins, findings = pins.compare_pins(self.pins, definitions, now, is_complete=is_complete)
        self._tools_by_name.clear()
        new_findings = [finding for finding in findings if finding not in self._reported]
        self._reported.update(new_findings[:MAX_TOOL_NAMES])
        return new_findings
