"""What a question about a failure asks of PostgreSQL: many keys with one statement, in few ways there and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import postgres
import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")

from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Run, Step, pattern_id
from mulligan.store import fix_queries
from mulligan.store.base import DEFAULT_TENANT, FixQuery, RecallQuery
from mulligan.store.postgres.postgres_connection import PostgresConnection
from mulligan.store.postgres.postgres_store import PostgresStore

KINDS = (Kind("tool", "invalid_arguments", Remedy.REPAIR), Kind("orchestration", "precondition", Remedy.REPLAN))
BETWEEN = (("lock",), ("press",), ("lock", "press"), ("light", "press", "lock"), ("wipe",))
PATTERNS = 8


def overcome(run: str, pattern: int, between: tuple[str, ...], at: int) -> list[AnyEvent]:
    """A run in which a call failed, and worked after these others."""
    failure = Failure.of(KINDS[pattern % 2], f"door {'x' * pattern} is open", fingerprint=f"1:{pattern}")
    shared: dict[str, Any] = {"run": run, "started_at": at}
    calls = [Step(seq=1, call=1, name="start", arguments={"gear": 1}, outcome="failure", failure=failure, **shared)]
    for seq, name in enumerate((*between, "start"), start=2):
        calls.append(Step(seq=seq, call=seq, name=name, arguments={"gear": 1}, **shared))
    about = Run(id=run, started_at=at)
    return [RunStarted(about), *map(StepEnded, calls), RunEnded(about)]


@pytest.fixture(scope="module")
def store() -> Iterator[PostgresStore]:
    postgres.had()
    made = PostgresStore(postgres.emptied(), clock=lambda: 1000)
    runs = [(pattern, between) for pattern in range(PATTERNS - 1) for between in BETWEEN[pattern % 3 :]]
    told = [
        overcome(f"run_{time}_{place}", *about, at=10 * place + time)
        for time in range(3)
        for place, about in enumerate(runs)
    ]
    made.append(DEFAULT_TENANT, [event for each in told for event in each], "j", 1)
    yield made
    made.close()


IDS = [pattern_id("start", f"1:{pattern}") for pattern in range(PATTERNS)]  # the last of them was never met


def one_by_one(store: PostgresStore, sql: str, keys: list[str], *values: Any) -> list[Any]:
    with store.read_connection(DEFAULT_TENANT) as connection:
        return [(key, *row) for key in keys for row in connection.execute(sql, (key, DEFAULT_TENANT, *values))]


def together(store: PostgresStore, sql: str, keys: list[str], *values: Any) -> list[Any]:
    return store.row_reader(DEFAULT_TENANT).by_key(sql, keys, (DEFAULT_TENANT, *values))


@pytest.mark.parametrize("kind", ["", *map(str, KINDS), "tool/timeout"])
@pytest.mark.parametrize("patterns", [[], IDS[:1], IDS, IDS[::-1], IDS[-1:], ["pat_unknown", *IDS[3:]]])
@pytest.mark.parametrize("limit", [2, 64])
def test_the_fixes_of_several_patterns_are_those_of_each(store, patterns, kind, limit):
    sql = fix_queries.PATTERN_FIXES_SQL
    assert sorted(together(store, sql, patterns, kind, limit)) == sorted(one_by_one(store, sql, patterns, kind, limit))


@pytest.mark.parametrize("without", ["", "run_1_0"])
def test_the_votes_for_several_fixes_are_those_for_each(store, without):
    read = store.row_reader(DEFAULT_TENANT)
    fixes = [id for (id,) in read("SELECT id FROM fixes WHERE tenant = ?", (DEFAULT_TENANT,))]
    assert len(fixes) > 20
    for ids in ([], fixes[:1], fixes, ["fix_unknown"]):
        votes = together(store, fix_queries.VOTES_SQL, ids, without, 2)
        assert sorted(votes) == sorted(one_by_one(store, fix_queries.VOTES_SQL, ids, without, 2))
    votes = together(store, fix_queries.VOTES_SQL, fixes, without, 99)
    assert any(run == "run_1_0" for _, _, run, _ in votes) is not bool(without)


def test_the_calls_of_several_runs_are_those_of_each(store):
    runs = [
        run for (run,) in store.row_reader(DEFAULT_TENANT)("SELECT id FROM runs WHERE tenant = ?", [DEFAULT_TENANT])
    ]
    values = (1000, "start", 8192, 16)
    calls = together(store, fix_queries.SUCCESSES_SQL, runs, *values)
    assert sorted(calls) == sorted(one_by_one(store, fix_queries.SUCCESSES_SQL, runs, *values))
    assert {run for run, _, _ in calls} == set(runs)


def test_a_question_takes_three_ways_there_and_back_at_the_most(store, monkeypatch):
    told: list[str] = []
    real = PostgresConnection.execute

    def noted(self: PostgresConnection, sql: str, *values: Any) -> Any:
        told.append(sql)
        return real(self, sql, *values)

    new = Failure.of(KINDS[0], "door xx was open", fingerprint="1:new")
    known = Failure.of(KINDS[0], "", fingerprint="1:2")
    store.fixes(
        DEFAULT_TENANT, FixQuery.for_failure("start", new, {"gear": 1}, now=1000)
    )  # which has the patterns of the tool in hand
    monkeypatch.setattr(PostgresConnection, "execute", noted)

    assert store.fixes(DEFAULT_TENANT, FixQuery.for_failure("start", new, {"gear": 1}, now=1000))[0].similarity < 1
    assert len(told) == 3
    told.clear()
    assert store.fixes(DEFAULT_TENANT, FixQuery.for_failure("start", known, {"gear": 1}, now=1000))[0].similarity == 1
    assert len(told) == 2
    told.clear()
    assert store.recall(DEFAULT_TENANT, RecallQuery(tool="start", fingerprint="1:2"))
    assert len(told) == 1
