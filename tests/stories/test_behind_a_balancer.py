"""Four servers on one PostgreSQL behind a balancer: one server to everybody, also while some drain or die."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import postgres
import pytest
import taught
from balancer import Balancer
from servers import Answer, Client

pytest.importorskip("uvicorn", reason="needs the extra: pip install 'mulligan[server]'")

import mulligan
from mulligan.contract import counters
from mulligan.contract.audit import AuditQuery
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DAY, DEFAULT_TENANT, FixQuery, Store
from mulligan.core.records import to_builtins
from mulligan.server.tenants import Tenant, Tenants, Tokens, with_quotas
from mulligan.store.remote import RemoteStore
from mulligan.store.urls import open_store

SERVERS = 4
QUOTA = 200
PATIENCE = 60.0
SERVE = textwrap.dedent("""
    import sys
    from mulligan.learn import lessons
    from mulligan.server import background
    background.FIRST_CHECK_SECONDS = 0.5  # until retention looks what is old
    lessons.FIRST_ROUND_DELAY_SECONDS = lessons.ROUND_INTERVAL_SECONDS = 0.1
    from mulligan.cli import cli
    cli(sys.argv[1:])
""")


class Team:
    """Four `mulligan serve`, the store that they share, and the balancer before them."""

    def __init__(self, url: str, options: Sequence[str]) -> None:
        command = [sys.executable, "-c", SERVE, "serve", "--port", "0", "--store", url, "--level", "local", *options]
        self.processes = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(SERVERS)
        ]
        self.store: Store = open_store(url)

    def listen(self) -> None:
        lines = [process.stdout.readline() for process in self.processes if process.stdout]
        self.ports = [int(found[1]) for line in lines if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line))]
        assert len(self.ports) == SERVERS, lines
        self.balancer = Balancer(self.ports)

    def holding(self, role: Any = "admin", **facts: Any) -> tuple[str, list[Client]]:
        """Somebody with a token that was made just now, at each server."""
        token, secret = Tokens(self.store).create(role, 0, **facts)
        return token.id, [Client(port, token=secret) for port in self.ports]

    def stop(self, by: signal.Signals = signal.SIGTERM) -> list[str]:
        """End those that still run, and return what each wrote to standard error."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(by)
        return [process.communicate(timeout=60)[1] for process in self.processes]


@contextlib.contextmanager
def team(*options: str, old_runs: int = 0) -> Iterator[Team]:
    postgres.had()
    url = postgres.emptied()
    from mulligan.store.postgres.postgres_store import PostgresStore

    long_ago = int(time.time() * 1000) - 200 * DAY
    with contextlib.closing(PostgresStore(url, clock=lambda: long_ago)) as store:
        for number in range(old_runs):
            store.append(DEFAULT_TENANT, taught.clamped(f"old-{number}", long_ago, tool="old"), "old", number + 1)
    made = Team(url, options)
    try:
        made.listen()
        with made.balancer:
            yield made
    finally:
        for process in made.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
        made.store.close()


def eventually(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)


def statuses(clients: Sequence[Client], path: str = "/v1/stats") -> set[int]:
    return {client.get(path).status for client in clients}


def post_form(port: int, path: str, cookie: str | None = None, **form: str) -> Answer:
    headers = {"Origin": f"http://127.0.0.1:{port}", "Content_Type": "application/x-www-form-urlencoded"}
    return Client(port, cookie=cookie).post(path, body=urlencode(form).encode(), **headers)


def small_run(id: str, **failure: str) -> dict[str, Any]:
    now = int(time.time() * 1000)
    steps = [{"name": "pay", "arguments": {"k": 1}, "started_at": now, "failure": failure or None}, {"name": "ship"}]
    return {"id": id, "agent": "a", "started_at": now, "end_reason": "finished", "steps": steps}


