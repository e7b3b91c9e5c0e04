"""Erasing records permanently: from rows and everything derived from them, from texts, and from journals."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Kind
from mulligan.core.links import derive_status, link_recoveries
from mulligan.core.records import Change, Compaction, History, Record, Run, Step, encode
from mulligan.learn import lessons
from mulligan.record.journal import (
    EVENT_FRAME,
    FRAME_HEADER,
    FRAME_MARK,
    JOURNAL_SUFFIX,
    JournalFrame,
    NewerJournalError,
    decode_events,
    read_frames,
)
from mulligan.store import audit, counters, database_lessons, fix_queries, pattern_counts, rollups, row_encoding
from mulligan.store.base import ITEMS_KIND, SCHEMA_KIND, ForgetRequest, ForgetResult, Revocation
from mulligan.store.connection import Connection
from mulligan.store.counters import Cell, CounterKey
from mulligan.store.recount import rebuild_links
from mulligan.store.rollups import EMPTY_SLICE, CounterChanges, RunSlice
from mulligan.store.rows import (
    StoredRun,
    delete_usages,
    history_of,
    load_runs,
    read_meta,
    remove_run,
    replace_steps,
    set_status,
    update_runs,
    write_meta,
)
from mulligan.store.writer import BatchWriter

log = logging.getLogger("mulligan")

ERASED_MARK = "[forgotten]"
"""Replaces an erased text."""
EMPTY_EVENT = b'{"event":"context.compacted","compaction":{}}'
"""Event without content that replaces a forgotten one in a journal."""
_FIXED_VALUE_FIELDS = frozenset(
    {"id", "run", "type", "outcome", "operation", "method", "end_reason", "remedy", "took_effect", "state"}
)
"""Fields with values that mulligan defines. A run whose id contains the text is deleted as a whole."""

T = TypeVar("T", bound=Record)


def erase_text(record: T, text: str) -> T:
    """Return the record with every occurrence of the text replaced by `ERASED_MARK`."""
    return _erase(record, text)  # type: ignore[no-any-return]


def _erase(value: Any, text: str) -> Any:
    if isinstance(value, Kind):
        return Kind.from_name(value.replace(text, ERASED_MARK)) if text in value else value
    if isinstance(value, str):
        return value.replace(text, ERASED_MARK)
    if isinstance(value, msgspec.Struct):
        replacements = {}
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            # Skip numbers in fields of mulligan. Numbers in user values are searched: one may be a card number.
            if inner is not None and not _is_fixed(value, name) and not isinstance(inner, int | float):
                replacements[name] = _erase(inner, text)
        return msgspec.structs.replace(value, **replacements)
    if isinstance(value, dict):
        return {_erase(key, text): _erase(inner, text) for key, inner in value.items()}
    if isinstance(value, list):
        return [_erase(inner, text) for inner in value]
    if isinstance(value, tuple):
        return tuple(_erase(inner, text) for inner in value)
    if isinstance(value, int | float) and not isinstance(value, bool) and text in str(value):
        return ERASED_MARK
    return value


def _is_fixed(record: msgspec.Struct, field: str) -> bool:
    """Return whether a field has one of the values that mulligan defines. The source of a recovery is free text."""
    return field in _FIXED_VALUE_FIELDS or (field == "source" and isinstance(record, Change))


def build_needles(text: str) -> tuple[bytes, ...]:
    """Return the byte sequences to search for: the text itself and its JSON encoding."""
    encoded = text.encode("utf-8", "backslashreplace")
    return tuple(dict.fromkeys((encoded, encode(encoded.decode())[1:-1])))


def may_contain(data: bytes, text: str) -> bool:
    """Return whether JSON data may contain the text. A prefilter: `erase_text` checks value by value."""
    return any(needle in data for needle in build_needles(text))


def should_forget_entry(kind: str, key: str, value: bytes, request: ForgetRequest) -> bool:
    """Return whether a key-value entry must be deleted for this request."""
    if request.session is not None:
        return kind in ("session", "hook") and key == request.session
    if request.tool is not None:
        return kind == SCHEMA_KIND and key == request.tool
    return request.text is not None and (request.text in key or may_contain(value, request.text))


# Rows


class Eraser:
    """Erases a run, tool, session or text from all tables in one transaction."""

    def __init__(self, writer: Connection, ledger: BatchWriter, tenant: str, request: ForgetRequest) -> None:
        self._writer, self._ledger, self._tenant, self._request = writer, ledger, tenant, request
        self._account = CounterChanges()
        self.runs = self.steps = 0
        self.removed_run_ids: set[str] = {request.run} if request.run is not None else set()
        """Runs that are erased completely."""

    def _contains_text(self, value: Any) -> bool:
        if self._request.text is None or value is None:
            return False
        data = row_encoding.decompress(value) if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
        return may_contain(data, self._request.text)

    def _find_containing(self, sql: str, *columns: int) -> list[Any]:
        """Return the rows that contain the text in one of these columns. Reads all before the caller changes any."""
        rows = self._writer.stream(sql, (self._tenant,))
        return [row for row in rows if any(self._contains_text(row[column]) for column in columns)]

    def perform(self) -> ForgetResult:
        if self._request.learned is not None:
            return self._forget_learned(self._request.learned)
        rollups.fold(self._writer, self._tenant)
        for id in self._find_affected_runs():
            self._forget_in(id)
        empty_pattern_ids = self._account.write(self._writer, self._tenant)
        rollups.fold(self._writer, self._tenant)
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
            audit.erase_from_entries(self._writer, self._tenant, lambda act: erase_text(act, text))
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
        lessons_removed = database_lessons.remove_by_source(self._writer, self._tenant, "learned")
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
        tracked_run = load_runs(self._writer, self._tenant, [id]).get(id)
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
            run = erase_text(before.run, request.text)
            self._change(tracked_run, before, run, tuple(erase_text(step, request.text) for step in before.steps))

    def _forget_run(self, tracked_run: StoredRun | None, before: History) -> None:
        remove_run(self._writer, self._tenant, before)
        self.removed_run_ids.add(before.run.id)
        fix_queries.forget_run(self._writer, self._tenant, before.run.id)
        self.runs, self.steps = self.runs + (tracked_run is not None), self.steps + len(before.steps)
        if tracked_run is not None:
            self._account.add(RunSlice.of_history(before), EMPTY_SLICE)
            self._account.add_run(tracked_run, None, tracked_run.status)

    def _change(self, tracked_run: StoredRun | None, before: History, run: Run, steps: tuple[Step, ...]) -> None:
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
            update_runs(*target, [run])
        after = msgspec.structs.replace(
            history_of(*target, run), links=tuple(link_recoveries(steps, run)), compactions=before.compactions
        )
        self._account.add(RunSlice.of_history(before), RunSlice.of_history(after))
        status = derive_status(run, steps, after.links)
        set_status(*target, run.id, status, tracked_run.is_failure_free)
        self._account.add_run(tracked_run, run, status)
        self._account.add_used_names(run, steps)

    def _forget_fixes(self) -> None:
        """Erase learned fixes that name the tool or contain the text, and the text from votes."""
        tool, text = self._request.tool, self._request.text
        if tool is not None:
            self._forget_fixes_where(lambda record, _: tool == record.tool or tool in record.action.tools)
        elif text is not None:
            self._forget_fixes_where(lambda _, body: may_contain(body, text))
            self._replace_text("votes", "run tried_call failed_call fix", "agent")
            keys = "run = ? AND tried_call = ? AND failed_call = ? AND fix = ?"
            rows = self._find_containing(
                "SELECT run, tried_call, failed_call, fix, body FROM votes WHERE tenant = ?", 4
            )
            self._writer.executemany(
                f"UPDATE votes SET body = NULL WHERE tenant = ? AND {keys}", [(self._tenant, *row[:4]) for row in rows]
            )

    def _forget_fixes_where(self, should_forget: Callable[[Any, bytes], bool]) -> None:
        fix_queries.forget_matching_fixes(self._writer, self._tenant, should_forget)

    def _forget_lessons(self, patterns: set[str]) -> None:
        """Erase lessons of changed patterns, and lessons that name the tool or contain the text."""
        tool, text = self._request.tool, self._request.text
        target = (self._writer, self._tenant)
        database_lessons.forget_patterns(*target, sorted(patterns))
        if tool is not None:
            database_lessons.forget_where(*target, lambda lesson: lessons.mentions_tool(lesson, tool))
        elif text is not None:
            database_lessons.forget_where(*target, lambda lesson: may_contain(encode(lesson), text))

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
        for grain, bucket, value, summary, details in rows:
            counter_key = CounterKey(bucket, *value.split("\x1f"))
            if counter_key.name == tool and counter_key.type:
                negated = Cell()
                counters.merge(negated, counters.unpack(summary, details), -1)
                rollups.apply(self._writer, self._tenant, {counter_key: negated}, (grain,))
        return {id for (id,) in self._ask("SELECT id FROM patterns WHERE tenant = ? AND tool = ?", tool)}

    def _forget_counted_text(self, text: str) -> int:
        """Erase a text from counters and patterns, also of pruned rows. Return the number of changed patterns."""
        pattern_count = self._replace_text("patterns", "id", "tool kind server message template")
        self._replace_text("pattern_sketches", "tool pattern", "text")
        agents = self._find_containing("SELECT id, agent, occurrences FROM pattern_agents WHERE tenant = ?", 1)
        for id, agent, count in agents:
            self._writer.execute(
                "DELETE FROM pattern_agents WHERE tenant = ? AND id = ? AND agent = ?", (self._tenant, id, agent)
            )
            cleaned_row = (self._tenant, id, agent.replace(text, ERASED_MARK), count)
            self._writer.execute(pattern_counts.AGENT_INSERT.single_row_sql, cleaned_row)
        for *key, value, summary, details in self._find_containing(
            "SELECT grain, slice, bucket, value, summary, details FROM rollups WHERE tenant = ?", 3, 5
        ):
            cell = _without_text(counters.unpack(summary, details), text)
            rollup_key = (self._tenant, *key, value)
            rollups.move(self._writer, rollup_key, value.replace(text, ERASED_MARK), cell)
        for owner_type, owner, at, body in self._find_containing(
            "SELECT owner_type, owner, at, body FROM compactions WHERE tenant = ?", 3
        ):
            cleaned_body = encode(erase_text(row_encoding.decode_body(body, Compaction), text))
            self._writer.execute(
                "UPDATE compactions SET owner = ?, body = ? WHERE tenant = ? AND owner_type = ? AND owner = ? "
                "AND at = ?",
                (owner.replace(text, ERASED_MARK), cleaned_body, self._tenant, owner_type, owner, at),
            )
        return pattern_count

    def _replace_text(self, table: str, key_names: str, column_names: str) -> int:
        """Erase the text from columns of a table. Return the number of changed rows."""
        text, keys, columns = self._request.text or "", key_names.split(), column_names.split()
        rows = self._find_containing(
            f"SELECT {', '.join([*keys, *columns])} FROM {table} WHERE tenant = ?",
            *range(len(keys), len(keys) + len(columns)),
        )
        self._writer.executemany(
            f"UPDATE {table} SET {' = ?, '.join(columns)} = ? WHERE tenant = ? AND {' = ? AND '.join(keys)} = ?",
            [
                (
                    *(value and value.replace(text, ERASED_MARK) for value in row[len(keys) :]),
                    self._tenant,
                    *row[: len(keys)],
                )
                for row in rows
            ],
        )
        return len(rows)

    def _forget_entries(self) -> int:
        rows = self._ask("SELECT kind, key, value FROM key_values WHERE tenant = ?")
        entry_keys = [(self._tenant, kind, key) for kind, key, value in rows
                if should_forget_entry(kind, key, value, self._request)]  # fmt: skip
        self._writer.executemany("DELETE FROM key_values WHERE tenant = ? AND kind = ? AND key = ?", entry_keys)
        return len(entry_keys)


def _without_text(cell: Cell, text: str) -> Cell:
    """Return a copy of counters with the text erased from their names."""
    clean = Cell()
    counters.merge(clean, cell)
    clean.changed_arguments = {
        name.replace(text, ERASED_MARK): count for name, count in clean.changed_arguments.items()
    }
    clean.kinds = {name.replace(text, ERASED_MARK): count for name, count in clean.kinds.items()}
    return clean


# Journals


def scrub_journals(folder: Path, request: ForgetRequest, runs: Collection[str]) -> int:
    """Overwrite the records of these runs, the tool or the text in all journals of a folder. Return their number."""
    count = 0
    for path in sorted(folder.glob(f"*{JOURNAL_SUFFIX}")) if folder.is_dir() else ():
        try:
            count += _scrub_journal(path, request, runs)
        except (OSError, NewerJournalError) as error:
            log.warning("Cannot search %s for records to delete: %s", path, error)
    return count


def _scrub_journal(path: Path, request: ForgetRequest, runs: Collection[str]) -> int:
    replacements = [
        (frame, replacement)
        for frame in read_frames(path)
        if (replacement := _replacement_for(frame, request, runs)) is not None
    ]
    if replacements:
        with path.open("r+b") as file:
            for frame, (frame_type, payload) in replacements:
                file.seek(frame.offset - len(frame.payload) - FRAME_HEADER.size)
                file.write(
                    FRAME_HEADER.pack(FRAME_MARK, frame_type, len(payload), crc32(payload, frame_type)) + payload
                )
    return len(replacements)


def _replacement_for(frame: JournalFrame, request: ForgetRequest, runs: Collection[str]) -> tuple[int, bytes] | None:
    """Return the type and payload that replace a frame, or `None` if it is unaffected."""
    if request.text is not None:
        payload = frame.payload
        for needle in build_needles(request.text):
            payload = payload.replace(needle, b"x" * len(needle))
        if payload != frame.payload:
            return frame.type, payload
        return None
    if any(_matches_request(event, request, runs) for _, event in decode_events([frame])):
        return EVENT_FRAME, EMPTY_EVENT.ljust(len(frame.payload))[: len(frame.payload)]
    return None


def _matches_request(event: AnyEvent, request: ForgetRequest, runs: Collection[str]) -> bool:
    if isinstance(event, StepEnded):
        return event.step.run in runs or (request.tool is not None and event.step.name == request.tool)
    if isinstance(event, RunStarted | RunEnded):
        return event.run.id in runs or (request.session is not None and event.run.session == request.session)
    return False
