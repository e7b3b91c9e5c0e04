"""Recorded conversations: the messages of a model call in one form, and their numbers within a run.

A message that several calls of a run send is recorded once. Steps refer to it by its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.core import conversation
from mulligan.core.conversation import Block, BlockType, Message, get_field, parse_message
from mulligan.core.records import MessagePart, RecordedMessage, digest, encode
from mulligan.redaction.plain_data import escape_surrogates, to_plain_data, truncate_text

MAX_MESSAGE_CHARS = 20_000
"""Characters of one message. Of a longer one, both ends are recorded."""
MAX_MESSAGE_PARTS = 100
MAX_RUN_MESSAGES = 2000
"""Different messages of one run that are recorded."""
MAX_PENDING_BYTES = 1_000_000
"""New messages that one step brings. Older ones beyond it are recorded with the next call that sends them."""


def parse_conversation(arguments: Mapping[str, Any]) -> list[RecordedMessage]:
    """Return the messages that a model receives with these arguments: instructions first, then the conversation."""
    instructions = [
        parse_message({"content": value} if isinstance(value, list | tuple) else value)
        for name in conversation.INSTRUCTION_ARGUMENTS
        if isinstance(value := arguments.get(name), str | list | tuple | dict) and value
    ]
    recorded = [_record_message("system", message.blocks, {}) for message in instructions]
    name = conversation.conversation_argument(arguments)
    if name is not None:
        value = arguments[name]
        messages = conversation.parse_messages(value if isinstance(value, list | tuple) else [value])
        tools = _tools_by_call(messages)
        recorded += [_record_message(message.role, message.blocks, tools) for message in messages]
    return recorded


def parse_answer(answer: Any) -> RecordedMessage | None:
    """Return a model's answer as a message of the assistant; None if it has no content that can be read."""
    if isinstance(answer, str):
        blocks = parse_message(answer).blocks
    elif answer is None or isinstance(answer, list | tuple):
        return None
    else:
        message_source = _find(answer, "output", "message") or get_field(answer, "message")  # Bedrock, Cohere
        blocks = (conversation.parse_answer(answer) or parse_message(message_source or answer)).blocks
    message = _record_message("assistant", blocks, {})
    return message if message.parts else None


class StreamAnswer:
    """The answer of a stream, collected from its events: texts, calls and reasoning, or the response at its end."""

    def __init__(self) -> None:
        self._response: Any = None
        self._blocks: dict[Any, tuple[BlockType, list[Any], list[str]]] = {}
        """By the key of the block in the stream: its type, the names of the called tool, and its text in pieces."""
        # Characters of a streamed answer that are collected. Later ones are left out.
        self._remaining_chars = 1_000_000

    def add(self, event: Any) -> None:
        response = get_field(event, "response")
        if isinstance(get_field(response, "output"), list) and get_field(response, "output"):
            self._response = response  # the last event of OpenAI's responses
            return
        for block_type, key, name, text in _iterate_pieces(event):
            if self._remaining_chars > 0 and (name or isinstance(text, str)):
                _, names, texts = self._blocks.setdefault((block_type, key), (block_type, [], []))
                names.append(name)
                texts.append(text if isinstance(text, str) else "")
                self._remaining_chars -= len(texts[-1])

    def build_message(self) -> RecordedMessage | None:
        """Return what was streamed as a message of the assistant; None if nothing was."""
        if self._response is not None:
            return parse_answer(self._response)
        blocks: list[Block] = []
        for block_type, names, texts in self._blocks.values():
            value: Any = "".join(texts)
            if block_type == "call":
                value = value or {}
            elif block_type == "reasoning":
                value = {"thinking": value}
            blocks.append(Block(block_type, (), value, name=next(filter(None, names), "")))
        message = _record_message("assistant", blocks, {})
        return message if message.parts else None


def _iterate_pieces(event: Any) -> Iterator[tuple[BlockType, Any, Any, Any]]:
    """Yield what an event adds to the answer: the type and key of a block, the name of its tool, and its next text."""
    event_type = get_field(event, "type")
    data = get_field(event, "data")
    choices = get_field(event if data is None else data, "choices")  # Mistral's events hold the chunk as data
    if isinstance(choices, list | tuple):  # OpenAI, LiteLLM, Mistral
        delta = get_field(choices[0], "delta") if choices else None
        yield "text", 0, "", get_field(delta, "content")
        tool_calls = get_field(delta, "tool_calls")
        for call in tool_calls if isinstance(tool_calls, list | tuple) else ():
            function = get_field(call, "function")
            yield "call", get_field(call, "index"), get_field(function, "name"), get_field(function, "arguments")
    elif event_type == "content_block_start":  # Anthropic
        block, key = get_field(event, "content_block"), get_field(event, "index")
        if get_field(block, "type") == "tool_use":
            yield "call", key, get_field(block, "name"), ""
    elif event_type == "content_block_delta":
        delta, key = get_field(event, "delta"), get_field(event, "index")
        yield "text", key, "", get_field(delta, "text")
        yield "call", key, "", get_field(delta, "partial_json")
        yield "reasoning", key, "", get_field(delta, "thinking")
    elif isinstance(event_type, str) and event_type.startswith("response."):  # OpenAI's responses, closed early
        if event_type == "response.output_text.delta":
            yield "text", get_field(event, "output_index"), "", get_field(event, "delta")
    elif isinstance(chunks := get_field(event, "tool_call_chunks"), list):  # LangChain
        for text in parse_message(event).texts:
            yield "text", 0, "", text
        for chunk in chunks:
            yield "call", get_field(chunk, "index"), get_field(chunk, "name"), get_field(chunk, "args")
    elif (block := get_field(event, "contentBlockStart")) is not None:  # Bedrock
        yield "call", get_field(block, "contentBlockIndex"), _find(block, "start", "toolUse", "name"), None
    elif (block := get_field(event, "contentBlockDelta")) is not None:
        key = get_field(block, "contentBlockIndex")
        yield "text", key, "", _find(block, "delta", "text")
        yield "call", key, "", _find(block, "delta", "toolUse", "input")
    elif (message := _find(event, "delta", "message")) is not None:  # Cohere
        yield "text", 0, "", _find(message, "content", "text")
        function = _find(message, "tool_calls", "function")
        yield "call", get_field(event, "index"), get_field(function, "name"), get_field(function, "arguments")
    elif get_field(event, "snapshot") is None:  # not the events that Anthropic's helper adds to these
        # A text, a chunk of Gemini, or a dictionary with a text.
        for block in (conversation.parse_answer(event) or parse_message(event)).blocks:
            if block.type == "text":
                yield "text", 0, "", block.value
            elif block.type == "call":
                yield "call", object(), block.name, conversation.to_text(block.value)


