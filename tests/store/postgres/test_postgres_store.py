"""What a store in PostgreSQL does besides: several writers, days, a replica, a server that comes and goes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import postgres
import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")

import psycopg
from recounting import rebuild

from mulligan.contract import counters
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import (
    DAY,
    DEFAULT_TENANT,
    Batch,
    FixQuery,
    ForgetRequest,
    PatternQuery,
    RecallQuery,
    Retention,
    RunQuery,
)
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, StoreError
from mulligan.core.records import MessagePart, RecordedMessage, Run, Step, pattern_id
from mulligan.store import fix_votes
from mulligan.store.connection import ConcurrentAppendError
from mulligan.store.postgres import partitions as postgres_days
from mulligan.store.postgres import pool as postgres_pool
from mulligan.store.postgres import postgres_tables as postgres_security
from mulligan.store.postgres.postgres_store import PostgresStore
from mulligan.store.rows import RUN, USED, run_row
from mulligan.store.sqlite import MemoryStore
from mulligan.store.tables import MIGRATIONS

WRONG = Failure.of(Kind("tool", "invalid_arguments", Remedy.REPAIR), "k is 10 at most", fingerprint="f-k")


@pytest.fixture
def url() -> str:
    postgres.had()
    return postgres.emptied()


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    made = PostgresStore(url)
    yield made
    made.close()


def batch(run: str, count: int = 1, **fields: Any) -> list[Any]:
    steps = [StepEnded(Step(run=run, seq=n, call=n, name="search")) for n in range(1, count + 1)]
    return [RunStarted(Run(id=run, started_at=1, **fields)), *steps]


def failed(run: str, fingerprint: str = "f-k", tool: str = "search", message: str = "k is 10 at most") -> list[Any]:
    """A run in which a call failed and another one worked."""
    wrong = Failure.of(WRONG.kind, message, fingerprint=fingerprint)
    one = Step(run=run, seq=1, call=1, name=tool, arguments={"k": 50, "q": "a"}, outcome="failure", failure=wrong)
    other = Step(run=run, seq=2, call=2, name=tool, arguments={"k": 10, "q": "a"})
    whole = Run(id=run, started_at=5, ended_at=9, end_reason="finished")
    return [RunStarted(Run(id=run, started_at=5)), StepEnded(one), StepEnded(other), RunEnded(whole)]


def asked(store: PostgresStore, sql: str, *values: Any) -> list[Any]:
    with store.read_connection(DEFAULT_TENANT) as connection:
        return connection.raw_connection.execute(sql, values).fetchall()


# What is said when it cannot be used


def sentence(url: str) -> str:
    with pytest.raises(StoreError) as told:
        PostgresStore(url)
    return str(told.value)


def test_a_server_that_is_not_there_is_told_without_the_password():
    told = sentence("postgresql://me:hunter2@127.0.0.1:1/mulligan")
    assert told.startswith("Cannot reach postgresql://me@127.0.0.1:1/mulligan (")
    assert told.endswith("Check that the server runs and listens on that address.")
    assert "hunter2" not in told


def test_a_wrong_password_and_a_database_that_is_not_there_are_told(url):
    assert "denied access" in sentence(url.replace(":" + url.split(":")[2].split("@")[0], ":wrong"))
    missing = postgres.named(url, "nowhere")
    assert "does not exist" in sentence(missing)
    # A server that asks for no password says this of an unknown role.
    with pytest.raises(StoreError, match="Check the user"), postgres_pool.translate_errors("postgresql://nobody@h/d"):
        raise psycopg.OperationalError('connection failed: FATAL:  role "nobody" does not exist')
    assert "createdb" in sentence(missing)


def test_a_newer_schema_is_left_as_it_is(postgres_url):
    store = PostgresStore(postgres_url)
    with store.read_connection(DEFAULT_TENANT) as connection:
        connection.raw_connection.execute("UPDATE schema_version SET version = version + 1")
    store.close()
    assert f"schema {len(MIGRATIONS) + 1}; this version supports {len(MIGRATIONS)}" in sentence(postgres_url)


def test_tables_of_another_program_are_not_touched(postgres_url):
    import psycopg

    with psycopg.connect(postgres_url) as made:
        made.execute("CREATE TABLE runs (distance INT)")
    assert "another program" in sentence(postgres_url)


def test_without_psycopg_one_is_told_what_to_install():
    source = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from mulligan.core.failure import MissingExtraError\n"
        "from mulligan.store.urls import open_store\n"
        "try: open_store('postgresql://h/d')\n"
        "except MissingExtraError as told: print(told)\n"
        "import mulligan\n"
        "try: mulligan.configure(store='postgresql://h/d')\n"
        "except MissingExtraError as told: print(told)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, env=env, check=True).stdout
    hint = "In a checkout of mulligan, run: pip install '.[postgres]'"
    assert said == f"PostgreSQL storage needs psycopg. {hint}\n" * 2


def test_a_copy_is_made_by_those_who_can(store, tmp_path):
    with pytest.raises(StoreError, match="pg_dump"):
        store.backup(tmp_path / "copy")


# Texts


def test_characters_that_postgresql_has_no_room_for_come_back_as_they_were(store):
    odd = "a\x00b\ud800c\udfff\U0001f600"
    store.put(DEFAULT_TENANT, "kind", odd, b"\x00value")
    assert store.keys(DEFAULT_TENANT, "kind") == [odd]
    assert store.get(DEFAULT_TENANT, "kind", odd) == b"\x00value"

    store.append(DEFAULT_TENANT, failed("run_\x00", tool="se\x00arch", message="no \x00 here"), "j\x00", 1)

    assert store.run(DEFAULT_TENANT, "run_\x00").steps[0].name == "se\x00arch"
    assert [each.id for each in store.find(DEFAULT_TENANT, "run_\x00")] == ["run_\x00"]
    (pattern,) = store.patterns(DEFAULT_TENANT, PatternQuery())
    assert (pattern.tool, pattern.message) == ("se\x00arch", "no \x00 here")
    assert store.journals(DEFAULT_TENANT) == ["j\x00"]
    assert store.stats(DEFAULT_TENANT, StatsQuery(now=9, by="tool")).parts.keys() == {"se\x00arch"}


def test_texts_are_in_the_order_of_their_bytes_whatever_the_server_speaks(store):
    for key in ("b", "B", "a", "ä", "Z", "_"):
        store.put(DEFAULT_TENANT, "kind", key, b"")
    assert store.keys(DEFAULT_TENANT, "kind") == sorted(["b", "B", "a", "ä", "Z", "_"], key=str.encode)


# Writing


def test_a_large_batch_of_which_half_is_there_already_is_kept_once(store):
    assert store.append(DEFAULT_TENANT, batch("run_a", 60), "j", 1) == 61
    assert store.append(DEFAULT_TENANT, batch("run_a", 120), "other", 1) == 60
    assert [step.seq for step in store.run(DEFAULT_TENANT, "run_a").steps] == list(range(1, 121))
    assert store.stats(DEFAULT_TENANT, StatsQuery(now=9)).total.calls == 120


def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement from now on; the same for many rows is one."""
    import psycopg

    told: list[str] = []
    for name in ("execute", "executemany"):
        real = getattr(psycopg.Cursor, name)

        def noted(self: Any, query: Any, *rest: Any, real: Any = real, **words: Any) -> Any:
            told.append(str(query))
            return real(self, query, *rest, **words)

        monkeypatch.setattr(psycopg.Cursor, name, noted)
    return told


