"""A team's store: agents and a server write into one PostgreSQL, and everybody finds what the others learned."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request

import postgres
import pytest

PROGRAM = """
    import mulligan

    @mulligan.tool
    def search(query: str, top_k: int = 5) -> list[str]:
        if top_k > 10:
            raise mulligan.AgentError("top_k must be 10 or less")
        return [query] * top_k

    with mulligan.run("team-agent"):
        try:
            search("cats", top_k=50)
        except mulligan.AgentError:
            pass
        search("cats", top_k=10)
"""


@pytest.fixture
def database() -> str:
    postgres.had()
    return postgres.emptied()


def test_what_an_agent_records_in_postgresql_is_found_by_the_command(user, database):
    said = user.runs_program(PROGRAM, MULLIGAN_STORE=database)
    assert (said.returncode, said.stderr) == (0, "")

    found = user.sees("runs", "--store", database)
    assert [run["agent"] for run in found] == ["team-agent"]
    shown = user.types("stats", "--store", database, "--since", "all")
    assert "search" in shown.stdout
    assert database not in shown.stdout + shown.stderr  # it has a password in it


def test_what_is_recorded_while_postgresql_is_away_waits_and_is_brought_in_later(user):
    postgres.had()
    if "://" in postgres.GIVEN:
        pytest.skip("the server that is there is not ours to stop")
    with postgres.Server(durable=True) as server:
        server.stop("immediate")
        began = time.monotonic()
        said = user.runs_program(PROGRAM, MULLIGAN_STORE=server.url)
        assert said.returncode == 0
        assert server.password not in said.stderr
        assert time.monotonic() - began < 30
        server.start()
        assert [run["agent"] for run in user.sees("runs", "--store", server.url)] == ["team-agent"]
        assert user.sees("runs", "--store", server.url)[0]["status"] == "recovered"


def test_a_server_keeps_in_postgresql_what_it_is_sent(user, database):
    pytest.importorskip("uvicorn", reason="needs the extra: pip install 'mulligan[server]'")
    command = [sys.executable, "-c", "from mulligan.cli import main; main()", "serve", "--store", database]
    with subprocess.Popen(
        [*command, "--port", "0", "--no-auth"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=user.environment, cwd=user.folder,
    ) as serving:  # fmt: skip
        try:
            assert serving.stdout is not None
            line = serving.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, line + (serving.stderr.read() if serving.stderr and serving.poll() is not None else "")
            assert "store postgresql://" in line
            assert line.endswith("level shared.\n")  # others read there
            assert postgres_password(database) not in line
            said = user.runs_program(f"{PROGRAM}    assert mulligan.flush(30)\n", MULLIGAN_STORE=found[0])
            assert said.returncode == 0, said.stderr
            with urllib.request.urlopen(f"{found[0]}/v1/runs", timeout=20) as answer:
                assert "team-agent" in json.dumps(json.load(answer))
        finally:
            serving.send_signal(signal.SIGINT)
            serving.wait(20)
    assert [run["agent"] for run in user.sees("runs", "--store", database)] == ["team-agent"]


def postgres_password(url: str) -> str:
    return url.split(":")[2].split("@")[0]
