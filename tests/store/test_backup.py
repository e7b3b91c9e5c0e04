"""A copy of a store: of one moment, while others write; whole, or not there."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mulligan.contract import counters
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, StoreError
from mulligan.core.records import Run, Step
from mulligan.store.backup import MIN_STALE_SECONDS, PARTIAL_INFIX
from mulligan.store.sqlite import SqliteStore

TIMEOUT = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow", fingerprint="f-slow")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "a.db")
    yield store
    store.close()


def write(store: SqliteStore, id: str, journal: str = "j", result: str | None = None) -> None:
    run = Run(id=id, started_at=1, ended_at=2, end_reason="finished")
    steps = [
        Step(run=id, seq=1, call=1, name="search", started_at=1, outcome="failure", failure=TIMEOUT),
        Step(run=id, seq=2, call=1, attempt=2, name="search", started_at=2, result=result),
    ]
    batch: list[AnyEvent] = [RunStarted(run), *map(StepEnded, steps), RunEnded(run)]
    store.append(DEFAULT_TENANT, batch, journal, store.offset(DEFAULT_TENANT, journal) + 1)


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_a_copy_is_made_while_others_write(store, tmp_path):
    for n in range(50):
        write(store, f"run_{n}", result="x" * 5000)
    is_over = threading.Event()

    def keep_writing() -> None:
        n = 0
        while not is_over.is_set():
            n += 1
            write(store, f"run_later_{n}", "other")

    thread = threading.Thread(target=keep_writing)
    thread.start()
    told: list[tuple[int, int]] = []
    try:
        health = store.backup(tmp_path / "copies" / "b.db", lambda done, total: told.append((done, total)))
    finally:
        is_over.set()
        thread.join()

    assert health.healthy
    assert health.runs >= 50
    assert told[-1][0] == told[-1][1] > 0
    assert (tmp_path / "copies").stat().st_mode & 0o777 == 0o700
    assert {file.name for file in (tmp_path / "copies").iterdir()} == {"b.db"}
    copy = SqliteStore(tmp_path / "copies" / "b.db")
    assert copy.run(DEFAULT_TENANT, "run_7") == store.run(DEFAULT_TENANT, "run_7")
    assert copy.stats(DEFAULT_TENANT, StatsQuery(now=9)) == counters.stats(copy.export(DEFAULT_TENANT))
    copy.close()


def test_a_copy_never_overwrites(store, tmp_path):
    other = tmp_path / "b.db"
    other.write_bytes(b"mine")
    with pytest.raises(StoreError, match="already exists"):
        store.backup(other)
    assert other.read_bytes() == b"mine"


def test_a_copy_that_fails_leaves_nothing(store, tmp_path):
    def broken(done: int, total: int) -> None:
        raise StoreError("the copy is not sound")

    with pytest.raises(StoreError, match="not sound"):
        store.backup(tmp_path / "b.db", broken)
    assert not list(tmp_path.glob("b.db*"))
    write(store, "run_a")  # and the store is as usable as before
    assert store.run(DEFAULT_TENANT, "run_a") is not None


def test_a_copy_that_lacks_something_is_not_put_in_its_place(store, tmp_path, monkeypatch):
    write(store, "run_a")
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **more: Emptied(*given, **more))
    with pytest.raises(StoreError, match=r"damaged \(records are missing\)"):
        store.backup(tmp_path / "b.db")
    assert not list(tmp_path.glob("b.db*"))


class Emptied(sqlite3.Connection):
    """A copy out of which everything falls before it is looked at."""

    def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        if sql.startswith("PRAGMA integrity_check"):
            super().execute("DELETE FROM runs")
        return super().execute(sql, *values)


def test_a_copy_takes_the_place_of_another_file_only_if_told_and_never_that_of_the_store(store, tmp_path):
    write(store, "run_a")
    other = tmp_path / "b.db"
    for name in ("b.db", "b.db-wal"):
        (tmp_path / name).write_bytes(b"mine")
    assert store.backup(other, replaces=True).runs == 1
    assert not (tmp_path / "b.db-wal").exists()  # of the file that was there: it would spoil the copy
    with pytest.raises(StoreError, match="is the store itself"):
        store.backup(store.path, replaces=True)
    assert store.run(DEFAULT_TENANT, "run_a") is not None


def test_a_copy_follows_a_link_and_never_replaces_a_pipe(store, tmp_path):
    write(store, "run_a")
    (tmp_path / "link.db").symlink_to(tmp_path / "b.db")
    for _ in range(2):
        assert store.backup(tmp_path / "link.db", replaces=True).runs == 1
    assert (tmp_path / "link.db").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="is not a regular file"):
        store.backup(tmp_path / "pipe", replaces=True)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.durability
@pytest.mark.skipif(sys.platform == "win32", reason="no lock goes with its process there")
def test_what_a_killed_process_left_is_removed_by_the_next_copy_and_what_a_living_one_makes_is_not(store, tmp_path):
    write(store, "run_a")
    script = """
        import sys, time
        from pathlib import Path
        from mulligan.store.sqlite import SqliteStore

        def told(done, total):
            print("copying", flush=True)
            time.sleep(60)

        SqliteStore(Path(sys.argv[1])).backup(Path(sys.argv[2]), told)
    """
    copies = tmp_path / "copies"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), str(store.path), str(copies / name)],
            stdout=subprocess.PIPE, text=True,
        )
        for name in ("killed.db", "living.db")
    ]  # fmt: skip
    killed = processes[0]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "copying\n"
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        for part in copies.glob(f"*{PARTIAL_INFIX}*"):
            os.utime(part, (1, 1))
        assert any(name.startswith("killed.db") for name in names(copies))

        assert store.backup(copies / "next.db").runs == 1

        assert not any(name.startswith("killed.db") for name in names(copies))
        assert any(name.startswith("living.db") for name in names(copies))
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_what_is_just_begun_is_left_alone(store, tmp_path):
    begun = tmp_path / f"c.db{PARTIAL_INFIX}7-abcdef"
    begun.touch()
    store.backup(tmp_path / "b.db")
    assert begun.exists()
    long_ago = begun.stat().st_mtime - MIN_STALE_SECONDS - 1
    os.utime(begun, (long_ago, long_ago))
    store.backup(tmp_path / "d.db")
    assert not begun.exists()
