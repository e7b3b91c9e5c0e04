"""A Citus cluster of a test's own: two workers, which it may kill, and their coordinator."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import postgres
import psycopg
import pytest


class Cluster:
    """Two workers and a coordinator, with a database over all three."""

    def __init__(self) -> None:
        try:
            *self.workers, self.coordinator = postgres.start_cluster(os.getpid(), durable=True)
        except postgres.Unavailable as reason:
            pytest.skip(str(reason))
        self.url = postgres.make_database(self.coordinator.url, "store")

    def ask(self, sql: str) -> list[Any]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(sql).fetchall()

    def port_of(self, tenant: str) -> int:
        """The worker that has the rows of this tenant."""
        ((port,),) = self.ask(
            "SELECT n.nodeport FROM pg_dist_placement p JOIN pg_dist_node n ON n.groupid = p.groupid "
            f"WHERE p.shardid = get_shard_id_for_distribution_column('runs', '{tenant}')"
        )
        return int(port)

    @contextlib.contextmanager
    def without(self, worker: postgres.Server) -> Iterator[None]:
        """Kill a worker with SIGKILL, and start it again in the end."""
        worker.process.returncode = None
        worker.stop("kill")
        try:
            yield
        finally:
            worker.start()

    def remove(self) -> None:
        for server in (*self.workers, self.coordinator):
            server.process.returncode = None
            server.remove()
