"""Cost estimate of validating an untrusted schema, without validating it (SAFETY S6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_SCHEMA_NODES = 20_000
"""Schema nodes that one validation may visit. The largest schemas of real tools need a few hundred."""
MAX_NESTING_DEPTH = 64
MAX_DETAILED_VALUES = 10_000
"""Values of a call up to which each violation is located. The validator returns all violations at once."""
MAX_CALL_VALUES = 1_000_000
"""Values of a call up to which it is validated. A few lists that contain each other can represent any number of
values."""

_DESCENDING_KEYWORDS = frozenset(
    (
        "properties patternProperties additionalProperties unevaluatedProperties items prefixItems additionalItems "
        "unevaluatedItems contains"
    ).split()
)
"""Keywords that descend one level in the arguments. All others stay on the same level."""
_NAMED_SCHEMA_KEYWORDS = frozenset("properties patternProperties dependentSchemas".split())
"""Keywords that map names to schemas. The names belong to the tool and are not keywords."""
_IGNORED_KEYWORDS = frozenset("$defs definitions enum const default examples required type title description".split())
"""Keywords without a schema, or with one that counts only if it is referenced."""


def is_affordable(schema: Mapping[str, Any], arguments: object) -> bool:
    """Return whether a schema can be validated in bounded time and has no external references.

    A few references that each name the next one twice double the work with every line, so the cost of a schema can far
    exceed its size.
    """
    try:
        return _NodeCounter(schema).count_nodes(schema, measure_depth(arguments)) <= MAX_SCHEMA_NODES
    except (_SchemaRejectedError, RecursionError):
        return False


def measure_depth(value: object) -> int:
    """Return the nesting depth of a value, up to the limit."""
    return measure_extent(value)[0]


def measure_extent(value: object) -> tuple[int, int]:
    """Return the nesting depth of a value and how many values it contains. A shared value counts each time."""
    return _measure_extent(value, MAX_NESTING_DEPTH, {})


def _measure_extent(value: object, limit: int, extents: dict[tuple[int, int], tuple[int, int]]) -> tuple[int, int]:
    if limit <= 0 or not isinstance(value, Mapping | list | tuple):
        return 0, 1
    key = id(value), limit
    if key not in extents:  # visited once per depth, which also ends cycles
        deepest, count = 0, 1
        for item in value.values() if isinstance(value, Mapping) else value:
            if isinstance(item, Mapping | list | tuple):
                item_depth, item_count = _measure_extent(item, limit - 1, extents)
                deepest, count = max(deepest, item_depth), count + item_count
            else:
                count += 1
        extents[key] = deepest + 1, count
    return extents[key]


class _SchemaRejectedError(Exception):
    """A schema that is not validated."""


class _NodeCounter:
    """Counter of schema nodes per path, with one visit per node and depth."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.costs: dict[tuple[int, int], int] = {}
        self.remaining_nodes = MAX_SCHEMA_NODES

    def count_nodes(self, node: Any, depth: int) -> int:
        if not isinstance(node, Mapping | list):
            return 0
        key = id(node), depth
        if key not in self.costs:
            self.remaining_nodes -= 1
            if self.remaining_nodes < 0:
                raise _SchemaRejectedError
            self.costs[key] = 0  # a cycle at one depth: the validator stops there too
            self.costs[key] = self._count_children(node, depth)
        return self.costs[key]

    def _count_children(self, node: Any, depth: int) -> int:
        if isinstance(node, list):
            return sum(self.count_nodes(item, depth) for item in node)
        total = 1
        for keyword, inner in node.items():
            if keyword in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(inner, str):
                total += self.count_nodes(self._resolve_reference(keyword, inner), depth)
            elif keyword not in _IGNORED_KEYWORDS:
                at = depth - 1 if keyword in _DESCENDING_KEYWORDS else depth
                schemas = (
                    inner.values() if keyword in _NAMED_SCHEMA_KEYWORDS and isinstance(inner, Mapping) else [inner]
                )
                total += sum(self.count_nodes(schema, at) for schema in schemas) if at >= 0 else 0
        return total

    def _resolve_reference(self, keyword: str, reference: str) -> Any:
        """Return the target of a reference within the schema. Reject others: they lead to the network or to files."""
        if keyword != "$ref" or not (reference == "#" or reference.startswith("#/")):
            raise _SchemaRejectedError
        node: Any = self.root
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(name)] if isinstance(node, list) else node[name]
            except (KeyError, IndexError, TypeError, ValueError):
                raise _SchemaRejectedError from None
        return node
