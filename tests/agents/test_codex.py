"""The real Codex: what its hooks keep, and what its model is then told."""

from __future__ import annotations

import dataclasses
import json

import pytest
from agent_api import SUMMARY, Ask, Reply, asks
from coding_agents import Place, codex, corrupt, unwritable

pytestmark = pytest.mark.agents
REMINDER = "Recent failures of this session"
PATCH = "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: a.txt\n@@\n-not in it\n+x\n*** End Patch\nEOF\n"


def full(reply: Reply) -> Reply:
    """The same when the conversation has become too long: Codex then asks for a summary."""
    return dataclasses.replace(reply, tokens=9000)


def failing() -> list[Reply]:
    return [
        asks("exec_command", cmd="echo hi"),
        asks("exec_command", cmd="make nothing"),
        asks("exec_command", cmd=PATCH),
        Reply((Ask("lookup", {"q": "tea"}, namespace="mcp__crm"),)),
        full(asks("exec_command", cmd="true")),
        asks("exec_command", cmd="true"),
        Reply(text="That did not work."),
    ]


def test_failures_are_kept_with_their_kind_and_survive_a_compaction(place):
    place.install("codex")
    place.api.script = failing()
    told = codex(place)
    assert sorted(place.kinds()) == [
        ("exec_command", "tool/build_failure"),
        ("exec_command", "tool/edit_mismatch"),
        ("lookup", "tool/rate_limit"),
    ]
    said = place.api.said(REMINDER)
    compacted = next(number for number, body in enumerate(place.api.requests) if SUMMARY in json.dumps(body))
    assert set(said[:compacted]) == {0}
    assert said[compacted] == 1
    assert set(said[compacted:]) == {1}
    sent = json.dumps(place.api.requests[compacted])
    assert "tool/build_failure in exec_command" in sent
    assert "tool/rate_limit in lookup" in sent
    assert told[-1]["type"] == "turn.completed"


def test_nothing_is_said_when_nothing_failed(place):
    place.install("codex")
    place.api.script = [full(asks("exec_command", cmd="true")), Reply()]
    codex(place)
    assert set(place.api.said(REMINDER)) == {0}
    assert set(place.api.said("mulligan")) == {0}


def uninstalled(place: Place) -> None:
    settings = place.home / ".codex" / "hooks.json"
    settings.write_text(settings.read_text().replace("/mulligan/hooks/", "/gone/mulligan/hooks/"))


@pytest.mark.parametrize("breaks", [unwritable, corrupt, uninstalled])
def test_a_broken_hook_does_not_disturb_the_agent(place, breaks):
    place.install("codex")
    breaks(place)
    place.api.script = failing()
    told = codex(place)
    assert [each["item"]["text"] for each in told if each.get("item", {}).get("type") == "agent_message"] == [
        "That did not work."
    ]
    assert set(place.api.said(REMINDER)) == {0}
    errors = [each["item"]["message"] for each in told if each.get("item", {}).get("type") == "error"]
    assert not [each for each in errors if "hook" in each and "bypass" not in each]
