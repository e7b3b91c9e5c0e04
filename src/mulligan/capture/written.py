"""Arguments as models write them: JSON, and mended where nothing has to be guessed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

LONGEST = 1_000_000
"""Characters that are mended; what is longer is only read."""
PYTHON = 20_000
"""Characters that are read as Python writes them."""
DEEPEST = 60


@dataclass(frozen=True, slots=True)
class Written:
    """What a model's arguments say: an object, mended or not, or why they are none."""

    value: dict[str, Any] | None
    mended: str = ""
    """What was wrong with how they were written."""
    why: str = ""


def read(arguments: Any) -> Written:
    """Arguments as a dictionary, however they came."""
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
    if not text.strip():
        return Written({})  # how some models say that there are none
    value = _decoded(text)
    if isinstance(value, dict):
        return Written(value)
    if value is None and text.strip() == "null":
        return Written({})
    if len(text) <= LONGEST:
        for what, attempt in _ATTEMPTS:
            mended = attempt(text)
            if isinstance(mended, dict):
                return Written(mended, mended=what)
    return Written(None, why=_fault(text))


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


_FENCE = re.compile(r"^\s*`{3}[a-zA-Z]{0,10}\s*\n?(.*?)\n?\s*`{3}\s*$", re.DOTALL)


def _unfenced(text: str) -> Any:
    fenced = _FENCE.match(text.lstrip("\ufeff"))
    return _decoded(fenced[1]) if fenced else _decoded(text.lstrip("\ufeff"))


def _twice(text: str) -> Any:
    inner = _decoded(text)
    return _decoded(inner) if isinstance(inner, str) else None


_REST = re.compile(r"(?:\s|[}\])>;,`]|</?[a-zA-Z_|]{1,30}>|<\|[^|>]{0,40}\|>)*")


def _alone(text: str) -> Any:
    """The object at the beginning, where only closing marks and tags of a template follow."""
    start = text.lstrip()
    if not start.startswith("{") or _depth(start) > DEEPEST:
        return None
    try:
        value, end = _strict.raw_decode(start)
    except (ValueError, RecursionError):
        return None
    return value if end < len(start) and _REST.fullmatch(start[end:]) else None


def _relaxed(text: str) -> Any:
    """With line breaks inside texts, and with a comma before a closing bracket."""
    if _depth(text) > DEEPEST:
        return None
    try:
        return _loose.decode(_without_last_commas(text.strip()))
    except (ValueError, RecursionError):
        return None


def _python(text: str) -> Any:
    """As Python writes a dictionary: other quotes, other names for true, false and null."""
    if len(text) > PYTHON or _depth(text) > DEEPEST or not text.strip().startswith("{"):
        return None
    import ast  # few models write so

    try:
        value = ast.literal_eval(text.strip())
        return msgspec.json.decode(msgspec.json.encode(value)) if _is_json(value) else None
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, msgspec.MsgspecError):
        return None


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_json(each) for name, each in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and value == value)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_strict = json.JSONDecoder(parse_constant=_no_number)
_loose = json.JSONDecoder(parse_constant=_no_number, strict=False)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)


def _without_last_commas(text: str) -> str:
    return _STRING.sub(lambda found: "" if found[0] == "," else found[0], text)


def _depth(text: str) -> int:
    """How deep brackets are nested, at most; those inside texts are counted too, which errs on the safe side."""
    deepest = depth = 0
    for character in re.findall(r"[\[{}\]]", text):
        depth += 1 if character in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


_ATTEMPTS = (
    ("they stood in a code block", _unfenced),
    ("they were written as JSON twice", _twice),
    ("something followed them", _alone),
    ("they were not strict JSON", _relaxed),
    ("they were written as Python", _python),
)


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
