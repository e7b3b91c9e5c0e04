"""A Store in a file: its rights, files that are not ours, several processes at once, and what earlier versions made.

What it has in common with every other store is in `tests/contract/test_store.py`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import msgspec
import pytest

from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DAY, DEFAULT_TENANT, PatternQuery, RecallQuery, RunQuery, journals_of
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, StoreError
from mulligan.core.records import Run, Step
from mulligan.store import sqlite
from mulligan.store.sqlite import MemoryStore, SqliteConnection, SqliteStore
from mulligan.store.tables import APPLICATION, MIGRATIONS, PRE_RELEASE

posix = pytest.mark.skipif(sys.platform == "win32", reason="rights of POSIX")


def batch(run: str, count: int = 1) -> list[RunStarted | StepEnded]:
    steps = [StepEnded(Step(run=run, seq=n, call=n, name="search")) for n in range(1, count + 1)]
    return [RunStarted(Run(id=run, started_at=1)), *steps]


@posix
def test_only_its_owner_can_read_the_file_and_its_folder(tmp_path):
    before = os.umask(0)
    try:
        store = SqliteStore(tmp_path / "new" / "a.db")
        store.append(DEFAULT_TENANT, batch("run_a"), "j", 1)
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    files = list((tmp_path / "new").iterdir())
    assert len(files) >= 2  # the write-ahead log holds arguments too
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    store.close()


def test_who_opens_a_store_need_not_wait_for_those_who_write(tmp_path, monkeypatch):
    monkeypatch.setattr("mulligan.store.sqlite.BUSY_MS", 50)
    SqliteStore(tmp_path / "a.db").append(DEFAULT_TENANT, batch("run_a"), "j", 1)
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")  # as long as it takes to forget something in millions of calls
        writer.execute("DELETE FROM steps")
        reader = SqliteStore(tmp_path / "a.db")
        assert [step.name for step in reader.run(DEFAULT_TENANT, "run_a").steps] == ["search"]
        with pytest.raises(StoreError, match="locked by another process"):
            reader.append(DEFAULT_TENANT, batch("run_b"), "j", 2)
        writer.execute("ROLLBACK")
    assert reader.append(DEFAULT_TENANT, batch("run_b"), "j", 2) > 0
    reader.close()


def test_reopening_keeps_everything(tmp_path):
    store = SqliteStore(tmp_path / "a.db")
    store.append(DEFAULT_TENANT, batch("run_a"), "j", 1)
    store.put(DEFAULT_TENANT, "session", "s", b"value")
    store.close()

    again = SqliteStore(tmp_path / "a.db")
    assert again.run(DEFAULT_TENANT, "run_a").steps[0].name == "search"
    assert again.get(DEFAULT_TENANT, "session", "s") == b"value"
    assert again.append(DEFAULT_TENANT, batch("run_b"), "j", 1) == 0  # the journal's offset is kept too
    again.close()


@pytest.mark.parametrize("count", [3, 50, 120])
def test_many_runs_that_another_process_began_are_ended_as_what_they_are(tmp_path, count):
    one, other = SqliteStore(tmp_path / "s.db"), SqliteStore(tmp_path / "s.db")
    begun = [Run(id=f"run_{number}", started_at=number) for number in range(count)]
    one.append(DEFAULT_TENANT, [RunStarted(run) for run in begun[1:]], "j", 1)
    ended = [msgspec.structs.replace(run, ended_at=run.started_at + 1, end_reason="finished") for run in begun]

    assert other.append(DEFAULT_TENANT, [RunEnded(run) for run in ended], "k", 1) == count
    assert one.stats(DEFAULT_TENANT, StatsQuery(now=DAY)).total.runs == {"success": count}
    assert [history.run for history in one.export(DEFAULT_TENANT)] == ended


@pytest.mark.parametrize("most", [999, 20])
def test_a_library_that_takes_few_values_a_statement_keeps_as_much(tmp_path, monkeypatch, most):
    connect = SqliteStore._connect

    def connecting(store: SqliteStore) -> SqliteConnection:
        connection = connect(store)
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, most)
        return connection

    monkeypatch.setattr(SqliteStore, "_connect", connecting)
    store = SqliteStore(tmp_path / "a.db")
    runs = [Run(id=f"run_{n}", started_at=n, ended_at=n, end_reason="finished") for n in range(700)]
    steps = [StepEnded(Step(run=run.id, seq=1, call=1, name="search", outcome="success")) for run in runs]
    store.append(DEFAULT_TENANT, [*steps, *map(RunEnded, runs)], "j", 1)
    health = store.health(DEFAULT_TENANT)
    assert (health.runs, health.steps) == (700, 700)
    store.close()


def test_a_closed_store_says_so(tmp_path):
    store = SqliteStore(tmp_path / "a.db")
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.runs(DEFAULT_TENANT, RunQuery())
    with pytest.raises(StoreError, match="closed"):
        store.append(DEFAULT_TENANT, batch("run_a"), "j", 1)


# Files that are not ours


@pytest.mark.parametrize("statements", [["CREATE TABLE t (x)"], ["PRAGMA user_version=3"], ["PRAGMA application_id=5"]])
def test_a_database_of_another_program_is_refused_and_left_as_it_is(tmp_path, statements):
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as other:
        for statement in statements:
            other.execute(statement)
    other.close()
    before = path.read_bytes()

    with pytest.raises(StoreError, match="another program"):
        SqliteStore(path)

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_a_newer_mulligan_is_told_and_left_byte_for_byte(tmp_path):
    path = tmp_path / "a.db"
    store = SqliteStore(path)
    store.append(DEFAULT_TENANT, batch("run_a"), "j", 1)
    store.close()
    with sqlite3.connect(path) as newer:
        newer.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
    newer.close()
    before = path.read_bytes()

    with pytest.raises(StoreError, match=r"newer mulligan .* pip install \."):
        SqliteStore(path)

    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database at all " * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_damaged_file_is_told_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "a.db"
    path.write_bytes(content)

    with pytest.raises(StoreError) as told:
        SqliteStore(path)

    assert "damaged" in str(told.value)
    assert "mv " in str(told.value)
    assert path.read_bytes() == content


def test_health_checks_a_whole_file_without_a_fault_once_in_some_minutes(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path / "mulligan.db")
    statements = []
    read_rows = store.read_rows
    monkeypatch.setattr(
        store, "read_rows", lambda *args, **more: statements.append(args[1]) or read_rows(*args, **more)
    )
    assert store.health(DEFAULT_TENANT).healthy
    assert store.health(DEFAULT_TENANT).healthy
    assert sum("quick_check" in statement for statement in statements) == 1
    store.close()


def test_a_file_damaged_further_in_is_told_when_it_is_read(tmp_path):
    path = tmp_path / "a.db"
    store = SqliteStore(path)
    store.append(DEFAULT_TENANT, batch("run_a", 500), "j", 501)
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))

    with pytest.raises(StoreError, match="damaged"):
        SqliteStore(path).runs(DEFAULT_TENANT, RunQuery())


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="Set MULLIGAN_HOME to a writable folder"):
        SqliteStore(tmp_path / "file" / "a.db")


def test_a_folder_in_the_place_of_the_file_is_told(tmp_path):
    with pytest.raises(StoreError, match="is a folder"):
        SqliteStore(tmp_path)


@posix
@pytest.mark.skipif(hasattr(os, "getuid") and os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_told(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="MULLIGAN_HOME"):
            SqliteStore(tmp_path / "a.db")
    finally:
        tmp_path.chmod(0o700)


def test_an_append_that_fails_leaves_nothing_behind_and_does_not_stop_the_next(tmp_path):
    store = SqliteStore(tmp_path / "a.db")
    impossible = StepEnded(Step(run="run_a", seq=2**70, call=1))
    with pytest.raises(OverflowError):
        store.append(DEFAULT_TENANT, [*batch("run_a"), impossible], "j", 3)
    assert store.health(DEFAULT_TENANT).steps == 0

    assert store.append(DEFAULT_TENANT, batch("run_a"), "j", 3) == 2
    store.close()


def test_a_full_disk_is_told_and_what_was_kept_stays(tmp_path):
    store = SqliteStore(tmp_path / "a.db")
    store.append(DEFAULT_TENANT, batch("run_a"), "j", 1)
    with store.writer as writer:
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count={pages}")

    with pytest.raises(StoreError, match="No disk space left"):
        store.append(DEFAULT_TENANT, batch("run_b", 2000), "j", 3000)

    with store.writer as writer:
        writer.execute("PRAGMA max_page_count=1000000")
    assert store.append(DEFAULT_TENANT, batch("run_b", 2000), "j", 3000) == 2001
    store.close()


# Several at once

APPENDING = """
    import sys
    from pathlib import Path
    from mulligan.core.events import RunEnded, RunStarted, StepEnded
    from mulligan.core.records import Run, Step
    from mulligan.store.sqlite import SqliteStore
    path, run = Path(sys.argv[1]), sys.argv[2]
    store = SqliteStore(path)
    for n in range(1, 41):
        store.append("local", [RunStarted(Run(id=run)), StepEnded(Step(run=run, seq=n, call=n))], run, n)
    store.close()
