"""Detects results that are failures although nothing was raised, and those that look like one.

Every result is checked for a failure before the call returns, so that check is cheap. Whether a success looks like a
failure has no effect on the call: it is judged when the call is recorded, mostly on the recorder's thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from mulligan.capture.context import CaptureContext
from mulligan.classify.result_keys import DESCRIPTION_KEYS, DONE_KEYS, ENVELOPE_KEYS, MAX_DESCRIPTION_KEYS
from mulligan.classify.tool_category import PROGRAM_CATEGORIES, returns_content
from mulligan.core import fork_safety
from mulligan.core.failure import RETURNED_ERROR, DetectErrors, Failure, Returns, TookEffect, ToolCategory
from mulligan.core.kinds import RETRIEVAL_NO_RESULTS
from mulligan.core.records import Effects, StepType, SuspectedFailure

Empty = Literal["success", "failure"]

PLAIN_TYPES = frozenset({str, dict, list, tuple})
"""Types whose copies for the recorder tell what the results told."""
DATA_TYPES = frozenset({type(None), bool, int, float, str, list, tuple, set, frozenset})
"""Types that are never errors, nor content blocks."""
NAMED_FAILURES = ("error", "exception", "fail", "not found", "no such", "denied", "not recognized")
"""Words for a failure after the name of what failed and a colon."""
CONTENT_STATUS_KEYS = frozenset({"status_code", "statusCode", "stdout", "stderr", "output", "stdErr"})
"""Keys with which a result that is content may be an error whatever else it holds."""
RESULT_STATUS_KEYS = DONE_KEYS.union(
    "isError is_error content returncode exit_code exitCode error Error fault errors status state result".split(),
    ("outcome",),
)
"""Keys with which a dictionary may be an error whatever else it holds."""
ENVELOPE_STATUS_KEYS = frozenset(
    "statusCode status_code httpStatus http_status code message Message msg detail title errorMessages errorMessage "
    "error_message errcode error_code errorCode".split()
)
"""Keys with which a dictionary may be an error if it holds no data."""
STATUS_KEYS = RESULT_STATUS_KEYS | ENVELOPE_STATUS_KEYS | DESCRIPTION_KEYS | CONTENT_STATUS_KEYS
"""Keys of which a dictionary that may be an error has at least one."""
MAX_FRAME_CHARS = 200
"""Characters in which a text names the exit code of a program, at its start or its end."""
FRAME_MARKS = ("exit", " with ", "return", "wall time:", "chunk id:")
"""Words of which one is at the start of a program's output with an exit code."""
MAX_HEAD_CHARS = 160
"""Characters in which a text says that it is an error."""
ERROR_STARTS = (
    "error", "an ", "a ", "exit", "unknown", "tool", "command", "request", "execution", "mcp", "traceback", "<",
    "failed ", "unable to", "could", "can", "sorry", "oops", "something went", "fatal", "exception", "timeout while",
    "invalid request", "bad ", "http", "unauthorized", "forbidden", "not ", "method not", "conflict", "gone", "payload",
    "content too", "unsupported", "unprocessable", "too many", "internal", "service", "gateway", "permission", "access",
    "file not", "resource not", "page not", "path not", "connection ", "operation timed", "query timed", "call timed",
    "search timed", *(f"{number} validation" for number in range(1, 10)), "4", "5", "[error", "\u274c", "\u2717",
    "\u2716", "\u26a0", "\U0001f6ab",
)  # fmt: skip
"""How an error text without a colon may start."""
MAX_START_CHARS = max(map(len, ERROR_STARTS))
STARTS_BY_CHARACTER: dict[str, tuple[str, ...]] = {
    **{
        character: tuple(start for start in ERROR_STARTS if start[0] == character.lower())
        for start in ERROR_STARTS
        for character in {start[0], start[0].upper()}
    },
    **dict.fromkeys(("{", *map(chr, range(33)), "\x85", "\xa0", "\u3000"), ("",)),
}
"""The same by the first character. After an opening brace or white space, anything may follow."""
RESULT_KEYS = frozenset(
    {"results", "items", "documents", "docs", "hits", "matches", "data", "records", "rows", "entries", "chunks"}
)
"""Keys under which a search returns its results."""
COLLECTIONS = (list, tuple, dict, set, frozenset)


