"""Locations of coding agent logs, and the files below a folder that may be logs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".ndjson")
_PRIVATE = (
    "oauth_creds.json",
    ".credentials.json",
    "credentials.json",
    "auth.json",
    "settings.json",
    "google_accounts.json",
)
"""Files next to the logs that hold credentials. They are never opened."""


class LogLocation(NamedTuple):
    """The log folder of one agent."""

    agent: str
    folder: Path


def default_locations(environ: Mapping[str, str], home: Path) -> list[LogLocation]:
    """Return the default log folders."""
    claude = environ.get("CLAUDE_CONFIG_DIR")
    folders = [Path(path).expanduser() for path in claude.split(",") if path] if claude else [home / ".claude"]
    if not claude:
        folders.append(Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "claude")
    codex = Path(environ["CODEX_HOME"]).expanduser() if environ.get("CODEX_HOME") else home / ".codex"
    return [
        *(LogLocation("Claude Code", folder / "projects") for folder in folders),
        LogLocation("Codex", codex / "sessions"),
        LogLocation("Codex", codex / "archived_sessions"),
        LogLocation("Gemini CLI", home / ".gemini" / "tmp"),
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
