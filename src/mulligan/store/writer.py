"""Batch writer: applies a batch to the database in one transaction, with links, statuses, patterns and rollups.

All derived data can be recomputed from the rows. The writer updates it by difference: it subtracts each changed call
as it was before the batch and adds it as it is after. Most calls succeed at their first attempt in a run without
failures; they cost one row and a few additions. For a run with failures, `RunProgress` restores the state before the
first changed call, so the cost per call does not grow with the length of the run.

Several processes may append for one tenant at the same time. They share only the rows of a run, which are locked, and
patterns, votes and item arguments, for which a batch waits for the tenant's turn at its end. Whatever changes more
than that needs an exclusive transaction: `ConcurrentAppendError` asks for one.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from mulligan.contract import counters as counters_module
from mulligan.contract.counters import HOUR
from mulligan.contract.store import ITEMS_KIND, import_principal, is_import_principal, merge_items
from mulligan.core import calls
from mulligan.core.attempts import join_attempts, says_attempt
from mulligan.core.call_facts import ItemTest, PossibleCorrection
from mulligan.core.calls import Call
from mulligan.core.events import AnyEvent, ContextCompacted, FailureRecorded, RunEnded, RunStarted, StepEnded
from mulligan.core.links import RunProgress, differs_in
from mulligan.core.records import FIRST_FAILURE_SEQ, Compaction, History, Link, Run, Status, Step, encode
from mulligan.core.run_links import find_refuted
from mulligan.learn import fixes, patterns
from mulligan.store import fix_queries, fix_votes, run_texts
from mulligan.store.connection import ConcurrentAppendError, Connection, Insert, upsert
from mulligan.store.judging import judge_run
from mulligan.store.rollups import (
    EMPTY_SLICE,
    CounterChanges,
    RunSlice,
    has_same_counter_key,
    is_first_attempt_success,
)
from mulligan.store.rows import (
    BEFORE_FIRST_CALL,
    MESSAGE,
    RUN,
    RUN_MESSAGE,
    STEP,
    STORED_STEP,
    StoredRun,
    calls_of,
    compactions_of,
    delete_callees,
    delete_facts,
    extent,
    history_of,
    link_rows,
    links_since,
    load_runs,
    mark_rewritten,
    message_rows,
    run_row,
    select_steps,
    step_row,
    steps_since,
    update_runs,
)
from mulligan.store.sent_records import check_conflicts, is_placeholder, merge_sent_fields

MIN_TRAIL_CALLS = 100
"""Latest calls of a run that a trail covers at least. Changes to earlier calls need a full read."""
IDLE_MILLISECONDS = 30 * 60 * 1000
"""An unfinished run that was idle for this long is settled: its provisional links are judged as if it had ended."""
MAX_ATTEMPT_DISTANCE = 200
"""Steps between two attempts of one call that another program sends apart, at most."""
SUCCESS_PAGE_STEPS = 10
"""Steps that are read at a time to find the first success of a run."""
_UPSERT_PROVISIONAL_SQL = upsert("provisional_runs", "tenant run", "at")
_UPSERT_ENTRY_SQL = upsert("key_values", "tenant kind key", "value")
_ORPHAN = Insert.of("orphaned_runs", "tenant run stored_at")
_COMPACTION = Insert.of("compactions", "tenant owner_type owner at body")
_STATE_SQL = (
    "SELECT (SELECT value FROM meta WHERE tenant = ?1 AND key = 'forgotten'), "
    "EXISTS (SELECT 1 FROM provisional_runs WHERE tenant = ?1), EXISTS (SELECT 1 FROM compactions WHERE tenant = ?1), "
    "EXISTS (SELECT 1 FROM orphaned_runs WHERE tenant = ?1), count(*), coalesce(sum(length(body)), 0) "
    "FROM rollup_changes WHERE tenant = ?1"
)


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
        self.step_totals = (0, 0)
        """Count of the stored steps and sum of their seqs, to detect writes by other processes."""

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
            or not is_first_attempt_success(call.steps[0])
        ):
            self.now, links = self.now.after(call, None, is_item, run.withdrawn, is_final=run.end_reason is not None)
        if len(self.ids) > 2 * MIN_TRAIL_CALLS:
            del self.ids[:MIN_TRAIL_CALLS], self.before[:MIN_TRAIL_CALLS]
            self.is_truncated = True
        return links


class _RunChanges(msgspec.Struct):
    """Records of one run in a batch."""

    started: Run | None = None
    updates: list[RunStarted | RunEnded] = []
    """Ends, and starts of which only some fields were sent, in order."""
    run: Run | None = None
    """The run as it is after the batch; None if only steps have arrived."""
    steps: list[Step] = []
    recorded: list[FailureRecorded] = []
    is_failure_free: bool = True
    """Whether all of `steps` succeeded at the first attempt."""

    def set_steps(self, steps: list[Step]) -> None:
        self.steps = steps
        self.is_failure_free = all(map(is_first_attempt_success, steps))

    def apply_updates(self, stored_run: Run | None) -> int:
        """Set `run`. Return how many of the records are new."""
        self.run = stored_run or self.started
        new_count = int(stored_run is None and self.run is not None)
        if self.started not in (None, stored_run) and stored_run is not None and is_placeholder(stored_run):
            self.run, new_count = self.started, 1
        for update in self.updates:
            run = update.run
            if update.sent_fields is not None and self.run is not None:
                run = merge_sent_fields(self.run, run, update.sent_fields)
            elif _is_outdated_end(run, self.run):
                continue
            if self.run is None or (
                run.end_reason != self.run.end_reason or (run != self.run and encode(run) != encode(self.run))
            ):
                new_count += 1
                self.run = run
        return new_count


class _Transaction(msgspec.Struct):
    """One batch on its way into the database."""

    writer: Connection
    tenant: str
    now: int
    principals: Mapping[str, str]
    """Principal that sent the records, by run."""
    is_imported: bool
    has_provisional: bool
    """Whether any run may have provisional links. Mostly none does, which saves a statement per run."""
    has_compactions: bool
    unfolded_changes: tuple[int, int]
    """Count and size of the changes that are not folded into the rollups."""
    orphans: dict[str, int] = {}
    """Runs of which only steps are stored, with the time of the first one."""
    counters: CounterChanges = msgspec.field(default_factory=CounterChanges)
    new_run_rows: list[tuple[Any, ...]] = []
    trials: list[fix_votes.RunTrials] = []
    items: list[Mapping[str, Collection[str]]] = []
    replaced: dict[str, dict[int, Step]] = {}
    """Stored steps that are replaced or removed, by run and number, as they were before the batch."""

    def find_stored_time(self, new_run: str) -> int:
        """Return since when a new run counts as stored: since its first record, which may have arrived as an orphan."""
        return self.orphans.get(new_run) or self.now

    def require_exclusive(self) -> None:
        if not self.writer.is_exclusive:
            raise ConcurrentAppendError

    def delete_step(self, step: Step) -> None:
        """Delete a stored step, which the batch replaces or removes."""
        self.require_exclusive()
        sql = "DELETE FROM steps WHERE tenant = ? AND run = ? AND seq = ?"
        self.writer.execute(sql, (self.tenant, step.run, step.seq))
        self.replaced.setdefault(step.run, {}).setdefault(step.seq, step)


class BatchWriter:
    """Writer of batches. Use it from one thread at a time, within a transaction."""

    def __init__(self) -> None:
        self._trails: dict[tuple[str, str], _CallTrail] = {}
        """Trails of unfinished runs with failures."""
        self._rewrites: dict[str, int] = {}
        """Changes of a tenant's stored steps that were counted when its trails were built."""
        self._principal_noted_at: dict[tuple[str, str], int] = {}

    def drop_cache(self) -> None:
        """Clear all caches, after a rollback or a change of stored data by other code."""
        self.drop_trails()
        self._principal_noted_at.clear()

    def drop_trails(self) -> None:
        """Clear the trails, after the rollback of a transaction that runs beside other writers.

        Such a transaction writes no principals, so their cached times stay valid. Without them, the next batch of
        each tenant would need an exclusive transaction.
        """
        self._trails.clear()

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
        return sum(self.append_merged(writer, tenant, [(batch, principal)], now, is_imported))

    def append_merged(
        self,
        writer: Connection,
        tenant: str,
        batches: Sequence[tuple[Sequence[AnyEvent], str]],
        now: int,
        is_imported: bool,
        sent_runs: Collection[str] = (),
    ) -> list[int]:
        """Store batches with their principals by the same statements. Return how many records of each were new.

        No two of them may have records of the same run, and one with compactions must be alone. Steps of `sent_runs`
        that contradict stored ones raise `RecordConflictError`.
        """
        principals: dict[str, str] = {}
        runs_by_batch: list[set[str]] = []
        for events, principal in batches:
            runs_by_batch.append(runs_of(events))
            if is_imported and not is_import_principal(principal):
                principal = import_principal(principal)
            principal = principal or fixes.LOCAL_PRINCIPAL
            principals.update(dict.fromkeys(runs_by_batch[-1] or ("",), principal))
        batch = batches[0][0] if len(batches) == 1 else [event for events, _ in batches for event in events]
        transaction, has_orphans = self._begin(writer, tenant, now, principals, is_imported)
        changes_by_run, compactions = _group_by_run(batch)
        stored_runs = load_runs(writer, tenant, changes_by_run)
        if has_orphans:
            orphan_rows = writer.execute("SELECT run, stored_at FROM orphaned_runs WHERE tenant = ?", (tenant,))
            transaction.orphans = {run: stored_at for run, stored_at in orphan_rows if run in changes_by_run}
        for id, changes in list(changes_by_run.items()):
            if id in sent_runs and changes.steps:
                _join_attempts(transaction, id, changes, stored_runs.get(id))
            is_stored = id in stored_runs or id in transaction.orphans
            has_stored_failures = is_stored and not (id in stored_runs and stored_runs[id].is_failure_free)
            if has_stored_failures or not changes.is_failure_free:
                _join_nested_failures(transaction, id, changes, is_stored=is_stored)
            if changes.recorded:
                _replace_failures(transaction, id, changes)
            if not (changes.steps or changes.started or changes.updates or id in stored_runs):
                del changes_by_run[id]
        if transaction.replaced:
            self._rewrites[tenant] = mark_rewritten(writer, tenant)
        new_counts = _update_runs(transaction, changes_by_run, stored_runs)
        new_orphans = [id for id, changes in changes_by_run.items() if changes.run is None]
        if compactions or new_orphans or transaction.orphans:
            transaction.require_exclusive()
        writer.put(_ORPHAN, [(tenant, id, now) for id in new_orphans])
        are_new = not stored_runs and not transaction.orphans
        _put_steps(writer, tenant, changes_by_run, sent_runs, are_new)
        _put_messages(writer, tenant, batch)
        if late_runs := _find_late_runs(changes_by_run, stored_runs, now):
            writer.unindex_runs(tenant, late_runs)
        for id, changes in changes_by_run.items():
            new_counts[id] += len(changes.steps)
            if changes.run is not None:
                self._count_changes(transaction, stored_runs.get(id), changes.run, changes)
        # Another process may have just stored one of them.
        writer.queue(RUN, transaction.new_run_rows, must_be_new=True)
        transaction.counters.write(writer, tenant, transaction.unfolded_changes)
        if transaction.trials or transaction.items:
            if not transaction.counters.failures:  # else the counters have locked it
                writer.lock(tenant, "turn")
            for principal in sorted({principals[trials.run.id] for trials in transaction.trials}):
                trials = [trials for trials in transaction.trials if principals[trials.run.id] == principal]
                fix_votes.add_votes(writer, tenant, trials, principal)
            for items in transaction.items:
                put_items(writer, tenant, items)
        compaction_count = _put_compactions(writer, tenant, compactions)
        return [compaction_count + sum(new_counts[run] for run in runs) for runs in runs_by_batch]

    def _begin(
        self, writer: Connection, tenant: str, now: int, principals: Mapping[str, str], is_imported: bool
    ) -> tuple[_Transaction, bool]:
        """Validate the cache. Every half hour, settle idle runs and record the time of the principal's last write.

        Return the transaction, and whether the tenant has orphaned runs.
        """
        rewrites, has_provisional, has_compactions, has_orphans, *unfolded_changes = writer.execute(
            _STATE_SQL, (tenant,)
        ).fetchone()
        transaction = _Transaction(
            writer,
            tenant,
            now,
            principals,
            is_imported,
            bool(has_provisional),
            bool(has_compactions),
            tuple(unfolded_changes),
        )
        # Runs with a trail that are cached.
        if int(rewrites or 0) != self._rewrites.get(tenant, 0) or len(self._trails) > 200:
            self._rewrites[tenant] = int(rewrites or 0)
            self._trails.clear()
        for principal in sorted(set(principals.values())):
            if now - self._principal_noted_at.get((tenant, principal), -HOUR) < IDLE_MILLISECONDS:
                continue
            transaction.require_exclusive()
            self.settle_idle(writer, tenant, now)
            fix_queries.update_principal(writer, tenant, principal, now)
            self._principal_noted_at[tenant, principal] = now
        return transaction, bool(has_orphans)

    def _count_changes(self, transaction: _Transaction, old: StoredRun | None, run: Run, changes: _RunChanges) -> None:
        """Update all data derived from a run by its changes in the batch."""
        writer, tenant, counters, steps = transaction.writer, transaction.tenant, transaction.counters, changes.steps
        is_orphan = run.id in transaction.orphans
        has_same_key = old is None or has_same_counter_key(old.run, run)
        if is_orphan:
            writer.execute("DELETE FROM orphaned_runs WHERE tenant = ? AND run = ?", (tenant, run.id))
        is_failure_free = changes.is_failure_free and not is_orphan and (old is None or old.is_failure_free)
        if is_failure_free and has_same_key:
            status = RunProgress().status(run)
            counters.add_successes(run, steps)
            if old is not None and status != old.status:
                counters.statuses.append((status, 1, tenant, run.id))
        elif (
            old is not None
            and not steps
            and has_same_key
            and not _needs_final_links(transaction, old, run)
            and (end_status := _derive_end_status(old, run))
        ):
            status = end_status
            if status != old.status:
                counters.statuses.append((status, int(old.is_failure_free), tenant, run.id))
        else:
            status = self._recount_run(transaction, old, run, steps)
        counters.add_run(old, run, status)
        if old is None:
            stored_at, principal = transaction.find_stored_time(run.id), transaction.principals[run.id]
            row = run_row(tenant, run, stored_at, transaction.is_imported, principal, status, is_failure_free)
            transaction.new_run_rows.append(row)
        if run.items and run.end_reason is not None:
            transaction.items.append(run.items)
        if run.end_reason is not None:
            self._trails.pop((tenant, run.id), None)
        counters.add_used_names(run, steps)

    def _load_trail(
        self, transaction: _Transaction, old: StoredRun | None, run: Run, new: list[Step], start: int
    ) -> _CallTrail:
        """Return the trail of a run before the batch, of which `start` is the first call.

        A run with failures and without a trail needs a full read.
        """
        trail = self._trails.get((transaction.tenant, run.id))
        if trail is not None:
            count, seq_sum = trail.step_totals
            trail.step_totals = count + len(new), seq_sum + sum(step.seq for step in new)
            if trail.step_totals == extent(transaction.writer, transaction.tenant, run.id):
                return trail
        trail = _CallTrail()
        trail.is_truncated = old is not None and not old.is_failure_free
        if old is not None and old.is_failure_free:
            trail.now = _progress_of_successes(transaction, run.id, start)
        return trail

    def _recount_run(self, transaction: _Transaction, old: StoredRun | None, run: Run, steps: list[Step]) -> Status:
        """Recount a run from its first changed call on. Return its status."""
        writer, tenant, counters = transaction.writer, transaction.tenant, transaction.counters
        compactions = compactions_of(writer, tenant, run) if transaction.has_compactions else ()
        is_orphan = run.id in transaction.orphans
        is_new = old is None and not is_orphan
        # Only compactions within the run need a full read: earlier ones of its session apply to each call by itself.
        replaced = transaction.replaced.get(run.id, {})
        needs_full_read = (
            is_orphan
            or not steps
            or bool(replaced)
            or any(counters_module.is_within(compaction, run) for compaction in compactions)
            or any(step.call > step.seq for step in steps)
            or (old is not None and _needs_final_links(transaction, old, run))
        )
        has_same_key = old is None or has_same_counter_key(old.run, run)
        if old is not None and not has_same_key:
            needs_full_read = True
            delete_callees(writer, tenant, history_of(writer, tenant, old.run))
            if run.started_at != old.run.started_at:
                delete_facts(writer, tenant, [old.run])
        start = min((step.call for step in steps), default=0)
        trail = self._load_trail(transaction, old, run, steps, start)
        progress = None if needs_full_read else trail.rewind(start)
        if progress is None:
            trail, progress, start, needs_full_read = _CallTrail(), RunProgress(), BEFORE_FIRST_CALL, True
        all_steps = steps if is_new else steps_since(writer, tenant, run.id, start, steps)
        trail.has_unordered_calls = trail.has_unordered_calls or any(step.call > step.seq for step in all_steps)
        stored_links = {} if is_new else links_since(writer, tenant, run.id, start)
        open_calls = {
            open_failure.call.id: open_failure.call for open_failure in progress.open if open_failure.call.id < start
        }
        after = RunSlice(run, {call.id: call for call in calls.group_attempts(all_steps)}, {}, set())
        trials = _link_calls(transaction, trail, after, all_steps if is_new else None)
        _note_provisional(transaction, run, after)
        if is_new:
            counters.new_runs.add(run.id)
        if trials or not is_new:
            stored_at = transaction.find_stored_time(run.id) if old is None else old.stored_at
            first_call = BEFORE_FIRST_CALL if is_new else start
            transaction.trials.append(fix_votes.RunTrials(run, first_call, trials, stored_at))
        new_seqs = {step.seq for step in steps}
        earlier = [] if is_new else [step for step in all_steps if step.seq not in new_seqs]
        if replaced:
            earlier = sorted((*earlier, *replaced.values()), key=lambda step: step.seq)
        before = RunSlice(
            old.run if old else run, {call.id: call for call in calls.group_attempts(earlier)}, stored_links, set()
        )
        earlier_calls = {id for id in stored_links.keys() | after.links.keys() if id not in after.calls}
        # One recovery can link many failed calls, of which only the last one is in memory.
        open_calls |= calls_of(writer, tenant, run.id, earlier_calls - open_calls.keys())
        for id in earlier_calls:
            if id in open_calls:
                before.calls[id] = after.calls[id] = open_calls[id]
            else:
                after.links.pop(id, None)
        if compactions:
            for run_slice in (before, after):
                run_slice.repeated_calls.update(
                    counters_module.find_repeated_calls(
                        History(run=run, compactions=compactions), run_slice.calls.values()
                    )
                )
        counters.add(EMPTY_SLICE if old is None else before, after)
        counters.unlinked += [(tenant, run.id, failed) for failed in stored_links if failed not in after.links]
        counters.links += link_rows(tenant, run.id, after.links, after.calls)
        if needs_full_read:
            counters.add_used_names(run, earlier)
        status = trail.now.status(run)
        if old is not None:
            counters.statuses.append((status, 0, tenant, run.id))
        if run.end_reason is None:  # a finished run is not cached
            if is_new:
                trail.step_totals = len(steps), sum(new_seqs)
            elif trail.step_totals == (0, 0):
                trail.step_totals = extent(writer, tenant, run.id)
            self._trails[tenant, run.id] = trail
        return status

    def settle_idle(self, writer: Connection, tenant: str, now: int) -> int:
        """Judge the provisional links of idle runs. Return how many runs were checked."""
        rows = writer.execute(
            "SELECT run FROM provisional_runs WHERE tenant = ? AND at < ? LIMIT ?",
            (tenant, now - IDLE_MILLISECONDS, 50),  # idle runs that are settled in one transaction
        ).fetchall()
        stored_runs = load_runs(writer, tenant, [id for (id,) in rows])
        for (id,) in rows:
            stored_run = stored_runs.get(id)
            sql = "SELECT max(started_at) FROM steps WHERE tenant = ? AND run = ?"
            (latest,) = writer.execute(sql, (tenant, id)).fetchone() or (None,)
            if stored_run is None or stored_run.run.end_reason is not None:
                writer.execute("DELETE FROM provisional_runs WHERE tenant = ? AND run = ?", (tenant, id))
            elif latest is not None and latest > now - IDLE_MILLISECONDS:
                writer.execute(_UPSERT_PROVISIONAL_SQL, (tenant, id, latest))  # still active
            else:
                self._settle_run(writer, tenant, stored_run)
                # Keep the row: if the run continues, its links are judged again at its end.
                # Stored in place of a time for a run that was settled before it ended
                writer.execute(_UPSERT_PROVISIONAL_SQL, (tenant, id, 2**62))
        return len(rows)

    def _settle_run(self, writer: Connection, tenant: str, stored_run: StoredRun) -> None:
        """Judge the links of a run as if it had ended: confirmed links give votes, refuted ones are deleted."""
        history = history_of(writer, tenant, stored_run.run)
        run = replace(stored_run.run, withdrawn=find_refuted(history.steps))
        links, status = judge_run(writer, tenant, run, history.steps, is_settled=True)
        changes = CounterChanges()
        changes.add(RunSlice.of_history(history), RunSlice.of_history(replace(history, links=links)))
        changes.add_run(stored_run, stored_run.run, status)
        changes.write(writer, tenant)
        self._trails.pop((tenant, run.id), None)


