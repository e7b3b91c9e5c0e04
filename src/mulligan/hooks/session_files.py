"""Files of a session next to the store, and the end of the agent's log, read and written with almost no imports.

`.calls` has one line for each turn of successful calls, until the next stored event counts them. `.open` has the tools
with an open failure. `.snapshot` has the position of the last compression in the log of Gemini CLI.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # importing typing would slow down the early exit
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_TAIL_BYTES = 262_144
"""End of a session log that is searched."""
MAX_READ_BYTES = 1_048_576
"""Limit of one read of successful calls."""
MAX_ERROR_FILE_BYTES = 65_536
"""Limit of the file that counts internal errors. A larger file is rotated."""
SNAPSHOT_MARK = b"<state_snapshot>"
"""Start of the summary that Gemini CLI writes when it compresses a conversation."""
SUFFIXES = (".calls", ".open", ".snapshot")
SAFE_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


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
    is_safe_name = len(session) <= 100 and session[:1] != b"." and SAFE_BYTES.issuperset(session)
    name = session.decode() if is_safe_name else "x" + session[:60].hex()
    return os.path.join(hooks_folder(), name + suffix)


def has_session_files(session: bytes) -> bool:
    return any(os.path.exists(session_file_path(session, suffix)) for suffix in SUFFIXES)


def remove_session_files(session: str) -> None:
    """Remove the files of an ended session."""
    for suffix in SUFFIXES:
        _remove(session_file_path(session.encode(), suffix))


def append_calls(session: bytes, calls: list[tuple[bytes, bytes]]) -> None:
    """Append a line with tool and id of each successful call."""
    line = b" ".join(name + b":" + id for name, id in calls)
    _append(session_file_path(session, ".calls"), b"%d %s\n" % (int(time.time() * 1000), line))


def read_calls(session: str, offset: int) -> tuple[list[tuple[int, list[tuple[str, str]]]], int]:
    """Return the successful calls after this offset, by turn with its time, and the new offset."""
    data = read_part(session_file_path(session.encode(), ".calls"), offset, MAX_READ_BYTES)
    complete_lines, _, partial_line = data.rpartition(b"\n")  # another process may be writing the last line
    turns = []
    for line in complete_lines.decode("ascii", "replace").split("\n"):
        timestamp, _, calls = line.partition(" ")
        names_and_ids = [(name, id) for name, _, id in (call.rpartition(":") for call in calls.split()) if name]
        if timestamp.isdigit() and names_and_ids:
            turns.append((int(timestamp), names_and_ids))
    return turns, offset + len(data) - len(partial_line)


def read_open_tools(session: bytes) -> list[bytes]:
    """Return the tools whose last call failed. `*` stands for a reminder that the next event must deliver."""
    return read_part(session_file_path(session, ".open"), 0, 65_536).split(b"\n")


def write_open_tools(session: str, names: Iterable[str]) -> None:
    path = session_file_path(session.encode(), ".open")
    content = "\n".join(dict.fromkeys(names)).encode("utf-8", "replace")
    if content:
        _replace(path, content)
    else:
        _remove(path)


def has_new_snapshot(session: bytes, log: bytes) -> bool:
    """Return whether Gemini CLI's log has a new summary. PreCompress only says that a compression may follow."""
    begin, tail = _read_tail(log)
    last = tail.rfind(SNAPSHOT_MARK)
    path, position = session_file_path(session, ".snapshot"), b"%d" % (begin + last)
    if last < 0 or read_part(path, 0, 20) == position:
        return False
    _replace(path, position)
    return True


def find_exit_code(id: bytes, log: bytes) -> int | None:
    """Return the exit code of a command from the log of Codex, or None. The hook event does not contain it."""
    mark = b'"' + id + b'"'
    for line in _read_tail(log)[1].split(b"\n") if id else ():
        code_index = line.rfind(b'"exit_code":') if mark in line else -1
        if code_index >= 0:
            digits = line[code_index + 12 : code_index + 20].lstrip().split(b",")[0].split(b"}")[0]
            if digits.lstrip(b"-").isdigit():
                return int(digits)
    return None


def record_internal_error(agent: str, error: BaseException) -> None:
    """Append one line for `mulligan doctor` with the error's class. Its message may be untrusted and is left out."""
    try:
        path = os.path.join(hooks_folder(), "faults")
        if os.path.exists(path) and os.path.getsize(path) > MAX_ERROR_FILE_BYTES:
            os.replace(path, path + ".old")
        _append(path, b"%d %s %s\n" % (int(time.time() * 1000), agent.encode(), type(error).__name__.encode()))
    except OSError:
        pass  # the folder is not writable, and there is no other place to report it


def read_part(path: str, offset: int, limit: int) -> bytes:
    """Read a part of a file. A file that cannot be read is empty."""
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            return file.read(limit) or b""
    except OSError:
        return b""


def _read_tail(log: bytes) -> tuple[int, bytes]:
    """Return the end of a log and its position."""
    try:
        begin = max(0, os.path.getsize(log) - MAX_TAIL_BYTES)
    except (OSError, ValueError):
        return 0, b""
    return begin, read_part(os.fsdecode(log), begin, MAX_TAIL_BYTES)


def _append(path: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        file = os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        file = os.open(path, flags, 0o600)
    os.write(file, data)
    os.close(file)


def _replace(path: str, data: bytes) -> None:
    """Write a file atomically."""
    temporary_path = f"{path}.{os.getpid()}"
    _append(temporary_path, data)
    os.replace(temporary_path, path)


def _remove(path: str) -> None:
    try:  # noqa: SIM105 - contextlib would slow down the early exit
        os.unlink(path)
    except FileNotFoundError:
        pass
