"""mulligan sessions: what is remembered of each conversation."""

from __future__ import annotations

import json

import pytest
from hook_events import handle_event

from mulligan.api import Mulligan
from mulligan.contract.store import DAY, DEFAULT_TENANT, Retention
from mulligan.core.events import RunEnded
from mulligan.core.records import Run
from mulligan.store.sqlite import SqliteStore


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MULLIGAN_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def kept(home):
    """One session of a coding agent, that was compacted, and one of a program."""
    about = {"session_id": "bc15e4d3", "cwd": "/src/shop"}
    call = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "t1", "error": "Exit code 2\nboom"}
    for event in (
        {"hook_event_name": "PostToolUseFailure", **call},
        {"hook_event_name": "SessionStart", "source": "compact"},
    ):
        handle_event("claude-code", json.dumps({**about, **event}).encode())
    program = Mulligan()

    @program.tool
    def pay(amount: int) -> None:
        raise ValueError("the account is closed")

    with (
        program.session("chat-7") as session,
        program.run("shop", session=session),
        pytest.raises(ValueError, match="closed"),
    ):
        pay(7)
    session.mark_compacted()
    program.close()


def test_nothing_is_remembered_at_first(home, types):
    assert types("sessions")[1] == "No sessions.\n"
    assert json.loads(types("sessions", "--json")[1]) == []


def test_sessions_are_listed_with_what_is_remembered(kept, types):
    code, said, _ = types("sessions")
    assert code == 0
    assert said.startswith("2 sessions, 2 tracked failures.")
    assert "claude-code" in said
    assert "/src/shop" in said
    listed = json.loads(types("sessions", "--json")[1])
    assert {each["session"]: (each["agent"], each["compactions"]) for each in listed} == {
        "bc15e4d3": ("claude-code", 1),
        "chat-7": ("shop", 1),
    }
    assert all(each["runs"] == 1 for each in listed)
    assert [each["session"] for each in json.loads(types("sessions", "--agent", "claude-code", "--json")[1])] == [
        "bc15e4d3"
    ]


def test_a_session_without_a_failure_is_listed_and_shown_by_its_runs(kept, types, home):
    store = SqliteStore(home / "mulligan.db")
    for number in range(2):
        run = Run(id=f"run_{number}", agent="desk", session="talk-9", started_at=number + 1, ended_at=number + 2,
                  end_reason="finished")  # fmt: skip
        store.append(DEFAULT_TENANT, [RunEnded(run)], "j", number + 1)
    store.close()
    listed = {each["session"]: each for each in json.loads(types("sessions", "--json")[1])}
    assert len(listed) == 3
    assert (listed["talk-9"]["agent"], listed["talk-9"]["runs"], listed["talk-9"]["failures"]) == ("desk", 2, 0)
    assert [each["session"] for each in json.loads(types("sessions", "--agent", "desk", "--json")[1])] == ["talk-9"]
    assert types("sessions", "show", "talk")[1].startswith("talk-9 of desk: 2 runs, 0 tracked failures")


def test_one_is_shown_with_what_the_model_was_told(kept, types):
    code, said, _ = types("sessions", "show", "bc1")
    assert code == 0
    assert "in Bash\n" in said
    assert "Recent failures" in said
    told = json.loads(types("sessions", "show", "bc15e4d3", "--json")[1])
    assert [each["tool"] for each in told["remembered"]] == ["Bash"]
    assert told["rates"] == [{"calls": 1, "failed": 1}, {"calls": 0, "failed": 0}]


def test_turns_are_counted_only_where_every_model_response_is_seen(kept, types):
    """Hooks see batches of calls."""
    assert types("sessions", "show", "bc15e4d3")[1].startswith("bc15e4d3 of claude-code: 1 run, 1 tracked failure, ")
    assert types("sessions", "show", "chat-7")[1].startswith("chat-7 of shop: 1 run, 1 tracked failure, ")


def test_one_that_is_not_there_is_told(kept, types):
    code, _, said = types("sessions", "show", "nobody")
    assert (code, "mulligan sessions" in said) == (2, True)


def test_one_can_be_forgotten(kept, types):
    assert types("forget", "--session", "bc15e4d3", "--yes")[0] == 0
    assert [each["session"] for each in json.loads(types("sessions", "--json")[1])] == ["chat-7"]


def test_a_session_that_was_not_heard_of_for_long_goes_with_its_runs(kept, home):
    store = SqliteStore(home / "mulligan.db")
    at = json.loads(store.get(DEFAULT_TENANT, "hook", "bc15e4d3"))["at"]
    store.prune(DEFAULT_TENANT, Retention(), at + 89 * DAY)
    assert store.keys(DEFAULT_TENANT, "session") == ["bc15e4d3", "chat-7"]
    store.prune(DEFAULT_TENANT, Retention(), at + 91 * DAY)
    assert store.keys(DEFAULT_TENANT, "session") == store.keys(DEFAULT_TENANT, "hook") == []
    store.close()


def test_unknown_and_ambiguous_ids_have_different_answers(kept, types):
    for number in range(2):
        event = {"session_id": f"bc15e4d3-{number}", "cwd": "/src/shop", "hook_event_name": "PostToolUseFailure",
                 "tool_name": "Bash", "tool_input": {}, "tool_use_id": "t1", "error": "Exit code 2\nboom"}  # fmt: skip
        handle_event("claude-code", json.dumps(event).encode())
    assert "No session matches 'nope'. List sessions" in types("sessions", "show", "nope")[2]
    assert "2 sessions start with 'bc15e4d3-': bc15e4d3-0, bc15e4d3-1." in types("sessions", "show", "bc15e4d3-")[2]
