"""What is special about the adapter for the Google ADK, beyond the scenarios of all adapters."""

from __future__ import annotations

import asyncio
import http.server
import re
import threading
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest

pytest.importorskip("google.adk", exc_type=ImportError)

import pydantic
from frameworks.google_adk_driver import ScriptedModel, ask, build_runner, collect, driver
from frameworks.scenarios import NO_EFFECTS, RateLimitError, Request, Tools
from google.adk.agents import LlmAgent, ParallelAgent, RunConfig, SequentialAgent
from google.adk.apps import App
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.models.google_llm import Gemini
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.reflect_retry_tool_plugin import ReflectAndRetryToolPlugin
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from google.genai.errors import ClientError

import mulligan
from mulligan.core.run_links import derive_status
from mulligan.integrations.google_adk import MulliganPlugin
from mulligan.testing import Sandbox, sandbox

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks are theirs
PAGE = Path(__file__).parents[2] / "docs/frameworks/google_adk.md"
SEARCH = [Request("search", {"query": "fish", "top_k": 50})]


def tool_steps(played: Sandbox) -> list[tuple[str, Any]]:
    return [(step.outcome, step.arguments) for step in played.steps if step.type == "tool"]


def answer_request(events: list[Any], response: dict[str, Any]) -> types.Content:
    """Return the message that answers the first request for a person, or the first long-running call."""
    (id,) = next(event.long_running_tool_ids for event in reversed(events) if event.long_running_tool_ids)
    name = next(call.name for event in events for call in event.get_function_calls() if call.id == id)
    part = types.Part(function_response=types.FunctionResponse(id=id, name=name, response=response))
    return types.Content(role="user", parts=[part])


def test_the_tool_context_is_neither_an_argument_nor_recorded(played: Sandbox) -> None:
    def search(query: str, tool_context: ToolContext) -> str:
        """Search the index."""
        tool_context.state["last"] = query
        return f"results for {query}"

    conversation = driver.play([search], [[Request("search", {"query": "fish"})], "done"], "async")

    assert conversation.answers == ["results for fish"]
    assert tool_steps(played) == [("success", {"query": "fish"})]


def test_the_session_and_the_question_are_recorded(played: Sandbox) -> None:
    driver.play(Tools().functions("search"), ["done"], "async")
    (history,) = played.runs
    assert history.run.context == "Find fish."
    assert history.run.session is not None


def test_a_note_of_a_repair_reaches_the_model(played: Sandbox) -> None:
    conversation = driver.play(Tools().functions("search"), [SEARCH, "done"], "async", **NO_EFFECTS)
    assert "50 -> 10" in conversation.sent[1]


def test_the_answer_of_mulligan_replaces_that_of_adk(played: Sandbox) -> None:
    script: Any = [[Request("search", {"query": "fish", "top_k": "many"})], "done"]
    conversation = driver.play(Tools().functions("search"), script, "async")
    assert "invalid_arguments" in conversation.answers[0]
    assert "Invoking `search()` failed" not in conversation.answers[0]


def test_a_repaired_call_returns_its_image_and_the_note(played: Sandbox) -> None:
    def draw(size: Annotated[int, pydantic.Field(le=10)]) -> Any:
        """Draw a fish."""
        return types.Part.from_bytes(data=b"fish" * size, mime_type="image/png")

    runner, _ = build_runner([draw], [[Request("draw", {"size": 50})], "done"], **NO_EFFECTS)
    (response,) = [each for event in ask(runner, "Draw.", "async") for each in event.get_function_responses()]
    assert response.parts[0].inline_data.data == b"fish" * 10
    assert "50 -> 10" in str(response.response)


def test_two_calls_of_one_turn_are_recovered_apart(played: Sandbox) -> None:
    script: Any = [[*SEARCH, Request("pay", {"amount": 5})], "done"]
    conversation = driver.play(
        Tools().functions("search", "pay"), script, "async", tools={"search": {"effects": "none"}}
    )
    assert "10 results" in conversation.answers[0]
    assert "timeout" in conversation.answers[1]


