"""What was said before is not classified again: a service that is down tells every caller the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.classify.fingerprint import quotes
from mulligan.failure import Failure

MOST = 500
"""Failures that are remembered; then it begins anew."""
LONGEST = 1000
"""Characters of a text worth remembering."""

_NAME = frozenset({str})
_TEXT = frozenset({str, type(None)})
_WHOLE = frozenset({int, type(None)})


class Memo:
    """Failures by what was said, for one classifier. Calls may have been about other things, if it does not say so."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Failure, str]] = {}

    def key(
        self, text: Any, arguments: Any, tool: Any, status: Any, exception: Any, *about: str | bool | None
    ) -> tuple[Any, ...] | None:
        """All that a failure follows from but the values of arguments; None where it is not to be remembered."""
        if type(text) is not str or len(text) > LONGEST:
            return None
        if type(tool) not in _TEXT or type(status) not in _WHOLE or type(exception) not in _TEXT:
            return None  # what is equal may still be another thing
        names: tuple[Any, ...] = ()
        if arguments is not None:
            if type(arguments) is not dict or "command" in arguments:
                return None  # the words of a command may say what has failed
            names = tuple(arguments)
            if not _NAME.issuperset(map(type, names)):
                return None
        return (text, names, tool, status, exception, *about)

    def find(self, key: tuple[Any, ...], arguments: Mapping[str, Any] | None) -> Failure | None:
        failure, said = self._known.get(key) or (None, "")
        return None if failure is None or quotes(said, arguments) else failure

    def keep(self, key: tuple[Any, ...], arguments: Mapping[str, Any] | None, failure: Failure, said: str) -> None:
        """`said` is what its fingerprint was made of."""
        if failure.retry_after is not None or quotes(said, arguments):
            return  # a moment may have been named; or a value, which is another the next time
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[key] = failure, said
