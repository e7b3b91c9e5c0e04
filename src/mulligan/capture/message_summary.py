"""Conversation summaries for records: role and size of each message, and the last user message. Any provider."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.core.conversation import INSTRUCTION_ARGUMENTS, conversation_argument, get_field

MAX_LISTED_MESSAGES = 200
"""The latest messages that are listed one by one. Earlier ones are only counted."""
MAX_TEXT_PIECES = 1000
MAX_NESTING = 6
MAX_USER_CHARS = 300
"""Characters of the last user message."""
MAX_ANSWER_CHARS = 2000
"""Characters of a model's answer."""
_USERS = ("user", "human")
_LABELS = frozenset(
    {"type", "role", "id", "name", "tool_use_id", "tool_call_id", "call_id", "cache_control", "mime_type"}
)
_CONTENT_FIELDS = ("content", "parts", "text", "tool_calls", "function_call", "output", "arguments")


def summarize_arguments(arguments: Mapping[str, Any], *, has_texts: bool = True) -> tuple[dict[str, Any], str | None]:
    """Summarize the conversation in the arguments of a model call. Return them with the last user text.

    Without `has_texts`, the summary contains nothing derived from texts, not even hashes.
    """
    summary = dict(arguments)
    user_text = None
    name = conversation_argument(arguments)
    if name is not None:
        conversation = arguments[name]
        messages = list(conversation) if isinstance(conversation, list | tuple) else [conversation]
        user_text = _last_user_text(messages)
        conversation_summary: dict[str, Any] = {
            "count": len(messages),
            "each": [_summarize_message(message, has_texts) for message in messages[-MAX_LISTED_MESSAGES:]],
        }
        if has_texts and user_text:
            conversation_summary["last_user"] = user_text
        summary[name] = conversation_summary
    for instruction in INSTRUCTION_ARGUMENTS:
        if isinstance(summary.get(instruction), str | list | tuple | dict):
            summary[instruction] = _summarize_message(summary[instruction], has_texts, role="system")
    return summary, user_text


def _role(message: Any) -> str:
    if isinstance(message, str):
        return "user"
    role = get_field(message, "role") or get_field(message, "type")
    return role[:40] if isinstance(role, str) else "user"


def _summarize_message(message: Any, has_texts: bool, role: str = "") -> dict[str, Any]:
    pieces = list(_pieces(message))
    summary: dict[str, Any] = {"role": role or _role(message), "chars": sum(map(len, pieces))}
    if has_texts:
        from hashlib import blake2b  # lazy: loads OpenSSL, needed only for model calls

        text = "\n".join(pieces).encode("utf-8", "replace")
        summary["hash"] = blake2b(text, digest_size=4).hexdigest()
    return summary


def _pieces(message: Any) -> Iterator[str]:
    """Yield every text of a message, at any depth."""
    pending = [(message, 0)]
    for _ in range(MAX_TEXT_PIECES):
        if not pending:
            return
        value, depth = pending.pop()
        if isinstance(value, str):
            yield value
        elif depth > MAX_NESTING:
            continue
        elif isinstance(value, Mapping):
            pending.extend((member, depth + 1) for name, member in reversed([*value.items()]) if name not in _LABELS)
        elif isinstance(value, list | tuple):
            pending.extend((item, depth + 1) for item in reversed(value))
        elif value is not None and not isinstance(value, bool | int | float | bytes):
            pending.extend((get_field(value, name), depth + 1) for name in reversed(_CONTENT_FIELDS))


def _last_user_text(messages: list[Any]) -> str | None:
    for message in reversed(messages[-MAX_LISTED_MESSAGES:]):
        if _role(message) in _USERS and (text := truncate_at_word(" ".join(_user_texts(message)), MAX_USER_CHARS)):
            return text
    return None


def _user_texts(message: Any, depth: int = 0) -> Iterator[str]:
    """Yield the texts that a person wrote, without tool results, which some providers send in user messages."""
    if isinstance(message, str):
        yield message
    elif isinstance(message, list | tuple):
        for part in message[:MAX_TEXT_PIECES] if depth < MAX_NESTING else ():
            yield from _user_texts(part, depth + 1)
    elif message is not None and get_field(message, "type") not in ("tool_result", "function_call_output"):
        for name in ("content", "parts", "text"):
            content = get_field(message, name)
            if isinstance(content, str | list | tuple) and depth < MAX_NESTING:
                yield from _user_texts(content, depth + 1)


def truncate_at_word(text: str, limit: int) -> str:
    """Truncate a text at a word boundary: redaction would not recognize half a secret."""
    text = " ".join(text[: limit * 4].split())
    if len(text) <= limit:
        return text
    return f"{text[: max(text.rfind(' ', 0, limit), 0)]} ...".strip()


def shorten_answer(result: Any) -> Any:
    """Return a model's answer as recorded: its truncated text, or the answer itself if no text is found."""
    text = result if isinstance(result, str) else _answer_text(result)
    if not text:
        return result
    short = text if len(text) <= MAX_ANSWER_CHARS else truncate_at_word(text, MAX_ANSWER_CHARS)
    return short if isinstance(result, str) else {"text": short}


def _answer_text(result: Any) -> str:
    """Return the text of an answer from OpenAI, Anthropic, Google or LangChain, as object or dictionary."""
    choices = get_field(result, "choices")
    if isinstance(choices, list | tuple) and choices:
        return " ".join(_user_texts(get_field(choices[0], "message")))
    for name in ("output_text", "text", "content"):
        content = get_field(result, name)
        if isinstance(content, str | list | tuple) and content:
            return " ".join(_user_texts(content))
    candidates = get_field(result, "candidates")
    if isinstance(candidates, list | tuple) and candidates:
        return " ".join(_user_texts(get_field(candidates[0], "content")))
    return ""


_COUNTS = {
    "input": ("prompt_tokens", "input_tokens", "prompt_token_count", "promptTokenCount"),
    "output": ("completion_tokens", "output_tokens", "candidates_token_count", "candidatesTokenCount"),
}


def read_token_usage(result: Any) -> dict[str, int] | None:
    """Return the token usage that an answer reports, as `input` and `output`."""
    for name_of_usage in ("usage", "usage_metadata", "usageMetadata"):
        usage = get_field(result, name_of_usage)
        if usage is None:
            continue
        token_counts = {
            name: count
            for name, spellings in _COUNTS.items()
            for spelling in spellings
            if type(count := get_field(usage, spelling)) is int and count >= 0
        }
        if token_counts:
            return token_counts
    return None
