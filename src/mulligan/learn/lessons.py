"""Lessons: how the fixes of a pattern become a lesson (consolidation), its state, and edits by people or a model.

Pure functions of records. A stored lesson has only its texts and the operator's decision. Its counts come from the
underlying fix at read time, so that a fix that is revoked, forgotten or demoted affects the lesson immediately.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

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
from mulligan.learn import patterns, similar
from mulligan.learn.fixes import EXPIRY_MS, OperatorDecision
from mulligan.prompt import Prompt
from mulligan.redaction import sanitize
from mulligan.redaction.regex import LazyRegex
from mulligan.store.base import DAY, LessonQuery, Store, now

MIN_SUCCESSFUL_RUNS = 3
"""Runs in which a fix must have succeeded before it becomes a lesson: two may be a coincidence."""
MIN_SUCCESS_RATIO = 0.5
"""Minimum successes per trial of the fix."""
MIN_PATTERN_RUN_RATIO = 0.5
"""Minimum successes per run with the pattern. A fix below it is one of many recoveries (`evals/lessons.py`)."""
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
    changed_ids: dict[str, None] = {}
    if inputs.best_fix is not None:
        new_lesson = build_lesson(inputs.best_fix, inputs.pattern, inputs.example_arguments, prompt)
        existing = lessons_by_id.get(new_lesson.id) if new_lesson.correction else None
        if new_lesson.correction and (
            existing is None or (not existing.lesson.edited and _has_different_advice(existing.lesson, new_lesson))
        ):
            created = existing.lesson.created_at if existing is not None else now
            new_lesson = msgspec.structs.replace(new_lesson, created_at=created or now)
            lessons_by_id[new_lesson.id] = (
                StoredLesson(lesson=new_lesson)
                if existing is None
                else msgspec.structs.replace(existing, lesson=new_lesson)
            )
            changed_ids[new_lesson.id] = None
    fixes = {fix.id: fix for fix in inputs.fixes}
    for id, stored_lesson in lessons_by_id.items():
        fix = fixes.get(stored_lesson.lesson.fix_id)
        if (
            not stored_lesson.active_since
            and fix is not None
            and _is_promoted(fix)
            and stored_lesson.decision not in ("disable", "revoke")
        ):
            if not helps_enough_runs(fix, inputs.pattern.runs):
                continue
            lessons_by_id[id] = msgspec.structs.replace(stored_lesson, active_since=now)
            changed_ids[id] = None
    return [lessons_by_id[id] for id in changed_ids]


def qualifies_as_lesson(fix: Fix, pattern_runs: int) -> bool:
    """Return whether a fix is useful advice before the first failure and has succeeded often enough.

    `pattern_runs` is the number of runs in which the pattern occurred.
    """
    if fix.type not in ("change", "prerequisite") or fix.state == "revoked" or not fix.showable:
        return False
    if (
        fix.successes < MIN_SUCCESSFUL_RUNS
        or fix.successes < MIN_SUCCESS_RATIO * fix.trials
        or not helps_enough_runs(fix, pattern_runs)
    ):
        return False
    return fix.type == "prerequisite" or any(map(_is_instructive, fix.changes))


def helps_enough_runs(fix: Fix, pattern_runs: int) -> bool:
    return fix.successes >= MIN_PATTERN_RUN_RATIO * pattern_runs


def _is_instructive(change: Change) -> bool:
    """Return whether a change is useful advice: not an unspecified value, and not a dropped argument."""
    if change.path == TOOL_NAME_PATH or change.operation in ("rename", "cast", "parse", "wrap", "trim", "enum"):
        return True
    if change.operation == "drop":
        return False
    return change.after is None or isinstance(change.after, bool | int | float)


def to_shareable_change(change: Change) -> Change:
    """Return the change with only shareable values: texts of a run are replaced by a placeholder."""
    after = change.after
    is_name = isinstance(after, str) and (change.operation in ("rename", "cast") or change.path == TOOL_NAME_PATH)
    if not (
        is_name or after is None or isinstance(after, bool | int | float) or after in (RUN_SPECIFIC, LAST_PATH_SEGMENT)
    ):
        after = RUN_SPECIFIC
    return msgspec.structs.replace(change, before=None, after=after)


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
        name = change.path
        if name == TOOL_NAME_PATH:
            continue
        if change.operation == "rename" and isinstance(change.after, str):
            working_arguments = {
                change.after if key == name else key: value for key, value in working_arguments.items()
            }
        elif change.operation == "drop":
            working_arguments.pop(name, None)
        elif "." not in name:
            is_shareable = change.after is None or isinstance(change.after, bool | int | float)
            working_arguments[name] = (
                change.after
                if is_shareable and change.operation not in ("cast", "parse", "wrap", "trim")
                else RUN_SPECIFIC
            )
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
    if submission.source == "learned":
        submission = msgspec.structs.replace(submission, source="file")
    texts = {name: sanitize_lesson_text(getattr(submission, name)) for name in TEXT_FIELDS}
    if not texts["mistake"] or not texts["correction"]:
        raise UnsupportedOperationError(f"Lesson {submission.id} is incomplete. Give both a mistake and a correction.")
    if not re.fullmatch(r"les_[0-9a-f]{12}", submission.id):
        raise UnsupportedOperationError(
            f"Invalid lesson id {submission.id[:40]!r}. Use les_ and 12 hexadecimal digits."
        )
    tool, kind, fingerprint, fix = (
        sanitize_line(text) for text in (submission.tool, submission.kind, submission.fingerprint, submission.fix_id)
    )
    return Lesson(
        id=submission.id,
        tool=tool,
        kind=kind,
        fingerprint=fingerprint,
        fix_id=fix,
        pattern=pattern_id(tool, fingerprint) if fingerprint else "",
        mistake=texts["mistake"],
        correction=texts["correction"],
        error=texts["error"],
        failing_example=texts["failing_example"],
        working_example=texts["working_example"],
        changes=tuple(map(to_shareable_change, submission.changes)),
        prerequisites=submission.prerequisites,
        edited=submission.edited or submission.source != "seed",
        source=submission.source,
        origin=sanitize_line(submission.origin),
        created_at=submission.created_at,
    )


def merge_submission(existing: StoredLesson | None, submission: Lesson, now: int) -> StoredLesson | None:
    """Merge a submitted lesson into the stored one. Return `None` if nothing changes."""
    new = normalize_submission(submission)
    if existing is None:
        return StoredLesson(lesson=msgspec.structs.replace(new, created_at=new.created_at or now))
    old = existing.lesson
    if new.source == "seed" and not new.edited:
        # A seed of a newer version replaces an unedited seed, but never texts that a person wrote.
        new = msgspec.structs.replace(new, created_at=old.created_at)
        is_unedited_seed = old.source == "seed" and not old.edited
        return msgspec.structs.replace(existing, lesson=new) if is_unedited_seed and new != old else None
    if all(getattr(old, name) == getattr(new, name) for name in TEXT_FIELDS):
        return None
    texts = {name: getattr(new, name) for name in TEXT_FIELDS}
    # An approval covers the approved texts only: changed texts need a new approval.
    decision, since = ("", 0) if existing.decision == "approve" else (existing.decision, existing.active_since)
    return msgspec.structs.replace(
        existing, lesson=msgspec.structs.replace(old, **texts, edited=True), decision=decision, active_since=since
    )


def apply_decision(stored_lesson: StoredLesson, verdict: LessonVerdict, at: int) -> StoredLesson:
    since = (stored_lesson.active_since or at) if verdict == "approve" else 0
    return msgspec.structs.replace(stored_lesson, decision=verdict, decided_at=at, active_since=since)


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
    fix, pattern_runs, schema_changed_at, operator_decision = (
        basis.fix,
        basis.pattern_runs,
        basis.schema_changed_at,
        basis.operator_decision,
    )
    is_approved = stored_lesson.decision == "approve"
    if stored_lesson.decision in ("disable", "revoke"):
        return (
            "disabled",
            "disabled by a person" if stored_lesson.decision == "disable" else "revoked by a person",
            False,
        )
    if operator_decision is not None and operator_decision.revoked > max(
        operator_decision.approved, stored_lesson.decided_at if is_approved else 0
    ):
        return "disabled", "its fix was revoked", False
    is_promoted = _is_promoted(fix)
    stale = (
        bool(schema_changed_at)
        and not is_promoted
        and (stored_lesson.decided_at if is_approved else stored_lesson.active_since or stored_lesson.lesson.created_at)
        < schema_changed_at
    )
    if stale:
        return "proposed", "the tool's schema has changed since then", True
    if is_promoted and fix is not None and not is_approved and not helps_enough_runs(fix, pattern_runs):
        return (
            "proposed",
            f"its fix succeeded in {fix.successes} of {pattern_runs} runs with this pattern; most recovered otherwise",
            False,
        )
    if is_promoted and fix is not None and not is_approved and fix.state != "approved" and not fix.showable:
        return "proposed", fix.hidden_reason, False
    if is_promoted:
        return "active", "", False
    if is_approved:
        unused = (
            stored_lesson.lesson.fix_id
            and max(stored_lesson.decided_at, fix.last_tried_at if fix is not None else 0) < now - EXPIRY_MS
        )
        return ("expired", "not used for 30 days", False) if unused else ("active", "", False)
    if fix is None:
        return "proposed", "not approved, and without trials in this store", False
    return ("expired" if fix.state == "expired" else "proposed"), fix.reason, False


def _is_promoted(fix: Fix | None) -> bool:
    return fix is not None and fix.state in ("promoted", "approved")


def is_orphaned(stored_lesson: StoredLesson, fix: Fix | None) -> bool:
    """Return whether the fix of a learned lesson no longer exists and no person edited or decided on the lesson."""
    return (
        stored_lesson.lesson.source == "learned"
        and fix is None
        and not stored_lesson.decision
        and not stored_lesson.lesson.edited
    )


def with_state(stored_lesson: StoredLesson, basis: LessonBasis, now: int) -> Lesson:
    """Return the lesson with its state and the counts of its fix."""
    lesson_state, reason, stale = determine_state(stored_lesson, basis, now)
    fix = basis.fix
    trials, successes = (fix.trials, fix.successes) if fix is not None else (0, 0)
    return msgspec.structs.replace(
        stored_lesson.lesson,
        state=lesson_state,
        reason=reason,
        stale=stale,
        trials=trials,
        successes=successes,
        confidence=round(wilson_lower_bound(successes, trials), 3),
        active_since=stored_lesson.active_since,
        last_tried_at=fix.last_tried_at if fix is not None else 0,
        agents=fix.agents if fix is not None else {},
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
    return similar.sketch_similarity(similar.sketch(text), similar.sketch(lesson.error)) >= similar.MIN_SIMILARITY


_STATE_ORDER = ("active", "proposed", "expired", "disabled")


def filter_and_rank(lessons: Iterable[Lesson], query: LessonQuery) -> list[Lesson]:
    """Filter lessons by a query and rank them: active first, then by confidence."""
    matching_lessons = [lesson for lesson in lessons if matches_query(lesson, query)]
    matching_lessons.sort(key=lambda lesson: (
        _STATE_ORDER.index(lesson.state), not lesson.agents.get(query.agent), -lesson.confidence, -lesson.successes,
        lesson.source == "seed", lesson.id,
    ))  # fmt: skip
    return matching_lessons[: max(query.limit, 0)]


def count_periods(
    days: Mapping[int, tuple[int, int]], active_since: int, now: int, first_seen_at: int
) -> tuple[PatternPeriod, PatternPeriod]:
    """Count occurrences and recoveries before and after activation, by day.

    The day of activation itself belongs to neither period.
    """
    activation_day = patterns.start_of_day(active_since)
    begin = max(patterns.start_of_day(first_seen_at), activation_day - EFFECT_PERIOD_DAYS * DAY)
    end = min(patterns.start_of_day(now), activation_day + EFFECT_PERIOD_DAYS * DAY)
    before = [sums for day, sums in days.items() if begin <= day < activation_day]
    after = [sums for day, sums in days.items() if activation_day < day <= end]
    return (
        PatternPeriod(
            days=max(0, activation_day - begin) // DAY,
            occurrences=sum(occurrences for occurrences, _ in before),
            recovered=sum(recovered for _, recovered in before),
        ),
        PatternPeriod(
            days=max(0, end - activation_day) // DAY,
            occurrences=sum(occurrences for occurrences, _ in after),
            recovered=sum(recovered for _, recovered in after),
        ),
    )


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
    allowed_values = extract_values(
        f"{lesson.mistake} {lesson.correction} {lesson.failing_example} {lesson.working_example}"
    )
    if not mistake or not correction or not extract_values(f"{mistake} {correction}") <= allowed_values:
        return None
    required_values = extract_values(lesson.correction)
    if not required_values <= extract_values(correction):
        return None  # a missing value makes the correction useless
    return msgspec.structs.replace(lesson, mistake=mistake, correction=correction)


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
