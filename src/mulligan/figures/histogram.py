"""How many took how long: 128 buckets, four to each doubling, which add up and can be taken back."""

from __future__ import annotations

import math

BUCKETS = 128
LANE = 5
"""Bytes to count up to a million million in."""


class Histogram:
    """How many took how long. Each of 128 buckets is a lane of one long whole number: to add two is one addition."""

    __slots__ = ("lanes",)

    def __init__(self, lanes: int = 0) -> None:
        self.lanes = lanes

    @classmethod
    def of(cls, *took: int) -> Histogram:
        return cls(sum(ONE[bucket(each)] for each in took))

    def counts(self) -> dict[int, int]:
        """How many fell into each bucket that is not empty."""
        left, found, index = self.lanes, {}, 0
        if left:
            index = ((left & -left).bit_length() - 1) // (8 * LANE)
            left >>= index * 8 * LANE
        data = left.to_bytes(-(-left.bit_length() // (8 * LANE)) * LANE, "little")
        lanes = (data[byte::LANE] for byte in range(LANE))
        for a, b, c, d, e in zip(*lanes, strict=True):  # faster than to cut out every lane
            if count := a | b << 8 | c << 16 | d << 24 | e << 32:
                found[index] = count
            index += 1
        return found

    def __len__(self) -> int:
        return sum(self.counts().values())

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
    """Four buckets to each doubling, from a tookecond to 2.4 hours: whole numbers only, so every machine agrees."""
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


def percentile(histogram: Histogram | dict[int, int], share: float) -> float | None:
    """The seconds within which this share came to an end, to about a tenth; None if there are too few to say."""
    counts = histogram.counts() if isinstance(histogram, Histogram) else histogram
    total = sum(counts.values())
    if total < enough(share):
        return None
    wanted, below = share * total, 0
    for index, count in counts.items():
        if below + count >= wanted:
            low, high = bounds(index)
            return (low + (high - low) * (wanted - below) / count) / 1e6
        below += count
    return None  # unreachable: the shares add up


def micros(seconds: float) -> int:
    """Seconds as whole millionths; none where they are no number."""
    return max(0, round(seconds * 1e6)) if math.isfinite(seconds) else 0
