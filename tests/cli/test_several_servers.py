"""Several `mulligan serve` on one store, as processes: they are one server to whoever sends, asks and is refused."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import pytest

pytest.importorskip("uvicorn", reason="needs the extra: pip install 'mulligan[server]'")
pytest.importorskip("jinja2", reason="needs the extra: pip install 'mulligan[server]'")

import postgres
from servers import Client

from mulligan.contract.store import Store
from mulligan.core.events import RunEnded
from mulligan.core.records import Run, to_builtins
from mulligan.server.tenants import Tenant, Tenants, Tokens, with_quotas
from mulligan.store.urls import open_store

QUOTA = 300
PATIENCE = 60.0


class Pair:
    """Two processes, and the store that they share."""

    def __init__(self, ports: list[int], store: Store) -> None:
        self.ports, self.store = ports, store

    def holding(self, tenant: str, role: str = "admin") -> tuple[str, list[Client]]:
        """Somebody with a token, at each of the two."""
        made, secret = Tokens(self.store).create(role, 0, tenant=tenant)  # type: ignore[arg-type]
        clients = [Client(port, token=secret) for port in self.ports]
        eventually(lambda: all(each.get("/v1/stats").status == 200 for each in clients))
        return made.id, clients


def eventually(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("shared") / "s.db")


@pytest.fixture(scope="module")
def shared_database(postgres_server) -> Iterator[str]:
    with postgres.fresh_database(postgres_server) as url:
        yield url


@pytest.fixture(scope="module", params=["shared", "shared_database"])
def pair(request) -> Iterator[Pair]:
    url = request.getfixturevalue(request.param)
    store = open_store(url)
    Tenants(store).create(with_quotas(Tenant(name="limited"), {"records": QUOTA}))
    begun = [
        subprocess.Popen(
            [sys.executable, "-m", "mulligan", "serve", "--port", "0", "--store", url],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        ports = [int(re.search(r"127\.0\.0\.1:(\d+)", each.stdout.readline())[1]) for each in begun]
        yield Pair(ports, store)
    finally:
        for each in begun:
            each.terminate()
        for each in begun:
            each.communicate(timeout=30)
        store.close()


def test_what_comes_in_anywhere_is_counted_once_and_told_everywhere(pair):
    _, clients = pair.holding("sums")

    def sends(number: int) -> int:
        failed = {"message": f"no {number}", "type": "tool", "code": "timeout"}
        run = {"id": f"r{number % 60}", "agent": "a", "started_at": 1, "end_reason": "finished",
               "steps": [{"name": "s", "started_at": 1, "failure": failed if number % 3 == 0 else None}]}  # fmt: skip
        return clients[number % 7 % 2].post("/v1/runs", run).status

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(sends, range(120))) == {200}  # each run twice, most at both
    for client in clients:
        told = client.get("/v1/stats?since=all").json
        assert (told["total_runs"], told["total"]["calls"], told["total"]["unrecovered"]) == (60, 60, 20)
        (pattern,) = client.get("/v1/patterns").json["patterns"]
        assert pattern["occurrences"] == 20


def test_a_failure_that_one_replaces_is_no_longer_counted_by_the_other(pair):
    _, (here, there) = pair.holding("pieces")
    step = {"run": "r", "name": "search", "arguments": {"k": 1}, "started_at": 1}
    here.post("/v1/steps", {**step, "seq": 1, "outcome": "failure"})  # one has a run of unknown failures in mind
    there.post("/v1/failures", {"run": "r", "step": 1, "type": "tool", "code": "timeout", "message": "slow"})
    here.post("/v1/steps", {**step, "seq": 2})
    for client in (here, there):
        kinds = client.get("/v1/stats?since=all").json["total"]["kinds"]
        assert [(name, kind["recovered"], kind["unrecovered"]) for name, kind in kinds.items()] == [
            ("tool/timeout", 1, 0)
        ]


def test_a_batch_that_was_not_acknowledged_may_be_sent_to_the_other_one(pair):
    _, clients = pair.holding("again")
    ended = RunEnded(Run(id="once", agent="a", started_at=1, ended_at=2, end_reason="finished"))
    sent = {"client": "c", "journal": "j", "offset": 7, "events": [to_builtins(ended)]}
    assert [client.post("/v1/batch", sent).json["new"] for client in clients] == [1, 0]


def test_a_quota_is_one_for_all_of_them(pair):
    _, clients = pair.holding("limited")
    run = {"agent": "a", "end_reason": "finished", "steps": [{"name": "s"}, {"name": "t"}]}

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda number: clients[number % 2].post("/v1/runs", run).status, range(160)))

    assert set(statuses) == {200, 429}
    taken = statuses.count(200) * 3
    assert QUOTA - 2 * (QUOTA // 100 + 2) <= taken <= QUOTA  # each may hold a few that are not enough for a run
    for client in clients:
        assert client.post("/v1/runs", run).status == 429
        assert client.get("/v1/stats?since=all").json["total_runs"] == statuses.count(200)


def test_a_token_that_is_revoked_is_worth_nothing_anywhere(pair):
    id, clients = pair.holding("leaving")
    Tokens(pair.store).revoke(id, 5)
    eventually(lambda: [each.get("/v1/stats").status for each in clients] == [401, 401])


def test_whoever_signed_in_at_one_is_known_at_the_other(pair):
    _, (here, there) = pair.holding("people", "read")
    form = {"Origin": f"http://127.0.0.1:{here.port}", "Content_Type": "application/x-www-form-urlencoded"}
    came = Client(here.port).post("/sign-in", body=urlencode({"token": here.token}).encode(), **form)
    cookie = came.headers["set-cookie"].partition(";")[0]
    assert Client(there.port, cookie=cookie).get("/").status == 200


def test_what_is_set_for_a_tenant_holds_everywhere(pair):
    Tenants(pair.store).create(Tenant(name="strict"))
    _, clients = pair.holding("strict")
    Tenants(pair.store).set("strict", lambda known: with_quotas(known, {"requests": 1}))
    eventually(lambda: {each.get("/v1/stats").status for each in clients} == {429})
