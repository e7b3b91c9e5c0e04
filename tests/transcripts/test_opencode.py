"""Sessions of OpenCode: parts of messages in its database."""

from __future__ import annotations

import json
import sqlite3

import pytest

from mulligan.transcripts.formats import detect_log_format
from mulligan.transcripts.log_lines import LogLines
from mulligan.transcripts.opencode import read
from mulligan.transcripts.run_builder import ReaderState


def tool_part(tool, status="completed", **state):
    return {"type": "tool", "tool": tool, "callID": f"call_{tool}", "state": {"status": status, **state}}


@pytest.fixture
def write_database(tmp_path):
    def write_parts(*parts):
        path = tmp_path / "opencode.db"
        database = sqlite3.connect(path)
        database.executescript(
            "CREATE TABLE session (id, parent_id, directory, version, time_created);"
            "CREATE TABLE message (id, session_id, data);"
            "CREATE TABLE part (id, message_id, session_id, time_created, data);"
            "INSERT INTO session VALUES ('ses_1', NULL, '/src/shop', '1.18.18', 1);"
            """INSERT INTO message VALUES ('m', 'ses_1', '{"role": "assistant", "modelID": "gpt"}');"""
        )
        for number, part in enumerate(parts):
            data = part if isinstance(part, str) else json.dumps(part)
            database.execute("INSERT INTO part VALUES (?, 'm', 'ses_1', ?, ?)", (number, 1000 + number, data))
        database.commit()
        database.close()
        return path

    return write_parts


def read_failures(path):
    with LogLines(path) as lines:
        log_format = detect_log_format(lines)
        histories = list(log_format.read(lines, ReaderState()))
    return [(step.name, str(step.failure.kind)) for history in histories for step in history.steps if step.failure]


def test_errors_exit_codes_and_unknown_tools_are_failures(write_database):
    output = "make: *** No rule to make target 'x'.  Stop.\n"
    unknown = {"tool": "nosuch", "error": "Model tried to call unavailable tool 'nosuch'. Available tools: bash, read."}
    path = write_database(
        tool_part("bash", input={"command": "make x"}, output=output, metadata={"exit": 2}),
        tool_part("bash", input={"command": "true"}, output="", metadata={"exit": 0}),
        tool_part("read", "error", input={"filePath": "/a"}, error="File not found: /a"),
        tool_part("invalid", input=unknown, output="The arguments provided to the tool are invalid"),
        tool_part("read", "running", input={"filePath": "/b"}),
    )
    assert read_failures(path) == [
        ("bash", "tool/build_failure"),
        ("read", "tool/file_not_found"),
        ("nosuch", "tool/unknown_tool"),
    ]


def test_broken_parts_are_skipped(write_database):
    path = write_database(
        "{broken", "[]", {"type": "tool", "state": None}, tool_part("read", "error", input=None, error=None)
    )
    assert read_failures(path) == [("read", "tool/execution_failed")]


def test_another_database_has_no_sessions(tmp_path):
    path = tmp_path / "other.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE part (id)")
    database.commit()
    database.close()
    assert read_failures(path) == []


def test_a_damaged_database_is_unreadable(tmp_path):
    path = tmp_path / "opencode.db"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    with LogLines(path) as lines:
        assert list(read(lines, ReaderState())) == []
        assert "not a readable database" in lines.read_error
