"""Search for patterns similar to a given one, across all tools. For interactive use, never during a call.

An optional embedder supplies vectors. It is called once per pattern, and the vector is stored as a key-value entry.
Without an embedder, sketches of the message template are compared, which finds messages with the same words.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence

from mulligan.failure import StoreError
from mulligan.records import Pattern
from mulligan.remember import similar
from mulligan.remember.store import PatternQuery, Store

Embedder = Callable[[str], Iterable[float]]
MOST = 5000
"""Patterns that are compared: those with the most occurrences."""
KIND = "vector"
LONGEST = 2000
"""Longer message templates are truncated for the embedder."""


def like(
    store: Store, tenant: str, pattern: Pattern, limit: int = 10, embed: Embedder | None = None, name: str = ""
) -> list[tuple[float, Pattern]]:
    """Return other patterns with their similarity, most similar first.

    `name` identifies the embedder: its vectors are stored under this name.
    """
    known = [each for each in store.patterns(tenant, PatternQuery(limit=MOST)) if each.id != pattern.id]
    if embed is None:
        own = similar.sketch(_worded(pattern))
        ranked = [(similar.likeness(own, similar.sketch(_worded(each))), each) for each in known]
        least = similar.ALIKE
    else:
        asked = _vector(store, tenant, pattern, embed, name)
        ranked = [(_cosine(asked, _vector(store, tenant, each, embed, name)), each) for each in known]
        least = 0.0
    ranked.sort(key=lambda each: (-each[0], each[1].id))
    return [each for each in ranked[: max(limit, 0)] if each[0] > 0 and each[0] >= least]


def _worded(pattern: Pattern) -> str:
    return pattern.template or pattern.message


def _vector(store: Store, tenant: str, pattern: Pattern, embed: Embedder, name: str) -> Sequence[float]:
    """Return the stored unit vector of a pattern, or compute and store it."""
    kind = f"{KIND} {name}"
    kept = store.get(tenant, kind, pattern.id)
    if kept is not None and len(kept) % 4 == 0:
        found = array("f")
        found.frombytes(kept)
        return found
    try:
        made = array("f", embed(_worded(pattern)[:LONGEST]))
    except Exception as error:
        raise StoreError(f"the embedder {name} failed: {type(error).__name__}: {error}") from error
    size = math.sqrt(sum(each * each for each in made))
    if not made or not math.isfinite(size):
        raise StoreError(f"the embedder {name} gave no numbers for {pattern.id}.")
    unit = array("f", (each / (size or 1.0) for each in made))
    store.put(tenant, kind, pattern.id, unit.tobytes())
    return unit


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(map(float.__mul__, one, other)) if len(one) == len(other) else 0.0
