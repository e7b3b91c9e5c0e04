"""Messages on a pipe: bytes that come are whole lines, and what is written waits for nobody."""

from __future__ import annotations

import os
import stat
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable

AT_ONCE = 262_144
"""Bytes of one reading."""
LONGEST = 268_435_456
"""Bytes of a message. What is longer is cut, and is then no message any more."""
HEAD = 1000
"""Bytes that are kept of one that was too long: they may still say whose answer it was."""
FULL = 8_388_608
"""Bytes that may wait for a reader before their source is not read any more."""


class Lines:
    """Bytes as they come in, and the lines they make."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        self._size = 0
        self._is_too_long = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now, each with its end."""
        if not self._parts and data.find(b"\n") == len(data) - 1:
            return [data]  # as nearly always: one reading, one message
        *whole, rest = data.split(b"\n")
        lines = []
        for line in whole:
            self._add(line)
            lines.append(b"".join(self._parts) + b"\n")
            self._parts, self._size, self._is_too_long = [], 0, False
        self._add(rest)
        return lines

    def _add(self, part: bytes) -> None:
        if not part or self._is_too_long:
            return
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._longest:
            self._parts = [b"".join(self._parts)[:HEAD]]
            self._is_too_long = True


class Source:
    """A descriptor that is read whenever there is something, and not while nobody takes it."""

    def __init__(self, loop: AbstractEventLoop, fd: int, on_line: Callable[[bytes], None], on_end: Callable[[], None]):
        self._loop = loop
        self._fd = fd
        self._lines = Lines()
        self._on_line = on_line
        self._on_end = on_end
        self._is_open = True
        loop.add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, AT_ONCE)
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
    """A descriptor that is written to at once where it takes it, and later where it does not."""

    def __init__(self, loop: AbstractEventLoop, fd: int, on_broken: Callable[[], None]) -> None:
        self._loop = loop
        self._fd = fd
        self._on_broken = on_broken
        self._waiting: deque[memoryview] = deque()
        self._size = 0
        self.source: Source | None = None
        """What is not read while too much waits."""
        self.is_broken = False
        # Not a terminal or a file: these are shared with others, and take what they are given.
        self._was_blocking = os.get_blocking(fd)
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            os.set_blocking(fd, False)

    def write(self, data: bytes) -> None:
        if self.is_broken:
            return
        sent = 0
        if not self._waiting:
            try:
                sent = os.write(self._fd, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._break()
                return
            if sent == len(data):
                return
            self._loop.add_writer(self._fd, self._drain)
        self._waiting.append(memoryview(data)[sent:])
        self._size += len(data) - sent
        if self._size > FULL and self.source is not None:
            self.source.pause()

    def _drain(self) -> None:
        while self._waiting:
            part = self._waiting[0]
            try:
                sent = os.write(self._fd, part)
            except BlockingIOError:
                return
            except OSError:
                self._break()
                return
            self._size -= sent
            if sent < len(part):
                self._waiting[0] = part[sent:]
                return
            self._waiting.popleft()
        self._loop.remove_writer(self._fd)
        if self.source is not None:
            self.source.resume()

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def _break(self) -> None:
        """Nobody reads any more."""
        self.is_broken = True
        self.let_go()
        if self.source is not None:
            self.source.resume()
        self._on_broken()

    def let_go(self) -> None:
        """Writes nothing more, and leaves the descriptor as it was."""
        if self._waiting:
            self._loop.remove_writer(self._fd)
        self._waiting.clear()
        self._size = 0
        try:  # noqa: SIM105 - contextlib is not needed for this
            os.set_blocking(self._fd, self._was_blocking)
        except OSError:
            pass  # it is closed already
