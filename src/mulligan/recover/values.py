"""Coercion of one value to another type, spelling or bound without changing its meaning.

Nothing is guessed: `020` is a name and not a number, a date stays as written, null is not a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from mulligan.privileged_arguments import words
from mulligan.records import How, Origin
from mulligan.recover.near import LONGEST, meant, plain, sharing

PARSED = 200_000
"""Characters of a text that are parsed as JSON."""
_ZEROS = frozenset("zip zipcode postal postcode pin ssn code serial isbn ean".split())
"""Words in a name that make leading zeros significant. A number has lost them."""


class Made(NamedTuple):
    """A coerced value and the strategy behind it."""

    after: Any
    how: How
    family: str
    origin: Origin = "call"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_empty(value: Any) -> bool:
    """Return whether a value is empty: null, an empty text, list or object, or text of quotes and brackets only."""
    if value is None or (isinstance(value, list | tuple | Mapping) and not value):
        return True
    return isinstance(value, str) and len(value) <= 20 and not value.strip(" \t\r\n'\"`=:,{}[]()")


def cast(value: Any, wanted: str, node: Mapping[str, Any], name: str, bold: bool = False) -> Iterator[Made]:
    """Yield the value in the expected type, most certain first."""
    if isinstance(value, str):
        yield from _from_text(value, wanted, node, bold)
    elif wanted == "integer" and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        yield Made(int(value), "cast", "cast")
    elif wanted == "string" and isinstance(value, bool):
        if bold:
            yield Made(str(value).lower(), "cast", "cast loose")
    elif wanted == "string" and isinstance(value, int) and abs(value) < 10**18:
        loses = any(word.casefold() in _ZEROS for word in words(name[:LONGEST]))
        if not loses or bold:
            yield Made(str(value), "cast", "cast name" if loses else "cast")
    elif wanted == "string" and isinstance(value, float) and bold and value == value:
        yield Made(repr(value), "cast", "cast loose")
    if isinstance(value, list) and len(value) == 1 and wanted != "array" and bold:
        yield Made(value[0], "cast", "unwrap")
    elif isinstance(value, Mapping) and len(value) == 1 and wanted not in ("array", "object"):
        yield from _inside(value, name, bold)
    if wanted == "array" and not isinstance(value, list | tuple) and value is not None:
        yield from _as_list(value, bold)
    elif wanted == "array" and isinstance(value, tuple):
        yield Made(list(value), "cast", "cast")


def _inside(value: Mapping[Any, Any], name: str, bold: bool) -> Iterator[Made]:
    """Yield the one member of an object if a scalar is expected: `{"value": 5}`, and as a guess `{"$lt": 5}`.

    A key equal to the argument's name or `value` carries no information. Any other may.
    """
    ((key, inner),) = value.items()
    if is_empty(inner) or isinstance(inner, list | tuple | Mapping):
        return
    if isinstance(key, str) and plain(key) in ("value", plain(name)):
        yield Made(inner, "cast", "unnest")
    elif bold:
        yield Made(inner, "cast", "unwrap")


def _from_text(value: str, wanted: str, node: Mapping[str, Any], bold: bool) -> Iterator[Made]:
    if len(value) > PARSED:
        return
    text = unquoted(value)
    if wanted == "integer" and re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text):  # "020" is a name, not a number
        yield Made(int(text), "cast", "cast")
    elif wanted == "integer" and bold and re.fullmatch(r"-?[1-9][0-9]{0,14}\.0{1,6}", text):
        yield Made(int(text.partition(".")[0]), "cast", "cast loose")
    elif wanted == "number" and re.fullmatch(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?", text):
        yield Made(float(text) if "." in text else int(text), "cast", "cast")
    elif wanted == "boolean" and text.casefold() in ("true", "false"):
        yield Made(text.casefold() == "true", "cast", "cast")
    elif wanted == "boolean" and bold and text.casefold() in ("yes", "no"):
        yield Made(text.casefold() == "yes", "cast", "cast loose")
    elif wanted in ("array", "object"):
        parsed = parse(value)
        if isinstance(parsed, list if wanted == "array" else dict):
            yield Made(parsed, "parse", "parse")
        elif isinstance(parsed, dict):
            yield Made([parsed], "parse", "wrap")


def _as_list(value: Any, bold: bool) -> Iterator[Made]:
    """Yield a single value as a list. A text with commas is ambiguous: it is split only if guessing is allowed."""
    if isinstance(value, str):
        text = value.strip()
        if not text or text[0] in "[{":
            return
        parts = [part.strip() for part in re.split(r"[,;\n]", text)]
        if len(parts) > 1:
            if bold and all(parts):
                yield Made(parts, "parse", "split")
            return
        yield Made([value], "wrap", "wrap")
    else:
        yield Made([value], "wrap", "wrap")


def unquoted(text: str) -> str:
    """Return a text without surrounding spaces and quotes."""
    bare = text.strip()
    while len(bare) >= 2 and bare[0] == bare[-1] and bare[0] in "\"'`":
        bare = bare[1:-1].strip()
    return bare


def parse(text: str) -> Any:
    """Parse a text as JSON or as a Python literal. Return None if it is neither."""
    bare = text.strip()
    if not bare or len(bare) > PARSED or bare[0] not in "[{\"'`":
        return None
    fenced = re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", bare, re.DOTALL)
    for tried in (fenced.group(1) if fenced else bare, _as_json(bare)):
        try:
            parsed = msgspec.json.decode(tried)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        if isinstance(parsed, str) and parsed != text:  # JSON inside a JSON string
            return parse(parsed)
        return parsed
    return None


def _as_json(text: str) -> str:
    """Convert a Python list or dictionary literal to JSON, if no apostrophe can be mistaken for a quote."""
    if '"' in text or re.search(r"\w'\w|\\(?![nt]|u[0-9a-fA-F]{4})", text):
        return text
    text = text.replace("'", '"')
    for python, word in (("True", "true"), ("False", "false"), ("None", "null")):
        text = re.sub(rf"(?<=[\[:,\s]){python}(?=\s*[\],}}])", word, text)
    return text


def member(value: Any, members: list[Any], bold: bool = False) -> Iterator[Made]:
    """Yield the enum member that a value spells differently."""
    texts = [each for each in members if isinstance(each, str)]
    if isinstance(value, str) and len(value) <= LONGEST:
        bare = unquoted(value)
        if bare != value and bare in texts:
            yield Made(bare, "trim", "trim")
            return
        match = meant(bare, texts)
        if match is not None:
            yield Made(match.name, "enum", f"enum {match.how}", "schema")
        elif bold:
            for name in sharing(bare, texts)[:3]:
                yield Made(name, "enum", "enum part", "schema")
        for each in members:
            if is_number(each) and re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,6})?", bare) and str(each) == bare:
                yield Made(each, "cast", "cast")
    elif isinstance(value, bool):
        same = [text for text in texts if text.casefold() == str(value).casefold()]
        if len(same) == 1:
            yield Made(same[0], "cast", "cast")
    elif is_number(value) and abs(value) < 10**18 and str(value) in texts:
        yield Made(str(value), "cast", "cast")


def within(value: Any, rule: str, limit: Any, node: Mapping[str, Any]) -> Made | None:
    """Move a number to the bound that it violates, as the same type of number."""
    if not is_number(value) or not is_number(limit) or value != value:
        return None
    types = node.get("type")
    is_whole = types == "integer" or isinstance(value, int)
    if rule in ("exclusiveMinimum", "exclusiveMaximum"):
        if not is_whole or limit != int(limit):
            return None  # no float is adjacent to an exclusive bound
        return Made(int(limit) + (1 if rule == "exclusiveMinimum" else -1), "clamp", "clamp", "schema")
    return Made(like(limit, value), "clamp", "clamp", "schema")


def like(bound: float, value: float) -> float:
    """Return a bound as the type of number used in the call, if it can be converted."""
    return int(bound) if isinstance(value, int) and isinstance(bound, float) and bound.is_integer() else bound
