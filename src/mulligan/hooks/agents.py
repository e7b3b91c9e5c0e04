"""Events of the coding agents in one format for all, and the stored state of a session.

Claude Code: PostToolUseFailure reports an error inside a tool. An error before execution, such as an edit whose text
is not found or invalid arguments, appears only in PostToolBatch, between marks.

Codex: the event does not say whether a command failed, and rejected calls and errors of MCP servers trigger no hook.
Calls are therefore read from the session log, with the reader that `mulligan scan` uses.

Gemini CLI: a tool's response says whether it failed; a shell's response contains the exit code. PreCompress comes
before each model call, and only the log shows a compression. Its hook cannot return text, so the reminder follows with
the next prompt or tool result. A call of an unknown tool triggers no hook; it is read from the log at the end.

Copilot CLI: its events name neither the call nor the log, and rename some tools. A failed command is reported like a
success, with its exit code at the end. PreCompact cannot return text: the reminder follows with the next result.

Cursor: its documentation lets only the event of a successful call return text, so the hint about a failure and the
reminder follow with the next result. Its log is not read: only calls after a failure are known with their arguments.

OpenCode and Pi: a plugin sends failed calls, compactions and the end of a turn. Successes are read from the session
log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import msgspec

from mulligan.core.records import ANY_FIX, Step, digest
from mulligan.hooks import session_files

MAX_HEAD_BYTES = 262_144
MAX_HEAD_LINES = 50
"""Start of a session log that is searched for the user's first prompt, in lines."""
REJECTION_PREFIXES = ("The user doesn't want to", "Claude requested permissions to", "Permission to use ")
"""First words of Claude Code's response to a call that a person or a permission rule rejected."""
REJECTION_ERROR_TYPES = ("invalid_tool_params", "tool_not_registered")
"""Gemini CLI's error types of a call that was rejected before execution."""

COPILOT_TOOLS = {
    "Bash": "bash", "Edit": "edit", "Glob": "glob", "Grep": "grep", "Read": "view", "Write": "create",
}  # fmt: skip
"""Names of tools in Copilot CLI's events, and in its log."""

EventType = Literal["calls", "compacting", "compacted", "prompted", "ended"]
"""`compacting` comes before a compaction, when no text can be returned. `prompted` allows text to be returned."""

EVENT_TYPES: dict[str, EventType] = {
    "PostToolUse": "calls",  # Codex
    "PostToolUseFailure": "calls",
    "PostToolBatch": "calls",  # Claude Code
    "AfterTool": "calls",  # Gemini CLI
    "ToolFailed": "calls",  # our plugins
    "BeforeAgent": "prompted",
    "PreCompress": "compacting",
    "PreCompact": "compacting",  # Copilot CLI
    "SessionStart": "compacted",
    "SessionCompacted": "compacted",
    "SessionEnd": "ended",
    "SessionIdle": "ended",
    "postToolUse": "calls",  # Cursor
    "postToolUseFailure": "calls",
    "preCompact": "compacting",
    "sessionEnd": "ended",
}


class AgentCall(msgspec.Struct, frozen=True, kw_only=True):
    """Tool call of a coding agent with its result."""

    id: str
    name: str
    server: str | None = None
    arguments: Any = None
    error: str | None = None
    """Error text if the call failed."""
    duration_seconds: float = 0.0
    is_interrupted: bool = False
    """Whether a person interrupted the call."""
    is_rejected: bool = False
    """Whether the call was rejected before execution."""


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    type: EventType
    name: str
    """Name of the event in the agent. The response repeats it."""
    session: str
    folder: str
    log: str
    """Path of the session log."""
    calls: tuple[AgentCall, ...] = ()
    model: str = ""
    """The model of the turn, where the agent names it."""

    @property
    def ends_turn(self) -> bool:
        """Whether a batch of calls has ended and the model is called next."""
        return self.type == "calls" and self.name != "PostToolUseFailure"

    @property
    def can_return_text(self) -> bool:
        """Whether the agent hands the text of a response to its model."""
        return self.type != "compacting" and self.name != "postToolUseFailure"


class SpooledEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Event that could not be stored: the store was locked or unavailable. Its calls are redacted."""

    id: str
    at: int
    """Time of the event in UTC milliseconds."""
    event: AgentEvent
    """The event without its calls."""
    calls: list[tuple[str, Step]]
    proxied: list[str] = []
    """Ids of calls that our proxy has recorded."""


def parse_event(agent: str, event: Mapping[str, Any]) -> AgentEvent | None:
    """Return the event, or None if there is nothing to do. Events are not validated by the agents."""
    if agent == "cursor":
        event = _rename_cursor_fields(event)
    name = _text(event.get("hook_event_name"))
    event_type = EVENT_TYPES.get(name)
    if event_type is None or (event_type == "compacted" and event.get("source") != "compact"):
        return None
    log = _text(event.get("transcript_path"))
    if agent == "copilot":
        log = _find_copilot_log(_text(event.get("session_id")))
    raw_calls: Any = [event] if event_type == "calls" else []
    if name == "PostToolBatch":
        raw_calls = event.get("tool_calls")
    raw_calls = raw_calls if isinstance(raw_calls, list) else []
    return AgentEvent(
        agent=agent,
        type=event_type,
        name=name,
        session=_text(event.get("session_id")),
        folder=_text(event.get("cwd")),
        log=log,
        model=_text(event.get("model")),
        calls=tuple(_parse_call(agent, name, raw_call, log) for raw_call in raw_calls if isinstance(raw_call, dict)),
    )


def _rename_cursor_fields(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event of Cursor with the names of fields that other agents use."""
    folders = event.get("workspace_roots")
    return {
        **event,
        "session_id": event.get("session_id") or event.get("conversation_id"),
        "cwd": folders[0] if isinstance(folders, list) and folders else event.get("cwd"),
        "transcript_path": "",
        "tool_name": _text(event.get("tool_name")).rpartition(":")[2],  # `MCP:search`
        "error": event.get("error_message"),
        "duration_ms": event.get("duration"),
    }


