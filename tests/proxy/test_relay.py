"""Everything that is not a tool call passes byte for byte, in both directions."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from mcp_client import FAKE, PATIENT, WITH_THREADS, direct, proxied

SAYINGS = [
    b'{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{"uri":"a:b"}}\n',
    b'{ "jsonrpc" : "2.0" , "id" : "a-\\u00e9" , "method":"prompts/get" }\n',
    '{"jsonrpc":"2.0","id":8,"method":"x/y","params":{"text":"caf\u00e9 \U0001f3cc","n":1e3}}\n'.encode(),
    b'{"jsonrpc":"2.0","id":9.0,"method":"ping"}\n',
    b'[{"jsonrpc":"2.0","id":10,"method":"ping"},{"jsonrpc":"2.0","id":11,"method":"ping"}]\n',
    b"this is not JSON\n",
    b'{"jsonrpc":"2.0","id":{"odd":1},"method":"ping"}\n',
]


def test_what_is_no_tool_call_arrives_as_it_was_sent(tmp_path):
    with proxied(f"log={tmp_path / 'heard'}") as client:
        client.open()
        for line in SAYINGS:
            client.write(line)
        client.write(b'{"jsonrpc":"2.0","method":"notifications/odd","params":{"a":[1, 2]}}\n')
        for _ in SAYINGS:
            client.line()
        assert client.close() == 0
    assert (tmp_path / "heard").read_bytes().splitlines(keepends=True)[2:] == [
        *SAYINGS,
        b'{"jsonrpc":"2.0","method":"notifications/odd","params":{"a":[1, 2]}}\n',
    ]


@pytest.mark.parametrize("program", [None, WITH_THREADS])
def test_answers_are_those_of_the_server(program):
    said = []
    for connect in (direct, lambda: proxied(program=program)):
        with connect() as client:
            client.open()
            for line in SAYINGS:
                client.write(line)
            said.append([client.line() for _ in SAYINGS])
            client.send(id=1, method="tools/list")
            said[-1].append(client.line())
            client.send(id=2, method="tools/call", params={"name": "echo", "arguments": {"text": "h\u00e9"}})
            said[-1].append(client.line())
            client.close()
    assert said[0] == said[1]


def test_a_question_of_the_server_reaches_the_client_and_is_answered_by_nobody_else():
    with proxied() as client:
        client.open()
        client.send(id=1, method="tools/call", params={"name": "ask"})
        asked = client.hear()
        assert (asked["id"], asked["method"]) == ("ask-1", "sampling/createMessage")
        client.send(id=asked["id"], error={"code": -1, "message": "no"})
        assert "no" in client.hear()["result"]["content"][0]["text"]


def test_progress_arrives_before_the_answer_and_keeps_a_long_call_alive():
    with proxied(options=["--timeout", "3"]) as client:
        client.open()
        client.send(
            id=1,
            method="tools/call",
            params={"name": "slow", "arguments": {"seconds": 3.5}, "_meta": {"progressToken": "p"}},
        )
        said = [client.hear()]
        while "result" not in said[-1]:
            said.append(client.hear())
        assert said[0]["params"] == {"progressToken": "p", "progress": 1}
        assert len(said) > 3
        assert said[-1]["result"]["content"][0]["text"] == "done"


def test_a_call_is_not_late_while_the_server_waits_for_the_client():
    with proxied(options=["--timeout", "1"]) as client:
        client.open()
        client.send(id=1, method="tools/call", params={"name": "ask"})
        asked = client.hear()
        time.sleep(1.6)  # a person who thinks
        client.send(id=asked["id"], result={"said": "yes"})
        assert "yes" in client.hear()["result"]["content"][0]["text"]


def test_a_client_that_ends_its_input_hears_the_answers_that_are_on_their_way():
    with proxied("late", program=PATIENT) as client:
        client.send(id=1, method="initialize", params={})
        client.send(id=2, method="tools/call", params={"name": "echo", "arguments": {"text": "hello"}})
        client.process.stdin.close()
        assert client.hear()["id"] == 1
        assert client.hear()["result"]["content"][0]["text"] == "hello"
        assert client.line() == b""
        assert client.process.wait(10) == 0


def test_input_may_come_from_a_file(tmp_path, monkeypatch):
    (tmp_path / "in").write_text('{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    command = [sys.executable, "-c", PATIENT, "proxy", "--", sys.executable, str(FAKE)]
    with (tmp_path / "in").open() as said, (tmp_path / "out").open("w") as heard:
        subprocess.run(command, stdin=said, stdout=heard, timeout=60, check=True)
    assert json.loads((tmp_path / "out").read_text())["result"]["heard"] == "ping"


@pytest.mark.parametrize("program", [None, WITH_THREADS])
def test_a_thousand_calls_at_once_are_each_given_their_own_answer(program):
    with proxied(program=program) as client:
        client.open()
        for number in range(1000):
            client.send(
                id=f"call-{number}",
                method="tools/call",
                params={"name": "echo", "arguments": {"text": f"text {number}"}},
            )
        heard = [client.hear() for _ in range(1000)]
    assert {each["id"]: each["result"]["content"][0]["text"] for each in heard} == {
        f"call-{number}": f"text {number}" for number in range(1000)
    }


@pytest.mark.parametrize("size", [1, 4096, 1_000_000])
def test_messages_of_any_size_pass_in_both_directions(size):
    with proxied() as client:
        client.open()
        answer = client.call("echo", text="y" * size)
        assert answer["result"]["content"] == [{"type": "text", "text": "y" * size}]


def test_the_proxy_imports_nothing_that_it_does_not_need():
    code = "import sys; import mulligan.proxy.tool_calls; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"mcp", "pydantic", "httpx", "anyio", "sqlite3", "jsonschema_rs"} & set(loaded)


def test_the_server_is_started_before_anything_else_is_loaded():
    """It takes longer to start than we do: so nobody waits for us."""
    code = "import sys; import mulligan.cli.proxy; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"mulligan.api", "mulligan.classify.classifier", "mulligan.record.recorder"} & set(loaded)
