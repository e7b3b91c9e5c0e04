"""Plays scenarios in Agno, with the tool hook of docs/frameworks/agno.md."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.base import Model
from agno.models.response import ModelResponse

import mulligan
from frameworks.pages import PageDriver, annotate, execute_blocks
from frameworks.scenarios import Conversation, Reply, Request, Style, cancel_when_started
from mulligan.testing import Sandbox


@dataclass
class ScriptedModel(Model):
    """Answers with the next reply of a script."""

    id: str = "scripted"
    script: list[Any] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)

    def invoke(self, messages: Any, **kwargs: Any) -> ModelResponse:
        self.sent.append([(message.role, str(message.content)) for message in messages])
        reply = self.script.pop(0)
        if isinstance(reply, Exception):
            raise reply
        response = ModelResponse(role="assistant", content=reply if isinstance(reply, str) else "")
        if not isinstance(reply, str):
            response.tool_calls = [
                {
                    "id": f"call_{len(self.script)}_{index}",
                    "type": "function",
                    "function": {"name": request.tool, "arguments": json.dumps(request.arguments)},
                }
                for index, request in enumerate(reply)
            ]
        return response

    async def ainvoke(self, messages: Any, **kwargs: Any) -> ModelResponse:
        return ScriptedModel.invoke(self, messages, **kwargs)

    def invoke_stream(self, messages: Any, **kwargs: Any) -> Iterator[ModelResponse]:
        yield ScriptedModel.invoke(self, messages, **kwargs)

    async def ainvoke_stream(self, messages: Any, **kwargs: Any) -> AsyncIterator[ModelResponse]:
        yield ScriptedModel.invoke(self, messages, **kwargs)

    def _parse_provider_response(self, response: Any, **kwargs: Any) -> ModelResponse:
        return response  # type: ignore[no-any-return]

    def _parse_provider_response_delta(self, response: Any) -> ModelResponse:
        return response  # type: ignore[no-any-return]


class AgnoDriver(PageDriver):
    name = "agno"
    title = "Agno"
    limits: dict[str, str] = {  # noqa: RUF012
        "unknown tool": "Agno calls no hook. The model reads that the tool does not exist.",
    }
    styles = ("sync", "async", "stream")
    programs = 2
    knows_turns = False

    def play(
        self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], style: Style, **options: Any
    ) -> Conversation:
        page = execute_blocks(self.name, 1, 3)
        settings = options.get("tools", {}).get("*", {})
        model = page["recover_model"](ScriptedModel, **options.get("model", {}))(script=list(script))
        tools = [page["recover"](function, **settings) for function in annotate(functions)]
        agent = Agent(model=model, tools=tools, telemetry=False)
        conversation = Conversation()
        try:
            with mulligan.run("tester"):
                if style == "sync":
                    conversation.text = agent.run("Find fish.").content
                elif style == "async":
                    conversation.text = asyncio.run(agent.arun("Find fish.")).content
                else:
                    chunks = [event.content for event in agent.run("Find fish.", stream=True) if event.content]
                    conversation.text = chunks[-1]
        except Exception as error:  # noqa: BLE001 - the scenario judges it
            conversation.error = error
        conversation.sent = [str(messages) for messages in model.sent]
        conversation.answers = [content for role, content in (model.sent or [[]])[-1] if role == "tool"]
        return conversation

    def make_model(self, script: Sequence[Reply]) -> Any:
        return ScriptedModel(script=list(script))

    def cancel(self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], started: asyncio.Event) -> None:
        page = execute_blocks(self.name, 1, 3)
        model = ScriptedModel(script=list(script))
        tools = [page["recover"](function) for function in annotate(functions)]
        agent = Agent(model=model, tools=tools, telemetry=False)

        async def play() -> None:
            with mulligan.run("tester"):
                await agent.arun("Wait.")

        cancel_when_started(play, started)

    def interrupt_and_resume(self, played: Sandbox) -> str:
        def pay(amount: int) -> str:
            """Pay an amount."""
            return f"paid {amount}, approved"

        page = execute_blocks(self.name, 1, 3)
        tool = page["recover"](pay)
        tool.requires_confirmation = True
        model = ScriptedModel(script=[[Request("pay", {"amount": 5})], "done"])
        agent = Agent(model=model, tools=[tool], telemetry=False, db=InMemoryDb())
        with mulligan.run("tester"):
            paused = agent.run("Pay.")
            for requirement in paused.active_requirements:
                requirement.confirm()
            agent.continue_run(run_id=paused.run_id, requirements=paused.requirements)
        return str(model.sent[-1])


driver = AgnoDriver()
