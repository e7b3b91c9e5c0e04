"""PostgreSQL goes wrong while records come in: what was acknowledged is there, and there once.

Each fault is a real one, of a real server: it is stopped and killed, its answers are lost on the wire, it has no
connection to give, it has no room left. The long form is `benchmarks/faults.py`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from typing import NamedTuple

import pytest
from cutting import Wire
from full_disk import can_be_had, full_disk, with_small_log
from ingest import PATIENCE, Agent, Kept, Process, Senders, run, serving
from postgres import Server, fresh_database, had

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")
pytest.importorskip("starlette", reason="needs the extra: pip install 'mulligan[server]'")

LIMITS = ("max_connections", "superuser_reserved_connections")


@pytest.fixture(scope="module")
def server():
    """One of its own, which may be killed, and which keeps what it has acknowledged."""
    had()
    with Server(durable=True, max_connections="30") as made:
        with_small_log(made)
        yield made


@pytest.fixture(scope="module")
def house(server):
    """`mulligan serve`, as people start it, and the wire between it and its database."""
    with fresh_database(server.url) as url, Wire(url) as wire, serving(wire.url) as process:
        yield House(url, wire, process)


class House(NamedTuple):
    database: str
    wire: Wire
    process: Process

    def check(self, senders: Senders) -> None:
        kept = Kept(self.database)
        assert senders.acknowledged <= kept.runs
        assert kept.is_whole
        kept.check()
        assert self.process.process.poll() is None


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_goes_on_when_its_database_was_stopped_and_started(server, house, mode):
    with Senders(house.process.port) as senders:
        senders.until(10)
        server.stop(mode)
        senders.until_refused()
        server.start()
        senders.until(10)
    house.check(senders)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_what_is_sent_first_after_a_restart_is_kept_at_once(server, house, mode):
    """The connections that the server had are ended, and it finds out when it uses them."""

    def send(id: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", house.process.port, timeout=20)
        body = json.dumps(run(id, text=100))
        connection.request("POST", "/v1/runs", body, {"Content-Type": "application/json"})
        status = connection.getresponse().status
        connection.close()
        return status

    with Senders(house.process.port) as senders:
        senders.until(3)
    assert send(f"before_{mode}") == 200
    server.stop(mode)
    server.start()
    assert send(f"after_{mode}") == 200
    assert {f"before_{mode}", f"after_{mode}"} <= Kept(house.database).runs
    house.check(senders)


def test_an_acknowledgement_that_is_lost_on_the_wire_doubles_nothing(house):
    before = len(house.wire.cut)
    with Senders(house.process.port) as senders:
        for number, moment in enumerate(("after", "before", "after"), start=1):
            house.wire.arm(moment)
            assert house.wire.wait(before + number, PATIENCE)  # what was on its way before is acknowledged as it was
            senders.until(10)
    assert house.wire.cut[before:] == ["after", "before", "after"]
    house.check(senders)


def test_whoever_comes_when_there_is_no_connection_left_is_told_to_come_again(house):
    with Senders(house.process.port) as senders:
        senders.until(10)
        with contextlib.ExitStack() as taken:
            take_all(house.database, taken)
            senders.until_refused()
        senders.until(10)
    house.check(senders)


def take_all(url: str, taken: contextlib.ExitStack) -> None:
    """Every connection that there is, those of the server too: it goes on for as long as it has a single one."""
    own = taken.enter_context(psycopg.connect(url, autocommit=True))
    there, reserved = (int(own.execute(f"SHOW {name}").fetchone()[0]) for name in LIMITS)
    number, deadline = 1, time.monotonic() + PATIENCE
    while number < there - reserved:  # one that is ended is free a moment later, and whoever asks first has it
        assert time.monotonic() < deadline, f"{number} of {there - reserved}"
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                taken.enter_context(psycopg.connect(url))
                number += 1
        own.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND application_name LIKE 'mulligan%'"
        )


@pytest.mark.skipif(not can_be_had(), reason="needs prlimit, of Linux")
def test_a_full_disk_loses_nothing_that_was_acknowledged(server, house):
    with Senders(house.process.port, text=3000) as senders:
        senders.until(10)
        with full_disk(server):
            senders.until_refused()
        senders.until(10)
    house.check(senders)


def test_many_questions_at_once_wait_for_a_connection_and_are_answered(house):
    answers: list[int] = []

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", house.process.port, timeout=60)
        connection.request("GET", "/v1/stats")
        answers.append(connection.getresponse().status)
        connection.close()

    with Senders(house.process.port) as senders:
        senders.until(5)
        threads = [threading.Thread(target=ask) for _ in range(40)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
    assert answers == [200] * 40
    house.check(senders)


def test_an_agent_keeps_each_call_once_whatever_becomes_of_its_database(server, tmp_path):
    """Through the library: nobody waits for the database, and what it missed it gets when it is back."""
    with fresh_database(server.url) as url, Wire(url) as wire:
        agent = Agent(wire.url, tmp_path)
        made = agent.calls(30)
        wire.arm("after", "before", "after")
        deadline = time.monotonic() + 2 * PATIENCE
        while len(wire.cut) < 3 and time.monotonic() < deadline:  # the last answer is lost, and not just waited for
            made = agent.calls(made + 10)
        for mode in ("fast", "immediate"):
            server.stop(mode)
            made = agent.calls(made + 50)
            server.start()
            made = agent.calls(made + 50)
        made = agent.end()
        assert wire.cut == ["after", "before", "after"]
        kept = Kept(url)
        assert kept.steps == made
        kept.check()
