"""Batch writer: applies a batch to the database in one transaction, with links, statuses, patterns and rollups.

All derived data can be recomputed from the rows. The writer updates it by difference: it subtracts each changed call
as it was before the batch and adds it as it is after. Most calls succeed at their first attempt in a run without
failures; they cost one row and a few additions. For a run with failures, `RunProgress` restores the state before the
first changed call, so the cost per call does not grow with the length of the run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from msgspec.structs import replace

from mulligan.core import calls
from mulligan.core.calls import Call
from mulligan.core.events import (
    AnyEvent,
    ContextCompacted,
    RunEnded,
    RunStarted,
    StepEnded,
    StoredEvents,
    build_steps,
)
from mulligan.core.fast_path import CallTemplate, SuccessRecord
from mulligan.core.links import (
    Candidate,
    ItemTest,
    RunProgress,
    derive_status,
    differs_in,
    find_refuted,
    link_recoveries,
)
from mulligan.core.records import Compaction, EndReason, History, Link, Run, Status, Step, encode
from mulligan.learn import fixes
from mulligan.store import counters as counters_module
from mulligan.store import fix_queries, fix_votes, pattern_counts, row_encoding
from mulligan.store.base import ITEMS_KIND, merge_items
from mulligan.store.connection import Connection, Insert, upsert
from mulligan.store.counters import HOUR, Cells
from mulligan.store.pattern_counts import CountedFailure
from mulligan.store.rollups import Rollups
from mulligan.store.rows import (
    BEFORE_FIRST_CALL,
    LINK,
    RUN,
    STEP,
    STORED_RUN,
    STORED_STEP,
    USED,
    calls_of,
    compactions_of,
    delete_usages,
    extent,
    forget_links,
    history_of,
    link_rows,
    links_since,
    put_statuses,
    run_row,
    step_row,
    step_to_success_row,
    steps_since,
    success_row,
)

MAX_TRACKED_RUNS = 10_000
"""Unfinished runs that are cached."""
MIN_TRAIL_CALLS = 100
"""Latest calls of a run that a trail covers at least. Changes to earlier calls need a full read."""
MAX_TRAILS = 200
"""Runs with a trail that are cached."""


IDLE_MILLISECONDS = 30 * 60 * 1000
"""An unfinished run that was idle for this long is settled: its provisional links are judged as if it had ended."""
SETTLED_TIMESTAMP = 2**62
"""Stored in place of a time for a run that was settled before it ended."""
MAX_SETTLED_RUNS = 50
"""Idle runs that are settled in one transaction."""
MAX_COMPARED_STEPS = 5000
"""Steps of one tool in one run that the item test reads."""
_UPSERT_PROVISIONAL_SQL = upsert("provisional_runs", "tenant run", "at")
_UPSERT_ENTRY_SQL = upsert("key_values", "tenant kind key", "value")
_ORPHAN = Insert.of("orphaned_runs", "tenant run stored_at")
_COMPACTION = Insert.of("compactions", "tenant owner_type owner at body")


class _CallTrail:
    """Progress of a run before each of its latest calls. Allows recounting from any of them."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.before: list[RunProgress] = []
        self.now = RunProgress()
        self.is_truncated = False
        """Whether earlier calls were dropped from the trail."""
        self.has_unordered_calls = False
        """Whether a call id is greater than the seq of one of its attempts. Then the run is read in full."""

    def rewind(self, call: int) -> RunProgress | None:
        """Rewind to the state before this call and return it. None if the trail does not reach back that far."""
        index = bisect_left(self.ids, call)
        if self.has_unordered_calls or (index == 0 and self.is_truncated):
            return None
        if index < len(self.ids):
            self.now = self.before[index]
            del self.ids[index:], self.before[index:]
        return self.now

    def add_call(self, call: Call, is_item: ItemTest, run: Run) -> list[Link]:
        """Append a call and return its recovery links."""
        self.ids.append(call.steps[0].call)
        self.before.append(self.now)
        links: list[Link] = []
        # Fast path: a first-attempt success without open failures does not change the progress.
        if (
            self.now.open
            or not self.now.has_success
            or len(call.steps) > 1
            or not _is_first_attempt_success(call.steps[0])
        ):
            self.now, links = self.now.after(call, None, is_item, run.withdrawn, is_final=run.end_reason is not None)
        if len(self.ids) > 2 * MIN_TRAIL_CALLS:
            del self.ids[:MIN_TRAIL_CALLS], self.before[:MIN_TRAIL_CALLS]
            self.is_truncated = True
        return links


class TrackedRun:
    """Cached state of a run. A run with failures but without a trail must be read in full."""

    __slots__ = ("is_failure_free", "run", "status", "step_totals", "trail", "used_names")

    def __init__(self, run: Run, status: Status, is_failure_free: bool = True, trail: _CallTrail | None = None) -> None:
        self.run = run
        self.status = status
        self.is_failure_free = is_failure_free
        self.trail = trail
        self.step_totals = (0, 0)
        """With a trail: count of the stored steps and sum of their seqs, to detect writes by other processes."""
        self.used_names: set[tuple[str, str]] = set()


