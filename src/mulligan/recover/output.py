"""Detection of unusable model output, and its repair if there is exactly one reading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.conversation import Path, field, replaced
from mulligan.recover.written import mend

_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
_DONE = frozenset({"stop", "end_turn", "completed", "tool_calls", "tool_use", "eos", "stop_sequence", "function_call"})


class Fault(NamedTuple):
    """Why an answer cannot be used, in trusted words."""

    reason: str
    is_cut: bool
    """Whether the answer was truncated at its length limit."""
    path: Path = ()
    """Path of the text that does not parse."""
    text: str = ""
    said: Any = None
    """The provider's error, if the answer contains nothing else: some providers fail with status 200."""


def fault(answer: Any, arguments: Mapping[str, Any]) -> Fault | None:
    """Return what is wrong with an answer, or None. Unknown formats are not checked."""
    if isinstance(answer, str):
        if not answer.strip():
            return Fault("The answer is empty.", False)
        return _unreadable((), answer, "", False) if wants_json(arguments) else None
    known = _read(answer)
    if known is None:
        return _without_choices(answer)
    is_cut = known.ended in _CUT
    for path, text, name in known.calls:
        wrong = _unreadable(path, text, name, is_cut)
        if wrong is not None:
            return wrong
    if not known.calls and not known.has_more:
        if not known.text.strip():
            if known.ended in _DONE or is_cut:
                return Fault(
                    "The answer is empty." if not is_cut else "The answer was cut off before it began.", is_cut
                )
            return None
        if wants_json(arguments):
            return _unreadable(known.path, known.text, "", is_cut)
    return None


_BESIDE = frozenset({"error", "choices", "id", "object", "created", "model", "user_id", "type", "request_id", "usage"})
"""Keys that may accompany a provider's error in an answer without content."""


def _without_choices(answer: Any) -> Fault | None:
    """Return the problem of a completion without choices. An error object that a model wrote itself does not count."""
    said = field(answer, "error")
    is_told = isinstance(field(said, "message"), str) and not isinstance(said, str)
    if isinstance(answer, Mapping):
        is_one = answer.keys() <= _BESIDE if is_told else {"choices", "object"} <= answer.keys()
    else:
        is_one = hasattr(answer, "choices") and (is_told or hasattr(answer, "object"))
    choices = field(answer, "choices")
    if not is_one or not (choices is None or (isinstance(choices, list | tuple) and not choices)):
        return None
    return Fault("The answer is empty.", False, said=said if is_told else None)


def mended(answer: Any, wrong: Fault) -> Any:
    """Return the answer with its text repaired, or None if there is more than one reading."""
    if wrong.is_cut or (not wrong.path and not isinstance(answer, str)):
        return None
    text = mend(wrong.text, is_object=bool(wrong.path) and wrong.path[-1] == "arguments")
    if text is None:
        return None
    try:
        return replaced(answer, wrong.path, text)
    except (TypeError, ValueError):
        return None


class _Known(NamedTuple):
    """The relevant parts of an answer."""

    calls: list[tuple[Path, str, str]]
    path: Path
    text: str
    ended: str
    has_more: bool
    """Whether it contains anything other than text and calls with text arguments."""


def _read(answer: Any) -> _Known | None:
    choices = field(answer, "choices")
    if isinstance(choices, list | tuple) and choices:
        return _chat(choices[0])
    output = field(answer, "output")
    if isinstance(output, list | tuple) and isinstance(field(answer, "status"), str):
        return _responses(output, answer)
    content = field(answer, "content")
    if isinstance(content, list | tuple) and isinstance(field(answer, "stop_reason"), str):
        return _blocks(content, str(field(answer, "stop_reason")), "content")
    candidates = field(answer, "candidates")
    if isinstance(candidates, list | tuple) and candidates:
        ended = field(candidates[0], "finish_reason") or field(candidates[0], "finishReason")
        ended = str(getattr(ended, "name", ended)).lower()
        parts = field(field(candidates[0], "content"), "parts") or ()
        known = _blocks(list(parts), ended, "parts")
        return known._replace(path=("candidates", 0, "content", *known.path) if known.path else ())
    return None


