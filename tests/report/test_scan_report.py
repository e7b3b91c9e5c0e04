from __future__ import annotations

from session_logs import ClaudeCode, find_failures, read, write

from mulligan.core.kinds import KINDS
from mulligan.core.records import Change, History, Link, Run, Step
from mulligan.redaction import Redactor
from mulligan.report import scan_text
from mulligan.report.scan_report import Findings, LogScan
from mulligan.report.spirals import describe_recovery

MISSING = "File does not exist. Note: your current working directory is /home/ada/shop."
UNSUPPORTED = "This type of file is not supported."
REFUSED = "The user doesn't want to proceed with this tool use. The tool use was rejected."
SIBLING = "<tool_use_error>Cancelled: parallel tool call Bash(make) errored</tool_use_error>"


def found(tmp_path, *entries) -> Findings:
    return find_failures(read(write(tmp_path / "s.jsonl", *entries)))


def failing(log: ClaudeCode, id: str, second: float, text: str = MISSING, name: str = "Read", **input) -> list[object]:
    input = input or {"file_path": "/home/ada/shop/a.py"}
    return [log.call(id, name, second, **input), log.result(id, text, second + 1, is_error=True)]


def working(log: ClaudeCode, id: str, second: float, name: str = "Read", **input) -> list[object]:
    return [log.call(id, name, second, **input or {"file_path": "/b.py"}), log.result(id, "ok", second + 1)]


def test_failures_are_counted_by_kind_tool_and_pattern_with_what_overcame_them(tmp_path):
    log = ClaudeCode()
    result = found(
        tmp_path,
        *failing(log, "toolu_1", 0, UNSUPPORTED, file_path="/home/ada/shop/main.pyc", limit=100),
        *working(log, "toolu_2", 10, file_path="/home/ada/shop/main.py", limit=100),
        *failing(log, "toolu_3", 20, UNSUPPORTED, file_path="/elsewhere/entirely"),
    )
    assert (result.sessions, result.calls, result.failures, result.recovered) == (1, 3, 2, 1)
    (kind,) = result.kinds
    assert (kind.kind, kind.failures, kind.recovered, kind.tool) == ("tool/invalid_arguments", 2, 1, "Read")
    (pattern,) = result.patterns
    assert (pattern.failures, pattern.sessions, pattern.recovered) == (2, 1, 1)
    (one,) = result.fixes
    assert (one.action, one.successes, one.failures) == ("different file_path", 1, 2)
    assert (one.before, one.after) == ("/home/ada/shop/main.pyc", "/home/ada/shop/main.py")


def test_what_the_user_refused_and_what_fell_with_a_sibling_are_not_failures(tmp_path):
    log = ClaudeCode()
    result = found(
        tmp_path,
        *failing(log, "toolu_1", 0, REFUSED),
        *failing(log, "toolu_2", 5, SIBLING),
        *working(log, "toolu_3", 9),
    )
    assert (result.failures, result.user_rejected, result.cancelled) == (0, 1, 1)
    assert scan_text.summarize_findings(result) == "None of 3 calls in 1 session failed."


def test_the_same_failure_again_after_a_compaction_is_told(tmp_path):
    log = ClaudeCode()
    result = found(
        tmp_path,
        *failing(log, "toolu_1", 0),
        log.compaction(100),
        *failing(log, "toolu_2", 110),
        *failing(log, "toolu_3", 120, "sh: mak: command not found", "Bash", command="mak"),
    )
    assert (result.compacted_sessions, result.repeats_after_compaction) == (1, 1)
    assert result.patterns[0].repeats_after_compaction + result.patterns[1].repeats_after_compaction == 1
    assert result.before_compaction == (1, 1)
    assert result.after_compaction == (2, 2)
    assert "1 repeated after a compaction" in scan_text.summarize_findings(result)


def test_time_in_failing_is_the_failed_calls_and_the_thinking_after_them_but_no_pauses(tmp_path):
    log = ClaudeCode()
    result = found(
        tmp_path,
        *failing(log, "toolu_1", 0),  # 1 s, and 9 s until the next call
        *working(log, "toolu_2", 10),
        *failing(log, "toolu_3", 20),  # 1 s, and then somebody was away for ten minutes
        *working(log, "toolu_4", 621),
    )
    assert result.failure_seconds == 11.0


def test_calls_made_at_the_same_time_cost_their_time_once(tmp_path):
    log = ClaudeCode()
    both = [log.call("toolu_1", "Read", 0, file_path="/a"), log.call("toolu_2", "Read", 0, file_path="/b")]
    ends = [log.result("toolu_1", MISSING, 4, is_error=True), log.result("toolu_2", MISSING, 4, is_error=True)]
    assert found(tmp_path, *both, *ends).failure_seconds == 4.0