def test_four_servers_are_one_to_whoever_signs_in_sends_decides_and_watches(tmp_path: Path) -> None:
    told = tmp_path / "alerts"
    with team("--alert-command", f"tee -a {told}", old_runs=3) as servers:
        ports, store = servers.ports, servers.store
        by_turns = Client(servers.balancer.port)
        assert {by_turns.get("/readyz").status for _ in ports} == {200}
        assert set(servers.balancer.accepted) == set(ports)

        # A token works everywhere at once, also to sign in, and ends everywhere.
        id, clients = servers.holding("read")
        assert statuses(clients) == {200}
        _, people = servers.holding("read")
        came = [post_form(port, "/sign-in", token=str(people[0].token)) for port in ports]
        assert [answer.status for answer in came] == [303] * SERVERS
        cookie = came[0].headers["set-cookie"].partition(";")[0]
        signed_in = [Client(port, cookie=cookie) for port in ports]
        assert statuses(signed_in) == {200}
        assert post_form(ports[1], "/sign-out", cookie).status == 303
        eventually(lambda: statuses(signed_in) == {401})
        Tokens(store).revoke(id, 5)
        eventually(lambda: statuses(clients) == {401})

        # The live page of one shows what the others store, each event once.
        _, admins = servers.holding()
        with live_events(admins[1]) as events:
            for number in range(3 * SERVERS):
                assert admins[number % SERVERS].post("/v1/runs", small_run(f"live-{number}")).status == 200
            eventually(lambda: {event["key"] for event in events} >= {f"live-{n}/ended" for n in range(12)})
            admins[0].post("/v1/runs", small_run("last"))
            eventually(lambda: any(event["key"] == "last/ended" for event in events))
            keys = Counter(event["key"] for event in events if event["key"].startswith("live-"))
        assert len(keys) == 3 * 12
        assert set(keys.values()) == {1}

        # What is learned at several becomes one lesson, and a decision at one holds at all.
        now = int(time.time() * 1000)
        for number in range(2 * SERVERS):
            batch = to_builtins(taught.clamped(f"learned-{number}", now - 60_000, agent=f"agent-{number % 2}"))
            body = {"client": f"c{number}", "journal": "j", "offset": 1, "events": batch}
            assert admins[number % SERVERS].post("/v1/batch", body).status == 200
        eventually(lambda: lessons_of(admins[0]) == [(2 * SERVERS, "proposed")])
        assert len({tuple(lessons_of(admin)) for admin in admins}) == 1
        (fix,) = [fix for fix in admins[2].get("/v1/fixes").json["fixes"] if fix["tool"] == "search"]
        (lesson,) = admins[2].get("/v1/lessons?tool=search").json["lessons"]
        admins[0].post(f"/v1/fixes/{fix['id']}", {"verdict": "revoke"})
        admins[1].post(f"/v1/lessons/{lesson['id']}", {"verdict": "disable"})
        for port, admin in zip(ports, admins, strict=True):
            assert [state for _, state in lessons_of(admin)] == ["disabled"]
            asking = RemoteStore(f"http://127.0.0.1:{port}", str(admin.token), tmp_path / f"spool-{port}")
            (known,) = asking.fixes(DEFAULT_TENANT, FixQuery(tool="search", now=now))
            assert known.state == "revoked"
            asking.close()

        # A quota is one for all.
        Tenants(store).create(with_quotas(Tenant(name="limited"), {"records": QUOTA}))
        _, limited = servers.holding(tenant="limited")
        eventually(lambda: statuses(limited) == {200})
        with ThreadPoolExecutor(8) as pool:
            sent = [*pool.map(lambda n: limited[n % SERVERS].post("/v1/runs", small_run(f"q{n}")).status, range(90))]
        assert set(sent) == {200, 429}
        assert QUOTA - SERVERS * (QUOTA // 100 + 2) <= 3 * sent.count(200) <= QUOTA

        # An alert is sent once, and what is old is removed once.
        for number in range(2 * SERVERS):
            payment = small_run(f"alert-{number}", type="model", code="quota_exceeded", message="no credit")
            assert admins[number % SERVERS].post("/v1/runs", payment).status == 200
        eventually(lambda: not store.find(DEFAULT_TENANT, "old-", 1))
        said = servers.stop()
        assert [process.returncode for process in servers.processes] == [0] * SERVERS
        alerts = [json.loads(line)["type"] for line in told.read_text().splitlines()]
        assert Counter(alerts)["person_needed"] == 1
        assert len([line for text in said for line in text.splitlines() if line.startswith("pruned tenant=local")]) == 1
        assert len(store.audit(DEFAULT_TENANT, AuditQuery(action="prune"))) == 1


def lessons_of(client: Client) -> list[tuple[int, str]]:
    lessons = client.get("/v1/lessons?tool=search").json["lessons"]
    return [(lesson["occurrences"], lesson["state"]) for lesson in lessons]


@contextlib.contextmanager
def live_events(client: Client) -> Iterator[list[dict[str, Any]]]:
    """The events that the live page of a server is sent; the last one says that the stream has ended."""
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=PATIENCE)
    connection.request("GET", "/live/events", headers={"Authorization": f"Bearer {client.token}"})
    stream = connection.getresponse()
    assert stream.status == 200
    events: list[dict[str, Any]] = []

    def read() -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed by the test
            for line in stream:
                if line.startswith(b'data: {"'):
                    events.append(json.loads(line[6:]))  # noqa: PERF401 - others read them meanwhile
            events.append({"key": "end"})

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield events
    if connection.sock is not None:
        connection.sock.shutdown(2)
    thread.join(10)
    connection.close()


