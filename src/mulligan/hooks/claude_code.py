"""Events of Claude Code.

PostToolUseFailure reports an error inside a tool. An error before execution, such as an edit whose text is not found or
invalid arguments, appears only in PostToolBatch, between marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mulligan.hooks.agent_events import (
    AgentCall,
    AgentEvent,
    build_event,
    read_log_head,
    split_tool_name,
    text_or_empty,
)

ERROR_START_MARK, ERROR_END_MARK = "<tool_use_error>", "</tool_use_error>"
REJECTION_PREFIXES = ("The user doesn't want to", "Claude requested permissions to", "Permission to use ")
"""First words of the response to a call that a person or a permission rule rejected."""


def parse_event(event: Mapping[str, Any]) -> AgentEvent | None:
    match event.get("hook_event_name"):
        case "PostToolUseFailure":
            error_text = text_or_empty(event.get("error")) or "failed"
            failed_call = msgspec.structs.replace(
                _parse_call(event, error_text),
                duration_seconds=_seconds(event.get("duration_ms")),
                is_interrupted=event.get("is_interrupt") is True,
            )
            return build_event(event, "calls", calls=(failed_call,), ends_turn=False)
        case "PostToolBatch":
            raw_calls = event.get("tool_calls")
            calls = (
                [raw_call for raw_call in raw_calls if isinstance(raw_call, dict)]
                if isinstance(raw_calls, list)
                else []
            )
            return build_event(
                event,
                "calls",
                calls=tuple(_parse_call(raw_call, _find_error(raw_call.get("tool_response"))) for raw_call in calls),
            )
        case "SessionStart" if event.get("source") == "compact":
            return build_event(event, "compacted")
        case "SessionEnd":
            return build_event(event, "ended")
    return None


def _parse_call(raw_call: Mapping[str, Any], error: str | None) -> AgentCall:
    name, server = split_tool_name(text_or_empty(raw_call.get("tool_name")))
    return AgentCall(text_or_empty(raw_call.get("tool_use_id")), name, raw_call.get("tool_input"), error, server)


def _find_error(response: Any) -> str | None:
    """Return the error between the marks, or the text of a rejection. None if the call was executed."""
    response_text = response.lstrip() if isinstance(response, str) else ""
    if response_text.startswith(ERROR_START_MARK):
        return response_text.removeprefix(ERROR_START_MARK).rpartition(ERROR_END_MARK)[0] or response_text
    return response_text if response_text.startswith(REJECTION_PREFIXES) else None


def _seconds(milliseconds: Any) -> float:
    return milliseconds / 1000 if isinstance(milliseconds, int | float) and milliseconds >= 0 else 0.0


def find_user_prompt(log: str) -> str:
    """Return the user's first prompt from the session log."""
    for line in read_log_head(log):
        message = line.get("message")
        if line.get("type") == "user" and isinstance(message, dict) and not line.get("isMeta"):
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            for part in parts:
                prompt = text_or_empty(part.get("text")) if isinstance(part, dict) else ""
                if prompt and not prompt.startswith("<"):
                    return prompt
    return ""


def build_response(agent_event: AgentEvent, message: str) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": agent_event.event, "additionalContext": message}}
