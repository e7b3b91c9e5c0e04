"""The proxy while its store is locked, hangs or has a full disk, and after it was killed.

The store's own time limits are set to ten minutes, so that a proxy which waits for the store does not answer in time.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sqlite3
import sys
import threading
from pathlib import Path

import pytest
from mcp_client import FAKE, Connection, block, texts

import mulligan
from mulligan import settings
from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.store.urls import open_store

PATIENT_STORE = """
import functools
from mulligan.record import memory_lookup
from mulligan.store import remote, sqlite
from mulligan.store.postgres import pool
memory_lookup.FLUSH_TIMEOUT_SECONDS = memory_lookup.DATABASE_TIMEOUT_SECONDS = 600.0
remote.SEND_TIMEOUT_SECONDS = remote.RECALL_TIMEOUT_SECONDS = remote.KEY_VALUE_TIMEOUT_SECONDS = 600.0
pool.CONNECT_TIMEOUT_SECONDS = 600
sqlite.SqliteStore.__init__ = functools.partialmethod(sqlite.SqliteStore.__init__, busy_ms=600_000)
from mulligan.cli import main
main()
"""


def connect(*options, words=(), **more):
    command = [sys.executable, "-c", PATIENT_STORE, "proxy", "--name", "fake", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(mulligan.__file__).parents[1])}
    return Connection([*command, "--", sys.executable, str(FAKE), *words], environment, **more)


def stored_numbers():
    """The first argument of all stored calls of add. The texts of a success are not in a journal, its numbers are."""
    store = open_store(settings.load_settings().store_url)
    try:
        histories = store.runs(DEFAULT_TENANT, RunQuery(limit=100))
        return sorted(step.arguments["a"] for history in histories for step in history.steps if step.name == "fake.add")
    finally:
        store.close()


@contextlib.contextmanager
def hanging_server():
    """A port where connections are accepted and never answered."""
    connections = []

    def accept():
        with contextlib.suppress(OSError):
            while True:
                connections.append(server.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        for connection in connections:
            connection.close()


def test_a_locked_store_delays_neither_calls_nor_the_exit_and_nothing_is_lost():
    with connect() as client:
        client.open().tools()
        client.call("add", a=1)
        client.close()
    with contextlib.closing(sqlite3.connect(settings.load_settings().store_url, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with connect(words=["second"]) as client:  # whose tools have changed, which is to be stored
            client.open().tools()
            assert texts(client.call("add", a=2)) == ["3"]
            assert block(client.call("fail", text="it failed"))["error"]
            assert client.close() == 0
        holder.execute("ROLLBACK")
    with connect() as client:
        client.open()
        client.call("add", a=3)
        client.close()
    assert stored_numbers() == [1, 2, 3]


@pytest.mark.parametrize("scheme", ["http", "postgresql"])
def test_a_store_in_the_network_that_hangs_delays_neither_calls_nor_lists_nor_the_exit(scheme):
    url = "{}://127.0.0.1:{}/mulligan"
    with hanging_server() as port, connect("--store", url.format(scheme, port), "--inject-lessons") as client:
        client.open().tools()
        for number in range(3):
            assert texts(client.call("echo", text=f"text {number}")) == [f"text {number}"]
            assert block(client.call("fail", text=f"it failed {number}"))["error"]
        assert client.close() == 0
    journals = Path(os.environ["MULLIGAN_HOME"]).glob("*.journals/*")
    assert b"it failed 2" in b"".join(journal.read_bytes() for journal in journals)


def test_a_full_disk_harms_no_call():
    def refuse_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # pipes are not files

    with connect(preexec_fn=refuse_files) as client:
        client.open().tools()
        assert texts(client.call("echo", text="x")) == ["x"]
        assert block(client.call("fail", text="it failed"))["error"]
        assert client.close() == 0
        assert "mulligan" in "".join(client.complaints)


def test_a_killed_proxy_loses_no_answered_call_and_stores_none_twice():
    answered = []
    for round_number in range(3):
        with connect() as client:
            client.open().tools()
            for number in range(40):
                arguments = {"a": 100 * round_number + number, "b": 0}
                client.send(id=number, method="tools/call", params={"name": "add", "arguments": arguments})
            answered += [int(texts(client.hear())[0]) for _ in range(20 + round_number)]
            client.process.send_signal(signal.SIGKILL)
    with connect() as client:
        client.open()
        client.call("add", a=1000)
        client.close()
    stored = stored_numbers()
    assert len(stored) == len(set(stored))
    assert {*answered, 1000} <= set(stored)
