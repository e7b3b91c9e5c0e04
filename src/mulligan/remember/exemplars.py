"""Suggestions from exemplars: past successful calls of the same tool, by argument names and types, without values.

This is the last resort, for a failure that neither its own pattern nor a similar one has a fix for. The exemplars show
two mistakes: an unknown argument in place of one that all exemplars have, and an argument of another type.
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
"""Latest successful calls that are read per tool."""
SCANNED = 1000
"""Steps that the search for exemplars may skip over."""
LARGEST = 8192
"""Larger step bodies are skipped: decoding them only for argument names costs too much."""
ALIKE = 8
"""Further exemplars of the same shape add no information."""
FEWEST = 5
"""Exemplars that a suggestion needs."""
ALWAYS = 0.9
"""Share of exemplars that must have an argument for it to count as required."""


class Given(msgspec.Struct, frozen=True):
    """Partial view of a stored step: arguments and tool key. Decoding skips all other fields."""

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
    """Return up to `MAX_EXEMPLARS` shapes in order, with at most `MAX_EXEMPLARS_PER_SHAPE` equal ones."""
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
    """Suggest the changes that give a failed call the shape of the exemplars. Empty if the shapes agree."""
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
        return  # ambiguous: no unique pair of unknown and missing argument, so type changes would not help either
    for name, type in failed.items():
        (usual, *others) = types.get(name, {type})
        if not others and given[name] >= FEWEST and not _fits(type, {usual}):
            if (type, usual) in CASTS:
                yield Change(path=name, how="cast", after=usual)
            elif usual == "array" and type != "null":
                yield Change(path=name, how="wrap")


def _fits(type: str, usual: set[str]) -> bool:
    return type in usual or (type in NUMBERS and not usual.isdisjoint(NUMBERS))
