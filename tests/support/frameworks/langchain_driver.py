"""Plays scenarios in LangChain and LangGraph."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from frameworks.scenarios import Conversation, Reply, Request, Style, cancel_when_started
from mulligan.integrations.langchain import MulliganMiddleware
from mulligan.testing import Sandbox


class ScriptedModel(BaseChatModel):
    """Answers with the next reply of a script."""

    script: list[Any]
    model_name: str = "scripted"
    sent: list[str] = []  # noqa: RUF012 - pydantic copies it

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.sent.append("\n".join(message.text for message in messages))
        reply = self.script.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, AIMessage):
            return ChatResult(generations=[ChatGeneration(message=reply)])
        answer = AIMessage(reply if isinstance(reply, str) else "")
        if not isinstance(reply, str):
            answer.tool_calls = [
                {
                    "name": request.tool,
                    "args": request.arguments,
                    "id": f"call_{len(self.script)}_{index}",
                    "type": "tool_call",
                }
                for index, request in enumerate(reply)
            ]
        return ChatResult(generations=[ChatGeneration(message=answer)])


class LangChainDriver:
    name = "langchain"
    title = "LangChain, LangGraph"
    limits: dict[str, str] = {}  # noqa: RUF012 - nothing

    def _agent(self, functions: Sequence[Callable[..., Any]], chat_model: ScriptedModel, **options: Any) -> Any:
        tools = [as_tool(function) for function in functions]
        middleware: Any = MulliganMiddleware(agent="tester", **options)
        return create_agent(chat_model, tools, middleware=[middleware], checkpointer=InMemorySaver())

    def play(
        self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], style: Style, **options: Any
    ) -> Conversation:
        model = ScriptedModel(script=list(script))
        agent = self._agent(functions, model, **options)
        question: Any = {"messages": [HumanMessage("Find fish.")]}
        thread: Any = {"configurable": {"thread_id": "1"}}
        conversation = Conversation(sent=model.sent)
        try:
            if style == "sync":
                agent.invoke(question, thread)
            elif style == "async":
                asyncio.run(agent.ainvoke(question, thread))
            else:
                for _ in agent.stream(question, thread, stream_mode=["messages", "updates"]):
                    pass
        except Exception as error:  # noqa: BLE001 - the scenario judges it
            conversation.error = error
        messages = agent.get_state(thread).values["messages"]
        conversation.answers = [message.text for message in messages if isinstance(message, ToolMessage)]
        conversation.text = messages[-1].text
        return conversation

    def cancel(self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], started: asyncio.Event) -> None:
        agent = self._agent(functions, ScriptedModel(script=list(script)))

        question: Any = {"messages": [HumanMessage("Wait.")]}
        cancel_when_started(lambda: agent.ainvoke(question, {"configurable": {"thread_id": "1"}}), started)

    def interrupt_and_resume(self, played: Sandbox) -> str:
        def pay(amount: int) -> str:
            """Pay an amount."""
            return f"paid {amount}, {interrupt('May I pay?')}"

        model = ScriptedModel(script=[[Request("pay", {"amount": 5})], "done"])
        agent = self._agent([pay], model)
        thread: Any = {"configurable": {"thread_id": "1"}}
        agent.invoke({"messages": [HumanMessage("Pay.")]}, thread)
        messages = agent.invoke(Command(resume="approved"), thread)["messages"]
        return "\n".join(message.text for message in messages)


def as_tool(function: Callable[..., Any]) -> StructuredTool:
    if asyncio.iscoroutinefunction(function):
        return StructuredTool.from_function(coroutine=function)
    return StructuredTool.from_function(function)


driver = LangChainDriver()
