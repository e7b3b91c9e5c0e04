"""What is known of the server's tools: their definitions as pinned, and what holds for calls of them."""

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
"""Names of tools that are remembered one by one: models make up names, and there is no end to them."""
SOME_TOOL = "?"
"""What all further ones are recorded as."""
_DEFINITION = msgspec.json.Decoder(dict[str, Any])


class Unlisted(Judge):
    """Judges answers to a name that the server did not list: where they say that there is no such tool, nothing ran.

    Of a listed one the same words prove nothing: it may hand calls on, and speak of another.
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
    """A tool of the server, as recovery sees it. Its schema is the server's, and looked at only when it is needed."""

    definition: Mapping[str, Any] = {}

    def is_not_listed(self) -> None:
        """The server has told what its tools are, and this is none of them."""
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
        """None while the server has not listed it."""
        listed = (wrapped.schema() or {}).get("properties")
        self.arguments: frozenset[str] | None = frozenset(listed) if isinstance(listed, dict) else None
        """The names that its schema lists; None where it lists none."""
        self.is_held = False
        """Whether its calls wait for a person to accept it."""


class Tools:
    """The tools of one server."""

    def __init__(self, options: Options, kit: Kit, remote: Callable[[str], Callable[..., Any]]) -> None:
        self.options = options
        self.pins = Pins()
        self.is_settled = False
        """Whether the pins of earlier days are known: until then nothing is repaired."""
        self._kit = kit
        self._remote = remote
        """What calls a tool, by its name."""
        self._known: dict[tuple[str, bool], Known] = {}
        self._listed: dict[str, dict[str, Any]] = {}
        self._reported: set[Finding] = set()

    def named(self, name: str, *, as_it_came: bool = False) -> Known:
        """A tool by the name it is called by, whether it is there or not.

        With `as_it_came` for a call of which nothing may be changed.
        """
        known = self._known.get((name, as_it_came))
        if known is None:
            if len(self._known) >= NAMES and name not in self._listed:
                name = SOME_TOOL
            known = self._known[name, as_it_came] = self._made(name, self._listed.get(name), as_it_came)
        return known

    def strangers(self, tool: Known, given: Mapping[str, Any]) -> list[str]:
        """Arguments that a tool does not list, where it does not say that others are welcome."""
        schema = tool.wrapped.schema()
        return strangers(given, pinned(schema)) if schema else []

    @property
    def names(self) -> list[str]:
        """Those the server has listed, and that may be called."""
        return [name for name in self._listed if not self._is_held(name)]

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The same as functions that recovery knows."""
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
        """Takes over what was pinned on earlier days, or was accepted meanwhile."""
        self.pins = known
        self.is_settled = True
        self._known.clear()

    def listed(self, result: msgspec.Raw, now: int, *, is_whole: bool) -> list[Finding]:
        """Takes in a list of tools; what a person should know about it."""
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
        """The list as the client may see it; None where that is as it came."""
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
    """Tells the operator, on the way that a client shows or keeps: our standard error."""
    from mulligan.report.terminal import line  # only a list that has something to tell comes here

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
