"""Store client for a mulligan server: sends records from the journal and queries memory within a time limit.

While the server is unavailable, the journal holds the records up to its size limit. An agent's memory queries return
nothing instead of waiting; those of a command raise StoreError.
"""

from __future__ import annotations

import functools
import gzip
import http.client
import inspect
import os
import random
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from mulligan.contract.store import (
    AuditNote,
    Batch,
    ConsolidationResult,
    FixQuery,
    ForgetRequest,
    ForgetResult,
    Health,
    Progress,
    RecallQuery,
    Store,
    TrialReport,
)
from mulligan.core.events import AnyEvent
from mulligan.core.failure import SettingsError, StoreDeniedError, StoreError
from mulligan.core.log import get_logger
from mulligan.core.records import Fix, History, Precedent, decode, encode, new_id
from mulligan.redaction import sanitize
from mulligan.store import wire_protocol

log = get_logger(__name__)
F = TypeVar("F", bound=Callable[..., Any])

SEND_TIMEOUT_SECONDS = 10.0
"""Time limit for storing a batch."""
RECALL_TIMEOUT_SECONDS = 0.3
"""Time limit for memory queries, during which an agent waits. Without an answer, memory counts as empty."""
KEY_VALUE_TIMEOUT_SECONDS = 1.0
"""Time limit for session and schema entries. An agent can continue without them."""
QUERY_TIMEOUT_SECONDS = 60.0
"""Time limit for queries by people."""
INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.2, 10.0
"""First and maximum delay before a request to an unavailable server."""
ADDRESS_FILE = "address"
"""File in a spool folder with the address of its server."""
MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""Limit of uncompressed JSON in one request."""
TOKEN_REQUIRED_HINT = (
    "Set MULLIGAN_TOKEN to a token with role ingest (send), read (query) or admin (both, and decisions)."
)
OTHER_TOKEN_HINT = "Set MULLIGAN_TOKEN to a token with that role, or run the command on the server."
PLAIN_HTTP_REASONS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
"""What OpenSSL calls an answer without TLS."""


class RecordRejectedError(Exception):
    """The server rejected this record for good. The record is at fault, not the store."""


class ConnectionCheck(NamedTuple):
    """What a server answered to a client: its version, its clock, and why the token may not send or query, if so."""

    version: str
    clock_difference: int
    """Seconds that the server's clock is ahead."""
    send_denial: str
    query_denial: str


