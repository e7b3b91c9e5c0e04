"""What is special in the adapter for the OpenAI Agents SDK. The scenarios of all adapters are in `test_adapters.py`."""

# No `from __future__ import annotations`: the SDK reads the types of tools inside tests.

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest
import taught

pytest.importorskip("agents")

from agents.mcp import MCPServer
from agents.retry import ModelRetrySettings, retry_policies
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from frameworks.openai_agents_driver import CONFIG, own_event_loop, script_model
from frameworks.scenarios import NO_EFFECTS, RateLimitError, Request, UnstatedRateLimitError, failure_of
from mcp.types import CallToolResult, TextContent, Tool

import agents
import mulligan
from agents import (
    Agent,
    FunctionTool,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelProvider,
    ModelResponse,
    ModelSettings,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    RunState,
    SQLiteSession,
    ToolOutputImage,
    Usage,
    UserError,
    function_tool,
    handoff,
)
from mulligan.core.run_links import derive_status
from mulligan.integrations.openai_agents import MulliganRunner
from mulligan.testing import Sandbox, sandbox

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the SDK are its own
MARK = "a row of the database"
PAGE = Path(__file__).parents[2] / "docs" / "frameworks" / "openai_agents.md"
TOP_K = Annotated[int, pydantic.Field(le=10)]


@dataclass
class Database:
    rows: list[str] = field(default_factory=lambda: [MARK] * 50)


@function_tool
@mulligan.tool(effects="none")
def search(query: str, top_k: TOP_K = 5, language: str | None = None) -> str:
    """Search the index."""
    return f"{top_k} results for {query}"


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def make_agent(script: Sequence[Any], *tools: Any, name: str = "tester", **settings: Any) -> Agent[Any]:
    return Agent(name, tools=list(tools), model=script_model(script), **settings)


def play(agent: Agent[Any], runner: MulliganRunner | None = None, input: Any = "Find fish.", **options: Any) -> Any:
    return asyncio.run((runner or MulliganRunner()).run(agent, input, **{"run_config": CONFIG} | options))


def answers_of(result: Any) -> list[str]:
    return [item["output"] for item in result.to_input_list() if item.get("type") == "function_call_output"]


def tool_steps(played: Sandbox) -> list[tuple[str, str]]:
    return [(step.name, step.outcome) for step in played.steps if step.type == "tool"]


def statuses(played: Sandbox) -> list[str]:
    return [derive_status(history.run, history.steps, history.links) for history in played.runs]


# Tools


def test_the_context_is_no_argument_and_no_part_of_the_schema_or_the_record(played: Sandbox) -> None:
    @function_tool
    def find(context: RunContextWrapper[Database], query: str, top_k: TOP_K = 5) -> str:
        """Find rows."""
        return f"{len(context.context.rows)} rows, {top_k} about {query}"

    agent = make_agent([[Request("find", {"query": "fish", "top_k": 50})], "done"], find)
    result = play(agent, MulliganRunner(**NO_EFFECTS), context=Database())
    assert "50 rows, 10 about fish" in answers_of(result)[0]
    assert [step.arguments for step in played.steps if step.type == "tool"] == [
        {"query": "fish", "top_k": 50},
        {"query": "fish", "top_k": 10},
    ]
    assert MARK not in repr(played.events) + repr(played.runs)


def test_arguments_with_a_default_may_be_missing_in_spite_of_the_strict_schema(played: Sandbox) -> None:
    assert search.params_json_schema["required"] == ["query", "top_k", "language"]
    result = play(make_agent([[Request("search", {"query": "fish"})], "done"], search))
    assert answers_of(result) == ["5 results for fish"]
    assert tool_steps(played) == [("search", "success")]


def test_arguments_that_are_almost_json_are_parsed(played: Sandbox) -> None:
    request = function_call("search", "```json\n{'query': 'fish'}\n```", call_id="call_1")
    model = ScriptedModel([[request], [assistant_message("done")]])
    result = play(Agent("tester", tools=[search], model=model))
    assert "5 results for fish" in answers_of(result)[0]
    assert statuses(played) == ["recovered"]


