"""Options of tools behind the proxy, from the user's settings."""

from __future__ import annotations

from mulligan.proxy.tools import ProxyOptions, build_tool_options


def test_rule_of_a_tool_sets_how_its_memory_is_used() -> None:
    options = ProxyOptions(
        name="files", mode="repair", rules={"files.*": {"learn": "off"}, "files.read": {"learn": "tell"}}
    )
    learned = {tool: build_tool_options(options, tool, {}, is_pinned=True).learn for tool in ("read", "write")}
    assert learned == {"read": "tell", "write": "off"}
