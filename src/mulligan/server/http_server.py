"""HTTP server process: handling of HTTP/2 clients, and shutdown."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mulligan.server.bodies import IS_BODY_COMPLETE

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS = 20.0
"""Time limit for a client to send a request after it connects."""
MAX_HEAD_BYTES = 64 * 1024
"""Limit of what a client sends without the end of a head, of a part of a body or of a trailer."""
GRPC_MESSAGE = (
    "HTTP/2 request rejected, probably from OpenTelemetry's gRPC exporter. This server accepts OTLP over HTTP/1.1. "
    "Set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf (see: mulligan env)"
)


class Http1Protocol(HttpToolsProtocol):
    """HTTP/1.1 protocol that answers HTTP/2 clients with an explanation.

    It closes connections that send no request in time, because the number of connections is limited. It also limits
    the head of a request, which uvicorn does not, and ignores trailers: they must not pass for headers.
    """

    _has_received_data = False
    _is_head_complete = False
    _unparsed_bytes = 0
    _data = b""
    """What was received last."""
    request_timeout: asyncio.TimerHandle | None = None
    on_tls: Callable[[str], None] = staticmethod(lambda address: None)
    """Called with the address of a client that speaks TLS."""

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
        if is_first and len(data) >= 4 and data.startswith(b"PRI * HTTP/2.0"[: len(data)]):
            log.warning(GRPC_MESSAGE)
            message = GRPC_MESSAGE.encode()
            settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
            # GOAWAY with last stream 0, HTTP_1_1_REQUIRED and a reason that gRPC shows in its error.
            goaway = (8 + len(message)).to_bytes(3, "big") + b"\x07\x00" + bytes(8) + b"\x00\x00\x00\x0d" + message
            self.transport.write(settings + goaway)
            self.transport.close()
            return
        if is_first and data.startswith(b"\x16\x03"):  # first bytes of a client that speaks TLS
            self.on_tls(self.client[0] if self.client else "unknown")
            self.send_400_response("This is plain HTTP. Use http://, or a proxy with TLS before the server.")
            return
        self._data = data
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("Request head or trailer too large.")
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel_timeout()
        elif self.request_timeout is None:  # Another request has started on this connection.
            self.start_timeout()

    def _should_upgrade(self) -> bool:
        return True  # uvicorn then starts no request and calls `handle_websocket_upgrade`

    def handle_websocket_upgrade(self) -> None:
        """Ignore an offer to upgrade to HTTP/2 or WebSocket: parse the request again without it."""
        method, version = self.scope["method"], self.scope["http_version"]
        is_pipelined = self.cycle is not None and not self.cycle.response_complete
        if method == "CONNECT" or is_pipelined:
            self.send_400_response("Upgrade is not supported here.")
            return
        offer = sys.exception()
        unparsed = self._data[offer.args[0] :] if offer is not None else b""
        fields = b"".join(b"%s: %s\r\n" % field for field in self.headers if field[0] != b"upgrade")
        head = b"%s %s HTTP/%s\r\n%s\r\n" % (method.encode(), self.url, version.encode(), fields)
        super().data_received(head + unparsed)

    def on_message_begin(self) -> None:
        self._is_head_complete = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_head_complete:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_head_complete, self._unparsed_bytes = True, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed_bytes = 0
        self.scope["state"][IS_BODY_COMPLETE] = True
        super().on_message_complete()


class _UvicornServer(uvicorn.Server):
    """uvicorn server with a callback when it listens and one before it shuts down.

    After SIGTERM it still accepts connections for `drain_seconds`, while its readiness check fails: a balancer then
    sends no more requests when it closes.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        on_ready: Callable[[], None],
        on_stopping: Callable[[], None],
        drain_seconds: float,
    ) -> None:
        super().__init__(config)
        self._on_ready, self._on_stopping = on_ready, on_stopping
        self._drain_seconds = drain_seconds
        self._is_interrupted = False
        """Whether a person pressed Ctrl+C, who waits for the end."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._is_interrupted = self._is_interrupted or sig == signal.SIGINT
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stopping()  # Before uvicorn waits for open requests: a live stream ends only on this signal.
        drain_until = time.monotonic() + self._drain_seconds
        while time.monotonic() < drain_until and not self._is_interrupted:
            await asyncio.sleep(0.1)
        await super().shutdown(sockets)


def build_server(
    application: ASGIApp,
    on_ready: Callable[[], None] = lambda: None,
    grace: int = 10,  # time for requests in progress when the server stops
    on_stopping: Callable[[], None] = lambda: None,
    trusted_proxies: Sequence[str] = (),
    drain_seconds: float = 0.0,
    on_tls: Callable[[str], None] = lambda address: None,
) -> uvicorn.Server:
    """Build a server: `run(sockets=[...])` serves until `should_exit`, and `drain_seconds` longer.

    From `trusted_proxies` (addresses and networks), it takes the client's address out of X-Forwarded-For.
    """

    class Protocol(Http1Protocol):
        pass

    Protocol.on_tls = staticmethod(on_tls)
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
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        timeout_graceful_shutdown=grace,
        timeout_keep_alive=30,
    )
    return _UvicornServer(config, on_ready, on_stopping, drain_seconds)


def serve(server: uvicorn.Server, sock: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM, and after SIGTERM `drain_seconds` longer. Finish requests in progress."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Ignored: uvicorn handles the signal and raises it again after shutdown.
        signal.signal(number, lambda *_: None)
    # Exclude existing objects from collection. New objects rarely form cycles, so collect seldom: at the default
    # threshold of 700, one batch would be scanned three times.
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    server.run(sockets=[sock])
