"""Cheap copies of argument values and results, which stay as they are while the program continues."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from mulligan.redaction import to_plain_data

IMMUTABLE_TYPES = frozenset({str, int, float, bool, type(None)})
"""Types whose values need no copy."""
MAX_COPIED_ITEMS = 200
"""Collection members, and thousands of characters, up to which a value is copied directly."""
MAX_INLINE_CHARS = 65_536
"""Characters of a text, or bytes of a value, up to which it is retained directly."""
_encode_json = msgspec.json.Encoder().encode
_TEXT_TYPES = frozenset({str})


def snapshot_value(value: Any, states: list[Any] | None = None) -> Any:
    """Return a cheap snapshot of a value. `restore_value` reverses it.

    What the snapshot leaves out of plain objects is added to `states`.
    """
    kind = type(value)
    if kind in IMMUTABLE_TYPES:
        return value
    if kind is dict and len(value) <= MAX_COPIED_ITEMS:
        members = value.values()
    elif (kind is list or kind is tuple) and len(value) <= MAX_COPIED_ITEMS:
        members = value
    else:
        return to_plain_data(value, states=states)
    for member in members:
        if type(member) not in IMMUTABLE_TYPES or (type(member) is str and len(member) > MAX_INLINE_CHARS):
            break
    else:
        return value.copy() if kind is dict else list(value)
    if not _is_small(value):
        return to_plain_data(value, states=states)
    try:
        return msgspec.Raw(_encode_json(value))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return to_plain_data(value, states=states)  # not valid JSON: replaced by a description


def _is_small(value: Any) -> bool:
    """Return whether a value is small and consists of JSON types only, so that encoding it is cheap.

    Shared members count each time, so that cyclic lists end too.
    """
    remaining = MAX_COPIED_ITEMS * 10
    pending = [value]
    while pending:
        container = pending.pop()
        remaining -= len(container)
        if remaining < 0 or (type(container) is dict and not _TEXT_TYPES.issuperset(map(type, container))):
            return False
        for member in container.values() if type(container) is dict else container:
            kind = type(member)
            if kind is str:
                if len(member) > MAX_COPIED_ITEMS * 1000:
                    return False
            elif kind is dict or kind is list or kind is tuple:
                pending.append(member)
            elif kind is int:
                if not -(2**63) <= member < 2**63:
                    return False
            elif kind not in IMMUTABLE_TYPES or (kind is float and not math.isfinite(member)):
                return False
    return True


def restore_value(value: Any) -> Any:
    return msgspec.json.decode(value) if type(value) is msgspec.Raw else value
