"""Erasure of a text that redaction missed, from every field of a record."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from mulligan.failure import Kind, Unanswerable
from mulligan.records import Record, encode
from mulligan.remember import schemas
from mulligan.remember.store import Forget

FORGOTTEN = "[forgotten]"
"""Replaces an erased text."""
SHORTEST = 4
"""A shorter text occurs by chance in unrelated values, which erasing it would damage."""

_CLOSED = frozenset({"id", "run", "type", "outcome", "how", "from_", "end", "remedy", "ran", "state"})
"""Fields with values that mulligan defines. A run whose id contains the text is deleted as a whole."""

T = TypeVar("T", bound=Record)


def check(what: Forget) -> None:
    """Raise unless the request has exactly one criterion and its text is long enough."""
    if len(_given(what)) != 1:
        raise Unanswerable("forgetting takes one of: a run, a tool, a session, a text, what was learned.")
    if what.text is not None and len(what.text) < SHORTEST:
        raise Unanswerable(f"a text to forget has at least {SHORTEST} characters: {what.text!r} stands everywhere.")


def _given(what: Forget) -> list[str]:
    return [name for name in ("run", "tool", "session", "text", "learned") if getattr(what, name) is not None]


def sort(what: Forget) -> str:
    """Return the name of the criterion of a valid request."""
    return _given(what)[0]


def without(record: T, text: str) -> T:
    """Return the record with every occurrence of the text replaced by `ERASED_MARK`."""
    return _cut(record, text)  # type: ignore[no-any-return]


def _cut(value: Any, text: str) -> Any:
    if isinstance(value, Kind):
        return Kind.named(value.replace(text, FORGOTTEN)) if text in value else value
    if isinstance(value, str):
        return value.replace(text, FORGOTTEN)
    if isinstance(value, msgspec.Struct):
        changed = {}
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            # Skip numbers in fields of mulligan. Numbers in user values are searched: one may be a card number.
            if inner is not None and name not in _CLOSED and not isinstance(inner, int | float):
                changed[name] = _cut(inner, text)
        return msgspec.structs.replace(value, **changed)
    if isinstance(value, dict):
        return {_cut(key, text): _cut(inner, text) for key, inner in value.items()}
    if isinstance(value, list):
        return [_cut(inner, text) for inner in value]
    if isinstance(value, tuple):
        return tuple(_cut(inner, text) for inner in value)
    if isinstance(value, int | float) and not isinstance(value, bool) and text in str(value):
        return FORGOTTEN
    return value


def needles(text: str) -> tuple[bytes, ...]:
    """Return the byte sequences to search for: the text itself and its JSON encoding."""
    plain = text.encode("utf-8", "backslashreplace")
    return tuple(dict.fromkeys((plain, encode(plain.decode())[1:-1])))


def holds(data: bytes, text: str) -> bool:
    """Return whether JSON data may contain the text. A prefilter: `erase_text` checks value by value."""
    return any(needle in data for needle in needles(text))


def is_on_shelf(kind: str, key: str, value: bytes, what: Forget) -> bool:
    """Return whether a key-value entry must be deleted for this request."""
    if what.session is not None:
        return kind in ("session", "hook") and key == what.session
    if what.tool is not None:
        return kind == schemas.KIND and key == what.tool
    return what.text is not None and (what.text in key or holds(value, what.text))
