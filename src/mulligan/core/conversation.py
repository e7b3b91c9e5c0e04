"""Messages of every provider, parsed into `Message` and `Block` and rendered back.

Supports OpenAI (chat and responses), Anthropic, Google, Bedrock, LiteLLM, LangChain, pairs and plain texts, as
dictionaries or objects. Nothing here changes a message: changes are made on copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from mulligan.core.failure import SettingsError

CONVERSATION_ARGUMENTS = ("messages", "contents", "input", "prompt", "conversation", "history")
"""Argument names that may hold a conversation."""
INSTRUCTION_ARGUMENTS = ("system", "instructions", "system_prompt", "system_instruction")
MAX_MESSAGE_PARTS = 5000
"""Maximum number of blocks or values of one message that are read."""

Role = Literal["system", "user", "assistant", "tool"]
BlockType = Literal["text", "call", "result", "reasoning", "other"]
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
_LISTS = (list, tuple)
_CONTENT_TYPES = (str, list, tuple)
_CONTENT_FIELDS = ("content", "parts", "output", "text", "output_text")
"""Fields that hold the content of a message. The first that is not empty counts."""
_TEXT_BLOCK_TYPES = ("text", "input_text", "output_text", "refusal")
_EXTRA_FIELDS = ("refusal", "audio", "images")
"""Fields with which an OpenAI message answers in another form than text and calls."""


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


def _first_field(thing: Any, *names: str) -> tuple[str, Any]:
    """Return the first of these members that is set, with its name."""
    return next(((name, value) for name in names if (value := get_field(thing, name)) is not None), (names[0], None))


def conversation_argument(arguments: Mapping[str, Any]) -> str | None:
    """Return the name of the argument that holds the conversation."""
    for name in CONVERSATION_ARGUMENTS:
        if name in arguments and isinstance(arguments[name], str | list | tuple | dict):
            return name
    for name, value in arguments.items():
        if isinstance(value, _LISTS) and value and get_field(value[0], "role") is not None:
            return name
    return None


# Parsing


class TextSlot(NamedTuple):
    """A replaceable text of a message and its path."""

    path: Path
    text: str
    is_observation: bool = False
    """Whether the text is a tool result."""
    wrap: str = ""
    """If the path holds data: the key under which a replacement text is stored."""


class Block(NamedTuple):
    """One part of a message."""

    type: BlockType
    path: Path
    """Path of the value in the message."""
    value: Any
    """The text, the arguments of the call, the tool result, or the part itself, as the provider has it."""
    id: Any = None
    """Id of the call, or the tool's name for providers without ids."""
    name: Any = None
    """Name of the called tool."""
    is_error: bool | None = None
    """Whether the result is declared to be an error, if anything is declared."""
    slots: tuple[TextSlot, ...] = ()
    """Replaceable texts: what was written, and tool results."""


class Message(NamedTuple):
    """A message of any provider."""

    source: Any
    role: Role
    """The author. Tool results have the role "tool", even in a message of the user."""
    label: str
    """The provider's own name of the role."""
    blocks: tuple[Block, ...]

    @property
    def slots(self) -> list[TextSlot]:
        return [slot for block in self.blocks for slot in block.slots]

    @property
    def texts(self) -> list[str]:
        """Return the texts that the author wrote, without tool results."""
        return [block.value for block in self.blocks if block.type == "text"]

    @property
    def calls(self) -> list[Block]:
        return [block for block in self.blocks if block.type == "call"]

    def ids(self, block_type: BlockType) -> list[str]:
        """Return the ids of the calls, or of the calls whose results the message holds."""
        ids = (block.id for block in self.blocks if block.type == block_type)
        return list(dict.fromkeys(id for id in ids if isinstance(id, str) and id))

    def render(self, texts: Iterable[tuple[TextSlot, str]]) -> Any:
        """Return the message in its own form with other texts. Raises TypeError if an object cannot be copied."""
        rendered = self.source
        for slot, text in texts:
            if text is not slot.text:
                rendered = replace_at(rendered, slot.path, {slot.wrap: text} if slot.wrap else text)
        return rendered


