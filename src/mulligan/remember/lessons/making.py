"""Consolidation: rules that turn the fixes of a pattern into a lesson and determine its state.

Pure functions of records. A stored lesson has only its texts and the operator's decision. Its counts come from the
underlying fix at read time, so that a fix that is revoked, forgotten or demoted affects the lesson immediately.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.calls import TOOL, wilson
from mulligan.failure import Unanswerable
from mulligan.prompt import Prompt
from mulligan.records import (
    LAST_PART,
    OPEN,
    Change,
    Fix,
    Lesson,
    LessonState,
    LessonVerdict,
    Pattern,
    Record,
    Span,
    lesson_id,
    pattern_id,
)
from mulligan.redaction import clean
from mulligan.redaction.expressions import Expression
from mulligan.remember import patterns, similar
from mulligan.remember.fixes import UNUSED, Verdict
from mulligan.remember.store import DAY, LessonQuery

RUNS = 3
"""Runs in which a fix must have succeeded before it becomes a lesson: two may be a coincidence."""
SHARE = 0.5
"""Minimum successes per trial of the fix."""
MET = 0.5
"""Minimum successes per run with the pattern. A fix below it is one of many recoveries (`evals/lessons.py`)."""
WORDS = 900
"""Maximum length of each text of a lesson."""
EFFECT = 60
"""Days compared before and after the activation of a lesson."""
COUNTED = 1000
"""Latest runs read to count how many a lesson helped."""
EVERY = 5000
"""Maximum number of stored lessons read for one query."""
TEXTS = ("mistake", "correction", "error", "failed", "works")
"""Text fields of a lesson, which a person may edit."""


class Kept(Record, frozen=True):
    """A lesson as stored: texts and the operator's decision, without counts."""

    lesson: Lesson
    said: str = ""
    at: int = 0
    """Time of the last operator decision."""
    since: int = 0
    """Time of activation; 0 if never activated."""


class Ground(msgspec.Struct, frozen=True):
    """Records that the lessons of one pattern are built from."""

    pattern: Pattern
    fixes: Sequence[Fix]
    best: Fix | None
    """The fix with the highest confidence among those that qualify as a lesson."""
    arguments: Mapping[str, Any] | None
    """Arguments of a failed call with this pattern."""
    kept: Mapping[str, Kept]
    """Existing lessons of the pattern, by id."""


# Build


def renewed(ground: Ground, now: int, words: Prompt) -> list[Kept]:
    """Return the lessons of a pattern that are new, have changed advice, or became active."""
    known = dict(ground.kept)
    changed: dict[str, None] = {}
    if ground.best is not None:
        made = worded(ground.best, ground.pattern, ground.arguments, words)
        before = known.get(made.id) if made.correction else None
        if made.correction and (before is None or (not before.lesson.edited and _is_other(before.lesson, made))):
            created = before.lesson.created if before is not None else now
            made = msgspec.structs.replace(made, created=created or now)
            known[made.id] = Kept(lesson=made) if before is None else msgspec.structs.replace(before, lesson=made)
            changed[made.id] = None
    fixes = {fix.id: fix for fix in ground.fixes}
    for id, kept in known.items():
        fix = fixes.get(kept.lesson.fix)
        if not kept.since and fix is not None and _is_proven(fix) and kept.said not in ("disable", "revoke"):
            if not is_common(fix, ground.pattern.runs):
                continue
            known[id] = msgspec.structs.replace(kept, since=now)
            changed[id] = None
    return [known[id] for id in changed]


def is_worth(fix: Fix, met: int) -> bool:
    """Return whether a fix is useful advice before the first failure and has succeeded often enough.

    `pattern_runs` is the number of runs in which the pattern occurred.
    """
    if fix.sort not in ("change", "recipe") or fix.state == "revoked" or not fix.tellable:
        return False
    if fix.worked < RUNS or fix.worked < SHARE * fix.tried or not is_common(fix, met):
        return False
    return fix.sort == "recipe" or any(map(_says_something, fix.changes))


def is_common(fix: Fix, met: int) -> bool:
    return fix.worked >= MET * met


def _says_something(change: Change) -> bool:
    """Return whether a change is useful advice: not an unspecified value, and not a dropped argument."""
    if change.path == TOOL or change.how in ("rename", "cast", "parse", "wrap", "trim", "enum"):
        return True
    if change.how == "drop":
        return False
    return change.after is None or isinstance(change.after, bool | int | float)


