"""Pattern counters in a database, updated incrementally by the changes of each batch."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Sequence
from typing import Any

import msgspec

from mulligan.core.records import Run, Step, pattern_id
from mulligan.learn.patterns import extract_message_and_template, order_of, start_of_day
from mulligan.store.connection import Connection, Insert, Lookup
from mulligan.store.rows import select_steps

id_of = functools.lru_cache(maxsize=10_000)(pattern_id)


def size_class(count: int) -> int:
    """Return the size class of a number: its digit count and first digit. It never decreases as the number grows."""
    digits = str(max(count, 0))
    return 10 * len(digits) + int(digits[0])


def size_class_sql(count: str) -> str:
    """Return the size class of an SQL expression."""
    return f"10 * length(CAST({count} AS TEXT)) + CAST(substr(CAST({count} AS TEXT), 1, 1) AS INTEGER)"


AGENT_INSERT = Insert.of(
    "pattern_agents",
    "tenant id agent occurrences",
    "ON CONFLICT (tenant, id, agent) DO UPDATE SET occurrences = pattern_agents.occurrences + excluded.occurrences",
)
_DAY_INSERT = Insert.of(
    "pattern_days",
    "tenant day id occurrences recovered size_class",
    "ON CONFLICT (tenant, day, id) DO UPDATE "
    "SET occurrences = pattern_days.occurrences + excluded.occurrences, recovered = pattern_days.recovered + "
    f"excluded.recovered, size_class = {size_class_sql('pattern_days.occurrences + excluded.occurrences')}",
)
_PATTERN_RUN_INSERT = Insert.or_update("run_failures", "tenant pattern started_at run kind", "occurrences")
_PATTERN_INSERT = Insert.of(
    "patterns",
    "tenant id tool fingerprint kind server message template occurrences recovered runs first_seen_at first_run "
    "first_seq last_seen_at",
    "ON CONFLICT (tenant, id) DO UPDATE SET occurrences = patterns.occurrences + excluded.occurrences, "
    "recovered = patterns.recovered + excluded.recovered, runs = patterns.runs + excluded.runs, last_seen_at = "
    "CASE WHEN patterns.last_seen_at < excluded.last_seen_at THEN excluded.last_seen_at ELSE patterns.last_seen_at END",
)
_PATTERN_RUN_LOOKUP = Lookup.of("run_failures", "tenant pattern started_at run", "kind occurrences")
_PATTERN_LOOKUP = Lookup.of("patterns", "tenant id", "first_seen_at first_run first_seq occurrences")

PatternRuns = dict[tuple[str, int, str, str], int]
"""Occurrences of a pattern in a run, by pattern id, start of the run, run id and kind of the failure."""


class CountedFailure(msgspec.Struct, frozen=True):
    """A failed attempt to add to the counters, or to subtract."""

    run: Run
    step: Step
    is_recovered: bool
    sign: int


class PatternDelta:
    """The change of one pattern's counters."""

    def __init__(self, first: Step) -> None:
        self.count = self.recovered = 0
        self.days: dict[int, list[int]] = {}
        self.agents: dict[str, int] = {}
        self.first: Step | None = None
        self.last = first.started_at
        self.name, self.fingerprint = first.name, first.failure.fingerprint if first.failure else ""

    def add(self, counted_failure: CountedFailure) -> None:
        step, sign = counted_failure.step, counted_failure.sign
        recovered = sign * counted_failure.is_recovered
        self.count += sign
        self.recovered += recovered
        day = self.days.setdefault(start_of_day(step.started_at), [0, 0])
        day[0] += sign
        day[1] += recovered
        self.agents[counted_failure.run.agent] = self.agents.get(counted_failure.run.agent, 0) + sign
        if sign > 0:
            self.last = max(self.last, step.started_at)
            if self.first is None or order_of(step) < order_of(self.first):
                self.first = step


def add(
    writer: Connection, tenant: str, changes: Iterable[CountedFailure], new_runs: Container[str] = frozenset()
) -> set[str]:
    """Apply changes. Return the ids of patterns without remaining occurrences. `new_runs` have no stored rows yet."""
    sums, pattern_runs = sum_changes(changes)
    fresh = {key: count for key, count in pattern_runs.items() if count > 0 and key[2] in new_runs}
    runs = _add_pattern_runs(writer, tenant, {key: count for key, count in pattern_runs.items() if key not in fresh})
    writer.queue(_PATTERN_RUN_INSERT, [(tenant, *key, count) for key, count in fresh.items()])
    for id, _ in {(id, run) for id, _, run, _ in fresh}:
        runs[id] = runs.get(id, 0) + 1
    return apply_deltas(writer, tenant, sums, runs)


def sum_changes(changes: Iterable[CountedFailure]) -> tuple[dict[str, PatternDelta], PatternRuns]:
    """Return the change of each pattern, and the change of its occurrences by run."""
    sums: dict[str, PatternDelta] = {}
    pattern_runs: PatternRuns = {}
    for counted_failure in changes:
        failure = counted_failure.step.failure
        assert failure is not None
        id = id_of(counted_failure.step.name, failure.fingerprint) if failure.fingerprint else ""
        if id:
            sums.setdefault(id, PatternDelta(counted_failure.step)).add(counted_failure)
        key = (id, counted_failure.run.started_at, counted_failure.run.id, str(failure.kind))
        pattern_runs[key] = pattern_runs.get(key, 0) + counted_failure.sign
    return sums, pattern_runs


