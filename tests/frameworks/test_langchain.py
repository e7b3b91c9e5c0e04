"""What is special in LangChain and LangGraph, beside the scenarios that all adapters play."""

# No `from __future__ import annotations`: LangChain reads the annotations of tools that are defined in a test.

import asyncio
import http.server
import json
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest

pytest.importorskip("langchain", exc_type=ImportError)

import taught
from frameworks.langchain_driver import ScriptedModel, as_tool
from frameworks.scenarios import NO_EFFECTS, RateLimitedProvider, RateLimitError, Request, Tools, failure_of
from hostile_errors import CASES, SCHEMA, HostileCase, ObedientReflector, trust_completely
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelRetryMiddleware,
    SummarizationMiddleware,
    ToolRetryMiddleware,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, ToolRuntime
from langgraph.types import Command
from pydantic import BaseModel, Field, field_validator

import mulligan
from mulligan import Fallback
from mulligan.capture.framework_classes import class_name
from mulligan.core.failure import SettingsError
from mulligan.core.run_links import derive_status
from mulligan.integrations.langchain import MulliganMiddleware
from mulligan.testing import Sandbox, sandbox

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks are theirs
PAGE = Path(__file__).parents[2] / "docs/frameworks/langchain.md"
QUESTION = {"messages": [HumanMessage("Find fish.")]}
THREAD: Any = {"configurable": {"thread_id": "1"}}
STYLES = pytest.mark.parametrize("style", ["sync", "async"])


def build_agent(functions: Sequence[Any], script: Sequence[Any], middleware: Sequence[Any] = (), **options: Any) -> Any:
    """Build an agent with a scripted model. The middleware of mulligan is first, unless the list has one."""
    if not any(isinstance(part, MulliganMiddleware) for part in middleware):
        middleware = [MulliganMiddleware(agent="tester", **options), *middleware]
    agent = create_agent(model := ScriptedModel(script=list(script)), list(functions), middleware=list(middleware))
    agent.scripted_model = model
    return agent


def invoke(agent: Any, style: str = "sync", question: Any = QUESTION, config: Any = None) -> list[Any]:
    if style == "sync":
        return list(agent.invoke(question, config)["messages"])
    return list(asyncio.run(agent.ainvoke(question, config))["messages"])


def answers_of(messages: Sequence[Any]) -> list[str]:
    return [message.text for message in messages if isinstance(message, ToolMessage)]


def outcomes(played: Sandbox, type: str = "tool") -> list[tuple[str, str]]:
    return [
        (step.outcome, str(step.failure.kind) if step.failure is not None else "")
        for step in played.steps
        if step.type == type
    ]


def statuses(played: Sandbox) -> list[str]:
    return [derive_status(history.run, history.steps, history.links) for history in played.runs]


def failing_fetch(count: int = 20, error: Callable[[], Exception] = lambda: RateLimitError("Too many requests")) -> Any:
    tools = Tools()
    tools.errors = [error() for _ in range(count)]
    return tools, as_tool(tools.functions("fetch")[0])


FETCH = [Request("fetch", {"url": "a"})]


@STYLES
def test_a_run_has_the_name_of_the_agent(played: Sandbox, style: str) -> None:
    agent = create_agent(ScriptedModel(script=["done"]), [], middleware=[MulliganMiddleware()], name="researcher")
    invoke(agent, style)
    assert [history.run.agent for history in played.runs] == ["researcher"]


def test_a_loop_over_updates_skips_steps_without_messages(played: Sandbox) -> None:
    _, fetch = failing_fetch(0)
    agent = build_agent([fetch], [FETCH, "done"])
    updates = [item for chunk in agent.stream(QUESTION, stream_mode="updates") for item in chunk.items()]
    steps = [step for step, update in updates if update and "messages" in update]
    assert steps == ["model", "tools", "model"]


# Answers


@tool(response_format="content_and_artifact")
def draw(size: int) -> tuple[Any, dict[str, int]]:
    """Draw a fish."""
    return [{"type": "text", "text": "a fish"}, {"type": "image", "base64": "aGk=", "mime_type": "image/png"}], {"n": 1}


