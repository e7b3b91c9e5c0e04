"""The real Claude Code: what its hooks keep, and what its model is then told."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_api import SUMMARY, Ask, Reply, asks
from coding_agents import ROOT, Claude, Place, corrupt, unwritable

from mulligan.classify.classifier import classify
from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.records import Run, Step
from mulligan.store.sqlite import SqliteStore

pytestmark = pytest.mark.agents
REMINDER = "Recent failures of this session"


def failing(place: Place) -> list[Reply]:
    """A command, an edit and a tool of a server that fail, and some that do not."""
    file = str(place.project / "a.txt")
    return [
        asks("Bash", command="echo hi", description="greets"),
        asks("Bash", command="make nothing", description="builds"),
        asks("Read", file_path=file),
        asks("Edit", file_path=file, old_string="not in it", new_string="x"),
        asks("mcp__crm__lookup", q="tea"),
        Reply(text="That did not work."),
    ]


KINDS = [("Bash", "tool/build_failure"), ("Edit", "tool/edit_mismatch"), ("lookup", "tool/rate_limit")]


def test_failures_are_kept_with_their_kind_and_survive_a_compaction(place):
    place.install("claude-code")
    place.api.script = failing(place)
    with Claude(place) as claude:
        claude.says("please work")
        assert place.kinds() == KINDS
        assert set(place.api.said(REMINDER)) == {0}  # before a compaction nothing is said
        before = len(place.api.requests)
        claude.says("/compact")
        after = len(place.api.requests)
        assert set(place.api.said(REMINDER)[before:after]) == {0}  # nor to who sums it up
        place.api.script = [asks("Bash", command="true", description="rests"), Reply()]
        claude.says("go on")
        said = place.api.said(REMINDER)[after:]
        assert said  # and from then on it stands in the conversation, once
        assert set(said) == {1}
        told = json.dumps(place.api.requests[after])
        assert SUMMARY in told
        assert all(f"{kind} in {tool}" in told for tool, kind in KINDS)
        claude.says("/compact")
        after = len(place.api.requests)
        claude.says("go on")
        assert place.api.said(REMINDER)[after:] == [1]  # the next compaction has its own
        claude.ends()
        assert claude.complaints == []


def test_nothing_is_said_when_nothing_failed(place):
    place.install("claude-code")
    place.api.script = [asks("Bash", command="true", description="rests"), Reply()]
    with Claude(place) as claude:
        claude.says("please work")
        claude.says("/compact")
        claude.says("go on")
        claude.ends()
        assert set(place.api.said("mulligan")) == {0}
        assert set(place.api.said(REMINDER)) == {0}
        assert claude.complaints == []


def test_what_overcame_a_failure_before_in_this_folder_is_said_with_it(place):
    place.install("claude-code")
    file = str(place.project / "a.txt")
    edit = {"file_path": file, "old_string": "hello", "new_string": "hello"}
    for number in range(4):
        edit["new_string"] = f"hello {number}"
        place.api.script = [asks("Edit", **edit), asks("Read", file_path=file), asks("Edit", **edit), Reply()]
        with Claude(place) as claude:
            claude.says("please work")
            claude.ends()
        hinted = any(place.api.said("mulligan, in this folder: "))
        assert hinted == (number == 3)
        edit["old_string"] = f"hello {number}"


def uninstalled(place: Place) -> None:
    settings = place.home / ".claude" / "settings.json"
    settings.write_text(settings.read_text().replace("/mulligan/hooks/", "/gone/mulligan/hooks/"))


def results(place: Place) -> list[object]:
    """What the tools answered, as the model saw it."""
    last = place.api.requests[-1]["messages"]
    blocks = [block for each in last if isinstance(each["content"], list) for block in each["content"]]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


@pytest.mark.parametrize("breaks", [None, unwritable, corrupt, uninstalled])
def test_a_broken_hook_does_not_disturb_the_agent(place, breaks):
    place.install("claude-code")
    if breaks is not None:
        breaks(place)
    place.api.script = failing(place)
    with Claude(place) as claude:
        result = claude.says("please work")
        assert result["result"] == "That did not work."
        said = results(place)
        assert len(said) == 5
        assert str(said[0]).startswith("hi")
        assert claude.says("/compact")["is_error"] is False
        after = len(place.api.requests)
        assert claude.says("go on")["result"] == "Done."
        assert place.api.said(REMINDER)[after:] == [1 if breaks is None else 0]
        claude.ends()
        assert claude.complaints == []


def test_the_plugin_does_the_same(place, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    hook = programs / "mulligan-hook"
    hook.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = {sys.path!r}\nfrom mulligan.hooks.main import main\nmain()\n"
    )
    hook.chmod(0o755)
    place.environment["PATH"] = f"{programs}:{place.environment['PATH']}"
    plugin = shutil.copytree(ROOT / "plugins" / "claude-code", tmp_path / "plugin")
    place.api.script = failing(place)
    with Claude(place, "--plugin-dir", str(Path(plugin))) as claude:
        claude.says("please work")
        assert place.kinds() == KINDS
        claude.says("/compact")
        after = len(place.api.requests)
        claude.says("go on")
        assert place.api.said(REMINDER)[after:] == [1]
        claude.ends()


def test_a_batch_in_which_one_of_two_fails_is_kept_right(place):
    place.install("claude-code")
    both = (
        Ask("Bash", {"command": "make nothing", "description": "builds"}),
        Ask("Bash", {"command": "true", "description": "rests"}),
    )
    place.api.script = [Reply(both), Reply()]
    with Claude(place) as claude:
        claude.says("please work")
        claude.ends()
    assert place.kinds() == [("Bash", "tool/build_failure")]


def test_a_question_is_answered_from_memory_through_our_own_server(place):
    """A query failed and recovered yesterday; today the agent asks before it tries, and is told what helped."""
    pytest.importorskip("mcp", reason="the mcp package is not installed: make test-agents")
    remembers_a_query(place)
    done = subprocess.run(
        [sys.executable, "-m", "mulligan", "install", "mcp-server", "--client", "claude-code", "--project"],
        env=place.environment, cwd=place.project, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    server = json.loads((place.project / ".mcp.json").read_text())["mcpServers"]["mulligan"]
    server["env"] = {name: place.environment[name] for name in ("MULLIGAN_HOME", "PYTHONPATH")}
    # An entry of a project names no path of this machine: it runs mulligan from the PATH.
    server["env"]["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{place.environment['PATH']}"
    place.api.script = [
        asks("WaitForMcpServers"),
        asks("mcp__mulligan__known_failures", tool="run_query"),
        asks("mcp__mulligan__suggest_fix", tool="Bash", error="Exit code 128\nfatal: not a git repository"),
        Reply(text="Ten at most, then."),
    ]
    options = ("--mcp-config", json.dumps({"mcpServers": {"mulligan": server}}), "--allowedTools", "mcp__mulligan")
    with Claude(place, *options) as claude:
        assert claude.says("ask first")["result"] == "Ten at most, then."
        known, seeded = (json.dumps(each) for each in results(place)[1:])
    assert "run_query, tool/invalid_arguments, 3 occurrences, 3 recovered" in known
    assert "limit=10" in known
    assert "git -C DIR" in seeded
    assert "general advice" in seeded


def remembers_a_query(place: Place) -> None:
    failure = classify(source="tool", tool="run_query", text="limit must be 10 or less, got 500")
    store = SqliteStore(place.data / "mulligan.db")
    for number in range(3):
        at = int(time.time() * 1000) - 86_400_000
        run = Run(id=f"run_{number}", agent="reporter", started_at=at, ended_at=at, end_reason="finished")
        shared = {"run": run.id, "name": "run_query", "started_at": at}
        steps = [
            Step(seq=1, call=1, arguments={"limit": 500}, outcome="failure", failure=failure, **shared),
            Step(seq=2, call=2, arguments={"limit": 10}, **shared),
        ]
        store.append(DEFAULT_TENANT, [*map(StepEnded, steps), RunEnded(run)], f"journal_{number}", 1, "ann")
    store.close()


def test_what_it_logs_by_opentelemetry_is_kept_by_a_server(place, tmp_path):
    pytest.importorskip("starlette", reason="the extra `server` is not installed")
    mulligan = [sys.executable, "-m", "mulligan"]
    serving = subprocess.Popen(
        [*mulligan, "serve", "--no-auth", "--port", "0", "--store", str(tmp_path / "server.db")],
        env=place.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        url = re.search(r"Listening on (\S+) with store ", serving.stdout.readline())[1]
        said = subprocess.run(
            [*mulligan, "env", "--for", "claude-code", "--url", url, "--json"],
            env=place.environment, capture_output=True, timeout=60, check=True,
        )  # fmt: skip
        sends = {**json.loads(said.stdout), "OTEL_METRICS_EXPORTER": "otlp", "OTEL_LOGS_EXPORT_INTERVAL": "200"}
        place.environment |= sends | {"OTEL_METRIC_EXPORT_INTERVAL": "500"}
        place.api.script = failing(place)
        with Claude(place) as claude:
            claude.says("please work")
            claude.ends()
        store = SqliteStore(tmp_path / "server.db")
        (run,) = store.runs(DEFAULT_TENANT, RunQuery())
        store.close()
    finally:
        serving.kill()
        serving.communicate()
    assert (run.run.agent, run.run.version is not None) == ("claude-code", True)
    # Of an edit whose text is not found, and of what a command said, its logs say nothing.
    tools = [(each.name, each.server, each.outcome) for each in run.steps if each.type == "tool"]
    assert tools == [
        ("Bash", None, "success"), ("Bash", None, "failure"), ("Read", None, "success"), ("lookup", "crm", "failure"),
    ]  # fmt: skip
    kinds = [str(each.failure.kind) for each in run.steps if each.failure]
    assert kinds == ["tool/execution_failed", "tool/rate_limit"]
    (made,) = [each.arguments for each in run.steps if each.name == "Bash" and each.failure]
    assert made["command"] == "make nothing"
    asked = [each for each in run.steps if each.type == "model"]
    assert len(asked) == 6
    assert all(each.tokens for each in asked)
