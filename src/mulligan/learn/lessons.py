"""Lessons: how the fixes of a pattern become a lesson (consolidation), its state, and edits by people or a model.

Pure functions of records. A stored lesson has only its texts and the operator's decision. Its counts come from the
underlying fix at read time, so that a fix that is revoked, forgotten or demoted affects the lesson immediately.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import msgspec
from msgspec.structs import replace

from mulligan.contract.store import DAY, LessonQuery, Store, now
from mulligan.core.calls import TOOL_NAME_PATH, wilson_lower_bound
from mulligan.core.failure import UnsupportedOperationError
from mulligan.core.records import (
    LAST_PATH_SEGMENT,
    RUN_SPECIFIC,
    Change,
    Fix,
    Lesson,
    LessonState,
    LessonVerdict,
    Pattern,
    PatternPeriod,
    Record,
    lesson_id,
    pattern_id,
)
from mulligan.learn import patterns
from mulligan.learn.fixes import EXPIRY_MS, OperatorDecision
from mulligan.prompt import Prompt
from mulligan.redaction import sanitize
from mulligan.redaction.regex import LazyRegex

MIN_SUCCESSFUL_RUNS = 3
"""Runs in which a fix must have succeeded before it becomes a lesson: two may be a coincidence."""
MAX_TEXT_CHARS = 900
"""Maximum length of each text of a lesson."""
EFFECT_PERIOD_DAYS = 60
"""Days compared before and after the activation of a lesson."""
MAX_COUNTED_RUNS = 1000
"""Latest runs read to count how many a lesson helped."""
MAX_LESSONS_PER_QUERY = 5000
"""Maximum number of stored lessons read for one query."""
TEXT_FIELDS = ("mistake", "correction", "error", "failing_example", "working_example")
"""Text fields of a lesson, which a person may edit."""


class StoredLesson(Record, frozen=True):
    """A lesson as stored: texts and the operator's decision, without counts."""

    lesson: Lesson
    decision: str = ""
    decided_at: int = 0
    """Time of the last operator decision."""
    active_since: int = 0
    """Time of activation; 0 if never activated."""


class LessonInputs(msgspec.Struct, frozen=True):
    """Records that the lessons of one pattern are built from."""

    pattern: Pattern
    fixes: Sequence[Fix]
    best_fix: Fix | None
    """The fix with the highest confidence among those that qualify as a lesson."""
    example_arguments: Mapping[str, Any] | None
    """Arguments of a failed call with this pattern."""
    stored_lessons: Mapping[str, StoredLesson]
    """Existing lessons of the pattern, by id."""


# Build


def update_lessons(inputs: LessonInputs, now: int, prompt: Prompt) -> list[StoredLesson]:
    """Return the lessons of a pattern that are new, have changed advice, or became active."""
    lessons_by_id = dict(inputs.stored_lessons)
    changed_lessons: dict[str, StoredLesson] = {}
    if inputs.best_fix is not None:
        lesson = build_lesson(inputs.best_fix, inputs.pattern, inputs.example_arguments, prompt)
        stored = lessons_by_id.get(lesson.id) or StoredLesson(lesson=replace(lesson, created_at=now, correction=""))
        if lesson.correction and not stored.lesson.edited and _has_different_advice(stored.lesson, lesson):
            changed_lessons[lesson.id] = replace(
                stored, lesson=replace(lesson, created_at=stored.lesson.created_at or now)
            )
    fixes = {fix.id: fix for fix in inputs.fixes}
    for id, stored in (lessons_by_id | changed_lessons).items():
        fix = fixes.get(stored.lesson.fix_id)
        is_allowed = not stored.active_since and stored.decision not in ("disable", "revoke")
        if is_allowed and _is_promoted(fix) and helps_enough_runs(fix, inputs.pattern.runs):
            changed_lessons[id] = replace(stored, active_since=now)
    return list(changed_lessons.values())


