"""Wrapped tools inside the real frameworks: their control flow passes, and their contexts are no arguments.

They are heavy and not needed otherwise: `make test-frameworks` installs them and runs this; elsewhere it is skipped.
"""

# No `from __future__ import annotations`: each test imports the types of its framework itself.

import asyncio
import importlib
import json
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Annotated, Any, TypedDict

import pytest

import mulligan
from mulligan.capture.framework_classes import CONTROL_FLOW, INJECTED_TYPES
from mulligan.testing import Sandbox

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks are theirs
MARK = "a row of the database"


@dataclass
class Dependencies:
    """What a framework hands to each tool."""

    rows: list[str] = field(default_factory=lambda: [MARK] * 50)


def tool_steps(played: Sandbox) -> list[tuple[str, Any]]:
    """The outcome and the arguments of each attempt of a tool. Nothing of the dependencies is stored anywhere."""
    assert MARK not in repr(played.events) + repr(played.runs)
    return [(step.outcome, step.arguments) for step in played.steps if step.type == "tool"]


MCP_CONTEXTS = {"1": "mcp.server.fastmcp.server:Context", "2": "mcp.server.mcpserver.context:Context"}
"""The class of each version of mcp that is in use."""


@pytest.mark.parametrize("name", sorted((CONTROL_FLOW | INJECTED_TYPES) - {*MCP_CONTEXTS.values()}))
def test_each_class_of_the_tables_has_its_name_in_the_installed_version(name: str) -> None:
    module_name, _, class_name = name.partition(":")
    package = "google.adk" if module_name.startswith("google.") else module_name.partition(".")[0]
    pytest.importorskip(package, exc_type=ImportError)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if str(error.name).startswith(package):
            raise
        pytest.skip(f"{package} is installed without {error.name}")
    cls = getattr(module, class_name)
    assert f"{cls.__module__}:{cls.__qualname__}" == name


def test_context_of_mcp_has_its_name_in_the_installed_version() -> None:
    pytest.importorskip("mcp")
    name = MCP_CONTEXTS[version("mcp").partition(".")[0]]
    assert name in INJECTED_TYPES
    module_name, _, class_name = name.partition(":")
    assert getattr(importlib.import_module(module_name), class_name).__module__ == module_name


