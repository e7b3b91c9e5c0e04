"""mulligan redact, through its streams."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mulligan.cli.redact import redact

TOKEN = "gh" + "p_" + "q7RtZp2LmXv9KsWc4HnJd8FgYb3TxQe6a1B2"
KEY = (
    "-----BEGIN PRIVATE " + "KEY-----\n" + "q7RtZp2LmXv9KsWc4HnJd8FgYb3TxQe6\n" * 4 + "-----END PRIVATE " + "KEY-----\n"
)


def run(given: str | bytes, *options: str) -> Result:
    return CliRunner().invoke(redact, options, input=given)


def test_a_text_goes_through_without_its_secrets():
    result = run(f"push with {TOKEN}\nall well\n")

    assert result.stdout == "push with [redacted github]\nall well\n"
    assert result.exit_code == 0


def test_a_private_key_over_several_lines_goes_whole():
    assert run(f"before\n{KEY}after\n").stdout == "before\n[redacted private_key]\nafter\n"


def test_a_private_key_without_an_end_goes_to_the_end():
    assert "q7Rt" not in run(KEY.split("-----END")[0]).stdout


def test_a_very_long_line_goes_through_whole():
    long = "word " * 10_000

    assert run(f"{long}{TOKEN}\n").stdout == f"{long}[redacted github]\n"


def test_bytes_that_are_not_utf_8_survive():
    result = run(b"caf\xe9 \xff " + TOKEN.encode() + b" \xc3\xa9\n")

    assert result.stdout_bytes == b"caf\xe9 \xff [redacted github] \xc3\xa9\n"


def test_of_an_object_the_field_text_is_redacted():
    result = run(json.dumps({"text": f"use {TOKEN}", "other": "ann@example.org"}) + "\n", "--jsonl")

    assert json.loads(result.stdout) == {"text": "use [redacted github]", "other": "ann@example.org"}


def test_with_all_every_field_is_redacted_and_a_secret_goes_everywhere():
    given = {"arguments": {"password": "opensesame"}, "error": "opensesame is wrong"}

    result = run(json.dumps(given) + "\n", "--jsonl", "--all")

    assert json.loads(result.stdout) == {
        "arguments": {"password": "[redacted password]"},
        "error": "[redacted password] is wrong",
    }


def test_at_level_shared_all_leaves_types_and_lengths():
    result = run('{"city": "Bern", "n": 3}\n', "--jsonl", "--all", "--level", "shared")

    assert json.loads(result.stdout) == {"city": "[str 4 chars]", "n": "[int]"}


def test_a_broken_line_is_answered_in_its_place_and_the_rest_goes_on():
    result = run('{"text": "a"}\n{broken\n[1]\n{"no": 1}\n{"text": 5}\n{"text": "b"}\n', "--jsonl")

    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line.get("text") for line in lines] == ["a", None, None, None, None, "b"]
    assert [sorted(line) for line in lines[1:5]] == [["error"]] * 4
    assert result.exit_code == 1


def test_half_a_character_does_not_stop_the_stream():
    result = run('{"text": "\\ud800", "x": "\\ud800"}\n{"text": "b"}\n', "--jsonl")

    assert len(result.stdout.splitlines()) == 2
    assert result.exit_code == 0


def test_a_nest_too_deep_to_read_is_answered_like_a_broken_line():
    result = run('{"a":' * 5000 + "1" + "}" * 5000 + '\n{"a": 1}\n', "--jsonl", "--all")

    assert [sorted(json.loads(line)) for line in result.stdout.splitlines()] == [["error"], ["a"]]


def test_the_report_says_what_kinds_were_found_and_never_what():
    result = run(f"{TOKEN} {TOKEN} ann@example.org\n", "--report")

    assert result.stderr.splitlines() == ["3 found.", "", "        2  github", "        1  email"]
    assert TOKEN not in result.stderr


def test_the_report_as_json():
    result = run(f"{TOKEN}\n", "--report", "--json")

    assert json.loads(result.stderr) == {"found": {"github": 1}, "unreadable": 0}


def test_all_without_jsonl_is_refused_with_what_to_type():
    result = run("x", "--all")

    assert result.exit_code == 2
    assert "--jsonl" in result.stderr


def test_a_file_as_an_argument_is_answered_with_where_to_put_it():
    result = run("", "build.log")

    assert result.exit_code == 2
    assert "mulligan redact < build.log" in result.stderr
    assert "mulligan redact --report < build.log" in run("", "--help").stdout


@pytest.mark.parametrize("text", [TOKEN, f"my key is {TOKEN}"])
def test_a_text_as_an_argument_is_not_repeated(text):
    result = run("", text)

    assert result.exit_code == 2
    assert "mulligan redact < FILE" in result.stderr
    assert TOKEN not in result.stderr


def test_a_level_without_values_is_refused_with_what_to_type():
    result = run("x", "--level", "shared")

    assert result.exit_code == 2
    assert "--jsonl --all" in result.stderr


def test_json_alone_is_a_report_too():
    assert json.loads(run(f"{TOKEN}\n", "--json").stderr) == {"found": {"github": 1}, "unreadable": 0}


def watched(given: bytes, tmp_path: Path, *options: str) -> tuple[bytes, str, int]:
    """The command itself, with a terminal for standard error."""
    (tmp_path / "given").write_bytes(given)
    ours, theirs = pty.openpty()
    with (tmp_path / "given").open("rb") as source, (tmp_path / "out").open("wb") as target:
        process = subprocess.Popen(
            [sys.executable, "-m", "mulligan", "redact", *options], stdin=source, stdout=target, stderr=theirs
        )
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while piece := os.read(ours, 4096):
                said += piece
        os.close(ours)
        return (tmp_path / "out").read_bytes(), said.decode(), process.wait(30)


@pytest.mark.slow
def test_of_a_long_text_a_terminal_sees_how_far_it_is_and_the_output_stays_clean(tmp_path):
    given = b"all well, nothing to see on this line\n" * 60_000

    redacted, said, code = watched(given, tmp_path)

    assert redacted == given
    assert code == 0
    assert "Redacting" in said
    assert " 45%" in said


@pytest.mark.slow
def test_of_a_short_text_a_terminal_sees_nothing_but_the_report(tmp_path):
    _, said, _ = watched(b"all well\n", tmp_path, "--report")

    assert said == "Nothing found.\r\n"


@pytest.mark.slow
def test_where_no_terminal_watches_a_long_text_says_nothing():
    assert run(b"all well\n" * 300_000).stderr == ""