def qualifies_as_lesson(fix: Fix, pattern_runs: int) -> bool:
    """Return whether a fix is useful advice before the first failure and has succeeded often enough.

    `pattern_runs` is the number of runs in which the pattern occurred.
    """
    # Minimum successes per trial of the fix.
    return (
        fix.type in ("change", "prerequisite")
        and fix.state != "revoked"
        and (fix.showable or fix.hidden_reason == f"its state is {fix.state}")  # the lesson has a state of its own
        and fix.successes >= max(MIN_SUCCESSFUL_RUNS, 0.5 * fix.trials)
        and helps_enough_runs(fix, pattern_runs)
        and (fix.type == "prerequisite" or any(map(_is_instructive, fix.changes)))
    )


def helps_enough_runs(fix: Fix, pattern_runs: int) -> bool:
    # Minimum successes per run with the pattern. A fix below it is one of many recoveries (`evals/lessons.py`).
    return fix.successes >= 0.5 * pattern_runs


def _is_instructive(change: Change) -> bool:
    """Return whether a change is useful advice: not an unspecified value, and not a dropped argument."""
    if change.path == TOOL_NAME_PATH or change.operation in ("rename", "cast", "parse", "wrap", "trim", "enum"):
        return True
    return change.operation != "drop" and _is_scalar(change.after)


def _is_scalar(value: Any) -> bool:
    """Return whether a value is null, a boolean or a number, so that it contains no text of a run."""
    return value is None or isinstance(value, bool | int | float)


def to_shareable_change(change: Change) -> Change:
    """Return the change with only shareable values: texts of a run are replaced by a placeholder."""
    after = change.after
    is_name = isinstance(after, str) and (change.operation in ("rename", "cast") or change.path == TOOL_NAME_PATH)
    is_shareable = is_name or _is_scalar(after) or after == LAST_PATH_SEGMENT
    return replace(change, before=None, after=after if is_shareable else RUN_SPECIFIC)


def build_lesson(fix: Fix, pattern: Pattern, arguments: Mapping[str, Any] | None, prompt: Prompt) -> Lesson:
    """Build a lesson from a fix. The sentences come from `prompt/`."""
    changes = tuple(map(to_shareable_change, fix.changes))
    example_arguments = (
        dict(arguments)
        if arguments
        else {change.path: RUN_SPECIFIC for change in changes if change.path != TOOL_NAME_PATH}
    )
    working_tool = next((str(change.after) for change in changes if change.path == TOOL_NAME_PATH), fix.tool)
    return Lesson(
        id=lesson_id(fix.tool, fix.id),
        tool=fix.tool,
        fingerprint=fix.fingerprint,
        pattern=pattern_id(fix.tool, fix.fingerprint),
        kind=pattern.kind,
        mistake=sanitize_lesson_text(prompt.mistake(fix.tool, pattern.kind, changes, fix.prerequisites)),
        correction=sanitize_lesson_text(prompt.correction(fix.tool, changes, fix.prerequisites)),
        error=sanitize_lesson_text(prompt.message(pattern.template or pattern.message)),
        failing_example=sanitize_lesson_text(prompt.example(fix.tool, example_arguments)),
        working_example=sanitize_lesson_text(
            prompt.example(working_tool, _apply_changes(example_arguments, changes), fix.prerequisites)
        ),
        changes=changes,
        prerequisites=fix.prerequisites,
        fix_id=fix.id,
    )


