"""Redaction of secrets and personal data before storage (SAFETY 3)."""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Literal

from mulligan.redaction import personal_data, secret_contexts, secret_formats
from mulligan.redaction.plain_data import HIDDEN_VALUE_PATTERN, escape_surrogates, truncate_text
from mulligan.redaction.regex import LazyRegex, compile_user_pattern
from mulligan.redaction.secret_hints import BARRIER, NUMERIC_KINDS, secret_kind, word_set
from mulligan.redaction.text_sanitizer import MAX_QUOTED_CHARS, sanitize

_Position = Literal["top", "quantity", "inside"]
"""Where a value stands in a record: a whole part of it, under the name of a quantity, or anywhere else."""
SensitiveSpan = tuple[str, int, int]
"""Kind, start and end of a sensitive span in a text."""

_SEPARATOR = f"\n{BARRIER} \n"

_PLACEHOLDER = LazyRegex(rf"\[redacted [a-z0-9_]{{1,40}}\]|{HIDDEN_VALUE_PATTERN}")
_PLACEHOLDER_SPLIT = LazyRegex(rf"({_PLACEHOLDER.pattern})")
QUANTITY_NAMES = word_set(
    """limit perpage pagesize batchsize chunksize topk topn maxresults numresults maxitems maxtokens maxretries maxdepth
    timeout timeoutseconds timeoutms"""
)
"""Arguments that size or time a request. A store with several users keeps their small numbers: a number of results or
seconds names no one and opens nothing, and without it a team's memory could suggest no page size."""
MAX_QUANTITY = 100_000
PERSONAL_KINDS = word_set(
    """email phone card iban ssn national_id personal_number card_number account_number routing_number tax_id
    social_security passport_number"""
)
"""Kinds of personal data, as opposed to credentials."""
_COMMON = word_set(
    """true false none null undefined password secret token string example test bearer basic redacted root admin user
    guest demo postgres mysql redis oracle"""
)
"""Words that stay elsewhere in a record, even if they are a password of it. Many are names of users."""


