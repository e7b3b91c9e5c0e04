"""Workers of a Citus cluster: where the rows of a tenant are, how much each worker stores, and which do not answer.

Plain PostgreSQL has no workers: then all of this is empty.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg

from mulligan.contract.store import Worker
from mulligan.core.failure import WorkerUnavailableError

log = logging.getLogger(__name__)

MIN_BLOCK_SECONDS, MAX_BLOCK_SECONDS = 0.5, 30.0
"""Minimum and maximum time without requests to a worker that did not answer."""
BLOCK_FACTOR = 10.0
"""This time as a multiple of the time that was spent on the worker. A timeout costs more than a refused connection."""
CACHE_SECONDS = 60.0
"""How long it is remembered which worker stores the rows of a tenant."""
OUTAGE_MEMORY_SECONDS = 15.0
"""How long a worker counts as away that is not used any more."""
_LOST_CONNECTION = re.compile(r"08|57P0[123]")
"""Error codes of a connection that cannot be opened or was lost."""
_WORKER_ADDRESS = re.compile(r"(?:remote node (?:\S+@)?|executing command on |could not connect to )(\S+:\d+)")


def find_unavailable_worker(error: psycopg.Error) -> str | None:
    """Return the worker that the coordinator lost or could not reach; None if the error is another one."""
    if not _LOST_CONNECTION.match(error.sqlstate or ""):
        return None
    match = _WORKER_ADDRESS.search(f"{error.diag.message_primary} {error.diag.context}")
    return match[1] if match else None


def has_workers(connection: psycopg.Connection[Any]) -> bool:
    return bool(connection.execute("SELECT to_regclass('pg_dist_node')").fetchone() != (None,))


def find_worker(connection: psycopg.Connection[Any], tenant: str) -> str | None:
    """Return the worker that stores the rows of this tenant. Only the coordinator is queried."""
    if not has_workers(connection):
        return None
    row = connection.execute(
        "SELECT n.nodename || ':' || n.nodeport FROM pg_dist_placement p JOIN pg_dist_node n ON n.groupid = p.groupid "
        "WHERE n.noderole = 'primary' AND p.shardid = get_shard_id_for_distribution_column('runs', %s)",
        (tenant,),
    ).fetchone()
    return row[0] if row else None


class WorkerOutages:
    """Workers that did not answer. Transactions of their tenants fail immediately, until one tries the worker again.

    Otherwise each of them would wait for the worker, and those of all other tenants would wait behind them.
    """

    def __init__(
        self, find_worker: Callable[[str], str | None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`find_worker` returns the worker of a tenant."""
        self._find_worker, self._monotonic = find_worker, monotonic
        self._blocked_until: dict[str, float] = {}
        """By worker: when the next transaction may try it again. No lock: two that try at once do no harm."""
        self._workers: dict[str, str | None] = {}
        """By tenant. Read again once a minute, because shards can move to another worker."""
        self._workers_expire_at = 0.0

    def list_workers(self) -> list[str]:
        now = self._monotonic()
        return sorted(name for name, until in [*self._blocked_until.items()] if now < until + OUTAGE_MEMORY_SECONDS)

    @contextlib.contextmanager
    def watch(self, tenants: Sequence[str]) -> Iterator[None]:
        """Watch a transaction of these tenants. Raise WorkerUnavailableError if one of their workers is away."""
        tried_workers = self._check_not_blocked(tenants) if self._blocked_until else []
        started_at = self._monotonic()
        try:
            yield
        except WorkerUnavailableError as error:
            self._block(error, self._monotonic() - started_at)
            raise
        except BaseException:  # it says nothing about the workers: the next transaction tries them again
            self._blocked_until.update(dict.fromkeys(tried_workers, started_at))
            raise
        for worker in tried_workers:
            if self._blocked_until.pop(worker, None) is not None:
                log.warning("The worker %s of the store answers again.", worker)

    def find_worker(self, tenant: str) -> str | None:
        """Return the worker of a tenant, as of the last minute."""
        now = self._monotonic()
        if now >= self._workers_expire_at:
            self._workers, self._workers_expire_at = {}, now + CACHE_SECONDS
        workers = self._workers
        if tenant not in workers:
            workers[tenant] = self._find_worker(tenant)
        return workers[tenant]

    def _check_not_blocked(self, tenants: Sequence[str]) -> list[str]:
        """Raise WorkerUnavailableError if a worker is blocked. Return those that this transaction tries again."""
        workers = {self.find_worker(tenant) for tenant in tenants}
        now = self._monotonic()
        lost_workers = [(worker, until) for worker, until in [*self._blocked_until.items()] if worker in workers]
        for worker, until in lost_workers:
            if now < until:
                message = f"The worker {worker} of the store does not answer. mulligan will retry shortly."
                raise WorkerUnavailableError(message, worker)
        for worker, _ in lost_workers:
            # While one transaction tries a worker again, all others still fail immediately: for longer than connecting
            # takes.
            self._blocked_until[worker] = now + 6.0
        return [worker for worker, _ in lost_workers]

    def _block(self, error: WorkerUnavailableError, seconds: float) -> None:
        if error.worker not in self._blocked_until:
            log.warning("%s", error)
        block_seconds = min(max(BLOCK_FACTOR * seconds, MIN_BLOCK_SECONDS), MAX_BLOCK_SECONDS)
        self._blocked_until[error.worker] = self._monotonic() + block_seconds


# Size


def read_workers(connection: psycopg.Connection[Any]) -> list[Worker]:
    """Return the workers of a Citus cluster with their shards; none of plain PostgreSQL.

    A shard is what Citus moves between workers: the rows of some tenants in all tables.
    """
    if not has_workers(connection):
        return []
    rows = connection.execute(_WORKERS_SQL).fetchall()
    return [
        Worker(name, True, shards, int(result), shard_bytes, largest)
        if is_reachable
        else Worker(name, False, shards, detail=result)
        for name, is_reachable, result, shards, shard_bytes, largest in rows
    ]


_WORKERS_SQL = """
    WITH shards AS (
        SELECT n.nodename, n.nodeport, s.shardminvalue, coalesce(sum(z.size), 0)::bigint AS bytes
        FROM pg_dist_partition t
        JOIN pg_dist_shard s ON s.logicalrelid = t.logicalrelid
        JOIN pg_dist_placement p ON p.shardid = s.shardid
        JOIN pg_dist_node n ON n.groupid = p.groupid AND n.noderole = 'primary'
        LEFT JOIN citus_shard_sizes() z ON z.shard_id = s.shardid
        WHERE t.colocationid = (SELECT colocationid FROM pg_dist_partition WHERE logicalrelid = to_regclass('runs'))
        GROUP BY n.nodename, n.nodeport, s.shardminvalue)
    SELECT w.nodename || ':' || w.nodeport, w.success, w.result, count(s.bytes), coalesce(sum(s.bytes), 0)::bigint,
        coalesce(max(s.bytes), 0)
    FROM run_command_on_workers('SELECT pg_database_size(current_database())') w
    LEFT JOIN shards s ON s.nodename = w.nodename AND s.nodeport = w.nodeport
    GROUP BY w.nodename, w.nodeport, w.success, w.result ORDER BY 1
"""
