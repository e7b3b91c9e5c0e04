"""Session files by which the two stages communicate: successful calls, and tools with an open failure."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

import msgspec

from mulligan.hooks import fast_filter

MAX_READ_BYTES = 1_048_576
"""Limit of one read."""


class SuccessfulCalls(msgspec.Struct, frozen=True):
    """Successful calls of one turn, by tool and id."""

    at: int
    calls: tuple[tuple[str, str], ...]


def read_successful_calls(session: str, since: int) -> tuple[list[SuccessfulCalls], int]:
    """Return the successful calls after this offset, and the new offset."""
    try:
        with open(fast_filter.session_file_path(session.encode(), ".calls"), "rb") as file:
            file.seek(since)
            data = file.read(MAX_READ_BYTES)
    except OSError:
        return [], since
    complete_lines, _, partial_line = data.rpartition(b"\n")  # another process may be writing the last line
    return list(_parse_lines(complete_lines)), since + len(data) - len(partial_line)


def _parse_lines(data: bytes) -> Iterator[SuccessfulCalls]:
    for line in data.decode("ascii", "replace").split("\n"):
        timestamp, _, calls = line.partition(" ")
        call_pairs = tuple(
            (name, id)
            for name, colon, id in (call_text.rpartition(":") for call_text in calls.split())
            if colon and name
        )
        if timestamp.isdigit() and call_pairs:
            yield SuccessfulCalls(int(timestamp), call_pairs)


def write_open_tools(session: str, names: Iterable[str]) -> None:
    """Write the tools whose next success needs the second stage; `*` stands for any event."""
    path = fast_filter.session_file_path(session.encode(), ".open")
    content = "\n".join(dict.fromkeys(names)).encode("utf-8", "replace")
    if not content:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    temporary_path = f"{path}.{os.getpid()}"
    fast_filter.append_to_file(temporary_path, content)
    os.replace(temporary_path, path)


def remove_session_files(session: str) -> None:
    """Remove the files of an ended session."""
    for suffix in fast_filter.SESSION_FILE_SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fast_filter.session_file_path(session.encode(), suffix))
