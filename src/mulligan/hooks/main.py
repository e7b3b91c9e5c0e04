"""mulligan-hook: read one event, write the response, never disturb the agent."""

from __future__ import annotations

import gc
import os
import sys

from mulligan.hooks import AGENTS, session_files

TYPE_CHECKING = False  # importing typing would slow down the early exit
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
else:
    ModuleType = type(sys)

MAX_EVENT_BYTES = 32_000_000
"""Limit of an event. A larger one is ignored."""
UNUSED_MODULES = ("ipaddress", "platform", "textwrap", "msgspec.inspect", "msgspec.toml", "msgspec.yaml")
"""Modules that dependencies import but rarely use."""


def main() -> None:
    """Process one event. Internal errors are counted but never shown: the agent must continue."""
    agent = sys.argv[1] if len(sys.argv) > 1 else ""
    if agent not in AGENTS:
        os.write(2, b"mulligan-hook %s: reads an event of that agent on stdin.\n" % "|".join(AGENTS).encode())
        os._exit(1)  # not 2, which makes some agents stop
    data = b""
    try:
        data = _read_stdin()
        if should_process(agent, data):
            gc.disable()  # no garbage outlives this process
            _find_packages()
            response = _process(agent, data)
            while response:
                response = response[os.write(1, response) :]
    except BaseException as error:  # noqa: BLE001 - a hook must not fail
        session_files.record_internal_error(agent, error)
        is_for_user = type(error).__name__ in ("StoreError", "SettingsError")
        if is_for_user and session_files.mark_noted(_find_session(data)):
            from msgspec import json

            # Shown to the user, not to the model.
            os.write(1, json.encode({"systemMessage": f"mulligan records nothing: {error}"}))
    os._exit(0)  # skips the interpreter's shutdown, which would double the run time


def _process(agent: str, data: bytes) -> bytes:
    """Store or spool an event and return the response."""
    if has_only_successes(agent, data):
        from mulligan.hooks.success_spool import spool_successes

        if spool_successes(agent, data):
            return b""
    from mulligan.hooks.event_processing import process_event  # takes 60 ms

    return process_event(agent, data)


def has_only_successes(agent: str, data: bytes) -> bool:
    """Return whether an event that must be processed only reports successful calls, and waits for no reminder."""
    event, session = find_field(data, b"hook_event_name"), _find_session(data)
    return (
        agent in ("claude-code", "cursor", "gemini")
        and event in (b"PostToolUse", b"PostToolBatch", b"AfterTool", b"postToolUse")
        and bool(_parse_calls(data))
        and not _may_have_failed(agent, event, data)
        and b"*" not in session_files.read_open_tools(session)
    )


def should_process(agent: str, data: bytes) -> bool:
    """Return whether an event needs the store, by its bytes. If not, append its successful calls to a file.

    A failure, a compaction and the end of a session need it, and so does the success of a tool whose last call failed.
    """
    disabling_values = ("off", "0", "false")
    if any(os.environ.get(name, "").lower() in disabling_values for name in ("MULLIGAN", "MULLIGAN_ENABLED")):
        return False
    if not data or os.environ.get("MULLIGAN_RECORD") == "off":
        return False
    event, session = find_field(data, b"hook_event_name"), _find_session(data)
    if not session or not event:
        return True  # perhaps formatted differently
    match event:
        case b"SessionStart":
            return find_field(data, b"source") == b"compact"
        case b"PreCompress":
            return find_field(data, b"trigger") == b"manual" or session_files.has_new_snapshot(
                session, find_field(data, b"transcript_path")
            )
        case b"SessionEnd" | b"sessionEnd":
            return session_files.has_session_files(session)
        case b"BeforeAgent":
            return b"*" in session_files.read_open_tools(session)
        case b"PostToolUseFailure" | b"PreCompact" | b"ToolFailed" | b"SessionCompacted" | b"SessionIdle":
            return True
        case b"postToolUseFailure" | b"preCompact":
            return True
        case b"PostToolUse" | b"PostToolBatch" | b"AfterTool" | b"postToolUse":
            calls = _parse_calls(data)
            if not calls or _may_have_failed(agent, event, data):
                return True
            open_tools = session_files.read_open_tools(session)
            # A failed call of this batch was reported by an event of its own.
            names = [name for name, id in calls if session_files.FAILED_MARK + id not in open_tools]
            if b"*" in open_tools or any(name in open_tools for name in names):
                return True
            session_files.append_calls(session, calls)
    return False