class Redactor:
    """Redactor with fixed settings.

    Level `local` retains values unless their name indicates a secret or detection finds one. Level `shared` retains
    only the values of `unredacted_arguments` and, with `keeps_quantities`, small numbers of the arguments in
    `QUANTITY_NAMES`; of others it records type, length and, given a `key`, a hash for comparison. Free text is
    redacted by detection at both levels.

    `names` are further names that indicate a secret. `patterns` are regular expressions for further secrets (their
    first group, if any). A value that fully matches a pattern of `allowed` is never redacted. With `personal=False`
    only secrets are redacted: for a model, which may need an address or an account number.
    """

    def __init__(
        self,
        *,
        level: Literal["local", "shared"] = "local",
        names: Iterable[str] = (),
        patterns: Iterable[str] = (),
        allowed: Iterable[str] = (),
        unredacted_arguments: Iterable[str] = (),
        keeps_quantities: bool = False,
        key: bytes = b"",
        personal: bool = True,
    ) -> None:
        if level not in ("local", "shared"):
            raise ValueError(f'level must be "local" or "shared", got {level!r}.')
        self._level = level
        self._names = dict.fromkeys(map(_fold_name, names))
        self._unredacted_arguments = frozenset(unredacted_arguments)
        self._outer_position: _Position = "top" if keeps_quantities else "inside"
        self._patterns = [(_label(name), compile_user_pattern(_assignment(name))) for name in self._names if name]
        self._patterns += [("pattern", compile_user_pattern(pattern)) for pattern in patterns]
        self._allowed = [compile_user_pattern(pattern) for pattern in allowed]
        self._key = key
        self._personal = personal
        self._base = self
        """The redactor without record secrets, as the cache key for argument names."""
        self._known_secrets: dict[str, str] = {}
        """Values that are redacted everywhere, with their kind."""

    @property
    def level(self) -> Literal["local", "shared"]:
        return self._level

    def with_secrets_from(self, *parts: Any) -> Redactor:
        """Return a copy of the redactor that also redacts all secrets found in these parts of a record."""
        secrets = self._collect_secrets(parts).values
        if not secrets:
            return self
        other = Redactor.__new__(Redactor)
        other.__dict__.update(self.__dict__, _known_secrets=secrets)
        return other

    def findings(self, text: str) -> list[SensitiveSpan]:
        """Return the findings in a text, in order and without overlaps."""
        spans = find_sensitive(text)
        return self._without_overlaps(text, spans) if spans or self._patterns else []

    def find_in_texts(self, texts: Iterable[str]) -> dict[str, list[SensitiveSpan]]:
        """Return the findings of each text that has any, in order and without overlaps."""
        spans_by_text = find_in_texts(texts)
        if self._patterns:
            spans_by_text = {text: spans_by_text.get(text, []) for text in texts}
        return {
            text: distinct_spans
            for text, spans in spans_by_text.items()
            if (distinct_spans := self._without_overlaps(text, spans))
        }

    def find_changed_texts(self, texts: Sequence[str]) -> set[str]:
        """Return the texts that redaction changes at level `local`, each by itself."""
        changed_texts = set(self.find_in_texts(texts))
        if not all(map(str.isascii, texts)) or max(map(len, texts), default=0) >= _MAX_UNCUT_CHARS:
            changed_texts.update(text for text in texts if _shorten(text) != text)
        return changed_texts

    def _without_overlaps(self, text: str, spans: list[SensitiveSpan]) -> list[SensitiveSpan]:
        if not self._personal:
            spans = [span for span in spans if span[0] not in PERSONAL_KINDS]
        for kind, pattern in self._patterns:
            group = 1 if pattern.groups else 0
            spans += [(kind, *hit.span(group)) for hit in pattern.finditer(text) if hit[group]]
        spans.sort(key=lambda span: (span[1], -span[2]))
        redacted_ranges = [hit.span() for hit in _PLACEHOLDER.finditer(text)] if "[" in text else []
        distinct_spans: list[SensitiveSpan] = []
        end = 0
        for kind, start, stop in spans:
            if stop <= end or (redacted_ranges and any(a < stop and start < b for a, b in redacted_ranges)):
                continue
            if not self._allowed or not self._is_allowed(text[start:stop]):
                distinct_spans.append((kind, max(start, end), stop))
                end = stop
        return distinct_spans

    def text(self, text: str) -> str:
        """Return the redacted text. Texts over 10 KB are truncated in the middle."""
        short = text if len(text) < _MAX_UNCUT_CHARS and text.isascii() else _shorten(text)
        spans = find_sensitive(short)
        if spans or self._patterns:
            spans = self._without_overlaps(short, spans)
        if not spans and not self._known_secrets:  # fast path
            return short
        secrets = _RecordSecrets(self._known_secrets)
        secrets.add_findings(text, short, spans)
        redacted: str = self._redact_parts((text,), secrets)[0]
        return redacted

    def text_for_display(self, text: str, limit: int = MAX_QUOTED_CHARS) -> str:
        """Return the text for display to a model: redacted, sanitized, at most `limit` characters.

        It is redacted before truncation, and again if sanitizing changed it: a hidden character may split a secret.
        """
        hidden = self.text(text)
        displayed = sanitize(hidden, 20_000)  # longer than any text after truncation
        if displayed != hidden:
            displayed = self.text(displayed)
        return sanitize(displayed, limit)

    def value(self, value: Any) -> Any:
        """Return a redacted copy of plain data with the same structure."""
        return self.record([value])[0][0]

    def record(self, *parts: Any) -> tuple[Any, ...]:
        """Redact the parts of one record. A secret found in one part is removed from all.

        A part that is a string is free text. The values inside any other part are arguments with their names.
        """
        return self._redact_parts(parts, self._collect_secrets(parts))

    def _collect_secrets(self, parts: tuple[Any, ...]) -> _RecordSecrets:
        secrets = _RecordSecrets(self._known_secrets)
        if len(parts) == 1 and type(parts[0]) is str:  # the common case
            text = _shorten(parts[0])
            secrets.add_findings(parts[0], text, self.findings(text))
            return secrets
        leaves: list[tuple[str, str]] = []
        for part in parts:
            self._collect_leaves(part, "", leaves)
        texts = {text: _shorten(text) for text, name in leaves if not name}
        findings = self.find_in_texts(texts.values())
        for text, name in leaves:
            if name:
                secrets.add(escape_surrogates(text), name)
            elif text not in secrets.texts:
                secrets.add_findings(text, texts[text], findings.get(texts[text], ()))
        return secrets

    def _redact_parts(self, parts: tuple[Any, ...], secrets: _RecordSecrets) -> tuple[Any, ...]:
        for _ in range(4):
            if not secrets.values and self._level == "local":
                return self._copy_parts(parts, secrets)
            secrets.prepare()
            parts = self._copy_parts(parts, secrets)
            # Repeat if a removed value may have hidden the name of another secret or touched it, but not after very
            # many findings.
            findings_count = sum(len(spans) for _, spans in secrets.texts.values())
            # Findings in a record above which no second pass is made.
            if not secrets.spread and not 0 < findings_count <= 60:
                break
            secrets = self._collect_secrets(parts)
        return parts

    def _copy_parts(self, parts: tuple[Any, ...], secrets: _RecordSecrets) -> tuple[Any, ...]:
        is_local = self._level == "local"
        return tuple(
            self._redact_in_text(part, secrets)
            if type(part) is str
            else self._copy(part, "", is_local, secrets, self._outer_position)
            for part in parts
        )

    def secret_kind_of_name(self, name: Any) -> str:
        """Return the kind of secret that a name indicates, or an empty string."""
        if type(name) is not str:
            return ""
        if self._names and (folded_name := _fold_name(name)) in self._names:
            return _label(folded_name)
        kind = secret_kind(name)
        return kind if self._personal or kind not in PERSONAL_KINDS else ""

    def _is_allowed(self, value: str) -> bool:
        return any(pattern.fullmatch(value) for pattern in self._allowed)

    def _is_secret_by_name(self, value: Any, name: str) -> bool:
        """Return whether a name makes this value secret: a count of tokens is not a token."""
        if type(value) is str:
            return bool(name and value.strip()) and not _PLACEHOLDER.fullmatch(value) and not self._is_allowed(value)
        return bool(name) and type(value) in (int, float) and (name in NUMERIC_KINDS or name in self._names)

    def _collect_leaves(self, value: Any, name: str, leaves: list[tuple[str, str]]) -> None:
        """Collect the texts in a value, each with an empty name, and the values that a name makes secret."""
        if self._is_secret_by_name(value, name):
            leaves.append((str(value), name))
        elif type(value) is str:
            leaves.append((value, ""))
        elif type(value) is dict:
            for key, inner in value.items():
                if type(key) is str and not _is_harmless(key, self._base):
                    leaves.append((key, ""))
                self._collect_leaves(inner, name or self.secret_kind_of_name(key), leaves)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                self._collect_leaves(inner, name, leaves)

    def _copy(
        self, value: Any, name: str, should_show_values: bool, secrets: _RecordSecrets, position: _Position = "inside"
    ) -> Any:
        if type(value) is dict:
            copy: dict[Any, Any] = {}
            for key, inner in value.items():
                safe_name = self._redact_name(key, secrets)
                while safe_name in copy:  # two secrets may have the same placeholder
                    safe_name += "'"
                is_shown = should_show_values or key in self._unredacted_arguments
                inner_position: _Position = "quantity" if _is_quantity(key, position) else "inside"
                copy[safe_name] = self._copy(
                    inner, name or self.secret_kind_of_name(key), is_shown, secrets, inner_position
                )
            return copy
        if isinstance(value, (list, tuple)):
            inner_position = "top" if position == "top" else "inside"
            return [self._copy(inner, name, should_show_values, secrets, inner_position) for inner in value]
        if self._is_secret_by_name(value, name):
            return f"[redacted {name}]" if self._level == "local" else self._shape(value)
        if value is None or type(value) is bool:
            return value
        if type(value) is str:
            is_shown = should_show_values or _PLACEHOLDER.fullmatch(value) is not None
            return self._redact_in_text(value, secrets) if is_shown else self._shape(value)
        if not should_show_values and not (position == "quantity" and 0 <= value <= MAX_QUANTITY):
            return self._shape(value)
        return secrets.remove_secrets(text) if (text := str(value)) in secrets.values else value

    def _redact_in_text(self, text: str, secrets: _RecordSecrets) -> str:
        text, spans = secrets.texts.get(text) or (_shorten(text), ())
        if not spans and not secrets.values:
            return text
        pieces, last = [], 0
        for kind, start, end in spans:
            pieces += [text[last:start], f"[redacted {kind}]"]
            last = end
        # Truncate again: placeholders may be longer than the redacted values.
        return truncate_text(secrets.remove_secrets("".join([*pieces, text[last:]])))

    def _redact_name(self, name: Any, secrets: _RecordSecrets) -> Any:
        # An argument name that equals a password stays: without it the record is unreadable.
        if type(name) is not str or (name.isidentifier() and not secrets.texts.get(name, (name, ()))[1]):
            return name
        return self._redact_in_text(name, secrets)

    def _shape(self, value: Any) -> str:
        text = str(value)
        length = f" {len(text)} chars" if type(value) is str else ""
        if not self._key:
            return f"[{type(value).__name__}{length}]"
        return f"[{type(value).__name__}{length} #{hash_value(self._key, text)}]"