def test_a_large_batch_takes_a_few_statements_more_than_a_small_one(store, monkeypatch):
    store.append(DEFAULT_TENANT, batch("run_first", 3), "first", 1)
    told = statements(monkeypatch)
    store.append(DEFAULT_TENANT, batch("run_small", 3), "small", 1)
    of_small = len(told)
    store.append(DEFAULT_TENANT, batch("run_large", 1000), "large", 1)
    assert len(told) - told.count("DISCARD PLANS") - of_small <= of_small + 6 < 26  # 3 x 256 + 128 + 64 + 32 + 8 steps


def test_a_batch_of_many_failures_takes_a_few_statements_more_than_one_of_few(store, monkeypatch):
    def failures(count: int, of: str) -> list[Any]:
        return [event for n in range(count) for event in failed(f"run_{of}{n}", f"f-{n}", f"tool-{n}")]

    for place in range(4):  # after which no plans are made anew for a while
        store.append(DEFAULT_TENANT, failures(3, f"first{place}"), f"first{place}", 1)
    told = statements(monkeypatch)
    store.append(DEFAULT_TENANT, failures(4, "small"), "small", 1)  # three that have been met before, and a new one
    of_small = len(told)
    store.append(DEFAULT_TENANT, failures(200, "large"), "large", 1)
    assert of_small < 45
    assert len(told) - of_small <= 2 * of_small + 1  # two more for each table
    assert not [sql for sql in told if sql.startswith("UPDATE runs")]  # new runs are stored with their status
    assert store.stats(DEFAULT_TENANT, StatsQuery(now=9)).total.recovered == 216
    assert store.pattern(DEFAULT_TENANT, pattern_id("tool-1", "f-1")).occurrences == 6


