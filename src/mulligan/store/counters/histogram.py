"""How many took how long: 128 buckets, four to each doubling, which add up and can be taken back."""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from itertools import accumulate

BUCKETS = 128
LANE = 5
"""Bytes to count up to a million million in."""
_WIDE = struct.Struct("<Q")


class Histogram:
    """How many took how long. Each of 128 buckets is a lane of one long whole number: to add two is one addition."""

    __slots__ = ("lanes",)

    def __init__(self, lanes: int = 0) -> None:
        self.lanes = lanes

    @classmethod
    def of(cls, *took: int) -> Histogram:
        return cls(sum(ONE[bucket(each)] for each in took))

    def listed(self) -> tuple[int, list[int]]:
        """The first bucket that is not empty, and how many fell into each from there to the last."""
        left = self.lanes
        if not left:
            return 0, []
        first = ((left & -left).bit_length() - 1) // (8 * LANE)
        left >>= first * 8 * LANE
        size = -(-left.bit_length() // (8 * LANE))
        data = left.to_bytes(size * LANE, "little")
        # Each lane made as wide as a number that can be read as one, all of them at once.
        wide = bytearray(size * 8)
        for byte in range(LANE):
            wide[byte::8] = data[byte::LANE]
        return first, [each for (each,) in _WIDE.iter_unpack(wide)]

    def counts(self) -> dict[int, int]:
        """How many fell into each bucket that is not empty."""
        first, counts = self.listed()
        return {index: count for index, count in enumerate(counts, first) if count}

    def __len__(self) -> int:
        return sum(self.listed()[1])

    def __bool__(self) -> bool:
        return self.lanes != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self.lanes == other.lanes

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Histogram({self.counts()})" if self.lanes >= 0 else f"Histogram(lanes={self.lanes})"

    def __bytes__(self) -> bytes:
        """The lanes from the first to the last that is not empty, after the number of the first."""
        lanes = self.lanes
        if not lanes:
            return b""
        first = ((lanes & -lanes).bit_length() - 1) // (8 * LANE)
        lanes >>= first * 8 * LANE
        # Signed: what is to be taken from other counters is below zero until it is.
        return bytes((first,)) + lanes.to_bytes(lanes.bit_length() // 8 + 1, "little", signed=True)

    @classmethod
    def read(cls, data: bytes) -> Histogram:
        return cls(lanes_of(data) if data else 0)


def lanes_of(data: bytes) -> int:
    return int.from_bytes(data[1:], "little", signed=True) << (data[0] * 8 * LANE)


def bucket(took: int) -> int:
    """Four buckets to each doubling, from a microsecond to 2.4 hours: whole numbers only, so every machine agrees."""
    if took < 4:
        return max(took, 0)
    octave = took.bit_length() - 1
    return min(4 * (octave - 1) + (took >> (octave - 2) & 3), BUCKETS - 1)


def bounds(index: int) -> tuple[int, int]:
    """The microseconds from which and below which a bucket counts."""
    if index < 4:
        return index, index + 1
    octave, quarter = index // 4 + 1, index % 4
    return (4 + quarter) << (octave - 2), (5 + quarter) << (octave - 2)


ONE = tuple(1 << (index * 8 * LANE) for index in range(BUCKETS))
"""The lanes of a histogram of one."""


def enough(share: float) -> int:
    """How many must have been seen before a percentile of them says anything: at least one beyond it, and ten."""
    return max(10, round(1 / (1 - share)))


def percentile(histogram: Histogram, share: float) -> float | None:
    """The seconds within which this share came to an end, to about a tenth; None if there are too few to say."""
    return percentiles(histogram, share)[1][0]


def percentiles(histogram: Histogram, *shares: float) -> tuple[int, list[float | None]]:
    """Of how many they are, and the percentile for each share."""
    first, counts = histogram.listed()
    sums = list(accumulate(counts))
    total = sums[-1] if sums else 0
    found: list[float | None] = []
    for share in shares:
        if total < enough(share):
            found.append(None)
            continue
        place = bisect_left(sums, share * total)
        low, high = bounds(first + place)
        below = sums[place] - counts[place]
        found.append((low + (high - low) * (share * total - below) / counts[place]) / 1e6)
    return total, found


def micros(seconds: float) -> int:
    """Seconds as whole millionths; none where they are no number."""
    if 0.0 <= seconds <= 1e9:  # as almost all are
        return round(seconds * 1e6)
    return max(0, round(seconds * 1e6)) if math.isfinite(seconds) else 0
