"""Relay between client and server: forwarding, pending requests, timeouts and restarts."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from mulligan.serve.proxy import messages
from mulligan.serve.proxy.framing import AT_ONCE, Outlet, Source
from mulligan.serve.proxy.messages import GONE, Envelope, Id
from mulligan.serve.proxy.process import started
from mulligan.serve.proxy.rules import Options
from mulligan.serve.proxy.server import Restarts, Server

if TYPE_CHECKING:
    from mulligan.serve.proxy.calls import Calls

UNSET = msgspec.UNSET
CANCELLED = "cancelled"
"""Method of a cancelled request, whose late answer is forwarded."""
LATE = 1000
"""Limit of cancelled requests whose late answers are forwarded."""
TOLD = 5
"""Limit of reported problems in a server's output."""
STANDING = {"logging/setLevel": "", "resources/subscribe": "uri"}
"""Requests to repeat after a restart, with the parameter that distinguishes them."""


class BadAnswer(ValueError):
    """Invalid message from the server."""


class Entry:
    """Request that waits for its answer."""

    __slots__ = ("deadline", "timeout")

    def __init__(self) -> None:
        self.timeout = 0.0
        self.deadline = 0.0

    def answered(self, said: Envelope, line: bytes) -> None:
        raise NotImplementedError

    def lost(self, error: Exception) -> None:
        """Handle a failure: there will be no answer."""
        raise NotImplementedError


class Passed(Entry):
    """Client request that is forwarded unchanged."""

    __slots__ = ("_id", "_on_answer", "_pump", "method")

    def __init__(
        self, pump: Pump, id: Id, method: str, on_answer: Callable[[Envelope, bytes], None] | None = None
    ) -> None:
        super().__init__()
        self._pump = pump
        self._id = id
        self.method = method
        self._on_answer = on_answer

    def answered(self, said: Envelope, line: bytes) -> None:
        if self._on_answer is None:
            self._pump.client.write(line)
        else:
            self._on_answer(said, line)

    def lost(self, error: Exception) -> None:
        if self.method == CANCELLED:
            return
        self._pump.client.write(messages.refusal(self._id, GONE, f"{self.method}: {error}"))
        if isinstance(error, TimeoutError):  # only the first message has a time limit: the server did not start
            self._pump.finish(1, str(error))


class Heard(Entry):
    """Request of our own to a restarted server."""

    __slots__ = ("_on_answer", "_pump")

    def __init__(self, pump: Pump, on_answer: Callable[[Envelope], None]) -> None:
        super().__init__()
        self._pump = pump
        self._on_answer = on_answer

    def answered(self, said: Envelope, line: bytes) -> None:
        self._on_answer(said)

    def lost(self, error: Exception) -> None:
        if isinstance(error, TimeoutError):
            self._pump.restart(f"{error}")