def test_a_langgraph_interrupt_pauses_the_graph_and_the_tool_runs_again_when_it_resumes(played: Sandbox) -> None:
    pytest.importorskip("langgraph")
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import START, StateGraph
    from langgraph.types import Command, interrupt

    @mulligan.tool(effects="none")
    def pay(amount: int) -> str:
        return f"paid {amount}, {interrupt('May I pay?')}"

    class State(TypedDict):
        answer: str

    builder = StateGraph(State)
    builder.add_node("pay", lambda state: {"answer": pay(5)})
    builder.add_edge(START, "pay")
    graph = builder.compile(checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    with mulligan.run("payer") as run:
        paused = graph.invoke({"answer": ""}, thread)
        assert [pause.value for pause in paused["__interrupt__"]] == ["May I pay?"]
        assert graph.invoke(Command(resume="yes"), thread)["answer"] == "paid 5, yes"
    assert run.status == "success"
    assert tool_steps(played) == [("cancelled", {"amount": 5}), ("success", {"amount": 5})]


def test_langgraph_injects_state_runtime_and_config_beside_the_arguments(played: Sandbox) -> None:
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import InjectedToolCallId
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import InjectedState, ToolNode, ToolRuntime

    @mulligan.tool(effects="none")
    def search(
        query: str,
        state: Annotated[dict[str, Any], InjectedState],
        call_id: Annotated[str, InjectedToolCallId],
        config: RunnableConfig,
        runtime: ToolRuntime,
    ) -> str:
        """Search the rows."""
        return f"{query}: {len(state['messages'])} message, {call_id}, {runtime.tool_call_id}"

    class State(MessagesState):
        rows: list[str]

    request = AIMessage("", tool_calls=[{"name": "search", "args": {"query": "fish"}, "id": "c1"}])
    builder = StateGraph(State)
    builder.add_node("tools", ToolNode([search]))
    builder.add_edge(START, "tools")
    answers = builder.compile().invoke({"messages": [request], "rows": Dependencies().rows})
    assert answers["messages"][-1].content == "fish: 1 message, c1, c1"
    assert tool_steps(played) == [("success", {"query": "fish"})]


def test_pydantic_ai_asks_the_model_again_and_asks_a_person(played: Sandbox) -> None:
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent, ApprovalRequired, DeferredToolRequests, ModelRetry, RunContext
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    script = [ToolCallPart("search", {"query": "fsh"}), ToolCallPart("search", {"query": "fish"}), TextPart("done")]
    model = FunctionModel(lambda messages, info: ModelResponse([script.pop(0)]))
    agent = Agent(model, deps_type=Dependencies, output_type=[str, DeferredToolRequests])

    @agent.tool(retries=2)
    @mulligan.tool(effects="none")
    def search(ctx: RunContext[Dependencies], query: str) -> str:
        """Search the rows."""
        if query != "fish":
            raise ModelRetry("Did you mean fish?")
        return f"{len(ctx.deps.rows)} rows"

    @agent.tool
    @mulligan.tool
    def pay(ctx: RunContext[Dependencies], amount: int) -> str:
        """Pay an amount."""
        raise ApprovalRequired

    with mulligan.run("searcher") as run:
        result = asyncio.run(agent.run("Search.", deps=Dependencies()))
        assert result.output == "done"
        assert "50 rows" in str(result.all_messages())
        script.append(ToolCallPart("pay", {"amount": 5}))
        deferred = asyncio.run(agent.run("Pay.", deps=Dependencies())).output
        assert [part.tool_name for part in deferred.approvals] == ["pay"]
    assert run.status == "success"
    assert tool_steps(played) == [
        ("cancelled", {"query": "fsh"}),
        ("success", {"query": "fish"}),
        ("cancelled", {"amount": 5}),
    ]


def test_openai_agents_inject_a_wrapper_around_the_context(played: Sandbox) -> None:
    pytest.importorskip("agents")
    from agents.tool_context import ToolContext

    from agents import RunContextWrapper, function_tool

    @function_tool
    @mulligan.tool(effects="none")
    async def search(ctx: RunContextWrapper[Dependencies], query: str) -> str:
        """Search the rows."""
        return f"{len(ctx.context.rows)} rows"

    @function_tool
    @mulligan.tool(effects="none")
    def find(ctx: ToolContext[Dependencies], query: str) -> str:
        """Find a row."""
        return ctx.tool_name

    for tool, expected in ((search, "50 rows"), (find, "find")):
        assert list(tool.params_json_schema["properties"]) == ["query"]
        arguments = json.dumps({"query": "fish"})
        context = ToolContext(Dependencies(), tool_name=tool.name, tool_call_id="c1", tool_arguments=arguments)
        assert asyncio.run(tool.on_invoke_tool(context, arguments)) == expected
    assert tool_steps(played) == [("success", {"query": "fish"}), ("success", {"query": "fish"})]


@pytest.mark.parametrize("name", ["RetryAgentRun", "StopAgentRun"])
def test_agno_stops_or_repeats_the_run_of_the_agent(played: Sandbox, name: str) -> None:
    pytest.importorskip("agno")
    import agno.exceptions
    from agno.run import RunContext
    from agno.tools.function import Function, FunctionCall

    steering = getattr(agno.exceptions, name)

    @mulligan.tool(effects="none")
    def search(run_context: RunContext, query: str) -> str:
        """Search the rows."""
        if query == "fish":
            return f"{len(run_context.session_state['rows'])} rows"
        raise steering("Ask for fish.")

    function = Function.from_callable(search)
    function._run_context = RunContext(run_id="r1", session_id="s1", session_state={"rows": Dependencies().rows})
    answer = FunctionCall(function=function, arguments={"query": "fish"}).execute()
    assert answer.result == "50 rows"
    with pytest.raises(steering):
        FunctionCall(function=function, arguments={"query": "meat"}).execute()
    assert tool_steps(played) == [("success", {"query": "fish"}), ("cancelled", {"query": "meat"})]
