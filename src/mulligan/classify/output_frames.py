"""Frames that coding agents print around program output: command, directory, duration, exit code.

The text of a frame is not the program's: `Command: timeout 5 make` is not a timeout.
"""

from __future__ import annotations

import msgspec

from mulligan.classify.rules.matching import compile_rule_pattern


class UnframedOutput(msgspec.Struct, frozen=True):
    """A program's output without its frame, and the exit code from the frame."""

    output: str
    exit_code: int | None


_EXIT_CODE_PATTERN = (
    r"^\[?(?:error: )?(?:the )?(?:command |process |script |program )?(?:(?:failed|completed|finished|exited|ended|"
    r"terminated) with )?(?:non-zero )?exit[ _](?:code|status)(?: is| was)?\s?[:=]?\s?(-?\d{1,5})\b|"
    r"^\[?(?:the )?(?:command|process|script|program) (?:exited|finished|failed|ended|completed|terminated) with "
    r"(?:(?:exit )?(?:code|status)|return code)?:? ?(\d{1,5})\b|"
    r"^\[?return ?code:? (\d{1,5})\b"
)
_FRAME_LINE_PATTERN = (
    r"^(?:Command: [^\n]{0,2000}|Directory: [^\n]{0,400}|Wall time: [\d.]{1,12} \w{1,8}|Signal: \(?\w{1,12}\)?|"
    r"Background PIDs: [^\n]{0,80}|Process Group PGID: [^\n]{0,40}|Error: \(none\)|Total output lines: \d{1,9}|"
    r"Chunk ID: \w{1,20}|Original token count: \d{1,9}|Exit Code: -?\d{1,5}|"
    r"\[(?:The command completed with|Command finished with|Current working directory|Python interpreter)"
    r"[^\n]{0,400}\])\n?"
)
_FRAME_MARKS = ("wall time:", "exit code:", "[command finished", "[the command completed", "[python interpreter")


def strip_frame(text: str) -> UnframedOutput:
    """Remove the frame from the output. Return the text unchanged if it has none."""
    ends = f"{text[:400]}\n{text[-400:]}" if len(text) > 800 else text
    match = compile_rule_pattern(_EXIT_CODE_PATTERN).search(ends)
    exit_code = next((int(group) for group in match.groups() if group), None) if match else None
    lower = ends.lower()
    if exit_code is not None and any(mark in lower for mark in _FRAME_MARKS):
        text = compile_rule_pattern(_FRAME_LINE_PATTERN).sub("", text)
        text = compile_rule_pattern(r"\A\s{0,20}(?:Output:[ \n])").sub("", text).strip()
    return UnframedOutput(text, exit_code)


_SHELL_TOOL_PATTERN = (
    r"(?:\b|_)(?:bash|shell|sh|zsh|terminal|console|powershell|cmd|exec|execute_command|run_command|execute_bash|"
    r"run_shell_command|exec_command|shell_command|run_terminal_cmd|run_in_terminal|command)(?:\b|_|$)"
)
_REJECTED_CALL_PATTERN = (
    r"<tool_use_error>|input ?validation ?error|function arguments|required param|\A\s{0,20}[{\[]|"
    r"(?:unavailable|unknown|no such) tool\b"
)


def is_shell_output(tool: str, text: str) -> bool:
    """Return whether the tool is a shell, so that the text is program output even without an exit code."""
    return bool(tool and compile_rule_pattern(_SHELL_TOOL_PATTERN).search(tool)) and not compile_rule_pattern(
        _REJECTED_CALL_PATTERN
    ).search(text[:400])
