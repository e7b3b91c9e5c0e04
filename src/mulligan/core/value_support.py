"""Evidence for a new value: a limit that the error states, or a result received since the failure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from mulligan.core.argument_comparison import (
    COMMAND_ARGUMENTS,
    TARGET_ARGUMENTS,
    Comparison,
    is_same_text,
    is_word_of,
    leaf_of,
    result_text,
    root_of,
)
from mulligan.core.call_facts import OpenFailure
from mulligan.core.failure import Failure, Remedy
from mulligan.core.privileged_arguments import split_words
from mulligan.core.quantity_arguments import measures_quantity
from mulligan.core.records import LinkEvidence
from mulligan.core.stated_limits import follows_direction, supports_value

MAX_RESULT_MEMBERS = 200
"""Members of a result that are searched for a short value."""


def find_supported_values(failure: OpenFailure, comparison: Comparison) -> dict[str, LinkEvidence]:
    """Return the changed arguments whose new value has evidence of its own, with that evidence."""
    supported = {
        path: support
        for path, (old, new) in comparison.values.items()
        if (support := _find_value_support(failure, path, old, new)) is not None
    }
    cause = failure.call.failure
    # Beside another changed value, a smaller number may be chance. Too many requests are no number of this call.
    if len(comparison.values) == 1 and not supported and cause is not None and cause.remedy is not Remedy.RETRY:
        [(path, values)] = comparison.values.items()
        if measures_quantity(path, *values) and follows_direction(_error_text(cause), *values):
            return {path: "stated_limit"}
    return supported


def _find_value_support(failure: OpenFailure, path: str, old: Any, new: Any) -> LinkEvidence | None:
    cause = failure.call.failure
    if supports_value(_error_text(cause), old, new, is_quantity=measures_quantity(path, old, new)):
        return "stated_limit"
    if find_sources(new, failure, leaf_of(path)):
        return "tool_result"
    if cause is not None and cause.kind.is_about_quotation and leaf_of(path) not in TARGET_ARGUMENTS:
        return "same_text"  # the same edit with another quotation of the text that it replaces
    is_command = root_of(path) in COMMAND_ARGUMENTS
    return "same_text" if is_same_text(cause, old, new, is_command=is_command) else None


def _error_text(failure: Failure | None) -> str:
    return f"{failure.message}\n{failure.detail}"[:4000] if failure is not None else ""


def find_sources(value: Any, failure: OpenFailure, name: str) -> list[str]:
    """Return the tools whose results since the failure contain a value: it was looked up there."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return []
    text = str(value)
    # Shorter values are looked up only in fields whose name has a word of the argument's name.
    if len(text) >= 3:
        spellings = {text, msgspec.json.encode(text)[1:-1].decode()}  # results are searched as JSON
        results = [(tool, result_text(result)) for tool, result in failure.results]
        return [tool for tool, result in results if any(is_word_of(spelling, result) for spelling in spellings)]
    words = frozenset(word.casefold() for word in split_words(name))
    return [tool for tool, result in failure.results if _has_field(result, words, text)]


def _has_field(result: Any, words: Collection[str], text: str) -> bool:
    """Return whether a result has this value in a field whose name has one of these words. Bounded."""
    waiting: list[tuple[str, Any]] = [("", result)]
    for _ in range(MAX_RESULT_MEMBERS):
        if not waiting:
            break
        name, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(str(key), member) for key, member in list(value.items())[:MAX_RESULT_MEMBERS]]
        elif isinstance(value, list | tuple):
            waiting += [(name, member) for member in value[:MAX_RESULT_MEMBERS]]
        elif str(value) == text and any(word.casefold() in words for word in split_words(name)):
            return True
    return False
