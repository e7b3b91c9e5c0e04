"""`@mulligan.model`: what each failure of a model call leads to, sync and async, over HTTP and in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import conversations
import pytest

import mulligan
from mulligan import Fallback, Policy
from mulligan.contract.store import DEFAULT_TENANT, FixQuery
from mulligan.core import conversation
from mulligan.core.events import ContextCompacted, RecoveryPlanned
from mulligan.core.failure import SettingsError
from mulligan.recover.compress import is_shortened
from mulligan.recover.target_state import TARGET_DOWN
from mulligan.testing import Sandbox, assert_sanitized
from providers import TEXT, Provider, Wrong, tokens


class ApiError(Exception):
    """An error as clients of providers raise it."""

    def __init__(self, status: int, message: str, code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status_code = status
        self.code = code
        self.response = type("Response", (), {"status_code": status, "headers": headers})()


ApiError.__module__ = "openai"
HELLO = [{"role": "user", "content": "What is the weather?"}]
TOO_LONG = "This model's maximum context length is {} tokens. However, your messages resulted in {} tokens."
DOWN = ApiError(503, "The server is overloaded.")
AUTH = ApiError(401, "Incorrect API key provided.", "invalid_api_key")
BAD = ApiError(400, "Invalid value for 'messages[0]': <b>unsupported</b> image format. See http://10.0.0.7/x")
GONE = ApiError(404, "The model `m` has been deprecated.", "model_not_found")


def overflow(window: int, requested: int) -> ApiError:
    return ApiError(400, TOO_LONG.format(window, requested), "context_length_exceeded")


def scripted(*script: Any, **options: Any) -> Any:
    """A model that does what the script says, then answers; and what it was asked."""
    left, asked = list(script), []

    @mulligan.model(**options)
    def chat(messages: Any, model: str = "gpt-4o", **rest: Any) -> Any:
        asked.append({"messages": messages, "model": model, **rest})
        if not left:
            return TEXT
        turn = left.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return turn

    chat.asked = asked
    return chat


# Too long

STYLES = {
    "openai": ("/v1/chat/completions", "messages", "openai_chat"),
    "responses": ("/v1/responses", "input", "openai_responses"),
    "anthropic": ("/v1/messages", "messages", "anthropic"),
    "gemini": ("/v1beta/models/gemini-pro:generateContent", "contents", "google"),
    "bedrock": ("/model/claude/converse", "messages", "bedrock"),
    "vllm": ("/vllm/v1/chat/completions", "messages", "openai_chat"),
}


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("says_sizes", [True, False])
def test_a_conversation_that_is_too_long_is_compressed_and_sent_again(
    style: str, says_sizes: bool, played: Sandbox
) -> None:
    path, place, form = STYLES[style]
    convert = conversations.alternating_bedrock if style == "bedrock" else conversations.FORMS[form]
    messages = convert(conversations.story(7, messages=60, results=15))

    with Provider(window=18_000, says_sizes=says_sizes) as provider:

        @mulligan.model
        def chat(**body: Any) -> Any:
            data = json.dumps(body).encode()
            try:
                with urllib.request.urlopen(urllib.request.Request(provider.url + path, data)) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                with error:
                    raise ApiError(error.code, error.read().decode()) from None

        answer = chat(**{"model": "m", place: messages})
        assert TEXT in json.dumps(answer)
        assert len(provider.requests) == 2
        sent = provider.requests[1][place]
        if says_sizes:  # then no more is lost than must be
            assert tokens(provider.requests[1]) > 0.85 * 18_000
    assert conversation.find_unpaired(conversation.parse_messages(sent)) == ([], [])
    assert sent[-1] == conversations.flat(messages[-1])
    (event,) = [event.compaction for event in played.events if isinstance(event, ContextCompacted)]
    assert event.attempt == 2
    assert event.steps > 0
    assert (event.chars_after or 0) < (event.chars_before or 0)
    assert (event.tokens_after or 0) < (event.tokens_before or 0)
    step = played.steps[-1]
    assert step.recovery is not None
    assert step.recovery.remedy.value == "compress"
    assert step.outcome == "success"
    assert step.metadata is not None
    assert step.metadata["compressed"]["by"] == "structure"


def test_what_compression_cut_stays_in_the_record(played: Sandbox) -> None:
    story = "\n".join(f"line {number} of a long file" for number in range(2000))
    call = {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": story},
        *({"role": ("assistant", "user")[n % 2], "content": f"Word {n}."} for n in range(7)),
        {"role": "user", "content": "And now?"},
    ]
    chat = scripted(overflow(6000, 12_000))
    assert chat(messages=messages) == TEXT
    assert is_shortened(chat.asked[1]["messages"][2]["content"])
    assert messages[2]["content"] == story
    (cut,) = played.steps[-1].metadata["cut"]
    assert cut["message"] == 2
    assert "".join(cut["text"]) == story


def test_where_only_the_shape_is_kept_nothing_of_what_was_cut_is(played: Sandbox) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "the secret plans are these " * 900},
        *({"role": ("assistant", "user")[n % 2], "content": f"Word {n}."} for n in range(8)),
    ]
    chat = scripted(overflow(3000, 6000), record="shape")
    assert chat(messages=messages) == TEXT
    assert "secret plans" not in repr(played.steps)
    assert played.steps[-1].metadata["compressed"]["messages"] > 0


def test_the_users_summariser_shortens_and_structure_serves_when_it_fails(played: Sandbox) -> None:
    messages = conversations.openai_chat(conversations.story(2, messages=40, results=12))
    size = len(json.dumps(messages)) // 4

    def summarise(text: str) -> str:
        return f"{len(text)} characters about orders"

    chat = scripted(overflow(size // 2, size), compress=summarise)
    assert chat(messages=messages) == TEXT
    assert "characters about orders" in json.dumps(chat.asked[1])
    assert played.steps[-1].recovery.source == "summarizer"

    def broken(text: str) -> str:
        raise overflow(10, 20)

    chat = scripted(overflow(size // 2, size), compress=broken)
    assert chat(messages=messages) == TEXT
    assert played.steps[-1].recovery.source == "structure"


def test_a_function_of_messages_rewrites_the_whole_conversation(played: Sandbox) -> None:
    chat = scripted(overflow(500, 1000), compress=lambda messages: messages[-1:])
    messages = [{"role": ("user", "assistant")[n % 2], "content": "word " * 100} for n in range(9)]
    assert chat(messages=messages) == TEXT
    assert chat.asked[1]["messages"] == messages[-1:]


def test_a_rewriting_that_is_longer_is_not_taken(played: Sandbox) -> None:
    chat = scripted(overflow(5000, 10_000), compress=lambda messages: [*messages, *messages])
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "so it is " * 60} for n in range(61)]
    assert chat(messages=messages) == TEXT
    assert len(chat.asked[1]["messages"]) < len(messages)
    assert played.steps[-1].recovery.source == "structure"


def test_the_model_itself_tells_what_is_left_out_where_that_is_allowed(played: Sandbox) -> None:
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "so it is " * 60} for n in range(61)]
    size = len(json.dumps(messages)) // 4
    chat = scripted(overflow(size // 2, size), compress="model")
    assert chat(messages=messages) == TEXT
    assert len(chat.asked) == 3
    assert "this part of a conversation" in chat.asked[1]["messages"][0]["content"]
    assert f"Summary: {TEXT}" in json.dumps(chat.asked[2])


def recovery_stages(events: list[Any]) -> list[str]:
    """Apply the query of docs/models.md."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "models.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def recovery_stage" in block]
    names: dict[str, Any] = {}
    exec(code.partition("def print_stage")[0], names)
    return [stage for event in events if (stage := names["recovery_stage"](event))]


