"""Process of the MCP server, and the backoff of its restarts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable

from mulligan.serve.proxy.framing import Outlet, Source

FIRST = 0.5
"""Delay before the first restart. It doubles with each one."""
LONGEST = 30.0
TIMES = 5
"""Restarts in a row without an answer from the server."""
GRACE = 2.0
"""Time for the server to exit after its input closed, and again after each signal."""
LINGERS = 0.2
"""Time for a server to exit after it closed its input or output. Then it is killed."""


class Restarts:
    """Backoff of restarts."""

    def __init__(self) -> None:
        self.made = 0

    def next(self) -> float | None:
        """Return the delay in seconds, or None if no restarts remain."""
        self.made += 1
        return None if self.made > TIMES else min(LONGEST, FIRST * 2 ** (self.made - 1))

    def worked(self) -> None:
        """Reset the count after an answer."""
        self.made = 0


class Server:
    """One process of the server, from start to exit."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        process: subprocess.Popen[bytes],
        on_line: Callable[[bytes], None],
        on_gone: Callable[[Server], None],
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._loop = loop
        self._on_gone = on_gone
        self._is_over = False
        self.is_deaf = False
        """Whether the running server closed its input."""
        self._stdin = process.stdin.fileno()
        self.outlet = Outlet(loop, self._stdin, self._deaf)
        loop.add_reader(self._stdin, self._deaf)  # never readable: reports only that the other end closed
        self.source = Source(loop, process.stdout.fileno(), on_line, self._silent)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def epitaph(self) -> str:
        """How the server ended, as a clause."""
        code = self.process.poll()
        if self.is_deaf:
            return "the server closed its input"
        if code is None:
            return "the server closed its output"
        if code < 0:
            try:
                return f"the server was killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"the server was killed by signal {-code}"
        return f"the server ended with exit code {code}"

    def _deaf(self) -> None:
        """Handle a closed input. The server may be exiting, and its last output is still to be read."""
        self._loop.remove_reader(self._stdin)
        self.is_deaf = True
        self._loop.call_later(LINGERS, self._gone)

    def _silent(self) -> None:
        """Handle the end of the output."""
        self._loop.call_later(0.0 if self.has_ended else LINGERS, self._gone)

    def _gone(self) -> None:
        if not self._is_over:
            self.is_deaf = self.is_deaf and not self.has_ended
            self.end()
            self._on_gone(self)

    def end(self) -> None:
        """Release the pipes and kill the process if it still runs."""
        self._let_go()
        self.source.close()
        if not self.has_ended:
            self.process.kill()
        self._closed()

    def _let_go(self) -> None:
        self._is_over = True
        if self.process.stdin is not None and not self.process.stdin.closed:
            self._loop.remove_reader(self._stdin)
        self.outlet.let_go()

    def _closed(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:  # noqa: SIM105 - contextlib is not needed for this
                    pipe.close()
                except OSError:
                    pass  # unwritten data for a closed reader

    async def stop(self) -> int | None:
        """Stop the server as the protocol says: close its input, then SIGTERM, then SIGKILL."""
        deadline = self._loop.time() + GRACE
        while not self.outlet.is_empty and not self.outlet.is_broken and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        self._let_go()
        if self.process.stdin is not None:
            self.process.stdin.close()
        for ask in (None, self.process.terminate, self.process.kill):
            if ask is not None:
                ask()
            if await self._ended_within(GRACE):
                break
        self.source.close()
        self._closed()
        return self.process.poll()

    async def _ended_within(self, seconds: float) -> bool:
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
