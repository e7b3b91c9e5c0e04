"""Recovery links of a coding agent: judged by the log of its session, and without one by equal arguments alone."""

from __future__ import annotations

import pytest
from session_logs import ClaudeCode, write

FILE = "/src/shop/cart.py"
WRONG_TEXT = (
    "def total(items):\n    result = 0\n    for item in items:\n        result += item.price\n    return result\n"
)
RIGHT_TEXT = WRONG_TEXT.replace("result = 0", "result = 0.0")
NEW_TEXT = WRONG_TEXT.replace("item.price", "item.price * item.count")
MISMATCH = "<tool_use_error>String to replace not found in file.</tool_use_error>"


def write_log(agent, *calls):
    """Write a log in which these calls were made: name, arguments, and an error or nothing."""
    session = ClaudeCode(agent.session)
    entries = [session.user("fix the cart")]
    for number, (name, arguments, error) in enumerate(calls, start=1):
        entries.append(session.call(f"t{number}", name, 2 * number, **arguments))
        entries.append(session.result(f"t{number}", error or "fine", 2 * number + 1, is_error=bool(error)))
    write(agent.log, *entries)


def edit(old_text: str, path: str = FILE) -> dict[str, str]:
    return {"file_path": path, "old_string": old_text, "new_string": NEW_TEXT}


def list_links(agent) -> list[tuple[int, int, tuple[str, ...]]]:
    history = agent.run()
    return [(link.failed_call, link.recovering_call, link.evidence) for link in history.links]


def test_corrected_edit_is_linked_by_the_session_log(agent):
    write_log(agent, ("Edit", edit(WRONG_TEXT), MISMATCH))
    agent.fails("Edit", MISMATCH, **edit(WRONG_TEXT))
    agent.works("Edit", **edit(RIGHT_TEXT))
    assert [(failed, later) for failed, later, _ in list_links(agent)] == [(1, 2)]
    assert "same_text" in list_links(agent)[0][2]


def test_corrected_edit_is_not_linked_without_a_log(agent):
    agent.fails("Edit", MISMATCH, **edit(WRONG_TEXT))
    agent.works("Edit", **edit(RIGHT_TEXT))
    assert list_links(agent) == []


def test_same_arguments_are_linked_without_a_log(agent):
    agent.fails("Edit", MISMATCH, **edit(WRONG_TEXT))
    agent.works("Read", file_path=FILE)
    agent.works("Edit", **edit(WRONG_TEXT))
    assert list_links(agent) == [(1, 3, ("same_arguments",))]


def test_earlier_successes_of_the_log_show_a_loop_over_items(agent):
    """The hook heard only the names of the first calls; the log has their arguments."""
    count = {"query": "price", "mode": "count"}
    write_log(
        agent,
        ("Search", {**count, "folder": "app"}, None),
        ("Search", {**count, "folder": "docs"}, "Error: index of docs is broken"),
    )
    agent.works("Search", **count, folder="app")
    agent.fails("Search", "index of docs is broken", **count, folder="docs")
    agent.works("Search", **count, folder="tests")
    assert list_links(agent) == []


@pytest.mark.parametrize("content", [b"", b"not a log\n", b'{"type":"user"'])
def test_unreadable_log_links_nothing_and_harms_nothing(agent, content):
    agent.log.write_bytes(content)
    agent.fails("Edit", MISMATCH, **edit(WRONG_TEXT))
    agent.works("Edit", **edit(RIGHT_TEXT))
    assert list_links(agent) == []
    assert [step.outcome for step in agent.run().steps] == ["failure", "success"]
