"""Conversion of schema dialects to JSON Schema: type aliases, wrappers, provider formats.

Unknown keywords stay unchanged. If the validator rejects the schema, nothing is repaired.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = {
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
_KNOWN = frozenset("object number integer boolean string array null".split())
_ANY = frozenset("any anytype mixed type_unspecified".split())
_FORMS = (("parameters",), ("inputSchema",), ("input_schema",), ("function", "parameters"), ("parametersJsonSchema",))
"""Paths of the argument schema in a tool description: OpenAI, MCP, Anthropic, OpenAI nested, Gemini."""
_NAMED = frozenset("properties patternProperties $defs definitions dependentSchemas".split())
_LISTS = frozenset("anyOf oneOf allOf prefixItems".split())
_SINGLE = frozenset(
    "items additionalProperties additionalItems not contains if then else propertyNames unevaluatedProperties".split()
)
DEEP = 64
MOST = 20_000
"""Nodes of a schema that are converted. Real tools have far fewer."""


class TooLarge(ValueError):
    """A schema that exceeds the size limits."""


def parameters_of(description: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the argument schema, given alone or inside a tool description."""
    if "properties" in description or "$ref" in description or description.get("type", "function") != "function":
        return description
    for form in _FORMS:
        inner: Any = description
        for name in form:
            inner = inner.get(name) if isinstance(inner, Mapping) else None
        if isinstance(inner, Mapping):
            return inner
    return description


def mapped(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a schema to JSON Schema. The input is not changed."""
    return _Mapping().of(parameters_of(schema), 0)


class _Mapping:
    """Converter of one schema. Shared nodes count each time, since a small schema can expand to a very large one."""

    def __init__(self) -> None:
        self.left = MOST

    def of(self, node: Mapping[str, Any], depth: int) -> dict[str, Any]:
        self.left -= 1
        if depth > DEEP or self.left < 0:
            raise TooLarge
        made: dict[str, Any] = {}
        for keyword, value in node.items():
            if keyword in _NAMED and isinstance(value, Mapping):
                made[keyword] = {name: self.inner(each, depth) for name, each in value.items()}
            elif keyword in _LISTS and isinstance(value, list):
                made[keyword] = [self.inner(each, depth) for each in value]
            elif keyword in _SINGLE:
                made[keyword] = (
                    [self.inner(each, depth) for each in value] if isinstance(value, list) else self.inner(value, depth)
                )
            elif keyword == "type":
                _take_type(made, value)
            elif keyword == "required" and not isinstance(value, list | tuple):
                continue  # `required: true` on the argument itself, as in draft 3
            elif keyword in ("required", "enum") and isinstance(value, tuple):
                made[keyword] = list(value)
            elif keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
                continue  # draft 4: the bound is moved below
            else:
                made[keyword] = value
        for keyword, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if node.get(keyword) is True and bound in made:
                made[keyword] = made.pop(bound)
        if isinstance(made.get("enum"), list) and 0 < len(made["enum"]) <= 200:
            made["enum"] = [each for at, each in enumerate(made["enum"]) if not _is_among(each, made["enum"][:at])]
        if node.get("nullable") is True:
            _take_null(made)
        made.pop("nullable", None)
        if isinstance(made.get("properties"), Mapping) and "required" in made:
            required = [name for name in made["required"] if isinstance(name, str)]
            made["required"] = list(dict.fromkeys(required))
        return made

    def inner(self, node: Any, depth: int) -> Any:
        return self.of(node, depth + 1) if isinstance(node, Mapping) else node


def _is_among(value: Any, others: list[Any]) -> bool:
    return any(type(value) is type(each) and value == each for each in others)


def _take_type(made: dict[str, Any], value: Any) -> None:
    given = value if isinstance(value, list | tuple) else [value]
    types: list[Any] = []
    for each in given:
        word = each.strip().casefold() if isinstance(each, str) else each
        if word in _ANY:
            return  # any type: omit the keyword
        types.append(_TYPES.get(word, word if word in _KNOWN else each) if isinstance(word, str) else each)
    types = list(dict.fromkeys(types)) if all(isinstance(each, str) for each in types) else types
    made["type"] = types[0] if len(types) == 1 else types


def _take_null(made: dict[str, Any]) -> None:
    """Allow null, which Gemini and OpenAPI declare by a separate keyword."""
    given = made.get("type")
    if isinstance(given, str) and given != "null":
        made["type"] = [given, "null"]
    elif isinstance(given, list) and "null" not in given:
        made["type"] = [*given, "null"]
    if isinstance(made.get("enum"), list) and None not in made["enum"]:
        made["enum"] = [*made["enum"], None]
