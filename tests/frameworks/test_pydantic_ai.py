"""What is special in PydanticAI, beside the scenarios that all adapters play."""

# No `from __future__ import annotations`: PydanticAI reads the annotations of tools that are defined in a test.

import asyncio
import http.server
import re
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

pytest.importorskip("pydantic_ai", exc_type=ImportError)

import taught
import tenacity
from frameworks.pydantic_ai_driver import ScriptedModel
from frameworks.scenarios import (
    OVERFLOW,
    ContextOverflowError,
    RateLimitedProvider,
    RateLimitError,
    Reply,
    Request,
    Tools,
    UnstatedRateLimitError,
    failure_of,
)
from pydantic import BaseModel, Field
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    BinaryContent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    RetryModelRequest,
    RunContext,
    Tool,
    ToolFailed,
    ToolReturn,
    UnexpectedModelBehavior,
)
from pydantic_ai.capabilities import AbstractCapability, ModelFallback
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import CompactionPart, ModelRequest, ModelResponse, TextPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import RequestUsage

import mulligan
from mulligan.core.run_links import derive_status
from mulligan.integrations.pydantic_ai import MulliganCapability
from mulligan.testing import Sandbox, sandbox

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the framework are its own
PAGE = Path(__file__).parents[2] / "docs/frameworks/pydantic_ai.md"


@dataclass
class Play:
    """An agent with a scripted model."""

    agent: Agent[Any, Any]
    model: ScriptedModel

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run(self.agent.run(*(args or ("Find fish.",)), **kwargs))

    def stream(self) -> list[str]:
        """Return the names of the events."""

        async def read() -> list[str]:
            async with self.agent.run_stream_events("Find fish.") as events:
                return [type(event).__name__ async for event in events]

        return asyncio.run(read())

    @property
    def answers(self) -> list[ToolReturnPart]:
        """The results of tools that the model has read last."""
        parts = [part for message in self.model.messages for part in message.parts]
        return [part for part in parts if isinstance(part, ToolReturnPart)]

    @property
    def texts(self) -> list[str]:
        return [str(answer.content) for answer in self.answers]


def build(
    tools: Sequence[Any],
    script: Sequence[Reply],
    others: Sequence[Any] = (),
    agent_options: dict[str, Any] | None = None,
    tool_options: dict[str, Any] | None = None,
    **options: Any,
) -> Play:
    model = ScriptedModel(script)
    capabilities = [MulliganCapability(agent="tester", tools=tool_options, **options), *others]
    return Play(Agent(model.as_model(), tools=list(tools), capabilities=capabilities, **(agent_options or {})), model)


def outcomes(played: Sandbox, type: str = "tool") -> list[tuple[str, str]]:
    return [
        (step.outcome, str(step.failure.kind) if step.failure is not None else "")
        for step in played.steps
        if step.type == type
    ]


def statuses(played: Sandbox) -> list[str]:
    return [derive_status(history.run, history.steps, history.links) for history in played.runs]


def search(query: str, top_k: int = 5) -> str:
    """Search the index."""
    return f"{top_k} results for {query}"


SEARCH = [Request("search", {"query": "fish"})]


# Arguments


def test_arguments_that_pydantic_converts_are_no_failure(played: Sandbox) -> None:
    play = build([search], [[Request("search", {"query": "fish", "top_k": "7"})], "done"], mode="observe")
    play.run()
    assert play.texts == ["7 results for fish"]
    assert outcomes(played) == [("success", "")]


def test_typed_arguments_reach_the_tool_as_objects_and_the_record_as_requested(played: Sandbox) -> None:
    class Place(BaseModel):
        city: str

    seen: list[Any] = []

    def travel(place: Place, days: int) -> str:
        """Travel."""
        seen.append(place)
        return "there"

    play = build([travel], [[Request("travel", {"place": {"city": "Oslo"}, "dasy": 3})], "done"])
    play.run()
    assert seen == [Place(city="Oslo")]
    assert [step.arguments for step in played.steps if step.type == "tool"] == [
        {"place": {"city": "Oslo"}, "dasy": 3},
        {"place": {"city": "Oslo"}, "days": 3},
    ]
    assert "renamed to days" in play.texts[0]


