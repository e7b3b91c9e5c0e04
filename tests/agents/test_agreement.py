"""Hook, scan and proxy agree on what failed and what recovered in the same session of a real agent."""

from __future__ import annotations

import pytest
from agent_api import Reply
from agent_sessions import (
    AGENTS,
    AGENTS_WITH_SERVERS,
    SESSIONS,
    as_commands,
    as_expected,
    lookup,
    play,
    scan_totals,
    scanned_failures,
    stored_failures,
    translate,
    unknown_outcomes,
    work_through,
)

pytestmark = pytest.mark.agents


@pytest.mark.parametrize(
    ("agent", "session"),
    [(agent, session) for agent in AGENTS for session in SESSIONS if agent in session.agents],
    ids=lambda value: getattr(value, "name", value),
)
def test_hook_scan_and_proxy_see_the_same_failures_and_recoveries(place, agent, session):
    if agent != "opencode":  # its server has the plugin
        place.install(agent)
    play(agent, place, session)
    assert place.api.script == []  # the agent worked through all of it
    scanned = scanned_failures(place)
    expected = session.expected(agent)
    expected = as_commands(expected) if agent == "codex" else expected
    assert as_expected(agent, scanned) == expected
    of_server = [failure for failure in scanned if failure[0] in ("lookup", "crm_lookup")]
    of_proxy = stored_failures(place.home / "proxy.db")
    assert as_expected(agent, of_proxy) == as_expected(agent, of_server)
    of_hook = stored_failures(place.data / "mulligan.db")
    assert sorted(of_hook + of_server) == scanned  # each one once
    # A command that was started may have done something. A call that was refused, or found no file, has not.
    assert unknown_outcomes(place.data / "mulligan.db") <= {"tool/timeout", "tool/execution_failed"}
    assert scan_totals(place) == (len(scanned), sum(is_recovered for _, _, is_recovered in scanned))


@pytest.mark.parametrize(("mode", "has_hooks"), [("observe", True), ("suggest", True), ("suggest", False)])
@pytest.mark.parametrize("agent", AGENTS_WITH_SERVERS)
def test_failure_behind_our_proxy_is_recorded_once_and_never_quotes_our_block(place, agent, mode, has_hooks):
    if has_hooks and agent != "opencode":
        place.install(agent)
    place.proxy(mode)
    place.api.script = [Reply((translate(agent, lookup(q="tea"), place.project),)), Reply(text="That did not work.")]
    work_through(agent, place, has_hooks)
    assert place.api.script == []
    assert [kind for _, kind in place.kinds()] == ["tool/rate_limit"]
    place.imports()
    assert [kind for _, kind in place.kinds()] == ["tool/rate_limit"]
    assert not [message for message in place.messages() if "mulligan" in message or "said by" in message]