def _update_runs(
    transaction: _Transaction, changes_by_run: dict[str, _RunChanges], stored_runs: dict[str, StoredRun]
) -> Counter[str]:
    """Update stored runs. Return how many records about each run were new.

    New runs are stored when their status is known: an update of each would cost a statement.
    """
    new_counts: Counter[str] = Counter()
    new_runs: list[str] = []
    updated_runs: list[Run] = []
    for id, changes in changes_by_run.items():
        old = stored_runs[id].run if id in stored_runs else None
        new_counts[id] = changes.apply_updates(old)
        if old is None and changes.run is not None:
            new_runs.append(id)
        elif changes.run is not None and changes.run is not old:
            updated_runs.append(changes.run)
    transaction.writer.remember_runs(transaction.tenant, {id: transaction.find_stored_time(id) for id in new_runs})
    update_runs(transaction.writer, transaction.tenant, updated_runs)
    return new_counts


def _find_late_runs(changes_by_run: dict[str, _RunChanges], stored_runs: dict[str, StoredRun], now: int) -> list[str]:
    """Return the runs that get new records after they may have been indexed for searches."""
    settled_at, idle_at = now - run_texts.SETTLE_MILLISECONDS // 2, now - run_texts.IDLE_MILLISECONDS
    return [
        id
        for id, (run, _, _, stored_at) in stored_runs.items()
        if (stored_at < settled_at if run.end_reason is not None else stored_at < idle_at)
        and id in changes_by_run
        and (changes_by_run[id].steps or changes_by_run[id].run is not run)
    ]


