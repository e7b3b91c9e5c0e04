"""What is counted, defined once: a run's history in, counters out, by the hour and by who did what."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from mulligan.core import calls
from mulligan.core.calls import Call
from mulligan.core.failure import Remedy
from mulligan.core.links import derive_status
from mulligan.core.records import VERIFY, Compaction, History, Link, Run, Status, Step, failure_identity
from mulligan.store.counters.counters import HOUR, Cell, Cells, KindCell, Place, add
from mulligan.store.counters.histogram import ONE, Histogram, bucket, micros

MANY_ATTEMPTS = 10
"""Attempts from here on are counted as one."""
PATH = 80
"""Characters of an argument's path that are told apart."""
Means = Literal[
    "retry", "schema", "run", "memory", "rule", "error", "compression", "fallback", "check", "model", "person"
]
"""What overcame a failure. From schema to error: changed arguments, by where the change came from."""
REPAIRS = frozenset({"schema", "run", "memory", "rule", "error"})


def cells(history: History) -> Cells:
    """What one run comes to: its own counters, and those of each of its calls."""
    run = history.run
    found = of_run(run, derive_status(run, history.steps, history.links))
    joined = calls.group_attempts(history.steps)
    by_id = {call.id: call for call in joined}
    links = {link.failed_call: link for link in history.links}
    again = repeated(history, joined)
    for call in joined:
        link = links.get(call.id)
        add(found, of_call(run, call, link, by_id.get(link.recovering_call) if link else None, call.id in again))
    return found


