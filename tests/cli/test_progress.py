"""The progress of commands that read a long input."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys

import pytest

from mulligan.cli.options import show_read_progress

MEGABYTE = 1024 * 1024


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def read_output(label: str, total_bytes: int, bytes_read: int, stderr: io.StringIO | None = None) -> str:
    """Return what standard error shows of one report, up to the end; of a terminal by default."""
    with contextlib.redirect_stderr(stderr or Terminal()) as output:
        with show_read_progress(label, total_bytes) as report_bytes:
            report_bytes(bytes_read)
        return output.getvalue()


def test_a_long_input_shows_its_share():
    output = read_output("reading a.jsonl", 4 * MEGABYTE, MEGABYTE)
    assert "reading a.jsonl" in output
    assert " 25%" in output


def test_an_input_that_grew_shows_at_most_100_percent():
    assert "100%" in read_output("reading", MEGABYTE, 2 * MEGABYTE)


@pytest.mark.parametrize("total_bytes", [0, MEGABYTE - 1])
def test_an_input_that_is_short_or_of_unknown_size_shows_nothing(total_bytes):
    assert read_output("reading", total_bytes, total_bytes) == ""


def test_a_pipe_shows_nothing():
    assert read_output("reading", 4 * MEGABYTE, 2 * MEGABYTE, stderr=io.StringIO()) == ""


def test_a_file_name_cannot_control_the_terminal():
    output = read_output(f"reading \x1b[2J\x07{'x' * 200}", MEGABYTE, MEGABYTE)
    assert "\x1b[2J" not in output
    assert "\x07" not in output
    assert "x" * 45 not in output


@pytest.mark.slow
@pytest.mark.parametrize("command", [["import", "--json"], ["scan", "--json"]])
def test_a_terminal_shows_the_progress_of_reading_a_log(tmp_path, command):
    pty = pytest.importorskip("pty")
    row = {"dataset": "shop", "tool": "order", "parameters": {}, "outcome": "success", "result_excerpt": "x" * 20_000}
    log = tmp_path / "calls.jsonl"
    log.write_text("".join(json.dumps({**row, "run_id": f"r{number}", "seq": 0}) + "\n" for number in range(100)))
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "mulligan", *command, str(log), "--store", str(tmp_path / "a.db")],
        stdout=subprocess.DEVNULL,
        stderr=child,
    )
    os.close(child)
    output = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while chunk := os.read(parent, 4096):
            output += chunk
    os.close(parent)
    assert process.wait(30) == 0
    assert b"100%" in output
