"""What is counted, defined once: a run's history in, counters out; and how counters answer a question.

Counters are whole numbers, so that they add up to the same in any order, and can be taken back. They belong to a
place: an hour, and who did what there. A store keeps their sums by hour and by day; `stats` counts histories anew, and
must come to the same.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from mulligan import calls
from mulligan.calls import Call
from mulligan.failure import Remedy
from mulligan.records import VERIFY, History, Link, Record, Run, Status, Step, StepType

HOUR = 3_600_000
DAY = 24 * HOUR
"""Milliseconds."""
HOURS = 3 * DAY
"""How far back a question may be asked by the hour. Counters by the hour are needed a day longer than that."""
BUCKETS = 128
LANE = 5
"""Bytes to count up to a million million in."""
MANY_ATTEMPTS = 10
"""Attempts from here on are counted as one."""
PATH = 80
"""Characters of an argument's path that are told apart."""

Grain = Literal["hour", "day"]
By = Literal["agent", "tool", "step", "kind", "model", "version", "environment", "attempt", "time"]
Slice = Literal["all", "agent", "version", "environment", "model", "step", "place"]
"""How a store keeps sums: of everything, of one value of one dimension, and of each place by itself."""
Means = Literal[
    "waiting", "schema", "run", "memory", "rule", "error", "compression", "fallback", "check", "model", "person"
]
"""What overcame a failure. From schema to error: changed arguments, by where the change came from."""
REPAIRS = frozenset({"schema", "run", "memory", "rule", "error"})


class Histogram:
    """How many took how long. Each of 128 buckets is a lane of one long whole number: to add two is one addition."""

    __slots__ = ("lanes",)

    def __init__(self, lanes: int = 0) -> None:
        self.lanes = lanes

    @classmethod
    def of(cls, *micros: int) -> Histogram:
        return cls(sum(ONE[bucket(each)] for each in micros))

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
        return cls(_lanes(data) if data else 0)


def _lanes(data: bytes) -> int:
    return int.from_bytes(data[1:], "little", signed=True) << (data[0] * 8 * LANE)


class Outline(msgspec.Struct, omit_defaults=True):
    """The counters that every table shows, and that are quickly read."""

    runs: dict[str, int] = {}
    """By status."""
    running: int = 0
    """Those of them that have not ended."""
    calls: int = 0
    first_try: int = 0
    recovered: int = 0
    """Failed first and worked in the end, by recovery or by a later call."""
    repaired: int = 0
    """Those of them whose arguments recovery changed on the way."""
    given_up: int = 0
    attempts: int = 0
    suggested: int = 0
    """Attempts made with changed arguments."""
    hits: int = 0
    """Those of them that succeeded."""
    seconds: Histogram = msgspec.field(default_factory=Histogram)
    """How long the attempts took that succeeded."""
    micros: int = 0
    """The same, added up: millionths of a second."""
    waited: int = 0
    """Millionths of a second between attempts."""
    retrying: int = 0
    """Millionths of a second in attempts after the first."""
    tokens: int = 0
    recovery_tokens: int = 0
    """Those of them spent in attempts after the first."""
    repeats: int = 0
    """Failures that had been met in the same run before its conversation was compacted."""


class KindCell(msgspec.Struct, omit_defaults=True):
    """Counters of one kind of failure."""

    failures: int = 0
    """Attempts that failed so."""
    calls: int = 0
    """Calls that met it, once or more."""
    recovered: int = 0
    repaired: int = 0
    given_up: int = 0
    overcome: dict[str, int] = {}
    seconds: Histogram = msgspec.field(default_factory=Histogram)
    """How long the attempts took before they failed."""
    micros: int = 0


class Cell(Outline, omit_defaults=True):
    """Counters of one place, or the sum of many. A run's own failure is in `kinds`, and is no call."""

    made: dict[int, int] = {}
    """Attempts after the first, by their number. Of first ones there are as many as calls."""
    worked: dict[int, int] = {}
    """Those of them that succeeded; of first ones `first_try` did."""
    overcome: dict[str, int] = {}
    """Recovered calls, by what overcame them."""
    to_repair: Histogram = msgspec.field(default_factory=Histogram)
    """From the beginning of a recovered call to the end of what overcame it."""
    wrong: dict[str, int] = {}
    """Arguments that had to change before it worked: `path how`, by calls."""
    kinds: dict[str, KindCell] = {}


class Place(NamedTuple):
    """What a counter belongs to. Empty where it is not known; a run's own counters have no type and no name."""

    hour: int
    agent: str
    version: str
    environment: str
    model: str
    type: str
    name: str