def test_an_agent_that_is_a_tool_belongs_to_the_run(played: Sandbox) -> None:
    inner_model = ScriptedModel(script=[RateLimitError("Too many requests"), SEARCH, "found fish"])
    inner = LlmAgent(name="inner", model=inner_model, tools=Tools().functions("search"))
    script: Any = [[Request("inner", {"request": "Find fish."})], "done"]
    runner, model = build_runner([AgentTool(inner)], script, tools={"search": {"effects": "none"}})
    events = ask(runner, "Find fish.", "async")

    assert events[-1].content.parts[0].text == "done"
    assert "found fish" in model.sent[1]
    (history,) = played.runs
    assert {step.name for step in history.steps} == {"model", "inner", "search"}
    assert derive_status(history.run, history.steps, history.links) == "recovered"


def test_a_transfer_to_another_agent_stays_in_the_run(played: Sandbox) -> None:
    helper = LlmAgent(name="helper", model=ScriptedModel(script=[SEARCH, "found"]), tools=Tools().functions("search"))
    script: Any = [[Request("transfer_to_agent", {"agent_name": "helper"})]]
    runner, _ = build_runner([], script, **NO_EFFECTS)
    runner.agent.sub_agents = [helper]
    helper.parent_agent = runner.agent
    events = ask(runner, "Find fish.", "async")

    assert events[-1].content.parts[0].text == "found"
    (history,) = played.runs
    assert history.run.end_reason == "finished"
    assert derive_status(history.run, history.steps, history.links) == "recovered"


@pytest.mark.parametrize("style", ["async", "stream"])
@pytest.mark.parametrize("kind", [SequentialAgent, ParallelAgent])
def test_several_agents_work_in_one_run(played: Sandbox, kind: Any, style: Any) -> None:
    script: Any = [SEARCH, RateLimitError("Too many requests"), "done"]
    agents = [
        LlmAgent(name=name, model=ScriptedModel(script=list(script)), tools=Tools().functions("search"))
        for name in ("first", "second")
    ]
    app = App(name="tests", root_agent=kind(name="both", sub_agents=agents), plugins=[MulliganPlugin(**NO_EFFECTS)])
    runner = InMemoryRunner(app=app)
    runner.auto_create_session = True
    ask(runner, "Find fish.", style)

    (history,) = played.runs
    assert history.run.agent == "both"
    assert derive_status(history.run, history.steps, history.links) == "recovered"
    assert sorted(step.name for step in history.steps) == ["model"] * 6 + ["search"] * 4


@pytest.mark.parametrize("has_timeout", [True, False])
def test_a_cancelled_model_call_is_no_failure(played: Sandbox, has_timeout: bool) -> None:
    class SlowModel(ScriptedModel):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            await asyncio.sleep(3600)
            yield LlmResponse()

    runner, _ = build_runner([], [])
    runner.agent.model = SlowModel(script=[])

    async def play() -> None:
        if has_timeout:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await collect(runner, "Hello.")
            return
        task = asyncio.create_task(collect(runner, "Hello."))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(play())
    assert [step.outcome for step in played.steps] == ["cancelled"]
    assert [history.run.end_reason for history in played.runs] == ["abandoned"]


# Guards and persons


def test_a_guard_of_the_agent_sees_the_repaired_arguments_and_may_refuse(played: Sandbox) -> None:
    seen: list[Any] = []

    def refuse(tool: Any, args: dict[str, Any], tool_context: Any) -> dict[str, Any]:
        seen.append(dict(args))
        return {"status": "refused"}

    tools = Tools()
    runner, model = build_runner(tools.functions("search"), [SEARCH, "done"], **NO_EFFECTS)
    runner.agent.before_tool_callback = refuse
    ask(runner, "Find fish.", "async")

    assert seen == [{"query": "fish", "top_k": 10}]
    assert tools.calls == []
    assert "refused" in model.sent[1]


def test_a_guard_sees_each_attempt(played: Sandbox) -> None:
    seen: list[Any] = []
    tools = Tools()
    tools.errors = [RateLimitError("Too many requests")]
    script: Any = [[Request("fetch", {"url": "a"})], "done"]
    runner, _ = build_runner(tools.functions("fetch"), script, tools={"fetch": {"effects": "none"}})
    runner.agent.before_tool_callback = lambda tool, args, tool_context: seen.append(tool.name)
    ask(runner, "Fetch.", "async")
    assert seen == ["fetch", "fetch"]


def test_a_callback_after_the_tool_changes_a_repaired_result(played: Sandbox) -> None:
    runner, model = build_runner(Tools().functions("search"), [SEARCH, "done"], **NO_EFFECTS)
    runner.agent.after_tool_callback = lambda tool, args, tool_context, tool_response: {"result": "masked"}
    ask(runner, "Find fish.", "async")
    assert "masked" in model.sent[1]
    assert "10 results" not in model.sent[1]


