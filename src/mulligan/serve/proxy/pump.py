"""The two ways of a connection: what passes byte for byte, what waits for an answer, and what becomes of it when the
server is late, silent or gone."""

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
"""The method of a request that nobody waits for any more."""
LATE = 1000
"""Cancelled requests whose late answers are still let through."""
TOLD = 5
"""Times that we complain about a server's output."""
STANDING = {"logging/setLevel": "", "resources/subscribe": "uri"}
"""Requests that a server which was started again must hear again, and what tells one from another."""


class BadAnswer(ValueError):
    """What the server said is not a message."""


class Entry:
    """A request that waits for its answer."""

    __slots__ = ("deadline", "timeout")

    def __init__(self) -> None:
        self.timeout = 0.0
        self.deadline = 0.0

    def answered(self, said: Envelope, line: bytes) -> None:
        raise NotImplementedError

    def lost(self, error: Exception) -> None:
        """There will be no answer."""
        raise NotImplementedError


class Passed(Entry):
    """A request of the client's that is none of our business."""

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
        if isinstance(error, TimeoutError):  # only its first message has a time limit: without it there is no server
            self._pump.finish(1, str(error))


class Heard(Entry):
    """A request of our own, to a server that was started again."""

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
    """One client, one server at a time."""

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
        """Who looks after tool calls; without it they pass like everything else."""
        self.pending: dict[Id, Entry] = {}
        self.over: asyncio.Future[int] = loop.create_future()
        self._command = command
        self._environment = environment
        self._asking: set[Id] = set()
        """Requests of the server's that the client has not answered."""
        self._tokens: dict[Id, Entry] = {}
        self._restarts = Restarts()
        self._has_answered = False
        self._is_ready = True
        self._queue: list[tuple[bytes, Entry | None]] = []
        """What waits for the server to be there again."""
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
            self.send(line)  # the same id twice: whose answer is whose is between the two of them
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

    # To the server, and what is expected of it

    def send(self, line: bytes, entry: Entry | None = None) -> None:
        # What is given to a server that is not there any more is not lost: it waits for the next one.
        if self._is_ready and self.server is not None and not self.server.has_ended:
            self.server.outlet.write(line)
        else:
            self._queue.append((line, entry))

    def new_id(self) -> str:
        self._numbers += 1
        return f"{self._prefix}{self._numbers}"

    def expect(self, id: Id, entry: Entry, token: Id = None) -> None:
        """Waits for the answer to a request; as long as there is progress, under this token, it is not late."""
        self.pending[id] = entry
        if entry.timeout:
            entry.deadline = self.loop.time() + entry.timeout
            if token is not None:
                self._tokens[token] = entry
            self._watch(entry.timeout)

    def settle(self, id: Id, token: Id = None) -> None:
        """No longer waits for it."""
        entry = self.pending.pop(id, None)
        if self._queue and entry is not None:
            self._unqueue(entry)
        if token is not None:
            self._tokens.pop(token, None)

    def _unqueue(self, entry: Entry) -> None:
        """What nobody waits for is not sent when the server is there again."""
        self._queue = [each for each in self._queue if each[1] is not entry]

    def _watch(self, timeout: float) -> None:
        """Looks at what waits, soon enough for something that may wait so long: an eighth of that, a second at most."""
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
                entry.deadline = now + entry.timeout  # it may be a person who thinks
                continue
            self.pending.pop(id, None)
            self._unqueue(entry)
            entry.lost(TimeoutError(f"there was no answer in {entry.timeout:g} s"))
        if self.server is not None and self.server.has_ended:
            self.server._silent()  # something that it started holds its output open
        shortest = min((each.timeout for each in self.pending.values() if each.timeout), default=None)
        if shortest is not None:
            self._watch(shortest)

    def cancel(self, id: Id, why: str) -> None:
        """Tells the server that nobody waits for an answer any more."""
        self.send(messages.notification("notifications/cancelled", {"requestId": id, "reason": why}))

    def let_pass(self, id: Id) -> None:
        """An answer to a cancelled request goes to the client, should there be one."""
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
            self.client.write(line)  # JSON, and not what we know: a batch of answers, or something new
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
        """Not passed on: half of the clients end the connection when they meet something that is no message."""
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

    # The server's end, and its next life

    def _gone(self, server: Server) -> None:
        if self.over.done():
            return
        self.restart(server.epitaph)

    def restart(self, why: str) -> None:
        """Answers what waits, and starts the server again where that may help."""
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
        """Waits for a server that is being started again."""
        await self._ready.wait()
        if self.over.done():
            raise ConnectionResetError(self._why or "the connection ended")

    def finish(self, code: int, why: str = "") -> None:
        """The end of the connection, for everybody who still waits."""
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
    """The descriptor, or a pipe that is filled from it where it is a file, which no event loop can watch."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    out, into = os.pipe()

    def fill() -> None:
        while data := os.read(fd, AT_ONCE):
            os.write(into, data)
        os.close(into)

    threading.Thread(target=fill, daemon=True).start()
    return out
