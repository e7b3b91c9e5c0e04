"""OpenTelemetry alone: its instrumentation of OpenAI's client, and tool spans with nothing but the name of the tool."""

from __future__ import annotations

from collections.abc import Callable

import agent_turn
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider(resource=Resource({"service.name": agent_turn.AGENT}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
OpenAIInstrumentor().instrument(tracer_provider=provider)
tracer = provider.get_tracer("travel")


def trace_tool(function: Callable[..., str]) -> Callable[..., str]:
    def call(**arguments: str) -> str:
        with tracer.start_as_current_span("work", attributes={"gen_ai.tool.name": function.__name__}):
            return function(**arguments)

    return call


with tracer.start_as_current_span("turn", attributes={"gen_ai.conversation.id": agent_turn.SESSION}):
    agent_turn.play_turn(agent_turn.build_client(), trace_tool(agent_turn.weather), trace_tool(agent_turn.book))
provider.shutdown()
