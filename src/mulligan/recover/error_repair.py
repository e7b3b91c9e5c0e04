"""Repairs from the error text: a number moved to the bound or the value that it names.

A bound is the only value that error text may supply automatically (SAFETY S1): it moves a number that is already in the
call towards that bound. An expected value, such as a total, is only suggested.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from mulligan.core.records import ChangeOperation
from mulligan.core.stated_limits import contains_word
from mulligan.recover.schema import Path, iter_scalars
from mulligan.recover.spelling import (
    strip_quotes,
)
from mulligan.recover.value_coercion import Candidate, is_number, match_number_type

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
_MAX_NUMERIC_ARGUMENTS = 50
"""Numeric arguments searched for in an error text. Each costs one search."""
_BOUND_WORDS = frozenset({"limit", "max", "maximum", "min", "minimum", "most", "least", "bound"})
"""Names of arguments that an error may use as words."""


def find_error_bound(error: str, arguments: Mapping[str, Any]) -> Candidate | None:
    """Return the one number moved to the bound that the error names, or None if number or bound is ambiguous."""
    text = error[:MAX_SCANNED_CHARS]
    numbers, names = _find_numbers(arguments), tuple(arguments)[:_MAX_NUMERIC_ARGUMENTS]
    paths = [path for path in numbers if contains_word(text, str(path[-1]))]
    if not paths and not any(isinstance(name, str) and _stands_alone(name, text) for name in names):
        # Not mentioned by name, but by value: "50 is greater than the maximum of 10".
        paths = [path for path, value in numbers.items() if _stands_alone(_format_number(value), text)]
    if len(paths) != 1:
        return None  # not mentioned, or ambiguous
    value = numbers[paths[0]]
    bounds = {bound for bound in _iter_clamped_values(text, value, str(paths[0][-1])) if bound != value}
    if len(bounds) != 1:
        return None
    (bound,) = bounds
    if isinstance(bound, float) and isinstance(value, int):
        return None  # an integer would become a float
    return _build_guess(paths[0], bound, "bound in error", "clamp")


def find_default_bound(error: str, arguments: Mapping[str, Any], properties: Mapping[str, Any]) -> Candidate | None:
    """Return the bound for an omitted argument, for suggestions only: the error names it, its default violates it.

    None if the error also names an argument of the call, which may be the one that it rejects. "The limit of 10" need
    not mean the argument `limit`: such an error must show the default too.
    """
    text = error[:MAX_SCANNED_CHARS]
    if any(isinstance(name, str) and contains_word(text, name) for name in arguments):
        return None
    defaults = {
        name: details["default"]
        for name, details in islice(properties.items(), _MAX_NUMERIC_ARGUMENTS)
        if isinstance(name, str) and isinstance(details, Mapping) and isinstance(details.get("default"), int | float)
        if name not in arguments and contains_word(text, name)
        if name.lower() not in _BOUND_WORDS or _stands_alone(_format_number(details["default"]), text)
    }
    bound = find_error_bound(error, defaults) if defaults else None
    return None if bound is None else _build_guess(bound.path, bound.after, "default bound", "clamp")


def find_expected_values(error: str, arguments: Mapping[str, Any]) -> list[Candidate]:
    """Return corrections to the value that an error expects, for suggestions only.

    The error must show a number or a sum of the call: "total price is 350, but paid 300" for a call that pays 300, or
    100 and 200. Which summand is wrong is unknown. The last one comes first, since it usually holds the remainder.
    """
    text = error[:MAX_SCANNED_CHARS]
    numbers = _select_relevant_numbers(text, arguments)
    expected_amounts, due_amounts, actual_amounts, all_amounts = (
        {float(match[1]) for match in re.finditer(pattern, text, re.IGNORECASE)}
        for pattern in (_EXPECTED, _DUE, _GIVEN, _ANY)
    )
    due_amounts -= expected_amounts
    shown_paths = {amount: paths for amount in all_amounts if (paths := _find_amount_paths(numbers, amount))}
    targets = (expected_amounts or due_amounts) - actual_amounts - shown_paths.keys()
    if not expected_amounts:
        shown_paths = {amount: paths for amount, paths in shown_paths.items() if amount in actual_amounts | due_amounts}
    if len(targets) != 1 or len(shown_paths) != 1:
        return []
    (target,), ((amount, paths),) = targets, shown_paths.items()
    if amount == target or amount * target <= 0 or not 1 / _MAX_AMOUNT_RATIO <= amount / target <= _MAX_AMOUNT_RATIO:
        return []
    strategy = "expected in error" if len(paths) == 1 else "rest in error"
    values = {path: match_number_type(round(numbers[path] + target - amount, 2), numbers[path]) for path in paths}
    return [_build_guess(path, values[path], strategy) for path in reversed(paths) if values[path] * target > 0]


def find_padded_text(error: str, arguments: Mapping[str, Any]) -> list[Candidate]:
    """Return the one short text with spaces or quotes around it that the error shows, without these."""
    text = error[:MAX_SCANNED_CHARS]
    # A longer text is content, whose spaces may count.
    candidates = [
        Candidate(bare, "trim", "trim", "call", path, "it has spaces or quotes around it")
        for path, value in iter_scalars(arguments, 50)
        if isinstance(value, str) and len(value) <= 120 and value != (bare := strip_quotes(value))
        if len(bare) > 1 and "\n" not in bare and contains_word(text, bare)
    ]
    return candidates if len(candidates) == 1 else []


def _build_guess(path: Path, after: float, strategy: str, operation: ChangeOperation = "substitute") -> Candidate:
    return Candidate(after, operation, strategy, "error", path, f"the error names {after}")


def _find_amount_paths(numbers: Mapping[Path, float], amount: float) -> list[Path]:
    """Return the path of the one number equal to an amount, or of the numbers of one list field that add up to it."""
    equal = [path for path, value in numbers.items() if value == amount]
    if equal:
        return equal if len(equal) == 1 else []  # otherwise ambiguous
    groups: dict[Path, list[Path]] = {}
    for path in numbers:
        groups.setdefault(tuple(part for part in path if isinstance(part, str)), []).append(path)
    # Numbers of longer lists are not added up.
    fitting = [
        paths
        for paths in groups.values()
        if 1 < len(paths) <= 10 and abs(sum(numbers[path] for path in paths) - amount) < 0.005
    ]
    return fitting[0] if len(fitting) == 1 else []


def _select_relevant_numbers(text: str, arguments: Mapping[str, Any]) -> dict[Path, float]:
    """Return the numbers that the text can refer to: those whose name it mentions, or all if it mentions none."""
    numbers = _find_numbers(arguments)
    names = {
        part for path in (*numbers, tuple(arguments)[:_MAX_NUMERIC_ARGUMENTS]) for part in path if isinstance(part, str)
    }
    mentioned_names = {name for name in names if contains_word(text, name)}
    return {path: value for path, value in numbers.items() if not mentioned_names or mentioned_names & set(path)}


def _find_numbers(arguments: Mapping[str, Any]) -> dict[Path, float]:
    """Return the numbers of a call that stand under a name by their paths, or nothing if there are too many."""
    numbers = {
        path: value
        for path, value in iter_scalars(arguments, sys.maxsize)  # a number left out could make another look unambiguous
        if is_number(value) and value == value and isinstance(path[-1], str)  # NaN compares with no bound
    }
    return numbers if len(numbers) <= _MAX_NUMERIC_ARGUMENTS else {}


def _format_number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value) if abs(value) < 10**15 else ""


def _stands_alone(word: str, text: str) -> bool:
    return bool(word) and re.search(rf"(?<![\w.-]){re.escape(word[:200])}(?![\w-]|\.\d)", text) is not None


def _iter_clamped_values(text: str, value: float, name: str) -> Iterator[float]:
    name_and_bound = (
        rf"(?: allowed)? ['\"`]?{re.escape(name[:200])}['\"`]?(?: is|:| =|=| of) ?{_NUMBER}"  # "max width is 4096"
    )
    upper, lower = rf"{_UPPER}|\b(?:maximum|max){name_and_bound}", rf"{_LOWER}|\b(?:minimum|min){name_and_bound}"
    for pattern, (has_upper, has_lower) in ((_BETWEEN, (True, True)), (upper, (True, False)), (lower, (False, True))):
        for match in re.finditer(pattern, text, re.IGNORECASE):
            bounds = [match_number_type(float(number), value) for number in match.groups() if number]
            if bounds[0] <= bounds[-1]:
                clamped = max(value, bounds[0]) if has_lower else value
                yield min(clamped, bounds[-1]) if has_upper else clamped
