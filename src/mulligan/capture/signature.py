"""A function's parameters: from positional and named to one dictionary and back, and as a JSON schema."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

_TYPES: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_BOUNDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Signature:
    """What is known of a function's parameters, worked out once."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        try:
            self._parameters = list(inspect.signature(function).parameters.values())
        except (ValueError, TypeError):  # some built-ins have none
            self._parameters = []
        self._is_method = _is_method(function, self._parameters)
        self._names = [each.name for each in self._parameters if each.kind in _POSITIONAL]
        self._schema: dict[str, Any] | None = None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The call's arguments by name. `self` is not one; positions beyond the names go under `*`."""
        bound = dict(zip(self._names, args, strict=False))
        if len(args) > len(self._names):
            bound["*"] = list(args[len(self._names) :])
        bound.update(kwargs)
        if self._is_method and self._names:
            bound.pop(self._names[0], None)
        return bound

    def spread(self, arguments: Mapping[str, Any], args: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
        """Changed arguments in the form of the original call: what was given by position stays there."""
        places = {name: place for place, name in enumerate(self._names) if place < len(args)}
        positional = list(args)
        named: dict[str, Any] = {}
        for name, value in arguments.items():
            if name in places:
                positional[places[name]] = value
            elif name != "*":
                named[name] = value
        return positional, named

    def schema(self) -> dict[str, Any] | None:
        """The parameters as JSON schema; what an annotation does not say is left open."""
        if self._schema is None:
            self._schema = self._read()
        return self._schema

    def _read(self) -> dict[str, Any]:
        try:
            hints = typing.get_type_hints(self._function, include_extras=True)
        except Exception:  # noqa: BLE001 - annotations are code of strangers, and may name what is not there
            hints = {}
        parameters = self._parameters[1:] if self._is_method else self._parameters
        named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        return {
            "type": "object",
            "properties": {each.name: as_schema(hints.get(each.name, Any)) for each in named},
            "required": [each.name for each in named if each.default is each.empty],
            "additionalProperties": any(each.kind is each.VAR_KEYWORD for each in parameters),
        }


def _is_method(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> bool:
    name = getattr(function, "__qualname__", "")
    is_inside_class = "." in name and not name.rpartition(".")[0].endswith("<locals>")
    return bool(is_inside_class and parameters and parameters[0].name in ("self", "cls"))


def as_schema(annotation: Any) -> dict[str, Any]:
    """An annotation as JSON schema, `{}` where it says nothing that JSON can hold."""
    origin = typing.get_origin(annotation)
    inside = typing.get_args(annotation)
    if annotation in _TYPES:
        return {"type": _TYPES[annotation]}
    if origin is typing.Annotated:
        return as_schema(inside[0]) | _bounds(inside[1:])
    if origin is typing.Literal:
        return {"enum": list(inside)}
    if origin in (typing.Union, types.UnionType):
        return _union([as_schema(each) for each in inside])
    if annotation is list or origin is list:
        return {"type": "array"} | ({"items": as_schema(inside[0])} if inside else {})
    if annotation is dict or origin is dict:
        return {"type": "object"}
    return {}


def _union(members: list[dict[str, Any]]) -> dict[str, Any]:
    if {} in members:
        return {}
    if all(set(member) == {"type"} for member in members):
        return {"type": [member["type"] for member in members]}
    return {"anyOf": members}


def _bounds(marks: tuple[Any, ...]) -> dict[str, Any]:
    """Bounds by duck-typing, so that annotated-types and pydantic's Field are understood and not needed."""
    found: dict[str, Any] = {}
    for mark in marks:
        for each in (mark, *getattr(mark, "metadata", ())):
            for name, word in _BOUNDS.items():
                bound = getattr(each, name, None)
                if isinstance(bound, int | float):
                    found[word] = bound
    return found
