"""Workers of a Citus cluster that do not answer, as far as plain PostgreSQL can show it.

`test_cluster.py` has real ones.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import postgres
import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")
pytest.importorskip("starlette", reason="needs the extra: pip install 'mulligan[server]'")

import psycopg
from servers import Answer, Client, Running, served

from mulligan.contract.store import RunQuery
from mulligan.core.failure import StoreError, WorkerUnavailableError
from mulligan.server import tenants
from mulligan.server.access import AccessRules
from mulligan.server.tenants import SECRET_PREFIX, SERVER_TENANT
from mulligan.store.postgres import workers
from mulligan.store.postgres.pool import translate_errors
from mulligan.store.postgres.postgres_store import PostgresStore
from mulligan.store.postgres.workers import WorkerOutages

WORKER = "10.0.0.7:5432"
REFUSED = f"connection to the remote node mulligan@{WORKER} failed with the following error: Connection refused"


# Whose transactions fail, and for how long


class Town:
    """Two tenants on two workers, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.outages = WorkerOutages({"ann": "a:1", "bob": "b:1", "cid": "a:1"}.get, lambda: self.now)

    def transact(self, *tenants: str, away: str = "", seconds: float = 0.0) -> str:
        """Run a transaction that takes so long and may find a worker away. Return the worker for which it failed."""
        try:
            with self.outages.watch(tenants):
                self.now += seconds
                if away:
                    raise WorkerUnavailableError("gone", away)
        except WorkerUnavailableError as error:
            return error.worker
        return ""


def test_tenants_of_a_lost_worker_fail_immediately_and_all_others_go_on():
    town = Town()
    town.transact("ann", away="a:1")
    assert town.outages.list_workers() == ["a:1"]
    assert town.transact("ann") == "a:1"
    assert town.transact("bob", "cid") == "a:1"
    assert town.transact("bob") == ""


def test_one_transaction_tries_a_lost_worker_again_while_all_others_still_fail():
    town = Town()
    town.transact("ann", away="a:1")
    town.now += workers.MIN_BLOCK_SECONDS
    with town.outages.watch(("ann",)):
        assert town.transact("cid") == "a:1"
    assert town.transact("cid") == ""
    assert town.outages.list_workers() == []


def test_a_transaction_that_fails_otherwise_leaves_the_worker_to_the_next_one():
    town = Town()
    town.transact("ann", away="a:1")
    town.now += workers.MIN_BLOCK_SECONDS
    with pytest.raises(KeyError), town.outages.watch(("ann",)):
        raise KeyError
    assert town.transact("cid") == ""


def test_a_worker_on_which_much_time_was_spent_is_tried_again_later():
    town = Town()
    town.transact("ann", away="a:1", seconds=2.0)
    town.now += 2.0 * workers.BLOCK_FACTOR - 0.1
    assert town.transact("ann") == "a:1"
    town.now += 0.2
    assert town.transact("ann") == ""


def test_a_lost_worker_that_is_not_used_any_more_is_forgotten():
    town = Town()
    town.transact("ann", away="a:1")
    town.now += workers.MIN_BLOCK_SECONDS + workers.OUTAGE_MEMORY_SECONDS
    assert town.outages.list_workers() == []


def test_the_worker_of_a_tenant_is_read_again_once_a_minute():
    town, reads = Town(), []
    town.outages = WorkerOutages(lambda tenant: reads.append(tenant) or "a:1", lambda: town.now)
    for _ in range(3):
        assert town.outages.find_worker("ann") == "a:1"
    town.now += workers.CACHE_SECONDS
    town.outages.find_worker("ann")
    assert reads == ["ann", "ann"]


# What PostgreSQL says


@pytest.fixture
def database() -> str:
    postgres.had()
    return postgres.emptied()


def raise_error(url: str, code: str, text: str, function: str = "raise_it") -> None:
    with translate_errors("the store"), psycopg.connect(url) as connection:
        connection.execute(
            f'CREATE FUNCTION pg_temp."{function}"() RETURNS void LANGUAGE plpgsql AS '
            f"$$BEGIN RAISE EXCEPTION '{text}' USING ERRCODE = '{code}'; END$$"
        )
        connection.execute(f'SELECT pg_temp."{function}"()')


@pytest.mark.parametrize(
    ("code", "text", "context"),
    [
        ("08006", REFUSED, ""),
        ("08006", f"could not connect to {WORKER} to get size of relation", ""),
        ("08006", "server closed the connection unexpectedly", f"while executing command on {WORKER}"),
        ("57P01", "terminating connection due to administrator command", f"while executing command on {WORKER}"),
        ("57P03", "the database system is starting up", f"while executing command on {WORKER}"),
    ],
)
def test_an_error_of_a_lost_worker_names_it(database, code, text, context):
    with pytest.raises(WorkerUnavailableError) as raised:
        raise_error(database, code, text, context or "raise_it")
    assert raised.value.worker == WORKER
    assert f"The worker {WORKER} of the store does not answer" in str(raised.value)