"""


@pytest.mark.durability
def test_several_processes_make_and_fill_one_file_at_once(tmp_path):
    code = textwrap.dedent(APPENDING)
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "a.db"), f"run_{n}"], stderr=subprocess.PIPE)
        for n in range(4)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()

    store = SqliteStore(tmp_path / "a.db")
    assert (store.health(DEFAULT_TENANT).runs, store.health(DEFAULT_TENANT).steps) == (4, 160)
    store.close()


COMES_AND_GOES = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM runs").fetchall()
connection.close()
"""


@pytest.mark.durability
def test_a_second_store_on_the_same_file_does_not_give_up_the_locks_of_the_first(tmp_path):
    # POSIX: closing any handle on a file lets go of all locks this process holds on it. A process that came and went
    # would then believe to have been the last, and take the log away that the first store reads and writes.
    path, log = tmp_path / "s.db", tmp_path / "s.db-wal"
    with contextlib.closing(SqliteStore(path)) as one:
        one.append(DEFAULT_TENANT, batch("a"), "j", 1)
        SqliteStore(path).close()
        subprocess.run([sys.executable, "-c", COMES_AND_GOES, str(path)], check=True, timeout=60)
        assert log.exists()
        one.append(DEFAULT_TENANT, batch("b"), "j", 2)
        assert one.health(DEFAULT_TENANT).runs == 2


