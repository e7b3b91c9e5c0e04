"""Coercion of one value to another type, spelling or bound without changing its meaning.

Nothing is guessed: `020` is a name and not a number, a date stays as written, null is not a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from mulligan.core.privileged_arguments import split_words
from mulligan.core.records import ChangeOperation, ValueSource
from mulligan.recover.names import MAX_COMPARED_CHARS, match_by_words, match_name, normalize_name

MAX_PARSED_CHARS = 200_000
"""Characters of a text that are parsed as JSON."""
_LEADING_ZERO_WORDS = frozenset("zip zipcode postal postcode pin ssn code serial isbn ean".split())
"""Words in a name that make leading zeros significant. A number has lost them."""


class CoercedValue(NamedTuple):
    """A coerced value and the strategy behind it."""

    after: Any
    operation: ChangeOperation
    strategy: str
    source: ValueSource = "call"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_empty(value: Any) -> bool:
    """Return whether a value is empty: null, an empty text, list or object, or text of quotes and brackets only."""
    if value is None or (isinstance(value, list | tuple | Mapping) and not value):
        return True
    return isinstance(value, str) and len(value) <= 20 and not value.strip(" \t\r\n'\"`=:,{}[]()")


def coerce_value(
    value: Any, expected_type: str, node: Mapping[str, Any], name: str, can_guess: bool = False
) -> Iterator[CoercedValue]:
    """Yield the value in the expected type, most certain first."""
    if isinstance(value, str):
        yield from _coerce_text(value, expected_type, node, can_guess)
    elif expected_type == "integer" and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        yield CoercedValue(int(value), "cast", "cast")
    elif expected_type == "string" and isinstance(value, bool):
        if can_guess:
            yield CoercedValue(str(value).lower(), "cast", "cast loose")
    elif expected_type == "string" and isinstance(value, int) and abs(value) < 10**18:
        loses_zeros = any(word.casefold() in _LEADING_ZERO_WORDS for word in split_words(name[:MAX_COMPARED_CHARS]))
        if not loses_zeros or can_guess:
            yield CoercedValue(str(value), "cast", "cast name" if loses_zeros else "cast")
    elif expected_type == "string" and isinstance(value, float) and can_guess and value == value:
        yield CoercedValue(repr(value), "cast", "cast loose")
    if isinstance(value, list) and len(value) == 1 and expected_type != "array" and can_guess:
        yield CoercedValue(value[0], "cast", "unwrap")
    elif isinstance(value, Mapping) and len(value) == 1 and expected_type not in ("array", "object"):
        yield from _unwrap_single(value, name, can_guess)
    if expected_type == "array" and not isinstance(value, list | tuple) and value is not None:
        yield from _wrap_in_list(value, can_guess)
    elif expected_type == "array" and isinstance(value, tuple):
        yield CoercedValue(list(value), "cast", "cast")


def _unwrap_single(value: Mapping[Any, Any], name: str, can_guess: bool) -> Iterator[CoercedValue]:
    """Yield the one member of an object if a scalar is expected: `{"value": 5}`, and as a guess `{"$lt": 5}`.

    A key equal to the argument's name or `value` carries no information. Any other may.
    """
    ((key, inner),) = value.items()
    if is_empty(inner) or isinstance(inner, list | tuple | Mapping):
        return
    if isinstance(key, str) and normalize_name(key) in ("value", normalize_name(name)):
        yield CoercedValue(inner, "cast", "unnest")
    elif can_guess:
        yield CoercedValue(inner, "cast", "unwrap")


def _coerce_text(value: str, expected_type: str, node: Mapping[str, Any], can_guess: bool) -> Iterator[CoercedValue]:
    if len(value) > MAX_PARSED_CHARS:
        return
    text = strip_quotes(value)
    if expected_type == "integer" and re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text):  # "020" is a name, not a number
        yield CoercedValue(int(text), "cast", "cast")
    elif expected_type == "integer" and can_guess and re.fullmatch(r"-?[1-9][0-9]{0,14}\.0{1,6}", text):
        yield CoercedValue(int(text.partition(".")[0]), "cast", "cast loose")
    elif expected_type == "number" and re.fullmatch(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?", text):
        yield CoercedValue(float(text) if "." in text else int(text), "cast", "cast")
    elif expected_type == "boolean" and text.casefold() in ("true", "false"):
        yield CoercedValue(text.casefold() == "true", "cast", "cast")
    elif expected_type == "boolean" and can_guess and text.casefold() in ("yes", "no"):
        yield CoercedValue(text.casefold() == "yes", "cast", "cast loose")
    elif expected_type in ("array", "object"):
        parsed = parse_json_text(value)
        if isinstance(parsed, list if expected_type == "array" else dict):
            yield CoercedValue(parsed, "parse", "parse")
        elif isinstance(parsed, dict):
            yield CoercedValue([parsed], "parse", "wrap")


def _wrap_in_list(value: Any, can_guess: bool) -> Iterator[CoercedValue]:
    """Yield a single value as a list. A text with commas is ambiguous: it is split only if guessing is allowed."""
    if isinstance(value, str):
        text = value.strip()
        if not text or text[0] in "[{":
            return
        parts = [part.strip() for part in re.split(r"[,;\n]", text)]
        if len(parts) > 1:
            if can_guess and all(parts):
                yield CoercedValue(parts, "parse", "split")
            return
        yield CoercedValue([value], "wrap", "wrap")
    else:
        yield CoercedValue([value], "wrap", "wrap")


def strip_quotes(text: str) -> str:
    """Return a text without surrounding spaces and quotes."""
    bare = text.strip()
    while len(bare) >= 2 and bare[0] == bare[-1] and bare[0] in "\"'`":
        bare = bare[1:-1].strip()
    return bare


def parse_json_text(text: str) -> Any:
    """Parse a text as JSON or as a Python literal. Return None if it is neither."""
    bare = text.strip()
    if not bare or len(bare) > MAX_PARSED_CHARS or bare[0] not in "[{\"'`":
        return None
    fenced = re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", bare, re.DOTALL)
    for candidate in (fenced.group(1) if fenced else bare, _python_to_json(bare)):
        try:
            parsed = msgspec.json.decode(candidate)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        if isinstance(parsed, str) and parsed != text:  # JSON inside a JSON string
            return parse_json_text(parsed)
        return parsed
    return None


def _python_to_json(text: str) -> str:
    """Convert a Python list or dictionary literal to JSON, if no apostrophe can be mistaken for a quote."""
    if '"' in text or re.search(r"\w'\w|\\(?![nt]|u[0-9a-fA-F]{4})", text):
        return text
    text = text.replace("'", '"')
    for python, word in (("True", "true"), ("False", "false"), ("None", "null")):
        text = re.sub(rf"(?<=[\[:,\s]){python}(?=\s*[\],}}])", word, text)
    return text


def match_enum(value: Any, members: list[Any], can_guess: bool = False) -> Iterator[CoercedValue]:
    """Yield the enum member that a value spells differently."""
    texts = [member for member in members if isinstance(member, str)]
    if isinstance(value, str) and len(value) <= MAX_COMPARED_CHARS:
        bare = strip_quotes(value)
        if bare != value and bare in texts:
            yield CoercedValue(bare, "trim", "trim")
            return
        match = match_name(bare, texts)
        if match is not None:
            yield CoercedValue(match.name, "enum", f"enum {match.method}", "schema")
        elif can_guess:
            for name in match_by_words(bare, texts)[:3]:
                yield CoercedValue(name, "enum", "enum part", "schema")
        for enum_member in members:
            if (
                is_number(enum_member)
                and re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,6})?", bare)
                and str(enum_member) == bare
            ):
                yield CoercedValue(enum_member, "cast", "cast")
    elif isinstance(value, bool):
        same = [text for text in texts if text.casefold() == str(value).casefold()]
        if len(same) == 1:
            yield CoercedValue(same[0], "cast", "cast")
    elif is_number(value) and abs(value) < 10**18 and str(value) in texts:
        yield CoercedValue(str(value), "cast", "cast")


def clamp(value: Any, rule: str, limit: Any, node: Mapping[str, Any]) -> CoercedValue | None:
    """Move a number to the bound that it violates, as the same type of number."""
    if not is_number(value) or not is_number(limit) or value != value:
        return None
    types = node.get("type")
    is_integer = types == "integer" or isinstance(value, int)
    if rule in ("exclusiveMinimum", "exclusiveMaximum"):
        if not is_integer or limit != int(limit):
            return None  # no float is adjacent to an exclusive bound
        return CoercedValue(int(limit) + (1 if rule == "exclusiveMinimum" else -1), "clamp", "clamp", "schema")
    return CoercedValue(match_number_type(limit, value), "clamp", "clamp", "schema")


def match_number_type(bound: float, value: float) -> float:
    """Return a bound as the type of number used in the call, if it can be converted."""
    return int(bound) if isinstance(value, int) and isinstance(bound, float) and bound.is_integer() else bound