def test_the_query_of_the_page_finds_the_four_stages_of_a_recovery(played: Sandbox) -> None:
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "so it is " * 60} for n in range(61)]
    scripted(overflow(5000, 10_000))(messages=messages)
    assert recovery_stages(played.events) == ["attempted", "compressed", "recovered"]
    played.events.clear()
    with pytest.raises(ApiError):
        scripted(*[overflow(5000, 10_000)] * 2)(messages=messages)
    assert recovery_stages(played.events) == ["attempted", "compressed", "failed"]
    played.events.clear()
    with pytest.raises(ApiError):
        scripted(overflow(10, 20))(messages=HELLO)
    assert recovery_stages(played.events) == ["failed"]
    played.events.clear()
    scripted()(messages=HELLO)
    assert recovery_stages(played.events) == []


def test_a_client_that_is_passed_along_is_not_recorded_and_also_makes_the_summary(played: Sandbox) -> None:
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "so it is " * 60} for n in range(61)]
    size = len(json.dumps(messages)) // 4
    client, script, clients = object(), [overflow(size // 2, size)], []

    @mulligan.model(compress="model", exclude={"client"})
    def chat(client: object, messages: list[Any]) -> str:
        clients.append(client)
        if script:
            raise script.pop()
        return "a summary"

    assert chat(client, messages=messages) == "a summary"
    assert clients == [client, client, client]  # the first attempt, the summary, the second attempt
    assert [list(step.arguments or ()) for step in played.steps] == [["messages"]] * 3


def test_compression_is_tried_as_often_as_it_may_be_and_never_loops(played: Sandbox) -> None:
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "so it is " * 60} for n in range(61)]
    chat = scripted(*[overflow(5000, 10_000)] * 9)
    with pytest.raises(ApiError) as left:
        chat(messages=messages)
    assert len(chat.asked) == 2
    assert "the conversation was compressed once" in left.value.__notes__[0]
    chat = scripted(*[overflow(5000, 10_000)] * 9, max_compressions=0)
    with pytest.raises(ApiError):
        chat(messages=messages)
    assert len(chat.asked) == 1


def test_a_conversation_whose_last_turn_alone_is_too_long_is_not_sent_again(played: Sandbox) -> None:
    old = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "so it is " * 60} for n in range(20)]
    chat = scripted(overflow(5000, 20_000))
    with pytest.raises(ApiError) as left:
        chat(messages=[*old, {"role": "user", "content": "word " * 15_000}])
    assert len(chat.asked) == 1
    assert "newest exchange alone exceed the context window" in left.value.__notes__[0]


def test_where_the_conversation_alone_fits_the_answers_limit_is_lowered_instead(played: Sandbox) -> None:
    said = "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length"
    chat = scripted(ApiError(400, said))
    assert chat(messages=HELLO, max_tokens=21_333) == TEXT
    assert chat.asked[1]["max_tokens"] == 11_642
    assert chat.asked[1]["messages"] == HELLO


# Waiting


