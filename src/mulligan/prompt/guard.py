"""What of a stranger's text, name or value a model may see: searched for secrets, cleaned, bounded and marked."""

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
"""Characters of a tool's or argument's name that are shown: names come from models and strangers too."""
PATH = 40
"""Characters of the path of a changed argument."""
SHORT = 60
"""Characters of a value that are shown."""
CHANGES = 5
"""Changes, or names of what had to come first, that one sentence tells."""
LINES = 10
"""Calls that a report tells one by one."""
SENTENCE = 240
"""Characters of what a person wrote down as a mistake, or as what corrects it."""
WHOLE = 4000
"""Characters of it that are looked at."""


class Guard:
    """What a stranger wrote is searched for secrets, cleaned and marked; a sentence is had through it or not at all.

    Secrets alone are hidden, with the user's own names and patterns; personal data stays, for the model may need it.
    """

    __slots__ = ("_redactor",)

    def __init__(self, redactor: Redactor | None = None) -> None:
        if redactor is None:
            from mulligan.redaction import Redactor  # the larger half, and some only need the words

            redactor = Redactor(personal=False)
        self._redactor = redactor

    def beside(self, *values: Any) -> Self:
        """The same sentences about a call with these arguments: what is secret in them is hidden everywhere."""
        return type(self)(self._redactor.knowing(*(plain(value) for value in values)))

    def _line(self, text: str, limit: int) -> str:
        # Joined first: two harmless lines may make one that is not.
        return unmarked(" ".join(self._redactor.shown(" ".join(text.split()), limit).split()))

    def _quoted(self, text: str, tool: str, limit: int = FOREIGN) -> str:
        return quote(self._redactor.shown(text, limit), who=self._line(tool, NAME) or "tool")

    def _sentence(self, text: str) -> str:
        """What a person wrote, on one line that ends nothing and begins nothing: no mark, no fence, no heading."""
        if len(text) > WHOLE:  # between two words, or half of a secret might be left, which nobody would know for one
            text = text[:WHOLE].rpartition(" ")[0]
        return self._line(text, SENTENCE).replace("`", "'").rstrip(".!: ").lstrip("#>*-+=~_ ")

    def _shown(self, value: Any) -> str:
        """A value on one line, cut."""
        value = plain(value)  # first: the digits of a huge number, or a stranger's own repr, must not stop us
        if isinstance(value, str):
            return self._line(value, SHORT)
        return self._line(repr(self._redactor.value(value)), SHORT)  # by the names inside it too

    def _name(self, name: Any) -> str:
        """A name as it was met in another run, where it is one: a sentence in its place is somebody's text."""
        if not isinstance(name, str) or len(name) > NAME or not _NAME.fullmatch(name):
            return ""
        return name if self._redactor.text(name) == name else ""

    def _code(self, code: str) -> str:
        """A code of the other side's, where it is one: a sentence in its place belongs into the quotation."""
        return code if CODE.fullmatch(code) and self._line(code, NAME) == code else ""

    def _secret(self, path: str) -> str:
        """What a value at this path is, where any name on it says secret: `credentials.user` is one."""
        return next(filter(None, map(self._redactor.says_secret, path.split("."))), "")

    def _may_tell(self, path: str, value: Any, closed: Collection[str]) -> bool:
        """Whether a value of another run may be repeated."""
        return _is_closed(value, closed) and not self._secret(path)


def _is_closed(value: Any, closed: Collection[str]) -> bool:
    return value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and value in closed)


def unmarked(text: str) -> str:
    """Without what looks like the marks of a quotation: only `quote` says where foreign words begin and end."""
    return _MARKS.sub("(", text)


CODE = Expression(r"[A-Za-z0-9][\w.:/-]{0,47}", re.ASCII)
"""A code of one word, such as a kind."""
_NAME = Expression(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*", re.ASCII)
_MARKS = Expression(r"\[(?=\s{0,9}(?:said|end)\b)", re.IGNORECASE)


def tokens(text: str) -> int:
    """About how many tokens a model makes of a text, rather too many than too few."""
    plain_letters = sum(character.isascii() for character in text)
    return plain_letters // 3 + 2 * (len(text) - plain_letters)
