"""Converts annotations, defaults and docstrings of parameters to JSON schema.

Anything unknown becomes `{}`: a schema that is too strict would reject valid calls.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import pathlib
import re
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Any

DEEPEST = 6
"""Nesting depth of classes that are converted; deeper ones become `{}`."""
MEMBERS = 200
"""Larger enums become `{}`."""
SENTENCE = 500
"""Characters of a description."""

_TYPES: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_TEXTS = (datetime.datetime, datetime.date, datetime.time, uuid.UUID, pathlib.PurePath)
_SPELT = {"int": int, "float": float, "str": str, "bool": bool, "None": type(None), "list": list, "dict": dict}
"""Types of annotations that remain strings because another annotation of the function cannot be resolved."""
_LISTS = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_OBJECTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_BOUNDS = {
    "ge": "minimum",
    "le": "maximum",
    "gt": "exclusiveMinimum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_LENGTHS = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}


def as_schema(annotation: Any, depth: int = 0) -> dict[str, Any]:
    """Convert an annotation to JSON schema; `{}` if JSON cannot express it."""
    if isinstance(annotation, str):
        annotation = _SPELT.get(annotation.strip(), Any)
    origin = typing.get_origin(annotation)
    inside = typing.get_args(annotation)
    if annotation is None:
        return {"type": "null"}
    if origin is typing.Annotated:
        base = as_schema(inside[0], depth)
        return base | _marks(inside[1:], base)
    if origin is typing.Required or origin is typing.NotRequired:
        return as_schema(inside[0], depth)
    if origin is typing.Literal:
        return {"enum": list(inside)} if all(type(each) in _TYPES for each in inside) else {}
    if origin is typing.Union or origin is types.UnionType:
        return _union([as_schema(each, depth) for each in inside])
    if isinstance(annotation, typing.NewType):
        return as_schema(annotation.__supertype__, depth)
    kind = annotation if origin is None else origin
    # Compare by identity: annotations may define their own equality.
    if any(kind is each for each in _LISTS):
        return _list(kind, inside, depth)
    if any(kind is each for each in _OBJECTS):
        values = as_schema(inside[1], depth) if len(inside) == 2 else {}
        return {"type": "object"} | ({"additionalProperties": values} if values else {})
    return _class(annotation, depth) if isinstance(annotation, type) and origin is None else {}


def _list(kind: Any, inside: tuple[Any, ...], depth: int) -> dict[str, Any]:
    if kind is tuple:
        inside = inside[:1] if len(inside) == 2 and inside[1] is Ellipsis else ()
    items = as_schema(inside[0], depth) if inside else {}
    return {"type": "array"} | ({"items": items} if items else {})


def _class(kind: type, depth: int) -> dict[str, Any]:
    if kind in _TYPES:
        return {"type": _TYPES[kind]}
    if issubclass(kind, enum.Enum):
        members = [each.value for each in kind]
        return {"enum": members} if len(members) <= MEMBERS and all(type(each) in _TYPES for each in members) else {}
    if issubclass(kind, _TEXTS):
        return {"type": "string"}
    if depth >= DEEPEST:
        return {}
    if callable(own := getattr(kind, "model_json_schema", None)):  # pydantic models
        return _inlined(own())
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        usual = getattr(kind, "__required_keys__", ())
        # String annotations are resolved only here: until Python 3.13 the class counts such keys as required.
        origins = {name: typing.get_origin(hint) for name, hint in hints.items()}
        optional = {name for name, origin in origins.items() if origin is typing.NotRequired}
        required = [
            name for name in hints if (name in usual or origins[name] is typing.Required) and name not in optional
        ]
        return _object({name: as_schema(hint, depth + 1) for name, hint in hints.items()}, required)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = [each for each in dataclasses.fields(kind) if each.init]
        missing = dataclasses.MISSING
        required = [each.name for each in fields if each.default is missing and each.default_factory is missing]
        return _object({each.name: as_schema(hints.get(each.name, Any), depth + 1) for each in fields}, required)
    return {}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _union(members: list[dict[str, Any]]) -> dict[str, Any]:
    if {} in members:
        return {}
    if all(set(member) == {"type"} for member in members):
        return {"type": [member["type"] for member in members]}
    return {"anyOf": members}


def _marks(marks: tuple[Any, ...], base: Mapping[str, Any]) -> dict[str, Any]:
    """Convert constraints by duck typing: supports annotated-types and pydantic's Field without importing them."""
    found: dict[str, Any] = {}
    shortest, longest = _LENGTHS.get(str(base.get("type")), ("", ""))
    for mark in marks:
        if isinstance(mark, str):
            found["description"] = mark.strip()[:SENTENCE]
            continue
        described = getattr(mark, "description", None) or getattr(mark, "documentation", None)
        if isinstance(described, str):
            found["description"] = described.strip()[:SENTENCE]
        metadata = getattr(mark, "metadata", ())
        for each in (mark, *(metadata if isinstance(metadata, list | tuple) else ())):
            for name, word in _BOUNDS.items():
                if _is_number(bound := getattr(each, name, None)):
                    found[word] = bound
            for name, word in (("min_length", shortest), ("max_length", longest)):
                length = getattr(each, name, None)
                if word and isinstance(length, int) and not isinstance(length, bool):
                    found[word] = length
            pattern = getattr(each, "pattern", None)
            if isinstance(pattern, str) and base.get("type") == "string":
                found["pattern"] = pattern
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _inlined(schema: Any, known: Mapping[str, Any] | None = None, depth: int = 0) -> dict[str, Any]:
    """Inline the references of a class's own schema: they would be invalid inside the function's schema."""
    known = schema.get("$defs", {}) if known is None else known
    if depth > 4 * DEEPEST:
        return {}
    if isinstance(schema.get("$ref"), str):
        return _inlined(known.get(schema["$ref"].rpartition("/")[2], {}), known, depth + 1)
    return {name: _inside(value, known, depth + 1) for name, value in schema.items() if name not in ("$defs", "title")}


