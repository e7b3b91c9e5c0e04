from __future__ import annotations

import json
from typing import Any

from session_logs import at, read, write


def call(id: str, status: str, response: dict[str, Any], **args: Any) -> dict[str, Any]:
    result = [{"functionResponse": {"id": id, "name": "run_shell_command", "response": response}}]
    return {
        "id": id,
        "name": "run_shell_command",
        "args": args,
        "result": result,
        "status": status,
        "timestamp": at(9),
        "resultDisplay": "...",
    }


def message(type: str, text: str, *calls: Any, id: str = "m1", second: float = 1) -> dict[str, Any]:
    made: dict[str, Any] = {"id": id, "timestamp": at(second), "type": type, "content": text}
    if calls:
        made |= {"toolCalls": list(calls), "model": "gemini-3-pro"}
    return made


NO_OPTION = "Command exited with code: 2\nmake: unrecognized option '--fast'"
META = {"sessionId": "9a-1", "projectHash": "abc", "startTime": at(0), "lastUpdated": at(9)}


def test_a_session_document_is_a_run(tmp_path):
    messages = [
        message("user", "build it"),
        message("gemini", "", call("c1", "error", {"error": NO_OPTION}, command="make --fast", directory="src")),
        message("gemini", "", call("c2", "success", {"output": "built"}, command="make", directory="src"), second=10),
        message("info", "Chat history compressed from 90000 to 9000 tokens."),
    ]
    path = tmp_path / "session-2026-9a.json"
    path.write_text(json.dumps({**META, "messages": messages}, indent=2))
    (history,) = read(path)
    assert (history.run.agent, history.run.session, history.run.context) == ("gemini-cli", "9a-1", "build it")
    assert [step.outcome for step in history.steps] == ["failure", "success"]
    failure = history.steps[0].failure
    assert failure is not None
    assert failure.kind == "tool/execution_failed"
    assert [(link.failed_call, link.recovering_call, link.evidence) for link in history.links] == [
        (1, 2, ("same_values",))
    ]
    assert len(history.compactions) == 1


def test_a_session_of_lines_may_write_a_message_again_as_its_calls_end(tmp_path):
    waiting = {**call("c1", "executing", {}, command="make"), "result": None}
    path = write(
        tmp_path / "session-2026-9a.jsonl",
        META,
        message("user", "build it"),
        message("gemini", "", waiting, id="m2"),
        message("gemini", "", call("c1", "success", {"output": "ok"}, command="make"), id="m2"),
        {"$set": {"lastUpdated": at(10)}},
    )
    (history,) = read(path)
    assert [(step.name, step.outcome) for step in history.steps] == [("run_shell_command", "success")]


def test_a_tool_of_a_server_has_the_name_that_the_server_gave_it(tmp_path):
    made = {**call("c1", "success", {"output": "3 items"}, limit=5), "name": "mcp__crm__list"}
    (history,) = read(write(tmp_path / "session-1.jsonl", META, message("gemini", "", made)))
    assert [(step.name, step.server) for step in history.steps] == [("list", "crm")]


def test_a_call_that_the_user_cancelled_is_no_failure(tmp_path):
    path = write(
        tmp_path / "session-1.jsonl", META, message("gemini", "", call("c1", "cancelled", {"error": "no"}, command="x"))
    )
    (history,) = read(path)
    assert history.steps[0].outcome == "blocked"
    assert not history.steps[0].has_failed


def test_an_error_between_messages_is_the_models(tmp_path):
    path = write(
        tmp_path / "session-1.jsonl",
        META,
        message("error", "[API Error: You exceeded your current quota. Please retry in 20s.]"),
    )
    (history,) = read(path)
    assert [(step.type, step.outcome) for step in history.steps] == [("model", "failure")]
