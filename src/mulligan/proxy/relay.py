"""Relay between client and server: forwarding, pending requests, timeouts and restarts."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from mulligan.proxy import messages
from mulligan.proxy.message_framing import READ_CHUNK_BYTES, Outlet, Source
from mulligan.proxy.messages import NO_ANSWER_CODE, Envelope, Id
from mulligan.proxy.process import start_server_process
from mulligan.proxy.proxy_rules import ProxyOptions
from mulligan.proxy.server import RestartBackoff, ServerProcess

UNSET = msgspec.UNSET
CANCELLED = "cancelled"
"""Method of a cancelled request, whose late answer is forwarded."""
MAX_LATE_ANSWERS = 1000
"""Limit of cancelled requests whose late answers are forwarded."""
MAX_REPORTED_PROBLEMS = 5
"""Limit of reported problems in a server's output."""
REPLAYED_REQUESTS = {"logging/setLevel": "", "resources/subscribe": "uri"}
"""Requests to repeat after a restart, with the parameter that distinguishes them."""


class InvalidAnswerError(ValueError):
    """Invalid message from the server."""


class PendingRequest:
    """Request that waits for its answer."""

    __slots__ = ("deadline", "timeout")

    def __init__(self) -> None:
        self.timeout = 0.0
        self.deadline = 0.0

    def handle_answer(self, envelope: Envelope, line: bytes) -> None:
        raise NotImplementedError

    def handle_no_answer(self, error: Exception) -> None:
        """Handle a failure: there will be no answer."""
        raise NotImplementedError


class ForwardedRequest(PendingRequest):
    """Client request that is forwarded unchanged."""

    __slots__ = ("_id", "_on_answer", "_relay", "method")

    def __init__(
        self, relay: Relay, id: Id, method: str, on_answer: Callable[[Envelope, bytes], None] | None = None
    ) -> None:
        super().__init__()
        self._relay = relay
        self._id = id
        self.method = method
        self._on_answer = on_answer

    def handle_answer(self, envelope: Envelope, line: bytes) -> None:
        if self._on_answer is None:
            self._relay.client.write(line)
        else:
            self._on_answer(envelope, line)

    def handle_no_answer(self, error: Exception) -> None:
        if self.method == CANCELLED:
            return
        self._relay.client.write(messages.build_error(self._id, NO_ANSWER_CODE, f"{self.method}: {error}"))
        if isinstance(error, TimeoutError):  # only the first message has a time limit: the server did not start
            self._relay.finish(1, str(error))


class InternalRequest(PendingRequest):
    """Request of our own to a restarted server."""

    __slots__ = ("_on_answer", "_relay")

    def __init__(self, relay: Relay, on_answer: Callable[[Envelope], None]) -> None:
        super().__init__()
        self._relay = relay
        self._on_answer = on_answer

    def handle_answer(self, envelope: Envelope, line: bytes) -> None:
        self._on_answer(envelope)

    def handle_no_answer(self, error: Exception) -> None:
        if isinstance(error, TimeoutError):
            self._relay.restart(f"{error}")


class ToolCallHandler(Protocol):
    """Recovery of the tool calls of a connection, as the relay uses it."""

    def set_client(self, params: msgspec.Raw) -> None:
        """Store the client's name and version from its first message."""

    def begin(self, envelope: Envelope, line: bytes) -> bool:
        """Start handling a tool call. Return False if the request must be forwarded unchanged."""

    def cancel(self, id: Id, line: bytes) -> bool:
        """Cancel a tool call. Return False if the notification must be forwarded unchanged."""

    def build_list_handler(self, params: msgspec.Raw) -> Callable[[Envelope, bytes], None]:
        """Return the handler of the answer to `tools/list`."""


