"""HTTP connection to a server behind a URL: clients, events, redirects, and errors in words."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from mulligan.classify.declared_errors import AgentError, UndeliveredError
from mulligan.core.failure import INSTALL_EXTRA, MissingExtraError
from mulligan.core.kinds import find_kinds_of_status
from mulligan.proxy import ServerTarget
from mulligan.proxy.messages import InvalidAnswerError
from mulligan.proxy.server import MAX_MESSAGE_BYTES, LineBuffer

try:
    import httpx2
    from mcp.client.auth import OAuthFlowError
except ImportError:
    raise MissingExtraError(f"Remote servers need the mcp package, version 2. {INSTALL_EXTRA.format('mcp')}") from None

CONNECT_TIMEOUT_SECONDS = 20.0
RESUME_SECONDS = 1.0
"""Delay before a stream is resumed, unless the server names one. It doubles with each failed attempt."""
MAX_EXCERPT_CHARS = 200
TOKEN_HINT = "Pass a token with --header, or sign in: mulligan proxy login URL"


def build_http_clients(target: ServerTarget, auth: Any = None) -> tuple[Any, Any]:
    """Build the HTTP clients of a server: for requests, and for everything else.

    With one client only, a thousand calls that all ask the user something would leave no connection for the answers.
    """
    timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT_SECONDS, write=60.0)
    headers = {"user-agent": "mulligan", "accept-encoding": "identity", **target.headers}
    tls = httpx2.create_ssl_context() if target.url.startswith("https:") else True

    def build(max_connections: int) -> Any:
        limits = httpx2.Limits(max_connections=max_connections, max_keepalive_connections=32)
        return httpx2.AsyncClient(
            headers=headers, auth=auth, timeout=timeout, limits=limits, verify=tls, follow_redirects=False
        )

    # Limit of simultaneous requests. Answers and notifications have connections of their own.
    return build(256), build(32)


class HttpAnswerError(Exception):
    """HTTP status of the server instead of a message."""

    def __init__(self, response: Any, body: bytes = b"") -> None:
        super().__init__(describe_status(response, body))
        self.status_code: int = response.status_code
        self.headers = {name: response.headers[name] for name in ("retry-after",) if name in response.headers}


REJECTION_STATUSES = (401, 403, 429)
"""Statuses with which a server refuses a message before it reads it."""


class SessionLostError(Exception):
    """The server does not know the session: it expired, or the server was restarted."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    type: str
    data: bytes
    id: str
    retry_ms: int | None


async def read_events(response: Any, can_read: asyncio.Event) -> AsyncIterator[ServerEvent]:
    """Yield the events of a response. While `can_read` is not set, nothing is read."""
    lines = LineBuffer()
    data: list[bytes] = []
    event_type, event_id, retry_ms = "message", "", None
    async for chunk in response.aiter_raw():
        for line in lines.feed(chunk):
            name, _, value = line.rstrip(b"\r\n").partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"event":
                event_type = value.decode("utf-8", "replace")
            elif name == b"id" and b"\0" not in value:
                event_id = value.decode("utf-8", "replace")
            elif name == b"retry" and value.isdigit():
                retry_ms = int(value[:9])
            elif not name and not value:
                yield ServerEvent(event_type, b" ".join(data), event_id, retry_ms)
                event_type, data = "message", []
        if not can_read.is_set():
            await can_read.wait()


async def read_body(response: Any) -> bytes:
    """Read a response, up to the limit of one message."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_MESSAGE_BYTES:
            raise InvalidAnswerError(f"Invalid response: longer than {MAX_MESSAGE_BYTES} bytes")
    return bytes(body)


def find_redirect(response: Any, url: str) -> str:
    """Return the URL of a redirect that keeps the message and may receive our headers, or an empty string."""
    try:
        location = urljoin(url, response.headers.get("location", ""))
        is_followed = response.status_code in (307, 308) and location != url and is_same_origin(url, location)
    except ValueError:  # not a URL
        return ""
    return location if is_followed else ""


def is_same_origin(url: str, location: str) -> bool:
    """Return whether a redirect may receive our headers: same scheme, host and port."""
    return read_origin(url) == read_origin(location) and urlsplit(location).username is None


def read_origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def hide_secrets(url: str) -> str:
    """Return a URL without user, query and fragment, which may contain secrets."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def content_type_of(response: Any) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


