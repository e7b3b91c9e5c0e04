"""A store moves house: every row of every table arrives, once, whatever comes in between."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
from moving_house import both, copy, fill, killed_at, rows, write

from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import (
    DAY,
    DEFAULT_TENANT,
    FixQuery,
    PatternCommand,
    PatternQuery,
    RecallQuery,
    Retention,
    Revocation,
    RunQuery,
)
from mulligan.core.failure import StoreError
from mulligan.store.copy import RowSum, StoreCopy, load_tables
from mulligan.store.sqlite import SqliteStore


def test_every_row_of_every_table_arrives_also_of_tables_that_nobody_has_thought_of(tmp_path):
    fill(tmp_path / "a.db", ("", DEFAULT_TENANT, "team's"))
    copied = copy(tmp_path / "a.db", tmp_path / "b.db")
    there = rows(tmp_path / "b.db")
    assert there == rows(tmp_path / "a.db")
    assert all(len(found) == 9 for found in there.values())
    assert (copied.rows, copied.put, copied.differences) == (9 * len(there), 9 * len(there), ())
    assert copied.tenants == ("", DEFAULT_TENANT, "team's")


def test_the_tables_of_a_copy_are_those_of_the_database(tmp_path):
    """Which makes sure that no list of tables has to be kept by hand: each has a tenant, and what belongs to one."""
    SqliteStore(tmp_path / "a.db").close()
    tables = load_tables()
    assert set(tables) == set(rows(tmp_path / "a.db"))
    assert {
        "runs", "steps", "links", "key_values", "rollups", "pattern_decisions", "fix_decisions", "journals"
    } <= set(tables)  # fmt: skip
    assert all(table.columns[0] == "tenant" for table in tables.values())


def test_a_table_that_one_side_alone_has_is_no_copy(tmp_path):
    SqliteStore(tmp_path / "a.db").close()
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("CREATE TABLE hats (tenant TEXT, size INTEGER)")
    with pytest.raises(StoreError, match=r"have different tables \(hats\)"):
        copy(tmp_path / "a.db", tmp_path / "b.db")


def test_a_copy_answers_every_question_as_the_store_does(tmp_path):
    store = SqliteStore(tmp_path / "a.db", clock=lambda: 200 * DAY)
    for n in range(8):
        write(store, f"run_{n}", at=100 * DAY + n, principal=f"p{n % 3}")
        write(store, f"run_other_{n}", "acme", at=100 * DAY)
    write(store, "run_old", at=1)
    store.prune(
        DEFAULT_TENANT, Retention(keep_failures=DAY, keep_successes=DAY, sample=0.5), now=300 * DAY
    )  # sums outlive their rows
    write(store, "run_late", at=300 * DAY, principal="p9")
    pattern = store.patterns(DEFAULT_TENANT, PatternQuery())[0]
    store.update_pattern(DEFAULT_TENANT, PatternCommand(action="mute", pattern=pattern.id, at=5))
    fix = store.fixes(DEFAULT_TENANT, FixQuery(now=300 * DAY))[0]
    store.decide(DEFAULT_TENANT, fix.id, True, 7)
    store.revoke(DEFAULT_TENANT, Revocation(principal="p1"))
    store.put("", "server", "tokens", b"[]")
    store.put(DEFAULT_TENANT, "session", "s1", b"\x00\xff")

    copied = copy(tmp_path / "a.db", tmp_path / "b.db")

    other = SqliteStore(tmp_path / "b.db", clock=lambda: 200 * DAY)
    assert copied.tenants == ("", "acme", DEFAULT_TENANT)
    for tenant in (DEFAULT_TENANT, "acme", "nobody"):
        for asked in (StatsQuery(now=301 * DAY), StatsQuery(now=301 * DAY, by="tool"), StatsQuery(now=2, since=0)):
            assert store.stats(tenant, asked) == other.stats(tenant, asked)
        assert store.patterns(tenant, PatternQuery(limit=99)) == other.patterns(tenant, PatternQuery(limit=99))
        assert store.patterns(tenant, PatternQuery(state="muted")) == other.patterns(
            tenant, PatternQuery(state="muted")
        )
        assert store.fixes(tenant, FixQuery(now=300 * DAY, limit=99)) == other.fixes(
            tenant, FixQuery(now=300 * DAY, limit=99)
        )
        assert store.evidence(tenant, fix.id) == other.evidence(tenant, fix.id)
        assert store.runs(tenant, RunQuery(limit=99)) == other.runs(tenant, RunQuery(limit=99))
        assert list(store.export(tenant)) == list(other.export(tenant))
        question = RecallQuery(tool="search", fingerprint="f-slow")
        assert store.recall(tenant, question) == other.recall(tenant, question)
        assert [store.offset(tenant, each) for each in store.journals(tenant)] == [
            other.offset(tenant, each) for each in other.journals(tenant)
        ]
    assert store.stats(DEFAULT_TENANT, StatsQuery(now=301 * DAY)).total.calls > 2 * len(
        list(store.export(DEFAULT_TENANT))
    )
    assert other.get(DEFAULT_TENANT, "session", "s1") == b"\x00\xff"
    assert other.get("", "server", "tokens") == b"[]"
    store.close()
    other.close()


@pytest.mark.durability
def test_a_copy_that_was_killed_goes_on_and_doubles_nothing(tmp_path):
    source, to = tmp_path / "a.db", tmp_path / "b.db"
    fill(source, ("", DEFAULT_TENANT), number=12)
    whole = sum(map(len, rows(source).values()))
    before = -1
    for row in (1, whole // 3, whole // 2, whole - 6):
        killed_at(source, to, row + max(before, 0))  # what is there is read first
        kept = sum(map(len, rows(to).values()))
        assert kept > before or kept == 0
        before = kept
        with pytest.raises(StoreError, match="incomplete copy"):
            SqliteStore(to)  # nobody takes it for the whole
    done = copy(source, to)
    assert rows(to) == rows(source)
    assert 0 < done.put < whole - before + 6  # what was there was not written again
    SqliteStore(to).close()


@pytest.mark.durability
def test_a_source_that_changed_while_the_copy_was_down_is_copied_as_it_is_now(tmp_path):
    source, to = tmp_path / "a.db", tmp_path / "b.db"
    store = SqliteStore(source)
    for n in range(30):
        write(store, f"run_{n:02d}")
    killed_at(source, to, 150)
    for n in range(30, 40):
        write(store, f"run_{n:02d}")
    store.prune(DEFAULT_TENANT, Retention(keep_failures=0), now=int(9e15))
    write(store, "run_new")
    store.close()
    copied = copy(source, to)
    assert copied.removed > 0
    assert rows(to) == rows(source)


def test_a_copy_is_of_one_moment_while_others_write_and_the_next_brings_what_is_new(tmp_path):
    source, to = tmp_path / "a.db", tmp_path / "b.db"
    store = SqliteStore(source)
    for n in range(10):
        write(store, f"run_{n}")
    before = rows(source)
    with both(source, to) as pair:
        write(store, "run_meanwhile")
        copied = StoreCopy(*pair).copy()
    assert not copied.differences
    assert rows(to) == before
    again = copy(source, to)
    assert not again.differences
    assert rows(to) == rows(source)
    assert 0 < again.put < copied.put
    assert copy(source, to).put == 0
    store.close()


def test_what_was_written_to_a_copy_is_not_undone_by_another_copy(tmp_path):
    source, to = tmp_path / "a.db", tmp_path / "b.db"
    for path in (source, to):
        store = SqliteStore(path)
        if path == to:
            store.close()
            copy(source, to)
            store = SqliteStore(to)
        write(store, f"run_{path.stem}")
        store.close()
    kept = rows(to)
    with pytest.raises(StoreError, match="was changed after it was copied"):
        copy(source, to)
    assert rows(to) == kept


def test_a_store_in_use_is_no_place_for_a_copy(tmp_path):
    for name in ("a.db", "b.db", "c.db"):
        store = SqliteStore(tmp_path / name)
        write(store, f"run_{name}")
        store.close()
    kept = rows(tmp_path / "b.db")
    with pytest.raises(StoreError, match=r"already contains records, and a copy would replace them"):
        copy(tmp_path / "a.db", tmp_path / "b.db")
    assert rows(tmp_path / "b.db") == kept
    copy(tmp_path / "a.db", tmp_path / "d.db")
    with pytest.raises(
        StoreError, match=r"already contains records, and a copy would replace them"
    ):  # nor is a copy of another store
        copy(tmp_path / "c.db", tmp_path / "d.db")


@pytest.mark.durability
def test_half_a_copy_of_another_store_is_refused_on_both_sides(tmp_path):
    fill(tmp_path / "a.db", (DEFAULT_TENANT,))
    fill(tmp_path / "c.db", (DEFAULT_TENANT,))
    killed_at(tmp_path / "a.db", tmp_path / "b.db", 20)
    with pytest.raises(StoreError, match=r"incomplete copy of .*a\.db"):
        copy(tmp_path / "c.db", tmp_path / "b.db")
    with pytest.raises(StoreError, match="incomplete copy"):
        copy(tmp_path / "b.db", tmp_path / "e.db")


def test_one_tenant_is_copied_into_a_store_of_others_by_another_name(tmp_path):
    source, to = tmp_path / "a.db", tmp_path / "b.db"
    store = SqliteStore(source)
    team = SqliteStore(to)
    for n in (3, 1, 2, 5, 4):
        write(store, f"run_{n}")
        write(store, f"run_{n}", "stranger")
        write(team, f"run_{n}", "acme")
    kept = team.runs("acme", RunQuery()), team.stats("acme", StatsQuery(now=9))
    copied = copy(source, to, DEFAULT_TENANT, "ada")
    assert (copied.tenants, copied.differences) == ((DEFAULT_TENANT,), ())
    question = RecallQuery(tool="search", fingerprint="f-slow")
    for _ in range(2):
        assert team.runs("ada", RunQuery()) == store.runs(DEFAULT_TENANT, RunQuery())
        assert team.stats("ada", StatsQuery(now=9)) == store.stats(DEFAULT_TENANT, StatsQuery(now=9))
        assert team.recall("ada", question) == store.recall(DEFAULT_TENANT, question)
        assert (team.runs("acme", RunQuery()), team.stats("acme", StatsQuery(now=9))) == kept
        assert not team.runs("stranger", RunQuery())
        assert not team.runs(DEFAULT_TENANT, RunQuery())
        with contextlib.closing(sqlite3.connect(to)) as connection:
            order = [run for (run,) in connection.execute("SELECT run FROM links WHERE tenant = 'ada' ORDER BY rowid")]
        with contextlib.closing(sqlite3.connect(source)) as connection:
            asked = "SELECT run FROM links WHERE tenant = ? ORDER BY rowid"
            assert order == [run for (run,) in connection.execute(asked, (DEFAULT_TENANT,))]
        for n in (9, 7, 8):
            write(store, f"run_{n}")
        copy(source, to, DEFAULT_TENANT, "ada")
    write(team, "run_of_its_own", "ada")
    with pytest.raises(StoreError, match="was changed after it was copied"):
        copy(source, to, DEFAULT_TENANT, "ada")
    with pytest.raises(StoreError, match="already contains records of the tenant 'acme'"):
        copy(source, to, DEFAULT_TENANT, "acme")
    with pytest.raises(StoreError, match=r"No tenant 'nobody' in .* Tenants: local, stranger\."):
        copy(source, to, "nobody")
    store.close()
    team.close()


def test_what_differs_is_named(tmp_path):
    source, to = tmp_path / "a.db", tmp_path / "b.db"
    fill(source, (DEFAULT_TENANT,))
    copy(source, to)
    with contextlib.closing(sqlite3.connect(to)) as connection, connection:
        connection.execute("UPDATE steps SET outcome = 'other' WHERE seq = 1")
        connection.execute("DELETE FROM key_values WHERE kind LIKE '00002%'")
        connection.execute("INSERT INTO journals VALUES ('other', 'j', 1)")
        connection.execute("INSERT INTO revocations VALUES ('local', 'mallory', NULL, 1, 2)")
    with both(source, to) as pair:
        compared = StoreCopy(*pair).compare()
    told = {each.table: each for each in compared.differences}
    assert {name: (each.missing, each.altered, each.extra) for name, each in told.items()} == {
        "steps": (0, 1, 0), "key_values": (1, 0, 0), "journals": (0, 0, 1), "revocations": (0, 0, 1),
    }  # fmt: skip
    assert "seq 1" in told["steps"].rows[0]
    assert told["steps"].rows[0].startswith("changed: ")
    assert told["journals"].tenant == "other"
    assert "mallory" in told["revocations"].rows[0]


def test_the_digest_does_not_depend_on_the_order_and_on_nothing_else(tmp_path):
    made = []
    for some in ([(1, "a"), (2, "b")], [(2, "b"), (1, "a")], [(1, "b"), (2, "a")], [(1, "a")]):
        made.append(RowSum(("id", "name")))
        made[-1].add(some)
    assert made[0] == made[1]
    assert made[0] != made[2] != made[3]
