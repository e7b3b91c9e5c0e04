"""Answers to an agent's MCP tool calls: patterns, lessons and fixes of a store, worded by `prompt/`.

These queries are not recorded: they are not calls of the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.capture.suggestions import suggest_repairs
from mulligan.core import calls
from mulligan.core.failure import Failure, SettingsError, TookEffect
from mulligan.core.records import Fix, History, Lesson, Pattern, Precedent, Recovery, Status, Step
from mulligan.learn import fixes
from mulligan.learn.seeds import corpus
from mulligan.mcp.mcp_tools import MAX_ANSWER_ITEMS, TOOLS, InvalidToolCallError, check_arguments
from mulligan.prompt.mcp_messages import McpMessages
from mulligan.record.memory_lookup import match_recorded_failure
from mulligan.recover.policy import Policy
from mulligan.report import time_parsing
from mulligan.store.base import DEFAULT_TENANT, FixQuery, LessonQuery, PatternQuery, RunQuery, Store, TrialReport

MAX_ANSWER_SUGGESTIONS = 3
"""Maximum suggestions, lessons or seed lessons of each type in an answer."""
MAX_SCANNED_RUNS = 50
"""Runs of each status that are searched for recent failures."""
MAX_SCANNED_PATTERNS = 1000
"""Patterns that are searched for an equal fingerprint."""
_STATUSES: tuple[Status, ...] = ("failure", "partial", "recovered")


class Knowledge:
    """Answers about failures from a store, if there is one, and from the seed lessons."""

    def __init__(
        self,
        store: Callable[[], Store | None],
        words: McpMessages,
        classify: Callable[..., Failure],
        *,
        now: Callable[[], int],
        session: str,
        policy: Policy | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> None:
        self._open_store, self._words, self._classify, self._now = store, words, classify, now
        self._session, self._policy, self._tenant = session, policy, tenant

    def call(self, name: str, arguments: Mapping[str, Any] | None) -> str:
        """Answer a tool call. Raise `InvalidToolCallError` for an unknown tool or invalid arguments."""
        spec = TOOLS.get(name)
        if spec is None:
            raise InvalidToolCallError(f"Unknown tool {name[:80]!r}. Available: {', '.join(TOOLS)}.")
        checked_arguments = check_arguments(spec, arguments)
        match name:
            case "known_failures":
                return self.answer_known_failures(
                    checked_arguments.get("tool"),
                    checked_arguments.get("kind"),
                    checked_arguments.get("text", ""),
                    checked_arguments["limit"],
                )
            case "suggest_fix":
                return self.answer_suggest_fix(
                    checked_arguments["tool"],
                    checked_arguments["error"],
                    checked_arguments.get("arguments", {}),
                    checked_arguments.get("schema"),
                )
            case "recent_failures":
                return self.answer_recent_failures(
                    checked_arguments.get("tool"),
                    checked_arguments.get("agent"),
                    checked_arguments["since"],
                    checked_arguments["limit"],
                )
        return self.answer_record_outcome(checked_arguments["id"], checked_arguments["successful"])

    def format_refusal(self, reason: str) -> str:
        """Format an error message for the model."""
        return self._words.error_message(reason)

    # known_failures

    def answer_known_failures(self, tool: str | None, kind: str | None, text: str, limit: int) -> str:
        store = self._open_store()
        kind = kind if kind is None or "/" in kind else f"{kind}/"
        patterns = self._find_patterns(store, tool, kind, text, limit) if store is not None else []
        lines = [self._describe_pattern(store, pattern) for pattern in patterns if store is not None]
        seeds: Sequence[Lesson] = ()
        if text:
            seeds = self._seeds(store, tool or "", self._classify_text(text, tool))
        lessons = (
            self._active_lessons(store, tool, patterns, limit - len(lines)) if store is not None and not text else []
        )
        return self._words.known_failures(
            [*lines, *(self._describe_lesson(lesson) for lesson in (*lessons, *seeds))], tool
        )

    def _find_patterns(self, store: Store, tool: str | None, kind: str | None, text: str, limit: int) -> list[Pattern]:
        query = PatternQuery(tool=tool, kind=kind, limit=limit)
        if not text:
            return store.patterns(self._tenant, query)
        failure = self._classify_text(text, tool)
        for query_text in dict.fromkeys((text, failure.message)):
            patterns = store.patterns(self._tenant, msgspec.structs.replace(query, text=query_text[:300]))
            if patterns:
                return patterns
        candidates = store.patterns(self._tenant, msgspec.structs.replace(query, limit=MAX_SCANNED_PATTERNS))
        return [pattern for pattern in candidates if pattern.fingerprint == failure.fingerprint][:limit]

    def _classify_text(self, text: str, tool: str | None) -> Failure:
        """Classify an error text. Without a tool name it may be a model failure."""
        return self._classify(source="tool" if tool else None, text=text, tool=tool or "", is_error=True)

    def _describe_pattern(self, store: Store, pattern: Pattern) -> str:
        lesson_query = LessonQuery(tool=pattern.tool, fingerprint=pattern.fingerprint, now=self._now(), limit=1)
        lessons = [
            lesson for lesson in store.lessons(self._tenant, lesson_query) if lesson.state in ("active", "proposed")
        ]
        helps = self._describe_lesson(lessons[0]) if lessons else ""
        if not helps:
            query = FixQuery(tool=pattern.tool, fingerprint=pattern.fingerprint, now=self._now(), limit=1)
            helps = " ".join(self._describe_fix(fix) for fix in store.fixes(self._tenant, query))
        return self._words.pattern_line(pattern, helps)

    def _active_lessons(self, store: Store, tool: str | None, patterns: Sequence[Pattern], limit: int) -> list[Lesson]:
        """Return active lessons that no listed pattern covers."""
        covered_ids = {pattern.id for pattern in patterns}
        query = LessonQuery(tool=tool, state="active", now=self._now(), limit=MAX_ANSWER_ITEMS)
        lessons = store.lessons(self._tenant, query) if tool is not None and limit > 0 else []
        return [lesson for lesson in lessons if lesson.pattern not in covered_ids][: max(limit, 0)]

    # suggest_fix

    def answer_suggest_fix(
        self, tool: str, error: str, arguments: dict[str, Any], schema: dict[str, Any] | None
    ) -> str:
        store = self._open_store()
        failure = self._classify(source="tool", text=error, tool=tool, arguments=arguments, is_error=True)
        if store is not None:
            failure = match_recorded_failure(store, self._tenant, tool, failure, error, arguments)
        words = self._words.for_arguments(arguments)
        recall = self._recall(store) if store is not None else None
        try:
            advice = suggest_repairs(
                tool, arguments, failure, schema=schema, mode="suggest", policy=self._policy, recall=recall
            )
        except SettingsError as wrong:
            raise InvalidToolCallError(f"suggest_fix rejected the arguments: {wrong}") from None
        lines = words.suggestions(
            Recovery(remedy=failure.remedy, changes=suggestion.changes, confidence=suggestion.confidence)
            for suggestion in advice.suggestions[:MAX_ANSWER_SUGGESTIONS]
            if suggestion.source != "memory"
            and not suggestion.prerequisites  # memory suggestions are listed with their record below
        )
        if store is not None:
            query = LessonQuery(
                tool=tool, fingerprint=failure.fingerprint, now=self._now(), limit=MAX_ANSWER_SUGGESTIONS
            )
            lessons = [
                lesson for lesson in store.lessons(self._tenant, query) if lesson.state in ("active", "proposed")
            ]
            covered = {lesson.fix_id for lesson in lessons}
            lines += [self._describe_lesson(lesson) for lesson in lessons]
            stored_fixes = store.fixes(
                self._tenant,
                FixQuery.for_failure(
                    tool, failure, arguments, now=self._now(), limit=MAX_ANSWER_SUGGESTIONS, showable=True
                ),
            )
            lines += [
                self._describe_fix(fix)
                for fix in stored_fixes
                if fix.id not in covered
                and fix.state != "revoked"
                # The tool's effects are unknown here: do not suggest repeating a call that may have executed.
                and not (fix.type == "retry" and failure.took_effect is TookEffect.UNKNOWN)
            ]
        lines += [self._describe_lesson(lesson) for lesson in self._seeds(store, tool, failure)]
        return words.repair_answer(failure, tool, [line for line in lines if line])

    def _recall(self, store: Store) -> Callable[..., Sequence[Fix]]:
        def recall(tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str) -> Sequence[Fix]:
            query = FixQuery.for_failure(tool, failure, arguments, key=key, schema=schema, now=self._now())
            return store.fixes(self._tenant, query) if failure.fingerprint else ()

        return recall

    def _seeds(self, store: Store | None, tool: str, failure: Failure) -> list[Lesson]:
        return corpus.find_matching_seeds(store, self._tenant, tool, failure)

    def _describe_lesson(self, lesson: Lesson) -> str:
        sentence = self._words.lesson_sentence(lesson)
        return f"{sentence} [{lesson.id}]" if sentence else ""

    def _describe_fix(self, fix: Fix) -> str:
        if fix.type == "exemplar" or not (fix.changes or fix.prerequisites or fix.type == "retry"):
            return ""
        method: Any = "prerequisite" if fix.type == "prerequisite" else "agent" if fix.changes else "retry"
        precedent = Precedent(
            method=method,
            changes=fix.changes,
            prerequisites=fix.prerequisites,
            successes=fix.successes,
            occurrences=fix.trials,
            similarity=fix.similarity,
        )
        return f"{self._words.precedent(precedent)} [{fix.id}]"

    # recent_failures

    def answer_recent_failures(self, tool: str | None, agent: str | None, since: str, limit: int) -> str:
        store = self._open_store()
        if store is None:
            return self._words.recent_failures([], since)
        now = self._now()
        begin = time_parsing.parse_time(since, now)
        histories: list[History] = []
        for status in _STATUSES:
            query = RunQuery(tool=tool, agent=agent, status=status, since=begin, limit=MAX_SCANNED_RUNS)
            histories += store.runs(self._tenant, query)
        failed: list[tuple[int, str]] = []
        for history in histories:
            recovered_ids = {link.failed_call for link in history.links}
            for call in calls.group_attempts(history.steps):
                step = next((attempt for attempt in reversed(call.steps) if attempt.has_failed), None)
                if step is None or (tool is not None and step.name != tool) or step.started_at < (begin or 0):
                    continue
                failed.append(
                    (
                        step.started_at,
                        self._describe_failed_step(step, call.has_succeeded or call.id in recovered_ids, now),
                    )
                )
        failed.sort(key=lambda failed_call: -failed_call[0])
        return self._words.recent_failures([line for _, line in failed[:limit]], since)

    def _describe_failed_step(self, step: Step, is_recovered: bool, now: int) -> str:
        return self._words.for_arguments(step.arguments).failed_call_line(
            step, is_recovered, max(0, now - step.started_at) // 1000
        )

    # record_outcome

    def answer_record_outcome(self, id: str, has_succeeded: bool) -> str:
        """Record one vote per session.

        Its principal does not count as evidence: a model's report proves nothing (S3).
        """
        store = self._open_store()
        fix = id
        if id.startswith("les_"):
            lesson = store.lesson(self._tenant, id, self._now()) if store is not None else None
            if lesson is None or not lesson.fix_id:
                if lesson is not None or corpus.find_seed(id) is not None:
                    return self._words.outcome_not_recorded(id)
                raise InvalidToolCallError(f"Unknown lesson {id}. Use an id from suggest_fix or known_failures.")
            fix = lesson.fix_id
        report = TrialReport(
            run=self._session, principal=fixes.IMPORT_PRINCIPAL, agent="mcp", at=self._now(), successful=has_succeeded
        )
        if store is None or not store.record_outcome(self._tenant, fix, report):
            raise InvalidToolCallError(f"Unknown fix {id}. Use an id from suggest_fix or known_failures.")
        return self._words.outcome_recorded(id, has_succeeded)

    # Resources

    def list_resources(self) -> list[tuple[str, str, str]]:
        """Return URI, name and description of each resource."""
        store = self._open_store()
        resources = [
            ("mulligan://patterns", "patterns", "The most frequent failure patterns."),
            ("mulligan://lessons", "lessons", "Active lessons, best evidence first."),
        ]
        if store is not None:
            for pattern in store.patterns(self._tenant, PatternQuery(limit=MAX_ANSWER_ITEMS)):
                name = self._words.tool_heading(pattern.tool) or "a tool"
                resources.append((f"mulligan://patterns/{pattern.id}", f"{name}: {pattern.kind}", "A failure pattern."))
            for lesson in store.lessons(
                self._tenant, LessonQuery(state="active", now=self._now(), limit=MAX_ANSWER_ITEMS)
            ):
                name = self._words.tool_heading(lesson.tool) or "a tool"
                resources.append((f"mulligan://lessons/{lesson.id}", f"{name}: {lesson.kind}", "An active lesson."))
        return resources

    def read_resource(self, uri: str) -> str | None:
        """Return the content of a resource, or None if there is none."""
        resource_type, _, id = uri.removeprefix("mulligan://").partition("/")
        store = self._open_store()
        if not uri.startswith("mulligan://"):
            return None
        if resource_type == "patterns":
            if not id:
                return self.answer_known_failures(None, None, "", MAX_ANSWER_ITEMS)
            pattern = store.pattern(self._tenant, id) if store is not None else None
            return self._describe_pattern(store, pattern) if store is not None and pattern is not None else None
        if resource_type == "lessons":
            if not id:
                query = LessonQuery(state="active", now=self._now(), limit=MAX_ANSWER_ITEMS)
                lessons = store.lessons(self._tenant, query) if store is not None else []
                return self._words.known_failures(
                    [self._describe_lesson(active_lesson) for active_lesson in lessons], None
                )
            lesson = store.lesson(self._tenant, id, self._now()) if store is not None else None
            lesson = lesson or corpus.find_seed(id)
            return self._describe_lesson(lesson) or None if lesson is not None else None
        return None
