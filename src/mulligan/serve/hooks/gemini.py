"""Events of Gemini CLI.

A tool's response says whether it failed; a shell's response contains the exit code. PreCompress comes before each model
call, and only the log shows a compression. Its hook cannot return text, so the reminder follows with the next prompt or
tool result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mulligan.serve.hooks.heard import Call, Heard, about, named, text

UNMADE = ("invalid_tool_params", "tool_not_registered")
"""Error types of a call that was rejected before execution."""
_EXIT = re.compile(r"^Exit Code: (\d{1,5})\s*$", re.MULTILINE)


def read(event: Mapping[str, Any]) -> Heard | None:
    match event.get("hook_event_name"):
        case "AfterTool":
            return about(event, "calls", calls=(_call(event),))
        case "BeforeAgent":
            return about(event, "prompted", ends_turn=False)
        case "PreCompress":
            return about(event, "compacting")
        case "SessionEnd":
            return about(event, "ended")
    return None


def _call(event: Mapping[str, Any]) -> Call:
    name, server = named(text(event.get("tool_name")))
    response = event.get("tool_response")
    error = response.get("error") if isinstance(response, dict) else None
    return Call(
        text(event.get("tool_use_id")),
        name,
        event.get("tool_input"),
        _error(response),
        server,
        is_unmade=isinstance(error, dict) and error.get("type") in UNMADE,
    )


def _error(response: Any) -> str | None:
    if not isinstance(response, dict):
        return None
    said = _said(response.get("llmContent")) or _said(response.get("returnDisplay"))
    said = said.strip().removeprefix("<untrusted_context>").removesuffix("</untrusted_context>").strip()
    error = response.get("error")
    if error:
        told = error.get("message") if isinstance(error, dict) else error
        return text(told) or said or "failed"
    code = _EXIT.search(said)
    return said if code and int(code[1]) else None


def _said(content: Any) -> str:
    parts = content if isinstance(content, list) else [content]
    return "\n".join(text(part.get("text")) if isinstance(part, dict) else text(part) for part in parts[:50])


def answer(heard: Heard, said: str) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": heard.event, "additionalContext": said}}


def instead(heard: Heard, tool: str, arguments: Mapping[str, Any], said: str) -> dict[str, Any]:
    """Build a response that asks the agent to execute another call in place of the failed one."""
    told = answer(heard, said)
    told["hookSpecificOutput"]["tailToolCallRequest"] = {"name": tool, "args": dict(arguments)}
    return told
