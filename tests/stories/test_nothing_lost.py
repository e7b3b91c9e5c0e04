"""However a process ends, every call that returned is in the store when the next one looks, and none is there twice."""

from __future__ import annotations

import collections
import json
import mmap
import os
import random
import signal
import sqlite3
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

CALLS = 300
CELL = struct.Struct("<Q")
CELLS = 16

PREAMBLE = """
import asyncio, atexit, mmap, os, signal, struct, sys, threading, time
import mulligan

CELL = struct.Struct("<Q")
with open(os.environ["COUNTED"], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)

def add(worker=0):
    # In memory that outlives us: this call has returned.
    CELL.pack_into(memory, 8 * worker, CELL.unpack_from(memory, 8 * worker)[0] + 1)

@mulligan.tool(effects="none")
def double(number):
    return 2 * number

def work(calls, worker=0):
    for each in range(calls):
        assert double(each) == 2 * each
        add(worker)

def unhurried():
    # On a busy machine, too: leaving takes no longer than it should, and what is not kept by then waits in the journal.
    from mulligan.record import recorder

    recorder.EXIT_FLUSH_SECONDS = 60.0

def together(count, target):
    threads = [threading.Thread(target=target, args=(each,)) for each in range(count)]
    for each in threads:
        each.start()
    return threads
"""


