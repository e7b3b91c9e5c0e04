"""Tokens and costs of real clients, answers and streams, over a fake provider.

`make test-providers` installs the clients and runs this; elsewhere it is skipped.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from outcomes import HELLO

import mulligan
from mulligan.core.records import Step
from mulligan.testing import Sandbox, sandbox
from providers import TEXT, Provider

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no network

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the clients are theirs

PRICES = {"m": {"input": 2.0, "output": 10.0, "cached_input": 0.5, "cache_write": 2.5, "cache_write_1h": 4.0}}
OPENAI = {
    "prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100,
    "prompt_tokens_details": {"cached_tokens": 600}, "completion_tokens_details": {"reasoning_tokens": 40},
}  # fmt: skip
RESPONSES = {
    "input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100,
    "input_tokens_details": {"cached_tokens": 600}, "output_tokens_details": {"reasoning_tokens": 40},
}  # fmt: skip
ANTHROPIC = {
    "input_tokens": 200, "output_tokens": 100, "cache_read_input_tokens": 600, "cache_creation_input_tokens": 200,
    "cache_creation": {"ephemeral_5m_input_tokens": 150, "ephemeral_1h_input_tokens": 50},
}  # fmt: skip
GEMINI = {
    "promptTokenCount": 1000, "candidatesTokenCount": 60, "thoughtsTokenCount": 40, "cachedContentTokenCount": 600,
    "totalTokenCount": 1100,
}  # fmt: skip
BEDROCK = {"inputTokens": 400, "outputTokens": 100, "totalTokens": 1100, "cacheReadInputTokens": 600}
MISTRAL = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
COHERE = {
    "billed_units": {"input_tokens": 1000, "output_tokens": 100}, "tokens": {"input_tokens": 1070, "output_tokens": 100}
}  # fmt: skip

TOTALS = {"input": 1000, "output": 100}
CACHED = {**TOTALS, "cached_input": 600}
REASONED = {**CACHED, "reasoning": 40}
WRITTEN = {**CACHED, "cache_write": 150, "cache_write_1h": 50}
CACHED_COST = 400 * 2000 + 600 * 500 + 100 * 10_000
WRITTEN_COST = 200 * 2000 + 600 * 500 + 150 * 2500 + 50 * 4000 + 100 * 10_000
TOTAL_COST = 1000 * 2000 + 100 * 10_000

Ask = Callable[[str], Any]


def use_openai(url: str) -> Any:
    return mulligan.wrap_client(pytest.importorskip("openai").OpenAI(base_url=f"{url}/v1", api_key="key"))


def use_anthropic(url: str) -> Any:
    return mulligan.wrap_client(pytest.importorskip("anthropic").Anthropic(base_url=url, api_key="key"))


def chat(url: str) -> None:
    use_openai(url).chat.completions.create(model="m", messages=HELLO)


def stream_chat(url: str) -> None:
    options = {"include_usage": True}
    list(use_openai(url).chat.completions.create(model="m", messages=HELLO, stream=True, stream_options=options))


def stream_async_chat(url: str) -> None:
    async def ask() -> None:
        client = mulligan.wrap_client(pytest.importorskip("openai").AsyncOpenAI(base_url=f"{url}/v1", api_key="key"))
        options = {"include_usage": True}
        async for _ in await client.chat.completions.create(
            model="m", messages=HELLO, stream=True, stream_options=options
        ):
            pass

    asyncio.run(ask())


def respond(url: str) -> None:
    use_openai(url).responses.create(model="m", input=HELLO)


def stream_response(url: str) -> None:
    list(use_openai(url).responses.create(model="m", input=HELLO, stream=True))


def send_message(url: str) -> None:
    use_anthropic(url).messages.create(model="m", max_tokens=50, messages=HELLO)


def stream_message(url: str) -> None:
    list(use_anthropic(url).messages.create(model="m", max_tokens=50, messages=HELLO, stream=True))


def stream_message_with_helper(url: str) -> None:
    with use_anthropic(url).messages.stream(model="m", max_tokens=50, messages=HELLO) as stream:
        assert stream.get_final_message().usage.output_tokens == 100


def use_litellm(url: str) -> Any:
    return mulligan.wrap_client(pytest.importorskip("litellm"))


def complete_by_litellm(url: str) -> None:
    use_litellm(url).completion(model="openai/m", messages=HELLO, api_base=f"{url}/v1", api_key="key")


def stream_by_litellm(url: str) -> None:
    options = {"include_usage": True}
    list(
        use_litellm(url).completion(
            model="openai/m", messages=HELLO, api_base=f"{url}/v1", api_key="key", stream=True, stream_options=options
        )
    )


def complete_anthropic_by_litellm(url: str) -> None:
    use_litellm(url).completion(model="anthropic/m", messages=HELLO, api_base=url, api_key="key", max_tokens=50)


def use_gemini(url: str) -> Any:
    genai = pytest.importorskip("google.genai")
    return genai.Client(api_key="key", http_options={"base_url": url})


def generate_by_gemini(url: str) -> None:
    client = use_gemini(url)
    mulligan.model(lambda contents, model="m": client.models.generate_content(model=model, contents=contents))("hello")


def stream_by_gemini(url: str) -> None:
    client = use_gemini(url)

    @mulligan.model
    def ask(contents: str, model: str = "m") -> Iterator[Any]:
        yield from client.models.generate_content_stream(model=model, contents=contents)

    list(ask("hello"))


def use_bedrock(url: str) -> Any:
    return pytest.importorskip("boto3").client(
        "bedrock-runtime", endpoint_url=url, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
    )


BEDROCK_MESSAGES = [{"role": "user", "content": [{"text": "hello"}]}]


def converse(url: str) -> None:
    client = use_bedrock(url)
    mulligan.model(lambda messages, model="m": client.converse(modelId=model, messages=messages))(BEDROCK_MESSAGES)


def stream_converse(url: str) -> None:
    client = use_bedrock(url)

    @mulligan.model
    def ask(messages: Any, model: str = "m") -> Iterator[Any]:
        yield from client.converse_stream(modelId=model, messages=messages)["stream"]

    list(ask(BEDROCK_MESSAGES))


def use_langchain_openai(url: str) -> Any:
    langchain = pytest.importorskip("langchain_openai")
    return langchain.ChatOpenAI(model="m", base_url=f"{url}/v1", api_key="key", stream_usage=True, max_retries=0)


def use_langchain_anthropic(url: str) -> Any:
    langchain = pytest.importorskip("langchain_anthropic")
    return langchain.ChatAnthropic(model="m", base_url=url, api_key="key", max_retries=0)


def invoke_langchain(use: Callable[[str], Any]) -> Ask:
    def ask(url: str) -> None:
        mulligan.model(use(url).invoke, name="invoke")("hello")

    return ask


def stream_langchain(use: Callable[[str], Any]) -> Ask:
    def ask(url: str) -> None:
        model = use(url)

        @mulligan.model
        def stream(messages: str) -> Iterator[Any]:
            yield from model.stream(messages)

        list(stream("hello"))

    return ask


def complete_by_mistral(url: str) -> None:
    client = pytest.importorskip("mistralai.client").Mistral(api_key="key", server_url=f"{url}/mistral")
    mulligan.model(lambda messages, model="m": client.chat.complete(model=model, messages=messages))(HELLO)


def stream_by_mistral(url: str) -> None:
    client = pytest.importorskip("mistralai.client").Mistral(api_key="key", server_url=f"{url}/mistral")

    @mulligan.model
    def ask(messages: Any, model: str = "m") -> Iterator[Any]:
        yield from client.chat.stream(model=model, messages=messages)

    list(ask(HELLO))


def use_cohere(url: str) -> Any:
    return pytest.importorskip("cohere").ClientV2(api_key="key", base_url=url)


def chat_by_cohere(url: str) -> None:
    client = use_cohere(url)
    mulligan.model(lambda messages, model="m": client.chat(model=model, messages=messages))(HELLO)


def stream_by_cohere(url: str) -> None:
    client = use_cohere(url)

    @mulligan.model
    def ask(messages: Any, model: str = "m") -> Iterator[Any]:
        yield from client.chat_stream(model=model, messages=messages)

    list(ask(HELLO))


CLIENTS: dict[str, tuple[Ask, dict[str, Any], dict[str, int], int]] = {
    "openai": (chat, OPENAI, REASONED, CACHED_COST),
    "openai stream": (stream_chat, OPENAI, REASONED, CACHED_COST),
    "async openai stream": (stream_async_chat, OPENAI, REASONED, CACHED_COST),
    "openai responses": (respond, RESPONSES, REASONED, CACHED_COST),
    "openai responses stream": (stream_response, RESPONSES, REASONED, CACHED_COST),
    "anthropic": (send_message, ANTHROPIC, WRITTEN, WRITTEN_COST),
    "anthropic stream": (stream_message, ANTHROPIC, WRITTEN, WRITTEN_COST),
    "anthropic stream helper": (stream_message_with_helper, ANTHROPIC, WRITTEN, WRITTEN_COST),
    "litellm": (complete_by_litellm, OPENAI, REASONED, CACHED_COST),
    "litellm stream": (stream_by_litellm, OPENAI, REASONED, CACHED_COST),
    "gemini": (generate_by_gemini, GEMINI, REASONED, CACHED_COST),
    "gemini stream": (stream_by_gemini, GEMINI, REASONED, CACHED_COST),
    "bedrock": (converse, BEDROCK, CACHED, CACHED_COST),
    "bedrock stream": (stream_converse, BEDROCK, CACHED, CACHED_COST),
    "langchain openai": (invoke_langchain(use_langchain_openai), OPENAI, REASONED, CACHED_COST),
    "langchain openai stream": (stream_langchain(use_langchain_openai), OPENAI, REASONED, CACHED_COST),
    "langchain anthropic": (invoke_langchain(use_langchain_anthropic), ANTHROPIC, WRITTEN, WRITTEN_COST),
    # LangChain reads the end of the stream, which does not say for how long the cache is written.
    "langchain anthropic stream": (
        stream_langchain(use_langchain_anthropic),
        ANTHROPIC,
        {**CACHED, "cache_write": 200},
        WRITTEN_COST - 50 * (4000 - 2500),
    ),
    "mistral": (complete_by_mistral, MISTRAL, TOTALS, TOTAL_COST),
    "mistral stream": (stream_by_mistral, MISTRAL, TOTALS, TOTAL_COST),
    "cohere": (chat_by_cohere, COHERE, TOTALS, TOTAL_COST),
    "cohere stream": (stream_by_cohere, COHERE, TOTALS, TOTAL_COST),
}


@pytest.fixture
def played() -> Iterator[Sandbox]:
    # LiteLLM's name of a model has a prefix, which is no provider of the shipped prices.
    with sandbox(prices={**PRICES, "openai/m": PRICES["m"], "anthropic/m": PRICES["m"]}) as played:
        yield played


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as provider:
        yield provider


def only_step(played: Sandbox) -> Step:
    (step,) = (step for history in played.runs for step in history.steps)
    return step


@pytest.mark.parametrize("client", CLIENTS)
def test_tokens_and_cost_are_those_that_the_provider_reports(client: str, played: Sandbox, provider: Provider) -> None:
    ask, provider.usage, tokens, cost_nanos = CLIENTS[client]
    ask(provider.url)
    step = only_step(played)
    assert step.outcome == "success"
    assert step.tokens == tokens
    assert step.token_count == 1100
    assert step.cost_nanos == cost_nanos


@pytest.mark.parametrize("client", CLIENTS)
def test_a_recorded_conversation_ends_with_the_answer_of_every_client_and_stream(
    client: str, played: Sandbox, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mulligan, "model", functools.partial(mulligan.model, record="full"))
    monkeypatch.setattr(mulligan, "wrap_client", functools.partial(mulligan.wrap_client, record="full"))
    ask, provider.usage, tokens, cost_nanos = CLIENTS[client]
    ask(provider.url)
    (history,) = played.runs
    (step,) = history.steps
    question, answer = history.messages
    assert (step.messages, step.answer) == (((1, 1),), 2)
    assert (question.role, answer.role) == ("user", "assistant")
    assert [part.text.strip() for part in answer.parts] == [TEXT]
    assert (step.tokens, step.cost_nanos) == (tokens, cost_nanos)


def test_litellm_counts_the_cache_of_anthropic_once(played: Sandbox, provider: Provider) -> None:
    provider.usage = ANTHROPIC
    complete_anthropic_by_litellm(provider.url)
    step = only_step(played)
    assert step.token_count == 1100
    assert step.tokens is not None
    assert step.tokens["cached_input"] == 600


def test_a_stream_without_usage_has_no_tokens_and_no_cost(played: Sandbox, provider: Provider) -> None:
    list(use_openai(provider.url).chat.completions.create(model="m", messages=HELLO, stream=True))
    step = only_step(played)
    assert (step.tokens, step.cost_nanos) == (None, None)


def test_a_stream_closed_early_has_no_output_and_no_cost(played: Sandbox, provider: Provider) -> None:
    provider.usage = ANTHROPIC
    stream = use_anthropic(provider.url).messages.create(model="m", max_tokens=50, messages=HELLO, stream=True)
    next(stream)
    stream.close()
    step = only_step(played)
    assert step.tokens == {name: count for name, count in WRITTEN.items() if name != "output"}
    assert step.cost_nanos is None


def test_a_client_inside_a_wrapped_function_is_counted_once(played: Sandbox, provider: Provider) -> None:
    provider.usage = OPENAI
    client = use_openai(provider.url)

    @mulligan.model
    def ask(messages: Any) -> Any:
        return client.chat.completions.create(model="m", messages=messages)

    ask(HELLO)
    steps = [step for history in played.runs for step in history.steps]
    assert sum(step.token_count for step in steps) == 1100
    assert sum(step.cost_nanos or 0 for step in steps) == CACHED_COST
