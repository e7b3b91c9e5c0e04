"""Plays scenarios in the Google ADK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from frameworks.scenarios import Conversation, Reply, Request, Style, cancel_when_started
from mulligan.integrations.google_adk import MulliganPlugin
from mulligan.testing import Sandbox


class ScriptedModel(BaseLlm):
    """Answers with the next reply of a script."""

    model: str = "scripted"
    script: list[Any]
    sent: list[str] = []  # noqa: RUF012 - pydantic copies it
    usage: Any = None

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.sent.append("\n".join([str(llm_request.config.system_instruction), *map(read_text, llm_request.contents)]))
        reply = self.script.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, str):
            parts = [types.Part.from_text(text=reply)]
        else:
            parts = [types.Part.from_function_call(name=request.tool, args=request.arguments) for request in reply]
        content = types.Content(role="model", parts=parts)
        if stream:
            yield LlmResponse(content=content, partial=True)
        yield LlmResponse(content=content, partial=False if stream else None, usage_metadata=self.usage)


def read_text(content: types.Content | None) -> str:
    """Return the texts of a message, with the results of tools."""
    return "\n".join(part.text or "".join(read_responses(part)) for part in (content and content.parts) or ())


def read_responses(part: types.Part) -> list[str]:
    """Return what the model reads of a tool's response: a text alone as it is, all else as JSON."""
    if part.function_response is None:
        return []
    response = part.function_response.response or {}
    text = response.get("result") if len(response) == 1 else None
    return [text if isinstance(text, str) else json.dumps(response)]


class GoogleADKDriver:
    name = "google_adk"
    title = "Google ADK"
    limits: dict[str, str] = {}  # noqa: RUF012 - nothing

    def play(
        self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], style: Style, **options: Any
    ) -> Conversation:
        runner, model = build_runner(functions, script, **options)
        conversation = Conversation(sent=model.sent)
        try:
            events = ask(runner, "Find fish.", style)
        except Exception as error:  # noqa: BLE001 - the scenario judges it
            conversation.error, events = error, []
        contents = [event.content for event in events if event.content is not None and not event.partial]
        parts = [part for content in contents for part in content.parts or ()]
        conversation.answers = [text for part in parts for text in read_responses(part)]
        conversation.text = next((part.text for part in reversed(parts) if part.text), "")
        return conversation

    def cancel(self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], started: asyncio.Event) -> None:
        runner, _ = build_runner(functions, script)

        cancel_when_started(lambda: collect(runner, "Wait."), started)

    def interrupt_and_resume(self, played: Sandbox) -> str:
        def pay(amount: int, tool_context: ToolContext) -> str:
            """Pay an amount."""
            assert tool_context.tool_confirmation is not None
            return f"paid {amount}, {tool_context.tool_confirmation.hint or 'approved'}"

        script: list[Reply] = [[Request("pay", {"amount": 5})], "done"]
        runner, model = build_runner([FunctionTool(pay, require_confirmation=True)], script)
        events = ask(runner, "Pay.", "async")
        request = next(call for event in events for call in event.get_function_calls() if "confirmation" in call.name)
        answer = types.FunctionResponse(id=request.id, name=request.name, response={"confirmed": True})
        ask(runner, types.Content(role="user", parts=[types.Part(function_response=answer)]), "async")
        return "\n".join(model.sent)


def build_runner(
    functions: Sequence[Any], script: Sequence[Reply], *, app: dict[str, Any] | None = None, **options: Any
) -> tuple[InMemoryRunner, ScriptedModel]:
    """Build an app with a scripted model, these tools and the plugin with these options."""
    model = ScriptedModel(script=list(script))
    agent = LlmAgent(name="tester", model=model, tools=list(functions))
    plugin = MulliganPlugin(agent="tester", **options)
    runner = InMemoryRunner(app=App(name="tests", root_agent=agent, plugins=[plugin], **(app or {})))
    runner.auto_create_session = True
    return runner, model


async def collect(runner: InMemoryRunner, message: Any, config: RunConfig | None = None) -> list[Any]:
    if isinstance(message, str):
        message = types.Content(role="user", parts=[types.Part.from_text(text=message)])
    events = runner.run_async(user_id="user", session_id="1", new_message=message, run_config=config)
    return [event async for event in events]


def ask(runner: InMemoryRunner, message: Any, style: Style) -> list[Any]:
    """Send a message in the same conversation and return all events."""
    if style == "sync":
        content = types.Content(role="user", parts=[types.Part.from_text(text=message)])
        return list(runner.run(user_id="user", session_id="1", new_message=content))
    config = RunConfig(streaming_mode=StreamingMode.SSE) if style == "stream" else None
    return asyncio.run(collect(runner, message, config))


driver = GoogleADKDriver()
