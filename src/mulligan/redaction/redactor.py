"""Redactor: what is hidden from a record before it is written down (SAFETY 3)."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NoReturn

from mulligan.redaction import names as naming
from mulligan.redaction.detect import Found, detect
from mulligan.redaction.expressions import Expression
from mulligan.redaction.patterns import compiled
from mulligan.redaction.present import FOREIGN, clean
from mulligan.redaction.values import encodable, shortened

_DONE = Expression(r"\[redacted [a-z0-9_]{1,40}\]|\[(?:str \d{1,9} chars|int|float)(?: #[0-9a-f]{12})?\]")
_BETWEEN = Expression(rf"({_DONE.pattern})")
_WHOLE = 20_000
"""Characters: more than are left of any text."""
FLOOD = 60
"""Findings of a record after which nobody looks once more."""
PERSONAL = naming.words(
    """email phone card iban ssn national_id personal_number card_number account_number routing_number tax_id
    social_security passport_number"""
)
"""Kinds that are a person's, and give nobody access to anything."""
_COMMON = naming.words("true false none null undefined password secret token string example test bearer basic redacted")


class Redactor:
    """What may be written down, decided once.

    Level `local` keeps values unless their name says secret or detection finds something. Level `shared` keeps the
    values of `listed` names only; of the others it leaves type, length and, given a `key`, a hash by which equal values
    can be compared. Free text goes by detection at both.

    `names` are further names that say secret; `patterns` are regular expressions for further secrets (their first
    group, if they have one); what an expression of `allowed` matches whole is never hidden. With `personal=False`
    secrets alone are hidden: for a model, which may need an address or an account number to do its work.
    """

    __slots__ = ("_allowed", "_base", "_beside", "_key", "_listed", "_names", "_patterns", "_personal", "level")

    level: Literal["local", "shared"]
    _names: frozenset[str]
    _listed: frozenset[str]
    _patterns: tuple[tuple[str, re.Pattern[str]], ...]
    _allowed: tuple[re.Pattern[str], ...]
    _key: bytes
    _personal: bool
    _base: Redactor
    """What the same name was asked of before, whatever is known beside it."""
    _beside: dict[str, str]
    """Values that are secret wherever they stand, and what they are."""

    def __init__(
        self,
        *,
        level: Literal["local", "shared"] = "local",
        names: Iterable[str] = (),
        patterns: Iterable[str] = (),
        allowed: Iterable[str] = (),
        listed: Iterable[str] = (),
        key: bytes = b"",
        personal: bool = True,
    ) -> None:
        if level not in ("local", "shared"):
            raise ValueError(f'level is "local" or "shared", got {level!r}.')
        own = [_folded(name) for name in names]
        finders = [(_label(name), compiled(_assignment(name))) for name in own if name]
        finders += [("pattern", compiled(pattern)) for pattern in patterns]
        fields: dict[str, Any] = {
            "level": level,
            "_names": frozenset(own),
            "_listed": frozenset(listed),
            "_patterns": tuple(finders),
            "_allowed": tuple(compiled(pattern) for pattern in allowed),
            "_key": key,
            "_personal": personal,
            "_base": self,
            "_beside": {},
        }
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"A Redactor does not change; make another one to set {name}.")

    def knowing(self, *parts: Any) -> Redactor:
        """The same redactor, which hides everywhere what is secret in these parts of a record."""
        known = self._known(parts).values
        if not known:
            return self
        other = Redactor.__new__(Redactor)
        for field in self.__slots__:
            object.__setattr__(other, field, known if field == "_beside" else getattr(self, field))
        return other

    def findings(self, text: str) -> list[Found]:
        """What detection finds in a text, in order, none overlapping."""
        found = detect(text)
        return self._apart(text, found) if found or self._patterns else []

    def _apart(self, text: str, found: list[Found]) -> list[Found]:
        if not self._personal:
            found = [one for one in found if one[0] not in PERSONAL]
        for kind, pattern in self._patterns:
            group = 1 if pattern.groups else 0
            found += [(kind, *hit.span(group)) for hit in pattern.finditer(text) if hit[group]]
        if not found:
            return []
        found.sort(key=lambda one: (one[1], -one[2]))
        done = [hit.span() for hit in _DONE.finditer(text)] if "[" in text else []
        apart: list[Found] = []
        end = 0
        for kind, start, stop in found:
            if stop <= end or (done and any(a < stop and start < b for a, b in done)):
                continue
            if self._allowed and self._is_allowed(text[start:stop]):
                continue
            apart.append((kind, max(start, end), stop))
            end = stop
        return apart

    def text(self, text: str) -> str:
        """The text without what must not be written down; of one over 10 KB, its ends."""
        short = text if len(text) < 10_000 and text.isascii() else encodable(shortened(text))
        found = detect(short)
        apart = self._apart(short, found) if found or self._patterns else ()
        if not apart and not self._beside:  # as in most: no record is made of it
            return short
        known = _Known(self._beside)
        known.found(text, short, apart)
        redacted: str = self._hidden((text,), known)[0]
        return redacted

    def shown(self, text: str, limit: int = FOREIGN) -> str:
        """The text as a model may read it: without what must not leave, nothing hidden in it, both ends.

        Looked through before anything is cut, and once more where cleaning has changed it: a character that cannot be
        seen may stand in the middle of a secret.
        """
        hidden = self.text(text)
        shown = clean(hidden, _WHOLE)
        if shown != hidden:
            shown = self.text(shown)
        return clean(shown, limit)

    def value(self, value: Any, name: str = "") -> Any:
        """A copy of plain data without what must not be written down; its structure is kept."""
        if name:
            return next(iter(self.record({name: value})[0].values()))
        return self.record([value])[0][0]

    def record(self, *parts: Any) -> tuple[Any, ...]:
        """The parts of one record. What is found secret in one of them is removed from all.

        A part that is a string is free text; the values inside any other are arguments, each under its name.
        """
        return self._hidden(parts, self._known(parts))

    def _known(self, parts: tuple[Any, ...]) -> _Known:
        known = _Known(self._beside)
        for part in parts:
            self._collect(part, "", known)
        return known

    def _hidden(self, parts: tuple[Any, ...], known: _Known) -> tuple[Any, ...]:
        for _ in range(4):
            if not known.values and self.level == "local":
                return self._copies(parts, known)
            known.settle()
            parts = self._copies(parts, known)
            # Once more, where what was taken out may have hidden the name of what is left, or stood against it; but a
            # flood of findings is not to cost twice.
            if not known.spread and not 0 < sum(len(found) for _, found in known.texts.values()) <= FLOOD:
                break
            known = self._known(parts)
        return parts

    def _copies(self, parts: tuple[Any, ...], known: _Known) -> tuple[Any, ...]:
        shown = self.level == "local"
        return tuple(
            self._hidden_in(part, known) if type(part) is str else self._copy(part, "", shown, known) for part in parts
        )

    def says_secret(self, name: Any) -> str:
        """What a value of this name is that must be hidden; empty when its name says nothing."""
        if type(name) is not str:
            return ""
        if self._names and (folded := _folded(name)) in self._names:
            return _label(folded)
        kind = naming.secret(name)
        return kind if self._personal or kind not in PERSONAL else ""

    def _is_allowed(self, value: str) -> bool:
        return any(pattern.fullmatch(value) for pattern in self._allowed)

    def _goes_by_name(self, value: Any, name: str) -> bool:
        """Whether a name hides this value: a count of tokens is not a token."""
        if type(value) is str:
            return bool(name and value.strip()) and not _DONE.fullmatch(value) and not self._is_allowed(value)
        return bool(name) and type(value) in (int, float) and (name in naming.NUMBERS or name in self._names)

    def _collect(self, value: Any, name: str, known: _Known) -> None:
        """Everything in a value that must go, with its kind."""
        if self._goes_by_name(value, name):
            known.add(encodable(str(value)), name)
        elif type(value) is str:
            if value not in known.texts:
                text = encodable(shortened(value))
                known.found(value, text, self.findings(text))
        elif type(value) is dict:
            for key, inner in value.items():
                if type(key) is str and not _is_harmless(key, self._base):
                    self._collect(key, "", known)
                self._collect(inner, name or self.says_secret(key), known)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                self._collect(inner, name, known)

    def _copy(self, value: Any, name: str, shown: bool, known: _Known) -> Any:
        if type(value) is dict:
            copy: dict[Any, Any] = {}
            for key, inner in value.items():
                said = self._hidden_in_name(key, known)
                while said in copy:  # two secrets may leave one placeholder
                    said += "'"
                copy[said] = self._copy(inner, name or self.says_secret(key), shown or key in self._listed, known)
            return copy
        if isinstance(value, (list, tuple)):
            return [self._copy(inner, name, shown, known) for inner in value]
        if self._goes_by_name(value, name):
            return f"[redacted {name}]" if self.level == "local" else self._shape(value)
        if value is None or type(value) is bool:
            return value
        if type(value) is str:
            return self._hidden_in(value, known) if shown or _DONE.fullmatch(value) else self._shape(value)
        if not shown:
            return self._shape(value)
        return known.removed(text) if (text := str(value)) in known.values else value

    def _hidden_in(self, text: str, known: _Known) -> str:
        text, found = known.texts.get(text) or (encodable(shortened(text)), [])
        if not found and not known.values:
            return text
        pieces, last = [], 0
        for kind, start, end in found:
            pieces += [text[last:start], f"[redacted {kind}]"]
            last = end
        # Shortened again, for placeholders may be longer than what they replace.
        return shortened(known.removed("".join([*pieces, text[last:]])))

    def _hidden_in_name(self, name: Any, known: _Known) -> Any:
        # A word that happens to be somebody's password stays a name: without it the record cannot be read.
        if type(name) is not str or (name.isidentifier() and not known.texts.get(name, (name, ()))[1]):
            return name
        return self._hidden_in(name, known)

    def _shape(self, value: Any) -> str:
        text = str(value)
        length = f" {len(text)} chars" if type(value) is str else ""
        if not self._key:
            return f"[{type(value).__name__}{length}]"
        import hmac  # for stores that are shared, and takes long to import

        # Keyed: without the key, the hash of a short value is the value.
        digest = hmac.digest(self._key, text.encode("utf-8", "backslashreplace"), "sha256").hex()[:12]
        return f"[{type(value).__name__}{length} #{digest}]"


