"""A server removes what is too old by itself: once a day, one process of several, each tenant's when it is due."""

from __future__ import annotations

import contextlib
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import postgres
import pytest

from mulligan.contract.audit import AuditQuery
from mulligan.contract.store import (
    DAY,
    DEFAULT_TENANT,
    IMPORT_PREFIX,
    Progress,
    PruneResult,
    Retention,
    RunQuery,
    Store,
)
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.records import Run, Step
from mulligan.server import background, search_indexing
from mulligan.server.background import Pruner
from mulligan.server.search_indexing import SearchIndexer
from mulligan.server.tenants import Tenant, Tenants, with_retention_days
from mulligan.store import run_texts
from mulligan.store.sqlite import SqliteStore
from mulligan.store.urls import open_store

BEGIN = 20_000 * DAY


class Clock:
    now = BEGIN

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path, clock) -> Iterator[Store]:
    if request.param == "postgresql":
        postgres.had()
        made = open_store(postgres.emptied())
    else:
        made = open_store(str(tmp_path / "s.db"))
    made._clock = clock
    Tenants(made).create(with_retention_days(Tenant("short"), {"keep_successes": 2}))
    Tenants(made).create(with_retention_days(Tenant("ever"), {"keep_successes": None}))
    for tenant in (DEFAULT_TENANT, "short", "ever"):
        keep(made, tenant, "run_a")
    yield made
    made.close()


def keep(store: Store, tenant: str, id: str, journal: str = "j") -> None:
    run = Run(id=id, agent="a", started_at=1)
    events = [RunStarted(run), StepEnded(Step(run=id, seq=1, call=1, name="search")), RunEnded(ended(run))]
    store.append(tenant, events, journal, store.offset(tenant, journal) + 1)


def ended(run: Run) -> Run:
    return Run(id=run.id, agent=run.agent, started_at=run.started_at, ended_at=2, end_reason="finished")


def left(store: Store) -> list[str]:
    return [tenant for tenant in (DEFAULT_TENANT, "short", "ever") if store.runs(tenant, RunQuery())]


def test_ended_runs_are_indexed_while_the_server_runs(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path / "mulligan.db")
    monkeypatch.setattr(run_texts, "SETTLE_MILLISECONDS", -(10**9))
    monkeypatch.setattr(search_indexing, "INTERVAL_SECONDS", 0.01)
    keep(store, DEFAULT_TENANT, "run_a")
    keep(store, "other", "run_b")
    indexer = SearchIndexer(store, Tenants(store))
    indexer.start()
    deadline = time.monotonic() + 20
    while count_indexed(tmp_path, "search") < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    indexer.close()
    assert count_indexed(tmp_path, "search") == 2
    assert [history.run.id for history in store.runs("other", RunQuery(text="tool:search"))] == ["run_b"]
    store.close()


def count_indexed(folder: Path, word: str) -> int:
    with contextlib.closing(sqlite3.connect(folder / "mulligan.db.search")) as index:
        try:
            row = index.execute("SELECT count(*) FROM words WHERE words MATCH ?", (word,)).fetchone()
        except sqlite3.OperationalError:  # not built yet
            return 0
    return int(row[0])


def test_each_tenant_keeps_its_runs_as_long_as_it_is_set_to(store, clock):
    said: list[str] = []
    pruner = Pruner(store, clock, said.append)
    assert pruner.run_round()
    assert (left(store), said) == ([DEFAULT_TENANT, "short", "ever"], [])

    clock.now += 3 * DAY
    assert pruner.run_round()
    assert left(store) == [DEFAULT_TENANT, "ever"]
    assert re.fullmatch(r"pruned tenant=short runs=1 steps=1 sampled=0 seconds=\d+\.\d", said.pop())
    (act,) = store.audit("short", AuditQuery(action="prune"))
    assert act.detail == "1 run, 1 step"

    keep(store, DEFAULT_TENANT, "run_imported", f"{IMPORT_PREFIX}file")
    clock.now += 40 * DAY
    assert pruner.run_round()
    assert [each.run.id for each in store.runs(DEFAULT_TENANT, RunQuery())] == ["run_imported"]
    assert [
        act.action for act in store.audit("ever", AuditQuery(action="prune"))
    ] == []  # nothing went, so nothing is noted


