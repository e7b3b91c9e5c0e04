"""What is special in Strands, beside the scenarios that all adapters play."""

# No `from __future__ import annotations`: Strands reads the annotations of tools that are defined in a test.

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("strands", exc_type=ImportError)

import taught
from frameworks.scenarios import NO_EFFECTS, RateLimitError, Request, Tools, failure_of
from frameworks.strands_driver import ScriptedModel, answers_of, as_tool
from pydantic import BaseModel
from strands import Agent, ModelRetryStrategy, ToolContext, tool
from strands.agent.conversation_manager import SummarizingConversationManager
from strands.hooks import BeforeToolCallEvent
from strands.middleware import ExecuteToolStage, ToolResultEvent
from strands.multiagent import GraphBuilder
from strands.types.exceptions import EventLoopException, ModelThrottledException

import mulligan
from mulligan.core.run_links import derive_status
from mulligan.integrations.strands import MulliganPlugin
from mulligan.testing import Sandbox, sandbox

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks are theirs
PAGE = Path(__file__).parents[2] / "docs/frameworks/strands.md"
FETCH = [Request("fetch", {"url": "a"})]


def build_agent(functions: Sequence[Any], script: Sequence[Any], *, agent_options: Any = None, **options: Any) -> Agent:
    plugins = [MulliganPlugin(agent="tester", **options)]
    model = ScriptedModel(script)
    return Agent(model, tools=list(functions), plugins=plugins, callback_handler=None, **(agent_options or {}))


def outcomes(played: Sandbox, type: str = "tool") -> list[tuple[str, str]]:
    return [
        (step.outcome, str(step.failure.kind) if step.failure is not None else "")
        for step in played.steps
        if step.type == type
    ]


def statuses(played: Sandbox) -> list[str]:
    return [derive_status(history.run, history.steps, history.links) for history in played.runs]


def failing_fetch(count: int = 20, error: type[Exception] = RateLimitError) -> tuple[Tools, Any]:
    tools = Tools()
    tools.errors = [error("Too many requests") for _ in range(count)]
    return tools, as_tool(tools.functions("fetch")[0])


# Answers


def test_a_repaired_call_keeps_its_images_beside_the_note(played: Sandbox) -> None:
    @tool
    def draw(size: int) -> dict[str, Any]:
        """Draw a fish."""
        image = {"image": {"format": "png", "source": {"bytes": b"hi"}}}
        return {"status": "success", "content": [{"text": "a fish"}, image]}

    agent = build_agent([draw], [[Request("draw", {"szie": 5})], "done"])
    agent("Draw.")
    (result,) = [block["toolResult"] for block in agent.messages[2]["content"]]
    assert result["status"] == "success"
    assert [next(iter(block)) for block in result["content"]] == ["text", "image", "text"]
    assert "renamed to size" in result["content"][-1]["text"]


def test_an_error_that_the_tool_reports_as_text_is_classified(played: Sandbox) -> None:
    @tool
    def find(number: int) -> dict[str, Any]:
        """Find an order."""
        return {"status": "error", "content": [{"text": f"Order {number} not found"}]}

    agent = build_agent([find], [[Request("find", {"number": 7})], "done"])
    agent("Find.")
    assert failure_of(answers_of(agent.messages)[0])["code"] == "not_found"
    assert outcomes(played) == [("failure", "tool/not_found")]


def test_parallel_calls_are_recovered_each(played: Sandbox) -> None:
    _, fetch = failing_fetch(1)
    agent = build_agent([fetch], [[*FETCH, Request("fetch", {"url": "b"})], "done"], **NO_EFFECTS)
    agent("Fetch.")
    assert sorted(answers_of(agent.messages)) == ["page of a", "page of b"]
    assert statuses(played) == ["recovered"]


def test_events_of_a_tool_are_streamed_while_it_runs(played: Sandbox) -> None:
    can_end = asyncio.Event()

    @tool
    async def count(limit: int) -> Any:
        """Count."""
        yield "one"
        await can_end.wait()
        yield "two"

    agent = build_agent([count], [[Request("count", {"limit": 2})], "done"])

    async def play() -> list[Any]:
        seen = []
        async for event in agent.stream_async("Count."):
            if "tool_stream_event" in event:
                seen.append(event["tool_stream_event"]["data"])
                can_end.set()
        return seen

    assert asyncio.run(asyncio.wait_for(play(), 20)) == ["one", "two"]
    assert outcomes(played) == [("success", "")]


def test_tool_context_is_no_argument(played: Sandbox) -> None:
    @tool(context=True)
    def search(query: str, tool_context: ToolContext) -> str:
        """Search."""
        return f"{query}: {tool_context.invocation_state['rows']} {tool_context.tool_use['name']}"

    agent = build_agent([search], [[Request("search", {"query": "fish"})], "done"])
    agent("Search.", invocation_state={"rows": 50})
    assert answers_of(agent.messages) == ["fish: 50 search"]
    assert [step.arguments for step in played.steps if step.type == "tool"] == [{"query": "fish"}]


