"""A PostgreSQL whose disk is full, for a while: its processes may write no file beyond a size.

What they then meet is what they meet on a full disk: a file cannot be made longer, and the statement fails. It takes no
rights, and it is over when it is over.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from postgres import Server

SEGMENT = 1024 * 1024
"""Bytes of a file of its log: smaller than what is still allowed, or it would stop altogether."""


def can_be_had() -> bool:
    return sys.platform == "linux" and shutil.which("prlimit") is not None


def with_small_log(server: Server) -> None:
    """Makes the files of its log so small that others can be refused and these not."""
    server.stop()
    server.run("pg_resetwal", "--wal-segsize=1", "-D", str(server.data))
    server.start()


@contextlib.contextmanager
def full_disk(server: Server, bytes: int = 2 * SEGMENT) -> Iterator[None]:
    _limit(server, str(bytes))
    try:
        yield
    finally:
        _limit(server, "unlimited")


def _limit(server: Server, size: str) -> None:
    # First those that others are made by, and then what they made meanwhile.
    for _ in range(2):
        for pid in _family(server.process.pid):
            subprocess.run(["prlimit", "--pid", str(pid), f"--fsize={size}:"], capture_output=True, **server._as)  # type: ignore[call-overload]


def _family(parent: int) -> list[int]:
    found = [parent]
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            told = re.fullmatch(r"(\d+) \(.*\) \S (\d+) .*", path.read_text().strip(), re.DOTALL)
            if told is not None and int(told[2]) == parent:
                found.append(int(told[1]))
    return found
