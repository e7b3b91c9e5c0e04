"""Files of a session next to the store, and the end of the agent's log, read and written with almost no imports.

`.calls` has one line for each turn of successful calls, until the next stored event counts them. `.open` has the tools
with an open failure and the ids of failed calls. `.snapshot` has the position of the last compression in the log of
Gemini CLI. `.proxied` has the tools of MCP servers behind our proxy. `.spool` has redacted events that could not be
stored, in frames of the journal. `.noted` marks that the user was told so.
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
FAILED_MARK = b"!"
"""Start of a line of `.open` with the id of a failed call."""
SUFFIXES = (".calls", ".open", ".snapshot", ".proxied", ".spool", ".noted")
MAX_SPOOL_BYTES = 8_388_608
"""Limit of the spooled events of a session."""
AGENT_PREFIX = "pid-"
"""Start of the name of a file that belongs to the process of an agent."""
MAX_PROXIED_BYTES = 65_536
MAX_PROXIED_AGE_SECONDS = 30 * 86_400
MAX_ANCESTORS = 4
"""Ancestors of a hook among which its agent is searched: agents start hooks through a shell."""
TOOL_NAME_TEMPLATES = (b"mcp__%s__%s", b"mcp_%s_%s", b"%s_%s")
"""Names of a server's tool in Claude Code and Codex, in Gemini CLI and in OpenCode."""
APPEND_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
"""Windows would otherwise translate line ends, also inside frames."""
SAFE_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def hooks_folder() -> str:
    """Return the folder of the session files. It must not depend on a settings file, which is slow to read."""
    home_folder = os.environ.get("MULLIGAN_HOME")
    if home_folder:
        return os.path.join(os.path.expanduser(home_folder), "hooks")
    variable = {"darwin": "", "win32": "LOCALAPPDATA"}.get(sys.platform, "XDG_DATA_HOME")
    data = os.environ.get(variable) if variable else ""
    return os.path.join(data, "mulligan", "hooks") if data else _default_hooks_folder()


def _default_hooks_folder() -> str:
    """Return the folder that a process uses to which its agent hands no variables but HOME."""
    folders = {"darwin": "~/Library/Application Support", "win32": "~/AppData/Local"}
    return os.path.expanduser(folders.get(sys.platform, "~/.local/share") + "/mulligan/hooks")


def session_file_path(session: bytes, suffix: str, folder: str = "") -> str:
    is_safe_name = len(session) <= 100 and session[:1] != b"." and SAFE_BYTES.issuperset(session)
    name = session.decode() if is_safe_name else "x" + session[:60].hex()
    return os.path.join(folder or hooks_folder(), name + suffix)


def has_session_files(session: bytes) -> bool:
    return any(os.path.exists(session_file_path(session, suffix)) for suffix in SUFFIXES)


def remove_session_files(session: str) -> None:
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
    """Return the tools whose last call failed, and the ids of recent failed calls after `FAILED_MARK`.

    `*` stands for a reminder that the next event must deliver.
    """
    return read_part(session_file_path(session, ".open"), 0, 65_536).split(b"\n")


def write_open_tools(session: str, names: Iterable[str]) -> None:
    path = session_file_path(session.encode(), ".open")
    content = "\n".join(dict.fromkeys(names)).encode("utf-8", "replace")
    if content:
        _replace(path, content)
    else:
        _remove(path)


def add_proxied_tool(session: str, server: str, tool: str) -> None:
    """Record that our proxy records the calls of an MCP tool, so that a hook does not record them again.

    The process of the agent identifies it while the proxy runs: some agents do not tell their servers the session, and
    some begin another session. The session identifies it later, when its log is read.
    """
    line = b"%s %s %d" % (tool_key(server), tool_key(tool), os.getpid())
    for owner in (session, AGENT_PREFIX + str(os.getppid())):
        path = session_file_path(owner.encode("utf-8", "replace"), ".proxied")
        if owner and line not in read_part(path, 0, MAX_PROXIED_BYTES).split(b"\n"):
            _append(path, line + b"\n")
    for name in os.listdir(hooks_folder()):
        pid, path = name.removeprefix(AGENT_PREFIX).partition(".")[0], os.path.join(hooks_folder(), name)
        is_stale = name.startswith(AGENT_PREFIX) and pid.isdigit() and not _is_alive(int(pid))
        # Without hooks, nobody removes the file of a session.
        if is_stale or (name.endswith(".proxied") and time.time() - os.path.getmtime(path) > MAX_PROXIED_AGE_SECONDS):
            _remove(path)


