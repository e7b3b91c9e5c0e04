"""Hooks of coding agents: read an event as JSON from stdin, write the response as JSON to stdout."""

AGENTS = {
    "claude-code": "claude-code",
    "codex": "codex",
    "copilot": "copilot",
    "cursor": "",
    "gemini": "gemini-cli",
    "opencode": "opencode",
    "pi": "pi",
}
"""Agents with hooks, each with the format of its session log. Empty if hooks do not read that log."""
