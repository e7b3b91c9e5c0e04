"""Whether a result is a failure, a suspected failure or content: the table of docs/judged-results.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from mulligan.classify.evidence import to_integer
from mulligan.classify.results import (
    describes_failure,
    find_error_message,
    find_exit_code,
    is_error_result,
    is_error_text,
    read_error_flag,
    read_failed_items,
    read_object,
    read_text,
)
from mulligan.classify.tool_category import PROGRAM_CATEGORIES, find_category_of_name, returns_content
from mulligan.classify.unflagged_failures import (
    calls_service,
    find_unflagged_failure,
    has_own_exit_code,
    is_file_report,
    may_name_file,
)
from mulligan.core.failure import DetectErrors, Failure, Returns, ToolCategory
from mulligan.core.records import Effects, StepType, SuspectedFailure

Judgment = Literal["success", "suspected", "failure"]


class ResultVerdict(NamedTuple):
    """The judgment about a result, and for a suspected failure the part of the result that looks like one."""

    judgment: Judgment
    excerpt: Any = None
    confidence: float = 0.0


SUCCESS, FAILURE = ResultVerdict("success"), ResultVerdict("failure")
STATED_CONFIDENCE, OPENING_CONFIDENCE, WORDS_CONFIDENCE = 0.8, 0.7, 0.5
"""Confidence in a suspected failure: by keys for errors, by the text of a whole result, or by other words."""
MAX_REPORT_CHARS = 8000
"""Characters of a recorded result up to which a tool may have reported a failure of its own."""
REPORT_CATEGORIES: frozenset[ToolCategory] = frozenset({"file", "search", "sql", "message", "action", "other"})
"""Categories of tools whose reports are short. The output of a program or a page may be long."""
_STATUS_KEYS = ("status_code", "statusCode", "status")


def judge_result(
    result: object,
    *,
    category: ToolCategory = "other",
    returns: Returns | None = None,
    effects: Effects = "none",
    detect_errors: DetectErrors = True,
    is_error: bool | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> ResultVerdict:
    """Return whether a returned result is a failure, looks like one, or is content. Never raises.

    What states that it is a failure is one: a flag, an exit code, and from tools that report a status explicit keys.
    `is_error` is a flag beside the result. `detect_errors="text"` also takes words for a statement.
    """
    if is_error:
        return FAILURE
    is_content = returns_content(category, returns)
    is_failure = is_failed_result(result, category, is_content, effects, detect_errors, arguments)
    if is_failure is not None:
        return FAILURE if is_failure else SUCCESS
    try:
        if is_content:
            return _suspect_content(result, category, arguments)
        return _suspect_status(result, category, effects)
    except Exception:  # noqa: BLE001 - foreign object; an unreadable result is not an error
        return SUCCESS


def is_failed_result(
    result: object,
    category: ToolCategory,
    is_content: bool,
    effects: Effects,
    detect_errors: DetectErrors,
    arguments: Mapping[str, Any] | None,
) -> bool | None:
    """Return whether a result states that it is a failure, or None if it may look like one. Never raises."""
    if detect_errors is False:
        return False
    try:
        if detect_errors == "text":
            return is_error_result(result, needs_mark=effects == "once")
        flag = _read_flag(result, category, arguments)
        if flag is not None:
            return flag
        if not is_content and (is_error_result(result, needs_mark=True) or _opens_as_error(result, effects)):
            return True
    except Exception:  # noqa: BLE001 - foreign object; an unreadable result is not an error
        return False
    return None


def suspect_recorded_result(
    result: object, classify: Callable[..., Failure], *, type: StepType, tool: str, arguments: object = None
) -> SuspectedFailure | None:
    """Return what looks like a failure in the result of a call that was recorded as a success, in whatever way."""
    if result is None or type not in ("tool", "retrieval"):
        return None
    category = find_category_of_name(tool)
    if isinstance(result, str) and len(result) > MAX_REPORT_CHARS and category in REPORT_CATEGORIES:
        return None
    named_arguments = arguments if isinstance(arguments, dict) else None
    verdict = judge_result(result, category=category, effects="once", arguments=named_arguments)
    return describe_suspicion(
        verdict, result, classify, source=type, tool=tool, arguments=named_arguments, category=category
    )


def describe_suspicion(
    verdict: ResultVerdict, result: object, classify: Callable[..., Failure], **context: Any
) -> SuspectedFailure | None:
    """Return the record of a result that is judged to look like a failure; None for any other."""
    if verdict.judgment == "success":
        return None
    failure = classify(result if verdict.excerpt is None else verdict.excerpt, is_error=True, **context)
    if not failure.is_failure:
        return None  # such as a refusal by the user
    confidence = round(verdict.confidence or STATED_CONFIDENCE, 2)
    return SuspectedFailure(kind=str(failure.kind), confidence=confidence, sentence=failure.message)


def _read_flag(result: object, category: ToolCategory, arguments: Mapping[str, Any] | None) -> bool | None:
    """Return whether a flag or an exit code says that the call failed; None if there is none."""
    if not isinstance(result, (str, bytes, bytearray)):
        return read_error_flag(result)
    text = read_text(result) or ""
    exit_code = find_exit_code(text) if category in PROGRAM_CATEGORIES else None
    return None if exit_code is None or not has_own_exit_code(text, arguments) else exit_code != 0


def _opens_as_error(result: object, effects: Effects) -> bool:
    """Return whether a text begins as an error. With effects, words are never more than suspicious."""
    if effects == "once" or isinstance(result, (list, tuple)):
        return False
    text = _read_status_text(result)
    return bool(text) and text[:1] != "{" and is_error_text(text) and read_failed_items(result) is None


def _read_status_text(result: object) -> str:
    return (None if isinstance(result, Mapping) and "content" not in result else read_text(result)) or ""


def _suspect_status(result: object, category: ToolCategory, effects: Effects) -> ResultVerdict:
    """Judge the result of a tool that reports about its call and does not state a failure."""
    text = _read_status_text(result)
    if read_failed_items(result) is not None:
        return ResultVerdict("suspected", result, WORDS_CONFIDENCE)
    if isinstance(result, (list, tuple)):  # content blocks, or data
        is_error = bool(text) and is_error_text(text, needs_mark=effects == "once" and text[:1] == "{")
        return ResultVerdict("suspected", text, OPENING_CONFIDENCE) if is_error else SUCCESS
    if text and text[:1] != "{" and is_error_text(text):
        return ResultVerdict("suspected", text, OPENING_CONFIDENCE)
    fields = result if isinstance(result, Mapping) else read_object(text)
    if fields is not None:
        is_once = effects == "once"
        is_suspected = describes_failure(fields, needs_state=is_once) or (not is_once and is_error_result(result))
    else:
        is_suspected = bool(text) and isinstance(result, str) and bool(find_unflagged_failure(text, category))
    if is_suspected:
        return ResultVerdict("suspected", result, WORDS_CONFIDENCE)
    return SUCCESS


def _suspect_content(result: object, category: ToolCategory, arguments: Mapping[str, Any] | None) -> ResultVerdict:
    """Judge the result of a tool that returns content, without a flag: it is never more than suspicious."""
    text = read_text(result)
    fields = result if isinstance(result, Mapping) and text is None else read_object(text or "")
    if fields is None and category not in ("file", *PROGRAM_CATEGORIES):
        fields = read_failed_items(text or "")
    if fields is not None:
        is_suspected = _states_own_failure(fields, category, arguments, is_read=text is not None)
        return ResultVerdict("suspected", text or fields, STATED_CONFIDENCE) if is_suspected else SUCCESS
    if excerpt := find_unflagged_failure(text, category, arguments) if text else "":
        return ResultVerdict("suspected", excerpt, OPENING_CONFIDENCE)
    return SUCCESS


def _states_own_failure(
    fields: Mapping[Any, Any], category: ToolCategory, arguments: Mapping[str, Any] | None, is_read: bool
) -> bool:
    """Return whether an object looks like the tool's own error and not like one that it has read as text."""
    if category == "model":
        error, errors = fields.get("error"), fields.get("errors")
        is_answer = isinstance(error, Mapping) and not {"code", "type", "status"}.isdisjoint(error)
        return (is_answer and fields.keys() <= {"error", "type"}) or (
            isinstance(errors, list) and describes_failure(fields)
        )
    if category in ("fetch", "browser") and any((to_integer(fields.get(name)) or 0) >= 400 for name in _STATUS_KEYS):
        return True
    if not is_error_result(fields, needs_mark=True):
        return category not in ("file", *PROGRAM_CATEGORIES) and describes_failure(fields)
    if category in PROGRAM_CATEGORIES:
        return calls_service(arguments)
    may_be_read = category == "file" and is_read and may_name_file(arguments)
    return not may_be_read or is_file_report(find_error_message(fields), arguments)