def _inside(value: Any, known: Mapping[str, Any], depth: int) -> Any:
    if isinstance(value, Mapping):
        return _inlined(value, known, depth)
    return [_inside(each, known, depth) for each in value] if isinstance(value, list) else value


def with_default(schema: dict[str, Any], default: Any) -> dict[str, Any]:
    """Add a default to the schema of a parameter, if JSON can express it."""
    return {**schema, "default": default} if type(default) in _TYPES else schema


# Docstrings

_PLACES = re.compile(r"^\s*(?:args|arguments|parameters|params)\s*:?\s*$", re.IGNORECASE)
_ENTRY = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]{0,100}\))?\s*:\s+(\S.*)$")
_FIELD = re.compile(r"^\s*:param\s+(?:[\w.\[\], |]{1,80}\s)?(\w+)\s*:\s*(.*)$")


def described(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the first paragraph of a docstring and the description of each parameter."""
    text = getattr(function, "__doc__", None)
    if not isinstance(text, str) or not text.strip():
        return "", {}
    lines = text.strip()[:20_000].splitlines()
    first: list[str] = []
    for line in lines:
        if not line.strip() or _PLACES.match(line) or _FIELD.match(line):
            break
        first.append(line.strip())
    return " ".join(first)[:SENTENCE], _parameters(lines)


def _parameters(lines: list[str]) -> dict[str, str]:
    """Parse Google style (`Args:` and indented lines) and Sphinx style (`:param name:`). Ignores continuation lines."""
    found: dict[str, str] = {}
    is_inside = False
    for line in lines:
        if field := _FIELD.match(line):
            found[field[1]] = field[2].strip()[:SENTENCE]
        elif _PLACES.match(line):
            is_inside = True
        elif is_inside and line.strip():
            if entry := _ENTRY.match(line):
                found[entry[1]] = entry[2].strip()[:SENTENCE]
            elif line.rstrip().endswith(":"):
                is_inside = False  # the next section starts
    return found
