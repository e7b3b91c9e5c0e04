"""What is counted: the history of a run in, counters by hour and key out."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any, Literal

from mulligan.contract.counters.counters import (
    HOUR,
    Cell,
    Cells,
    CounterKey,
    KindCell,
    add,
    lane_of,
    merge_counts,
    to_micros,
)
from mulligan.core import calls
from mulligan.core.argument_comparison import find_target
from mulligan.core.calls import Call
from mulligan.core.failure import Remedy
from mulligan.core.records import PROGRAM, VERIFY, Compaction, History, Link, Run, Status, Step, failure_identity
from mulligan.core.run_links import derive_status

MAX_PATH_CHARS = 80
"""Characters of an argument's path that are distinguished."""
RecoveryMethod = Literal[
    "retry", "schema", "run", "memory", "rule", "error", "reflection", "compression", "fallback", "check", "model",
    "person",
]  # fmt: skip
"""What recovered a call. From schema to reflection: changed arguments, by the source of the change."""
REPAIRS = frozenset({"schema", "run", "memory", "rule", "error", "reflection"})


def cells(history: History) -> Cells:
    """Return the counters of a run and of all its calls."""
    run = history.run
    total = of_run(run, derive_status(run, history.steps, history.links))
    run_calls = calls.group_attempts(history.steps)
    calls_by_id = {call.id: call for call in run_calls}
    links = history.links_by_call
    repeats = find_repeated_calls(history, run_calls)
    for call in run_calls:
        link = links.get(call.id)
        by = calls_by_id.get(link.recovering_call) if link else None
        add(total, of_call(run, call, link, by, call.id in repeats))
    return total


def of_run(run: Run, status: Status) -> Cells:
    total: Cells = {}
    add_run(total, run, status)
    return total