def _join_nested_failures(transaction: _Transaction, run: str, changes: _RunChanges, *, is_stored: bool) -> None:
    """Turn failures that were stored as steps nested in another one into failures recorded for that step.

    They are stored so while the step is unknown: it arrives later, or its run does. A failure that was classified by
    its message changes nothing if the step has a message too. `is_stored` says that the store has steps of this run.
    """
    steps = {step.seq: step for step in reversed(changes.steps)}
    nested_steps = [step for step in steps.values() if step.seq >= FIRST_FAILURE_SEQ]
    for seq in {step.parent for step in nested_steps} - steps.keys() if is_stored else ():
        steps |= {step.seq: step for step in _load_steps(transaction, run, seq or 0, seq or 0)}
    if is_stored and len(nested_steps) < len(changes.steps):
        nested_steps += _load_steps(transaction, run, FIRST_FAILURE_SEQ, 2 * FIRST_FAILURE_SEQ - 1)
    joined_seqs: set[int] = set()
    for nested_step in nested_steps:
        step, recorded = steps.get(nested_step.parent or 0), nested_step.failure
        if step is None or recorded is None:
            continue
        joined_seqs.add(nested_step.seq)
        if nested_step.seq not in steps:
            transaction.delete_step(nested_step)
        if step.failure is not None and step.failure.message and recorded.evidence:
            continue
        if nested_step.name != step.name and recorded.message:
            recorded = patterns.assign_to_step(recorded, step)
        failure = recorded if step.failure is None else step.failure.with_recorded(recorded)
        steps[step.seq] = step.with_failure(failure)
        changes.recorded.append(FailureRecorded(run, step.seq, failure))
    if joined_seqs:
        changes.set_steps([step for step in changes.steps if step.seq not in joined_seqs])


