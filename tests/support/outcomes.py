"""Every class of failure of a model call, played over the fake provider through a real client, with its outcome.

`evals/providers.py` makes the table of docs/models.md of it; `tests/providers` holds each to the one expected.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import conversations

import mulligan
from mulligan.testing import Sandbox, sandbox
from providers import TEXT, Provider, Wrong

HELLO = [{"role": "user", "content": "What is the weather in Oslo?"}]
LONG = conversations.story(5)
SERVER = "The server had an error while processing your request."


@dataclass(frozen=True)
class Case:
    """One class of failure."""

    name: str
    script: tuple[Wrong, ...] = ()
    expected: str = ""
    window: int = 10**9
    says_sizes: bool = True
    is_long: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    """The forms it is about, where not all."""
    is_entered: bool = False
    """Whether the client's `stream()` is used, which is a context manager."""


LIMITED = Wrong(
    429, "rate_limit_error", "rate_limit_exceeded", "Rate limit reached for requests.", {"retry-after": "7"}
)
PATIENCE = Wrong(429, "rate_limit_error", "rate_limit_exceeded", "Rate limit reached.", {"retry-after": "3600"})
OVERLOADED = Wrong(529, "overloaded_error", None, "Overloaded")
DOWN = Wrong(503, "server_error", None, SERVER)
QUOTA = Wrong(
    429,
    "insufficient_quota",
    "insufficient_quota",
    "You exceeded your current quota, please check your plan and billing.",
)
TOO_FAST = Wrong(
    429,
    "tokens",
    "rate_limit_exceeded",
    "Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested 60000. "
    "The input or output tokens must be reduced in order to run successfully.",
)
ANSWER_TOO_LONG = Wrong(
    400,
    "invalid_request_error",
    None,
    "max_tokens: 20000 > 8192, which is the maximum allowed number of output tokens",
)
POLICY = Wrong(
    400,
    "invalid_request_error",
    "content_policy_violation",
    "Your request was rejected as a result of our safety system: content policy violation.",
)
BAD = Wrong(400, "invalid_request_error", None, "Invalid value for 'messages[0].content': unsupported image format.")
AUTH = Wrong(401, "authentication_error", "invalid_api_key", "Incorrect API key provided.")
RETIRED = Wrong(404, "not_found_error", "model_not_found", "The model `m` has been deprecated and does not exist.")

CASES = (
    Case("too long, with sizes", expected="compressed", window=30_000, is_long=True),
    Case("too long, without sizes", expected="compressed", window=36_000, says_sizes=False, is_long=True),
    Case(
        'too long, `compress="model"`',
        expected="compressed",
        window=30_000,
        is_long=True,
        options={"compress": "model", "max_summary_calls": 3},
    ),
    Case("more than the tokens per minute", (TOO_FAST,), "compressed", is_long=True),
    Case("rate limit, Retry-After 7", (LIMITED,), "retried after 7 s"),
    Case(
        "rate limit, Retry-After 3600",
        (PATIENCE,),
        "unrecovered: Retry-After is 3600 s, above the maximum backoff of 90 s: it clears in 1 h",
    ),
    Case("overloaded, 529", (OVERLOADED,), "retried"),
    Case("unavailable, 503", (DOWN, DOWN), "retried"),
    Case("unavailable, another provider", (DOWN, DOWN), "fallback model", options={"fallback_models": ["OTHER"]}),
    Case("out of quota", (QUOTA,), "unrecovered: a retry cannot help: the account is out of credit or quota"),
    Case("answer limit too high", (ANSWER_TOO_LONG,), "clamped to 8192", arguments={"max_tokens": 20_000}),
    Case(
        "content policy",
        (POLICY,),
        "unrecovered: the provider's content filter blocked the request and would block a retry",
    ),
    Case(
        "content policy, with a fallback model for it",
        (POLICY,),
        "fallback model",
        options={"fallback_models": ["OTHER"], "on": "content_policy"},
    ),
    Case("other bad request", (BAD,), "note to the model"),
    Case("other bad request, twice", (BAD, BAD), "fallback answered", options={"fallback": lambda failure: "Sorry."}),
    Case("key rejected", (AUTH,), "refreshed", options={"refresh_auth": lambda: "new-key"}),
    Case("key rejected, no refresh_auth", (AUTH,), "unrecovered: a person must act"),
    Case("model retired", (RETIRED,), "fallback model", options={"fallback_models": ["OTHER"]}),
    Case("empty answer", (Wrong(answer=""),), "note to the model"),
    Case("unreadable tool call", (Wrong(arguments="{'city': 'Oslo',}"),), "repaired", needs=("openai",)),
    Case("stream fails before its first token", (Wrong(breaks_after=0),), "retried", arguments={"stream": True}),
    Case(
        "stream fails after two tokens",
        (Wrong(breaks_after=2),),
        "unrecovered: the first items of the stream were already delivered",
        arguments={"stream": True},
    ),
    Case("`with stream()`, overloaded, 529", (OVERLOADED,), "retried", is_entered=True),
    Case("`with stream()`, too long", expected="compressed", window=30_000, is_long=True, is_entered=True),
    Case("`with stream()`, fails before its first token", (Wrong(breaks_after=0),), "retried", is_entered=True),
    Case(
        "`with stream()`, fails after two tokens",
        (Wrong(breaks_after=2),),
        "unrecovered: the first items of the stream were already delivered",
        is_entered=True,
    ),
)