def parse_message(source: Any, path: Path = ()) -> Message:
    """Parse a message of any provider. Never raises: what is not recognized has no blocks.

    `path` is the path of the message, which the paths of its blocks begin with.
    """
    if isinstance(source, str):
        return Message(source, "user", "user", (_text_block(path, source),))
    if isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], str):
        role = _ROLES.get(source[0].lower(), "user")
        blocks = _parse_content(source[1], (*path, 1))
        if role == "tool":
            blocks = [_with_observations(Block("result", (*path, 1), source[1]), blocks)]
        return Message(source, role, source[0], tuple(blocks))
    label, item_type = get_field(source, "role"), get_field(source, "type")
    item_type = item_type if isinstance(item_type, str) else ""
    label = label if isinstance(label, str) else item_type
    blocks = _parse_fields(source, item_type, path)
    role = _ROLES.get(label.lower(), "user")
    if role == "tool" or item_type == "tool" or item_type.endswith("_output"):
        role = "tool" if role == "user" else role
        texts = [block for block in blocks if block.type == "text"]
        remaining = [block for block in blocks if block.type != "text"]
        if texts or all(block.type != "result" for block in remaining):
            blocks = [_with_observations(_build_result(source, path), texts), *remaining]
    elif item_type == "reasoning" or item_type.endswith("_call"):
        role = "assistant" if role == "user" else role
    elif not blocks and label and label.lower() not in _ROLES:
        blocks = [Block("other", path, source)]
    elif role == "user" and any(block.type == "result" for block in blocks):
        role = "user" if any(block.type == "text" and block.slots for block in blocks) else "tool"
    return Message(source, role, label or "user", tuple(blocks))


def parse_messages(sources: Iterable[Any]) -> list[Message]:
    """Parse the messages of a conversation."""
    return [parse_message(source) for source in sources]


def _parse_fields(source: Any, item_type: str, path: Path) -> list[Block]:
    if item_type == "reasoning":
        return [Block("reasoning", path, source)]
    if item_type.endswith("_call"):
        name, value = _first_field(source, "arguments", "input")
        id = get_field(source, "call_id") or get_field(source, "id")
        return [Block("call", (*path, name), value, id, get_field(source, "name"))]
    blocks: list[Block] = []
    for name in _CONTENT_FIELDS:
        content = get_field(source, name)
        if isinstance(content, _CONTENT_TYPES) and content:
            blocks += _parse_content(content, (*path, name))
            break
    calls = get_field(source, "tool_calls")
    for number, call in enumerate(calls if isinstance(calls, _LISTS) else ()):
        blocks.append(_parse_tool_call(call, (*path, "tool_calls", number)))
    legacy = get_field(source, "function_call")
    if isinstance(name := get_field(legacy, "name"), str):
        blocks.append(Block("call", (*path, "function_call", "arguments"), get_field(legacy, "arguments"), name, name))
    blocks += (Block("other", (*path, name), value) for name in _EXTRA_FIELDS if (value := get_field(source, name)))
    return blocks


def _text_block(path: Path, text: str) -> Block:
    return Block("text", path, text, slots=(TextSlot(path, text),) if text else ())


def _parse_content(content: Any, path: Path) -> list[Block]:
    if isinstance(content, str):
        return [_text_block(path, content)]
    if not isinstance(content, _LISTS):
        return []
    return [_parse_block(part, (*path, number)) for number, part in enumerate(content[:MAX_MESSAGE_PARTS])]


def _parse_block(part: Any, path: Path) -> Block:
    if isinstance(part, str):
        return _text_block(path, part)
    part_type, text = get_field(part, "type"), get_field(part, "text")
    part_type = part_type if isinstance(part_type, str) else ""
    if isinstance(text, str) and (not part_type or part_type in _TEXT_BLOCK_TYPES):
        return _text_block((*path, "text"), text)
    if part_type == "tool_use":
        return Block("call", (*path, "input"), get_field(part, "input"), get_field(part, "id"), get_field(part, "name"))
    if part_type == "tool_result":
        content, is_error = get_field(part, "content"), get_field(part, "is_error")
        block = Block("result", (*path, "content"), content, get_field(part, "tool_use_id"), is_error=is_error)
        return _with_observations(block, _parse_content(content, block.path))
    if part_type in ("thinking", "reasoning"):
        return Block("reasoning", path, part)
    for name in ("toolUse", "tool_use", "function_call", "functionCall", "toolResult", "tool_result",
                 "function_response", "functionResponse"):  # fmt: skip
        member = get_field(part, name)
        if member is not None and not isinstance(member, str):
            return _parse_member(name, member, (*path, name))
    if isinstance(part, Mapping) and part.get("json") is not None:
        return Block("other", path, part, slots=(TextSlot(path, dump_json(part["json"]), wrap="text"),))
    return Block("other", path, part)