def _join_attempts(transaction: _Transaction, run: str, changes: _RunChanges, stored_run: StoredRun | None) -> None:
    """Join attempts that other programs send as steps of their own, each perhaps in another request.

    A stored step that turns out to be a later attempt, because an earlier one arrives only now, is replaced.
    """
    if stored_run is None and run not in transaction.orphans:
        return  # all its steps are here, and were joined when they were read
    if len({step.seq for step in changes.steps}) < len(changes.steps):
        return  # two of them contradict each other, or one was sent twice
    is_failure_free = stored_run is not None and stored_run.is_failure_free
    sent_steps = {step.seq: step for step in changes.steps if step.seq < FIRST_FAILURE_SEQ}
    attempts_by_name: dict[str, list[Step]] = {}
    for step in sent_steps.values():
        if not is_failure_free or says_attempt(step):
            attempts_by_name.setdefault(step.name, []).append(step)
    for name, attempts in attempts_by_name.items():
        first, last = min(step.seq for step in attempts), max(step.seq for step in attempts) + MAX_ATTEMPT_DISTANCE
        if any(map(says_attempt, attempts)):
            first = min(step.call if step.call != step.seq else step.seq - MAX_ATTEMPT_DISTANCE for step in attempts)
        nearby_steps = _load_steps(transaction, run, max(first, 0), min(last, FIRST_FAILURE_SEQ - 1), name)
        stored_steps = {step.seq: step for step in nearby_steps}
        new_steps = {step.seq: step for step in attempts if step.seq not in stored_steps}
        for step in join_attempts((stored_steps | new_steps).values()):
            stored_step = stored_steps.get(step.seq)
            if step.seq in sent_steps:  # one that is stored must equal what is sent again, but for its place
                sent_step = sent_steps[step.seq]
                sent_steps[step.seq] = replace(sent_step, call=step.call, attempt=step.attempt, recovery=step.recovery)
            if stored_step is not None and _has_moved(stored_step, step):
                transaction.delete_step(stored_step)
                sent_steps[step.seq] = step
    if attempts_by_name:
        others = [step for step in changes.steps if step.seq >= FIRST_FAILURE_SEQ]
        changes.set_steps([*sent_steps.values(), *others])


