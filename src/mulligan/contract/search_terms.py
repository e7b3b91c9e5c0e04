"""Search in recorded runs: the terms of a search text, and where a run contains them.

An index of words only proposes runs. Whether a run matches is decided here, on what is stored, so that the answer is
the same in every database.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec

from mulligan.core.failure import SettingsError
from mulligan.core.records import History, Record, Run, Step
from mulligan.redaction.regex import LazyRegex
from mulligan.redaction.secret_hints import secret_kind

MAX_SEARCH_CHARS = 500
MAX_TERMS = 12
NO_TERMS = (
    'Nothing to search for. Type a word, "a phrase", name:value or a filter such as status:failure. '
    "-word excludes runs."
)
MAX_MATCHES = 20
"""Places of one run that are returned."""
EXCERPT_CHARS = 160
MAX_DEPTH = 30
"""Nested values below this depth are not searched."""
# Ideographs and kana. Each is a word of its own: such scripts have no blanks between words.
_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = LazyRegex(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_SPACED = LazyRegex(rf"[^\W_{_UNSPACED}]")
_TERM = LazyRegex(r'(?P<minus>-?)(?:(?P<field>[^\W\d][\w.]*):(?=\S))?(?:"(?P<phrase>[^"]*)"?|(?P<word>\S+))')
_INDEX = LazyRegex(r"\[\d+\]")
# Accents of Latin, Greek and Cyrillic letters, as characters of their own.
_ACCENTS = r"\u0300-\u036f"
_WORD_START = rf"(?<![^\W_{_UNSPACED}])(?<![{_ACCENTS}])"
_WORD_END = rf"(?![^\W_{_UNSPACED}]|[{_ACCENTS}])"
_APOSTROPHES = "\u2018\u2019\u201a\u201b\u02bc"
TYPOGRAPHIC_QUOTES = str.maketrans(dict.fromkeys("“”„‟«»", '"') | dict.fromkeys(_APOSTROPHES, "'"))
_PUNCTUATION = "()[]{}<>,;*"
"""Removed from both ends of a word that is not quoted: it was typed around the word."""


class SearchTextError(SettingsError):
    """A search text that cannot be searched for."""


class SearchTerm(msgspec.Struct, frozen=True):
    """One word or quoted phrase of a search text.

    A word matches where a word begins: `cust` finds "customer" and "big-customer". A phrase matches whole words.
    """

    text: str
    field: str = ""
    """Only in places of this name: an argument or metadata key, or a part of a record such as `error` or `result`."""
    is_phrase: bool = False
    is_excluded: bool = False
    value_hash: str = ""
    """What redaction at level `shared` leaves of a value that is this text; empty if the tenant has no key."""

    @property
    def words(self) -> list[str]:
        return split_words(self.text)

    @property
    def pattern(self) -> re.Pattern[str]:
        text = r"\s+".join("".join(map(_match_character, part)) for part in fold_accents(self.text).split())
        start = _WORD_START if _SPACED.match(self.text[:1]) else ""
        end = _WORD_END if self.is_phrase and _SPACED.match(self.text[-1:]) else ""
        return re.compile(f"{start}{text}{end}", re.IGNORECASE)

    def is_hidden_value(self, location: SearchLocation) -> bool:
        """Return whether a place has this text as a hidden value. Where a secret stands, no guess is confirmed."""
        if not self.value_hash or not location.text.endswith(f"#{self.value_hash}]"):
            return False
        from mulligan.redaction.redactor import PERSONAL_KINDS  # lazy: for searches on a team's server only

        kinds = {secret_kind(_INDEX.sub("", key)) for key in location.path.split(".")}
        return kinds <= {"", *PERSONAL_KINDS}


class SearchMatch(Record, frozen=True):
    """A place in a run that contains a term."""

    location: str
    """`argument customer_id`, `result items[0].title`, `error`, `metadata user`."""
    excerpt: str
    spans: tuple[tuple[int, int], ...] = ()
    """The parts of the excerpt that match, by their first and last character."""
    seq: int | None = None
    """The number of the attempt; None for a place of the run or of its conversation."""
    name: str = ""
    """The tool or model of the attempt."""
    attempt: int = 1
    is_hidden: bool = False
    """Whether the value is hidden, and equal to a term by its keyed hash."""


class SearchLocation(msgspec.Struct, frozen=True):
    """A text of a run and where it stands."""

    part: str
    """`argument`, `result`, `error`, `metadata`, `context`, `message`, or the name of a field of the run."""
    path: str
    text: str
    step: Step | None = None

    @property
    def names(self) -> set[str]:
        """Return the names by which a term can ask for this place: its part, its whole path and its last key."""
        keys = [_INDEX.sub("", key) for key in self.path.split(".")]
        return {self.part, self.path.casefold(), keys[-1].casefold()}


def split_words(text: str) -> list[str]:
    """Return the words of a text as the indexes know them: letters and digits of any script, in lower case."""
    return _WORD.findall(fold_accents(text.lower()))


def fold_accents(text: str) -> str:
    """Return a text without accents: `Zürich` and `Zurich` are the same word."""
    return text if text.isascii() else text.translate(_base_letters())


@cache
def _base_letters() -> dict[int, str | None]:
    """Return Latin, Greek and Cyrillic letters by those with an accent, and None for an accent of its own."""
    # Regular expressions that ignore case take the first three letters for these.
    letters: dict[int, str | None] = {0x131: "i", 0x17F: "s", 0x3C2: "\u03c3", **dict.fromkeys(range(0x300, 0x370))}
    for code in (*range(0xC0, 0x300), *range(0x370, 0x530), *range(0x1E00, 0x2000)):
        letter = "".join(part for part in unicodedata.normalize("NFD", chr(code)) if ord(part) not in letters)
        if letter != chr(code) and len(letter) == 1:
            letters[code] = letter
    return letters


@cache
def _list_variants() -> dict[str, str]:
    """Return by lower case letter those that a search takes for it, and by apostrophe its other forms."""
    variants = {"'": _APOSTROPHES}
    for code, letter in _base_letters().items():
        if letter is not None:
            variants[letter.lower()] = variants.get(letter.lower(), "") + chr(code)
    return variants


def _match_character(character: str) -> str:
    """Return the expression for a character without accent. It also matches with one."""
    variants = _list_variants().get(character.lower(), "")
    text = f"[{character}{variants}]" if variants else re.escape(character)
    return f"{text}[{_ACCENTS}]*" if character.isalpha() else text


def parse_search(text: str, key: bytes = b"") -> tuple[SearchTerm, ...]:
    """Return the terms of a search text. Raise SearchTextError if it cannot be searched for.

    `key` is that of the tenant, by which its hidden values are compared.
    """
    if len(text) > MAX_SEARCH_CHARS:
        raise SearchTextError(f"The search text has {len(text):,} characters. Use at most {MAX_SEARCH_CHARS}.")
    from mulligan.redaction.redactor import hash_value  # lazy: for searches only

    terms = []
    for part in _TERM.finditer(text.translate(TYPOGRAPHIC_QUOTES)):
        is_phrase = part["phrase"] is not None
        term_text = (part["phrase"] if is_phrase else part["word"].strip(_PUNCTUATION)).strip()
        term = SearchTerm(
            text=term_text,
            field=(part["field"] or "").casefold(),
            is_phrase=is_phrase,
            is_excluded=bool(part["minus"]),
            value_hash=hash_value(key, term_text) if key else "",
        )
        if term.words:
            terms.append(term)
    if len(terms) > MAX_TERMS:
        raise SearchTextError(f"The search text has {len(terms)} words and phrases. Use at most {MAX_TERMS}.")
    if all(term.is_excluded for term in terms):
        raise SearchTextError(NO_TERMS)
    return tuple(terms)


def contains_terms(history: History, terms: Sequence[SearchTerm]) -> bool:
    """Return whether a run matches: each term must occur, none excluded may. Reads no more places than it must."""
    missing = [(term, term.pattern) for term in terms if not term.is_excluded]
    excluded = [(term, term.pattern) for term in terms if term.is_excluded]
    for location in list_locations(history):
        if any(_is_in(term, pattern, location) for term, pattern in excluded):
            return False
        missing = [(term, pattern) for term, pattern in missing if not _is_in(term, pattern, location)]
        if not missing and not excluded:
            return True
    return not missing


def _is_in(term: SearchTerm, pattern: re.Pattern[str], location: SearchLocation) -> bool:
    if term.field and term.field not in location.names:
        return False
    return pattern.search(location.text) is not None or term.is_hidden_value(location)


def find_matches(history: History, terms: Sequence[SearchTerm]) -> tuple[SearchMatch, ...] | None:
    """Return where a run contains the terms, or None if it does not match."""
    matches: dict[tuple[int | None, str, str], SearchMatch] = {}
    missing_terms = {term for term in terms if not term.is_excluded}
    patterns = [(term, term.pattern) for term in terms]
    for location in list_locations(history):
        spans: list[tuple[int, int]] = []
        is_hidden = False
        for term, pattern in patterns:
            if term.field and term.field not in location.names:
                continue
            term_spans = list(_spans(pattern, location.text))
            if not term_spans and term.is_hidden_value(location):
                term_spans, is_hidden = [(0, len(location.text))], True
            if term_spans and term.is_excluded:
                return None
            if term_spans:
                missing_terms.discard(term)
                spans += term_spans
        if spans and len(matches) < MAX_MATCHES:
            match = msgspec.structs.replace(_build_match(location, sorted(spans)), is_hidden=is_hidden)
            matches.setdefault((match.seq, match.location, match.excerpt), match)
    return None if missing_terms else tuple(matches.values())


def _spans(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    for number, occurrence in enumerate(pattern.finditer(text)):
        if number >= MAX_MATCHES:
            return
        yield occurrence.span()


def _build_match(location: SearchLocation, spans: Sequence[tuple[int, int]]) -> SearchMatch:
    first = spans[0][0]
    start = max(0, min(first - EXCERPT_CHARS // 4, len(location.text) - EXCERPT_CHARS))
    excerpt = location.text[start : start + EXCERPT_CHARS]
    excerpt_spans = [
        (begin - start, min(end - start, len(excerpt))) for begin, end in spans if begin - start < len(excerpt)
    ]
    step = location.step
    return SearchMatch(
        location=" ".join(filter(None, (location.part, location.path))),
        excerpt=excerpt,
        spans=tuple(dict.fromkeys(excerpt_spans)),
        seq=step.seq if step else None,
        name=step.name if step else "",
        attempt=step.attempt if step else 1,
    )


# Places


def list_locations(history: History) -> Iterator[SearchLocation]:
    """Yield every searchable text of a run: of the run itself, its attempts and its conversation."""
    yield from _run_locations(history.run)
    for step in history.steps:
        yield from _step_locations(step)
    for message in history.messages:
        for part in message.parts:
            yield SearchLocation("message", message.role, part.text)
            yield from _value_locations("message", f"{message.role}.{part.name}", part.arguments)


def _run_locations(run: Run) -> Iterator[SearchLocation]:
    for part in ("id", "agent", "version", "environment", "session", "context"):
        if text := getattr(run, part):
            yield SearchLocation(part, "", text)
    yield from _value_locations("metadata", "", run.metadata)


def _step_locations(step: Step) -> Iterator[SearchLocation]:
    yield SearchLocation("model" if step.type == "model" else "tool", "", step.name, step)
    if step.server:
        yield SearchLocation("server", "", step.server, step)
    for part, value in (("argument", step.arguments), ("result", step.result), ("metadata", step.metadata)):
        yield from _value_locations(part, "", value, step)
    if (failure := step.failure) is not None:
        yield SearchLocation("kind", "", str(failure.kind), step)
        for path in ("message", "detail", "code", "exception"):
            if text := getattr(failure, path):
                yield SearchLocation("error", "" if path == "message" else path, text, step)
    if step.suspected is not None:
        yield SearchLocation("suspected", "", f"{step.suspected.kind} {step.suspected.sentence}", step)


def _value_locations(
    part: str, path: str, value: Any, step: Step | None = None, depth: int = 0
) -> Iterator[SearchLocation]:
    """Yield the texts and numbers within a value. The name of a key is found as a part of the path of its value."""
    if value is None or depth > MAX_DEPTH:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _value_locations(part, f"{path}.{key}".lstrip("."), inner, step, depth + 1)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _value_locations(part, f"{path}[{number}]", inner, step, depth + 1)
    else:
        yield SearchLocation(part, path, value if isinstance(value, str) else _to_text(value), step)


def _to_text(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
