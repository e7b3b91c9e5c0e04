"""First stage of a hook: decide from the bytes whether the event needs processing, with almost no imports.

A successful call is appended to a file of its session as one line with its tool and id. The second stage counts these
lines later. It runs for a failure, a compaction, the end of a session, and for a success of a tool whose last call
failed: that success may be a recovery.
"""

from __future__ import annotations

import os
import sys
import time

MAX_TAIL_BYTES = 262_144
"""End of a session log that is searched for a command's exit code."""
SNAPSHOT_MARK = b"<state_snapshot>"
"""Start of the summary that Gemini CLI writes when it compresses a conversation."""
SESSION_FILE_SUFFIXES = (".calls", ".open", ".snapshot")
"""Suffixes of the files of one session."""
MAX_ERROR_FILE_BYTES = 65_536
"""Limit of the file that counts internal errors. A larger file is rotated."""
_SAFE_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def needs_processing(agent: str, data: bytes) -> bool:
    """Return whether the second stage must process an event. If not, append its successful calls to a file."""
    event, session = find_field(data, b"hook_event_name"), find_field(data, b"session_id")
    if not data:
        return False
    if not session or not event:
        return True  # perhaps formatted differently: the second stage parses it
    if event == b"SessionStart":
        return find_field(data, b"source") == b"compact"
    if event == b"PreCompress":
        return find_field(data, b"trigger") == b"manual" or _has_new_snapshot(data, session)
    if event == b"SessionEnd":
        return any(os.path.exists(session_file_path(session, ending)) for ending in SESSION_FILE_SUFFIXES)
    if event == b"BeforeAgent":
        return b"*" in _read_open_tools(session)
    if event not in (b"PostToolUse", b"PostToolUseFailure", b"PostToolBatch", b"AfterTool"):
        return False
    calls = _parse_calls(data)
    if calls is None or _may_have_failed(agent, event, data):
        return True
    names = _read_open_tools(session)
    if names and (b"*" in names or any(name in names for name, _ in calls)):
        return True
    _append_calls(session, calls)
    return False


def _may_have_failed(agent: str, event: bytes, data: bytes) -> bool:
    """Return whether any of these calls may have failed."""
    if event == b"PostToolUseFailure":
        return True
    if agent == "claude-code":
        # PostToolUseFailure reports errors inside a tool. Errors before execution and rejections by a person appear
        # only in the batch's responses.
        return event == b"PostToolBatch" and (
            b"<tool_use_error>" in data or b'"The user doesn' in data or b'"Claude requested p' in data
            or b'"Permission to use ' in data
        )  # fmt: skip
    if agent == "codex":
        return find_field(data, b"tool_name") == b"Bash" and find_exit_code(data) != 0
    if b'"error":' in data and b'"error":null' not in data:
        return True
    code = data.find(b"Exit Code: ")
    return code >= 0 and data[code + 11 : code + 12] != b"0" and data[code + 11 : code + 17] != b"(none)"


def _has_new_snapshot(data: bytes, session: bytes) -> bool:
    """Return whether Gemini CLI's log has a new summary. PreCompress only says that a compression may follow."""
    log = os.fsdecode(find_field(data, b"transcript_path"))
    try:
        with open(log, "rb", buffering=0) as file:
            begin = max(0, file.seek(0, 2) - MAX_TAIL_BYTES)
            file.seek(begin)
            last = file.read(MAX_TAIL_BYTES).rfind(SNAPSHOT_MARK)
    except OSError:
        return False
    if last < 0:
        return False
    snapshot_path = session_file_path(session, ".snapshot")
    try:
        with open(snapshot_path, "rb", buffering=0) as file:
            previous_position = file.read(20)
    except OSError:
        previous_position = b""
    if previous_position == b"%d" % (begin + last):
        return False
    if previous_position:
        os.unlink(snapshot_path)
    append_to_file(snapshot_path, b"%d" % (begin + last))
    return True


