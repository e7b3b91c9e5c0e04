"""Plays scenarios in LlamaIndex, with the agent of docs/frameworks/llama_index.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, LLMMetadata, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent

import mulligan
from frameworks.pages import decorate, execute_blocks
from frameworks.scenarios import Conversation, Reply, Request, Style, cancel_when_started
from mulligan.testing import Sandbox


class Script:
    """Answers with the next reply of a script."""

    def __init__(self, script: Sequence[Reply]) -> None:
        self.script = list(script)
        self.sent: list[Any] = []

    def __call__(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatMessage:
        self.sent.append([(message.role.value, message.content or "") for message in messages])
        reply = self.script.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, str):
            return ChatMessage(role="assistant", content=reply)
        return ChatMessage(
            role="assistant",
            blocks=[
                ToolCallBlock(
                    tool_call_id=f"call_{len(self.script)}_{index}",
                    tool_name=request.tool,
                    tool_kwargs=request.arguments,
                )
                for index, request in enumerate(reply)
            ],
        )


class ScriptedLLM(MockFunctionCallingLLM):
    """The mock of LlamaIndex with a name, as models of providers."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="scripted", is_function_calling_model=True)


class LlamaIndexDriver:
    name = "llama_index"
    title = "LlamaIndex"
    limits: dict[str, str] = {}  # noqa: RUF012
    styles = ("async", "stream")
    programs = 2
    knows_turns = True

    def _agent(self, functions: Sequence[Callable[..., Any]], script: Script, **options: Any) -> Any:
        page = execute_blocks(self.name, 1, 3)
        model = page["recover_model"](ScriptedLLM, **options.get("model", {}))(response_generator=script)
        return page["RecoveringAgent"](tools=decorate(functions, options), llm=model, streaming=False)

    def play(
        self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], style: Style, **options: Any
    ) -> Conversation:
        replies = Script(script)
        agent = self._agent(functions, replies, **options)

        async def play() -> str:
            with mulligan.run("tester"):
                handler = agent.run(user_msg="Find fish.")
                if style == "stream":
                    async for _ in handler.stream_events():
                        pass
                return str(await handler)

        conversation = Conversation()
        try:
            conversation.text = asyncio.run(play())
        except Exception as error:  # noqa: BLE001 - the scenario judges it
            conversation.error = error
        conversation.sent = [str(messages) for messages in replies.sent]
        conversation.answers = [content for role, content in (replies.sent or [[]])[-1] if role == "tool"]
        return conversation

    def run_page(self, script: Sequence[Reply], *blocks: int) -> tuple[Any, str]:
        """Run these blocks of the page, or all. Return their last run, and what the model has read last."""
        replies = Script(script)
        names = execute_blocks(self.name, *blocks, model=MockFunctionCallingLLM(response_generator=replies))
        return names["run"], str(replies.sent[-1])

    def cancel(self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], started: asyncio.Event) -> None:
        agent = self._agent(functions, Script(script))

        async def play() -> None:
            with mulligan.run("tester"):
                await agent.run(user_msg="Wait.")

        cancel_when_started(play, started)

    def interrupt_and_resume(self, played: Sandbox) -> str:
        async def pay(ctx: Context, amount: int) -> str:
            """Pay an amount."""
            request = InputRequiredEvent(prefix="May I pay?")
            answer = await ctx.wait_for_event(HumanResponseEvent, waiter_event=request, waiter_id="May I pay?")
            return f"paid {amount}, {answer.response}"

        script = Script([[Request("pay", {"amount": 5})], "done"])

        async def play() -> None:
            with mulligan.run("tester"):
                handler = self._agent([pay], script).run(user_msg="Pay.")
                async for event in handler.stream_events():
                    if isinstance(event, InputRequiredEvent):
                        handler.ctx.send_event(HumanResponseEvent(response="approved"))
                await handler

        asyncio.run(play())
        return str(script.sent[-1])


driver = LlamaIndexDriver()
