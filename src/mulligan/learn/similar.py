"""Similarity of failure texts by sketches: a text's three-byte pieces are hashed to the bits of one large integer.

Comparing two sketches takes one operation on two integers, a fraction of a microsecond. All patterns of a tool can be
compared while a call waits. `python evals/memory.py --alike` compares it with `difflib`.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import mul, truediv
from zlib import crc32

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
