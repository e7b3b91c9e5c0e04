"""A conversation that is too long, sent by each real client in each of its forms: compressed, and accepted."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import conversations
import package_forms as forms
import pytest
from conversations import Turn, story

import mulligan
from mulligan.testing import Sandbox
from providers import TEXT, Provider, tokens

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no network

pytestmark = [pytest.mark.providers, pytest.mark.filterwarnings("ignore")]

Send = Callable[[Any], Any]
TURNS = story(11, messages=40, results=12)


def use_openai(url: str, **options: Any) -> Any:
    client = pytest.importorskip("openai").OpenAI(base_url=f"{url}/v1", api_key="key")
    return mulligan.wrap_client(client, **options)


def send_chat(url: str, **options: Any) -> Send:
    create = use_openai(url, **options).chat.completions.create
    return lambda messages: create(model="m", messages=messages).choices[0].message.content


def send_items(url: str, **options: Any) -> Send:
    create = use_openai(url, **options).responses.create
    return lambda items: create(model="m", input=items).output_text


def send_blocks(url: str, **options: Any) -> Send:
    client = pytest.importorskip("anthropic").Anthropic(base_url=url, api_key="key")
    create = mulligan.wrap_client(client, **options).messages.create
    return lambda messages: create(model="m", max_tokens=50, messages=messages).content[0].text


def send_by_litellm(url: str, **options: Any) -> Send:
    client = mulligan.wrap_client(pytest.importorskip("litellm"), **options)

    def send(messages: Any) -> Any:
        answer = client.completion(model="openai/m", messages=messages, api_base=f"{url}/v1", api_key="key")
        return answer.choices[0].message.content

    return send


def send_by_gemini(url: str, **options: Any) -> Send:
    client = pytest.importorskip("google.genai").Client(api_key="key", http_options={"base_url": url})

    @mulligan.model(**options)
    def ask(contents: Any, model: str = "m") -> Any:
        return client.models.generate_content(model=model, contents=contents)

    return lambda contents: ask(contents).text


def send_by_bedrock(url: str, **options: Any) -> Send:
    client = pytest.importorskip("boto3").client(
        "bedrock-runtime", endpoint_url=url, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
    )

    @mulligan.model(**options)
    def ask(messages: Any, model: str = "m") -> Any:
        return client.converse(modelId=model, messages=messages)

    return lambda messages: ask(messages)["output"]["message"]["content"][0]["text"]


def send_by_langchain_openai(url: str, **options: Any) -> Send:
    model = pytest.importorskip("langchain_openai").ChatOpenAI(
        model="m", base_url=f"{url}/v1", api_key="key", max_retries=0
    )
    ask = mulligan.model(model.invoke, name="invoke", **options)
    return lambda messages: ask(messages).text


def send_by_langchain_anthropic(url: str, **options: Any) -> Send:
    model = pytest.importorskip("langchain_anthropic").ChatAnthropic(
        model="m", base_url=url, api_key="key", max_retries=0
    )
    ask = mulligan.model(model.invoke, name="invoke", **options)
    return lambda messages: ask(messages).text


CLIENTS: dict[Callable[..., Send], list[Callable[[list[Turn]], list[Any]]]] = {
    send_chat: [conversations.openai_chat, forms.openai_chat, forms.openai_dumps],
    send_items: [conversations.openai_responses, forms.openai_responses, forms.openai_responses_dumps],
    send_blocks: [conversations.anthropic, forms.anthropic],
    send_by_litellm: [conversations.openai_chat, forms.litellm_messages, forms.litellm_dumps],
    send_by_gemini: [conversations.google, forms.google, forms.google_dumps],
    send_by_bedrock: [conversations.alternating_bedrock],
    send_by_langchain_openai: [forms.langchain, forms.langchain_blocks, forms.langchain_pairs],
    send_by_langchain_anthropic: [forms.langchain, forms.langchain_blocks, forms.langchain_pairs],
}
COMBINATIONS = [
    pytest.param(client, form, id=f"{client.__name__}-{form.__module__}.{form.__name__}")
    for client, client_forms in CLIENTS.items()
    for form in client_forms
]
OPTIONS: dict[str, dict[str, Any]] = {
    "cut": {"max_compressions": 2},
    "summarized": {"compress": lambda text: f"Summary: {text[:60]}", "max_compressions": 2},
    "by the model": {"compress": "model", "max_summary_calls": 40, "max_compressions": 2},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("client", "form"), COMBINATIONS)
def test_a_conversation_of_each_form_is_compressed_and_accepted(
    client: Callable[..., Send], form: Callable[..., Any], options: dict[str, Any], played: Sandbox
) -> None:
    messages = form(TURNS)
    before = repr(messages)
    with Provider() as provider:
        send = client(provider.url, **options)
        assert send(messages) == TEXT
        (sent,) = provider.requests
        provider.requests.clear()
        provider.window = int(tokens(sent) * 0.4)
        assert send(messages) == TEXT
        assert tokens(provider.requests[-1]) > 0.6 * provider.window
    assert repr(messages) == before
    compressed = [step.metadata["compressed"] for step in played.steps if "compressed" in (step.metadata or {})]
    actions = {action["action"] for facts in compressed for action in facts["actions"]}
    assert actions
    if "compress" in options:
        assert "summarized" in actions
