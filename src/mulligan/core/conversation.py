"""Conversations in any provider's format: roles, texts, call and result ids, token estimates.

Supports OpenAI (chat and responses), Anthropic, Google, Bedrock, LangChain, pairs and plain texts, as dictionaries or
objects. Nothing here changes its input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

CONVERSATION_ARGUMENTS = ("messages", "contents", "input", "prompt", "conversation", "history")
"""Argument names that may hold a conversation."""
INSTRUCTION_ARGUMENTS = ("system", "instructions", "system_prompt", "system_instruction")
MAX_MESSAGE_PARTS = 5000
"""Maximum number of blocks or values of one message that are read."""
IMAGE_TOKENS = 1000
"""Estimated tokens of an image or file. The cost does not depend on the length of its data."""

Role = Literal["system", "user", "assistant", "tool"]
Path = tuple[str | int, ...]

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "tool": "tool",
    "function": "tool",
    "ipython": "tool",
}
_LABEL_FIELDS = frozenset({"type", "role", "cache_control", "mime_type", "mimeType", "status"})
_BINARY_FIELDS = frozenset(
    {"data", "image_url", "file_data", "inline_data", "inlineData", "bytes", "audio", "signature"}
)
_CONTENT_FIELDS = (
    "content", "parts", "text", "tool_calls", "function", "function_call", "function_response", "output", "arguments",
    "name", "input", "args", "response",
)  # fmt: skip
_STRUCTURE_FIELDS = (
    frozenset(_CONTENT_FIELDS)
    | _LABEL_FIELDS
    | {"id", "tool_call_id", "tool_use_id", "call_id", "toolUseId", "summary"}
)
"""Field names that belong to the structure of a message, not to its content."""
_RESULT_FIELDS = ("response", "json")
"""Fields in which providers accept tool results as data."""
_TEXT_BLOCK_TYPES = ("text", "input_text", "output_text", "refusal")


class TextSlot(NamedTuple):
    """A text of a message and its path."""

    path: Path
    text: str
    is_observation: bool
    """Whether the text is a tool result."""
    wrap: str = ""
    """If the path holds data: the key under which a replacement text is stored."""


def get_field(thing: Any, name: str | int) -> Any:
    """Return a member of a dictionary, list or object, or None. Never raises, even if a property does."""
    if thing is None:
        return None
    try:
        if type(thing) is dict or isinstance(thing, Mapping):
            return thing.get(name)
        if isinstance(name, int):
            return thing[name]
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - properties of unknown objects may raise anything
        return None


def conversation_argument(arguments: Mapping[str, Any]) -> str | None:
    """Return the name of the argument that holds the conversation."""
    for name in CONVERSATION_ARGUMENTS:
        if name in arguments and isinstance(arguments[name], str | list | tuple | dict):
            return name
    for name, value in arguments.items():
        if isinstance(value, list | tuple) and value and get_field(value[0], "role") is not None:
            return name
    return None


def role_of(message: Any) -> Role:
    """Return the role of a message. Tool results have the role "tool", even in a message of the user."""
    if isinstance(message, str):
        return "user"
    if _is_pair(message):
        return _ROLES.get(message[0].lower(), "user")
    label = get_field(message, "role")
    if not isinstance(label, str):
        label = get_field(message, "type")
        if not isinstance(label, str):
            return "user"
        if label.endswith("_output"):
            return "tool"
        if label == "reasoning" or label.endswith("_call"):
            return "assistant"
    resolved_role = _ROLES.get(label.lower(), "user")
    if (
        resolved_role == "user"
        and result_ids(message)
        and not any(not slot.is_observation for slot in find_text_slots(message))
    ):
        return "tool"
    return resolved_role


def _is_pair(message: Any) -> bool:
    return isinstance(message, tuple) and len(message) == 2 and isinstance(message[0], str)


def _members(message: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the blocks of a message with their paths."""
    for name in ("content", "parts", "output"):
        blocks = get_field(message, name)
        if isinstance(blocks, list | tuple):
            yield from (((name, number), block) for number, block in enumerate(blocks[:MAX_MESSAGE_PARTS]))


def _tool_part(block: Any, *names: str) -> tuple[str, Any]:
    """Return the first of these members of a block that is not a text, with its name."""
    for name in names:
        part = get_field(block, name)
        if part is not None and not isinstance(part, str):
            return name, part
    return "", None


