"""Messages of every provider, parsed into `Message` and `Block` and rendered back.

Supports OpenAI (chat and responses), Anthropic, Google, Bedrock, LiteLLM, LangChain, PydanticAI, Agent Framework, pairs
and plain texts, as dictionaries or objects. Nothing here changes a message: changes are made on copies.
"""

from __future__ import annotations

import functools
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
_CONTENT_FIELDS = ("content", "parts", "contents", "output", "text", "output_text")
"""Fields that hold the content of a message. The first that is not empty counts."""
_TEXT_BLOCK_TYPES = ("text", "input_text", "output_text", "refusal")
_EXTRA_FIELDS = ("refusal", "audio", "images")
"""Fields with which an OpenAI message answers in another form than text and calls."""
_CALL_BLOCK_TYPES = ("tool_use", "tool_call", "function_call")
"""Content blocks that are calls: of Anthropic, LangChain, and OpenAI's responses inside LangChain."""
_MESSAGE_HOLDERS = ("data", "kwargs")
"""Fields in which LangChain's serialized messages hold the message."""


def get_field(thing: Any, name: str | int) -> Any:
    """Return a member of a dictionary, list or object, or None. Never raises, even if a property does."""
    if thing is None:
        return None
    try:
        thing_type: Any = type(thing)
        if thing_type is dict:
            return thing.get(name)
        # First, because missing attributes of pydantic models take 10 us each, and streams have many events.
        if _is_pydantic_model(thing_type) and isinstance(name, str) and not _is_class_attribute(thing_type, name):
            fields = thing.__dict__
            return fields[name] if name in fields else (thing.__pydantic_extra__ or {}).get(name)
        if _is_mapping(thing_type):
            return thing.get(name)
        return thing[name] if isinstance(name, int) else getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - properties of unknown objects may raise anything
        return None


@functools.lru_cache(maxsize=1024)
def _is_mapping(thing_type: type) -> bool:
    """Return whether a class is a mapping. The check of an abstract class takes several times as long."""
    return issubclass(thing_type, Mapping)


@functools.lru_cache(maxsize=1024)
def _is_pydantic_model(model: type) -> bool:
    """Return whether a class is a pydantic model that computes no further attributes."""
    return hasattr(model, "__pydantic_fields__") and not any(
        "__getattr__" in vars(base) for base in model.__mro__ if not base.__module__.startswith("pydantic.")
    )


@functools.lru_cache(maxsize=4096)
def _is_class_attribute(model: type, name: str) -> bool:
    return any(name in vars(base) for base in model.__mro__)


def _first_field(thing: Any, *names: str) -> tuple[str, Any]:
    """Return the first of these members that is set, with its name."""
    return next(((name, value) for name in names if (value := get_field(thing, name)) is not None), (names[0], None))


def conversation_argument(arguments: Mapping[str, Any]) -> str | None:
    """Return the name of the argument that holds the conversation."""
    for name in CONVERSATION_ARGUMENTS:
        if name in arguments and isinstance(arguments[name], str | list | tuple | dict):
            return name
    for name, value in arguments.items():
        if isinstance(value, _LISTS) and value and _is_message(value[0]):
            return name
    return None


def _is_message(value: Any) -> bool:
    """Return whether a value is a message: it has a role, or is a message or a pair of LangChain."""
    if get_field(value, "role") is not None:
        return True
    if _is_pair(value):
        return True
    return _to_role(get_field(value, "type")) is not None and get_field(value, "content") is not None


def _is_pair(source: Any) -> bool:
    """Return whether a message is a pair of role and content. As a list, its role must be known."""
    if not isinstance(source, _LISTS) or len(source) != 2 or not isinstance(source[0], str):
        return False
    return isinstance(source, tuple) or (_to_role(source[0]) is not None and isinstance(source[1], _CONTENT_TYPES))