def test_an_error_that_the_sdk_masks_is_answered_with_kind_and_hint(played: Sandbox) -> None:
    @function_tool
    def find(query: str) -> str:
        """Find rows."""
        raise FileNotFoundError(2, "No such file or directory", "index.db")

    result = play(make_agent([[Request("find", {"query": "fish"})], "done"], find))
    failure = failure_of(answers_of(result)[0])
    assert failure["code"] == "file_not_found"
    assert "index.db" in failure["message"]
    assert "An error occurred" not in answers_of(result)[0]


def test_the_text_of_the_tools_own_error_function_stays(played: Sandbox) -> None:
    async def describe(context: RunContextWrapper[Any], error: Exception) -> str:
        return f"Call 555 instead: {type(error).__name__}"

    @function_tool(failure_error_function=describe)
    def find(query: str) -> str:
        """Find rows."""
        raise ConnectionRefusedError("The index is down.")

    answer = json.loads(answers_of(play(make_agent([[Request("find", {"query": "fish"})], "done"], find)))[0])
    assert answer["result"] == "Call 555 instead: ConnectionRefusedError"
    assert answer["mulligan"]["code"] == "connection_error"


def test_a_tool_that_is_to_raise_its_errors_ends_the_run_after_its_retries(played: Sandbox) -> None:
    calls = []

    @function_tool(failure_error_function=None)
    def find(query: str) -> str:
        """Find rows."""
        calls.append(query)
        raise RateLimitError("Too many requests")

    agent = make_agent([[Request("find", {"query": "fish"})], "done"], find)
    with pytest.raises(UserError) as raised:
        play(agent, MulliganRunner(tools={"find": {"effects": "none"}}))
    assert isinstance(raised.value.__cause__, RateLimitError)
    assert len(calls) == 3
    assert statuses(played) == ["failure"]


@pytest.mark.parametrize("behavior", ["error_as_result", "raise_exception"])
def test_the_timeout_of_a_tool_is_a_timeout_of_each_attempt(played: Sandbox, behavior: Any) -> None:
    calls = []

    @function_tool(timeout=0.05, timeout_behavior=behavior)
    async def find(query: str) -> str:
        """Find rows."""
        calls.append(query)
        if len(calls) == 1 or behavior == "raise_exception":
            await asyncio.sleep(60)
        return "50 rows"

    agent = make_agent([[Request("find", {"query": "fish"})], "done"], find)
    runner = MulliganRunner(tools={"find": {"effects": "none"}})
    if behavior == "raise_exception":
        with pytest.raises(agents.ToolTimeoutError):
            play(agent, runner)
        assert len(calls) == 3
    else:
        assert "50 rows" in answers_of(play(agent, runner))[0]
        assert statuses(played) == ["recovered"]
    assert str(next(step.failure.kind for step in played.steps if step.failure)) == "tool/timeout"


def test_a_note_does_not_replace_an_image(played: Sandbox) -> None:
    @function_tool
    def draw(size: TOP_K) -> ToolOutputImage:
        """Draw a picture."""
        return ToolOutputImage(image_url=f"https://example.org/{size}.png")

    model = script_model([[Request("draw", {"size": 50})], "done"])
    play(Agent("tester", tools=[draw], model=model), MulliganRunner(**NO_EFFECTS))
    (answer,) = [item for item in model.calls[1].input if item.get("type") == "function_call_output"]
    image, note = answer["output"]
    assert image["image_url"] == "https://example.org/10.png"
    assert "50 -> 10" in note["text"]


@pytest.mark.parametrize("behavior", ["stop_on_first_tool", {"stop_at_tool_names": ["search"]}, "run_llm_again"])
def test_a_note_does_not_reach_the_user(played: Sandbox, behavior: Any) -> None:
    script = [[Request("search", {"query": "fish", "top_k": 50})], "done"]
    result = play(make_agent(script, search, tool_use_behavior=behavior))
    is_final = behavior != "run_llm_again"
    assert result.final_output == ("10 results for fish" if is_final else "done")
    assert statuses(played) == ["recovered"]


