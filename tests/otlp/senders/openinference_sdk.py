"""OpenInference: its decorators, and its instrumentation of OpenAI's client."""

from __future__ import annotations

import sys

import agent_turn
from openinference.instrumentation import TracerProvider, using_session
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider(resource=Resource({"service.name": "travel"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
OpenAIInstrumentor().instrument(tracer_provider=provider)
tracer = provider.get_tracer("travel")
weather = tracer.tool(agent_turn.weather)
book = tracer.tool(agent_turn.book)


@tracer.agent(name=agent_turn.AGENT)
def turn() -> None:
    agent_turn.play_turn(agent_turn.build_client(), weather, book)


with using_session(agent_turn.SESSION):
    if "lone" in sys.argv:
        agent_turn.play_turn(agent_turn.build_client(), weather, book)
    else:
        turn()
provider.shutdown()