class _Known:
    """Values found secret somewhere in a record, and what was found in each of its texts."""

    __slots__ = ("ordered", "spread", "texts", "values")

    def __init__(self, values: dict[str, str]) -> None:
        self.texts: dict[str, tuple[str, Sequence[Found]]] = {}
        self.values = dict(values)
        self.ordered: list[str] = []
        self.spread = False
        """Whether a value was removed from where it could not be told by itself."""

    def found(self, given: str, text: str, findings: Sequence[Found]) -> None:
        """Keeps what was found in a text that was given, and shortened to another."""
        self.texts[given] = text, findings
        for kind, start, end in findings:
            self.add(text[start:end], kind)

    def add(self, value: str, kind: str) -> None:
        # A value of three characters, or a common word, would take innocent text with it.
        if len(value) > 3 and value.lower() not in _COMMON:
            self.values.setdefault(value, kind)

    def settle(self) -> None:
        """Longest first, so that one which contains another goes whole; and also as JSON or a URL would spell it."""
        escaped = any("\\" in text for text in self.texts)
        percent = any("%" in text for text in self.texts)
        for value, kind in list(self.values.items()) if escaped or percent else ():
            if value.isalnum():
                continue
            if escaped:
                self.values.setdefault(value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"), kind)
            if percent:
                self.values.setdefault(_percent(value), kind)
        self.ordered = sorted(self.values, key=len, reverse=True)

    def removed(self, text: str) -> str:
        left = [value for value in self.ordered if value in text]
        if not left:
            return text
        self.spread = True
        # Placeholders stay whole, whatever a password may be: they and what is taken out are single characters while we
        # look, halves of a pair that no text holds here. To compile an expression of all values would take far longer.
        pieces = _BETWEEN.split(text)
        plain = _HALF.join(pieces[::2])
        kinds: dict[str, str] = {}
        for value in left:
            half = kinds.setdefault(self.values[value], chr(0xD800 + len(kinds)))
            plain = plain.replace(value, half)
        for kind, half in kinds.items():
            plain = plain.replace(half, f"[redacted {kind}]")
        pieces[::2] = plain.split(_HALF)
        return "".join(pieces)


_HALF = "\udfff"


@functools.lru_cache(maxsize=2048)
def _is_harmless(name: str, redactor: Redactor) -> bool:
    """Whether nothing is found in a name of an argument: the same few come with every call."""
    return len(name) <= 40 and name.isidentifier() and not redactor.findings(name)


_SPECIAL = Expression(r"[^A-Za-z0-9_.~-]")


def _percent(value: str) -> str:
    return _SPECIAL.sub(lambda hit: "".join(f"%{c:02X}" for c in hit[0].encode("utf-8", "replace")), value)


def _folded(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.casefold(), flags=re.ASCII).strip("_")


def _assignment(name: str) -> str:
    """A name of the user's in free text: it stands before a value there."""
    spelt = re.escape(name).replace("_", r"[\W_]?")
    return rf"(?i:(?<![a-z0-9]){spelt})[\"']?\s{{0,3}}[:=]\s{{0,3}}[\"']?([^\s\"',;]{{1,200}})"


def _label(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name)[:40].strip("_") or "named"