def _find_copilot_log(session: str) -> str:
    folder = os.environ.get("COPILOT_HOME") or os.path.join("~", ".copilot")
    return os.path.join(os.path.expanduser(folder), "session-state", session, "events.jsonl")


def _parse_call(agent: str, event_name: str, raw_call: Mapping[str, Any], log: str) -> AgentCall:
    if isinstance(part := raw_call.get("part"), dict):
        from mulligan.transcripts.opencode import parse_part

        call = parse_part(part)
        if call is None:
            return AgentCall(id="", name="")
        return AgentCall(id=call.id, name=call.name, arguments=call.arguments, error=call.error)
    name, server = split_tool_name(_text(raw_call.get("tool_name")))
    if agent == "copilot":
        name = COPILOT_TOOLS.get(name, name)
    id, response, error, is_rejected = _text(raw_call.get("tool_use_id")), raw_call.get("tool_response"), None, False
    match event_name:
        case "PostToolUseFailure" | "ToolFailed" | "postToolUseFailure":
            error = _text(raw_call.get("error")) or "failed"
            is_rejected = "denied" in _text(raw_call.get("failure_type"))
        case "postToolUse":
            error = _find_cursor_error(raw_call.get("tool_output"))
        case "PostToolBatch":
            error = _find_marked_error(_text(response).lstrip())
        case "PostToolUse" if agent == "copilot":
            error = _find_copilot_error(raw_call.get("tool_result"))
        case "PostToolUse" if name == "Bash":
            code = session_files.find_exit_code(id.encode("utf-8", "replace"), log.encode("utf-8", "replace"))
            error = f"Exit code {code}\n{_text(response)}" if code else None
        case "AfterTool" if isinstance(response, dict):
            error = _find_gemini_error(response, name)
            details = response.get("error")
            is_rejected = isinstance(details, dict) and details.get("type") in REJECTION_ERROR_TYPES
    context = raw_call.get("mcp_context")
    if isinstance(context, dict) and _text(context.get("server_name")) and _text(context.get("tool_name")):
        name, server = context["tool_name"], context["server_name"]
    milliseconds = raw_call.get("duration_ms")
    return AgentCall(
        id=id,
        name=name,
        server=server,
        arguments=raw_call.get("tool_input"),
        error=error,
        duration_seconds=milliseconds / 1000 if isinstance(milliseconds, int | float) and milliseconds >= 0 else 0.0,
        is_interrupted=raw_call.get("is_interrupt") is True,
        is_rejected=is_rejected,
    )


def _find_marked_error(response: str) -> str | None:
    """Return the error between the marks, or the text of a rejection. None if the call was executed."""
    if response.startswith("<tool_use_error>"):
        return response.removeprefix("<tool_use_error>").rpartition("</tool_use_error>")[0] or response
    return response if response.startswith(REJECTION_PREFIXES) else None


def _find_copilot_error(result: Any) -> str | None:
    text = _text(result.get("text_result_for_llm")) if isinstance(result, dict) else ""
    exit_line = re.search(r"\n<shellId: \S+ completed with exit code (-?\d+)>\s*\Z", f"\n{text}")
    return f"Exit code {exit_line[1]}\n{text}" if exit_line and exit_line[1] != "0" else None


def _find_cursor_error(output: Any) -> str | None:
    """Return the error of a command whose result has another exit code than 0."""
    try:
        result = msgspec.json.decode(_text(output))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None  # the result of another tool
    code = result.get("exitCode") if isinstance(result, dict) else None
    if not isinstance(code, int) or code == 0:
        return None
    texts = (_text(result.get(name)) for name in ("output", "stdout", "stderr"))
    return "\n".join([f"Exit code {code}", *filter(None, texts)])


def _find_gemini_error(response: Mapping[str, Any], tool: str) -> str | None:
    from mulligan.classify.tool_category import find_category_of_name
    from mulligan.transcripts.gemini import find_command_error  # most events need no transcript reader

    content = _content_text(response.get("llmContent")) or _content_text(response.get("returnDisplay"))
    if error := response.get("error"):
        return _text(error.get("message") if isinstance(error, dict) else error) or content or "failed"
    # A file may contain what a shell prints.
    return find_command_error(content) if find_category_of_name(tool) == "shell" else None