def hash_value(key: bytes, text: str) -> str:
    """Return the hash by which hidden values are compared. Without the key, short values could be found by trying."""
    import hmac  # lazy: needed for shared stores only, and slow to import

    return hmac.digest(key, text.encode("utf-8", "backslashreplace"), "sha256").hex()[:12]


class _RecordSecrets:
    """Secrets found anywhere in a record, and the findings in each of its texts."""

    __slots__ = ("ordered", "spread", "texts", "values")

    def __init__(self, values: dict[str, str]) -> None:
        self.texts: dict[str, tuple[str, Sequence[SensitiveSpan]]] = {}
        self.values = dict(values)
        self.ordered: list[str] = []
        self.spread = False
        """Whether a value was removed where detection alone would not find it."""

    def add_findings(self, original: str, text: str, findings: Sequence[SensitiveSpan]) -> None:
        """Add the findings in a text, which may be a truncated form of the original."""
        self.texts[original] = text, findings
        for kind, start, end in findings:
            self.add(text[start:end], kind)

    def add(self, value: str, kind: str) -> None:
        # Removing a short value or a common word would destroy unrelated text.
        if len(value) > 3 and value.lower() not in _COMMON:
            self.values.setdefault(value, kind)
        if kind == "url_credential" and ":" in value:  # a message may repeat the password alone
            self.add(value.partition(":")[2], "password")

    def prepare(self) -> None:
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

    def remove_secrets(self, text: str) -> str:
        present_values = [value for value in self.ordered if value in text]
        if not present_values:
            return self._remove_piece(text)
        self.spread = True
        # Placeholders must stay intact even if a password occurs in them. Placeholders and removed values are replaced
        # by lone surrogates, which no text contains here. One pattern of all values would take far longer to compile.
        pieces = _PLACEHOLDER_SPLIT.split(text)
        unmarked_text = _PLACEHOLDER_MARK.join(pieces[::2])
        kinds: dict[str, str] = {}
        for value in present_values:
            half = kinds.setdefault(self.values[value], chr(0xD800 + len(kinds)))
            # Letters of a secret that is removed only as a whole word elsewhere: "pony" stays in "ponytail".
            if len(value) <= 7 and value.isalpha():
                unmarked_text = re.sub(rf"(?<![^\W_]){value}(?![^\W_])", half, unmarked_text)
            else:
                unmarked_text = unmarked_text.replace(value, half)
        for kind, half in kinds.items():
            unmarked_text = unmarked_text.replace(half, f"[redacted {kind}]")
        pieces[::2] = unmarked_text.split(_PLACEHOLDER_MARK)
        return "".join(pieces)

    def _remove_piece(self, text: str) -> str:
        """Return a placeholder for a text that is half of a secret or more, as a repair may read it from a message.

        A text without a digit stays: it may be a word that a password contains, such as a user.
        """
        if len(text) < 6 or not any(map(str.isdigit, text)):
            return text
        secret = next((value for value in self.ordered if text in value and 2 * len(text) >= len(value)), None)
        return text if secret is None else f"[redacted {self.values[secret]}]"


