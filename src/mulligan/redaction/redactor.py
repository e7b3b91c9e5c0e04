"""Redaction of secrets and personal data before storage (SAFETY 3)."""

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
"""Longer than any text after truncation."""
FLOOD = 60
"""Findings in a record above which no second pass is made."""
PERSONAL = naming.words(
    """email phone card iban ssn national_id personal_number card_number account_number routing_number tax_id
    social_security passport_number"""
)
"""Kinds of personal data, as opposed to credentials."""
_COMMON = naming.words("true false none null undefined password secret token string example test bearer basic redacted")


class Redactor:
    """Redactor with fixed settings.

    Level `local` retains values unless their name indicates a secret or detection finds one. Level `shared` retains
    only the values of `unredacted_arguments`; of others it records type, length and, given a `key`, a hash for
    comparison. Free text is redacted by detection at both levels.

    `names` are further names that indicate a secret. `patterns` are regular expressions for further secrets (their
    first group, if any). A value that fully matches a pattern of `allowed` is never redacted. With `personal=False`
    only secrets are redacted: for a model, which may need an address or an account number.
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
    """The redactor without record secrets, as the cache key for argument names."""
    _beside: dict[str, str]
    """Values that are redacted everywhere, with their kind."""

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
        """Return a copy of the redactor that also redacts all secrets found in these parts of a record."""
        known = self._known(parts).values
        if not known:
            return self
        other = Redactor.__new__(Redactor)
        for field in self.__slots__:
            object.__setattr__(other, field, known if field == "_beside" else getattr(self, field))
        return other

    def findings(self, text: str) -> list[Found]:
        """Return the findings in a text, in order and without overlaps."""
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
        """Return the redacted text. Texts over 10 KB are truncated in the middle."""
        short = text if len(text) < 10_000 and text.isascii() else encodable(shortened(text))
        found = detect(short)
        apart = self._apart(short, found) if found or self._patterns else ()
        if not apart and not self._beside:  # fast path
            return short
        known = _Known(self._beside)
        known.found(text, short, apart)
        redacted: str = self._hidden((text,), known)[0]
        return redacted

    def shown(self, text: str, limit: int = FOREIGN) -> str:
        """Return the text for display to a model: redacted, sanitized, at most `limit` characters.

        It is redacted before truncation, and again if sanitizing changed it: a hidden character may split a secret.
        """
        hidden = self.text(text)
        shown = clean(hidden, _WHOLE)
        if shown != hidden:
            shown = self.text(shown)
        return clean(shown, limit)

    def value(self, value: Any, name: str = "") -> Any:
        """Return a redacted copy of plain data with the same structure."""
        if name:
            return next(iter(self.record({name: value})[0].values()))
        return self.record([value])[0][0]

    def record(self, *parts: Any) -> tuple[Any, ...]:
        """Redact the parts of one record. A secret found in one part is removed from all.

        A part that is a string is free text. The values inside any other part are arguments with their names.
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
            # Repeat if a removed value may have hidden the name of another secret or touched it, but not after very
            # many findings.
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
        """Return the kind of secret that a name indicates, or an empty string."""
        if type(name) is not str:
            return ""
        if self._names and (folded := _folded(name)) in self._names:
            return _label(folded)
        kind = naming.secret(name)
        return kind if self._personal or kind not in PERSONAL else ""

    def _is_allowed(self, value: str) -> bool:
        return any(pattern.fullmatch(value) for pattern in self._allowed)

    def _goes_by_name(self, value: Any, name: str) -> bool:
        """Return whether a name makes this value secret: a count of tokens is not a token."""
        if type(value) is str:
            return bool(name and value.strip()) and not _DONE.fullmatch(value) and not self._is_allowed(value)
        return bool(name) and type(value) in (int, float) and (name in naming.NUMBERS or name in self._names)

    def _collect(self, value: Any, name: str, known: _Known) -> None:
        """Collect all secrets in a value with their kind."""
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
                while said in copy:  # two secrets may have the same placeholder
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
        # Truncate again: placeholders may be longer than the redacted values.
        return shortened(known.removed("".join([*pieces, text[last:]])))

    def _hidden_in_name(self, name: Any, known: _Known) -> Any:
        # An argument name that equals a password stays: without it the record is unreadable.
        if type(name) is not str or (name.isidentifier() and not known.texts.get(name, (name, ()))[1]):
            return name
        return self._hidden_in(name, known)

    def _shape(self, value: Any) -> str:
        text = str(value)
        length = f" {len(text)} chars" if type(value) is str else ""
        if not self._key:
            return f"[{type(value).__name__}{length}]"
        import hmac  # lazy: needed for shared stores only, and slow to import

        # Keyed: a plain hash of a short value can be reversed.
        digest = hmac.digest(self._key, text.encode("utf-8", "backslashreplace"), "sha256").hex()[:12]
        return f"[{type(value).__name__}{length} #{digest}]"


class _Known:
    """Secrets found anywhere in a record, and the findings in each of its texts."""

    __slots__ = ("ordered", "spread", "texts", "values")

    def __init__(self, values: dict[str, str]) -> None:
        self.texts: dict[str, tuple[str, Sequence[Found]]] = {}
        self.values = dict(values)
        self.ordered: list[str] = []
        self.spread = False
        """Whether a value was removed where detection alone would not find it."""

    def found(self, given: str, text: str, findings: Sequence[Found]) -> None:
        """Add the findings in a text, which may be a truncated form of the original."""
        self.texts[given] = text, findings
        for kind, start, end in findings:
            self.add(text[start:end], kind)

    def add(self, value: str, kind: str) -> None:
        # Removing a short value or a common word would destroy unrelated text.
        if len(value) > 3 and value.lower() not in _COMMON:
            self.values.setdefault(value, kind)

    def settle(self) -> None:
        """Order values by length, so that a contained value does not split a longer one.

        Add JSON and URL escaped forms.
        """
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
        # Placeholders must stay intact even if a password occurs in them. Placeholders and removed values are replaced
        # by lone surrogates, which no text contains here. One pattern of all values would take far longer to compile.
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
    """Return whether an argument name contains no finding. Cached: the same few names occur in every call."""
    return len(name) <= 40 and name.isidentifier() and not redactor.findings(name)


_SPECIAL = Expression(r"[^A-Za-z0-9_.~-]")


def _percent(value: str) -> str:
    return _SPECIAL.sub(lambda hit: "".join(f"%{c:02X}" for c in hit[0].encode("utf-8", "replace")), value)


def _folded(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.casefold(), flags=re.ASCII).strip("_")


def _assignment(name: str) -> str:
    """Return a pattern for a value that follows a user-defined secret name in free text."""
    spelt = re.escape(name).replace("_", r"[\W_]?")
    return rf"(?i:(?<![a-z0-9]){spelt})[\"']?\s{{0,3}}[:=]\s{{0,3}}[\"']?([^\s\"',;]{{1,200}})"


def _label(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name)[:40].strip("_") or "named"
