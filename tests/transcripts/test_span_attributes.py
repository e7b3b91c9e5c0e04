"""Attributes say what a span is and what it holds, in the words of each SDK."""

from __future__ import annotations

import json

import pytest

from mulligan.transcripts.span_attributes import (
    find_agent,
    find_attempt,
    find_model,
    find_role,
    find_session,
    find_tags,
    find_task,
    find_text,
    has_error,
    read_cost_nanos,
    read_evaluations,
    read_prompt,
    read_tokens,
    unwrap_call,
)


@pytest.mark.parametrize(
    ("facts", "role"),
    [
        ({"gen_ai.operation.name": "execute_tool"}, "tool"),
        ({"gen_ai.operation.name": "invoke_agent", "gen_ai.request.model": "m"}, "agent"),
        ({"mcp.method.name": "tools/call"}, "tool"),
        ({"mcp.method.name": "tools/list"}, "structure"),
        ({"openinference.span.kind": "LLM"}, "model"),
        ({"openinference.span.kind": "CHAIN"}, "structure"),
        ({"langfuse.observation.type": "generation"}, "model"),
        ({"langfuse.observation.type": "tool"}, "tool"),
        ({"langfuse.observation.type": "span"}, None),
        ({"traceloop.span.kind": "workflow"}, "agent"),
        ({"traceloop.span.kind": "task"}, "structure"),
        ({"langsmith.span.kind": "tool"}, "tool"),
        ({"langsmith.span.kind": "llm"}, "model"),
        ({"langsmith.span.kind": "chain"}, "structure"),
        ({"mlflow.spanType": '"TOOL"'}, "tool"),
        ({"mlflow.spanType": '"CHAT_MODEL"'}, "model"),
        ({"mlflow.spanType": "AGENT"}, "agent"),
        ({"ai.operationId": "ai.toolCall"}, "tool"),
        ({"ai.operationId": "ai.streamText.doStream"}, "model"),
        ({"ai.operationId": "ai.streamText"}, "agent"),
        ({"gen_ai.operation.name": "chat", "logfire.span_type": "span"}, "model"),
        ({"gen_ai.operation.name": "chat", "logfire.span_type": "log"}, "structure"),
        ({"gen_ai.tool.name": "search"}, "tool"),
        ({"gen_ai.operation.name": "of a later version", "gen_ai.tool.name": "search"}, "tool"),
        ({"gen_ai.request.model": "m"}, "model"),
        ({"gen_ai.operation.name": ["chat"], "gen_ai.tool.name": 7}, None),
        ({"http.request.method": "GET"}, None),
        ({}, None),
    ],
)
def test_role_comes_from_the_attributes_of_each_convention(facts, role):
    assert find_role(facts) == role


def test_model_is_the_requested_one_which_a_failed_call_has_too():
    answered = {"llm.model_name": "m-2026-01-01"}
    assert find_model({"gen_ai.request.model": "m", "gen_ai.response.model": "m-2026-01-01"}) == "m"
    assert find_model({"llm.invocation_parameters": '{"model": "m"}', **answered}) == "m"
    for parameters in ("[]", "{", '{"model": 7}', ""):
        assert find_model({"llm.invocation_parameters": parameters, **answered}) == "m-2026-01-01"


def test_session_that_logfire_scrubbed_is_none():
    assert find_session({"session.id": "[Scrubbed due to 'session']"}) is None
    assert find_session({"traceloop.association.properties.session_id": "s-1"}) == "s-1"
    assert find_session({"ai.telemetry.metadata.sessionId": "s-1"}) == "s-1"
    assert find_session({"session.id": 7, "mcp.session.id": "s-1"}) is None


def test_agent_is_named_by_attributes_or_by_the_span_of_an_agent():
    assert find_agent({"gen_ai.agent.name": "scout", "openinference.span.kind": "AGENT"}, "run") == "scout"
    assert find_agent({"traceloop.span.kind": "workflow", "traceloop.entity.name": "scout"}, "scout.wf") == "scout"
    assert find_agent({"langfuse.observation.type": "agent"}, "scout") == "scout"
    assert find_agent({"ai.operationId": "ai.generateText"}, "ai.generateText") is None
    assert find_agent({"openinference.span.kind": "CHAIN"}, "LangGraph") is None
    assert find_agent({"mlflow.spanType": '"AGENT"'}, "scout") == "scout"
    assert find_agent({"langsmith.span.kind": "chain", "langsmith.trace.name": "scout"}, "") == "scout"
    assert find_agent({"langsmith.span.kind": "llm", "langsmith.trace.name": "ChatOpenAI"}, "") is None


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("Plan a trip.", "Plan a trip."),
        ('{"prompt": "Plan a trip."}', "Plan a trip."),
        ('{"args": ["Plan a trip."], "kwargs": {"days": 3}}', "Plan a trip."),
        ('{"args": [], "kwargs": {"days": 3, "goal": "Plan a trip."}}', "Plan a trip."),
        ('{"args": 7, "kwargs": null}', ""),
        ("{}", ""),
        ('{"messages": ["Plan a trip."]}', '{"messages": ["Plan a trip."]}'),
        ("{broken", "{broken"),
    ],
)
def test_task_is_the_text_that_a_run_was_started_with(text, task):
    assert find_task({"input.value": text}) == task


