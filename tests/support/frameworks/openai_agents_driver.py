"""Plays scenarios in the OpenAI Agents SDK."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

from agents import Agent, RunConfig, SQLiteSession, function_tool, set_tracing_disabled
from frameworks.scenarios import Conversation, Reply, Request, Style, cancel_when_started
from mulligan.integrations.openai_agents import MulliganRunner
from mulligan.testing import Sandbox

CONFIG = RunConfig(tracing_disabled=True)
set_tracing_disabled(True)  # nothing is sent


def script_model(script: Sequence[Reply]) -> ScriptedModel:
    """Return the SDK's own scripted model, which answers with these replies. It has a name, as models of providers."""
    model = ScriptedModel([_as_step(reply, number) for number, reply in enumerate(script)])
    model.model = "scripted"
    return model


def _as_step(reply: Reply, number: int) -> Any:
    if isinstance(reply, Exception):
        return ModelStep(error=reply)
    if isinstance(reply, str):
        return [assistant_message(reply)]
    return [
        function_call(request.tool, json.dumps(request.arguments), call_id=f"call_{number}_{index}")
        for index, request in enumerate(reply)
    ]


class OpenAIAgentsDriver:
    name = "openai_agents"
    title = "OpenAI Agents SDK"
    limits: dict[str, str] = {}  # noqa: RUF012 - nothing

    def play(
        self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], style: Style, **options: Any
    ) -> Conversation:
        model = script_model(script)
        agent: Agent[Any] = Agent("tester", tools=[function_tool(function) for function in functions], model=model)
        runner = MulliganRunner(**options)
        session = SQLiteSession("1")
        settings: Any = {"session": session, "run_config": CONFIG}
        conversation = Conversation()

        async def stream() -> Any:
            result = runner.run_streamed(agent, "Find fish.", **settings)
            async for _ in result.stream_events():
                pass
            return result

        try:
            if style == "sync":
                with own_event_loop():
                    result = runner.run_sync(agent, "Find fish.", **settings)
            elif style == "async":
                result = asyncio.run(runner.run(agent, "Find fish.", **settings))
            else:
                result = asyncio.run(stream())
            conversation.text = str(result.final_output)
        except Exception as error:  # noqa: BLE001 - the scenario judges it
            conversation.error = error
        items: Any = asyncio.run(session.get_items())
        conversation.answers = [item["output"] for item in items if item.get("type") == "function_call_output"]
        conversation.sent = [f"{call.system_instructions}\n{json.dumps(call.input)}" for call in model.calls]
        return conversation

    def cancel(self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], started: asyncio.Event) -> None:
        tools = [function_tool(function) for function in functions]
        agent: Agent[Any] = Agent("tester", tools=tools, model=script_model(script))

        cancel_when_started(lambda: MulliganRunner().run(agent, "Wait.", run_config=CONFIG), started)

    def interrupt_and_resume(self, played: Sandbox) -> str:
        def pay(amount: int) -> str:
            """Pay an amount."""
            return f"paid {amount}, approved"

        model = script_model([[Request("pay", {"amount": 5})], "done"])
        agent: Agent[Any] = Agent("payer", tools=[function_tool(pay, needs_approval=True)], model=model)
        runner = MulliganRunner()

        async def play() -> str:
            state = (await runner.run(agent, "Pay.", run_config=CONFIG)).to_state()
            for item in state.get_interruptions():
                state.approve(item)
            result = await runner.run(agent, state, run_config=CONFIG)
            return json.dumps(result.to_input_list())

        return asyncio.run(play())


@contextlib.contextmanager
def own_event_loop() -> Iterator[None]:
    """Give `run_sync` an event loop that is closed afterwards: it leaves its own open for the next call."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        loop.close()


driver = OpenAIAgentsDriver()
