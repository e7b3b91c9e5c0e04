"""Erasure of a text that redaction missed, from every field of a record."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from mulligan.core.failure import Kind, UnsupportedOperationError
from mulligan.core.records import Change, Record, encode
from mulligan.store import tool_schemas
from mulligan.store.base import ForgetRequest

ERASED_MARK = "[forgotten]"
"""Replaces an erased text."""
MIN_TEXT_CHARS = 4
"""A shorter text occurs by chance in unrelated values, which erasing it would damage."""

_FIXED_VALUE_FIELDS = frozenset(
    {"id", "run", "type", "outcome", "operation", "method", "end_reason", "remedy", "took_effect", "state"}
)
"""Fields with values that mulligan defines. A run whose id contains the text is deleted as a whole."""

T = TypeVar("T", bound=Record)


def validate_request(request: ForgetRequest) -> None:
    """Raise unless the request has exactly one criterion and its text is long enough."""
    if len(_find_criteria(request)) != 1:
        raise UnsupportedOperationError("Select exactly one of run, tool, session, text or learned records to delete.")
    if request.text is not None and len(request.text) < MIN_TEXT_CHARS:
        raise UnsupportedOperationError(
            f"Text {request.text!r} is too short to delete safely. Use at least {MIN_TEXT_CHARS} characters."
        )


def _find_criteria(request: ForgetRequest) -> list[str]:
    return [name for name in ("run", "tool", "session", "text", "learned") if getattr(request, name) is not None]


def get_criterion(request: ForgetRequest) -> str:
    """Return the name of the criterion of a valid request."""
    return _find_criteria(request)[0]


def erase_text(record: T, text: str) -> T:
    """Return the record with every occurrence of the text replaced by `ERASED_MARK`."""
    return _erase(record, text)  # type: ignore[no-any-return]


def _erase(value: Any, text: str) -> Any:
    if isinstance(value, Kind):
        return Kind.from_name(value.replace(text, ERASED_MARK)) if text in value else value
    if isinstance(value, str):
        return value.replace(text, ERASED_MARK)
    if isinstance(value, msgspec.Struct):
        replacements = {}
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            # Skip numbers in fields of mulligan. Numbers in user values are searched: one may be a card number.
            if inner is not None and not _is_fixed(value, name) and not isinstance(inner, int | float):
                replacements[name] = _erase(inner, text)
        return msgspec.structs.replace(value, **replacements)
    if isinstance(value, dict):
        return {_erase(key, text): _erase(inner, text) for key, inner in value.items()}
    if isinstance(value, list):
        return [_erase(inner, text) for inner in value]
    if isinstance(value, tuple):
        return tuple(_erase(inner, text) for inner in value)
    if isinstance(value, int | float) and not isinstance(value, bool) and text in str(value):
        return ERASED_MARK
    return value


def _is_fixed(record: msgspec.Struct, field: str) -> bool:
    """Return whether a field has one of the values that mulligan defines. The source of a recovery is free text."""
    return field in _FIXED_VALUE_FIELDS or (field == "source" and isinstance(record, Change))


def build_needles(text: str) -> tuple[bytes, ...]:
    """Return the byte sequences to search for: the text itself and its JSON encoding."""
    encoded = text.encode("utf-8", "backslashreplace")
    return tuple(dict.fromkeys((encoded, encode(encoded.decode())[1:-1])))


def may_contain(data: bytes, text: str) -> bool:
    """Return whether JSON data may contain the text. A prefilter: `erase_text` checks value by value."""
    return any(needle in data for needle in build_needles(text))


def should_forget_entry(kind: str, key: str, value: bytes, request: ForgetRequest) -> bool:
    """Return whether a key-value entry must be deleted for this request."""
    if request.session is not None:
        return kind in ("session", "hook") and key == request.session
    if request.tool is not None:
        return kind == tool_schemas.SCHEMA_KIND and key == request.tool
    return request.text is not None and (request.text in key or may_contain(value, request.text))
