"""Reader for Codex logs: one event per line, in `~/.codex/sessions/YYYY/MM/DD/rollout-TIME-ID.jsonl`.

A call and its result are two response items. A failed command is recognized by its completion event or by the frame
around its output, a failed MCP call by its result. Before version 0.30, a line was the item itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mulligan.core.records import History
from mulligan.transcripts.log_lines import LogLines, decode_raw, parse_json
from mulligan.transcripts.run_builder import ReaderState, RunBuilder, first_text, to_milliseconds

NAME = "codex"
_FAILURE_HINTS = (b"xit", b"rror", b"ail", b"eject", b"success", b"unsupported")
"""Byte sequences of results that may be failures."""
_EXIT = re.compile(r"^(?:Exit code: |Process exited with code )(-?\d{1,5})", re.MULTILINE)
_ERROR_PREFIXES = (
    "error", "failed to", "execution error", "exec_command failed", "apply_patch verification failed", "unsupported",
)  # fmt: skip
_GENERATED_PREFIXES = ("<", "# AGENTS")
"""Prefixes of user messages that Codex generates."""
_USER_REJECTIONS = ("rejected by user", "user rejected", "user declined", "denied by user", "aborted by user")


class _CodexPayload(msgspec.Struct, gc=False):
    """A response item, an event, or the item that an event completes."""

    type: str = ""
    id: str | None = None
    call_id: str = ""
    name: str = ""
    namespace: str | None = None
    arguments: Any = None
    input: Any = None
    action: Any = None
    command: Any = None
    output: msgspec.Raw = msgspec.Raw()
    exit_code: int | None = None
    success: bool | None = None
    aggregated_output: msgspec.Raw = msgspec.Raw()
    stderr: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    item: _CodexPayload | None = None
    cwd: str | None = None
    cli_version: str | None = None
    model: str | None = None
    message: Any = None
    role: str | None = None
    content: msgspec.Raw = msgspec.Raw()
    history_start: int | None = msgspec.field(default=None, name="subagent_history_start_ordinal")


class _CodexLine(_CodexPayload, gc=False):
    """A line. Before version 0.30, it is the payload itself."""

    timestamp: str | None = None
    ordinal: int | None = None
    payload: _CodexPayload | None = None


_decoder = msgspec.json.Decoder(_CodexLine)


def recognizes(head: bytes) -> bool:
    if b'"session_meta"' in head and b'"payload"' in head:
        return True
    if b'"payload":' in head and (b'"response_item"' in head or b'"event_msg"' in head):
        return True
    first = head.partition(b"\n")[0]
    return b'"instructions"' in first and b'"timestamp"' in first and b'"id"' in first and b'"messages"' not in first


def find_logs(environ: Mapping[str, str], home: Path) -> list[Path]:
    folder = Path(environ.get("CODEX_HOME") or home / ".codex").expanduser()
    return [folder / "sessions", folder / "archived_sessions"]


def read(lines: LogLines, state: ReaderState) -> Iterator[History]:
    run = RunBuilder(state, NAME, lines.path.name)
    first_ordinal = 0
    """The ordinal of the subagent's first line. Earlier lines are a copy of its parent's log."""

    def is_needed(line: bytes) -> bool:
        return _KINDS.search(line, 0, 4096) is not None or (run.needs_text and b'"user' in line)

    for entry in state.decode_lines(lines, _decoder, is_needed):
        payload: _CodexPayload = entry.payload or entry
        type = entry.type if entry.payload else "response_item" if entry.type else "session_meta"
        timestamp = to_milliseconds(entry.timestamp)
        if entry.ordinal is not None and 0 < entry.ordinal < first_ordinal:
            continue
        if type == "session_meta":
            if payload.id and not run.calls:
                run = RunBuilder(state, NAME, payload.id)
                run.version = payload.cli_version
                run.set_project(payload.cwd)
                first_ordinal = payload.history_start or 0
        elif type == "turn_context":
            run.model = payload.model or run.model
        elif type == "compacted":
            run.add_compaction(timestamp)
        elif type == "response_item":
            _add_item(payload, run, timestamp)
        elif type == "event_msg":
            _add_event(payload, run, timestamp)
    yield from run.build_histories()


_KINDS = re.compile(
    rb'"type":\s?"(?:function_call|custom_tool_call|local_shell_call|item_completed|\w{1,40}_end"|session_meta|turn_context|'
    rb'\w{0,20}compact|stream_error|error")|"instructions"'
)
"""Line types that may hold calls."""


def _add_item(payload: _CodexPayload, run: RunBuilder, timestamp: int) -> None:
    match payload.type:
        case "function_call" | "custom_tool_call":
            run.model_answered(timestamp)
            arguments = payload.arguments if payload.arguments is not None else payload.input
            server = None
            if payload.namespace and payload.namespace.startswith("mcp__") and not payload.name.startswith("mcp__"):
                server = payload.namespace[5:].removesuffix("__") or None
            if isinstance(arguments, str):
                parsed = parse_json(arguments)
                arguments = parsed if isinstance(parsed, dict) else {"input": arguments}
            run.start_call(payload.call_id, payload.name, arguments, timestamp, server=server)
        case "local_shell_call":
            command = payload.action.get("command") if isinstance(payload.action, dict) else None
            run.start_call(payload.call_id or payload.id or "", "local_shell", {"command": command}, timestamp)
        case "function_call_output" | "custom_tool_call_output":
            _add_output(payload, run, timestamp)
        case "message":
            if payload.role == "user":
                run.set_context(first_text(payload.content, _GENERATED_PREFIXES))
            run.note_time(timestamp)
        case "compaction" | "context_compaction":
            run.add_compaction(timestamp)


def _add_output(payload: _CodexPayload, run: RunBuilder, timestamp: int) -> None:
    """Add a result as the model saw it. The exit code of a command is in a frame around its output."""
    if not run.is_pending(payload.call_id):
        return
    raw = bytes(payload.output)
    if not any(word in raw for word in _FAILURE_HINTS):
        run.end_call(payload.call_id, payload.output, False, timestamp)
        return
    output = decode_raw(payload.output)
    has_failed = False
    if isinstance(output, str):
        output = parse_json(output)
    if isinstance(output, dict):
        metadata = output.get("metadata")
        code = metadata.get("exit_code") if isinstance(metadata, dict) else None
        has_failed = bool(code) or output.get("success") is False or output.get("isError") is True
        text = output.get("output", output.get("content", output))
        output = f"Exit code: {code}\n{text}" if code and isinstance(text, str) else text
    elif isinstance(output, str):
        has_failed = _has_failed(output)
    run.end_call(payload.call_id, output, has_failed, timestamp)


def _has_failed(text: str) -> bool:
    match = _EXIT.search(text[:400])
    if match:
        return match[1] != "0"
    start = text[:200].casefold()
    return start.startswith(_ERROR_PREFIXES) or any(word in start for word in _USER_REJECTIONS)


def _add_event(event: _CodexPayload, run: RunBuilder, timestamp: int) -> None:
    """Add an event, or the item that an event completes. A completion precedes the result."""
    id = event.call_id or event.id or ""
    message = event.message if isinstance(event.message, str) else ""
    match event.type:
        case "item_completed" if event.item is not None:
            _add_event(event.item, run, timestamp)
        case "user_message":
            run.set_context(message)
        case "UserMessage":
            run.set_context(first_text(event.content, _GENERATED_PREFIXES))
        case "exec_command_end" | "CommandExecution" | "commandExecution" if event.exit_code is not None:
            if event.type != "exec_command_end" and not run.is_pending(id):
                # Executed by a script of the model, so the log has no call for it.
                command = " ".join(map(str, event.command)) if isinstance(event.command, list) else event.command
                run.start_call(id, "shell", {"command": command}, timestamp)
            output: Any = event.aggregated_output
            if event.exit_code:
                text = decode_raw(event.aggregated_output) or decode_raw(event.stderr) or ""
                output = f"Exit code: {event.exit_code}\n{text}"
            run.end_call(id, output, event.exit_code != 0, timestamp)
        case "mcp_tool_call_end" | "McpToolCall" | "mcpToolCall":
            _add_mcp_result(id, decode_raw(event.result) or decode_raw(event.error), run, timestamp)
        case "patch_apply_end" if event.success is False:
            run.end_call(id, decode_raw(event.stderr) or "the patch was not applied", True, timestamp)
        case "error" | "stream_error":
            run.model_failed(message, timestamp)
        case "context_compacted" | "ContextCompaction" | "contextCompaction":
            run.add_compaction(timestamp)


def _add_mcp_result(id: str, result: Any, run: RunBuilder, timestamp: int) -> None:
    if isinstance(result, dict):
        if "Err" in result:
            run.end_call(id, result["Err"], True, timestamp)
        else:
            inner = result.get("Ok", result)
            has_failed = isinstance(inner, dict) and (inner.get("isError") or inner.get("is_error")) is True
            run.end_call(id, inner.get("content") if isinstance(inner, dict) else inner, has_failed, timestamp)
