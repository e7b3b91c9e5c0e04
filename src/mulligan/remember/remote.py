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

from mulligan.events import AnyEvent
from mulligan.failure import SettingsError, StoreError
from mulligan.figures import Stats, StatsQuery
from mulligan.records import (
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
from mulligan.redaction import clean
from mulligan.remember import forgetting, wire
from mulligan.remember.store import (
    Act,
    AuditQuery,
    Batch,
    Command,
    Consolidated,
    Evidence,
    FixQuery,
    Forget,
    Forgotten,
    Health,
    LessonQuery,
    Noted,
    PatternQuery,
    Progress,
    Pruned,
    Question,
    Retention,
    Revocation,
    Revoked,
    RunQuery,
)

log = logging.getLogger("mulligan")

SEND = 10.0
"""Time limit for storing a batch."""
ASK = 0.3
"""Time limit for memory queries, during which an agent waits. Without an answer, memory counts as empty."""
SHELF = 1.0
"""Time limit for session and schema entries. An agent can continue without them."""
READ = 60.0
"""Time limit for queries by people."""
FIRST, LONGEST = 0.2, 10.0
"""First and maximum delay before a request to an unavailable server."""
PIECE = 4 * 1024 * 1024
"""Limit of uncompressed JSON in one request."""
SMALL = 2048
"""Bodies up to this size are sent uncompressed."""
NEEDED = "Set MULLIGAN_TOKEN to a token: of role ingest to send, read to ask, admin to do both and to decide."
OTHER = "Set MULLIGAN_TOKEN to a token that may, or do it where the server runs."


class Unkept(Exception):
    """The server rejected this record for good. The record is at fault, not the store."""


class _Held:
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
        self._client = _client(spool) if spool is not None else new_id("client")
        self._is_of_an_agent = spool is not None
        """Whether the process records, as an agent does. Commands of people only query."""
        self._threads = threading.local()
        self._made: weakref.WeakSet[_Held] = weakref.WeakSet()
        self._monotonic = monotonic
        self._away_until = 0.0
        self._misses = 0
        self._why = ""

    # Requests

    def _request(
        self, path: str, body: bytes, sort: str, timeout: float, *, waits: bool = True
    ) -> http.client.HTTPResponse:
        """Send a request and return the response.

        Raise StoreError if the server is unavailable. With `waits`, no request is sent before the backoff has passed.
        """
        if waits and self._monotonic() < self._away_until:
            raise StoreError(self._why)
        headers = {**self._headers, "Content-Type": sort}
        if len(body) > SMALL and not self._is_near:
            body = gzip.compress(body, 1)
            headers["Content-Encoding"] = "gzip"
        for is_second in (False, True):
            held: _Held | None = getattr(self._threads, "held", None)
            connection = (held if held is not None and not is_second else self._connected()).connection
            try:
                connection.timeout = timeout
                if connection.sock is not None:
                    connection.sock.settimeout(timeout)
                connection.request("POST", self._path + path, body, headers)
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                if held is not None and not is_second and not isinstance(error, TimeoutError):
                    continue  # The server may have closed an idle connection; that does not make it unavailable.
                why = f"{self.url} cannot be reached ({_spoken(error)}). Is `mulligan serve` running there?"
                raise self._missed(why) from error
            break
        return answer

    @property
    def _is_near(self) -> bool:
        return self._host in ("127.0.0.1", "localhost", "::1")

    def _connected(self) -> _Held:
        self._drop()
        kind = http.client.HTTPSConnection if self._is_safe else http.client.HTTPConnection
        self._threads.held = held = _Held(kind(self._host, self._port))
        self._made.add(held)
        return held

    def _drop(self) -> None:
        held: _Held | None = getattr(self._threads, "held", None)
        if held is not None:
            held.connection.close()
            self._threads.held = None

    def _missed(self, why: str, seconds: float | None = None) -> StoreError:
        # Jitter: many processes lose the same server at once and must not reconnect at once.
        longest = min(LONGEST, FIRST * 2**self._misses)
        self._misses = min(self._misses + 1, 16)
        wait = seconds if seconds is not None else random.uniform(longest / 2, longest)
        self._away_until = self._monotonic() + wait
        self._why = why
        return StoreError(why)

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        """Return the body of a successful response. Raise for all others."""
        try:
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            raise self._missed(f"{self.url} did not answer to the end ({_spoken(error)}).") from error
        status = answer.status
        if status == 200:
            self._misses, self._away_until = 0, 0.0
            return data
        said = _message(data)
        if 300 <= status < 400:
            place = clean(answer.getheader("Location", "") or "nowhere", 200)
            raise self._missed(f"{self.url} sends us on to {place} ({status}). Name that address: MULLIGAN_STORE")
        if not said and status not in (401, 403, 429) and status < 500:
            raise self._strange(status)
        said = said or "no reason was given."
        if status in (401, 403):
            instead = NEEDED if status == 401 else OTHER
            raise self._missed(f"{self.url} refuses us: {said.rstrip('.')}. {instead}")
        if status in (400, 413, 415, 422):
            raise Unkept(f"{self.url} refuses this: {said}")
        if status == 404:
            raise Unkept(f"{self.url} does not know that: {said}")
        raise self._missed(f"{self.url} cannot keep anything just now ({status}: {said})", _retry_after(answer))

    def _strange(self, status: int) -> StoreError:
        """Build the error for a response that no mulligan server sent. The records remain in the journal."""
        if status == 413:
            return self._missed(f"what stands before {self.url} lets no more through (413). Let 5 MB through there.")
        told = f"{self.url} does not answer as `mulligan serve` does ({status})"
        return self._missed(f"{told}. Check the address, and what stands before the server.")

    def _ask(self, method: str, *args: Any, timeout: float = READ, waits: bool = False) -> Any:
        """Call a method of `wire.METHODS`."""
        about = wire.METHODS[method]
        answer = self._request(f"/v1/store/{method}", wire.packed(args), wire.TYPE, timeout, waits=waits)
        try:
            return wire.unpacked(self._read(answer), about.gives) if about.gives is not None else self._read(answer)
        except Unkept as error:
            raise StoreError(str(error)) from None

    # Records

    def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int, principal: str = "") -> int:
        """Send a batch. It is stored when this returns. The token identifies the writer."""
        *ahead, last = _pieces(batch)
        new = 0
        for number, piece in enumerate(ahead, start=1):  # identified by event ids and a journal name of their own
            new += self._send(piece, f"{journal}#{offset}"[-200:], number)
        return new + self._send(last, journal, offset)

    def _send(self, events: list[msgspec.Raw], journal: str, offset: int) -> int:
        body = encode({"client": self._client, "journal": journal, "offset": offset, "events": events})
        answer = self._request("/v1/batch", body, "application/json", SEND)
        try:
            return int(msgspec.json.decode(self._read(answer))["new"])
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
            raise self._strange(answer.status) from None
        except Unkept:
            if answer.status == 404:  # a mulligan server, but not its ingest endpoint
                raise self._strange(404) from None
            raise

    def append_all(self, batches: Sequence[Batch]) -> list[int]:
        return [self.append(*each) for each in batches]

    def _named(self, journal: str) -> str:
        return f"{wire.REMOTE}{self._client}:{journal}"

    def offset(self, tenant: str, journal: str) -> int:
        return int(self._ask("offset", self._named(journal)))

    def journals(self, tenant: str) -> list[str]:
        """Return the journals of this spool folder. Other machines have their own."""
        own = self._named("")
        return [each.removeprefix(own) for each in self._ask("journals") if each.startswith(own)]

    def release(self, tenant: str, journals: Sequence[str]) -> None:
        self._ask("release", [self._named(each) for each in journals])

    def runs(self, tenant: str, query: RunQuery) -> list[History]:
        return self._ask("runs", query)  # type: ignore[no-any-return]

    def run(self, tenant: str, id: str) -> History | None:
        return self._ask("run", id)  # type: ignore[no-any-return]

    def known(self, tenant: str, ids: Sequence[str]) -> set[str]:
        return set(self._ask("known", list(ids)))

    def ended(self, tenant: str, ids: Sequence[str]) -> set[str]:
        return set(self._ask("ended", list(ids)))

    def find(self, tenant: str, prefix: str, limit: int = 5) -> list[Run]:
        return self._ask("find", prefix, limit)  # type: ignore[no-any-return]

    def export(self, tenant: str, since: int = 0) -> Iterator[History]:
        answer = self._request("/v1/export", encode({"since": since}), "application/json", READ, waits=False)
        held, self._threads.held = self._threads.held, None  # other requests must not use it while it is read
        try:
            if answer.status != 200:
                self._read(answer)
            while line := answer.readline():
                yield decode(line, History)
        finally:
            held.connection.close()

    def prune(
        self, tenant: str, policy: Retention, now: int, dry_run: bool = False, progress: Progress | None = None
    ) -> Pruned:
        return self._ask("prune", policy, now, dry_run)  # type: ignore[no-any-return]

    def forget(self, tenant: str, what: Forget) -> Forgotten:
        forgetting.check(what)  # Check locally: a rejection by the server would look like a failed write.
        return self._ask("forget", what)  # type: ignore[no-any-return]

    def erase(self, tenant: str) -> int:
        raise StoreError(f"a tenant of {self.url} is removed where it runs: mulligan tenant remove")

    def audit(self, tenant: str, query: AuditQuery) -> list[Act]:
        return self._ask("audit", query)  # type: ignore[no-any-return]

    def backup(self, to: Path, progress: Progress | None = None, replaces: bool = False) -> Health:
        raise StoreError(f"a copy of {self.url} is made where it runs: mulligan backup FILE")

    def health(self, tenant: str) -> Health:
        found: Health = self._ask("health")
        return msgspec.structs.replace(found, where=self.url)

    def close(self) -> None:
        for each in tuple(self._made):  # connections of all threads
            each.connection.close()

    # Memory

    def _asked(self, asked: wire.Asked) -> wire.Known:
        """Query the server's memory. Return an empty response if it does not answer in time."""
        try:
            answer = self._request("/v1/recall", encode(asked), "application/json", ASK)
            return decode(self._read(answer), wire.Known)
        except (StoreError, Unkept, msgspec.MsgspecError) as error:
            log.debug("memory has nothing to say: %s", error)
            return wire.Known()

    def recall(self, tenant: str, question: Question) -> list[Precedent]:
        return list(self._asked(wire.Asked(question=question)).precedents)

    def fixes(self, tenant: str, query: FixQuery) -> list[Fix]:
        return list(self._asked(wire.Asked(fixes=query)).fixes)

    def evidence(self, tenant: str, fix: str, limit: int = 100) -> list[Evidence]:
        return self._ask("evidence", fix, limit)  # type: ignore[no-any-return]

    def outcome(self, tenant: str, fix: str, report: Evidence) -> bool:
        told = wire.Report(
            fix=fix, run=report.run, worked=report.worked, at=report.at, agent=report.agent, automatic=report.automatic
        )
        try:
            self._read(self._request("/v1/outcomes", encode(told), "application/json", SEND))
        except Unkept:
            return False
        return True

    def decide(self, tenant: str, fix: str, approved: bool, at: int) -> bool:
        return bool(self._ask("decide", fix, approved, at))

    def revoke(self, tenant: str, what: Revocation) -> Revoked:
        return self._ask("revoke", what)  # type: ignore[no-any-return]

    def lessons(self, tenant: str, query: LessonQuery) -> list[Lesson]:
        return self._ask("lessons", query)  # type: ignore[no-any-return]

    def lesson(self, tenant: str, id: str, now: int = 0) -> Lesson | None:
        return self._ask("lesson", id, now)  # type: ignore[no-any-return]

    def keep_lesson(self, tenant: str, lesson: Lesson) -> bool:
        return bool(self._ask("keep_lesson", lesson))

    def keep_lessons(self, tenant: str, lessons: Sequence[Lesson]) -> list[bool]:
        return self._ask("keep_lessons", list(lessons))  # type: ignore[no-any-return]

    def remove_lessons(self, tenant: str, source: LessonSource) -> int:
        return int(self._ask("remove_lessons", source))

    def decide_lesson(self, tenant: str, id: str, verdict: LessonVerdict, at: int) -> Lesson | None:
        return self._ask("decide_lesson", id, verdict, at)  # type: ignore[no-any-return]

    def consolidate(
        self, tenant: str, now: int, progress: Progress | None = None, most: int | None = None
    ) -> Consolidated:
        return self._ask("consolidate", now, None, most)  # type: ignore[no-any-return]

    def patterns(self, tenant: str, query: PatternQuery) -> list[Pattern]:
        return self._ask("patterns", query)  # type: ignore[no-any-return]

    def pattern(self, tenant: str, id: str) -> Pattern | None:
        return self._ask("pattern", id)  # type: ignore[no-any-return]

    def change(self, tenant: str, command: Command) -> Pattern | None:
        return self._ask("change", command)  # type: ignore[no-any-return]

    def stats(self, tenant: str, query: StatsQuery) -> Stats:
        return self._ask("stats", query)  # type: ignore[no-any-return]

    # Key-value entries

    def _shelved(self, method: str, *args: Any) -> Any:
        """Call a key-value method. In an agent, use a short timeout and respect the backoff."""
        if self._is_of_an_agent:
            return self._ask(method, *args, timeout=SHELF, waits=True)
        return self._ask(method, *args)

    def get(self, tenant: str, kind: str, key: str) -> bytes | None:
        return self._shelved("get", kind, key)  # type: ignore[no-any-return]

    def put(self, tenant: str, kind: str, key: str, value: bytes) -> None:
        self._shelved("put", kind, key, value)

    def swap(
        self, tenant: str, kind: str, key: str, known: bytes | None, value: bytes, noted: Noted | None = None
    ) -> bool:
        if noted is not None:
            raise StoreError(f"what is noted of {self.url} is noted there. Do it where it runs.")
        return bool(self._shelved("swap", kind, key, known, value))

    def keys(self, tenant: str, kind: str) -> list[str]:
        return self._ask("keys", kind)  # type: ignore[no-any-return]


def _pieces(batch: Sequence[AnyEvent]) -> list[list[msgspec.Raw]]:
    """Encode the events and split them into requests of limited size; at least one."""
    pieces: list[list[msgspec.Raw]] = [[]]
    size = 0
    for event in batch:
        encoded = encode(event)
        if size and size + len(encoded) > PIECE:
            pieces.append([])
            size = 0
        pieces[-1].append(msgspec.Raw(encoded))
        size += len(encoded)
    return pieces


def _client(spool: Path) -> str:
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


def _message(data: bytes) -> str:
    """Return the error message of a mulligan server; empty for any other response."""
    try:
        told = msgspec.json.decode(data)
        return f"{told.get('field', '')} {told['message']}".strip()[:300]
    except (msgspec.MsgspecError, KeyError, AttributeError, TypeError):
        return ""


def _retry_after(answer: http.client.HTTPResponse) -> float | None:
    given = answer.getheader("Retry-After", "")
    return min(float(given), LONGEST) if given.isdecimal() and len(given) < 6 else None


def _spoken(error: BaseException) -> str:
    if isinstance(error, TimeoutError | socket.timeout):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
