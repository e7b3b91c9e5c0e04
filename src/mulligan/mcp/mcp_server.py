"""MCP server on stdio. The only module that imports the `mcp` package."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from mulligan import __version__
from mulligan.core.failure import INSTALL_EXTRA, MissingExtraError, StoreError
from mulligan.mcp.knowledge import TOOLS, InvalidToolCallError, Knowledge, ToolSpec

try:
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    from mcp import MCPError
except ImportError:
    raise MissingExtraError(f"mulligan mcp needs the mcp package, version 2. {INSTALL_EXTRA.format('mcp')}") from None

TEXT = "text/plain"
NOT_FOUND = -32002
"""MCP's error code for a missing resource."""


def serve(knowledge: Knowledge, instructions: str) -> None:
    """Serve until the client disconnects."""
    logging.getLogger("mcp").setLevel(logging.ERROR)  # standard error belongs to the parent process
    asyncio.run(_serve(build_server(knowledge, instructions)))


async def _serve(server: Any) -> None:
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def build_server(knowledge: Knowledge, instructions: str) -> Any:
    """Build the server. Its handlers answer in threads: the store is synchronous, and requests may be concurrent."""

    async def list_tools(ctx: Any, params: Any) -> Any:
        return types.ListToolsResult(tools=[_tool(spec) for spec in TOOLS.values()])

    async def call_tool(ctx: Any, params: Any) -> Any:
        try:
            answer_text = await asyncio.to_thread(knowledge.call, params.name, params.arguments)
        except InvalidToolCallError as bad:
            return _answer(knowledge.format_refusal(str(bad)), is_error=True)
        except StoreError as broken:
            return _answer(knowledge.format_refusal(f"Cannot read the store: {broken}"), is_error=True)
        return _answer(answer_text)

    async def list_resources(ctx: Any, params: Any) -> Any:
        entries = await asyncio.to_thread(knowledge.list_resources)
        resources = [
            types.Resource(uri=uri, name=name, description=description, mime_type=TEXT)
            for uri, name, description in entries
        ]
        return types.ListResourcesResult(resources=resources)

    async def list_templates(ctx: Any, params: Any) -> Any:
        templates = [
            types.ResourceTemplate(uri_template=f"mulligan://{name}/{{id}}", name=name, mime_type=TEXT)
            for name in ("patterns", "lessons")
        ]
        return types.ListResourceTemplatesResult(resource_templates=templates)

    async def read_resource(ctx: Any, params: Any) -> Any:
        uri = str(params.uri)
        try:
            text = await asyncio.to_thread(knowledge.read_resource, uri)
        except StoreError as broken:
            raise MCPError(-32603, knowledge.format_refusal(f"Cannot read the store: {broken}")) from None
        if text is None:
            raise MCPError(NOT_FOUND, "No such resource. For a list, read mulligan://patterns or mulligan://lessons.")
        contents = types.TextResourceContents(uri=uri, mime_type=TEXT, text=text)
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


def _tool(spec: ToolSpec) -> Any:
    hints = types.ToolAnnotations(
        title=spec.title,
        read_only_hint=spec.is_read_only,
        destructive_hint=False,
        idempotent_hint=True,
        open_world_hint=False,
    )
    return types.Tool(name=spec.name, description=spec.description, input_schema=spec.schema, annotations=hints)


def _answer(text: str, is_error: bool = False) -> Any:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)