Cells = dict[Place, Cell]

# Time


def bucket(micros: int) -> int:
    """Four buckets to each doubling, from a microsecond to 2.4 hours: whole numbers only, so every machine agrees."""
    if micros < 4:
        return max(micros, 0)
    octave = micros.bit_length() - 1
    return min(4 * (octave - 1) + (micros >> (octave - 2) & 3), BUCKETS - 1)


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


def _micros(seconds: float) -> int:
    return max(0, round(seconds * 1e6)) if math.isfinite(seconds) else 0


# Counting


def cells(history: History) -> Cells:
    """What one run comes to: its own counters, and those of each of its calls."""
    run = history.run
    found = of_run(run, calls.status(run, history.steps, history.links))
    joined = calls.joined(history.steps)
    by_id = {call.id: call for call in joined}
    links = {link.failed: link for link in history.links}
    again = repeated(history, joined)
    for call in joined:
        link = links.get(call.id)
        add(found, of_call(run, call, link, by_id.get(link.overcame) if link else None, call.id in again))
    return found


def of_run(run: Run, status: Status) -> Cells:
    place = Place(run.started // HOUR * HOUR, run.agent, run.version or "", run.environment or "", "", "", "")
    return {place: Cell(runs={status: 1}, running=int(run.end is None))}


def of_call(run: Run, call: Call, link: Link | None, by: Call | None, is_repeat: bool = False) -> Cells:
    """The counters of one call. `link` says that it was overcome, and `by` is the call that did it."""
    place = place_of(run, call.first)
    cell = Cell()
    made = [step for step in call.steps if not step.is_unmade]
    for step in made:
        _count_attempt(cell, step)
    if call.first.type == "run":
        return {place: Cell(kinds=cell.kinds)}
    cell.calls, cell.attempts, cell.repeats = 1, len(made), int(is_repeat)
    if not call.has_failed:
        cell.first_try = int(call.has_succeeded)
        return {place: cell}
    overcome = call.has_succeeded or link is not None
    means = _means(call, by) if overcome else None
    ended = (call if call.has_succeeded else by) if overcome else None
    cell.recovered, cell.given_up = int(overcome), int(not overcome)
    cell.repaired = int(means in REPAIRS)
    if means is not None:
        cell.overcome = {means: 1}
    if ended is not None:
        took = (ended.last.started - call.first.started) * 1000 + _micros(ended.last.seconds)
        if took > 0:
            cell.to_repair = Histogram.of(took)
    changes = call.changes if call.has_succeeded else link.changes if link else ()
    cell.wrong = {f"{_path(change.path)} {change.how}": 1 for change in changes}
    for kind in cell.kinds.values():
        kind.calls, kind.recovered, kind.given_up = 1, cell.recovered, cell.given_up
        kind.repaired, kind.overcome = cell.repaired, dict(cell.overcome)
    return {place: cell}


def of_success(run: Run, step: Step, into: Cells) -> None:
    """Adds what `of_call` says of a call that worked at its first attempt, as most do, without building anything."""
    place = place_of(run, step)
    cell = into.get(place)
    if cell is None:
        cell = into[place] = Cell()
    cell.calls += 1
    cell.attempts += 1
    cell.first_try += 1
    _count_attempt(cell, step)


def _count_attempt(cell: Cell, step: Step) -> None:
    micros = _micros(step.seconds)
    if step.outcome == "success":
        if micros:  # nothing takes no time: what says so was recorded without a clock
            cell.seconds.lanes += ONE[bucket(micros)]
        cell.micros += micros
    elif failure := _failure(step):
        kind = cell.kinds.setdefault(str(failure.kind), KindCell())
        kind.failures += 1
        kind.micros += micros
        if micros:
            kind.seconds.lanes += ONE[bucket(micros)]
    tokens = sum(step.tokens.values()) if step.tokens else 0
    cell.tokens += tokens
    if step.attempt > 1:
        number = min(step.attempt, MANY_ATTEMPTS)
        cell.made[number] = cell.made.get(number, 0) + 1
        if step.outcome == "success":
            cell.worked[number] = cell.worked.get(number, 0) + 1
        cell.retrying += micros
        cell.recovery_tokens += tokens
    if step.after is not None:
        cell.waited += _micros(step.after.seconds)
        if step.after.changes:
            cell.suggested += 1
            cell.hits += step.outcome == "success"


def _failure(step: Step) -> Any:
    return step.failure if step.has_failed else None


def _means(call: Call, by: Call | None) -> Means:
    """What overcame a call: the last move of recovery that could have, else whoever made the call that worked."""
    if not call.has_succeeded:
        said = by.last.metadata if by is not None else None
        return "person" if said and said.get("by") == "person" else "model"
    changed = next((step.after for step in reversed(call.steps) if step.after and step.after.changes), None)
    if changed is not None:
        return changed.source if changed.source in REPAIRS else "schema"  # type: ignore[return-value]
    after = call.last.after
    if after is None:
        return "model"  # made again, and not by recovery
    if after.source == VERIFY:
        return "check"
    if after.source == "fallback":
        return "fallback"
    return "compression" if after.remedy is Remedy.COMPRESS else "waiting"


def repeated(history: History, joined: Iterable[Call]) -> set[int]:
    """The calls whose failure had been met, in the same run, before its conversation was last made smaller."""
    if not history.compactions:
        return set()
    moments = sorted(compaction.at for compaction in history.compactions)
    first: dict[tuple[str, str], int] = {}
    again: set[int] = set()
    for call in joined:
        failure = call.failure
        if failure is None:
            continue
        met = first.setdefault((call.name, failure.fingerprint or failure.kind), call.first.started)
        if any(met < moment <= call.first.started for moment in moments):
            again.add(call.id)
    return again


def place_of(run: Run, step: Step) -> Place:
    name = step.name if step.type in ("tool", "model", "retrieval") else _masked(step.name)
    hour = step.started // HOUR * HOUR
    return Place(hour, run.agent, run.version or "", run.environment or "", model_of(run, step), step.type, name)


def model_of(run: Run, step: Step) -> str:
    """The model a step called, where it says so; else the one its run says it is driven by."""
    named: Any = None
    if step.metadata:
        named = step.metadata.get("model")
    if named is None and step.type == "model" and isinstance(step.arguments, dict):
        named = step.arguments.get("model")
    if named is None and run.metadata:
        named = run.metadata.get("model")
    return named if isinstance(named, str) else ""


@functools.lru_cache(maxsize=4096)
def _masked(name: str) -> str:
    """A step named by its author, without its numbers: each of a thousand pages is the same step."""
    return re.sub(r"[0-9]+", "#", name)


@functools.lru_cache(maxsize=4096)
def _path(path: str) -> str:
    return re.sub(r"[0-9]{2,}", "#", path).replace(" ", "_")[:PATH] or "(all)"


# Adding up

K = TypeVar("K")


def add(into: dict[K, Cell], other: Mapping[K, Outline], sign: Literal[1, -1] = 1) -> None:
    """Adds counters, or takes them back. A place of which nothing is left is gone."""
    for place, cell in other.items():
        known = into.get(place)
        if known is None:
            known = into[place] = Cell()
        merge(known, cell, sign)
        if sign < 0 and known == _NOTHING:
            del into[place]


_NOTHING = Cell()
_NO_KIND = KindCell()


def merge(into: Cell, other: Outline, sign: Literal[1, -1] = 1) -> None:
    # Field by field, and what is mostly zero only if it is not: a question comes here thousands of times.
    into.calls += sign * other.calls
    into.attempts += sign * other.attempts
    into.first_try += sign * other.first_try
    into.micros += sign * other.micros
    into.seconds.lanes += sign * other.seconds.lanes
    if other.recovered:
        into.recovered += sign * other.recovered
    if other.repaired:
        into.repaired += sign * other.repaired
    if other.given_up:
        into.given_up += sign * other.given_up
    if other.suggested or other.hits:
        into.suggested += sign * other.suggested
        into.hits += sign * other.hits
    if other.waited:
        into.waited += sign * other.waited
    if other.retrying:
        into.retrying += sign * other.retrying
    if other.tokens or other.recovery_tokens:
        into.tokens += sign * other.tokens
        into.recovery_tokens += sign * other.recovery_tokens
    if other.repeats:
        into.repeats += sign * other.repeats
    if other.runs:
        _merge_counts(into.runs, other.runs, sign)
    if other.running:
        into.running += sign * other.running
    if not isinstance(other, Cell):
        return
    if other.made:
        _merge_counts(into.made, other.made, sign)
    if other.worked:
        _merge_counts(into.worked, other.worked, sign)
    if other.overcome:
        _merge_counts(into.overcome, other.overcome, sign)
    if other.wrong:
        _merge_counts(into.wrong, other.wrong, sign)
    if other.to_repair.lanes:
        into.to_repair.lanes += sign * other.to_repair.lanes
    if not other.kinds:
        return
    for name, kind in other.kinds.items():
        known = into.kinds.get(name)
        if known is None:
            known = into.kinds[name] = KindCell()
        known.failures += sign * kind.failures
        known.calls += sign * kind.calls
        known.recovered += sign * kind.recovered
        known.repaired += sign * kind.repaired
        known.given_up += sign * kind.given_up
        known.micros += sign * kind.micros
        known.seconds.lanes += sign * kind.seconds.lanes
        _merge_counts(known.overcome, kind.overcome, sign)
        if known == _NO_KIND:
            del into.kinds[name]


def _merge_counts(into: dict[Any, int], other: Mapping[Any, int], sign: int) -> None:
    for key, count in other.items():
        left = into.get(key, 0) + sign * count
        if left:
            into[key] = left
        else:
            into.pop(key, None)


def _read(type: type, value: Any) -> Any:
    return Histogram.read(value)


_packed = msgspec.msgpack.Encoder(enc_hook=bytes)
_whole = msgspec.msgpack.Decoder(Cell, dec_hook=_read)


def pack(cell: Cell) -> bytes:
    """Counters as few bytes: those at zero are left out, and a version to come may add others."""
    return _packed.encode(cell)


def unpack(data: bytes) -> Cell:
    return _whole.decode(data)


_NUMBERS = tuple(field.name for field in msgspec.structs.fields(Outline) if field.type is int)
_Bare = msgspec.defstruct(
    "_Bare", [*((name, int, 0) for name in _NUMBERS), ("runs", dict[str, int], {}), ("seconds", bytes, b"")]
)
_bare = msgspec.msgpack.Decoder(_Bare)


def outline(packed: Iterable[bytes]) -> Outline:
    """The outline of the sum of packed cells: counter by counter, in a fraction of the time of adding up cells."""
    *numbers, runs, seconds = zip(*map(msgspec.structs.astuple, map(_bare.decode, packed)), strict=True)
    total = Outline()
    for name, counts in zip(_NUMBERS, numbers, strict=True):
        if any(counts):
            setattr(total, name, sum(counts))
    for of_some in filter(None, runs):
        _merge_counts(total.runs, of_some, 1)
    total.seconds.lanes = sum(map(_lanes, filter(None, seconds)))
    return total


# Slices: in which sums a place is kept, and which sums answer a question

_BETWEEN = "\x1f"


def slices(place: Place) -> Iterator[tuple[Slice, str]]:
    """The sums a place is part of, each by the slice and the value in it."""
    yield "all", ""
    yield "agent", place.agent
    if place.version:
        yield "version", _key(place.agent, place.version)
    if place.environment:
        yield "environment", place.environment
    if place.model:
        yield "model", place.model
    if place.type:
        yield "step", f"{place.type} {place.name}"
    yield "place", _key(*place[1:])


def _key(*parts: str) -> str:
    return _BETWEEN.join(part.replace(_BETWEEN, " ") for part in parts)


class StatsQuery(Record, frozen=True):
    """What is asked. Times are UTC milliseconds, and the clock is the asker's.

    The answer covers whole hours, or whole days (UTC) if it goes back more than three, and says which.
    """

    now: int
    since: int | None = None
    until: int | None = None
    by: By | None = None
    agent: str | None = None
    tool: str | None = None
    kind: str | None = None
    """`tool/timeout`, or `tool` for all kinds of that type."""
    model: str | None = None
    version: str | None = None
    environment: str | None = None
    type: StepType | None = None
    detail: bool = False
    """Whether the parts by agent, tool and the like are wanted with all that is in them, and not in outline."""


class Stats(Record, frozen=True):
    """The answer: everything asked for in sum, and in parts if it was asked by something."""

    total: Cell
    parts: dict[str, Cell] = msgspec.field(default_factory=dict)
    by: By | None = None
    grain: Grain = "day"
    since: int | None = None
    until: int | None = None


class Span(NamedTuple):
    """Sums to be read from and until a bucket, and to be added or taken away."""

    grain: Grain
    since: int | None
    until: int | None
    sign: Literal[1, -1] = 1


class Reading(NamedTuple):
    """Which sums are needed: of the grain, from and until a bucket, of a slice, of these values or of all."""

    grain: Grain
    since: int | None
    until: int | None
    slice: Slice
    values: tuple[str, ...] | None
    outline: bool = False
    """Whether the outline of each sum is enough."""
    spans: tuple[Span, ...] = ()
    """How to come by it with few sums."""


def readings(query: StatsQuery) -> tuple[Reading, Reading | None]:
    """What is to be read for the total, and for the parts where those are other sums."""
    span = _span(query)
    asked = [name for name in ("agent", "tool", "model", "version", "environment", "type") if getattr(query, name)]
    if query.agent == "":
        asked.append("agent")
    slice, values = _narrowest(query, asked)
    by = _SLICE_OF.get(query.by or "")
    whole = Reading(*span, slice, values, spans=_spans(query, *span))
    if by is None:
        return whole, None
    if asked:
        return whole._replace(slice="place", values=None), None
    outline = not (query.detail or query.kind)
    # Of a tool every counter is of a call. Elsewhere an outline may be empty, and what is left of a day seem nothing.
    spans = _spans(query, *span, takes=query.by == "tool" or not outline)
    return whole._replace(slice="all", values=("",)), Reading(*span, by, None, outline, spans)


def _spans(
    query: StatsQuery, grain: Grain, since: int | None, until: int | None, takes: bool = True
) -> tuple[Span, ...]:
    """Hours, as far as possible by the sums of days; also of a day begun, if the hours before may be taken away.

    Not if it is asked by time; and nothing is taken if a kind is asked for, which may be at zero in all that is there.
    """
    if grain == "day" or since is None or query.by == "time":
        return (Span(grain, since, until),)
    first = -(-since // DAY) * DAY
    last = None if until is None else until // DAY * DAY
    takes = takes and not query.kind
    if until is not None and last is not None:
        if last < first:  # all of it within a day
            return tuple(_hours(since, until, takes))
        edges = [*_hours(since, first, takes), *_hours(last, until, takes)]
    else:
        edges = _hours(since, first, takes)
    days = [Span("day", first, last)] if last is None or first < last else []
    return tuple(sorted((*days, *edges), key=lambda span: -span.sign))  # nothing is taken before it was added


def _hours(since: int, until: int, takes: bool) -> list[Span]:
    """Hours of one day: themselves, or the day without the others if those are fewer."""
    day = since // DAY * DAY
    if not takes or until - since <= DAY // 2:
        return [Span("hour", since, until)] if since < until else []
    others = (Span("hour", start, end, -1) for start, end in ((day, since), (until, day + DAY)) if start < end)
    return [Span("day", day, day + DAY), *others]


_SLICE_OF: dict[str, Slice] = {
    "agent": "agent",
    "version": "version",
    "environment": "environment",
    "model": "model",
    "tool": "step",
    "step": "step",
}
TOOLS = ("tool", "retrieval")
"""The types of steps that are tools."""


def _narrowest(query: StatsQuery, asked: list[str]) -> tuple[Slice, tuple[str, ...] | None]:
    match asked:
        case []:
            return "all", ("",)
        case ["agent"]:
            return "agent", (query.agent or "",)
        case ["model"]:
            return "model", (query.model or "",)
        case ["environment"]:
            return "environment", (query.environment or "",)
        case ["tool"]:
            return "step", tuple(f"{type} {query.tool}" for type in TOOLS)
        case ["agent", "version"]:
            return "version", (_key(query.agent or "", query.version or ""),)
        case _:
            return "place", None


def _span(query: StatsQuery) -> tuple[Grain, int | None, int | None]:
    by_hour = query.since is not None and query.since >= query.now - HOURS
    length = HOUR if by_hour else DAY
    since = None if query.since is None else query.since // length * length
    until = None if query.until is None else -(-query.until // length) * length
    return "hour" if by_hour else "day", since, until


class Row(NamedTuple):
    """A sum as it is kept: the bucket is the hour or day it is of, in UTC milliseconds."""

    bucket: int
    value: str
    cell: Outline
    sign: Literal[1, -1] = 1
    """Whether it is added or, because it is part of a larger sum and not asked for, taken away."""


def answer(query: StatsQuery, whole: Iterable[Row], parts: Iterable[Row] = ()) -> Stats:
    """The answer, from the sums that `readings` asked for."""
    reading, separate = readings(query)
    total, divided, taken = Cell(), dict[str, Cell](), set[str]()
    for row in whole:
        place = Place(0, *row.value.split(_BETWEEN)) if reading.slice == "place" else None
        if place is not None and not _is_asked(query, place):
            continue
        cell = only(row.cell, query.kind) if query.kind else row.cell
        merge(total, cell, row.sign)
        if separate is None and query.by is not None:
            if query.by in ("kind", "attempt"):
                add(divided, _inside(query.by, cell), row.sign)
            elif (label := str(row.bucket) if query.by == "time" else _label(query.by, place)) is not None:
                merge(divided.setdefault(label, Cell()), cell, row.sign)
                if row.sign < 0:
                    taken.add(label)
    for row in parts if separate is not None else ():
        label = _labelled(query.by, row.value)
        if label is not None:
            known = divided.get(label)
            if known is None:
                known = divided[label] = Cell()
            merge(known, only(row.cell, query.kind) if query.kind else row.cell, row.sign)
            if row.sign < 0:
                taken.add(label)
    for label in taken:
        if divided[label] == _NOTHING:
            del divided[label]
    if query.by in _SLICE_OF and not (query.detail or query.kind):
        divided = {label: _outlined(cell) for label, cell in divided.items()}
    return Stats(total=total, parts=divided, by=query.by, grain=reading.grain, since=reading.since, until=reading.until)


def _outlined(cell: Cell) -> Cell:
    cell.kinds, cell.made, cell.worked, cell.overcome, cell.wrong, cell.to_repair = {}, {}, {}, {}, {}, Histogram()
    return cell


def _is_asked(query: StatsQuery, place: Place) -> bool:
    return (
        (query.agent is None or place.agent == query.agent)
        and (not query.version or place.version == query.version)
        and (not query.environment or place.environment == query.environment)
        and (not query.model or place.model == query.model)
        and (not query.type or place.type == query.type)
        and (not query.tool or (place.name == query.tool and place.type in TOOLS))
    )


def _label(by: By, place: Place | None) -> str | None:
    """The part a place belongs to; None if it belongs to none, or to several that are inside its counters."""
    if place is None or by not in _SLICE_OF:
        return None
    for slice, value in slices(place):
        if slice == _SLICE_OF[by]:
            return _labelled(by, value)
    return None


def _labelled(by: By | None, value: str) -> str | None:
    if by == "tool":
        type, _, name = value.partition(" ")
        return name if type in TOOLS else None
    return value.replace(_BETWEEN, " ") if by == "version" else value


def _inside(by: By, cell: Outline) -> dict[str, Cell]:
    """Counters divided by what is inside them: a part for each kind, or for each number of an attempt."""
    if not isinstance(cell, Cell):
        return {}
    if by == "kind":
        return {kind: only(cell, kind) for kind in cell.kinds}
    if by == "attempt":
        return {
            str(number): Cell(attempts=made, made={number: made}, worked={number: worked} if worked else {})
            for number, made, worked in attempts(cell)
        }
    return {}


def attempts(cell: Cell) -> Iterator[tuple[int, int, int]]:
    """The number of an attempt, how many were made, and how many of those worked."""
    if cell.calls:
        yield 1, cell.calls, cell.first_try
    for number, made in sorted(cell.made.items()):
        yield number, made, cell.worked.get(number, 0)


def only(cell: Outline, kind: str) -> Cell:
    """What is known of one kind, or of all kinds of a type: the calls that met it, and what came of them.

    Attempts are then those that failed so. A call that met two kinds of a type is counted in both.
    """
    found = Cell()
    for name, known in cell.kinds.items() if isinstance(cell, Cell) else ():
        if name == kind or name.partition("/")[0] == kind:
            one = Cell(
                calls=known.calls,
                recovered=known.recovered,
                repaired=known.repaired,
                given_up=known.given_up,
                attempts=known.failures,
                overcome=known.overcome,
                kinds={name: known},
            )
            merge(found, one)
    return found


def rows(places: Mapping[Place, Cell], reading: Reading) -> Iterator[Row]:
    """The sums a store would keep of these places, as far as a reading asks for them."""
    length = HOUR if reading.grain == "hour" else DAY
    for place, cell in places.items():
        start = place.hour // length * length
        if (reading.since is None or start >= reading.since) and (reading.until is None or start < reading.until):
            for slice, value in slices(place):
                if slice == reading.slice and (reading.values is None or value in reading.values):
                    yield Row(start, value, cell)


def stats(histories: Iterable[History], query: StatsQuery | None = None) -> Stats:
    """The answer from the histories themselves; of all of them, if nothing is asked in particular."""
    found: Cells = {}
    for history in histories:
        add(found, cells(history))
    query = query or StatsQuery(now=0)
    whole, parts = readings(query)
    return answer(query, rows(found, whole), rows(found, parts) if parts else ())
