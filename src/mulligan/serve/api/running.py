"""A server that listens: where it binds, what it says to a client of another protocol, and how it ends."""

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
"""How many more objects there are when garbage is looked for: at 700, as is usual, a batch is looked through thrice."""
GRACE = 10
"""Seconds that requests under way are given when the server is told to stop."""
ASKING = 20.0
"""Seconds that somebody has to say what they want, before whom there is a connection."""
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
    """A socket that listens there; where that cannot be, a sentence that says what to type instead."""
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
    """HTTP/1.1; whoever begins with HTTP/2 is told what to do, in its own words.

    Whoever connects and does not say in time what they want is let go of: connections are not without number.
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
                # GOAWAY, nothing was done, HTTP_1_1_REQUIRED, and why: gRPC shows it in its error.
                away = (8 + len(said)).to_bytes(3, "big") + b"\x07\x00" + bytes(8) + b"\x00\x00\x00\x0d" + said
                self.transport.write(settings + away)
                self.transport.close()
                return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_more()
        elif self._waiting is None:  # a further request has begun
            self._wait()


class _Server(uvicorn.Server):
    """Says when it listens, and is not ended by a signal before what was sent is kept."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], stopping: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready, self._stopping = ready, stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping()  # before requests under way are waited for: a live tail would never end by itself
        await super().shutdown(sockets)


def listening(
    application: ASGIApp,
    ready: Callable[[], None] = lambda: None,
    grace: int = GRACE,
    stopping: Callable[[], None] = lambda: None,
) -> uvicorn.Server:
    """A server for a socket: `run(sockets=[...])` serves until `should_exit`."""
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
    """Serves until it is interrupted or told to stop; requests under way are finished first."""

    def stop(*_: Any) -> None:
        """uvicorn hears signals itself, and raises them once more when all is done: then nothing is left to do."""

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    # What is there now stays, and of what comes next hardly anything is part of a ring: it is looked for seldom.
    gc.freeze()
    gc.set_threshold(*RINGS)
    listening(application, ready, stopping=stopping).run(sockets=[sock])
