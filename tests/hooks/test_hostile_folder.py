"""Folders and files with hostile names: nothing in them is executed, and the hook works."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest

from mulligan.cli.server_entries import read_plugin_command
from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.store.sqlite import SqliteStore

pytestmark = pytest.mark.slow
NAMES = (
    "a b'c\"d",
    "$(touch owned)`touch owned`;touch owned",
    "line\nbreak\ttab",
    "übung \u202e 漢字 \U0001f600",
    "--help",
    "%PATH% ^& |",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("agent", ["claude-code", "codex", "copilot", "gemini", "opencode", "pi"])
def test_the_installed_command_records_a_failure_in_a_hostile_folder(tmp_path, agent, name):
    home, project = tmp_path / "home", tmp_path / name
    home.mkdir()
    project.mkdir()
    for module in ("msgspec.py", "mulligan.py", "sitecustomize.py"):  # what a repository may hold
        (project / module).write_text("import pathlib; pathlib.Path('owned').write_text('x')\n")
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "MULLIGAN_HOME": str(home / "data"), "PYTHONPATH": str(project),
    }  # fmt: skip
    sources = os.pathsep.join(sys.path)
    installation = subprocess.run(
        [sys.executable, "-m", "mulligan", "install", agent],
        env=environment | {"PYTHONPATH": sources}, cwd=home, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert installation.returncode == 0, installation.stderr
    event, settings = {
        "claude-code": ("PostToolUseFailure", ".claude/settings.json"),
        "codex": ("PostToolUse", ".codex/hooks.json"),
        "copilot": ("PostToolUseFailure", ".copilot/settings.json"),
        "gemini": ("AfterTool", ".gemini/settings.json"),
        "opencode": ("ToolFailed", ".config/opencode/plugins/mulligan.js"),
        "pi": ("ToolFailed", ".pi/agent/extensions/mulligan.js"),
    }[agent]
    text = (home / settings).read_text()
    if settings.endswith(".js"):
        command = shlex.join(read_plugin_command(text))
    else:
        command = json.loads(text)["hooks"][event][0]["hooks"][0]["command"]
    log = project / f"{name}.jsonl"
    if agent == "codex":
        payloads = (
            {"type": "function_call", "name": "exec_command", "arguments": json.dumps({"cmd": name}), "call_id": "c1"},
            {"type": "item_completed", "item": {"type": "CommandExecution", "id": "c1", "exit_code": 2}},
        )
        types = ("response_item", "event_msg")
        lines = [json.dumps({"type": type, "payload": payload}) for type, payload in zip(types, payloads, strict=True)]
        log.write_text("\n".join(lines) + "\n")
    fields = {
        "hook_event_name": event, "session_id": "s1", "cwd": str(project), "transcript_path": str(log),
        "tool_name": "Bash", "tool_input": {"command": name}, "tool_use_id": "c1", "error": f"Exit code 2\n{name}",
        "tool_response": {"llmContent": name, "error": {"message": name}} if agent == "gemini" else name,
    }  # fmt: skip
    if agent == "opencode":
        state = {"status": "error", "input": {"command": name}, "error": name}
        fields["part"] = {"type": "tool", "tool": "bash", "callID": "c1", "state": state}
    answer = subprocess.run(
        command, shell=True, input=json.dumps(fields).encode(), env=environment, cwd=project, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert list(tmp_path.rglob("owned")) == []
    store = SqliteStore(home / "data" / "mulligan.db")
    (history,) = store.runs(DEFAULT_TENANT, RunQuery())
    store.close()
    assert [step.has_failed for step in history.steps] == [True]
    assert not (home / "data" / "hooks" / "faults").exists()
