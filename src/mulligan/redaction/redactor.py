"""Redactor: what is hidden from a record before it is written down (SAFETY 3)."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from mulligan.redaction import names as naming
from mulligan.redaction.detect import detect
from mulligan.redaction.values import encodable, shortened


class Finding(NamedTuple):
    """Where in a text something must not be written down, and what it is."""

    kind: str
    start: int
    end: int


_DONE = re.compile(r"\[redacted [a-z0-9_]{1,40}\]|\[(?:str|int|float) (?:\d+ chars)?(?: ?#[0-9a-f]{12})?\]")
_COMMON = naming.words(
    "true false none null nil undefined password secret token string example test changeme bearer basic"
)


class Redactor:
    """What may be written down, decided once.

    Level `local` keeps values unless their name says secret or detection finds something. Level `shared` keeps the
    values of `listed` names only; of the others it leaves type, length and, given a `key`, a hash by which equal values
    can be compared.
    """

    __slots__ = ("_allowed", "_key", "_listed", "_names", "_patterns", "level")

    def __init__(
        self,
        *,
        level: Literal["local", "shared"] = "local",
        names: Iterable[str] = (),
        patterns: Iterable[str] = (),
        allowed: Iterable[str] = (),
        listed: Iterable[str] = (),
        key: bytes = b"",
    ) -> None:
        if level not in ("local", "shared"):
            raise ValueError(f'level is "local" or "shared", got {level!r}.')
        self.level = level
        self._names = frozenset(_folded(name) for name in names)
        self._listed = frozenset(listed)
        self._patterns = tuple(_compiled(pattern) for pattern in patterns)
        self._allowed = tuple(_compiled(pattern) for pattern in allowed)
        self._key = key

    def findings(self, text: str) -> list[Finding]:
        """What detection finds in a text, in order, none overlapping."""
        found = [Finding(kind, start, end) for kind, start, end in detect(text)]
        for pattern in self._patterns:
            found += [Finding("pattern", *hit.span()) for hit in pattern.finditer(text) if hit.end() > hit.start()]
        return [one for one in _apart(found) if not self._is_allowed(text[one.start : one.end])]

    def text(self, text: str) -> str:
        """The text without what must not be written down."""
        redacted: str = self.record(text)[0]
        return redacted

    def value(self, value: Any, name: str = "") -> Any:
        """A copy of plain data without what must not be written down; its structure is kept."""
        return self.record({name: value})[0][name] if name else self.record(value)[0]

    def record(self, *parts: Any) -> tuple[Any, ...]:
        """The parts of one record. What is found secret in one of them is removed from all."""
        found: dict[str, str] = {}
        for part in parts:
            self._collect(part, "", found)
        known = _Known(found)
        return tuple(
            self._hidden_in(part, known) if type(part) is str else self._copy(part, "", self.level == "local", known)
            for part in parts
        )

    def _says_secret(self, name: str) -> str:
        if self._names and _folded(name) in self._names:
            return _folded(name)[:40] if _folded(name).isascii() else "named"
        return naming.secret(name)

    def _is_allowed(self, value: str) -> bool:
        return any(pattern.fullmatch(value) for pattern in self._allowed)

    def _collect(self, value: Any, name: str, found: dict[str, str]) -> None:
        """Every value that must go, with its kind."""
        if type(value) is str:
            if (
                name
                and not self._is_allowed(value)
                and value.strip().lower() not in _COMMON
                and not _DONE.fullmatch(value)
            ):
                found.setdefault(value, name)
            for one in self.findings(shortened(value)):
                found.setdefault(shortened(value)[one.start : one.end], one.kind)
        elif type(value) is dict:
            for key, inner in value.items():
                self._collect(inner, name or self._says_secret(str(key)), found)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                self._collect(inner, name, found)
        elif name and type(value) in (int, float) and abs(value) > 999:
            found.setdefault(str(value), name)

    def _hidden_in(self, text: str, known: _Known) -> str:
        text = encodable(shortened(text))
        pieces, last = [], 0
        for kind, start, end in self.findings(text):
            pieces += [text[last:start], f"[redacted {kind}]"]
            last = end
        return known.removed("".join([*pieces, text[last:]]))

    def _copy(self, value: Any, name: str, shown: bool, known: _Known) -> Any:
        if type(value) is dict:
            return {
                key: self._copy(inner, name or self._says_secret(str(key)), shown or key in self._listed, known)
                for key, inner in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._copy(inner, name, shown, known) for inner in value]
        if value is None or type(value) is bool:
            return value
        if type(value) is str and _DONE.fullmatch(value):
            return value
        if name and not (type(value) is str and self._is_allowed(value)):
            return f"[redacted {name}]" if self.level == "local" or not self._key else self._shape(value)
        if not shown:
            return self._shape(value)
        if type(value) is str:
            return self._hidden_in(value, known)
        return known.kind_of(str(value)) or value

    def _shape(self, value: Any) -> str:
        text = str(value)
        length = f" {len(text)} chars" if type(value) is str else ""
        if not self._key:
            return f"[{type(value).__name__}{length}]"
        # Keyed: without the key, the hash of a short value is the value.
        digest = hmac.new(self._key, text.encode("utf-8", "backslashreplace"), hashlib.sha256).hexdigest()[:12]
        return f"[{type(value).__name__}{length} #{digest}]"


class _Known:
    """Values found secret somewhere in a record."""

    def __init__(self, found: dict[str, str]) -> None:
        # Longest first, so that a value that contains another goes whole. Very short ones would take words with them.
        self.values = sorted(((v, k) for v, k in found.items() if len(v) >= 4), key=lambda pair: -len(pair[0]))

    def removed(self, text: str) -> str:
        for value, kind in self.values:
            if value in text:
                text = text.replace(value, f"[redacted {kind}]")
        return text

    def kind_of(self, text: str) -> str:
        return next((f"[redacted {kind}]" for value, kind in self.values if value == text), "")


def _apart(found: list[Finding]) -> Iterator[Finding]:
    end = 0
    for one in sorted(found, key=lambda one: (one.start, -one.end)):
        if one.start >= end:
            yield one
            end = one.end
        elif one.end > end:
            yield Finding(one.kind, end, one.end)
            end = one.end


def _folded(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.casefold()).strip("_")


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}.") from None
