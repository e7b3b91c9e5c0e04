"""`mulligan mcp` says about a failed call what the proxy says: the same kind, hint, outcome and suggestions."""

from __future__ import annotations

import json
import sys

import pytest
from fake_mcp import TOOLS
from mcp_client import Connection, proxied, texts
from real_mcp import environment

pytest.importorskip("mcp", reason="the mcp package is not installed: make test-mcp")
FAILED_CALLS = [
    ("add", {"a": "2"}),
    ("add", {"b": 2}),
    ("look", {"id": "x", "unit": "Metric"}),
    ("reject", {"limit": 50}),
    ("refuse", {"size": "3"}),
    ("wipe", {"size": "3"}),
    ("delete_note", {"note_id": 0}),
    ("fail", {"text": "fatal: not a git repository"}),
    ("fail", {"text": "429 Too Many Requests"}),
    ("fail", {"text": "connect ECONNREFUSED 127.0.0.1:5432"}),
    ("fail", {"text": "The read operation timed out"}),
    ("fail", {"text": "ENOENT: no such file or directory, open '/a/b'"}),
    ("fail", {"text": "it failed"}),
]
SCHEMAS = {tool["name"]: tool["inputSchema"] for tool in TOOLS}


def read_proxy(answer) -> tuple[str, dict]:
    """The error text of the server, and the block of the proxy."""
    if "error" in answer:
        return answer["error"]["message"].partition("\n{")[0], answer["error"]["data"]["mulligan"]
    server_text, block = texts(answer)
    return server_text, json.loads(block)["mulligan"]


def test_the_mcp_server_answers_what_the_proxy_answers(tmp_path):
    with proxied() as client:
        client.open().tools()
        blocks = [read_proxy(client.call(tool, **arguments)) for tool, arguments in FAILED_CALLS]
    command = [sys.executable, "-m", "mulligan", "mcp", "--store", str(tmp_path / "empty.db")]
    with Connection(command, environment()) as client:
        client.open()
        for (tool, arguments), (error, block) in zip(FAILED_CALLS, blocks, strict=True):
            query = {"tool": f"fake.{tool}", "error": error, "arguments": arguments, "schema": SCHEMAS[tool]}
            (answer,) = texts(client.call("suggest_fix", **query))
            head = f"fake.{tool} failed with {block['error']}. {block['hint']}"
            head += f" The outcome is {block['outcome']}" if "outcome" in block else ""
            lines = answer.splitlines()
            assert lines[0] == head
            assert lines[1:][: len(block.get("suggestions", []))] == [
                f"- {line}" for line in block.get("suggestions", [])
            ]
