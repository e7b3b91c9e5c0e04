"""The store on Citus, a coordinator and two workers: what only a cluster can show. `make test-cluster` runs it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import postgres
import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")

import psycopg

from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import StoreError
from mulligan.core.records import Run, Step
from mulligan.store.base import DAY, Batch, Retention, RunQuery, now
from mulligan.store.copy import StoreCopy
from mulligan.store.counters import StatsQuery
from mulligan.store.postgres.postgres_diagnostics import diagnose_postgres
from mulligan.store.postgres.postgres_store import PostgresStore
from mulligan.store.sqlite import SqliteStore
from mulligan.store.tables import TABLE_NAMES
from mulligan.store.urls import open_endpoint

pytestmark = pytest.mark.skipif(not postgres.CITUS, reason="needs Citus: make test-cluster CITUS=DIR")
TENANTS = [f"tenant_{number}" for number in range(8)]
NEW_TENANTS = [f"new_{number}" for number in range(4)]


class Cluster:
    """Two workers and a coordinator of its own, which a test may stop."""

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


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    for server in (*made.workers, made.coordinator):
        server.process.returncode = None
        server.remove()


@pytest.fixture
def store(cluster: Cluster) -> Iterator[PostgresStore]:
    with contextlib.closing(PostgresStore(cluster.url)) as made:
        for tenant in TENANTS:
            made.erase(tenant)
        yield made


def events(run: str, count: int = 2) -> list[Any]:
    started = Run(id=run, agent="a", started_at=5)
    steps = [StepEnded(Step(run=run, seq=n, call=n, name="search", started_at=5)) for n in range(1, count + 1)]
    ended = Run(id=run, agent="a", started_at=5, ended_at=9, end_reason="finished")
    return [RunStarted(started), *steps, RunEnded(ended)]


def test_migration_distributes_every_table_by_its_tenant(cluster, store):
    distributed = dict(
        cluster.ask("SELECT logicalrelid::text, column_to_column_name(logicalrelid, partkey) FROM pg_dist_partition")
    )
    assert {name: distributed[name] for name in TABLE_NAMES} == dict.fromkeys(TABLE_NAMES, "tenant")
    assert distributed["schema_version"] is None  # on every node
    colocations = cluster.ask("SELECT DISTINCT colocationid FROM pg_dist_partition WHERE partmethod = 'h'")
    assert len(colocations) == 1
    assert {cluster.port_of(tenant) for tenant in TENANTS} == {worker.port for worker in cluster.workers}


def test_batches_of_tenants_on_both_workers_are_one_transaction(store):
    assert store.append_all([Batch(tenant, events("run_a"), "j", 4) for tenant in TENANTS]) == [4] * len(TENANTS)
    assert store.append_all([Batch(tenant, events("run_a"), "j", 4) for tenant in TENANTS]) == [0] * len(TENANTS)
    for tenant in TENANTS:
        assert [len(history.steps) for history in store.runs(tenant, RunQuery())] == [2]


def test_a_worker_that_is_away_stops_its_own_tenants_alone(cluster, store):
    for tenant in TENANTS:
        store.append(tenant, events("run_a"), "j", 4)
    away = cluster.workers[0]
    away.process.returncode = None
    away.stop("kill")
    try:
        for tenant in TENANTS:
            if cluster.port_of(tenant) == away.port:
                with pytest.raises(StoreError):
                    store.append(tenant, events("run_b"), "j", 8)
                with pytest.raises(StoreError):
                    store.runs(tenant, RunQuery())
            else:
                assert store.append(tenant, events("run_b"), "j", 8) == 4
                assert len(store.runs(tenant, RunQuery())) == 2
        diagnostics = diagnose_postgres(cluster.url, now())
        assert [worker["reachable"] for worker in diagnostics.facts["workers"]].count(False) == 1
        assert any(f"127.0.0.1:{away.port} does not answer" in problem for problem in diagnostics.problems)
    finally:
        away.start()
    for tenant in TENANTS:  # whoever was refused comes again
        assert store.append(tenant, events("run_b"), "j", 8) in (0, 4)
        assert len(store.runs(tenant, RunQuery())) == 2
        assert store.stats(tenant, StatsQuery(now=9)).total.calls == 4


def test_a_day_of_which_nothing_is_kept_is_dropped_on_every_worker(cluster):
    clock = now() - 20 * DAY
    with contextlib.closing(PostgresStore(cluster.url, clock=lambda: clock)) as old:
        for tenant in TENANTS[:2]:
            old.append(tenant, events("run_old"), "j_old", 4)
        part = f"steps_{clock // DAY}"
        for count, tenant in enumerate(TENANTS[:2]):
            assert old.prune(tenant, Retention(keep_successes=DAY), now()).runs == 1
            assert (cluster.ask(f"SELECT to_regclass('{part}')") == [(None,)]) is bool(count)


def test_a_store_is_copied_to_a_cluster_and_back(store, cluster, tmp_path: Path):
    with contextlib.closing(SqliteStore(tmp_path / "a.db")) as source:
        for tenant in NEW_TENANTS:
            source.append(tenant, events("run_copied", 3), "j", 5)
        histories = {tenant: source.runs(tenant, RunQuery()) for tenant in NEW_TENANTS}
    for tenant in NEW_TENANTS:
        for source_url, to_url in ((str(tmp_path / "a.db"), cluster.url), (cluster.url, str(tmp_path / "b.db"))):
            with (
                contextlib.closing(open_endpoint(source_url, is_source=True)) as one,
                contextlib.closing(open_endpoint(to_url, is_source=False)) as other,
            ):
                assert StoreCopy(one, other, tenant, tenant).copy().differences == ()
        assert store.runs(tenant, RunQuery()) == histories[tenant]