def test_a_number_of_another_type_is_repaired(played: Sandbox) -> None:
    async def invoke(context: Any, arguments: str) -> str:
        return arguments

    schema = {"type": "object", "properties": {"top_k": {"type": "integer", "maximum": 10}}, "required": ["top_k"]}
    tool = FunctionTool("find", "Find rows.", schema, invoke, strict_json_schema=False)
    result = play(make_agent([[Request("find", {"top_k": "7"})], "done"], tool))
    assert '{\\"top_k\\": 7}' in answers_of(result)[0]


def test_an_infrastructure_error_ends_the_run(played: Sandbox) -> None:
    @function_tool
    def find(query: str) -> str:
        """Find rows."""
        raise mulligan.InfraError("The license has expired.")

    with pytest.raises(UserError, match="license"):
        play(make_agent([[Request("find", {"query": "fish"})], "done"], find))
    assert statuses(played) == ["failure"]


def test_a_tool_without_a_function_of_the_sdk_is_recovered(played: Sandbox) -> None:
    async def invoke(context: RunContextWrapper[Any], arguments: str) -> str:
        if json.loads(arguments)["top_k"] > 10:
            raise ValueError("never called with it")
        return f"{arguments} {type(context).__name__}"

    schema = {"type": "object", "properties": {"top_k": {"type": "integer", "maximum": 10}}, "required": ["top_k"]}
    tool = FunctionTool("find", "Find rows.", schema, invoke, strict_json_schema=False)
    result = play(make_agent([[Request("find", {"top_k": 50})], "done"], tool), MulliganRunner(**NO_EFFECTS))
    assert '{\\"top_k\\": 10} RunContextWrapper' in answers_of(result)[0]


class Server(MCPServer):
    """A server whose only tool answers with the next of these results."""

    name = "index"

    def __init__(self, *results: Any) -> None:
        super().__init__(custom_data_extractor=lambda result: {"rows": 50})
        self.results = list(results)
        self.calls: list[Any] = []

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Tool]:
        schema = {"type": "object", "properties": {"top_k": {"type": "integer", "maximum": 10}}}
        return [Tool(name="find", input_schema=schema)]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> CallToolResult:
        self.calls.append(arguments)
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        is_error = result.startswith("Error")
        return CallToolResult(content=[TextContent(type="text", text=result)], is_error=is_error)

    async def list_prompts(self) -> Any: ...

    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...


def test_tools_of_an_mcp_server_are_recovered(played: Sandbox) -> None:
    server = Server(ConnectionRefusedError("The server is down."), "10 rows")
    request = Request("find", {"top_k": 50})
    agent = make_agent([[request], [request], "done"], mcp_servers=[server])
    failed, (content, note) = answers_of(play(agent, MulliganRunner(tools={"find": {"clamp": ["top_k"]}})))
    assert failure_of(failed)["code"] == "connection_error"
    assert content["text"] == "10 rows"
    assert "50 -> 10" in note["text"]
    assert server.calls == [{"top_k": 10}, {"top_k": 10}]


@pytest.mark.parametrize("mode", ["repair", "observe"])
def test_an_error_that_an_mcp_server_returns_is_a_failure(played: Sandbox, mode: Any) -> None:
    server = Server("Error executing tool find: order 7 not found")
    agent = make_agent([[Request("find", {"top_k": 5})], "done"], mcp_servers=[server])
    result = play(agent, MulliganRunner(mode=mode))
    (answer,) = answers_of(result)
    if mode == "repair":
        assert failure_of(answer)["code"] == "not_found"
        assert "order 7" in answer
    else:
        assert answer == [{"type": "input_text", "text": "Error executing tool find: order 7 not found"}]
    assert [str(step.failure.kind) for step in played.steps if step.failure] == ["tool/not_found"]
    assert [item.custom_data for item in result.new_items if item.type == "tool_call_output_item"] == [{"rows": 50}]


