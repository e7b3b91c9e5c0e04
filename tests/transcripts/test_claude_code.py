from __future__ import annotations

from session_logs import ClaudeCode, read, write

from mulligan.transcripts.run_builder import ReaderState

STALE = "<tool_use_error>File has not been read yet. Read it first before writing to it.</tool_use_error>"
REFUSED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, "
    "the new_string was NOT written to the file). STOP what you are doing and wait for the user to tell you how to "
    "proceed."
)


def test_a_session_is_a_run_with_its_calls_their_times_and_what_the_user_asked_for(tmp_path):
    log = ClaudeCode()
    path = write(
        tmp_path / "5e55-10.jsonl",
        log.user("make the tests pass"),
        log.call("toolu_1", "Bash", 1, command="make test"),
        log.result("toolu_1", "ok", 3.5),
    )
    (history,) = read(path)
    assert history.run.agent == "claude-code"
    assert history.run.version == "2.1.325"
    assert history.run.session == "5e55-10"
    assert history.run.context == "make the tests pass"
    assert history.run.metadata == {"format": "claude-code", "model": "claude-opus-4-5", "project": "shop"}
    (step,) = history.steps
    assert (step.name, step.arguments, step.outcome, step.duration_seconds) == (
        "Bash",
        {"command": "make test"},
        "success",
        2.5,
    )


def test_what_is_flagged_has_failed_and_is_linked_to_what_overcame_it(tmp_path):
    log = ClaudeCode()
    edit = {"file_path": "/a/b.py", "old_string": "x", "new_string": "y"}
    path = write(
        tmp_path / "s.jsonl",
        log.call("toolu_1", "Edit", 1, **edit),
        log.result("toolu_1", STALE, 2, is_error=True),
        log.call("toolu_2", "Read", 3, file_path="/a/b.py"),
        log.result("toolu_2", [{"type": "text", "text": "1  x"}], 4),
        log.call("toolu_3", "Edit", 5, **edit),
        log.result("toolu_3", "done", 6),
    )
    (history,) = read(path)
    assert [step.outcome for step in history.steps] == ["failure", "success", "success"]
    failure = history.steps[0].failure
    assert failure is not None
    assert failure.kind == "tool/stale_file"
    assert failure.fingerprint
    (link,) = history.links
    assert (link.failed_call, link.recovering_call, link.method, link.intermediate_tools) == (
        1,
        3,
        "prerequisite",
        ("Read",),
    )


def test_a_refusal_by_the_user_is_recorded_as_one_and_is_no_failure(tmp_path):
    log = ClaudeCode()
    path = write(
        tmp_path / "s.jsonl",
        log.call("toolu_1", "Bash", 1, command="rm -r build"),
        log.result("toolu_1", REFUSED, 2, is_error=True),
    )
    (history,) = read(path)
    (step,) = history.steps
    assert step.outcome == "blocked"
    assert not step.has_failed


def test_words_about_errors_in_an_answer_that_is_not_flagged_are_no_failure(tmp_path):
    log = ClaudeCode()
    path = write(
        tmp_path / "s.jsonl",
        log.call("toolu_1", "Read", 1, file_path="/notes.md"),
        log.result("toolu_1", "Error: this is a quotation", 2),
    )
    (history,) = read(path)
    assert history.steps[0].outcome == "success"


def test_a_compaction_is_kept_with_its_moment(tmp_path):
    log = ClaudeCode()
    path = write(
        tmp_path / "s.jsonl",
        log.call("toolu_1", "Bash", 1, command="a"),
        log.result("toolu_1", "ok", 2),
        log.compaction(60),
        log.compaction(60),
        log.call("toolu_2", "Bash", 61, command="b"),
        log.result("toolu_2", "ok", 62),
    )
    (history,) = read(path)
    (compaction,) = history.compactions
    assert compaction.at == history.steps[0].started_at + 59_000
    assert (compaction.reason, compaction.tokens_before) == ("auto", 155_000)


def test_an_error_of_the_model_is_a_failed_model_call_which_its_next_answer_overcomes(tmp_path):
    log = ClaudeCode()
    path = write(
        tmp_path / "s.jsonl",
        log.user("hello"),
        log.api_error('API Error: 529 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', 1),
        log.says("here I am", 9),
        log.says("and still am", 10),
    )
    (history,) = read(path)
    assert [(step.type, step.outcome) for step in history.steps] == [("model", "failure"), ("model", "success")]
    failure = history.steps[0].failure
    assert failure is not None
    assert failure.kind == "model/unavailable"
    assert [link.method for link in history.links] == ["retry"]


