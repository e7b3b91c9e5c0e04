"""Reader for Gemini CLI logs: one document per session, or one message per line.

Files: `~/.gemini/tmp/PROJECT/chats/session-TIME-ID.json[l]`. A model message holds its calls with their results. A
message may be written again when a call ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from mulligan.capture.transcripts.gathering import Gathering, Reading, milliseconds, split_server
from mulligan.capture.transcripts.lines import Lines, decoded, opened_value
from mulligan.records import History

NAME = "gemini-cli"
_COMPRESSED = re.compile(r"(?:chat history|context) (?:was |has been )?compressed", re.IGNORECASE)


class _Call(msgspec.Struct, gc=False):
    id: str = ""
    name: str = ""
    args: Any = None
    result: msgspec.Raw = msgspec.Raw()
    status: str = ""
    timestamp: str | None = None


class _Message(msgspec.Struct, gc=False):
    id: str | None = None
    type: str = ""
    timestamp: str | None = None
    content: msgspec.Raw = msgspec.Raw()
    model: str | None = None
    calls: list[_Call] | None = msgspec.field(default=None, name="toolCalls")
    session: str | None = msgspec.field(default=None, name="sessionId")
    kind: str | None = None
    messages: list[msgspec.Raw] | None = None


_decoder = msgspec.json.Decoder(_Message)


def recognises(head: bytes) -> bool:
    return b'"projectHash"' in head and b'"sessionId"' in head and b'"parentUuid"' not in head


def read(lines: Lines, reading: Reading) -> Iterator[History]:
    run = Gathering(reading, NAME, lines.path.name)
    seen: set[str] = set()
    """Calls that were read with their result: a message is written again as it grows."""
    for line in _messages(lines, reading):
        message = decoded(line, _decoder)
        if message is None:
            reading.unknown += 1
            continue
        if message.session and not run.calls:
            run = Gathering(reading, NAME, message.session, message.kind or "")
            if message.kind == "subagent":
                run.agent = f"{NAME} subagent"
        _message(message, run, seen, reading.keeps_results)
    history = run.history()
    if history is not None:
        yield history


def _messages(lines: Lines, reading: Reading) -> Iterator[bytes]:
    """Yield the messages, from separate lines or from one document."""
    if not lines.path.name.removesuffix(".gz").endswith(".jsonl"):
        data = lines.whole()
        document = decoded(data, _decoder) if data else None
        if document is not None:
            reading.lines += 1
            yield msgspec.json.encode({"sessionId": document.session, "kind": document.kind})
            for each in document.messages or ():
                yield bytes(each)
            return
        if data is None:
            reading.unknown += 1
            return
        lines.head(0)  # not one document: read it line by line from the start
    for line in lines:
        reading.lines += 1
        yield line


def _message(message: _Message, run: Gathering, seen: set[str], keeps_results: bool) -> None:
    moment = milliseconds(message.timestamp)
    run.at(moment)
    text = ""
    if message.type != "gemini" and (message.type != "user" or not run.context):
        text = _text(opened_value(message.content))
    if message.type == "user":
        run.says(text)
    elif message.type == "gemini":
        run.model = message.model or run.model
        run.model_answered(moment)
    elif message.type == "error" and text:
        run.model_failed(text[:8192], moment)
    elif message.type == "info" and _COMPRESSED.search(text[:300]):
        run.compacted(moment)
    for call in message.calls or ():
        if call.status not in ("success", "error", "cancelled") or call.id in seen:
            continue  # still in progress: it will be written again
        seen.add(call.id)
        ended = milliseconds(call.timestamp) or moment
        name, server = split_server(call.name)
        run.called(call.id, name, call.args, moment, server=server)
        if call.status == "cancelled":
            run.answered(call.id, None, False, ended, outcome="refused")
        else:
            has_failed = call.status == "error"
            said = _said(opened_value(call.result)) if has_failed or keeps_results else None
            run.answered(call.id, said, has_failed, ended)


def _said(result: Any) -> Any:
    """Return the response of a function without the parts that wrap it."""
    parts = result if isinstance(result, list) else [result]
    said = []
    for part in parts[:20]:
        response = part.get("functionResponse") if isinstance(part, dict) else None
        inner = response.get("response") if isinstance(response, dict) else part
        if isinstance(inner, dict):
            inner = inner.get("error") or inner.get("output") or inner.get("text") or inner
        said.append(inner)
    return said[0] if len(said) == 1 else said


def _text(content: Any) -> str:
    if isinstance(content, list):
        texts = (each.get("text") if isinstance(each, dict) else each for each in content[:20])
        content = next((each for each in texts if isinstance(each, str)), "")
    return content if isinstance(content, str) else ""
