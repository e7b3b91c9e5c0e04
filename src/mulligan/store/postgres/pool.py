"""Connection pool for one PostgreSQL server: lazy, bounded, reconnecting and fork-safe.

While the server is unavailable, requests fail immediately. Reconnecting is attempted with exponential backoff, and at
each request if the host answers that the server is stopped or starting.
Behind a pooler, which may use another session for each transaction, nothing depends on the session: no prepared
statements, no settings, no tenants.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg

from mulligan.core.failure import SettingsError, StoreError, WorkerUnavailableError
from mulligan.store.postgres.postgres_connection import PostgresConnection
from mulligan.store.postgres.workers import find_unavailable_worker
from mulligan.store.tables import OTHER_TABLES

CONNECT_TIMEOUT_SECONDS = 5
"""Time limit for connecting to the server."""
POOL_TIMEOUT_SECONDS = 10.0
"""Time limit for getting a connection while all are in use."""
STATEMENT_TIMEOUT_MS = 60_000
"""Time limit of a statement."""
DEFAULT_POOL_SIZE = 10
"""Read connections of a process."""
INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.2, 10.0
"""First and maximum delay before reconnecting to an unavailable server."""


class ServerUrl(NamedTuple):
    """A store URL, split into the URL for PostgreSQL and the parameters that only mulligan knows."""

    database_url: str
    where: str
    """The address without password and parameters, for display."""
    options: str
    """Server options in the URL for PostgreSQL."""
    replica: str
    pool_size: int
    pooler: str


def parse_url(url: str) -> ServerUrl:
    split = urlsplit(url)
    parameters = dict(parse_qsl(split.query, keep_blank_values=True))
    replica, pooler = parameters.pop("replica", ""), parameters.pop("pooler", "")
    pool_size = parameters.pop("pool", str(DEFAULT_POOL_SIZE))
    if not pool_size.isdecimal() or not int(pool_size):
        raise SettingsError(
            f"Invalid pool size {pool_size!r} in the store URL. "
            f"Use a positive integer, for example ?pool={DEFAULT_POOL_SIZE}."
        )
    if pooler not in ("", "transaction", "session"):
        raise SettingsError(f"Invalid pooler {pooler!r} in the store URL. Use pooler=transaction or pooler=session.")
    host, user = split.netloc.rpartition("@")[2], split.username
    return ServerUrl(
        urlunsplit(split._replace(scheme="postgresql", query=urlencode(parameters, quote_via=quote))),
        urlunsplit(split._replace(netloc=f"{user}@{host}" if user else host, query="", fragment="")),
        parameters.get("options", ""), replica, int(pool_size), pooler,
    )  # fmt: skip


def is_own_session(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the session is direct: a pooler reports its own process id."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] == connection.info.backend_pid


@contextlib.contextmanager
def translate_errors(where: str) -> Iterator[None]:
    """Convert PostgreSQL errors into a StoreError that says what to do."""
    try:
        yield
    except psycopg.Error as error:
        text = " ".join(str(error).split())[:500]
        if worker := find_unavailable_worker(error):
            message = f"The worker {worker} of {where} does not answer ({text}). Only its tenants are affected."
            raise WorkerUnavailableError(message, worker) from error
        matches = (
            message
            for state, words, message in _ERROR_MESSAGES
            if re.match(state, error.sqlstate or "") or re.search(words, text)
        )
        is_unreachable = isinstance(error, psycopg.OperationalError)
        message = next(matches, _UNREACHABLE if is_unreachable else "Cannot use {where} ({text}).")
        raise StoreError(message.format(where=where, text=text)) from error


_NO_MATCH = r"(?!)"
_ERROR_MESSAGES = (
    # Before the session starts there is no error code, only the server's text, possibly translated.
    ("28", "password authentication failed|no password supplied|role .* does not exist",
     "{where} denied access ({text}). Check the user and the password in the store URL."),
    ("3D000", "database.*does not exist", "{where} does not exist ({text}). Create it: createdb NAME"),
    ("42501", _NO_MATCH,
     "{where}: permission denied for this user ({text}). Grant it, or let the owner run mulligan migrate."),
    ("42703|42P01|23502", _NO_MATCH, OTHER_TABLES),
    ("53100", _NO_MATCH, "No disk space left for {where} ({text}). Free some space."),
    ("53300", _NO_MATCH, "{where} has no free connection ({text}). Use a smaller ?pool=N, or raise max_connections."),
    ("57014|55P03", _NO_MATCH, "{where} timed out ({text}). Try again later."),
    (_NO_MATCH, "startup parameter",
     "{where} is behind a connection pooler, and this needs a session ({text}). Use the address of PostgreSQL, or set "
     "ignore_startup_parameters = options in the pooler and use ?pooler=session"),
)  # fmt: skip
"""Patterns of the error code and of the text, with their message. The first match is used."""
_UNREACHABLE = "Cannot reach {where} ({text}). Check that the server runs and listens on that address."


class Pool:
    """The connections of one process to one server."""

    def __init__(self, url: str, size: int | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`size` replaces the pool size of the URL."""
        self.url = parse_url(url)
        self.where = self.url.where
        self._size, self._monotonic = size or self.url.pool_size, monotonic
        self._pooler = self.url.pooler
        self._reset()
        self._is_closed = False

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._idle: list[PostgresConnection] = []
        self._generation = 0
        """Number of times that idle connections were dropped. Connections in use at that time are not reused."""
        self._free = threading.Semaphore(self._size)
        self._lock = threading.Lock()
        self._backoff_seconds, self._next_attempt_at = 0.0, 0.0

    def _abandon_inherited(self) -> None:
        """Abandon connections inherited by a fork: closing them would end the parent's sessions."""
        if self._pid != os.getpid():
            inherited_connections.append(self._idle)
            self._reset()

    def connect(self, is_for_reading: bool = False) -> PostgresConnection:
        """Open a connection, with planner settings for queries if `is_for_reading`. Fail immediately during backoff."""
        self._abandon_inherited()
        if self._is_closed:
            raise StoreError(f"The store {self.where} is closed.")
        if self._monotonic() < self._next_attempt_at:
            raise StoreError(f"Cannot reach {self.where}. mulligan will retry shortly.")
        try:
            connection = self._connect_directly(is_for_reading) or self._connect_through_pooler(is_for_reading)
        except psycopg.OperationalError as error:
            now = self._monotonic()
            # The host has answered that the server is stopped, starting or stopping.
            if any(words in str(error) for words in _RESTART_WORDS):
                self._next_attempt_at = 0.0  # the attempt costs nothing, and the first one after the restart succeeds
            elif now >= self._next_attempt_at:  # attempts that fail together are one
                seconds = max(2 * self._backoff_seconds, INITIAL_BACKOFF_SECONDS)
                self._backoff_seconds = min(seconds, MAX_BACKOFF_SECONDS)
                self._next_attempt_at = now + self._backoff_seconds * random.uniform(0.8, 1.2)
            raise
        self._backoff_seconds = self._next_attempt_at = 0.0
        return connection

    def _connect_directly(self, is_for_reading: bool) -> PostgresConnection | None:
        """Open a direct session; return None if there is a pooler in between."""
        if self._pooler == "transaction":
            return None
        server_options = " ".join(f"-c {name}={value}" for name, value in _session_settings(is_for_reading).items())
        try:
            # Options of the URL come last and take precedence.
            raw_connection = self._open_connection(
                prepare_threshold=1, options=f"{server_options} {self.url.options}".strip()
            )
        except psycopg.OperationalError as error:
            if self._pooler or "startup parameter" not in str(error):
                raise
        else:
            try:
                if self._pooler or is_own_session(raw_connection):
                    return PostgresConnection(raw_connection)
            except psycopg.Error:
                raw_connection.close()
                raise
            raw_connection.close()
        self._pooler = "transaction"  # also correct behind a session pooler
        return None

    def _connect_through_pooler(self, is_for_reading: bool) -> PostgresConnection:
        if self.url.options:
            raise StoreError(
                f"{self.where} is behind a connection pooler that drops options ({self.url.options[:99]}). "
                "Set them for the user, not in the URL: ALTER ROLE NAME SET ... "
                "If the pooler assigns whole sessions, use ?pooler=session"
            )
        return PostgresConnection(self._open_connection(prepare_threshold=None), _session_settings(is_for_reading))

    def _open_connection(self, **connect_options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self.url.database_url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS, client_encoding="UTF8",
            keepalives=1, keepalives_idle=30, keepalives_interval=5, keepalives_count=3, tcp_user_timeout=20_000,
            application_name="mulligan", **connect_options,
        )  # fmt: skip

    @contextlib.contextmanager
    def using(self) -> Iterator[PostgresConnection]:
        """Yield a free or new connection. If it breaks, no other connection of that time is used again."""
        self._abandon_inherited()
        if not self._free.acquire(timeout=POOL_TIMEOUT_SECONDS):
            raise StoreError(f"All {self._size} connections to {self.where} are in use. Allow more: ?pool=N")
        connection: PostgresConnection | None = None
        free, lock = self._free, self._lock
        try:
            with lock:
                connection, generation = self._idle.pop() if self._idle else None, self._generation
            connection = connection or self.connect(is_for_reading=True)
            yield connection
        finally:
            if connection is not None:
                self._return_connection(connection, generation, lock)
            free.release()

    def _return_connection(self, connection: PostgresConnection, generation: int, lock: Any) -> None:
        if self._pid != os.getpid():
            inherited_connections.append(connection)
            return
        if self._is_closed or not _is_reusable(connection.raw_connection):
            connection.close()
            self.drop_idle()
            return
        with lock:
            if generation == self._generation:
                self._idle.append(connection)
                return
        connection.close()

    def drop_idle(self) -> None:
        """Close all idle connections, which a restart of the server has ended, and those in use when they return."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._generation += 1
        for connection in idle:
            connection.close()

    def close(self) -> None:
        self._abandon_inherited()
        self._is_closed = True
        self.drop_idle()


def _is_reusable(connection: psycopg.Connection[Any]) -> bool:
    """End an open transaction, and return whether the connection still works.

    libpq may report the error of a server that shuts down before it notices that the connection is closed.
    """
    if connection.closed or connection.broken:
        return False
    if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        return True
    try:
        connection.rollback()
    except psycopg.Error:
        return False
    return True


_RESTART_WORDS = (
    os.strerror(errno.ECONNREFUSED), os.strerror(errno.ECONNRESET), "server closed the connection unexpectedly",
    "database system is starting up", "database system is shutting down", "not yet accepting connections",
)  # fmt: skip
"""Before the session starts there is no error code. If the server uses another language, the backoff applies."""
inherited_connections: list[object] = []
"""Connections of the parent process. Kept referenced, because releasing them would close them."""
_TIMEOUT_SETTINGS = {
    "statement_timeout": STATEMENT_TIMEOUT_MS,
    "lock_timeout": 15_000,  # time limit for waiting on the lock of another writer
    "idle_in_transaction_session_timeout": STATEMENT_TIMEOUT_MS,
    "citus.node_connection_timeout": 1000 * CONNECT_TIMEOUT_SECONDS,  # from the coordinator to a worker
}
# Citus passes SET LOCAL on to the workers only on request. Plain PostgreSQL ignores settings of other extensions.
_PLAN_SETTINGS = {"jit": "off", "timezone": "UTC", "citus.propagate_set_commands": "local"}
# Queries are written in the order of their index lookups. PostgreSQL cannot estimate the number of rows, and would scan
# whole tables with parallel workers where it expects many.
_READ_SETTINGS = {
    "join_collapse_limit": 1, "enable_hashjoin": "off", "enable_mergejoin": "off", "max_parallel_workers_per_gather": 0
}  # fmt: skip


def _session_settings(is_for_reading: bool) -> dict[str, Any]:
    return {**_TIMEOUT_SETTINGS, **_PLAN_SETTINGS, **(_READ_SETTINGS if is_for_reading else {})}
