"""MCP tools about failures: their definitions, and answers from a store, worded by `prompt/`.

These queries are not recorded: they are not calls of the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from mulligan.capture.suggestions import suggest_repairs
from mulligan.contract.store import (
    DEFAULT_TENANT,
    IMPORT_PRINCIPAL,
    FixQuery,
    LessonQuery,
    PatternQuery,
    RunQuery,
    Store,
    TrialReport,
)
from mulligan.core import calls
from mulligan.core.failure import Failure, SettingsError, TookEffect
from mulligan.core.kinds import TYPES
from mulligan.core.records import Fix, Lesson, Pattern, Precedent, Recovery, Status
from mulligan.learn import seeds
from mulligan.prompt import Prompt
from mulligan.record.memory_lookup import find_facts, match_recorded_failure
from mulligan.recover.policy import Policy
from mulligan.report.tables import parse_time
from mulligan.store.urls import open_store

MAX_ANSWER_ITEMS = 20
"""Maximum patterns, failures or lessons in one answer."""
MAX_ANSWER_SUGGESTIONS = 3
"""Maximum suggestions, lessons or fixes of each type in an answer."""
MAX_ERROR_CHARS = 1_000_000
"""Maximum characters of an error text. Only its ends are used."""
_STATUSES: tuple[Status, ...] = ("failure", "partial", "recovered")
_LIMITS = {"minimum": "at least", "maximum": "at most", "maxLength": "characters at most", "pattern": "as in"}


class InvalidToolCallError(Exception):
    """Invalid tool call. The message says what to change."""


class ToolSpec(NamedTuple):
    """An MCP tool definition. `Knowledge` answers it with the method of its name."""

    name: str
    title: str
    description: str
    properties: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...] = ()
    is_read_only: bool = True

    @property
    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {name: dict(schema) for name, schema in self.properties.items()},
            "required": list(self.required),
            "additionalProperties": False,
        }

    def check_arguments(self, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the arguments with defaults. Raise `InvalidToolCallError` that names what to change."""
        checked_arguments = dict(arguments or {})
        for name in checked_arguments:
            if name not in self.properties:
                names = ", ".join(self.properties)
                raise InvalidToolCallError(f"{self.name} has no argument {str(name)[:80]!r}. Arguments: {names}.")
        for name in self.required:
            if checked_arguments.get(name) is None:
                raise InvalidToolCallError(f"{self.name} requires {name!r}: {self._describe(name)}")
        for name, value in checked_arguments.items():
            if not _is_valid(self.properties[name], value):
                raise InvalidToolCallError(f"Invalid {name!r} for {self.name}. Expected: {self._describe(name)}")
        defaults = {name: schema["default"] for name, schema in self.properties.items() if "default" in schema}
        return defaults | checked_arguments

    def _describe(self, name: str) -> str:
        schema = self.properties[name]
        limits = [f"{word} {schema[limit]}" for limit, word in _LIMITS.items() if limit in schema]
        return f"{schema['description']} ({', '.join([str(schema['type']), *limits])})."


def _is_valid(schema: Mapping[str, Any], value: Any) -> bool:
    import jsonschema_rs  # lazy: on the first call, not while the client waits for the tool list

    try:
        return bool(jsonschema_rs.validator_for(dict(schema)).is_valid(value))
    except (ValueError, RecursionError):  # too deep, or text that cannot be encoded
        return False


def _string(description: str, **limits: Any) -> dict[str, Any]:
    return {"type": "string", **limits, "description": description}


def _text(description: str, max_chars: int = 200) -> dict[str, Any]:
    return _string(description, minLength=1, maxLength=max_chars)