def test_a_tool_of_an_mcp_server_has_its_own_name_and_its_servers(tmp_path):
    log = ClaudeCode()
    path = write(
        tmp_path / "s.jsonl", log.call("toolu_1", "mcp__linear__get_issue", 1, id="A-1"), log.result("toolu_1", "{}", 2)
    )
    (history,) = read(path)
    assert (history.steps[0].name, history.steps[0].server) == ("get_issue", "linear")


def test_a_subagent_is_a_run_of_its_own_that_names_its_parent(tmp_path):
    main, side = ClaudeCode(), ClaudeCode(isSidechain=True, agentId="a77")
    path = write(
        tmp_path / "s.jsonl",
        main.call("toolu_1", "Task", 1, prompt="look"),
        side.call("toolu_2", "Grep", 2, pattern="x"),
        side.result("toolu_2", "nothing", 3),
        main.result("toolu_1", "found", 4),
    )
    parent, child = read(path)
    assert child.run.parent == parent.run.id
    assert (parent.run.session, child.run.session) == ("5e55-10", "5e55-10")
    assert [step.name for step in child.steps] == ["Grep"]


def test_the_copy_that_a_resumed_session_makes_of_its_log_is_not_counted_twice(tmp_path):
    reading = ReaderState()
    first, second = ClaudeCode("one"), ClaudeCode("two")

    def entries(log: ClaudeCode) -> list[object]:
        return [log.call("toolu_1", "Bash", 1, command="a"), log.result("toolu_1", "ok", 2)]

    read(write(tmp_path / "one.jsonl", *entries(first)), reading)
    more = [second.call("toolu_2", "Bash", 3, command="b"), second.result("toolu_2", "ok", 4)]
    (history,) = read(write(tmp_path / "two.jsonl", *entries(second), *more), reading)
    assert [step.arguments for step in history.steps] == [{"command": "b"}]


def test_a_call_without_an_answer_is_no_step_and_its_number_is_kept_for_it(tmp_path):
    log = ClaudeCode()
    entries = [
        log.call("toolu_1", "Bash", 1, command="a"),
        log.call("toolu_2", "Bash", 1, command="b"),
        log.result("toolu_2", "ok", 2),
    ]
    (history,) = read(write(tmp_path / "s.jsonl", *entries))
    assert [step.seq for step in history.steps] == [2]
    assert history.run.metadata is not None
    assert history.run.metadata["unanswered"] == 1
    (later,) = read(write(tmp_path / "s.jsonl", *entries, log.result("toolu_1", "late", 9)))
    assert [step.seq for step in later.steps] == [1, 2]
    assert later.run.id == history.run.id


def test_the_same_log_gives_the_same_run_wherever_it_lies(tmp_path):
    log = ClaudeCode()
    entries = [log.call("toolu_1", "Bash", 1, command="a"), log.result("toolu_1", "ok", 2)]
    (one,) = read(write(tmp_path / "a.jsonl", *entries))
    (other,) = read(write(tmp_path / "b.jsonl", *entries))
    assert one == other
    assert one.run.id.startswith("run_")
    assert len(one.run.id) == 20


def test_thousands_of_sessions_in_one_file_are_read_without_holding_them_all(tmp_path):
    entries: list[object] = []
    for number in range(200):
        log = ClaudeCode(f"s{number}")
        entries += [log.call(f"toolu_{number}", "Bash", 1, command="a"), log.result(f"toolu_{number}", "ok", 2)]
    assert len(read(write(tmp_path / "s.jsonl", *entries))) == 200


def test_unflagged_output_that_looks_like_a_failure_is_suspected_and_a_file_is_believed(tmp_path):
    log = ClaudeCode()
    path = write(
        tmp_path / "s.jsonl",
        log.call("toolu_1", "Bash", 1, command="kubectl get pods | head"),
        log.result("toolu_1", "bash: kubectl: command not found", 2),
        log.call("toolu_2", "Read", 3, file_path="/a/app.log"),
        log.result("toolu_2", "Error: connection refused", 4),
    )
    (history,) = read(path)
    assert [step.outcome for step in history.steps] == ["success", "success"]
    suspected, content = (step.suspected for step in history.steps)
    assert content is None
    assert suspected is not None
    assert (suspected.kind, suspected.sentence) == ("tool/command_not_found", "bash: kubectl: command not found")
    assert not history.links
