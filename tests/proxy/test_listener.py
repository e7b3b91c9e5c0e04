"""`mulligan proxy --listen`: clients over HTTP on loopback."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import sys
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


@contextlib.contextmanager
def listening(*options, words=()):
    """A proxy over HTTP in front of the fake server, and its port."""
    command = [sys.executable, "-m", "mulligan", "proxy", "--name", "fake", "--listen", "0", *options]
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
        return self.request("POST", {"id": 1, "method": "tools/call", "params": params})


def read_events(response, count):
    """The messages of the next events."""
    found = []
    while len(found) < count:
        line = response.readline()
        if line.startswith(b"data: "):
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