def _to_role(label: Any) -> Role | None:
    """Return the role that a label names: `user`, `ai`, or `AIMessageChunk` of a LangChain stream."""
    return _ROLES.get(label.lower().removesuffix("messagechunk")) if isinstance(label, str) else None


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
    if _is_pair(source):
        role = _to_role(source[0]) or "user"
        blocks = _parse_content(source[1], (*path, 1))
        if role == "tool":
            blocks = [_with_observations(Block("result", (*path, 1), source[1]), blocks)]
        return Message(source, role, source[0], tuple(blocks))
    label, item_type = get_field(source, "role"), get_field(source, "type")
    if label is None and get_field(source, "kind") in ("request", "response"):
        return _parse_pydantic_message(source, path)
    item_type = item_type if isinstance(item_type, str) else ""
    label = label if isinstance(label, str) else item_type
    for holder in _MESSAGE_HOLDERS if label and isinstance(source, Mapping) and "content" not in source else ():
        if isinstance(inner := source.get(holder), Mapping) and "content" in inner:
            return parse_message(inner, (*path, holder))._replace(source=source)
    blocks = _parse_fields(source, item_type, path)
    role = _to_role(label) or "user"
    if role == "tool" or item_type == "tool" or item_type.endswith("_output"):
        role = "tool" if role == "user" else role
        texts = [block for block in blocks if block.type == "text"]
        remaining = [block for block in blocks if block.type != "text"]
        if texts or all(block.type != "result" for block in remaining):
            blocks = [_with_observations(_build_result(source, path), texts), *remaining]
    elif item_type == "reasoning" or item_type.endswith("_call"):
        role = "assistant" if role == "user" else role
    elif not blocks and label and _to_role(label) is None:
        blocks = [Block("other", path, source)]
    elif role == "user" and any(block.type == "result" for block in blocks):
        role = "user" if any(block.type == "text" and block.slots for block in blocks) else "tool"
    return Message(source, role, label or "user", tuple(blocks))


def _parse_pydantic_message(source: Any, path: Path) -> Message:
    """Parse a request or a response of PydanticAI. A request may hold prompts and results."""
    parts = get_field(source, "parts")
    blocks: list[Block] = []
    for number, part in enumerate(parts[:MAX_MESSAGE_PARTS] if isinstance(parts, _LISTS) else ()):
        blocks += _parse_pydantic_part(part, (*path, "parts", number))
    kinds = {get_field(part, "part_kind") for part in parts} if isinstance(parts, _LISTS) else set()
    role: Role = "assistant"
    if (label := get_field(source, "kind")) == "request":
        # A system prompt makes the whole message one of the system: compression must not remove it.
        is_tool = "user-prompt" not in kinds and any(block.type == "result" for block in blocks)
        role = "system" if "system-prompt" in kinds else "tool" if is_tool else "user"
    return Message(source, role, label, tuple(blocks))


def _parse_pydantic_part(part: Any, path: Path) -> list[Block]:
    kind, content, id = (get_field(part, name) for name in ("part_kind", "content", "tool_call_id"))
    content_path = (*path, "content")
    if kind in ("user-prompt", "text"):
        return _parse_content(content, content_path)
    if kind in ("system-prompt", "compaction") and isinstance(content, str):
        return [Block("text", content_path, content)]  # no slots: compression must not change it
    if kind == "tool-call":
        return [Block("call", (*path, "args"), get_field(part, "args"), id, get_field(part, "tool_name"))]
    if kind == "tool-return" or (kind == "retry-prompt" and get_field(part, "tool_name") is not None):
        is_error = True if get_field(part, "outcome") in (None, "failed", "retried") else None
        block = Block("result", content_path, content, id, get_field(part, "tool_name"), is_error)
        if isinstance(content, Mapping):
            return [block._replace(slots=(TextSlot(content_path, dump_json(content), True),))]
        return [_with_observations(block, _parse_content(content, content_path))]
    return [Block("reasoning" if kind == "thinking" else "other", path, part)]


