"""What `mulligan proxy` costs a tool call, beside no proxy and FastMCP's; and whether its memory stays flat.

    python benchmarks/proxy.py [--calls 300] [--rounds 10] [--many 100000] [--only memory] [--json]

The real client of the `mcp` package calls a real server of the same package: directly, through mulligan with everything
recorded into a SQLite file, and through FastMCP's proxy. The connections are open side by side and take turns; latency
is that of one call after the other. A second table has the same server behind a URL: directly over HTTP, and through
`mulligan proxy --url` over stdio and over HTTP. A third one has a client and a server of a few lines each, which take
next to no time themselves: there the proxy's own microseconds can be seen. Memory is that of the proxy's process after
10 %, 50 % and 100 % of `--many` calls, every hundredth of them failing: over stdio, before a URL, and for HTTP clients
of both protocol eras in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

SLOWER = 1.25
"""Times the latency of a direct call, at most."""
FLAT = 8.0
"""Megabytes that may be added by all calls after the first tenth."""

SERVER = '''
import logging
from mcp.server.mcpserver import MCPServer
server = MCPServer("bench")
@server.tool()
def search(query: str, top_k: int = 5) -> str:
    """Finds documents."""
    return f"{top_k} documents about {query}: " + "some words of a document. " * 20
import sys
if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
'''
SMALL_HTTP = r"""
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    def log_message(self, *words): pass
    def do_GET(self): self.answer(405, b"")
    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in said:
            return self.answer(202, b"")
        result = {"tools": [], "capabilities": {}, "protocolVersion": "2025-11-25", "serverInfo": {"name": "small"}}
        if said["method"] == "tools/call":
            given = said["params"]["arguments"]
            text = "5 documents about " + given["query"] + ": " + "some words of a document. " * 20
            result = {"content": [{"type": "text", "text": text}], "isError": given["query"] == "nothing"}
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": result}).encode())
    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
FASTMCP = """
import sys
from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy
create_proxy(StdioTransport(sys.executable, [sys.argv[1]])).run(show_banner=False)
"""
SMALL = r"""
import json, sys
for line in sys.stdin.buffer:
    said = json.loads(line)
    if "id" not in said:
        continue
    if said["method"] != "tools/call":
        result = {"tools": [], "capabilities": {}, "protocolVersion": "2025-11-25", "serverInfo": {"name": "small"}}
    else:
        given = said["params"]["arguments"]
        text = "5 documents about " + given["query"] + ": " + "some words of a document. " * 20
        result = {"content": [{"type": "text", "text": text}], "isError": given["query"] == "nothing"}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": result}) + "\n")
    sys.stdout.flush()
"""


def through_mulligan(home: Path, server: Path) -> tuple[list[str], dict[str, str]]:
    command = [sys.executable, "-m", "mulligan", "proxy", "--name", "bench", "--", sys.executable, str(server)]
    return command, {**os.environ, "MULLIGAN_HOME": str(home)}


def through_url(home: Path, port: int) -> tuple[list[str], dict[str, str]]:
    command = [sys.executable, "-m", "mulligan", "proxy", "--name", "bench", "--url", f"http://127.0.0.1:{port}/mcp"]
    return command, {**os.environ, "MULLIGAN_HOME": str(home)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int) -> None:
    for _ in range(600):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    raise TimeoutError(f"nothing listens on port {port}")


@contextmanager
def started(command: list[str], env: dict[str, str] | None = None) -> Iterator[None]:
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


