"""Logfire without a framework: its instrumentation of OpenAI's client, and tool spans that name their tool."""

from __future__ import annotations

from collections.abc import Callable

import agent_turn
import logfire

logfire.configure(send_to_logfire=False, console=False, service_name=agent_turn.AGENT, inspect_arguments=False)
client = agent_turn.build_client()
logfire.instrument_openai(client)


def trace_tool(function: Callable[..., str]) -> Callable[..., str]:
    def call(**arguments: str) -> str:
        attributes = {"gen_ai.tool.name": function.__name__, "gen_ai.tool.call.arguments": arguments}
        with logfire.span("calling a tool", **attributes):
            return function(**arguments)

    return call


with logfire.span("turn", **{"gen_ai.conversation.id": agent_turn.SESSION}):
    agent_turn.play_turn(client, trace_tool(agent_turn.weather), trace_tool(agent_turn.book))
logfire.shutdown()
