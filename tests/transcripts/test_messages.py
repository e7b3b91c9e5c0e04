from __future__ import annotations

import json

import pytest
from session_logs import read, write

from mulligan.transcripts import formats
from mulligan.transcripts.log_lines import LogLines
from mulligan.transcripts.run_builder import ReaderState

OPENAI = [
    {"role": "system", "content": "You are helpful."},
    {"role": "user", "content": "book it"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "book", "arguments": '{"film": "Jaws", "seats": "two"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "Error: seats must be a number"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_2",
                "type": "function",
                "function": {"name": "book", "arguments": '{"film": "Jaws", "seats": 2}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_2", "content": "booked"},
]
ANTHROPIC = [
    {"role": "user", "content": "book it"},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t1", "name": "book", "input": {"film": "Jaws", "seats": "two"}}],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "seats must be a number", "is_error": True}
        ],
    },
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t2", "name": "book", "input": {"film": "Jaws", "seats": 2}}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2", "content": "booked"}]},
]
RESPONSES = [
    {"role": "user", "content": "book it"},
    {"type": "function_call", "call_id": "c1", "name": "book", "arguments": '{"film": "Jaws", "seats": "two"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "Error: seats must be a number"},
    {"type": "function_call", "call_id": "c2", "name": "book", "arguments": '{"film": "Jaws", "seats": 2}'},
    {"type": "function_call_output", "call_id": "c2", "output": "booked"},
]


@pytest.mark.parametrize("conversation", [OPENAI, ANTHROPIC, RESPONSES], ids=["openai", "anthropic", "responses"])
@pytest.mark.parametrize("form", ["list", "pretty", "object", "line an object", "line a message"])
def test_a_conversation_is_a_run_in_whatever_form_it_is_kept(tmp_path, conversation, form):
    path = tmp_path / "conversation.json"
    if form == "line a message":
        write(path, *conversation)
    else:
        value = {"messages": conversation, "model": "m-1"} if "object" in form else conversation
        path.write_text(json.dumps(value, indent=2 if form in ("pretty", "object") else None))
    (history,) = read(path)
    assert [(step.name, step.outcome) for step in history.steps] == [("book", "failure"), ("book", "success")]
    assert history.run.context == "book it"
    (link,) = history.links
    assert [(change.path, change.after) for change in link.changes] == [("seats", 2)]
    assert link.evidence == ("next_call",)
    assert history.run.started_at  # the file's, where no message has one


def test_many_conversations_a_line_each_are_many_runs(tmp_path):
    path = write(tmp_path / "c.jsonl", {"messages": OPENAI}, {"messages": OPENAI}, "half a l", {"messages": ANTHROPIC})
    reading = ReaderState()
    histories = read(path, reading)
    assert len({history.run.id for history in histories}) == 3
    assert reading.unrecognized_lines == 1


def test_an_answer_that_speaks_of_errors_without_being_one_is_a_success(tmp_path):
    conversation = [
        {"role": "user", "content": "what does the log say?"},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "read", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "The log mentions that an error occurred on Monday."},
    ]
    path = tmp_path / "c.json"
    path.write_text(json.dumps(conversation))
    (history,) = read(path)
    assert history.steps[0].outcome == "success"


def test_a_program_that_speaks_of_messages_is_no_conversation(tmp_path):
    path = tmp_path / "agent.py"
    path.write_text('messages = [{"role": "user", "content": "hello"}]')
    with LogLines(path) as lines:
        assert formats.detect_log_format(lines) is None


def test_result_without_a_flag_is_judged_by_the_category_of_its_tool(tmp_path):
    results = {
        "read_file": "Error: connection refused",
        "get_order": "Error: no such order",
        "bash": "bash: kubectl: command not found",
    }
    messages = [{"role": "user", "content": "look"}]
    for name, text in results.items():
        call = {"id": name, "type": "function", "function": {"name": name, "arguments": '{"path": "a.log"}'}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": name, "content": text})
    (history,) = read(write(tmp_path / "a.json", json.dumps(messages)))
    assert [step.outcome for step in history.steps] == ["success", "failure", "success"]
    assert [step.suspected and step.suspected.kind for step in history.steps] == [None, None, "tool/command_not_found"]