def test_arguments_that_a_person_approves_are_not_changed(played: Sandbox) -> None:
    tools = Tools()
    (search,) = tools.functions("search")
    runner, model = build_runner([FunctionTool(search, require_confirmation=True)], [SEARCH, "done"], **NO_EFFECTS)
    ask(runner, "Find fish.", "async")
    assert tools.calls == []
    assert "invalid_arguments" in model.sent[1]


def test_a_call_that_a_person_rejects_is_no_failure(played: Sandbox) -> None:
    tools = Tools()
    (fetch,) = tools.functions("fetch")
    script: Any = [[Request("fetch", {"url": "a"})], "done"]
    runner, model = build_runner([FunctionTool(fetch, require_confirmation=True)], script)
    events = ask(runner, "Fetch.", "async")
    ask(runner, answer_request(events, {"confirmed": False}), "async")

    assert tools.calls == []
    assert "rejected" in model.sent[-1]
    (history,) = played.runs
    assert derive_status(history.run, history.steps, history.links) == "success"


def test_a_long_running_tool_pauses_the_run(played: Sandbox) -> None:
    def order(item: str) -> dict[str, Any]:
        """Order an item."""
        return {"status": "pending"}

    script: Any = [[Request("order", {"item": "fish"})], "waiting", "done"]
    runner, model = build_runner([LongRunningFunctionTool(order)], script)
    events = ask(runner, "Order.", "async")
    ask(runner, answer_request(events, {"status": "delivered"}), "async")

    assert "delivered" in model.sent[-1]
    (history,) = played.runs
    assert history.run.end_reason == "finished"
    assert derive_status(history.run, history.steps, history.links) == "success"


def test_a_model_call_that_a_guard_answers_is_no_failure(played: Sandbox) -> None:
    runner, model = build_runner([], ["never"])
    content = types.Content(role="model", parts=[types.Part.from_text(text="refused")])
    runner.agent.before_model_callback = lambda callback_context, llm_request: LlmResponse(content=content)
    events = ask(runner, "Hello.", "async")

    assert model.sent == []
    assert events[-1].content.parts[0].text == "refused"
    (history,) = played.runs
    assert history.run.end_reason == "finished"
    assert derive_status(history.run, history.steps, history.links) == "success"


# Errors that end the run


def test_an_infrastructure_error_ends_the_run(played: Sandbox) -> None:
    tools = Tools()
    error = mulligan.InfraError("The disk is full.")
    tools.errors = [error]
    conversation = driver.play(tools.functions("fetch"), [[Request("fetch", {"url": "a"})], "done"], "async")
    assert conversation.error is error
    (history,) = played.runs
    assert derive_status(history.run, history.steps, history.links) == "failure"


@pytest.mark.parametrize("style", ["async", "stream"])
def test_an_error_of_the_model_ends_the_run_as_a_failure(played: Sandbox, style: Any) -> None:
    error = PermissionError("Invalid API key")
    conversation = driver.play([], [error], style)
    assert conversation.error is error
    (history,) = played.runs
    assert derive_status(history.run, history.steps, history.links) == "failure"


def test_a_fallback_of_the_agent_continues_the_run(played: Sandbox) -> None:
    content = types.Content(role="model", parts=[types.Part.from_function_call(name="search", args={"query": "fish"})])
    runner, _ = build_runner(Tools().functions("search"), [PermissionError("Invalid API key"), "done"])
    runner.agent.on_model_error_callback = lambda callback_context, llm_request, error: LlmResponse(content=content)
    events = ask(runner, "Find fish.", "async")
    assert events[-1].content.parts[0].text == "done"
    (history,) = played.runs
    assert history.run.end_reason == "finished"


# Models


@pytest.mark.parametrize("style", ["async", "stream"])
def test_a_rate_limited_model_is_asked_again(played: Sandbox, style: Any) -> None:
    conversation = driver.play([], [RateLimitError("Too many requests"), "done"], style)
    assert conversation.text == "done"
    assert [(step.outcome, step.attempt) for step in played.steps] == [("failure", 1), ("success", 2)]


def test_the_limit_of_model_calls_counts_each_attempt(played: Sandbox) -> None:
    runner, model = build_runner([], [RateLimitError("Too many requests")] * 3)
    with pytest.raises(RateLimitError):
        asyncio.run(collect(runner, "Hello.", RunConfig(max_llm_calls=2)))
    assert len(model.sent) == 2