_PLACEHOLDER_MARK = "\udfff"
_MAX_UNCUT_CHARS = 10_000
"""Characters of a text that is never cut."""


def _shorten(text: str) -> str:
    return text if len(text) < _MAX_UNCUT_CHARS and text.isascii() else escape_surrogates(truncate_text(text))


@functools.lru_cache(maxsize=2048)
def _is_harmless(name: str, redactor: Redactor) -> bool:
    """Return whether an argument name contains no finding. Cached: the same few names occur in every call."""
    return len(name) <= 40 and name.isidentifier() and not redactor.findings(name)


def _is_quantity(name: Any, position: _Position) -> bool:
    """Return whether a value under this name, in a value at this position, is a quantity."""
    if position == "top":
        return type(name) is str and name.casefold().replace("_", "").replace("-", "") in QUANTITY_NAMES
    return position == "quantity" and name == ""  # a change of an argument is redacted as {argument: {"": value}}


def _percent(value: str) -> str:
    return re.sub(
        r"[^\w.~-]", lambda hit: "".join(f"%{c:02X}" for c in hit[0].encode("utf-8", "replace")), value, flags=re.ASCII
    )


def _fold_name(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.casefold(), flags=re.ASCII).strip("_")


def _assignment(name: str) -> str:
    """Return a pattern for a value that follows a user-defined secret name in free text."""
    name_pattern = re.escape(name).replace("_", r"[\W_]?")
    return rf"(?i:(?<![a-z0-9]){name_pattern})[\"']?\s{{0,3}}[:=]\s{{0,3}}[\"']?([^\s\"',;]{{1,200}})"


