"""Fill every field of a msgspec struct with a value that is not its default.

A field that is added, renamed or retyped shows up in what is made from it without an edit of a test. Values are
the same in every process: texts are the name of their field, numbers its position.
"""

from __future__ import annotations

import enum
import importlib
import pkgutil
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union

import msgspec

from mulligan.contract.counters import Histogram
from mulligan.core.failure import Kind, MissingExtraError

T = TypeVar("T")
KIND = Kind("tool", "timeout")
TEXTS = {"traceparent": f"00-{'0a' * 16}-{'0b' * 8}-01"}
"""Texts that must have a form, by the name of their field."""


def fill(type: type[T], **overrides: Any) -> T:
    """Build an instance whose fields all differ from their defaults. `overrides` replace some of them."""
    instance: T = _fill_struct(type, (), overrides)
    return instance


def _fill_struct(type: Any, path: tuple[Any, ...], overrides: dict[str, Any] | None = None) -> Any:
    hints = typing.get_type_hints(type, include_extras=True)
    values: dict[str, Any] = {}
    for index, field in enumerate(msgspec.structs.fields(type), start=1):
        hint = hints[field.name]
        values[field.name] = _fill_value(hint, field.name, index, field.default, (*path, type))
    return type(**{**values, **(overrides or {})})


def _fill_value(hint: Any, name: str, index: int, default: Any, path: tuple[Any, ...]) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        lowest = max([meta.ge for meta in arguments[1:] if isinstance(meta, msgspec.Meta) and meta.ge], default=0)
        return _fill_value(arguments[0], name, index + int(lowest), default, path)
    if origin in (Union, types.UnionType):
        choices = [choice for choice in arguments if choice is not types.NoneType and choice not in path]
        return _fill_value(choices[0], name, index, default, path) if choices else None
    if origin is Literal:
        return next(choice for choice in reversed(arguments) if choice != default)
    if origin in (tuple, list, set, frozenset):
        return _fill_sequence(origin, arguments, name, index, path)
    if origin in (dict, Mapping):
        key = _fill_value(arguments[0], name, index, None, path)
        return {key: _fill_value(arguments[1], name, index, None, path)}
    return _fill_plain(hint, name, index, default, path)


def _fill_sequence(origin: Any, arguments: tuple[Any, ...], name: str, index: int, path: tuple[Any, ...]) -> Any:
    members = [argument for argument in arguments if argument is not Ellipsis and argument not in path]
    return origin(_fill_value(member, name, index, None, path) for member in members)


def _fill_plain(hint: Any, name: str, index: int, default: Any, path: tuple[Any, ...]) -> Any:
    if hint is bool:
        return default is not True
    if hint is Kind:
        return KIND
    if hint is Histogram:
        return Histogram.of(500_000)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(member for member in reversed(hint) if member != default)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _fill_struct(hint, path)
    plain = {str: TEXTS.get(name, name), int: index + 1, float: index + 0.5, bytes: name.encode(), Any: {name: index}}
    if hint in plain:
        return plain[hint]
    raise TypeError(f"No value for {name}: {hint!r}. Add its type to the filler.")


def encoded_fields(type: Any) -> set[str]:
    """Return the names under which a struct writes its fields, and its tag."""
    tag = {type.__struct_config__.tag_field} if type.__struct_config__.tag_field else set()
    return {*type.__struct_encode_fields__, *tag}


def find_structs(package: str = "mulligan") -> Iterator[type[msgspec.Struct]]:
    """Yield every struct that a module of the package defines. Modules whose extra is not installed are left out."""
    for info in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if info.name.rpartition(".")[2] in ("__main__", "start"):
            continue
        try:
            module = importlib.import_module(info.name)
        except (ImportError, MissingExtraError):
            continue
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == info.name:
                yield value
