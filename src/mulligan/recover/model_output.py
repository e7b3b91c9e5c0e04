"""Unusable model output: its detection, and the repair of JSON that has exactly one reading.

Repair libraries accept any text, and a guess at half an answer is worse than a new attempt. This module removes only
text around JSON and repairs only what has exactly one reading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mulligan.core.calls import parse_json
from mulligan.core.conversation import Path, get_field, parse_answer, replace_at

MAX_JSON_DEPTH = 60
_TRUNCATED_REASONS = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
_FILTERED_REASONS = frozenset(
    {"content_filter", "refusal", "safety", "prohibited_content", "blocklist", "spii", "image_safety"}
)
"""Finish reasons of an answer that a content filter blocked, in lower case."""
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
    is_filtered: bool = False
    """Whether a content filter of the provider blocked the answer."""


def find_output_error(answer: Any, arguments: Mapping[str, Any]) -> OutputProblem | None:
    """Return what is wrong with an answer, or None. Unknown formats are not checked."""
    if isinstance(answer, str):
        if not answer.strip():
            return OutputProblem("The answer is empty.", False)
        return _check_json((), answer, "", False) if wants_json(arguments) else None
    parsed = parse_answer(answer)
    if parsed is None:
        return _find_blocked_prompt(answer) or _without_choices(answer)
    is_cut = parsed.finish_reason in _TRUNCATED_REASONS
    for block in parsed.blocks:
        if block.type == "call" and block.path[-1] == "arguments" and isinstance(block.value, str):
            problem = _check_json(block.path, block.value, str(block.name or ""), is_cut)
            if problem is not None:
                return problem
    if any(block.type not in ("text", "reasoning") for block in parsed.blocks):
        return None
    texts = [block for block in parsed.blocks if block.type == "text"]
    text = "".join(block.value for block in texts)
    if text.strip():
        return (
            _check_json(texts[0].path if len(texts) == 1 else (), text, "", is_cut) if wants_json(arguments) else None
        )
    if parsed.finish_reason in _FILTERED_REASONS:
        return OutputProblem(_FILTERED, False, is_filtered=True)
    if is_cut:
        return OutputProblem("The answer was cut off before it started.", is_cut)
    return OutputProblem("The answer is empty.", False) if parsed.finish_reason in _COMPLETE_REASONS else None


_FILTERED = "The provider's content filter blocked the answer."


def _find_blocked_prompt(answer: Any) -> OutputProblem | None:
    """Return the problem of an answer of Google that has no candidates because the prompt was blocked."""
    for field, reason_field in (("prompt_feedback", "block_reason"), ("promptFeedback", "blockReason")):
        if get_field(get_field(answer, field), reason_field) and not get_field(answer, "candidates"):
            return OutputProblem(_FILTERED, False, is_filtered=True)
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


def wants_json(arguments: Mapping[str, Any]) -> bool:
    """Return whether the call requested JSON output only."""
    formats = (arguments.get("response_format"), get_field(arguments.get("text"), "format"))
    if any(str(get_field(output_format, "type") or "").startswith("json") for output_format in formats):
        return True
    configs = [arguments[name] for name in ("config", "generation_config", "generationConfig") if name in arguments]
    mime_names = ("response_mime_type", "responseMimeType")
    return any(get_field(config, name) == "application/json" for config in configs for name in mime_names)


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


# JSON written by models


class ParsedArguments(NamedTuple):
    """A model's arguments as an object, or the error why they are none."""

    value: dict[str, Any] | None
    defect: str = ""
    """What was wrong with the text."""
    error: str = ""


def parse_arguments(arguments: Any) -> ParsedArguments:
    """Parse the arguments of a call in any form into a dictionary."""
    if isinstance(arguments, Mapping):
        return ParsedArguments(dict(arguments))
    if arguments is None:
        return ParsedArguments({})
    if not isinstance(arguments, str | bytes | bytearray):
        return ParsedArguments(None, error="The arguments are not a JSON object.")
    try:
        text = arguments if isinstance(arguments, str) else bytes(arguments).decode()
    except UnicodeDecodeError:
        return ParsedArguments(None, error="The arguments are not a JSON object: they are not a string.")
    if text.strip() in ("", "null"):
        return ParsedArguments({})  # some models send this for no arguments
    if isinstance(value := parse_json(text), dict):
        return ParsedArguments(value)
    reading = find_reading(text, is_object=True)
    if reading is None:
        return ParsedArguments(None, error=_describe_error(text))
    return ParsedArguments(reading.value, defect=reading.defect)


def repair_json(text: str, *, is_object: bool = False) -> str | None:
    """Return the only JSON that a text can represent, or None."""
    if is_object and not text.strip():
        return "{}"  # several models send this for a call without arguments
    reading = find_reading(text, is_object=is_object)
    return None if reading is None else reading.text


class _JsonReading(NamedTuple):
    text: str
    value: Any
    defect: str
    """What was wrong with the text."""


