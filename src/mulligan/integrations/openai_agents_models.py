"""Recovering models of the OpenAI Agents SDK. `openai_agents.py` gives them to the agents."""

from __future__ import annotations

import contextlib
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from openai.types import responses

import agents
from agents import Model, ModelResponse
from mulligan.core.records import new_id
from mulligan.integrations.framework_agent import AgentRun, FrameworkAgent
from mulligan.integrations.framework_tools import ToolDefinition

MAX_RETRIED_ERRORS = 20
"""Errors of a model that are kept until the SDK asks whether it may retry, in all runs at once."""
FindRun = Callable[[], AgentRun]


def protect_model(model: Model, agent: FrameworkAgent, find_run: FindRun) -> Model:
    """Return a model whose calls are recovered."""
    return model if isinstance(model, _RecoveringModel) else _RecoveringModel(model, agent, find_run)


class RecoveringProvider(agents.ModelProvider):
    """A provider whose models are recovered."""

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
        self._retried_errors: deque[Exception] = deque(maxlen=MAX_RETRIED_ERRORS)
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
