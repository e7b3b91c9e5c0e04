"""Sanitizes untrusted text, names and values for models: redacts, cleans, bounds and quotes them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from mulligan.core.failure import MAX_LABEL_CHARS, to_error_code, to_label
from mulligan.redaction import MAX_QUOTED_CHARS, quote_untrusted, to_plain_data
from mulligan.redaction.regex import LazyRegex

if TYPE_CHECKING:
    from typing import Self

    from mulligan.redaction import Redactor

MAX_PATH_CHARS = 40
"""Shown characters of the path of a changed argument."""
MAX_VALUE_CHARS = 60
"""Shown characters of a value."""
MAX_LISTED_CHANGES = 5
"""Changes or prerequisites per sentence."""
MAX_LISTED_CALLS = 10
"""Calls that a report lists one by one."""
MAX_SENTENCE_CHARS = 240
"""Shown characters of a mistake or correction that a person wrote."""
MAX_SCANNED_CHARS = 4000
"""Characters of it that are read."""


class Sanitizer:
    """Base class of all messages. Redacts, cleans and quotes untrusted text.

    Redacts only secrets, including the user's names and patterns. Personal data stays, because the model may need it.
    """

    __slots__ = ("_redactor",)

    def __init__(self, redactor: Redactor | None = None) -> None:
        if redactor is None:
            from mulligan.redaction import Redactor  # lazy: slow to import, and not always needed

            redactor = Redactor(personal=False)
        self._redactor = redactor

    def for_arguments(self, *values: Any) -> Self:
        """Return the same messages for a call with these arguments: secrets in them are redacted in every message."""
        return type(self)(self._redactor.with_secrets_from(*(to_plain_data(value) for value in values)))

    def _line(self, text: str, limit: int) -> str:
        return to_label(self._redactor, text, limit)

    def _label(self, name: str) -> str:
        return to_label(self._redactor, name)

    def _quote(self, text: str, tool: str, limit: int = MAX_QUOTED_CHARS) -> str:
        return quote_untrusted(self._redactor.text_for_display(text, limit), author=self._label(tool) or "tool")

    def _quote_line(self, text: str, tool: str) -> str:
        return self._quote(self._line(text, 160), tool)

    def _sentence(self, text: str) -> str:
        """Return a person's text on one line that cannot end a quotation, open a code block or start a heading."""
        if len(text) > MAX_SCANNED_CHARS:  # cut between words: half a secret would not be recognized
            text = text[:MAX_SCANNED_CHARS].rpartition(" ")[0]
        return self._line(text, MAX_SENTENCE_CHARS).replace("`", "'").rstrip(".!: ").lstrip("#>*-+=~_ ")

    def _display_value(self, value: Any) -> str:
        """Return a value on one line, shortened. Lists and objects are JSON, as a model writes them."""
        value = to_plain_data(value)  # first: a huge number or a custom repr may raise
        if isinstance(value, str):
            return self._line(value, MAX_VALUE_CHARS)
        # Redacts by the names inside the value too.
        value = self._redactor.value(value)
        import json  # lazy: rarely needed

        text = json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else repr(value)
        return self._line(text, MAX_VALUE_CHARS)

    def _display_argument(self, value: Any) -> str:
        """Return a value to pass. A text that reads as a number is quoted: otherwise a model would pass the number."""
        is_ambiguous = isinstance(value, str) and _JSON_SCALAR.fullmatch(value) is not None
        return f'"{value}"' if is_ambiguous else self._display_value(value)

    def _name(self, name: Any) -> str:
        """Return a name from another run if it has the form of a name; a sentence would be untrusted text."""
        if not isinstance(name, str) or len(name) > MAX_LABEL_CHARS or not _NAME.fullmatch(name):
            return ""
        return name if self._redactor.text(name) == name else ""

    def _code(self, code: str) -> str:
        return to_error_code(self._redactor, code)

    def _secret_kind(self, path: str) -> str:
        """Return the kind of secret if any name on the path indicates one, as in `credentials.user`."""
        return next(filter(None, map(self._redactor.secret_kind_of_name, path.split("."))), "")

    def _is_shareable(self, path: str, value: Any, shareable: Collection[str]) -> bool:
        """Return whether a value of another run may be shown."""
        is_shareable = value in shareable if isinstance(value, str) else isinstance(value, bool | int | float | None)
        return is_shareable and not self._secret_kind(path)


_JSON_SCALAR = LazyRegex(r"-?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,4})?|true|false|null|True|False|None")
_NAME = LazyRegex(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*", re.ASCII)


def estimate_prompt_tokens(text: str) -> int:
    """Estimate the tokens of a text, rather too many than too few."""
    plain_letters = sum(character.isascii() for character in text)
    return plain_letters // 3 + 2 * (len(text) - plain_letters)
