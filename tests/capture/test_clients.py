"""`mulligan.wrap_client`, with clients that only look like the real ones; tests/providers has those."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import mulligan
from mulligan.failure import SettingsError
from mulligan.testing import Rehearsal, rehearsal

HELLO = [{"role": "user", "content": "Hello."}]


@pytest.fixture
def played() -> Iterator[Rehearsal]:
    with rehearsal() as played:
        yield played


class Busy(Exception):
    status_code = 503


class AuthError(Exception):
    status_code = 401


class Completions:
    def __init__(self, client: Client) -> None:
        self.client = client

    def create(self, *, messages: Any, model: str) -> str:
        return self.client.answer(model)


class AsyncCompletions:
    def __init__(self, client: Client) -> None:
        self.client = client

    def _plain(self, **given: Any) -> Any:
        async def later() -> str:
            return self.client.answer(given["model"])

        return later()

    @functools.wraps(_plain)
    def create(self, **given: Any) -> Any:  # as OpenAI's: a plain function that gives a coroutine
        return self._plain(**given)


class Client:
    """As OpenAI's and Anthropic's: copies of it have other options, and resources of their own."""

    def __init__(self, completions: type = Completions, max_retries: int = 2) -> None:
        self.completions = completions
        self.max_retries = max_retries
        self.api_key = "old"
        self.base_url = "http://127.0.0.1/v1"
        self.script: list[Exception] = []
        self.seen: list[str] = []
        self.chat = SimpleNamespace(completions=completions(self))

    def with_options(self, *, max_retries: int) -> Client:
        twin = copy.copy(self)
        twin.max_retries = max_retries
        twin.chat = SimpleNamespace(completions=self.completions(twin))
        return twin

    def answer(self, model: str) -> str:
        self.seen.append(f"{model} {self.api_key}")
        if self.script:
            raise self.script.pop(0)
        return "Rain."


def test_a_copy_of_the_client_recovers_and_the_client_stays_as_it_was(played: Rehearsal) -> None:
    client = Client()
    client.script = [Busy("The server is overloaded.")]
    wrapped = mulligan.wrap_client(client)
    assert isinstance(wrapped, Client)
    assert wrapped.max_retries == 0
    assert wrapped.chat.completions.create(messages=HELLO, model="m") == "Rain."
    assert [step.outcome for step in played.steps] == ["failure", "success"]
    assert played.steps[0].name == "chat.completions.create"
    assert client.max_retries == 2
    client.script = [Busy("The server is overloaded.")]
    with pytest.raises(Busy):
        client.chat.completions.create(messages=HELLO, model="m")


def test_an_async_client_that_hides_it_is_awaited(played: Rehearsal) -> None:
    client = Client(AsyncCompletions)
    client.script = [Busy("The server is overloaded.")]
    wrapped = mulligan.wrap_client(client, fallback_models=["other"])
    assert asyncio.run(wrapped.chat.completions.create(messages=HELLO, model="m")) == "Rain."
    assert len(client.seen) == 2


def test_each_endpoint_and_each_model_is_left_alone_for_itself(played: Rehearsal) -> None:
    clients = []
    for port in (1, 2):
        client = Client()
        client.base_url = f"http://127.0.0.1:{port}/v1"
        clients.append(mulligan.wrap_client(client))
    down, up = clients
    down.script += [Busy("The server is overloaded.")] * 50
    for number in range(6):
        with pytest.raises(Exception, match=r"overloaded|was not called"):
            down.chat.completions.create(messages=[{"role": "user", "content": f"{number}"}], model="m")
    assert len(down.seen) == 5
    assert up.chat.completions.create(messages=HELLO, model="m") == "Rain."
    down.script.clear()
    assert down.chat.completions.create(messages=HELLO, model="other") == "Rain."
    assert len(down.seen) == 6


@pytest.mark.parametrize("is_async", [False, True])
def test_a_refreshed_key_becomes_the_clients(played: Rehearsal, is_async: bool) -> None:
    client = Client(AsyncCompletions if is_async else Completions)
    client.script = [AuthError("Incorrect API key provided.")]

    async def afresh() -> str:
        return "new"

    wrapped = mulligan.wrap_client(client, refresh_auth=afresh if is_async else lambda failure: "new")
    made = wrapped.chat.completions.create(messages=HELLO, model="m")
    assert (asyncio.run(made) if is_async else made) == "Rain."
    assert client.seen == ["m old", "m new"]
    assert client.api_key == "old"


def test_the_functions_of_a_module_are_wrapped_without_changing_the_module(played: Rehearsal) -> None:
    module: Any = ModuleType("fake_litellm")
    script: list[Exception] = [Busy("The server is overloaded."), Busy("The server is overloaded.")]
    seen: list[dict[str, Any]] = []

    def completion(model: str, messages: Any, **rest: Any) -> str:
        seen.append(rest)
        if script:
            raise script.pop()
        return "Rain."

    async def acompletion(model: str, messages: Any, **rest: Any) -> str:
        return completion(model, messages, **rest)

    module.completion, module.acompletion, module.drop_params = completion, acompletion, True
    wrapped = mulligan.wrap_client(module)
    assert wrapped.completion(model="m", messages=HELLO) == "Rain."
    assert asyncio.run(wrapped.acompletion(model="m", messages=HELLO)) == "Rain."
    assert seen == [{"num_retries": 0, "max_retries": 0}] * 4
    assert wrapped.drop_params
    assert module.completion is completion


def test_a_client_is_wrapped_once_and_a_stranger_is_refused() -> None:
    client = Client()
    client.with_options = lambda max_retries: client  # type: ignore[method-assign]
    mulligan.wrap_client(client)
    with pytest.raises(SettingsError, match="wrapped already"):
        mulligan.wrap_client(client)
    with pytest.raises(SettingsError, match=r"@mulligan\.model"):
        mulligan.wrap_client(SimpleNamespace())
    with pytest.raises(SettingsError, match="has none of"):
        mulligan.wrap_client(ModuleType("empty"))
