"""Regular expressions: compiled on first use, searched by the words they require, and checked if a user wrote them."""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from mulligan.redaction.lazy_property import lazy_property

Match = re.Match[str]


@functools.cache
def compile_regex(pattern: str, flags: int = re.IGNORECASE) -> re.Pattern[str]:
    """Compile a pattern from our source or from settings, once. Never pass one built from recorded text."""
    return re.compile(pattern, flags)


class LazyRegex:
    """A regular expression that is compiled on first use: most processes import it without redacting.

    Patterns must cost at most a constant per character: each begins with its rarest element, so that most text is
    skipped quickly, and every repetition is bounded or possessive.
    """

    match: Callable[..., Match | None]
    search: Callable[..., Match | None]
    fullmatch: Callable[..., Match | None]
    finditer: Callable[..., Iterator[Match]]
    sub: Callable[..., str]
    subn: Callable[..., tuple[str, int]]
    split: Callable[..., list[str]]
    findall: Callable[..., list[str]]

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self.pattern = pattern
        self.flags = flags

    def __getattr__(self, name: str) -> object:
        compiled_regex = compile_regex(self.pattern, self.flags)
        for method in ("match", "search", "fullmatch", "finditer", "sub", "subn", "split", "findall"):
            setattr(self, method, getattr(compiled_regex, method))  # direct attributes from now on
        return getattr(compiled_regex, name)


_TOKEN = LazyRegex(
    r"[^\\\[\](){}|*+?.^$]+|\((?:\?(?:P<\w+>|\(\w+\)|<?[=!]|[:>]|[aiLmsux-]+:|[^)]*\)))?|\[\^?\]?(?:\\.|[^\]\\])*\]"
    r"|\\(?:x..|u....|\d+|.)|(?:[*+?]|\{\d+\}|\{\d*,\d*\})[?+]?|.",
    re.DOTALL,
)
_UNBOUNDED = 1_000_000


def iter_repetitions(pattern: str) -> Iterator[tuple[str, int, int]]:
    """Yield the tokens of a valid pattern, each with the minimum and the maximum of its repetitions.

    A token is a literal text, an escape, a set, a bar, or one end of a group. The repetitions of a group are at its
    closing parenthesis. A possessive repetition has a negative maximum.
    """
    pending = ""
    for token in _TOKEN.findall(pattern):
        if token[0] not in "*+?{" or token == "{":
            if pending:
                yield pending, 1, 1
            pending = token
            continue
        if len(pending) > 1 and pending[0] not in "([\\":  # only the last character is repeated
            yield pending[:-1], 1, 1
            pending = pending[-1]
        yield pending, *_read_quantifier(token)
        pending = ""
    if pending:
        yield pending, 1, 1


@functools.cache
def _read_quantifier(token: str) -> tuple[int, int]:
    if token[0] == "{":
        low, comma, high = token[1:].rstrip("?+}").partition(",")
        minimum, maximum = int(low or 0), int(high or (_UNBOUNDED if comma else low))
    else:
        minimum, maximum = int(token[0] == "+"), 1 if token[0] == "?" else _UNBOUNDED
    return minimum, -maximum if token[1:].endswith("+") else maximum


@functools.cache
def required_words(pattern: str) -> tuple[str, ...]:
    """Return words in lower case of which every match of a pattern contains at least one, or an empty tuple.

    A substring search for them is much faster than the pattern, and spares its compilation for most texts.
    """
    groups: list[tuple[str, list[set[str]], set[str], int]] = []
    # The current group: its opening, the words of its finished alternatives, and those of the last one.
    opening, branches, best, best_chars = "(", [], set[str](), 0
    literal = ""
    for token, minimum, maximum in iter_repetitions(f"(?:{pattern})"):
        first = token[0]
        if first not in "|()[.^$" and minimum:
            literal += _read_escape(token) if first == "\\" else token.lower()
            if len(literal) > best_chars or (len(literal) == best_chars and len(best) > 1):
                best, best_chars = {literal}, len(literal)
            if maximum == 1 and (first != "\\" or _read_escape(token)):
                continue
        literal = ""
        if first == "|":
            branches.append(best)
            best, best_chars = set(), 0
        elif first == "(" and token[-1] != ")":
            groups.append((opening, branches, best, best_chars))
            opening, branches, best, best_chars = token, [], set(), 0
        elif first == ")":
            branches.append(best)
            words = set().union(*branches) if all(branches) and opening[-1] not in "=!)" else set()
            opening, branches, best, best_chars = groups.pop()
            chars = min(map(len, words)) if words and minimum else 0
            # Long words are rare in texts, and few words are searched faster.
            if chars > best_chars or (chars == best_chars and len(words) < len(best)):
                best, best_chars = words, chars
    return tuple(word for word in best if not any(part in word for part in best if len(part) < len(word)))


