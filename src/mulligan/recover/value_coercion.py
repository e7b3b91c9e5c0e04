"""Coercion of one value to another type, spelling or bound without changing its meaning.

`020` is a name and not a number, a date stays as written, null is not a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mulligan.core.privileged_arguments import split_words
from mulligan.core.records import ChangeOperation, ValueSource
from mulligan.recover.model_output import find_reading
from mulligan.recover.names import (
    match_by_words,
    match_name,
    stem_words,
)
from mulligan.recover.schema import Path
from mulligan.recover.spelling import (
    MAX_COMPARED_CHARS,
    edit_distance,
    normalize_name,
    normalize_spelling,
    strip_quotes,
)
from mulligan.recover.word_meaning import (
    are_opposites,
    is_same_code,
    is_same_word,
    is_unit,
)

MAX_PARSED_CHARS = 200_000
"""Characters of a text that are parsed as JSON."""
_LEADING_ZERO_WORDS = frozenset(
    "zip zipcode postal postcode pin ssn code serial isbn ean upc barcode phone fax extension color colour mode chmod "
    "umask permission permissions octal hex".split()
)
"""Words in a name that make leading zeros or the base significant. A number has lost them."""
_DOCUMENT_WORDS = frozenset("content contents body text json data payload document message".split())
"""Words in a name of a text that may be a whole document, such as the content of a file."""


_WILDCARDS = frozenset("all any none every everyone everything each both null default".split())
"""Words that stand for a list and are no member of it."""


class Candidate(NamedTuple):
    """A candidate value for one argument, and the strategy behind it."""

    after: Any
    operation: ChangeOperation
    strategy: str
    source: ValueSource = "call"
    path: Path = ()
    evidence: str = ""


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_empty(value: Any) -> bool:
    """Return whether a value is empty: null, an empty text, list or object, or text of quotes and brackets only."""
    if value is None or (isinstance(value, list | tuple | Mapping) and not value):
        return True
    return isinstance(value, str) and len(value) <= 20 and not value.strip(" \t\r\n'\"`=:,{}[]()")


def coerce_value(value: Any, expected_type: str, name: str, can_guess: bool = False) -> Iterator[Candidate]:
    """Yield the value in the expected type, most certain first."""
    if isinstance(value, str):
        yield from _coerce_text(value, expected_type, can_guess)
    elif expected_type == "integer" and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        yield Candidate(int(value), "cast", "cast")
    elif expected_type == "string" and isinstance(value, bool):
        if can_guess:
            yield Candidate(str(value).lower(), "cast", "cast loose")
    elif expected_type == "string" and isinstance(value, int) and abs(value) < 10**18:
        loses_zeros = _has_word(name, _LEADING_ZERO_WORDS)
        if not loses_zeros or can_guess:
            yield Candidate(str(value), "cast", "cast name" if loses_zeros else "cast")
    elif expected_type == "string" and isinstance(value, float) and can_guess and value == value:
        yield Candidate(repr(value), "cast", "cast loose")
    if isinstance(value, list) and len(value) == 1 and expected_type != "array":
        if isinstance(value[0], Mapping) == (expected_type == "object") and not isinstance(value[0], list):
            yield Candidate(value[0], "cast", "unwrap list")
    elif isinstance(value, Mapping) and len(value) == 1 and expected_type not in ("array", "object"):
        yield from _unwrap_single(value, expected_type, name, can_guess)
    if expected_type == "array":
        yield from _wrap_in_list(value, can_guess)


def _has_word(name: str, words: frozenset[str]) -> bool:
    return any(word.casefold() in words for word in split_words(name[:MAX_COMPARED_CHARS]))


def _unwrap_single(value: Mapping[Any, Any], expected_type: str, name: str, can_guess: bool) -> Iterator[Candidate]:
    """Yield the one member of an object if a scalar is expected: `{"value": 5}`.

    A key equal to the argument's name or `value` carries no information. Any other may, and in a document `value` too:
    the content of a file is the JSON text of the object, not its member.
    """
    ((key, inner),) = value.items()
    key_name = normalize_name(key) if isinstance(key, str) else ""
    is_same_name = key_name == normalize_name(name)
    if expected_type == "string" and not is_same_name and _has_word(name, _DOCUMENT_WORDS):
        if can_guess:
            yield Candidate(json.dumps(value, ensure_ascii=False), "cast", "cast loose")
    elif is_empty(inner) or isinstance(inner, list | tuple | Mapping):
        return
    elif is_same_name or key_name == "value":
        yield Candidate(inner, "cast", "unnest")
    elif can_guess and (key_name in ("text", "content") or str(key).startswith("$")):  # `{"$lte": 5}`: an operator
        yield Candidate(inner, "cast", "unwrap")


def _coerce_text(value: str, expected_type: str, can_guess: bool) -> Iterator[Candidate]:
    if len(value) > MAX_PARSED_CHARS:
        return
    text = strip_quotes(value)
    if expected_type == "integer" and re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text):  # "020" is a name, not a number
        yield Candidate(int(text), "cast", "cast")
    elif expected_type == "integer" and can_guess and re.fullmatch(r"-?[1-9][0-9]{0,14}\.0{1,6}", text):
        yield Candidate(int(text.partition(".")[0]), "cast", "cast loose")
    elif expected_type == "number" and re.fullmatch(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?", text):
        yield Candidate(float(text) if "." in text else int(text), "cast", "cast")
    elif expected_type == "boolean" and text.casefold() in ("true", "false"):
        yield Candidate(text.casefold() == "true", "cast", "cast")
    elif expected_type == "boolean" and can_guess and text.casefold() in ("yes", "no"):
        yield Candidate(text.casefold() == "yes", "cast", "cast loose")
    elif expected_type in ("array", "object"):
        parsed = parse_json_text(value)
        if isinstance(parsed, list if expected_type == "array" else dict):
            yield Candidate(parsed, "parse", "parse")
        elif isinstance(parsed, dict):
            yield Candidate([parsed], "parse", "wrap")


def _wrap_in_list(value: Any, can_guess: bool) -> Iterator[Candidate]:
    """Yield a single value as a list. A text with commas is ambiguous: it is split only if guessing is allowed."""
    if isinstance(value, tuple):
        yield Candidate(list(value), "cast", "cast")
    elif isinstance(value, str):
        parts = [part.strip() for part in re.split(r"[,;\n]", value.strip())]
        if (
            len(parts) == 1
            and value.strip()
            and value.strip()[0] not in "[{*"
            and parts[0].casefold() not in _WILDCARDS
        ):
            yield Candidate([value], "wrap", "wrap")
        elif can_guess and len(parts) > 1 and all(parts) and parts[0][0] not in "[{":
            yield Candidate(parts, "parse", "split")
    elif value is not None and not isinstance(value, list):
        yield Candidate([value], "wrap", "wrap")


def parse_json_text(text: str) -> Any:
    """Parse a text as a JSON or Python list or object. Return None if it is neither."""
    bare = text.strip()
    if bare[:1] in ("'", "`"):
        bare = re.sub(r"^json\s+", "", strip_quotes(bare))
    if len(bare) > MAX_PARSED_CHARS or bare[:1] + bare[-1:] not in ("[]", "{}", '""'):
        return None
    reading = find_reading(bare)
    return None if reading is None else reading.value


def match_enum(value: Any, members: list[Any], can_guess: bool = False) -> Iterator[Candidate]:
    """Yield the enum member that a value spells differently."""
    texts = [member for member in members if isinstance(member, str)]
    if isinstance(value, str) and len(value) <= MAX_COMPARED_CHARS:
        bare = strip_quotes(value)
        if bare != value and bare in texts:
            yield Candidate(bare, "trim", "trim")
            return
        same = [text for text in texts if normalize_spelling(text) == normalize_spelling(bare)]
        match = None if same else match_name(bare, texts)
        if len(same) == 1 and is_same_word(bare, same[0]):
            yield Candidate(same[0], "enum", "enum spelling", "schema")
        elif len(codes := [text for text in texts if is_same_code(bare, text)]) == 1:
            yield Candidate(codes[0], "enum", "enum spelling", "schema")
        elif len(same) == 1 and can_guess and bare.isalpha() and same[0] == same[0].upper() != same[0].lower():
            if len(same[0]) > 1 and bare == bare.lower():  # `us` for `US`. `MW` is not `mW`
                yield Candidate(same[0], "enum", "enum code", "schema")
        elif match is not None and match.method == "slip":
            if not _is_near_another(bare, match.name, texts):
                yield Candidate(match.name, "enum", "enum slip", "schema")
        elif not same and can_guess:
            for name in match_by_words(bare, texts)[:3] if bare.isascii() and not is_unit(bare) else ():
                differing_words = stem_words(bare) ^ stem_words(name)
                if _OTHER_MEANING_WORDS.isdisjoint(differing_words) and not are_opposites(bare, name):
                    yield Candidate(name, "enum", "enum part", "schema")
        for member in members:
            if is_number(member) and str(member) == bare and re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,6})?", bare):
                yield Candidate(member, "cast", "cast")
    elif isinstance(value, list) and len(value) == 1 and value[0] in members:
        yield Candidate(value[0], "cast", "unwrap list")
    elif isinstance(value, bool):
        same = [text for text in texts if text.casefold() == str(value).casefold()]
        if len(same) == 1:
            yield Candidate(same[0], "cast", "cast")
    elif is_number(value) and abs(value) < 10**18 and str(value) in texts:
        yield Candidate(str(value), "cast", "cast")


_OTHER_MEANING_WORDS = frozenset("not non no never without un in ex anti pre post semi half bi multi sub super".split())
"""Words that make another value of an enum member: `not started`, `semi-annual`."""


def _is_near_another(text: str, match: str, members: list[str]) -> bool:
    """Return whether a misspelled text is about as near to another member: `pprod` to `prod` and `preprod`."""
    bare = normalize_name(text)
    allowed = edit_distance(bare, normalize_name(match), 3) + 1
    return any(edit_distance(bare, normalize_name(other), allowed) <= allowed for other in members if other != match)


def clamp(value: Any, rule: str, limit: Any, node: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yield a number moved to the bound that it violates, as the same type of number."""
    if not is_number(value) or not is_number(limit) or value != value:
        return
    if rule in ("minimum", "maximum"):
        yield Candidate(match_number_type(limit, value), "clamp", "clamp", "schema")
    elif (isinstance(value, int) or node.get("type") == "integer") and limit == int(limit):
        # No float is adjacent to an exclusive bound.
        yield Candidate(int(limit) + (1 if rule == "exclusiveMinimum" else -1), "clamp", "clamp", "schema")


def match_number_type(bound: float, value: float) -> float:
    """Return a bound as the type of number used in the call, if it can be converted."""
    return int(bound) if isinstance(value, int) and isinstance(bound, float) and bound.is_integer() else bound