def test_a_tool_that_another_middleware_executes_works(played: Sandbox) -> None:
    async def execute(context: Any, next_stage: Any) -> Any:
        if context.tool_use["name"] != "search":
            async for event in next_stage(context):
                yield event
            return
        result = {"toolUseId": context.tool_use["toolUseId"], "status": "success", "content": [{"text": "found"}]}
        yield ToolResultEvent(result)

    _, fetch = failing_fetch(0)
    agent = build_agent([fetch], [[Request("search", {}), Request("fetsh", {"url": "a"})], "done"])
    agent.add_middleware(ExecuteToolStage, execute)
    agent("Search.")
    first, second = answers_of(agent.messages)
    assert first == "found"
    assert failure_of(second)["code"] == "unknown_tool"


def test_a_hook_may_select_another_tool(played: Sandbox) -> None:
    @tool
    def search(query: str) -> str:
        """Search."""
        return f"found {query}"

    def select(event: BeforeToolCallEvent) -> None:
        event.selected_tool = search

    _, fetch = failing_fetch(0)
    agent = build_agent([fetch], [[Request("fetch", {"query": "fish"})], "done"])
    agent.add_hook(select, BeforeToolCallEvent)
    agent("Fetch.")
    assert answers_of(agent.messages) == ["found fish"]


def test_a_direct_call_of_a_tool_passes_through(played: Sandbox) -> None:
    tools, fetch = failing_fetch(0)
    agent = build_agent([fetch], [])
    assert agent.tool.fetch(url="a")["content"] == [{"text": "page of a"}]
    assert len(tools.calls) == 1


def test_an_interrupt_of_a_hook_pauses_the_run(played: Sandbox) -> None:
    tools, fetch = failing_fetch(0)

    def approve(event: BeforeToolCallEvent) -> None:
        if event.interrupt("approval") != "yes":
            event.cancel_tool = "A person has refused."

    agent = build_agent([fetch], [FETCH, "done"])
    agent.add_hook(approve, BeforeToolCallEvent)
    (interrupt,) = agent("Fetch.").interrupts
    assert [history.run.end_reason for history in played.runs] == [None]
    agent([{"interruptResponse": {"interruptId": interrupt.id, "response": "yes"}}])
    assert len(tools.calls) == 1
    assert [history.run.end_reason for history in played.runs] == ["finished"]


# One layer retries


def test_a_rate_limit_of_the_model_is_retried(played: Sandbox) -> None:
    agent = build_agent([], [RateLimitError("Too many requests"), "done"])
    agent("Hello.")
    assert outcomes(played, "model") == [("failure", "model/rate_limit"), ("success", "")]
    assert played.steps[-1].tokens == {"input": 12, "output": 3}
    assert played.steps[-1].arguments["model"] == "scripted"
    assert statuses(played) == ["recovered"]


def test_the_retry_strategy_of_the_agent_retries_and_mulligan_does_not(played: Sandbox) -> None:
    strategy = ModelRetryStrategy(max_attempts=3, initial_delay=0)
    script = [ModelThrottledException("Too many requests") for _ in range(20)]
    agent = build_agent([], script, agent_options={"retry_strategy": strategy})
    with pytest.raises(ModelThrottledException) as raised:
        agent("Hello.")
    assert len(agent.model.sent) == 3
    assert "ModelRetryStrategy retries this call, so mulligan does not" in "".join(raised.value.__notes__)
    assert statuses(played) == ["failure"]


def test_without_a_retry_strategy_mulligan_retries(played: Sandbox) -> None:
    script = [ModelThrottledException("Too many requests") for _ in range(20)]
    agent = build_agent([], script, agent_options={"retry_strategy": None})
    with pytest.raises(ModelThrottledException):
        agent("Hello.")
    assert len(agent.model.sent) == 8
    assert outcomes(played, "model") == [("failure", "model/rate_limit")] * 8
    assert statuses(played) == ["failure"]


# Runs


def test_a_failed_model_ends_the_run_and_the_next_question_is_another_one(played: Sandbox) -> None:
    agent = build_agent([], [ValueError("The model is broken."), "done"])
    with pytest.raises(ValueError, match="broken"):
        agent("Find fish.")
    agent("Find meat.")
    assert statuses(played) == ["failure", "success"]
    assert [history.run.end_reason for history in played.runs] == ["raised", "finished"]
    assert [history.run.context for history in played.runs] == ["Find fish.", "Find meat."]
    assert {history.run.session for history in played.runs} == {agent.session_id}


def test_infra_error_ends_the_run(played: Sandbox) -> None:
    @tool
    def fetch(url: str) -> str:
        """Fetch a page."""
        raise mulligan.InfraError("The network is down.")

    with pytest.raises(EventLoopException) as raised:
        build_agent([fetch], [FETCH, "done"])("Fetch.")
    assert isinstance(raised.value.original_exception, mulligan.InfraError)
    assert [history.run.end_reason for history in played.runs] == ["raised"]