class ResultChecker:
    """Checks the results of one tool, as its developer declared: for errors, and for empty results."""

    __slots__ = (
        *("_content_category", "_is_empty_failure", "_name", "_type"),
        *("category", "detect_errors", "effects", "returns"),
    )

    def __init__(
        self,
        type: StepType,
        name: str,
        detect_errors: DetectErrors,
        empty: Empty,
        effects: Effects,
        category: ToolCategory = "other",
        returns: Returns | None = None,
    ) -> None:
        self._type: StepType = type
        self._name = name
        self._is_empty_failure = empty == "failure"
        # The text of a model may well be about an error.
        self.detect_errors: DetectErrors = detect_errors if type != "model" else False
        self.effects: Effects = effects
        self.category: ToolCategory = category
        self.returns: Returns = returns or ("content" if returns_content(category) else "status")
        is_believed = self.returns == "content" and self.detect_errors != "text"
        self._content_category = category if is_believed else None

    @property
    def is_needed(self) -> bool:
        return self.detect_errors is not False or self._is_empty_failure

    def may_fail(self, result: Any, arguments: Mapping[str, Any]) -> bool:
        """Return whether a result may be a failure. Cheap: every result is checked."""
        try:
            if may_be_error(result, self._content_category):
                return self.is_needed
            return self._is_empty_failure and is_empty(result)
        except Exception:  # noqa: BLE001 - the result may be any object
            return False

    def is_failure(self, result: Any, arguments: Mapping[str, Any]) -> bool:
        """Return whether a result is a failure. One that cannot be read is none."""
        with fork_safety.import_lock:
            from mulligan.classify.result_verdict import is_failed_result  # lazy: most results cannot fail
        is_content = self.returns == "content"
        if is_failed_result(result, self.category, is_content, self.effects, self.detect_errors, arguments):
            return True
        return self._is_empty_failure and _is_empty_safely(result)

    def suspect(self, capture: CaptureContext, result: Any, arguments: Mapping[str, Any]) -> SuspectedFailure | None:
        """Return the record of a successful result that looks like a failure; None for any other. Never raises."""
        try:
            if self.detect_errors is not True or not may_look_failed(result, self._content_category):
                return None
        except Exception:  # noqa: BLE001 - the result may be any object
            return None
        with fork_safety.import_lock:
            from mulligan.classify.result_verdict import describe_suspicion, judge_result  # lazy: few results need it
        verdict = judge_result(
            result, category=self.category, returns=self.returns, effects=self.effects, arguments=arguments
        )
        if verdict.judgment != "suspected":
            return None
        context = {"source": self._type, "tool": self._name, "arguments": arguments, "category": self.category}
        return describe_suspicion(verdict, None, capture.classify_safely, **context)

    def failure(
        self, capture: CaptureContext, result: Any, arguments: Mapping[str, Any], rejects: Collection[int] = ()
    ) -> Failure | None:
        """Return the failure that a result is, or None. `rejects` are statuses that prove that nothing executed."""
        if not self.is_failure(result, arguments):
            return None
        with fork_safety.import_lock:
            from mulligan.classify.results import is_flagged_result  # lazy: needed for failures only
        if self._is_empty_failure and _is_empty_safely(result):
            message = "The result is empty."
            fingerprint = capture.classify_safely(text=message, source=self._type, tool=self._name).fingerprint
            reasons = ("an empty result, which the tool declares a failure",)
            return Failure.of(RETRIEVAL_NO_RESULTS, message, fingerprint=fingerprint, evidence=reasons)
        failure = capture.classify_safely(
            result, source=self._type, tool=self._name, arguments=arguments, is_error=True, category=self.category
        )
        # It returned, so it executed, whatever its text proves elsewhere.
        if failure.status is not None and failure.status in rejects:
            return msgspec.structs.replace(failure, took_effect=TookEffect.NO)
        if self.effects == "once" and failure.is_failure and not is_flagged_result(result):
            evidence = (*failure.evidence, RETURNED_ERROR)
            took_effect = TookEffect.YES if failure.took_effect is TookEffect.YES else TookEffect.UNKNOWN
            return msgspec.structs.replace(failure, took_effect=took_effect, evidence=evidence)
        if failure.took_effect is TookEffect.NO:
            return msgspec.structs.replace(failure, took_effect=TookEffect.YES)
        return failure

    def repair(self, result: Any, arguments: Mapping[str, Any]) -> Any:
        """Return the repaired result, or None. Results of tools are not changed."""
        return None


