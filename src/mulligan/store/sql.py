"""Base class of the database stores: queries and changes in SQL that SQLite and PostgreSQL share.

Connections, migrations and cleanup are in `sqlite.py` and `postgres/`.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from mulligan.contract import audit
from mulligan.contract.counters import Stats, StatsQuery
from mulligan.contract.search_terms import SearchTerm, SearchTextError, contains_terms, parse_search
from mulligan.contract.store import (
    HASH_KEY,
    PATTERN_HISTORY_KIND,
    AuditEntry,
    AuditNote,
    AuditQuery,
    Batch,
    ConsolidationResult,
    FixQuery,
    ForgetRequest,
    ForgetResult,
    LessonQuery,
    ListedResource,
    PatternCommand,
    PatternQuery,
    Progress,
    PruneResult,
    RecallQuery,
    Retention,
    Revocation,
    RevokeResult,
    RunQuery,
    SessionQuery,
    SessionSummary,
    TrialReport,
    Worker,
)
from mulligan.core.events import AnyEvent, ContextCompacted
from mulligan.core.records import (
    Fix,
    History,
    Lesson,
    LessonSource,
    LessonVerdict,
    Pattern,
    Precedent,
    Run,
    Step,
    ValueProfile,
    encode,
)
from mulligan.learn import fixes, patterns
from mulligan.learn.pattern_decisions import PatternDecision, add_event, apply_command
from mulligan.learn.working_calls import PastFailure
from mulligan.store import database_lessons, fix_queries, queries, rollups, rows, run_texts
from mulligan.store.connection import ConcurrentAppendError, Connection, Insert, Lookup, RowReader, upsert
from mulligan.store.fix_votes import SketchCache
from mulligan.store.rows import decode_body
from mulligan.store.sent_records import needs_numbers, number_steps
from mulligan.store.tables import TABLE_NAMES
from mulligan.store.writer import BatchWriter, runs_of

if TYPE_CHECKING:
    from mulligan.store.retention import PruneRound

T = TypeVar("T")


_POSITION_LOOKUP = Lookup.of("journals", "tenant journal", "position", is_locking=True)
_POSITION_INSERT = Insert.of(
    "journals",
    "tenant journal position",
    "ON CONFLICT (tenant, journal) DO UPDATE SET position = excluded.position "
    "WHERE journals.position < excluded.position",
)
_RUN_LOOKUP = Lookup.of("runs", "tenant id", "body")
_UPSERT_DECISION_SQL = upsert("pattern_decisions", "tenant id", "body")
_SELECT_ENTRY_SQL = "SELECT value FROM key_values WHERE tenant = ? AND kind = ? AND key = ?"
_UPSERT_ENTRY_SQL = upsert("key_values", "tenant kind key", "value")


class _PreviewEndError(Exception):
    """End of a transaction whose changes were only counted. It rolls them back."""


class DatabaseStore(abc.ABC):
    """Store with one write connection and several read connections."""

    _can_fold_case = True
    """Whether the database can search text case-insensitively."""

    def __init__(self, clock: Callable[[], int], journals: Path | None = None) -> None:
        """`journals` is the folder of local journals, from which erased records are removed, too."""
        self._clock = clock
        self._journals = journals
        self.batch_writer = BatchWriter()
        self._sketch_cache = SketchCache()

    @abc.abstractmethod
    def write_transaction(self, *tenants: str) -> contextlib.AbstractContextManager[Connection]:
        """Open a write transaction, exclusive for these tenants."""

    def append_transaction(self, *tenants: str) -> contextlib.AbstractContextManager[Connection]:
        """Open a transaction for batches, beside those of other processes where the database allows that."""
        return self.write_transaction(*tenants)

    @abc.abstractmethod
    def read_connection(self, tenant: str) -> contextlib.AbstractContextManager[Connection]:
        """Borrow a read connection for this tenant."""

    def _reading_stale(self, tenant: str) -> contextlib.AbstractContextManager[Connection]:
        """Borrow a read connection for queries that tolerate slightly stale data."""
        return self.read_connection(tenant)

    def ask(self, tenant: str, question: Callable[[Connection], T], is_own: bool = False) -> T:
        """Answer a question by one or several queries, in one transaction where the database has any for reading.

        With `is_own`, the connection sees all writes of this process.
        """
        with self.read_connection(tenant) if is_own else self._reading_stale(tenant) as connection:
            return question(connection)

    def ask_rows(self, tenant: str, question: Callable[[RowReader], T]) -> T:
        """The same with a reader of rows."""
        return self.ask(tenant, lambda connection: question(RowReader(connection)))

    def read_rows(self, tenant: str, sql: str, values: Iterable[Any] = (), is_own: bool = False) -> list[Any]:
        return self.ask(tenant, lambda connection: connection.execute(sql, tuple(values)).fetchall(), is_own)

    def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int, principal: str = "") -> int:
        return self.append_all([Batch(tenant, batch, journal, offset, principal)])[0]

    def append_all(self, batches: Sequence[Batch]) -> list[int]:
        tenants = {batch.tenant for batch in batches}
        try:
            with self.append_transaction(*tenants) as writer:
                return self._append_batches(writer, batches)
        except ConcurrentAppendError:
            with self.write_transaction(*tenants) as writer:
                return self._append_batches(writer, batches)

    def _append_batches(self, writer: Connection, batches: Sequence[Batch]) -> list[int]:
        """Store batches by tenant: one waits for its tenant's turn, and no two processes may wait for each other."""
        counts = [0] * len(batches)
        indices = sorted(range(len(batches)), key=lambda index: batches[index].tenant)
        for tenant, tenant_indices in itertools.groupby(indices, key=lambda index: batches[index].tenant):
            writer.select_tenant(tenant)
            new_indices = _advance_offsets(writer, tenant, [(index, batches[index]) for index in tenant_indices])
            for merged_indices in _merge_batches([(index, batches[index]) for index in new_indices]):
                is_imported = batches[merged_indices[0]].is_imported
                merged, sent_runs = [], set[str]()
                for index in merged_indices:
                    batch = batches[index]
                    if batch.numbered_events is not None:
                        if needs_numbers(batch.events) and not writer.is_exclusive:
                            raise ConcurrentAppendError
                        batch.numbered_events[:] = number_steps(writer, tenant, batch.events)
                        sent_runs |= runs_of(batch.events)
                    events = batch.stored_events
                    if is_imported:
                        from mulligan.store import erasure  # lazy import: write-only processes start faster

                        events = erasure.drop_forgotten(writer, tenant, events)
                    merged.append((events, batch.principal))
                new_counts = self.batch_writer.append_merged(
                    writer, tenant, merged, self._clock(), is_imported, sent_runs
                )
                for index, count in zip(merged_indices, new_counts, strict=True):
                    counts[index] = count
        return counts

    def offset(self, tenant: str, journal: str) -> int:
        sql = "SELECT position FROM journals WHERE tenant = ? AND journal = ?"
        rows = self.read_rows(tenant, sql, (tenant, journal), is_own=True)
        return int(rows[0][0]) if rows else 0

    def journals(self, tenant: str) -> list[str]:
        rows = self.read_rows(tenant, "SELECT journal FROM journals WHERE tenant = ?", (tenant,), is_own=True)
        return [journal for (journal,) in rows]

    def release(self, tenant: str, journals: Sequence[str]) -> None:
        with self.write_transaction(tenant) as writer:
            sql = "DELETE FROM journals WHERE tenant = ? AND journal = ?"
            writer.executemany(sql, [(tenant, journal) for journal in journals])

    def runs(self, tenant: str, query: RunQuery) -> list[History]:
        terms = None if query.text is None else parse_search(query.text, self.get(tenant, *HASH_KEY) or b"")

        def find_histories(connection: Connection) -> list[History]:
            read = RowReader(connection)
            pattern = (
                queries.find_pattern(read, tenant, query.pattern, self._clock()) if query.pattern is not None else None
            )
            if query.limit <= 0 or (query.pattern is not None and pattern is None):
                return []
            pattern_ids = {pattern.id, *pattern.merged} if pattern is not None else set()
            if terms is not None:
                return self._search_runs(connection, tenant, query, terms, pattern_ids)
            runs = queries.find_runs(read, tenant, query, pattern_ids)
            return [rows.history_of(connection, tenant, run) for run in runs]

        if query.min_facts or query.order != "started":
            self._complete_facts(tenant)
        return self.ask(tenant, find_histories)

    def _search_runs(
        self,
        connection: Connection,
        tenant: str,
        query: RunQuery,
        terms: Sequence[SearchTerm],
        pattern_ids: set[str],
    ) -> list[History]:
        """Return the histories, with their messages, of the runs that contain the terms."""
        included_terms = [term for term in terms if not term.is_excluded]
        proposed_runs = self._propose_runs(connection, tenant, included_terms)
        page = msgspec.structs.replace(query, limit=max(run_texts.MIN_PAGE_RUNS, query.limit))
        matches: list[History] = []
        read_count = 0
        while read_count < proposed_runs.max_runs:
            runs = queries.find_runs(RowReader(connection), tenant, page, pattern_ids, proposed_runs)
            texts = run_texts.read_texts(connection, tenant, {run.id: encode(run) for run in runs})
            for run in runs:
                if run_texts.may_match(texts[run.id], terms):
                    history = run_texts.read_history(connection, tenant, run)
                    if contains_terms(history, terms):
                        matches.append(history)
            if len(matches) >= query.limit or len(runs) < page.limit:
                return matches[: query.limit]
            last_history = run_texts.read_history(connection, tenant, runs[-1])
            read_count += len(runs)
            # Twice as many: the database evaluates the condition again for each page.
            limit = min(2 * page.limit, proposed_runs.max_runs - read_count)
            page = msgspec.structs.replace(page, limit=limit, before=query.position_of(last_history))
        raise SearchTextError(run_texts.BROAD_SEARCH.format(read_count))

    @abc.abstractmethod
    def _propose_runs(self, connection: Connection, tenant: str, terms: Sequence[SearchTerm]) -> queries.ProposedRuns:
        """Return the runs that may contain these terms: by the index, or not indexed yet."""

    @abc.abstractmethod
    def update_search(self, tenant: str, progress: Progress | None = None) -> int:
        """Index the ended runs of a tenant for searches. Return their number. Runs that no index covers are read."""

    @abc.abstractmethod
    def clear_search(self, tenant: str) -> None:
        """Empty the search index, of all tenants if they share it. The next update builds it again."""

    def _complete_facts(self, tenant: str) -> None:
        """Compute the facts of runs that an earlier version stored or continued."""
        outdated_ids = self.ask(tenant, lambda connection: rows.find_outdated_facts(connection, tenant), is_own=True)
        if outdated_ids:
            with self.write_transaction(tenant) as writer:
                rows.set_facts_states(writer, tenant, [(rows.FactsState.MISSING, id) for id in outdated_ids])
        missing_sql = "SELECT 1 FROM runs WHERE tenant = ? AND facts_state <> 1 AND facts_state = 0 LIMIT 1"
        while self.read_rows(tenant, missing_sql, (tenant,), is_own=True):
            with self.write_transaction(tenant) as writer:
                rows.complete_facts(writer, tenant)

    def run(self, tenant: str, id: str) -> History | None:
        def read_history(connection: Connection) -> History | None:
            sql = "SELECT body, stored_at FROM runs WHERE tenant = ? AND id = ?"
            row = connection.execute(sql, (tenant, id)).fetchone()
            if row is None:
                return None
            connection.remember_runs(tenant, {id: row[1]})
            return _read_history(connection, tenant, row[0])

        return self.ask(tenant, read_history)

    def sessions(self, tenant: str, query: SessionQuery) -> list[SessionSummary]:
        return self.ask_rows(tenant, lambda read: queries.find_sessions(read, tenant, query))

    def runs_by_id(self, tenant: str, ids: Sequence[str]) -> dict[str, Run]:
        keys = [(tenant, id) for id in ids]
        rows = self.ask(tenant, lambda connection: connection.look_up(_RUN_LOOKUP, keys))
        return {id: decode_body(body, Run) for _, id, body in rows}

    def ended_runs(self, tenant: str, ids: Sequence[str]) -> set[str]:
        return {id for id, run in self.runs_by_id(tenant, ids).items() if run.end_reason is not None}

    def find(self, tenant: str, prefix: str, limit: int = 5) -> list[Run]:
        return self.ask_rows(tenant, lambda read: queries.find_runs_by_prefix(read, tenant, prefix, max(limit, 0)))

    def find_ids(self, tenant: str, resource: ListedResource, prefix: str, limit: int = 5) -> list[str]:
        sql = f"SELECT id FROM {resource} WHERE tenant = ? AND id >= ? AND id < ? AND substr(id, 1, ?) = ? "
        values = (tenant, prefix, prefix + "\U0010ffff", len(prefix), prefix, max(limit, 0))
        return [id for (id,) in self.read_rows(tenant, f"{sql}ORDER BY id LIMIT ?", values)]

    def export(self, tenant: str, since: int = 0) -> Iterator[History]:
        after: tuple[int, str] = (since, "")
        sql = "SELECT body FROM runs WHERE tenant = ? AND (started_at, id) > (?, ?) ORDER BY started_at, id LIMIT ?"
        while run_rows := self.read_rows(tenant, sql, (tenant, *after, 500)):  # runs that one statement reads
            for (body,) in run_rows:
                history = self.ask(tenant, partial(_read_history, tenant=tenant, run_body=body))
                after = (history.run.started_at, history.run.id)
                yield history

    def prune(
        self, tenant: str, policy: Retention, now: int, dry_run: bool = False, progress: Progress | None = None
    ) -> PruneResult:
        pruner = self._prune_round_type()(
            self.write_transaction, partial(self.read_connection, tenant), tenant, policy, now
        )
        if dry_run:
            return pruner.preview(progress)
        pruned = pruner.perform(progress)
        with self.write_transaction(tenant) as writer:  # pruning itself uses many transactions
            if pruned.runs or pruned.sampled:
                summary = audit.format_counts(runs=pruned.runs, steps=pruned.steps + pruned.sampled)
                self._insert_audit_entry(writer, tenant, "prune", detail=summary)
                run_texts.count_erasure(writer, tenant)
            self.batch_writer.drop_cache()
        self._release_space(pruner, now)
        return pruned

    def _prune_round_type(self) -> type[PruneRound]:
        from mulligan.store.retention import PruneRound  # lazy import: write-only processes start faster

        return PruneRound

    def forget(self, tenant: str, request: ForgetRequest) -> ForgetResult:
        from mulligan.store import erasure  # lazy import: write-only processes start faster

        action = f"forget.{request.validate()}"
        with self.write_transaction(tenant) as writer:
            self._lift_time_limit(writer)
            eraser = erasure.Eraser(writer, tenant, request)
            forgotten = eraser.perform()
            self.batch_writer.drop_cache()
            # The audit log tells how much was erased, never what.
            counts = msgspec.structs.asdict(forgotten)
            counts["notes"] = counts.pop("key_value_entries")
            self._insert_audit_entry(writer, tenant, action, detail=audit.format_counts(**counts))
            run_texts.count_erasure(writer, tenant)
        self._overwrite_erased()
        if self._journals is not None:
            erasure.scrub_journals(self._journals, request, eraser.removed_run_ids)
        return forgotten

    def preview_forget(self, tenant: str, request: ForgetRequest) -> ForgetResult:
        from mulligan.store import erasure  # lazy import: write-only processes start faster

        request.validate()
        previews: list[ForgetResult] = []
        with contextlib.suppress(_PreviewEndError), self.write_transaction(tenant) as writer:
            self._lift_time_limit(writer)
            previews.append(erasure.Eraser(writer, tenant, request).perform())
            raise _PreviewEndError
        return previews[0]

    def erase(self, tenant: str) -> int:
        with self.write_transaction(tenant) as writer:
            self.batch_writer.drop_cache()
            tables = [name for name in TABLE_NAMES if name != "audit"]
            erasures = run_texts.read_erasures(writer, tenant)
            delete = "DELETE FROM {} WHERE tenant = ?"
            deleted = {name: writer.execute(delete.format(name), (tenant,)).rowcount for name in tables}
            del deleted["meta"]  # the store's own notes, one of which is written below
            if erased := sum(deleted.values()):
                self._insert_audit_entry(writer, tenant, "tenant.erase", detail=audit.format_counts(rows=erased))
            run_texts.count_erasure(writer, tenant, erasures)
        self._overwrite_erased()
        return erased

    def _lift_time_limit(self, writer: Connection) -> None:  # noqa: B027 - one database needs it
        """Allow statements of this transaction to scan whole tables."""

    def _release_space(self, pruner: PruneRound, now: int) -> None:  # noqa: B027 - not every database needs it
        """Return the space of pruned rows to the system."""

    def _overwrite_erased(self) -> None:  # noqa: B027 - one database needs it
        """Remove erased rows from the files of the database."""

    def _count_records(self, tenant: str) -> tuple[int, int]:
        """Count runs and steps, for `health`."""
        sql = "SELECT (SELECT count(*) FROM runs WHERE tenant = ?1), (SELECT count(*) FROM steps WHERE tenant = ?1)"
        ((runs, steps),) = self.read_rows(tenant, sql, (tenant,), is_own=True)
        return runs, steps

    def workers(self) -> Sequence[Worker]:
        """Return the servers of a distributed database."""
        return ()

    def unavailable_workers(self) -> Sequence[str]:
        """Return the names of those that did not answer when they were used last."""
        return ()

    def find_worker(self, tenant: str) -> str | None:
        """Return the name of the one that stores the rows of this tenant; None if all are in one database."""
        return None

    def recall(self, tenant: str, query: RecallQuery) -> list[Precedent]:
        return self.ask_rows(tenant, lambda read: fix_queries.find_precedents(read, tenant, query))

    def past_failures(self, tenant: str, failed: Step, run_suffix: str) -> list[PastFailure]:
        """Return the same failure in other runs whose id ends so, each with what recovered it."""
        return self.ask_rows(tenant, lambda read: fix_queries.find_past_failures(read, tenant, failed, run_suffix))

    def fixes(self, tenant: str, query: FixQuery) -> list[Fix]:
        return self.ask_rows(
            tenant,
            lambda read: fix_queries.answer_query(read, tenant, query, time.monotonic, self._find_similar_patterns),
        )

    def value_profiles(self, tenant: str, tool: str, key: str = "") -> list[ValueProfile]:
        return self.ask_rows(tenant, lambda read: fix_queries.find_value_profiles(read, tenant, tool, key))

    def _find_similar_patterns(
        self, read: RowReader, tenant: str, tool: str, text: str, stamp: int
    ) -> list[tuple[float, str]]:
        return self._sketch_cache.get_sketches(read, tenant, tool, stamp).nearest(text)

    def evidence(self, tenant: str, fix: str, limit: int = 100) -> list[TrialReport]:
        return self.ask_rows(tenant, lambda read: fix_queries.find_trial_reports(read, tenant, fix, max(limit, 0)))

    def record_outcome(self, tenant: str, fix: str, report: TrialReport) -> bool:
        with self.write_transaction(tenant) as writer:
            # A reporting principal counts as active.
            now = self._clock()
            fix_queries.update_principal(writer, tenant, report.principal, now)
            return fix_queries.add_reported_vote(writer, tenant, fix, fixes.Vote.from_report(report, now))

    def decide(self, tenant: str, fix: str, approved: bool, at: int) -> bool:
        with self.write_transaction(tenant) as writer:
            has_fix = fix_queries.store_decision(writer, tenant, fix, approved, at)
            if has_fix:
                self._insert_audit_entry(writer, tenant, "fix.approve" if approved else "fix.revoke", fix)
            return has_fix

    def revoke(self, tenant: str, revocation: Revocation) -> RevokeResult:
        with self.write_transaction(tenant) as writer:
            revoked = fix_queries.revoke(writer, tenant, revocation)
            detail = audit.format_fields(principal=revocation.principal, tool=revocation.tool, since=revocation.since)
            self._insert_audit_entry(writer, tenant, "memory.revoke", detail=detail)
            return revoked

    def lessons(self, tenant: str, query: LessonQuery) -> list[Lesson]:
        return self.ask_rows(tenant, lambda read: database_lessons.find_lessons(read, tenant, query))

    def lesson(self, tenant: str, id: str, now: int = 0) -> Lesson | None:
        return self.ask_rows(tenant, lambda read: database_lessons.find_lesson(read, tenant, id, now or self._clock()))

    def save_lesson(self, tenant: str, lesson: Lesson) -> bool:
        return self.save_lessons(tenant, [lesson])[0]

    def save_lessons(self, tenant: str, lessons: Sequence[Lesson]) -> list[bool]:
        with self.write_transaction(tenant) as writer:
            are_new = [database_lessons.save_lesson(writer, tenant, lesson, self._clock()) for lesson in lessons]
            if target_and_detail := audit.describe_saved_lessons(lessons, are_new):
                self._insert_audit_entry(writer, tenant, "lesson.write", *target_and_detail)
            return are_new

    def remove_lessons(self, tenant: str, source: LessonSource) -> int:
        with self.write_transaction(tenant) as writer:
            removed = database_lessons.remove_by_source(writer, tenant, source)
            if removed:
                self._insert_audit_entry(writer, tenant, "lesson.remove", source, audit.format_counts(lessons=removed))
            return removed

    def decide_lesson(self, tenant: str, id: str, decision: LessonVerdict, at: int) -> Lesson | None:
        with self.write_transaction(tenant) as writer:
            lesson_id = database_lessons.record_decision(writer, tenant, id, decision, at)
            if lesson_id is not None:
                self._insert_audit_entry(writer, tenant, f"lesson.{decision}", lesson_id)
        return self.lesson(tenant, lesson_id, at) if lesson_id is not None else None

    def consolidate(
        self, tenant: str, now: int, progress: Progress | None = None, max_patterns: int | None = None
    ) -> ConsolidationResult:
        ask = partial(self.ask_rows, tenant)
        return database_lessons.consolidate(ask, self.write_transaction, tenant, now, progress, max_patterns)

    def patterns(self, tenant: str, query: PatternQuery) -> list[Pattern]:
        return self.ask_rows(
            tenant, lambda read: queries.find_patterns(read, tenant, query, self._clock(), self._can_fold_case)
        )

    def pattern(self, tenant: str, id: str) -> Pattern | None:
        return self.ask_rows(tenant, lambda read: queries.find_pattern(read, tenant, id, self._clock()))

    def update_pattern(self, tenant: str, command: PatternCommand) -> Pattern | None:
        with self.write_transaction(tenant) as writer:
            read = RowReader(writer)
            requested_ids = filter(None, (command.pattern, command.into))
            existing_ids = [id for prefix in requested_ids if (id := queries.resolve_id(read, tenant, prefix))]
            decisions = queries.read_decisions(read, tenant)
            resolved_command = patterns.resolve_command(command, existing_ids, decisions)
            if resolved_command is None:
                return None
            command, pattern_id = resolved_command
            current = queries.find_pattern(read, tenant, pattern_id, self._clock())
            if current is None:
                return None
            decision = apply_command(command, decisions.get(pattern_id, PatternDecision()), current)
            writer.execute(_UPSERT_DECISION_SQL, (tenant, pattern_id, encode(decision)))
            transaction = StoreTransaction(writer, self.batch_writer, tenant, self._clock())
            stored_history = transaction.get(PATTERN_HISTORY_KIND, pattern_id)
            transaction.put(PATTERN_HISTORY_KIND, pattern_id, add_event(stored_history, command))
            owner = (decision.owner or "no one") if command.action == "assign" else None
            detail = audit.format_fields(into=command.into, to=owner)
            self._insert_audit_entry(writer, tenant, f"pattern.{command.action}", pattern_id, detail)
        return self.pattern(tenant, pattern_id)

    def stats(self, tenant: str, query: StatsQuery) -> Stats:
        return self.ask_rows(tenant, lambda read: rollups.stats(read, tenant, query))

    def get(self, tenant: str, kind: str, key: str) -> bytes | None:
        rows = self.read_rows(tenant, _SELECT_ENTRY_SQL, (tenant, kind, key), is_own=True)
        return bytes(rows[0][0]) if rows else None

    def put(self, tenant: str, kind: str, key: str, value: bytes) -> None:
        with self.write_transaction(tenant) as writer:
            writer.execute(_UPSERT_ENTRY_SQL, (tenant, kind, key, value))

    def compare_and_set(
        self, tenant: str, kind: str, key: str, expected: bytes | None, value: bytes,
        audit_note: AuditNote | None = None,
    ) -> bool:  # fmt: skip
        tenants = {tenant} if audit_note is None else {tenant, audit_note.tenant}
        with self.write_transaction(*sorted(tenants)) as writer:
            writer.select_tenant(tenant)
            transaction = StoreTransaction(writer, self.batch_writer, tenant, self._clock())
            is_unchanged = transaction.get(kind, key) == expected
            if is_unchanged:
                transaction.put(kind, key, value)
                if audit_note is not None:
                    writer.select_tenant(audit_note.tenant)
                    audit.insert_entry(writer, audit_note.tenant, audit_note.entry)
            return is_unchanged

    def keys(self, tenant: str, kind: str) -> list[str]:
        sql = "SELECT key FROM key_values WHERE tenant = ? AND kind = ? ORDER BY key"
        return [key for (key,) in self.read_rows(tenant, sql, (tenant, kind), is_own=True)]

    def audit(self, tenant: str, query: AuditQuery) -> list[AuditEntry]:
        return self.ask_rows(tenant, lambda read: audit.find_entries(read, tenant, query))

    def _insert_audit_entry(self, writer: Connection, tenant: str, do: str, target: str = "", detail: str = "") -> None:
        """Add an audit entry for a change by a person to this transaction."""
        audit.insert_entry(writer, tenant, audit.build_entry(do, self._clock(), target, detail))

    @contextlib.contextmanager
    def transaction(self, tenant: str) -> Iterator[StoreTransaction]:
        """Open an atomic transaction, serialized with writers of other processes."""
        with self.write_transaction(tenant) as writer:
            yield StoreTransaction(writer, self.batch_writer, tenant, self._clock())


