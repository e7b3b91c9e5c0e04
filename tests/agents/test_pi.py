"""The real Pi: what its extension keeps, and what installing it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agent_api import Reply, asks
from coding_agents import Pi, Place, corrupt, list_files

from mulligan.cli.server_entries import read_plugin_command

pytestmark = pytest.mark.agents
EXTENSION = Path(".pi", "agent", "extensions", "mulligan.js")


def work(place: Place, *replies: Reply) -> str:
    """Let Pi work through these replies; the last words of the model."""
    place.api.script = [*replies]
    with Pi(place) as pi:
        event = pi.says("please work")
        pi.ends()
    assert place.api.script == []
    return str(event["messages"][-1]["content"][0]["text"])


@pytest.mark.parametrize("existing", [None, "mine.js", "mulligan.js"])
def test_uninstalling_restores_the_files_of_the_user(place, existing):
    """Without a folder for extensions, with an extension of the user, and with one of the same name."""
    (place.home / EXTENSION).parent.parent.mkdir(parents=True)
    if existing is not None:
        (place.home / EXTENSION).parent.mkdir()
        (place.home / EXTENSION).with_name(existing).write_text("export default function (pi) {}\r\n")
    before = list_files(place.home)
    place.install("pi")
    assert list_files(place.home) != before
    assert "Plugin removed" in place.run("uninstall", "pi")
    assert list_files(place.home) == before


def test_reminder_stays_when_a_session_is_resumed(place):
    place.install("pi")
    place.api.script = [asks("bash", command="make nothing"), Reply(text="That did not work.")]
    with Pi(place) as pi:
        pi.says("please work")
        pi.says("/compact")
        pi.ends()
    place.api.requests.clear()
    place.api.script = [Reply(text="Well.")]
    with Pi(place, "--continue") as pi:
        pi.says("go on")
        pi.ends()
    (request,) = [json.dumps(request) for request in place.api.requests]
    assert request.count("Recent failures of this session") == 1
    assert "make nothing" in request


def test_damaged_store_does_not_disturb_the_agent(place):
    place.install("pi")
    corrupt(place)
    replies = (asks("bash", command="make nothing"), Reply(text="That did not work."))
    assert work(place, *replies) == "That did not work."
    assert set(place.api.said("mulligan")) == {0}


def test_extension_of_a_removed_mulligan_does_nothing_and_doctor_names_it(place):
    place.install("pi")
    extension = place.home / EXTENSION
    script = read_plugin_command(extension.read_text())[2].replace("/mulligan/hooks/", "/gone/mulligan/hooks/")
    extension.write_text(extension.read_text().replace("/mulligan/hooks/", "/gone/mulligan/hooks/"))
    assert f"a hook starts {script}, which does not exist" in place.run("doctor", codes=(0, 1))
    replies = (asks("bash", command="make nothing"), Reply(text="That did not work."))
    assert work(place, *replies) == "That did not work."
    assert set(place.api.said("mulligan")) == {0}
