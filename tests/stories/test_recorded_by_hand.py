"""Failures that a program records itself, and the codes of its errors: the same in answer, record and store."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from ports import free_port

PROGRAM = """
    import enum, mulligan

    class Code(enum.Enum):
        DECLINED = "card_declined"
        NOT_FOUND = 404

    def pay(amount):
        raise mulligan.AgentError("The card was declined.", code=Code.DECLINED)

    def find(order):
        raise mulligan.AgentError("There is no such order.", code=Code.NOT_FOUND)

    with mulligan.run("shop") as run:
        for turn in mulligan.turns(limit=1):
            for tool in (pay, find):
                print(turn.call([tool], tool.__name__, {tool.__code__.co_varnames[0]: 3}).to_message())
        try:
            with run.step("tool", "ship") as step:
                raise TimeoutError("no answer from the depot")
        except TimeoutError as error:
            run.record_failure(failure_type="tool", failure_code="timeout", message=str(error), step_id=step.step_id)
    print(mulligan.classify_error(mulligan.AgentError("no", code=Code.DECLINED)).kind)
    print(run.id)
"""
SETTINGS = """
[kinds."tool/card_declined"]
remedy = "stop"
"""


def test_the_code_of_an_enum_decides_the_kind_and_a_raised_step_has_one_failure(user):
    (user.folder / "mulligan.toml").write_text(SETTINGS)
    done = user.runs_program(PROGRAM)
    assert done.returncode == 0, done.stderr
    paid, found, classified, id = done.stdout.splitlines()
    assert (json.loads(paid)["error"], json.loads(paid)["code"]) == ("tool/card_declined", "card_declined")
    assert (json.loads(found)["error"], json.loads(found)["code"]) == ("tool/not_found", "NOT_FOUND")
    assert json.loads(paid)["hint"] == "A retry cannot help. Report the failure: a person must act."
    assert classified == "tool/card_declined"

    steps = user.sees("show", id)["steps"]
    assert [(step["name"], step["failure"]["kind"], step["failure"].get("code", "")) for step in steps] == [
        ("pay", "tool/card_declined", "card_declined"),
        ("find", "tool/not_found", "NOT_FOUND"),
        ("ship", "tool/timeout", ""),
    ]


def post(port, path, sent):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(sent).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_server_takes_the_kinds_that_its_settings_declare_and_others_as_they_are(user):
    pytest.importorskip("uvicorn", reason="needs the extra: pip install 'mulligan[server]'")
    (user.folder / "mulligan.toml").write_text(SETTINGS)
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "mulligan", "serve", "--port", str(port)],
        stdout=subprocess.PIPE, text=True, env=user.environment, cwd=user.folder,
    )  # fmt: skip
    try:
        assert f":{port} " in server.stdout.readline()
        step = {"name": "pay", "outcome": "failure"}
        failure = {"failure_type": "tool", "failure_code": "card_declined", "message": "declined", "step_id": 1}
        run = {"id": "run_a", "started_at": 1000, "ended_at": 2000, "steps": [step], "failures": [failure]}
        assert post(port, "/v1/runs", run) == (200, {"new": 2, "runs": ["run_a"]})
        own = {"run": "run_b", "type": "tool", "code": "card_stolen"}
        assert post(port, "/v1/failures", own) == (200, {"new": 2})
        assert post(port, "/v1/failures", {"run": "run_a", "step": 1, "code": "timeout"}) == (200, {"new": 1})
    finally:
        server.terminate()
        server.communicate()
    (own,) = user.sees("show", "run_b")["steps"]
    assert (own["failure"]["kind"], own["failure"]["remedy"]) == ("tool/card_stolen", "replan")
    assert user.sees("stats", "--since", "all")["undeclared_kinds"] == ["tool/card_stolen"]
    (stored,) = user.sees("show", "run_a")["steps"]
    assert (stored["failure"]["kind"], stored["failure"]["message"]) == ("tool/timeout", "declined")
