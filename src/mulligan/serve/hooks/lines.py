"""Session files by which the two stages communicate: successful calls, and tools with an open failure."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

import msgspec

from mulligan.serve.hooks import first

MOST = 1_048_576
"""Limit of one read."""


class Worked(msgspec.Struct, frozen=True):
    """Successful calls of one turn, by tool and id."""

    at: int
    calls: tuple[tuple[str, str], ...]


def worked(session: str, since: int) -> tuple[list[Worked], int]:
    """Return the successful calls after this offset, and the new offset."""
    try:
        with open(first.place(session.encode(), ".calls"), "rb") as file:
            file.seek(since)
            data = file.read(MOST)
    except OSError:
        return [], since
    whole, _, rest = data.rpartition(b"\n")  # another process may be writing the last line
    return list(_read(whole)), since + len(data) - len(rest)


def _read(data: bytes) -> Iterator[Worked]:
    for line in data.decode("ascii", "replace").split("\n"):
        moment, _, calls = line.partition(" ")
        named = tuple(
            (name, id) for name, colon, id in (each.rpartition(":") for each in calls.split()) if colon and name
        )
        if moment.isdigit() and named:
            yield Worked(int(moment), named)


def leave_open(session: str, names: Iterable[str]) -> None:
    """Write the tools whose next success needs the second stage; `*` stands for any event."""
    path = first.place(session.encode(), ".open")
    told = "\n".join(dict.fromkeys(names)).encode("utf-8", "replace")
    if not told:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    part = f"{path}.{os.getpid()}"
    first.append(part, told)
    os.replace(part, path)


def remove(session: str) -> None:
    """Remove the files of an ended session."""
    for ending in first.ENDINGS:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(first.place(session.encode(), ending))