def _find(thing: Any, *names: str) -> Any:
    for name in names:
        thing = get_field(thing, name)
    return thing


def _tools_by_call(messages: Iterable[Message]) -> dict[str, str]:
    """Return the names of the called tools by the id of the call: a result often has the id alone."""
    return {
        call.id: call.name
        for message in messages
        for call in message.calls
        if isinstance(call.id, str) and isinstance(call.name, str)
    }


def _record_message(role: str, blocks: Sequence[Block], tools: Mapping[str, str]) -> RecordedMessage:
    parts: list[MessagePart] = []
    remaining = MAX_MESSAGE_CHARS
    for block in blocks[:MAX_MESSAGE_PARTS]:
        part = _record_block(block, tools, remaining)
        if part is not None:
            remaining -= len(part.text) if part.arguments is None else len(encode(part.arguments))
            parts.append(part)
    return RecordedMessage(role=role, parts=tuple(parts))


def _record_block(block: Block, tools: Mapping[str, str], limit: int) -> MessagePart | None:
    """Return a block as a part of a recorded message, with at most this many characters."""
    match block.type:
        case "call":
            return MessagePart(type="call", name=_to_name(block.name), arguments=_read_arguments(block.value, limit))
        case "result":
            text = "\n".join(slot.text for slot in block.slots)
            if not block.slots and block.value is not None:
                text = conversation.to_text(block.value)
            name = block.name or (tools.get(block.id, "") if isinstance(block.id, str) else "")
            return MessagePart(
                type="result", name=_to_name(name), text=_shorten(text, limit), is_error=block.is_error is True
            )
        case "reasoning":
            text = next((text for name in ("thinking", "text") if (text := _get_text(block.value, name))), "")
            return MessagePart(type="reasoning", text=_shorten(text, limit)) if text else None
        case "other":
            part_type = get_field(block.value, "type")
            size = len(conversation.to_text(block.value))
            label = part_type if isinstance(part_type, str) else "part"
            return MessagePart(type="other", text=f"[{_to_name(label)}, {size} characters]")
        case _:
            return MessagePart(text=_shorten(block.value, limit)) if block.value else None


def _get_text(thing: Any, name: str) -> str:
    value = get_field(thing, name)
    return value if isinstance(value, str) else ""


def _to_name(name: Any) -> str:
    return escape_surrogates(name[:200]) if isinstance(name, str) else ""


def _read_arguments(arguments: Any, limit: int) -> Any:
    """Return the arguments of a call as data. Providers send them as data or as JSON; both must be recorded alike."""
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except msgspec.DecodeError:
            return _shorten(arguments, limit)
    return to_plain_data(arguments, items=200, nodes=1000, chars=max(limit, 0))


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return escape_surrogates(text)
    # Space for a text below which only its length is recorded.
    if limit < 200:
        return f"[{len(text)} characters cut]"
    return escape_surrogates(truncate_text(text, limit * 4 // 5, limit // 5))


class RunMessages:
    """The recorded messages of one run: each has one number. The caller holds the lock of the run."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._pending: list[RecordedMessage] = []
        self._pending_bytes = 0

    def add(self, messages: Sequence[RecordedMessage]) -> list[int]:
        """Return the numbers of messages, without those beyond the limits. New ones wait for the next step."""
        keys: list[bytes] = []
        new: dict[bytes, tuple[RecordedMessage, int]] = {}
        for message in messages:
            encoded = encode(message)
            keys.append(digest(encoded, 16))
            if keys[-1] not in self._numbers:
                new[keys[-1]] = message, len(encoded)
        accepted: set[bytes] = set()
        for key, (_, size) in reversed(new.items()):  # the latest messages matter most
            if len(self._numbers) + len(accepted) < MAX_RUN_MESSAGES and self._pending_bytes + size < MAX_PENDING_BYTES:
                accepted.add(key)
                self._pending_bytes += size
        for key, (message, _) in new.items():
            if key in accepted:
                number = self._numbers[key] = len(self._numbers) + 1
                self._pending.append(msgspec.structs.replace(message, number=number))
        return [self._numbers[key] for key in keys if key in self._numbers]

    def drain(self) -> tuple[RecordedMessage, ...]:
        """Return the new messages, which the caller publishes with a step."""
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        return tuple(pending)


def to_ranges(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return tuple(ranges)