def _label(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name)[:40].strip("_") or "named"


# Search of many texts


def find_in_texts(texts: Iterable[str]) -> dict[str, list[SensitiveSpan]]:
    """Return the findings of each text that has any. They may overlap.

    Most texts have none, and starting a search costs as much as a hundred characters. So texts are searched together,
    with a barrier between them that no finding crosses. Only those with a finding are then searched alone.
    """
    findings: dict[str, list[SensitiveSpan]] = {}
    _search_group(list(dict.fromkeys(texts)), findings)
    return findings


def _search_group(group: list[str], findings: dict[str, list[SensitiveSpan]]) -> None:
    if len(group) > 1 and sum(map(len, group)) > 8_000:  # characters of texts that are searched together
        middle = len(group) // 2
        _search_group(group[:middle], findings)
        _search_group(group[middle:], findings)
        return
    spans = find_sensitive(_SEPARATOR.join(group))
    if len(group) == 1 and spans:
        findings[group[0]] = spans
    elif spans:
        ends = list(accumulate(len(text) + len(_SEPARATOR) for text in group))
        hits = {bisect_right(ends, position) for _, start, end in spans for position in (start, end - 1)}
        for index in sorted(hits):
            if own_spans := find_sensitive(group[index]):
                findings[group[index]] = own_spans


def find_sensitive(text: str) -> list[SensitiveSpan]:
    """Return kind, start and end of all findings in one text. They may overlap.

    Each finder runs only if the text contains what its findings begin with.
    """
    if text.isascii():
        raw, lower_text = text.encode(), text.lower()
    else:  # one byte per character, so that indexes are equal in both
        raw = text.encode("ascii", "replace")
        lower_text = raw.lower().decode()
    findings: list[SensitiveSpan] = []
    runs = raw.translate(secret_formats.RUN_TABLE)
    if (first := runs.find(secret_formats.LONG_RUN)) >= 0:
        secret_formats.find_by_format(text, runs, first, findings)
    if "PRIVATE KEY" in text:
        findings.extend(secret_formats.find_private_keys(text))
    # The leading space lets a number start the text. Substring search is faster in str than in bytes.
    marked = " " + raw.translate(personal_data.NUMBER_MARKS).decode()
    secret_contexts.find_by_context(text, raw, lower_text, "0000" in marked, findings)
    if "@" in text:
        personal_data.find_addresses(text, findings)
    if "00" in marked:  # every personal number contains two consecutive digits
        if " 0000000" in marked or "00 00" in marked:
            personal_data.find_numbers(text, marked, findings)
        if "A00" in marked or "A 00" in marked:
            personal_data.find_lettered(text, raw, findings)
    return findings
