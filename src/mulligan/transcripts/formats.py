"""The log formats, and their detection by content."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from mulligan.core.records import History
from mulligan.transcripts import call_rows, claude_code, codex, gemini, messages, mulligan_export, otlp
from mulligan.transcripts.log_lines import LogLines
from mulligan.transcripts.run_builder import ReaderState


class Format(NamedTuple):
    """A log format: how to recognize and read it."""

    name: str
    title: str
    recognizes: Callable[[bytes], bool]
    read: Callable[[LogLines, ReaderState], Iterator[History]]


FORMATS: dict[str, Format] = {
    log_format.name: log_format
    for log_format in (  # most specific first: a conversation may quote a log
        Format(mulligan_export.NAME, "an export of mulligan", mulligan_export.recognizes, mulligan_export.read),
        Format(call_rows.NAME, "recorded calls", call_rows.recognizes, call_rows.read),
        Format(otlp.NAME, "OTLP traces", otlp.recognizes, otlp.read),
        Format(codex.NAME, "Codex", codex.recognizes, codex.read),
        Format(claude_code.NAME, "Claude Code", claude_code.recognizes, claude_code.read),
        Format(gemini.NAME, "Gemini CLI", gemini.recognizes, gemini.read),
        Format(messages.NAME, "conversations", messages.recognizes, messages.read),
    )
}


def detect_log_format(lines: LogLines) -> Format | None:
    """Detect the format of a file; None if it is unknown."""
    head = lines.head()
    return next((log_format for log_format in FORMATS.values() if log_format.recognizes(head)), None) if head else None
