"""Compares two edits of a file: whether the later one makes the change that the failed one was meant to make.

An edit names a text and its replacement. What both have in common is context. Two edits make the same change if they
replace the same words by the same words, up to white space, and one context continues the other, or if the
replacement is the same and most of the text that it replaces. Other edits are made at another place of the file: the
contexts of two places are told apart by the names in them, such as those of two functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

EDIT_ARGUMENTS = (
    ("old_string", "new_string"), ("old_str", "new_str"), ("oldString", "newString"), ("old_text", "new_text"),
    ("oldText", "newText"), ("search", "replace"), ("old", "new"),
)  # fmt: skip
MIN_SHARED_WORDS = 0.6
"""Share of words that two contexts, or two replaced texts, have in common if one of them is outdated."""
MAX_WORDS = 4000
MIN_WORD_CHARS, MIN_SPELLING_RATIO = 4, 0.75
"""Letters of a misspelled word, and how similar it is to the right one."""


_DEFINITIONS = frozenset(
    "def class function func fn fun sub interface struct enum trait impl module type const let var val "
    "# ## ### ####".split()
)
"""Words before the name of a part of a file."""


def find_edit(arguments: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the replaced text and its replacement; None if a call makes no such edit."""
    for old_name, new_name in EDIT_ARGUMENTS:
        old, new = arguments.get(old_name), arguments.get(new_name)
        if isinstance(old, str) and isinstance(new, str):
            return old, new
    return None


def is_same_edit(failed: tuple[str, str], later: tuple[str, str]) -> bool:
    """Return whether two edits make the same change."""
    if _continues_text(failed, later) or _continues_text(later, failed):
        return True
    (failed_old, failed_new), (later_old, later_new) = ([text.split()[:MAX_WORDS] for text in edit]
                                                        for edit in (failed, later))  # fmt: skip
    if failed_new == later_new and failed_new:
        is_similar = _share_words(failed_old, later_old) >= MIN_SHARED_WORDS
        return is_similar or _is_misspelled(failed_old, later_old)
    before, removed, added, after = _split_edit(failed_old, failed_new)
    later_before, later_removed, later_added, later_after = _split_edit(later_old, later_new)
    if (removed, added) != (later_removed, later_added):
        return False
    shortest_before = min(len(before), len(later_before))
    shortest_after = min(len(after), len(later_after))
    is_continued = (
        before[len(before) - shortest_before :] == later_before[len(later_before) - shortest_before :]
        and after[:shortest_after] == later_after[:shortest_after]
    )
    if is_continued:
        # Without a word of the file in common, equal insertions may be at two places.
        return bool(removed) or shortest_before + shortest_after > 0
    context, later_context = [*before, *after], [*later_before, *later_after]
    # Words of a context that may be outdated. A shorter one identifies no place.
    is_long = min(len(context), len(later_context)) >= 6
    if not is_long or _share_words(context, later_context) < MIN_SHARED_WORDS:
        return False
    names, later_names = _find_names(context), _find_names(later_context)
    return names <= later_names or later_names <= names


def _continues_text(shorter: tuple[str, str], longer: tuple[str, str]) -> bool:
    """Return whether an edit is another one with more of the text around the only place that changes."""
    old, new = (text.strip() for text in shorter)
    return bool(old) and longer[0].count(old) == 1 and longer[0].replace(old, new) == longer[1]


def _find_names(words: Sequence[str]) -> set[str]:
    """Return the names that say which part of a file a context is: of functions, classes, keys, headings and tests."""
    names = set[str]()
    for index, word in enumerate(words):
        is_defined = index > 0 and words[index - 1] in _DEFINITIONS
        if is_defined or word.endswith((":", "=")):
            names.add(word.lstrip("\"'").partition("(")[0].rstrip(":=\"'{"))
        elif '("' in word or "('" in word:
            names.add(word)
    return names - {""}


def _split_edit(
    old: Sequence[str], new: Sequence[str]
) -> tuple[Sequence[str], Sequence[str], Sequence[str], Sequence[str]]:
    """Return the common words before the change, the removed and the added words, and the common words after it."""
    shortest = min(len(old), len(new))
    start = next((index for index in range(shortest) if old[index] != new[index]), shortest)
    remaining = shortest - start
    end = next((index for index in range(remaining) if old[-1 - index] != new[-1 - index]), remaining)
    return old[:start], old[start : len(old) - end], new[start : len(new) - end], old[len(old) - end :]


def _is_misspelled(failed: Sequence[str], later: Sequence[str]) -> bool:
    """Return whether two texts differ in the spelling of one word only."""
    pairs = [(old, new) for old, new in zip(failed, later, strict=False) if old != new]
    if len(failed) != len(later) or len(pairs) != 1:
        return False
    ((old, new),) = pairs
    if not (old.isalpha() and new.isalpha() and min(len(old), len(new)) >= MIN_WORD_CHARS):
        return False
    from difflib import SequenceMatcher  # lazy: needed for two similar edits only

    return SequenceMatcher(None, old[:100], new[:100]).ratio() >= MIN_SPELLING_RATIO


def _share_words(failed: Sequence[str], later: Sequence[str]) -> float:
    total = len(failed) + len(later)
    return 2 * (Counter(failed) & Counter(later)).total() / total if total else 0.0