@dataclass(frozen=True)
class Client:
    """A way to call the fake provider through a real client."""

    name: str
    package: str
    form: str
    call: Callable[[str, dict[str, Any], dict[str, Any]], Any]
    """Given the provider's address, arguments and options: the answer's text."""
    enter: Callable[[str, dict[str, Any], dict[str, Any]], Any] | None = None
    """The same by its `stream()`, where it has one."""
    misses: tuple[str, ...] = ()
    """Cases in which its own class or the client's own doing leaves us nothing to see."""

    @property
    def is_here(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


def _chunks(answer: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)


async def _achunks(answer: Any) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices])


def _chat(answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    message = answer.choices[0].message
    return message.tool_calls[0].function.arguments if message.tool_calls else message.content or ""


def _openai(url: str, arguments: dict[str, Any], options: dict[str, Any]) -> str:
    import openai

    client = mulligan.wrap_client(openai.OpenAI(base_url=f"{url}/v1", api_key="old-key"), **options)
    answer = client.chat.completions.create(**arguments)
    return _chunks(answer) if arguments.get("stream") else _chat(answer)


def _async_openai(url: str, arguments: dict[str, Any], options: dict[str, Any]) -> str:
    import openai

    async def go() -> str:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="old-key") as plain:
            client = mulligan.wrap_client(plain, **options)
            answer = await client.chat.completions.create(**arguments)
            return await _achunks(answer) if arguments.get("stream") else _chat(answer)

    return asyncio.run(go())


def _responses(url: str, arguments: dict[str, Any], options: dict[str, Any]) -> str:
    import openai

    client = mulligan.wrap_client(openai.OpenAI(base_url=f"{url}/v1", api_key="old-key"), **options)
    if "max_tokens" in arguments:
        arguments["max_output_tokens"] = arguments.pop("max_tokens")
    answer = client.responses.create(**arguments)
    if arguments.get("stream"):
        return "".join(event.delta for event in answer if event.type == "response.output_text.delta")
    return answer if isinstance(answer, str) else str(answer.output_text)


def _async_responses(url: str, arguments: dict[str, Any], options: dict[str, Any]) -> str:
    import openai

    if "max_tokens" in arguments:
        arguments["max_output_tokens"] = arguments.pop("max_tokens")

    async def go() -> str:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="old-key") as plain:
            client = mulligan.wrap_client(plain, **options)
            answer = await client.responses.create(**arguments)
            if arguments.get("stream"):
                return "".join([event.delta async for event in answer if event.type == "response.output_text.delta"])
            return answer if isinstance(answer, str) else str(answer.output_text)

    return asyncio.run(go())


def _words(events: list[Any]) -> str:
    return "".join(event.delta.text for event in events if event.type == "content_block_delta")


def _blocks(answer: Any) -> str:
    return answer if isinstance(answer, str) else "".join(block.text for block in answer.content)


def _anthropic(url: str, arguments: dict[str, Any], options: dict[str, Any]) -> str:
    import anthropic

    client = mulligan.wrap_client(anthropic.Anthropic(base_url=url, api_key="old-key"), **options)
    answer = client.messages.create(**{"max_tokens": 500, **arguments})
    return _words(list(answer)) if arguments.get("stream") else _blocks(answer)


def _async_anthropic(url: str, arguments: dict[str, Any], options: dict[str, Any]) -> str:
    import anthropic

    async def go() -> str:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="old-key") as plain:
            client = mulligan.wrap_client(plain, **options)
            answer = await client.messages.create(**{"max_tokens": 500, **arguments})
            return _words([event async for event in answer]) if arguments.get("stream") else _blocks(answer)

    return asyncio.run(go())


def _at(url: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"api_base": f"{url}/v1", "api_key": "old-key", **arguments, "model": f"openai/{arguments['model']}"}


def _litellm(url: str, arguments: dict[str, Any], options: dict[str, Any]) -> str:
    import litellm

    answer = mulligan.wrap_client(litellm, **options).completion(**_at(url, arguments))
    return _chunks(answer) if arguments.get("stream") else _chat(answer)


def _async_litellm(url: str, arguments: dict[str, Any], options: dict[str, Any]) -> str:
    import litellm

    async def go() -> str:
        try:
            answer = await mulligan.wrap_client(litellm, **options).acompletion(**_at(url, arguments))
            return await _achunks(answer) if arguments.get("stream") else _chat(answer)
        finally:
            await litellm.close_litellm_async_clients()
            litellm.in_memory_llm_clients_cache.flush_cache()  # a closed one would be used again

    return asyncio.run(go())