@pytest.mark.parametrize(
    ("code", "text", "context"),
    [
        ("55P03", "canceling statement due to lock timeout", f"while executing command on {WORKER}"),
        ("53100", "could not extend file", f"while executing command on {WORKER}"),
        ("08006", "server closed the connection unexpectedly", ""),
    ],
)
def test_other_errors_concern_the_whole_store(database, code, text, context):
    with pytest.raises(StoreError) as raised:
        raise_error(database, code, text, context or "raise_it")
    assert not isinstance(raised.value, WorkerUnavailableError)


def test_plain_postgresql_has_no_workers(database):
    with contextlib.closing(PostgresStore(database)) as store, psycopg.connect(database) as connection:
        assert (store.workers(), store.unavailable_workers()) == ([], [])
        assert store.find_worker("ann") is workers.find_worker(connection, "ann") is None


# What a server answers


@contextlib.contextmanager
def losing(url: str, tenant: str, table: str = "runs") -> Iterator[None]:
    """Let PostgreSQL say of writes of this tenant what a coordinator says whose worker is away."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$BEGIN RAISE EXCEPTION '{REFUSED}' USING ERRCODE = '08006'; END$$"
        )
        connection.execute(
            f"CREATE TRIGGER lose BEFORE INSERT ON {table} FOR EACH ROW WHEN (NEW.tenant = '{tenant}') "
            "EXECUTE FUNCTION lose()"
        )
        try:
            yield
        finally:
            connection.execute("DROP FUNCTION lose CASCADE")


@pytest.fixture(params=[True, False], ids=["local", "beyond"])
def running(request, database, tmp_path) -> Iterator[Running]:
    rules = AccessRules(is_local=request.param, hosts=frozenset({"localhost"}))
    with served(tmp_path, rules, store=PostgresStore(database)) as made:
        yield made


def send(client: Client, id: str) -> Answer:
    return client.post("/v1/runs", {"id": id, "steps": [{"name": "search"}]})


def test_a_tenant_whose_worker_is_away_gets_503_and_the_others_are_served(running, database):
    ann, bob = (running.holding("admin", tenant=tenant) for tenant in ("ann", "bob"))
    with losing(database, "ann"):
        refused = send(ann, "run_a")
        assert (refused.status, refused.json["error"], refused.headers["retry-after"]) == (
            503,
            "worker_unavailable",
            "2",
        )
        assert "Other tenants are not affected" in refused.json["message"]
        ready = running.anybody().get("/readyz")
        assert (ready.status, ready.json["status"]) == (200, "degraded")
        is_named = running.server.rules.is_local  # as the address of the store is
        assert (ready.json.get("unavailable_workers") == [WORKER]) is is_named
        assert (WORKER.encode() in ready.body) is is_named
        assert send(bob, "run_b").status == 200
    assert send(ann, "run_a").status == 200
    assert len(running.store.runs("ann", RunQuery())) == 1


def test_batches_of_one_commit_are_stored_but_for_those_of_a_lost_worker(running, database):
    begin, statuses = threading.Event(), {}
    running.server.committer.run_before_next_commit(lambda: begin.wait(20))
    clients = {tenant: running.holding("admin", tenant=tenant) for tenant in ("ann", "bob", "cid")}

    def post(tenant: str) -> None:
        statuses[tenant] = send(clients[tenant], f"run_{tenant}").status

    with losing(database, "ann"):
        threads = [threading.Thread(target=post, args=(tenant,)) for tenant in clients]
        for thread in threads:
            thread.start()
        begin.set()
        for thread in threads:
            thread.join(20)
    assert statuses == {"ann": 503, "bob": 200, "cid": 200}


def test_known_tokens_are_accepted_while_the_worker_that_stores_them_is_away(running, monkeypatch):
    ann = running.holding("admin", tenant="ann")
    assert send(ann, "run_a").status == 200
    get = running.store.get

    def lose(tenant: str, *key: str) -> bytes | None:
        if tenant == SERVER_TENANT:
            raise WorkerUnavailableError("gone", WORKER)
        return get(tenant, *key)

    monkeypatch.setattr(running.store, "get", lose)
    monkeypatch.setattr(tenants, "REFRESH_INTERVAL_SECONDS", 0.0)
    assert send(ann, "run_b").status == 200
    unknown = Client(running.port, token=f"{SECRET_PREFIX}admin_other").get("/v1/runs")
    assert (unknown.status, unknown.json["error"]) == (503, "worker_unavailable")
    assert (WORKER.encode() in unknown.body) is running.server.rules.is_local
