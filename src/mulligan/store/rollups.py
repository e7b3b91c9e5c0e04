"""Rollups: counters per hour and per day, one packed row each, so that the cost of a query does not grow with the data.

A batch adds its counters as one row of `rollup_changes`, without reading or locking a rollup, so that writers do not
wait for each other. Now and then a writer folds these rows into the rollups. A query adds those not folded yet.

Counters change by signed differences: a changed call is subtracted as it was and added as it is. Recounting the
touched hour from its rows is no alternative: pruned rows stay counted, and with 100,000 calls in the hour it costs
2.1 s of CPU per batch of 1,000 calls against 26 ms: 475 against 38,900 calls per CPU second, measured on SQLite.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any
from zlib import crc32

import msgspec

from mulligan.contract import counters as counters_module
from mulligan.contract.counters import DAY, Cell, Cells, PackedCell, Reading, Row, Stats, StatsQuery
from mulligan.contract.run_facts import NO_SUMS, FailedCall, complete_facts, sum_facts
from mulligan.core import calls
from mulligan.core.calls import Call
from mulligan.core.records import History, Link, Run, Status, Step, encode
from mulligan.store import pattern_counts
from mulligan.store.connection import Connection, Insert, Lookup
from mulligan.store.pattern_counts import CountedFailure
from mulligan.store.rows import FACTS, LINK, USED, StoredRun, forget_links, put_statuses

Key = tuple[str, str, str, int, str]
"""Tenant, grain, slice, bucket and value: the primary key of a rollup."""
MAX_UNFOLDED_CHANGES, MAX_UNFOLDED_BYTES = 64, 160 * 1024
"""Limits of the changes that queries add to the rollups. The next batch folds them.

