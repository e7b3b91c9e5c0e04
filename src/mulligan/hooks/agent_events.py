"""Event of a coding agent in one format for all agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

MAX_HEAD_BYTES = 262_144
MAX_HEAD_LINES = 50
"""Start of a session log that is searched for the user's first prompt, in lines."""

EventType = Literal["calls", "compacting", "compacted", "prompted", "ended"]
"""`compacting` comes before a compaction, when no text can be returned. `prompted` allows text to be returned."""


class AgentCall(msgspec.Struct, frozen=True):
    """Tool call of a coding agent with its result."""

    id: str
    name: str
    arguments: Any = None
    error: str | None = None
    """Error text if the call failed."""
    server: str | None = None
    duration_seconds: float = 0.0
    is_interrupted: bool = False
    """Whether a person interrupted the call."""
    is_rejected: bool = False
    """Whether the call was rejected before execution."""


class AgentEvent(msgspec.Struct, frozen=True):
    """Event of a coding agent."""

    type: EventType
    event: str
    """Name of the event in the agent. The response repeats it."""
    session: str
    folder: str
    log: str = ""
    """Path of the session log."""
    calls: tuple[AgentCall, ...] = ()
    ends_turn: bool = True
    """Whether a batch of calls has ended and the model is called next."""


def split_tool_name(name: str) -> tuple[str, str | None]:
    """Split `mcp__SERVER__TOOL` into tool and server. Other names have no server."""
    if name.startswith("mcp__"):
        server, _, tool = name[5:].partition("__")
        if server and tool:
            return tool, server
    return name, None


def join_tool_name(name: str, server: str | None) -> str:
    """Return the name as the agent writes it."""
    return f"mcp__{server}__{name}" if server else name


def text_or_empty(value: Any) -> str:
    """Return the value if it is a string, else an empty string. Events are not validated."""
    return value if isinstance(value, str) else ""


def read_log_head(log: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in the first lines of a log."""
    try:
        with open(log, "rb") as file:
            head = file.read(MAX_HEAD_BYTES)
    except OSError:
        return
    for line in head.split(b"\n")[:MAX_HEAD_LINES]:
        try:
            entry = msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue  # truncated, or not JSON
        if isinstance(entry, dict):
            yield entry


def build_event(event: Mapping[str, Any], event_type: EventType, **fields: Any) -> AgentEvent:
    """Build an event from the fields that all agents send."""
    return AgentEvent(
        event_type,
        text_or_empty(event.get("hook_event_name")),
        text_or_empty(event.get("session_id")),
        text_or_empty(event.get("cwd")),
        text_or_empty(event.get("transcript_path")),
        **fields,
    )
