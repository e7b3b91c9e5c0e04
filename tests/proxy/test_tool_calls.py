"""Tool calls through the proxy: recorded, classified, recovered, and told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from mcp_client import FAKE, Connection, block, proxied, stored_runs, texts

from mulligan.core.failure import TookEffect
from mulligan.core.records import History
from mulligan.report.run_text import status_of


def only_run() -> History:
    (found,) = stored_runs()
    return found


def test_a_connection_is_a_run_of_the_client_and_its_calls_are_steps():
    with proxied() as client:
        client.open("claude-desktop")
        client.call("echo", text="hello")
        client.call("fail", text="Permission denied: /etc/shadow")
        client.close()
    history = only_run()
    assert (history.run.agent, history.run.version, history.run.end_reason) == ("claude-desktop", "1.2", "finished")
    assert [(step.name, step.server, step.outcome) for step in history.steps] == [
        ("fake.echo", "fake", "success"),
        ("fake.fail", "fake", "failure"),
    ]
    assert history.steps[0].arguments == {"text": "hello"}
    assert history.steps[0].result == "hello"
    assert str(history.steps[1].failure.kind) == "tool/permission_denied"


def test_a_tool_that_the_server_does_not_have_did_not_run():
    with proxied() as client:
        client.open().tools()
        client.call("frobnicate", text="x")
        client.call("fail", text="Unknown tool: frobnicate")
        client.close()
    unlisted, listed = only_run().steps
    assert (unlisted.failure.kind, unlisted.failure.took_effect) == ("tool/unknown_tool", TookEffect.NO)
    assert (listed.failure.kind, listed.failure.took_effect) == ("tool/unknown_tool", TookEffect.YES)


def test_before_the_tools_are_known_their_words_prove_nothing():
    with proxied() as client:
        client.open().call("frobnicate", text="x")
        client.close()
    assert only_run().steps[0].failure.took_effect is not TookEffect.NO


def test_without_a_handshake_the_client_is_known_by_what_each_request_says():
    meta = {
        "io.modelcontextprotocol/clientInfo": {"name": "newcomer", "version": "3"},
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    }
    with proxied() as client:
        client.ask("tools/call", {"name": "echo", "arguments": {"text": "x"}, "_meta": meta})
        client.close()
    assert only_run().run.agent == "newcomer"


def test_the_session_of_a_coding_agent_is_that_of_its_calls():
    with proxied(env={"CLAUDE_CODE_SESSION_ID": "b1c2-session"}) as client:
        client.open().call("echo", text="x")
        client.close()
    assert only_run().run.session == "b1c2-session"


def test_a_failure_is_explained_behind_the_servers_own_words():
    with proxied() as client:
        client.open()
        client.tools()
        answer = client.call("add", a="seven")
    own, _ = texts(answer)
    assert own == "1 validation error: a must be an integer, got 'seven'"
    assert answer["result"]["isError"] is True
    told = block(answer)
    assert told["error"] == "tool/invalid_arguments"
    assert told["hint"]
    assert "[said by add, data only" in told["message"]
    assert answer["result"]["_meta"]["mulligan/failure"]["error"] == "tool/invalid_arguments"


def test_a_bad_argument_is_suggested_by_default_and_the_call_is_made_once():
    with proxied() as client:
        client.open()
        client.tools()
        answer = client.call("add", a="7")
        assert block(answer)["suggestions"] == ["Pass a as the number 7."]
        assert texts(client.call("count")) == ["2"]


def test_with_repair_a_bad_argument_is_repaired_before_anything_happens_and_announced():
    with proxied(options=["--repair"]) as client:
        client.open()
        client.tools()
        answer = client.call("add", a="7")
        assert texts(answer) == [
            "8",
            "mulligan: add was called with a as the number 7, because the original arguments did not fit its schema.",
        ]
        assert answer["result"]["_meta"]["mulligan/note"]["attempts"] == 2
        assert texts(client.call("count")) == ["2"]
        client.close()
    steps = only_run().steps
    assert [(step.attempt, step.outcome) for step in steps[:2]] == [(1, "failure"), (2, "success")]
    assert steps[1].recovery.changes[0].operation == "cast"


@pytest.mark.parametrize("stage", ["pprod", "prood", "preprd"])
def test_with_repair_a_misspelled_value_does_not_act_on_what_may_be_another_thing(stage):
    with proxied(options=["--repair"]) as client:
        client.open()
        client.tools()
        assert texts(client.call("deploy", stage=stage))[0] == f"deployed to {stage}"
        assert texts(client.call("deploy", stage=" PROD "))[0] == "deployed to prod"


def test_a_repair_is_not_made_where_nothing_sure_is_known_and_the_server_decides():
    with proxied(options=["--repair"]) as client:
        client.open()
        client.tools()
        assert texts(client.call("add", a="seven"))[0].startswith("1 validation error")


def test_an_error_of_the_protocol_proves_that_nothing_happened_and_is_repaired_too():
    with proxied(options=["--repair"]) as client:
        client.open()
        client.tools()
        assert texts(client.call("refuse", size="3"))[0] == "accepted"


def test_an_error_of_the_protocol_stays_one_with_our_block_behind_its_message():
    with proxied() as client:
        client.open()
        error = client.call("refuse", size="much")["error"]
    assert error["code"] == -32602
    own, ours = error["message"].split("\n")
    assert own == "Invalid params: size must be an integer"
    assert json.loads(ours)["mulligan"]["error"] == "tool/invalid_arguments"
    assert error["data"]["data"] == [1]
    assert error["data"]["mulligan"]["error"] == "tool/invalid_arguments"


def test_nothing_of_a_tool_that_is_marked_destructive_is_changed():
    with proxied(options=["--repair"]) as client:
        client.open()
        client.tools()
        assert texts(client.call("wipe", size="3"))[0] == "size must be an integer"


def test_an_answer_that_says_error_is_recorded_as_a_failure_and_explained():
    with proxied() as client:
        client.open()
        answer = client.call("says_error", text='{"error": "the disk is full"}')
        client.close()
    assert texts(answer)[0] == '{"error": "the disk is full"}'
    assert block(answer)["error"].startswith("tool/")
    assert block(answer)["outcome"].startswith("unknown: the call may have executed")
    assert "isError" not in answer["result"]
    assert only_run().steps[0].outcome == "failure"


def test_when_only_observing_every_answer_is_as_it_came():
    with proxied(options=["--mode", "observe"]) as client:
        client.open()
        client.tools()
        client.write(
            b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"fail","arguments":{"text":"no"}}}\n'
        )
        said = '{"jsonrpc": "2.0", "id": 5, "result": {"content": [{"type": "text", "text": "no"}], "isError": true}}'
        assert client.line() == f"{said}\n".encode()
        assert texts(client.call("add", a=1, z=2)) == ["2"]
        client.close()
    assert only_run().steps[0].outcome == "failure"


def test_arguments_that_the_server_drops_without_a_word_are_told():
    with proxied() as client:
        client.open()
        client.tools()
        assert texts(client.call("look", id="x", unitt="metric")) == [
            "x in None",
            "mulligan: look may have ignored the unknown argument unitt. Did you mean unit instead of unitt?",
        ]
        assert texts(client.call("look", id="x", unit="metric")) == ["x in metric"]


def test_a_tool_that_is_not_there_is_answered_with_the_names_that_are_near():
    with proxied() as client:
        client.open()
        client.tools()
        assert "Did you mean echo?" in block(client.call("ecko", text="x"))["suggestions"]


def test_with_repair_a_name_with_junk_around_it_is_understood():
    with proxied(options=["--repair"]) as client:
        client.open()
        client.tools()
        answer = client.call("functions.echo", text="x")
        assert texts(answer)[0] == "x"
        assert "the tool name functions.echo -> echo" in texts(answer)[1]


def test_annotations_count_only_where_the_server_is_trusted(tmp_path):
    for options, expected in (([], "a call may be made again"), (["--trust-annotations"], "made again")):
        mark = tmp_path / f"mark-{len(options)}"
        with proxied(options=options, env={"FAKE_MARK": str(mark)}) as client:
            client.open()
            client.tools()
            answer = client.call("flaky")
            if options:
                assert texts(answer) == ["there again"], expected
            else:
                assert block(answer)["error"] == "tool/connection_error"
                assert "unknown" in block(answer)["outcome"]


def test_rules_of_the_user_say_what_holds_for_a_tool(tmp_path, monkeypatch):
    folder = tmp_path / "config" / "mulligan"
    folder.mkdir(parents=True)
    (folder / "mulligan.toml").write_text(
        '[tools]\n"fake.*" = { mode = "repair" }\n"fake.add" = { privileged = ["a"] }\n"fake.hang" = { timeout = 0.3 }'
    )
    with proxied(env={"XDG_CONFIG_HOME": str(tmp_path / "config")}) as client:
        client.open()
        client.tools()
        assert texts(client.call("refuse", size="3"))[0] == "accepted"
        assert texts(client.call("add", a="3"))[0].startswith("1 validation error")
        assert block(client.call("hang"))["error"] == "tool/timeout"


def test_a_project_cannot_say_anything_about_tools(tmp_path, monkeypatch):
    (tmp_path / "mulligan.toml").write_text('[tools."*"]\nmode = "repair"\neffects = "none"\n')
    monkeypatch.chdir(tmp_path)
    with proxied() as client:
        client.open()
        client.tools()
        assert len(texts(client.call("add", a="3"))) == 2
        assert texts(client.call("count")) == ["2"]


def test_a_call_that_hangs_is_given_up_and_the_server_is_told(tmp_path):
    with proxied(f"log={tmp_path / 'heard'}", options=["--timeout", "1.5"]) as client:
        client.open()
        answer = client.call("hang")
        assert block(answer)["error"] == "tool/timeout"
        assert block(answer)["outcome"].startswith("unknown")
        assert texts(client.call("echo", text="still here")) == ["still here"]
        client.close()
    said = [json.loads(line) for line in (tmp_path / "heard").read_text().splitlines()]
    assert {"requestId": 2, "reason": "timed out"} in [each.get("params") for each in said]


def test_a_cancellation_reaches_the_server_and_is_no_failure(tmp_path):
    with proxied(f"log={tmp_path / 'heard'}") as client:
        client.open()
        client.send(id=2, method="tools/call", params={"name": "slow", "arguments": {"seconds": 20}})
        client.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}\n')
        assert texts(client.hear()) == ["cancelled"]
        client.close()
    assert (
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}\n'
        in (tmp_path / "heard").read_bytes()
    )
    assert [step.outcome for step in only_run().steps] == ["cancelled"]
    assert status_of(only_run()) == "partial", "the client went on without it"


def test_call_of_a_client_that_closes_is_cancelled_and_not_cut_off():
    with proxied() as client:
        client.open()
        client.send(id=99, method="tools/call", params={"name": "hang", "arguments": {}})
        assert texts(client.call("echo", text="meanwhile")) == ["meanwhile"]
        client.close()
    assert sorted(step.outcome for step in only_run().steps) == ["cancelled", "success"]
    assert status_of(only_run()) == "success"


def test_a_call_that_is_rate_limited_is_made_again_after_the_time_that_was_asked_for():
    with proxied(options=["--trust-annotations"]) as client:
        client.open()
        client.tools()
        assert texts(client.call("limited", seconds=0.2)) == ["let in"]
        client.close()
    first, second = only_run().steps
    assert (first.outcome, second.outcome, second.attempt) == ("failure", "success", 2)
    assert second.recovery.backoff_seconds >= 0.2


def test_a_call_that_is_cancelled_while_it_waits_is_not_made_again():
    with proxied(options=["--trust-annotations"]) as client:
        client.open()
        client.tools()
        client.send(id=9, method="tools/call", params={"name": "limited", "arguments": {"seconds": 20}})
        assert texts(client.call("echo", text="meanwhile")) == ["meanwhile"]
        time.sleep(0.5)
        client.send(method="notifications/cancelled", params={"requestId": 9})
        assert texts(client.call("count")) == ["3"]
        client.close()
    assert "cancelled" in [step.outcome for step in only_run().steps] or only_run().steps[0].stop.reason


@pytest.mark.parametrize(
    "text",
    [
        "Database error: no such table: users",
        "Error searching for fish: fetch failed",
        "Error executing query: syntax error at or near FORM",
    ],
)
def test_an_error_in_plain_text_is_a_failure_of_a_tool_without_effects_only(tmp_path, text):
    with proxied() as client:
        client.open()
        assert texts(client.call("echo", text=text)) == [text]
        client.close()
    assert [step.outcome for step in only_run().steps] == ["success"]
    folder = tmp_path / "config" / "mulligan"
    folder.mkdir(parents=True)
    (folder / "mulligan.toml").write_text('[tools."fake.echo"]\neffects = "none"\n')
    with proxied(env={"XDG_CONFIG_HOME": str(tmp_path / "config")}) as client:
        client.open()
        answer = client.call("echo", text=text)
        assert texts(answer)[0] == text
        assert answer["result"].get("isError") is not True
        assert block(answer)["error"].partition("/")[0] in ("tool", "retrieval")


@pytest.mark.parametrize(
    "text",
    [
        "Found 2 results about errors:\n1. Database error: no such table\n2. Error: fetch failed",
        "# Database error: a history",
        "Error logs:\n10:00 ERROR no such table\n10:01 ERROR fetch failed",
        "No errors found: 12 files checked",
    ],
)
def test_a_result_about_errors_is_no_failure(text):
    with proxied() as client:
        client.open()
        assert texts(client.call("echo", text=text)) == [text]
        client.close()
    assert [step.outcome for step in only_run().steps] == ["success"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"text": "No such file: /srv/reports/2026/may.csv"}, "may.csv"),
        ({"text": "command not found: foo"}, "another"),
        ({"text": "old_string was not found in the file"}, "different"),
        ({"text": "symbol goog not found"}, "GOOG"),
        ({"text": "GitHub API error: Not Found"}, "internal error"),
    ],
)
def test_the_proxy_gives_no_advice_without_evidence(arguments, said):
    with proxied() as client:
        client.open()
        client.tools()
        client.call("echo", text="the answer to an earlier question is 8834460")
        told = block(client.call("fail", **arguments))
    assert "suggestions" not in told
    assert said not in told["hint"]
    assert "outcome" not in told, "nothing executed, as the error says"


ORDERS = """
import json, sys
properties = {"order_id": {"type": "string"}}
tools = [{"name": "list_orders", "inputSchema": {"type": "object"}},
         {"name": "get_order", "inputSchema": {"type": "object", "properties": properties, "required": ["order_id"]}}]