class _ThreadConnection:
    """The connection of one thread, closed when the thread ends."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection
        # At process exit the system closes it: a thread that still reads from it would delay the exit.
        weakref.finalize(self, _close_connection, connection, os.getpid()).atexit = False


def _close_connection(connection: http.client.HTTPConnection, process: int) -> None:
    if process == os.getpid():
        connection.close()
    else:
        inherited_connections.append(connection)


inherited_connections: list[http.client.HTTPConnection] = []
"""Connections of the parent process. Kept referenced, because closing one waits for the lock of its buffer, which a
thread of the parent may have held during the fork."""


def _forward(method: F) -> F:
    """Build a method that sends the arguments of a `Store` method to the server and returns the answer.

    The tenant is not sent: the token identifies it. Nor is a last argument that `wire_protocol.METHODS` does not have,
    such as `progress`.
    """
    name, signature = method.__name__, inspect.signature(method)
    argument_count = len(wire_protocol.METHODS[name].argument_types)

    @functools.wraps(method)
    def forward(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        store, _tenant, *values = bound.args
        return store._ask(name, *values[:argument_count])

    return cast(F, forward)


class RemoteStore:
    """Client of a mulligan server. `spool` is the folder of the journals to send; without it, nothing is appended."""

    def __init__(
        self, url: str, token: str = "", spool: Path | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise SettingsError(f"Invalid server address {url!r}. Use a URL, for example https://mulligan.example.com.")
        self.url = url.rstrip("/")
        self._host, self._is_safe, self._path = parts.hostname, parts.scheme == "https", parts.path.rstrip("/")
        try:
            self._port = parts.port
        except ValueError:
            raise SettingsError(f"Invalid port in the server address {url!r}. Use 1 to 65535.") from None
        self._headers = {"User-Agent": "mulligan"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._client = _read_client_id(spool, self.url) if spool is not None else new_id("client")
        self._is_agent_process = spool is not None
        """Whether the process records, as an agent does. Commands of people only query."""
        self._threads = threading.local()
        self._connections: weakref.WeakSet[_ThreadConnection] = weakref.WeakSet()
        self._monotonic = monotonic
        self.away_until = 0.0
        self._miss_count = 0
        self._unavailable_error = StoreError()

    # Requests

    def _request(
        self, path: str, body: bytes, content_type: str, timeout: float, *, waits: bool = True, method: str = "POST"
    ) -> http.client.HTTPResponse:
        """Send a request and return the response.

        Raise StoreError if the server is unavailable. With `waits`, no request is sent before the backoff has passed.
        """
        if waits and self._monotonic() < self.away_until:
            raise type(self._unavailable_error)(str(self._unavailable_error))
        headers = {**self._headers, "Content-Type": content_type}
        # Bodies up to this size are sent uncompressed.
        if len(body) > 2048 and self._host not in ("127.0.0.1", "localhost", "::1"):
            body = gzip.compress(body, 1)
            headers["Content-Encoding"] = "gzip"
        while True:
            thread_connection: _ThreadConnection | None = getattr(self._threads, "connection", None)
            is_reused = thread_connection is not None
            connection = (thread_connection or self._connect()).connection
            try:
                connection.timeout = timeout
                if connection.sock is not None:
                    connection.sock.settimeout(timeout)
                connection.request(method, self._path + path, body, headers)
                return connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                if is_reused and not isinstance(error, TimeoutError):
                    continue  # The server may have closed an idle connection; that does not make it unavailable.
                raise self._mark_unavailable(self._describe_unreachable(error)) from error

    def _describe_unreachable(self, error: Exception) -> str:
        if getattr(error, "reason", None) in PLAIN_HTTP_REASONS:
            plain_url = f"http{self.url.removeprefix('https')}"
            return (
                f"Cannot reach {self.url}: the server there speaks plain http. Set MULLIGAN_STORE to {plain_url}, or "
                "put a proxy with TLS before it."
            )
        return f"Cannot reach {self.url} ({_describe_error(error)}). Is `mulligan serve` running there?"

    def check_connection(self) -> ConnectionCheck:
        """Ask the server for its version and time, and what the token permits. Raise StoreError without an answer."""
        started_at = time.time()
        answer = self._request("/healthz", b"", "application/json", SEND_TIMEOUT_SECONDS, waits=False, method="GET")
        date = parsedate_to_datetime(answer.getheader("Date", formatdate(usegmt=True)))
        try:
            version = str(msgspec.json.decode(self._read(answer))["version"])
        except (msgspec.MsgspecError, RecordRejectedError, KeyError, TypeError):
            raise self._unexpected_response(answer.status) from None
        # The header has whole seconds.
        clock_difference = round(date.timestamp() + 0.5 - (started_at + time.time()) / 2)
        denials = {}
        for purpose, method, arguments in (("send", "ended_runs", ([],)), ("query", "health", ())):
            try:
                self._ask(method, *arguments)
            except StoreDeniedError as error:
                denials[purpose] = str(error)
        return ConnectionCheck(version, clock_difference, denials.get("send", ""), denials.get("query", ""))

    def _connect(self) -> _ThreadConnection:
        kind = http.client.HTTPSConnection if self._is_safe else http.client.HTTPConnection
        self._threads.connection = thread_connection = _ThreadConnection(kind(self._host, self._port))
        self._connections.add(thread_connection)
        return thread_connection

    def _drop(self) -> None:
        thread_connection: _ThreadConnection | None = getattr(self._threads, "connection", None)
        if thread_connection is not None:
            thread_connection.connection.close()
            self._threads.connection = None

    def _mark_unavailable(
        self, reason: str, seconds: float | None = None, error_class: type[StoreError] = StoreError
    ) -> StoreError:
        now = self._monotonic()
        if seconds is not None:
            self.away_until = now + seconds
        elif now >= self.away_until:  # requests that fail together are one miss
            # Jitter: many processes lose the same server at once and must not reconnect at once.
            longest = min(MAX_BACKOFF_SECONDS, INITIAL_BACKOFF_SECONDS * 2**self._miss_count)
            self._miss_count = min(self._miss_count + 1, 16)
            self.away_until = now + random.uniform(longest / 2, longest)
        self._unavailable_error = error_class(reason)
        return self._unavailable_error

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        """Return the body of a successful response. Raise for all others."""
        try:
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            reason = f"{self.url} sent an incomplete response ({_describe_error(error)})."
            raise self._mark_unavailable(reason) from error
        status = answer.status
        if status == 200:
            self._miss_count, self.away_until = 0, 0.0
            return data
        message = _parse_message(data)
        if 300 <= status < 400:
            redirect_url = sanitize(answer.getheader("Location", "") or "nowhere", 200)
            reason = f"{self.url} redirects to {redirect_url} ({status}). Set MULLIGAN_STORE to that address"
            raise self._mark_unavailable(reason)
        if not message and status not in (401, 403, 429) and status < 500:
            raise self._unexpected_response(status)
        message = message or "no reason given."
        if status in (401, 403):
            hint = TOKEN_REQUIRED_HINT if status == 401 else OTHER_TOKEN_HINT
            reason = f"{self.url} denied access: {message.rstrip('.')}. {hint}"
            raise self._mark_unavailable(reason, error_class=StoreDeniedError)
        if status in (400, 413, 415, 422):
            raise RecordRejectedError(f"{self.url} rejected the request: {message}")
        if status == 404:
            raise RecordRejectedError(f"Not found on {self.url}: {message}")
        reason = f"{self.url} cannot answer at the moment ({status}: {message})"
        raise self._mark_unavailable(reason, _retry_after(answer))

    def _unexpected_response(self, status: int) -> StoreError:
        """Build the error for a response that no mulligan server sent. The records remain in the journal."""
        reason = (
            f"{self.url} is not a mulligan server ({status}). Check the address and any proxy in front of the server."
        )
        if status == 413:
            reason = f"A proxy in front of {self.url} rejects large requests (413). Allow 5 MB there."
        return self._mark_unavailable(reason)

    def _ask(self, method: str, *args: Any) -> Any:
        """Call a method of `wire_protocol.METHODS`. An agent waits for key-value entries only briefly."""
        is_urgent = self._is_agent_process and method in ("get", "put", "compare_and_set")
        timeout = KEY_VALUE_TIMEOUT_SECONDS if is_urgent else QUERY_TIMEOUT_SECONDS
        try:
            body = wire_protocol.encode_value(args)
        except UnicodeEncodeError as error:
            raise SettingsError(f"A value is not valid UTF-8 at character {error.start + 1}.") from None
        answer = self._request(f"/v1/store/{method}", body, wire_protocol.CONTENT_TYPE, timeout, waits=is_urgent)
        try:
            data = self._read(answer)
        except RecordRejectedError as error:
            raise StoreError(str(error)) from None
        try:
            return wire_protocol.decode_value(data, wire_protocol.METHODS[method].result_type)
        except msgspec.MsgspecError:
            raise self._unexpected_response(answer.status) from None

    # Methods that only ask the server

    runs = _forward(Store.runs)
    run = _forward(Store.run)
    sessions = _forward(Store.sessions)
    runs_by_id = _forward(Store.runs_by_id)
    ended_runs = _forward(Store.ended_runs)
    find = _forward(Store.find)
    prune = _forward(Store.prune)
    audit = _forward(Store.audit)
    evidence = _forward(Store.evidence)
    value_profiles = _forward(Store.value_profiles)
    find_ids = _forward(Store.find_ids)
    preview_forget = _forward(Store.preview_forget)
    decide = _forward(Store.decide)
    revoke = _forward(Store.revoke)
    lessons = _forward(Store.lessons)
    lesson = _forward(Store.lesson)
    save_lesson = _forward(Store.save_lesson)
    save_lessons = _forward(Store.save_lessons)
    remove_lessons = _forward(Store.remove_lessons)
    decide_lesson = _forward(Store.decide_lesson)
    patterns = _forward(Store.patterns)
    pattern = _forward(Store.pattern)
    update_pattern = _forward(Store.update_pattern)
    stats = _forward(Store.stats)
    get = _forward(Store.get)
    put = _forward(Store.put)
    keys = _forward(Store.keys)

    # Records

    def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int, principal: str = "") -> int:
        """Send a batch. It is stored when this returns. The token identifies the writer."""
        *ahead, last = _split_batch(batch)
        new = 0
        for number, piece in enumerate(ahead, start=1):  # identified by event ids and a journal name of their own
            new += self._send(piece, f"{journal}#{offset}"[-200:], number)
        return new + self._send(last, journal, offset)

    def _send(self, events: list[msgspec.Raw], journal: str, offset: int) -> int:
        body = encode({"client": self._client, "journal": journal, "offset": offset, "events": events})
        answer = self._request("/v1/batch", body, "application/json", SEND_TIMEOUT_SECONDS)
        try:
            return int(msgspec.json.decode(self._read(answer))["new"])
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
            raise self._unexpected_response(answer.status) from None
        except RecordRejectedError:
            if answer.status == 404:  # a mulligan server, but not its ingest endpoint
                raise self._unexpected_response(404) from None
            raise

    def append_all(self, batches: Sequence[Batch]) -> list[int]:
        return [self.append(*batch[:5]) for batch in batches]

    def remote_journal(self, journal: str) -> str:
        return f"{wire_protocol.REMOTE_JOURNAL_PREFIX}{self._client}:{journal}"

    def offset(self, tenant: str, journal: str) -> int:
        return self._ask("offset", self.remote_journal(journal))  # type: ignore[no-any-return]

    def journals(self, tenant: str) -> list[str]:
        """Return the journals of this spool folder. Other machines have their own."""
        prefix = self.remote_journal("")
        return [journal.removeprefix(prefix) for journal in self._ask("journals") if journal.startswith(prefix)]

    def release(self, tenant: str, journals: Sequence[str]) -> None:
        self._ask("release", [self.remote_journal(journal) for journal in journals])

    def export(self, tenant: str, since: int = 0) -> Iterator[History]:
        body = encode({"since": since})
        answer = self._request("/v1/export", body, "application/json", QUERY_TIMEOUT_SECONDS, waits=False)
        # Other requests must not use the connection while it is read.
        thread_connection, self._threads.connection = self._threads.connection, None
        try:
            if answer.status != 200:
                self._read(answer)
            # An empty store has no lines, as a page of another server may have none.
            if answer.status != 200 or answer.getheader("Content-Type") != wire_protocol.EXPORT_CONTENT_TYPE:
                raise self._unexpected_response(answer.status)
            while line := answer.readline():
                yield decode(line, History)
        finally:
            answer.close()
            thread_connection.connection.close()

    def forget(self, tenant: str, request: ForgetRequest) -> ForgetResult:
        request.validate()  # checked here: a rejection by the server would look like a failed write.
        return self._ask("forget", request)  # type: ignore[no-any-return]

    def erase(self, tenant: str) -> int:
        raise StoreError(f"Remove a tenant of {self.url} on the server: mulligan tenant remove")

    def backup(self, to: Path, progress: Progress | None = None, replaces: bool = False) -> Health:
        raise StoreError(f"Back up {self.url} on the server: mulligan backup FILE")

    def health(self, tenant: str) -> Health:
        health: Health = self._ask("health")
        return msgspec.structs.replace(health, where=self.url)

    def close(self) -> None:
        for thread_connection in tuple(self._connections):  # connections of all threads
            thread_connection.connection.close()

    # Memory

    def _request_recall(self, request: wire_protocol.RecallRequest) -> wire_protocol.RecallResponse:
        """Query the server's memory for an agent. Return an empty response if it does not answer in time."""
        try:
            answer = self._request("/v1/recall", encode(request), "application/json", RECALL_TIMEOUT_SECONDS)
            return decode(self._read(answer), wire_protocol.RecallResponse)
        except (StoreError, RecordRejectedError, msgspec.MsgspecError) as error:
            log.debug("Memory is unavailable: %s", error)
            return wire_protocol.RecallResponse()

    def recall(self, tenant: str, query: RecallQuery) -> list[Precedent]:
        if not self._is_agent_process:
            return self._ask("recall", query)  # type: ignore[no-any-return]
        return list(self._request_recall(wire_protocol.RecallRequest(question=query)).precedents)

    def fixes(self, tenant: str, query: FixQuery) -> list[Fix]:
        # A short value can be guessed from its hash, and the server may not know it.
        query = msgspec.structs.replace(query, argument_hashes=())
        if not self._is_agent_process:
            return self._ask("fixes", query)  # type: ignore[no-any-return]
        return list(self._request_recall(wire_protocol.RecallRequest(fixes=query)).fixes)

    def record_outcome(self, tenant: str, fix: str, report: TrialReport) -> bool:
        fields = {name: value for name, value in msgspec.structs.asdict(report).items() if name != "principal"}
        payload = wire_protocol.OutcomeReport(fix_id=fix, **fields)
        answer = self._request("/v1/outcomes", encode(payload), "application/json", SEND_TIMEOUT_SECONDS)
        try:
            return bool(msgspec.json.decode(self._read(answer))["stored"])
        except (msgspec.MsgspecError, KeyError, TypeError):
            raise self._unexpected_response(answer.status) from None
        except RecordRejectedError:
            return False

    def consolidate(
        self, tenant: str, now: int, progress: Progress | None = None, max_patterns: int | None = None
    ) -> ConsolidationResult:
        return self._ask("consolidate", now, None, max_patterns)  # type: ignore[no-any-return]

    def compare_and_set(
        self, tenant: str, kind: str, key: str, expected: bytes | None, value: bytes,
        audit_note: AuditNote | None = None,
    ) -> bool:  # fmt: skip
        if audit_note is not None:
            raise StoreError(f"Key-value entries of {self.url} can be changed on the server only.")
        return self._ask("compare_and_set", kind, key, expected, value)  # type: ignore[no-any-return]


