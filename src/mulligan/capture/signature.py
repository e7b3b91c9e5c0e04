"""Function signatures: converts positional and keyword arguments to a dictionary and back, and to JSON schema."""

from __future__ import annotations

import collections.abc
import contextlib
import enum
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

EXTRA_POSITIONAL_KEY = "*"
"""The key for additional positional arguments. A keyword that equals a positional-only name is stored as `**name`."""


class Signature:
    """The parameters of a function, analyzed once."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature: inspect.Signature | None = None
        with contextlib.suppress(Exception):  # some built-ins have no signature, and some objects raise other errors
            self._signature = inspect.signature(function)
        parameters = list(self._signature.parameters.values()) if self._signature is not None else []
        self.is_method = _is_method(function, parameters)
        self._names = [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL]
        self._positional_only = frozenset(
            parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY
        )
        self._parameters = {
            parameter.name: parameter
            for parameter in (parameters[1:] if self.is_method else parameters)
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        }
        self.names = list(self._parameters)
        """The names of its arguments."""
        self.positional_names = self._names[1:] if self.is_method else self._names
        """The names of its positional arguments."""
        self.keyword_names = [name for name in self.names if name not in self._positional_only]
        """The names that can be passed as keywords."""
        self._has_keywords = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        self.takes_any_name = self._signature is None or self._has_keywords
        """Whether it may accept unlisted names: it has `**`, or Python cannot determine its signature."""
        self.is_unrestricted = not parameters or self.takes_any_name
        """Whether it accepts arguments of any name, or its parameters are unknown."""

    def default(self, name: str) -> Any:
        """Return the default of an argument, or None."""
        parameter = self._parameters.get(name)
        return None if parameter is None or parameter.default is parameter.empty else parameter.default

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, without `self`. Additional positional arguments are stored under
        `*`."""
        bound = dict(zip(self._names, args, strict=False))
        if len(args) > len(self._names):
            bound[EXTRA_POSITIONAL_KEY] = list(args[len(self._names) :])
        if self._positional_only:
            for name, value in kwargs.items():
                bound[f"**{name}" if name in self._positional_only else name] = value
        else:
            bound.update(kwargs)
        if self.is_method and self._names and args:
            bound.pop(self._names[0], None)
        return bound

    def can_name(self, name: str) -> bool:
        """Return whether `bind` stores an argument under this name unchanged."""
        return (
            name.isidentifier()
            and name not in self._positional_only
            and not (self.is_method and name in self._names[:1])
        )

    def split_arguments(
        self, arguments: Mapping[str, Any], args: tuple[Any, ...] = ()
    ) -> tuple[list[Any], dict[str, Any]]:
        """Split arguments by name into positional and keyword arguments. Positional ones of the original call stay
        so."""
        positional = list(args)
        keywords: dict[str, Any] = {}
        remaining = dict(arguments)
        remaining.pop(EXTRA_POSITIONAL_KEY, None)
        for index, name in enumerate(self._names):
            if name not in remaining:
                continue
            if index < len(positional):
                positional[index] = remaining.pop(name)
            elif index == len(positional) and name in self._positional_only:
                positional.append(remaining.pop(name))
        for name, value in remaining.items():
            keywords[name.removeprefix("**") if isinstance(name, str) else name] = value
        return positional, keywords

    def rejects_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether Python would reject the call before executing its body."""
        if self._signature is None:
            return False
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError:
            return True
        return False

    @property
    def description(self) -> str:
        """The first paragraph of the docstring."""
        return parse_docstring(self._function)[0]

    def schema(self) -> dict[str, Any] | None:
        """Return the parameters as JSON schema, or None if they are unknown. Parameters without annotation accept
        anything."""
        return self._schema

    @functools.cached_property
    def _schema(self) -> dict[str, Any] | None:
        try:
            return None if self._signature is None else self._build_schema()
        except Exception:  # noqa: BLE001 - annotations may be arbitrary code
            return None

    def _build_schema(self) -> dict[str, Any]:
        hints: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # names may be undefined
            hints = typing.get_type_hints(code_of(self._function), include_extras=True)
        _, descriptions = parse_docstring(self._function)
        properties: dict[str, dict[str, Any]] = {}
        for name, parameter in self._parameters.items():
            schema = annotation_to_schema(hints.get(name, parameter.annotation))
            if type(parameter.default) in _TYPES:
                schema = {**schema, "default": parameter.default}
            if descriptions.get(name):
                schema = {"description": descriptions[name], **schema}
            properties[name] = schema
        return {
            "type": "object",
            "properties": properties,
            "required": [name for name in self.names if self._parameters[name].default is inspect.Parameter.empty],
            "additionalProperties": self._has_keywords,
        }


def _without_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the underlying function, whose flags tell sync from async: of a partial, or an object's `__call__`."""
    function = _without_partial(function)
    return function if inspect.isroutine(function) else type(function).__call__


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the function or class behind it."""
    function = _without_partial(function)
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) and name else type(function).__name__


def qualified_name_of(function: Callable[..., Any]) -> str:
    """Return `module:qualname` of a function, or of an object's class; empty if Python does not know it."""
    function = _without_partial(function)
    owner = function if isinstance(getattr(function, "__qualname__", None), str) else type(function)
    module = getattr(owner, "__module__", None)
    return f"{module}:{owner.__qualname__}" if isinstance(module, str) and module else ""


