"""Whether a result is a failure, a suspected failure or content: the table of docs/judged-results.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from mulligan.classify.classifier import classify
from mulligan.classify.evidence import to_integer
from mulligan.classify.failure_signs import MAX_STATEMENT_CHARS, may_state_failure
from mulligan.classify.results import (
    describes_failure,
    find_error_message,
    find_exit_code,
    is_error_result,
    is_error_text,
    read_error_flag,
    read_object,
    read_text,
)
from mulligan.classify.rules import compile_rule_pattern
from mulligan.classify.tool_category import PROGRAM_CATEGORIES, find_category_of_name, returns_content
from mulligan.classify.unflagged_failures import (
    calls_service,
    find_unflagged_failure,
    has_own_exit_code,
    is_file_report,
    may_name_file,
)
from mulligan.core.failure import DetectErrors, Failure, Returns, TookEffect, ToolCategory
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
    if detect_errors is False:
        return SUCCESS
    try:
        if detect_errors == "text":
            return FAILURE if is_error_result(result, needs_mark=effects == "once") else SUCCESS
        flag = _read_flag(result, category, arguments)
        if flag is not None:
            return FAILURE if flag else SUCCESS
        if returns_content(category, returns):
            return _judge_content(result, category, arguments)
        return _judge_status(result, effects)
    except Exception:  # noqa: BLE001 - foreign object; an unreadable result is not an error
        return SUCCESS


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


def _judge_status(result: object, effects: Effects) -> ResultVerdict:
    """Judge the result of a tool that reports about its call. With effects, words are never more than suspicious."""
    if is_error_result(result, needs_mark=True):
        return FAILURE
    text = None if isinstance(result, Mapping) and "content" not in result else read_text(result)
    if isinstance(result, (list, tuple)):  # content blocks, or data
        is_error = text is not None and is_error_text(text, needs_mark=effects == "once" and text[:1] == "{")
        return ResultVerdict("suspected", text, OPENING_CONFIDENCE) if is_error else SUCCESS
    if text and text[:1] != "{" and is_error_text(text):
        return ResultVerdict("suspected", text, OPENING_CONFIDENCE) if effects == "once" else FAILURE
    fields = result if isinstance(result, Mapping) else read_object(text or "")
    if fields is not None:
        is_suspected = effects != "once" and (describes_failure(fields) or is_error_result(result))
    else:
        is_suspected = bool(text) and isinstance(result, str) and bool(find_unflagged_failure(text or "", "other"))
        is_suspected = is_suspected or states_failure(text or "")
    if is_suspected:
        return ResultVerdict("suspected", result, WORDS_CONFIDENCE)
    return SUCCESS


def _judge_content(result: object, category: ToolCategory, arguments: Mapping[str, Any] | None) -> ResultVerdict:
    """Judge the result of a tool that returns content, without a flag: it is never more than suspicious."""
    text = read_text(result)
    fields = result if isinstance(result, Mapping) and text is None else read_object(text or "")
    if fields is not None:
        is_suspected = _states_own_failure(fields, category, arguments, is_read=text is not None)
        return ResultVerdict("suspected", text or fields, STATED_CONFIDENCE) if is_suspected else SUCCESS
    if excerpt := find_unflagged_failure(text, category, arguments) if text else "":
        return ResultVerdict("suspected", excerpt, OPENING_CONFIDENCE)
    if text and category in _STATEMENT_CATEGORIES and states_failure(text):
        return ResultVerdict("suspected", text, WORDS_CONFIDENCE)
    return SUCCESS


_STATEMENT_CATEGORIES: tuple[ToolCategory, ...] = ("search", "sql", "fetch", "browser")
"""Categories of content that is rarely one sentence."""
MIN_STATEMENT_CONFIDENCE = 0.7


def states_failure(text: str) -> bool:
    """Return whether a result is one statement, no list and no data, that classification takes for a failure.

    What a statement quotes does not count, and nor does one about success or the past.
    """
    statement = text.strip()
    if len(statement) > MAX_STATEMENT_CHARS or statement.count("\n") > 1 or statement[:1] in "{[<":
        return False
    if not may_state_failure(statement):
        return False
    statement = compile_rule_pattern(_QUOTATION_PATTERN).sub("...", statement)
    if compile_rule_pattern(_NO_STATEMENT_PATTERN).search(statement):
        return False
    if statement.isascii() and statement.count(" ") > 4 and not compile_rule_pattern(_VERB_PATTERN).search(statement):
        return False
    failure = classify(text=statement)
    is_clear = failure.confidence >= MIN_STATEMENT_CONFIDENCE and bool(failure.evidence)
    is_empty = failure.kind.is_empty_lookup and failure.took_effect is TookEffect.YES  # a search that matched nothing
    return is_clear and failure.is_failure and not is_empty


_QUOTATION_PATTERN = r"""(?:["«“„`]|(?<!\w)')[^\n]{1,200}?(?:["»”“`]|'(?!\w))"""
_NO_STATEMENT_PATTERN = (
    r"\A(?:[#*|-]|\d|no \w|q: |\[?(?:error|warn(?:ing)?|info|fatal)\]?(?::\w|:? \d{4}-)|\S+\Z|\s)|  |[\t|]|"
    r": \d[\d,.]{0,12}(?: \w{1,20})?\Z|\{\w{1,20}\}|"
    r"\b(?:success\w{0,5}|ok|sent|saved|created|updated|deleted|removed|cleared|done|completed|fixed|resolved|approved|"
    r"works|passed|found \d|note|if|when|how|what|until|history|yesterday|ago|last|settings?|http status|jobs?|"
    r"events?)\b"
)
"""Marks of lists and data, and words about success or the past."""
_VERB_PATTERN = (
    r"\b(?:is|are|was|were|has|have|had|be|been|cannot|can't|could|did|does|do|don't|doesn't|didn't|must|failed|need|needs|"
    r"requires?|unable|you|i|we)\b"
)
"""Words of which one is in every longer English statement. A phrase without one is a heading, a log or a setting."""


def _states_own_failure(
    fields: Mapping[Any, Any], category: ToolCategory, arguments: Mapping[str, Any] | None, is_read: bool
) -> bool:
    """Return whether an object looks like the tool's own error and not like one that it has read as text."""
    if category == "model":
        return False
    if category in ("fetch", "browser") and any((to_integer(fields.get(name)) or 0) >= 400 for name in _STATUS_KEYS):
        return True
    if not is_error_result(fields, needs_mark=True):
        return category not in ("file", *PROGRAM_CATEGORIES) and describes_failure(fields)
    if category in PROGRAM_CATEGORIES:
        return calls_service(arguments)
    may_be_read = category == "file" and is_read and may_name_file(arguments)
    return not may_be_read or is_file_report(find_error_message(fields), arguments)
