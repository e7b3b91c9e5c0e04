"""Memory of failures for one session: recovery links from its log, and hints. Imported only after a failure.

A hook sees one call at a time, and most successes only by name. Whether a success corrected an earlier call depends on
all calls of the session, so the log decides. Without a log, only calls with equal arguments are linked.

A hint is a fix that worked in this folder, or a lesson; in mode `repair` also the repaired call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mulligan.classify.fingerprint import build_template
from mulligan.contract.store import DEFAULT_TENANT, FixQuery, LessonQuery, hash_arguments, list_numbers
from mulligan.core.argument_rejections import judge_failure
from mulligan.core.calls import has_changes, wilson_lower_bound
from mulligan.core.failure import Failure, Remedy
from mulligan.core.holdout import is_fix_held_out
from mulligan.core.read_only_calls import is_read_only
from mulligan.core.records import ANY_FIX, HIDDEN_VALUE, RUN_SPECIFIC, Effects, Fix, Link, LinkMethod, Precedent, Step
from mulligan.hooks import AGENTS
from mulligan.hooks.agents import HookState
from mulligan.learn.project_lessons import TRUST_KIND, find_trusted_lesson, trust_key
from mulligan.learn.tracker import TrackedFailure
from mulligan.learn.working_calls import find_working_call
from mulligan.prompt import Prompt
from mulligan.recover.policy import Tool
from mulligan.settings import Settings
from mulligan.store.sqlite import SqliteStore

LOOKUP_TIMEOUT_SECONDS = 0.05
"""Time limit of a memory lookup. It then returns the fixes found so far."""
MAX_LINKED_LOG_BYTES = 32 * 1024 * 1024
"""A longer log is not read: the agent waits for its hook."""
PROMOTED_STATES = ("promoted", "approved")
MIN_SUCCESSFUL_RUNS = 3
"""Sessions in this folder in which a fix must have succeeded before it is shown, unless it is promoted."""
MIN_SUCCESS_RATE = 0.5
"""Minimum of the Wilson lower bound of the success rate in this folder: 3 of 3 give 0.65, 3 of 5 give 0.34."""
MAX_PRECEDENTS = 2
MAX_LESSONS = 5


# Recovery links


def read_log(
    agent: str, log: str, session: str, classify: Callable[..., Failure]
) -> tuple[list[tuple[str, Step]], dict[str, str]]:
    """Return the calls in a session log as they ended, each with its id, and the models of all calls by id.

    Empty if the log is unreadable.
    """
    from mulligan.transcripts import opencode
    from mulligan.transcripts.formats import FORMATS  # most events need no reader
    from mulligan.transcripts.log_lines import LogLines, UnreadableFileError
    from mulligan.transcripts.run_builder import ReaderState

    calls: list[tuple[str, Step]] = []
    reading = ReaderState(classify, keeps_results=True, on_call=lambda id, step: calls.append((id, step)))
    run = None
    try:
        if agent == "opencode" or Path(log).stat().st_size <= MAX_LINKED_LOG_BYTES:
            with LogLines(Path(log)) as lines:
                log_format = FORMATS[AGENTS[agent]]
                histories = (
                    opencode.read(lines, reading, session) if agent == "opencode" else log_format.read(lines, reading)
                )
                for history in histories:
                    if history.run.parent is None:  # skips the runs of subagents
                        run = history.run.id
    except (UnreadableFileError, OSError):
        return [], {}  # the failures that hooks reported are known without the log
    return [(id, step) for id, step in calls if step.type == "tool" and step.run == run], reading.requesting_models


def link_success(success: Step, failures: Iterable[TrackedFailure]) -> tuple[Link, ...]:
    """Return the link from the last failed call with the same arguments to this success. Both are redacted."""
    same = [
        failure
        for failure in failures
        if failure.is_open
        and failure.step.run == success.run
        and failure.step.tool_key == success.tool_key
        and failure.step.arguments == success.arguments
    ]
    preparing_tools = tuple(dict.fromkeys(tool for failure in same for tool in failure.preparing_tools))
    return (_link_same(same[-1], success, preparing_tools),) if same else ()


def _link_same(failure: TrackedFailure, success: Step, preparing_tools: tuple[str, ...]) -> Link:
    cause = failure.step.failure
    needs_time = cause is not None and cause.remedy is Remedy.RETRY
    tools = preparing_tools if needs_time else tuple(failure.successes_since)
    method: LinkMethod = "agent" if needs_time else "prerequisite"
    return Link(
        run=success.run,
        failed_call=failure.step.call,
        recovering_call=success.call,
        method=method if tools else "retry",
        intermediate_tools=tools,
        evidence=("same_arguments",),
    )


# Hints


class Hints:
    """Memory lookup for the failures of one session."""

    def __init__(self, store: SqliteStore, prompt: Prompt, settings: Settings, now: int, state: HookState) -> None:
        self._store, self._prompt, self._settings = store, prompt, settings
        self._now, self._state = now, state
        self.fixes: list[str] = []
        """The fixes that the hint tells, by id."""
        self.held_out_fixes: list[str] = []
        """The fixes that it does not tell, so that their effect can be measured."""

    def build_hint(self, step: Step, *, is_first: bool) -> str:
        """Return fixes that worked before, else a lesson about the failure, else an empty text.

        General advice is given only if the failure is the first of its kind in the session.
        """
        if sentence := self._find_project_lesson(step):
            return sentence
        fixes = self._find_fixes(step) if self._settings.learn != "off" else []
        precedents = [precedent for fix in fixes if (precedent := self._to_precedent(fix)) is not None]
        share = self._settings.holdout
        self.held_out_fixes = [
            precedent.fix
            for precedent in precedents[:MAX_PRECEDENTS]
            if is_fix_held_out(precedent, self._state.run, share)
        ]
        if self.held_out_fixes:
            return ""
        if self._settings.learn != "off" and (sentence := self._find_working_call(step)):
            return sentence
        hint = self._prompt.hint(precedents[:MAX_PRECEDENTS])
        self.fixes = [precedent.fix for precedent in precedents[:MAX_PRECEDENTS]] if hint else []
        return hint or self._find_lesson_hint(step, is_first)

    def _find_project_lesson(self, step: Step) -> str:
        """Return the lesson of a file in the project's repository, if the user has trusted its content."""
        folder = self._state.folder
        trust = self._store.get(DEFAULT_TENANT, TRUST_KIND, trust_key(folder)) if folder else None
        lesson = find_trusted_lesson(folder, trust, step) if trust and step.failure is not None else None
        if lesson is None:
            return ""
        self.fixes = [lesson.fix_id or ANY_FIX]
        return self._prompt.project_lesson_hint(lesson)

    def _find_working_call(self, step: Step) -> str:
        """Return what worked after the same failure in earlier sessions of this folder, as a sentence."""
        if step.failure is None or not step.failure.fingerprint:
            return ""
        past_failures = self._store.past_failures(DEFAULT_TENANT, step, self._state.folder_suffix)
        working_call = find_working_call(step, past_failures) if past_failures else None
        if working_call is None:
            return ""
        self.fixes = sorted(working_call.fixes) or [ANY_FIX]
        return self._prompt.working_call_hint(
            working_call.failed_call,
            working_call.call,
            is_before=working_call.is_before,
            sessions=working_call.sessions,
            changes_state=working_call.changes_state,
        )

    def _find_lesson_hint(self, step: Step, allows_seeds: bool) -> str:
        """Return the best lesson about this failure that a person wrote and approved, or a seed lesson.

        Learned lessons are left out: nothing learned in one folder is shown in another.
        """
        failure = step.failure
        if failure is None or not failure.fingerprint:
            return ""
        query = LessonQuery(
            tool=step.name, fingerprint=failure.fingerprint, agent=self._state.agent, now=self._now, limit=MAX_LESSONS
        )
        lessons = self._store.lessons(DEFAULT_TENANT, query)
        own_lessons = [lesson for lesson in lessons if lesson.source != "learned" and not lesson.is_seed]
        lesson = next((lesson for lesson in own_lessons if lesson.is_trusted), None)
        if lesson is None and allows_seeds:
            from mulligan.learn.seeds import find_matching_seeds

            seeds = find_matching_seeds(self._store, DEFAULT_TENANT, step.name, failure)
            lesson = next((seed for seed in seeds if seed.is_trusted), None)
        elif lesson is not None:
            self.fixes = [ANY_FIX]
        return self._prompt.lesson_hint(lesson) if lesson is not None else ""

    def find_replacement_call(self, step: Step) -> tuple[dict[str, Any], str] | None:
        """Return arguments repaired by a promoted fix, and a note about it. None unless the mode is `repair`."""
        if self._settings.mode != "repair" or step.failure is None or not isinstance(step.arguments, Mapping):
            return None
        from mulligan.recover.memory_repair import apply_fixes  # needed in mode `repair` only
        from mulligan.recover.repair import suggest

        effects: Effects = "none" if is_read_only(step) else "once"
        learn, key = self._settings.learn, step.tool_key
        tool = Tool(name=step.name, key=key, effects=effects, mode="repair", learn=learn)
        fixes = self._find_fixes(step)
        min_confidence = self._settings.policy.min_confidence
        suggestions = suggest(step.arguments, step.failure, tool, (), min_confidence=min_confidence, fixes=fixes)
        # A rule may suggest the same call as an approved or promoted fix. It is made because of the fix.
        approved = [fix for fix in fixes if fix.state in PROMOTED_STATES]
        repairs = apply_fixes(approved, step.arguments, None, ())
        repaired_arguments = [repair.arguments for repair in repairs if not repair.prerequisites]
        for best in suggestions:
            is_from_memory = best.source == "memory" or best.arguments in repaired_arguments
            if best.automatic and not best.prerequisites and is_from_memory:
                if best.tool != step.name:
                    return None
                return best.arguments, self._prompt.note(step.name, best.changes, was_rejected=True)
        return None

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
            argument_hashes=hash_arguments(arguments),
            argument_numbers=list_numbers(arguments),
            verdict=judge_failure(failure),
            error=build_template(failure.message, arguments),
            agent=self._state.agent,
            now=self._now,
            timeout_seconds=LOOKUP_TIMEOUT_SECONDS,
        )
        return [fix for fix in self._store.fixes(DEFAULT_TENANT, query) if _fits_call(fix, step)]

    def _to_precedent(self, fix: Fix) -> Precedent | None:
        """Return a fix with its counts in this folder. None if they do not suffice or the fix has nothing to show."""
        is_unknown = fix.changes and all(change.after in (RUN_SPECIFIC, HIDDEN_VALUE) for change in fix.changes)
        if fix.type == "retry" or not fix.showable or is_unknown:
            return None
        trials = [
            trial
            for trial in self._store.evidence(DEFAULT_TENANT, fix.id)
            if trial.run.endswith(self._state.folder_suffix) and trial.run != self._state.run
        ]
        tried_runs = {trial.run for trial in trials}
        successful_runs = {trial.run for trial in trials if trial.successful}
        success_rate = wilson_lower_bound(len(successful_runs), len(tried_runs))
        is_proven = fix.state in PROMOTED_STATES and successful_runs
        has_worked_here = len(successful_runs) >= MIN_SUCCESSFUL_RUNS and success_rate >= MIN_SUCCESS_RATE
        if fix.state == "revoked" or not (is_proven or has_worked_here):
            return None
        return Precedent(
            method="prerequisite" if fix.type == "prerequisite" else "agent",
            changes=fix.changes,
            intermediate_tools=tuple(prerequisite.tool for prerequisite in fix.prerequisites),
            prerequisites=fix.prerequisites,
            successes=len(successful_runs),
            occurrences=len(tried_runs),
            shareable=True,
            fix=fix.id,
            followed=fix.followed,
        )


def _fits_call(fix: Fix, step: Step) -> bool:
    """Return whether a fix is about this call: each text that it sets is in the error, or the argument in other case.

    A text that recovered a call with another value is the value of another question.
    """
    assert step.failure is not None
    words = set(re.findall(r"[\w./-]+", f"{step.failure.message} {step.failure.detail}"))
    arguments = step.arguments if isinstance(step.arguments, Mapping) else {}
    if has_changes(arguments, fix.changes):
        return False  # the call failed with just these values
    return all(
        not isinstance(change.after, str)
        or change.after in (RUN_SPECIFIC, HIDDEN_VALUE, *words)
        or str(arguments.get(change.path)).casefold() == change.after.casefold()
        for change in fix.changes
        if change.operation in ("enum", "substitute", "default")
    )
