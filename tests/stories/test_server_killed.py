"""A server that is killed while four processes send to it: nothing acknowledged is lost, nothing is doubled."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ports import free_port
from servers import Client

from mulligan.contract import counters
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.run_links import derive_status
from mulligan.store.sqlite import SqliteStore
from mulligan.store.urls import open_store

pytest.importorskip("uvicorn", reason="needs the extra: pip install 'mulligan[server]'")

PROCESSES, CALLS = 4, 400
AGENT = """
import sys, time, mulligan

url, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
m = mulligan.Mulligan(store=url, agent=name, home=sys.argv[4])

@m.tool(effects="none")
def work(number):
    if number % 5 == 0:
        raise mulligan.AgentError(f"number must not be {number}.")
    return number

begun = time.monotonic()
for number in range(count):
    try:
        work(number)
    except mulligan.AgentError:
        pass
    time.sleep(0.004)
longest = time.monotonic() - begun
print(m.flush(60), m._components.recorder.dropped, flush=True)
"""


def serve(store: Path | str, port: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "mulligan", "serve", "--port", str(port), "--store", str(store)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert f":{port} " in process.stdout.readline()
    return process


def test_a_killed_server_loses_and_doubles_nothing_and_the_agents_only_wait(tmp_path):
    store = tmp_path / "kept.db"
    port = free_port()  # to which it comes back
    server = serve(store, port)
    agents = [
        subprocess.Popen(
            [sys.executable, "-c", AGENT, f"http://127.0.0.1:{port}", f"agent-{number}", str(CALLS),
             str(tmp_path / f"home-{number % 2}")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ},
        )
        for number in range(PROCESSES)
    ]  # fmt: skip
    try:
        for _ in range(2):  # while they work, twice
            before = kept(store)
            while kept(store) < before + 100 and any(agent.poll() is None for agent in agents):
                time.sleep(0.02)
            server.kill()
            server.communicate()
            time.sleep(0.3)
            server = serve(store, port)
        told = [agent.communicate(timeout=90) for agent in agents]
    finally:
        server.kill()
        server.communicate()
        for agent in agents:
            if agent.poll() is None:
                agent.kill()
                agent.communicate()

    assert [out.strip() for out, _ in told] == ["True 0"] * PROCESSES, told
    with_all = SqliteStore(store)
    histories = list(with_all.export(DEFAULT_TENANT))
    assert len(histories) == PROCESSES * CALLS  # a call outside a run is a run of its own
    for number in range(PROCESSES):
        own = [each for each in histories if each.run.agent == f"agent-{number}"]
        asked = sorted(each.steps[0].arguments["number"] for each in own)
        assert asked == list(range(CALLS))
    stats = with_all.stats(DEFAULT_TENANT, StatsQuery(now=0))
    assert stats == counters.stats(histories, StatsQuery(now=0))
    assert stats.total.calls == PROCESSES * CALLS
    assert stats.total.unrecovered == PROCESSES * CALLS // 5
    assert (
        sum(derive_status(each.run, each.steps, each.links) == "success" for each in histories) == stats.total.first_try
    )
    with_all.close()


@pytest.mark.parametrize("sort", ["sqlite", "postgres"])
def test_what_small_writes_were_told_to_be_stored_is_there_after_a_kill(tmp_path, sort, request):
    """Many writers share statements and transactions, beside a large body. The server is killed amid them."""
    url = request.getfixturevalue("postgres_url") if sort == "postgres" else str(tmp_path / "kept.db")
    port = free_port()
    server = serve(url, port)
    told: list[str] = []
    client = Client(port)

    def write(writer: int) -> None:
        for number in itertools.count():
            id = f"{writer}-{number}"
            try:
                answer = client.post("/v1/runs", small_run(id, 1 if number % 5 else 60))
            except (OSError, http.client.HTTPException):
                return  # killed
            assert answer.status == 200
            told.append(id)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(12)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 60
    while len(told) < 150 and time.monotonic() < until:
        time.sleep(0.01)
    server.kill()
    server.communicate()
    for thread in threads:
        thread.join(30)
    assert len(told) >= 150
    with contextlib.closing(open_store(url)) as store:
        histories = {history.run.id: history for history in store.export(DEFAULT_TENANT)}
        assert set(told) <= histories.keys()
        assert all(history.steps for id, history in histories.items() if id in set(told))
        stats = store.stats(DEFAULT_TENANT, StatsQuery(now=0))
        assert stats == counters.stats(list(histories.values()), StatsQuery(now=0))


def small_run(id: str, steps: int) -> dict[str, object]:
    calls = [{"name": "search", "arguments": {"k": number}} for number in range(steps)]
    return {"id": id, "agent": "a", "started_at": 1000, "ended_at": 2000, "steps": calls}


def kept(store: Path) -> int:
    import sqlite3

    connection = sqlite3.connect(store)
    try:
        return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
    finally:
        connection.close()