def _has_moved(stored_step: Step, step: Step) -> bool:
    """Return whether a step is another attempt than it was stored as."""
    waits = [other.recovery.backoff_seconds if other.recovery else 0.0 for other in (stored_step, step)]
    is_same_attempt = (stored_step.call, stored_step.attempt) == (step.call, step.attempt)
    # Seconds in which two computations of one backoff may differ.
    return not is_same_attempt or abs(waits[0] - waits[1]) > 0.001


def _load_steps(transaction: _Transaction, run: str, first_seq: int, last_seq: int, *name: str) -> Iterator[Step]:
    """Read the steps between two numbers, or those of them with a name."""
    condition = f"run = ? AND seq BETWEEN ? AND ?{' AND name = ?' if name else ''}"
    return select_steps(transaction.writer, transaction.tenant, condition, run, first_seq, last_seq, *name)


def _progress_of_successes(transaction: _Transaction, run: str, start: int) -> RunProgress:
    """Return the progress before a call of a run of which all earlier calls succeeded at the first attempt.

    Mostly it reads the first few of them: a run has a success as soon as one of them is no stage.
    """
    progress, last_seq = RunProgress(), BEFORE_FIRST_CALL
    while not progress.has_success:
        condition = f"run = ? AND seq > ? AND seq < ? ORDER BY seq LIMIT {SUCCESS_PAGE_STEPS}"
        steps = list(select_steps(transaction.writer, transaction.tenant, condition, run, last_seq, start))
        if not steps:
            break
        last_seq = steps[-1].seq
        for call in calls.group_attempts(steps):
            progress, _ = progress.after(call)
    return progress