@STYLES
def test_a_repaired_call_keeps_images_and_artifact_beside_the_note(played: Sandbox, style: str) -> None:
    messages = invoke(build_agent([draw], [[Request("draw", {"szie": 5})], "done"]), style)
    (answer,) = [message for message in messages if isinstance(message, ToolMessage)]
    assert answer.artifact == {"n": 1}
    assert [block["type"] for block in answer.content] == ["text", "image", "text"]
    assert "renamed to size" in answer.content[-1]["text"]
    assert answer.status == "success"


@STYLES
def test_a_repaired_call_keeps_its_command_and_the_message_inside_gets_the_note(played: Sandbox, style: str) -> None:
    class State(MessagesState):
        city: str

    @tool
    def move(city: str, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Move to a city."""
        return Command(update={"city": city, "messages": [ToolMessage("moved", tool_call_id=call_id)]})

    middleware = MulliganMiddleware()
    builder = StateGraph(State)
    node = ToolNode([move], wrap_tool_call=middleware.wrap_tool_call, awrap_tool_call=middleware.awrap_tool_call)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    graph: Any = builder.compile()
    request = AIMessage("", tool_calls=[{"name": "move", "args": {"ctiy": "Oslo"}, "id": "c1"}])
    question = {"messages": [request], "city": ""}
    state = graph.invoke(question) if style == "sync" else asyncio.run(graph.ainvoke(question))
    assert state["city"] == "Oslo"
    assert "moved" in state["messages"][-1].text
    assert "renamed to city" in state["messages"][-1].text
    assert [step.arguments for step in played.steps] == [{"ctiy": "Oslo"}, {"city": "Oslo"}]


@STYLES
def test_a_command_of_a_call_without_repair_passes_unchanged(played: Sandbox, style: str) -> None:
    @tool
    def remember(text: str, runtime: ToolRuntime) -> Command[Any]:
        """Remember a text."""
        return Command(update={"messages": [ToolMessage(f"noted {text}", tool_call_id=runtime.tool_call_id)]})

    messages = invoke(build_agent([remember], [[Request("remember", {"text": "a"})], "done"]), style)
    assert answers_of(messages) == ["noted a"]
    assert outcomes(played) == [("success", "")]


@STYLES
def test_parallel_calls_are_recovered_each_and_belong_to_one_turn(played: Sandbox, style: str) -> None:
    _, fetch = failing_fetch(1)
    agent = build_agent([fetch], [[*FETCH, Request("fetch", {"url": "b"})], "done"], **NO_EFFECTS)
    answers = answers_of(invoke(agent, style))
    assert sorted(answers) == ["page of a", "page of b"]
    assert sorted(outcomes(played)) == [("failure", "tool/rate_limit"), ("success", ""), ("success", "")]
    assert statuses(played) == ["recovered"]


def call_in_tool_node(
    called: Any, arguments: dict[str, Any], middleware: MulliganMiddleware, style: str, handle_tool_errors: Any = True
) -> list[Any]:
    """Call a tool in a graph of one ToolNode, which turns errors into messages. Return the messages."""
    node = ToolNode(
        [called],
        handle_tool_errors=handle_tool_errors,
        wrap_tool_call=middleware.wrap_tool_call,
        awrap_tool_call=middleware.awrap_tool_call,
    )
    builder = StateGraph(MessagesState)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    request = AIMessage("", tool_calls=[{"name": called.name, "args": arguments, "id": "c1"}])
    return invoke(builder.compile(), style, {"messages": [request]})


@pytest.mark.parametrize("handle", [True, "The tool has failed."])
@STYLES
def test_the_exception_behind_a_masked_message_is_classified(played: Sandbox, style: str, handle: Any) -> None:
    _, fetch = failing_fetch(1)
    messages = call_in_tool_node(fetch, {"url": "a"}, MulliganMiddleware(**NO_EFFECTS), style, handle)
    assert answers_of(messages) == ["page of a"]
    assert outcomes(played) == [("failure", "tool/rate_limit"), ("success", "")]


@STYLES
def test_a_validation_error_of_the_tool_itself_does_not_prove_that_nothing_was_executed(
    played: Sandbox, style: str
) -> None:
    class Answer(BaseModel):
        limit: int = Field(le=10)

    sent: list[int] = []

    @tool
    def send(limit: int) -> str:
        """Send the newsletter to some readers."""
        sent.append(limit)
        return str(Answer(limit=limit))

    call_in_tool_node(send, {"limit": 50}, MulliganMiddleware(tools={"send": {"clamp": ["limit"]}}), style)
    assert sent == [50]


def test_a_tool_that_handles_its_exception_itself_has_failed_all_the_same(played: Sandbox) -> None:
    def find(number: int) -> str:
        """Find an order."""
        raise ToolException(f"Order {number} not found")

    handled = StructuredTool.from_function(find, handle_tool_error=True)
    (answer,) = answers_of(invoke(build_agent([handled], [[Request("find", {"number": 7})], "done"])))
    assert failure_of(answer)["code"] == "not_found"
    assert "Order 7" in answer


def test_a_validator_that_no_schema_states_rejects_the_arguments(played: Sandbox) -> None:
    class Payment(BaseModel):
        amount: int

        @field_validator("amount")
        @classmethod
        def check(cls, amount: int) -> int:
            if amount % 5:
                raise ValueError("amount must be a multiple of 5")
            return amount

    @tool(args_schema=Payment)
    def pay(amount: int, state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Pay an amount."""
        return "paid"

    (answer,) = answers_of(invoke(build_agent([pay], [[Request("pay", {"amount": 7})], "done"])))
    assert failure_of(answer)["code"] == "invalid_arguments"
    assert "multiple of 5" in answer


class Amount(BaseModel):
    number: int = Field(alias="count", default=5)

    @field_validator("number", mode="before")
    @classmethod
    def read_word(cls, value: Any) -> Any:
        return {"seven": 7}.get(value, value)


@tool(args_schema=Amount)
def order(number: int, state: Annotated[dict[str, Any], InjectedState]) -> str:
    """Order fish."""
    return f"ordered {number!r}"


@tool
def deliver(amount: int, fast: bool = False) -> str:
    """Deliver fish."""
    return f"delivered {amount!r} {fast!r}"


@STYLES
@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (Request("order", {"count": 3}), "ordered 3"),
        (Request("order", {"count": "seven"}), "ordered 7"),
        (Request("deliver", {"amount": "5", "fast": "yes"}), "delivered 5 True"),
    ],
    ids=["alias", "validator", "converted"],
)
def test_a_call_that_langchain_accepts_is_neither_rejected_nor_repaired(
    played: Sandbox, style: str, request_: Request, answer: str
) -> None:
    assert answers_of(invoke(build_agent([order, deliver], [[request_], "done"]), style)) == [answer]
    assert outcomes(played) == [("success", "")]