def find_exit_code(data: bytes) -> int | None:
    """Return a command's exit code from the log of Codex, or None. The hook event does not contain it."""
    id, log = find_field(data, b"tool_use_id"), find_field(data, b"transcript_path")
    if not id or not log:
        return None
    try:
        with open(log, "rb", buffering=0) as file:
            file.seek(max(0, file.seek(0, 2) - MAX_TAIL_BYTES))
            tail = file.read(MAX_TAIL_BYTES)
    except OSError:
        return None
    mark = b'"' + id + b'"'
    mark_index = tail.find(mark)
    while mark_index >= 0:
        line = tail[tail.rfind(b"\n", 0, mark_index) + 1 : _line_end(tail, mark_index)]
        code = line.rfind(b'"exit_code":')
        if code >= 0:
            digits = line[code + 12 : code + 20].lstrip().split(b",")[0].split(b"}")[0]
            if digits.lstrip(b"-").isdigit():
                return int(digits)
        mark_index = tail.find(mark, mark_index + 1)
    return None


def _line_end(text: bytes, index: int) -> int:
    end = text.find(b"\n", index)
    return end if end >= 0 else len(text)


def find_field(data: bytes, name: bytes) -> bytes:
    """Return the first string value of this name. Empty if it is absent or contains escapes."""
    _, separator, remainder = data.partition(b'"' + name + b'":')
    if not separator:
        return b""
    remainder = remainder[:1024].lstrip()
    value, end, _ = remainder[1:].partition(b'"')
    return value if remainder[:1] == b'"' and end and b"\\" not in value else b""


def _parse_calls(data: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return tool and id of each call, or None if the bytes alone do not show them."""
    names, ids = _find_values(data, b'"tool_name":'), _find_values(data, b'"tool_use_id":')
    if not ids:
        ids = [b"-"] * len(names)  # the agent sends no ids
    has_safe_names = all(name and _SAFE_BYTES.issuperset(name) for name in (*names, *ids))
    return list(zip(names, ids)) if names and has_safe_names and len(names) == len(ids) else None  # noqa: B905 - equal lengths


def _find_values(data: bytes, name: bytes) -> list[bytes]:
    values = []
    index = data.find(name)
    while index >= 0:
        remainder = data[index + len(name) : index + len(name) + 256].lstrip()
        value, end, _ = remainder[1:].partition(b'"')
        values.append(value if remainder[:1] == b'"' and end else b"")
        index = data.find(name, index + len(name))
    return values


# Session files, next to the store


def hooks_folder() -> str:
    """Return the folder of the session files. It must not depend on a settings file, which is slow to read."""
    home_folder = os.environ.get("MULLIGAN_HOME")
    if home_folder:
        return os.path.join(os.path.expanduser(home_folder), "hooks")
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Application Support/mulligan/hooks")
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return os.path.join(data, "mulligan", "hooks")


def session_file_path(session: bytes, suffix: str) -> str:
    is_safe_name = len(session) <= 100 and session[:1] != b"." and _SAFE_BYTES.issuperset(session)
    name = session.decode() if is_safe_name else "x" + session[:60].hex()
    return os.path.join(hooks_folder(), name + suffix)


def _read_open_tools(session: bytes) -> list[bytes]:
    """Return the tools whose last call failed. `*` stands for a reminder that the next event must deliver."""
    try:
        with open(session_file_path(session, ".open"), "rb", buffering=0) as file:
            return file.read(65_536).split(b"\n")
    except OSError:
        return []


def _append_calls(session: bytes, calls: list[tuple[bytes, bytes]]) -> None:
    timestamp = int(time.time() * 1000)
    line = b"%d %s\n" % (timestamp, b" ".join(name + b":" + id for name, id in calls))
    append_to_file(session_file_path(session, ".calls"), line)


def append_to_file(path: str, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        file = os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        file = os.open(path, flags, 0o600)
    os.write(file, line)
    os.close(file)


def record_internal_error(agent: str, error: BaseException) -> None:
    """Append one line for `mulligan doctor` with the error's class. Its message may be untrusted and is left out."""
    try:
        path = os.path.join(hooks_folder(), "faults")
        if os.path.exists(path) and os.path.getsize(path) > MAX_ERROR_FILE_BYTES:
            os.replace(path, path + ".old")
        append_to_file(path, b"%d %s %s\n" % (int(time.time() * 1000), agent.encode(), type(error).__name__.encode()))
    except OSError:
        pass  # the folder is not writable, and there is no other place to report it
