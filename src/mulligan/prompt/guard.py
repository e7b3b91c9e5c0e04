"""Sanitizes untrusted text, names and values for models: redacts, cleans, bounds and quotes them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from mulligan.redaction import FOREIGN, plain, quote
from mulligan.redaction.expressions import Expression

if TYPE_CHECKING:
    from typing import Self

    from mulligan.redaction import Redactor

NAME = 80
"""Shown characters of tool and argument names, which may come from models and untrusted servers."""
PATH = 40
"""Shown characters of the path of a changed argument."""
SHORT = 60
"""Shown characters of a value."""
CHANGES = 5
"""Changes or prerequisites per sentence."""
LINES = 10
"""Calls that a report lists one by one."""
SENTENCE = 240
"""Shown characters of a mistake or correction that a person wrote."""
WHOLE = 4000
"""Characters of it that are read."""


class Guard:
    """Base class of all messages. Redacts, cleans and quotes untrusted text.

    Redacts only secrets, including the user's names and patterns. Personal data stays, because the model may need it.
    """

    __slots__ = ("_redactor",)

    def __init__(self, redactor: Redactor | None = None) -> None:
        if redactor is None:
            from mulligan.redaction import Redactor  # lazy: slow to import, and not always needed

            redactor = Redactor(personal=False)
        self._redactor = redactor

    def beside(self, *values: Any) -> Self:
        """Return the same messages for a call with these arguments: secrets in them are redacted in every message."""
        return type(self)(self._redactor.knowing(*(plain(value) for value in values)))

    def _line(self, text: str, limit: int) -> str:
        # Join lines first: a secret may be split over two lines.
        return unmarked(" ".join(self._redactor.shown(" ".join(text.split()), limit).split()))

    def _quoted(self, text: str, tool: str, limit: int = FOREIGN) -> str:
        return quote(self._redactor.shown(text, limit), who=self._line(tool, NAME) or "tool")

    def _sentence(self, text: str) -> str:
        """Return a person's text on one line that cannot end a quotation, open a code block or start a heading."""
        if len(text) > WHOLE:  # cut between words: half a secret would not be recognized
            text = text[:WHOLE].rpartition(" ")[0]
        return self._line(text, SENTENCE).replace("`", "'").rstrip(".!: ").lstrip("#>*-+=~_ ")

    def _shown(self, value: Any) -> str:
        """Return a value on one line, shortened."""
        value = plain(value)  # first: a huge number or a custom repr may raise
        if isinstance(value, str):
            return self._line(value, SHORT)
        return self._line(repr(self._redactor.value(value)), SHORT)  # redacts by the names inside the value too

    def _name(self, name: Any) -> str:
        """Return a name from another run if it has the form of a name; a sentence would be untrusted text."""
        if not isinstance(name, str) or len(name) > NAME or not _NAME.fullmatch(name):
            return ""
        return name if self._redactor.text(name) == name else ""

    def _code(self, code: str) -> str:
        """Return an error code if it has the form of a code; a sentence belongs into the quotation."""
        return code if CODE.fullmatch(code) and self._line(code, NAME) == code else ""

    def _secret(self, path: str) -> str:
        """Return the kind of secret if any name on the path indicates one, as in `credentials.user`."""
        return next(filter(None, map(self._redactor.says_secret, path.split("."))), "")

    def _may_tell(self, path: str, value: Any, closed: Collection[str]) -> bool:
        """Return whether a value of another run may be shown."""
        return _is_closed(value, closed) and not self._secret(path)


def _is_closed(value: Any, closed: Collection[str]) -> bool:
    return value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and value in closed)


def unmarked(text: str) -> str:
    """Remove text that imitates quotation marks of mulligan: only `quote_untrusted` may set them."""
    return _MARKS.sub("(", text)


CODE = Expression(r"[A-Za-z0-9][\w.:/-]{0,47}", re.ASCII)
"""A code of one word, such as a kind."""
_NAME = Expression(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*", re.ASCII)
_MARKS = Expression(r"\[(?=\s{0,9}(?:said|end)\b)", re.IGNORECASE)


def tokens(text: str) -> int:
    """Estimate the tokens of a text, rather too many than too few."""
    plain_letters = sum(character.isascii() for character in text)
    return plain_letters // 3 + 2 * (len(text) - plain_letters)
