"""Progress of reading a long input, as one line on standard error."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from typing import IO

_MIN_SHOWN_BYTES = 1024 * 1024
"""Smaller inputs finish before progress is useful."""
_REDRAW_SECONDS = 0.2
"""Interval between two updates of the line."""


class ReadProgress:
    """Progress line of a stream, with a percentage if its size is known.

    Shown only if standard error is a terminal and standard output is not: there, the output itself shows progress.
    """

    def __init__(self, label: str, stream: IO[bytes]) -> None:
        self._label = label
        self._total_bytes = _size(stream)
        self._bytes_read = 0
        self._next_redraw = 0.0
        self._is_shown = False
        self._can_show = sys.stderr.isatty() and not sys.stdout.isatty()

    def advance(self, size: int) -> None:
        self._bytes_read += size
        if self._can_show and self._bytes_read >= _MIN_SHOWN_BYTES and (now := time.monotonic()) >= self._next_redraw:
            self._next_redraw = now + _REDRAW_SECONDS
            self._is_shown = True
            total_text = ""
            if self._total_bytes:
                percent = min(100, 100 * self._bytes_read // self._total_bytes)
                total_text = f" of {_format_megabytes(self._total_bytes)} ({percent} %)"
            sys.stderr.write(f"\r\x1b[K{self._label}: {_format_megabytes(self._bytes_read)}{total_text}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Remove the progress line."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _size(stream: IO[bytes]) -> int:
    """Return the size of a file, or 0 for a pipe."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream without a file descriptor
        file_status = os.fstat(stream.fileno())
        return file_status.st_size if stat.S_ISREG(file_status.st_mode) else 0
    return 0


def _format_megabytes(size: int) -> str:
    return f"{size / 1024 / 1024:,.1f} MB"
