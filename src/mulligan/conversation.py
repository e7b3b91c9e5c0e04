"""A conversation in any provider's form: who says what, which result answers which call, and the same with other texts.

OpenAI's chat and responses, Anthropic, Google, Bedrock, LangChain, pairs and plain texts; dictionaries and objects.
Nothing here changes what it is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

CONVERSATION = ("messages", "contents", "input", "prompt", "conversation", "history")
"""Names under which a conversation is given."""
INSTRUCTIONS = ("system", "instructions", "system_prompt", "system_instruction")
PIECES = 5000
"""Values of one message that are looked at."""
PICTURE = 1000
"""Tokens of a picture or a file: what it costs has nothing to do with the length of its data."""

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
"""Names that belong to the form of a message and not to what is in it."""
_RESULTS = ("response", "json")
"""Where providers take the results of tools as data."""
_TEXTS = ("text", "input_text", "output_text", "refusal")


class Slot(NamedTuple):
    """A text of a message and where it stands."""

    path: Path
    text: str
    is_observation: bool
    """Whether a tool said it."""
    wrap: str = ""
    """Where what stands there is no text but data: the key under which a text can stand instead."""


def field(thing: Any, name: str | int) -> Any:
    """A member of a dictionary, a list or an object, or None: a stranger's property may do anything."""
    if thing is None:
        return None
    try:
        if type(thing) is dict or isinstance(thing, Mapping):
            return thing.get(name)
        if isinstance(name, int):
            return thing[name]
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - whatever it raises, it is not there
        return None


def place(arguments: Mapping[str, Any]) -> str | None:
    """The name of the argument that holds the conversation."""
    for name in CONVERSATION:
        if name in arguments and isinstance(arguments[name], str | list | tuple | dict):
            return name
    for name, value in arguments.items():
        if isinstance(value, list | tuple) and value and field(value[0], "role") is not None:
            return name
    return None


def role(message: Any) -> Role:
    """Who speaks. The results of tools are the tool's words, also where they are handed in under the user's name."""
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
    """The blocks of a message, with where they stand."""
    for name in ("content", "parts", "output"):
        inside = field(message, name)
        if isinstance(inside, list | tuple):
            yield from (((name, number), block) for number, block in enumerate(inside[:PIECES]))


def _tool_part(block: Any, *names: str) -> tuple[str, Any]:
    """The part of a block with one of these names, where it has one."""
    for name in names:
        inside = field(block, name)
        if inside is not None and not isinstance(inside, str):
            return name, inside
    return "", None


def slots(message: Any) -> list[Slot]:
    """The texts of a message that could be others: what was said, and what tools answered."""
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
    """What a tool answered with data, as the text that it becomes for a model; empty where it is a text already."""
    if not isinstance(result, Mapping) or (len(result) == 1 and isinstance(next(iter(result.values())), str)):
        return ""
    return _dumped(result)


def _dumped(data: Any) -> str:
    import json  # of few providers only

    try:
        return json.dumps(data, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(data)


def called(message: Any) -> list[str]:
    """The ids of the calls a message makes; where a provider has none, the names of the tools."""
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
    """The ids of the calls a message answers."""
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
    """The conversation in the parts that belong together: a message of the model with the results of its calls.

    Who leaves one message of a part out must leave out all of it: no provider takes a call without its result.
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
    """Calls that nobody answers, and answers that nobody asked for."""
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
    """The same with another value in this place; the original is left as it was. TypeError where that cannot be."""
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
    import copy  # few conversations are of other objects

    try:
        twin_object = copy.copy(thing)
        try:
            setattr(twin_object, name, inner)
        except (AttributeError, TypeError):
            object.__setattr__(twin_object, name, inner)  # a frozen dataclass, and this one is nobody's yet
        return twin_object
    except Exception as error:
        raise TypeError(f"{type(thing).__name__} cannot be copied with another {name}") from error


def spoken(messages: Sequence[Any], text: str) -> Any:
    """A message of the user in the form of this conversation."""
    for message in reversed(messages):
        if role(message) != "user" or answered(message) or (said := slots(message)) == []:
            continue
        first = said[0]
        try:
            if len(first.path) <= 1 or isinstance(message, tuple):
                made = replaced(message, first.path, text)
            else:  # the only block of its own message
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
        return {"role": "user", "content": [{"text": text}]}  # Bedrock has no other
    return {"role": "user", "content": text}


_REST = r"[A-Za-z]{1,9}|[^\w\s]{1,2}|_|\n\s*|  +|[^\x00-\x7f]"
_WORDS = re.compile(rf"\d{{1,3}}|{_REST}")
_DIGITS = re.compile(rf"\d|{_REST}")
DENSITY = 1.02
"""Tokens of the usual tokenizers to each of these pieces, as measured on prose, code, logs and JSON."""
SAMPLED = 12_000
"""Characters. Of a longer text three parts stand for the whole."""


def by_words(text: str) -> float:
    """About how many tokens a text has, as tokenizers count: pieces of words, groups of digits, signs, indents."""
    return _pieces(_WORDS, text)


def by_digits(text: str) -> float:
    """The same for tokenizers that take each digit for itself."""
    return _pieces(_DIGITS, text)


def _pieces(pattern: re.Pattern[str], text: str) -> float:
    if len(text) > SAMPLED:
        third, middle = SAMPLED // 3, len(text) // 2
        sample = text[:third] + text[middle : middle + third] + text[-third:]
        return DENSITY * len(pattern.findall(sample)) * len(text) / len(sample)
    return DENSITY * len(pattern.findall(text))


def by_letters(text: str) -> float:
    """About as many as those count who take four letters for a token."""
    return len(text) / 4


def heaviness(value: Any, weigh: Callable[[str], float] = by_words, *, is_sent: bool = False) -> float:
    """About how many tokens a message, a schema or a whole conversation has.

    Most providers count what a model reads of it. `is_sent` is for those who count the request as it was sent: JSON,
    with every name, sign and escape.
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
    """What there is of a message that is an object, under the names it would be sent with."""
    return {name: inside for name in _OF_OBJECTS if (inside := field(thing, name)) is not None}


def escaped(text: str) -> str:
    """A text as it stands in JSON."""
    return _dumped(text)
