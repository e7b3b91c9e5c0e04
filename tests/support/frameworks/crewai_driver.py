"""Plays scenarios in CrewAI, with the hooks of docs/frameworks/crewai.md."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", OTEL_SDK_DISABLED="true")

from crewai import Agent, BaseLLM, Crew, Task
from crewai.hooks import clear_all_global_hooks
from crewai.tools import tool

import mulligan
from frameworks.pages import decorate, execute_blocks
from frameworks.scenarios import Conversation, Reply, Style
from mulligan.testing import Sandbox


class ScriptedLLM(BaseLLM):
    """Answers with the next reply of a script."""

    script: list[Any]
    sent: list[Any] = []  # noqa: RUF012 - pydantic copies it

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        self.sent.append([dict(message) for message in messages])
        reply = self.script.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, str):
            return reply
        return [
            {
                "id": f"call_{len(self.script)}_{index}",
                "type": "function",
                "function": {"name": request.tool, "arguments": request.arguments},
            }
            for index, request in enumerate(reply)
        ]

    async def acall(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        return self.call(messages, *args, **kwargs)

    def supports_function_calling(self) -> bool:
        return True


class CrewAIDriver:
    name = "crewai"
    title = "CrewAI"
    limits: dict[str, str] = {  # noqa: RUF012
        "conversation that is too long": "CrewAI itself summarizes it.",
        "cancellation": "It runs async tools in threads of its own, which a cancelled task does not stop.",
        "interrupt": "A tool cannot pause the crew.",
    }
    styles = ("sync", "async", "stream")
    programs = 2
    knows_turns = True

    def play(
        self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], style: Style, **options: Any
    ) -> Conversation:
        clear_all_global_hooks()
        page = execute_blocks(self.name, 1, 3)
        model = page["record_model"](ScriptedLLM)(model="scripted", script=list(script))
        tools = [tool(function) for function in decorate(functions, options)]
        agent = Agent(role="tester", goal="Find fish.", backstory="You know it.", llm=model, tools=tools)
        crew = Crew(agents=[agent], tasks=[Task(description="Find fish.", expected_output="fish", agent=agent)])
        conversation = Conversation()
        try:
            with mulligan.run("tester"):
                if style == "sync":
                    conversation.text = crew.kickoff().raw
                elif style == "async":
                    conversation.text = asyncio.run(crew.akickoff()).raw
                else:
                    crew.stream = True
                    stream = crew.kickoff()
                    for _ in stream:
                        pass
                    conversation.text = stream.result.raw
        except Exception as error:  # noqa: BLE001 - the scenario judges it
            conversation.error = error
        finally:
            clear_all_global_hooks()
        conversation.sent = [str(messages) for messages in model.sent]
        conversation.answers = [message["content"] for message in (model.sent or [[]])[-1] if message["role"] == "tool"]
        return conversation

    def run_page(self, script: Sequence[Reply], *blocks: int) -> tuple[Any, str]:
        """Run these blocks of the page, or all. Return their last run, and what the model has read last."""
        clear_all_global_hooks()
        try:
            model = ScriptedLLM(model="scripted", script=list(script))
            names = execute_blocks(self.name, *blocks, model=model)
        finally:
            clear_all_global_hooks()
        return names["run"], str(model.sent[-1])

    def cancel(self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], started: asyncio.Event) -> None:
        raise NotImplementedError

    def interrupt_and_resume(self, played: Sandbox) -> str:
        raise NotImplementedError


driver = CrewAIDriver()
