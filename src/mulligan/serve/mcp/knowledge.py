"""Answers to an agent's MCP tool calls: patterns, lessons and fixes of a store, worded by `prompt/`.

These queries are not recorded: they are not calls of the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from mulligan import calls
from mulligan.capture.advice import advise
from mulligan.failure import Failure, Ran, SettingsError
from mulligan.prompt.questions import Answers
from mulligan.records import Fix, History, Lesson, Pattern, Precedent, Recovery, Status, Step
from mulligan.recover.policy import Policy
from mulligan.remember import fixes
from mulligan.remember.recall import match_recorded_failure
from mulligan.remember.seeds import corpus
from mulligan.remember.store import (
    LOCAL,
    Evidence,
    FixQuery,
    LessonQuery,
    PatternQuery,
    RunQuery,
    Store,
)
from mulligan.report import moments
from mulligan.serve.mcp.tools import MOST, TOOLS, BadCall, checked

SUGGESTED = 3
"""Maximum suggestions, lessons or seed lessons of each type in an answer."""
RUNS = 50
"""Runs of each status that are searched for recent failures."""
PATTERNS = 1000
"""Patterns that are searched for an equal fingerprint."""
_STATUSES: tuple[Status, ...] = ("failure", "partial", "recovered")


class Knowledge:
    """Answers about failures from a store, if there is one, and from the seed lessons."""

    def __init__(
        self,
        store: Callable[[], Store | None],
        words: Answers,
        classify: Callable[..., Failure],
        *,
        now: Callable[[], int],
        session: str,
        policy: Policy | None = None,
        tenant: str = LOCAL,
    ) -> None:
        self._opened, self._words, self._classify, self._now = store, words, classify, now
        self._session, self._policy, self._tenant = session, policy, tenant

    def call(self, name: str, arguments: Mapping[str, Any] | None) -> str:
        """Answer a tool call. Raise `InvalidToolCallError` for an unknown tool or invalid arguments."""
        spec = TOOLS.get(name)
        if spec is None:
            raise BadCall(f"there is no tool {name[:80]!r}. There are {', '.join(TOOLS)}.")
        given = checked(spec, arguments)
        match name:
            case "known_failures":
                return self.known(given.get("tool"), given.get("kind"), given.get("text", ""), given["limit"])
            case "suggest_fix":
                return self.suggested(given["tool"], given["error"], given.get("arguments", {}), given.get("schema"))
            case "recent_failures":
                return self.recent(given.get("tool"), given.get("agent"), given["since"], given["limit"])
        return self.reported(given["id"], given["worked"])

    def shown(self, why: str) -> str:
        """Format an error message for the model."""
        return self._words.refused(why)

    # known_failures

    def known(self, tool: str | None, kind: str | None, text: str, limit: int) -> str:
        store = self._opened()
        kind = kind if kind is None or "/" in kind else f"{kind}/"
        found = self._patterns(store, tool, kind, text, limit) if store is not None else []
        told = [self._met(store, each) for each in found if store is not None]
        seeds: Sequence[Lesson] = ()
        if text:
            seeds = self._seeds(store, tool or "", self._said(text, tool))
        lessons = self._proven(store, tool, found, limit - len(told)) if store is not None and not text else []
        return self._words.known([*told, *(self._lesson(each) for each in (*lessons, *seeds))], tool)

    def _patterns(self, store: Store, tool: str | None, kind: str | None, text: str, limit: int) -> list[Pattern]:
        query = PatternQuery(tool=tool, kind=kind, limit=limit)
        if not text:
            return store.patterns(self._tenant, query)
        failure = self._said(text, tool)
        for said in dict.fromkeys((text, failure.message)):
            found = store.patterns(self._tenant, msgspec.structs.replace(query, text=said[:300]))
            if found:
                return found
        alike = store.patterns(self._tenant, msgspec.structs.replace(query, limit=PATTERNS))
        return [each for each in alike if each.fingerprint == failure.fingerprint][:limit]

    def _said(self, text: str, tool: str | None) -> Failure:
        """Classify an error text. Without a tool name it may be a model failure."""
        return self._classify(source="tool" if tool else None, text=text, tool=tool or "", is_error=True)

    def _met(self, store: Store, pattern: Pattern) -> str:
        about = LessonQuery(tool=pattern.tool, fingerprint=pattern.fingerprint, now=self._now(), limit=1)
        lessons = [each for each in store.lessons(self._tenant, about) if each.state in ("active", "proposed")]
        helps = self._lesson(lessons[0]) if lessons else ""
        if not helps:
            query = FixQuery(tool=pattern.tool, fingerprint=pattern.fingerprint, now=self._now(), limit=1)
            helps = " ".join(self._fix(each) for each in store.fixes(self._tenant, query))
        return self._words.met(pattern, helps)

    def _proven(self, store: Store, tool: str | None, found: Sequence[Pattern], limit: int) -> list[Lesson]:
        """Return active lessons that no listed pattern covers."""
        told = {each.id for each in found}
        query = LessonQuery(tool=tool, state="active", now=self._now(), limit=MOST)
        lessons = store.lessons(self._tenant, query) if tool is not None and limit > 0 else []
        return [each for each in lessons if each.pattern not in told][: max(limit, 0)]

    # suggest_fix

    def suggested(self, tool: str, error: str, arguments: dict[str, Any], schema: dict[str, Any] | None) -> str:
        store = self._opened()
        failure = self._classify(source="tool", text=error, tool=tool, arguments=arguments, is_error=True)
        if store is not None:
            failure = match_recorded_failure(store, self._tenant, tool, failure, error, arguments)
        words = self._words.beside(arguments)
        recall = self._recall(store) if store is not None else None
        try:
            made = advise(tool, arguments, failure, schema=schema, mode="suggest", policy=self._policy, recall=recall)
        except SettingsError as wrong:
            raise BadCall(f"suggest_fix cannot use this: {wrong}") from None
        told = words.suggestions(
            Recovery(remedy=failure.remedy, changes=each.changes, confidence=each.confidence)
            for each in made.suggestions[:SUGGESTED]
            if each.source != "memory" and not each.first  # memory suggestions are listed with their record below
        )
        if store is not None:
            query = LessonQuery(tool=tool, fingerprint=failure.fingerprint, now=self._now(), limit=SUGGESTED)
            lessons = [each for each in store.lessons(self._tenant, query) if each.state in ("active", "proposed")]
            covered = {each.fix for each in lessons}
            told += [self._lesson(each) for each in lessons]
            known = store.fixes(
                self._tenant, FixQuery.about(tool, failure, arguments, now=self._now(), limit=SUGGESTED, tellable=True)
            )
            told += [
                self._fix(each)
                for each in known
                if each.id not in covered
                and each.state != "revoked"
                # The tool's effects are unknown here: do not suggest repeating a call that may have executed.
                and not (each.sort == "retry" and failure.ran is Ran.UNKNOWN)
            ]
        told += [self._lesson(each) for each in self._seeds(store, tool, failure)]
        return words.advised(failure, tool, [each for each in told if each])

    def _recall(self, store: Store) -> Callable[..., Sequence[Fix]]:
        def recall(tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str) -> Sequence[Fix]:
            query = FixQuery.about(tool, failure, arguments, key=key, schema=schema, now=self._now())
            return store.fixes(self._tenant, query) if failure.fingerprint else ()

        return recall

    def _seeds(self, store: Store | None, tool: str, failure: Failure) -> list[Lesson]:
        return corpus.known(store, self._tenant, tool, failure)

    def _lesson(self, lesson: Lesson) -> str:
        said = self._words.lesson(lesson)
        return f"{said} [{lesson.id}]" if said else ""

    def _fix(self, fix: Fix) -> str:
        if fix.sort == "exemplar" or not (fix.changes or fix.first or fix.sort == "retry"):
            return ""
        how: Any = "recipe" if fix.sort == "recipe" else "agent" if fix.changes else "retry"
        known = Precedent(
            how=how, changes=fix.changes, first=fix.first, worked=fix.worked, seen=fix.tried, likeness=fix.likeness
        )
        return f"{self._words.precedent(known)} [{fix.id}]"

    # recent_failures

    def recent(self, tool: str | None, agent: str | None, since: str, limit: int) -> str:
        store = self._opened()
        if store is None:
            return self._words.failed_lately([], since)
        now = self._now()
        begin = moments.moment(since, now)
        histories: list[History] = []
        for status in _STATUSES:
            query = RunQuery(tool=tool, agent=agent, status=status, since=begin, limit=RUNS)
            histories += store.runs(self._tenant, query)
        failed: list[tuple[int, str]] = []
        for history in histories:
            overcome = {link.failed for link in history.links}
            for call in calls.group_attempts(history.steps):
                step = next((each for each in reversed(call.steps) if each.has_failed), None)
                if step is None or (tool is not None and step.name != tool) or step.started < (begin or 0):
                    continue
                failed.append((step.started, self._failed(step, call.has_succeeded or call.id in overcome, now)))
        failed.sort(key=lambda each: -each[0])
        return self._words.failed_lately([said for _, said in failed[:limit]], since)

    def _failed(self, step: Step, is_overcome: bool, now: int) -> str:
        return self._words.beside(step.arguments).failed(step, is_overcome, max(0, now - step.started) // 1000)

    # record_outcome

    def reported(self, id: str, worked: bool) -> str:
        """Record one vote per session.

        Its principal does not count as evidence: a model's report proves nothing (S3).
        """
        store = self._opened()
        fix = id
        if id.startswith("les_"):
            lesson = store.lesson(self._tenant, id, self._now()) if store is not None else None
            if lesson is None or not lesson.fix:
                if lesson is not None or corpus.named(id) is not None:
                    return self._words.uncounted(id)
                raise BadCall(f"there is no lesson {id}. Use an id that suggest_fix or known_failures gave you.")
            fix = lesson.fix
        report = Evidence(run=self._session, principal=fixes.IMPORT, agent="mcp", at=self._now(), worked=worked)
        if store is None or not store.outcome(self._tenant, fix, report):
            raise BadCall(f"there is no fix {id}. Use an id that suggest_fix or known_failures gave you.")
        return self._words.counted(id, worked)

    # Resources

    def listed(self) -> list[tuple[str, str, str]]:
        """Return URI, name and description of each resource."""
        store = self._opened()
        found = [
            ("mulligan://patterns", "patterns", "What goes wrong most often."),
            ("mulligan://lessons", "lessons", "What is known to help, the best proven first."),
        ]
        if store is not None:
            for pattern in store.patterns(self._tenant, PatternQuery(limit=MOST)):
                name = self._words.about_tool(pattern.tool) or "a tool"
                found.append((f"mulligan://patterns/{pattern.id}", f"{name}: {pattern.kind}", "A pattern of failures."))
            for lesson in store.lessons(self._tenant, LessonQuery(state="active", now=self._now(), limit=MOST)):
                name = self._words.about_tool(lesson.tool) or "a tool"
                found.append((f"mulligan://lessons/{lesson.id}", f"{name}: {lesson.kind}", "A lesson in force."))
        return found

    def read(self, uri: str) -> str | None:
        """Return the content of a resource, or None if there is none."""
        sort, _, id = uri.removeprefix("mulligan://").partition("/")
        store = self._opened()
        if not uri.startswith("mulligan://"):
            return None
        if sort == "patterns":
            if not id:
                return self.known(None, None, "", MOST)
            pattern = store.pattern(self._tenant, id) if store is not None else None
            return self._met(store, pattern) if store is not None and pattern is not None else None
        if sort == "lessons":
            if not id:
                query = LessonQuery(state="active", now=self._now(), limit=MOST)
                lessons = store.lessons(self._tenant, query) if store is not None else []
                return self._words.known([self._lesson(each) for each in lessons], None)
            lesson = store.lesson(self._tenant, id, self._now()) if store is not None else None
            lesson = lesson or corpus.named(id)
            return self._lesson(lesson) or None if lesson is not None else None
        return None
