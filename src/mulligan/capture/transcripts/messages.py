"""Reader for conversations that programs store: lists of messages in OpenAI's or Anthropic's format.

A file is one list, an object with `messages`, one of these per line, or one message per line. A result without an error
flag counts as failed only if its text clearly reports an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from mulligan.capture.transcripts.gathering import Gathering, Reading, milliseconds
from mulligan.capture.transcripts.lines import Lines, decoded
from mulligan.classify.results import has_failed
from mulligan.records import History

NAME = "messages"
_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_LISTS = ("messages", "input", "items", "conversation", "contents")
_IDS = ("session_id", "conversation_id", "thread_id", "run_id", "id")


def recognises(head: bytes) -> bool:
    if not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
        return False  # not JSON, for example source code that mentions messages
    if b'"role"' in head and (b'"content"' in head or b'"tool_calls"' in head):
        return True
    return b'"call_id"' in head and b'"function_call' in head and b'"payload"' not in head


def read(lines: Lines, reading: Reading) -> Iterator[History]:
    alone: list[dict[str, Any]] = []
    """Messages on lines of their own: the file is one conversation."""
    found = 0
    for value in _values(lines, reading):
        conversation, about = _conversation(value)
        if conversation is not None:
            found += 1
            yield from _read(conversation, about, f"{lines.path.name} {found}", lines, reading)
        elif isinstance(value, dict) and ("role" in value or "call_id" in value):
            alone.append(value)
        else:
            reading.unknown += 1
    if alone:
        yield from _read(alone, {}, lines.path.name, lines, reading)


def _values(lines: Lines, reading: Reading) -> Iterator[Any]:
    """Yield the JSON values of a file: one per line, or the file as a whole."""
    is_document = False
    for number, line in enumerate(lines):
        reading.lines += 1
        value = decoded(line, _any)
        if value is not None:
            yield value
        elif number == 0:
            is_document = True  # a list or object that spans several lines
            break
        else:
            reading.unknown += 1
    if is_document:
        data = lines.whole()
        value = decoded(data, _any) if data else None
        if value is None:
            reading.unknown += 1
        else:
            yield value


def _conversation(value: Any) -> tuple[list[Any] | None, dict[str, Any]]:
    if isinstance(value, list):
        return value, {}
    if isinstance(value, dict):
        for name in _LISTS:
            if isinstance(value.get(name), list):
                return value[name], value
    return None, {}


def _read(
    conversation: list[Any], about: dict[str, Any], place: str, lines: Lines, reading: Reading
) -> Iterator[History]:
    named = next((about[name] for name in _IDS if isinstance(about.get(name), str)), "")
    first = hashlib.sha256(msgspec.json.encode(conversation[:1])).hexdigest() if conversation else ""
    run = Gathering(reading, NAME, named or place, "" if named else first)
    run.agent = about["agent"] if isinstance(about.get("agent"), str) else NAME
    run.model = about["model"] if isinstance(about.get("model"), str) else ""
    for message in conversation:
        if isinstance(message, dict):
            _message(message, run)
        else:
            reading.unknown += 1
    if not run.started:
        run.at(lines.changed)  # no message has a timestamp: use that of the file
    history = run.history()
    if history is not None:
        yield history


def _message(message: dict[str, Any], run: Gathering) -> None:
    moment = next(
        (milliseconds(message.get(name)) for name in ("timestamp", "created_at", "ts", "time") if name in message), 0
    )
    run.at(moment)
    if isinstance(message.get("model"), str):
        run.model = message["model"]
    role, content = message.get("role"), message.get("content")
    if message.get("type") in ("function_call", "custom_tool_call"):
        _called(
            message.get("call_id"), message.get("name"), message.get("arguments", message.get("input")), run, moment
        )
    elif message.get("type") in ("function_call_output", "custom_tool_call_output"):
        _answered(message.get("call_id"), message.get("output"), None, run, moment)
    elif role in ("tool", "function"):
        flag = message.get("is_error", True if message.get("status") == "error" else None)
        _answered(message.get("tool_call_id", message.get("name")), content, flag, run, moment)
    for call in message.get("tool_calls") or () if role == "assistant" else ():
        if isinstance(call, dict):
            function: Any = call.get("function") if isinstance(call.get("function"), dict) else call
            _called(call.get("id"), function.get("name"), function.get("arguments", function.get("args")), run, moment)
    older = message.get("function_call")
    if role == "assistant" and isinstance(older, dict):
        _called(older.get("name"), older.get("name"), older.get("arguments"), run, moment)
    if isinstance(content, str):
        if role == "user":
            run.says(content)
    elif isinstance(content, list) and role in ("user", "assistant"):
        for block in content:
            if isinstance(block, dict):
                _block(block, role, run, moment)


def _block(block: dict[str, Any], role: str, run: Gathering, moment: int) -> None:
    match block.get("type"):
        case "tool_use":
            _called(block.get("id"), block.get("name"), block.get("input"), run, moment)
        case "tool_result":
            _answered(block.get("tool_use_id"), block.get("content"), block.get("is_error"), run, moment)
        case "text" | "input_text" if role == "user" and isinstance(block.get("text"), str):
            run.says(block["text"])


def _called(id: Any, name: Any, arguments: Any, run: Gathering, moment: int) -> None:
    if not isinstance(id, str) or not isinstance(name, str):
        return
    if isinstance(arguments, str):
        arguments = decoded(arguments.encode("utf-8", "replace"), _any) or {"input": arguments}
    run.called(id, name, arguments, moment)


def _answered(id: Any, said: Any, flag: Any, run: Gathering, moment: int) -> None:
    if isinstance(id, str):
        is_bad = flag if isinstance(flag, bool) else has_failed({"content": said} if isinstance(said, list) else said)
        run.answered(id, said, is_bad, moment)