def test_a_tool_for_programs_is_left_alone(played: Sandbox) -> None:
    @function_tool(allowed_callers=["direct", "programmatic"], output_json_schema={"type": "object"})
    def count(word: str) -> dict[str, int]:
        """Count a word."""
        return {word: 1}

    assert count.output_json_schema is not None
    assert MulliganRunner().protect(make_agent([], count)).tools == [count]


def test_the_programs_own_text_about_an_unknown_tool_stays(played: Sandbox) -> None:
    config = RunConfig(tracing_disabled=True, tool_error_formatter=lambda error: f"There is only search: {error.kind}")
    agent = make_agent([[Request("serch", {"query": "fish"})], "done"], search)
    answer = json.loads(answers_of(play(agent, run_config=config))[0])
    assert answer["result"] == "There is only search: tool_not_found"
    assert answer["mulligan"]["suggestions"] == ["Did you mean search?"]


def test_a_similar_name_is_no_way_around_an_approval(played: Sandbox) -> None:
    result = play(make_agent([[Request("functions.pay", {"amount": 5})], "done"], pay))
    assert failure_of(answers_of(result)[0])["code"] == "unknown_tool"
    assert [step.arguments for step in played.steps if step.type == "tool"] == [{"amount": 5}]


# Approvals


def test_an_approved_call_is_not_changed(played: Sandbox) -> None:
    @function_tool(needs_approval=True)
    def find(query: str, top_k: TOP_K = 5) -> str:
        """Find rows."""
        return f"{top_k} rows"

    runner = MulliganRunner(**NO_EFFECTS)
    agent = make_agent([[Request("find", {"query": "fish", "top_k": 50})], "done"], find)
    state = play(agent, runner).to_state()
    state.approve(state.get_interruptions()[0])
    failure = failure_of(answers_of(play(agent, runner, state))[0])
    assert failure["code"] == "invalid_arguments"
    assert any("10" in suggestion for suggestion in failure["suggestions"])
    assert [history.run.end_reason for history in played.runs] == ["finished"]


@pytest.mark.parametrize(("arguments", "is_asked"), [({"n": 5}, False), ({"n": 500}, True), ({"n": "500"}, True)])
def test_arguments_that_validation_changes_still_need_an_approval(
    played: Sandbox, arguments: dict[str, Any], is_asked: bool
) -> None:
    async def is_large(context: Any, parameters: dict[str, Any], call_id: str) -> bool:
        return isinstance(parameters["n"], int) and parameters["n"] > 100

    @function_tool(needs_approval=is_large)
    def count(n: int) -> str:
        """Count."""
        return f"counted {n}"

    result = play(make_agent([[Request("count", arguments)], "done"], count))
    assert bool(result.interruptions) is is_asked


def test_a_rejected_approval_is_answered_as_without_mulligan(played: Sandbox) -> None:
    config = RunConfig(tracing_disabled=True, tool_error_formatter=lambda error: f"No: {error.kind}")
    runner, agent = MulliganRunner(), make_agent([[Request("pay", {"amount": 5})], "done"], pay)
    state = play(agent, runner).to_state()
    state.reject(state.get_interruptions()[0])
    assert answers_of(play(agent, runner, state, run_config=config)) == ["No: approval_rejected"]
    assert [history.run.end_reason for history in played.runs] == ["finished"]


def test_a_streamed_run_is_paused_and_resumed(played: Sandbox) -> None:
    runner, agent = MulliganRunner(), make_agent([[Request("pay", {"amount": 5})], "done"], pay)

    async def stream(input: Any) -> Any:
        result = runner.run_streamed(agent, input, run_config=CONFIG)
        async for _ in result.stream_events():
            pass
        return result

    async def resume() -> Any:
        state = (await stream("Pay.")).to_state()
        assert [history.run.end_reason for history in played.runs] == [None]
        state.approve(state.get_interruptions()[0])
        return await stream(state)

    assert answers_of(asyncio.run(resume())) == ["paid 5"]
    assert [history.run.end_reason for history in played.runs] == ["finished"]


