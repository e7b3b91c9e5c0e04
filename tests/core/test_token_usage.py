"""Token usage of answers and streams is read in the form of every provider, and no number is invented."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mulligan.core.token_usage import StreamUsage, read_usage


def to_object(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{name: to_object(member) for name, member in value.items()})
    return [to_object(member) for member in value] if isinstance(value, list) else value


FORMS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "openai": ({"usage": {"prompt_tokens": 12, "completion_tokens": 3}}, {"input": 12, "output": 3}),
    "openai with parts": (
        {
            "usage": {
                "prompt_tokens": 1200,
                "completion_tokens": 300,
                "prompt_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 100, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 200},
            }
        },
        {"input": 1200, "output": 300, "cached_input": 1000, "cache_write": 100, "reasoning": 200},
    ),
    "openai responses": (
        {
            "usage": {
                "input_tokens": 1200,
                "output_tokens": 300,
                "input_tokens_details": {"cached_tokens": 1000},
                "output_tokens_details": {"reasoning_tokens": 200},
            }
        },
        {"input": 1200, "output": 300, "cached_input": 1000, "reasoning": 200},
    ),
    "agent framework": (
        {
            "usage_details": {
                "input_token_count": 1200,
                "output_token_count": 300,
                "total_token_count": 1500,
                "cache_read_input_token_count": 1000,
                "reasoning_output_token_count": 200,
            }
        },
        {"input": 1200, "output": 300, "cached_input": 1000, "reasoning": 200},
    ),
    "agent framework, in a stream": (
        {"contents": [{"type": "text"}, {"usage_details": {"input_token_count": 12, "output_token_count": 3}}]},
        {"input": 12, "output": 3},
    ),
    "anthropic counts the cache beside the input": (
        {
            "usage": {
                "input_tokens": 10,
                "output_tokens": 30,
                "cache_read_input_tokens": 1000,
                "cache_creation_input_tokens": 200,
                "cache_creation": {"ephemeral_5m_input_tokens": 150, "ephemeral_1h_input_tokens": 50},
                "output_tokens_details": {"thinking_tokens": 20},
            }
        },
        {
            "input": 1210, "output": 30, "cached_input": 1000, "cache_write": 150, "cache_write_1h": 50,
            "reasoning": 20,
        },
    ),
    "google counts reasoning beside the output": (
        {
            "usage_metadata": {
                "prompt_token_count": 1200,
                "candidates_token_count": 100,
                "thoughts_token_count": 200,
                "cached_content_token_count": 1000,
                "tool_use_prompt_token_count": 5,
            }
        },
        {"input": 1205, "output": 300, "cached_input": 1000, "reasoning": 200},
    ),
    "google json": (
        {
            "usageMetadata": {
                "promptTokenCount": 12,
                "candidatesTokenCount": 3,
                "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 7}],
            }
        },
        {"input": 12, "output": 3, "audio_input": 7},
    ),
    "bedrock": (
        {"usage": {"inputTokens": 10, "outputTokens": 3, "cacheReadInputTokens": 90, "cacheWriteInputTokens": 20}},
        {"input": 120, "output": 3, "cached_input": 90, "cache_write": 20},
    ),
    "litellm of anthropic": (
        {
            "usage": {
                "prompt_tokens": 1210,
                "completion_tokens": 30,
                "prompt_tokens_details": {"cached_tokens": 1000},
                "cache_read_input_tokens": 1000,
                "cache_creation_input_tokens": 0,
            }
        },
        {"input": 1210, "output": 30, "cached_input": 1000},
    ),
    "cohere": (
        {
            "usage": {
                "billed_units": {"input_tokens": 5.0, "output_tokens": 3.0},
                "tokens": {"input_tokens": 70.0, "output_tokens": 3.0},
            }
        },
        {"input": 5, "output": 3},
    ),
    "an embedding has no output": ({"usage": {"prompt_tokens": 8, "total_tokens": 8}}, {"input": 8}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_tokens_of_an_answer_are_read_in_every_form(form: str) -> None:
    answer, tokens = FORMS[form]
    for each in (answer, to_object(answer)):
        usage = read_usage(each)
        assert usage is not None
        assert usage.tokens == tokens


def test_langchain_states_totals_with_their_parts() -> None:
    details = {"cache_read": 1000, "cache_creation": 0, "ephemeral_5m_input_tokens": 100}
    metadata = {
        "input_tokens": 1200, "output_tokens": 30, "total_tokens": 1230, "input_token_details": details,
        "output_token_details": {"reasoning": 20},
    }  # fmt: skip
    message = SimpleNamespace(usage_metadata=metadata, response_metadata={"model_name": "gpt-5"})
    usage = read_usage(message)
    assert usage is not None
    assert usage.tokens == {
        "input": 1200, "output": 30, "cached_input": 1000, "cache_write": 100, "reasoning": 20,
    }  # fmt: skip
    assert usage.model == "gpt-5"


@pytest.mark.parametrize(
    "answer",
    [None, "text", {}, {"usage": None}, {"usage": {"prompt_tokens": "12"}}, {"usage": {"prompt_tokens": -1}}, [1]],
)
def test_an_answer_without_usage_has_no_tokens(answer: Any) -> None:
    assert read_usage(answer) is None


def test_the_model_of_an_answer_is_recorded_if_the_call_names_none_or_another() -> None:
    usage = read_usage({"model": "gpt-5-2025-08-07", "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    assert usage is not None
    assert usage.to_metadata({}) == {"model": "gpt-5-2025-08-07"}
    assert usage.to_metadata({"model": "gpt-5"}) == {"model_version": "gpt-5-2025-08-07"}
    assert usage.to_metadata({"model": "gpt-5-2025-08-07"}) == {}


@pytest.mark.parametrize(
    ("answer", "tier"),
    [
        ({"service_tier": "default"}, None),
        ({"service_tier": "flex"}, "flex"),
        ({"usage": {"service_tier": "standard", "speed": "fast"}}, "fast"),
        ({"usage": {"inference_geo": "us"}}, "us"),
        ({"usage": {"inference_geo": "global"}}, None),
    ],
)
def test_a_tier_with_other_prices_is_recorded(answer: dict[str, Any], tier: str | None) -> None:
    counts = {"prompt_tokens": 1, "completion_tokens": 1}
    usage = read_usage({**answer, "usage": {**counts, **answer.get("usage", {})}})
    assert usage is not None
    assert usage.tier == tier


def collect(*events: Any) -> dict[str, int] | None:
    for convert in (to_object, lambda event: event):
        stream = StreamUsage()
        for event in events:
            stream.add(convert(event))
    return stream.usage.tokens if stream.usage is not None else None


FIRST_USAGE = {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 1}
START = {"type": "message_start", "message": {"usage": FIRST_USAGE}}
DELTA = {"type": "message_delta", "usage": {"input_tokens": 10, "output_tokens": 30}}


@pytest.mark.parametrize(
    ("events", "tokens"),
    [
        ([{"choices": [], "usage": None}, {"choices": []}], None),
        ([{"usage": None}, {"usage": {"prompt_tokens": 12, "completion_tokens": 3}}], {"input": 12, "output": 3}),
        (
            [{"type": "response.completed", "response": {"usage": {"input_tokens": 12, "output_tokens": 3}}}],
            {"input": 12, "output": 3},
        ),
        ([START, DELTA], {"input": 100, "output": 30, "cached_input": 90}),
        (
            [START, {**DELTA, "usage": {**FIRST_USAGE, "output_tokens": 30}}],
            {"input": 100, "output": 30, "cached_input": 90},
        ),
        ([START, {**DELTA, "usage": {"input_tokens": 120, "output_tokens": 30}}], {"input": 120, "output": 30}),
        ([START], {"input": 100, "cached_input": 90}),
        (
            [
                {"usage_metadata": {"prompt_token_count": 12, "candidates_token_count": 1}},
                {"usage_metadata": {"prompt_token_count": 12, "candidates_token_count": 3}},
            ],
            {"input": 12, "output": 3},
        ),
        ([{"metadata": {"usage": {"inputTokens": 12, "outputTokens": 3}}}], {"input": 12, "output": 3}),
        ([{"data": {"usage": {"prompt_tokens": 12, "completion_tokens": 3}}}], {"input": 12, "output": 3}),
        (["text", b"bytes", None, 7], None),
    ],
    ids=[
        "openai, not asked for", "openai", "responses", "anthropic", "anthropic, input again", "anthropic, more input",
        "anthropic, closed early", "gemini is cumulative", "bedrock", "mistral", "plain items",
    ],
)  # fmt: skip
def test_the_tokens_of_a_stream_are_collected_from_its_events(events: list[Any], tokens: dict[str, int] | None) -> None:
    assert collect(*events) == tokens


def test_the_chunks_of_langchain_are_added() -> None:
    stream = StreamUsage()
    for counts in ((100, 0), (0, 30)):
        metadata = {"input_tokens": counts[0], "output_tokens": counts[1], "total_tokens": sum(counts)}
        stream.add(SimpleNamespace(usage_metadata=metadata))
    assert stream.usage is not None
    assert stream.usage.tokens == {"input": 100, "output": 30}