@pytest.mark.parametrize(
    "arguments",
    [{"amount": 1, "dry_run": True}, {"amount": True}, {"amount": "0755"}, {"amount": "+2"}],
    ids=["unknown argument", "boolean", "octal", "relative"],
)
def test_a_call_to_which_langchain_would_give_another_meaning_is_rejected(
    played: Sandbox, arguments: dict[str, Any]
) -> None:
    (answer,) = answers_of(invoke(build_agent([deliver], [[Request("deliver", arguments)], "done"])))
    assert failure_of(answer)["code"] == "invalid_arguments"


def test_a_misspelled_alias_is_repaired_although_langchain_would_ignore_it(played: Sandbox) -> None:
    (answer,) = answers_of(invoke(build_agent([order], [[Request("order", {"cuont": 3})], "done"])))
    assert "ordered 3" in answer
    assert "renamed to count" in answer


@STYLES
def test_verify_answers_for_a_call_that_took_effect(played: Sandbox, style: str) -> None:
    tools = Tools()
    options = {"tools": {"pay": {"verify": lambda amount: f"paid {amount}"}}}
    agent = build_agent([as_tool(tools.functions("pay")[0])], [[Request("pay", {"amount": 5})], "done"], **options)
    (answer,) = answers_of(invoke(agent, style))
    assert "paid 5" in answer
    assert len(tools.calls) == 1


