"""Pipes to the client and the server, and the server's process with the backoff of its restarts.

The event loop watches the pipes. Where it cannot, which is on Windows and for regular files, threads read and write.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import stat
import subprocess
import sys
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

CAN_WATCH_PIPES = sys.platform != "win32"
"""Whether an event loop can watch pipes."""
READ_CHUNK_BYTES = 262_144
MAX_MESSAGE_BYTES = 268_435_456
"""Limit of one message. A longer one is truncated and thus invalid."""
TRUNCATED_HEAD_BYTES = 1000
"""Start of a truncated message that is kept: it may contain the id of its request."""
MAX_WAITING_BYTES = 8_388_608
"""Queued output above which the source is paused."""
STOP_GRACE_SECONDS = 2.0
"""Time for the server to exit after its input closed, and again after each signal."""
EXIT_GRACE_SECONDS = 0.2
"""Time for a server to exit after it closed its input or output. Then it is killed."""


class LineBuffer:
    """Buffer that splits incoming bytes into lines."""

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_bytes = max_bytes
        self.partial_line = bytearray()
        self._is_too_long = False

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the lines that are complete, each with its line end."""
        if not self.partial_line and data.find(b"\n") == len(data) - 1:
            return [data]  # the usual case: one read is one message
        *complete_lines, partial_line = data.split(b"\n")
        lines = []
        for line in complete_lines:
            self._add(line)
            lines.append(bytes(self.partial_line) + b"\n")
            self.partial_line.clear()
            self._is_too_long = False
        self._add(partial_line)
        return lines

    def _add(self, part: bytes) -> None:
        if not self._is_too_long:
            self.partial_line += part
            if len(self.partial_line) > self._max_bytes:
                del self.partial_line[TRUNCATED_HEAD_BYTES:]
                self._is_too_long = True


