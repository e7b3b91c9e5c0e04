"""Whose words are they: the agent's frame, the program's output, or the call's?"""

from __future__ import annotations

import pytest

from mulligan.classify.classifier import classify
from mulligan.classify.output_frames import UnframedOutput, strip_frame
from mulligan.core.failure import TookEffect

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
    assert strip_frame(text) == UnframedOutput("nothing to say", 3)
    assert classify(text=text, tool="run_shell_command").kind == "tool/execution_failed"


def test_a_text_without_a_frame_is_left_alone() -> None:
    assert strip_frame("The order 17 does not exist.") == UnframedOutput("The order 17 does not exist.", None)


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