def _read_escape(escape: str) -> str:
    if escape[1] in "xu" and len(escape) > 2:
        return chr(int(escape[2:], 16)).lower()
    return {"n": "\n", "t": "\t"}.get(escape[1], "") if escape[1].isalnum() else escape[1:]


def search_likely(pattern: str, text: str, lower: str, flags: int = re.IGNORECASE) -> Match | None:
    """Search a pattern if one of the words that it requires is in the text. `lower` is the text in lower case."""
    words = required_words(pattern)
    return None if words and not any(map(lower.__contains__, words)) else compile_regex(pattern, flags).search(text)


class PatternIndex:
    """Many patterns, indexed by the words that their alternatives require. Case is ignored, `^` matches at each line.

    One pass over a text selects the few alternatives that may match it. Only these are compiled and searched, each by
    itself and in lower case. So a pattern must not have names, inline flags or references to groups.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(patterns)

    def has_match(self, text: str, lower: str) -> bool:
        """Return whether one of the patterns matches. `lower` is the text in lower case."""
        return next(self.find_starts(text, lower), None) is not None

    def find_starts(
        self, text: str, lower: str, is_applicable: Callable[[int], bool] | None = None
    ) -> Iterator[tuple[int, int]]:
        """Yield the number of each applicable pattern that matches, in order, with the index of its first match.

        `lower` is the text in lower case.
        """
        alternatives_by_word, words_by_gram, grams, short_words = self._index
        likely_words = [*short_words]
        for gram in grams & _find_grams(lower, len(_INDEXED_GRAMS)):
            likely_words += words_by_gram[gram]
        likely_alternatives: dict[int, set[str]] = {}
        for word in filter(lower.__contains__, likely_words):
            for number, alternative in alternatives_by_word[word]:
                likely_alternatives.setdefault(number, set()).add(alternative)
        for number in sorted(likely_alternatives):
            if is_applicable is not None and not is_applicable(number):
                continue
            starts = [start for part in likely_alternatives[number] if (start := _find_start(part, text, lower)) >= 0]
            if starts:
                yield number, min(starts)

    @lazy_property
    def _index(self) -> tuple[dict[str, list[tuple[int, str]]], dict[int, list[str]], frozenset[int], list[str]]:
        """Alternatives of each word with the number of their pattern, words by one of their grams, these grams, and
        words that are too short for one."""
        alternatives_by_word: dict[str, list[tuple[int, str]]] = {}
        for number, pattern in enumerate(self._patterns):
            for alternative in _split_alternatives(pattern):
                for word in _find_index_words(alternative):
                    alternatives_by_word.setdefault(word, []).append((number, alternative))
        grams_by_word = {word: [word[at : at + 4] for at in range(len(word) - 3)] for word in alternatives_by_word}
        frequencies = Counter(chain.from_iterable(grams_by_word.values()))
        words_by_gram: dict[int, list[str]] = {}
        for word, grams in grams_by_word.items():
            if grams:
                rarest_gram = min(grams, key=frequencies.__getitem__)  # it excludes most texts
                gram_bytes = rarest_gram.encode("utf-8")[:4]
                words_by_gram.setdefault(int.from_bytes(gram_bytes, sys.byteorder), []).append(word)
        short_words = [word for word, grams in grams_by_word.items() if not grams]
        _INDEXED_GRAMS.update(words_by_gram)
        return alternatives_by_word, words_by_gram, frozenset(words_by_gram), short_words


_INDEXED_GRAMS: set[int] = set()
"""Grams of all indexes. They are searched in a text once, so that each index looks at the few that the text has."""


@functools.lru_cache(maxsize=2)  # several indexes search the same text, or both ends of it
def _find_grams(text: str, indexed_count: int) -> set[int]:
    """Return the indexed sequences of four bytes that are in a text, as integers.

    `indexed_count` is a key of the cache: a text is searched again after another index was built.
    """
    view = memoryview(text.encode("utf-8", "surrogatepass"))
    starts = range(min(4, max(len(view) - 3, 0)))
    return _INDEXED_GRAMS.intersection(chain.from_iterable(
        view[start : start + (len(view) - start) // 4 * 4].cast("I") for start in starts
    ))  # fmt: skip


_STRUCTURE = LazyRegex(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]", re.DOTALL)


@functools.cache
def index_patterns(*patterns: str) -> PatternIndex:
    """Return the index of these patterns, built once."""
    return PatternIndex(patterns)


def _split_alternatives(pattern: str) -> list[str]:
    """Return the alternatives of a pattern at its top level."""
    alternatives, start, depth = [], 0, 0
    for match in _STRUCTURE.finditer(pattern):
        token = match.group()
        if token == "|" and depth == 0:
            alternatives.append(pattern[start : match.start()])
            start = match.end()
        depth += (token == "(") - (token == ")")
    return [*alternatives, pattern[start:]]


_ATOM = LazyRegex(r"\\(?:x..|u....|U........|\d+|.)|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_INNER_GROUP = LazyRegex(r"\([^()]*\)")
_REPEATED = LazyRegex(r".(?:[*+?]|\{[\d,]*\})[?+]?", re.DOTALL)
_BREAK = LazyRegex(r"[\0^$.]+")


def _find_index_words(pattern: str) -> tuple[str, ...]:
    """Return words of which each match contains one: the longest literal outside of groups, else `required_words`.

    An index has hundreds of patterns, of which a text needs few. This literal takes a tenth of the time.
    """
    if _is_literal(pattern):
        return (pattern.lower(),)
    remainder, group_count = _ATOM.sub("\0", pattern), 1
    while group_count:
        remainder, group_count = _INNER_GROUP.subn("\0", remainder)
    words = _BREAK.split(_REPEATED.sub("\0", remainder)) if not any(map(remainder.__contains__, "()|")) else [""]
    word = max(words, key=len).lower()
    # Shortest literal of a pattern under which it is indexed without reading the whole pattern
    return (word,) if len(word) >= 4 else required_words(pattern) or ("",)


@functools.cache
def _is_literal(pattern: str) -> bool:
    return not any(map(pattern.__contains__, "\\[](){}|*+?.^$"))


def _find_start(pattern: str, text: str, lower: str) -> int:
    """Return the index of the first match, or -1."""
    lower_pattern, words = _to_lower(pattern), required_words(pattern)
    if words and not any(map(lower.__contains__, words)):
        return -1  # the index may have a more frequent word of this pattern
    if not text.isascii():
        match = compile_regex(pattern, re.IGNORECASE | re.MULTILINE).search(text)
    elif _is_literal(lower_pattern):
        return lower.find(lower_pattern)
    else:
        # Without IGNORECASE a search skips to the first character of the pattern.
        regex = compile_regex(lower_pattern, re.MULTILINE)
        is_at_start = lower_pattern.startswith("\\A") or (lower_pattern[0] == "^" and "\n" not in lower)
        match = regex.match(lower) if is_at_start else regex.search(lower)
    return match.start() if match else -1


@functools.cache
def _to_lower(pattern: str) -> str:
    """Return a pattern for texts in lower case."""
    return re.sub(r"\\.|[A-Z]+", lambda match: match[0] if "\\" in match[0] else match[0].lower(), pattern)


def compile_user_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a user-defined pattern. Raise ValueError if it is invalid or unsafe for untrusted text."""
    if len(pattern) > 2000:
        raise ValueError(
            f"Pattern of {len(pattern)} characters is too long, the maximum is 2000. Split it into several patterns."
        )
    try:
        expression = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern!r} is not a valid regular expression: {error}.") from None
    if _has_nested_repetition(pattern):
        raise ValueError(
            f"{pattern!r} has a nested repetition, which can take hours on some texts. Bound one of the two, as "
            f"in (a{{1,20}})+, or make the inner one possessive, as in (a++)+."
        )
    return expression


def _has_nested_repetition(pattern: str) -> bool:
    openings, has_repetition = [""], [False]  # of each open group
    for token, _, maximum in iter_repetitions(pattern):
        is_repeated = False
        if token[0] == "(" and not token.endswith(")"):
            openings.append(token)
            has_repetition.append(False)
        elif token == ")" and len(openings) > 1:
            # No backtracking into an atomic group or a possessive repetition: an outer one cannot split it again.
            is_atomic = openings.pop() == "(?>" or maximum < 0
            is_repeated = has_repetition.pop() and not is_atomic
        if maximum >= 256:  # a repetition with at least this maximum counts as unbounded
            if is_repeated:
                return True
            is_repeated = True
        has_repetition[-1] |= is_repeated
    return False