def _is_method(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> bool:
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str) or not inspect.isfunction(function):
        return False
    is_inside_class = "." in name and not name.rpartition(".")[0].endswith("<locals>")
    return bool(is_inside_class and parameters and parameters[0].name in ("self", "cls"))


# Annotations and docstrings as JSON schema. Unknown ones become `{}`: a stricter schema would reject valid calls.

MAX_NESTED_CLASSES = 6
"""Nesting depth of classes that are converted; deeper ones become `{}`."""
MAX_ENUM_MEMBERS = 200
"""Larger enums become `{}`."""
MAX_DESCRIPTION_CHARS = 500
"""Characters of a description."""

_TYPES: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_TYPES_BY_NAME = {"int": int, "float": float, "str": str, "bool": bool, "None": type(None), "list": list, "dict": dict}
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


def annotation_to_schema(annotation: Any, depth: int = 0) -> dict[str, Any]:
    """Convert an annotation to JSON schema; `{}` if JSON cannot express it."""
    if isinstance(annotation, str):
        annotation = _TYPES_BY_NAME.get(annotation.strip(), Any)
    origin = typing.get_origin(annotation)
    type_args = typing.get_args(annotation)
    if annotation is None:
        return {"type": "null"}
    if origin is typing.Annotated:
        base = annotation_to_schema(type_args[0], depth)
        return base | _constraints_to_schema(type_args[1:], base)
    if origin is typing.Required or origin is typing.NotRequired:
        return annotation_to_schema(type_args[0], depth)
    if origin is typing.Literal:
        return {"enum": list(type_args)} if all(type(member) in _TYPES for member in type_args) else {}
    if origin is typing.Union or origin is types.UnionType:
        return _union([annotation_to_schema(member, depth) for member in type_args])
    if isinstance(annotation, typing.NewType):
        return annotation_to_schema(annotation.__supertype__, depth)
    kind = annotation if origin is None else origin
    # Compare by identity: annotations may define their own equality.
    if any(kind is list_type for list_type in _LISTS):
        return _list(kind, type_args, depth)
    if any(kind is object_type for object_type in _OBJECTS):
        values = annotation_to_schema(type_args[1], depth) if len(type_args) == 2 else {}
        return {"type": "object"} | ({"additionalProperties": values} if values else {})
    return _class(annotation, depth) if isinstance(annotation, type) and origin is None else {}


def _list(kind: Any, type_args: tuple[Any, ...], depth: int) -> dict[str, Any]:
    if kind is tuple:
        type_args = type_args[:1] if len(type_args) == 2 and type_args[1] is Ellipsis else ()
    items = annotation_to_schema(type_args[0], depth) if type_args else {}
    return {"type": "array"} | ({"items": items} if items else {})


def _class(kind: Any, depth: int) -> dict[str, Any]:
    if kind in _TYPES:
        return {"type": _TYPES[kind]}
    if issubclass(kind, enum.Enum):
        members = [member.value for member in kind]
        return (
            {"enum": members}
            if len(members) <= MAX_ENUM_MEMBERS and all(type(value) in _TYPES for value in members)
            else {}
        )
    if _is_text_class(kind):
        return {"type": "string"}
    if depth >= MAX_NESTED_CLASSES:
        return {}
    if callable(build_schema := getattr(kind, "model_json_schema", None)):  # pydantic models
        schema = build_schema()
        inlined: dict[str, Any] = _inline_references(schema, schema.get("$defs", {}))
        return inlined
    if not (typing.is_typeddict(kind) or hasattr(kind, "__dataclass_fields__")):
        return {}
    hints = typing.get_type_hints(kind, include_extras=True)
    if typing.is_typeddict(kind):
        # String annotations are resolved only here: until Python 3.13 the class counts such keys as required.
        origins = {name: typing.get_origin(hint) for name, hint in hints.items()}
        required = {name for name in getattr(kind, "__required_keys__", ()) if origins[name] is not typing.NotRequired}
        required |= {name for name, origin in origins.items() if origin is typing.Required}
        names = list(hints)
    else:
        import dataclasses  # lazy: 1 ms of every first decoration

        fields, missing = [field for field in dataclasses.fields(kind) if field.init], dataclasses.MISSING
        required = {field.name for field in fields if field.default is missing and field.default_factory is missing}
        names = [field.name for field in fields]
    return {
        "type": "object",
        "properties": {name: annotation_to_schema(hints.get(name, Any), depth + 1) for name in names},
        "required": [name for name in names if name in required],
        "additionalProperties": False,
    }