def test_a_rate_limited_model_is_called_again_after_the_time_it_asked_for(played: Sandbox) -> None:
    chat = scripted(ApiError(429, "Rate limit reached.", **{"retry-after": "61"}))
    assert chat(messages=HELLO) == TEXT
    assert played.backoffs == [61.0]


@pytest.mark.parametrize(("policy", "asked", "most"), [(None, 91, 90), (Policy(max_backoff=5), 6, 5)])
def test_retry_after_beyond_the_policy_ends_recovery_with_the_reason(
    played: Sandbox, policy: Policy | None, asked: int, most: int
) -> None:
    chat = scripted(ApiError(429, "Rate limit reached.", **{"retry-after": str(asked)}), policy=policy)
    with pytest.raises(ApiError) as left:
        chat(messages=HELLO)
    assert f"Retry-After is {asked} s, above the maximum backoff of {most} s" in left.value.__notes__[0]
    assert played.backoffs == []
    assert len(chat.asked) == 1


def test_no_wait_goes_beyond_the_calls_own_time(played: Sandbox) -> None:
    chat = scripted(ApiError(429, "Rate limit reached.", **{"retry-after": "30"}), timeout=20)
    with pytest.raises(ApiError) as left:
        chat(messages=HELLO)
    assert "the deadline would pass before the next attempt" in left.value.__notes__[0]
    assert played.backoffs == []


def test_retries_of_a_model_are_no_repairs_of_its_run(played: Sandbox) -> None:
    chat = scripted(DOWN, "Rain.", DOWN, "Sun.", policy=Policy(max_run_retries=0))
    with mulligan.run("agent"):
        assert chat(messages=HELLO) == "Rain."
        assert chat(messages=[{"role": "user", "content": "And now?"}]) == "Sun."


def test_cancellation_during_a_wait_is_immediate() -> None:
    own = mulligan.Mulligan(store="memory:")

    @own.model
    async def chat(messages: Any) -> str:
        raise ApiError(429, "Rate limit reached.", **{"retry-after": "60"})

    async def go() -> float:
        task = asyncio.create_task(chat(HELLO))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}  # nothing of it waits on
        return time.monotonic() - began

    assert asyncio.run(go()) < 5


def test_quota_is_not_waited_for(played: Sandbox) -> None:
    chat = scripted(ApiError(429, "You exceeded your current quota.", "insufficient_quota"))
    with pytest.raises(ApiError):
        chat(messages=HELLO)
    assert played.backoffs == []


# Refused


def test_a_refused_request_is_told_to_the_model_once_in_one_clean_sentence(played: Sandbox) -> None:
    chat = scripted(BAD)
    assert chat(messages=HELLO) == TEXT
    told = chat.asked[1]["messages"][-1]
    assert told["role"] == "user"
    assert "unsupported" in told["content"]
    assert "<b>" not in told["content"]
    assert "10.0.0.7" not in told["content"]
    assert_sanitized(told["content"])
    assert chat.asked[1]["messages"][:-1] == HELLO
    assert played.steps[-1].recovery.remedy.value == "replan"


@pytest.mark.parametrize("takes", ["failure", "messages", "both", "nothing"])
def test_the_fallback_answers_where_recovery_cannot(played: Sandbox, takes: str) -> None:
    given: list[Any] = []
    fallbacks: dict[str, Any] = {
        "failure": lambda failure: given.append(failure.kind) or "Sorry.",
        "messages": lambda messages: given.append(messages[0]) or "Sorry.",
        "both": lambda messages, failure: given.append((messages[0], failure.kind)) or "Sorry.",
        "nothing": lambda: "Sorry.",
    }
    chat = scripted(BAD, BAD, BAD, fallback=fallbacks[takes])
    assert chat(messages=HELLO) == "Sorry."
    assert len(chat.asked) == 2
    expected = {"failure": ["model/bad_request"], "messages": HELLO, "both": [(HELLO[0], "model/bad_request")]}
    assert given == expected.get(takes, [])
    assert [step.outcome for step in played.steps] == ["failure", "failure", "success"]
    assert played.steps[-1].recovery.source == "fallback"
    assert played.runs[0].run.end_reason == "finished"


@pytest.mark.parametrize("error", [AUTH, GONE, ApiError(429, "You exceeded your quota.", "insufficient_quota")])
def test_where_a_person_must_act_no_fallback_speaks(played: Sandbox, error: ApiError) -> None:
    with pytest.raises(ApiError) as left:
        scripted(error, fallback=lambda failure: "Sorry.")(messages=HELLO)
    assert left.value is error


def test_a_fallback_that_fails_leaves_the_providers_own_error(played: Sandbox) -> None:
    def broken(failure: Any) -> str:
        raise RuntimeError("no")

    with pytest.raises(ApiError):
        scripted(BAD, BAD, fallback=broken)(messages=HELLO)


def test_a_content_filter_is_not_asked_again(played: Sandbox) -> None:
    refused = ApiError(400, "Rejected by our safety system: content policy violation.", "content_policy_violation")
    chat = scripted(refused, fallback=lambda failure: "I cannot help with that.")
    assert chat(messages=HELLO) == "I cannot help with that."
    assert len(chat.asked) == 1


def test_an_unknown_error_is_left_as_it_is_with_a_note(played: Sandbox) -> None:
    error = ZeroDivisionError("odd")
    chat = scripted(error, fallback=lambda failure: "Sorry.")
    with pytest.raises(ZeroDivisionError) as left:
        chat(messages=HELLO)
    assert left.value is error
    assert "the cause of the failure is unknown" in left.value.__notes__[0]


