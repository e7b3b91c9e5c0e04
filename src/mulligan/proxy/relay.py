"""Relay between client and server: forwarding, pending requests, timeouts and restarts. Independent of transports."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from mulligan.proxy import messages
from mulligan.proxy.messages import Envelope, Id, InvalidAnswerError, build_error, build_message, decode_params
from mulligan.proxy.server import Pausable, restart_delay
from mulligan.recover.policy import Mode

UNSET = msgspec.UNSET
REPLAYED_REQUESTS = ("logging/setLevel", "resources/subscribe")
"""Requests to repeat after a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOptions:
    name: str
    """Name of the server in records."""
    mode: Mode = "suggest"
    should_trust_annotations: bool = False
    should_pin: bool = False
    should_inject_lessons: bool = False
    timeout: float = 300.0
    """Seconds of a call without an answer or progress. 0 means no limit."""
    start_timeout: float = 120.0
    """Seconds for the answer to the first message. 0 means no limit."""
    should_restart: bool = True
    session: str | None = None
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Rules of the user's settings, by `server.tool`, `server.*` or `*`."""

    def merge_rules(self, tool: str) -> dict[str, Any]:
        """Merge the rules for a tool. The most specific rule wins."""
        merged_rule: dict[str, Any] = {}
        for key in ("*", f"{self.name}.*", f"{self.name}.{tool}"):
            merged_rule.update(self.rules.get(key, {}))
        return merged_rule


@dataclass(slots=True, eq=False)
class PendingRequest:
    """Request that waits for its answer, or for the error that there will be none."""

    handle_answer: Callable[[Envelope, bytes], None]
    handle_no_answer: Callable[[Exception], None]
    timeout: float = 0.0
    token: Id = None
    """Progress under this token extends the deadline."""
    deadline: float = 0.0


class ToolCallHandler(Protocol):
    """Recovery of the tool calls of a connection, as the relay uses it: see `ToolCallRelay`."""

    def set_client(self, params: msgspec.Raw) -> None: ...
    def begin(self, envelope: Envelope, line: bytes) -> bool: ...
    def cancel(self, id: Id, line: bytes) -> bool: ...
    def build_list_handler(self, params: msgspec.Raw) -> Callable[[Envelope, bytes], None]: ...
    def find_schema(self, tool: str) -> Any: ...
    async def close(self, seconds: float) -> None: ...


class ClientConnection(Protocol):
    """Client of a relay: standard input and output, an HTTP session, or the group that several servers belong to."""

    source: Pausable | None
    """Server connection that is paused while the client reads too slowly."""

    def write(self, data: bytes) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close_input(self) -> None: ...
    async def close(self) -> None: ...


class ServerConnection(Pausable, Protocol):
    """Connection to the server: a process or a URL."""

    @property
    def has_ended(self) -> bool: ...
    def write(self, line: bytes) -> None: ...
    def handle_output_closed(self) -> None: ...
    def end(self) -> None: ...
    async def stop(self) -> None: ...


