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

from mulligan.core.failure import SettingsError, StoreError
from mulligan.store.postgres.postgres_connection import PostgresConnection

CONNECT_TIMEOUT_SECONDS = 5
"""Time limit for connecting to the server."""
POOL_TIMEOUT_SECONDS = 10.0
"""Time limit for getting a connection while all are in use."""
STATEMENT_TIMEOUT_MS = 60_000
"""Time limit of a statement."""
LOCK_TIMEOUT_MS = 15_000
"""Time limit for waiting on the lock of another writer."""
DEFAULT_POOL_SIZE = 10
"""Read connections of a process."""
INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.2, 10.0
"""First and maximum delay before reconnecting to an unavailable server."""
STORE_PARAMETERS = ("replica", "pool")
"""URL parameters for mulligan that PostgreSQL does not know, besides `pooler`."""
POOLER_TYPES = ("transaction", "session")


def parse_url(url: str) -> tuple[str, str, int]:
    """Return the URL for PostgreSQL, the URL of its replica or "", and the number of read connections."""
    split = urlsplit(url)
    parameters = parse_qsl(split.query, keep_blank_values=True)
    store_parameters = {name: value for name, value in parameters if name in STORE_PARAMETERS}
    database_query = urlencode(
        [parameter for parameter in parameters if parameter[0] not in STORE_PARAMETERS], quote_via=quote
    )
    database_url = urlunsplit(split._replace(scheme="postgresql", query=database_query))
    try:
        pool_size = int(store_parameters.get("pool", DEFAULT_POOL_SIZE))
    except ValueError:
        pool_size = 0
    if pool_size < 1:
        raise SettingsError(
            f"Invalid pool size {store_parameters['pool']!r} in the store URL. "
            f"Use a positive integer, for example ?pool={DEFAULT_POOL_SIZE}."
        )
    return database_url, store_parameters.get("replica", ""), pool_size


def split_pooler_type(url: str) -> tuple[str, str]:
    """Return the URL without its pooler parameter, and the type of pooler that it names, or ""."""
    split = urlsplit(url)
    parameters = parse_qsl(split.query, keep_blank_values=True)
    pooler_types = [value for name, value in parameters if name == "pooler"]
    if pooler_types and pooler_types[-1] not in POOLER_TYPES:
        raise SettingsError(
            f"Invalid pooler {pooler_types[-1]!r} in the store URL. Use pooler=transaction or pooler=session."
        )
    if not pooler_types:
        return url, ""
    remaining_query = urlencode([parameter for parameter in parameters if parameter[0] != "pooler"], quote_via=quote)
    return urlunsplit(split._replace(query=remaining_query)), pooler_types[-1]


