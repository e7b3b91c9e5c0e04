"""Repair of one number of a call from a number in the error text.

A bound is the only value that error text may supply automatically (SAFETY S1): it moves a number that is already in the
call towards that bound. An expected value, such as a total, is only suggested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mulligan.records import Change
from mulligan.recover.schema import Path
from mulligan.recover.values import is_number, like

# These patterns look at each character a bounded number of times. A number followed by a unit, a percent sign, a
# thousands separator or a range is not a bound. They are compiled on first use.
_NUMBER = r"(-?[0-9]{1,15}+(?:\.[0-9]{1,6}+)?)(?![\w/]| ?%|[.,:-][0-9])"
_ALONE = rf"(?<![\w.,:/-]){_NUMBER}"
_UPPER = (
    rf"(?:at most|no more than|not exceed|cannot exceed|can't exceed|exceeds? (?:the )?(?:maximum|max|limit|cap)"
    rf"(?: value)?(?: of| is|:)?|less than or equal to|(?:not|cannot|can't) (?:be )?(?:greater|more|higher|larger) than"
    rf"|<=|(?:maximum|max|limit|cap)"
    rf"(?: allowed)?(?: value)?(?: of| is|:| =|=)?) ?{_NUMBER}|{_ALONE} or (?:less|fewer|lower|below)"
)
_LOWER = (
    rf"(?:at least|no less than|greater than or equal to|(?:not|cannot|can't) (?:be )?(?:less|lower|smaller) than|>="
    rf"|(?:minimum|min)(?: allowed)?"
    rf"(?: value)?(?: of| is|:| =|=)?) ?{_NUMBER}|{_ALONE} or (?:more|greater|higher|above)"
)
_BETWEEN = rf"between {_NUMBER} and {_NUMBER}"
_EXPECTED = (
    rf"\b(?:expected|required|requires|should be|must be|must equal|should equal|need to pay)"
    rf"(?: (?:exactly|a|an|payment|amount|total|price|of|to|be|is)){{0,4}}:? ?[$€£]?{_NUMBER}"
)
_DUE = (
    rf"\b(?:total|price|cost|sum|due)(?:[_ ](?:price|amount|cost|due))?[\"']?(?: is| of| was|:| =|=)? ?[$€£]?{_NUMBER}"
)
_GIVEN = (
    rf"\b(?:paid|got|received|given|provided|but was|instead of|not"
    rf"|(?:come|comes|sum|sums|add|adds|amounts)(?: up)? to)[\"']?(?: only|:)? ?[$€£]?{_NUMBER}"
)
_ANY = rf"(?<![\w.,:/-])[$€£]?{_NUMBER}"
_APART = 10
"""Maximum ratio between the expected and the actual amount. A larger one is not a calculation mistake."""
_SCANNED = 2000
_PARTS = 10
"""Maximum length of a list whose numbers are added up."""
_NAMES = 50
"""Numeric arguments searched for in an error text. Each costs one search."""


def bound_in(error: str, arguments: Mapping[str, Any]) -> tuple[Path, Change] | None:
    """Return the one number moved to the bound that the error names, or None if number or bound is ambiguous."""
    found = _meant(error[:_SCANNED], arguments)
    if found is None:
        return None
    path, value = found
    bounds = {bound for bound in _bounds(error[:_SCANNED], value) if bound != value}
    return _moved(path, value, bounds)


class Corrected(NamedTuple):
    """A corrected number for one argument, derived from the error text."""

    path: Path
    change: Change
    is_shown: bool
    """Whether the error shows the original number itself. Otherwise it is one summand of the sum that the error
    shows."""


def expected_in(error: str, arguments: Mapping[str, Any]) -> list[Corrected]:
    """Return corrections to the value that an error expects, for suggestions only.

    The error must show a number or a sum of the call: "total price is 350, but paid 300" for a call that pays 300, or
    100 and 200. Which summand is wrong is unknown. The last one comes first, since it usually holds the remainder.
    """
    text = error[:_SCANNED]
    numbers = _about(text, arguments)
    named, given = {*_all(_EXPECTED, text)}, {*_all(_GIVEN, text)}
    due = {*_all(_DUE, text)} - named
    shown = [amount for amount in {*_all(_ANY, text)} if _stand_for(numbers, amount)]
    wanted = (named or due) - given - {*shown}
    shown = [amount for amount in shown if amount in given | due or named]
    if len(wanted) != 1 or len(shown) != 1 or not _is_near(shown[0], *wanted):
        return []
    (target,), (amount,) = wanted, shown
    paths = _stand_for(numbers, amount)
    is_shown = len(paths) == 1
    made = [_corrected(path, numbers[path], numbers[path] + target - amount, is_shown) for path in reversed(paths)]
    return [each for each in made if each.change.after * target > 0]


def _stand_for(numbers: Mapping[Path, float], amount: float) -> list[Path]:
    """Return the path of the one number equal to an amount, or the paths of numbers that add up to it."""
    equal = [path for path, value in numbers.items() if value == amount]
    if len(equal) > 1:
        return []  # ambiguous
    return equal or _summands(numbers, amount)


def _all(pattern: str, text: str) -> Iterator[float]:
    return (float(match.group(1)) for match in re.finditer(pattern, text, re.IGNORECASE))


def _is_near(one: float, other: float) -> bool:
    return one != other and one * other > 0 and 1 / _APART <= one / other <= _APART


def _about(text: str, arguments: Mapping[str, Any]) -> dict[Path, float]:
    """Return the numbers that the text can refer to: those whose name it mentions, or all if it mentions none."""
    numbers = dict(_numbers(arguments, ()))
    if len(numbers) > _NAMES:
        return {}
    names = {part for path in numbers for part in path if isinstance(part, str)}
    names.update(name for name in [*arguments][:_NAMES] if isinstance(name, str))
    said = {name for name in names if _is_named(name[:200], text)}
    return {path: value for path, value in numbers.items() if not said or said & set(path)}


def _summands(numbers: Mapping[Path, float], amount: float) -> list[Path]:
    """Return the paths of numbers of one field, in a list, that add up to an amount."""
    groups: dict[Path, list[Path]] = {}
    for path in numbers:
        groups.setdefault(tuple(part for part in path if isinstance(part, str)), []).append(path)
    fitting = [
        paths
        for paths in groups.values()
        if 1 < len(paths) <= _PARTS and abs(sum(numbers[path] for path in paths) - amount) < 0.005
    ]
    return fitting[0] if len(fitting) == 1 else []


def _corrected(path: Path, before: float, after: float, is_shown: bool) -> Corrected:
    made = like(round(after, 2), before)
    change = Change(path=".".join(map(str, path)), how="substitute", before=before, after=made, from_="error")
    return Corrected(path, change, is_shown)


def _meant(text: str, arguments: Mapping[str, Any]) -> tuple[Path, float] | None:
    """Return the one number of the call that the text refers to, or None."""
    numbers = dict(_numbers(arguments, ()))
    if not numbers or len(numbers) > _NAMES:
        return None
    named = [path for path in numbers if _is_named(str(path[-1]), text)]
    if not named and not any(isinstance(name, str) and _stands_in(name[:200], text) for name in [*arguments][:_NAMES]):
        # Not mentioned by name, but by value: "50 is greater than the maximum of 10".
        named = [path for path, value in numbers.items() if _stands_in(_shown(value), text)]
    if len(named) != 1:
        return None  # not mentioned, or ambiguous
    return named[0], numbers[named[0]]


def _moved(path: Path, value: float, targets: set[float]) -> tuple[Path, Change] | None:
    if len(targets) != 1:
        return None
    after = targets.pop()
    if isinstance(after, float) and isinstance(value, int):
        return None  # an integer would become a float
    return path, Change(path=".".join(map(str, path)), how="clamp", before=value, after=after, from_="error")


def _numbers(value: Any, path: Path) -> Iterator[tuple[Path, float]]:
    """Yield the numbers of a call that stand under a name, with their paths."""
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
    elif is_number(value) and value == value:  # NaN compares with no bound
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
