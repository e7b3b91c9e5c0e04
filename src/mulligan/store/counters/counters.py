"""Counters: integers, so that they add up to the same in any order and can be subtracted, and their packed form."""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import accumulate, zip_longest
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

HOUR = 3_600_000
DAY = 24 * HOUR
"""Milliseconds."""

# Histograms of durations

BUCKETS = 128
LANE_BYTES = 5
"""Bytes per bucket, for counts up to a trillion."""
_WIDE_LANE = struct.Struct("<Q")


class Histogram:
    """Number of durations in 128 buckets, four per doubling. Each bucket is a lane of one large integer, so that adding
    two histograms is one addition."""

    __slots__ = ("lanes",)

    def __init__(self, lanes: int = 0) -> None:
        self.lanes = lanes

    @classmethod
    def of(cls, *durations: int) -> Histogram:
        """Build from durations in microseconds."""
        return cls(sum(BUCKET_LANES[bucket(duration)] for duration in durations))

    def to_list(self) -> tuple[int, list[int]]:
        """Return the first bucket that is not empty, and the counts from there to the last one."""
        lanes = self.lanes
        if not lanes:
            return 0, []
        first = ((lanes & -lanes).bit_length() - 1) // (8 * LANE_BYTES)
        lanes >>= first * 8 * LANE_BYTES
        size = -(-lanes.bit_length() // (8 * LANE_BYTES))
        data = lanes.to_bytes(size * LANE_BYTES, "little")
        # Widen all lanes at once to a size that can be unpacked as integers.
        wide = bytearray(size * 8)
        for byte in range(LANE_BYTES):
            wide[byte::8] = data[byte::LANE_BYTES]
        return first, [count for (count,) in _WIDE_LANE.iter_unpack(wide)]

    def counts(self) -> dict[int, int]:
        """Return the counts of the buckets that are not empty."""
        first, counts = self.to_list()
        return {index: count for index, count in enumerate(counts, first) if count}

    def __len__(self) -> int:
        return sum(self.to_list()[1])

    def __bool__(self) -> bool:
        return self.lanes != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self.lanes == other.lanes

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Histogram({self.counts()})" if self.lanes >= 0 else f"Histogram(lanes={self.lanes})"

    def __bytes__(self) -> bytes:
        """Return the number of the first lane that is not empty, and the lanes from there to the last one."""
        lanes = self.lanes
        if not lanes:
            return b""
        first = ((lanes & -lanes).bit_length() - 1) // (8 * LANE_BYTES)
        lanes >>= first * 8 * LANE_BYTES
        # Signed: a difference may be negative.
        return bytes((first,)) + lanes.to_bytes(lanes.bit_length() // 8 + 1, "little", signed=True)

    @classmethod
    def read(cls, data: bytes) -> Histogram:
        return cls(_read_lanes(data))


def _read_lanes(data: bytes) -> int:
    return int.from_bytes(data[1:], "little", signed=True) << (data[0] * 8 * LANE_BYTES) if data else 0


def bucket(micros: int) -> int:
    """Return the bucket of a duration: four per doubling, from a microsecond to 2.4 hours, without floating point."""
    if micros < 4:
        return max(micros, 0)
    octave = micros.bit_length() - 1
    return min(4 * (octave - 1) + (micros >> (octave - 2) & 3), BUCKETS - 1)


def bounds(index: int) -> tuple[int, int]:
    """Return the microseconds from which and below which a bucket counts."""
    if index < 4:
        return index, index + 1
    octave, quarter = index // 4 + 1, index % 4
    return (4 + quarter) << (octave - 2), (5 + quarter) << (octave - 2)


BUCKET_LANES = tuple(1 << (index * 8 * LANE_BYTES) for index in range(BUCKETS))
"""The lanes of a histogram with one duration, by bucket."""


def min_sample_size(share: float) -> int:
    """Return how many durations a percentile needs: at least ten, and one beyond it."""
    return max(10, round(1 / (1 - share)))


def percentile(histogram: Histogram, share: float) -> float | None:
    """Return the seconds within which this share ended, to about a tenth; None if there are too few durations."""
    return percentiles(histogram, share)[1][0]


def percentiles(histogram: Histogram, *shares: float) -> tuple[int, list[float | None]]:
    """Return the number of durations, and the percentile for each share."""
    first, counts = histogram.to_list()
    sums = list(accumulate(counts))
    total = sums[-1] if sums else 0
    results: list[float | None] = []
    for share in shares:
        if total < min_sample_size(share):
            results.append(None)
            continue
        index = bisect_left(sums, share * total)
        low, high = bounds(first + index)
        count_below = sums[index] - counts[index]
        results.append((low + (high - low) * (share * total - count_below) / counts[index]) / 1e6)
    return total, results


def to_micros(seconds: float) -> int:
    """Return whole microseconds; 0 for a value that is not a number."""
    if 0.0 <= seconds <= 1e9:  # as almost all are
        return round(seconds * 1e6)
    return max(0, round(seconds * 1e6)) if math.isfinite(seconds) else 0


# Counters


class Outline(msgspec.Struct, omit_defaults=True):
    """The counters that every table shows, and that are read quickly."""

    runs: dict[str, int] = {}
    """By status."""
    running: int = 0
    """Those of them that have not ended."""
    calls: int = 0
    first_try: int = 0
    """Calls that succeeded at the first attempt."""
    recovered: int = 0
    """Calls that failed first and succeeded later, by recovery or by a later call."""
    repaired: int = 0
    """Those of them whose arguments recovery changed."""
    unrecovered: int = 0
    attempts: int = 0
    repair_attempts: int = 0
    """Attempts with changed arguments."""
    repair_successes: int = 0
    seconds: Histogram = msgspec.field(default_factory=Histogram)
    """Durations of successful attempts."""
    micros: int = 0
    """Their sum in microseconds."""
    backoff_micros: int = 0
    """Microseconds between attempts."""
    retry_micros: int = 0
    """Microseconds in attempts after the first."""
    tokens: int = 0
    recovery_tokens: int = 0
    """Those of them spent in attempts after the first."""
    repeats: int = 0
    """Failures that had occurred, in the same run or session, before a compaction."""


class KindCell(msgspec.Struct, omit_defaults=True):
    """Counters of one kind of failure."""

    failures: int = 0
    """Failed attempts."""
    calls: int = 0
    """Calls with at least one of them."""
    recovered: int = 0
    repaired: int = 0
    unrecovered: int = 0
    recovered_by: dict[str, int] = {}
    seconds: Histogram = msgspec.field(default_factory=Histogram)
    """Durations of the failed attempts."""
    micros: int = 0


class Cell(Outline, omit_defaults=True):
    """Counters of one key, or the sum of many. A run's own failure is in `kinds`, and is not a call."""

    later_attempts: dict[int, int] = {}
    """Attempts after the first, by number. There are as many first attempts as calls."""
    later_successes: dict[int, int] = {}
    """Those of them that succeeded."""
    recovered_by: dict[str, int] = {}
    """Recovered calls, by recovery method."""
    to_repair: Histogram = msgspec.field(default_factory=Histogram)
    """From the start of a recovered call to the end of its recovery."""
    changed_arguments: dict[str, int] = {}
    """Arguments that had to change before a call succeeded: `path operation`, by calls."""
    kinds: dict[str, KindCell] = {}


class CounterKey(NamedTuple):
    """Key of counters. Empty where a part is unknown; a run's own counters have no type and no name."""

    hour: int
    agent: str
    version: str
    environment: str
    model: str
    type: str
    name: str


Cells = dict[CounterKey, Cell]
K = TypeVar("K")
EMPTY_CELL = Cell()
_EMPTY_KIND = KindCell()
OUTLINE_NUMBERS = (
    "calls", "attempts", "first_try", "recovered", "repaired", "unrecovered", "micros", "repair_attempts",
    "repair_successes", "backoff_micros", "retry_micros", "tokens", "recovery_tokens", "repeats", "running",
)  # fmt: skip
"""The numbers of an outline, in the order in which they are packed. New ones are added at the end."""
_RARE_NUMBERS = OUTLINE_NUMBERS[3:6] + OUTLINE_NUMBERS[7:]
_KIND_NUMBERS = ("failures", "calls", "recovered", "repaired", "unrecovered", "micros")
_DETAIL_COUNTS = ("later_attempts", "later_successes", "recovered_by", "changed_arguments")


def add(into: dict[K, Cell], other: Mapping[K, Outline], sign: Literal[1, -1] = 1) -> None:
    """Add counters by key, or subtract them. A key without any remaining counter is removed."""
    for key, cell in other.items():
        total = into.get(key)
        if total is None:
            total = into[key] = Cell()
        merge(total, cell, sign)
        if sign < 0 and total == EMPTY_CELL:
            del into[key]


def copy(cell: Outline) -> Cell:
    total = Cell()
    merge(total, cell)
    return total


def merge(into: Cell, other: Outline, sign: Literal[1, -1] = 1) -> None:
    # Mostly zero fields are added only if they are not: a query calls this thousands of times.
    into.calls += sign * other.calls
    into.attempts += sign * other.attempts
    into.first_try += sign * other.first_try
    into.micros += sign * other.micros
    into.seconds.lanes += sign * other.seconds.lanes
    if any(_rare_numbers_of(other)):
        for name in _RARE_NUMBERS:
            setattr(into, name, getattr(into, name) + sign * getattr(other, name))
    if other.runs:
        merge_counts(into.runs, other.runs, sign)
    if not isinstance(other, Cell) or not has_details(other):
        return
    for name in _DETAIL_COUNTS:
        merge_counts(getattr(into, name), getattr(other, name), sign)
    into.to_repair.lanes += sign * other.to_repair.lanes
    for name, kind in other.kinds.items():
        total = into.kinds.setdefault(name, KindCell())
        for number in _KIND_NUMBERS:
            setattr(total, number, getattr(total, number) + sign * getattr(kind, number))
        total.seconds.lanes += sign * kind.seconds.lanes
        merge_counts(total.recovered_by, kind.recovered_by, sign)
        if total == _EMPTY_KIND:
            del into.kinds[name]


def merge_counts(into: dict[Any, int], other: Mapping[Any, int], sign: int) -> None:
    for key, count in other.items():
        remaining = into.get(key, 0) + sign * count
        if remaining:
            into[key] = remaining
        else:
            into.pop(key, None)


def attempts(cell: Cell) -> Iterator[tuple[int, int, int]]:
    """Yield the number of an attempt, how many there were, and how many of them succeeded."""
    if cell.calls:
        yield 1, cell.calls, cell.first_try
    for number, count in sorted(cell.later_attempts.items()):
        yield number, count, cell.later_successes.get(number, 0)


def filter_by_kind(cell: Outline, kind: str) -> Cell:
    """Return the counters of one kind, or of all kinds of a type: calls with such a failure and their outcomes.

    Attempts are the failed ones. A call with two kinds of a type counts for both.
    """
    total = Cell()
    for name, kind_cell in cell.kinds.items() if isinstance(cell, Cell) else ():
        if name == kind or name.partition("/")[0] == kind:
            calls_of_kind = Cell(
                calls=kind_cell.calls,
                recovered=kind_cell.recovered,
                repaired=kind_cell.repaired,
                unrecovered=kind_cell.unrecovered,
                attempts=kind_cell.failures,
                recovered_by=kind_cell.recovered_by,
                kinds={name: kind_cell},
            )
            merge(total, calls_of_kind)
    return total


# Packing: the outline, of which a query reads thousands, and the details, which it reads only if needed


class _Details(msgspec.Struct, omit_defaults=True):
    """What a cell has beyond its outline. Zeros are omitted, and a later version may add fields."""

    later_attempts: dict[int, int] = {}
    later_successes: dict[int, int] = {}
    recovered_by: dict[str, int] = {}
    to_repair: Histogram = msgspec.field(default_factory=Histogram)
    changed_arguments: dict[str, int] = {}
    kinds: dict[str, KindCell] = {}


_encode = msgspec.msgpack.Encoder(enc_hook=bytes).encode
_decode_list = msgspec.msgpack.Decoder(list[Any]).decode
_numbers_of = attrgetter(*OUTLINE_NUMBERS)
_rare_numbers_of = attrgetter(*_RARE_NUMBERS)
_details_of = attrgetter(*_Details.__struct_fields__)


@cache
def _decoder(type: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder. Built on first use: few processes that import this module read details."""
    return msgspec.msgpack.Decoder(type, dec_hook=lambda _, lanes: Histogram.read(lanes))


def pack(cell: Cell) -> tuple[bytes, bytes | None]:
    """Return the packed outline, and the packed details if there are any."""
    return pack_outline(cell), pack_details(cell)


def pack_outline(cell: Outline) -> bytes:
    return _encode((bytes(cell.seconds), cell.runs or None, *_numbers_of(cell)))


def pack_details(cell: Cell) -> bytes | None:
    return _encode(_Details(*_details_of(cell))) if has_details(cell) else None


def has_details(cell: Cell) -> bool:
    return any(_details_of(cell))


def unpack(outline: bytes, details: bytes | None = None) -> Cell:
    lanes, runs, *numbers = _decode_list(outline)
    cell = Cell(seconds=Histogram.read(lanes), runs=runs or {}, **dict(zip(OUTLINE_NUMBERS, numbers, strict=False)))
    if details is not None:
        decoded = _decoder(_Details).decode(details)
        for name in _Details.__struct_fields__:
            setattr(cell, name, getattr(decoded, name))
    return cell


def add_packed(packed: bytes, cell: Outline) -> bytes | None:
    """Add the outline of a cell to a packed one, without unpacking it. Return None if nothing is left."""
    lanes, runs, *numbers = _decode_list(packed)
    total_lanes = _read_lanes(lanes) + cell.seconds.lanes
    runs = runs or {}
    merge_counts(runs, cell.runs, 1)
    sums = [number + change for number, change in zip_longest(numbers, _numbers_of(cell), fillvalue=0)]
    return _encode((Histogram(total_lanes), runs or None, *sums)) if total_lanes or runs or any(sums) else None


def sum_outlines(packed: Iterable[bytes]) -> Outline:
    """Add up packed outlines, counter by counter: much faster than adding cells."""
    lanes, runs, *numbers = zip_longest(*map(_decode_list, packed), fillvalue=0)
    sums: dict[str, Any] = dict(zip(OUTLINE_NUMBERS, map(sum, numbers), strict=False))
    total = Outline(**sums)
    for run_counts in filter(None, runs):
        merge_counts(total.runs, run_counts, 1)
    total.seconds.lanes = sum(map(_read_lanes, filter(None, lanes)))
    return total


def pack_cells(cells: Cells) -> bytes:
    """Return many cells with their keys as one packed value."""
    return _encode(list(cells.items()))


def sum_packed_cells(packed: Iterable[bytes]) -> Cells:
    """Add up values of `pack_cells`."""
    cells: Cells = {}
    for body in packed:
        for key, cell in _decoder(list[tuple[CounterKey, Cell]]).decode(body):
            if cells.setdefault(key, cell) is not cell:
                merge(cells[key], cell)
    return cells
