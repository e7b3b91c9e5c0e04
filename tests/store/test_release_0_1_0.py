"""A store, journals, settings and names of 0.1.0: the current version reads all of them, and migrates interrupted.

`tests/release_0_1_0` was built by the code of 0.1.0 (`build.py` there). `NEXT_MIGRATION` stands for the migration that
the next version brings. It follows the recipe of ARCHITECTURE.md, "Changing the schema", and so must its successors.
"""

from __future__ import annotations

import contextlib
import functools
import json
import lzma
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import postgres
import pytest
import release_answers

import mulligan
from mulligan import settings
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import StoreError
from mulligan.core.records import Run, Step
from mulligan.record.journal_import import recover_journals
from mulligan.store import tables
from mulligan.store.base import DEFAULT_TENANT, RunQuery, Store, journals_of
from mulligan.store.sqlite import SqliteStore
from mulligan.store.urls import open_endpoint, open_store

FOLDER = Path(__file__).parents[1] / "release_0_1_0"
TENANTS = ("local", "acme", "globex")
SCHEMA = len(tables.MIGRATIONS)
TIMEOUT_SECONDS = 60
DATABASES = [
    pytest.param("sqlite", marks=pytest.mark.durability),
    pytest.param("postgres", marks=pytest.mark.postgres),
]


@functools.cache
def read_answers() -> dict[str, Any]:
    """Return what 0.1.0 answered after it had recovered the journals."""
    return dict(json.loads(lzma.decompress((FOLDER / "answers.json.xz").read_bytes())))


def unpack_journals(folder: Path) -> Path:
    with tarfile.open(FOLDER / "journals.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def unpack_file(folder: Path) -> str:
    path = folder / "store.db"
    path.write_bytes(lzma.decompress((FOLDER / "store.db.xz").read_bytes()))
    return str(path)


def unpack_database(url: str) -> str:
    import psycopg

    from mulligan.store.postgres.postgres_tables import distribute_tables

    with psycopg.connect(url) as connection:
        connection.execute(lzma.decompress((FOLDER / "store.sql.xz").read_bytes()))
        connection.execute("SET LOCAL search_path = public")
        distribute_tables(connection)  # where the database is a Citus cluster
    return url


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a copy of the store of 0.1.0, without the records in the journals."""
    if request.param == "sqlite":
        return unpack_file(tmp_path)
    return unpack_database(request.getfixturevalue("postgres_url"))


@pytest.fixture
def frozen_time(monkeypatch: pytest.MonkeyPatch) -> int:
    now = int(read_answers()["now"])
    release_answers.freeze_time(monkeypatch, now)
    return now


def ask_tenants(store: Store) -> dict[str, Any]:
    now = read_answers()["now"]
    return {tenant: release_answers.ask_store(store, tenant, now) for tenant in TENANTS}


def build_run(id: str) -> list[Any]:
    run = Run(id=id, agent="later", started_at=read_answers()["now"])
    step = Step(run=id, seq=1, call=1, name="search", started_at=run.started_at)
    return [RunStarted(run), StepEnded(step), RunEnded(run)]


# Answers


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_the_store_and_journals_of_0_1_0_give_the_answers_of_0_1_0(database, frozen_time, tmp_path, monkeypatch):
    with contextlib.closing(open_store(database)) as store:
        assert recover_journals(store, DEFAULT_TENANT, unpack_journals(tmp_path / "journals")) > 0
        assert ask_tenants(store) == read_answers()["tenants"]
        # A command leaves its connections to the end of its process.
        monkeypatch.setattr("mulligan.cli.options.open_store", lambda *arguments, **options: store)
        for words, answer in read_answers()["commands"].items():
            assert release_answers.ask_command(words, database) == answer, words


def test_a_torn_journal_of_0_1_0_is_recovered_up_to_the_tear(frozen_time, tmp_path):
    path = Path(unpack_file(tmp_path))
    journals = unpack_journals(journals_of(path))
    for journal in journals.iterdir():
        data = journal.read_bytes().rstrip(b"\0")
        journal.write_bytes(data[: len(data) - 100])
    (run_count,) = {len(read_answers()["tenants"]["local"]["runs"])}
    with contextlib.closing(SqliteStore(path)) as store:
        recover_journals(store, DEFAULT_TENANT, journals)
        assert len(store.runs(DEFAULT_TENANT, RunQuery(limit=500))) == run_count


@pytest.mark.contracts
def test_the_api_gives_the_answers_of_0_1_0(frozen_time, tmp_path):
    from servers import served

    path = Path(unpack_file(tmp_path))
    store = SqliteStore(path)
    recover_journals(store, DEFAULT_TENANT, unpack_journals(journals_of(path)))
    with served(tmp_path, store=store, clock=lambda: frozen_time) as running:
        person = running.person()
        assert release_answers.ask_server(lambda route: person.get(route).json) == read_answers()["routes"]


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_the_store_of_0_1_0_takes_new_runs_and_counts_as_0_1_0_did(database, tmp_path):
    with contextlib.closing(open_store(database)) as store:
        counted = ask_tenants(store)
        for tenant in TENANTS:
            store.rebuild(tenant)
        assert ask_tenants(store) == counted
        assert store.append("acme", build_run("run_later"), "later", 3) > 0
        assert store.run("acme", "run_later") is not None
