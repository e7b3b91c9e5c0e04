"""What calls of a tool look like that worked, as the last thing to ask: names and types of arguments, and no values.

Where the same failure was never overcome, nor one like it, the shape of what works may still tell what was meant: an
argument that no such call has, in the place of one that all of them have; a text where all of them have a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.records import Change, Fix, fix_id
from mulligan.remember.fixes import Form
from mulligan.remember.store import FixQuery, Shape

MOST = 16
"""Calls that are looked at, the latest."""
SCANNED = 1000
"""Steps that are passed over in looking for them."""
LARGEST = 8192
"""Bytes of a record that is worth reading for the names in it."""
ALIKE = 8
"""Of one shape; further ones tell nothing new."""
FEWEST = 5
"""Calls before anything is concluded from them."""
ALWAYS = 0.9
"""The share of calls that have an argument which belongs to every call."""


class Given(msgspec.Struct, frozen=True):
    """View of a stored step: what it was called with. Ignores all other fields of the record."""

    arguments: Any = None
    key: str | None = None


NUMBERS = ("integer", "number")
CASTS = {
    ("string", "integer"),
    ("string", "number"),
    ("string", "boolean"),
    ("integer", "string"),
    ("number", "string"),
}


def capped(shapes: Iterable[Shape]) -> list[Shape]:
    """The latest calls, a few of each shape."""
    seen: Counter[Shape] = Counter()
    kept: list[Shape] = []
    for shape in shapes:
        if seen[shape] < ALIKE:
            seen[shape] += 1
            kept.append(shape)
        if len(kept) >= MOST:
            break
    return kept


def drawn(query: FixQuery, worked: Sequence[Shape]) -> list[Fix]:
    """What calls that worked say about one that did not; nothing, where it is as they are."""
    if not query.shape or query.tool is None or len(worked) < FEWEST:
        return []
    changes = tuple(sorted(_changes(dict(query.shape), worked), key=lambda change: change.path))
    if not changes:
        return []
    fingerprint = query.fingerprint or ""
    return [
        Fix(
            id=fix_id(query.tool, fingerprint, Form(changes=changes)),
            tool=query.tool,
            fingerprint=fingerprint,
            sort="exemplar",
            changes=changes,
            exemplars=len(worked),
            why="it was never tried: calls that worked look like that",
            tellable=True,
        )
    ]


def _changes(failed: Mapping[str, str], worked: Sequence[Shape]) -> Iterable[Change]:
    given = Counter(name for shape in worked for name, _ in shape)
    types: dict[str, set[str]] = {}
    for shape in worked:
        for name, type in shape:
            types.setdefault(name, set()).add(type)
    strange = [name for name in failed if name not in given]
    missing = [name for name, count in given.items() if count >= ALWAYS * len(worked) and name not in failed]
    if len(strange) == len(missing) == 1 and _fits(failed[strange[0]], types[missing[0]]):
        yield Change(path=strange[0], how="rename", after=missing[0])
    elif strange or missing:
        return  # what was meant by which, nobody can tell: then the rest is no help either
    for name, type in failed.items():
        (usual, *others) = types.get(name, {type})
        if not others and given[name] >= FEWEST and not _fits(type, {usual}):
            if (type, usual) in CASTS:
                yield Change(path=name, how="cast", after=usual)
            elif usual == "array" and type != "null":
                yield Change(path=name, how="wrap")


def _fits(type: str, usual: set[str]) -> bool:
    return type in usual or (type in NUMBERS and not usual.isdisjoint(NUMBERS))