def test_a_validator_that_no_schema_states_rejects_the_arguments(played: Sandbox) -> None:
    def check(ctx: RunContext[None], amount: int) -> None:
        if amount % 5:
            raise ToolFailed("The amount must be a multiple of 5.")

    def pay(ctx: RunContext[None], amount: int) -> str:
        """Pay an amount."""
        return f"paid {amount}"

    play = build([Tool(pay, args_validator=check)], [[Request("pay", {"amount": 7})], "done"])
    play.run()
    assert "multiple of 5" in play.texts[0]
    assert failure_of(play.texts[0])["recoverable"]
    assert [outcome for outcome, _ in outcomes(played)] == ["failure"]


def test_the_context_of_a_run_is_no_argument(played: Sandbox) -> None:
    def find(ctx: RunContext[list[str]], query: str) -> str:
        """Find a row."""
        return f"{ctx.deps[0]} for {query}"

    play = build([find], [[Request("find", {"querry": "fish"})], "done"], agent_options={"deps_type": list})
    play.run(deps=["a row of the database"])
    assert "a row of the database for fish" in play.texts[0]
    assert [step.arguments for step in played.steps if step.type == "tool"] == [{"querry": "fish"}, {"query": "fish"}]


def test_tools_whose_arguments_only_a_json_schema_states_are_repaired(played: Sandbox) -> None:
    def find(**arguments: Any) -> str:
        return f"found {arguments}"

    schema = {
        "type": "object",
        "properties": {"query": {"type": "string"}, "top_k": {"type": "integer", "maximum": 10}},
        "required": ["query"],
    }
    tool = Tool.from_schema(find, "find", "Find.", schema)
    script = [[Request("find", {"query": "fish", "top_k": 50})], "done"]
    play = build([tool], script, tool_options={"find": {"effects": "none"}})
    play.run()
    assert "50 -> 10" in play.texts[0]
    assert "'top_k': 10" in play.texts[0]


# Tool names


def test_an_unknown_tool_uses_up_no_retries(played: Sandbox) -> None:
    script = [[Request("delete", {"number": number}), Request("drop", {})] for number in range(3)]
    play = build([search], [*script, SEARCH, "done"])
    assert play.run().output == "done"
    assert [answer.outcome for answer in play.answers] == ["failed"] * 6 + ["success"]


def test_tools_of_other_toolsets_have_their_function_and_options(played: Sandbox) -> None:
    tools = Tools()
    tools.errors = [RateLimitError("Too many requests")]
    fetch = mulligan.tool(effects="none")(tools.functions("fetch")[0])
    toolset = FunctionToolset([fetch]).prefixed("web").filtered(lambda ctx, definition: True)
    play = build([], [[Request("web_fetch", {"url": "a"})], "done"], agent_options={"toolsets": [toolset]})
    play.run()
    assert play.texts == ["page of a"]
    assert outcomes(played) == [("failure", "tool/rate_limit"), ("success", "")]


# Answers


def test_a_repaired_call_keeps_metadata_and_images_beside_the_note(played: Sandbox) -> None:
    image = BinaryContent(b"fish", media_type="image/png")

    def draw(size: int) -> ToolReturn[Any]:
        """Draw a fish."""
        return ToolReturn([image, "a fish"], content="Look.", metadata={"size": size})

    def describe(size: int) -> ToolReturn[Any]:
        """Describe a fish."""
        return ToolReturn("a fish", metadata={"size": size})

    play = build([draw, describe], [[Request("draw", {"szie": 5}), Request("describe", {"szie": 5})], "done"])
    play.run()
    drawn, described = play.answers
    assert drawn.content == [image, "a fish"]
    assert drawn.metadata == described.metadata == {"size": 5}
    assert "renamed to size" in str(described.content)
    prompts = [part for message in play.model.messages for part in message.parts if isinstance(part, UserPromptPart)]
    assert prompts[-1].content[0] == "Look."
    assert "renamed to size" in prompts[-1].content[1]


