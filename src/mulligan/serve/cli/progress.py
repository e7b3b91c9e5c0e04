"""How far a long reading has come: one line on standard error, for somebody who watches a terminal."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from typing import IO

_LARGE = 1024 * 1024
"""Bytes before which nothing is shown: it is over soon."""
_OFTEN = 0.2
"""Seconds between two looks."""


class Progress:
    """Told of every piece that was read; shows how much that is, and how much of it all where that is known.

    Shows nothing where standard error is no terminal, nor where standard output is one: the text itself is seen there.
    """

    def __init__(self, doing: str, stream: IO[bytes]) -> None:
        self._doing = doing
        self._all = _size(stream)
        self._read = 0
        self._next = 0.0
        self._is_shown = False
        self._is_watched = sys.stderr.isatty() and not sys.stdout.isatty()

    def read(self, size: int) -> None:
        self._read += size
        if self._is_watched and self._read >= _LARGE and (now := time.monotonic()) >= self._next:
            self._next = now + _OFTEN
            self._is_shown = True
            of = f" of {_megabytes(self._all)} ({min(100, 100 * self._read // self._all)} %)" if self._all else ""
            sys.stderr.write(f"\r\x1b[K{self._doing}: {_megabytes(self._read)}{of}")
            sys.stderr.flush()

    def done(self) -> None:
        """Takes the line away again."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _size(stream: IO[bytes]) -> int:
    """Bytes of a file; 0 of a pipe, which does not know."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream without a file under it
        about = os.fstat(stream.fileno())
        return about.st_size if stat.S_ISREG(about.st_mode) else 0
    return 0


def _megabytes(size: int) -> str:
    return f"{size / 1024 / 1024:,.1f} MB"
