"""Store client for a mulligan server: sends records from the journal and queries memory within a time limit.

While the server is unavailable, the journal holds the records up to its size limit, and memory queries return nothing
instead of waiting.
"""

from __future__ import annotations

import gzip
import http.client
import logging
import os
import random
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from mulligan.core.events import AnyEvent
from mulligan.core.failure import SettingsError, StoreError
from mulligan.core.records import (
    Fix,
    History,
    Lesson,
    LessonSource,
    LessonVerdict,
    Pattern,
    Precedent,
    Run,
    decode,
    encode,
    new_id,
)
from mulligan.redaction import sanitize
from mulligan.store import text_erasure, wire_protocol
from mulligan.store.base import (
    AuditEntry,
    AuditNote,
    AuditQuery,
    Batch,
    ConsolidationResult,
    FixQuery,
    ForgetRequest,
    ForgetResult,
    Health,
    LessonQuery,
    PatternCommand,
    PatternQuery,
    Progress,
    PruneResult,
    RecallQuery,
    Retention,
    Revocation,
    RevokeResult,
    RunQuery,
    TrialReport,
)
from mulligan.store.counters import Stats, StatsQuery

log = logging.getLogger("mulligan")

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
MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""Limit of uncompressed JSON in one request."""
MIN_GZIP_BYTES = 2048
"""Bodies up to this size are sent uncompressed."""
TOKEN_REQUIRED_HINT = (
    "Set MULLIGAN_TOKEN to a token: of role ingest to send, read to ask, admin to do both and to decide."
)
OTHER_TOKEN_HINT = "Set MULLIGAN_TOKEN to a token that may, or do it where the server runs."


class RecordRejectedError(Exception):
    """The server rejected this record for good. The record is at fault, not the store."""


class _ThreadConnection:
    """The connection of one thread, closed when the thread ends."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection
        weakref.finalize(self, connection.close)


