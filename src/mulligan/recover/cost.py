"""Cost estimate of validating an untrusted schema, without validating it (SAFETY S6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST = 20_000
"""Schema nodes that one validation may visit. The largest schemas of real tools need a few hundred."""
DEEP = 64
MANY = 10_000
"""Values of a call up to which each violation is located. The validator returns all violations at once."""
ENDLESS = 1_000_000
"""Values of a call up to which it is validated. A few lists that contain each other can represent any number of
values."""

_INSIDE = frozenset(
    (
        "properties patternProperties additionalProperties unevaluatedProperties items prefixItems additionalItems "
        "unevaluatedItems contains"
    ).split()
)
"""Keywords that descend one level in the arguments. All others stay on the same level."""
_NAMED = frozenset("properties patternProperties dependentSchemas".split())
"""Keywords that map names to schemas. The names belong to the tool and are not keywords."""
_DATA = frozenset("$defs definitions enum const default examples required type title description".split())
"""Keywords without a schema, or with one that counts only if it is referenced."""


def is_affordable(schema: Mapping[str, Any], arguments: object) -> bool:
    """Return whether a schema can be validated in bounded time and has no external references.

    A few references that each name the next one twice double the work with every line, so the cost of a schema can far
    exceed its size.
    """
    try:
        return _Cost(schema).of(schema, depth_of(arguments)) <= MOST
    except (_Refused, RecursionError):
        return False


def depth_of(value: object) -> int:
    """Return the nesting depth of a value, up to the limit."""
    return extent_of(value)[0]


def extent_of(value: object) -> tuple[int, int]:
    """Return the nesting depth of a value and how many values it contains. A shared value counts each time."""
    return _extent(value, DEEP, {})


def _extent(value: object, limit: int, known: dict[tuple[int, int], tuple[int, int]]) -> tuple[int, int]:
    if limit <= 0 or not isinstance(value, Mapping | list | tuple):
        return 0, 1
    place = id(value), limit
    if place not in known:  # visited once per depth, which also ends cycles
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
    """A schema that is not validated."""


class _Cost:
    """Counter of schema nodes per path, with one visit per node and depth."""

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
            self.known[place] = 0  # a cycle at one depth: the validator stops there too
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
        """Return the target of a reference within the schema. Reject others: they lead to the network or to files."""
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
