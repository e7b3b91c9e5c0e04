"""Runs as spans and metrics of OpenTelemetry, by its own SDK."""

from __future__ import annotations

import pytest

import mulligan
from mulligan import AgentError

pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mulligan.otel import Otel


@pytest.fixture
def told(tmp_path):
    kept, read = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    m = mulligan.Mulligan(store="memory:", agent="helper", environment="test")
    m.add_listener(Otel(provider, MeterProvider([read]), content=True))

    @m.tool(effects="none")
    def half(number: int) -> float:
        if not isinstance(number, int):
            raise AgentError(f"number must be an integer, got {number!r}.")
        return number / 2

    with m.run("helper", version="2") as run:
        half("6")
        with pytest.raises(ZeroDivisionError), run.step("plan", "think"):
            raise ZeroDivisionError("by nothing")
    half(4)
    assert m.flush(10)
    m.close()
    return kept.get_finished_spans(), read


def test_each_attempt_is_a_span_under_its_run(told):
    spans, _ = told
    runs = [span for span in spans if span.name == "invoke_agent helper"]
    first, second = [span for span in spans if span.attributes.get("mulligan.operation.id", "").endswith("/1")
                     and span.name == "execute_tool half"][:2]  # fmt: skip
    assert len(runs) == 2
    assert first.parent.span_id == second.parent.span_id
    assert first.parent.span_id in {run.context.span_id for run in runs}
    assert first.attributes["mulligan.operation.id"] == second.attributes["mulligan.operation.id"]
    assert (first.attributes["mulligan.attempt"], second.attributes["mulligan.attempt"]) == (1, 2)
    assert first.attributes["error.type"] == "tool/invalid_arguments"
    assert first.status.status_code.name == "ERROR"
    assert first.events[0].attributes["exception.message"].startswith("number must be")
    assert second.attributes["mulligan.outcome"] == "success"
    assert second.attributes["gen_ai.tool.call.arguments"] == '{"number":6}'
    assert second.attributes["mulligan.repair.strategy"]
    assert second.start_time >= first.start_time


def test_a_run_says_whose_it_is(told):
    spans, _ = told
    run = next(span for span in spans if span.attributes.get("gen_ai.agent.version") == "2")
    assert run.attributes["gen_ai.agent.name"] == "helper"
    assert run.attributes["deployment.environment.name"] == "test"
    assert run.end_time >= run.start_time


def test_what_is_counted(told):
    _, read = told
    metrics = {
        metric.name: metric
        for resource in read.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert sum(point.count for point in metrics["mulligan.attempt.duration"].data.data_points) == 4
    assert sum(point.value for point in metrics["mulligan.calls.recovered"].data.data_points) == 1


@pytest.mark.slow
def test_what_we_export_comes_back_as_what_it_was(told, tmp_path):
    servers = pytest.importorskip("servers")
    common = pytest.importorskip("opentelemetry.exporter.otlp.proto.common.trace_encoder")
    spans, _ = told
    with servers.served(tmp_path) as running:
        body = common.encode_spans(spans).SerializePartialToString()
        assert running.anybody().post("/v1/traces", body=body, Content_Type="application/x-protobuf").status == 200
        found = running.person().get("/v1/runs").json["runs"]
    assert sorted((run["agent"], run["status"], run["attempts"]) for run in found) == [
        ("helper", "recovered", 2), ("helper", "success", 1),
    ]  # fmt: skip


def test_spans_stand_in_the_trace_that_came_in_and_runs_inside_a_run_under_it():
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    m = mulligan.Mulligan(store="memory:")
    m.add_listener(Otel(provider, MeterProvider([])))
    with m.run("outer", traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), m.run("inner"):
        pass
    assert m.flush(10)
    m.close()
    inner, outer = sorted(kept.get_finished_spans(), key=lambda span: span.name)
    assert {f"{span.context.trace_id:032x}" for span in (inner, outer)} == {"0af7651916cd43dd8448eb211c80319c"}
    assert f"{outer.parent.span_id:016x}" == "b7ad6b7169203331"
    assert outer.parent.is_remote
    assert inner.parent.span_id == outer.context.span_id


def test_a_model_call_has_the_name_of_the_model_its_tokens_and_its_cost():
    kept, read = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    prices = {"small-1": {"input": 1.0, "output": 2.0, "cached_input": 0.5}}
    m = mulligan.Mulligan(store="memory:", prices=prices)
    m.add_listener(Otel(provider, MeterProvider([read])))

    @m.model
    def ask(messages: list[dict[str, str]], model: str = "small-1") -> dict[str, object]:
        details = {"cached_tokens": 60}
        return {
            "text": "hello",
            "usage": {"prompt_tokens": 100, "completion_tokens": 9, "prompt_tokens_details": details},
        }

    ask([{"role": "user", "content": "hello"}])
    assert m.flush(10)
    m.close()
    (span,) = [span for span in kept.get_finished_spans() if span.name.startswith("chat")]
    assert span.name == "chat small-1"
    facts = span.attributes
    assert (facts["gen_ai.request.model"], facts["mulligan.step.name"]) == ("small-1", ask.__qualname__.split(".")[-1])
    assert facts["gen_ai.usage.input_tokens"] == 100
    assert facts["gen_ai.usage.cache_read.input_tokens"] == 60
    assert facts["mulligan.cost_usd"] == pytest.approx((40 * 1.0 + 60 * 0.5 + 9 * 2.0) / 1e6)
    (metrics,) = read.get_metrics_data().resource_metrics[0].scope_metrics
    (tokens,) = [metric for metric in metrics.metrics if metric.name == "gen_ai.client.token.usage"]
    assert {point.attributes["gen_ai.token.type"] for point in tokens.data.data_points} == {"input", "output"}
