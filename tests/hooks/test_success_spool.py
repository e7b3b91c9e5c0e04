"""A success after a failure waits in a file, which costs an agent little, and is stored by what comes next."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hook_processes import begun, ended, failing

from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.hooks.success_spool import MAX_SPOOLED_EVENTS
from mulligan.store.sqlite import SqliteStore

SECRET = "ghp_0123456789abcdefghij0123456789abcdef"


def batch(number: int, command: str, name: str = "Bash") -> str:
    call = {"tool_name": name, "tool_use_id": f"toolu_{number}", "tool_input": {"command": command}}
    event = {"session_id": "s1", "cwd": "/src/shop", "hook_event_name": "PostToolBatch"}
    return json.dumps({**event, "tool_calls": [{**call, "tool_response": "fine"}]})


SESSION_END = json.dumps({"session_id": "s1", "cwd": "/src/shop", "hook_event_name": "SessionEnd", "reason": "other"})


def run_hooks(home: Path, *events: str) -> None:
    for event in events:
        assert ended(begun(home), event) == ""


def read_steps(home: Path):
    store = SqliteStore(home / "mulligan.db")
    (history,) = store.runs(DEFAULT_TENANT, RunQuery())
    store.close()
    return history.steps


def spooled(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (home / "hooks").glob("*.spool"))


def test_a_success_after_a_failure_opens_no_store_and_recovers_it_with_the_next_event(tmp_path):
    run_hooks(tmp_path, failing(1))
    before = (tmp_path / "mulligan.db").stat().st_mtime_ns
    run_hooks(tmp_path, batch(2, "make part1"))
    assert (tmp_path / "mulligan.db").stat().st_mtime_ns == before
    assert b"make part1" in spooled(tmp_path)
    run_hooks(tmp_path, SESSION_END)
    failed, succeeded = read_steps(tmp_path)
    assert [link.failed_call for link in succeeded.links] == [failed.call]
    assert not list((tmp_path / "hooks").iterdir())


def test_calls_are_stored_in_the_order_in_which_they_were_made(tmp_path):
    """A call after the recovery is no part of it."""
    run_hooks(tmp_path, failing(1), batch(2, "make part1"), batch(3, "x", "Read"), SESSION_END)
    steps = read_steps(tmp_path)
    assert [step.name for step in steps] == ["Bash", "Bash", "Read"]
    assert [link.method for link in steps[1].links] == ["retry"]


def test_the_next_command_stores_a_success_whose_session_never_ended(tmp_path, types, monkeypatch):
    run_hooks(tmp_path, failing(1), batch(2, "make part1"))
    monkeypatch.setenv("MULLIGAN_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert types("runs")[0] == 0
    assert [step.outcome for step in read_steps(tmp_path)] == ["failure", "success"]
    assert not spooled(tmp_path)


def test_a_spooled_success_holds_no_secret(tmp_path):
    run_hooks(tmp_path, failing(1), batch(2, f"curl -H 'Authorization: Bearer {SECRET}' example.com"))
    assert b"curl" in spooled(tmp_path)
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_successes_without_end_do_not_fill_the_disk(tmp_path):
    run_hooks(tmp_path, failing(1), *(batch(number, f"make x{number}") for number in range(2, MAX_SPOOLED_EVENTS + 3)))
    assert len(read_steps(tmp_path)) == MAX_SPOOLED_EVENTS + 2
    assert not spooled(tmp_path)


def test_a_killed_hook_leaves_the_spool_readable(tmp_path):
    """A hook that dies while it writes leaves a torn frame, which is skipped."""
    run_hooks(tmp_path, failing(1), batch(2, "make part1"))
    (spool,) = (tmp_path / "hooks").glob("*.spool")
    spool.write_bytes(spool.read_bytes() + spool.read_bytes()[:40])
    run_hooks(tmp_path, batch(3, "make part3"), SESSION_END)
    assert [step.arguments["command"] for step in read_steps(tmp_path)] == ["make part1", "make part1", "make part3"]


@pytest.mark.parametrize("level", ["off", "shape"])
def test_record_levels_hold_for_successes_too(tmp_path, level):
    run_hooks(tmp_path, failing(1))
    folder = tmp_path / ".config" / "mulligan"
    folder.mkdir(parents=True)
    (folder / "mulligan.toml").write_text(f'record = "{level}"\n')
    run_hooks(tmp_path, batch(2, "make part1"))
    assert b"make" not in spooled(tmp_path)


def test_two_hooks_at_once_spool_both(tmp_path):
    run_hooks(tmp_path, failing(1))
    processes: list[subprocess.Popen[str]] = [begun(tmp_path) for _ in range(4)]
    for number, process in enumerate(processes, 2):
        process.stdin.write(batch(number, f"make x{number}"))
    assert [ended(process, "") for process in processes] == [""] * 4
    run_hooks(tmp_path, SESSION_END)
    assert len(read_steps(tmp_path)) == 5