def _enter_openai(url: str, arguments: dict[str, Any], options: dict[str, Any]) -> str:
    import openai

    client = mulligan.wrap_client(openai.OpenAI(base_url=f"{url}/v1", api_key="old-key"), **options)
    with client.chat.completions.stream(**arguments) as stream:
        said = "".join(event.delta for event in stream if event.type == "content.delta")
        assert stream.get_final_completion().choices[0].message.content == said
        return said


def _enter_responses(url: str, arguments: dict[str, Any], options: dict[str, Any]) -> str:
    import openai

    client = mulligan.wrap_client(openai.OpenAI(base_url=f"{url}/v1", api_key="old-key"), **options)
    with client.responses.stream(**arguments) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        if len(said) == len(TEXT) + 1:
            assert stream.get_final_response().output_text == said
        return said


def _enter_anthropic(url: str, arguments: dict[str, Any], options: dict[str, Any]) -> str:
    import anthropic

    client = mulligan.wrap_client(anthropic.Anthropic(base_url=url, api_key="old-key"), **options)
    with client.messages.stream(max_tokens=500, **arguments) as stream:
        said = "".join(stream.text_stream)
        assert stream.get_final_text() == said
        return said


def _enter_async_anthropic(url: str, arguments: dict[str, Any], options: dict[str, Any]) -> str:
    import anthropic

    async def go() -> str:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="old-key") as plain:
            client = mulligan.wrap_client(plain, **options)
            async with client.messages.stream(max_tokens=500, **arguments) as stream:
                said = "".join([text async for text in stream.text_stream])
                assert await stream.get_final_text() == said
                return said

    return asyncio.run(go())


CLIENTS = (
    Client("OpenAI", "openai", "openai", _openai, _enter_openai),
    Client("AsyncOpenAI", "openai", "openai", _async_openai),
    Client("OpenAI responses", "openai", "responses", _responses, _enter_responses),
    Client("AsyncOpenAI responses", "openai", "responses", _async_responses),
    Client("Anthropic", "anthropic", "anthropic", _anthropic, _enter_anthropic),
    Client("AsyncAnthropic", "anthropic", "anthropic", _async_anthropic, _enter_async_anthropic),
    Client("litellm", "litellm", "openai", _litellm),
    Client("async litellm", "litellm", "openai", _async_litellm),
)
_FORMS = {"openai": "openai_chat", "responses": "openai_responses", "anthropic": "anthropic"}


def is_about(case: Case, client: Client) -> bool:
    if case.is_entered and client.enter is None:
        return False
    return not case.needs or client.form in case.needs


def outcome(case: Case, client: Client) -> tuple[str, Provider, Sandbox]:
    """Return the outcome of the call in a few words, the provider with its requests, and the records."""
    with Provider(window=case.window, says_sizes=case.says_sizes) as provider, sandbox() as played:
        provider.script = list(case.script)
        given = conversations.FORMS[_FORMS[client.form]](LONG) if case.is_long else list(HELLO)
        place = "input" if client.form == "responses" else "messages"
        arguments = {"model": "m", place: given, **case.arguments}
        options = dict(case.options)
        if "fallback_models" in options:
            other = "hosted_vllm/other" if client.package == "litellm" else "other"
            options["fallback_models"] = [mulligan.Fallback(other, on=options.pop("on", ()))]
        try:
            call = client.enter if case.is_entered and client.enter is not None else client.call
            text = call(provider.url, arguments, options)
        except Exception as error:  # noqa: BLE001 - the client's own, whichever it is
            note = next((note for note in getattr(error, "__notes__", ()) if note.startswith("mulligan:")), "")
            reason = re.sub(r"^.*?\). (?:Not retried|Stopped|Not called): ", "", note).partition(". Details")[0]
            return f"unrecovered: {reason}", provider, played
        return _told(text.strip(), played), provider, played


def _told(text: str, played: Sandbox) -> str:
    step = played.steps[-1]
    if step.failure is not None:  # as an event of the stream, which is the caller's to read
        return f"unrecovered: {step.stop.reason if step.stop else ''}"
    if (step.metadata or {}).get("repaired_output"):
        return "repaired" if text == '{"city": "Oslo"}' else f"wrong: {text}"
    if text not in (TEXT, "Sorry."):
        return f"wrong: {text!r}"
    after = step.recovery
    if after is None:
        return "nothing happened"
    if after.source == "fallback":
        return "fallback model" if after.changes else "fallback answered"
    if after.source == "refresh":
        return "refreshed"
    if after.changes:
        return f"clamped to {after.changes[0].after}"
    if after.remedy.value == "retry":
        return f"retried after {played.backoffs[-1]:g} s" if played.backoffs[-1] == 7 else "retried"
    return {"compress": "compressed", "replan": "note to the model"}[after.remedy.value]
