"""Conversations in any provider's format: roles, texts, call and result ids, token estimates.

Supports OpenAI (chat and responses), Anthropic, Google, Bedrock, LangChain, pairs and plain texts, as dictionaries or
objects. Nothing here changes its input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

CONVERSATION = ("messages", "contents", "input", "prompt", "conversation", "history")
"""Argument names that may hold a conversation."""
INSTRUCTIONS = ("system", "instructions", "system_prompt", "system_instruction")
PIECES = 5000
"""Maximum number of blocks or values of one message that are read."""
PICTURE = 1000
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
_LABELS = frozenset({"type", "role", "cache_control", "mime_type", "mimeType", "status"})
_DATA = frozenset({"data", "image_url", "file_data", "inline_data", "inlineData", "bytes", "audio", "signature"})
_INSIDE = (
    "content", "parts", "text", "tool_calls", "function", "function_call", "function_response", "output", "arguments",
    "name", "input", "args", "response",
)  # fmt: skip
_FORM = frozenset(_INSIDE) | _LABELS | {"id", "tool_call_id", "tool_use_id", "call_id", "toolUseId", "summary"}
"""Field names that belong to the structure of a message, not to its content."""
_RESULTS = ("response", "json")
"""Fields in which providers accept tool results as data."""
_TEXTS = ("text", "input_text", "output_text", "refusal")


class Slot(NamedTuple):
    """A text of a message and its path."""

    path: Path
    text: str
    is_observation: bool
    """Whether the text is a tool result."""
    wrap: str = ""
    """If the path holds data: the key under which a replacement text is stored."""


def field(thing: Any, name: str | int) -> Any:
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


def place(arguments: Mapping[str, Any]) -> str | None:
    """Return the name of the argument that holds the conversation."""
    for name in CONVERSATION:
        if name in arguments and isinstance(arguments[name], str | list | tuple | dict):
            return name
    for name, value in arguments.items():
        if isinstance(value, list | tuple) and value and field(value[0], "role") is not None:
            return name
    return None


def role(message: Any) -> Role:
    """Return the role of a message. Tool results have the role "tool", even in a message of the user."""
    if isinstance(message, str):
        return "user"
    if _is_pair(message):
        return _ROLES.get(message[0].lower(), "user")
    said = field(message, "role")
    if not isinstance(said, str):
        said = field(message, "type")
        if not isinstance(said, str):
            return "user"
        if said.endswith("_output"):
            return "tool"
        if said == "reasoning" or said.endswith("_call"):
            return "assistant"
    known = _ROLES.get(said.lower(), "user")
    if known == "user" and answered(message) and not any(not slot.is_observation for slot in slots(message)):
        return "tool"
    return known


def _is_pair(message: Any) -> bool:
    return isinstance(message, tuple) and len(message) == 2 and isinstance(message[0], str)


def _members(message: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the blocks of a message with their paths."""
    for name in ("content", "parts", "output"):
        inside = field(message, name)
        if isinstance(inside, list | tuple):
            yield from (((name, number), block) for number, block in enumerate(inside[:PIECES]))


def _tool_part(block: Any, *names: str) -> tuple[str, Any]:
    """Return the first of these members of a block that is not a text, with its name."""
    for name in names:
        inside = field(block, name)
        if inside is not None and not isinstance(inside, str):
            return name, inside
    return "", None


def slots(message: Any) -> list[Slot]:
    """Return the replaceable texts of a message: what was written, and tool results."""
    if isinstance(message, str):
        return [Slot((), message, False)]
    if _is_pair(message):
        return [Slot((1,), message[1], message[0] in ("tool", "function"))] if isinstance(message[1], str) else []
    named, sort = field(message, "role"), field(message, "type")
    is_tool = named in ("tool", "function", "ipython") or (
        isinstance(sort, str) and (sort == "tool" or sort.endswith("_output"))
    )
    found = [
        Slot((name,), text, is_tool)
        for name in ("content", "output", "text", "parts")
        if isinstance(text := field(message, name), str) and text
    ]
    for path, block in _members(message):
        found.extend(_of_block(block, path, is_tool))
    return found


