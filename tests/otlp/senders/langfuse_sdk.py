"""Langfuse: its decorators, its OpenAI client, and its own path on the server."""

from __future__ import annotations

import agent_turn
from langfuse import get_client, observe, propagate_attributes
from langfuse.openai import OpenAI

weather = observe(as_type="tool")(agent_turn.weather)
book = observe(as_type="tool")(agent_turn.book)


@observe(as_type="agent", name=agent_turn.AGENT)
def turn() -> None:
    agent_turn.play_turn(agent_turn.build_client(OpenAI), weather, book)


with propagate_attributes(session_id=agent_turn.SESSION):
    turn()
get_client().flush()
