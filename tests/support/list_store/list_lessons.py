"""Lessons of the store in lists. Counts are computed at query time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from list_store.occurrences import PatternCounter
from list_store.votes import group_by_pattern
from mulligan.contract.store import FixQuery, ForgetRequest, LessonQuery
from mulligan.core.records import Fix, Lesson, LessonSource, LessonVerdict, encode
from mulligan.learn import lessons as consolidation
from mulligan.learn import patterns, prerequisites
from mulligan.learn.fixes import Trial, Vote
from mulligan.learn.lessons import LessonInputs, StoredLesson
from mulligan.prompt import Prompt
from mulligan.store import erasure


class TenantFacts(NamedTuple):
    """Snapshot of one tenant's records that lessons are computed from."""

    votes: Sequence[tuple[Trial, Vote]]
    patterns: dict[str, PatternCounter]
    fix_context: prerequisites.FixContext
    run_starts: dict[str, int]
    """Start time by run id."""
    load_arguments: Callable[[str, int], Any]
    """Return the arguments of a step, by run id and step number."""


class ListLessons:
    """Lessons of one tenant, held in memory."""

    def __init__(self) -> None:
        self._stored_lessons: dict[str, StoredLesson] = {}

    def __len__(self) -> int:
        return len(self._stored_lessons)

    def resolve_id(self, id: str) -> str | None:
        return patterns.complete_id(id, self._stored_lessons) if id else None

    def find_lessons(self, facts: TenantFacts, query: LessonQuery) -> list[Lesson]:
        fix_query = FixQuery(tool=query.tool, now=query.now)
        records: dict[str, tuple[Fix, tuple[str, ...]]] = {}
        for group in group_by_pattern(facts.votes).values():
            records.update(prerequisites.index_fixes(group, fix_query, facts.fix_context))
        candidates = []
        for stored_lesson in self._stored_lessons.values():
            fix, _ = records.get(stored_lesson.lesson.fix_id, (None, ()))
            if not consolidation.is_orphaned(stored_lesson, fix):
                tally = facts.patterns.get(stored_lesson.lesson.pattern)
                basis = consolidation.LessonBasis(
                    fix,
                    len(tally.runs) if tally is not None else 0,
                    facts.fix_context.promotion_facts().schema_changed_at.get(stored_lesson.lesson.tool, 0),
                    facts.fix_context.decisions.get(stored_lesson.lesson.fix_id),
                )
                candidates.append(consolidation.with_state(stored_lesson, basis, query.now))
        ranked_lessons = consolidation.filter_and_rank(candidates, query)
        return [
            _add_counts(lesson, records.get(lesson.fix_id, (None, ()))[1], facts, query.now)
            for lesson in ranked_lessons
        ]

    def save_lesson(self, lesson: Lesson, now: int) -> bool:
        stored_lesson = consolidation.merge_submission(self._stored_lessons.get(lesson.id), lesson, now)
        if stored_lesson is not None:
            self._stored_lessons[lesson.id] = stored_lesson
        return stored_lesson is not None

    def remove_by_source(self, source: LessonSource) -> int:
        removed_ids = [
            id for id, stored_lesson in self._stored_lessons.items() if stored_lesson.lesson.source == source
        ]
        for id in removed_ids:
            del self._stored_lessons[id]
        return len(removed_ids)

    def record_decision(self, id: str, verdict: LessonVerdict, at: int) -> StoredLesson | None:
        full_id = self.resolve_id(id)
        if full_id is None:
            return None
        self._stored_lessons[full_id] = consolidation.apply_decision(self._stored_lessons[full_id], verdict, at)
        return self._stored_lessons[full_id]

    def consolidate(self, facts: TenantFacts, now: int) -> tuple[int, list[str]]:
        """Update the lessons of all patterns. Return the number of patterns and the ids of changed lessons."""
        prompt = Prompt()
        changed_ids: list[str] = []
        groups = group_by_pattern(facts.votes)
        for id, group in sorted(groups.items()):
            tally = facts.patterns.get(id)
            if tally is None:
                continue
            qualifies = functools.partial(consolidation.qualifies_as_lesson, pattern_runs=len(tally.runs))
            pattern_fixes, best = prerequisites.find_best_fix(group, FixQuery(now=now), facts.fix_context, qualifies)
            stored_by_id = {
                stored_lesson.lesson.id: stored_lesson
                for stored_lesson in self._stored_lessons.values()
                if stored_lesson.lesson.pattern == id
            }
            latest_example = max(tally.examples, key=lambda example: example.started_at, default=None)
            arguments = (
                facts.load_arguments(latest_example.run, latest_example.seq) if latest_example is not None else None
            )
            example_arguments = arguments if isinstance(arguments, dict) else None
            for stored_lesson in consolidation.update_lessons(
                LessonInputs(tally.to_pattern(), pattern_fixes, best, example_arguments, stored_by_id), now, prompt
            ):
                self._stored_lessons[stored_lesson.lesson.id] = stored_lesson
                changed_ids.append(stored_lesson.lesson.id)
        return len(groups), changed_ids

    def forget(self, request: ForgetRequest) -> None:
        """Delete lessons affected by a forget request.

        Learned lessons are rebuilt from the remaining records. Lessons written by a person are deleted if they name the
        tool or contain the text.
        """
        self._stored_lessons = {
            id: stored_lesson
            for id, stored_lesson in self._stored_lessons.items()
            if not (request.tool is not None and consolidation.mentions_tool(stored_lesson, request.tool))
            and not (request.text is not None and erasure.may_contain(encode(stored_lesson), request.text))
            and (stored_lesson.lesson.source != "learned" or stored_lesson.lesson.edited)
        }


def _add_counts(lesson: Lesson, part_ids: Sequence[str], facts: TenantFacts, now: int) -> Lesson:
    """Return the lesson with its occurrences, agents, and recovery counts before and after activation."""
    tally = facts.patterns.get(lesson.pattern)
    if tally is None:
        return msgspec.structs.replace(lesson, agents={}) if lesson.pattern else lesson
    pattern = patterns.limit_details(tally.to_pattern())
    lesson = msgspec.structs.replace(lesson, occurrences=pattern.occurrences, agents=pattern.agents)
    if not lesson.active_since:
        return lesson
    affected_runs = {run for run in tally.runs if facts.run_starts.get(run, 0) >= lesson.active_since}
    recovered_runs = {
        vote.run
        for trial, vote in facts.votes
        if trial.fix in part_ids and vote.successful and vote.at >= lesson.active_since
    }
    days = {day: (count, recovered) for day, (count, recovered) in tally.days.items()}
    before, after = consolidation.count_periods(days, lesson.active_since, now, pattern.first_seen_at)
    helped, unhelped = len(affected_runs & recovered_runs), len(affected_runs - recovered_runs)
    return msgspec.structs.replace(
        lesson, helped_runs=helped, unhelped_runs=unhelped, stats_before=before, stats_after=after
    )