def add_run(into: Cells, run: Run, status: Status, count: int = 1) -> None:
    """Count a run, or subtract it. Standalone calls are one run each: this is as frequent as calls are."""
    key = CounterKey(run.started_at // HOUR * HOUR, run.agent, run.version or "", run.environment or "", "", "", "")
    cell = into.get(key) or into.setdefault(key, Cell())
    if run.end_reason is None:
        cell.running += count  # no status before its end
    else:
        merge_counts(cell.runs, {status: count})


def of_call(run: Run, call: Call, link: Link | None, by: Call | None, is_repeat: bool = False) -> Cells:
    """Return the counters of one call. `link` says that it recovered, and `by` is the recovering call."""
    key = counter_key(run, call.first)
    cell = Cell()
    attempts = [step for step in call.steps if not step.is_skipped]
    for step in attempts:
        _count_attempt(cell, step)
    if call.first.type == "run":
        return {key: Cell(kinds=cell.kinds)}
    if call.first.type == "reflection":
        return {key: _count_reflections(attempts)}
    cell.calls, cell.attempts, cell.repeats = 1, len(attempts), int(is_repeat)
    if not call.has_failed:
        cell.first_try = int(call.has_succeeded)
        return {key: cell}
    is_recovered = call.is_recovered(link)
    cell.recovered, cell.unrecovered = int(is_recovered), int(not is_recovered)
    if is_recovered:
        method = _find_method(call, by)
        cell.recovered_by = {method: 1}
        cell.repaired = int(method in REPAIRS)
        if method == "reflection":
            cell.reflection_avoided_tokens = cell.avoided_tokens
        if (end := call if call.has_succeeded else by) is not None:
            duration = (end.last.started_at - call.first.started_at) * 1000 + to_micros(end.last.duration_seconds)
            cell.to_repair.lanes = lane_of(duration)
    changes = call.changes if call.has_succeeded else link.changes if link else ()
    cell.changed_arguments = {f"{_mask_path(change.path)} {change.operation}": 1 for change in changes}
    for kind in cell.kinds.values():
        kind.calls, kind.recovered, kind.unrecovered = 1, cell.recovered, cell.unrecovered
        kind.repaired, kind.recovered_by = cell.repaired, dict(cell.recovered_by)
    return {key: cell}


def _count_reflections(steps: Iterable[Step]) -> Cell:
    cell = sum_usage(steps)
    cell.reflections, cell.reflection_tokens, cell.reflection_cost_nanos = 1, cell.tokens, cell.cost_nanos
    return cell


class SuccessCounter:
    """Calls that succeeded at their first attempt, of many runs. Calls with one counter key are counted together."""

    def __init__(self) -> None:
        self._durations: dict[CounterKey, list[float]] = {}

    def add(self, run: Run, steps: Iterable[Step], into: Cells) -> None:
        name = type = None
        since = until = 0
        for step in steps:
            # Mostly it is like the one before it. Comparing the identity of the text is fastest.
            if step.name is not name or step.type is not type or not since <= step.started_at < until or step.metadata:
                key = counter_key(run, step)
                durations = self._durations.get(key) or self._durations.setdefault(key, [])
                # Each step of a model, and each with metadata, may name another model.
                name, type = (None, None) if step.type == "model" or step.metadata else (step.name, step.type)
                since, until = key.hour, key.hour + HOUR
            if step.recovery is not None or step.suspected is not None or step.may_have_cost:
                cell = into.get(key) or into.setdefault(key, Cell())
                _count_attempt(cell, step)
                durations.append(0.0)  # counted already
            else:
                durations.append(step.duration_seconds)

    def count(self, into: Cells) -> None:
        for key, durations in self._durations.items():
            cell, count = into.get(key) or into.setdefault(key, Cell()), len(durations)
            cell.calls += count
            cell.attempts += count
            cell.first_try += count
            micros = [to_micros(duration) for duration in durations if duration]
            cell.micros += sum(micros)
            cell.seconds.lanes += sum(map(lane_of, micros))
        self._durations.clear()


def _count_attempt(cell: Cell, step: Step) -> None:
    duration = to_micros(step.duration_seconds)
    if step.outcome == "success":
        cell.seconds.lanes += lane_of(duration)
        cell.micros += duration
        cell.suspected += step.suspected is not None
    elif step.has_failed and step.failure is not None:
        kind = cell.kinds.setdefault(str(step.failure.kind), KindCell())
        kind.failures += 1
        kind.unrecovered += step.type == "run"  # its own failure, which is no call and which nothing recovers
        kind.micros += duration
        kind.seconds.lanes += lane_of(duration)
    if step.may_have_cost:
        _count_usage(cell, step)
    if step.attempt > 1:
        number = min(step.attempt, 10)  # attempts from here on are counted as one
        cell.later_attempts[number] = cell.later_attempts.get(number, 0) + 1
        if step.outcome == "success":
            cell.later_successes[number] = cell.later_successes.get(number, 0) + 1
        cell.retry_micros += duration
    if step.recovery is not None:
        cell.backoff_micros += to_micros(step.recovery.backoff_seconds)
        if step.recovery.changes:
            cell.repair_attempts += 1
            cell.repair_successes += step.outcome == "success"


def _count_usage(cell: Cell, step: Step) -> None:
    tokens, cost_nanos = step.token_count, step.cost_nanos or 0
    cell.tokens += tokens
    cell.cost_nanos += cost_nanos
    if step.serves_recovery:
        cell.recovery_tokens += tokens
        cell.recovery_cost_nanos += cost_nanos
    if step.cost_nanos is not None:
        cell.priced_attempts += 1
    elif tokens:
        cell.unpriced_attempts += 1
    if step.avoided is not None:
        cell.avoided_turns += 1
        cell.avoided_tokens += step.avoided.input_tokens
        cell.avoided_cost_nanos += step.avoided.cost_nanos or 0


def sum_usage(steps: Iterable[Step]) -> Cell:
    """Return the tokens and costs of these steps."""
    cell = Cell()
    for step in steps:
        _count_usage(cell, step)
    return cell


def _find_method(call: Call, by: Call | None) -> RecoveryMethod:
    """Return the recovery method of a call: that of its last effective recovery, else the recovering caller."""
    if not call.has_succeeded:
        metadata = by.last.metadata if by is not None else None
        return "person" if metadata and metadata.get("by") == "person" else "model"
    repair = next((step.recovery for step in reversed(call.steps) if step.recovery and step.recovery.changes), None)
    if repair is not None and repair.source != PROGRAM:
        return repair.source if repair.source in REPAIRS else "schema"  # type: ignore[return-value]
    recovery = call.last.recovery
    if recovery is None or (repair is not None and recovery.source == PROGRAM):
        return "model"  # repeated, and not by recovery
    if recovery.source == VERIFY:
        return "check"
    if recovery.source == "fallback":
        return "fallback"
    return "compression" if recovery.remedy is Remedy.COMPRESS else "retry"


def find_repeated_calls(history: History, run_calls: Iterable[Call]) -> set[int]:
    """Return the calls whose failure had occurred before a compaction: in the run, with the same file or command.

    Of other runs of its session, only the patterns of failures are known.
    """
    if not history.compactions:
        return set()
    compaction_times = [compaction.at for compaction in history.compactions if is_within(compaction, history.run)]
    reminded_at: dict[str, int] = {}
    for compaction in history.compactions:
        for id in compaction.known_failures:
            reminded_at[id] = min(reminded_at.get(id, compaction.at), compaction.at)
    pattern_times: dict[tuple[str, str], int] = {}
    target_times: dict[tuple[str, str, str], int] = {}
    repeats: set[int] = set()
    for call in run_calls:
        failure = call.failure
        if failure is None:
            continue
        started_at = call.first.started_at
        pattern = (call.name, failure.fingerprint or str(failure.kind))
        pattern_time = pattern_times.setdefault(pattern, started_at)
        first_time = target_times.setdefault((*pattern, find_target(call.last.arguments)), started_at)
        if any(first_time < timestamp <= started_at for timestamp in compaction_times):
            repeats.add(call.id)
        elif reminded_at:
            step = next(step for step in reversed(call.steps) if step.has_failed)
            if reminded_at.get(failure_identity(step), pattern_time + 1) <= pattern_time:
                repeats.add(call.id)
    return repeats


def is_within(compaction: Compaction, run: Run) -> bool:
    """Return whether a compaction took place during a run. Of earlier ones, only the known failures matter to it."""
    return compaction.run is not None or compaction.at >= run.started_at


def counter_key(run: Run, step: Step) -> CounterKey:
    name = step.name if step.type in ("tool", "model", "retrieval") else _mask_numbers(step.name)
    hour = step.started_at // HOUR * HOUR
    return CounterKey(hour, run.agent, run.version or "", run.environment or "", model_of(run, step), step.type, name)


def model_of(run: Run, step: Step) -> str:
    """Return the model that a step called, else the model of its run, else an empty string."""
    model: Any = step.model
    if model is None and run.metadata:
        model = run.metadata.get("model")
    return model if isinstance(model, str) else ""


@functools.lru_cache(maxsize=4096)
def _mask_numbers(name: str) -> str:
    """Return the name of a user's step without its numbers: each of a thousand pages is the same step."""
    return re.sub(r"[0-9]+", "#", name)


@functools.lru_cache(maxsize=4096)
def _mask_path(path: str) -> str:
    return re.sub(r"[0-9]{2,}", "#", path).replace(" ", "_")[:MAX_PATH_CHARS] or "(all)"
