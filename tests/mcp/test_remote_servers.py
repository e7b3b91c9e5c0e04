"""`mulligan proxy --url`: what a client gets when the server behind the URL is well, broken, hostile or away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_http_mcp import fake_http_server, list_messages
from mcp_client import Connection, block, hear_answer, stored_steps, texts
from ports import free_port

import mulligan
from mulligan.core.failure import TookEffect

pytest.importorskip("mcp", reason="the mcp package is not installed: make test-mcp")


def connect(url, *options, env=None):
    command = [sys.executable, "-m", "mulligan", "proxy", "--name", "far", "--url", url, *options]
    return Connection(command, {**os.environ, "PYTHONPATH": str(Path(mulligan.__file__).parents[1]), **(env or {})})


@pytest.fixture
def server():
    with fake_http_server() as server:
        yield server


def call(client, name, **arguments):
    call.count += 1
    id = f"call-{call.count}"
    client.send(id=id, method="tools/call", params={"name": name, "arguments": arguments})
    return hear_answer(client, id)


call.count = 0


def test_a_call_is_answered_and_recorded(server):
    with connect(server.url) as client:
        client.open()
        assert texts(call(client, "echo", text="caf\u00e9\nhere")) == ["caf\u00e9\nhere"]
        assert client.close() == 0
    assert [(step.name, step.outcome) for step in stored_steps()] == [("far.echo", "success")]


def test_session_and_protocol_version_are_sent_and_the_session_is_ended(server):
    with connect(server.url) as client:
        client.open()
        call(client, "echo", text="x")
        client.close()
    _, headers, _ = next(request for request in server.requests if (request[2] or {}).get("method") == "tools/call")
    assert headers["mcp-session-id"] == "session-1"
    assert headers["mcp-protocol-version"] == "2025-11-25"
    assert any(path == "DELETE /mcp" for path, _, _ in server.requests)


def test_a_notification_without_a_request_reaches_the_client(server):
    with connect(server.url) as client:
        client.open()
        assert client.hear()["method"] == "notifications/tools/list_changed"


def test_all_that_a_server_says_and_asks_passes_unchanged_and_so_do_the_answers(server):
    with connect(server.url) as client:
        client.open()
        assert client.hear()["method"] == "notifications/tools/list_changed"
        client.send(id="c", method="tools/call", params={"name": "tell"})
        messages = list_messages()
        assert [client.line() for _ in messages] == [json.dumps(message).encode() + b"\n" for message in messages]
        assert texts(client.hear()) == ["told"]
        replies = [
            {"jsonrpc": "2.0", "id": message["id"], "result": {"n": 1}} for message in messages if "id" in message
        ]
        replies.append({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
        for reply in replies:
            client.write(json.dumps(reply).encode() + b"\n")
        call(client, "echo", text="x")
        assert client.close() == 0
    unordered = [json.dumps(answer) for answer in server.answers if answer.get("method") != "notifications/initialized"]
    assert sorted(unordered) == sorted(map(json.dumps, replies))


def test_headers_come_from_the_environment_and_are_never_recorded(server, tmp_path):
    options = ["--header", "Authorization: Bearer ${FAR_TOKEN}", "--header", "X-Team: search"]
    with connect(server.url, *options, env={"FAR_TOKEN": "s3cret-t0ken-value"}) as client:
        client.open()
        call(client, "forbidden")
        call(client, "echo", text="x")
        client.close()
        assert "s3cret" not in "".join(client.complaints)
    assert all(headers["authorization"] == "Bearer s3cret-t0ken-value" for _, headers, _ in server.requests)
    assert server.requests[0][1]["x-team"] == "search"
    folder = Path(os.environ["MULLIGAN_HOME"])
    assert not [path for path in folder.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]


def test_a_missing_variable_stops_the_start_with_its_name(server):
    with connect(server.url, "--header", "Authorization: Bearer ${NOT_SET_ANYWHERE}") as client:
        assert client.process.wait(30) != 0
        client._over()
        assert "no variable NOT_SET_ANYWHERE" in "".join(client.complaints)


@pytest.mark.parametrize(
    ("tool", "kind", "words"),
    [
        ("html", "tool/invalid_response", "text/html instead of a JSON-RPC message"),
        ("forbidden", "tool/permission_denied", "HTTP 403"),
        ("unauthorized", "tool/auth", "HTTP 401"),
        ("overloaded", "tool/unavailable", "HTTP 503"),
        ("moved", "tool/unavailable", "the server redirects to http://"),
        ("astray", "tool/unavailable", "the server redirects to an invalid URL"),
        ("broken", "tool/invalid_response", "no answer"),
        ("nothing", "tool/invalid_response", "no answer"),
        ("bare", "tool/invalid_response", "neither a result nor an error"),
        ("lost", "tool/connection_error", "closed before the answer"),
        ("reset", "tool/connection_error", "broke"),
    ],
)
def test_a_bad_answer_is_a_failure_that_says_so(server, tool, kind, words):
    with fake_http_server() as other:
        server.other_url = other.url
        with connect(server.url, "--header", "Authorization: Bearer abc") as client:
            client.open()
            failure = block(call(client, tool))
            assert failure["error"].startswith(kind)
            assert words in failure["message"]
            assert texts(call(client, "echo", text="still here")) == ["still here"]
        assert other.requests == []  # neither the message nor the headers


def test_a_server_that_wants_a_token_and_offers_no_sign_in_has_not_executed_the_call(server):
    server.answer_everything = lambda handler: handler.answer(401 if handler.path == "/mcp" else 404, b"nope")
    with connect(server.url) as client:
        client.send(id=1, method="tools/call", params={"name": "echo", "arguments": {"text": "x"}})
        failure = block(client.hear())
        client.close()
    assert failure["error"] == "tool/auth_error"
    assert "requires a token" in failure["message"]
    (step,) = stored_steps()
    assert step.failure.took_effect is TookEffect.NO


def test_a_redirect_on_the_same_host_is_followed(server):
    with connect(server.url) as client:
        client.open()
        assert texts(call(client, "stays")) == ["here"]


def test_a_refused_call_has_no_unknown_outcome_and_is_retried_where_that_is_allowed(server, tmp_path):
    (tmp_path / "mulligan").mkdir()
    (tmp_path / "mulligan" / "mulligan.toml").write_text('[tools."far.limited"]\neffects = "none"\n')
    with connect(server.url) as client:
        client.open()
        failure = block(call(client, "limited"))
        assert (failure["error"], failure.get("outcome")) == ("tool/rate_limit", None)
    server.limits = 0
    with connect(server.url, env={"XDG_CONFIG_HOME": str(tmp_path)}) as client:
        client.open()
        assert texts(call(client, "limited")) == ["served"]


@pytest.mark.parametrize("tool", ["big", "big_event"])
def test_ten_megabytes_pass_whole(server, tool):
    with connect(server.url) as client:
        client.open()
        assert len(texts(call(client, tool))[0]) == 10_000_000


def test_a_dropped_connection_is_resumed_after_the_last_event(server):
    with connect(server.url) as client:
        client.open()
        assert texts(call(client, "dropped")) == ["after the drop"]
    resumed = [headers for _, headers, message in server.requests if message is None and "last-event-id" in headers]
    assert len(resumed) == 1
    assert len([1 for _, _, message in server.requests if message and message.get("method") == "tools/call"]) == 1


def test_an_expired_session_is_opened_again_and_the_call_is_made_once(server):
    with connect(server.url) as client:
        client.open()
        client.send(id="level", method="logging/setLevel", params={"level": "debug"})
        hear_answer(client, "level")
        server.sessions[:] = ["another"]
        assert texts(call(client, "echo", text="again")) == ["again"]
    methods = [message["method"] for _, _, message in server.requests if message]
    assert methods.count("initialize") == 2
    assert methods[-4:] == ["initialize", "notifications/initialized", "logging/setLevel", "tools/call"]


def test_a_server_that_is_away_is_reported_and_used_again_when_it_is_back():
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    with connect(url) as client:
        answer = client.ask("initialize", {"protocolVersion": "2025-11-25"})
        assert "Cannot connect to 127.0.0.1:" in answer["error"]["message"]
        with fake_http_server(port):
            client.open()
            assert texts(call(client, "echo", text="x")) == ["x"]
        failure = block(call(client, "echo", text="y"))
        assert failure["error"] == "tool/connection_error"
        with fake_http_server(port):  # which knows no session
            assert texts(call(client, "echo", text="back")) == ["back"]


def test_a_server_without_valid_tls_is_not_used(server):
    with connect(server.url.replace("http:", "https:")) as client:
        answer = client.ask("initialize", {"protocolVersion": "2025-11-25"})
        assert "TLS error" in answer["error"]["message"]


def test_a_server_that_never_answers_is_timed_out_and_told():
    with fake_http_server() as server, connect(server.url, "--timeout", "1") as client:
        client.open()
        assert block(call(client, "hang"))["error"] == "tool/timeout"
        assert texts(call(client, "echo", text="x")) == ["x"]
        cancels = [message for message in server.answers if message.get("method") == "notifications/cancelled"]
        assert len(cancels) == 1


def test_a_cancelled_request_is_cancelled_at_the_server(server):
    with connect(server.url) as client:
        client.open()
        client.send(id=77, method="tools/call", params={"name": "hang"})
        client.send(method="notifications/cancelled", params={"requestId": 77, "reason": "enough"})
        assert texts(call(client, "echo", text="x")) == ["x"]
        client.close()
    assert {"requestId": 77, "reason": "enough"} in [message.get("params") for message in server.answers]
    assert [(step.name, step.outcome) for step in stored_steps()] == [
        ("far.hang", "cancelled"),
        ("far.echo", "success"),
    ]


def test_a_request_of_the_server_is_answered_by_the_client(server):
    with connect(server.url) as client:
        client.open()
        client.send(id=5, method="tools/call", params={"name": "ask"})
        while (asked := client.hear()).get("method") != "sampling/createMessage":
            pass
        server.has_heard.clear()
        client.send(id=asked["id"], result={"role": "assistant"})
        assert json.loads(texts(hear_answer(client, 5))[0]) == {
            "jsonrpc": "2.0",
            "id": "q",
            "result": {"role": "assistant"},
        }


def test_a_url_that_serves_web_pages_only_is_named_as_such(server):
    server.answer_everything = lambda handler: handler.answer(404, b"<html>not found</html>", "text/html")
    with connect(server.url) as client:
        answer = client.ask("initialize", {"protocolVersion": "2025-11-25"})
        assert "web page" in answer["error"]["message"]
        assert client.process.poll() is None


def test_the_address_in_messages_has_no_secret_of_the_query(server):
    with connect(server.url + "?api_key=k3y-0f-mine") as client:
        client.open()
        call(client, "html")
        call(client, "reset")
        client.close()
        assert "k3y-0f-mine" not in "".join(client.complaints)
    folder = Path(os.environ["MULLIGAN_HOME"])
    assert not [path for path in folder.rglob("*") if path.is_file() and b"k3y-0f-mine" in path.read_bytes()]


def test_a_thousand_calls_at_once_are_each_given_their_own_answer(server):
    with connect(server.url) as client:
        client.open()
        for number in range(1000):
            arguments = {"text": f"text {number}"}
            client.send(id=number, method="tools/call", params={"name": "echo", "arguments": arguments})
        answers = {}
        while len(answers) < 1000:
            message = client.hear()
            if "id" in message:
                answers[message["id"]] = texts(message)
    assert answers == {number: [f"text {number}"] for number in range(1000)}


# Sign-in, with an authorization server that this test plays


@pytest.fixture
def browser(tmp_path):
    """An environment whose browser signs in at once."""
    script = tmp_path / "browser.py"
    script.write_text("import sys, urllib.request; urllib.request.urlopen(sys.argv[1]).read()")
    return {"BROWSER": f"{sys.executable} {script} %s"}


def read_tokens():
    (path,) = (Path(os.environ["MULLIGAN_HOME"]) / "mcp-tokens").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    return path, json.loads(path.read_text())


def test_a_server_that_needs_a_sign_in_gets_one_and_the_next_proxy_uses_it_too(server, browser):
    server.needs_sign_in = True
    for _ in range(2):
        with connect(server.url, env=browser) as client:
            client.open()
            assert texts(call(client, "echo", text="x")) == ["x"]
            client.close()
            assert "acc3ss" not in "".join(client.complaints)
    assert (server.sign_ins, server.grants) == (1, ["authorization_code"])
    path, content = read_tokens()
    assert content["tokens"]["access_token"] == "acc3ss-1"
    files = [file for file in path.parent.parent.rglob("*") if file.is_file() and file != path]
    assert not [file for file in files if b"acc3ss" in file.read_bytes() or b"r3fresh" in file.read_bytes()]


@pytest.mark.parametrize("is_known", [True, False])
def test_an_expired_token_is_refreshed_without_a_person(server, browser, is_known):
    server.needs_sign_in = True
    with connect(server.url, env=browser) as client:
        client.open()
    path, content = read_tokens()
    if is_known:
        path.write_text(json.dumps({**content, "expires_at": 1000}))
    server.token = "revoked in the meantime"
    with connect(server.url, env=browser) as client:
        client.open()
        server.token = "and once more, while the proxy runs"
        assert texts(call(client, "echo", text="x")) == ["x"]
        client.close()
    assert (server.sign_ins, server.grants) == (1, ["authorization_code", "refresh_token", "refresh_token"])
    assert read_tokens()[1]["tokens"]["access_token"] == "acc3ss-3"


def test_calls_do_not_wait_for_each_other_behind_a_sign_in(server, browser):
    server.needs_sign_in = True
    with connect(server.url, env=browser) as client:
        client.open()
        client.send(id=1, method="tools/call", params={"name": "hang"})
        assert texts(call(client, "echo", text="x")) == ["x"]


def test_login_signs_in_on_its_own(server, browser):
    server.needs_sign_in = True
    command = [sys.executable, "-m", "mulligan", "proxy", "login", server.url]
    environment = {**os.environ, "PYTHONPATH": str(Path(mulligan.__file__).parents[1]), **browser}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"Signed in to {server.url}.\n"
    assert read_tokens()[1]["tokens"]["access_token"] == "acc3ss-1"


def test_proxy_whose_input_is_no_pipe_ends_cleanly():
    command = [sys.executable, "-m", "mulligan", "proxy", "--url", "http://127.0.0.1:9/mcp"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
