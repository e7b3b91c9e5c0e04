"""Plays scenarios in the Microsoft Agent Framework."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    tool,
)

from frameworks.scenarios import Conversation, Reply, Request, Style, cancel_when_started
from mulligan.integrations.agent_framework import MulliganMiddlewareList
from mulligan.testing import Sandbox


class ScriptedClient(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    """Answers with the next reply of a script."""

    def __init__(self, script: Sequence[Reply], **options: Any) -> None:
        super().__init__(**options)
        self.model = "scripted"
        self.script = list(script)
        self.sent: list[str] = []
        self.results: list[str] = []
        """The results of tools in the last request."""
        self.usage: Any = None

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        if stream:
            return self._build_response_stream(self._stream(messages, options))
        return self._answer(messages, options)

    async def _answer(self, messages: Sequence[Message], options: Mapping[str, Any]) -> ChatResponse[Any]:
        contents = self._next(messages, options)
        answer = Message("assistant", contents)
        return ChatResponse(messages=[answer], model="scripted", usage_details=self.usage)

    async def _stream(
        self, messages: Sequence[Message], options: Mapping[str, Any]
    ) -> AsyncIterator[ChatResponseUpdate]:
        for content in self._next(messages, options):
            yield ChatResponseUpdate(role="assistant", contents=[content], message_id=f"message_{len(self.script)}")
        if self.usage is not None:
            yield ChatResponseUpdate(role="assistant", contents=[Content.from_usage(self.usage)])

    def _next(self, messages: Sequence[Message], options: Mapping[str, Any]) -> list[Content]:
        contents = [content for message in messages for content in message.contents]
        self.results = [_read(content) for content in contents if content.type == "function_result"]
        texts = [_read(content) for content in contents if content.type in ("text", "function_result")]
        self.sent.append("\n".join([str(options.get("instructions")), *texts]))
        reply = self.script.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, str):
            return [Content.from_text(reply)]
        return [
            Content.from_function_call(
                f"call_{len(self.script)}_{index}", request.tool, arguments=_write(request.arguments)
            )
            for index, request in enumerate(reply)
        ]


def _write(arguments: Any) -> str:
    """Return arguments as models write them."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _read(content: Content) -> str:
    """Return the text that a client sends to its model."""
    return content.text or "".join(item.text or "" for item in content.items or ())


class AgentFrameworkDriver:
    name = "agent_framework"
    title = "Microsoft Agent Framework"
    limits: dict[str, str] = {}  # noqa: RUF012 - nothing

    def play(
        self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], style: Style, **options: Any
    ) -> Conversation:
        agent, client = build_agent(functions, script, **options)
        conversation = Conversation(sent=client.sent)
        try:
            conversation.text = asyncio.run(ask(agent, "Find fish.", style)).text
        except Exception as error:  # noqa: BLE001 - the scenario judges it
            conversation.error = error
        conversation.answers = client.results
        return conversation

    def cancel(self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], started: asyncio.Event) -> None:
        agent, _ = build_agent(functions, script)

        cancel_when_started(lambda: ask(agent, "Wait.", "async"), started)

    def interrupt_and_resume(self, played: Sandbox) -> str:
        @tool(approval_mode="always_require")
        def pay(amount: int) -> str:
            """Pay an amount."""
            return f"paid {amount}, approved"

        agent, client = build_agent([pay], [[Request("pay", {"amount": 5})], "done"])

        async def play() -> None:
            session = agent.create_session()
            response = await agent.run("Pay.", session=session)
            (request,) = response.user_input_requests
            await agent.run(Message("user", [request.to_function_approval_response(True)]), session=session)

        asyncio.run(play())
        return "\n".join(client.sent)


def build_agent(
    functions: Sequence[Any], script: Sequence[Reply], middleware: Sequence[Any] = (), **options: Any
) -> tuple[Agent[Any], ScriptedClient]:
    """Build an agent with a scripted client, these tools and the middleware with these options."""
    client = ScriptedClient(script)
    all_middleware = [*MulliganMiddlewareList(agent="tester", **options), *middleware]
    return Agent(client, tools=list(functions), middleware=all_middleware), client


async def ask(agent: Agent[Any], message: Any, style: Style, **options: Any) -> Any:
    """Send a message and return the response."""
    if style != "stream":
        return await agent.run(message, **options)
    stream = agent.run(message, stream=True, **options)
    async for _ in stream:
        pass
    return await stream.get_final_response()


driver = AgentFrameworkDriver()
