"""Plays scenarios in PydanticAI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from pydantic_ai import Agent, ApprovalRequired, DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from frameworks.scenarios import Conversation, Reply, Request, Style, cancel_when_started
from mulligan.integrations.pydantic_ai import MulliganCapability
from mulligan.testing import Sandbox


class ScriptedModel:
    """Answers with the next reply of a script. `as_model` gives it to PydanticAI."""

    def __init__(self, script: Sequence[Reply]) -> None:
        self.script = list(script)
        self.sent: list[str] = []
        self.messages: list[ModelMessage] = []

    def as_model(self) -> FunctionModel:
        return FunctionModel(self.answer, stream_function=self.stream, model_name="scripted")

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        reply = self._next_reply(messages, info)
        if isinstance(reply, str):
            return ModelResponse([TextPart(reply)])
        return ModelResponse([ToolCallPart(name, json.loads(arguments), id) for name, arguments, id in reply])

    async def stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        reply = self._next_reply(messages, info)
        if isinstance(reply, str):
            yield reply
            return
        for number, (name, arguments, id) in enumerate(reply):
            yield {number: DeltaToolCall(name, arguments, tool_call_id=id)}

    def _next_reply(self, messages: list[ModelMessage], info: AgentInfo) -> Any:
        self.messages = list(messages)
        parts = [part for message in messages for part in message.parts]
        texts = [str(getattr(part, "content", "")) for part in parts]
        self.sent.append("\n".join([info.instructions or "", *texts]))
        reply = self.script.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, str):
            return reply
        left = len(self.script)
        return [
            (request.tool, json.dumps(request.arguments), f"call_{left}_{index}") for index, request in enumerate(reply)
        ]


class PydanticAIDriver:
    name = "pydantic_ai"
    title = "PydanticAI"
    limits: dict[str, str] = {}  # noqa: RUF012 - nothing

    def play(
        self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], style: Style, **options: Any
    ) -> Conversation:
        model = ScriptedModel(script)
        agent = Agent(
            model.as_model(), tools=list(functions), capabilities=[MulliganCapability(agent="tester", **options)]
        )
        conversation = Conversation(sent=model.sent)
        try:
            if style == "sync":
                conversation.text = run_sync(agent, "Find fish.").output
            elif style == "async":
                conversation.text = asyncio.run(agent.run("Find fish.")).output
            else:
                conversation.text = asyncio.run(_stream(agent))
        except Exception as error:  # noqa: BLE001 - the scenario judges it
            conversation.error = error
        conversation.answers = [
            str(part.content)
            for message in model.messages
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]
        return conversation

    def cancel(self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], started: asyncio.Event) -> None:
        agent = Agent(
            ScriptedModel(script).as_model(), tools=list(functions), capabilities=[MulliganCapability(agent="tester")]
        )

        cancel_when_started(lambda: agent.run("Wait."), started)

    def interrupt_and_resume(self, played: Sandbox) -> str:
        def pay(ctx: RunContext[None], amount: int) -> str:
            """Pay an amount."""
            if not ctx.tool_call_approved:
                raise ApprovalRequired
            return f"paid {amount}, approved"

        model = ScriptedModel([[Request("pay", {"amount": 5})], "done"])
        agent = Agent(
            model.as_model(),
            tools=[pay],
            output_type=[str, DeferredToolRequests],
            capabilities=[MulliganCapability(agent="tester")],
        )
        paused = run_sync(agent, "Pay.")
        assert isinstance(paused.output, DeferredToolRequests)
        approvals = {call.tool_call_id: True for call in paused.output.approvals}
        results = DeferredToolResults(approvals=approvals)
        run_sync(agent, message_history=paused.all_messages(), deferred_tool_results=results)
        return model.sent[-1]


def run_sync(agent: Agent[None, Any], *args: Any, **kwargs: Any) -> Any:
    """Call `run_sync` with an event loop that is closed afterwards: PydanticAI leaves its own open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return agent.run_sync(*args, **kwargs)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _stream(agent: Agent[None, str]) -> str:
    async with agent.run_stream("Find fish.") as streamed:
        return "".join([text async for text in streamed.stream_text(delta=True)])


driver = PydanticAIDriver()