def test_the_failure_of_a_tool_is_classified_and_answered(played: Sandbox) -> None:
    def find(name: str) -> str:
        """Find a file."""
        raise ToolFailed("No such file: a.txt")

    play = build([find], [[Request("find", {"name": "a.txt"})], "done"])
    play.run()
    assert failure_of(play.texts[0])["code"] == "file_not_found"
    assert "No such file" in play.texts[0]
    assert play.answers[0].outcome == "failed"


def test_a_timeout_of_the_framework_is_a_failure_and_uses_up_no_retries(played: Sandbox) -> None:
    async def wait(name: str) -> str:
        """Wait."""
        await asyncio.sleep(60)
        return "never"

    requests = [[Request("wait", {"name": name})] for name in "abc"]
    play = build([Tool(wait, timeout=0.001)], [*requests, "done"])
    assert play.run().output == "done"
    assert outcomes(played) == [("failure", "tool/timeout")] * 3
    observed = build([Tool(wait, timeout=0.001)], [*requests, "done"], mode="observe")
    with pytest.raises(UnexpectedModelBehavior, match="exceeded max retries count of 1"):
        observed.run()
    assert observed.texts == ["Timed out after 0.001 seconds."]
    assert outcomes(played)[3:] == [("failure", "tool/timeout")] * 2


def test_mcp_tools_are_repaired_and_their_errors_read(played: Sandbox) -> None:
    pytest.importorskip("fastmcp.server", exc_type=ImportError)
    from fastmcp import FastMCP
    from fastmcp.exceptions import ToolError
    from pydantic_ai.mcp import MCPToolset

    server = FastMCP("shop")

    @server.tool
    def find(query: str, top_k: int = 5) -> str:
        """Find an order."""
        if query == "meat":
            raise ToolError("Order meat not found")
        return f"{top_k} {query}"

    requests = [[Request("find", {"query": query, "topk": 3})] for query in ("fish", "meat", "meat", "fish")]
    play = build([], [*requests, "done"], agent_options={"toolsets": [MCPToolset(server)]})
    play.run()
    assert "3 fish" in play.texts[0]
    assert [failure_of(text).get("code") for text in play.texts] == [None, "not_found", "not_found", None]


def test_an_object_may_be_passed_by_its_name_or_by_its_members(played: Sandbox) -> None:
    class Order(BaseModel):
        number: int = Field(alias="count")

    def buy(order: Order) -> str:
        """Buy fish."""
        return f"bought {order.number}"

    play = build([buy], [[Request("buy", {"order": {"count": 3}})], [Request("buy", {"count": 4})], "done"])
    play.run()
    assert play.texts == ["bought 3", "bought 4"]
    assert [step.arguments for step in played.steps if step.type == "tool"] == [{"order": {"count": 3}}, {"count": 4}]


@pytest.mark.parametrize(
    "arguments",
    [
        {"count": 3, "dry_run": True},
        {"order": {"count": 3, "dry_run": True}},
        {"order": {"count": 3}, "dry_run": True},
        {"order": {"count": 3}, "count": 4},
    ],
)
def test_a_call_with_an_argument_that_pydantic_ai_would_drop_is_rejected(
    played: Sandbox, arguments: dict[str, Any]
) -> None:
    class Order(BaseModel):
        count: int

    def buy(order: Order) -> str:
        """Buy fish."""
        return f"bought {order.count}"

    play = build([buy], [[Request("buy", arguments)], "done"])
    play.run()
    assert failure_of(play.texts[0])["code"] == "invalid_arguments"
    assert outcomes(played) == [("failure", "tool/invalid_arguments")]


