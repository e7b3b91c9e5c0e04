"""A store moves from SQLite to PostgreSQL and back, and from one PostgreSQL to another."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
from moving_house import both, copy, fill, killed_at, rows, write

from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DAY, DEFAULT_TENANT, FixQuery, PatternQuery, RecallQuery, Retention, RunQuery
from mulligan.core.failure import StoreError
from mulligan.store.copy import StoreCopy, load_tables
from mulligan.store.postgres.postgres_diagnostics import find_isolation_problems
from mulligan.store.sqlite import SqliteStore
from mulligan.store.urls import open_store

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")


def test_every_row_of_every_table_goes_to_postgresql_and_comes_back(postgres_url, tmp_path):
    first, last = tmp_path / "a.db", tmp_path / "b.db"
    fill(first, ("", DEFAULT_TENANT, "team's"), number=7)
    there = copy(first, postgres_url)
    back = copy(postgres_url, last)
    assert rows(last) == rows(first)
    assert all(len(found) == 21 for found in rows(last).values())
    assert there.digest == back.digest
    assert copy(first, postgres_url).put == 0


def test_both_databases_have_the_same_tables(postgres_url, tmp_path):
    SqliteStore(tmp_path / "a.db").close()
    with both(tmp_path / "a.db", postgres_url) as (sqlite, postgres):
        assert sqlite.table_names() == postgres.table_names() == set(load_tables())


def test_texts_that_postgresql_has_no_room_for_arrive_and_are_compared(postgres_url, tmp_path):
    """They stand there under other characters, in another order, and may be what a row is known by."""
    first, last = tmp_path / "a.db", tmp_path / "b.db"
    store = SqliteStore(first)
    for key in ("a", "a\x00b", "b\x00", "\x00", "az", "\U0001f600", "", "z"):
        store.put(DEFAULT_TENANT, "k\x00ind" if key == "z" else "kind", key, b"\x00")
    copy(first, postgres_url)
    store.put(DEFAULT_TENANT, "kind", "a\x00c", b"new")
    store.put(DEFAULT_TENANT, "kind", "a\x00b", b"changed")
    with store.writer as writer:
        writer.execute("DELETE FROM key_values WHERE key = 'az'")
    store.close()
    with both(first, postgres_url) as pair:
        (differs,) = StoreCopy(*pair).compare().differences
    assert (differs.missing, differs.altered, differs.extra) == (1, 1, 1)
    again = copy(first, postgres_url)
    assert (again.put, again.removed) == (2, 2)
    copy(postgres_url, last)
    assert rows(last) == rows(first)


def test_a_copy_in_postgresql_answers_as_the_file_does_and_goes_on_from_there(postgres_url, tmp_path):
    store = SqliteStore(tmp_path / "a.db", clock=lambda: 200 * DAY)
    for n in range(8):
        write(store, f"run_{n}", at=100 * DAY + n, principal=f"p{n % 3}")
        write(store, f"run_other_{n}", "acme", at=100 * DAY)
    store.prune(
        DEFAULT_TENANT, Retention(keep_failures=DAY, keep_successes=DAY), now=300 * DAY
    )  # sums outlive their rows
    for n in (9, 8, 7):
        write(store, f"run_{n}", at=300 * DAY, principal="p9")
    copy(tmp_path / "a.db", postgres_url)
    other = open_store(postgres_url)
    for _ in range(2):
        for tenant in (DEFAULT_TENANT, "acme", "nobody"):
            for asked in (StatsQuery(now=301 * DAY), StatsQuery(now=301 * DAY, by="tool")):
                assert store.stats(tenant, asked) == other.stats(tenant, asked)
            assert store.patterns(tenant, PatternQuery(limit=99)) == other.patterns(tenant, PatternQuery(limit=99))
            query = FixQuery(now=300 * DAY, limit=99)
            assert store.fixes(tenant, query) == other.fixes(tenant, query)
            assert store.runs(tenant, RunQuery(limit=99)) == other.runs(tenant, RunQuery(limit=99))
            assert list(store.export(tenant)) == list(other.export(tenant))
            question = RecallQuery(tool="search", fingerprint="f-slow")
            assert store.recall(tenant, question) == other.recall(tenant, question)
        for each in (store, other):  # what comes next is counted alike in both
            write(each, "run_next", at=300 * DAY)
            write(each, "run_7", at=300 * DAY)
    store.close()
    other.close()


def test_a_copy_into_postgresql_that_was_killed_goes_on_and_is_shut_until_it_is_whole(postgres_url, tmp_path):
    fill(tmp_path / "a.db", ("", DEFAULT_TENANT), number=12)
    whole = sum(map(len, rows(tmp_path / "a.db").values()))
    for row in (whole // 4, whole // 2, whole - 1):
        killed_at(tmp_path / "a.db", postgres_url, row)
        with pytest.raises(StoreError, match="incomplete copy"):
            open_store(postgres_url)
    copied = copy(tmp_path / "a.db", postgres_url)
    assert 0 < copied.put < whole // 2
    copy(postgres_url, tmp_path / "b.db")
    assert rows(tmp_path / "b.db") == rows(tmp_path / "a.db")


def test_postgresql_is_copied_as_it_was_at_one_moment_and_later_what_is_new(postgres_url, tmp_path):
    store = open_store(postgres_url)
    for n in range(10):
        write(store, f"run_{n}")
    with both(postgres_url, tmp_path / "b.db") as pair:
        write(store, "run_meanwhile")
        copied = StoreCopy(*pair).copy()
    assert not copied.differences
    with contextlib.closing(sqlite3.connect(tmp_path / "b.db")) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (10,)
    again = copy(postgres_url, tmp_path / "b.db")
    assert 0 < again.put < copied.put
    with contextlib.closing(sqlite3.connect(tmp_path / "b.db")) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (11,)
    store.close()


def test_one_tenant_moves_in_with_others_in_postgresql(postgres_url, tmp_path):
    team, mine = open_store(postgres_url), SqliteStore(tmp_path / "a.db")
    for n in (3, 1, 2):
        write(team, f"run_{n}", "acme")
        write(mine, f"run_{n}")
    before = team.runs("acme", RunQuery()), team.stats("acme", StatsQuery(now=9))
    copy(tmp_path / "a.db", postgres_url, DEFAULT_TENANT, "ada")
    for n in (5, 4):
        write(mine, f"run_{n}")
    copy(tmp_path / "a.db", postgres_url, DEFAULT_TENANT, "ada")
    assert team.runs("ada", RunQuery()) == mine.runs(DEFAULT_TENANT, RunQuery())
    assert team.stats("ada", StatsQuery(now=9)) == mine.stats(DEFAULT_TENANT, StatsQuery(now=9))
    question = RecallQuery(tool="search", fingerprint="f-slow")
    assert team.recall("ada", question) == mine.recall(DEFAULT_TENANT, question)
    assert (team.runs("acme", RunQuery()), team.stats("acme", StatsQuery(now=9))) == before
    write(team, "run_of_its_own", "ada")
    with pytest.raises(StoreError, match="was changed after it was copied"):
        copy(tmp_path / "a.db", postgres_url, DEFAULT_TENANT, "ada")
    mine.close()
    team.close()


def test_steps_are_kept_by_the_day_of_their_run(postgres_url, tmp_path):
    """So that a day that is no longer needed can be dropped as a whole, as with runs that came straight here."""
    store = SqliteStore(tmp_path / "a.db", clock=lambda: 20_000 * DAY)
    write(store, "run_1")
    store.close()
    copy(tmp_path / "a.db", postgres_url)
    with psycopg.connect(postgres_url, options="-c mulligan.tenant=*") as made:
        assert made.execute("SELECT count(*) FROM steps_20000").fetchone() == (3,)
        assert made.execute("SELECT count(*) FROM steps_default").fetchone() == (0,)


def test_tables_that_are_guarded_by_tenant_are_copied_by_a_role_that_is_nobody_special(postgres_url, tmp_path):
    """PostgreSQL takes no rows by COPY into such a table, and shows none to whoever does not say whom it means."""
    open_store(postgres_url).close()
    if find_isolation_problems(postgres_url):
        pytest.skip("the server that was named has only a superuser, for whom no policy holds")
    fill(tmp_path / "a.db", ("", DEFAULT_TENANT, "acme"), number=4)
    copy(tmp_path / "a.db", postgres_url)
    with psycopg.connect(postgres_url) as made:
        assert made.execute("SELECT count(*) FROM runs").fetchone() == (0,)
    assert find_isolation_problems(postgres_url) == []  # also for the parts that the copy made
    copy(postgres_url, tmp_path / "b.db")
    assert rows(tmp_path / "b.db") == rows(tmp_path / "a.db")
