"""Reader for OpenCode: all sessions are in one SQLite database, `~/.local/share/opencode/opencode.db`.

A call is a part of a message. A failed command is a completed part with an exit code. A call that cannot be parsed,
or of an unknown tool, is a completed call of the tool `invalid`.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mulligan.core.records import History
from mulligan.transcripts.log_lines import LogLines, parse_json
from mulligan.transcripts.run_builder import ReaderState, RunBuilder, derive_run_id, to_milliseconds

NAME = "opencode"
MAX_PART_CHARS = 4_000_000
"""Longer parts are skipped."""
_SESSIONS = "SELECT id, parent_id, directory, version FROM session WHERE :id IS NULL OR id = :id ORDER BY time_created"
_PARTS = """
SELECT p.data, p.time_created, m.data ->> 'role', m.data ->> 'modelID' FROM part p JOIN message m ON m.id = p.message_id
WHERE p.session_id = ? AND length(p.data) <= ? ORDER BY p.time_created, p.id
"""


class EndedCall(NamedTuple):
    """A call as its part states it."""

    id: str
    name: str
    arguments: Any
    error: str | None
    started_at: int
    ended_at: int
    output: str


def parse_part(part: dict[str, Any]) -> EndedCall | None:
    state = part.get("state")
    if part.get("type") != "tool" or not isinstance(state, dict) or state.get("status") not in ("completed", "error"):
        return None
    name, arguments, error = str(part.get("tool", "")), state.get("input"), None
    output = str(state.get("output") or "")
    metadata = state.get("metadata")
    code = metadata.get("exit") if isinstance(metadata, dict) else None
    if state["status"] == "error":
        error = str(state.get("error") or "failed")
    elif name == "invalid" and isinstance(arguments, dict):
        name, error, arguments = str(arguments.get("tool") or name), str(arguments.get("error") or output), None
    elif "exit" in (metadata if isinstance(metadata, dict) else ()) and code != 0:
        error = f"Exit code: {code}\n{output}" if isinstance(code, int) else output or "killed"
    times = state.get("time")
    times = times if isinstance(times, dict) else {}
    started_at, ended_at = to_milliseconds(times.get("start")), to_milliseconds(times.get("end"))
    return EndedCall(str(part.get("callID", "")), name, arguments, error, started_at, ended_at, output)


def recognizes(head: bytes) -> bool:
    return head.startswith(b"SQLite format 3\0")


def find_logs(environ: Mapping[str, str], home: Path) -> list[Path]:
    return [Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "opencode" / "opencode.db"]


def read(lines: LogLines, state: ReaderState, session: str | None = None) -> Iterator[History]:
    try:
        uri = f"{lines.path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=0.1)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"session", "message", "part"} <= tables:
                return
            for id, parent, directory, version in database.execute(_SESSIONS, {"id": session}).fetchall():
                run = RunBuilder(state, NAME, id)
                run.version = version
                run.set_project(directory)
                if parent:
                    run.parent, run.agent = derive_run_id(NAME, parent), f"{NAME} subagent"
                for data, timestamp, role, model in database.execute(_PARTS, (id, MAX_PART_CHARS)):
                    state.line_count += 1
                    run.model = model or run.model
                    _add_part(parse_json(data), run, role, timestamp, state)
                yield from run.build_histories()
    except (sqlite3.Error, msgspec.MsgspecError) as error:
        lines.read_error = f"not a readable database of OpenCode: {type(error).__name__}"


def _add_part(part: Any, run: RunBuilder, role: str, timestamp: int, state: ReaderState) -> None:
    if not isinstance(part, dict):
        state.unrecognized_lines += 1
    elif part.get("type") == "compaction":
        run.add_compaction(timestamp)
    elif part.get("type") == "text" and role == "user":
        run.set_context(str(part.get("text", "")))
    elif (call := parse_part(part)) is not None:
        run.start_call(call.id, call.name, call.arguments, call.started_at or timestamp)
        answer = call.error if call.error is not None else call.output
        run.end_call(call.id, answer, call.error is not None, call.ended_at or timestamp)
