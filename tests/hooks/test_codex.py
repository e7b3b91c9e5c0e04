"""What Codex tells its hooks, and what only its log says."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def codex(another):
    return Codex(another(name="codex", session="01a1de65-5e18"))


class Codex:
    """Codex, and the log that it writes as it goes."""

    def __init__(self, agent) -> None:
        self.agent = agent
        self._line({"type": "session_meta", "payload": {"id": agent.session, "cwd": agent.folder}})
        said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "sell tea"}]}
        self._line({"type": "response_item", "payload": said})

    def _line(self, line) -> None:
        with self.agent.log.open("a") as log:
            log.write(json.dumps({"timestamp": "2026-01-02T03:04:05.000Z", **line}, separators=(",", ":")) + "\n")

    def calls(self, name, arguments, **fields) -> str:
        id = f"call_{next(self.agent.ids)}"
        payload = {"type": "function_call", "name": name, "arguments": json.dumps(arguments), "call_id": id, **fields}
        self._line({"type": "response_item", "payload": payload})
        return id

    def command(self, command: str, code: int | None, output: str = "") -> str:
        """A command is run, and the hook is called."""
        id = self.calls("exec_command", {"cmd": command})
        if code is not None:
            item = {"type": "CommandExecution", "id": id, "command": ["bash", "-lc", command], "exit_code": code,
                    "aggregated_output": output}  # fmt: skip
            self._line({"type": "event_msg", "payload": {"type": "item_completed", "item": item}})
        told = {"tool_name": "Bash", "tool_input": {"command": command}, "tool_response": output, "tool_use_id": id}
        return self.agent.says("PostToolUse", **told)

    def answers(self, id: str, said: str) -> None:
        """A call that calls no hook ends."""
        payload = {"type": "function_call_output", "call_id": id, "output": said}
        self._line({"type": "response_item", "payload": payload})


def test_a_command_has_failed_if_the_log_says_so(codex):
    codex.command("echo hi", 0, "hi\n")
    codex.command("make x", 2, "make: *** [x] Error 2  Stop.\n")
    assert codex.agent.kinds() == [("exec_command", "tool/build_failure")]
    history = codex.agent.run()
    assert [each.outcome for each in history.steps] == ["success", "failure"]
    assert history.run.context == "sell tea"


def test_a_command_of_which_the_log_says_nothing_has_not(codex):
    codex.command("sleep 100 &", None)
    codex.agent.log.unlink()
    codex.command("echo hi", 0)
    assert codex.agent.kinds() == []


def test_the_reminder_comes_after_a_compaction_once_and_not_before(codex):
    assert codex.command("make x", 2, "make: *** [x] Error 2") == ""
    said = codex.agent.compacts()
    assert " in exec_command: " in said
    assert codex.command("true", 0) == ""


def test_calls_that_call_no_hook_are_read_from_the_log_at_a_compaction(codex):
    id = codex.calls("exec_command", {"command": "ls"})
    codex.answers(id, "failed to parse function arguments: missing field `cmd` at line 1 column 17")
    id = codex.calls("lookup", {"q": "x"}, namespace="mcp__crm")
    item = {"type": "McpToolCall", "id": id, "server": "crm", "tool": "lookup",
            "result": {"isError": True, "content": [{"text": "rate limit exceeded, retry after 3 s"}]}}  # fmt: skip
    codex._line({"type": "event_msg", "payload": {"type": "item_completed", "item": item}})
    codex.command("false", 1)
    said = codex.agent.compacts()
    assert "tool/invalid_arguments in exec_command" in said
    assert "tool/rate_limit in lookup" in said
    assert codex.agent.compacts() == ""
    codex.agent.ends()
    assert len(codex.agent.kinds()) == 3


def test_nothing_is_said_when_nothing_failed(codex):
    codex.command("true", 0)
    assert codex.agent.compacts() == ""