async def http_latencies(folder: Path, calls: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each call to a server behind a URL, by the way it took."""
    server, port, listening = folder / "server.py", free_port(), free_port()
    server.write_text(SERVER)
    command, environment = through_url(folder / "url", port)
    with (
        started([sys.executable, str(server), str(port)]),
        started([*command, "--listen", str(listening)], environment),
    ):
        wait_for_port(port)
        wait_for_port(listening)
        ways: dict[str, Any] = {
            "direct": f"http://127.0.0.1:{port}/mcp",
            "mulligan proxy": (command, environment),
            "mulligan proxy --listen": f"http://127.0.0.1:{listening}/mcp",
        }
        return await call_in_turns(folder, ways, calls, rounds)


async def latencies(folder: Path, calls: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each call to a server over stdio, by the way it took."""
    server, fast = folder / "server.py", folder / "fast.py"
    server.write_text(SERVER)
    fast.write_text(FASTMCP)
    proxied, environment = through_mulligan(folder / "home", server)
    ways = {
        "direct": ([sys.executable, str(server)], dict(os.environ)),
        "mulligan proxy": (proxied, environment),
        "FastMCP proxy": ([sys.executable, str(fast), str(server)], dict(os.environ)),
    }
    return await call_in_turns(folder, ways, calls, rounds)


async def call_in_turns(folder: Path, ways: dict[str, Any], calls: int, rounds: int) -> dict[str, list[float]]:
    """Call by all ways in turns: a way is a URL, or a command with its environment."""
    from mcp.client.stdio import stdio_client

    from mcp import Client, StdioServerParameters

    taken: dict[str, list[float]] = {name: [] for name in ways}
    with (folder / "errors").open("w") as errors:
        async with AsyncExitStack() as stack:
            clients: dict[str, Any] = {}
            for name, way in ways.items():
                transport = way
                if not isinstance(way, str):
                    about = StdioServerParameters(command=way[0][0], args=way[0][1:], env=way[1])
                    transport = stdio_client(about, errlog=errors)
                clients[name] = await stack.enter_async_context(Client(transport))
                await clients[name].list_tools()
            for round in range(rounds + 1):
                for number in range(max(1, calls // rounds)):
                    for name, client in clients.items():  # call by call: the machine may be busy with something else
                        began = time.perf_counter()
                        answer = await client.call_tool("search", {"query": f"fish {number}", "top_k": 5})
                        took = time.perf_counter() - began
                        assert not answer.is_error, answer
                        if round:  # the first one warms up
                            taken[name].append(took)
    return taken


class Small:
    """A client of a few lines."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._into, self._out = self.process.stdin, self.process.stdout
        self._id = 0
        self.ask("initialize", {"clientInfo": {"name": "small"}})

    def ask(self, method: str, params: Any) -> bytes:
        self._id += 1
        said = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        self._into.write(json.dumps(said).encode() + b"\n")
        self._into.flush()
        return self._out.readline()

    def search(self, query: str) -> bytes:
        return self.ask("tools/call", {"name": "search", "arguments": {"query": query, "top_k": 5}})

    def close(self) -> None:
        self._into.close()
        self.process.wait(30)

    @property
    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6

    @property
    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class SmallHttp(Small):
    """A client over HTTP, with the handshake for every second call."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        port = free_port()
        self.process = subprocess.Popen([*command, "--listen", str(port)], env=env, stderr=subprocess.DEVNULL)
        wait_for_port(port)
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._session: str | None = None
        self._id = 0
        self.ask("initialize", {"protocolVersion": "2025-11-25", "clientInfo": {"name": "small"}})

    def ask(self, method: str, params: Any) -> bytes:
        self._id += 1
        headers = {"Content-Type": "application/json"}
        if self._session and self._id % 2:
            headers["Mcp-Session-Id"] = self._session
        elif self._session:
            params = {**params, "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}
        said = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        self._connection.request("POST", "/mcp", json.dumps(said), headers)
        response = self._connection.getresponse()
        self._session = self._session or response.headers["mcp-session-id"]
        answer = response.read()
        assert b'"result"' in answer, answer
        return answer

    def close(self) -> None:
        self._connection.close()
        self.process.terminate()
        self.process.wait(30)


def bare(folder: Path, calls: int, rounds: int) -> dict[str, list[float]]:
    server = folder / "small.py"
    server.write_text(SMALL)
    command, environment = through_mulligan(folder / "bare", server)
    clients = {"direct": Small([sys.executable, str(server)]), "mulligan proxy": Small(command, environment)}
    taken: dict[str, list[float]] = {name: [] for name in clients}
    for round in range(rounds + 1):
        for number in range(calls // rounds):
            for name, client in clients.items():
                began = time.perf_counter()
                client.search(f"fish {number}")
                if round:
                    taken[name].append(time.perf_counter() - began)
    for client in clients.values():
        client.close()
    return taken


class Memory(NamedTuple):
    """Megabytes of the proxy after 10 %, 50 % and all of the calls, and its CPU microseconds a call."""

    early: float
    half: float
    late: float
    cpu: float


def measure_memory(client: Small, many: int) -> Memory:
    megabytes: list[float] = []
    before = client.cpu
    for number in range(1, many + 1):
        client.search("nothing" if number % 100 == 99 else f"fish {number}")
        if number in (many // 10, many // 2, many):
            time.sleep(0.5)  # until everything is kept
            megabytes.append(client.megabytes)
    spent = client.cpu - before
    client.close()
    return Memory(megabytes[0], megabytes[1], megabytes[2], 1e6 * spent / many)


def middle(taken: list[float], at: float = 0.5) -> float:
    return statistics.quantiles(taken, n=100)[int(at * 100) - 1] * 1e6


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--only", choices=["latency", "memory"])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    figures: dict[str, Any] = {}
    memories: dict[str, Memory] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if given.only != "memory":
            try:
                figures["stdio"] = asyncio.run(latencies(folder, given.calls, given.rounds))
                figures["http"] = asyncio.run(http_latencies(folder, given.calls, given.rounds))
            except ImportError:
                print("the packages mcp and fastmcp are not installed: make bench does, or pip install mcp fastmcp")
            figures["bare"] = bare(folder, given.calls * 10, given.rounds)
        if given.only != "latency":
            memories = dict(measure_memories(folder, given.many))
    return 0 if report(figures, memories, given.json, given.many) else 1


def measure_memories(folder: Path, many: int) -> Iterator[tuple[str, Memory]]:
    small, small_http, port = folder / "small.py", folder / "small_http.py", free_port()
    small.write_text(SMALL)
    small_http.write_text(SMALL_HTTP)
    yield "stdio", measure_memory(Small(*through_mulligan(folder / "many", small)), many)
    if find_spec("mcp") is None:
        return
    with started([sys.executable, str(small_http), str(port)]):
        wait_for_port(port)
        yield "--url", measure_memory(Small(*through_url(folder / "far", port)), many)
        yield "--url --listen", measure_memory(SmallHttp(*through_url(folder / "listen", port)), many)


TITLES = {
    "stdio": "real client, real server over stdio",
    "http": "real client, real server over HTTP",
    "bare": "a client and a server of a few lines",
}


def report(figures: dict[str, Any], memories: dict[str, Memory], as_json: bool, many: int) -> bool:
    """Print the figures. Return whether they meet the targets."""
    say: Callable[..., None] = (lambda *words: None) if as_json else print
    rows: dict[str, Any] = {}
    is_met = True
    for table, taken in figures.items():
        say(f"\n{TITLES[table]:38}  p50 us    p90 us   x direct")
        direct = middle(taken["direct"])
        for name, each in taken.items():
            ratio = middle(each) / direct
            rows[f"{table}: {name}"] = {"p50": middle(each), "p90": middle(each, 0.9), "ratio": ratio}
            say(f"  {name:36}{middle(each):8.0f}  {middle(each, 0.9):8.0f}   {ratio:8.2f}")
    say("")
    for table in ("stdio", "http"):
        row = rows.get(f"{table}: mulligan proxy")
        if row is not None:
            is_quick = row["ratio"] <= SLOWER
            is_met = is_met and is_quick
            say(f"{'ok    ' if is_quick else 'MISSED'} {table}: {row['ratio']:.2f} x direct, at most {SLOWER}")
    for table, used in memories.items():
        is_flat = used.late - used.early <= FLAT
        is_met = is_met and is_flat
        say(f"{'ok    ' if is_flat else 'MISSED'} {table}: {used.late - used.early:+.1f} MB, at most {FLAT:g}")
        say(
            f"       {many:,} calls: {used.early:.1f} MB after 10 %, {used.half:.1f} MB after 50 %, {used.late:.1f} MB "
            f"after all; CPU {used.cpu:.0f} us a call"
        )
    if as_json:
        print(json.dumps({"rows": rows, "memory": {name: used._asdict() for name, used in memories.items()}}))
    return is_met


if __name__ == "__main__":
    sys.exit(main())
