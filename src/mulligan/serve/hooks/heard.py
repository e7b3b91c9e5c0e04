"""An event of a coding agent in our own words: whichever agent it is, the same few things happen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

HEAD = 262_144
LINES = 50
"""Bytes, and lines, at the beginning of a log in which what the user asked for is looked for."""

What = Literal["calls", "compacting", "compacted", "prompted", "ended"]
"""`compacting` is told before it is done, and nothing may be said then; `prompted`, that something may be said now."""


class Call(msgspec.Struct, frozen=True):
    """A call of a tool, and what came of it."""

    id: str
    name: str
    arguments: Any = None
    error: str | None = None
    """What it said, if it failed."""
    server: str | None = None
    seconds: float = 0.0
    is_interrupted: bool = False
    """Whether a person stopped it."""
    is_unmade: bool = False
    """Whether it is known that it was refused before it did anything."""


class Heard(msgspec.Struct, frozen=True):
    """What an agent tells."""

    what: What
    event: str
    """As the agent calls it: what it is answered by."""
    session: str
    folder: str
    log: str = ""
    """Where it writes its session down."""
    calls: tuple[Call, ...] = ()
    ends_turn: bool = True
    """Whether the model is asked next: a batch of calls has ended."""


def named(name: str) -> tuple[str, str | None]:
    """`mcp__SERVER__TOOL` is a tool of a server."""
    if name.startswith("mcp__"):
        server, _, tool = name[5:].partition("__")
        if server and tool:
            return tool, server
    return name, None


def written(name: str, server: str | None) -> str:
    """The name as the agent writes it."""
    return f"mcp__{server}__{name}" if server else name


def text(value: Any) -> str:
    """A field that should be a text, of an event that should be an object."""
    return value if isinstance(value, str) else ""


def beginning(log: str) -> Iterator[dict[str, Any]]:
    """The first lines of a log that are objects."""
    try:
        with open(log, "rb") as file:
            head = file.read(HEAD)
    except OSError:
        return
    for line in head.split(b"\n")[:LINES]:
        try:
            read = msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue  # cut, or nothing of ours
        if isinstance(read, dict):
            yield read


def about(event: Mapping[str, Any], what: What, **more: Any) -> Heard:
    """What every event of every agent says."""
    return Heard(
        what,
        text(event.get("hook_event_name")),
        text(event.get("session_id")),
        text(event.get("cwd")),
        text(event.get("transcript_path")),
        **more,
    )
