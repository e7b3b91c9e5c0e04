"""Limits stated in error texts: bounds, allowed values and argument names.

The texts are untrusted; scanning is bounded and linear. A stated limit is evidence that a later value answers the
error. The text never supplies a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

MAX_SCANNED_CHARS = 4000
CACHED_TEXTS = 64
"""Error texts whose limits are cached."""
_NUMBER = r"(-?[0-9]{1,15}(?:\.[0-9]{1,6})?)(?![\w/]| ?%|[.,:-][0-9])"
_UPPER = (
    rf"(?:at most|no more than|up to|not exceed|cannot exceed|can't exceed|less than or equal to|<=|"
    rf"(?:not|cannot|can't) (?:be )?(?:greater|more|higher|larger|longer) than|"
    rf"(?:exceeds? )?(?:the )?(?:maximum|max|limit|cap)(?: allowed)?(?: value| length| size)?(?: of| is|:| =|=)?)"
    rf" ?{_NUMBER}|(?<![\w.,:/-]){_NUMBER} (?:or (?:less|fewer|lower|below)|at (?:the )?most)"
)
_LOWER = (
    rf"(?:at least|no less than|greater than or equal to|>=|(?:not|cannot|can't) (?:be )?(?:less|lower|smaller) than|"
    rf"(?:minimum|min)(?: allowed)?(?: value| length| size)?(?: of| is|:| =|=)?)"
    rf" ?{_NUMBER}|(?<![\w.,:/-]){_NUMBER} (?:or (?:more|greater|higher|above)|at (?:the )?least)"
)
_ABOVE = rf"(?:greater|more|higher|larger) than {_NUMBER}|(?<![<>=])> ?{_NUMBER}"
_BELOW = rf"(?:less|fewer|lower|smaller) than {_NUMBER}|(?<![<>=])< ?{_NUMBER}"
_BETWEEN = rf"between {_NUMBER} and {_NUMBER}|{_NUMBER} ?(?:to|-|\.\.) ?{_NUMBER}"
_BOUNDS = (
    (_BETWEEN, True, False),
    (_UPPER, False, False),
    (_LOWER, True, False),
    (_ABOVE, True, True),
    (_BELOW, False, True),
)
"""Patterns of bounds, whether each is a lower one, and whether it is excluded."""
_NEGATION = r"(?:not|cannot|can't|no) (?:be )?$"
_LIST = (
    r"\b(?:one of|any of|allowed|valid|supported|available|accepted|permitted|possible|options?|choices?|choose from|"
    r"expected|must be|use|did you mean|known)\b[^\n:\[({]{0,40}[:\[({]?([^\n]{1,600})"
)
_MEMBER = r"'([^'\n]{1,80})'|\"([^\"\n]{1,80})\"|`([^`\n]{1,80})`|([\w.+/-]{1,80})"
_MISSING = (
    r"\b(?:missing|requires?|required|mandatory|omitted|absent|unset|undefined|is (?:none|null|empty|blank)|"
    r"(?:not|no|be|is|none)(?: \S{1,40}){0,2} (?:given|provided|specified|set|supplied|passed))\b"
)
_ASKED_FOR = r"\b(?:needs?|without|lacks?|expect(?:ed|s)?|specify|provide|supply|give|pass|add)(?: \w{1,20}){0,2} "
_ARGUMENT = r"(?:argument|parameter|param|propert|field|key|input|option|attribute|name|flag)\w{0,5}"
_UNKNOWN = r"(?:unexpected|unknown|unrecogni[sz]ed|extra|additional|unsupported|undefined|illegal|no such)"
_TOO_MUCH = (
    r"\btoo (?:large|long|many|big|high|much|wide|deep|heavy|far|late|great|old|fast)\b|\bso (?:many|much|large)\b|"
    r"\bexceed(?:s|ed|ing)?\b|\b(?:above|over|beyond)(?: \w{1,20}){0,3} (?:limit|maximum|max|cap|quota|range|ceiling)\b"
)
_TOO_LITTLE = (
    r"\btoo (?:small|short|few|low|little|narrow|light|early|young|slow|near|close)\b|"
    r"\b(?:below|under|beneath)(?: \w{1,20}){0,3} (?:limit|minimum|min|threshold|floor|range)\b"
)
_LENGTH = r"\b(?:characters?|chars?|long|longer|shorter|length|bytes|items?|elements?|entries)\b"


def names_argument(text: str, name: str) -> bool:
    """Return whether an error text names an argument as a separate word."""
    if not name:
        return False
    pattern = rf"(?<![\w-])-{{0,2}}{re.escape(name[:200])}(?![\w-])"
    return re.search(pattern, text[:MAX_SCANNED_CHARS], re.IGNORECASE) is not None


def says_missing(text: str, name: str) -> bool:
    """Return whether an error text says that an argument is missing. Naming it is not enough."""
    asked_for = rf"{_ASKED_FOR}[`'\"-]{{0,2}}{re.escape(name[:200])}(?![\w-])"
    return any(
        names_argument(sentence, name) and re.search(rf"{_MISSING}|{asked_for}", sentence, re.IGNORECASE)
        for sentence in re.split(r"\n|(?<=[.;!?])\s", text[:MAX_SCANNED_CHARS])
    )


def asks_to_check(text: str, name: str) -> bool:
    """Return whether an error text asks the caller to check an argument: "CHECK CABIN", "please verify the unit"."""
    verb = r"\b(?:check|verify|correct|review|see) (?:the |your |its |if (?:the |your )?)?"
    pattern = rf"{verb}[`'\"]?{re.escape(name[:200])}(?![\w-])"
    return bool(name) and re.search(pattern, text[:MAX_SCANNED_CHARS], re.IGNORECASE) is not None


def says_unknown(text: str, name: str) -> bool:
    """Return whether an error text says that a tool does not take an argument. Naming it, or its value, is not enough.

    `unexpected keyword argument 'dest'`, `'dest' was unexpected`, `dest is not supported`, but not `unknown dest a_1`.
    """
    quoted = rf"[`'\"(\[{{]{{0,2}}-{{0,2}}{re.escape(name[:200])}[`'\")\]}}]{{0,2}}(?![\w-])"
    patterns = (
        rf"\b{_UNKNOWN} (?:\w{{1,12}} )?{_ARGUMENT}(?:\(s\))?"
        rf"(?: (?:are )?not \w{{1,12}}| in \w{{1,12}})?[^\w\n]{{1,4}}{quoted}",
        rf"{quoted}:?(?: {_ARGUMENT})?\s{{1,20}}(?:(?:is|was|were|are) )?(?:an? )?"
        rf"{_UNKNOWN}(?:$|[\n.,;)]| {_ARGUMENT})",
        rf"{quoted}(?: {_ARGUMENT})? (?:is|was|are|can|must|may)(?: ?not|n't) (?:be )?(?:an? )?(?:valid |known )?"
        rf"(?:supported|allowed|permitted|accepted|recogni[sz]ed|expected|known|used|combined|{_ARGUMENT})\b",
        rf"\b(?:not|n't) (?:accept|take|support|have|know|allow|recogni[sz]e) (?:an? |the |any )?"
        rf"(?:{_ARGUMENT} )?{quoted}",
        rf"\b(?:remove|omit|leave out) (?:the )?(?:{_ARGUMENT} )?{quoted}",
    )
    scanned = text[:MAX_SCANNED_CHARS]
    return bool(name) and any(re.search(pattern, scanned, re.IGNORECASE) for pattern in patterns)


def unnamed_words(text: str, words: Sequence[str]) -> list[str]:
    """Return the words of a value that an error text does not name as separate words."""
    scanned = text[:MAX_SCANNED_CHARS]
    bare_words = ((word, word.strip("'\"`,;")) for word in words)
    return [word for word, bare in bare_words if len(bare) < 2 or not contains_word(scanned, bare)]


def contains_word(text: str, word: str) -> bool:
    """Return whether a text contains this word, or these words, as separate ones."""
    return re.search(rf"(?<!\w){re.escape(word[:200])}(?!\w)", text) is not None


def supports_value(text: str, old: Any, new: Any, *, is_quantity: bool = True) -> bool:
    """Return whether an error text states a bound or list that the new value satisfies and the old one does not.

    A number that is no quantity may name an object. Every other object meets a bound of such numbers.
    """
    scanned = text[:MAX_SCANNED_CHARS]
    if not scanned:
        return False
    sizes = _measure_values(old, new, scanned) if is_quantity or not _is_number(old) else None
    if sizes is not None and any(
        not _satisfies(sizes[0], bound) and _satisfies(sizes[1], bound) for bound in _list_bounds(scanned)
    ):
        return True
    return _is_listed(scanned, old, new)


def states_bound(text: str) -> bool:
    """Return whether an error text states a bound: `at most 10`, `between 1 and 7`."""
    return bool(_list_bounds(text[:MAX_SCANNED_CHARS]))


def follows_direction(text: str, old: Any, new: Any) -> bool:
    """Return whether an error text says that a number is too large, and the new one is smaller; or the reverse."""
    if not _is_number(old) or not _is_number(new) or old == new:
        return False
    is_too_much, is_too_little = _find_directions(text[:MAX_SCANNED_CHARS])
    return is_too_much != is_too_little and is_too_much == (new < old)


@lru_cache(maxsize=CACHED_TEXTS)
def _find_directions(text: str) -> tuple[bool, bool]:
    return bool(re.search(_TOO_MUCH, text, re.IGNORECASE)), bool(re.search(_TOO_LITTLE, text, re.IGNORECASE))


def _measure_values(old: Any, new: Any, text: str) -> tuple[float, float] | None:
    """Return the two numbers to compare with a bound: the values, or the lengths of texts and lists."""
    if _is_number(old) and _is_number(new):
        return old, new
    is_sized = (isinstance(old, str) and isinstance(new, str)) or (isinstance(old, list) and isinstance(new, list))
    return (len(old), len(new)) if is_sized and _states_length(text) else None


@lru_cache(maxsize=CACHED_TEXTS)
def _states_length(text: str) -> bool:
    return re.search(_LENGTH, text, re.IGNORECASE) is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


Bound = tuple[float, float, bool]
"""Lowest and highest value, and whether both are excluded."""


@lru_cache(maxsize=CACHED_TEXTS)
def _list_bounds(text: str) -> tuple[Bound, ...]:
    """Return the bounds in a text. Cached: every later call is compared with an open failure."""
    return tuple(_find_bounds(text))


def _find_bounds(text: str) -> Iterator[Bound]:
    infinity = float("inf")
    for pattern, has_lower, is_exclusive in _BOUNDS:
        for match in re.finditer(pattern, text, re.IGNORECASE):
            numbers = [float(number) for number in match.groups() if number is not None]
            is_negated = re.search(_NEGATION, text[max(0, match.start() - 12) : match.start()], re.IGNORECASE)
            if len(numbers) == 2:
                if numbers[0] <= numbers[1]:
                    yield numbers[0], numbers[1], False
            elif not (is_exclusive and is_negated):
                yield (numbers[0], infinity, is_exclusive) if has_lower else (-infinity, numbers[0], is_exclusive)


def _satisfies(value: float, bound: Bound) -> bool:
    low, high, is_exclusive = bound
    return low < value < high if is_exclusive else low <= value <= high


def _is_listed(text: str, old: Any, new: Any) -> bool:
    if isinstance(old, bool) or isinstance(new, bool) or not isinstance(new, str | int | float):
        return False
    new_text, old_text = str(new), str(old)
    if not new_text or len(new_text) > 80:
        return False
    return any(new_text in members and old_text not in members for members in _find_lists(text))


@lru_cache(maxsize=CACHED_TEXTS)
def _find_lists(text: str) -> tuple[frozenset[str], ...]:
    """Return the members of each list in a text. Cached: every later call is compared with an open failure."""
    return tuple(
        frozenset(next(filter(None, groups), "").rstrip(".") for groups in re.findall(_MEMBER, match.group(1)))
        for match in re.finditer(_LIST, text, re.IGNORECASE)
    )
