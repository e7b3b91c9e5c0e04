"""Two servers behind a balancer on a Citus cluster: killed workers and servers lose nothing, double nothing, and
change no answer.

`make test-cluster` runs it with 200,000 calls and shows its progress; `CALLS=20000` makes fewer.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import postgres
import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")
pytest.importorskip("uvicorn", reason="needs the extra: pip install 'mulligan[server]'")

from balancer import Balancer
from cluster import Cluster
from ingest import serving

from mulligan.contract import counters
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import (
    DAY,
    FixQuery,
    LessonQuery,
    PatternQuery,
    RecallQuery,
    RunQuery,
    SessionQuery,
    Store,
    now,
)
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, StoreError, TookEffect
from mulligan.core.records import PatternPeriod, Run, Step
from mulligan.server.tenants import Tenant, Tenants, Tokens
from mulligan.store.remote import RemoteStore
from mulligan.store.urls import open_store

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(not postgres.CITUS, reason="needs Citus: make test-cluster CITUS=DIR"),
]
CALLS = int(os.environ.get("MULLIGAN_TEST_CLUSTER_CALLS", "200000"))
TENANTS = [f"team-{number}" for number in range(40)]
CALLS_PER_RUN = 50
EVENTS_PER_BATCH = 130
"""Not a multiple of a run: most runs arrive in two batches, and by way of two servers."""
MAX_CONCURRENT_REQUESTS = 10
"""Fewer than tenants: on a busy machine all of them would wait for longer than their senders do."""
AWAY_SECONDS = 5.0
PATIENCE = 900.0
WHEN_LEARNED: dict[str, Any] = {
    "created_at": 0, "active_since": 0, "helped_runs": 0, "unhelped_runs": 0, "stats_before": PatternPeriod(),
    "stats_after": PatternPeriod(),
}  # fmt: skip
"""The fields of a lesson that count from then on."""
OTHER_TOOLS = ("list", "read", "write")
TOO_MANY = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "k is 10 at most, got 50", fingerprint="f-k"
)
TOO_SLOW = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "no answer within 3 s", fingerprint="f-slow")
NOT_THERE = Failure.of(Kind("tool", "not_found", Remedy.REPLAN), "no such page", fingerprint="f-page")


def record_run(tenant: str, number: int, now: int) -> list[AnyEvent]:
    """One run: a rejected call and its correction, a retried call, in some a failure that stays, and successes."""
    id, at = f"run_{tenant}_{number}", now - (number % 9 + 1) * DAY
    run = Run(id=id, agent=f"agent-{number % 2}", session=f"session-{number // 4}", started_at=at)
    numbers = itertools.count(1)

    def build_step(name: str, arguments: dict[str, Any], call: int = 0, **facts: Any) -> Step:
        seq = next(numbers)
        return Step(
            run=id, seq=seq, call=call or seq, name=name, key=f"tools:{name}", arguments=arguments,
            started_at=at + 1000 * seq, duration_seconds=0.25, **facts,
        )  # fmt: skip

    question = f"cats of {number}"
    steps = [
        build_step("search", {"q": question, "k": 50}, outcome="failure", failure=TOO_MANY),
        build_step("search", {"q": question, "k": 10}),
        build_step("fetch", {"page": number}, outcome="failure", failure=TOO_SLOW),
        build_step("fetch", {"page": number}, call=3, attempt=2, result="found it"),
    ]
    if number % 5 == 0:
        steps.append(build_step("read", {"page": number}, outcome="failure", failure=NOT_THERE))
    while len({step.call for step in steps}) < CALLS_PER_RUN:
        name = OTHER_TOOLS[len(steps) % len(OTHER_TOOLS)]
        steps.append(build_step(name, {"page": len(steps)}, result=f"page {len(steps)} of {question}"))
    ended = Run(
        id=id, agent=run.agent, session=run.session, started_at=at, ended_at=at + 1000 * (len(steps) + 1),
        end_reason="finished",
    )  # fmt: skip
    return [RunStarted(run), *map(StepEnded, steps), RunEnded(ended)]


def record_batches(tenant: str, now: int) -> Iterator[list[AnyEvent]]:
    runs = max(1, CALLS // len(TENANTS) // CALLS_PER_RUN)
    events = itertools.chain.from_iterable(record_run(tenant, number, now) for number in range(runs))
    while batch := list(itertools.islice(events, EVENTS_PER_BATCH)):
        yield batch


class Senders:
    """One process per tenant, as far as a server can tell: each sends a batch until that is acknowledged, as the
    sender of the recorder does, and the next one over another connection.
    """

    def __init__(self, port: int, secrets: dict[str, str], now: int) -> None:
        self._port, self._now = port, now
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(MAX_CONCURRENT_REQUESTS)
        self.calls = 0
        """How many are acknowledged."""
        self.refused: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._send_all, args=each, daemon=True) for each in secrets.items()]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def are_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _send_all(self, tenant: str, secret: str) -> None:
        try:
            with contextlib.closing(RemoteStore(f"http://127.0.0.1:{self._port}", secret)) as store:
                offset = 0
                for batch in record_batches(tenant, self._now):
                    offset += len(batch)
                    self._send(store, tenant, batch, offset)
                    store.close()  # only its connections: the next batch goes to the next server
        except BaseException as error:
            self.errors.append(error)
            raise

    def _send(self, store: RemoteStore, tenant: str, batch: Sequence[AnyEvent], offset: int) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with self._slots:
                    store.append(tenant, batch, "journal", offset)
            except StoreError as error:
                if time.monotonic() > until:
                    raise
                with self._lock:
                    self.refused[re.split("[:)]", str(error).partition(" (")[2])[0]] += 1
                time.sleep(max(0.0, store.away_until - time.monotonic()))
                continue
            calls = sum(isinstance(event, StepEnded) and event.step.attempt == 1 for event in batch)
            with self._lock:
                self.calls += calls
            return

    def wait(self, calls: int, say: Callable[[str], None]) -> None:
        """Wait until this many calls are acknowledged, and say every few seconds how far it is."""
        said_at = began = time.monotonic()
        while self.calls < calls and not self.are_done:
            assert time.monotonic() - began < PATIENCE
            assert not self.errors, self.errors
            if time.monotonic() - said_at > 5:
                said_at = time.monotonic()
                say(f"{self.calls:,} calls acknowledged, {self.refused.total():,} requests sent again")
            time.sleep(0.05)


def create_tokens(url: str) -> dict[str, str]:
    """A token for each tenant, which has a known key: with another key, redacted values have other digests."""
    with contextlib.closing(open_store(url)) as store:
        tenants, tokens = Tenants(store), Tokens(store)
        for name in TENANTS:
            tenants.create(Tenant(name=name, unredacted_arguments=("k",)))
            store.put(name, "key", "export", name.encode().ljust(32))
        return {name: tokens.create("ingest", now(), tenant=name)[1] for name in TENANTS}


def answers(store: Store, tenant: str, now: int) -> dict[str, Any]:
    """What a store answers about a tenant. When its server learned a lesson is a matter of chance."""
    store.consolidate(tenant, now)
    patterns = store.patterns(tenant, PatternQuery(limit=100))
    return {
        "stats": store.stats(tenant, StatsQuery(now=now)),
        **{f"stats by {by}": store.stats(tenant, StatsQuery(now=now, by=by)) for by in ("tool", "kind", "agent")},
        "patterns": patterns,
        "runs": store.runs(tenant, RunQuery()),
        "failed runs": store.runs(tenant, RunQuery(status="partial")),
        "sessions": store.sessions(tenant, SessionQuery(limit=50)),
        "precedents": [
            store.recall(tenant, RecallQuery(tool=pattern.tool, fingerprint=pattern.fingerprint))
            for pattern in patterns
        ],
        "fixes": [
            store.fixes(tenant, FixQuery(tool=pattern.tool, fingerprint=pattern.fingerprint, now=now))
            for pattern in patterns
        ],
        "values": [store.value_profiles(tenant, tool) for tool in ("search", *OTHER_TOOLS)],
        "lessons": [
            msgspec.structs.replace(lesson, **WHEN_LEARNED) for lesson in store.lessons(tenant, LessonQuery(now=now))
        ],
    }


def test_killed_workers_and_servers_lose_nothing_and_answers_are_those_of_one_postgresql(capsys):
    clock = now() // DAY * DAY
    began = time.monotonic()

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"{time.monotonic() - began:5.0f} s  {text}", flush=True)

    with contextlib.ExitStack() as opened:
        cluster = Cluster()
        opened.callback(cluster.remove)
        servers = [opened.enter_context(serving(cluster.url)) for _ in range(2)]
        balancer = opened.enter_context(Balancer([server.port for server in servers]))
        say("a coordinator, two workers, two servers and a balancer run")

        senders = Senders(balancer.port, create_tokens(cluster.url), clock)
        sending_at = time.monotonic()
        senders.start()
        for number, worker in enumerate(cluster.workers, start=1):
            senders.wait(number * CALLS // 5, say)
            before = senders.refused.total()
            with cluster.without(worker):
                say(f"worker {number} killed at {senders.calls:,} calls")
                time.sleep(AWAY_SECONDS)
            say(f"worker {number} started again: {senders.refused.total() - before:,} requests were refused meanwhile")
            assert senders.refused.total() > before
        senders.wait(3 * CALLS // 5, say)
        assert not senders.are_done
        servers[0].process.kill()
        say(f"server 1 killed at {senders.calls:,} calls")
        time.sleep(AWAY_SECONDS)
        servers[0] = opened.enter_context(serving(cluster.url))
        balancer.ports = [server.port for server in servers]
        say("server 1 started again")
        senders.wait(CALLS, say)
        while not senders.are_done:
            time.sleep(0.05)
        assert not senders.errors
        seconds = time.monotonic() - sending_at
        say(f"{senders.calls:,} calls acknowledged in {seconds:.0f} s, sent again: {dict(senders.refused)}")
        assert senders.calls == CALLS // len(TENANTS) // CALLS_PER_RUN * CALLS_PER_RUN * len(TENANTS)
        assert len(balancer.accepted) >= 2  # 3 unless all has arrived before the successor of the killed one

        plain = opened.enter_context(postgres.Server())
        with serving(plain.url) as one:
            plain_senders = Senders(one.port, create_tokens(plain.url), clock)
            plain_at = time.monotonic()
            plain_senders.start()
            while not plain_senders.are_done:
                plain_senders.wait(CALLS, lambda text: say(f"plain PostgreSQL: {text}"))
                time.sleep(0.05)
            assert not plain_senders.errors
            say(
                f"the same on plain PostgreSQL with one server, undisturbed: {time.monotonic() - plain_at:.0f} s, "
                f"sent again: {dict(plain_senders.refused)}"
            )

        distributed = opened.enter_context(contextlib.closing(open_store(cluster.url)))
        reference = opened.enter_context(contextlib.closing(open_store(plain.url)))
        compared = 0
        for number, tenant in enumerate(TENANTS):
            if number % 10 == 0:
                say(f"{number} tenants compared")
            histories = {history.run.id: history for history in distributed.export(tenant)}
            sent = Counter(
                (event.step.run, event.step.seq)
                for batch in record_batches(tenant, clock)
                for event in batch
                if isinstance(event, StepEnded)
            )
            assert Counter((step.run, step.seq) for history in histories.values() for step in history.steps) == sent
            assert histories == {history.run.id: history for history in reference.export(tenant)}
            for by in (None, "tool", "kind"):
                query = StatsQuery(now=clock, by=by)  # type: ignore[arg-type]
                assert distributed.stats(tenant, query) == counters.stats(list(histories.values()), query)
            here, there = answers(distributed, tenant, clock), answers(reference, tenant, clock)
            for name, answer in there.items():
                assert here[name] == answer, f"{name} of {tenant}"
                assert answer, name
            compared += sum(sent.values())
        say(f"{compared:,} attempts of {len(TENANTS)} tenants there once, counters equal rows, answers equal")
