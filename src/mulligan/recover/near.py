"""Which of the known names or values was meant: the same but for its spelling, or one letter away.

A near-miss is a slip of the keys, never another word: the first letter and every digit must be the same, so that
`inactive` is not taken for `active`, nor `v1` for `v2`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mulligan.calls import similarity
from mulligan.privileged_arguments import words

LONGEST = 200
"""Characters of a name or a value that are compared."""
MOST = 500
"""Known names that are compared; more are not a choice that anyone can make."""
ALIKE = 0.6
"""How alike the name of a tool must be to be offered."""


class Match(NamedTuple):
    """What was meant, and by which likeness."""

    name: str
    how: str
    """spelling: case, separators, quotes. slip: a letter or two. part: the words of one are in the other."""


def plain(text: str) -> str:
    """Only what tells words apart: letters and digits, in one case."""
    folded = unicodedata.normalize("NFKC", text[:LONGEST]).casefold()
    return "".join(character for character in folded if character.isalnum())


def meant(text: str, known: Iterable[str]) -> Match | None:
    """The one known name that this is, misspelt; None where there is none, or more than one."""
    names = list(known)
    if not isinstance(text, str) or len(names) > MOST:
        return None
    spelt = plain(text)
    if not spelt:
        return None
    same = [name for name in names if plain(name) == spelt]
    if len(same) == 1:
        return Match(same[0], "spelling")
    if same:  # two that differ by case alone: the one with fewer differences, or none
        exact = [name for name in same if name.strip() == text.strip()]
        return Match(exact[0], "spelling") if len(exact) == 1 else None
    slips = [name for name in names if is_slip(spelt, plain(name)) and not _is_another(text, name)]
    return Match(slips[0], "slip") if len(slips) == 1 else None


def is_slip(one: str, other: str) -> bool:
    """Whether two texts differ as typing does: one edit, or two in a long word, none at its start or in a digit."""
    length = min(len(one), len(other))
    if length < 4 or one[0] != other[0] or _digits(one) != _digits(other):
        return False
    allowed = 1 if length < 8 else 2
    return abs(len(one) - len(other)) <= allowed and distance(one, other, allowed) <= allowed


def _is_another(text: str, name: str) -> bool:
    """Whether they differ in a word of a letter or two, by which names are told apart: `city_a` and `city_b`."""
    one, other = words(text[:LONGEST].casefold()), words(name[:LONGEST].casefold())
    return len(one) == len(other) and any(
        left != right and max(len(left), len(right)) <= 2 for left, right in zip(one, other, strict=True)
    )


def _digits(text: str) -> str:
    return "".join(character for character in text if character.isdigit())


def distance(one: str, other: str, enough: int) -> int:
    """How many letters must be put in, left out, changed or swapped; more than `enough` is not counted to its end."""
    if len(one) > LONGEST or len(other) > LONGEST:
        return enough + 1
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        row = [i]
        for j, right in enumerate(other, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (left != right))
            if i > 1 and j > 1 and left == other[j - 2] and right == one[i - 2]:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        if min(row) > enough:
            return enough + 1
        before, last = last, row
    return last[-1]


def sharing(text: str, known: Iterable[str]) -> list[str]:
    """Known names of which one has all the words of the other, such as `type` and `scale_type`."""
    own = _stems(text)
    if not own:
        return []
    found = [name for name in known if (theirs := _stems(name)) and (own <= theirs or theirs <= own)]
    return found or [name for name in known if _initials(name) == plain(text) or _initials(text) == plain(name)]


def _initials(name: str) -> str:
    """`dob` of `date_of_birth`."""
    parts = words(name[:LONGEST])
    return "".join(part[0] for part in parts).casefold() if len(parts) > 1 else ""


def _stems(text: str) -> frozenset[str]:
    found = (word.casefold() for word in words(text[:LONGEST]))
    return frozenset(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in found)


# What models put around a name: control tokens of chat templates with all that follows, a namespace of the API that
# they were trained with, a call's brackets, a counter.
_TOKEN = re.compile(r"<\|[^|>]{0,40}\|?>?|\|>|</?[A-Za-z_]{1,30}>")
_NAMESPACE = re.compile(
    r"(?:functions?|tools?|default_api|api|multi_tool_use|namespace|call|tool_call|function_call)(?:\.|::|:|/|__)", re.I
)
_WORDS_AFTER = frozenset("commentary analysis final json code to assistant function tool call".split())


def named(text: str, known: Sequence[str]) -> Match | None:
    """The known tool that a name with junk around it, or in another case, can only be.

    `junk` and `spelling` leave exactly one name. `part` is the last part of a longer known name: `create_mix` for
    `music.create_mix`; `other` is the other way round. `slip` is a misspelling.
    """
    if text in known or len(known) > MOST:
        return None
    bare = _bare(text)
    if bare and bare in known:
        return Match(bare, "junk")
    for name in (text, bare):
        match = meant(name, known) if name else None
        if match is not None and match.how == "spelling":
            return Match(match.name, "spelling")
    asked = bare or text
    tail = plain(_tail(asked))
    if len(tail) >= 3:
        tails = [name for name in known if plain(_tail(name)) == tail]
        if len(tails) == 1:
            # Two namespaces that differ are two tools, whatever they call what they do.
            if _tail(asked) == asked:
                return Match(tails[0], "part")
            return Match(tails[0], "other") if _tail(tails[0]) == tails[0] else None
    return meant(bare or text, known)


def nearest(text: str, known: Sequence[str], limit: int = 3) -> list[str]:
    """Known tools that may have been meant, the likeliest first."""
    match = named(text, known)
    first = [match.name] if match is not None else []
    ranked = sorted(((similarity(text[:LONGEST], name), name) for name in known[:MOST]), reverse=True)
    return [*first, *(name for likeness, name in ranked if likeness >= ALIKE and name not in first)][:limit]


def _bare(text: str) -> str:
    """A name without what cannot belong to one."""
    name = unicodedata.normalize("NFKC", text[:LONGEST])
    token = _TOKEN.search(name)
    if token is not None:
        # Before the first token stands the name; where nothing does, behind it.
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


def _tail(name: str) -> str:
    return re.split(r"\.|::|/|__", name)[-1]
