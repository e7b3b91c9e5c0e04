"""Start a server on a new store, send it runs of two agents with a token, and query it."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

AGENT = """
import mulligan, sys

@mulligan.tool(clamp=["top_k"])
def search(query: str, top_k: int = 5) -> str:
    if top_k > 10:
        raise mulligan.AgentError(f"top_k must be 10 or less, got {top_k}.")
    return f"{top_k} results"

with mulligan.run(sys.argv[1]):
    search("refunds", top_k=50)
mulligan.flush(10)
"""


def run(*command: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, *command], env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=60
    ).stdout


with socket.create_server(("127.0.0.1", 0)) as unused:
    address = f"http://127.0.0.1:{unused.getsockname()[1]}"


def query(path: str, token: str) -> dict:
    request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)


with tempfile.TemporaryDirectory() as folder:
    store = str(Path(folder) / "team.db")
    tokens = {
        role: json.loads(run("-m", "mulligan", "token", "create", "--role", role, "--store", store, "--json"))["token"]
        for role in ("ingest", "read")
    }
    command = [sys.executable, "-m", "mulligan", "serve", "--store", store, "--port", address.rpartition(":")[2]]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        for _ in range(200):
            try:
                query("/readyz", "")
                break
            except OSError:
                time.sleep(0.1)
        for agent in ("support", "billing"):
            home = str(Path(folder) / agent)  # two machines, as it were
            run("-c", AGENT, agent, MULLIGAN_STORE=address, MULLIGAN_TOKEN=tokens["ingest"], MULLIGAN_HOME=home)
        agents = sorted(row["agent"] for row in query("/v1/runs", tokens["read"])["runs"])
        stats = query("/v1/stats", tokens["read"])
        print(f"runs: {stats['total_runs']}, by agent: {', '.join(agents)}")
        total = stats["total"]
        print(f"recovered: {total['recovered']} of {total['recovered'] + total['unrecovered']} failed calls")
        server.terminate()
