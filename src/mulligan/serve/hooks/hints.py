"""After a failure: what overcame it before in this folder, or a lesson; with mode `repair`, the call itself."""

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
"""Seconds after which memory answers with what it has found."""
PROVEN = ("promoted", "approved")
RUNS = 3
"""Sessions in this folder in which something must have worked before it is said, where nothing else has proven it."""
SURE = 0.5
"""The lower end of what its share of successes in this folder may be: 3 of 3 give 0.65, 3 of 5 give 0.34."""
MOST = 2
LESSONS = 5
SEEDS = 1000
"""That are looked at."""


class Hints:
    """What memory knows of the failures of one session."""

    def __init__(
        self, store: SqliteStore, words: Prompt, settings: Settings, agent: str, now: int, state: State
    ) -> None:
        self._store, self._words, self._settings = store, words, settings
        self._agent, self._now, self._state = agent, now, state

    def hint(self, step: Step) -> str:
        """What worked before, for the model; else what is known of such failures; empty where nothing is."""
        fixes = self._fixes(step) if self._settings.learn != "off" else []
        told = [known for fix in fixes if (known := self._precedent(fix)) is not None]
        return self._words.hint(told[:MOST]) or self._lesson(step)

    def _lesson(self, step: Step) -> str:
        """The best lesson about this very failure that people wrote and approved, or that came with mulligan.

        What was learned elsewhere is not told: nothing of one folder is taken to another.
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
        """The seed in the store that speaks of this failure word for word: to read the files would take too long."""
        seeds = self._store.lessons(LOCAL, LessonQuery(source="seed", now=self._now, limit=SEEDS))
        if not seeds:
            return None
        from mulligan.remember.seeds.wordings import speaking  # few have planted them

        return next(iter(speaking((each for each in seeds if each.is_trusted), tool, failure)), None)

    def instead(self, step: Step, tool: str) -> tuple[str, dict[str, Any], str] | None:
        """The call that a proven fix makes of this one, and what is said of it; only where repairs are asked for."""
        if self._settings.mode != "repair" or step.failure is None or not isinstance(step.arguments, Mapping):
            return None
        from mulligan.recover.proven import applied  # few ask for it
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
        """A fix as it did in this folder; None if that proves nothing, or says nothing."""
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
