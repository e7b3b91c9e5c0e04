"""mulligan serve, token and env, as processes."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest


@pytest.fixture
def command(tmp_path):
    pytest.importorskip("uvicorn", reason="needs the extra: pip install 'mulligan[server]'")
    begun = []

    def started(*words):
        process = subprocess.Popen(
            [sys.executable, "-m", "mulligan", "serve", "--port", "0", "--store", str(tmp_path / "s.db"), *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        begun.append(process)
        return process

    yield started
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


@pytest.mark.slow
def test_serve_says_where_it_is_takes_in_answers_and_stops_gracefully(command):
    process = command("--log")
    at = re.search(r"Listening on (http://127\.0\.0\.1:\d+) with store ", process.stdout.readline())[1]
    once = re.search(r"Dashboard, open once: (\S+)", process.stdout.readline())[1]
    assert once.startswith(f"{at}/enter/")
    assert process.stdout.readline() == f"OpenTelemetry exporter settings: mulligan env --url {at}\n"

    sent = urllib.request.Request(
        f"{at}/v1/runs", b'{"id": "r", "end_reason": "finished"}', {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(sent, timeout=20) as told:
        assert json.load(told) == {"new": 1, "runs": ["r"]}
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)

    assert process.returncode == 0
    assert "request method=POST path=/v1/runs status=200" in err


@pytest.mark.slow
def test_the_printed_address_opens_the_dashboard_and_the_first_run_is_on_it(command):
    pytest.importorskip("jinja2", reason="needs the extra: pip install 'mulligan[server]'")
    process = command()
    at = re.search(r"Listening on (http://127\.0\.0\.1:\d+) with store ", process.stdout.readline())[1]
    once = re.search(r"Dashboard, open once: (\S+)", process.stdout.readline())[1]
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    assert b"No runs yet" in browser.open(once, timeout=20).read()
    now = int(time.time() * 1000)
    sent = json.dumps(
        {"id": "r-1", "agent": "nightly", "started_at": now, "ended_at": now + 5, "end_reason": "finished"}
    ).encode()
    urllib.request.urlopen(
        urllib.request.Request(f"{at}/v1/runs", sent, {"Content-Type": "application/json"}), timeout=20
    ).close()
    assert b"Runs by status" in browser.open(f"{at}/", timeout=20).read()
    assert b"nightly" in browser.open(f"{at}/runs/r-1", timeout=20).read()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{at}/", timeout=20)


@pytest.mark.safety
def test_serve_refuses_to_be_reached_from_elsewhere_without_tokens(command):
    for words in (["--host", "0.0.0.0"], ["--allow-host", "m.example.com"]):
        process = command(*words)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 2
        assert "mulligan token create" in err


@pytest.mark.safety
@pytest.mark.parametrize(
    ("words", "own", "told", "url"),
    [
        (["--host", "0.0.0.0"], "127.0.0.1", "; to allow a host name: --allow-host NAME", "ADDRESS"),
        (["--host", "0"], "127.0.0.1", "; to allow a host name: --allow-host NAME", "ADDRESS"),
        (["--host", "0.0.0.0", "--allow-host", "m.example.com"], "127.0.0.1", " or m.example.com", "m.example.com"),
        (["--host", "::", "--allow-host", "m.example.com"], "[::1]", " or m.example.com", "m.example.com"),
    ],
)
def test_who_listens_everywhere_is_told_so_and_how_it_is_reached(command, tmp_path, types, words, own, told, url):
    if "::" in words and not _has_ipv6():
        pytest.skip("no IPv6 here")
    _, secret, _ = types("token", "create", "--role", "admin", "--store", str(tmp_path / "s.db"))
    process = command(*words)
    port = re.search(r"Listening on all interfaces, port (\d+) with store ", process.stdout.readline())[1]
    assert process.stdout.readline().startswith("Level shared hides the values of arguments")
    assert process.stdout.readline().startswith("Plain HTTP: tokens and records cross the network unencrypted.")
    assert process.stdout.readline() == (
        f"Local address: http://{own}:{port}. From other machines, use its IP address{told}.\n"
    )
    once = re.fullmatch(r"Dashboard from this machine, open once: (\S+)\n", process.stdout.readline())[1]
    assert process.stdout.readline() == (
        f"OpenTelemetry exporter settings: mulligan env --url http://{url}:{port} --token TOKEN\n"
    )
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    assert b"No runs yet" in browser.open(once, timeout=20).read()
    connection = http.client.HTTPConnection(own.strip("[]"), int(port), timeout=20)
    for host, status in (("192.0.2.7", 200), ("m.example.com", 200 if "m.example.com" in words else 421)):
        connection.request("GET", "/v1/runs", headers={"Authorization": f"Bearer {secret.strip()}", "Host": host})
        answer = connection.getresponse()
        assert (answer.status, answer.read() != b"") == (status, True)
    connection.close()


def _has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.safety
def test_no_auth_is_for_loopback_alone(command):
    process = command("--no-auth", "--host", "0.0.0.0")
    _, err = process.communicate(timeout=20)
    assert (process.returncode, "loopback only" in err) == (2, True)


@pytest.mark.slow
def test_a_port_that_is_taken_is_told_with_another(command):
    first = command()
    port = int(re.search(r":(\d+) ", first.stdout.readline())[1])
    second = command("--port", str(port))
    _, err = second.communicate(timeout=20)
    assert second.returncode == 2
    assert f"--port {port + 1}" in err


@pytest.mark.slow
@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_an_address_of_another_machine_is_not_answered_with_another_port(types, host):
    types("token", "create", "--role", "read")
    code, _, err = types("serve", "--host", host)
    assert code == 2
    assert "Use an address of this machine, or 0.0.0.0 for all of them." in err
    assert "--port" not in err


def test_a_token_is_made_listed_without_its_secret_and_revoked(types):
    code, secret, err = types("token", "create", "--role", "ingest", "--name", "ci", "--expires", "90d")
    assert code == 0
    assert secret.startswith("mul_ingest_")
    assert "not shown again" in err

    assert "expires (UTC)" in types("token", "list")[1]
    assert re.search(r"role ingest, ci, expires 20\d\d-\d\d-\d\d", types("audit")[1])
    _, listed, _ = types("token", "list", "--json")
    (token,) = json.loads(listed)
    assert (token["name"], token["role"], token["state"]) == ("ci", "ingest", "active")
    assert secret.strip() not in listed
    assert "hash" not in token

    assert types("token", "revoke", token["id"][:8])[0] == 0
    assert json.loads(types("token", "list", "--json")[1])[0]["state"] == "revoked"
    assert types("token", "revoke", "tok_none")[0] == 2


def test_a_token_is_kept_as_a_hash_alone(types, tmp_path):
    store = tmp_path / "t.db"
    _, secret, _ = types("token", "create", "--role", "read", "--store", str(store))
    kept = b"".join(each.read_bytes() for each in tmp_path.glob("t.db*"))
    assert secret.strip().encode() not in kept


@pytest.mark.parametrize("words", [("--expires", "soon"), ("--tenant", "a b"), ("--name", "x\x1b[31m")])
def test_a_token_that_cannot_be_meant_is_refused(types, words):
    assert types("token", "create", "--role", "read", *words)[0] == 2


def test_env_prints_the_variables_of_opentelemetry(types):
    _, out, _ = types("env", "--url", "http://h:1/", "--token", "mul_x")
    assert out.splitlines() == [
        "export OTEL_EXPORTER_OTLP_ENDPOINT=http://h:1",
        "export OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
        "export OTEL_EXPORTER_OTLP_COMPRESSION=gzip",
        "export OTEL_EXPORTER_OTLP_HEADERS=Authorization=Bearer%20mul_x",
    ]


def test_env_is_for_the_server_that_is_set_and_sends_its_token_nowhere_else(types, monkeypatch):
    monkeypatch.setenv("MULLIGAN_STORE", "https://mulligan.example.com/")
    monkeypatch.setenv("MULLIGAN_TOKEN", "mul_x")

    own, other = types("env")[1], types("env", "--url", "http://h:1")[1]

    assert "export OTEL_EXPORTER_OTLP_ENDPOINT=https://mulligan.example.com\n" in own
    assert "export OTEL_EXPORTER_OTLP_HEADERS=Authorization=Bearer%20mul_x" in own
    assert "export OTEL_EXPORTER_OTLP_ENDPOINT=http://h:1\n" in other
    assert "mul_x" not in other


def test_env_for_claude_code_makes_it_send_its_logs(types):
    _, out, _ = types("env", "--for", "claude-code")
    assert set(out.splitlines()) == {
        "export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4700",
        "export OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
        "export OTEL_EXPORTER_OTLP_COMPRESSION=gzip",
        "export CLAUDE_CODE_ENABLE_TELEMETRY=1",
        "export OTEL_LOGS_EXPORTER=otlp",
        "export OTEL_LOG_TOOL_DETAILS=1",
    }
    assert types("env", "--for", "nobody")[0] == 2


def test_env_for_langfuse_and_traceloop_adds_the_variables_that_they_read(types):
    _, out, _ = types("env", "--for", "langfuse", "--url", "http://h:1/", "--token", "mul_x")
    assert out.splitlines()[-3:] == [
        "export LANGFUSE_BASE_URL=http://h:1",
        "export LANGFUSE_PUBLIC_KEY=mulligan",
        "export LANGFUSE_SECRET_KEY=mul_x",
    ]
    _, out, _ = types("env", "--for", "traceloop", "--url", "http://h:1/", "--token", "mul_x")
    assert out.splitlines()[-2:] == [
        "export TRACELOOP_BASE_URL=http://h:1",
        "export TRACELOOP_HEADERS=Authorization=Bearer%20mul_x",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["option", "file"])
def test_serve_alerts_a_command_of_what_only_a_person_can_fix(command, tmp_path, monkeypatch, place):
    told = tmp_path / "told.json"
    script = f"import sys; open({str(told)!r}, 'a').write(sys.stdin.read())"
    alert_command = f'{sys.executable} -c "{script}"'
    if place == "file":
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        settings = tmp_path / "mulligan" / "mulligan.toml"
        settings.parent.mkdir()
        settings.write_text(f"alert_command = {json.dumps(alert_command)}\n")
        process = command()
    else:
        process = command("--alert-command", alert_command)
    at = re.search(r"Listening on (\S+) with store ", process.stdout.readline())[1]
    run = {
        "id": "r",
        "end_reason": "finished",
        "steps": [{"name": "pay", "failure": {"type": "model", "code": "quota_exceeded"}}],
    }
    sent = urllib.request.Request(f"{at}/v1/runs", json.dumps(run).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(sent, timeout=20).close()
    until = time.monotonic() + 60
    while not (told.exists() and told.read_text().endswith("\n")) and time.monotonic() < until:
        time.sleep(0.02)
    alert = json.loads(told.read_text())
    assert (alert["type"], alert["kind"], alert["tool"]) == ("person_needed", "model/quota_exceeded", "pay")
    assert alert["link"].startswith("http://127.0.0.1:")


@pytest.mark.slow
def test_a_server_that_ends_sends_its_queued_alerts_first(command, tmp_path):
    told = tmp_path / "told.json"
    process = command("--alert-command", f"sh -c 'sleep 0.3; cat >> {told}'")
    at = re.search(r"Listening on (\S+) with store ", process.stdout.readline())[1]
    steps = [{"name": name, "failure": {"type": "model", "code": "quota_exceeded"}} for name in ("pay", "ship")]
    run = {"id": "r", "end_reason": "finished", "steps": steps}
    sent = urllib.request.Request(f"{at}/v1/runs", json.dumps(run).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(sent, timeout=20).close()
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert [json.loads(line)["tool"] for line in told.read_text().splitlines()] == ["pay", "ship"]


@pytest.mark.slow
def test_whoever_presses_ctrl_c_does_not_wait_for_a_balancer(command):
    process = command("--drain", "3600")
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--alert-webhook", "ftp://x"), "webhook"),
        (("--alert-command", "'unclosed"), "Invalid alert command"),
        (("--alert-command", "no-such-program --quietly"), "Alert command 'no-such-program' not found"),
    ],
)
def test_an_alert_that_cannot_be_meant_is_refused_at_once(command, words, told):
    process = command(*words)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 2
    assert told in err
    assert "Traceback" not in err


def test_time_that_is_no_number_is_refused_in_plain_words(types):
    code, _, message = types("serve", "--drain", "soon")
    assert code == 2
    assert "Invalid value for '--drain': 'soon' is not a valid number." in message
