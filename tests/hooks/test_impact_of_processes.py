"""A coding agent works for two simulated weeks over its hooks: advice is held out from some sessions, and `impact`
shows the effect that the simulation put in. In the last sessions each event starts a real hook process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hook_events import handle_event
from simulated_weeks import SHIFTED_CLOCK, SimulatedModel, check_impact, check_show, start_times

import mulligan
from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.core.episodes import list_episodes
from mulligan.learn import seeds
from mulligan.store.sqlite import SqliteStore

pytestmark = pytest.mark.slow
STALE = "File has been modified since read, by the user or a linter. Read it again before attempting to write it."
READ = ("Read", {"file_path": "/src/shop/a.py"}, "total = 1")
EDIT = {"file_path": "/src/shop/a.py", "old_string": "total = 1", "new_string": "total = 2"}
STALE_EDIT = ("Edit", EDIT, f"<tool_use_error>{STALE}</tool_use_error>")
SESSIONS, SESSIONS_OF_PROCESSES = 90, 5
START = Path(mulligan.__file__).parent / "hooks" / "start.py"
HOOK = f"{SHIFTED_CLOCK}\nimport runpy\nrunpy.run_path({str(START)!r}, run_name='__main__')"


class Session:
    """One session of Claude Code. Each event is a process, or handled in this one."""

    def __init__(self, clock_file: Path, name: str, *, has_processes: bool) -> None:
        self.clock_file, self.name, self.has_processes, self.calls = clock_file, name, has_processes, 0

    def send(self, event: str, **fields: Any) -> str:
        message = json.dumps({"session_id": self.name, "cwd": "/src/shop", "hook_event_name": event, **fields})
        if not self.has_processes:
            return handle_event("claude-code", message.encode()).decode()
        environment = {**os.environ, "TEST_CLOCK_FILE": str(self.clock_file)}
        command = [sys.executable, "-SP", "-c", HOOK, "claude-code"]
        process = subprocess.run(command, input=message, env=environment, capture_output=True, text=True)
        assert (process.returncode, process.stderr) == (0, "")
        return process.stdout

    def call(self, *tool_calls: tuple[str, dict[str, Any], str]) -> str:
        """Send the results of a batch of tool calls, and return what the model reads."""
        sent = []
        for tool, arguments, response in tool_calls:
            self.calls += 1
            id = f"toolu_{self.calls}"
            sent.append({"tool_name": tool, "tool_input": arguments, "tool_use_id": id, "tool_response": response})
        return self.send("PostToolBatch", tool_calls=sent)


def work(session: Session, model: SimulatedModel) -> bool:
    """Edit a file that has changed. The model's first attempt is to read it, or to repeat the edit."""
    has_advice = "Read" in session.call(STALE_EDIT)
    if not model.is_right(has_advice):
        session.call(STALE_EDIT)
    session.call(READ, ("Edit", EDIT, "fine"))
    session.send("SessionEnd", reason="other")
    return has_advice


def test_impact_shows_what_the_simulation_put_in(types, tmp_path, monkeypatch):
    monkeypatch.setenv("MULLIGAN_HOME", str(tmp_path))
    monkeypatch.setenv("MULLIGAN_HOLDOUT", "0.5")
    with contextlib.closing(SqliteStore(tmp_path / "mulligan.db")) as store:
        seeds.remove_seeds(store, DEFAULT_TENANT)
    clock_file, model, system_time = tmp_path / "clock", SimulatedModel(7), time.time
    advised = {}
    for number, shift in enumerate(start_times(SESSIONS)):
        clock_file.write_text(str(shift))
        monkeypatch.setattr(time, "time", lambda shift=shift: system_time() + shift)
        session = Session(clock_file, f"s{number}", has_processes=number >= SESSIONS - SESSIONS_OF_PROCESSES)
        advised[session.name] = work(session, model)
    monkeypatch.setattr(time, "time", system_time)
    check_impact(types)
    with contextlib.closing(SqliteStore(tmp_path / "mulligan.db")) as store:
        histories = store.runs(DEFAULT_TENANT, RunQuery(limit=SESSIONS))
    held_out, told = [], []
    for history in histories:
        for episode in list_episodes(history):  # all processes of a session agree
            assert not (episode.fixes and episode.held_out_fixes)
            assert bool(episode.fixes) is advised[history.run.session]
            (held_out if episode.held_out_fixes else told).append(history.run.id)
    check_show(types, held_out[0], told[0])
