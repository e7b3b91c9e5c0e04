"""Proxy over streamable HTTP: each client session has a connection of its own to the servers.

Requests that a web page could send from a browser are refused: by the Host and Origin headers. Needs the `mcp` extra.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from mulligan.core.failure import MissingExtraError, SettingsError
from mulligan.proxy import messages
from mulligan.proxy.messages import Id, build_error
from mulligan.proxy.relay import ClientConnection
from mulligan.proxy.server import MAX_MESSAGE_BYTES, MAX_WAITING_BYTES, Pausable

try:
    import uvicorn
except ImportError:
    raise MissingExtraError(
        "--listen needs the mcp package, version 2. Install it: pip install 'mulligan[mcp]'"
    ) from None

PATH = "/mcp"
MAX_SESSIONS = 100
MAX_WAITING_MESSAGES = 1000
"""Limit of notifications for a client that reads no stream. The oldest are dropped."""
IDLE_SESSION_SECONDS = 3600.0
CHECK_INTERVAL_SECONDS = 60.0
METHOD_NOT_FOUND = -32601


class ClientEndpoint(Protocol):
    """What a client talks to: the relay of one server, or a group of servers."""

    finished: asyncio.Future[int]

    def from_client(self, line: bytes) -> None: ...
    def finish(self, code: int) -> None: ...
    async def close(self) -> None: ...


class MessageStream:
    """Messages for one HTTP response."""

    def __init__(self, id: Id = None) -> None:
        self.id = id
        self.lines: deque[bytes] = deque()
        self.has_lines = asyncio.Event()
        self.is_closed = False

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self.has_lines.set()

    def close(self) -> None:
        self.is_closed = True
        self.has_lines.set()

    async def next_line(self) -> bytes:
        """Return the next message, empty after the last one."""
        while not self.lines and not self.is_closed:
            self.has_lines.clear()
            await self.has_lines.wait()
        return self.lines.popleft() if self.lines else b""


class HttpSession:
    """One client over HTTP. It is the client connection of its endpoint."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.id = uuid.uuid4().hex
        self.source: Pausable | None = None
        self.endpoint: ClientEndpoint
        self.requests: dict[Id, MessageStream] = {}
        """Streams of requests that wait for an answer, by request id."""
        self.notifications = MessageStream()
        self.reader_count = 0
        """Responses to GET that deliver the notifications."""
        self.used_at = loop.time()
        self._loop = loop
        self._waiting_bytes = 0

    def write(self, data: bytes) -> None:
        """Route a message: an answer to its request, anything else to the open stream."""
        try:
            envelope = messages.decode_envelope(data)
        except msgspec.DecodeError:
            envelope = messages.Envelope()
        if envelope.method is msgspec.UNSET and envelope.id is not msgspec.UNSET:
            stream = self.requests.pop(envelope.id, None)
            if stream is None:
                return  # its client hung up
            stream.add(data)
            stream.close()
        else:
            is_about_request = envelope.method == "notifications/progress" or not self.reader_count
            stream = next(reversed(self.requests.values()), None) if is_about_request else None
            if stream is None:
                stream = self.notifications
                if len(stream.lines) >= MAX_WAITING_MESSAGES:
                    self.mark_read(stream.lines.popleft())
            stream.add(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > MAX_WAITING_BYTES and self.source is not None:
            self.source.pause()

    def mark_read(self, line: bytes) -> None:
        """Count a message that was delivered or dropped."""
        was_full = self._waiting_bytes > MAX_WAITING_BYTES
        self._waiting_bytes -= len(line)
        self.used_at = self._loop.time()
        if was_full and self._waiting_bytes <= MAX_WAITING_BYTES and self.source is not None:
            self.source.resume()

    def pause(self) -> None:
        """Nothing to do: each message is a request of its own."""

    def resume(self) -> None:
        """Nothing to do, as for `pause`."""

    def close_input(self) -> None:
        """Nothing to do, as for `pause`."""

    async def close(self) -> None:
        for stream in (*self.requests.values(), self.notifications):
            stream.close()


class Listener:
    """HTTP application. `open_endpoint` connects a new session to the servers."""

    def __init__(
        self,
        host: str,
        port: int,
        open_endpoint: Callable[[ClientConnection], ClientEndpoint],
        *,
        is_remote_allowed: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._open_endpoint = open_endpoint
        self._sessions: dict[str, HttpSession] = {}
        self._is_remote_allowed = is_remote_allowed
        self.socket = bind_socket(host, port)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if not self._is_remote_allowed and not (
            is_loopback_host(headers.get("host", "")) and is_loopback_origin(headers.get("origin"))
        ):
            await respond(send, 403, build_error(None, "Forbidden: the request comes from another host or a web page"))
        elif scope["path"].rstrip("/") != PATH:
            await respond(send, 404, build_error(None, f"Not found. The server is at {PATH}"))
        elif scope["method"] == "POST":
            await self._handle_post(headers, receive, send)
        elif (session := self._sessions.get(headers.get("mcp-session-id", ""))) is None:
            await respond(send, 404, build_error(None, "Session not found"))
        elif scope["method"] == "GET":
            await self._stream_notifications(session, receive, send)
        elif scope["method"] == "DELETE":
            await self._end_session(session)
            await respond(send, 200)
        else:
            await respond(send, 405, build_error(None, "Method not allowed"))

    async def _handle_post(self, headers: dict[str, str], receive: Any, send: Any) -> None:
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            await respond(send, 415, build_error(None, "The content type must be application/json"))
            return
        body = await read_request(receive)
        if body is None:
            await respond(send, 413, build_error(None, f"The message is longer than {MAX_MESSAGE_BYTES} bytes"))
            return
        line = body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"
        try:
            envelope = messages.decode_envelope(line)
        except msgspec.DecodeError:
            await respond(send, 400, build_error(None, "Invalid message, or a batch", -32700))
            return
        id = None if envelope.id is msgspec.UNSET else envelope.id
        session = self._sessions.get(headers.get("mcp-session-id", ""))
        if envelope.method == "initialize":
            if len(self._sessions) >= MAX_SESSIONS:
                await respond(send, 503, build_error(id, f"Too many sessions, at most {MAX_SESSIONS}"))
                return
            try:
                session = self._begin_session()
            except OSError as error:
                await respond(send, 502, build_error(id, f"Cannot start the server: {error.strerror}"))
                return
        elif session is None and "mcp-session-id" in headers:
            await respond(send, 404, build_error(id, "Session not found"))
            return
        elif session is None:
            # Also for `server/discover`: over HTTP, clients of all versions make the handshake.
            is_request = envelope.method is not msgspec.UNSET and id is not None
            code = METHOD_NOT_FOUND if is_request else messages.NO_ANSWER_CODE
            await respond(send, 400, build_error(id, "Missing session. Send initialize first", code))
            return
        session.used_at = self._loop.time()
        if envelope.method is msgspec.UNSET or envelope.id is msgspec.UNSET:
            session.endpoint.from_client(line)
            await respond(send, 202)
        else:
            await self._answer_request(session, id, line, receive, send)

    async def _answer_request(self, session: HttpSession, id: Id, line: bytes, receive: Any, send: Any) -> None:
        """Answer with JSON, or with events if other messages come before the answer."""
        stream = session.requests[id] = MessageStream(id)
        session.endpoint.from_client(line)
        first_line = await stream.next_line()
        session_header = (b"mcp-session-id", session.id.encode())
        if not first_line:
            await respond(send, 502, build_error(id, "The server ended"), session_header)
        elif stream.is_closed and not stream.lines:
            session.mark_read(first_line)
            await respond(send, 200, first_line, session_header)
        else:
            await self._send_events(session, stream, first_line, receive, send)

    async def _stream_notifications(self, session: HttpSession, receive: Any, send: Any) -> None:
        session.reader_count += 1
        try:
            await self._send_events(session, session.notifications, b"", receive, send)
        finally:
            session.reader_count -= 1

    async def _send_events(
        self, session: HttpSession, stream: MessageStream, line: bytes, receive: Any, send: Any
    ) -> None:
        """Send messages as events until the last one, or until the client hangs up."""
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-store"),
            (b"mcp-session-id", session.id.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        hang_up = self._loop.create_task(wait_for_disconnect(receive))
        try:
            while True:
                if line:
                    event = b"event: message\ndata: " + line.rstrip(b"\n") + b"\n\n"
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                    session.mark_read(line)
                next_line = self._loop.create_task(stream.next_line())
                await asyncio.wait((next_line, hang_up), return_when=asyncio.FIRST_COMPLETED)
                if not next_line.done():
                    next_line.cancel()
                    return
                line = next_line.result()
                if not line:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return
        finally:
            hang_up.cancel()

    def _begin_session(self) -> HttpSession:
        session = HttpSession(self._loop)
        session.endpoint = self._open_endpoint(session)
        self._sessions[session.id] = session
        session.endpoint.finished.add_done_callback(lambda _: self._sessions.pop(session.id, None))
        return session

    async def _end_session(self, session: HttpSession) -> None:
        self._sessions.pop(session.id, None)
        session.endpoint.finish(0)
        await session.endpoint.close()

    async def serve(self) -> int:
        """Serve until a signal arrives. Return the exit code."""
        server = HttpServer(
            uvicorn.Config(self, log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        )
        exit_codes: list[int] = []

        def stop(number: int) -> None:
            exit_codes.append(128 + number)
            server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, stop, number)
        cleaner = self._loop.create_task(self._close_idle_sessions())
        host, port = self.socket.getsockname()[:2]
        print(f"mulligan: listening on http://{host}:{port}{PATH}", file=sys.stderr, flush=True)
        await server.serve(sockets=[self.socket])
        cleaner.cancel()
        await asyncio.gather(*(self._end_session(session) for session in tuple(self._sessions.values())))
        return exit_codes[0] if exit_codes else 0

    async def _close_idle_sessions(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
            oldest = self._loop.time() - IDLE_SESSION_SECONDS
            for session in tuple(self._sessions.values()):
                if session.used_at < oldest and not session.requests and not session.reader_count:
                    await self._end_session(session)


class HttpServer(uvicorn.Server):  # type: ignore[misc]
    """HTTP server that leaves signals to the proxy, which must write its records first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def parse_address(text: str) -> tuple[str, int]:
    """Parse `PORT` or `HOST:PORT`."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise SettingsError(f"Invalid address {text!r} for --listen. Use a port or HOST:PORT, such as 127.0.0.1:8000.")
    return host.strip("[]") or "127.0.0.1", int(port)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_host(header: str) -> bool:
    """Return whether a Host header names this machine. A page that rebinds its own name sends that name."""
    try:
        return is_loopback(urlsplit(f"//{header}").hostname or "")
    except ValueError:
        return False


def is_loopback_origin(header: str | None) -> bool:
    """Return whether the request comes from a program, or from a page of this machine."""
    try:
        return header is None or is_loopback(urlsplit(header).hostname or "")
    except ValueError:
        return False


def bind_socket(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound_socket = socket.socket(family, kind, protocol)
        bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound_socket.bind(address)
        bound_socket.listen(512)
    except OSError as error:
        message = f"Cannot listen on {host}:{port}: {error.strerror or error}. Use another address for --listen."
        raise SettingsError(message) from None
    return bound_socket


async def read_request(receive: Any) -> bytes | None:
    """Read the body of a request. Return None if it is too long."""
    body = bytearray()
    while True:
        event = await receive()
        body += event.get("body", b"")
        if len(body) > MAX_MESSAGE_BYTES:
            return None
        if event["type"] == "http.disconnect" or not event.get("more_body"):
            return bytes(body)


async def wait_for_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def respond(send: Any, status: int, body: bytes = b"", *headers: tuple[bytes, bytes]) -> None:
    all_headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})
