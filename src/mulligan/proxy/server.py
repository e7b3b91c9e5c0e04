"""Process of the MCP server, and the backoff of its restarts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable

from mulligan.proxy.message_framing import Outlet, Source

INITIAL_RESTART_SECONDS = 0.5
"""Delay before the first restart. It doubles with each one."""
MAX_RESTART_SECONDS = 30.0
MAX_RESTARTS = 5
"""Restarts in a row without an answer from the server."""
STOP_GRACE_SECONDS = 2.0
"""Time for the server to exit after its input closed, and again after each signal."""
EXIT_GRACE_SECONDS = 0.2
"""Time for a server to exit after it closed its input or output. Then it is killed."""


class RestartBackoff:
    """Backoff of restarts."""

    def __init__(self) -> None:
        self.restart_count = 0

    def next_delay(self) -> float | None:
        """Return the delay in seconds, or None if no restarts remain."""
        self.restart_count += 1
        return (
            None
            if self.restart_count > MAX_RESTARTS
            else min(MAX_RESTART_SECONDS, INITIAL_RESTART_SECONDS * 2 ** (self.restart_count - 1))
        )

    def reset(self) -> None:
        """Reset the count after an answer."""
        self.restart_count = 0


class ServerProcess:
    """One process of the server, from start to exit."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        process: subprocess.Popen[bytes],
        on_line: Callable[[bytes], None],
        on_exit: Callable[[ServerProcess], None],
    ) -> None:
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
        loop.add_reader(
            self._stdin, self._handle_input_closed
        )  # never readable: reports only that the other end closed
        self.source = Source(loop, process.stdout.fileno(), on_line, self._handle_output_closed)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def exit_description(self) -> str:
        """How the server ended, as a clause."""
        code = self.process.poll()
        if self.is_input_closed:
            return "the server closed its input"
        if code is None:
            return "the server closed its output"
        if code < 0:
            try:
                return f"the server was killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"the server was killed by signal {-code}"
        return f"the server exited with code {code}"

    def _handle_input_closed(self) -> None:
        """Handle a closed input. The server may be exiting, and its last output is still to be read."""
        self._loop.remove_reader(self._stdin)
        self.is_input_closed = True
        self._loop.call_later(EXIT_GRACE_SECONDS, self._handle_exit)

    def _handle_output_closed(self) -> None:
        """Handle the end of the output."""
        self._loop.call_later(0.0 if self.has_ended else EXIT_GRACE_SECONDS, self._handle_exit)

    def _handle_exit(self) -> None:
        if not self._is_released:
            self.is_input_closed = self.is_input_closed and not self.has_ended
            self.end()
            self._on_exit(self)

    def end(self) -> None:
        """Release the pipes and kill the process if it still runs."""
        self._release()
        self.source.close()
        if not self.has_ended:
            self.process.kill()
        self._close_pipes()

    def _release(self) -> None:
        self._is_released = True
        if self.process.stdin is not None and not self.process.stdin.closed:
            self._loop.remove_reader(self._stdin)
        self.outlet.release()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:  # noqa: SIM105 - contextlib is not needed for this
                    pipe.close()
                except OSError:
                    pass  # unwritten data for a closed reader

    async def stop(self) -> int | None:
        """Stop the server as the protocol says: close its input, then SIGTERM, then SIGKILL."""
        deadline = self._loop.time() + STOP_GRACE_SECONDS
        while not self.outlet.is_empty and not self.outlet.is_broken and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        self._release()
        if self.process.stdin is not None:
            self.process.stdin.close()
        for stop_process in (None, self.process.terminate, self.process.kill):
            if stop_process is not None:
                stop_process()
            if await self._wait_for_exit(STOP_GRACE_SECONDS):
                break
        self.source.close()
        self._close_pipes()
        return self.process.poll()

    async def _wait_for_exit(self, seconds: float) -> bool:
        deadline = self._loop.time() + seconds
        pause = 0.002
        while not self.has_ended:
            if self._loop.time() >= deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(0.05, 2 * pause)
        return True

    def signal(self, number: int) -> None:
        if not self.has_ended:
            os.kill(self.process.pid, number)