def _parse_member(name: str, member: Any, path: Path) -> Block:
    """Parse the one member of a block of Bedrock or Google."""
    id = get_field(member, "toolUseId") or get_field(member, "id") or get_field(member, "name")
    field_name, value = _first_field(member, "input", "args", "content", "response")
    path = (*path, field_name)
    if name in ("toolUse", "tool_use", "function_call", "functionCall"):
        return Block("call", path, value, id, get_field(member, "name"))
    is_error = True if get_field(member, "status") == "error" else None
    block = Block("result", path, value, id, is_error=is_error)
    if field_name == "response" and isinstance(value, Mapping):
        key, entry = next(iter(value.items())) if len(value) == 1 else ("", None)
        if isinstance(entry, str):
            return block._replace(slots=(TextSlot((*path, key), entry, True),))
        return block._replace(slots=(TextSlot(path, dump_json(value), True, "result"),))
    return _with_observations(block, _parse_content(value, path))


def _parse_tool_call(call: Any, path: Path) -> Block:
    """Parse a call of OpenAI (`function`, `custom`) or LangChain (`args`)."""
    holder_name, holder = _first_field(call, "function", "custom")
    if holder is None:
        holder = call
    else:
        path = (*path, holder_name)
    name, value = _first_field(holder, "arguments", "args", "input")
    return Block("call", (*path, name), value, get_field(call, "id"), get_field(holder, "name"))


def _build_result(source: Any, path: Path) -> Block:
    """Return the content of a tool's message as one result."""
    name, value = _first_field(source, *_CONTENT_FIELDS)
    _, id = _first_field(source, "tool_call_id", "call_id", "name")
    is_error = get_field(source, "is_error")
    if not isinstance(is_error, bool):
        is_error = True if get_field(source, "status") == "error" else None
    return Block("result", (*path, name), value, id, is_error=is_error)


def _with_observations(result: Block, blocks: Iterable[Block]) -> Block:
    slots = (slot._replace(is_observation=True) for block in blocks for slot in block.slots)
    return result._replace(slots=tuple(slots))


class ModelAnswer(NamedTuple):
    """A model's answer, with paths from its outermost object."""

    blocks: tuple[Block, ...]
    finish_reason: str


def parse_answer(answer: Any) -> ModelAnswer | None:
    """Parse an answer of OpenAI (chat and responses), Anthropic or Google, or return None."""
    messages: list[tuple[Path, Any]]
    if isinstance(choices := get_field(answer, "choices"), _LISTS) and choices:
        message = get_field(choices[0], "message")
        if message is None:
            return None
        messages, finish_reason = [(("choices", 0, "message"), message)], get_field(choices[0], "finish_reason")
    elif isinstance(output := get_field(answer, "output"), _LISTS) and isinstance(
        finish_reason := get_field(answer, "status"), str
    ):
        messages = [(("output", number), item) for number, item in enumerate(output)]
        if finish_reason == "incomplete":
            finish_reason = get_field(get_field(answer, "incomplete_details"), "reason")
    elif isinstance(get_field(answer, "content"), _LISTS) and isinstance(
        finish_reason := get_field(answer, "stop_reason"), str
    ):
        messages = [((), answer)]
    elif isinstance(candidates := get_field(answer, "candidates"), _LISTS) and candidates:
        _, finish_reason = _first_field(candidates[0], "finish_reason", "finishReason")
        finish_reason = getattr(finish_reason, "name", finish_reason)
        messages = [(("candidates", 0, "content"), get_field(candidates[0], "content"))]
    else:
        return None
    blocks = [block for path, message in messages for block in parse_message(message, path).blocks]
    return ModelAnswer(tuple(blocks), str(finish_reason).lower())


_TOKEN_USAGE_FIELDS = {
    "input": ("prompt_tokens", "input_tokens", "prompt_token_count", "promptTokenCount"),
    "output": ("completion_tokens", "output_tokens", "candidates_token_count", "candidatesTokenCount"),
}


def read_token_usage(answer: Any) -> dict[str, int] | None:
    """Return the token usage that an answer reports, as `input` and `output`."""
    for usage in (get_field(answer, name) for name in ("usage", "usage_metadata", "usageMetadata")):
        token_counts = {
            name: count
            for name, spellings in _TOKEN_USAGE_FIELDS.items()
            for spelling in spellings
            if type(count := get_field(usage, spelling)) is int and count >= 0
        }
        if token_counts:
            return token_counts
    return None