def _split_batch(batch: Sequence[AnyEvent]) -> list[list[msgspec.Raw]]:
    """Encode the events and split them into requests of limited size; at least one."""
    pieces: list[list[msgspec.Raw]] = [[]]
    size = 0
    for event in batch:
        encoded = encode(event)
        if size and size + len(encoded) > MAX_REQUEST_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append(msgspec.Raw(encoded))
        size += len(encoded)
    return pieces


def _read_client_id(spool: Path, url: str) -> str:
    """Return the id of a spool folder, created once: journals of two machines can have the same name.

    The address of the server is written beside it: `mulligan doctor` shows where waiting records were to go.
    """
    file = spool / "client"
    try:
        spool.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as new:
                new.write(new_id("client"))
            (spool / ADDRESS_FILE).write_text(url)
        except FileExistsError:
            pass
        return file.read_text()[:40].strip() or new_id("client")
    except OSError as error:
        log.warning("Cannot write %s (%s); duplicate batches are recognized by record id only", file, error.strerror)
        return new_id("client")


def _parse_message(data: bytes) -> str:
    """Return the error message of a mulligan server; empty for any other response."""
    try:
        payload = msgspec.json.decode(data)
        return f"{payload.get('field', '')} {payload['message']}".strip()[:300]
    except (msgspec.MsgspecError, KeyError, AttributeError, TypeError):
        return ""


def _retry_after(answer: http.client.HTTPResponse) -> float | None:
    header = answer.getheader("Retry-After", "")
    return min(float(header), MAX_BACKOFF_SECONDS) if header.isdecimal() and len(header) < 6 else None


def _describe_error(error: BaseException) -> str:
    if isinstance(error, TimeoutError | socket.timeout):
        return "timed out"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
