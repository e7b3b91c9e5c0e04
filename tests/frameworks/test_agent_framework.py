"""What is special about the adapter for the Microsoft Agent Framework, beyond the scenarios of all adapters."""

from __future__ import annotations

import asyncio
import http.server
import re
import threading
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest

pytest.importorskip("agent_framework", exc_type=ImportError)

import pydantic
import tenacity
from agent_framework import (
    Agent,
    AgentSession,
    ChatMiddleware,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    InMemoryHistoryProvider,
    Message,
    MiddlewareFailure,
    MiddlewareTermination,
    SummarizationStrategy,
    UserInputRequiredException,
    tool,
)
from agent_framework.exceptions import ChatClientException
from frameworks.agent_framework_driver import ScriptedClient, ask, build_agent, driver
from frameworks.scenarios import NO_EFFECTS, RateLimitError, Request, Tools

import mulligan
from mulligan.core.run_links import derive_status
from mulligan.integrations.agent_framework import MulliganMiddlewareList
from mulligan.testing import Sandbox, sandbox

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks are theirs
PAGE = Path(__file__).parents[2] / "docs/frameworks/agent_framework.md"
SEARCH = [Request("search", {"query": "fish", "top_k": 50})]
FETCH = [Request("fetch", {"url": "a"})]
BOTH = pytest.mark.parametrize("style", ["async", "stream"])


def tool_steps(played: Sandbox) -> list[tuple[str, Any]]:
    return [(step.outcome, step.arguments) for step in played.steps if step.type == "tool"]


def status(played: Sandbox) -> str:
    (history,) = played.runs
    return derive_status(history.run, history.steps, history.links)


def test_the_context_of_a_tool_is_neither_an_argument_nor_recorded(played: Sandbox) -> None:
    @tool
    def search(query: str, ctx: FunctionInvocationContext) -> str:
        """Search the index."""
        return f"results for {query}, {ctx.function.name}"

    conversation = driver.play([search], [[Request("search", {"query": "fish"})], "done"], "async")

    assert conversation.answers == ["results for fish, search"]
    assert tool_steps(played) == [("success", {"query": "fish"})]


@BOTH
def test_the_session_and_the_question_are_recorded(played: Sandbox, style: Any) -> None:
    agent, _ = build_agent([], ["done"])
    asyncio.run(ask(agent, "Find fish.", style, session=AgentSession(session_id="s1")))
    (history,) = played.runs
    assert history.run.context == "Find fish."
    assert history.run.session is not None


@BOTH
def test_a_note_of_a_repair_reaches_the_model(played: Sandbox, style: Any) -> None:
    conversation = driver.play(Tools().functions("search"), [SEARCH, "done"], style, **NO_EFFECTS)
    assert "50 -> 10" in conversation.sent[1]


def test_the_answer_of_mulligan_replaces_the_masked_one(played: Sandbox) -> None:
    tools = Tools()
    tools.errors = [RuntimeError("The index is corrupt.")]
    conversation = driver.play(tools.functions("fetch"), [FETCH, "done"], "async")
    assert "The index is corrupt" in conversation.answers[0]
    assert "Error: Function failed." not in conversation.answers[0]


def test_arguments_that_are_no_json_are_repaired(played: Sandbox) -> None:
    script: Any = [[Request("search", '{"query": "fish", "top_k": 3,}')], "done"]  # type: ignore[arg-type]
    conversation = driver.play(Tools().functions("search"), script, "async")
    assert "3 results for fish" in conversation.answers[0]


def test_a_repaired_call_returns_its_image_and_the_note(played: Sandbox) -> None:
    def draw(size: Annotated[int, pydantic.Field(le=10)]) -> list[Content]:
        """Draw a fish."""
        return [Content.from_data(b"fish" * size, "image/png")]

    agent, _ = build_agent([tool(draw)], [[Request("draw", {"size": 50})], "done"], **NO_EFFECTS)
    response = asyncio.run(ask(agent, "Draw.", "async"))
    (result,) = [c for message in response.messages for c in message.contents if c.type == "function_result"]
    assert [item.type for item in result.items] == ["data", "text"]
    assert "50 -> 10" in result.items[1].text


