"""Tools of the server: definitions, pins, and the options of their calls."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.capture.answers import Judge
from mulligan.capture.kit import Kit
from mulligan.capture.wrap import ToolOptions, Wrapped
from mulligan.classify.taxonomy import TOOL_UNKNOWN_TOOL
from mulligan.failure import Failure, Ran
from mulligan.recover.mend import strangers
from mulligan.recover.schema import pinned
from mulligan.serve.proxy import pins, teach
from mulligan.serve.proxy.messages import encode, items, members
from mulligan.serve.proxy.pins import Finding, Pins
from mulligan.serve.proxy.rules import Options, timeout_of, tool_options

NAMES = 1000
"""Limit of tools that are tracked by name: models invent names without end."""
SOME_TOOL = "?"
"""Name under which all further tools are recorded."""
_DEFINITION = msgspec.json.Decoder(dict[str, Any])


class Unlisted(Judge):
    """Result checker for a tool name that the server did not list: an unknown tool error means that nothing executed.

    For a listed tool the same text proves nothing: it may forward calls to another tool.
    """

    __slots__ = ()

    def failure(
        self, kit: Kit, result: Any, arguments: Mapping[str, Any], rejects: Collection[int] = ()
    ) -> Failure | None:
        failure = super().failure(kit, result, arguments, rejects)
        if failure is not None and failure.kind == TOOL_UNKNOWN_TOOL:
            return msgspec.structs.replace(failure, ran=Ran.NO)
        return failure


class Remote(Wrapped):
    """Tool of the server with the interface that recovery expects. Its schema comes from the server."""

    definition: Mapping[str, Any] = {}

    def is_not_listed(self) -> None:
        """Mark a tool that is missing in the server's list."""
        self._judge = Unlisted(self.options.type, self.name, self.options.errors, self.options.empty)

    def schema(self) -> Mapping[str, Any] | None:
        schema = self.definition.get("inputSchema")
        return schema if isinstance(schema, dict) else None


class Known:
    """One tool of the server."""

    __slots__ = ("arguments", "definition", "is_held", "name", "timeout", "wrapped")

    def __init__(self, name: str, wrapped: Remote, timeout: float, definition: Mapping[str, Any] | None) -> None:
        self.name = name
        self.wrapped = wrapped
        self.timeout = timeout
        self.definition = definition
        """None until the server has listed the tool."""
        listed = (wrapped.schema() or {}).get("properties")
        self.arguments: frozenset[str] | None = frozenset(listed) if isinstance(listed, dict) else None
        """Argument names in the schema. None if it lists none."""
        self.is_held = False
        """Whether calls are blocked until a person accepts the tool."""


