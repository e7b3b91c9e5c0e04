"""Progress of reading a long input, as one line on standard error."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from typing import IO

_LARGE = 1024 * 1024
"""Smaller inputs finish before progress is useful."""
_OFTEN = 0.2
"""Interval between two updates of the line."""


class Progress:
    """Progress line of a stream, with a percentage if its size is known.

    Shown only if standard error is a terminal and standard output is not: there, the output itself shows progress.
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
        """Remove the progress line."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _size(stream: IO[bytes]) -> int:
    """Return the size of a file, or 0 for a pipe."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream without a file descriptor
        about = os.fstat(stream.fileno())
        return about.st_size if stat.S_ISREG(about.st_mode) else 0
    return 0


def _megabytes(size: int) -> str:
    return f"{size / 1024 / 1024:,.1f} MB"