Measured at ten million calls with `benchmarks/questions.py`: the slowest question costs 24 ms of CPU with everything
folded and 69 ms with 210 to 250 KB unfolded. The target is 60 ms. Folding after 16 changes instead of 64 makes small
batches 70 % more expensive.
"""

_KEYS = "tenant grain slice bucket value"
ROLLUP_INSERT = Insert.or_update("rollups", _KEYS, "summary details")
_ROLLUP_LOOKUP = Lookup.of("rollups", _KEYS, "summary details")
_CHANGE_INSERT = Insert.of("rollup_changes", "tenant id body")
_WHERE = "WHERE tenant = ? AND grain = ? AND slice = ? AND bucket = ? AND value = ?"
_GRAINS = ("hour", "day")


def add(writer: Connection, tenant: str, cells: Cells, unfolded: tuple[int, int] | None = None) -> None:
    """Add counters, which may be negative. Fold them if many are unfolded and no other writer does so.

    `unfolded` is the count and the size of the unfolded changes, if the caller has read them.
    """
    if not cells:
        return
    sql = "SELECT count(*), coalesce(sum(length(body)), 0) FROM rollup_changes WHERE tenant = ?"
    count, size = unfolded or writer.execute(sql, (tenant,)).fetchone()
    body = counters_module.pack_cells(cells)
    # The number sorts changes in the order of arrival. The checksum tells those of concurrent writers apart.
    checksum = f"{crc32(body):08x}"
    if not writer.is_exclusive:
        writer.queue(_CHANGE_INSERT, [(tenant, f"{count:06d}_{checksum}", body)], must_be_new=True)
    else:
        numbers = itertools.count(count)
        while not writer.put(_CHANGE_INSERT, [(tenant, f"{next(numbers):06d}_{checksum}", body)]):
            pass
    if any(map(_may_empty_key, cells.values())):  # only a fold removes a key from queries by that key
        writer.lock(tenant, "rollups")
    elif (count < MAX_UNFOLDED_CHANGES and size + len(body) <= MAX_UNFOLDED_BYTES) or not writer.try_lock(
        tenant, "rollups"
    ):
        return
    fold(writer, tenant)


def _may_empty_key(cell: Cell) -> bool:
    runs = cell.running + sum(cell.runs.values())
    return cell.calls < 0 or runs < 0 or any(kind.failures < 0 for kind in cell.kinds.values())


def fold(writer: Connection, tenant: str) -> None:
    """Move the unfolded changes into the rollups. Needs an exclusive transaction or the lock on rollups."""
    rows = writer.execute("SELECT id, body FROM rollup_changes WHERE tenant = ? ORDER BY id", (tenant,)).fetchall()
    if rows:
        _apply(writer, tenant, counters_module.read_packed_cells(body for _, body in rows), _GRAINS)
        sql = "DELETE FROM rollup_changes WHERE tenant = ? AND id IN (SELECT value FROM json_each(?))"
        writer.execute(sql, (tenant, encode([id for id, _ in rows]).decode()))


def apply(writer: Connection, tenant: str, cells: Cells, grains: Sequence[str] = _GRAINS) -> None:
    """Add counters, which may be negative, to every rollup that contains them."""
    _apply(writer, tenant, counters_module.to_packed_cells(cells), grains)


def _apply(writer: Connection, tenant: str, changes: Iterable[PackedCell], grains: Sequence[str]) -> None:
    sums = {key: change for key, change in _sum_by_rollup(tenant, changes).items() if key[1] in grains}
    stored = {tuple(row[:5]): row[5:] for row in writer.look_up(_ROLLUP_LOOKUP, list(sums))}
    rows: list[tuple[Any, ...]] = []
    empty_keys: list[Key] = []
    for key, change in sums.items():
        summary, details = stored.get(key, (None, None))
        packed = counters_module.add_packed(summary, details, change)
        if packed is None:
            empty_keys.append(key)
        else:
            rows.append((*key, *packed))
    writer.queue(ROLLUP_INSERT, rows)
    writer.executemany(f"DELETE FROM rollups {_WHERE}", empty_keys)


def _sum_by_rollup(tenant: str, changes: Iterable[PackedCell]) -> dict[Key, PackedCell]:
    by_key = counters_module.sum_by_key((change.key, change) for change in changes)
    hours: dict[Key, PackedCell] = counters_module.sum_by_key(
        ((tenant, "hour", slice, key.hour, value), cell)
        for key, cell in by_key.items()
        for slice, value in counters_module.slices(key).items()
    )
    days: dict[Key, PackedCell] = counters_module.sum_by_key(
        ((tenant, "day", slice, hour // DAY * DAY, value), cell) for (_, _, slice, hour, value), cell in hours.items()
    )
    return hours | days


def move(writer: Connection, key: Key, value: str, cell: Cell) -> None:
    """Move a rollup to another value and merge it with the rollup stored there."""
    writer.execute(f"DELETE FROM rollups {_WHERE}", key)
    new_key = (*key[:4], value)
    for *_, summary, details in writer.look_up(_ROLLUP_LOOKUP, [new_key]):
        counters_module.merge(cell, counters_module.unpack(summary, details))
    writer.put(ROLLUP_INSERT, [(*new_key, *counters_module.pack(cell))])


# Queries

Read = Callable[[str, Iterable[Any]], list[Any]]


def stats(read: Read, tenant: str, query: StatsQuery) -> Stats:
    main_reading, parts_reading = counters_module.readings(query)
    parts = _rows(read, tenant, parts_reading) if parts_reading else ()
    return counters_module.answer(query, _rows(read, tenant, main_reading), parts)


def _rows(read: Read, tenant: str, reading: Reading) -> Iterator[Row]:
    """Yield the counters of a reading. One statement reads them all: a fold must not count a change twice."""
    statements: list[str] = []
    values: list[Any] = []
    for grain, since, until in reading.spans:
        where = "tenant = ? AND slice = ? AND grain = ? AND bucket >= ? AND bucket < ?"
        bounds = (-(2**62) if since is None else since, 2**62 if until is None else until)
        values += (tenant, reading.slice, grain, *bounds, *(reading.values or ()))
        if reading.values is not None:
            where += f" AND value IN ({', '.join('?' * len(reading.values))})"
        details = "NULL" if reading.outline else "details"
        statements.append(f"SELECT bucket, value, summary, {details} FROM rollups WHERE {where}")
    statements.append("SELECT NULL, '', body, NULL FROM rollup_changes WHERE tenant = ?")
    changes: list[bytes] = []
    summaries: dict[str, list[bytes]] = {}
    for bucket, value, summary, packed_details in read(" UNION ALL ".join(statements), (*values, tenant)):
        if bucket is None:
            changes.append(summary)
        elif reading.outline:
            summaries.setdefault(value, []).append(summary)
        else:
            yield Row(bucket, value, counters_module.unpack(summary, packed_details))
    for value, packed in summaries.items():
        yield Row(0, value, counters_module.sum_outlines(packed))
    yield from counters_module.rows(counters_module.read_packed_cells(changes), reading)


# Changes


class RunSlice(msgspec.Struct, frozen=True):
    """Some calls of a run with their recovery links, either before or after a batch."""

    run: Run
    calls: dict[int, Call]
    links: dict[int, Link]
    repeated_calls: set[int]
    """Calls that repeat a failure from before a compaction."""

    @classmethod
    def of_history(cls, history: History) -> RunSlice:
        """Return all calls of a run history."""
        calls_by_id = {call.id: call for call in calls.group_attempts(history.steps)}
        repeated_calls = counters_module.find_repeated_calls(history, calls_by_id.values())
        return cls(history.run, calls_by_id, history.links_by_call, repeated_calls)

    def cells(self, id: int) -> Cells:
        """Return the counters of one call."""
        link = self.links.get(id)
        by = self.calls.get(link.recovering_call) if link else None
        return counters_module.of_call(self.run, self.calls[id], link, by, id in self.repeated_calls)

    def to_counted_failures(self, id: int, sign: int) -> list[CountedFailure]:
        """Return the failures of one call for the pattern counts. `sign` adds (1) or subtracts (-1) them."""
        call = self.calls[id]
        if not call.has_failed:
            return []
        is_recovered = call.is_recovered(self.links.get(id))
        return [
            CountedFailure(self.run, step, is_recovered, sign)
            for step in call.steps
            if step.has_failed and step.failure
        ]

    def to_failed_calls(self, id: int) -> list[FailedCall]:
        """Return a call with its link, if it has failed."""
        call = self.calls[id]
        return [(call, self.links.get(id))] if call.has_failed else []

    def is_counted_as(self, id: int, other: RunSlice) -> bool:
        """Return whether a call has the same counters in both slices."""
        own_call, other_call = self.calls.get(id), other.calls.get(id)
        link = self.links.get(id)
        return (
            own_call is not None
            and other_call is not None
            and own_call.steps == other_call.steps
            and (id in self.repeated_calls) == (id in other.repeated_calls)
            and link == other.links.get(id)
            and (link is None or self.calls[link.recovering_call].steps == other.calls[link.recovering_call].steps)
        )


EMPTY_SLICE = RunSlice(Run(id=""), {}, {}, set())


class CounterChanges:
    """Pending changes of rollups, patterns, links and statuses, written at the end of a transaction."""

    def __init__(self) -> None:
        self.cells: Cells = {}
        self._successes = counters_module.SuccessCounter()
        self.failures: list[CountedFailure] = []
        self.used_names: dict[tuple[str, str, int, str], None] = {}
        """Tools and models by run, as (type, name, start of the run, run)."""
        self._facts: dict[tuple[int, str], tuple[Run, Sequence[int]]] = {}
        """The latest record of a run and what is added to its facts (`sum_facts`), by its start and id."""
        self.new_runs: set[str] = set()
        """Runs without any stored record before this transaction."""
        self.links: list[tuple[Any, ...]] = []
        self.unlinked: list[tuple[str, str, int]] = []
        """Links to delete, as (tenant, run, failed call). `links` has the rows to store."""
        self.statuses: list[tuple[Status, int, str, str]] = []
        """Updates of `runs`, as (status, whether it is failure-free, tenant, run)."""

    def add(self, before: RunSlice, after: RunSlice) -> None:
        """Subtract the calls of `before` and add those of `after`. Unchanged calls are skipped."""
        has_new_key = bool(before.calls) and not has_same_counter_key(before.run, after.run)
        # The row of another start, and of a deleted run, is deleted.
        has_same_facts_row = (before.run.started_at, before.run.id) == (after.run.started_at, after.run.id)
        successes: list[Step] = []
        for id in (before.calls.keys() | after.calls.keys()) if before.calls else after.calls:
            if before.calls:
                if not has_new_key and before.is_counted_as(id, after):
                    continue
                if id in before.calls:
                    counters_module.add(self.cells, before.cells(id), -1)
                    self.failures += before.to_counted_failures(id, -1)
                    if has_same_facts_row:
                        self._add_facts(before.run, before.calls[id].steps, before.to_failed_calls(id), -1)
            if id in after.calls:
                steps = after.calls[id].steps
                if len(steps) == 1 and is_first_attempt_success(steps[0]):
                    successes.append(steps[0])
                    continue
                counters_module.add(self.cells, after.cells(id))
                self.failures += after.to_counted_failures(id, 1)
                self._add_facts(after.run, steps, after.to_failed_calls(id))
        self.add_successes(after.run, successes)

    def add_successes(self, run: Run, steps: Sequence[Step]) -> None:
        """Add calls that succeeded at their first attempt."""
        self._successes.add(run, steps, self.cells)
        if steps:
            self._add_facts(run, steps)

    def add_run(self, before: StoredRun | None, run: Run | None, status: Status) -> None:
        """Subtract the run as it was before, if any, and add it as it is now, if any."""
        if before is not None and before.run is run and before.status == status:
            return
        if before is not None:
            counters_module.add_run(self.cells, before.run, before.status, -1)
        if run is not None:
            counters_module.add_run(self.cells, run, status)
            self._add_facts(run)

    def collect_cells(self) -> Cells:
        self._successes.count(self.cells)
        return self.cells

    def add_used_names(self, run: Run, steps: Iterable[Step]) -> None:
        """Add the tools and models of these steps. Names that are stored already stay unchanged."""
        last = None
        for step in steps:
            if step.name != last and step.type != "reflection":
                last = step.name
                self.used_names["tool", last, run.started_at, run.id] = None
            if (step.metadata or run.metadata or step.type == "model") and (
                model := counters_module.model_of(run, step)
            ):
                self.used_names["model", model, run.started_at, run.id] = None

    def _add_facts(
        self, run: Run, steps: Sequence[Step] = (), failed_calls: Collection[FailedCall] = (), sign: int = 1
    ) -> None:
        key = (run.started_at, run.id)
        _, sums = self._facts.get(key, (run, NO_SUMS))
        if steps:
            sums = [total + sign * added for total, added in zip(sums, sum_facts(steps, failed_calls), strict=True)]
        self._facts[key] = run, sums

    def write_usages(self, writer: Connection, tenant: str) -> None:
        """Write the rows by which runs are found: their tools and models, and their facts."""
        writer.queue(USED, [(tenant, *usage) for usage in self.used_names])
        facts = ((key, complete_facts(run, sums)) for key, (run, sums) in self._facts.items())
        writer.queue(FACTS, [(tenant, *key, *values) for key, values in facts])

    def write(self, writer: Connection, tenant: str, unfolded: tuple[int, int] | None = None) -> set[str]:
        """Write all changes. Return the ids of patterns without remaining occurrences.

        Pattern counters come last: they lock the tenant, and other writers wait from then on.
        """
        put_statuses(writer, self.statuses)
        forget_links(writer, self.unlinked)
        writer.queue(LINK, self.links)
        self.write_usages(writer, tenant)
        add(writer, tenant, self.collect_cells(), unfolded)
        if not self.failures:
            return set()
        writer.lock(tenant, "turn")
        return pattern_counts.add(writer, tenant, self.failures, self.new_runs)


def is_first_attempt_success(step: Step) -> bool:
    return (
        step.outcome == "success"
        and step.call == step.seq
        and step.attempt == 1
        and step.failure is None
        and step.type not in ("run", "reflection")
    )


def has_same_counter_key(left: Run, right: Run) -> bool:
    return left is right or (
        left.agent == right.agent
        and left.started_at == right.started_at
        and left.version == right.version
        and left.environment == right.environment
        and left.session == right.session
        and (left.metadata or {}).get("model") == (right.metadata or {}).get("model")
    )
