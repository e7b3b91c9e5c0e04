from __future__ import annotations

from typing import Any

from session_logs import at, read, write

from mulligan.transcripts.run_builder import ReaderState

HEADER = {"type": "session", "version": 3, "id": "01a1-pi", "timestamp": at(0), "cwd": "/home/ada/shop"}


def entry(second: float, type: str, **fields: Any) -> dict[str, Any]:
    return {"type": type, "id": f"e{second}", "parentId": None, "timestamp": at(second), **fields}


def message(second: float, role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return entry(second, "message", message={"role": role, "content": content, **fields})


def call(second: float, id: str, tool: str, **arguments: Any) -> dict[str, Any]:
    block = {"type": "toolCall", "id": id, "name": tool, "arguments": arguments}
    content = [{"type": "thinking", "thinking": "hm"}, block]
    return message(second, "assistant", content, model="m", stopReason="toolUse")


def result(second: float, id: str, text: str, is_error: bool = False) -> dict[str, Any]:
    return message(second, "toolResult", [{"type": "text", "text": text}], toolCallId=id, isError=is_error)


FAILED_BUILD = (
    call(1, "c1", "bash", command="pyhton app.py"),
    result(2, "c1", "bash: line 1: pyhton: command not found\n\n\nCommand exited with code 127", True),
)


def test_session_is_a_run_with_its_calls_and_recoveries(tmp_path):
    path = write(
        tmp_path / "session.jsonl",
        HEADER,
        message(0.5, "user", "fix the shop"),
        *FAILED_BUILD,
        call(3, "c2", "bash", command="python app.py"),
        result(4, "c2", "fine"),
        entry(5, "compaction", summary="...", tokensBefore=50_000),
    )
    (history,) = read(path)
    assert (history.run.agent, history.run.session, history.run.context) == ("pi", "01a1-pi", "fix the shop")
    assert history.run.metadata == {"format": "pi", "model": "m", "project": "shop"}
    assert [(step.name, step.outcome) for step in history.steps] == [("bash", "failure"), ("bash", "success")]
    assert [(link.failed_call, link.recovering_call) for link in history.links] == [(1, 2)]
    assert [compaction.tokens_before for compaction in history.compactions] == [50_000]


def test_entries_that_a_forked_session_copies_count_once(tmp_path):
    state = ReaderState()
    parent = write(tmp_path / "parent.jsonl", HEADER, *FAILED_BUILD)
    fork = write(tmp_path / "fork.jsonl", {**HEADER, "id": "01a2-pi"}, *FAILED_BUILD, call(3, "c2", "read", path="a"))
    assert [len(history.steps) for history in read(parent, state)] == [1]
    assert read(fork, state) == []  # its only call has no result yet


def test_command_that_the_user_stopped_is_not_a_failure(tmp_path):
    stopped = result(2, "c1", "half of it\n\nCommand aborted", True)
    path = write(tmp_path / "session.jsonl", HEADER, call(1, "c1", "bash", command="make"), stopped)
    (history,) = read(path)
    assert [step.outcome for step in history.steps] == ["cancelled"]


def test_error_of_the_model_is_a_failed_model_call_that_its_next_answer_recovers(tmp_path):
    error = message(1, "assistant", [], model="m", stopReason="error", errorMessage="429 rate limit exceeded")
    path = write(tmp_path / "session.jsonl", HEADER, error, call(2, "c1", "bash", command="ls"), result(3, "c1", "a"))
    (history,) = read(path)
    steps = [(step.type, step.outcome) for step in history.steps]
    assert steps == [("model", "failure"), ("model", "success"), ("tool", "success")]


def test_lines_of_unknown_content_are_counted_and_skipped(tmp_path):
    state = ReaderState()
    path = write(tmp_path / "session.jsonl", HEADER, message(1, "assistant", 5), "{", *FAILED_BUILD)
    (history,) = read(path, state)
    assert len(history.steps) == 1
    assert state.unrecognized_lines == 1