def answer_call(name, arguments):
    if name == "list_orders":
        return {"content": [{"type": "text", "text": json.dumps({"orders": [{"order_id": "ord_8834460xk"}]})}]}
    return {"isError": True, "content": [{"type": "text", "text": f"Order {arguments['order_id']} not found"}]}
for line in sys.stdin:
    message = json.loads(line)
    params = message.get("params") or {}
    answer = {
        "initialize": lambda: {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                               "serverInfo": {"name": "orders", "version": "1"}},
        "tools/list": lambda: {"tools": tools},
        "tools/call": lambda: answer_call(params["name"], params["arguments"]),
    }.get(message["method"], dict)()
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer}), flush=True)
"""


@pytest.mark.parametrize(
    ("requests", "given", "is_suggested"),
    [
        (("turn_1", "turn_1"), "ORD_8834460XK", True),
        (("turn_1", "turn_2"), "ORD_8834460XK", False),
        ((None, None), "ORD_8834460XK", True),
        ((None, None), "ord_8834461xk", False),
        ((None, None), "ord_1", False),
    ],
    ids=["same request", "another request", "not told: same id", "not told: near id", "not told: another id"],
)
def test_value_of_an_earlier_request_of_the_user_is_not_suggested(tmp_path, requests, given, is_suggested):
    """Codex tells its servers to which request of the user a call belongs.

    Where a client does not tell it, only another spelling of the given value is suggested.
    """
    server = tmp_path / "orders.py"
    server.write_text(ORDERS)
    command = [sys.executable, "-I", "-m", "mulligan", "proxy", "--name", "orders", "--", sys.executable, str(server)]
    with Connection(command, dict(os.environ)) as client:
        client.open()
        client.tools()
        calls = (("list_orders", {}), ("get_order", {"order_id": given}))
        for (tool, arguments), request in zip(calls, requests, strict=True):
            metadata = {"sessionId": "s1"} | ({"x-codex-turn-metadata": {"turn_id": request}} if request else {})
            answer = client.ask("tools/call", {"name": tool, "arguments": arguments, "_meta": metadata})
        told = block(answer)
        client.close()
    suggestions = ["Change order_id from ORD_8834460XK to ord_8834460xk."]
    assert told.get("suggestions") == (suggestions if is_suggested else None)
    assert len(only_run().steps) == 2, "both requests are in the run of the session"


def test_identical_call_passes_the_proxy_a_third_time_with_a_note():
    with proxied() as client:
        client.open()
        answers = [block(client.call("fail", text="no such thing")) for _ in range(3)]
        notes = [answer.get("suggestions", []) for answer in answers]
        assert notes[:2] == [[], []]
        assert notes[2] == ["mulligan: fail failed the same way 3 times in this run with these arguments."]
        assert texts(client.call("count")) == ["4"]


def test_repeated_call_after_a_lost_answer_passes_the_proxy_with_a_note(tmp_path):
    server = tmp_path / "payments.py"
    lost = '{"isError": True, "content": [{"type": "text", "text": "504 Gateway Timeout"}]}'
    paid = '{"content": [{"type": "text", "text": "paid"}]}'
    server.write_text(
        ORDERS.replace("def answer_call", "made = []\ndef answer_call").replace(
            "    if name ==", f"    made.append(name)\n    return {lost} if len(made) < 3 else {paid}\n    if name =="
        )
    )
    command = [sys.executable, "-I", "-m", "mulligan", "proxy", "--name", "orders", "--", sys.executable, str(server)]
    note = "the same call of get_order was made before and its outcome is unknown: check before you repeat it."
    with Connection(command, dict(os.environ)) as client:
        client.open()
        client.tools()
        requests = ("turn_1", "turn_1", "turn_1", "turn_2")
        answers = [
            client.ask(
                "tools/call",
                {
                    "name": "get_order",
                    "arguments": {"order_id": "ord_1"},
                    "_meta": {"x-codex-turn-metadata": {"turn_id": request}},
                },
            )
            for request in requests
        ]
        client.close()
    assert [note in json.dumps(answer) for answer in answers] == [False, True, True, False]
    assert texts(answers[2])[0] == "paid"
    recovering_calls = {link.recovering_call for link in only_run().links}
    assert recovering_calls == {4}, "only the call after the next request of the user recovers anything"


def test_a_call_is_recorded_before_it_is_answered_and_survives_the_death_of_the_proxy(types):
    with proxied() as client:
        client.open()
        assert texts(client.call("echo", text="hello")) == ["hello"]
        client.process.kill()
        client.process.wait(10)
    code, said, _ = types("show", "last", "--json")
    assert code == 0
    (step,) = json.loads(said)["steps"]
    assert (step["name"], step["server"]) == ("fake.echo", "fake")


def test_secrets_are_not_stored_runs():
    with proxied() as client:
        client.open()
        client.call("echo", text="my key is sk-ant-REDACTED")
        client.close()
    assert "AbCdEfGhIj" not in str(only_run())


def test_arguments_with_half_a_character_are_passed_on():
    with proxied() as client:
        client.open()
        client.write(
            b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"echo","arguments":{"text":"\\ud800"}}}\n'
        )
        assert b'"\\ud800"' in client.line()


def test_nothing_is_kept_and_everything_passes_where_the_settings_cannot_be_read(tmp_path):
    folder = tmp_path / "mulligan"
    folder.mkdir()
    (folder / "mulligan.toml").write_text("attempts = [")
    with proxied(env={"XDG_CONFIG_HOME": str(tmp_path)}) as client:
        client.open()
        assert texts(client.call("fail", text="no")) == ["no"]
        client.close()
        assert "not valid TOML" in "".join(client.complaints)


@pytest.mark.parametrize("words", [["--repair", "--mode", "observe", "--", "x"], ["npx", "server"], ["--"], []])
def test_a_command_that_cannot_be_meant_says_what_to_type(types, words):
    code, _, complaint = types("proxy", *words)
    assert code == 2
    assert "mulligan proxy" in complaint


def test_show_ends_with_the_rule_that_would_allow_a_repair_after_a_rejection_that_proves_nothing(types):
    with proxied(options=["--repair"]) as client:
        client.open()
        client.tools()
        client.call("reject", limit=50)
        client.close()
    shown = " ".join(types("show", "last")[1].split())
    assert '[tools."fake.reject"] effects = "none" in ~/.config/mulligan/mulligan.toml' in shown
    assert "limit: Input should be less than or equal to 10" in shown


def test_command_after_options_without_dashes_is_answered_with_the_whole_command(types):
    code, _, complaint = types("proxy", "--repair", "--name", "notes", "python", "server.py")
    assert code == 2
    assert "Use: mulligan proxy --repair --name notes -- python server.py" in complaint


def test_command_in_quotes_is_answered_with_the_command_without_them(types):
    code, _, complaint = types("proxy", "--", "python server.py")
    assert code == 2
    assert "Remove the quotes: mulligan proxy -- python server.py" in complaint


@pytest.mark.slow
def test_proxy_whose_input_is_no_pipe_ends_cleanly():
    command = [sys.executable, "-m", "mulligan", "proxy", "--", sys.executable, str(FAKE)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_server_that_cannot_be_started_is_told(types):
    code, _, complaint = types("proxy", "--", "no-such-program-anywhere")
    assert code == 2
    assert "Cannot start 'no-such-program-anywhere': no such file" in complaint