def find_reading(text: str, *, is_object: bool = False) -> _JsonReading | None:
    """Return the only reading of a text, or None if there is none or more than one."""
    # Longer texts are parsed but not repaired.
    if len(text) > 1_000_000 or _measure_depth(text) > MAX_JSON_DEPTH:
        return None
    readings: dict[str, _JsonReading] = {}
    for defect, candidate in _candidates(text):
        try:
            value = _strict.decode(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
            inner = find_reading(value, is_object=is_object)
            if inner is None:
                continue
            defect, candidate, value = "encoded as JSON twice", inner.text, inner.value
        if isinstance(value, dict) or (isinstance(value, list) and not is_object):
            readings.setdefault(json.dumps(value, sort_keys=True), _JsonReading(candidate, value, defect))
    return next(iter(readings.values())) if len(readings) == 1 else None


def _candidates(text: str) -> Iterator[tuple[str, str]]:
    """Yield the text with common defects removed."""
    inner, defect = text.strip().lstrip("\ufeff").strip(), "not strict JSON"
    if inner[:1] not in ("{", "[", '"') and (fenced := _fenced(inner)) is not None:
        inner, defect = fenced, "inside a code block"
    elif inner[:1] not in ("{", "[", '"') or inner[-1:] not in ("}", "]", '"'):
        # Text around one value. With two values the reading is ambiguous.
        start = min((position for position in (inner.find("{"), inner.find("[")) if position >= 0), default=-1)
        end = max(inner.rfind("}"), inner.rfind("]"))
        if start < 0 or end <= start:
            return
        inner, defect = inner[start : end + 1], "surrounded by other text"
    yield defect, inner
    if (leading_object := _leading_object(inner)) is not None:
        yield "followed by other text", leading_object
    if (repaired := _repair_slips(inner)) is not None and repaired != inner:
        yield defect, repaired


_FENCE = "`" * 3
_LANGUAGE = re.compile(r"[A-Za-z]{1,10}\s*(?=[{\[\"])")


def _fenced(text: str) -> str | None:
    """Return the content of the only code block in a text, or None."""
    if text.startswith(_FENCE) and text.endswith(_FENCE) and len(text) > 2 * len(_FENCE):
        block = text[len(_FENCE) : -len(_FENCE)]
    elif len(parts := text.split(_FENCE, 3)) == 3:
        block = parts[1]
    else:
        return None
    return _LANGUAGE.sub("", block.strip(), count=1) if _LANGUAGE.match(block.strip()) else block.strip()


_TRAILING_MARKS = re.compile(r"(?:\s|[}\])>;,`]|</?[a-zA-Z_|]{1,30}>|<\|[^|>]{0,40}\|>)+")


def _leading_object(text: str) -> str | None:
    """Return the object at the beginning, if only closing marks and template tags follow."""
    if not text.startswith("{"):
        return None
    try:
        _, end = _strict.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return text[:end] if _TRAILING_MARKS.fullmatch(text, end) else None


_TOKENS = re.compile(
    r"""
    "(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"
    | '(?P<single>[^'\\]*(?:\\.[^'\\]*)*)'
    | (?P<comma>,)(?=\s*[}\]])
    | (?P<word>[^\W\d_]\w*)
    | (?P<open>["'])
    """,
    re.DOTALL | re.VERBOSE,
)
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_ESCAPABLE = re.compile(r"""\\.|["\x00-\x1f]""", re.DOTALL)


def _repair_slips(text: str) -> str | None:
    """Repair trailing commas, single quotes, Python constants and raw line breaks in strings.

    Return None if in doubt.
    """
    pieces: list[str] = []
    at = 0
    for token in _TOKENS.finditer(text):
        pieces.append(text[at : token.start()])
        at = token.end()
        token_type = token.lastgroup
        if token_type == "open":
            return None  # unterminated: the continuation is unknown
        if token_type == "word":
            pieces.append(_PYTHON.get(token[0], token[0]))
        elif token_type != "comma":
            pieces.append(f'"{_ESCAPABLE.sub(_escape_match, token[0][1:-1])}"')
    pieces.append(text[at:])
    return "".join(pieces)


def _escape_match(match: re.Match[str]) -> str:
    sign = match[0]
    if len(sign) == 2:
        return "'" if sign == "\\'" else sign
    return '\\"' if sign == '"' else f"\\u{ord(sign):04x}"


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


_strict = json.JSONDecoder(parse_constant=_reject_constant)


def _measure_depth(text: str) -> int:
    """Return the maximum nesting of brackets. Brackets inside strings count too, which is a safe overestimate."""
    deepest = depth = 0
    for bracket in re.finditer(r"[\[{}\]]", text):
        depth += 1 if bracket[0] in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _describe_error(text: str) -> str:
    """Describe the error and its position, so that the model can correct it."""
    if _measure_depth(text) > MAX_JSON_DEPTH:
        return "The arguments are not a JSON object: they are nested too deeply."
    try:
        value = _strict.decode(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated"):
            return "The arguments are not a JSON object: the text is cut off. Write it again, shorter."
        return f"The arguments are not a JSON object: {error.msg.lower()} at character {error.pos + 1}."
    except (ValueError, RecursionError):
        return "The arguments are not a JSON object: they contain values that JSON does not allow."
    names = {list: "a list", str: "a text", bool: "true or false"}
    return f"The arguments are not a JSON object, but {names.get(type(value), 'a number')}."