_TOOL = _text("Name of the tool, as you call it.")
_LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_ANSWER_ITEMS, "default": 5}
_LIMIT |= {"description": "Maximum number of results."}
_KIND_PATTERN = f"^(?:{'|'.join(TYPES)})(?:/[a-z_]{{1,40}})?$"
_SPECS = (
    ToolSpec(
        "known_failures",
        "Known failures of a tool",
        "Lists earlier failures of a tool, how often they occurred, and what recovered them. Use it before "
        "calling an unfamiliar tool, or with an error text to check whether the error is known.",
        {
            "tool": _TOOL,
            "kind": _string("Only failures of this kind, such as tool/timeout.", pattern=_KIND_PATTERN),
            "text": _text("Only failures similar to this text.", MAX_ERROR_CHARS),
            "limit": _LIMIT,
        },
    ),
    ToolSpec(
        "suggest_fix",
        "Suggest a repair for a failed call",
        "Analyzes a failed tool call: its kind, which argument change may repair it, and what recovered it "
        "before. Use it before you retry the call. It executes nothing.",
        {
            "tool": _TOOL,
            "error": _text("Full output of the failed call.", MAX_ERROR_CHARS),
            "arguments": {"type": "object", "description": "Arguments of the failed call."},
            "schema": {"type": "object", "description": "Input schema of the tool, if you have it."},
        },
        ("tool", "error"),
    ),
    ToolSpec(
        "recent_failures",
        "Recent failures",
        "Lists failed calls of the last hours or days by all agents in this store, the latest first, and "
        "whether each recovered.",
        {
            "tool": _TOOL,
            "agent": _text("Only failures of this agent."),
            "since": _string("Maximum age: 30m, 24h, 7d, 2w.", pattern="^[1-9][0-9]{0,4}[mhdw]$", default="24h"),
            "limit": _LIMIT,
        },
    ),
    ToolSpec(
        "record_outcome",
        "Report whether a fix worked",
        "Reports whether a suggestion with an id (fix_... or les_...) worked after you followed it. Counts "
        "once per session, and alone promotes nothing.",
        {
            "id": _string("Id of the fix or lesson.", pattern="^(?:fix|les)_[0-9a-f]{4,12}$"),
            "successful": {"type": "boolean", "description": "Whether the call succeeded."},
        },
        ("id", "successful"),
        is_read_only=False,
    ),
)
TOOLS = {spec.name: spec for spec in _SPECS}


