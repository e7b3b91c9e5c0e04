"""Reader for conversations that programs store: lists of messages in OpenAI's or Anthropic's format.

A file is one list, an object with `messages`, one of these per line, or one message per line. A result without an error
flag counts as failed only if it states an error and its tool returns no content, such as files or pages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from mulligan.classify.result_verdict import judge_result
from mulligan.core.conversation import parse_message
from mulligan.core.records import History
from mulligan.transcripts.log_lines import LogLines, parse_json
from mulligan.transcripts.run_builder import ReaderState, RunBuilder, to_milliseconds

NAME = "messages"
_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_LISTS = ("messages", "input", "items", "conversation", "contents")
_TIMES = ("timestamp", "created_at", "ts", "time")
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
    for value in state.decode_document(lines, _any):
        conversation, metadata = _conversation(value)
        if conversation is not None:
            conversation_count += 1
            name = f"{lines.path.name} {conversation_count}"
            yield from _read_conversation(conversation, metadata, name, lines, state)
        elif isinstance(value, dict) and ("role" in value or "call_id" in value):
            single_messages.append(value)
        else:
            state.skip_line(lines, "no conversation")
    if single_messages:
        yield from _read_conversation(single_messages, {}, lines.path.name, lines, state)


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
            state.skip_line(lines, "no message of a conversation")
    if not run.started:
        run.note_time(lines.modified_at)  # no message has a timestamp: use that of the file
    yield from run.build_histories()


def _add_message(message: dict[str, Any], run: RunBuilder) -> None:
    timestamp = to_milliseconds(next((message[name] for name in _TIMES if name in message), 0))
    run.note_time(timestamp)
    if isinstance(message.get("model"), str):
        run.model = message["model"]
    parsed = parse_message(message)
    for block in parsed.blocks:
        if block.type == "call" and isinstance(block.id, str) and isinstance(block.name, str):
            arguments = parse_json(block.value)
            run.start_call(
                block.id, block.name, {"input": arguments} if isinstance(arguments, str) else arguments, timestamp
            )
        elif block.type == "result" and isinstance(block.id, str):
            content = {"content": block.value} if isinstance(block.value, list) else block.value
            has_failed = block.is_error
            if not isinstance(has_failed, bool):
                verdict = judge_result(
                    content, category=run.find_category(block.id), arguments=run.find_arguments(block.id)
                )
                has_failed = verdict.judgment == "failure"
            run.end_call(block.id, block.value, has_failed, timestamp)
        elif block.type == "text" and parsed.label == "user":
            run.set_context(block.value)
