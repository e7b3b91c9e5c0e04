"""MCP server on stdio. The only module that imports the `mcp` package."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from mulligan import __version__
from mulligan.failure import MissingExtra, StoreError
from mulligan.serve.mcp.knowledge import Knowledge
from mulligan.serve.mcp.tools import TOOLS, BadCall

try:
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    from mcp import MCPError
except ImportError:
    raise MissingExtra("mulligan mcp needs the mcp package, version 2: pip install 'mulligan[mcp]'") from None

T = TypeVar("T")
TEXT = "text/plain"
NOT_FOUND = -32002
"""MCP's error code for a missing resource."""


def serve(knowledge: Knowledge, instructions: str) -> None:
    """Serve until the client disconnects."""
    logging.getLogger("mcp").setLevel(logging.ERROR)  # standard error belongs to the parent process
    asyncio.run(_serve(server_of(knowledge, instructions)))


async def _serve(server: Any) -> None:
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def server_of(knowledge: Knowledge, instructions: str) -> Any:
    async def list_tools(ctx: Any, params: Any) -> Any:
        return types.ListToolsResult(tools=[_tool(name) for name in TOOLS])

    async def call_tool(ctx: Any, params: Any) -> Any:
        try:
            said = await _in_a_thread(partial(knowledge.call, params.name, params.arguments))
        except BadCall as bad:
            return _answer(knowledge.shown(str(bad)), is_error=True)
        except StoreError as broken:
            return _answer(knowledge.shown(f"the store cannot be asked: {broken}"), is_error=True)
        return _answer(said)

    async def list_resources(ctx: Any, params: Any) -> Any:
        found = await _in_a_thread(knowledge.listed)
        resources = [
            types.Resource(uri=uri, name=name, description=about, mime_type=TEXT) for uri, name, about in found
        ]
        return types.ListResourcesResult(resources=resources)

    async def list_templates(ctx: Any, params: Any) -> Any:
        found = [
            types.ResourceTemplate(uri_template=f"mulligan://{name}/{{id}}", name=name, mime_type=TEXT)
            for name in ("patterns", "lessons")
        ]
        return types.ListResourceTemplatesResult(resource_templates=found)

    async def read_resource(ctx: Any, params: Any) -> Any:
        uri = str(params.uri)
        try:
            said = await _in_a_thread(partial(knowledge.read, uri))
        except StoreError as broken:
            raise MCPError(-32603, knowledge.shown(f"the store cannot be asked: {broken}")) from None
        if said is None:
            raise MCPError(
                NOT_FOUND, "there is no such resource. mulligan://patterns and mulligan://lessons list them."
            )
        contents = types.TextResourceContents(uri=uri, mime_type=TEXT, text=said)
        return types.ReadResourceResult(contents=[contents])

    return Server(
        "mulligan",
        version=__version__,
        instructions=instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )


async def _in_a_thread(work: Callable[[], T]) -> T:
    # The store is synchronous, and a client may send concurrent requests.
    return await asyncio.to_thread(work)


def _tool(name: str) -> Any:
    spec = TOOLS[name]
    hints = types.ToolAnnotations(
        title=spec.title,
        read_only_hint=spec.only_reads,
        destructive_hint=False,
        idempotent_hint=True,
        open_world_hint=False,
    )
    return types.Tool(name=name, description=spec.description, input_schema=spec.schema, annotations=hints)


def _answer(text: str, is_error: bool = False) -> Any:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)