def _chat(choice: Any) -> _Known | None:
    message = field(choice, "message")
    if message is None:
        return None
    if (
        type(content := field(message, "content")) is str
        and content
        and not (field(message, "tool_calls") or field(message, "function_call"))
    ):
        # Fast path for plain text answers.
        return _Known(
            [], ("choices", 0, "message", "content"), content, str(field(choice, "finish_reason")).lower(), False
        )
    calls: list[tuple[Path, str, str]] = []
    more = False
    here: Path = ("choices", 0, "message")
    for number, call in enumerate(field(message, "tool_calls") or ()):
        function = field(call, "function")
        if isinstance(text := field(function, "arguments"), str):
            name = str(field(function, "name") or "")
            calls.append(((*here, "tool_calls", number, "function", "arguments"), text, name))
        else:
            more = True
    if isinstance(text := field(field(message, "function_call"), "arguments"), str):
        calls.append(
            ((*here, "function_call", "arguments"), text, str(field(field(message, "function_call"), "name") or ""))
        )
    content = field(message, "content")
    more = more or bool(field(message, "refusal") or field(message, "audio") or field(message, "images"))
    ended = field(choice, "finish_reason")
    text = content if isinstance(content, str) else ""
    more = more or (content is not None and not isinstance(content, str))
    return _Known(calls, (*here, "content"), text, str(ended).lower(), more)


def _responses(output: Any, answer: Any) -> _Known:
    calls: list[tuple[Path, str, str]] = []
    path: Path = ()
    texts: list[str] = []
    more = False
    for number, item in enumerate(output):
        sort = field(item, "type")
        if sort == "function_call" and isinstance(text := field(item, "arguments"), str):
            calls.append((("output", number, "arguments"), text, str(field(item, "name") or "")))
        elif sort == "message":
            for place, block in enumerate(field(item, "content") or ()):
                if isinstance(text := field(block, "text"), str):
                    path = path or ("output", number, "content", place, "text")
                    texts.append(text)
                else:
                    more = True
        elif sort != "reasoning":
            more = True
    ended = str(field(answer, "status"))
    if ended == "incomplete":
        ended = str(field(field(answer, "incomplete_details"), "reason"))
    return _Known(calls, path if len(texts) == 1 else (), "".join(texts), ended, more)


def _blocks(blocks: Any, ended: str, name: str) -> _Known:
    texts = [(number, text) for number, block in enumerate(blocks) if isinstance(text := field(block, "text"), str)]
    more = any(not isinstance(field(block, "text"), str) and field(block, "type") != "thinking" for block in blocks)
    path: Path = (name, texts[0][0], "text") if len(texts) == 1 else ()
    return _Known([], path, "".join(text for _, text in texts), ended, more)


def wants_json(arguments: Mapping[str, Any]) -> bool:
    """Return whether the call requested JSON output only."""
    if not arguments:
        return False
    asked = field(arguments.get("response_format"), "type")
    if asked is None:
        asked = field(field(arguments.get("text"), "format"), "type")
    if isinstance(asked, str) and asked.startswith("json"):
        return True
    for name in ("config", "generation_config", "generationConfig"):
        given = arguments.get(name)
        kind = field(given, "response_mime_type") or field(given, "responseMimeType")
        if kind == "application/json":
            return True
    return False


def _unreadable(path: Path, text: str, name: str, is_cut: bool) -> Fault | None:
    is_call = bool(path) and path[-1] == "arguments"
    try:
        value = json.loads(text)
        if not is_call or isinstance(value, dict):
            return None
    except (ValueError, RecursionError):
        pass
    what = f"The arguments of the call of {name or 'a tool'}" if is_call else "The answer"
    if is_cut:
        were = "were" if is_call else "was"
        return Fault(f"{what} {were} cut off, because the answer was too long.", True, path, text)
    are = "are not a JSON object" if is_call else "is not valid JSON"
    return Fault(f"{what} {are}.", False, path, text)
