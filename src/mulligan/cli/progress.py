"""Progress of reading a long input, as one line on standard error."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from mulligan.redaction import sanitize

_MIN_SHOWN_BYTES = 1024 * 1024
"""Smaller inputs finish before progress is useful."""
_REDRAW_SECONDS = 0.2
"""Interval between two updates of the line."""
_MAX_LABEL_CHARS = 44
"""A longer label could wrap the line, and then its first part would remain."""
_CLEAR_LINE = "\r\x1b[K"


@contextlib.contextmanager
def show_read_progress(label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show progress while standard error is a terminal. Yield the function to call with the bytes read so far.

    If the total is unknown, pass 0: then no percentage is shown.
    """
    if not sys.stderr.isatty():
        yield lambda bytes_read: None
        return
    label = sanitize(label, _MAX_LABEL_CHARS)  # It may contain a file name, which may contain control characters.
    next_redraw = 0.0

    def report_bytes(bytes_read: int) -> None:
        nonlocal next_redraw
        if bytes_read < _MIN_SHOWN_BYTES or (now := time.monotonic()) < next_redraw:
            return
        next_redraw = now + _REDRAW_SECONDS
        total_text = ""
        if total_bytes:
            percent = min(100, 100 * bytes_read // total_bytes)
            total_text = f" of {_format_megabytes(total_bytes)} ({percent} %)"
        sys.stderr.write(f"{_CLEAR_LINE}{label}: {_format_megabytes(bytes_read)}{total_text}")
        sys.stderr.flush()

    try:
        yield report_bytes
    finally:
        if next_redraw:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()


def _format_megabytes(size: int) -> str:
    return f"{size / 1024 / 1024:,.1f} MB"
