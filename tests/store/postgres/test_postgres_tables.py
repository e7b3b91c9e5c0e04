"""Row-level security alone: with the application's own filter gone, PostgreSQL shows and takes rows of one tenant."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")

import postgres
import psycopg

from mulligan.contract.store import (
    DEFAULT_TENANT,
    Batch,
    FixQuery,
    PatternCommand,
    PatternQuery,
    Revocation,
    RunQuery,
    now,
)
from mulligan.core.events import ContextCompacted, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Compaction, Lesson, MessagePart, RecordedMessage, Run, Step
from mulligan.store import rollups
from mulligan.store.postgres import postgres_tables as postgres_security
from mulligan.store.postgres.postgres_store import PostgresStore

OURS, THEIRS = "acme", "globex"
PASSED_ON = "-c citus.propagate_set_commands=local"
"""Citus passes the tenant on to the workers."""
SAID = RecordedMessage(role="user", parts=(MessagePart(text="Hello"),), number=1)
WRONG = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "k is 10 at most", fingerprint="f-k"
)


def fill(store: PostgresStore, tenant: str) -> None:
    """A row of this tenant in every table there is."""
    for id in ("run_a", "run_b"):
        run = Run(id=id, agent="a", started_at=now(), session="s")
        store.append(tenant, [
            RunStarted(run),
            StepEnded(Step(run=id, seq=1, call=1, name="s", arguments={"k": 50}, outcome="failure", failure=WRONG)),
            StepEnded(Step(run=id, seq=2, call=2, name="s", arguments={"k": 10}), (SAID,)),
            ContextCompacted(Compaction(at=now(), run=id)),
            RunEnded(Run(id=id, agent="a", started_at=run.started_at, ended_at=run.started_at + 5,
                         end_reason="finished", session="s")),
        ], f"journal_{id}", 1, "ann")  # fmt: skip
    with store.write_transaction(tenant) as writer:
        rollups.fold(writer, tenant)
    store.append(tenant, [StepEnded(Step(run="alone", seq=1, call=1, name="s"))], "journal_c", 1)  # an orphan
    store.append(tenant, [  # a run that goes on, with a provisional link
        RunStarted(Run(id="run_c", agent="a", started_at=now())),
        StepEnded(Step(run="run_c", seq=1, call=1, name="s", arguments={"k": 60}, outcome="failure", failure=WRONG)),
        StepEnded(Step(run="run_c", seq=2, call=2, name="s", arguments={"k": 10})),
    ], "journal_d", 1, "ann")  # fmt: skip
    (fix,) = store.fixes(tenant, FixQuery(now=now()))
    assert store.decide(tenant, fix.id, True, now())
    (pattern,) = store.patterns(tenant, PatternQuery())
    assert store.update_pattern(tenant, PatternCommand(action="mute", pattern=pattern.id, at=now()))
    store.revoke(tenant, Revocation(principal="mallory"))
    store.put(tenant, "note", "n", b"x")
    store.save_lesson(tenant, Lesson(id="les_0123456789ab", tool="s", mistake="Too much.", correction="Less."))
    with store.write_transaction(tenant) as writer:
        writer.execute("INSERT INTO meta (tenant, key, value) VALUES (?, 'pruned', '0')", (tenant,))


@pytest.fixture
def store():
    postgres.had()
    url = postgres.emptied()
    with psycopg.connect(url) as made:
        row = made.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    if row == (True,):
        pytest.skip("the server that was named has only a superuser, for whom no policy holds")
    store = PostgresStore(url)
    yield store
    store.close()


@pytest.fixture
def filled(store):
    fill(store, OURS)
    fill(store, THEIRS)
    return store


def connect(store: PostgresStore) -> psycopg.Connection:
    return psycopg.connect(store._pool.url.database_url, options=PASSED_ON)


def tables(store: PostgresStore) -> list[str]:
    with store.read_connection(OURS) as connection:
        return [*postgres_security.list_tables(connection.raw_connection)]


def test_every_table_with_a_tenant_is_guarded_and_every_part_of_one(filled):
    with filled.read_connection(OURS) as connection:
        guarded = postgres_security.list_tables(connection.raw_connection)
        every = {name for (name,) in connection.raw_connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
        )}  # fmt: skip
    assert all(guarded.values())
    assert every - set(guarded) == {"schema_version"}
    assert any(name.removeprefix("steps_").isdigit() for name in guarded)


def test_without_any_filter_a_question_sees_rows_of_its_tenant_alone(filled):
    empty = []
    for name in tables(filled):
        with filled.read_connection(OURS) as connection:
            own = connection.raw_connection.execute(f"SELECT DISTINCT tenant FROM {name}").fetchall()
        with filled.read_connection("nobody") as connection:
            others = connection.raw_connection.execute(f"SELECT DISTINCT tenant FROM {name}").fetchall()
        assert own in ([(OURS,)], []), name
        assert others == [], name
        if (OURS,) not in own:
            empty.append(name)
    # Parts of other days, and what `fill` has no row for, would show nothing in any case.
    assert {name for name in empty if not name.startswith("steps_")} == set(), empty


def test_the_tables_hold_rows_of_both(filled):
    """Or the test above would say nothing."""
    for name in tables(filled):
        if name.startswith("steps_"):
            continue
        with connect(filled) as made:
            postgres_security.set_all_tenants(made)
            found = made.execute(f"SELECT DISTINCT tenant FROM {name}").fetchall()
        assert {tenant for (tenant,) in found} >= {OURS, THEIRS}, name


def test_a_transaction_of_several_tenants_sees_one_at_a_time(filled):
    with filled.write_transaction(THEIRS, OURS) as writer:
        for tenant in (OURS, THEIRS, OURS):  # it begins with the first by name
            writer.select_tenant(tenant)
            assert writer.raw_connection.execute("SELECT DISTINCT tenant FROM runs").fetchall() == [(tenant,)]


@pytest.mark.parametrize("using", ["read_connection", "_reading_stale", "write_transaction"])
def test_every_way_to_the_database_means_its_tenant_alone(filled, using):
    for tenant in (OURS, THEIRS, "nobody", OURS):
        with getattr(filled, using)(tenant) as connection:
            seen = connection.raw_connection.execute("SELECT DISTINCT tenant FROM runs").fetchall()
            assert seen == ([(tenant,)] if tenant != "nobody" else [])


def test_whoever_says_nothing_sees_and_changes_nothing(filled):
    with connect(filled) as made:
        for name in tables(filled):
            assert made.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,), name
            assert made.execute(f"DELETE FROM {name}").rowcount == 0, name
            assert made.execute(f"UPDATE {name} SET tenant = tenant").rowcount == 0, name


def test_a_row_of_another_tenant_can_be_neither_written_nor_taken_over(filled):
    before = len(filled.runs(THEIRS, RunQuery()))
    for name in tables(filled):
        if name.startswith("steps_"):
            continue
        with connect(filled) as made:
            made.execute(postgres_security.build_tenant_setting(OURS, made))
            # Citus refuses it for everybody.
            with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported)):
                made.execute(f"UPDATE {name} SET tenant = 'initech'")
    with filled.write_transaction(OURS) as writer:
        assert writer.raw_connection.execute("DELETE FROM runs WHERE tenant = %s", (THEIRS,)).rowcount == 0
    assert len(filled.runs(THEIRS, RunQuery())) == before


def test_what_is_the_servers_own_is_there_for_who_asks_for_it_and_for_no_tenant(filled):
    assert filled.compare_and_set("", "server", "tokens", None, b"1")
    assert filled.get("", "server", "tokens") == b"1"
    for tenant in (OURS, DEFAULT_TENANT):
        with filled.read_connection(tenant) as connection:
            assert (
                connection.raw_connection.execute("SELECT 1 FROM key_values WHERE kind = 'server'").fetchone() is None
            )
    with filled.read_connection("") as connection:
        assert connection.raw_connection.execute("SELECT DISTINCT tenant FROM key_values").fetchall() == [("",)]


def test_a_group_of_tenants_is_written_together_and_by_nobody_else(store):
    run = RunEnded(Run(id="r", agent="a", started_at=1, ended_at=2, end_reason="finished"))
    assert store.append_all([Batch(tenant, [run], "j", 1) for tenant in (OURS, THEIRS, DEFAULT_TENANT)]) == [1, 1, 1]
    for tenant in (OURS, THEIRS, DEFAULT_TENANT):
        assert len(store.runs(tenant, RunQuery())) == 1
    with store.read_connection("") as connection:
        assert connection.raw_connection.execute("SELECT count(*) FROM runs").fetchone() == (0,)


def test_a_transaction_that_ended_means_nobody_any_more(filled):
    with filled.write_transaction(OURS):
        pass
    assert filled.writer is not None
    assert filled.writer.raw_connection.execute("SELECT count(*) FROM runs").fetchone() == (0,)
    with pytest.raises(ZeroDivisionError), filled.write_transaction(OURS):
        raise ZeroDivisionError
    assert filled.writer.raw_connection.execute("SELECT count(*) FROM runs").fetchone() == (0,)


def test_a_day_of_another_tenant_is_not_dropped_because_it_is_not_seen(filled):
    from mulligan.store.postgres import partitions

    with filled.read_connection("nobody") as connection:
        today = max(partitions.list_partition_days(connection.raw_connection))
        partitions.drop_empty_partitions(connection.raw_connection, today + 1)
    for tenant in (OURS, THEIRS):
        assert [len(each.steps) for each in filled.runs(tenant, RunQuery())] == [2, 2, 2]


@pytest.mark.parametrize("name", ["*", f"={OURS}", "' OR '' = '", f"{OURS}'; SET LOCAL mulligan.tenant = '*", "\\"])
def test_no_name_means_several_or_another(filled, name):
    filled.put(name, "note", "n", b"x")
    for using in (filled.read_connection, filled.write_transaction):
        with using(name) as connection:
            seen = connection.raw_connection.execute("SELECT DISTINCT tenant FROM key_values").fetchall()
        assert seen == [(name,)]