def _of_block(block: Any, path: Path, is_tool: bool) -> Iterator[Slot]:
    if isinstance(block, str):
        yield Slot(path, block, is_tool)
        return
    sort = field(block, "type")
    if isinstance(text := field(block, "text"), str) and text and (sort in _TEXTS or not isinstance(sort, str)):
        yield Slot((*path, "text"), text, is_tool)
    if sort == "tool_result":
        inside = field(block, "content")
        if isinstance(inside, str):
            yield Slot((*path, "content"), inside, True)
        elif isinstance(inside, list | tuple):
            for number, each in enumerate(inside[:PIECES]):
                yield from _of_block(each, (*path, "content", number), True)
        return
    name, result = _tool_part(block, "toolResult", "tool_result")
    if name:
        for number, each in enumerate(list(field(result, "content") or ())[:PIECES]):
            where = (*path, name, "content", number)
            if isinstance(text := field(each, "text"), str):
                yield Slot((*where, "text"), text, True)
            elif (data := field(each, "json")) is not None:
                yield Slot(where, _dumped(data), True, "text")
    name, result = _tool_part(block, "function_response", "functionResponse")
    if name and isinstance(data := field(result, "response"), Mapping):
        only = next(iter(data.items())) if len(data) == 1 else ("", None)
        if isinstance(only[1], str):
            yield Slot((*path, name, "response", only[0]), only[1], True)
        else:
            yield Slot((*path, name, "response"), _dumped(data), True, "result")


def _as_text(result: Any) -> str:
    """Return a data result as the text a model reads; empty if it is text already."""
    if not isinstance(result, Mapping) or (len(result) == 1 and isinstance(next(iter(result.values())), str)):
        return ""
    return _dumped(result)