@pytest.mark.parametrize(
    ("said", "given", "bound"),
    [
        ("max_tokens: 10000 > 4096, which is the maximum allowed number of output tokens for claude-3", 10_000, 4096),
        ("max_tokens is too large: 90000. This model supports at most 16384 completion tokens", 90_000, 16_384),
        ("Invalid maxOutputTokens: the supported range is from 1 (inclusive) to 8193 (exclusive)", 9000, 8192),
        ("max_completion_tokens must be less than or equal to 4096", 5000, 4096),
    ],
)
def test_an_answer_limit_that_is_too_high_is_moved_to_the_bound(
    played: Sandbox, said: str, given: int, bound: int
) -> None:
    chat = scripted(ApiError(400, said))
    assert chat(messages=HELLO, max_tokens=given) == TEXT
    assert chat.asked[1]["max_tokens"] == bound
    assert played.steps[-1].recovery.changes[0].operation == "clamp"


def test_an_answer_limit_is_moved_once(played: Sandbox) -> None:
    said = "max_tokens: {} > {}, which is the maximum allowed number of output tokens"
    chat = scripted(ApiError(400, said.format(9000, 4096)), ApiError(400, said.format(4096, 2048)))
    assert chat(messages=HELLO, max_tokens=9000) == TEXT
    assert [each["max_tokens"] for each in chat.asked] == [9000, 4096, 4096]
    assert len(chat.asked[2]["messages"]) == 2  # the model is told instead


# Keys and other models


def test_credentials_are_refreshed_once(played: Sandbox) -> None:
    fresh: list[int] = []
    chat = scripted(AUTH, refresh_auth=lambda: fresh.append(1))
    assert chat(messages=HELLO) == TEXT
    chat = scripted(AUTH, AUTH, AUTH, refresh_auth=lambda: fresh.append(1), fallback_models=["claude-x"])
    with pytest.raises(ApiError):
        chat(messages=HELLO)
    assert fresh == [1, 1]
    assert [each["model"] for each in chat.asked] == ["gpt-4o"] * 2  # another model is no cure for a key


def test_a_refresh_may_answer_with_arguments_or_say_that_it_failed(played: Sandbox) -> None:
    chat = scripted(AUTH, refresh_auth=lambda failure: {"api_key": "new"})
    assert chat(messages=HELLO) == TEXT
    assert chat.asked[1]["api_key"] == "new"
    chat = scripted(AUTH, refresh_auth=lambda: False)
    with pytest.raises(ApiError):
        chat(messages=HELLO)
    assert len(chat.asked) == 1


