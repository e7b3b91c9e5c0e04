"""Reader for conversations that programs store: lists of messages in OpenAI's or Anthropic's format.

A file is one list, an object with `messages`, one of these per line, or one message per line. A result without an error
flag counts as failed only if its text clearly reports an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from mulligan.classify.tool_results import is_error_result
from mulligan.core.records import History
from mulligan.transcripts.log_lines import LogLines, decode_line
from mulligan.transcripts.run_builder import ReaderState, RunBuilder, to_milliseconds

NAME = "messages"
_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_LISTS = ("messages", "input", "items", "conversation", "contents")
_IDS = ("session_id", "conversation_id", "thread_id", "run_id", "id")


def recognizes(head: bytes) -> bool:
    if not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
        return False  # not JSON, for example source code that mentions messages
    if b'"role"' in head and (b'"content"' in head or b'"tool_calls"' in head):
        return True
    return b'"call_id"' in head and b'"function_call' in head and b'"payload"' not in head


def read(lines: LogLines, state: ReaderState) -> Iterator[History]:
    single_messages: list[dict[str, Any]] = []
    """Messages on lines of their own: the file is one conversation."""
    conversation_count = 0
    for value in _values(lines, state):
        conversation, metadata = _conversation(value)
        if conversation is not None:
            conversation_count += 1
            yield from _read_conversation(
                conversation, metadata, f"{lines.path.name} {conversation_count}", lines, state
            )
        elif isinstance(value, dict) and ("role" in value or "call_id" in value):
            single_messages.append(value)
        else:
            state.unrecognized_lines += 1
    if single_messages:
        yield from _read_conversation(single_messages, {}, lines.path.name, lines, state)


def _values(lines: LogLines, state: ReaderState) -> Iterator[Any]:
    """Yield the JSON values of a file: one per line, or the file as a whole."""
    is_document = False
    for number, line in enumerate(lines):
        state.line_count += 1
        value = decode_line(line, _any)
        if value is not None:
            yield value
        elif number == 0:
            is_document = True  # a list or object that spans several lines
            break
        else:
            state.unrecognized_lines += 1
    if is_document:
        data = lines.read_all()
        value = decode_line(data, _any) if data else None
        if value is None:
            state.unrecognized_lines += 1
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


def _read_conversation(
    conversation: list[Any], metadata: dict[str, Any], default_id: str, lines: LogLines, state: ReaderState
) -> Iterator[History]:
    conversation_id = next((metadata[name] for name in _IDS if isinstance(metadata.get(name), str)), "")
    first = hashlib.sha256(msgspec.json.encode(conversation[:1])).hexdigest() if conversation else ""
    run = RunBuilder(state, NAME, conversation_id or default_id, "" if conversation_id else first)
    run.agent = metadata["agent"] if isinstance(metadata.get("agent"), str) else NAME
    run.model = metadata["model"] if isinstance(metadata.get("model"), str) else ""
    for message in conversation:
        if isinstance(message, dict):
            _add_message(message, run)
        else:
            state.unrecognized_lines += 1
    if not run.started:
        run.note_time(lines.modified_at)  # no message has a timestamp: use that of the file
    history = run.build_history()
    if history is not None:
        yield history


def _add_message(message: dict[str, Any], run: RunBuilder) -> None:
    timestamp = next(
        (to_milliseconds(message.get(name)) for name in ("timestamp", "created_at", "ts", "time") if name in message), 0
    )
    run.note_time(timestamp)
    if isinstance(message.get("model"), str):
        run.model = message["model"]
    role, content = message.get("role"), message.get("content")
    if message.get("type") in ("function_call", "custom_tool_call"):
        _start_call(
            message.get("call_id"), message.get("name"), message.get("arguments", message.get("input")), run, timestamp
        )
    elif message.get("type") in ("function_call_output", "custom_tool_call_output"):
        _end_call(message.get("call_id"), message.get("output"), None, run, timestamp)
    elif role in ("tool", "function"):
        flag = message.get("is_error", True if message.get("status") == "error" else None)
        _end_call(message.get("tool_call_id", message.get("name")), content, flag, run, timestamp)
    for call in message.get("tool_calls") or () if role == "assistant" else ():
        if isinstance(call, dict):
            function: Any = call.get("function") if isinstance(call.get("function"), dict) else call
            _start_call(
                call.get("id"), function.get("name"), function.get("arguments", function.get("args")), run, timestamp
            )
    older = message.get("function_call")
    if role == "assistant" and isinstance(older, dict):
        _start_call(older.get("name"), older.get("name"), older.get("arguments"), run, timestamp)
    if isinstance(content, str):
        if role == "user":
            run.set_context(content)
    elif isinstance(content, list) and role in ("user", "assistant"):
        for block in content:
            if isinstance(block, dict):
                _add_block(block, role, run, timestamp)


def _add_block(block: dict[str, Any], role: str, run: RunBuilder, timestamp: int) -> None:
    match block.get("type"):
        case "tool_use":
            _start_call(block.get("id"), block.get("name"), block.get("input"), run, timestamp)
        case "tool_result":
            _end_call(block.get("tool_use_id"), block.get("content"), block.get("is_error"), run, timestamp)
        case "text" | "input_text" if role == "user" and isinstance(block.get("text"), str):
            run.set_context(block["text"])


def _start_call(id: Any, name: Any, arguments: Any, run: RunBuilder, timestamp: int) -> None:
    if not isinstance(id, str) or not isinstance(name, str):
        return
    if isinstance(arguments, str):
        arguments = decode_line(arguments.encode("utf-8", "replace"), _any) or {"input": arguments}
    run.start_call(id, name, arguments, timestamp)


def _end_call(id: Any, answer: Any, flag: Any, run: RunBuilder, timestamp: int) -> None:
    if isinstance(id, str):
        is_bad = (
            flag
            if isinstance(flag, bool)
            else is_error_result({"content": answer} if isinstance(answer, list) else answer)
        )
        run.end_call(id, answer, is_bad, timestamp)
