"""How much a tenant may send in a day: never more, whoever counts, and the next day anew."""

from __future__ import annotations

import threading
import time

import pytest
from servers import served

from mulligan.contract.store import DAY
from mulligan.core.failure import StoreError
from mulligan.core.records import decode
from mulligan.server.bodies import ApiError
from mulligan.server.limits import BUCKETS_KEY, Quotas, RateLimiter, SharedBuckets, day_of, load_usage
from mulligan.server.tenants import Tenant, with_quotas
from mulligan.store.sqlite import MemoryStore, SqliteStore

NOON = 1_794_700_800_000


def limited(**most: int) -> Tenant:
    return with_quotas(Tenant(name="acme"), most)


def spend(quotas: Quotas, tenant: Tenant, now: int = NOON, **asked: int) -> bool:
    if quotas.spend_reserved(tenant, asked, now):
        return True
    try:
        quotas.reserve_and_spend(tenant, asked, now)
    except ApiError:
        return False
    return True


def test_what_is_allowed_comes_in_and_nothing_more():
    quotas, tenant = Quotas(MemoryStore()), limited(records=10)

    assert [spend(quotas, tenant, records=3) for _ in range(4)] == [True, True, True, False]
    assert spend(quotas, tenant, records=1)  # what is left is still there for who asks for less
    assert not spend(quotas, tenant, records=1)


def test_whoever_has_no_quota_is_not_counted():
    store = MemoryStore()
    assert spend(Quotas(store), Tenant(name="acme"), records=10**12)
    assert spend(Quotas(store), limited(requests=1), records=10**12)
    assert load_usage(store, "acme").days == {}


def test_the_next_day_begins_anew_and_the_answer_says_when_to_come():
    quotas, tenant = Quotas(MemoryStore()), limited(bytes=100)
    assert spend(quotas, tenant, bytes=100)

    late = NOON - NOON % DAY + DAY - 90_000
    with pytest.raises(ApiError) as refused:
        quotas.reserve_and_spend(tenant, {"bytes": 1}, late)
    assert refused.value.headers["Retry-After"] == "91"
    assert "daily quota of 100 bytes" in refused.value.message
    assert spend(quotas, tenant, now=late + 91_000, bytes=100)


def test_to_come_again_is_never_told_for_later_than_in_an_hour():
    quotas, tenant = Quotas(MemoryStore()), limited(requests=1)
    assert spend(quotas, tenant, requests=1)
    with pytest.raises(ApiError) as refused:
        quotas.reserve_and_spend(tenant, {"requests": 1}, NOON - NOON % DAY)
    assert refused.value.headers["Retry-After"] == "3600"


def test_what_can_never_come_in_is_refused_for_good():
    with pytest.raises(ApiError) as refused:
        Quotas(MemoryStore()).reserve_and_spend(limited(records=10), {"records": 11}, NOON)
    assert refused.value.status == 413


def test_one_short_measure_spends_nothing_of_the_other():
    quotas, tenant = Quotas(MemoryStore()), limited(records=100, bytes=10)
    assert spend(quotas, tenant, records=1, bytes=10)
    for _ in range(200):
        assert not spend(quotas, tenant, records=1, bytes=1)
    assert spend(quotas, tenant, records=99)


def test_many_processes_together_let_in_what_is_allowed_and_no_more(tmp_path):
    stores = [SqliteStore(tmp_path / "s.db") for _ in range(4)]  # a connection each, as processes have
    tenant, came = limited(records=1000), []

    def sends(quotas: Quotas) -> None:
        came.extend(much for much in [7] * 80 if spend(quotas, tenant, records=much))

    every = [Quotas(store) for store in stores]
    threads = [threading.Thread(target=sends, args=(quotas,)) for quotas in every]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert sum(came) <= 1000
    assert sum(came) >= 1000 - 4 * 6 - 4 * 10  # each may hold what is not enough for another seven
    for quotas in every:
        quotas.close()
    assert load_usage(stores[0], "acme").days[day_of(NOON)]["records"] == sum(came)  # what was not spent was given back


def test_only_the_days_of_a_month_are_remembered():
    store, tenant = MemoryStore(), limited(requests=5)
    for day in range(40):
        assert spend(Quotas(store), tenant, now=NOON + day * DAY, requests=1)
    assert len(load_usage(store, "acme").days) == 31


