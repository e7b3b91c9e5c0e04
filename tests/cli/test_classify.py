"""mulligan classify, through the command itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mulligan.cli.analyze import classify

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
