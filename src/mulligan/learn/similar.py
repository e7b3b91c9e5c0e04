"""Similarity of failure texts and patterns.

A text's three-byte pieces are hashed to the bits of one large integer, its sketch. Comparing two sketches takes one
operation on two integers, so that all patterns of a tool can be compared while a call waits
(`python evals/memory.py --alike` compares it with `difflib`). `find_related` searches the patterns of all tools, for
people. An embedder of theirs may supply vectors instead; a pattern's vector is stored as a key-value entry.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from operator import mul, truediv
from zlib import crc32

from mulligan.core.failure import StoreError
from mulligan.core.records import Pattern
from mulligan.store.base import PatternQuery, Store

SKETCH_BITS = 1024
PIECE_BYTES = 3
MAX_SKETCH_CHARS = 400
"""Characters of a text that are used."""
MIN_SIMILARITY = 0.5
"""Minimum similarity at which failures of one tool and kind share fixes (`evals/memory.py --alike`)."""


_BIT = tuple(1 << position for position in range(SKETCH_BITS))


def sketch(text: str) -> int:
    """Return the sketch of a text, with one bit per hashed piece."""
    normalized = f"  {' '.join(text[:MAX_SKETCH_CHARS].casefold().split())} ".encode("utf-8", "replace")
    positions = {
        crc32(normalized[start : start + PIECE_BYTES]) % SKETCH_BITS
        for start in range(len(normalized) - PIECE_BYTES + 1)
    }
    return sum(map(_BIT.__getitem__, positions))


def pack(bits: int) -> bytes:
    return bits.to_bytes(SKETCH_BITS // 8, "little")


def unpack(data: bytes) -> int:
    return int.from_bytes(data, "little")


def sketch_similarity(left: int, right: int) -> float:
    """Return the similarity of two sketches from 0 to 1, as the cosine of their bit sets."""
    if not left or not right:
        return 0.0
    return float((left & right).bit_count() / (left.bit_count() * right.bit_count()) ** 0.5)


class Sketches:
    """Named sketches, prepared for comparison with new texts."""

    def __init__(self, sketches: Iterable[tuple[str, int]]) -> None:
        pairs = [(name, bits) for name, bits in sketches if bits]
        self._names = [name for name, _ in pairs]
        self._bits = [bits for _, bits in pairs]
        self._sizes = [bits.bit_count() for bits in self._bits]

    def __len__(self) -> int:
        return len(self._names)

    def nearest(self, text: str, limit: int = 8, threshold: float = MIN_SIMILARITY) -> list[tuple[float, str]]:
        """Return similarities and names, the most similar first; possibly none."""
        query_bits = sketch(text)
        # Rank without square roots, which keeps the order; compute the exact similarity only for the best.
        shared = list(map(int.bit_count, map(query_bits.__and__, self._bits)))
        ranks = list(map(truediv, map(mul, shared, shared), self._sizes))
        best = sorted(ranks, reverse=True)[:limit]
        min_rank = max(0.99 * threshold * threshold * query_bits.bit_count(), best[-1] if len(best) == limit else 0.0)
        near = [index for index, rank in enumerate(ranks) if rank >= min_rank]
        matches = [(sketch_similarity(query_bits, self._bits[index]), self._names[index]) for index in near]
        return sorted(
            ((similarity, name) for similarity, name in matches if similarity >= threshold),
            key=lambda match: (-match[0], match[1]),
        )[:limit]


def nearest(
    text: str, sketches: Iterable[tuple[str, int]], limit: int = 8, threshold: float = MIN_SIMILARITY
) -> list[tuple[float, str]]:
    """Compare a text with sketches that are used once."""
    return Sketches(sketches).nearest(text, limit, threshold)


# Related patterns


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
        own_sketch = sketch(_match_text(pattern))
        ranked = [
            (sketch_similarity(own_sketch, sketch(_match_text(candidate))), candidate) for candidate in other_patterns
        ]
        min_similarity = MIN_SIMILARITY
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
