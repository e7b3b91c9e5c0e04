"""What the tool's schema alone can mend: a value cast to the type that was asked for, a number moved to its bound.

Every value it offers comes from the failed call or from the schema. One exception (SAFETY S1): a number in the error
text may serve as the bound of a numeric argument that is already in the call.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from mulligan.records import Change
from mulligan.recover.cost import is_affordable
from mulligan.recover.provenance import is_privileged

SURE_OF_CAST = 0.95
SURE_OF_BOUND = 0.90
SURE_OF_BOUND_IN_ERROR = 0.85
ROUNDS = 3
"""A value may need a cast before it can be held against its bound; what takes longer than this is not understood."""

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Arguments that should work, how they differ, and how sure we are."""

    arguments: dict[str, Any]
    changes: tuple[Change, ...]
    confidence: float
    source: str


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which arguments break their schema."""

    path: tuple[str | int, ...]
    rule: str
    limit: Any
    message: str


def faults(arguments: Mapping[str, Any], schema: Schema) -> list[Fault]:
    """Every way in which the arguments break the schema; none if it is not a schema we can read."""
    return judged(arguments, schema) or []


def judged(arguments: Mapping[str, Any], schema: Schema) -> list[Fault] | None:
    """The same, or None where nothing can be said: a schema that is none, or arguments that are not JSON."""
    if not is_affordable(schema, arguments):
        return None
    import jsonschema_rs  # 25 ms to import, and only failures and checked calls come here

    try:
        validator = jsonschema_rs.validator_for(dict(schema), retriever=_refuse)
        errors = list(validator.iter_errors(dict(arguments)))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    return [
        Fault(tuple(error.instance_path), str(error.schema_path[-1]), _limit(schema, error), error.message)
        for error in errors
        if error.schema_path
    ]


def _refuse(uri: str) -> Any:
    raise ValueError(f"references are not followed: {uri}")


def _limit(schema: Schema, error: Any) -> Any:
    node: Any = schema
    for part in error.schema_path:
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            return None
    return node


def suggest(
    arguments: Mapping[str, Any],
    error: str,
    schema: Schema | None,
    *,
    privileged: Collection[str] = (),
    released: Collection[str] = (),
) -> Suggestion | None:
    """The one repair that follows from schema and call, or None: abstaining is a right answer."""
    found = judged(arguments, schema) if schema else None
    changes = _mended(arguments, found, schema) if found and schema else list(_bound_in(error, arguments))
    if not changes or any(is_privileged(change.path, privileged, released) for change in changes):
        return None
    mended = dict(arguments) | {change.path: change.after for change in changes}
    if schema and not _fits(mended, changes, schema):
        return None
    sure = min(_sureness(change) for change in changes)
    return Suggestion(mended, tuple(changes), sure, "error" if changes[0].from_ == "error" else "schema")


def _sureness(change: Change) -> float:
    if change.from_ == "error":
        return SURE_OF_BOUND_IN_ERROR
    return SURE_OF_BOUND if change.how == "clamp" else SURE_OF_CAST


def _fits(mended: Mapping[str, Any], changes: Collection[Change], schema: Schema) -> bool:
    """Whether the schema takes the mended arguments, or, where others of them are not JSON, those that were mended."""
    found = judged(mended, schema)
    if found is None:
        parts = {key: schema[key] for key in ("$schema", "properties", "$defs", "definitions") if key in schema}
        found = judged({change.path: change.after for change in changes}, parts)
    return found == []


def _mended(arguments: Mapping[str, Any], found: list[Fault], schema: Schema) -> list[Change]:
    """One change for each argument at fault, made in rounds; none at all where one of them cannot be mended."""
    values = dict(arguments)
    changes: dict[str, Change] = {}
    for _ in range(ROUNDS):
        at_fault: dict[tuple[str | int, ...], list[Fault]] = {}
        for fault in found:
            at_fault.setdefault(fault.path, []).append(fault)
        for same_place in at_fault.values():
            # The first that can be mended: a text where a number belongs breaks the number's other rules too.
            change = next(filter(None, (_mend(fault, values) for fault in same_place)), None)
            if change is None:
                return []  # half a repair would only fail again
            before = changes[change.path].before if change.path in changes else change.before
            changes[change.path] = msgspec.structs.replace(change, before=before)
            values[change.path] = change.after
        found = judged(values, schema) or []
        if not found:
            break
    return list(changes.values())


def _mend(fault: Fault, arguments: Mapping[str, Any]) -> Change | None:
    if len(fault.path) != 1 or not isinstance(fault.path[0], str) or fault.path[0] not in arguments:
        return None
    name = fault.path[0]
    value = arguments[name]
    if fault.rule == "type":
        for wanted in fault.limit if isinstance(fault.limit, list) else [fault.limit]:
            after = _cast(value, wanted)
            if after is not None:
                return Change(path=name, how="cast", before=value, after=after, from_="call")
    if fault.rule in ("maximum", "minimum") and _is_number(value) and _is_number(fault.limit):
        return Change(path=name, how="clamp", before=value, after=_like(fault.limit, value), from_="schema")
    return None


def _like(bound: float, value: float) -> float:
    """A bound as the kind of number that stood in the call, where it is one."""
    return int(bound) if isinstance(value, int) and isinstance(bound, float) and bound.is_integer() else bound


def _cast(value: Any, wanted: str) -> Any:
    """The same value in the type that was asked for, or None where its meaning would have to be guessed."""
    if isinstance(value, str):
        text = value.strip()
        if wanted == "integer" and re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text):  # "020" is a name, not a number
            return int(text)
        if wanted == "number" and re.fullmatch(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?", text):
            return float(text) if "." in text else int(text)
        if wanted == "boolean" and text.casefold() in ("true", "false"):
            return text.casefold() == "true"
    if wanted == "integer" and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if wanted == "string" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# Possessive throughout: no text makes them look at a character more than a fixed number of times. A number with a unit,
# a share, a thousands mark or a range behind it is not the bound it seems to be.
_NUMBER = r"(-?[0-9]{1,15}+(?:\.[0-9]{1,6}+)?)(?![\w/]| ?%|[.,:-][0-9])"
_ALONE = rf"(?<![\w.,:/-]){_NUMBER}"
_UPPER = re.compile(
    rf"(?:at most|no more than|not exceed|cannot exceed|can't exceed|exceeds? (?:the )?(?:maximum|max|limit|cap)"
    rf"(?: value)?(?: of| is|:)?|less than or equal to|not (?:be )?greater than|<=|(?:maximum|max|limit|cap)"
    rf"(?: allowed)?(?: value)?(?: of| is|:| =|=)?) ?{_NUMBER}|{_ALONE} or (?:less|fewer|lower|below)",
    re.IGNORECASE,
)
_LOWER = re.compile(
    rf"(?:at least|no less than|greater than or equal to|not (?:be )?less than|>=|(?:minimum|min)(?: allowed)?"
    rf"(?: value)?(?: of| is|:| =|=)?) ?{_NUMBER}|{_ALONE} or (?:more|greater|higher|above)",
    re.IGNORECASE,
)
_BETWEEN = re.compile(rf"between {_NUMBER} and {_NUMBER}", re.IGNORECASE)
_SCANNED = 2000
_NAMES = 50
"""Numeric arguments that are looked for in an error text: each takes one look."""


def _bound_in(error: str, arguments: Mapping[str, Any]) -> Iterator[Change]:
    """A bound the error names, for the one number of the call it can be about."""
    text = error[:_SCANNED]
    numbers = {
        name: value
        for name, value in arguments.items()
        if isinstance(name, str) and _is_number(value) and value == value  # NaN is on no side of any bound
    }
    if len(numbers) > _NAMES:
        return
    named = [name for name in numbers if re.search(rf"(?<!\w){re.escape(name[:_SCANNED])}(?!\w)", text)]
    if len(named) != 1:
        return  # not named, or two of them: which is meant would be a guess
    value = numbers[named[0]]
    bounds = {bound for bound in _bounds(text, value) if bound != value}
    if len(bounds) == 1:
        after = bounds.pop()
        if isinstance(after, float) and isinstance(value, int):
            return  # a whole number would become another kind of number
        yield Change(path=named[0], how="clamp", before=value, after=after, from_="error")


def _bounds(text: str, value: float) -> Iterator[float]:
    for match in _BETWEEN.finditer(text):
        low, high = _number(match.group(1), value), _number(match.group(2), value)
        if low <= high:
            yield min(max(value, low), high)
    for match in _UPPER.finditer(text):
        yield min(value, _number(match.group(1) or match.group(2), value))
    for match in _LOWER.finditer(text):
        yield max(value, _number(match.group(1) or match.group(2), value))


def _number(text: str, like: float) -> float:
    return _like(float(text), like)
