"""Proxy over streamable HTTP: each client session has a connection of its own to the servers.

Clients of protocol versions without handshake share one. Requests of web pages are refused,
by the Host and Origin headers. Needs the `mcp` extra.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from mulligan.core.failure import INSTALL_EXTRA, MissingExtraError, SettingsError
from mulligan.core.listening import bind_socket, is_loopback
from mulligan.proxy import messages
from mulligan.proxy.http_sessions import ClientEndpoint, HttpSession, MessageStream
from mulligan.proxy.messages import Envelope, Id, build_error
from mulligan.proxy.relay import ClientConnection
from mulligan.proxy.server import MAX_MESSAGE_BYTES, handle_signals

try:
    import uvicorn
except ImportError:
    raise MissingExtraError(f"--listen needs the mcp package, version 2. {INSTALL_EXTRA.format('mcp')}") from None

PATH = "/mcp"
MAX_SESSIONS = 100
CHECK_INTERVAL_SECONDS = 60.0
JSON_ANSWER_SECONDS = 5.0
"""Time after which a response becomes a stream of events. A client can resume such a stream."""
RESUME_SECONDS = 30.0
"""Time for a client that lost its connection to resume a stream. Then the call is cancelled."""
RESUMABLE_VERSION = "2025-11-25"
"""First protocol version whose clients accept an event without a message, which makes a stream resumable."""
METHOD_NOT_FOUND = -32601
HTTP_STATUS_BY_ERROR = {METHOD_NOT_FOUND: 404} | dict.fromkeys((-32700, -32600, -32602, -32020, -32021, -32022), 400)
"""HTTP status by the code of a JSON-RPC error, in protocol versions without handshake. Otherwise it is 200."""


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
        self.socket = bind_socket(host, port, "--listen")
        self._stateless_session: HttpSession | None = None

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
            await self._handle_get(session, headers.get("last-event-id", ""), receive, send)
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
        is_request = envelope.method is not msgspec.UNSET and envelope.id is not msgspec.UNSET
        session = await self._find_session(headers, envelope, is_request, send)
        if session is None:
            return
        session.used_at = self._loop.time()
        if is_request:
            await self._answer_request(session, envelope, line, headers, receive, send)
            return
        session.endpoint.from_client(line)
        if envelope.method == "notifications/cancelled":
            cancelled_id = messages.decode_params(envelope.params).request
            answer = build_error(cancelled_id, "Request cancelled", -32800)
            # Time for the server to answer a request that the client cancelled. Then the proxy does.
            self._loop.call_later(10.0, session.write, answer)
        await respond(send, 202)

    async def _find_session(
        self, headers: dict[str, str], envelope: Envelope, is_request: bool, send: Any
    ) -> HttpSession | None:
        """Return the session of a message, or answer it and return None."""
        id = None if envelope.id is msgspec.UNSET else envelope.id
        is_stateless = is_request and bool(messages.decode_params(envelope.params).stateless_version)
        session = self._stateless_session if is_stateless else self._sessions.get(headers.get("mcp-session-id", ""))
        if is_request and (envelope.method == "initialize" or (session is None and is_stateless)):
            if len(self._sessions) >= MAX_SESSIONS:
                await respond(send, 503, build_error(id, f"Too many sessions, at most {MAX_SESSIONS}"))
                return None
            try:
                return self._begin_session(is_stateless=is_stateless)
            except OSError as error:
                await respond(send, 502, build_error(id, f"Cannot start the server: {error.strerror}"))
                return None
        if session is None and "mcp-session-id" in headers:
            await respond(send, 404, build_error(id, "Session not found"))
        elif (
            session is None and not is_request and headers.get("mcp-protocol-version", "") >= messages.STATELESS_VERSION
        ):
            await respond(send, 202)  # without a session, a notification has nothing to act on
        elif session is None:
            code = METHOD_NOT_FOUND if is_request else messages.NO_ANSWER_CODE
            await respond(send, 400, build_error(id, "Missing session. Send initialize first", code))
        elif is_request and not is_stateless and id in session.requests:
            await respond(send, 400, build_error(id, "A request with this id is not answered yet", -32600))
            return None
        return session

    async def _answer_request(
        self, session: HttpSession, envelope: Envelope, line: bytes, headers: dict[str, str], receive: Any, send: Any
    ) -> None:
        """Answer with JSON, or with events if other messages come before the answer or the call takes long."""
        id, stream, line = session.open_stream(envelope, line)
        response = EventResponse(session, stream, receive, send)
        can_resume = not session.is_stateless and headers.get("mcp-protocol-version", "") >= RESUMABLE_VERSION
        try:
            session.endpoint.from_client(line)
            try:
                async with asyncio.timeout(JSON_ANSWER_SECONDS if can_resume else None):
                    has_line = await response.wait_for_line()
            except TimeoutError:
                has_line = True  # an event without a message
            if response.has_hung_up:
                session.cancel(id, stream)
            elif not has_line:
                await respond(send, 502, build_error(id, "The server ended"), *response.session_headers)
            elif stream.is_closed and len(stream.lines) == 1:
                answer = stream.take_line()
                session.mark_read(answer)
                status = self._status_of(answer) if session.is_stateless else 200
                await respond(send, status, answer, *response.session_headers)
                if status != 200 and envelope.method == "server/discover" and not session.requests:
                    await self._end_session(session)  # a server that needs the handshake: this connection is useless
            else:
                await response.send_events(is_primed=can_resume)
                self._handle_hang_up(session, id, response)
        finally:
            response.close()

    def _status_of(self, answer: bytes) -> int:
        """Return the HTTP status that protocol versions without handshake define for an error."""
        error = messages.decode_envelope(answer).error
        return (
            200
            if error == messages.EMPTY_RAW
            else HTTP_STATUS_BY_ERROR.get(int(messages.decode_error(error).code), 200)
        )

    def _handle_hang_up(self, session: HttpSession, id: Id, response: EventResponse) -> None:
        """Cancel a request whose client hung up. If it can resume, wait for that first."""
        stream = response.stream
        if not response.has_hung_up or response.is_replaced:
            return
        if session.is_stateless:
            session.cancel(id, stream)
            return
        session.dropped_streams[stream.key] = stream

        def give_up() -> None:
            if session.dropped_streams.get(stream.key) is stream:
                session.cancel(id, stream)

        self._loop.call_later(RESUME_SECONDS, give_up)

    async def _handle_get(self, session: HttpSession, last_event_id: str, receive: Any, send: Any) -> None:
        """Send the messages that belong to no request, or resume any stream after the event that came last."""
        stream = session.resume_stream(last_event_id) if last_event_id else session.notifications
        if stream is None:
            await respond(send, 400, build_error(None, "Events after this id are no longer known"))
            return
        session.dropped_streams.pop(stream.key, None)
        response = EventResponse(session, stream, receive, send, replaces_others=bool(last_event_id))
        try:
            await response.send_events()
        finally:
            response.close()
        if stream is not session.notifications:
            id = next((id for id, waiting_stream in session.requests.items() if waiting_stream is stream), None)
            self._handle_hang_up(session, id, response)

    def _begin_session(self, *, is_stateless: bool) -> HttpSession:
        session = HttpSession(self._loop, is_stateless=is_stateless)
        session.endpoint = self._open_endpoint(session)
        self._sessions[session.id] = session
        if is_stateless:
            self._stateless_session = session
        session.endpoint.finished.add_done_callback(lambda _: self._forget_session(session))
        return session

    def _forget_session(self, session: HttpSession) -> None:
        self._sessions.pop(session.id, None)
        if self._stateless_session is session:
            self._stateless_session = None

    async def _end_session(self, session: HttpSession) -> None:
        self._forget_session(session)
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

        handle_signals(self._loop, stop)
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
            oldest = self._loop.time() - 3600.0
            for session in tuple(self._sessions.values()):
                if session.used_at < oldest and not any(stream.reader_count for stream in session.streams):
                    await self._end_session(session)


class EventResponse:
    """HTTP response that delivers a stream, until its end or until the client hangs up."""

    def __init__(
        self, session: HttpSession, stream: MessageStream, receive: Any, send: Any, *, replaces_others: bool = False
    ) -> None:
        self.stream = stream
        self.has_hung_up = False
        """Whether the client hung up, or resumed with another response."""
        self.session_headers = [] if session.is_stateless else [(b"mcp-session-id", session.id.encode())]
        self._session = session
        self._send = send
        if replaces_others:
            stream.response_number += 1
        self._number = stream.response_number
        stream.reader_count += 1
        self._hang_up = asyncio.get_running_loop().create_task(wait_for_disconnect(receive))
        self._hang_up.add_done_callback(self._handle_hang_up)

    @property
    def is_replaced(self) -> bool:
        """Whether the client resumed the stream with another response."""
        return self._number != self.stream.response_number

    def _handle_hang_up(self, task: asyncio.Task[None]) -> None:
        self.has_hung_up = True
        self.stream.has_changed.set()

    def close(self) -> None:
        self.stream.reader_count -= 1
        self._hang_up.cancel()

    async def wait_for_line(self) -> bool:
        """Wait for the next message. Return False after the last one, and if the client no longer reads."""
        stream = self.stream
        while not stream.lines and not stream.is_closed and not self.has_hung_up and not self.is_replaced:
            stream.has_changed.clear()
            await stream.has_changed.wait()
        return bool(stream.lines) and not self.has_hung_up and not self.is_replaced

    async def send_events(self, *, is_primed: bool = False) -> None:
        """Send messages as events. If primed, the first one has only an id, so that a client can resume at once."""
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), *self.session_headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        priming_event = f"id: {self.stream.event_id}\ndata: \n\n".encode() if is_primed else b""
        await self._send({"type": "http.response.body", "body": priming_event, "more_body": True})
        while await self.wait_for_line():
            line = self.stream.take_line()
            self._session.mark_read(line)
            id_field = "" if self._session.is_stateless else f"id: {self.stream.event_id}\n"
            event = id_field.encode() + b"event: message\ndata: " + line.rstrip(b"\n") + b"\n\n"
            await self._send({"type": "http.response.body", "body": event, "more_body": True})
        if not self.has_hung_up:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


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
