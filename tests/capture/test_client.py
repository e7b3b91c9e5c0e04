"""`mulligan.wrap_client`, with clients that only look like the real ones; tests/providers has those."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import mulligan
from mulligan.core.failure import SettingsError
from mulligan.testing import Sandbox

HELLO = [{"role": "user", "content": "Hello."}]


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


def test_a_copy_of_the_client_recovers_and_the_client_stays_as_it_was(played: Sandbox) -> None:
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


def test_a_copy_with_other_options_recovers_too(played: Sandbox) -> None:
    client = Client()
    wrapped = mulligan.wrap_client(client, refresh_auth=lambda: "new")
    other = wrapped.with_options(max_retries=5)
    assert isinstance(other, Client)
    assert other.max_retries == 0
    other.script[:] = [Busy("The server is overloaded."), AuthError("Incorrect API key provided.")]
    assert other.with_options(max_retries=1).chat.completions.create(messages=HELLO, model="m") == "Rain."
    assert client.seen == ["m old", "m old", "m new"]
    assert [step.outcome for step in played.steps] == ["failure", "failure", "success"]


def test_an_async_client_that_hides_it_is_awaited(played: Sandbox) -> None:
    client = Client(AsyncCompletions)
    client.script = [Busy("The server is overloaded.")]
    wrapped = mulligan.wrap_client(client, fallback_models=["other"])
    assert asyncio.run(wrapped.chat.completions.create(messages=HELLO, model="m")) == "Rain."
    assert len(client.seen) == 2


def test_each_endpoint_and_each_model_is_a_target(played: Sandbox) -> None:
    clients = []
    for port in (1, 2):
        client = Client()
        client.base_url = f"http://127.0.0.1:{port}/v1"
        clients.append(mulligan.wrap_client(client, circuit_breaker=True))
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
def test_a_refreshed_key_becomes_the_clients(played: Sandbox, is_async: bool) -> None:
    client = Client(AsyncCompletions if is_async else Completions)
    client.script = [AuthError("Incorrect API key provided.")]

    async def afresh() -> str:
        return "new"

    wrapped = mulligan.wrap_client(client, refresh_auth=afresh if is_async else lambda failure: "new")
    made = wrapped.chat.completions.create(messages=HELLO, model="m")
    assert (asyncio.run(made) if is_async else made) == "Rain."
    assert client.seen == ["m old", "m new"]
    assert client.api_key == "old"


class MessageStream:
    """As Anthropic's: whatever it can do reads from one place."""

    def __init__(self, events: Any) -> None:
        self._iterator = events
        self.is_closed = False

    def __iter__(self) -> Iterator[Any]:
        yield from self._iterator

    def __next__(self) -> Any:
        return next(self._iterator)

    def text(self) -> str:
        return "".join(event.get("text", "") for event in self)

    def close(self) -> None:
        self.is_closed = True


class AsyncMessageStream:
    def __init__(self, events: Any) -> None:
        self._iterator = events
        self.is_closed = False

    def __aiter__(self) -> Any:
        return self._iterator

    async def __anext__(self) -> Any:
        return await anext(self._iterator)

    async def text(self) -> str:
        return "".join([event.get("text", "") async for event in self])

    async def close(self) -> None:
        self.is_closed = True


class Messages:
    """The streams that begin, and at which of their texts each of them fails."""

    def __init__(self, fails: dict[int, int]) -> None:
        self.fails = fails
        self.begun = 0
        self.left = 0
        self.left_before: list[int] = []
        """How many had been left when each was entered."""

    def create(self, **given: Any) -> str:
        return "Rain."

    def events(self) -> Iterator[Any]:
        self.begun += 1
        at = self.fails.get(self.begun)
        yield {"type": "message_start"}
        for number, text in enumerate(("Rain ", "in ", "Oslo.")):
            if number == at:
                raise Busy("The server is overloaded.")
            yield {"type": "text", "text": text}

    @contextlib.contextmanager
    def stream(self, **given: Any) -> Iterator[MessageStream]:
        stream = MessageStream(self.events())
        self.left_before.append(self.left)
        try:
            yield stream
        finally:
            self.left += 1
            stream.close()