@pytest.mark.parametrize("link", [lambda agent: agent, handoff], ids=["agent", "handoff"])
def test_a_run_continues_after_a_handoff_and_a_state_from_json(played: Sandbox, link: Any) -> None:
    script = [
        [Request("transfer_to_billing", {})],
        [Request("pay", {"amount": 5})],
        [Request("search", {"query": "fish", "top_k": 50})],
        "done",
    ]
    model = script_model(script)
    billing: Agent[Any] = Agent("billing", tools=[pay, search], model=model)
    triage: Agent[Any] = Agent("triage", handoffs=[link(billing)], model=model)
    billing.handoffs.append(triage)
    runner = MulliganRunner()

    async def resume() -> Any:
        paused = await runner.run(triage, "Pay.", run_config=CONFIG)
        state: Any = await RunState.from_string(runner.protect(triage), paused.to_state().to_string())
        state.approve(state.get_interruptions()[0])
        return await runner.run(triage, state, run_config=CONFIG)

    result = asyncio.run(resume())
    assert result.last_agent.name == "billing"
    assert tool_steps(played) == [("pay", "success"), ("search", "failure"), ("search", "success")]
    assert statuses(played) == ["recovered"]
    assert [history.run.agent for history in played.runs] == ["triage"]


def test_the_calls_of_an_agent_that_is_a_tool_are_recovered_in_the_same_run(played: Sandbox) -> None:
    runner = MulliganRunner()
    inner = make_agent([[Request("search", {"query": "fish", "top_k": 50})], [Request("pay", {"amount": 5})], "paid"],
                       search, pay, name="inner")  # fmt: skip
    outer = make_agent(
        [[Request("ask", {"input": "Pay."})], "done"], runner.protect(inner).as_tool("ask", "Ask."), name="outer"
    )
    state = play(outer, runner).to_state()
    state.approve(state.get_interruptions()[0])
    assert answers_of(play(outer, runner, state)) == ["paid"]
    assert sorted(tool_steps(played)) == [
        ("ask", "cancelled"),
        ("ask", "success"),
        ("pay", "success"),
        ("search", "failure"),
        ("search", "success"),
    ]
    assert statuses(played) == ["recovered"]


def test_a_protected_agent_and_its_copies_are_not_protected_twice(played: Sandbox) -> None:
    runner = MulliganRunner()
    agent = runner.protect(make_agent([[Request("search", {"query": "fish"})], "done"], search))
    assert runner.protect(agent) is agent
    play(agent.clone(instructions="Be brief."), runner)
    assert [step.type for step in played.steps] == ["model", "tool", "model"]


def test_the_agent_of_the_program_stays_unchanged(played: Sandbox) -> None:
    agent = make_agent(["done"], search)
    tools, model = list(agent.tools), agent.model
    play(agent)
    assert agent.tools == tools
    assert agent.model is model


# Runs


@pytest.mark.parametrize("is_streamed", [False, True])
def test_exceeded_turns_are_a_failure_of_the_run(played: Sandbox, is_streamed: bool) -> None:
    agent, runner = make_agent([[Request("search", {"query": "fish"})]] * 3, search), MulliganRunner()

    async def exceed() -> None:
        if not is_streamed:
            await runner.run(agent, "Find fish.", max_turns=2, run_config=CONFIG)
        result = runner.run_streamed(agent, "Find fish.", max_turns=2, run_config=CONFIG)
        async for _ in result.stream_events():
            pass

    with pytest.raises(MaxTurnsExceeded):
        asyncio.run(exceed())
    assert statuses(played) == ["failure"]


def test_a_cancelled_stream_abandons_the_run(played: Sandbox) -> None:
    async def cancel() -> None:
        agent = make_agent([[Request("search", {"query": "fish"})], "done"], search)
        result = MulliganRunner().run_streamed(agent, "Find fish.", run_config=CONFIG)
        result.cancel()
        async for _ in result.stream_events():
            pass

    asyncio.run(cancel())
    assert [history.run.end_reason for history in played.runs] == ["abandoned"]


