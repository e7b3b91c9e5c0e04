"""Connection to a server behind a URL: streamable HTTP, and HTTP with SSE of the first protocol version.

Each message is one POST. Answers arrive in its response, as JSON or as a stream of events, or on the stream of a GET.
Messages pass byte for byte. Needs the `mcp` extra, which brings the HTTP client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

import msgspec

from mulligan.classify.declared_errors import UndeliveredError
from mulligan.proxy import ServerTarget, messages
from mulligan.proxy.http_transport import (
    HttpAnswerError,
    ServerEvent,
    SessionLostError,
    build_http_clients,
    content_type_of,
    describe_error,
    find_redirect,
    hide_secrets,
    is_same_origin,
    read_body,
    read_events,
    resume_delay,
)
from mulligan.proxy.messages import Id, InvalidAnswerError
from mulligan.proxy.relay import Relay

# isort: split
import httpx2
from mcp.shared.inbound import NAME_BEARING_METHODS, encode_header_value, mcp_param_headers, x_mcp_header_map

MAX_REDIRECTS = 3
ENDPOINT_TIMEOUT_SECONDS = 20.0
"""Time for a server of the first protocol version to name its endpoint."""
STOP_SECONDS = 2.0
"""Time to end the session when the proxy exits."""
EVENT_STREAM = "text/event-stream"
PASS_THROUGH_ERRORS = (httpx2.TransportError, httpx2.InvalidURL)


class InitializeResult(msgspec.Struct):
    version: str = msgspec.field(default="", name="protocolVersion")


_initialize_result = msgspec.json.Decoder(InitializeResult)


@dataclass(slots=True)
class SentRequest:
    """Request whose answer is on its way."""

    task: asyncio.Task[None]
    is_stateless: bool
    """Whether closing the connection cancels the request, as in protocol versions without handshake."""


class RemoteServer:
    """Connection of one relay to a URL. It opens another session by itself when the server has forgotten this one."""

    has_ended = False

    def __init__(self, relay: Relay, target: ServerTarget, auth: Any = None) -> None:
        self._relay = relay
        self._target = target
        self._http, self._side_http = build_http_clients(target, auth)
        self._session = ""
        self._version = ""
        """Protocol version of the handshake."""
        self._session_lock = asyncio.Lock()
        self._sent_requests: dict[Id, SentRequest] = {}
        self._own_answers: dict[Id, asyncio.Future[bytes]] = {}
        """Answers to our own requests, by id."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._initialized_task: asyncio.Task[None] | None = None
        self._listen_task: asyncio.Task[None] | None = None
        self._endpoint: asyncio.Future[str] | None = None
        """URL for messages, from the event stream of a server of the first protocol version."""
        self._is_first_version = target.is_sse
        self._has_answered = False
        self._can_read = asyncio.Event()
        self._can_read.set()

    # As the relay uses it

    def pause(self) -> None:
        self._can_read.clear()

    def resume(self) -> None:
        self._can_read.set()

    def handle_output_closed(self) -> None:
        """Nothing to do: a URL has no output of its own."""

    def end(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()

    async def stop(self) -> None:
        """End the session and close all connections."""
        self.end()
        if self._session and not self._is_first_version:
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._side_http.delete(self._target.url, headers=self._session_headers())
            except (TimeoutError, *PASS_THROUGH_ERRORS):
                pass  # The session expires by itself.
        await asyncio.gather(self._http.aclose(), self._side_http.aclose())

    def write(self, line: bytes) -> None:
        """Send a message."""
        try:
            envelope = messages.decode_envelope(line)
        except msgspec.DecodeError:
            envelope = messages.Envelope()  # a batch, or invalid: the server decides
        id = None if envelope.id is msgspec.UNSET else envelope.id
        method = "" if envelope.method is msgspec.UNSET else envelope.method
        params = messages.decode_params(envelope.params)
        if method == "notifications/cancelled" and self._cancel(params.request):
            return
        headers = self._build_headers(method, params)
        if method and id is not None:
            task = self._start(self._request(id, method, line, headers))
            self._sent_requests[id] = SentRequest(task, bool(params.stateless_version))
            task.add_done_callback(lambda task: self._forget(id, task))
        else:
            batch_ids = [] if method or id is not None else [item.id for item in messages.decode_batch(line)]
            task = self._start(self._notify(line, headers, [id for id in batch_ids if id is not msgspec.UNSET]))
            if method == "notifications/initialized":
                self._initialized_task = task

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._relay.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _forget(self, id: Id, task: asyncio.Task[None]) -> None:
        if id in self._sent_requests and self._sent_requests[id].task is task:
            del self._sent_requests[id]

    def _cancel(self, id: Id) -> bool:
        """Cancel a request. Return whether that is all: in older versions the server must be told."""
        sent_request = self._sent_requests.get(id)
        if sent_request is None:
            return False
        if sent_request.is_stateless:
            sent_request.task.cancel()
            return True
        # Time for the late answer to a cancelled request
        self._relay.loop.call_later(10.0, sent_request.task.cancel)
        return False

    def _build_headers(self, method: str, params: messages.Params) -> dict[str, str]:
        """Build the headers that depend on the message. Versions without handshake repeat parts of it there."""
        version = params.stateless_version
        if not version:
            return {}
        headers = {"mcp-protocol-version": encode_header_value(version), "mcp-method": encode_header_value(method)}
        name = getattr(params, NAME_BEARING_METHODS.get(method, ""), None)
        if isinstance(name, str):
            headers["mcp-name"] = encode_header_value(name)
            schema = self._relay.calls.find_schema(name) if method == "tools/call" else None
            if schema is not None and isinstance(params.arguments, dict):
                headers |= mcp_param_headers(x_mcp_header_map(schema), params.arguments)
        return headers

    def _session_headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept": f"application/json, {EVENT_STREAM}"}
        if self._session:
            headers["mcp-session-id"] = self._session
        if self._version:
            headers["mcp-protocol-version"] = self._version
        return headers

    # Messages

    async def _request(self, id: Id, method: str, line: bytes, headers: Mapping[str, str]) -> None:
        """Send a request. Its answer, or the reason why there is none, goes to the relay."""
        error: Exception
        try:
            if self._initialized_task is not None and method != "initialize":
                await asyncio.wait((self._initialized_task,))
            await self._send_in_session(line, headers, id, method)
            if self._is_first_version:
                return
            error = InvalidAnswerError("Invalid response: the server sent no answer")
        except Exception as raised:  # noqa: BLE001 - every failure must answer the request
            error = describe_error(raised, self._target.url)
        self._relay.fail_request(id, error)  # no effect if the request is answered

    async def _notify(self, line: bytes, headers: Mapping[str, str], batch_ids: list[Id]) -> None:
        """Send a notification, an answer or a batch."""
        error: Exception = InvalidAnswerError("Invalid response: the server sent no answer")
        try:
            await self._send_in_session(line, headers, None, "")
            if line == self._relay.initialized_line and not self._is_first_version:
                self._listen()
        except Exception as raised:  # noqa: BLE001 - reported; the client waits for nothing
            error = describe_error(raised, self._target.url)
            self._relay.print_message(f"a message was not accepted: {error}")
        if not self._is_first_version:
            for id in batch_ids:
                self._relay.fail_request(id, error)

    async def _send_in_session(self, line: bytes, headers: Mapping[str, str], id: Id, method: str) -> None:
        """Send a message, once more if the server has forgotten the session: then it has not executed the message."""
        session = self._session
        try:
            await self._send(line, headers, id, method)
        except SessionLostError:
            async with self._session_lock:
                if self._session == session:  # else another request has renewed it
                    await self._renew_session()
            await self._send(line, headers, id, method)

    async def _renew_session(self) -> None:
        """Open another session as this client did, with its log level and its subscriptions."""
        self._session, self._version = "", ""
        self._relay.print_message("the server has forgotten the session; opening another one")
        handshake, *later_lines = self._relay.handshake_lines or [b""]
        if not handshake:
            raise SessionLostError("The server rejected the session")
        answer = await self._ask(handshake, "initialize")
        if messages.decode_envelope(answer).error != messages.EMPTY_RAW:
            raise UndeliveredError(
                "The server rejected the handshake of another session", "unavailable", recoverable=False
            )
        for line in later_lines:
            if line == self._relay.initialized_line:
                await self._send(line, {}, None, "")
            else:
                await self._ask(line, "")
        if not self._is_first_version:
            self._listen()

    async def _ask(self, line: bytes, method: str) -> bytes:
        """Send a request of the client once more, under an id of our own, and return the answer."""
        id = self._relay.new_id()
        answer: asyncio.Future[bytes] = self._relay.loop.create_future()
        self._own_answers[id] = answer
        try:
            await self._send(messages.replace_id(line, id), {}, id, method)
            if not answer.done() and not self._is_first_version:
                raise InvalidAnswerError("Invalid response: the server sent no answer")
            return await answer
        finally:
            del self._own_answers[id]

    async def _send(self, line: bytes, headers: Mapping[str, str], id: Id, method: str) -> None:
        if self._is_first_version:
            await self._send_first_version(line)
            return
        try:
            await self._post(line, headers, id, method)
        except HttpAnswerError as error:
            if error.status_code not in (400, 404, 405) or self._has_answered or id is None:
                raise
            # Perhaps a server of the first protocol version: its URL accepts GET only.
            try:
                await self._open_event_stream()
            except Exception:  # noqa: BLE001 - the first answer explains more
                raise error from None
            await self._send_first_version(line)

    async def _post(self, line: bytes, headers: Mapping[str, str], id: Id, method: str) -> None:
        """Post a message and deliver what the response contains."""
        client = self._http if id is not None else self._side_http
        url = self._target.url
        if method == "initialize":
            self._session = self._version = ""
        all_headers = {**self._session_headers(), **headers}
        for redirect_count in range(MAX_REDIRECTS + 1):
            async with client.stream("POST", url, content=line, headers=all_headers) as response:
                location = find_redirect(response, url)
                if location and redirect_count < MAX_REDIRECTS:
                    url = location
                    continue
                await self._handle_response(response, id, method)
                return

    async def _handle_response(self, response: Any, id: Id, method: str) -> None:
        status = response.status_code
        content_type = content_type_of(response)
        if status >= 300:
            body = await read_body(response) if "json" in content_type or content_type == "text/plain" else b""
            self._handle_error_status(response, content_type, body, id, method)
            return
        self._has_answered = True
        if method == "initialize":
            self._session = response.headers.get("mcp-session-id", "")
        if content_type == EVENT_STREAM:
            await self._read_answer(response, id, method)
        elif "json" in content_type:
            body = await read_body(response)
            if body.strip():
                self._deliver(body, method)
        elif id is not None:
            described = content_type or f"status {status} without content"
            raise InvalidAnswerError(f"Invalid response: {described} instead of a JSON-RPC message")

    def _handle_error_status(self, response: Any, content_type: str, body: bytes, id: Id, method: str) -> None:
        status = response.status_code
        is_about_session = status == 404 or (status == 400 and b"session" in body.lower())
        if is_about_session and self._session and method != "initialize":
            raise SessionLostError("The server rejected the session")
        if id is not None and "json" in content_type:
            try:
                envelope = messages.decode_envelope(body)
            except msgspec.DecodeError:
                envelope = messages.Envelope()
            if envelope.error != messages.EMPTY_RAW:
                self._has_answered = self._has_answered or status != 405
                self._deliver(messages.build_message(id=id, error=envelope.error), method)
                return
        raise HttpAnswerError(response, body)

    def _deliver(self, data: bytes, method: str = "") -> None:
        """Hand a message of the server to the relay, as one line."""
        line = data.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"
        if method == "initialize" or self._own_answers:
            try:
                envelope = messages.decode_envelope(line)
            except msgspec.DecodeError:
                envelope = messages.Envelope()
            if method == "initialize" and envelope.result != messages.EMPTY_RAW:
                self._version = messages.decode(_initialize_result, envelope.result, InitializeResult()).version
            own_answer = None if envelope.id is msgspec.UNSET else self._own_answers.get(envelope.id)
            if own_answer is not None and envelope.method is msgspec.UNSET:
                if not own_answer.done():
                    own_answer.set_result(line)
                return
        self._relay.from_server(line)

    # Event streams

    def _is_answered(self, id: Id) -> bool:
        own_answer = self._own_answers.get(id)
        return own_answer.done() if own_answer is not None else id not in self._relay.pending

    async def _read_answer(self, response: Any, id: Id, method: str) -> None:
        """Read a stream until it contains the answer. Resume it if the connection drops and the server allows that."""
        last_event = ServerEvent("", b"", "", None)
        attempt_count = 0
        while True:
            try:
                async with asyncio.timeout(None) as limit:
                    async for event in read_events(response, self._can_read):
                        attempt_count = 0
                        last_event = event
                        if event.data:
                            self._deliver(event.data, method)
                            if id is not None and self._is_answered(id):
                                # Most servers end the stream now. Only then the connection can be used again.
                                # Time for a stream to end after the answer
                                limit.reschedule(self._relay.loop.time() + 1.0)
                reason: Exception = ConnectionResetError("The connection closed before the answer")
            except httpx2.TransportError as error:
                reason = describe_error(error, self._target.url)
            except TimeoutError as error:
                reason = error
            finally:
                await response.aclose()
            if id is None or self._is_answered(id):
                return
            response = None
            while response is None:
                # Attempts in a row to resume a stream
                if not last_event.id or attempt_count >= 5:
                    raise reason
                await asyncio.sleep(resume_delay(attempt_count, last_event.retry_ms))
                attempt_count += 1
                try:
                    response = await self._open_stream(last_event.id)
                except httpx2.TransportError as error:
                    reason = describe_error(error, self._target.url)

    async def _open_stream(self, last_event_id: str = "") -> Any:
        headers = {**self._session_headers(), "accept": EVENT_STREAM, "cache-control": "no-store"}
        if last_event_id:
            headers["last-event-id"] = last_event_id
        url = self._target.url
        for redirect_count in range(MAX_REDIRECTS + 1):
            response = await self._side_http.send(
                self._side_http.build_request("GET", url, headers=headers), stream=True
            )
            location = find_redirect(response, url)
            if not location or redirect_count == MAX_REDIRECTS:
                break
            await response.aclose()
            url = location
        content_type = content_type_of(response)
        if response.status_code != 200 or content_type != EVENT_STREAM:
            await response.aclose()
            raise HttpAnswerError(response)
        return response

    def _listen(self) -> None:
        """Start to read messages that belong to no request."""
        if self._listen_task is not None:
            self._listen_task.cancel()
        self._listen_task = self._start(self._read_notifications())

    async def _read_notifications(self) -> None:
        last_event = ServerEvent("", b"", "", None)
        attempt_count = 0
        while True:
            try:
                response = await self._open_stream(last_event.id)
                try:
                    async for event in read_events(response, self._can_read):
                        attempt_count = 0
                        last_event = event
                        if event.data:
                            self._deliver(event.data)
                finally:
                    await response.aclose()
            except HttpAnswerError as error:
                if error.status_code < 500:
                    return  # The server offers no such stream, or the session is lost: the next request notices.
            except httpx2.TransportError:
                pass  # The server may be back later.
            await asyncio.sleep(resume_delay(attempt_count, last_event.retry_ms))
            attempt_count += 1

    # The first protocol version: one stream for all answers

    async def _send_first_version(self, line: bytes) -> None:
        if self._endpoint is None:
            async with self._session_lock:
                if self._endpoint is None:
                    await self._open_event_stream()
                    if self._relay.handshake_lines and line not in self._relay.handshake_lines:
                        await self._renew_session()
        assert self._endpoint is not None
        response = await self._side_http.post(
            await self._endpoint, content=line, headers={"content-type": "application/json"}
        )
        if response.status_code >= 300:
            raise HttpAnswerError(response, response.content)

    async def _open_event_stream(self) -> None:
        """Open the stream and wait for the URL that accepts messages."""
        response = await self._open_stream()
        endpoint = self._relay.loop.create_future()
        task = self._start(self._read_event_stream(response, endpoint))
        try:
            async with asyncio.timeout(ENDPOINT_TIMEOUT_SECONDS):
                await asyncio.shield(endpoint)
        except BaseException:
            task.cancel()
            raise
        self._is_first_version = True
        self._endpoint = endpoint

    async def _read_event_stream(self, response: Any, endpoint: asyncio.Future[str]) -> None:
        reason: Exception = ConnectionResetError("The server closed the event stream")
        try:
            async for event in read_events(response, self._can_read):
                if event.type == "endpoint" and not endpoint.done():
                    url = urljoin(self._target.url, event.data.decode("utf-8", "replace"))
                    if not is_same_origin(self._target.url, url):
                        raise InvalidAnswerError(f"Invalid response: an endpoint on another host, {hide_secrets(url)}")
                    endpoint.set_result(url)
                elif event.data and event.type == "message":
                    self._deliver(event.data)
        except Exception as error:  # noqa: BLE001 - given to all who wait for an answer
            reason = describe_error(error, self._target.url)
        finally:
            await response.aclose()
        self._endpoint = None
        if not endpoint.done():
            endpoint.set_exception(reason)
        for own_answer in self._own_answers.values():
            if not own_answer.done():
                own_answer.set_exception(reason)
        for id in list(self._relay.pending):
            self._relay.fail_request(id, reason)
