"""Lessons of the in-memory store. Counts are computed at query time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from mulligan.prompt import Prompt
from mulligan.records import Fix, Lesson, LessonSource, LessonVerdict, encode
from mulligan.remember import fixes, forgetting, patterns, recipes
from mulligan.remember.fixes import Trial, Vote
from mulligan.remember.lessons import making
from mulligan.remember.lessons.making import Ground, Kept
from mulligan.remember.patterns import Tally
from mulligan.remember.store import FixQuery, Forget, LessonQuery


class Facts(NamedTuple):
    """Snapshot of one tenant's records that lessons are computed from."""

    votes: Sequence[tuple[Trial, Vote]]
    patterns: dict[str, Tally]
    known: recipes.Known
    started: dict[str, int]
    """Start time by run id."""
    arguments: Callable[[str, int], Any]
    """Return the arguments of a step, by run id and step number."""


class LessonList:
    """Lessons of one tenant, held in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def whole_id(self, id: str) -> str | None:
        return patterns.whole_id(id, self._kept) if id else None

    def asked(self, facts: Facts, query: LessonQuery) -> list[Lesson]:
        by_pattern = FixQuery(tool=query.tool, now=query.now)
        records: dict[str, tuple[Fix, tuple[str, ...]]] = {}
        for group in fixes.grouped(facts.votes).values():
            records.update(recipes.recorded(group, by_pattern, facts.known))
        found = []
        for kept in self._kept.values():
            fix, _ = records.get(kept.lesson.fix, (None, ()))
            if not making.is_gone(kept, fix):
                tally = facts.patterns.get(kept.lesson.pattern)
                standing = making.Standing(
                    fix,
                    len(tally.runs) if tally is not None else 0,
                    facts.known.since.get(kept.lesson.tool, 0),
                    facts.known.verdicts.get(kept.lesson.fix),
                )
                found.append(making.judged(kept, standing, query.now))
        told = making.in_order(found, query)
        return [_counted(each, records.get(each.fix, (None, ()))[1], facts, query.now) for each in told]

    def keep(self, lesson: Lesson, now: int) -> bool:
        kept = making.taken(self._kept.get(lesson.id), lesson, now)
        if kept is not None:
            self._kept[lesson.id] = kept
        return kept is not None

    def remove(self, source: LessonSource) -> int:
        gone = [id for id, kept in self._kept.items() if kept.lesson.source == source]
        for id in gone:
            del self._kept[id]
        return len(gone)

    def decide(self, id: str, verdict: LessonVerdict, at: int) -> Kept | None:
        known = self.whole_id(id)
        if known is None:
            return None
        self._kept[known] = making.decided(self._kept[known], verdict, at)
        return self._kept[known]

    def consolidate(self, facts: Facts, now: int) -> tuple[int, list[str]]:
        """Update the lessons of all patterns. Return the number of patterns and the ids of changed lessons."""
        words = Prompt()
        news: list[str] = []
        groups = fixes.grouped(facts.votes)
        for id, group in sorted(groups.items()):
            tally = facts.patterns.get(id)
            if tally is None:
                continue
            worth = functools.partial(making.is_worth, met=len(tally.runs))
            found, best = recipes.best(group, FixQuery(now=now), facts.known, worth)
            own = {each.lesson.id: each for each in self._kept.values() if each.lesson.pattern == id}
            failed = max(tally.examples, key=lambda each: each.started, default=None)
            arguments = facts.arguments(failed.run, failed.seq) if failed is not None else None
            given = arguments if isinstance(arguments, dict) else None
            for kept in making.renewed(Ground(tally.pattern(), found, best, given, own), now, words):
                self._kept[kept.lesson.id] = kept
                news.append(kept.lesson.id)
        return len(groups), news

    def forget(self, what: Forget) -> None:
        """Delete lessons affected by a forget request.

        Learned lessons are rebuilt from the remaining records. Lessons written by a person are deleted if they name the
        tool or contain the text.
        """
        self._kept = {
            id: kept
            for id, kept in self._kept.items()
            if not (what.tool is not None and making.names(kept, what.tool))
            and not (what.text is not None and forgetting.holds(encode(kept), what.text))
            and (kept.lesson.source != "learned" or kept.lesson.edited)
        }


def _counted(lesson: Lesson, parts: Sequence[str], facts: Facts, now: int) -> Lesson:
    """Return the lesson with its occurrences, agents, and recovery counts before and after activation."""
    tally = facts.patterns.get(lesson.pattern)
    if tally is None:
        return msgspec.structs.replace(lesson, agents={}) if lesson.pattern else lesson
    met = patterns.told(tally.pattern())
    lesson = msgspec.structs.replace(lesson, seen=met.count, agents=met.agents)
    if not lesson.since:
        return lesson
    runs = {run for run in tally.runs if facts.started.get(run, 0) >= lesson.since}
    by_it = {vote.run for trial, vote in facts.votes if trial.fix in parts and vote.worked and vote.at >= lesson.since}
    days = {day: (count, overcome) for day, (count, overcome) in tally.days.items()}
    before, after = making.spans(days, lesson.since, now, met.first)
    helped, unhelped = len(runs & by_it), len(runs - by_it)
    return msgspec.structs.replace(lesson, helped=helped, unhelped=unhelped, before=before, after=after)