def _read_history(connection: Connection, tenant: str, run_body: bytes) -> History:
    history = rows.history_of(connection, tenant, decode_body(run_body, Run))
    if not any(step.messages or step.answer is not None for step in history.steps):
        return history
    return msgspec.structs.replace(history, messages=rows.messages_of(connection, tenant, history.run.id))


def _advance_offsets(writer: Connection, tenant: str, batches: list[tuple[int, Batch]]) -> list[int]:
    """Advance the journals of these batches. Return the numbers of those that were not applied before.

    Journal positions only grow: a batch that was applied before is skipped. One without a journal never is.
    """
    if len(batches) == 1:
        [(number, batch)] = batches
        row = (tenant, batch.journal, batch.offset)
        is_new = not batch.journal or (batch.offset > 0 and writer.put(_POSITION_INSERT, [row]) > 0)
        return [number] if is_new else []
    keys = {(tenant, batch.journal) for _, batch in batches if batch.offset > 0}
    positions = {journal: position for _, journal, position in writer.look_up(_POSITION_LOOKUP, sorted(keys))}
    new_numbers: list[int] = []
    advanced: dict[str, int] = {}
    for number, (_, _, journal, offset, *_) in batches:
        if not journal:
            new_numbers.append(number)
        elif offset > positions.get(journal, 0):
            advanced[journal] = positions[journal] = offset
            new_numbers.append(number)
    rows = [(tenant, journal, position) for journal, position in sorted(advanced.items())]
    writer.queue(_POSITION_INSERT, rows, must_be_new=True)  # another process may have just stored one of them
    return new_numbers