def test_failing_calls_do_not_end_the_loop(played: Sandbox) -> None:
    tools = Tools()
    tools.errors = [RuntimeError(f"Problem {letter}.") for letter in "abcdef"]
    script: Any = [[Request("fetch", {"url": letter})] for letter in "abcdef"]
    conversation = driver.play(tools.functions("fetch"), [*script, "done"], "async")
    assert conversation.text == "done"


def test_an_agent_that_is_a_tool_belongs_to_the_run(played: Sandbox) -> None:
    script: Any = [RateLimitError("Too many requests"), SEARCH, "found fish"]
    inner, _ = build_agent(Tools().functions("search"), script, **NO_EFFECTS)
    inner.name = "inner"
    conversation = driver.play([inner.as_tool()], [[Request("inner", {"task": "Find fish."})], "done"], "async")

    assert conversation.text == "done"
    assert conversation.answers == ["found fish"]
    (history,) = played.runs
    assert {step.name for step in history.steps} == {"model", "inner", "search"}
    assert derive_status(history.run, history.steps, history.links) == "recovered"


# Other middleware and persons


def test_middleware_behind_mulligan_sees_the_repaired_arguments(played: Sandbox) -> None:
    seen: list[Any] = []

    class Guard(FunctionMiddleware):
        async def process(self, context: Any, call_next: Any) -> None:
            seen.append(dict(context.arguments))
            await call_next()

    agent, _ = build_agent(Tools().functions("search"), [SEARCH, "done"], [Guard()], **NO_EFFECTS)
    asyncio.run(ask(agent, "Find fish.", "async"))
    assert seen == [{"query": "fish", "top_k": 10}]


def test_a_termination_passes(played: Sandbox) -> None:
    class Stop(FunctionMiddleware):
        async def process(self, context: Any, call_next: Any) -> None:
            context.result = "stopped"
            raise MiddlewareTermination()

    tools = Tools()
    agent, client = build_agent(tools.functions("fetch"), [FETCH, "done"], [Stop()])
    response = asyncio.run(ask(agent, "Fetch.", "async"))
    assert tools.calls == []
    assert client.script == ["done"]
    assert "stopped" in str(response.messages[-1].contents[0].result)
    assert status(played) == "success"


@BOTH
def test_a_failure_of_middleware_ends_the_run(played: Sandbox, style: Any) -> None:
    class Policy(FunctionMiddleware):
        async def process(self, context: Any, call_next: Any) -> None:
            raise MiddlewareFailure("Not allowed.")

    tools = Tools()
    agent, _ = build_agent(tools.functions("fetch"), [FETCH, "done"], [Policy()], tools={"*": {"effects": "none"}})
    with pytest.raises(MiddlewareFailure):
        asyncio.run(ask(agent, "Fetch.", style))
    assert tools.calls == []
    assert [outcome for outcome, _ in tool_steps(played)] == ["cancelled"]
    assert status(played) == "failure"


@BOTH
def test_a_cancelled_model_call_is_no_failure(played: Sandbox, style: Any) -> None:
    class Slow(ChatMiddleware):
        async def process(self, context: Any, call_next: Any) -> None:
            await asyncio.sleep(3600)

    agent, _ = build_agent([], ["done"], [Slow()])

    async def play() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await ask(agent, "Hello.", style)

    asyncio.run(play())
    assert [step.outcome for step in played.steps] == ["cancelled"]
    assert [history.run.end_reason for history in played.runs] == ["abandoned"]


def test_a_request_for_input_passes(played: Sandbox) -> None:
    def pay(amount: int) -> str:
        """Pay an amount."""
        raise UserInputRequiredException([])

    driver.play([pay], [[Request("pay", {"amount": 5})], "done"], "async")
    assert [outcome for outcome, _ in tool_steps(played)] == ["cancelled"]