def test_the_same_failure_again_and_again_is_a_spiral_until_it_is_overcome(tmp_path):
    log = ClaudeCode()
    entries: list[object] = []
    for n in range(4):
        entries += failing(log, f"toolu_{n}", n * 10, "String to replace not found in file.", "Edit",
                           file_path="/a.py", old_string=f"try {n}", new_string="b")  # fmt: skip
        entries += working(log, f"toolu_r{n}", n * 10 + 5, file_path="/a.py")
    entries += working(log, "toolu_end", 90, "Edit", file_path="/a.py", old_string="  try 3", new_string="b")
    (spiral,) = found(tmp_path, *entries).spirals
    assert (spiral.failures, spiral.tool, spiral.kind) == (4, "Edit", "tool/edit_mismatch")
    assert spiral.duration_seconds == 31.0
    assert (spiral.project, spiral.recovered_by) == ("shop", "different old_string")


def test_calls_made_at_once_that_fail_alike_are_no_spiral(tmp_path):
    log = ClaudeCode()
    asked = [log.call(f"toolu_{n}", "Read", 0, file_path="/a") for n in range(5)]
    answers = [log.result(f"toolu_{n}", MISSING, 2, is_error=True) for n in range(5)]
    assert found(tmp_path, *asked, *answers).spirals == ()


def test_a_test_that_fails_in_another_way_each_time_is_progress_and_no_spiral(tmp_path):
    log = ClaudeCode()
    entries: list[object] = []
    for n, name in enumerate(("alpha", "beta", "gamma")):
        text = f"Exit code 1\nFAILED tests/test_{name}.py::test_{name} - AssertionError: {name} is wrong"
        entries += failing(log, f"toolu_{n}", n * 10, text, "Bash", command="pytest")
    result = found(tmp_path, *entries)
    assert result.kinds[0].kind == "tool/test_failure"
    assert result.spirals == ()


def link(how: str, *changes: Change, between: tuple[str, ...] = ()) -> Link:
    return Link(run="r", failed_call=1, recovering_call=2, method=how, changes=changes, intermediate_tools=between)  # type: ignore[arg-type]


def test_what_helped_is_told_without_values_and_without_what_is_beside_the_point():
    command = Change(path="command", operation="substitute", before="a", after="b")
    comment = Change(path="description", operation="substitute", before="run", after="run again")
    assert describe_recovery(link("retry")) == "retry of the same call"
    assert describe_recovery(link("prerequisite", between=("Read",)), KINDS["tool/stale_file"]) == "Read first"
    assert (
        describe_recovery(link("agent", comment, between=("Grep", "Edit")), KINDS["tool/build_failure"]) == "Edit first"
    )
    assert (
        describe_recovery(link("agent", command, comment, between=("Edit",)), KINDS["tool/test_failure"])
        == "Edit first, then different command"
    )
    assert describe_recovery(link("agent", command, comment)) == "different command"
    assert describe_recovery(link("agent", Change(path="x", operation="drop", before=1))) == "without x"
    assert (
        describe_recovery(link("agent", Change(path="top_k", operation="rename", before="top_k", after="topK")))
        == "top_k renamed to topK"
    )
    assert describe_recovery(link("prerequisite", between=tuple("abcd"))) == "4 other tools first"


def test_secrets_are_gone_from_everything_that_is_found(tmp_path):
    log = ClaudeCode()
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    entries: list[object] = []
    for n in range(3):
        text = f"fatal: could not read from https://x:{secret}@github.com/a/b.git"
        entries += failing(log, f"toolu_{n}", n * 10, text, f"Bash {secret}", command=f"git push {secret}")
    result = found(tmp_path, *entries, *working(log, "toolu_9", 40, f"Bash {secret}", command=f"git push {secret} x"))
    assert result.spirals
    assert secret not in repr(result)
    assert "\n".join(scan_text.render_findings(result)).count(secret) == 0


def test_escape_sequences_do_not_reach_a_terminal(tmp_path):
    log = ClaudeCode()
    entries = failing(log, "toolu_1", 0, "\x1b]0;owned\x07 not found \x1b[31m", "Bad\x1b[2J", command="\x1b[1m")
    told = "\n".join(scan_text.render_findings(found(tmp_path, *entries)))
    assert "\x1b" not in told
    assert "\x07" not in told


def test_memory_does_not_grow_with_what_strangers_call_their_tools():
    scan = LogScan()
    for number in range(6_000):
        run = f"run_{number}"
        step = Step(run=run, seq=1, call=1, name=f"tool{number}", started_at=1_772_000_000_000)
        scan.add(History(run=Run(id=run, agent=f"agent{number}", started_at=1), steps=(step,)))
    result = scan.build_findings(Redactor())
    assert result.calls == 6_000
    assert len(result.tools) == 20
    assert len(scan._tools) <= 5_001


def test_nothing_is_a_good_answer_too():
    result = find_failures([])
    assert list(scan_text.render_findings(result)) == ["No tool calls found."]
