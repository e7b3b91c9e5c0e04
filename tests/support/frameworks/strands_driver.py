"""Plays scenarios in Strands."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pydantic
from strands import Agent, ToolContext, tool
from strands.models import Model

from frameworks.scenarios import Conversation, Reply, Request, Style
from mulligan.integrations.strands import MulliganPlugin
from mulligan.testing import Sandbox


class ScriptedModel(Model):
    """Answers with the next reply of a script."""

    stateful = False

    def __init__(self, script: Sequence[Any]) -> None:
        self.script = list(script)
        self.sent: list[str] = []

    def update_config(self, **settings: Any) -> None:
        pass

    def get_config(self) -> dict[str, Any]:
        return {"model_id": "scripted"}

    async def structured_output(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield

    async def stream(
        self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        self.sent.append("\n".join([system_prompt or "", *map(_text_of, messages)]))
        reply = self.script.pop(0)
        if isinstance(reply, Exception):
            raise reply
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(reply, str):
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": reply}}}
            yield {"contentBlockStop": {}}
        else:
            for index, request in enumerate(reply):
                tool_use = {"name": request.tool, "toolUseId": f"call_{len(self.script)}_{index}"}
                yield {"contentBlockStart": {"start": {"toolUse": tool_use}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(request.arguments)}}}}
                yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if isinstance(reply, str) else "tool_use"}}
        usage = {"inputTokens": 12, "outputTokens": 3, "totalTokens": 15}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


def _text_of(message: Any) -> str:
    return "\n".join(_texts_of(message["content"]))


def _texts_of(blocks: Sequence[Any]) -> list[str]:
    texts = [block["text"] for block in blocks if "text" in block]
    for block in blocks:
        texts += _texts_of(block["toolResult"]["content"]) if "toolResult" in block else []
    return texts


def answers_of(messages: Sequence[Any]) -> list[str]:
    """Return the results of tool calls, as the model has read them."""
    blocks = [block for message in messages for block in message["content"] if "toolResult" in block]
    return ["\n".join(_texts_of([block])) for block in blocks]


def as_tool(function: Callable[..., Any]) -> Any:
    """Return a tool with all constraints in its schema: the decorator does not read those of pydantic."""
    schema = pydantic.TypeAdapter(function).json_schema()
    types = {name: getattr(hint, "__origin__", hint) for name, hint in function.__annotations__.items()}
    signature = inspect.signature(function)
    parameters = [parameter.replace(annotation=types[name]) for name, parameter in signature.parameters.items()]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__annotations__ = types
    return tool(inputSchema={"json": schema})(function)


class StrandsDriver:
    name = "strands"
    title = "Strands"
    limits: dict[str, str] = {}  # noqa: RUF012 - nothing

    def _agent(self, functions: Sequence[Callable[..., Any]], chat_model: ScriptedModel, **options: Any) -> Agent:
        plugin = MulliganPlugin(agent="tester", **options)
        tools: list[Any] = [as_tool(function) for function in functions]
        return Agent(chat_model, tools=tools, plugins=[plugin], callback_handler=None)

    def play(
        self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], style: Style, **options: Any
    ) -> Conversation:
        model = ScriptedModel(script)
        agent = self._agent(functions, model, **options)
        conversation = Conversation(sent=model.sent)

        async def stream() -> None:
            async for _ in agent.stream_async("Find fish."):
                pass

        try:
            if style == "sync":
                agent("Find fish.")
            elif style == "async":
                asyncio.run(agent.invoke_async("Find fish."))  # type: ignore[arg-type]
            else:
                asyncio.run(stream())
        except Exception as error:  # noqa: BLE001 - the scenario judges it
            conversation.error = error
        conversation.answers = answers_of(agent.messages)
        conversation.text = _text_of(agent.messages[-1])
        return conversation

    def cancel(self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], started: asyncio.Event) -> None:
        agent = self._agent(functions, ScriptedModel(script))

        async def play() -> None:
            task = asyncio.ensure_future(agent.invoke_async("Wait."))
            await started.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(play())

    def interrupt_and_resume(self, played: Sandbox) -> str:
        @tool(context=True)
        def pay(amount: int, tool_context: ToolContext) -> str:
            """Pay an amount."""
            return f"paid {amount}, {tool_context.interrupt('approval', reason='May I pay?')}"

        model = ScriptedModel([[Request("pay", {"amount": 5})], "done"])
        agent = Agent(model, tools=[pay], plugins=[MulliganPlugin(agent="tester")], callback_handler=None)
        (interrupt,) = agent("Pay.").interrupts
        agent([{"interruptResponse": {"interruptId": interrupt.id, "response": "approved"}}])
        return "\n".join(answers_of(agent.messages))


driver = StrandsDriver()
