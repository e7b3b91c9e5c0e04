"""Conversion of any value to bounded plain data without running the value's own code."""

from __future__ import annotations

import functools
import itertools
import math
import sys
import types
from typing import Any

_HEAD, _TAIL = 8192, 2048
_WORD = 512
_FLAT = frozenset((str, int, float, bool, type(None)))
HIDDEN_VALUE_PATTERN = r"\[(?:str \d{1,9} chars|int|float)(?: #[0-9a-f]{12})?\]"
"""What redaction level `shared` leaves of a value: its type, its length and a hash."""


def to_plain_data(
    value: Any,
    *,
    depth: int = 12,
    items: int = 1000,
    nodes: int = 10_000,
    chars: int = 262_144,
    states: list[Any] | None = None,
) -> Any:
    """Return a bounded copy of any value that every JSON encoder accepts. Never raises.

    Values without a JSON form become `{"$type": name, ...}`, and cuts are marked. No code of a foreign object runs: no
    repr, property or iterator. `depth` bounds nesting, `items` one collection, `nodes` and `chars` the whole.

    Of bytes and of plain objects, the copy has no content. A bounded copy of it is added to `states`, so that a later
    change can be detected, unless an object is or contains a resource such as a client, a connection or a lock.
    """
    return _PlainCopier(min(depth, 64), items, nodes, chars, states).copy_value(value, 0)


def truncate_text(text: str, head: int = _HEAD, tail: int = _TAIL) -> str:
    """Return the text, or its two ends with a note about how much was cut.

    Words at the cut are removed too: detection cannot recognize half of a secret.
    """
    if len(text) <= head + tail:
        return text
    head_chars = head - 48  # reserve space for the note, so that the result is never cut again
    first, last = text[:head_chars], text[len(text) - tail :]
    shortest = head_chars - _WORD
    first = first[: max(first.rfind(" ", shortest), first.rfind("\n", shortest), shortest)]
    spaces = [position for position in (last.find(" ", 0, _WORD), last.find("\n", 0, _WORD)) if position >= 0]
    last = last[min(spaces, default=_WORD) :]
    return f"{first} [... {len(text) - len(first) - len(last)} characters cut ...] {last.lstrip()}"


