"""A day of which nothing stays is dropped: what is left is what SQLite has left, which goes run by run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import postgres
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")

from recounting import rebuild

from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DAY, DEFAULT_TENANT, IMPORT_PREFIX, FixQuery, PatternQuery, Retention, RunQuery
from mulligan.core.events import ContextCompacted, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Compaction, MessagePart, RecordedMessage, Run, Step
from mulligan.store import retention
from mulligan.store.copy import load_tables
from mulligan.store.postgres import partitions as postgres_days
from mulligan.store.postgres.postgres_store import PostgresStore
from mulligan.store.sql import DatabaseStore
from mulligan.store.sqlite import SqliteStore
from mulligan.store.urls import open_endpoint

DAY_ONE = 20_000
WRONG = Failure.of(Kind("tool", "invalid_arguments", Remedy.REPAIR), "k is 10 at most", fingerprint="f-k")
ROWS = {
    "runs": "id, status", "steps": "run, seq, body", "links": "run, failed_call, body",
    "run_callees": "type, name, started_at, run",
    "run_facts": "started_at, run, steps, attempts, tool_failures, duration_ms",
    "run_failures": "pattern, started_at, run, kind, occurrences", "compactions": "owner_type, owner, at",
    "orphaned_runs": "run", "messages": "digest, body", "run_messages": "run, number, digest",
    "patterns": "id, occurrences, recovered, runs, first_seen_at, last_seen_at",
    "pattern_days": "day, id, occurrences",
    "rollups": "grain, slice, bucket, value, summary, details", "votes": "run, fix, successful", "fixes": "id, body",
}  # fmt: skip


class Clock:
    now = DAY_ONE * DAY

    def __call__(self) -> int:
        return self.now


class Pair:
    """The same records in PostgreSQL and in SQLite."""

    def __init__(self, url: str, path: Path) -> None:
        self.clock, self.url = Clock(), url
        self.postgres, self.sqlite = PostgresStore(url, self.clock), SqliteStore(path, self.clock)

    def both(self, do: Callable[[DatabaseStore], Any]) -> Any:
        one, other = do(self.postgres), do(self.sqlite)
        assert one == other
        return one

    def keep(self, day: int, *events: Any, journal: str = "j", tenant: str = DEFAULT_TENANT) -> None:
        self.clock.now = (DAY_ONE + day) * DAY + 7
        self.both(lambda store: store.append(tenant, events, journal, store.offset(tenant, journal) + 1))

    def prune(self, policy: Retention, day: int) -> tuple[int, ...]:
        now = (DAY_ONE + day) * DAY

        def told(store: DatabaseStore) -> tuple[int, ...]:
            rehearsed = store.prune(DEFAULT_TENANT, policy, now, dry_run=True)
            pruned = store.prune(DEFAULT_TENANT, policy, now)
            assert (rehearsed.runs, rehearsed.steps) == (pruned.runs, pruned.steps)
            return pruned.runs, pruned.steps, pruned.sampled, pruned.compressed, pruned.counters

        counted: tuple[int, ...] = self.both(told)
        self.compare()
        return counted

    def compare(self) -> None:
        for table, columns in ROWS.items():
            self.both(lambda store, table=table, columns=columns: rows(store, table, columns))
        self.both(lambda store: list(store.export(DEFAULT_TENANT)))
        self.both(lambda store: store.stats(DEFAULT_TENANT, StatsQuery(now=self.clock.now, by="tool", detail=True)))
        self.both(lambda store: store.patterns(DEFAULT_TENANT, PatternQuery()))
        self.both(lambda store: store.runs(DEFAULT_TENANT, RunQuery(tool="search")))
        self.both(
            lambda store: store.fixes(DEFAULT_TENANT, FixQuery(tool="search", fingerprint="f-k", now=self.clock.now))
        )

    def days(self, before: int) -> list[int]:
        """That have a part."""
        with self.postgres.read_connection(DEFAULT_TENANT) as connection:
            parts = postgres_days.list_partition_days(connection.raw_connection)
        return [day - DAY_ONE for day in parts if day < DAY_ONE + before]

    def close(self) -> None:
        self.postgres.close()
        self.sqlite.close()


def rows(store: DatabaseStore, table: str, columns: str) -> list[Any]:
    found = store.read_rows(DEFAULT_TENANT, f"SELECT {columns} FROM {table} WHERE tenant = ?", (DEFAULT_TENANT,))
    return sorted(map(repr, found))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    postgres.had()
    made = Pair(postgres.emptied(), tmp_path / "a.db")
    yield made
    made.close()


def worked(id: str, count: int = 3) -> list[Any]:
    steps = [
        Step(
            run=id,
            seq=n,
            call=n,
            name="search",
            started_at=n * DAY,
            metadata={"model": "large"},
            messages=((1, 2),) if n == 1 else (),
        )
        for n in range(1, count + 1)
    ]
    events = [StepEnded(steps[0], spoken(id)), *map(StepEnded, steps[1:])] if steps else []
    return [RunStarted(Run(id=id, agent="a", started_at=5)), *events, RunEnded(ended(id))]


def spoken(id: str) -> tuple[RecordedMessage, ...]:
    """A message that all runs have, and one of its own."""
    return tuple(
        RecordedMessage(role="user", parts=(MessagePart(text=text),), number=number)
        for number, text in enumerate(("Hello", f"Hello from {id}"), start=1)
    )


def failed(id: str) -> list[Any]:
    """A call that failed, another one that worked, and one more that failed and says nothing."""
    one = Step(run=id, seq=1, call=1, name="search", arguments={"k": 50}, outcome="failure", failure=WRONG)
    other = Step(run=id, seq=2, call=2, name="search", arguments={"k": 10})
    last = Step(run=id, seq=3, call=3, name="fetch", outcome="failure", failure=Failure.of(WRONG.kind, ""))
    steps = [StepEnded(step) for step in (one, other, last)]
    return [RunStarted(Run(id=id, agent="b", started_at=5)), *steps, RunEnded(ended(id, "b"))]


def ended(id: str, agent: str = "a") -> Run:
    return Run(id=id, agent=agent, started_at=5, ended_at=9, end_reason="finished")


def refuse_deletes(pair: Pair, day: int) -> None:
    """From now on no row of this day can be deleted."""
    part = postgres_days.partition_name(DAY_ONE + day)
    with pair.postgres.read_connection(DEFAULT_TENANT) as connection:
        connection.raw_connection.execute(
            "CREATE OR REPLACE FUNCTION refused() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'a row was deleted'; END $$"
        )
        connection.raw_connection.execute(
            f"CREATE TRIGGER kept BEFORE DELETE ON {part} FOR EACH ROW EXECUTE FUNCTION refused()"
        )


def test_a_day_that_is_over_goes_without_a_delete_and_all_else_is_as_in_sqlite(pair):
    compaction = ContextCompacted(Compaction(at=6, run="run_b"))
    pair.keep(0, *worked("run_a"), *failed("run_b"), compaction)
    pair.keep(0, *failed("run_c"), journal="other")
    pair.keep(5, *worked("run_d"))
    refuse_deletes(pair, 0)

    assert pair.prune(Retention(keep_successes=DAY, keep_failures=2 * DAY), day=4)[:2] == (3, 9)

    assert pair.days(before=4) == []
    assert [each.run.id for each in pair.postgres.export(DEFAULT_TENANT)] == ["run_d"]
    (pattern,) = pair.postgres.patterns(DEFAULT_TENANT, PatternQuery(tool="search"))
    assert (pattern.occurrences, pattern.runs) == (2, 2)  # what was counted outlives the rows
    assert pair.both(lambda store: store.health(DEFAULT_TENANT).steps) == 3
    pair.both(lambda store: rebuild(store, DEFAULT_TENANT))
    pair.compare()


def test_a_message_goes_with_the_last_run_that_has_it_also_of_a_day_that_is_over(pair):
    pair.keep(0, *worked("run_a"), *worked("run_b"))
    pair.keep(5, *worked("run_c"))

    pair.prune(Retention(keep_successes=DAY), day=4)

    assert [message.parts[0].text for message in pair.postgres.run(DEFAULT_TENANT, "run_c").messages] == [
        "Hello", "Hello from run_c"
    ]  # fmt: skip
    assert pair.both(lambda store: len(rows(store, "messages", "digest"))) == 2

    pair.prune(Retention(keep_successes=DAY), day=9)

    assert pair.both(lambda store: len(rows(store, "messages", "digest"))) == 0


def test_a_day_that_has_little_left_takes_as_little_room(pair, monkeypatch):
    monkeypatch.setattr(postgres_days, "MIN_RUNS_PER_DAY_BATCH", 1)
    pair.keep(0, *(event for n in range(40) for event in worked(f"run_{n:02}")), *failed("run_kept"))
    pair.keep(0, *worked("run_07"), tenant="acme")
    pair.keep(0, StepEnded(Step(run="run_not_begun", seq=1, call=1, name="search")))
    pair.keep(4, *worked("run_young"))
    theirs = pair.postgres.run("acme", "run_07")
    for failures, day, gone in ((90 * DAY, 4, (40, 120)), (5 * DAY, 8, (2, 7))):
        before = room_of(pair, 0)

        assert (
            pair.prune(Retention(keep_successes=3 * DAY, keep_failures=failures, compress_after=None), day)[:2] == gone
        )

        assert pair.days(before=4) == [0]
        assert room_of(pair, 0) < before or day == 8  # by then it is as small as can be
        assert pair.postgres.run("acme", "run_07") == theirs
        if day == 4:  # into the day on which it began
            pair.keep(4, StepEnded(Step(run="run_kept", seq=4, call=4, name="write")))
    pair.keep(8, *worked("run_not_begun", count=2))
    assert pair.both(lambda store: len(store.run(DEFAULT_TENANT, "run_not_begun").steps)) == 2
    pair.compare()


def test_a_day_whose_steps_were_compressed_takes_less_room_than_before(pair):
    told = "The same words come again and again in what a tool says, and that is what makes it short. " * 12
    for n in range(60):
        step = Step(run=f"run_{n}", seq=1, call=1, name="search", result=f"{n} {told}")
        pair.keep(
            0, RunStarted(Run(id=f"run_{n}", agent="a", started_at=5)), StepEnded(step), RunEnded(ended(f"run_{n}"))
        )
    before = room_of(pair, 0)
    assert pair.prune(Retention(), day=8)[3] == 60
    assert room_of(pair, 0) < before
    assert pair.both(lambda store: len(store.run(DEFAULT_TENANT, "run_7").steps)) == 1


def room_of(pair: Pair, day: int) -> int:
    part = postgres_days.partition_name(DAY_ONE + day)
    with pair.postgres.read_connection(DEFAULT_TENANT) as connection:
        return int(connection.execute(f"SELECT pg_total_relation_size('{part}')").fetchone()[0])


def file_of(pair: Pair, day: int) -> int:
    """In which PostgreSQL has the part of this day."""
    part = postgres_days.partition_name(DAY_ONE + day)
    with pair.postgres.read_connection(DEFAULT_TENANT) as connection:
        return int(connection.execute(f"SELECT pg_relation_filenode('{part}')::bigint").fetchone()[0])


def test_of_a_day_of_which_most_stays_the_few_that_go_are_deleted(pair, monkeypatch):
    monkeypatch.setattr(postgres_days, "MIN_RUNS_PER_DAY_BATCH", 1)
    letters = random.Random(3)
    large = [failed(f"run_{n}") for n in range(100)]
    for events in large:
        noise = "".join(letters.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=1500))
        events[1] = StepEnded(msgspec.structs.replace(events[1].step, result=noise))
    pair.keep(0, *worked("run_small"), *(event for events in large for event in events))
    before = file_of(pair, 0)
    assert pair.prune(Retention(keep_successes=DAY, keep_failures=90 * DAY, compress_after=None), day=4)[:2] == (1, 3)
    assert file_of(pair, 0) == before


def test_what_is_to_stay_of_a_day_stays_with_its_day(pair):
    pair.keep(0, *worked("run_a"), *failed("run_kept_longer"))
    pair.keep(1, *worked("run_b"))
    pair.keep(1, *worked("run_imported"), journal=f"{IMPORT_PREFIX}file")
    pair.keep(2, *worked("run_c"), StepEnded(Step(run="run_not_begun", seq=1, call=1, name="search")))
    pair.keep(3, *worked("run_d"))

    assert pair.prune(Retention(keep_successes=DAY, keep_failures=90 * DAY), day=8)[:2] == (4, 12)
    assert pair.days(before=8) == [0, 1, 2]
    assert pair.both(lambda store: sorted(each.run.id for each in store.export(DEFAULT_TENANT))) == [
        "run_imported", "run_kept_longer",
    ]  # fmt: skip

    assert pair.prune(Retention(keep_failures=DAY, include_imported=True, keep_successes=DAY), day=9)[:2] == (2, 6)
    assert pair.days(before=9) == [2]
    pair.keep(9, *worked("run_not_begun", count=2))  # its first step is where it was
    assert pair.both(lambda store: len(store.run(DEFAULT_TENANT, "run_not_begun").steps)) == 2


def test_a_day_of_which_another_tenant_has_steps_stays_for_them(pair):
    pair.keep(0, *worked("run_a"))
    pair.keep(0, *worked("run_theirs"), tenant="acme")
    before = pair.postgres.run("acme", "run_theirs")

    assert pair.prune(Retention(keep_successes=DAY), day=4)[:2] == (1, 3)

    assert pair.days(before=4) == [0]
    assert pair.postgres.run("acme", "run_theirs") == before
    refuse_deletes(pair, 0)
    assert pair.postgres.prune("acme", Retention(keep_successes=DAY), pair.clock.now + 9 * DAY).steps == 3
    assert pair.days(before=4) == []


def test_a_day_that_somebody_reads_is_emptied_and_goes_the_next_time(pair):
    pair.keep(0, *worked("run_a"), *failed("run_b"))
    policy = Retention(keep_successes=DAY, keep_failures=DAY)
    with pair.postgres.read_connection(DEFAULT_TENANT) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert reader.execute("SELECT count(*) FROM steps").fetchone() == (6,)
        assert pair.prune(policy, day=4)[:2] == (2, 6)
        assert 0 in pair.days(before=4)
        assert reader.execute("SELECT count(*) FROM steps").fetchone() == (6,)  # as it was at its moment
    assert pair.prune(policy, day=4)[:2] == (0, 0)
    assert pair.days(before=4) == []


def test_what_is_being_copied_is_copied_as_it_was_when_the_copy_began(pair):
    pair.keep(0, *worked("run_a"), *failed("run_b"))
    side = open_endpoint(pair.url, is_source=True)
    try:
        assert pair.prune(Retention(keep_successes=DAY, keep_failures=DAY), day=4)[:2] == (2, 6)
        steps = load_tables()["steps"]
        assert side.count(steps, DEFAULT_TENANT) == len(list(side.rows(steps, DEFAULT_TENANT))) == 6
    finally:
        side.close()


def test_a_day_of_very_many_runs_goes_some_at_a_time(pair, monkeypatch):
    monkeypatch.setattr(postgres_days, "MAX_RUNS_PER_TRANSACTION", 2)
    monkeypatch.setattr(retention.PruneRound, "_remove", None)  # and none by itself
    pair.keep(0, *worked("run_a"), *failed("run_b"), *worked("run_c"))
    assert (
        pair.postgres.prune(
            DEFAULT_TENANT, Retention(keep_successes=DAY, keep_failures=DAY), pair.clock.now + 4 * DAY
        ).runs
        == 3
    )
    assert pair.days(before=4) == []


KEPT = st.tuples(st.integers(0, 3), st.sampled_from(["worked", "failed", "imported", "not begun"]))
AGES = st.sampled_from([None, DAY, 2 * DAY, 4 * DAY])


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kept=st.lists(KEPT, min_size=1, max_size=8), successes=AGES, failures=AGES, imports=st.booleans(),
    at_once=st.sampled_from([1, 2, 1000]),
)  # fmt: skip
def test_whatever_is_kept_and_however_long_both_have_the_same_left(
    tmp_path, monkeypatch, kept, successes, failures, imports, at_once
):
    postgres.had()
    monkeypatch.setattr(postgres_days, "MIN_RUNS_PER_DAY_BATCH", 1)
    monkeypatch.setattr(postgres_days, "MAX_RUNS_PER_TRANSACTION", at_once)
    path = tmp_path / "a.db"
    for left in tmp_path.iterdir():
        left.unlink()
    pair = Pair(postgres.emptied(), path)
    try:
        for number, (day, sort) in enumerate(sorted(kept)):
            id = f"run_{number}"
            events = failed(id) if sort == "failed" else worked(id)
            if sort == "not begun":
                events = events[1:-1]
            pair.keep(day, *events, journal=f"{IMPORT_PREFIX}file" if sort == "imported" else "j")
        policy = Retention(
            keep_successes=successes, keep_failures=failures, include_imported=imports, sample=1, compress_after=None
        )
        pair.prune(policy, day=4)
        pair.prune(policy, day=6)
    finally:
        pair.close()
