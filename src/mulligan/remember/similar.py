"""Similarity of failure texts by sketches: a text's three-byte pieces are hashed to the bits of one large integer.

Comparing two sketches takes one operation on two integers, a fraction of a microsecond. All patterns of a tool can be
compared while a call waits. `python evals/memory.py --alike` compares it with `difflib`.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import mul, truediv
from zlib import crc32

BITS = 1024
PIECE = 3
LONGEST = 400
"""Characters of a text that are used."""
ALIKE = 0.5
"""Minimum similarity at which failures of one tool and kind share fixes (`evals/memory.py --alike`)."""


_BIT = tuple(1 << place for place in range(BITS))


def sketch(text: str) -> int:
    """Return the sketch of a text, with one bit per hashed piece."""
    folded = f"  {' '.join(text[:LONGEST].casefold().split())} ".encode("utf-8", "replace")
    places = {crc32(folded[start : start + PIECE]) % BITS for start in range(len(folded) - PIECE + 1)}
    return sum(map(_BIT.__getitem__, places))


def packed(bits: int) -> bytes:
    return bits.to_bytes(BITS // 8, "little")


def unpacked(data: bytes) -> int:
    return int.from_bytes(data, "little")


def likeness(one: int, other: int) -> float:
    """Return the similarity of two sketches from 0 to 1, as the cosine of their bit sets."""
    if not one or not other:
        return 0.0
    return float((one & other).bit_count() / (one.bit_count() * other.bit_count()) ** 0.5)


class Sketches:
    """Named sketches, prepared for comparison with new texts."""

    def __init__(self, known: Iterable[tuple[str, int]]) -> None:
        pairs = [(name, bits) for name, bits in known if bits]
        self._names = [name for name, _ in pairs]
        self._bits = [bits for _, bits in pairs]
        self._sizes = [bits.bit_count() for bits in self._bits]

    def __len__(self) -> int:
        return len(self._names)

    def nearest(self, text: str, limit: int = 8, threshold: float = ALIKE) -> list[tuple[float, str]]:
        """Return similarities and names, the most similar first; possibly none."""
        asked = sketch(text)
        # Rank without square roots, which keeps the order; compute the exact similarity only for the best.
        shared = list(map(int.bit_count, map(asked.__and__, self._bits)))
        ranks = list(map(truediv, map(mul, shared, shared), self._sizes))
        best = sorted(ranks, reverse=True)[:limit]
        least = max(0.99 * threshold * threshold * asked.bit_count(), best[-1] if len(best) == limit else 0.0)
        near = [place for place, rank in enumerate(ranks) if rank >= least]
        found = [(likeness(asked, self._bits[place]), self._names[place]) for place in near]
        return sorted(
            ((alike, name) for alike, name in found if alike >= threshold), key=lambda each: (-each[0], each[1])
        )[:limit]


def nearest(
    text: str, known: Iterable[tuple[str, int]], limit: int = 8, threshold: float = ALIKE
) -> list[tuple[float, str]]:
    """Compare a text with sketches that are used once."""
    return Sketches(known).nearest(text, limit, threshold)
