"""Erasing records permanently: from rows and everything derived from them, from texts, and from journals."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mulligan.contract import audit, counters
from mulligan.contract.counters import Cell, CounterKey
from mulligan.contract.store import (
    FORGOTTEN_KIND,
    ITEMS_KIND,
    SCHEMA_KIND,
    FileSearch,
    ForgetRequest,
    ForgetResult,
    Revocation,
    forgotten_key,
    journals_of,
)
from mulligan.core.events import AnyEvent, ContextCompacted, FailureRecorded, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Kind
from mulligan.core.records import (
    Change,
    Compaction,
    History,
    MessagePart,
    Record,
    RecordedMessage,
    Run,
    Step,
    encode,
)
from mulligan.journal import (
    EVENT_FRAME,
    FRAME_HEADER,
    JOURNAL_SUFFIX,
    JournalFrame,
    NewerJournalError,
    decode_events,
    encode_frame,
    read_frames,
)
from mulligan.learn import lessons
from mulligan.learn.patterns import PatternDecision
from mulligan.store import database_lessons, fix_queries, pattern_counts, rollups
from mulligan.store.connection import Connection, upsert
from mulligan.store.judging import judge_run
from mulligan.store.rollups import EMPTY_SLICE, CounterChanges, RunSlice
from mulligan.store.rows import (
    StoredRun,
    decode_body,
    decompress,
    delete_callees,
    history_of,
    load_runs,
    mark_rewritten,
    remove_run,
    replace_message,
    replace_steps,
    update_runs,
)

log = logging.getLogger(__name__)

ERASED_MARK = "[forgotten]"
"""Replaces an erased text."""
EMPTY_EVENT = b'{"event":"context.compacted","compaction":{}}'
"""Event without content that replaces a forgotten one in a journal."""
_FIXED_VALUE_FIELDS = frozenset(
    {"id", "run", "type", "outcome", "operation", "method", "end_reason", "remedy", "took_effect", "state"}
)
"""Fields with values that mulligan defines. A run whose id contains the text is deleted as a whole."""

_UPSERT_ENTRY_SQL = upsert("key_values", "tenant kind key", "value")

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
        # The source of a change has a value that mulligan defines; that of a recovery is free text.
        fixed_fields = _FIXED_VALUE_FIELDS | ({"source"} if isinstance(value, Change) else set())
        fixed_fields |= {"role"} if isinstance(value, RecordedMessage) else set()
        replacements = {}
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            # Skip numbers in fields of mulligan. Numbers in user values are searched: one may be a card number.
            if inner is not None and name not in fixed_fields and not isinstance(inner, int | float):
                replacements[name] = _erase(inner, text)
        return msgspec.structs.replace(value, **replacements)
    if isinstance(value, dict):
        return {_erase(key, text): _erase(inner, text) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_erase(inner, text) for inner in value)
    if isinstance(value, int | float) and not isinstance(value, bool) and text in str(value):
        return ERASED_MARK
    return value


def erase_tool(message: RecordedMessage, tool: str) -> RecordedMessage:
    """Return the message without the arguments and results of this tool."""
    if all(part.name != tool for part in message.parts):
        return message
    parts = (
        MessagePart(type=part.type, text=ERASED_MARK, is_error=part.is_error) if part.name == tool else part
        for part in message.parts
    )
    return msgspec.structs.replace(message, parts=tuple(parts))


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

    def __init__(self, writer: Connection, tenant: str, request: ForgetRequest) -> None:
        self._writer, self._tenant, self._request = writer, tenant, request
        self._changes = CounterChanges()
        self.runs = self.steps = self.messages = 0
        self.removed_run_ids: set[str] = {request.run} if request.run is not None else set()

    def perform(self) -> ForgetResult:
        target, request = (self._writer, self._tenant), self._request
        if request.learned is not None:
            return self._forget_learned(request.learned)
        rollups.fold(*target)
        for id in self._find_affected_runs():
            self._forget_in(id)
        empty_ids = self._changes.write(*target)
        rollups.fold(*target)
        changed_ids = {
            pattern_counts.id_of(failed.step.name, failed.step.failure.fingerprint)
            for failed in self._changes.failures
            if failed.step.failure is not None and failed.step.failure.fingerprint
        }
        for id in changed_ids - empty_ids:
            pattern_counts.refresh_bounds(*target, id)
        cleaned_count = 0
        if (tool := request.tool) is not None:
            empty_ids |= self._forget_counted_tool(tool)
            fix_queries.forget_matching_fixes(*target, lambda fix, _: tool == fix.tool or tool in fix.action.tools)
            database_lessons.forget_where(*target, lambda lesson: lessons.mentions_tool(lesson, tool))
            self._change_messages(tool, lambda message: erase_tool(message, tool))
        if (text := request.text) is not None:
            cleaned_count = self._forget_counted_text(text)
            audit.erase_from_entries(*target, lambda entry: erase_text(entry, text))
            fix_queries.forget_matching_fixes(*target, lambda _, body: may_contain(body, text))
            self._forget_in_votes()
            database_lessons.forget_where(*target, lambda lesson: may_contain(encode(lesson), text))
            self._change_messages(text, lambda message: erase_text(message, text))
        database_lessons.forget_patterns(*target, sorted(changed_ids | empty_ids))
        for id in empty_ids:
            self._forget_pattern(id)
        entry_keys = [
            (self._tenant, kind, key)
            for kind, key, value in self._read("SELECT kind, key, value FROM key_values WHERE tenant = ?")
            if should_forget_entry(kind, key, value, request)
        ]
        self._writer.executemany("DELETE FROM key_values WHERE tenant = ? AND kind = ? AND key = ?", entry_keys)
        forgotten_id = request.session or request.run
        if forgotten_id is not None and (self.runs or entry_keys):
            mark = (self._tenant, FORGOTTEN_KIND, forgotten_key(forgotten_id), b"")
            self._writer.execute(_UPSERT_ENTRY_SQL, mark)
        mark_rewritten(*target)
        patterns = len(empty_ids) + cleaned_count
        return ForgetResult(self.runs, self.steps, patterns, len(entry_keys), messages=self.messages)

    def _forget_learned(self, until: int) -> ForgetResult:
        """Discard fixes, lessons and item arguments, and learn no more from runs that began before this time."""
        revoked = fix_queries.revoke(self._writer, self._tenant, Revocation(until=until))
        removed_lessons = database_lessons.remove_by_source(self._writer, self._tenant, "learned")
        sql = "DELETE FROM key_values WHERE tenant = ? AND kind = ?"
        items = self._writer.execute(sql, (self._tenant, ITEMS_KIND)).rowcount
        return ForgetResult(fixes=revoked.fixes, lessons=removed_lessons, key_value_entries=items)

    def _read(self, sql: str, *values: Any) -> list[Any]:
        return self._writer.execute(sql, (self._tenant, *values)).fetchall()

    def _contains_text(self, value: Any) -> bool:
        if self._request.text is None or value is None:
            return False
        data = decompress(value) if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
        return may_contain(data, self._request.text)

    def _find_containing(self, sql: str, *columns: int) -> list[Any]:
        """Return the rows that contain the text in one of these columns. Reads all before the caller changes any."""
        rows = self._writer.stream(sql, (self._tenant,))
        return [row for row in rows if any(self._contains_text(row[column]) for column in columns)]

    # Runs

    def _find_affected_runs(self) -> list[str]:
        request = self._request
        if request.run is not None:
            return [request.run]
        if request.session is not None:
            rows = self._read("SELECT id FROM runs WHERE tenant = ? AND session = ?", request.session)
        elif request.tool is not None:
            rows = self._read(
                "SELECT run FROM run_callees WHERE tenant = ? AND type = 'tool' AND name = ?", request.tool
            )
            rows += self._read("SELECT run FROM orphaned_runs WHERE tenant = ?")
        else:
            queries = (
                "SELECT run, name, body FROM steps WHERE tenant = ?",
                "SELECT id, body FROM runs WHERE tenant = ?",
            )
            streams = (self._writer.stream(sql, (self._tenant,)) for sql in queries)
            rows = [row[:1] for rows in streams for row in rows if any(map(self._contains_text, row))]
        return sorted({id for (id,) in rows})

    def _forget_in(self, id: str) -> None:
        tool, text = self._request.tool, self._request.text
        stored_run = load_runs(self._writer, self._tenant, [id]).get(id)
        before = history_of(self._writer, self._tenant, stored_run.run if stored_run else Run(id=id))
        if tool is not None:
            steps = tuple(step for step in before.steps if step.name != tool)
            if before.steps and not steps:
                self._forget_run(stored_run, before)
            elif len(steps) != len(before.steps):
                self._change(stored_run, before, before.run, steps)
        elif text is not None and text not in id:
            steps = tuple(erase_text(step, text) for step in before.steps)
            self._change(stored_run, before, erase_text(before.run, text), steps)
        else:
            self._forget_run(stored_run, before)

    def _forget_run(self, stored_run: StoredRun | None, before: History) -> None:
        self.messages += self._count_messages(before.run.id)
        remove_run(self._writer, self._tenant, before)
        self.removed_run_ids.add(before.run.id)
        fix_queries.forget_run(self._writer, self._tenant, before.run.id)
        self.runs, self.steps = self.runs + (stored_run is not None), self.steps + len(before.steps)
        if stored_run is not None:
            self._changes.add(RunSlice.of_history(before), EMPTY_SLICE)
            self._changes.add_run(stored_run, None, stored_run.status)

    def _change(self, stored_run: StoredRun | None, before: History, run: Run, steps: tuple[Step, ...]) -> None:
        """Replace a run and its steps by changed or fewer ones."""
        target = (self._writer, self._tenant)
        steps_by_seq = {step.seq: step for step in steps}
        self.steps += sum(steps_by_seq.get(step.seq) != step for step in before.steps)
        delete_callees(*target, before)
        message_count = self._count_messages(run.id)
        replace_steps(*target, run.id, steps)
        self.messages += message_count - self._count_messages(run.id)
        if stored_run is None:
            return
        links, status = judge_run(*target, run, steps)
        if encode(run) != encode(stored_run.run):
            self.runs += 1
            update_runs(*target, [run])
        after = msgspec.structs.replace(before, run=run, steps=steps, links=links)
        self._changes.add(RunSlice.of_history(before), RunSlice.of_history(after))
        self._changes.add_run(stored_run, run, status)
        self._changes.add_used_names(run, steps)

    # Messages

    def _count_messages(self, run: str) -> int:
        sql = "SELECT count(*) FROM run_messages WHERE tenant = ? AND run = ?"
        (count,) = self._writer.execute(sql, (self._tenant, run)).fetchone()
        return int(count)

    def _change_messages(self, text: str, change: Callable[[RecordedMessage], RecordedMessage]) -> None:
        """Change the recorded messages that contain a text, in all runs."""
        target = (self._writer, self._tenant)
        rows = self._writer.stream("SELECT digest, body FROM messages WHERE tenant = ?", (self._tenant,))
        for key, body in [(key, body) for key, body in rows if may_contain(decompress(body), text)]:
            message = decode_body(body, RecordedMessage)
            changed_message = change(message)
            if changed_message != message:
                (uses,) = self._read("SELECT count(*) FROM run_messages WHERE tenant = ? AND digest = ?", key)[0]
                self.messages += uses
                replace_message(*target, key, changed_message)

    # Learned data and counters

    def _forget_in_votes(self) -> None:
        self._replace_text("votes", "run tried_call failed_call fix", "agent")
        rows = self._find_containing("SELECT run, tried_call, failed_call, fix, body FROM votes WHERE tenant = ?", 4)
        self._writer.executemany(
            "UPDATE votes SET body = NULL "
            "WHERE tenant = ? AND run = ? AND tried_call = ? AND failed_call = ? AND fix = ?",
            [(self._tenant, *row[:4]) for row in rows],
        )

    def _forget_pattern(self, id: str) -> None:
        for table in ("patterns", "pattern_days", "pattern_agents", "pattern_decisions"):
            self._writer.execute(f"DELETE FROM {table} WHERE tenant = ? AND id = ?", (self._tenant, id))
        for other, body in self._read("SELECT id, body FROM pattern_decisions WHERE tenant = ?"):
            if msgspec.json.decode(body).get("into") == id:
                self._writer.execute("DELETE FROM pattern_decisions WHERE tenant = ? AND id = ?", (self._tenant, other))

    def _forget_counted_tool(self, tool: str) -> set[str]:
        """Subtract the remaining counters of a tool, whose rows may have been pruned. Return its patterns."""
        rows = self._read(
            "SELECT grain, bucket, value, summary, details FROM rollups WHERE tenant = ? AND slice = 'place'"
        )
        for grain, bucket, value, summary, details in rows:
            counter_key = CounterKey(bucket, *value.split("\x1f"))
            if counter_key.name == tool and counter_key.type:
                negated = Cell()
                counters.merge(negated, counters.unpack(summary, details), -1)
                rollups.apply(self._writer, self._tenant, {counter_key: negated}, (grain,))
        return {id for (id,) in self._read("SELECT id FROM patterns WHERE tenant = ? AND tool = ?", tool)}

    def _forget_counted_text(self, text: str) -> int:
        """Erase a text from counters and patterns, also of pruned rows. Return the number of changed patterns."""
        pattern_count = self._replace_text("patterns", "id", "tool kind server message template")
        self._replace_text("pattern_sketches", "tool pattern", "text")
        for id, body in self._find_containing("SELECT id, body FROM pattern_decisions WHERE tenant = ?", 1):
            decision = decode_body(body, PatternDecision)
            cleaned_decision = msgspec.structs.replace(decision, note=decision.note.replace(text, ERASED_MARK))
            sql = "UPDATE pattern_decisions SET body = ? WHERE tenant = ? AND id = ?"
            self._writer.execute(sql, (encode(cleaned_decision), self._tenant, id))
        for id, agent, count in self._find_containing(
            "SELECT id, agent, occurrences FROM pattern_agents WHERE tenant = ?", 1
        ):
            sql = "DELETE FROM pattern_agents WHERE tenant = ? AND id = ? AND agent = ?"
            self._writer.execute(sql, (self._tenant, id, agent))
            cleaned_row = (self._tenant, id, agent.replace(text, ERASED_MARK), count)
            self._writer.put(pattern_counts.AGENT_INSERT, [cleaned_row])
        for *key, value, summary, details in self._find_containing(
            "SELECT grain, slice, bucket, value, summary, details FROM rollups WHERE tenant = ?", 3, 5
        ):
            cell = counters.unpack(summary, details)
            cell.changed_arguments = _erase_keys(cell.changed_arguments, text)
            cell.kinds = _erase_keys(cell.kinds, text)
            rollups.move(self._writer, (self._tenant, *key, value), value.replace(text, ERASED_MARK), cell)
        for owner_type, owner, at, body in self._find_containing(
            "SELECT owner_type, owner, at, body FROM compactions WHERE tenant = ?", 3
        ):
            cleaned_body = encode(erase_text(decode_body(body, Compaction), text))
            self._writer.execute(
                "UPDATE compactions SET owner = ?, body = ? WHERE tenant = ? AND owner_type = ? AND owner = ? "
                "AND at = ?",
                (owner.replace(text, ERASED_MARK), cleaned_body, self._tenant, owner_type, owner, at),
            )
        return pattern_count

    def _replace_text(self, table: str, key_names: str, column_names: str) -> int:
        """Erase the text from columns of a table. Return the number of changed rows."""
        text, keys, columns = self._request.text or "", key_names.split(), column_names.split()
        size = len(columns)
        rows = self._find_containing(
            f"SELECT {', '.join([*columns, *keys])} FROM {table} WHERE tenant = ?", *range(size)
        )
        self._writer.executemany(
            f"UPDATE {table} SET {' = ?, '.join(columns)} = ? WHERE tenant = ? AND {' = ? AND '.join(keys)} = ?",
            [(*(_erase(value, text) for value in row[:size]), self._tenant, *row[size:]) for row in rows],
        )
        return len(rows)


def drop_forgotten(writer: Connection, tenant: str, events: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
    """Return imported events without those of erased runs and sessions. Logs on disk must not bring them back."""
    sql = "SELECT key FROM key_values WHERE tenant = ? AND kind = ?"
    marks = {key for (key,) in writer.execute(sql, (tenant, FORGOTTEN_KIND)).fetchall()}
    kept_events, new_marks = select_unforgotten(events, marks)
    for mark in sorted(new_marks):
        writer.execute(_UPSERT_ENTRY_SQL, (tenant, FORGOTTEN_KIND, mark, b""))
    return kept_events


def select_unforgotten(events: Sequence[AnyEvent], marks: Collection[str]) -> tuple[Sequence[AnyEvent], set[str]]:
    """Select the events without a mark (see `FORGOTTEN_KIND`).

    Also return marks to add: those of the runs of erased sessions, of which more events may come without the session.
    """
    if not marks:
        return events, set()
    new_marks = {
        forgotten_key(event.run.id)
        for event in events
        if isinstance(event, RunStarted | RunEnded) and event.run.session and forgotten_key(event.run.session) in marks
    }
    all_marks = new_marks.union(marks)
    kept_events = [event for event in events if not any(forgotten_key(id) in all_marks for id in _ids_of(event) if id)]
    return kept_events, new_marks.difference(marks)


def _ids_of(event: AnyEvent) -> tuple[str | None, ...]:
    """Return the run of an event, and its session if the event names one."""
    if isinstance(event, StepEnded):
        return (event.step.run,)
    if isinstance(event, RunStarted | RunEnded):
        return event.run.id, event.run.session
    if isinstance(event, ContextCompacted):
        return event.compaction.run, event.compaction.session
    return (event.run,) if isinstance(event, FailureRecorded) else ()


def _erase_keys(counts: dict[str, Any], text: str) -> dict[str, Any]:
    return {name.replace(text, ERASED_MARK): count for name, count in counts.items()}


# Journals


def scrub_journals(folder: Path, request: ForgetRequest, runs: Collection[str]) -> int:
    """Overwrite the records of these runs, the tool or the text in all journals of a folder. Return their number."""
    count = 0
    for path in sorted(folder.glob(f"*{JOURNAL_SUFFIX}")) if folder.is_dir() else ():
        try:
            scrubbed_frames = [
                (frame.offset - len(frame.payload) - FRAME_HEADER.size, new_frame)
                for frame in read_frames(path)
                if (new_frame := _scrub_frame(frame, request, runs)) is not None
            ]
            if scrubbed_frames:
                with path.open("r+b") as file:
                    for start, new_frame in scrubbed_frames:
                        file.seek(start)
                        file.write(new_frame)
            count += len(scrubbed_frames)
        except (OSError, NewerJournalError) as error:
            log.warning("Cannot search %s for records to delete: %s", path, error)
    return count


UNSEARCHABLE_LOCAL = ("backups and other copies", "free blocks of the disk")


def search_local_files(path: Path, needles: Sequence[bytes]) -> FileSearch:
    """Search the files of a SQLite store and the journals beside a store for these bytes."""
    journals = journals_of(path)
    files = [file for file in (*path.parent.glob(f"{path.name}*"), *journals.rglob("*")) if file.is_file()]
    matches = []
    for file in sorted(files):
        with file.open("rb") as opened_file:
            # An empty file cannot be mapped.
            data = mmap.mmap(opened_file.fileno(), 0, access=mmap.ACCESS_READ) if file.stat().st_size else b""
            if any(data.find(needle) >= 0 for needle in needles):
                matches.append(str(file))
    return FileSearch(len(files), sum(file.stat().st_size for file in files), tuple(matches), UNSEARCHABLE_LOCAL)


def _scrub_frame(frame: JournalFrame, request: ForgetRequest, runs: Collection[str]) -> bytes | None:
    """Return the bytes that replace a frame, or `None` if it is unaffected."""
    if request.text is not None:
        payload = frame.payload
        for needle in build_needles(request.text):
            payload = payload.replace(needle, b"x" * len(needle))
        return encode_frame(frame.type, payload) if payload != frame.payload else None
    events = [event for _, event in decode_events([frame])]
    if any(_matches_request(event, request, runs) for event in events):
        return encode_frame(EVENT_FRAME, EMPTY_EVENT.ljust(len(frame.payload))[: len(frame.payload)])
    for event in events:
        if request.tool is not None and isinstance(event, StepEnded) and event.messages:
            messages = tuple(erase_tool(message, request.tool) for message in event.messages)
            if messages != event.messages:
                payload = encode(StepEnded(event.step, messages)).ljust(len(frame.payload))
                # A frame has a fixed length: if the marks do not fit into it, the record is removed.
                payload = payload if len(payload) == len(frame.payload) else EMPTY_EVENT.ljust(len(frame.payload))
                return encode_frame(EVENT_FRAME, payload)
    return None


def _matches_request(event: AnyEvent, request: ForgetRequest, runs: Collection[str]) -> bool:
    if isinstance(event, StepEnded):
        return event.step.run in runs or (request.tool is not None and event.step.name == request.tool)
    if isinstance(event, FailureRecorded):
        return event.run in runs
    if isinstance(event, RunStarted | RunEnded):
        return event.run.id in runs or (request.session is not None and event.run.session == request.session)
    return False
