"""The real clients of OpenAI, Anthropic and LiteLLM recover from each class of failure, over a fake provider.

They are heavy and not needed otherwise: `make test-providers` installs them and runs this; elsewhere it is skipped.
"""

from __future__ import annotations

import os

import pytest
from outcomes import CASES, CLIENTS, HELLO, OVERLOADED, Case, Client, is_about, outcome

import mulligan
from mulligan.testing import sandbox
from providers import Provider, Wrong

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no network

PAIRS = [(case, client) for client in CLIENTS for case in CASES if is_about(case, client)]


@pytest.mark.filterwarnings("ignore")  # those of the clients are theirs
@pytest.mark.parametrize(
    ("case", "client"), PAIRS, ids=[f"{client.name}: {case.name}".replace(" ", "_") for case, client in PAIRS]
)
def test_each_class_of_failure_ends_as_the_page_says(case: Case, client: Client) -> None:
    if not client.is_here:
        pytest.skip(f"{client.package} is not installed: make test-providers")
    told, provider, played = outcome(case, client)
    assert told == case.expected
    by_us = [step.recovery for step in played.steps if step.recovery and step.recovery.source == "fallback"]
    made = len(played.steps) - sum(not after.changes for after in by_us)
    assert len(provider.requests) == made  # the client itself has repeated nothing
    assert all(wait <= 90 for wait in played.backoffs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["chat", "responses", "messages"])
def test_parse_recovers_as_create_does(form: str) -> None:
    pytest.importorskip("anthropic" if form == "messages" else "openai")
    from pydantic import BaseModel

    class Weather(BaseModel):
        city: str

    with Provider() as provider, sandbox() as played:
        provider.script = [OVERLOADED, Wrong(answer='{"city": "Oslo"}')]
        if form == "messages":
            import anthropic

            claude = mulligan.wrap_client(anthropic.Anthropic(base_url=provider.url, api_key="key"))
            parsed = claude.messages.parse(model="m", max_tokens=50, messages=HELLO, output_format=Weather)
            answer = parsed.parsed_output
        else:
            import openai

            client = mulligan.wrap_client(openai.OpenAI(base_url=f"{provider.url}/v1", api_key="key"))
            if form == "chat":
                chatted = client.chat.completions.parse(model="m", messages=HELLO, response_format=Weather)
                answer = chatted.choices[0].message.parsed
            else:
                answer = client.responses.parse(model="m", input=HELLO, text_format=Weather).output_parsed
        assert answer == Weather(city="Oslo")
        assert len(provider.requests) == 2
        assert [step.outcome for step in played.steps] == ["failure", "success"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("package", ["openai", "anthropic"])
def test_a_copy_with_other_options_recovers_too(package: str) -> None:
    pytest.importorskip(package)
    with Provider() as provider, sandbox() as played:
        provider.script = [OVERLOADED, OVERLOADED]
        if package == "openai":
            import openai

            client = mulligan.wrap_client(openai.OpenAI(base_url=f"{provider.url}/v1", api_key="key"))
            for copied in (client.with_options(timeout=5), client.copy(max_retries=3)):
                copied.chat.completions.create(model="m", messages=HELLO)
        else:
            import anthropic

            claude = mulligan.wrap_client(anthropic.Anthropic(base_url=provider.url, api_key="key"))
            for twin in (claude.with_options(timeout=5), claude.copy(max_retries=3)):
                twin.messages.create(model="m", max_tokens=50, messages=HELLO)
    assert [step.outcome for step in played.steps] == ["failure", "failure", "success", "success"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("has_other_key", [True, False])
def test_a_copy_with_another_key_does_not_wait_for_the_outage_of_the_first(has_other_key: bool) -> None:
    openai = pytest.importorskip("openai")
    with Provider() as provider, sandbox() as played:
        client = mulligan.wrap_client(openai.OpenAI(base_url=f"{provider.url}/v1", api_key="first"))
        provider.script = [OVERLOADED] * 100
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="m", messages=HELLO)  # its target is down for more than 20 s
        provider.script[:] = [OVERLOADED]
        waits_before = len(played.backoffs)
        copied = client.with_options(api_key="second" if has_other_key else "first")
        copied.chat.completions.create(model="m", messages=HELLO)
    waited = sum(played.backoffs[waits_before:])
    assert waited <= 0.5 if has_other_key else waited > 5
