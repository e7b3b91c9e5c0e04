"""The frame of the command: help, misspelt words, exit codes, completion, one JSON fact for every printed one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mulligan import __version__
from mulligan.events import RunEnded, RunStarted, StepEnded
from mulligan.records import Run, Step
from mulligan.remember.sqlite import SqliteStore
from mulligan.remember.store import LOCAL
from mulligan.serve.cli import COMMANDS, main


@pytest.fixture
def types(capsys, monkeypatch):
    def typed(*words):
        monkeypatch.setattr(sys, "argv", ["mulligan", *words])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return typed


@pytest.fixture
def store(tmp_path):
    """A store with three runs, two of which begin alike."""
    path = tmp_path / "kept.db"
    kept = SqliteStore(path)
    for place, id in enumerate(["run_aaaa1", "run_aaaa2", "run_bbbb1"], start=1):
        run = Run(id=id, agent=f"agent-{place}", started=place * 1000, ended=place * 1000 + 500, end="finished")
        step = Step(run=id, seq=1, call=1, name="weather", started=place * 1000, seconds=0.1)
        kept.append(LOCAL, [RunStarted(run), StepEnded(step), RunEnded(run)], "journal", place * 3)
    kept.close()
    return str(path)


def test_help_names_every_command(types):
    code, out, _ = types("--help")
    assert code == 0
    for name in COMMANDS:
        assert f"  {name} " in out


def test_nothing_typed_shows_the_help_and_is_not_a_success(types):
    code, out, _ = types()
    assert code == 2
    assert "Commands:" in out


def test_version(types):
    assert types("--version") == (0, f"mulligan {__version__}\n", "")


def test_a_misspelt_option_is_told_with_where_to_look(types):
    code, out, err = types("runs", "--agnet", "x")
    assert (code, out) == (2, "")
    assert err.startswith("error: no such option")
    assert "mulligan runs --help" in err


def test_runs_are_listed_the_newest_first(types, store):
    code, out, _ = types("runs", "--store", store)
    assert code == 0
    assert out.startswith("3 runs: 3 success.")
    assert out.index("run_bbbb1") < out.index("run_aaaa2") < out.index("run_aaaa1")


def test_json_holds_the_same_facts(types, store):
    _, out, _ = types("runs", "--store", store, "--agent", "agent-2", "--json")
    (run,) = json.loads(out)
    assert (run["id"], run["status"], run["agent"]) == ("run_aaaa2", "success", "agent-2")
    assert run["calls"][0]["ending"] == "first try"


def test_a_run_is_found_by_any_unambiguous_beginning_of_its_id(types, store):
    for wanted in ("run_bbbb1", "run_b", "bbbb", "last"):
        code, out, _ = types("show", wanted, "--store", store)
        assert code == 0
        assert out.startswith("run_bbbb1 success")


def test_an_ambiguous_beginning_names_the_runs_it_could_be(types, store):
    code, _, err = types("show", "run_aaaa", "--store", store)
    assert code == 2
    assert "2 runs start with run_aaaa" in err
    assert "run_aaaa1" in err
    assert "agent-2" in err


def test_settings_show_what_is_in_force(types, monkeypatch):
    monkeypatch.setenv("MULLIGAN_ATTEMPTS", "2")
    _, out, _ = types("settings", "--json")
    assert json.loads(out)["attempts"] == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_ask_the_command_itself(types, shell):
    code, out, _ = types("completion", shell)
    assert code == 0
    assert "_MULLIGAN_COMPLETE" in out


def test_completion_knows_the_commands(monkeypatch):
    done = subprocess.run(
        [sys.executable, "-c", "from mulligan.serve.cli import main; main()"],
        env={
            "_MULLIGAN_COMPLETE": "bash_complete",
            "COMP_WORDS": "mulligan ru",
            "COMP_CWORD": "1",
            "PYTHONPATH": ":".join(sys.path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "plain,runs\n"


def test_a_reader_who_has_seen_enough_is_not_an_error(store):
    done = subprocess.run(
        f"'{sys.executable}' -c 'from mulligan.serve.cli import main; main()' show last --store '{store}' | head -n 1",
        shell=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("run_bbbb1")
    assert done.stderr == ""


def test_asking_for_help_imports_no_store_and_no_table():
    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "importtime",
            "-c",
            "from mulligan.serve.cli import cli; cli.main(['--help'], standalone_mode=False)",
        ],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Commands:" in done.stdout
    for heavy in ("sqlite3", "rich", "jsonschema_rs", "asyncio", "mulligan.classify"):
        assert f"| {heavy}" not in done.stderr.replace("  ", " "), heavy