def test_mcp_tools_are_repaired_and_their_errors_read(played: Sandbox) -> None:
    adapters = pytest.importorskip("langchain_mcp_adapters.tools", exc_type=ImportError)
    from mcp import types

    class Session:
        """Answers as an MCP server does."""

        async def call_tool(self, name: str, arguments: dict[str, Any], **options: Any) -> types.CallToolResult:
            is_error = arguments["query"] == "meat"
            text = "Order meat not found" if is_error else f"fish {arguments['top_k']}"
            return types.CallToolResult(content=[types.TextContent(type="text", text=text)], isError=is_error)

    schema = {
        "type": "object",
        "properties": {"query": {"type": "string"}, "top_k": {"type": "integer", "maximum": 10}},
        "required": ["query", "top_k"],
    }
    definition = types.Tool(name="search", description="Search.", inputSchema=schema)
    search = adapters.convert_mcp_tool_to_langchain_tool(Session(), definition)
    script = [[Request("search", {"query": query, "top_k": 50})] for query in ("fish", "meat")]
    first, second = answers_of(invoke(build_agent([search], [*script, "done"], **NO_EFFECTS), "async"))
    assert "fish 10" in first
    assert "50 -> 10" in first
    assert failure_of(second)["code"] == "not_found"


@STYLES
def test_a_tool_that_another_middleware_adds_and_executes_works(played: Sandbox, style: str) -> None:
    @tool
    def search(query: str) -> str:
        """Search."""
        return f"found {query}"

    class Adding(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(request.override(tool=search) if request.tool_call["name"] == "search" else request)

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return await handler(request.override(tool=search) if request.tool_call["name"] == "search" else request)

    _, fetch = failing_fetch(0)
    script = [[Request("search", {"query": "fish"})], [Request("fetsh", {"url": "a"})], "done"]
    first, second = answers_of(invoke(build_agent([fetch], script, [Adding()]), style))
    assert first == "found fish"
    assert failure_of(second)["code"] == "unknown_tool"
    mulligan_inside = [Adding(), MulliganMiddleware()]
    assert answers_of(invoke(build_agent([fetch], script, mulligan_inside), style))[0] == "found fish"
    assert outcomes(played)[-2:] == [("success", ""), ("failure", "tool/unknown_tool")]


# What LangGraph injects


MARK = "a row of the database"


@STYLES
def test_injected_state_and_runtime_are_no_arguments(played: Sandbox, style: str) -> None:
    class State(MessagesState):
        rows: list[str]

    @tool
    def search(query: str, state: Annotated[dict[str, Any], InjectedState], runtime: ToolRuntime) -> str:
        """Search the rows."""
        return f"{query}: {len(state['rows'])} rows, {runtime.tool_call_id}"

    middleware = MulliganMiddleware()
    builder = StateGraph(State)
    node = ToolNode([search], wrap_tool_call=middleware.wrap_tool_call, awrap_tool_call=middleware.awrap_tool_call)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    made_up = {"query": "fish", "state": {"rows": []}}
    calls = [{"name": "search", "args": args, "id": f"c{len(args)}"} for args in ({"query": "fish"}, made_up)]
    question = {"messages": [AIMessage("", tool_calls=calls)], "rows": [MARK] * 50}
    right, wrong = answers_of(invoke(builder.compile(), style, question))
    assert right == "fish: 50 rows, c1"
    assert "search has no argument 'state'" in wrong
    assert {"query": "fish"} in [step.arguments for step in played.steps]
    assert MARK not in repr(played.events) + repr(played.runs)


# One layer retries


@pytest.mark.parametrize("on_failure", ["continue", "error"])
@pytest.mark.parametrize("is_first", [True, False])
@STYLES
def test_tool_retry_middleware_makes_the_attempts_and_mulligan_does_not(
    played: Sandbox, style: str, on_failure: Any, is_first: bool
) -> None:
    tools, fetch = failing_fetch()
    retries = ToolRetryMiddleware(max_retries=2, initial_delay=0, on_failure=on_failure)
    middleware = [MulliganMiddleware(**NO_EFFECTS), retries]
    agent = build_agent([fetch], [FETCH, "done"], middleware if is_first else middleware[::-1])
    (answer,) = answers_of(invoke(agent, style))
    assert failure_of(answer)["code"] == "rate_limit"
    assert len(tools.calls) == 3
    if is_first:
        (step,) = [step for step in played.steps if step.type == "tool"]
        assert "inside this call made 3 attempts" in str(step.recovery or step)


@pytest.mark.parametrize("is_first", [True, False])
def test_model_retry_middleware_makes_the_attempts_and_mulligan_does_not(played: Sandbox, is_first: bool) -> None:
    retries = ModelRetryMiddleware(max_retries=2, initial_delay=0, on_failure="error")
    middleware = [MulliganMiddleware(), retries]
    script = [RateLimitError("Too many requests") for _ in range(20)]
    agent = build_agent([], script, middleware if is_first else middleware[::-1])
    with pytest.raises(RateLimitError) as raised:
        invoke(agent)
    assert len(agent.scripted_model.sent) == 3
    assert "ModelRetryMiddleware" in "".join(raised.value.__notes__)
    assert statuses(played) == ["failure"]


@STYLES
def test_without_them_mulligan_retries_a_rate_limit_of_the_model(played: Sandbox, style: str) -> None:
    agent = build_agent([], [RateLimitError("Too many requests"), "done"])
    assert invoke(agent, style)[-1].text == "done"
    assert outcomes(played, "model") == [("failure", "model/rate_limit"), ("success", "")]
    assert statuses(played) == ["recovered"]


def test_the_retries_of_the_openai_client_are_not_multiplied(played: Sandbox) -> None:
    openai = pytest.importorskip("langchain_openai", exc_type=ImportError)
    RateLimitedProvider.requests = 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RateLimitedProvider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        model = openai.ChatOpenAI(model="gpt-4.1", base_url=url, api_key="none", max_retries=2)
        agent = create_agent(model, [], middleware=[MulliganMiddleware()])
        with pytest.raises(Exception, match="Rate limit reached") as raised:
            invoke(agent)
    finally:
        server.shutdown()
        server.server_close()
    assert RateLimitedProvider.requests == 3
    assert "the openai client inside this call made 3 attempts" in "".join(raised.value.__notes__)
    assert played.steps[0].arguments["model"] == "gpt-4.1"


# Runs, threads and graphs


def test_a_failed_model_ends_the_run_and_the_next_question_of_the_thread_is_another_run(played: Sandbox) -> None:
    model = ScriptedModel(script=[ValueError("The model is broken."), "done"])
    agent = create_agent(model, [], middleware=[MulliganMiddleware()], checkpointer=InMemorySaver())
    with pytest.raises(ValueError, match="broken"):
        agent.invoke(QUESTION, THREAD)
    assert agent.invoke(QUESTION, THREAD)["messages"][-1].text == "done"
    assert statuses(played) == ["failure", "success"]
    assert {history.run.session for history in played.runs} == {"1"}
    assert [history.run.context for history in played.runs] == ["Find fish.", "Find fish."]


def test_a_run_that_another_part_of_the_graph_ends_is_abandoned_at_the_next_question(played: Sandbox) -> None:
    _, fetch = failing_fetch(0)
    model = ScriptedModel(script=[*[FETCH] * 9, "done"])
    agent = create_agent(model, [fetch], middleware=[MulliganMiddleware()], checkpointer=InMemorySaver())
    with pytest.raises(Exception, match="ecursion limit"):
        agent.invoke(QUESTION, {**THREAD, "recursion_limit": 5})
    model.script[:] = ["done"]
    agent.invoke(QUESTION, THREAD)
    assert [history.run.end_reason for history in played.runs] == ["abandoned", "finished"]


def test_infra_error_ends_the_run(played: Sandbox) -> None:
    def fetch(url: str) -> str:
        """Fetch a page."""
        raise mulligan.InfraError("The network is down.")

    with pytest.raises(mulligan.InfraError):
        invoke(build_agent([as_tool(fetch)], [FETCH, "done"]))
    (history,) = played.runs
    assert history.run.end_reason == "raised"


@STYLES
def test_an_agent_that_is_a_tool_belongs_to_the_run_of_its_caller(played: Sandbox, style: str) -> None:
    _, fetch = failing_fetch(1)
    inner = build_agent([fetch], [FETCH, "inner answer"], [MulliganMiddleware(agent="inner", **NO_EFFECTS)])

    @tool
    def research(topic: str) -> str:
        """Research a topic."""
        return str(inner.invoke(QUESTION)["messages"][-1].text)

    messages = invoke(build_agent([research], [[Request("research", {"topic": "fish"})], "done"]), style)
    assert answers_of(messages) == ["inner answer"]
    (history,) = played.runs
    assert history.run.agent == "tester"
    assert sorted(step.name for step in history.steps if step.type == "tool") == ["fetch", "fetch", "research"]
    assert statuses(played) == ["recovered"]


def test_an_agent_that_is_a_node_has_a_run_of_its_own_in_the_session_of_the_thread(played: Sandbox) -> None:
    _, fetch = failing_fetch(0)
    builder = StateGraph(MessagesState)
    builder.add_node("first", build_agent([fetch], [FETCH, "one"]))
    builder.add_node("second", build_agent([fetch], [FETCH, "two"]))
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    graph: Any = builder.compile(checkpointer=InMemorySaver())
    graph.invoke(QUESTION, THREAD)
    assert [(history.run.end_reason, history.run.session) for history in played.runs] == [("finished", "1")] * 2


def test_a_graph_without_create_agent_uses_the_surrounding_run(played: Sandbox) -> None:
    _, fetch = failing_fetch(1)
    middleware = MulliganMiddleware(**NO_EFFECTS)
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([fetch], wrap_tool_call=middleware.wrap_tool_call))
    builder.add_edge(START, "tools")
    graph: Any = builder.compile()
    request = AIMessage("", tool_calls=[{"name": "fetch", "args": {"url": "a"}, "id": "c1"}])
    with mulligan.run("grapher") as run:
        graph.invoke({"messages": [request]})
    assert run.status == "recovered"
    graph.invoke({"messages": [request]})  # without one, each call is a run
    assert [history.run.agent for history in played.runs] == ["grapher", ""]
    assert [history.run.end_reason for history in played.runs] == ["finished", "finished"]