def read_proxied_tools(session: str) -> set[bytes]:
    """Return the keys of the tools that our proxy records for this agent, in the spellings of all agents.

    Codex hands its servers no variables, so its proxy writes to the default folder.
    """
    names: set[bytes] = set()
    for folder in {hooks_folder(), _default_hooks_folder()}:
        for owner in (session, *(AGENT_PREFIX + str(pid) for pid in _ancestors())):
            path = session_file_path(owner.encode("utf-8", "replace"), ".proxied", folder)
            for line in read_part(path, 0, MAX_PROXIED_BYTES).split(b"\n"):
                fields = line.split(b" ")
                if len(fields) == 3 and (owner == session or (fields[2].isdigit() and _is_alive(int(fields[2])))):
                    names.update(template % (fields[0], fields[1]) for template in TOOL_NAME_TEMPLATES)
    return names


def tool_key(name: str) -> bytes:
    """Return a name as agents write it in the names of tools."""
    return bytes(byte if byte in SAFE_BYTES and byte != 46 else 95 for byte in name.encode("utf-8", "replace"))


def _ancestors() -> Iterable[int]:
    pid = os.getppid()
    for _ in range(MAX_ANCESTORS):
        if pid <= 1:
            return
        yield pid
        stat = read_part(f"/proc/{pid}/stat", 0, 1024)  # on other systems only the parent is known
        fields = stat.rpartition(b")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":  # where os.kill with 0 would send Ctrl+C
        import ctypes

        handle = ctypes.windll.kernel32.OpenProcess(0x1000, False, pid)  # with the right to query it
        if handle:
            ctypes.windll.kernel32.CloseHandle(handle)
        return bool(handle)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it belongs to another user
    return True


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


def remove_spool(session: str, size: int) -> None:
    """Remove the spooled events, which are stored, unless another process has added one since they were read."""
    path = session_file_path(session.encode("utf-8", "replace"), ".spool")
    if size:
        with _LockedFile(path) as file:
            if os.fstat(file).st_size == size:
                _remove(path)


def append_frame(session: str, frame: bytes, *, must_process_next: bool = True) -> None:
    """Spool an event that is not stored yet. `must_process_next` makes the next event of the session store it."""
    path = session_file_path(session.encode("utf-8", "replace"), ".spool")
    with _LockedFile(path) as file:
        if os.fstat(file).st_size + len(frame) > MAX_SPOOL_BYTES:
            raise OSError(f"{path} is full")
        if os.write(file, frame) != len(frame):
            raise OSError(f"No space left for {path}")
    if must_process_next:
        _append(session_file_path(session.encode("utf-8", "replace"), ".open"), b"\n*")


def mark_noted(session: bytes) -> bool:
    """Return whether the user was not told yet in this session that nothing is stored."""
    mark = session_file_path(session, ".noted")
    temporary_folder = os.environ.get("TMPDIR") or os.environ.get("TEMP") or "/tmp"
    for path in (mark, os.path.join(temporary_folder, "mulligan-" + os.path.basename(mark))):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        except OSError:
            continue  # the folder is missing or not writable
        return True
    return False  # rather no note than one for each event


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


class _LockedFile:
    """File that only one process uses at a time."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> int:
        os.makedirs(os.path.dirname(self._path), 0o700, exist_ok=True)
        while True:
            self._file = os.open(self._path, APPEND_FLAGS, 0o600)
            if sys.platform != "win32":
                import fcntl

                fcntl.flock(self._file, fcntl.LOCK_EX)
            if sys.platform == "win32" or os.fstat(self._file).st_nlink:
                return self._file
            os.close(self._file)  # removed while this process waited

    def __exit__(self, *raised: object) -> None:
        os.close(self._file)


def _append(path: str, data: bytes) -> None:
    try:
        file = os.open(path, APPEND_FLAGS, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        file = os.open(path, APPEND_FLAGS, 0o600)
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
