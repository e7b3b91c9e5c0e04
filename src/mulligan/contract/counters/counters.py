"""Counters and their packed form. They are integers: exact in any order of addition, and they can be subtracted."""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
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

    lanes = 0  # no __init__: thousands of empty ones are built per batch

    @classmethod
    def of(cls, *durations: int) -> Histogram:
        """Build from durations in microseconds."""
        return cls.of_lanes(sum(map(lane_of, durations)))

    @classmethod
    def of_lanes(cls, lanes: int) -> Histogram:
        histogram = cls()
        histogram.lanes = lanes
        return histogram

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
        return cls.of_lanes(_read_lanes(data))


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


@lru_cache(maxsize=10_000)
def lane_of(micros: int) -> int:
    """Return the lanes of a histogram with one duration; none for 0, which was recorded without a clock."""
    return 1 << (bucket(micros) * 8 * LANE_BYTES) if micros > 0 else 0


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
        if total < max(10, round(1 / (1 - share))):  # a percentile needs ten durations, and one beyond it
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


class KindCell(msgspec.Struct, omit_defaults=True):
    """Counters of one kind of failure."""

    failures: int = 0
    """Failed attempts."""
    calls: int = 0
    """Calls with at least one failure of this kind."""
    recovered: int = 0
    repaired: int = 0
    unrecovered: int = 0
    recovered_by: dict[str, int] = {}
    seconds: Histogram = msgspec.field(default_factory=Histogram)
    """Durations of the failed attempts."""
    micros: int = 0


class Cell(msgspec.Struct, omit_defaults=True):
    """Counters of one key, or the sum of many. A run's own failure is in `kinds`, and is not a call."""

    # The outline: the counters that every table shows, and that are read quickly.
    runs: dict[str, int] = {}
    """Ended runs, by status."""
    running: int = 0
    """Runs that have not ended."""
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
    cost_nanos: int = 0
    """Cost of all attempts with a known cost, in billionths of a US dollar."""
    recovery_cost_nanos: int = 0
    """The cost of attempts after the first."""
    priced_attempts: int = 0
    """Attempts with a known cost."""
    unpriced_attempts: int = 0
    """Attempts with tokens whose cost is unknown."""
    avoided_turns: int = 0
    """Model turns that recovered tool calls made unnecessary."""
    avoided_tokens: int = 0
    """Their input tokens."""
    avoided_cost_nanos: int = 0
    """The cost of this input, as far as it is known."""
    reflections: int = 0
    """Requests to the reflector. They are no calls."""
    reflection_tokens: int = 0
    reflection_cost_nanos: int = 0
    reflection_avoided_tokens: int = 0
    """Input tokens of the model turns that repairs by reflection made unnecessary."""
    repeats: int = 0
    """Failures that had occurred, in the same run or session, before a compaction."""
    suspected: int = 0
    """Attempts that succeeded with a result that looks like a failure."""
    # The details, which only some queries read.
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
_NO_KEY = CounterKey(0, "", "", "", "", "", "")
_EMPTY_KIND = KindCell()
OUTLINE_NUMBERS = (
    "calls", "attempts", "first_try", "recovered", "repaired", "unrecovered", "micros", "repair_attempts",
    "repair_successes", "backoff_micros", "retry_micros", "tokens", "recovery_tokens", "repeats", "running",
    "cost_nanos", "recovery_cost_nanos", "priced_attempts", "unpriced_attempts", "avoided_turns", "avoided_tokens",
    "avoided_cost_nanos", "reflections", "reflection_tokens", "reflection_cost_nanos", "reflection_avoided_tokens",
    "suspected",
)  # fmt: skip
"""The numbers of an outline, in the order in which they are packed. New ones are added at the end."""
_COMMON_COUNT = 7
"""Number of leading entries that are always packed. The others are packed only if one of them is not zero."""
DETAILS = ("later_attempts", "later_successes", "recovered_by", "to_repair", "changed_arguments", "kinds")
_numbers_of = attrgetter(*OUTLINE_NUMBERS)
_uncommon_numbers_of = attrgetter(*OUTLINE_NUMBERS[_COMMON_COUNT:])
_details_of = attrgetter(*DETAILS)


