"""Logfire: an agent of PydanticAI, with Logfire's instrumentation of both."""

from __future__ import annotations

import agent_turn
import logfire
import openai
from pydantic_ai import Agent, ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

logfire.configure(send_to_logfire=False, console=False, service_name="travel", inspect_arguments=False)
logfire.instrument_pydantic_ai()
client = agent_turn.build_client(openai.AsyncOpenAI)
agent = Agent(OpenAIChatModel(agent_turn.MODEL, provider=OpenAIProvider(openai_client=client)), name=agent_turn.AGENT)
agent.tool_plain(agent_turn.weather)
agent.tool_plain(agent_turn.book)

# Logfire removes values of attributes with "session" in their name, so the agent sends the id of the conversation.
with logfire.span("turn", **{"session.id": agent_turn.SESSION}):
    for expected in (TimeoutError, ModelHTTPError):
        try:
            agent.run_sync("Plan a trip to Bergen.", conversation_id=agent_turn.SESSION)
        except expected:
            continue
        raise AssertionError(f"{expected.__name__} was not raised.")
    agent.run_sync("Plan a trip to Bergen.", conversation_id=agent_turn.SESSION)
logfire.shutdown()
