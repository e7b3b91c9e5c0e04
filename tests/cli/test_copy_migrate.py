"""mulligan copy and migrate, typed: what is done is told, and what makes no sense is refused with a way out."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys

import pytest

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.records import Run, Step
from mulligan.store.sqlite import SqliteStore
from mulligan.store.tables import MIGRATIONS


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "a.db"
    write(path, "run_1")
    return path


def write(path, *ids, tenant=DEFAULT_TENANT):
    kept = SqliteStore(path)
    for id in ids:
        events = [StepEnded(Step(run=id, seq=1, call=1, name="search")), RunEnded(Run(id=id, agent="helper"))]
        kept.append(tenant, events, "j", kept.offset(tenant, "j") + 1)
    kept.close()


def test_a_copy_is_a_store_that_the_other_commands_read(types, store, tmp_path):
    copy = str(tmp_path / "b.db")
    code, out, err = types("copy", str(store), f"sqlite:///{copy}")
    assert (code, err) == (0, "")
    assert "of 1 tenant in" in out
    assert "Both stores are identical, digest " in out
    _, out, _ = types("runs", "--store", copy)
    assert "run_1" in out
    write(store, "run_2", "run_3")
    code, out, _ = types("copy", str(store), copy)
    assert code == 0
    assert " new, " in out
    _, out, _ = types("copy", str(store), copy, "--json")
    told = json.loads(out)
    assert (told["put"], told["same"], told["differences"]) == (0, True, [])


@pytest.mark.parametrize(
    "typed",
    [("copy", "STORE", "URL"), ("copy", "URL", "STORE"), ("migrate", "--store", "URL"), ("doctor", "--store", "URL")],
)
def test_without_psycopg_one_is_told_what_to_install(types, store, monkeypatch, typed):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    meant = {"STORE": str(store), "URL": "postgresql://db.invalid/mulligan"}
    code, out, err = types(*(meant.get(word, word) for word in typed))
    assert (code, out) == (2, "")
    wanted = "In a checkout of mulligan, run: pip install '.[postgres]'"
    assert err == f"error: PostgreSQL storage needs psycopg. {wanted}\n"


@pytest.mark.slow
def test_the_command_itself_copies_and_checks(store, tmp_path):
    copy = str(tmp_path / "b.db")
    command = [sys.executable, "-m", "mulligan", "copy", str(store), copy]
    assert subprocess.run([*command, "--json"], capture_output=True, timeout=60, check=True).stderr == b""
    assert b"Identical: " in subprocess.run([*command, "--check"], capture_output=True, timeout=60, check=True).stdout


def test_a_check_changes_nothing_and_exits_1_where_the_two_differ(types, store, tmp_path):
    copy = tmp_path / "b.db"
    types("copy", str(store), str(copy))
    write(store, "run_2")
    before = copy.read_bytes()
    code, out, _ = types("copy", str(store), str(copy), "--check")
    assert code == 1
    assert "runs of 'local': 1 missing\n  missing: id 'run_2'" in out
    assert copy.read_bytes() == before
    code, out, _ = types("copy", str(store), str(copy), "--check", "--json")
    assert (code, json.loads(out)["same"]) == (1, False)


def test_a_copy_that_does_not_come_out_the_same_says_where_and_stays_shut(types, store, tmp_path):
    copy = tmp_path / "b.db"
    types("copy", str(store), str(copy))
    with contextlib.closing(sqlite3.connect(copy)) as connection:  # a database that changes what it is given
        connection.execute(
            "CREATE TRIGGER bad AFTER INSERT ON steps BEGIN UPDATE steps SET name = 'hacked' WHERE run = new.run; END"
        )
    write(store, "run_2")
    code, out, _ = types("copy", str(store), str(copy))
    assert code == 1
    assert "steps of 'local': 1 changed\n  changed: run 'run_2', seq 1" in out
    assert "cannot be opened until a copy succeeds" in out
    code, _, err = types("runs", "--store", str(copy))
    assert code == 2
    assert "is an incomplete copy" in err
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        connection.execute("DROP TRIGGER bad")
    assert types("copy", str(store), str(copy))[0] == 0
    assert types("runs", "--store", str(copy))[0] == 0


@pytest.mark.durability
def test_what_killed_processes_left_in_their_journals_is_copied_too(types, tmp_path):
    script = (
        "import mulligan, os\n"
        f"mulligan.configure(store={str(tmp_path / 'a.db')!r})\n"
        "tool = mulligan.tool(lambda: 1, name='count')\n"
        "with mulligan.run('helper'):\n    tool()\n    mulligan.flush(30)\n    tool()\n    os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=60)
    types("copy", str(tmp_path / "a.db"), str(tmp_path / "b.db"))
    kept = SqliteStore(tmp_path / "b.db")
    assert kept.health(DEFAULT_TENANT).steps == 2
    kept.close()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("{a}", "{a}"), "FROM and TO are the same store"),
        (("{a}", "{folder}/./a.db"), "FROM and TO are the same store"),
        (("{a}", "https://host.example"), "is a server, which does not expose all tables"),
        (("http://127.0.0.1:9", "{a}"), "is a server, which does not expose all tables"),
        (("memory:", "{a}"), "A store in memory is lost"),
        (("{a}", "mysql://host/db"), "Unknown store type 'mysql'"),
        (("{folder}/none.db", "{folder}/b.db"), "does not exist"),
        (("{a}", "{folder}/none/b.db"), "Create it: mkdir -p"),
        (("{a}", "{folder}/b.db", "--as", "ada"), "Use: --tenant NAME --as NAME"),
        (("{a}", "{folder}/b.db", "--tenant", "nobody"), "Tenants: local."),
        (("{a}", "{folder}/b.db", "--check"), "does not exist. Copy it first"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_way_out(types, store, tmp_path, words, told):
    typed = [word.replace("{a}", str(store)).replace("{folder}", str(tmp_path)) for word in words]
    code, out, err = types("copy", *typed)
    assert (code, out) == (2, "")
    assert told in err


# mulligan migrate


WITH_A_LATER_SCHEMA = """
import sys
from mulligan.store import tables
tables.MIGRATIONS += (("ALTER TABLE runs ADD COLUMN weekday TEXT", "UPDATE runs SET weekday = 'monday'"),)
from mulligan.cli import main
sys.argv = ["mulligan", *sys.argv[1:]]
main()
"""
"""A program in which mulligan has one migration more."""


def later(*words, stderr=subprocess.PIPE):
    command = [sys.executable, "-c", WITH_A_LATER_SCHEMA, *words]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=60, check=False)


def new_store(path):
    SqliteStore(path).close()
    return str(path)


def schema(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


@pytest.mark.slow
def test_a_store_of_an_earlier_version_is_migrated(tmp_path):
    path = new_store(tmp_path / "old.db")
    before = (tmp_path / "old.db").read_bytes()
    done = later("migrate", "--store", path, "--dry-run")
    assert (done.returncode, done.stderr) == (1, "")
    assert (
        done.stdout == f"Would migrate {path} from schema {len(MIGRATIONS)} to {len(MIGRATIONS) + 1}: 2 statements.\n"
    )
    assert (tmp_path / "old.db").read_bytes() == before
    done = later("migrate", "--store", path)
    assert done.returncode == 0
    assert done.stdout == f"Migrated {path} from schema {len(MIGRATIONS)} to {len(MIGRATIONS) + 1}: 2 statements.\n"
    assert schema(path) == len(MIGRATIONS) + 1
    done = later("migrate", "--store", path, "--dry-run")
    assert (done.returncode, done.stdout) == (0, f"{path} is up to date (schema {len(MIGRATIONS) + 1}).\n")


def test_a_newer_store_is_refused_and_left_as_it_is(types, tmp_path):
    path = new_store(tmp_path / "new.db")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=999")
    before = (tmp_path / "new.db").read_bytes()
    for words in ((), ("--dry-run",)):
        code, _, err = types("migrate", "--store", path, *words)
        assert code == 2
        assert "written by a newer mulligan (schema 999" in err
    assert (tmp_path / "new.db").read_bytes() == before


def test_a_new_store_is_made_and_a_rehearsal_makes_none(types, tmp_path):
    path = str(tmp_path / "a.db")
    code, out, _ = types("migrate", "--store", path, "--dry-run", "--json")
    assert (code, json.loads(out)["schema"]) == (1, 0)
    assert not (tmp_path / "a.db").exists()
    code, out, _ = types("migrate", "--store", path)
    assert code == 0
    assert out.startswith("Created ")
    assert types("migrate", "--store", path)[1].endswith(f"is up to date (schema {len(MIGRATIONS)}).\n")


@pytest.mark.slow
def test_a_terminal_shows_the_progress_of_a_migration(tmp_path):
    """In any command, because the first process that opens an embedded store migrates it."""
    pty = pytest.importorskip("pty")
    path = new_store(tmp_path / "old.db")
    parent, child = pty.openpty()
    for is_old in (True, False):
        assert later("runs", "--store", path, stderr=child).returncode == 0
        os.set_blocking(parent, False)
        with contextlib.suppress(BlockingIOError):
            seen = b""
            seen = os.read(parent, 65536)
        assert (b"migrating the store" in seen) == is_old
    os.close(parent)
    os.close(child)