def test_a_plan_made_for_an_empty_table_is_made_anew_as_it_fills(store, monkeypatch):
    told = statements(monkeypatch)
    for place in range(20):
        store.append(DEFAULT_TENANT, batch(f"run_{place}"), f"j{place}", 1)
    assert told.count("DISCARD PLANS") == 3


def test_only_the_first_batch_of_each_tenant_keeps_other_writers_out(store, monkeypatch):
    exclusive: list[str] = []
    write_transaction = store.write_transaction

    def note(*tenants: str) -> Any:
        exclusive.extend(tenants)
        return write_transaction(*tenants)

    monkeypatch.setattr(store, "write_transaction", note)
    for turn in range(3):
        for tenant in ("a", "b"):
            store.append(tenant, failed(f"run_{turn}"), "j", turn + 1)
    assert exclusive == ["a", "b"]


def test_several_processes_lose_nothing_of_each_others_sums(url):
    """Each adds to the same packed sums, patterns and fixes, at the same time."""
    workers, rounds = 3, 12
    stores = [PostgresStore(url) for _ in range(workers)]
    faults: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(rounds):
                stores[number].append(DEFAULT_TENANT, failed(f"run_{number}_{turn}"), f"journal_{number}", turn + 1)
        except BaseException as error:
            faults.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not faults
    expected = MemoryStore()
    for number in range(workers):
        for turn in range(rounds):
            expected.append(DEFAULT_TENANT, failed(f"run_{number}_{turn}"), f"journal_{number}", turn + 1)
    for query in (StatsQuery(now=9), StatsQuery(now=9, by="tool", detail=True)):
        assert stores[0].stats(DEFAULT_TENANT, query) == expected.stats(DEFAULT_TENANT, query)
    assert stores[1].patterns(DEFAULT_TENANT, PatternQuery()) == expected.patterns(DEFAULT_TENANT, PatternQuery())
    fixes = stores[2].fixes(DEFAULT_TENANT, FixQuery(tool="search", fingerprint="f-k", now=9))
    assert fixes == expected.fixes(DEFAULT_TENANT, FixQuery(tool="search", fingerprint="f-k", now=9))
    for store in stores:
        store.close()


