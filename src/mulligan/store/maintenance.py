"""Maintenance of a database: erasing records, and recounting everything derived from the rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from mulligan.core import calls
from mulligan.core.links import derive_status, link_recoveries
from mulligan.core.records import Compaction, History, Run, Step, encode
from mulligan.learn.lessons import consolidation as lessons
from mulligan.learn.patterns import start_of_day
from mulligan.store import audit, fix_queries, pattern_counts, row_encoding, text_erasure
from mulligan.store import counters as counters_module
from mulligan.store import database_lessons as lesson_rows
from mulligan.store.base import DAY, ITEMS_KIND, ForgetRequest, ForgetResult, Revocation
from mulligan.store.connection import Connection
from mulligan.store.counters import Cell, Cells, Place
from mulligan.store.rollups import Rollups
from mulligan.store.rows import (
    BEFORE_FIRST_CALL,
    USED,
    delete_usages,
    history_of,
    links_since,
    put_links,
    read_meta,
    remove_run,
    replace_steps,
    runs_since,
    set_status,
    write_meta,
)
from mulligan.store.writer import EMPTY_SLICE, BatchWriter, CounterChanges, TrackedRun, slice_history


def summarize_result(forgotten: ForgetResult) -> str:
    """Return how much was erased, for the audit log. It never contains what was erased."""
    return audit.format_counts(
        runs=forgotten.runs, steps=forgotten.steps, patterns=forgotten.patterns, notes=forgotten.key_value_entries,
        fixes=forgotten.fixes, lessons=forgotten.lessons,
    )  # fmt: skip


class Eraser:
    """Erases a run, tool, session or text from all tables in one transaction."""

    def __init__(self, writer: Connection, ledger: BatchWriter, tenant: str, request: ForgetRequest) -> None:
        self._writer, self._ledger, self._tenant, self._request = writer, ledger, tenant, request
        self._account = CounterChanges()
        self.runs = self.steps = 0
        self.removed_run_ids: set[str] = {request.run} if request.run is not None else set()
        """Runs that are erased completely."""

    def _contains_text(self, body: Any) -> bool:
        if self._request.text is None or body is None:
            return False
        data = row_encoding.decompress(body) if isinstance(body, bytes) else str(body).encode("utf-8", "replace")
        return text_erasure.may_contain(data, self._request.text)

    def _find_containing(self, sql: str, *columns: int) -> list[Any]:
        """Return the rows that contain the text in one of these columns. Reads all before the caller changes any."""
        rows = self._writer.stream(sql, (self._tenant,))
        return [row for row in rows if any(self._contains_text(row[column]) for column in columns)]

    def perform(self) -> ForgetResult:
        if self._request.learned is not None:
            return self._forget_learned(self._request.learned)
        for id in self._find_affected_runs():
            self._forget_in(id)
        empty_pattern_ids = self._ledger.write_counters(self._writer, self._tenant, self._account)
        steps = [counted_failure.step for counted_failure in self._account.failures]
        changed_pattern_ids = {
            pattern_counts.id_of(step.name, step.failure.fingerprint)
            for step in steps
            if step.failure is not None and step.failure.fingerprint
        }
        for id in changed_pattern_ids - empty_pattern_ids:
            pattern_counts.refresh_bounds(self._writer, self._tenant, id)
        cleaned_patterns = 0
        if self._request.tool is not None:
            empty_pattern_ids |= self._forget_counted_tool(self._request.tool)
        if self._request.text is not None:
            cleaned_patterns = self._forget_counted_text(self._request.text)
            text = self._request.text
            audit.erase_from_entries(self._writer, self._tenant, lambda act: text_erasure.erase_text(act, text))
        self._forget_fixes()
        self._forget_lessons(changed_pattern_ids | empty_pattern_ids)
        for id in empty_pattern_ids:
            self._forget_pattern(id)
        entry_count = self._forget_entries()
        forgotten = ForgetResult(
            runs=self.runs,
            steps=self.steps,
            patterns=len(empty_pattern_ids) + cleaned_patterns,
            key_value_entries=entry_count,
        )
        # Other processes drop their caches before the next batch.
        write_meta(self._writer, "", "forgotten", str(int(read_meta(self._writer, "", "forgotten") or 0) + 1))
        self._ledger.drop_cache()
        return forgotten

    def _forget_learned(self, until: int) -> ForgetResult:
        """Discard fixes, lessons and item arguments, and learn no more from runs that began before this time."""
        revoked = fix_queries.revoke(self._writer, self._tenant, Revocation(until=until))
        lessons_removed = lesson_rows.remove_by_source(self._writer, self._tenant, "learned")
        (items,) = self._ask("SELECT count(*) FROM key_values WHERE tenant = ? AND kind = ?", ITEMS_KIND)[0]
        self._writer.execute("DELETE FROM key_values WHERE tenant = ? AND kind = ?", (self._tenant, ITEMS_KIND))
        return ForgetResult(fixes=revoked.fixes, lessons=lessons_removed, key_value_entries=items)

    def _ask(self, sql: str, *values: Any) -> list[Any]:
        return self._writer.execute(sql, (self._tenant, *values)).fetchall()

    def _find_affected_runs(self) -> list[str]:
        request = self._request
        if request.run is not None:
            return [request.run]
        if request.session is not None:
            return [id for (id,) in self._ask("SELECT id FROM runs WHERE tenant = ? AND session = ?", request.session)]
        if request.tool is not None:
            usage_rows = self._ask(
                "SELECT run FROM run_callees WHERE tenant = ? AND type = 'tool' AND name = ?", request.tool
            )
            orphans = self._ask("SELECT run FROM orphaned_runs WHERE tenant = ?")
            return sorted({id for (id,) in (*usage_rows, *orphans)})
        row_streams = (self._writer.stream(sql, (self._tenant,)) for sql in (
            "SELECT run, name, body FROM steps WHERE tenant = ?", "SELECT id, body FROM runs WHERE tenant = ?"
        ))  # fmt: skip
        steps, runs = row_streams
        run_ids = {id for id, *texts in steps if any(map(self._contains_text, (id, *texts)))}
        return sorted(run_ids | {id for id, body in runs if self._contains_text(body) or self._contains_text(id)})

    def _forget_in(self, id: str) -> None:
        request = self._request
        tracked_run = self._ledger.load_runs(self._writer, self._tenant, [id]).get(id)
        before = history_of(self._writer, self._tenant, tracked_run.run if tracked_run else Run(id=id))
        if request.run is not None or request.session is not None or (request.text is not None and request.text in id):
            self._forget_run(tracked_run, before)
        elif request.tool is not None:
            remaining_steps = tuple(step for step in before.steps if step.name != request.tool)
            if before.steps and not remaining_steps:
                self._forget_run(tracked_run, before)
            elif len(remaining_steps) != len(before.steps):
                self._change(tracked_run, before, before.run, remaining_steps)
        elif request.text is not None:
            run = text_erasure.erase_text(before.run, request.text)
            self._change(
                tracked_run, before, run, tuple(text_erasure.erase_text(step, request.text) for step in before.steps)
            )

    def _forget_run(self, tracked_run: TrackedRun | None, before: History) -> None:
        remove_run(self._writer, self._tenant, before)
        self.removed_run_ids.add(before.run.id)
        fix_queries.forget_run(self._writer, self._tenant, before.run.id)
        self.runs, self.steps = self.runs + (tracked_run is not None), self.steps + len(before.steps)
        if tracked_run is not None:
            self._account.add(slice_history(before), EMPTY_SLICE)
            self._account.add_run(tracked_run, None, tracked_run.status)

    def _change(self, tracked_run: TrackedRun | None, before: History, run: Run, steps: tuple[Step, ...]) -> None:
        """Replace a run and its steps by changed or fewer ones."""
        target = (self._writer, self._tenant)
        steps_by_seq = {step.seq: step for step in steps}
        self.steps += sum(steps_by_seq.get(step.seq) != step for step in before.steps)
        delete_usages(*target, before)
        replace_steps(*target, run.id, steps)
        if tracked_run is None:
            return
        rebuild_links(*target, run, steps)
        fix_queries.store_run_votes(*target, run, steps)
        if encode(run) != encode(tracked_run.run):
            self.runs += 1
            self._ledger.update_runs(*target, [run])
        after = msgspec.structs.replace(
            history_of(*target, run), links=tuple(link_recoveries(steps, run)), compactions=before.compactions
        )
        self._account.add(slice_history(before), slice_history(after))
        status = derive_status(run, steps, after.links)
        set_status(*target, run.id, status, tracked_run.is_failure_free)
        self._account.add_run(tracked_run, run, status)
        self._account.add_used_names(run, steps, set())

    def _forget_fixes(self) -> None:
        """Erase learned fixes that name the tool or contain the text, and the text from votes."""
        tool, text = self._request.tool, self._request.text
        if tool is not None:
            fix_queries.forget_matching_fixes(
                self._writer, self._tenant, lambda tally, _: tool == tally.tool or tool in tally.action.tools
            )
        elif text is not None:
            fix_queries.forget_matching_fixes(
                self._writer, self._tenant, lambda _, body: text_erasure.may_contain(body, text)
            )
            votes = self._find_containing(
                "SELECT run, tried_call, failed_call, fix, agent, body FROM votes WHERE tenant = ?", 4, 5
            )
            self._writer.executemany(
                "UPDATE votes SET agent = ?, body = ? WHERE tenant = ? AND run = ? AND tried_call = ? "
                "AND failed_call = ? "
                "AND fix = ?",
                [
                    (
                        agent.replace(text, text_erasure.ERASED_MARK),
                        None if self._contains_text(body) else body,
                        self._tenant,
                        *key,
                    )
                    for *key, agent, body in votes
                ],
            )

    def _forget_lessons(self, patterns: set[str]) -> None:
        """Erase lessons of changed patterns, and lessons that name the tool or contain the text."""
        tool, text = self._request.tool, self._request.text
        target = (self._writer, self._tenant)
        lesson_rows.forget_patterns(*target, sorted(patterns))
        if tool is not None:
            lesson_rows.forget_where(*target, lambda stored_lesson, _: lessons.mentions_tool(stored_lesson, tool))
        elif text is not None:
            lesson_rows.forget_where(*target, lambda _, body: text_erasure.may_contain(body, text))

    def _forget_pattern(self, id: str) -> None:
        for table in ("patterns", "pattern_days", "pattern_agents", "pattern_decisions"):
            self._writer.execute(f"DELETE FROM {table} WHERE tenant = ? AND id = ?", (self._tenant, id))
        merged = self._ask("SELECT id, body FROM pattern_decisions WHERE tenant = ?")
        for other, body in merged:
            if msgspec.json.decode(body).get("into") == id:
                self._writer.execute("DELETE FROM pattern_decisions WHERE tenant = ? AND id = ?", (self._tenant, other))

    def _forget_counted_tool(self, tool: str) -> set[str]:
        """Subtract the remaining counters of a tool, whose rows may have been pruned. Return its patterns."""
        rows = self._ask(
            "SELECT grain, bucket, value, summary, details FROM rollups WHERE tenant = ? AND slice = 'place'"
        )
        for grain, bucket, value, cell, details in rows:
            counter_key = parse_counter_key(bucket, value)
            if counter_key.name == tool and counter_key.type:
                self._ledger.rollups.add(
                    self._writer,
                    self._tenant,
                    _negative({counter_key: counters_module.unpack(cell, details)}),
                    grains=(grain,),
                )
        return {id for (id,) in self._ask("SELECT id FROM patterns WHERE tenant = ? AND tool = ?", tool)}

    def _forget_counted_text(self, text: str) -> int:
        """Erase a text from counters and patterns, also of pruned rows. Return the number of changed patterns."""
        columns = ("tool", "kind", "server", "message", "template")
        patterns = self._find_containing(
            f"SELECT id, {', '.join(columns)} FROM patterns WHERE tenant = ?", 1, 2, 3, 4, 5
        )
        for id, *values in patterns:
            cleaned = [value and value.replace(text, text_erasure.ERASED_MARK) for value in values]
            self._writer.execute(
                f"UPDATE patterns SET {' = ?, '.join(columns)} = ? WHERE tenant = ? AND id = ?",
                (*cleaned, self._tenant, id),
            )
        self._writer.executemany(
            "UPDATE pattern_sketches SET text = ? WHERE tenant = ? AND tool = ? AND pattern = ?",
            [
                (words.replace(text, text_erasure.ERASED_MARK), self._tenant, tool, pattern)
                for tool, pattern, words in self._find_containing(
                    "SELECT tool, pattern, text FROM pattern_sketches WHERE tenant = ?", 2
                )
            ],
        )
        for id, agent, count in self._find_containing(
            "SELECT id, agent, occurrences FROM pattern_agents WHERE tenant = ?", 1
        ):
            self._writer.execute(
                "DELETE FROM pattern_agents WHERE tenant = ? AND id = ? AND agent = ?", (self._tenant, id, agent)
            )
            self._writer.execute(
                pattern_counts.AGENT_INSERT.single_row_sql,
                (self._tenant, id, agent.replace(text, text_erasure.ERASED_MARK), count),
            )
        rows = self._find_containing(
            "SELECT grain, slice, bucket, value, summary, details FROM rollups WHERE tenant = ?", 3, 5
        )
        for grain, slice, bucket, value, cell, details in rows:
            self._ledger.rollups.move(
                self._writer,
                (self._tenant, grain, slice, bucket, value),
                value.replace(text, text_erasure.ERASED_MARK),
                _without(counters_module.unpack(cell, details), text),
            )
        for owner_type, owner, at, body in self._find_containing(
            "SELECT owner_type, owner, at, body FROM compactions WHERE tenant = ?", 3
        ):
            cleaned_body = encode(text_erasure.erase_text(row_encoding.decode_body(body, Compaction), text))
            self._writer.execute(
                "UPDATE compactions SET owner = ?, body = ? WHERE tenant = ? AND owner_type = ? AND owner = ? "
                "AND at = ?",
                (owner.replace(text, text_erasure.ERASED_MARK), cleaned_body, self._tenant, owner_type, owner, at),
            )
        return len(patterns)

    def _forget_entries(self) -> int:
        rows = self._ask("SELECT kind, key, value FROM key_values WHERE tenant = ?")
        entry_keys = [(self._tenant, kind, key) for kind, key, value in rows
                if text_erasure.should_forget_entry(kind, key, value, self._request)]  # fmt: skip
        self._writer.executemany("DELETE FROM key_values WHERE tenant = ? AND kind = ? AND key = ?", entry_keys)
        return len(entry_keys)


def parse_counter_key(bucket: int, value: str) -> Place:
    return Place(bucket, *value.split("\x1f"))


def _negative(cells: Cells) -> Cells:
    negated: Cells = {counter_key: Cell() for counter_key in cells}
    for counter_key, cell in cells.items():
        counters_module.merge(negated[counter_key], cell, -1)
    return negated


def _without(cell: Cell, text: str) -> Cell:
    """Return a copy of counters with the text erased from their names."""
    clean = Cell()
    counters_module.merge(clean, cell)
    clean.wrong = {name.replace(text, text_erasure.ERASED_MARK): count for name, count in clean.wrong.items()}
    clean.kinds = {name.replace(text, text_erasure.ERASED_MARK): count for name, count in clean.kinds.items()}
    return clean


# Recounting


def rebuild_links(writer: Connection, tenant: str, run: Run, steps: Iterable[Step]) -> dict[int, Any]:
    steps = tuple(steps)
    links = {link.failed_call: link for link in link_recoveries(steps, run)}
    failed = {call.id: call for call in calls.group_attempts(steps)}
    put_links(writer, tenant, run.id, links_since(writer, tenant, run.id, BEFORE_FIRST_CALL), links, failed)
    return links


def rebuild(writer: Connection, tenant: str) -> None:
    """Recount links, statuses, patterns and rollups from the rows.

    Counters of days with pruned rows are retained: the rows are incomplete.
    """
    pruned = read_meta(writer, tenant, "pruned")
    horizon = start_of_day(int(pruned)) + DAY if pruned else BEFORE_FIRST_CALL
    writer.execute("DELETE FROM run_callees WHERE tenant = ?", (tenant,))
    writer.execute("DELETE FROM rollups WHERE tenant = ? AND bucket >= ?", (tenant, horizon))
    writer.execute("DELETE FROM pattern_days WHERE tenant = ? AND day >= ?", (tenant, horizon))
    if not pruned:
        for table in ("patterns", "pattern_agents", "run_failures"):
            writer.execute(f"DELETE FROM {table} WHERE tenant = ?", (tenant,))
    sums = Rollups()
    after = 0
    while rows := runs_since(writer, tenant, after):
        account = CounterChanges()
        for rowid, _, status, _, _, body in rows:
            after = rowid
            _recount_run(writer, tenant, TrackedRun(row_encoding.decode_body(body, Run), status), account)
        writer.put(USED, [(tenant, *usage_row) for usage_row in account.used_names])
        counters = {
            counter_key: cell for counter_key, cell in account.collect_cells().items() if counter_key.hour >= horizon
        }
        sums.add(writer, tenant, counters)
        if pruned:
            pattern_counts.add_days(
                writer,
                tenant,
                [counted_failure for counted_failure in account.failures if counted_failure.step.started_at >= horizon],
            )
        else:
            pattern_counts.add(writer, tenant, account.failures)
    if pruned:
        pattern_counts.sum_days(writer, tenant)


def _recount_run(writer: Connection, tenant: str, tracked_run: TrackedRun, account: CounterChanges) -> None:
    run = tracked_run.run
    before = history_of(writer, tenant, run)
    links = rebuild_links(writer, tenant, run, before.steps)
    history = msgspec.structs.replace(before, links=tuple(links.values()))
    status = derive_status(run, history.steps, history.links)
    is_failure_free = all(
        call.first.seq == call.id and len(call.steps) == 1 and call.has_succeeded and not call.has_failed
        for call in calls.group_attempts(history.steps)
    )
    set_status(writer, tenant, run.id, status, is_failure_free)
    if not is_failure_free:
        fix_queries.store_run_votes(writer, tenant, run, history.steps)
    account.add_used_names(run, history.steps, set())
    account.add(EMPTY_SLICE, slice_history(history))
    account.add_run(None, run, status)
