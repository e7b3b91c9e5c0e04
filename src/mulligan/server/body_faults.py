"""All faults of a JSON body at once, for the developer who sends it: where each is, and what to send instead.

Decoding stops at the first fault. Only a body that was refused is examined again here, field by field.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from mulligan.core.records import decode

MAX_FAULTS = 50
"""Faults in one answer. A list of equal items has the same fault in each."""
MAX_NAME_CHARS = 80
MAX_LISTED_NAMES = 40
Path = tuple[str | int, ...]
_PATH_PART = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")


class Fault(NamedTuple):
    field: str
    """Path as in programs: `steps[0].outcome`. Empty for the body as a whole."""
    message: str

    pointer: str
    """The path as a JSON pointer (RFC 6901): `/steps/0/outcome`."""

    @classmethod
    def at(cls, field: str, message: str) -> Fault:
        """Build the fault of a field whose path has only names of ours."""
        return cls(field, message, to_pointer(field))

    def within(self, path: str) -> Fault:
        """Return the fault as one of a larger body, of which this part is at `path`."""
        field = f"{path}{'.' if path and self.field and self.field[0] != '[' else ''}{self.field}"
        return Fault(field, self.message, to_pointer(path) + self.pointer)

    @property
    def facts(self) -> dict[str, str]:
        return {"pointer": self.pointer, "field": self.field, "message": self.message}


def to_pointer(field: str) -> str:
    """Convert the path of a field to a JSON pointer."""
    return _join_pointer(number or name for number, name in _PATH_PART.findall(field))


def _join_pointer(parts: Iterable[str]) -> str:
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def find_faults(data: bytes, type: Any, outer_path: str = "") -> list[Fault]:
    """Return the faults of a body, or of the part of it at `outer_path`, that cannot be decoded as this type."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []  # no JSON: the error of the decoder says where
    faults: list[Fault] = []
    for path, message in _examine(value, type, ()):
        parts = [str(part)[:MAX_NAME_CHARS] for part in path]
        faults.append(Fault(_to_field(path), message, _join_pointer(parts)).within(outer_path))
        if len(faults) == MAX_FAULTS:
            break
    return faults


def _to_field(path: Path) -> str:
    field = ""
    for part in path:
        if isinstance(part, int):
            field += f"[{part}]"
        else:
            field += f"{'.' if field else ''}{part[:MAX_NAME_CHARS]}"
    return field


def _examine(value: Any, type: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the faults of a value with their places."""
    for option in _list_options(type):
        if isinstance(value, list) and get_origin(option) is list:
            (item_type,) = get_args(option)
            for number, item in enumerate(value):
                yield from _examine(item, item_type, (*path, number))
            yield from _examine_length(value, type, path)
            return
        if isinstance(value, dict) and _is_struct(option):
            yield from _examine_object(value, option, path)
            return
        if isinstance(value, dict) and get_origin(option) is dict and get_args(option)[1] is not Any:
            for name, member in value.items():
                yield from _examine(member, get_args(option)[1], (*path, name))
            return
    yield from _examine_alone(value, type, path)


def _examine_object(value: dict[str, Any], struct: Any, path: Path) -> Iterator[tuple[Path, str]]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    hints = _hints(struct)
    for name, member in value.items():
        if name in fields:
            yield from _examine(member, hints[fields[name].name], (*path, name))
        elif struct.__struct_config__.forbid_unknown_fields:
            yield (*path, name), _describe_unknown_field(name, fields)
    for name, field in fields.items():
        if field.required and name not in value:
            yield (*path, name), f"Missing {name}: it is required."


def _describe_unknown_field(name: str, fields: Iterable[str]) -> str:
    shown_name = name[:MAX_NAME_CHARS]
    near_name = next(iter(get_close_matches(shown_name, list(fields), 1, 0.6)), "")
    suggestion = f" Did you mean {near_name!r}?" if near_name else ""
    return f"Unknown field {shown_name!r}.{suggestion} Fields here: {', '.join(fields)}."


def _examine_length(value: list[Any], type: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Check the length of a list, whose items were examined."""
    limits = [meta for meta in _list_metadata(type) if isinstance(meta, msgspec.Meta)]
    if any(limit.max_length is not None and len(value) > limit.max_length for limit in limits):
        max_length = min(limit.max_length for limit in limits if limit.max_length is not None)
        yield path, describe_length(len(value), max_length)


def describe_length(length: int, max_length: int) -> str:
    return f"{length:,} items in one list. The limit is {max_length:,}. Send less at once."


def _examine_alone(value: Any, type: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Check a value that is examined as a whole, and name what is allowed."""
    try:
        decode(msgspec.json.encode(value), type)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        message, _, location = str(error).partition(" - at `")
        inner = tuple(
            int(number) if number else name
            for number, name in _PATH_PART.findall(location.rstrip("`").removeprefix("$"))
        )
        yield (*path, *inner), _describe_value(value, type, message)


def _describe_value(value: Any, type: Any, message: str) -> str:
    choices = [choice for option in _list_options(type) for choice in _list_choices(option)]
    if not choices or not isinstance(value, str):
        return f"{message}."
    near_choice = next(iter(get_close_matches(value[:MAX_NAME_CHARS], choices, 1, 0.6)), "")
    suggestion = f" Did you mean {near_choice!r}?" if near_choice else ""
    return f"Unknown value {value[:MAX_NAME_CHARS]!r}.{suggestion} Use one of {', '.join(choices[:MAX_LISTED_NAMES])}."


def _list_options(type: Any) -> list[Any]:
    """Return the types of a union, without their constraints."""
    if get_origin(type) is Annotated:
        return _list_options(get_args(type)[0])
    if get_origin(type) in (Union, types.UnionType):
        return [option for member in get_args(type) for option in _list_options(member)]
    return [type]


def _list_metadata(type: Any) -> list[Any]:
    if get_origin(type) is Annotated:
        inner, *metadata = get_args(type)
        return [*metadata, *_list_metadata(inner)]
    if get_origin(type) in (Union, types.UnionType):
        return [metadata for member in get_args(type) for metadata in _list_metadata(member)]
    return []


def _list_choices(option: Any) -> list[str]:
    return [choice for choice in get_args(option) if isinstance(choice, str)] if get_origin(option) is Literal else []


def _is_struct(option: Any) -> bool:
    """Return whether a type is an object with fields of its own, and not one of several that a tag tells apart."""
    is_class = isinstance(option, type) and issubclass(option, msgspec.Struct)
    return is_class and option.__struct_config__.tag is None


@cache
def _hints(struct: Any) -> dict[str, Any]:
    return get_type_hints(struct, include_extras=True)
