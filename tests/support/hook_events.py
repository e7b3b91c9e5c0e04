"""Events of coding agents, handled in the process of the test as `mulligan-hook` handles them."""

from __future__ import annotations

from mulligan.hooks import event_processing, main


def handle_event(agent: str, data: bytes) -> bytes:
    """Return the response to an event, empty for most events."""
    return event_processing.process_event(agent, data) if main.should_process(agent, data) else b""