def _content_text(content: Any) -> str:
    parts = content if isinstance(content, list) else [content]
    return "\n".join(_text(part.get("text") if isinstance(part, dict) else part) for part in parts[:50])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def split_tool_name(name: str) -> tuple[str, str | None]:
    """Split `mcp__SERVER__TOOL` into tool and server. Other names have no server."""
    if name.startswith("mcp__"):
        server, _, tool = name[5:].partition("__")
        if server and tool:
            return tool, server
    return name, None


def join_tool_name(step: Step) -> str:
    """Return the name of a tool as the agent writes it."""
    return f"mcp__{step.server}__{step.name}" if step.server else step.name


def build_response(
    event: AgentEvent, message: str, replacement: tuple[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Build a response with a message for the model. A replacement is executed in place of a failed call."""
    if event.agent == "cursor":
        return {"additional_context": message}
    output: dict[str, Any] = {"hookEventName": event.name, "additionalContext": message}
    if replacement is not None:
        output["tailToolCallRequest"] = {"name": replacement[0], "args": dict(replacement[1])}
    response: dict[str, Any] = {"hookSpecificOutput": output}
    return response | {"additionalContext": message} if event.agent == "copilot" else response


# Session logs


def find_user_prompt(log: str) -> str:
    """Return the start of the user's first prompt from the session log of Claude Code or Codex."""
    from mulligan.capture.value_recording import MAX_USER_CHARS, truncate_at_word  # once per session

    for line in _read_log_head(log):
        message = line.get("message") or line.get("payload")
        if not isinstance(message, dict) or line.get("isMeta") or "user" not in (line.get("type"), message.get("role")):
            continue
        content = message.get("content")
        for part in content if isinstance(content, list) else [{"text": content}]:
            prompt = _text(part.get("text")) if isinstance(part, dict) else ""
            if prompt and not prompt.startswith(("<", "# AGENTS")):
                return truncate_at_word(prompt, MAX_USER_CHARS)
    return ""


def _read_log_head(log: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in the first lines of a log."""
    for line in session_files.read_part(log, 0, MAX_HEAD_BYTES).split(b"\n")[:MAX_HEAD_LINES]:
        try:
            entry = msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue  # truncated, or not JSON
        if isinstance(entry, dict):
            yield entry


# State of a session in the key-value store, next to its failures


HOOK_STATE_KIND = "hook"
"""Key-value kind of this state. The key is the session id."""
_LETTERS = b"abcdefghijklmnopqrstuvwxyz234567"


class HookState(msgspec.Struct, omit_defaults=True):
    MAX_CALL_IDS: ClassVar[int] = 200
    MAX_BATCHES: ClassVar[int] = 20
    """Number of recent calls and batches that are recognized as duplicates."""

    agent: str
    folder: str = ""
    run: str = ""
    """Id of the session's run."""
    started_at: int = 0
    at: int = 0
    """Time of the last event in UTC milliseconds."""
    seq: int = 0
    """Number of steps so far."""
    is_stored: bool = False
    """Whether the run is stored. Calls of servers behind our proxy are in the proxy's run."""
    read: int = 0
    """Offset in the file of successful calls."""
    spooled: str = ""
    """Id of the last spooled event that was stored."""
    ids: list[str] = []
    """Recent call ids, each with whether it succeeded."""
    failed_calls: dict[str, int] = {}
    """Recent failed calls by id, each with its number in the run."""
    logged: int = 0
    """Number of calls of the session log that are recorded."""
    unlogged: list[tuple[str, int]] = []
    """Recent calls of events without an id, each with its number in the run, until the log has them."""
    batches: list[str] = []
    """Recent batches, by the ids of their calls."""
    fingerprints: list[str] = []
    """Recent failures. General advice about one is given once."""
    advice: list[tuple[str, int, str]] = []
    """What the agent was told: tool, failed call, fix. `ANY_FIX` stands for any tool, or for a fix without id."""
    held_out: list[tuple[int, str]] = []
    """What the agent was not told, to measure its effect: failed call and fix."""
    postponed: str = ""
    """Hint that follows with the next event that can return text."""
    reminder: str = ""
    """Whether a reminder was `shown` or `held out`; empty before a compaction."""
    compacted: int = 0
    compacted_at: tuple[int, int] = (0, 0)
    """Step and turn of the last compaction; `compacted` is its time in UTC milliseconds."""

    def list_advice(self, tool: str) -> tuple[str, ...]:
        """Return the fixes that the agent was told about a tool, by id."""
        return tuple(dict.fromkeys(fix for advised_tool, _, fix in self.advice if advised_tool in (tool, ANY_FIX)))

    @property
    def folder_suffix(self) -> str:
        """Suffix of all run ids in this folder."""
        return _digest_letters(self.folder, 6)


def run_id_prefix(agent: str, session: str) -> str:
    """Return the start of a session's run id, without the folder."""
    return f"run_{_digest_letters(f'{agent} {session}', 10)}"


def _digest_letters(text: str, count: int) -> str:
    return bytes(_LETTERS[byte % 32] for byte in digest(text.encode("utf-8", "replace"), count)).decode()
