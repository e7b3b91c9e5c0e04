"""HTTP server process: socket binding, handling of HTTP/2 clients, and shutdown."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from mulligan.failure import SettingsError

log = logging.getLogger("mulligan")

RINGS = (10_000, 10, 10)
"""Thresholds of the garbage collector. At the default of 700 it would scan one batch three times."""
GRACE = 10
"""Time for requests in progress when the server stops."""
ASKING = 20.0
"""Time limit for a client to send a request after it connects."""
PREFACE = b"PRI * HTTP/2.0"
GRPC = (
    "a client speaks HTTP/2 here, as OpenTelemetry's gRPC exporter does; this server takes OTLP over HTTP/1.1. "
    "Set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf (see: mulligan env)"
)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raise `SettingsError` with a usable port if the address is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(512)
    except OSError as error:
        other = f"--port {port + 1}" if port and port < 65535 else "--port 0"
        raise SettingsError(f"{host}:{port} cannot be listened on ({error.strerror or error}). Try {other}") from None
    return sock


class Protocol(H11Protocol):
    """HTTP/1.1 protocol that answers HTTP/2 clients with an explanation.

    It closes connections that send no request in time, because the number of connections is limited.
    """

    _is_begun = False
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(ASKING, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def data_received(self, data: bytes) -> None:
        if not self._is_begun:
            self._is_begun = True
            if data.startswith(PREFACE[: len(data)]) and len(data) >= 4:
                log.warning(GRPC)
                said = GRPC.encode()
                settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
                # GOAWAY with last stream 0, HTTP_1_1_REQUIRED and a reason that gRPC shows in its error.
                away = (8 + len(said)).to_bytes(3, "big") + b"\x07\x00" + bytes(8) + b"\x00\x00\x00\x0d" + said
                self.transport.write(settings + away)
                self.transport.close()
                return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_more()
        elif self._waiting is None:  # Another request has started on this connection.
            self._wait()


class _Server(uvicorn.Server):
    """uvicorn server with a callback when it listens and one before it shuts down."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], stopping: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready, self._stopping = ready, stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping()  # Before uvicorn waits for open requests: a live stream ends only on this signal.
        await super().shutdown(sockets)


def listening(
    application: ASGIApp,
    ready: Callable[[], None] = lambda: None,
    grace: int = GRACE,
    stopping: Callable[[], None] = lambda: None,
) -> uvicorn.Server:
    """Build a server: `run(sockets=[...])` serves until `should_exit`."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        application,
        http=Protocol,
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
    return _Server(config, ready, stopping)


def run(
    application: ASGIApp,
    sock: socket.socket,
    ready: Callable[[], None] = lambda: None,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM. Requests in progress are finished first."""

    def stop(*_: Any) -> None:
        """Ignore the signal: uvicorn handles it and raises it again after shutdown."""

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    # Exclude existing objects from collection. New objects rarely form cycles, so collect seldom.
    gc.freeze()
    gc.set_threshold(*RINGS)
    listening(application, ready, stopping=stopping).run(sockets=[sock])
