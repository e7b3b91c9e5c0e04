"""The PostgreSQL that tests use: started without root, gone when the run is, and of each test its own database."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import postgres
import pytest

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")


def asked(url: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(sql).fetchall()


def test_each_test_has_an_empty_database_of_its_own(postgres_url, postgres_server):
    assert asked(postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    with postgres.fresh_database(postgres_server) as other:
        assert asked(other, "SELECT current_database()") != asked(postgres_url, "SELECT current_database()")


def test_it_has_what_similar_patterns_need(postgres_url):
    names = {name for (name,) in asked(postgres_url, "SELECT name FROM pg_available_extensions")}
    assert {"pg_trgm", "btree_gist"} <= names


def test_a_server_goes_with_the_process_it_was_started_for(postgres_server):
    """Also when that is killed and has no time to say goodbye."""
    source = (
        "import postgres, time; s = postgres.Server(); print(s.folder, s.process.pid, s.port, flush=True); "
        "time.sleep(60)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(postgres.__file__).parent)}
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, env=env) as started:
        assert started.stdout is not None
        folder, pid, port = started.stdout.readline().split()
        started.kill()
    until = time.monotonic() + postgres.PATIENCE
    while (Path(folder).exists() or postgres.is_running(int(pid))) and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(folder).exists()
    assert not postgres.is_running(int(pid))
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(port)), timeout=5)


@pytest.mark.skipif(os.getuid() != 0, reason="only root has folders that a server's user may not enter")
def test_binaries_in_a_folder_of_root_are_copied_to_where_the_server_may_read_them(
    postgres_server, monkeypatch, tmp_path
):
    closed = postgres.binaries().parent
    is_open = postgres._is_open
    monkeypatch.setattr(postgres, "_is_open", lambda folder: is_open(folder) and not folder.is_relative_to(closed))

    with postgres.Server() as server:
        assert server.bin.is_relative_to(server.folder)
        assert asked(server.url, "SELECT 1") == [(1,)]
