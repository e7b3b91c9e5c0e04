"""`mulligan proxy --config`: several servers behind one client."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from mcp_client import FAKE, Connection, block, hear_answer, stored_steps, texts

import mulligan
from mulligan.hooks import session_files
from mulligan.proxy.group_members import choose_names, merge_handshakes
from mulligan.proxy.messages import SESSION_KEY

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "tester", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
"""What a client without handshake sends with each request."""


def entry(*words):
    return {"command": sys.executable, "args": [str(FAKE), *words]}


def write_config(path, **servers):
    path.write_text(json.dumps({"mcpServers": servers}))


def connect(path, *options):
    command = [sys.executable, "-m", "mulligan", "proxy", "--config", str(path), *options]
    return Connection(command, {**os.environ, "PYTHONPATH": str(Path(mulligan.__file__).parents[1])})


def ask(client, method, params=None):
    ask.count += 1
    client.send(id=ask.count, method=method, params=params or {})
    return hear_answer(client, ask.count)


ask.count = 1000


def call(client, name, **arguments):
    return ask(client, "tools/call", {"name": name, "arguments": arguments})


def tool_names(client):
    return [tool["name"] for tool in ask(client, "tools/list")["result"]["tools"]]


@pytest.fixture
def config(tmp_path):
    return tmp_path / "mcp.json"


def test_equal_names_get_the_server_as_prefix_and_others_stay(config):
    write_config(config, one=entry(), two=entry("second"))
    with connect(config) as client:
        client.open()
        names = tool_names(client)
        assert {"one__echo", "two__echo", "extra"} <= set(names)
        assert "echo" not in names
        assert texts(call(client, "two__echo", text="x")) == ["x"]
        assert client.close() == 0


def test_a_call_reaches_its_server_only(config, tmp_path):
    write_config(config, one=entry(f"log={tmp_path / 'one'}"), two=entry("second", f"log={tmp_path / 'two'}"))
    with connect(config) as client:
        client.open()
        tool_names(client)
        call(client, "two__add", a=1)
        call(client, "extra")
        client.close()
    calls = {
        name: [
            json.loads(line)["params"]["name"]
            for line in (tmp_path / name).read_text().splitlines()
            if "tools/call" in line
        ]
        for name in ("one", "two")
    }
    assert calls == {"one": [], "two": ["add", "extra"]}


@pytest.mark.parametrize("name", ["team", ""])
def test_with_its_name_in_the_client_hooks_leave_all_its_tools_to_the_proxy(config, name):
    write_config(config, one=entry(), two=entry("second"))
    with connect(config, "--mode", "observe", *(["--name", name] if name else [])) as client:
        client.open()
        tool_names(client)
        for tool in ("two__echo", "extra"):
            ask(client, "tools/call", {"name": tool, "arguments": {}, "_meta": {SESSION_KEY: "session-1"}})
        client.close()
    tools = {f"mcp__team__{tool}" for tool in ("two__echo", "extra")}
    announced = session_files.read_proxied_tools("session-1")
    assert {tool for tool in tools if session_files.tool_key(tool) in announced} == (tools if name else set())


def test_one_server_that_cannot_start_does_not_take_the_others_down(config):
    write_config(config, good=entry(), gone={"command": str(config.parent / "missing")}, dead=entry("dies"))
    with connect(config) as client:
        answer = client.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
        assert "Not available now, so their tools are missing: dead, gone." in answer["result"]["instructions"]
        client.send(method="notifications/initialized")
        assert texts(call(client, "echo", text="x")) == ["x"]
        client.close()
        complaints = "".join(client.complaints)
    assert "server gone is not available: it cannot be started: no such file" in complaints
    assert "server dead is not available: the server exited with code 3" in complaints


def test_a_server_that_ends_for_good_is_announced_and_its_calls_say_why_and_are_recorded(config):
    write_config(config, one=entry(), two=entry("second"))
    with connect(config, "--no-restart") as client:
        client.open()
        tool_names(client)
        client.send(id=1, method="tools/call", params={"name": "two__crash"})
        messages = [client.hear() for _ in range(4)]
        assert {"notifications/tools/list_changed", None} <= {message.get("method") for message in messages}
        failure = block(call(client, "two__echo", text="x"))
        assert failure["error"] == "tool/unavailable"
        assert "Server two is not available: the server exited" in failure["message"]
        assert "outcome" not in failure
        assert texts(call(client, "one__echo", text="x")) == ["x"]
        assert "echo" in tool_names(client)  # two is absent, so nothing collides
        client.close()
    failures = {step.name: str(step.failure.kind) for step in stored_steps() if step.outcome == "failure"}
    assert failures == {"two.crash": "tool/connection_error", "two.echo": "tool/unavailable"}


def test_a_client_without_handshake_uses_servers_that_need_one(config, tmp_path):
    write_config(config, one=entry(f"log={tmp_path / 'one'}"), two=entry("second"), gone={"command": "missing-program"})
    with connect(config) as client:
        found = ask(client, "server/discover", {"_meta": META})["result"]
        assert found["supportedVersions"] == ["2026-07-28"]
        assert "missing: gone." in found["instructions"]
        listed = ask(client, "tools/list", {"_meta": META})["result"]
        assert (listed["resultType"], listed["ttlMs"]) == ("complete", 0)
        assert {"one__echo", "two__echo", "extra"} <= {tool["name"] for tool in listed["tools"]}
        answer = ask(client, "tools/call", {"name": "one__echo", "arguments": {"text": "x"}, "_meta": META})
        assert (texts(answer), answer["result"]["resultType"]) == (["x"], "complete")
        asked = ask(client, "tools/call", {"name": "one__ask", "_meta": META})
        assert "The client accepts no requests" in texts(asked)[0]
        assert ask(client, "initialize", {"protocolVersion": "2025-11-25"})["error"]["code"] == -32022
        assert ask(client, "tools/list", {"_meta": {**META, next(iter(META)): "2030-01-01"}})["error"]["code"] == -32022
    messages = [json.loads(line) for line in (tmp_path / "one").read_text().splitlines()]
    methods = [message["method"] for message in messages if "method" in message]
    assert methods[:3] == ["server/discover", "initialize", "notifications/initialized"]
    call_params = next(message["params"] for message in messages if message.get("method") == "tools/call")
    assert call_params["_meta"] == {}


def test_a_changed_file_adds_and_removes_servers(config):
    write_config(config, one=entry())
    with connect(config) as client:
        client.open()
        assert "echo" in tool_names(client)
        write_config(config, one=entry(), two=entry("second"))
        while client.hear().get("method") != "notifications/tools/list_changed":
            pass
        assert {"one__echo", "two__echo", "extra"} <= set(tool_names(client))
        config.write_text("{ broken")
        time.sleep(1.5)  # longer than the interval of the check
        assert texts(call(client, "one__echo", text="still")) == ["still"]
        write_config(config, two=entry("second"))
        while client.hear().get("method") != "notifications/tools/list_changed":
            pass
        names = tool_names(client)
        assert {"echo", "extra"} <= set(names)
        assert "one__echo" not in names
        client.close()
        assert "The servers stay as they were" in "".join(client.complaints)


def test_a_question_of_a_server_is_answered_to_that_server(config):
    write_config(config, one=entry(), two=entry("second"))
    with connect(config) as client:
        client.open()
        tool_names(client)
        for id, name in ((1, "one__ask"), (2, "two__ask")):
            client.send(id=id, method="tools/call", params={"name": name})
        questions = {}
        while len(questions) < 2:
            message = client.hear()
            if message.get("method") == "sampling/createMessage":
                questions[message["id"].split("-")[0]] = message["id"]
        client.send(id=questions["two"], result={"said": "for two"})
        assert "for two" in texts(hear_answer(client, 2))[0]
        client.send(id=questions["one"], result={"said": "for one"})
        assert "for one" in texts(hear_answer(client, 1))[0]


def test_a_cancellation_reaches_the_server_of_the_call(config, tmp_path):
    write_config(config, one=entry(f"log={tmp_path / 'one'}"), two=entry("second", f"log={tmp_path / 'two'}"))
    with connect(config) as client:
        client.open()
        tool_names(client)
        client.send(id="long", method="tools/call", params={"name": "two__hang"})
        call(client, "two__echo", text="after it")
        client.send(method="notifications/cancelled", params={"requestId": "long"})
        call(client, "two__echo", text="x")
        client.close()
    assert "notifications/cancelled" in (tmp_path / "two").read_text()
    assert "notifications/cancelled" not in (tmp_path / "one").read_text()


def test_a_thousand_calls_to_several_servers_at_once_are_each_given_their_own_answer(config):
    write_config(config, one=entry(), two=entry("second"))
    with connect(config) as client:
        client.open()
        tool_names(client)
        for number in range(1000):
            params = {"name": f"{('one', 'two')[number % 2]}__echo", "arguments": {"text": f"text {number}"}}
            client.send(id=number, method="tools/call", params=params)
        answers = {}
        while len(answers) < 1000:
            message = client.hear()
            if "id" in message:
                answers[message["id"]] = texts(message)
    assert answers == {number: [f"text {number}"] for number in range(1000)}


def test_an_unknown_name_is_refused_with_similar_ones(config):
    write_config(config, one=entry())
    with connect(config) as client:
        client.open()
        error = call(client, "ecko")["error"]
        assert error["code"] == -32602
        assert "No server has 'ecko'. Similar names: echo" in error["message"]


def test_a_name_of_two_servers_is_refused_with_the_names_of_both(config):
    write_config(config, one=entry(), two=entry())
    with connect(config) as client:
        client.open()
        error = call(client, "crash")["error"]
        assert "No server has 'crash'. Similar names: one__crash, two__crash" in error["message"]


def test_a_call_of_a_server_that_is_away_says_why(config):
    write_config(config, good=entry(), gone={"command": str(config.parent / "missing")})
    with connect(config) as client:
        client.open()
        failure = block(call(client, "gone__echo", text="x"))
        assert "Server gone is not available: it cannot be started" in failure["message"]


def test_a_file_without_servers_ends_the_command(config):
    write_config(config)
    with connect(config) as client:
        assert client.process.wait(30) == 2


def test_an_invalid_file_ends_the_command(config):
    write_config(config, one={"args": []})
    with connect(config) as client:
        assert client.process.wait(30) != 0
        client._over()
        assert "Missing command or url in server 'one'" in "".join(client.complaints)


def test_a_prefixed_name_never_hides_another():
    assert choose_names([("a", "x"), ("b", "x"), ("b", "a__x"), ("b", "y")]) == ["a__x_", "b__x", "a__x", "y"]


def test_the_oldest_protocol_version_is_agreed_on():
    results = {"a": {"protocolVersion": "2025-06-18"}, "b": {"protocolVersion": "2024-11-05"}}
    assert merge_handshakes("2025-11-25", results, set())["protocolVersion"] == "2024-11-05"
