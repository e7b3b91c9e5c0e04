"""MLflow: its decorators, with the facts of a model call that its instrumentation of OpenAI's client sets."""

from __future__ import annotations

import os

# MLflow sends to an OTLP server only if this variable is set, and needs the address of a tracking server.
os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
os.environ["MLFLOW_TRACKING_URI"] = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]

from typing import Any

import agent_turn
import mlflow
from mlflow.entities import SpanType
from mlflow.tracing.constant import SpanAttributeKey, TokenUsageKey

weather = mlflow.trace(agent_turn.weather, span_type=SpanType.TOOL)
book = mlflow.trace(agent_turn.book, span_type=SpanType.TOOL)
client = agent_turn.build_client()
create = client.chat.completions.create


@mlflow.trace(name="Completions", span_type=SpanType.CHAT_MODEL)
def trace_create(**request: Any) -> Any:
    span = mlflow.get_current_active_span()
    span.set_attribute(SpanAttributeKey.MODEL, request["model"])
    answer = create(**request)
    usage = {TokenUsageKey.INPUT_TOKENS: answer.usage.prompt_tokens,
             TokenUsageKey.OUTPUT_TOKENS: answer.usage.completion_tokens}  # fmt: skip
    span.set_attribute(SpanAttributeKey.CHAT_USAGE, usage)
    return answer


@mlflow.trace(name=agent_turn.AGENT, span_type=SpanType.AGENT)
def turn() -> None:
    mlflow.get_current_active_span().set_attribute("session.id", agent_turn.SESSION)
    agent_turn.play_turn(client, weather, book)


client.chat.completions.create = trace_create
turn()
mlflow.flush_trace_async_logging()
