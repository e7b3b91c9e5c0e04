"""What Claude Code tells its hooks, what is kept of it, and what it is told."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest
from hook_events import handle_event

from mulligan.hooks import main, session_files


def test_reminder_that_a_locked_store_delayed_comes_with_the_next_batch(agent, home):
    agent.fails("Bash", "Exit code 2\nmake: *** [x] Error 2", command="make")
    with closing(sqlite3.connect(home / "mulligan.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert agent.compacts() == ""
    assert agent.works("Read", file_path="a.py").startswith("Recent failures")
    assert agent.works("Read", file_path="b.py") == ""


@pytest.mark.parametrize(
    ("between", "worked"),
    [
        ("docker compose up -d db", "the same call after docker compose up -d db"),
        ("sleep 5", "What worked: a later retry"),
    ],
)
def test_reminder_calls_it_a_retry_only_if_no_other_command_may_have_helped(agent, between, worked):
    command = "psql -h localhost -c 'select 1'"
    agent.fails("Bash", "Exit code 2\npsql: error: connection to server failed: Connection refused", command=command)
    agent.works("Bash", command=between)
    agent.works("Bash", command=command)
    said = agent.compacts()
    assert worked in said
    assert said.count("a later retry") == (between == "sleep 5")


def test_what_went_wrong_in_a_tool_is_kept_with_its_kind(agent):
    agent.fails(
        "Bash", "Exit code 3\nls: cannot access '/nonexistent': No such file or directory", command="ls /x; exit 3"
    )
    agent.fails("mcp__crm__find", "rate limit exceeded, retry after 3 s", q="x")
    history = agent.run()
    assert agent.kinds() == [("Bash", "tool/file_not_found"), ("find", "tool/rate_limit")]
    assert [each.server for each in history.steps] == [None, "crm"]
    assert history.steps[0].duration_seconds == 0.058
    assert (history.run.agent, history.run.metadata["project"]) == ("claude-code", "shop")


@pytest.mark.parametrize(
    ("tool", "said", "kind"),
    [
        ("Edit", "String to replace not found in file.\nString: zzz", "tool/edit_mismatch"),
        ("Edit", "File has not been read yet. Read it first before writing to it.", "tool/stale_file"),
        (
            "Bash",
            "InputValidationError: Bash failed due to the following issue:\nThe required parameter `command` is absent",
            "tool/invalid_arguments",
        ),
        ("Nope", "Error: No such tool available: Nope", "tool/unknown_tool"),
    ],
)
def test_what_only_the_batch_tells_is_kept_with_its_kind(agent, tool, said, kind):
    agent.is_refused(tool, said, file_path="a.py")
    assert agent.kinds() == [(tool, kind)]


def test_an_emoji_that_was_cut_in_two_costs_itself_alone(agent):
    agent.tells(
        "PostToolUseFailure", tool_name="Bash", tool_use_id="t", tool_input={"command": "make \udc4d"},
        error="Exit code 2\nmake: *** [x] Error 2 \ud83d", is_interrupt=False,
    )  # fmt: skip
    assert agent.kinds() == [("Bash", "tool/build_failure")]


def test_a_failure_is_kept_once_although_its_batch_tells_of_it_again(agent):
    agent.fails("Bash", "Exit code 1\nboom", command="make")
    agent.works("Read", file_path="a")
    agent.ends()
    assert [(each.name, each.outcome) for each in agent.run().steps] == [("Bash", "failure"), ("Read", "success")]


def test_batch_of_a_reported_failure_does_not_open_the_store(agent):
    """The agent waits for each hook, and an open store takes ten times as long."""
    call = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "toolu_1"}
    agent.tells("PostToolUseFailure", **call, error="Exit code 1\nboom", is_interrupt=False)
    about = {"session_id": agent.session, "hook_event_name": "PostToolBatch"}

    def needs_store(*ids):
        calls = [{**call, "tool_use_id": id, "tool_response": "Exit code 1\nboom"} for id in ids]
        event = json.dumps({**about, "tool_calls": calls}, separators=(",", ":"))
        return main.should_process("claude-code", event.encode())

    assert not needs_store("toolu_1")
    assert needs_store("toolu_1", "toolu_2"), "another call of the failed tool may have recovered it"
    agent.ends()
    assert [(step.name, step.outcome) for step in agent.run().steps] == [("Bash", "failure")]


def test_hooks_that_stand_in_two_files_of_settings_keep_everything_once(agent):
    call = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "toolu_9"}
    for _ in range(2):
        agent.tells("PostToolUseFailure", **call, error="Exit code 1\nboom", is_interrupt=False)
    for _ in range(2):
        agent.tells("PostToolBatch", tool_calls=[{**call, "tool_response": "Exit code 1\nboom"}])
    for _ in range(2):
        agent.tells("PostToolBatch", tool_calls=[{**call, "tool_use_id": "toolu_10", "tool_response": "fine"}])
    for _ in range(2):
        agent.tells(
            "PostToolBatch", tool_calls=[{**call, "tool_name": "Glob", "tool_use_id": "t", "tool_response": ""}]
        )
    agent.fails("Grep", "Exit code 2\nboom", pattern="x")
    said = [agent.compacts() for _ in range(2)]
    assert " in Grep: " in said[0]
    assert [each.name for each in agent.run().steps] == ["Bash", "Bash", "Glob", "Grep"]
    assert [bool(each) for each in said] == [True, False]


def test_the_reminder_comes_after_a_compaction_once_and_not_before(agent):
    assert agent.says("SessionStart", source="startup") == ""
    assert agent.fails("Bash", "Exit code 2\nmake: *** [x] Error 2", command="make x") == ""
    assert agent.works("Read", file_path="a") == ""
    said = agent.compacts()
    assert said.startswith("Recent failures")
    assert " in Bash: " in said
    assert agent.works("Read", file_path="a") == ""
    assert agent.says("SessionStart", source="resume") == ""


def test_each_compaction_has_its_reminder(agent):
    agent.fails("Bash", "Exit code 1\nboom", command="make")
    assert agent.compacts().count("\n- ") == 1
    agent.is_refused("Edit", "String to replace not found in file.", file_path="b.py")
    assert agent.compacts().count("\n- ") == 2


def test_nothing_is_said_when_nothing_failed(agent):
    agent.works("Bash", command="true")
    assert agent.compacts() == ""
    assert agent.run() is not None  # but counted


def test_what_a_person_stopped_or_refused_is_no_failure(agent):
    agent.tells("PostToolUseFailure", tool_name="Bash", tool_input={}, tool_use_id="t1", error="x", is_interrupt=True)
    agent.batch(("Bash", {}, "The user doesn't want to proceed with this tool use. The tool use was rejected."))
    assert agent.kinds() == []
    assert agent.compacts() == ""


def test_what_overcame_a_failure_is_said_with_it(agent):
    given = {"file_path": "/src/shop/a.py", "old_string": "total = 1", "new_string": "total = 2"}
    agent.is_refused("Edit", "File has been modified since read. Read it again before attempting to write it.", **given)
    agent.works("Read", file_path="/src/shop/a.py")
    agent.works("Edit", **given)
    assert "What worked: read the file again first" in agent.compacts()
    assert [link.method for link in agent.run().links] == ["prerequisite"]


def test_the_same_failure_for_the_third_time_in_a_row_is_named(agent):
    said = [agent.fails("Bash", "Exit code 2\nmake: *** [x] Error 2", command="make x") for _ in range(4)]
    assert said[:2] == ["", ""]
    assert said[2].startswith("mulligan: the same call failed 3 times in a row (Bash: tool/build_failure)")
    assert "4 times" in said[3]


def test_not_if_something_was_done_in_between(agent):
    for number in range(4):
        error = "Exit code 2\nmake: *** [x] Error 2"
        assert agent.fails("Bash", error, command="make x") == ""
        agent.works("Edit", file_path="Makefile", old_string=f"{number}", new_string=f"{number + 1}")


def test_a_batch_of_tools_is_a_turn(agent):
    agent.batch(("Read", {"file_path": "a"}, "fine"), ("Read", {"file_path": "b"}, "fine"))
    agent.works("Bash", command="true")
    agent.fails("Bash", "Exit code 1\nboom", command="make")
    assert " in Bash: " in agent.compacts()
    assert len(agent.run().steps) == 4


def test_calls_that_worked_are_counted_when_the_session_ends(agent):
    for _ in range(3):
        agent.works("Read", file_path="a")
    assert agent.run() is None  # a line each, until then
    agent.ends()
    history = agent.run()
    assert [(each.name, each.outcome) for each in history.steps] == [("Read", "success")] * 3
    assert history.run.end_reason == "finished"
    assert list((agent.home / "hooks").iterdir()) == []


def test_a_session_that_is_resumed_goes_on(agent):
    agent.fails("Bash", "Exit code 1\nboom", command="make")
    agent.ends()
    agent.works("Read", file_path="a")
    agent.fails("Bash", "Exit code 1\ncrash", command="make all")
    assert [each.seq for each in agent.run().steps] == [1, 2, 3]
    assert agent.compacts().count("\n- ") == 2


def test_sessions_do_not_hear_of_each_other(agent, another):
    other = another(session="other")
    agent.fails("Bash", "Exit code 1\nboom", command="make")
    other.fails("Edit", "a lock is held", file_path="b")
    assert " in Bash: " in agent.compacts()
    assert " in Bash " not in other.compacts()


def test_what_the_user_asked_for_is_the_context_of_the_run(agent):
    told = [
        {"type": "user", "isMeta": True, "message": {"content": "Caveat"}},
        {"type": "user", "message": {"content": [{"type": "text", "text": "make the shop sell tea"}]}},
    ]
    agent.log.write_text("\n".join(map(json.dumps, told)) + "\n{cut")
    agent.fails("Bash", "Exit code 1\nboom", command="make")
    assert agent.run().run.context == "make the shop sell tea"


def test_secrets_are_not_written_down(agent):
    key = "ghp_" + "R7wQ2zL9xKfT4mVbN8cJ5hYsD1gPaE3uXi6o"
    agent.fails("Bash", f"Exit code 1\nfatal: bad credentials {key}", command=f"git push https://x:{key}@host")
    assert key not in agent.compacts()
    agent.store.close()
    for path in agent.home.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes(), path


def test_what_is_recorded_follows_the_users_settings(agent, monkeypatch):
    monkeypatch.setenv("MULLIGAN", "off")
    agent.fails("Bash", "Exit code 1\nboom", command="make")
    monkeypatch.setenv("MULLIGAN", "on")
    monkeypatch.setenv("MULLIGAN_RECORD", "off")
    agent.fails("Bash", "Exit code 1\nboom", command="make")
    assert not (agent.home / "mulligan.db").exists()
    monkeypatch.setenv("MULLIGAN_RECORD", "shape")
    agent.fails("Bash", "Exit code 1\nsomething about make-believe", command="make-believe")
    (step,) = agent.run().steps
    assert step.arguments == {"command": {"$str": 12}}
    assert "make-believe" not in step.failure.message


def test_a_users_file_that_switches_recording_off_is_heeded_by_both_stages(agent):
    file = agent.home / "config" / "mulligan" / "mulligan.toml"
    file.parent.mkdir(parents=True)
    file.write_text('record = "off"\n')
    agent.works("Read", file_path="a")
    agent.fails("Bash", "Exit code 1\nboom", command="make")
    agent.ends()
    assert not (agent.home / "mulligan.db").exists()
    assert list((agent.home / "hooks").iterdir()) == []


def test_a_projects_own_settings_are_not_read(agent, tmp_path, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    (project / "mulligan.toml").write_text('record = "off"\nnonsense = 1\n')
    monkeypatch.chdir(project)
    agent.fails("Bash", "Exit code 1\nboom", command="make")
    assert len(agent.kinds()) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"hook_event_name":"PostToolBatch"}',
        b'{"session_id":"a","hook_event_name":"Stop"}',
        b'{"session_id":"a","hook_event_name":"PostToolBatch","tool_calls":7}',
        b'{"session_id":"a","hook_event_name":"PostToolBatch","tool_calls":[7,{"tool_name":9,"tool_response":[]}]}',
        b'{"session_id":7,"hook_event_name":"PostToolUseFailure"}',
        b'{"session_id":"a/../../b","hook_event_name":"PostToolBatch","tool_calls":[{"tool_name":"B","tool_use_id":"1"}]}',
        b'{"session_id":"..","hook_event_name":"PostToolUseFailure","tool_name":"B","error":"\\ud800"}',
        b'{"session_id":"a","hook_event_name":"PostToolUseFailure","tool_name":"B","tool_input":' + b"[" * 5000,
    ],
)
def test_whatever_is_sent_nothing_is_said_and_nothing_leaves_the_folder(home, data):
    before = set(home.parent.iterdir())
    try:
        said = handle_event("claude-code", data)
    except Exception as error:  # noqa: BLE001 - whatever it is
        session_files.record_internal_error("claude-code", error)  # as main does
        said = b""
    assert said == b""
    assert set(home.parent.iterdir()) == before


def test_very_large_answers_are_no_burden(agent):
    agent.fails("Bash", "Exit code 1\n" + "error: x\n" * 1_000_000, command="make " + "y" * 1_000_000)
    assert len(agent.kinds()) == 1
    assert (agent.home / "mulligan.db").stat().st_size < 1_000_000


def test_a_tool_whose_arguments_speak_of_tools_is_counted_right(agent):
    agent.batch(("mcp__ops__call", {"tool_name": "x", "tool_use_id": "y", "nested": {"tool_name": "z"}}, "fine"))
    agent.ends()
    assert [each.name for each in agent.run().steps] == ["call"]


def test_early_exit_and_settings_agree_on_the_folder(home, monkeypatch):
    from mulligan.settings import hook_folder

    assert session_files.hooks_folder() == str(hook_folder())
    monkeypatch.delenv("MULLIGAN_HOME")
    assert session_files.hooks_folder() == str(hook_folder())
    for platform, variable in (("linux", "XDG_DATA_HOME"), ("darwin", "XDG_DATA_HOME"), ("win32", "LOCALAPPDATA")):
        monkeypatch.setattr("sys.platform", platform)
        monkeypatch.delenv(variable, raising=False)
        assert session_files.hooks_folder() == str(hook_folder())
        monkeypatch.setenv(variable, "/data")
        assert session_files.hooks_folder() == str(hook_folder())


def test_call_that_our_proxy_records_is_only_remembered_for_the_reminder(agent):
    session_files.add_proxied_tool(agent.session, "my crm", "find")
    assert agent.fails("mcp__my_crm__find", "rate limit exceeded", q="x") == ""
    agent.works("mcp__my_crm__find", q="y")
    assert agent.run() is None
    agent.fails("mcp__other__find", "rate limit exceeded", q="x")
    assert agent.kinds() == [("find", "tool/rate_limit")]
    assert agent.compacts().count("tool/rate_limit") == 2


def test_tool_of_another_server_with_a_similar_name_is_recorded_by_the_hook(agent):
    session_files.add_proxied_tool(agent.session, "crm", "find")
    agent.fails("mcp__crm_eu__find", "rate limit exceeded", q="x")
    agent.fails("mcp__crm__find_all", "rate limit exceeded", q="x")
    assert agent.kinds() == [("find", "tool/rate_limit"), ("find_all", "tool/rate_limit")]


def test_proxy_without_the_variables_of_its_agent_is_found_in_the_default_folder(agent, monkeypatch):
    monkeypatch.setenv("HOME", str(agent.home.parent))
    with monkeypatch.context() as patch:
        patch.delenv("MULLIGAN_HOME")
        patch.delenv("XDG_DATA_HOME", raising=False)
        session_files.add_proxied_tool(agent.session, "crm", "find")
    agent.fails("mcp__crm__find", "rate limit exceeded", q="x")
    assert agent.run() is None


def test_call_whose_answer_has_our_block_was_recorded_by_a_proxy(agent):
    block = '{"mulligan":{"error":"tool/rate_limit","message":"[said by find, data only 1] no [end 1]"}}'
    agent.fails("mcp__crm__find", f"rate limit exceeded\n{block}", q="x")
    assert agent.run() is None
    assert "said by find, data only 1]" not in agent.compacts()


def test_proxy_that_has_ended_leaves_the_calls_of_other_sessions_to_the_hook(agent, monkeypatch):
    session_files.add_proxied_tool("another", "crm", "find")
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: 2**22 + 1)  # no process has this number
        session_files.add_proxied_tool("another", "hr", "find")
    agent.works("mcp__crm__find", q="x")
    agent.fails("mcp__hr__find", "rate limit exceeded", q="x")
    assert agent.kinds() == [("find", "tool/rate_limit")]
    assert [step.server for step in agent.run().steps] == ["hr"]
