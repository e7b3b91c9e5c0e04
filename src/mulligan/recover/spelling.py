"""Spelling of names and values: without case, separators and quotes, and how many letters differ."""

from __future__ import annotations

import re
import unicodedata

MAX_COMPARED_CHARS = 200
"""Characters of a name or a value that are compared."""


def normalize_name(text: str) -> str:
    """Return only letters and digits, in one case."""
    casefolded = unicodedata.normalize("NFKC", text[:MAX_COMPARED_CHARS]).casefold()
    return "".join(character for character in casefolded if character.isalnum())


def extract_digits(text: str) -> str:
    return "".join(character for character in text if character.isdigit())


def edit_distance(one: str, other: str, max_distance: int) -> int:
    """Return the edit distance with transpositions. Values above `max_distance` are not exact."""
    if len(one) > MAX_COMPARED_CHARS or len(other) > MAX_COMPARED_CHARS:
        return max_distance + 1
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        row = [i]
        for j, right in enumerate(other, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (left != right))
            if i > 1 and j > 1 and left == other[j - 2] and right == one[i - 2]:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        if min(row) > max_distance:
            return max_distance + 1
        before, last = last, row
    return last[-1]


def strip_quotes(text: str) -> str:
    """Return a text without surrounding spaces and quotes."""
    bare = text.strip()
    while len(bare) >= 2 and bare[0] == bare[-1] and bare[0] in "\"'`":
        bare = bare[1:-1].strip()
    return bare


def normalize_spelling(text: str) -> str:
    """Return a text without quotes around it, case, and separators between words. `1.2`, `-1` and `c++` keep theirs."""
    unquoted_text = strip_quotes(unicodedata.normalize("NFKC", text[:MAX_COMPARED_CHARS]).casefold())
    return re.sub(r"(?<=[^\W_])[\s_./:-]{1,5}(?=[^\W\d_])|(?<=[^\W\d_])[\s_./:-]{1,5}(?=[^\W_])", "", unquoted_text)