class RemoteStore:
    """Client of a mulligan server. `spool` is the folder of the journals to send; without it, nothing is appended."""

    def __init__(
        self, url: str, token: str = "", spool: Path | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise SettingsError(f"{url!r} is no address of a server, such as https://mulligan.example.com.")
        self.url = url.rstrip("/")
        self._host, self._is_safe, self._path = parts.hostname, parts.scheme == "https", parts.path.rstrip("/")
        try:
            self._port = parts.port
        except ValueError:
            raise SettingsError(f"{url!r} has no port that there can be.") from None
        self._headers = {"User-Agent": "mulligan"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._client = _read_client_id(spool) if spool is not None else new_id("client")
        self._is_agent_process = spool is not None
        """Whether the process records, as an agent does. Commands of people only query."""
        self._threads = threading.local()
        self._connections: weakref.WeakSet[_ThreadConnection] = weakref.WeakSet()
        self._monotonic = monotonic
        self._away_until = 0.0
        self._miss_count = 0
        self._unavailable_reason = ""

    # Requests

    def _request(
        self, path: str, body: bytes, content_type: str, timeout: float, *, waits: bool = True
    ) -> http.client.HTTPResponse:
        """Send a request and return the response.

        Raise StoreError if the server is unavailable. With `waits`, no request is sent before the backoff has passed.
        """
        if waits and self._monotonic() < self._away_until:
            raise StoreError(self._unavailable_reason)
        headers = {**self._headers, "Content-Type": content_type}
        if len(body) > MIN_GZIP_BYTES and not self._is_near:
            body = gzip.compress(body, 1)
            headers["Content-Encoding"] = "gzip"
        for is_second in (False, True):
            thread_connection: _ThreadConnection | None = getattr(self._threads, "held", None)
            connection = (
                thread_connection if thread_connection is not None and not is_second else self._connect()
            ).connection
            try:
                connection.timeout = timeout
                if connection.sock is not None:
                    connection.sock.settimeout(timeout)
                connection.request("POST", self._path + path, body, headers)
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                if thread_connection is not None and not is_second and not isinstance(error, TimeoutError):
                    continue  # The server may have closed an idle connection; that does not make it unavailable.
                reason = f"{self.url} cannot be reached ({_describe_error(error)}). Is `mulligan serve` running there?"
                raise self._mark_unavailable(reason) from error
            break
        return answer

    @property
    def _is_near(self) -> bool:
        return self._host in ("127.0.0.1", "localhost", "::1")

    def _connect(self) -> _ThreadConnection:
        self._drop()
        kind = http.client.HTTPSConnection if self._is_safe else http.client.HTTPConnection
        self._threads.held = thread_connection = _ThreadConnection(kind(self._host, self._port))
        self._connections.add(thread_connection)
        return thread_connection

    def _drop(self) -> None:
        thread_connection: _ThreadConnection | None = getattr(self._threads, "held", None)
        if thread_connection is not None:
            thread_connection.connection.close()
            self._threads.held = None

    def _mark_unavailable(self, reason: str, seconds: float | None = None) -> StoreError:
        # Jitter: many processes lose the same server at once and must not reconnect at once.
        longest = min(MAX_BACKOFF_SECONDS, INITIAL_BACKOFF_SECONDS * 2**self._miss_count)
        self._miss_count = min(self._miss_count + 1, 16)
        wait = seconds if seconds is not None else random.uniform(longest / 2, longest)
        self._away_until = self._monotonic() + wait
        self._unavailable_reason = reason
        return StoreError(reason)

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        """Return the body of a successful response. Raise for all others."""
        try:
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            raise self._mark_unavailable(f"{self.url} did not answer to the end ({_describe_error(error)}).") from error
        status = answer.status
        if status == 200:
            self._miss_count, self._away_until = 0, 0.0
            return data
        message = _parse_message(data)
        if 300 <= status < 400:
            redirect_url = sanitize(answer.getheader("Location", "") or "nowhere", 200)
            raise self._mark_unavailable(
                f"{self.url} sends us on to {redirect_url} ({status}). Name that address: MULLIGAN_STORE"
            )
        if not message and status not in (401, 403, 429) and status < 500:
            raise self._unexpected_response(status)
        message = message or "no reason was given."
        if status in (401, 403):
            hint = TOKEN_REQUIRED_HINT if status == 401 else OTHER_TOKEN_HINT
            raise self._mark_unavailable(f"{self.url} refuses us: {message.rstrip('.')}. {hint}")
        if status in (400, 413, 415, 422):
            raise RecordRejectedError(f"{self.url} refuses this: {message}")
        if status == 404:
            raise RecordRejectedError(f"{self.url} does not know that: {message}")
        raise self._mark_unavailable(
            f"{self.url} cannot keep anything just now ({status}: {message})", _retry_after(answer)
        )

    def _unexpected_response(self, status: int) -> StoreError:
        """Build the error for a response that no mulligan server sent. The records remain in the journal."""
        if status == 413:
            return self._mark_unavailable(
                f"what stands before {self.url} lets no more through (413). Let 5 MB through there."
            )
        problem = f"{self.url} does not answer as `mulligan serve` does ({status})"
        return self._mark_unavailable(f"{problem}. Check the address, and what stands before the server.")

    def _ask(self, method: str, *args: Any, timeout: float = QUERY_TIMEOUT_SECONDS, waits: bool = False) -> Any:
        """Call a method of `wire.METHODS`."""
        store_method = wire_protocol.METHODS[method]
        answer = self._request(
            f"/v1/store/{method}", wire_protocol.encode_value(args), wire_protocol.CONTENT_TYPE, timeout, waits=waits
        )
        try:
            return (
                wire_protocol.decode_value(self._read(answer), store_method.result_type)
                if store_method.result_type is not None
                else self._read(answer)
            )
        except RecordRejectedError as error:
            raise StoreError(str(error)) from None

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
        return [self.append(*batch) for batch in batches]

    def _remote_journal(self, journal: str) -> str:
        return f"{wire_protocol.REMOTE_JOURNAL_PREFIX}{self._client}:{journal}"

    def offset(self, tenant: str, journal: str) -> int:
        return int(self._ask("offset", self._remote_journal(journal)))

    def journals(self, tenant: str) -> list[str]:
        """Return the journals of this spool folder. Other machines have their own."""
        prefix = self._remote_journal("")
        return [journal.removeprefix(prefix) for journal in self._ask("journals") if journal.startswith(prefix)]

    def release(self, tenant: str, journals: Sequence[str]) -> None:
        self._ask("release", [self._remote_journal(journal) for journal in journals])

    def runs(self, tenant: str, query: RunQuery) -> list[History]:
        return self._ask("runs", query)  # type: ignore[no-any-return]

    def run(self, tenant: str, id: str) -> History | None:
        return self._ask("run", id)  # type: ignore[no-any-return]

    def existing_runs(self, tenant: str, ids: Sequence[str]) -> set[str]:
        return set(self._ask("existing_runs", list(ids)))

    def ended_runs(self, tenant: str, ids: Sequence[str]) -> set[str]:
        return set(self._ask("ended_runs", list(ids)))

    def find(self, tenant: str, prefix: str, limit: int = 5) -> list[Run]:
        return self._ask("find", prefix, limit)  # type: ignore[no-any-return]

    def export(self, tenant: str, since: int = 0) -> Iterator[History]:
        answer = self._request(
            "/v1/export", encode({"since": since}), "application/json", QUERY_TIMEOUT_SECONDS, waits=False
        )
        thread_connection, self._threads.held = (
            self._threads.held,
            None,
        )  # other requests must not use it while it is read
        try:
            if answer.status != 200:
                self._read(answer)
            while line := answer.readline():
                yield decode(line, History)
        finally:
            thread_connection.connection.close()

    def prune(
        self, tenant: str, policy: Retention, now: int, dry_run: bool = False, progress: Progress | None = None
    ) -> PruneResult:
        return self._ask("prune", policy, now, dry_run)  # type: ignore[no-any-return]

    def forget(self, tenant: str, request: ForgetRequest) -> ForgetResult:
        text_erasure.validate_request(
            request
        )  # Check locally: a rejection by the server would look like a failed write.
        return self._ask("forget", request)  # type: ignore[no-any-return]

    def erase(self, tenant: str) -> int:
        raise StoreError(f"a tenant of {self.url} is removed where it runs: mulligan tenant remove")

    def audit(self, tenant: str, query: AuditQuery) -> list[AuditEntry]:
        return self._ask("audit", query)  # type: ignore[no-any-return]

    def backup(self, to: Path, progress: Progress | None = None, replaces: bool = False) -> Health:
        raise StoreError(f"a copy of {self.url} is made where it runs: mulligan backup FILE")

    def health(self, tenant: str) -> Health:
        health: Health = self._ask("health")
        return msgspec.structs.replace(health, where=self.url)

    def close(self) -> None:
        for thread_connection in tuple(self._connections):  # connections of all threads
            thread_connection.connection.close()

    # Memory

    def _request_recall(self, request: wire_protocol.RecallRequest) -> wire_protocol.RecallResponse:
        """Query the server's memory. Return an empty response if it does not answer in time."""
        try:
            answer = self._request("/v1/recall", encode(request), "application/json", RECALL_TIMEOUT_SECONDS)
            return decode(self._read(answer), wire_protocol.RecallResponse)
        except (StoreError, RecordRejectedError, msgspec.MsgspecError) as error:
            log.debug("memory has nothing to say: %s", error)
            return wire_protocol.RecallResponse()

    def recall(self, tenant: str, query: RecallQuery) -> list[Precedent]:
        return list(self._request_recall(wire_protocol.RecallRequest(question=query)).precedents)

    def fixes(self, tenant: str, query: FixQuery) -> list[Fix]:
        return list(self._request_recall(wire_protocol.RecallRequest(fixes=query)).fixes)

    def evidence(self, tenant: str, fix: str, limit: int = 100) -> list[TrialReport]:
        return self._ask("evidence", fix, limit)  # type: ignore[no-any-return]

    def record_outcome(self, tenant: str, fix: str, report: TrialReport) -> bool:
        payload = wire_protocol.OutcomeReport(
            fix=fix, run=report.run, worked=report.worked, at=report.at, agent=report.agent, automatic=report.automatic
        )
        try:
            self._read(self._request("/v1/outcomes", encode(payload), "application/json", SEND_TIMEOUT_SECONDS))
        except RecordRejectedError:
            return False
        return True

    def decide(self, tenant: str, fix: str, approved: bool, at: int) -> bool:
        return bool(self._ask("decide", fix, approved, at))

    def revoke(self, tenant: str, revocation: Revocation) -> RevokeResult:
        return self._ask("revoke", revocation)  # type: ignore[no-any-return]

    def lessons(self, tenant: str, query: LessonQuery) -> list[Lesson]:
        return self._ask("lessons", query)  # type: ignore[no-any-return]

    def lesson(self, tenant: str, id: str, now: int = 0) -> Lesson | None:
        return self._ask("lesson", id, now)  # type: ignore[no-any-return]

    def save_lesson(self, tenant: str, lesson: Lesson) -> bool:
        return bool(self._ask("save_lesson", lesson))

    def save_lessons(self, tenant: str, lessons: Sequence[Lesson]) -> list[bool]:
        return self._ask("save_lessons", list(lessons))  # type: ignore[no-any-return]

    def remove_lessons(self, tenant: str, source: LessonSource) -> int:
        return int(self._ask("remove_lessons", source))

    def decide_lesson(self, tenant: str, id: str, verdict: LessonVerdict, at: int) -> Lesson | None:
        return self._ask("decide_lesson", id, verdict, at)  # type: ignore[no-any-return]

    def consolidate(
        self, tenant: str, now: int, progress: Progress | None = None, max_patterns: int | None = None
    ) -> ConsolidationResult:
        return self._ask("consolidate", now, None, max_patterns)  # type: ignore[no-any-return]

    def patterns(self, tenant: str, query: PatternQuery) -> list[Pattern]:
        return self._ask("patterns", query)  # type: ignore[no-any-return]

    def pattern(self, tenant: str, id: str) -> Pattern | None:
        return self._ask("pattern", id)  # type: ignore[no-any-return]

    def update_pattern(self, tenant: str, command: PatternCommand) -> Pattern | None:
        return self._ask("update_pattern", command)  # type: ignore[no-any-return]

    def stats(self, tenant: str, query: StatsQuery) -> Stats:
        return self._ask("stats", query)  # type: ignore[no-any-return]

    # Key-value entries

    def _ask_key_value(self, method: str, *args: Any) -> Any:
        """Call a key-value method. In an agent, use a short timeout and respect the backoff."""
        if self._is_agent_process:
            return self._ask(method, *args, timeout=KEY_VALUE_TIMEOUT_SECONDS, waits=True)
        return self._ask(method, *args)

    def get(self, tenant: str, kind: str, key: str) -> bytes | None:
        return self._ask_key_value("get", kind, key)  # type: ignore[no-any-return]

    def put(self, tenant: str, kind: str, key: str, value: bytes) -> None:
        self._ask_key_value("put", kind, key, value)

    def compare_and_set(
        self,
        tenant: str,
        kind: str,
        key: str,
        expected: bytes | None,
        value: bytes,
        audit_note: AuditNote | None = None,
    ) -> bool:
        if audit_note is not None:
            raise StoreError(f"what is noted of {self.url} is noted there. Do it where it runs.")
        return bool(self._ask_key_value("compare_and_set", kind, key, expected, value))

    def keys(self, tenant: str, kind: str) -> list[str]:
        return self._ask("keys", kind)  # type: ignore[no-any-return]


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


def _read_client_id(spool: Path) -> str:
    """Return the id of a spool folder, created once: journals of two machines can have the same name."""
    file = spool / "client"
    try:
        spool.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as new:
                new.write(new_id("client"))
        except FileExistsError:
            pass
        return file.read_text()[:40].strip() or new_id("client")
    except OSError as error:
        log.warning("%s cannot be written (%s); what is sent twice is known by its ids alone", file, error.strerror)
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
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
