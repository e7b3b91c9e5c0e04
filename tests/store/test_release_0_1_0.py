"""A store, journals, settings and names of 0.1.0: the current version reads all of them, and migrates interrupted.

`tests/release_0_1_0` was built by the code of 0.1.0 (`build.py` there). `NEXT_MIGRATION` stands for a migration that
a later version brings. It follows the recipe of CONTRIBUTING.md, "Change the schema", and so must its successors.
"""

from __future__ import annotations

import contextlib
import functools
import json
import lzma
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import postgres
import pytest
import release_answers
from recounting import rebuild

from mulligan import settings
from mulligan.contract.store import DEFAULT_TENANT, RunQuery, Store, journals_of
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, MulliganError, NewerStoreError, Remedy
from mulligan.core.records import Run, Step, encode
from mulligan.record.journal_import import recover_journals
from mulligan.recover.policy import REMOVED_SETTINGS
from mulligan.store import tables
from mulligan.store.rows import STEP, step_row
from mulligan.store.sqlite import SqliteStore
from mulligan.store.urls import local_path, open_endpoint, open_store

FOLDER = Path(__file__).parents[1] / "release_0_1_0"
TENANTS = ("local", "acme", "globex")
RELEASED_SCHEMA = 1
SCHEMA = len(tables.MIGRATIONS)
TIMEOUT_SECONDS = 60
DATABASES = [
    pytest.param("sqlite", marks=pytest.mark.durability),
    pytest.param("postgres", marks=pytest.mark.postgres),
]


@functools.cache
def read_answers() -> dict[str, Any]:
    """Return what 0.1.0 answered after it had recovered the journals."""
    return dict(json.loads(lzma.decompress((FOLDER / "answers.json.xz").read_bytes())))