@pytest.mark.parametrize(
    "options",
    [{"session": SQLiteSession("chat-7")}, {"run_config": RunConfig(group_id="chat-7", tracing_disabled=True)}],
    ids=["session", "group"],
)
def test_the_session_of_the_sdk_is_the_session_of_the_run(played: Sandbox, options: Any) -> None:
    play(make_agent(["done"]), **options)
    (history,) = played.runs
    assert history.run.session == "chat-7"
    assert history.run.context == "Find fish."


def test_runs_of_one_agent_at_the_same_time_are_separate(played: Sandbox) -> None:
    def answer(call: Any) -> Any:
        if any(item.get("type") == "function_call_output" for item in call.input):
            return [assistant_message(call.input[0]["content"])]
        arguments = json.dumps({"query": call.input[0]["content"], "top_k": 50})
        return [function_call("search", arguments, call_id="call_1")]

    runner = MulliganRunner()
    model = ScriptedModel([ModelStep.respond(answer) for _ in range(12)])
    agent: Agent[Any] = Agent("tester", tools=[search], model=model)
    words = ["fish", "bird", "cat"]

    async def run() -> list[str]:
        protected = runner.protect(agent)
        runs = [runner.run(target, word, run_config=CONFIG) for target in (agent, protected) for word in words]
        return [result.final_output for result in await asyncio.gather(*runs)]

    assert asyncio.run(run()) == words * 2
    assert sorted(str(history.run.context) for history in played.runs) == sorted(words * 2)
    assert statuses(played) == ["recovered"] * 6
    for history in played.runs:
        queries = {step.arguments["query"] for step in history.steps if step.type == "tool"}
        assert queries == {history.run.context}