def of_run(run: Run, status: Status) -> Cells:
    place = Place(run.started_at // HOUR * HOUR, run.agent, run.version or "", run.environment or "", "", "", "")
    return {place: Cell(runs={status: 1}, running=int(run.end_reason is None))}


def of_call(run: Run, call: Call, link: Link | None, by: Call | None, is_repeat: bool = False) -> Cells:
    """Return the counters of one call. `link` says that it recovered, and `by` is the recovering call."""
    place = place_of(run, call.first)
    cell = Cell()
    made = [step for step in call.steps if not step.is_skipped]
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
        took = (ended.last.started_at - call.first.started_at) * 1000 + micros(ended.last.duration_seconds)
        if took > 0:
            cell.to_repair = Histogram.of(took)
    changes = call.changes if call.has_succeeded else link.changes if link else ()
    cell.wrong = {f"{_path(change.path)} {change.operation}": 1 for change in changes}
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


class Successes:
    """Calls that worked at their first attempt, of many runs: those that are alike are counted together, in the end."""

    def __init__(self) -> None:
        self._alike: dict[tuple[str, str | None, str | None, str, str, int, str], _Alike] = {}

    def add(self, run: Run, steps: Iterable[Step], into: Cells) -> None:
        name = type = None
        since = until = 0
        for step in steps:
            if step.recovery is not None:
                of_success(run, step, into)
                continue
            # Mostly it is as the one before it. Whether it is the very same text is asked quickest.
            if step.name is not name or step.type is not type or not since <= step.started_at < until or step.metadata:
                known = self._known(run, step)
                # Which model it was may be said by each step of a model's, and by each that has metadata.
                name, type = (None, None) if step.type == "model" or step.metadata else (step.name, step.type)
                since = step.started_at // HOUR * HOUR
                until = since + HOUR
            known.seconds.append(step.duration_seconds)
            if step.tokens:
                known.tokens += sum(step.tokens.values())

    def add_alike(self, run: Run, step: Step, seconds: Iterable[float]) -> None:
        """Many that count as this one does; how long each took."""
        self._known(run, step).seconds.extend(seconds)

    def _known(self, run: Run, step: Step) -> _Alike:
        """Those that count as this one does."""
        model = model_of(run, step) if run.metadata or step.metadata or step.type == "model" else ""
        like = (run.agent, run.version, run.environment, step.name, step.type, step.started_at // HOUR, model)
        known = self._alike.get(like)
        if known is None:
            known = self._alike[like] = _Alike(run, step)
        return known

    def count(self, into: Cells) -> None:
        for some in self._alike.values():
            place, count = place_of(some.run, some.step), len(some.seconds)
            cell = into.get(place)
            if cell is None:
                cell = into[place] = Cell()
            cell.calls += count
            cell.attempts += count
            cell.first_try += count
            cell.tokens += some.tokens
            taken = _taken(some.seconds)
            cell.micros += sum([took * times for took, times in taken.items()])
            counts: Counter[int] = Counter()
            for took, times in taken.items():
                counts[bucket(took)] += times
            for index, times in counts.items():
                cell.seconds.lanes += ONE[index] * times
        self._alike.clear()


def _taken(seconds: list[float]) -> dict[int, int]:
    """How many took how many microseconds, where they took any. Where calls take little time, few differ."""
    try:
        counts = Counter([round(each * 1e6) for each in seconds])  # as `micros` says, which is a call for each
    except (ValueError, OverflowError):  # some are no numbers
        counts = Counter(map(micros, seconds))
    return {took: times for took, times in counts.items() if took > 0}


class _Alike:
    __slots__ = ("run", "seconds", "step", "tokens")

    def __init__(self, run: Run, step: Step) -> None:
        self.run = run
        self.step = step
        """One of them, which says where all are counted."""
        self.seconds: list[float] = []
        self.tokens = 0


def _count_attempt(cell: Cell, step: Step) -> None:
    took = micros(step.duration_seconds)
    if step.outcome == "success":
        if took:  # nothing takes no time: what says so was recorded without a clock
            cell.seconds.lanes += ONE[bucket(took)]
        cell.micros += took
    elif failure := _failure(step):
        kind = cell.kinds.setdefault(str(failure.kind), KindCell())
        kind.failures += 1
        kind.micros += took
        if took:
            kind.seconds.lanes += ONE[bucket(took)]
    tokens = sum(step.tokens.values()) if step.tokens else 0
    cell.tokens += tokens
    if step.attempt > 1:
        number = min(step.attempt, MANY_ATTEMPTS)
        cell.made[number] = cell.made.get(number, 0) + 1
        if step.outcome == "success":
            cell.worked[number] = cell.worked.get(number, 0) + 1
        cell.retrying += took
        cell.recovery_tokens += tokens
    if step.recovery is not None:
        cell.waited += micros(step.recovery.backoff_seconds)
        if step.recovery.changes:
            cell.suggested += 1
            cell.hits += step.outcome == "success"


def _failure(step: Step) -> Any:
    return step.failure if step.has_failed else None


def _means(call: Call, by: Call | None) -> Means:
    """Return the recovery method of a call: that of its last effective recovery, else the recovering caller."""
    if not call.has_succeeded:
        said = by.last.metadata if by is not None else None
        return "person" if said and said.get("by") == "person" else "model"
    changed = next((step.recovery for step in reversed(call.steps) if step.recovery and step.recovery.changes), None)
    if changed is not None:
        return changed.source if changed.source in REPAIRS else "schema"  # type: ignore[return-value]
    after = call.last.recovery
    if after is None:
        return "model"  # made again, and not by recovery
    if after.source == VERIFY:
        return "check"
    if after.source == "fallback":
        return "fallback"
    return "compression" if after.remedy is Remedy.COMPRESS else "retry"


def repeated(history: History, joined: Iterable[Call]) -> set[int]:
    """The calls whose failure had been met, in the run or in its session, before the conversation was made smaller."""
    if not history.compactions:
        return set()
    moments = [compaction.at for compaction in history.compactions if is_within(compaction, history.run)]
    known: dict[str, int] = {}
    for compaction in history.compactions:
        for id in compaction.known_failures:
            known[id] = min(known.get(id, compaction.at), compaction.at)
    first: dict[tuple[str, str], int] = {}
    again: set[int] = set()
    for call in joined:
        failure = call.failure
        if failure is None:
            continue
        met = first.setdefault((call.name, failure.fingerprint or failure.kind), call.first.started_at)
        if any(met < moment <= call.first.started_at for moment in moments):
            again.add(call.id)
        elif known:
            step = next(step for step in reversed(call.steps) if step.has_failed)
            if known.get(failure_identity(step), call.first.started_at + 1) <= call.first.started_at:
                again.add(call.id)
    return again


def is_within(compaction: Compaction, run: Run) -> bool:
    """Whether a run was under way; of what was before it, only what its session knew then says anything about it."""
    return compaction.run is not None or compaction.at >= run.started_at


def place_of(run: Run, step: Step) -> Place:
    name = step.name if step.type in ("tool", "model", "retrieval") else _masked(step.name)
    hour = step.started_at // HOUR * HOUR
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
