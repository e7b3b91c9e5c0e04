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
    assert set(place.api.said("Recent Failures of this session")) == {0}


def test_a_broken_hook_does_not_disturb_the_agent(place):
    place.install("gemini")
    unwritable(place)
    place.api.script = [asks("run_shell_command", command="make nothing"), Reply(text="That did not work.")]
    assert gemini(place) == "That did not work."
    assert set(place.api.said("mulligan")) == {0}


@pytest.mark.parametrize("hooked", [True, False], ids=["with hooks", "without hooks"])
@pytest.mark.parametrize("mode", ["observe", "suggest"])
def test_failure_behind_our_proxy_is_recorded_once_and_never_quotes_our_block(place, mode, hooked):
    if hooked:
        place.install("gemini")
    place.proxy(mode)
    place.api.script = [asks("mcp_crm_lookup", q="tea"), Reply(text="That did not work.")]
    gemini(place)
    assert [kind for _, kind in place.kinds()] == ["tool/rate_limit"]
    place.imports()
    assert [kind for _, kind in place.kinds()] == ["tool/rate_limit"]
    assert not [message for message in place.messages() if "mulligan" in message or "said by" in message]