def _merge_batches(batches: list[tuple[int, Batch]]) -> Iterator[list[int]]:
    """Yield the numbers of batches that can be stored together, in order: no two have records of the same run."""
    merged: list[int] = []
    merged_runs: set[str] = set()
    previous: Batch | None = None
    for number, batch in batches:
        runs = runs_of(batch.events)
        has_compaction = any(isinstance(event, ContextCompacted) for event in batch.events)
        if previous is not None and (
            has_compaction or not merged_runs.isdisjoint(runs) or batch.is_imported != previous.is_imported
        ):
            yield merged
            merged, merged_runs = [], set()
        merged.append(number)
        merged_runs |= runs
        previous = None if has_compaction else batch
        if has_compaction:
            yield merged
            merged, merged_runs = [], set()
    if merged:
        yield merged


class StoreTransaction:
    """Operations within one transaction: key-value entries, and records appended without a journal."""

    def __init__(self, writer: Connection, batch_writer: BatchWriter, tenant: str, now: int) -> None:
        self._writer, self.batch_writer = writer, batch_writer
        self._tenant, self._now = tenant, now

    def get(self, kind: str, key: str) -> bytes | None:
        row = self._writer.execute(_SELECT_ENTRY_SQL, (self._tenant, kind, key)).fetchone()
        return bytes(row[0]) if row else None

    def put(self, kind: str, key: str, value: bytes) -> None:
        self._writer.execute(_UPSERT_ENTRY_SQL, (self._tenant, kind, key, value))

    def run(self, id: str) -> Run | None:
        row = self._writer.execute("SELECT body FROM runs WHERE tenant = ? AND id = ?", (self._tenant, id)).fetchone()
        return decode_body(row[0], Run) if row else None

    def append(self, batch: Sequence[AnyEvent]) -> int:
        """Store a batch. Return how many of its records were new."""
        return self.batch_writer.append(self._writer, self._tenant, batch, self._now, is_imported=False)
