"""A coding agent, as its hooks see it: events in, what it is told out."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hook_events import handle_event

from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.store.sqlite import SqliteStore


class Agent:
    """Claude Code, unless it is told otherwise."""

    def __init__(
        self, home, name: str = "claude-code", session: str = "bc15e4d3-567a", folder: str = "/src/shop"
    ) -> None:
        self.home, self.name, self.session, self.folder = home, name, session, folder
        self.ids = itertools.count(1)
        self.log = home / f"{session}.jsonl"

    def tells(self, event: str, **fields: Any) -> dict[str, Any] | None:
        told = {
            "session_id": self.session,
            "transcript_path": str(self.log),
            "cwd": self.folder,
            "hook_event_name": event,
            **fields,
        }
        said = handle_event(self.name, json.dumps(told, separators=(",", ":")).encode())
        return json.loads(said) if said else None

    def says(self, event: str, **fields: Any) -> str:
        """What the model is told."""
        told = self.tells(event, **fields)
        return told["hookSpecificOutput"]["additionalContext"] if told else ""

    def fails(self, tool: str, error: str, **arguments: Any) -> str:
        """A tool fails, and the batch that it was in ends."""
        id = f"toolu_{next(self.ids)}"
        call = {"tool_name": tool, "tool_input": arguments, "tool_use_id": id}
        said = self.says("PostToolUseFailure", **call, error=error, is_interrupt=False, duration_ms=58)
        self.tells("PostToolBatch", tool_calls=[{**call, "tool_response": error}])
        return said

    def is_refused(self, tool: str, error: str, **arguments: Any) -> str:
        """A tool is not even called."""
        return self.batch((tool, arguments, f"<tool_use_error>{error}</tool_use_error>"))

    def works(self, tool: str, **arguments: Any) -> str:
        return self.batch((tool, arguments, "fine"))

    def batch(self, *calls: tuple[str, dict[str, Any], str]) -> str:
        told = [
            {"tool_name": tool, "tool_input": given, "tool_use_id": f"toolu_{next(self.ids)}", "tool_response": said}
            for tool, given, said in calls
        ]
        return self.says("PostToolBatch", tool_calls=told)

    def compacts(self) -> str:
        return self.says("SessionStart", source="compact")

    def ends(self) -> None:
        assert self.tells("SessionEnd", reason="other") is None

    @property
    def store(self) -> SqliteStore:
        return SqliteStore(self.home / "mulligan.db")

    def run(self):
        """The run that the session is; None where nothing was kept."""
        found = self.store.runs(DEFAULT_TENANT, RunQuery(session=self.session))
        assert len(found) <= 1
        return found[0] if found else None

    def kinds(self) -> list[tuple[str, str]]:
        """What failed, of which kind."""
        history = self.run()
        return [(each.name, str(each.failure.kind)) for each in history.steps if each.has_failed] if history else []


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MULLIGAN_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("MULLIGAN", "MULLIGAN_MODE", "MULLIGAN_STORE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def agent(home):
    return Agent(home)


@pytest.fixture
def another(home):
    def made(**about):
        return Agent(home, **about)

    return made