class Pausable(Protocol):
    """Reader of messages that stops reading on request."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Source:
    """Non-blocking reader of a descriptor. It can be paused."""

    def __init__(self, loop: AbstractEventLoop, fd: int, on_line: Callable[[bytes], None], on_end: Callable[[], None]):
        self._loop, self._fd, self._on_line, self._on_end = loop, fd, on_line, on_end
        self._lines = LineBuffer()
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


class ThreadedSource:
    """Reader of a descriptor on a thread of its own. It can be paused."""

    def __init__(self, loop: AbstractEventLoop, fd: int, on_line: Callable[[bytes], None], on_end: Callable[[], None]):
        self._loop, self._fd, self._on_line, self._on_end = loop, fd, on_line, on_end
        self._lines = LineBuffer()
        self._is_open = True
        self._can_read = threading.Event()
        self._can_read.set()
        self._thread = threading.Thread(target=self._run, name="mulligan-pipe", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        data = b"unread"
        while data:
            self._can_read.wait()
            try:
                data = os.read(self._fd, READ_CHUNK_BYTES)
            except OSError:
                data = b""
            with suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._handle, data)

    def _handle(self, data: bytes) -> None:
        if not self._is_open:
            return
        if not data:
            self.close()
            self._on_end()
        for line in self._lines.feed(data) if data else ():
            self._on_line(line)

    @property
    def is_reading(self) -> bool:
        """Whether the thread uses the descriptor. On Windows it cannot be closed meanwhile."""
        return self._thread.is_alive()

    def pause(self) -> None:
        self._can_read.clear()

    def resume(self) -> None:
        self._can_read.set()

    def close(self) -> None:
        self._is_open = False
        self._can_read.set()


def open_source(
    loop: AbstractEventLoop, fd: int, on_line: Callable[[bytes], None], on_end: Callable[[], None]
) -> Source | ThreadedSource:
    """Read the lines of a descriptor until it ends."""
    mode = os.fstat(fd).st_mode
    # No event loop watches a file or a device such as /dev/null.
    is_watchable = CAN_WATCH_PIPES and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd))
    return (Source if is_watchable else ThreadedSource)(loop, fd, on_line, on_end)


class Outlet:
    """Non-blocking writer of a descriptor. It queues what the descriptor does not accept."""

    def __init__(self, loop: AbstractEventLoop, fd: int, on_broken: Callable[[], None]) -> None:
        self._loop, self._fd, self._on_broken = loop, fd, on_broken
        self._waiting = bytearray()
        self.source: Pausable | None = None
        """Source that is paused while the queue is too long."""
        self.is_broken = False
        self._was_blocking = True
        self._chunks: queue.SimpleQueue[bytes] | None = None
        """Output of the thread that writes. None if the event loop does."""
        if not CAN_WATCH_PIPES:
            self._chunks = queue.SimpleQueue()
            threading.Thread(target=self._run, args=(self._chunks,), name="mulligan-pipe", daemon=True).start()
            return
        # Pipes and sockets only: terminals and files are shared with other programs and accept writes anyway.
        self._was_blocking = os.get_blocking(fd)
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            os.set_blocking(fd, False)

    def write(self, data: bytes) -> None:
        if self.is_broken:
            return
        is_first = not self._waiting
        self._waiting += data
        if is_first and self._chunks is not None:
            self._chunks.put(data)
        elif is_first:
            self._write_waiting()
            if self._waiting:
                self._loop.add_writer(self._fd, self._drain)
        if len(self._waiting) > MAX_WAITING_BYTES and self.source is not None:
            self.source.pause()

    def _drain(self) -> None:
        self._write_waiting()
        if not self._waiting and not self.is_broken:
            self._loop.remove_writer(self._fd)
            if self.source is not None:
                self.source.resume()

    def _write_waiting(self) -> None:
        """Write until the queue is empty or the descriptor accepts no more."""
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, self._waiting)]
        except BlockingIOError:
            return
        except OSError:  # The reader closed the pipe.
            self._handle_broken()

    def _run(self, chunks: queue.SimpleQueue[bytes]) -> None:
        """Write on a thread, until an empty chunk."""
        while data := chunks.get():
            remaining = memoryview(data)
            try:
                while remaining:
                    remaining = remaining[os.write(self._fd, remaining) :]
            except OSError:  # The reader closed the pipe.
                pass
            with suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._handle_written, len(data), bool(remaining))

    def _handle_written(self, size: int, is_broken: bool) -> None:
        del self._waiting[:size]
        if is_broken:
            self._handle_broken()
        elif self._waiting and self._chunks is not None:
            self._chunks.put(bytes(self._waiting))
        elif self.source is not None:
            self.source.resume()

    def _handle_broken(self) -> None:
        if self.is_broken:
            return
        self.is_broken = True
        self.release()
        if self.source is not None:
            self.source.resume()
        self._on_broken()

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def release(self) -> None:
        """Discard the queue and restore the descriptor's blocking mode."""
        self._waiting.clear()
        if self._chunks is not None:
            self._chunks.put(b"")
            return
        self._loop.remove_writer(self._fd)
        with suppress(OSError):  # closed already
            os.set_blocking(self._fd, self._was_blocking)