def test_a_retired_model_is_replaced_with_a_warning(played: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    chat = scripted(GONE, fallback_models=["gpt-4.1"])
    assert chat(messages=HELLO) == TEXT
    assert [each["model"] for each in chat.asked] == ["gpt-4o", "gpt-4.1"]
    assert "using fallback gpt-4.1" in caplog.text
    assert played.steps[-1].recovery.source == "fallback"


def test_each_fallback_model_is_tried_once(played: Sandbox) -> None:
    chat = scripted(GONE, GONE, GONE, GONE, fallback_models=["gpt-4.1", "claude-3-opus", "gemini-2.0-flash"])
    with pytest.raises(ApiError):
        chat(messages=HELLO)
    assert [each["model"] for each in chat.asked] == ["gpt-4o", "gpt-4.1", "claude-3-opus", "gemini-2.0-flash"]


def test_an_outage_is_waited_for_and_then_left_to_another_provider(played: Sandbox) -> None:
    chat = scripted(DOWN, DOWN, fallback_models=["gpt-4.1", "claude-3-opus"])
    assert chat(messages=HELLO) == TEXT
    assert [each["model"] for each in chat.asked] == ["gpt-4o", "gpt-4o", "claude-3-opus"]


def post(url: str, **body: Any) -> Any:
    """A request as a client makes it."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        with error:
            raise ApiError(error.code, error.read().decode()) from None


@pytest.mark.slow
def test_a_model_that_is_left_alone_does_not_keep_another_one_from_answering(played: Sandbox) -> None:
    with Provider() as broken, Provider() as whole:
        broken.script = [Wrong(503, "server_error", None, "The server is overloaded.")] * 50

        @mulligan.model(fallback_models=["claude-3-opus"])
        def chat(messages: Any, model: str = "gpt-4o") -> Any:
            provider = broken if model == "gpt-4o" else whole
            return post(f"{provider.url}/v1/chat/completions", messages=messages, model=model)

        for number in range(9):
            assert chat(messages=[{"role": "user", "content": f"Question {number}?"}]) == TEXT
        assert len(broken.requests) == 5  # then it is down, and is not asked any more
        assert len(whole.requests) == 9
        assert all(step.recovery.source == "fallback" for step in played.steps if step.outcome == "success")


def test_a_fallback_model_that_is_left_alone_itself_is_passed_over(played: Sandbox) -> None:
    asked: list[str] = []

    @mulligan.model(fallback_models=["claude-3-opus", "gemini-2.0-flash"])
    def chat(messages: Any, model: str = "gpt-4o") -> str:
        asked.append(model)
        if model != "gemini-2.0-flash":
            raise DOWN
        return TEXT

    for number in range(12):
        with contextlib.suppress(ApiError):  # until it is known which of them are down
            chat(messages=[{"role": "user", "content": f"Question {number}?"}])
    asked.clear()
    assert chat(messages=HELLO) == TEXT
    assert asked == ["gemini-2.0-flash"]


def test_model_that_is_down_is_asked_where_no_fallback_serves(played: Sandbox) -> None:
    asked: list[str] = []

    @mulligan.model(fallback_models=["gpt-4.1", "claude-3-opus"])
    def chat(messages: Any, model: str = "gpt-4o") -> str:
        asked.append(model)
        raise DOWN

    for number in range(15):
        with pytest.raises(ApiError):
            chat(messages=[{"role": "user", "content": f"Question {number}?"}])
    asked.clear()
    with pytest.raises(ApiError):  # one is of the same provider, and the other is down too
        chat(messages=HELLO)
    assert asked == ["gpt-4o"]


def test_where_every_model_is_left_alone_the_users_fallback_answers(played: Sandbox) -> None:
    @mulligan.model(fallback=lambda failure: f"Sorry: {failure.kind}")
    def chat(messages: Any, model: str = "gpt-4o") -> str:
        raise DOWN

    answers = {chat(messages=[{"role": "user", "content": f"Question {number}?"}]) for number in range(9)}
    assert answers == {"Sorry: model/unavailable"}
    assert played.steps[-2].failure.evidence == ("the call was blocked",)


def test_a_call_is_made_although_its_model_is_down_if_its_fallback_fails(played: Sandbox) -> None:
    asked: list[str] = []

    def fallback(failure: Any) -> str:
        raise ZeroDivisionError

    @mulligan.model(fallback=fallback)
    def chat(messages: Any, model: str = "gpt-4o") -> str:
        asked.append(model)
        if len(asked) < 12:
            raise DOWN
        return TEXT

    for number in range(7):
        with pytest.raises(ApiError):  # the provider's own exception, never one of mulligan
            chat(messages=[{"role": "user", "content": f"Question {number}?"}])
    assert played.steps[-1].stop.reason == TARGET_DOWN
    while len(asked) < 11:
        with pytest.raises(ApiError):
            chat(messages=HELLO)
    assert chat(messages=HELLO) == TEXT


@pytest.mark.parametrize("on", [None, 3, "nonsense", [None]])
def test_a_fallback_for_an_unknown_failure_is_a_settings_error(on: Any) -> None:
    with pytest.raises(SettingsError, match="fallback"):
        Fallback("gpt-4.1", on=on)


def test_a_longer_window_serves_where_compression_cannot_and_is_checked_first(played: Sandbox) -> None:
    long = [{"role": "user", "content": "word " * 60_000}]
    models = [Fallback("small", window=50_000), Fallback("large", window=500_000)]
    chat = scripted(overflow(64_000, 75_000), fallback_models=models)
    assert chat(messages=long) == TEXT
    assert [each["model"] for each in chat.asked] == ["gpt-4o", "large"]
    assert chat.asked[1]["messages"] == long


def test_another_model_is_never_tried_for_another_bad_request(played: Sandbox) -> None:
    chat = scripted(BAD, BAD, fallback_models=["claude-3-opus"])
    with pytest.raises(ApiError):
        chat(messages=HELLO)
    assert {each["model"] for each in chat.asked} == {"gpt-4o"}


def test_a_fallback_model_may_be_a_function_sync_or_async(played: Sandbox) -> None:
    def other(messages: Any, **rest: Any) -> str:
        return f"other: {len(messages)}"

    assert scripted(GONE, fallback_models=[other])(messages=HELLO) == "other: 1"

    @mulligan.model(fallback_models=[other])
    async def chat(messages: Any) -> str:
        raise GONE

    assert asyncio.run(chat(messages=HELLO)) == "other: 1"


FILTERED = ApiError(400, "Rejected by our safety system: content policy violation.", "content_policy_violation")
CUT = {"choices": [{"message": {"role": "assistant", "content": ""}, "finish_reason": "length"}]}


def test_a_content_filter_may_have_a_fallback_of_its_own(played: Sandbox) -> None:
    models = ["claude-3-opus", Fallback("claude-uncensored", on="content_policy")]
    chat = scripted(FILTERED, fallback_models=models, fallback=lambda failure: "Sorry.")
    assert chat(messages=HELLO) == TEXT
    assert [each["model"] for each in chat.asked] == ["gpt-4o", "claude-uncensored"]
    chat = scripted(DOWN, DOWN, fallback_models=models)
    assert chat(messages=HELLO) == TEXT  # it serves nothing else
    assert [each["model"] for each in chat.asked] == ["gpt-4o", "gpt-4o", "claude-3-opus"]
    chat = scripted(FILTERED, FILTERED, fallback_models=models, fallback=lambda failure: "Sorry.")
    assert chat(messages=HELLO) == "Sorry."
    assert len(chat.asked) == 2


def test_an_answer_that_was_too_long_may_have_a_fallback_of_its_own(played: Sandbox) -> None:
    chat = scripted(CUT, fallback_models=["claude-3-opus", Fallback("gpt-4.1", on=["model/output_limit"])])
    assert chat(messages=HELLO) == TEXT
    assert [(each["model"], len(each["messages"])) for each in chat.asked] == [("gpt-4o", 1), ("gpt-4.1", 1)]
    chat = scripted(CUT, fallback_models=["claude-3-opus"])
    assert chat(messages=HELLO) == TEXT  # without one the same model is asked once more, with the reason
    assert [(each["model"], len(each["messages"])) for each in chat.asked] == [("gpt-4o", 1), ("gpt-4o", 2)]


def test_a_fallback_function_serves_only_the_failures_that_it_is_for(played: Sandbox) -> None:
    def plain(messages: Any, **rest: Any) -> str:
        return "plain"

    models = [Fallback(plain, on=("content_policy", "invalid_output"))]
    assert scripted(FILTERED, fallback_models=models)(messages=HELLO) == "plain"
    assert scripted("", "", fallback_models=models)(messages=HELLO) == "plain"  # after the reason did not help
    with pytest.raises(ApiError):
        scripted(GONE, fallback_models=models)(messages=HELLO)


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"message": {"role": "assistant", "content": None}, "finish_reason": "content_filter"}]},
        {"role": "assistant", "content": [], "stop_reason": "refusal"},
        {"candidates": [{"finishReason": "SAFETY", "content": {}}]},
        {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}},
    ],
)
def test_an_answer_that_a_filter_blocked_is_a_failure_of_content_policy(played: Sandbox, answer: Any) -> None:
    chat = scripted(answer, fallback_models=[Fallback("claude-3-opus", on="content_policy")])
    assert chat(messages=HELLO) == TEXT
    assert played.steps[0].failure.kind == "model/content_policy"
    assert scripted(answer)(messages=HELLO) == answer  # without a fallback it is the caller's to judge


@pytest.mark.parametrize("on", ["auth_error", "bad_request", "content policy", 7, ["content_policy", "x"]])
def test_a_fallback_for_what_no_other_model_can_help_is_refused(on: Any) -> None:
    with pytest.raises((SettingsError, TypeError)):
        Fallback("gpt-4.1", on=on)


def test_another_model_of_the_provider_serves_while_the_first_is_down(played: Sandbox) -> None:
    asked: list[str] = []

    @mulligan.model(fallback_models=["gpt-4.1", Fallback("claude-3-opus", on="content_policy")])
    def chat(messages: Any, model: str = "gpt-4o") -> str:
        asked.append(model)
        if model == "gpt-4o":
            raise DOWN
        return TEXT

    for number in range(4):
        with contextlib.suppress(ApiError):  # until it is down
            chat(messages=[{"role": "user", "content": f"Question {number}?"}])
    asked.clear()
    assert [chat(messages=[{"role": "user", "content": f"Then {number}?"}]) for number in range(3)] == [TEXT] * 3
    assert asked == ["gpt-4.1"] * 3


# Unusable answers


def test_an_answer_that_cannot_be_used_is_asked_for_once_more_with_the_reason(played: Sandbox) -> None:
    chat = scripted("", "")
    assert chat(messages=HELLO) == ""  # the second is the caller's to judge
    assert len(chat.asked) == 2
    assert "The answer is empty." in chat.asked[1]["messages"][-1]["content"]
    chat = scripted("Well: rain", '{"weather": "rain"}')
    assert chat(messages=HELLO, response_format={"type": "json_object"}) == '{"weather": "rain"}'
    assert "not valid JSON" in chat.asked[1]["messages"][-1]["content"]


def test_an_answer_with_one_reading_is_mended_without_another_call(played: Sandbox) -> None:
    chat = scripted('```json\n{"weather": "rain",}\n```')
    assert json.loads(chat(messages=HELLO, response_format={"type": "json_object"})) == {"weather": "rain"}
    assert len(chat.asked) == 1
    assert "not valid JSON" in played.steps[-1].metadata["repaired_output"]


def test_a_provider_that_fails_with_status_200_is_waited_for(played: Sandbox) -> None:
    refusal = {"error": {"message": "Provider returned error", "code": 502}}
    chat = scripted(refusal, refusal | {"choices": []})
    assert chat(messages=HELLO) == TEXT
    assert [step.outcome for step in played.steps] == ["failure", "failure", "success"]
    assert {str(step.failure.kind) for step in played.steps[:2]} == {"model/unavailable"}
    assert len(played.backoffs) == 2


def test_a_provider_that_goes_on_failing_with_status_200_has_its_own_answer_passed_on(played: Sandbox) -> None:
    refusal = {"error": {"message": "No auth credentials found", "code": 401}}
    chat = scripted(refusal)
    assert chat(messages=HELLO) == refusal
    assert played.steps[-1].failure.kind == "model/auth_error"


def test_every_call_of_an_answer_is_mended(played: Sandbox) -> None:
    calls = [
        {"id": name, "type": "function", "function": {"name": "weather", "arguments": f"{{'city': '{name}',}}"}}
        for name in ("Oslo", "Bergen")
    ]
    answer = {"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}]}
    chat = scripted(answer)
    made = chat(messages=HELLO)["choices"][0]["message"]["tool_calls"]
    assert [json.loads(call["function"]["arguments"])["city"] for call in made] == ["Oslo", "Bergen"]
    assert len(chat.asked) == 1


# Streams


def test_a_stream_is_recovered_before_its_first_token_only(played: Sandbox) -> None:
    begun: list[int] = []

    @mulligan.model
    def chat(messages: Any, stream: bool = False) -> Any:
        begun.append(1)

        def tokens() -> Iterator[Any]:
            yield {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
            if len(begun) == 1:
                raise DOWN
            yield {"choices": [{"delta": {"content": "Rain"}}]}
            if len(begun) == 2:
                raise DOWN
            yield {"choices": [{"delta": {"content": " in Oslo"}}]}

        return tokens()

    seen: list[str] = []

    def read() -> None:
        for chunk in chat(messages=HELLO, stream=True):
            seen.append(chunk["choices"][0]["delta"]["content"])  # noqa: PERF401 - up to the error

    with pytest.raises(ApiError) as left:
        read()
    assert seen == ["", "Rain"]
    assert len(begun) == 2
    assert "the first items of the stream were already delivered" in left.value.__notes__[0]
    assert [step.outcome for step in played.steps] == ["failure", "failure"]
    with chat(messages=HELLO, stream=True) as stream:
        assert len(list(stream)) == 3
    assert played.steps[-1].result == {"$stream": 3}


@pytest.mark.parametrize("read", [0, 1])
@pytest.mark.parametrize("agent", ["", "reader"])
def test_a_stream_that_is_thrown_away_is_recorded_as_closed(played: Sandbox, read: int, agent: str) -> None:
    """A loop that is left by `break` closes nothing, and the call was made all the same."""

    @mulligan.model
    def chat(messages: Any, stream: bool = False) -> Any:
        return iter(["Rain", " in", " Oslo"])

    def leave() -> None:
        stream = chat(messages=HELLO, stream=True)
        for _ in range(read):
            next(stream)

    with mulligan.run(agent) if agent else contextlib.nullcontext():
        leave()
    assert [(step.outcome, step.result) for step in played.steps] == [("success", {"$stream": read})]
    assert [history.run.end_reason for history in played.runs] == ["finished"]


def test_an_async_stream_is_recovered_before_its_first_token_only(played: Sandbox) -> None:
    begun: list[int] = []

    @mulligan.model
    async def chat(messages: Any, stream: bool = False) -> Any:
        begun.append(1)

        async def tokens() -> Any:
            if len(begun) == 1:
                raise DOWN
            yield "Rain"

        return tokens()

    async def go() -> list[Any]:
        return [item async for item in await chat(messages=HELLO, stream=True)]

    assert asyncio.run(go()) == ["Rain"]
    assert [step.outcome for step in played.steps] == ["failure", "success"]


@pytest.mark.parametrize(
    "failed",
    [
        {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "It is overloaded."}}},
        {"type": "error", "code": "server_error", "message": "The server is overloaded."},
    ],
)
def test_an_event_that_says_that_the_answer_failed_is_a_failure(played: Sandbox, failed: Any) -> None:
    begun: list[int] = []

    def events() -> Iterator[Any]:
        begun.append(1)
        yield {"type": "response.created"}
        yield {"type": "response.content_part.added", "part": {"text": ""}}
        if len(begun) == 1:
            yield failed
            return
        yield {"type": "response.output_text.delta", "delta": "Rain"}
        if len(begun) == 2:
            yield failed

    @mulligan.model
    def chat(input: Any, stream: bool = False) -> Any:
        return events()

    assert list(chat("Hello.", stream=True))[-2:] == [{"type": "response.output_text.delta", "delta": "Rain"}, failed]
    assert len(begun) == 2  # the first stream had told nothing, the second had
    assert [step.outcome for step in played.steps] == ["failure", "failure"]
    assert played.steps[-1].stop.reason == "the first items of the stream were already delivered"


def test_a_stream_that_fails_by_an_event_again_and_again_ends_with_that_event(played: Sandbox) -> None:
    begun: list[int] = []
    failed = {"type": "error", "code": "server_error", "message": "The server is overloaded."}

    @mulligan.model
    def chat(input: Any, stream: bool = False) -> Any:
        begun.append(1)
        return iter([{"type": "response.created"}, failed])

    assert list(chat("Hello.", stream=True)) == [{"type": "response.created"}, failed]
    assert len(begun) == 10  # eight, and two that probed the model
    assert [step.outcome for step in played.steps] == ["failure"] * 10
    assert [history.run.end_reason for history in played.runs] == ["raised"]


def test_a_stream_that_is_closed_early_is_a_success(played: Sandbox) -> None:
    @mulligan.model
    def chat(messages: Any, stream: bool = False) -> Any:
        return iter(["a", "b", "c"])

    stream = chat(messages=HELLO, stream=True)
    assert next(stream) == "a"
    stream.close()
    assert played.steps[-1].outcome == "success"
    assert [history.run.end_reason for history in played.runs] == ["finished"]


def test_a_fallback_answers_in_place_of_a_stream_that_never_began(played: Sandbox) -> None:
    @mulligan.model(fallback=lambda failure: "Sorry.")
    def words(messages: Any) -> Iterator[str]:
        raise ApiError(400, "Rejected by our safety system: content policy violation.")
        yield ""

    assert list(words(messages=HELLO)) == ["Sorry."]

    @mulligan.model(fallback=lambda failure: ["Sorry, ", "no."])
    async def others(messages: Any) -> Any:
        raise ApiError(400, "Rejected by our safety system: content policy violation.")
        yield ""

    async def go() -> list[str]:
        return [word async for word in others(messages=HELLO)]

    assert asyncio.run(go()) == ["Sorry, ", "no."]
    assert [history.run.end_reason for history in played.runs] == ["finished", "finished"]


# Async, modes and mistakes


def test_a_compaction_of_ours_is_one_for_the_sessions_reminder(played: Sandbox) -> None:
    @mulligan.tool
    def pay(amount: int) -> None:
        raise ValueError("the account is closed")

    messages = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "so it is " * 60} for n in range(61)]
    chat = scripted("Hello.", overflow(5000, 10_000))
    with mulligan.session() as session, mulligan.run("agent", session=session):
        with pytest.raises(ValueError, match="closed"):
            pay(7)
        chat(messages=HELLO)
        assert session.reminder() == ""
        assert chat(messages=messages) == TEXT
        assert "the account is closed" in session.reminder()


def test_an_async_model_asks_async_questions(played: Sandbox) -> None:
    left = [AUTH, BAD, BAD]

    async def fresh() -> None:
        await asyncio.sleep(0)

    async def sorry(failure: Any) -> str:
        await asyncio.sleep(0)
        return "Sorry."

    @mulligan.model(refresh_auth=fresh, fallback=sorry)
    async def chat(messages: Any) -> str:
        raise left.pop(0)

    assert asyncio.run(chat(messages=HELLO)) == "Sorry."
    assert left == []
    assert len([event for event in played.events if isinstance(event, RecoveryPlanned)]) == 2


def test_an_attempt_says_what_tokens_and_time_it_took(played: Sandbox) -> None:
    answer = {"choices": [{"message": {"content": TEXT}}], "usage": {"prompt_tokens": 40, "completion_tokens": 6}}
    chat = scripted(DOWN, answer)
    chat(messages=HELLO)
    assert played.steps[-1].tokens == {"input": 40, "output": 6}
    assert played.steps[-1].recovery.backoff_seconds > 0
    assert played.steps[-1].duration_seconds > 0


def test_a_model_that_is_only_observed_is_called_once(played: Sandbox) -> None:
    for error in (DOWN, BAD, overflow(10, 20), GONE, AUTH):
        chat = scripted(
            error, mode="observe", fallback_models=["x"], refresh_auth=lambda: True, fallback=lambda: "Sorry."
        )
        with pytest.raises(ApiError):
            chat(messages=HELLO)
        assert len(chat.asked) == 1


def test_a_mode_that_may_not_repair_only_waits(played: Sandbox) -> None:
    chat = scripted(DOWN, mode="suggest")
    assert chat(messages=HELLO) == TEXT
    for error in (BAD, overflow(10, 20), GONE):
        chat = scripted(error, mode="suggest", fallback_models=["x"])
        with pytest.raises(ApiError):
            chat(messages=HELLO)
        assert len(chat.asked) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"compress": "summary"},
        {"fallback": "Sorry."},
        {"fallback_models": "gpt-4.1"},
        {"fallback_models": [7]},
        {"refresh_auth": True},
        {"max_compressions": -1},
        {"compress_above_chars": 10},
        {"fallback_models": [lambda: 1], "max_compressions": 1.5},
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        scripted(**options)


def test_what_must_be_awaited_is_refused_by_a_function_that_is_not_async() -> None:
    async def sorry(failure: Any) -> str:
        return "Sorry."

    for option in ("compress", "fallback", "refresh_auth"):
        with pytest.raises(SettingsError, match=f"{option} is async"):
            scripted(**{option: sorry})
    with pytest.raises(SettingsError, match="has none of"):
        mulligan.wrap_client(object())


@pytest.mark.parametrize("means", ["compressed", "refreshed", "told", "fallback"])
def test_nobody_is_told_that_the_same_call_worked_later_where_it_was_not_the_same(played: Sandbox, means: str) -> None:
    error, options = {
        "compressed": (overflow(1500, 2400), {}),
        "refreshed": (AUTH, {"refresh_auth": lambda: None}),
        "told": (BAD, {}),
        "fallback": (BAD, {"fallback": lambda failure: "sorry", "policy": Policy(attempts=1)}),
    }[means]
    long = [{"role": "assistant", "content": "so it is " * 1000}, {"role": "user", "content": "and more " * 1000}]
    messages = [*HELLO, *long, {"role": "assistant", "content": "Rain."}, *HELLO]
    for _ in range(3):
        chat = scripted(error, **options)
        assert chat(messages)
    chat = scripted(*[error] * 3, **{name: each for name, each in options.items() if name != "fallback"})

    with pytest.raises(ApiError) as left:
        chat(messages)

    assert "In earlier runs" not in "".join(left.value.__notes__)
    assert played.runs[0].links[0].method == "repair"
    assert played.store.fixes(DEFAULT_TENANT, FixQuery()) == []


def test_where_nothing_may_be_compressed_that_is_said(played: Sandbox) -> None:
    chat = scripted(overflow(1500, 2400), max_compressions=0)
    with pytest.raises(ApiError) as left:
        chat(HELLO)
    assert "compression is off: max_compressions is 0" in left.value.__notes__[0]


@pytest.mark.parametrize("fails", [False, True])
def test_tokens_of_a_wrapped_client_inside_a_wrapped_function_are_counted_once(played: Sandbox, fails: bool) -> None:
    answer = {"choices": [{"message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}]}
    usage = {**answer, "usage": {"prompt_tokens": 10, "completion_tokens": 3}}
    inner = scripted(*[DOWN] * fails, usage, usage, name="client")

    @mulligan.model
    def chat(messages: Any) -> Any:
        return inner(messages)

    @mulligan.tool
    def ask() -> Any:
        return inner(HELLO)

    with mulligan.run("agent"):
        chat(HELLO)
        ask()

    spent = [step.tokens for step in played.steps if step.tokens]
    assert spent == [{"input": 10, "output": 3}] * 2
