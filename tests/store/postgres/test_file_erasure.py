"""Deleted bytes leave the files of PostgreSQL. Each test searches the data directory itself, past the server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import postgres
import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")

import psycopg

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Run, Step
from mulligan.store import run_texts
from mulligan.store.postgres.postgres_store import PostgresStore
from mulligan.store.sqlite import SqliteStore

WORD = "Quillfeather"
RUNS = 60


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    postgres.had()
    if "://" in postgres.GIVEN:
        pytest.skip("the files of the server that was named are not ours to read")
    with postgres.Server(durable=True, autovacuum="off") as own:
        yield own


@pytest.fixture
def url(server) -> Iterator[str]:
    with postgres.fresh_database(server.url) as made:
        yield made


@pytest.fixture
def superuser_url(server, url) -> str:
    return postgres.named(server.url, url.rpartition("/")[2])


def write(store: PostgresStore | SqliteStore) -> None:
    """Store runs whose agent, arguments, message and pattern have the word, and index them for searches."""
    now = int(time.time() * 1000)
    for number in range(RUNS):
        id = f"run_{number}"
        failure = Failure.of(
            Kind("tool", "not_found", Remedy.REPAIR), f"no customer {WORD} here", fingerprint=f"f{number}"
        )
        step = Step(
            run=id, seq=1, call=1, name="search", arguments={"name": WORD}, outcome="failure", failure=failure,
            started_at=now,
        )  # fmt: skip
        run = Run(id=id, agent=f"agent of {WORD}", started_at=now)
        ended = Run(id=id, agent=run.agent, started_at=now, ended_at=now, end_reason="finished")
        store.append(DEFAULT_TENANT, [RunStarted(run), StepEnded(step), RunEnded(ended)], "j", number + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_texts, "SETTLE_MILLISECONDS", -(10**9))
        assert store.update_search(DEFAULT_TENANT) == RUNS
    store.put(DEFAULT_TENANT, "note", "about", WORD.encode())
    store.close()


def find_files(folder: Path) -> set[str]:
    """Return the files that have the word, as what they are: `base` or `pg_wal`."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder).parts[0] for file in files if WORD.lower().encode() in file.read_bytes().lower()}


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def test_rewrite_removes_a_forgotten_text_from_tables_indexes_statistics_and_log(server, url, superuser_url, types):
    write(PostgresStore(url))
    execute(superuser_url, "ANALYZE", "CHECKPOINT")
    assert types("forget", "--text", WORD, "--yes", "--store", url)[0] == 0
    execute(superuser_url, "VACUUM", "ANALYZE", "CHECKPOINT")
    assert find_files(server.data) >= {"base", "pg_wal"}  # deleted, but still there

    code, out, _ = types("forget", "--text", WORD, "--rewrite", "--yes", "--store", url)
    assert code == 1  # an ordinary role may not overwrite the log, and the command says so
    assert ", column statistics.\n" in out
    assert "The write-ahead log was not overwritten. Run the same command with a superuser in --store." in out
    execute(superuser_url, "CHECKPOINT")
    assert find_files(server.data) == {"pg_wal"}

    code, out, _ = types("forget", "--text", WORD, "--rewrite", "--verify", "--yes", "--store", superuser_url)
    assert find_files(server.data) == set()
    assert ", column statistics, the write-ahead log.\n" in out
    assert "\nNot in any of " in out
    assert "Not searched: archives of the write-ahead log; backups; files of replicas; " in out
    assert code == 0


def test_verify_names_the_files_that_still_have_the_text(server, url, superuser_url, types):
    write(PostgresStore(url))
    code, out, _ = types("forget", "--text", WORD, "--verify", "--yes", "--store", superuser_url, "--json")
    search = json.loads(out)["search"]
    assert code == 1
    assert any(name.endswith("(patterns)") for name in search["matches"])
    assert any(name.startswith("pg_wal/") for name in search["matches"])
    assert search["files"] > len(search["matches"])
    code, out, _ = types("forget", "--text", WORD, "--verify", "--yes", "--store", url)
    assert code == 1
    assert "Not searched: files of PostgreSQL: only a superuser may read them." in out
    assert "Not in any" not in out


def test_rewrite_names_tables_of_which_an_older_transaction_still_sees_deleted_rows(server, url, superuser_url, types):
    write(PostgresStore(url))
    with psycopg.connect(url) as older:
        older.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        older.execute("SELECT 1 FROM pg_class")  # takes a snapshot, and locks no table of the store
        code, out, _ = types("forget", "--text", WORD, "--rewrite", "--yes", "--store", superuser_url)
        assert code == 1
        assert "An older transaction still sees deleted rows of: " in out
        assert find_files(server.data / "base")
    code, out, _ = types("forget", "--text", WORD, "--rewrite", "--yes", "--store", superuser_url)
    assert (code, "older transaction" in out) == (0, False)
    assert not find_files(server.data)


def test_rewrite_names_tables_in_use(url, superuser_url, types):
    write(PostgresStore(url))
    with psycopg.connect(url) as reader:
        reader.execute("SELECT 1 FROM votes")
        impatient_url = f"{superuser_url}?options=-clock_timeout%3D300"
        code, out, _ = types("forget", "--text", WORD, "--rewrite", "--yes", "--store", impatient_url)
    assert code == 1
    assert "Not rewritten, because they are in use or belong to another role: votes. " in out


def test_sqlite_overwrites_a_forgotten_text_at_once(tmp_path, types):
    path = tmp_path / "a.db"
    write(SqliteStore(path))
    assert find_files(tmp_path)
    code, out, _ = types("forget", "--text", WORD, "--verify", "--yes", "--store", str(path))
    assert not find_files(tmp_path)
    assert "\nNot in any of " in out
    assert code == 0
    (tmp_path / "a.db.copy").write_text(WORD)
    code, out, _ = types("forget", "--text", WORD, "--verify", "--yes", "--store", str(path))
    assert code == 1
    assert f"{path}.copy" in out
