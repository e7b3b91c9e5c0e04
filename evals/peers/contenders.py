"""What people put between an agent and its failures: the real libraries, at settings that their documentation shows.

Each contender is told of every tool whether repeating a call is safe, and uses that where its library can. Where a
library only retries model calls, its program shows errors of tools to the model, as the guides of the providers do.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import anthropic
import httpx
import langchain.agents.middleware as langchain_middleware
import litellm
import openai
import pydantic_ai
import pydantic_ai.retries
import stamina
import tenacity
from langchain.agents import create_agent
from langchain.tools import tool as langchain_tool
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI
from model_server import ANTHROPIC_MODEL, OPENAI_MODEL
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from service import EFFECTS, TOOLS

from mulligan.api import Mulligan

MAX_TURNS = 20
SYSTEM = "You are an agent. Use the tools."
KEY = "key"
Tools = dict[str, Callable[..., Any]]
SAFE_TOOLS = [name for name, effects in EFFECTS.items() if effects != "once"]
UNSAFE_TOOLS = [name for name, effects in EFFECTS.items() if effects == "once"]


@dataclass
class Answer:
    """The answer of a task that needs one."""

    total: int
    items: list[str]


def is_transient(error: BaseException) -> bool:
    """Return whether an error may pass: a limit, an outage, a broken connection."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code == 429 or error.response.status_code >= 500
    if isinstance(error, openai.APIStatusError):
        return error.status_code == 429 or error.status_code >= 500
    return isinstance(error, httpx.TransportError | ConnectionError | openai.APIConnectionError)


def proves_no_effect(error: BaseException) -> bool:
    """Return whether an error proves that the call did nothing, so that also a payment may be repeated."""
    is_limited = isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 429
    return is_limited or isinstance(error, httpx.ConnectError)


def find_retryable(tool: str) -> Callable[[BaseException], bool]:
    return is_transient if tool in SAFE_TOOLS else proves_no_effect


