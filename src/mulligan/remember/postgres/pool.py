"""Connection pool for one PostgreSQL server: lazy, bounded, reconnecting and fork-safe.

While the server is unavailable, requests fail immediately, and reconnecting is attempted with exponential backoff.
Behind a pooler, which may use another session for each transaction, nothing depends on the session: no prepared
statements, no settings, no tenants.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg

from mulligan.failure import SettingsError, StoreError
from mulligan.remember.postgres.connection import PostgresConnection

CONNECT = 5
"""Time limit for connecting to the server."""
WAIT = 10.0
"""Time limit for getting a connection while all are in use."""
STATEMENT = 60_000
"""Time limit of a statement."""
LOCK = 15_000
"""Time limit for waiting on the lock of another writer."""
MOST = 10
"""Read connections of a process."""
FIRST, LONGEST = 0.2, 10.0
"""First and maximum delay before reconnecting to an unavailable server."""
OURS = ("replica", "pool")
"""URL parameters for mulligan that PostgreSQL does not know, besides `pooler`."""
POOLERS = ("transaction", "session")


def parts_of(url: str) -> tuple[str, str, int]:
    """Return the URL for PostgreSQL, the URL of its replica or "", and the number of read connections."""
    split = urlsplit(url)
    given = parse_qsl(split.query, keep_blank_values=True)
    own = {name: value for name, value in given if name in OURS}
    left = urlencode([each for each in given if each[0] not in OURS], quote_via=quote)
    plain = urlunsplit(split._replace(scheme="postgresql", query=left))
    try:
        most = int(own.get("pool", MOST))
    except ValueError:
        most = 0
    if most < 1:
        raise SettingsError(f"pool={own['pool']} is no number of connections. Name one, such as pool={MOST}.")
    return plain, own.get("replica", ""), most


def direct(url: str) -> tuple[str, str]:
    """Return the URL without its pooler parameter, and the type of pooler that it names, or ""."""
    split = urlsplit(url)
    given = parse_qsl(split.query, keep_blank_values=True)
    sorts = [value for name, value in given if name == "pooler"]
    if sorts and sorts[-1] not in POOLERS:
        raise SettingsError(f"pooler={sorts[-1]} is no sort of pooler. Say pooler=transaction or pooler=session.")
    if not sorts:
        return url, ""
    left = urlencode([each for each in given if each[0] != "pooler"], quote_via=quote)
    return urlunsplit(split._replace(query=left)), sorts[-1]


def is_own(made: psycopg.Connection[Any]) -> bool:
    """Return whether the session is direct: a pooler reports its own process id."""
    row = made.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] == made.info.backend_pid


def shown(url: str) -> str:
    """Return the address without password and parameters, for display."""
    split = urlsplit(url)
    host = split.netloc.rpartition("@")[2]
    user = split.username
    return urlunsplit(split._replace(netloc=f"{user}@{host}" if user else host, query="", fragment=""))


@contextlib.contextmanager
def told(where: str) -> Iterator[None]:
    """Convert PostgreSQL errors into a StoreError that says what to do."""
    try:
        yield
    except psycopg.Error as error:
        raise StoreError(_sentence(where, error)) from error


def _sentence(where: str, error: psycopg.Error) -> str:
    text = " ".join(str(error).split())[:500]
    state = error.sqlstate or ""
    # Before the session starts there is no error code, only the server's text, possibly translated.
    if state.startswith("28") or re.search(r"password authentication failed|no password supplied", text):
        return f"{where} does not let us in ({text}). Check the user and the password in the store's URL."
    if state == "3D000" or ("database" in text and "does not exist" in text):
        return f"{where} does not exist ({text}). Make it: createdb NAME"
    if state == "42501":
        return f"{where} does not allow that to this user ({text}). Grant it, or let its owner run mulligan migrate."
    if state == "53100":
        return f"there is no room left for {where} ({text}). Free some."
    if state == "53300":
        return f"{where} has no connection left ({text}). Give fewer to each: ?pool=N, or raise max_connections."
    if state in ("57014", "55P03"):
        return f"{where} takes too long ({text}). Try again in a moment."
    if "startup parameter" in text:
        return (
            f"a pooler stands before {where}, and this needs a session of its own ({text}). Name PostgreSQL itself, or "
            "let the pooler pass over options (ignore_startup_parameters = options), and say ?pooler=session"
        )
    if isinstance(error, psycopg.OperationalError):
        return f"{where} cannot be reached ({text}). Is the server there, and does it listen on that address?"
    return f"{where} cannot be used ({text})."


class Pool:
    """The connections of one process to one server."""

    def __init__(self, url: str, most: int = MOST, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.where = shown(url)
        self._most, self._monotonic = most, monotonic
        self._url, self._pooler = direct(url)
        self._renew()
        self._is_closed = False

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._idle: list[PostgresConnection] = []
        self._free = threading.Semaphore(self._most)
        self._lock = threading.Lock()
        self._pause, self._again = 0.0, 0.0

    def _own(self) -> None:
        """Abandon connections inherited by a fork: closing them would end the parent's sessions."""
        if self._pid != os.getpid():
            _left_behind.append(self._idle)
            self._renew()

    def connect(self, asks: bool = False) -> PostgresConnection:
        """Open a connection, with planner settings for queries if `is_for_reading`. Fail immediately during backoff."""
        self._own()
        if self._is_closed:
            raise StoreError(f"{self.where} was closed.")
        if self._monotonic() < self._again:
            raise StoreError(f"{self.where} cannot be reached. It is tried again in a moment.")
        try:
            connection = self._direct(asks) or self._pooled(asks)
        except psycopg.OperationalError:
            self._pause = min(max(2 * self._pause, FIRST), LONGEST)
            self._again = self._monotonic() + self._pause * random.uniform(0.8, 1.2)
            raise
        self._pause = self._again = 0.0
        return connection

    def _direct(self, asks: bool) -> PostgresConnection | None:
        """Open a direct session; return None if there is a pooler in between."""
        if self._pooler == "transaction":
            return None
        own = " ".join(f"-c {name}={value}" for name, value in _settings(asks).items())
        try:
            # Options of the URL come last and take precedence.
            made = self._made(prepare_threshold=1, options=f"{own} {_options(self._url)}".strip())
        except psycopg.OperationalError as error:
            if self._pooler or "startup parameter" not in str(error):
                raise
        else:
            try:
                if self._pooler or is_own(made):
                    return PostgresConnection(made)
            except psycopg.Error:
                made.close()
                raise
            made.close()
        self._pooler = "transaction"  # also correct behind a session pooler
        return None

    def _pooled(self, asks: bool) -> PostgresConnection:
        if given := _options(self._url):
            raise StoreError(
                f"a pooler stands before {self.where}, and passes no options on ({given[:99]}). Set them for the user, "
                "not in the URL: ALTER ROLE NAME SET ... Or say that it gives us sessions: ?pooler=session"
            )
        return PostgresConnection(self._made(prepare_threshold=None), _settings(asks))

    def _made(self, **given: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self._url, autocommit=True, connect_timeout=CONNECT, client_encoding="UTF8", keepalives=1,
            keepalives_idle=30, keepalives_interval=5, keepalives_count=3, tcp_user_timeout=20_000,
            application_name="mulligan", **given,
        )  # fmt: skip

    @contextlib.contextmanager
    def using(self) -> Iterator[PostgresConnection]:
        """Yield a free or new connection. If it breaks, all idle connections are closed, too."""
        self._own()
        if not self._free.acquire(timeout=WAIT):
            raise StoreError(f"all {self._most} connections to {self.where} are in use. Allow more: ?pool=N")
        connection: PostgresConnection | None = None
        free, lock = self._free, self._lock
        try:
            with lock:
                connection = self._idle.pop() if self._idle else None
            connection = connection or self.connect(asks=True)
            yield connection
        finally:
            if connection is not None:
                self._give_back(connection, lock)
            free.release()

    def _give_back(self, connection: PostgresConnection, lock: Any) -> None:
        made = connection.made
        if self._pid != os.getpid():
            _left_behind.append([connection])
            return
        if made.closed or made.broken or self._is_closed:
            connection.close()
            self.drop_idle()
            return
        if made.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            try:
                made.rollback()
            except psycopg.Error:
                connection.close()
                return
        with lock:
            self._idle.append(connection)

    def drop_idle(self) -> None:
        """Close all idle connections, which a restart of the server has ended."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        self._own()
        self._is_closed = True
        self.drop_idle()


_left_behind: list[Any] = []
"""Connections of the parent process. Kept referenced, because releasing them would close them."""


def leave_behind(connection: object) -> None:
    _left_behind.append(connection)


_LIMITS = {"statement_timeout": STATEMENT, "lock_timeout": LOCK, "idle_in_transaction_session_timeout": STATEMENT}
# Generic plans: planning for each of many partitions takes longer than the query itself.
_PLANNED = {"plan_cache_mode": "force_generic_plan", "jit": "off", "timezone": "UTC"}
# Queries are written in the order of their index lookups. PostgreSQL cannot estimate the number of rows, and would scan
# whole tables with parallel workers where it expects many.
_AS_WRITTEN = {
    "join_collapse_limit": 1, "enable_hashjoin": "off", "enable_mergejoin": "off", "max_parallel_workers_per_gather": 0
}  # fmt: skip


def _settings(asks: bool) -> dict[str, Any]:
    """Return the settings of a session."""
    return {**_LIMITS, **_PLANNED, **(_AS_WRITTEN if asks else {})}


def _options(url: str) -> str:
    return dict(parse_qsl(urlsplit(url).query)).get("options", "")
