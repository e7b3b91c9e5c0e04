"""Events of Gemini CLI.

A tool's response says whether it failed; a shell's response contains the exit code. PreCompress comes before each model
call, and only the log shows a compression. Its hook cannot return text, so the reminder follows with the next prompt or
tool result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mulligan.hooks.agent_events import AgentCall, AgentEvent, build_event, split_tool_name, text_or_empty

REJECTION_ERROR_TYPES = ("invalid_tool_params", "tool_not_registered")
"""Error types of a call that was rejected before execution."""
_EXIT = re.compile(r"^Exit Code: (\d{1,5})\s*$", re.MULTILINE)


def parse_event(event: Mapping[str, Any]) -> AgentEvent | None:
    match event.get("hook_event_name"):
        case "AfterTool":
            return build_event(event, "calls", calls=(_parse_call(event),))
        case "BeforeAgent":
            return build_event(event, "prompted", ends_turn=False)
        case "PreCompress":
            return build_event(event, "compacting")
        case "SessionEnd":
            return build_event(event, "ended")
    return None


def _parse_call(event: Mapping[str, Any]) -> AgentCall:
    name, server = split_tool_name(text_or_empty(event.get("tool_name")))
    response = event.get("tool_response")
    error = response.get("error") if isinstance(response, dict) else None
    return AgentCall(
        text_or_empty(event.get("tool_use_id")),
        name,
        event.get("tool_input"),
        _find_error(response),
        server,
        is_rejected=isinstance(error, dict) and error.get("type") in REJECTION_ERROR_TYPES,
    )


def _find_error(response: Any) -> str | None:
    if not isinstance(response, dict):
        return None
    content_text = _content_text(response.get("llmContent")) or _content_text(response.get("returnDisplay"))
    content_text = content_text.strip().removeprefix("<untrusted_context>").removesuffix("</untrusted_context>").strip()
    error = response.get("error")
    if error:
        message = error.get("message") if isinstance(error, dict) else error
        return text_or_empty(message) or content_text or "failed"
    code = _EXIT.search(content_text)
    return content_text if code and int(code[1]) else None


def _content_text(content: Any) -> str:
    parts = content if isinstance(content, list) else [content]
    return "\n".join(
        text_or_empty(part.get("text")) if isinstance(part, dict) else text_or_empty(part) for part in parts[:50]
    )


def build_response(agent_event: AgentEvent, message: str) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": agent_event.event, "additionalContext": message}}


def replace_call(agent_event: AgentEvent, tool: str, arguments: Mapping[str, Any], message: str) -> dict[str, Any]:
    """Build a response that asks the agent to execute another call in place of the failed one."""
    response = build_response(agent_event, message)
    response["hookSpecificOutput"]["tailToolCallRequest"] = {"name": tool, "args": dict(arguments)}
    return response
