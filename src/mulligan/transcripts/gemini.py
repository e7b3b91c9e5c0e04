"""Reader for Gemini CLI logs: one document per session, or one message per line.

Files: `~/.gemini/tmp/PROJECT/chats/session-TIME-ID.json[l]`. A model message holds its calls with their results. A
message may be written again when a call ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from mulligan.core.records import History
from mulligan.transcripts.log_lines import LogLines, decode_line, decode_raw
from mulligan.transcripts.run_builder import ReaderState, RunBuilder, split_server, to_milliseconds

NAME = "gemini-cli"
_COMPRESSED = re.compile(r"(?:chat history|context) (?:was |has been )?compressed", re.IGNORECASE)


class _GeminiCall(msgspec.Struct, gc=False):
    id: str = ""
    name: str = ""
    args: Any = None
    result: msgspec.Raw = msgspec.Raw()
    status: str = ""
    timestamp: str | None = None


class _GeminiMessage(msgspec.Struct, gc=False):
    id: str | None = None
    type: str = ""
    timestamp: str | None = None
    content: msgspec.Raw = msgspec.Raw()
    model: str | None = None
    calls: list[_GeminiCall] | None = msgspec.field(default=None, name="toolCalls")
    session: str | None = msgspec.field(default=None, name="sessionId")
    kind: str | None = None
    messages: list[msgspec.Raw] | None = None


_decoder = msgspec.json.Decoder(_GeminiMessage)


def recognizes(head: bytes) -> bool:
    return b'"projectHash"' in head and b'"sessionId"' in head and b'"parentUuid"' not in head


def read(lines: LogLines, state: ReaderState) -> Iterator[History]:
    run = RunBuilder(state, NAME, lines.path.name)
    finished_ids: set[str] = set()
    """Calls that were read with their result: a message is written again as it grows."""
    for line in _messages(lines, state):
        message = decode_line(line, _decoder)
        if message is None:
            state.unrecognized_lines += 1
            continue
        if message.session and not run.calls:
            run = RunBuilder(state, NAME, message.session, message.kind or "")
            if message.kind == "subagent":
                run.agent = f"{NAME} subagent"
        _add_message(message, run, finished_ids, state.keeps_results)
    history = run.build_history()
    if history is not None:
        yield history


def _messages(lines: LogLines, state: ReaderState) -> Iterator[bytes]:
    """Yield the messages, from separate lines or from one document."""
    if not lines.path.name.removesuffix(".gz").endswith(".jsonl"):
        data = lines.read_all()
        document = decode_line(data, _decoder) if data else None
        if document is not None:
            state.line_count += 1
            yield msgspec.json.encode({"sessionId": document.session, "kind": document.kind})
            for message in document.messages or ():
                yield bytes(message)
            return
        if data is None:
            state.unrecognized_lines += 1
            return
        lines.head(0)  # not one document: read it line by line from the start
    for line in lines:
        state.line_count += 1
        yield line


def _add_message(message: _GeminiMessage, run: RunBuilder, finished_ids: set[str], keeps_results: bool) -> None:
    timestamp = to_milliseconds(message.timestamp)
    run.note_time(timestamp)
    text = ""
    if message.type != "gemini" and (message.type != "user" or not run.context):
        text = _text(decode_raw(message.content))
    if message.type == "user":
        run.set_context(text)
    elif message.type == "gemini":
        run.model = message.model or run.model
        run.model_answered(timestamp)
    elif message.type == "error" and text:
        run.model_failed(text[:8192], timestamp)
    elif message.type == "info" and _COMPRESSED.search(text[:300]):
        run.add_compaction(timestamp)
    for call in message.calls or ():
        if call.status not in ("success", "error", "cancelled") or call.id in finished_ids:
            continue  # still in progress: it will be written again
        finished_ids.add(call.id)
        ended = to_milliseconds(call.timestamp) or timestamp
        name, server = split_server(call.name)
        run.start_call(call.id, name, call.args, timestamp, server=server)
        if call.status == "cancelled":
            run.end_call(call.id, None, False, ended, outcome="blocked")
        else:
            has_failed = call.status == "error"
            response = _unwrap_response(decode_raw(call.result)) if has_failed or keeps_results else None
            run.end_call(call.id, response, has_failed, ended)


def _unwrap_response(result: Any) -> Any:
    """Return the response of a function without the parts that wrap it."""
    parts = result if isinstance(result, list) else [result]
    responses = []
    for part in parts[:20]:
        response = part.get("functionResponse") if isinstance(part, dict) else None
        inner = response.get("response") if isinstance(response, dict) else part
        if isinstance(inner, dict):
            inner = inner.get("error") or inner.get("output") or inner.get("text") or inner
        responses.append(inner)
    return responses[0] if len(responses) == 1 else responses


def _text(content: Any) -> str:
    if isinstance(content, list):
        texts = (block.get("text") if isinstance(block, dict) else block for block in content[:20])
        content = next((text for text in texts if isinstance(text, str)), "")
    return content if isinstance(content, str) else ""