def closed(change: Change) -> Change:
    """Return the change with only shareable values: texts of a run are replaced by a placeholder."""
    after = change.after
    is_name = isinstance(after, str) and (change.how in ("rename", "cast") or change.path == TOOL)
    if not (is_name or after is None or isinstance(after, bool | int | float) or after in (OPEN, LAST_PART)):
        after = OPEN
    return msgspec.structs.replace(change, before=None, after=after)


def worded(fix: Fix, pattern: Pattern, arguments: Mapping[str, Any] | None, words: Prompt) -> Lesson:
    """Build a lesson from a fix. The sentences come from `prompt/`."""
    changes = tuple(map(closed, fix.changes))
    given = dict(arguments) if arguments else {each.path: OPEN for each in changes if each.path != TOOL}
    tool = next((str(each.after) for each in changes if each.path == TOOL), fix.tool)
    return Lesson(
        id=lesson_id(fix.tool, fix.id),
        tool=fix.tool,
        fingerprint=fix.fingerprint,
        pattern=pattern_id(fix.tool, fix.fingerprint),
        kind=pattern.kind,
        mistake=presentable(words.mistake(fix.tool, pattern.kind, changes, fix.first)),
        correction=presentable(words.correction(fix.tool, changes, fix.first)),
        error=presentable(words.message(pattern.template or pattern.message)),
        failed=presentable(words.example(fix.tool, given)),
        works=presentable(words.example(tool, _applied(given, changes), fix.first)),
        changes=changes,
        first=fix.first,
        fix=fix.id,
    )