def test_options_for_a_misspelled_tool_are_reported(played: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    build([search], ["done"], tool_options={"serach": {"effects": "none"}}).run()
    assert [record.message for record in caplog.records if "serach" in record.message] == [
        "No tool is named 'serach', so its options have no effect. Did you mean 'search'?"
    ]


def test_verify_answers_for_a_call_that_took_effect(played: Sandbox) -> None:
    tools = Tools()
    options = {"pay": {"verify": lambda amount: f"paid {amount}"}}
    play = build(tools.functions("pay"), [[Request("pay", {"amount": 5})], "done"], tool_options=options)
    play.run()
    assert "paid 5" in play.texts[0]
    assert len(tools.calls) == 1


def test_structured_output_is_returned_and_no_tool(played: Sandbox) -> None:
    class City(BaseModel):
        name: str

    script = [SEARCH, [Request("final_result", {"name": "Oslo"})]]
    play = build([search], script, agent_options={"output_type": City})
    assert play.run().output == City(name="Oslo")
    assert [step.name for step in played.steps if step.type == "tool"] == ["search"]
    assert statuses(played) == ["success"]


# Control flow


def test_a_request_of_the_tool_to_retry_is_counted_by_pydantic_ai(played: Sandbox) -> None:
    def ask(question: str) -> str:
        """Ask."""
        raise ModelRetry("Ask in another way.")

    requests = [[Request("ask", {"question": "a"})]] * 2
    play = build([ask], [*requests, "done"], agent_options={"retries": 2})
    play.run()
    assert [answer.outcome for answer in play.answers] == ["retried", "retried"]
    assert play.texts == ["Ask in another way."] * 2
    assert outcomes(played) == [("cancelled", "")] * 2
    with pytest.raises(UnexpectedModelBehavior, match="exceeded max retries count of 1"):
        build([ask], requests).run()
    assert [history.run.end_reason for history in played.runs] == ["finished", "raised"]


def approving_agent(tool: Any, script: Sequence[Reply], **options: Any) -> Play:
    return build([tool], script, agent_options={"output_type": [str, DeferredToolRequests]}, **options)


def resume(play: Play, paused: Any, is_approved: bool = True) -> Any:
    approvals = {call.tool_call_id: is_approved for call in paused.output.approvals}
    results = DeferredToolResults(approvals=approvals)  # type: ignore[arg-type]
    return play.run(None, message_history=paused.all_messages(), deferred_tool_results=results)


def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def test_a_run_that_asks_a_person_twice_is_one_run(played: Sandbox) -> None:
    requests = [[Request("pay", {"amount": amount})] for amount in (5, 6)]
    play = approving_agent(Tool(pay, requires_approval=True), [*requests, "done", "again"])
    paused = play.run()
    assert played.runs[0].run.end_reason in (None, "")
    finished = resume(play, resume(play, paused), is_approved=False)
    assert finished.output == "done"
    assert len(played.runs) == 1
    assert statuses(played) == ["success"]
    play.run("And now?", message_history=finished.all_messages())
    assert len(played.runs) == 2
    assert len({history.run.session for history in played.runs}) == 1


def test_a_run_that_waits_in_a_run_of_the_program_continues_in_the_next_one(played: Sandbox) -> None:
    play = approving_agent(Tool(pay, requires_approval=True), [[Request("pay", {"amount": 5})], "done"])
    with mulligan.run("first"):
        paused = play.run()
    with mulligan.run("second"):
        resume(play, paused)
    assert [[step.name for step in history.steps] for history in played.runs] == [["model"], ["pay", "model"]]


def test_arguments_that_a_person_has_approved_are_not_changed(played: Sandbox) -> None:
    calls = []

    def send(ctx: RunContext[None], batch_size: Annotated[int, Field(le=10)]) -> str:
        """Send letters."""
        calls.append(batch_size)
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return f"sent {batch_size}"

    options = {"send": {"clamp": ["batch_size"]}}
    play = approving_agent(send, [[Request("send", {"batch_size": 50})], "done"], tool_options=options)
    paused = play.run()
    assert calls == [10]
    assert paused.output.approvals[0].args == {"batch_size": 50}
    resume(play, paused)
    assert calls == [10], "the person has seen 50"
    assert failure_of(play.texts[0])["code"] == "invalid_arguments"


def test_a_call_that_waits_for_a_person_is_validated_by_pydantic_ai(played: Sandbox) -> None:
    play = approving_agent(Tool(pay, requires_approval=True), [[Request("pay", {"amount": "five"})], "done"])
    play.run()
    assert play.answers[0].outcome == "retried"
    assert "valid integer" in play.texts[0]


def test_a_validator_may_ask_a_person_about_repaired_arguments(played: Sandbox) -> None:
    def check(ctx: RunContext[None], room: int) -> None:
        raise ApprovalRequired

    def book(ctx: RunContext[None], room: int) -> str:
        """Book a room."""
        return f"booked {room}"

    play = approving_agent(Tool(book, args_validator=check), [[Request("book", {"roomm": 5})], "done"])
    assert isinstance(play.run().output, DeferredToolRequests)


# One layer retries


def test_a_capability_that_retries_the_model_is_recognized(played: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    class Retries(AbstractCapability[Any]):
        async def on_model_request_error(self, ctx: Any, *, request_context: Any, error: Exception) -> ModelResponse:
            raise RetryModelRequest if request_context.attempt < 3 else error

    play = build([], [UnstatedRateLimitError("Too many requests") for _ in range(20)], [Retries()])
    with pytest.raises(RateLimitError) as raised:
        play.run()
    assert len(outcomes(played, "model")) == 10  # eight by mulligan, then one for each of the capability
    assert "another capability inside this call made 3 attempts" in "".join(raised.value.__notes__)


def test_a_retry_library_below_the_model_is_recognized(played: Sandbox) -> None:
    calls = []

    @tenacity.retry(stop=tenacity.stop_after_attempt(3), reraise=True)
    async def request() -> ModelResponse:
        calls.append(1)
        raise RateLimitError("Too many requests")

    async def answer(messages: Any, info: Any) -> ModelResponse:
        return await request()

    agent = Agent(FunctionModel(answer), capabilities=[MulliganCapability()])
    with pytest.raises(RateLimitError) as raised:
        asyncio.run(agent.run("Find fish."))
    assert len(calls) == 3
    assert "tenacity inside this call made 3 attempts" in "".join(raised.value.__notes__)


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_retries_of_the_openai_client_are_not_multiplied(played: Sandbox, is_stream: bool) -> None:
    openai = pytest.importorskip("pydantic_ai.models.openai", exc_type=ImportError)
    from pydantic_ai.providers.openai import OpenAIProvider

    RateLimitedProvider.requests = 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RateLimitedProvider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        provider = OpenAIProvider(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
        agent = Agent(openai.OpenAIChatModel("gpt-4.1", provider=provider), capabilities=[MulliganCapability()])
        play = Play(agent, ScriptedModel([]))
        with pytest.raises(ModelHTTPError, match="Rate limit reached") as raised:
            play.stream() if is_stream else play.run()
    finally:
        server.shutdown()
        server.server_close()
    assert RateLimitedProvider.requests == 3
    assert "the openai client inside this call made 3 attempts" in "".join(raised.value.__notes__)
    assert played.steps[0].arguments["model"] == "gpt-4.1"


@pytest.mark.parametrize("is_stream", [False, True])
def test_without_them_mulligan_retries_a_rate_limit_of_the_model(played: Sandbox, is_stream: bool) -> None:
    play = build([search], [RateLimitError("Too many requests"), SEARCH, "done"])
    play.stream() if is_stream else play.run()
    assert outcomes(played, "model") == [("failure", "model/rate_limit"), ("success", ""), ("success", "")]
    assert statuses(played) == ["recovered"]


# Runs


def test_a_failed_model_ends_the_run_as_a_failure(played: Sandbox) -> None:
    with pytest.raises(ModelHTTPError):
        build([], [ModelHTTPError(401, "scripted", {"error": "invalid key"})]).run()
    assert statuses(played) == ["failure"]
    assert played.runs[0].run.end_reason == "raised"


def test_a_model_that_another_one_replaces_ends_no_run(played: Sandbox) -> None:
    second = ScriptedModel([SEARCH, "done"])
    error = ModelHTTPError(401, "scripted", {"error": "invalid key"})
    play = build([search], [error, error], [ModelFallback(second.as_model())])
    assert play.run().output == "done"
    assert outcomes(played) == [("success", "")]
    assert statuses(played) == ["recovered"]


def test_infra_error_ends_the_run(played: Sandbox) -> None:
    def fetch(url: str) -> str:
        """Fetch a page."""
        raise mulligan.InfraError("The database is down.")

    with pytest.raises(mulligan.InfraError):
        build([fetch], [[Request("fetch", {"url": "a"})], "done"]).run()
    assert statuses(played) == ["failure"]


def test_an_agent_that_is_a_tool_belongs_to_the_run_of_its_caller(played: Sandbox) -> None:
    capability = MulliganCapability()
    inner_model = ScriptedModel([SEARCH, "found"])
    outer_model = ScriptedModel([[Request("ask", {"question": "a"})], "done"])
    inner = Agent(inner_model.as_model(), tools=[search], capabilities=[capability], name="inner")

    async def ask(question: str) -> str:
        """Ask another agent."""
        return (await inner.run(question)).output

    outer = Agent(outer_model.as_model(), tools=[ask], capabilities=[capability], name="outer")
    asyncio.run(outer.run("Find fish."))
    (history,) = played.runs
    assert history.run.agent == "outer"
    assert history.run.context == "Find fish."
    assert [step.name for step in history.steps if step.type == "tool"] == ["ask", "search"]


def test_of_several_capabilities_the_last_one_applies(played: Sandbox) -> None:
    others = [MulliganCapability(agent="second")]
    play = build([search], [[Request("search", {"query": "fish", "topk": 3})], SEARCH, "done"], others)
    play.run(capabilities=[MulliganCapability(agent="third")])
    assert [history.run.agent for history in played.runs] == ["third"]
    assert [outcome for outcome, _ in outcomes(played)] == ["failure", "success", "success"]


def test_a_reader_that_leaves_an_agent_abandons_its_run(played: Sandbox) -> None:
    play = build([search], [SEARCH, "done"])

    async def leave() -> None:
        async with play.agent.iter("Find fish.") as nodes:
            async for _ in nodes:
                break

    asyncio.run(leave())
    assert [history.run.end_reason for history in played.runs] == ["abandoned"]


def test_parallel_calls_are_recovered_each(played: Sandbox) -> None:
    requests = [Request("search", {"query": name, "topk": 3}) for name in ("fish", "bird", "worm")]
    play = build([search], [requests, "done"])
    play.run()
    assert [text.count("3 results") for text in play.texts] == [1, 1, 1]
    assert len(outcomes(played)) == 6


# Streams


def test_a_stream_has_the_events_of_the_framework_and_its_tokens_are_recorded(played: Sandbox) -> None:
    with sandbox(enabled=False):
        expected = build([search], [SEARCH, "done"]).stream()
    assert build([search], [SEARCH, "done"]).stream() == expected
    assert [set(step.tokens or ()) for step in played.steps if step.type == "model"] == [{"input", "output"}] * 2


def test_a_stream_that_breaks_off_is_a_failure_and_not_repeated(played: Sandbox) -> None:
    async def stream(messages: Any, info: Any) -> AsyncIterator[str]:
        yield "It was"
        raise ConnectionError("The connection was lost.")

    agent = Agent(FunctionModel(stream_function=stream), capabilities=[MulliganCapability()])
    with pytest.raises(ConnectionError):
        Play(agent, ScriptedModel([])).stream()
    assert [outcome for outcome, _ in outcomes(played, "model")] == ["failure"]
    assert statuses(played) == ["failure"]


def test_a_stream_that_is_left_early_is_closed(played: Sandbox) -> None:
    is_closed = []

    async def stream(messages: Any, info: Any) -> AsyncIterator[str]:
        try:
            while True:
                yield "on and on "
        finally:
            is_closed.append(True)

    agent = Agent(FunctionModel(stream_function=stream), capabilities=[MulliganCapability()])

    async def leave() -> None:
        async with agent.run_stream("Find fish.", model_settings={"timeout": 60}) as answer:
            async for _ in answer.stream_text():
                break
            await answer.cancel()

    asyncio.run(leave())
    assert is_closed
    assert outcomes(played, "model") == [("success", "")]


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_fallback_answers_for_the_model(played: Sandbox, is_stream: bool) -> None:
    options = {"model": {"fallback": lambda failure: "from another model"}}
    play = build([], [RateLimitError("Too many requests") for _ in range(9)], **options)
    if is_stream:
        assert "FinalResultEvent" in play.stream()
    else:
        assert play.run().output == "from another model"


# What the model reads


def test_failures_from_before_a_compaction_are_repeated_in_the_instructions(played: Sandbox) -> None:
    tools = Tools()
    tools.errors = [RuntimeError("The index is corrupt.")]
    fetch = [Request("fetch", {"url": "a"})]
    play = build(tools.functions("fetch"), [fetch, "done", "again"], agent_options={"instructions": "Be brief."})
    history = play.run().all_messages()
    assert "index is corrupt" not in play.model.sent[0]
    summary = ModelRequest([CompactionPart("We talked.")])

    class Compacts(AbstractCapability[Any]):
        async def before_run(self, ctx: RunContext[Any]) -> None:
            ctx.messages[:] = [summary]

    later = Agent(
        play.model.as_model(),
        tools=tools.functions("fetch"),
        instructions="Be brief.",
        capabilities=[*play.agent.root_capability.capabilities[:1], Compacts()],
    )
    asyncio.run(later.run("And now?", message_history=history))
    assert play.model.sent[-1].startswith("Be brief.")
    assert "index is corrupt" in play.model.sent[-1].split("We talked.")[0]


def test_lessons_are_added_to_the_instructions_on_request(played: Sandbox) -> None:
    fetch = [Request("fetch", {"url": "a"})]
    build(Tools().functions("fetch"), [fetch, "done"]).run()
    mulligan.flush(30)
    taught.prove(played.store, 1_700_000_000_000, "fetch")
    for inject, is_expected in ((False, False), (400, True)):
        play = build(Tools().functions("fetch"), ["done"], inject_lessons=inject)
        play.run()
        assert ("use k=10" in play.model.sent[0]) is is_expected


def test_tokens_and_messages_of_a_model_are_recorded(played: Sandbox) -> None:
    def answer(messages: Any, info: Any) -> ModelResponse:
        return ModelResponse([TextPart("done")], usage=RequestUsage(input_tokens=12, output_tokens=3))

    agent = Agent(FunctionModel(answer), capabilities=[MulliganCapability(model={"record": "full"})])
    asyncio.run(agent.run("Find fish."))
    (step,) = played.steps
    assert step.tokens == {"input": 12, "output": 3}
    assert "Find fish." in repr(played.runs[0])


def test_a_long_conversation_keeps_the_system_prompt_and_the_pairs_of_calls_and_results(played: Sandbox) -> None:
    tools = Tools()
    overflow = ContextOverflowError(OVERFLOW.replace("4096", "16000").replace("10240", "30000"))
    reads = [[Request("read", {"path": name})] for name in "abc"]
    play = build(tools.functions("read"), [*reads, overflow, "done"], agent_options={"system_prompt": "Be brief."})
    assert play.run().output == "done"
    sent = play.model.messages
    assert sent[0].parts[0].content == "Be brief."
    assert len(play.model.sent[-1]) < 0.6 * len(play.model.sent[-2])
    calls = [part.tool_call_id for message in sent for part in message.parts if part.part_kind == "tool-call"]
    assert calls == [answer.tool_call_id for answer in play.answers]
    assert all(isinstance(message, ModelRequest | ModelResponse) for message in sent)


# Safety


def test_everything_passes_through_while_mulligan_is_off() -> None:
    with sandbox(enabled=False) as played:
        tools = Tools()
        tools.errors = [RateLimitError("Too many requests")]
        fetch = [Request("fetch", {"url": "a"})]
        with pytest.raises(RateLimitError):
            build(tools.functions("fetch"), [fetch, "done"]).run()
        play = build(tools.functions("fetch"), [fetch, [Request("fech", {})], "done"])
        play.run()
        assert play.texts[0] == "page of a"
        assert "Unknown tool name" in play.texts[1]
        assert played.steps == []


def test_everything_passes_through_in_a_durable_workflow(played: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunContext, "in_durable_context", True)
    play = build([search], [SEARCH, "done"])
    assert play.run().output == "done"
    assert played.steps == []


# The page


def test_the_code_of_the_page_runs(played: Sandbox) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert blocks
    for block in blocks:
        model = ScriptedModel([[Request("search", {"query": "fish", "topk": 3})], "done"])
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        exec(block, {"model": model.as_model(), "__name__": "page"})
        asyncio.set_event_loop(None)
        loop.close()
    assert statuses(played) == ["recovered"] * len(blocks)
