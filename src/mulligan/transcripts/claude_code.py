"""Reader for Claude Code logs: one entry per line, in `~/.claude/projects/FOLDER/SESSION.jsonl`.

A call is a `tool_use` block of an assistant message, its result a `tool_result` block of a user message. Only results
with `is_error` have failed. The calls of a subagent are a separate run, in the same file or next to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec

from mulligan.core.records import History
from mulligan.transcripts.log_lines import LogLines, decode_line, is_object
from mulligan.transcripts.run_builder import ReaderState, RunBuilder, split_server, to_milliseconds

NAME = "claude-code"
MAX_OPEN_RUNS = 64
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


class _ClaudeMessage(msgspec.Struct, gc=False):
    content: list[_Block] | str | None = None
    model: str | None = None


class _CompactMetadata(msgspec.Struct, gc=False):
    trigger: str | None = None
    tokens: int | None = msgspec.field(default=None, name="preTokens")


class _ClaudeLine(msgspec.Struct, gc=False):
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
    message: _ClaudeMessage | None = None
    error: msgspec.Raw = msgspec.Raw()
    compaction: _CompactMetadata | None = msgspec.field(default=None, name="compactMetadata")


_decoder = msgspec.json.Decoder(_ClaudeLine)


def recognizes(head: bytes) -> bool:
    return b'"parentUuid"' in head or b'"isSidechain"' in head or (b'"sessionId"' in head and b'"operation"' in head)


def read(lines: LogLines, state: ReaderState) -> Iterator[History]:
    runs: dict[tuple[str, str], RunBuilder] = {}
    for line in lines:
        state.line_count += 1
        if not may_hold_calls(line):
            if not is_object(line):
                state.unrecognized_lines += 1
                continue
            # Of plain messages, only the first of a session and the first after an error are needed.
            wants_talk = not runs or next(reversed(runs.values())).needs_text
            if not wants_talk or not (b'"user"' in line or b'"assistant"' in line):
                continue
        entry = decode_line(line, _decoder)
        if entry is None:
            state.unrecognized_lines += 1
            continue
        if not entry.session:
            continue
        key = (entry.session, entry.agent or ("sidechain" if entry.is_side else ""))
        run = runs.get(key)
        if run is None:
            if len(runs) >= MAX_OPEN_RUNS:
                yield from _build_histories(runs.pop(next(iter(runs))))
            run = runs[key] = RunBuilder(state, NAME, *key)
            if key[1]:
                run.parent = RunBuilder(state, NAME, entry.session, "").id
                run.agent = f"{NAME} subagent"
            run.version = entry.version
            run.project = PurePath(entry.cwd.replace("\\", "/")).name if entry.cwd else ""
        _add_entry(entry, run, state)
    for run in runs.values():
        yield from _build_histories(run)


def may_hold_calls(line: bytes) -> bool:
    """Return whether a line may hold calls. Fast pre-filter: most lines are long and hold none."""
    return (
        b'"tool_' in line  # tool_use or tool_result
        or b'"compact_boundary"' in line
        or b'"isApiErrorMessage"' in line
        or b'"api_error"' in line
    )


def _build_histories(run: RunBuilder) -> Iterator[History]:
    history = run.build_history()
    if history is not None:
        yield history


def _add_entry(entry: _ClaudeLine, run: RunBuilder, state: ReaderState) -> None:
    timestamp = to_milliseconds(entry.timestamp)
    if entry.type == "system":
        if entry.subtype == "compact_boundary":
            compaction = entry.compaction
            run.add_compaction(
                timestamp, (compaction and compaction.trigger) or "", compaction.tokens if compaction else None
            )
        elif entry.subtype == "api_error" and bytes(entry.error):
            run.model_failed(bytes(entry.error).decode("utf-8", "replace")[:8192], timestamp)
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
            run.model_answered(timestamp)
            name, server = split_server(block.name)
            run.start_call(block.id, name, block.input, timestamp, server=server)
            if block.id.startswith("toolu_") and state.is_copy(block.id):
                run.discard_call(block.id)
        elif block.type == "tool_result":
            run.end_call(block.tool_use_id, block.content, block.is_error is True, timestamp)
        elif block.type == "text" and block.text:
            if entry.is_api_error:
                run.model_failed(block.text[:8192], timestamp)
            elif entry.type == "assistant":
                run.model_answered(timestamp)
            elif not entry.is_summary and not entry.is_meta:
                run.set_context(block.text)
                run.note_time(timestamp)
