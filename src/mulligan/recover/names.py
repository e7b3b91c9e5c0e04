"""Matching of misspelled names and values against known ones.

Only typing mistakes match, never another word: the first letter and all digits must be equal, so that `inactive` does
not match `active`, nor `v1` match `v2`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mulligan.core.privileged_arguments import split_words
from mulligan.recover.spelling import (
    MAX_COMPARED_CHARS,
    edit_distance,
    extract_digits,
    normalize_name,
)
from mulligan.recover.word_meaning import are_opposites

MAX_COMPARED_NAMES = 500
"""Known names that are compared. With more, a match is not reliable."""


class NameMatch(NamedTuple):
    name: str
    method: str
    """spelling: case, separators, quotes. slip: one or two letters. part: one name contains the words of the other."""


def match_name(text: str, known_names: Iterable[str]) -> NameMatch | None:
    """Return the one known name that this text misspells, or None if there is none or more than one."""
    names = list(known_names)
    if not isinstance(text, str) or len(names) > MAX_COMPARED_NAMES:
        return None
    normalized = normalize_name(text)
    if not normalized:
        return None
    same = [name for name in names if normalize_name(name) == normalized]
    if len(same) == 1:
        return NameMatch(same[0], "spelling")
    if same:  # several names differ only in case: accept an exact match only
        exact = [name for name in same if name.strip() == text.strip()]
        return NameMatch(exact[0], "spelling") if len(exact) == 1 else None
    typos = [
        name
        for name in names
        if is_typo(normalized, normalize_name(name))
        and not _differs_in_short_word(text, name)
        and not are_opposites(text, name)
    ]
    return NameMatch(typos[0], "slip") if len(typos) == 1 else None


def is_typo(one: str, other: str) -> bool:
    """Return whether two texts differ by a typing mistake.

    One edit is allowed, or two in a long word, but none in the first letter or in a digit.
    """
    length = min(len(one), len(other))
    if length < 4 or one[0] != other[0] or extract_digits(one) != extract_digits(other):
        return False
    allowed = 1 if length < 8 else 2
    return abs(len(one) - len(other)) <= allowed and edit_distance(one, other, allowed) <= allowed


def _differs_in_short_word(text: str, name: str) -> bool:
    """Return whether they differ in a word of one or two letters, which distinguishes names: `city_a` and `city_b`."""
    one, other = split_words(text[:MAX_COMPARED_CHARS].casefold()), split_words(name[:MAX_COMPARED_CHARS].casefold())
    return len(one) == len(other) and any(
        left != right and max(len(left), len(right)) <= 2 for left, right in zip(one, other, strict=True)
    )


def match_by_words(text: str, known_names: Iterable[str]) -> list[str]:
    """Return the known names that contain all words of the text or the reverse, such as `type` and `scale_type`."""
    text_stems = stem_words(text[:MAX_COMPARED_CHARS])
    if not text_stems:
        return []
    stems_by_name = {name: stem_words(name[:MAX_COMPARED_CHARS]) for name in known_names}
    matches = [name for name, stems in stems_by_name.items() if stems and (text_stems <= stems or stems <= text_stems)]
    return matches or [
        name
        for name in stems_by_name
        if "" != normalize_name(text) == _initials(name) or "" != normalize_name(name) == _initials(text)
    ]


def is_abbreviation(one: str, other: str) -> bool:
    """Return whether one name abbreviates the other: `addr` and `address`, `qty` and `quantity`, `mail` and `email`."""
    short, long = sorted((normalize_name(one), normalize_name(other)), key=len)
    if len(short) < 3 or short == long:
        return False
    if short in long:
        return True
    letters = iter(long)
    return short[0] == long[0] and all(letter in letters for letter in short)


def _initials(name: str) -> str:
    """Return the initials of a name: `dob` for `date_of_birth`."""
    parts = split_words(name[:MAX_COMPARED_CHARS])
    return "".join(part[0] for part in parts).casefold() if len(parts) > 1 else ""


def stem_words(text: str) -> frozenset[str]:
    """Return the words of a text in lower case and without the `s` of a plural."""
    lower_words = (word.casefold() for word in split_words(text))
    return frozenset(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in lower_words)


# What models add to a name: control tokens of chat templates with everything after them, an API namespace, call
# brackets, a counter.
_TOKEN = re.compile(r"<\|[^|>]{0,40}\|?>?|\|>|</?[A-Za-z_]{1,30}>")
_NAMESPACE = re.compile(
    r"(?:functions?|tools?|default_api|api|multi_tool_use|namespace|call|tool_call|function_call)(?:\.|::|:|/|__)", re.I
)
_WORDS_AFTER = frozenset("commentary analysis final json code to assistant function tool call".split())


def match_tool_name(text: str, known_names: Sequence[str]) -> NameMatch | None:
    """Return the known tool that a name refers to, despite junk around it or another case.

    `junk` and `spelling` leave exactly one name. `part` matches the last segment of a longer known name: `create_mix`
    for `music.create_mix`; `other` is the reverse. `slip` is a typing mistake.
    """
    if text in known_names or len(known_names) > MAX_COMPARED_NAMES:
        return None
    bare = _strip_junk(text)
    if bare and bare in known_names:
        return NameMatch(bare, "junk")
    for name in (text, bare):
        match = match_name(name, known_names) if name else None
        if match is not None and match.method == "spelling":
            return NameMatch(match.name, "spelling")
    requested_name = bare or text
    tail = normalize_name(_last_segment(requested_name))
    if len(tail) >= 3:
        tails = [name for name in known_names if normalize_name(_last_segment(name)) == tail]
        if len(tails) == 1:
            # Different namespaces are different tools, even if the last segment is equal.
            if _last_segment(requested_name) == requested_name:
                return NameMatch(tails[0], "part")
            return NameMatch(tails[0], "other") if _last_segment(tails[0]) == tails[0] else None
    return match_name(bare or text, known_names)


def nearest_tool_names(text: str, known_names: Sequence[str], limit: int = 3) -> list[str]:
    """Return the most similar known tool names, likeliest first."""
    from difflib import get_close_matches  # lazy: needed for unknown tools only

    match = match_tool_name(text, known_names)
    folded_names = {name[:MAX_COMPARED_CHARS].casefold(): name for name in known_names[:MAX_COMPARED_NAMES]}
    # Minimum similarity of a tool name to be suggested.
    near = get_close_matches(text[:MAX_COMPARED_CHARS].casefold(), folded_names, limit, 0.6)
    ranked = [*([match.name] if match is not None else []), *(folded_names[name] for name in near)]
    return [name for name in dict.fromkeys(ranked) if not are_opposites(text, name)][:limit]


def _strip_junk(text: str) -> str:
    """Remove everything from a name that cannot be part of one."""
    name = unicodedata.normalize("NFKC", text[:MAX_COMPARED_CHARS])
    token = _TOKEN.search(name)
    if token is not None:
        # The name precedes the first control token, or follows it if nothing precedes it.
        head = name[: token.start()].strip()
        name = head or _TOKEN.sub(" ", name)
    name = re.sub(r"\(.*$|\{.*$", "", name.strip(), flags=re.DOTALL)
    while (shorter := _NAMESPACE.sub("", name, count=1)) != name and _NAMESPACE.match(name):
        name = shorter
    parts = re.split(r"\s+", name.strip(" \t\r\n\"'`*.,:;#<>|=()[]{}"))
    while len(parts) > 1 and parts[-1].casefold() in _WORDS_AFTER:
        parts.pop()
    name = " ".join(parts)
    return re.sub(r":\d{1,4}$", "", name)


def _last_segment(name: str) -> str:
    return re.split(r"\.|::|/|__", name)[-1]