def test_one_object_serves_several_agents_and_one_agent_takes_only_one(played: Sandbox) -> None:
    middleware = MulliganMiddleware(agent="shared")
    _, fetch = failing_fetch(0)
    for _ in range(2):
        invoke(build_agent([fetch], [FETCH, "done"], [middleware]))
    assert [history.run.agent for history in played.runs] == ["shared", "shared"]
    with pytest.raises(AssertionError, match="duplicate middleware"):
        build_agent([fetch], [], [MulliganMiddleware(), MulliganMiddleware()])


def test_events_of_a_stream_show_the_answer_of_mulligan(played: Sandbox) -> None:
    tools = Tools()
    search = as_tool(tools.functions("search")[0])
    agent = build_agent([search], [[Request("search", {"query": "fish", "top_k": 50})], "done"], **NO_EFFECTS)

    async def play() -> list[Any]:
        return [event async for event in agent.astream_events(QUESTION, version="v2")]

    events = asyncio.run(play())
    assert events[-1]["event"] == "on_chain_end"
    assert "50 -> 10" in answers_of(events[-1]["data"]["output"]["messages"])[0]
    assert statuses(played) == ["recovered"]


def test_a_person_rejects_a_call_and_the_run_continues(played: Sandbox) -> None:
    tools, fetch = failing_fetch(0)
    approval = HumanInTheLoopMiddleware(interrupt_on={"fetch": True})
    model = ScriptedModel(script=[FETCH, "done"])
    middleware: list[Any] = [MulliganMiddleware(), approval]
    agent = create_agent(model, [fetch], middleware=middleware, checkpointer=InMemorySaver())
    assert "__interrupt__" in agent.invoke(QUESTION, THREAD)
    agent.invoke(Command(resume={"decisions": [{"type": "reject", "message": "No."}]}), THREAD)
    assert tools.calls == []
    assert statuses(played) == ["success"]
    assert [history.run.end_reason for history in played.runs] == ["finished"]


