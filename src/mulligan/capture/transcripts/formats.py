"""The log formats, and their detection by content."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from mulligan.capture.transcripts import calls, claude_code, codex, exported, gemini, messages, otlp
from mulligan.capture.transcripts.gathering import Reading
from mulligan.capture.transcripts.lines import Lines
from mulligan.records import History


class Format(NamedTuple):
    """A log format: how to recognize and read it."""

    name: str
    spoken: str
    recognises: Callable[[bytes], bool]
    read: Callable[[Lines, Reading], Iterator[History]]


FORMATS: dict[str, Format] = {
    each.name: each
    for each in (  # most specific first: a conversation may quote a log
        Format(exported.NAME, "an export of mulligan", exported.recognises, exported.read),
        Format(calls.NAME, "recorded calls", calls.recognises, calls.read),
        Format(otlp.NAME, "OTLP traces", otlp.recognises, otlp.read),
        Format(codex.NAME, "Codex", codex.recognises, codex.read),
        Format(claude_code.NAME, "Claude Code", claude_code.recognises, claude_code.read),
        Format(gemini.NAME, "Gemini CLI", gemini.recognises, gemini.read),
        Format(messages.NAME, "conversations", messages.recognises, messages.read),
    )
}


def recognised(lines: Lines) -> Format | None:
    """Detect the format of a file; None if it is unknown."""
    head = lines.head()
    return next((each for each in FORMATS.values() if each.recognises(head)), None) if head else None
