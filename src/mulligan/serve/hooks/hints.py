"""Hints after a failure: a fix that worked in this folder or a lesson; in mode `repair`, the repaired call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.calls import wilson
from mulligan.classify.fingerprint import template
from mulligan.failure import Failure
from mulligan.prompt import Prompt
from mulligan.records import OPEN, Effects, Fix, Lesson, LinkMethod, Precedent, Step
from mulligan.remember import lookups
from mulligan.remember.sqlite import SqliteStore
from mulligan.remember.store import LOCAL, FixQuery, LessonQuery
from mulligan.serve.hooks.state import State
from mulligan.settings import Settings

WITHIN = 0.05
"""Time limit of a memory lookup. It then returns the fixes found so far."""
PROVEN = ("promoted", "approved")
RUNS = 3
"""Sessions in this folder in which a fix must have succeeded before it is shown, unless it is promoted."""
SURE = 0.5
"""Minimum of the Wilson lower bound of the success rate in this folder: 3 of 3 give 0.65, 3 of 5 give 0.34."""
MOST = 2
LESSONS = 5
SEEDS = 1000
"""Limit of seed lessons that are compared."""


class Hints:
    """Memory lookup for the failures of one session."""

    def __init__(
        self, store: SqliteStore, words: Prompt, settings: Settings, agent: str, now: int, state: State
    ) -> None:
        self._store, self._words, self._settings = store, words, settings
        self._agent, self._now, self._state = agent, now, state

    def hint(self, step: Step) -> str:
        """Return fixes that worked before, else a lesson about the failure, else an empty text."""
        fixes = self._fixes(step) if self._settings.learn != "off" else []
        told = [known for fix in fixes if (known := self._precedent(fix)) is not None]
        return self._words.hint(told[:MOST]) or self._lesson(step)

    def _lesson(self, step: Step) -> str:
        """Return the best lesson about this failure that a person wrote and approved, or a seed lesson.

        Learned lessons are left out: nothing learned in one folder is shown in another.
        """
        failure = step.failure
        if failure is None or not failure.fingerprint:
            return ""
        asked = LessonQuery(
            tool=step.name, fingerprint=failure.fingerprint, agent=self._agent, now=self._now, limit=LESSONS
        )
        found = self._store.lessons(LOCAL, asked)
        known = next((each for each in found if each.is_trusted and each.source != "learned"), None)
        known = known or self._seed(step.name, failure)
        return self._words.lesson_hint(known) if known is not None else ""

    def _seed(self, tool: str, failure: Failure) -> Lesson | None:
        """Return the stored seed lesson whose phrase matches the failure. Reading the seed files would be too slow."""
        seeds = self._store.lessons(LOCAL, LessonQuery(source="seed", now=self._now, limit=SEEDS))
        if not seeds:
            return None
        from mulligan.remember.seeds.wordings import speaking  # few stores have seed lessons

        return next(iter(speaking((each for each in seeds if each.is_trusted), tool, failure)), None)

    def instead(self, step: Step, tool: str) -> tuple[str, dict[str, Any], str] | None:
        """Return the call repaired by a promoted fix and a note about it. None unless the mode is `repair`."""
        if self._settings.mode != "repair" or step.failure is None or not isinstance(step.arguments, Mapping):
            return None
        from mulligan.recover.proven import applied  # needed in mode `repair` only
        from mulligan.recover.repair import suggest
        from mulligan.recover.tool import Tool

        effects: Effects = "none" if lookups.only_looks(step) else "once"
        about = Tool(
            name=step.name,
            key=step.tool_key,
            effects=effects,
            mode="repair",
            schema=lambda: None,
            learn=self._settings.learn,
        )
        sure = self._settings.policy.confidence
        fixes = self._fixes(step)
        suggestions = suggest(step.arguments, step.failure, about, (), confidence=sure, known=fixes)
        # A rule may suggest the same call as an approved or promoted fix. It is made because of the fix.
        approved = [fix for fix in fixes if fix.state in PROVEN]
        repairs = [repair.arguments for repair in applied(approved, step.arguments, None, ()) if not repair.first]
        best = next(
            (
                suggestion
                for suggestion in suggestions
                if suggestion.automatic
                and not suggestion.first
                and (suggestion.source == "memory" or suggestion.arguments in repairs)
            ),
            None,
        )
        if best is None or best.tool != step.name:
            return None
        return tool, best.arguments, self._words.note(step.name, best.changes)

    def _fixes(self, step: Step) -> list[Fix]:
        failure = step.failure
        if failure is None or not failure.fingerprint:
            return []
        arguments = step.arguments if isinstance(step.arguments, Mapping) else None
        asked = FixQuery(
            tool=step.name,
            key=step.tool_key,
            fingerprint=failure.fingerprint,
            text=template(failure.message, arguments),
            agent=self._agent,
            now=self._now,
            within=WITHIN,
        )
        return self._store.fixes(LOCAL, asked)

    def _precedent(self, fix: Fix) -> Precedent | None:
        """Return a fix with its counts in this folder. None if they do not suffice or the fix has nothing to show."""
        if fix.sort == "retry" or not fix.tellable or (fix.changes and all(each.after == OPEN for each in fix.changes)):
            return None
        trials = [
            each
            for each in self._store.evidence(LOCAL, fix.id)
            if each.run.endswith(self._state.place) and each.run != self._state.run
        ]
        worked, tried = len({each.run for each in trials if each.worked}), len({each.run for each in trials})
        is_proven = fix.state in PROVEN and worked > 0
        if fix.state == "revoked" or not (is_proven or (worked >= RUNS and wilson(worked, tried) >= SURE)):
            return None
        names = tuple(each.tool for each in fix.first)
        how: LinkMethod = "recipe" if fix.sort == "recipe" else "agent"
        return Precedent(
            how=how, changes=fix.changes, between=names, first=fix.first, worked=worked, seen=tried, tellable=True
        )
