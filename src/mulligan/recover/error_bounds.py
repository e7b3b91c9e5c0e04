"""Repair of one number of a call from a number in the error text.

A bound is the only value that error text may supply automatically (SAFETY S1): it moves a number that is already in the
call towards that bound. An expected value, such as a total, is only suggested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mulligan.core.records import Change
from mulligan.recover.coercion import is_number, match_number_type
from mulligan.recover.schema import Path

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
_MAX_AMOUNT_RATIO = 10
"""Maximum ratio between the expected and the actual amount. A larger one is not a calculation mistake."""
MAX_SCANNED_CHARS = 2000
_MAX_SUMMANDS = 10
"""Maximum length of a list whose numbers are added up."""
_MAX_NUMERIC_ARGUMENTS = 50
"""Numeric arguments searched for in an error text. Each costs one search."""


def find_error_bound(error: str, arguments: Mapping[str, Any]) -> tuple[Path, Change] | None:
    """Return the one number moved to the bound that the error names, or None if number or bound is ambiguous."""
    path_and_value = _find_mentioned_number(error[:MAX_SCANNED_CHARS], arguments)
    if path_and_value is None:
        return None
    path, value = path_and_value
    bounds = {bound for bound in _iter_clamped_values(error[:MAX_SCANNED_CHARS], value) if bound != value}
    return _build_clamp(path, value, bounds)


class NumberCorrection(NamedTuple):
    """A corrected number for one argument, derived from the error text."""

    path: Path
    change: Change
    is_shown: bool
    """Whether the error shows the original number itself. Otherwise it is one summand of the sum that the error
    shows."""


def find_expected_values(error: str, arguments: Mapping[str, Any]) -> list[NumberCorrection]:
    """Return corrections to the value that an error expects, for suggestions only.

    The error must show a number or a sum of the call: "total price is 350, but paid 300" for a call that pays 300, or
    100 and 200. Which summand is wrong is unknown. The last one comes first, since it usually holds the remainder.
    """
    text = error[:MAX_SCANNED_CHARS]
    numbers = _select_relevant_numbers(text, arguments)
    expected_amounts, actual_amounts = {*_find_amounts(_EXPECTED, text)}, {*_find_amounts(_GIVEN, text)}
    due_amounts = {*_find_amounts(_DUE, text)} - expected_amounts
    shown_amounts = [amount for amount in {*_find_amounts(_ANY, text)} if _find_amount_paths(numbers, amount)]
    target_amounts = (expected_amounts or due_amounts) - actual_amounts - {*shown_amounts}
    shown_amounts = [amount for amount in shown_amounts if amount in actual_amounts | due_amounts or expected_amounts]
    if len(target_amounts) != 1 or len(shown_amounts) != 1 or not _is_plausible(shown_amounts[0], *target_amounts):
        return []
    (target,), (amount,) = target_amounts, shown_amounts
    paths = _find_amount_paths(numbers, amount)
    is_shown = len(paths) == 1
    corrections = [
        _build_correction(path, numbers[path], numbers[path] + target - amount, is_shown) for path in reversed(paths)
    ]
    return [correction for correction in corrections if correction.change.after * target > 0]


def _find_amount_paths(numbers: Mapping[Path, float], amount: float) -> list[Path]:
    """Return the path of the one number equal to an amount, or the paths of numbers that add up to it."""
    equal = [path for path, value in numbers.items() if value == amount]
    if len(equal) > 1:
        return []  # ambiguous
    return equal or _find_summands(numbers, amount)


def _find_amounts(pattern: str, text: str) -> Iterator[float]:
    return (float(match.group(1)) for match in re.finditer(pattern, text, re.IGNORECASE))


def _is_plausible(one: float, other: float) -> bool:
    return one != other and one * other > 0 and 1 / _MAX_AMOUNT_RATIO <= one / other <= _MAX_AMOUNT_RATIO


def _select_relevant_numbers(text: str, arguments: Mapping[str, Any]) -> dict[Path, float]:
    """Return the numbers that the text can refer to: those whose name it mentions, or all if it mentions none."""
    numbers = dict(_numbers(arguments, ()))
    if len(numbers) > _MAX_NUMERIC_ARGUMENTS:
        return {}
    names = {part for path in numbers for part in path if isinstance(part, str)}
    names.update(name for name in [*arguments][:_MAX_NUMERIC_ARGUMENTS] if isinstance(name, str))
    mentioned_names = {name for name in names if _mentions_name(name[:200], text)}
    return {path: value for path, value in numbers.items() if not mentioned_names or mentioned_names & set(path)}


def _find_summands(numbers: Mapping[Path, float], amount: float) -> list[Path]:
    """Return the paths of numbers of one field, in a list, that add up to an amount."""
    groups: dict[Path, list[Path]] = {}
    for path in numbers:
        groups.setdefault(tuple(part for part in path if isinstance(part, str)), []).append(path)
    fitting = [
        paths
        for paths in groups.values()
        if 1 < len(paths) <= _MAX_SUMMANDS and abs(sum(numbers[path] for path in paths) - amount) < 0.005
    ]
    return fitting[0] if len(fitting) == 1 else []


def _build_correction(path: Path, before: float, after: float, is_shown: bool) -> NumberCorrection:
    corrected_value = match_number_type(round(after, 2), before)
    change = Change(
        path=".".join(map(str, path)), operation="substitute", before=before, after=corrected_value, source="error"
    )
    return NumberCorrection(path, change, is_shown)


def _find_mentioned_number(text: str, arguments: Mapping[str, Any]) -> tuple[Path, float] | None:
    """Return the one number of the call that the text refers to, or None."""
    numbers = dict(_numbers(arguments, ()))
    if not numbers or len(numbers) > _MAX_NUMERIC_ARGUMENTS:
        return None
    mentioned_paths = [path for path in numbers if _mentions_name(str(path[-1]), text)]
    if not mentioned_paths and not any(
        isinstance(name, str) and _contains_word(name[:200], text) for name in [*arguments][:_MAX_NUMERIC_ARGUMENTS]
    ):
        # Not mentioned by name, but by value: "50 is greater than the maximum of 10".
        mentioned_paths = [path for path, value in numbers.items() if _contains_word(_format_number(value), text)]
    if len(mentioned_paths) != 1:
        return None  # not mentioned, or ambiguous
    return mentioned_paths[0], numbers[mentioned_paths[0]]


def _build_clamp(path: Path, value: float, targets: set[float]) -> tuple[Path, Change] | None:
    if len(targets) != 1:
        return None
    after = targets.pop()
    if isinstance(after, float) and isinstance(value, int):
        return None  # an integer would become a float
    return path, Change(path=".".join(map(str, path)), operation="clamp", before=value, after=after, source="error")


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


def _mentions_name(name: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name[:MAX_SCANNED_CHARS])}(?!\w)", text) is not None


def _format_number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value) if abs(value) < 10**15 else ""


def _contains_word(word: str, text: str) -> bool:
    return bool(word) and re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-]|\.\d)", text) is not None


def _iter_clamped_values(text: str, value: float) -> Iterator[float]:
    for match in re.finditer(_BETWEEN, text, re.IGNORECASE):
        low, high = _parse_number(match.group(1), value), _parse_number(match.group(2), value)
        if low <= high:
            yield min(max(value, low), high)
    for match in re.finditer(_UPPER, text, re.IGNORECASE):
        yield min(value, _parse_number(match.group(1) or match.group(2), value))
    for match in re.finditer(_LOWER, text, re.IGNORECASE):
        yield max(value, _parse_number(match.group(1) or match.group(2), value))


def _parse_number(text: str, like_this: float) -> float:
    return match_number_type(float(text), like_this)
