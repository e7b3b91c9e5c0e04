"""Suggestions from exemplars: past successful calls of the same tool, by argument names and types, without values.

This is the last resort, for a failure that neither its own pattern nor a similar one has a fix for. The exemplars show
two mistakes: an unknown argument in place of one that all exemplars have, and an argument of another type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.core.records import Change, Fix, fix_id
from mulligan.learn.fixes import FixAction
from mulligan.store.base import ArgumentTypes, FixQuery

MAX_EXEMPLARS = 16
"""Latest successful calls that are read per tool."""
MAX_SCANNED_STEPS = 1000
"""Steps that the search for exemplars may skip over."""
MAX_BODY_BYTES = 8192
"""Larger step bodies are skipped: decoding them only for argument names costs too much."""
MAX_EXEMPLARS_PER_SHAPE = 8
"""Further exemplars of the same shape add no information."""
MIN_EXEMPLARS = 5
"""Exemplars that a suggestion needs."""
REQUIRED_ARGUMENT_RATIO = 0.9
"""Share of exemplars that must have an argument for it to count as required."""


class ExemplarArguments(msgspec.Struct, frozen=True):
    """Partial view of a stored step: arguments and tool key. Decoding skips all other fields."""

    arguments: Any = None
    key: str | None = None


NUMBER_TYPES = ("integer", "number")
ALLOWED_CASTS = {
    ("string", "integer"),
    ("string", "number"),
    ("string", "boolean"),
    ("integer", "string"),
    ("number", "string"),
}


def sample_by_shape(shapes: Iterable[ArgumentTypes]) -> list[ArgumentTypes]:
    """Return up to `MAX_EXEMPLARS` shapes in order, with at most `MAX_EXEMPLARS_PER_SHAPE` equal ones."""
    shape_counts: Counter[ArgumentTypes] = Counter()
    sample: list[ArgumentTypes] = []
    for shape in shapes:
        if shape_counts[shape] < MAX_EXEMPLARS_PER_SHAPE:
            shape_counts[shape] += 1
            sample.append(shape)
        if len(sample) >= MAX_EXEMPLARS:
            break
    return sample


def suggest_from_exemplars(query: FixQuery, exemplars: Sequence[ArgumentTypes]) -> list[Fix]:
    """Suggest the changes that give a failed call the shape of the exemplars. Empty if the shapes agree."""
    if not query.argument_types or query.tool is None or len(exemplars) < MIN_EXEMPLARS:
        return []
    changes = tuple(sorted(_suggest_changes(dict(query.argument_types), exemplars), key=lambda change: change.path))
    if not changes:
        return []
    fingerprint = query.fingerprint or ""
    return [
        Fix(
            id=fix_id(query.tool, fingerprint, FixAction(changes=changes)),
            tool=query.tool,
            fingerprint=fingerprint,
            type="exemplar",
            changes=changes,
            exemplars=len(exemplars),
            reason="no trials yet: modeled on successful calls",
            showable=True,
        )
    ]


def _suggest_changes(failed: Mapping[str, str], exemplars: Sequence[ArgumentTypes]) -> Iterable[Change]:
    argument_counts = Counter(name for shape in exemplars for name, _ in shape)
    types: dict[str, set[str]] = {}
    for shape in exemplars:
        for name, type in shape:
            types.setdefault(name, set()).add(type)
    unknown = [name for name in failed if name not in argument_counts]
    missing = [
        name
        for name, count in argument_counts.items()
        if count >= REQUIRED_ARGUMENT_RATIO * len(exemplars) and name not in failed
    ]
    if len(unknown) == len(missing) == 1 and _fits(failed[unknown[0]], types[missing[0]]):
        yield Change(path=unknown[0], operation="rename", after=missing[0])
    elif unknown or missing:
        return  # ambiguous: no unique pair of unknown and missing argument, so type changes would not help either
    for name, type in failed.items():
        (expected_type, *others) = types.get(name, {type})
        if not others and argument_counts[name] >= MIN_EXEMPLARS and not _fits(type, {expected_type}):
            if (type, expected_type) in ALLOWED_CASTS:
                yield Change(path=name, operation="cast", after=expected_type)
            elif expected_type == "array" and type != "null":
                yield Change(path=name, operation="wrap")


def _fits(type: str, expected_types: set[str]) -> bool:
    return type in expected_types or (type in NUMBER_TYPES and not expected_types.isdisjoint(NUMBER_TYPES))
