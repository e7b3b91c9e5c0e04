"""Event of a coding agent in one format for all agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

HEAD = 262_144
LINES = 50
"""Start of a session log that is searched for the user's first prompt, in lines."""

What = Literal["calls", "compacting", "compacted", "prompted", "ended"]
"""`compacting` comes before a compaction, when no text can be returned. `prompted` allows text to be returned."""


class Call(msgspec.Struct, frozen=True):
    """Tool call of a coding agent with its result."""

    id: str
    name: str
    arguments: Any = None
    error: str | None = None
    """Error text if the call failed."""
    server: str | None = None
    seconds: float = 0.0
    is_interrupted: bool = False
    """Whether a person interrupted the call."""
    is_unmade: bool = False
    """Whether the call was rejected before execution."""


class Heard(msgspec.Struct, frozen=True):
    """Event of a coding agent."""

    what: What
    event: str
    """Name of the event in the agent. The response repeats it."""
    session: str
    folder: str
    log: str = ""
    """Path of the session log."""
    calls: tuple[Call, ...] = ()
    ends_turn: bool = True
    """Whether a batch of calls has ended and the model is called next."""


def named(name: str) -> tuple[str, str | None]:
    """Split `mcp__SERVER__TOOL` into tool and server. Other names have no server."""
    if name.startswith("mcp__"):
        server, _, tool = name[5:].partition("__")
        if server and tool:
            return tool, server
    return name, None


def written(name: str, server: str | None) -> str:
    """Return the name as the agent writes it."""
    return f"mcp__{server}__{name}" if server else name


def text(value: Any) -> str:
    """Return the value if it is a string, else an empty string. Events are not validated."""
    return value if isinstance(value, str) else ""


def beginning(log: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in the first lines of a log."""
    try:
        with open(log, "rb") as file:
            head = file.read(HEAD)
    except OSError:
        return
    for line in head.split(b"\n")[:LINES]:
        try:
            read = msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue  # truncated, or not JSON
        if isinstance(read, dict):
            yield read


def about(event: Mapping[str, Any], what: What, **more: Any) -> Heard:
    """Build an event from the fields that all agents send."""
    return Heard(
        what,
        text(event.get("hook_event_name")),
        text(event.get("session_id")),
        text(event.get("cwd")),
        text(event.get("transcript_path")),
        **more,
    )
