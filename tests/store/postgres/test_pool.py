"""Behind a pooler, where each transaction may have another session: the same answers, and no session keeps a tenant.

Runs where PgBouncer is installed (Debian: pgbouncer).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pooler
import postgres
import pytest
from click.testing import CliRunner

pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")

import psycopg
from recounting import rebuild

from mulligan.cli import cli
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DAY, ForgetRequest, PatternQuery, RecallQuery, Retention, now
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, SettingsError, StoreError
from mulligan.core.records import Run, Step
from mulligan.store.postgres import pool as postgres_pool
from mulligan.store.postgres.pool import Pool
from mulligan.store.postgres.postgres_diagnostics import diagnose_postgres
from mulligan.store.postgres.postgres_store import PostgresStore

WRONG = Failure.of(Kind("tool", "invalid_arguments", Remedy.REPAIR), "k is 10 at most", fingerprint="f-k")
SESSIONS = 2
TENANTS = ("acme", "umbrella", "initech")

needs_pooler = pytest.mark.skipif(pooler.program() is None, reason="PgBouncer is not installed")


@pytest.fixture(params=["", "options"], ids=["refuses options", "ignores options"])
def between(request, monkeypatch) -> Iterator[pooler.Pooler]:
    """Fewer sessions than there are connections to it."""
    monkeypatch.setattr(postgres_pool, "CONNECT_TIMEOUT_SECONDS", 60)  # however busy the machine is
    with (
        postgres.fresh_database(postgres.had()) as url,
        pooler.Pooler(url, size=SESSIONS, ignore_startup_parameters=request.param or "extra_float_digits") as made,
    ):
        yield made


def batch(id: str) -> list[object]:
    run = Run(id=id, agent="a", started_at=5)
    one = Step(run=id, seq=1, call=1, name="search", arguments={"k": 50}, outcome="failure", failure=WRONG)
    other = Step(run=id, seq=2, call=2, name="search", arguments={"k": 10})
    done = Run(id=id, agent="a", started_at=5, ended_at=9, end_reason="finished")
    return [RunStarted(run), StepEnded(one), StepEnded(other), RunEnded(done)]


@needs_pooler
def test_tenants_that_share_sessions_keep_and_find_their_own_and_nothing_else(between):
    stores = {tenant: PostgresStore(between.url, fsync=True) for tenant in TENANTS}
    wrong: list[str] = []

    def work(tenant: str) -> None:
        store = stores[tenant]
        try:
            for n in range(8):
                assert store.append(tenant, batch(f"run_{tenant}_{n}"), "j", n + 1) == 4
                store.put(tenant, "kind", "key", f"{tenant} {n}".encode())
                assert store.get(tenant, "kind", "key") == f"{tenant} {n}".encode()
                assert len(store.run(tenant, f"run_{tenant}_{n}").steps) == 2
                assert store.stats(tenant, StatsQuery(now=9)).total.calls == 2 * (n + 1)
                assert {each.run.id for each in store.export(tenant)} == {f"run_{tenant}_{m}" for m in range(n + 1)}
                assert store.recall(tenant, RecallQuery(tool="search", fingerprint="f-k"))
        except Exception as error:  # noqa: BLE001 - told by the test
            wrong.append(f"{tenant}: {type(error).__name__} {error}")

    threads = [threading.Thread(target=work, args=(tenant,)) for tenant in TENANTS]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert wrong == []

    one = stores["acme"]
    assert one.prune("acme", Retention(keep_failures=DAY), now() + 3 * DAY).runs == 8
    assert one.forget("umbrella", ForgetRequest(run="run_umbrella_0")).runs == 1
    rebuild(one, "initech")
    ((pattern),) = stores["initech"].patterns("initech", PatternQuery(tool="search"))
    assert pattern.occurrences == 8
    for each in stores.values():
        each.close()
    assert meant(between.url) == [""] * SESSIONS


def meant(url: str) -> list[str]:
    """Whom each session means between two transactions: all of them at once, so that each is another."""
    connections = [psycopg.connect(url, autocommit=True) for _ in range(SESSIONS)]
    try:
        for each in connections:
            each.execute("BEGIN")
        asked = "SELECT pg_backend_pid(), current_setting('mulligan.tenant', true)"
        told = dict(each.execute(asked).fetchone() for each in connections)
        assert len(told) == SESSIONS
        return [value or "" for value in told.values()]
    finally:
        for each in connections:
            each.close()


@needs_pooler
def test_our_time_outs_hold_there_too_and_doctor_says_that_it_is_there(between):
    store = PostgresStore(between.url)
    with store.read_connection("acme") as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("1min",)
        assert connection.execute("SHOW join_collapse_limit").fetchone() == ("1",)
    with store.write_transaction("acme") as writer:
        assert writer.execute("SHOW lock_timeout").fetchone() == ("15s",)
        assert writer.execute("SHOW join_collapse_limit").fetchone() == ("8",)
    store.close()
    facts = diagnose_postgres(between.url, now()).facts
    assert facts["pooler"]
    assert facts["timeouts"]["statement_timeout"] == "1min"
    said = CliRunner().invoke(cli, ["doctor", "--store", between.url]).output
    assert "transaction pooling assumed, session features off" in " ".join(said.split())


@needs_pooler
def test_what_needs_a_session_of_its_own_says_so(between, tmp_path):
    PostgresStore(between.url).close()
    done = CliRunner().invoke(cli, ["copy", between.url, str(tmp_path / "a.db")])
    assert done.exit_code != 0
    assert "Use the address of PostgreSQL" in str(done.exception or "") + done.output
    with pytest.raises(StoreError, match=r"drops options \(-csearch_path=x\)\. .* ALTER ROLE NAME SET"):
        PostgresStore(f"{between.url}?options=-csearch_path%3Dx")


@needs_pooler
def test_where_it_gives_sessions_that_can_be_said_and_statements_are_prepared(tmp_path):
    with (
        postgres.fresh_database(postgres.had()) as url,
        pooler.Pooler(url, "session", size=9, ignore_startup_parameters="options") as between,
    ):
        pool = Pool(f"{between.url}?pooler=session")
        with pool.using() as connection:
            assert not connection.is_pooled
            assert connection.raw_connection.prepare_threshold == 1
        pool.close()
        forced = Pool(f"{url}?pooler=transaction")
        with forced.using() as connection:
            assert connection.is_pooled
        forced.close()


def test_postgresql_itself_is_taken_for_what_it_is(postgres_url):
    pool = Pool(postgres_url)
    with pool.using() as connection:
        assert not connection.is_pooled
    pool.close()
    with pytest.raises(SettingsError, match="Invalid pooler 'statement'"):
        Pool(f"{postgres_url}?pooler=statement")


def test_connections_that_fail_together_delay_the_next_attempt_once(monkeypatch):
    clock, attempts = [100.0], []
    all_connecting = threading.Barrier(8)

    def refuse(*_, **__):
        attempts.append(clock[0])
        if len(attempts) <= 8:
            all_connecting.wait(20)
        raise psycopg.OperationalError("connection timeout expired")

    monkeypatch.setattr(psycopg, "connect", refuse)
    pool = Pool("postgresql://127.0.0.1/none", monotonic=lambda: clock[0])

    def connect() -> None:
        with pytest.raises((psycopg.OperationalError, StoreError)):
            pool.connect()

    with ThreadPoolExecutor(8) as callers:
        for call in [callers.submit(connect) for _ in range(8)]:
            call.result()
    connect()
    assert len(attempts) == 8
    clock[0] += 1.2 * postgres_pool.INITIAL_BACKOFF_SECONDS
    connect()
    assert len(attempts) == 9


def test_connection_refused_by_a_stopped_server_is_attempted_again_at_once(monkeypatch):
    attempts = []

    def refuse(*_, **__):
        attempts.append(1)
        raise psycopg.OperationalError("connection to server at 127.0.0.1 failed: Connection refused")

    monkeypatch.setattr(psycopg, "connect", refuse)
    pool = Pool("postgresql://127.0.0.1/none", monotonic=lambda: 100.0)
    for _ in range(3):
        with pytest.raises(psycopg.OperationalError, match="refused"):
            pool.connect()
    assert len(attempts) == 3


def test_connection_that_cannot_be_rolled_back_takes_all_others_of_that_time_with_it(postgres_url):
    pool = Pool(postgres_url)
    with contextlib.ExitStack() as leases, pool.using():  # one is in use until after the others were dropped
        for _ in range(3):
            leases.enter_context(pool.using())
        leases.close()  # three are idle
        with pool.using() as connection:
            connection.begin("acme")  # the question ends without a commit
            with psycopg.connect(postgres_url, autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
    for _ in range(2):
        with pool.using() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    pool.close()
