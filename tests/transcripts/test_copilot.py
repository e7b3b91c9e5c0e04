from __future__ import annotations

from typing import Any

from session_logs import at, read, write


def event(second: float, type: str, **data: Any) -> dict[str, Any]:
    return {"type": type, "data": data, "id": f"e{second}", "timestamp": at(second), "parentId": None}


def call(second: float, id: str, command: str, exit_code: int, output: str) -> list[dict[str, Any]]:
    result = {"content": f"{output}\nAdditional guidance: try another", "detailedContent": output}
    return [
        event(second, "tool.execution_start", toolCallId=id, toolName="bash", arguments={"command": command}),
        event(
            second + 1, "tool.execution_complete", toolCallId=id, success=True, shellExecution={"exitCode": exit_code},
            result=result,
        ),
    ]  # fmt: skip


START = event(0, "session.start", sessionId="e65b-1", copilotVersion="1.0.102", context={"cwd": "/home/ada/shop"})


def test_session_is_a_run_with_its_calls_and_recoveries(tmp_path):
    path = write(
        tmp_path / "events.jsonl",
        START,
        event(0.5, "user.message", content="fix the shop"),
        *call(1, "c1", "pyhton app.py", 127, "bash: line 1: pyhton: command not found"),
        event(3, "session.compaction_complete", success=True),
        *call(4, "c2", "python app.py", 0, "fine"),
    )
    (history,) = read(path)
    run = history.run
    assert (run.agent, run.version, run.session, run.context) == ("copilot", "1.0.102", "e65b-1", "fix the shop")
    assert run.metadata == {"format": "copilot", "project": "shop"}
    assert [(step.name, step.outcome) for step in history.steps] == [("bash", "failure"), ("bash", "success")]
    assert "guidance" not in history.steps[0].failure.detail
    assert [(link.failed_call, link.recovering_call) for link in history.links] == [(1, 2)]
    assert len(history.compactions) == 1


def test_call_that_was_rejected_has_its_error(tmp_path):
    start = event(1, "tool.execution_start", toolCallId="c1", toolName="edit", arguments={"path": "a"})
    error = {"message": "No match found", "code": "failure"}
    end = event(2, "tool.execution_complete", toolCallId="c1", success=False, error=error)
    (history,) = read(write(tmp_path / "events.jsonl", START, start, end))
    (step,) = history.steps
    assert str(step.failure.kind) == "tool/edit_mismatch"