# Exchanges


def group_exchanges(messages: Sequence[Message]) -> list[range]:
    """Group messages into exchanges: a model message with the results of its calls.

    Remove an exchange as a whole: providers reject a call without its result.
    """
    parts: list[range] = []
    open_calls: dict[str, list[int]] = {}
    before: Role | None = None
    for number, message in enumerate(messages):
        answers = message.ids("result")
        opener = [open_calls[call_id].pop() for call_id in answers if open_calls.get(call_id)]
        if parts and (
            opener
            or (message.role == "tool" and before in ("assistant", "tool"))
            or (message.role == before == "assistant")
        ):
            first = min([*opener, parts[-1].start])
            while len(parts) > 1 and parts[-1].start > first:
                parts.pop()
            parts[-1] = range(parts[-1].start, number + 1)
        else:
            parts.append(range(number, number + 1))
        for call_id in message.ids("call"):
            open_calls.setdefault(call_id, []).append(parts[-1].start)
        before = "tool" if answers else message.role
    return parts


def find_unpaired(messages: Iterable[Message]) -> tuple[list[str], list[str]]:
    """Return the calls without a result, and the results without a call."""
    unanswered: list[str] = []
    unrequested: list[str] = []
    for message in messages:
        for call_id in message.ids("result"):
            if call_id in unanswered:
                unanswered.remove(call_id)
            else:
                unrequested.append(call_id)
        unanswered.extend(message.ids("call"))
    return unanswered, unrequested


# Rendering


def replace_at(thing: Any, path: Path, value: Any) -> Any:
    """Return a copy with another value at this path. Raises TypeError if the object cannot be copied."""
    if not path:
        return value
    name, remaining_path = path[0], path[1:]
    inner = replace_at(get_field(thing, name), remaining_path, value) if remaining_path else value
    if isinstance(thing, Mapping):
        return {**thing, name: inner}
    if isinstance(thing, _LISTS):
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
    for source in reversed(messages):
        message = parse_message(source)
        if message.role != "user" or message.ids("result") or not message.slots:
            continue
        path = message.slots[0].path
        try:
            if len(path) <= 1 or isinstance(source, tuple):
                new_message = replace_at(source, path, text)
            else:  # keep only this block in the new message
                block = replace_at(get_field(get_field(source, path[0]), path[1]), path[2:], text)
                new_message = replace_at(source, path[:1], [block])
        except TypeError:
            continue
        if isinstance(new_message, dict):
            return {name: value for name, value in new_message.items() if name != "id"}
        return new_message
    form = next((message for message in messages if not isinstance(message, str)), None)
    if messages and form is None:
        return text
    if get_field(form, "parts") is not None:
        return {"role": "user", "parts": [{"text": text}]}
    blocks = get_field(form, "content")
    if isinstance(blocks, list) and blocks and isinstance(blocks[0], Mapping) and get_field(blocks[0], "type") is None:
        return {"role": "user", "content": [{"text": text}]}  # Bedrock content blocks have no type
    return {"role": "user", "content": text}


def to_text(result: Any) -> str:
    """Return a tool's result as the text that a model reads."""
    if isinstance(result, str):
        return result
    try:
        return msgspec.json.encode(result, enc_hook=str).decode()
    except Exception:  # noqa: BLE001 - objects of any class
        return str(result)