class Witness:
    """Starts programs whose calls it counts, lets them end badly, and looks at what was kept."""

    def __init__(self, user: Any) -> None:
        self.user = user
        counted = user.folder / "counted"
        counted.write_bytes(bytes(CELL.size * CELLS))
        with counted.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self.environment = user.environment | {"COUNTED": str(counted)}
        self.store = user.home / "mulligan" / "mulligan.db"
        self._programs = 0

    def returned(self) -> int:
        return sum(CELL.unpack_from(self._memory, 8 * worker)[0] for worker in range(CELLS))

    def starts(self, source: str, *words: str, before: str = "", **environment: str) -> subprocess.Popen[str]:
        self._programs += 1
        program = self.user.folder / f"agent{self._programs}.py"
        program.write_text(before + PREAMBLE + textwrap.dedent(source))
        return subprocess.Popen(
            [sys.executable, str(program), *words],
            env=self.environment | environment,
            cwd=self.user.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def runs(self, source: str, *words: str, **environment: str) -> tuple[int, str]:
        process = self.starts(source, *words, **environment)
        _, told = process.communicate(timeout=60)
        return process.returncode, told

    def waits_for(self, calls: int, process: subprocess.Popen[str]) -> None:
        while self.returned() < calls and process.poll() is None:
            time.sleep(0.002)

    def looks(self) -> None:
        """The next process, which adopts what was left."""
        done = self.user.runs_program("import mulligan; mulligan.tool(abs)(1); assert mulligan.flush(30)")
        assert done.returncode == 0, done.stderr

    def kept(self) -> int:
        database = sqlite3.connect(self.store)
        ((sound,),) = database.execute("PRAGMA integrity_check")
        assert sound == "ok"
        ((steps,),) = database.execute("SELECT count(*) FROM steps WHERE name = 'double'")
        database.close()
        return int(steps)

    def left(self) -> list[Path]:
        return sorted((self.user.home / "mulligan").glob("*.journals/*"))

    def finds_everything(self, in_flight: int = 0) -> None:
        """`in_flight` calls may have been recorded and not have returned, where a process was killed."""
        self.looks()
        returned = self.returned()
        assert returned > 0
        assert returned <= self.kept() <= returned + in_flight
        assert self.left() == []


@pytest.fixture
def witness(user: Any) -> Witness:
    return Witness(user)


def test_when_a_process_ends_all_of_it_is_in_the_store_and_no_journal_is_left(witness):
    assert witness.runs(f"unhurried()\nwork({CALLS})") == (0, "")
    assert witness.kept() == witness.returned() == CALLS
    assert witness.left() == []


@pytest.mark.parametrize(
    ("source", "code"),
    [
        pytest.param(f"[t.join() for t in together(8, lambda w: work({CALLS}, w))]", 0, id="from 8 threads"),
        pytest.param(f"together(8, lambda w: work({CALLS}, w))", 0, id="in threads that nobody joins"),
        pytest.param(f"work({CALLS})\nraise RuntimeError('nobody handles this')", 1, id="with an exception"),
        pytest.param(f"work({CALLS})\nos._exit(3)", 3, id="with os._exit"),
        pytest.param(f"work({CALLS})\nos.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, id="with SIGTERM"),
        pytest.param(f"work({CALLS})\nos.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, id="with SIGKILL"),
    ],
)
def test_nothing_is_lost_when_a_process_ends(witness, source, code):
    assert witness.runs(source)[0] == code
    witness.finds_everything()


def test_nothing_is_lost_when_processes_are_killed_at_random_times_from_their_first_call_on(witness):
    chance = random.Random(5)
    for _ in range(3):
        process = witness.starts("[t.join() for t in together(2, lambda w: work(10**9, w))]")
        witness.waits_for(witness.returned() + 1, process)
        time.sleep(chance.uniform(0, 0.25))
        process.kill()
        process.communicate()
        witness.finds_everything(in_flight=6)


def test_what_a_killed_process_did_is_seen_by_the_command_that_is_typed_next(witness):
    witness.runs(f"work({CALLS})\nos.kill(os.getpid(), signal.SIGKILL)")
    assert len(witness.user.sees("runs", "--limit", "10000")) == CALLS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_nothing_is_lost_in_a_process_that_forks_nor_in_its_child(witness):
    code, told = witness.runs(
        f"""
        work({CALLS})
        child = os.fork()
        work({CALLS}, 2 if child else 1)
        if child:
            assert os.waitpid(child, 0)[1] == 0
        else:
            os._exit(0)
        """
    )
    assert (code, told) == (0, "")
    witness.finds_everything()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_nothing_is_lost_when_a_process_forks_again_and_again_while_its_threads_record(witness):
    code, told = witness.runs(
        """
        threads = together(3, lambda w: work(400, w))
        for each in range(5):
            child = os.fork()
            if child == 0:
                work(20, 4 + each)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        [t.join() for t in threads]
        """
    )
    assert (code, told) == (0, "")
    witness.finds_everything()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(
    "around",
    ["with mulligan.run('parent'):", "with mulligan.run('outer'), mulligan.run('parent'):", "if True:"],
)
def test_nothing_is_lost_of_a_run_in_which_a_process_forks(witness, around):
    """Both sides have the run in hand, and would number their calls alike."""
    code, told = witness.runs(
        f"""
        def body():
            work(20)
            for each in range(3):
                child = os.fork()
                if child == 0:
                    work(20, 1 + each)
                    if each == 0:
                        sys.exit()  # through the end of the run, which is not the child's to end
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
            work(20)

        @mulligan.tool
        def batch():
            body()

        {around}
            batch() if {around!r} == "if True:" else body()
        """
    )
    assert (code, told) == (0, "")
    witness.finds_everything()
    runs = witness.user.sees("runs", "--limit", "1000")
    assert {run["status"] for run in runs} == {"success"}
    whole = [run for run in runs if len(run["calls"]) >= 40]
    assert len(whole) == 1  # what the parent did is one run, and goes on after its children


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="nothing tells which files a process has open")
def test_a_child_that_is_forked_while_the_store_is_opened_inherits_no_connection(witness):
    """It would believe to hold locks that it does not have, and both sides would damage the file."""
    slow = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "mulligan.store.sqlite":
            time.sleep(0.3)

sys.meta_path.insert(0, Slow())
"""
    process = witness.starts(
        """
        work(1)
        while "mulligan.store.urls" not in sys.modules:
            time.sleep(0.001)  # until the recorder's thread is on its way
        time.sleep(0.1)
        child = os.fork()
        if child == 0:
            files = map("/proc/self/fd/{}".format, range(3, 100))
            names = [os.readlink(each) for each in files if os.path.lexists(each)]
            os._exit(any("mulligan.db" in each and "journals" not in each for each in names))
        assert os.waitpid(child, 0)[1] == 0
        """,
        before=slow,
    )
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (0, "")
    witness.finds_everything()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_may_go_on_with_the_run_as_one_of_its_own(witness):
    code, told = witness.runs(
        """
        with mulligan.run("parent") as run:
            with run.step("plan", "before"):
                pass
            child = os.fork()
            if child == 0:
                with run.step("plan", "in the child"):
                    work(2, 1)
                sys.exit()
            assert os.waitpid(child, 0)[1] == 0
            with run.step("plan", "after"):
                work(1)
        """
    )
    assert (code, told) == (0, "")
    witness.finds_everything()
    runs = witness.user.sees("runs")
    assert {run["status"] for run in runs} == {"success"}
    assert sorted([call["name"] for call in run["calls"]] for run in runs if run["agent"] == "parent") == [
        ["before", "after", "double"],
        ["in the child", "double", "double"],
    ]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_multiprocessing_keep_all_of_theirs_themselves(witness, method):
    if method == "fork" and not hasattr(os, "fork"):
        pytest.skip("no fork here")
    code, told = witness.runs(
        f"""
        unhurried()
        if __name__ == "__main__":
            import multiprocessing
            context = multiprocessing.get_context({method!r})
            if {method!r} == "fork":
                work({CALLS}, 9)  # so that there is something to inherit
            workers = [context.Process(target=work, args=(100, each)) for each in range(3)]
            [each.start() for each in workers]
            [each.join() for each in workers]
            assert [each.exitcode for each in workers] == [0, 0, 0]
        """
    )
    assert (code, told) == (0, "")
    assert witness.kept() == witness.returned()
    assert witness.left() == []


def test_nothing_is_lost_with_an_event_loop_that_was_closed(witness):
    code, told = witness.runs(
        f"""
        @mulligan.tool(name="double")
        async def adouble(number):
            await asyncio.sleep(0)
            return 2 * number

        async def task(worker):
            for each in range(50):
                await adouble(each)
                add(worker)

        async def everything():
            await asyncio.gather(*(task(worker) for worker in range(8)))

        asyncio.run(everything())
        loop = asyncio.new_event_loop()
        loop.run_until_complete(task(0))
        loop.close()
        work({CALLS})
        """
    )
    assert (code, told) == (0, "")
    witness.finds_everything()


def test_nothing_is_lost_when_threads_come_and_go(witness):
    assert witness.runs("for each in range(60): [t.join() for t in together(2, lambda w: work(3, w))]") == (0, "")
    witness.finds_everything()


def test_calls_that_are_made_while_the_interpreter_leaves_are_kept(witness):
    code, told = witness.runs(
        """
        class Late:
            def __del__(self):
                work(1, 1)

        late = Late()
        keep = [late]
        work(1)
        atexit.register(work, 5)
        """
    )
    assert (code, told) == (0, "")
    witness.finds_everything(in_flight=1)
    assert witness.returned() >= 6


def test_calls_that_are_made_after_our_own_farewell_are_kept_by_the_next_process(witness):
    code, told = witness.runs(
        "work(1)",
        # Registered before ours, and so called after it.
        before="import atexit\natexit.register(lambda: work(5))\n",
    )
    assert (code, told) == (0, "")
    assert witness.returned() == 6
    witness.finds_everything()


def test_arguments_are_recorded_as_they_were_given_whatever_the_function_does_to_them(witness):
    witness.runs(
        """
        @mulligan.tool
        def consume(items, options):
            items.clear()
            options["seen"] = True
            return items

        for each in range(4):
            consume([each, {"deep": [1]}], {"limit": each})
        """
    )
    runs = [witness.user.sees("show", run["id"]) for run in witness.user.sees("runs", "--limit", "50")]
    given = sorted((run["steps"][0]["arguments"] for run in runs), key=lambda each: each["options"]["limit"])
    assert given == [{"items": [n, {"deep": [1]}], "options": {"limit": n}} for n in range(4)]


# Where the disk says no


def test_where_no_file_may_grow_any_further_calls_are_unharmed_and_what_is_missing_is_counted(witness):
    witness.looks()  # the store is there
    limit = witness.store.stat().st_size + 200_000
    code, told = witness.runs(
        f"""
        import resource
        import mulligan.api
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
        work(2500)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert double(1) == 2
        assert mulligan.flush(30)  # it goes on by itself when there is room again
        print("dropped", mulligan.api.default._components.recorder.dropped, file=sys.stderr)
        """
    )
    assert code == 0, told
    assert "dropped 0\n" in told
    witness.looks()
    assert witness.kept() == witness.returned() + 1 == 2501


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is read-only for root")
def test_in_a_read_only_folder_calls_are_unharmed_and_records_are_kept_elsewhere(witness):
    home = witness.user.home / "mulligan"
    home.mkdir(mode=0o500)
    refuge = witness.user.folder / "tmp"
    refuge.mkdir()
    code, _ = witness.runs("work(50)", TMPDIR=str(refuge))
    assert code == 0
    witness.store = next(refuge.rglob("mulligan.db"))
    assert witness.kept() == 50


# Several at once


def test_six_processes_on_one_store_two_of_them_killed_leave_no_hole_and_no_double(witness):
    source = """
        worker = int(sys.argv[1])
        until = time.monotonic() + 2
        while time.monotonic() < until:
            with mulligan.run("worker"):
                for each in range(5):
                    double(each)
                    add(worker)
    """
    processes = [witness.starts(source, str(worker)) for worker in range(6)]
    witness.waits_for(200, processes[0])
    for each in processes[:2]:
        each.kill()
    told = [each.communicate(timeout=60)[1] for each in processes]
    assert told[2:] == [""] * 4
    witness.finds_everything(in_flight=2)

    database = sqlite3.connect(witness.store)
    steps = collections.defaultdict(list)
    for run, seq in database.execute("SELECT run, seq FROM steps WHERE name = 'double'"):
        steps[run].append(seq)
    runs = [json.loads(body) for (body,) in database.execute("SELECT body FROM runs WHERE agent = 'worker'")]
    database.close()
    finished = [run["id"] for run in runs if run["end_reason"] == "finished"]
    assert all(sorted(steps[run]) == [1, 2, 3, 4, 5] for run in finished)
    assert len(runs) - len(finished) <= 2  # what the killed were at
    assert {run["end_reason"] for run in runs} <= {"finished", "abandoned"}