class _RunChanges:
    """Records of one run in a batch."""

    __slots__ = ("ended", "is_failure_free", "started", "steps", "successes")

    def __init__(self) -> None:
        self.started: Run | None = None
        self.ended: list[Run] = []
        self.steps: list[Step] = []
        self.successes: list[SuccessRecord] = []
        """First-attempt successes in compact form. Built into steps only when needed (`expand_successes`)."""
        self.is_failure_free = True
        """Whether all of `steps` are first-attempt successes too."""

    def expand_successes(self) -> None:
        """Convert `successes` to steps."""
        self.steps += build_steps(self.successes)
        self.successes = []


class RunSlice(NamedTuple):
    """Some calls of a run with their recovery links, either before or after a batch."""

    run: Run
    calls: dict[int, Call]
    links: dict[int, Link]
    repeated_calls: set[int]
    """Calls that repeat a failure from before a compaction."""

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
        is_recovered = call.has_succeeded or id in self.links
        return [
            CountedFailure(self.run, step, is_recovered, sign)
            for step in call.steps
            if step.has_failed and step.failure
        ]

    def is_counted_as(self, id: int, other: RunSlice) -> bool:
        """Return whether a call has the same counters in both slices."""
        own_call, other_call = self.calls.get(id), other.calls.get(id)
        if (
            own_call is None
            or other_call is None
            or own_call.steps != other_call.steps
            or (id in self.repeated_calls) != (id in other.repeated_calls)
        ):
            return False
        link = self.links.get(id)
        if link != other.links.get(id):
            return False
        return link is None or self.calls[link.recovering_call].steps == other.calls[link.recovering_call].steps


EMPTY_SLICE = RunSlice(Run(id=""), {}, {}, set())


