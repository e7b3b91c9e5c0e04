"""The entry of `mulligan mcp`, started in a hostile repository: it answers from the user's store."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from fake_http_mcp import fake_http_server
from hostile_repository import HostileRepository
from mcp_client import Connection, texts

from mulligan.classify.classifier import classify
from mulligan.cli.clients import MCP_CLIENTS
from mulligan.cli.server_entries import ServerList
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.records import Run, Step
from mulligan.settings import config_folder
from mulligan.store.sqlite import SqliteStore

pytest.importorskip("mcp", reason="the mcp package is not installed: make test-mcp")


def write_failure(path: Path) -> None:
    """Keep one failed call in a store, and name that store in the user's settings."""
    failure = classify(source="tool", tool="run_query", text="limit must be 10 or less, got 500")
    moment = int(time.time() * 1000)
    run = Run(id="run_1", agent="reporter", started_at=moment, ended_at=moment, end_reason="finished")
    step = Step(run=run.id, seq=1, call=1, name="run_query", outcome="failure", failure=failure, started_at=moment)
    store = SqliteStore(path)
    store.append(DEFAULT_TENANT, [StepEnded(step), RunEnded(run)], "journal_1", 1, "ann")
    store.close()
    file = config_folder() / "mulligan.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'store = "{path}"\n')


def test_installed_proxy_of_a_server_with_a_url_sends_its_headers(tmp_path):
    entry = {"url": "", "headers": {"Authorization": "Bearer sk-1234", "X-Team": "blue"}, "disabled": False}
    cursor = MCP_CLIENTS["cursor"]
    with fake_http_server() as server:
        path = tmp_path / "mcp.json"
        path.write_text(json.dumps({"mcpServers": {"web": {**entry, "url": server.url}}}))
        servers = ServerList(cursor, cursor.server_files[0]._replace(path=str(path)))
        servers.add_proxy("web", [])
        servers.edit.apply()
        entry = json.loads(path.read_text())["mcpServers"]["web"]
        with Connection([entry["command"], *entry["args"]], {**os.environ, **entry["env"]}) as connection:
            answer = connection.open().call("echo", text="hello")
            while "method" in answer:  # a notification of the server
                answer = connection.hear()
            connection.close()
        calls = [headers for _, headers, body in server.requests if (body or {}).get("method") == "tools/call"]
    assert "hello" in "".join(texts(answer))
    assert [(call["authorization"], call["x-team"]) for call in calls] == [("Bearer sk-1234", "blue")]


def test_question_server_answers_from_the_users_store_in_a_hostile_repository(tmp_path):
    write_failure(tmp_path / "of_user.db")
    repository = HostileRepository(tmp_path)
    cursor = MCP_CLIENTS["cursor"]
    servers = ServerList(cursor, cursor.server_files[0]._replace(path=str(tmp_path / "mcp.json")))
    servers.add_own_server()
    servers.edit.apply()
    entry = json.loads((tmp_path / "mcp.json").read_text())["mcpServers"]["mulligan"]
    words = [entry["command"], *entry["args"]]
    with Connection(words, {**os.environ, **repository.variables}, cwd=repository.folder) as connection:
        answer = connection.open().call("recent_failures")
        connection.close()
    repository.check_untouched()
    assert "run_query" in "".join(texts(answer))
