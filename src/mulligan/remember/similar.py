"""How alike two failures are, in a fraction of a microsecond: the pieces of a text as the bits of one long number.

Comparing two is one operation on two integers, so that all patterns of a tool can be compared while a call waits;
`python evals/memory.py --alike` measures it beside `difflib`.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import mul, truediv
from zlib import crc32

BITS = 1024
PIECE = 3
LONGEST = 400
"""Characters of a text that are looked at."""
ALIKE = 0.5
"""Below this, two failures of one tool and kind have nothing to say about each other (`evals/memory.py --alike`)."""


_BIT = tuple(1 << place for place in range(BITS))


def sketch(text: str) -> int:
    """The pieces of a text, each a bit."""
    folded = f"  {' '.join(text[:LONGEST].casefold().split())} ".encode("utf-8", "replace")
    places = {crc32(folded[start : start + PIECE]) % BITS for start in range(len(folded) - PIECE + 1)}
    return sum(map(_BIT.__getitem__, places))


def packed(bits: int) -> bytes:
    return bits.to_bytes(BITS // 8, "little")


def unpacked(data: bytes) -> int:
    return int.from_bytes(data, "little")


def likeness(one: int, other: int) -> float:
    """From 0 to 1: the share of pieces in common, as the cosine of the two sets."""
    if not one or not other:
        return 0.0
    return float((one & other).bit_count() / (one.bit_count() * other.bit_count()) ** 0.5)


class Sketches:
    """Known texts by their names, ready to be compared with a new one."""

    def __init__(self, known: Iterable[tuple[str, int]]) -> None:
        pairs = [(name, bits) for name, bits in known if bits]
        self._names = [name for name, _ in pairs]
        self._bits = [bits for _, bits in pairs]
        self._sizes = [bits.bit_count() for bits in self._bits]

    def __len__(self) -> int:
        return len(self._names)

    def nearest(self, text: str, limit: int = 8, threshold: float = ALIKE) -> list[tuple[float, str]]:
        """The most alike, the most alike first; nothing is a good answer."""
        asked = sketch(text)
        # In the order of likeness, and told by whole numbers: only the few that are told are worth a root.
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
    """The same of what is compared but once."""
    return Sketches(known).nearest(text, limit, threshold)
