"""Lessons in a database: storage, queries with current counts, and incremental consolidation.

Each batch marks the patterns whose fixes changed (`mark_for_consolidation`). Consolidation processes only marked
patterns, a few per transaction, so its cost depends on the number of changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mulligan.prompt import Prompt
from mulligan.records import Fix, Lesson, LessonSource, LessonVerdict, Pattern, Step, decode, encode
from mulligan.remember import bodies, learning, patterns, recipes, voting
from mulligan.remember.connection import upsert
from mulligan.remember.fixes import Tally
from mulligan.remember.lessons import making
from mulligan.remember.lessons.making import Kept
from mulligan.remember.store import DAY, Consolidated, FixQuery, LessonQuery, Progress

AT_ONCE = 50
"""Patterns per transaction, so that other writers are not blocked for long."""

_LESSON = upsert("lessons", "tenant id", "tool pattern source body")

Read = Callable[..., list[Any]]
Writing = Callable[..., contextlib.AbstractContextManager[Any]]
"""Open a transaction as a context manager of a writer with `execute`."""


# Read


def answer(read: Read, tenant: str, query: LessonQuery) -> list[Lesson]:
    """Return the lessons that match a query, with their current counts."""
    wanted = (("tool", query.tool), ("source", query.source))
    given = [(name, value) for name, value in wanted if value is not None]
    where = "".join(f" AND {name} = ?" for name, _ in given)
    values = (tenant, *(value for _, value in given), making.EVERY)
    rows = read(f"SELECT body FROM lessons WHERE tenant = ?{where} ORDER BY id LIMIT ?", values)
    kept = [decode(body, Kept) for (body,) in rows]
    return _told(read, tenant, kept, query)


def find(read: Read, tenant: str, id: str, now: int) -> Lesson | None:
    kept = _kept(read, tenant, id)
    found = _told(read, tenant, [kept], LessonQuery(now=now)) if kept is not None else []
    return found[0] if found else None


def _kept(read: Read, tenant: str, id: str) -> Kept | None:
    """Load one stored lesson by its id or a unique prefix of it."""
    sql = "SELECT id, body FROM lessons WHERE tenant = ? AND id >= ? AND id < ? ORDER BY id LIMIT 2"
    rows = read(sql, (tenant, id, id + "\U0010ffff"))
    meant = [body for each, body in rows if each == id] or ([body for _, body in rows] if len(rows) == 1 else [])
    return decode(meant[0], Kept) if meant and id else None


def _told(read: Read, tenant: str, kept: Sequence[Kept], query: LessonQuery) -> list[Lesson]:
    if not kept:
        return []
    asked = FixQuery(tool=query.tool, now=query.now)
    known = learning.known_of(read, tenant, asked)
    records: dict[str, dict[str, tuple[Fix, tuple[str, ...]]]] = {}
    found = {}
    parts: dict[str, tuple[str, ...]] = {}
    for each in kept:
        lesson = each.lesson
        if lesson.pattern and lesson.pattern not in records:
            records[lesson.pattern] = recipes.recorded(_tallies(read, tenant, lesson.pattern), asked, known)
        fix, parts[lesson.id] = records.get(lesson.pattern, {}).get(lesson.fix, (None, ()))
        if not making.is_gone(each, fix):
            standing = making.Standing(
                fix,
                _met(read, tenant, lesson.pattern) if fix is not None else 0,
                known.since.get(lesson.tool, 0),
                known.verdicts.get(lesson.fix),
            )
            found[lesson.id] = making.judged(each, standing, query.now)
    return [
        _counted(read, tenant, lesson, parts[lesson.id], query.now) for lesson in making.in_order(found.values(), query)
    ]


def _met(read: Read, tenant: str, pattern: str) -> int:
    """Count the runs in which a pattern occurred."""
    rows = read("SELECT runs FROM patterns WHERE tenant = ? AND id = ?", (tenant, pattern))
    return int(rows[0][0]) if rows else 0


def _tallies(read: Read, tenant: str, pattern: str) -> list[Tally]:
    rows = read("SELECT body FROM fixes WHERE tenant = ? AND pattern = ? ORDER BY last DESC LIMIT ?",
                (tenant, pattern, learning.TALLIES))  # fmt: skip
    return [decode(body, Tally) for (body,) in rows]


def _counted(read: Read, tenant: str, lesson: Lesson, parts: Sequence[str], now: int) -> Lesson:
    """Return the lesson with its occurrences, agents, and recovery counts before and after activation."""
    if not lesson.pattern:
        return lesson
    rows = read("SELECT count, first FROM patterns WHERE tenant = ? AND id = ?", (tenant, lesson.pattern))
    agents = read(
        "SELECT agent, count FROM pattern_agents WHERE tenant = ? AND id = ? ORDER BY count DESC, agent LIMIT ?",
        (tenant, lesson.pattern, patterns.AGENTS),
    )
    seen, first = rows[0] if rows else (0, 0)
    lesson = msgspec.structs.replace(lesson, seen=seen, agents=dict(agents))
    if not lesson.since or not seen:
        return lesson
    met = _runs(read, "met", "pattern", "started", tenant, (lesson.pattern,), lesson.since)
    by_it = _runs(read, "votes", "fix", "at", tenant, parts, lesson.since, " AND worked = 1") if parts else set()
    middle = patterns.day_of(lesson.since)
    days = range(middle - making.EFFECT * DAY, middle + (making.EFFECT + 1) * DAY, DAY)
    marks = ", ".join("?" * len(days))
    sums = read(
        f"SELECT day, count, overcome FROM pattern_days WHERE tenant = ? AND day IN ({marks}) AND id = ?",
        (tenant, *days, lesson.pattern),
    )
    before, after = making.spans({day: (met, overcome) for day, met, overcome in sums}, lesson.since, now, first)
    return msgspec.structs.replace(
        lesson, helped=len(met & by_it), unhelped=len(met - by_it), before=before, after=after
    )


def _runs(
    read: Read, table: str, column: str, time: str, tenant: str, ids: Sequence[str], since: int, more: str = ""
) -> set[str]:
    """Return the ids of the latest runs since a time that have a row with one of these ids."""
    return {
        run
        for id in ids
        for (run,) in read(
            f"SELECT run FROM {table} WHERE tenant = ? AND {column} = ? AND {time} >= ?{more} ORDER BY {time} DESC "
            "LIMIT ?",
            (tenant, id, since, making.COUNTED),
        )
    }


# Write


def keep(writer: Any, tenant: str, lesson: Lesson, now: int) -> bool:
    before = _kept(_reader(writer), tenant, lesson.id)
    kept = making.taken(before, lesson, now)
    if kept is not None:
        put(writer, tenant, kept)
    return kept is not None


def remove(writer: Any, tenant: str, source: LessonSource) -> int:
    place = (tenant, source)
    (count,) = writer.execute("SELECT count(*) FROM lessons WHERE tenant = ? AND source = ?", place).fetchone()
    writer.execute("DELETE FROM lessons WHERE tenant = ? AND source = ?", place)
    return int(count)


def put(writer: Any, tenant: str, kept: Kept) -> None:
    lesson = kept.lesson
    row = (tenant, lesson.id, lesson.tool, lesson.pattern, lesson.source, encode(kept))
    writer.execute(_LESSON, row)


def decide(writer: Any, tenant: str, id: str, verdict: LessonVerdict, at: int) -> str | None:
    """Store an operator decision. Return the id of the lesson, or `None` if there is none."""
    kept = _kept(_reader(writer), tenant, id)
    if kept is None:
        return None
    put(writer, tenant, making.decided(kept, verdict, at))
    # Approving or revoking a lesson also decides its fix. Disabling a lesson only hides the lesson.
    if verdict != "disable" and kept.lesson.fix:
        learning.decide(writer, tenant, kept.lesson.fix, approved=verdict == "approve", at=at)
    return kept.lesson.id


def forget_patterns(writer: Any, tenant: str, ids: Sequence[str]) -> None:
    """Delete the learned lessons of patterns and mark the patterns, to rebuild from the remaining records."""
    for id in ids:
        rows = writer.execute("SELECT id, body FROM lessons WHERE tenant = ? AND pattern = ?", (tenant, id)).fetchall()
        for lesson, body in rows:
            kept = decode(body, Kept)
            if kept.lesson.source == "learned" and not kept.lesson.edited:
                writer.execute("DELETE FROM lessons WHERE tenant = ? AND id = ?", (tenant, lesson))
        voting.note_news(writer, tenant, id)


def forget_where(writer: Any, tenant: str, is_gone: Callable[[Kept, bytes], bool]) -> None:
    for id, body in writer.execute("SELECT id, body FROM lessons WHERE tenant = ?", (tenant,)).fetchall():
        if is_gone(decode(body, Kept), body):
            writer.execute("DELETE FROM lessons WHERE tenant = ? AND id = ?", (tenant, id))


def _reader(writer: Any) -> Read:
    def read(sql: str, values: Sequence[Any] = ()) -> list[Any]:
        rows: list[Any] = writer.execute(sql, tuple(values)).fetchall()
        return rows

    return read


# Consolidate


def consolidate(
    read: Read, writing: Writing, tenant: str, now: int, progress: Progress | None = None, most: int | None = None
) -> Consolidated:
    """Update the lessons of all marked patterns, or of at most `max_patterns`."""
    ((waiting,),) = read("SELECT count(*) FROM unlearned WHERE tenant = ?", (tenant,))
    todo = waiting if most is None else min(most, waiting)
    if not todo:
        return Consolidated(left=waiting)
    words = Prompt()
    told: list[Lesson] = []
    done = 0
    while done < todo:
        with writing(tenant) as writer:
            some, made = _some(writer, tenant, now, min(AT_ONCE, todo - done), words)
        if not some:  # another process consolidated them
            break
        done += some
        told += [found for each in made if (found := find(read, tenant, each, now)) is not None]
        if progress is not None:
            progress(done, todo)
    ((left,),) = read("SELECT count(*) FROM unlearned WHERE tenant = ?", (tenant,))
    return Consolidated(patterns=done, left=left, lessons=tuple(told))


def _some(writer: Any, tenant: str, now: int, most: int, words: Prompt) -> tuple[int, list[str]]:
    """Consolidate patterns in one transaction. Return their number and the ids of changed lessons."""
    read = _reader(writer)
    rows = read("SELECT pattern FROM unlearned WHERE tenant = ? ORDER BY pattern LIMIT ?", (tenant, most))
    query = FixQuery(now=now)
    known = learning.known_of(read, tenant, query)
    news: list[str] = []
    for (id,) in rows:
        writer.execute("DELETE FROM unlearned WHERE tenant = ? AND pattern = ?", (tenant, id))
        for kept in making.renewed(_ground(read, tenant, id, query, known), now, words):
            put(writer, tenant, kept)
            news.append(kept.lesson.id)
        _sweep(writer, tenant, id)
    return len(rows), news


def _ground(read: Read, tenant: str, id: str, query: FixQuery, known: recipes.Known) -> making.Ground:
    tallies = _tallies(read, tenant, id)
    rows = read("SELECT body FROM lessons WHERE tenant = ? AND pattern = ?", (tenant, id))
    kept = {each.lesson.id: each for each in (decode(body, Kept) for (body,) in rows)}
    about = read(
        "SELECT tool, fingerprint, kind, message, template, runs FROM patterns WHERE tenant = ? AND id = ?",
        (tenant, id),
    )
    tool, fingerprint, kind, message, template, runs = about[0] if about else ("", "", "", "", "", 0)
    found, best = recipes.best(tallies, query, known, lambda fix: making.is_worth(fix, runs))
    pattern = Pattern(
        id=id, tool=tool, fingerprint=fingerprint, kind=kind, message=message, template=template, runs=runs
    )
    if best is None or not about:
        return making.Ground(pattern, found, None, None, kept)
    steps = read(
        "SELECT body FROM steps WHERE tenant = ? AND name = ? AND fingerprint = ? ORDER BY started DESC, run, seq "
        "LIMIT 1",
        (tenant, tool, fingerprint),
    )
    arguments = bodies.read(steps[0][0], Step).arguments if steps else None
    return making.Ground(pattern, found, best, arguments if isinstance(arguments, dict) else None, kept)


def _sweep(writer: Any, tenant: str, pattern: str) -> None:
    """Delete lessons whose fix no longer exists, unless a person edited or decided on them."""
    left = {id for (id,) in writer.execute("SELECT id FROM fixes WHERE tenant = ? AND pattern = ?", (tenant, pattern))}
    rows = writer.execute("SELECT id, body FROM lessons WHERE tenant = ? AND pattern = ?", (tenant, pattern)).fetchall()
    for id, body in rows:
        kept = decode(body, Kept)
        if kept.lesson.fix not in left and making.is_gone(kept, None):
            writer.execute("DELETE FROM lessons WHERE tenant = ? AND id = ?", (tenant, id))