def _replace_failures(transaction: _Transaction, run: str, changes: _RunChanges) -> None:
    """Give steps the failures that were recorded for them. Others than the writer of the run change nothing."""
    writer, tenant = transaction.writer, transaction.tenant
    for event in changes.recorded:
        stored_step = next(_load_steps(transaction, run, event.seq, event.seq), None)
        if stored_step is None:  # it is in this batch, or unknown
            steps = [step.with_failure(event.failure) if step.seq == event.seq else step for step in changes.steps]
            changes.set_steps(steps)
            continue
        sql = "SELECT principal FROM runs WHERE tenant = ? AND id = ?"
        (principal,) = writer.execute(sql, (tenant, run)).fetchone() or (transaction.principals[run],)
        new_step = stored_step.with_failure(event.failure)
        if new_step == stored_step or principal != transaction.principals[run]:
            continue
        transaction.delete_step(stored_step)
        changes.set_steps([*(step for step in changes.steps if step.seq != event.seq), new_step])


def _put_compactions(writer: Connection, tenant: str, compactions: list[Compaction]) -> int:
    """Store compactions and recount the affected runs. Return how many were new.

    A failure after a compaction that had occurred before it counts as a repeat.
    """
    stored_count = 0
    changes = CounterChanges()
    for compaction in compactions:
        owner_type, owner = ("run", compaction.run) if compaction.run is not None else ("session", compaction.session)
        if owner is None:
            continue
        affected = [owner]
        if owner_type == "session":
            rows = writer.execute("SELECT id FROM runs WHERE tenant = ? AND session = ?", (tenant, owner))
            affected = [id for (id,) in rows]
        earlier = [
            history_of(writer, tenant, stored_run.run)
            for stored_run in load_runs(writer, tenant, affected).values()
            if not stored_run.is_failure_free
        ]
        if not writer.put(_COMPACTION, [(tenant, owner_type, owner, compaction.at, encode(compaction))]):
            continue
        stored_count += 1
        for before in earlier:
            after = history_of(writer, tenant, before.run)
            changes.add(RunSlice.of_history(before), RunSlice.of_history(after))
    changes.write(writer, tenant)
    return stored_count