def test_an_agent_that_is_a_tool_belongs_to_the_run_of_its_caller(played: Sandbox) -> None:
    _, fetch = failing_fetch(1)
    inner = build_agent([fetch], [FETCH, "inner answer"], **NO_EFFECTS)
    research = inner.as_tool(name="research", description="Research a topic.")
    agent = build_agent([research], [[Request("research", {"input": "fish"})], "done"])
    agent("Research.")
    assert "inner answer" in answers_of(agent.messages)[0]
    (history,) = played.runs
    assert len([step for step in history.steps if step.type == "model"]) == 4
    assert sorted(step.name for step in history.steps if step.type == "tool") == ["fetch", "fetch", "research"]
    assert statuses(played) == ["recovered"]


def test_one_object_serves_several_agents(played: Sandbox) -> None:
    plugin = MulliganPlugin()
    for name in ("a", "b"):
        Agent(ScriptedModel(["done"]), plugins=[plugin], name=name, callback_handler=None)("Hello.")
    assert [history.run.agent for history in played.runs] == ["a", "b"]


def test_agents_of_a_graph_have_runs_of_their_own_though_they_share_a_state(played: Sandbox) -> None:
    builder = GraphBuilder()
    for name in ("first", "second", "last"):
        _, fetch = failing_fetch(1)
        plugins = [MulliganPlugin(**NO_EFFECTS)]
        model = ScriptedModel([FETCH, "done"])
        builder.add_node(Agent(model, tools=[fetch], plugins=plugins, name=name, callback_handler=None), name)
    builder.add_edge("first", "last")
    builder.add_edge("second", "last")
    builder.build()("Fetch.", invocation_state={"shared": True})
    assert sorted(history.run.agent for history in played.runs) == ["first", "last", "second"]
    assert [len(history.steps) for history in played.runs] == [4, 4, 4]
    assert statuses(played) == ["recovered"] * 3


def test_structured_output_is_returned(played: Sandbox) -> None:
    class Weather(BaseModel):
        """The weather."""

        degrees: int

    agent = build_agent([], [[Request("Weather", {"degrees": 21})]])
    result = agent("How warm is it?", structured_output_model=Weather)
    assert result.structured_output == Weather(degrees=21)
    assert statuses(played) == ["success"]


# What the model reads


def test_failures_from_before_a_summary_reach_the_next_request(played: Sandbox) -> None:
    _, fetch = failing_fetch(1, RuntimeError)
    summarizer = Agent(ScriptedModel(["We talked."] * 9), callback_handler=None)
    manager = SummarizingConversationManager(
        summary_ratio=0.8, preserve_recent_messages=1, summarization_agent=summarizer
    )
    script = [FETCH, "one", "two", "three", "four", "five"]
    agent = build_agent([fetch], script, agent_options={"conversation_manager": manager, "system_prompt": "Be brief."})
    for question in ("Fetch.", "Second", "Third"):
        agent(question)
    manager.reduce_context(agent)  # as Strands does it shortly before the window is full
    agent("Fourth")
    compacted = next(sent for sent in agent.model.sent if "We talked." in sent)
    assert compacted.startswith("Be brief.")
    assert "Too many requests" in compacted.split("We talked.")[0]
    assert [history.run.end_reason for history in played.runs] == ["finished"] * 4
    agent("And now?")
    assert [event.name for event in played.events].count("context.compacted") == 1


def test_lessons_are_added_to_the_system_prompt_on_request(played: Sandbox) -> None:
    _, fetch = failing_fetch(0)
    build_agent([fetch], [FETCH, "done"])("Fetch.")
    mulligan.flush(30)
    taught.prove(played.store, 1_700_000_000_000, "fetch")
    for inject, is_expected in ((False, False), (400, True)):
        agent = build_agent([fetch], ["done"], inject_lessons=inject, agent_options={"system_prompt": "Be brief."})
        agent("Hello.")
        assert ("use k=10" in agent.model.sent[0]) is is_expected
        assert agent.model.sent[0].startswith("Be brief.")


def test_messages_of_a_model_are_recorded_on_request(played: Sandbox) -> None:
    build_agent([], ["done"], model={"record": "full"})("Find fish.")
    assert "Find fish." in repr(played.runs[0].steps) + repr(played.runs[0].run)


def test_a_fallback_answers_for_the_model(played: Sandbox) -> None:
    options = {"model": {"fallback": lambda *args, **settings: "from another model"}}
    agent = build_agent([], [RateLimitError("Too many requests") for _ in range(9)], **options)
    assert "from another model" in str(agent("Hello."))


# Safety


def test_everything_passes_through_while_mulligan_is_off() -> None:
    with sandbox(enabled=False) as played:
        tools, fetch = failing_fetch(1)
        agent = build_agent([fetch], [FETCH, [Request("serch", {})], FETCH, "done"])
        agent("Fetch.")
        assert answers_of(agent.messages) == [
            "Error: RateLimitError - Too many requests",
            "Unknown tool: serch",
            "page of a",
        ]
        assert len(tools.calls) == 2
        assert played.steps == []


# The page


def test_the_code_of_the_page_runs(played: Sandbox) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    exec(block, {"model": ScriptedModel([[Request("search", {"query": "fish", "topk": 3})], "done"])})
    assert statuses(played) == ["recovered"]
