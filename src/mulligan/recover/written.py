"""JSON as models write it: read, and mended where there is only one way to read it.

Mending is our own and not a package's: those make something of everything, and a guess at half an answer is worse than
to ask again. Here only what surrounds JSON, and what has exactly one reading, is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

LONGEST = 1_000_000
"""Characters that are mended; what is longer is only read."""
DEEPEST = 60


class Written(NamedTuple):
    """What a model's arguments say: an object, mended or not, or why they are none."""

    value: dict[str, Any] | None
    mended: str = ""
    """What was wrong with how they were written."""
    why: str = ""


def read(arguments: Any) -> Written:
    """Arguments of a call as a dictionary, however they came."""
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
        return Written({})  # how some models say that there are none
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = None
    if isinstance(value, dict):
        return Written(value)
    found = _meaning(text, is_object=True)
    return Written(None, why=_fault(text)) if found is None else Written(found.value, mended=found.how)


def mend(text: str, *, is_object: bool = False) -> str | None:
    """The JSON that a text can only mean, or None."""
    if is_object and not text.strip():
        return "{}"  # what several models send for a call without arguments
    found = _meaning(text, is_object=is_object)
    return None if found is None else found.text


class _Reading(NamedTuple):
    text: str
    value: Any
    how: str
    """What was wrong with it."""


def _meaning(text: str, *, is_object: bool) -> _Reading | None:
    """The one reading of a text; None where there is none, or more than one."""
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
    """The same text, with one or more of the usual slips put right."""
    inner, how = text.strip().lstrip("\ufeff").strip(), "they were not strict JSON"
    if inner[:1] not in ("{", "[", '"') and (fenced := _fenced(inner)) is not None:
        inner, how = fenced, "they stood in a code block"
    elif inner[:1] not in ("{", "[", '"') or inner[-1:] not in ("}", "]", '"'):
        # Words around one value; with two values nobody knows which is meant.
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
    """What stands in the one code block of a text."""
    if text.startswith(_FENCE) and text.endswith(_FENCE) and len(text) > 2 * len(_FENCE):
        inside = text[len(_FENCE) : -len(_FENCE)]
    elif len(parts := text.split(_FENCE, 3)) == 3:
        inside = parts[1]
    else:
        return None
    return _LANGUAGE.sub("", inside.strip(), count=1) if _LANGUAGE.match(inside.strip()) else inside.strip()


_REST = re.compile(r"(?:\s|[}\])>;,`]|</?[a-zA-Z_|]{1,30}>|<\|[^|>]{0,40}\|>)+")


def _alone(text: str) -> str | None:
    """The object at the beginning, where only closing marks and tags of a template follow."""
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
    """Trailing commas, single quotes, Python's constants and bare line breaks in strings; None if in doubt."""
    made: list[str] = []
    at = 0
    for token in _TOKENS.finditer(text):
        made.append(text[at : token.start()])
        at = token.end()
        sort = token.lastgroup
        if sort == "open":
            return None  # it never ends: what was meant to follow is not known
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
    """How deep brackets are nested, at most; those inside texts are counted too, which errs on the safe side."""
    deepest = depth = 0
    for found in re.finditer(r"[\[{}\]]", text):
        depth += 1 if found[0] in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _fault(text: str) -> str:
    """What is wrong, and where: a model that is told can write it again."""
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
