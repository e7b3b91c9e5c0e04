"""Events of Codex.

The hook event does not say whether a command failed; the exit code is in the session log. Rejected calls and errors of
MCP servers trigger no hook: they are read from the log at a compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mulligan.failure import Failure
from mulligan.records import Step
from mulligan.serve.hooks import first
from mulligan.serve.hooks.claude_code import answer as answer  # both agents use the same format
from mulligan.serve.hooks.heard import Call, Heard, about, beginning, named, text


def read(event: Mapping[str, Any]) -> Heard | None:
    match event.get("hook_event_name"):
        case "PostToolUse":
            return about(event, "calls", calls=(_call(event),))
        case "SessionStart" if event.get("source") == "compact":
            return about(event, "compacted")
        case "SessionEnd":
            return about(event, "ended")
    return None


def _call(event: Mapping[str, Any]) -> Call:
    name, server = named(text(event.get("tool_name")))
    id = text(event.get("tool_use_id"))
    response = event.get("tool_response")
    error = None
    if name == "Bash":
        where = f'"tool_use_id":"{id}","transcript_path":"{text(event.get("transcript_path"))}"'
        if code := first.exit_code(where.encode("utf-8", "replace")):
            error = f"Exit code {code}\n{text(response)}"
    return Call(id, name, event.get("tool_input"), error, server)


def asked(log: str) -> str:
    """Return the user's first prompt from the session log."""
    for line in beginning(log):
        message = line.get("payload")
        if isinstance(message, dict) and message.get("type") == "message" and message.get("role") == "user":
            for part in message.get("content") or ():
                said = text(part.get("text")) if isinstance(part, dict) else ""
                if said and not said.startswith(("<", "# AGENTS")):
                    return said
    return ""


def failures(log: str, classify: Callable[..., Failure]) -> Iterator[tuple[str, Step]]:
    """Return the failed calls in a session log, each with its id."""
    from mulligan.capture.transcripts import codex  # only at a compaction and at the end of a session
    from mulligan.capture.transcripts.gathering import Reading
    from mulligan.capture.transcripts.lines import Lines, Unreadable

    found: list[tuple[str, Step]] = []
    reading = Reading(classify, hears=lambda id, step: found.append((id, step)))
    try:
        with Lines(Path(log)) as lines:
            for _ in codex.read(lines, reading):
                pass
    except Unreadable:
        pass  # the failures that hooks reported are known without the log
    return iter(found)