def test_tokens_and_the_name_of_the_model_are_recorded(played: Sandbox) -> None:
    runner, model = build_runner([], ["done"])
    model.usage = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=12, candidates_token_count=3, total_token_count=15
    )
    ask(runner, "Hello.", "stream")
    (step,) = played.steps
    assert step.tokens == {"input": 12, "output": 3}
    assert step.arguments["model"] == "scripted"


def test_a_full_record_of_the_model_has_the_messages(played: Sandbox) -> None:
    conversation = driver.play([], ["done"], "async", model={"record": "full"})
    assert conversation.text == "done"
    assert "Find fish." in repr(played.runs)


def test_after_a_compaction_the_model_is_reminded_once(played: Sandbox) -> None:
    script: Any = [[Request("fetch", {"url": "a"})], "noted", "done", "done", "done"]
    summarizer = LlmEventSummarizer(llm=ScriptedModel(script=["A short summary."] * 9))
    compaction = EventsCompactionConfig(summarizer=summarizer, compaction_interval=1, overlap_size=0)
    tools = Tools()
    tools.errors = [RuntimeError("The index is corrupt.")]
    runner, model = build_runner(tools.functions("fetch"), script, app={"events_compaction_config": compaction})
    ask(runner, "Fetch.", "async")
    ask(runner, "And now?", "async")

    assert "A short summary." in model.sent[2]
    assert "The index is corrupt" in model.sent[2].split("A short summary.")[0]
    assert "The index is corrupt" not in model.sent[1].split("Fetch.")[0]


# Retries of others


def test_the_retry_plugin_of_adk_adds_no_attempts(played: Sandbox) -> None:
    tools = Tools()
    tools.errors = [RateLimitError("Too many requests")] * 9
    script: Any = [[Request("fetch", {"url": "a"})], "done"]
    agent = LlmAgent(name="tester", model=(model := ScriptedModel(script=script)), tools=tools.functions("fetch"))
    plugins: list[BasePlugin] = [MulliganPlugin(tools={"*": {"effects": "none"}}), ReflectAndRetryToolPlugin()]
    runner = InMemoryRunner(app=App(name="tests", root_agent=agent, plugins=plugins))
    runner.auto_create_session = True
    ask(runner, "Fetch.", "async")

    assert len(tools.calls) == 3
    assert "rate_limit" in model.sent[1]
    assert "REFLECT_AND_RETRY" not in model.sent[1]


class RateLimitedServer(http.server.BaseHTTPRequestHandler):
    """Gemini, without any quota."""

    requests: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.requests.append(self.path)
        self.send_response(429)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"error": {"code": 429, "message": "Exhausted", "status": "RESOURCE_EXHAUSTED"}}')

    def log_message(self, *args: Any) -> None:
        pass


def test_retries_of_the_gemini_client_are_the_only_ones(played: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "a key for nothing")
    monkeypatch.setattr(RateLimitedServer, "requests", [])
    retries = types.HttpRetryOptions(attempts=3, initial_delay=0.01, max_delay=0.01)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), RateLimitedServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        model = Gemini(model="gemini-2.5-flash", base_url=url, retry_options=retries)
        agent = LlmAgent(name="tester", model=model)
        runner = InMemoryRunner(app=App(name="tests", root_agent=agent, plugins=[MulliganPlugin()]))
        runner.auto_create_session = True
        with pytest.raises(ClientError) as caught:
            ask(runner, "Hello.", "async")
        server.shutdown()

    assert len(RateLimitedServer.requests) == 3
    assert "tenacity inside this call made 3 attempts" in "\n".join(caught.value.__notes__)


# Off


def test_without_mulligan_everything_is_as_adk_does_it() -> None:
    with sandbox(enabled=False) as played:
        tools = Tools()
        error = RuntimeError("The index is corrupt.")
        tools.errors = [error]
        conversation = driver.play(tools.functions("fetch"), [[Request("fetch", {"url": "a"})], "done"], "async")
        assert conversation.error is error
        assert played.events == []


# The page


def test_the_code_of_the_page_runs(played: Sandbox) -> None:
    model = ScriptedModel(script=[SEARCH, "done"])
    names: dict[str, Any] = {"model": model}
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(code, names)
    assert "50 results" in model.sent[1]
    (history,) = played.runs
    assert history.run.agent == "researcher"
