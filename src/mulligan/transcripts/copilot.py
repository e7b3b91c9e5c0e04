"""Reader for Copilot CLI logs: one event per line, in `~/.copilot/session-state/SESSION/events.jsonl`.

A call starts and completes in two events. A failed command completes with success and an exit code. The result that
the model reads may end with the words of hooks, the detailed one does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mulligan.core.records import History
from mulligan.transcripts.log_lines import LogLines
from mulligan.transcripts.run_builder import ReaderState, RunBuilder, to_milliseconds

NAME = "copilot"


class _Context(msgspec.Struct, gc=False):
    cwd: str | None = None


class _Result(msgspec.Struct, gc=False):
    content: str | None = None
    detailed: str | None = msgspec.field(default=None, name="detailedContent")


class _Shell(msgspec.Struct, gc=False):
    exit_code: int | None = msgspec.field(default=None, name="exitCode")


class _CopilotData(msgspec.Struct, gc=False):
    session: str = msgspec.field(default="", name="sessionId")
    version: str | None = msgspec.field(default=None, name="copilotVersion")
    context: _Context | None = None
    content: Any = None
    call: str = msgspec.field(default="", name="toolCallId")
    tool: str = msgspec.field(default="", name="toolName")
    arguments: Any = None
    model: str | None = None
    success: bool | None = None
    shell: _Shell | None = msgspec.field(default=None, name="shellExecution")
    result: _Result | None = None
    error: Any = None


class _CopilotEvent(msgspec.Struct, gc=False):
    type: str = ""
    timestamp: str | None = None
    data: _CopilotData | None = None


_decoder = msgspec.json.Decoder(_CopilotEvent)
_TYPES = (
    b'"session.start"',
    b'"user.message"',
    b'"tool.execution_start"',
    b'"tool.execution_complete"',
    b'"session.compaction_complete"',
)


def recognizes(head: bytes) -> bool:
    first = head.partition(b"\n")[0]
    return b'"session.start"' in first and b'"copilotVersion"' in first


def find_logs(environ: Mapping[str, str], home: Path) -> list[Path]:
    return [Path(environ.get("COPILOT_HOME") or home / ".copilot").expanduser() / "session-state"]


def read(lines: LogLines, state: ReaderState) -> Iterator[History]:
    run = RunBuilder(state, NAME, lines.path.parent.name)

    def is_needed(line: bytes) -> bool:
        return any(type in line[:200] for type in _TYPES)

    for event in state.decode_lines(lines, _decoder, is_needed):
        timestamp, data = to_milliseconds(event.timestamp), event.data or _CopilotData()
        match event.type:
            case "session.start" if data.session and not run.calls:
                run = RunBuilder(state, NAME, data.session)
                run.version = data.version
                run.set_project(data.context.cwd if data.context else None)
            case "user.message":
                run.set_context(data.content if isinstance(data.content, str) else "")
                run.note_time(timestamp)
            case "session.compaction_complete" if data.success is not False:
                run.add_compaction(timestamp)
            case "tool.execution_start":
                run.model = data.model or run.model
                run.start_call(data.call, data.tool, data.arguments, timestamp)
            case "tool.execution_complete":
                _end_call(data, run, timestamp)
    yield from run.build_histories()


def _end_call(data: _CopilotData, run: RunBuilder, timestamp: int) -> None:
    result = data.result or _Result()
    text = result.detailed or result.content or ""
    if data.success is False:
        message = data.error.get("message") if isinstance(data.error, dict) else data.error
        run.end_call(data.call, message or text or "failed", True, timestamp)
        return
    code = data.shell.exit_code if data.shell else None
    error = f"Exit code {code}\n{text}" if code else None
    run.end_call(data.call, error or text, error is not None, timestamp)