def test_structured_output_is_returned_and_no_tool(played: Sandbox) -> None:
    class Weather(BaseModel):
        """The weather."""

        degrees: int

    model = ScriptedModel(script=[[Request("Weather", {"degrees": 21})]])
    agent: Any = create_agent(model, [], middleware=[MulliganMiddleware()], response_format=ToolStrategy(Weather))
    assert agent.invoke(QUESTION)["structured_response"] == Weather(degrees=21)
    assert [step.type for step in played.steps] == ["model"]
    assert statuses(played) == ["success"]


# What the model reads


def test_failures_from_before_a_summary_reach_the_next_request(played: Sandbox) -> None:
    _, fetch = failing_fetch(2, lambda: RuntimeError("The index is corrupt."))
    summarizer = SummarizationMiddleware(
        ScriptedModel(script=["We talked."] * 9), trigger=("messages", 4), keep=("messages", 1)
    )
    model = ScriptedModel(script=[FETCH, [Request("fetch", {"url": "b"})], "done", "again"])
    middleware: list[Any] = [MulliganMiddleware(), summarizer]
    agent = create_agent(model, [fetch], middleware=middleware, checkpointer=InMemorySaver(), system_prompt="Be brief.")
    agent.invoke(QUESTION, THREAD)
    compacted = next(number for number, sent in enumerate(model.sent) if "We talked." in sent)
    assert not any("index is corrupt" in sent.split("Find fish.")[0] for sent in model.sent[:compacted])
    assert "index is corrupt" in model.sent[compacted].split("We talked.")[0]
    assert model.sent[compacted].startswith("Be brief.\n\n")
    compactions = [event for event in played.events if event.name == "context.compacted"]
    agent.invoke({"messages": [HumanMessage("And now?")]}, THREAD)
    later = [event for event in played.events if event.name == "context.compacted"]
    summaries = sum(message.additional_kwargs.get("lc_source") == "summarization" for message in _messages(agent))
    assert summaries == 1
    assert len(later) <= len(compactions) + 1, "a summary counts once"


