"""What the first stage leaves for the second, and the second for the first: two small files a session."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

import msgspec

from mulligan.serve.hooks import first

MOST = 1_048_576
"""Bytes that are read at a time."""


class Worked(msgspec.Struct, frozen=True):
    """Calls of one turn that worked, by tool and id."""

    at: int
    calls: tuple[tuple[str, str], ...]


def worked(session: str, since: int) -> tuple[list[Worked], int]:
    """The calls that worked since this place in the file, and the place of its end."""
    try:
        with open(first.place(session.encode(), ".calls"), "rb") as file:
            file.seek(since)
            data = file.read(MOST)
    except OSError:
        return [], since
    whole, _, rest = data.rpartition(b"\n")  # another process may be at its last line
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
    """Names the tools of which the next success is wanted; `*` is anything at all."""
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
    """A session has ended."""
    for ending in first.ENDINGS:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(first.place(session.encode(), ending))