def _apply_changes(arguments: Mapping[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """Apply changes to example arguments. Run-specific values become a placeholder."""
    working_arguments = dict(arguments)
    for change in changes:
        name, after = change.path, change.after
        if name == TOOL_NAME_PATH:
            continue
        if change.operation == "rename" and isinstance(after, str):
            working_arguments = {after if key == name else key: value for key, value in working_arguments.items()}
        elif change.operation == "drop":
            working_arguments.pop(name, None)
        elif "." not in name:
            is_shareable_value = _is_scalar(after) and change.operation not in ("cast", "parse", "wrap", "trim")
            working_arguments[name] = after if is_shareable_value else RUN_SPECIFIC
    return working_arguments


def _has_different_advice(existing: Lesson, candidate: Lesson) -> bool:
    """Return whether the advice differs. A different example alone does not count."""
    return any(
        getattr(existing, name) != getattr(candidate, name)
        for name in ("mistake", "correction", "changes", "prerequisites")
    )


# Submitted by people


def sanitize_lesson_text(text: str) -> str:
    """Sanitize a lesson text: no invisible characters, trailing whitespace or repeated blank lines.

    Repeats until the text is stable, because one pass can expose more to remove.
    """
    for _ in range(4):
        lines = [line.rstrip() for line in sanitize(text, MAX_TEXT_CHARS).expandtabs(4).split("\n")]
        sanitized = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n").rstrip()
        if sanitized == text:
            break
        text = sanitized
    return text


def sanitize_line(text: str) -> str:
    return " ".join(sanitize(" ".join(text.split()), 300).split())


def normalize_submission(submission: Lesson) -> Lesson:
    """Return a submitted lesson with sanitized texts and shareable changes, without counts and state.

    Raise an error if a required text is missing or the id is invalid.
    """
    texts: dict[str, Any] = {name: sanitize_lesson_text(getattr(submission, name)) for name in TEXT_FIELDS}
    if not texts["mistake"] or not texts["correction"]:
        raise UnsupportedOperationError(f"Lesson {submission.id} is incomplete. Give both a mistake and a correction.")
    if not re.fullmatch(r"les_[0-9a-f]{12}", submission.id):
        raise UnsupportedOperationError(
            f"Invalid lesson id {submission.id[:40]!r}. Use les_ and 12 hexadecimal digits."
        )
    line_fields = ("tool", "kind", "fingerprint", "fix_id", "origin")
    lines: dict[str, Any] = {name: sanitize_line(getattr(submission, name)) for name in line_fields}
    return Lesson(
        id=submission.id,
        pattern=pattern_id(lines["tool"], lines["fingerprint"]) if lines["fingerprint"] else "",
        changes=tuple(map(to_shareable_change, submission.changes)),
        prerequisites=submission.prerequisites,
        edited=submission.edited or submission.source != "seed",
        source="file" if submission.source == "learned" else submission.source,
        created_at=submission.created_at,
        **texts | lines,
    )


def merge_submission(existing: StoredLesson | None, submission: Lesson, now: int) -> StoredLesson | None:
    """Merge a submitted lesson into the stored one. Return `None` if nothing changes."""
    new = normalize_submission(submission)
    if existing is None:
        return StoredLesson(lesson=replace(new, created_at=new.created_at or now))
    old = existing.lesson
    if new.source == "seed" and not new.edited:
        # A seed of a newer version replaces an unedited seed, but never texts that a person wrote.
        new = replace(new, created_at=old.created_at)
        is_unedited_seed = old.source == "seed" and not old.edited
        return replace(existing, lesson=new) if is_unedited_seed and new != old else None
    if all(getattr(old, name) == getattr(new, name) for name in TEXT_FIELDS):
        return None
    texts = {name: getattr(new, name) for name in TEXT_FIELDS}
    # An approval covers the approved texts only: changed texts need a new approval.
    decision, since = ("", 0) if existing.decision == "approve" else (existing.decision, existing.active_since)
    return replace(existing, lesson=replace(old, **texts, edited=True), decision=decision, active_since=since)


def apply_decision(stored_lesson: StoredLesson, verdict: LessonVerdict, at: int) -> StoredLesson:
    since = (stored_lesson.active_since or at) if verdict == "approve" else 0
    return replace(stored_lesson, decision=verdict, decided_at=at, active_since=since)


def mentions_tool(stored_lesson: StoredLesson, tool: str) -> bool:
    """Return whether a lesson is about a tool or names it as a prerequisite or replacement."""
    lesson = stored_lesson.lesson
    return tool in (lesson.tool, *(prerequisite.tool for prerequisite in lesson.prerequisites), *(
        change.after for change in lesson.changes if change.path == TOOL_NAME_PATH))  # fmt: skip


# Evaluate


class LessonBasis(msgspec.Struct, frozen=True):
    """Records that determine the state of a lesson."""

    fix: Fix | None
    pattern_runs: int
    """Number of runs in which the pattern occurred."""
    schema_changed_at: int
    """Time of the last schema change of the tool; 0 if none."""
    operator_decision: OperatorDecision | None
    """Operator decision about the fix."""


def determine_state(stored_lesson: StoredLesson, basis: LessonBasis, now: int) -> tuple[LessonState, str, bool]:
    """Return the state of a lesson, the reason if it is not active, and whether it is stale."""
    fix, operator_decision, lesson = basis.fix, basis.operator_decision, stored_lesson.lesson
    is_approved = stored_lesson.decision == "approve"
    approved_at = stored_lesson.decided_at if is_approved else 0
    if stored_lesson.decision in ("disable", "revoke"):
        return "disabled", f"{stored_lesson.decision}d by a person", False
    if operator_decision is not None and operator_decision.revoked > max(operator_decision.approved, approved_at):
        return "disabled", "its fix was revoked", False
    if _is_promoted(fix):
        if not is_approved and not helps_enough_runs(fix, basis.pattern_runs):
            runs = f"{fix.successes} of {basis.pattern_runs} runs with this pattern"
            return "proposed", f"its fix succeeded in {runs}; most recovered otherwise", False
        if not is_approved and fix.state != "approved" and not fix.showable:
            return "proposed", fix.hidden_reason, False
        return "active", "", False
    if (approved_at if is_approved else stored_lesson.active_since or lesson.created_at) < basis.schema_changed_at:
        return "proposed", "the tool's schema has changed since then", True
    if is_approved:
        is_unused = lesson.fix_id and max(approved_at, fix.last_tried_at if fix is not None else 0) < now - EXPIRY_MS
        return ("expired", "not used for 30 days", False) if is_unused else ("active", "", False)
    if fix is None:
        return "proposed", "not approved, and without trials in this store", False
    return ("expired" if fix.state == "expired" else "proposed"), fix.reason, False


def _is_promoted(fix: Fix | None) -> TypeGuard[Fix]:
    return fix is not None and fix.state in ("promoted", "approved")


def is_orphaned(stored_lesson: StoredLesson, fix: Fix | None) -> bool:
    """Return whether the fix of a learned lesson no longer exists and no person edited or decided on the lesson."""
    lesson = stored_lesson.lesson
    return lesson.source == "learned" and fix is None and not stored_lesson.decision and not lesson.edited


def with_state(stored_lesson: StoredLesson, basis: LessonBasis, now: int) -> Lesson:
    """Return the lesson with its state and the counts of its fix."""
    state, reason, stale = determine_state(stored_lesson, basis, now)
    fix = basis.fix or Fix(id="", tool="", fingerprint="")
    return replace(
        stored_lesson.lesson,
        state=state,
        reason=reason,
        stale=stale,
        trials=fix.trials,
        successes=fix.successes,
        followed=fix.followed,
        confidence=round(wilson_lower_bound(fix.successes, fix.trials), 3),
        active_since=stored_lesson.active_since,
        last_tried_at=fix.last_tried_at,
        agents=fix.agents,
    )


def matches_query(lesson: Lesson, query: LessonQuery) -> bool:
    return (
        (query.tool is None or lesson.tool == query.tool)
        and (query.fingerprint is None or lesson.fingerprint == query.fingerprint)
        and (query.kind is None or patterns.matches_kind(lesson.kind, query.kind))
        and (query.state is None or lesson.state == query.state)
        and (query.source is None or lesson.source == query.source)
        and (not query.text or _mentions_text(lesson, query.text))
    )


def _mentions_text(lesson: Lesson, text: str) -> bool:
    texts = (lesson.tool, lesson.kind, *(getattr(lesson, name) for name in TEXT_FIELDS))
    if text.casefold() in "\n".join(texts).casefold():
        return True
    return patterns.sketch_similarity(patterns.sketch(text), patterns.sketch(lesson.error)) >= patterns.MIN_SIMILARITY


def filter_and_rank(lessons: Iterable[Lesson], query: LessonQuery) -> list[Lesson]:
    """Filter lessons by a query and return one page of them in its order."""
    matching_lessons = [
        lesson
        for lesson in lessons
        if matches_query(lesson, query) and (query.after is None or query.position_of(lesson) > query.after)
    ]
    return sorted(matching_lessons, key=query.position_of)[: max(query.limit, 0)]


def count_periods(
    days: Mapping[int, tuple[int, int]], active_since: int, now: int, first_seen_at: int
) -> tuple[PatternPeriod, PatternPeriod]:
    """Count occurrences and recoveries before and after activation, by day.

    The day of activation itself belongs to neither period.
    """
    activation_day = patterns.start_of_day(active_since)
    begin = max(patterns.start_of_day(first_seen_at), activation_day - EFFECT_PERIOD_DAYS * DAY)
    end = min(patterns.start_of_day(now), activation_day + EFFECT_PERIOD_DAYS * DAY)

    def count(first: int, last: int) -> PatternPeriod:
        sums = [counts for day, counts in days.items() if first <= day <= last]
        return PatternPeriod(
            days=max(0, last - first + DAY) // DAY,
            occurrences=sum(occurrences for occurrences, _ in sums),
            recovered=sum(recovered for _, recovered in sums),
        )

    return count(begin, activation_day - DAY), count(activation_day + DAY, end)


# Reworded by a model


RewordModel = Callable[[str], str]
"""Model call: takes a prompt, returns the response text."""


def reword_lesson(lesson: Lesson, model: RewordModel, prompt: Prompt) -> Lesson | None:
    """Let a model rephrase a lesson. Return `None` if its texts are not usable.

    The model must not introduce values: every value in its texts must occur in the original lesson, and every value of
    the original correction must remain.
    """
    answer = model(prompt.rewording_request(lesson.mistake, lesson.correction))
    if not isinstance(answer, str) or len(answer) > 4 * MAX_TEXT_CHARS:
        return None
    match = re.fullmatch(r"\s*Mistake:(.+?)\n\s*Correction:(.+)", answer.strip(), re.DOTALL | re.IGNORECASE)
    if match is None:
        return None
    mistake, correction = (sanitize_lesson_text(" ".join(part.split())) for part in match.groups())
    examples = f"{lesson.failing_example} {lesson.working_example}"
    allowed_values = extract_values(f"{lesson.mistake} {lesson.correction} {examples}")
    if not mistake or not correction or not extract_values(f"{mistake} {correction}") <= allowed_values:
        return None
    if not extract_values(lesson.correction) <= extract_values(correction):
        return None  # a missing value makes the correction useless
    return replace(lesson, mistake=mistake, correction=correction)


def extract_values(text: str) -> frozenset[str]:
    """Return the parts of a text that are not plain words: numbers, identifiers, quotations, URLs."""
    tokens = re.split(r"[\s,;()=]+", text)
    values = (part for token in tokens if (part := token.strip(".!?:'\"`")) and not _PLAIN_WORD.fullmatch(part))
    return frozenset([*values, *re.findall(r'["`][^"`]+["`]', text)])


_PLAIN_WORD = LazyRegex(r"[A-Z]?[a-z]+(?:['-][a-z]+)*|[A-Z]|I")


# Background rounds


FIRST_ROUND_DELAY_SECONDS = 1.0
"""Delay before the first round, so that consolidation does not slow down process startup."""
ROUND_INTERVAL_SECONDS = 5.0
"""Minimum time between two rounds."""
MAX_PATTERNS_PER_ROUND = 10
"""Maximum number of patterns per round, about 10 to 20 ms of work."""


class ConsolidationScheduler:
    """Schedule and execution of consolidation rounds. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, first_delay_seconds: float | None = None) -> None:
        self._clock = clock
        self._next_round_at = clock() + (
            FIRST_ROUND_DELAY_SECONDS if first_delay_seconds is None else first_delay_seconds
        )
        self._changed_tenants: dict[str, None] = {}
        """Tenants with records stored since their last round, in order of arrival."""

    def mark_changed(self, tenant: str) -> None:
        self._changed_tenants[tenant] = None

    def run_if_due(self, store: Store) -> list[tuple[str, Lesson]]:
        """Run one round for one tenant if it is due. Return the new lessons.

        A tenant with remaining patterns is scheduled again.
        """
        if not self._changed_tenants or self._clock() < self._next_round_at:
            return []
        tenant = next(iter(self._changed_tenants))
        del self._changed_tenants[tenant]
        try:
            consolidated = store.consolidate(tenant, now(), max_patterns=MAX_PATTERNS_PER_ROUND)
        finally:
            self._next_round_at = self._clock() + ROUND_INTERVAL_SECONDS
        if consolidated.remaining:
            self._changed_tenants[tenant] = None
        return [(tenant, lesson) for lesson in consolidated.lessons]