def escape_surrogates(text: str) -> str:
    """Return the text with lone surrogates escaped: no encoder accepts them."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


class _PlainCopier:
    def __init__(self, depth: int, items: int, nodes: int, chars: int, states: list[Any] | None) -> None:
        self.depth = depth
        self.items = items
        self.nodes = nodes
        self.chars = chars
        self.states = states
        self.has_resource = False
        """Whether a resource was met inside the plain object whose fields are copied."""
        self.ancestor_ids: set[int] = set()

    def copy_value(self, value: Any, level: int) -> Any:
        kind = type(value)
        self.nodes -= 1
        if kind is str:
            return self.copy_text(value)
        if kind is bool or value is None:
            return value
        if kind is int and -(2**63) <= value < 2**63:
            return value
        try:
            return self.copy_other(value, kind, level)
        except Exception:  # noqa: BLE001 - a value that cannot be read is described by its type
            return {"$type": _name(kind)}

    def copy_text(self, value: str) -> str:
        text = truncate_text(value)
        if len(text) > self.chars:
            return f"[{len(value)} characters cut]"
        self.chars -= len(text)
        return escape_surrogates(text)

    def copy_other(self, value: Any, kind: type, level: int) -> Any:
        # Use unbound methods of the built-in types: a subclass may override its own.
        bases = kind.__mro__
        if str in bases:
            return self.copy_text(str.__str__(value))
        if int in bases:
            return _bounded_integer(int.__int__(value))
        if float in bases:
            number = float.__float__(value)
            return number if math.isfinite(number) else {"$type": "float", "value": float.__repr__(number)}
        if id(value) in self.ancestor_ids:
            return {"$type": _name(kind), "$cut": "a cycle"}
        if level >= self.depth or self.nodes <= 0:
            return {"$type": _name(kind), "$cut": "too deep" if level >= self.depth else "too much"}
        self.ancestor_ids.add(id(value))
        try:
            return self.copy_container(value, kind, bases, level + 1)
        finally:
            self.ancestor_ids.discard(id(value))

    def copy_container(self, value: Any, kind: type, bases: tuple[type, ...], level: int) -> Any:
        if dict in bases:
            return self.copy_mapping(dict.items(value), dict.__len__(value), level)
        if list in bases:
            return self.copy_sequence(list.__iter__(value), list.__len__(value), level)
        if tuple in bases:
            names = _class_attribute(kind, "_fields")
            if type(names) is tuple and len(names) == tuple.__len__(value):
                return self.copy_mapping(zip(names, tuple.__iter__(value), strict=True), len(names), level)
            return self.copy_sequence(tuple.__iter__(value), tuple.__len__(value), level)
        for unordered in (set, frozenset):
            if unordered in bases:
                copied_items = self.copy_sequence(unordered.__iter__(value), unordered.__len__(value), level)
                return sorted(copied_items) if all(type(item) is str for item in copied_items) else copied_items
        if kind is range or kind in (type({}.keys()), type({}.values())):
            return self.copy_sequence(iter(value), len(value), level)
        if bytes in bases or bytearray in bases or kind is memoryview:
            size = value.nbytes if kind is memoryview else bytes.__len__(value) if bytes in bases else len(value)
            if self.states is not None and bytes not in bases:
                self.states.append(read_buffer(value))
            return {"$type": _name(kind), "length": size}
        if BaseException in bases:
            arguments = BaseException.__dict__["args"].__get__(value)
            return {"$type": _name(kind), "args": self.copy_value(arguments, level)}
        if (standard_text := _format_standard(value, bases)) is not None:
            return self.copy_text(standard_text)
        if (enum := sys.modules.get("enum")) and enum.Enum in bases:
            return self.copy_value(_stored_field(value, kind, "_value_"), level)
        if (deque := getattr(sys.modules.get("collections"), "deque", None)) and deque in bases:
            return self.copy_sequence(deque.__iter__(value), deque.__len__(value), level)
        if (array := _describe_array(value, bases)) is not None:
            if self.states is not None:
                self.states.append(read_buffer(value))
            return self.copy_value(array, level)
        if names := _field_names(kind):
            fields = [(name, _stored_field(value, kind, name)) for name in names[: self.items + 1]]
            return self.copy_mapping([pair for pair in fields if pair[1] is not _ABSENT], len(fields), level)
        if callable(_class_attribute(kind, "model_dump")):  # model_dump is designed to return a copy
            return self.copy_value(value.model_dump(), level)
        if self.states is not None:
            self.add_state(value, level)
        return {"$type": _name(kind)}

    def add_state(self, value: Any, level: int) -> None:
        """Add the fields of a plain object to the states, unless it is or contains a resource."""
        assert self.states is not None
        fields = find_fields(value)
        if fields is None:
            if (content := read_buffer(value)) is not None:
                self.states.append(content)
            else:
                self.has_resource = True
            return
        count, had_resource = len(self.states), self.has_resource
        self.has_resource = False
        copied_fields = self.copy_mapping(fields.items(), len(fields), level)
        if self.has_resource:
            del self.states[count:]
        else:
            self.states.append(copied_fields)
            self.has_resource = had_resource

    def copy_sequence(self, values: Any, length: int, level: int) -> list[Any]:
        copied_items: list[Any] = []
        for value in itertools.islice(values, self.items):
            if self.nodes <= 0:
                break
            copied_items.append(self.copy_value(value, level))
        if len(copied_items) < length:
            copied_items.append(f"[{length - len(copied_items)} more items cut]")
        return copied_items

    def copy_mapping(self, pairs: Any, length: int, level: int) -> dict[str, Any]:
        copied_fields: dict[str, Any] = {}
        for key, value in itertools.islice(pairs, self.items):
            if self.nodes <= 0:
                break
            name = _key(key)
            while name in copied_fields:  # 1 and "1" are two keys of one dict
                name += "'"
            copied_fields[name] = self.copy_value(value, level)
        if len(copied_fields) < length:
            copied_fields["$cut"] = f"{length - len(copied_fields)} more items"
        return copied_fields


_ABSENT = object()


def _bounded_integer(value: int) -> Any:
    if -(2**63) <= value < 2**63:
        return value
    if value.bit_length() <= 512:
        return str(value)
    return {"$type": "int", "bits": value.bit_length()}  # formatting the digits would take quadratic time


def _key(key: Any) -> str:
    kind = type(key)
    if str in kind.__mro__:
        text = str.__str__(key)
    elif kind is bool or key is None:
        text = {True: "true", False: "false", None: "null"}[key]
    elif kind is int or kind is float:
        text = str(_bounded_integer(key) if kind is int else key)
    else:
        text = str(to_plain_data(key, depth=2, items=8)) if kind is tuple else f"${_name(kind)}"
    return escape_surrogates(text if len(text) <= 200 else text[:200] + "...")


def _name(kind: type) -> str:
    name = type.__dict__["__name__"].__get__(kind)
    return escape_surrogates(name[:100]) if type(name) is str else "object"


def _class_attribute(kind: type, name: str) -> Any:
    for base in kind.__mro__:
        if name in (namespace := type.__dict__["__dict__"].__get__(base)):
            return namespace[name]
    return _ABSENT


def _stored_field(value: Any, kind: type, name: str) -> Any:
    """Return a field from the object itself, bypassing a property with that name."""
    try:
        instance_fields = object.__getattribute__(value, "__dict__")
        if type(instance_fields) is dict and name in instance_fields:
            return instance_fields[name]
    except AttributeError:
        pass
    slot = _class_attribute(kind, name)
    try:
        return slot.__get__(value) if type(slot) is types.MemberDescriptorType else _ABSENT
    except AttributeError:
        return _ABSENT


def _field_names(kind: type) -> list[str]:
    """Return the declared fields of a dataclass, a msgspec struct, an attrs class or a pydantic model."""
    if type(kind).__name__ == "StructMeta":  # the metaclass holds the fields
        return list(kind.__struct_fields__)  # type: ignore[attr-defined]
    for declaration in (
        "__dataclass_fields__",
        "__struct_fields__",
        "__pydantic_fields__",
        "model_fields",
        "__fields__",
    ):
        names = _class_attribute(kind, declaration)
        if type(names) is dict or type(names) is tuple:
            return [name for name in names if type(name) is str]
    attributes = _class_attribute(kind, "__attrs_attrs__")
    if attributes is not _ABSENT and isinstance(attributes, tuple):
        return [attribute.name for attribute in tuple.__iter__(attributes)]
    return []


MAX_COMPARED_BYTES = 65_536
"""The first bytes of an array that are compared to detect a change."""
_RESOURCE_METHODS = ("close", "aclose", "__enter__", "__aenter__", "acquire", "connect", "cursor")
_RESOURCE_NAMES = (
    "Client", "Session", "Connection", "Pool", "Engine", "Cursor", "Transport", "Lock", "Semaphore", "Socket", "Logger",
)  # fmt: skip
_DATA_MODULES = frozenset(("collections", "types", "argparse"))
"""Modules of the standard library whose plain objects hold data."""
_VALUE_MODULES = frozenset("datetime zoneinfo decimal fractions ipaddress pathlib uuid enum re".split())
"""Modules of the standard library whose objects do not change."""


def read_buffer(value: Any) -> bytes | None:
    """Return the first bytes of an array of any library; None if the value is none."""
    if isinstance(value, bytearray):  # an exported buffer would forbid another thread to resize it
        return bytes(value[:MAX_COMPARED_BYTES])
    try:
        with memoryview(value) as view:
            return bytes(view.cast("B")[:MAX_COMPARED_BYTES])
    except (TypeError, ValueError, BufferError):
        return None


def is_resource(value: Any) -> bool:
    """Return whether a value is a client, session, connection, lock or the like, by its class."""
    kind: type = type(value)
    return _is_resource_class(kind)


@functools.lru_cache(1024)
def _is_resource_class(kind: type) -> bool:
    return any(
        _name(base).endswith(_RESOURCE_NAMES) or any(name in vars(base) for name in _RESOURCE_METHODS)
        for base in kind.__mro__[:-1]
    )


@functools.lru_cache(1024)
def _has_hidden_state(kind: type) -> bool:
    """Return whether instances have state besides their fields: those of C, and of the standard library."""
    home = str(type.__dict__["__module__"].__get__(kind)).partition(".")[0]
    if home in sys.stdlib_module_names:
        return home not in _DATA_MODULES
    # 1 << 9 is Py_TPFLAGS_HEAPTYPE: a class that Python code defines
    return not all(base.__flags__ & (1 << 9) or base is types.SimpleNamespace for base in kind.__mro__[:-1])


def find_fields(value: Any) -> dict[str, Any] | None:
    """Return the stored fields of an object that holds nothing but data; None for a resource."""
    kind: type = type(value)
    if type.__dict__["__module__"].__get__(kind) in _VALUE_MODULES:
        return {}
    if _is_resource_class(kind) or _has_hidden_state(kind):
        return None
    slots = [
        name
        for base in kind.__mro__
        for name, member in vars(base).items()
        if type(member) is types.MemberDescriptorType
    ]
    try:
        stored_fields = object.__getattribute__(value, "__dict__")
    except AttributeError:
        stored_fields = {}
    names = [name for name in stored_fields if type(_class_attribute(kind, name)) is not functools.cached_property]  # noqa: TID251
    fields = {name: _stored_field(value, kind, name) for name in (*names, *slots)}
    return {name: field for name, field in fields.items() if field is not _ABSENT}


# Looked up in sys.modules: a value of a type that was not imported cannot exist.
_STRING_METHODS = (
    ("datetime", "datetime", "isoformat"),
    ("datetime", "date", "isoformat"),
    ("datetime", "time", "isoformat"),
    ("datetime", "timedelta", "__str__"),
    ("decimal", "Decimal", "__str__"),
    ("fractions", "Fraction", "__str__"),
    ("uuid", "UUID", "__str__"),
    ("pathlib", "PurePath", "__str__"),
    ("re", "Pattern", "__repr__"),
)


def _format_standard(value: Any, bases: tuple[type, ...]) -> str | None:
    if any(base is complex for base in bases):
        return complex.__repr__(value)
    for module, name, method in _STRING_METHODS:
        known_type = getattr(sys.modules.get(module), name, None)
        if known_type is not None and known_type in bases:
            formatted = getattr(known_type, method)(value)
            return formatted if type(formatted) is str else None
    return None


_ARRAYS = frozenset(("numpy", "pandas", "torch", "polars", "tensorflow", "jax", "jaxlib", "cupy"))


def _describe_array(value: Any, bases: tuple[type, ...]) -> Any:
    """Return a scalar as its number, or an array or table as its shape. Only for libraries with safe attributes."""
    home = type.__dict__["__module__"].__get__(bases[0])
    if type(home) is not str or home.partition(".")[0] not in _ARRAYS:
        return None
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and shape:
        described = {"$type": _name(bases[0]), "shape": [int(size) for size in shape[:16]]}
        return described if dtype is None else described | {"dtype": str(dtype)[:40]}
    item = getattr(value, "item", None)
    scalar = item() if callable(item) else None
    return scalar if type(scalar) in _FLAT else None
