"""Hints after a failure: a fix that worked in this folder or a lesson; in mode `repair`, the repaired call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.classify.fingerprint import build_template
from mulligan.core.calls import wilson_lower_bound
from mulligan.core.failure import Failure
from mulligan.core.records import RUN_SPECIFIC, Effects, Fix, Lesson, LinkMethod, Precedent, Step
from mulligan.hooks.state import HookState
from mulligan.learn import read_only_calls
from mulligan.prompt import Prompt
from mulligan.settings import Settings
from mulligan.store.base import DEFAULT_TENANT, FixQuery, LessonQuery
from mulligan.store.sqlite import SqliteStore

LOOKUP_TIMEOUT_SECONDS = 0.05
"""Time limit of a memory lookup. It then returns the fixes found so far."""
PROMOTED_STATES = ("promoted", "approved")
MIN_SUCCESSFUL_RUNS = 3
"""Sessions in this folder in which a fix must have succeeded before it is shown, unless it is promoted."""
MIN_SUCCESS_RATE = 0.5
"""Minimum of the Wilson lower bound of the success rate in this folder: 3 of 3 give 0.65, 3 of 5 give 0.34."""
MAX_PRECEDENTS = 2
MAX_LESSONS = 5
MAX_SEEDS = 1000
"""Limit of seed lessons that are compared."""


class Hints:
    """Memory lookup for the failures of one session."""

    def __init__(
        self, store: SqliteStore, prompt: Prompt, settings: Settings, agent: str, now: int, state: HookState
    ) -> None:
        self._store, self._prompt, self._settings = store, prompt, settings
        self._agent, self._now, self._state = agent, now, state

    def build_hint(self, step: Step) -> str:
        """Return fixes that worked before, else a lesson about the failure, else an empty text."""
        fixes = self._find_fixes(step) if self._settings.learn != "off" else []
        precedents = [precedent for fix in fixes if (precedent := self._to_precedent(fix)) is not None]
        return self._prompt.hint(precedents[:MAX_PRECEDENTS]) or self._find_lesson_hint(step)

    def _find_lesson_hint(self, step: Step) -> str:
        """Return the best lesson about this failure that a person wrote and approved, or a seed lesson.

        Learned lessons are left out: nothing learned in one folder is shown in another.
        """
        failure = step.failure
        if failure is None or not failure.fingerprint:
            return ""
        query = LessonQuery(
            tool=step.name, fingerprint=failure.fingerprint, agent=self._agent, now=self._now, limit=MAX_LESSONS
        )
        lessons = self._store.lessons(DEFAULT_TENANT, query)
        lesson = next(
            (candidate for candidate in lessons if candidate.is_trusted and candidate.source != "learned"), None
        )
        lesson = lesson or self._find_seed(step.name, failure)
        return self._prompt.lesson_hint(lesson) if lesson is not None else ""

    def _find_seed(self, tool: str, failure: Failure) -> Lesson | None:
        """Return the stored seed lesson whose phrase matches the failure. Reading the seed files would be too slow."""
        seeds = self._store.lessons(DEFAULT_TENANT, LessonQuery(source="seed", now=self._now, limit=MAX_SEEDS))
        if not seeds:
            return None
        from mulligan.learn.seeds.seed_matching import match_seeds  # few stores have seed lessons

        return next(iter(match_seeds((seed for seed in seeds if seed.is_trusted), tool, failure)), None)

    def find_replacement_call(self, step: Step, tool: str) -> tuple[str, dict[str, Any], str] | None:
        """Return the call repaired by a promoted fix and a note about it. None unless the mode is `repair`."""
        if self._settings.mode != "repair" or step.failure is None or not isinstance(step.arguments, Mapping):
            return None
        from mulligan.recover.memory_repair import apply_fixes  # needed in mode `repair` only
        from mulligan.recover.repair import suggest
        from mulligan.recover.tool import Tool

        effects: Effects = "none" if read_only_calls.is_read_only(step) else "once"
        tool_info = Tool(
            name=step.name,
            key=step.tool_key,
            effects=effects,
            mode="repair",
            schema=lambda: None,
            learn=self._settings.learn,
        )
        min_confidence = self._settings.policy.min_confidence
        fixes = self._find_fixes(step)
        suggestions = suggest(step.arguments, step.failure, tool_info, (), min_confidence=min_confidence, fixes=fixes)
        # A rule may suggest the same call as an approved or promoted fix. It is made because of the fix.
        approved = [fix for fix in fixes if fix.state in PROMOTED_STATES]
        repairs = [
            repair.arguments for repair in apply_fixes(approved, step.arguments, None, ()) if not repair.prerequisites
        ]
        best = next(
            (
                suggestion
                for suggestion in suggestions
                if suggestion.automatic
                and not suggestion.prerequisites
                and (suggestion.source == "memory" or suggestion.arguments in repairs)
            ),
            None,
        )
        if best is None or best.tool != step.name:
            return None
        return tool, best.arguments, self._prompt.note(step.name, best.changes)

    def _find_fixes(self, step: Step) -> list[Fix]:
        failure = step.failure
        if failure is None or not failure.fingerprint:
            return []
        arguments = step.arguments if isinstance(step.arguments, Mapping) else None
        query = FixQuery(
            tool=step.name,
            key=step.tool_key,
            fingerprint=failure.fingerprint,
            text=build_template(failure.message, arguments),
            agent=self._agent,
            now=self._now,
            timeout_seconds=LOOKUP_TIMEOUT_SECONDS,
        )
        return self._store.fixes(DEFAULT_TENANT, query)

    def _to_precedent(self, fix: Fix) -> Precedent | None:
        """Return a fix with its counts in this folder. None if they do not suffice or the fix has nothing to show."""
        if (
            fix.type == "retry"
            or not fix.showable
            or (fix.changes and all(change.after == RUN_SPECIFIC for change in fix.changes))
        ):
            return None
        trials = [
            trial
            for trial in self._store.evidence(DEFAULT_TENANT, fix.id)
            if trial.run.endswith(self._state.folder_suffix) and trial.run != self._state.run
        ]
        successful_runs, tried_runs = (
            len({trial.run for trial in trials if trial.successful}),
            len({trial.run for trial in trials}),
        )
        is_proven = fix.state in PROMOTED_STATES and successful_runs > 0
        if fix.state == "revoked" or not (
            is_proven
            or (
                successful_runs >= MIN_SUCCESSFUL_RUNS
                and wilson_lower_bound(successful_runs, tried_runs) >= MIN_SUCCESS_RATE
            )
        ):
            return None
        prerequisite_tools = tuple(prerequisite.tool for prerequisite in fix.prerequisites)
        method: LinkMethod = "prerequisite" if fix.type == "prerequisite" else "agent"
        return Precedent(
            method=method,
            changes=fix.changes,
            intermediate_tools=prerequisite_tools,
            prerequisites=fix.prerequisites,
            successes=successful_runs,
            occurrences=tried_runs,
            shareable=True,
        )
