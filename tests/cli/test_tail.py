"""mulligan tail, as a process: it tells what is written by others, and ends when it is asked to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Run, Step
from mulligan.store.sqlite import SqliteStore

TIMEOUT = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow \x1b[2J", fingerprint="f")


def write(kept, id, offset, failure=None):
    now = int(time.time() * 1000)
    run = Run(id=id, agent="helper", started_at=now, ended_at=now, end_reason="finished")
    step = Step(
        run=id,
        seq=1,
        call=1,
        name="search",
        started_at=now,
        failure=failure,
        outcome="failure" if failure else "success",
    )
    kept.append(DEFAULT_TENANT, [StepEnded(step), RunEnded(run)], "journal", offset)


@pytest.fixture
def watching(tmp_path):
    """The command following a store, and a way to write there."""
    path = tmp_path / "kept.db"
    kept = SqliteStore(path)
    started = []

    def watch(*words):
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "mulligan", "tail", "--store", str(path), *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            # A shell that runs the tests in the background has them ignore SIGINT, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        started.append(process)
        return process

    yield kept, watch
    kept.close()
    for process in started:
        process.kill()
        process.communicate()


def test_it_tells_what_is_there_and_what_comes_and_ends_with_130(watching):
    kept, watch = watching
    write(kept, "run_old", 2)
    process = watch()
    assert "run_old" in process.stdout.readline()
    assert ". run finished" in process.stdout.readline()
    write(kept, "run_new", 4, TIMEOUT)
    told = process.stdout.readline()
    assert "run_new" in told
    assert "x search, 0 ms, tool/timeout: too slow" in told
    assert "\x1b" not in told
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, "")
    assert "Traceback" not in out


def test_only_failures_as_lines_of_json(watching):
    kept, watch = watching
    write(kept, "run_1", 2)
    write(kept, "run_2", 4, TIMEOUT)
    process = watch("--failures", "--json")
    event = json.loads(process.stdout.readline())
    assert (event["event"], event["step"]["run"]) == ("step.ended", "run_2")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == ""


def test_it_waits_for_a_store_that_is_not_there_yet(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "mulligan", "tail", "--store", str(tmp_path / "later.db")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert "waiting for it" in process.stderr.readline()
        assert os.listdir(tmp_path) == []
        kept = SqliteStore(tmp_path / "later.db")
        write(kept, "run_1", 2)
        assert "run_1" in process.stdout.readline()
        kept.close()
    finally:
        process.kill()
        process.communicate()
