"""Cache of classified texts: an unavailable service returns the same text to every caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.classify.fingerprint import quotes
from mulligan.failure import Failure

MOST = 500
"""Failures in the cache. It is cleared when it is full."""
LONGEST = 1000
"""Longer texts are not cached."""

_NAME = frozenset({str})
_TEXT = frozenset({str, type(None)})
_WHOLE = frozenset({int, type(None)})


class Memo:
    """Failures by text and context, for one classifier.

    Argument values are not part of the key, so a text that quotes one is not cached.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Failure, str]] = {}

    def key(
        self, text: Any, arguments: Any, tool: Any, status: Any, exception: Any, *about: str | bool | None
    ) -> tuple[Any, ...] | None:
        """Return the cache key, with argument names but not values, or None if the call must not be cached."""
        if type(text) is not str or len(text) > LONGEST:
            return None
        if type(tool) not in _TEXT or type(status) not in _WHOLE or type(exception) not in _TEXT:
            return None  # values that compare equal may be of different types
        names: tuple[Any, ...] = ()
        if arguments is not None:
            if type(arguments) is not dict or "command" in arguments:
                return None  # the words of a command influence classification
            names = tuple(arguments)
            if not _NAME.issuperset(map(type, names)):
                return None
        return (text, names, tool, status, exception, *about)

    def find(self, key: tuple[Any, ...], arguments: Mapping[str, Any] | None) -> Failure | None:
        failure, said = self._known.get(key) or (None, "")
        return None if failure is None or quotes(said, arguments) else failure

    def keep(self, key: tuple[Any, ...], arguments: Mapping[str, Any] | None, failure: Failure, said: str) -> None:
        """Add a failure. `fingerprint_text` is the text from which its fingerprint was computed."""
        if failure.retry_after is not None or quotes(said, arguments):
            return  # the text may name a point in time, or an argument value, which differ in the next call
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[key] = failure, said
