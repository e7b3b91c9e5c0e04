"""The log formats, their detection by content, and where coding agents write their logs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mulligan.core.records import History
from mulligan.transcripts import (
    aider,
    claude_code,
    codex,
    copilot,
    gemini,
    messages,
    opencode,
    otlp,
    pi,
    tracing_exports,
)
from mulligan.transcripts import recorded_runs as runs
from mulligan.transcripts.log_lines import LogLines
from mulligan.transcripts.run_builder import ReaderState


class Format(NamedTuple):
    """A log format: how to recognize and read it."""

    name: str
    title: str
    recognizes: Callable[[bytes], bool]
    read: Callable[[LogLines, ReaderState], Iterator[History]]
    find_logs: Callable[[Mapping[str, str], Path], list[Path]] = lambda environ, home: []
    """Returns the files and folders in which an agent writes its logs."""


FORMATS: dict[str, Format] = {
    log_format.name: log_format
    for log_format in (  # most specific first: a conversation may quote a log
        Format(runs.EXPORT_NAME, "an export of mulligan", runs.recognizes_export, runs.read_export),
        Format(runs.CALLS_NAME, "recorded calls", runs.recognizes_calls, runs.read_calls),
        Format(otlp.NAME, "OTLP traces", otlp.recognizes, otlp.read),
        Format(
            tracing_exports.NAME,
            "exports of Langfuse, LangSmith or Phoenix",
            tracing_exports.recognizes,
            tracing_exports.read,
        ),
        Format(copilot.NAME, "Copilot CLI", copilot.recognizes, copilot.read, copilot.find_logs),
        Format(pi.NAME, "Pi", pi.recognizes, pi.read, pi.find_logs),
        Format(codex.NAME, "Codex", codex.recognizes, codex.read, codex.find_logs),
        Format(claude_code.NAME, "Claude Code", claude_code.recognizes, claude_code.read, claude_code.find_logs),
        Format(gemini.NAME, "Gemini CLI", gemini.recognizes, gemini.read, gemini.find_logs),
        Format(opencode.NAME, "OpenCode", opencode.recognizes, opencode.read, opencode.find_logs),
        Format(aider.NAME, "Aider", aider.recognizes, aider.read, aider.find_logs),
        Format(messages.NAME, "conversations", messages.recognizes, messages.read),
    )
}


def detect_log_format(lines: LogLines) -> Format | None:
    """Detect the format of a file; None if it is unknown."""
    head = lines.head()
    return next((log_format for log_format in FORMATS.values() if log_format.recognizes(head)), None) if head else None


SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".ndjson", aider.FILE_NAME)
_PRIVATE = (
    "oauth_creds.json", ".credentials.json", "credentials.json", "auth.json", "settings.json", "google_accounts.json",
)  # fmt: skip
"""Files next to the logs that hold credentials. They are never opened."""


class LogLocation(NamedTuple):
    """Folder or file in which one agent writes its logs."""

    agent: str
    folder: Path


def default_locations(environ: Mapping[str, str], home: Path) -> list[LogLocation]:
    return [
        LogLocation(log_format.title, path)
        for log_format in FORMATS.values()
        for path in log_format.find_logs(environ, home)
    ]


def find_log_files(folder: Path, unreadable: list[tuple[Path, str]]) -> Iterator[Path]:
    """Yield every file below a folder that may be a log. Adds unreadable folders to the list."""

    def record_error(error: OSError) -> None:
        unreadable.append((Path(error.filename or folder), error.strerror or "cannot be read"))

    for here, folders, names in os.walk(folder, onerror=record_error):
        folders.sort()
        for name in sorted(names):
            if name.endswith(SUFFIXES) and name not in _PRIVATE:
                yield Path(here, name)