def unpack_journals(folder: Path) -> Path:
    with tarfile.open(FOLDER / "journals.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def unpack_file(folder: Path) -> str:
    path = folder / "store.db"
    path.write_bytes(lzma.decompress((FOLDER / "store.db.xz").read_bytes()))
    return str(path)


def unpack_database(url: str) -> str:
    import psycopg

    from mulligan.store.postgres.postgres_tables import distribute_tables, enable_row_security, list_tables

    with psycopg.connect(url) as connection:
        connection.execute(lzma.decompress((FOLDER / "store.sql.xz").read_bytes()))
        if postgres.CITUS:  # which distributes no table that has rows and row security
            connection.execute("SET LOCAL search_path = public")
            connection.execute("SET LOCAL citus.multi_shard_modify_mode = 'sequential'")
            for name in list_tables(connection):
                connection.execute(f'ALTER TABLE "{name}" NO FORCE ROW LEVEL SECURITY'.encode())
            distribute_tables(connection)
            enable_row_security(connection)
    return url


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a copy of the store of 0.1.0, without the records in the journals."""
    if request.param == "sqlite":
        return unpack_file(tmp_path)
    return unpack_database(request.getfixturevalue("postgres_url"))


@pytest.fixture
def frozen_time(monkeypatch: pytest.MonkeyPatch) -> int:
    now = int(read_answers()["now"])
    release_answers.freeze_time(monkeypatch, now)
    return now


def ask_tenants(store: Store) -> dict[str, Any]:
    """Ask about all tenants. Failures of runs count as unrecovered since 0.2.0, in the counters of 0.1.0 not."""
    now = read_answers()["now"]
    answers = {tenant: release_answers.ask_store(store, tenant, now) for tenant in TENANTS}
    for answer in answers.values():
        for part in (answer["stats"]["total"], *answer["stats"].get("parts", {}).values()):
            part.get("kinds", {}).pop("orchestration/uncaught_exception", None)
    return answers


def build_run(id: str) -> list[Any]:
    run = Run(id=id, agent="later", started_at=read_answers()["now"])
    step = Step(run=id, seq=1, call=1, name="search", started_at=run.started_at)
    return [RunStarted(run), StepEnded(step), RunEnded(run)]


# Answers

CHANGED_ANSWERS: dict[str, str] = {
    "stats --since all --by model": "Models that requested a failed tool call are listed, too.",
    "stats --since all --by time": "By kind, failures of runs themselves are unrecovered.",
}
"""By command, route, or tenant and question: why the current answer differs from that of 0.1.0. It is not compared."""
CHANGED_FIELDS = dict.fromkeys(
    ("showable", "hidden_reason"),
    "A success of a model that was told a fix is no evidence. Votes of 0.1.0 do not say so: the first two count.",
)
"""By field of any answer: why it differs. The other fields of the answer are compared."""


def check_answers(answers: dict[str, Any], released: dict[str, Any]) -> None:
    """Compare answers with those of 0.1.0. Fields that a later version added do not count."""
    for question, answer in released.items():
        if question not in CHANGED_ANSWERS:
            assert select_fields(answers[question], answer) == select_fields(answer, answer), question


def select_fields(value: Any, released: Any) -> Any:
    """Return the value without the fields that 0.1.0 did not have, and without those that have changed."""
    if isinstance(value, dict) and isinstance(released, dict):
        names = [name for name in released if name in value and name not in CHANGED_FIELDS]
        return {name: select_fields(value[name], released[name]) for name in names}
    if isinstance(value, list) and isinstance(released, list) and len(value) == len(released):
        return [select_fields(*pair) for pair in zip(value, released, strict=True)]
    return value


def check_store(store: Store) -> None:
    for tenant, released in read_answers()["tenants"].items():
        answers = release_answers.ask_store(store, tenant, read_answers()["now"])
        check_answers({f"{tenant} {name}": answer for name, answer in answers.items()},
                      {f"{tenant} {name}": answer for name, answer in released.items()})  # fmt: skip


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_the_store_and_journals_of_0_1_0_give_the_answers_of_0_1_0(database, frozen_time, tmp_path, monkeypatch):
    with contextlib.closing(open_store(database)) as store:
        assert recover_journals(store, DEFAULT_TENANT, unpack_journals(tmp_path / "journals")) > 0
        check_store(store)
        # A command leaves its connections to the end of its process.
        monkeypatch.setattr("mulligan.cli.options.open_store", lambda *arguments, **options: store)
        released = read_answers()["commands"]
        check_answers({words: release_answers.ask_command(words, database) for words in released}, released)


def test_a_torn_journal_of_0_1_0_is_recovered_up_to_the_tear(frozen_time, tmp_path):
    path = Path(unpack_file(tmp_path))
    journals = unpack_journals(journals_of(path))
    for journal in journals.iterdir():
        data = journal.read_bytes().rstrip(b"\0")
        journal.write_bytes(data[: len(data) - 100])
    (run_count,) = {len(read_answers()["tenants"]["local"]["runs"])}
    with contextlib.closing(SqliteStore(path)) as store:
        recover_journals(store, DEFAULT_TENANT, journals)
        assert len(store.runs(DEFAULT_TENANT, RunQuery(limit=500))) == run_count


@pytest.mark.contracts
def test_the_api_gives_the_answers_of_0_1_0(frozen_time, tmp_path):
    from servers import served

    path = Path(unpack_file(tmp_path))
    store = SqliteStore(path)
    recover_journals(store, DEFAULT_TENANT, unpack_journals(journals_of(path)))
    with served(tmp_path, store=store, clock=lambda: frozen_time) as running:
        person = running.person()
        check_answers(release_answers.ask_server(lambda route: person.get(route).json), read_answers()["routes"])


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_the_store_of_0_1_0_takes_new_runs_and_counts_as_0_1_0_did(database, tmp_path):
    with contextlib.closing(open_store(database)) as store:
        counted = ask_tenants(store)
        for tenant in TENANTS:
            rebuild(store, tenant)
        assert ask_tenants(store) == counted
        assert store.append("acme", build_run("run_later"), "later", 3) > 0
        assert store.run("acme", "run_later") is not None


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_runs_of_0_1_0_are_filtered_and_sorted_by_facts_that_it_did_not_store(database):
    missing_sql = "SELECT count(*) FROM runs WHERE facts_state = 0"
    with contextlib.closing(open_store(database)) as store:
        histories = list(store.export("acme"))
        ((missing,),) = read_rows(database, missing_sql)
        query = RunQuery(order="attempts", min_facts={"tool_failures": 1}, limit=1000)
        expected = [
            history
            for history in sorted(histories, key=query.position_of, reverse=True)
            if any(step.type == "tool" and step.has_failed for step in history.steps)
        ]
        assert store.runs("acme", query) == expected != []
        assert read_rows(database, missing_sql) == [(missing - len(histories),)]
        # A run that goes on has its facts, too.
        store.append(
            "acme", [StepEnded(Step(run=expected[-1].run.id, seq=900 + n, call=900 + n)) for n in range(99)], "j", 1
        )
        assert store.runs("acme", RunQuery(order="attempts"))[0].run.id == expected[-1].run.id


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_a_filter_finds_a_run_that_an_open_process_of_0_1_0_continues(database):
    """That process stores attempts and the end of a run without its facts. The first question finds them."""
    run = Run(id="run_open", started_at=1000)
    slow = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow")
    failed = Step(run="run_open", seq=1, call=1, name="search", outcome="failure", failure=slow)
    ended = msgspec.structs.replace(run, ended_at=9000, end_reason="finished")
    with contextlib.closing(open_store(database)) as store:
        store.append("new", [RunStarted(run)], "journal", 1)

        def find(**minima: float) -> list[str]:
            return [history.run.id for history in store.runs("new", RunQuery(min_facts=minima))]

        assert find(tool_failures=1) == []
        with store.write_transaction("new") as writer:
            writer.put(STEP, [step_row("new", failed)])
        assert find(tool_failures=1) == ["run_open"]
        with store.write_transaction("new") as writer:
            writer.execute("UPDATE runs SET body = ? WHERE tenant = ? AND id = ?", (encode(ended), "new", "run_open"))
        assert find(duration=8) == ["run_open"]
        assert find(tool_failures=2) == []


# Settings and names

REPLACED_NAMES: dict[str, tuple[Callable[[], Any], str]] = {
    f"settings: {name}": (lambda name=name, value=value: settings.check_overrides({name: value}), words)
    for name, value, words in (
        ("retry_budget_burst", 5, "Use retry_tokens"),
        ("retry_budget_ratio", 0.2, "Use retry_tokens"),
        ("circuit_breaker", False, "Use down_after = 0"),
    )
}
"""By name of 0.1.0 that is gone: a use of it, and the words of the error that name its replacement."""


IGNORED_VARIABLES = {f"environment: MULLIGAN_{name.upper()}" for name in REMOVED_SETTINGS}
"""Variables of 0.1.0 that are gone: a warning names what replaces them (`tests/test_settings.py`)."""


def test_a_settings_file_of_0_1_0_has_the_same_effect(types, monkeypatch):
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "mulligan"
    config.mkdir(parents=True)
    shutil.copy(FOLDER / "mulligan.toml", config)
    code, out, _ = types("settings", "--json")
    document, released = json.loads(out), dict(read_answers()["settings"])
    for answer in (document, released):
        del answer["home"], answer["origins"]  # paths of the machine
        for name in REMOVED_SETTINGS:  # ignored, with a warning
            answer.pop(name, None)
    assert code == 0
    assert select_fields(document, released) == released

    loaded = settings.load_settings()
    assert loaded.kinds["tool/out_of_stock"]["hint"] == "Choose another article."
    assert [rule["kind"] for rule in loaded.rules] == ["tool/out_of_stock"]
    assert loaded.prices["small-1"]["cached_input"] == 0.25
    assert loaded.tools["shop.pay"]["privileged"] == ["amount"]
    assert loaded.policy.attempts == 2


@pytest.mark.contracts
def test_every_public_name_of_0_1_0_exists_or_names_its_replacement(tmp_path):
    from servers import served

    with served(tmp_path) as running:
        openapi = running.anybody().get("/openapi.json").json
    names = {**release_answers.describe_interface(), "routes": release_answers.list_routes(openapi)}
    released = json.loads((FOLDER / "interface.json").read_text())
    removed = {f"{area}: {name}" for area in released for name in released[area] if name not in names[area]}
    assert removed == {*REPLACED_NAMES, *IGNORED_VARIABLES}
    for use, words in REPLACED_NAMES.values():
        with pytest.raises(MulliganError, match=words):
            use()


# Migrations

NEXT_MIGRATION = (
    "ALTER TABLE runs ADD COLUMN label TEXT NOT NULL DEFAULT ''",
    "UPDATE runs SET label = agent",
    "CREATE INDEX runs_by_label ON runs (tenant, label, started_at, id) WHERE label <> ''",
    "ALTER TABLE steps ADD COLUMN label TEXT NOT NULL DEFAULT ''",
    "CREATE TABLE labels (tenant TEXT NOT NULL, label TEXT NOT NULL, runs BIGINT NOT NULL, "
    "PRIMARY KEY (tenant, label))",
    "INSERT INTO labels (tenant, label, runs) SELECT tenant, agent, count(*) FROM runs GROUP BY tenant, agent",
)
"""What a later version may need: columns, one with a backfill, an index, and a table with rows."""
UNKNOWN_LABELS_SQL = "SELECT id FROM runs WHERE label <> agent ORDER BY id"
RENAMING_MIGRATION = ("ALTER TABLE runs RENAME COLUMN principal TO author",)
"""A migration after which the statements of earlier versions fail."""


def list_new_tables(migration: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(re.findall(r"CREATE TABLE (\w+)", "\n".join(migration)))


def use_schema(monkeypatch: pytest.MonkeyPatch, migration: tuple[str, ...]) -> None:
    """Let this process be the next version."""
    from mulligan.store import copy, sqlite
    from mulligan.store.postgres import postgres_copy, postgres_tables

    migrations, table_names = (*tables.MIGRATIONS, migration), (*tables.TABLE_NAMES, *list_new_tables(migration))
    for module in (tables, sqlite, copy, postgres_tables, postgres_copy):
        monkeypatch.setattr(module, "MIGRATIONS", migrations)
    for module in (tables, postgres_tables):
        monkeypatch.setattr(module, "TABLE_NAMES", table_names)
    for cached in (copy.load_tables, postgres_tables.column_type_ids):
        monkeypatch.setattr(f"{cached.__module__}.{cached.__name__}", functools.cache(cached.__wrapped__))


def build_program(program: str, migration: tuple[str, ...] | None) -> str:
    """Return a program of the current version, or of a version with one migration more."""
    lines = ["from mulligan.store import tables"]
    if migration is not None:
        lines += [f"tables.MIGRATIONS += ({migration!r},)", f"tables.TABLE_NAMES += {list_new_tables(migration)!r}"]
    return "\n".join([*lines, textwrap.dedent(program)])


class Program:
    """A process that prints a line for each thing it did, and ends when its input is closed."""

    def __init__(self, program: str, *arguments: str, migration: tuple[str, ...] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", build_program(program, migration), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def read_lines(self, count: int) -> list[str]:
        assert self.process.stdout is not None
        return [self.process.stdout.readline().rstrip() for _ in range(count)]

    def answer(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> tuple[list[str], str]:
        """End it. Return the remaining lines and what it wrote to stderr."""
        with self.process:
            try:
                out, err = self.process.communicate(timeout=TIMEOUT_SECONDS)
            finally:
                self.process.kill()
        return out.split(), err


KILLED_PROGRAM = """
    import itertools, os, signal, sqlite3, sys
    from mulligan.store.urls import open_store

    def die_at(number):
        count = itertools.count(1)
        def step(*_):
            if next(count) == number:
                os.kill(os.getpid(), signal.SIGKILL)
        if "://" in sys.argv[1]:
            import psycopg
            execute = psycopg.Connection.execute
            psycopg.Connection.execute = lambda *words, **options: (step(), execute(*words, **options))[1]
        else:
            connect = sqlite3.connect
            def connect_traced(*words, **options):
                connection = connect(*words, **options)
                connection.set_trace_callback(step)
                return connection
            sqlite3.connect = connect_traced

    for number in itertools.count(1):
        child = os.fork()
        if not child:
            die_at(number)
            open_store(sys.argv[1]).close()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(status, flush=True)
        if not status or not sys.stdin.readline():
            break
"""
"""Migrates again and again, and is killed before the first, second, ... statement, until no statement is left."""


@pytest.mark.parametrize("database", DATABASES, indirect=True)
def test_a_migration_killed_at_any_statement_leaves_the_store_whole(database, frozen_time, tmp_path, monkeypatch):
    with contextlib.closing(open_store(database)) as store:
        before = ask_tenants(store)
    program = Program(KILLED_PROGRAM, database, migration=NEXT_MIGRATION)
    statements = 0
    while (status := program.read_lines(1)[0]) != "0":
        assert status == str(signal.SIGKILL.value), program.close()
        statements += 1
        with contextlib.suppress(NewerStoreError), contextlib.closing(open_store(database)) as store:
            # Otherwise it was killed after the commit.
            assert release_answers.ask_store(store, "globex", frozen_time) == before["globex"]
        program.answer()
    program.close()
    assert statements > len(NEXT_MIGRATION)

    use_schema(monkeypatch, NEXT_MIGRATION)
    with contextlib.closing(open_store(database)) as store:
        assert ask_tenants(store) == before
        assert read_rows(database, UNKNOWN_LABELS_SQL) == []
        recover_journals(store, DEFAULT_TENANT, unpack_journals(tmp_path / "journals"))
        check_store(store)


@pytest.mark.parametrize("database", DATABASES, indirect=True)
def test_the_migrations_since_0_1_0_killed_at_any_statement_leave_its_store_whole(database, frozen_time, tmp_path):
    program = Program(KILLED_PROGRAM, database)
    versions: list[int] = []
    while (status := program.read_lines(1)[0]) != "0":
        assert status == str(signal.SIGKILL.value), program.close()
        versions.append(read_schema(database))
        program.answer()
    program.close()
    assert set(versions) <= {RELEASED_SCHEMA, SCHEMA}
    assert versions.count(RELEASED_SCHEMA) > sum(map(len, tables.MIGRATIONS[RELEASED_SCHEMA:]))
    assert read_schema(database) == SCHEMA

    assert {details for (details,) in read_rows(database, "SELECT details FROM votes")} == {""}
    with contextlib.closing(open_store(database)) as store:
        recover_journals(store, DEFAULT_TENANT, unpack_journals(tmp_path / "journals"))
        check_store(store)


@pytest.mark.parametrize("database", DATABASES, indirect=True)
def test_a_migrated_store_of_0_1_0_is_copied_with_its_new_columns(request, database, tmp_path, monkeypatch):
    from mulligan.store.copy import StoreCopy

    use_schema(monkeypatch, NEXT_MIGRATION)
    open_store(database).close()
    with contextlib.ExitStack() as stack:
        destination = str(tmp_path / "copy.db")
        if "://" in database:
            destination = stack.enter_context(postgres.fresh_database(request.getfixturevalue("postgres_server")))
        source, copy = (
            stack.enter_context(contextlib.closing(open_endpoint(url, url == database)))
            for url in (database, destination)
        )
        assert StoreCopy(source, copy).copy().differences == ()
        labels_sql = "SELECT tenant, label, runs FROM labels ORDER BY tenant, label"
        assert read_rows(destination, labels_sql) == read_rows(database, labels_sql) != []
        assert read_rows(destination, UNKNOWN_LABELS_SQL) == []


def read_rows(database: str, sql: str) -> list[tuple[Any, ...]]:
    """Read rows of all tenants, or change some."""
    if "://" not in database:
        with contextlib.closing(sqlite3.connect(database)) as connection, connection:
            return connection.execute(sql).fetchall()
    import psycopg

    from mulligan.store.postgres.postgres_tables import set_all_tenants

    with psycopg.connect(database, options="-c citus.propagate_set_commands=local") as connection:
        set_all_tenants(connection)
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


WRITING_PROGRAM = """
    import select, sys, time
    import mulligan
    mulligan.configure(store=sys.argv[1], agent=sys.argv[2], attempts=1)

    @mulligan.tool(effects="none")
    def count(number):
        if number % 5 == 0:
            raise ValueError("number must not be divisible by 5")
        return number

    number = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        number += 1
        with mulligan.run() as run:
            try:
                count(number)
            except ValueError:
                pass
        print(run.id, flush=True)
        time.sleep(0.01)
    print(mulligan.flush(3), flush=True)
"""
"""Records runs and prints the id of each that is recorded; in the end, whether all are stored."""


@pytest.mark.parametrize("database", DATABASES, indirect=True)
def test_two_versions_write_to_one_store_during_and_after_a_migration(database, tmp_path, monkeypatch):
    earlier = Program(WRITING_PROGRAM, database, "earlier")
    earlier_ids = earlier.read_lines(50)
    later = Program(WRITING_PROGRAM, database, "later", migration=NEXT_MIGRATION)
    ids = later.read_lines(50)
    wait_for_schema(database, SCHEMA + 1)
    restarted = Program(WRITING_PROGRAM, database, "restarted")
    ids += restarted.read_lines(10)
    (*lines, flushed), err = earlier.close()
    assert flushed == "True", err
    earlier_ids += lines
    (*lines, flushed), err = later.close()
    assert flushed == "True", err
    ids += lines
    (*lines, flushed), err = restarted.close()
    assert flushed == "False"
    assert "written by a newer mulligan" in err
    ids += lines

    use_schema(monkeypatch, NEXT_MIGRATION)
    with contextlib.closing(open_store(database)) as store:
        recover_journals(store, DEFAULT_TENANT, find_journals(database))
        assert find_missing(store, [*ids, *earlier_ids]) == []
        counted = ask_tenants(store)
        rebuild(store, DEFAULT_TENANT)
        assert ask_tenants(store) == counted
    # The earlier version does not write the new column: its rows have the default, which means "not computed".
    assert (earlier_ids[-1],) in read_rows(database, UNKNOWN_LABELS_SQL)


@pytest.mark.parametrize("database", DATABASES, indirect=True)
def test_records_wait_in_the_journal_if_a_migration_excludes_earlier_versions(database, monkeypatch):
    earlier = Program(WRITING_PROGRAM, database, "earlier")
    ids = earlier.read_lines(20)
    migrating = Program("from mulligan.cli import main; main()", "migrate", "--store", database,
                        migration=RENAMING_MIGRATION)  # fmt: skip
    assert migrating.close()[0][0] == "Migrated"
    ids += earlier.read_lines(50)
    (*lines, flushed), err = earlier.close()
    assert flushed == "False"
    assert "has other tables than this mulligan expects" in err

    # The statements of the next version would use the new name. Here the column gets its name back.
    read_rows(database, "ALTER TABLE runs RENAME COLUMN author TO principal")
    use_schema(monkeypatch, RENAMING_MIGRATION)
    with contextlib.closing(open_store(database)) as store:
        recover_journals(store, DEFAULT_TENANT, find_journals(database))
        assert find_missing(store, [*ids, *lines]) == []


def read_schema(database: str) -> int:
    sql = "SELECT version FROM schema_version" if "://" in database else "PRAGMA user_version"
    ((version,),) = read_rows(database, sql)
    return int(version)


def wait_for_schema(database: str, version: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while read_schema(database) != version:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def find_journals(database: str) -> Path:
    return journals_of(local_path(database, Path(os.environ["MULLIGAN_HOME"])))


def find_missing(store: Store, ids: list[str]) -> list[str]:
    """Return the runs that are not stored with their one call."""
    return [id for id in ids if (history := store.run(DEFAULT_TENANT, id)) is None or len(history.steps) != 1]
