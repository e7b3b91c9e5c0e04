"""A whole agent loop, with a model that says what is written here."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
import taught

import mulligan
from mulligan import AgentError, InfraError
from mulligan.core.failure import SettingsError
from mulligan.prompt import estimate_prompt_tokens
from mulligan.testing import Sandbox, ScriptedModel, call


def weather(city: str, days: int = 1) -> str:
    """Tells the weather."""
    return f"rain in {city} for {days}"


def looped(model: ScriptedModel, tools: Any, is_async: bool = False, **options: Any) -> Any:
    """The loop played, by either player: what is promised is promised for both."""
    if is_async:
        return asyncio.run(_awaited(mulligan.loop(model.awaited, tools, "What is the weather?", **options)))
    return mulligan.loop(model, tools, "What is the weather?", **options)


async def _awaited(loop: Any) -> Any:
    return await loop


BOTH = pytest.mark.parametrize("is_async", [False, True])
STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])


@BOTH
@STYLES
def test_calls_are_answered_until_the_model_has_an_answer(played: Sandbox, style: Any, is_async: bool) -> None:
    model = ScriptedModel(call("weather", city="Oslo"), "It rains.", style=style)
    done = looped(model, [weather], is_async)
    assert (done.text, done.status, done.turns) == ("It rains.", "success", 2)
    assert done.end_reason == "the model answered"
    assert done.cause is None
    assert str(done) == "It rains."
    last = model.requests[1][-1]
    if style == "openai":
        assert last == {"role": "tool", "tool_call_id": "call_1", "content": "rain in Oslo for 1"}
        assert model.requests[1][-2]["tool_calls"][0]["id"] == "call_1"
    else:
        assert last["content"] == [{"type": "tool_result", "tool_use_id": "call_1", "content": "rain in Oslo for 1"}]
        assert model.requests[1][-2]["content"][0]["type"] == "tool_use"
    (history,) = played.runs
    assert [step.type for step in history.steps] == ["model", "tool", "model"]
    assert history.run.context == "What is the weather?"


@BOTH
@STYLES
def test_a_missing_argument_is_corrected_in_two_model_calls(played: Sandbox, style: Any, is_async: bool) -> None:
    def corrected(messages: list[Any]) -> Any:
        told = json.dumps(messages[-1])
        assert "invalid_arguments" in told
        assert "city" in told
        return call("weather", city="Oslo")

    model = ScriptedModel(call("weather", {}), corrected, "It rains.", style=style)
    done = looped(model, [weather], is_async)
    assert done.status == "recovered"
    assert len(model.requests) == 3  # the mistake, the correction, the answer
    made = [step for step in played.steps if step.type == "tool"]
    assert [step.outcome for step in made] == ["failure", "success"]
    if style == "anthropic":
        assert model.requests[1][-1]["content"][0]["is_error"] is True


@BOTH
def test_an_infra_error_ends_it_after_one_tool_call(played: Sandbox, is_async: bool) -> None:
    error = InfraError("the vault is sealed")
    made: list[int] = []

    def fetch() -> None:
        made.append(1)
        raise error

    model = ScriptedModel(call("fetch"), call("fetch"))
    with pytest.raises(InfraError) as left:
        looped(model, [fetch], is_async)
    assert left.value is error
    assert made == [1]
    assert len(model.requests) == 1
    assert [history.run.end_reason for history in played.runs] == ["raised"]


@BOTH
def test_what_cannot_be_recovered_is_told_and_not_retried(played: Sandbox, is_async: bool) -> None:
    made: list[int] = []

    @mulligan.tool(effects="none")
    def pay() -> None:
        made.append(1)
        raise AgentError("The account is closed.", recoverable=False)

    model = ScriptedModel(call("pay"), "I cannot pay.")
    done = looped(model, [pay], is_async)
    assert made == [1]
    told = json.loads(model.requests[1][-1]["content"])
    assert told["recoverable"] is False
    assert done.status == "partial"
    assert done.cause is not None
    assert "The account is closed." in done.cause.message
    assert done.end_reason.startswith("the model answered, although pay failed with")


@BOTH
def test_the_last_turn_is_told_and_what_it_still_asks_for_is_not_called(played: Sandbox, is_async: bool) -> None:
    made: list[int] = []

    def search(page: int) -> str:
        made.append(page)
        raise KeyError("nothing here")

    model = ScriptedModel(*(call("search", page=page) for page in range(3)))
    done = looped(model, [search], is_async, limit=3)
    assert made == [0, 1]
    assert "last turn" in json.dumps(model.requests[2][-1])
    assert "last turn" not in json.dumps(model.requests[1])
    assert done.status == "failure"
    assert done.end_reason.startswith("the limit of 3 turns is reached; search failed with")
    assert done.cause is not None
    assert done.report.startswith("The limit of 3 turns is reached.\n2 calls: 0 succeeded, 2 failed.")
    assert done.text.endswith(done.report)
    assert played.steps[-1].failure is not None
    assert played.steps[-1].failure.kind == "orchestration/max_retries_exceeded"


def test_in_anthropics_form_the_last_turn_is_told_in_the_message_of_the_results(played: Sandbox) -> None:
    model = ScriptedModel(call("weather", city="Oslo"), "It rains.", style="anthropic")
    looped(model, [weather], limit=2)
    assert [block["type"] for block in model.requests[1][-1]["content"]] == ["tool_result", "text"]


@BOTH
def test_the_same_call_a_third_time_is_answered_without_being_made(played: Sandbox, is_async: bool) -> None:
    made: list[int] = []

    def search(query: str) -> str:
        made.append(1)
        raise KeyError("nothing here")

    model = ScriptedModel(*[call("search", query="fish")] * 3, "I give up.")
    looped(model, [search], is_async)
    assert made == [1, 1]
    told = json.loads(model.requests[3][-1]["content"])
    assert told["error"] == "orchestration/loop_detected"


@BOTH
def test_several_calls_of_one_turn_are_all_answered(played: Sandbox, is_async: bool) -> None:
    both = [call("weather", city="Oslo"), call("weather", city="Rome")]
    model = ScriptedModel(both, "Rain.", style="anthropic")
    looped(model, [weather], is_async)
    assert [block["tool_use_id"] for block in model.requests[1][-1]["content"]] == ["call_1", "call_2"]


def test_a_repaired_call_is_announced_to_the_model(played: Sandbox) -> None:
    model = ScriptedModel(call("Weather", city="Oslo"), "Rain.")
    done = looped(model, [weather])
    assert "the tool name Weather -> weather" in model.requests[1][-1]["content"]
    assert done.status == "recovered"
    assert "the tool name Weather -> weather" in done.report


def test_a_model_that_is_overloaded_is_asked_again(played: Sandbox) -> None:
    class Overloaded(Exception):
        status_code = 529

    model = ScriptedModel(Overloaded("try again in 2s"), "Hello.")
    assert looped(model, []).text == "Hello."
    assert played.backoffs == [2.0]


def test_an_error_of_the_model_that_nothing_helps_leaves(played: Sandbox) -> None:
    class Unauthorized(Exception):
        status_code = 401

    with pytest.raises(Unauthorized):
        looped(ScriptedModel(Unauthorized("invalid api key")), [])


def test_a_model_that_takes_tools_is_offered_them_in_its_form_but_not_in_the_last_turn(played: Sandbox) -> None:
    offered: list[Any] = []

    def model(messages: list[Any], tools: list[Any]) -> Any:
        offered.append(tools)
        if tools:
            return {"content": [{"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Oslo"}}]}
        return "Rain."

    mulligan.loop(model, [weather], "hello", limit=3 - 1)
    assert offered[0][0]["function"]["name"] == "weather"
    assert offered[0][0]["function"]["description"] == "Tells the weather."
    assert offered[0][0]["function"]["parameters"]["required"] == ["city"]
    assert offered[1] == []
    mulligan.loop(model, [weather], "hello", limit=2, style="anthropic")
    assert offered[2][0]["input_schema"]["properties"]["days"] == {"type": "integer", "default": 1}


def test_replies_may_be_objects(played: Sandbox) -> None:
    function = SimpleNamespace(name="weather", arguments='{"city": "Oslo"}')
    wanted = SimpleNamespace(content=None, tool_calls=[SimpleNamespace(id="a", function=function)])
    replies = [
        SimpleNamespace(choices=[SimpleNamespace(message=wanted)]),
        SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content="Rain.", tool_calls=None))]),
    ]
    done = mulligan.loop(lambda messages: replies.pop(0), [weather], "hello")
    assert done.text == "Rain."
    assert done.messages[1]["tool_calls"][0]["function"]["name"] == "weather"
    blocks = [SimpleNamespace(type="thinking", thinking="..."), SimpleNamespace(type="text", text="Rain.")]
    done = mulligan.loop(lambda messages: SimpleNamespace(content=blocks, stop_reason="end_turn"), [], "hello")
    assert done.text == "Rain."
    assert done.messages[-1]["content"] == blocks  # thoughts are part of the conversation


@pytest.mark.parametrize("reply", [None, 7, {}, object()])
def test_a_reply_that_is_none_is_refused_with_what_may_be(played: Sandbox, reply: Any) -> None:
    with pytest.raises(SettingsError, match="Unsupported model reply"):
        mulligan.loop(lambda messages: reply, [], "hello")


def test_the_callers_messages_are_left_as_they_are(played: Sandbox) -> None:
    messages = [{"role": "user", "content": "hello"}]
    mulligan.loop(ScriptedModel(call("weather", city="Oslo"), "Rain."), [weather], messages)
    assert messages == [{"role": "user", "content": "hello"}]


def test_an_async_tool_needs_an_async_model_and_is_then_awaited(played: Sandbox) -> None:
    async def aweather(city: str) -> str:
        return f"rain in {city}"

    model = ScriptedModel(call("aweather", city="Oslo"), "Rain.")
    with pytest.raises(SettingsError, match="aweather is async and the model is not"):
        looped(model, [aweather])
    assert looped(model, [aweather], is_async=True).text == "Rain."


def test_a_loop_inside_a_run_is_part_of_it(played: Sandbox) -> None:
    with mulligan.run("agent") as run:
        done = looped(ScriptedModel("Hello."), [])
    assert done.run == run.id
    assert len(played.runs) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"limit": 0}, "Invalid limit 0. Use 1 or more"),
        ({"style": "google"}, "Invalid style 'google'. Use 'openai' or 'anthropic'"),
    ],
)
def test_what_cannot_be_meant_is_refused(played: Sandbox, options: Any, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        looped(ScriptedModel("Hello."), [], **options)
    with pytest.raises(SettingsError, match="Invalid model of type str"):
        mulligan.loop("gpt", [], "hello")  # type: ignore[call-overload]


def test_a_script_that_is_over_says_so() -> None:
    model = ScriptedModel("Hello.")
    model([])
    with pytest.raises(AssertionError, match="the script of the model has ended"):
        model([])


@BOTH
@pytest.mark.parametrize("given", ["one text", "a system message"])
def test_with_teach_the_conversation_begins_with_what_is_known_of_the_tools(
    played: Sandbox, is_async: bool, given: str
) -> None:
    mulligan.tool(weather)("Oslo")
    mulligan.flush(30)
    taught.prove(played.store, 1_700_000_000_000, "weather")
    asked: Any = "What is the weather?"
    if given == "a system message":
        asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": asked}]

    model = ScriptedModel("It rains.")
    loop: Any = mulligan.loop(model.awaited if is_async else model, {"weather": weather}, asked, inject_lessons=400)
    done = asyncio.run(_awaited(loop)) if is_async else loop

    first = done.messages[0]["content"]
    told = done.messages[1]["content"] if given == "a system message" else first[0]["text"]
    assert "use k=10" in told
    assert estimate_prompt_tokens(told) <= 400
    if given == "a system message":
        assert [each["role"] for each in done.messages] == ["system", "system", "user", "assistant"]
        assert first == "Be brief."
    else:
        assert first[1] == {"type": "text", "text": "What is the weather?"}
    assert played.runs[-1].run.context == "What is the weather?"


@pytest.mark.parametrize("teach", [-1, 2.5, "yes", None])
def test_what_teach_cannot_mean_is_refused(played: Sandbox, teach: Any) -> None:
    with pytest.raises(SettingsError, match="inject_lessons must be True or the maximum number of tokens"):
        mulligan.loop(ScriptedModel("Done."), [weather], "Hello", inject_lessons=teach)


def test_without_teach_and_where_nothing_is_kept_the_conversation_is_as_it_was_given(played: Sandbox) -> None:
    for teach in (False, 0):
        done = mulligan.loop(ScriptedModel("Done."), [weather], "Hello", inject_lessons=teach)
        assert done.messages[0] == {"role": "user", "content": "Hello"}


def test_a_model_that_raises_stop_iteration_raises_it_out_of_the_loop(played: Sandbox) -> None:
    raised = StopIteration("no more answers")

    def model(messages: Any) -> str:
        raise raised

    with pytest.raises(StopIteration) as left:
        mulligan.loop(model, [weather], "What is the weather?")
    assert left.value is raised
    assert (raised.__cause__, raised.__context__) == (None, None)
    (history,) = played.runs
    assert [(step.type, step.outcome) for step in history.steps] == [("model", "cancelled")]


def test_a_runtime_error_from_the_models_own_coroutine_stays_one(played: Sandbox) -> None:
    async def exhausted() -> str:
        return next(iter(()))

    def model(messages: Any) -> str:
        return asyncio.run(exhausted())

    with pytest.raises(RuntimeError, match="coroutine raised StopIteration"):
        mulligan.loop(model, [weather], "What is the weather?")