def _group_by_run(batch: Sequence[AnyEvent]) -> tuple[dict[str, _RunChanges], list[Compaction]]:
    changes_by_run: dict[str, _RunChanges] = {}
    compactions: list[Compaction] = []
    last_run = None
    for event in batch:
        if isinstance(event, StepEnded):
            if event.step.run is not last_run:  # identity check: mostly the same string object
                last_run = event.step.run
                changes = changes_by_run.get(last_run) or changes_by_run.setdefault(last_run, _RunChanges())
                add_step = changes.steps.append
            add_step(event.step)
        elif isinstance(event, RunStarted | RunEnded):
            changes = changes_by_run.setdefault(event.run.id, _RunChanges())
            if isinstance(event, RunEnded) or event.sent_fields is not None:
                changes.updates.append(event)
            elif changes.started is None and not changes.updates:
                changes.started = event.run
        elif isinstance(event, FailureRecorded):
            changes_by_run.setdefault(event.run, _RunChanges()).recorded.append(event)
        elif isinstance(event, ContextCompacted):
            compactions.append(event.compaction)
    for changes in changes_by_run.values():
        changes.set_steps(changes.steps)
    return changes_by_run, compactions


def runs_of(events: Sequence[AnyEvent]) -> set[str]:
    """Return the ids of the runs of which a batch has records."""
    ids: set[str] = set()
    for event in events:
        if isinstance(event, StepEnded):
            ids.add(event.step.run)
        elif isinstance(event, RunStarted | RunEnded):
            ids.add(event.run.id)
        elif isinstance(event, FailureRecorded):
            ids.add(event.run)
    return ids


def _put_steps(
    writer: Connection,
    tenant: str,
    changes_by_run: dict[str, _RunChanges],
    sent_runs: Collection[str],
    are_new: bool,
) -> None:
    """Store the steps. Afterwards only the new ones are in `changes_by_run`. `are_new` says that all the runs are."""
    count = sum(len(changes.steps) for changes in changes_by_run.values())
    if not count:
        return
    # A generator: building rows while they are inserted reuses memory that was just freed, which is faster.
    rows = (step_row(tenant, step) for changes in changes_by_run.values() for step in changes.steps)
    if are_new and not writer.is_exclusive:  # no savepoint: the steps of new runs are new, unless some are equal
        writer.queue(STEP, list(rows), must_be_new=True)
        return
    writer.execute("SAVEPOINT steps")
    if writer.put(STEP, rows) != count:  # some exist already: find out which
        writer.execute("ROLLBACK TO steps")
        step_keys = {(tenant, step.run, step.seq) for changes in changes_by_run.values() for step in changes.steps}
        existing_keys = {(run, seq) for _, run, seq, _ in writer.look_up(STORED_STEP, list(step_keys))}
        sent_steps = [step for run, changes in changes_by_run.items() if run in sent_runs for step in changes.steps]
        if sent_steps:
            stored = (select_steps(writer, tenant, "run = ? AND seq = ?", *key) for key in existing_keys)
            check_conflicts({(step.run, step.seq): step for steps in stored for step in steps}, sent_steps)
        for changes in changes_by_run.values():
            new = [step for step in changes.steps if (step.run, step.seq) not in existing_keys]
            first_by_seq = {step.seq: step for step in reversed(new)}
            changes.set_steps(list(first_by_seq.values())[::-1])
        writer.put(STEP, [step_row(tenant, step) for changes in changes_by_run.values() for step in changes.steps])
    writer.execute("RELEASE steps")


