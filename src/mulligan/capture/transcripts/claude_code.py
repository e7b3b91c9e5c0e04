"""Reader for Claude Code logs: one entry per line, in `~/.claude/projects/FOLDER/SESSION.jsonl`.

A call is a `tool_use` block of an assistant message, its result a `tool_result` block of a user message. Only results
with `is_error` have failed. The calls of a subagent are a separate run, in the same file or next to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec

from mulligan.capture.transcripts.gathering import Gathering, Reading, milliseconds, split_server
from mulligan.capture.transcripts.lines import Lines, decoded, is_object
from mulligan.records import History

NAME = "claude-code"
OPEN = 64
"""Runs of one file that are built at the same time."""


class _Block(msgspec.Struct, gc=False):
    type: str = ""
    id: str = ""
    name: str = ""
    input: Any = None
    tool_use_id: str = ""
    content: msgspec.Raw = msgspec.Raw()
    is_error: bool | None = None
    text: str = ""


class _Message(msgspec.Struct, gc=False):
    content: list[_Block] | str | None = None
    model: str | None = None


class _Compaction(msgspec.Struct, gc=False):
    trigger: str | None = None
    tokens: int | None = msgspec.field(default=None, name="preTokens")


class _Line(msgspec.Struct, gc=False):
    type: str = ""
    subtype: str | None = None
    session: str = msgspec.field(default="", name="sessionId")
    agent: str | None = msgspec.field(default=None, name="agentId")
    is_side: bool | None = msgspec.field(default=None, name="isSidechain")
    is_api_error: bool | None = msgspec.field(default=None, name="isApiErrorMessage")
    is_summary: bool | None = msgspec.field(default=None, name="isCompactSummary")
    is_meta: bool | None = msgspec.field(default=None, name="isMeta")
    version: str | None = None
    cwd: str | None = None
    timestamp: str | None = None
    message: _Message | None = None
    error: msgspec.Raw = msgspec.Raw()
    compaction: _Compaction | None = msgspec.field(default=None, name="compactMetadata")


_decoder = msgspec.json.Decoder(_Line)


def recognises(head: bytes) -> bool:
    return b'"parentUuid"' in head or b'"isSidechain"' in head or (b'"sessionId"' in head and b'"operation"' in head)


def read(lines: Lines, reading: Reading) -> Iterator[History]:
    runs: dict[tuple[str, str], Gathering] = {}
    for line in lines:
        reading.lines += 1
        if not _tells(line):
            if not is_object(line):
                reading.unknown += 1
                continue
            # Of plain messages, only the first of a session and the first after an error are needed.
            wants_talk = not runs or next(reversed(runs.values())).wants_talk
            if not wants_talk or not (b'"user"' in line or b'"assistant"' in line):
                continue
        entry = decoded(line, _decoder)
        if entry is None:
            reading.unknown += 1
            continue
        if not entry.session:
            continue
        key = (entry.session, entry.agent or ("sidechain" if entry.is_side else ""))
        run = runs.get(key)
        if run is None:
            if len(runs) >= OPEN:
                yield from _finished(runs.pop(next(iter(runs))))
            run = runs[key] = Gathering(reading, NAME, *key)
            if key[1]:
                run.parent = Gathering(reading, NAME, entry.session, "").id
                run.agent = f"{NAME} subagent"
            run.version = entry.version
            run.project = PurePath(entry.cwd.replace("\\", "/")).name if entry.cwd else ""
        _entry(entry, run, reading)
    for run in runs.values():
        yield from _finished(run)


def _tells(line: bytes) -> bool:
    """Return whether a line may hold calls. Fast pre-filter: most lines are long and hold none."""
    return (
        b'"tool_' in line  # tool_use or tool_result
        or b'"compact_boundary"' in line
        or b'"isApiErrorMessage"' in line
        or b'"api_error"' in line
    )


def _finished(run: Gathering) -> Iterator[History]:
    history = run.history()
    if history is not None:
        yield history


def _entry(entry: _Line, run: Gathering, reading: Reading) -> None:
    moment = milliseconds(entry.timestamp)
    if entry.type == "system":
        if entry.subtype == "compact_boundary":
            about = entry.compaction
            run.compacted(moment, (about and about.trigger) or "", about.tokens if about else None)
        elif entry.subtype == "api_error" and bytes(entry.error):
            run.model_failed(bytes(entry.error).decode("utf-8", "replace")[:8192], moment)
        return
    message = entry.message
    if message is None:
        return
    if message.model and not message.model.startswith("<"):
        run.model = message.model
    content = message.content
    if isinstance(content, str):
        content = [_Block(type="text", text=content)]
    for block in content or ():
        if block.type == "tool_use":
            run.model_answered(moment)
            name, server = split_server(block.name)
            run.called(block.id, name, block.input, moment, server=server)
            if block.id.startswith("toolu_") and reading.is_copy(block.id):
                run.passes_over(block.id)
        elif block.type == "tool_result":
            run.answered(block.tool_use_id, block.content, block.is_error is True, moment)
        elif block.type == "text" and block.text:
            if entry.is_api_error:
                run.model_failed(block.text[:8192], moment)
            elif entry.type == "assistant":
                run.model_answered(moment)
            elif not entry.is_summary and not entry.is_meta:
                run.says(block.text)
                run.at(moment)
