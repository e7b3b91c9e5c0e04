"""Parsing of JSON written by models, with repair if there is exactly one reading.

Repair libraries accept any text, and a guess at half an answer is worse than a new attempt. This module removes only
text around JSON and repairs only what has exactly one reading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

LONGEST = 1_000_000
"""Longer texts are parsed but not repaired."""
DEEPEST = 60


class Written(NamedTuple):
    """A model's arguments as an object, or the error why they are none."""

    value: dict[str, Any] | None
    mended: str = ""
    """What was wrong with the text."""
    why: str = ""


def read(arguments: Any) -> Written:
    """Parse the arguments of a call in any form into a dictionary."""
    if isinstance(arguments, Mapping):
        return Written(dict(arguments))
    if arguments is None:
        return Written({})
    if not isinstance(arguments, str | bytes | bytearray):
        return Written(None, why="The arguments are not a JSON object.")
    try:
        text = arguments if isinstance(arguments, str) else bytes(arguments).decode()
    except UnicodeDecodeError:
        return Written(None, why="The arguments are not a JSON object: they are not text.")
    if text.strip() in ("", "null"):
        return Written({})  # some models send this for no arguments
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = None
    if isinstance(value, dict):
        return Written(value)
    found = _meaning(text, is_object=True)
    return Written(None, why=_fault(text)) if found is None else Written(found.value, mended=found.how)


def mend(text: str, *, is_object: bool = False) -> str | None:
    """Return the only JSON that a text can represent, or None."""
    if is_object and not text.strip():
        return "{}"  # several models send this for a call without arguments
    found = _meaning(text, is_object=is_object)
    return None if found is None else found.text


class _Reading(NamedTuple):
    text: str
    value: Any
    how: str
    """What was wrong with the text."""


def _meaning(text: str, *, is_object: bool) -> _Reading | None:
    """Return the only reading of a text, or None if there is none or more than one."""
    if len(text) > LONGEST or _depth(text) > DEEPEST:
        return None
    found: dict[str, _Reading] = {}
    for how, candidate in _candidates(text):
        try:
            value = _strict.decode(candidate)
        except (ValueError, RecursionError):
            continue
        if is_object and isinstance(value, str) and value.lstrip()[:1] == "{":
            inner = _meaning(value, is_object=True)
            if inner is None:
                continue
            how, candidate, value = "they were written as JSON twice", inner.text, inner.value
        if isinstance(value, dict) or (isinstance(value, list) and not is_object):
            found.setdefault(json.dumps(value, sort_keys=True), _Reading(candidate, value, how))
    return next(iter(found.values())) if len(found) == 1 else None


def _candidates(text: str) -> Iterator[tuple[str, str]]:
    """Yield the text with common defects removed."""
    inner, how = text.strip().lstrip("\ufeff").strip(), "they were not strict JSON"
    if inner[:1] not in ("{", "[", '"') and (fenced := _fenced(inner)) is not None:
        inner, how = fenced, "they stood in a code block"
    elif inner[:1] not in ("{", "[", '"') or inner[-1:] not in ("}", "]", '"'):
        # Text around one value. With two values the reading is ambiguous.
        start = min((place for place in (inner.find("{"), inner.find("[")) if place >= 0), default=-1)
        end = max(inner.rfind("}"), inner.rfind("]"))
        if start < 0 or end <= start:
            return
        inner, how = inner[start : end + 1], "there was something around them"
    yield how, inner
    if (alone := _alone(inner)) is not None:
        yield "something followed them", alone
    if (repaired := _slips(inner)) is not None and repaired != inner:
        yield how, repaired


_FENCE = "`" * 3
_LANGUAGE = re.compile(r"[A-Za-z]{1,10}\s*(?=[{\[\"])")


def _fenced(text: str) -> str | None:
    """Return the content of the only code block in a text, or None."""
    if text.startswith(_FENCE) and text.endswith(_FENCE) and len(text) > 2 * len(_FENCE):
        inside = text[len(_FENCE) : -len(_FENCE)]
    elif len(parts := text.split(_FENCE, 3)) == 3:
        inside = parts[1]
    else:
        return None
    return _LANGUAGE.sub("", inside.strip(), count=1) if _LANGUAGE.match(inside.strip()) else inside.strip()


_REST = re.compile(r"(?:\s|[}\])>;,`]|</?[a-zA-Z_|]{1,30}>|<\|[^|>]{0,40}\|>)+")


def _alone(text: str) -> str | None:
    """Return the object at the beginning, if only closing marks and template tags follow."""
    if not text.startswith("{"):
        return None
    try:
        _, end = _strict.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return text[:end] if _REST.fullmatch(text, end) else None


_TOKENS = re.compile(
    r"""
    "(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"
    | '(?P<single>[^'\\]*(?:\\.[^'\\]*)*)'
    | (?P<comma>,)(?=\s*[}\]])
    | (?P<word>[^\W\d_]\w*)
    | (?P<open>["'])
    """,
    re.DOTALL | re.VERBOSE,
)
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_INSIDE = re.compile(r"""\\.|["\x00-\x1f]""", re.DOTALL)


def _slips(text: str) -> str | None:
    """Repair trailing commas, single quotes, Python constants and raw line breaks in strings.

    Return None if in doubt.
    """
    made: list[str] = []
    at = 0
    for token in _TOKENS.finditer(text):
        made.append(text[at : token.start()])
        at = token.end()
        sort = token.lastgroup
        if sort == "open":
            return None  # unterminated: the continuation is unknown
        if sort == "word":
            made.append(_PYTHON.get(token[0], token[0]))
        elif sort != "comma":
            made.append(f'"{_INSIDE.sub(_escaped, token[0][1:-1])}"')
    made.append(text[at:])
    return "".join(made)


def _escaped(found: re.Match[str]) -> str:
    sign = found[0]
    if len(sign) == 2:
        return "'" if sign == "\\'" else sign
    return '\\"' if sign == '"' else f"\\u{ord(sign):04x}"


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_strict = json.JSONDecoder(parse_constant=_no_number)


def _depth(text: str) -> int:
    """Return the maximum nesting of brackets. Brackets inside strings count too, which is a safe overestimate."""
    deepest = depth = 0
    for found in re.finditer(r"[\[{}\]]", text):
        depth += 1 if found[0] in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _fault(text: str) -> str:
    """Describe the error and its position, so that the model can correct it."""
    if _depth(text) > DEEPEST:
        return "The arguments are not a JSON object: they are nested too deeply."
    try:
        value = _strict.decode(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated"):
            return "The arguments are not a JSON object: the text ends in the middle. Write it again, and shorter."
        return f"The arguments are not a JSON object: {error.msg.lower()} at character {error.pos + 1}."
    except (ValueError, RecursionError):
        return "The arguments are not a JSON object: they hold what JSON cannot."
    names = {list: "a list", str: "a text", bool: "true or false"}
    return f"The arguments are not a JSON object, but {names.get(type(value), 'a number')}."
