"""Retention: delete expired runs, sample successful calls, compress old steps.

The work is split into small transactions, so that other writers are not blocked for long. Rollups and pattern counters
keep their values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import msgspec

from mulligan.contract import counters
from mulligan.contract.store import Progress, PruneResult, Retention
from mulligan.core.calls import group_attempts
from mulligan.core.records import History, Run, Status, Step
from mulligan.core.run_links import derive_status
from mulligan.store import pattern_counts, rollups
from mulligan.store.connection import Connection, Rows
from mulligan.store.rollups import CounterChanges
from mulligan.store.rows import (
    STEP,
    RunRow,
    compress,
    decode_body,
    delete_callees,
    history_of,
    read_meta,
    remove_run,
    replace_facts,
    replace_steps,
    runs_since,
    write_meta,
)

MAX_ROWS_PER_TRANSACTION = 1000
"""Limit of deleted rows per transaction, which bounds how long other writers wait."""
MESSAGE_USE_BYTES = 120
"""Estimated size of the rows and index entries of a message, without its body."""
NO_CUTOFF_MS = -(2**62)
"""Cutoff of a rule that is off."""
Using = Callable[..., contextlib.AbstractContextManager[Connection]]


# Rules


def is_expired(status: Status, stored_at: int, policy: Retention, now: int) -> bool:
    """Return whether a run stored at `stored_at` exceeds the maximum age for its status."""
    age = policy.keep_successes if status == "success" else policy.keep_failures
    return age is not None and stored_at < now - age


def sample_run(history: History, rate: float) -> History | None:
    """Return what remains of a run at this sample rate for simple successes; None if nothing does.

    A run without failures is retained or removed as a whole. In other runs these steps remain: failures, all attempts
    of a retried call, recovering calls, the calls in between, and the parents of all these. The choice is a hash of the
    record's id, so sampling again gives the same result.
    """
    if rate >= 1 or history.run.end_reason is None:
        return history
    status = derive_status(history.run, history.steps, history.links)
    if status == "success":
        if _hash_fraction(history.run.id) >= rate:
            return None
        return msgspec.structs.replace(history, steps=tuple(_with_sample_rate(step, rate) for step in history.steps))
    required_seqs = _steps_to_keep(history)
    steps = tuple(
        step if step.seq in required_seqs else _with_sample_rate(step, rate)
        for step in history.steps
        if step.seq in required_seqs or _hash_fraction(f"{step.run}:{step.seq}") < rate
    )
    return msgspec.structs.replace(history, steps=steps)


def _with_sample_rate(step: Step, rate: float) -> Step:
    return step if step.sample_rate <= rate else msgspec.structs.replace(step, sample_rate=rate)


def _hash_fraction(name: str) -> float:
    return crc32(name.encode("utf-8", "surrogatepass")) / 2**32


def _steps_to_keep(history: History) -> set[int]:
    """Return the seq numbers of the steps that sampling must not remove."""
    calls = group_attempts(history.steps)
    recovering_calls = {link.recovering_call for link in history.links}
    required_calls = [
        call
        for call in calls
        if len(call.steps) > 1 or not _is_simple_success(call.first) or call.id in recovering_calls
    ]
    for link in history.links:
        names = set(link.intermediate_tools)
        for call in calls:
            if link.failed_call < call.id and call.name in names and call.has_succeeded:
                names.discard(call.name)
                required_calls.append(call)
    required_seqs = {step.seq for call in required_calls for step in call.steps}
    parents = {step.seq: step.parent for step in history.steps}
    for seq in tuple(required_seqs):
        parent = parents.get(seq)
        while parent is not None and parent not in required_seqs:
            required_seqs.add(parent)
            parent = parents.get(parent)
    return required_seqs


def _is_simple_success(step: Step) -> bool:
    return step.outcome == "success" and step.failure is None and step.type != "run"


# Execution


class PruneRound:
    """One execution of a retention policy, for SQLite. Other databases measure their space in another way."""

    def __init__(self, writing: Using, reading: Using, tenant: str, policy: Retention, now: int) -> None:
        self._writing, self._reading = writing, reading
        self._tenant, self._policy, self._now = tenant, policy, now
        self._sample_cutoff = self._cutoff(policy.sample_after if policy.sample < 1 else None)
        self._compress_cutoff = self._cutoff(policy.compress_after)
        ages = (policy.keep_failures, policy.keep_successes)
        self._latest_cutoff = max(self._sample_cutoff, self._compress_cutoff, *map(self._cutoff, ages))
        """Runs that were stored later are too recent for every rule."""
        self.runs = self.steps = self.sampled = self.compressed = self.counters = 0
        self._message_uses: dict[str, int] = {}
        """Of a preview: how many uses the messages of removed runs have left, by digest."""

    def _cutoff(self, age: int | None) -> int:
        return NO_CUTOFF_MS if age is None else self._now - age

    def total_bytes(self, connection: Connection) -> int:
        return _read_pragma(connection, "page_count") * _read_pragma(connection, "page_size")

    def used_bytes(self, connection: Connection) -> int:
        """Return the size in bytes without free space."""
        free_bytes = _read_pragma(connection, "freelist_count") * _read_pragma(connection, "page_size")
        return self.total_bytes(connection) - free_bytes

    def on_run_removed(self, history: History, message_bytes: int) -> None:
        """Record that a run was deleted, for databases that do not report free space immediately."""

    def preview(self, progress: Progress | None = None) -> PruneResult:
        with self._reading() as connection:
            before = self.total_bytes(connection)
            expired_bytes = 0
            for row in self._iterate_runs(connection, self._latest_cutoff, progress):
                if self._is_expired(row):
                    expired_bytes += self._measure_removed(connection, row)
                elif row.stored_at < self._sample_cutoff:
                    self._sample(self._history(connection, row))
            self.counters = self._expire_hourly_rollups(connection, "SELECT count(*)").fetchone()[0]
            if self._policy.max_size is not None:
                self._preview_size(connection, before - expired_bytes - self._policy.max_size)
        return self._build_result(before, before)

    def perform(self, progress: Progress | None = None) -> PruneResult:
        with self._reading() as connection:
            before = self.total_bytes(connection)
        self._by_age(progress)
        if self._policy.max_size is not None:
            self._by_size(self._policy.max_size)
        with self._writing(self._tenant) as writer:
            rollups.fold(writer, self._tenant)
            self.counters = self._expire_hourly_rollups(writer, "DELETE").rowcount
            self._forget_sessions(writer)
        with self._reading() as connection:
            return self._build_result(before, self.used_bytes(connection))

    def _build_result(self, before: int, after: int) -> PruneResult:
        return PruneResult(self.runs, self.steps, self.sampled, self.compressed, self.counters, before, after)

    # Runs

    def _iterate_runs(
        self, connection: Connection, until: int, progress: Progress | None = None, after: int = 0
    ) -> Iterator[RunRow]:
        (total,) = connection.execute("SELECT count(*) FROM runs WHERE tenant = ?", (self._tenant,)).fetchone()
        visited_count = 0
        while rows := runs_since(connection, self._tenant, after):
            for row in rows:
                after = row.rowid
                if row.stored_at >= until:
                    return
                if not row.imported or self._policy.include_imported:
                    yield row
            visited_count += len(rows)
            if progress is not None:
                progress(visited_count, total)

    def _history(self, connection: Connection, row: RunRow) -> History:
        return history_of(connection, self._tenant, decode_body(row.body, Run))

    def _measure_removed(self, connection: Connection, row: RunRow) -> int:
        """Count a run as removed. Return how many bytes that would free, estimated."""
        run_key = (self._tenant, row.id)
        sql = "SELECT count(*), coalesce(sum(length(body)), 0) FROM steps WHERE tenant = ? AND run = ?"
        count, size = connection.execute(sql, run_key).fetchone()
        self._count_removed(count)
        size += 300 + 200 * count
        digests = connection.execute("SELECT digest FROM run_messages WHERE tenant = ? AND run = ?", run_key).fetchall()
        for (digest,) in digests:
            size += MESSAGE_USE_BYTES
            if digest not in self._message_uses:
                sql = "SELECT count(*) FROM run_messages WHERE tenant = ? AND digest = ?"
                (self._message_uses[digest],) = connection.execute(sql, (self._tenant, digest)).fetchone()
            self._message_uses[digest] -= 1
            if not self._message_uses[digest]:  # a message goes with the last run that has it
                sql = "SELECT length(body) FROM messages WHERE tenant = ? AND digest = ?"
                (body_bytes,) = connection.execute(sql, (self._tenant, digest)).fetchone() or (0,)
                size += body_bytes + MESSAGE_USE_BYTES
        return int(size)

    def _is_expired(self, row: RunRow) -> bool:
        return is_expired(row.status, row.stored_at, self._policy, self._now)

    def _count_removed(self, steps: int) -> None:
        self.runs, self.steps = self.runs + 1, self.steps + steps

    def _sample(self, history: History) -> History | None:
        """Sample a run, count the removed steps and return the remaining history; None if nothing remains."""
        remaining_history = sample_run(history, self._policy.sample)
        self.sampled += len(history.steps) - (len(remaining_history.steps) if remaining_history is not None else 0)
        return remaining_history

    # By age

    def _by_age(self, progress: Progress | None) -> None:
        after = 0
        is_done = False
        while not is_done:
            # A separate transaction per round, resuming after the last row: other writers get their turn in between.
            with self._writing(self._tenant) as writer:
                budget = MAX_ROWS_PER_TRANSACTION
                is_done = True
                # Skip runs that an earlier execution has sampled and compressed.
                sampling_rule = f"{self._policy.sample} {self._policy.include_imported}"
                earlier, _, last_rowid = read_meta(writer, self._tenant, "tidied").rpartition(" ")
                tidied = int(last_rowid) if earlier == sampling_rule else 0
                for row in self._iterate_runs(writer, self._latest_cutoff, after=after):
                    if budget <= 0:
                        is_done = False
                        break
                    after = row.rowid
                    if self._is_expired(row):
                        budget -= self._remove(writer, row)
                    elif row.rowid > tidied:
                        budget -= self._tidy(writer, row)
                        is_sampled = self._policy.sample >= 1 or row.stored_at < self._sample_cutoff
                        if is_sampled and row.stored_at < self._compress_cutoff:
                            write_meta(writer, self._tenant, "tidied", f"{sampling_rule} {row.rowid}")
                sql = "SELECT coalesce(max(rowid), 0) FROM runs WHERE tenant = ?"
                (total,) = writer.execute(sql, (self._tenant,)).fetchone()
            if progress is not None:
                progress(total if is_done else after, total)

    def _tidy(self, writer: Connection, row: RunRow) -> int:
        """Sample and compress a run that is not expired. Return the approximate number of affected rows."""
        rows = 1
        if row.stored_at < self._sample_cutoff:
            history = self._history(writer, row)
            remaining_history = self._sample(history)
            if remaining_history is None:
                return self._delete_run(writer, history)
            if remaining_history != history:
                rows += len(history.steps)
                self._note_horizon(writer, history)
                delete_callees(writer, self._tenant, history)
                replace_steps(writer, self._tenant, row.id, remaining_history.steps)
                changes = CounterChanges()
                changes.add_used_names(history.run, remaining_history.steps)
                changes.write_usages(writer, self._tenant)
                replace_facts(writer, self._tenant, [remaining_history])
        if row.stored_at < self._compress_cutoff:
            packed = self._pack(writer, row.id)
            self.compressed, rows = self.compressed + packed, rows + packed
        return rows

    def _pack(self, writer: Connection, run: str) -> int:
        """Compress the steps of a run. Return how many became smaller."""
        run_key = (self._tenant, run)
        rows = writer.execute(
            f"SELECT {', '.join(STEP.columns)} FROM steps WHERE tenant = ? AND run = ? ORDER BY seq", run_key
        ).fetchall()
        packed = [(*row[:-1], compress(row[-1])) for row in rows]
        count = sum(len(new[-1]) < len(old[-1]) for new, old in zip(packed, rows, strict=True))
        if count:
            # Delete and insert instead of updating in place, which would leave partly filled pages.
            writer.execute("DELETE FROM steps WHERE tenant = ? AND run = ?", run_key)
            writer.put(STEP, packed)
        return count

    def _remove(self, writer: Connection, row: RunRow) -> int:
        """Delete an expired run. Return the number of deleted rows."""
        history = self._history(writer, row)
        self._count_removed(len(history.steps))
        return self._delete_run(writer, history)

    def _delete_run(self, writer: Connection, history: History) -> int:
        """Delete a run with its rows. The counters of its patterns do not change.

        Return the approximate number of deleted rows.
        """
        self._note_horizon(writer, history)
        pattern_ids = {
            pattern_counts.id_of(step.name, step.failure.fingerprint) if step.failure.fingerprint else ""
            for step in history.steps
            if step.has_failed and step.failure
        }
        run = history.run
        writer.executemany(
            "DELETE FROM run_failures WHERE tenant = ? AND pattern = ? AND started_at = ? AND run = ?",
            [(self._tenant, id, run.started_at, run.id) for id in pattern_ids],
        )
        message_bytes = remove_run(writer, self._tenant, history)
        self.on_run_removed(history, message_bytes)
        return 1 + len(history.steps) + message_bytes // 500  # estimated size of a recorded message

    def _note_horizon(self, writer: Connection, history: History) -> None:
        """Store the time up to which counters cover more than the remaining rows."""
        self._note_until(writer, max([history.run.started_at, *(step.started_at for step in history.steps)]))

    def _note_until(self, writer: Connection, last: int) -> None:
        if last >= int(read_meta(writer, self._tenant, "pruned") or -1):
            write_meta(writer, self._tenant, "pruned", str(last))

    # By size

    def _by_size(self, size: int) -> None:
        """Delete the oldest runs, successful ones first, until the used space fits the limit."""
        for is_any in (False, True):
            after = 0
            while True:
                with self._reading() as connection:
                    if self.used_bytes(connection) <= size:
                        return
                with self._writing(self._tenant) as writer:
                    rows = runs_since(writer, self._tenant, after, 100)
                    budget = MAX_ROWS_PER_TRANSACTION
                    for row in rows:
                        if budget <= 0:
                            break  # large runs: check the size again before the next ones
                        after = row.rowid
                        if (is_any or row.status == "success") and (not row.imported or self._policy.include_imported):
                            budget -= self._remove(writer, row)
                if not rows:
                    break

    def _preview_size(self, connection: Connection, excess: int) -> None:
        """Estimate how many of the oldest runs have to go to save this many bytes."""
        for is_any in (False, True):
            for row in self._iterate_runs(connection, 2**62):
                if excess <= 0:
                    return
                if (row.status == "success") != is_any and not self._is_expired(row):
                    excess -= self._measure_removed(connection, row)

    # Counters and sessions

    def _expire_hourly_rollups(self, connection: Connection, statement: str) -> Rows:
        # A query by the hour may subtract the first hours of a day from its daily counters, so the hours of one extra
        # day must remain.
        age = self._policy.keep_hourly
        age = None if age is None else max(age, counters.HOURS + counters.DAY)
        sql = f"{statement} FROM rollups WHERE tenant = ? AND grain = 'hour' AND bucket < ?"
        return connection.execute(sql, (self._tenant, self._cutoff(age)))

    def _forget_sessions(self, writer: Connection) -> None:
        """Delete session entries that were inactive for longer than failed runs are retained.

        Entries of coding agents contain the time of their last activity. For other sessions the time of the last
        failure counts.
        """
        sql = "SELECT key, value FROM key_values WHERE tenant = ? AND kind = ?"
        last_activity = {
            key: _read_last_activity(value)
            for kind in ("session", "hook")
            for key, value in writer.execute(sql, (self._tenant, kind)).fetchall()
        }
        until = self._cutoff(self._policy.keep_failures)
        writer.executemany(
            "DELETE FROM key_values WHERE tenant = ? AND kind IN ('session', 'hook') AND key = ?",
            [(self._tenant, key) for key, at in last_activity.items() if at < until],
        )


def _read_pragma(connection: Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


class _SessionActivity(msgspec.Struct):
    """The fields of a session entry that tell when the session was last active."""

    at: int | None = None
    failures: list[dict[str, Any]] = []


def _read_last_activity(value: bytes) -> float:
    """Return when a session was last active; infinity for an entry that cannot be parsed, so that it is retained."""
    try:
        last = msgspec.json.decode(value, type=_SessionActivity)
        at = last.at if last.at is not None else last.failures[-1]["step"]["started_at"] if last.failures else None
    except (msgspec.DecodeError, KeyError, TypeError):
        return float("inf")
    return at if isinstance(at, int) else float("inf")
