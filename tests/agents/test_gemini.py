"""The real Gemini CLI: what its hooks keep. What they say after a compaction is in tests/hooks."""

from __future__ import annotations

import pytest
from agent_api import Reply, asks
from coding_agents import gemini, unwritable

pytestmark = pytest.mark.agents


def test_failures_are_kept_with_their_kind_and_nothing_is_said_before_a_compaction(place):
    place.install("gemini")
    file = str(place.project / "a.txt")
    place.api.script = [
        asks("run_shell_command", command="echo hi"),
        asks("run_shell_command", command="make nothing"),
        asks("replace", file_path=file, old_string="not in it", new_string="x", instruction="change it"),
        asks("read_file", file_path=str(place.project / "absent.txt")),
        Reply(text="That did not work."),
    ]
    assert gemini(place) == "That did not work."
    assert place.kinds() == [
        ("run_shell_command", "tool/build_failure"),
        ("replace", "tool/edit_mismatch"),
        ("read_file", "tool/file_not_found"),
    ]
    assert set(place.api.said("Recent failures of this session")) == {0}


def test_a_broken_hook_does_not_disturb_the_agent(place):
    place.install("gemini")
    unwritable(place)
    place.api.script = [asks("run_shell_command", command="make nothing"), Reply(text="That did not work.")]
    assert gemini(place) == "That did not work."
    assert set(place.api.said("mulligan")) == {0}