def test_arguments_that_a_person_approves_are_not_changed(played: Sandbox) -> None:
    tools = Tools()
    (search,) = tools.functions("search")
    agent, client = build_agent([tool(search, approval_mode="always_require")], [SEARCH, "done"], **NO_EFFECTS)

    async def play() -> None:
        session = agent.create_session()
        response = await agent.run("Find fish.", session=session)
        (request,) = response.user_input_requests
        await agent.run(Message("user", [request.to_function_approval_response(True)]), session=session)

    asyncio.run(play())
    assert tools.calls == []
    assert "invalid_arguments" in client.results[0]
    assert len(played.runs) == 1


def test_a_paused_stream_is_continued_in_one_run(played: Sandbox) -> None:
    (fetch,) = Tools().functions("fetch")
    agent, client = build_agent([tool(fetch, approval_mode="always_require")], [FETCH, "done"])

    async def play() -> None:
        session = agent.create_session()
        response = await ask(agent, "Fetch.", "stream", session=session)
        (request,) = response.user_input_requests
        answer = Message("user", [request.to_function_approval_response(True)])
        await ask(agent, answer, "stream", session=session)

    asyncio.run(play())
    assert client.results == ["page of a"]
    assert status(played) == "success"


@BOTH
def test_a_chat_client_alone_is_recovered_in_runs_of_one_call(played: Sandbox, style: Any) -> None:
    middleware = MulliganMiddlewareList(**NO_EFFECTS)
    client = ScriptedClient([SEARCH, RateLimitError("Too many requests"), "done"], middleware=middleware)
    messages, options = [Message("user", ["Find fish."])], {"tools": Tools().functions("search")}

    async def play() -> Any:
        if style == "async":
            return await client.get_response(messages, options=options)
        return await client.get_response(messages, options=options, stream=True).get_final_response()

    assert asyncio.run(play()).text == "done"
    assert "10 results" in client.results[0]
    assert [history.run.end_reason for history in played.runs] == ["finished"] * 3


# Errors that end the run


@BOTH
def test_an_infrastructure_error_ends_the_run(played: Sandbox, style: Any) -> None:
    tools = Tools()
    error = mulligan.InfraError("The disk is full.")
    tools.errors = [error]
    conversation = driver.play(tools.functions("fetch"), [FETCH, "done"], style)
    assert conversation.error is error
    assert status(played) == "failure"


@BOTH
def test_an_error_of_the_model_ends_the_run_as_a_failure(played: Sandbox, style: Any) -> None:
    error = PermissionError("Invalid API key")
    conversation = driver.play([], [error], style)
    assert conversation.error is error
    assert status(played) == "failure"


def test_a_stream_that_is_not_read_to_its_end_ends_the_run(played: Sandbox) -> None:
    agent, _ = build_agent(Tools().functions("search"), [SEARCH, "done"], **NO_EFFECTS)

    async def play() -> None:
        stream = agent.run("Find fish.", stream=True)
        async for _ in stream:
            break
        await stream.close()

    asyncio.run(play())
    (history,) = played.runs
    assert history.run.ended_at is not None


# Models


@BOTH
def test_a_rate_limited_model_is_asked_again(played: Sandbox, style: Any) -> None:
    conversation = driver.play([], [RateLimitError("Too many requests"), "done"], style)
    assert conversation.text == "done"
    assert [(step.outcome, step.attempt) for step in played.steps] == [("failure", 1), ("success", 2)]


@BOTH
def test_tokens_and_the_name_of_the_model_are_recorded(played: Sandbox, style: Any) -> None:
    agent, client = build_agent([], ["done"])
    client.usage = {"input_token_count": 12, "output_token_count": 3, "total_token_count": 15}
    asyncio.run(ask(agent, "Hello.", style))
    (step,) = played.steps
    assert step.tokens == {"input": 12, "output": 3}
    assert step.arguments["model"] == "scripted"


@BOTH
def test_a_full_record_of_the_model_has_the_messages(played: Sandbox, style: Any) -> None:
    conversation = driver.play([], ["the answer"], style, model={"record": "full"})
    assert conversation.text == "the answer"
    assert "Find fish." in repr(played.runs)
    assert style == "stream" or "the answer" in repr(played.runs)


