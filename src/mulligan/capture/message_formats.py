"""Message formats of OpenAI and Anthropic: parses model replies and adds tool results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec

from mulligan.classify.evidence import get_attribute
from mulligan.core.failure import SettingsError


class RequestedCall(NamedTuple):
    """A tool call requested by a model."""

    id: Any
    name: Any
    arguments: Any


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A model's reply: text, requested calls, and the message to append to the conversation."""

    text: str
    calls: tuple[RequestedCall, ...]
    message: Any
    message_format: MessageFormat


Answer = tuple[Any, Any, bool]
"""The id of a call, its result, and whether it is a failure."""


class MessageFormat(Protocol):
    """The message format of one provider."""

    def format_tool(self, name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the definition of a tool for the model."""

    def add_results(self, messages: list[Any], answers: Sequence[Answer]) -> None:
        """Append the results of the calls of a reply."""

    def add_notice(self, messages: list[Any], notice: str) -> None:
        """Append a note from mulligan."""


class OpenAI:
    """Messages with `tool_calls`, answered by messages with the role `tool`."""

    def format_tool(self, name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "description": description, "parameters": dict(schema)}}

    def add_results(self, messages: list[Any], answers: Sequence[Answer]) -> None:
        for id, answer, _ in answers:
            messages.append({"role": "tool", "tool_call_id": id, "content": to_text(answer)})

    def add_notice(self, messages: list[Any], notice: str) -> None:
        messages.append({"role": "user", "content": notice})

    @staticmethod
    def parse_reply(message: Any) -> ModelReply:
        text = _join_texts(_field(message, "content"))
        calls = tuple(
            RequestedCall(_field(call, "id"), _field(function, "name"), _field(function, "arguments"))
            for call in _field(message, "tool_calls") or ()
            if (function := _field(call, "function")) is not None
        )
        stored_message: Any = message
        if not isinstance(message, Mapping):
            stored_message = {"role": "assistant", "content": text or None}
            if calls:
                stored_message["tool_calls"] = [
                    {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                    for call in calls
                ]
        return ModelReply(text, calls, stored_message, OPENAI)


class Anthropic:
    """Content blocks: `tool_use`, answered by `tool_result` blocks in one user message."""

    def format_tool(self, name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": name, "description": description, "input_schema": dict(schema) or {"type": "object"}}

    def add_results(self, messages: list[Any], answers: Sequence[Answer]) -> None:
        blocks: list[dict[str, Any]] = []
        for id, answer, is_error in answers:
            block = {"type": "tool_result", "tool_use_id": id, "content": to_text(answer)}
            blocks.append(block | {"is_error": True} if is_error else block)
        messages.append({"role": "user", "content": blocks})

    def add_notice(self, messages: list[Any], notice: str) -> None:
        last = messages[-1] if messages else None
        # Append to the message with the results: some providers reject two user messages in a row.
        if isinstance(last, dict) and last.get("role") == "user":
            content = last["content"]
            before = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
            messages[-1] = {**last, "content": [*before, {"type": "text", "text": notice}]}
        else:
            messages.append({"role": "user", "content": notice})

    @staticmethod
    def parse_reply(reply: Any) -> ModelReply:
        blocks = _field(reply, "content")
        calls = tuple(
            RequestedCall(_field(block, "id"), _field(block, "name"), _field(block, "input"))
            for block in blocks
            if _field(block, "type") == "tool_use"
        )
        return ModelReply(_join_texts(blocks), calls, {"role": "assistant", "content": list(blocks)}, ANTHROPIC)


OPENAI = OpenAI()
ANTHROPIC = Anthropic()
STYLES: dict[str, MessageFormat] = {"openai": OPENAI, "anthropic": ANTHROPIC}


def choose_message_format(style: str | None, messages: Sequence[Any]) -> MessageFormat:
    """Return the format for a style, or detect it from the messages."""
    if style is not None and style not in STYLES:
        raise SettingsError(f"Invalid style {style!r}. Use 'openai' or 'anthropic'.")
    if style is not None:
        return STYLES[style]
    blocks = [block for message in messages for block in _blocks_of(_field(message, "content"))]
    return ANTHROPIC if any(_field(block, "type") in ("tool_use", "tool_result") for block in blocks) else OPENAI


def parse_reply(reply: Any, message_format: MessageFormat) -> ModelReply:
    """Parse a reply: a text, an OpenAI completion or message, or an Anthropic message; object or dictionary."""
    if isinstance(reply, str):
        return ModelReply(reply, (), {"role": "assistant", "content": reply}, message_format)
    choices = _field(reply, "choices")
    if isinstance(choices, list | tuple) and choices:
        return OpenAI.parse_reply(_field(choices[0], "message"))
    content = _field(reply, "content")
    if _field(reply, "tool_calls"):
        return OpenAI.parse_reply(reply)
    if isinstance(content, list | tuple) and (message_format is ANTHROPIC or _field(reply, "stop_reason") is not None):
        return Anthropic.parse_reply(reply)
    if isinstance(content, list | tuple) and any(_field(block, "type") == "tool_use" for block in content):
        return Anthropic.parse_reply(reply)
    if isinstance(content, str | list | tuple) or _field(reply, "role") is not None:
        return OpenAI.parse_reply(reply)
    raise SettingsError(
        f"Unsupported model reply of type {type(reply).__name__}. "
        "Return a string, an OpenAI completion or message, or an Anthropic message."
    )


def prepend_lessons(messages: Sequence[Any], lessons: str) -> list[Any]:
    """Insert lessons after the system message, or into the first user message as a separate block.

    Both providers accept that; some reject an additional system message.
    """
    for index, message in enumerate(messages):
        role, content = _field(message, "role"), _field(message, "content")
        if role in ("system", "developer"):
            return [*messages[: index + 1], {"role": role, "content": lessons}, *messages[index + 1 :]]
        if role == "user" and isinstance(message, Mapping) and isinstance(content, str | list | tuple):
            before = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
            block = {"type": "text", "text": lessons}
            return [*messages[:index], {**message, "content": [block, *before]}, *messages[index + 1 :]]
    return [{"role": "user", "content": lessons}, *messages]


def to_text(answer: Any) -> str:
    """Return a tool's result as the text that a model reads."""
    if isinstance(answer, str):
        return answer
    try:
        return msgspec.json.encode(answer, enc_hook=str).decode()
    except Exception:  # noqa: BLE001 - objects of any class
        return str(answer)


def _field(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else get_attribute(thing, name)


def _blocks_of(content: Any) -> Sequence[Any]:
    return content if isinstance(content, list | tuple) else ()


def _join_texts(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = (_field(block, "text") for block in _blocks_of(content) if _field(block, "type") in ("text", None))
    return "\n".join(text for text in texts if isinstance(text, str))
