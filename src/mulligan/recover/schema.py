"""What the tool's schema alone can mend: a value cast to the type that was asked for, a number moved to its bound.

Every value it offers comes from the failed call or from the schema. One exception (SAFETY S1): a number in the error
text may serve as the bound of a numeric argument that is already in the call.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mulligan.records import Change
from mulligan.recover.provenance import is_privileged

SURE_OF_CAST = 0.95
SURE_OF_BOUND = 0.90
SURE_OF_BOUND_IN_ERROR = 0.85

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
    import jsonschema_rs  # 25 ms to import, and only failures and checked calls come here

    try:
        validator = jsonschema_rs.validator_for(dict(schema), retriever=_refuse)
        errors = list(validator.iter_errors(dict(arguments)))
    except (ValueError, TypeError, RecursionError):
        return []  # a schema of strangers, or arguments that are not JSON: there is nothing to hold against them
    return [
        Fault(tuple(error.instance_path), str(error.schema_path[-1]), _limit(schema, error), error.message)
        for error in errors
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
    found = faults(arguments, schema) if schema else []
    changes = [_mend(fault, arguments) for fault in found] if found else list(_bound_in(error, arguments))
    if not changes:
        return None
    kept = [change for change in changes if change is not None and not is_privileged(change.path, privileged, released)]
    if len(kept) < len(changes):
        return None  # half a repair would only fail again
    mended = _applied(arguments, kept)
    if schema and faults(mended, schema):
        return None
    sure = min(_sureness(change) for change in kept)
    return Suggestion(mended, tuple(kept), sure, "error" if kept[0].from_ == "error" else "schema")


def _sureness(change: Change) -> float:
    if change.from_ == "error":
        return SURE_OF_BOUND_IN_ERROR
    return SURE_OF_BOUND if change.how == "clamp" else SURE_OF_CAST


def _applied(arguments: Mapping[str, Any], changes: Collection[Change]) -> dict[str, Any]:
    mended = dict(arguments)
    for change in changes:
        mended[change.path] = change.after
    return mended


def _mend(fault: Fault, arguments: Mapping[str, Any]) -> Change | None:
    if len(fault.path) != 1 or not isinstance(fault.path[0], str):
        return None
    name = fault.path[0]
    value = arguments[name]
    if fault.rule == "type":
        for wanted in fault.limit if isinstance(fault.limit, list) else [fault.limit]:
            after = _cast(value, wanted)
            if after is not None:
                return Change(path=name, how="cast", before=value, after=after, from_="call")
    if fault.rule in ("maximum", "minimum") and _is_number(value) and _is_number(fault.limit):
        after = int(fault.limit) if isinstance(value, int) and float(fault.limit).is_integer() else fault.limit
        return Change(path=name, how="clamp", before=value, after=after, from_="schema")
    return None


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


_NUMBER = r"(-?[0-9]{1,15}(?:\.[0-9]{1,6})?)(?![0-9.]*[0-9%])"
_UPPER = re.compile(
    rf"(?:at most|no more than|not exceed|cannot exceed|can't exceed|exceeds? (?:the )?(?:maximum|max|limit|cap)"
    rf"(?: value)?(?: of| is|:)?|less than or equal to|not (?:be )?greater than|<=|(?:maximum|max|limit|cap)"
    rf"(?: allowed)?(?: value)?(?: of| is|:| =|=)?) ?{_NUMBER}|{_NUMBER} or (?:less|fewer|lower|below)",
    re.IGNORECASE,
)
_LOWER = re.compile(
    rf"(?:at least|no less than|greater than or equal to|not (?:be )?less than|>=|(?:minimum|min)(?: allowed)?"
    rf"(?: value)?(?: of| is|:| =|=)?) ?{_NUMBER}|{_NUMBER} or (?:more|greater|higher|above)",
    re.IGNORECASE,
)
_BETWEEN = re.compile(rf"between {_NUMBER} and {_NUMBER}", re.IGNORECASE)
_SCANNED = 2000


def _bound_in(error: str, arguments: Mapping[str, Any]) -> Iterator[Change]:
    """A bound the error names, for the one number of the call it can be about."""
    text = error[:_SCANNED]
    numbers = {name: value for name, value in arguments.items() if _is_number(value)}
    named = [name for name in numbers if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]
    if len(named) != 1:
        return  # not named, or two of them: which is meant would be a guess
    value = numbers[named[0]]
    bounds = {bound for bound in _bounds(text, value) if bound != value}
    if len(bounds) == 1:
        after = bounds.pop()
        yield Change(path=named[0], how="clamp", before=value, after=after, from_="error")


def _bounds(text: str, value: float) -> Iterator[float]:
    for low, high in _BETWEEN.findall(text):
        yield min(max(value, _number(low, value)), _number(high, value))
    for match in _UPPER.finditer(text):
        yield min(value, _number(match.group(1) or match.group(2), value))
    for match in _LOWER.finditer(text):
        yield max(value, _number(match.group(1) or match.group(2), value))


def _number(text: str, like: float) -> float:
    number = float(text)
    return int(number) if isinstance(like, int) and number.is_integer() else number
