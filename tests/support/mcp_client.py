"""An MCP client that says exactly what a test tells it to, byte for byte, and never waits for ever."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

import mulligan
from mulligan import settings
from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.core.records import History
from mulligan.store.urls import open_store

FAKE = Path(__file__).with_name("fake_mcp.py")
PATIENCE = 30.0
"""Seconds: only a hang takes so long."""


class Connection:
    """A client at one end of a proxy, or of a server itself."""

    def __init__(self, command, env=None, **more):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, **more
        )
        self.lines = queue.Queue()
        self.complaints = []
        self.is_reading = threading.Event()
        self.is_reading.set()
        self._threads = [
            threading.Thread(target=self._hear, daemon=True),
            threading.Thread(target=self._read, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self._ids = 0

    def _hear(self):
        while line := self.process.stdout.readline():
            self.is_reading.wait()
            self.lines.put(line)
        self.lines.put(b"")

    def _read(self):
        self.complaints.extend(line.decode("utf-8", "replace") for line in self.process.stderr)

    def write(self, line: bytes):
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def send(self, **message):
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def line(self, timeout=PATIENCE) -> bytes:
        return self.lines.get(timeout=timeout)

    def hear(self, timeout=PATIENCE):
        line = self.line(timeout)
        assert line, f"the connection ended: {self.complaints}"
        return json.loads(line)

    def ask(self, method, params=None, id=None):
        """Sends a request and answers with what comes next."""
        self._ids += 1
        id = id if id is not None else self._ids
        self.send(id=id, method=method, **({} if params is None else {"params": params}))
        return self.hear()

    def open(self, client="tester"):
        self.ask(
            "initialize",
            {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": client, "version": "1.2"}},
        )
        self.send(method="notifications/initialized")
        return self

    def tools(self):
        return self.ask("tools/list")["result"]["tools"]

    def call(self, name, **arguments):
        return self.ask("tools/call", {"name": name, "arguments": arguments})

    def close(self) -> int:
        """Ends the connection as a client does; the exit code."""
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self._over()
        return code

    def _over(self):
        for thread in self._threads:
            thread.join(PATIENCE)
        self.process.stdout.close()
        self.process.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        if self.process.poll() is None:
            self.process.kill()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait(PATIENCE)
        self._over()


def texts(answer) -> list[str]:
    return [block["text"] for block in answer["result"]["content"]]


def block(answer):
    """What mulligan added to a failure."""
    return json.loads(texts(answer)[-1])["mulligan"]


def hear_answer(client, id):
    """The answer to a request, after the notifications before it."""
    while (message := client.hear()).get("id") != id:
        pass
    return message


def stored_runs() -> list[History]:
    store = open_store(settings.load_settings().store_url)
    try:
        return store.runs(DEFAULT_TENANT, RunQuery(limit=100))
    finally:
        store.close()


def stored_steps():
    return [step for history in stored_runs() for step in history.steps]


PATIENT = "from mulligan.proxy import server; server.STOP_GRACE_SECONDS = 60.0; from mulligan.cli import main; main()"
"""The command, which gives a server all the time it needs to answer when its input has ended."""


WITH_THREADS = PATIENT.replace("STOP_GRACE_SECONDS = 60.0", "CAN_WATCH_PIPES = False")
"""The command, which reads and writes pipes on threads, as on Windows."""


PATIENT_LISTS = """
from mulligan.proxy import tools
tools.MAX_STORE_DELAY_SECONDS = tools.SAVE_SECONDS = 30.0
from mulligan.cli import main
main()
"""
"""A proxy whose tool lists wait for the store however busy the machine is, for tests about what the store knows."""


def proxied(*words, options=(), env=None, program=None, server=FAKE):
    """A connection to the fake server, or another one, through the proxy."""
    command = [
        sys.executable,
        *(("-c", program) if program else ("-m", "mulligan")),
        "proxy",
        "--name",
        "fake",
        *options,
        "--",
        sys.executable,
        str(server),
        *words,
    ]
    return Connection(command, {**os.environ, "PYTHONPATH": str(Path(mulligan.__file__).parents[1]), **(env or {})})


def direct(*words):
    return Connection([sys.executable, str(FAKE), *words])