def describe_status(response: Any, body: bytes) -> str:
    """Describe an answer without a message, and what to do about it."""
    status = response.status_code
    if status in (301, 302, 303, 307, 308):
        try:
            location = hide_secrets(urljoin(str(response.url), response.headers.get("location", "")))
        except ValueError:
            return f"HTTP {status}: the server redirects to an invalid URL"
        return f"HTTP {status}: the server redirects to {location}. Use that URL if you trust it"
    text = f"HTTP {status} {response.reason_phrase}".strip()
    if status == 401:
        return f"{text}. {TOKEN_HINT}"
    if content_type_of(response) == "text/html":
        return f"{text}: the server answered with a web page, not with a JSON-RPC message. Check the URL"
    excerpt = body[: 4 * MAX_EXCERPT_CHARS].decode("utf-8", "replace")
    excerpt = " ".join("".join(char if char.isprintable() else " " for char in excerpt).split())
    return f"{text}: {excerpt[:MAX_EXCERPT_CHARS]}" if excerpt else text


def find_cause(error: BaseException | None, wanted_type: type[BaseException]) -> BaseException | None:
    """Return the first exception of this type in the chain of causes."""
    while error is not None and not isinstance(error, wanted_type):
        error = error.__cause__ or error.__context__
    return error


def describe_error(error: Exception, url: str) -> Exception:
    """Convert an error of the HTTP client to one that says what happened, and whether the server got the message.

    Its text has no header and no query, which may be secret.
    """
    host = urlsplit(url).netloc.rpartition("@")[2]  # with the port, without a password
    if isinstance(error, httpx2.ConnectTimeout):
        return UndeliveredError(f"Cannot connect to {host} in {CONNECT_TIMEOUT_SECONDS:g} s", "connection_error")
    if isinstance(error, httpx2.ConnectError):
        is_tls = isinstance(find_cause(error, ssl.SSLError), ssl.SSLError) or "certificate" in str(error).lower()
        message = f"Cannot connect to {host}: {'TLS error: ' if is_tls else ''}{error}"
        return UndeliveredError(message, "connection_error", recoverable=not is_tls)
    if isinstance(error, httpx2.TransportError):
        return ConnectionResetError(f"The connection to {host} broke: {error or type(error).__name__}")
    if isinstance(error, HttpAnswerError) and error.status_code < 500:
        if error.status_code in REJECTION_STATUSES:
            return UndeliveredError(str(error), find_kinds_of_status(error.status_code)[0].code)
        return UndeliveredError(str(error), "unavailable", recoverable=False)
    if isinstance(error, OAuthFlowError):  # after a 401 or 403: the server has not read the message
        return UndeliveredError(
            f"The server requires a token, and the sign-in failed: {error}. {TOKEN_HINT}", "auth_error"
        )
    if isinstance(error, SessionLostError):
        return UndeliveredError(str(error), "unavailable", recoverable=False)
    if isinstance(error, HttpAnswerError | InvalidAnswerError | AgentError | OSError):
        return error
    return InvalidAnswerError(f"Invalid response: {type(error).__name__}: {error}")


def resume_delay(attempt_count: int, retry_ms: int | None) -> float:
    """Return the seconds before a stream is opened again, after this many failed attempts in a row."""
    delay = RESUME_SECONDS if retry_ms is None else retry_ms / 1000
    return min(30.0, delay * (1 << min(attempt_count, 8)))
