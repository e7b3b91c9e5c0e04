"""Events of Codex.

The hook event does not say whether a command failed; the exit code is in the session log. Rejected calls and errors of
MCP servers trigger no hook: they are read from the log at a compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mulligan.core.failure import Failure
from mulligan.core.records import Step
from mulligan.hooks import fast_filter
from mulligan.hooks.agent_events import (
    AgentCall,
    AgentEvent,
    build_event,
    read_log_head,
    split_tool_name,
    text_or_empty,
)
from mulligan.hooks.claude_code import build_response as build_response  # both agents use the same format


def parse_event(event: Mapping[str, Any]) -> AgentEvent | None:
    match event.get("hook_event_name"):
        case "PostToolUse":
            return build_event(event, "calls", calls=(_parse_call(event),))
        case "SessionStart" if event.get("source") == "compact":
            return build_event(event, "compacted")
        case "SessionEnd":
            return build_event(event, "ended")
    return None


def _parse_call(event: Mapping[str, Any]) -> AgentCall:
    name, server = split_tool_name(text_or_empty(event.get("tool_name")))
    id = text_or_empty(event.get("tool_use_id"))
    response = event.get("tool_response")
    error = None
    if name == "Bash":
        fields = f'"tool_use_id":"{id}","transcript_path":"{text_or_empty(event.get("transcript_path"))}"'
        if code := fast_filter.find_exit_code(fields.encode("utf-8", "replace")):
            error = f"Exit code {code}\n{text_or_empty(response)}"
    return AgentCall(id, name, event.get("tool_input"), error, server)


def find_user_prompt(log: str) -> str:
    """Return the user's first prompt from the session log."""
    for line in read_log_head(log):
        message = line.get("payload")
        if isinstance(message, dict) and message.get("type") == "message" and message.get("role") == "user":
            for part in message.get("content") or ():
                prompt = text_or_empty(part.get("text")) if isinstance(part, dict) else ""
                if prompt and not prompt.startswith(("<", "# AGENTS")):
                    return prompt
    return ""


def read_failures(log: str, classify: Callable[..., Failure]) -> Iterator[tuple[str, Step]]:
    """Return the failed calls in a session log, each with its id."""
    from mulligan.transcripts import codex  # only at a compaction and at the end of a session
    from mulligan.transcripts.log_lines import LogLines, UnreadableFileError
    from mulligan.transcripts.run_builder import ReaderState

    failed_steps: list[tuple[str, Step]] = []
    reading = ReaderState(classify, on_failure=lambda id, step: failed_steps.append((id, step)))
    try:
        with LogLines(Path(log)) as lines:
            for _ in codex.read(lines, reading):
                pass
    except UnreadableFileError:
        pass  # the failures that hooks reported are known without the log
    return iter(failed_steps)