def add(into: dict[K, Cell], other: Mapping[K, Cell], sign: Literal[1, -1] = 1) -> None:
    """Add counters by key, or subtract them. A key without any remaining counter is removed."""
    for key, cell in other.items():
        total = into.get(key)
        if total is None:
            total = into[key] = Cell()
        merge(total, cell, sign)
        if sign < 0 and total == EMPTY_CELL:
            del into[key]


def merge(into: Cell, other: Cell, sign: Literal[1, -1] = 1) -> None:
    # Mostly zero fields are added only if they are not: a query calls this thousands of times.
    into.calls += sign * other.calls
    into.attempts += sign * other.attempts
    into.first_try += sign * other.first_try
    into.recovered += sign * other.recovered
    into.repaired += sign * other.repaired
    into.unrecovered += sign * other.unrecovered
    into.micros += sign * other.micros
    into.seconds.lanes += sign * other.seconds.lanes
    if any(_uncommon_numbers_of(other)):
        for name in OUTLINE_NUMBERS[_COMMON_COUNT:]:
            setattr(into, name, getattr(into, name) + sign * getattr(other, name))
    if other.runs:
        merge_counts(into.runs, other.runs, sign)
    if has_details(other):
        _merge_details(into, other, sign)


def _merge_details(into: Cell, other: Cell, sign: Literal[1, -1] = 1) -> None:
    for name in ("later_attempts", "later_successes", "recovered_by", "changed_arguments"):
        if counts := getattr(other, name):
            merge_counts(getattr(into, name), counts, sign)
    into.to_repair.lanes += sign * other.to_repair.lanes
    for name, kind in other.kinds.items():
        total = into.kinds.get(name) or into.kinds.setdefault(name, KindCell())
        total.failures += sign * kind.failures
        total.calls += sign * kind.calls
        total.recovered += sign * kind.recovered
        total.repaired += sign * kind.repaired
        total.unrecovered += sign * kind.unrecovered
        total.micros += sign * kind.micros
        total.seconds.lanes += sign * kind.seconds.lanes
        merge_counts(total.recovered_by, kind.recovered_by, sign)
        if not total.failures and total == _EMPTY_KIND:
            del into.kinds[name]


def merge_counts(into: dict[Any, int], other: Mapping[Any, int], sign: int = 1) -> None:
    for key, count in other.items():
        remaining = into.get(key, 0) + sign * count
        if remaining:
            into[key] = remaining
        else:
            into.pop(key, None)


def has_details(cell: Cell) -> bool:
    return any(_details_of(cell))


def without_details(cell: Cell) -> Cell:
    empty = Cell()
    return msgspec.structs.replace(cell, **{name: getattr(empty, name) for name in DETAILS})


def attempts(cell: Cell) -> Iterator[tuple[int, int, int]]:
    """Yield the number of an attempt, how many there were, and how many of them succeeded."""
    if cell.calls:
        yield 1, cell.calls, cell.first_try
    for number, count in sorted(cell.later_attempts.items()):
        yield number, count, cell.later_successes.get(number, 0)


def filter_by_kind(cell: Cell, kind: str) -> Cell:
    """Return the counters of one kind, or of all kinds of a type: calls with such a failure and their outcomes.

    Attempts are the failed ones. A call with two kinds of a type counts for both.
    """
    total = Cell()
    for name, kind_cell in cell.kinds.items():
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


# Packing. A query reads thousands of outlines, and details only if it needs them. Outlines are added up counter by
# counter, which is much faster than adding cells.