def test_a_store_behind_a_link_to_nowhere_is_made_for_its_owner_alone(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    SqliteStore(tmp_path / "link.db").close()
    assert (tmp_path / "real.db").stat().st_mode & 0o777 == 0o600


@posix
def test_threads_that_have_ended_leave_no_open_file(tmp_path):
    store = SqliteStore(tmp_path / "a.db")
    store.append(DEFAULT_TENANT, batch("run_a"), "j", 1)

    def read_in_new_threads(count: int) -> int:
        for _ in range(count):
            thread = threading.Thread(target=store.run, args=(DEFAULT_TENANT, "run_a"))
            thread.start()
            thread.join()
        return len(os.listdir("/dev/fd"))

    open_files = read_in_new_threads(1)
    assert read_in_new_threads(20) < open_files + 10
    store.close()


def test_threads_read_and_write_at_once(tmp_path):
    store = SqliteStore(tmp_path / "a.db")
    faults: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for n in range(1, 31):
                event = StepEnded(Step(run=f"run_{number}", seq=n, call=n))
                store.append(DEFAULT_TENANT, [RunStarted(Run(id=f"run_{number}")), event], f"j{number}", n)
                store.runs(DEFAULT_TENANT, RunQuery())
                store.recall(DEFAULT_TENANT, RecallQuery(tool="search", fingerprint="f"))
        except BaseException as fault:  # noqa: BLE001 - told to the test below
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert faults == []
    assert store.health(DEFAULT_TENANT).steps == 120
    store.close()


@pytest.mark.durability
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_leaves_both_sides_with_a_store_that_works(tmp_path):
    # In a process of its own: a test runner has threads that a fork would lose.
    code = textwrap.dedent("""
        import os, sys
        from pathlib import Path
        from mulligan.core.events import RunStarted
        from mulligan.core.records import Run
        from mulligan.store.sqlite import SqliteStore
        store = SqliteStore(Path(sys.argv[1]))
        store.append("local", [RunStarted(Run(id="run_before"))], "j", 1)
        store.find("local", "run_")
        child = os.fork()
        if child == 0:
            ready = sys.stdin.readline()  # the parent has closed its side by then
            store.append("local", [RunStarted(Run(id="run_child"))], "c", 1)
            assert len(store.find("local", "run_")) == 3, store.find("local", "run_")
            os._exit(0)
        store.append("local", [RunStarted(Run(id="run_parent"))], "j", 2)
        store.close()
        print("closed", flush=True)
        _, status = os.waitpid(child, 0)
        sys.exit(os.waitstatus_to_exitcode(status))
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "a.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "closed\n"
    _, errors = process.communicate("go\n", timeout=60)
    assert process.returncode == 0, errors

    store = SqliteStore(tmp_path / "a.db")
    assert {run.id for run in store.find(DEFAULT_TENANT, "run_")} == {"run_before", "run_parent", "run_child"}
    assert store.health(DEFAULT_TENANT).healthy
    store.close()


def test_a_fork_waits_for_a_store_that_is_being_opened(tmp_path, monkeypatch):
    """A connection that a child inherits holds locks that it does not have: the file would be damaged."""
    opening, go_on, forked = threading.Event(), threading.Event(), threading.Event()
    whole = sqlite.prepare_database

    def slowly(*args):
        whole(*args)
        opening.set()
        assert go_on.wait(10)

    monkeypatch.setattr(sqlite, "prepare_database", slowly)
    made: list[SqliteStore] = []
    opener = threading.Thread(target=lambda: made.append(SqliteStore(tmp_path / "a.db")))
    opener.start()
    assert opening.wait(10)

    def fork() -> None:
        after = sqlite.before_fork()
        try:
            (store,) = (each for each in sqlite._stores if each.path == tmp_path / "a.db")
            assert store.writer._connection is None
            forked.set()
        finally:
            after()

    forker = threading.Thread(target=fork)
    forker.start()
    assert not forked.wait(0.1)
    go_on.set()
    opener.join(10)
    forker.join(10)
    assert forked.is_set()
    assert made[0].health(DEFAULT_TENANT).healthy
    made[0].close()


def test_nobody_opens_a_further_connection_while_a_process_forks(tmp_path):
    store = SqliteStore(tmp_path / "a.db")
    after = sqlite.before_fork()
    reader = threading.Thread(target=store.health, args=(DEFAULT_TENANT,))
    reader.start()
    reader.join(0.1)
    open_files = [each for each in store._readers if each._connection is not None]
    after()
    reader.join(10)
    assert open_files == []
    assert not reader.is_alive()
    store.close()


# What a question costs


def failures(count: int, often: int = 20) -> list[RunStarted | StepEnded]:
    """A week in which some patterns are met thirty times a day and all others once."""
    steps: list[Step] = []
    for number in range(count):
        for day in range(7):
            failure = Failure.of(Kind("tool", "timeout"), "slow", fingerprint=f"f-{number}")
            for _ in range(30 if number < often else 1):
                seq = len(steps) + 1
                steps.append(
                    Step(
                        run="run_a",
                        seq=seq,
                        call=seq,
                        name="search",
                        started_at=day * DAY,
                        outcome="failure",
                        failure=failure,
                    )
                )
    return [RunStarted(Run(id="run_a", started_at=1)), *map(StepEnded, steps)]


@pytest.mark.slow
def test_the_most_frequent_patterns_cost_the_same_however_many_others_there_are(tmp_path):
    """Counted in instructions of the database's machine, so that no clock is asked."""
    spent = []
    for count in (40, 400):
        store = SqliteStore(tmp_path / f"{count}.db")
        store.append(DEFAULT_TENANT, failures(count), "j", 1)
        instructions: list[None] = []
        with store.read_connection(DEFAULT_TENANT) as connection:
            connection.set_progress_handler(lambda seen=instructions: seen.append(None), 10)
        told = store.patterns(DEFAULT_TENANT, PatternQuery(since=DAY, limit=10))
        assert [each.occurrences for each in told] == [180] * 10
        spent.append(len(instructions))
        store.close()
    assert spent[1] < 1.2 * spent[0]


# Stores of other schema versions

ADDS_A_COLUMN = (
    "ALTER TABLE runs ADD COLUMN weekday TEXT NOT NULL DEFAULT ''",
    "UPDATE runs SET weekday = 'monday' WHERE failure_free = 0",
)


def test_a_store_of_an_earlier_schema_is_migrated_when_it_is_opened(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    with contextlib.closing(SqliteStore(path)) as store:
        store.append(DEFAULT_TENANT, batch("run_a"), "j", 4)
    monkeypatch.setattr("mulligan.store.sqlite.MIGRATIONS", (*MIGRATIONS, ADDS_A_COLUMN))
    steps: list[tuple[int, int]] = []

    with contextlib.closing(SqliteStore(path, progress=lambda number, total: steps.append((number, total)))) as store:
        assert steps == [(1, 2), (2, 2)]
        assert [history.run.id for history in store.runs(DEFAULT_TENANT, RunQuery())] == ["run_a"]
        assert store.append(DEFAULT_TENANT, batch("run_b"), "j", 4) == 0  # the journal's position was retained
        assert store.append(DEFAULT_TENANT, batch("run_b"), "j", 5) == 2
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
        assert connection.execute("SELECT weekday FROM runs WHERE id = 'run_b'").fetchone() == ("",)


def test_a_migration_that_fails_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    SqliteStore(path).close()
    monkeypatch.setattr("mulligan.store.sqlite.MIGRATIONS", (*MIGRATIONS, (*ADDS_A_COLUMN, "DROP TABLE nothing")))
    with pytest.raises(StoreError, match="nothing"):
        SqliteStore(path)
    monkeypatch.undo()
    SqliteStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert "weekday" not in [name for _, name, *_ in connection.execute("PRAGMA table_info(runs)")]


@pytest.mark.parametrize("mark", PRE_RELEASE)
def test_a_store_of_a_pre_release_version_is_refused_and_left_alone(tmp_path, mark):
    path = tmp_path / "a.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"PRAGMA application_id={mark}; PRAGMA user_version=11; CREATE TABLE runs (id TEXT)")
    journals_of(path).mkdir()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="written by a pre-release version; start a new store") as refused:
        SqliteStore(path)
    assert path.read_bytes() == before
    for name in (path, journals_of(path)):  # a new store must not recover journals with other fields
        assert f"mv '{name}' '{name}.old'" in str(refused.value)


def test_the_file_is_marked_as_ours(tmp_path):
    store = SqliteStore(tmp_path / "a.db")
    store.close()
    with sqlite3.connect(tmp_path / "a.db") as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    connection.close()


def test_who_makes_a_store_in_the_same_moment_as_another_is_not_turned_away(tmp_path, monkeypatch):
    class Hasty(SqliteConnection):
        """Meets what SQLite says where two connections turn a new file to WAL at once: it does not wait then."""

        turned_away = 0

        def execute(self, sql, *values):
            if "journal_mode=WAL" in sql and Hasty.turned_away < 3:
                Hasty.turned_away += 1
                raise sqlite3.OperationalError("database is locked")
            return super().execute(sql, *values)

    monkeypatch.setattr("mulligan.store.sqlite.SqliteConnection", Hasty)
    with contextlib.closing(SqliteStore(tmp_path / "mulligan.db")) as store:
        store.append(DEFAULT_TENANT, batch("run_a"), "j", 1)
        assert [history.run.id for history in store.runs(DEFAULT_TENANT, RunQuery())] == ["run_a"]
    assert Hasty.turned_away == 3


def test_memory_store_is_shared_by_threads():
    store = MemoryStore()

    def write(number: int) -> None:
        for offset in range(1, 21):
            run = Run(id=f"run_{number}_{offset}", agent="helper", started_at=offset)
            store.append(DEFAULT_TENANT, [RunStarted(run)], f"journal_{number}", offset)
            assert store.run(DEFAULT_TENANT, run.id) is not None

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    store.close()
    assert store.health(DEFAULT_TENANT).runs == 80


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_memory_store_is_copied_by_a_fork():
    store = MemoryStore()
    store.append(DEFAULT_TENANT, [RunStarted(Run(id="run_a"))], "journal", 1)
    child = os.fork()
    if not child:
        store.append(DEFAULT_TENANT, [RunStarted(Run(id="run_b"))], "journal", 2)
        os._exit(store.health(DEFAULT_TENANT).runs)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    assert store.health(DEFAULT_TENANT).runs == 1


def test_memory_stores_have_separate_records():
    first, second = MemoryStore(), MemoryStore()
    first.put(DEFAULT_TENANT, "kind", "key", b"value")
    assert second.get(DEFAULT_TENANT, "kind", "key") is None
    with pytest.raises(StoreError, match="cannot be backed up"):
        first.backup(Path("copy.db"))


@pytest.mark.parametrize("can_copy", [True, False], ids=["copied", "created"])
def test_memory_store_has_the_tables_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_copy: bool) -> None:
    def read_schema(store: SqliteStore) -> list[object]:
        with store.read_connection(DEFAULT_TENANT) as connection:
            pragmas = [connection.execute(f"PRAGMA {name}").fetchone() for name in ("user_version", "auto_vacuum")]
            return [*pragmas, *connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name")]

    def raise_missing(connection: SqliteConnection) -> None:
        raise AttributeError("deserialize")  # as in builds of SQLite without it

    if not can_copy:
        monkeypatch.setattr(SqliteConnection, "deserialize", property(raise_missing))
    with contextlib.closing(SqliteStore(tmp_path / "mulligan.db")) as file:
        assert read_schema(MemoryStore()) == read_schema(file)
