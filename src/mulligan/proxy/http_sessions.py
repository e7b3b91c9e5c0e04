"""Clients over HTTP: which response carries a message, and what a client gets that resumes a dropped connection."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from mulligan.proxy import messages
from mulligan.proxy.messages import Envelope, Id
from mulligan.proxy.server import MAX_WAITING_BYTES, Pausable


class ClientEndpoint(Protocol):
    """What a client talks to: the relay of one server, or a group of servers."""

    finished: asyncio.Future[int]

    def from_client(self, line: bytes) -> None: ...
    def finish(self, code: int) -> None: ...
    async def close(self) -> None: ...


class MessageStream:
    """Messages for one request, or those that belong to no request."""

    def __init__(self, key: int = 0) -> None:
        self.key = key
        self.token: Id = None
        """Progress under this token belongs to the request."""
        self.replacements: list[tuple[bytes, bytes]] = []
        """Ids that the proxy chose, and those of the client."""
        self.lines: deque[bytes] = deque()
        """Messages that are not delivered yet."""
        self.has_changed = asyncio.Event()
        self.is_closed = False
        self.reader_count = 0
        """Responses that deliver the messages."""
        self.response_number = 0
        """Incremented when a client resumes: earlier responses stop then."""
        self._delivered_lines: deque[bytes] = deque()
        self._delivered_bytes = 0
        self._delivered_count = 0

    def add(self, line: bytes) -> None:
        for chosen_id, client_id in self.replacements:
            line = line.replace(chosen_id, client_id)
        self.lines.append(line)
        self.has_changed.set()

    def close(self) -> None:
        self.is_closed = True
        self.has_changed.set()

    @property
    def event_id(self) -> str:
        """Id of the last delivered message."""
        return f"{self.key}-{self._delivered_count}"

    def take_line(self) -> bytes:
        """Return the next message and keep it, in case that the client resumes."""
        line = self.lines.popleft()
        self._delivered_count += 1
        self._delivered_lines.append(line)
        self._delivered_bytes += len(line)
        # Delivered messages of a stream that are kept for a client that resumes it. The last one is always kept.
        while self._delivered_bytes > 1_048_576 and len(self._delivered_lines) > 1:
            self._delivered_bytes -= len(self._delivered_lines.popleft())
        return line

    def rewind(self, delivered_count: int) -> bool:
        """Deliver again what followed this many messages. Return False if that is no longer known."""
        missing_count = self._delivered_count - delivered_count
        if not 0 <= missing_count <= len(self._delivered_lines):
            return False
        for _ in range(missing_count):
            line = self._delivered_lines.pop()
            self._delivered_bytes -= len(line)
            self.lines.appendleft(line)
        self._delivered_count = delivered_count
        return True


class HttpSession:
    """Client connection of an endpoint: one client after its handshake, or all clients without one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_stateless: bool = False) -> None:
        self.id = uuid.uuid4().hex
        self.is_stateless = is_stateless
        self.source: Pausable | None = None
        self.endpoint: ClientEndpoint
        self.requests: dict[Id, MessageStream] = {}
        """Streams of requests that wait for an answer, by request id."""
        self.notifications = MessageStream()
        self.dropped_streams: dict[int, MessageStream] = {}
        """Streams whose clients hung up and may resume, by key."""
        self.used_at = loop.time()
        self._loop = loop
        self._waiting_bytes = 0
        self._stream_count = 0
        self._id_prefix = f"mulligan-{os.urandom(6).hex()}-"

    @property
    def streams(self) -> Iterator[MessageStream]:
        yield from self.requests.values()
        yield from self.dropped_streams.values()
        yield self.notifications

    def open_stream(self, envelope: Envelope, line: bytes) -> tuple[Id, MessageStream, bytes]:
        """Open the stream of a request. Return it with the id and the message for the server.

        Two clients without handshake may use the same ids and progress tokens, so these are replaced.
        """
        self._stream_count += 1
        stream = MessageStream(self._stream_count)
        id = None if envelope.id is msgspec.UNSET else envelope.id
        token = (messages.decode_params(envelope.params).meta or {}).get("progressToken")
        if self.is_stateless:
            members: dict[str, Any] = dict(messages.decode_members(line))
            chosen_id = f"{self._id_prefix}{self._stream_count}"
            stream.replacements = [(messages.encode(chosen_id), messages.encode(id))]
            if token is not None:
                chosen_token = f"{chosen_id}-progress"
                stream.replacements.append((messages.encode(chosen_token), messages.encode(token)))
                params = messages.decode_members(members["params"])
                meta = {**messages.decode_members(params["_meta"]), "progressToken": chosen_token}
                members["params"], token = {**params, "_meta": meta}, chosen_token
            id, line = chosen_id, messages.encode({**members, "id": chosen_id}) + b"\n"
        stream.token = token
        self.requests[id] = stream
        return id, stream, line

    def cancel(self, id: Id, stream: MessageStream) -> None:
        """Cancel a request whose client hung up, unless it is answered."""
        self.dropped_streams.pop(stream.key, None)
        while stream.lines:
            self.mark_read(stream.lines.popleft())
        if self.requests.get(id) is stream:
            del self.requests[id]
            params = {"requestId": id, "reason": messages.HUNG_UP}
            self.endpoint.from_client(messages.build_message(method="notifications/cancelled", params=params))

    def write(self, data: bytes) -> None:
        """Add a message to a stream: an answer to that of its request, progress too, anything else to the open one."""
        try:
            envelope = messages.decode_envelope(data)
        except msgspec.DecodeError:
            envelope = Envelope()
        if envelope.method is msgspec.UNSET and envelope.id is not msgspec.UNSET:
            stream = self.requests.pop(envelope.id, None)
            if stream is None:
                return  # its client hung up
            stream.add(data)
            stream.close()
        else:
            stream = self._find_stream(envelope)
            if stream is None:
                return
            # Limit of notifications for a client that reads no stream. The oldest are dropped.
            if len(stream.lines) >= 1000 and stream is self.notifications:
                self.mark_read(stream.lines.popleft())
            stream.add(data)
        self._waiting_bytes += len(stream.lines[-1])
        if self._waiting_bytes > MAX_WAITING_BYTES and self.source is not None:
            self.source.pause()

    def _find_stream(self, envelope: Envelope) -> MessageStream | None:
        """Return the stream for a message that is no answer."""
        params = messages.decode_params(envelope.params)
        if params.token is not None:
            matching_stream = next((stream for stream in self.requests.values() if stream.token == params.token), None)
        else:
            matching_stream = self.requests.get((params.meta or {}).get(messages.SUBSCRIPTION_KEY))
        if self.is_stateless:
            # Nothing tells which of several clients a message without request is for.
            return matching_stream or (next(iter(self.requests.values())) if len(self.requests) == 1 else None)
        if matching_stream is None and not self.notifications.reader_count:
            matching_stream = next(reversed(self.requests.values()), None)
        return matching_stream or self.notifications

    def mark_read(self, line: bytes) -> None:
        """Count a message that was delivered or dropped."""
        was_full = self._waiting_bytes > MAX_WAITING_BYTES
        self._waiting_bytes -= len(line)
        self.used_at = self._loop.time()
        if was_full and self._waiting_bytes <= MAX_WAITING_BYTES and self.source is not None:
            self.source.resume()

    def resume_stream(self, event_id: str) -> MessageStream | None:
        """Return the stream of an event, ready to deliver what followed it. None if that is no longer known."""
        key, _, count = event_id.partition("-")
        for stream in tuple(self.streams):
            if str(stream.key) == key and count.isdigit():
                waiting_count = len(stream.lines)
                stream.has_changed.set()
                if not stream.rewind(int(count[:18])):
                    return None
                for index in range(len(stream.lines) - waiting_count):
                    self._waiting_bytes += len(stream.lines[index])
                return stream
        return None

    def pause(self) -> None:
        """Nothing to do: each message is a request of its own."""

    def resume(self) -> None:
        """Nothing to do, as for `pause`."""

    def close_input(self) -> None:
        """Nothing to do, as for `pause`."""

    async def close(self) -> None:
        for stream in tuple(self.streams):
            stream.close()
