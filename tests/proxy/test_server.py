"""Servers that are broken, hostile or gone: a clear outcome, no hang, no crash."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from mcp_client import WITH_THREADS, block, proxied, stored_steps, texts

from mulligan.proxy import find_windows_command
from mulligan.proxy.server import restart_delay


@pytest.mark.parametrize("program", [None, WITH_THREADS])
def test_a_result_of_fifty_megabytes_is_passed_on_whole_and_recorded_in_short(program):
    with proxied(program=program) as client:
        client.open()
        client.send(id=2, method="tools/call", params={"name": "big", "arguments": {"bytes": 50_000_000}})
        line = client.line(120)
        assert len(line) > 50_000_000
        assert json.loads(line)["id"] == 2
        assert texts(client.call("echo", text="x")) == ["x"]
        assert client.close() == 0


@pytest.mark.parametrize("program", [None, WITH_THREADS])
def test_a_client_that_does_not_read_costs_no_memory_and_then_hears_everything(program):
    with proxied(program=program) as client:
        client.open()
        client.is_reading.clear()
        client.send(id=2, method="tools/call", params={"name": "flood"})
        time.sleep(1)
        pages = int(Path(f"/proc/{client.process.pid}/statm").read_text().split()[1])
        assert pages * 4096 < 90_000_000
        client.is_reading.set()
        heard = [len(client.line()) for _ in range(101)]
    assert sum(heard) > 100_000_000


def test_an_answer_that_is_not_utf8_becomes_a_failure_that_says_so():
    with proxied() as client:
        client.open()
        told = block(client.call("latin"))
        assert told["error"] == "tool/invalid_response"
        assert "UTF-8" in told["message"]
        assert texts(client.call("echo", text="x")) == ["x"]


def test_a_second_answer_to_one_call_is_not_passed_on():
    with proxied() as client:
        client.open()
        assert texts(client.call("twice")) == ["once"]
        assert texts(client.call("echo", text="x")) == ["x"]
        client.close()
        assert "already answered request" in "".join(client.complaints)


def test_answers_out_of_order_find_their_calls():
    with proxied() as client:
        client.open()
        client.send(id=2, method="tools/call", params={"name": "ask"})
        asked = client.hear()  # it is answered when we have answered this
        client.send(id=3, method="tools/call", params={"name": "echo", "arguments": {"text": "x"}})
        assert client.hear()["id"] == 3
        client.send(id=asked["id"], result={"said": "yes"})
        assert client.hear()["id"] == 2


def test_what_is_no_message_is_not_passed_on_and_told_to_the_operator():
    with proxied() as client:
        client.open()
        assert texts(client.call("junk")) == ["and then the answer"]
        client.close()
        assert "not a JSON-RPC message: Listening on stdio" in "".join(client.complaints)


def test_an_answer_nested_beyond_all_measure_is_a_failure():
    with proxied() as client:
        client.open()
        assert block(client.call("deep"))["error"] == "tool/invalid_response"


def test_an_answer_of_an_odd_form_is_passed_on():
    with proxied() as client:
        client.open()
        assert client.call("odd")["result"] == {"content": "not a list", "isError": True}


def test_an_answer_without_result_and_error_is_a_failure_at_once():
    with proxied() as client:
        client.open()
        told = block(client.call("bare"))
        assert told["error"] == "tool/invalid_response"
        assert "neither a result nor an error" in told["message"]
        assert texts(client.call("echo", text="x")) == ["x"]
        client.close()
    assert [step.outcome for step in stored_steps()] == ["failure", "success"]


def test_a_result_that_is_none_by_the_protocol_is_passed_on_and_recorded_as_a_failure():
    with proxied() as client:
        client.open()
        assert client.call("unlisted")["result"] == {"content": "just text"}
        client.close()
    (step,) = stored_steps()
    assert (step.outcome, step.failure.kind.code) == ("failure", "invalid_response")


def test_a_server_that_never_answers_the_first_message_is_given_up():
    with proxied("silent", options=["--start-timeout", "0.3"]) as client:
        answer = client.ask("initialize", {})
        assert "no answer in 0.3 s" in answer["error"]["message"]
        assert client.process.wait(20) == 1


def test_a_server_that_ends_before_it_answered_anything_is_not_started_again():
    with proxied("dies") as client:
        answer = client.ask("initialize", {})
        assert "the server exited with code 3" in answer["error"]["message"]
        assert client.process.wait(20) == 1


def test_a_server_that_closes_its_input_is_replaced():
    with proxied("deaf") as client:
        client.open()
        client.send(id=7, method="ping")  # whether it is closed by now or not
        assert "closed its input" in client.hear()["error"]["message"]


def test_a_call_during_which_the_server_dies_is_answered_and_never_sent_again(tmp_path):
    log = tmp_path / "heard"
    with proxied(f"log={log}") as client:
        client.open()
        answer = client.call("crash")
        assert block(answer)["error"] == "tool/connection_error"
        assert block(answer)["outcome"].startswith("unknown: the call may have executed")
        assert texts(client.call("echo", text="back")) == ["back"]
        client.close()
        assert "restarting it in 0.5 s" in "".join(client.complaints)
    said = [json.loads(line) for line in log.read_text().splitlines()]
    assert [each["params"]["name"] for each in said if each.get("method") == "tools/call"] == ["crash", "echo"]
    methods = [each["method"] for each in said]
    assert methods.count("initialize") == 2
    assert methods.count("notifications/initialized") == 2


def test_a_killed_server_is_started_again_and_hears_again_what_stands(tmp_path):
    log = tmp_path / "heard"
    with proxied(f"log={log}") as client:
        client.open()
        client.ask("logging/setLevel", {"level": "debug"})
        client.ask("resources/subscribe", {"uri": "a:1"})
        client.ask("resources/subscribe", {"uri": "a:2"})
        client.ask("resources/unsubscribe", {"uri": "a:1"})
        (server,) = children(client.process.pid)
        os.kill(server, signal.SIGKILL)
        while not has_ended(server):
            time.sleep(0.01)
        assert texts(client.call("echo", text="back")) == ["back"]
        client.close()
        assert "killed by SIGKILL" in "".join(client.complaints)
    again = log.read_text().splitlines()
    again = [json.loads(line) for line in again[[i for i, line in enumerate(again) if '"initialize"' in line][1] :]]
    assert [each["method"] for each in again] == [
        "initialize",
        "notifications/initialized",
        "logging/setLevel",
        "resources/subscribe",
        "tools/call",
    ]
    assert again[3]["params"] == {"uri": "a:2"}


def test_other_requests_are_answered_when_the_server_dies():
    with proxied() as client:
        client.open()
        client.send(id="r", method="resources/read", params={})
        client.hear()
        client.send(id=2, method="tools/call", params={"name": "slow", "arguments": {"seconds": 30}})
        client.send(id=3, method="tools/call", params={"name": "crash"})
        heard = {answer["id"]: answer for answer in (client.hear(), client.hear())}
        assert set(heard) == {2, 3}


def test_what_is_given_up_while_the_server_is_away_is_not_sent_when_it_is_back(tmp_path):
    log = tmp_path / "heard"
    (tmp_path / "mulligan").mkdir()
    (tmp_path / "mulligan" / "mulligan.toml").write_text('[tools."fake.echo"]\ntimeout = 0.2\n')
    with proxied("lazy", f"log={log}", env={"XDG_CONFIG_HOME": str(tmp_path)}) as client:
        client.open()
        client.call("crash")
        assert block(client.call("echo", text="too late"))["error"] == "tool/timeout"
        assert texts(client.call("look", id="back")) == ["back in None"]
        client.close()
    assert "too late" not in log.read_text()


def test_without_restart_the_connection_ends_with_the_server():
    with proxied(options=["--no-restart"]) as client:
        client.open()
        assert block(client.call("crash"))["error"] == "tool/connection_error"
        assert client.process.wait(20) == 1


def test_when_the_client_is_gone_so_is_the_server():
    with proxied() as client:
        client.open()
        (server,) = children(client.process.pid)
        client.close()
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


@pytest.mark.parametrize("program", [None, WITH_THREADS])
def test_a_signal_ends_both(program):
    with proxied(program=program) as client:
        client.open()
        (server,) = children(client.process.pid)
        client.process.send_signal(signal.SIGTERM)
        assert client.process.wait(20) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def test_a_server_that_never_answers_again_is_started_ever_later_and_then_no_more():
    assert [restart_delay(count) for count in range(6)] == [0.5, 1.0, 2.0, 4.0, 8.0, None]


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(each) for each in file.read().split()]


def test_folder_that_is_not_writable_is_reported_once_and_calls_are_answered(tmp_path):
    (tmp_path / "home").write_text("a file where the folder should be")
    with proxied(env={"MULLIGAN_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}) as client:
        client.open()
        for _ in range(3):
            assert texts(client.call("echo", text="x")) == ["x"]
        client.close()
        assert "".join(client.complaints).count("MULLIGAN_HOME") == 1


# Windows. Not run there: the tests above also read and write pipes on threads, and these apply the documented rules.


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["no-such-program", "a b"], ["no-such-program", "a b"]),
        (["npx", "-y", "pkg"], 'cmd.exe /e:ON /v:OFF /d /c ""{npx}" "-y" "pkg""'),
        (["npx", "a&b", 'say "x"', "%PATH%"], '... "a&b" "say ""x""" "%%cd:~,%PATH%%cd:~,%""'),
        (["npx", "C:\\folder\\"], '... "C:\\folder\\\\""'),
    ],
)
def test_batch_file_on_windows_gets_its_arguments_unchanged(tmp_path, words, command):
    npx = str(tmp_path / "npx.cmd")
    found = find_windows_command([npx if word == "npx" else word for word in words], None)
    if isinstance(command, str):
        command = command.replace("...", 'cmd.exe /e:ON /v:OFF /d /c ""{npx}"').replace("{npx}", npx)
    assert found == command


def test_batch_file_on_windows_refuses_a_line_end():
    with pytest.raises(OSError, match="has a line end"):
        find_windows_command(["run.bat", "a\nb"], None)
