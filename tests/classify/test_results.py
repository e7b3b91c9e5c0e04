"""One sentence from any envelope, program output without its frame, and results that are errors."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.classify.classifier import classify
from mulligan.classify.results import (
    MAX_MESSAGE_CHARS,
    append_reasons,
    is_error_result,
    scan_pairs,
    strip_frame,
    unwrap_text,
)
from mulligan.core.failure import TookEffect

SENTENCE = "The date must be in the future."


@pytest.mark.parametrize(
    "text",
    [
        SENTENCE,
        json.dumps({"error": SENTENCE}),
        json.dumps({"error": {"message": SENTENCE, "code": 17}}),
        json.dumps({"message": json.dumps({"error": {"message": SENTENCE}})}),
        json.dumps({"detail": json.dumps({"message": json.dumps({"message": SENTENCE})})}),
        str({"error": {"message": SENTENCE, "param": None}}),
        f"Error code: 400 - {{'error': {{'message': '{SENTENCE}', 'type': None}}}}",
        f"BadRequestError: SomeException - {SENTENCE}",
        f"\x1b[31mError:\x1b[0m {SENTENCE}",
        f"Exit code 1\n\n{SENTENCE}",
        f"<tool_use_error>{SENTENCE}</tool_use_error>",
        f"<html><head><title>{SENTENCE}</title></head><body><p>nginx</p></body></html>",
        f'<?xml version="1.0"?><Error><Code>BadDate</Code><Message>{SENTENCE}</Message></Error>',
        f'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: {SENTENCE}',
        json.dumps({"error": SENTENCE, "more": "x" * 500})[:-200],
    ],
    ids=range(15),
)
def test_the_sentence_is_found(text: str) -> None:
    assert unwrap_text(text).sentence == SENTENCE


def test_the_rest_is_kept_as_detail() -> None:
    text = json.dumps({"error": {"message": SENTENCE}, "request_id": "req_1"})
    failure = classify(text, tool="book")
    assert failure.message == SENTENCE
    assert "req_1" in failure.detail


def test_a_long_sentence_is_cut_where_a_sentence_ends() -> None:
    text = "It failed for a reason. " * 40
    said = unwrap_text(text).sentence
    assert len(said) <= MAX_MESSAGE_CHARS
    assert said.endswith("reason.")


def test_of_a_build_the_first_error_is_the_message() -> None:
    text = "# example.org/a\n./a.go:4:2: undefined: frob\n./a.go:9:2: undefined: nicate"
    assert classify(text, tool="Bash").message == "./a.go:4:2: undefined: frob"


def test_of_a_program_the_line_that_says_why_is_the_message() -> None:
    text = "Exit code 2\nReading notes\nls: cannot access 'notes': No such file or directory\ndone"
    assert classify(text, tool="Bash").message == "ls: cannot access 'notes': No such file or directory"


@given(
    st.recursive(
        st.text(max_size=30), lambda inner: st.dictionaries(st.sampled_from(["message", "error", "code"]), inner)
    )
)
def test_pairs_of_any_json_are_read_without_error(value: object) -> None:
    assert len(scan_pairs(json.dumps(value))) <= 200


@given(st.text(max_size=500))
def test_no_control_mark_survives(text: str) -> None:
    said = unwrap_text(f"\x1b[1m{text}").sentence
    assert "\x1b" not in said
    assert "\x00" not in said


SAID = "mkdir: cannot create directory 'build': File exists"

FRAMES = {
    "first line": f"Exit code 1\n{SAID}",
    "wall time": f"Exit code: 1\nWall time: 0.2 seconds\nOutput:\n{SAID}",
    "named fields": (
        f"Command: timeout 5 mkdir build\nDirectory: (root)\nOutput: {SAID}\nError: (none)\nExit Code: 1\n"
        "Signal: (none)\nBackground PIDs: (none)\nProcess Group PGID: 811"
    ),
    "closing lines": (
        f"{SAID}\n[The command completed with exit code 1.]\n[Current working directory: /w]\n"
        "[Command finished with exit code 1]"
    ),
}


@pytest.mark.parametrize("text", FRAMES.values(), ids=FRAMES)
def test_the_same_output_is_the_same_failure_in_every_agents_frame(text: str) -> None:
    failure = classify(text=text, tool="shell")
    assert (failure.kind, failure.took_effect) == ("tool/execution_failed", TookEffect.YES)
    assert failure.message == SAID


def test_the_frames_words_are_not_the_programs() -> None:
    text = "Command: timeout 5 make\nDirectory: (root)\nOutput: nothing to say\nExit Code: 3"
    assert strip_frame(text) == ("nothing to say", 3)
    assert classify(text=text, tool="run_shell_command").kind == "tool/execution_failed"


def test_output_and_exit_code_are_read_from_an_object() -> None:
    text = '{"output": "--- FAIL: TestX (0.00s)\\nFAIL\\n", "metadata": {"exit_code": 1, "duration_seconds": 0.4}}'
    assert strip_frame(text) == ("--- FAIL: TestX (0.00s)\nFAIL\n", 1)
    assert classify(text=text, tool="shell").kind == "tool/test_failure"
    for other in (
        '{"exit": "north"}',
        '{"exit_code": 1}',
        '{"exit_code": 1, "output": [',
        '{"output": "a", "exits": 2}',
    ):
        assert strip_frame(other) == (other, None)


def test_a_text_without_a_frame_is_left_alone() -> None:
    assert strip_frame("The order 17 does not exist.") == ("The order 17 does not exist.", None)


@pytest.mark.parametrize("tool", ["Bash", "run_shell_command", "execute_bash", "terminal"])
def test_what_a_shell_hands_back_is_a_programs_output_even_without_an_exit_code(tool: str) -> None:
    assert classify(text="cp: missing destination file operand after 'a'", tool=tool).kind == "tool/execution_failed"
    assert classify(text="cat: a.txt: No such file or directory", tool=tool).kind == "tool/file_not_found"


def test_a_call_the_shell_tool_refused_is_about_the_call() -> None:
    text = "InputValidationError: Bash failed due to the following issue:\nThe required parameter `command` is missing"
    assert classify(text=text, tool="Bash").kind == "tool/invalid_arguments"
    assert classify(text="Unknown tool: bash_tool", tool="bash_tool").kind == "tool/unknown_tool"


@pytest.mark.parametrize(
    "said",
    [
        "fatal: 'origin' does not appear to be a git repository\nfatal: Could not read from remote repository.",
        "error: remote upstream already exists.",
        "E: Unable to locate package frobnicate",
        'Error: in prepare, near "selec": syntax error',
        "usage: tool [-h]\ntool: error: argument --n: invalid int value: 'x'",
        "bash: line 1: HOME_DIR: unbound variable",
        "timeout: invalid time interval 'abc'",
    ],
)
def test_a_programs_own_affairs_say_nothing_about_the_call(said: str) -> None:
    assert classify(text=f"Exit code 127\n{said}" if "unbound" in said else f"Exit code 2\n{said}").kind == (
        "tool/execution_failed"
    )


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("error: couldn't read `a.rs`: No such file or directory (os error 2)", "tool/file_not_found"),
        ("gcc: fatal error: no input files\ncompilation terminated.", "tool/execution_failed"),
        ("a.c:1:10: fatal error: a.h: No such file or directory\ncompilation terminated.", "tool/build_failure"),
        ("rules.mk:2: *** missing separator.  Stop.", "tool/build_failure"),
        ("error: no matching package named `frob` found\nlocation searched: crates.io index", "tool/build_failure"),
        ("go: go.mod file not found in current directory or any parent directory", "tool/build_failure"),
        ("lua: a.lua:1: unexpected symbol near '='", "tool/build_failure"),
        (
            "In a.sh line 2:\necho $x\n     ^-- SC2154 (warning): x is referenced but not assigned.",
            "tool/build_failure",
        ),
        ("Can't locate Frob.pm in @INC\nBEGIN failed--compilation aborted at -e line 1.", "tool/execution_failed"),
        ("mount: /mnt: must be superuser to use mount.", "tool/permission_denied"),
    ],
)
def test_a_source_that_is_missing_is_not_a_source_that_does_not_compile(said: str, kind: str) -> None:
    assert classify(text=f"Exit code 1\n{said}", tool="Bash").kind == kind


def test_a_timeout_that_cancelled_something_is_a_timeout() -> None:
    text = (
        "Exit code 1\nTraceback (most recent call last):\nasyncio.exceptions.CancelledError\n\nThe above exception was "
        "the direct cause of the following exception:\n\nTraceback (most recent call last):\nTimeoutError"
    )
    assert classify(text=text, tool="Bash").kind == "tool/timeout"


FAILED = [
    "Error: no such order",
    "Error executing tool search: top_k must be 10 or less",
    "ValueError: top_k must be 10 or less",
    "Traceback (most recent call last):\n  File ...",
    '{"error": "No such user."}',
    '{"success": false, "message": "No such user."}',
    {"error": {"code": 5, "message": "no"}},
    {"isError": True, "content": []},
    {"content": [{"type": "text", "text": "Error: no such order"}]},
    {"data": None, "errors": [{"message": "no"}]},
    {"returncode": 2, "stderr": "no"},
    SimpleNamespace(isError=True, content=[]),
    SimpleNamespace(status_code=503, headers={}),
    "<tool_use_error>no</tool_use_error>",
    {"error": True, "message": "no such order"},
    {"error": True, "code": "NOT_FOUND", "message": "no", "hint": "List them first.", "recoverable": True},
    '{"error": true, "message": "no such order"}',
    {"statusCode": 500},
    {"status": 404},
    {"status": 404, "title": "Not Found", "detail": "No such order", "instance": "/orders/7"},
    {"ok": False, "status": 502, "statusText": "Bad Gateway", "url": "https://shop.example"},
    {"detail": "Not Found"},
    {"detail": [{"loc": ["body", "number"], "msg": "Field required", "type": "missing"}]},
    {"message": "Internal server error"},
    {"success": False},
    {"ok": False},
    {"status": "fail", "data": {"number": "must be positive"}},
    {"errors": [{"message": "no such field"}]},
    {"code": 5, "message": "order 7 is not here", "details": []},
    {"errorMessage": "no", "errorType": "ValueError"},
    {"exitCode": 2, "stdout": "", "stderr": "no"},
    "Failed to connect to localhost:5432",
    "Database error: no such table: orders",
    "API error: 500",
    "GitHub API request failed: 404 Not Found",
    "Error searching for orders: fetch failed",
    "Could not open the file: it is locked",
    "Method Not Allowed",
    "404: Not Found",
    "<html><head><title>502 Bad Gateway</title></head></html>",
]

WORKED = [
    "API error: 500 documents found",
    "last API error: 500",
    None,
    "",
    "Done.",
    "Errors are values. A document about error handling: ...",
    "The log holds 3 lines with Error: in them",
    '{"error": null, "result": 4}',
    '{"error": false}',
    '{"errors": [], "data": {"x": 1}}',
    {"data": {"x": 1}, "errors": [{"message": "one field is old"}]},
    {"status": "failed", "order": 4},
    {"id": 4, "status": "failed", "error": "disk full", "finished_at": "2026-11-16"},
    {"status": "failed"},
    {"status": 200},
    {"url": "https://shop.example", "status": 404},
    {"statusCode": 200, "body": "Not Found"},
    {"success": False, "question": 3},
    {"trials": [{"success": False}]},
    {"city": "Oslo", "code": 500},
    {"code": 404, "phrase": "Not Found"},
    {"code": 500, "description": "light snow"},
    {"code": 415, "title": "San Francisco"},
    {"title": "500 Days of Summer", "type": "film"},
    {"title": "500 Internal Server Error explained", "description": "A page for beginners."},
    {"error": "none", "total": 4},
    {"error": "No error.", "total": 4},
    {"errors": {"a.py": 2, "b.py": 0}},
    {"error": {"type": "string", "description": "What went wrong."}},
    {"sensor": 4, "error": True},
    {"total": 9, "success": 7, "error": 2},
    {"mean": 4.5, "error": 0.02},
    {"detail": "Your password was changed."},
    {"message": "Cleared 4 failed jobs."},
    {"valid": False, "errors": ["line 3: no closing quote"]},
    {"container": "web", "state": "exited", "exit_code": 1},
    {"error": False, "message": "Saved."},
    "Failed to connect? Five things to check\n\n1. The name of the host",
    "Failed to connect is what the radio says.\n" * 40,
    "Failed logins: 4",
    "Error handling: a guide",
    "ERROR: disk full\nINFO: retried\nINFO: done",
    "<html><head><title>404 Not Found: how to write a good page</title></head></html>",
    {"content": [{"type": "text", "text": "42"}]},
    SimpleNamespace(status_code=200, headers={}),
    [],
    404,
]


@pytest.mark.parametrize("result", FAILED, ids=repr)
def test_a_result_that_says_error_is_a_failure(result: object) -> None:
    assert is_error_result(result)


@pytest.mark.parametrize("result", WORKED, ids=repr)
def test_a_result_that_does_not_is_none(result: object) -> None:
    assert not is_error_result(result)


class EndlessRow(Mapping[str, object]):
    """A row of a wide table, whose columns are read one at a time."""

    def __init__(self, **fields: object) -> None:
        self.fields, self.read_count = fields, 0

    def __getitem__(self, name: str) -> object:
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        for number in itertools.count():
            self.read_count += 1
            assert self.read_count < 1000
            yield f"column {number}"

    def __len__(self) -> int:
        return sys.maxsize


@pytest.mark.parametrize(
    "fields",
    [
        {"error": "disk full"},
        {"error": True},
        {"status": "error", "message": "disk full"},
        {"success": False, "message": "disk full"},
    ],
    ids=str,
)
def test_the_size_of_a_result_does_not_matter(fields: dict[str, object]) -> None:
    for row in (EndlessRow(**fields), EndlessRow(error=EndlessRow(**fields))):
        is_error_result(row)
        assert row.read_count < 200
    assert is_error_result(EndlessRow(error="disk full"))


def test_the_flag_is_believed() -> None:
    assert is_error_result({"isError": True, "content": [{"type": "text", "text": "Done."}]})


def test_a_process_is_judged_by_its_exit_code() -> None:
    assert is_error_result(subprocess.run([sys.executable, "-I", "-c", "raise SystemExit(3)"], check=False))
    assert not is_error_result(subprocess.run([sys.executable, "-I", "-c", ""], check=False))


@given(st.text() | st.binary() | st.dictionaries(st.text(), st.text() | st.none()))
def test_any_result_gets_an_answer(result: object) -> None:
    assert is_error_result(result) in (True, False)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"error": {"message": "column "total" does not exist"}}', 'column "total" does not exist'),
        ('{"error": "{"code": "NOT_FOUND", "message": "no such document"}"}', "no such document"),
        ('{"message": "said: {"error": {"code": 429, "message": "Too many requests"}}", "id": 7}', "Too many requests"),
    ],
)
def test_unescaped_quotes_inside_a_message_do_not_cut_it(text: str, sentence: str) -> None:
    assert unwrap_text(text).sentence == sentence


def test_pydantic_error_names_the_arguments_and_the_reasons_without_the_values():
    reason = "Input should be less than or equal to 10 [type=less_than_equal, input_value={}, input_type=int]"
    listed = [f"{name}\n  {reason.format(91827)}\n    For further information visit https://x" for name in "abcd"]
    message = append_reasons("4 validation errors for M", "\n".join(["4 validation errors for M", *listed]))
    limit = "Input should be less than or equal to 10"
    assert message == f"4 validation errors for M: a: {limit}; b: {limit}; c: {limit}; 1 more"
    assert append_reasons("4 validation errors for M", "no list") == "4 validation errors for M"