class StandardStreams(Outlet):
    """Client at our standard input and output."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        super().__init__(loop, 1, lambda: self._on_end())
        self._on_end: Callable[[], None] = lambda: None
        self._input: Source | ThreadedSource | None = None

    def start(self, on_line: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        """Read messages until the input ends or the output breaks."""
        self._on_end = on_end
        self._input = open_source(self._loop, 0, on_line, on_end)

    def pause(self) -> None:
        if self._input is not None:
            self._input.pause()

    def resume(self) -> None:
        if self._input is not None:
            self._input.resume()

    def close_input(self) -> None:
        if self._input is not None:
            self._input.close()

    async def close(self) -> None:
        """Write what the client has not read yet."""
        # Time for the client to read the last answers
        deadline = self._loop.time() + 1.0
        while self._waiting and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        self.release()


def restart_delay(restart_count: int) -> float | None:
    """Return the seconds before this restart in a row without an answer, from 0. None if no restarts remain."""
    # Restarts in a row without an answer from the server
    if restart_count >= 5:
        return None
    # Delay before the first restart. It doubles with each one.
    return min(30.0, 0.5 * (1 << restart_count))


class ServerProcess:
    """One process of the server, from start to exit."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        process: subprocess.Popen[bytes],
        on_line: Callable[[bytes], None],
        on_exit: Callable[[str], None],
        client: Pausable,
    ) -> None:
        """Start to read. `on_exit` gets a clause about how the server ended. `client` is paused while input waits."""
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._loop = loop
        self._on_exit = on_exit
        self._is_released = False
        self.is_input_closed = False
        """Whether the running server closed its input."""
        self._stdin = process.stdin.fileno()
        self.outlet = Outlet(loop, self._stdin, self._handle_input_closed)
        self.outlet.source = client
        self.write = self.outlet.write
        if CAN_WATCH_PIPES:  # Never readable: reports only that the other end closed. Otherwise the next write does.
            loop.add_reader(self._stdin, self._handle_input_closed)
        self.source = open_source(loop, process.stdout.fileno(), on_line, self.handle_output_closed)
        self.pause, self.resume = self.source.pause, self.source.resume

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def exit_description(self) -> str:
        """How the server ended, as a clause."""
        code = self.process.poll()
        if self.is_input_closed or code is None:
            return f"the server closed its {'input' if self.is_input_closed else 'output'}"
        if code >= 0:
            return f"the server exited with code {code}"
        with suppress(ValueError):
            return f"the server was killed by {signal.Signals(-code).name}"
        return f"the server was killed by signal {-code}"

    def _handle_input_closed(self) -> None:
        """Handle a closed input. The server may be exiting, and its last output is still to be read."""
        self._stop_watching_input()
        self.is_input_closed = True
        self._loop.call_later(EXIT_GRACE_SECONDS, self._handle_exit)

    def handle_output_closed(self) -> None:
        self._loop.call_later(0.0 if self.has_ended else EXIT_GRACE_SECONDS, self._handle_exit)

    def _handle_exit(self) -> None:
        if not self._is_released:
            self.is_input_closed = self.is_input_closed and not self.has_ended
            self.end()
            self._on_exit(self.exit_description)

    def end(self) -> None:
        """Release the pipes and kill the process if it still runs."""
        self._release()
        self.source.close()
        if not self.has_ended:
            self.process.kill()
        self._close_pipes()

    def _release(self) -> None:
        self._is_released = True
        self._stop_watching_input()
        self.outlet.release()

    def _stop_watching_input(self) -> None:
        if CAN_WATCH_PIPES and self.process.stdin is not None and not self.process.stdin.closed:
            self._loop.remove_reader(self._stdin)

    def _close_pipes(self) -> None:
        is_read = isinstance(self.source, ThreadedSource) and self.source.is_reading
        for pipe in (self.process.stdin, None if is_read else self.process.stdout):
            if pipe is not None:
                with suppress(OSError):  # unwritten data for a closed reader
                    pipe.close()

    async def stop(self) -> None:
        """Stop the server as the protocol says: close its input, then SIGTERM, then SIGKILL."""
        deadline = self._loop.time() + STOP_GRACE_SECONDS
        while not self.outlet.is_empty and not self.outlet.is_broken and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        self._release()
        if self.process.stdin is not None:
            self.process.stdin.close()
        for stop_process in (self.process.terminate, self.process.kill, lambda: None):
            try:
                await asyncio.to_thread(self.process.wait, STOP_GRACE_SECONDS)
                break
            except subprocess.TimeoutExpired:
                stop_process()
        self.source.close()
        self._close_pipes()


def handle_signals(loop: AbstractEventLoop, handle: Callable[[int], None]) -> None:
    """Call a function with the number of a signal that ends the process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, handle, int(number))
        except NotImplementedError:  # Windows
            signal.signal(number, lambda number, _: loop.call_soon_threadsafe(handle, number))