def _is_text_class(kind: type) -> bool:
    import datetime  # lazy: rarely needed
    import pathlib
    import uuid

    return issubclass(kind, (datetime.datetime, datetime.date, datetime.time, uuid.UUID, pathlib.PurePath))


def _union(members: list[dict[str, Any]]) -> dict[str, Any]:
    if {} in members:
        return {}
    if all(set(member) == {"type"} for member in members):
        return {"type": [member["type"] for member in members]}
    return {"anyOf": members}


def _constraints_to_schema(marks: tuple[Any, ...], base: Mapping[str, Any]) -> dict[str, Any]:
    """Convert constraints by duck typing: supports annotated-types and pydantic's Field without importing them."""
    keywords: dict[str, Any] = {}
    shortest, longest = _LENGTHS.get(str(base.get("type")), ("", ""))
    for mark in marks:
        if isinstance(mark, str):
            keywords["description"] = mark.strip()[:MAX_DESCRIPTION_CHARS]
            continue
        description = getattr(mark, "description", None) or getattr(mark, "documentation", None)
        if isinstance(description, str):
            keywords["description"] = description.strip()[:MAX_DESCRIPTION_CHARS]
        metadata = getattr(mark, "metadata", ())
        for constraint in (mark, *(metadata if isinstance(metadata, list | tuple) else ())):
            for name, word in _BOUNDS.items():
                if _is_number(bound := getattr(constraint, name, None)):
                    keywords[word] = bound
            for name, word in (("min_length", shortest), ("max_length", longest)):
                length = getattr(constraint, name, None)
                if word and isinstance(length, int) and not isinstance(length, bool):
                    keywords[word] = length
            pattern = getattr(constraint, "pattern", None)
            if isinstance(pattern, str) and base.get("type") == "string":
                keywords["pattern"] = pattern
    return keywords


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _inline_references(schema: Any, definitions: Mapping[str, Any], depth: int = 0) -> Any:
    """Inline the references of a class's own schema: they would be invalid inside the function's schema."""
    if isinstance(schema, list):
        return [_inline_references(item, definitions, depth + 1) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    if depth > 4 * MAX_NESTED_CLASSES:
        return {}
    if isinstance(reference := schema.get("$ref"), str):
        return _inline_references(definitions.get(reference.rpartition("/")[2], {}), definitions, depth + 1)
    return {
        name: _inline_references(value, definitions, depth + 1)
        for name, value in schema.items()
        if name not in ("$defs", "title")
    }


_ARGUMENTS_HEADING = re.compile(r"^\s*(?:args|arguments|parameters|params)\s*:?\s*$", re.IGNORECASE)
_ENTRY = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]{0,100}\))?\s*:\s+(\S.*)$")
_FIELD = re.compile(r"^\s*:param\s+(?:[\w.\[\], |]{1,80}\s)?(\w+)\s*:\s*(.*)$")


def parse_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the first paragraph of a docstring and the description of each parameter.

    Parses Google style (`Args:` and indented lines) and Sphinx style (`:param name:`). Ignores continuation lines.
    """
    text = getattr(function, "__doc__", None)
    if not isinstance(text, str) or not text.strip():
        return "", {}
    summary: list[str] = []
    descriptions: dict[str, str] = {}
    is_summary, is_inside = True, False
    for line in text.strip()[:20_000].splitlines():
        if field := _FIELD.match(line):
            descriptions[field[1]] = field[2].strip()[:MAX_DESCRIPTION_CHARS]
        elif _ARGUMENTS_HEADING.match(line):
            is_inside = True
        elif is_inside and (entry := _ENTRY.match(line)):
            descriptions[entry[1]] = entry[2].strip()[:MAX_DESCRIPTION_CHARS]
        elif is_inside and line.rstrip().endswith(":"):
            is_inside = False  # the next section starts
        elif is_summary and line.strip():
            summary.append(line.strip())
            continue
        is_summary = False
    return " ".join(summary)[:MAX_DESCRIPTION_CHARS], descriptions
