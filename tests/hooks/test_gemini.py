"""What Gemini CLI tells its hooks. After a compaction it asks for nothing: the next thing that is said will do."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def gemini(another):
    return another(name="gemini", session="gem-1")


def after(gemini, tool: str, response: Any, **arguments: Any) -> str:
    return gemini.says("AfterTool", tool_name=tool, tool_input=arguments, tool_response=response)


FAILS = {"llmContent": "Error: File not found: /src/shop/b.py", "error": {"message": "File not found: /src/shop/b.py"}}
SHELL = {
    "llmContent": "<untrusted_context>\nOutput: make: *** [x] Error 2  Stop.\nExit Code: 2\n"
    "Process Group PGID: 17630\n</untrusted_context>",
    "returnDisplay": "make: *** [x] Error 2  Stop.",
}


def test_a_response_with_an_error_is_a_failure(gemini):
    after(gemini, "write_file", {"llmContent": "done"}, path="a")
    after(gemini, "replace", FAILS, file_path="b.py")
    assert gemini.kinds() == [("replace", "tool/file_not_found")]
    assert len(gemini.run().steps) == 2


def test_a_shell_tells_its_exit_code_in_its_words(gemini):
    after(gemini, "run_shell_command", {"llmContent": "Command: true\nExit Code: 0\n"}, command="true")
    after(gemini, "run_shell_command", SHELL, command="make x")
    assert gemini.kinds() == [("run_shell_command", "tool/build_failure")]


def test_a_file_that_contains_the_output_of_a_failed_command_is_no_failure(gemini):
    assert after(gemini, "read_file", {"llmContent": SHELL["llmContent"]}, path="build.log") == ""
    after(gemini, "run_shell_command", SHELL, command="make x")
    assert gemini.kinds() == [("run_shell_command", "tool/build_failure")]


def test_the_reminder_goes_with_the_next_prompt_once(gemini):
    assert after(gemini, "run_shell_command", SHELL, command="make x") == ""
    assert gemini.says("BeforeAgent", prompt="go on") == ""
    assert gemini.tells("PreCompress", trigger="manual") is None
    assert gemini.tells("PreCompress", trigger="manual") is None
    assert "Recent failures" in gemini.says("BeforeAgent", prompt="go on")
    assert gemini.says("BeforeAgent", prompt="and on") == ""


def test_or_with_the_next_result(gemini):
    after(gemini, "run_shell_command", SHELL, command="make x")
    gemini.tells("PreCompress", trigger="manual")
    assert "Recent failures" in after(gemini, "read_file", {"llmContent": "text"}, path="a")
    assert after(gemini, "read_file", {"llmContent": "text"}, path="a") == ""


def test_that_it_may_compress_by_itself_is_told_before_each_call_and_its_log_says_whether_it_has(gemini):
    after(gemini, "run_shell_command", SHELL, command="make x")
    gemini.tells("PreCompress", trigger="auto")
    gemini.log.write_text('{"type":"user","content":[{"text":"sell tea"}]}\n')
    gemini.tells("PreCompress", trigger="auto")
    assert gemini.says("BeforeAgent", prompt="go on") == ""
    with gemini.log.open("a") as log:
        log.write('{"$set":{"messages":[{"type":"user","content":[{"text":"<state_snapshot>so far"}]}]}}\n')
    gemini.tells("PreCompress", trigger="auto")
    assert "Recent failures" in gemini.says("BeforeAgent", prompt="go on")
    gemini.tells("PreCompress", trigger="auto")
    assert gemini.says("BeforeAgent", prompt="and on") == ""
    gemini.ends()
    assert list((gemini.home / "hooks").iterdir()) == []


def test_nothing_is_said_when_nothing_failed(gemini):
    after(gemini, "read_file", {"llmContent": "text"}, path="a")
    gemini.tells("PreCompress", trigger="manual")
    assert gemini.says("BeforeAgent", prompt="go on") == ""
