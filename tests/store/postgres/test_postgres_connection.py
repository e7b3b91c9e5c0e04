"""What a question about a failure asks of PostgreSQL: many keys with one statement, in few ways there and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import postgres
import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")

import sql_rules

from mulligan.contract.store import DAY, DEFAULT_TENANT, FixQuery, RecallQuery
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Run, Step, pattern_id
from mulligan.store import fix_queries
from mulligan.store.postgres.postgres_store import PostgresStore

KINDS = (Kind("tool", "invalid_arguments", Remedy.REPAIR), Kind("orchestration", "precondition", Remedy.REPLAN))
BETWEEN = (("lock",), ("press",), ("lock", "press"), ("light", "press", "lock"), ("wipe",))
PATTERNS = 8
CLOCK = {"now": 1000}


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
    made = PostgresStore(postgres.emptied(), clock=lambda: CLOCK["now"])
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
    return store.ask_rows(DEFAULT_TENANT, lambda read: read.by_key(sql, keys, (DEFAULT_TENANT, *values)))


@pytest.mark.parametrize("kind", ["", *map(str, KINDS), "tool/timeout"])
@pytest.mark.parametrize("patterns", [[], IDS[:1], IDS, IDS[::-1], IDS[-1:], ["pat_unknown", *IDS[3:]]])
@pytest.mark.parametrize("limit", [2, 64])
def test_the_fixes_of_several_patterns_are_those_of_each(store, patterns, kind, limit):
    sql, kinds = (fix_queries.KIND_FIXES_SQL, [kind]) if kind else (fix_queries.PATTERN_FIXES_SQL, [])
    rows = one_by_one(store, sql, patterns, limit, *kinds)
    assert sorted(together(store, sql, patterns, limit, *kinds)) == sorted(rows)


@pytest.mark.parametrize("without", ["", "run_1_0"])
def test_the_votes_for_several_fixes_are_those_for_each(store, without):
    sql = "SELECT id FROM fixes WHERE tenant = ?"
    fixes = [id for (id,) in store.read_rows(DEFAULT_TENANT, sql, (DEFAULT_TENANT,))]
    assert len(fixes) > 20
    for ids in ([], fixes[:1], fixes, ["fix_unknown"]):
        votes = together(store, fix_queries.VOTES_SQL, ids, without, 2)
        assert sorted(votes) == sorted(one_by_one(store, fix_queries.VOTES_SQL, ids, without, 2))
    votes = together(store, fix_queries.VOTES_SQL, fixes, without, 99)
    assert any(run == "run_1_0" for _, _, run, _ in votes) is not bool(without)


def test_the_calls_of_several_runs_are_those_of_each(store):
    sql = "SELECT id FROM runs WHERE tenant = ?"
    runs = [run for (run,) in store.read_rows(DEFAULT_TENANT, sql, [DEFAULT_TENANT])]
    values = (1000, "start", 8192, 16)
    calls = together(store, fix_queries.SUCCESSES_SQL, runs, *values)
    assert sorted(calls) == sorted(one_by_one(store, fix_queries.SUCCESSES_SQL, runs, *values))
    assert {run for run, _, _ in calls} == set(runs)


def test_the_calls_of_runs_of_several_days_take_one_statement(store, monkeypatch):
    for at in range(3):
        monkeypatch.setitem(CLOCK, "now", at * DAY)
        store.append(DEFAULT_TENANT, overcome(f"run_of_day_{at}", at, ("lock",), 500), "days", at + 1)
    runs, values = ["run_of_day_2", "run_of_day_0", "run_unknown", "run_of_day_1"], (1000, "start", 8192, 16)
    with sql_rules.checked() as told:
        calls = together(store, fix_queries.SUCCESSES_SQL, runs, *values)
    assert sum("FROM steps" in sql for sql in told) == 1
    assert sorted(calls) == sorted(one_by_one(store, fix_queries.SUCCESSES_SQL, runs, *values))
    assert {run for run, _, _ in calls} == {*runs} - {"run_unknown"}


@pytest.mark.parametrize("runs", [["run_1_0"], ["run_2_3", "run_0_0", "run_1_0"]])
def test_the_first_rows_of_several_runs_are_those_of_the_first_runs(store, runs):
    values = (DEFAULT_TENANT, 1000, "start", 8192, 16)
    for limit in (0, 1, 2, 9):
        rows = store.ask_rows(
            DEFAULT_TENANT, lambda read, limit=limit: list(read.by_key(fix_queries.SUCCESSES_SQL, runs, values, limit))
        )
        assert [run for run, _, _ in rows] == runs[:limit]


def test_a_question_takes_three_ways_there_and_back_at_the_most(store):
    def count(question: Any) -> int:
        with sql_rules.checked() as told:
            assert question()
        return sum(sql.startswith("SELECT") for sql in told)

    new = Failure.of(KINDS[0], "door xx was open", fingerprint="1:new")
    known = Failure.of(KINDS[0], "", fingerprint="1:2")
    store.fixes(
        DEFAULT_TENANT, FixQuery.for_failure("start", new, {"gear": 1}, now=1000)
    )  # which has the patterns of the tool in hand
    similar = FixQuery.for_failure("start", new, {"gear": 1}, now=1000)
    own = FixQuery.for_failure("start", known, {"gear": 1}, now=1000)
    assert count(lambda: store.fixes(DEFAULT_TENANT, similar)[0].similarity < 1) == 3
    assert count(lambda: store.fixes(DEFAULT_TENANT, own)[0].similarity == 1) == 2
    assert count(lambda: store.recall(DEFAULT_TENANT, RecallQuery(tool="start", fingerprint="1:2"))) == 1
