"""Conversation summaries for records: role and size of each message, and the last user message. Any provider."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.conversation import INSTRUCTIONS, field, place

MESSAGES = 200
"""The latest messages that are listed one by one. Earlier ones are only counted."""
PIECES = 1000
DEEPEST = 6
SENTENCE = 300
"""Characters of the last user message."""
TEXT = 2000
"""Characters of a model's answer."""
_USERS = ("user", "human")
_LABELS = frozenset(
    {"type", "role", "id", "name", "tool_use_id", "tool_call_id", "call_id", "cache_control", "mime_type"}
)
_INSIDE = ("content", "parts", "text", "tool_calls", "function_call", "output", "arguments")


def condensed(arguments: Mapping[str, Any], *, has_texts: bool = True) -> tuple[dict[str, Any], str | None]:
    """Summarize the conversation in the arguments of a model call. Return them with the last user text.

    Without `has_texts`, the summary contains nothing derived from texts, not even hashes.
    """
    kept = dict(arguments)
    said = None
    name = place(arguments)
    if name is not None:
        given = arguments[name]
        messages = list(given) if isinstance(given, list | tuple) else [given]
        said = _last_said(messages)
        told: dict[str, Any] = {
            "count": len(messages),
            "each": [_sized(message, has_texts) for message in messages[-MESSAGES:]],
        }
        if has_texts and said:
            told["last_user"] = said
        kept[name] = told
    for each in INSTRUCTIONS:
        if isinstance(kept.get(each), str | list | tuple | dict):
            kept[each] = _sized(kept[each], has_texts, role="system")
    return kept, said


def _role(message: Any) -> str:
    if isinstance(message, str):
        return "user"
    role = field(message, "role") or field(message, "type")
    return role[:40] if isinstance(role, str) else "user"


def _sized(message: Any, has_texts: bool, role: str = "") -> dict[str, Any]:
    pieces = list(_pieces(message))
    told: dict[str, Any] = {"role": role or _role(message), "chars": sum(map(len, pieces))}
    if has_texts:
        from hashlib import blake2b  # lazy: loads OpenSSL, needed only for model calls

        text = "\n".join(pieces).encode("utf-8", "replace")
        told["hash"] = blake2b(text, digest_size=4).hexdigest()
    return told


def _pieces(message: Any) -> Iterator[str]:
    """Yield every text of a message, at any depth."""
    waiting = [(message, 0)]
    for _ in range(PIECES):
        if not waiting:
            return
        value, depth = waiting.pop()
        if isinstance(value, str):
            yield value
        elif depth > DEEPEST:
            continue
        elif isinstance(value, Mapping):
            waiting.extend((each, depth + 1) for name, each in reversed([*value.items()]) if name not in _LABELS)
        elif isinstance(value, list | tuple):
            waiting.extend((each, depth + 1) for each in reversed(value))
        elif value is not None and not isinstance(value, bool | int | float | bytes):
            waiting.extend((field(value, name), depth + 1) for name in reversed(_INSIDE))


def _last_said(messages: list[Any]) -> str | None:
    for message in reversed(messages[-MESSAGES:]):
        if _role(message) in _USERS and (said := cut(" ".join(_words(message)), SENTENCE)):
            return said
    return None


def _words(message: Any, depth: int = 0) -> Iterator[str]:
    """Yield the texts that a person wrote, without tool results, which some providers send in user messages."""
    if isinstance(message, str):
        yield message
    elif isinstance(message, list | tuple):
        for each in message[:PIECES] if depth < DEEPEST else ():
            yield from _words(each, depth + 1)
    elif message is not None and field(message, "type") not in ("tool_result", "function_call_output"):
        for name in ("content", "parts", "text"):
            inside = field(message, name)
            if isinstance(inside, str | list | tuple) and depth < DEEPEST:
                yield from _words(inside, depth + 1)


def cut(text: str, limit: int) -> str:
    """Truncate a text at a word boundary: redaction would not recognize half a secret."""
    text = " ".join(text[: limit * 4].split())
    if len(text) <= limit:
        return text
    return f"{text[: max(text.rfind(' ', 0, limit), 0)]} ...".strip()


def answer(result: Any) -> Any:
    """Return a model's answer as recorded: its truncated text, or the answer itself if no text is found."""
    text = result if isinstance(result, str) else _answered(result)
    if not text:
        return result
    short = text if len(text) <= TEXT else cut(text, TEXT)
    return short if isinstance(result, str) else {"text": short}


def _answered(result: Any) -> str:
    """Return the text of an answer from OpenAI, Anthropic, Google or LangChain, as object or dictionary."""
    choices = field(result, "choices")
    if isinstance(choices, list | tuple) and choices:
        return " ".join(_words(field(choices[0], "message")))
    for name in ("output_text", "text", "content"):
        inside = field(result, name)
        if isinstance(inside, str | list | tuple) and inside:
            return " ".join(_words(inside))
    candidates = field(result, "candidates")
    if isinstance(candidates, list | tuple) and candidates:
        return " ".join(_words(field(candidates[0], "content")))
    return ""


_COUNTS = {
    "input": ("prompt_tokens", "input_tokens", "prompt_token_count", "promptTokenCount"),
    "output": ("completion_tokens", "output_tokens", "candidates_token_count", "candidatesTokenCount"),
}


def tokens(result: Any) -> dict[str, int] | None:
    """Return the token usage that an answer reports, as `input` and `output`."""
    for name_of_usage in ("usage", "usage_metadata", "usageMetadata"):
        usage = field(result, name_of_usage)
        if usage is None:
            continue
        found = {
            name: count
            for name, spellings in _COUNTS.items()
            for spelling in spellings
            if type(count := field(usage, spelling)) is int and count >= 0
        }
        if found:
            return found
    return None