def apply_deltas(writer: Connection, tenant: str, sums: dict[str, PatternDelta], runs: dict[str, int]) -> set[str]:
    """Add changes to the pattern rows, and to their run counts. Return the ids of patterns without occurrences."""
    stored_rows = {id: columns for _, id, *columns in writer.look_up(_PATTERN_LOOKUP, [(tenant, id) for id in sums])}
    rows: list[tuple[Any, ...]] = []
    empty_ids: set[str] = set()
    for id, sum in sums.items():
        run_count = runs.get(id, 0)
        *first, before = stored_rows.get(id, (None, 0))
        if before + sum.count <= 0 or (id not in stored_rows and sum.first is None):
            empty_ids.add(id)
            continue
        description: tuple[Any, ...] = ("", None, "", "", 0, "", 0)  # an existing pattern has its own
        if id not in stored_rows and sum.first is not None:
            description = _describe_first(sum.first)
        elif sum.first is not None and order_of(sum.first) < tuple(first):
            _set_first(writer, tenant, id, sum.first)
        if sum.count or sum.recovered or run_count:
            counts = (sum.count, sum.recovered, run_count)
            rows.append((tenant, id, sum.name, sum.fingerprint, *description[:4], *counts, *description[4:], sum.last))
    writer.queue(_PATTERN_INSERT, rows)
    if empty_keys := [(tenant, id) for id in empty_ids if id in stored_rows]:
        writer.executemany("DELETE FROM patterns WHERE tenant = ? AND id = ?", empty_keys)
    add_days(writer, tenant, sums)
    agents = [(tenant, id, agent, count) for id, sum in sums.items() for agent, count in sum.agents.items() if count]
    writer.queue(AGENT_INSERT, agents)
    _delete_empty(writer, "pattern_agents", "tenant id agent", [row[:3] for row in agents if row[3] < 0])
    return empty_ids


def _add_pattern_runs(writer: Connection, tenant: str, pattern_runs: PatternRuns) -> dict[str, int]:
    """Add occurrences by run. Return the change of each pattern's run count."""
    more: dict[str, int] = {}
    changes = {key: count for key, count in pattern_runs.items() if count}
    stored_counts: dict[tuple[str, int, str], dict[str, int]] = {key[:3]: {} for key in changes}
    for _, *key, kind, count in writer.look_up(_PATTERN_RUN_LOOKUP, [(tenant, *key) for key in stored_counts]):
        stored_counts[tuple(key)][kind] = count
    rows: list[tuple[Any, ...]] = []
    removed_rows: list[tuple[Any, ...]] = []
    for (id, started, run, kind), count in changes.items():
        kinds = stored_counts[id, started, run]
        remaining = kinds.get(kind, 0) + count
        if remaining > 0:
            more[id] = more.get(id, 0) + (not kinds)
            kinds[kind] = remaining
            rows.append((tenant, id, started, run, kind, remaining))
        else:
            more[id] = more.get(id, 0) - (set(kinds) == {kind})
            kinds.pop(kind, None)
            removed_rows.append((tenant, id, started, run, kind))
    writer.queue(_PATTERN_RUN_INSERT, rows)
    writer.executemany(
        "DELETE FROM run_failures WHERE tenant = ? AND pattern = ? AND started_at = ? AND run = ? AND kind = ?",
        removed_rows,
    )
    return more


def _describe_first(first: Step) -> tuple[Any, ...]:
    """Return the columns that describe a pattern by its first failure: kind, server, message, template and position."""
    return (
        str(first.failure.kind) if first.failure else "",
        first.server,
        *extract_message_and_template(first),
        *order_of(first),
    )


def _set_first(writer: Connection, tenant: str, id: str, first: Step) -> None:
    writer.execute(
        "UPDATE patterns SET kind = ?, server = ?, message = ?, template = ?, first_seen_at = ?, first_run = ?, "
        "first_seq = ? WHERE tenant = ? AND id = ?",
        (*_describe_first(first), tenant, id),
    )


def add_days(writer: Connection, tenant: str, sums: dict[str, PatternDelta]) -> None:
    rows = [
        (tenant, day, id, count, recovered, size_class(count))
        for id, sum in sums.items()
        for day, (count, recovered) in sum.days.items()
        if count or recovered
    ]
    writer.queue(_DAY_INSERT, rows)
    _delete_empty(writer, "pattern_days", "tenant day id", [row[:3] for row in rows if row[3] < 0])


def _delete_empty(writer: Connection, table: str, key_names: str, keys: Sequence[tuple[Any, ...]]) -> None:
    """Delete the rows with these keys that have no remaining occurrences."""
    condition = " AND ".join(f"{name} = ?" for name in key_names.split())
    writer.executemany(f"DELETE FROM {table} WHERE {condition} AND occurrences <= 0", keys)


def refresh_bounds(writer: Connection, tenant: str, id: str) -> None:
    """Find the first and last failure of a pattern again, after some of its failures were removed or changed."""
    identity = writer.execute(
        "SELECT tool, fingerprint FROM patterns WHERE tenant = ? AND id = ?", (tenant, id)
    ).fetchone()
    if identity is None:
        return
    condition = "name = ? AND fingerprint = ?"
    sql = f"SELECT min(started_at), max(started_at) FROM steps WHERE tenant = ? AND {condition}"
    (first, last) = writer.execute(sql, (tenant, *identity)).fetchone()
    if first is None:
        return  # the remaining occurrences are older than the rows
    steps = select_steps(writer, tenant, f"{condition} AND started_at = ?", *identity, first)
    writer.execute("UPDATE patterns SET last_seen_at = ? WHERE tenant = ? AND id = ?", (last, tenant, id))
    _set_first(writer, tenant, id, min(steps, key=order_of))
