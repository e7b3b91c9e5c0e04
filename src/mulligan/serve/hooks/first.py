"""First stage of a hook: decide from the bytes whether the event needs processing, with almost no imports.

A successful call is appended to a file of its session as one line with its tool and id. The second stage counts these
lines later. It runs for a failure, a compaction, the end of a session, and for a success of a tool whose last call
failed: that success may be a recovery.
"""

from __future__ import annotations

import os
import sys
import time

TAIL = 262_144
"""End of a session log that is searched for a command's exit code."""
SNAPSHOT = b"<state_snapshot>"
"""Start of the summary that Gemini CLI writes when it compresses a conversation."""
ENDINGS = (".calls", ".open", ".snapshot")
"""Suffixes of the files of one session."""
FAULTS = 65_536
"""Limit of the file that counts internal errors. A larger file is rotated."""
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def needs_more(agent: str, data: bytes) -> bool:
    """Return whether the second stage must process an event. If not, append its successful calls to a file."""
    event, session = field(data, b"hook_event_name"), field(data, b"session_id")
    if not data:
        return False
    if not session or not event:
        return True  # perhaps formatted differently: the second stage parses it
    if event == b"SessionStart":
        return field(data, b"source") == b"compact"
    if event == b"PreCompress":
        return field(data, b"trigger") == b"manual" or _is_compressed(data, session)
    if event == b"SessionEnd":
        return any(os.path.exists(place(session, ending)) for ending in ENDINGS)
    if event == b"BeforeAgent":
        return b"*" in _open(session)
    if event not in (b"PostToolUse", b"PostToolUseFailure", b"PostToolBatch", b"AfterTool"):
        return False
    called = _called(data)
    if called is None or _has_failed(agent, event, data):
        return True
    names = _open(session)
    if names and (b"*" in names or any(name in names for name, _ in called)):
        return True
    _note(session, called)
    return False


def _has_failed(agent: str, event: bytes, data: bytes) -> bool:
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
        return field(data, b"tool_name") == b"Bash" and exit_code(data) != 0
    if b'"error":' in data and b'"error":null' not in data:
        return True
    code = data.find(b"Exit Code: ")
    return code >= 0 and data[code + 11 : code + 12] != b"0" and data[code + 11 : code + 17] != b"(none)"


def _is_compressed(data: bytes, session: bytes) -> bool:
    """Return whether Gemini CLI's log has a new summary. PreCompress only says that a compression may follow."""
    log = os.fsdecode(field(data, b"transcript_path"))
    try:
        with open(log, "rb", buffering=0) as file:
            begin = max(0, file.seek(0, 2) - TAIL)
            file.seek(begin)
            last = file.read(TAIL).rfind(SNAPSHOT)
    except OSError:
        return False
    if last < 0:
        return False
    seen = place(session, ".snapshot")
    try:
        with open(seen, "rb", buffering=0) as file:
            known = file.read(20)
    except OSError:
        known = b""
    if known == b"%d" % (begin + last):
        return False
    if known:
        os.unlink(seen)
    append(seen, b"%d" % (begin + last))
    return True


def exit_code(data: bytes) -> int | None:
    """Return a command's exit code from the log of Codex, or None. The hook event does not contain it."""
    id, log = field(data, b"tool_use_id"), field(data, b"transcript_path")
    if not id or not log:
        return None
    try:
        with open(log, "rb", buffering=0) as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            tail = file.read(TAIL)
    except OSError:
        return None
    mark = b'"' + id + b'"'
    place = tail.find(mark)
    while place >= 0:
        line = tail[tail.rfind(b"\n", 0, place) + 1 : _end(tail, place)]
        code = line.rfind(b'"exit_code":')
        if code >= 0:
            digits = line[code + 12 : code + 20].lstrip().split(b",")[0].split(b"}")[0]
            if digits.lstrip(b"-").isdigit():
                return int(digits)
        place = tail.find(mark, place + 1)
    return None


def _end(text: bytes, place: int) -> int:
    end = text.find(b"\n", place)
    return end if end >= 0 else len(text)


def field(data: bytes, name: bytes) -> bytes:
    """Return the first string value of this name. Empty if it is absent or contains escapes."""
    _, found, rest = data.partition(b'"' + name + b'":')
    if not found:
        return b""
    rest = rest[:1024].lstrip()
    value, end, _ = rest[1:].partition(b'"')
    return value if rest[:1] == b'"' and end and b"\\" not in value else b""


def _called(data: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return tool and id of each call, or None if the bytes alone do not show them."""
    names, ids = _all(data, b'"tool_name":'), _all(data, b'"tool_use_id":')
    if not ids:
        ids = [b"-"] * len(names)  # the agent sends no ids
    plain = all(name and _PLAIN.issuperset(name) for name in (*names, *ids))
    return list(zip(names, ids)) if names and plain and len(names) == len(ids) else None  # noqa: B905 - equal lengths


def _all(data: bytes, name: bytes) -> list[bytes]:
    found = []
    place = data.find(name)
    while place >= 0:
        rest = data[place + len(name) : place + len(name) + 256].lstrip()
        value, end, _ = rest[1:].partition(b'"')
        found.append(value if rest[:1] == b'"' and end else b"")
        place = data.find(name, place + len(name))
    return found


# Session files, next to the store


def folder() -> str:
    """Return the folder of the session files. It must not depend on a settings file, which is slow to read."""
    own = os.environ.get("MULLIGAN_HOME")
    if own:
        return os.path.join(os.path.expanduser(own), "hooks")
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Application Support/mulligan/hooks")
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return os.path.join(data, "mulligan", "hooks")


def place(session: bytes, ending: str) -> str:
    plain = len(session) <= 100 and session[:1] != b"." and _PLAIN.issuperset(session)
    name = session.decode() if plain else "x" + session[:60].hex()
    return os.path.join(folder(), name + ending)


def _open(session: bytes) -> list[bytes]:
    """Return the tools whose last call failed. `*` stands for a reminder that the next event must deliver."""
    try:
        with open(place(session, ".open"), "rb", buffering=0) as file:
            return file.read(65_536).split(b"\n")
    except OSError:
        return []


def _note(session: bytes, called: list[tuple[bytes, bytes]]) -> None:
    moment = int(time.time() * 1000)
    line = b"%d %s\n" % (moment, b" ".join(name + b":" + id for name, id in called))
    append(place(session, ".calls"), line)


def append(path: str, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        file = os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        file = os.open(path, flags, 0o600)
    os.write(file, line)
    os.close(file)


def count_fault(agent: str, error: BaseException) -> None:
    """Append one line for `mulligan doctor` with the error's class. Its message may be untrusted and is left out."""
    try:
        path = os.path.join(folder(), "faults")
        if os.path.exists(path) and os.path.getsize(path) > FAULTS:
            os.replace(path, path + ".old")
        append(path, b"%d %s %s\n" % (int(time.time() * 1000), agent.encode(), type(error).__name__.encode()))
    except OSError:
        pass  # the folder is not writable, and there is no other place to report it