class PackedCell(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Counters of one key in the form that is encoded and added up."""

    key: CounterKey
    outline: list[Any]
    details: Cell | None
    """A cell without an outline."""


_encode = msgspec.msgpack.Encoder(enc_hook=bytes).encode
_decode_list = msgspec.msgpack.Decoder(list[Any]).decode


@cache
def _decoder(type: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder. Built on first use: few processes that import this module read details."""
    return msgspec.msgpack.Decoder(type, dec_hook=lambda _, lanes: Histogram.read(lanes))


def _outline_of(cell: Cell) -> list[Any]:
    numbers = _numbers_of(cell)
    return [
        bytes(cell.seconds),
        cell.runs or None,
        *(numbers if any(numbers[_COMMON_COUNT:]) else numbers[:_COMMON_COUNT]),
    ]


def _details_or_none(cell: Cell) -> Cell | None:
    details = _details_of(cell)
    return Cell(**dict(zip(DETAILS, details, strict=True))) if any(details) else None


def pack(cell: Cell) -> tuple[bytes, bytes | None]:
    """Return the packed outline, and the packed details if there are any."""
    details = _details_or_none(cell)
    return _encode(_outline_of(cell)), None if details is None else _encode(details)


def unpack(outline: bytes, details: bytes | None = None) -> Cell:
    return to_cell(_unpack(outline, details))


def _unpack(outline: bytes, details: bytes | None = None) -> PackedCell:
    decoded_details = None if details is None else _decoder(Cell).decode(details)
    return PackedCell(_NO_KEY, _decode_list(outline), decoded_details)


def to_cell(packed: PackedCell) -> Cell:
    lanes, runs, *numbers = packed.outline
    cell = Cell(seconds=Histogram.read(lanes), runs=runs or {}, **dict(zip(OUTLINE_NUMBERS, numbers, strict=False)))
    if packed.details is not None:
        _merge_details(cell, packed.details)
    return cell


def sum_packed(cells: Sequence[PackedCell]) -> PackedCell:
    """Add up cells of one key without changing them. The sum may share their parts."""
    if len(cells) == 1:
        return cells[0]
    lanes, runs, *numbers = zip_longest(*[cell.outline for cell in cells], fillvalue=0)
    total_lanes = bytes(Histogram.of_lanes(sum(map(_read_lanes, lanes)))) if any(lanes) else b""
    total_runs: dict[str, int] = {}
    for run_counts in filter(None, runs):
        merge_counts(total_runs, run_counts)
    all_details = [cell.details for cell in cells if cell.details is not None]
    total_details = all_details[0] if all_details else None
    if len(all_details) > 1:
        total_details = Cell()
        for details in all_details:
            _merge_details(total_details, details)
    return PackedCell(cells[0].key, [total_lanes, total_runs or None, *map(sum, numbers)], total_details)


def sum_outlines(packed: Iterable[bytes]) -> Cell:
    return to_cell(sum_packed([_unpack(outline) for outline in packed]))


def add_packed(outline: bytes | None, details: bytes | None, change: PackedCell) -> tuple[bytes, bytes | None] | None:
    """Add a change to a packed cell, if there is one. Return None if nothing remains."""
    if outline is not None:
        # Most changes have no details: then the packed ones are reused without decoding.
        change = sum_packed([_unpack(outline, details if change.details is not None else None), change])
    if change.details is not None:
        details = _encode(change.details) if has_details(change.details) else None
    return (_encode(change.outline), details) if details is not None or any(change.outline) else None


def to_packed_cells(cells: Cells) -> list[PackedCell]:
    return [PackedCell(key, _outline_of(cell), _details_or_none(cell)) for key, cell in cells.items()]


def pack_cells(cells: Cells) -> bytes:
    """Return many cells with their keys as one packed value."""
    return _encode(to_packed_cells(cells))


def read_packed_cells(packed: Iterable[bytes]) -> Iterator[PackedCell]:
    """Yield the cells of all values that `pack_cells` returned. A key may occur more than once."""
    for body in packed:
        yield from _decoder(list[PackedCell]).decode(body)


def sum_by_key(cells: Iterable[tuple[K, PackedCell]]) -> dict[K, PackedCell]:
    cells_by_key: dict[K, list[PackedCell]] = {}
    for key, cell in cells:
        cells_by_key.setdefault(key, []).append(cell)
    return {key: sum_packed(cells_of_key) for key, cells_of_key in cells_by_key.items()}