def find_text_slots(message: Any) -> list[TextSlot]:
    """Return the replaceable texts of a message: what was written, and tool results."""
    if isinstance(message, str):
        return [TextSlot((), message, False)]
    if _is_pair(message):
        return [TextSlot((1,), message[1], message[0] in ("tool", "function"))] if isinstance(message[1], str) else []
    role_name, message_type = get_field(message, "role"), get_field(message, "type")
    is_tool = role_name in ("tool", "function", "ipython") or (
        isinstance(message_type, str) and (message_type == "tool" or message_type.endswith("_output"))
    )
    text_slots = [
        TextSlot((name,), text, is_tool)
        for name in ("content", "output", "text", "parts")
        if isinstance(text := get_field(message, name), str) and text
    ]
    for path, block in _members(message):
        text_slots.extend(_block_slots(block, path, is_tool))
    return text_slots


def _block_slots(block: Any, path: Path, is_tool: bool) -> Iterator[TextSlot]:
    if isinstance(block, str):
        yield TextSlot(path, block, is_tool)
        return
    block_type = get_field(block, "type")
    if (
        isinstance(text := get_field(block, "text"), str)
        and text
        and (block_type in _TEXT_BLOCK_TYPES or not isinstance(block_type, str))
    ):
        yield TextSlot((*path, "text"), text, is_tool)
    if block_type == "tool_result":
        content = get_field(block, "content")
        if isinstance(content, str):
            yield TextSlot((*path, "content"), content, True)
        elif isinstance(content, list | tuple):
            for number, part in enumerate(content[:MAX_MESSAGE_PARTS]):
                yield from _block_slots(part, (*path, "content", number), True)
        return
    name, result = _tool_part(block, "toolResult", "tool_result")
    if name:
        for number, part in enumerate(list(get_field(result, "content") or ())[:MAX_MESSAGE_PARTS]):
            where = (*path, name, "content", number)
            if isinstance(text := get_field(part, "text"), str):
                yield TextSlot((*where, "text"), text, True)
            elif (data := get_field(part, "json")) is not None:
                yield TextSlot(where, _dump_json(data), True, "text")
    name, result = _tool_part(block, "function_response", "functionResponse")
    if name and isinstance(data := get_field(result, "response"), Mapping):
        single_entry = next(iter(data.items())) if len(data) == 1 else ("", None)
        if isinstance(single_entry[1], str):
            yield TextSlot((*path, name, "response", single_entry[0]), single_entry[1], True)
        else:
            yield TextSlot((*path, name, "response"), _dump_json(data), True, "result")


def _as_text(result: Any) -> str:
    """Return a data result as the text a model reads; empty if it is text already."""
    if not isinstance(result, Mapping) or (len(result) == 1 and isinstance(next(iter(result.values())), str)):
        return ""
    return _dump_json(result)


