"""A server that is killed while four processes send to it: nothing acknowledged is lost, nothing is doubled."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ports import free_port

from mulligan.core.links import derive_status
from mulligan.store import counters
from mulligan.store.base import DEFAULT_TENANT
from mulligan.store.counters import StatsQuery
from mulligan.store.sqlite import SqliteStore

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


def serve(store: Path, port: int) -> subprocess.Popen[str]:
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


def kept(store: Path) -> int:
    import sqlite3

    connection = sqlite3.connect(store)
    try:
        return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
    finally:
        connection.close()