def _may_have_failed(agent: str, event: bytes, data: bytes) -> bool:
    if agent == "claude-code":
        # PostToolUseFailure reports errors inside a tool. Errors before execution and rejections by a person appear
        # only in the responses of a batch.
        marks = (b"<tool_use_error>", b'"The user doesn', b'"Claude requested p', b'"Permission to use ')
        return event == b"PostToolBatch" and any(mark in data for mark in marks)
    if agent == "codex":
        id, log = find_field(data, b"tool_use_id"), find_field(data, b"transcript_path")
        return find_field(data, b"tool_name") == b"Bash" and session_files.find_exit_code(id, log) != 0
    if agent == "cursor":
        return data.count(b'\\"exitCode\\":') != data.count(b'\\"exitCode\\":0')
    if agent == "copilot":
        return data.count(b" completed with exit code ") != data.count(b" completed with exit code 0>")
    if (b'"error":' in data and b'"error":null' not in data) or b"cancelled because it exceeded the timeout" in data:
        return True
    _, mark, code = data.partition(b"Exit Code: ")
    return b"\\nSignal: " in data or (bool(mark) and not code.startswith((b"0", b"(none)")))


def _parse_calls(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return tool and id of each call, or an empty list if the bytes alone do not show them."""
    names, ids = list(_find_values(data, b"tool_name")), list(_find_values(data, b"tool_use_id"))
    if b'"mcp_context":' in data:  # Gemini CLI names the server and its tool once more
        names = [b"mcp__%s__%s" % (find_field(data, b"server_name"), names[-1])] if names else []
    names = [name[4:].rpartition(b":")[2] if name[:4] == b"MCP:" else name for name in names]  # Cursor
    ids = ids or [b"-"] * len(names)  # an agent that sends no ids
    is_safe = all(value and session_files.SAFE_BYTES.issuperset(value) for value in (*names, *ids))
    return list(zip(names, ids, strict=True)) if is_safe and len(names) == len(ids) else []


def _find_session(data: bytes) -> bytes:
    """Return the id of the session. Some events of Cursor only have that of the conversation, which is the same."""
    return find_field(data, b"session_id") or find_field(data, b"conversation_id")


def find_field(data: bytes, name: bytes) -> bytes:
    """Return the first string value of this name. Empty if it is absent or contains escapes."""
    return next(_find_values(data, name), b"")


def _find_values(data: bytes, name: bytes) -> Iterator[bytes]:
    key = b'"' + name + b'":'
    index = data.find(key)
    while index >= 0:
        index += len(key)
        text = data[index : index + 1024].lstrip()
        value, quote, _ = text[1:].partition(b'"')
        yield value if text[:1] == b'"' and quote and b"\\" not in value else b""
        index = data.find(key, index)


def _read_stdin() -> bytes:
    parts = []
    size = 0
    while part := os.read(0, 1_048_576):
        size += len(part)
        if size <= MAX_EVENT_BYTES:
            parts.append(part)
    return b"".join(parts) if size <= MAX_EVENT_BYTES else b""


class _LazyModule(ModuleType):
    """Module that is imported when an attribute is first used."""

    def system(self) -> str:
        """Answer for `platform`: `uuid` asks for the system's name whenever it is imported."""
        return os.uname().sysname if hasattr(os, "uname") else "Windows"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)  # the import system probes for these
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(__import__(self.__name__, fromlist=[name]), name)


def _find_packages() -> None:
    """Make msgspec importable. It is usually installed next to us, so that the interpreter needs no `site`."""
    sys.modules.setdefault("typing_extensions", None)  # type: ignore[arg-type] # msgspec imports it if it can
    for name in UNUSED_MODULES:
        sys.modules.setdefault(name, _LazyModule(name))
    try:
        import msgspec  # noqa: F401 - imported for the side effect
    except ImportError:
        import site

        # `site` reads this variable in spite of -E and executes files in that folder, which a repository may control.
        os.environ.pop("PYTHONUSERBASE", None)
        site.main()
