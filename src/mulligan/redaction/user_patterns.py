"""Validation of user-defined regular expressions, so that no text can make one run for hours."""

from __future__ import annotations

import re
from typing import Any


def compile_user_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a user-defined pattern. Raise ValueError if it is invalid or unsafe for untrusted text."""
    if len(pattern) > 2000:
        raise ValueError(
            f"Pattern of {len(pattern)} characters is too long, the maximum is 2000. Split it into several patterns."
        )
    try:
        expression = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern!r} is not a valid regular expression: {error}.") from None
    if _has_nested_repetition(pattern):
        raise ValueError(
            f"{pattern!r} has a nested repetition, which can take hours on some texts. Bound one of the two, as "
            f"in (a{{1,20}})+, or make the inner one possessive, as in (a++)+."
        )
    return expression


def _has_nested_repetition(pattern: str) -> bool:
    try:
        from re import _parser  # type: ignore[attr-defined]  # the only parser there is; without it nothing is refused
    except ImportError:
        return False
    return _contains_repetition(_parser.parse(pattern), False)


_UNBOUNDED_REPEATS = 256
"""A repetition with at least this maximum counts as unbounded."""


def _contains_repetition(tree: Any, is_inside_repetition: bool) -> bool:
    for operation, argument in tree:
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            is_long = argument[1] >= _UNBOUNDED_REPEATS
            if (is_long and is_inside_repetition) or _contains_repetition(argument[2], is_inside_repetition or is_long):
                return True
        elif name == "POSSESSIVE_REPEAT":  # no backtracking, so an outer repetition cannot split it again
            if _contains_repetition(argument[2], False):
                return True
        elif name == "BRANCH":
            if any(_contains_repetition(branch, is_inside_repetition) for branch in argument[1]):
                return True
        elif name == "SUBPATTERN":
            if _contains_repetition(argument[3], is_inside_repetition):
                return True
        elif name in ("ASSERT", "ASSERT_NOT"):
            if _contains_repetition(argument[1], is_inside_repetition):
                return True
        elif name == "ATOMIC_GROUP" and _contains_repetition(argument, False):
            return True
    return False
