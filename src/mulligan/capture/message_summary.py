"""Conversation summaries for records: role and size of each message, and the last user message. Any provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.core.conversation import (
    INSTRUCTION_ARGUMENTS,
    Message,
    conversation_argument,
    parse_answer,
    parse_message,
    parse_messages,
    to_text,
)

MAX_LISTED_MESSAGES = 200
"""The latest messages that are listed one by one. Earlier ones are only counted."""
MAX_USER_CHARS = 300
"""Characters of the last user message."""
MAX_ANSWER_CHARS = 2000
"""Characters of a model's answer."""


def summarize_arguments(arguments: Mapping[str, Any], *, has_texts: bool = True) -> tuple[dict[str, Any], str | None]:
    """Summarize the conversation in the arguments of a model call. Return them with the last user text.

    Without `has_texts`, the summary contains nothing derived from texts, not even hashes.
    """
    summary = dict(arguments)
    user_text = None
    name = conversation_argument(arguments)
    if name is not None:
        conversation = arguments[name]
        sources = conversation if isinstance(conversation, list | tuple) else [conversation]
        messages = parse_messages(sources[-MAX_LISTED_MESSAGES:])
        user_text = _last_user_text(messages)
        summary[name] = {
            "count": len(sources),
            "each": [_summarize_message(message, has_texts) for message in messages],
        }
        if has_texts and user_text:
            summary[name]["last_user"] = user_text
    for instruction in INSTRUCTION_ARGUMENTS:
        value = summary.get(instruction)
        if isinstance(value, str | list | tuple | dict):
            message = parse_message({"content": value} if isinstance(value, list | tuple) else value)
            summary[instruction] = _summarize_message(message._replace(label="system"), has_texts)
    return summary, user_text


def _summarize_message(message: Message, has_texts: bool) -> dict[str, Any]:
    texts = [
        text
        for block in message.blocks
        for text in ([slot.text for slot in block.slots] or [to_text(block.value)])
        if block.value is not None
    ]
    summary: dict[str, Any] = {"role": message.label[:40], "chars": sum(map(len, texts))}
    if has_texts:
        from hashlib import blake2b  # lazy: loads OpenSSL, needed only for model calls

        text = "\n".join(texts).encode("utf-8", "replace")
        summary["hash"] = blake2b(text, digest_size=4).hexdigest()
    return summary


def _last_user_text(messages: list[Message]) -> str | None:
    for message in reversed(messages):
        if message.label.lower() in ("user", "human") and (
            text := truncate_at_word(" ".join(message.texts), MAX_USER_CHARS)
        ):
            return text
    return None


def truncate_at_word(text: str, limit: int) -> str:
    """Truncate a text at a word boundary: redaction would not recognize half a secret."""
    text = " ".join(text[: limit * 4].split())
    if len(text) <= limit:
        return text
    return f"{text[: max(text.rfind(' ', 0, limit), 0)]} ...".strip()


def shorten_answer(result: Any) -> Any:
    """Return a model's answer as recorded: its truncated text, or the answer itself if no text is found."""
    if isinstance(result, str):
        return _shorten(result)
    if isinstance(result, list | tuple):
        return result
    blocks = (parse_answer(result) or parse_message(result)).blocks
    text = " ".join(block.value for block in blocks if block.type == "text" and block.value)
    return {"text": _shorten(text)} if text else result


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_ANSWER_CHARS else truncate_at_word(text, MAX_ANSWER_CHARS)