def test_of_several_processes_one_does_it_and_once_a_day(store, clock):
    one, other = Pruner(store, clock), Pruner(store, clock)
    clock.now += 3 * DAY
    assert [one.run_round(), other.run_round(), one.run_round()] == [True, False, False]
    clock.now += DAY - 1
    assert not other.run_round()
    clock.now += 1
    assert [other.run_round(), one.run_round()] == [True, False]


class Watched:
    """A store that lets somebody else do something while it prunes."""

    def __init__(self, store: Store, meanwhile) -> None:
        self._store, self._meanwhile = store, meanwhile

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    def prune(
        self, tenant: str, policy: Retention, now: int, dry_run: bool = False, progress: Progress | None = None
    ) -> PruneResult:
        self._meanwhile(tenant)
        assert progress is not None
        progress(1, 2)
        return self._store.prune(tenant, policy, now, dry_run, progress)


def test_while_one_is_at_it_no_other_begins_and_what_a_killed_one_left_another_begins_anew(store, clock):
    clock.now += 3 * DAY
    other = Pruner(store, clock)
    answers: list[bool] = []

    def long(tenant: str) -> None:
        clock.now += background.ROUND_TIMEOUT_MS - 1  # it goes on for longer than a silence may last, and says so
        answers.append(other.run_round())

    assert Pruner(Watched(store, long), clock).run_round()
    assert answers == [False] * 3

    def killed(tenant: str) -> None:
        raise KeyboardInterrupt

    clock.now += DAY
    with pytest.raises(KeyboardInterrupt):
        Pruner(Watched(store, killed), clock).run_round()
    assert not other.run_round()
    clock.now += background.ROUND_TIMEOUT_MS
    assert other.run_round()


def test_whoever_was_silent_for_too_long_leaves_the_rest_to_the_other(store, clock):
    clock.now += 3 * DAY
    other = Pruner(store, clock)
    pruned: list[str] = []

    def silent(tenant: str) -> None:
        pruned.append(tenant)
        clock.now += background.ROUND_TIMEOUT_MS
        assert other.run_round()

    assert not Pruner(Watched(store, silent), clock).run_round()
    assert len(pruned) == 1


def test_what_went_wrong_is_tried_again_by_the_same_one(store, clock):
    clock.now += 3 * DAY
    tries: list[str] = []

    def fails_once(tenant: str) -> None:
        tries.append(tenant)
        if len(tries) == 1:
            raise OSError("away")

    pruner = Pruner(Watched(store, fails_once), clock)
    with pytest.raises(OSError, match="away"):
        pruner.run_round()
    assert pruner.run_round()
    assert left(store) == [DEFAULT_TENANT, "ever"]


def test_a_server_that_ends_does_not_wait_until_all_is_done(store, clock):
    clock.now += 3 * DAY
    pruned: list[str] = []

    def ends(tenant: str) -> None:
        pruned.append(tenant)
        pruner.stop()

    pruner = Pruner(Watched(store, ends), clock)
    assert not pruner.run_round()
    assert len(pruned) == 1
    assert left(store) == [DEFAULT_TENANT, "short", "ever"]
    assert Pruner(store, clock).run_round()  # another one goes on at once
    assert left(store) == [DEFAULT_TENANT, "ever"]


SERVE = """
    import sys
    from mulligan.server import background as pruning
    pruning.FIRST_CHECK_SECONDS = 0.05
    from mulligan.cli import cli
    cli(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--no-prune",)])
def test_mulligan_serve_does_it_and_says_so_unless_it_is_told_not_to(tmp_path, clock, words):
    pytest.importorskip("uvicorn", reason="needs the extra: pip install 'mulligan[server]'")
    import textwrap

    path = str(tmp_path / "s.db")
    old = open_store(path)
    old._clock = clock
    keep(old, DEFAULT_TENANT, "run_old")
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVE), "serve", "--port", "0", "--store", path, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        said = [process.stdout.readline() for _ in range(3 if words else 4)]
        if not words:
            assert said[3].startswith("Daily pruning: successful runs after 30 days and failed runs after 90 days")
            assert process.stderr.readline().startswith("pruned tenant=local runs=1 steps=1 ")
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")
    assert [each.run.id for each in old.runs(DEFAULT_TENANT, RunQuery())] == (["run_old"] if words else [])
    assert [act.by for act in old.audit(DEFAULT_TENANT, AuditQuery(action="prune"))] == (
        [] if words else ["mulligan serve"]
    )
    old.close()
