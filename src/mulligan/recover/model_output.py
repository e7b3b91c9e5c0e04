"""Detection of unusable model output, and its repair if there is exactly one reading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.core.conversation import Path, get_field, replace_at
from mulligan.recover.model_json import repair_json

_TRUNCATED_REASONS = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
_COMPLETE_REASONS = frozenset(
    {"stop", "end_turn", "completed", "tool_calls", "tool_use", "eos", "stop_sequence", "function_call"}
)


class OutputProblem(NamedTuple):
    """Why an answer cannot be used, in trusted words."""

    reason: str
    is_cut: bool
    """Whether the answer was truncated at its length limit."""
    path: Path = ()
    """Path of the text that does not parse."""
    text: str = ""
    provider_error: Any = None
    """The provider's error, if the answer contains nothing else: some providers fail with status 200."""


def find_output_error(answer: Any, arguments: Mapping[str, Any]) -> OutputProblem | None:
    """Return what is wrong with an answer, or None. Unknown formats are not checked."""
    if isinstance(answer, str):
        if not answer.strip():
            return OutputProblem("The answer is empty.", False)
        return _check_json((), answer, "", False) if wants_json(arguments) else None
    parsed = _parse_answer(answer)
    if parsed is None:
        return _without_choices(answer)
    is_cut = parsed.finish_reason in _TRUNCATED_REASONS
    for path, text, name in parsed.calls:
        problem = _check_json(path, text, name, is_cut)
        if problem is not None:
            return problem
    if not parsed.calls and not parsed.has_more:
        if not parsed.text.strip():
            if parsed.finish_reason in _COMPLETE_REASONS or is_cut:
                return OutputProblem(
                    "The answer is empty." if not is_cut else "The answer was cut off before it started.", is_cut
                )
            return None
        if wants_json(arguments):
            return _check_json(parsed.path, parsed.text, "", is_cut)
    return None


_ERROR_ANSWER_KEYS = frozenset(
    {"error", "choices", "id", "object", "created", "model", "user_id", "type", "request_id", "usage"}
)
"""Keys that may accompany a provider's error in an answer without content."""


def _without_choices(answer: Any) -> OutputProblem | None:
    """Return the problem of a completion without choices. An error object that a model wrote itself does not count."""
    error_value = get_field(answer, "error")
    has_message = isinstance(get_field(error_value, "message"), str) and not isinstance(error_value, str)
    if isinstance(answer, Mapping):
        is_completion = answer.keys() <= _ERROR_ANSWER_KEYS if has_message else {"choices", "object"} <= answer.keys()
    else:
        is_completion = hasattr(answer, "choices") and (has_message or hasattr(answer, "object"))
    choices = get_field(answer, "choices")
    if not is_completion or not (choices is None or (isinstance(choices, list | tuple) and not choices)):
        return None
    return OutputProblem("The answer is empty.", False, provider_error=error_value if has_message else None)


def repair_output(answer: Any, problem: OutputProblem) -> Any:
    """Return the answer with its text repaired, or None if there is more than one reading."""
    if problem.is_cut or (not problem.path and not isinstance(answer, str)):
        return None
    text = repair_json(problem.text, is_object=bool(problem.path) and problem.path[-1] == "arguments")
    if text is None:
        return None
    try:
        return replace_at(answer, problem.path, text)
    except (TypeError, ValueError):
        return None


class _ParsedAnswer(NamedTuple):
    """The relevant parts of an answer."""

    calls: list[tuple[Path, str, str]]
    path: Path
    text: str
    finish_reason: str
    has_more: bool
    """Whether it contains anything other than text and calls with text arguments."""


def _parse_answer(answer: Any) -> _ParsedAnswer | None:
    choices = get_field(answer, "choices")
    if isinstance(choices, list | tuple) and choices:
        return _parse_chat(choices[0])
    output = get_field(answer, "output")
    if isinstance(output, list | tuple) and isinstance(get_field(answer, "status"), str):
        return _parse_responses(output, answer)
    content = get_field(answer, "content")
    if isinstance(content, list | tuple) and isinstance(get_field(answer, "stop_reason"), str):
        return _parse_blocks(content, str(get_field(answer, "stop_reason")), "content")
    candidates = get_field(answer, "candidates")
    if isinstance(candidates, list | tuple) and candidates:
        finish_reason = get_field(candidates[0], "finish_reason") or get_field(candidates[0], "finishReason")
        finish_reason = str(getattr(finish_reason, "name", finish_reason)).lower()
        parts = get_field(get_field(candidates[0], "content"), "parts") or ()
        parsed = _parse_blocks(list(parts), finish_reason, "parts")
        return parsed._replace(path=("candidates", 0, "content", *parsed.path) if parsed.path else ())
    return None


