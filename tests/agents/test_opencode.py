"""The real OpenCode: what its plugin keeps, what its model is then told, and what installing it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agent_api import SUMMARY, Reply, asks
from agent_sessions import FULL_CONTEXT_TOKENS
from coding_agents import Place, corrupt, list_files, opencode, prepare_opencode

from mulligan.cli.server_entries import read_plugin_command

pytestmark = pytest.mark.agents
REMINDER = "Recent failures of this session"
PLUGIN = Path(".config", "opencode", "plugins", "mulligan.js")
NOT_A_REPOSITORY = "echo 'fatal: not a git repository (or any of the parent directories): .git' >&2; exit 128"


def bash(command: str) -> Reply:
    return asks("bash", command=command, description="works")


def work(place: Place, *replies: Reply) -> list[str]:
    """Let the server work through these replies; the last words of the model."""
    place.api.script = [*replies]
    parts = place.opencode_server.work(place)
    assert place.api.script == []
    return [part["text"] for part in parts if part["type"] == "text"][-1:]


def test_failures_are_kept_with_their_kind_and_survive_a_compaction(place):
    file = str(place.project / "a.txt")
    full = Reply(bash("true").asks, tokens=FULL_CONTEXT_TOKENS["opencode"])  # then OpenCode asks for a summary
    work(
        place,
        bash("make nothing"),
        asks("edit", filePath=file, oldString="not in it", newString="x"),
        asks("crm_lookup", q="tea"),
        full,
        bash("true"),
        Reply(),
    )
    assert sorted(place.kinds()) == [
        ("bash", "tool/build_failure"), ("crm_lookup", "tool/rate_limit"), ("edit", "tool/edit_mismatch"),
    ]  # fmt: skip
    compacted = next(
        number for number, body in enumerate(place.api.requests) if SUMMARY in json.dumps(body) and body.get("tools")
    )
    reminders = place.api.said(REMINDER)
    assert set(reminders[:compacted]) == {0}
    assert set(reminders[compacted:]) == {1}  # in the system prompt of each request
    reminded = json.dumps(place.api.requests[compacted])
    assert all(f"{kind} in {tool}" in reminded for tool, kind in place.kinds())


def test_nothing_is_said_when_nothing_failed(place):
    work(place, Reply(bash("true").asks, tokens=FULL_CONTEXT_TOKENS["opencode"]), bash("true"), Reply())
    assert set(place.api.said(REMINDER)) == {0}
    assert set(place.api.said("mulligan")) == {0}


def test_hint_follows_the_failure_once(place):
    place.run("seed")
    work(place, bash(NOT_A_REPOSITORY), bash("true"), Reply())
    hints = place.api.said("mulligan, a lesson about this failure")
    assert sum(hints) == 1
    hinted = json.dumps(place.api.requests[hints.index(1)])
    assert hinted.index("not a git repository") > 0
    assert "git -C DIR" in hinted


def test_damaged_store_does_not_disturb_the_agent(place):
    corrupt(place)
    assert work(place, bash("make nothing"), Reply(text="That did not work.")) == ["That did not work."]
    assert set(place.api.said("mulligan")) == {0}


@pytest.mark.parametrize("existing", [None, "mine.js", "mulligan.js"])
def test_uninstalling_restores_the_files_of_the_user(place, existing):
    """Without a folder for plugins, with a plugin of the user, and with one of the same name."""
    prepare_opencode(place.home)
    if existing is not None:
        (place.home / PLUGIN).parent.mkdir()
        (place.home / PLUGIN).with_name(existing).write_text("export const Mine = async () => ({})\r\n")
    before = list_files(place.home)
    place.install("opencode")
    assert list_files(place.home) != before
    assert "Plugin removed" in place.run("uninstall", "opencode")
    assert list_files(place.home) == before
    assert "Not installed" in place.run("uninstall", "opencode")
    assert list_files(place.home) == before


def test_plugin_of_a_removed_mulligan_does_nothing_and_doctor_names_it(place):
    place.install("opencode")
    plugin = place.home / PLUGIN
    assert place.run("doctor", codes=(0, 1)).count("does not exist") == 0
    script = read_plugin_command(plugin.read_text())[2]
    plugin.write_text(plugin.read_text().replace("/mulligan/hooks/", "/gone/mulligan/hooks/"))
    gone = script.replace("/mulligan/hooks/", "/gone/mulligan/hooks/")
    problem = place.run("doctor", codes=(0, 1))
    assert f"a hook starts {gone}, which does not exist" in problem
    assert "mulligan uninstall opencode" in problem
    place.api.script = [bash("make nothing"), Reply(text="That did not work.")]
    events = opencode(place)
    assert [event["part"]["text"] for event in events if event["type"] == "text"] == ["That did not work."]
    assert set(place.api.said("mulligan")) == {0}
    assert not (place.data / "mulligan.db").exists()
    place.run("uninstall", "opencode")
    assert not plugin.exists()