def test_concurrent_writers_of_the_same_runs_leave_what_a_recount_gives(url):
    """Two processes append to the same runs: counters, patterns, links and statuses are those of the rows."""
    runs, calls = [f"run_{number}" for number in range(4)], 24
    stores = [PostgresStore(url), PostgresStore(url)]
    stores[0].append(DEFAULT_TENANT, [RunStarted(Run(id=run, agent="a", started_at=5)) for run in runs], "begin", 1)
    failure = Failure.of(Kind("tool", "timeout"), "late", fingerprint="f-late")

    def work(number: int) -> None:
        for seq in range(1 + number, calls, 2):
            has_failed = seq % 5 == 0
            fields: dict[str, Any] = {"outcome": "failure", "failure": failure} if has_failed else {}
            steps = [
                Step(run=run, seq=seq, call=seq, name=f"tool{seq % 3}", started_at=5 + seq, **fields) for run in runs
            ]
            stores[number].append(DEFAULT_TENANT, [*map(StepEnded, steps)], f"writer_{number}", seq)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def answers() -> tuple[Any, ...]:
        store = stores[0]
        stats = [store.stats(DEFAULT_TENANT, StatsQuery(now=9, by=by, detail=True)) for by in ("tool", "agent", "kind")]
        histories = [store.run(DEFAULT_TENANT, run) for run in runs]
        return stats, store.patterns(DEFAULT_TENANT, PatternQuery()), histories

    before = answers()
    assert before[0][0].total.calls == len(runs) * (calls - 1)
    rebuild(stores[0], DEFAULT_TENANT)
    assert answers() == before
    for store in stores:
        store.close()


def test_messages_that_concurrent_writers_share_are_there_while_others_are_forgotten(url):
    """Two processes record the same messages in any order, and a third forgets runs that have them, too."""
    stores = [PostgresStore(url) for _ in range(3)]
    texts = [f"message {number}" for number in range(12)]
    errors: list[BaseException] = []

    def write(number: int) -> None:
        shuffled = random.Random(number)
        for turn in range(1, 16):
            run = f"run_{number}_{turn}"
            messages = tuple(
                RecordedMessage(role="user", parts=(MessagePart(text=text),), number=index)
                for index, text in enumerate(shuffled.sample(texts, 8), start=1)
            )
            step = Step(run=run, seq=1, call=1, type="model", name="ask", started_at=5, messages=((1, 8),))
            events = [RunStarted(Run(id=run, started_at=5)), StepEnded(step, messages)]
            stores[number].append(DEFAULT_TENANT, events, f"writer_{number}", turn)

    def forget(_: int) -> None:
        for turn in range(1, 16):
            stores[2].forget(DEFAULT_TENANT, ForgetRequest(run=f"run_{turn % 2}_{turn}"))

    def work(task: Callable[[int], None], number: int) -> None:
        try:
            task(number)
        except BaseException as error:  # noqa: BLE001 - of another thread
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(task, number)) for task, number in ((write, 0), (write, 1), (forget, 2))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert errors == []
    histories = list(stores[0].export(DEFAULT_TENANT))
    assert [len(history.messages) for history in histories] == [8] * len(histories)
    used = {message.parts[0].text for history in histories for message in history.messages}
    rows = stores[0].read_rows(DEFAULT_TENANT, "SELECT count(*) FROM messages WHERE tenant = ?", (DEFAULT_TENANT,))
    assert rows == [(len(used),)]
    for store in stores:
        store.close()


def test_writers_of_several_tenants_do_not_wait_for_each_other_in_a_circle(url):
    stores = [PostgresStore(url), PostgresStore(url)]
    tenants = [["a", "b"], ["b", "a"]]

    def work(number: int) -> None:
        for turn in range(15):
            stores[number].append_all(
                [Batch(tenant, batch(f"run_{number}_{turn}"), f"j{number}", turn + 1) for tenant in tenants[number]]
            )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [stores[0].health(tenant).runs for tenant in ("a", "b")] == [30, 30]
    for store in stores:
        store.close()