class Tools:
    """Tools of one server."""

    def __init__(self, options: Options, kit: Kit, remote: Callable[[str], Callable[..., Any]]) -> None:
        self.options = options
        self.pins = Pins()
        self.is_settled = False
        """Whether the stored pins are loaded. Nothing is repaired before."""
        self._kit = kit
        self._remote = remote
        """Builds the function that calls a tool."""
        self._known: dict[tuple[str, bool], Known] = {}
        self._listed: dict[str, dict[str, Any]] = {}
        self._reported: set[Finding] = set()

    def named(self, name: str, *, as_it_came: bool = False) -> Known:
        """Return a tool by name, listed or not.

        `is_verbatim` selects a version whose calls must not be changed.
        """
        known = self._known.get((name, as_it_came))
        if known is None:
            if len(self._known) >= NAMES and name not in self._listed:
                name = SOME_TOOL
            known = self._known[name, as_it_came] = self._made(name, self._listed.get(name), as_it_came)
        return known

    def strangers(self, tool: Known, given: Mapping[str, Any]) -> list[str]:
        """Return arguments that the schema does not list, unless it allows additional ones."""
        schema = tool.wrapped.schema()
        return strangers(given, pinned(schema)) if schema else []

    @property
    def names(self) -> list[str]:
        """Names of the listed tools that are not blocked."""
        return [name for name in self._listed if not self._is_held(name)]

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Return the listed tools as functions with recovery."""
        return {name: self.named(name).wrapped.recovering() for name in self.names}

    def _made(self, name: str, definition: dict[str, Any] | None, as_it_came: bool) -> Known:
        annotations = (definition or {}).get("annotations")
        is_settled = self.is_settled and name not in self.pins.waiting
        about = tool_options(
            self.options, name, annotations if isinstance(annotations, dict) else {}, is_settled=is_settled
        )
        if as_it_came:
            about = dataclasses.replace(about, mode="observe")
        wrapped = self._wrapped(name, about, definition or {})
        if definition is None and self._listed:
            wrapped.is_not_listed()
        known = Known(name, wrapped, timeout_of(self.options, name), definition)
        known.is_held = self._is_held(name)
        return known

    def _wrapped(self, name: str, about: ToolOptions, definition: Mapping[str, Any]) -> Remote:
        wrapped = Remote(self._remote(name), lambda: self._kit, about)
        wrapped.definition = definition
        return wrapped

    def _is_held(self, name: str) -> bool:
        return self.options.pins and name in self.pins.waiting

    def settle(self, known: Pins) -> None:
        """Replace the pins by the stored ones, at the start or after a person accepted tools."""
        self.pins = known
        self.is_settled = True
        self._known.clear()

    def listed(self, result: msgspec.Raw, now: int, *, is_whole: bool) -> list[Finding]:
        """Process a tool list and return the new findings about it."""
        definitions = self._definitions(result)
        if is_whole:
            self._listed = {}
        for each in definitions:
            self._listed.setdefault(each["name"], each)
        self.pins, found = pins.compared(self.pins, definitions, now, is_whole=is_whole)
        self._known.clear()
        fresh = [each for each in found if each not in self._reported]
        self._reported.update(fresh[:NAMES])
        return fresh

    @staticmethod
    def _definitions(result: msgspec.Raw) -> list[dict[str, Any]]:
        found = []
        for raw in items(members(result)["tools"]):
            definition = _DEFINITION.decode(raw)
            if isinstance(definition.get("name"), str):
                found.append(definition)
        return found

    def shown(self, result: msgspec.Raw, lessons: Mapping[str, Sequence[str]]) -> dict[str, Any] | None:
        """Return the tool list for the client, or None if it is unchanged."""
        whole: dict[str, Any] = dict(members(result))
        shown: list[Any] = []
        taught = teach.Budget(self._kit.prompt)
        is_changed = False
        names: set[str] = set()
        for raw in items(whole["tools"]):
            name = _DEFINITION.decode(raw).get("name")
            is_twice = self.options.pins and name in names
            names.add(str(name))
            if is_twice or self._is_held(str(name)):
                is_changed = True
                continue
            described = taught.described(members(raw), lessons.get(str(name), ()))
            is_changed = is_changed or described is not None
            shown.append(raw if described is None else described)
        return {**whole, "tools": shown} if is_changed else None


def report(options: Options, found: Sequence[Finding]) -> None:
    """Print findings on standard error, which MCP clients show or log."""
    from mulligan.report.terminal import line  # only needed for findings

    said = {
        "new": "has a tool that it did not have when it was first seen",
        "changed": "has changed the definition of a tool",
        "removed": "has no longer a tool that it had",
        "twice": "lists two tools of one name, and the first is used",
        "shadows": "has a tool of the same name as another server",
    }
    for each in found:
        more = f" ({line(each.told, 200)})" if each.told else ""
        waits = options.pins and each.what in ("new", "changed")
        held = f"; it is held back. To look and accept: mulligan proxy accept {options.name}" if waits else ""
        told = f"mulligan: {line(options.name, 80)} {said[each.what]}: {line(each.tool, 80)}{more}{held}."
        print(told, file=sys.stderr, flush=True)


def encoded(list_result: dict[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(encode(list_result))
