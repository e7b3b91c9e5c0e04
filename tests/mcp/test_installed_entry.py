"""The entry of `mulligan mcp`, started in a hostile repository: it answers from the user's store."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hostile_repository import HostileRepository
from mcp_client import Connection, texts

from mulligan.classify.classifier import classify
from mulligan.cli.clients import MCP_CLIENTS, ServerList
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.records import Run, Step
from mulligan.settings import config_folder
from mulligan.store.base import DEFAULT_TENANT
from mulligan.store.sqlite import SqliteStore

pytest.importorskip("mcp", reason="the mcp package is not installed: make test-mcp")
pytestmark = pytest.mark.mcp


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


def test_question_server_answers_from_the_users_store_in_a_hostile_repository(tmp_path):
    write_failure(tmp_path / "of_user.db")
    repository = HostileRepository(tmp_path)
    ServerList(MCP_CLIENTS["cursor"], tmp_path / "mcp.json").plan_addition().apply()
    entry = json.loads((tmp_path / "mcp.json").read_text())["mcpServers"]["mulligan"]
    words = [entry["command"], *entry["args"]]
    with Connection(words, {**os.environ, **repository.variables}, cwd=repository.folder) as connection:
        answer = connection.open().call("recent_failures")
        connection.close()
    repository.check_untouched()
    assert "run_query" in "".join(texts(answer))
