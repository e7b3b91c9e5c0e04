"""Reader for Gemini CLI logs: one document per session, or one message per line.

Files: `~/.gemini/tmp/PROJECT/chats/session-TIME-ID.json[l]`. A model message holds its calls with their results. A
message may be written again when a call ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mulligan.classify.result_verdict import MAX_REPORT_CHARS
from mulligan.classify.tool_category import find_category_of_name
from mulligan.core.records import History
from mulligan.transcripts.log_lines import LogLines, decode_line, decode_raw
from mulligan.transcripts.run_builder import NO_JSON, ReaderState, RunBuilder, first_text, to_milliseconds

NAME = "gemini-cli"
_COMPRESSED = re.compile(r"(?:chat history|context) (?:was |has been )?compressed", re.IGNORECASE)

TIMEOUT_MARK = b"Command was automatically cancelled because it exceeded the timeout of "
"""Start of the output of a command that took too long. It is reported as a success, without an exit code."""
_EXIT_CODE = re.compile(r"^(?:Exit Code: (?!0\s*$)\d{1,5}|Signal: \d{1,3})\s*$", re.MULTILINE)
_SERVER_TOOL = re.compile(r"(?P<tool>.+) \((?P<server>.+) MCP Server\)")
"""Displayed name of a tool of an MCP server."""


class _GeminiCall(msgspec.Struct, gc=False):
    id: str = ""
    name: str = ""
    args: Any = None
    result: msgspec.Raw = msgspec.Raw()
    status: str = ""
    display_name: str | None = msgspec.field(default=None, name="displayName")
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


def find_logs(environ: Mapping[str, str], home: Path) -> list[Path]:
    return [home / ".gemini" / "tmp"]


def read(lines: LogLines, state: ReaderState) -> Iterator[History]:
    run = RunBuilder(state, NAME, lines.path.name)
    finished_ids: set[str] = set()
    """Calls that were read with their result: a message is written again as it grows."""
    for entry in state.decode_document(lines, _decoder):
        for message in (entry, *(decode_line(bytes(raw), _decoder) for raw in entry.messages or ())):
            if message is None:
                state.skip_line(lines, NO_JSON)
                continue
            if message.session and not run.calls:
                run = RunBuilder(state, NAME, message.session, message.kind or "")
                if message.kind == "subagent":
                    run.agent = f"{NAME} subagent"
            _add_message(message, run, finished_ids, state.keeps_results)
    yield from run.build_histories()


def _add_message(message: _GeminiMessage, run: RunBuilder, finished_ids: set[str], keeps_results: bool) -> None:
    timestamp = to_milliseconds(message.timestamp)
    run.note_time(timestamp)
    text = ""
    if message.type != "gemini" and (message.type != "user" or not run.context):
        text = first_text(message.content)
    if message.type == "user":
        run.set_context(text)
    elif message.type == "gemini":
        run.model = message.model or run.model
        run.model_answered(timestamp)
    elif message.type == "error" and text:
        run.model_failed(text, timestamp)
    elif message.type == "info" and _COMPRESSED.search(text[:300]):
        run.add_compaction(timestamp)
    for call in message.calls or ():
        if call.status not in ("success", "error", "cancelled") or call.id in finished_ids:
            continue  # still in progress: it will be written again
        finished_ids.add(call.id)
        ended = to_milliseconds(call.timestamp) or timestamp
        match = _SERVER_TOOL.fullmatch(call.display_name or "") if call.name.startswith("mcp_") else None
        name, server = (match["tool"], match["server"]) if match else (call.name, None)
        run.start_call(call.id, name, call.args, timestamp, server=server)
        if call.status == "cancelled":
            run.end_call(call.id, None, False, ended, outcome="blocked")
        else:
            has_failed = call.status == "error"
            # A file may contain what a shell prints.
            is_command = find_category_of_name(call.name) == "shell" and any(
                mark in bytes(call.result) for mark in (b"Exit Code: ", b"Signal: ", TIMEOUT_MARK)
            )
            is_read = has_failed or keeps_results or is_command or len(bytes(call.result)) <= MAX_REPORT_CHARS
            response = _unwrap_response(decode_raw(call.result)) if is_read else None
            error = find_command_error(response) if is_command and isinstance(response, str) else None
            run.end_call(call.id, error or response, has_failed or error is not None, ended)


def find_command_error(output: str) -> str | None:
    """Return the output of a shell command if it failed. The shell tool reports an exit code, but no error."""
    output = output.strip().removeprefix("<untrusted_context>").removesuffix("</untrusted_context>").strip()
    has_failed = output.startswith(("Output: ", "Command: ")) and _EXIT_CODE.search(output)
    return output if has_failed or output.startswith(TIMEOUT_MARK.decode()) else None


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
