"""Plays scenarios in DSPy, with the module of docs/frameworks/dspy.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import dspy
from dspy.utils import DummyLM

import mulligan
from frameworks.pages import PageDriver, decorate, execute_blocks
from frameworks.scenarios import Conversation, Reply, Style, cancel_when_started


class ScriptedLM(DummyLM):
    """Answers with the next reply of a script. A text is two answers: ReAct finishes, then extracts the answer."""

    def __init__(self, script: Sequence[Reply]) -> None:
        super().__init__([])
        self.model = "scripted"
        self.script: list[Any] = []
        self.sent: list[str] = []
        for reply in script:
            if isinstance(reply, str):
                self.script += [self._request("finish", {}), {"reasoning": "It is clear.", "answer": reply}]
            elif isinstance(reply, Exception):
                self.script.append(reply)
            else:
                self.script += [self._request(request.tool, request.arguments) for request in reply]

    @staticmethod
    def _request(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"next_thought": "I call it.", "next_tool_name": tool, "next_tool_args": arguments}

    def _next(self, messages: Any) -> None:
        self.sent.append(str(messages))
        reply = self.script.pop(0)
        if isinstance(reply, Exception):
            raise reply
        self.answers = iter([reply])

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        self._next(messages)
        return super().__call__(prompt, messages=messages, **kwargs)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        self._next(messages)
        return await super().acall(prompt, messages=messages, **kwargs)


class DSPyDriver(PageDriver):
    name = "dspy"
    title = "DSPy"
    limits: dict[str, str] = {  # noqa: RUF012
        "unknown tool": "DSPy ends the loop of the agent.",
        "conversation that is too long": "DSPy writes all results into one user message, and shortens it itself.",
        "interrupt": "A tool cannot pause the module.",
    }
    styles = ("sync", "async")
    programs = 2
    knows_turns = True

    def play(
        self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], style: Style, **options: Any
    ) -> Conversation:
        page = execute_blocks(self.name, 1, 3)
        model = page["recover_model"](ScriptedLM, **options.get("model", {}))(script)
        agent = page["RecoveringReAct"]("question -> answer", tools=decorate(functions, options))
        conversation = Conversation(sent=model.sent)

        async def play() -> Any:
            with dspy.context(lm=model), mulligan.run("tester"):
                return await agent.acall(question="Find fish.")

        try:
            if style == "sync":
                with dspy.context(lm=model), mulligan.run("tester"):
                    result = agent(question="Find fish.")
            else:
                result = asyncio.run(play())
            conversation.text = result.answer
            observations = [text for name, text in result.trajectory.items() if name.startswith("observation")]
            conversation.answers = [str(text) for text in observations[:-1]]
        except Exception as error:  # noqa: BLE001 - the scenario judges it
            conversation.error = error
        return conversation

    def make_model(self, script: Sequence[Reply]) -> Any:
        return ScriptedLM(script)

    def cancel(self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], started: asyncio.Event) -> None:
        page = execute_blocks(self.name, 1, 3)
        model = ScriptedLM(script)
        agent = page["RecoveringReAct"]("question -> answer", tools=decorate(functions, {}))

        async def play() -> None:
            with dspy.context(lm=model), mulligan.run("tester"):
                await agent.acall(question="Wait.")

        cancel_when_started(play, started)


driver = DSPyDriver()
