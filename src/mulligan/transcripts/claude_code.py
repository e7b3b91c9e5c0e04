"""Reader for Claude Code logs: one entry per line, in `~/.claude/projects/FOLDER/SESSION.jsonl`.

A call is a `tool_use` block of an assistant message, its result a `tool_result` block of a user message. Only results
with `is_error` have failed. The calls of a subagent are a separate run, in the same file or next to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mulligan.core.records import History
from mulligan.transcripts.log_lines import LogLines
from mulligan.transcripts.run_builder import ReaderState, RunBuilder, derive_run_id, to_milliseconds

NAME = "claude-code"
MAX_OPEN_RUNS = 64
"""Runs of one file that are built at the same time."""


class _LoggedBlock(msgspec.Struct, gc=False):
    type: str = ""
    id: str = ""
    name: str = ""
    input: Any = None
    tool_use_id: str = ""
    content: msgspec.Raw = msgspec.Raw()
    is_error: bool | None = None
    text: str = ""


class _ClaudeMessage(msgspec.Struct, gc=False):
    content: list[_LoggedBlock] | str | None = None
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


def find_logs(environ: Mapping[str, str], home: Path) -> list[Path]:
    if folders := environ.get("CLAUDE_CONFIG_DIR"):
        return [Path(folder).expanduser() / "projects" for folder in folders.split(",") if folder]
    config_folder = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return [home / ".claude" / "projects", config_folder / "claude" / "projects"]


def read(lines: LogLines, state: ReaderState) -> Iterator[History]:
    runs: dict[tuple[str, str], RunBuilder] = {}

    def is_needed(line: bytes) -> bool:
        # Of plain messages, only the first of a session and the first after an error are needed.
        return may_hold_calls(line) or (
            (not runs or next(reversed(runs.values())).needs_text) and (b'"user"' in line or b'"assistant"' in line)
        )

    for entry in state.decode_lines(lines, _decoder, is_needed):
        if not entry.session:
            continue
        key = (entry.session, entry.agent or ("sidechain" if entry.is_side else ""))
        run = runs.get(key)
        if run is None:
            if len(runs) >= MAX_OPEN_RUNS:
                yield from runs.pop(next(iter(runs))).build_histories()
            run = runs[key] = RunBuilder(state, NAME, *key)
            if key[1]:
                run.parent = derive_run_id(NAME, entry.session, "")
                run.agent = f"{NAME} subagent"
            run.version = entry.version
            run.set_project(entry.cwd)
        _add_entry(entry, run, state)
    for run in runs.values():
        yield from run.build_histories()


def may_hold_calls(line: bytes) -> bool:
    """Return whether a line may hold calls. Fast pre-filter: most lines are long and hold none."""
    return (
        b'"tool_' in line  # tool_use or tool_result
        or b'"compact_boundary"' in line
        or b'"isApiErrorMessage"' in line
        or b'"api_error"' in line
    )


def _add_entry(entry: _ClaudeLine, run: RunBuilder, state: ReaderState) -> None:
    timestamp = to_milliseconds(entry.timestamp)
    if entry.type == "system":
        if entry.subtype == "compact_boundary":
            compaction = entry.compaction or _CompactMetadata()
            run.add_compaction(timestamp, compaction.trigger or "", compaction.tokens)
        elif entry.subtype == "api_error" and bytes(entry.error):
            run.model_failed(bytes(entry.error).decode("utf-8", "replace"), timestamp)
        return
    message = entry.message
    if message is None:
        return
    if message.model and not message.model.startswith("<"):
        run.model = message.model
    content = message.content
    if isinstance(content, str):
        content = [_LoggedBlock(type="text", text=content)]
    for block in content or ():
        if block.type == "tool_use":
            run.model_answered(timestamp)
            run.start_call(block.id, block.name, block.input, timestamp)
            if block.id.startswith("toolu_") and state.is_copy(block.id):
                run.discard_call(block.id)
        elif block.type == "tool_result":
            run.end_call(block.tool_use_id, block.content, block.is_error is True, timestamp)
        elif block.type == "text" and block.text:
            if entry.is_api_error:
                run.model_failed(block.text, timestamp)
            elif entry.type == "assistant":
                run.model_answered(timestamp)
            elif not entry.is_summary and not entry.is_meta:
                run.set_context(block.text)
                run.note_time(timestamp)
