"""A bound that an error text names, for the one number of the call that it can be about.

The only value that error text may ever supply (SAFETY S1): a number, for a number that is already in the call, which it
moves towards that bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.records import Change
from mulligan.recover.schema import Path
from mulligan.recover.values import is_number, like

# No text makes these look at a character more than a fixed number of times. A number with a unit,
# a share, a thousands mark or a range behind it is not the bound it seems to be. They are compiled when first used.
_NUMBER = r"(-?[0-9]{1,15}+(?:\.[0-9]{1,6}+)?)(?![\w/]| ?%|[.,:-][0-9])"
_ALONE = rf"(?<![\w.,:/-]){_NUMBER}"
_UPPER = (
    rf"(?:at most|no more than|not exceed|cannot exceed|can't exceed|exceeds? (?:the )?(?:maximum|max|limit|cap)"
    rf"(?: value)?(?: of| is|:)?|less than or equal to|not (?:be )?greater than|<=|(?:maximum|max|limit|cap)"
    rf"(?: allowed)?(?: value)?(?: of| is|:| =|=)?) ?{_NUMBER}|{_ALONE} or (?:less|fewer|lower|below)"
)
_LOWER = (
    rf"(?:at least|no less than|greater than or equal to|not (?:be )?less than|>=|(?:minimum|min)(?: allowed)?"
    rf"(?: value)?(?: of| is|:| =|=)?) ?{_NUMBER}|{_ALONE} or (?:more|greater|higher|above)"
)
_BETWEEN = rf"between {_NUMBER} and {_NUMBER}"
_EXPECTED = rf"(?:expected|should be|must be|must equal|should equal)(?: exactly)?(?: to be)?:? ?{_NUMBER}"
_SCANNED = 2000
_NAMES = 50
"""Numeric arguments that are looked for in an error text: each takes one look."""


def bound_in(error: str, arguments: Mapping[str, Any]) -> tuple[Path, Change] | None:
    """The one number moved to the bound that the error names; None where it is not clear which, or to what."""
    found = _meant(error[:_SCANNED], arguments)
    if found is None:
        return None
    path, value = found
    bounds = {bound for bound in _bounds(error[:_SCANNED], value) if bound != value}
    return _moved(path, value, bounds)


def expected_in(error: str, arguments: Mapping[str, Any]) -> tuple[Path, Change] | None:
    """The same for a number that the error says was expected, in place of one that it shows: a suggestion only."""
    text = error[:_SCANNED]
    found = _meant(text, arguments)
    if found is None or not _stands_in(_shown(found[1]), text):
        return None
    path, value = found
    numbers = {_number(match.group(1), value) for match in re.finditer(_EXPECTED, text, re.IGNORECASE)}
    return _moved(path, value, {number for number in numbers if number != value})


def _meant(text: str, arguments: Mapping[str, Any]) -> tuple[Path, float] | None:
    """The one number of the call that a text can be about."""
    numbers = dict(_numbers(arguments, ()))
    if not numbers or len(numbers) > _NAMES:
        return None
    named = [path for path in numbers if _is_named(str(path[-1]), text)]
    if not named and not any(isinstance(name, str) and _stands_in(name[:200], text) for name in [*arguments][:_NAMES]):
        # Not named, but shown: "50 is greater than the maximum of 10".
        named = [path for path, value in numbers.items() if _stands_in(_shown(value), text)]
    if len(named) != 1:
        return None  # not named, or two of them: which is meant would be a guess
    return named[0], numbers[named[0]]


def _moved(path: Path, value: float, targets: set[float]) -> tuple[Path, Change] | None:
    if len(targets) != 1:
        return None
    after = targets.pop()
    if isinstance(after, float) and isinstance(value, int):
        return None  # a whole number would become another kind of number
    return path, Change(path=".".join(map(str, path)), how="clamp", before=value, after=after, from_="error")


def _numbers(value: Any, path: Path) -> Iterator[tuple[Path, float]]:
    """The numbers of a call under a name, with their places."""
    if len(path) > 4:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(name, str):
                yield from _numbers(inner, (*path, name))
    elif isinstance(value, list):
        for at, inner in enumerate(value[:20]):
            if isinstance(inner, Mapping):
                yield from _numbers(inner, (*path, at))
    elif is_number(value) and value == value:  # NaN is on no side of any bound
        yield path, value


def _is_named(name: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name[:_SCANNED])}(?!\w)", text) is not None


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value) if abs(value) < 10**15 else ""


def _stands_in(word: str, text: str) -> bool:
    return bool(word) and re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-]|\.\d)", text) is not None


def _bounds(text: str, value: float) -> Iterator[float]:
    for match in re.finditer(_BETWEEN, text, re.IGNORECASE):
        low, high = _number(match.group(1), value), _number(match.group(2), value)
        if low <= high:
            yield min(max(value, low), high)
    for match in re.finditer(_UPPER, text, re.IGNORECASE):
        yield min(value, _number(match.group(1) or match.group(2), value))
    for match in re.finditer(_LOWER, text, re.IGNORECASE):
        yield max(value, _number(match.group(1) or match.group(2), value))


def _number(text: str, like_this: float) -> float:
    return like(float(text), like_this)