def _messages(agent: Any) -> list[Any]:
    return list(agent.get_state(THREAD).values["messages"])


def test_lessons_are_added_to_the_system_prompt_on_request(played: Sandbox) -> None:
    _, fetch = failing_fetch(0)
    invoke(build_agent([fetch], [FETCH, "done"]))
    mulligan.flush(30)
    taught.prove(played.store, 1_700_000_000_000, "fetch")
    prompt = SystemMessage([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])
    for inject, is_expected in ((False, False), (400, True)):
        model = ScriptedModel(script=["done"])
        middleware: list[Any] = [MulliganMiddleware(inject_lessons=inject)]
        invoke(create_agent(model, [fetch], middleware=middleware, system_prompt=prompt))
        assert ("use k=10" in model.sent[0]) is is_expected
        assert "Be brief." in model.sent[0]


def test_tokens_and_messages_of_a_model_are_recorded(played: Sandbox) -> None:
    usage = {"input_tokens": 12, "output_tokens": 3, "total_tokens": 15}
    answer = AIMessage("done", usage_metadata=usage)
    invoke(build_agent([], [answer], model={"record": "full"}))
    (step,) = played.steps
    assert step.tokens == {"input": 12, "output": 3}
    assert "Find fish." in repr(played.runs[0])


def test_a_fallback_answers_for_the_model(played: Sandbox) -> None:
    options = {"model": {"fallback_models": [Fallback(lambda messages, **settings: AIMessage("from another model"))]}}
    agent = build_agent([], [RateLimitError("Too many requests") for _ in range(9)], **options)
    assert invoke(agent)[-1].text == "from another model"
    with pytest.raises(SettingsError, match="fallback model"):
        MulliganMiddleware(model={"fallback_models": ["gpt-4.1"]})


# Safety


@STYLES
def test_everything_passes_through_while_mulligan_is_off(style: str) -> None:
    with sandbox(enabled=False) as played:
        _, fetch = failing_fetch(1)
        with pytest.raises(RateLimitError):
            invoke(build_agent([fetch], [FETCH, "done"]), style)
        agent = build_agent([fetch], [FETCH, [Request("serch", {})], "done"])
        first, second = answers_of(invoke(agent, style))
        assert first == "page of a"
        assert "not a valid tool" in second
        assert played.steps == []