class Contender:
    """No recovery: one request for each call, and the model reads what went wrong."""

    name = "nothing"

    def __init__(self, url: str, tools: Tools, *, needs_json: bool) -> None:
        self.url, self.tools, self.needs_json = url, tools, needs_json
        self.start()

    def start(self) -> None:
        self.callables = {name: self.wrap_tool(name, function) for name, function in self.tools.items()}

    @property
    def client(self) -> Any:
        return build_openai_client(self.url, max_retries=0)

    def close(self) -> None: ...

    def wrap_tool(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def converse(self, task: str, *, is_compacted: bool) -> str:
        """Play one conversation. Return the last text of the model."""
        messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
        for _ in range(MAX_TURNS):
            message = self.request(messages)
            if not message.get("tool_calls"):
                return message.get("content") or ""
            messages.append(message)
            for call in message["tool_calls"]:
                content = self.call_tool(call["function"]["name"], call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        return "The turns are used up."

    def request(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        message = self.complete(model=OPENAI_MODEL, messages=messages, **self.options()).choices[0].message
        return to_plain_message(message)

    def complete(self, **options: Any) -> Any:
        return self.client.chat.completions.create(**options)

    def options(self) -> dict[str, Any]:
        functions = [{"type": "function", "function": declare(name)} for name in self.tools]
        return {"tools": functions} | ({"response_format": {"type": "json_object"}} if self.needs_json else {})

    def call_tool(self, name: str, arguments: str) -> str:
        if name not in self.callables:
            return f"Error: there is no tool {name!r}. Tools: {', '.join(self.callables)}"
        try:
            values = json.loads(arguments)
        except ValueError as error:
            return f"Error: the arguments are not valid JSON: {error}"
        try:
            result = self.callables[name](**values)
        except Exception as error:  # noqa: BLE001 - the model reads it, whatever it is
            return f"Error: {type(error).__name__}: {error}"
        return result if isinstance(result, str) else json.dumps(result)


class Tenacity(Contender):
    """Tenacity around tools and model calls, as OpenAI's cookbook has it."""

    name = "tenacity"

    def wrap_tool(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.retry(find_retryable(name))(function)

    def complete(self, **options: Any) -> Any:
        return self.retry(is_transient)(super().complete)(**options)

    def retry(self, is_retryable: Callable[[BaseException], bool]) -> Any:
        return tenacity.retry(
            wait=tenacity.wait_random_exponential(min=1, max=60),
            stop=tenacity.stop_after_attempt(6),
            retry=tenacity.retry_if_exception(is_retryable),
            reraise=True,
        )


class Stamina(Tenacity):
    """Stamina around tools and model calls: its defaults, and a backoff hook that reads Retry-After."""

    name = "stamina"

    def retry(self, is_retryable: Callable[[BaseException], bool]) -> Any:
        def decide(error: Exception) -> bool | float:
            response = getattr(error, "response", None)
            wait = response.headers.get("retry-after") if response is not None else None
            return float(wait) if wait and is_retryable(error) else is_retryable(error)

        return stamina.retry(on=decide)


class OpenAIClient(Contender):
    """OpenAI's client as it comes."""

    name = "OpenAI client"

    @property
    def client(self) -> Any:
        return build_openai_client(self.url)


class AnthropicClient(Contender):
    """Anthropic's client as it comes."""

    name = "Anthropic client"

    def request(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        tools: list[Any] = [
            {"name": name, "description": declare(name)["description"], "input_schema": declare(name)["parameters"]}
            for name in self.tools
        ]
        answer = build_anthropic_client(self.url).messages.create(
            model=ANTHROPIC_MODEL, max_tokens=1000, system=SYSTEM, tools=tools, messages=to_anthropic_messages(messages)
        )
        calls = [
            {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": json.dumps(block.input)}}
            for block in answer.content
            if block.type == "tool_use"
        ]
        text = "".join(block.text for block in answer.content if block.type == "text")
        return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})


class LiteLLMRouter(Contender):
    """LiteLLM's router over two deployments of the model, and one with a larger window for conversations too long."""

    name = "LiteLLM router"

    def start(self) -> None:
        super().start()
        self.router = litellm.Router(
            model_list=[self.deploy("agent", "a"), self.deploy("agent", "b"), self.deploy("large", "large")],
            num_retries=3,
            retry_policy=litellm.RetryPolicy(
                TimeoutErrorRetries=3,
                RateLimitErrorRetries=3,
                InternalServerErrorRetries=3,
                ServiceUnavailableErrorRetries=3,
            ),
            context_window_fallbacks=[{"agent": ["large"]}],
        )

    def deploy(self, group: str, deployment: str) -> dict[str, Any]:
        url = f"{self.url}/{deployment}/v1"
        return {
            "model_name": group,
            "litellm_params": {"model": f"openai/{OPENAI_MODEL}", "api_base": url, "api_key": KEY},
        }

    def complete(self, **options: Any) -> Any:
        return self.router.completion(**options | {"model": "agent"})

    def close(self) -> None:
        self.router.reset()


class UnsafeToolRetryMiddleware(langchain_middleware.ToolRetryMiddleware):
    """The same middleware by another name: an agent takes each name once."""


class LangChain(Contender):
    """LangChain's agent with its retry middlewares, set by tool, and its pattern for errors of tools."""

    name = "LangChain"

    def start(self) -> None:
        super().start()
        model = build_langchain_model(self.url)
        tools = [langchain_tool(function) for function in self.tools.values()]
        self.agent = create_agent(model, tools, system_prompt=SYSTEM, middleware=self.middleware())

    def middleware(self) -> list[Any]:
        @langchain_middleware.wrap_tool_call
        def show_error(request: Any, handler: Any) -> Any:
            try:
                return handler(request)
            except Exception as error:  # noqa: BLE001 - as in LangChain's guide
                text = f"Tool error: Please check your input and try again. ({error})"
                return ToolMessage(content=text, tool_call_id=request.tool_call["id"], status="error")

        return [
            show_error,
            langchain_middleware.ToolRetryMiddleware(tools=SAFE_TOOLS, retry_on=is_transient),
            UnsafeToolRetryMiddleware(tools=UNSAFE_TOOLS, retry_on=proves_no_effect),
            langchain_middleware.ModelRetryMiddleware(),
        ]

    def converse(self, task: str, *, is_compacted: bool) -> str:
        # One call at a time, as in the other programs: their waiting would otherwise overlap.
        messages: Any = {"messages": [{"role": "user", "content": task}]}
        state = self.agent.invoke(messages, config={"max_concurrency": 1})
        return str(state["messages"][-1].content)


class LangChainDefaults(LangChain):
    """The same as its documentation begins: both middlewares without arguments, for every tool."""

    name = "LangChain, as it comes"

    def middleware(self) -> list[Any]:
        return [langchain_middleware.ToolRetryMiddleware(), langchain_middleware.ModelRetryMiddleware()]


class PydanticAI(Contender):
    """PydanticAI's agent: tools ask for a retry by ModelRetry, requests of the model go through its transport."""

    name = "PydanticAI"

    def start(self) -> None:
        super().start()
        output: Any = pydantic_ai.PromptedOutput(Answer) if self.needs_json else str
        self.agent = pydantic_ai.Agent(
            build_pydantic_ai_model(self.url),
            output_type=output,
            instructions=SYSTEM,
            tools=[pydantic_ai.Tool(function) for function in self.callables.values()],
            retries=3,
        )

    def wrap_tool(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def show_error(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                raise pydantic_ai.ModelRetry(f"{type(error).__name__}: {error}") from error

        show_error.__dict__.update(function.__dict__)
        show_error.__name__ = show_error.__qualname__ = name
        show_error.__doc__, show_error.__annotations__ = function.__doc__, function.__annotations__
        return show_error

    def converse(self, task: str, *, is_compacted: bool) -> str:
        with self.agent.parallel_tool_call_execution_mode("sequential"):
            output = self.agent.run_sync(task).output
        return output if isinstance(output, str) else json.dumps(asdict(output))


class MulliganDefaults(Contender):
    """Mulligan as it comes, in its own loop over turns."""

    name = "mulligan"

    def start(self) -> None:
        self.home = tempfile.mkdtemp(prefix="mulligan-peers-")
        self.mulligan = Mulligan(store=f"{self.home}/mulligan.db")
        self.session = self.mulligan.session()
        super().start()
        self.wrapped_client = self.mulligan.wrap_client(build_openai_client(self.url))

    @property
    def client(self) -> Any:
        return self.wrapped_client

    def wrap_tool(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        wrapped: Callable[..., Any] = self.mulligan.tool(effects=EFFECTS[name])(function)
        return wrapped

    def converse(self, task: str, *, is_compacted: bool) -> str:
        if is_compacted:
            self.session.mark_compacted()
        else:
            self.session = self.mulligan.session()
        system = f"{SYSTEM}\n{self.session.reminder()}".strip()
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}, {"role": "user", "content": task}]
        try:
            with self.mulligan.run("agent", session=self.session):
                for turn in self.mulligan.turns(limit=MAX_TURNS):
                    message = self.request(messages)
                    if not message.get("tool_calls"):
                        return message.get("content") or ""
                    messages.append(message)
                    for call in message["tool_calls"]:
                        function = call["function"]
                        outcome = turn.call(self.callables, function["name"], function["arguments"])
                        messages.append({"role": "tool", "tool_call_id": call["id"], "content": outcome.to_message()})
        finally:
            self.mulligan.flush()
        return "The turns are used up."

    def close(self) -> None:
        self.mulligan.close()
        shutil.rmtree(self.home, ignore_errors=True)


CONTENDERS: tuple[type[Contender], ...] = (
    Contender, Tenacity, Stamina, OpenAIClient, AnthropicClient, LangChain, LangChainDefaults, LiteLLMRouter,
    PydanticAI, MulliganDefaults,
)  # fmt: skip
VERSIONS = ("tenacity", "stamina", "openai", "anthropic", "langchain", "litellm", "pydantic-ai-slim")


# Clients are stateless: one of each serves all plays, because making one takes long.


@functools.cache
def build_openai_client(url: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(api_key=KEY, base_url=f"{url}/a/v1", **options)


@functools.cache
def build_anthropic_client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key=KEY, base_url=f"{url}/a")


@functools.cache
def build_langchain_model(url: str) -> ChatOpenAI:
    return ChatOpenAI(model=OPENAI_MODEL, base_url=f"{url}/a/v1", api_key=KEY)  # type: ignore[arg-type]


@functools.cache
def build_pydantic_ai_model(url: str) -> OpenAIChatModel:
    """Return a model with the retries that PydanticAI's page on HTTP requests shows."""
    transport = pydantic_ai.retries.AsyncTenacityTransport(
        config=pydantic_ai.retries.RetryConfig(
            retry=tenacity.retry_if_exception_type((httpx.HTTPStatusError, ConnectionError)),
            wait=pydantic_ai.retries.wait_retry_after(
                fallback_strategy=tenacity.wait_exponential(multiplier=1, max=60), max_wait=300
            ),
            stop=tenacity.stop_after_attempt(5),
            reraise=True,
        ),
        validate_response=raise_transient_status,
    )
    http_client = httpx.AsyncClient(transport=transport)
    provider = OpenAIProvider(base_url=f"{url}/a/v1", api_key=KEY, http_client=http_client)
    return OpenAIChatModel(OPENAI_MODEL, provider=provider)


def raise_transient_status(response: httpx.Response) -> None:
    if response.status_code in (429, 502, 503, 504):
        response.raise_for_status()


def to_plain_message(message: Any) -> dict[str, Any]:
    """Return the message of a completion as a program sends it back."""
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in message.tool_calls or ()
    ]
    return {"role": "assistant", "content": message.content} | ({"tool_calls": calls} if calls else {})


def to_anthropic_messages(messages: list[dict[str, Any]]) -> list[Any]:
    converted: list[dict[str, Any]] = []
    for message in messages[1:]:
        if message["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            if converted[-1]["role"] == "user":
                converted[-1]["content"].append(block)
            else:
                converted.append({"role": "user", "content": [block]})
        elif message.get("tool_calls"):
            blocks = [
                {
                    "type": "tool_use",
                    "id": call["id"],
                    "name": call["function"]["name"],
                    "input": json.loads(call["function"]["arguments"]),
                }
                for call in message["tool_calls"]
            ]
            converted.append({"role": "assistant", "content": blocks})
        else:
            converted.append({"role": message["role"], "content": message["content"]})
    return converted


@functools.cache
def declare(name: str) -> dict[str, Any]:
    """Return a tool as OpenAI's form declares it."""
    schema: dict[str, Any] = langchain_tool(TOOLS[name]).tool_call_schema.model_json_schema()  # type: ignore[union-attr]
    return {"name": name, "description": TOOLS[name].__doc__, "parameters": schema}