class Relay:
    """Connection between one client and one server at a time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: ProxyOptions,
        command: Sequence[str],
        environment: Mapping[str, str],
        process: subprocess.Popen[bytes],
    ) -> None:
        self.loop = loop
        self.options = options
        self.calls: ToolCallHandler | None = None
        """Handler of tool calls. If None, they are forwarded like other requests."""
        self.pending: dict[Id, PendingRequest] = {}
        self.finished: asyncio.Future[int] = loop.create_future()
        self._command = command
        self._environment = environment
        self._server_requests: set[Id] = set()
        """Requests of the server that the client has not answered."""
        self._tokens: dict[Id, PendingRequest] = {}
        self._restarts = RestartBackoff()
        self._has_answered = False
        self._is_ready = True
        self._queue: list[tuple[bytes, PendingRequest | None]] = []
        """Messages that wait for the restarted server."""
        self._handshake: bytes | None = None
        self._initialized: bytes | None = None
        self._replayed_lines: dict[tuple[str, str], bytes] = {}
        self._id_count = 0
        self._prefix = f"mulligan-{os.urandom(6).hex()}-"
        self._problem_count = 0
        self._end_reason = ""
        self._expiry_timer: asyncio.TimerHandle | None = None
        self.server: ServerProcess | None = None
        self._ready: asyncio.Event = asyncio.Event()
        self._ready.set()
        self.client = Outlet(loop, 1, self._handle_client_exit)
        self.stdin = Source(loop, make_watchable(0), self.from_client, self._handle_client_exit)
        self._attach_server(process)

    def _attach_server(self, process: subprocess.Popen[bytes]) -> None:
        self.server = ServerProcess(self.loop, process, self.from_server, self._handle_server_exit)
        self.server.outlet.source = self.stdin
        self.client.source = self.server.source

    # From the client

    def from_client(self, line: bytes) -> None:
        try:
            envelope = messages.decode_envelope(line)
        except msgspec.DecodeError:
            for batch_item in messages.decode_batch(line):
                if batch_item.id is not UNSET and batch_item.method is not UNSET:
                    self.pending.setdefault(batch_item.id, ForwardedRequest(self, batch_item.id, batch_item.method))
            self.send(line)
            return
        method = envelope.method
        if method is UNSET:
            self._server_requests.discard(None if envelope.id is UNSET else envelope.id)
            self.send(line)
        elif envelope.id is UNSET:
            self._forward_notification(method, envelope, line)
        elif envelope.id in self.pending:
            self.send(line)  # duplicate id: client and server must match the answers
        elif method != "tools/call" or self.calls is None or not self.calls.begin(envelope, line):
            self._forward_request(method, envelope, line)

    def _forward_notification(self, method: str, envelope: Envelope, line: bytes) -> None:
        if method == "notifications/cancelled" and self.calls is not None:
            cancelled: messages.CancelledParams = messages.decode_or_default(messages.CancelledParams, envelope.params)
            if self.calls.cancel(cancelled.request, line):
                return
        elif method == "notifications/initialized":
            self._initialized = line
        self.send(line)

    def _forward_request(self, method: str, envelope: Envelope, line: bytes) -> None:
        id = None if envelope.id is UNSET else envelope.id
        entry = ForwardedRequest(self, id, method)
        if method in ("initialize", "server/discover"):
            if method == "initialize":
                self._handshake = line
                if self.calls is not None:
                    self.calls.set_client(envelope.params)
            entry.timeout = self.options.start_timeout
        elif method == "tools/list" and self.calls is not None:
            entry = ForwardedRequest(self, id, method, self.calls.build_list_handler(envelope.params))
        elif method in REPLAYED_REQUESTS or method == "resources/unsubscribe":
            self._track_replayed_request(method, envelope.params, line)
        self.expect(id, entry)
        self.send(line, entry)

    def _track_replayed_request(self, method: str, params: msgspec.Raw, line: bytes) -> None:
        name = REPLAYED_REQUESTS.get(method, "uri")
        parameters = messages.decode_or_default(dict, params)
        key = (method.replace("unsubscribe", "subscribe"), str(parameters.get(name, "")))
        if method in REPLAYED_REQUESTS:
            self._replayed_lines[key] = line
        else:
            self._replayed_lines.pop(key, None)

    def _handle_client_exit(self) -> None:
        self.finish(0)

    # To the server, and pending requests

    def send(self, line: bytes, entry: PendingRequest | None = None) -> None:
        # Messages for a server that has ended wait for the next one.
        if self._is_ready and self.server is not None and not self.server.has_ended:
            self.server.outlet.write(line)
        else:
            self._queue.append((line, entry))

    def new_id(self) -> str:
        self._id_count += 1
        return f"{self._prefix}{self._id_count}"

    def expect(self, id: Id, entry: PendingRequest, token: Id = None) -> None:
        """Wait for the answer to a request. Progress under this token extends its deadline."""
        self.pending[id] = entry
        if entry.timeout:
            entry.deadline = self.loop.time() + entry.timeout
            if token is not None:
                self._tokens[token] = entry
            self._schedule_expiry(entry.timeout)

    def stop_waiting(self, id: Id, token: Id = None) -> None:
        """Stop waiting for an answer."""
        entry = self.pending.pop(id, None)
        if self._queue and entry is not None:
            self._unqueue(entry)
        if token is not None:
            self._tokens.pop(token, None)

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
            self.server._handle_output_closed()  # a child process keeps the output open
        shortest = min((entry.timeout for entry in self.pending.values() if entry.timeout), default=None)
        if shortest is not None:
            self._schedule_expiry(shortest)

    def cancel_request(self, id: Id, reason: str) -> None:
        """Tell the server that a request is cancelled."""
        self.send(messages.build_notification("notifications/cancelled", {"requestId": id, "reason": reason}))

    def forward_late_answer(self, id: Id) -> None:
        """Forward a late answer to a cancelled request."""
        cancelled_ids = [
            key for key, entry in self.pending.items() if type(entry) is ForwardedRequest and entry.method == CANCELLED
        ]
        if len(cancelled_ids) >= MAX_LATE_ANSWERS:
            self.pending.pop(cancelled_ids[0], None)
        self.pending[id] = ForwardedRequest(self, id, CANCELLED)

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
            elif self._tokens and envelope.method == "notifications/progress":
                progress: messages.ProgressParams = messages.decode_or_default(messages.ProgressParams, envelope.params)
                entry = self._tokens.get(progress.token)
                if entry is not None:
                    entry.deadline = self.loop.time() + entry.timeout
            self.client.write(line)
        elif envelope.id is UNSET or envelope.id is None:
            self.client.write(line)
        else:
            entry = self.pending.pop(envelope.id, None)
            if entry is None:
                self._report_problem("answered an unknown or already answered request", line)
                return
            self._has_answered = True
            self._restarts.reset()
            entry.handle_answer(envelope, line)

    def _handle_invalid_line(self, line: bytes) -> None:
        """Report an invalid line and do not forward it: many clients close the connection when they receive one."""
        if not line.strip():
            return
        id = messages.find_id(line)
        entry = None if id is None else self.pending.pop(id, None)
        if entry is not None:
            entry.handle_no_answer(
                InvalidAnswerError("Invalid JSON in the response of the server: not UTF-8, or not JSON")
            )
        else:
            self._report_problem("wrote a line that is not a JSON-RPC message", line)

    def _report_problem(self, problem: str, line: bytes) -> None:
        self._problem_count += 1
        if self._problem_count <= MAX_REPORTED_PROBLEMS:
            excerpt = line[:200].decode("utf-8", "replace")
            excerpt = "".join(character if character.isprintable() else " " for character in excerpt).strip()
            self.print_message(f"the server {problem}: {excerpt}")

    def print_message(self, message: str) -> None:
        print(f"mulligan: {message}", file=sys.stderr, flush=True)

    # Exit and restart of the server

    def _handle_server_exit(self, server: ServerProcess) -> None:
        if self.finished.done():
            return
        self.restart(server.exit_description)

    def restart(self, reason: str) -> None:
        """Fail the pending requests, then restart the server if restarts remain."""
        if self.server is not None:
            self.server.end()
            self.server = None
        self._is_ready = False
        self._ready.clear()
        self._server_requests.clear()
        delay = self._restarts.next_delay() if self.options.should_restart and self._has_answered else None
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
            self._attach_server(start_server_process(self._command, self._environment))
        except OSError as error:
            self.restart(f"the server cannot be started: {error.strerror}")
            return
        assert self.server is not None
        if self._handshake is None:
            self._mark_ready()
            return
        id = self.new_id()
        entry = InternalRequest(self, self._finish_handshake)
        entry.timeout = self.options.start_timeout
        self.expect(id, entry)
        self.server.outlet.write(messages.replace_id(self._handshake, id))

    def _finish_handshake(self, envelope: Envelope) -> None:
        if envelope.error != messages.EMPTY_RAW:
            self.restart("the restarted server rejected the handshake")
            return
        assert self.server is not None
        if self._initialized is not None:
            self.server.outlet.write(self._initialized)
        for line in self._replayed_lines.values():
            id = self.new_id()
            self.pending[id] = InternalRequest(self, lambda envelope: None)
            self.server.outlet.write(messages.replace_id(line, id))
        self._mark_ready()

    def _mark_ready(self) -> None:
        assert self.server is not None
        self._is_ready = True
        self._ready.set()
        queue, self._queue = self._queue, []
        for line, _ in queue:
            self.server.outlet.write(line)

    async def wait_until_ready(self) -> None:
        """Wait until a restarted server is ready."""
        await self._ready.wait()
        if self.finished.done():
            raise ConnectionResetError(self._end_reason or "the connection closed")

    def finish(self, code: int, reason: str = "") -> None:
        """End the connection and fail all pending requests."""
        if self.finished.done():
            return
        self.finished.set_result(code)
        self._end_reason = reason
        self._ready.set()
        if reason:
            self.print_message(f"{reason}; closing the connection")
            pending, self.pending = self.pending, {}
            for entry in pending.values():
                entry.handle_no_answer(ConnectionResetError(reason))

    async def close(self) -> None:
        self.stdin.close()
        if self.server is not None:
            await self.server.stop()
        deadline = self.loop.time() + 1.0
        while not self.client.is_empty and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        self.client.release()


def make_watchable(fd: int) -> int:
    """Return a descriptor that an event loop can watch. A thread copies a regular file to a pipe."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    out, into = os.pipe()

    def fill() -> None:
        while data := os.read(fd, READ_CHUNK_BYTES):
            os.write(into, data)
        os.close(into)

    threading.Thread(target=fill, daemon=True).start()
    return out
