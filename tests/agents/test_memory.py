"""The same failure in several sessions of each real agent: what its reminders and hints then say, and where."""

from __future__ import annotations

import json

import pytest
from agent_api import SUMMARY
from agent_sessions import AGENTS, play, session, shell

pytestmark = pytest.mark.agents
RUN = shell("sh run.sh")
SETUP = shell("sh setup.sh")
BUILD = shell("make nothing")
"""Another failure, which nothing recovers."""
FAILED_AND_CORRECTED = session("failed_and_corrected", RUN, SETUP, RUN, failures=())
WITH_COMPACTION = session(
    "with_compaction", BUILD, RUN, BUILD, SETUP, RUN, shell("true"), shell("echo on"), failures=(), compacts_after=5
)
FAILED_AGAIN = session("failed_again", RUN, shell("true"), failures=())
HINT = "In 3 earlier sessions `sh run.sh` succeeded after `sh setup.sh`."
REMINDER = "Recent failures of this session"


def write_project(folder):
    """Write a program that fails until it is set up, for each session anew."""
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_text("hello\n")
    (folder / "run.sh").write_text(
        "test -e config.json || { echo 'config.json is missing: run setup.sh' >&2; exit 1; }\n"
    )
    (folder / "setup.sh").write_text("touch config.json\n")
    (folder / "config.json").unlink(missing_ok=True)


def requests_of(place, agent, played):
    """Let the agent work through a session in its folder; the requests that its model gets, as text."""
    write_project(place.project)
    place.api.requests.clear()
    play(agent, place, played)
    assert place.api.script == []  # the agent worked through all of it
    return [json.dumps(request, ensure_ascii=False) for request in place.api.requests]


@pytest.mark.parametrize("agent", AGENTS)
def test_what_worked_is_said_after_a_compaction_and_in_a_new_session_of_the_folder_alone(place, agent):
    place.install(agent)
    for _ in range(2):
        assert not any("mulligan" in request for request in requests_of(place, agent, FAILED_AND_CORRECTED))

    requests = requests_of(place, agent, WITH_COMPACTION)
    reminded = [request for request in requests if SUMMARY in request and REMINDER in request][-1]
    reminder = reminded[reminded.index(REMINDER) :]
    assert reminder.count("sh run.sh:") == 1, reminder
    assert reminder.count("make nothing:") == 1, reminder
    assert ", 2 times, " in reminder, reminder
    assert "sh setup.sh" in reminder[reminder.index("sh run.sh:") :], reminder

    assert any(HINT in request for request in requests_of(place, agent, FAILED_AGAIN))
    place.project = place.project.with_name("other")
    elsewhere = requests_of(place, agent, FAILED_AGAIN)
    assert not any("mulligan" in request or "setup.sh`" in request for request in elsewhere)