@pytest.mark.slow
def test_a_server_answers_429_and_one_tenants_quota_is_nobody_elses(tmp_path):
    run = {"agent": "a", "end_reason": "finished", "steps": [{"name": "s"}, {"name": "t"}]}
    with served(tmp_path) as running:
        running.server.tenants.create(limited(records=6))
        running.server.tenants.create(with_quotas(Tenant(name="asks"), {"requests": 2}))
        running.server.refresh()
        acme, other = running.holding("admin", tenant="acme"), running.holding("admin", tenant="other")

        assert [acme.post("/v1/runs", run).status for _ in range(3)] == [200, 200, 429]
        told = acme.post("/v1/runs", run)
        assert (told.json["error"], 1 <= int(told.headers["retry-after"]) <= 3600) == ("quota", True)
        assert acme.post("/v1/runs", [run, run, run]).status == 413
        assert acme.get("/v1/stats?since=all").json["total_runs"] == 2  # to ask is no record
        assert other.post("/v1/runs", run).status == 200
        span = {"traceId": "a" * 32, "spanId": "b" * 16, "name": "execute_tool x", "startTimeUnixNano": "1"}
        spans = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
        assert acme.post("/v1/traces", spans).status == 429

        asks = running.holding("read", tenant="asks")
        assert [asks.get("/v1/runs").status for _ in range(3)] == [200, 200, 429]

        running.server.tenants.set("acme", lambda known: with_quotas(known, {"records": 9}))
        running.server.refresh()
        assert acme.post("/v1/runs", run).status == 200


# The rate limit


class Network:
    """Servers that share a store, and a client that sends to all of them as much as they accept."""

    def __init__(self, store: MemoryStore) -> None:
        self.store, self.seconds = store, 0.0
        self.servers: list[RateLimiter] = []

    def add_server(self) -> None:
        self.servers.append(RateLimiter(rate=100, monotonic=lambda: self.seconds))

    def send(self, seconds: float, interval: float = 0.05, size: int = 5) -> int:
        """Send bodies of this size to each server at this interval. Return the number of accepted records."""
        accepted, end = 0, self.seconds + seconds
        while self.seconds < end:
            for server in self.servers:
                for _ in range(10):
                    try:
                        server.take("acme", "ci", size)
                    except ApiError:
                        break
                    accepted += size
                if server.is_report_due:
                    server.report(self.store, NOON + int(self.seconds * 1000))
            self.seconds += interval
        return accepted


@pytest.mark.parametrize("count", [1, 2, 5])
def test_servers_together_let_through_the_rate_of_one(count):
    network = Network(MemoryStore())
    for _ in range(count):
        network.add_server()
    assert network.send(60) <= 60 * 100 + count * 1000  # a full bucket in each server, before they know of the others
    assert network.send(120) == pytest.approx(120 * 100, rel=0.15)


def test_the_shared_rate_holds_when_servers_come_and_go():
    network = Network(MemoryStore())
    network.add_server()
    network.send(30)
    accepted = 0
    for number in range(12):
        if number % 3 == 2:
            network.servers.pop(0)  # killed: what it did not report is lost
        else:
            network.add_server()
        accepted += network.send(15)
    assert len(network.servers) == 5
    assert 180 * 100 * 0.85 <= accepted <= 180 * 100 * 1.5  # without a shared bucket four times as much


def test_a_caller_far_below_the_rate_is_never_limited_by_several_servers():
    network = Network(MemoryStore())
    for _ in range(4):
        network.add_server()
    for _ in range(400):
        network.seconds += 1
        for server in network.servers:
            server.take("acme", "ci", 20)
            if server.is_report_due:
                server.report(network.store, NOON + int(network.seconds * 1000))


def test_a_store_that_is_away_or_a_wrong_clock_stops_nobody(monkeypatch):
    network = Network(MemoryStore())
    network.add_server()
    with monkeypatch.context() as broken:
        broken.setattr(network.store, "get", raise_store_error)
        assert network.send(60) == pytest.approx(60 * 100 + 1000, rel=0.05)  # one server alone
    limiter = RateLimiter(rate=100, monotonic=lambda: 0.0)
    limiter.take("acme", "ci", 500)
    limiter.report(network.store, NOON - 3_600_000)  # an hour slow
    network.seconds += 1000
    limiter = RateLimiter(rate=100, monotonic=lambda: 0.0)
    limiter.take("acme", "ci", 500)
    limiter.report(network.store, NOON + 1_000_000)
    entry = network.store.get("acme", "server", BUCKETS_KEY)
    assert entry is not None
    assert decode(entry, SharedBuckets).buckets["ci"].tokens == 500


def raise_store_error(*_: object) -> None:
    raise StoreError("The store is away.")


@pytest.mark.slow
def test_two_servers_on_one_store_limit_a_caller_together(tmp_path):
    store = SqliteStore(tmp_path / "shared.db")
    run = {"agent": "a", "steps": [{"name": "s"} for _ in range(40)]}
    with (
        served(tmp_path, store=store, rate_limiter=RateLimiter(rate=5)) as first,
        served(tmp_path, store=store, rate_limiter=RateLimiter(rate=5)) as second,
    ):
        one, two = (server.holding("admin", tenant="acme", principal="ci") for server in (first, second))
        assert one.post("/v1/runs", run).status == 200
        deadline = time.monotonic() + 20
        while not store.get("acme", "server", BUCKETS_KEY):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert two.post("/v1/runs", run).status == 200  # it does not know of the first one yet
        while two.post("/v1/runs", {"agent": "a"}).status == 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        refused = two.post("/v1/runs", {"agent": "a"})
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 5  # both bodies are counted: alone it would have tokens left
