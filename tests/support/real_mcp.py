"""A real MCP client, and where the servers of other people are installed."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from pathlib import Path

import mulligan

SERVERS = Path(os.environ.get("SERVERS", Path(__file__).parents[2] / ".venv" / "mcp-servers"))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(mulligan.__file__).parents[1])}


@asynccontextmanager
async def by_mcp(words, mode="auto", **more):
    from mcp.client.stdio import stdio_client

    from mcp import Client, StdioServerParameters

    about = StdioServerParameters(command=words[0], args=words[1:], env=environment())
    with open(os.devnull, "w") as nowhere:
        async with Client(stdio_client(about, errlog=nowhere), mode=mode, **more) as client:
            yield client


def plainly(answer):
    """What a client was told, as it can be compared; a server may say at what time it did so."""
    told = answer.model_dump(mode="json") if hasattr(answer, "model_dump") else answer.__dict__
    return json.loads(
        json.dumps(told, default=lambda other: plainly(other) if hasattr(other, "model_dump") else repr(other))
    )


def run(work):
    return asyncio.run(asyncio.wait_for(work, 120))
