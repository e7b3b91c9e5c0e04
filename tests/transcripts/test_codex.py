from __future__ import annotations

from session_logs import Codex, read, write


def test_a_rollout_is_a_run_with_its_calls(tmp_path):
    log = Codex()
    path = write(
        tmp_path / "rollout-1.jsonl",
        log.meta(),
        log.user("tidy up"),
        log.line("turn_context", 0, model="gpt-5.6", cwd="/x"),
        log.call("call_1", "exec_command", 1, cmd="ls"),
        log.output("call_1", "Chunk ID: 1\nWall time: 0.1 seconds\nProcess exited with code 0\nOutput:\na.py\n", 2),
    )
    (history,) = read(path)
    assert (history.run.agent, history.run.version, history.run.session) == ("codex", "0.166.0", "019c-77")
    assert history.run.context == "tidy up"
    assert history.run.metadata == {"format": "codex", "model": "gpt-5.6", "project": "shop"}
    assert [(step.name, step.arguments, step.outcome) for step in history.steps] == [
        ("exec_command", {"cmd": "ls"}, "success")
    ]


def test_the_exit_code_of_a_command_comes_from_the_event_that_completes_it(tmp_path):
    log = Codex()
    path = write(
        tmp_path / "r.jsonl",
        log.meta(),
        log.call("call_1", "exec_command", 1, cmd="make"),
        log.ended("call_1", 2, "make: *** [all] Error 2", 2),
        log.output("call_1", "make: *** [all] Error 2", 3),
    )
    (history,) = read(path)
    (step,) = history.steps
    assert step.has_failed
    assert step.duration_seconds == 1.0


def test_or_from_the_frame_around_the_output(tmp_path):
    log = Codex()
    older = '{"output":"sh: nope: command not found","metadata":{"exit_code":127,"duration_seconds":0.1}}'
    path = write(
        tmp_path / "r.jsonl",
        log.meta(),
        log.call("call_1", "exec_command", 1, cmd="nope"),
        log.output("call_1", "Wall time: 0.1 seconds\nProcess exited with code 127\nOutput:\nsh: nope: not found", 2),
        log.call("call_2", "shell", 3, command=["nope"]),
        log.output("call_2", older, 4),
    )
    (history,) = read(path)
    assert [step.failure.kind for step in history.steps if step.failure] == ["tool/command_not_found"] * 2


def test_a_call_that_codex_itself_refuses_has_failed(tmp_path):
    log = Codex()
    path = write(
        tmp_path / "r.jsonl",
        log.meta(),
        log.call("call_1", "nonsense", 1, a=1),
        log.output("call_1", "unsupported call: nonsense", 2),
        log.call("call_2", "exec_command", 3, wrong=1),
        log.output("call_2", "failed to parse function arguments: missing field `cmd` at line 1 column 12", 4),
    )
    (history,) = read(path)
    assert [step.failure.kind for step in history.steps if step.failure] == [
        "tool/unknown_tool",
        "tool/invalid_arguments",
    ]


def test_a_result_of_an_mcp_server_says_itself_whether_it_failed(tmp_path):
    log = Codex()
    result = {"Ok": {"content": [{"type": "text", "text": "issue not found"}], "isError": True}}
    path = write(
        tmp_path / "r.jsonl",
        log.meta(),
        log.call("call_1", "mcp__linear__get_issue", 1, id="A-1"),
        log.line("event_msg", 2, type="mcp_tool_call_end", call_id="call_1", result=result),
    )
    (history,) = read(path)
    (step,) = history.steps
    assert (step.name, step.server, step.has_failed) == ("get_issue", "linear", True)


def test_commands_that_a_script_of_the_model_ran_are_steps_too(tmp_path):
    log = Codex()
    path = write(
        tmp_path / "r.jsonl", log.meta(), log.ended("exec-1", 1, "no", 2, command=["python3", "-m", "unittest"])
    )
    (history,) = read(path)
    (step,) = history.steps
    assert (step.name, step.arguments) == ("shell", {"command": "python3 -m unittest"})
    assert step.has_failed


def test_a_compaction_and_a_lost_connection_to_the_model_are_seen(tmp_path):
    log = Codex()
    path = write(
        tmp_path / "r.jsonl",
        log.meta(),
        log.call("call_1", "exec_command", 1, cmd="ls"),
        log.output("call_1", "ok", 2),
        log.line("compacted", 3, message="so far"),
        log.line(
            "event_msg", 4, type="stream_error", message="stream disconnected before completion: connection reset"
        ),
        log.call("call_2", "exec_command", 9, cmd="ls"),
        log.output("call_2", "ok", 10),
    )
    (history,) = read(path)
    assert len(history.compactions) == 1
    assert [step.type for step in history.steps] == ["tool", "model", "model", "tool"]
    assert len(history.links) == 1


def test_the_copy_of_its_parents_log_in_a_subagents_is_left_out(tmp_path):
    log = Codex()
    meta = log.line("session_meta", 0, id="child", subagent_history_start_ordinal=3)
    entries = [
        {**meta, "ordinal": 0},
        {**log.call("call_1", "exec_command", 1, cmd="parents"), "ordinal": 1},
        {**log.output("call_1", "ok", 2), "ordinal": 2},
        {**log.call("call_2", "exec_command", 3, cmd="own"), "ordinal": 3},
        {**log.output("call_2", "ok", 4), "ordinal": 4},
    ]
    (history,) = read(write(tmp_path / "r.jsonl", *entries))
    assert [step.arguments for step in history.steps] == [{"cmd": "own"}]


def test_rollouts_of_the_first_versions_have_the_items_bare(tmp_path):
    path = write(
        tmp_path / "r.jsonl",
        {"id": "old", "timestamp": "2025-06-01T10:00:00Z", "instructions": None},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "function_call", "name": "shell", "arguments": '{"command":["false"]}', "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": '{"output":"","metadata":{"exit_code":1}}'},
    )
    (history,) = read(path)
    assert history.run.session == "old"
    assert [step.outcome for step in history.steps] == ["failure"]