def _dump_json(data: Any) -> str:
    import json  # lazy: few providers need it

    try:
        return json.dumps(data, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(data)


def call_ids(message: Any) -> list[str]:
    """Return the ids of the calls in a message, or tool names for providers without ids."""
    raw_ids: list[Any] = []
    calls = get_field(message, "tool_calls")
    if isinstance(calls, list | tuple):
        raw_ids += [get_field(call, "id") for call in calls]
    if isinstance(legacy := get_field(get_field(message, "function_call"), "name"), str):
        raw_ids.append(legacy)
    message_type = get_field(message, "type")
    if isinstance(message_type, str) and message_type.endswith("_call"):
        raw_ids.append(get_field(message, "call_id") or get_field(message, "id"))
    for _, block in _members(message):
        if get_field(block, "type") == "tool_use":
            raw_ids.append(get_field(block, "id"))
        for names in (("toolUse", "tool_use"), ("function_call", "functionCall")):
            _, call = _tool_part(block, *names)
            if call is not None:
                raw_ids.append(get_field(call, "toolUseId") or get_field(call, "id") or get_field(call, "name"))
    return _unique_ids(raw_ids)


def result_ids(message: Any) -> list[str]:
    """Return the ids of the calls whose results a message holds."""
    raw_ids: list[Any] = [get_field(message, "tool_call_id")]
    message_type = get_field(message, "type")
    if isinstance(message_type, str) and message_type.endswith("_output"):
        raw_ids.append(get_field(message, "call_id"))
    if get_field(message, "role") == "function" and get_field(message, "tool_call_id") is None:
        raw_ids.append(get_field(message, "name"))
    for _, block in _members(message):
        if get_field(block, "type") == "tool_result":
            raw_ids.append(get_field(block, "tool_use_id"))
        for names in (("toolResult", "tool_result"), ("function_response", "functionResponse")):
            _, result = _tool_part(block, *names)
            if result is not None:
                raw_ids.append(get_field(result, "toolUseId") or get_field(result, "id") or get_field(result, "name"))
    return _unique_ids(raw_ids)


def _unique_ids(values: list[Any]) -> list[str]:
    return list(dict.fromkeys(value for value in values if isinstance(value, str) and value))


def group_exchanges(messages: Sequence[Any]) -> list[range]:
    """Group messages into exchanges: a model message with the results of its calls.

    Remove an exchange as a whole: providers reject a call without its result.
    """
    parts: list[range] = []
    open_calls: dict[str, list[int]] = {}
    before: Role | None = None
    for number, message in enumerate(messages):
        current_role, answers = role_of(message), result_ids(message)
        opener = [open_calls[call_id].pop() for call_id in answers if open_calls.get(call_id)]
        if parts and (
            opener
            or (current_role == "tool" and before in ("assistant", "tool"))
            or (current_role == before == "assistant")
        ):
            first = min([*opener, parts[-1].start])
            while len(parts) > 1 and parts[-1].start > first:
                parts.pop()
            parts[-1] = range(parts[-1].start, number + 1)
        else:
            parts.append(range(number, number + 1))
        for call_id in call_ids(message):
            open_calls.setdefault(call_id, []).append(parts[-1].start)
        before = "tool" if answers else current_role
    return parts


def find_unpaired(messages: Sequence[Any]) -> tuple[list[str], list[str]]:
    """Return the calls without a result, and the results without a call."""
    unanswered: list[str] = []
    unrequested: list[str] = []
    for message in messages:
        for call_id in result_ids(message):
            if call_id in unanswered:
                unanswered.remove(call_id)
            else:
                unrequested.append(call_id)
        unanswered.extend(call_ids(message))
    return unanswered, unrequested


def replace_at(thing: Any, path: Path, value: Any) -> Any:
    """Return a copy with another value at this path. Raises TypeError if the object cannot be copied."""
    if not path:
        return value
    name, remaining_path = path[0], path[1:]
    inner = replace_at(get_field(thing, name), remaining_path, value) if remaining_path else value
    if isinstance(thing, Mapping):
        return {**thing, name: inner}
    if isinstance(thing, list | tuple):
        twin = list(thing)
        twin[int(name)] = inner
        return type(thing)(twin)
    name = str(name)
    if callable(model_copy := get_field(thing, "model_copy")):
        return model_copy(update={name: inner})
    import copy  # lazy: few conversations hold such objects

    try:
        twin_object = copy.copy(thing)
        try:
            setattr(twin_object, name, inner)
        except (AttributeError, TypeError):
            object.__setattr__(twin_object, name, inner)  # a frozen dataclass; the copy is not shared yet
        return twin_object
    except Exception as error:
        raise TypeError(f"Cannot copy {type(thing).__name__} with a different {name}") from error


def user_message(messages: Sequence[Any], text: str) -> Any:
    """Build a user message in the format of this conversation."""
    for message in reversed(messages):
        if role_of(message) != "user" or result_ids(message) or (message_slots := find_text_slots(message)) == []:
            continue
        first = message_slots[0]
        try:
            if len(first.path) <= 1 or isinstance(message, tuple):
                new_message = replace_at(message, first.path, text)
            else:  # keep only this block in the new message
                block = replace_at(get_field(get_field(message, first.path[0]), first.path[1]), first.path[2:], text)
                new_message = replace_at(message, first.path[:1], [block])
        except TypeError:
            continue
        return (
            {name: value for name, value in new_message.items() if name != "id"}
            if isinstance(new_message, dict)
            else new_message
        )
    form = next((message for message in messages if not isinstance(message, str)), None)
    if messages and form is None:
        return text
    if get_field(form, "parts") is not None:
        return {"role": "user", "parts": [{"text": text}]}
    blocks = get_field(form, "content")
    if isinstance(blocks, list) and blocks and get_field(blocks[0], "type") is None and isinstance(blocks[0], Mapping):
        return {"role": "user", "content": [{"text": text}]}  # Bedrock content blocks have no type
    return {"role": "user", "content": text}


_TOKEN_PATTERN = r"[A-Za-z]{1,9}|[^\w\s]{1,2}|_|\n\s*|  +|[^\x00-\x7f]"
_WORD_PIECES = re.compile(rf"\d{{1,3}}|{_TOKEN_PATTERN}")
_DIGIT_PIECES = re.compile(rf"\d|{_TOKEN_PATTERN}")
TOKENS_PER_PIECE = 1.02
"""Average tokens per matched piece for common tokenizers, measured on prose, code, logs and JSON."""
MAX_COUNTED_CHARS = 12_000
"""Longer texts are estimated from three samples."""


def count_word_tokens(text: str) -> float:
    """Estimate the tokens of a text from word pieces, digit groups, punctuation and indentation."""
    return _count_pieces(_WORD_PIECES, text)


def count_digit_tokens(text: str) -> float:
    """Estimate the tokens of a text for tokenizers with one token per digit."""
    return _count_pieces(_DIGIT_PIECES, text)


def _count_pieces(pattern: re.Pattern[str], text: str) -> float:
    if len(text) > MAX_COUNTED_CHARS:
        third, middle = MAX_COUNTED_CHARS // 3, len(text) // 2
        sample = text[:third] + text[middle : middle + third] + text[-third:]
        return TOKENS_PER_PIECE * len(pattern.findall(sample)) * len(text) / len(sample)
    return TOKENS_PER_PIECE * len(pattern.findall(text))


def count_letter_tokens(text: str) -> float:
    """Estimate the tokens of a text as one per four characters."""
    return len(text) / 4


def estimate_tokens(
    value: Any, count_tokens: Callable[[str], float] = count_word_tokens, *, is_serialized: bool = False
) -> float:
    """Estimate the tokens of a message, a schema or a whole conversation.

    Most providers count the text that the model reads. `is_serialized` counts the request as JSON, with all names,
    punctuation and escapes.
    """
    total = 0.0
    pending = [value]
    for _ in range(MAX_MESSAGE_PARTS * 20):
        if not pending:
            break
        item = pending.pop()
        if isinstance(item, str):
            if item.startswith("data:") and len(item) > 1000:
                total += IMAGE_TOKENS
            else:
                total += count_tokens(escape_json(item) if is_serialized else item)
        elif isinstance(item, bytes):
            total += IMAGE_TOKENS
        elif isinstance(item, list | tuple):
            total += count_tokens("[]") if is_serialized else 1
            pending.extend(item[:MAX_MESSAGE_PARTS])
        elif isinstance(item, bool | int | float):
            total += count_tokens(str(item)) if is_serialized else 1
        elif item is not None:
            is_form = not isinstance(item, Mapping)
            total += count_tokens("{}") if is_serialized else 0
            for name, member in (_members_of(item) if is_form else item).items():
                if is_serialized:
                    total += count_tokens(f'"{name}": , ')
                else:
                    total += 0.4 if is_form or name in _STRUCTURE_FIELDS else len(str(name)) / 4 + 1
                if name in _BINARY_FIELDS and not isinstance(member, int | float):
                    total += IMAGE_TOKENS
                elif not is_serialized and name in _RESULT_FIELDS and (data := _as_text(member)):
                    total += count_tokens(data)
                elif is_serialized or name not in _LABEL_FIELDS:
                    pending.append(member)
    return total


_OBJECT_FIELDS = (*_CONTENT_FIELDS, "type", "role", "id", "tool_call_id", "tool_use_id", "call_id")


def _members_of(thing: Any) -> dict[str, Any]:
    """Return the fields of a message object under their names in a request."""
    return {name: value for name in _OBJECT_FIELDS if (value := get_field(thing, name)) is not None}


def escape_json(text: str) -> str:
    """Return a text as a JSON string."""
    return _dump_json(text)
