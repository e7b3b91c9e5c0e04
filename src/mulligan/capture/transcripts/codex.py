"""Reader for Codex logs: one event per line, in `~/.codex/sessions/YYYY/MM/DD/rollout-TIME-ID.jsonl`.

A call and its result are two response items. A failed command is recognized by its completion event or by the frame
around its output, a failed MCP call by its result. Before version 0.30, a line was the item itself.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec

from mulligan.capture.transcripts.gathering import Gathering, Reading, milliseconds
from mulligan.capture.transcripts.lines import Lines, decoded, is_object, opened_value
from mulligan.records import History

NAME = "codex"
_TROUBLE = (b"xit", b"rror", b"ail", b"eject", b"success", b"unsupported")
"""Byte sequences of results that may be failures."""
_EXIT = re.compile(r"^(?:Exit code: |Process exited with code )(-?\d{1,5})", re.MULTILINE)
_REFUSED = ("rejected by user", "user rejected", "user declined", "denied by user", "aborted by user")


class _Action(msgspec.Struct, gc=False):
    command: Any = None


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    id: str = ""
    command: Any = None
    exit_code: int | None = None
    status: str | None = None
    aggregated_output: msgspec.Raw = msgspec.Raw()
    stderr: msgspec.Raw = msgspec.Raw()
    server: str = ""
    tool: str = ""
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw()
    text: str = ""


class _Payload(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    call_id: str = ""
    name: str = ""
    namespace: str | None = None
    arguments: Any = None
    input: Any = None
    action: _Action | None = None
    output: msgspec.Raw = msgspec.Raw()
    status: Any = None
    exit_code: int | None = None
    success: bool | None = None
    aggregated_output: msgspec.Raw = msgspec.Raw()
    stderr: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    item: _Item | None = None
    cwd: str | None = None
    cli_version: str | None = None
    model: str | None = None
    message: Any = None
    role: str | None = None
    content: msgspec.Raw = msgspec.Raw()
    history_start: int | None = msgspec.field(default=None, name="subagent_history_start_ordinal")


class _Line(msgspec.Struct, gc=False):
    type: str = ""
    timestamp: str | None = None
    ordinal: int | None = None
    payload: _Payload | None = None


_decoder = msgspec.json.Decoder(_Line)
_bare = msgspec.json.Decoder(_Payload)


def recognises(head: bytes) -> bool:
    if b'"session_meta"' in head and b'"payload"' in head:
        return True
    if b'"payload":' in head and (b'"response_item"' in head or b'"event_msg"' in head):
        return True
    first = head.partition(b"\n")[0]
    return b'"instructions"' in first and b'"timestamp"' in first and b'"id"' in first and b'"messages"' not in first


def read(lines: Lines, reading: Reading) -> Iterator[History]:
    run = Gathering(reading, NAME, lines.path.name)
    first = 0
    """The ordinal of the subagent's first line. Earlier lines are a copy of its parent's log."""
    for line in lines:
        reading.lines += 1
        if not _tells(line) and not (run.wants_talk and b'"user' in line):
            if not is_object(line):
                reading.unknown += 1
            continue
        entry = decoded(line, _decoder)
        if entry is None:
            reading.unknown += 1
            continue
        payload = entry.payload
        if payload is None:
            payload = decoded(line, _bare)
            if payload is None:
                reading.unknown += 1
                continue
            entry.type = "response_item" if payload.type else "session_meta"
        if entry.ordinal is not None and 0 < entry.ordinal < first:
            continue
        if entry.type == "session_meta":
            if payload.id and not run.calls:
                run = Gathering(reading, NAME, payload.id)
                run.version = payload.cli_version
                run.project = PurePath(payload.cwd.replace("\\", "/")).name if payload.cwd else ""
                first = payload.history_start or 0
        elif entry.type == "turn_context":
            run.model = payload.model or run.model
        elif entry.type == "compacted":
            run.compacted(milliseconds(entry.timestamp))
        elif entry.type == "response_item":
            _item(payload, run, milliseconds(entry.timestamp))
        elif entry.type == "event_msg":
            _event(payload, run, milliseconds(entry.timestamp))
    history = run.history()
    if history is not None:
        yield history


_KINDS = re.compile(
    rb'"type":\s?"(?:function_call|custom_tool_call|local_shell_call|item_completed|\w{1,40}_end"|session_meta|turn_context|'
    rb'\w{0,20}compact|stream_error|error")|"instructions"'
)
"""Line types that may hold calls."""


def _tells(line: bytes) -> bool:
    return _KINDS.search(line, 0, 4096) is not None


def _item(payload: _Payload, run: Gathering, moment: int) -> None:
    match payload.type:
        case "function_call" | "custom_tool_call":
            run.model_answered(moment)
            given = payload.arguments if payload.arguments is not None else payload.input
            server = None
            name = payload.name
            if name.startswith("mcp__"):
                server, _, name = name[5:].partition("__")
            elif payload.namespace and payload.namespace.startswith("mcp__"):
                server = payload.namespace[5:].removesuffix("__")
            run.called(payload.call_id, name, _arguments(given), moment, server=server or None)
        case "local_shell_call":
            command = payload.action.command if payload.action else None
            run.called(payload.call_id or payload.id or "", "local_shell", {"command": command}, moment)
        case "function_call_output" | "custom_tool_call_output":
            _output(payload, run, moment)
        case "message":
            if payload.role == "user":
                run.says(_first_text(payload.content))
            run.at(moment)
        case "compaction" | "context_compaction":
            run.compacted(moment)


def _arguments(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    if given[:1] == "{":
        try:
            return msgspec.json.decode(given)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass  # not valid JSON: keep the model's text
    return {"input": given}


def _output(payload: _Payload, run: Gathering, moment: int) -> None:
    """Add a result as the model saw it. The exit code of a command is in a frame around its output."""
    if not run.is_waiting(payload.call_id):
        return
    raw = bytes(payload.output)
    if not any(word in raw for word in _TROUBLE):
        run.answered(payload.call_id, payload.output, False, moment)
        return
    said = opened_value(payload.output)
    has_failed = False
    if isinstance(said, str) and said[:1] == "{":
        with contextlib.suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
            said = msgspec.json.decode(said)  # otherwise a text that starts like an object
    if isinstance(said, dict):
        about = said.get("metadata")
        code = about.get("exit_code") if isinstance(about, dict) else None
        has_failed = bool(code) or said.get("success") is False or said.get("isError") is True
        text = said.get("output", said.get("content", said))
        said = f"Exit code: {code}\n{text}" if code and isinstance(text, str) else text
    elif isinstance(said, str):
        has_failed = _has_failed(said)
    run.answered(payload.call_id, said, has_failed, moment)


def _has_failed(text: str) -> bool:
    found = _EXIT.search(text[:400])
    if found:
        return found[1] != "0"
    start = text[:200].casefold()
    return start.startswith(
        (
            "error",
            "failed to",
            "execution error",
            "exec_command failed",
            "apply_patch verification failed",
            "unsupported",
        )
    ) or any(word in start for word in _REFUSED)


def _event(payload: _Payload, run: Gathering, moment: int) -> None:
    match payload.type:
        case "user_message":
            run.says(payload.message if isinstance(payload.message, str) else "")
        case "item_completed" if payload.item is not None:
            _completed(payload.item, run, moment)
        case "exec_command_end":
            _command(payload.call_id, payload.exit_code, payload, run, moment)
        case "mcp_tool_call_end":
            result = opened_value(payload.result)
            _mcp(payload.call_id, result, run, moment)
        case "patch_apply_end" if payload.success is False:
            told = opened_value(payload.stderr) or "the patch was not applied"
            run.answered(payload.call_id, told, True, moment)
        case "error" | "stream_error":
            text = payload.message if isinstance(payload.message, str) else ""
            run.model_failed(text[:8192], moment)
        case "context_compacted":
            run.compacted(moment)


def _completed(item: _Item, run: Gathering, moment: int) -> None:
    match item.type:
        case "CommandExecution" | "commandExecution":
            if not run.is_waiting(item.id) and item.exit_code is not None:
                # Executed by a script of the model, so the log has no call for it.
                command = " ".join(map(str, item.command)) if isinstance(item.command, list) else item.command
                run.called(item.id, "shell", {"command": command}, moment)
            _command(item.id, item.exit_code, item, run, moment)
        case "McpToolCall" | "mcpToolCall":
            _mcp(item.id, opened_value(item.result) or opened_value(item.error), run, moment)
        case "UserMessage":
            run.says(_first_text(item.content))
        case "ContextCompaction" | "contextCompaction":
            run.compacted(moment)


def _command(id: str, code: int | None, said: _Payload | _Item, run: Gathering, moment: int) -> None:
    """Add the exit code of a command. Its completion event precedes the result."""
    if code:
        output = opened_value(said.aggregated_output) or opened_value(said.stderr) or ""
        run.answered(id, f"Exit code: {code}\n{output}", True, moment)
    elif code == 0:
        run.answered(id, said.aggregated_output, False, moment)


def _mcp(id: str, result: Any, run: Gathering, moment: int) -> None:
    if isinstance(result, dict):
        if "Err" in result:
            run.answered(id, result["Err"], True, moment)
        else:
            inner = result.get("Ok", result)
            has_failed = isinstance(inner, dict) and (inner.get("isError") or inner.get("is_error")) is True
            run.answered(id, inner.get("content") if isinstance(inner, dict) else inner, has_failed, moment)


def _first_text(content: msgspec.Raw) -> str:
    value = opened_value(content)
    if isinstance(value, list):
        texts = (each.get("text") for each in value if isinstance(each, dict))
        value = next((each for each in texts if isinstance(each, str) and not each.startswith(("<", "# AGENTS"))), "")
    return value if isinstance(value, str) else ""
