"""Lessons in a database: storage, queries with current counts, and incremental consolidation.

Each batch marks the patterns whose fixes changed (`mark_for_consolidation`). Consolidation processes only marked
patterns, a few per transaction, so its cost depends on the number of changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mulligan.core.records import Fix, Lesson, LessonSource, LessonVerdict, Pattern, Step, decode, encode
from mulligan.learn import patterns, prerequisites
from mulligan.learn.fixes import FixRecord
from mulligan.learn.lessons import consolidation
from mulligan.learn.lessons.consolidation import StoredLesson
from mulligan.prompt import Prompt
from mulligan.store import fix_queries, fix_votes, row_encoding
from mulligan.store.base import DAY, ConsolidationResult, FixQuery, LessonQuery, Progress
from mulligan.store.connection import upsert

MAX_PATTERNS_PER_TRANSACTION = 50
"""Patterns per transaction, so that other writers are not blocked for long."""

_UPSERT_LESSON = upsert("lessons", "tenant id", "tool pattern source body")

ReadRows = Callable[..., list[Any]]
OpenTransaction = Callable[..., contextlib.AbstractContextManager[Any]]
"""Open a transaction as a context manager of a writer with `execute`."""


# Read


def find_lessons(read: ReadRows, tenant: str, query: LessonQuery) -> list[Lesson]:
    """Return the lessons that match a query, with their current counts."""
    filters = (("tool", query.tool), ("source", query.source))
    active_filters = [(name, value) for name, value in filters if value is not None]
    where = "".join(f" AND {name} = ?" for name, _ in active_filters)
    values = (tenant, *(value for _, value in active_filters), consolidation.MAX_LESSONS_PER_QUERY)
    rows = read(f"SELECT body FROM lessons WHERE tenant = ?{where} ORDER BY id LIMIT ?", values)
    stored_lessons = [decode(body, StoredLesson) for (body,) in rows]
    return _evaluate_lessons(read, tenant, stored_lessons, query)


def find_lesson(read: ReadRows, tenant: str, id: str, now: int) -> Lesson | None:
    stored_lesson = _load_stored_lesson(read, tenant, id)
    lessons = (
        _evaluate_lessons(read, tenant, [stored_lesson], LessonQuery(now=now)) if stored_lesson is not None else []
    )
    return lessons[0] if lessons else None


def _load_stored_lesson(read: ReadRows, tenant: str, id: str) -> StoredLesson | None:
    """Load one stored lesson by its id or a unique prefix of it."""
    sql = "SELECT id, body FROM lessons WHERE tenant = ? AND id >= ? AND id < ? ORDER BY id LIMIT 2"
    rows = read(sql, (tenant, id, id + "\U0010ffff"))
    matching_bodies = [body for row_id, body in rows if row_id == id] or (
        [body for _, body in rows] if len(rows) == 1 else []
    )
    return decode(matching_bodies[0], StoredLesson) if matching_bodies and id else None


def _evaluate_lessons(
    read: ReadRows, tenant: str, stored_lessons: Sequence[StoredLesson], query: LessonQuery
) -> list[Lesson]:
    if not stored_lessons:
        return []
    fix_query = FixQuery(tool=query.tool, now=query.now)
    fix_context = fix_queries.load_context(read, tenant, fix_query)
    fixes_by_pattern: dict[str, dict[str, tuple[Fix, tuple[str, ...]]]] = {}
    lessons_by_id = {}
    part_ids_by_lesson: dict[str, tuple[str, ...]] = {}
    for stored_lesson in stored_lessons:
        lesson = stored_lesson.lesson
        if lesson.pattern and lesson.pattern not in fixes_by_pattern:
            fixes_by_pattern[lesson.pattern] = prerequisites.index_fixes(
                _load_fix_records(read, tenant, lesson.pattern), fix_query, fix_context
            )
        fix, part_ids_by_lesson[lesson.id] = fixes_by_pattern.get(lesson.pattern, {}).get(lesson.fix_id, (None, ()))
        if not consolidation.is_orphaned(stored_lesson, fix):
            basis = consolidation.LessonBasis(
                fix,
                _count_pattern_runs(read, tenant, lesson.pattern) if fix is not None else 0,
                fix_context.schema_changed_at.get(lesson.tool, 0),
                fix_context.decisions.get(lesson.fix_id),
            )
            lessons_by_id[lesson.id] = consolidation.with_state(stored_lesson, basis, query.now)
    return [
        _add_counts(read, tenant, lesson, part_ids_by_lesson[lesson.id], query.now)
        for lesson in consolidation.filter_and_rank(lessons_by_id.values(), query)
    ]


def _count_pattern_runs(read: ReadRows, tenant: str, pattern: str) -> int:
    """Count the runs in which a pattern occurred."""
    rows = read("SELECT runs FROM patterns WHERE tenant = ? AND id = ?", (tenant, pattern))
    return int(rows[0][0]) if rows else 0


def _load_fix_records(read: ReadRows, tenant: str, pattern: str) -> list[FixRecord]:
    rows = read("SELECT body FROM fixes WHERE tenant = ? AND pattern = ? ORDER BY last_tried_at DESC LIMIT ?",
                (tenant, pattern, fix_queries.MAX_FIXES_PER_PATTERN))  # fmt: skip
    return [decode(body, FixRecord) for (body,) in rows]


def _add_counts(read: ReadRows, tenant: str, lesson: Lesson, part_ids: Sequence[str], now: int) -> Lesson:
    """Return the lesson with its occurrences, agents, and recovery counts before and after activation."""
    if not lesson.pattern:
        return lesson
    rows = read("SELECT occurrences, first_seen_at FROM patterns WHERE tenant = ? AND id = ?", (tenant, lesson.pattern))
    agents = read(
        "SELECT agent, occurrences FROM pattern_agents WHERE tenant = ? AND id = ? "
        "ORDER BY occurrences DESC, agent LIMIT ?",
        (tenant, lesson.pattern, patterns.MAX_SHOWN_AGENTS),
    )
    occurrences, first_seen_at = rows[0] if rows else (0, 0)
    lesson = msgspec.structs.replace(lesson, occurrences=occurrences, agents=dict(agents))
    if not lesson.active_since or not occurrences:
        return lesson
    affected_runs = _latest_runs(
        read, "run_failures", "pattern", "started_at", tenant, (lesson.pattern,), lesson.active_since
    )
    recovered_runs = (
        _latest_runs(read, "votes", "fix", "at", tenant, part_ids, lesson.active_since, " AND successful = 1")
        if part_ids
        else set()
    )
    activation_day = patterns.start_of_day(lesson.active_since)
    days = range(
        activation_day - consolidation.EFFECT_PERIOD_DAYS * DAY,
        activation_day + (consolidation.EFFECT_PERIOD_DAYS + 1) * DAY,
        DAY,
    )
    marks = ", ".join("?" * len(days))
    day_counts = read(
        f"SELECT day, occurrences, recovered FROM pattern_days WHERE tenant = ? AND day IN ({marks}) AND id = ?",
        (tenant, *days, lesson.pattern),
    )
    before, after = consolidation.count_periods(
        {day: (count, recovered) for day, count, recovered in day_counts}, lesson.active_since, now, first_seen_at
    )
    return msgspec.structs.replace(
        lesson,
        helped_runs=len(affected_runs & recovered_runs),
        unhelped_runs=len(affected_runs - recovered_runs),
        stats_before=before,
        stats_after=after,
    )


def _latest_runs(
    read: ReadRows,
    table: str,
    column: str,
    time_column: str,
    tenant: str,
    ids: Sequence[str],
    since: int,
    extra_condition: str = "",
) -> set[str]:
    """Return the ids of the latest runs since a time that have a row with one of these ids."""
    return {
        run
        for id in ids
        for (run,) in read(
            f"SELECT run FROM {table} WHERE tenant = ? AND {column} = ? AND {time_column} >= ?{extra_condition} "
            f"ORDER BY {time_column} DESC LIMIT ?",
            (tenant, id, since, consolidation.MAX_COUNTED_RUNS),
        )
    }


# Write


def save_lesson(writer: Any, tenant: str, lesson: Lesson, now: int) -> bool:
    existing = _load_stored_lesson(_make_reader(writer), tenant, lesson.id)
    stored_lesson = consolidation.merge_submission(existing, lesson, now)
    if stored_lesson is not None:
        write_stored_lesson(writer, tenant, stored_lesson)
    return stored_lesson is not None


def remove_by_source(writer: Any, tenant: str, source: LessonSource) -> int:
    key = (tenant, source)
    (count,) = writer.execute("SELECT count(*) FROM lessons WHERE tenant = ? AND source = ?", key).fetchone()
    writer.execute("DELETE FROM lessons WHERE tenant = ? AND source = ?", key)
    return int(count)


def write_stored_lesson(writer: Any, tenant: str, stored_lesson: StoredLesson) -> None:
    lesson = stored_lesson.lesson
    row = (tenant, lesson.id, lesson.tool, lesson.pattern, lesson.source, encode(stored_lesson))
    writer.execute(_UPSERT_LESSON, row)


def record_decision(writer: Any, tenant: str, id: str, verdict: LessonVerdict, at: int) -> str | None:
    """Store an operator decision. Return the id of the lesson, or `None` if there is none."""
    stored_lesson = _load_stored_lesson(_make_reader(writer), tenant, id)
    if stored_lesson is None:
        return None
    write_stored_lesson(writer, tenant, consolidation.apply_decision(stored_lesson, verdict, at))
    # Approving or revoking a lesson also decides its fix. Disabling a lesson only hides the lesson.
    if verdict != "disable" and stored_lesson.lesson.fix_id:
        fix_queries.store_decision(writer, tenant, stored_lesson.lesson.fix_id, approved=verdict == "approve", at=at)
    return stored_lesson.lesson.id


def forget_patterns(writer: Any, tenant: str, ids: Sequence[str]) -> None:
    """Delete the learned lessons of patterns and mark the patterns, to rebuild from the remaining records."""
    for id in ids:
        rows = writer.execute("SELECT id, body FROM lessons WHERE tenant = ? AND pattern = ?", (tenant, id)).fetchall()
        for lesson_id, body in rows:
            stored_lesson = decode(body, StoredLesson)
            if stored_lesson.lesson.source == "learned" and not stored_lesson.lesson.edited:
                writer.execute("DELETE FROM lessons WHERE tenant = ? AND id = ?", (tenant, lesson_id))
        fix_votes.mark_for_consolidation(writer, tenant, id)


def forget_where(writer: Any, tenant: str, should_delete: Callable[[StoredLesson, bytes], bool]) -> None:
    for id, body in writer.execute("SELECT id, body FROM lessons WHERE tenant = ?", (tenant,)).fetchall():
        if should_delete(decode(body, StoredLesson), body):
            writer.execute("DELETE FROM lessons WHERE tenant = ? AND id = ?", (tenant, id))


def _make_reader(writer: Any) -> ReadRows:
    def read(sql: str, values: Sequence[Any] = ()) -> list[Any]:
        rows: list[Any] = writer.execute(sql, tuple(values)).fetchall()
        return rows

    return read


# Consolidate


def consolidate(
    read: ReadRows,
    open_transaction: OpenTransaction,
    tenant: str,
    now: int,
    progress: Progress | None = None,
    max_patterns: int | None = None,
) -> ConsolidationResult:
    """Update the lessons of all marked patterns, or of at most `max_patterns`."""
    ((pending,),) = read("SELECT count(*) FROM pending_patterns WHERE tenant = ?", (tenant,))
    target_count = pending if max_patterns is None else min(max_patterns, pending)
    if not target_count:
        return ConsolidationResult(remaining=pending)
    prompt = Prompt()
    lessons: list[Lesson] = []
    processed_count = 0
    while processed_count < target_count:
        with open_transaction(tenant) as writer:
            batch_count, changed_ids = _consolidate_batch(
                writer, tenant, now, min(MAX_PATTERNS_PER_TRANSACTION, target_count - processed_count), prompt
            )
        if not batch_count:  # another process consolidated them
            break
        processed_count += batch_count
        lessons += [
            lesson for lesson_id in changed_ids if (lesson := find_lesson(read, tenant, lesson_id, now)) is not None
        ]
        if progress is not None:
            progress(processed_count, target_count)
    ((remaining,),) = read("SELECT count(*) FROM pending_patterns WHERE tenant = ?", (tenant,))
    return ConsolidationResult(patterns=processed_count, remaining=remaining, lessons=tuple(lessons))


def _consolidate_batch(writer: Any, tenant: str, now: int, max_patterns: int, prompt: Prompt) -> tuple[int, list[str]]:
    """Consolidate patterns in one transaction. Return their number and the ids of changed lessons."""
    read = _make_reader(writer)
    rows = read(
        "SELECT pattern FROM pending_patterns WHERE tenant = ? ORDER BY pattern LIMIT ?", (tenant, max_patterns)
    )
    query = FixQuery(now=now)
    fix_context = fix_queries.load_context(read, tenant, query)
    changed_ids: list[str] = []
    for (id,) in rows:
        writer.execute("DELETE FROM pending_patterns WHERE tenant = ? AND pattern = ?", (tenant, id))
        for stored_lesson in consolidation.update_lessons(
            _load_inputs(read, tenant, id, query, fix_context), now, prompt
        ):
            write_stored_lesson(writer, tenant, stored_lesson)
            changed_ids.append(stored_lesson.lesson.id)
        _delete_orphaned(writer, tenant, id)
    return len(rows), changed_ids


def _load_inputs(
    read: ReadRows, tenant: str, id: str, query: FixQuery, fix_context: prerequisites.FixContext
) -> consolidation.LessonInputs:
    fix_records = _load_fix_records(read, tenant, id)
    rows = read("SELECT body FROM lessons WHERE tenant = ? AND pattern = ?", (tenant, id))
    stored_by_id = {
        stored_lesson.lesson.id: stored_lesson for stored_lesson in (decode(body, StoredLesson) for (body,) in rows)
    }
    pattern_rows = read(
        "SELECT tool, fingerprint, kind, message, template, runs FROM patterns WHERE tenant = ? AND id = ?",
        (tenant, id),
    )
    tool, fingerprint, kind, message, template, runs = pattern_rows[0] if pattern_rows else ("", "", "", "", "", 0)
    fixes, best = prerequisites.find_best_fix(
        fix_records, query, fix_context, lambda fix: consolidation.qualifies_as_lesson(fix, runs)
    )
    pattern = Pattern(
        id=id, tool=tool, fingerprint=fingerprint, kind=kind, message=message, template=template, runs=runs
    )
    if best is None or not pattern_rows:
        return consolidation.LessonInputs(pattern, fixes, None, None, stored_by_id)
    steps = read(
        "SELECT body FROM steps WHERE tenant = ? AND name = ? AND fingerprint = ? ORDER BY started_at DESC, run, seq "
        "LIMIT 1",
        (tenant, tool, fingerprint),
    )
    arguments = row_encoding.decode_body(steps[0][0], Step).arguments if steps else None
    return consolidation.LessonInputs(
        pattern, fixes, best, arguments if isinstance(arguments, dict) else None, stored_by_id
    )


def _delete_orphaned(writer: Any, tenant: str, pattern: str) -> None:
    """Delete lessons whose fix no longer exists, unless a person edited or decided on them."""
    fix_ids = {
        id for (id,) in writer.execute("SELECT id FROM fixes WHERE tenant = ? AND pattern = ?", (tenant, pattern))
    }
    rows = writer.execute("SELECT id, body FROM lessons WHERE tenant = ? AND pattern = ?", (tenant, pattern)).fetchall()
    for id, body in rows:
        stored_lesson = decode(body, StoredLesson)
        if stored_lesson.lesson.fix_id not in fix_ids and consolidation.is_orphaned(stored_lesson, None):
            writer.execute("DELETE FROM lessons WHERE tenant = ? AND id = ?", (tenant, id))
