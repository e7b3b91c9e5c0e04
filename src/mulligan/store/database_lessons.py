"""Lessons in a database: storage, queries with current counts, and incremental consolidation.

Each batch marks the patterns whose fixes changed (`mark_for_consolidation`). Consolidation processes only marked
patterns, a few per transaction, so its cost depends on the number of changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from mulligan.contract.store import DAY, ConsolidationResult, FixQuery, LessonQuery, Progress
from mulligan.core.records import Fix, Lesson, LessonSource, LessonVerdict, Pattern, decode, encode
from mulligan.learn import lessons as lesson_rules
from mulligan.learn import patterns, prerequisites
from mulligan.learn.fixes import FixRecord
from mulligan.learn.lessons import StoredLesson
from mulligan.prompt import Prompt
from mulligan.store import fix_queries, fix_votes, queries
from mulligan.store.connection import RowReader, upsert
from mulligan.store.rows import decode_step

_UPSERT_LESSON = upsert("lessons", "tenant id", "tool pattern source body")
_AFFECTED_RUNS_SQL = (
    "SELECT run FROM run_failures WHERE tenant = ?2 AND pattern = ?1 AND started_at >= ?3 "
    "ORDER BY started_at DESC LIMIT ?4"
)
_RECOVERED_RUNS_SQL = (
    "SELECT run FROM votes WHERE tenant = ?2 AND fix = ?1 AND at >= ?3 AND successful = 1 ORDER BY at DESC LIMIT ?4"
)

OpenTransaction = Callable[..., contextlib.AbstractContextManager[Any]]
"""Open a transaction as a context manager of a writer with `execute`."""


# Read


def find_lessons(read: RowReader, tenant: str, query: LessonQuery) -> list[Lesson]:
    """Return the lessons that match a query, with their current counts."""
    filters = {name: value for name, value in (("tool", query.tool), ("source", query.source)) if value is not None}
    stored_lessons = _load_lessons(read, tenant, filters, lesson_rules.MAX_LESSONS_PER_QUERY)
    return _evaluate_lessons(read, tenant, stored_lessons, query)


def find_lesson(read: RowReader, tenant: str, id: str, now: int) -> Lesson | None:
    stored_lesson = _load_lesson(read, tenant, id)
    stored_lessons = [stored_lesson] if stored_lesson is not None else []
    return next(iter(_evaluate_lessons(read, tenant, stored_lessons, LessonQuery(now=now))), None)


def _load_lessons(read: RowReader, tenant: str, filters: Mapping[str, str], limit: int = 2**62) -> list[StoredLesson]:
    where = "".join(f" AND {name} = ?" for name in filters)
    sql = f"SELECT body FROM lessons WHERE tenant = ?{where} ORDER BY id LIMIT ?"
    return [decode(body, StoredLesson) for (body,) in read(sql, (tenant, *filters.values(), limit))]


def _load_lesson(read: RowReader, tenant: str, id: str) -> StoredLesson | None:
    """Load one stored lesson by its id or a unique prefix of it."""
    sql = "SELECT id, body FROM lessons WHERE tenant = ? AND id >= ? AND id < ? ORDER BY id LIMIT 2"
    rows = read(sql, (tenant, id, id + "\U0010ffff")) if id else []
    is_match = len(rows) == 1 or (rows and rows[0][0] == id)
    return decode(rows[0][1], StoredLesson) if is_match else None


def _evaluate_lessons(
    read: RowReader, tenant: str, stored_lessons: Sequence[StoredLesson], query: LessonQuery
) -> list[Lesson]:
    if not stored_lessons:
        return []
    fix_query = FixQuery(tool=query.tool, now=query.now)
    context = fix_queries.load_context(read, tenant, fix_query)
    fixes_by_pattern: dict[str, dict[str, tuple[Fix, tuple[str, ...]]]] = {"": {}}
    lessons: list[Lesson] = []
    part_ids_by_lesson: dict[str, tuple[str, ...]] = {}
    for stored_lesson in stored_lessons:
        lesson = stored_lesson.lesson
        if lesson.pattern not in fixes_by_pattern:
            records = _load_fix_records(read, tenant, lesson.pattern)
            fixes_by_pattern[lesson.pattern] = prerequisites.index_fixes(records, fix_query, context)
        fix, part_ids_by_lesson[lesson.id] = fixes_by_pattern[lesson.pattern].get(lesson.fix_id, (None, ()))
        if not lesson_rules.is_orphaned(stored_lesson, fix):
            pattern = _load_pattern(read, tenant, lesson.pattern) if fix is not None else None
            basis = lesson_rules.LessonBasis(
                fix,
                pattern.runs if pattern is not None else 0,
                context.promotion_facts().schema_changed_at.get(lesson.tool, 0),
                context.decisions.get(lesson.fix_id),
            )
            lessons.append(lesson_rules.with_state(stored_lesson, basis, query.now))
    return [
        _add_counts(read, tenant, lesson, part_ids_by_lesson[lesson.id], query.now)
        for lesson in lesson_rules.filter_and_rank(lessons, query)
    ]


def _load_pattern(read: RowReader, tenant: str, id: str) -> Pattern | None:
    return next(iter(queries.load_unmerged(read, tenant, (id,))), None)


def _load_fix_records(read: RowReader, tenant: str, pattern: str) -> list[FixRecord]:
    rows = read("SELECT body FROM fixes WHERE tenant = ? AND pattern = ? ORDER BY last_tried_at DESC LIMIT ?",
                (tenant, pattern, fix_queries.MAX_FIXES_PER_PATTERN))  # fmt: skip
    return [decode(body, FixRecord) for (body,) in rows]


def _add_counts(read: RowReader, tenant: str, lesson: Lesson, part_ids: Sequence[str], now: int) -> Lesson:
    """Return the lesson with its occurrences, agents, and recovery counts before and after activation."""
    if not lesson.pattern:
        return lesson
    pattern = _load_pattern(read, tenant, lesson.pattern)
    agents = read(
        "SELECT agent, occurrences FROM pattern_agents WHERE tenant = ? AND id = ? "
        "ORDER BY occurrences DESC, agent LIMIT ?",
        (tenant, lesson.pattern, patterns.MAX_SHOWN_AGENTS),
    )
    lesson = msgspec.structs.replace(lesson, occurrences=pattern.occurrences if pattern else 0, agents=dict(agents))
    if pattern is None or not lesson.active_since:
        return lesson
    limits = (tenant, lesson.active_since, lesson_rules.MAX_COUNTED_RUNS)
    affected_runs = {run for _, run in read.by_key(_AFFECTED_RUNS_SQL, [lesson.pattern], limits)}
    recovered_runs = {run for _, run in read.by_key(_RECOVERED_RUNS_SQL, part_ids, limits)}
    activation_day = patterns.start_of_day(lesson.active_since)
    period = lesson_rules.EFFECT_PERIOD_DAYS * DAY
    days = range(activation_day - period, activation_day + period + DAY, DAY)
    day_counts = read(
        "SELECT day, occurrences, recovered FROM pattern_days WHERE tenant = ? "
        f"AND day IN ({', '.join('?' * len(days))}) AND id = ?",
        (tenant, *days, lesson.pattern),
    )
    before, after = lesson_rules.count_periods(
        {day: (count, recovered) for day, count, recovered in day_counts},
        lesson.active_since,
        now,
        pattern.first_seen_at,
    )
    return msgspec.structs.replace(
        lesson,
        helped_runs=len(affected_runs & recovered_runs),
        unhelped_runs=len(affected_runs - recovered_runs),
        stats_before=before,
        stats_after=after,
    )


# Write


def save_lesson(writer: Any, tenant: str, lesson: Lesson, now: int) -> bool:
    existing = _load_lesson(RowReader(writer), tenant, lesson.id)
    stored_lesson = lesson_rules.merge_submission(existing, lesson, now)
    if stored_lesson is not None:
        write_stored_lesson(writer, tenant, stored_lesson)
    return stored_lesson is not None


def remove_by_source(writer: Any, tenant: str, source: LessonSource) -> int:
    return int(writer.execute("DELETE FROM lessons WHERE tenant = ? AND source = ?", (tenant, source)).rowcount)


def write_stored_lesson(writer: Any, tenant: str, stored_lesson: StoredLesson) -> None:
    lesson = stored_lesson.lesson
    row = (tenant, lesson.id, lesson.tool, lesson.pattern, lesson.source, encode(stored_lesson))
    writer.execute(_UPSERT_LESSON, row)


def record_decision(writer: Any, tenant: str, id: str, verdict: LessonVerdict, at: int) -> str | None:
    """Store an operator decision. Return the id of the lesson, or `None` if there is none."""
    stored_lesson = _load_lesson(RowReader(writer), tenant, id)
    if stored_lesson is None:
        return None
    write_stored_lesson(writer, tenant, lesson_rules.apply_decision(stored_lesson, verdict, at))
    # Approving or revoking a lesson also decides its fix. Disabling a lesson only hides the lesson.
    if verdict != "disable" and stored_lesson.lesson.fix_id:
        fix_queries.store_decision(writer, tenant, stored_lesson.lesson.fix_id, approved=verdict == "approve", at=at)
    return stored_lesson.lesson.id


def forget_patterns(writer: Any, tenant: str, ids: Sequence[str]) -> None:
    """Delete the learned lessons of patterns and mark the patterns, to rebuild from the remaining records."""
    for id in ids:
        forget_where(
            writer, tenant, lambda lesson: lesson.lesson.source == "learned" and not lesson.lesson.edited, pattern=id
        )
        fix_votes.mark_for_consolidation(writer, tenant, id)


def forget_where(writer: Any, tenant: str, should_delete: Callable[[StoredLesson], bool], **filters: str) -> None:
    """Delete the lessons that `should_delete` selects, of those with these column values."""
    for stored_lesson in _load_lessons(RowReader(writer), tenant, filters):
        if should_delete(stored_lesson):
            writer.execute("DELETE FROM lessons WHERE tenant = ? AND id = ?", (tenant, stored_lesson.lesson.id))


# Consolidate


def consolidate(
    ask: Callable[[Callable[[RowReader], Any]], Any],
    open_transaction: OpenTransaction,
    tenant: str,
    now: int,
    progress: Progress | None = None,
    max_patterns: int | None = None,
) -> ConsolidationResult:
    """Update the lessons of all marked patterns, or of at most `max_patterns`."""
    remaining = ask(lambda read: _count_pending(read, tenant))
    target_count = remaining if max_patterns is None else min(max_patterns, remaining)
    prompt = Prompt()
    lessons: list[Lesson] = []
    consolidated_count = 0
    while consolidated_count < target_count:
        changed_ids: list[str] = []
        with open_transaction(tenant) as writer:
            # Patterns per transaction, so that other writers are not blocked for long.
            limit = min(50, target_count - consolidated_count)
            sql = "SELECT pattern FROM pending_patterns WHERE tenant = ? ORDER BY pattern LIMIT ?"
            rows = writer.execute(sql, (tenant, limit)).fetchall()
            context = fix_queries.load_context(RowReader(writer), tenant, FixQuery(now=now))
            for (id,) in rows:
                changed_ids += _consolidate_pattern(writer, tenant, id, now, context, prompt)
        if not rows:  # another process consolidated them
            break
        consolidated_count += len(rows)
        lessons += ask(partial(_find_changed_lessons, tenant=tenant, ids=changed_ids, now=now))
        if progress is not None:
            progress(consolidated_count, target_count)
        remaining = ask(lambda read: _count_pending(read, tenant))
    return ConsolidationResult(patterns=consolidated_count, remaining=remaining, lessons=tuple(lessons))


def _find_changed_lessons(read: RowReader, tenant: str, ids: Sequence[str], now: int) -> list[Lesson]:
    return [lesson for id in ids if (lesson := find_lesson(read, tenant, id, now)) is not None]


def _count_pending(read: RowReader, tenant: str) -> int:
    ((count,),) = read("SELECT count(*) FROM pending_patterns WHERE tenant = ?", (tenant,))
    return int(count)


def _consolidate_pattern(
    writer: Any, tenant: str, id: str, now: int, context: prerequisites.FixContext, prompt: Prompt
) -> list[str]:
    """Update the lessons of a marked pattern. Return the ids of changed lessons."""
    writer.execute("DELETE FROM pending_patterns WHERE tenant = ? AND pattern = ?", (tenant, id))
    inputs = _load_inputs(RowReader(writer), tenant, id, FixQuery(now=now), context)
    changed_lessons = list(lesson_rules.update_lessons(inputs, now, prompt))
    for stored_lesson in changed_lessons:
        write_stored_lesson(writer, tenant, stored_lesson)
    # Delete lessons whose fix no longer exists, unless a person edited or decided on them.
    sql = "SELECT id FROM fixes WHERE tenant = ? AND pattern = ?"
    fix_ids = {fix_id for (fix_id,) in writer.execute(sql, (tenant, id))}
    forget_where(
        writer,
        tenant,
        lambda stored: stored.lesson.fix_id not in fix_ids and lesson_rules.is_orphaned(stored, None),
        pattern=id,
    )
    return [stored_lesson.lesson.id for stored_lesson in changed_lessons]


def _load_inputs(
    read: RowReader, tenant: str, id: str, query: FixQuery, context: prerequisites.FixContext
) -> lesson_rules.LessonInputs:
    stored_by_id = {stored.lesson.id: stored for stored in _load_lessons(read, tenant, {"pattern": id})}
    pattern = _load_pattern(read, tenant, id)
    runs = pattern.runs if pattern is not None else 0
    fixes, best = prerequisites.find_best_fix(
        _load_fix_records(read, tenant, id), query, context, lambda fix: lesson_rules.qualifies_as_lesson(fix, runs)
    )
    if best is None or pattern is None:
        empty = Pattern(id=id, tool="", fingerprint="", kind="", message="", template="")
        return lesson_rules.LessonInputs(pattern or empty, fixes, None, None, stored_by_id)
    steps = read(
        "SELECT run, seq, name, started_at, body FROM steps WHERE tenant = ? AND name = ? AND fingerprint = ? "
        "ORDER BY started_at DESC, run, seq LIMIT 1",
        (tenant, pattern.tool, pattern.fingerprint),
    )
    arguments = decode_step(*steps[0]).arguments if steps else None
    return lesson_rules.LessonInputs(
        pattern, fixes, best, arguments if isinstance(arguments, dict) else None, stored_by_id
    )