def _dumped(data: Any) -> str:
    import json  # lazy: few providers need it

    try:
        return json.dumps(data, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(data)


def called(message: Any) -> list[str]:
    """Return the ids of the calls in a message, or tool names for providers without ids."""
    found: list[Any] = []
    calls = field(message, "tool_calls")
    if isinstance(calls, list | tuple):
        found += [field(call, "id") for call in calls]
    if isinstance(legacy := field(field(message, "function_call"), "name"), str):
        found.append(legacy)
    sort = field(message, "type")
    if isinstance(sort, str) and sort.endswith("_call"):
        found.append(field(message, "call_id") or field(message, "id"))
    for _, block in _members(message):
        if field(block, "type") == "tool_use":
            found.append(field(block, "id"))
        for names in (("toolUse", "tool_use"), ("function_call", "functionCall")):
            _, call = _tool_part(block, *names)
            if call is not None:
                found.append(field(call, "toolUseId") or field(call, "id") or field(call, "name"))
    return _ids(found)


def answered(message: Any) -> list[str]:
    """Return the ids of the calls whose results a message holds."""
    found: list[Any] = [field(message, "tool_call_id")]
    sort = field(message, "type")
    if isinstance(sort, str) and sort.endswith("_output"):
        found.append(field(message, "call_id"))
    if field(message, "role") == "function" and field(message, "tool_call_id") is None:
        found.append(field(message, "name"))
    for _, block in _members(message):
        if field(block, "type") == "tool_result":
            found.append(field(block, "tool_use_id"))
        for names in (("toolResult", "tool_result"), ("function_response", "functionResponse")):
            _, result = _tool_part(block, *names)
            if result is not None:
                found.append(field(result, "toolUseId") or field(result, "id") or field(result, "name"))
    return _ids(found)


def _ids(found: list[Any]) -> list[str]:
    return list(dict.fromkeys(each for each in found if isinstance(each, str) and each))


def exchanges(messages: Sequence[Any]) -> list[range]:
    """Group messages into exchanges: a model message with the results of its calls.

    Remove an exchange as a whole: providers reject a call without its result.
    """
    parts: list[range] = []
    open_calls: dict[str, list[int]] = {}
    before: Role | None = None
    for number, message in enumerate(messages):
        who, answers = role(message), answered(message)
        opener = [open_calls[each].pop() for each in answers if open_calls.get(each)]
        if parts and (opener or (who == "tool" and before in ("assistant", "tool")) or (who == before == "assistant")):
            first = min([*opener, parts[-1].start])
            while len(parts) > 1 and parts[-1].start > first:
                parts.pop()
            parts[-1] = range(parts[-1].start, number + 1)
        else:
            parts.append(range(number, number + 1))
        for each in called(message):
            open_calls.setdefault(each, []).append(parts[-1].start)
        before = "tool" if answers else who
    return parts


def unpaired(messages: Sequence[Any]) -> tuple[list[str], list[str]]:
    """Return the calls without a result, and the results without a call."""
    waiting: list[str] = []
    unasked: list[str] = []
    for message in messages:
        for each in answered(message):
            if each in waiting:
                waiting.remove(each)
            else:
                unasked.append(each)
        waiting.extend(called(message))
    return waiting, unasked


def replaced(thing: Any, path: Path, value: Any) -> Any:
    """Return a copy with another value at this path. Raises TypeError if the object cannot be copied."""
    if not path:
        return value
    name, rest = path[0], path[1:]
    inner = replaced(field(thing, name), rest, value) if rest else value
    if isinstance(thing, Mapping):
        return {**thing, name: inner}
    if isinstance(thing, list | tuple):
        twin = list(thing)
        twin[int(name)] = inner
        return type(thing)(twin)
    name = str(name)
    if callable(copying := field(thing, "model_copy")):
        return copying(update={name: inner})
    import copy  # lazy: few conversations hold such objects

    try:
        twin_object = copy.copy(thing)
        try:
            setattr(twin_object, name, inner)
        except (AttributeError, TypeError):
            object.__setattr__(twin_object, name, inner)  # a frozen dataclass; the copy is not shared yet
        return twin_object
    except Exception as error:
        raise TypeError(f"{type(thing).__name__} cannot be copied with another {name}") from error


def spoken(messages: Sequence[Any], text: str) -> Any:
    """Build a user message in the format of this conversation."""
    for message in reversed(messages):
        if role(message) != "user" or answered(message) or (said := slots(message)) == []:
            continue
        first = said[0]
        try:
            if len(first.path) <= 1 or isinstance(message, tuple):
                made = replaced(message, first.path, text)
            else:  # keep only this block in the new message
                block = replaced(field(field(message, first.path[0]), first.path[1]), first.path[2:], text)
                made = replaced(message, first.path[:1], [block])
        except TypeError:
            continue
        return {name: value for name, value in made.items() if name != "id"} if isinstance(made, dict) else made
    form = next((message for message in messages if not isinstance(message, str)), None)
    if messages and form is None:
        return text
    if field(form, "parts") is not None:
        return {"role": "user", "parts": [{"text": text}]}
    blocks = field(form, "content")
    if isinstance(blocks, list) and blocks and field(blocks[0], "type") is None and isinstance(blocks[0], Mapping):
        return {"role": "user", "content": [{"text": text}]}  # Bedrock content blocks have no type
    return {"role": "user", "content": text}


_REST = r"[A-Za-z]{1,9}|[^\w\s]{1,2}|_|\n\s*|  +|[^\x00-\x7f]"
_WORDS = re.compile(rf"\d{{1,3}}|{_REST}")
_DIGITS = re.compile(rf"\d|{_REST}")
DENSITY = 1.02
"""Average tokens per matched piece for common tokenizers, measured on prose, code, logs and JSON."""
SAMPLED = 12_000
"""Longer texts are estimated from three samples."""


def by_words(text: str) -> float:
    """Estimate the tokens of a text from word pieces, digit groups, punctuation and indentation."""
    return _pieces(_WORDS, text)


def by_digits(text: str) -> float:
    """Estimate the tokens of a text for tokenizers with one token per digit."""
    return _pieces(_DIGITS, text)


def _pieces(pattern: re.Pattern[str], text: str) -> float:
    if len(text) > SAMPLED:
        third, middle = SAMPLED // 3, len(text) // 2
        sample = text[:third] + text[middle : middle + third] + text[-third:]
        return DENSITY * len(pattern.findall(sample)) * len(text) / len(sample)
    return DENSITY * len(pattern.findall(text))


def by_letters(text: str) -> float:
    """Estimate the tokens of a text as one per four characters."""
    return len(text) / 4


def heaviness(value: Any, weigh: Callable[[str], float] = by_words, *, is_sent: bool = False) -> float:
    """Estimate the tokens of a message, a schema or a whole conversation.

    Most providers count the text that the model reads. `is_serialized` counts the request as JSON, with all names,
    punctuation and escapes.
    """
    total = 0.0
    waiting = [value]
    for _ in range(PIECES * 20):
        if not waiting:
            break
        each = waiting.pop()
        if isinstance(each, str):
            if each.startswith("data:") and len(each) > 1000:
                total += PICTURE
            else:
                total += weigh(escaped(each) if is_sent else each)
        elif isinstance(each, bytes):
            total += PICTURE
        elif isinstance(each, list | tuple):
            total += weigh("[]") if is_sent else 1
            waiting.extend(each[:PIECES])
        elif isinstance(each, bool | int | float):
            total += weigh(str(each)) if is_sent else 1
        elif each is not None:
            is_form = not isinstance(each, Mapping)
            total += weigh("{}") if is_sent else 0
            for name, inside in (_members_of(each) if is_form else each).items():
                if is_sent:
                    total += weigh(f'"{name}": , ')
                else:
                    total += 0.4 if is_form or name in _FORM else len(str(name)) / 4 + 1
                if name in _DATA and not isinstance(inside, int | float):
                    total += PICTURE
                elif not is_sent and name in _RESULTS and (data := _as_text(inside)):
                    total += weigh(data)
                elif is_sent or name not in _LABELS:
                    waiting.append(inside)
    return total


_OF_OBJECTS = (*_INSIDE, "type", "role", "id", "tool_call_id", "tool_use_id", "call_id")


def _members_of(thing: Any) -> dict[str, Any]:
    """Return the fields of a message object under their names in a request."""
    return {name: inside for name in _OF_OBJECTS if (inside := field(thing, name)) is not None}


def escaped(text: str) -> str:
    """Return a text as a JSON string."""
    return _dumped(text)