def _put_messages(writer: Connection, tenant: str, batch: Sequence[AnyEvent]) -> None:
    """Store the messages of recorded conversations. A message that the tenant has already is only referred to."""
    messages = [
        (event.step.run, message) for event in batch if isinstance(event, StepEnded) for message in event.messages
    ]
    if messages:
        rows, usages = message_rows(tenant, messages)
        writer.queue(MESSAGE, rows)
        writer.queue(RUN_MESSAGE, usages)


def _link_calls(
    transaction: _Transaction, trail: _CallTrail, after: RunSlice, new_steps: list[Step] | None
) -> list[fixes.Trial]:
    """Append the calls to the trail and add their links to the slice. Return the trials of fixes among them."""
    run = after.run
    trials: list[fixes.Trial] = []
    is_item = _item_test(transaction.writer, transaction.tenant, run.id)
    if new_steps is not None:  # all calls of a new run are in memory: this avoids one statement per call
        is_item = lambda candidate: differs_in(candidate, new_steps)  # noqa: E731
    for call in after.calls.values():
        progress_before = trail.now
        call_links = trail.add_call(call, is_item, run)
        if call.has_succeeded:
            after.links.update((link.failed_call, link) for link in call_links)
        if progress_before.open or len(call.steps) > 1:
            is_final = run.end_reason is not None
            trials += fixes.find_trials(progress_before, call, call_links, run.withdrawn, is_final=is_final)
    if fix_queries.is_goal_missed(run):
        trials = [trial for trial in trials if not trial.successful]
    return trials


def _needs_final_links(transaction: _Transaction, old: StoredRun, run: Run) -> bool:
    """Return whether the run ends now and all of its links must be judged again."""
    if old.is_failure_free or run.end_reason is None or old.run.end_reason == run.end_reason:
        return False
    if run.withdrawn or fix_queries.is_goal_missed(run):
        return True
    if not transaction.has_provisional:
        return False
    sql = "SELECT 1 FROM provisional_runs WHERE tenant = ? AND run = ?"
    return transaction.writer.execute(sql, (transaction.tenant, run.id)).fetchone() is not None


def _note_provisional(transaction: _Transaction, run: Run, after: RunSlice) -> None:
    """Mark a run whose links must be judged when it has ended or was idle for long; unmark an ended one."""
    writer, tenant = transaction.writer, transaction.tenant
    links = itertools.chain(after.links.values(), (link for call in after.calls.values() for link in call.last.links))
    if run.end_reason is None and any(link.provisional for link in links):
        writer.execute(_UPSERT_PROVISIONAL_SQL, (tenant, run.id, transaction.now))
    elif run.end_reason is not None and transaction.has_provisional:
        writer.execute("DELETE FROM provisional_runs WHERE tenant = ? AND run = ?", (tenant, run.id))


def _derive_end_status(old: StoredRun, run: Run) -> Status | None:
    """Return the status of a run of which only the end is new; None if it depends on its calls."""
    if run.end_reason in ("raised", "abandoned"):
        return "failure"
    return old.status if old.run.end_reason not in ("raised", "abandoned") else None


def _is_outdated_end(end: Run, run: Run | None) -> bool:
    """Return whether a run has ended otherwise, and later than an end that another process derived from its journal."""
    if end.end_reason != "abandoned" or run is None or run.end_reason in (None, "abandoned"):
        return False
    return (end.ended_at or 0) <= (run.ended_at or 0)


def _item_test(writer: Connection, tenant: str, run: str) -> ItemTest:
    """Test a candidate against the rows of its run.

    The recording process uses item arguments learned from earlier runs. Rows stored without its judgement are judged
    by their own run alone, so that a recount gives the same result whatever was stored since.
    """

    def is_item(candidate: PossibleCorrection) -> bool:
        name = candidate.call.last.name
        # Steps of one tool in one run that the item test reads.
        steps = select_steps(writer, tenant, "run = ? AND name = ? LIMIT ?", run, name, 5000)
        return differs_in(candidate, steps)

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
