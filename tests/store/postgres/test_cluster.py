"""The store on Citus, a coordinator and two workers: what only a cluster can show. `make test-cluster` runs it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import postgres
import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")
pytest.importorskip("starlette", reason="needs the extra: pip install 'mulligan[server]'")

from cluster import Cluster
from ingest import Agent
from servers import Answer, Client, Running, served

from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DAY, Batch, Retention, RunQuery, now
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import StoreError
from mulligan.core.records import Run, Step
from mulligan.server.tenants import REFRESH_INTERVAL_SECONDS, SECRET_PREFIX, SERVER_TENANT
from mulligan.store.copy import StoreCopy
from mulligan.store.postgres.postgres_diagnostics import diagnose_postgres
from mulligan.store.postgres.postgres_store import PostgresStore
from mulligan.store.postgres.workers import MIN_BLOCK_SECONDS
from mulligan.store.sqlite import SqliteStore
from mulligan.store.tables import TABLE_NAMES
from mulligan.store.urls import open_endpoint

pytestmark = pytest.mark.skipif(not postgres.CITUS, reason="needs Citus: make test-cluster CITUS=DIR")
TENANTS = [f"tenant_{number}" for number in range(8)]
NEW_TENANTS = [f"new_{number}" for number in range(4)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.remove()


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
    with cluster.without(away):
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
    time.sleep(MIN_BLOCK_SECONDS)
    for tenant in TENANTS:  # whoever was refused comes again
        assert store.append(tenant, events("run_b"), "j", 8) in (0, 4)
        assert len(store.runs(tenant, RunQuery())) == 2
        assert store.stats(tenant, StatsQuery(now=9)).total.calls == 4


@pytest.fixture
def running(cluster: Cluster, store: PostgresStore, tmp_path: Path) -> Iterator[Running]:
    """A server on the cluster."""
    with served(tmp_path, store=PostgresStore(cluster.url)) as made:
        yield made


def test_a_lost_worker_answers_503_to_its_tenants_alone_even_if_it_has_the_tokens(cluster, running):
    clients = {tenant: running.holding("admin", tenant=tenant) for tenant in TENANTS}

    def send(tenant: str, id: str) -> Answer:
        return clients[tenant].post("/v1/runs", {"id": id, "steps": [{"name": "search"}]})

    assert {send(tenant, "run_a").status for tenant in TENANTS} == {200}
    away = next(worker for worker in cluster.workers if worker.port == cluster.port_of(SERVER_TENANT))
    with cluster.without(away):
        time.sleep(REFRESH_INTERVAL_SECONDS)  # tokens are due to be read again
        for tenant in TENANTS:
            answer, question = send(tenant, "run_b"), clients[tenant].get("/v1/runs")
            if cluster.port_of(tenant) == away.port:
                for refused in (answer, question):
                    assert (refused.status, refused.json["error"]) == (503, "worker_unavailable")
                    assert int(refused.headers["retry-after"]) > 0
            else:
                assert (answer.status, question.status) == (200, 200)
        # Whether another token was created meanwhile, only the lost worker knows.
        assert Client(running.port, token=f"{SECRET_PREFIX}admin_other").get("/v1/runs").status == 503

        ready = running.anybody().get("/readyz")
        assert (ready.status, ready.json["status"]) == (200, "degraded")
        assert ready.json["unavailable_workers"] == [f"127.0.0.1:{away.port}"]
        metrics = running.person().get("/metrics")
        assert f'mulligan_store_worker_up{{worker="127.0.0.1:{away.port}"}} 0' in metrics.body.decode()
    eventually(lambda: {send(tenant, "run_b").status for tenant in TENANTS} == {200})
    assert {len(running.store.runs(tenant, RunQuery())) for tenant in TENANTS} == {2}
    assert running.anybody().get("/readyz").json["status"] == "ok"


def test_calls_of_an_agent_wait_in_its_journal_while_the_worker_of_its_tenant_is_away(
    cluster, running, tmp_path, monkeypatch
):
    tenant = TENANTS[0]
    away = next(worker for worker in cluster.workers if worker.port == cluster.port_of(tenant))
    monkeypatch.setenv("MULLIGAN_TOKEN", running.holding("ingest", tenant=tenant).token)
    agent = Agent(f"http://127.0.0.1:{running.port}", tmp_path)
    made = agent.calls(20)
    with cluster.without(away):
        agent.calls(made + 200)
    made = agent.end()
    (history,) = running.store.runs(tenant, RunQuery())
    assert len(history.steps) == made
    assert running.store.stats(tenant, StatsQuery(now=now())).total.calls == made


def test_metrics_and_doctor_show_shards_and_their_size_on_each_worker(cluster, store, running):
    for tenant in TENANTS:
        store.append(tenant, events("run_a", 50), "j", 52)
    shards = cluster.ask(
        "SELECT nodename || ':' || nodeport, count(DISTINCT shardminvalue), sum(size)::bigint "
        "FROM pg_dist_shard JOIN pg_dist_placement USING (shardid) JOIN pg_dist_node USING (groupid) "
        "JOIN citus_shard_sizes() ON shard_id = shardid WHERE shardminvalue IS NOT NULL GROUP BY 1 ORDER BY 1"
    )
    assert len(shards) == len(cluster.workers)
    metrics = running.person().get("/metrics").body.decode()
    for name, count, bytes in shards:
        for metric, value in (("up", 1), ("shards", count), ("shard_bytes", bytes), ("largest_shard_bytes", bytes)):
            assert f'mulligan_store_worker_{metric}{{worker="{name}"}} {value}\n' in metrics  # one shard on each worker

    diagnostics = diagnose_postgres(cluster.url, now())
    workers = diagnostics.facts["workers"]
    assert [(worker["name"], worker["shards"], worker["shard_bytes"]) for worker in workers] == shards
    sizes = {table.name: table.bytes for table in diagnostics.tables}
    assert sizes["runs"] == cluster.ask("SELECT citus_total_relation_size('runs')")[0][0]
    assert set(sizes) == set(TABLE_NAMES)
    assert sum(sizes.values()) == sum(bytes for _, _, bytes in shards) <= diagnostics.bytes
    done = subprocess.run(
        [sys.executable, "-m", "mulligan", "doctor", "--store", cluster.url], capture_output=True, text=True, timeout=60
    )
    assert re.search(rf"{shards[0][0]} 1 shard [\d.]+ MB \(largest [\d.]+ MB\)", done.stdout), done.stdout


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.1)


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