class Relay:
    """Connection between one client and one server at a time.

    `connect` opens the connection to the server, again after each exit. It raises OSError if that is impossible.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: ProxyOptions,
        client: ClientConnection,
        connect: Callable[[Relay], ServerConnection],
    ) -> None:
        self.loop = loop
        self.options = options
        self.calls: ToolCallHandler
        """Set before the event loop reads the first message."""
        self.pending: dict[Id, PendingRequest] = {}
        self.finished: asyncio.Future[int] = loop.create_future()
        self._connect = connect
        self._server_requests: set[Id] = set()
        """Requests of the server that the client has not answered."""
        self._restart_count = 0
        """Restarts in a row without an answer."""
        self._late_answers: deque[tuple[Id, PendingRequest]] = deque()
        """Cancelled requests whose late answers are forwarded."""
        self._has_answered = False
        self._queue: list[tuple[bytes, PendingRequest | None]] = []
        """Messages that wait for the restarted server."""
        self._handshake: bytes | None = None
        self.initialized_line: bytes | None = None
        """Notification with which the client ended the handshake."""
        self._replayed_lines: dict[tuple[str, str], bytes] = {}
        self._id_count = 0
        self._prefix = f"mulligan-{os.urandom(6).hex()}-"
        self._problem_count = 0
        self.end_reason = ""
        self._expiry_timer: asyncio.TimerHandle | None = None
        self.server: ServerConnection | None = None
        self._ready: asyncio.Event = asyncio.Event()
        self._ready.set()
        self.client = client
        self._attach_server()

    def _attach_server(self) -> None:
        self.server = self.client.source = self._connect(self)

    # From the client

    def from_client(self, line: bytes) -> None:
        try:
            envelope = messages.decode_envelope(line)
        except msgspec.DecodeError:
            for batch_item in messages.decode_batch(line):
                if batch_item.id is not UNSET and batch_item.method is not UNSET:
                    self.pending.setdefault(batch_item.id, self._forwarded(batch_item.id, batch_item.method))
            self.send(line)
            return
        method = envelope.method
        if method is UNSET:
            self._server_requests.discard(None if envelope.id is UNSET else envelope.id)
            self.send(line)
        elif envelope.id is UNSET:
            if method == "notifications/initialized":
                self.initialized_line = line
            is_cancel = method == "notifications/cancelled"
            if not is_cancel or not self.calls.cancel(decode_params(envelope.params).request, line):
                self.send(line)
        elif envelope.id in self.pending:
            self.send(line)  # duplicate id: client and server must match the answers
        elif method != "tools/call" or not self.calls.begin(envelope, line):
            self._forward_request(envelope.id, method, envelope, line)

    def _forward_request(self, id: Id, method: str, envelope: Envelope, line: bytes) -> None:
        entry = self._forwarded(id, method)
        if method in ("initialize", "server/discover"):
            if method == "initialize":
                self._handshake = line
                self.calls.set_client(envelope.params)
            entry.timeout = self.options.start_timeout
        elif method == "tools/list":
            entry.handle_answer = self.calls.build_list_handler(envelope.params)
        elif method in REPLAYED_REQUESTS:
            self._replayed_lines[method, str(decode_params(envelope.params).uri)] = line
        elif method == "resources/unsubscribe":
            self._replayed_lines.pop(("resources/subscribe", str(decode_params(envelope.params).uri)), None)
        self.expect(id, entry)
        self.send(line, entry)

    def _forwarded(self, id: Id, method: str) -> PendingRequest:
        """Build the entry of a client request that is forwarded unchanged."""

        def handle_no_answer(error: Exception) -> None:
            self.client.write(build_error(id, f"{method}: {error}"))
            if isinstance(error, TimeoutError):  # only the first message has a time limit: the server did not start
                self.finish(1, str(error))

        return PendingRequest(self._forward_answer, handle_no_answer)

    def _forward_answer(self, envelope: Envelope, line: bytes) -> None:
        self.client.write(line)

    # To the server, and pending requests

    def send(self, line: bytes, entry: PendingRequest | None = None) -> None:
        # Messages for a server that has ended wait for the next one.
        if self._ready.is_set() and self.server is not None and not self.server.has_ended:
            self.server.write(line)
        else:
            self._queue.append((line, entry))

    def new_id(self) -> str:
        self._id_count += 1
        return f"{self._prefix}{self._id_count}"

    def expect(self, id: Id, entry: PendingRequest) -> None:
        """Wait for the answer to a request."""
        self.pending[id] = entry
        if entry.timeout:
            entry.deadline = self.loop.time() + entry.timeout
            self._schedule_expiry(entry.timeout)

    def stop_waiting(self, id: Id) -> None:
        entry = self.pending.pop(id, None)
        if self._queue and entry is not None:
            self._unqueue(entry)

    def fail_request(self, id: Id, error: Exception) -> None:
        """Give up a request that the server will not answer."""
        entry = self.pending.pop(id, None)
        if entry is not None:
            entry.handle_no_answer(error)

    @property
    def handshake_lines(self) -> list[bytes]:
        """Messages that open another session of the server for this client: `initialize` first."""
        return [line for line in (self._handshake, self.initialized_line, *self._replayed_lines.values()) if line]

    def _unqueue(self, entry: PendingRequest) -> None:
        """Remove a request from the queue, so that it is not sent after a restart."""
        self._queue = [queued_item for queued_item in self._queue if queued_item[1] is not entry]

    def _schedule_expiry(self, timeout: float) -> None:
        """Schedule the next check of deadlines: after an eighth of this timeout, at most one second."""
        due = self.loop.time() + min(1.0, max(0.01, timeout / 8))
        if self._expiry_timer is not None:
            if self._expiry_timer.when() <= due:
                return
            self._expiry_timer.cancel()
        self._expiry_timer = self.loop.call_at(due, self._expire_requests)

    def _expire_requests(self) -> None:
        self._expiry_timer = None
        now = self.loop.time()
        for id, entry in list(self.pending.items()):
            if not entry.timeout or now < entry.deadline:
                continue
            if self._server_requests:
                entry.deadline = now + entry.timeout  # a person may be answering
                continue
            self.pending.pop(id, None)
            self._unqueue(entry)
            entry.handle_no_answer(TimeoutError(f"no answer in {entry.timeout:g} s"))
        if self.server is not None and self.server.has_ended:
            self.server.handle_output_closed()  # a child process keeps the output open
        shortest = min((entry.timeout for entry in self.pending.values() if entry.timeout), default=None)
        if shortest is not None:
            self._schedule_expiry(shortest)

    def cancel_request(self, id: Id, reason: str) -> None:
        """Tell the server that a request is cancelled."""
        self.send(build_message(method="notifications/cancelled", params={"requestId": id, "reason": reason}))

    def forward_late_answer(self, id: Id) -> None:
        """Forward a late answer to a cancelled request."""
        # Limit of cancelled requests whose late answers are forwarded
        if len(self._late_answers) >= 1000:
            oldest_id, oldest = self._late_answers.popleft()
            if self.pending.get(oldest_id) is oldest:
                del self.pending[oldest_id]
        entry = self.pending[id] = PendingRequest(self._forward_answer, lambda error: None)
        self._late_answers.append((id, entry))

    # From the server

    def from_server(self, line: bytes) -> None:
        try:
            envelope = messages.decode_envelope(line)
        except msgspec.ValidationError:
            envelope = None
        except msgspec.DecodeError:
            self._handle_invalid_line(line)
            return
        if not messages.is_utf8(line):
            self._handle_invalid_line(line)
        elif envelope is None:
            self.client.write(line)  # unknown JSON, for example a batch of answers
        elif envelope.method is not UNSET:
            if envelope.id is not UNSET:
                self._server_requests.add(envelope.id)
            elif envelope.method == "notifications/progress":
                token = decode_params(envelope.params).token
                for entry in self.pending.values():
                    if token is not None and entry.token == token:
                        entry.deadline = self.loop.time() + entry.timeout
            self.client.write(line)
        elif envelope.id is UNSET or envelope.id is None:
            self.client.write(line)
        elif (answered_request := self.pending.pop(envelope.id, None)) is None:
            self._report_problem("answered an unknown or already answered request", line)
        else:
            self._has_answered = True
            self._restart_count = 0
            if envelope.result == messages.EMPTY_RAW and envelope.error == messages.EMPTY_RAW:
                # Not forwarded: clients ignore such an answer and wait for ever.
                message = "Invalid response of the server: neither a result nor an error"
                answered_request.handle_no_answer(InvalidAnswerError(message))
            else:
                answered_request.handle_answer(envelope, line)

    def _handle_invalid_line(self, line: bytes) -> None:
        """Report an invalid line and do not forward it: many clients close the connection when they receive one."""
        if not line.strip():
            return
        id = messages.find_id(line)
        entry = None if id is None else self.pending.pop(id, None)
        if entry is not None:
            message = "Invalid JSON in the response of the server: not UTF-8, or not JSON"
            entry.handle_no_answer(InvalidAnswerError(message))
        else:
            self._report_problem("wrote a line that is not a JSON-RPC message", line)

    def _report_problem(self, problem: str, line: bytes) -> None:
        self._problem_count += 1
        # Limit of reported problems in a server's output
        if self._problem_count <= 5:
            excerpt = line[:200].decode("utf-8", "replace")
            excerpt = "".join(character if character.isprintable() else " " for character in excerpt).strip()
            self.print_message(f"the server {problem}: {excerpt}")

    def print_message(self, message: str) -> None:
        print(f"mulligan: {message}", file=sys.stderr, flush=True)

    # Exit and restart of the server

    def restart(self, reason: str) -> None:
        """Fail the pending requests, then restart the server if restarts remain."""
        if self.finished.done():
            return
        if self.server is not None:
            self.server.end()
            self.server = None
        self._ready.clear()
        self._server_requests.clear()
        can_restart = self.options.should_restart and self._has_answered
        delay = restart_delay(self._restart_count) if can_restart else None
        self._restart_count += 1
        queued = {id(entry) for _, entry in self._queue}
        unanswered = {key: entry for key, entry in self.pending.items() if id(entry) not in queued}
        self.pending = {key: entry for key, entry in self.pending.items() if id(entry) in queued}
        for entry in unanswered.values():
            entry.handle_no_answer(ConnectionResetError(reason))
        if delay is None:
            self.finish(1, reason)
            return
        self.print_message(f"{reason}; restarting it in {delay:g} s")
        self.loop.call_later(delay, self._restart_server)

    def _restart_server(self) -> None:
        if self.finished.done():
            return
        try:
            self._attach_server()
        except OSError as error:
            self.restart(f"the server cannot be started: {error.strerror}")
            return
        assert self.server is not None
        if self._handshake is None:
            self._mark_ready()
            return
        id = self.new_id()
        self.expect(id, self._internal(self._finish_handshake, self.options.start_timeout))
        self.server.write(messages.replace_id(self._handshake, id))

    def _internal(self, handle_answer: Callable[[Envelope, bytes], None], timeout: float = 0.0) -> PendingRequest:
        """Build the entry of a request of our own to a restarted server."""

        def handle_no_answer(error: Exception) -> None:
            if timeout and isinstance(error, TimeoutError | InvalidAnswerError):
                self.restart(f"{error}")

        return PendingRequest(handle_answer, handle_no_answer, timeout)

    def _finish_handshake(self, envelope: Envelope, line: bytes) -> None:
        if envelope.error != messages.EMPTY_RAW:
            self.restart("the restarted server rejected the handshake")
            return
        assert self.server is not None
        if self.initialized_line is not None:
            self.server.write(self.initialized_line)
        for line in self._replayed_lines.values():
            id = self.new_id()
            self.pending[id] = self._internal(lambda envelope, line: None)
            self.server.write(messages.replace_id(line, id))
        self._mark_ready()

    def _mark_ready(self) -> None:
        assert self.server is not None
        self._ready.set()
        queue, self._queue = self._queue, []
        for line, _ in queue:
            self.server.write(line)

    async def wait_until_ready(self) -> None:
        """Wait until a restarted server is ready."""
        await self._ready.wait()
        if self.finished.done():
            raise ConnectionResetError(self.end_reason or "the connection closed")

    def finish(self, code: int, reason: str = "") -> None:
        """End the connection and fail all pending requests."""
        if self.finished.done():
            return
        self.finished.set_result(code)
        self.end_reason = reason
        self._ready.set()  # recoveries that wait for a restart give up
        if reason:
            self.print_message(f"{reason}; closing the connection")
            pending, self.pending = self.pending, {}
            for entry in pending.values():
                entry.handle_no_answer(ConnectionResetError(reason))

    async def close(self) -> None:
        """End the calls, stop the server, then write what the client has not read yet."""
        # Time for pending calls to be answered after the server has ended
        await self.calls.close(2.0 if self.finished.done() and self.finished.result() == 1 else 0.0)
        self.client.close_input()
        if self.server is not None:
            await self.server.stop()
        await self.client.close()