def test_several_processes_may_make_the_tables_at_once(postgres_url):
    made: list[PostgresStore] = []
    threads = [threading.Thread(target=lambda: made.append(PostgresStore(postgres_url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert made[0].append(DEFAULT_TENANT, batch("run_a"), "j", 1) == 2
    for store in made:
        store.close()


def test_a_forked_child_writes_beside_its_parent(store, url):
    store.append(DEFAULT_TENANT, batch("run_a"), "j", 1)
    pid = os.fork()
    if not pid:
        status = 1
        try:
            store.append(DEFAULT_TENANT, batch("run_child"), "child", 1)
            status = int(store.run(DEFAULT_TENANT, "run_child") is None)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.append(DEFAULT_TENANT, batch("run_b"), "j", 2) == 2
    assert {run.id for run in store.find(DEFAULT_TENANT, "run_")} == {"run_a", "run_child", "run_b"}


# Days


def test_steps_are_kept_by_the_day_their_run_came_and_an_emptied_day_is_dropped(url):
    day = 20_000
    now = day * DAY
    store = PostgresStore(url, clock=lambda: now)
    store.append(DEFAULT_TENANT, batch("run_a", 3), "j", 1)
    store.append(DEFAULT_TENANT, [StepEnded(Step(run="run_lost", seq=1, call=1, name="search"))], "j", 2)
    now = (day + 2) * DAY
    late = [StepEnded(Step(run="run_a", seq=n, call=n, name="late")) for n in (3, 4)]
    assert store.append(DEFAULT_TENANT, late, "j", 3) == 1  # the third was there, two days ago
    assert store.append(DEFAULT_TENANT, [*batch("run_lost")], "j", 4) == 1  # its step was there
    store.append(DEFAULT_TENANT, batch("run_new"), "j", 5)

    parts = dict(asked(store, "SELECT tableoid::regclass::text, count(*) FROM steps GROUP BY 1"))
    assert parts == {f"steps_{day}": 5, f"steps_{day + 2}": 1}
    assert {f"steps_{day + 2 + ahead}" for ahead in range(postgres_days.PARTITIONS_AHEAD_DAYS + 1)} <= {
        f"steps_{each}"
        for (each,) in [(each,) for each in postgres_days.list_partition_days(store.open_writer().raw_connection)]
    }

    pruned = store.prune(DEFAULT_TENANT, Retention(keep_successes=DAY, keep_failures=DAY), now)

    assert (pruned.runs, pruned.steps) == (2, 5)
    assert postgres_days.list_partition_days(store.open_writer().raw_connection)[0] == day + 2
    assert [each.run.id for each in store.export(DEFAULT_TENANT)] == ["run_new"]
    store.close()


def test_what_came_on_a_day_without_a_part_is_kept_all_the_same(url):
    store = PostgresStore(url, clock=lambda: 5)
    store._create_partitions = lambda writer: None  # type: ignore[method-assign]
    assert store.append(DEFAULT_TENANT, batch("run_a", 2), "j", 1) == 3
    assert asked(store, "SELECT count(*) FROM steps_default") in ([(2,)], [(0,)])
    assert len(store.run(DEFAULT_TENANT, "run_a").steps) == 2
    store.close()


# Servers


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    postgres.had()
    if "://" in postgres.GIVEN:
        pytest.skip("the server that is there is not ours to stop")
    with postgres.Server(durable=True) as own:
        yield own


@pytest.mark.parametrize("mode", ["fast", "immediate", "kill"])
def test_a_server_that_is_restarted_is_found_again_and_nothing_is_lost_or_doubled(server, mode, monkeypatch):
    monkeypatch.setattr(postgres_pool, "INITIAL_BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(postgres_pool, "MAX_BACKOFF_SECONDS", 0.05)
    with postgres.fresh_database(server.url) as url:
        store = PostgresStore(url)
        assert store.append(DEFAULT_TENANT, batch("run_a", 30), "j", 1) == 31
        server.stop(mode)
        with pytest.raises(StoreError):
            store.append(DEFAULT_TENANT, batch("run_b", 30), "j", 2)
        with pytest.raises(StoreError):
            store.run(DEFAULT_TENANT, "run_a")
        assert not store.health(DEFAULT_TENANT).healthy
        server.start()
        assert until_it_works(lambda: store.append(DEFAULT_TENANT, batch("run_b", 30), "j", 2)) == 31
        assert store.append(DEFAULT_TENANT, batch("run_b", 30), "j", 2) == 0
        assert [each.run.id for each in store.export(DEFAULT_TENANT)] == ["run_a", "run_b"]
        assert store.stats(DEFAULT_TENANT, StatsQuery(now=9)).total.calls == 60
        store.close()


@pytest.mark.parametrize("mode", ["fast", "immediate", "kill"])
def test_first_request_after_a_restart_succeeds(server, mode):
    """Several connections are idle in the pool at the restart, and one is in use."""
    with postgres.fresh_database(server.url) as url:
        store = PostgresStore(url)
        store.append(DEFAULT_TENANT, batch("run_a"), "j", 1)
        for number in range(4):
            with ThreadPoolExecutor(5) as callers:
                connected, may_answer = threading.Semaphore(0), threading.Event()

                def ask(sql: str, connected=connected, may_answer=may_answer) -> Any:
                    def question(connection: Any) -> Any:
                        connected.release()
                        may_answer.wait(20)
                        return connection.execute(sql).fetchone()

                    return store.ask(DEFAULT_TENANT, question)

                answers = [callers.submit(ask, "SELECT 1") for _ in range(5)]
                assert all(connected.acquire(timeout=20) for _ in answers)
                may_answer.set()
                assert [answer.result() for answer in answers] == [(1,)] * 5  # five are idle now
                answer = callers.submit(ask, "SELECT pg_sleep(60)")
                assert connected.acquire(timeout=20)
                server.stop(mode)
                with pytest.raises(StoreError):
                    answer.result()  # it was retried while the server was stopped
                server.start()
            if number % 2:
                assert store.append(DEFAULT_TENANT, batch(f"run_{number}"), "j", 1 + number) == 2
            assert len(store.run(DEFAULT_TENANT, "run_a").steps) == 1
        store.close()


def until_it_works(asking: Any) -> Any:
    for _ in range(2000):
        try:
            return asking()
        except StoreError:
            threading.Event().wait(0.02)
    raise AssertionError("it never came back")


def end_connections(store: PostgresStore) -> None:
    import psycopg

    with psycopg.connect(store._pool.url.database_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                      "AND datname = current_database()")  # fmt: skip


def test_a_connection_that_the_server_ended_costs_a_question_nothing(store):
    store.append(DEFAULT_TENANT, batch("run_a"), "j", 1)
    store.run(DEFAULT_TENANT, "run_a")
    store.stats(DEFAULT_TENANT, StatsQuery(now=9))
    end_connections(store)
    assert store.stats(DEFAULT_TENANT, StatsQuery(now=9)).total.calls == 1
    end_connections(store)
    assert store.offset(DEFAULT_TENANT, "j") == 1


def test_a_connection_that_the_server_ended_costs_a_batch_nothing_and_doubles_none(store):
    assert store.append(DEFAULT_TENANT, batch("run_a"), "j", 1) == 2
    end_connections(store)
    assert store.append(DEFAULT_TENANT, batch("run_b"), "j", 2) == 2
    end_connections(store)
    assert store.append(DEFAULT_TENANT, batch("run_b"), "j", 2) == 0
    end_connections(store)
    store.put(DEFAULT_TENANT, "kind", "key", b"value")
    assert store.get(DEFAULT_TENANT, "kind", "key") == b"value"
    assert store.stats(DEFAULT_TENANT, StatsQuery(now=9)).total.calls == 2


def test_a_queued_row_that_postgresql_rejects_fails_the_transaction(store):
    def store_nameless_call() -> None:
        with store.append_transaction(DEFAULT_TENANT) as writer:
            writer.queue(
                RUN, [run_row(DEFAULT_TENANT, Run(id="run_a"), 1, False, "local", "success", True)], must_be_new=True
            )
            writer.queue(USED, [(DEFAULT_TENANT, "tool", None, 1, "run_a")])

    with pytest.raises(StoreError, match="null value"):
        store_nameless_call()
    assert store.run(DEFAULT_TENANT, "run_a") is None
    assert store.append(DEFAULT_TENANT, batch("run_a"), "j", 1) == 2


def test_a_queued_row_that_exists_already_fails_the_transaction_at_its_commit(store):
    row = run_row(DEFAULT_TENANT, Run(id="run_a"), 1, False, "local", "success", True)
    with store.append_transaction(DEFAULT_TENANT) as writer:
        writer.queue(RUN, [row], must_be_new=True)
    other_row = run_row(DEFAULT_TENANT, Run(id="run_b"), 1, False, "local", "success", True)
    with pytest.raises(ConcurrentAppendError), store.append_transaction(DEFAULT_TENANT) as writer:
        writer.queue(RUN, [other_row, row], must_be_new=True)
    assert store.run(DEFAULT_TENANT, "run_b") is None


def test_a_connection_that_ends_within_a_batch_is_not_gone_on_with(store):
    """What was asked of it before may be what the rest rests on: whoever keeps the batch keeps it again."""
    store.append(DEFAULT_TENANT, batch("run_a"), "j", 1)

    def cut_off() -> None:
        with store.write_transaction(DEFAULT_TENANT) as writer:
            end_connections(store)
            writer.execute("SELECT 1")

    with pytest.raises(StoreError):
        cut_off()
    assert store.append(DEFAULT_TENANT, batch("run_b"), "j", 2) == 2


def test_who_asks_when_all_connections_are_busy_is_told_so(url, monkeypatch):
    monkeypatch.setattr(postgres_pool, "POOL_TIMEOUT_SECONDS", 0.05)
    store = PostgresStore(url + "?pool=1")
    with (
        store.read_connection(DEFAULT_TENANT),
        pytest.raises(StoreError, match=r"All 1 connections .* are in use. Allow more: \?pool=N"),
    ):
        store.get(DEFAULT_TENANT, "kind", "key")
    assert store.get(DEFAULT_TENANT, "kind", "key") is None
    store.close()


def test_a_replica_answers_what_may_be_a_moment_old_and_the_primary_what_may_not(url, postgres_url):
    behind = PostgresStore(postgres_url)
    behind.append(DEFAULT_TENANT, batch("run_replica"), "j", 7)
    behind.put(DEFAULT_TENANT, "kind", "key", b"replica")
    behind.close()
    from urllib.parse import quote

    store = PostgresStore(f"{url}?replica={quote(postgres_url, safe='')}")
    store.append(DEFAULT_TENANT, failed("run_own"), "j", 1)

    assert [each.run.id for each in store.export(DEFAULT_TENANT)] == ["run_replica"]
    assert store.recall(DEFAULT_TENANT, RecallQuery(tool="search", fingerprint="f-k")) == []
    assert store.offset(DEFAULT_TENANT, "j") == 1
    assert store.get(DEFAULT_TENANT, "kind", "key") is None
    store.close()

    without = PostgresStore(f"{url}?replica={quote('postgresql://127.0.0.1:1/gone', safe='')}")
    assert [each.run.id for each in without.export(DEFAULT_TENANT)] == ["run_own"]
    without.close()


# Alike


ERRORS = (
    "the disk is not supported", "no such column", "wrong colour format", "a teapot is not allowed",
    "quota must be a number", "limit must be 10 or less",
)  # fmt: skip
"""They reject what was asked, so that each pattern has a fix."""


@pytest.mark.parametrize("has_extension", [True, False])
def test_of_very_many_patterns_those_are_compared_whose_words_are_the_most_alike(store, monkeypatch, has_extension):
    """Where the extension cannot be had, they are compared as in every other store: no more than so many."""
    assert store._has_similarity_index
    monkeypatch.setattr(store, "_has_similarity_index", has_extension)
    monkeypatch.setattr(fix_votes, "MAX_PATTERNS_PER_TOOL", 2)
    for number, text in enumerate(ERRORS):
        store.append(DEFAULT_TENANT, failed(f"run_{number}", f"f-{number}", message=text), "j", number + 1)
    ids = [pattern_id("search", f"f-{number}") for number in range(len(ERRORS))]
    assert ids[5] not in sorted(ids)[:2]

    words = "limit must be 20 or less"
    near = store.ask_rows(
        DEFAULT_TENANT, lambda read: store._find_similar_patterns(read, DEFAULT_TENANT, "search", words, 0)
    )

    assert [pattern for _, pattern in near] == ([ids[5]] if has_extension else [])


def test_a_database_of_an_earlier_schema_is_migrated_when_it_is_opened(postgres_url, monkeypatch):
    store = PostgresStore(postgres_url)
    store.append(DEFAULT_TENANT, failed("run_1"), "j", 1)
    store.close()
    later = (*MIGRATIONS, ("CREATE TABLE weekdays (tenant TEXT NOT NULL, name TEXT NOT NULL)",))
    monkeypatch.setattr("mulligan.store.postgres.postgres_tables.MIGRATIONS", later)

    again = PostgresStore(postgres_url)

    assert asked(again, "SELECT version FROM schema_version") == [(len(later),)]
    assert postgres_security.list_tables(again.open_writer().raw_connection)["weekdays"]
    assert [history.run.id for history in again.runs(DEFAULT_TENANT, RunQuery())] == ["run_1"]
    again.close()


def test_a_migration_takes_longer_than_a_query_may(postgres_url, monkeypatch):
    PostgresStore(postgres_url).close()
    later = (*MIGRATIONS, ("SELECT pg_sleep(0.4)",))
    monkeypatch.setattr("mulligan.store.postgres.postgres_tables.MIGRATIONS", later)
    again = PostgresStore(f"{postgres_url}?options=-c%20statement_timeout%3D200")
    assert asked(again, "SELECT version FROM schema_version") == [(len(later),)]
    again.close()


def test_a_migration_that_deadlocks_with_a_writer_is_retried(postgres_url, monkeypatch):
    PostgresStore(postgres_url).close()
    later = (*MIGRATIONS, ("ALTER TABLE runs ADD COLUMN weekday TEXT", "ALTER TABLE links ADD COLUMN weekday TEXT"))
    monkeypatch.setattr("mulligan.store.postgres.postgres_tables.MIGRATIONS", later)
    with psycopg.connect(postgres_url) as writer, ThreadPoolExecutor() as pool:
        writer.execute("LOCK TABLE links IN ROW EXCLUSIVE MODE")
        migration = pool.submit(PostgresStore, postgres_url)
        while writer.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (0,):
            time.sleep(0.01)
        # The migration has waited longer, so PostgreSQL ends the migration.
        writer.execute("LOCK TABLE runs IN ROW EXCLUSIVE MODE")
        writer.commit()
        again = migration.result(30)
    assert asked(again, "SELECT version FROM schema_version") == [(len(later),)]
    again.close()


def test_a_database_of_a_pre_release_version_is_refused(postgres_url):
    import psycopg

    with psycopg.connect(postgres_url) as made:
        made.execute("CREATE TABLE mulligan (version BIGINT)")
    assert "written by a pre-release version; start a new store" in sentence(postgres_url)


def test_a_text_is_found_in_any_case_and_in_any_alphabet(store):
    for number, text in enumerate(["Die STRASSE fehlt", "ΣΊΣΥΦΟΣ", "plain"]):
        store.append(DEFAULT_TENANT, failed(f"run_{number}", f"f-{number}", message=text), "j", number + 1)
    for text, message in (("straße", "Die STRASSE fehlt"), ("σίσυφος", "ΣΊΣΥΦΟΣ"), ("PLAIN", "plain")):
        assert [each.message for each in store.patterns(DEFAULT_TENANT, PatternQuery(text=text))] == [message]


def test_figures_are_counted_anew_as_they_were(store):
    for number in range(5):
        store.append(DEFAULT_TENANT, failed(f"run_{number}"), "j", number + 1)
    before = store.stats(DEFAULT_TENANT, StatsQuery(now=9, by="tool", detail=True))
    rebuild(store, DEFAULT_TENANT)
    assert store.stats(DEFAULT_TENANT, StatsQuery(now=9, by="tool", detail=True)) == before
    assert before.total == counters.stats(list(store.export(DEFAULT_TENANT)), StatsQuery(now=9)).total


def test_it_is_opened_by_its_url(url, tmp_path: Path):
    from mulligan.store.urls import local_path, open_store, redact_password

    with_password = url.replace("postgresql://", "postgres://")
    store = open_store(with_password)
    assert isinstance(store, PostgresStore)
    assert local_path(url, tmp_path).name.startswith("postgres-")
    assert ":" not in redact_password(url).split("@")[0].removeprefix("postgresql://")
    store.close()
