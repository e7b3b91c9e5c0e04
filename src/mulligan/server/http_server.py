"""HTTP server process: socket binding, handling of HTTP/2 clients, and shutdown."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from mulligan.core.failure import SettingsError

log = logging.getLogger(__name__)

GC_THRESHOLDS = (10_000, 10, 10)
"""Thresholds of the garbage collector. At the default of 700 it would scan one batch three times."""
SHUTDOWN_GRACE_SECONDS = 10
"""Time for requests in progress when the server stops."""
REQUEST_TIMEOUT_SECONDS = 20.0
"""Time limit for a client to send a request after it connects."""
HTTP2_PREFACE = b"PRI * HTTP/2.0"
GRPC_MESSAGE = (
    "HTTP/2 request rejected, probably from OpenTelemetry's gRPC exporter. This server accepts OTLP over HTTP/1.1. "
    "Set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf (see: mulligan env)"
)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind_socket(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raise `SettingsError` with a usable port if the address is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(512)
    except OSError as error:
        other = f"--port {port + 1}" if port and port < 65535 else "--port 0"
        raise SettingsError(f"Cannot listen on {host}:{port} ({error.strerror or error}). Try {other}") from None
    return sock


class Http1Protocol(H11Protocol):
    """HTTP/1.1 protocol that answers HTTP/2 clients with an explanation.

    It closes connections that send no request in time, because the number of connections is limited.
    """

    _has_received_data = False
    request_timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.start_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timeout()
        super().connection_lost(exc)

    def start_timeout(self) -> None:
        self.request_timeout = self.loop.call_later(REQUEST_TIMEOUT_SECONDS, self.transport.close)

    def _cancel_timeout(self) -> None:
        if self.request_timeout is not None:
            self.request_timeout.cancel()
            self.request_timeout = None

    def data_received(self, data: bytes) -> None:
        is_first, self._has_received_data = not self._has_received_data, True
        if is_first and len(data) >= 4 and data.startswith(HTTP2_PREFACE[: len(data)]):
            log.warning(GRPC_MESSAGE)
            message = GRPC_MESSAGE.encode()
            settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
            # GOAWAY with last stream 0, HTTP_1_1_REQUIRED and a reason that gRPC shows in its error.
            goaway = (8 + len(message)).to_bytes(3, "big") + b"\x07\x00" + bytes(8) + b"\x00\x00\x00\x0d" + message
            self.transport.write(settings + goaway)
            self.transport.close()
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel_timeout()
        elif self.request_timeout is None:  # Another request has started on this connection.
            self.start_timeout()


class _UvicornServer(uvicorn.Server):
    """uvicorn server with a callback when it listens and one before it shuts down."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], on_stopping: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready, self._on_stopping = on_ready, on_stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stopping()  # Before uvicorn waits for open requests: a live stream ends only on this signal.
        await super().shutdown(sockets)


def build_server(
    application: ASGIApp,
    on_ready: Callable[[], None] = lambda: None,
    grace: int = SHUTDOWN_GRACE_SECONDS,
    on_stopping: Callable[[], None] = lambda: None,
) -> uvicorn.Server:
    """Build a server: `run(sockets=[...])` serves until `should_exit`."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        application,
        http=Http1Protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=grace,
        timeout_keep_alive=30,
        h11_max_incomplete_event_size=64 * 1024,
    )
    return _UvicornServer(config, on_ready, on_stopping)


def serve(
    application: ASGIApp,
    sock: socket.socket,
    on_ready: Callable[[], None] = lambda: None,
    on_stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM. Requests in progress are finished first."""

    for number in (signal.SIGINT, signal.SIGTERM):
        # Ignored: uvicorn handles the signal and raises it again after shutdown.
        signal.signal(number, lambda *_: None)
    # Exclude existing objects from collection. New objects rarely form cycles, so collect seldom.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    build_server(application, on_ready, on_stopping=on_stopping).run(sockets=[sock])
