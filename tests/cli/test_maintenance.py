"""mulligan prune, forget and backup: what goes, goes; what is copied can be read."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.failure import Failure, Kind
from mulligan.core.records import Run, Step
from mulligan.store.sqlite import SqliteStore

DAY = 86_400_000


@pytest.fixture
def store(tmp_path):
    """Four runs; a text in one of them is nobody's business."""
    path = tmp_path / "kept.db"
    kept = SqliteStore(path)
    now = int(time.time() * 1000)
    for place, id in enumerate(["run_a1", "run_a2", "run_b1", "run_c1"], start=1):
        run = Run(
            id=id,
            agent="helper",
            session="s1" if place == 3 else None,
            started_at=now,
            ended_at=now,
            end_reason="finished",
        )
        step = Step(
            run=id, seq=1, call=1, name="pay" if place == 4 else "search", started_at=now,
            arguments={"q": "Ada Lovelace, of London"} if place == 1 else {},
        )  # fmt: skip
        kept.append(DEFAULT_TENANT, [StepEnded(step), RunEnded(run)], "journal", place * 2)
    kept.close()
    return str(path)


def left(store):
    kept = SqliteStore(Path(store))
    try:
        return {history.run.id for history in kept.export(DEFAULT_TENANT)}
    finally:
        kept.close()


def test_what_is_young_is_not_pruned(types, store):
    code, out, err = types("prune", "--store", store)
    assert (code, err) == (0, "")
    assert out.startswith("Deleted 0 runs with 0 steps.")
    assert len(left(store)) == 4


def test_a_rehearsal_says_what_would_go_and_removes_nothing(types, store):
    _, out, _ = types("prune", "--keep-successes", "0", "--dry-run", "--store", store, "--json")
    told = json.loads(out)
    assert (told["dry_run"], told["runs"], told["steps"]) == (True, 4, 4)
    assert len(left(store)) == 4
    _, out, _ = types("prune", "--keep-successes", "0", "--store", store)
    assert out.startswith("Deleted 4 runs with 4 steps.")
    assert left(store) == set()


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        (["--run", "run_a1"], {"run_a1"}),
        (["--run", "run_b"], {"run_b1"}),
        (["--session", "s1"], {"run_b1"}),
    ],
)
def test_what_is_forgotten_is_gone(types, store, words, gone):
    code, out, _ = types("forget", *words, "--yes", "--store", store)
    assert (code, out.startswith("Deleted 1 run")) == (0, True)
    assert {"run_a1", "run_a2", "run_b1", "run_c1"} - left(store) == gone


def test_a_tool_is_forgotten_with_all_its_steps(types, store):
    code, _, _ = types("forget", "--tool", "pay", "--yes", "--store", store)
    assert code == 0
    code, out, _ = types("runs", "--tool", "pay", "--store", store, "--json")
    assert json.loads(out) == []


@pytest.mark.slow
def test_a_text_from_stdin_is_in_no_file_afterwards(store):
    done = subprocess.run(
        [sys.executable, "-m", "mulligan", "forget", "--text", "-", "--yes", "--store", store],
        input="Ada Lovelace\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "Deleted" in done.stdout
    for path in Path(store).parent.glob("kept.db*"):
        if path.is_file():
            assert b"Ada Lovelace" not in path.read_bytes(), path
    assert len(left(store)) == 4


def test_a_text_is_forgotten_in_the_class_and_the_stack_trace_of_an_exception(types, tmp_path):
    path = tmp_path / "traced.db"
    trace = "  app/lovelace.py:7 in weather\ncaused by KeyError: 'Lovelace'"
    failure = Failure.of(Kind("tool", "timeout"), "slow", exception="app.LovelaceError", trace=trace)
    step = Step(run="run_a", seq=1, call=1, name="search", outcome="failure", started_at=1, failure=failure)
    kept = SqliteStore(path)
    kept.append(DEFAULT_TENANT, [StepEnded(step), RunEnded(Run(id="run_a", started_at=1))], "journal", 1)
    kept.close()
    types("forget", "--text", "Lovelace", "--yes", "--store", str(path))
    _, out, _ = types("show", "run_a", "--json", "--store", str(path))
    (told,) = json.loads(out)["steps"]
    assert told["failure"]["exception"] == "app.[forgotten]Error"
    assert told["failure"]["trace"] == "  app/lovelace.py:7 in weather\ncaused by KeyError: '[forgotten]'"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "Pass exactly one of --run, --tool, --session, --text and --learned."),
        (["--run", "x", "--tool", "y"], "Pass exactly one of --run, --tool, --session, --text and --learned."),
        (["--run", "x", "--learned"], "Pass exactly one of --run, --tool, --session, --text and --learned."),
        (["--text", ""], "--text is empty"),
        (["--run", "run_a"], "Several runs start with 'run_a'"),
    ],
)
def test_what_cannot_be_meant_is_not_forgotten(types, store, words, says):
    code, out, err = types("forget", *words, "--yes", "--store", store)
    assert (code, out) == (2, "")
    assert says in err
    assert len(left(store)) == 4


@pytest.mark.slow
def test_nobody_to_ask_is_no_consent(store):
    done = subprocess.run(
        [sys.executable, "-m", "mulligan", "forget", "--run", "run_a1", "--store", store],
        input="y\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Add --yes" in done.stderr
    assert len(left(store)) == 4


def test_what_is_not_there_cannot_be_forgotten(types, store):
    code, out, _ = types("forget", "--run", "run_zz", "--yes", "--store", store)
    assert (code, out) == (1, "No match. Nothing was deleted.\n")


def test_a_backup_is_a_store(types, store, tmp_path):
    copy = tmp_path / "copy.db"
    code, out, err = types("backup", str(copy), "--store", store)
    assert (code, err) == (0, "")
    assert out.startswith("4 runs, 4 steps, ")
    assert out.endswith("Integrity check passed.\n")
    assert left(str(copy)) == left(store)
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy.db"]


def test_a_backup_replaces_nothing_unasked(types, store, tmp_path):
    copy = tmp_path / "copy.db"
    copy.write_text("mine")
    code, _, err = types("backup", str(copy), "--store", store)
    assert code == 2
    assert "--force" in err
    assert copy.read_text() == "mine"
    assert types("backup", str(copy), "--store", store, "--force")[0] == 0
    code, _, err = types("backup", str(tmp_path / "no" / "copy.db"), "--store", store)
    assert code == 2
    assert "no does not exist" in err


@pytest.mark.parametrize("words", [["prune"], ["forget", "--run", "x", "--yes"], ["backup", "copy.db"]])
def test_a_store_that_is_not_there_is_not_made(types, tmp_path, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = types(*words, "--store", str(tmp_path / "none.db"))
    assert code == 2
    assert "does not exist yet" in err
    assert list(tmp_path.iterdir()) == []