def is_own_session(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the session is direct: a pooler reports its own process id."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] == connection.info.backend_pid


def redact_password(url: str) -> str:
    """Return the address without password and parameters, for display."""
    split = urlsplit(url)
    host = split.netloc.rpartition("@")[2]
    user = split.username
    return urlunsplit(split._replace(netloc=f"{user}@{host}" if user else host, query="", fragment=""))


@contextlib.contextmanager
def translate_errors(where: str) -> Iterator[None]:
    """Convert PostgreSQL errors into a StoreError that says what to do."""
    try:
        yield
    except psycopg.Error as error:
        raise StoreError(_describe_error(where, error)) from error


def _describe_error(where: str, error: psycopg.Error) -> str:
    text = " ".join(str(error).split())[:500]
    state = error.sqlstate or ""
    # Before the session starts there is no error code, only the server's text, possibly translated.
    if state.startswith("28") or re.search(r"password authentication failed|no password supplied", text):
        return f"{where} denied access ({text}). Check the user and the password in the store URL."
    if state == "3D000" or ("database" in text and "does not exist" in text):
        return f"{where} does not exist ({text}). Create it: createdb NAME"
    if state == "42501":
        return f"{where}: permission denied for this user ({text}). Grant it, or let the owner run mulligan migrate."
    if state == "53100":
        return f"No disk space left for {where} ({text}). Free some space."
    if state == "53300":
        return f"{where} has no free connection ({text}). Use a smaller ?pool=N, or raise max_connections."
    if state in ("57014", "55P03"):
        return f"{where} timed out ({text}). Try again later."
    if "startup parameter" in text:
        return (
            f"{where} is behind a connection pooler, and this needs a session ({text}). Use the address of "
            "PostgreSQL, or set ignore_startup_parameters = options in the pooler and use ?pooler=session"
        )
    if isinstance(error, psycopg.OperationalError):
        return f"Cannot reach {where} ({text}). Check that the server runs and listens on that address."
    return f"Cannot use {where} ({text})."


class Pool:
    """The connections of one process to one server."""

    def __init__(
        self, url: str, size: int = DEFAULT_POOL_SIZE, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.where = redact_password(url)
        self._size, self._monotonic = size, monotonic
        self._url, self._pooler = split_pooler_type(url)
        self._reset()
        self._is_closed = False

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._idle: list[PostgresConnection] = []
        self._free = threading.Semaphore(self._size)
        self._lock = threading.Lock()
        self._backoff_seconds, self._next_attempt_at = 0.0, 0.0

    def _abandon_inherited(self) -> None:
        """Abandon connections inherited by a fork: closing them would end the parent's sessions."""
        if self._pid != os.getpid():
            _inherited_connections.append(self._idle)
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
        except psycopg.OperationalError:
            self._backoff_seconds = min(max(2 * self._backoff_seconds, INITIAL_BACKOFF_SECONDS), MAX_BACKOFF_SECONDS)
            self._next_attempt_at = self._monotonic() + self._backoff_seconds * random.uniform(0.8, 1.2)
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
                prepare_threshold=1, options=f"{server_options} {_options(self._url)}".strip()
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
        if url_options := _options(self._url):
            raise StoreError(
                f"a pooler stands before {self.where}, and passes no options on ({url_options[:99]}). "
                "Set them for the user, not in the URL: ALTER ROLE NAME SET ... "
                "Or say that it gives us sessions: ?pooler=session"
            )
        return PostgresConnection(self._open_connection(prepare_threshold=None), _session_settings(is_for_reading))

    def _open_connection(self, **connect_options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self._url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS, client_encoding="UTF8", keepalives=1,
            keepalives_idle=30, keepalives_interval=5, keepalives_count=3, tcp_user_timeout=20_000,
            application_name="mulligan", **connect_options,
        )  # fmt: skip

    @contextlib.contextmanager
    def using(self) -> Iterator[PostgresConnection]:
        """Yield a free or new connection. If it breaks, all idle connections are closed, too."""
        self._abandon_inherited()
        if not self._free.acquire(timeout=POOL_TIMEOUT_SECONDS):
            raise StoreError(f"All {self._size} connections to {self.where} are in use. Allow more: ?pool=N")
        connection: PostgresConnection | None = None
        free, lock = self._free, self._lock
        try:
            with lock:
                connection = self._idle.pop() if self._idle else None
            connection = connection or self.connect(is_for_reading=True)
            yield connection
        finally:
            if connection is not None:
                self._return_connection(connection, lock)
            free.release()

    def _return_connection(self, connection: PostgresConnection, lock: Any) -> None:
        raw_connection = connection.raw_connection
        if self._pid != os.getpid():
            _inherited_connections.append([connection])
            return
        if raw_connection.closed or raw_connection.broken or self._is_closed:
            connection.close()
            self.drop_idle()
            return
        if raw_connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            try:
                raw_connection.rollback()
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
        self._abandon_inherited()
        self._is_closed = True
        self.drop_idle()


_inherited_connections: list[Any] = []
"""Connections of the parent process. Kept referenced, because releasing them would close them."""


def retain_after_fork(connection: object) -> None:
    _inherited_connections.append(connection)


_TIMEOUT_SETTINGS = {
    "statement_timeout": STATEMENT_TIMEOUT_MS,
    "lock_timeout": LOCK_TIMEOUT_MS,
    "idle_in_transaction_session_timeout": STATEMENT_TIMEOUT_MS,
}
# Generic plans: planning for each of many partitions takes longer than the query itself.
_PLAN_SETTINGS = {"plan_cache_mode": "force_generic_plan", "jit": "off", "timezone": "UTC"}
# Queries are written in the order of their index lookups. PostgreSQL cannot estimate the number of rows, and would scan
# whole tables with parallel workers where it expects many.
_READ_SETTINGS = {
    "join_collapse_limit": 1, "enable_hashjoin": "off", "enable_mergejoin": "off", "max_parallel_workers_per_gather": 0
}  # fmt: skip


def _session_settings(is_for_reading: bool) -> dict[str, Any]:
    """Return the settings of a session."""
    return {**_TIMEOUT_SETTINGS, **_PLAN_SETTINGS, **(_READ_SETTINGS if is_for_reading else {})}


def _options(url: str) -> str:
    return dict(parse_qsl(urlsplit(url).query)).get("options", "")
