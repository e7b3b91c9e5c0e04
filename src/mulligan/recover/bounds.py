"""A bound that an error text names, for the one number of the call that it can be about.

The only value that error text may ever supply (SAFETY S1): a number, for a number that is already in the call, which it
moves towards that bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.records import Change
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
_SCANNED = 2000
_NAMES = 50
"""Numeric arguments that are looked for in an error text: each takes one look."""


def bound_in(error: str, arguments: Mapping[str, Any]) -> Change | None:
    """The one number moved to the bound that the error names; None where it is not clear which, or to what."""
    text = error[:_SCANNED]
    numbers = {
        name: value
        for name, value in arguments.items()
        if isinstance(name, str) and is_number(value) and value == value  # NaN is on no side of any bound
    }
    if not numbers or len(numbers) > _NAMES:
        return None
    named = [name for name in numbers if re.search(rf"(?<!\w){re.escape(name[:_SCANNED])}(?!\w)", text)]
    if not named and not any(isinstance(name, str) and _stands_in(name[:200], text) for name in [*arguments][:_NAMES]):
        # Not named, but shown: "50 is greater than the maximum of 10".
        named = [name for name, value in numbers.items() if abs(value) < 1e15 and _stands_in(str(value), text)]
    if len(named) != 1:
        return None  # not named, or two of them: which is meant would be a guess
    value = numbers[named[0]]
    bounds = {bound for bound in _bounds(text, value) if bound != value}
    if len(bounds) != 1:
        return None
    after = bounds.pop()
    if isinstance(after, float) and isinstance(value, int):
        return None  # a whole number would become another kind of number
    return Change(path=named[0], how="clamp", before=value, after=after, from_="error")


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
