"""What Cursor tells its hooks, by its documentation. A failure cannot be answered: the hint follows with a result."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from mulligan.hooks.event_processing import process_event
from mulligan.hooks.main import has_only_successes, should_process
from mulligan.hooks.success_spool import spool_successes

MISSING = "Exit code 1\nconfig.json is missing: run setup.sh"


class Cursor:
    """A conversation in a folder."""

    def __init__(self, conversation: str = "conversation-1", folder: str = "/src/shop") -> None:
        self.conversation, self.folder, self.ids = conversation, folder, itertools.count(1)

    def encode(self, event: str, **fields: Any) -> bytes:
        about = {"conversation_id": self.conversation, "workspace_roots": [self.folder], "cursor_version": "3.13.10"}
        return json.dumps({**about, "hook_event_name": event, **fields}, separators=(",", ":")).encode()

    def tells(self, event: str, **fields: Any) -> str:
        """What the model is told."""
        data = self.encode(event, **fields)
        if not should_process("cursor", data) or (
            has_only_successes("cursor", data) and spool_successes("cursor", data)
        ):
            return ""
        said = process_event("cursor", data)
        return json.loads(said)["additional_context"] if said else ""

    def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        id = f"{self.conversation}-{next(self.ids)}"
        return {"tool_name": tool, "tool_input": arguments, "tool_use_id": id, "cwd": "", "duration": 58}

    def fails(self, error: str, tool: str = "Shell", **arguments: Any) -> str:
        failure = {"error_message": error, "failure_type": "error", "is_interrupt": False}
        return self.tells("postToolUseFailure", **self.call(tool, arguments), **failure)

    def works(self, tool: str = "Shell", code: int = 0, output: str = "fine", **arguments: Any) -> str:
        result = json.dumps({"output": output, "exitCode": code}, separators=(",", ":"))
        return self.tells("postToolUse", **self.call(tool, arguments), tool_output=result)


@pytest.fixture
def conversations(home):
    return (Cursor(f"conversation-{number}") for number in itertools.count(1))


def recover(cursor: Cursor) -> None:
    cursor.fails(MISSING, command="sh run.sh")
    cursor.works(command="sh setup.sh")
    cursor.works(command="sh run.sh")
    cursor.tells("sessionEnd", session_id=cursor.conversation, reason="completed")


def test_the_reminder_follows_a_compaction_with_the_next_result_once(another, conversations):
    cursor = next(conversations)
    assert cursor.fails("make: *** [x] Error 2", command="make x") == ""
    assert cursor.tells("preCompact", trigger="auto") == ""
    assert cursor.fails("make: *** [x] Error 2", command="make x") == ""
    assert "make x" in (reminder := cursor.works("Read", path="a"))
    assert "Recent failures" in reminder
    assert cursor.works("Read", path="a") == ""
    assert another(session=cursor.conversation).kinds() == [("Shell", "tool/build_failure")] * 2


def test_what_worked_in_this_folder_follows_a_failure_with_the_next_result(conversations):
    for _ in range(5):
        recover(next(conversations))
    cursor = next(conversations)
    assert cursor.fails(MISSING, command="sh run.sh") == ""
    assert "`sh run.sh` succeeded after `sh setup.sh`" in cursor.works(command="true")
    assert cursor.works(command="true") == ""
    elsewhere = next(conversations)
    elsewhere.folder = "/src/other"
    elsewhere.fails(MISSING, command="sh run.sh")
    assert elsewhere.works(command="true") == ""


def test_a_result_with_an_exit_code_is_a_failure(another, conversations):
    cursor = next(conversations)
    cursor.works(command="make x", code=2, output="make: *** [x] Error 2")
    assert another(session=cursor.conversation).kinds() == [("Shell", "tool/build_failure")]


def test_an_interrupted_call_is_no_failure(another, conversations):
    cursor = next(conversations)
    call = cursor.call("Shell", {"command": "make x"})
    cursor.tells("postToolUseFailure", **call, error_message="aborted", failure_type="error", is_interrupt=True)
    assert another(session=cursor.conversation).run() is None


def test_an_event_that_needs_no_store_opens_none(conversations):
    cursor = next(conversations)
    done = cursor.encode("postToolUse", **cursor.call("MCP:search", {}), tool_output='{"exitCode":0}')
    assert not should_process("cursor", done)
    cursor.fails("not found", tool="MCP:search", query="a")
    assert should_process("cursor", done)
    assert should_process("cursor", cursor.encode("sessionEnd", session_id=cursor.conversation))
    assert not should_process("cursor", cursor.encode("sessionEnd", session_id="another"))
    assert not should_process("cursor", cursor.encode("sessionStart", session_id="another"))