def test_after_a_compaction_the_model_is_reminded(played: Sandbox) -> None:
    script: Any = [FETCH, "noted", "one", "two"]
    tools = Tools()
    tools.errors = [RuntimeError("The index is corrupt.")]
    agent, client = build_agent(tools.functions("fetch"), script)
    summarizer = ScriptedClient(["A short summary."] * 9)
    client.compaction_strategy = SummarizationStrategy(client=summarizer, target_count=2, threshold=1)
    agent.context_providers = [InMemoryHistoryProvider()]

    async def play() -> None:
        session = agent.create_session()
        for question in ("Fetch.", "And now?", "And then?"):
            await agent.run(question, session=session)

    asyncio.run(play())
    assert "A short summary." in client.sent[2]
    assert "The index is corrupt" not in client.sent[2]  # the client makes its summary after all middleware
    assert "The index is corrupt" in client.sent[3].split("A short summary.")[0]
    assert [event.name for event in played.events].count("context.compacted") == len(summarizer.sent)


# Retries of others


def test_one_layer_retries(played: Sandbox) -> None:
    tools = Tools()
    tools.errors = [RateLimitError("Too many requests")] * 9
    (fetch,) = tools.functions("fetch")
    retrying = tenacity.retry(stop=tenacity.stop_after_attempt(3), reraise=True)(fetch)
    conversation = driver.play([retrying], [FETCH, "done"], "async", tools={"*": {"effects": "none"}})
    assert len(tools.calls) == 3
    assert "rate_limit" in conversation.answers[0]


def test_a_retry_of_a_chat_client_is_the_only_one(played: Sandbox) -> None:
    class Retry(ChatMiddleware):
        async def process(self, context: Any, call_next: Any) -> None:
            attempts = tenacity.AsyncRetrying(stop=tenacity.stop_after_attempt(3), reraise=True)
            async for attempt in attempts:
                with attempt:
                    await call_next()

    agent, client = build_agent([], [RateLimitError("Too many requests")] * 9, [Retry()])
    with pytest.raises(RateLimitError) as caught:
        asyncio.run(ask(agent, "Hello.", "async"))
    assert len(client.sent) == 3
    assert "tenacity" in "\n".join(caught.value.__notes__)


class RateLimitedServer(http.server.BaseHTTPRequestHandler):
    """An API of OpenAI, without any quota."""

    requests: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.requests.append(self.path)
        self.send_response(429)
        self.send_header("content-type", "application/json")
        self.send_header("retry-after", "0")
        self.end_headers()
        self.wfile.write(b'{"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}')

    def log_message(self, *args: Any) -> None:
        pass


@BOTH
def test_retries_of_the_openai_client_are_the_only_ones(
    played: Sandbox, monkeypatch: pytest.MonkeyPatch, style: Any
) -> None:
    openai = pytest.importorskip("agent_framework_openai", exc_type=ImportError)
    monkeypatch.setattr(RateLimitedServer, "requests", [])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), RateLimitedServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        client = openai.OpenAIChatCompletionClient(model="gpt-5", api_key="a key for nothing", base_url=url)
        with pytest.raises(ChatClientException) as caught:
            asyncio.run(ask(Agent(client, middleware=MulliganMiddlewareList()), "Hello.", style))
        server.shutdown()

    assert len(RateLimitedServer.requests) == 3
    assert "the openai client inside this call made 3 attempts" in "\n".join(caught.value.__notes__)
    assert [str(step.failure.kind) for step in played.steps if step.failure] == ["model/rate_limit"]


# Off


def test_without_mulligan_everything_is_as_the_framework_does_it() -> None:
    with sandbox(enabled=False) as played:
        tools = Tools()
        tools.errors = [RuntimeError("The index is corrupt.")]
        conversation = driver.play(tools.functions("fetch"), [FETCH, "done"], "async")
        assert conversation.answers == ["Error: Function failed."]
        assert played.events == []


# The page


def test_the_code_of_the_page_runs(played: Sandbox) -> None:
    client = ScriptedClient([SEARCH, "done"])
    names: dict[str, Any] = {"client": client}
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(code, names)
    assert "50 results" in client.sent[1]
    (history,) = played.runs
    assert history.run.agent == "researcher"
