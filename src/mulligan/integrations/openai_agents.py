"""Recovery for the OpenAI Agents SDK: `Runner = MulliganRunner()`, and then `Runner.run(agent, ...)` as always."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from openai.types import responses

import agents
from agents import Agent, Handoff, Model, ModelResponse, Runner
from mulligan.api import Mulligan
from mulligan.capture.call_scope import ContextValue
from mulligan.capture.player import run_in_thread
from mulligan.core.records import new_id
from mulligan.integrations.framework_agent import AgentRun, FrameworkAgent
from mulligan.integrations.framework_tools import ToolDefinition
from mulligan.integrations.openai_agents_tools import await_answer, protect_tool, report_errors


class MulliganRunner:
    """Runs agents like `Runner`, records the runs, and recovers tool and model calls.

    The options are those of `FrameworkAgent`.
    """

    def __init__(self, mulligan: Mulligan | None = None, **options: Any) -> None:
        self._agent = FrameworkAgent(mulligan, **options)
        self._find_run = functools.partial(_find_run, self._agent)

    async def run(self, starting_agent: Agent[Any], input: Any, **options: Any) -> agents.RunResult:
        async with _RunnerCall(self._agent, starting_agent, input, options) as call:
            call.result = await Runner.run(self.protect(starting_agent), input, **call.options)
        return call.result

    def run_sync(self, starting_agent: Agent[Any], input: Any, **options: Any) -> agents.RunResult:
        with _RunnerCall(self._agent, starting_agent, input, options) as call:
            call.result = Runner.run_sync(self.protect(starting_agent), input, **call.options)
        return call.result

    def run_streamed(self, starting_agent: Agent[Any], input: Any, **options: Any) -> agents.RunResultStreaming:
        with _RunnerCall(self._agent, starting_agent, input, options) as call:
            call.result = Runner.run_streamed(self.protect(starting_agent), input, **call.options)
            call.follow(call.result.run_loop_task)
        return call.result

    def protect(self, agent: Agent[Any]) -> Agent[Any]:
        """Return a copy of an agent and of those it hands off to. Their calls are recovered.

        The runner does this itself. Call it for an agent that becomes a tool, or that `RunState.from_json` gets.
        """
        return self._protect_agent(agent, {})

    def _protect_agent(self, agent: Agent[Any], copies: dict[int, tuple[Any, Any]]) -> Agent[Any]:
        if "__mulligan__" in vars(agent):
            return agent
        if id(agent) not in copies:
            protected = copy.copy(agent)
            copies[id(agent)] = agent, protected
            setattr(protected, "__mulligan__", agent)  # noqa: B010 - as on wrapped functions
            protected.tools = [self._protect_tool(tool) for tool in agent.tools]
            if isinstance(agent.model, Model):
                protected.model = protect_model(agent.model, self._agent, self._find_run)
            if agent.mcp_servers:
                protected.get_mcp_tools = functools.partial(self._get_mcp_tools, protected)
            protected.handoffs = [
                (self._protect_agent if isinstance(target, Agent) else self._protect_handoff)(target, copies)
                for target in agent.handoffs
            ]
        return copies[id(agent)][1]

    async def _get_mcp_tools(self, agent: Agent[Any], context: Any) -> list[Any]:
        for server in agent.mcp_servers:
            report_errors(server)
        return [self._protect_tool(tool) for tool in await type(agent).get_mcp_tools(agent, context)]

    def _protect_tool(self, tool: Any) -> Any:
        return protect_tool(tool, self._agent, self._find_run)

    def _protect_handoff(self, handoff: Handoff[Any, Any], copies: dict[int, tuple[Any, Any]]) -> Handoff[Any, Any]:
        async def hand_off(context: Any, arguments: str) -> Any:
            return self._protect_agent(await handoff.on_invoke_handoff(context, arguments), copies)

        protected = copy.copy(handoff)
        protected.on_invoke_handoff = hand_off
        if (reference := getattr(handoff, "_agent_ref", None)) is not None and (target := reference()) is not None:
            # By this a state from JSON finds its agents. A handoff has no public name for its target.
            protected._agent_ref = weakref.ref(self._protect_agent(target, copies))
        return protected


# Runs

_current_call: ContextVar[_RunnerCall | None] = ContextVar("mulligan_runner_call", default=None)


class _RunnerCall:
    """A call of the runner, which starts a run or resumes a paused one. Its calls find it by the context."""

    run: AgentRun

    def __init__(self, agent: FrameworkAgent, starting_agent: Agent[Any], input: Any, options: dict[str, Any]) -> None:
        config = options.get("run_config")
        self._owns_provider = config is None or (isinstance(config, dict) and "model_provider" not in config)
        config = agents.RunConfig(**(config or {})) if config is None or isinstance(config, dict) else config
        self.agent, self.options, self._config, self._name = agent, options, config, starting_agent.name
        is_resumed = isinstance(input, agents.RunState)
        self._key = (_find_key(input.get_interruptions()) if is_resumed else "") or new_id("openai_agents")
        self.result: Any = None
        self._task: asyncio.Task[Any] | None = None
        self._scope = ContextValue(_current_call, lambda: self)

    def _start(self) -> None:
        agent, config = self.agent, self._config
        session_id = getattr(self.options.get("session"), "session_id", None)
        session_id = self.options.get("conversation_id") or session_id or config.group_id
        self.run = agent.start_run(self._key, agent=self._name, session=session_id)
        find_run = functools.partial(_find_run, agent)
        changes: dict[str, Any] = {"model_provider": RecoveringProvider(config.model_provider, agent, find_run)}
        if isinstance(config.model, Model):
            changes["model"] = protect_model(config.model, agent, find_run)
        if agent.is_enabled and not self.run.only_observes({}, ""):
            changes |= {"tool_error_formatter": self._answer, "tool_not_found_behavior": "return_error_to_model"}
        self.options = self.options | {"run_config": replace(config, **changes)}

    def __enter__(self) -> _RunnerCall:
        self._start()
        self._scope.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._scope.__exit__(kind, error, trace)
        if self._task is None:
            self._end(error)

    async def __aenter__(self) -> _RunnerCall:
        await run_in_thread(self._start)  # it may read the session from the store
        self._scope.__enter__()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._scope.__exit__(kind, error, trace)
        await run_in_thread(self._end, error)
        await self._close_provider()

    def follow(self, task: asyncio.Task[Any]) -> None:
        """End the run with the task that makes the stream."""
        self._task = task
        task.add_done_callback(self._end_stream)

    def _end_stream(self, task: asyncio.Task[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        result, limit = self.result, self.result.max_turns
        if error is None and result.final_output is None and limit is not None and result.current_turn > limit:
            error = agents.MaxTurnsExceeded(f"Max turns ({limit}) exceeded")  # the stream raises it, not the task
        self._end(error)
        if self._owns_provider:
            self._closing = asyncio.ensure_future(self._close_provider())

    async def _close_provider(self) -> None:
        """Close the connections of a provider that the runner has made. The SDK closes only those that it makes."""
        if self._owns_provider:
            with contextlib.suppress(Exception):
                await self._config.model_provider.aclose()

    def _end(self, error: BaseException | None) -> None:
        if error is None and self.result.interruptions:
            self.run.pause(_find_key(self.result.interruptions))
        else:
            self.run.end(error)

    async def _answer(self, error: Any) -> str | None:
        """Answer a call of an unknown tool. It is not made under a similar name: that tool may need an approval."""
        describe = self._config.tool_error_formatter
        text = await await_answer(describe(error)) if describe is not None else None
        if error.kind != "tool_not_found":
            return text
        tools, arguments = self.run.requests.pop(error.call_id, ({}, {}))
        outcome = await self.run.acall(tools, error.tool_name, arguments, _never_called)
        if text is not None:
            outcome = replace(outcome, value=text, is_returned_error=True)
        return outcome.to_message()


async def _never_called(name: str, arguments: dict[str, Any]) -> Any: ...


def _find_key(interruptions: list[Any]) -> str:
    """Return what identifies a paused run, also in a state from JSON: the calls that wait for an approval."""
    return " ".join(sorted(f"{item.call_id} {item.name} {item.arguments}" for item in interruptions))


def _find_run(agent: FrameworkAgent) -> AgentRun:
    call = _current_call.get()
    return call.run if call is not None and call.agent is agent else agent.start_run(None)


FindRun = Callable[[], AgentRun]


def protect_model(model: Model, agent: FrameworkAgent, find_run: FindRun) -> Model:
    """Return a model whose calls are recovered."""
    return model if isinstance(model, _RecoveringModel) else _RecoveringModel(model, agent, find_run)


class RecoveringProvider(agents.ModelProvider):
    def __init__(self, provider: agents.ModelProvider, agent: FrameworkAgent, find_run: FindRun) -> None:
        self._provider, self._agent, self._find_run = provider, agent, find_run

    def get_model(self, model_name: str | None) -> Model:
        return protect_model(self._provider.get_model(model_name), self._agent, self._find_run)

    async def aclose(self) -> None:
        await self._provider.aclose()


class _RecoveringModel(Model):
    """A model whose calls are recovered. In everything else it is the model itself."""

    def __init__(self, model: Model, agent: FrameworkAgent, find_run: FindRun) -> None:
        self._model, self._agent, self._find_run = model, agent, find_run
        # Errors of a model that are kept until the SDK asks whether it may retry, in all runs at once.
        self._retried_errors: deque[Exception] = deque(maxlen=20)
        for name in vars(Model).keys() - vars(_RecoveringModel).keys():
            if inspect.isfunction(getattr(Model, name)):
                setattr(self, name, getattr(model, name))

    def __getattr__(self, name: str) -> Any:
        if name == "_model":  # while it is copied
            raise AttributeError(name)
        return getattr(self._model, name)

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """Forbid retries of the SDK after ours: only one layer retries."""
        if any(error is request.error for error in self._retried_errors):
            return ModelRetryAdvice(suggested=False, replay_safety="unsafe", reason="mulligan has retried this request")
        return self._model.get_retry_advice(request)

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        answers: list[ModelResponse] = []

        async def ask(**request: Any) -> Any:
            answers.append(await self._model.get_response(**request))
            return {"output": answers[-1].output, "status": "", "usage": answers[-1].usage}  # as OpenAI has it

        request = _SIGNATURE.bind(self, *args, **kwargs).arguments
        answer = await self._ask(ask, request)
        response = answers[-1] if answers and isinstance(answer, dict) else _to_response(answer)
        self._note_unknown_tools(response.output, request)
        return response

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async def open_stream(**request: Any) -> Any:
            return self._model.stream_response(**request)

        request = _SIGNATURE.bind(self, *args, **kwargs).arguments
        answer = await self._ask(open_stream, request, stream=True)
        if not hasattr(answer, "aclose"):  # of a fallback
            yield _build_last_event(_to_response(answer))
            return
        async with contextlib.aclosing(answer) as stream:
            async for event in stream:
                if event.type == "response.output_item.done":
                    self._note_unknown_tools([event.item], request)
                yield event

    async def _ask(self, ask: Any, request: dict[str, Any], **settings: Any) -> Any:
        del request["self"]
        if not self._agent.is_enabled:
            return await ask(**request)
        run, input = self._find_run(), request["input"]
        messages = [{"role": "user", "content": input}] if isinstance(input, str) else input
        if instructions := await run.ainstructions(_tool_names(request), _summary_ids(messages)):
            texts = request["system_instructions"], instructions
            request["system_instructions"] = "\n\n".join(text for text in texts if text)
        attempts = 0

        async def attempt(messages: Any) -> Any:
            nonlocal attempts
            attempts += 1
            return await ask(**request | {"input": messages})

        try:
            return await run.aask(messages, attempt, model=getattr(self._model, "model", None), **settings)
        except Exception as error:
            if attempts > 1:
                self._retried_errors.append(error)
            raise

    def _note_unknown_tools(self, items: list[Any], request: dict[str, Any]) -> None:
        """Note the tools and arguments of calls of unknown tools: the SDK only asks how to answer them."""
        names = _tool_names(request)
        for item in items:
            if self._agent.is_enabled and item.type == "function_call" and item.name not in names:
                tools = {name: ToolDefinition(name, mode="observe") for name in names}
                self._find_run().requests[item.call_id] = tools, item.arguments


def _to_response(answer: Any) -> ModelResponse:
    """Return the answer of a fallback: a response or a text."""
    if isinstance(answer, ModelResponse):
        return answer
    text = responses.ResponseOutputText(type="output_text", text=str(answer), annotations=[])
    message = responses.ResponseOutputMessage(
        id=new_id("msg"), type="message", role="assistant", status="completed", content=[text]
    )
    return ModelResponse(output=[message], usage=agents.Usage(), response_id=None)


def _build_last_event(answer: ModelResponse) -> Any:
    """Return an answer as the last event of a stream."""
    response = responses.Response(
        id=answer.response_id or new_id("resp"),
        created_at=0,
        model="fallback",
        object="response",
        output=answer.output,
        parallel_tool_calls=False,
        tool_choice="auto",
        tools=[],
    )
    return responses.ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)


_SIGNATURE = inspect.signature(Model.get_response)


def _summary_ids(messages: list[Any]) -> list[str]:
    compactions = [item for item in messages if isinstance(item, dict) and item.get("type") == "compaction"]
    return [str(item.get("id") or item.get("encrypted_content")) for item in compactions]


def _tool_names(request: dict[str, Any]) -> list[str]:
    return [*(tool.name for tool in request["tools"]), *(handoff.tool_name for handoff in request["handoffs"])]
