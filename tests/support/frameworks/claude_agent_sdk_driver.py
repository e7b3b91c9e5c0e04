"""Plays scenarios in the Claude Agent SDK, with the tools of docs/frameworks/claude_agent_sdk.md.

Claude Code itself is not started: a transport plays its side of the SDK's protocol.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    PermissionResultAllow,
    TextBlock,
    Transport,
    create_sdk_mcp_server,
    query,
)

import mulligan
from frameworks.pages import annotate, execute_blocks
from frameworks.scenarios import Conversation, Reply, Request, Style, cancel_when_started
from mulligan.testing import Sandbox


class ScriptedTransport(Transport):
    """Answers as Claude Code does, with the replies of a script."""

    def __init__(self, script: Sequence[Reply], *, must_ask: bool = False) -> None:
        self.script = list(script)
        self.must_ask = must_ask
        self.answers: list[str] = []
        self.hooks: dict[str, list[str]] = {}
        """The ids of the hooks by event."""
        self._outgoing: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._responses: dict[str, asyncio.Future[Any]] = {}
        self._player: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        pass

    async def close(self) -> None:
        if self._player is not None:
            self._player.cancel()

    async def end_input(self) -> None:
        pass

    def is_ready(self) -> bool:
        return True

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:  # type: ignore[override]
        while (message := await self._outgoing.get()) is not None:
            yield message

    async def write(self, data: str) -> None:
        message = json.loads(data)
        if message["type"] == "control_request":
            for event, matchers in (message["request"].get("hooks") or {}).items():
                self.hooks[event] = [hook for matcher in matchers for hook in matcher["hookCallbackIds"]]
            response = {"subtype": "success", "request_id": message["request_id"], "response": {}}
            await self._outgoing.put({"type": "control_response", "response": response})
        elif message["type"] == "control_response":
            self._responses[message["response"]["request_id"]].set_result(message["response"].get("response"))
        elif message["type"] == "user":
            self._player = asyncio.create_task(self._play())

    async def request(self, subtype: str, **fields: Any) -> Any:
        """Send a request to the SDK, and return its response."""
        number = f"request_{len(self._responses)}"
        self._responses[number] = asyncio.get_running_loop().create_future()
        request = {"type": "control_request", "request_id": number, "request": {"subtype": subtype, **fields}}
        await self._outgoing.put(request)
        return await self._responses[number]

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        message = {
            "jsonrpc": "2.0",
            "id": len(self._responses) + 1,
            "method": "tools/call",
            "params": {"name": name, "arguments": arguments},
        }
        response = await self.request("mcp_message", server_name="tools", message=message)
        return str(response["mcp_response"]["result"]["content"][0]["text"])

    async def _play(self) -> None:
        initialize = {
            "jsonrpc": "2.0",
            "id": 0,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "scripted", "version": "1"},
            },
        }
        await self.request("mcp_message", server_name="tools", message=initialize)
        initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await self.request("mcp_message", server_name="tools", message=initialized)
        for reply in self.script:
            if isinstance(reply, Exception):  # Claude Code makes the model calls, and ends with an error
                await self._outgoing.put(None)
                return
            content: list[dict[str, Any]] = [{"type": "text", "text": reply}]
            if not isinstance(reply, str):
                content = [
                    {"type": "tool_use", "id": "c1", "name": request.tool, "input": request.arguments}
                    for request in reply
                ]
            await self._send("assistant", message={"role": "assistant", "model": "scripted", "content": content})
            for request in reply if self.must_ask and not isinstance(reply, str) else ():
                fields = {"tool_name": request.tool, "input": request.arguments, "permission_suggestions": []}
                assert (await self.request("can_use_tool", **fields))["behavior"] == "allow"
            if not isinstance(reply, str):
                self.answers += [await self.call_tool(request.tool, request.arguments) for request in reply]
        figures = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, "is_error": False}
        await self._send("result", subtype="success", **figures)
        await self._outgoing.put(None)

    async def _send(self, type: str, **fields: Any) -> None:
        await self._outgoing.put({"type": type, "session_id": "s1", "parent_tool_use_id": None, **fields})


class ClaudeAgentDriver:
    name = "claude_agent_sdk"
    title = "Claude Agent SDK"
    limits: dict[str, str] = {  # noqa: RUF012
        "bad argument": "The SDK rejects the call. The model reads its text.",
        "unknown tool": "The SDK rejects the call. The model reads its text.",
        "wrong type": "The SDK rejects the call. The model reads its text.",
        "conversation that is too long": "Claude Code makes the model calls.",
    }
    styles = ("async",)
    programs = 1
    knows_turns = False

    async def _play(
        self,
        functions: Sequence[Callable[..., Any]],
        transport: ScriptedTransport,
        settings: Mapping[str, Any],
        **claude_options: Any,
    ) -> str:
        page = execute_blocks(self.name, 0)
        tools = [page["recover"](function, **settings) for function in annotate(functions)]
        options = ClaudeAgentOptions(
            mcp_servers={"tools": create_sdk_mcp_server("tools", tools=tools)}, **claude_options
        )
        text = ""
        with mulligan.run("tester") as run:
            async for message in query(prompt=_ask("Find fish."), options=options, transport=transport):
                if isinstance(message, AssistantMessage):
                    with run.step("model", message.model):
                        text = "".join(block.text for block in message.content if isinstance(block, TextBlock))
        return text

    def play(
        self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], style: Style, **options: Any
    ) -> Conversation:
        conversation = Conversation()

        async def play() -> None:
            transport = ScriptedTransport(script)
            settings = options.get("tools", {}).get("*", {})
            conversation.text = await self._play(functions, transport, settings)
            conversation.answers = transport.answers

        try:
            asyncio.run(play())
        except Exception as error:  # noqa: BLE001 - the scenario judges it
            conversation.error = error
        return conversation

    def run_page(self, script: Sequence[Reply], *blocks: int) -> tuple[Any, str]:
        """Run the program of the page. Return its run, and what Claude has read last."""
        names = execute_blocks(self.name, 0, 1)

        async def answer() -> tuple[Any, str]:
            transport = ScriptedTransport(script)
            return await names["answer"]("Find fish.", transport=transport), transport.answers[-1]

        return asyncio.run(answer())

    def cancel(self, functions: Sequence[Callable[..., Any]], script: Sequence[Reply], started: asyncio.Event) -> None:
        cancel_when_started(lambda: self._play(functions, ScriptedTransport(script), {}), started)

    def interrupt_and_resume(self, played: Sandbox) -> str:
        def pay(amount: int) -> str:
            """Pay an amount."""
            return f"paid {amount}, approved"

        async def approve(*args: Any) -> PermissionResultAllow:
            return PermissionResultAllow()

        async def play() -> str:
            transport = ScriptedTransport([[Request("pay", {"amount": 5})], "done"], must_ask=True)
            await self._play([pay], transport, {}, can_use_tool=approve)
            return transport.answers[0]

        return asyncio.run(play())


async def _ask(text: str) -> AsyncIterator[dict[str, Any]]:
    yield {"type": "user", "message": {"role": "user", "content": text}}


driver = ClaudeAgentDriver()