def test_arguments_of_a_decorated_function_are_its_keyword_arguments():
    assert unwrap_call({"args": [], "kwargs": {"city": "Bergen"}}) == {"city": "Bergen"}
    for unchanged in ({"args": ["Bergen"], "kwargs": {}}, {"args": []}, {"kwargs": 1, "args": [], "x": 2}, [1], None):
        assert unwrap_call(unchanged) == unchanged


def test_tokens_and_cost_are_read_in_the_form_of_each_sdk():
    assert read_tokens({"gen_ai.usage.prompt_tokens": 9, "ai.usage.outputTokens": 2}) == {"input": 9, "output": 2}
    usage = {"prompt_tokens": 21, "completion_tokens": 7, "total_tokens": 28, "prompt_tokens_details": None}
    assert read_tokens({"langfuse.observation.usage_details": json.dumps(usage)}) == {"input": 21, "output": 7}
    for bad in ("[]", "{", '{"input": "many", "output": -1}', '{"input": 1.5}'):
        assert read_tokens({"langfuse.observation.usage_details": bad}) is None
    assert read_cost_nanos({"operation.cost": 0.25}) == 250_000_000
    assert read_cost_nanos({"operation.cost": "much"}) is None
    usage = {"input_tokens": 21, "output_tokens": 7, "cache_creation_input_tokens": 3}
    mlflow_facts = {"mlflow.chat.tokenUsage": json.dumps(usage), "mlflow.llm.cost": '{"total_cost": 0.25}'}
    assert read_tokens(mlflow_facts) == {"input": 21, "output": 7, "cache_write": 3}
    assert read_cost_nanos(mlflow_facts) == 250_000_000
    assert find_model({"mlflow.llm.model": '"m"', "mlflow.spanType": '"LLM"'}) == "m"


def test_failure_is_recognized_without_a_status():
    exception = [("exception", {"exception.message": "timed out"})]
    assert has_error({"langfuse.observation.level": "ERROR"}, [])
    assert has_error({"langsmith.span.kind": "tool"}, exception)
    assert not has_error({"gen_ai.operation.name": "execute_tool"}, exception), "handled inside the call"


@pytest.mark.parametrize(
    ("facts", "user"),
    [
        ({"langfuse.user.id": "u-1", "user.id": "u-2"}, "u-1"),
        ({"user.id": "u-1"}, "u-1"),
        ({"enduser.id": "u-1"}, "u-1"),
        ({"ai.telemetry.metadata.userId": "u-1"}, "u-1"),
        ({"traceloop.association.properties.user_id": "u-1"}, "u-1"),
        ({"langsmith.metadata.user_id": "u-1"}, "u-1"),
        ({"mlflow.trace.user": '"u-1"', "mlflow.spanType": '"AGENT"'}, "u-1"),
        ({"user.id": 7}, None),
    ],
)
def test_user_of_each_sdk_is_found(facts, user):
    assert find_text(facts, "user") == user


@pytest.mark.parametrize(
    ("facts", "tags"),
    [
        ({"langfuse.trace.tags": ["nightly", "eu"]}, ["nightly", "eu"]),
        ({"tag.tags": '["nightly"]'}, ["nightly"]),
        ({"logfire.tags": ["nightly", 7, None]}, ["nightly"]),
        ({"langsmith.span.tags": "nightly, eu"}, ["nightly", "eu"]),
        ({"langfuse.trace.tags": {"a": 1}}, []),
        ({"tag.tags": "["}, ["["]),
        ({}, []),
    ],
)
def test_tags_of_each_sdk_are_found(facts, tags):
    assert find_tags(facts) == tags


@pytest.mark.parametrize(
    ("facts", "metadata"),
    [
        ({"langfuse.observation.prompt.name": "greet", "langfuse.observation.prompt.version": 3},
         {"prompt": "greet", "prompt_version": 3}),
        ({"traceloop.prompt.key": "greet", "traceloop.prompt.version": 2}, {"prompt": "greet", "prompt_version": 2}),
        ({"gen_ai.prompt.name": "greet"}, {"prompt": "greet"}),
        ({"langfuse.observation.prompt.version": 3}, {}),
    ],
)  # fmt: skip
def test_stored_prompt_of_a_model_call_is_metadata(facts, metadata):
    assert read_prompt(facts) == metadata


def test_results_of_evaluations_are_metadata():
    facts = {"gen_ai.evaluation.name": "correct", "gen_ai.evaluation.score.value": 0.5,
             "gen_ai.evaluation.score.label": "partly", "gen_ai.evaluation.explanation": "half of it"}  # fmt: skip
    assert read_evaluations([("exception", {}), ("gen_ai.evaluation.result", facts)]) == [
        {"name": "correct", "score": 0.5, "label": "partly", "explanation": "half of it"}
    ]


@pytest.mark.parametrize(
    ("facts", "name", "attempt"),
    [
        ({"mulligan.attempt": 2}, "fetch", ("fetch", 2)),
        ({"http.request.resend_count": 1}, "fetch", ("fetch", 2)),
        ({}, "fetch_attempt_3", ("fetch", 3)),
        ({"mulligan.attempt": 10**9}, "fetch", None),
        ({"mulligan.attempt": "2"}, "fetch", None),
    ],
)
def test_attempt_is_in_an_attribute_or_in_the_name(facts, name, attempt):
    assert find_attempt(facts, name) == attempt
