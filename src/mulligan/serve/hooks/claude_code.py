"""Events of Claude Code.

PostToolUseFailure reports an error inside a tool. An error before execution, such as an edit whose text is not found or
invalid arguments, appears only in PostToolBatch, between marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mulligan.serve.hooks.heard import Call, Heard, about, beginning, named, text

OPENING, CLOSING = "<tool_use_error>", "</tool_use_error>"
REFUSED = ("The user doesn't want to", "Claude requested permissions to", "Permission to use ")
"""First words of the response to a call that a person or a permission rule rejected."""


def read(event: Mapping[str, Any]) -> Heard | None:
    match event.get("hook_event_name"):
        case "PostToolUseFailure":
            said = text(event.get("error")) or "failed"
            one = msgspec.structs.replace(
                _call(event, said),
                seconds=_seconds(event.get("duration_ms")),
                is_interrupted=event.get("is_interrupt") is True,
            )
            return about(event, "calls", calls=(one,), ends_turn=False)
        case "PostToolBatch":
            given = event.get("tool_calls")
            calls = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
            return about(event, "calls", calls=tuple(_call(each, _error(each.get("tool_response"))) for each in calls))
        case "SessionStart" if event.get("source") == "compact":
            return about(event, "compacted")
        case "SessionEnd":
            return about(event, "ended")
    return None


def _call(told: Mapping[str, Any], error: str | None) -> Call:
    name, server = named(text(told.get("tool_name")))
    return Call(text(told.get("tool_use_id")), name, told.get("tool_input"), error, server)


def _error(response: Any) -> str | None:
    """Return the error between the marks, or the text of a rejection. None if the call was executed."""
    said = response.lstrip() if isinstance(response, str) else ""
    if said.startswith(OPENING):
        return said.removeprefix(OPENING).rpartition(CLOSING)[0] or said
    return said if said.startswith(REFUSED) else None


def _seconds(milliseconds: Any) -> float:
    return milliseconds / 1000 if isinstance(milliseconds, int | float) and milliseconds >= 0 else 0.0


def asked(log: str) -> str:
    """Return the user's first prompt from the session log."""
    for line in beginning(log):
        message = line.get("message")
        if line.get("type") == "user" and isinstance(message, dict) and not line.get("isMeta"):
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            for part in parts:
                said = text(part.get("text")) if isinstance(part, dict) else ""
                if said and not said.startswith("<"):
                    return said
    return ""


def answer(heard: Heard, said: str) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": heard.event, "additionalContext": said}}