def parse_messages(sources: Iterable[Any]) -> list[Message]:
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
    # LangChain repeats the calls of content blocks.
    content_ids = {block.id for block in blocks if block.type == "call"}
    calls = get_field(source, "tool_calls")
    for number, call in enumerate(calls if isinstance(calls, _LISTS) else ()):
        block = _parse_tool_call(call, (*path, "tool_calls", number))
        if block.id is None or block.id not in content_ids:
            blocks.append(block)
    legacy = get_field(source, "function_call")
    if isinstance(name := get_field(legacy, "name"), str):
        blocks.append(Block("call", (*path, "function_call", "arguments"), get_field(legacy, "arguments"), name, name))
    blocks += (Block("other", (*path, name), value) for name in _EXTRA_FIELDS if (value := get_field(source, name)))
    return blocks


def has_call_blocks(content: Any) -> bool:
    """Return whether the content of a message contains calls as blocks."""
    blocks = content[:MAX_MESSAGE_PARTS] if isinstance(content, _LISTS) else ()
    return any(get_field(block, "type") in _CALL_BLOCK_TYPES for block in blocks)


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
    if part_type in ("thinking", "reasoning") or get_field(part, "thought") is True:
        return Block("reasoning", path, part)
    if isinstance(text, str) and (not part_type or part_type in _TEXT_BLOCK_TYPES):
        return _text_block((*path, "text"), text)
    if part_type in _CALL_BLOCK_TYPES:
        name, value = _first_field(part, "input", "args", "arguments")
        id = get_field(part, "call_id") or get_field(part, "id")
        return Block("call", (*path, name), value, id, get_field(part, "name"))
    if part_type == "function_result":  # of the Agent Framework
        is_error = True if get_field(part, "exception") else None
        text, path = get_field(part, "result"), (*path, "result")
        slots = (TextSlot(path, text, True),) if isinstance(text, str) and text else ()
        return Block("result", path, text, get_field(part, "call_id"), is_error=is_error, slots=slots)
    if part_type == "tool_result":
        content, is_error = get_field(part, "content"), get_field(part, "is_error")
        block = Block("result", (*path, "content"), content, get_field(part, "tool_use_id"), is_error=is_error)
        return _with_observations(block, _parse_content(content, block.path))
    for name in ("toolUse", "tool_use", "function_call", "functionCall", "toolResult", "tool_result",
                 "function_response", "functionResponse"):  # fmt: skip
        member = get_field(part, name)
        if member is not None and not isinstance(member, str):
            return _parse_member(name, member, (*path, name))
    if isinstance(part, Mapping) and part.get("json") is not None:
        return Block("other", path, part, slots=(TextSlot(path, dump_json(part["json"]), wrap="text"),))
    nested = get_field(part, "content") if part_type == "search_result" else None
    return _with_slots(Block("other", path, part), _parse_content(nested, (*path, "content")))


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
    names = ("tool_call_id", "call_id", "id" if get_field(source, "type") == "local_shell_call_output" else "name")
    _, id = _first_field(source, *names)
    is_error = get_field(source, "is_error")
    if not isinstance(is_error, bool):
        is_error = True if get_field(source, "status") == "error" else None
    return Block("result", (*path, name), value, id, is_error=is_error)


def _with_slots(block: Block, inner_blocks: Iterable[Block]) -> Block:
    return block._replace(slots=tuple(slot for inner in inner_blocks for slot in inner.slots))


def _with_observations(result: Block, blocks: Iterable[Block]) -> Block:
    block = _with_slots(result, blocks)
    return block._replace(slots=tuple(slot._replace(is_observation=True) for slot in block.slots))


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


