"""The progress line of commands that read a long input."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys

import pytest

from mulligan.cli.progress import show_read_progress

MEGABYTE = 1024 * 1024


CLEAR_LINE = "\r\x1b[K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def read_output(label: str, total_bytes: int, bytes_read: int, stderr: io.StringIO | None = None) -> str:
    """Return what standard error shows of one report, up to the end; of a terminal by default."""
    with contextlib.redirect_stderr(stderr or Terminal()) as output:
        with show_read_progress(label, total_bytes) as report_bytes:
            report_bytes(bytes_read)
        return output.getvalue()


def test_a_long_input_shows_its_share_and_the_line_is_removed():
    output = read_output("reading a.jsonl", 4 * MEGABYTE, MEGABYTE)

    assert output == f"{CLEAR_LINE}reading a.jsonl: 1.0 MB of 4.0 MB (25 %){CLEAR_LINE}"


def test_an_input_of_unknown_size_shows_no_share():
    assert read_output("reading", 0, 3 * MEGABYTE) == f"{CLEAR_LINE}reading: 3.0 MB{CLEAR_LINE}"


def test_an_input_that_grew_shows_at_most_100_percent():
    assert "(100 %)" in read_output("reading", MEGABYTE, 2 * MEGABYTE)


def test_an_error_removes_the_line():
    with (
        contextlib.redirect_stderr(Terminal()) as terminal,
        contextlib.suppress(OSError),
        show_read_progress("reading", 0) as report_bytes,
    ):
        report_bytes(MEGABYTE)
        raise OSError
    assert terminal.getvalue() == f"{CLEAR_LINE}reading: 1.0 MB{CLEAR_LINE}"


def test_a_short_input_shows_nothing():
    assert read_output("reading", 4 * MEGABYTE, MEGABYTE - 1) == ""


def test_a_pipe_shows_nothing():
    assert read_output("reading", 4 * MEGABYTE, 2 * MEGABYTE, stderr=io.StringIO()) == ""


def test_a_file_name_cannot_control_the_terminal():
    _, line, _ = read_output(f"reading \x1b[2J\x07{'x' * 200}", 0, MEGABYTE).split(CLEAR_LINE)

    assert line.startswith("reading x")
    assert line.isprintable()
    assert len(line) < 80


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
    seen = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while chunk := os.read(parent, 4096):
            seen += chunk
    os.close(parent)
    assert process.wait(30) == 0
    assert b"of 1.9 MB (" in seen
    assert seen.endswith(b"\r\x1b[K")
