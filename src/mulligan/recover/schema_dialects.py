"""Conversion of schema dialects to JSON Schema: type aliases, wrappers, provider formats.

Unknown keywords stay unchanged. If the validator rejects the schema, nothing is repaired.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPE_ALIASES = {
    "dict": "object",
    "dictionary": "object",
    "map": "object",
    "struct": "object",
    "hashmap": "object",
    "float": "number",
    "double": "number",
    "decimal": "number",
    "int": "integer",
    "long": "integer",
    "short": "integer",
    "byte": "integer",
    "bigint": "integer",
    "bool": "boolean",
    "str": "string",
    "text": "string",
    "char": "string",
    "list": "array",
    "tuple": "array",
    "set": "array",
    "arraylist": "array",
    "none": "null",
    "nonetype": "null",
}
_JSON_SCHEMA_TYPES = frozenset("object number integer boolean string array null".split())
_ANY = frozenset("any anytype mixed type_unspecified".split())
_PARAMETER_PATHS = (
    ("parameters",),
    ("inputSchema",),
    ("input_schema",),
    ("function", "parameters"),
    ("parametersJsonSchema",),
)
"""Paths of the argument schema in a tool description: OpenAI, MCP, Anthropic, OpenAI nested, Gemini."""
_NAMED = frozenset("properties patternProperties $defs definitions dependentSchemas".split())
_LISTS = frozenset("anyOf oneOf allOf prefixItems".split())
_SINGLE = frozenset(
    "items additionalProperties additionalItems not contains if then else propertyNames unevaluatedProperties".split()
)
MAX_SCHEMA_DEPTH = 64
MAX_MAPPED_NODES = 20_000
"""Nodes of a schema that are converted. Real tools have far fewer."""


class SchemaTooLargeError(ValueError):
    """A schema that exceeds the size limits."""


def find_parameters_schema(description: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the argument schema, given alone or inside a tool description."""
    if "properties" in description or "$ref" in description or description.get("type", "function") != "function":
        return description
    for form in _PARAMETER_PATHS:
        inner: Any = description
        for name in form:
            inner = inner.get(name) if isinstance(inner, Mapping) else None
        if isinstance(inner, Mapping):
            return inner
    return description


def to_json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a schema to JSON Schema. The input is not changed."""
    return _SchemaMapper().map_node(find_parameters_schema(schema), 0)


class _SchemaMapper:
    """Converter of one schema. Shared nodes count each time, since a small schema can expand to a very large one."""

    def __init__(self) -> None:
        self.remaining_nodes = MAX_MAPPED_NODES

    def map_node(self, node: Mapping[str, Any], depth: int) -> dict[str, Any]:
        self.remaining_nodes -= 1
        if depth > MAX_SCHEMA_DEPTH or self.remaining_nodes < 0:
            raise SchemaTooLargeError
        mapped_node: dict[str, Any] = {}
        for keyword, value in node.items():
            if keyword in _NAMED and isinstance(value, Mapping):
                mapped_node[keyword] = {name: self.map_inner(child, depth) for name, child in value.items()}
            elif keyword in _LISTS and isinstance(value, list):
                mapped_node[keyword] = [self.map_inner(child, depth) for child in value]
            elif keyword in _SINGLE:
                mapped_node[keyword] = (
                    [self.map_inner(child, depth) for child in value]
                    if isinstance(value, list)
                    else self.map_inner(value, depth)
                )
            elif keyword == "type":
                _map_type(mapped_node, value)
            elif keyword == "required" and not isinstance(value, list | tuple):
                continue  # `required: true` on the argument itself, as in draft 3
            elif keyword in ("required", "enum") and isinstance(value, tuple):
                mapped_node[keyword] = list(value)
            elif keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
                continue  # draft 4: the bound is moved below
            else:
                mapped_node[keyword] = value
        for keyword, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if node.get(keyword) is True and bound in mapped_node:
                mapped_node[keyword] = mapped_node.pop(bound)
        if isinstance(mapped_node.get("enum"), list) and 0 < len(mapped_node["enum"]) <= 200:
            mapped_node["enum"] = [
                member
                for at, member in enumerate(mapped_node["enum"])
                if not _is_member(member, mapped_node["enum"][:at])
            ]
        if node.get("nullable") is True:
            _add_null_type(mapped_node)
        mapped_node.pop("nullable", None)
        if isinstance(mapped_node.get("properties"), Mapping) and "required" in mapped_node:
            required = [name for name in mapped_node["required"] if isinstance(name, str)]
            mapped_node["required"] = list(dict.fromkeys(required))
        return mapped_node

    def map_inner(self, node: Any, depth: int) -> Any:
        return self.map_node(node, depth + 1) if isinstance(node, Mapping) else node


def _is_member(value: Any, others: list[Any]) -> bool:
    return any(type(value) is type(other) and value == other for other in others)


def _map_type(mapped_node: dict[str, Any], value: Any) -> None:
    type_names = value if isinstance(value, list | tuple) else [value]
    types: list[Any] = []
    for type_name in type_names:
        word = type_name.strip().casefold() if isinstance(type_name, str) else type_name
        if word in _ANY:
            return  # any type: omit the keyword
        types.append(
            _TYPE_ALIASES.get(word, word if word in _JSON_SCHEMA_TYPES else type_name)
            if isinstance(word, str)
            else type_name
        )
    types = list(dict.fromkeys(types)) if all(isinstance(json_type, str) for json_type in types) else types
    mapped_node["type"] = types[0] if len(types) == 1 else types


def _add_null_type(mapped_node: dict[str, Any]) -> None:
    """Allow null, which Gemini and OpenAPI declare by a separate keyword."""
    json_type = mapped_node.get("type")
    if isinstance(json_type, str) and json_type != "null":
        mapped_node["type"] = [json_type, "null"]
    elif isinstance(json_type, list) and "null" not in json_type:
        mapped_node["type"] = [*json_type, "null"]
    if isinstance(mapped_node.get("enum"), list) and None not in mapped_node["enum"]:
        mapped_node["enum"] = [*mapped_node["enum"], None]