class Pump:
    """Connection between one client and one server at a time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: Options,
        command: Sequence[str],
        environment: Mapping[str, str],
        process: subprocess.Popen[bytes],
    ) -> None:
        self.loop = loop
        self.options = options
        self.calls: Calls | None = None
        """Handler of tool calls. If None, they are forwarded like other requests."""
        self.pending: dict[Id, Entry] = {}
        self.over: asyncio.Future[int] = loop.create_future()
        self._command = command
        self._environment = environment
        self._asking: set[Id] = set()
        """Requests of the server that the client has not answered."""
        self._tokens: dict[Id, Entry] = {}
        self._restarts = Restarts()
        self._has_answered = False
        self._is_ready = True
        self._queue: list[tuple[bytes, Entry | None]] = []
        """Messages that wait for the restarted server."""
        self._handshake: bytes | None = None
        self._initialized: bytes | None = None
        self._standing: dict[tuple[str, str], bytes] = {}
        self._numbers = 0
        self._prefix = f"mulligan-{os.urandom(6).hex()}-"
        self._complaints = 0
        self._why = ""
        self._watching: asyncio.TimerHandle | None = None
        self.server: Server | None = None
        self._ready: asyncio.Event = asyncio.Event()
        self._ready.set()
        self.client = Outlet(loop, 1, self._client_gone)
        self.stdin = Source(loop, readable(0), self.from_client, self._client_gone)
        self._began(process)

    def _began(self, process: subprocess.Popen[bytes]) -> None:
        self.server = Server(self.loop, process, self.from_server, self._gone)
        self.server.outlet.source = self.stdin
        self.client.source = self.server.source

    # From the client

    def from_client(self, line: bytes) -> None:
        try:
            said = messages.envelope(line)
        except msgspec.DecodeError:
            for each in messages.batch(line):
                if each.id is not UNSET and each.method is not UNSET:
                    self.pending.setdefault(each.id, Passed(self, each.id, each.method))
            self.send(line)
            return
        method = said.method
        if method is UNSET:
            self._asking.discard(None if said.id is UNSET else said.id)
            self.send(line)
        elif said.id is UNSET:
            self._notified(method, said, line)
        elif said.id in self.pending:
            self.send(line)  # duplicate id: client and server must match the answers
        elif method != "tools/call" or self.calls is None or not self.calls.begin(said, line):
            self._pass(method, said, line)

    def _notified(self, method: str, said: Envelope, line: bytes) -> None:
        if method == "notifications/cancelled" and self.calls is not None:
            cancelled: messages.Cancelled = messages.read(messages.Cancelled, said.params)
            if self.calls.cancel(cancelled.request, line):
                return
        elif method == "notifications/initialized":
            self._initialized = line
        self.send(line)

    def _pass(self, method: str, said: Envelope, line: bytes) -> None:
        id = None if said.id is UNSET else said.id
        entry = Passed(self, id, method)
        if method in ("initialize", "server/discover"):
            if method == "initialize":
                self._handshake = line
                if self.calls is not None:
                    self.calls.met(said.params)
            entry.timeout = self.options.start_timeout
        elif method == "tools/list" and self.calls is not None:
            entry = Passed(self, id, method, self.calls.listing(said.params))
        elif method in STANDING or method == "resources/unsubscribe":
            self._stands(method, said.params, line)
        self.expect(id, entry)
        self.send(line, entry)

    def _stands(self, method: str, params: msgspec.Raw, line: bytes) -> None:
        name = STANDING.get(method, "uri")
        told = messages.read(dict, params)
        key = (method.replace("unsubscribe", "subscribe"), str(told.get(name, "")))
        if method in STANDING:
            self._standing[key] = line
        else:
            self._standing.pop(key, None)

    def _client_gone(self) -> None:
        self.finish(0)

    # To the server, and pending requests

    def send(self, line: bytes, entry: Entry | None = None) -> None:
        # Messages for a server that has ended wait for the next one.
        if self._is_ready and self.server is not None and not self.server.has_ended:
            self.server.outlet.write(line)
        else:
            self._queue.append((line, entry))

    def new_id(self) -> str:
        self._numbers += 1
        return f"{self._prefix}{self._numbers}"

    def expect(self, id: Id, entry: Entry, token: Id = None) -> None:
        """Wait for the answer to a request. Progress under this token extends its deadline."""
        self.pending[id] = entry
        if entry.timeout:
            entry.deadline = self.loop.time() + entry.timeout
            if token is not None:
                self._tokens[token] = entry
            self._watch(entry.timeout)

    def settle(self, id: Id, token: Id = None) -> None:
        """Stop waiting for an answer."""
        entry = self.pending.pop(id, None)
        if self._queue and entry is not None:
            self._unqueue(entry)
        if token is not None:
            self._tokens.pop(token, None)

    def _unqueue(self, entry: Entry) -> None:
        """Remove a request from the queue, so that it is not sent after a restart."""
        self._queue = [each for each in self._queue if each[1] is not entry]

    def _watch(self, timeout: float) -> None:
        """Schedule the next check of deadlines: after an eighth of this timeout, at most one second."""
        due = self.loop.time() + min(1.0, max(0.01, timeout / 8))
        if self._watching is not None:
            if self._watching.when() <= due:
                return
            self._watching.cancel()
        self._watching = self.loop.call_at(due, self._look)

    def _look(self) -> None:
        self._watching = None
        now = self.loop.time()
        for id, entry in list(self.pending.items()):
            if not entry.timeout or now < entry.deadline:
                continue
            if self._asking:
                entry.deadline = now + entry.timeout  # a person may be answering
                continue
            self.pending.pop(id, None)
            self._unqueue(entry)
            entry.lost(TimeoutError(f"there was no answer in {entry.timeout:g} s"))
        if self.server is not None and self.server.has_ended:
            self.server._silent()  # a child process keeps the output open
        shortest = min((each.timeout for each in self.pending.values() if each.timeout), default=None)
        if shortest is not None:
            self._watch(shortest)

    def cancel(self, id: Id, why: str) -> None:
        """Tell the server that a request is cancelled."""
        self.send(messages.notification("notifications/cancelled", {"requestId": id, "reason": why}))

    def let_pass(self, id: Id) -> None:
        """Forward a late answer to a cancelled request."""
        late = [key for key, entry in self.pending.items() if type(entry) is Passed and entry.method == CANCELLED]
        if len(late) >= LATE:
            self.pending.pop(late[0], None)
        self.pending[id] = Passed(self, id, CANCELLED)

    # From the server

    def from_server(self, line: bytes) -> None:
        try:
            said = messages.envelope(line)
        except msgspec.ValidationError:
            said = None
        except msgspec.DecodeError:
            self._junk(line)
            return
        if not messages.is_text(line):
            self._junk(line)
        elif said is None:
            self.client.write(line)  # unknown JSON, for example a batch of answers
        elif said.method is not UNSET:
            if said.id is not UNSET:
                self._asking.add(said.id)
            elif self._tokens and said.method == "notifications/progress":
                progress: messages.Progress = messages.read(messages.Progress, said.params)
                entry = self._tokens.get(progress.token)
                if entry is not None:
                    entry.deadline = self.loop.time() + entry.timeout
            self.client.write(line)
        elif said.id is UNSET or said.id is None:
            self.client.write(line)
        else:
            entry = self.pending.pop(said.id, None)
            if entry is None:
                self._complain("answered what was not asked, or was answered already", line)
                return
            self._has_answered = True
            self._restarts.worked()
            entry.answered(said, line)

    def _junk(self, line: bytes) -> None:
        """Report an invalid line and do not forward it: many clients close the connection when they receive one."""
        if not line.strip():
            return
        id = messages.id_in(line)
        entry = None if id is None else self.pending.pop(id, None)
        if entry is not None:
            entry.lost(BadAnswer("Invalid JSON in the response of the server: not UTF-8, or not JSON"))
        else:
            self._complain("wrote something to its output that is no message", line)

    def _complain(self, what: str, line: bytes) -> None:
        self._complaints += 1
        if self._complaints <= TOLD:
            shown = line[:200].decode("utf-8", "replace")
            shown = "".join(character if character.isprintable() else " " for character in shown).strip()
            self.tell(f"the server {what}: {shown}")

    def tell(self, what: str) -> None:
        print(f"mulligan: {what}", file=sys.stderr, flush=True)

    # Exit and restart of the server

    def _gone(self, server: Server) -> None:
        if self.over.done():
            return
        self.restart(server.epitaph)

    def restart(self, why: str) -> None:
        """Fail the pending requests, then restart the server if restarts remain."""
        if self.server is not None:
            self.server.end()
            self.server = None
        self._is_ready = False
        self._ready.clear()
        self._asking.clear()
        wait = self._restarts.next() if self.options.restarts and self._has_answered else None
        queued = {id(entry) for _, entry in self._queue}
        lost = {key: entry for key, entry in self.pending.items() if id(entry) not in queued}
        self.pending = {key: entry for key, entry in self.pending.items() if id(entry) in queued}
        for entry in lost.values():
            entry.lost(ConnectionResetError(why))
        if wait is None:
            self.finish(1, why)
            return
        self.tell(f"{why}; it is started again in {wait:g} s")
        self.loop.call_later(wait, self._again)

    def _again(self) -> None:
        if self.over.done():
            return
        try:
            self._began(started(self._command, self._environment))
        except OSError as error:
            self.restart(f"the server cannot be started: {error.strerror}")
            return
        assert self.server is not None
        if self._handshake is None:
            self._there()
            return
        id = self.new_id()
        entry = Heard(self, self._shaken)
        entry.timeout = self.options.start_timeout
        self.expect(id, entry)
        self.server.outlet.write(messages.with_id(self._handshake, id))

    def _shaken(self, said: Envelope) -> None:
        if said.error != messages.NOTHING:
            self.restart("the server refuses to be started again")
            return
        assert self.server is not None
        if self._initialized is not None:
            self.server.outlet.write(self._initialized)
        for line in self._standing.values():
            id = self.new_id()
            self.pending[id] = Heard(self, lambda said: None)
            self.server.outlet.write(messages.with_id(line, id))
        self._there()

    def _there(self) -> None:
        assert self.server is not None
        self._is_ready = True
        self._ready.set()
        queue, self._queue = self._queue, []
        for line, _ in queue:
            self.server.outlet.write(line)

    async def available(self) -> None:
        """Wait until a restarted server is ready."""
        await self._ready.wait()
        if self.over.done():
            raise ConnectionResetError(self._why or "the connection ended")

    def finish(self, code: int, why: str = "") -> None:
        """End the connection and fail all pending requests."""
        if self.over.done():
            return
        self.over.set_result(code)
        self._why = why
        self._ready.set()
        if why:
            self.tell(f"{why}; the connection ends")
            pending, self.pending = self.pending, {}
            for entry in pending.values():
                entry.lost(ConnectionResetError(why))

    async def close(self) -> None:
        self.stdin.close()
        if self.server is not None:
            await self.server.stop()
        deadline = self.loop.time() + 1.0
        while not self.client.is_empty and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        self.client.let_go()


def readable(fd: int) -> int:
    """Return a descriptor that an event loop can watch. A thread copies a regular file to a pipe."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    out, into = os.pipe()

    def fill() -> None:
        while data := os.read(fd, AT_ONCE):
            os.write(into, data)
        os.close(into)

    threading.Thread(target=fill, daemon=True).start()
    return out