def test_a_tool_with_a_schema_that_cannot_be_read_works(played: Sandbox) -> None:
    class Odd(StructuredTool):
        @property
        def tool_call_schema(self) -> Any:
            raise RuntimeError("no schema")

    def search(query: str) -> str:
        """Search."""
        return f"found {query}"

    odd = Odd.from_function(search)
    assert answers_of(invoke(build_agent([odd], [[Request("search", {"query": "a"})], "done"]))) == ["found a"]


def test_langgraph_control_flow_is_known() -> None:
    from langgraph.errors import GraphInterrupt

    from mulligan.capture.framework_classes import CONTROL_FLOW

    assert {class_name(base) for base in GraphInterrupt.__mro__} & CONTROL_FLOW


# The page


def test_the_code_of_the_page_runs(played: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert blocks
    for block in blocks:
        model = ScriptedModel(script=[[Request("search", {"query": "fish", "topk": 3})], "done", "done", "done"])
        names: dict[str, Any] = {"model": model, "__name__": "page"}
        exec(block, names)
    assert json.dumps(statuses(played)).count("recovered") == len(blocks)


@STYLES
@pytest.mark.parametrize("case", CASES, ids=lambda case: ",".join(case.obedient))
def test_trusted_reflector_that_obeys_an_error_changes_nothing(case: HostileCase, style: str) -> None:
    reflector = ObedientReflector()
    reflector.case = case
    received: list[dict[str, Any]] = []

    def act(**arguments: Any) -> str:
        received.append(arguments)
        raise mulligan.AgentError(case.error, code="invalid_arguments")

    async def aact(**arguments: Any) -> str:
        return act(**arguments)

    functions: dict[str, Any] = {"func": act} if style == "sync" else {"coroutine": aact}
    act_tool = StructuredTool(name="act", description="Acts.", args_schema=SCHEMA, **functions)
    with sandbox(reflect=reflector) as played:
        with mulligan.run("first"):  # the store opens with the first record
            pass
        assert played.components.recorder.flush(10)
        for key in ("act", f"{__name__}:{act.__qualname__}", f"{__name__}:{aact.__qualname__}"):
            trust_completely(played.components.key_value_store, key)
        model = ScriptedModel(script=[[Request("act", case.arguments)], "done"])
        middleware: Any = MulliganMiddleware(agent="tester", **NO_EFFECTS)
        agent = create_agent(model, [act_tool], middleware=[middleware])
        if style == "sync":
            agent.invoke(QUESTION)
        else:
            asyncio.run(agent.ainvoke(QUESTION))
    assert reflector.requests == 1
    assert received == [case.arguments]


@STYLES
def test_model_reads_the_suggestion_of_a_reflector_and_what_successful_calls_had_in_common(style: str) -> None:
    requests: list[str] = []

    def reflect(text: str) -> Any:
        requests.append(text)
        return {"arguments": {"city": "Oslo", "days": 7}, "reason": "a week", "confidence": 0.9}

    def forecast(city: str, days: int) -> str:
        """Forecast the weather."""
        if days > 7:
            raise mulligan.AgentError("Invalid days.", code="invalid_arguments")
        return "sun"

    tools = [StructuredTool.from_function(forecast), draw]
    with sandbox(reflect=reflect) as played:
        for days in (1, 2, 4):
            invoke(build_agent(tools, [[Request("forecast", {"city": "Oslo", "days": days})] * 8, "done"]), style)
        assert played.components.recorder.flush(10)
        messages = invoke(build_agent(tools, [[Request("forecast", {"city": "Oslo", "days": 30})], "done"]), style)
    (answer,) = answers_of(messages)
    assert "Change days from 30 to 7 (suggested by your reflection model, not verified)." in answer
    assert "In 24 successful calls, days was between 1 and 4." in answer
    (request,) = requests
    assert "In 24 successful calls, days was between 1 and 4." in request
    assert "Other tools: draw" in request