def may_be_error(result: Any, content_category: ToolCategory | None = None) -> bool:
    """Return whether a result may be a failure. Most results pass this check in a third of a microsecond.

    `content_category` is that of a tool that returns content.
    """
    kind = type(result)
    if kind is str:
        if content_category is not None:
            return content_category in PROGRAM_CATEGORIES and _may_have_exit_code(result)
        starts = STARTS_BY_CHARACTER.get(result[:1])
        if starts is not None and result[:MAX_START_CHARS].lower().startswith(starts):
            return True
        # Otherwise an error is named before a colon.
        if result.find(":", 0, MAX_HEAD_CHARS) < 0:
            return False
        head = result[:MAX_HEAD_CHARS].lower()
        for word in NAMED_FAILURES:  # noqa: SIM110 - any() with a generator takes three times as long
            if word in head:
                return True
        return False
    if kind is dict:
        keys = result.keys()
        if keys.isdisjoint(STATUS_KEYS):
            return False
        if keys.isdisjoint(RESULT_STATUS_KEYS):
            is_envelope = not keys.isdisjoint(ENVELOPE_STATUS_KEYS) and ENVELOPE_KEYS.issuperset(keys)
            is_envelope = is_envelope or not (keys.isdisjoint(DESCRIPTION_KEYS) or len(keys) > MAX_DESCRIPTION_KEYS)
            return is_envelope or (content_category is not None and not keys.isdisjoint(CONTENT_STATUS_KEYS))
        return True
    if kind is list or kind is tuple:
        # The content blocks of MCP and of model providers, as dictionaries or objects.
        return (
            bool(result) and type(result[0]) not in DATA_TYPES and (type(result[0]) is not dict or "text" in result[0])
        )
    return kind not in DATA_TYPES


def _may_have_exit_code(output: str) -> bool:
    if output[:1] == "{" or "exit code" in output[-MAX_FRAME_CHARS:].lower():
        return True
    head = output[:MAX_FRAME_CHARS].lower()
    for mark in FRAME_MARKS:  # noqa: SIM110 - as above
        if mark in head:
            return True
    return False


def may_look_failed(result: Any, content_category: ToolCategory | None = None) -> bool:
    """Return whether a result may look like a failure or be one."""
    if type(result) is not str:
        return may_be_error(result, content_category)
    with fork_safety.import_lock:
        from mulligan.classify.statements import MAX_STATEMENT_CHARS, may_state_failure  # lazy: they read the rules
        from mulligan.classify.unflagged_failures import may_report_failure  # lazy: likewise
    if content_category is not None:
        return may_report_failure(result, content_category)
    return (len(result) <= MAX_STATEMENT_CHARS and may_state_failure(result)) or may_be_error(result)


def _is_empty_safely(result: Any) -> bool:
    try:
        return is_empty(result)
    except Exception:  # noqa: BLE001 - the result may be any object
        return False


def is_empty(result: Any) -> bool:
    """Return whether a search found nothing: no result at all, or one whose only collection is empty.

    `{"results": [], "total": 0}` is empty, `{"answer": "Oslo", "sources": []}` is not.
    """
    if result is None or (isinstance(result, str) and not result.strip()):
        return True
    if isinstance(result, COLLECTIONS) and not result:
        return True
    if not isinstance(result, dict):
        return False
    collections = [name for name, value in result.items() if isinstance(value, COLLECTIONS)]
    if len(collections) != 1 or result[collections[0]]:
        return False
    return collections[0] in RESULT_KEYS or not any(isinstance(value, str) and value for value in result.values())
