"""`mulligan proxy --listen`: clients over HTTP on loopback."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from mcp_client import FAKE, Connection

import mulligan
from mulligan.core.failure import SettingsError
from mulligan.proxy.listener import is_loopback_host, is_loopback_origin, parse_address

HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


@pytest.fixture(autouse=True)
def connections():
    """All connections of a test. They are closed after it."""
    with contextlib.ExitStack() as stack:
        HttpClient.stack = stack
        yield


HURRIED = """
from mulligan.proxy import listener
listener.RESUME_SECONDS = listener.JSON_ANSWER_SECONDS = 0.5
from mulligan.cli import main
main()
"""
"""The command, which waits less for a client that may resume."""


@contextlib.contextmanager
def listening(*options, words=()):
    """A proxy over HTTP in front of the fake server, and its port."""
    command = [sys.executable, "-c", HURRIED, "proxy", "--name", "fake", "--listen", "0", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(mulligan.__file__).parents[1])}
    with Connection([*command, "--", sys.executable, str(FAKE), *words], environment) as proxy:
        while not proxy.complaints and proxy.process.poll() is None:
            pass
        match = re.search(r"127\.0\.0\.1:(\d+)/mcp", "".join(proxy.complaints))
        assert match, proxy.complaints
        yield proxy, int(match[1])


class HttpClient:
    def __init__(self, port):
        self.port = port
        self.session = None

    def request(self, method, message=None, path="/mcp", **headers):
        connection = self.connect()
        session = {"Mcp-Session-Id": self.session} if self.session else {}
        body = None if message is None else json.dumps({"jsonrpc": "2.0", **message})
        connection.request(method, path, body, {**HEADERS, **session, **headers})
        return self.stack.enter_context(connection.getresponse())

    def connect(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        return self.stack.enter_context(contextlib.closing(connection))

    def open(self):
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tester"}}
        response = self.request("POST", {"id": 0, "method": "initialize", "params": params})
        assert response.status == 200
        self.session = response.headers["mcp-session-id"]
        assert self.request("POST", {"method": "notifications/initialized"}).status == 202
        return self

    def call(self, name, **arguments):
        params = {"name": name, "arguments": arguments}
        version = {"Mcp-Protocol-Version": "2025-11-25"}
        return self.request("POST", {"id": 1, "method": "tools/call", "params": params}, **version)

    def call_stateless(self, name, token=None, **arguments):
        meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "progressToken": token}
        params = {"name": name, "arguments": arguments, "_meta": meta}
        return self.request("POST", {"id": 1, "method": "tools/call", "params": params})

    def hang_up_after_sending(self, name, **headers):
        """Send a call and close the connection before the answer."""
        body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": name, **headers}})
        session = {"Mcp-Session-Id": self.session} if self.session else {}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as connection:
            connection.request("POST", "/mcp", body, {**HEADERS, **session})


def read_events(response, count):
    """The messages of the next events."""
    found = []
    while len(found) < count:
        line = response.readline()
        if line.startswith(b"data: ") and line[6:].strip():  # an event without a message makes the stream resumable
            found.append(json.loads(line[6:]))
    return found


def test_a_call_is_answered_with_json_and_each_session_has_its_own_server():
    with listening() as (proxy, port):
        clients = [HttpClient(port).open(), HttpClient(port).open()]
        assert clients[0].session != clients[1].session
        counts = [json.loads(client.call("count").read())["result"]["content"][0]["text"] for client in clients]
        assert counts[0] == counts[1]
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(30) == 128 + signal.SIGTERM


def test_progress_comes_before_the_answer_as_events():
    with listening() as (_, port):
        client = HttpClient(port).open()
        params = {"name": "slow", "arguments": {"seconds": 0.5}, "_meta": {"progressToken": "p"}}
        response = client.request("POST", {"id": 1, "method": "tools/call", "params": params})
        assert response.headers["content-type"] == "text/event-stream"
        messages = read_events(response, 2)
        assert messages[0]["params"] == {"progressToken": "p", "progress": 1}


def test_a_question_of_the_server_is_answered_by_another_request():
    with listening() as (_, port):
        client = HttpClient(port).open()
        response = client.call("ask")
        (question,) = read_events(response, 1)
        assert question["method"] == "sampling/createMessage"
        assert client.request("POST", {"id": question["id"], "result": {"said": "yes"}}).status == 202
        (answer,) = read_events(response, 1)
        assert "yes" in answer["result"]["content"][0]["text"]


def wait_for(path, words):
    """Read a file until it has these words."""
    deadline = time.monotonic() + 30
    while words not in path.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    return path.read_text()


@pytest.mark.parametrize("meta", [None, {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}])
def test_a_client_that_hangs_up_cancels_its_call(tmp_path, meta):
    log = tmp_path / "log"
    log.touch()
    with listening(words=[f"log={log}"]) as (_, port):
        client = HttpClient(port) if meta else HttpClient(port).open()
        client.hang_up_after_sending("hang", _meta=meta)
        assert "the client hung up" in wait_for(log, "notifications/cancelled")


def test_a_long_call_is_resumed_after_the_last_event_and_made_once(tmp_path):
    log = tmp_path / "log"
    with listening(words=[f"log={log}"]) as (_, port):
        client = HttpClient(port).open()
        with client.call("slow", seconds=1.5) as response:
            assert response.headers["content-type"] == "text/event-stream"
            assert response.readline() == b"id: 2-0\n"
        resumed = client.request("GET", **{"Last-Event-Id": "2-0"})
        (answer,) = read_events(resumed, 1)
        assert answer["result"]["content"][0]["text"] == "done"
        assert client.request("GET", **{"Last-Event-Id": "9-9"}).status == 400
    assert log.read_text().count('"slow"') == 1
    assert "notifications/cancelled" not in log.read_text()


def test_a_long_call_that_no_client_resumes_is_cancelled(tmp_path):
    log = tmp_path / "log"
    with listening(words=[f"log={log}"]) as (_, port):
        client = HttpClient(port).open()
        with client.call("hang") as response:
            response.readline()
            client.stack.close()
        assert "the client hung up" in wait_for(log, "notifications/cancelled")


def test_clients_without_handshake_share_a_server_and_each_gets_its_own_progress_and_answer():
    with listening() as (_, port):
        responses = {
            token: HttpClient(port).call_stateless("slow", token=token, seconds=0.5) for token in ("first", "second")
        }
        for token, response in responses.items():
            *progress, answer = [json.loads(line[6:]) for line in response if line.startswith(b"data: ")]
            assert {message["params"]["progressToken"] for message in progress} == {token}
            assert (answer["id"], answer["result"]["content"][0]["text"]) == (1, "done")
            assert response.headers["mcp-session-id"] is None
        assert [int(json.loads(HttpClient(port).call_stateless("count").read())["result"]["content"][0]["text"])] == [3]


def test_an_ended_or_unknown_session_is_not_found():
    with listening() as (_, port):
        client = HttpClient(port).open()
        assert client.request("DELETE").status == 200
        assert client.call("echo", text="x").status == 404
        client.session = None
        response = client.call("echo", text="x")
        assert response.status == 400
        assert json.loads(response.read())["error"]["code"] == -32601


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example"},
        {"Host": "127.0.0.1.attacker.example:80"},
        {"Origin": "https://attacker.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
    ],
)
def test_a_request_of_a_web_page_is_refused(headers):
    with listening() as (_, port):
        message = {"id": 0, "method": "initialize", "params": {}}
        assert HttpClient(port).request("POST", message, **headers).status == 403
        assert HttpClient(port).request("POST", message, Origin="http://localhost:3000").status == 200


def test_what_is_no_message_is_refused():
    with listening() as (_, port):
        client = HttpClient(port)
        assert client.request("POST", {}, **{"Content-Type": "text/plain"}).status == 415
        assert client.request("POST", {}, path="/other").status == 404
        assert client.request("PUT", {}).status == 404
        connection = client.connect()
        connection.request("POST", "/mcp", b"{ broken", HEADERS)
        assert connection.getresponse().status == 400


def test_another_address_than_loopback_needs_a_flag():
    command = [sys.executable, "-m", "mulligan", "proxy", "--listen", "0.0.0.0:0", "--", "true"]
    with Connection(command, {**os.environ, "PYTHONPATH": str(Path(mulligan.__file__).parents[1])}) as proxy:
        assert proxy.process.wait(30) != 0
        proxy._over()
        assert "add --allow-remote-clients" in "".join(proxy.complaints)


def test_addresses():
    assert parse_address("8000") == ("127.0.0.1", 8000)
    assert parse_address("[::1]:80") == ("::1", 80)
    with pytest.raises(SettingsError, match="Invalid address 'x'"):
        parse_address("x")


def test_hosts_and_origins():
    assert all(map(is_loopback_host, ["localhost:1", "127.0.0.1", "[::1]:80"]))
    assert not any(map(is_loopback_host, ["", "localhost.evil.example", "[::1", "10.0.0.1"]))
    assert is_loopback_origin(None)
    assert not is_loopback_origin("")
