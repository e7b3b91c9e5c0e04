"""The hook as an agent runs it: a process of its own, many at once, and never the failure."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hook_processes import begun, ended, failing, loud
from windows_files import WINDOWS_FILES

import mulligan
from mulligan.cli.clients import AGENTS
from mulligan.cli.install import build_hook_command
from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.learn import tracker
from mulligan.store.sqlite import SqliteStore

PACKAGE = Path(mulligan.__file__).parent


COMPACT = json.dumps({"session_id": "s1", "cwd": "/src/shop", "hook_event_name": "SessionStart", "source": "compact"})


def test_the_command_that_is_installed_keeps_a_failure_and_reminds_of_it(tmp_path):
    shell = loud(build_hook_command("claude-code"))
    assert ended(begun(tmp_path, shell), failing()) == ""
    told = json.loads(ended(begun(tmp_path, shell), COMPACT))
    assert "part1" in told["hookSpecificOutput"]["additionalContext"]


def test_hook_works_with_the_file_functions_of_windows(tmp_path):
    """Not run there: a process has what Python offers on Windows."""
    start = f"import runpy; runpy.run_path({str(PACKAGE / 'hooks' / 'start.py')!r}, run_name='__main__')"
    shell = shlex.join([sys.executable, "-ESPc", f"{WINDOWS_FILES}\n{start}", "claude-code"])
    assert ended(begun(tmp_path, shell), failing()) == ""
    success = {"tool_name": "Read", "tool_use_id": "toolu_2", "tool_input": {}, "tool_response": "fine"}
    batch = {**json.loads(COMPACT), "hook_event_name": "PostToolBatch", "tool_calls": [success]}
    assert ended(begun(tmp_path, shell), json.dumps(batch)) == ""
    assert sorted(path.name for path in (tmp_path / "hooks").iterdir()) == ["s1.calls", "s1.open"], "no faults"
    assert (tmp_path / "hooks" / "s1.calls").read_bytes().endswith(b"Read:toolu_2\n")
    assert b"\r" not in (tmp_path / "hooks" / "s1.calls").read_bytes()
    assert "part1" in ended(begun(tmp_path, shell), COMPACT)


def test_several_at_once_lose_nothing_of_each_other(tmp_path):
    SqliteStore(tmp_path / "mulligan.db").close()
    work = [begun(tmp_path) for _ in range(8)]
    for number, process in enumerate(work, 1):
        process.stdin.write(failing(number))
    assert [ended(process, "") for process in work] == [""] * 8
    assert ended(begun(tmp_path), failing(8)) == ""  # stores what waited too long for the others
    store = SqliteStore(tmp_path / "mulligan.db")
    (history,) = store.runs(DEFAULT_TENANT, RunQuery())
    assert [step.seq for step in history.steps] == list(range(1, 9))
    known = tracker.from_json(store.get(DEFAULT_TENANT, "session", "s1"))
    assert len(known.failures) + len(known.pending) == 8
    store.close()


@contextlib.contextmanager
def locked(home: Path) -> Iterator[None]:
    """Another process holds the store."""
    program = (
        "import sqlite3, sys; store = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "store.execute('BEGIN EXCLUSIVE'); print('locked', flush=True); sys.stdin.read(); store.execute('ROLLBACK')"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, home / "mulligan.db"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"locked\n"
    yield
    holder.communicate()


def seconds(home: Path, event: str) -> float:
    began = time.monotonic()
    assert ended(begun(home), event) == ""
    return time.monotonic() - began


def test_locked_store_delays_no_hook_and_nothing_is_lost(tmp_path):
    SqliteStore(tmp_path / "mulligan.db").close()
    usual = min(seconds(tmp_path, failing(number)) for number in (1, 2, 3))
    with locked(tmp_path):
        delayed = [seconds(tmp_path, event) for event in (failing(4), failing(5, "s2"), COMPACT)]
    assert min(delayed) <= usual + 0.3  # the limit is 0.1 s, and this machine is busy
    assert "Recent failures" in ended(begun(tmp_path), failing(6))  # after the compaction meanwhile
    store = SqliteStore(tmp_path / "mulligan.db")
    (history,) = store.runs(DEFAULT_TENANT, RunQuery())
    assert [step.arguments["command"] for step in history.steps] == [f"make part{number}" for number in (1, 2, 3, 4, 6)]
    assert len(history.compactions) == 1
    store.close()
    assert not list((tmp_path / "hooks").glob("s1.spool"))


def test_command_stores_what_a_hook_could_not(tmp_path, types, monkeypatch):
    SqliteStore(tmp_path / "mulligan.db").close()
    with locked(tmp_path):
        ended(begun(tmp_path), failing())
        ended(begun(tmp_path), json.dumps({**json.loads(COMPACT), "hook_event_name": "SessionEnd"}))
    spool = next((tmp_path / "hooks").glob("*.spool")).read_bytes()
    assert b"make part1" in spool
    monkeypatch.setenv("MULLIGAN_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert types("runs")[0] == 0
    store = SqliteStore(tmp_path / "mulligan.db")
    (history,) = store.runs(DEFAULT_TENANT, RunQuery())
    store.close()
    assert (history.run.session, history.run.end_reason, len(history.steps)) == ("s1", "finished", 1)
    assert not list((tmp_path / "hooks").iterdir())


def test_spooled_event_holds_no_secret(tmp_path):
    SqliteStore(tmp_path / "mulligan.db").close()
    with locked(tmp_path):
        event = json.loads(failing()) | {
            "error": "Exit code 1\nAuthorization: Bearer ghp_0123456789abcdefghij0123456789abcdef"
        }
        ended(begun(tmp_path), json.dumps(event))
    assert b"ghp_0123456789" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def no_folder(home: Path) -> None:
    (home / "blocked").write_text("a file where a folder should be")


def corrupt(home: Path) -> None:
    home.joinpath("mulligan.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)


def foreign(home: Path) -> None:
    import sqlite3

    with sqlite3.connect(home / "mulligan.db") as other:
        other.execute("CREATE TABLE theirs (x)")


def bad_settings(home: Path) -> None:
    home.joinpath(".config", "mulligan").mkdir(parents=True)
    home.joinpath(".config", "mulligan", "mulligan.toml").write_text("mode = ")


@pytest.mark.parametrize("breaks", [no_folder, corrupt, foreign, bad_settings])
def test_a_hook_that_is_broken_tells_the_user_once_and_is_counted(tmp_path, breaks, types, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    breaks(home)
    home = home / "blocked" if breaks is no_folder else home
    shell = loud(build_hook_command("claude-code"))
    notes = [ended(begun(home, shell), event) for event in (failing(), COMPACT)]
    assert json.loads(notes[0])["systemMessage"].startswith("mulligan records nothing: ")
    assert notes[1] == ""
    if breaks is no_folder:
        return  # there is nowhere to count
    monkeypatch.setenv("MULLIGAN_HOME", str(home))
    monkeypatch.setenv("MULLIGAN_STORE", str(tmp_path / "sound.db"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    code, said, _ = types("doctor", "--json")
    assert (code, json.loads(said)["hook_faults"]) == (1, 2)
    _, said, _ = types("doctor")
    assert "2 hook errors: events of coding agents were not stored" in said


@pytest.mark.parametrize("what", ["the interpreter", "the package", "a part of it"])
def test_what_was_uninstalled_does_not_disturb_the_agent(tmp_path, what):
    copy = tmp_path / "lib" / "mulligan"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shell = build_hook_command("claude-code").replace(str(PACKAGE), str(copy))
    assert ended(begun(tmp_path, shell), failing()) == ""
    if what == "the interpreter":
        shell = shell.replace(sys.executable, str(tmp_path / "gone" / "python"))
    elif what == "the package":
        shutil.rmtree(copy)
    else:
        shutil.rmtree(copy / "classify")
    assert ended(begun(tmp_path, shell), failing(2)) == ""


def test_a_hook_that_is_given_nonsense_is_silent(tmp_path):
    for event in ("", "{", "\0" * 100, json.dumps([]), "x" * 100_000):
        assert ended(begun(tmp_path, loud(build_hook_command("claude-code"))), event) == ""


def test_a_hook_without_an_agent_says_how_it_is_called(tmp_path):
    done = begun(tmp_path, loud(build_hook_command("claude-code")).replace(" claude-code", " nobody"))
    said, complained = done.communicate("{}", timeout=60)
    assert (done.returncode, said) == (1, "")  # 2 would stop an agent
    assert "mulligan-hook claude-code|codex|copilot|cursor|gemini" in complained


@pytest.mark.parametrize("agent", sorted(AGENTS.keys() - {"opencode", "pi"}))  # their plugins send no successes
def test_nothing_to_do_imports_next_to_nothing(tmp_path, agent):
    called = {"tool_name": "Read", "tool_use_id": "t1", "tool_input": {}, "tool_response": "fine"}
    events = {
        "claude-code": {"hook_event_name": "PostToolBatch", "tool_calls": [called]},
        "codex": {"hook_event_name": "PostToolUse", **called},
        "copilot": {"hook_event_name": "PostToolUse", **called},
        "cursor": {"hook_event_name": "postToolUse", **called, "tool_output": '{"exitCode":0}'},
        "gemini": {"hook_event_name": "AfterTool", **called},
    }
    shell = loud(build_hook_command(agent)).replace(" -ESP ", " -ESP -X importtime ")
    process = begun(tmp_path, shell)
    said, told = process.communicate(json.dumps({"session_id": "s1", **events[agent]}), timeout=60)
    assert (process.returncode, said) == (0, "")
    loaded = {line.rpartition("|")[2].strip() for line in told.splitlines()}
    assert {name for name in loaded if name.startswith("mulligan")} == {
        "mulligan", "mulligan.hooks", "mulligan.hooks.main", "mulligan.hooks.session_files",
    }  # fmt: skip
    assert not loaded & {"json", "re", "typing", "sqlite3", "msgspec", "site", "enum"}
    assert (tmp_path / "hooks" / "s1.calls").read_text().endswith(" Read:t1\n")
