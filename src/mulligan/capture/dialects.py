"""How models are spoken to: what a reply asks for, and how its calls are answered, in the forms of two providers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec

from mulligan.classify.evidence import attribute
from mulligan.failure import SettingsError


class Wanted(NamedTuple):
    """A tool call as a model asks for it."""

    id: Any
    name: Any
    arguments: Any


@dataclass(frozen=True, slots=True)
class Said:
    """A model's reply: what it says, which calls it asks for, and the message to keep of it."""

    text: str
    calls: tuple[Wanted, ...]
    message: Any
    dialect: Dialect


Answer = tuple[Any, Any, bool]
"""The id of a call, what it came to, and whether that is a failure."""


class Dialect(Protocol):
    """One provider's form."""

    def tool(self, name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A tool as the model is told of it."""

    def answer(self, messages: list[Any], answers: Sequence[Answer]) -> None:
        """Adds what the calls of a reply came to."""

    def tell(self, messages: list[Any], notice: str) -> None:
        """Adds a sentence of ours."""


class OpenAI:
    """Messages with `tool_calls`, answered by messages of the role `tool`."""

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
    """Content in blocks: `tool_use`, answered by `tool_result` in one message of the user."""

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
        # In one message with the results: two of the user's in a row are not taken everywhere.
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
    """The dialect that was named, else that of the messages so far."""
    if style is not None and style not in STYLES:
        raise SettingsError(f"style is openai or anthropic, got {style!r}.")
    if style is not None:
        return STYLES[style]
    blocks = [each for message in messages for each in _listed(_field(message, "content"))]
    return ANTHROPIC if any(_field(each, "type") in ("tool_use", "tool_result") for each in blocks) else OPENAI


def said(reply: Any, dialect: Dialect) -> Said:
    """A reply of any form: a text, an OpenAI completion or message, an Anthropic message; objects or dictionaries."""
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
    """The conversation with a text of ours before it: beside what the system says, else before the first message.

    As a block of its own, which both providers take; a message of the system's is not taken everywhere.
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
    """A tool's answer as the text that a model reads."""
    if isinstance(answer, str):
        return answer
    try:
        return msgspec.json.encode(answer, enc_hook=str).decode()
    except Exception:  # noqa: BLE001 - an object of any class
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