def test_a_plain_runner_records_the_calls_of_a_protected_agent(played: Sandbox) -> None:
    agent = MulliganRunner().protect(make_agent([[Request("search", {"query": "fish", "top_k": 50})], "done"], search))
    with mulligan.run("program") as run:
        asyncio.run(Runner.run(agent, "Find fish.", run_config=CONFIG))
    assert run.status == "recovered"
    assert [history.run.agent for history in played.runs] == ["program"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_while_mulligan_is_off_everything_is_as_without_it(is_streamed: bool) -> None:
    @function_tool
    def find(query: str) -> str:
        """Find rows."""
        raise ValueError("A secret of the program.")

    async def run(runner: Any, script: Any) -> Any:
        agent = make_agent(script, find)
        if not is_streamed:
            return await runner.run(agent, "Find fish.", run_config=CONFIG)
        result = runner.run_streamed(agent, "Find fish.", run_config=CONFIG)
        async for _ in result.stream_events():
            pass
        return result

    with sandbox(enabled=False) as played:
        script = [[Request("find", {"query": "fish"})], [Request("find", {"qeury": "fish"})], "done"]
        plain, result = (asyncio.run(run(runner, script)) for runner in (Runner, MulliganRunner()))
        assert answers_of(result) == answers_of(plain)
        with pytest.raises(ModelBehaviorError, match="not found in agent"):
            asyncio.run(run(MulliganRunner(), [[Request("fnd", {"query": "fish"})], "done"]))
        assert played.runs == []


class EventLog(RunHooks[Any]):
    """Notes what the SDK tells a program."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        self.events.append(("start", agent.name))

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        self.events.append(("end", agent.name, output))

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        self.events.append((tool.name, context.tool_arguments, result))

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: str | None, input_items: Any) -> None:
        self.events.append(("model", system_prompt, len(input_items)))


class Total(pydantic.BaseModel):
    number: int


@pytest.mark.parametrize("tripped", ["", "input", "output"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_works_is_as_without_mulligan(played: Sandbox, is_streamed: bool, tripped: str) -> None:
    @function_tool
    def count(word: str) -> dict[str, int]:
        """Count a word."""
        return {word: 1}

    @agents.input_guardrail
    async def check_input(context: Any, agent: Any, input: Any) -> Any:
        return agents.GuardrailFunctionOutput(None, tripwire_triggered=tripped == "input")

    @agents.output_guardrail
    async def check_output(context: Any, agent: Any, output: Any) -> Any:
        return agents.GuardrailFunctionOutput(None, tripwire_triggered=tripped == "output")

    async def run(runner: Any) -> Any:
        requests = [Request("count", {"word": "fish"}), Request("count", {"word": "bird"})]
        model = script_model([[Request("transfer_to_counter", {})], requests, '{"number": 2}'])
        counter: Agent[Any] = Agent("counter", instructions=lambda context, agent: f"I am {agent.name}.", tools=[count],
                                    model=model, output_type=Total, output_guardrails=[check_output])  # fmt: skip
        link: Any = handoff(counter, input_filter=lambda data: data)
        agent: Agent[Any] = Agent("tester", handoffs=[link], model=model, input_guardrails=[check_input])
        log, types = EventLog(), []
        try:
            if is_streamed:
                result = runner.run_streamed(agent, "Count.", hooks=log, run_config=CONFIG)
                types = [event.type async for event in result.stream_events()]
            else:
                result = await runner.run(agent, "Count.", hooks=log, run_config=CONFIG)
        except agents.AgentsException as error:
            return log.events, type(error)
        return log.events, types, result.final_output, result.to_input_list(), result.context_wrapper.usage

    assert asyncio.run(run(MulliganRunner())) == asyncio.run(run(Runner))
    assert statuses(played) == ["failure" if tripped else "success"]


# Models


class Provider(ModelProvider):
    def __init__(self, model: Any) -> None:
        self.model = model

    def get_model(self, model_name: str | None) -> Any:
        return self.model


def test_a_model_by_name_comes_from_the_provider_of_the_program(played: Sandbox) -> None:
    config = {"model_provider": Provider(script_model([RateLimitError("Slow down"), "done"])), "tracing_disabled": True}
    agent: Agent[Any] = Agent("tester", model="large")
    assert play(agent, run_config=config).final_output == "done"
    assert [step.outcome for step in played.steps] == ["failure", "success"]
    assert statuses(played) == ["recovered"]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("is_own", [False, True])
def test_a_provider_is_closed_if_the_program_has_none(
    played: Sandbox, monkeypatch: pytest.MonkeyPatch, is_own: bool, is_streamed: bool
) -> None:
    closed: list[Any] = []

    async def aclose(self: Any) -> None:
        closed.append(self)

    monkeypatch.setattr(agents.MultiProvider, "aclose", aclose)
    settings: dict[str, Any] = {"run_config": {"model_provider": agents.MultiProvider()}} if is_own else {}

    async def run() -> None:
        agent, runner = make_agent(["done"]), MulliganRunner()
        if not is_streamed:
            await runner.run(agent, "Find fish.", **settings)
            return
        async for _ in runner.run_streamed(agent, "Find fish.", **settings).stream_events():
            pass
        await asyncio.sleep(0)

    asyncio.run(run())
    assert len(closed) == (0 if is_own else 1)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_retries_of_the_sdk_are_not_multiplied_with_ours(played: Sandbox, is_streamed: bool) -> None:
    errors = [UnstatedRateLimitError("Slow down") for _ in range(20)]
    model = script_model(errors)
    policy = retry_policies.http_status([429])
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=2, backoff={"initial_delay": 0}, policy=policy))
    agent: Agent[Any] = Agent("tester", model=model, model_settings=settings)

    async def run() -> None:
        if not is_streamed:
            await MulliganRunner().run(agent, "Find fish.", run_config=CONFIG)
        result = MulliganRunner().run_streamed(agent, "Find fish.", run_config=CONFIG)
        async for _ in result.stream_events():
            pass

    with pytest.raises(RateLimitError) as raised:
        asyncio.run(run())
    assert len(model.calls) == 8
    assert "8 attempts" in "".join(raised.value.__notes__)
    assert statuses(played) == ["failure"]


def test_the_sdk_retries_what_mulligan_does_not(played: Sandbox) -> None:
    model = script_model([RateLimitError("Slow down"), RateLimitError("Slow down"), "done"])
    policy = retry_policies.http_status([429])
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=2, backoff={"initial_delay": 0}, policy=policy))
    runner = MulliganRunner(model={"policy": mulligan.Policy(attempts=1)})
    agent: Agent[Any] = Agent("tester", model=model, model_settings=settings)
    assert play(agent, runner).final_output == "done"
    assert len(model.calls) == 3
    assert [history.run.end_reason for history in played.runs] == ["finished"]


def test_a_fallback_answers_for_the_model(played: Sandbox) -> None:
    answer = ModelResponse(output=[assistant_message("Ask again later.")], usage=Usage(), response_id=None)
    runner = MulliganRunner(model={"fallback": lambda failure: answer})
    errors = [RateLimitError("Slow down") for _ in range(3)]
    assert play(make_agent(errors), runner).final_output == "Ask again later."


def test_an_error_of_the_model_is_a_failure_of_the_run(played: Sandbox) -> None:
    class AuthenticationError(Exception):
        status_code = 401

    with pytest.raises(AuthenticationError):
        play(make_agent([AuthenticationError("Incorrect API key")]))
    assert statuses(played) == ["failure"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_tokens_and_messages_of_the_model_are_recorded(played: Sandbox, is_streamed: bool) -> None:
    usage = Usage(requests=1, input_tokens=11, output_tokens=7, total_tokens=18)
    model = ScriptedModel([ModelStep(output=[assistant_message("done")], usage=usage)])
    agent: Agent[Any] = Agent("tester", model=model)

    async def run() -> None:
        runner = MulliganRunner(model={"record": "full"}, record="full")
        if not is_streamed:
            await runner.run(agent, "Find fish.", run_config=CONFIG)
            return
        async for _ in runner.run_streamed(agent, "Find fish.", run_config=CONFIG).stream_events():
            pass

    asyncio.run(run())
    (step,) = played.steps
    assert step.tokens == {"input": 11, "output": 7}
    texts = [part.text for history in played.runs for message in history.messages for part in message.parts]
    assert texts[0] == "Find fish."
    assert is_streamed or texts[1] == "done"


def test_lessons_and_reminders_are_added_to_the_instructions(played: Sandbox) -> None:
    taught.prove(played.store, 1_700_000_000_000, "search")
    session = SQLiteSession("chat-7")

    @function_tool
    def find(query: str) -> str:
        """Find rows."""
        raise ValueError("The index is corrupt.")

    runner = MulliganRunner(inject_lessons=400)
    play(make_agent([[Request("find", {"query": "fish"})], "done"], find), runner, session=session)
    asyncio.run(session.clear_session())
    compaction: Any = {"type": "compaction", "id": "cmp_1", "encrypted_content": "a summary"}
    asyncio.run(session.add_items([compaction]))
    model = script_model(["done"])
    agent: Agent[Any] = Agent("tester", instructions="Be brief.", tools=[search], model=model)
    play(agent, runner, session=session)
    sent = model.calls[0].system_instructions
    assert sent is not None
    assert sent.startswith("Be brief.\n\n")
    assert "use k=10" in sent
    assert "The index is corrupt." in sent
    play(agent.clone(model=script_model(["done"])), MulliganRunner(), session=session)
    assert [event.name for event in played.events].count("context.compacted") == 1


# The page


@pytest.mark.parametrize("code", re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
def test_the_code_of_the_page_runs(played: Sandbox, code: str) -> None:
    script = [[Request("ask_librarian", {"input": "Find fish."})]] if "as_tool" in code else []
    script += [[Request("search", {"query": "fish", "topk": 3})], "done", "done"]
    with own_event_loop():
        exec(compile(code, PAGE.name, "exec"), {"model": script_model(script)})
    assert [history.run.agent for history in played.runs] == ["researcher"]
    assert statuses(played) == ["recovered"]
