"""Ten servers line by line, with the proxy and without: everything but a failed call is the same to the byte."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mcp_client import FAKE, Connection
from real_mcp import SERVERS, environment

CHANGING = FAKE.with_name("changing_mcp.py")
OFFICIAL = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("official")
@server.tool()
def add(a: int, b: int) -> int:
    "Adds."
    return a + b
@server.prompt()
def greet(name: str) -> str:
    return f"Hello {name}"
@server.resource("note://one")
def note() -> str:
    return "a note"
server.run("stdio")
"""
FASTMCP = """
from fastmcp import FastMCP
server = FastMCP("fast")
@server.tool
def add(a: int, b: int) -> int:
    "Adds."
    return a + b
server.run(transport="stdio", show_banner=False)
"""
SQLITE = "import sys; sys.path.insert(0, {place!r}); import mcp_server_sqlite; mcp_server_sqlite.main()"
BROKEN = """
import importlib.abc, runpy, sys
class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "msgspec":
            raise ImportError("cannot load msgspec")
sys.meta_path.insert(0, Broken())
sys.argv[0] = "mulligan"
runpy.run_module("mulligan", run_name="__main__")
"""
"""The command on a machine where a dependency is broken."""

NPM = ("filesystem", "everything", "memory", "sequential-thinking")
CALLS = {
    "filesystem": ("read_text_file", {"path": "{folder}/notes.txt"}, {"path": "{folder}/none.txt"}),
    "everything": ("echo", {"message": "h\u00e9"}, {"message": 5}),
    "memory": ("open_nodes", {"names": []}, {"names": 1}),
    "sequential-thinking": (
        "sequentialthinking",
        {"thought": "one", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
        {"thought": 1},
    ),
    "git": ("git_status", {"repo_path": "{folder}"}, {"repo_path": "{folder}/none"}),
    "sqlite": ("read_query", {"query": "select 1"}, {"query": "select x"}),
    "time": (
        "convert_time",
        {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
        {"source_timezone": "Mars", "time": "12:00", "target_timezone": "Asia/Tokyo"},
    ),
    "official": ("add", {"a": 1, "b": 2}, {"a": "one", "b": 2}),
    "fastmcp": ("add", {"a": 1, "b": 2}, {"a": "one", "b": 2}),
    "mulligan": ("known_failures", {"tool": "Bash"}, {"tools": "Bash"}),
    "fake": ("echo", {"text": "h\u00e9"}, {"text": 1}),
}
"""For each server a tool, arguments that it takes, and arguments that it may refuse."""


def build_command(name: str, folder: Path) -> list[str]:
    """The command of a server; skipped where it is not installed."""
    if name in NPM:
        program = SERVERS / "node_modules" / ".bin" / f"mcp-server-{name}"
        if not program.exists():
            pytest.skip(f"server-{name} is not installed: make test-mcp, where there is npm")
        return [str(program), *([str(folder)] if name == "filesystem" else [])]
    if name == "sqlite":
        place = SERVERS / "python"
        if not (place / "mcp_server_sqlite").exists():
            pytest.skip("mcp-server-sqlite is not installed: make test-mcp")
        return [sys.executable, "-c", SQLITE.format(place=str(place)), "--db-path", str(folder / "x.db")]
    if name == "fake":
        return [sys.executable, str(FAKE)]
    module = {"official": "mcp", "mulligan": "mcp", "fastmcp": "fastmcp"}.get(name, f"mcp_server_{name}")
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: make test-mcp")
    if name in ("official", "fastmcp"):
        return [sys.executable, "-c", OFFICIAL if name == "official" else FASTMCP]
    if name == "mulligan":
        return [sys.executable, "-m", "mulligan", "mcp"]
    more = ["--repository", str(folder)] if name == "git" else ["--local-timezone", "UTC"]
    return [sys.executable, "-m", module, *more]


def through(command: list[str], *options: str) -> list[str]:
    return [sys.executable, "-m", "mulligan", "proxy", "--name", "real", *options, "--", *command]


def through_broken(command: list[str]) -> list[str]:
    return [sys.executable, "-c", BROKEN, "proxy", "--name", "real", "--", *command]


def requests_of(name: str, folder: Path) -> list[tuple[str, dict]]:
    tool, valid, refused = CALLS[name]
    filled = [json.loads(json.dumps(arguments).replace("{folder}", str(folder))) for arguments in (valid, refused)]
    handshake = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    return [
        ("initialize", handshake),
        ("tools/list", {}),
        ("prompts/list", {}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("ping", {}),
        ("logging/setLevel", {"level": "error"}),
        ("no/such/method", {}),
        ("tools/call", {"name": tool, "arguments": filled[0], "_meta": {"progressToken": "p"}}),
        ("tools/call", {"name": tool, "arguments": filled[1]}),
        ("tools/call", {"name": "no_such_tool", "arguments": {}}),
    ]


def converse(command: list[str], requests: list[tuple[str, dict]]) -> tuple[dict[int, bytes], list[bytes]]:
    """The answers of a server by id, and what it said unasked."""
    answers: dict[int, bytes] = {}
    unasked: list[bytes] = []
    with Connection(command, environment()) as client:
        for id, (method, params) in enumerate(requests):
            client.send(id=id, method=method, params=params)
            while id not in answers:
                line = client.line()
                assert line, f"the connection ended: {client.complaints}"
                message = json.loads(line)
                if "method" in message:
                    unasked.append(line)
                else:
                    answers[message["id"]] = line
            if method == "initialize":
                client.send(method="notifications/initialized")
        assert client.close() == 0 or "mcp-server" in " ".join(command)
    return answers, unasked


def is_failed_call(line: bytes, method: str) -> bool:
    message = json.loads(line)
    return method == "tools/call" and ("error" in message or message["result"].get("isError", False))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "notes.txt").write_text("first line\n")
    environment = {**os.environ, "HOME": str(tmp_path)}
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=tmp_path, check=True, env=environment)
    return tmp_path


@pytest.mark.parametrize("name", CALLS)
def test_a_server_is_the_same_line_by_line_in_everything_but_failed_calls(name, folder):
    command, requests = build_command(name, folder), requests_of(name, folder)
    direct, unasked = converse(command, requests)
    proxied, proxied_unasked = converse(through(command), requests)
    assert sorted(unasked) == sorted(proxied_unasked)
    failed = {id for id, (method, _) in enumerate(requests) if is_failed_call(direct[id], method)}
    assert failed or name == "sqlite", "the refused call is a failure; sqlite says so in a text, which is content"
    assert {id: line for id, line in proxied.items() if id not in failed} == {
        id: line for id, line in direct.items() if id not in failed
    }
    for id in failed:
        before, after = json.loads(direct[id]), json.loads(proxied[id])
        if "error" in before:
            assert after["error"]["message"].startswith(before["error"]["message"])
        else:
            blocks = before["result"]["content"]
            assert after["result"]["content"][: len(blocks)] == blocks
            assert len(after["result"]["content"]) == len(blocks) + 1
            assert after["result"]["isError"] is True


@pytest.mark.parametrize("name", [name for name in CALLS if name != "mulligan"])  # that is the broken package itself
def test_a_server_is_the_same_with_a_broken_dependency_and_in_observe_mode(name, folder):
    command, requests = build_command(name, folder), requests_of(name, folder)
    direct = converse(command, requests)
    assert converse(through_broken(command), requests) == direct
    answers, unasked = converse(through(command, "--mode", "observe"), requests)
    assert (answers, sorted(unasked)) == (direct[0], sorted(direct[1]))


def play(command: list[str], log: Path) -> tuple[list[bytes], bytes]:
    """What a client hears of the server whose lists change, and what the server has heard."""
    log.unlink(missing_ok=True)
    lines: list[bytes] = []
    with Connection([*command, str(log)], environment()) as client:
        handshake = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        requests = [("initialize", handshake), ("tools/list", {})]
        requests += [("tools/call", {"name": name, "_meta": {"progressToken": 7}}) for name in ("grow", "ask")]
        requests += [("tools/list", {}), ("tools/call", {"name": "read_file"}), ("tools/call", {"name": "tool_4"})]
        for id, (method, params) in enumerate(requests):
            client.send(id=id, method=method, params=params)
            while True:
                lines.append(client.line())
                message = json.loads(lines[-1])
                if "method" not in message:
                    break
                if "id" in message:  # a request of the server, answered with spaces of the client's own
                    id_of_question = json.dumps(message["id"]).encode()
                    client.write(b'{"jsonrpc": "2.0",  "id": %s, "result": {"n": 1.50}}\n' % id_of_question)
            if method == "initialize":
                client.send(method="notifications/initialized")
                client.send(method="notifications/roots/list_changed")
                client.send(method="notifications/progress", params={"progressToken": 1, "progress": 0.50})
                client.send(method="notifications/cancelled", params={"requestId": "unknown"})
        assert client.close() == 0
    return lines, log.read_bytes()


@pytest.mark.parametrize("options", [(), ("--repair",), ("--inject-lessons",)])
def test_lists_that_change_and_questions_of_the_server_pass_in_both_directions(tmp_path, options):
    server = [sys.executable, str(CHANGING)]
    assert play(through(server, *options), tmp_path / "log") == play(server, tmp_path / "log")


def test_lists_that_change_pass_with_a_broken_dependency(tmp_path):
    server = [sys.executable, str(CHANGING)]
    assert play(through_broken(server), tmp_path / "log") == play(server, tmp_path / "log")
