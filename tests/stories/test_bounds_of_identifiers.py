"""A bound never leads to another object: not in a decorated tool, not in a loop, not through the proxy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mcp_client import block, proxied, stored_runs, texts

import mulligan
from mulligan import AgentError
from mulligan.testing import sandbox

BOUNDED = {"properties": {"note_id": {"type": "integer", "minimum": 1}}, "required": ["note_id"]}
UNBOUNDED = {"properties": {"note_id": {"type": "integer"}}, "required": ["note_id"]}
ERROR = "note_id must be at least 1, got 0"


def build_tool(schema: dict[str, Any], deleted: list[int]) -> Callable[..., str]:
    """Build a tool whose careless author declared that it has no effects."""

    @mulligan.tool(effects="none", mode="repair", schema=schema)
    def delete_note(note_id: int) -> str:
        if note_id < 1:
            raise AgentError(ERROR)
        deleted.append(note_id)
        return f"deleted {note_id}"

    return delete_note


@pytest.mark.parametrize("schema", [BOUNDED, UNBOUNDED])
def test_decorated_tool_is_not_called_with_the_bound_of_an_identifier(schema):
    deleted: list[int] = []
    with sandbox(), mulligan.run("clean up"), pytest.raises(AgentError):
        build_tool(schema, deleted)(note_id=0)
    assert deleted == []


@pytest.mark.parametrize("schema", [BOUNDED, UNBOUNDED])
def test_tool_in_a_loop_is_not_called_with_the_bound_of_an_identifier_and_no_other_note_is_advised(schema):
    deleted: list[int] = []
    with sandbox():
        tools = [build_tool(schema, deleted)]
        (outcome,) = [turn.call(tools, "delete_note", {"note_id": 0}) for turn in mulligan.turns(limit=1)]
    assert not outcome.ok
    assert deleted == []
    assert "suggest" not in str(outcome.to_message()).lower()


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["delete_note", "delete_note_unchecked"])
def test_proxied_tool_is_not_called_with_the_bound_of_an_identifier(tool, tmp_path):
    folder = tmp_path / "config" / "mulligan"
    folder.mkdir(parents=True)
    (folder / "mulligan.toml").write_text('[tools."fake.*"]\neffects = "none"\n')
    with proxied(options=["--repair"], env={"XDG_CONFIG_HOME": str(tmp_path / "config")}) as client:
        client.open()
        client.tools()
        answer = client.call(tool, note_id=0)
        assert texts(answer)[0] == "note_id must be at least 1"
        assert "suggestions" not in block(answer)
        assert texts(client.call(tool, note_id=7)) == ["deleted 7"]
        client.close()
    (run,) = stored_runs()
    assert [step.outcome for step in run.steps] == ["failure", "success"]
    assert [link for step in run.steps for link in step.links] == []
