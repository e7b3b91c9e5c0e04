"""Reader for Pi logs: one entry per line, in `~/.pi/agent/sessions/FOLDER/TIME_ID.jsonl`.

A call is a `toolCall` block of an assistant message, its result a message with `isError`. A session can return to an
earlier entry and continue from there: all its branches are one run. A forked session begins with a copy of its parent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mulligan.core.records import History
from mulligan.transcripts.log_lines import LogLines
from mulligan.transcripts.run_builder import ReaderState, RunBuilder, to_milliseconds

NAME = "pi"


class _PiBlock(msgspec.Struct, gc=False):
    type: str = ""
    id: str = ""
    name: str = ""
    arguments: Any = None
    text: str = ""


class _PiMessage(msgspec.Struct, gc=False):
    role: str = ""
    content: list[_PiBlock] | str | None = None
    model: str | None = None
    call: str = msgspec.field(default="", name="toolCallId")
    is_error: bool | None = msgspec.field(default=None, name="isError")
    stop_reason: str | None = msgspec.field(default=None, name="stopReason")
    error: str | None = msgspec.field(default=None, name="errorMessage")


class _PiEntry(msgspec.Struct, gc=False):
    type: str = ""
    id: str = ""
    timestamp: str | None = None
    cwd: str | None = None
    model: str | None = msgspec.field(default=None, name="modelId")
    tokens: int | None = msgspec.field(default=None, name="tokensBefore")
    message: _PiMessage | None = None


_decoder = msgspec.json.Decoder(_PiEntry)


def recognizes(head: bytes) -> bool:
    first = head.partition(b"\n")[0].replace(b'": "', b'":"')
    return b'"type":"session"' in first and b'"id"' in first and b'"cwd"' in first


def find_logs(environ: Mapping[str, str], home: Path) -> list[Path]:
    if folder := environ.get("PI_CODING_AGENT_SESSION_DIR"):
        return [Path(folder).expanduser()]
    return [Path(environ.get("PI_CODING_AGENT_DIR") or home / ".pi" / "agent").expanduser() / "sessions"]


def read(lines: LogLines, state: ReaderState) -> Iterator[History]:
    run = RunBuilder(state, NAME, lines.path.name)
    for entry in state.decode_lines(lines, _decoder):
        timestamp = to_milliseconds(entry.timestamp)
        if entry.type == "session" and entry.id and not run.calls:
            run = RunBuilder(state, NAME, entry.id)
            run.set_project(entry.cwd)
        elif entry.type == "model_change":
            run.model = entry.model or run.model
        elif entry.type == "compaction":
            run.add_compaction(timestamp, tokens=entry.tokens)
        elif entry.message is not None and not state.is_copy(f"{NAME} {entry.id} {entry.timestamp}"):
            _add_message(entry.message, run, timestamp)
    yield from run.build_histories()


def _add_message(message: _PiMessage, run: RunBuilder, timestamp: int) -> None:
    if message.role == "user":
        run.set_context(_join_text(message))
        run.note_time(timestamp)
    elif message.role == "toolResult":
        run.end_call(message.call, _join_text(message), message.is_error is True, timestamp)
    elif message.role == "assistant":
        run.model = message.model or run.model
        if message.stop_reason == "error":
            run.model_failed(message.error or "failed", timestamp)
            return
        run.model_answered(timestamp)
        for block in message.content if isinstance(message.content, list) else ():
            if block.type == "toolCall":
                run.start_call(block.id, block.name, block.arguments, timestamp)


def _join_text(message: _PiMessage) -> str:
    if isinstance(message.content, list):
        return "\n".join(block.text for block in message.content if block.text)
    return message.content or ""
