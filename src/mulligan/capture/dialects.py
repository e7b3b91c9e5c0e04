"""Message formats of OpenAI and Anthropic: parses model replies and adds tool results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec

from mulligan.classify.evidence import attribute
from mulligan.failure import SettingsError


class Wanted(NamedTuple):
    """A tool call requested by a model."""

    id: Any
    name: Any
    arguments: Any


@dataclass(frozen=True, slots=True)
class Said:
    """A model's reply: text, requested calls, and the message to append to the conversation."""

    text: str
    calls: tuple[Wanted, ...]
    message: Any
    dialect: Dialect


Answer = tuple[Any, Any, bool]
"""The id of a call, its result, and whether it is a failure."""


class Dialect(Protocol):
    """The message format of one provider."""

    def tool(self, name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the definition of a tool for the model."""

    def answer(self, messages: list[Any], answers: Sequence[Answer]) -> None:
        """Append the results of the calls of a reply."""

    def tell(self, messages: list[Any], notice: str) -> None:
        """Append a note from mulligan."""


class OpenAI:
    """Messages with `tool_calls`, answered by messages with the role `tool`."""

    def tool(self, name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "description": description, "parameters": dict(schema)}}

    def answer(self, messages: list[Any], answers: Sequence[Answer]) -> None:
        for id, answer, _ in answers:
            messages.append({"role": "tool", "tool_call_id": id, "content": text_of(answer)})

    def tell(self, messages: list[Any], notice: str) -> None:
        messages.append({"role": "user", "content": notice})

    @staticmethod
    def said(message: Any) -> Said:
        text = _joined(_field(message, "content"))
        calls = tuple(
            Wanted(_field(each, "id"), _field(function, "name"), _field(function, "arguments"))
            for each in _field(message, "tool_calls") or ()
            if (function := _field(each, "function")) is not None
        )
        kept: Any = message
        if not isinstance(message, Mapping):
            kept = {"role": "assistant", "content": text or None}
            if calls:
                kept["tool_calls"] = [
                    {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
                    for each in calls
                ]
        return Said(text, calls, kept, OPENAI)


class Anthropic:
    """Content blocks: `tool_use`, answered by `tool_result` blocks in one user message."""

    def tool(self, name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": name, "description": description, "input_schema": dict(schema) or {"type": "object"}}

    def answer(self, messages: list[Any], answers: Sequence[Answer]) -> None:
        blocks: list[dict[str, Any]] = []
        for id, answer, is_error in answers:
            block = {"type": "tool_result", "tool_use_id": id, "content": text_of(answer)}
            blocks.append(block | {"is_error": True} if is_error else block)
        messages.append({"role": "user", "content": blocks})

    def tell(self, messages: list[Any], notice: str) -> None:
        last = messages[-1] if messages else None
        # Append to the message with the results: some providers reject two user messages in a row.
        if isinstance(last, dict) and last.get("role") == "user":
            content = last["content"]
            before = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
            messages[-1] = {**last, "content": [*before, {"type": "text", "text": notice}]}
        else:
            messages.append({"role": "user", "content": notice})

    @staticmethod
    def said(reply: Any) -> Said:
        blocks = _field(reply, "content")
        calls = tuple(
            Wanted(_field(each, "id"), _field(each, "name"), _field(each, "input"))
            for each in blocks
            if _field(each, "type") == "tool_use"
        )
        return Said(_joined(blocks), calls, {"role": "assistant", "content": list(blocks)}, ANTHROPIC)


OPENAI = OpenAI()
ANTHROPIC = Anthropic()
STYLES: dict[str, Dialect] = {"openai": OPENAI, "anthropic": ANTHROPIC}


def dialect_of(style: str | None, messages: Sequence[Any]) -> Dialect:
    """Return the format for a style, or detect it from the messages."""
    if style is not None and style not in STYLES:
        raise SettingsError(f"style is openai or anthropic, got {style!r}.")
    if style is not None:
        return STYLES[style]
    blocks = [each for message in messages for each in _listed(_field(message, "content"))]
    return ANTHROPIC if any(_field(each, "type") in ("tool_use", "tool_result") for each in blocks) else OPENAI


def said(reply: Any, dialect: Dialect) -> Said:
    """Parse a reply: a text, an OpenAI completion or message, or an Anthropic message; object or dictionary."""
    if isinstance(reply, str):
        return Said(reply, (), {"role": "assistant", "content": reply}, dialect)
    choices = _field(reply, "choices")
    if isinstance(choices, list | tuple) and choices:
        return OpenAI.said(_field(choices[0], "message"))
    content = _field(reply, "content")
    if _field(reply, "tool_calls"):
        return OpenAI.said(reply)
    if isinstance(content, list | tuple) and (dialect is ANTHROPIC or _field(reply, "stop_reason") is not None):
        return Anthropic.said(reply)
    if isinstance(content, list | tuple) and any(_field(each, "type") == "tool_use" for each in content):
        return Anthropic.said(reply)
    if isinstance(content, str | list | tuple) or _field(reply, "role") is not None:
        return OpenAI.said(reply)
    raise SettingsError(
        "the model's reply is not understood: answer with a text, an OpenAI completion or message, or an Anthropic "
        f"message, got {type(reply).__name__}."
    )


def taught(messages: Sequence[Any], told: str) -> list[Any]:
    """Insert lessons after the system message, or into the first user message as a separate block.

    Both providers accept that; some reject an additional system message.
    """
    for place, message in enumerate(messages):
        role, content = _field(message, "role"), _field(message, "content")
        if role in ("system", "developer"):
            return [*messages[: place + 1], {"role": role, "content": told}, *messages[place + 1 :]]
        if role == "user" and isinstance(message, Mapping) and isinstance(content, str | list | tuple):
            before = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
            block = {"type": "text", "text": told}
            return [*messages[:place], {**message, "content": [block, *before]}, *messages[place + 1 :]]
    return [{"role": "user", "content": told}, *messages]


def text_of(answer: Any) -> str:
    """Return a tool's result as the text that a model reads."""
    if isinstance(answer, str):
        return answer
    try:
        return msgspec.json.encode(answer, enc_hook=str).decode()
    except Exception:  # noqa: BLE001 - objects of any class
        return str(answer)


def _field(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else attribute(thing, name)


def _listed(content: Any) -> Sequence[Any]:
    return content if isinstance(content, list | tuple) else ()


def _joined(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = (_field(each, "text") for each in _listed(content) if _field(each, "type") in ("text", None))
    return "\n".join(text for text in texts if isinstance(text, str))