def answer_text(answer: Any) -> str:
    """Return the text of an answer: of a text, a completion or a message. Empty if there is none."""
    if isinstance(answer, str):
        return answer
    bedrock_message = get_field(get_field(answer, "output"), "message")
    blocks = (parse_answer(answer) or parse_message(bedrock_message or answer)).blocks
    return " ".join(block.value for block in blocks if block.type == "text" and block.value)


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
        # In PydanticAI, the first prompt of the user is in the message with the system prompt.
        is_user = message.role == "user" or (message.role == "system" and message.label == "request")
        if not is_user or message.ids("result") or not message.slots:
            continue
        path = message.slots[0].path
        if isinstance(source, Mapping) and path[0] in _MESSAGE_HOLDERS:
            return {**source, path[0]: user_message([source[path[0]]], text)}
        try:
            if len(path) <= 1 or isinstance(source, tuple):
                new_message = replace_at(source, path, text)
            else:  # keep only this block in the new message
                block = replace_at(get_field(get_field(source, path[0]), path[1]), path[2:], text)
                new_message = replace_at(source, path[:1], [block])
        except TypeError:
            continue
        # Two messages with one id would be the same message to some hosts.
        if isinstance(new_message, dict):
            return {name: value for name, value in new_message.items() if name != "id"}
        if isinstance(get_field(new_message, "id"), str) and get_field(new_message, "model_copy") is not None:
            return replace_at(new_message, ("id",), None)
        return new_message
    form = next((message for message in messages if not isinstance(message, str)), None)
    if messages and form is None:
        return text
    if get_field(form, "parts") is not None:
        return {"role": "user", "parts": [{"text": text}]}
    if _has_bedrock_blocks(form):
        return {"role": "user", "content": [{"text": text}]}
    return {"role": "user", "content": text}


def join_bedrock_messages(sources: Sequence[Any]) -> list[Any]:
    """Join user messages of Bedrock that follow each other, which it rejects. Other forms stay as they are."""
    merged_messages: list[Any] = []
    for source in sources:
        is_pair = merged_messages and get_field(source, "role") == get_field(merged_messages[-1], "role") == "user"
        if is_pair and _has_bedrock_blocks(source) and _has_bedrock_blocks(merged_messages[-1]):
            merged_messages[-1] = {
                **merged_messages[-1],
                "content": [*merged_messages[-1]["content"], *source["content"]],
            }
        else:
            merged_messages.append(source)
    return merged_messages


def _has_bedrock_blocks(message: Any) -> bool:
    """Return whether the content of a message is a list of blocks without a type."""
    blocks = get_field(message, "content") if isinstance(message, Mapping) else None
    if not isinstance(blocks, list) or not blocks:
        return False
    return isinstance(blocks[0], Mapping) and get_field(blocks[0], "type") is None


def to_text(result: Any) -> str:
    """Return a tool's result as the text that a model reads. Never raises."""
    if isinstance(result, str):
        return result
    try:
        return msgspec.json.encode(result, enc_hook=_encode_object).decode()
    except Exception:  # noqa: BLE001 - objects of any class
        try:
            return str(result)
        except Exception:  # noqa: BLE001 - a very large integer, deep nesting
            return f"an object of type {type(result).__name__}, which has no text"


def _encode_object(value: Any) -> Any:
    """Return the fields of a pydantic model, or any other object as its string."""
    to_fields = getattr(value, "model_dump", None)
    return to_fields(mode="json") if callable(to_fields) else str(value)


def dump_json(data: Any) -> str:
    """Return data as JSON with the spaces that most clients write, or as its string."""
    import json  # lazy: few providers need it

    try:
        return json.dumps(data, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(data)


# Agent loops


CallResult = tuple[Any, str, bool]
"""The id of a call, its result as text, and whether it is a failure."""


class MessageFormat:
    """OpenAI's messages in an agent loop: `tool_calls`, answered by messages with the role `tool`."""

    def format_tool(self, name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the definition of a tool for the model."""
        return {"type": "function", "function": {"name": name, "description": description, "parameters": dict(schema)}}

    def add_results(self, messages: list[Any], results: Sequence[CallResult]) -> None:
        """Append the results of the calls of a reply."""
        for id, result, _ in results:
            messages.append({"role": "tool", "tool_call_id": id, "content": result})

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
            block = {"type": "tool_result", "tool_use_id": id, "content": result}
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