class Knowledge:
    """Answers about failures from a store, empty as long as there is none, and from the seed lessons."""

    def __init__(
        self,
        store: Callable[[], Store | None],
        words: Prompt,
        classify: Callable[..., Failure],
        *,
        now: Callable[[], int],
        session: str,
        policy: Policy | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> None:
        self._open_store, self._words, self._classify, self._now = store, words, classify, now
        self._session, self._policy, self._tenant = session, policy, tenant

    @property
    def _store(self) -> Store:
        return self._open_store() or _open_empty_store()

    def call(self, name: str, arguments: Mapping[str, Any] | None) -> str:
        """Answer a tool call. Raise `InvalidToolCallError` for an unknown tool or invalid arguments."""
        spec = TOOLS.get(name)
        if spec is None:
            raise InvalidToolCallError(f"Unknown tool {name[:80]!r}. Available: {', '.join(TOOLS)}.")
        answer: Callable[..., str] = getattr(self, f"answer_{spec.name}")
        return answer(**spec.check_arguments(arguments))

    def format_refusal(self, reason: str) -> str:
        """Format an error message for the model."""
        return self._words.error_message(reason)

    def _lessons(self, **fields: Any) -> list[Lesson]:
        return self._store.lessons(self._tenant, LessonQuery(now=self._now(), **fields))

    def _shown_lessons(self, **fields: Any) -> list[Lesson]:
        return [lesson for lesson in self._lessons(**fields) if lesson.state in ("active", "proposed")]

    # known_failures

    def answer_known_failures(
        self, tool: str | None = None, kind: str | None = None, text: str = "", limit: int = MAX_ANSWER_ITEMS
    ) -> str:
        kind = kind if kind is None or "/" in kind else f"{kind}/"
        query = PatternQuery(tool=tool, kind=kind, limit=limit)
        lessons: Sequence[Lesson] = ()
        if text:
            # Without a tool name it may be a model failure.
            failure = self._classify(source="tool" if tool else None, text=text, tool=tool or "", is_error=True)
            patterns = self._find_patterns(query, text, failure)
            lessons = seeds.find_matching_seeds(self._store, self._tenant, tool or "", failure)
        else:
            patterns = self._store.patterns(self._tenant, query)
            free = max(limit - len(patterns), 0)
            if tool is not None and free:
                covered_ids = {pattern.id for pattern in patterns}
                active_lessons = self._lessons(tool=tool, state="active", limit=MAX_ANSWER_ITEMS)
                lessons = [lesson for lesson in active_lessons if lesson.pattern not in covered_ids][:free]
        lines = [self._describe_pattern(pattern) for pattern in patterns]
        return self._words.known_failures([*lines, *map(self._describe_lesson, lessons)], tool)

    def _find_patterns(self, query: PatternQuery, text: str, failure: Failure) -> list[Pattern]:
        """Return the patterns with this text, else with its message, else with its fingerprint."""
        for query_text in dict.fromkeys((text, failure.message)):
            patterns = self._store.patterns(self._tenant, msgspec.structs.replace(query, text=query_text[:300]))
            if patterns:
                return patterns
        # Patterns that are searched for an equal fingerprint.
        candidates = self._store.patterns(self._tenant, msgspec.structs.replace(query, limit=1000))
        return [pattern for pattern in candidates if pattern.fingerprint == failure.fingerprint][: query.limit]

    def _describe_pattern(self, pattern: Pattern) -> str:
        lessons = self._shown_lessons(tool=pattern.tool, fingerprint=pattern.fingerprint, limit=1)
        helps = self._describe_lesson(lessons[0]) if lessons else ""
        if not helps:
            query = FixQuery(tool=pattern.tool, fingerprint=pattern.fingerprint, now=self._now(), limit=1)
            helps = " ".join(map(self._describe_fix, self._store.fixes(self._tenant, query)))
        return self._words.pattern_line(pattern, helps)

    # suggest_fix

    def answer_suggest_fix(
        self, tool: str, error: str, arguments: dict[str, Any] | None = None, schema: dict[str, Any] | None = None
    ) -> str:
        arguments = arguments or {}
        failure = self._classify(source="tool", text=error, tool=tool, arguments=arguments, is_error=True)
        failure = match_recorded_failure(self._store, self._tenant, tool, failure, error, arguments)
        words = self._words.for_arguments(arguments)
        try:
            advice = suggest_repairs(
                tool, arguments, failure, schema=schema, mode="suggest", policy=self._policy, recall=self._recall
            )
        except SettingsError as wrong:
            raise InvalidToolCallError(f"suggest_fix rejected the arguments: {wrong}") from None
        lines = words.suggestions(
            Recovery(remedy=failure.remedy, changes=suggestion.changes, confidence=suggestion.confidence)
            for suggestion in advice.suggestions[:MAX_ANSWER_SUGGESTIONS]
            # Suggestions from memory are listed with their record below.
            if suggestion.source != "memory" and not suggestion.prerequisites
        )
        lessons = self._shown_lessons(tool=tool, fingerprint=failure.fingerprint, limit=MAX_ANSWER_SUGGESTIONS)
        covered_fixes = {lesson.fix_id for lesson in lessons}
        query = FixQuery.for_failure(
            tool, failure, arguments, now=self._now(), limit=MAX_ANSWER_SUGGESTIONS, showable=True
        )
        lines += map(self._describe_lesson, lessons)
        lines += [
            self._describe_fix(fix)
            for fix in self._store.fixes(self._tenant, query)
            if fix.id not in covered_fixes
            and fix.state != "revoked"
            # The tool's effects are unknown here: do not suggest repeating a call that may have executed.
            and not (fix.type == "retry" and failure.took_effect is TookEffect.UNKNOWN)
        ]
        lines += words.facts(find_facts(self._store, self._tenant, tool, "", failure, arguments))
        lines += map(self._describe_lesson, seeds.find_matching_seeds(self._store, self._tenant, tool, failure))
        lines = [line for line in lines if line]
        return words.repair_answer(failure, tool, lines, schema=schema, arguments=arguments)

    def _recall(
        self, tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str
    ) -> Sequence[Fix]:
        query = FixQuery.for_failure(tool, failure, arguments, key=key, schema=schema, now=self._now())
        return self._store.fixes(self._tenant, query) if failure.fingerprint else ()

    def _describe_lesson(self, lesson: Lesson) -> str:
        sentence = self._words.lesson_sentence(lesson)
        return f"{sentence} [{lesson.id}]" if sentence else ""

    def _describe_fix(self, fix: Fix) -> str:
        if fix.type == "exemplar" or not (fix.changes or fix.prerequisites or fix.type == "retry"):
            return ""
        precedent = Precedent(
            method="prerequisite" if fix.type == "prerequisite" else "agent" if fix.changes else "retry",
            changes=fix.changes,
            prerequisites=fix.prerequisites,
            successes=fix.successes,
            occurrences=fix.trials,
            similarity=fix.similarity,
        )
        sentence = self._words.precedent(precedent)
        return f"{sentence} [{fix.id}]" if sentence else ""

    # recent_failures

    def answer_recent_failures(self, since: str, limit: int, tool: str | None = None, agent: str | None = None) -> str:
        store, now = self._open_store(), self._now()
        if store is None:
            return self._words.recent_failures([], since)
        begin = parse_time(since, now)
        failed: list[tuple[int, str]] = []
        for status in _STATUSES:
            # Runs of each status that are searched for recent failures.
            query = RunQuery(tool=tool, agent=agent, status=status, since=begin, limit=50)
            for history in self._store.runs(self._tenant, query):
                links = history.links_by_call
                for call in calls.group_attempts(history.steps):
                    step = next((attempt for attempt in reversed(call.steps) if attempt.has_failed), None)
                    if step is None or (tool is not None and step.name != tool) or step.started_at < (begin or 0):
                        continue
                    words = self._words.for_arguments(step.arguments)
                    is_recovered = call.is_recovered(links.get(call.id))
                    age_seconds = max(0, now - step.started_at) // 1000
                    failed.append((step.started_at, words.failed_call_line(step, is_recovered, age_seconds)))
        failed.sort(key=lambda failed_call: -failed_call[0])
        return self._words.recent_failures([line for _, line in failed[:limit]], since)

    # record_outcome

    def answer_record_outcome(self, id: str, successful: bool) -> str:
        """Record one vote per session.

        Its principal does not count as evidence: a model's report proves nothing (S3).
        """
        fix = id
        if id.startswith("les_"):
            lesson = self._store.lesson(self._tenant, id, self._now())
            if lesson is None or not lesson.fix_id:
                if lesson is not None or seeds.find_seed(id) is not None:
                    return self._words.outcome_not_recorded(id)
                raise InvalidToolCallError(f"Unknown lesson {id}. Use an id from suggest_fix or known_failures.")
            fix = lesson.fix_id
        report = TrialReport(
            run=self._session, principal=IMPORT_PRINCIPAL, agent="mcp", at=self._now(), successful=successful
        )
        if not self._store.record_outcome(self._tenant, fix, report):
            raise InvalidToolCallError(f"Unknown fix {id}. Use an id from suggest_fix or known_failures.")
        return self._words.outcome_recorded(id, successful)

    # Resources

    def list_resources(self) -> list[tuple[str, str, str]]:
        """Return URI, name and description of each resource."""
        resources = [
            ("mulligan://patterns", "patterns", "The most frequent failure patterns."),
            ("mulligan://lessons", "lessons", "Active lessons, best evidence first."),
        ]
        entries: tuple[tuple[str, str, Sequence[Pattern | Lesson]], ...] = (
            (
                "patterns",
                "A failure pattern.",
                self._store.patterns(self._tenant, PatternQuery(limit=MAX_ANSWER_ITEMS)),
            ),
            ("lessons", "An active lesson.", self._lessons(state="active", limit=MAX_ANSWER_ITEMS)),
        )
        for resource_type, description, items in entries:
            for item in items:
                name = self._words.tool_heading(item.tool) or "a tool"
                resources.append((f"mulligan://{resource_type}/{item.id}", f"{name}: {item.kind}", description))
        return resources

    def read_resource(self, uri: str) -> str | None:
        """Return the content of a resource, or None if there is none."""
        scheme, _, path = uri.partition("://")
        resource_type, _, id = path.partition("/")
        match scheme, resource_type:
            case "mulligan", "patterns" if not id:
                return self.answer_known_failures()
            case "mulligan", "patterns":
                pattern = self._store.pattern(self._tenant, id)
                return self._describe_pattern(pattern) if pattern is not None else None
            case "mulligan", "lessons" if not id:
                lessons = self._lessons(state="active", limit=MAX_ANSWER_ITEMS)
                return self._words.known_failures([self._describe_lesson(lesson) for lesson in lessons], None)
            case "mulligan", "lessons":
                lesson = self._store.lesson(self._tenant, id, self._now()) or seeds.find_seed(id)
                return self._describe_lesson(lesson) or None if lesson is not None else None
        return None


@cache
def _open_empty_store() -> Store:
    return open_store("memory:")
