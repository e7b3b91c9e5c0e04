"""What a stranger's schema would cost to check, found out without checking it (SAFETY S6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST = 20_000
"""Nodes of a schema that may be looked at for one call. The largest schemas of real tools need a few hundred."""
DEEP = 64
MANY = 10_000
"""Values of a call in which each fault may be looked for. All faults of a call come at once, however many they are."""
ENDLESS = 1_000_000
"""Values of a call that are not looked at: a few lists that hold each other may be more than anyone can count."""

_INSIDE = frozenset(
    (
        "properties patternProperties additionalProperties unevaluatedProperties items prefixItems additionalItems "
        "unevaluatedItems contains"
    ).split()
)
"""Keywords that go one level down in the arguments; all others stay where they are."""
_NAMED = frozenset("properties patternProperties dependentSchemas".split())
"""Keywords that hold a schema for each name; the names are the tool's own and mean nothing here."""
_DATA = frozenset("$defs definitions enum const default examples required type title description".split())
"""Keywords that hold no schema, or one that counts only where something refers to it."""


def is_affordable(schema: Mapping[str, Any], arguments: object) -> bool:
    """Whether a schema can be checked in bounded time, and refers to nothing outside itself.

    A few references that each name the next one twice double the work with every line: what such a schema looks at
    grows far beyond what it weighs.
    """
    try:
        return _Cost(schema).of(schema, depth_of(arguments)) <= MOST
    except (_Refused, RecursionError):
        return False


def depth_of(value: object) -> int:
    """How deeply a value is nested; what is deeper than the limit counts as the limit."""
    return extent_of(value)[0]


def extent_of(value: object) -> tuple[int, int]:
    """How deeply a value is nested, and how many values there are in it: one that is held twice counts twice."""
    return _extent(value, DEEP, {})


def _extent(value: object, limit: int, known: dict[tuple[int, int], tuple[int, int]]) -> tuple[int, int]:
    if limit <= 0 or not isinstance(value, Mapping | list | tuple):
        return 0, 1
    place = id(value), limit
    if place not in known:  # each is visited once at each depth, also where it holds itself
        deepest, count = 0, 1
        for each in value.values() if isinstance(value, Mapping) else value:
            if isinstance(each, Mapping | list | tuple):
                deep, inside = _extent(each, limit - 1, known)
                deepest, count = max(deepest, deep), count + inside
            else:
                count += 1
        known[place] = deepest + 1, count
    return known[place]


class _Refused(Exception):
    """A schema that is not looked at."""


class _Cost:
    """Counts each node once for each way that leads to it, and yet visits it once for each depth."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.known: dict[tuple[int, int], int] = {}
        self.left = MOST

    def of(self, node: Any, depth: int) -> int:
        if not isinstance(node, Mapping | list):
            return 0
        place = id(node), depth
        if place not in self.known:
            self.left -= 1
            if self.left < 0:
                raise _Refused
            self.known[place] = 0  # a circle at one depth: the validator itself stops there
            self.known[place] = self._counted(node, depth)
        return self.known[place]

    def _counted(self, node: Any, depth: int) -> int:
        if isinstance(node, list):
            return sum(self.of(each, depth) for each in node)
        total = 1
        for keyword, inner in node.items():
            if keyword in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(inner, str):
                total += self.of(self._target(keyword, inner), depth)
            elif keyword not in _DATA:
                at = depth - 1 if keyword in _INSIDE else depth
                schemas = inner.values() if keyword in _NAMED and isinstance(inner, Mapping) else [inner]
                total += sum(self.of(each, at) for each in schemas) if at >= 0 else 0
        return total

    def _target(self, keyword: str, reference: str) -> Any:
        """What a reference within the schema names. All others are refused: they lead to the network or to files."""
        if keyword != "$ref" or not (reference == "#" or reference.startswith("#/")):
            raise _Refused
        node: Any = self.root
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(name)] if isinstance(node, list) else node[name]
            except (KeyError, IndexError, TypeError, ValueError):
                raise _Refused from None
        return node