def dump_json(data: Any) -> str:
    """Return data as JSON with the spaces that most clients write, or as its string."""
    import json  # lazy: few providers need it

    try:
        return json.dumps(data, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(data)


# Agent loops


CallResult = tuple[Any, Any, bool]
"""The id of a call, its result, and whether it is a failure."""


class MessageFormat:
    """OpenAI's messages in an agent loop: `tool_calls`, answered by messages with the role `tool`."""

    def format_tool(self, name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the definition of a tool for the model."""
        return {"type": "function", "function": {"name": name, "description": description, "parameters": dict(schema)}}

    def add_results(self, messages: list[Any], results: Sequence[CallResult]) -> None:
        """Append the results of the calls of a reply."""
        for id, result, _ in results:
            messages.append({"role": "tool", "tool_call_id": id, "content": to_text(result)})

    def add_notice(self, messages: list[Any], notice: str) -> None:
        """Append a note from mulligan."""
        messages.append({"role": "user", "content": notice})


class AnthropicFormat(MessageFormat):
    """Anthropic's content blocks: `tool_use`, answered by `tool_result` blocks in one user message."""

    def format_tool(self, name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": name, "description": description, "input_schema": dict(schema) or {"type": "object"}}

    def add_results(self, messages: list[Any], results: Sequence[CallResult]) -> None:
        blocks: list[dict[str, Any]] = []
        for id, result, is_error in results:
            block = {"type": "tool_result", "tool_use_id": id, "content": to_text(result)}
            blocks.append(block | {"is_error": True} if is_error else block)
        messages.append({"role": "user", "content": blocks})

    def add_notice(self, messages: list[Any], notice: str) -> None:
        last = messages[-1] if messages else None
        # Append to the message with the results: some providers reject two user messages in a row.
        if isinstance(last, dict) and last.get("role") == "user":
            messages[-1] = {**last, "content": [*_to_blocks(last["content"]), {"type": "text", "text": notice}]}
        else:
            super().add_notice(messages, notice)


OPENAI, ANTHROPIC = MessageFormat(), AnthropicFormat()
STYLES = {"openai": OPENAI, "anthropic": ANTHROPIC}


def choose_message_format(style: str | None, messages: Sequence[Any]) -> MessageFormat:
    """Return the format for a style, or detect it from the messages."""
    if style is not None:
        if style not in STYLES:
            raise SettingsError(f"Invalid style {style!r}. Use 'openai' or 'anthropic'.")
        return STYLES[style]
    return ANTHROPIC if any(_has_tool_blocks(get_field(message, "content")) for message in messages) else OPENAI


def _has_tool_blocks(content: Any) -> bool:
    blocks = content if isinstance(content, _LISTS) else ()
    return any(get_field(block, "type") in ("tool_use", "tool_result") for block in blocks)


def _to_blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A model's reply in an agent loop: text, calls, and the message to append to the conversation."""

    text: str
    calls: Sequence[Block]
    message: Any
    message_format: MessageFormat


def parse_reply(reply: Any, message_format: MessageFormat) -> ModelReply:
    """Parse a reply: a text, an OpenAI completion or message, or an Anthropic message; object or dictionary."""
    choices, source = get_field(reply, "choices"), reply
    if isinstance(choices, _LISTS) and choices:
        source, message_format = get_field(choices[0], "message"), OPENAI
    elif not isinstance(reply, str):
        content = get_field(reply, "content")
        if not isinstance(content, _CONTENT_TYPES) and all(
            get_field(reply, name) is None for name in ("role", "tool_calls")
        ):
            raise SettingsError(
                f"Unsupported model reply of type {type(reply).__name__}. "
                "Return a string, an OpenAI completion or message, or an Anthropic message."
            )
        has_blocks = isinstance(content, _LISTS) and not get_field(reply, "tool_calls")
        is_anthropic = has_blocks and (
            message_format is ANTHROPIC or get_field(reply, "stop_reason") is not None or _has_tool_blocks(content)
        )
        message_format = ANTHROPIC if is_anthropic else OPENAI
    message = parse_message(source)
    text = "\n".join(message.texts)
    calls = [call for call in message.calls if call.path[0] != "function_call"]  # the legacy API has no call ids
    if isinstance(reply, str) or (message_format is OPENAI and not isinstance(source, Mapping)):
        source = {"role": "assistant", "content": text if isinstance(reply, str) else text or None}
        if calls:
            source["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.value}}
                for call in calls
            ]
    elif message_format is ANTHROPIC:
        source = {"role": "assistant", "content": list(get_field(source, "content"))}
    return ModelReply(text, calls, source, message_format)


def prepend_lessons(messages: Sequence[Any], lessons: str) -> list[Any]:
    """Insert lessons after the system message, or into the first user message as a separate block.

    Both providers accept that; some reject an additional system message.
    """
    for index, message in enumerate(messages):
        role, content = get_field(message, "role"), get_field(message, "content")
        if role in ("system", "developer"):
            return [*messages[: index + 1], {"role": role, "content": lessons}, *messages[index + 1 :]]
        if role == "user" and isinstance(message, Mapping) and isinstance(content, _CONTENT_TYPES):
            blocks = [{"type": "text", "text": lessons}, *_to_blocks(content)]
            return [*messages[:index], {**message, "content": blocks}, *messages[index + 1 :]]
    return [{"role": "user", "content": lessons}, *messages]