def _parse_chat(choice: Any) -> _ParsedAnswer | None:
    message = get_field(choice, "message")
    if message is None:
        return None
    if (
        type(content := get_field(message, "content")) is str
        and content
        and not (get_field(message, "tool_calls") or get_field(message, "function_call"))
    ):
        # Fast path for plain text answers.
        return _ParsedAnswer(
            [], ("choices", 0, "message", "content"), content, str(get_field(choice, "finish_reason")).lower(), False
        )
    calls: list[tuple[Path, str, str]] = []
    has_more = False
    here: Path = ("choices", 0, "message")
    for number, call in enumerate(get_field(message, "tool_calls") or ()):
        function = get_field(call, "function")
        if isinstance(text := get_field(function, "arguments"), str):
            name = str(get_field(function, "name") or "")
            calls.append(((*here, "tool_calls", number, "function", "arguments"), text, name))
        else:
            has_more = True
    if isinstance(text := get_field(get_field(message, "function_call"), "arguments"), str):
        calls.append(
            (
                (*here, "function_call", "arguments"),
                text,
                str(get_field(get_field(message, "function_call"), "name") or ""),
            )
        )
    content = get_field(message, "content")
    has_more = has_more or bool(
        get_field(message, "refusal") or get_field(message, "audio") or get_field(message, "images")
    )
    finish_reason = get_field(choice, "finish_reason")
    text = content if isinstance(content, str) else ""
    has_more = has_more or (content is not None and not isinstance(content, str))
    return _ParsedAnswer(calls, (*here, "content"), text, str(finish_reason).lower(), has_more)


def _parse_responses(output: Any, answer: Any) -> _ParsedAnswer:
    calls: list[tuple[Path, str, str]] = []
    path: Path = ()
    texts: list[str] = []
    has_more = False
    for number, item in enumerate(output):
        item_type = get_field(item, "type")
        if item_type == "function_call" and isinstance(text := get_field(item, "arguments"), str):
            calls.append((("output", number, "arguments"), text, str(get_field(item, "name") or "")))
        elif item_type == "message":
            for index, block in enumerate(get_field(item, "content") or ()):
                if isinstance(text := get_field(block, "text"), str):
                    path = path or ("output", number, "content", index, "text")
                    texts.append(text)
                else:
                    has_more = True
        elif item_type != "reasoning":
            has_more = True
    finish_reason = str(get_field(answer, "status"))
    if finish_reason == "incomplete":
        finish_reason = str(get_field(get_field(answer, "incomplete_details"), "reason"))
    return _ParsedAnswer(calls, path if len(texts) == 1 else (), "".join(texts), finish_reason, has_more)


def _parse_blocks(blocks: Any, finish_reason: str, name: str) -> _ParsedAnswer:
    texts = [(number, text) for number, block in enumerate(blocks) if isinstance(text := get_field(block, "text"), str)]
    has_more = any(
        not isinstance(get_field(block, "text"), str) and get_field(block, "type") != "thinking" for block in blocks
    )
    path: Path = (name, texts[0][0], "text") if len(texts) == 1 else ()
    return _ParsedAnswer([], path, "".join(text for _, text in texts), finish_reason, has_more)


def wants_json(arguments: Mapping[str, Any]) -> bool:
    """Return whether the call requested JSON output only."""
    if not arguments:
        return False
    format_type = get_field(arguments.get("response_format"), "type")
    if format_type is None:
        format_type = get_field(get_field(arguments.get("text"), "format"), "type")
    if isinstance(format_type, str) and format_type.startswith("json"):
        return True
    for name in ("config", "generation_config", "generationConfig"):
        config = arguments.get(name)
        kind = get_field(config, "response_mime_type") or get_field(config, "responseMimeType")
        if kind == "application/json":
            return True
    return False


def _check_json(path: Path, text: str, name: str, is_cut: bool) -> OutputProblem | None:
    is_call = bool(path) and path[-1] == "arguments"
    try:
        value = json.loads(text)
        if not is_call or isinstance(value, dict):
            return None
    except (ValueError, RecursionError):
        pass
    subject = f"The arguments of the call of {name or 'a tool'}" if is_call else "The answer"
    if is_cut:
        were = "were" if is_call else "was"
        return OutputProblem(f"{subject} {were} cut off: the answer was too long.", True, path, text)
    are = "are not a JSON object" if is_call else "is not valid JSON"
    return OutputProblem(f"{subject} {are}.", False, path, text)