class AsyncMessages(Messages):
    async def aevents(self) -> Any:
        for event in self.events():
            yield event

    @contextlib.asynccontextmanager
    async def stream(self, **given: Any) -> Any:  # type: ignore[override]
        stream = AsyncMessageStream(self.aevents())
        self.left_before.append(self.left)
        try:
            yield stream
        finally:
            self.left += 1
            await stream.close()


def test_a_stream_that_is_entered_is_recovered_before_its_first_token_and_stays_the_clients_own(
    played: Sandbox,
) -> None:
    messages = Messages({1: 0})
    client = mulligan.wrap_client(SimpleNamespace(messages=messages))
    with client.messages.stream(messages=HELLO, model="m") as stream:
        assert isinstance(stream, MessageStream)
        assert stream.text() == "Rain in Oslo."
    assert messages.begun == messages.left == 2
    assert messages.left_before == [0, 1]
    assert stream.is_closed
    assert [step.outcome for step in played.steps] == ["failure", "success"]
    assert played.steps[-1].name == "messages.stream"
    assert played.steps[-1].result == {"$stream": 4}


def test_an_async_stream_that_is_entered_is_recovered_too(played: Sandbox) -> None:
    messages = AsyncMessages({1: 0})

    async def go() -> AsyncMessageStream:
        client = mulligan.wrap_client(SimpleNamespace(messages=messages))
        async with client.messages.stream(messages=HELLO, model="m") as stream:
            assert await stream.text() == "Rain in Oslo."
        return stream  # type: ignore[no-any-return]

    assert asyncio.run(go()).is_closed
    assert messages.begun == messages.left == 2
    assert messages.left_before == [0, 1]
    assert [step.outcome for step in played.steps] == ["failure", "success"]


def test_a_stream_that_is_entered_is_not_sent_again_after_a_token(played: Sandbox) -> None:
    messages = Messages({1: 2})
    client = mulligan.wrap_client(SimpleNamespace(messages=messages))
    heard: list[str] = []

    def read() -> None:
        with client.messages.stream(messages=HELLO, model="m") as stream:
            for event in stream:
                heard.append(event.get("text", ""))  # noqa: PERF401 - up to the error

    with pytest.raises(Busy) as left:
        read()
    assert heard == ["", "Rain ", "in "]
    assert messages.begun == 1
    assert "the first items of the stream were already delivered" in left.value.__notes__[0]
    assert played.steps[-1].outcome == "failure"


def test_what_the_reader_of_a_stream_does_wrong_is_not_the_streams_failure(played: Sandbox) -> None:
    client = mulligan.wrap_client(SimpleNamespace(messages=Messages({})))
    with pytest.raises(ZeroDivisionError), client.messages.stream(messages=HELLO, model="m") as stream:
        print(next(stream), 1 / 0)
    assert stream.is_closed
    assert [step.outcome for step in played.steps] == ["success"]


def test_a_fallback_answers_in_place_of_a_stream_that_is_entered(played: Sandbox) -> None:
    messages = Messages({1: 0, 2: 0, 3: 0})
    client = mulligan.wrap_client(SimpleNamespace(messages=messages), fallback=lambda failure: "Sorry.")
    with client.messages.stream(messages=HELLO, model="m") as answer:
        assert answer == "Sorry."
    assert messages.begun == 3


def test_the_functions_of_a_module_are_wrapped_without_changing_the_module(played: Sandbox) -> None:
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
    with pytest.raises(SettingsError, match="already wrapped"):
        mulligan.wrap_client(client)
    with pytest.raises(SettingsError, match=r"@mulligan\.model"):
        mulligan.wrap_client(SimpleNamespace())
    with pytest.raises(SettingsError, match="has none of"):
        mulligan.wrap_client(ModuleType("empty"))
