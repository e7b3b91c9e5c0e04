"""Traceloop's SDK (OpenLLMetry): its decorators, and its instrumentation of OpenAI's client."""

from __future__ import annotations

import os

import agent_turn
from traceloop.sdk import Traceloop
from traceloop.sdk.decorators import agent, tool
from traceloop.sdk.instruments import Instruments

Traceloop.init(
    app_name="travel",
    api_endpoint=os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"],
    disable_batch=True,
    instruments={Instruments.OPENAI},
    telemetry_enabled=False,
)
Traceloop.set_association_properties({"session_id": agent_turn.SESSION})
weather = tool(name="weather")(agent_turn.weather)
book = tool(name="book")(agent_turn.book)


@agent(name=agent_turn.AGENT)
def turn() -> None:
    agent_turn.play_turn(agent_turn.build_client(), weather, book)


turn()
