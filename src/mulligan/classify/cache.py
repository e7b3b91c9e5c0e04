"""Cache of classified texts: an unavailable service returns the same text to every caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.classify.fingerprint import may_quote_arguments
from mulligan.core.failure import Failure

MAX_CACHED_FAILURES = 500
"""Failures in the cache. It is cleared when it is full."""
MAX_CACHED_TEXT_CHARS = 1000
"""Longer texts are not cached."""

_NAME_TYPES = frozenset({str})
_OPTIONAL_TEXT_TYPES = frozenset({str, type(None)})
_OPTIONAL_INTEGER_TYPES = frozenset({int, type(None)})


class ClassificationCache:
    """Failures by text and context, for one classifier.

    Argument values are not part of the key, so a text that quotes one is not cached.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[Any, ...], tuple[Failure, str]] = {}

    def build_key(
        self, text: Any, arguments: Any, tool: Any, status: Any, exception: Any, *context: str | bool | None
    ) -> tuple[Any, ...] | None:
        """Return the cache key, with argument names but not values, or None if the call must not be cached."""
        if type(text) is not str or len(text) > MAX_CACHED_TEXT_CHARS:
            return None
        if (
            type(tool) not in _OPTIONAL_TEXT_TYPES
            or type(status) not in _OPTIONAL_INTEGER_TYPES
            or type(exception) not in _OPTIONAL_TEXT_TYPES
        ):
            return None  # values that compare equal may be of different types
        names: tuple[Any, ...] = ()
        if arguments is not None:
            if type(arguments) is not dict or "command" in arguments:
                return None  # the words of a command influence classification
            names = tuple(arguments)
            if not _NAME_TYPES.issuperset(map(type, names)):
                return None
        return (text, names, tool, status, exception, *context)

    def find(self, key: tuple[Any, ...], arguments: Mapping[str, Any] | None) -> Failure | None:
        failure, fingerprint_text = self._entries.get(key) or (None, "")
        return None if failure is None or may_quote_arguments(fingerprint_text, arguments) else failure

    def add(
        self, key: tuple[Any, ...], arguments: Mapping[str, Any] | None, failure: Failure, fingerprint_text: str
    ) -> None:
        """Add a failure. `fingerprint_text` is the text from which its fingerprint was computed."""
        if failure.retry_after is not None or may_quote_arguments(fingerprint_text, arguments):
            return  # the text may name a point in time, or an argument value, which differ in the next call
        if len(self._entries) >= MAX_CACHED_FAILURES:
            self._entries.clear()
        self._entries[key] = failure, fingerprint_text
