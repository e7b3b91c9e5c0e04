"""Plays scenarios in smolagents, with the agent of docs/frameworks/smolagents.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smolagents import ChatMessage, LogLevel, MessageRole, Model, Tool
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction

import mulligan
from frameworks.pages import PageDriver, decorate, execute_blocks
from frameworks.scenarios import Conversation, Reply, Request, Style


class ScriptedModel(Model):
    """Answers with the next reply of a script."""

    def __init__(self, script: Sequence[Reply]) -> None:
        super().__init__(model_id="scripted")
        self.script = list(script)
        self.sent: list[str] = []

    def generate(self, messages: Any, **kwargs: Any) -> ChatMessage:
        self.sent.append("\n".join(str(message.content) for message in messages))
        reply = self.script.pop(0)
        if isinstance(reply, Exception):
            raise reply
        requests = [Request("final_answer", {"answer": reply})] if isinstance(reply, str) else reply
        calls = [
            ChatMessageToolCall(
                function=ChatMessageToolCallFunction(name=request.tool, arguments=request.arguments),
                id=f"call_{len(self.script)}_{index}",
                type="function",
            )
            for index, request in enumerate(requests)
        ]
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=calls)


def as_tool(function: Callable[..., Any]) -> Tool:
    """Build a tool without a docstring in smolagents' format."""

    class FunctionTool(Tool):
        name = function.__name__
        description = function.__doc__
        inputs = {"query": {"type": "string", "description": "any"}}  # noqa: RUF012
        output_type = "any"
        skip_forward_signature_validation = True
        forward = staticmethod(function)

    return FunctionTool()


class SmolagentsDriver(PageDriver):
    name = "smolagents"
    title = "smolagents"
    limits: dict[str, str] = {  # noqa: RUF012
        "cancellation": "It has no async agent.",
        "interrupt": "A tool cannot pause the agent.",
    }
    styles = ("sync", "stream")
    programs = 2
    knows_turns = True

    def play(
        self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], style: Style, **options: Any
    ) -> Conversation:
        page = execute_blocks(self.name, 1, 3)
        model = page["recover_model"](ScriptedModel, **options.get("model", {}))(script)
        tools = [as_tool(function) for function in decorate(functions, options)]
        agent = page["RecoveringAgent"](tools=tools, model=model, verbosity_level=LogLevel.OFF)
        conversation = Conversation(sent=model.sent)
        try:
            with mulligan.run("tester"):
                if style == "sync":
                    conversation.text = agent.run("Find fish.")
                else:
                    conversation.text = list(agent.run("Find fish.", stream=True))[-1].output
        except Exception as error:  # noqa: BLE001 - the scenario judges it
            conversation.error = error
        observations = [getattr(step, "observations", None) for step in agent.memory.steps]
        conversation.answers = [text for text in observations[:-1] if text]
        return conversation

    def make_model(self, script: Sequence[Reply]) -> Any:
        return ScriptedModel(script)


driver = SmolagentsDriver()
