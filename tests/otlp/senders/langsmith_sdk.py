"""LangSmith: its decorators and its wrapper of OpenAI's client, with its spans sent over OTLP alone."""

from __future__ import annotations

import os

os.environ |= {
    "LANGSMITH_TRACING": "true", "LANGSMITH_OTEL_ENABLED": "true", "LANGSMITH_OTEL_ONLY": "true",
    "LANGSMITH_API_KEY": "not-a-key",
    # A base address, to which LangSmith would append a path without the version.
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces",
}  # fmt: skip

import agent_turn
from langsmith import Client, traceable
from langsmith.wrappers import wrap_openai

client = Client()
weather = traceable(run_type="tool", client=client)(agent_turn.weather)
book = traceable(run_type="tool", client=client)(agent_turn.book)


@traceable(name=agent_turn.AGENT, client=client, metadata={"session_id": agent_turn.SESSION})
def turn() -> None:
    agent_turn.play_turn(wrap_openai(agent_turn.build_client()), weather, book)


turn()
client.flush()