class CounterChanges:
    """Pending changes of rollups, patterns, links and statuses, written at the end of a transaction."""

    def __init__(self) -> None:
        self.cells: Cells = {}
        self.success_counter = counters_module.Successes()
        self.failures: list[CountedFailure] = []
        self.used_names: list[tuple[str, str, int, str]] = []
        self.run_trials: list[fix_votes.RunTrials] = []
        """Trials by run."""
        self.new_runs: set[str] = set()
        """Runs without any stored record before this transaction."""
        self.links: list[tuple[Any, ...]] = []
        self.unlinked: list[tuple[str, str, int]] = []
        """Links to delete, as (tenant, run, failed call). `links` has the rows to store."""
        self.statuses: list[tuple[Status, int, str, str]] = []
        """Updates of `runs`, as (status, whether it is failure-free, tenant, run)."""
        self._runs: dict[tuple[str, str | None, str | None, int, Status, bool], int] = {}

    def add(self, before: RunSlice, after: RunSlice) -> None:
        """Subtract the calls of `before` and add those of `after`. Unchanged calls are skipped."""
        if not before.calls:
            self._add_all(after)
            return
        has_new_key = not _has_same_counter_key(before.run, after.run)
        for id in before.calls.keys() | after.calls.keys():
            if not has_new_key and before.is_counted_as(id, after):
                continue
            if id in before.calls:
                counters_module.add(self.cells, before.cells(id), -1)
                self.failures += before.to_counted_failures(id, -1)
            if id in after.calls:
                steps = after.calls[id].steps
                if len(steps) == 1 and _is_first_attempt_success(steps[0]):
                    self.success_counter.add(after.run, steps, self.cells)
                    continue
                counters_module.add(self.cells, after.cells(id))
                self.failures += after.to_counted_failures(id, 1)

    def _add_all(self, run_slice: RunSlice) -> None:
        """Add calls that were not counted before."""
        successes: list[Step] = []
        for id, call in run_slice.calls.items():
            if len(call.steps) == 1 and _is_first_attempt_success(call.steps[0]):
                successes.append(call.steps[0])
            else:
                counters_module.add(self.cells, run_slice.cells(id))
                self.failures += run_slice.to_counted_failures(id, 1)
        self.success_counter.add(run_slice.run, successes, self.cells)

    def add_run(self, before: TrackedRun | None, run: Run | None, status: Status) -> None:
        """Subtract the run as it was before, if any, and add it as it is now, if any."""
        if before is not None and before.run is run and before.status == status:
            return
        if before is not None:
            self._add_runs(before.run, before.status, -1)
        if run is not None:
            self._add_runs(run, status, 1)

    def _add_runs(self, run: Run, status: Status, count: int) -> None:
        """Count runs by their counter key; `collect_cells` builds the counters once per key.

        Standalone calls are one run each, so there can be many equal ones.
        """
        key = (run.agent, run.version, run.environment, run.started_at // HOUR, status, run.end_reason is None)
        self._runs[key] = self._runs.get(key, 0) + count

    def collect_cells(self) -> Cells:
        """Return all counters, including pending runs and successes."""
        for (agent, version, environment, hour, status, is_running), count in self._runs.items():
            end: EndReason | None = None if is_running else "finished"
            run = Run(
                id="", agent=agent, version=version, environment=environment, started_at=hour * HOUR, end_reason=end
            )
            for key, cell in counters_module.of_run(run, status).items():
                cell.runs = {name: run_count * count for name, run_count in cell.runs.items()}
                cell.running *= count
                counters_module.add(self.cells, {key: cell})
        self._runs.clear()
        self.success_counter.count(self.cells)
        return self.cells

    def add_successes(self, run: Run, successes: Sequence[SuccessRecord], known_names: set[tuple[str, str]]) -> None:
        """Add first-attempt successes and the tools they used.

        Successes of one form and hour share a counter key, so only the first one is built into a step.
        """
        if len(successes) == 1:  # common case: a standalone call
            steps = build_steps(successes)
            self.success_counter.add(run, steps, self.cells)
            self.add_used_names(run, steps, known_names)
            return
        successes_by_form: dict[CallTemplate, Sequence[SuccessRecord]] = dict.fromkeys(
            [success.template for success in successes], successes
        )
        if len(successes_by_form) > 1:
            successes_by_form = {
                form: [success for success in successes if success.template is form] for form in successes_by_form
            }
        for form, form_successes in successes_by_form.items():
            starts = [success.started_at for success in form_successes]
            is_same_hour = int(min(starts) * 1000) // HOUR == int(max(starts) * 1000) // HOUR
            if is_same_hour and form.type != "model" and not any(success.tokens for success in form_successes):
                steps = build_steps(form_successes[:1])
                self.success_counter.add_alike(run, steps[0], [success.duration_seconds for success in form_successes])
            else:
                steps = build_steps(form_successes)
                self.success_counter.add(run, steps, self.cells)
            self.add_used_names(run, steps, known_names)

    def add_used_names(self, run: Run, steps: Sequence[Step], known_names: set[tuple[str, str]]) -> None:
        """Add the tools and models of these steps that the run has not used yet."""
        last = None
        of_run = run.metadata
        for step in steps:
            if step.name != last:
                last = step.name
                usage = ("tool", last)
                if usage not in known_names:
                    known_names.add(usage)
                    self.used_names.append((*usage, run.started_at, run.id))
            if (step.metadata or of_run or step.type == "model") and (model := counters_module.model_of(run, step)):
                usage = ("model", model)
                if usage not in known_names:
                    known_names.add(usage)
                    self.used_names.append((*usage, run.started_at, run.id))


class BatchWriter:
    """Writer of batches with a cache of unfinished runs. Use it from one thread at a time, within a transaction."""

    def __init__(self) -> None:
        self._tracked_runs: dict[tuple[str, str], TrackedRun] = {}
        self._unverified_runs: dict[tuple[str, str], TrackedRun] = {}
        """Runs cached before another process wrote. Their trails are reused if their steps are unchanged."""
        self._version = -1
        self._forgotten = 0
        self._principal_noted_at: dict[tuple[str, str], int] = {}
        self._has_provisional = True
        """Whether any run may have provisional links. Mostly none does, which saves a statement per run."""
        self.rollups = Rollups()

    def drop_cache(self) -> None:
        """Clear all caches, after a rollback or a change of stored data by other code."""
        self._tracked_runs.clear()
        self._unverified_runs.clear()
        self._principal_noted_at.clear()
        self.rollups.drop_cache()

    def begin(self, writer: Connection, version: int) -> None:
        """Validate the caches at the start of a transaction. `version` differs if another process has written."""
        if version == self._version:
            return
        self._version = version
        self._unverified_runs.update(
            (key, tracked) for key, tracked in self._tracked_runs.items() if tracked.trail is not None
        )
        self._tracked_runs.clear()
        self.rollups.drop_cache()
        forgotten = writer.execute("SELECT value FROM meta WHERE tenant = '' AND key = 'forgotten'").fetchone()
        count = int(forgotten[0]) if forgotten else 0
        if count != self._forgotten:
            self._forgotten = count
            self._unverified_runs.clear()

    def append(
        self,
        writer: Connection,
        tenant: str,
        batch: Sequence[AnyEvent],
        now: int,
        is_imported: bool,
        principal: str = "",
    ) -> int:
        """Store a batch. Return how many of its records were new."""
        principal = fixes.IMPORT_PRINCIPAL if is_imported else principal or fixes.LOCAL_PRINCIPAL
        self._update_principal(writer, tenant, principal, now)
        sql = "SELECT 1 FROM provisional_runs WHERE tenant = ? LIMIT 1"
        self._has_provisional = writer.execute(sql, (tenant,)).fetchone() is not None
        changes_by_run, compactions = _group_by_run(batch)
        self._trim_cache()
        orphans = dict(iter(writer.execute("SELECT run, stored_at FROM orphaned_runs WHERE tenant = ?", (tenant,))))
        before = self._find_existing_runs(writer, tenant, changes_by_run)
        stored_count = self._put_runs(writer, tenant, changes_by_run, before, orphans, now, is_imported, principal)
        orphan_ids = [
            id
            for id, changes in changes_by_run.items()
            if id not in before and not changes.started and not changes.ended
        ]
        if orphan_ids:
            writer.put(_ORPHAN, [(tenant, id, now) for id in orphan_ids])
        stored_count += self._put_steps(writer, tenant, changes_by_run)
        counters = CounterChanges()
        compaction_row = writer.execute("SELECT 1 FROM compactions WHERE tenant = ? LIMIT 1", (tenant,)).fetchone()
        for id, changes in changes_by_run.items():
            old = before.get(id)
            run = changes.ended[-1] if changes.ended else changes.started if old is None else old.run
            self._count_changes(
                writer, tenant, id, old, run, changes, id in orphans, counters, bool(compaction_row), now
            )
        put_statuses(writer, counters.statuses)
        forget_links(writer, counters.unlinked)
        writer.put(LINK, counters.links)
        stored_count += self._put_compactions(writer, tenant, compactions, counters)
        self.write_counters(writer, tenant, counters)
        if counters.run_trials:
            fix_votes.add_votes(writer, tenant, counters.run_trials, principal)
        return stored_count

    def _update_principal(self, writer: Connection, tenant: str, principal: str, now: int) -> None:
        """Every half hour, settle idle runs and record the time of the principal's last write."""
        last = self._principal_noted_at.get((tenant, principal), -HOUR)
        if now - last >= IDLE_MILLISECONDS:
            self.settle_idle(writer, tenant, now)
            fix_queries.update_principal(writer, tenant, principal, now)
            self._principal_noted_at[tenant, principal] = now

    def write_counters(self, writer: Connection, tenant: str, counters: CounterChanges) -> set[str]:
        """Write the pending counters. Return the ids of patterns without any occurrence left."""
        writer.put(USED, [(tenant, *usage) for usage in counters.used_names])
        self.rollups.add(writer, tenant, counters.collect_cells())
        return pattern_counts.add(writer, tenant, counters.failures, counters.new_runs) if counters.failures else set()

    def _trim_cache(self) -> None:
        """Clear the caches that exceed their limits."""
        if len(self._tracked_runs) > MAX_TRACKED_RUNS:
            self._tracked_runs.clear()
        if (
            len(self._unverified_runs) > MAX_TRAILS
            or sum(tracked.trail is not None for tracked in self._tracked_runs.values()) > MAX_TRAILS
        ):
            self._tracked_runs.clear()
            self._unverified_runs.clear()

    def _find_existing_runs(
        self, writer: Connection, tenant: str, changes_by_run: dict[str, _RunChanges]
    ) -> dict[str, TrackedRun]:
        """Return the runs of the batch that exist already.

        A run that starts in the batch is assumed to be new; `_put_runs` corrects this.
        """
        existing_runs = {
            id: tracked for id in changes_by_run if (tracked := self._tracked_runs.get((tenant, id))) is not None
        }
        missing_ids = [
            id for id, changes in changes_by_run.items() if id not in existing_runs and changes.started is None
        ]
        return existing_runs | self.load_runs(writer, tenant, missing_ids)

    def load_runs(self, writer: Connection, tenant: str, ids: Sequence[str]) -> dict[str, TrackedRun]:
        """Load the stored ones of these runs, with their cached trails if still valid."""
        tracked_runs: dict[str, TrackedRun] = {}
        for _, id, body, status, is_failure_free in writer.look_up(STORED_RUN, [(tenant, id) for id in ids]):
            tracked = tracked_runs[id] = TrackedRun(row_encoding.decode_body(body, Run), status, bool(is_failure_free))
            earlier = self._unverified_runs.pop((tenant, id), None)
            if earlier is not None and earlier.step_totals == extent(writer, tenant, id):
                tracked.trail, tracked.step_totals, tracked.used_names = (
                    earlier.trail,
                    earlier.step_totals,
                    earlier.used_names,
                )
        return tracked_runs

    def _put_runs(
        self,
        writer: Connection,
        tenant: str,
        changes_by_run: dict[str, _RunChanges],
        before: dict[str, TrackedRun],
        orphans: Mapping[str, int],
        now: int,
        is_imported: bool,
        principal: str,
    ) -> int:
        new_runs = {
            id: changes.ended[-1] if changes.ended else changes.started
            for id, changes in changes_by_run.items()
            if id not in before and (changes.started or changes.ended)
        }
        # A run counts as stored since its first record, which may have arrived as an orphan.
        rows = [
            run_row(tenant, run, orphans.get(id) or now, is_imported, principal)
            for id, run in new_runs.items()
            if run is not None
        ]
        if rows:
            writer.execute("SAVEPOINT beginning")
            if writer.put(RUN, rows) != len(rows):  # some exist already
                writer.execute("ROLLBACK TO beginning")
                existing_runs = self.load_runs(writer, tenant, [row[1] for row in rows])
                writer.put(RUN, [row for row in rows if row[1] not in existing_runs])
                before.update(existing_runs)
            writer.execute("RELEASE beginning")
        stored_count = 0
        updated_runs: list[Run] = []
        for id, changes in changes_by_run.items():
            old = before.get(id)
            current = old.run if old is not None else changes.started
            stored_count += old is None and current is not None
            for run in changes.ended:
                if current is None or (
                    run.end_reason != current.end_reason or (run != current and encode(run) != encode(current))
                ):
                    stored_count += 1
                    current = run
            if old is not None and current is not None and current is not old.run:
                changes.ended = [current]
                updated_runs.append(current)
            elif old is not None:
                changes.ended = []
        self.update_runs(writer, tenant, updated_runs)
        return stored_count

    def update_runs(self, writer: Connection, tenant: str, runs: Sequence[Run]) -> None:
        if runs:
            writer.executemany(
                "UPDATE runs SET agent = ?, session = ?, started_at = ?, body = ?, version = ?, environment = ? "
                "WHERE tenant = ? AND id = ?",
                [
                    (run.agent, run.session, run.started_at, encode(run), run.version, run.environment, tenant, run.id)
                    for run in runs
                ],
            )

    def _put_steps(self, writer: Connection, tenant: str, changes_by_run: dict[str, _RunChanges]) -> int:
        count = sum(len(changes.steps) + len(changes.successes) for changes in changes_by_run.values())
        if not count:
            return 0
        mixed = [changes for changes in changes_by_run.values() if not changes.is_failure_free]
        other_rows = [
            step_row(tenant, step) for changes in mixed for step in changes.steps if not _is_first_attempt_success(step)
        ]
        # Generators: building rows while they are inserted reuses memory that was just freed, which is faster.
        steps = (
            filter(None if changes.is_failure_free else _is_first_attempt_success, changes.steps)
            for changes in changes_by_run.values()
        )
        success_rows = map(step_to_success_row, chain.from_iterable(steps))
        fast_path_rows = (success_row(call) for changes in changes_by_run.values() for call in changes.successes)
        writer.execute("SAVEPOINT steps")
        stored_count = writer.put_successes(tenant, chain(success_rows, fast_path_rows)) + writer.put(STEP, other_rows)
        if stored_count != count:  # some exist already: find out which
            writer.execute("ROLLBACK TO steps")
            for changes in changes_by_run.values():
                changes.expand_successes()
            step_keys = {(tenant, step.run, step.seq) for changes in changes_by_run.values() for step in changes.steps}
            existing_keys = {(run, seq) for _, run, seq, _ in writer.look_up(STORED_STEP, list(step_keys))}
            for changes in changes_by_run.values():
                new = [step for step in changes.steps if (step.run, step.seq) not in existing_keys]
                changes.steps = list({step.seq: step for step in reversed(new)}.values())[
                    ::-1
                ]  # of duplicates the first
                changes.is_failure_free = all(map(_is_first_attempt_success, changes.steps))
            writer.put(STEP, [step_row(tenant, step) for changes in changes_by_run.values() for step in changes.steps])
        writer.execute("RELEASE steps")
        return stored_count

    def _count_changes(
        self,
        writer: Connection,
        tenant: str,
        id: str,
        old: TrackedRun | None,
        run: Run | None,
        changes: _RunChanges,
        is_orphan: bool,
        counters: CounterChanges,
        is_compacted: bool,
        now: int,
    ) -> None:
        """Update all data derived from a run by its changes in the batch."""
        if run is None:
            return
        if is_orphan:
            writer.execute("DELETE FROM orphaned_runs WHERE tenant = ? AND run = ?", (tenant, id))
        is_failure_free = (
            changes.is_failure_free
            and not is_orphan
            and (old is None or (old.is_failure_free and _has_same_counter_key(old.run, run)))
        )
        if not is_failure_free:
            changes.expand_successes()
        steps = changes.steps
        if is_failure_free:
            status = RunProgress().status(run)
            counters.success_counter.add(run, steps, counters.cells)
            tracked = TrackedRun(run, status)
            if old is not None:
                tracked.used_names = old.used_names
                if status != old.status:
                    counters.statuses.append((status, 1, tenant, id))
        elif (
            old is not None
            and not steps
            and _has_same_counter_key(old.run, run)
            and not self._needs_final_links(writer, tenant, old, run)
            and (end_status := _derive_end_status(old, run))
        ):
            tracked = TrackedRun(run, end_status, old.is_failure_free, old.trail)
            tracked.used_names = old.used_names
            if end_status != old.status:
                counters.statuses.append((end_status, int(old.is_failure_free), tenant, id))
        else:
            compactions = compactions_of(writer, tenant, run) if is_compacted else ()
            tracked = self._recount_run(writer, tenant, old, run, steps, is_orphan, counters, compactions, now)
        counters.add_run(old, run, tracked.status)
        if run.items and run.end_reason is not None:
            put_items(writer, tenant, run.items)
        if run.end_reason is None:
            self._tracked_runs[tenant, id] = tracked
        else:
            self._tracked_runs.pop((tenant, id), None)
        if steps:
            counters.add_used_names(run, steps, tracked.used_names)
        if changes.successes:
            counters.add_successes(run, changes.successes, tracked.used_names)

    def _recount_run(
        self,
        writer: Connection,
        tenant: str,
        old: TrackedRun | None,
        run: Run,
        steps: list[Step],
        is_orphan: bool,
        counters: CounterChanges,
        compactions: tuple[Compaction, ...],
        now: int,
    ) -> TrackedRun:
        """Recount a run from its first changed call on. Return its new cached state."""
        # Only compactions within the run need a full read: earlier ones of its session apply to each call by itself.
        is_compacted = any(counters_module.is_within(compaction, run) for compaction in compactions)
        needs_full_read = is_orphan or not steps or is_compacted or any(step.call > step.seq for step in steps)
        needs_full_read = needs_full_read or (old is not None and self._needs_final_links(writer, tenant, old, run))
        if old is not None and not _has_same_counter_key(old.run, run):
            needs_full_read = True
            delete_usages(writer, tenant, history_of(writer, tenant, old.run))
        start = min((step.call for step in steps), default=0)
        trail = old.trail if old is not None else None
        if trail is None and (old is None or old.is_failure_free):
            trail = _CallTrail()
        progress = None if trail is None or needs_full_read else trail.rewind(start)
        if trail is None or progress is None:
            trail, progress, start, needs_full_read = _CallTrail(), RunProgress(), BEFORE_FIRST_CALL, True
        is_new = old is None and not is_orphan
        if is_new:
            counters.new_runs.add(run.id)
        all_steps = steps if is_new else steps_since(writer, tenant, run.id, start, steps)
        trail.has_unordered_calls = trail.has_unordered_calls or any(step.call > step.seq for step in all_steps)
        new_seqs = {step.seq for step in steps}
        stored_links = {} if is_new else links_since(writer, tenant, run.id, start)
        open_calls = {
            open_failure.call.id: open_failure.call for open_failure in progress.open if open_failure.call.id < start
        }
        after = RunSlice(run, {call.id: call for call in calls.group_attempts(all_steps)}, {}, set())
        links: dict[int, Link] = {}
        trials: list[fixes.Trial] = []
        # All calls of a new run are in memory: this avoids one statement per call.
        is_item: ItemTest = _item_test(writer, tenant, run.id)
        if is_new:
            is_item = lambda candidate: differs_in(candidate, all_steps)  # noqa: E731
        for call in after.calls.values():
            progress_before = trail.now
            call_links = trail.add_call(call, is_item, run)
            if call.has_succeeded:
                links.update((link.failed_call, link) for link in call_links)
            if progress_before.open or len(call.steps) > 1:
                trials += fixes.find_trials(progress_before, call, call_links)
        if fix_queries.is_goal_missed(run):
            trials = [trial for trial in trials if not trial.successful]
        self._note_provisional(writer, tenant, run, links, now)
        if trials or not is_new:
            counters.run_trials.append(fix_votes.RunTrials(run, start, trials))
        earlier = [] if is_new else [step for step in all_steps if step.seq not in new_seqs]
        before = RunSlice(
            old.run if old else run, {call.id: call for call in calls.group_attempts(earlier)}, stored_links, set()
        )
        after = after._replace(links=links)
        earlier_calls = {id for id in stored_links.keys() | links.keys() if id not in after.calls}
        # One recovery can link many failed calls, of which only the last one is in memory.
        open_calls |= calls_of(writer, tenant, run.id, earlier_calls - open_calls.keys())
        for id in earlier_calls:
            if id in open_calls:
                before.calls[id] = after.calls[id] = open_calls[id]
            else:
                links.pop(id, None)
        if compactions:
            after = after._replace(repeated_calls=_find_repeated_calls(run, after, compactions))
            before = before._replace(repeated_calls=_find_repeated_calls(run, before, compactions))
        counters.add(EMPTY_SLICE if old is None else before, after)
        counters.unlinked += [(tenant, run.id, failed) for failed in stored_links if failed not in after.links]
        counters.links += link_rows(tenant, run.id, after.links, after.calls)
        status = trail.now.status(run)
        counters.statuses.append((status, 0, tenant, run.id))
        tracked = TrackedRun(run, status, is_failure_free=False, trail=trail)
        if old is not None and old.trail is trail:
            tracked.used_names = old.used_names
            tracked.step_totals = old.step_totals[0] + len(steps), old.step_totals[1] + sum(new_seqs)
        elif is_new:
            tracked.step_totals = len(steps), sum(new_seqs)
        elif run.end_reason is None:  # a finished run is not cached
            tracked.step_totals = extent(writer, tenant, run.id)
        if needs_full_read:
            counters.add_used_names(run, earlier, tracked.used_names)
        return tracked

    def _needs_final_links(self, writer: Connection, tenant: str, old: TrackedRun, run: Run) -> bool:
        """Return whether the run ends now and all of its links must be judged again."""
        if old.is_failure_free or run.end_reason is None or old.run.end_reason == run.end_reason:
            return False
        if run.withdrawn or fix_queries.is_goal_missed(run):
            return True
        if not self._has_provisional:
            return False
        sql = "SELECT 1 FROM provisional_runs WHERE tenant = ? AND run = ?"
        return writer.execute(sql, (tenant, run.id)).fetchone() is not None

    def _note_provisional(self, writer: Connection, tenant: str, run: Run, links: Mapping[int, Link], now: int) -> None:
        """Mark a run whose links must be judged when it has ended or was idle for long; unmark an ended one."""
        if run.end_reason is None and any(link.provisional for link in links.values()):
            writer.execute(_UPSERT_PROVISIONAL_SQL, (tenant, run.id, now))
            self._has_provisional = True
        elif run.end_reason is not None and self._has_provisional:
            writer.execute("DELETE FROM provisional_runs WHERE tenant = ? AND run = ?", (tenant, run.id))

    def settle_idle(self, writer: Connection, tenant: str, now: int) -> int:
        """Judge the provisional links of idle runs. Return how many runs were checked."""
        rows = writer.execute(
            "SELECT run FROM provisional_runs WHERE tenant = ? AND at < ? LIMIT ?",
            (tenant, now - IDLE_MILLISECONDS, MAX_SETTLED_RUNS),
        ).fetchall()
        for (id,) in rows:
            tracked = self.load_runs(writer, tenant, [id]).get(id)
            sql = "SELECT max(started_at) FROM steps WHERE tenant = ? AND run = ?"
            (latest,) = writer.execute(sql, (tenant, id)).fetchone() or (None,)
            if tracked is None or tracked.run.end_reason is not None:
                writer.execute("DELETE FROM provisional_runs WHERE tenant = ? AND run = ?", (tenant, id))
            elif latest is not None and latest > now - IDLE_MILLISECONDS:
                writer.execute(_UPSERT_PROVISIONAL_SQL, (tenant, id, latest))  # still active
            else:
                self._settle_run(writer, tenant, tracked)
                # Keep the row: if the run continues, its links are judged again at its end.
                writer.execute(_UPSERT_PROVISIONAL_SQL, (tenant, id, SETTLED_TIMESTAMP))
        return len(rows)

    def _settle_run(self, writer: Connection, tenant: str, tracked: TrackedRun) -> None:
        """Judge the links of a run as if it had ended: confirmed links give votes, refuted ones are deleted."""
        history = history_of(writer, tenant, tracked.run)
        run = replace(tracked.run, withdrawn=find_refuted(history.steps))
        links = tuple(link_recoveries(history.steps, run, is_settled=True))
        fix_queries.store_run_votes(writer, tenant, run, history.steps, is_settled=True)
        counters = CounterChanges()
        counters.add(slice_history(history), slice_history(replace(history, links=links)))
        status = derive_status(tracked.run, history.steps, links)
        counters.add_run(tracked, tracked.run, status)
        put_statuses(writer, [(status, 0, tenant, run.id)])
        linked = {link.failed_call: link for link in links}
        forget_links(
            writer, [(tenant, run.id, link.failed_call) for link in history.links if link.failed_call not in linked]
        )
        calls_by_id = {call.id: call for call in calls.group_attempts(history.steps)}
        writer.put(LINK, link_rows(tenant, run.id, linked, calls_by_id))
        self.write_counters(writer, tenant, counters)
        self._tracked_runs.pop((tenant, run.id), None)

    def _put_compactions(
        self, writer: Connection, tenant: str, compactions: list[Compaction], counters: CounterChanges
    ) -> int:
        """Store compactions and recount the affected runs. Return how many were new.

        A failure after a compaction that had occurred before it counts as a repeat.
        """
        stored_count = 0
        for compaction in compactions:
            owner_type, owner = (
                ("run", compaction.run) if compaction.run is not None else ("session", compaction.session)
            )
            if owner is None:
                continue
            affected = [owner]
            if owner_type == "session":
                rows = writer.execute("SELECT id FROM runs WHERE tenant = ? AND session = ?", (tenant, owner))
                affected = [id for (id,) in rows]
            runs = [
                tracked for tracked in self.load_runs(writer, tenant, affected).values() if not tracked.is_failure_free
            ]
            earlier = [history_of(writer, tenant, tracked.run) for tracked in runs]
            row = (tenant, owner_type, owner, compaction.at, encode(compaction))
            if not writer.execute(_COMPACTION.single_row_sql, row).rowcount:
                continue
            stored_count += 1
            for before in earlier:
                counters.add(slice_history(before), slice_history(history_of(writer, tenant, before.run)))
        return stored_count


def _group_by_run(batch: Sequence[AnyEvent]) -> tuple[dict[str, _RunChanges], list[Compaction]]:
    """Group a batch by run. Hot path: consecutive records of one run share a bound append method."""
    changes_by_run: dict[str, _RunChanges] = {}
    compactions: list[Compaction] = []
    last_step_run = last_success_run = None
    for event in batch.records if isinstance(batch, StoredEvents) else batch:
        if type(event) is SuccessRecord:
            if event.run is not last_success_run:  # identity check: mostly the same string object
                last_success_run = event.run
                changes = changes_by_run.get(last_success_run)
                if changes is None:
                    changes = changes_by_run[last_success_run] = _RunChanges()
                add_success = changes.successes.append
            add_success(event)
        elif type(event) is StepEnded:
            step = event.step
            if step.run is not last_step_run:
                last_step_run = step.run
                changes = changes_by_run.get(last_step_run)
                if changes is None:
                    changes = changes_by_run[last_step_run] = _RunChanges()
                add_step = changes.steps.append
            add_step(step)
        elif isinstance(event, RunStarted | RunEnded):
            run = event.run
            last_step_run = None
            changes = changes_by_run.get(run.id)
            if changes is None:
                changes = changes_by_run[run.id] = _RunChanges()
            if isinstance(event, RunEnded):
                changes.ended.append(run)
            elif changes.started is None and not changes.ended:
                changes.started = run
        elif isinstance(event, ContextCompacted):
            compactions.append(event.compaction)
    for changes in changes_by_run.values():
        changes.is_failure_free = all(map(_is_first_attempt_success, changes.steps))
    return changes_by_run, compactions


def _is_first_attempt_success(step: Step) -> bool:
    """Return whether a step is a call that succeeded at its first attempt."""
    return (
        step.outcome == "success"
        and step.call == step.seq
        and step.attempt == 1
        and step.failure is None
        and step.type != "run"
    )


def _has_same_counter_key(left: Run, right: Run) -> bool:
    """Return whether the calls of both runs have the same counter keys."""
    return left is right or (
        left.agent == right.agent
        and left.started_at == right.started_at
        and left.version == right.version
        and left.environment == right.environment
        and left.session == right.session
        and (left.metadata or {}).get("model") == (right.metadata or {}).get("model")
    )


def _derive_end_status(old: TrackedRun, run: Run) -> Status | None:
    """Return the status of a run of which only the end is new; None if it depends on its calls."""
    if run.end_reason in ("raised", "abandoned"):
        return "failure"
    return old.status if old.run.end_reason not in ("raised", "abandoned") else None


def _find_repeated_calls(run: Run, run_slice: RunSlice, compactions: tuple[Compaction, ...]) -> set[int]:
    return counters_module.repeated(History(run=run, compactions=compactions), run_slice.calls.values())


def _item_test(writer: Connection, tenant: str, run: str) -> ItemTest:
    """Test a candidate against the rows of its run.

    The recording process uses item arguments learned from earlier runs. Rows stored without its judgement are judged
    by their own run alone, so that a recount gives the same result whatever was stored since.
    """

    def is_item(candidate: Candidate) -> bool:
        last = candidate.call.last
        rows = writer.execute(
            "SELECT seq, name, started_at, body FROM steps WHERE tenant = ? AND run = ? AND name = ? LIMIT ?",
            (tenant, run, last.name, MAX_COMPARED_STEPS),
        )
        return differs_in(candidate, (row_encoding.decode_step(run, *row) for row in rows))

    return is_item


def put_items(writer: Connection, tenant: str, items: Mapping[str, Collection[str]]) -> None:
    """Add to the stored arguments that name items, by tool key."""
    for tool, arguments in items.items():
        row = writer.execute(
            "SELECT value FROM key_values WHERE tenant = ? AND kind = ? AND key = ?", (tenant, ITEMS_KIND, tool)
        ).fetchone()
        merged = merge_items(row[0] if row else None, arguments)
        if merged is not None:
            writer.execute(_UPSERT_ENTRY_SQL, (tenant, ITEMS_KIND, tool, merged))


def slice_history(history: History) -> RunSlice:
    """Return all calls of a run history as a slice."""
    calls_by_id = {call.id: call for call in calls.group_attempts(history.steps)}
    links = {link.failed_call: link for link in history.links}
    return RunSlice(history.run, calls_by_id, links, counters_module.repeated(history, calls_by_id.values()))
