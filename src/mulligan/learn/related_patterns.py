"""Search for patterns similar to a given one, across all tools. For interactive use, never during a call.

An optional embedder supplies vectors. It is called once per pattern, and the vector is stored as a key-value entry.
Without an embedder, sketches of the message template are compared, which finds messages with the same words.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence

from mulligan.core.failure import StoreError
from mulligan.core.records import Pattern
from mulligan.learn import similar
from mulligan.store.base import PatternQuery, Store

Embedder = Callable[[str], Iterable[float]]
MAX_COMPARED_PATTERNS = 5000
"""Patterns that are compared: those with the most occurrences."""
VECTOR_KIND = "vector"
MAX_EMBEDDED_CHARS = 2000
"""Longer message templates are truncated for the embedder."""


def find_related(
    store: Store, tenant: str, pattern: Pattern, limit: int = 10, embed: Embedder | None = None, name: str = ""
) -> list[tuple[float, Pattern]]:
    """Return other patterns with their similarity, most similar first.

    `name` identifies the embedder: its vectors are stored under this name.
    """
    other_patterns = [
        candidate
        for candidate in store.patterns(tenant, PatternQuery(limit=MAX_COMPARED_PATTERNS))
        if candidate.id != pattern.id
    ]
    if embed is None:
        own_sketch = similar.sketch(_match_text(pattern))
        ranked = [
            (similar.sketch_similarity(own_sketch, similar.sketch(_match_text(candidate))), candidate)
            for candidate in other_patterns
        ]
        min_similarity = similar.MIN_SIMILARITY
    else:
        own_vector = _load_vector(store, tenant, pattern, embed, name)
        ranked = [
            (_cosine(own_vector, _load_vector(store, tenant, candidate, embed, name)), candidate)
            for candidate in other_patterns
        ]
        min_similarity = 0.0
    ranked.sort(key=lambda scored_pattern: (-scored_pattern[0], scored_pattern[1].id))
    return [
        scored_pattern
        for scored_pattern in ranked[: max(limit, 0)]
        if scored_pattern[0] > 0 and scored_pattern[0] >= min_similarity
    ]


def _match_text(pattern: Pattern) -> str:
    return pattern.template or pattern.message


def _load_vector(store: Store, tenant: str, pattern: Pattern, embed: Embedder, name: str) -> Sequence[float]:
    """Return the stored unit vector of a pattern, or compute and store it."""
    kind = f"{VECTOR_KIND} {name}"
    stored_bytes = store.get(tenant, kind, pattern.id)
    if stored_bytes is not None and len(stored_bytes) % 4 == 0:
        stored_vector = array("f")
        stored_vector.frombytes(stored_bytes)
        return stored_vector
    try:
        vector = array("f", embed(_match_text(pattern)[:MAX_EMBEDDED_CHARS]))
    except Exception as error:
        raise StoreError(f"The embedder {name} failed: {type(error).__name__}: {error}") from error
    norm = math.sqrt(sum(component * component for component in vector))
    if not vector or not math.isfinite(norm):
        raise StoreError(f"The embedder {name} returned no vector for {pattern.id}.")
    unit_vector = array("f", (component / (norm or 1.0) for component in vector))
    store.put(tenant, kind, pattern.id, unit_vector.tobytes())
    return unit_vector


def _cosine(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(map(float.__mul__, left, right)) if len(left) == len(right) else 0.0
