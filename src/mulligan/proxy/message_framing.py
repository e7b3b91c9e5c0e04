"""Line framing on pipes: split input into complete lines, write without blocking."""

from __future__ import annotations

import os
import stat
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable

READ_CHUNK_BYTES = 262_144
"""Size of one read."""
MAX_MESSAGE_BYTES = 268_435_456
"""Limit of one message. A longer one is truncated and thus invalid."""
TRUNCATED_HEAD_BYTES = 1000
"""Start of a truncated message that is kept: it may contain the id of its request."""
MAX_WAITING_BYTES = 8_388_608
"""Queued output above which the source is paused."""


class LineBuffer:
    """Buffer that splits incoming bytes into lines."""

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._is_too_long = False

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the lines that are complete, each with its line end."""
        if not self._parts and data.find(b"\n") == len(data) - 1:
            return [data]  # the usual case: one read is one message
        *complete_lines, partial_line = data.split(b"\n")
        lines = []
        for line in complete_lines:
            self._add(line)
            lines.append(b"".join(self._parts) + b"\n")
            self._parts, self._size, self._is_too_long = [], 0, False
        self._add(partial_line)
        return lines

    def _add(self, part: bytes) -> None:
        if not part or self._is_too_long:
            return
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._max_bytes:
            self._parts = [b"".join(self._parts)[:TRUNCATED_HEAD_BYTES]]
            self._is_too_long = True


class Source:
    """Non-blocking reader of a descriptor. It can be paused."""

    def __init__(self, loop: AbstractEventLoop, fd: int, on_line: Callable[[bytes], None], on_end: Callable[[], None]):
        self._loop = loop
        self._fd = fd
        self._lines = LineBuffer()
        self._on_line = on_line
        self._on_end = on_end
        self._is_open = True
        loop.add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, READ_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            self._on_end()
            return
        for line in self._lines.feed(data):
            self._on_line(line)

    def pause(self) -> None:
        if self._is_open:
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._fd)


class Outlet:
    """Non-blocking writer of a descriptor. It queues what the descriptor does not accept."""

    def __init__(self, loop: AbstractEventLoop, fd: int, on_broken: Callable[[], None]) -> None:
        self._loop = loop
        self._fd = fd
        self._on_broken = on_broken
        self._waiting: deque[memoryview] = deque()
        self._size = 0
        self.source: Source | None = None
        """Source that is paused while the queue is too long."""
        self.is_broken = False
        # Pipes and sockets only: terminals and files are shared with other programs and accept writes anyway.
        self._was_blocking = os.get_blocking(fd)
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            os.set_blocking(fd, False)

    def write(self, data: bytes) -> None:
        if self.is_broken:
            return
        bytes_sent = 0
        if not self._waiting:
            try:
                bytes_sent = os.write(self._fd, data)
            except BlockingIOError:
                bytes_sent = 0
            except OSError:
                self._break()
                return
            if bytes_sent == len(data):
                return
            self._loop.add_writer(self._fd, self._drain)
        self._waiting.append(memoryview(data)[bytes_sent:])
        self._size += len(data) - bytes_sent
        if self._size > MAX_WAITING_BYTES and self.source is not None:
            self.source.pause()

    def _drain(self) -> None:
        while self._waiting:
            part = self._waiting[0]
            try:
                bytes_sent = os.write(self._fd, part)
            except BlockingIOError:
                return
            except OSError:
                self._break()
                return
            self._size -= bytes_sent
            if bytes_sent < len(part):
                self._waiting[0] = part[bytes_sent:]
                return
            self._waiting.popleft()
        self._loop.remove_writer(self._fd)
        if self.source is not None:
            self.source.resume()

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def _break(self) -> None:
        """Stop writing because the reader closed the pipe."""
        self.is_broken = True
        self.release()
        if self.source is not None:
            self.source.resume()
        self._on_broken()

    def release(self) -> None:
        """Discard the queue and restore the descriptor's blocking mode."""
        if self._waiting:
            self._loop.remove_writer(self._fd)
        self._waiting.clear()
        self._size = 0
        try:  # noqa: SIM105 - contextlib is not needed for this
            os.set_blocking(self._fd, self._was_blocking)
        except OSError:
            pass  # closed already