def _applied(arguments: Mapping[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """Apply changes to example arguments. Run-specific values become a placeholder."""
    made = dict(arguments)
    for change in changes:
        name = change.path
        if name == TOOL:
            continue
        if change.how == "rename" and isinstance(change.after, str):
            made = {change.after if key == name else key: value for key, value in made.items()}
        elif change.how == "drop":
            made.pop(name, None)
        elif "." not in name:
            is_told = change.after is None or isinstance(change.after, bool | int | float)
            made[name] = change.after if is_told and change.how not in ("cast", "parse", "wrap", "trim") else OPEN
    return made


def _is_other(one: Lesson, other: Lesson) -> bool:
    """Return whether the advice differs. A different example alone does not count."""
    return any(getattr(one, name) != getattr(other, name) for name in ("mistake", "correction", "changes", "first"))


# Submitted by people


def presentable(text: str) -> str:
    """Sanitize a lesson text: no invisible characters, trailing whitespace or repeated blank lines.

    Repeats until the text is stable, because one pass can expose more to remove.
    """
    for _ in range(4):
        lines = [line.rstrip() for line in clean(text, WORDS).expandtabs(4).split("\n")]
        shown = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n").rstrip()
        if shown == text:
            break
        text = shown
    return text


def on_one_line(text: str) -> str:
    return " ".join(clean(" ".join(text.split()), 300).split())


def written(given: Lesson) -> Lesson:
    """Return a submitted lesson with sanitized texts and shareable changes, without counts and state.

    Raise an error if a required text is missing or the id is invalid.
    """
    if given.source == "learned":
        given = msgspec.structs.replace(given, source="file")
    texts = {name: presentable(getattr(given, name)) for name in TEXTS}
    if not texts["mistake"] or not texts["correction"]:
        raise Unanswerable(f"a lesson says what the mistake is and what to do instead; {given.id} does not.")
    if not re.fullmatch(r"les_[0-9a-f]{12}", given.id):
        raise Unanswerable(f"{given.id[:40]!r} is no id of a lesson: les_ and 12 digits of 0-9 and a-f.")
    tool, kind, fingerprint, fix = (
        on_one_line(each) for each in (given.tool, given.kind, given.fingerprint, given.fix)
    )
    return Lesson(
        id=given.id,
        tool=tool,
        kind=kind,
        fingerprint=fingerprint,
        fix=fix,
        pattern=pattern_id(tool, fingerprint) if fingerprint else "",
        mistake=texts["mistake"],
        correction=texts["correction"],
        error=texts["error"],
        failed=texts["failed"],
        works=texts["works"],
        changes=tuple(map(closed, given.changes)),
        first=given.first,
        edited=given.edited or given.source != "seed",
        source=given.source,
        origin=on_one_line(given.origin),
        created=given.created,
    )


def taken(before: Kept | None, given: Lesson, now: int) -> Kept | None:
    """Merge a submitted lesson into the stored one. Return `None` if nothing changes."""
    new = written(given)
    if before is None:
        return Kept(lesson=msgspec.structs.replace(new, created=new.created or now))
    old = before.lesson
    if new.source == "seed" and not new.edited:
        # A seed of a newer version replaces an unedited seed, but never texts that a person wrote.
        new = msgspec.structs.replace(new, created=old.created)
        is_ours = old.source == "seed" and not old.edited
        return msgspec.structs.replace(before, lesson=new) if is_ours and new != old else None
    if all(getattr(old, name) == getattr(new, name) for name in TEXTS):
        return None
    texts = {name: getattr(new, name) for name in TEXTS}
    # An approval covers the approved texts only: changed texts need a new approval.
    said, since = ("", 0) if before.said == "approve" else (before.said, before.since)
    return msgspec.structs.replace(
        before, lesson=msgspec.structs.replace(old, **texts, edited=True), said=said, since=since
    )


def decided(kept: Kept, verdict: LessonVerdict, at: int) -> Kept:
    since = (kept.since or at) if verdict == "approve" else 0
    return msgspec.structs.replace(kept, said=verdict, at=at, since=since)


def names(kept: Kept, tool: str) -> bool:
    """Return whether a lesson is about a tool or names it as a prerequisite or replacement."""
    lesson = kept.lesson
    return tool in (lesson.tool, *(each.tool for each in lesson.first), *(
        each.after for each in lesson.changes if each.path == TOOL))  # fmt: skip


# Evaluate


class Standing(msgspec.Struct, frozen=True):
    """Records that determine the state of a lesson."""

    fix: Fix | None
    met: int
    """Number of runs in which the pattern occurred."""
    schema: int
    """Time of the last schema change of the tool; 0 if none."""
    verdict: Verdict | None
    """Operator decision about the fix."""


def state(kept: Kept, known: Standing, now: int) -> tuple[LessonState, str, bool]:
    """Return the state of a lesson, the reason if it is not active, and whether it is stale."""
    fix, met, schema, verdict = known.fix, known.met, known.schema, known.verdict
    is_approved = kept.said == "approve"
    if kept.said in ("disable", "revoke"):
        return "disabled", "a person disabled it" if kept.said == "disable" else "a person took it back", False
    if verdict is not None and verdict.revoked > max(verdict.approved, kept.at if is_approved else 0):
        return "disabled", "the fix it rests on was taken back", False
    proven = _is_proven(fix)
    stale = bool(schema) and not proven and (kept.at if is_approved else kept.since or kept.lesson.created) < schema
    if stale:
        return "proposed", "the tool's schema has changed since", True
    if proven and fix is not None and not is_approved and not is_common(fix, met):
        return "proposed", f"it helped {fix.worked} of {met} runs that met this; most did something else", False
    if proven and fix is not None and not is_approved and fix.state != "approved" and not fix.tellable:
        return "proposed", fix.why_untold, False
    if proven:
        return "active", "", False
    if is_approved:
        unused = kept.lesson.fix and max(kept.at, fix.last if fix is not None else 0) < now - UNUSED
        return ("expired", "it was not used for 30 days", False) if unused else ("active", "", False)
    if fix is None:
        return "proposed", "nobody has approved it, and nothing is known of how it works here", False
    return ("expired" if fix.state == "expired" else "proposed"), fix.why, False


def _is_proven(fix: Fix | None) -> bool:
    return fix is not None and fix.state in ("promoted", "approved")


def is_gone(kept: Kept, fix: Fix | None) -> bool:
    """Return whether the fix of a learned lesson no longer exists and no person edited or decided on the lesson."""
    return kept.lesson.source == "learned" and fix is None and not kept.said and not kept.lesson.edited


def judged(kept: Kept, known: Standing, now: int) -> Lesson:
    """Return the lesson with its state and the counts of its fix."""
    now_state, why, stale = state(kept, known, now)
    fix = known.fix
    tried, worked = (fix.tried, fix.worked) if fix is not None else (0, 0)
    return msgspec.structs.replace(
        kept.lesson,
        state=now_state,
        why=why,
        stale=stale,
        tried=tried,
        worked=worked,
        confidence=round(wilson(worked, tried), 3),
        since=kept.since,
        last=fix.last if fix is not None else 0,
        agents=fix.agents if fix is not None else {},
    )


def is_asked(lesson: Lesson, query: LessonQuery) -> bool:
    return (
        (query.tool is None or lesson.tool == query.tool)
        and (query.fingerprint is None or lesson.fingerprint == query.fingerprint)
        and (query.kind is None or patterns.is_kind(lesson.kind, query.kind))
        and (query.state is None or lesson.state == query.state)
        and (query.source is None or lesson.source == query.source)
        and (not query.text or _speaks_of(lesson, query.text))
    )


def _speaks_of(lesson: Lesson, text: str) -> bool:
    texts = (lesson.tool, lesson.kind, *(getattr(lesson, name) for name in TEXTS))
    if text.casefold() in "\n".join(texts).casefold():
        return True
    return similar.likeness(similar.sketch(text), similar.sketch(lesson.error)) >= similar.ALIKE


_STATES = ("active", "proposed", "expired", "disabled")


def in_order(found: Iterable[Lesson], query: LessonQuery) -> list[Lesson]:
    """Filter lessons by a query and rank them: active first, then by confidence."""
    asked = [lesson for lesson in found if is_asked(lesson, query)]
    asked.sort(key=lambda each: (
        _STATES.index(each.state), not each.agents.get(query.agent), -each.confidence, -each.worked,
        each.source == "seed", each.id,
    ))  # fmt: skip
    return asked[: max(query.limit, 0)]


def spans(days: Mapping[int, tuple[int, int]], since: int, now: int, first: int) -> tuple[Span, Span]:
    """Count occurrences and recoveries before and after activation, by day.

    The day of activation itself belongs to neither period.
    """
    middle = patterns.day_of(since)
    begin = max(patterns.day_of(first), middle - EFFECT * DAY)
    end = min(patterns.day_of(now), middle + EFFECT * DAY)
    before = [sums for day, sums in days.items() if begin <= day < middle]
    after = [sums for day, sums in days.items() if middle < day <= end]
    return (
        Span(days=max(0, middle - begin) // DAY, met=sum(met for met, _ in before), overcome=sum(o for _, o in before)),
        Span(days=max(0, end - middle) // DAY, met=sum(met for met, _ in after), overcome=sum(o for _, o in after)),
    )


# Reworded by a model


Reword = Callable[[str], str]
"""Model call: takes a prompt, returns the response text."""


def reworded(lesson: Lesson, model: Reword, words: Prompt) -> Lesson | None:
    """Let a model rephrase a lesson. Return `None` if its texts are not usable.

    The model must not introduce values: every value in its texts must occur in the original lesson, and every value of
    the original correction must remain.
    """
    answer = model(words.rewording(lesson.mistake, lesson.correction))
    if not isinstance(answer, str) or len(answer) > 4 * WORDS:
        return None
    found = re.fullmatch(r"\s*Mistake:(.+?)\n\s*Correction:(.+)", answer.strip(), re.DOTALL | re.IGNORECASE)
    if found is None:
        return None
    mistake, correction = (presentable(" ".join(part.split())) for part in found.groups())
    said = values_in(f"{lesson.mistake} {lesson.correction} {lesson.failed} {lesson.works}")
    if not mistake or not correction or not values_in(f"{mistake} {correction}") <= said:
        return None
    needed = values_in(lesson.correction)
    if not needed <= values_in(correction):
        return None  # a missing value makes the correction useless
    return msgspec.structs.replace(lesson, mistake=mistake, correction=correction)


def values_in(text: str) -> frozenset[str]:
    """Return the parts of a text that are not plain words: numbers, identifiers, quotations, URLs."""
    found = re.split(r"[\s,;()=]+", text)
    bare = (part for each in found if (part := each.strip(".!?:'\"`")) and not _PLAIN.fullmatch(part))
    return frozenset([*bare, *re.findall(r'["`][^"`]+["`]', text)])


_PLAIN = Expression(r"[A-Z]?[a-z]+(?:['-][a-z]+)*|[A-Z]|I")
