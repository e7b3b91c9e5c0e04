"""mulligan classify, through the command itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

import mulligan
from mulligan.cli.analyze import classify
from mulligan.testing import sandbox

FIELDS = ["kind", "type", "code", "remedy", "took_effect", "confidence", "evidence", "fingerprint", "message", "hint"]


def ask(*options: str, text: str | bytes = "") -> Result:
    return CliRunner().invoke(classify, list(options), input=text)


def test_a_text_on_standard_input_is_explained() -> None:
    told = ask(text="bash: line 1: frobnicate: command not found")
    assert told.exit_code == 0
    assert told.stdout.startswith("tool/command_not_found: report the failure to the model")


def test_a_file_is_explained(tmp_path: Path) -> None:
    (tmp_path / "build.log").write_text("error[E0308]: mismatched types")
    told = ask("--json", str(tmp_path / "build.log"))
    assert json.loads(told.stdout)["code"] == "build_failure"


def test_json_has_these_fields_and_no_others() -> None:
    assert list(json.loads(ask("--json", text="Request timed out").stdout)) == FIELDS


@pytest.mark.parametrize(
    ("category", "text", "judgment"),
    [
        ("file", "Error: connection refused", "success"),
        ("shell", "bash: frobnicate: command not found", "suspected"),
        ("other", "Error: no such order", "failure"),
    ],
)
def test_category_says_what_a_text_is_as_a_result_without_a_flag(category: str, text: str, judgment: str) -> None:
    assert json.loads(ask("--json", "--category", category, text=text).stdout)["without_flag"] == judgment
    line = json.dumps({"text": text, "category": category})
    assert json.loads(ask("--jsonl", "--json", text=line).stdout)["without_flag"] == judgment
    assert "without flag" in ask("--category", category, text=text).stdout


def test_unknown_category_of_a_line_is_an_error_of_that_line() -> None:
    answer = json.loads(ask("--jsonl", "--json", text='{"text": "no", "category": "disk"}').stdout)
    assert '"category" must be one of shell, file' in answer["error"]


def test_one_line_goes_out_for_each_that_comes_in_and_a_bad_one_stops_nothing() -> None:
    lines = [
        '{"text": "Connection refused"}',
        "not json",
        "",
        "[]",
        '{"tool": "x"}',
        '{"text": 5}',
        '{"text": "No such file"}',
    ]
    told = ask("--jsonl", "--json", text="\n".join(lines) + "\n")
    answers = [json.loads(line) for line in told.stdout.splitlines()]
    assert told.exit_code == 0
    assert ["error" in answer for answer in answers] == [False, True, True, True, True, True, False]
    assert answers[0]["code"] == "connection_error"
    assert answers[-1]["code"] == "file_not_found"
    assert '"text" must be a string' in answers[5]["error"]


def test_where_no_line_can_be_read_the_command_says_so_to_scripts() -> None:
    told = ask("--jsonl", "--json", text="not json\n[]\n")
    assert (told.exit_code, len(told.stdout.splitlines())) == (1, 2)
    assert ask("--jsonl", text="not json\n").exit_code == 1
    assert ask("--jsonl", "--json", text="").exit_code == 0


def test_what_is_known_besides_the_text_is_used() -> None:
    line = json.dumps({"text": "no", "status": 429, "exception": "openai.RateLimitError", "arguments": {"a": 1}})
    answer = json.loads(ask("--jsonl", "--json", text=line).stdout)
    assert (answer["type"], answer["code"], answer["remedy"]) == ("model", "rate_limit", "retry")


def test_why_shows_what_the_fingerprint_is_made_of() -> None:
    told = ask("--show-fingerprint", text="Order 17 could not be found")
    assert "order \u2039n\u203a could not be found" in told.stdout


def test_many_lines_make_a_table() -> None:
    told = ask("--jsonl", text='{"text": "Connection refused"}\n{"text": "No such file"}\n')
    assert told.stdout.startswith("2 lines.")
    assert "tool/connection_error" in told.stdout


def test_nothing_hostile_reaches_the_terminal() -> None:
    told = ask("--show-fingerprint", text="\x1b]0;owned\x07 \x1b[2J Permission denied \u202e gnp.exe")
    assert "\x1b" not in told.stdout
    assert "\u202e" not in told.stdout


def test_bytes_that_are_no_text_are_explained_as_well() -> None:
    assert ask("--json", text=b"\xff\xfe Connection refused").exit_code == 0


@pytest.mark.parametrize(("options", "said"), [(["/no/such/file"], "Cannot read"), ([], "The input is empty")])
def test_what_cannot_be_done_is_said_with_what_to_type_instead(options: list[str], said: str) -> None:
    told = ask(*options)
    assert told.exit_code == 2
    assert said in told.stderr


# The same answer for a raised error and for its text


class EditError(Exception):
    pass


class OrderNotFound(KeyError):
    def __str__(self) -> str:
        return str(self.args[0])


class CardDeclined(ValueError):
    pass


class BackendTimeout(RuntimeError):
    pass


CLASSES: tuple[type[Exception], ...] = (
    *(ValueError, RuntimeError, Exception, KeyError, TypeError, AttributeError, IndexError, AssertionError),
    *(TimeoutError, PermissionError, ConnectionRefusedError, FileNotFoundError, OSError, NotImplementedError),
    *(EditError, OrderNotFound, CardDeclined, BackendTimeout),
)
TEXTS = (
    "old_string not found in a.py",
    "no match for old_string",
    "The patch does not apply",
    "src/main.c:4:5: error: expected ';' before 'return'",
    "error[E0308]: mismatched types",
    "FAILED tests/test_a.py::test_add - assert 3 == 4",
    "--- FAIL: TestAdd (0.00s)",
    "Your card was declined.",
    "Order 7 does not exist",
    "This range is not available.",
    "Command timed out after 30 seconds",
    "Error: timeout",
    "Rate limit exceeded, retry in 3 s",
    "deadlock detected",
    "unsupported operand type(s) for +: 'int' and 'str'",
    "lookup() missing 1 required positional argument: 'city'",
    "render() got an unexpected keyword argument 'rows'",
    "city",
    "limit must be at most 10",
    "Exit code 2\nmake: *** [all] Error 1",
    "Unknown tool: serach",
    '{"error": {"message": "column "total" does not exist"}}',
    "HTTP 503 Service Unavailable",
    "connection refused",
)
WORDS = st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=30)


def classify_raised(error: Exception, tool: str) -> mulligan.Failure:
    """Return the failure of a decorated function that raises this error."""

    def work() -> None:
        raise error

    with sandbox() as played, pytest.raises(type(error)):
        mulligan.tool(name=tool, mode="observe")(work)()
    failure = played.steps[0].failure
    assert failure is not None
    return failure


@settings(max_examples=150, deadline=None)
@given(
    cls=st.sampled_from(CLASSES),
    text=st.sampled_from(TEXTS) | st.builds("{} {}".format, st.sampled_from(TEXTS), WORDS) | WORDS,
    tool=st.sampled_from(["lookup", "edit_file", "Bash", "run_tests"]),
)
def test_a_raised_error_and_its_logged_text_have_one_kind(cls: type[Exception], text: str, tool: str) -> None:
    error = cls(text)
    path = f"{cls.__module__}.{cls.__qualname__}"
    line = {"text": str(error) or cls.__name__, "exception": path, "tool": tool, "source": "tool"}
    logged = json.loads(ask("--jsonl", "--json", text=json.dumps(line)).stdout)
    raised = classify_raised(error, tool)
    assert (logged["kind"], logged["fingerprint"]) == (str(raised.kind), raised.fingerprint)
    assert logged["took_effect"] == raised.took_effect.value


@pytest.mark.parametrize("cls", [ValueError, RuntimeError, Exception, EditError, CardDeclined])
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("old_string not found in a.py", "tool/edit_mismatch"),
        ("no match for old_string", "tool/edit_mismatch"),
        ("src/main.c:4:5: error: expected ';' before 'return'", "tool/build_failure"),
        ("FAILED tests/test_a.py::test_add - assert 3 == 4", "tool/test_failure"),
        ("Your card was declined.", "orchestration/constraint_violation"),
        ("Order 7 does not exist", "tool/not_found"),
        ("Error: timeout", "tool/timeout"),
        ("deadlock detected", "tool/unavailable"),
    ],
)
def test_a_raised_text_has_the_kind_of_the_same_text_as_a_result(cls: type[Exception], text: str, kind: str) -> None:
    assert classify_raised(cls(text), "work").kind == kind
    assert json.loads(ask("--json", "--tool", "work", text=text).stdout)["kind"] == kind


@pytest.mark.parametrize(
    "error",
    [
        KeyError("city"),
        KeyError("no such user"),
        AttributeError("'NoneType' object has no attribute 'get'"),
        TypeError("unsupported operand type(s) for +: 'int' and 'str'"),
        TypeError("render() missing 1 required positional argument: 'rows'"),
        NameError("name 'cfg' is not defined"),
        ValueError("not enough values to unpack (expected 2, got 1)"),
        ValueError("too many values to unpack (expected 2)"),
        IndexError("list index out of range"),
        IndexError("pop from empty list"),
        RecursionError("maximum recursion depth exceeded while calling a Python object"),
        RuntimeError("dictionary changed size during iteration"),
    ],
    ids=repr,
)
def test_an_error_of_the_interpreter_inside_a_tool_is_a_bug_in_the_tool(error: Exception) -> None:
    assert classify_raised(error, "report").kind == "orchestration/uncaught_exception"


@pytest.mark.parametrize(
    "error", [IndexError("row 5 is out of range"), ValueError("too many values: pass 3"), RuntimeError("disk full")]
)
def test_an_error_of_such_a_class_with_its_own_words_is_no_bug(error: Exception) -> None:
    assert classify_raised(error, "report").kind != "orchestration/uncaught_exception"


def test_an_error_of_the_interpreter_in_the_output_of_a_program_is_that_programs() -> None:
    text = "Exit code 1\nTraceback (most recent call last):\nIndexError: list index out of range"
    assert json.loads(ask("--json", "--tool", "Bash", text=text).stdout)["kind"] == "tool/execution_failed"


def test_a_call_with_other_arguments_than_the_function_has_is_rejected() -> None:
    @mulligan.tool(mode="observe")
    def report(month: int) -> int:
        return month

    with sandbox() as played, pytest.raises(TypeError) as caught:
        report(moth=3)  # type: ignore[call-arg]
    failure = played.steps[0].failure
    assert failure is not None
    assert (failure.kind, failure.took_effect.value) == ("tool/invalid_arguments", "no")
    line = json.dumps({"text": str(caught.value), "exception": "TypeError", "tool": "report"})
    assert json.loads(ask("--jsonl", "--json", text=line).stdout)["kind"] == "tool/invalid_arguments"


def test_a_check_of_arguments_inside_a_tool_is_no_bug() -> None:
    assert classify_raised(TypeError("month must be an integer, not str"), "report").kind == "tool/invalid_arguments"


def test_the_missing_key_behind_an_error_with_words_is_no_bug() -> None:
    error = ValueError("User 42 does not exist")
    error.__context__ = KeyError(42)
    assert classify_raised(error, "users").kind == "tool/not_found"


def test_a_timeout_that_cancelled_its_work_is_a_timeout() -> None:
    error = TimeoutError()
    error.__cause__ = asyncio.CancelledError()
    assert classify_raised(error, "fetch").kind == "tool/timeout"


def test_the_name_of_a_class_tells_more_than_the_error_behind_it() -> None:
    error = OrderNotFound("7")
    error.__context__ = ModuleNotFoundError("No module named 'orders'")
    assert classify_raised(error, "orders").kind == "tool/not_found"


class RetryError(Exception):
    """As tenacity's: its message is the address and the class of the last attempt, which is its cause."""

    last_attempt = "the last attempt"

    def __str__(self) -> str:
        return f"RetryError[<Future at 0xffff2c724ed0 state=finished raised {type(self.__cause__).__name__}>]"


@pytest.mark.parametrize("cause", [ConnectionRefusedError("refused"), TimeoutError("30 s"), KeyError("city")], ids=repr)
def test_the_logged_error_of_a_retry_library_has_the_kind_of_the_last_attempt(cause: Exception) -> None:
    error = RetryError()
    error.__cause__ = cause
    raised = classify_raised(error, "lookup")
    line = json.dumps({"text": str(error), "exception": "tenacity.RetryError", "tool": "lookup", "source": "tool"})
    logged = json.loads(ask("--jsonl", "--json", text=line).stdout)
    assert (logged["kind"], logged["took_effect"]) == (str(raised.kind), raised.took_effect.value)


def test_an_error_without_a_message_has_one_fingerprint() -> None:
    raised = classify_raised(EditError(), "lookup")
    line = json.dumps({"text": "", "exception": "app.EditError", "tool": "lookup", "source": "tool"})
    logged = json.loads(ask("--jsonl", "--json", text=line).stdout)
    assert (logged["kind"], logged["fingerprint"]) == (str(raised.kind), raised.fingerprint)
