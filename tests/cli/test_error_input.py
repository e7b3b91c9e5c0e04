"""mulligan classify accepts an error as people type, paste or pipe it."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import mulligan
from mulligan.cli.analyze import classify


def ask(*words: str, text: str = "") -> dict[str, object]:
    answer = CliRunner().invoke(classify, ["--json", *words], input=text)
    assert answer.exit_code == 0, answer.stderr
    facts: dict[str, object] = json.loads(answer.stdout)
    return facts


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["429 Too Many Requests"], "tool/rate_limit"),
        (["connection", "refused"], "tool/connection_error"),
        (["timeout"], "tool/timeout"),
        (["openai.RateLimitError"], "model/rate_limit"),
        (["429"], "tool/rate_limit"),
        (["\N{SUPERSCRIPT TWO}\N{SUPERSCRIPT TWO}\N{SUPERSCRIPT TWO}"], "tool/unknown"),  # digits, but no number
        (["no such file or directory: /tmp/a.txt"], "tool/file_not_found"),
    ],
)
def test_typed_words_are_the_error(words: list[str], kind: str) -> None:
    assert ask(*words)["kind"] == kind
    assert ask(text=" ".join(words)) == ask("-", text=" ".join(words)) == ask(*words)


def test_options_may_stand_between_the_words() -> None:
    assert ask("request", "--status", "503", "refused")["kind"] == "tool/unavailable"
    assert ask("slow", "down", "--exception", "openai.RateLimitError")["kind"] == "model/rate_limit"


def test_word_that_names_a_file_stands_for_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "error").write_text("Connection refused")
    assert ask("error")["message"] == "Connection refused"


@pytest.mark.parametrize("name", ["build.log", "./missing", "/no/such/file"])
def test_missing_file_is_an_error_and_not_a_text(name: str) -> None:
    answer = CliRunner().invoke(classify, [name])
    assert answer.exit_code == 2
    assert f"Cannot read '{name}': No such file or directory." in answer.stderr


def test_json_object_with_the_fields_of_a_line_needs_no_option() -> None:
    fields = {"id": 7, "text": "no", "status": 429, "exception": "openai.RateLimitError", "tool": "ask"}
    assert ask(text=json.dumps(fields))["kind"] == "model/rate_limit"
    assert ask(json.dumps({"text": "no", "status": 503}), "--status", "404")["kind"] == "tool/not_found"
    answer = CliRunner().invoke(classify, input='{"text": "no", "status": "many"}')
    assert answer.exit_code == 2
    assert 'Cannot read the JSON object: "status" must be a number.' in answer.stderr


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ('{"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}', "model/rate_limit"),
        ('{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}', "model/unavailable"),
        ('{"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "Bad k"}}', "tool/invalid_arguments"),
        ("Error code: 429 - {'error': {'message': 'Rate limit reached'}}", "model/rate_limit"),
    ],
)
def test_response_body_of_a_provider_is_read(body: str, kind: str) -> None:
    assert ask(body)["kind"] == ask(text=body)["kind"] == kind


# Tracebacks


def raise_error(error: BaseException, cause: BaseException | None = None) -> str:
    """Return the traceback that Python prints for this error."""
    try:
        raise error from cause
    except BaseException:  # noqa: BLE001 - any class
        return traceback.format_exc()


class PaymentDeclined(Exception):
    pass


ERRORS = [
    ValueError("days must be at most 10, got 50"),
    ValueError("first line\nsecond line: days must be at most 10"),
    TimeoutError("no answer"),
    TimeoutError(),
    KeyError("city"),
    FileNotFoundError(2, "No such file or directory", "/x/y.txt"),
    ConnectionRefusedError(111, "Connection refused"),
    PermissionError(13, "Permission denied"),
    RuntimeError(),
    RuntimeError("Rate limit exceeded, retry in 3 s"),
    TypeError("unsupported operand type(s) for +: 'int' and 'str'"),
    PaymentDeclined("Your card was declined."),
    mulligan.AgentError("top_k must be 10 or less, got 50."),
    mulligan.InfraError("The database is down."),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_traceback_is_classified_like_its_exception(error: Exception) -> None:
    raised = mulligan.classify_error(error, tool="search")
    text = raise_error(error)
    for pasted in (text, f"2026-01-31 ERROR agent failed\n{text}", "    " + text.replace("\n", "\n    ")):
        facts = ask("--tool", "search", text=pasted)
        assert (facts["kind"], facts["took_effect"], facts["fingerprint"]) == (
            str(raised.kind),
            raised.took_effect.value,
            raised.fingerprint,
        )
        assert facts["message"] == raised.message


def test_last_exception_of_a_chain_decides_unless_it_has_no_message() -> None:
    text = raise_error(ValueError("days must be at most 10"), KeyError("city"))
    assert ask(text=text)["message"] == "days must be at most 10"
    text = raise_error(RuntimeError(), ConnectionRefusedError(111, "Connection refused"))
    assert ask(text=text)["kind"] == "tool/connection_error"


def test_note_that_mulligan_added_is_not_part_of_the_error() -> None:
    error = ValueError("days must be at most 10")
    error.add_note("mulligan: tool/invalid_arguments after 1 attempt. Details: mulligan show run_8f2c")
    assert ask(text=raise_error(error)) == ask(text=raise_error(ValueError("days must be at most 10")))


@given(st.text(), st.lists(st.text(max_size=40), max_size=5))
def test_any_text_after_a_traceback_header_is_classified(before: str, lines: list[str]) -> None:
    text = "\n".join([before, "Traceback (most recent call last):", *lines])
    assert CliRunner().invoke(classify, ["--json"], input=text.encode("utf-8", "replace")).exit_code == 0