class Writers:
    """Threads that send runs through the balancer, each again until it is acknowledged."""

    def __init__(self, port: int) -> None:
        self.acknowledged: list[str] = []
        self.errors: list[str] = []
        self._stopped = threading.Event()
        self._port = port
        self._threads = [threading.Thread(target=self._write, args=(number,), daemon=True) for number in range(6)]
        for thread in self._threads:
            thread.start()

    def wait_for(self, more: int) -> None:
        wanted = len(self.acknowledged) + more
        eventually(lambda: len(self.acknowledged) >= wanted)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _write(self, writer: int) -> None:
        keeps_open = writer % 2 == 0  # until the server says that it closes the connection
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)) as connection:
            for number in itertools.count():
                failure = {"type": "tool", "code": "timeout", "message": "slow"} if number % 5 == 0 else {}
                body = json.dumps(small_run(f"{writer}-{number}", **failure))
                while not self._send(connection, body):
                    if self._stopped.is_set():
                        return
                self.acknowledged.append(f"{writer}-{number}")
                if self._stopped.is_set():
                    return
                if not keeps_open:
                    connection.close()

    def _send(self, connection: http.client.HTTPConnection, body: str) -> bool:
        """Return whether it was acknowledged."""
        try:
            connection.request("POST", "/v1/runs", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status == 200:
                return True
            self.errors.append(text.decode())
        except (OSError, http.client.HTTPException) as error:
            self.errors.append(repr(error))
            connection.close()
        return False


def test_servers_that_drain_or_are_killed_under_writes_lose_and_double_nothing(tmp_path: Path) -> None:
    calls = 150
    with team("--drain", "1.5") as servers:
        drained, killed, *_ = servers.processes
        balancer, (drained_port, *other_ports) = servers.balancer, servers.ports
        _, (watcher, *_) = servers.holding("read")
        agent = mulligan.Mulligan(
            store=f"http://127.0.0.1:{balancer.port}", agent="library", home=tmp_path / "home", mode="observe"
        )

        @agent.tool(effects="none")
        def work(number: int) -> int:
            time.sleep(0.005)
            return number

        working = threading.Thread(target=lambda: [work(number) for number in range(calls)])
        working.start()
        writers = Writers(balancer.port)
        writers.wait_for(60)

        # Drained: it says so, answers whoever is sent to it meanwhile, and fails nobody.
        with live_events(watcher) as events:
            drained.send_signal(signal.SIGTERM)
            eventually(lambda: Client(drained_port).get("/readyz").status == 503)
            last = Client(drained_port).post("/v1/runs", small_run("sent-to-the-drained-one"))
            assert (last.status, last.headers["connection"]) == (200, "close")
            balancer.ports = other_ports  # as a balancer does that asks for /readyz
            eventually(lambda: bool(events) and events[-1]["key"] == "end")
        assert drained.wait(PATIENCE) == 0
        writers.wait_for(60)
        assert writers.errors == []

        # Killed: whoever was not answered sends again, to another one.
        killed.kill()
        writers.wait_for(150)
        writers.stop()
        working.join()
        assert agent.flush(PATIENCE)
        servers.stop(by=signal.SIGINT)  # by which nothing is drained

        histories = {history.run.id: history for history in servers.store.export(DEFAULT_TENANT)}
        acknowledged = {*writers.acknowledged, "sent-to-the-drained-one"}
        assert acknowledged <= histories.keys()
        assert {len(histories[id].steps) for id in acknowledged} == {2}
        numbers = [history.steps[0].arguments for history in histories.values() if history.run.agent == "library"]
        assert len(numbers) == calls
        stats = servers.store.stats(DEFAULT_TENANT, StatsQuery(now=0))
        assert stats == counters.stats(list(histories.values()), StatsQuery(now=0))
